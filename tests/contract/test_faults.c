/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Fault injection on the real provider: each fault has the effect that the interface promises. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Opens memory of four chunks and a little more. */
static struct field open_field(enum side side, struct ibx_injected_faults *faults)
{
    struct pair *pair = pair_open_with(side, &(struct pair_options){.faults = faults});
    return field_open(pair, 4 * pair->end.caps->chunk + 100, R | W);
}

static int read_all(struct field *field)
{
    unsigned post =
        end_read(field->end, field->mr, field->bytes, &field->remote, 0, field->length, 0);
    AWAIT(field->end, field->end->posts[post].times);
    return field->end->posts[post].status;
}

static void test_fail(void **state)
{
    struct ibx_injected_faults faults = {0};
    struct field field = open_field(SIDE_OF(state), &faults);
    CHECK(read_all(&field) == 0);
    for (unsigned nth = 1; nth <= 5; nth++) {
        faults.fail_in = nth;
        CHECK(read_all(&field) == -EIO);
        CHECK(faults.fail_in == 0);
        AWAIT(field.end, field.end->completed == field.end->posted);
        CHECK(read_all(&field) == 0);
        CHECK(pattern_check(field.bytes, field.length, SEED_REMOTE, 0) < 0);
    }
    faults.fail_in = 3;
    unsigned first = field.end->posted;
    for (int i = 0; i < 5; i++)
        end_write(field.end, field.mr, field.bytes, &field.remote, 0, 100, i ? 0 : IBX_URGENT);
    AWAIT(field.end, field.end->completed == field.end->posted);
    int failed = 0;
    for (int i = 0; i < 5; i++)
        failed += field.end->posts[first + (unsigned)i].status == -EIO;
    CHECK(failed == 1);
    field_close(&field);
}

static void test_corrupt_read(void **state)
{
    struct ibx_injected_faults faults = {.corrupt_in = 3};
    struct field field = open_field(SIDE_OF(state), &faults);
    CHECK(read_all(&field) == 0);
    ssize_t at = pattern_check(field.bytes, field.length, SEED_REMOTE, 0);
    CHECK(at >= 0);
    field.bytes[at] ^= 1;
    CHECK(pattern_check(field.bytes, field.length, SEED_REMOTE, 0) < 0);
    CHECK(read_all(&field) == 0);
    CHECK(pattern_check(field.bytes, field.length, SEED_REMOTE, 0) < 0);
    field_close(&field);
}

/* Notes the echoes that arrive: one character each, in order. */
static void message_noted(struct end *end, const struct ibx_event *event)
{
    char *text = end->owner;
    CHECK(event->length == 1 && end->received < 15);
    text[end->received++] = *(const char *)event->data;
    text[end->received] = '\0';
    ibx_message_release(end->conn, event);
}

static void send_text(struct field *field, const char *text)
{
    for (; *text; text++) {
        struct iovec iov = {(void *)(uintptr_t)text, 1};
        end_push(field->end, &iov, 1, 0, 0);
    }
}

static struct field open_chat(enum side side, struct ibx_injected_faults *faults, char *echoed)
{
    struct field field = open_field(side, faults);
    pair_ask(field.pair, (struct order){.verb = ORDER_MODE, .value = MODE_ECHO});
    field.end->message = message_noted;
    field.end->owner = echoed;
    return field;
}

static void await_fault(struct field *field, const _Atomic unsigned *countdown)
{
    uint64_t deadline = await_until();
    while (*countdown) { /* the fault makes no event to sleep for */
        end_poll(field->end);
        CHECK(ibx_now_ns() < deadline);
    }
}

/* With a key, a changed message ends the connection, and so does the message after a lost one. */
static void check_noticed(enum side side, bool lost)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct field field = open_chat(side, &faults, echoed);
    faults.drop_in = lost ? 2 : 0; /* the echo */
    faults.corrupt_in = lost ? 0 : 2;
    send_text(&field, "a");
    await_fault(&field, lost ? &faults.drop_in : &faults.corrupt_in);
    if (lost)
        send_text(&field, "b");
    AWAIT(field.end, field.end->closed);
    CHECK(field.end->closed_status == -EBADMSG);
    CHECK(!echoed[0]);
    ibx_close(field.end->conn);
    field.end->conn = NULL;
    pair_await(field.pair, ORDER_STATUS, true);
    field_close(&field);
}

