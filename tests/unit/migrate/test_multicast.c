/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A sender of pages by multicast and its members in one process, over the loopback interface. In
 * the guest of tests/vm: with the argument `verbs`, and optionally a filter of tests, from veth0
 * to veth1. */
#include "migrate/multicast/datagrams.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"
#include "common/wire.h"

#include <errno.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE     IBX_MULTICAST_PAGE
#define PAGES    1100u       /* three chunks */
#define RATE     (64u << 20) /* the sender starts with a quarter of it */
#define QUIET_MS 50

static unsigned patience; /* milliseconds for what must happen; set by main() */
static struct ibx_error error;

/* ---------------------------------------------------------------- a sender */

static void fill(uint8_t *page, unsigned seed)
{
    for (unsigned i = 0; i < PAGE; i++)
        page[i] = (uint8_t)(i * 7 + seed);
}

static const char *sends_by = "lo", *hears_by = "lo", *group_text;
static unsigned page_parts = 1;

static uint8_t memory[PAGES][PAGE];
static uint64_t data[PAGES / 64 + 1];
static _Atomic bool ready = true;
static uint64_t left_out; /* a page that the sender does not have; 0: none */
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
    assert_int_equal(ibx_multicast_group_choose(group_text, false, &config.group, &error), 0);
    assert_int_equal(ibx_multicast_sender_create(&config, &sender, &error), 0);
}

/* How many pages hold data. */
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
                                                         .interface = if_nametoindex(hears_by),
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
        ibx_multicast_join(sender, if_nametoindex(sends_by), &wanted, wake, m, &m->at, &error), 0);
}

static void leave(struct member *m)
{
    ibx_multicast_leave(m->at);
    ibx_multicast_receiver_close(m->receiver);
}

static unsigned receive(struct member *m)
{
    const int n = ibx_multicast_receive(m->receiver, &error);
    if (n < 0)
        fail_msg("%s", error.message);
    return (unsigned)n;
}

/* Receives until this member was sent everything and nothing more comes. Returns the number of
 * datagrams. */
static uint64_t receive_all(struct member *m)
{
    const uint64_t until = ibx_deadline_in_ms(patience);
    struct pollfd fd = {.fd = ibx_multicast_receiver_fd(m->receiver), .events = POLLIN};
    uint64_t packets = 0;
    int state = 0;
    do {
        assert_true(ibx_now_ns() < until);
        if (!state)
            state = ibx_multicast_member_state(m->at, &packets, &error);
        if (state < 0)
            fail_msg("%s", error.message);
    } while (receive(m) || poll(&fd, 1, state ? QUIET_MS : 5) > 0 || !state);
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
    join(&m[0], ~0ull); /* also chunks beyond the last one */
    join(&m[1], 2);
    left_out = 700;
    ready = true;
    const uint64_t sent = receive_all(&m[0]);
    receive_all(&m[1]);
    assert_int_equal(count(&m[0], 0, PAGES), all() - (left_out % 5 != 0));
    assert_false(m[0].got[700]);
    /* The member receives what was sent for the others too. */
    assert_true(count(&m[1], 512, 1024) >= 409);
    ibx_multicast_sender_stats(sender, &stats);
    assert_true(stats.chunks == 3 && stats.members == 0 && stats.joined == 2);
    assert_true(sent == stats.packets && sent <= all() * page_parts);
    leave(&m[0]);
    leave(&m[1]);
}

/* A member that joins later also gets what was sent before, and the others get no chunk twice. */
static void test_late_joiner(NO_STATE)
{
    struct member first, late, none;
    struct ibx_multicast_sender_stats stats;
    open_sender(RATE);
    listen_as(&first, 0);
    join(&first, 7);
    const uint64_t until = ibx_deadline_in_ms(patience);
    while (!count(&first, 512, 1024)) { /* in the second chunk */
        assert_true(ibx_now_ns() < until);
        receive(&first);
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

/* The sender stops in the middle of a chunk when all members have left. */
static void test_bounded_rate(NO_STATE)
{
    struct member m;
    struct ibx_multicast_sender_stats stats;
    const uint64_t rate = 1u << 20, began = ibx_now_ns(), until = ibx_deadline_in_ms(patience);
    open_sender(rate);
    listen_as(&m, 0);
    join(&m, 7);
    while (count(&m, 0, PAGES) < 64) {
        assert_true(ibx_now_ns() < until);
        receive(&m);
    }
    ibx_multicast_sender_stats(sender, &stats);
    const double seconds = (double)(ibx_now_ns() - began) / 1e9;
    /* A batch of four pages may be ahead, plus what is sent in two milliseconds. */
    assert_true((double)stats.bytes <= (double)rate * (seconds + 0.002) + 4 * 4400);
    while (stats.bytes < 64 * PAGE) { /* a batch is counted when all of it has been sent */
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 1);
        ibx_multicast_sender_stats(sender, &stats);
    }
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
    assert_int_equal(sent, all() * page_parts);
    assert_int_equal(stats.packets, sent - sent / 10);
    /* If a datagram is lost, the other parts of its page are useless. */
    assert_int_equal(stats.pages, all() - sent / 10);
    assert_int_equal(m.wrong, 0);
    leave(&m);
}

/* ----------------------------------------------------------------------------- forged datagrams */

static void send_raw(const struct ibx_multicast_group *group, const void *bytes, size_t length)
{
    const struct sockaddr_in *at = (const struct sockaddr_in *)&group->address;
    const struct ip_mreqn by = {.imr_ifindex = (int)if_nametoindex(sends_by)};
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)), 0);
    assert_int_equal(sendto(fd, bytes, length, 0, (const struct sockaddr *)at, sizeof(*at)),
                     length);
    close(fd);
}

