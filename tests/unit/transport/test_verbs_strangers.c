/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* RDMA connection requests from strangers, as fast as the server can look at them. The linker's
 * --wrap replaces librdmacm, so no device is needed. */
#include "transport/core/conn.h"
#include "transport/verbs/verbs.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/fixtures/patience.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static struct rdma_cm_id stranger;
static struct rdma_cm_event request = {.event = RDMA_CM_EVENT_CONNECT_REQUEST, .id = &stranger};
static uint64_t patience_ends;
static unsigned requests, rejected, lines;

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int __wrap_rdma_ack_cm_event(struct rdma_cm_event *event);
int __wrap_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length);
int __wrap_rdma_destroy_id(struct rdma_cm_id *id);
void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...);

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    (void)channel;
    if (ibx_now_ns() > patience_ends) {
        errno = EIO;
        return -1;
    }
    requests++;
    *event = &request;
    return 0;
}

int __wrap_rdma_ack_cm_event(struct rdma_cm_event *event)
{
    (void)event;
    return 0;
}

int __wrap_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length)
{
    (void)id;
    (void)data;
    (void)length;
    rejected++;
    return 0;
}

int __wrap_rdma_destroy_id(struct rdma_cm_id *id)
{
    (void)id;
    return 0;
}

void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...)
{
    (void)format;
    lines += level <= IBX_LOG_WARN;
}

/* The client does not come. The server waits until the deadline and no longer, and logs one of
 * the strangers. */
static void test_requests_without_end_delay_no_deadline(void **state)
{
    static struct ibx_conn conn = {.role = IBX_ROLE_SERVER};
    static struct ibx_link link = {.conn = &conn};
    static struct verbs v = {.link = &link, .rail_count = 1, .lanes_per_rail = 1};
    static const uint8_t bytes[] = {1, 1, 0, 0};
    struct ibx_reader answer = ibx_reader_of(bytes, sizeof(bytes));
    struct ibx_error err = {0};
    (void)state;
    patience_ends = ibx_deadline_in_ms(patience_ms(20000));
    assert_int_equal(ibx_provider_verbs.finish(&v, &answer, ibx_deadline_in_ms(100), &err),
                     -ETIMEDOUT);
    assert_true(requests > 1);
    assert_int_equal(rejected, requests);
    assert_int_equal(lines, 1);
    free(v.lanes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_without_end_delay_no_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
