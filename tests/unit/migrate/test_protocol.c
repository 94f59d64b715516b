/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages of a migration: golden bytes; truncated, changed and out-of-range messages; and the
 * VM in a HELLO. */
#include "migrate/channel/protocol.h"
#include "tests/fixtures/unit.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ID                                                                                         \
    {                                                                                              \
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e,  \
            0x1f                                                                                   \
    }
#define HASH                                                                                       \
    {                                                                                              \
        0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae,  \
            0xaf, 0xb0, 0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xbb, 0xbc,    \
            0xbd, 0xbe, 0xbf                                                                       \
    }
#define PROGRESS                                                                                   \
    {                                                                                              \
        .status = "running", .pages = 300000, .present = 1000, .bytes = 4096000, .faults = 17,     \
        .fault_p50_ns = 90000, .fault_p99_ns = 250000, .fault_max_ns = 1000000                     \
    }

/* One range of pages: 64 bytes of bits and 16 of a digest. */
#define ENTRY     ENTRY_16 ENTRY_16 ENTRY_16 ENTRY_16 ENTRY_16
#define ENTRY_16  "0123456789abcdef"
#define ENTRY_HEX "30313233343536373839616263646566"

static const struct ibx_migrate_hello sample_hello = {
    .purpose = IBX_PURPOSE_MOVE,
    .id = ID,
    .epoch = 1,
    .links_least = 1,
    .links = 2,
    .version = {7, 2, 22},
    .machine = "pc-q35-7.2",
    .uuid = "01234567-89ab-cdef-0123-456789abcdef",
    .name = "vm",
    .block_count = 2,
    .blocks = {{"ram0", 1u << 30, 4096, 0x1234}, {"huge", 64u << 20, 2u << 20, 0}},
    .host = "node-a",
    .verify = true,
    .disks_differ = true,
    .runs = true,
    .warm = true,
    .borrow = IBX_BORROW_FILL,
    .base = {0xb0, 0xb1},
    .description_length = 0x1234};
static const struct ibx_migrate_answer sample_answer = {.state = IBX_ANSWER_WAITING,
                                                        .links = 3,
                                                        .host = "node-b",
                                                        .count = 2,
                                                        .reasons = {"it is full", "it is old"},
                                                        .warm = true,
                                                        .note_count = 1,
                                                        .notes = {"it rains"}};