static void receive_some(struct member *m, unsigned n)
{
    struct pollfd fd = {.fd = ibx_multicast_receiver_fd(m->receiver), .events = POLLIN};
    while (n) {
        const unsigned came = receive(m);
        assert_true(came || poll(&fd, 1, (int)patience) == 1);
        assert_true(came <= n);
        n -= came;
    }
}

/* Makes the cipher of a member, and that of a stranger with another key. */
static void ciphers_of(const struct ibx_multicast_group *group,
                       struct ibx_multicast_cipher **member, struct ibx_multicast_cipher **other)
{
    struct ibx_multicast_group stranger = *group;
    stranger.key[0] ^= 1;
    *member = ibx_multicast_cipher_create(group, true);
    *other = ibx_multicast_cipher_create(&stranger, true);
}

static void test_forged_datagrams(NO_STATE)
{
    struct member m;
    struct ibx_multicast_receiver_stats stats;
    uint8_t out[IBX_MULTICAST_PACKET + 1] = {0}, page[PAGE];
    open_sender(RATE);
    listen_as(&m, 0);
    const struct ibx_multicast_group group = *ibx_multicast_sender_group(sender);
    struct ibx_multicast_cipher *member, *other;
    ciphers_of(&group, &member, &other);
    /* A datagram without the key, then one in the place of the first part of a page. */
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
    /* A page that a member forges costs a comparison; when it comes again, the right one is
     * accepted. */
    p = (struct ibx_multicast_packet){3, 11, 0, 1};
    n = ibx_multicast_seal(member, &p, page, out);
    send_raw(&group, out, n);
    receive_some(&m, 1);
    p.number = 4;
    n = ibx_multicast_seal(member, &p, memory[11], out);
    send_raw(&group, out, n);
    /* Pages that nobody wants or that do not exist: the holder of the key is counted once for
     * each number, in whatever order the datagrams arrive. */
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
    p.number = 5; /* too old for the receiver to know whether it has come before */
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

/* Over verbs every host has the queue pair's key. A stranger sends one part of a page, then an
 * invalid datagram, before the page itself is sent. */
static void test_datagrams_of_strangers_by_verbs(NO_STATE)
{
    struct member m;
    struct ibx_multicast_receiver_stats stats;
    struct ibx_multicast_out *way;
    open_sender(RATE);
    listen_as(&m, 0);
    const struct ibx_multicast_group group = *ibx_multicast_sender_group(sender);
    struct ibx_multicast_cipher *member, *other;
    ciphers_of(&group, &member, &other);
    if (ibx_multicast_out_open(&group.address, if_nametoindex(sends_by), 1, &way, &error))
        fail_msg("%s", error.message);
    for (unsigned round = 0; round < 3; round++) {
        struct ibx_multicast_packet p = {2 * round, 9, 0, 2};
        uint8_t *at = way->pages[0];
        at += ibx_multicast_seal(member, &p, memory[9], at);
        p.number++;
        p.part = 1;
        ibx_multicast_seal(round ? member : other, &p, memory[9], at);
        if (round == 1) /* in three parts */
            memset(way->pages[0], 0x69, sizeof(way->pages[0]));
        assert_int_equal(way->ops->send(way, 1, round == 1 ? 3 : 2, &error), 0);
        receive_some(&m, round == 1 ? 3 : 2);
        assert_int_equal(m.got[9], round == 2);
    }
    ibx_multicast_receiver_stats(m.receiver, &stats);
    assert_true(stats.strange == 4 && stats.packets == 3 && stats.pages == 1 && !stats.wrong);
    ibx_multicast_out_close(way);
    ibx_multicast_cipher_destroy(member);
    ibx_multicast_cipher_destroy(other);
    leave(&m);
}

static uint32_t crc32_of(const uint8_t *bytes, size_t length)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

#define ROCE_HEADS (20u + 8 + 12 + 8) /* IPv4, UDP, BTH, DETH */
#define ROCE_BYTES 5000u

/* Sends a UD datagram of RoCE v2 to the group that is longer than any port's MTU. */
static void send_too_long(const struct ibx_multicast_group *group)
{
    const size_t udp = 8 + 12 + 8 + ROCE_BYTES + 4, all = 20 + udp;
    uint8_t masked[8 + ROCE_HEADS + ROCE_BYTES], *packet = masked + 8, wire[sizeof(masked)];
    struct sockaddr_in to = *(const struct sockaddr_in *)&group->address;
    struct ibx_writer w = ibx_writer_of(packet, ROCE_HEADS);
    static const uint8_t head[] = {0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 1, IPPROTO_UDP, 0, 0};
    static const uint8_t transport[] = {0x64, 0, 0xff, 0xff, 0,    0xff, 0xff, 0xff, 0, 0,
                                        0,    0, 0x01, 0x23, 0x45, 0x67, 0,    0,    0, 17};
    const in_addr_t own = inet_addr("10.77.0.1");
    memset(masked, 0xff, 8);
    ibx_put_bytes(&w, head, sizeof(head));
    ibx_put_bytes(&w, &own, 4);
    ibx_put_bytes(&w, &to.sin_addr, 4);
    ibx_put_bytes(&w, "\xc0\x00\x12\xb7", 4); /* to port 4791 */
    ibx_put_u8(&w, (uint8_t)(udp >> 8));
    ibx_put_u8(&w, (uint8_t)udp);
    ibx_put_u16(&w, 0);
    ibx_put_bytes(&w, transport, sizeof(transport));
    packet[2] = (uint8_t)(all >> 8);
    packet[3] = (uint8_t)all;
    memset(packet + ROCE_HEADS, 0x69, ROCE_BYTES);
    memcpy(wire, packet, ROCE_HEADS + ROCE_BYTES);
    /* The checksum does not cover fields that a router may change. */
    packet[1] = packet[8] = packet[10] = packet[11] = packet[26] = packet[27] = packet[32] = 0xff;
    const uint32_t crc = ibx_le32(crc32_of(masked, sizeof(masked)));
    memcpy(wire + ROCE_HEADS + ROCE_BYTES, &crc, 4);
    const int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    const struct ip_mreqn by = {.imr_ifindex = (int)if_nametoindex(sends_by)};
    assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof(by)), 0);
    assert_int_equal(sendto(fd, wire, all, 0, (struct sockaddr *)&to, sizeof(to)), all);
    close(fd);
}

