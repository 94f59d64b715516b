/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with kernels, as nvcc makes it with CUDA's runtime in it: it calls no libcudart. With
 * NO_KERNELS one that has nothing to do with CUDA. */
#include <string.h>

#ifdef NO_KERNELS
#define SECTION
#else
#define SECTION __attribute__((section(".nv_fatbin"), used))
#endif

SECTION static const char kernels[16] = "kernels";

int main(void)
{
    return (int)strlen(kernels) != 7;
}
