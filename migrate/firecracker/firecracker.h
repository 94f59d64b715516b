/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The page fault handler of a microVM that Firecracker restores from a snapshot ("Uffd" as its
 * memory backend). Firecracker connects to a unix socket, sends one JSON array of its memory
 * regions with a userfaultfd (SCM_RIGHTS), and nothing more: the socket stays open until it ends.
 *
 *   supervisor.c  the process that keeps the descriptors, and starts and restarts the handler
 *   handler.c       the process that serves the faults, with the engine of userfaultfd/
 *   peer.c          the socket, who may connect, and the message
 *   layout.c        the JSON array
 *   session.c       what outlives a killed handler, in a memory file
 *   fd_store.c      systemd's store of descriptors, for a killed supervisor
 *   image.h         where pages come from: image_file.c, a local file; image_remote.c, a server
 *   working_set.c   the file of --record and --replay
 */
#ifndef IBX_MIGRATE_FIRECRACKER_FIRECRACKER_H
#define IBX_MIGRATE_FIRECRACKER_FIRECRACKER_H

#include "common/error.h"
#include "transport/transport.h"
#include "userfaultfd/fault.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* ------------------------------------------------------------ the message */

#define IBX_FIRECRACKER_REGIONS_MAX 64u
#define IBX_FIRECRACKER_MESSAGE_MAX 16384u /* bytes of JSON */
#define IBX_IMAGE_IDENTITY          5u     /* numbers that identify a memory file */

struct ibx_firecracker_region {
    uint64_t start;  /* address in Firecracker */
    uint64_t length; /* bytes */
    uint64_t offset; /* in the snapshot's memory file */
};

struct ibx_firecracker_layout {
    unsigned count;
    uint32_t page_size; /* of all regions: 4096 or 2 MiB */
    uint64_t end;       /* bytes of the memory file that the regions need */
    uint64_t pages;
    struct ibx_firecracker_region regions[IBX_FIRECRACKER_REGIONS_MAX];
};

/* Parses the JSON array. -EAGAIN: the text is only the beginning of an array; -EPROTO, -E2BIG. */
int ibx_firecracker_layout_parse(const char *text, size_t length,
                                 struct ibx_firecracker_layout *layout, struct ibx_error *err);

/* ------------------------------------------------------------ working sets */

/* The pages that a microVM touched after a restore, in that order, as runs of the snapshot's memory
 * file, in pages of 4096 bytes. */
struct ibx_working_set {
    uint64_t image_pages; /* of the whole memory file */
    uint64_t pages;       /* in all runs */
    struct ibx_fault_run *runs;
    size_t count;
};

#define IBX_WORKING_SET_RUNS_MAX (1u << 24)

/* The bytes of such a file (docs/protocol.md); the caller frees them by free(). NULL: no memory. */
uint8_t *ibx_working_set_encode(const struct ibx_working_set *set, size_t *length);
/* -EPROTO: the bytes are no working set, of another version, or damaged. To be freed by fini. */
int ibx_working_set_decode(const uint8_t *bytes, size_t length, struct ibx_working_set *set,
                           struct ibx_error *err);
void ibx_working_set_fini(struct ibx_working_set *set);
/* Adds a run, or extends the last one. -ENOMEM, -E2BIG. */
int ibx_working_set_add(struct ibx_working_set *set, uint64_t page, uint64_t pages);
int ibx_working_set_load(const char *path, struct ibx_working_set *set, struct ibx_error *err);
/* Checks the path of a file that is to be saved. -EPERM: a folder or link on it belongs to another
 * user than this one or root. An error also if a folder does not exist. */
int ibx_working_set_check_way(const char *path, struct ibx_error *err);
/* Replaces the file as a whole; its path has to pass that check. */
int ibx_working_set_save(const char *path, const struct ibx_working_set *set,
                         struct ibx_error *err);

/* ------------------------------------------------------------ the handler */

enum ibx_firecracker_event_kind {
    IBX_FIRECRACKER_LISTENING, /* Firecracker may be told to load the snapshot */
    IBX_FIRECRACKER_SERVING,   /* it has connected: `pid`, `layout`, `again` */
    IBX_FIRECRACKER_RECORDED,  /* the file of --record is written: `pages` */
    IBX_FIRECRACKER_LOST,      /* the server is lost, or could not be reached again: `reason` */
    IBX_FIRECRACKER_FULL,      /* this host has no room for a page, and tries again: `reason` */
    IBX_FIRECRACKER_RESTARTED, /* the handler has died of `signal` or with `status` */
    IBX_FIRECRACKER_ENDED,     /* Firecracker has ended: `stats` */
};

struct ibx_firecracker_event {
    enum ibx_firecracker_event_kind kind;
    const struct ibx_firecracker_layout *layout;
    const char *reason;
    pid_t pid;          /* of Firecracker, 0: not known */
    pid_t handler;      /* the process that serves the faults */
    int signal, status; /* of the handler that died */
    unsigned restarts;  /* so far */
    uint64_t pages, ns; /* `ns`: since Firecracker sent its message */
    struct ibx_fault_stats stats;
};

struct ibx_firecracker_config {
    const char *socket; /* a path that does not exist, or that nobody listens at any more */
    const char *from;   /* the snapshot's memory file, or the URI of one that is served */
    uid_t peer;         /* who may connect, beside root and the user of this process */
    const char *record; /* NULL, or the file to write */
    unsigned record_s;  /* write it after so many seconds; 0: when Firecracker has ended */
    const char *replay; /* NULL, or the file to read */
    bool background;    /* fetch pages that are not needed yet, too */
    uint64_t max_bandwidth;
    const struct ibx_options *options;
    /* Called by both processes (never at the same time), by one thread of each. */
    void (*event)(void *context, const struct ibx_firecracker_event *event);
    void *context;
};

/* Serves one microVM until it has ended. The calling process must have one thread; it becomes the
 * supervisor of the process that serves. SIGTERM and SIGINT end both: -EINTR. */
int ibx_firecracker_run(const struct ibx_firecracker_config *config, struct ibx_error *err);

#endif
