/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The encoding of everything that ibx sends: golden bytes, and every truncation. */
#include "common/wire.h"
#include "transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const uint8_t golden[] = {
    0xa1,                                           /* u8 */
    0xb2, 0xc3,                                     /* u16 0xc3b2 */
    0x04, 0x03, 0x02, 0x01,                         /* u32 0x01020304 */
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* u64 0x1122334455667788 */
    0x03, 0x00, 'i',  'b',  'x',                    /* string "ibx" */
    0x00, 0x00,                                     /* string "" */
    0xde, 0xad,                                     /* bytes */
};

static void put_all(struct ibx_writer *w)
{
    ibx_put_u8(w, 0xa1);
    ibx_put_u16(w, 0xc3b2);
    ibx_put_u32(w, 0x01020304);
    ibx_put_u64(w, 0x1122334455667788);
    ibx_put_string(w, "ibx");
    ibx_put_string(w, "");
    ibx_put_bytes(w, "\xde\xad", 2);
}

struct fields {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    char text[8], empty[8];
    const uint8_t *bytes;
};

static void get_all(struct ibx_reader *r, struct fields *f)
{
    f->u8 = ibx_get_u8(r);
    f->u16 = ibx_get_u16(r);
    f->u32 = ibx_get_u32(r);
    f->u64 = ibx_get_u64(r);
    ibx_get_string(r, f->text, sizeof(f->text));
    ibx_get_string(r, f->empty, sizeof(f->empty));
    f->bytes = ibx_get_bytes(r, 2);
}

static void encodes_golden_bytes(void **state)
{
    (void)state;
    uint8_t out[sizeof(golden)];
    struct ibx_writer w = ibx_writer_of(out, sizeof(out));
    put_all(&w);
    assert_false(w.failed);
    assert_int_equal(w.length, sizeof(golden));
    assert_memory_equal(out, golden, sizeof(golden));
}

static void decodes_golden_bytes(void **state)
{
    (void)state;
    struct fields f;
    struct ibx_reader r = ibx_reader_of(golden, sizeof(golden));
    get_all(&r, &f);
    assert_false(r.failed);
    assert_int_equal(ibx_reader_left(&r), 0);
    assert_int_equal(f.u8, 0xa1);
    assert_int_equal(f.u16, 0xc3b2);
    assert_int_equal(f.u32, 0x01020304);
    assert_true(f.u64 == 0x1122334455667788);
    assert_string_equal(f.text, "ibx");
    assert_string_equal(f.empty, "");
    assert_memory_equal(f.bytes, "\xde\xad", 2);
}

/* Whatever is cut off, the reader touches nothing behind the end and remains failed. */
static void reader_fails_at_every_truncation(void **state)
{
    (void)state;
    for (size_t length = 0; length < sizeof(golden); length++) {
        /* of this size, so that a sanitizer detects a read behind the end */
        uint8_t *exact = malloc(length ? length : 1);
        struct fields f;
        memcpy(exact, golden, length);
        struct ibx_reader r = ibx_reader_of(exact, length);
        get_all(&r, &f);
        assert_true(r.failed);
        assert_null(f.bytes);
        assert_int_equal(ibx_reader_left(&r), 0);
        assert_int_equal(ibx_get_u8(&r), 0);
        assert_true(r.failed);
        free(exact);
    }
}

static void writer_fails_at_every_capacity(void **state)
{
    (void)state;
    for (size_t capacity = 0; capacity < sizeof(golden); capacity++) {
        uint8_t out[sizeof(golden) + 1];
        memset(out, 0x5a, sizeof(out));
        struct ibx_writer w = ibx_writer_of(out, capacity);
        put_all(&w);
        assert_true(w.failed);
        assert_true(w.length <= capacity);
        assert_memory_equal(out, golden, w.length);
        for (size_t i = w.length; i < sizeof(out); i++)
            assert_int_equal(out[i], 0x5a);
        ibx_put_u8(&w, 1);
        assert_true(w.failed);
    }
}

static void failed_reader_gives_zeros(void **state)
{
    (void)state;
    static const uint8_t three[] = {1, 2, 3};
    char text[4] = "old";
    struct ibx_reader r = ibx_reader_of(three, sizeof(three));
    assert_int_equal(ibx_get_u32(&r), 0);
    /* Three bytes would suffice for these reads, but after a failure all reads return 0. */
    assert_int_equal(ibx_get_u8(&r), 0);
    assert_int_equal(ibx_get_u16(&r), 0);
    assert_true(ibx_get_u64(&r) == 0);
    ibx_get_string(&r, text, sizeof(text));
    assert_string_equal(text, "");
    assert_true(r.failed);
}

