/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When an end asks its peer, what it says then, and which answers show that bytes are lost: loss.c
 * alone, with lanes whose figures a test sets. */
#include "tests/fixtures/unit.h"
#include "transport/tcp/tcp.h"

#include "common/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#define MS      IBX_NS_PER_MS
#define BEGIN   (1000000 * MS) /* the clock at the start of each test */
#define TIMEOUT 5000u          /* of the link */
#define HEADER  IBX_TCP_FRAME_BYTES

static struct ibx_options options;
static struct tcp *tcp;
static struct {
    enum ibx_role role;
    uint64_t now;
    bool thread_receives, tls_part;
    size_t thread_got;
    uint64_t gone, checks; /* by a lane */
    int unacknowledged, ioctl_fails;
    unsigned queued;
    const struct tcp_lane *queued_on[8];
    struct ibx_tcp_frame frames[8];
    int status;
} is;

/* ------------------------------------------------------------ what is simulated */

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = ibx_timespec_of(is.now);
    return 0;
}
int __wrap_ioctl(int fd, unsigned long request, void *argument);
int __wrap_ioctl(int fd, unsigned long request, void *argument)
{
    assert_int_equal(fd, 77);
    assert_int_equal(request, SIOCOUTQ);
    *(int *)argument = is.unacknowledged;
    return is.ioctl_fails;
}
const struct ibx_options *ibx_link_options(const struct ibx_link *link)
{
    (void)link;
    return &options;
}
enum ibx_role ibx_link_role(const struct ibx_link *link)
{
    (void)link;
    return is.role;
}
bool ibx_tcp_thread_receives(const struct tcp_lane *lane)
{
    (void)lane;
    return is.thread_receives;
}
size_t ibx_tcp_thread_got(const struct tcp_lane *lane)
{
    (void)lane;
    return is.thread_got;
}
uint64_t ibx_tcp_thread_gone(const struct tcp_lane *lane, uint64_t *checks)
{
    (void)lane;
    *checks = is.checks;
    return is.gone;
}
bool ibx_tls_has_part(const struct ibx_tls *tls)
{
    assert_non_null(tls);
    return is.tls_part;
}
size_t ibx_tcp_frame_size(const struct ibx_tcp_frame *frame)
{
    return HEADER + (frame->type == IBX_TCP_DATA ? frame->length : 0);
}
void ibx_tcp_item_init(struct tcp_item *item, enum tcp_item_kind kind,
                       const struct ibx_tcp_frame *frame)
{
    (void)item;
    assert_int_equal(kind, TCP_ITEM_CHECK);
    is.frames[is.queued % COUNT(is.frames)] = *frame;
}
void ibx_tcp_lane_queue(struct tcp_lane *lane, struct tcp_item *item)
{
    assert_true(item == &lane->ask.item || item == &lane->answer.item);
    is.queued_on[is.queued++ % COUNT(is.queued_on)] = lane;
}
int ibx_tcp_fail(struct tcp *failed, int status, const char *format, ...)
{
    (void)format;
    failed->status = is.status = status;
    return status;
}

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    memset(tcp, 0, sizeof(*tcp));
    options = (struct ibx_options){.timeout_ms = TIMEOUT};
    is.role = IBX_ROLE_SERVER;
    is.now = BEGIN;
    tcp->places = true;
    tcp->state.now = TCP_LIVE;
    tcp->lane_count = 2;
    for (unsigned i = 0; i <= tcp->lane_count; i++)
        tcp->lanes[i] = (struct tcp_lane){.tcp = tcp, .index = i, .fd = 77};
    return 0;
}

static int allocate(void **state)
{
    (void)state;
    tcp = calloc(1, sizeof(*tcp));
    return !tcp;
}

static int release(void **state)
{
    (void)state;
    free(tcp);
    return 0;
}

/* The frames were sent: others may be queued. Returns how many there were. */
static unsigned sent(void)
{
    const unsigned n = is.queued;
    for (unsigned i = 0; i <= tcp->lane_count; i++)
        tcp->lanes[i].ask.queued = tcp->lanes[i].answer.queued = false;
    is.queued = 0;
    return n;
}

/* ------------------------------------------------------------ who asks */

