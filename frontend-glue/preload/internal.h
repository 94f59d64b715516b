/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files of libibx-frontend.so. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_INTERNAL_H
#define IBX_FRONTEND_GLUE_PRELOAD_INTERNAL_H

#include "common/wire.h"
#include "frontend-glue/preload/exported.h"

#include <limits.h>
#include <link.h>
#include <stdatomic.h>

#define EXTRA_MAX 1950u /* bytes of a request of our own that go in one piece */

/* ------------------------------------------------------------------------ gvirtus.c */

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
/* Says once that the program has NVIDIA's, at that path, instead. */
void ibx_frontend_tell_of_nvidias(const char *path);
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

/* ------------------------------------------------------------------------- extra.c */

/* A request of our own: its body, which begins with the number. */
struct extra {
    const char *name; /* of the request */
    const char *call; /* as the application knows it */
    struct ibx_writer body;
    void *more; /* where the body is if it does not fit here; NULL: it does */
    uint8_t bytes[EXTRA_MAX];
};
void ibx_frontend_extra_begin(struct extra *extra, enum ibx_extra number, const char *call);
/* Of that node, in what can be launched or (NULL) in the graph. */
void ibx_frontend_node_begin(struct extra *extra, enum ibx_extra number, const char *call,
                             const void *exec, const void *node);
/* Room for n bytes more; false: there is no memory. Behind that, in the end, _free(). */
bool ibx_frontend_extra_room(struct extra *extra, size_t n);
void ibx_frontend_extra_free(struct extra *extra);
/* Makes it: what the call returns, which cudaGetLastError() returns as well if it is an error. A
 * success has put `n` bytes into `out`. */
int ibx_frontend_extra(const struct extra *extra, void *out, size_t n);
/* The same; false: the back end does not know it, and GVirtuS may. */
bool ibx_frontend_extra_known(const struct extra *extra, void *out, size_t n, int *rc);
/* The same for one that is answered by one number. */
int ibx_frontend_extra_ask(const struct extra *extra, uint64_t *answer);
/* The same without a word of its own. False: nothing was done. *code: what the back end answered,
 * negative where it does not know the request. */
bool ibx_frontend_extra_try(const struct extra *extra, void *out, size_t n, int *code);
/* Makes a connection of the calling thread, which only a call of GVirtuS's can. */
void ibx_frontend_connect(void);

/* ------------------------------------------------------------------------- math_settings.c */

/* Before that is destroyed: another one may have its number. */
void ibx_math_settings_stream_ends(uint64_t stream);

/* ------------------------------------------------------------------------ launch.c */

typedef int (*ibx_frontend_launcher)(void *kernel, struct dim3 grid, struct dim3 block,
                                     void **arguments, size_t shared, void *stream);
/* GVirtuS's cudaLaunchKernel, or NULL. */
ibx_frontend_launcher ibx_frontend_plain_launch(void);

/* Whether the thread's launch that begins is one of <<<>>>: nobody sees what it returns. Once. */
bool ibx_frontend_launch_unseen(void);

struct ibx_frontend_calls;
/* That, called by the plugin. False: it has thrown an exception, which would end the program. */
bool ibx_frontend_launch_caught(const struct ibx_frontend_calls *calls,
                                const struct launch_config *config, const void *function,
                                void **arguments, int *rc);

/* The body of a plain launch, as GVirtuS's front end writes it, until the thread's next call; NULL:
 * *rc is the error, cudaErrorNotSupported where it is too long to be kept. */
const void *ibx_frontend_launch_body(const struct launch_config *config, const void *function,
                                     void **arguments, size_t *n, int *rc);

/* ----------------------------------------------------------------------- printed.c */

/* A call that waits is over: what kernels have printed appears. */
void ibx_frontend_printed(void);
/* Kernels of the program's may print: the back end keeps that from the first launch on. */
void ibx_frontend_prints(void);
/* GVirtuS has returned `rc` for a call that waits for the stream (0: all streams): returns that, or
 * the error of a background copy, which appears then. */
int ibx_frontend_waited(int rc, uint64_t stream);
/* Waits for kernels, if some may print, and for what they print. */
void ibx_frontend_print_all(void);

/* ----------------------------------------------------------------------- kernels.c */

