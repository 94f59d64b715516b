/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Fault injection between a scripted core and a scripted endpoint: each fault does what struct
 * ibx_injected_faults says, and nothing else.
 */
#include "tests/fixtures/provider_end.h"
#include "transport/core/conn.h"
#include "transport/fault_injection/fault_injection.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEEN_MAX 256

/* ------------------------------------------------------ the endpoint below */

/* Completes nothing by itself: the tests make its reports and see which calls reached it. */
static struct {
    struct ibx_link *link;
    struct ibx_chunk *chunks[SEEN_MAX];
    int chunk_count;
    char sent[SEEN_MAX][32];
    size_t sent_length[SEEN_MAX];
    int sent_count;
    int answer; /* what rdma and send return */
    int moved;  /* what progress returns if it reports nothing */
    uint64_t released[SEEN_MAX];
    int released_count;
    void (*script)(void); /* makes reports while progress runs */
    bool aborted, closed;
} inner;

static int inner_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    assert_ptr_equal(endpoint, &inner);
    if (!inner.answer)
        inner.chunks[inner.chunk_count++] = chunk;
    return inner.answer;
}

static int inner_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                      uint64_t cookie, unsigned flags)
{
    (void)endpoint, (void)cookie, (void)flags;
    if (inner.answer)
        return inner.answer;
    uint8_t *to = (uint8_t *)inner.sent[inner.sent_count];
    assert_int_equal(ibx_gather(to, iov, iovcnt) - to, length);
    inner.sent_length[inner.sent_count++] = length;
    return 0;
}

static void inner_release(void *endpoint, uint64_t slot)
{
    (void)endpoint;
    inner.released[inner.released_count++] = slot;
}

static int inner_progress(void *endpoint)
{
    (void)endpoint;
    if (inner.script)
        inner.script();
    inner.script = NULL;
    return inner.moved;
}

static int inner_arm(void *endpoint)
{
    (void)endpoint;
    return 0;
}

static void inner_abort(void *endpoint)
{
    (void)endpoint;
    inner.aborted = true;
    for (int i = 0; i < inner.chunk_count; i++)
        inner.link->up->chunk_done(inner.link, inner.chunks[i], -ECONNRESET);
    inner.chunk_count = 0;
}

static void inner_close(void *endpoint)
{
    (void)endpoint;
    inner.closed = true;
}

static const struct ibx_provider inner_provider = {
    .name = "inner",
    .rdma = inner_rdma,
    .send = inner_send,
    .release = inner_release,
    .progress = inner_progress,
    .arm = inner_arm,
    .abort = inner_abort,
    .close = inner_close,
};

/* ---------------------------------------------------------- the core above */

static struct ibx_injected_faults faults;
static struct end core;
static bool abort_when_lost;
static struct ibx_conn conn;

/* The core may abort while the endpoint reports. */
static void core_lost(struct ibx_link *link, int status, const char *reason)
{
    assert_ptr_equal(link->owner, &core);
    assert_true(reason[0]);
    end_upcalls.lost(link, status, reason);
    if (abort_when_lost)
        conn.provider->abort(conn.endpoint);
}

static int setup(void **state)
{
    (void)state;
    memset(&inner, 0, sizeof(inner));
    memset(&core, 0, sizeof(core));
    abort_when_lost = false;
    static struct ibx_upcalls upcalls;
    upcalls = end_upcalls;
    upcalls.lost = core_lost;
    memset(&faults, 0, sizeof(faults));
    conn = (struct ibx_conn){.provider = &inner_provider,
                             .endpoint = &inner,
                             .state.now = CONN_ESTABLISHED,
                             .link = {.up = &upcalls, .conn = &conn, .owner = &core}};
    inner.link = &conn.link;
    int rc = ibx_fault_injection_attach(&conn, &faults, NULL);
    core.provider = conn.provider;
    core.endpoint = conn.endpoint;
    return rc;
}

static int teardown(void **state)
{
    (void)state;
    conn.provider->close(conn.endpoint);
    return inner.closed ? 0 : -1;
}

/* ------------------------------------------------------------------ helpers */

static struct ibx_mr host_region = {.span = {.kind = IBX_MEMORY_HOST}};
static struct ibx_mr gpu_region = {.span = {.kind = IBX_MEMORY_CUDA}};

static struct ibx_chunk chunk_of(enum ibx_rdma_kind kind, void *local, size_t length)
{
    return (struct ibx_chunk){.kind = kind, .mr = &host_region, .local = local, .length = length};
}

static int post(struct ibx_chunk *chunk)
{
    return conn.provider->rdma(conn.endpoint, chunk);
}

static int send_text(const char *text, unsigned flags)
{
    return end_send(&core, text, strlen(text), flags);
}