static void a_client_and_who_awaits_an_answer_wait_for_the_peer(NO_STATE)
{
    assert_false(ibx_tcp_checks_wanted(tcp));
    is.role = IBX_ROLE_CLIENT;
    assert_true(ibx_tcp_checks_wanted(tcp));
    is.role = IBX_ROLE_SERVER;
    tcp->posts_used = 1;
    assert_true(ibx_tcp_checks_wanted(tcp));
}

/* On any lane: the last one, too. */
static void who_has_a_part_of_a_frame_waits_for_the_rest(NO_STATE)
{
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        tcp->lanes[i].body_left = 1;
        assert_true(ibx_tcp_checks_wanted(tcp));
        tcp->lanes[i].body_left = 0;
        tcp->lanes[i].stage_have = 1;
        assert_true(ibx_tcp_checks_wanted(tcp));
        tcp->lanes[i].stage_have = 0;
        assert_false(ibx_tcp_checks_wanted(tcp));
    }
}

/* While a thread has the lane, the lane's TLS is the thread's. */
static void a_part_of_a_record_is_a_part_of_a_frame(NO_STATE)
{
    is.tls_part = true;
    assert_false(ibx_tcp_checks_wanted(tcp));
    tcp->lanes[1].tls = (struct ibx_tls *)tcp;
    assert_true(ibx_tcp_checks_wanted(tcp));
    is.thread_receives = true;
    assert_false(ibx_tcp_checks_wanted(tcp));
    is.thread_receives = is.tls_part = false;
    assert_false(ibx_tcp_checks_wanted(tcp));
}

/* It would take a CHECK for a malformed frame. */
static void a_peer_that_knows_no_places_is_not_asked(NO_STATE)
{
    is.role = IBX_ROLE_CLIENT;
    tcp->places = false;
    assert_false(ibx_tcp_checks_wanted(tcp));
}

/* ------------------------------------------------------------ what is asked, and when */

static void a_check_says_what_has_come(NO_STATE)
{
    tcp->lanes[1].come = 1000;
    tcp->lanes[1].body_left = 300;
    tcp->lanes[1].stage_have = 20;
    is.thread_got = 4;
    ibx_tcp_check_ask(&tcp->lanes[1]);
    assert_int_equal(is.queued, 1);
    assert_int_equal(is.frames[0].type, IBX_TCP_CHECK);
    assert_int_equal(is.frames[0].lane, IBX_TCP_ASKS);
    assert_int_equal(is.frames[0].id, 1000 - 300 + 20 + 4);
    ibx_tcp_check_ask(&tcp->lanes[1]); /* the first one has not gone yet */
    assert_int_equal(is.queued, 1);
}

#ifdef IBX_WITH_URING
/* io_uring does not tell how much of a bulk lane's body has come: a CHECK that says less would make
 * the peer believe that bytes are lost. */
static void a_check_says_nothing_that_is_not_known(NO_STATE)
{
    tcp->uring = (struct tcp_uring *)tcp;
    tcp->lanes[1].body_left = 1;
    ibx_tcp_check_ask(&tcp->lanes[1]);
    assert_int_equal(is.queued, 0);
    tcp->lanes[0].body_left = 1; /* which the uring does not receive */
    ibx_tcp_check_ask(&tcp->lanes[0]);
    assert_int_equal(is.queued, 1);
    tcp->lanes[1].body_left = 0;
    ibx_tcp_check_ask(&tcp->lanes[1]);
    assert_int_equal(is.queued, 2);
}
#endif

static void look_after(uint64_t ms)
{
    is.now += ms * MS;
    ibx_tcp_checks_look(tcp, is.now);
}

/* On each lane; the pause is 250 ms, and later a 32nd of the silence, up to 2 s. */
static void each_lane_is_asked_after_a_silence(NO_STATE)
{
    look_after(0);
    look_after(249);
    assert_int_equal(sent(), 0);
    look_after(1);
    for (unsigned i = 0; i < 3; i++)
        assert_ptr_equal(is.queued_on[i], &tcp->lanes[i]);
    assert_int_equal(sent(), 3);
    look_after(249);
    assert_int_equal(sent(), 0);
    look_after(1);
    assert_int_equal(sent(), 3);
    tcp->quiet_since = is.now - 32 * 300 * MS;
    tcp->check_at = is.now;
    look_after(0);
    assert_int_equal(sent(), 3);
    look_after(299);
    assert_int_equal(sent(), 0);
    tcp->quiet_since = is.now - 1000000 * MS;
    tcp->check_at = is.now;
    look_after(0);
    assert_int_equal(sent(), 3);
    look_after(1999);
    assert_int_equal(sent(), 0);
    look_after(1);
    assert_int_equal(sent(), 3);
}