/* launch.c: a launch in a request of our own, with the attributes that there are. */
int ibx_frontend_launch_ours(const struct launch_config *config, const void *function,
                             void **arguments);
/* A launch without attributes. `unseen`: by <<<>>>. */
int ibx_frontend_launch(const void *function, const struct launch_config *config, void **arguments,
                        bool unseen);

/* The function has been registered as a kernel; NULL: its name is not known here. */
void ibx_frontend_kernel_registered(const void *function, const char *name);
/* Its name is no more. */
void ibx_frontend_kernel_gone(const void *function);
/* NULL: it was not, or its name is not known. */
const char *ibx_frontend_name_of_kernel(const void *function);
/* Whether another one has the same name. */
bool ibx_frontend_name_is_shared(const void *function);
/* What CUDA returns for one of a program's with kernels that never was. Of what is no function of
 * it GVirtuS decides; in its front end (G5) an unknown one ends the program. */
int ibx_frontend_no_kernel(const void *function);
/* Another number than before: modules have gone, and other kernels may have their addresses. */
unsigned ibx_frontend_modules_gone(void);
/* What the first launches need; 0.1 ms, which the first one would take otherwise. */
void ibx_frontend_kernels_prepare(void);

/* Adds a launch's body to a request, which is to be freed; otherwise what the call is to return. */
int ibx_frontend_put_launch(struct extra *e, const struct launch_config *config,
                            const void *function, void **arguments);
/* A module is registered of whose kernels GVirtuS may not know the arguments. */
void ibx_frontend_kernels_unknown(void);
/* Where the arguments of that kernel are in n bytes of them: as many pointers as there is room for,
 * NULL: none. *count: how many there are. False: nobody can tell, or they are more bytes. */
bool ibx_frontend_kernel_arguments(const void *function, uint8_t *bytes, size_t n, void **arguments,
                                   size_t *count);
/* By which requests name that kernel; false: nobody can tell. And which one has a name: where that
 * is not known, the name is its address. */
const void *ibx_frontend_kernel_of_name(uint64_t name);
bool ibx_frontend_kernel_name(const void *function, uint8_t name[8]);

/* ------------------------------------------------------------------ child_modules.c */

struct ibx_image_wrapper;
/* What nvcc's code registers: a module, whose handle GVirtuS has returned, and what is in it. The
 * wrapper is `expanded`, if that is not NULL. */
void ibx_frontend_module_registered(void *wrapper, void **handle,
                                    struct ibx_image_wrapper *expanded);
void ibx_frontend_module_function(void **handle, const char *function, char *device_function,
                                  const char *name, int thread_limit);
void ibx_frontend_module_variable(void **handle, char *symbol, char *address, const char *name,
                                  int external, size_t n, int constant, int global);
/* It also has variables that are declared __managed__, which GVirtuS is not told of. */
void ibx_frontend_module_managed(void **handle);
/* It is no more: the handle by which GVirtuS knows it, and `expanded`. */
void **ibx_frontend_module_gone(void **handle, struct ibx_image_wrapper **expanded);
/* The parameters of that kernel, as the program's code has them: images.h. */
struct ibx_image_parameter;
struct ibx_image_parameter *ibx_frontend_module_parameters(const void *function, size_t *count);
/* Before kernels and variables are used: a forked child registers them as its own. Quick, but for
 * the first time in a child. */
void ibx_frontend_own_modules(void);

/* ---------------------------------------------------------------------- variables.c */

/* Of the current device. */
struct place {
    uint64_t at;
    size_t n;
};
/* Where a variable is. False: it was not registered here, or the back end cannot be asked for it.
 */
bool ibx_frontend_variable(const void *symbol, struct place *where, int *rc);
/* Whether the program has registered variables, and this is none. */
bool ibx_frontend_no_variable(const void *symbol);
/* One of that module's is declared __managed__, of n bytes: its address is to be in *variable. */
void ibx_frontend_variable_managed(void **handle, void **variable, const char *name, size_t n);
/* The bytes of the one that begins there; 0: there is none. */
size_t ibx_frontend_managed_size(const void *address);
/* All these of a module; NULL: there is none, or no memory. To be freed. */
void ***ibx_frontend_variables_managed(void **handle, size_t *count);
/* The module is no more. Whether another process may have it: the parent, children, or theirs. */
bool ibx_frontend_variables_unload(void **handle);
/* A child has registered a module of its parent's as its own. */
void ibx_frontend_variables_own(void **handle);
/* A device was reset. */
void ibx_frontend_variables_reset(void);

