/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/tenants/printed.h"

#include "frontend-glue/tenants/tenants.h"
#include "gpudirect/cuda.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT    ((size_t)1 << 20) /* bytes, as in the driver's buffer, that nobody has taken */
#define CLIENTS 64u               /* that ask at once; with more of them nobody gets any */
#define FRAMES  16                /* of a stack that are looked at */
#define PASSED  4u                /* libraries between the driver and write_printed() */

static struct {
    pthread_mutex_t lock;
    FILE *output; /* the process's own; NULL: it is `stdout` still */
    uint64_t clients[CLIENTS];
    unsigned count;
    uint64_t owner; /* of the bytes */
    uint8_t *bytes; /* KEPT */
    size_t begin, end;
    const void *driver, *passed[PASSED]; /* where these libraries begin */
} printed = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* NULL: in none. */
static const void *library_of(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* Whether the driver writes, or GVirtuS, which says something by printf here and there. */
static bool is_by_driver(void)
{
    void *frames[FRAMES];
    const int n = backtrace(frames, FRAMES);
    for (int i = 0; i < n; i++) {
        const void *library = library_of(frames[i]);
        bool passed = false;
        for (unsigned k = 0; k < PASSED; k++)
            passed |= library == printed.passed[k];
        if (!passed)
            return library && library == printed.driver;
    }
    return false;
}

/* Locked. What does not fit goes to the output, as do all bytes that are nobody's. */
static bool keep(const char *bytes, size_t n)
{
    if (printed.count != 1 || ibx_tenants_several())
        return false;
    if (printed.owner != printed.clients[0])
        printed.begin = printed.end = 0;
    printed.owner = printed.clients[0];
    if (n > KEPT - printed.end && printed.begin) {
        printed.end -= printed.begin;
        memmove(printed.bytes, printed.bytes + printed.begin, printed.end);
        printed.begin = 0;
    }
    if (n > KEPT - printed.end)
        return false;
    memcpy(printed.bytes + printed.end, bytes, n);
    printed.end += n;
    return true;
}

static ssize_t write_printed(void *cookie, const char *bytes, size_t n)
{
    (void)cookie;
    const bool by_driver = is_by_driver();
    pthread_mutex_lock(&printed.lock);
    if (!by_driver || !keep(bytes, n)) {
        fwrite(bytes, 1, n, printed.output);
        fflush(printed.output);
    }
    pthread_mutex_unlock(&printed.lock);
    return (ssize_t)n;
}

/* Of a function, as dladdr(3) takes it. */
static const void *library_with(void (*function)(void))
{
    return library_of((const void *)(uintptr_t)function);
}

/* A sanitizer's functions are in place of libc's. The first call of backtrace(3) takes memory. */
static void find_libraries(void)
{
    void *frame;
    backtrace(&frame, 1);
    printed.driver = library_of(ibx_cuda_symbol("cuInit"));
    printed.passed[0] = library_of(&printed);
    printed.passed[1] = library_with((void (*)(void))gnu_get_libc_version);
    printed.passed[2] = library_with((void (*)(void))fputs);
    printed.passed[3] = library_with((void (*)(void))fwrite);
}

/* Locked. C++'s streams, with which GVirtuS writes, keep the FILE that was there. */
static bool begin(void)
{
    const cookie_io_functions_t functions = {.write = write_printed};
    FILE *file = printed.output ? NULL : fopencookie(NULL, "w", functions);
    uint8_t *bytes = file ? malloc(KEPT) : NULL;
    if (bytes) {
        setvbuf(file, NULL, _IONBF, 0);
        find_libraries();
        printed.bytes = bytes;
        printed.output = stdout;
        stdout = file;
    } else if (file) {
        fclose(file);
    }
    return printed.output;
}

/* Locked. */
static unsigned find(uint64_t client)
{
    unsigned i = 0;
    while (i < printed.count && printed.clients[i] != client)
        i++;
    return i;
}

size_t ibx_printed_take(uint64_t client, uint8_t *to, size_t most)
{
    size_t n = 0;
    pthread_mutex_lock(&printed.lock);
    if (begin() && find(client) == printed.count && printed.count < CLIENTS)
        printed.clients[printed.count++] = client;
    if (printed.owner == client) {
        n = printed.end - printed.begin < most ? printed.end - printed.begin : most;
        memcpy(to, printed.bytes + printed.begin, n);
        printed.begin += n;
    }
    pthread_mutex_unlock(&printed.lock);
    return n;
}

void ibx_printed_end(uint64_t client)
{
    pthread_mutex_lock(&printed.lock);
    const unsigned i = find(client);
    if (i < printed.count)
        printed.clients[i] = printed.clients[--printed.count];
    if (printed.owner == client) {
        printed.owner = 0;
        printed.begin = printed.end = 0;
    }
    pthread_mutex_unlock(&printed.lock);
}
