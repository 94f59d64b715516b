/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/clients/last_requests.h"

#include "frontend-glue/clients/clients.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORK_MS   1000u /* for so long work is waited for */
#define MOMENT_MS 50u   /* ... and for so long, once it was logged that work does not end */

static const char unload[] = "cudaUnregisterFatBinary";

struct ibx_last_requests {
    struct gpu_session x; /* has no session: for the functions that guard handlers */
    uint8_t bytes[sizeof(unload) + 3 * 8 + IBX_FUNCTIONS_MODULE];
    size_t length, at;
    bool runs; /* the request's handler is running */
};

struct ibx_last_requests *ibx_last_requests_create(void)
{
    struct ibx_last_requests *last = calloc(1, sizeof(*last));
    if (last)
        ibx_back_end_own_session(&last->x);
    return last;
}

/* Unloading waits for all work, and meanwhile nobody can register or look up kernels. If there is
 * work that does not end, unloading is left to the next client that ends. */
static bool may_unload(struct gpu_session *x)
{
    static atomic_bool told;
    void *context = NULL;
    uint64_t whose;
    struct ibx_client_name name = {"a client"};
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_get_current(&context) || !context)
        return true;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const enum ibx_work work = ibx_work_wait(x, IBX_CLIENT_NONE, context,
                                             atomic_load(&told) ? MOMENT_MS : WORK_MS, &whose);
    ibx_cuda_capture_restore(x->cuda, mode);
    const bool may = work == IBX_WORK_OVER || work == IBX_WORK_LOST;
    if (atomic_exchange(&told, !may) || may)
        return may;
    ibx_clients_name(whose, &name);
    ibx_log(IBX_LOG_WARN,
            "kernels of clients that have ended stay loaded while work of %s does not end, which "
            "CUDA waits for as it unloads them",
            name.text);
    return false;
}

/* Makes the next request. False: there is none. */
static bool next(struct ibx_last_requests *last)
{
    char module[IBX_FUNCTIONS_MODULE];
    const size_t n =
        ibx_functions_any_over() && may_unload(&last->x) ? ibx_functions_next_over(module) : 0;
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

/* The handler is about to run: as for a client's own request (device_copies.c), and not during a
 * reset of the context. */
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
    ibx_registrations_changed();
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
