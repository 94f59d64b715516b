/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Golden frames of GVirtuS, and frames that differ from them in a byte or a length. */
#include "frontend-glue/device_copies/copies.h"

#include "common/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

/* Parses a body that is in one piece. */
static bool parse(enum ibx_frame_call call, const uint8_t *bytes, size_t n, struct ibx_frame *frame)
{
    size_t window = n < IBX_FRAME_WINDOW ? n : IBX_FRAME_WINDOW;
    struct ibx_frame_body body = {bytes, bytes + n - window, n};
    return ibx_frame_parse(call, &body, frame);
}

#define U64(a, b) a, b, 0, 0, 0, 0, 0, 0
#define DST       0x00, 0x10, 0x32, 0x54, 0x76, 0x7f, 0x00, 0x00
#define SRC       0x00, 0xaa, 0xbb, 0xcc, 0xdd, 0x7f, 0x00, 0x00
#define STREAM    0x80, 0x70, 0x60, 0x50, 0x40, 0x55, 0x00, 0x00
#define KIND(k)   k, 0, 0, 0

static const uint64_t dst = 0x7f7654321000, src = 0x7fddccbbaa00, stream = 0x554050607080;

static const uint8_t to_device[] = {DST, U64(5, 0), 'h', 'e', 'l', 'l', 'o', U64(5, 0), KIND(1)};
static const uint8_t from_device[] = {U64(1, 0), 0, SRC, U64(0x34, 0x12), KIND(2)};
static const uint8_t on_device[] = {DST, SRC, U64(0x34, 0x12), KIND(3)};
static const uint8_t to_device_async[] = {DST, U64(2, 0), 'h', 'i', U64(2, 0), KIND(1), STREAM};
static const uint8_t from_device_async[] = {U64(1, 0), 0, SRC, U64(7, 0), KIND(2), STREAM};
static const uint8_t on_device_async[] = {DST, SRC, U64(7, 0), KIND(3), STREAM};
static const uint8_t to_device_2d[] = {DST, U64(6, 0), 'a',       'b',       '-',       'c',    'd',
                                       '-', U64(9, 0), U64(3, 0), U64(2, 0), U64(2, 0), KIND(1)};
static const uint8_t from_device_2d[] = {U64(1, 0), 0,         SRC,       U64(3, 0),
                                         U64(9, 0), U64(2, 0), U64(4, 0), KIND(2)};
static const uint8_t on_device_2d[] = {DST,       SRC,       U64(3, 0), U64(9, 0),
                                       U64(2, 0), U64(4, 0), KIND(3)};

/* The client's variable at 0x4afe00, whose name starts with 0; 3 bytes from the fourth on. */
static const uint8_t to_symbol[] = {U64(9, 0), U64(9, 0), '0', 'x', '4',       'a',       'f',
                                    'e',       '0',       '0', 0,   U64(1, 0), U64(1, 0), 0,
                                    U64(3, 0), 'o',       'n', 'e', U64(3, 0), U64(4, 0), KIND(1)};

#define GOLDEN(call, bytes, ...)                                                                   \
    {                                                                                              \
        call, bytes, sizeof(bytes),                                                                \
        {                                                                                          \
            call, __VA_ARGS__                                                                      \
        }                                                                                          \
    }

static const struct {
    enum ibx_frame_call call;
    const uint8_t *bytes;
    size_t n;
    struct ibx_frame frame;
} golden[] = {
    /* kind, dst, src, stream, dpitch, spitch, width, height, payload_at, payload, out, symbol,
     * symbol_offset */
    GOLDEN(IBX_FRAME_MEMCPY, to_device, IBX_FRAME_H2D, dst, 0, 0, 5, 5, 5, 1, 16, 5, 0, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY, from_device, IBX_FRAME_D2H, 0, src, 0, 0x1234, 0x1234, 0x1234, 1, 0, 0,
           0x1234, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY, on_device, IBX_FRAME_D2D, dst, src, 0, 0x1234, 0x1234, 0x1234, 1, 0, 0,
           0, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY_ASYNC, to_device_async, IBX_FRAME_H2D, dst, 0, stream, 2, 2, 2, 1, 16,
           2, 0, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY_ASYNC, from_device_async, IBX_FRAME_D2H, 0, src, stream, 7, 7, 7, 1, 0,
           0, 7, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY_ASYNC, on_device_async, IBX_FRAME_D2D, dst, src, stream, 7, 7, 7, 1, 0,
           0, 0, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY_2D, to_device_2d, IBX_FRAME_H2D, dst, 0, 0, 9, 3, 2, 2, 16, 6, 0, 0, 0),
    GOLDEN(IBX_FRAME_MEMCPY_2D, from_device_2d, IBX_FRAME_D2H, 0, src, 0, 3, 9, 2, 4, 0, 0, 12, 0,
           0),
    GOLDEN(IBX_FRAME_MEMCPY_2D, on_device_2d, IBX_FRAME_D2D, dst, src, 0, 3, 9, 2, 4, 0, 0, 0, 0,
           0),
    GOLDEN(IBX_FRAME_TO_SYMBOL, to_symbol, IBX_FRAME_H2D, 0, 0, 0, 3, 3, 3, 1, 50, 3, 0, 0x4afe00,
           4),
};
#define GOLDENS (sizeof(golden) / sizeof(golden[0]))

