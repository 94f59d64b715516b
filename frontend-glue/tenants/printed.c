/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/tenants/printed.h"

#include "frontend-glue/tenants/tenants.h"
#include "gpudirect/cuda.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT    ((size_t)1 << 20) /* bytes that nobody has taken: as many as the driver keeps */
#define CLIENTS 64u               /* that ask at a time */
#define FRAMES  16                /* of the stack that are looked at */
#define PASSED  4u                /* libraries between the driver and write_printed() */

static struct {
    pthread_mutex_t lock;
    FILE *output; /* the process's own; NULL: it is `stdout` still */
    uint64_t clients[CLIENTS];
    bool told[CLIENTS]; /* of these clients: it is told when there is output */
    unsigned count;
    uint64_t owner; /* the client that may take the bytes */
    uint8_t *bytes; /* KEPT bytes */
    size_t begin, end;
    const void *driver, *passed[PASSED]; /* load addresses of these libraries */
} printed = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_bool anybody_told; /* a client was to be told at some time */

/* The load address of the library with that address in it; NULL: none. */
static const void *library_of(const void *address)
{
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fbase : NULL;
}

/* Whether the driver writes, and not GVirtuS, which uses printf in some places. */
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

/* Locked. Keeps the bytes for the client. False: they do not fit, or belong to nobody, and go to
 * the output. */
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

/* The library with that function in it. */
static const void *library_with(void (*function)(void))
{
    return library_of((const void *)(uintptr_t)function);
}

/* fputs and fwrite may be a sanitizer's functions instead of libc's. The first call of backtrace(3)
 * allocates memory, so it is made here. */
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

/* Locked. Replaces `stdout`. GVirtuS's own C++ streams keep the former FILE. */
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

/* Locked; there is room. */
static void add(uint64_t client)
{
    printed.clients[printed.count] = client;
    printed.told[printed.count] = false;
    printed.count++;
}

size_t ibx_printed_take(uint64_t client, uint8_t *to, size_t most)
{
    size_t n = 0;
    pthread_mutex_lock(&printed.lock);
    if (begin() && find(client) == printed.count && printed.count < CLIENTS)
        add(client);
    if (printed.owner == client) {
        n = printed.end - printed.begin < most ? printed.end - printed.begin : most;
        memcpy(to, printed.bytes + printed.begin, n);
        printed.begin += n;
    }
    pthread_mutex_unlock(&printed.lock);
    return n;
}

void ibx_printed_tell(uint64_t client)
{
    pthread_mutex_lock(&printed.lock);
    const unsigned i = find(client);
    if (i < printed.count)
        printed.told[i] = true;
    atomic_store(&anybody_told, true);
    pthread_mutex_unlock(&printed.lock);
}

bool ibx_printed_anybody_told(void)
{
    return atomic_load_explicit(&anybody_told, memory_order_relaxed);
}

bool ibx_printed_told(uint64_t client, bool *some)
{
    pthread_mutex_lock(&printed.lock);
    const unsigned i = find(client);
    const bool told = i < printed.count && printed.told[i];
    *some = printed.owner == client && printed.begin < printed.end;
    pthread_mutex_unlock(&printed.lock);
    return told;
}

void ibx_printed_end(uint64_t client)
{
    pthread_mutex_lock(&printed.lock);
    const unsigned i = find(client);
    if (i < printed.count) {
        printed.count--;
        printed.clients[i] = printed.clients[printed.count];
        printed.told[i] = printed.told[printed.count];
    }
    if (printed.owner == client) {
        printed.owner = 0;
        printed.begin = printed.end = 0;
    }
    pthread_mutex_unlock(&printed.lock);
}