/* --------------------------------------------------------------------- libraries.c */

/* The library that has this kernel; NULL: it is the program's own, or none. */
void *ibx_frontend_library_of(const void *kernel);

/* ------------------------------------------------------------------- lone_variables.c */

/* The memory of a variable of n bytes on the current device: that of one in a library without
 * kernels, whose images are those of a fat binary of `size` bytes. *all: its memory on each device.
 */
struct lone_variable;
int ibx_frontend_lone_variable(struct lone_variable **all, const uint8_t *fat, size_t size,
                               const char *name, size_t n, void **address);
void ibx_frontend_lone_variables_end(struct lone_variable *all);

/* --------------------------------------------------------------- loaded_libraries.c */

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

/* ---------------------------------------------------------------- local_libraries.c */

/* Has libraries of NVIDIA's that call this host's driver find no GPU. */
void ibx_frontend_hide_local_gpus(void);
/* The same when others have been loaded since the last call. */
void ibx_frontend_look_for_libraries(void);

/* ------------------------------------------------------------------------- streams.c */

/* A copy within the device, in the order of the stream, or of the graph that the stream is captured
 * for. False: the back end does not know such a request. */
bool ibx_frontend_planes_in_stream(const struct ibx_cuda_memcpy3d *copy, void *stream, int *rc);
/* Elements of 2 or 4 bytes in the order of a stream that is not captured. False likewise. */
bool ibx_frontend_set_elements(const struct ibx_cuda_memset *set, void *stream, int *rc);

/* ---------------------------------------------------------------- visible_devices.c */

/* A line where the program's CUDA_VISIBLE_DEVICES names GPUs that it does not choose. */
void ibx_frontend_visible_devices(void);

/* ----------------------------------------------------------------- host_functions.c */

/* A function that a stream is to wait for; one of the two is NULL. */
struct ibx_frontend_host_call {
    void *stream, *argument;
    void (*function)(void *argument);
    void (*callback)(void *stream, int status, void *argument);
};
/* What the call of that name returns. */
int ibx_frontend_host_enqueue(const struct ibx_frontend_host_call *wish, const char *name);
/* Whether functions of the application's are outstanding, that a stream has still to wait for. */
bool ibx_frontend_host_functions(void);
/* Before the calling thread waits for a stream, or for all: a mark. Behind that: whether functions
 * that were in it at the mark were not called, and never are. */
uint64_t ibx_frontend_host_enqueued(void);
/* The number of a function that graphs call, and the queue that has it; 0: there is no memory, or
 * the back end knows no functions. It is the same for the same two, and never given back. */
uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue);
/* The function of such a number; false: there is none. */
bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host);
/* launch(exec, stream), by which these functions are outstanding. */
int ibx_frontend_host_launch(const uint64_t *numbers, size_t count, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec);
bool ibx_frontend_host_lost(uint64_t mark, bool all, const void *stream);
/* The same for the wait for an event, which was recorded in the stream. */
void ibx_frontend_host_event(void *event, void *stream);
bool ibx_frontend_host_event_lost(const void *event);
/* Whether there are some in that stream that have not returned. */
bool ibx_frontend_host_waits(const void *stream);
/* The same, also when the first of them was waited for so long. */
bool ibx_frontend_host_in_stream(const void *stream, unsigned ms);
/* Whether any that are outstanding are never called, in whatever stream. */
bool ibx_frontend_host_gone(void);
/* A device was reset: those that are outstanding are so no more. */
void ibx_frontend_host_reset(void);

/* ------------------------------------------------------------------------- captures.c */

/* One is about to be begun; one is over, or was not begun. */
void ibx_frontend_capture_begins(void);
void ibx_frontend_capture_gone(void);
/* The same of one of a thread's own stream, which had no work before if it has `rested`. The lock
 * of ranges is held. */