static void assert_frame(const struct ibx_frame *got, const struct ibx_frame *expected)
{
    assert_int_equal(got->call, expected->call);
    assert_int_equal(got->kind, expected->kind);
    assert_true(got->dst == expected->dst && got->src == expected->src);
    assert_true(got->stream == expected->stream);
    assert_true(got->dpitch == expected->dpitch && got->spitch == expected->spitch);
    assert_true(got->width == expected->width && got->height == expected->height);
    assert_true(got->payload_at == expected->payload_at && got->payload == expected->payload);
    assert_true(got->out == expected->out);
    assert_true(got->symbol == expected->symbol && got->symbol_offset == expected->symbol_offset);
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < GOLDENS; i++) {
        struct ibx_frame frame;
        assert_true(parse(golden[i].call, golden[i].bytes, golden[i].n, &frame));
        assert_frame(&frame, &golden[i].frame);
    }
}

/* A frame of one call is not taken for another call's; only its exact length is accepted. */
static void test_other_calls_and_lengths(void **state)
{
    (void)state;
    uint8_t bytes[80];
    for (size_t i = 0; i < GOLDENS; i++) {
        struct ibx_frame frame = {0};
        for (int call = IBX_FRAME_OTHER; call <= IBX_FRAME_TO_SYMBOL; call++) {
            if (call != (int)golden[i].call)
                assert_false(
                    parse((enum ibx_frame_call)call, golden[i].bytes, golden[i].n, &frame));
        }
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, golden[i].bytes, golden[i].n);
        for (size_t n = 0; n < sizeof(bytes); n++) {
            if (n != golden[i].n)
                assert_false(parse(golden[i].call, bytes, n, &frame));
        }
        assert_int_equal(frame.call, IBX_FRAME_OTHER); /* outputs are set only on success */
    }
}

/* Every byte matters: if it is changed, the frame is refused, is another one, or has another
 * payload. */
static void test_each_byte_counts(void **state)
{
    (void)state;
    uint8_t bytes[80];
    for (size_t i = 0; i < GOLDENS; i++) {
        const struct ibx_frame *whole = &golden[i].frame;
        for (size_t at = 0; at < golden[i].n; at++) {
            struct ibx_frame frame;
            memcpy(bytes, golden[i].bytes, golden[i].n);
            bytes[at] ^= 0x40;
            bool in_payload = at >= whole->payload_at && at - whole->payload_at < whole->payload;
            bool parsed = parse(golden[i].call, bytes, golden[i].n, &frame);
            if (in_payload)
                assert_true(parsed);
            else if (parsed)
                assert_true(memcmp(&frame, whole, sizeof(frame)) != 0);
        }
    }
}

/* Addresses in a form that printf() does not write, strings without an end or with two, and
 * payloads outside the window. */
