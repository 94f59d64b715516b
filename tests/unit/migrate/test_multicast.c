/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Datagrams byte by byte; groups as texts; and a sender with its members in one process, over the
 * loopback interface.
 */
#include "migrate/multicast/multicast.h"
#include "tests/scenes/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE        IBX_MULTICAST_PAGE
#define PAGES       1100u       /* three chunks */
#define RATE        (64u << 20) /* of which it begins with a quarter */
#define PATIENCE_MS 20000
#define QUIET_MS    50

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

/* Computed elsewhere, from what docs/protocol.md says. */
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

static void test_what_is_changed_is_refused(NO_STATE)
{
    const struct ibx_multicast_group group = golden_group();
    struct ibx_multicast_packet packet = {1, 2, 1, 3}, back;
    struct ibx_multicast_cipher *seals = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *opens = ibx_multicast_cipher_create(&group, false);
    uint8_t page[PAGE], out[IBX_MULTICAST_PACKET], part[PAGE];
    fill(page, 0);
    const size_t n = ibx_multicast_seal(seals, &packet, page, out);
    assert_int_equal(n, 32 + 1376 + 16);
    for (size_t i = 0; i < n; i++) { /* each byte is either looked at or sealed */
        out[i] ^= 1;
        assert_false(ibx_multicast_peek(out, n, group.id, &back) &&
                     ibx_multicast_open(opens, out, n, part));
        out[i] ^= 1;
    }
    for (size_t i = 0; i < n; i++)
        assert_false(ibx_multicast_peek(out, i, group.id, &back));
    assert_true(ibx_multicast_peek(out, n, group.id, &back));
    out[5] = 3; /* part 3 of 3 */
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
    assert_int_equal(ibx_multicast_parts(65536, false), 1);
    assert_int_equal(ibx_multicast_parts(9000, true), 1);
    assert_int_equal(ibx_multicast_parts(1500, false), 3);
    assert_int_equal(ibx_multicast_parts(1500, true), 3);
    assert_int_equal(ibx_multicast_parts(1280, true), 4);
    assert_int_equal(ibx_multicast_parts(300, false), 0);
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
    other.id[0] ^= 1; /* another group's */
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
    other.id[0] ^= 1;
    sealed[31] ^= 1;
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
    sealed[31] ^= 1;
    secret[0] ^= 1;
    assert_false(ibx_multicast_key_open(secret, &other, sealed));
}

/* ---------------------------------------------------------------- datagrams of several pages */

/* Whether the kernel cuts them or not, the other end gets the same. */
static void pages_in_parts(int domain, unsigned parts)
{
    const struct ibx_multicast_group group = golden_group();
    struct ibx_multicast_cipher *seals = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *opens = ibx_multicast_cipher_create(&group, false);
    struct ibx_multicast_batch *batch = ibx_multicast_batch_create();
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
    ibx_multicast_batch_begin(batch, ends[0], parts, 10);
    for (; !ibx_multicast_batch_full(batch); pages++) {
        fill(page, pages);
        assert_int_equal(ibx_multicast_batch_add(batch, seals, &number, 7 + pages, page), 0);
    }
    assert_int_equal(pages, parts > 10 ? 1 : 10 / parts);
    assert_int_equal(ibx_multicast_batch_bytes(batch), pages * (PAGE + parts * (32 + 16 + 48)));
    assert_int_equal(ibx_multicast_batch_send(batch, ends[0], &datagrams), 0);
    assert_true(datagrams == pages * parts && number == datagrams);
    assert_int_equal(ibx_multicast_batch_bytes(batch), 0);
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
    close(ends[0]);
    close(ends[1]);
    ibx_multicast_batch_destroy(batch);
    ibx_multicast_cipher_destroy(seals);
    ibx_multicast_cipher_destroy(opens);
}

static void test_pages_in_parts(NO_STATE)
{
    static const unsigned parts[] = {1, 2, 3, 5, 16};
    for (size_t i = 0; i < COUNT(parts); i++) {
        pages_in_parts(AF_INET, parts[i]);
        if (parts[i] < 10) /* as many as such a socket may hold for its reader */
            pages_in_parts(AF_UNIX, parts[i]);
    }
}

