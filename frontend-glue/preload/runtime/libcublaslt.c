/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libcublasLt.so.12 and .13, for programs that link or open cuBLASLt where GVirtuS has no front end
 * of it. It has no functions of its own: they are in libibx-frontend.so, on which it depends.
 */

int cublasLtCreate(void **made);

/* Keeps the linker from dropping that dependency. */
__attribute__((visibility("default"))) int (*const ibx_lt_of_remote_gpu)(void **made) =
    cublasLtCreate;