static void test_hostile_symbols(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        size_t more; /* bytes of the second string */
        bool good;
    } cases[] = {
        {"0x1", 0, true},
        {"0xffffffffffffffff", 3, true},
        {"0xffffffffffffffff", 4, true},
        {"0x", 0, false},
        {"0xffffffffffffffff", 5, false},
        {"0x0", 0, false},
        {"0x01", 0, false},
        {"0x1ffffffffffffffff", 0, false},
        {"0xAB", 0, false},
        {"0x5g", 0, false},
        {"(nil)", 0, false},
        {"1x5", 0, false},
        {"variable", 0, false},
        {"", 0, false},
        {"0X5", 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[128] = {0};
        struct ibx_frame frame;
        size_t n = strlen(cases[i].address) + 1;
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        ibx_put_u64(&w, n);
        ibx_put_u64(&w, n);
        ibx_put_bytes(&w, cases[i].address, n);
        ibx_put_u64(&w, cases[i].more + 1);
        ibx_put_u64(&w, cases[i].more + 1);
        ibx_put_bytes(&w, "abcdefgh", cases[i].more);
        ibx_put_u8(&w, 0);
        ibx_put_u64(&w, 2);
        ibx_put_bytes(&w, "hi", 2);
        ibx_put_u64(&w, 2);
        ibx_put_u64(&w, 0);
        ibx_put_u32(&w, IBX_FRAME_H2D);
        assert_false(w.failed);
        assert_int_equal(parse(IBX_FRAME_TO_SYMBOL, bytes, w.length, &frame), cases[i].good);
        if (cases[i].good)
            assert_int_equal(frame.payload_at, 40 + n + cases[i].more + 1);
        bytes[w.length - 4] = IBX_FRAME_D2D;
        assert_false(parse(IBX_FRAME_TO_SYMBOL, bytes, w.length, &frame));
    }
}

static void put_2d(struct ibx_writer *w, uint64_t n, const uint64_t sizes[4])
{
    ibx_put_u64(w, dst);
    ibx_put_u64(w, n);
    w->length += n; /* anything */
    for (int i = 0; i < 4; i++)
        ibx_put_u64(w, sizes[i]);
    ibx_put_u32(w, IBX_FRAME_H2D);
}

/* Products that wrap to the right length, rows longer than their pitch, and copies of 0 bytes. */
static void test_hostile_sizes(void **state)
{
    (void)state;
    static const uint64_t bad[][4] = {
        {64, (1ull << 61) + 8, 8, 8}, /* 8 rows are 2^64 + 64 bytes */
        {1ull << 61, 8, 8, 8},
        {7, 8, 8, 8},
        {8, 8, 9, 8},
        {16, 8, 9, 8}, /* the last row ends behind the payload */
        {8, 8, 0, 8},
        {8, 64, 8, 0},
        {8, 8, 8, 7},
    };
    uint8_t bytes[256] = {0};
    struct ibx_frame frame;
    for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
        const uint64_t good[4] = {8, 8, 8, 8};
        bool last = i == sizeof(bad) / sizeof(bad[0]);
        struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
        put_2d(&w, 64, last ? good : bad[i]);
        assert_false(w.failed);
        assert_int_equal(parse(IBX_FRAME_MEMCPY_2D, bytes, w.length, &frame), last);
    }
}

/* Bytes between the payload and what follows it are no part of a frame. */
static void test_bytes_behind_the_payload(void **state)
{
    (void)state;
    static const uint8_t more[] = {DST, U64(5, 0), 'h', 'e', 'l', 'l', 'o', 0, U64(5, 0), KIND(1)};
    struct ibx_frame frame;
    assert_false(parse(IBX_FRAME_MEMCPY, more, sizeof(more), &frame));
}

static void test_long_body(void **state)
{
    (void)state;
    struct ibx_frame frame;
    uint8_t first[IBX_FRAME_WINDOW] = {DST, U64(0, 0)}, last[IBX_FRAME_WINDOW] = {0};
    uint64_t n = 5ull << 30;
    struct ibx_writer w = ibx_writer_of(first + 8, 8);
    ibx_put_u64(&w, n);
    w = ibx_writer_of(last + IBX_FRAME_WINDOW - 12, 12);
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, IBX_FRAME_H2D);
    struct ibx_frame_body body = {first, last, n + 28};
    assert_true(ibx_frame_parse(IBX_FRAME_MEMCPY, &body, &frame));
    assert_true(frame.payload == n && frame.payload_at == 16 && frame.dst == dst);
    body.length--;
    assert_false(ibx_frame_parse(IBX_FRAME_MEMCPY, &body, &frame));
}