void ibx_frontend_thread_capture_begins(bool rested);
void ibx_frontend_thread_capture_ends(bool rested);
/* A device was reset: none of this process's is left. capture_graphs.c. */
void ibx_frontend_captures_reset(void);
/* cudaStreamDestroy, with the capture of the stream. capture_graphs.c. */
int ibx_frontend_stream_destroy(void *stream);
/* Whether the stream is being captured; quick while this process captures nothing. */
bool ibx_frontend_captures(void *stream);
/* Whether this process captures any. */
bool ibx_frontend_capturing(void);
/* What a stream that is captured takes: a function; a copy of which one side is the host's. */
int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument);
int ibx_frontend_capture_copy(const struct ibx_cuda_memcpy3d *copy, void *stream);

/* --------------------------------------------------------------------------- own_streams.c */

/* The stream is about to be destroyed: the flags with which it was made; false: not by this
 * process. And where it is not: it is there still. */
bool ibx_frontend_stream_gone(const void *stream, unsigned *flags);
void ibx_frontend_stream_stays(void *stream, unsigned flags);
/* A device was reset. */
void ibx_frontend_streams_reset(void);
/* A thread is about to have work done there. */
void ibx_frontend_stream_used(const void *stream);
/* Likewise: it has waited for its own stream, or (NULL) for the device, and all is over. */
void ibx_frontend_stream_rests(const void *stream);
/* How many threads with such streams have ended; and that what these had there is over. */
unsigned ibx_frontend_threads_ended(void);
void ibx_frontend_threads_rest(unsigned so_far);
/* While streams are being captured: waits for the work of the others that this process has made,
 * and of the legacy one unless a captured stream waits for that. It ends no capture. `all_work`:
 * CUDA_CAPTURE_UNSUPPORTED where threads' own streams may have some that is not waited for. */
int ibx_frontend_streams_rest(bool all_work);
/* captures.c: whether any thread captures its own; how many that had no work before. */
bool ibx_frontend_threads_capture(unsigned *rested);

/* ---------------------------------------------------------------------------- graphs.c */

/* Whether these dependencies, of which each has data (NULL: none has), are as good as usual ones.
 */
bool ibx_frontend_edges_are_known(const void *edges, size_t count);

/* What is launched calls another function from now on, in that node; `before`: that which the node
 * itself calls. What the call returns. */
int ibx_frontend_exec_exchange(const void *exec, const void *node, uint64_t before,
                               uint64_t number);
/* The node itself does: what can be launched already still calls that one. */
void ibx_frontend_execs_keep(const void *node, uint64_t number);

/* ---------------------------------------------------------------------- user_objects.c */

/* What was made of a graph, or has another one in it, has the objects of that, too. */
void ibx_frontend_objects_share(const void *from, const void *to);
/* What can be launched was, or has become like that graph. */
void ibx_frontend_objects_launched(const void *exec, void *stream);
void ibx_frontend_objects_updated(const void *exec, const void *graph);
/* It, or a graph, is about to be destroyed: behind that another one may have its handle. NULL: it
 * has none. Whether it is gone. */
struct holding;
struct holding *ibx_frontend_objects_take(const void *holder);
void ibx_frontend_objects_gone(struct holding *taken, bool gone);

/* ------------------------------------------------------------------ graph_parameters.c */

/* A graph was destroyed: what its nodes have told. */
void ibx_frontend_graph_gone(const void *graph);

/* ---------------------------------------------------------------------- graph_copies.c */

/* A copy from or to memory of the device's that is over when this returns, and that no capture
 * minds. By the one thread that serves accesses to managed memory; the device stays selected there.
 */
int ibx_frontend_copy_beside(void *to, const void *from, size_t n, int kind, int device);
/* The number of a function that makes the copy, as ibx_frontend_host_repeated(); 0: *rc says why
 * not. */
uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *copy, uint64_t *queue, int *rc);
/* Puts a copy of which one side is the host's into a request, to be made by a slot of the back
 * end's: the number of its function; 0: it cannot be made so, and nothing was put. The request:
 * false: the back end has no slot for it, or knows none; otherwise *rc says how it went. */
uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_slot_made(struct extra *extra, void *out, size_t n, int *rc);
/* graph_nodes.c: the same as a graph's only node. */
bool ibx_frontend_slot_node(void **node, void *graph, const struct ibx_cuda_memcpy3d *copy,
                            int *rc);
/* The copy of that function, as the program has said it; false: it is none. */
bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *copy);
/* Whether few bytes from the device are to come with the word that a function is to be called. */
bool ibx_frontend_graph_takes_bytes(void);
/* Whether it is none of the program's. */
bool ibx_frontend_graph_copies(void (*function)(void *argument));
/* Such bytes have come for a function. False: that is none which would take them. */
bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument, uint8_t *bytes,
                               size_t n);
/* A copy of one row between the host's memory and the device in the order of the stream: the call
 * does not wait. Its bytes are read when the stream gets there, or where the call takes them, now;
 * they are few then. False: it cannot be made so, and nothing was done. */
bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *copy, bool takes, void *stream,
                                    int *rc);
/* When there are many such copies, those that are over are given up, but for those in streams that
 * wait for functions, so that there is room for others. */
void ibx_frontend_graph_behind_trim(void);
/* A device was reset. */
void ibx_frontend_graph_reset(void);
/* The error of one that was made in a graph since the last call, or 0. */
int ibx_frontend_graph_failure(void);

/* ------------------------------------------------------------------------- memcpy.c */

/* Before memory of this process is read or written here, in the order of the legacy stream: copies
 * that are under way there and functions of the application's have ended. */
int ibx_frontend_before_host(const void *memory, size_t n);

/* ------------------------------------------------------------------------- ranges.c */

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

/* ------------------------------------------------------------------------- kernel_reach.c */

/* Before a launch: its arguments, as they lie in a kernel's. An error is what it is to return: one
 * of them is in page-locked memory that the kernel would not reach. */
int ibx_frontend_arguments_reach(const void *arguments, size_t n);
/* Before a launch of a graph, whose arguments are not known here: all page-locked memory that
 * kernels have ever reached. As above. */
int ibx_frontend_graph_reach(void);
/* Whether there is page-locked memory at all. Quick. */
bool ibx_frontend_host_any(void);
/* The page-locked memory around that address. 0: kernels reach it, at its own, or there is none.
 * Of an error the first function says what to do, the second which memory it was. */
int ibx_frontend_host_reach(const void *address);
int ibx_frontend_host_try(const void *address, struct range *range);
/* Whether the first one would not fail, as far as is known without asking the back end to have
 * pages of its own there. */
bool ibx_frontend_host_likely(const void *address);
/* Whether what was allocated last was not out of reach. */
bool ibx_frontend_reach_likely(void);
/* host_memory.c: that memory, as far as there is any; and that kernels reach it since an epoch. */
bool ibx_frontend_host_range(const void *address, struct range *range);
void ibx_frontend_host_reached(const struct range *range, unsigned epoch);
/* ... and that it has become managed memory. */
void ibx_frontend_host_in_place(const struct range *range, unsigned forks);
/* Memory that kernels have reached, but not since that epoch. False: there is none. */
bool ibx_frontend_host_lapsed(unsigned epoch, struct range *range);
/* Memory that was allocated, or registered. */
void ibx_frontend_reach_begins(uintptr_t begin, size_t n);
/* Memory that is about to be given back. */
void ibx_frontend_reach_ends(const struct range *range);
/* After cudaDeviceReset. */
void ibx_frontend_reach_reset(void);

/* ------------------------------------------------------------------------- small_memory.c */

#define IBX_FRONTEND_SMALL ((size_t)64 << 10) /* bytes of a piece at most */

/* A piece of page-locked memory for kernels. NULL: it is too long, or there is none. */
void *ibx_frontend_small_take(const struct ibx_frontend_calls *calls, size_t n);
/* Gives it back, which no work of the device's uses any more. False: it was no such piece. */
bool ibx_frontend_small_give(const void *address, size_t n);
/* Kernels do not reach a piece: from now on there are none. */
void ibx_frontend_small_refuse(void);
/* The slab of a piece, of which kernels reach all or nothing; and that they do since an epoch.
 * False: it is none. */
bool ibx_frontend_small_whole(const void *address, struct range *whole);
void ibx_frontend_small_reached(const void *address, unsigned epoch);