/* ---------------------------------------------------------------- groups */

static void test_groups(NO_STATE)
{
    static const char *const good[][2] = {
        {"239.1.2.3", "239.1.2.3:18602"},          {"239.1.2.3:7000", "239.1.2.3:7000"},
        {"224.0.0.251:1", "224.0.0.251:1"},        {"ff15::1", "[ff15::1]:18602"},
        {"[ff15::1]:7000", "[ff15::1]:7000"},      {"[ff12::a:b]", "[ff12::a:b]:18602"},
        {"ff02::1:2:3:4", "[ff02::1:2:3:4]:18602"}};
    static const char *const bad[] = {
        "",          "10.1.2.3",        "239.1.2",        "fe80::1",
        "[ff15::1",  "[ff15::1]x",      "239.1.2.3:0",    "239.1.2.3:",
        "host:7000", "239.1.2.3:65536", "239.1.2.3:70a0", "[]:7000"};
    struct sockaddr_storage address;
    unsigned index;
    char text[64];
    for (size_t i = 0; i < COUNT(good); i++) {
        assert_int_equal(ibx_multicast_group_parse(good[i][0], &address, &error), 0);
        ibx_multicast_group_print(&address, text, sizeof(text));
        assert_string_equal(text, good[i][1]);
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        assert_int_equal(ibx_multicast_group_parse(bad[i], &address, &error), -EINVAL);
        text_has(error.message, "is no multicast group");
    }
    for (unsigned six = 0; six < 2; six++) {
        struct sockaddr_storage again;
        assert_int_equal(ibx_multicast_group_random(six, &address, &error), 0);
        ibx_multicast_group_print(&address, text, sizeof(text));
        assert_int_equal(ibx_multicast_group_parse(text, &again, &error), 0);
        assert_memory_equal(text, six ? "[ff15:" : "239.19", 6);
    }
    assert_int_equal(ibx_multicast_interface("lo", NULL, &index, &error), 0);
    assert_int_equal(index, if_nametoindex("lo"));
    assert_int_equal(ibx_multicast_interface(NULL, "127.0.0.1", &index, &error), 0);
    assert_int_equal(index, if_nametoindex("lo"));
    assert_int_equal(ibx_multicast_interface("nowhere9", NULL, &index, &error), -ENODEV);
    text_has(error.message, "no interface \"nowhere9\"");
}

/* ---------------------------------------------------------------- a sender */

static uint8_t memory[PAGES][PAGE];
static uint64_t data[PAGES / 64 + 1];
static _Atomic bool ready = true;
static uint64_t left_out; /* a page that is not there; 0: none */
static struct ibx_multicast_sender *sender;

static const uint8_t *memory_of(void *context, uint64_t page)
{
    (void)context;
    return left_out && page == left_out ? NULL : memory[page];
}

static bool is_ready(void *context, uint64_t first, uint64_t pages)
{
    (void)context;
    assert_true(first % IBX_MULTICAST_CHUNK_PAGES == 0 && first + pages <= PAGES);
    return ready;
}

static void open_sender(uint64_t rate)
{
    struct ibx_multicast_sender_config config = {.rate = rate,
                                                 .hops = 1,
                                                 .pages = PAGES,
                                                 .data = data,
                                                 .memory = memory_of,
                                                 .ready = is_ready};
    for (unsigned i = 0; i < PAGES; i++) {
        fill(memory[i], i + 1);
        data[i / 64] |= i % 5 ? 1ull << i % 64 : 0;
    }
    assert_int_equal(ibx_multicast_group_random(false, &config.group, &error), 0);
    assert_int_equal(ibx_multicast_sender_create(&config, &sender, &error), 0);
}

/* How many pages hold something. */
static unsigned all(void)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < PAGES; i++)
        sum += i % 5 != 0;
    return sum;
}

