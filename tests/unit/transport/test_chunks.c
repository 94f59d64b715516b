/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* READs and WRITEs that are cut into chunks, their events, and what happens to them when the
 * connection ends. */
#include "tests/fixtures/memory_pair.h"
#include "tests/fixtures/patience.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define BYTES (256u << 10)

/* A connected pair with memory on both sides. The client reads and writes the server's. */
static struct {
    struct memory_pair pair;
    struct ibx_mr *near, *far;
    uint8_t *local, *distant;
    struct ibx_remote remote;
} b;

static void open_with(const struct ibx_options *options)
{
    struct ibx_error err = {0};
    if (memory_pair_open(&b.pair, options, &err))
        fail_msg("%s", err.message);
    assert_int_equal(ibx_mr_allocate(b.pair.client, BYTES, IBX_ACCESS_LOCAL, &b.near, NULL), 0);
    assert_int_equal(ibx_mr_allocate(b.pair.server, BYTES,
                                     IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE, &b.far,
                                     NULL),
                     0);
    assert_int_equal(ibx_mr_remote(b.far, 0, BYTES, &b.remote), 0);
    b.local = ibx_mr_address(b.near);
    b.distant = ibx_mr_address(b.far);
    for (unsigned i = 0; i < BYTES; i++)
        b.distant[i] = (uint8_t)(i * 7 + i / 251);
}

/* Opens the pair with memory_control unchanged. */
static void open_default(void)
{
    struct ibx_options options;
    ibx_options_init(&options);
    open_with(&options);
}

static void close_all(void)
{
    memory_pair_close(&b.pair);
    assert_int_equal(memory_live_endpoints(), 0);
    assert_int_equal(memory_live_regions(), 0);
}

static int reset(void **state)
{
    (void)state;
    memory_control_reset();
    return 0;
}

static int reset_and_open(void **state)
{
    reset(state);
    open_default();
    return 0;
}

static int check_and_close(void **state)
{
    (void)state;
    close_all();
    return 0;
}

static int read_some(size_t at, size_t length, uint64_t cookie, unsigned flags)
{
    return ibx_read(b.pair.client, b.near, b.local + at, &b.remote, at, length, cookie, flags);
}

/* Polls until an event comes. This fabric completes work in the next poll or never. */
static struct ibx_event next_event(struct ibx_conn *conn)
{
    struct ibx_event event;
    for (int i = 0; i < 1000; i++) {
        int n = ibx_poll(conn, &event, 1);
        assert_true(n >= 0);
        if (n)
            return event;
    }
    fail_msg("no event comes");
    return event;
}

static void expect_event(struct ibx_conn *conn, enum ibx_event_type type, uint64_t cookie,
                         int status)
{
    struct ibx_event event = next_event(conn);
    assert_int_equal(event.type, type);
    assert_int_equal(event.cookie, cookie);
    assert_int_equal(event.status, status);
}

static void expect_silence(struct ibx_conn *conn)
{
    struct ibx_event event;
    for (int i = 0; i < 100; i++)
        assert_int_equal(ibx_poll(conn, &event, 1), 0);
}

/* ------------------------------------------------------------------------ cutting */

static void read_is_cut_into_chunks_and_complete(void **state)
{
    (void)state;
    assert_int_equal(read_some(3, 3 * 4096 + 5, 77, 0), 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 77, 0);
    expect_silence(b.pair.client);
    assert_int_equal(memory_log_count, 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(memory_log[i].length, i < 3 ? 4096 : 5);
        assert_true(memory_log[i].remote_address == b.remote.address + 3 + i * 4096);
        assert_in_range(memory_log[i].lane, 1, 2);
    }
    assert_memory_equal(b.local + 3, b.distant + 3, 3 * 4096 + 5);
    assert_int_equal(b.local[2], 0);
    assert_int_equal(b.local[3 + 3 * 4096 + 5], 0);
}