static const struct sample {
    const char *name;
    struct ibx_migrate_any message;
    const char *golden; /* hexadecimal */
} samples[] = {
    {"HELLO",
     {.type = IBX_MIGRATE_HELLO, .is.hello = &sample_hello},
     "016962786d070001101112131415161718191a1b1c1d1e1f010000000000000001000200070000000200"
     "0000160000000a0070632d7133352d372e32240030313233343536372d383961622d636465662d30"
     "3132332d3435363738396162636465660200766d0200040072616d30000000400000000000100000"
     "00000000341200000000000004006875676500000004000000000000200000000000000000000000000006006e"
     "6f64652d61010101341200000102b0b10000000000000000000000000000"},
    {"ANSWER",
     {.type = IBX_MIGRATE_ANSWER, .is.answer = &sample_answer},
     "020002030006006e6f64652d6202000a0069742069732066756c6c09006974206973206f6c64000101000800"
     "6974207261696e73"},
    {"JOIN",
     {.type = IBX_MIGRATE_JOIN, .is.join = {.id = ID, .epoch = 3, .link = 1}},
     "036962786d0700101112131415161718191a1b1c1d1e1f03000000000000000100"},
    {"REGION",
     {.type = IBX_MIGRATE_REGION,
      .is.region =
          {.block = 1,
           .offset = 2u << 20,
           .length = 4u << 20,
           .remote = {.address = 0x7f0000200000, .length = 4u << 20, .keys = {0x11, 0x22}}}},
     "0401000000200000000000000040000000000000002000007f000000004000000000001100000000"
     "000000220000000000000000000000000000000000000000000000"},
    {"READY", {.type = IBX_MIGRATE_READY}, "05"},
    {"STATE", {.type = IBX_MIGRATE_STATE, .is.state = {(const uint8_t *)"QEVM", 4}}, "065145564d"},
    {"MAP",
     {.type = IBX_MIGRATE_MAP, .is.map = {(const uint8_t *)"\0\0\0\0\0\0\0\0\1", 9}},
     "07000000000000000001"},
    {"MAP_END",
     {.type = IBX_MIGRATE_MAP_END,
      .is.map_end = {.pages = 300000, .data_pages = 200000, .regions = 12, .hash = HASH}},
     "08e093040000000000400d0300000000000c000000a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2"
     "b3b4b5b6b7b8b9babbbcbdbebf"},
    {"STATE_END", {.type = IBX_MIGRATE_STATE_END, .is.state_bytes = 987654}, "0906120f0000000000"},
    {"LOADED", {.type = IBX_MIGRATE_LOADED}, "0a"},
    {"COMMIT",
     {.type = IBX_MIGRATE_COMMIT, .is.commit = {.epoch = 1, .runs = true}},
     "0b010000000000000001"},
    {"RUNNING", {.type = IBX_MIGRATE_RUNNING, .is.status = "paused"}, "0c0600706175736564"},
    {"PROGRESS",
     {.type = IBX_MIGRATE_PROGRESS, .is.progress = PROGRESS},
     "0d070072756e6e696e67e093040000000000e80300000000000000803e00000000001100000000000000905f01000"
     "00000"
     "0090d003000000000040420f0000000000"},
    {"COMPLETE",
     {.type = IBX_MIGRATE_COMPLETE,
      .is.totals = {.pages = 300000,
                    .zero_pages = 100000,
                    .fetched_pages = 199990,
                    .discarded_pages = 10,
                    .hash = HASH,
                    .progress = PROGRESS}},
     "0ee093040000000000a086010000000000360d0300000000000a00000000000000a0a1a2a3a4a5a6"
     "a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf070072756e6e696e67e093040000000000e80300000"
     "00000"
     "0000803e00000000001100000000000000905f01000000000090d003000000000040420f00000000"
     "00"},
    {"CONFIRM", {.type = IBX_MIGRATE_CONFIRM, .is.epoch = 2}, "0f0200000000000000"},
    {"ABORT",
     {.type = IBX_MIGRATE_ABORT, .is.reason = "the operator said so"},
     "101400746865206f70657261746f72207361696420736f"},
    {"CONFIRMED", {.type = IBX_MIGRATE_CONFIRMED}, "11"},
    {"DIGEST",
     {.type = IBX_MIGRATE_DIGEST,
      .is.digest = {.first = 1024, .entries = {(const uint8_t *)ENTRY, IBX_MIGRATE_DIGEST_ENTRY}}},
     "120004000000000000" ENTRY_HEX ENTRY_HEX ENTRY_HEX ENTRY_HEX ENTRY_HEX},
    {"BROKEN",
     {.type = IBX_MIGRATE_BROKEN, .is.reason = "pages 0 to 511 are not the same"},
     "131f007061676573203020746f2035313120617265206e6f74207468652073616d65"},
    {"DESCRIPTION",
     {.type = IBX_MIGRATE_DESCRIPTION, .is.description = {(const uint8_t *)"{}", 2}},
     "147b7d"},
    {"ENDED",
     {.type = IBX_MIGRATE_ENDED, .is.status = "guest-shutdown"},
     "150e0067756573742d73687574646f776e"},
    {"ROUND",
     {.type = IBX_MIGRATE_ROUND, .is.map = {(const uint8_t *)"\0\0\0\0\0\0\0\0\1", 9}},
     "16000000000000000001"},
    {"ROUND_END",
     {.type = IBX_MIGRATE_ROUND_END,
      .is.round = {.number = 3, .kind = IBX_ROUND_DROP, .pages = 200000, .regions = 12}},
     "170300000002400d0300000000000c000000"},
    {"ROUND_DONE",
     {.type = IBX_MIGRATE_ROUND_DONE, .is.round_done = {3, 4096000, 250000}},
     "180300000000803e000000000090d0030000000000"},
    {"HAVE",
     {.type = IBX_MIGRATE_HAVE, .is.map = {(const uint8_t *)"\0\0\0\0\0\0\0\0\1", 9}},
     "19000000000000000001"},
    {"HAVE_END",
     {.type = IBX_MIGRATE_HAVE_END,
      .is.map_end = {.pages = 300000, .data_pages = 200000, .regions = 0, .hash = HASH}},
     "1ae093040000000000400d03000000000000000000a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2"
     "b3b4b5b6b7b8b9babbbcbdbebf"},
    {"DECIDED", {.type = IBX_MIGRATE_DECIDED, .is.epoch = 3}, "1b0300000000000000"},
    {"PAGES",
     {.type = IBX_MIGRATE_PAGES, .is.pages = {0xc0, {(const uint8_t *)"\1\2\3", 3}}},
     "1cc000000000000000010203"},
    {"COMPARED", {.type = IBX_MIGRATE_COMPARED, .is.compared = 5}, "1d0500000000000000"},
};
#define SAMPLES (sizeof(samples) / sizeof(samples[0]))

