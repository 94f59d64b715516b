/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Programs and libraries into which CUDA's runtime is linked statically.
 *
 *   static_runtime.c   which libcudart their calls reach, and warnings
 *   redirect.c         finds such a runtime, and makes its functions jumps
 *   runtime_answers.c  what those of its functions return that no libcudart has
 *   loader.c           learns from the loader which objects are loaded
 *   elf_functions.c    the functions in the symbol table of a file
 *   code.c             changes code
 *   first_call.c       the entry of a function that is called for the first time
 *   python_modules.c   the same for the stripped modules of a Python package
 *
 * All but the first, the third and the last run inside the dynamic loader: see early.h.
 *
 * This header: finds such a runtime, and makes each of its functions a jump. For use in the loader.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_REDIRECT_H
#define IBX_FRONTEND_GLUE_PRELOAD_STATIC_RUNTIME_REDIRECT_H

#include "frontend-glue/preload/static_runtime/code.h"

#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_static_runtime;

/* A function of such a runtime. Its code becomes a jump to `target`: ibx_static_runtime_first()
 * until ibx_static_runtime_bind() has found the function that replaces it. Only `target` changes
 * then, since the code may be running in other threads. */
struct ibx_static_function {
    _Atomic(void *) target; /* first: ibx_static_runtime_first() jumps through it */
    struct ibx_static_runtime *of;
    void *code;       /* the function's address */
    const char *name; /* allocated with the struct ibx_static_runtime */
    atomic_flag is_reported;
    size_t bytes; /* of the jump */
    uint8_t before[IBX_CODE_MOST];
};

enum ibx_static_runtime_state {
    IBX_STATIC_RUNTIME_JUMPS,     /* its functions have become jumps */
    IBX_STATIC_RUNTIME_NAMELESS,  /* unknown: the object has kernels, but no symbols */
    IBX_STATIC_RUNTIME_RELOCATED, /* its code has relocations (DT_TEXTREL) and was not changed */
    IBX_STATIC_RUNTIME_REFUSED,   /* its code cannot be changed: `error` */
    IBX_STATIC_RUNTIME_ELSEWHERE, /* it is in another namespace (dlmopen(3)) and was not changed */
};

struct ibx_static_runtime {
    struct ibx_static_runtime *next;
    const struct link_map *map;
    size_t bytes; /* of this allocation */
    enum ibx_static_runtime_state state;
    int error;           /* errno of IBX_STATIC_RUNTIME_REFUSED */
    const char *path;    /* of the object's file; IBX_STATIC_RUNTIME_PROGRAM for the program */
    const char *version; /* the libcudart of the same version */
    atomic_bool is_bound;
    atomic_flag is_reported, is_unreached_reported;
    char *code; /* the segment that has its functions */
    size_t code_bytes;
    int protection; /* PROT_* of that segment */
    size_t count;
    struct ibx_static_function functions[];
};

#define IBX_STATIC_RUNTIME_PROGRAM "/proc/self/exe"

/* Looks for a runtime in a loaded object, and makes its functions jumps. `path`: the path by which
 * the object was loaded. NULL: it has none, it is a library of NVIDIA's, or there is no memory.
 * *is_file, if not NULL: whether `path` turned out to be the file of this object. */
struct ibx_static_runtime *ibx_static_runtime_find(const struct link_map *map, const char *path,
                                                   bool *is_file);
/* The same for an object in another namespace, whose code is not changed: NULL or a state
 * IBX_STATIC_RUNTIME_ELSEWHERE. */
struct ibx_static_runtime *ibx_static_runtime_find_elsewhere(const struct link_map *map,
                                                             const char *path);
void ibx_static_runtime_free(struct ibx_static_runtime *runtime);
/* Whether a file has the name of a library of NVIDIA's own, which nobody links anew. */
bool ibx_static_runtime_is_of_nvidia(const char *path);

/* Not callable from C. The initial target of all functions, and the target of functions that no
 * library has. */
void ibx_static_runtime_first(void);
void ibx_static_runtime_absent(void);
/* Called by ibx_static_runtime_first(): gives all functions of that object their targets. */
void ibx_static_runtime_bind(struct ibx_static_function *function);
/* Loads GVirtuS's libcudart of the runtime's version, for good; gvirtus.c finds it then. NULL:
 * there is none, and a warning was logged. */
void *ibx_static_runtime_load(struct ibx_static_runtime *runtime);
/* Called by ibx_static_runtime_absent(): returns what the function returns. */
uintptr_t ibx_static_runtime_tell_absent(struct ibx_static_function *function);

#endif
