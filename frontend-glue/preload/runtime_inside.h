/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA's runtime in a program, or a library, of this process: whether there is one, and its
 * functions, each of which becomes a jump. Like early.h for use in the loader. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_INSIDE_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_INSIDE_H

#include "frontend-glue/preload/code.h"

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_inside;

/* A function of the runtime. It jumps to `target`, the first member, which is ibx_inside_first()
 * until ibx_inside_bind() has found another one. */
struct ibx_inside_function {
    _Atomic(void *) target;
    struct ibx_inside *of;
    void *code;       /* where it is */
    const char *name; /* in the same memory as this */
    uint8_t before[IBX_CODE_JUMP_BY];
};

enum ibx_inside_state {
    IBX_INSIDE_JUMPS,     /* its functions are jumps */
    IBX_INSIDE_NAMELESS,  /* there may be one: it has kernels, and no symbols */
    IBX_INSIDE_RELOCATED, /* code that the loader changes */
    IBX_INSIDE_REFUSED,   /* code that may not be changed: `error` */
};

struct ibx_inside {
    struct ibx_inside *next;
    const struct link_map *map;
    size_t bytes; /* of this memory */
    enum ibx_inside_state state;
    int error;           /* errno */
    const char *path;    /* of its file; IBX_INSIDE_PROGRAM */
    const char *version; /* the libcudart for which it stands */
    atomic_bool is_bound;
    atomic_flag is_told;
    char *code; /* all of the segment that has its functions */
    size_t code_bytes;
    int protection; /* PROT_ of that */
    size_t count;
    struct ibx_inside_function functions[];
};

#define IBX_INSIDE_PROGRAM "/proc/self/exe"

/* NULL: there is none in it, or it is NVIDIA's; likewise where there is no memory. `path`: of a
 * file that may be its. *is_file, if that is not NULL: that it is. */
struct ibx_inside *ibx_inside_find(const struct link_map *map, const char *path, bool *is_file);
void ibx_inside_free(struct ibx_inside *inside);
/* Functions that have no target yet become what they were, and their own target. One thread at a
 * time. False: its code may no more be changed. */
bool ibx_inside_restore(struct ibx_inside *inside);

/* Not to be called from C: where a function of a runtime jumps to for the first time. */
void ibx_inside_first(void);
/* Called by that: where it goes on. */
void *ibx_inside_bind(struct ibx_inside_function *function);

#endif