static void write_is_cut_and_whole(void **state)
{
    (void)state;
    uint8_t before = b.distant[9], after = b.distant[10 + 10000];
    memset(b.local, 0xee, 10000);
    assert_int_equal(ibx_write(b.pair.client, b.near, b.local, &b.remote, 10, 10000, UINT64_MAX, 0),
                     0);
    expect_event(b.pair.client, IBX_EVENT_WRITE, UINT64_MAX, 0);
    assert_memory_equal(b.distant + 10, b.local, 10000);
    assert_int_equal(b.distant[9], before);
    assert_int_equal(b.distant[10 + 10000], after);
    assert_int_equal(memory_log_count, 3);
}

static void every_length_round_a_chunk(void **state)
{
    (void)state;
    for (size_t length = 4090; length <= 4100; length++) {
        unsigned before = memory_log_count;
        memset(b.local, 0, BYTES);
        assert_int_equal(read_some(length, length, length, 0), 0);
        expect_event(b.pair.client, IBX_EVENT_READ, length, 0);
        assert_memory_equal(b.local + length, b.distant + length, length);
        assert_int_equal(memory_log_count - before, length <= 4096 ? 1 : 2);
    }
}

/* A READ or WRITE of 0 bytes completes in its order, without a chunk. */
static void zero_bytes_complete_too(void **state)
{
    (void)state;
    assert_int_equal(read_some(5, 0, 1, 0), 0);
    assert_int_equal(read_some(BYTES, 0, 2, IBX_URGENT), 0);
    assert_int_equal(ibx_write(b.pair.client, b.near, NULL, &b.remote, 0, 0, 3, 0), 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 2, 0);
    expect_event(b.pair.client, IBX_EVENT_WRITE, 3, 0);
    assert_int_equal(memory_log_count, 0);
    expect_silence(b.pair.client);
}

static void outside_of_region_or_remote(void **state)
{
    (void)state;
    struct ibx_conn *conn = b.pair.client;
    uint8_t *base = b.local;
    const struct {
        uint8_t *local;
        uint64_t offset;
        size_t length;
    } bad[] = {
        {base, 1, BYTES},
        {base, BYTES, 1},
        {base, BYTES + 1, 0},
        {base, UINT64_MAX, 1},
        {base, 0, SIZE_MAX},
        {base, 2, SIZE_MAX},
        {base + 1, 0, BYTES},
        {base + BYTES, 0, 1},
        {base - 1, 0, 1},
        {base - 1, 0, 2},
        {NULL, 0, 1},
        {(uint8_t *)UINTPTR_MAX, 0, 2},
        {base, 0, BYTES + 1},
        {base, UINT64_MAX - 10, 20},
        {base + BYTES - 1, 0, 2},
        {base + 8, 8, SIZE_MAX - 7},
        {base - 4096, 0, 4096},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int rc =
            ibx_read(conn, b.near, bad[i].local, &b.remote, bad[i].offset, bad[i].length, 0, 0);
        int also = ibx_write(conn, b.near, bad[i].local, &b.remote, bad[i].offset, bad[i].length, 0,
                             IBX_URGENT);
        if (rc != -ERANGE || also != -ERANGE)
            fail_msg("case %zu: READ %d, WRITE %d", i, rc, also);
    }
    /* A hostile peer may name addresses that wrap around. */
    struct ibx_remote remote = {.address = UINT64_MAX - 10, .length = UINT64_MAX};
    assert_int_equal(ibx_read(conn, b.near, base, &remote, 5, 100, 0, 0), -ERANGE);
    assert_int_equal(ibx_read(conn, b.near, base, &remote, 20, 1, 0, 0), -ERANGE);
    /* A post must stay within the part of the region that was named. */
    remote = b.remote;
    remote.length = 1000;
    assert_int_equal(ibx_read(conn, b.near, base, &remote, 1, 1000, 0, 0), -ERANGE);
    expect_silence(conn);
    assert_int_equal(memory_log_count, 0);
    assert_int_equal(ibx_read(conn, b.near, base, &remote, 1, 999, 5, 0), 0);
    expect_event(conn, IBX_EVENT_READ, 5, 0);
    assert_memory_equal(base, b.distant + 1, 999);
}

