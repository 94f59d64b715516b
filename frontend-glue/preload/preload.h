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
 * own_requests.c */

#define OWN_REQUEST_MAX 1950u /* bytes of a request of our own that go in one piece */
/* A request of our own: its body, which begins with the number. */
struct own_request {
    const char *name; /* of the request */
    const char *call; /* as the application knows it */
    struct ibx_writer body;
    void *more; /* where the body is if it does not fit here; NULL: it does */
    uint8_t bytes[OWN_REQUEST_MAX];
};
void ibx_frontend_request_begin(struct own_request *own, enum ibx_own_request number,
                                const char *call);
/* Of that node, in what can be launched or (NULL) in the graph. */
void ibx_frontend_node_begin(struct own_request *own, enum ibx_own_request number, const char *call,
                             const void *exec, const void *node);
/* Room for n bytes more; false: there is no memory. Behind that, in the end, _free(). */
bool ibx_frontend_request_room(struct own_request *own, size_t n);
void ibx_frontend_request_free(struct own_request *own);
/* Makes it: what the call returns, which cudaGetLastError() returns as well if it is an error. A
 * success has put `n` bytes into `out`. */
int ibx_frontend_request_make(const struct own_request *own, void *out, size_t n);
/* The same; false: the back end does not know it, and GVirtuS may. */
bool ibx_frontend_request_known(const struct own_request *own, void *out, size_t n, int *rc);
/* The same for one that is answered by one number. */
int ibx_frontend_request_ask(const struct own_request *own, uint64_t *answer);
/* The same without a word of its own. False: nothing was done. *code: what the back end answered,
 * negative where it does not know the request. */
bool ibx_frontend_request_try(const struct own_request *own, void *out, size_t n, int *code);
/* Makes a connection of the calling thread, which only a call of GVirtuS's can. */
void ibx_frontend_connect(void);

/* ------------------------------------------------------------------------------------ gvirtus.c */

/* NULL: there is none (yet). */
const struct ibx_frontend_calls *ibx_frontend_plugin(void);
/* It is that one, from now on: whether there was none before, and it belongs to this library. */
bool ibx_frontend_plugin_is(const struct ibx_frontend_calls *calls);
/* Makes the call of that name without GVirtuS, if that is possible: *rc is what it returns. Its
 * body is what was written. */
bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc);
/* The same of a launch. `unseen`: by <<<>>>. */
bool ibx_frontend_launched(const struct ibx_writer *body, bool unseen, int *rc);
/* Whose function that a stream waits for the calling thread is in: host_functions.c says so. */
enum ibx_host_function { IBX_FUNCTION_NONE, IBX_FUNCTION_OURS, IBX_FUNCTION_THEIRS };
void ibx_frontend_host_function_is(enum ibx_host_function is);
bool ibx_frontend_in_host_function(void);
/* Whether it is the program's, in which CUDA permits no work, no memory and no waits: *rc is what
 * such a call is to return. */
bool ibx_frontend_forbidden(int *rc);
/* Whether the plugin knows that it is so. */
bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer);
/* GVirtuS has returned `rc` for a call, by which it connects: warns once if no plugin has attached,
 * and returns that. */
int ibx_frontend_passed(int rc);
/* GVirtuS's function of that name, which is kept in *found; NULL: it has none. */
void *ibx_frontend_next(_Atomic(void *) *found, const char *symbol);
/* The path of a libcudart that is loaded, whether it is in this library's scopes or not. False:
 * there is none. */
bool ibx_frontend_libcudart(char path[PATH_MAX]);
/* Whether a libcudart that is open is NVIDIA's, and not GVirtuS's. */
bool ibx_frontend_is_nvidias(void *libcudart);
/* The major version of libcudart, 0: its name does not say. */
int ibx_frontend_cuda_version(void);
/* Returns `rc`, an error that is detected here, and has cudaGetLastError() return it as well. */
int ibx_frontend_fail(int rc);
/* Around calls that are made for one of the driver's API: what fails meanwhile is not told by
 * cudaGetLastError(), but for errors that stay. The first one: whether the thread has made calls of
 * the runtime's own since it was last asked. */
