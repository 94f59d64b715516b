/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is mapped in this process, by /proc/self/maps, and whether a range of it can move to other
 * pages. Without malloc(3), whose locks a fork may have taken. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MAPPINGS_H
#define IBX_FRONTEND_GLUE_PRELOAD_MEMORY_MAPPINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mapping {
    uintptr_t begin, end;
    char access[5]; /* "rw-p" */
    uint64_t offset, inode;
    unsigned major, minor; /* of the device of a file; 0, 0 and inode 0: no file */
    char name[16];         /* the begin of its path, or "[heap]" and the like */
};

struct mappings {
    int fd;
    size_t at, count; /* of `bytes`: those that were not taken yet begin at `at` */
    char bytes[4096];
};

/* False: the list cannot be opened. In order of addresses; _next() is false at the end. A thread
 * must not be cancelled between _open() and _close(). */
bool ibx_mappings_open(struct mappings *all);
bool ibx_mappings_next(struct mappings *all, struct mapping *next);
void ibx_mappings_close(const struct mappings *all);

/* Whether this is another mapping of the file that `whole` maps from its begin on. */
static inline bool ibx_mapping_is_alias(const struct mapping *m, const struct mapping *whole)
{
    return m->inode && m->inode == whole->inode && m->major == whole->major &&
           m->minor == whole->minor && m->begin - m->offset != whole->begin - whole->offset;
}
/* The mapping that holds the address; false: there is none. */
bool ibx_mapping_of(uintptr_t at, struct mapping *found);

/* Why the pages of memory cannot be replaced by others. */
enum mappings_refusal {
    MAPPINGS_MOVABLE,
    MAPPINGS_UNKNOWN,   /* the list cannot be read */
    MAPPINGS_OTHER,     /* not all of it is private memory of no file that can be written */
    MAPPINGS_STACK,     /* the calling thread's, or that of the process's first thread */
    MAPPINGS_LOCKED,    /* by mlock(2) */
    MAPPINGS_PINNED,    /* a device, or io_uring, has pinned memory of this process: which, the
                           kernel does not say */
    MAPPINGS_NEIGHBOURS /* the first or the last page has something else, too */
};
/* For the whole pages around n bytes. */
enum mappings_refusal ibx_mappings_movable(uintptr_t at, size_t n);

#endif
