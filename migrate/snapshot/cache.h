/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A host's cache of a snapshot that is served elsewhere. Its files of guest RAM, and of the table
 * of hashes (tmpfs), are filled by a fault engine on this process's own shared mapping of them, for
 * whoever touches a page of it: threads that serve readers, and those that answer the faults of
 * this host's children. So a page crosses to the host once.
 *
 *   intact.c    files that somebody changes while they are mapped
 *   cache.c     the mapping, its engine, the connections to where the pages come from
 *   children.c  the faults of QEMUs on this host that have the files mapped privately
 *   child.c     how such a QEMU is handed over to that
 *   child_record.c  what is known of it, for the next process
 *   orphaned_children.c   children of a process that was killed when the folder had all pages
 *   holes.c     the parts of its memory that are zero in a whole snapshot
 *   network.c   its network cards, whose MACs are not the parent's
 *   multicast_cache.c  pages that come by multicast
 *
 * A page is compared with its hash before it is placed: one that was changed on its way is never
 * seen, and is fetched again, from another server if there is one.
 *
 * Nothing may touch a missing page without a userfaultfd on the mapping: that would put a zero page
 * into the file, for all children.
 */
#ifndef IBX_MIGRATE_SNAPSHOT_CACHE_H
#define IBX_MIGRATE_SNAPSHOT_CACHE_H

#include "common/state_machine.h"
#include "migrate/snapshot/snapshot.h"

#include <pthread.h>
#include <signal.h>
#include <sys/un.h>

/* ------------------------------------------------------------ cache.c */

/*
 * state machine: snapshot cache
 *   [*] -> EMPTY -> FILLING -> CHECKING -> WHOLE -> [*]
 *   FILLING -> LOST -> FILLING        no server answers; then one does
 *   EMPTY -> [*]
 *   FILLING | LOST | CHECKING -> [*]     the process has to end: missing pages must not be touched
 *
 * In CHECKING all pages are there, and a thread computes their digest; or the folder has no room
 * yet for the manifest that says so.
 */
enum cache_state { CACHE_EMPTY, CACHE_FILLING, CACHE_LOST, CACHE_CHECKING, CACHE_WHOLE };

struct snapshot_cache {
    struct ibx_state_machine state;
    struct ibx_snapshot_folder *folder;
    const struct ibx_options *options;
    const char *const *uris; /* in order of preference */
    unsigned uri_count, links;
    unsigned first;                     /* the URI that is tried first */
    unsigned tried;                     /* ... and how many have been tried since */
    struct ibx_snapshot_reader *reader; /* NULL in LOST and WHOLE */
    struct ibx_page_map map;
    struct ibx_snapshot_checker *hashes; /* NULL: the snapshot is not hashed */
    unsigned wrong;                      /* servers in a row from which a wrong page came */
    void *memory[IBX_GUEST_BLOCKS_MAX];
    int uffd;
    struct ibx_fault *engine;
    struct ibx_fault_range ranges[IBX_SNAPSHOT_RAM_MAX + 1]; /* guest RAM, and the table */
    size_t buffer_bytes;
    uint64_t again_ns;   /* LOST: when the next try is due */
    uint64_t filling_ns; /* when a server was last found again; 0: still the first */
    unsigned pause_ms, reconnects;
    uint64_t max_bandwidth;        /* of background pages, bytes per second; 0: no limit */
    uint64_t present, progress_ns; /* to see progress: pages present, and since when so many */
    bool told_other;               /* LOST: has reported that a server has another snapshot now */
    bool right;                    /* CHECKING: all pages are those that were frozen */
    bool told_room;                /* CHECKING: ... that there is no room for the manifest */
    char source[300];              /* the URI that is read */
    const struct ibx_snapshot_multicast_options *multicast; /* whether to join the server's group */
    struct snapshot_feed *feed;                             /* the membership; NULL: none */
    bool feeds;                                             /* the background waits for the group */
    struct ibx_multicast_receiver_stats fed;                /* the sum of earlier feeds */
    bool background;                                        /* all pages are wanted */
    pthread_mutex_t engine_lock; /* held to use the engine in other threads */
    pthread_t checker;
    int checked_fd; /* an eventfd: the checker is done */
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    struct ibx_error check_error;
};

