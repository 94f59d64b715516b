/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Snapshots: the frozen memory and device state of a VM in a folder, which others READ over
 * connections of their own.
 *
 *   manifest.c  what a snapshot is: its blocks, its VM; JSON in the folder and on the wire
 *   folder.c    the folder: which pages hold data, its digest
 *   hashes.c    a hash of each page, and the digest of all
 *   checker.c   compares pages that arrive with their hashes
 *   intact.c    whether the files are still what was frozen
 *   memory_file.c  the memory file of a Firecracker snapshot, without the rest
 *   freeze.c    makes a snapshot of a VM; freeze.h lists its parts
 *   copy_ram.c  ... copies guest RAM into a file
 *   messages.c  the messages of a snapshot's connections
 *   clone.c     makes a QEMU that waits for a VM a child of a snapshot
 *   holes.c     the parts of a child's memory that are zero
 *   network.c   a child's network cards
 *   policy.c    a NUMA policy that a child's memory does not get
 *   cache.h     a host's cache of a snapshot that is served elsewhere: cache.c, children.c, child.c
 *   serve.c     ib-migrate serve: a folder and a server, until it is told to end
 *   host_cache.c  makes this host's cache of a served snapshot, when it is needed
 *   server.c    offers a snapshot to any number of readers
 *   reader.c    connections to a server; page readers for the fault engine (userfaultfd/)
 *   table_reader.c  page readers that fetch the hashes of pages together with the pages
 *   message_reader.c  fetches pages by messages, where they cannot be READ
 *   multicast_server.c  a server's pages by multicast, for readers that ask for it
 *
 * A snapshot has numbered blocks: those of guest RAM, in the order of their ids, then the device
 * state, filled up with zeros to whole pages, and as the last one the table of its pages' hashes,
 * if it has one. Pages are numbered through all of them, as are bytes. All pages have
 * IBX_SNAPSHOT_PAGE bytes, whatever the VM's had.
 *
 * Calls return 0 or a negative errno with a sentence in `err`.
 */
#ifndef IBX_MIGRATE_SNAPSHOT_SNAPSHOT_H
#define IBX_MIGRATE_SNAPSHOT_SNAPSHOT_H

#include "common/state_machine.h"
#include "migrate/multicast/multicast.h"
#include "migrate/pages/pages.h"

#include <jansson.h>
#include <stdatomic.h>

#define IBX_SNAPSHOT_VERSION     3u
#define IBX_SNAPSHOT_PAGE        4096u
#define IBX_SNAPSHOT_RAM_MAX     (IBX_GUEST_BLOCKS_MAX - 2) /* blocks of guest RAM */
#define IBX_SNAPSHOT_BYTES_MAX   (1ull << 44)               /* of all blocks */
#define IBX_SNAPSHOT_STATE_MAX   (1ull << 30)               /* of device state */
#define IBX_SNAPSHOT_TEXT_MAX    (2u << 20)                 /* of a manifest */
#define IBX_SNAPSHOT_ID          16u
#define IBX_SNAPSHOT_DIGEST      32u
#define IBX_SNAPSHOT_HASH        16u /* bytes of a page's hash in the table */
#define IBX_SNAPSHOT_PAGE_HASHES (IBX_SNAPSHOT_PAGE / IBX_SNAPSHOT_HASH) /* in a page of it */
#define IBX_SNAPSHOT_PIECE_MIN   256u   /* bytes of a piece of the table, at least */
#define IBX_SNAPSHOT_PIECES      65536u /* of the table, unless they would be longer than a page */
#define IBX_SNAPSHOT_PURPOSE     "ib-migrate snapshot" /* ibx_options.purpose */

/* ------------------------------------------------------------ manifest.c */

struct ibx_snapshot_manifest {
    uint8_t id[IBX_SNAPSHOT_ID];    /* random */
    bool complete;                  /* all pages are in this folder */
    bool ran;                       /* the VM ran when it was frozen, so children run */
    bool hashed;                    /* the snapshot has a table of hashes, and a digest */
    struct ibx_qmp_version version; /* of its QEMU */
    char machine[64], uuid[40], name[128];
    unsigned ram_count;
    struct {
        char id[IBX_GUEST_ID_MAX]; /* of the memory backend */
        uint64_t size;             /* bytes, whole pages */
    } ram[IBX_SNAPSHOT_RAM_MAX];
    uint64_t state_bytes;                /* of device state, without padding to a page */
    uint8_t digest[IBX_SNAPSHOT_DIGEST]; /* zeros: the snapshot is not hashed */
    json_t *description;                 /* ibx_describe() of the VM; owned */
};

/* Makes the JSON text, which the caller frees by free(). -ENOMEM. */
int ibx_snapshot_manifest_write(const struct ibx_snapshot_manifest *manifest, char **text,
                                size_t *length, struct ibx_error *err);
