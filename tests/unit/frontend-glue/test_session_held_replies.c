/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server holds a reply until that to the next request, which has arrived and runs quickly; but
 * not if it takes long. */
#include "tests/fixtures/session_pair.h"

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define RECORD  "cudaEventRecord"
#define LAUNCH  "cudaGraphLaunch"
#define BODY_OF 16u

static sem_t may_end;
static unsigned requests;

/* The second request, and each one after it, takes as long as the test wants. */
static void run(void)
{
    if (requests++)
        sem_wait(&may_end);
}

static int answer(struct ibx_session *s)
{
    const uint8_t byte = (uint8_t)requests;
    return ibx_session_write(s, &byte, 1) == 1 ? ibx_session_sync(s) : -1;
}

/* ------------------------------------------------------------- requests that a hook runs */

static bool wants_request(void *context)
{
    (void)context;
    return true;
}

static int run_in_hook(void *context, const struct ibx_request *q)
{
    run();
    ibx_session_consume(context, q);
    return answer(context) ? -1 : IBX_REQUEST_DONE;
}

static const struct ibx_session_hooks hooks = {.wants_request = wants_request,
                                               .request = run_in_hook};

static int serve_by_hook(struct session_pair *pair, void *argument)
{
    uint8_t byte;
    (void)argument;
    ibx_session_set_hooks(pair->server, &hooks, pair->server);
    return ibx_session_read(pair->server, &byte, 1) != 1 || byte != '.';
}

/* Looks after the client meanwhile, as a request does that waits for NCCL. */
static int look_in_hook(void *context, const struct ibx_request *q)
{
    uint64_t since = 0;
    const bool waits = requests++;
    while (waits && sem_trywait(&may_end))
        assert_false(ibx_session_client_gone(context, &since));
    ibx_session_consume(context, q);
    return answer(context) ? -1 : IBX_REQUEST_DONE;
}

static const struct ibx_session_hooks looking_hooks = {.wants_request = wants_request,
                                                       .request = look_in_hook};

static int serve_by_looking_hook(struct session_pair *pair, void *argument)
{
    uint8_t byte;
    (void)argument;
    ibx_session_set_hooks(pair->server, &looking_hooks, pair->server);
    return ibx_session_read(pair->server, &byte, 1) != 1 || byte != '.';
}

/* ------------------------------------------------------------------ ... that GVirtuS runs */

static int take_requests(struct session_pair *pair, unsigned count, void (*run_one)(void))
{
    uint8_t byte, request[BODY_OF + 8];
    for (unsigned i = 0; i < count; i++) {
        do {
            if (ibx_session_read(pair->server, &byte, 1) != 1)
                return -1;
        } while (byte);
        if (ibx_session_read(pair->server, request, 8) != 8 ||
            ibx_session_read(pair->server, request, BODY_OF) != BODY_OF)
            return -1;
        if (run_one)
            run_one();
        if (answer(pair->server))
            return -1;
    }
    return 0;
}

static int serve_requests(struct session_pair *pair, unsigned count, void (*run_one)(void))
{
    uint8_t byte;
    return take_requests(pair, count, run_one) || ibx_session_read(pair->server, &byte, 1) != 1 ||
           byte != '.';
}

static int serve_as_gvirtus(struct session_pair *pair, void *argument)
{
    return serve_requests(pair, *(const unsigned *)argument, run);
}

/* The request waits for another session's before GVirtuS gets the last of its bytes. */
static int wait_at_end(void *context, void *bytes, size_t n)
{
    (void)context, (void)bytes;
    if (n == BODY_OF)
        run();
    return 0;
}

static const struct ibx_session_hooks waiting_hooks = {.note_read = wait_at_end};

static int serve_late_as_gvirtus(struct session_pair *pair, void *argument)
{
    ibx_session_set_hooks(pair->server, &waiting_hooks, pair->server);
    return serve_requests(pair, *(const unsigned *)argument, NULL);
}

/* --------------------------------------------------------------- ... both, and memory is short */

static struct ibx_session *_Atomic failing; /* its first message is sent, but not kept */
static atomic_int refusal;                  /* of the next message, which is not sent */
static sem_t has_failed, is_lent, may_go_on;

int __real_ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
int __wrap_ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt);
int __wrap_ibx_session_try_send(struct ibx_session *s, const struct iovec *iov, int iovcnt)
{
    struct ibx_session *once = s;
    const int refused = atomic_exchange(&refusal, 0);
    if (refused)
        return refused;
    const int rc = __real_ibx_session_try_send(s, iov, iovcnt);
    if (rc || !atomic_compare_exchange_strong(&failing, &once, NULL))
        return rc;
    sem_post(&has_failed);
    return -ENOMEM;
}

static const struct ibx_session_hooks no_hooks;

static int pass_late(void *context, const struct ibx_request *q)
{
    (void)q;
    ibx_session_set_hooks(context, &no_hooks, NULL);
    sem_wait(&has_failed);
    return IBX_REQUEST_PASS;
}

static const struct ibx_session_hooks passing_hooks = {.wants_request = wants_request,
                                                       .request = pass_late};

static void wait_to_go_on(void)
{
    sem_post(&is_lent);
    sem_wait(&may_go_on);
}

static int serve_without_memory(struct session_pair *pair, void *argument)
{
    (void)argument;
    atomic_store(&failing, pair->server);
    if (take_requests(pair, 1, NULL))
        return -1;
    ibx_session_set_hooks(pair->server, &passing_hooks, pair->server);
    return take_requests(pair, 1, wait_to_go_on);
}

/* ------------------------------------------------------------------------------- tests */

