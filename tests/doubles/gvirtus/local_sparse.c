/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A libcusparse.so.12 that has a function that ibx says is not supported. */

__attribute__((visibility("default"))) int cusparseSbsrxmv(int *count);

int cusparseSbsrxmv(int *count)
{
    *count = 1;
    return 0;
}
