/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Places of frames, and CHECKs, between a server and raw sockets. */
#include "tests/fixtures/tcp_raw.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include <cmocka.h>

#define SECOND     (1000 * IBX_NS_PER_MS)
#define LIMIT_NS   (100 * SECOND) /* timeout_ms of ends */
#define LOOK_TURNS 64u            /* from one look at the peer to the next */

static uint64_t ahead_ns;   /* of the clock */
static uint64_t stopped_ns; /* where the clock stands, but for that; 0: it goes */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    const int rc = __real_clock_gettime(clock, now);
    const uint64_t ns = (uint64_t)now->tv_sec * SECOND + (uint64_t)now->tv_nsec;
    *now = ibx_timespec_of((stopped_ns ? stopped_ns : ns) + ahead_ns);
    return rc;
}

static int unacknowledged; /* bytes that the peer's host has not acknowledged, beyond what it has */

int __real_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
    const int rc = __real_ioctl(fd, request, argument);
    if (!rc && request == SIOCOUTQ)
        *(int *)argument += unacknowledged;
    return rc;
}

static int connect_placed(void **state)
{
    stopped_ns = 0;
    unacknowledged = 0;
    raw_places = true;
    return connect_raw(state);
}

static int connect_earlier(void **state)
{
    raw_places = false;
    return connect_raw(state);
}

static struct ibx_tcp_frame placed(enum ibx_tcp_type type, uint32_t place, uint32_t length)
{
    return (struct ibx_tcp_frame){.type = type, .place = place, .length = length};
}

static struct ibx_tcp_frame check(uint32_t place, bool asks, uint32_t received)
{
    return (struct ibx_tcp_frame){
        .type = IBX_TCP_CHECK, .lane = asks, .place = place, .id = received};
}

static void expect_a_check(int lane, uint32_t place, bool asks, uint32_t received)
{
    const struct ibx_tcp_frame frame = receive_frame(lane);
    assert_int_equal(frame.type, IBX_TCP_CHECK);
    assert_int_equal(frame.lane, asks);
    assert_int_equal(frame.place, place);
    assert_int_equal(frame.id, received);
}

static void expect_message(unsigned number)
{
    assert_true(end_await(&server, NULL, number));
    assert_int_equal(server.notes[number - 1].kind, NOTE_MESSAGE);
}

static void test_a_check_is_answered_on_each_lane(void **state)
{
    (void)state;
    send_frame(0, placed(IBX_TCP_MESSAGE, 0, 5));
    send_raw(0, "abcde", 5);
    expect_message(1);
    send_frame(0, check(37, true, 0));
    expect_a_check(0, 0, false, 37 + 32);
    send_frame(1, placed(IBX_TCP_PAD, 0, 100));
    for (unsigned i = 0; i < 100; i++)
        send_raw(1, "", 1);
    send_frame(1, check(132, true, 0));
    expect_a_check(1, 0, false, 132 + 32);
    send_frame(1, check(164, false, 32)); /* an answer is not answered */
    send_frame(0, check(69, true, 32));
    expect_a_check(0, 32, false, 69 + 32);
    end_settle(&server);
    assert_null(end_lost(&server));
}

/* An answer to a READ, and what follows it, on one lane. */
static void test_places_of_all_frames(void **state)
{
    (void)state;
    uint8_t bytes[100];
    struct ibx_mr *mr = end_register(&server, region, BYTES, BOTH);
    struct ibx_tcp_frame frame = request(IBX_TCP_READ, mr, 0, 100);
    for (uint32_t i = 0; i < 3; i++) {
        frame.place = 32 * i; /* a READ has no payload */
        send_frame(0, frame);
        const struct ibx_tcp_frame data = receive_frame(0);
        assert_int_equal(data.type, IBX_TCP_DATA);
        assert_int_equal(data.place, 132 * i);
        receive(0, bytes, sizeof(bytes));
    }
    frame.key ^= 1;
    frame.place = 96;
    send_frame(0, frame);
    expect_nak(42, IBX_TCP_STATUS_ACCESS); /* which has none, and is counted */
    assert_int_equal(end_send(&server, "ab", 2, 0), 0);
    assert_int_equal(receive_frame(0).place, 3 * 132 + 32);
    end_deregister(&server, mr);
}

