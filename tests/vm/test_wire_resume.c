/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Sessions over verbs that continue: after a cut of the wire that both ends noticed, with any
 * queue pair in error, after a device was unplugged and plugged in again, and after links were
 * down. Every body is read once and is right.
 *
 * Linked with --wrap, so that the test knows the queue pairs. Runs in the guest only
 * (README.md). */
#include "tests/fixtures/session_pair.h"
#include "tests/vm/wire.h"

#include "common/clock.h"
#include "common/log.h"

#include <infiniband/verbs.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <cmocka.h>

#define BODY        (3u << 20)
#define QUEUE_PAIRS 32u
#define PATIENCE_MS 60000u /* for an emulator on a busy host */

/* ----------------------------------------------------------------- the queue pairs */

static _Atomic(struct ibv_qp *) queue_pairs[QUEUE_PAIRS]; /* of both ends of the first connection */
static atomic_uint queue_pair_count;

struct ibv_qp *__real_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *__wrap_ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    struct ibv_qp *qp = __real_ibv_create_qp(pd, attr);
    const unsigned i = qp ? atomic_fetch_add(&queue_pair_count, 1) : QUEUE_PAIRS;
    if (i < QUEUE_PAIRS)
        queue_pairs[i] = qp;
    return qp;
}

static void put_in_error(unsigned i)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    assert_int_equal(ibv_modify_qp(queue_pairs[i], &attr, IBV_QP_STATE), 0);
}

/* ------------------------------------------------------------------------ a session */

static struct session_pair pair;
static atomic_uint bodies;          /* that the server has read */
static atomic_bool ends_connection; /* the server ends it after the next body */
static const char *paths = "verbs"; /* in order of preference */

/* Reads bodies. Returns how many were right, or -1. Each answer contains its number. */
static int read_bodies(struct session_pair *p, void *argument)
{
    uint8_t *bytes = malloc(BODY);
    uint32_t count = 0;
    bool right = true;
    (void)argument;
    while (right && ibx_session_read(p->server, bytes, BODY) == BODY) {
        right = pattern_check(bytes, BODY, count) == BODY;
        bodies = ++count;
        if (ibx_session_write(p->server, &count, 4) != 4 || ibx_session_sync(p->server))
            break;
        if (atomic_exchange(&ends_connection, false))
            ibx_abort(p->server->conn);
    }
    free(bytes);
    return right ? (int)count : -1;
}

static int set_up(void **state)
{
    (void)state;
    queue_pair_count = 0;
    bodies = 0;
    session_keeps = 120;
    session_pair_use(paths, getenv("IBX_VM_ADDR_A"), "timeout_ms", "10000");
    session_pair_open(&pair);
    session_pair_start(&pair, read_bodies, NULL);
    return 0;
}

static int set_up_both(void **state)
{
    paths = "verbs,tcp";
    return set_up(state);
}

static int tear_down(void **state)
{
    (void)state;
    const int rc = wire_mend_any();
    session_pair_close(&pair);
    paths = "verbs";
    return rc;
}

static uint8_t *body;

static void send_body(unsigned number)
{
    uint32_t answer = 0;
    pattern_fill(body, BODY, number);
    if (ibx_session_write(pair.client, body, BODY) != BODY || ibx_session_sync(pair.client) ||
        ibx_session_read(pair.client, &answer, 4) != 4)
        fail_msg("body %u: \"%s\"", number, ibx_session_reason(pair.client));
    assert_int_equal(answer, number + 1);
}

static void end(unsigned sent)
{
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), sent);
}

/* ---------------------------------------------------------------------------- tests */

static unsigned breaks_at; /* the body */
static int breaks_after_us;
static void (*breaks)(void);
static void (*mends)(void); /* called when both ends have noticed; NULL: nothing to mend */

static bool noticed(const struct ibx_session *s)
{
    const volatile unsigned *now = &s->link.state.now; /* written by another thread */
    return *now != (unsigned)LINK_CONNECTED || ibx_session_resumed(s);
}

static atomic_bool broken; /* and mended */

