/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches, and modules with their kernels and variables.
 *
 *   kernels.c        launches without GVirtuS's front end
 *   launch.c         the launch calls of nvcc 13, and launches with attributes
 *   fat_binaries.c   modules, as nvcc's code registers them
 *   variables.c      variables of the device, as nvcc's code registers them
 *   managed_variables.c  variables that are declared __managed__
 *   child_modules.c  modules of forked children
 *   images.c         reads the images of a module
 *   compressed_images.c  decompresses them
 *
 * The files but the last two call each other in circles. A module may be registered with GVirtuS
 * only when it is needed, and a forked child registers its parent's: so whoever uses a kernel or a
 * variable calls child_modules.c first, which has fat_binaries.c decompress a module, and tells
 * kernels.c and variables.c what is gone or has become the child's own. variables.c notes kernels
 * in kernels.c, which tells it and managed_variables.c that a module is unloaded. launch.c has
 * kernels.c make the launches of its calls, for which kernels.c uses functions of launch.c.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_KERNELS_KERNELS_H
#define IBX_FRONTEND_GLUE_PRELOAD_KERNELS_KERNELS_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------- launch.c */

typedef int (*ibx_frontend_launcher)(void *kernel, struct dim3 grid, struct dim3 block,
                                     void **arguments, size_t shared, void *stream);
/* GVirtuS's cudaLaunchKernel, or NULL. */
ibx_frontend_launcher ibx_frontend_plain_launch(void);
/* Whether the launch that the thread begins is by <<<>>>, whose result the program does not see.
 * Resets that. */
bool ibx_frontend_launch_unseen(void);
struct ibx_frontend_calls;
/* Launches through the plugin by GVirtuS's function. False: it threw an exception, which would
 * otherwise end the program. */
bool ibx_frontend_launch_caught(const struct ibx_frontend_calls *calls,
                                const struct launch_config *config, const void *function,
                                void **arguments, int *rc);
/* GVirtuS's front end keeps kernels and their arguments in maps without a lock, since nvcc's code
 * registers them before main() or under the loader's lock. Threads that load libraries, and those
 * that look at what it writes for a launch, take this one. */
void ibx_frontend_gvirtus_maps_lock(void);
void ibx_frontend_gvirtus_maps_unlock(void);

/* The body of a launch without attributes, as GVirtuS's front end writes it, valid until the
 * thread's next call; NULL: *rc is the error, cudaErrorNotSupported if it is too long to be kept.
 */
const void *ibx_frontend_launch_body(const struct launch_config *config, const void *function,
                                     void **arguments, size_t *n, int *rc);
/* A launch as an extension request, with its attributes. */
int ibx_frontend_launch_ours(const struct launch_config *config, const void *function,
                             void **arguments);

/* ------------------------------------------------------------------------------------ kernels.c */

/* A launch without attributes. `unseen`: by <<<>>>. */
int ibx_frontend_launch(const void *function, const struct launch_config *config, void **arguments,
                        bool unseen);
/* The function was registered as a kernel; `name` NULL: its name is unknown. */
void ibx_frontend_kernel_registered(const void *function, const char *name);
/* Its name is no longer valid. */
void ibx_frontend_kernel_gone(const void *function);
/* The name of a kernel; NULL: not registered, or its name is unknown. */
const char *ibx_frontend_name_of_kernel(const void *function);
/* CUDA's error for a function that was never registered as a kernel, in a program with kernels;
 * else 0. GVirtuS's front end (G5) would end the program. For addresses that are no functions of
 * the program GVirtuS decides. */
int ibx_frontend_no_kernel(const void *function);
/* Changes when modules are unloaded: other kernels may get their addresses. */
unsigned ibx_frontend_modules_gone(void);
/* Prepares what the first launches need, which would take the first one 0.1 ms. */
void ibx_frontend_kernels_prepare(void);
/* Appends the body of a launch to a request, which the caller then frees. Otherwise returns the
 * error of the call. */
int ibx_frontend_put_launch(struct extension_request *e, const struct launch_config *config,
                            const void *function, void **arguments);
/* A module was registered whose kernels' arguments GVirtuS may not know. */
void ibx_frontend_kernels_unknown(void);
/* Finds a kernel's arguments in n bytes: `arguments` (may be NULL) gets a pointer to each; *count:
 * room for pointers, then their number. False: unknown, or they need more bytes. */
bool ibx_frontend_kernel_arguments(const void *function, uint8_t *bytes, size_t n, void **arguments,
                                   size_t *count);
