/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What reaches GVirtuS and the back end, for all of preload/; attach_table.h lists its folders. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_PRELOAD_H
#define IBX_FRONTEND_GLUE_PRELOAD_PRELOAD_H

#include "common/wire.h"
#include "frontend-glue/preload/exported.h"

#include <limits.h>
#include <link.h>
#include <stdatomic.h>

/* --------------------------------------------------------------------------------------
 * extensions.c */

#define EXTENSION_REQUEST_MAX 1950u /* bytes of a request's body that need no allocation */
/* An extension request (session/extensions.h), which stock GVirtuS does not have. Its body
 * begins with its number. */
struct extension_request {
    const char *name; /* the request's name on the wire */
    const char *call; /* the CUDA function, for messages */
    struct ibx_writer body;
    void *more; /* the allocated body if it is longer than bytes[]; else NULL */
    uint8_t bytes[EXTENSION_REQUEST_MAX];
};
void ibx_frontend_request_begin(struct extension_request *own, enum ibx_extension number,
                                const char *call);
/* Begins a request about a node of an executable graph or, if `exec` is NULL, of a graph. */
void ibx_frontend_node_begin(struct extension_request *own, enum ibx_extension number,
                             const char *call, const void *exec, const void *node);
/* Makes room for n more bytes of the body. False: there is no memory. A caller of this ends with
 * _free(). */
bool ibx_frontend_request_room(struct extension_request *own, size_t n);
void ibx_frontend_request_free(struct extension_request *own);
/* Sends the request and waits for the answer. Returns what the CUDA call is to return; if that is
 * an error, cudaGetLastError() will return it, too. On success the answer is in `out`, exactly n
 * bytes. */
int ibx_frontend_request_make(const struct extension_request *own, void *out, size_t n);
/* As _make(), with the result in *rc. False: this back end does not know the request, and GVirtuS
 * may have the function; no error is recorded. */
bool ibx_frontend_request_known(const struct extension_request *own, void *out, size_t n, int *rc);
/* As _make(), for a request whose answer is one number. */
int ibx_frontend_request_ask(const struct extension_request *own, uint64_t *answer);
/* Sends the request and records and logs nothing. False: it was not sent. *code: the exit code of
 * the back end; negative if the back end does not know the request. */
bool ibx_frontend_request_try(const struct extension_request *own, void *out, size_t n, int *code);
/* Has GVirtuS connect the calling thread, by a cheap call of its front end: nothing else can. */
void ibx_frontend_connect(void);
/* The same for a thread of this library. False: it got no connection, and the plugin has logged
 * why; GVirtuS, which ends the program if a thread of the program gets none, does not know. May be
 * called again, which tries again. */
bool ibx_frontend_connect_own(void);

/* ------------------------------------------------------------------------------------ gvirtus.c */

/* The table of the plugin; NULL before a plugin has attached, and in a thread that unloads. */
const struct ibx_frontend_calls *ibx_frontend_plugin(void);
/* Takes the table of a plugin that attaches, if it has this library's version. True for the first
 * one. */
bool ibx_frontend_plugin_is(const struct ibx_frontend_calls *calls);
/* Has the plugin make GVirtuS's call of this name, with this body. True: it was made, or it is
 * forbidden here, and *rc is what it returns. False: GVirtuS has to make it. */
bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc);
/* As ibx_frontend_called(), for cudaLaunchKernel. `unseen`: by <<<>>>, whose result the program
 * does not see. */
bool ibx_frontend_launched(const struct ibx_writer *body, bool unseen, int *rc);
/* The host function (cudaLaunchHostFunc, callbacks, host nodes) that runs in the calling thread,
 * while a stream waits for it: none, this library's own, or the program's. host_functions.c sets
 * it. */
enum ibx_host_function { IBX_FUNCTION_NONE, IBX_FUNCTION_OURS, IBX_FUNCTION_THEIRS };
void ibx_frontend_host_function_is(enum ibx_host_function is);
bool ibx_frontend_in_host_function(void);
/* Whether a host function of the program runs in this thread. CUDA permits no call there that works
 * on the device, allocates or waits: *rc is the error that such a call returns. The same in a
 * thread that unloads. */
bool ibx_frontend_forbidden(int *rc);
/* Whether the plugin knows `fact` to be true without a request (attach_table.h). */
bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer);
/* Returns `rc`, the result of a call that GVirtuS made, and by which it connects. Warns once if no
 * plugin has attached by then. */
int ibx_frontend_passed(int rc);
/* GVirtuS's function of this name, NULL if it has none. The answer is cached in *found once it is
 * final. */
void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol);
/* The path of a loaded libcudart, also of one that dlopen(3) loaded with RTLD_LOCAL. False: none is
 * loaded. */
bool ibx_frontend_libcudart(char path[PATH_MAX]);
/* Whether this handle of dlopen(3) is NVIDIA's libcudart, and not GVirtuS's. */
bool ibx_frontend_is_nvidias(void *libcudart);
/* The major version of the loaded libcudart, by the name of its file; 0: unknown. */
int ibx_frontend_cuda_version(void);
/* Whether it is older than CUDA 13, with which the arguments of some calls have changed. One that
 * is unknown counts as newer. */
