/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lanes that stay silent although the peer answers a new connection: which of them end the
 * connection. The kernel's answers about the lanes, and the time, are simulated. */
#include "transport/tcp/tcp.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h> /* not <netinet/tcp.h>, whose tcp_info is shorter */
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LANES   3u   /* including lane 0 */
#define STEP_MS 50u  /* between two looks */
#define OLD_MS  5000 /* the age of a connection that is not new */

static struct tcp tcp;
static struct tcp_info infos[LANES];
static int listener = -1;
static uint64_t now_ms; /* since the connection was made */

static struct tcp_info *info_of(int fd)
{
    for (unsigned i = 0; i < LANES; i++)
        if (tcp.lanes[i].fd == fd)
            return &infos[i];
    return NULL;
}

int __wrap_ioctl(int fd, unsigned long call, int *value);
int __wrap_ioctl(int fd, unsigned long call, int *value)
{
    assert_true(call == SIOCOUTQ && info_of(fd));
    *value = (int)info_of(fd)->tcpi_unacked;
    return 0;
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    if (level != IPPROTO_TCP || name != TCP_INFO)
        return __real_getsockopt(fd, level, name, value, length);
    memcpy(value, info_of(fd), sizeof(struct tcp_info));
    return 0;
}

void __wrap_ibx_tcp_fail(struct tcp *failed, int status, const char *format, ...);
void __wrap_ibx_tcp_fail(struct tcp *failed, int status, const char *format, ...)
{
    (void)format;
    failed->status = status;
}

/* ------------------------------------------------------------------------------ lanes */

static void silence(unsigned lane)
{
    infos[lane] = (struct tcp_info){.tcpi_unacked = 1, .tcpi_retransmits = 1};
    infos[lane].tcpi_last_ack_recv = 1000;
}

static void acknowledge(unsigned lane)
{
    infos[lane] = (struct tcp_info){.tcpi_unacked = 0};
}

static void look(void)
{
    now_ms += STEP_MS;
    for (unsigned i = 0; i < LANES; i++) {
        infos[i].tcpi_last_ack_recv += infos[i].tcpi_retransmits ? STEP_MS : 0;
        infos[i].tcpi_last_data_recv += STEP_MS;
    }
    ibx_tcp_probe_check(&tcp, now_ms * IBX_NS_PER_MS);
}

static void look_until_asked(void)
{
    for (unsigned i = 0; tcp.probe.fd < 0 && i < 10; i++)
        look();
    assert_true(tcp.probe.fd >= 0 && !tcp.status);
}

static void await_answer(void)
{
    struct pollfd answer = {.fd = tcp.probe.fd, .events = POLLOUT};
    assert_int_equal(poll(&answer, 1, 60000), 1);
}

static int begin(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    (void)state;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 16) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        return -1;
    /* wrote: so that no frame is sent as a probe */
    tcp = (struct tcp){.lane_count = LANES - 1, .wrote = true};
    for (unsigned i = 0; i < LANES; i++) {
        acknowledge(i);
        tcp.lanes[i].tcp = &tcp;
        tcp.lanes[i].index = i;
        tcp.lanes[i].small.tail = &tcp.lanes[i].small.head;
        tcp.lanes[i].large.tail = &tcp.lanes[i].large.head;
        tcp.lanes[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(tcp.lanes[i].fd, (struct sockaddr *)&address, length))
            return -1;
    }
    tcp.writable = epoll_create1(EPOLL_CLOEXEC);
    tcp.probe = (struct tcp_probe){.able = true, .fd = -1};
    now_ms = OLD_MS;
    return 0;
}

static int end(void **state)
{
    (void)state;
    ibx_tcp_probe_fini(&tcp);
    for (unsigned i = 0; i < LANES; i++)
        close(tcp.lanes[i].fd);
    close(tcp.writable);
    return close(listener);
}

/* ------------------------------------------------------------------------------ tests */

static void test_a_silent_lane_ends_it(void **state)
{
    (void)state;
    silence(2);
    look_until_asked();
    assert_true(now_ms >= OLD_MS + 200);
    await_answer();
    look();
    assert_int_equal(tcp.status, -ETIMEDOUT);
}

/* On a congested network each lane in turn waits for its retransmission for a while, so that one
 * is always silent. */
static void test_lanes_silent_in_turn_do_not_end_it(void **state)
{
    (void)state;
    for (unsigned turn = 0; turn < 20; turn++) {
        silence(turn % LANES);
        look();
        if (turn)
            acknowledge((turn - 1) % LANES);
        for (unsigned i = 0; i < 2; i++) {
            look();
            assert_true(tcp.probe.fd < 0 && !tcp.status);
        }
    }
}

/* The answer says nothing about a lane that was not silent when the probe was sent, or only
 * briefly. */
static void test_answer_concerns_the_lane_that_was_silent(void **state)
{
    (void)state;
    silence(1);
    look_until_asked();
    silence(2);
    acknowledge(1);
    await_answer();
    look();
    assert_true(tcp.probe.fd < 0 && !tcp.status);
    look_until_asked();
    await_answer();
    look();
    assert_int_equal(tcp.status, -ETIMEDOUT);
}