static void remote_names_only_what_may_be_reached(void **state)
{
    (void)state;
    struct ibx_remote r;
    assert_int_equal(ibx_mr_remote(b.near, 0, 1, &r), -EACCES);
    assert_int_equal(ibx_mr_remote(b.far, 0, BYTES + 1, &r), -ERANGE);
    assert_int_equal(ibx_mr_remote(b.far, BYTES, 1, &r), -ERANGE);
    assert_int_equal(ibx_mr_remote(b.far, BYTES + 1, 0, &r), -ERANGE);
    assert_int_equal(ibx_mr_remote(b.far, 1, SIZE_MAX, &r), -ERANGE);
    assert_int_equal(ibx_mr_remote(b.far, BYTES, 0, &r), 0);
    assert_int_equal(ibx_mr_remote(b.far, 10, 20, &r), 0);
    assert_true(r.address == b.remote.address + 10 && r.length == 20);
    assert_true(r.keys[0] == b.remote.keys[0]);
    ibx_mr_deregister(NULL);
    /* Nor is anything copied past a part that the peer has named. */
    r = b.remote;
    r.length = 1000;
    assert_int_equal(ibx_remote_copy(b.pair.client, true, b.local, &r, 1001, 1), -ERANGE);
    assert_int_equal(ibx_remote_copy(b.pair.client, true, b.local, &r, UINT64_MAX, 2), -ERANGE);
}

static void gpu_memory_is_not_taken_for_the_hosts(void **state)
{
    (void)state;
    const struct ibx_span span = {b.local, 4096, IBX_MEMORY_CUDA, -1, 0, 0};
    struct ibx_conn *conn = b.pair.client;
    struct ibx_mr *mr;
    assert_int_equal(ibx_mr_register(conn, &span, IBX_ACCESS_LOCAL, &mr, NULL), -EOPNOTSUPP);
    assert_int_equal(ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ, &mr, NULL), -EACCES);
}

/* -------------------------------------------------------------------- in flight */

static void many_outstanding_complete_once_each(void **state)
{
    (void)state;
    enum { POSTS = 3000 };
    static unsigned char seen[POSTS];
    memset(seen, 0, sizeof(seen));
    memory_control.room = 5;
    for (unsigned i = 0; i < POSTS; i++)
        assert_int_equal(read_some(i * 50, i % 5 ? 50 : 9000, i, i % 7 ? 0 : IBX_URGENT), 0);
    struct ibx_event events[64];
    for (unsigned done = 0; done < POSTS;) {
        int n = ibx_poll(b.pair.client, events, 64);
        assert_in_range(n, 0, 64);
        for (int i = 0; i < n; i++) {
            assert_int_equal(events[i].type, IBX_EVENT_READ);
            assert_int_equal(events[i].status, 0);
            assert_true(events[i].cookie < POSTS);
            assert_int_equal(seen[events[i].cookie]++, 0);
        }
        done += (unsigned)n;
    }
    expect_silence(b.pair.client);
    assert_memory_equal(b.local, b.distant, POSTS * 50);
    assert_true(memory_in_flight_max <= 5);
}

/* At most caps.depth chunks of a copy are in the fabric. */
static void depth_is_kept(void **state)
{
    (void)state;
    memory_control.depth = 3;
    open_default();
    memory_control.hold = true;
    assert_int_equal(read_some(0, BYTES, 1, 0), 0);
    assert_int_equal(memory_log_count, 3);
    expect_silence(b.pair.client);
    assert_int_equal(memory_log_count, 3);
    memory_control.hold = false;
    expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
    assert_int_equal(memory_log_count, BYTES / 4096);
    assert_int_equal(memory_in_flight_max, 3);
    assert_memory_equal(b.local, b.distant, BYTES);
}