static inline bool ibx_frontend_before_13(void)
{
    const int version = ibx_frontend_cuda_version();
    return version && version < 13;
}
/* Returns `rc`, an error that this library has detected, and has cudaGetLastError() return it as
 * well. */
int ibx_frontend_fail(int rc);
/* Such an error, and what its thread had when it came: how many others there may be, the number of
 * the latest request that was answered early, and twice the number of others that are known, with
 * one more for a failure since; then 1. 0: that was not known. */
struct ibx_frontend_error {
    int code, errors, answered, failures;
};
/* The functions of the driver's API are made from calls of the runtime's, which stand between
 * _drives() and _drove(). Errors of these calls do not appear in cudaGetLastError(), except sticky
 * ones, and those of calls that were answered before they were run. */
struct ibx_frontend_errors {
    struct ibx_frontend_error last;
    bool none;   /* before, cudaGetLastError() had no error to return */
    bool known;  /* ... of a call whose result was known */
    bool newest; /* `last` was newer than any error of the back end's */
};
void ibx_frontend_drives(struct ibx_frontend_errors *before);
void ibx_frontend_drove(const struct ibx_frontend_errors *before, bool failed);
/* What the calling thread has done by calls of the runtime's API, other than those that the
 * driver's API makes for it. */
enum ibx_frontend_use {
    IBX_RUNTIME_UNUSED,
    IBX_RUNTIME_ASKED, /* only begun the driver, as calls between _asks() and _asked() do */
    IBX_RUNTIME_USED,  /* made a context current */
};
/* Notes that it calls that API. _take_use(): what it has done since that was last taken; _ever():
 * whether any thread has made a context current, or has begun the driver by such a call. */