/* The network is back, and the lane has received a part of what was sent again. */
static void test_lane_that_has_received_since(void **state)
{
    (void)state;
    silence(1);
    look_until_asked();
    await_answer();
    now_ms += STEP_MS;
    infos[1].tcpi_last_ack_recv = STEP_MS / 2;
    ibx_tcp_probe_check(&tcp, now_ms * IBX_NS_PER_MS);
    assert_int_equal(tcp.status, 0);
}

static void speak(unsigned lane)
{
    infos[lane].tcpi_last_data_recv = 0;
}

/* Until a new connection is requested; the lane is acknowledged again before that is answered. */
static void silent_for_a_while(unsigned lane)
{
    silence(lane);
    look_until_asked();
    acknowledge(lane);
    infos[lane].tcpi_last_data_recv = 2000;
}

static void look_for_a_second(void)
{
    for (unsigned i = 0; i < 1000 / STEP_MS && !tcp.status; i++)
        look();
}

/* What the peer sent into the silence, its kernel may send again much later. */
static void test_the_network_is_back_and_the_peer_is_not(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    const uint64_t back_ms = now_ms;
    look_for_a_second();
    assert_int_equal(tcp.status, -ETIMEDOUT);
    assert_true(now_ms >= back_ms + 200);
}

static void test_the_peer_is_back_too(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    look();
    look();
    speak(1);
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
    /* A lane that was silent for a moment only. */
    silence(2);
    look();
    acknowledge(2);
    infos[2].tcpi_last_data_recv = 2000;
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
}

/* While other lanes are busy no CHECK is due, and the peer may have nothing to send on this one. */
static void test_the_peer_is_asked_when_the_network_is_back(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    assert_false(tcp.lanes[1].ask.queued);
    look();
    assert_true(tcp.lanes[1].ask.queued);
    assert_ptr_equal(tcp.lanes[1].large.head, &tcp.lanes[1].ask.item);
    assert_false(tcp.lanes[0].ask.queued || tcp.lanes[2].ask.queued);
    speak(1);
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
}

/* What the peer sent came between two looks, with the acknowledgement. */
static void test_the_peer_was_back_before_the_look(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    infos[1].tcpi_last_data_recv = 0;
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
}

/* What the peer has to answer comes last, and takes its time on a slow network. */
static void test_much_is_still_to_be_sent(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    infos[1].tcpi_notsent_bytes = 1;
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
    infos[1].tcpi_notsent_bytes = 0;
    look_for_a_second();
    assert_int_equal(tcp.status, -ETIMEDOUT);
}

/* The peer is to have its time from the end of the last silence on. */
static void test_another_silence_follows(void **state)
{
    (void)state;
    tcp.places = true;
    silent_for_a_while(1);
    look();
    silence(1);
    for (unsigned i = 0; i < 2; i++)
        look();
    acknowledge(1);
    infos[1].tcpi_last_data_recv = 2000;
    const uint64_t back_ms = now_ms;
    look_for_a_second();
    assert_int_equal(tcp.status, -ETIMEDOUT);
    assert_true(now_ms >= back_ms + 200);
}

/* Its successors might fare no better. */
static void test_a_young_connection_is_kept(void **state)
{
    (void)state;
    tcp.places = true;
    tcp.probe.born = now_ms * IBX_NS_PER_MS;
    silent_for_a_while(1);
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
}

/* An earlier peer answers no CHECK. */
static void test_a_peer_that_cannot_be_asked(void **state)
{
    (void)state;
    silent_for_a_while(1);
    look_for_a_second();
    assert_int_equal(tcp.status, 0);
}

/* A child that was forked meanwhile also has the probe's socket open. Its events must no longer
 * count; otherwise they would wake a thread that waits for the connection as long as the child
 * lives. */
static void test_child_keeps_nobody_awake(void **state)
{
    int ends[2];
    (void)state;
    silence(1);
    look_until_asked();
    await_answer();
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (!child) {
        char byte;
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    acknowledge(1);
    look();
    assert_true(tcp.probe.fd < 0 && !tcp.status);
    struct pollfd wake = {.fd = tcp.writable, .events = POLLIN};
    const int awake = poll(&wake, 1, 0);
    close(ends[0]);
    close(ends[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(awake, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_silent_lane_ends_it, begin, end),
        cmocka_unit_test_setup_teardown(test_lanes_silent_in_turn_do_not_end_it, begin, end),
        cmocka_unit_test_setup_teardown(test_answer_concerns_the_lane_that_was_silent, begin, end),
        cmocka_unit_test_setup_teardown(test_lane_that_has_received_since, begin, end),
        cmocka_unit_test_setup_teardown(test_the_network_is_back_and_the_peer_is_not, begin, end),
        cmocka_unit_test_setup_teardown(test_the_peer_is_back_too, begin, end),
        cmocka_unit_test_setup_teardown(test_the_peer_is_asked_when_the_network_is_back, begin,
                                        end),
        cmocka_unit_test_setup_teardown(test_the_peer_was_back_before_the_look, begin, end),
        cmocka_unit_test_setup_teardown(test_much_is_still_to_be_sent, begin, end),
        cmocka_unit_test_setup_teardown(test_another_silence_follows, begin, end),
        cmocka_unit_test_setup_teardown(test_a_young_connection_is_kept, begin, end),
        cmocka_unit_test_setup_teardown(test_a_peer_that_cannot_be_asked, begin, end),
        cmocka_unit_test_setup_teardown(test_child_keeps_nobody_awake, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