static void complete_all(void)
{
    for (int i = 0; i < inner.chunk_count; i++)
        inner.link->up->chunk_done(inner.link, inner.chunks[i], 0);
    inner.chunk_count = 0;
}

static void two_messages(void)
{
    inner.link->up->message(inner.link, "first", 5, 101);
    inner.link->up->message(inner.link, "second", 6, 102);
}

static void complete_then_message_then_loss(void)
{
    complete_all();
    inner.link->up->send_done(inner.link, 5, 0);
    inner.link->up->message(inner.link, "last words", 10, 9);
    inner.link->up->lost(inner.link, -ECONNRESET, "the peer went away");
    inner.link->up->lost(inner.link, -EPIPE, "and again");
}

static int bits_that_differ(const void *a, const void *b, size_t length)
{
    const uint8_t *one = a, *other = b;
    int bits = 0;
    for (size_t i = 0; i < length; i++)
        bits += __builtin_popcount(one[i] ^ other[i]);
    return bits;
}

/* -------------------------------------------------------------------- tests */

static void test_without_faults_everything_passes(void **state)
{
    (void)state;
    char bytes[8] = "abcdefg";
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, bytes, 8);
    assert_int_equal(post(&chunk), 0);
    assert_int_equal(send_text("hello", 0), 0);
    inner.script = complete_then_message_then_loss;
    assert_int_equal(end_turn(&core), 4);
    assert_int_equal(core.count, 4);
    assert_int_equal(core.notes[0].kind, NOTE_CHUNK);
    assert_int_equal(core.notes[0].status, 0);
    assert_string_equal(bytes, "abcdefg");
    assert_int_equal(core.notes[1].kind, NOTE_SEND);
    assert_int_equal(core.notes[1].token, 5);
    assert_string_equal(core.notes[2].data, "last words");
    assert_int_equal(core.notes[3].kind, NOTE_LOST);
    assert_int_equal(core.notes[3].status, -ECONNRESET);
    assert_int_equal(inner.sent_length[0], 5);
    assert_memory_equal(inner.sent[0], "hello", 5);
    assert_int_equal(faults.seen, 3);
    conn.provider->release(conn.endpoint, 9);
    assert_int_equal(inner.released[0], 9);
}

static void test_refused_work_counts_nothing(void **state)
{
    (void)state;
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_WRITE, NULL, 8);
    faults = (struct ibx_injected_faults){
        .fail_in = 2, .drop_in = 2, .corrupt_in = 1, .disconnect_in = 9};
    inner.answer = -EAGAIN;
    assert_int_equal(post(&chunk), -EAGAIN);
    assert_int_equal(send_text("hello", 0), -EAGAIN);
    assert_int_equal(faults.fail_in, 2);
    assert_int_equal(faults.drop_in, 2);
    assert_int_equal(faults.corrupt_in, 1);
    assert_int_equal(faults.disconnect_in, 9);
    assert_int_equal(faults.seen, 0);
}

static void test_delay_holds_reports_in_order(void **state)
{
    (void)state;
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_WRITE, NULL, 8);
    faults.delay_polls = 3;
    assert_int_equal(post(&chunk), 0);
    inner.script = complete_then_message_then_loss;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(end_turn(&core), 0);
        assert_int_equal(conn.provider->arm(conn.endpoint), 1);
    }
    assert_int_equal(end_turn(&core), 4);
    assert_int_equal(core.notes[0].kind, NOTE_CHUNK);
    assert_int_equal(core.notes[1].kind, NOTE_SEND);
    assert_int_equal(core.notes[2].kind, NOTE_MESSAGE);
    assert_int_equal(core.notes[3].kind, NOTE_LOST);
    assert_int_equal(conn.provider->arm(conn.endpoint), 0);
}

static void test_delay_ends_at_once_when_switched_off(void **state)
{
    (void)state;
    faults.delay_polls = 1000000;
    inner.script = two_messages;
    assert_int_equal(end_turn(&core), 0);
    assert_int_equal(end_turn(&core), 0);
    faults.delay_polls = 0;
    assert_int_equal(end_turn(&core), 2);
    assert_string_equal(core.notes[0].data, "first");
    assert_string_equal(core.notes[1].data, "second");
}

static void test_delay_keeps_many_reports(void **state)
{
    (void)state;
    faults.delay_polls = 1000;
    for (int i = 0; i < 100; i++) {
        inner.script = two_messages;
        assert_int_equal(end_turn(&core), 0);
    }
    faults.delay_polls = 0;
    assert_int_equal(end_turn(&core), 200);
    for (int i = 0; i < 200; i++)
        assert_string_equal(core.notes[i].data, i % 2 ? "second" : "first");
    assert_int_equal(faults.seen, 200);
}

