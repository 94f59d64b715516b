/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Snapshots: the frozen memory and device state of a VM in a folder, which others READ over
 * connections of their own.
 *
 *   manifest.c  what a snapshot is: its blocks, its VM; JSON in the folder and on the wire
 *   folder.c    the folder: which pages hold data, its digest
 *   memory_file.c  a memory file alone, of a Firecracker snapshot
 *   freeze.c    makes one of a VM
 *   wire.c      the messages of a snapshot's connections
 *   clone.c     makes a QEMU that waits for a VM a child of one
 *   cache.h     a host's cache of one that is served elsewhere: cache.c, children.c
 *   serve.c     ib-migrate serve: a folder, a server, until it is told to end
 *   server.c    offers one to any number of readers
 *   reader.c    connections to a server; page readers for the fault engine (userfaultfd/)
 *
 * A snapshot has numbered blocks: those of guest RAM, in the order of their ids, and as the last
 * one the device state, filled up with zeros to whole pages. Pages are numbered through all of
 * them, as are bytes. All pages have IBX_SNAPSHOT_PAGE bytes, whatever the VM's had.
 *
 * Calls return 0 or a negative errno with a sentence in `err`.
 */
#ifndef IBX_MIGRATE_SNAPSHOT_SNAPSHOT_H
#define IBX_MIGRATE_SNAPSHOT_SNAPSHOT_H

#include "migrate/pages/pages.h"

#include <jansson.h>

#define IBX_SNAPSHOT_VERSION   1u
#define IBX_SNAPSHOT_PAGE      4096u
#define IBX_SNAPSHOT_RAM_MAX   (IBX_GUEST_BLOCKS_MAX - 1) /* blocks of guest RAM */
#define IBX_SNAPSHOT_BYTES_MAX (1ull << 44)               /* of all blocks */
#define IBX_SNAPSHOT_STATE_MAX (1ull << 30)               /* of device state */
#define IBX_SNAPSHOT_TEXT_MAX  (2u << 20)                 /* of a manifest */
#define IBX_SNAPSHOT_ID        16u
#define IBX_SNAPSHOT_DIGEST    32u
#define IBX_SNAPSHOT_PURPOSE   "ib-migrate snapshot" /* struct ibx_options */

/* ------------------------------------------------------------ manifest.c */

struct ibx_snapshot_manifest {
    uint8_t id[IBX_SNAPSHOT_ID];    /* random */
    bool complete;                  /* all pages are in this folder */
    bool ran;                       /* the VM ran when it was frozen: children run */
    struct ibx_qmp_version version; /* of its QEMU */
    char machine[64], uuid[40], name[128];
    unsigned ram_count;
    struct {
        char id[IBX_GUEST_ID_MAX]; /* of the memory backend */
        uint64_t size;             /* bytes, whole pages */
    } ram[IBX_SNAPSHOT_RAM_MAX];
    uint64_t state_bytes;                /* of device state, not filled up */
    uint8_t digest[IBX_SNAPSHOT_DIGEST]; /* ibx_snapshot_digest(); zeros: there is none */
    json_t *description;                 /* ibx_describe() of the VM; owned */
};

/* The text is for free(). -ENOMEM. */
int ibx_snapshot_manifest_write(const struct ibx_snapshot_manifest *manifest, char **text,
                                size_t *length, struct ibx_error *err);
/* The reverse; the text may come from anybody. -EPROTO names what is wrong. */
int ibx_snapshot_manifest_read(const char *text, size_t length,
                               struct ibx_snapshot_manifest *manifest, struct ibx_error *err);
/* By their ids; who uses an id twice, for other memory, is found. */
bool ibx_snapshot_same(const struct ibx_snapshot_manifest *a,
                       const struct ibx_snapshot_manifest *b);
void ibx_snapshot_manifest_fini(struct ibx_snapshot_manifest *manifest);
/* All blocks, with the device state as the last one: their number. `blocks` has room for
 * IBX_GUEST_BLOCKS_MAX. */
