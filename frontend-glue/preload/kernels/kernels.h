/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Launches; modules, with their kernels and variables.
 *
 *   kernels.c        launches without GVirtuS's front end
 *   launch.c         kernels launched by code of nvcc 13, or with attributes
 *   fat_binaries.c   modules, as nvcc's code registers them
 *   variables.c      variables of the device, as it registers them
 *   managed_variables.c  ... those that are declared __managed__
 *   child_modules.c  modules of forked children
 *   images.c         what is in the image of a module
 *   compressed_images.c  what nvcc has compressed
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_KERNELS_KERNELS_H
#define IBX_FRONTEND_GLUE_PRELOAD_KERNELS_KERNELS_H

#include "frontend-glue/preload/preload.h"

/* ------------------------------------------------------------------------------------- launch.c */

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
/* launch.c: a launch in a request of our own, with the attributes that there are. */
int ibx_frontend_launch_ours(const struct launch_config *config, const void *function,
                             void **arguments);

/* ------------------------------------------------------------------------------------ kernels.c */

/* A launch without attributes. `unseen`: by <<<>>>. */
int ibx_frontend_launch(const void *function, const struct launch_config *config, void **arguments,
                        bool unseen);
/* The function has been registered as a kernel; NULL: its name is not known here. */
void ibx_frontend_kernel_registered(const void *function, const char *name);
/* Its name is no more. */
void ibx_frontend_kernel_gone(const void *function);
/* NULL: it was not, or its name is not known. */
const char *ibx_frontend_name_of_kernel(const void *function);
/* What CUDA returns for one of a program's with kernels that never was. Of what is no function of
 * it GVirtuS decides; in its front end (G5) an unknown one ends the program. */
int ibx_frontend_no_kernel(const void *function);
/* Another number than before: modules have gone, and other kernels may have their addresses. */
unsigned ibx_frontend_modules_gone(void);
/* What the first launches need; 0.1 ms, which the first one would take otherwise. */
void ibx_frontend_kernels_prepare(void);
/* Adds a launch's body to a request, which is to be freed; otherwise what the call is to return. */
int ibx_frontend_put_launch(struct own_request *e, const struct launch_config *config,
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

/* ------------------------------------------------------------------------------ child_modules.c */

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

/* ---------------------------------------------------------------------------------- variables.c */

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

/* -------------------------------------------------------------------------- managed_variables.c */

/* Behind that: variables have their bytes, as natively. */
void ibx_frontend_managed_variables_reset(void);
/* A module of the program's goes. */
void ibx_frontend_managed_unload(void **module);

#endif