/* Soft-RoCE (Linux 6.1) ends a queue pair that gets such a datagram; other devices drop it. The
 * member reports it. */
static void test_datagram_too_long_by_verbs(NO_STATE)
{
    struct member m;
    uint64_t packets;
    int n = 0;
    const uint64_t until = ibx_deadline_in_ms(patience);
    open_sender(RATE);
    listen_as(&m, 0);
    send_too_long(ibx_multicast_sender_group(sender));
    join(&m, 7);
    while (n >= 0 && (count(&m, 0, PAGES) < all() ||
                      ibx_multicast_member_state(m.at, &packets, &error) == 0)) {
        assert_true(ibx_now_ns() < until);
        n = ibx_multicast_receive(m.receiver, &error);
    }
    if (n < 0)
        text_has(error.message, " receives no datagrams any more: ");
    leave(&m);
}

static void test_no_device(NO_STATE)
{
    struct ibx_multicast_out *way;
    struct ibx_multicast_in *in;
    struct sockaddr_storage group;
    ibx_multicast_group_choose("verbs://", false, &group, &error);
    assert_true(ibx_multicast_in_open(&group, if_nametoindex("lo"), &in, &error) < 0);
    text_has(error.message, "no RDMA device has an address of IPv4 of lo");
    assert_true(ibx_multicast_out_open(&group, if_nametoindex("lo"), 1, &way, &error) < 0);
    text_has(error.message, "a --multicast-group without verbs://");
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
    /* The interface does not exist. The member is told, and a later attempt may succeed. */
    assert_int_equal(ibx_multicast_join(sender, 0x7ffffff0, &wanted, wake, &m, &m.at, &error), 0);
    const uint64_t until = ibx_deadline_in_ms(patience);
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

static int run_by_verbs(const char *only)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_members_get_what_they_want, end),
        cmocka_unit_test_teardown(test_late_joiner, end),
        cmocka_unit_test_teardown(test_bounded_rate, end),
        cmocka_unit_test_teardown(test_lost_datagrams_cost_their_pages, end),
        cmocka_unit_test_teardown(test_datagrams_of_strangers_by_verbs, end),
        cmocka_unit_test_teardown(test_datagram_too_long_by_verbs, end),
        cmocka_unit_test(test_no_device),
    };
    sends_by = "veth0";
    hears_by = "veth1";
    group_text = "verbs://";
    page_parts = 2; /* of at most 4096 bytes */
    if (only)
        cmocka_set_test_filter(only);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    patience = patience_ms(20000);
    if (argc > 1 && !strcmp(argv[1], "verbs"))
        return run_by_verbs(argv[2]);
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_members_get_what_they_want, end),
        cmocka_unit_test_teardown(test_late_joiner, end),
        cmocka_unit_test_teardown(test_bounded_rate, end),
        cmocka_unit_test_teardown(test_lost_datagrams_cost_their_pages, end),
        cmocka_unit_test_teardown(test_forged_datagrams, end),
        cmocka_unit_test_teardown(test_what_cannot_be_sent, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
