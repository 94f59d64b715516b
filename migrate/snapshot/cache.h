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
 *   left_behind.c   children of a process that was killed when the folder had all pages
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
 *   FILLING | LOST | CHECKING -> [*]     the process has to end, see above
 *
 * In CHECKING all pages are there, and a thread computes their digest.
 */
enum cache_state { CACHE_EMPTY, CACHE_FILLING, CACHE_LOST, CACHE_CHECKING, CACHE_WHOLE };

struct snapshot_cache {
    struct ibx_state_machine state;
    struct ibx_snapshot_folder *folder;
    const struct ibx_options *options;
    const char *const *uris; /* in order of preference */
    unsigned uri_count, links;
    unsigned first;                     /* the URI that is tried first */
    struct ibx_snapshot_reader *reader; /* NULL in LOST and WHOLE */
    struct ibx_page_map map;
    struct ibx_snapshot_checker *hashes; /* NULL: the snapshot is not hashed */
    unsigned wrong;                      /* servers in a row from which a wrong page came */
    void *memory[IBX_GUEST_BLOCKS_MAX];
    int uffd;
    struct ibx_fault *engine;
    struct ibx_fault_range ranges[IBX_SNAPSHOT_RAM_MAX + 1]; /* guest RAM, and the table */
    size_t buffer_bytes;
    uint64_t again_ns;   /* LOST: the next try */
    uint64_t filling_ns; /* the last one that brought a server; 0: it was the first */
    unsigned pause_ms, reconnects;
    uint64_t max_bandwidth;        /* of what comes ahead; 0: no limit */
    uint64_t present, progress_ns; /* pages when some were to come last, and since when */
    bool told_other;               /* LOST: that another snapshot is served where this one was */
    char source[300];              /* the URI that is read */
    const struct ibx_snapshot_multicast_options
        *multicast;                          /* whether it joins its server's group */
    struct snapshot_feed *feed;              /* while it does */
    bool feeds;                              /* and the background holds back for it */
    struct ibx_multicast_receiver_stats fed; /* of those before */
    bool background;                         /* all pages are wanted */
    pthread_mutex_t engine_lock;             /* others than the owner look at the engine */
    pthread_t checker;
    int checked_fd; /* an eventfd: it is done */
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    struct ibx_error check_error;
};

void ibx_snapshot_cache_init(struct snapshot_cache *cache);
/* Connects, makes or checks the folder, and fetches the device state. */
int ibx_snapshot_cache_begin(struct snapshot_cache *cache, const char *path, struct ibx_error *err);
/* Maps the files and starts to fill them; with `background` all of them. */
int ibx_snapshot_cache_fill(struct snapshot_cache *cache, bool background, uint64_t max_bandwidth,
                            struct ibx_error *err);
/* For poll(2); the second is -1 when nothing comes by multicast. */
int ibx_snapshot_cache_fd(const struct snapshot_cache *cache);
int ibx_snapshot_cache_feed_fd(const struct snapshot_cache *cache);
/* Whether a page of guest RAM is there. `cache` is a struct snapshot_cache; from any thread. */
bool ibx_snapshot_cache_has(void *cache, uint64_t page);
void ibx_snapshot_cache_fed(const struct snapshot_cache *cache, struct ibx_snapshot_fed *fed);
/* Looks what has become of it: a lost server is sought again, also among the others. -EBADMSG: what
 * comes is not what was frozen, from any of them. */
int ibx_snapshot_cache_step(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context,
                            struct ibx_error *err);
/* Pages of guest RAM that are there, while it has an engine. */
uint64_t ibx_snapshot_cache_present(const struct snapshot_cache *cache,
                                    const struct ibx_fault_stats *engine);
/* When nobody touches the mapping any more, and the files are not used again: who waits for a page
 * would see zeros. In CHECKING it waits for the digest; a process that is to end at once ends
 * without this. */
void ibx_snapshot_cache_end(struct snapshot_cache *cache);

/* ------------------------------------------------------------ multicast_cache.c */

/*
 * The group of a cache's server, in a thread of its own: it asks for it, joins it, and gives the
 * fault engine what comes, page by page, each compared with its hash.
 *
 * state machine: snapshot feed
 *   [*] -> WAITING -> CONNECTING -> JOINING -> MEMBER -> DRAINING -> OVER -> [*]
 *   WAITING | JOINING | MEMBER -> OVER     there is no group, or it is lost
 *   CONNECTING -> LEFT -> [*]              it is closed meanwhile
 *   WAITING | JOINING | MEMBER | DRAINING -> [*]
 *
 * In WAITING hashes come, in MEMBER datagrams. In DRAINING all have been sent, and some may still
 * be on their way. A server may take seconds to let this host connect, and the cache does not wait
 * for that: in CONNECTING the thread uses nothing of the cache's, and in LEFT it ends alone.
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
    struct ibx_fault *engine; /* until close */
    /* Of the engine. It gets the whole table, without which nothing that comes can be compared. */
    struct ibx_snapshot_checker *checker;
    unsigned worker; /* as which the thread has pages compared */
};

int ibx_snapshot_feed_open(const struct snapshot_feed_config *config, struct snapshot_feed **feed,
                           struct ibx_error *err);
/* For poll(2): there is something to say, or it is over. */
int ibx_snapshot_feed_fd(const struct snapshot_feed *feed);
/* What there is to say, one line after the other; false: nothing. */
bool ibx_snapshot_feed_says(struct snapshot_feed *feed, char line[IBX_ERROR_MAX]);
bool ibx_snapshot_feed_over(struct snapshot_feed *feed);
/* Adds to *sum what has come so far. */
void ibx_snapshot_feed_stats(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum);
/* Leaves the group, and adds to *sum what has come. Waits for no server. */
void ibx_snapshot_feed_close(struct snapshot_feed *feed, struct ibx_multicast_receiver_stats *sum);