/* The socket takes a part of a message before that is queued. */
static void test_a_place_behind_a_part(void **state)
{
    (void)state;
    static uint8_t bytes[30000];
    const int little = 1, some = 8192; /* the kernel raises the first to its minimum */
    uint32_t whole = 0, count = 0;
    setsockopt(server.handshake_socket, SOL_SOCKET, SO_SNDBUF, &some, sizeof(some));
    setsockopt(lanes[0], SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    for (; count < 3 && !ibx_tcp_lane_has_output(&server.tcp->lanes[0]); count++)
        assert_int_equal(end_send(&server, bytes, sizeof(bytes), 0), 0);
    assert_true(ibx_tcp_lane_has_output(&server.tcp->lanes[0]));
    assert_int_equal(end_send(&server, "ab", 2, 0), 0);
    for (; count; count--, whole += IBX_TCP_FRAME_BYTES + sizeof(bytes)) {
        assert_int_equal(receive_frame(0).place, whole);
        receive(0, bytes, sizeof(bytes));
    }
    assert_int_equal(receive_frame(0).place, whole);
}

static void test_a_frame_elsewhere_ends_it(void **state)
{
    const uint32_t wrong[] = {0, 36, 38, 5, UINT32_MAX};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        send_frame(0, placed(IBX_TCP_MESSAGE, 0, 5));
        send_raw(0, "abcde", 5);
        expect_message(1);
        send_frame(0, placed(IBX_TCP_MESSAGE, wrong[i], 0));
        expect_lost(-EBADMSG, "lane 0");
        for (unsigned n = 1; n < server.count; n++) /* the second one was not delivered */
            assert_int_not_equal(server.notes[n].kind, NOTE_MESSAGE);
        disconnect(state);
        connect_placed(state);
    }
}

static void server_reads(void)
{
    static uint8_t bytes[64];
    static struct ibx_chunk chunk;
    chunk = (struct ibx_chunk){.kind = IBX_RDMA_READ,
                               .lane = 1,
                               .local = bytes,
                               .remote_keys = remote_keys,
                               .length = sizeof(bytes)};
    assert_int_equal(ibx_provider_tcp.rdma(server.tcp, &chunk), 0);
    assert_int_equal(receive_frame(0).type, IBX_TCP_READ);
}

/* A server that waits for an answer to its READ asks; so does one that has a part of a frame. */
static void test_who_waits_asks(void **state)
{
    (void)state;
    end_settle(&server);
    server_reads();
    expect_a_check(0, 32, true, 0);
    expect_a_check(1, 0, true, 0);
    expect_a_check(2, 0, true, 0);
}

#define STEP_MS 50u

/* Waits for so long, and longer on a busy host unless the clock stands. Returns how many CHECKs
 * were sent on lane 0. */
static unsigned checks_in(unsigned ms)
{
    const uint64_t before = server.tcp->lanes[0].gone;
    for (unsigned steps = ms / STEP_MS; steps--;) {
        ahead_ns += STEP_MS * IBX_NS_PER_MS;
        for (unsigned i = 0; i < LOOK_TURNS; i++)
            end_turn(&server);
    }
    return (unsigned)((server.tcp->lanes[0].gone - before) / IBX_TCP_FRAME_BYTES);
}

/* Until the peer is asked, nothing shows that the network is silent. What that delays is small
 * beside the time for which this side has waited already. */
static void test_how_often_it_asks(void **state)
{
    (void)state;
    server_reads();
    stopped_ns = ibx_now_ns() - ahead_ns;
    assert_true(checks_in(4000) >= 12);
    assert_true(checks_in(4000) >= 12);
    checks_in(100000);
    assert_in_range(checks_in(40000), 16, 20);
    /* Meanwhile the process was stopped, or its program did something else. */
    ahead_ns += 10 * SECOND;
    assert_true(checks_in(4000) >= 12);
}

/* A part of a frame has been lost, and the CHECKs that the peer sends are taken for the rest of it:
 * they do not keep this side from asking. */
static void test_a_trickle_is_no_sign(void **state)
{
    static const uint8_t taken[IBX_TCP_FRAME_BYTES];
    unsigned asked = 0;
    (void)state;
    send_frame(1, placed(IBX_TCP_PAD, 0, 100000));
    stopped_ns = ibx_now_ns() - ahead_ns;
    for (unsigned i = 0; i < 20; i++) {
        send_raw(1, taken, sizeof(taken));
        asked += checks_in(200);
    }
    assert_true(asked >= 8);
}

/* A frame comes when a part of a CHECK has, which is no part of a frame any more when the rest of
 * it has come: that is no sign either. */