/* The fabric may send the chunks of such a post with later ones, and those of no other. */
static void posts_that_others_follow(void **state)
{
    (void)state;
    for (unsigned more = 0; more < 2; more++) {
        const unsigned first = memory_log_count;
        assert_int_equal(read_some(0, 9000, more, IBX_URGENT | (more ? IBX_MORE : 0)), 0);
        assert_int_equal(memory_log_count, first + 3);
        for (unsigned i = first; i < memory_log_count; i++)
            assert_int_equal(memory_log[i].more, more);
        expect_event(b.pair.client, IBX_EVENT_READ, more, 0);
    }
}

static void urgent_passes_bulk(void **state)
{
    (void)state;
    memory_control.hold = true;
    assert_int_equal(read_some(0, BYTES, 1, 0), 0);
    unsigned bulk = memory_log_count; /* as much as the depth allows; the rest waits */
    assert_int_equal(bulk, memory_control.depth);
    assert_int_equal(read_some(100, 8, 2, IBX_URGENT), 0);
    assert_int_equal(memory_log_count, bulk + 1);
    assert_int_equal(memory_log[bulk].lane, 0);
    for (unsigned i = 0; i < bulk; i++)
        assert_int_not_equal(memory_log[i].lane, 0);
    /* When a full fabric has room again, the urgent post is the first. */
    memory_control.room = bulk + 1;
    assert_int_equal(read_some(200, 8, 3, IBX_URGENT), 0);
    assert_int_equal(memory_log_count, bulk + 1);
    memory_control.hold = false;
    expect_event(b.pair.client, IBX_EVENT_READ, 2, 0);
    assert_int_equal(memory_log[bulk + 1].lane, 0);
    assert_int_equal(memory_log[bulk + 1].length, 8);
    expect_event(b.pair.client, IBX_EVENT_READ, 3, 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
}

/* Urgent posts beyond the places that are reserved for them wait, and none is lost. */
static void more_urgent_posts_than_places(void **state)
{
    (void)state;
    memory_control.hold = true;
    for (unsigned i = 0; i < 200; i++)
        assert_int_equal(read_some(i, 1, i, IBX_URGENT), 0);
    memory_control.hold = false;
    for (unsigned i = 0; i < 200; i++)
        expect_event(b.pair.client, IBX_EVENT_READ, i, 0);
    assert_memory_equal(b.local, b.distant, 200);
}

static void lanes_share_bulk(void **state)
{
    (void)state;
    memory_control.lanes = 3;
    open_default();
    memory_control.hold = true;
    memory_control.lane_room = 2;
    assert_int_equal(read_some(0, 8 * 4096, 1, 0), 0);
    unsigned on_lane[4] = {0};
    for (unsigned i = 0; i < memory_log_count; i++)
        on_lane[memory_log[i].lane]++;
    /* There are six places. One full lane leaves the other lanes' places usable. */
    assert_int_equal(memory_log_count, 6);
    for (unsigned lane = 1; lane <= 3; lane++)
        assert_int_equal(on_lane[lane], 2);
    memory_control.hold = false;
    expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
}

static void without_bulk_lanes(void **state)
{
    (void)state;
    memory_control.lanes = 0;
    open_default();
    assert_int_equal(read_some(0, 10000, 1, 0), 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
    for (unsigned i = 0; i < memory_log_count; i++)
        assert_int_equal(memory_log[i].lane, 0);
}

/* ------------------------------------------------------------------------ failure */

/* If one chunk fails, the operation fails once, its remaining chunks are not posted, and the
 * operations before and after it succeed. */
static void failure_in_the_middle(void **state)
{
    (void)state;
    memory_control.depth = 3;
    open_default();
    for (unsigned nth = 1; nth <= 8; nth++) {
        memory_control.per_round = nth % 3; /* how many other chunks are then in flight */
        unsigned before = memory_log_count;
        assert_int_equal(read_some(0, 4096, 1, 0), 0);
        assert_int_equal(read_some(0, 8 * 4096, 2, 0), 0);
        assert_int_equal(read_some(0, 4096, 3, 0), 0);
        memory_control.fail_in = 1 + nth;
        expect_event(b.pair.client, IBX_EVENT_READ, 1, 0);
        expect_event(b.pair.client, IBX_EVENT_READ, 2, -EIO);
        expect_event(b.pair.client, IBX_EVENT_READ, 3, 0);
        expect_silence(b.pair.client);
        assert_true(memory_log_count - before <= 2 + nth + 2);
        assert_int_equal(memory_in_flight, 0);
    }
}

static void forbidden_memory_fails_the_operation_only(void **state)
{
    (void)state;
    struct ibx_remote wrong = b.remote;
    wrong.keys[0]++;
    assert_int_equal(ibx_read(b.pair.client, b.near, b.local, &wrong, 0, 9000, 1, 0), 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 1, -EACCES);
    assert_int_equal(read_some(0, 9000, 2, 0), 0);
    expect_event(b.pair.client, IBX_EVENT_READ, 2, 0);
    assert_string_equal(ibx_conn_reason(b.pair.client), "");
}

/* A fabric that answers a post with an error ends the connection. Everything posted is
 * completed. */
static void broken_fabric_ends_the_connection(void **state)
{
    (void)state;
    memory_control.hold = true;
    assert_int_equal(read_some(0, 4096, 1, 0), 0);
    memory_control.refuse = -ENODEV;
    assert_int_equal(read_some(0, 9000, 2, 0), 0);
    assert_int_equal(read_some(0, 0, 3, IBX_URGENT), -ENOTCONN);
    unsigned seen = 0;
    for (int i = 0; i < 2; i++) {
        struct ibx_event event = next_event(b.pair.client);
        assert_int_equal(event.type, IBX_EVENT_READ);
        seen |= 1u << event.cookie;
        if (event.cookie == 1)
            assert_int_equal(event.status, -ECONNRESET);
        if (event.cookie == 2)
            assert_int_equal(event.status, -ENODEV);
    }
    assert_int_equal(seen, 6);
    expect_event(b.pair.client, IBX_EVENT_CLOSED, 0, -ENODEV);
    struct ibx_event event;
    assert_int_equal(ibx_poll(b.pair.client, &event, 1), -ENOTCONN);
    assert_int_equal(read_some(0, 1, 4, 0), -ENOTCONN);
    assert_string_not_equal(ibx_conn_reason(b.pair.client), "");
}

/* The peer closes. Chunks in the fabric, waiting chunks and then the close itself are reported,
 * in this order; with `late`, not before the fabric has released its chunks. */
static void flush(bool late)
{
    memory_control.depth = 4;
    open_default();
    memory_control.late_abort = late;
    memory_control.hold = true;
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(read_some(0, 3 * 4096, i, i % 3 ? 0 : IBX_URGENT), 0);
    ibx_mr_deregister(b.far);
    ibx_close(b.pair.server);
    b.pair.server = NULL;
    unsigned seen = 0;
    struct ibx_event event = {0};
    while (ibx_wait(b.pair.client, 5000) == 1 && ibx_poll(b.pair.client, &event, 1) == 1 &&
           event.type != IBX_EVENT_CLOSED) {
        assert_int_equal(event.type, IBX_EVENT_READ);
        assert_int_equal(event.status, -ECONNRESET);
        assert_false(seen & 1u << event.cookie);
        seen |= 1u << event.cookie;
    }
    assert_int_equal(event.type, IBX_EVENT_CLOSED);
    assert_int_equal(event.status, -ECONNRESET);
    assert_int_equal(seen, 0x3ff);
    assert_int_equal(memory_in_flight, 0);
    assert_string_equal(ibx_conn_reason(b.pair.client), "the peer closed the connection");
    assert_int_equal(ibx_poll(b.pair.client, &event, 1), -ENOTCONN);
}

static void peer_closes(void **state)
{
    (void)state;
    flush(false);
}

static void peer_closes_and_the_fabric_lets_go_late(void **state)
{
    (void)state;
    flush(true);
}

/* The fabric still carries out posts although the peer is dead, as shared memory does. A side
 * that posts without pause still learns of the death. */
static void peer_dies_under_load(void **state)
{
    (void)state;
    struct ibx_event event = {0};
    open_default();
    memory_control.survives = true;
    ibx_close(b.pair.server);
    b.pair.server = NULL;
    for (unsigned polls = 0; event.type != IBX_EVENT_CLOSED; polls++) {
        assert_true(polls < 100000);
        int rc = ibx_read(b.pair.client, b.near, b.local, &b.remote, 0, 1, polls, 0);
        assert_true(rc == 0 || rc == -ENOTCONN);
        assert_int_equal(ibx_poll(b.pair.client, &event, 1), 1);
    }
    assert_int_equal(event.status, -ECONNRESET);
}

/* All work in flight is completed before ibx_close() returns. */
static void close_with_work_in_flight(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        memory_control_reset();
        open_default();
        memory_control.late_abort = late;
        memory_control.hold = true;
        assert_int_equal(read_some(0, BYTES, 1, 0), 0);
        assert_true(memory_in_flight > 0);
        ibx_close(b.pair.client);
        b.pair.client = NULL;
        assert_int_equal(memory_in_flight, 0);
        close_all();
    }
}

/* ----------------------------------------------------------------------- messages */

static void messages_are_gathered_and_in_order(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        char text[16];
        struct iovec iov[3] = {{text, (size_t)snprintf(text, sizeof(text), "%u ", i)},
                               {NULL, 0},
                               {(char[]){"message"}, 7}};
        assert_int_equal(ibx_send(b.pair.client, iov, 3, 0, 0), 0);
    }
    for (unsigned i = 0; i < 10; i++) {
        char expected[16];
        struct ibx_event event = next_event(b.pair.server);
        assert_int_equal(event.type, IBX_EVENT_MESSAGE);
        int n = snprintf(expected, sizeof(expected), "%u message", i);
        assert_int_equal(event.length, n);
        assert_memory_equal(event.data, expected, event.length);
        ibx_message_release(b.pair.server, &event);
    }
}