static void a_frame_of_any_lane_ends_the_silence(NO_STATE)
{
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        look_after(0);
        look_after(200);
        tcp->lanes[i].come += HEADER;
        look_after(50);
        assert_int_equal(sent(), 0);
        look_after(250);
        assert_int_equal(sent(), 3);
    }
}

/* The peer's CHECKs come all the time, and say nothing about what is lost. */
static void checks_of_the_peer_do_not_end_the_silence(NO_STATE)
{
    look_after(0);
    look_after(200);
    tcp->lanes[0].come += HEADER;
    tcp->checks = 1;
    look_after(50);
    assert_int_equal(sent(), 3);
}

/* As what is taken for the rest of a frame, of which a part was lost, may be two of the peer's
 * CHECKs a lane. */
static void more_of_a_frame_than_a_trickle_ends_the_silence(NO_STATE)
{
    const size_t trickle = 3 * (size_t)2 * HEADER;
    tcp->lanes[1].come = tcp->lanes[1].body_left = 10 * trickle;
    look_after(0);
    look_after(200);
    tcp->lanes[1].body_left -= trickle;
    look_after(50);
    assert_int_equal(sent(), 3);
    tcp->lanes[1].body_left -= 1;
    look_after(200);
    look_after(50);
    assert_int_equal(sent(), 0);
}

static void a_connection_that_has_ended_asks_nothing(NO_STATE)
{
    look_after(0);
    tcp->status = -EBADMSG;
    look_after(250);
    assert_int_equal(sent(), 0);
}

/* ------------------------------------------------------------ silence of the peer's process */

static void a_server_without_a_sign_of_life_is_given_up(NO_STATE)
{
    options.silence_ms = 30000;
    tcp->expects_signs = true;
    look_after(0);
    for (unsigned i = 0; i < 60; i++) {
        look_after(499);
        assert_int_equal(is.status, 0);
    }
    look_after(60);
    assert_int_equal(is.status, -ETIMEDOUT);
}

static void without_a_limit_or_signs_no_server_is_given_up(NO_STATE)
{
    tcp->expects_signs = true;
    look_after(0);
    for (unsigned i = 0; i < 100; i++)
        look_after(900);
    assert_int_equal(is.status, 0);
    options.silence_ms = 30000;
    tcp->expects_signs = false; /* it has not promised any */
    look_after(900);
    assert_int_equal(is.status, 0);
}

/* Looks for 31 s. */
static int look_on(void)
{
    look_after(0);
    for (unsigned i = 0; i < 62; i++)
        look_after(500);
    return is.status;
}

/* ... while READs of a server are under way, that says so. */
static void a_client_that_answers_nothing_is_given_up(NO_STATE)
{
    is.role = IBX_ROLE_SERVER;
    options.answer_ms = 30000;
    tcp->posts_used = 1;
    look_after(0);
    for (unsigned i = 0; i < 100; i++) {
        look_after(500);
        if (i < 40 && !(i % 4))
            tcp->lanes[0].come += HEADER; /* an answer to a CHECK */
        tcp->checks += i < 40 && !(i % 4);
        assert_int_equal(is.status, i < 97 ? 0 : -ETIMEDOUT); /* the last one comes at 18 s */
    }
}

static void other_clients_may_be_silent(NO_STATE)
{
    is.role = IBX_ROLE_SERVER;
    options.silence_ms = 30000; /* is that of a client */
    tcp->posts_used = 1;
    assert_int_equal(look_on(), 0);
    options.answer_ms = 30000;
    tcp->posts_used = 0; /* nothing is wanted of it but the rest of a frame, perhaps */
    assert_int_equal(look_on(), 0);
    is.role = IBX_ROLE_CLIENT;
    tcp->posts_used = 1;
    assert_int_equal(look_on(), 0);
}