static struct ibx_migrate_any message; /* the message that a test changes and decodes into */
static struct ibx_migrate_hello hello; /* the HELLO that fresh() points to */
static struct ibx_migrate_answer answer;
static struct ibx_error error;

static size_t golden_bytes(const struct sample *sample, uint8_t *out)
{
    size_t length = strlen(sample->golden) / 2;
    for (size_t i = 0; i < length; i++) {
        const char digits[] = {sample->golden[2 * i], sample->golden[2 * i + 1], '\0'};
        out[i] = (uint8_t)strtoul(digits, NULL, 16);
    }
    return length;
}

/* The message consists of bytes only, of any number. */
static bool is_bytes(enum ibx_migrate_message type)
{
    return type == IBX_MIGRATE_STATE || type == IBX_MIGRATE_MAP ||
           type == IBX_MIGRATE_DESCRIPTION || type == IBX_MIGRATE_ROUND || type == IBX_MIGRATE_HAVE;
}

/* Decodes a copy of exactly `length` bytes, so that a sanitizer detects reads behind it. */
static int decode(const uint8_t *bytes, size_t length, struct ibx_migrate_any *into)
{
    uint8_t *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, length);
    memset(&error, 0, sizeof(error));
    int rc = ibx_migrate_decode(copy, length, into, &error);
    if (!rc && is_bytes(into->type))
        into->is.state.bytes = bytes + (into->is.state.bytes - copy);
    if (!rc && into->type == IBX_MIGRATE_DIGEST)
        into->is.digest.entries.bytes = bytes + (into->is.digest.entries.bytes - copy);
    if (!rc && into->type == IBX_MIGRATE_PAGES)
        into->is.pages.bytes.bytes = bytes + (into->is.pages.bytes.bytes - copy);
    free(copy);
    if (rc) {
        assert_int_equal(error.code, rc);
        assert_true(error.message[0] && !strchr(error.message, '\n'));
    }
    return rc;
}

static void encodes_golden_bytes(NO_STATE)
{
    uint8_t expected[512], out[512];
    assert_int_equal(SAMPLES, IBX_MIGRATE_COMPARED);
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t length = golden_bytes(&samples[i], expected);
        ssize_t n = ibx_migrate_encode(&samples[i].message, out, sizeof(out));
        assert_int_equal(n, length);
        assert_memory_equal(out, expected, length);
        assert_int_equal(ibx_migrate_encode(&samples[i].message, out, length - 1), -EMSGSIZE);
        assert_string_equal(ibx_migrate_message_name(samples[i].message.type), samples[i].name);
    }
}

static void decodes_golden_bytes(NO_STATE)
{
    uint8_t bytes[512], again[512];
    for (size_t i = 0; i < SAMPLES; i++) {
        const struct ibx_migrate_any *expected = &samples[i].message;
        size_t length = golden_bytes(&samples[i], bytes);
        memset(&message, 0xee, sizeof(message));
        assert_int_equal(decode(bytes, length, &message), 0);
        assert_int_equal(message.type, expected->type);
        if (is_bytes(message.type)) {
            assert_int_equal(message.is.state.length, length - 1);
            assert_memory_equal(message.is.state.bytes, bytes + 1, length - 1);
        } else if (message.type == IBX_MIGRATE_DIGEST) {
            assert_int_equal(message.is.digest.first, expected->is.digest.first);
            assert_int_equal(message.is.digest.entries.length, length - 9);
            assert_memory_equal(message.is.digest.entries.bytes, bytes + 9, length - 9);
        } else if (message.type == IBX_MIGRATE_PAGES) {
            assert_int_equal(message.is.pages.first, expected->is.pages.first);
            assert_int_equal(message.is.pages.bytes.length, length - 9);
            assert_memory_equal(message.is.pages.bytes.bytes, bytes + 9, length - 9);
        } else if (message.type == IBX_MIGRATE_HELLO) {
            assert_memory_equal(message.is.hello, &sample_hello, sizeof(sample_hello));
        } else if (message.type == IBX_MIGRATE_ANSWER) {
            assert_memory_equal(message.is.answer, &sample_answer, sizeof(sample_answer));
        } else {
            assert_memory_equal(&message.is, &expected->is, sizeof(message.is));
        }
        assert_int_equal(ibx_migrate_encode(&message, again, sizeof(again)), length);
        assert_memory_equal(again, bytes, length);
        ibx_migrate_message_free(&message);
    }
}