unsigned ibx_snapshot_blocks(const struct ibx_snapshot_manifest *manifest,
                             struct ibx_migrate_block *blocks);
/* An empty page map of all blocks. */
int ibx_snapshot_map_init(const struct ibx_snapshot_manifest *manifest, struct ibx_page_map *map,
                          struct ibx_error *err);

/* ------------------------------------------------------------ folder.c */

/* FOLDER (mode 0700) has manifest.json and a sparse file of each block: ram.0, ram.1, ..., and
 * state. No name in it comes from a manifest. */
struct ibx_snapshot_folder {
    char path[PATH_MAX];
    int at; /* the folder itself, once `opened` */
    bool opened;
    struct ibx_snapshot_manifest manifest;
    unsigned count; /* blocks */
    bool read_only; /* a memory file, which may be others' */
    int fds[IBX_GUEST_BLOCKS_MAX];
    uint64_t sizes[IBX_GUEST_BLOCKS_MAX];
};

/* Makes the folder, or takes an empty one, and locks it: `path`, `at` and `opened` are set.
 * -EEXIST: it has a snapshot; -EPERM: others can enter it; -EBUSY: another process fills it;
 * -ENOTDIR. */
int ibx_snapshot_folder_make(const char *path, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* Until it is closed no other process gets this lock. -EBUSY. */
int ibx_snapshot_folder_lock(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Opens the files of its blocks, made new and empty with `create`. */
int ibx_snapshot_folder_files(struct ibx_snapshot_folder *folder, bool create, bool writable,
                              struct ibx_error *err);
/* Opens a folder that has a manifest. `folder` is set on success only. */
int ibx_snapshot_folder_open(const char *path, bool writable, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* The same of a memory file alone: one block and no device state. Only to be served. */
int ibx_snapshot_memory_file(const char *path, struct ibx_snapshot_folder *folder,
                             struct ibx_error *err);
/* Waits until the disk has all blocks. */
int ibx_snapshot_folder_sync(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Writes manifest.json as a whole: from then on the folder is a snapshot. */
int ibx_snapshot_folder_seal(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Pages that the files have; `map` is ended by ibx_page_map_fini(). */
int ibx_snapshot_folder_map(const struct ibx_snapshot_folder *folder, struct ibx_page_map *map,
                            struct ibx_error *err);
/* SHA-256 over the blocks' sizes and, for each page of `map` that is not zero, its number and its
 * bytes. Zero pages are in the files, or not: who looks at one on tmpfs puts it there. */
int ibx_snapshot_digest(const struct ibx_snapshot_folder *folder, const struct ibx_page_map *map,
                        uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
/* Removes the files that freeze made, after a failure. */
void ibx_snapshot_folder_remove(const struct ibx_snapshot_folder *folder);
void ibx_snapshot_folder_close(struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ freeze.c */

enum ibx_freeze_after {
    IBX_FREEZE_STOPPED, /* the VM stays as it was frozen */
    IBX_FREEZE_RESUME,  /* it runs on, if it ran */
    IBX_FREEZE_QUIT,    /* its QEMU ends */
};

struct ibx_freeze_result {
    uint64_t ram_bytes, data_bytes, state_bytes;
    uint64_t stopped_ns; /* from its STOP until the snapshot had all of it, and with RESUME ran */
    bool runs;           /* the VM does now */
};

/* Freezes the VM at this monitor into a folder. Before the snapshot is whole any failure leaves the
 * VM as it was. -EPERM with all reasons: it cannot be frozen; nothing was touched. */
int ibx_snapshot_freeze(const char *qmp, const char *path, enum ibx_freeze_after after,
                        struct ibx_freeze_result *result, struct ibx_error *err);

/* ------------------------------------------------------------ clone.c */

struct ibx_clone_result {
    pid_t pid;       /* of QEMU */
    char status[32]; /* of the VM, as QEMU calls it */
    bool whole;      /* all pages were there */
    uint64_t check_ns, memory_ns, load_ns;
};

/* Makes the QEMU at this monitor, which waits for a VM, a child of the snapshot, or of the cache
 * that an ib-migrate serve fills, in this folder. `started`: the caller's child that is this QEMU,
 * or has started it; 0: any. -EPERM with all reasons: it cannot be one; -EBUSY: it is another QEMU;
 * nothing was touched. */
int ibx_snapshot_clone(const char *path, const char *qmp, pid_t started,
                       struct ibx_clone_result *result, struct ibx_error *err);

/* ------------------------------------------------------------ wire.c */

/* docs/protocol.md, "Snapshots". After these a server sends REGION messages (channel/protocol.h).
 */
enum ibx_snapshot_message {
    IBX_SNAPSHOT_OPEN = 64, /* client: u32 magic, u16 version, u8 1: it wants manifest and map */
    IBX_SNAPSHOT_MANIFEST,  /* u32 length of all, u32 where this part begins, bytes */
    IBX_SNAPSHOT_MAP,       /* as MAP */
    IBX_SNAPSHOT_LIST,      /* id, u32 REGION messages that follow */
    IBX_SNAPSHOT_REFUSED,   /* a sentence: why there is nothing to READ */
};
#define IBX_SNAPSHOT_MAGIC 0x73786269u /* "ibxs" */

struct ibx_snapshot_any {
    enum ibx_snapshot_message type;
    bool whole;                  /* OPEN */
    uint32_t length, offset;     /* MANIFEST */
    struct ibx_bytes bytes;      /* MANIFEST, MAP: they point into what was decoded */
    uint8_t id[IBX_SNAPSHOT_ID]; /* LIST */
    uint32_t regions;            /* LIST */
    char reason[IBX_ERROR_MAX];  /* REFUSED */
};
int ibx_snapshot_decode(const void *data, size_t length, struct ibx_snapshot_any *message,
                        struct ibx_error *err);
/* The length, or -EMSGSIZE. */
ssize_t ibx_snapshot_encode(const struct ibx_snapshot_any *message, void *out, size_t size);
/* Waits for credit until the deadline. */
int ibx_snapshot_send(struct ibx_conn *conn, const struct ibx_snapshot_any *message,
                      uint64_t deadline_ns, struct ibx_error *err);

int ibx_snapshot_send_bytes(struct ibx_conn *conn, void *bytes, size_t length, uint64_t deadline_ns,
                            struct ibx_error *err);

/* ------------------------------------------------------------ server.c */

/* Serves any number of readers from threads of its own. */
struct ibx_snapshot_server;

struct ibx_snapshot_server_config {
    const char *uri;
    const struct ibx_options *options;
    const struct ibx_snapshot_manifest *manifest; /* these three are the caller's until close */
    const struct ibx_page_map *map;
    void *const *memory; /* of each block, mapped */
    /* Pages are missing in `memory` and come when they are touched: only over fabrics on which the
     * peer's processor moves them. */
    bool touched;
    unsigned connections_max; /* of all readers; 0: 1024 */
    bool share;               /* registrations, also where they cost nothing: for tests */
};

struct ibx_snapshot_server_stats {
    unsigned connections; /* now */
    uint64_t served;      /* connections so far */
    uint64_t turned_away;
    uint64_t pinned; /* regions that were registered, and not shared */
};

int ibx_snapshot_server_open(const struct ibx_snapshot_server_config *config,
                             struct ibx_snapshot_server **server, struct ibx_error *err);
/* With the real port. */
const char *ibx_snapshot_server_uri(const struct ibx_snapshot_server *server);
/* `touched` from now on: false when all pages are there. */
void ibx_snapshot_server_whole(struct ibx_snapshot_server *server);
void ibx_snapshot_server_stats(struct ibx_snapshot_server *server,
                               struct ibx_snapshot_server_stats *stats);
/* Ends all connections. Accepts NULL. */
void ibx_snapshot_server_close(struct ibx_snapshot_server *server);

/* ------------------------------------------------------------ serve.c */

#define IBX_SERVE_CACHES_MAX 8u

struct ibx_serve_status {
    const char *uri;    /* for readers; NULL: it does not listen */
    const char *source; /* a cache: where its pages come from at present; else NULL */
    bool whole;         /* all pages are here */
    struct ibx_snapshot_server_stats readers;
    unsigned children; /* of this host, that may wait for pages */
    uint64_t children_so_far, child_faults, zero_faults;
    uint64_t pages, present, bytes; /* of guest RAM: all, there, fetched by this process */
    unsigned reconnects;
};

struct ibx_serve_options {
    const char *folder, *listen; /* `listen` may be NULL: for children on this host only */
    /* Where a cache is filled from, in order of preference; none: the folder is a snapshot. */
    const char *caches[IBX_SERVE_CACHES_MAX];
    unsigned cache_count, links;
    bool on_demand; /* only pages that somebody needs are fetched */
    uint64_t max_bandwidth;
    struct ibx_options transport;
    /* Once it can be read; at once when it is whole; once a second from then on. */
    void (*status)(void *context, const struct ibx_serve_status *status);
    void (*notify)(void *context, const char *line);
    void *context;
};

/* Serves the snapshot in a folder until SIGINT or SIGTERM. A cache that is not whole ends the
 * process (status 0) and does not return: its mapping must not outlive its fault engine. */
int ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err);

/* ------------------------------------------------------------ reader.c */

/*
 * Connections to a server, by which pages are READ:
 *
 *     ibx_snapshot_reader_open(uri, ...)           the manifest and the map are there
 *     ibx_snapshot_reader_fetch(...)               any bytes, one after the other: the device state
 *     ibx_snapshot_reader_serve(..., as)           page readers for a fault engine, one a link
 *
 * The engine's ranges have first_page and reader_offset as the blocks are numbered here:
 * ibx_snapshot_reader_map(reader)->blocks[i].first, and that times IBX_SNAPSHOT_PAGE. Pages that
 * the map does not have are zero and must not be requested. One thread, but for what the engine's
 * workers do.
 */
struct ibx_snapshot_reader;

int ibx_snapshot_reader_open(const char *uri, const struct ibx_options *options, unsigned links,
                             struct ibx_snapshot_reader **reader, struct ibx_error *err);
const struct ibx_snapshot_manifest *
ibx_snapshot_reader_manifest(const struct ibx_snapshot_reader *reader);
const struct ibx_page_map *ibx_snapshot_reader_map(const struct ibx_snapshot_reader *reader);
unsigned ibx_snapshot_reader_links(const struct ibx_snapshot_reader *reader);
/* Of the first connection, until close. */
const struct ibx_path *ibx_snapshot_reader_path(const struct ibx_snapshot_reader *reader);
/* READs bytes of one block, all of them of pages with data or not: others are zeros. Only while no
 * engine has the reader. */
int ibx_snapshot_reader_fetch(struct ibx_snapshot_reader *reader, unsigned block, uint64_t offset,
                              void *to, size_t length, struct ibx_error *err);
/* Fills in `as`, one a link; `buffer_bytes` of ibx_fault_buffer_bytes(), 0 in minor mode. */
int ibx_snapshot_reader_serve(struct ibx_snapshot_reader *reader, size_t buffer_bytes,
                              struct ibx_fault_reader *as, struct ibx_error *err);
/* Why the first of its connections ended; "": none has. After the engine has stopped. */
const char *ibx_snapshot_reader_reason(const struct ibx_snapshot_reader *reader);
/* The engine must have ended. Accepts NULL. */
void ibx_snapshot_reader_close(struct ibx_snapshot_reader *reader);

#endif
