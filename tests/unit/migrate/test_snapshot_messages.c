/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A snapshot's manifest and the messages of its connections, byte by byte. */
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct ibx_error error;

static void golden(const struct ibx_snapshot_any *m, const void *bytes, size_t length)
{
    uint8_t out[128];
    struct ibx_snapshot_any back;
    assert_int_equal(ibx_snapshot_encode(m, out, sizeof(out)), length);
    assert_memory_equal(out, bytes, length);
    assert_int_equal(ibx_snapshot_decode(bytes, length, &back, &error), 0);
    assert_int_equal(back.type, m->type);
    /* It must not be shorter nor, if the length is not that of a text, longer. */
    if (m->type == IBX_SNAPSHOT_OPEN || m->type == IBX_SNAPSHOT_LIST ||
        m->type == IBX_SNAPSHOT_ASK || m->type == IBX_SNAPSHOT_JOIN ||
        m->type == IBX_SNAPSHOT_GROUP || m->type == IBX_SNAPSHOT_FED ||
        m->type == IBX_SNAPSHOT_HEARD) {
        memcpy(out, bytes, length);
        out[length] = 0;
        assert_int_equal(ibx_snapshot_decode(out, length + 1, &back, &error), -EPROTO);
        assert_int_equal(ibx_snapshot_decode(out, length - 1, &back, &error), -EPROTO);
    }
}

static void test_golden(void **state)
{
    (void)state;
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_OPEN, .whole = true};
    golden(&m, "\x40\x69\x62\x78\x73\x03\x00\x01", 8);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_MANIFEST, .length = 10, .offset = 7};
    m.bytes.bytes = (const uint8_t *)"abc";
    m.bytes.length = 3;
    golden(&m, "\x41\x0a\0\0\0\x07\0\0\0abc", 12);
    m.type = IBX_SNAPSHOT_MAP;
    golden(&m,
           "\x42"
           "abc",
           4);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_LIST, .regions = 0x102};
    memcpy(m.id, "0123456789abcdef", 16);
    golden(&m,
           "\x43"
           "0123456789abcdef\x02\x01\0\0\0",
           22);
    m.regions = 0;
    m.asked = true;
    golden(&m,
           "\x43"
           "0123456789abcdef\0\0\0\0\x01",
           22);
    m = (struct ibx_snapshot_any){
        .type = IBX_SNAPSHOT_ASK, .number = 31, .at = 0x100000002, .length = 0x1000};
    golden(&m, "\x44\x1f\0\0\0\x02\0\0\0\x01\0\0\0\0\x10\0\0", 17);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_PAGES, .number = 3, .offset = 4};
    m.bytes.bytes = (const uint8_t *)"abc";
    m.bytes.length = 3;
    golden(&m, "\x45\x03\0\0\0\x04\0\0\0abc", 12);
    m.type = IBX_SNAPSHOT_INDEX;
    m.number = 0;
    golden(&m, "\x46\x04\0\0\0abc", 8);
}

static void test_golden_multicast(void **state)
{
    (void)state;
    struct ibx_snapshot_any m = {.type = IBX_SNAPSHOT_JOIN};
    memcpy(m.id, "0123456789abcdef", 16);
    golden(&m,
           "\x47ibxs\x03\x00"
           "0123456789abcdef",
           23);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_GROUP, .group = {.rate = 0x102}};
    memcpy(m.group.id, "01234567", 8);
    memset(m.sealed, 's', sizeof(m.sealed));
    assert_int_equal(ibx_multicast_group_choose("239.1.2.3:7000", false, &m.group.address, &error),
                     0);
    golden(&m,
           "\x48\x04\xef\x01\x02\x03\x58\x1b"
           "01234567ssssssssssssssssssssssssssssssss\x02\x01\0\0\0\0\0\0",
           56);
    assert_int_equal(ibx_multicast_group_choose("[ff15::102]:1", false, &m.group.address, &error),
                     0);
    golden(&m,
           "\x48\x10\xff\x15\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02\x01\0"
           "01234567ssssssssssssssssssssssssssssssss\x02\x01\0\0\0\0\0\0",
           68);
    assert_int_equal(
        ibx_multicast_group_choose("verbs://239.1.2.3", false, &m.group.address, &error), 0);
    golden(&m,
           "\x48\x04\xef\x01\x02\x03\0\0"
           "01234567ssssssssssssssssssssssssssssssss\x02\x01\0\0\0\0\0\0",
           56);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_NO_GROUP, .code = -95};
    m.bytes.bytes = (const uint8_t *)"abc";
    m.bytes.length = 3;
    golden(&m,
           "\x49\xa1\xff\xff\xff"
           "abc",
           8);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_WANT, .length = 10, .offset = 7};
    m.bytes.bytes = (const uint8_t *)"abc";
    m.bytes.length = 3;
    golden(&m, "\x4a\x0a\0\0\0\x07\0\0\0abc", 12);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_FED, .packets = 0x102};
    golden(&m, "\x4b\x02\x01\0\0\0\0\0\0", 9);
    m = (struct ibx_snapshot_any){.type = IBX_SNAPSHOT_HEARD, .through = 0x304, .packets = 0x102};
    golden(&m, "\x4c\x04\x03\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0", 17);
}

