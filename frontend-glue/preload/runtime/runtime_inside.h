/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA's runtime in a program, or a library, of this process: whether there is one, and its
 * functions, each of which becomes a jump. Like early.h for use in the loader. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_INSIDE_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_INSIDE_H

#include "frontend-glue/preload/runtime/code.h"

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_inside;

/* A function of the runtime, and where it jumps to: ibx_inside_first() until ibx_inside_bind() has
 * found another one. The jump stays, since code cannot be changed beside threads that run it. */
struct ibx_inside_function {
    _Atomic(void *) target; /* the first member */
    struct ibx_inside *of;
    void *code;       /* where it is */
    const char *name; /* in the same memory as this */
    atomic_flag is_told;
    uint8_t before[IBX_CODE_JUMP_BY];
};

enum ibx_inside_state {
    IBX_INSIDE_JUMPS,     /* its functions are jumps */
    IBX_INSIDE_NAMELESS,  /* there may be one: it has kernels, and no symbols */
    IBX_INSIDE_RELOCATED, /* code that the loader changes */
    IBX_INSIDE_REFUSED,   /* code that may not be changed: `error` */
    IBX_INSIDE_ELSEWHERE, /* it is in another namespace of the loader's (dlmopen(3)) */
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
    atomic_flag is_told, is_unreached_told;
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
/* Of an object in another namespace, which is left alone: NULL or IBX_INSIDE_ELSEWHERE. */
struct ibx_inside *ibx_inside_find_elsewhere(const struct link_map *map, const char *path);
void ibx_inside_free(struct ibx_inside *inside);
/* Whether a file has the name of a library of NVIDIA's own, which nobody links anew. */
bool ibx_inside_is_of_nvidia(const char *path);

/* Not to be called from C: where a function of a runtime jumps to for the first time, and where one
 * does that is nowhere else. */
void ibx_inside_first(void);
void ibx_inside_absent(void);
/* Called by the first: all functions of that object have a target then. */
void ibx_inside_bind(struct ibx_inside_function *function);
/* Called by the other: what the function returns. */
uintptr_t ibx_inside_tell_absent(struct ibx_inside_function *function);

#endif
