/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Multicast datagrams byte by byte, as they are sent; and groups as text. */
#include "migrate/multicast/datagrams.h"
#include "tests/fixtures/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE IBX_MULTICAST_PAGE

static struct ibx_error error;

/* ---------------------------------------------------------------- datagrams */

static struct ibx_multicast_group golden_group(void)
{
    struct ibx_multicast_group group = {.rate = 0};
    for (unsigned i = 0; i < sizeof(group.id); i++)
        group.id[i] = (uint8_t)(0x10 + i);
    for (unsigned i = 0; i < sizeof(group.key); i++)
        group.key[i] = (uint8_t)(0xa0 + i);
    return group;
}

static void fill(uint8_t *page, unsigned seed)
{
    for (unsigned i = 0; i < PAGE; i++)
        page[i] = (uint8_t)(i * 7 + seed);
}

/* Computed by another program, from docs/protocol.md. */
static void test_golden(NO_STATE)
{
    static const uint8_t begins[] = {0x69, 0x62, 0x78, 0x6d, 0x01, 0x0f, 0x10, 0x00, 0x10, 0x11,
                                     0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x08, 0x07, 0x06, 0x05,
                                     0x04, 0x03, 0x02, 0x01, 0x44, 0x33, 0x22, 0x11, 0x00, 0x00,
                                     0x00, 0x00, 0x48, 0xb5, 0xbc, 0xad, 0xbe, 0x6f, 0x8b, 0x58,
                                     0x32, 0x6e, 0xf0, 0x7f, 0x62, 0x69, 0xd9, 0x24};
    static const uint8_t tag[] = {0x26, 0xa4, 0x32, 0x7c, 0x8c, 0x7d, 0x9b, 0x84,
                                  0x40, 0x8e, 0xf1, 0x09, 0x6b, 0x80, 0x6a, 0xa4};
    const struct ibx_multicast_group group = golden_group();
    const struct ibx_multicast_packet packet = {0x0102030405060708, 0x11223344, 15, 16};
    struct ibx_multicast_packet back;
    struct ibx_multicast_cipher *seals = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *opens = ibx_multicast_cipher_create(&group, false);
    uint8_t page[PAGE], out[IBX_MULTICAST_PACKET], part[PAGE];
    fill(page, 3);
    assert_int_equal(ibx_multicast_seal(seals, &packet, page, out), 304);
    assert_memory_equal(out, begins, sizeof(begins));
    assert_memory_equal(out + 304 - sizeof(tag), tag, sizeof(tag));
    assert_true(ibx_multicast_peek(out, 304, group.id, &back));
    assert_true(back.number == packet.number && back.page == packet.page && back.part == 15 &&
                back.parts == 16);
    assert_true(ibx_multicast_open(opens, out, 304, part));
    assert_memory_equal(part, page + PAGE - 256, 256);
    ibx_multicast_cipher_destroy(seals);
    ibx_multicast_cipher_destroy(opens);
}

static void test_changed_datagrams_are_refused(NO_STATE)
{
    const struct ibx_multicast_group group = golden_group();
    struct ibx_multicast_packet packet = {1, 2, 1, 3}, back;
    struct ibx_multicast_cipher *seals = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *opens = ibx_multicast_cipher_create(&group, false);
    uint8_t page[PAGE], out[IBX_MULTICAST_PACKET], part[PAGE];
    fill(page, 0);
    const size_t n = ibx_multicast_seal(seals, &packet, page, out);
    assert_int_equal(n, 32 + 1376 + 16);
    for (size_t i = 0; i < n; i++) { /* each byte is either checked in plain text or sealed */
        out[i] ^= 1;
        assert_false(ibx_multicast_peek(out, n, group.id, &back) &&
                     ibx_multicast_open(opens, out, n, part));
        out[i] ^= 1;
    }
    for (size_t i = 0; i < n; i++)
        assert_false(ibx_multicast_peek(out, i, group.id, &back));
    assert_true(ibx_multicast_peek(out, n, group.id, &back));
    out[5] = 3; /* part 3 of 3, counted from 0 */
    assert_false(ibx_multicast_peek(out, n, group.id, &back));
    out[6] = 0;
    assert_false(ibx_multicast_peek(out, n, group.id, &back));
    out[6] = 17;
    assert_false(ibx_multicast_peek(out, n, group.id, &back));
    ibx_multicast_cipher_destroy(seals);
    ibx_multicast_cipher_destroy(opens);
}