void ibx_snapshot_cache_init(struct snapshot_cache *cache);
/* Connects, makes or checks the folder, and fetches the device state. */
int ibx_snapshot_cache_begin(struct snapshot_cache *cache, const char *path, struct ibx_error *err);
/* Maps the files and starts to fill them; with `background` all of them. */
int ibx_snapshot_cache_fill(struct snapshot_cache *cache, bool background, uint64_t max_bandwidth,
                            struct ibx_error *err);
/* For poll(2); the second one is -1 if there is no feed. */
int ibx_snapshot_cache_fd(const struct snapshot_cache *cache);
int ibx_snapshot_cache_feed_fd(const struct snapshot_cache *cache);
/* Whether a page of guest RAM is there. `cache` is a struct snapshot_cache; from any thread. */
bool ibx_snapshot_cache_has(void *cache, uint64_t page);
void ibx_snapshot_cache_fed(const struct snapshot_cache *cache, struct ibx_snapshot_fed *fed);
/* Makes the cache's next steps: notices that all pages are there or that the server is lost, and
 * looks for one that answers. -EBADMSG: what all servers send is not what was frozen. */
int ibx_snapshot_cache_step(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context,
                            struct ibx_error *err);
/* Pages of guest RAM that are there, while it has an engine. */
uint64_t ibx_snapshot_cache_present(const struct snapshot_cache *cache,
                                    const struct ibx_fault_stats *engine);
/* Ends the engine and unmaps the files. Only if nobody touches the mapping any more and the files
 * are not used again: a thread that waits for a page would see zeros. In CHECKING it waits for the
 * digest; a process that has to end at once must not call it. */
void ibx_snapshot_cache_end(struct snapshot_cache *cache);

/* ------------------------------------------------------------ multicast_cache.c */

/*
 * Membership in the multicast group of a cache's server. A thread of its own asks the server for
 * the group, joins it, and gives the pages that come to the fault engine, each compared with its
 * hash.
 *
 * state machine: snapshot feed
 *   [*] -> WAITING -> CONNECTING -> JOINING -> MEMBER -> DRAINING -> OVER -> [*]
 *   WAITING | JOINING | MEMBER -> OVER     there is no group, or it is lost
 *   CONNECTING -> LEFT -> [*]              the feed was closed meanwhile
 *   WAITING | JOINING | MEMBER | DRAINING -> [*]
 *
 * In WAITING the hashes are fetched, in MEMBER datagrams come. In DRAINING all have been sent, and
 * some may still be on their way. A server may take seconds to accept the connection; so that the
 * cache need not wait for that, the thread uses nothing of the cache in CONNECTING, and in LEFT it
 * frees the feed and ends by itself. exit(3) tells it to end, and waits for it.
 */
enum feed_state {
    FEED_WAITING,
    FEED_CONNECTING,
    FEED_JOINING,
    FEED_MEMBER,
    FEED_DRAINING,
    FEED_OVER,
    FEED_LEFT
};

struct snapshot_feed;

struct snapshot_feed_config {
    const char *uri;                   /* of the server; copied */
    const char *interface;             /* NULL: the one that leads there */
    const struct ibx_options *options; /* copied */
    const struct ibx_snapshot_manifest *manifest;
    const struct ibx_page_map *map;
    struct ibx_fault *engine; /* has to live until close */
    /* The engine's checker. It needs the whole table, since any page may come. */
    struct ibx_snapshot_checker *checker;
    unsigned worker; /* the thread's number as a worker of the checker */
};

int ibx_snapshot_feed_open(const struct snapshot_feed_config *config, struct snapshot_feed **feed,
                           struct ibx_error *err);
/* For poll(2): readable when there is a line to report, or the feed is over. */
int ibx_snapshot_feed_fd(const struct snapshot_feed *feed);
/* Takes the next line to report; false: there is none. */
bool ibx_snapshot_feed_says(struct snapshot_feed *feed, char line[IBX_ERROR_MAX]);
bool ibx_snapshot_feed_over(struct snapshot_feed *feed);
/* Adds to *sum what has come so far. */
void ibx_snapshot_feed_stats(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum);
/* Leaves the group, and adds to *sum what has come. Waits for no server. */
void ibx_snapshot_feed_close(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum);

