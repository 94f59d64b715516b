/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A destination that is asked about a migration and closes the connection without an answer. */
#include "migrate/channel/channel.h"
#include "migrate/migrate.h"
#include "tests/scenes/unit.h"

#include "common/clock.h"
#include "tests/scenes/patience.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct server {
    struct ibx_listener *listener;
    unsigned answers; /* connections that it closes before it ends; 0: never ends */
    unsigned closed;
    bool over;
};

static struct ibx_options options;

/* As a receiver that ends, or one of an earlier version, which does not know what it is asked. */
static void *serve(void *argument)
{
    struct server *server = argument;
    while (!__atomic_load_n(&server->over, __ATOMIC_ACQUIRE) &&
           (!server->answers || server->closed < server->answers)) {
        struct pollfd wait = {.fd = ibx_listener_fd(server->listener), .events = POLLIN};
        struct ibx_conn *conn;
        if (poll(&wait, 1, 20) < 1 || ibx_accept(server->listener, &conn, NULL))
            continue;
        if (!ibx_establish(conn, NULL))
            server->closed++;
        ibx_close(conn);
    }
    ibx_listener_close(server->listener);
    return NULL;
}

static int query(struct server *server)
{
    static struct ibx_migrate_answer answer;
    struct ibx_record record = {.source = true, .epoch = 1, .id = {1}};
    struct ibx_error err = {0};
    pthread_t thread;
    ibx_options_init(&options);
    options.lanes = 1;
    options.message = IBX_MIGRATE_MESSAGE;
    options.timeout_ms = (unsigned)patience_ms(5000);
    snprintf(options.purpose, sizeof(options.purpose), IBX_MIGRATE_PURPOSE);
    assert_int_equal(ibx_listen("tcp://127.0.0.1:0", &options, &server->listener, &err), 0);
    snprintf(record.uri, sizeof(record.uri), "%s", ibx_listener_uri(server->listener));
    assert_int_equal(pthread_create(&thread, NULL, serve, server), 0);
    const int rc = ibx_migrate_query(&record, &options, &answer, &err);
    print_message("%d %s\n", rc, err.message);
    __atomic_store_n(&server->over, true, __ATOMIC_RELEASE);
    pthread_join(thread, NULL);
    return rc;
}

/* Nobody is there to be asked, and whoever asks has to know that. */
static void test_one_that_ends(NO_STATE)
{
    struct server server = {.answers = 1};
    assert_int_equal(query(&server), -ECONNREFUSED);
    assert_int_equal(server.closed, 1);
}

static void test_one_of_another_version(NO_STATE)
{
    struct server server = {.answers = 0};
    assert_int_equal(query(&server), -EPROTOTYPE);
    assert_true(server.closed > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_ends),
        cmocka_unit_test(test_one_of_another_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