/* Parses such a text, which is not trusted. -EPROTO names what is wrong. */
int ibx_snapshot_manifest_read(const char *text, size_t length,
                               struct ibx_snapshot_manifest *manifest, struct ibx_error *err);
/* Whether both have the same id, and the same memory and VM, in case somebody has used an id
 * twice. */
bool ibx_snapshot_same(const struct ibx_snapshot_manifest *a,
                       const struct ibx_snapshot_manifest *b);
void ibx_snapshot_manifest_fini(struct ibx_snapshot_manifest *manifest);
/* Describes all blocks, also those of device state and hashes, in `blocks`, which has room for
 * IBX_GUEST_BLOCKS_MAX. Returns their number. */
unsigned ibx_snapshot_blocks(const struct ibx_snapshot_manifest *manifest,
                             struct ibx_migrate_block *blocks);
/* An empty page map of all blocks. */
int ibx_snapshot_map_init(const struct ibx_snapshot_manifest *manifest, struct ibx_page_map *map,
                          struct ibx_error *err);
/* The number of pages that have a hash; bytes of the table of hashes as a block. */
uint64_t ibx_snapshot_hashed_pages(const struct ibx_snapshot_manifest *manifest);
uint64_t ibx_snapshot_table_bytes(const struct ibx_snapshot_manifest *manifest);

/* ------------------------------------------------------------ folder.c */

/* FOLDER (mode 0700) has manifest.json and a sparse file of each block: ram.0, ram.1, ..., state
 * and hashes. No name in it comes from a manifest. */
struct ibx_snapshot_folder {
    char path[PATH_MAX];
    int at; /* the folder itself, once `opened` */
    bool opened;
    struct ibx_snapshot_manifest manifest;
    unsigned count; /* blocks */
    bool read_only; /* a memory file, or on a read-only filesystem: opened for reading only */
    int fds[IBX_GUEST_BLOCKS_MAX];
    uint64_t sizes[IBX_GUEST_BLOCKS_MAX];
    struct timespec times[IBX_GUEST_BLOCKS_MAX]; /* of their last change, when last noted */
};

/* Makes the folder, or uses an empty one, and locks it: `path`, `at` and `opened` are set.
 * -EEXIST: it has a snapshot; -EPERM: others can enter it, or decide where the path leads; -EBUSY:
 * another process fills it; -ENOTDIR. */