/* ------------------------------------------------------------ intact.c */

/* Watches that the served files, which are mapped, do not change: if they do, nothing more is
 * served. At most one in a process, because it handles SIGBUS, which comes when somebody truncates
 * a mapped file. */
struct snapshot_intact {
    const struct ibx_snapshot_folder *folder;
    void *const *memory;
    int fd; /* for poll(2): there is something to check */
    struct sigaction before;
};

int ibx_snapshot_intact_begin(struct snapshot_intact *intact,
                              const struct ibx_snapshot_folder *folder, void *const *memory,
                              struct ibx_error *err);
/* -ESTALE: the files have changed. Then threads may be blocked for ever in their mapping, so the
 * process has to end. */
int ibx_snapshot_intact_check(struct snapshot_intact *intact, struct ibx_snapshot_folder *folder,
                              struct ibx_error *err);
void ibx_snapshot_intact_end(struct snapshot_intact *intact);

/* ------------------------------------------------------------ children.c */

#define SNAPSHOT_SOCKET "children" /* in the folder: SEQPACKET, one JSON object each way */

/* A child, as the tool that makes it describes it. */
struct snapshot_child {
    pid_t pid;
    uint64_t started;                         /* ibx_process_started() */
    int remote;                               /* the number of its userfaultfd in QEMU */
    unsigned count;                           /* blocks */
    uint64_t addresses[IBX_SNAPSHOT_RAM_MAX]; /* in QEMU's address space */
};

struct snapshot_children;

struct snapshot_children_config {
    const struct ibx_snapshot_folder *folder;
    const struct ibx_page_map *map;
    void *const *memory;
};

struct snapshot_children_stats {
    unsigned children; /* those that may still wait for pages */
    uint64_t so_far;   /* all children so far */
    uint64_t asked;    /* connections to the socket so far */
    uint64_t faults, zero_faults;
};

/* Listens for children, and takes over those of an earlier process that has ended. */
int ibx_snapshot_children_open(const struct snapshot_children_config *config,
                               struct snapshot_children **children, struct ibx_error *err);
/* For a folder that is whole: releases children of an earlier process that was killed just when the
 * folder became whole. They need no server any more. */
int ibx_snapshot_children_release(const struct snapshot_children_config *config,
                                  struct ibx_error *err);
/* For poll(2). */
int ibx_snapshot_children_fd(const struct snapshot_children *children);
/* Accepts a child that has come. */
void ibx_snapshot_children_step(struct snapshot_children *children);
/* To be called when all pages are there: releases all children; later ones need no server. */
void ibx_snapshot_children_whole(struct snapshot_children *children);
void ibx_snapshot_children_stats(struct snapshot_children *children,
                                 struct snapshot_children_stats *stats);
/* After _whole(), or before the first child. Accepts NULL. */
void ibx_snapshot_children_close(struct snapshot_children *children);

/* ------------------------------------------------------------ holes.c */

#define SNAPSHOT_HOLES 8u /* each costs an injected call */

struct ibx_blockers;
struct snapshot_holes {
    unsigned count;
    struct snapshot_hole {
        unsigned block;
        uint64_t offset, length; /* bytes in the block, whole pages */
    } at[SNAPSHOT_HOLES];
};

/* Finds the longest parts of guest RAM, of a MiB or more, that are zero, in a whole folder. */
void ibx_snapshot_holes_find(const struct ibx_snapshot_folder *folder,
                             struct snapshot_holes *holes);
/* Adds a blocker unless the folder's tmpfs has room for all other zero pages. */
void ibx_snapshot_holes_room(const struct ibx_snapshot_folder *folder,
                             const struct snapshot_holes *holes, struct ibx_blockers *blockers);
/* Warns if this memory backend has a NUMA policy, since a child's memory does not have it. */
void ibx_snapshot_say_policy(struct ibx_qmp *qmp, const char *id, uint64_t deadline_ns);
/* Such parts by a page map, as JSON, for a child of a cache that is not whole; NULL: no memory. And
 * the reverse, which finds no parts if they do not fit this folder. */