struct ibx_frontend_errors {
    int last;
    bool none; /* to be told before */
};
bool ibx_frontend_drives(struct ibx_frontend_errors *before);
void ibx_frontend_drove(const struct ibx_frontend_errors *before, bool failed);
/* The calling thread makes a call of the runtime's. */
void ibx_frontend_runtime_used(void);
bool ibx_frontend_runtime_ever(void);
/* Whether GVirtuS's front end is connecting in the calling thread. */
bool ibx_frontend_connects(void);
/* GVirtuS's function of the same name and type, or NULL. */
#define NEXT(function)                                                                             \
    __extension__({                                                                                \
        static _Atomic(void *) found;                                                              \
        (__typeof__(&(function)))ibx_frontend_next(&found, #function);                             \
    })
/* Around calls of GVirtuS's: by a thread's first one it connects, one thread at a time. Quick for
 * all others. The latter may come several times. False: GVirtuS's front end is about to go, and
 * must not be called. */
bool ibx_frontend_first_begins(void);
void ibx_frontend_first_is_over(void);
/* At the end of the process: whether no other thread calls GVirtuS's, nor begins to. */
bool ibx_frontend_close(void);
/* The calling thread, which is one of this library's, need not be asked for that. */
void ibx_frontend_is_no_caller(void);
/* Calls it. */
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

/* --------------------------------------------------------------------------- loaded_libraries.c */

/* Whether this process is a child that has been forked since this library was loaded. */
bool ibx_frontend_forked(void);
/* Whether this loaded library is it; `dynamic` is its dynamic section, NULL: it has none. */
typedef bool ibx_frontend_look_library(const char *path, ElfW(Dyn) * dynamic, void *argument);
/* Of each one until `look` is true; whether it was. In a forked child, too. */
bool ibx_frontend_each_library(ibx_frontend_look_library *look, void *argument);
/* Whether the name of the file of this path begins so. */
bool ibx_frontend_is_named(const char *path, const char *begin);
/* The file that has this code; NULL: it is not known. */
const char *ibx_frontend_file_of(const void *code);

/* ---------------------------------------------------------------------------- local_libraries.c */

/* Has libraries of NVIDIA's that call this host's driver find no GPU. */
void ibx_frontend_hide_local_gpus(void);
/* The same when others have been loaded since the last call. */
void ibx_frontend_look_for_libraries(void);

/* ---------------------------------------------------------------------------- visible_devices.c */

/* A line where the program's CUDA_VISIBLE_DEVICES names GPUs that it does not choose. */
void ibx_frontend_visible_devices(void);

/* ------------------------------------------------------------------------------------- ranges.c */

/* Memory of the current device. */
struct place {
    uint64_t at;
    size_t n;
};
struct range {
    uintptr_t begin;
    size_t n;
    bool allocated;    /* by host_memory.c; false: registered by the application */
    bool in_use;       /* there was an asynchronous copy */
    bool pooled;       /* of the device, but not cudaMalloc's: cudaFree waits for nothing */
    bool reserved;     /* ... but addresses alone, to which memory is mapped */
    int device;        /* that was the thread's */
    unsigned flags;    /* of the host's: the application's */
    unsigned reach;    /* of the host's: since which epoch kernels reach it; 0: never yet */
    unsigned in_place; /* of the host's: managed memory (managed_in_place.c), since so many forks
                          and one; 0: it is not */
    const char *name;  /* of a kernel; NULL: not known */
    uint64_t number;   /* that no other range of the process ever has */
};
/* Sorted by address; none overlaps another. The caller holds the lock. */
struct ranges {
    struct range *items;
    size_t count, room;
};
/* One lock for all lists; a forked child finds them consistent and unlocked. */
void ibx_frontend_ranges_lock(void);
void ibx_frontend_ranges_unlock(void);
/* The index of the first range that does not end before `begin`, or `count`. */
size_t ibx_frontend_ranges_find(const struct ranges *ranges, uintptr_t begin);
/* The range that begins there, or NULL. */
struct range *ibx_frontend_ranges_at(const struct ranges *ranges, const void *address);
/* The range that holds all n bytes (not 0), or NULL. */
struct range *ibx_frontend_ranges_holding(const struct ranges *ranges, const void *address,
                                          size_t n);
/* 0, -EEXIST where it would overlap another one, -ENOMEM. */
int ibx_frontend_ranges_add(struct ranges *ranges, const struct range *range);
void ibx_frontend_ranges_remove(struct ranges *ranges, struct range *range);

#endif