struct member {
    struct ibx_multicast_receiver *receiver;
    struct ibx_multicast_member *at;
    _Atomic unsigned woken;
    uint8_t got[PAGES];
    unsigned wrong;
};

static bool is_wanted(void *context, uint64_t page)
{
    const struct member *m = context;
    return page < PAGES && !m->got[page];
}

static bool take(void *context, uint64_t page, const uint8_t *bytes)
{
    struct member *m = context;
    const bool right = !memcmp(bytes, memory[page], PAGE);
    m->wrong += !right;
    m->got[page] |= right;
    return right;
}

static void wake(void *context)
{
    struct member *m = context;
    m->woken++;
}

static void listen_as(struct member *m, unsigned drop_every)
{
    const struct ibx_multicast_receiver_config config = {.group =
                                                             *ibx_multicast_sender_group(sender),
                                                         .interface = if_nametoindex("lo"),
                                                         .wanted = is_wanted,
                                                         .take = take,
                                                         .context = m,
                                                         .drop_every = drop_every};
    memset(m, 0, sizeof(*m));
    if (ibx_multicast_receiver_open(&config, &m->receiver, &error))
        fail_msg("%s", error.message);
}

static void join(struct member *m, uint64_t wanted)
{
    assert_int_equal(
        ibx_multicast_join(sender, if_nametoindex("lo"), &wanted, wake, m, &m->at, &error), 0);
}

static void leave(struct member *m)
{
    ibx_multicast_leave(m->at);
    ibx_multicast_receiver_close(m->receiver);
}

/* Until this member was sent everything and nothing comes any more: how many datagrams. */
static uint64_t receive_all(struct member *m)
{
    const uint64_t until = ibx_deadline_in_ms(PATIENCE_MS);
    struct pollfd fd = {.fd = ibx_multicast_receiver_fd(m->receiver), .events = POLLIN};
    uint64_t packets = 0;
    int state = 0;
    while (!state || poll(&fd, 1, QUIET_MS) > 0) {
        assert_true(ibx_now_ns() < until);
        if (!state)
            state = ibx_multicast_member_state(m->at, &packets, &error);
        if (state < 0)
            fail_msg("%s", error.message);
        if (!ibx_multicast_receive(m->receiver))
            poll(&fd, 1, 5);
    }
    assert_true(m->woken);
    return packets;
}

static unsigned count(const struct member *m, unsigned from, unsigned to)
{
    unsigned sum = 0;
    for (unsigned i = from; i < to; i++)
        sum += m->got[i];
    return sum;
}

static int end(void **state)
{
    (void)state;
    ibx_multicast_sender_destroy(sender);
    sender = NULL;
    ready = true;
    left_out = 0;
    return 0;
}

static void test_members_get_what_they_want(NO_STATE)
{
    struct member m[2];
    struct ibx_multicast_sender_stats stats;
    open_sender(RATE);
    ready = false;
    listen_as(&m[0], 0);
    listen_as(&m[1], 0);
    join(&m[0], ~0ull); /* also beyond the last */
    join(&m[1], 2);
    left_out = 700;
    ready = true;
    const uint64_t sent = receive_all(&m[0]);
    receive_all(&m[1]);
    assert_int_equal(count(&m[0], 0, PAGES), all() - (left_out % 5 != 0));
    assert_false(m[0].got[700]);
    /* It hears the others' as well. */
    assert_true(count(&m[1], 512, 1024) >= 409);
    ibx_multicast_sender_stats(sender, &stats);
    assert_true(stats.chunks == 3 && stats.members == 0 && stats.joined == 2);
    assert_true(sent == stats.packets && sent <= all());
    leave(&m[0]);
    leave(&m[1]);
}