static void test_the_rest_of_a_check_is_no_sign(void **state)
{
    const struct ibx_tcp_frame frame = check(0, false, IBX_TCP_FRAME_BYTES);
    uint8_t bytes[IBX_TCP_FRAME_BYTES];
    (void)state;
    server_reads();
    ibx_tcp_frame_put(&frame, bytes);
    send_raw(0, bytes, sizeof(bytes) - 1);
    end_settle(&server);
    assert_int_equal(server.tcp->lanes[0].stage_have, sizeof(bytes) - 1);
    send_frame(1, placed(IBX_TCP_PAD, 0, 1));
    send_raw(1, "", 1);
    end_settle(&server);
    stopped_ns = ibx_now_ns() - ahead_ns;
    checks_in(100000);
    assert_in_range(checks_in(40000), 16, 20);
    send_raw(0, bytes + sizeof(bytes) - 1, 1);
    assert_in_range(checks_in(40000), 16, 20);
    assert_int_equal(server.tcp->checks, 1);
}

/* A client may be stopped for any time, amid a copy, too. Its own limit ends a swallowed one. */
static void test_a_server_waits_for_a_stopped_client(void **state)
{
    (void)state;
    server.options.silence_ms = 10000;
    server_reads();
    stopped_ns = ibx_now_ns() - ahead_ns;
    checks_in(40000);
    assert_null(end_lost(&server));
}

static void test_a_part_of_a_frame_is_told(void **state)
{
    (void)state;
    send_frame(1, placed(IBX_TCP_PAD, 0, 100));
    send_raw(1, "abc", 3);
    expect_a_check(0, 0, true, 0);
    expect_a_check(1, 0, true, 35);
}

/* Of a process that was stopped: before it asks, it reads what has come meanwhile. */
static void test_what_has_come_is_read_first(void **state)
{
    (void)state;
    server_reads();
    for (unsigned i = 0; i < LOOK_TURNS; i++)
        end_turn(&server);
    assert_true(server.tcp->check_at > ibx_now_ns());
    ahead_ns += 10 * SECOND;
    send_frame(0, placed(IBX_TCP_MESSAGE, 0, 0));
    server.tcp->turns = LOOK_TURNS - 1;
    end_turn(&server);
    assert_int_equal(server.count, 1);
    assert_true(server.tcp->check_at > ibx_now_ns());
    end_turn(&server);
    assert_int_equal(server.tcp->lanes[0].gone, IBX_TCP_FRAME_BYTES); /* no CHECK */
}

/* A peer that waits asks, and says that it has received so many bytes. */
static void say_received(uint32_t *place, uint32_t received)
{
    send_frame(0, check(*place, true, received));
    *place += IBX_TCP_FRAME_BYTES;
    end_settle(&server);
}

static void expect_an_answer(uint32_t place)
{
    expect_a_check(0, (uint32_t)server.tcp->lanes[0].gone - IBX_TCP_FRAME_BYTES, false, place);
}

/* For so long, from now on. */
static void keep_saying(uint32_t *place, uint32_t received, uint64_t ns)
{
    const uint64_t pause = LIMIT_NS / 10;
    for (; ns; ns -= pause) {
        say_received(place, received);
        assert_null(end_lost(&server)); /* a relay may be slow */
        expect_an_answer(*place);
        ahead_ns += pause;
    }
}

static void send_bytes(uint32_t bytes)
{
    static uint8_t sent[5000], received[5000];
    assert_int_equal(end_send(&server, sent, bytes, 0), 0);
    assert_int_equal(receive_frame(0).length, bytes);
    receive(0, received, bytes);
}

/* It says for a while that it lacks bytes, all of which its host has acknowledged. The answers that
 * are sent meanwhile prove nothing either way. */
static void test_missing_bytes_end_it(void **state)
{
    (void)state;
    uint32_t place = 0, received = 39;
    send_bytes(8);
    keep_saying(&place, received, LIMIT_NS);
    say_received(&place, received);
    expect_lost(-EBADMSG, "bytes that were sent on lane 0");
}

/* What is not acknowledged may be the CHECKs since: hosts acknowledge such bytes late, and a CHECK
 * has often been sent right before. If it is more, some of the missing bytes may be among it. */
static void test_missing_bytes_beside_a_check_on_its_way(void **state)
{
    (void)state;
    uint32_t place = 0;
    send_bytes(8);
    keep_saying(&place, 39, LIMIT_NS);
    unacknowledged = (int)server.tcp->lanes[0].gone_checks + 1;
    say_received(&place, 39);
    assert_null(end_lost(&server));
    expect_an_answer(place);
    unacknowledged = (int)server.tcp->lanes[0].gone_checks;
    say_received(&place, 39);
    expect_lost(-EBADMSG, "bytes that were sent on lane 0");
}

/* Nothing is missing where each CHECK of a peer crosses one of this end's. */
static void test_checks_that_cross_checks(void **state)
{
    (void)state;
    uint32_t place = 0;
    send_bytes(8);
    unacknowledged = IBX_TCP_FRAME_BYTES;
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t sent = 40 + i * IBX_TCP_FRAME_BYTES;
        send_frame(0, check(place, true, i ? sent - IBX_TCP_FRAME_BYTES : sent));
        place += IBX_TCP_FRAME_BYTES;
        expect_a_check(0, sent, false, place);
        ahead_ns += LIMIT_NS / 10;
    }
    assert_null(end_lost(&server));
}