static void test_names(void **state)
{
    (void)state;
    size_t n = 0;
    assert_int_equal(ibx_frame_name((const uint8_t *)"cudaMemcpy", 11, &n), IBX_FRAME_MEMCPY);
    assert_int_equal(n, 11);
    assert_int_equal(ibx_frame_name((const uint8_t *)"cudaMemcpyAsync\0...", 19, &n),
                     IBX_FRAME_MEMCPY_ASYNC);
    assert_int_equal(n, 16);
    assert_int_equal(ibx_frame_name((const uint8_t *)"cudaMemcpy2D", 13, &n), IBX_FRAME_MEMCPY_2D);
    assert_int_equal(n, 13);
    const char *const others[] = {
        "cudaMemcpyToSymbolAsync", "cudaMemcpy2DAsync", "cudaMemcp", "", "xcudaMemcpy",
        "cudaMemcpyasync"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        assert_int_equal(ibx_frame_name((const uint8_t *)others[i], strlen(others[i]) + 1, &n), 0);
    /* the NUL has not arrived yet */
    assert_int_equal(ibx_frame_name((const uint8_t *)"cudaMemcpy", 10, &n), 0);
}

/* -------------------------------------------------------- requests of which only parts are seen */

static size_t put_request(uint8_t *at, const char *name, const void *body, uint64_t length)
{
    struct ibx_writer w = ibx_writer_of(at, 200);
    ibx_put_bytes(&w, name, strlen(name) + 1);
    ibx_put_u64(&w, length);
    ibx_put_bytes(&w, body, length);
    assert_false(w.failed);
    return w.length;
}

/* However GVirtuS reads, the start of each request is known after each byte. */
static void test_starts_of_requests_are_known(void **state)
{
    (void)state;
    static const char *const names[] = {"cudaGetDevice",
                                        "",
                                        "cudaDeviceReset",
                                        "cudaThreadExit",
                                        "cuCtxDestroy",
                                        "cuCtxDetach",
                                        "cudaAnameThatIsLongerThanWhatIsKeptOfIt"};
    const uint8_t three[4] = {3};
    uint8_t bytes[800];
    size_t ends[8], n = 0;
    for (size_t i = 0; i < 7; i++) {
        n += put_request(bytes + n, names[i], bytes, i * 7);
        ends[i] = n;
    }
    n += put_request(bytes + n, "cudaSetDevice", three, 4);
    ends[7] = n;
    for (size_t piece = 1; piece <= n; piece++) {
        struct ibx_request_watch watch;
        ibx_request_watch_init(&watch);
        assert_true(ibx_request_begins(&watch));
        assert_int_equal(watch.device, -1);
        for (size_t at = 0; at < n; at += piece) {
            size_t some = n - at < piece ? n - at : piece;
            ibx_request_note_read(&watch, bytes + at, some);
            bool begins = false;
            for (size_t i = 0; i < 8; i++)
                begins = begins || at + some == ends[i];
            assert_int_equal(ibx_request_begins(&watch), begins);
        }
        assert_int_equal(watch.device, 3);
        assert_int_equal(watch.resets, 4);
    }
}

/* A context is named by the first 8 bytes, as GVirtuS's handlers read them, or it is a device's. */
static void test_contexts_that_end(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t length, context;
        bool names;
    } cases[] = {{"cuCtxDestroy", 8, 0x7f0011223344, true},
                 {"cuCtxDetach", 9, 0x7f0011223344, true},
                 {"cuCtxDestroy", 0, 0, true},
                 {"cuCtxDestroy", 7, 0, true},
                 {"cudaDeviceReset", 0, 0, false}};
    const uint8_t body[9] = {0x44, 0x33, 0x22, 0x11, 0x00, 0x7f};
    uint8_t bytes[200];
    struct ibx_request_watch watch;
    ibx_request_watch_init(&watch);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = put_request(bytes, cases[i].name, body, cases[i].length);
        for (size_t at = 0; at < n; at++)
            ibx_request_note_read(&watch, bytes + at, 1);
        assert_int_equal(watch.resets, i + 1);
        assert_int_equal(watch.context, cases[i].context);
        assert_int_equal(watch.names_context, cases[i].names);
    }
}

/* ----------------------------------------------------------------------- replies */

/* Returns the shape after one reply that is written with these sizes; `second` is the value of
 * the second write. */