int ibx_snapshot_folder_make(const char *path, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* Locks the folder until it is closed. -EBUSY: another process has the lock. */
int ibx_snapshot_folder_lock(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
enum ibx_snapshot_files {
    IBX_SNAPSHOT_FILES_READ,
    IBX_SNAPSHOT_FILES_WRITE,
    IBX_SNAPSHOT_FILES_MAKE /* new ones, empty, to read and write */
};
/* Opens the files of its blocks. */
int ibx_snapshot_folder_files(struct ibx_snapshot_folder *folder, enum ibx_snapshot_files how,
                              struct ibx_error *err);
/* Whether a cache's folder, opened before, has all pages now, so that the process that filled it
 * may have ended. */
bool ibx_snapshot_folder_is_whole_now(const struct ibx_snapshot_folder *folder);
/* Opens a folder that has a manifest. `folder` is set on success only. */
int ibx_snapshot_folder_open(const char *path, bool writable, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* memory_file.c: opens a memory file as if it were a folder with one block and no device state, to
 * be served only. With `hashed` all of it is read. -EPERM: others can read or change the file;
 * -EINTR: a signal that ends this process is pending (ibx_migration_signals_pending()). */
int ibx_snapshot_memory_file(const char *path, bool hashed, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* memory_file.c: -EINVAL: this is such a file, of which no QEMU can become a child. */
int ibx_snapshot_memory_file_refuse(const struct ibx_snapshot_manifest *manifest,
                                    struct ibx_error *err);
/* Waits until the disk has all blocks. */
int ibx_snapshot_folder_sync(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Writes manifest.json as a whole: from then on the folder is a snapshot. It may be there in spite
 * of an error: if its name could not be synchronized. */
#define IBX_SNAPSHOT_SEAL "manifest.json"
int ibx_snapshot_folder_seal(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Removes it, if there is one. */
int ibx_snapshot_folder_unseal(const struct ibx_snapshot_folder *folder);
/* Makes a map of the pages that the files have. To be freed by ibx_page_map_fini(). */
int ibx_snapshot_folder_map(const struct ibx_snapshot_folder *folder, struct ibx_page_map *map,
                            struct ibx_error *err);
/* Removes the files that freeze made, after a failure. */
void ibx_snapshot_folder_remove(const struct ibx_snapshot_folder *folder);
void ibx_snapshot_folder_close(struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ hashes.c */

/*
 * The hash of a page is the first 16 bytes of SHA-256 over the snapshot's id, u64 its number and
 * its bytes; that of a page of zeros is zeros. There are two levels. The table has the hashes of
 * the pages of guest RAM and device state. It is cut into pieces, and the index has the hashes of
 * the pieces, by the same rule, with numbers after those of these pages. A piece has the hashes of
 * 16 pages, in a large snapshot of 32, 64, 128 or 256: a reader needs the whole index, which so has
 * at most 1 MiB up to 64 GiB of memory, but of the table only the pieces of the pages that it
 * touches. The digest of a snapshot is SHA-256 over the sizes of guest RAM and device state, which
 * of their pages have a hash, and the index. So the manifest is enough to check a map and an index,
 * these to check each piece of the table when it is needed, and a piece to check its pages.
 *
 * Zero pages may be in the files or be holes: reading a hole through a mapping fills it on tmpfs.
 */
struct ibx_snapshot_table {
    uint8_t *hashes; /* NULL: none */
    size_t bytes;    /* whole pages */
    uint64_t pages;  /* hashes */
};

struct ibx_snapshot_index {
    uint8_t *hashes; /* NULL: none */
    uint64_t pieces; /* of the table: so many hashes */
};

/* Bytes of one piece of the table; number of its pieces. */
uint32_t ibx_snapshot_piece_bytes(const struct ibx_snapshot_manifest *manifest);
uint64_t ibx_snapshot_pieces(const struct ibx_snapshot_manifest *manifest);
/* The first piece from `piece` on that has the hash of a page of the map; the number of pieces:
 * there is none. */
uint64_t ibx_snapshot_piece_next(const struct ibx_snapshot_manifest *manifest,
                                 const struct ibx_page_map *map, uint64_t piece);
/* Makes a table of zeros. -ENOMEM. */
int ibx_snapshot_table_init(const struct ibx_snapshot_manifest *manifest,
                            struct ibx_snapshot_table *table, struct ibx_error *err);
void ibx_snapshot_table_fini(struct ibx_snapshot_table *table);
/* Computes the hashes of the pages of the map from a folder's files. -EINTR: `ends` (may be NULL),
 * which is called before each MiB, says that this process has to end. */
int ibx_snapshot_table_fill(const struct ibx_snapshot_folder *folder,
                            const struct ibx_page_map *map, struct ibx_snapshot_table *table,
                            bool (*ends)(void), struct ibx_error *err);
int ibx_snapshot_table_digest(const struct ibx_snapshot_manifest *manifest,
                              const struct ibx_snapshot_table *table,
                              uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
/* Writes the table into the folder's file, which is empty. */
int ibx_snapshot_table_write(const struct ibx_snapshot_folder *folder,
                             const struct ibx_snapshot_table *table, struct ibx_error *err);
/* Makes, from the table, the map of pages that are not zero, those of the table included, and its
 * index. The caller owns both. `there`: a map in which at least all pages of the table that are not
 * zero are set; the others are not read (NULL: all are). */
int ibx_snapshot_table_read(const struct ibx_snapshot_manifest *manifest,
                            const struct ibx_snapshot_table *table,
                            const struct ibx_page_map *there, struct ibx_page_map *map,
                            struct ibx_snapshot_index *index, struct ibx_error *err);
/* Makes an index of zeros. -ENOMEM. */
int ibx_snapshot_index_init(const struct ibx_snapshot_manifest *manifest,
                            struct ibx_snapshot_index *index, struct ibx_error *err);
void ibx_snapshot_index_fini(struct ibx_snapshot_index *index);
int ibx_snapshot_index_digest(const struct ibx_snapshot_manifest *manifest,
                              const struct ibx_page_map *map,
                              const struct ibx_snapshot_index *index,
                              uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
/* Adds to a map the pages of the table that are not zero, which follow from the pages with a hash.
 * A snapshot without hashes has none. */
void ibx_snapshot_map_finish(const struct ibx_snapshot_manifest *manifest,
                             struct ibx_page_map *map);
/* Computes the digest of a folder's files. */
int ibx_snapshot_digest(const struct ibx_snapshot_folder *folder, const struct ibx_page_map *map,
                        uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
bool ibx_snapshot_page_is_zero(const void *page);

/* ------------------------------------------------------------ checker.c */

/*
 * Compares pages that arrive with their hashes, as ibx_fault_config.check. It starts with the
 * index, which has been checked, and keeps the pieces of the table that it has checked. Pages are
 * numbered as in the snapshot's map, pieces of the table from 0.
 *
 * Before a page is checked, the piece of the table with its hash has to be there: the caller asks
 * ibx_snapshot_checker_lacks() and passes the missing piece to ibx_snapshot_checker_keep().
 * From any thread; each passes a `worker` number of its own.
 */
struct ibx_snapshot_checker;
/* `index` becomes the checker's. */
int ibx_snapshot_checker_create(const struct ibx_snapshot_manifest *manifest,
                                struct ibx_snapshot_index *index, unsigned workers,
                                struct ibx_snapshot_checker **checker, struct ibx_error *err);
/* Sets the page size with which ibx_snapshot_checker_check() is called, if it is not that of the
 * snapshot. */
void ibx_snapshot_checker_scale(struct ibx_snapshot_checker *checker, uint32_t page_size);
const struct ibx_snapshot_index *
ibx_snapshot_checker_index(const struct ibx_snapshot_checker *checker);
/* Compares pages, or takes pages of the table. -EBADMSG names the first page that differs from what
 * was frozen, or whose hash is not there. */
int ibx_snapshot_checker_check(void *checker, unsigned worker, uint64_t page, uint32_t pages,
                               const void *bytes, struct ibx_error *err);
/* How many pages of guest RAM or device state have their hashes in one piece. */
uint32_t ibx_snapshot_checker_piece_pages(const struct ibx_snapshot_checker *checker);
/* The first piece in [first, end) that is not kept yet; `end`: all are. */
uint64_t ibx_snapshot_checker_lacks(const struct ibx_snapshot_checker *checker, uint64_t first,
                                    uint64_t end);
/* Checks a piece of the table and keeps it. -EBADMSG: it is wrong. */
int ibx_snapshot_checker_keep(struct ibx_snapshot_checker *checker, unsigned worker, uint64_t piece,
                              const void *bytes, struct ibx_error *err);
/* Copies kept pieces. */
void ibx_snapshot_checker_copy(const struct ibx_snapshot_checker *checker, uint64_t first,
                               uint64_t count, void *to);
/* Claims the fetching of a piece: true for one caller only, until the piece is kept or unclaimed.
 */
bool ibx_snapshot_checker_claim(struct ibx_snapshot_checker *checker, uint64_t piece);
void ibx_snapshot_checker_unclaim(struct ibx_snapshot_checker *checker, uint64_t piece);
/* Bytes of the table READ so far, counting those READ twice; and adding to that count. */
uint64_t ibx_snapshot_checker_fetched(const struct ibx_snapshot_checker *checker);
void ibx_snapshot_checker_note(struct ibx_snapshot_checker *checker, uint64_t bytes);
/* Accepts NULL. */
void ibx_snapshot_checker_destroy(struct ibx_snapshot_checker *checker);

/* ------------------------------------------------------------ intact.c */

/* Verifies that a whole folder has what was frozen. Reads its pages only if the files have changed
 * since they were last verified; `bytes`: how many were read. -EBADMSG: the contents differ;
 * -EBUSY: the files are changed all the time. */
int ibx_snapshot_verify(const struct ibx_snapshot_folder *folder, uint64_t *bytes,
                        struct ibx_error *err);
/* Sets `times` of the folder. Opening the files does so, too. */
void ibx_snapshot_folder_note_times(struct ibx_snapshot_folder *folder);
/* Notes that the caller has verified the folder; and removes that note. */
void ibx_snapshot_mark_verified(const struct ibx_snapshot_folder *folder);
void ibx_snapshot_unmark(const struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ copy_ram.c */

/* Writes `length` bytes at offset `at` of a file; `what` they are is for the error message. */
int ibx_snapshot_put(int fd, const uint8_t *bytes, uint64_t length, uint64_t at, const char *what,
                     struct ibx_error *err);
/* Copies the pages with data of a block of guest RAM, as they are now, into the file of that block,
 * which already has its size but no data. `ends` may be NULL; -EINTR: it has returned true. */
int ibx_snapshot_copy_block(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            int fd, bool (*ends)(void), struct ibx_error *err);

/* ------------------------------------------------------------ freeze.c */

enum ibx_freeze_after {
    IBX_FREEZE_STOPPED, /* the VM stays as it was frozen */
    IBX_FREEZE_RESUME,  /* the VM is continued if it ran */
    IBX_FREEZE_QUIT,    /* its QEMU ends */
};

struct ibx_freeze_options {
    const char *qmp, *path; /* QEMU's monitor, the folder */
    enum ibx_freeze_after after;
    void (*over)(void); /* called when signals come late: they are no longer held back; or NULL */
};

struct ibx_freeze_result {
    uint64_t ram_bytes, data_bytes, state_bytes;
    uint64_t stopped_ns; /* from STOP until all was copied; with RESUME until the VM ran */
    bool runs;           /* the VM runs now */
    bool tpm;            /* the VM has an emulated TPM, and so will its children */
};

/* Freezes the VM at this monitor into a folder. Any failure before the snapshot is whole leaves the
 * VM as it was. -EPERM, with all reasons: the VM cannot be frozen; nothing was changed. -ECANCELED:
 * by SIGINT, SIGTERM or SIGHUP; those that come when the snapshot is whole are taken. */
int ibx_snapshot_freeze(const struct ibx_freeze_options *options, struct ibx_freeze_result *result,
                        struct ibx_error *err);

/* ------------------------------------------------------------ clone.c */

struct ibx_clone_result {
    bool child;                 /* QEMU has a VM now and must not be ended */
    pid_t pid;                  /* of QEMU */
    char status[32];            /* of the VM, as QEMU calls it */
    bool ran;                   /* the parent ran when it was frozen */
    bool tpm;                   /* it has its parent's TPM */
    bool whole;                 /* all pages were there */
    uint64_t verified;          /* bytes that were read to compare the folder with its digest */
    unsigned cards, cards_down; /* network cards with their own MAC; of these, without link */
    uint64_t check_ns, memory_ns, load_ns, network_ns;
};

struct ibx_serve_options;
struct ibx_clone_config {
    const char *path; /* the snapshot's folder, or that of a cache that an ib-migrate serve fills */
    const char *qmp;  /* the monitor of a QEMU that waits for a VM */
    pid_t started; /* the caller's child process that is, or has started, this QEMU; 0: any QEMU */
    bool parent_mac;     /* the child may use the network with its parent's MACs */
    unsigned mac_wait_s; /* how long to wait for the guest to set the child's own MACs */
    /* Called right before QEMU loads the VM: until then there is none that would end with it; or
     * NULL. */
    void (*loads)(void);
    /* Where `path` is this host's cache: what it was made with, if its process is killed before it
     * has this child. NULL: it is not. */
    const struct ibx_serve_options *filled_by;
};

/* Makes a QEMU a child of a snapshot. -EPERM, with all reasons: it cannot be one; -EBUSY: it is not
 * the QEMU that was started; in both cases nothing was changed. If only its network cards have
 * failed
 * (-ETIMEDOUT and others), it is a child that runs, and `*result` is set and says so; other
 * failures leave `*result` alone. If QEMU's settings cannot be restored, since another client
 * migrates the child by then, that is only logged. */
int ibx_snapshot_clone(const struct ibx_clone_config *config, struct ibx_clone_result *result,
                       struct ibx_error *err);

/* ------------------------------------------------------------ messages.c */

/* docs/protocol.md, "Snapshots". After these a server sends REGION messages (channel/protocol.h).
 */
enum ibx_snapshot_message {
    IBX_SNAPSHOT_OPEN = 64, /* client: u32 magic, u16 version, u8 1: it wants manifest and map */
    IBX_SNAPSHOT_MANIFEST,  /* u32 length of all, u32 where this part begins, bytes */
    IBX_SNAPSHOT_MAP,       /* as MAP */
    IBX_SNAPSHOT_LIST,      /* id, u32 REGION messages that follow, u8 1: by ASK, without any */
    IBX_SNAPSHOT_ASK,       /* client: u32 number, u64 first byte, u32 length */
    IBX_SNAPSHOT_PAGES,     /* u32 number, u32 where this part begins, bytes */
    IBX_SNAPSHOT_INDEX,     /* u32 where this part begins, hashes of pieces with data */
    /* Of a connection on which nothing else is sent: */
    IBX_SNAPSHOT_JOIN,  /* client: as OPEN to its version, id */
    IBX_SNAPSHOT_GROUP, /* u8 4 or 16, so many bytes of address, u16 port, id, sealed key, rate */
    IBX_SNAPSHOT_NO_GROUP, /* u32 errno, why */
    IBX_SNAPSHOT_WANT,     /* client: u32 bytes of all, u32 where this part begins, bytes */
    IBX_SNAPSHOT_FED,      /* u64 datagrams */
    IBX_SNAPSHOT_HEARD,    /* client: u64 number behind the highest datagram, u64 that have come */
};
#define IBX_SNAPSHOT_MAGIC   0x73786269u /* "ibxs" */
#define IBX_SNAPSHOT_ASKS    32u         /* unanswered ASKs of a connection, at most */
#define IBX_SNAPSHOT_ASK_MAX (1u << 20)  /* bytes of an ASK, at most */

struct ibx_snapshot_any {
    enum ibx_snapshot_message type;
    bool whole;              /* OPEN */
    uint32_t length, offset; /* MANIFEST; ASK; PAGES, INDEX; WANT */
    struct ibx_bytes bytes;  /* MANIFEST, MAP, PAGES, INDEX, WANT, NO_GROUP: in the decoded data */
    uint8_t id[IBX_SNAPSHOT_ID];              /* LIST, JOIN */
    uint32_t regions;                         /* LIST */
    bool asked;                               /* LIST */
    uint32_t number;                          /* ASK, PAGES: of the ASK, by the client */
    uint64_t at;                              /* ASK */
    struct ibx_multicast_group group;         /* GROUP; without its key */
    uint8_t sealed[IBX_MULTICAST_SEALED_KEY]; /* GROUP */
    int code;                                 /* NO_GROUP */
    uint64_t packets;                         /* FED, HEARD */
    uint64_t through;                         /* HEARD */
};
#define IBX_SNAPSHOT_WANT_MAX ((uint32_t)(IBX_SNAPSHOT_BYTES_MAX >> 21) / 8)
#define IBX_SNAPSHOT_SECRET   "snapshot multicast" /* ibx_conn_secret() that seals the key */
int ibx_snapshot_decode(const void *data, size_t length, struct ibx_snapshot_any *message,
                        struct ibx_error *err);
/* The length, or -EMSGSIZE. */
ssize_t ibx_snapshot_encode(const struct ibx_snapshot_any *message, void *out, size_t size);
/* How much longer than timeout_ms a message of so many bytes may take over a slow link, of 64 KiB a
 * second. */
#define IBX_SNAPSHOT_SLOW_NS(bytes) ((uint64_t)(bytes) * (1000000000u >> 16))
/* Sends a message; waits for credit until the deadline. */
int ibx_snapshot_send(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                      uint64_t deadline_ns, struct ibx_error *err);
/* The same, but gives up with -ETIMEDOUT once `*ends` is true (`ends` may be NULL). Whoever sets it
 * has to call ibx_wake(). */
int ibx_snapshot_send_unless(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                             const _Atomic bool *ends, uint64_t deadline_ns, struct ibx_error *err);
int ibx_snapshot_send_bytes(struct ibx_conn *conn, void *bytes, size_t length,
                            const _Atomic bool *ends, uint64_t deadline_ns, struct ibx_error *err);

/* ------------------------------------------------------------ server.c */

/* Serves any number of readers from threads of its own. */
struct ibx_snapshot_server;

struct ibx_snapshot_server_config {
    const char *uri;
    const struct ibx_options *options;
    const struct ibx_snapshot_manifest *manifest; /* the first four have to last until close */
    const struct ibx_page_map *map;
    const struct ibx_snapshot_index *index; /* if it is hashed, and then of this map */
    void *const *memory;                    /* the mapping of each block */
    /* Pages are missing in `memory` and come when they are touched. Over a fabric that READs
     * without this processor, readers then have to ask for pages by messages. */
    bool touched;
    struct ibx_multicast_sender *multicast; /* NULL: none; it outlives the server */
    const char *interface;    /* for the group; NULL: the one that leads to a reader */
    bool read_only;           /* `memory` is mapped for reading only */
    unsigned connections_max; /* of all readers; 0: 1024 */
    bool share; /* for tests: share registrations, and use ASKs, where there is no need to, too */
};

struct ibx_snapshot_server_stats {
    unsigned connections; /* now */
    uint64_t served;      /* connections so far */
    uint64_t pinned;      /* regions that were registered, and not shared */
    uint64_t asks;        /* answered by messages */
};

int ibx_snapshot_server_open(const struct ibx_snapshot_server_config *config,
                             struct ibx_snapshot_server **server, struct ibx_error *err);
/* The URI at which it listens, with the real port. */
const char *ibx_snapshot_server_uri(const struct ibx_snapshot_server *server);
/* To be called when all pages are there: `touched` is false from now on. */
void ibx_snapshot_server_whole(struct ibx_snapshot_server *server);
void ibx_snapshot_server_stats(struct ibx_snapshot_server *server,
                               struct ibx_snapshot_server_stats *stats);
/* Ends all connections. Accepts NULL. */
void ibx_snapshot_server_close(struct ibx_snapshot_server *server);

/* ------------------------------------------------------------ multicast_server.c */

/* Fields that are NULL or 0 have their default. */
struct ibx_snapshot_multicast_options {
    bool on;
    const char *group;     /* as ibx_multicast_group_choose() */
    const char *interface; /* a name; else the one that leads to the other side */
    uint64_t rate;         /* bytes a second */
    unsigned hops;
};

/* What is sent: pages of guest RAM that hold data. */
struct ibx_snapshot_multicast {
    const struct ibx_snapshot_manifest *manifest;
    const struct ibx_page_map *map;
    void *const *memory;
    bool (*has)(void *context, uint64_t page); /* whether a page is there; NULL: all are */
    void *context;
    struct ibx_multicast_sender *sender;
};

/* Sets `sender`; the caller has set the other fields, which have to last as long as the sender.
 * `six`: a random group is one of IPv6. -EINVAL: the group is invalid, or the snapshot has no
 * hashes.
 */
int ibx_snapshot_multicast_open(struct ibx_snapshot_multicast *multicast,
                                const struct ibx_snapshot_multicast_options *options, bool six,
                                struct ibx_error *err);
/* Serves a reader's connection whose first message was `join`, until it ends. */
int ibx_snapshot_multicast_serve(const struct ibx_snapshot_server_config *config,
                                 struct ibx_conn *conn, const struct ibx_snapshot_any *join,
                                 unsigned timeout_ms, _Atomic bool *closing, struct ibx_error *err);

/* ------------------------------------------------------------ serve.c */

#define IBX_SERVE_CACHES_MAX 8u
#define IBX_SERVE_UNUSED_S   60u

/* What came by multicast. */
struct ibx_snapshot_fed {
    bool now; /* the cache is a member of a group, or is about to be */
    struct ibx_multicast_receiver_stats stats;
};

struct ibx_serve_status {
    const char *uri;    /* for readers; NULL: it does not listen */
    const char *source; /* a cache: the URI from which pages come at present; else NULL */
    bool whole;         /* all pages are here */
    struct ibx_snapshot_server_stats readers;
    unsigned children; /* on this host, those that may wait for pages */
    uint64_t children_so_far, child_faults, zero_faults;
    uint64_t pages, present, bytes; /* of guest RAM: all, there, fetched by this process */
    /* Pages that this process has fetched for a fault; around and ahead of faults; pages requested
     * twice; bytes of the table READ, counting those READ twice. */
    uint64_t faulted, ahead, twice, hash_bytes;
    unsigned reconnects;
    bool multicasts;                          /* it sends by multicast to readers that join */
    struct ibx_multicast_sender_stats sender; /* what it has sent */
    struct ibx_snapshot_fed fed;              /* a cache: what has come by multicast */
};

struct ibx_serve_options {
    const char *folder, *listen; /* `listen` may be NULL: for children on this host only */
    /* Where a cache is filled from, in order of preference; none: the folder is a snapshot. */
    const char *caches[IBX_SERVE_CACHES_MAX];
    unsigned cache_count, links;
    bool on_demand; /* only pages that somebody needs are fetched */
    /* Serving ends when all pages are there. It also ends, and removes the folder, when it has had
     * no child for IBX_SERVE_UNUSED_S. */
    bool until_unused;
    bool no_verify; /* serve a memory file at once, without hashes */
    uint64_t max_bandwidth;
    /* A cache joins its server's group, if there is one. If it listens, it sends to its own group.
     */
    struct ibx_snapshot_multicast_options multicast;
    struct ibx_options transport;
    /* Called once the snapshot can be read, when it becomes whole, and once a second. */
    void (*status)(void *context, const struct ibx_serve_status *status);
    void (*notify)(void *context, const char *line);
    void *context;
};

/* Serves the snapshot in a folder until SIGINT or SIGTERM. A cache that is not whole ends the
 * process (status 0) and does not return: its mapping must not outlive its fault engine. */
int ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err);

/* ------------------------------------------------------------ message_reader.c */

/* Fetches pages by messages, for reader.c. It takes over the connection. */
struct ibx_snapshot_asker;
#define SNAPSHOT_SILENT                                                                            \
    "it sends no pages; if it is a cache that has lost its own server, name that one or another"
struct ibx_snapshot_asker *ibx_snapshot_asker_create(struct ibx_conn *conn);
struct ibx_conn *ibx_snapshot_asker_conn(const struct ibx_snapshot_asker *asker);
const char *ibx_snapshot_asker_reason(const struct ibx_snapshot_asker *asker);
void ibx_snapshot_asker_serve(struct ibx_snapshot_asker *asker, struct ibx_fault_reader *as);
/* Fetches bytes of one block, IBX_SNAPSHOT_ASK_MAX at most. Only while no engine uses the asker.
 * After -ETIMEDOUT, or -EINTR (ends(), which may be NULL, said that the process has to end), the
 * asker is of no more use. */
int ibx_snapshot_asker_fetch(struct ibx_snapshot_asker *asker, uint64_t offset, void *to,
                             uint32_t length, uint64_t deadline_ns, bool (*ends)(void),
                             struct ibx_error *err);
/* Accepts NULL. */
void ibx_snapshot_asker_destroy(struct ibx_snapshot_asker *asker);

/* ------------------------------------------------------------ table_reader.c */

/*
 * A page reader on top of another one of the same connection. Together with requested pages it
 * requests the pieces of the table that they need and that the checker does not have, so that both
 * take one round trip, and passes the pages to the engine when their hashes are there. Pages of the
 * table that the checker has take no round trip.
 */
struct ibx_snapshot_table_reader;
/* Bytes that the registered buffer of `below` has beyond what the engine needs, for this reader; if
 * `below` has no buffer, this reader allocates them. */
#define IBX_SNAPSHOT_TABLE_BUFFER (16u * 8 * IBX_SNAPSHOT_PAGE)
/* `below` is copied; `buffer` has IBX_SNAPSHOT_TABLE_BUFFER bytes, or is NULL. NULL: no memory. */
struct ibx_snapshot_table_reader *
ibx_snapshot_table_reader_create(const struct ibx_fault_reader *below, uint8_t *buffer,
                                 struct ibx_snapshot_checker *checker, unsigned worker,
                                 const struct ibx_snapshot_manifest *manifest);
void ibx_snapshot_table_reader_serve(struct ibx_snapshot_table_reader *reader,
                                     struct ibx_fault_reader *as);
/* Accepts NULL. */
void ibx_snapshot_table_reader_destroy(struct ibx_snapshot_table_reader *reader);

/* ------------------------------------------------------------ host_cache.c */

struct ibx_host_cache {
    char top[64];          /* the folder of this user's caches: /dev/shm/ibx-snapshots-UID */
    char folder[PATH_MAX]; /* the snapshot's folder in it, named by its id */
};

/* Provides a folder on this host from which children can be made, of the snapshot that is served at
 * one of options->caches: an existing one, whole or being filled, or a new one, which a new process
 * fills that outlives this one (`until_unused`, with the other options). The calling process must
 * have one thread and no connections but to QEMU. */
int ibx_snapshot_host_cache(const struct ibx_serve_options *options, struct ibx_host_cache *cache,
                            struct ibx_error *err);

/* ------------------------------------------------------------ reader.c */

/*
 * Connections to a server, by which pages are READ:
 *
 *     ibx_snapshot_reader_open(uri, ...)           manifest, map and index are there
 *     ibx_snapshot_reader_fetch(...)               any bytes, one after the other: the device state
 *     ibx_snapshot_reader_serve(..., as)           page readers for a fault engine, one a link
 *
 * In the engine's ranges, first_page is ibx_snapshot_reader_map(reader)->blocks[i].first, and
 * reader_offset is that times IBX_SNAPSHOT_PAGE. Pages that the map does not have are zero and must
 * not be requested. Map and index have been checked against the manifest. The caller has to check
 * what is READ; with a checker, the hashes are fetched, too. For one thread, except for what the
 * engine's workers do.
 */
struct ibx_snapshot_reader;

/* Connects, and waits for manifest, map and index. -EINTR, here and in later fetches:
 * options->ends(), which is called at least ten times a second, says that this process has to end.
 */
int ibx_snapshot_reader_open(const char *uri, const struct ibx_options *options, unsigned links,
                             struct ibx_snapshot_reader **reader, struct ibx_error *err);
const struct ibx_snapshot_manifest *
ibx_snapshot_reader_manifest(const struct ibx_snapshot_reader *reader);
const struct ibx_page_map *ibx_snapshot_reader_map(const struct ibx_snapshot_reader *reader);
/* Passes the index to the caller. hashes NULL: the snapshot has none, or the index was taken
 * before. */
struct ibx_snapshot_index ibx_snapshot_reader_take_index(struct ibx_snapshot_reader *reader);
/* READs bytes of one block; those of pages without data are zeros. Only while no engine uses the
 * reader. */
int ibx_snapshot_reader_fetch(struct ibx_snapshot_reader *reader, unsigned block, uint64_t offset,
                              void *to, size_t length, struct ibx_error *err);
/* Fetches the hashes of `pages` pages from `page` on, and passes them to the checker. */
int ibx_snapshot_reader_fetch_hashes(struct ibx_snapshot_reader *reader,
                                     struct ibx_snapshot_checker *checker, uint64_t page,
                                     uint64_t pages, struct ibx_error *err);
/* Fills in `as`, one for each link; `buffer_bytes` is that of ibx_fault_buffer_bytes(). The
 * checker, which may be NULL, must have at least as many workers as there are links, and outlive
 * the reader.
 */
int ibx_snapshot_reader_serve(struct ibx_snapshot_reader *reader,
                              struct ibx_snapshot_checker *checker, size_t buffer_bytes,
                              struct ibx_fault_reader *as, struct ibx_error *err);
/* Why the first of its connections ended; "": none has. To be called after the engine has stopped.
 */
const char *ibx_snapshot_reader_reason(const struct ibx_snapshot_reader *reader);
/* The engine must have ended. Accepts NULL. */
void ibx_snapshot_reader_close(struct ibx_snapshot_reader *reader);

#endif
