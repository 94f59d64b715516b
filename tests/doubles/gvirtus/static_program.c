/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with CUDA's runtime in itself. "reaches": its calls do what they are to do, all the
 * same; otherwise it fails unless they do not. With NO_KERNELS it has nothing to do with CUDA. */
#include <errno.h>
#include <string.h>

int static_calls(void); /* static_calls.c */
#ifdef NO_KERNELS
int static_calls(void)
{
    return errno ? 0 : 35;
}
#endif

int main(int count, char **arguments)
{
    const int reaches = count > 1 && !strcmp(arguments[1], "reaches");
    return static_calls() != (reaches ? 0 : 35);
}