static void refuses_truncated_and_long_messages(NO_STATE)
{
    uint8_t bytes[513] = {0};
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t length = golden_bytes(&samples[i], bytes);
        enum ibx_migrate_message type = samples[i].message.type;
        bool free_length = is_bytes(type) || type == IBX_MIGRATE_PAGES;
        size_t least = type == IBX_MIGRATE_PAGES ? 10 : free_length ? 2 : length;
        memset(&message, 0xee, sizeof(message));
        for (size_t n = 0; n < least; n++)
            assert_int_equal(decode(bytes, n, &message), -EPROTO);
        bytes[length] = 0;
        if (!free_length)
            assert_int_equal(decode(bytes, length + 1, &message), -EPROTO);
        for (size_t b = 0; b < sizeof(message); b++) /* outputs are set only on success */
            assert_int_equal(((const uint8_t *)&message)[b], 0xee);
    }
}

/* Whatever can be decoded encodes to the same bytes again, except for bytes that are not text. */
static void decodes_mutated_messages_safely(NO_STATE)
{
    uint8_t bytes[512], out[512], twice[512];
    static struct ibx_migrate_any again;
    unsigned accepted = 0, seed = 1;
    for (unsigned turn = 0; turn < 40000; turn++) {
        size_t length = golden_bytes(&samples[turn % SAMPLES], bytes);
        for (unsigned k = turn / SAMPLES % 3 + 1; k; k--) {
            seed = seed * 1664525 + 1013904223;
            bytes[(seed >> 8) % length] = (uint8_t)(seed >> 24);
        }
        if (decode(bytes, length, &message))
            continue;
        accepted++;
        assert_int_equal(ibx_migrate_encode(&message, out, sizeof(out)), length);
        assert_int_equal(decode(out, length, &again), 0);
        assert_int_equal(ibx_migrate_encode(&again, twice, sizeof(twice)), length);
        assert_memory_equal(out, twice, length);
        ibx_migrate_message_free(&message);
        ibx_migrate_message_free(&again);
    }
    assert_true(accepted > 1000);
}

/* ------------------------------------------------------------ ranges */

static struct ibx_migrate_any *fresh(enum ibx_migrate_message type)
{
    message = samples[type - 1].message;
    hello = sample_hello;
    answer = sample_answer;
    if (type == IBX_MIGRATE_HELLO)
        message.is.hello = &hello;
    if (type == IBX_MIGRATE_ANSWER)
        message.is.answer = &answer;
    return &message;
}

#define REFUSED(type, change) (fresh(type), (void)(change), refused())
static void refused(void)
{
    uint8_t out[IBX_MIGRATE_MESSAGE];
    assert_int_equal(ibx_migrate_encode(&message, out, sizeof(out)), -EINVAL);
}

/* Changes `length` bytes at `offset` of a golden message. The decoder's message must contain
 * `word`. */
static void says(enum ibx_migrate_message type, size_t offset, uint64_t value, size_t length,
                 int code, const char *word)
{
    uint8_t bytes[512];
    size_t whole = golden_bytes(&samples[type - 1], bytes);
    for (size_t i = 0; i < length; i++)
        bytes[offset + i] = (uint8_t)(value >> (8 * i));
    if (decode(bytes, whole, &message) != code)
        fail_msg("%s with %llu at %zu passes", samples[type - 1].name, (unsigned long long)value,
                 offset);
    if (!code)
        ibx_migrate_message_free(&message);
    if (!strstr(error.message, word))
        fail_msg("\"%s\" does not say \"%s\"", error.message, word);
}

static void refuses_other_protocols_and_versions(NO_STATE)
{
    for (enum ibx_migrate_message type = IBX_MIGRATE_HELLO; type <= IBX_MIGRATE_JOIN; type += 2) {
        says(type, 1, 0x12345678, 4, -EPROTO, "does not speak ib-migrate");
        says(type, 5, 2, 2, -EPROTONOSUPPORT, "version 2");
        says(type, 5, 0, 2, -EPROTONOSUPPORT, "version 0");
    }
    says(IBX_MIGRATE_READY, 0, 0, 1, -EPROTO, "type 0");
    says(IBX_MIGRATE_READY, 0, 30, 1, -EPROTO, "type 30");
    says(IBX_MIGRATE_READY, 0, 255, 1, -EPROTO, "type 255");
    assert_string_equal(ibx_migrate_message_name((enum ibx_migrate_message)30),
                        "an unknown message");
    assert_string_equal(ibx_answer_state_name(IBX_ANSWER_RUNNING), "running");
    assert_string_equal(ibx_answer_state_name(IBX_ANSWER_GIVEN_UP), "given up");
    assert_string_equal(ibx_answer_state_name(IBX_ANSWER_ENDED), "ended");
    assert_string_equal(ibx_answer_state_name((enum ibx_answer_state)9), "unknown");
}