static void message_limits(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    options.message = 2000;
    options.slots = 4;
    open_with(&options);
    static uint8_t bytes[3000];
    struct iovec two[2] = {{bytes, 1000}, {bytes, 1001}};
    assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), -EMSGSIZE);
    two[1].iov_len = SIZE_MAX;
    assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), -EMSGSIZE);
    two[1].iov_len = 1000;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), 0);
    assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), -EAGAIN);
    struct ibx_event event = next_event(b.pair.server);
    assert_int_equal(event.length, 2000);
    assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), -EAGAIN);
    ibx_message_release(b.pair.server, &event);
    assert_int_equal(ibx_send(b.pair.client, two, 2, 0, 0), 0);
}

/* The smaller message size of both ends counts. */
static void ends_agree_on_the_smaller_message(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    options.message = 8192;
    open_with(&options);
    assert_int_equal(ibx_conn_caps(b.pair.server)->message_max, 8192);
    assert_int_equal(ibx_conn_caps(b.pair.client)->message_max, 8192);
}

#define LAST_MESSAGES 12 /* more than this fabric delivers in one round */

static void send_and_close(void)
{
    for (uint8_t i = 0; i < LAST_MESSAGES; i++) {
        struct iovec iov = {&i, 1};
        assert_int_equal(ibx_send(b.pair.server, &iov, 1, 0, 0), 0);
    }
    ibx_mr_deregister(b.far);
    ibx_close(b.pair.server);
    b.pair.server = NULL;
}

