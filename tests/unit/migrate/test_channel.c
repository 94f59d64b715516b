/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the channel of a migration reports if a connection brings a last message and its end
 * together, or messages without end. This file replaces the transport. */
#include "migrate/channel/channel.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static uint8_t bytes[IBX_MIGRATE_MESSAGE];
static size_t length;
static bool taken;
static bool flooded; /* another message always follows */
static char seen[IBX_ERROR_MAX];

int __wrap_ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max);
int __wrap_ibx_arm(struct ibx_conn *conn);
int __wrap_ibx_fd(const struct ibx_conn *conn);
void __wrap_ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event);
const char *__wrap_ibx_conn_reason(const struct ibx_conn *conn);
const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn);

/* Returns the message and the end in one batch if there is room for both. */
int __wrap_ibx_poll(struct ibx_conn *conn, struct ibx_event *events, int max)
{
    const struct ibx_event message = {.type = IBX_EVENT_MESSAGE, .data = bytes, .length = length};
    const struct ibx_event closed = {.type = IBX_EVENT_CLOSED, .status = -ECONNRESET};
    int n = 0;
    (void)conn;
    for (; flooded && n < max; n++)
        events[n] = message;
    if (flooded)
        return n;
    if (!length)
        return -ENOTCONN;
    if (!taken)
        events[n++] = message;
    taken = true;
    if (n < max) {
        events[n++] = closed;
        length = 0;
    }
    return n;
}

int __wrap_ibx_arm(struct ibx_conn *conn)
{
    (void)conn;
    return 1;
}

int __wrap_ibx_fd(const struct ibx_conn *conn)
{
    (void)conn;
    return -1;
}

void __wrap_ibx_message_release(struct ibx_conn *conn, const struct ibx_event *event)
{
    (void)conn, (void)event;
}

const char *__wrap_ibx_conn_reason(const struct ibx_conn *conn)
{
    (void)conn;
    return "it was cut";
}

const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn)
{
    static const struct ibx_path path = {.peer = "there"};
    (void)conn;
    return &path;
}

static int on_message(void *context, const struct ibx_migrate_any *message)
{
    snprintf(seen, sizeof(seen), "%s", message->is.reason);
    return ibx_error_set(context, -ECONNABORTED, "the other side gave up: %s", message->is.reason);
}

static void test_reason_before_the_end_is_reported(NO_STATE)
{
    const struct ibx_migrate_any last = {.type = IBX_MIGRATE_ABORT, .is.reason = "it is too small"};
    struct ibx_channel channel;
    struct ibx_error err = {0};
    ibx_channel_init(&channel, (struct ibx_conn *)&channel);
    const ssize_t n = ibx_migrate_encode(&last, bytes, sizeof(bytes));
    assert_true(n > 0);
    length = (size_t)n;
    assert_int_equal(ibx_channel_take(&channel, on_message, &err, &err), -ECONNABORTED);
    assert_string_equal(seen, "it is too small");
    assert_string_equal(err.message, "the other side gave up: it is too small");
    assert_int_equal(err.code, -ECONNABORTED);
    /* That the peer has gone is reported only if there is no better reason. */
    assert_int_equal(ibx_channel_take(&channel, on_message, &err, &err), -ENOTCONN);
    assert_string_equal(err.message, "the connection with there is lost: it was cut");
}

static int count(void *context, const struct ibx_migrate_any *message)
{
    (void)message;
    ++*(unsigned *)context;
    return 0;
}

/* A peer that sends without end does not keep the caller longer than the caller allows. */
static void test_endless_messages(NO_STATE)
{
    const struct ibx_migrate_any ready = {.type = IBX_MIGRATE_READY};
    struct ibx_channel channel;
    unsigned messages = 0;
    ibx_channel_init(&channel, (struct ibx_conn *)&channel);
    const ssize_t n = ibx_migrate_encode(&ready, bytes, sizeof(bytes));
    assert_true(n > 0);
    length = (size_t)n;
    flooded = true;
    assert_int_equal(ibx_channel_take(&channel, count, &messages, NULL), 0);
    assert_true(messages > 0);
    ibx_channel_linger(&channel, ibx_deadline_in_ms(20));
    flooded = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reason_before_the_end_is_reported),
                                       cmocka_unit_test(test_endless_messages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