static void refuses_epochs_out_of_range(NO_STATE)
{
    says(IBX_MIGRATE_HELLO, 24, 0, 8, -EPROTO, "epoch is 0");
    says(IBX_MIGRATE_HELLO, 24, 1ull << 60, 8, -EPROTO, "epoch is");
    says(IBX_MIGRATE_JOIN, 23, 0, 8, -EPROTO, "epoch is 0");
    says(IBX_MIGRATE_JOIN, 23, 1ull << 60, 8, -EPROTO, "epoch is");
    says(IBX_MIGRATE_COMMIT, 1, 0, 8, -EPROTO, "COMMIT");
    says(IBX_MIGRATE_COMMIT, 1, 1ull << 60, 8, -EPROTO, "epoch is");
    says(IBX_MIGRATE_CONFIRM, 1, 0, 8, -EPROTO, "epoch is 0");
    says(IBX_MIGRATE_CONFIRM, 1, 1ull << 60, 8, -EPROTO, "epoch is");
    says(IBX_MIGRATE_DECIDED, 1, 0, 8, -EPROTO, "epoch is 0");
    says(IBX_MIGRATE_DECIDED, 1, 1ull << 60, 8, -EPROTO, "epoch is");
    says(IBX_MIGRATE_COMPARED, 1, 0, 8, -EPROTO, "number of digests is 0");
    says(IBX_MIGRATE_COMPARED, 1, 1ull << 60, 8, -EPROTO, "number of digests is");
}

