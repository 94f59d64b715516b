/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libcublasLt.so.12 and .13, for programs that are linked with cuBLASLt, or open it, where GVirtuS
 * has no front end of it: all of its functions are those of libibx-frontend.so, which it needs.
 */

int cublasLtCreate(void **made);

/* Without it the linker would leave the other out. */
__attribute__((visibility("default"))) int (*const ibx_lt_of_remote_gpu)(void **made) =
    cublasLtCreate;