static void test_parts(NO_STATE)
{
    for (unsigned parts = 1; parts <= IBX_MULTICAST_PARTS_MAX; parts++) {
        size_t sum = 0, length;
        for (unsigned i = 0; i < parts; i++) {
            assert_int_equal(ibx_multicast_part_at(parts, i, &length), sum);
            assert_true(length && length <= PAGE);
            sum += length;
        }
        assert_int_equal(sum, PAGE);
    }
    assert_int_equal(ibx_multicast_parts(65508), 1);
    assert_int_equal(ibx_multicast_parts(4144), 1);
    assert_int_equal(ibx_multicast_parts(4143), 2);
    assert_int_equal(ibx_multicast_parts(4096), 2); /* verbs, like the next sizes */
    assert_int_equal(ibx_multicast_parts(1472), 3);
    assert_int_equal(ibx_multicast_parts(1232), 4);
    assert_int_equal(ibx_multicast_parts(1024), 5);
    assert_int_equal(ibx_multicast_parts(512), 9);
    assert_int_equal(ibx_multicast_parts(304), 16);
    assert_int_equal(ibx_multicast_parts(303), 0);
}

static void test_key(NO_STATE)
{
    static const uint8_t golden[] = {0xfa, 0x95, 0x92, 0xdb, 0x30, 0xcd, 0x74, 0x0c,
                                     0x70, 0x22, 0x32, 0x58, 0x93, 0x50, 0xcc, 0xe9,
                                     0x15, 0x5b, 0x48, 0x54, 0x07, 0x6a, 0x33, 0xac,
                                     0x0e, 0x23, 0x80, 0x89, 0x21, 0x8b, 0x17, 0x7d};
    struct ibx_multicast_group group = golden_group(), other = group;
    uint8_t secret[32], sealed[IBX_MULTICAST_SEALED_KEY];
    for (unsigned i = 0; i < sizeof(secret); i++)
        secret[i] = (uint8_t)(0x40 + i);
    assert_true(ibx_multicast_key_seal(secret, &group, sealed));
    assert_memory_equal(sealed, golden, sizeof(golden));
    memset(other.key, 0, sizeof(other.key));
    assert_true(ibx_multicast_key_open(secret, &other, sealed));
    assert_memory_equal(other.key, group.key, sizeof(group.key));
    other.id[0] ^= 1; /* of another group */
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
    other.id[0] ^= 1;
    sealed[31] ^= 1;
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
    sealed[31] ^= 1;
    secret[0] ^= 1;
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
}

/* ---------------------------------------------------------------- datagrams of several pages */

/* The other end receives the same whether or not the kernel splits the datagrams. */
static void pages_in_parts(int domain, unsigned parts)
{
    const struct ibx_multicast_group group = golden_group();
    struct ibx_multicast_cipher *seals = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *opens = ibx_multicast_cipher_create(&group, false);
    struct ibx_multicast_batch batch;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(to);
    int ends[2] = {-1, -1};
    uint8_t page[PAGE], out[IBX_MULTICAST_PACKET], part[PAGE];
    uint64_t number = 0;
    unsigned datagrams, pages = 0;
    if (domain == AF_UNIX) {
        assert_int_equal(socketpair(domain, SOCK_DGRAM, 0, ends), 0);
    } else {
        ends[0] = socket(domain, SOCK_DGRAM, 0);
        ends[1] = socket(domain, SOCK_DGRAM, 0);
        assert_int_equal(bind(ends[1], (const struct sockaddr *)&to, size), 0);
        assert_int_equal(getsockname(ends[1], (struct sockaddr *)&to, &size), 0);
        assert_int_equal(connect(ends[0], (const struct sockaddr *)&to, size), 0);
    }
    struct ibx_multicast_out *way = ibx_multicast_socket_out(ends[0], 65508);
    ibx_multicast_batch_begin(&batch, way, parts, 10);
    for (; !ibx_multicast_batch_full(&batch); pages++) {
        fill(page, pages);
        assert_int_equal(ibx_multicast_batch_add(&batch, seals, &number, 7 + pages, page), 0);
    }
    assert_int_equal(pages, parts > 10 ? 1 : 10 / parts);
    assert_int_equal(batch.bytes, pages * (PAGE + parts * (32 + 16 + 48)));
    assert_int_equal(ibx_multicast_batch_send(&batch, &datagrams, &error), 0);
    assert_true(datagrams == pages * parts && number == datagrams);
    assert_int_equal(batch.bytes, 0);
    for (unsigned i = 0; i < datagrams; i++) {
        struct ibx_multicast_packet p;
        size_t length;
        const ssize_t n = recv(ends[1], out, sizeof(out), 0);
        assert_true(n > 0 && ibx_multicast_peek(out, (size_t)n, group.id, &p));
        assert_true(p.number == i && p.page == 7 + i / parts && p.part == i % parts);
        assert_true(ibx_multicast_open(opens, out, (size_t)n, part));
        const size_t at = ibx_multicast_part_at(parts, p.part, &length);
        fill(page, i / parts);
        assert_memory_equal(part, page + at, length);
    }
    assert_int_equal(recv(ends[1], out, sizeof(out), MSG_DONTWAIT), -1);
    ibx_multicast_out_close(way);
    close(ends[1]);
    ibx_multicast_cipher_destroy(seals);
    ibx_multicast_cipher_destroy(opens);
}