/* This process was stopped, and has not listened meanwhile. */
static void a_process_that_comes_late_begins_to_wait(NO_STATE)
{
    options.silence_ms = 30000;
    tcp->expects_signs = true;
    look_after(0);
    look_after(40000);
    assert_int_equal(is.status, 0);
    assert_int_equal(sent(), 3);
    look_after(250); /* the pause is a short one again */
    assert_int_equal(sent(), 3);
}

static void a_sign_of_life_that_was_not_agreed_on_is_an_error(NO_STATE)
{
    const struct ibx_tcp_frame frame = {.type = IBX_TCP_CHECK, .lane = IBX_TCP_LIVES};
    tcp->expects_signs = true;
    ibx_tcp_on_check(&tcp->lanes[0], &frame);
    assert_int_equal(is.status, 0);
    tcp->expects_signs = false;
    ibx_tcp_on_check(&tcp->lanes[0], &frame);
    assert_int_equal(is.status, -EPROTO);
}

/* ------------------------------------------------------------ what the peer has received */

/* The peer says how many bytes of lane 1 it has received: of all that came, when it asks. */
static void tells(enum ibx_tcp_check kind, uint64_t bytes)
{
    const struct ibx_tcp_frame frame = {
        .type = IBX_TCP_CHECK, .lane = (uint8_t)kind, .id = (uint32_t)bytes};
    ibx_tcp_on_check(&tcp->lanes[1], &frame);
}

static void received(uint64_t bytes)
{
    tells(IBX_TCP_ASKS, bytes);
}

/* A time, but for 1 ms, in which it says again and again that it has as many. */
static void nearly_passes(unsigned ms, uint64_t bytes)
{
    for (unsigned i = 1; i < ms / 250; i++) {
        is.now += 250 * MS;
        received(bytes);
    }
    is.now += 249 * MS;
    received(bytes);
    assert_int_equal(is.status, 0);
}

/* ... of a timeout, and what it says then. */
static void waits_on(uint64_t bytes, uint64_t then)
{
    nearly_passes(TIMEOUT, bytes);
    is.now += MS;
    received(then);
}

static void acknowledged_bytes_that_stay_missing_are_lost(NO_STATE)
{
    is.gone = 1000;
    received(900);
    waits_on(900, 900);
    assert_int_equal(is.status, -EBADMSG);
}

/* A timeout that is shorter than TCP's own attempts to send again. */
static void bytes_are_not_lost_within_two_seconds(NO_STATE)
{
    options.timeout_ms = 500;
    is.gone = 1000;
    received(900);
    nearly_passes(2000, 900);
    is.now += MS;
    received(900);
    assert_int_equal(is.status, -EBADMSG);
}

/* Both figures are 32 bits, which go round. */
static void missing_bytes_are_counted_across_4_gib(NO_STATE)
{
    is.gone = (UINT64_C(5) << 32) + 50;
    received((UINT64_C(5) << 32) - 50);
    waits_on((UINT64_C(5) << 32) - 50, (UINT64_C(5) << 32) - 50);
    assert_int_equal(is.status, -EBADMSG);
}

/* More than it was sent: it counts what is under way, which this side has not noted yet. */
static void a_peer_that_has_more_than_was_noted_lacks_nothing(NO_STATE)
{
    is.gone = 1000;
    for (unsigned i = 0; i < 3; i++) {
        received(1001);
        assert_int_equal(tcp->lanes[1].lacking, 0);
        is.now += TIMEOUT * MS;
    }
    received(900);
    waits_on(900, 1001);
    assert_int_equal(is.status, 0);
}

static void what_still_comes_is_not_lost(NO_STATE)
{
    is.gone = 1000;
    received(900);
    waits_on(900, 901);
    assert_int_equal(is.status, 0);
    waits_on(901, 1000);
    waits_on(1000, 1000);
    assert_int_equal(is.status, 0);
}

/* The CHECK may have crossed what was sent. */
static void what_is_sent_meanwhile_proves_nothing(NO_STATE)
{
    is.gone = 1000;
    received(900);
    nearly_passes(TIMEOUT, 900);
    is.now += MS;
    is.gone += 100;
    received(900);
    assert_int_equal(is.status, 0);
    waits_on(900, 900);
    assert_int_equal(is.status, -EBADMSG);
}