static void *break_and_mend(void *argument)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    (void)argument;
    while (bodies < breaks_at)
        poll(NULL, 0, 1);
    usleep((unsigned)breaks_after_us);
    breaks();
    while (mends && ibx_now_ns() < deadline && !(noticed(pair.client) && noticed(pair.server)))
        poll(NULL, 0, 10);
    if (mends)
        mends();
    broken = true;
    return NULL;
}

/* Sends at least `count` bodies, and continues until they use `path`. A device is unplugged when
 * its users have closed it, and a session closes a connection when it has read the last message
 * from it. Returns the number of bodies. */
static unsigned meet(unsigned count, const char *path)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    unsigned sent = 0;
    pthread_t breaker;
    broken = false;
    assert_int_equal(pthread_create(&breaker, NULL, break_and_mend, NULL), 0);
    while (sent < count || ((!broken || strcmp(ibx_session_path(pair.client)->provider, path)) &&
                            ibx_now_ns() < deadline))
        send_body(sent++);
    pthread_join(breaker, NULL);
    send_body(sent++);
    print_message("%u times, at last by %s\n", ibx_session_resumed(pair.client),
                  ibx_session_path(pair.client)->provider);
    assert_string_equal(ibx_session_path(pair.client)->provider, path);
    return sent;
}

/* Returns how often the session has continued. */
static unsigned run(unsigned count)
{
    const unsigned sent = meet(count, "verbs");
    const unsigned resumed = ibx_session_resumed(pair.client);
    end(sent);
    return resumed;
}

static void cut_that_is_noticed(void **state)
{
    (void)state;
    breaks_at = 2;
    breaks_after_us = 2000;
    breaks = wire_cut;
    mends = wire_mend;
    assert_in_range(run(5), 1, 10);
}

/* A NIC is unplugged, as before its VM migrates, and plugged in again. */
static void device_removed_and_added(void **state)
{
    (void)state;
    breaks_at = 2;
    breaks_after_us = 2000;
    breaks = device_remove;
    mends = NULL;
    const unsigned sent = meet(4, "tcp");
    device_add();
    ends_connection = true;
    send_body(sent);
    send_body(sent + 1);
    assert_string_equal(ibx_session_path(pair.client)->provider, "verbs");
    end(sent + 2);
}

/* A soft-RoCE device that had to send while its link was down connects no more queue pairs, up
 * to Linux 7.3, not even for rping. TCP remains. In Linux 6.1 rdma_destroy_id() then does not
 * return. */
static void link_down_and_up(void **state)
{
    struct utsname kernel;
    (void)state;
    if (uname(&kernel) || strtoul(kernel.release, NULL, 10) < 7) {
        print_message("soft-RoCE of Linux %s does not live through that\n", kernel.release);
        end(0);
        skip();
    }
    breaks_at = 2;
    breaks_after_us = 2000;
    breaks = links_down;
    mends = links_up;
    end(meet(4, "tcp"));
}

static unsigned victim;

static void break_queue_pair(void)
{
    put_in_error(victim);
}

/* An idle queue pair may fail unnoticed. That of the messages and the first bulk one are
 * noticed. */
static void queue_pair_in_error(void **state)
{
    unsigned resumed = 0, all = queue_pair_count;
    assert_in_range(all, 4, QUEUE_PAIRS);
    mends = NULL;
    breaks = break_queue_pair;
    for (victim = 0; victim < all; victim++) {
        if (victim) {
            tear_down(state);
            set_up(state);
        }
        breaks_at = 1;
        breaks_after_us = (int)(victim * 1500);
        resumed += run(4);
    }
    print_message("%u queue pairs, %u times another connection\n", all, resumed);
    assert_in_range(resumed, all / 2, 4 * all);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cut_that_is_noticed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(device_removed_and_added, set_up_both, tear_down),
        cmocka_unit_test_setup_teardown(queue_pair_in_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(link_down_and_up, set_up_both, tear_down),
    };
    if (!getenv("IBX_VM")) {
        print_error("test_wire_resume cuts the wires of the guest of tests/vm: run it there\n");
        return 77;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    body = malloc(BODY);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(body);
    return rc;
}
