/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* RDMA connection requests from strangers, as fast as the server can look at them, and the server's
 * offer as a client reads it. The linker's --wrap replaces librdmacm, so no device is needed. */
#include "transport/core/conn.h"
#include "transport/verbs/verbs.h"

#include "common/clock.h"
#include "common/log.h"
#include "tests/fixtures/patience.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct rdma_cm_id stranger;
static struct rdma_cm_event request = {.event = RDMA_CM_EVENT_CONNECT_REQUEST, .id = &stranger};
static uint64_t patience_ends;
static unsigned requests, rejected, lines, found;
static unsigned most = UINT_MAX; /* of the requests; then the device fails */
static char said[256];           /* last, by the log */
static struct verbs server;
static struct rdma_cm_id listeners[2], *listening; /* on both rails' devices; on that of rail 0 */
static bool busy; /* when the request comes, its queue pair is connected */

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
int __wrap_rdma_ack_cm_event(struct rdma_cm_event *event);
int __wrap_rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t length);
int __wrap_rdma_destroy_id(struct rdma_cm_id *id);
int __wrap_rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
                          enum rdma_port_space space);
void __wrap_ibx_log(enum ibx_log_level level, const char *format, ...);
int __wrap_ibx_verbs_device_check(const struct ibx_options *options, unsigned rail,
                                  const struct rdma_cm_id *id, struct ibx_error *err);
void __wrap_ibx_link_proof(const struct ibx_link *link, const char *label,
                           uint8_t proof[IBX_PROOF_BYTES]);

int __wrap_rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    (void)channel;
    if (ibx_now_ns() > patience_ends || requests >= most) {
        errno = EIO;
        return -1;
    }
    requests++;
    *event = &request;
    server.rails[0].listener = listening;
    if (busy)
        server.lanes[1].state.now = VERBS_LANE_UP;
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
    va_list values;
    lines += level <= IBX_LOG_WARN;
    va_start(values, format);
    vsnprintf(said, sizeof(said), format, values);
    va_end(values);
}

/* The first call for a request that is the peer's. */
int __wrap_ibx_verbs_device_check(const struct ibx_options *options, unsigned rail,
                                  const struct rdma_cm_id *id, struct ibx_error *err)
{
    (void)options, (void)rail, (void)err;
    assert_ptr_equal(id, &stranger);
    found++;
    return -ENODEV;
}

/* Another one for each label. */
void __wrap_ibx_link_proof(const struct ibx_link *link, const char *label,
                           uint8_t proof[IBX_PROOF_BYTES])
{
    (void)link;
    memset(proof, 0, IBX_PROOF_BYTES);
    for (unsigned i = 0; label[i]; i++)
        proof[i % IBX_PROOF_BYTES] = (uint8_t)(31 * proof[i % IBX_PROOF_BYTES] + label[i]);
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

/* What the server returns that has offered two rails with one bulk queue pair each, after such an
 * answer and one request. */
static int finish(const uint8_t *bytes, size_t n)
{
    static struct ibx_conn conn = {.role = IBX_ROLE_SERVER};
    static struct ibx_link link = {.conn = &conn};
    struct ibx_reader answer = ibx_reader_of(bytes, n);
    struct ibx_error err = {0};
    server = (struct verbs){.link = &link, .rail_count = 2, .lanes_per_rail = 1, .mtu = 1024};
    requests = rejected = found = 0;
    most = 1;
    patience_ends = UINT64_MAX;
    const int rc = ibx_provider_verbs.finish(&server, &answer, ibx_deadline_in_ms(3600000), &err);
    most = UINT_MAX;
    free(server.lanes);
    return rc;
}

/* A client may use less than it was offered, and never more. */
static void test_answers(void **state)
{
    static const uint8_t good[][4] = {{2, 1, 0, 4}, {1, 1, 0, 2}};
    static const uint8_t wrong[][4] = {{0, 1, 0, 4}, {3, 1, 0, 4}, {255, 1, 0, 4}, {2, 0, 0, 4},
                                       {2, 2, 0, 4}, {2, 1, 1, 4}, {2, 1, 0, 0}};
    static const uint8_t longer[5] = {2, 1, 0, 4};
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(finish(good[i], sizeof(good[i])), -EIO);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(finish(wrong[i], sizeof(wrong[i])), -EPROTO);
        assert_int_equal(requests, 0);
    }
    for (size_t n = 0; n < sizeof(good[0]); n++)
        assert_int_equal(finish(good[0], n), -EPROTO);
    assert_int_equal(finish(longer, sizeof(longer)), -EPROTO);
}

/* A request for bulk queue pair 1, as the client at 127.0.0.1 makes it. */
static void make_request(uint8_t bytes[4 + IBX_PROOF_BYTES])
{
    struct sockaddr_in *from = (struct sockaddr_in *)&stranger.route.addr.dst_addr;
    *from = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000001)};
    memcpy(bytes, (const uint8_t[]){1, 0, 1, 0}, 4);
    __wrap_ibx_link_proof(NULL, "verbs queue pair 1 request from 127.0.0.1 77", bytes + 4);
    request.listen_id = listening = &listeners[0];
    request.param.conn.qp_num = 77;
    request.param.conn.private_data = bytes;
    request.param.conn.private_data_len = 4 + IBX_PROOF_BYTES;
    busy = false;
}

static void refused(const char *why)
{
    static const uint8_t answer[] = {2, 1, 0, 4};
    said[0] = '\0';
    assert_int_equal(finish(answer, sizeof(answer)), -EIO);
    assert_true(rejected == 1 && !found);
    if (!strstr(said, why))
        fail_msg("\"%s\" does not say \"%s\"", said, why);
}

/* The peer's own request is taken; the same with anything else in it is a stranger's. */
static void test_requests(void **state)
{
    static const uint8_t answer[] = {2, 1, 0, 4},
                         wrong[][4] = {{0, 0, 1, 0}, {2, 0, 1, 0}, {1, 1, 1, 0},
                                       {1, 0, 3, 0}, {1, 0, 1, 1}, {1, 0, 255, 255}};
    uint8_t bytes[4 + IBX_PROOF_BYTES];
    (void)state;
    make_request(bytes);
    assert_int_equal(finish(answer, sizeof(answer)), -ENODEV);
    assert_true(found == 1 && !rejected);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        make_request(bytes);
        memcpy(bytes, wrong[i], sizeof(wrong[i]));
        refused("it does not follow this protocol");
    }
    make_request(bytes);
    request.param.conn.private_data_len--;
    refused("it does not follow this protocol");
    make_request(bytes);
    busy = true;
    refused("that queue pair is connected already");
    make_request(bytes);
    request.listen_id = &listeners[1];
    refused("it arrived at the wrong device");
    make_request(bytes);
    request.param.conn.qp_num++;
    refused("its proof is wrong");
    make_request(bytes);
    bytes[2] = 0; /* of another queue pair */
    refused("its proof is wrong");
    make_request(bytes);
    ((struct sockaddr_in *)&stranger.route.addr.dst_addr)->sin_addr.s_addr++;
    refused("its proof is wrong");
    for (unsigned i = 4; i < sizeof(bytes); i++) {
        make_request(bytes);
        bytes[i] ^= 0x80;
        refused("its proof is wrong");
    }
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
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_offers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