/* ------------------------------------------------------------------------- device.c */

/* What cudaMemcpyDefault (or any other kind) means for these two pointers; CUDA_MEMCPY_DEFAULT
 * again where only GVirtuS can tell. */
int ibx_frontend_copy_kind(const void *to, const void *from, int kind);
/* Whether one side of it is the host's; the kind is said then, too. */
bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *copy);
bool ibx_frontend_is_device(const void *address);
/* Whether this process can read the (aligned) eight bytes there. */
bool ibx_frontend_is_readable(const void *address);
/* Whether it was given out as the device's; and this process has nothing there. */
bool ibx_frontend_given_out(const void *address);
bool ibx_frontend_only_device(const void *address);
/* Whether they are more bytes than the allocation of cudaMalloc's that was seen there has. */
bool ibx_frontend_goes_beyond(uintptr_t address, size_t n);
/* On which one it was allocated; the current one if it is not known. */
int ibx_frontend_device_of(const void *address);
int ibx_frontend_current_device(void);
/* Memory of the device that another call than cudaMalloc has returned, and that is no more. */
void ibx_frontend_device_memory(void *address, size_t n);
void ibx_frontend_memory_of(void *address, size_t n, int device);
void ibx_frontend_device_memory_gone(const void *address);
/* Addresses of the device's, which no call frees that frees memory. */
void ibx_frontend_reserved_memory(void *address, size_t n);
bool ibx_frontend_is_reserved(const void *address);
/* The device was reset: it has no memory, nor are addresses reserved that were while it was
 * current. So often so far. */
void ibx_frontend_device_memory_reset(int device);
unsigned ibx_frontend_reserved_resets(void);
/* Around a call that waits for all work as it gives memory back: before it, in a way that lets this
 * process make the copies that graphs wait for; and what it returns, of such copies too. */
void ibx_frontend_before_free(void);
int ibx_frontend_freed(int rc);
/* The calling thread uses the device that it has selected. */
void ibx_frontend_device_used(void);
bool ibx_frontend_device_in_use(int device);
/* The allocation around that address; false: none is known. */
bool ibx_frontend_allocation(const void *address, struct range *range);
/* Whether there was no other one so far. */
bool ibx_frontend_one_device(void);
/* Waits for all work on every device that this process has used. An error: perhaps not for all. */
int ibx_frontend_devices_wait(void);

/* Calls it with every device that this process may use, which is selected then. */
void ibx_frontend_each_device(void (*visit)(int device));

/* --------------------------------------------------------------------------- peers.c */

/* The device was reset, and the access of its kernels to others, and of others to it. */
void ibx_frontend_peers_reset(int device);
/* The thread has selected that device. */
void ibx_frontend_peers_selected(int device);
/* It has managed memory from now on. */
void ibx_frontend_peers_hold(int device);

/* --------------------------------------------------------------------------- pools.c */

/* The device was reset. */
void ibx_frontend_pools_reset(int device);

/* ------------------------------------------------------------------------- owned.c */

/* Of the driver's API: what a context has. */
enum owned_kind {
    OWNED_MEMORY,
    OWNED_HOST,
    OWNED_REGISTERED,
    OWNED_STREAM,
    OWNED_EVENT,
    OWNED_LIBRARY,
    OWNED_ARRAY,
    OWNED_MIPMAP,
    OWNED_TEXTURE,
    OWNED_SURFACE
};
/* It was made on the current device. */
void ibx_frontend_owned(enum owned_kind kind, const void *handle, const void *owner);
/* NULL: no context of the driver's has it. */
const void *ibx_frontend_owner(enum owned_kind kind, const void *handle);
/* It is about to be ended. Quick where there is none. */
void ibx_frontend_owned_gone(enum owned_kind kind, const void *handle);
/* One that the owner has; NULL: none. It is taken out. */
void *ibx_frontend_owned_take(enum owned_kind kind, const void *owner);
/* The device was reset. */
void ibx_frontend_owned_reset(int device);

/* ------------------------------------------------------------------------- arrays.c */

