/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* RDMA connection requests from strangers, as fast as the server can look at them, and the server's
 * offer as a client reads it. The linker's --wrap replaces librdmacm, so no device is needed. */
#include "transport/core/conn.h"
#include "transport/verbs/verbs.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/fixtures/patience.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rdma_cm_id stranger;
static struct rdma_cm_event request = {.event = RDMA_CM_EVENT_CONNECT_REQUEST, .id = &stranger};
static uint64_t patience_ends;
static unsigned requests, rejected, lines;

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int __wrap_rdma_ack_cm_event(struct rdma_cm_event *event);
int __wrap_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length);
int __wrap_rdma_destroy_id(struct rdma_cm_id *id);
int __wrap_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space space);
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

/* The first call that a client makes for an offer that it accepts. */
int __wrap_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space space)
{
    (void)channel, (void)id, (void)context, (void)space;
    errno = ENODEV;
    return -1;
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

static int join(const uint8_t *bytes, size_t n)
{
    static struct ibx_conn conn = {.role = IBX_ROLE_CLIENT};
    static struct ibx_link link = {.conn = &conn};
    struct verbs v = {.link = &link};
    struct ibx_reader offer = ibx_reader_of(bytes, n);
    struct ibx_writer answer = {0};
    struct ibx_error err = {0};
    conn.options.rails = 1;
    const int rc = ibx_provider_verbs.join(&v, &offer, &answer, &err);
    free(v.lanes);
    return rc;
}

/* One rail and one lane, an MTU of 1024, and 127.0.0.1:4791. */
static void test_offers(void **state)
{
    static const uint8_t good[] = {1, 1, 1, 0, 4, 4, 127, 0, 0, 1, 0,    0,
                                   0, 0, 0, 0, 0, 0, 0,   0, 0, 0, 0xb7, 0x12};
    static const struct {
        unsigned at;
        uint8_t value;
    } wrong[] = {
        {0, 0},  {0, 2},         /* another version */
        {1, 0},  {1, UINT8_MAX}, /* rails */
        {2, 0},  {2, UINT8_MAX}, /* lanes */
        {4, 17},                 /* an MTU of 4352 bytes */
        {5, 5},                  /* neither IPv4 nor IPv6 */
    };
    (void)state;
    uint8_t bytes[sizeof(good) + 1] = {0};
    memcpy(bytes, good, sizeof(good));
    assert_int_equal(join(bytes, sizeof(good)), -ENODEV);
    assert_int_equal(join(bytes, sizeof(good) + 1), -EPROTO);
    for (size_t n = 0; n < sizeof(good); n++)
        assert_int_equal(join(bytes, n), -EPROTO);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(bytes, good, sizeof(good));
        bytes[wrong[i].at] = wrong[i].value;
        assert_int_equal(join(bytes, sizeof(good)), -EPROTO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_without_end_delay_no_deadline),
        cmocka_unit_test(test_offers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