static void refuses_fields_out_of_range(NO_STATE)
{
    const size_t uuid = 60, ram0 = 104, huge = 134; /* offsets of their lengths */
    says(IBX_MIGRATE_HELLO, 7, 0, 1, -EPROTO, "purpose is 0");
    says(IBX_MIGRATE_HELLO, 7, 6, 1, -EPROTO, "purpose is 6");
    says(IBX_MIGRATE_HELLO, 32, 0, 2, -EPROTO, "0 to 2 page connections");
    says(IBX_MIGRATE_HELLO, 32, 3, 2, -EPROTO, "3 to 2 page connections");
    says(IBX_MIGRATE_HELLO, 34, 0, 2, -EPROTO, "1 to 0 page connections");
    says(IBX_MIGRATE_HELLO, 34, 17, 2, -EPROTO, "page connections is 17");
    says(IBX_MIGRATE_HELLO, 48, 64, 2, -EPROTO, "too long");   /* machine */
    says(IBX_MIGRATE_HELLO, 52, 0, 1, -EPROTO, "is not text"); /* NUL within it */
    says(IBX_MIGRATE_HELLO, uuid + 2, 'g', 1, -EPROTO, "not a UUID");
    says(IBX_MIGRATE_HELLO, uuid + 10, '0', 1, -EPROTO, "not a UUID");
    says(IBX_MIGRATE_HELLO, ram0 - 2, 65, 2, -EPROTO, "blocks is 65");
    says(IBX_MIGRATE_HELLO, ram0 - 2, 0, 2, -EPROTO, "blocks is 0");
    says(IBX_MIGRATE_HELLO, ram0 - 2, 1, 2, -EPROTO, "follow its end");
    says(IBX_MIGRATE_HELLO, ram0 + 6, 0, 8, -EPROTO, "block is 0");
    says(IBX_MIGRATE_HELLO, ram0 + 6, 4097, 8, -EPROTO, "not whole pages");
    says(IBX_MIGRATE_HELLO, ram0 + 14, 2048, 8, -EPROTO, "pages of 2048");
    says(IBX_MIGRATE_HELLO, ram0 + 14, 12288, 8, -EPROTO, "has pages of 12288");
    says(IBX_MIGRATE_HELLO, ram0 + 14, 0, 8, -EPROTO, "pages of 0");
    says(IBX_MIGRATE_HELLO, ram0 + 6, 1ull << 60, 8, -EPROTO, "at most");
    says(IBX_MIGRATE_HELLO, huge + 6, (1ull << 60) - (1ull << 30), 8, -EPROTO, "2^60");
    says(IBX_MIGRATE_HELLO, huge + 6, 0ull - (1ull << 30), 8, -EPROTO, "at most");
    says(IBX_MIGRATE_DIGEST, 1, 1025, 8, -EPROTO, "not of whole ranges");
    says(IBX_MIGRATE_DIGEST, 1, (1ull << 40) + 512, 8, -EPROTO, "at most");
    says(IBX_MIGRATE_ANSWER, 1, 2, 1, -EPROTO, "is 2");
    says(IBX_MIGRATE_ANSWER, 1, 1, 1, -EPROTO, "has reasons");
    says(IBX_MIGRATE_ANSWER, 2, 0, 1, -EPROTO, "state is 0");
    says(IBX_MIGRATE_ANSWER, 2, IBX_ANSWER_ENDED, 1, 0, "");
    says(IBX_MIGRATE_ANSWER, 2, 7, 1, -EPROTO, "state is 7");
    says(IBX_MIGRATE_ANSWER, 3, 16, 2, 0, "");
    says(IBX_MIGRATE_ANSWER, 3, 17, 2, -EPROTO, "connections is 17");
    says(IBX_MIGRATE_ANSWER, 13, 17, 2, -EPROTO, "reasons is 17");
    says(IBX_MIGRATE_JOIN, 31, 16, 2, -EPROTO, "connection is 16");
    says(IBX_MIGRATE_REGION, 1, 64, 2, -EPROTO, "block is 64");
    says(IBX_MIGRATE_REGION, 3, 1, 8, -EPROTO, "whole pages");
    says(IBX_MIGRATE_REGION, 3, 1ull << 60, 8, -EPROTO, "offset is");
    says(IBX_MIGRATE_REGION, 11, 0, 8, -EPROTO, "length is 0");
    says(IBX_MIGRATE_REGION, 11, 1ull << 60, 8, -EPROTO, "length is");
    says(IBX_MIGRATE_REGION, 27, 4096, 8, -EPROTO, "shall hold");
    says(IBX_MIGRATE_REGION, 19, 0ull - 4096, 8, -EPROTO, "shall hold");
    says(IBX_MIGRATE_MAP_END, 1, 0, 8, -EPROTO, "pages is 0");
    says(IBX_MIGRATE_MAP_END, 1, (1ull << 40) + 1, 8, -EPROTO, "pages is 1099511627777");
    says(IBX_MIGRATE_MAP_END, 9, 300001, 8, -EPROTO, "300001 of 300000");
    says(IBX_MIGRATE_STATE_END, 1, 0, 8, -EPROTO, "state is 0");
    says(IBX_MIGRATE_STATE_END, 1, 1ull << 60, 8, -EPROTO, "at most");
    says(IBX_MIGRATE_COMMIT, 9, 2, 1, -EPROTO, "to run is 2");
    says(IBX_MIGRATE_RUNNING, 1, 32, 2, -EPROTO, "too long");
    says(IBX_MIGRATE_PROGRESS, 18, 300001, 8, -EPROTO, "300001");
    for (size_t at = 26; at < 66; at += 8)
        says(IBX_MIGRATE_PROGRESS, at, 1ull << 60, 8, -EPROTO, "at most 1152921504606846975");
    says(IBX_MIGRATE_ROUND_END, 1, 0, 4, -EPROTO, "round is 0");
    says(IBX_MIGRATE_ROUND_END, 5, 5, 1, -EPROTO, "kind of round is 5");
    says(IBX_MIGRATE_ROUND_END, 6, (1ull << 40) + 1, 8, -EPROTO, "at most");
    says(IBX_MIGRATE_ROUND_DONE, 5, 1ull << 60, 8, -EPROTO, "bytes is");
    says(IBX_MIGRATE_COMPLETE, 25, 11, 8, -EPROTO, "do not make 300000");
    says(IBX_MIGRATE_COMPLETE, 9, 0ull - 5, 8, -EPROTO, "zero pages is");
    says(IBX_MIGRATE_COMPLETE, 74, 300001, 8, -EPROTO, "do not make");
}

static void encoder_has_the_same_limits(NO_STATE)
{
    REFUSED(IBX_MIGRATE_HELLO, hello.block_count = 65);
    REFUSED(IBX_MIGRATE_HELLO, memset(hello.id, 0, IBX_MIGRATE_ID_BYTES));
    REFUSED(IBX_MIGRATE_HELLO, strcpy(hello.blocks[1].id, "ram0"));
    REFUSED(IBX_MIGRATE_HELLO, hello.blocks[1].id[0] = '\0');
    REFUSED(IBX_MIGRATE_HELLO, hello.description_length = IBX_MIGRATE_DESCRIPTION_MAX + 1);
    REFUSED(IBX_MIGRATE_ANSWER, answer.note_count = IBX_MIGRATE_REASONS_MAX + 1);
    REFUSED(IBX_MIGRATE_ANSWER, answer.count = 0);
    REFUSED(IBX_MIGRATE_ANSWER, answer.reasons[1][0] = '\0');
    REFUSED(IBX_MIGRATE_STATE, message.is.state.length = 0);
    REFUSED(IBX_MIGRATE_RUNNING, message.is.status[0] = '\0');
    REFUSED(IBX_MIGRATE_ENDED, message.is.status[0] = '\0');
    REFUSED(IBX_MIGRATE_ABORT, message.is.reason[0] = '\0');
    REFUSED(IBX_MIGRATE_READY, message.type = (enum ibx_migrate_message)40);
}