static void test_pages_in_parts(NO_STATE)
{
    static const unsigned parts[] = {1, 2, 3, 5, 16};
    for (size_t i = 0; i < COUNT(parts); i++) {
        pages_in_parts(AF_INET, parts[i]);
        if (parts[i] < 10) /* no more than such a socket queues for its reader */
            pages_in_parts(AF_UNIX, parts[i]);
    }
}

/* ---------------------------------------------------------------- groups */

static void test_groups(NO_STATE)
{
    static const char *const good[][2] = {
        {"239.1.2.3", "239.1.2.3:18602"},           {"239.1.2.3:7000", "239.1.2.3:7000"},
        {"224.0.0.251:1", "224.0.0.251:1"},         {"ff15::1", "[ff15::1]:18602"},
        {"[ff15::1]:7000", "[ff15::1]:7000"},       {"[ff12::a:b]", "[ff12::a:b]:18602"},
        {"ff02::1:2:3:4", "[ff02::1:2:3:4]:18602"}, {"verbs://239.1.2.3", "verbs://239.1.2.3"},
        {"verbs://ff15::1", "verbs://ff15::1"}};
    static const char *const bad[] = {"",
                                      "10.1.2.3",
                                      "239.1.2",
                                      "fe80::1",
                                      "[ff15::1",
                                      "[ff15::1]x",
                                      "239.1.2.3:0",
                                      "239.1.2.3:",
                                      "host:7000",
                                      "239.1.2.3:65536",
                                      "239.1.2.3:70a0",
                                      "[]:7000",
                                      "verbs:",
                                      "verbs://10.1.2.3",
                                      "verbs://239.1.2.3:7000",
                                      "udp://239.1.2.3"};
    struct sockaddr_storage address;
    unsigned index;
    char text[64];
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(ibx_multicast_group_choose(good[i][0], false, &address, &error), 0);
        ibx_multicast_group_print(&address, text, sizeof(text));
        assert_string_equal(text, good[i][1]);
        assert_int_equal(ibx_multicast_by_verbs(&address), good[i][0][0] == 'v');
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(ibx_multicast_group_choose(bad[i], false, &address, &error), -EINVAL);
        text_has(error.message, "is no multicast group");
    }
    for (unsigned i = 0; i < 4; i++) {
        struct sockaddr_storage again;
        const char *begins = i > 1 ? "verbs://239.19" : i ? "[ff15:" : "239.19";
        const char *wanted = i > 1 ? "verbs://" : NULL;
        assert_int_equal(ibx_multicast_group_choose(wanted, i % 2, &address, &error), 0);
        ibx_multicast_group_print(&address, text, sizeof(text));
        assert_int_equal(ibx_multicast_group_choose(text, false, &again, &error), 0);
        assert_memory_equal(text, begins, strlen(begins));
        assert_memory_equal(&again, &address, sizeof(again));
    }
    assert_int_equal(ibx_multicast_interface("lo", NULL, &index, &error), 0);
    assert_int_equal(index, if_nametoindex("lo"));
    assert_int_equal(ibx_multicast_interface(NULL, "127.0.0.1", &index, &error), 0);
    assert_int_equal(index, if_nametoindex("lo"));
    assert_int_equal(ibx_multicast_interface("nowhere9", NULL, &index, &error), -ENODEV);
    text_has(error.message, "no interface \"nowhere9\"");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),         cmocka_unit_test(test_changed_datagrams_are_refused),
        cmocka_unit_test(test_parts),          cmocka_unit_test(test_key),
        cmocka_unit_test(test_pages_in_parts), cmocka_unit_test(test_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
