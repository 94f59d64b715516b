/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A host's cache of a snapshot that is served elsewhere. Its files of guest RAM (tmpfs) are filled
 * by a fault engine on this process's own shared mapping of them, for whoever touches a page of it:
 * threads that serve readers, and those that answer the faults of this host's children. So a page
 * crosses to the host once.
 *
 *   cache.c     the mapping, its engine, the connections to where the pages come from
 *   children.c  the faults of QEMUs on this host that have the files mapped privately
 *
 * Nothing may touch a missing page without a userfaultfd on the mapping: that would put a zero page
 * into the file, for all children.
 */
#ifndef IBX_MIGRATE_SNAPSHOT_CACHE_H
#define IBX_MIGRATE_SNAPSHOT_CACHE_H

#include "common/state_machine.h"
#include "migrate/snapshot/snapshot.h"

#include <pthread.h>

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
    struct ibx_snapshot_reader *reader; /* NULL in LOST and WHOLE */
    struct ibx_page_map map;
    void *memory[IBX_GUEST_BLOCKS_MAX];
    int uffd;
    struct ibx_fault *engine;
    struct ibx_fault_range ranges[IBX_SNAPSHOT_RAM_MAX];
    size_t buffer_bytes;
    uint64_t again_ns;   /* LOST: the next try */
    uint64_t filling_ns; /* the last one that brought a server; 0: it was the first */
    unsigned pause_ms, reconnects;
    char source[300]; /* the URI that is read */
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
/* For poll(2). */
int ibx_snapshot_cache_fd(const struct snapshot_cache *cache);
/* Looks what has become of it: a lost server is sought again, also among the others. -EBADMSG: what
 * came is not what was frozen. */
int ibx_snapshot_cache_step(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context,
                            struct ibx_error *err);
/* Only in WHOLE, or when it never was FILLING. */
void ibx_snapshot_cache_end(struct snapshot_cache *cache);

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

/* The other end: whether somebody listens, before a child is touched. -ECONNREFUSED, -ENOENT:
 * nobody serves this folder. */
int ibx_snapshot_child_expected(const struct ibx_snapshot_folder *folder, struct ibx_error *err);
/* *whole is set when this child needs nobody. */
int ibx_snapshot_child_hand_over(const struct ibx_snapshot_folder *folder,
                                 const struct snapshot_child *child, bool *whole,
                                 struct ibx_error *err);

#endif
