/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Copies between a client and pages that stand for its page-locked memory, which another session of
 * the client may give back meanwhile. This file replaces the transport, and the list of such pages,
 * in the middle of whose calls they go. */
#include "frontend-glue/clients/graph_slots.h"
#include "frontend-glue/device_copies/copies.h"
#include "tests/fixtures/unit.h"

#include <errno.h>

#define THERE 0x210000000000u
#define SIZE  4096u

/* When the pages are given back. */
enum end { END_NEVER, END_BEFORE, END_AT_ONCE, END_IN_TRANSFER };

static struct gpu_session x;
static struct ibx_frame frame;              /* what a request is */
static uint8_t pages[SIZE], program[SIZE];  /* of the back end, and of the client */
static enum end end;                        /* of the pages */
static bool there;                          /* until then */
static int fails, code;                     /* the transfer; the reply's, or -1: there is none */
static unsigned regions, consumed, further; /* now; requests; bytes of the reply's payload */
static bool early;                          /* its payload is in the client's memory */

/* ----------------------------------------------------------------------------- the pages */

bool ibx_host_maps_hold(struct gpu_session *of, uint64_t address, uint64_t n)
{
    assert_ptr_equal(of, &x);
    const bool holds = there && address - THERE < SIZE && n <= SIZE - (address - THERE);
    there = there && end != END_AT_ONCE;
    return holds;
}

bool ibx_host_maps_copy(struct gpu_session *of, uint64_t address, void *bytes, size_t n,
                        bool to_pages)
{
    assert_ptr_equal(of, &x);
    uint8_t *at = pages + (address - THERE);
    if (there)
        memcpy(to_pages ? at : bytes, to_pages ? bytes : at, n);
    return there;
}

struct ibx_host_copy ibx_host_work_taken(const struct gpu_session *of, uint32_t number)
{
    (void)of, (void)number;
    return (struct ibx_host_copy){.slot = 0};
}

bool ibx_slot_use(uint64_t slot, struct ibx_slot_memory *memory)
{
    (void)slot, (void)memory;
    return false;
}

void ibx_slot_stop_using(uint64_t slot)
{
    fail_msg("slot %u", (unsigned)slot);
}

/* ------------------------------------------------------------------------- the transport */

struct ibx_conn *ibx_session_conn(const struct ibx_session *s)
{
    (void)s;
    return NULL;
}

int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err)
{
    (void)conn, (void)err;
    assert_int_equal(access, IBX_ACCESS_LOCAL);
    *mr = span->address;
    regions++;
    return 0;
}

void ibx_mr_deregister(struct ibx_mr *mr)
{
    assert_non_null(mr);
    regions--;
}

int ibx_session_post(struct ibx_session *s, const struct ibx_session_op *op)
{
    (void)s;
    assert_ptr_equal(op->mr, op->local);
    assert_true(op->remote->length == op->n && op->n <= SIZE);
    uint8_t *client = pointer_to(op->remote->address);
    if (!fails)
        memcpy(op->read ? op->local : client, op->read ? client : op->local, op->n);
    there = there && end != END_IN_TRANSFER;
    return 0;
}

int ibx_session_finish_posts(struct ibx_session *s)
{
    (void)s;
    return fails;
}

int ibx_session_answer_delayed(struct ibx_session *s)
{
    (void)s;
    return 0;
}

void ibx_session_consume(struct ibx_session *s, const struct ibx_request *q)
{
    (void)s, (void)q;
    consumed++;
}

/* --------------------------------------------------------------- the request and its reply */

bool ibx_copies_parse(const struct ibx_request *q, struct ibx_frame *f)
{
    (void)q;
    *f = frame;
    return true;
}

void ibx_copies_note_refusal(struct gpu_session *of, const char *why)
{
    (void)of, (void)why;
}

int ibx_copies_answer(struct gpu_session *of, uint64_t began, const void *out, size_t n)
{
    assert_null(out);
    return ibx_copies_write_head(of, 0, began, n);
}

int ibx_copies_write_head(struct gpu_session *of, int exit_code, uint64_t began, uint64_t out)
{
    (void)of, (void)began;
    assert_int_equal(consumed, 1); /* the next request is behind this one */
    code = exit_code;
    further = (unsigned)out;
    return 0;
}

int ibx_copies_reply_early(struct gpu_session *of, uint64_t began, uint64_t n)
{
    early = true;
    return ibx_copies_write_head(of, 0, began, n);
}

int ibx_session_gather(struct ibx_session *s, const uint8_t *from, size_t n)
{
    (void)s, (void)from;
    further -= (unsigned)n;
    return 0;
}

ssize_t ibx_session_write(struct ibx_session *s, const void *from, size_t n)
{
    (void)s;
    assert_int_equal(further, n);
    memcpy(program, from, n);
    return (ssize_t)n;
}