static void lengths_near_the_limit_do_not_wrap(void **state)
{
    (void)state;
    uint8_t bytes[4] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    ibx_get_u8(&r);
    assert_null(ibx_get_bytes(&r, SIZE_MAX));
    assert_true(r.failed);
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u8(&w, 1);
    ibx_put_bytes(&w, bytes, SIZE_MAX);
    assert_true(w.failed);
    assert_int_equal(w.length, 1);
}

static void nothing_is_a_valid_piece(void **state)
{
    (void)state;
    struct ibx_reader r = ibx_reader_of(golden, 0);
    ibx_get_bytes(&r, 0);
    assert_false(r.failed);
    struct ibx_writer w = ibx_writer_of(NULL, 0);
    ibx_put_bytes(&w, NULL, 0);
    assert_false(w.failed);
}

static void string_limits(void **state)
{
    (void)state;
    static const uint8_t wire[] = {3, 0, 'a', 'b', 'c'};
    char exact[4], small[3];
    struct ibx_reader r = ibx_reader_of(wire, sizeof(wire));
    ibx_get_string(&r, exact, sizeof(exact));
    assert_false(r.failed);
    assert_string_equal(exact, "abc");
    r = ibx_reader_of(wire, sizeof(wire));
    ibx_get_string(&r, small, sizeof(small));
    assert_true(r.failed);
    assert_string_equal(small, "");

    static const uint8_t with_nul[] = {3, 0, 'a', 0, 'c'};
    r = ibx_reader_of(with_nul, sizeof(with_nul));
    ibx_get_string(&r, exact, sizeof(exact));
    assert_true(r.failed);

    char *text = malloc(UINT16_MAX + 2);
    uint8_t *out = malloc(UINT16_MAX + 4);
    memset(text, 'x', UINT16_MAX + 1);
    text[UINT16_MAX] = '\0';
    struct ibx_writer w = ibx_writer_of(out, UINT16_MAX + 4);
    ibx_put_string(&w, text);
    assert_false(w.failed);
    assert_int_equal(w.length, UINT16_MAX + 2);
    text[UINT16_MAX] = 'x';
    text[UINT16_MAX + 1] = '\0';
    w = ibx_writer_of(out, UINT16_MAX + 4);
    ibx_put_string(&w, text);
    assert_true(w.failed);
    assert_int_equal(w.length, 0);
    free(text);
    free(out);
}

/* struct ibx_remote, which names remote memory in messages: address, length, four keys. */
static void remote_golden_bytes(void **state)
{
    (void)state;
    static const uint8_t wire[IBX_REMOTE_BYTES] = {
        0x00, 0x10, 0, 0, 0, 0, 0, 0x80, 0x01, 0x02, 0, 0, 0, 0, 0, 0, /* address, length */
        1,    0,    0, 0, 0, 0, 0, 0,    2,    0,    0, 0, 0, 0, 0, 0, /* keys */
        3,    0,    0, 0, 0, 0, 0, 0,    0,    0,    0, 0, 0, 0, 0, 0xff,
    };
    struct ibx_remote remote = {0x8000000000001000, 0x0201, {1, 2, 3, 0xff00000000000000}, 0}, back;
    uint8_t out[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(out, sizeof(out));
    ibx_remote_put(&w, &remote);
    assert_false(w.failed);
    assert_int_equal(w.length, sizeof(wire));
    assert_memory_equal(out, wire, sizeof(wire));
    for (size_t length = 0; length <= sizeof(wire); length++) {
        struct ibx_reader r = ibx_reader_of(wire, length);
        ibx_remote_get(&r, &back);
        assert_int_equal(r.failed, length < sizeof(wire));
    }
    assert_memory_equal(&back, &remote, sizeof(back));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_golden_bytes),
        cmocka_unit_test(decodes_golden_bytes),
        cmocka_unit_test(reader_fails_at_every_truncation),
        cmocka_unit_test(writer_fails_at_every_capacity),
        cmocka_unit_test(failed_reader_gives_zeros),
        cmocka_unit_test(lengths_near_the_limit_do_not_wrap),
        cmocka_unit_test(nothing_is_a_valid_piece),
        cmocka_unit_test(string_limits),
        cmocka_unit_test(remote_golden_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
