/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* CUDA's runtime that is linked statically into the program or a library: finds it, and makes each
 * of its functions a jump. For use in the loader, like early.h. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_INSIDE_H
#define IBX_FRONTEND_GLUE_PRELOAD_RUNTIME_RUNTIME_INSIDE_H

#include "frontend-glue/preload/runtime/code.h"

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_inside;

/* A function of such a runtime. Its code becomes a jump to `target`: ibx_inside_first() until
 * ibx_inside_bind() has found the function that replaces it. Only `target` changes then, since the
 * code may be running in other threads. */
struct ibx_inside_function {
    _Atomic(void *) target; /* first: ibx_inside_first() jumps through it */
    struct ibx_inside *of;
    void *code;       /* the function's address */
    const char *name; /* allocated with the struct ibx_inside */
    atomic_flag is_told;
    uint8_t before[IBX_CODE_JUMP_BY];
};

enum ibx_inside_state {
    IBX_INSIDE_JUMPS,     /* its functions have become jumps */
    IBX_INSIDE_NAMELESS,  /* unknown: the object has kernels, but no symbols */
    IBX_INSIDE_RELOCATED, /* its code has relocations (DT_TEXTREL) and was not changed */
    IBX_INSIDE_REFUSED,   /* its code cannot be changed: `error` */
    IBX_INSIDE_ELSEWHERE, /* it is in another namespace (dlmopen(3)) and was not changed */
};

struct ibx_inside {
    struct ibx_inside *next;
    const struct link_map *map;
    size_t bytes; /* of this allocation */
    enum ibx_inside_state state;
    int error;           /* errno of IBX_INSIDE_REFUSED */
    const char *path;    /* of the object's file; IBX_INSIDE_PROGRAM for the program */
    const char *version; /* the libcudart of the same version */
    atomic_bool is_bound;
    atomic_flag is_told, is_unreached_told;
    char *code; /* the segment that has its functions */
    size_t code_bytes;
    int protection; /* PROT_* of that segment */
    size_t count;
    struct ibx_inside_function functions[];
};

#define IBX_INSIDE_PROGRAM "/proc/self/exe"

/* Looks for a runtime in a loaded object, and makes its functions jumps. `path`: the path by which
 * the object was loaded. NULL: it has none, it is a library of NVIDIA's, or there is no memory.
 * *is_file, if not NULL: whether `path` turned out to be the file of this object. */
struct ibx_inside *ibx_inside_find(const struct link_map *map, const char *path, bool *is_file);
/* The same for an object in another namespace, whose code is not changed: NULL or a state
 * IBX_INSIDE_ELSEWHERE. */
struct ibx_inside *ibx_inside_find_elsewhere(const struct link_map *map, const char *path);
void ibx_inside_free(struct ibx_inside *inside);
/* Whether a file has the name of a library of NVIDIA's own, which nobody links anew. */
bool ibx_inside_is_of_nvidia(const char *path);

/* Not callable from C. The initial target of all functions, and the target of functions that no
 * library has. */
void ibx_inside_first(void);
void ibx_inside_absent(void);
/* Called by ibx_inside_first(): gives all functions of that object their targets. */
void ibx_inside_bind(struct ibx_inside_function *function);
/* Called by ibx_inside_absent(): returns what the function returns. */
uintptr_t ibx_inside_tell_absent(struct ibx_inside_function *function);

#endif
