/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libcuda.so.1, for programs that are linked with the driver's library, or open it: all of its
 * functions are those of libibx-frontend.so, which it needs.
 */

int cuInit(unsigned flags);

/* Tells this library from NVIDIA's. Without this reference the linker would leave out
 * libibx-frontend.so. */
__attribute__((visibility("default"))) int (*const ibx_driver_of_remote_gpu)(unsigned flags) =
    cuInit;