/* ------------------------------------------------------------ text */

static void text_is_fit_for_a_terminal(NO_STATE)
{
    uint8_t bytes[64] = {IBX_MIGRATE_ABORT, 5, 0, 'a', 0x1b, 'c', 0xff, '\n'};
    assert_int_equal(decode(bytes, 8, &message), 0);
    assert_string_equal(message.is.reason, "a?c??");
    bytes[4] = 0;
    assert_int_equal(decode(bytes, 8, &message), -EPROTO);
}

/* Ids that differ only in characters that cannot be shown count as equal. */
static void ids_stay_unique(NO_STATE)
{
    uint8_t bytes[512];
    fresh(IBX_MIGRATE_HELLO);
    strcpy(hello.blocks[0].id, "ram\1");
    strcpy(hello.blocks[1].id, "ram\2");
    ssize_t n = ibx_migrate_encode(&message, bytes, sizeof(bytes));
    assert_true(n > 0);
    assert_int_equal(decode(bytes, (size_t)n, &message), -EPROTO);
    assert_non_null(strstr(error.message, "ram? is there twice"));
}

/* ------------------------------------------------------------ HELLO and the VM */

static int passes(void)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    static struct ibx_migrate_any again;
    ssize_t n = ibx_migrate_encode(&message, bytes, sizeof(bytes));
    int rc = n < 0 ? (int)n : decode(bytes, (size_t)n, &again);
    if (!rc)
        ibx_migrate_message_free(&again);
    return rc;
}

static void purposes_need_different_things(NO_STATE)
{
    fresh(IBX_MIGRATE_HELLO);
    hello.blocks[0].page_size = 0; /* private RAM */
    hello.blocks[0].size += 1;
    hello.epoch = 0;
    memset(hello.id, 0, sizeof(hello.id));
    hello.purpose = IBX_PURPOSE_CHECK;
    assert_int_equal(passes(), 0);
    hello.purpose = IBX_PURPOSE_QUERY;
    assert_int_equal(passes(), -EINVAL);
    memset(hello.id, 7, sizeof(hello.id));
    hello.machine[0] = hello.uuid[0] = '\0';
    hello.links_least = hello.links = hello.block_count = 0;
    assert_int_equal(passes(), -EINVAL); /* the HELLO describes a VM */
    hello.description_length = 0;
    assert_int_equal(passes(), 0);
    hello.purpose = IBX_PURPOSE_CONFIRM;
    assert_int_equal(passes(), 0);
    hello.purpose = IBX_PURPOSE_RESUME;
    assert_int_equal(passes(), -EINVAL);
    hello.purpose = IBX_PURPOSE_CHECK;
    assert_int_equal(passes(), -EINVAL);
}

/* The largest versions of both long messages fit. */
static void longest_messages_fit(NO_STATE)
{
    fresh(IBX_MIGRATE_HELLO);
    hello.block_count = IBX_GUEST_BLOCKS_MAX;
    hello.description_length = IBX_MIGRATE_DESCRIPTION_MAX;
    memset(hello.host, 'n', sizeof(hello.host) - 1);
    for (unsigned i = 0; i < IBX_GUEST_BLOCKS_MAX; i++) {
        memset(hello.blocks[i].id, 'a' + (int)i / 8, IBX_GUEST_ID_MAX - 1);
        hello.blocks[i].id[i % 8] = '0';
        hello.blocks[i].size = hello.blocks[i].page_size = 1u << 30;
    }
    assert_int_equal(passes(), 0);
    fresh(IBX_MIGRATE_ANSWER);
    answer.count = IBX_MIGRATE_REASONS_MAX;
    for (unsigned i = 0; i < IBX_MIGRATE_REASONS_MAX; i++)
        memset(answer.reasons[i], 's', IBX_ERROR_MAX - 1);
    answer.note_count = IBX_MIGRATE_REASONS_MAX;
    for (unsigned i = 0; i < IBX_MIGRATE_REASONS_MAX; i++)
        memset(answer.notes[i], 'n', IBX_ERROR_MAX - 1);
    assert_int_equal(passes(), 0);
    uint8_t out[IBX_MIGRATE_MESSAGE + 1] = {0};
    fresh(IBX_MIGRATE_STATE)->is.state.length = IBX_MIGRATE_MESSAGE - 1;
    message.is.state.bytes = out + 1;
    static uint8_t room[IBX_MIGRATE_MESSAGE + 1];
    assert_int_equal(ibx_migrate_encode(&message, room, sizeof(room)), IBX_MIGRATE_MESSAGE);
    assert_int_equal(decode(room, IBX_MIGRATE_MESSAGE, &message), 0);
    assert_int_equal(decode(room, IBX_MIGRATE_MESSAGE + 1, &message), -EPROTO);
    message.is.state.bytes = out + 1;
    message.is.state.length = IBX_MIGRATE_MESSAGE;
    assert_int_equal(ibx_migrate_encode(&message, room, sizeof(room)), -EMSGSIZE);
}