static void test_abort_drops_held_messages(void **state)
{
    (void)state;
    faults.delay_polls = 1000;
    inner.script = two_messages;
    assert_int_equal(end_turn(&core), 0);
    conn.provider->abort(conn.endpoint);
    assert_int_equal(core.count, 0);
    assert_int_equal(inner.released_count, 0);
}

static void test_fail_strikes_the_nth_chunk(void **state)
{
    (void)state;
    struct ibx_chunk chunks[3];
    faults.fail_in = 2;
    for (int i = 0; i < 3; i++) {
        chunks[i] = chunk_of(IBX_RDMA_WRITE, NULL, 8);
        assert_int_equal(post(&chunks[i]), 0);
    }
    assert_int_equal(core.count, 0); /* a post reports nothing itself */
    assert_int_equal(inner.chunk_count, 2);
    assert_int_equal(conn.provider->arm(conn.endpoint), 1);
    inner.script = complete_all;
    assert_int_equal(end_turn(&core), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(core.notes[i].status, core.notes[i].chunk == &chunks[1] ? -EIO : 0);
    assert_int_equal(faults.fail_in, 0);
}

static void test_corrupt_flips_one_bit_of_a_read(void **state)
{
    (void)state;
    char bytes[3][8] = {"abcdefg", "abcdefg", "abcdefg"};
    struct ibx_chunk write = chunk_of(IBX_RDMA_WRITE, bytes[2], 8);
    struct ibx_chunk reads[2] = {chunk_of(IBX_RDMA_READ, bytes[0], 8),
                                 chunk_of(IBX_RDMA_READ, bytes[1], 8)};
    faults.corrupt_in = 2;
    assert_int_equal(post(&write), 0);
    assert_int_equal(post(&reads[0]), 0);
    assert_int_equal(post(&reads[1]), 0);
    inner.script = complete_all;
    assert_int_equal(end_turn(&core), 3);
    assert_string_equal(bytes[0], "abcdefg");
    assert_int_equal(bits_that_differ(bytes[1], "abcdefg", 8), 1);
    assert_string_equal(bytes[2], "abcdefg");
    for (int i = 0; i < 3; i++)
        assert_int_equal(core.notes[i].status, 0);
}

static void test_corrupt_leaves_gpu_memory_alone(void **state)
{
    (void)state;
    struct ibx_chunk chunk = chunk_of(IBX_RDMA_READ, (void *)8, 8);
    chunk.mr = &gpu_region;
    faults.corrupt_in = 1;
    assert_int_equal(post(&chunk), 0);
    inner.script = complete_all;
    assert_int_equal(end_turn(&core), 1);
    assert_int_equal(faults.corrupt_in, 1);
}

static void test_corrupt_flips_one_bit_of_a_received_message(void **state)
{
    (void)state;
    faults.corrupt_in = 2;
    inner.script = two_messages;
    assert_int_equal(end_turn(&core), 2);
    assert_string_equal(core.notes[0].data, "first");
    assert_int_equal(bits_that_differ(core.notes[1].data, "second", 6), 1);
    assert_int_equal(core.notes[1].length, 6);
    /* The messages are released in another order; the second one's copy is released with it. */
    conn.provider->release(conn.endpoint, 102);
    conn.provider->release(conn.endpoint, 101);
    assert_int_equal(inner.released_count, 2);
}

static void test_corrupt_flips_one_bit_of_a_sent_message(void **state)
{
    (void)state;
    faults.corrupt_in = 2;
    assert_int_equal(send_text("hello", 0), 0);
    assert_int_equal(send_text("hello", 0), 0);
    assert_memory_equal(inner.sent[0], "hello", 5);
    assert_int_equal(inner.sent_length[1], 5);
    assert_int_equal(bits_that_differ(inner.sent[1], "hello", 5), 1);
}

static void test_drop_swallows_a_sent_message(void **state)
{
    (void)state;
    faults.drop_in = 2;
    assert_int_equal(send_text("one", 0), 0);
    assert_int_equal(send_text("two", IBX_SIGNALED), 0);
    assert_int_equal(send_text("three", 0), 0);
    assert_int_equal(inner.sent_count, 2);
    assert_memory_equal(inner.sent[1], "three", 5);
    assert_int_equal(end_turn(&core), 1); /* the sender does not notice */
    assert_int_equal(core.notes[0].kind, NOTE_SEND);
    assert_int_equal(core.notes[0].status, 0);
    assert_int_equal(core.notes[0].token, 77);
}

static void test_drop_swallows_a_received_message(void **state)
{
    (void)state;
    faults.drop_in = 1;
    inner.script = two_messages;
    end_turn(&core);
    assert_int_equal(core.count, 1);
    assert_string_equal(core.notes[0].data, "second");
    assert_int_equal(inner.released_count, 1); /* the credit of the dropped message is returned */
    assert_int_equal(inner.released[0], 101);
}

static void test_disconnect_strikes_the_nth_post(void **state)
{
    (void)state;
    struct ibx_chunk chunks[3];
    abort_when_lost = true;
    faults.disconnect_in = 2;
    for (int i = 0; i < 3; i++) {
        chunks[i] = chunk_of(IBX_RDMA_READ, NULL, 8);
        assert_int_equal(post(&chunks[i]), 0);
    }
    assert_int_equal(send_text("too late", IBX_SIGNALED), 0);
    assert_int_equal(core.count, 0);
    assert_int_equal(inner.chunk_count, 1); /* nothing passes after the break */
    assert_int_equal(inner.sent_count, 0);
    assert_int_equal(conn.provider->arm(conn.endpoint), 1);
    end_turn(&core);
    assert_true(inner.aborted);
    assert_int_equal(core.count, 5);
    assert_int_equal(core.notes[0].kind, NOTE_LOST);
    for (int i = 1; i < 5; i++)
        assert_int_equal(core.notes[i].status, -ECONNRESET);
}

static void test_disconnect_strikes_a_message(void **state)
{
    (void)state;
    abort_when_lost = true;
    faults.disconnect_in = 2;
    assert_int_equal(send_text("one", 0), 0);
    inner.script = two_messages;
    end_turn(&core); /* the break comes with the first one: neither is delivered */
    assert_int_equal(core.count, 0);
    end_turn(&core);
    assert_int_equal(core.count, 1);
    assert_int_equal(core.notes[0].kind, NOTE_LOST);
    assert_int_equal(inner.released_count, 0); /* so the peer gets no credit for more messages */
}

static void test_abort_reports_what_was_held(void **state)
{
    (void)state;
    struct ibx_chunk chunks[2] = {chunk_of(IBX_RDMA_READ, NULL, 8),
                                  chunk_of(IBX_RDMA_WRITE, NULL, 8)};
    faults.delay_polls = 100;
    assert_int_equal(post(&chunks[0]), 0);
    inner.script = complete_all;
    assert_int_equal(end_turn(&core), 0);
    assert_int_equal(post(&chunks[1]), 0);
    conn.provider->abort(conn.endpoint);
    assert_int_equal(core.count, 2);
    assert_ptr_equal(core.notes[0].chunk, &chunks[0]);
    assert_int_equal(core.notes[0].status, 0);
    assert_ptr_equal(core.notes[1].chunk, &chunks[1]);
    assert_int_equal(core.notes[1].status, -ECONNRESET);
}

static void test_only_established_connections(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct ibx_conn other = {.provider = &inner_provider, .state.now = CONN_LOST};
    assert_int_equal(ibx_fault_injection_attach(&other, &faults, &err), -ENOTCONN);
    assert_ptr_equal(other.provider, &inner_provider);
    assert_true(err.message[0]);
}

/* Work done for the peer, and credit, are not reported as events, but progress must return that
 * something moved. */
static void test_progress_passes_movement_on(void **state)
{
    (void)state;
    assert_int_equal(end_turn(&core), 0);
    inner.moved = 1;
    assert_int_equal(end_turn(&core), 1);
}

#define WITH_ENDPOINT(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ENDPOINT(test_without_faults_everything_passes),
        WITH_ENDPOINT(test_refused_work_counts_nothing),
        WITH_ENDPOINT(test_delay_holds_reports_in_order),
        WITH_ENDPOINT(test_delay_ends_at_once_when_switched_off),
        WITH_ENDPOINT(test_delay_keeps_many_reports),
        WITH_ENDPOINT(test_abort_drops_held_messages),
        WITH_ENDPOINT(test_fail_strikes_the_nth_chunk),
        WITH_ENDPOINT(test_corrupt_flips_one_bit_of_a_read),
        WITH_ENDPOINT(test_corrupt_leaves_gpu_memory_alone),
        WITH_ENDPOINT(test_corrupt_flips_one_bit_of_a_received_message),
        WITH_ENDPOINT(test_corrupt_flips_one_bit_of_a_sent_message),
        WITH_ENDPOINT(test_drop_swallows_a_sent_message),
        WITH_ENDPOINT(test_drop_swallows_a_received_message),
        WITH_ENDPOINT(test_disconnect_strikes_the_nth_post),
        WITH_ENDPOINT(test_disconnect_strikes_a_message),
        WITH_ENDPOINT(test_abort_reports_what_was_held),
        WITH_ENDPOINT(test_only_established_connections),
        WITH_ENDPOINT(test_progress_passes_movement_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