static void test_drop(void **state)
{
    if (contract.key) {
        check_noticed(SIDE_OF(state), true);
        return;
    }
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct field field = open_chat(SIDE_OF(state), &faults, echoed);
    faults.drop_in = 2; /* the second one that is sent */
    send_text(&field, "abc");
    AWAIT(field.end, field.end->received == 2);
    CHECK(!strcmp(echoed, "ac"));
    send_text(&field, "d");
    AWAIT(field.end, field.end->received == 3);
    faults.drop_in = 2; /* "e" is sent, and its echo is lost */
    send_text(&field, "e");
    await_fault(&field, &faults.drop_in);
    send_text(&field, "f");
    AWAIT(field.end, field.end->received == 4);
    CHECK(!strcmp(echoed, "acdf"));
    field_close(&field);
}

static void test_corrupt_messages(void **state)
{
    if (contract.key) {
        check_noticed(SIDE_OF(state), false);
        return;
    }
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct field field = open_chat(SIDE_OF(state), &faults, echoed);
    faults.corrupt_in = 2;
    send_text(&field, "bbb");
    AWAIT(field.end, field.end->received == 3);
    CHECK(!strcmp(echoed, "bcb"));
    faults.corrupt_in = 2; /* the echo */
    send_text(&field, "b");
    AWAIT(field.end, field.end->received == 4);
    CHECK(!strcmp(echoed, "bcbc"));
    field_close(&field);
}

static void test_delay(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct field field = open_chat(SIDE_OF(state), &faults, echoed);
    faults.delay_polls = UINT32_MAX;
    send_text(&field, "xyz");
    end_read(field.end, field.mr, field.bytes, &field.remote, 0, 1000, 0);
    uint64_t deadline = await_until();
    while (pair_ask(field.pair, (struct order){.verb = ORDER_COUNT}).value < 3) {
        CHECK(end_poll(field.end) == 0);
        CHECK(ibx_now_ns() < deadline);
    }
    for (int i = 0; i < 1000; i++)
        CHECK(end_poll(field.end) == 0);
    faults.delay_polls = 5;
    AWAIT(field.end, field.end->received == 3 && field.end->completed == 1);
    CHECK(!strcmp(echoed, "xyz"));
    CHECK(pattern_check(field.bytes, 1000, SEED_REMOTE, 0) < 0);
    field_close(&field);
}

static void check_cut(struct field *field)
{
    AWAIT(field->end, field->end->closed);
    CHECK(field->end->closed_status == -ECONNRESET);
    CHECK(strstr(ibx_conn_reason(field->end->conn), "fault"));
    end_check_books(field->end);
    ibx_close(field->end->conn); /* deregisters too */
    field->end->conn = NULL;
    pair_await(field->pair, ORDER_STATUS, true);
    field_close(field);
}

static void test_disconnect_by_chunk(void **state)
{
    struct ibx_injected_faults faults = {0};
    struct field field = open_field(SIDE_OF(state), &faults);
    faults.disconnect_in = 8;
    for (int i = 0; i < 4; i++)
        end_read(field.end, field.mr, field.bytes, &field.remote, 0, field.length, 0);
    AWAIT(field.end, field.end->completed == 4);
    CHECK(field.end->failed >= 3);
    check_cut(&field);
}

static void test_disconnect_by_message(void **state)
{
    char echoed[16] = "";
    struct ibx_injected_faults faults = {0};
    struct field field = open_chat(SIDE_OF(state), &faults, echoed);
    send_text(&field, "a");
    AWAIT(field.end, field.end->received == 1);
    faults.disconnect_in = 2; /* the echo of the next one */
    send_text(&field, "b");
    check_cut(&field);
}

static const struct CMUnitTest tests[] = {
    TEST_BOTH(test_fail),
    TEST_BOTH(test_corrupt_read),
    TEST_BOTH(test_drop),
    TEST_BOTH(test_corrupt_messages),
    TEST_BOTH(test_delay),
    TEST_BOTH(test_disconnect_by_chunk),
    TEST_BOTH(test_disconnect_by_message),
};
GROUP(group_faults, "faults", tests);