static void a_vm_is_encoded_and_decoded(NO_STATE)
{
    struct ibx_guest_block blocks[2] = {
        {.id = "ram0", .size = 1u << 30, .page_size = 4096, .shared = true, .file = 77, .fd = -1},
        {.id = "ram1", .size = 2u << 20, .page_size = 2u << 20, .shared = true, .fd = -1}};
    struct ibx_guest_ram ram = {.version = {7, 2, 22},
                                .machine = "pc-i440fx-7.2",
                                .uuid = "00000000-0000-0000-0000-000000000000",
                                .name = "guest",
                                .blocks = blocks,
                                .count = 2};
    struct ibx_guest_ram back;
    fresh(IBX_MIGRATE_HELLO);
    memset(hello.blocks, 0xff, sizeof(hello.blocks));
    ibx_migrate_hello_describe(&hello, &ram);
    assert_int_equal(passes(), 0);
    assert_int_equal(ibx_migrate_hello_ram(&hello, &back), 0);
    assert_string_equal(back.machine, ram.machine);
    assert_string_equal(back.uuid, ram.uuid);
    assert_string_equal(back.name, ram.name);
    assert_int_equal(back.version.micro, 22);
    assert_int_equal(back.count, 2);
    assert_int_equal(back.bytes, (1u << 30) + (2u << 20));
    for (unsigned i = 0; i < 2; i++) {
        assert_string_equal(back.blocks[i].id, blocks[i].id);
        assert_int_equal(back.blocks[i].size, blocks[i].size);
        assert_int_equal(back.blocks[i].page_size, blocks[i].page_size);
        assert_int_equal(back.blocks[i].file, blocks[i].file);
        assert_int_equal(back.blocks[i].fd, -1);
    }
    ibx_guest_ram_fini(&back);
}

/* The fuzzer starts with these messages in the present version; a message of an old version
 * would be refused at its version number. */
static void fuzzer_seeds_are_these_messages(NO_STATE)
{
    const char *folder = getenv("IBX_FUZZ_SEEDS");
    uint8_t expected[512], seed[1024];
    char path[PATH_MAX];
    if (!folder)
        skip();
    DIR *all = opendir(folder);
    assert_non_null(all);
    for (const struct dirent *entry; (entry = readdir(all));) {
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        FILE *file = fopen(path, "re");
        const size_t n = file ? fread(seed, 1, sizeof(seed), file) : 0;
        if (file)
            fclose(file);
        if (n && !seed[0] && decode(seed + 1, n - 1, &message))
            fail_msg("%s: %s", path, error.message);
        if (n && !seed[0])
            ibx_migrate_message_free(&message);
    }
    closedir(all);
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t length = golden_bytes(&samples[i], expected);
        const char *name = samples[i].name;
        size_t n = (size_t)snprintf(path, sizeof(path), "%s/", folder);
        for (; *name; name++)
            path[n++] = *name == '_' ? '-' : (char)tolower(*name);
        path[n] = '\0';
        FILE *file = fopen(path, "re");
        n = file ? fread(seed, 1, sizeof(seed), file) : 0;
        if (file)
            fclose(file);
        if (n != length + 1 || memcmp(seed + 1, expected, length) != 0)
            fail_msg("%s is not a byte 0 and the %zu of %s", path, length, samples[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_golden_bytes),
        cmocka_unit_test(decodes_golden_bytes),
        cmocka_unit_test(fuzzer_seeds_are_these_messages),
        cmocka_unit_test(refuses_truncated_and_long_messages),
        cmocka_unit_test(decodes_mutated_messages_safely),
        cmocka_unit_test(refuses_other_protocols_and_versions),
        cmocka_unit_test(refuses_epochs_out_of_range),
        cmocka_unit_test(refuses_fields_out_of_range),
        cmocka_unit_test(encoder_has_the_same_limits),
        cmocka_unit_test(text_is_fit_for_a_terminal),
        cmocka_unit_test(ids_stay_unique),
        cmocka_unit_test(purposes_need_different_things),
        cmocka_unit_test(longest_messages_fit),
        cmocka_unit_test(a_vm_is_encoded_and_decoded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