/* The 8-byte name by which requests identify a kernel (false: unknown), and the kernel of a name;
 * if there is none, the name is its address. */
const void *ibx_frontend_kernel_of_name(uint64_t name);
bool ibx_frontend_kernel_name(const void *function, uint8_t name[8]);

/* ------------------------------------------------------------------------------- fat_binaries.c */

/* The architectures of all devices of the back end, which is asked once; none: it does not say. */
struct ibx_image_targets;
const struct ibx_image_targets *ibx_frontend_targets(void);
/* What __cudaRegisterFatBinary() does, at once. NULL also if the back end is gone. */
void **ibx_frontend_register_module(void *wrapper);
struct ibx_image_wrapper;
/* The module of a wrapper, decompressed; NULL: it is not compressed. */
struct ibx_image_wrapper *ibx_frontend_expand_module(const void *wrapper);
/* The module was registered: notes what its kernels need. */
void ibx_frontend_module_begins(const void *wrapper);

/* ------------------------------------------------------------------------------ child_modules.c */

/* What nvcc's code registers: a module, with the handle that GVirtuS returned, and its functions
 * and variables. `expanded`: the wrapper is this one, which was decompressed; or NULL. */
void ibx_frontend_module_registered(void *wrapper, void **handle,
                                    struct ibx_image_wrapper *expanded);
/* Instead: the module is registered when it is needed, and the wrapper is its handle. False: there
 * is no memory. */
bool ibx_frontend_module_deferred(void *wrapper);
/* *there: GVirtuS's handle of a module. False: it is not registered with GVirtuS yet, or was
 * refused. */
bool ibx_frontend_module_there(void **handle, void ***there);
/* The same, but registers it first. */
bool ibx_frontend_module_now(void **handle, void ***there);
/* To be called before a request that names this kernel: registers its module. Quick if there is
 * none to be registered. */
void ibx_frontend_module_needed(const void *function);
void ibx_frontend_module_function(void **handle, const char *function, char *device_function,
                                  const char *name, int thread_limit);
void ibx_frontend_module_variable(void **handle, char *symbol, char *address, const char *name,
                                  int external, size_t n, int constant, int global);
/* The module also has __managed__ variables, which GVirtuS does not know. */
void ibx_frontend_module_managed(void **handle);
/* The module is unloaded. Returns its handle in GVirtuS, and `expanded`. */
void **ibx_frontend_module_gone(void **handle, struct ibx_image_wrapper **expanded);
/* The parameters of a kernel, from the image in the program: see images.h. */
struct ibx_image_parameter;
struct ibx_image_parameter *ibx_frontend_module_parameters(const void *function, size_t *count);
/* To be called before kernels and variables are used: a forked child registers them as its own.
 * Returns at once, except for the first time in a child. */
void ibx_frontend_own_modules(void);

/* ---------------------------------------------------------------------------------- variables.c */

/* The place of a variable. False: it was not registered here, or the back end cannot be asked. */
bool ibx_frontend_variable(const void *symbol, struct place *where, int *rc);
/* The variable in which the address is, if the program has asked where that is. */
bool ibx_frontend_variable_at(const void *address, struct range *range);
/* Whether the program has registered variables, and `symbol` is none of them. */
bool ibx_frontend_no_variable(const void *symbol);
/* Notes a __managed__ variable of n bytes in a module: *variable is to get its address. */
void ibx_frontend_variable_managed(void **handle, void **variable, const char *name, size_t n);
/* The size of the __managed__ variable at this address; 0: there is none. */
size_t ibx_frontend_managed_size(const void *address);
/* The pointers of all __managed__ variables of a module; the caller frees the array. NULL: there is
 * none, or no memory. */
void ***ibx_frontend_variables_managed(void **handle, size_t *count);
/* A module is unloaded. Returns whether another process may still use it: the parent, a child, or
 * one of theirs. */
bool ibx_frontend_variables_unload(void **handle);
/* A forked child has registered a module of its parent's as its own. */
void ibx_frontend_variables_own(void **handle);
/* A device was reset: variables may have other addresses. */
void ibx_frontend_variables_reset(void);

/* -------------------------------------------------------------------------- managed_variables.c */

/* After a reset: __managed__ variables keep their values, as natively. */
void ibx_frontend_managed_variables_reset(void);
/* A module of the program is unloaded. */
void ibx_frontend_managed_unload(void **module);

#endif