/* Messages sent just before the close are delivered before the close, even if both arrive
 * between this side's look at the fabric and its look at the handshake socket. */
static void last_messages_are_delivered(void **state)
{
    (void)state;
    for (int asleep = 0; asleep < 2; asleep++) {
        struct ibx_event event;
        memory_control_reset();
        open_default();
        for (int i = 0; !asleep && i < 511; i++) /* the next poll looks at the handshake socket */
            assert_int_equal(ibx_poll(b.pair.client, &event, 1), 0);
        if (asleep) {
            send_and_close();
            assert_int_equal(ibx_wait(b.pair.client, 5000), 1);
        } else {
            memory_control.when_idle = send_and_close;
        }
        for (unsigned i = 0; i < LAST_MESSAGES; i++) {
            event = next_event(b.pair.client);
            assert_int_equal(event.type, IBX_EVENT_MESSAGE);
            assert_int_equal(*(const uint8_t *)event.data, i);
            ibx_message_release(b.pair.client, &event);
        }
        assert_int_equal(ibx_wait(b.pair.client, 5000), 1);
        expect_event(b.pair.client, IBX_EVENT_CLOSED, 0, -ECONNRESET);
        close_all();
    }
}

/* ----------------------------------------------------------------------- sleeping */

static void wait_ends_by_wake_time_and_event(void **state)
{
    (void)state;
    assert_int_equal(ibx_wait(b.pair.client, 0), 0);
    assert_int_equal(ibx_wait(b.pair.client, 20), 0);
    ibx_wake(b.pair.client);
    assert_int_equal(ibx_wait(b.pair.client, -1), -EINTR);
    assert_int_equal(ibx_wait(b.pair.client, 0), 0);
    struct iovec iov = {(char[]){"x"}, 1};
    assert_int_equal(ibx_send(b.pair.server, &iov, 1, 0, 0), 0);
    assert_int_equal(ibx_wait(b.pair.client, -1), 1);
    assert_int_equal(ibx_arm(b.pair.client), 1);
    struct ibx_event event = next_event(b.pair.client);
    ibx_message_release(b.pair.client, &event);
}

