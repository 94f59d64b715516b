/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Work that is waited for in vain. This file replaces everything around work_under_way.c. */
#include "frontend-glue/clients/clients.h"
#include "tests/fixtures/unit.h"

#include <stdlib.h>
#include <time.h>

#define CLIENT  7u
#define STREAMS 32000u /* about as many as a tenant may have */

static size_t count; /* of streams */
static bool busy;    /* ... all of them */
static size_t created, alive;
static struct ibx_cuda cuda;
static struct gpu_session x = {.cuda = &cuda};

struct handle **ibx_handles_hold_streams(uint64_t client, const void *context, size_t *n)
{
    (void)client, (void)context;
    struct handle **held = calloc(count + 1, sizeof(*held));
    *n = held ? count : 0;
    for (size_t i = 0; i < *n; i++)
        held[i] = pointer_to(0x600000000000 + i * 0x1a0);
    return held;
}

uint64_t ibx_handles_value(const struct handle *held)
{
    return (uintptr_t)held;
}

uint64_t ibx_handles_client(const struct handle *held)
{
    (void)held;
    return CLIENT;
}

void ibx_handles_release(struct handle **held, size_t n)
{
    (void)n;
    free(held);
}

unsigned ibx_back_end_resets(void)
{
    return 0;
}

bool ibx_back_end_have_cuda(struct gpu_session *session)
{
    (void)session;
    return true;
}

uint64_t ibx_left_work_so_far(void)
{
    return 0;
}

bool ibx_left_work_any(const struct ibx_cuda *of, uint64_t client, uint64_t before)
{
    (void)of, (void)client, (void)before;
    return false;
}

bool ibx_left_work_in_legacy(const struct ibx_cuda *of, uint64_t client)
{
    (void)of, (void)client;
    return false;
}

void *ibx_own_event_behind_legacy(const struct ibx_cuda *of)
{
    void *event = NULL;
    return of->event_create(&event, 0) ? NULL : event;
}

bool ibx_captures_wait_try(void)
{
    return true;
}

void ibx_captures_wait_end(void) {}

bool ibx_clients_give_begin(void)
{
    return true;
}

void ibx_clients_give_end(void) {}

bool ibx_context_broken(void)
{
    return false;
}

bool ibx_clients_several(struct gpu_session *session)
{
    (void)session;
    return true;
}

uint64_t ibx_clients_number(struct gpu_session *session)
{
    (void)session;
    return CLIENT + 1;
}

void ibx_clients_name(uint64_t client, struct ibx_client_name *name)
{
    (void)client, (void)name;
}

static int get_current(void **context)
{
    *context = &cuda;
    return 0;
}

static int is_over(void *what)
{
    (void)what;
    return busy ? IBX_CUDA_NOT_READY : 0;
}

static int is_capturing(void *stream, int *capturing)
{
    (void)stream;
    *capturing = 0;
    return 0;
}

static int create(void **event, unsigned flags)
{
    (void)flags;
    *event = &cuda;
    created++;
    alive++;
    return 0;
}

static int record(void *event, void *stream)
{
    (void)event, (void)stream;
    return 0;
}

static int destroy(void *event)
{
    (void)event;
    alive--;
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    cuda = (struct ibx_cuda){.ctx_get_current = get_current,
                             .stream_query = is_over,
                             .stream_is_capturing = is_capturing,
                             .event_create = create,
                             .event_record = record,
                             .event_query = is_over,
                             .event_destroy = destroy};
    created = alive = 0;
    return 0;
}

static void settle(enum ibx_work expected)
{
    uint64_t whose = 0;
    assert_int_equal(ibx_own_work_settle(&x, 0, &whose), expected);
}

/* The events stay, one for each stream and one for the legacy stream, until the work is over. */
static void test_events_are_kept(void **state)
{
    (void)state;
    count = 100;
    busy = true;
    for (unsigned i = 0; i < 3; i++) {
        settle(IBX_WORK_OF_OTHERS);
        assert_int_equal(created, count + 1);
        assert_int_equal(alive, count + 1);
    }
    busy = false;
    settle(IBX_WORK_OVER);
    assert_int_equal(created, count + 1);
    assert_int_equal(alive, 0);
}

/* Meanwhile nobody else can begin a capture: so it must not take seconds. */
static void test_busy_streams_without_number(void **state)
{
    (void)state;
    struct timespec begin, end;
    count = STREAMS;
    busy = true;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (unsigned i = 0; i < 3; i++)
        settle(IBX_WORK_OF_OTHERS);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    assert_true(end.tv_sec - begin.tv_sec < 2); /* of the processor's time */
    busy = false;
    settle(IBX_WORK_OVER);
    assert_int_equal(alive, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_events_are_kept, set_up),
        cmocka_unit_test_setup(test_busy_streams_without_number, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
