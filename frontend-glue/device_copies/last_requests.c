/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/device_copies/last_requests.h"

#include "frontend-glue/device_copies/copies.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char unload[] = "cudaUnregisterFatBinary";

struct ibx_last_requests {
    struct copies x; /* of no session: what guards handlers */
    uint8_t bytes[sizeof(unload) + 3 * 8 + IBX_FUNCTIONS_MODULE];
    size_t length, at;
    bool runs; /* its handler does */
};

struct ibx_last_requests *ibx_last_requests_create(void)
{
    return calloc(1, sizeof(struct ibx_last_requests));
}

/* False: there is none. */
static bool next(struct ibx_last_requests *last)
{
    char module[IBX_FUNCTIONS_MODULE];
    const size_t n = ibx_functions_next_over(module);
    struct ibx_writer w = ibx_writer_of(last->bytes, sizeof(last->bytes));
    ibx_put_bytes(&w, unload, sizeof(unload));
    ibx_put_u64(&w, 2 * 8 + n);
    ibx_put_u64(&w, n);
    ibx_put_u64(&w, n);
    ibx_put_bytes(&w, module, n);
    last->length = w.length;
    last->at = 0;
    return n;
}

/* As for a client's own (device_copies.c), beside no reset of the context. */
static void run(struct ibx_last_requests *last)
{
    while (!ibx_clients_give_begin())
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ibx_frees_begin(&last->x, 0);
    last->x.handler.registrations = REGISTRATIONS_CHANGED;
    ibx_registrations_begin(&last->x);
    last->runs = true;
}

void ibx_last_requests_answered(struct ibx_last_requests *last)
{
    if (!last || !last->runs)
        return;
    last->runs = false;
    ibx_registrations_end(&last->x);
    ibx_frees_unloaded();
    ibx_frees_end();
    ibx_clients_give_end();
    ibx_copies_launch_forget();
}

size_t ibx_last_requests_read(struct ibx_last_requests *last, void *buffer, size_t n)
{
    ibx_last_requests_answered(last);
    if (last->at == last->length && !next(last))
        return 0;
    if (n > last->length - last->at)
        return 0;
    memcpy(buffer, last->bytes + last->at, n);
    last->at += n;
    if (last->at == last->length)
        run(last);
    return n;
}

void ibx_last_requests_destroy(struct ibx_last_requests *last)
{
    ibx_last_requests_answered(last);
    free(last);
}