/* A peer that keeps this side busy delays neither a time-out nor a wake. */
static void busy_peer_does_not_hold_up_the_wait(void **state)
{
    (void)state;
    static const char *const spins[] = {"0", "50", "10000000"};
    for (int i = 0; i < 3; i++) {
        struct ibx_options options;
        memory_control_reset();
        ibx_options_init(&options);
        assert_int_equal(ibx_options_set(&options, "spin_us", spins[i], NULL), 0);
        open_with(&options);
        memory_control.busy = true;
        alarm(30 * patience_times()); /* a test that hangs is killed */
        assert_int_equal(ibx_wait(b.pair.client, 30), 0);
        ibx_wake(b.pair.client);
        assert_int_equal(ibx_wait(b.pair.client, -1), -EINTR);
        alarm(0);
        close_all();
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, reset, check_and_close)
#define OPEN(f) cmocka_unit_test_setup_teardown(f, reset_and_open, check_and_close)
    const struct CMUnitTest tests[] = {
        OPEN(read_is_cut_into_chunks_and_complete),
        OPEN(write_is_cut_and_whole),
        OPEN(every_length_round_a_chunk),
        OPEN(zero_bytes_complete_too),
        OPEN(outside_of_region_or_remote),
        OPEN(remote_names_only_what_may_be_reached),
        OPEN(gpu_memory_is_not_taken_for_the_hosts),
        OPEN(many_outstanding_complete_once_each),
        TEST(depth_is_kept),
        OPEN(posts_that_others_follow),
        OPEN(urgent_passes_bulk),
        OPEN(more_urgent_posts_than_places),
        TEST(lanes_share_bulk),
        TEST(without_bulk_lanes),
        TEST(failure_in_the_middle),
        OPEN(forbidden_memory_fails_the_operation_only),
        OPEN(broken_fabric_ends_the_connection),
        TEST(peer_closes),
        TEST(peer_closes_and_the_fabric_lets_go_late),
        TEST(peer_dies_under_load),
        TEST(close_with_work_in_flight),
        OPEN(messages_are_gathered_and_in_order),
        TEST(message_limits),
        TEST(ends_agree_on_the_smaller_message),
        TEST(last_messages_are_delivered),
        OPEN(wait_ends_by_wake_time_and_event),
        TEST(busy_peer_does_not_hold_up_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
