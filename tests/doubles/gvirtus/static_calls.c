/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* As what nvcc makes of a file with kernels: it calls CUDA's runtime, the first time before main(),
 * to register kernels. HOST_ONLY: as what a C compiler makes of a file without kernels. OPENS: it
 * then opens another library, and calls that one. LATE: it may be opened with any errno. RELOCATED:
 * its code has an address in it. ELSEWHERE: none of its files has the runtime. OWN: it has many
 * functions of its own whose names begin as the runtime's, and no kernels; none of these functions
 * is called. */
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define SEEN __attribute__((visibility("default")))

#ifndef HOST_ONLY
__attribute__((section(".nv_fatbin"), used)) static const char kernels[16] = "kernels";
#endif

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **device, size_t n);
int cudaMemcpy(void *to, const void *from, size_t n, int kind);
int cudaFree(void *device);
int cudaNothing(void);
int static_calls(void);
int static_lacks(void);
void *static_memory(void);
int static_takes(void *device);

#ifdef RELOCATED
__asm__(".text\n.balign 8\n.quad static_calls\n");
#endif

#define BYTES 100000

static int devices, registered = -1;

#ifdef ELSEWHERE
void **__cudaRegisterFatBinary(void *module);
#endif

__attribute__((constructor)) static void begin(void)
{
#ifdef LATE
    errno = 0;
#endif
#ifdef ELSEWHERE
    if (devices)
        __cudaRegisterFatBinary((void *)(size_t)kernels);
#elif !defined(OWN)
    registered = errno ? -1 : cudaGetDeviceCount(&devices);
#endif
#ifdef OPENS
    int (*other)(void) = NULL;
    void *library = dlopen(getenv("TEST_STATIC_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (library)
        *(void **)&other = dlsym(library, "static_calls");
    if (!registered)
        registered = other ? other() : -1;
#endif
}

/* Whether the call succeeds, and the device then has these bytes. Frees the memory. */
static int takes(char *back, char byte, void *device)
{
    int rc = cudaMemcpy(back, device, BYTES, 2);
    if (!rc)
        rc = cudaFree(device);
    for (size_t i = 0; i < BYTES && !rc; i++)
        rc = back[i] == byte ? 0 : -1;
    return rc;
}

static int gives(char *there, char byte, void **device)
{
    const int rc = cudaMalloc(device, BYTES);
    memset(there, byte, BYTES);
    return rc ? rc : cudaMemcpy(*device, there, BYTES, 1);
}

/* Memory of the device that another library's functions take. */
SEEN void *static_memory(void)
{
    void *device = NULL;
    char *bytes = malloc(BYTES);
    const int rc = bytes ? gives(bytes, 'm', &device) : -1;
    free(bytes);
    return rc ? NULL : device;
}

SEEN int static_takes(void *device)
{
    char *bytes = malloc(BYTES);
    const int rc = bytes ? takes(bytes, 'm', device) : -1;
    free(bytes);
    return rc;
}

#ifdef OWN
/* Each of these functions adds n. A part of its code adds something else. */
#define ADD(n)                                                                                     \
    value += n;                                                                                    \
    __asm__ volatile("" : "+r"(value))
#define ONE(n)                                                                                     \
    int cudaOwn##n(int);                                                                           \
    __attribute__((visibility("hidden"), noinline)) int cudaOwn##n(int value)                      \
    {                                                                                              \
        ADD(1);                                                                                    \
        ADD(3);                                                                                    \
        ADD(5);                                                                                    \
        ADD(7);                                                                                    \
        ADD(11);                                                                                   \
        ADD(-27);                                                                                  \
        return value + n;                                                                          \
    }
#define TEN(n)                                                                                     \
    ONE(n##0)                                                                                      \
    ONE(n##1) ONE(n##2) ONE(n##3) ONE(n##4) ONE(n##5) ONE(n##6) ONE(n##7) ONE(n##8) ONE(n##9)
TEN(1)
TEN(2)
TEN(3)
TEN(4)
TEN(5)
TEN(6)
TEN(7)
TEN(8)
TEN(9)
TEN(10)
TEN(11)
TEN(12)
TEN(13)
TEN(14)
TEN(15)
TEN(16)
TEN(17)
TEN(18)
TEN(19)
TEN(20)
TEN(21)
TEN(22)
TEN(23)
TEN(24)
TEN(25)

#ifdef __x86_64__ /* a compiler may rely on registers that a function it sees does not use */
__asm__(".text\n.globl cudaOwnLeaf\n.hidden cudaOwnLeaf\n.type cudaOwnLeaf, @function\n"
        "cudaOwnLeaf:\n.rept 32\n\tnop\n.endr\n\tret\n.size cudaOwnLeaf, .-cudaOwnLeaf\n");
#endif

int cudaBeside(int); /* static_runtime.c */
int static_own(void);
SEEN int static_own(void)
{
#ifdef __x86_64__
    long kept;
    __asm__ volatile("subq $128, %%rsp\n\tmovl $77, %%r11d\n\tcall cudaOwnLeaf\n\t"
                     "addq $128, %%rsp\n\tmovq %%r11, %0"
                     : "=r"(kept)
                     :
                     : "r11", "cc", "memory");
    if (kept != 77)
        return -1;
#endif
    return cudaOwn10(1) + cudaOwn99(2) + cudaOwn150(3) + cudaOwn200(4) + cudaOwn259(5) +
           cudaBeside(6);
}
#endif

SEEN int static_calls(void)
{
    char *bytes = malloc(BYTES);
    void *device;
    int rc = bytes ? registered : -1;
    if (!rc)
        rc = gives(bytes, 's', &device);
    if (!rc)
        rc = takes(bytes, 's', device);
    free(bytes);
    return !rc && devices < 1 ? -1 : rc;
}

/* Returns the result of a call that neither GVirtuS nor the preload has. */
SEEN int static_lacks(void)
{
    return cudaNothing();
}