/* Who comes later gets what was sent before, too, and nobody else's chunks twice. */
static void test_late_joiner(NO_STATE)
{
    struct member first, late, none;
    struct ibx_multicast_sender_stats stats;
    open_sender(RATE);
    listen_as(&first, 0);
    join(&first, 7);
    const uint64_t until = ibx_deadline_in_ms(PATIENCE_MS);
    while (!count(&first, 512, 1024)) { /* in the second chunk */
        assert_true(ibx_now_ns() < until);
        ibx_multicast_receive(first.receiver);
    }
    listen_as(&late, 0);
    join(&late, 7);
    receive_all(&late);
    assert_int_equal(count(&late, 0, PAGES), all());
    receive_all(&first);
    assert_int_equal(count(&first, 0, PAGES), all());
    ibx_multicast_sender_stats(sender, &stats);
    assert_true(stats.chunks >= 4 && stats.chunks <= 6);
    listen_as(&none, 0);
    join(&none, 0);
    assert_int_equal(receive_all(&none), 0);
    leave(&first);
    leave(&late);
    leave(&none);
}

/* It ends in the middle of a chunk when all have left. */
static void test_bounded_rate(NO_STATE)
{
    struct member m;
    struct ibx_multicast_sender_stats stats;
    const uint64_t rate = 1u << 20, began = ibx_now_ns(), until = ibx_deadline_in_ms(PATIENCE_MS);
    open_sender(rate);
    listen_as(&m, 0);
    join(&m, 7);
    while (count(&m, 0, PAGES) < 64) {
        assert_true(ibx_now_ns() < until);
        ibx_multicast_receive(m.receiver);
    }
    ibx_multicast_sender_stats(sender, &stats);
    const double seconds = (double)(ibx_now_ns() - began) / 1e9;
    /* A batch of four pages ahead, and what two milliseconds bring. */
    assert_true((double)stats.bytes <= (double)rate * (seconds + 0.002) + 4 * 4200);
    assert_true(stats.bytes >= 64 * PAGE);
    leave(&m);
    ibx_multicast_sender_stats(sender, &stats);
    assert_int_equal(stats.members, 0);
}

static void test_lost_datagrams_cost_their_pages(NO_STATE)
{
    struct member m;
    struct ibx_multicast_receiver_stats stats;
    open_sender(RATE);
    listen_as(&m, 10);
    join(&m, 7);
    const uint64_t sent = receive_all(&m);
    ibx_multicast_receiver_stats(m.receiver, &stats);
    assert_int_equal(sent, all());
    assert_int_equal(stats.packets, all() - all() / 10);
    assert_int_equal(stats.pages, stats.packets);
    assert_int_equal(m.wrong, 0);
    leave(&m);
}

/* ---------------------------------------------------------------- who lies */

static void send_raw(const struct ibx_multicast_group *group, const void *bytes, size_t length)
{
    size_t mtu;
    int fd;
    assert_int_equal(
        ibx_multicast_socket_send(&group->address, if_nametoindex("lo"), 1, &fd, &mtu, &error), 0);
    assert_int_equal(send(fd, bytes, length, 0), length);
    close(fd);
}

static void receive_some(struct member *m, unsigned n)
{
    struct pollfd fd = {.fd = ibx_multicast_receiver_fd(m->receiver), .events = POLLIN};
    while (n) {
        assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
        n -= ibx_multicast_receive(m->receiver);
    }
}