/* A peer that was away in a handler answers the first of the CHECKs that lie there, and reads the
 * others behind it. So it does again and again, and nothing is lost. */
static void test_checks_that_are_read_late(void **state)
{
    (void)state;
    uint32_t place = 0;
    send_bytes(8);
    server_reads();
    stopped_ns = ibx_now_ns() - ahead_ns;
    for (unsigned i = 0; i < 3; i++) {
        const uint32_t before = (uint32_t)server.tcp->lanes[0].gone;
        checks_in((unsigned)(LIMIT_NS / IBX_NS_PER_MS));
        send_frame(0, check(place, false, before + IBX_TCP_FRAME_BYTES));
        place += IBX_TCP_FRAME_BYTES;
        end_settle(&server);
        assert_null(end_lost(&server));
    }
}

/* A relay may be slow, or more is sent. */
static void test_bytes_that_come_late(void **state)
{
    (void)state;
    uint32_t place = 0;
    send_bytes(5000);
    for (uint32_t received = 0; received < 5000; received += 1000)
        keep_saying(&place, received, LIMIT_NS);
    say_received(&place, 5000);
    expect_an_answer(place);
    send_bytes(8);
    keep_saying(&place, 5000, LIMIT_NS);
    assert_null(end_lost(&server));
}

/* Each CHECK of a peer that waits for long calls may cross the reply to such a call. */
static void test_checks_that_cross_replies(void **state)
{
    (void)state;
    uint8_t bytes[8];
    uint32_t place = 0, received = 0;
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(end_send(&server, "abcdefgh", 8, 0), 0);
        say_received(&place, received);
        assert_int_equal(receive_frame(0).place, received);
        receive(0, bytes, 8);
        expect_an_answer(place);
        received += 2 * IBX_TCP_FRAME_BYTES + 8;
        send_frame(0, (struct ibx_tcp_frame){.type = IBX_TCP_CREDIT, .place = place, .credits = 1});
        place += IBX_TCP_FRAME_BYTES;
        ahead_ns += LIMIT_NS / 4;
    }
    assert_null(end_lost(&server));
}

/* Only a server that has promised signs of life gives them. */
static void test_a_sign_that_was_not_agreed_on(void **state)
{
    struct ibx_tcp_frame sign = check(0, false, 0);
    (void)state;
    sign.lane = IBX_TCP_LIVES;
    send_frame(0, sign);
    expect_lost(-EPROTO, "sign of life");
}

/* An earlier client neither gets places nor CHECKs, and may send none. */
static void test_earlier_clients(void **state)
{
    (void)state;
    uint8_t bytes[5];
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(end_send(&server, "abcde", 5, 0), 0);
        assert_int_equal(receive_frame(0).place, 0);
        receive(0, bytes, 5);
    }
    send_frame(0, check(0, true, 0));
    expect_lost(-EPROTO, "type 9");
    reconnect();
    send_frame(0, placed(IBX_TCP_MESSAGE, 0, 0));
    expect_message(1);
    send_frame(0, placed(IBX_TCP_MESSAGE, 32, 0));
    expect_lost(-EPROTO, "type 1");
}

#define PLACED(test) cmocka_unit_test_setup_teardown(test, connect_placed, disconnect)

int main(void)
{
    const struct CMUnitTest tests[] = {
        PLACED(test_a_check_is_answered_on_each_lane),
        PLACED(test_places_of_all_frames),
        PLACED(test_a_place_behind_a_part),
        PLACED(test_a_frame_elsewhere_ends_it),
        PLACED(test_who_waits_asks),
        PLACED(test_how_often_it_asks),
        PLACED(test_a_trickle_is_no_sign),
        PLACED(test_the_rest_of_a_check_is_no_sign),
        PLACED(test_a_server_waits_for_a_stopped_client),
        PLACED(test_a_part_of_a_frame_is_told),
        PLACED(test_what_has_come_is_read_first),
        PLACED(test_missing_bytes_end_it),
        PLACED(test_missing_bytes_beside_a_check_on_its_way),
        PLACED(test_checks_that_cross_checks),
        PLACED(test_checks_that_are_read_late),
        PLACED(test_bytes_that_come_late),
        PLACED(test_checks_that_cross_replies),
        PLACED(test_a_sign_that_was_not_agreed_on),
        cmocka_unit_test_setup_teardown(test_earlier_clients, connect_earlier, disconnect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