static enum ibx_reply_shape shape_after(struct ibx_reply_watch *watch, const size_t *sizes,
                                        uint64_t second, uint64_t third)
{
    uint8_t bytes[64] = {0};
    for (unsigned i = 0; sizes[i]; i++) {
        struct ibx_writer w = ibx_writer_of(bytes, 8);
        ibx_put_u64(&w, i == 1 ? second : i == 2 ? third : 0);
        ibx_reply_note_write(watch, bytes, sizes[i]);
    }
    ibx_reply_note_write(watch, bytes, 0);
    ibx_reply_note_sync(watch);
    ibx_reply_note_sync(watch); /* no call in between */
    return watch->shape;
}

static enum ibx_reply_shape first_shape(const size_t *sizes, uint64_t second, uint64_t third)
{
    struct ibx_reply_watch watch = {0};
    return shape_after(&watch, sizes, second, third);
}

static void test_reply_shapes(void **state)
{
    (void)state;
    static const size_t empty_plain[] = {4, 8, 0}, three[] = {4, 8, 8, 0}, out_12[] = {4, 8, 12, 0},
                        timed_12[] = {4, 8, 8, 12, 0}, timed_8[] = {4, 8, 8, 8, 0}, one[] = {4, 0},
                        five[] = {4, 8, 8, 1, 1, 0};
    double seconds = 0.25;
    uint64_t time_bits;
    memcpy(&time_bits, &seconds, 8);
    assert_int_equal(first_shape(empty_plain, 0, 0), IBX_REPLY_PLAIN);
    assert_int_equal(first_shape(out_12, 12, 0), IBX_REPLY_PLAIN);
    assert_int_equal(first_shape(three, 8, 77), IBX_REPLY_PLAIN);
    assert_int_equal(first_shape(three, 0, 0), IBX_REPLY_TIMED);
    assert_int_equal(first_shape(three, time_bits, 0), IBX_REPLY_TIMED);
    assert_int_equal(first_shape(timed_12, time_bits, 12), IBX_REPLY_TIMED);
    assert_int_equal(first_shape(timed_8, 0, 8), IBX_REPLY_TIMED);
    assert_int_equal(first_shape(timed_12, time_bits, 11), IBX_REPLY_ODD);
    assert_int_equal(first_shape(out_12, 11, 0), IBX_REPLY_ODD);
    assert_int_equal(first_shape(one, 0, 0), IBX_REPLY_ODD);
    assert_int_equal(first_shape(five, 0, 1), IBX_REPLY_ODD);

    struct ibx_reply_watch watch = {0};
    ibx_reply_note_sync(&watch);
    assert_int_equal(watch.shape, IBX_REPLY_UNKNOWN);
    assert_int_equal(shape_after(&watch, three, 0, 0), IBX_REPLY_TIMED);
    assert_int_equal(shape_after(&watch, timed_12, time_bits, 12), IBX_REPLY_TIMED);
    assert_int_equal(shape_after(&watch, out_12, 12, 0),
                     IBX_REPLY_ODD); /* it changes, so it is never certain */
    assert_int_equal(shape_after(&watch, three, 0, 0), IBX_REPLY_ODD);
}

static void test_reply_heads(void **state)
{
    (void)state;
    static const uint8_t plain[] = {0xbc, 2, 0, 0, 0x0d, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t timed[] = {0xbc, 2,    0,    0, 0, 0, 0, 0, 0, 0,
                                    0xd0, 0x3f, 0x0d, 0, 0, 0, 0, 0, 0, 0};
    uint8_t head[IBX_REPLY_HEAD_MAX];
    assert_int_equal(ibx_reply_head(IBX_REPLY_PLAIN, 700, 0.25, 13, head), sizeof(plain));
    assert_memory_equal(head, plain, sizeof(plain));
    assert_int_equal(ibx_reply_head(IBX_REPLY_TIMED, 700, 0.25, 13, head), sizeof(timed));
    assert_memory_equal(head, timed, sizeof(timed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_other_calls_and_lengths),
        cmocka_unit_test(test_each_byte_counts),
        cmocka_unit_test(test_hostile_sizes),
        cmocka_unit_test(test_bytes_behind_the_payload),
        cmocka_unit_test(test_long_body),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_starts_of_requests_are_known),
        cmocka_unit_test(test_contexts_that_end),
        cmocka_unit_test(test_reply_shapes),
        cmocka_unit_test(test_reply_heads),
        cmocka_unit_test(test_hostile_symbols),
    };
    return cmocka_run_group_tests_name("frames", tests, NULL, NULL);
}