static void refused(const void *bytes, size_t length, int code)
{
    struct ibx_snapshot_any m;
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_snapshot_decode(bytes, length, &m, &error), code);
    assert_true(error.code == code && error.message[0]);
}

static void test_messages_are_refused(void **state)
{
    (void)state;
    refused("", 0, -EPROTO);
    refused("\x3f", 1, -EPROTO);
    refused("\x40\x69\x62\x78\x6d\x01\x00\x01", 8, -EPROTO);
    refused("\x40\x69\x62\x78\x73\x02\x00\x01", 8, -EPROTONOSUPPORT);
    refused("\x40\x69\x62\x78\x73\x03\x00\x02", 8, -EPROTO);
    refused("\x41\x0a\0\0\0\x08\0\0\0abc", 12, -EPROTO); /* beyond the end */
    refused("\x41\x0a\0\0\0\x07\0\0\0", 9, -EPROTO);
    refused("\x41\xff\xff\xff\xff\x07\0\0\0abc", 12, -EPROTO);
    refused("\x42", 1, -EPROTO);
    refused("\x44", 1, -EPROTO);
    refused("\x44\x20\0\0\0\x02\0\0\0\x01\0\0\0\0\x10\0\0", 17, -EPROTO);
    refused("\x44\x1f\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0", 17, -EPROTO);
    refused("\x44\x1f\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\x10\0", 17, -EPROTO);
    refused("\x45\x03\0\0\0\x04\0\0\0", 9, -EPROTO);
    refused("\x46\x03\0\0", 4, -EPROTO);
    refused("\x46\x03\0\0\0", 5, -EPROTO);
    refused("\x47ibxs\x02\x00"
            "0123456789abcdef",
            23, -EPROTONOSUPPORT);
    refused("\x47ibxm\x02\x00"
            "0123456789abcdef",
            23, -EPROTO);
    /* an address of one host, and a length that no address has */
    refused("\x48\x04\x0a\x01\x02\x03\x58\x1b"
            "01234567ssssssssssssssssssssssssssssssss\x02\x01\0\0\0\0\0\0",
            56, -EPROTO);
    refused("\x48\x05\xef\x01\x02\x03\x58\x1b\x01"
            "01234567ssssssssssssssssssssssssssssssss\x02\x01\0\0\0\0\0\0",
            57, -EPROTO);
    refused("\x49\0\0\0\0"
            "abc",
            8, -EPROTO);
    refused("\x4a\x0a\0\0\0\x08\0\0\0abc", 12, -EPROTO); /* beyond the end */
    refused("\x4a\x01\0\x10\0\0\0\0\0abc", 12, -EPROTO); /* more than is possible */
    refused("\x43"
            "0123456789abcdef\x02\x01\0\0\x01",
            22, -EPROTO); /* says regions and has none */
}

static const char good[] =
    "{\"format\":\"ibx snapshot\",\"version\":3,\"id\":\"00112233445566778899aabbccddeeff\","
    "\"complete\":true,\"ran\":false,\"qemu\":[7,2,17],\"machine\":\"q35\",\"uuid\":\"u\","
    "\"name\":\"web\",\"page_size\":4096,\"ram\":[{\"id\":\"a\",\"size\":8192},{\"id\":\"b\","
    "\"size\":4096}],\"state_bytes\":4097,\"hashes\":true,\"digest\":"
    "\"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\",\"description\":{}}";

static void test_manifest(void **state)
{
    (void)state;
    struct ibx_snapshot_manifest m;
    struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX];
    struct ibx_page_map map;
    char *text;
    size_t length;
    assert_int_equal(ibx_snapshot_manifest_read(good, strlen(good), &m, &error), 0);
    assert_true(m.complete && !m.ran && m.version.micro == 17 && m.id[1] == 0x11);
    assert_int_equal(ibx_snapshot_blocks(&m, blocks), 4);
    assert_string_equal(blocks[2].id, "state");
    assert_int_equal(blocks[2].size, 8192);
    assert_string_equal(blocks[3].id, "hashes");
    assert_int_equal(blocks[3].size, 4096);
    assert_int_equal(ibx_snapshot_map_init(&m, &map, &error), 0);
    assert_int_equal(map.pages, 6);
    assert_int_equal(map.blocks[2].first, 3);
    ibx_page_map_fini(&map);
    assert_int_equal(ibx_snapshot_manifest_write(&m, &text, &length, &error), 0);
    assert_string_equal(text, good);
    free(text);
    ibx_snapshot_manifest_fini(&m);
}