static void test_liars(NO_STATE)
{
    struct member m;
    struct ibx_multicast_receiver_stats stats;
    uint8_t out[IBX_MULTICAST_PACKET + 1] = {0}, page[PAGE];
    open_sender(RATE);
    listen_as(&m, 0);
    struct ibx_multicast_group group = *ibx_multicast_sender_group(sender), stranger = group;
    stranger.key[0] ^= 1;
    struct ibx_multicast_cipher *member = ibx_multicast_cipher_create(&group, true);
    struct ibx_multicast_cipher *other = ibx_multicast_cipher_create(&stranger, true);
    /* One without the key, with the first part of a page between. */
    struct ibx_multicast_packet p = {1, 9, 0, 2};
    size_t n = ibx_multicast_seal(member, &p, memory[9], out);
    send_raw(&group, out, n);
    p.part = 1;
    fill(page, 99);
    n = ibx_multicast_seal(other, &p, page, out);
    send_raw(&group, out, n);
    send_raw(&group, "", 0);
    send_raw(&group, out, sizeof(out));
    p.number = 2;
    n = ibx_multicast_seal(member, &p, memory[9], out);
    send_raw(&group, out, n);
    receive_some(&m, 5);
    ibx_multicast_receiver_stats(m.receiver, &stats);
    assert_true(stats.strange == 3 && stats.pages == 1 && m.got[9] && !stats.wrong);
    /* A member that forges a page costs a comparison; again, and the right one is taken. */
    p = (struct ibx_multicast_packet){3, 11, 0, 1};
    n = ibx_multicast_seal(member, &p, page, out);
    send_raw(&group, out, n);
    receive_some(&m, 1);
    p.number = 4;
    n = ibx_multicast_seal(member, &p, memory[11], out);
    send_raw(&group, out, n);
    /* Pages that nobody wants, or that there are not: who has the key is counted, once for each
     * number, whatever overtakes what. */
    p = (struct ibx_multicast_packet){9000, 9, 0, 1};
    n = ibx_multicast_seal(other, &p, page, out);
    send_raw(&group, out, n);
    p.page = ~0ull;
    n = ibx_multicast_seal(member, &p, page, out);
    send_raw(&group, out, n);
    send_raw(&group, out, n);
    p.number = 8000;
    n = ibx_multicast_seal(member, &p, page, out);
    send_raw(&group, out, n);
    send_raw(&group, out, n);
    p.number = 5; /* it is forgotten whether that has come */
    n = ibx_multicast_seal(member, &p, page, out);
    send_raw(&group, out, n);
    receive_some(&m, 7);
    ibx_multicast_receiver_stats(m.receiver, &stats);
    assert_true(stats.strange == 4 && stats.wrong == 1 && m.wrong == 1 && stats.pages == 2);
    assert_true(stats.packets == 6 && stats.through == 9001);
    assert_true(m.got[11]);
    ibx_multicast_cipher_destroy(member);
    ibx_multicast_cipher_destroy(other);
    leave(&m);
}

static void test_what_cannot_be_sent(NO_STATE)
{
    struct member m;
    struct ibx_multicast_sender_config config = {.rate = 1, .pages = 1};
    uint64_t packets, wanted = 7;
    struct ibx_multicast_member *other;
    assert_int_equal(ibx_multicast_sender_create(&config, &sender, &error), -EINVAL);
    text_has(error.message, "1 bytes a second");
    open_sender(RATE);
    memset(&m, 0, sizeof(m));
    ready = false;
    /* An interface that there is not: the member is told, and a later one may have more luck. */
    assert_int_equal(ibx_multicast_join(sender, 0x7ffffff0, &wanted, wake, &m, &m.at, &error), 0);
    const uint64_t until = ibx_deadline_in_ms(PATIENCE_MS);
    while (!m.woken) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 1);
    }
    assert_true(ibx_multicast_member_state(m.at, &packets, &error) < 0);
    text_has(error.message, "nothing can be sent to the multicast group 239.");
    ibx_multicast_leave(m.at);
    listen_as(&m, 0);
    join(&m, 7);
    assert_int_equal(ibx_multicast_join(sender, 0x7ffffff0, &wanted, wake, &m, &other, &error),
                     -EXDEV);
    ready = true;
    receive_all(&m);
    assert_int_equal(count(&m, 0, PAGES), all());
    leave(&m);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_what_is_changed_is_refused),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_pages_in_parts),
        cmocka_unit_test(test_groups),
        cmocka_unit_test_teardown(test_members_get_what_they_want, end),
        cmocka_unit_test_teardown(test_late_joiner, end),
        cmocka_unit_test_teardown(test_bounded_rate, end),
        cmocka_unit_test_teardown(test_lost_datagrams_cost_their_pages, end),
        cmocka_unit_test_teardown(test_liars, end),
        cmocka_unit_test_teardown(test_what_cannot_be_sent, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
