/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Page connections that are started before the number that the destination wants is known. */
#include "migrate/pages/pages.h"
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>

#define PATIENCE_MS patience_ms(60000)

static struct ibx_acceptor *acceptor;
static struct ibx_options options;
static struct ibx_conn *conns[IBX_MIGRATE_LINKS_MAX];
static struct ibx_domain *domain;
static int fds;

static void begin(void)
{
    struct ibx_error err = {0};
    fds = open_fds();
    ibx_options_init(&options);
    options.timeout_ms = PATIENCE_MS;
    options.message = IBX_MIGRATE_MESSAGE;
    if (ibx_acceptor_open("tcp://127.0.0.1:0", &options, &acceptor, &err))
        fail_msg("%s", err.message);
}

static struct ibx_page_connections *begun(const char *uri, unsigned count)
{
    struct ibx_page_connections *c = NULL;
    assert_int_equal(ibx_page_connections_begin(uri, &options, count, &c), 0);
    return c;
}

static int take(struct ibx_page_connections *c, const char *uri, unsigned links,
                struct ibx_error *err)
{
    const struct ibx_page_server_config config = {.uri = uri,
                                                  .options = &options,
                                                  .join = {.id = {1}, .epoch = 7},
                                                  .links = links,
                                                  .begun = c};
    return ibx_page_connections_take(&config, conns, &domain, err);
}

/* Waits for this many JOINs, each on another link. */
static void join(unsigned links)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    struct ibx_connection_request request;
    struct ibx_event event;
    unsigned seen = 0;
    for (unsigned n = 0; n < links;) {
        for (unsigned i = 0; i < links; i++) /* a JOIN may need a poll to leave */
            ibx_poll(conns[i], &event, 1);
        assert_true(ibx_now_ns() < deadline);
        if (!ibx_acceptor_take(acceptor, &request)) {
            poll(NULL, 0, 1);
            continue;
        }
        assert_int_equal(request.first.type, IBX_MIGRATE_JOIN);
        assert_int_equal(request.first.is.join.epoch, 7);
        assert_true(request.first.is.join.link < links);
        seen |= 1u << request.first.is.join.link;
        ibx_close(request.conn);
        n++;
    }
    assert_int_equal(seen, (1u << links) - 1);
}

static void end(unsigned links)
{
    for (unsigned i = 0; i < links; i++)
        ibx_close(conns[i]);
    ibx_domain_release(domain);
    domain = NULL;
    ibx_acceptor_close(acceptor);
    assert_int_equal(open_fds(), fds);
}

static void test_as_many_as_were_begun(NO_STATE)
{
    begin();
    const char *uri = ibx_acceptor_uri(acceptor);
    assert_int_equal(take(begun(uri, 3), uri, 3, NULL), 0);
    assert_non_null(domain);
    join(3);
    end(3);
}

/* In a domain, the thread that serves faults would encrypt bulk data too. */
static void test_single_connection_has_no_domain(NO_STATE)
{
    begin();
    const char *uri = ibx_acceptor_uri(acceptor);
    assert_int_equal(take(begun(uri, 1), uri, 1, NULL), 0);
    assert_null(domain);
    join(1);
    end(1);
}

/* The others are closed; the destination accepts that. */
static void test_fewer_than_were_begun(NO_STATE)
{
    struct ibx_connection_request request;
    begin();
    const char *uri = ibx_acceptor_uri(acceptor);
    assert_int_equal(take(begun(uri, 4), uri, 1, NULL), 0);
    join(1);
    assert_false(ibx_acceptor_take(acceptor, &request));
    end(1);
}

static void test_more_than_were_begun(NO_STATE)
{
    begin();
    const char *uri = ibx_acceptor_uri(acceptor);
    assert_int_equal(take(begun(uri, 1), uri, 3, NULL), 0);
    join(3);
    end(3);
}

/* Connections that failed are made again when they are needed. */
static void test_failed_connections_are_made_again(NO_STATE)
{
    struct ibx_error err = {0};
    begin();
    assert_int_equal(take(begun("tcp://127.0.0.1:1", 2), ibx_acceptor_uri(acceptor), 2, NULL), 0);
    join(2);
    end(2);
    begin();
    assert_int_equal(take(begun("tcp://127.0.0.1:1", 2), "tcp://127.0.0.1:1", 2, &err),
                     -ECONNREFUSED);
    assert_non_null(strstr(err.message, "page connection 0"));
    end(0);
}

/* The destination has stopped waiting for the old ones. */
static void test_old_connections_are_made_again(NO_STATE)
{
    begin();
    const char *uri = ibx_acceptor_uri(acceptor);
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    ibx_acceptor_first_within(acceptor, 100);
    options.timeout_ms = 2000;
    struct ibx_page_connections *c = begun(uri, 1);
    options.timeout_ms = PATIENCE_MS;
    struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
    assert_int_equal(poll(&wait, 1, (int)PATIENCE_MS), 1);
    while (ibx_acceptor_busy(acceptor))
        assert_true(ibx_now_ns() < deadline);
    ibx_acceptor_first_within(acceptor, PATIENCE_MS);
    poll(NULL, 0, 1050); /* half of the limit for the first message with these options */
    assert_int_equal(take(c, uri, 1, NULL), 0);
    join(1);
    end(1);
}

static void test_dropped(NO_STATE)
{
    struct ibx_connection_request request;
    begin();
    ibx_page_connections_drop(NULL);
    ibx_page_connections_drop(begun(ibx_acceptor_uri(acceptor), 3));
    assert_false(ibx_acceptor_take(acceptor, &request));
    end(0);
}

/* Threads of an idle process: ThreadSanitizer has one of its own once a thread is started. */
#if defined(__SANITIZE_THREAD__)
#define OWN_TASKS 2
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OWN_TASKS 2
#endif
#endif
#ifndef OWN_TASKS
#define OWN_TASKS 1
#endif

/* The acceptor's threads are detached. OpenSSL frees its data of each when the thread has ended. */
static int await_own_threads(void **state)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    struct stat tasks;
    (void)state;
    while (!stat("/proc/self/task", &tasks) && tasks.st_nlink > 2 + OWN_TASKS &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_many_as_were_begun),
        cmocka_unit_test(test_single_connection_has_no_domain),
        cmocka_unit_test(test_fewer_than_were_begun),
        cmocka_unit_test(test_more_than_were_begun),
        cmocka_unit_test(test_failed_connections_are_made_again),
        cmocka_unit_test(test_old_connections_are_made_again),
        cmocka_unit_test(test_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, await_own_threads);
}
