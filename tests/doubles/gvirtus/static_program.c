/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program with a statically linked CUDA runtime. "reaches": its calls reach the remote GPU. "no
 * new code": they also do when the program is run again where memory cannot become executable. "by
 * its loader": the same when it is run by a loader that is called by name. Without these words it
 * fails if its calls reach the GPU. NO_KERNELS: it has nothing to do with CUDA. ALLOCATOR: it has
 * an allocator of its own, which the C library and other libraries call. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef PR_SET_MDWE /* Linux 6.3 */
#define PR_SET_MDWE              65
#define PR_MDWE_REFUSE_EXEC_GAIN 1UL
#endif

#ifdef ALLOCATOR /* of a sanitizer there would be two */
#define SEEN __attribute__((visibility("default")))
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *block, size_t n);
void __libc_free(void *block);

SEEN void *malloc(size_t n)
{
    return __libc_malloc(n);
}

SEEN void *calloc(size_t n, size_t size)
{
    return __libc_calloc(n, size);
}

SEEN void *realloc(void *block, size_t n)
{
    return __libc_realloc(block, n);
}

SEEN void free(void *block)
{
    __libc_free(block);
}
#endif

int static_calls(void); /* static_calls.c */
#ifdef NO_KERNELS
int static_calls(void)
{
    return errno ? 0 : 35;
}
#endif

int main(int count, char **arguments)
{
    const char *how = count > 1 ? arguments[1] : "";
    const int reaches = !strcmp(how, "reaches");
    Dl_info loader;
    if (!strcmp(how, "no new code") &&
        (!prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0UL, 0UL, 0UL) || errno == EINVAL))
        execl(arguments[0], arguments[0], "reaches", NULL);
    if (!strcmp(how, "by its loader") && dladdr((void *)getauxval(AT_BASE), &loader) &&
        !setenv("ASAN_OPTIONS", "detect_leaks=0",
                1)) /* what such a loader has it takes for leaks */
        execl(loader.dli_fname, loader.dli_fname, arguments[0], "reaches", NULL);
    return static_calls() != (reaches ? 0 : 35);
}