/* So many are sent on the lane. */
static void send_checks(unsigned count)
{
    is.gone += (uint64_t)count * HEADER;
    is.checks += (uint64_t)count * HEADER;
}

/* A peer that was away for a while, in a handler, answers the first of the CHECKs that lie there,
 * and reads the others after it; and so again and again. None of these is lost. */
static void checks_that_a_peer_reads_late_are_not_lost(NO_STATE)
{
    const enum ibx_tcp_check kinds[] = {IBX_TCP_ANSWERS, IBX_TCP_ASKS};
    const unsigned away_ms[] = {500, 1000, 3 * TIMEOUT};
    for (unsigned i = 0; i < COUNT(kinds) * COUNT(away_ms); i++) {
        const unsigned ms = away_ms[i / COUNT(kinds)], checks = ms / 250;
        begin(NULL);
        is.gone = 1000;
        for (unsigned away = 0; away < 50; away++) {
            is.now += ms * MS;
            send_checks(checks);
            tells(kinds[i % COUNT(kinds)], is.gone - (checks - 1) * (uint64_t)HEADER);
            assert_int_equal(is.status, 0);
        }
    }
}

/* An answer counts what came before its question: the peer may be away again before it reads on. */
static void an_answer_says_nothing_of_what_lies_behind_its_question(NO_STATE)
{
    send_checks(20);
    tells(IBX_TCP_ANSWERS, HEADER);
    for (uint64_t i = 2; i < 20; i++) {
        is.now += 3 * TIMEOUT * MS;
        send_checks(1);
        tells(IBX_TCP_ANSWERS, i * HEADER);
        assert_int_equal(is.status, 0);
    }
}

/* The peer waits from one CHECK to the next, if these come as often as those of one that waits. */
static void while_the_peer_or_this_side_is_away_nobody_waits(NO_STATE)
{
    is.gone = 1000;
    received(900);
    is.now += 10 * TIMEOUT * MS;
    for (unsigned i = 0; i < 100; i++) /* this side finds these when it is back */
        received(900);
    assert_int_equal(is.status, 0);
    nearly_passes(TIMEOUT - TIMEOUT / 4, 900);
    is.now += MS;
    received(900);
    assert_int_equal(is.status, -EBADMSG);
}

/* What it lacks is older than the CHECKs that are taken for the rest of a frame. */
static void checks_do_not_hide_what_is_lost(NO_STATE)
{
    uint64_t lacks = 5000;
    send_checks(1000); /* which have come */
    is.gone += 10000;
    received(is.gone - lacks);
    for (unsigned i = 0; i < TIMEOUT / 250; i++) {
        assert_int_equal(is.status, 0);
        is.now += 250 * MS;
        send_checks(2);
        received(is.gone - lacks);
    }
    assert_int_equal(is.status, -EBADMSG);
}

/* TCP may still bring them, if as much is not acknowledged; CHECKs that were sent since are not
 * what is missing. */
static void bytes_that_are_not_acknowledged_are_not_lost(NO_STATE)
{
    is.gone = 1000;
    is.unacknowledged = 1;
    received(900);
    waits_on(900, 900);
    assert_int_equal(is.status, 0);
    is.gone += 30, is.checks += 30;
    is.unacknowledged = 31;
    received(900);
    assert_int_equal(is.status, 0);
    is.unacknowledged = 30;
    is.ioctl_fails = -1; /* nobody knows */
    received(900);
    assert_int_equal(is.status, 0);
    is.ioctl_fails = 0;
    received(900);
    assert_int_equal(is.status, -EBADMSG);
}

static void an_answer_is_sent_to_who_asks_while_the_connection_lives(NO_STATE)
{
    const struct ibx_tcp_frame asks = {.type = IBX_TCP_CHECK, .lane = IBX_TCP_ASKS},
                               answers = {.type = IBX_TCP_CHECK, .lane = IBX_TCP_ANSWERS};
    tcp->lanes[1].come = 7;
    ibx_tcp_on_check(&tcp->lanes[1], &answers);
    assert_int_equal(sent(), 0);
    ibx_tcp_on_check(&tcp->lanes[1], &asks);
    assert_int_equal(is.frames[0].lane, IBX_TCP_ANSWERS);
    assert_int_equal(is.frames[0].id, 7);
    assert_int_equal(sent(), 1);
    ibx_tcp_sign_send(&tcp->lanes[1]); /* which is no answer */
    assert_int_equal(is.frames[0].lane, IBX_TCP_LIVES);
    assert_int_equal(sent(), 1);
    tcp->state.now = TCP_DRAINING;
    ibx_tcp_on_check(&tcp->lanes[1], &asks);
    assert_int_equal(sent(), 0);
    assert_int_equal(tcp->checks, 3);
}