int ibx_session_sync(struct ibx_session *s)
{
    (void)s;
    return 0;
}

/* ------------------------------------------------------------------------------- the tests */

static int set_up(NO_STATE)
{
    memset(pages, 'p', SIZE);
    memset(program, 'c', SIZE);
    end = END_NEVER;
    there = true;
    fails = 0;
    code = -1;
    regions = consumed = further = 0;
    early = false;
    return 0;
}

/* `apart`: the bytes are in memory of the client, and not in the message. */
static int copy(bool to_pages, uint64_t at, size_t n, bool apart)
{
    const struct ibx_remote memory = {.address = (uintptr_t)program, .length = n};
    const struct ibx_request q = {.call = IBX_FRAME_MEMCPY_ASYNC,
                                  .body = apart && to_pages ? NULL : program,
                                  .tail_length = apart && to_pages ? 20 : 0,
                                  .remote = memory,
                                  .reply_to.length = apart && !to_pages ? n : 0,
                                  .reply_to.address = memory.address};
    frame = (struct ibx_frame){.kind = to_pages ? IBX_FRAME_H2D : IBX_FRAME_D2H,
                               .dst = to_pages ? IBX_EXT_PAGES | at : 0,
                               .src = to_pages ? 0 : IBX_EXT_PAGES | at,
                               .width = n,
                               .height = 1};
    assert_true(ibx_slot_is_named(&x, &q));
    there = there && end != END_BEFORE;
    const int rc = ibx_slot_copy(&x, &q);
    assert_int_equal(regions, 0);
    return rc;
}

static void assert_bytes(const uint8_t *bytes, int value)
{
    for (unsigned i = 0; i < SIZE; i++)
        assert_int_equal(bytes[i], value);
}

static void test_both_directions(NO_STATE)
{
    for (unsigned apart = 0; apart < 2; apart++)
        for (unsigned to_pages = 0; to_pages < 2; to_pages++) {
            set_up(NULL);
            assert_int_equal(copy(to_pages, THERE, SIZE, apart), IBX_REQUEST_DONE);
            assert_int_equal(code, 0);
            assert_bytes(to_pages ? pages : program, to_pages ? 'c' : 'p');
            assert_int_equal(early, apart && !to_pages);
        }
}

/* The bytes have come, and the stream goes on behind them, but the pages have gone. */
static void test_pages_that_go_before_their_bytes_come(NO_STATE)
{
    for (unsigned apart = 0; apart < 2; apart++) {
        set_up(NULL);
        end = apart ? END_IN_TRANSFER : END_AT_ONCE;
        assert_int_equal(copy(true, THERE, SIZE, apart), IBX_REQUEST_DONE);
        assert_int_equal(code, CUDA_INVALID_VALUE);
        assert_int_equal(consumed, 1);
        assert_bytes(pages, 'p');
    }
}

/* What was taken of them arrives. */
static void test_pages_that_go_after_their_bytes_went(NO_STATE)
{
    end = END_IN_TRANSFER;
    assert_int_equal(copy(false, THERE, SIZE, true), IBX_REQUEST_DONE);
    assert_int_equal(code, 0);
    assert_bytes(program, 'p');
}

/* GVirtuS's handler answers. */
static void test_no_such_pages(NO_STATE)
{
    const enum end ends[] = {END_BEFORE, END_AT_ONCE};
    for (unsigned i = 0; i < 2; i++) {
        set_up(NULL);
        end = ends[i];
        assert_int_equal(copy(false, THERE, SIZE, true), IBX_REQUEST_PASS);
    }
    set_up(NULL);
    assert_int_equal(copy(true, THERE + 1, SIZE, true), IBX_REQUEST_PASS);
    assert_int_equal(copy(true, THERE, (1u << 20) + 1, true), IBX_REQUEST_PASS);
    assert_int_equal(copy(true, THERE, 0, true), IBX_REQUEST_PASS);
    assert_true(code == -1 && !consumed);
    assert_bytes(pages, 'p');
    assert_bytes(program, 'c');
}

static void test_transfers_that_fail(NO_STATE)
{
    for (unsigned to_pages = 0; to_pages < 2; to_pages++) {
        set_up(NULL);
        fails = -ENOTCONN;
        assert_int_equal(copy(to_pages, THERE, SIZE, true), -ENOTCONN);
        assert_true(code == -1 && !consumed);
        assert_bytes(pages, 'p');
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        TEST(test_both_directions),
        TEST(test_pages_that_go_before_their_bytes_come),
        TEST(test_pages_that_go_after_their_bytes_went),
        TEST(test_no_such_pages),
        TEST(test_transfers_that_fail),
    };
    return cmocka_run_group_tests_name("slot copies", tests, NULL, NULL);
}