/* ------------------------------------------------------------ intact.c */

/* What is served, and mapped, stays as it was, or nobody gets it any more. One in a process, which
 * gets SIGBUS when somebody cuts a mapped file short. */
struct snapshot_intact {
    const struct ibx_snapshot_folder *folder;
    void *const *memory;
    int fd; /* for poll(2): there is something to check */
    struct sigaction before;
};

int ibx_snapshot_intact_begin(struct snapshot_intact *intact,
                              const struct ibx_snapshot_folder *folder, void *const *memory,
                              struct ibx_error *err);
/* -ESTALE: the files are not what they were. A thread may wait for good in their mapping then, so
 * the process has to end. */
int ibx_snapshot_intact_check(struct snapshot_intact *intact, struct ibx_snapshot_folder *folder,
                              struct ibx_error *err);
void ibx_snapshot_intact_end(struct snapshot_intact *intact);

/* ------------------------------------------------------------ children.c */

#define SNAPSHOT_SOCKET "children" /* in the folder: SEQPACKET, one JSON object each way */

/* What a child's tool tells of it. */
struct snapshot_child {
    pid_t pid;
    uint64_t started;                         /* ibx_process_started() */
    int remote;                               /* its userfaultfd, by QEMU's number */
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
    unsigned children; /* that may still wait for pages */
    uint64_t so_far;   /* of them, so far */
    uint64_t asked;    /* connections to the socket so far */
    uint64_t faults, zero_faults;
};

/* Listens, and takes back the children of a process before this one that has ended. */
int ibx_snapshot_children_open(const struct snapshot_children_config *config,
                               struct snapshot_children **children, struct ibx_error *err);
/* The folder is whole: children of a process before this one, which was killed as it became so,
 * need nobody any more. */
int ibx_snapshot_children_release(const struct snapshot_children_config *config,
                                  struct ibx_error *err);
/* For poll(2). */
int ibx_snapshot_children_fd(const struct snapshot_children *children);
/* Takes a child that has come. */
void ibx_snapshot_children_step(struct snapshot_children *children);
/* All pages are there: children need nobody any more, now or later. */
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

/* The longest parts of guest RAM, of a MiB or more, that are zero. The folder is whole. */
void ibx_snapshot_holes_find(const struct ibx_snapshot_folder *folder,
                             struct snapshot_holes *holes);
/* Whether the folder's tmpfs has room for all other pages of zeros. */
void ibx_snapshot_holes_room(const struct ibx_snapshot_folder *folder,
                             const struct snapshot_holes *holes, struct ibx_blockers *blockers);
/* The same parts by a map, for a child of a cache that is not whole; NULL: no memory. And back:
 * none, if they are not of this folder. */
json_t *ibx_snapshot_holes_json(const struct ibx_page_map *map, unsigned blocks);
void ibx_snapshot_holes_read(const json_t *json, const struct ibx_snapshot_folder *folder,
                             struct snapshot_holes *holes);

/* ------------------------------------------------------------ child.c */

/* Whether somebody listens, before a child is touched. -ECONNREFUSED, -ENOENT:
 * nobody serves this folder. */
int ibx_snapshot_child_expected(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* *whole is set when this child needs nobody; *holes to what is zero in the snapshot. */
int ibx_snapshot_child_hand_over(const struct ibx_snapshot_folder *folder,
                                 const struct snapshot_child *child, bool *whole,
                                 struct snapshot_holes *holes, struct ibx_error *err);

/* For both ends. */
#define SNAPSHOT_CHILD_TEXT 8192 /* bytes of what is said, at most */
json_t *ibx_snapshot_child_json(const struct snapshot_child *child);
/* The reverse, of a child with `count` blocks. -EPROTO. */
int ibx_snapshot_child_read(const char *text, size_t length, unsigned count,
                            struct snapshot_child *child, struct ibx_error *err);
/* The socket's name in its folder, however long the path is. */
struct sockaddr_un ibx_snapshot_child_address(int folder);
/* The other end has ten seconds to say something, or to take it. */
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

/* ------------------------------------------------------------ left_behind.c */

/* Of a whole folder: if nobody serves its children, and some are left, they are let go. What fails
 * is logged: each of them waits on. */
void ibx_snapshot_let_left_go(const struct ibx_snapshot_folder *folder);

/* ------------------------------------------------------------ network.c */

#define SNAPSHOT_CARDS     16u
#define SNAPSHOT_CARD_NAME 64u
#define SNAPSHOT_CARD_MAC  24u

/* Network cards of a child with a MAC that its parent has not there. */
struct snapshot_network {
    unsigned count;
    struct snapshot_card {
        char name[SNAPSHOT_CARD_NAME], back_end[SNAPSHOT_CARD_NAME]; /* of -device and -netdev */
        char mac[SNAPSHOT_CARD_MAC];                                 /* of -device */
        bool up;
    } cards[SNAPSHOT_CARDS];
};

/* Before the state is loaded. `parent` and `child` are descriptions; cards that QEMU can say
 * nothing of are reasons against it. */
int ibx_snapshot_network_find(struct ibx_qmp *qmp, const json_t *parent, const json_t *child,
                              struct snapshot_network *network, struct ibx_blockers *blockers,
                              struct ibx_error *err);
/* All of them; once before the state is loaded, and once when it is. */
int ibx_snapshot_network_down(struct ibx_qmp *qmp, const struct snapshot_network *network,
                              struct ibx_error *err);
/* Each when the guest has taken its MAC. -ETIMEDOUT: some stay down. */
int ibx_snapshot_network_up(struct ibx_qmp *qmp, struct snapshot_network *network,
                            uint64_t deadline_ns, struct ibx_error *err);

#endif