static void ask(struct ibx_session *s, const char *name)
{
    const uint8_t body[8 + BODY_OF] = {BODY_OF};
    assert_int_equal(ibx_session_write(s, name, strlen(name) + 1), strlen(name) + 1);
    assert_int_equal(ibx_session_write(s, body, sizeof(body)), sizeof(body));
}

static void expect_answer(struct ibx_session *s, unsigned number)
{
    uint8_t byte = 0;
    assert_int_equal(ibx_session_read(s, &byte, 1), 1);
    assert_int_equal(byte, number);
}

/* Each reply arrives while the next request runs; the test's limit ends it if one does not. */
static void replies_come(int (*serve)(struct session_pair *, void *))
{
    unsigned count = 4;
    struct session_pair pair;
    requests = 0;
    session_pair_open(&pair);
    session_pair_start(&pair, serve, &count);
    ask(pair.client, RECORD);
    for (unsigned i = 1; i < count; i++)
        ask(pair.client, LAUNCH);
    assert_int_equal(ibx_session_write(pair.client, ".", 1), 1);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    for (unsigned i = 1; i <= count; i++) {
        expect_answer(pair.client, i);
        sem_post(&may_end);
    }
    assert_int_equal(session_pair_join(&pair), 0);
    sem_wait(&may_end); /* the last one */
    session_pair_close(&pair);
}

static void while_a_hook_runs_the_next(void **state)
{
    (void)state;
    replies_come(serve_by_hook);
}

static void while_a_hook_looks_after_the_client(void **state)
{
    (void)state;
    replies_come(serve_by_looking_hook);
}

static void while_gvirtus_runs_the_next(void **state)
{
    (void)state;
    replies_come(serve_as_gvirtus);
}

static void before_gvirtus_runs_the_next(void **state)
{
    (void)state;
    replies_come(serve_late_as_gvirtus);
}

/* The sender has looked twice when another session's reply has come. */
static void a_reply_whose_sending_failed_comes_once(void **state)
{
    uint8_t byte;
    struct session_pair pair;
    (void)state;
    session_pair_open(&pair);
    session_pair_start(&pair, serve_without_memory, NULL);
    ask(pair.client, RECORD);
    ask(pair.client, LAUNCH);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    sem_wait(&is_lent);
    replies_come(serve_by_hook);
    sem_post(&may_go_on);
    assert_int_equal(ibx_session_read(pair.client, &byte, 1), 1);
    assert_int_equal(ibx_session_read(pair.client, &byte, 1), 0);
    assert_int_not_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
}

/* The sender tries again while the request still runs. */
static void there_is_no_credit_or_connection_at_first(void **state)
{
    static const int refusals[] = {-EAGAIN, -ENOTCONN};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        atomic_store(&refusal, refusals[i]);
        replies_come(serve_by_hook);
        assert_int_equal(atomic_load(&refusal), 0);
    }
}

/* Each reply comes once over the next connection, or had come before. */
static void the_connection_breaks(void **state)
{
    int (*const serve[])(struct session_pair *, void *) = {serve_by_hook, serve_by_looking_hook,
                                                           serve_as_gvirtus};
    unsigned count = 4;
    (void)state;
    session_keeps = 30;
    for (unsigned i = 0; i < 12; i++) {
        struct session_pair pair;
        requests = 0;
        session_pair_open(&pair);
        session_pair_start(&pair, serve[i % 3], &count);
        ask(pair.client, RECORD);
        for (unsigned k = 1; k < count; k++)
            ask(pair.client, LAUNCH);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        if (i % 4 < 2)
            expect_answer(pair.client, 1);
        ibx_abort(pair.client->conn);
        for (unsigned k = 1; k < count; k++)
            sem_post(&may_end);
        for (unsigned k = i % 4 < 2 ? 2 : 1; k <= count; k++)
            expect_answer(pair.client, k);
        assert_int_equal(ibx_session_write(pair.client, ".", 1), 1);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        assert_int_equal(session_pair_join(&pair), 0);
        session_pair_close(&pair);
    }
    session_keeps = 0;
}

/* The session ends while a reply is held; the client may be gone by then. */
static void the_end_comes_first(void **state)
{
    (void)state;
    unsigned count = 2;
    for (unsigned i = 0; i < 20; i++) {
        struct session_pair pair;
        requests = 0;
        session_pair_open(&pair);
        session_pair_start(&pair, i % 2 ? serve_by_hook : serve_as_gvirtus, &count);
        ask(pair.client, RECORD);
        ask(pair.client, LAUNCH);
        assert_int_equal(ibx_session_sync(pair.client), 0);
        if (i % 4 < 2)
            expect_answer(pair.client, 1);
        ibx_session_close(pair.client);
        sem_post(&may_end);
        assert_int_not_equal(session_pair_join(&pair), 0);
        while (!sem_trywait(&may_end)) /* it may have seen the end before its second request */
            ;
        session_pair_close(&pair);
    }
}

int main(void)
{
    sem_t *const all[] = {&may_end, &has_failed, &is_lent, &may_go_on};
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        sem_init(all[i], 0, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_a_hook_runs_the_next),
        cmocka_unit_test(while_a_hook_looks_after_the_client),
        cmocka_unit_test(while_gvirtus_runs_the_next),
        cmocka_unit_test(before_gvirtus_runs_the_next),
        cmocka_unit_test(a_reply_whose_sending_failed_comes_once),
        cmocka_unit_test(there_is_no_credit_or_connection_at_first),
        cmocka_unit_test(the_connection_breaks),
        cmocka_unit_test(the_end_comes_first),
    };
    int failed = 0;
    for (unsigned i = 0; i < 2; i++) {
        session_pair_use(i ? "tcp" : "shm", NULL, NULL, NULL);
        failed += cmocka_run_group_tests_name(i ? "tcp" : "shm", tests, NULL, NULL);
    }
    return failed;
}