json_t *ibx_snapshot_holes_json(const struct ibx_page_map *map, unsigned blocks);
void ibx_snapshot_holes_read(const json_t *json, const struct ibx_snapshot_folder *folder,
                             struct snapshot_holes *holes);

/* ------------------------------------------------------------ child.c */

/* To be called before QEMU is changed: checks that a process serves this folder. -ECONNREFUSED,
 * -ENOENT: none does. */
int ibx_snapshot_child_expected(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* Hands a child over to that process. Sets `*whole` if the child needs no server, because all pages
 * are there, and `*holes` to the parts that are zero in the snapshot. */
int ibx_snapshot_child_hand_over(const struct ibx_snapshot_folder *folder,
                                 const struct snapshot_child *child, bool *whole,
                                 struct snapshot_holes *holes, struct ibx_error *err);

/* Used by both ends of the socket. */
#define SNAPSHOT_CHILD_TEXT 8192 /* bytes of a message, at most */
json_t *ibx_snapshot_child_json(const struct snapshot_child *child);
/* Decodes it, for a child that must have `count` blocks. -EPROTO. */
int ibx_snapshot_child_read(const char *text, size_t length, unsigned count,
                            struct snapshot_child *child, struct ibx_error *err);
/* The socket's address through the descriptor of its folder, so that the path may have any length.
 */
struct sockaddr_un ibx_snapshot_child_address(int folder);
/* Limits each send and receive to ten seconds. */
void ibx_snapshot_child_limit(int fd);

/* ------------------------------------------------------------ child_record.c */

/* -ENOSPC and others: an earlier record of the same process stays as it is. */
int ibx_snapshot_child_record_write(const struct ibx_snapshot_folder *folder,
                                    const struct snapshot_child *child, struct ibx_error *err);
void ibx_snapshot_child_record_remove(const struct ibx_snapshot_folder *folder, pid_t pid);
/* Calls `each` for every child that has a record, and not ended, until it returns true, which is
 * returned. Records of those that have ended are removed. */
bool ibx_snapshot_child_records(const struct ibx_snapshot_folder *folder,
                                bool (*each)(void *context, const struct snapshot_child *child),
                                void *context);
/* Whether there is one, for which nobody may answer. */
bool ibx_snapshot_children_left(const struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ orphaned_children.c */

/* Of a whole folder: if nobody serves its children, and some are left, they are let go. What fails
 * is logged: each of them waits on. */
void ibx_snapshot_let_left_go(const struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ network.c */

#define SNAPSHOT_CARDS     16u
#define SNAPSHOT_CARD_NAME 64u
#define SNAPSHOT_CARD_MAC  24u

/* The network cards of a child whose MAC differs from that of the same card of its parent. */
struct snapshot_network {
    unsigned count;
    struct snapshot_card {
        char name[SNAPSHOT_CARD_NAME], back_end[SNAPSHOT_CARD_NAME]; /* of -device and -netdev */
        char mac[SNAPSHOT_CARD_MAC];                                 /* of -device */
        bool up;
    } cards[SNAPSHOT_CARDS];
};

/* To be called before the state is loaded: finds such cards. `parent` and `child` are descriptions
 * (ibx_describe()). Cards of which QEMU cannot report the MAC become blockers. */
int ibx_snapshot_network_find(struct ibx_qmp *qmp, const json_t *parent, const json_t *child,
                              struct snapshot_network *network, struct ibx_blockers *blockers,
                              struct ibx_error *err);
/* Takes the links of all of them down: once before the state is loaded, and once after. */
int ibx_snapshot_network_down(struct ibx_qmp *qmp, const struct snapshot_network *network,
                              struct ibx_error *err);
/* Brings each link up once the guest has set the child's MAC. -ETIMEDOUT: some stay down. */
int ibx_snapshot_network_up(struct ibx_qmp *qmp, struct snapshot_network *network,
                            uint64_t deadline_ns, struct ibx_error *err);

#endif