void ibx_frontend_runtime_used(void);
void ibx_frontend_asks(void);
void ibx_frontend_asked(void);
enum ibx_frontend_use ibx_frontend_take_use(void);
bool ibx_frontend_runtime_ever(void);
bool ibx_frontend_begun_ever(void);
/* Whether the calling thread is in its first call, in which GVirtuS's front end connects. */
bool ibx_frontend_connects(void);
/* The function of GVirtuS that has this name and type; NULL if it has none. */
#define NEXT(function)                                                                             \
    __extension__({                                                                                \
        static _Atomic(void *) found;                                                              \
        (__typeof__(&(function)))ibx_frontend_next(&found, #function);                             \
    })
/* Before and after calls of GVirtuS's functions. In the first call of a thread GVirtuS connects,
 * and only one thread at a time may do that; every other call passes at once. _is_over() may be
 * called more than once. False: the process is about to end, and GVirtuS must not be called. */
bool ibx_frontend_first_begins(void);
void ibx_frontend_first_is_over(void);
/* At the end of the process. True: no other living thread has called GVirtuS, and from now on none
 * can begin to. False: others may be in calls. */
bool ibx_frontend_close(void);
/* exit(3) ends GVirtuS's log, without which its front end ends the process: from now on no thread
 * calls GVirtuS. */
void ibx_frontend_log_ends(void);
/* Does not count the calling thread, which is this library's own, for ibx_frontend_close(). */
void ibx_frontend_is_no_caller(void);
/* Calls GVirtuS's function: CUDA_NOT_SUPPORTED if it has none, CUDA_UNLOADING if the process is
 * about to end. */
#define CALL_NEXT(function, ...)                                                                   \
    __extension__({                                                                                \
        __typeof__(&(function)) next = NEXT(function);                                             \
        const bool may = ibx_frontend_first_begins();                                              \
        const int returned = !may   ? CUDA_UNLOADING                                               \
                             : next ? (int)next(__VA_ARGS__)                                       \
                                    : CUDA_NOT_SUPPORTED;                                          \
        ibx_frontend_first_is_over();                                                              \
        returned;                                                                                  \
    })
/* Likewise a function that natively makes no context current. */
#define ASK_NEXT(function, ...)                                                                    \
    __extension__({                                                                                \
        ibx_frontend_asks();                                                                       \
        const int answer = CALL_NEXT(function, __VA_ARGS__);                                       \
        ibx_frontend_asked();                                                                      \
        answer;                                                                                    \
    })

/* ---------------------------------------------------------------------------------- unloading.c */

/* The calling thread. In one variable, since a lock costs a look-up of it more. */
struct ibx_frontend_thread {
    unsigned inside; /* locks of this library that it has or waits for, and calls of GVirtuS */
    bool unloads;
};
extern _Thread_local struct ibx_frontend_thread ibx_frontend_thread
    __attribute__((visibility("hidden")));
/* Whether the thread has called exit(3) in a signal handler that had interrupted it inside of this
 * library, of the plugin or of a call of GVirtuS's. From then on its calls of CUDA return
 * CUDA_UNLOADING, it takes no lock of this library, and ibx_frontend_plugin() is NULL there. */
static inline bool ibx_frontend_unloads(void)
{
    return ibx_frontend_thread.unloads;
}
/* Around a call of GVirtuS's. */
void ibx_frontend_goes_inside(void);
void ibx_frontend_comes_outside(void);
/* Called by the thread that ends the process, at the latest before the first of its destructors:
 * ibx_frontend_unloads() says the truth from then on. */
void ibx_frontend_exits(void);

/* ------------------------------------------------------------------------------------- errors.c */

/* Of a call that a remote GPU cannot have: returns the status, and logs its name the first time. */
int ibx_frontend_absent(const char *call, int status, const char *name, atomic_flag *told);

/* --------------------------------------------------------------------------- loaded_libraries.c */

/* Whether this process was forked after this library was loaded. */
bool ibx_frontend_forked(void);
/* Called for a loaded library; true ends the walk. `dynamic`: its dynamic section, or NULL. */
typedef bool ibx_frontend_look_library(const char *path, ElfW(Dyn) * dynamic, void *argument);
/* Calls `look` for each loaded library until it returns true; returns whether it did. Also works in
 * a forked child, where dl_iterate_phdr(3) may hang. */
bool ibx_frontend_each_library(ibx_frontend_look_library *look, void *argument);
/* Whether the last component of `path` begins with `begin`. */
bool ibx_frontend_is_named(const char *path, const char *begin);
/* The path of the loaded file that contains this code; NULL: unknown. */
const char *ibx_frontend_file_of(const void *code);

/* ---------------------------------------------------------------------------- local_libraries.c */

/* Sets CUDA_VISIBLE_DEVICES to nothing if a library of NVIDIA's is loaded that calls the driver of
 * this host: it finds no GPU then. */
void ibx_frontend_hide_local_gpus(void);
/* The same, if libraries have been loaded since the last call. */
void ibx_frontend_look_for_libraries(void);

/* ---------------------------------------------------------------------------- visible_devices.c */

/* Warns if the program's CUDA_VISIBLE_DEVICES selects GPUs, because that has no effect on remote
 * ones. */
void ibx_frontend_visible_devices(void);

/* ------------------------------------------------------------------------------------- ranges.c */

/* n bytes of the current device's memory. */
struct place {
    uint64_t at;
    size_t n;
};
enum range_moves {
    MOVES_UNKNOWN, /* not asked yet, or not at the moment */
    MOVES_YES,
    MOVES_NEVER
};
struct range {
    uintptr_t begin;
    size_t n;
    bool allocated; /* by host_memory.c; false: registered by the application */
    bool in_use;    /* there was an asynchronous copy */
    bool pooled; /* device memory that is not from cudaMalloc: cudaFree does not wait for the device
                  */
    bool reserved;     /* ... reserved addresses, to which memory is mapped */
    bool of_graph;     /* ... of a node, whose place CUDA may also give to others of its graph */
    int device;        /* the device that was selected when it was allocated */
    unsigned flags;    /* host memory: the flags that the application gave */
    unsigned reach;    /* host memory: the epoch in which kernels were given access; 0: never */
    unsigned in_place; /* host memory: managed memory that is used in place (managed_in_place.c),
                          since this number of forks plus 1; 0: it is not */
    unsigned moved;    /* registered memory: that its pages are shared with the back end
                          (registered.c), likewise */
    enum range_moves moves; /* registered memory: whether they can be, as the program was told */
    const char *name;       /* the name of a kernel; NULL: unknown */
    uint64_t number;        /* unique in the process, never reused */
};
/* Sorted by address, without overlaps. Callers of the functions below hold the lock. */
struct ranges {
    struct range *items;
    size_t count, room;
};
/* One lock for all lists. It is held across fork(2), so a child finds consistent lists and a free
 * lock. */
void ibx_frontend_ranges_lock(void);
void ibx_frontend_ranges_unlock(void);
/* The index of the first range that does not end before `begin`, or `count`. */
size_t ibx_frontend_ranges_find(const struct ranges *ranges, uintptr_t begin);
/* The range that begins at `address`, or NULL. */
struct range *ibx_frontend_ranges_at(const struct ranges *ranges, const void *address);
/* The range that holds all n bytes (not 0), or NULL. */
struct range *ibx_frontend_ranges_holding(const struct ranges *ranges, const void *address,
                                          size_t n);
/* A new number, as each range that is added gets one. */
uint64_t ibx_frontend_ranges_number(void);
/* 0; -EEXIST: it would overlap another one; -ENOMEM. */
int ibx_frontend_ranges_add(struct ranges *ranges, const struct range *range);
void ibx_frontend_ranges_remove(struct ranges *ranges, struct range *range);
/* The caller does not hold the lock. Copies the range that holds the byte at `address`; false:
 * there is none. */
bool ibx_frontend_ranges_copy(const struct ranges *ranges, const void *address, struct range *copy);

#endif