struct ibx_frontend_array {
    const void *array;
    struct ibx_cuda_channel channel;
    struct ibx_cuda_extent extent;
    unsigned flags;
    int device;
};
/* One that there is from now on, until it goes, or the device is reset. */
void ibx_frontend_array_made(const struct ibx_frontend_array *array);
void ibx_frontend_array_gone(const void *array);
/* Bytes of an element; 0: nobody says. *known: this process has made the array, and need not
 * believe the back end, which may say another size each time that it is asked. */
size_t ibx_frontend_array_element(const void *array, bool *known);

/* ------------------------------------------------------------------------- managed.c */

bool ibx_frontend_is_managed(const void *address);
/* cudaFree of managed memory; false: it is none. *rc: an error; or *base is what is to be freed. */
bool ibx_frontend_managed_free(const void *address, void **base, int *rc);
#define IBX_FRONTEND_MAPPED 2u /* cudaHostAllocMapped, cudaHostRegisterMapped */
/* cudaHostAlloc with that flag: the device uses the memory, too. False: it cannot. And cudaFreeHost
 * of it; false: it is none. */
bool ibx_frontend_mapped(void **address, size_t n, unsigned flags, int *rc);
bool ibx_frontend_mapped_free(void *address, int *rc);
/* managed_in_place.c: page-locked memory of allocate()'s becomes managed memory where it is. An
 * error: it stays what it was, and a sentence says why where nobody else does. And it is unmapped,
 * with the pages that the back end has there. */
int ibx_frontend_in_place(const struct range *range);
void ibx_frontend_in_place_end(const struct range *range);
/* After a reset of a device by which those pages may not be pinned any more. */
void ibx_frontend_in_place_again(const struct range *range);
/* The device was reset, with which managed memory goes; behind that variables have their bytes, as
 * natively (managed_variables.c). */
void ibx_frontend_managed_reset(void);
void ibx_frontend_managed_variables_reset(void);
/* Before cudaDeviceReset: variables outlast it, with what the program has written. */
void ibx_frontend_managed_resets(void);
/* A module of the program's goes. */
void ibx_frontend_managed_unload(void **module);
/* Around a launch: whether it is captured, where that makes a difference. */
bool ibx_frontend_managed_captured(void *stream);
void ibx_frontend_managed_launched(void);
/* GVirtuS's front end is about to go: nothing is fetched any more. */
void ibx_frontend_managed_ends(void);
/* Waits for the device where an access to managed memory would wait for it. */
void ibx_frontend_managed_rests(void);

/* managed_hints.c: whether this host has that NUMA node. */
bool ibx_frontend_host_node(int id);

/* ------------------------------------------------------------------------- ipc.c */

/* What other processes have, which give it back. */
enum opened_kind {
    OPENED_MEMORY,
    OPENED_EVENT,
    OPENED_POOL,
    OPENED_POINTER,
    SHARED_EVENT /* of this process's own: ipc.c */
};
bool ibx_frontend_opened(enum opened_kind kind, const void *value);
/* The only device was reset: all of them are closed. */
void ibx_frontend_opened_reset(void);
/* A pool, and memory of one, n bytes: false: no memory. */
bool ibx_frontend_pool_opened(void *pool);
bool ibx_frontend_pointer_opened(void *memory, size_t n);
/* Forgets it; false: it was none. */
bool ibx_frontend_pool_closed(const void *pool);
bool ibx_frontend_pointer_closed(const void *memory);

/* -------------------------------------------------------------------- host_memory.c */

enum host_memory { HOST_PAGEABLE, HOST_REGISTERED, HOST_ALLOCATED };
/* What all these bytes are, for a copy that may stay under way in them. */
enum host_memory ibx_frontend_host_memory(const void *address, size_t n);
/* The device was reset: page-locked memory of its context is freed, or page-locked no more. */
void ibx_frontend_host_memory_reset(int device);
/* Whether all of it is memory that this library has allocated. */
bool ibx_frontend_host_ours(const void *address, size_t n);
/* Whether all of it is mapped here. */
bool ibx_frontend_all_mapped(const void *address, size_t n);
/* Whether it is page-locked: what was the thread's device then, and with which flags. */
bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags);
/* Whether there was an asynchronous copy in memory that holds one of these bytes, or kernels have
 * reached that. */
bool ibx_frontend_host_memory_used(const void *address, size_t n);

#endif