/* Each replacement of `from` in the good manifest is refused with this word. */
static void each_is_refused(const char *const (*wrong)[3])
{
    for (; (*wrong)[0]; wrong++) {
        struct ibx_snapshot_manifest m;
        char text[2048];
        const char *at = strstr(good, (*wrong)[0]);
        assert_non_null(at);
        snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, (*wrong)[1],
                 at + strlen((*wrong)[0]));
        memset(&error, 0, sizeof(error));
        if (!ibx_snapshot_manifest_read(text, strlen(text), &m, &error))
            fail_msg("taken: %s", text);
        if (!strstr(error.message, (*wrong)[2]))
            fail_msg("\"%s\" does not say %s", error.message, (*wrong)[2]);
    }
}

static void test_manifests_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"ibx snapshot", "tar", "\"format\""},
        {"\"version\":3", "\"version\":2", "version 2"},
        {"\"page_size\":4096", "\"page_size\":8192", "\"page_size\""},
        {"0011", "001", "\"id\""},
        {"0011", "00gg", "\"id\""},
        {"true", "1", "\"complete and ran\""},
        {"\"hashes\":true", "\"hashes\":1", "\"hashes\""},
        {"[7,2,17]", "[7,2]", "\"qemu\""},
        {"[7,2,17]", "[7,2,-1]", "\"qemu\""},
        {"\"q35\"", "7", "\"machine, uuid and name\""},
        {"\"a\"", "\"b\"", "\"id\""}, /* twice the same */
        {"\"a\"", "\"\"", "\"id\""},
        {"8192", "8191", "\"size\""},
        {"8192", "0", "\"size\""},
        {"8192", "-4096", "\"size\""},
        {"8192", "17592186044416", "\"size\""}, /* too much together with the other one */
        {"4097", "0", "\"state_bytes\""},
        {"4097", "1073741825", "\"state_bytes\""},
        {"{}", "[]", "\"description\""},
        {"{}", "{}, \"ran\":true", "not JSON"},
        {"{}}", "{}", "not JSON"},
        {NULL, NULL, NULL}};
    each_is_refused(wrong);
}

/* Replaces `from` in the good manifest. */
static bool is_same(const char *from, const char *to)
{
    struct ibx_snapshot_manifest one, other;
    char text[2048];
    const char *at = strstr(good, from);
    assert_non_null(at);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    assert_int_equal(ibx_snapshot_manifest_read(good, strlen(good), &one, &error), 0);
    assert_int_equal(ibx_snapshot_manifest_read(text, strlen(text), &other, &error), 0);
    const bool same = ibx_snapshot_same(&one, &other);
    ibx_snapshot_manifest_fini(&one);
    ibx_snapshot_manifest_fini(&other);
    return same;
}

/* A server may describe the VM of a snapshot differently later. A cache keeps what it was told
 * first. */
static void test_same_snapshots(void **state)
{
    static const char *const others[][2] = {
        {"\"id\":\"00", "\"id\":\"01"},
        {"\"digest\":\"00", "\"digest\":\"01"},
        {"8192", "4096"},
        {"\"id\":\"b\"", "\"id\":\"c\""},
        {"4097", "4098"},
        {"\"hashes\":true", "\"hashes\":false"},
        {"\"ran\":false", "\"ran\":true"},
        {"[7,2,17]", "[7,2,16]"},
        {"\"q35\"", "\"pc\""},
        {"\"u\"", "\"v\""},
        {"\"web\"", "\"db\""},
        {"\"description\":{}", "\"description\":{\"cpu\":\"max\"}"}};
    (void)state;
    assert_true(is_same("{", "{"));
    assert_true(is_same("\"complete\":true", "\"complete\":false"));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (is_same(others[i][0], others[i][1]))
            fail_msg("%s", others[i][1]);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden),
                                              cmocka_unit_test(test_golden_multicast),
                                              cmocka_unit_test(test_messages_are_refused),
                                              cmocka_unit_test(test_manifest),
                                              cmocka_unit_test(test_manifests_are_refused),
                                              cmocka_unit_test(test_same_snapshots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
