/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: its lock, the bytes of its memory, and faults that tests ask for. */
#include "tests/doubles/cuda/streams.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
struct allocation *allocations;
__thread struct context *current;
struct ibx_double_stats stats;
static struct {
    char function[32];
    unsigned in;
    int code;
    bool sticky;
} failure;
int sticky_error; /* of all devices, as CUDA's is */

bool fails(const char *function, int *code)
{
    if (!failure.in || strcmp(failure.function, function) != 0 || --failure.in)
        return false;
    *code = failure.code;
    if (failure.sticky)
        sticky_error = failure.code;
    return true;
}

int sticky(void)
{
    return sticky_error;
}

static unsigned alone;  /* threads that wait for streams, and keep others out, */
static unsigned inside; /* ... whatever the environment has */

void begin_alone(void)
{
    alone += getenv("IBX_DOUBLE_ALONE") != NULL;
}

void end_alone(void)
{
    alone -= alone != 0;
    pthread_cond_broadcast(&changed);
}

void keep_out(bool begins)
{
    inside += begins ? 1 : UINT_MAX;
    pthread_cond_broadcast(&changed);
}

void wait_for_change(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_cond_clockwait(&changed, &mutex, CLOCK_MONOTONIC, &until);
}

int enter(const char *function)
{
    int code = 0;
    pthread_mutex_lock(&mutex);
    while (alone || inside)
        wait_for_change();
    if (fails(function, &code) || sticky() || !current) {
        code = code ? code : sticky() ? sticky() : INVALID_CONTEXT;
        pthread_mutex_unlock(&mutex);
    }
    return code;
}

int leave(int code)
{
    pthread_mutex_unlock(&mutex);
    return code;
}

struct allocation *find(const void *address, size_t n)
{
    uintptr_t at = (uintptr_t)address;
    for (struct allocation *a = allocations; a; a = a->next) {
        uintptr_t from = (uintptr_t)a->address;
        if (from && at >= from && at - from < a->size && n <= a->size - (at - from))
            return a->reserved && !virtual_is_there(a, at - from, n) ? NULL : a;
    }
    return NULL;
}

uint8_t *device_bytes(uint64_t device, size_t n)
{
    struct allocation *a = find((void *)(uintptr_t)device, n);
    return a && a->device >= 0 ? a->bytes + ((uintptr_t)device - (uintptr_t)a->address) : NULL;
}

EXPORT bool ibx_double_peek(uint64_t device, void *to, size_t n)
{
    pthread_mutex_lock(&mutex);
    const uint8_t *bytes = device_bytes(device, n);
    if (bytes)
        memcpy(to, bytes, n);
    return !leave(!bytes);
}

EXPORT bool ibx_double_poke(uint64_t device, const void *from, size_t n)
{
    pthread_mutex_lock(&mutex);
    uint8_t *bytes = device_bytes(device, n);
    if (bytes)
        memcpy(bytes, from, n);
    return !leave(!bytes);
}

EXPORT void ibx_double_get_stats(struct ibx_double_stats *out)
{
    pthread_mutex_lock(&mutex);
    *out = stats;
    for (const struct allocation *a = allocations; a; a = a->next)
        out->allocations += a->address && a->device >= 0 && !a->reserved;
    for (struct stream *s = streams; s; s = s->next) {
        const unsigned long queued = s->submitted - s->done;
        out->streams += s->number >= FIXED && s->used && !s->urgent; /* one of the plugin's */
        out->queued = queued > out->queued ? queued : out->queued;
    }
    leave(0);
}

/* For the runtime's own calls. */
EXPORT bool ibx_double_fails(const char *function, int *code)
{
    pthread_mutex_lock(&mutex);
    return leave(fails(function, code));
}

EXPORT void ibx_double_inject(const char *function, unsigned in, int code, bool sticky)
{
    pthread_mutex_lock(&mutex);
    failure.in = function ? in : 0;
    failure.code = code;
    failure.sticky = sticky;
    if (function)
        strncpy(failure.function, function, sizeof(failure.function) - 1);
    else
        sticky_error = 0;
    leave(0);
}