/* ------------------------------------------------------------ places */

static bool in_place(enum ibx_tcp_type type, uint32_t place)
{
    const struct ibx_tcp_frame frame = {.type = type, .place = place, .length = 100};
    return ibx_tcp_in_place(&tcp->lanes[1], &frame);
}

static void frames_follow_each_other(NO_STATE)
{
    assert_true(in_place(IBX_TCP_DATA, 0));
    assert_true(in_place(IBX_TCP_CHECK, HEADER + 100));
    assert_int_equal(tcp->lanes[1].come, 2 * HEADER + 100);
    assert_false(in_place(IBX_TCP_DATA, 2 * HEADER + 99));
    assert_int_equal(is.status, -EBADMSG);
}

/* It has another number there: the READ that was refused. */
static void a_refusal_has_no_place(NO_STATE)
{
    assert_true(in_place(IBX_TCP_NAK, 12345));
    assert_true(in_place(IBX_TCP_DATA, HEADER));
    tcp->places = false;
    assert_true(in_place(IBX_TCP_NAK, 12345));
    assert_int_equal(is.status, 0);
}

static void without_places_there_are_neither_places_nor_checks(NO_STATE)
{
    tcp->places = false;
    assert_true(in_place(IBX_TCP_DATA, 0));
    assert_true(in_place(IBX_TCP_DATA, 0));
    assert_false(in_place(IBX_TCP_CHECK, 0));
    assert_int_equal(is.status, -EPROTO);
    is.status = 0;
    assert_false(in_place(IBX_TCP_DATA, 1));
    assert_int_equal(is.status, -EPROTO);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_client_and_who_awaits_an_answer_wait_for_the_peer),
        TEST(who_has_a_part_of_a_frame_waits_for_the_rest),
        TEST(a_part_of_a_record_is_a_part_of_a_frame),
        TEST(a_peer_that_knows_no_places_is_not_asked),
        TEST(a_check_says_what_has_come),
#ifdef IBX_WITH_URING
        TEST(a_check_says_nothing_that_is_not_known),
#endif
        TEST(each_lane_is_asked_after_a_silence),
        TEST(a_frame_of_any_lane_ends_the_silence),
        TEST(checks_of_the_peer_do_not_end_the_silence),
        TEST(more_of_a_frame_than_a_trickle_ends_the_silence),
        TEST(a_connection_that_has_ended_asks_nothing),
        TEST(a_server_without_a_sign_of_life_is_given_up),
        TEST(without_a_limit_or_signs_no_server_is_given_up),
        TEST(a_client_that_answers_nothing_is_given_up),
        TEST(other_clients_may_be_silent),
        TEST(a_process_that_comes_late_begins_to_wait),
        TEST(a_sign_of_life_that_was_not_agreed_on_is_an_error),
        TEST(acknowledged_bytes_that_stay_missing_are_lost),
        TEST(bytes_are_not_lost_within_two_seconds),
        TEST(missing_bytes_are_counted_across_4_gib),
        TEST(a_peer_that_has_more_than_was_noted_lacks_nothing),
        TEST(what_still_comes_is_not_lost),
        TEST(what_is_sent_meanwhile_proves_nothing),
        TEST(checks_that_a_peer_reads_late_are_not_lost),
        TEST(an_answer_says_nothing_of_what_lies_behind_its_question),
        TEST(while_the_peer_or_this_side_is_away_nobody_waits),
        TEST(checks_do_not_hide_what_is_lost),
        TEST(bytes_that_are_not_acknowledged_are_not_lost),
        TEST(an_answer_is_sent_to_who_asks_while_the_connection_lives),
        TEST(frames_follow_each_other),
        TEST(a_refusal_has_no_place),
        TEST(without_places_there_are_neither_places_nor_checks)};
    return cmocka_run_group_tests_name("tcp checks", tests, allocate, release);
}
