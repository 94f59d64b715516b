/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An attacker between two ends that have a key, on a path that does not encrypt. A relay between
 * the receiver's provider and core changes, drops, repeats, swaps, shortens, lengthens, invents
 * and sends back messages. The receiver never accepts a message that is not the sender's next
 * one, and the connection ends with -EBADMSG.
 *
 * Over shm one test writes to the shared memory itself. */
#include "common/clock.h"
#include "tests/fixtures/memory_pair.h"
#include "tests/fixtures/patience.h"
#include "transport/core/conn.h"
#include "transport/shm/shm.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FLIPS    500u
#define SENT     8u   /* messages of a session */
#define WORDS    300u /* bytes of the longest */
#define PATIENCE patience_ms(5000)

static const char *provider = "shm";
static char key_file[] = "/tmp/ibx-test-key-XXXXXX";
static bool with_key = true;
static enum ibx_encryption encryption = IBX_ENCRYPTION_OFF;

/* ------------------------------------------------------------------------- the relay */

enum attack { NONE, FLIP, DROP, REPEAT, SWAP, CUT, LENGTHEN, INVENT, TURN_ROUND, LATE };

static struct {
    enum attack attack;
    unsigned at;   /* the message that is attacked */
    size_t offset; /* of the byte that is flipped */
    unsigned seen; /* messages so far */
    bool done;     /* the attack has been made */
    const struct ibx_upcalls *core;
    uint8_t bytes[SENT][WORDS + 64];
    size_t lengths[SENT];
    uint64_t slots[SENT];
    uint8_t ours[WORDS + 64]; /* a message that the receiver has sent itself */
    size_t ours_length;
} relay;

static void pass(struct ibx_link *link, unsigned which)
{
    relay.core->message(link, relay.bytes[which], relay.lengths[which], relay.slots[which]);
}

static void attack(struct ibx_link *link, unsigned i)
{
    uint8_t forged[WORDS + 64] = {0};
    relay.done = true;
    switch (relay.attack) {
    case FLIP:
        relay.bytes[i][relay.offset % relay.lengths[i]] ^= 0x20;
        break;
    case DROP:
        return;
    case REPEAT:
        pass(link, i);
        break;
    case SWAP: /* this one goes after the next */
        relay.done = false;
        return;
    case CUT:
        relay.lengths[i]--;
        break;
    case LENGTHEN:
        relay.lengths[i]++;
        break;
    case INVENT:
        relay.core->message(link, forged, 40, relay.slots[i]);
        break;
    case TURN_ROUND:
        relay.core->message(link, relay.ours, relay.ours_length, relay.slots[i]);
        break;
    case LATE: /* an old one in the place of this one */
        pass(link, 0);
        return;
    case NONE:
        break;
    }
    pass(link, i);
}

static void relay_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    unsigned i = relay.seen++;
    assert_true(i < SENT && length <= WORDS + 32);
    memset(relay.bytes[i], 0, sizeof(relay.bytes[i]));
    memcpy(relay.bytes[i], data, length);
    relay.lengths[i] = length;
    relay.slots[i] = slot;
    if (relay.attack == SWAP && i == relay.at + 1 && !relay.done) {
        relay.done = true;
        pass(link, i);
        pass(link, i - 1);
    } else if (relay.attack != NONE && i == relay.at) {
        attack(link, i);
    } else {
        pass(link, i);
    }
}

static void relay_attach(struct ibx_conn *receiver)
{
    static struct ibx_upcalls between;
    relay.core = receiver->link.up;
    between = *receiver->link.up;
    between.message = relay_message;
    receiver->link.up = &between;
}

/* ---------------------------------------------------------------------- the session */

static struct memory_pair pair;

static void open_pair(const char *key)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    snprintf(options.provider, sizeof(options.provider), "%s", provider);
    if (!strcmp(provider, "ofi"))
        snprintf(options.ofi_provider, sizeof(options.ofi_provider), "tcp");
    snprintf(options.key_file, sizeof(options.key_file), "%s", key);
    options.encryption = encryption;
    options.spin_us = 0;
    if (memory_pair_open(&pair, &options, &err))
        fail_msg("%s", err.message);
}

/* Makes message number i. Lengths differ, and no other message has these bytes. */
static size_t words(unsigned i, uint8_t *out)
{
    size_t n = i % 3 ? 10 + 7 * i : WORDS - i;
    for (size_t k = 0; k < n; k++)
        out[k] = (uint8_t)(i * 31 + k);
    return n;
}

static void send_one(struct ibx_conn *conn, unsigned i)
{
    uint8_t bytes[WORDS];
    size_t n = words(i, bytes);
    struct iovec iov[2] = {{bytes, n / 3}, {bytes + n / 3, n - n / 3}};
    int rc = ibx_send(conn, iov, 2, 0, 0);
    assert_true(rc == 0 || rc == -ENOTCONN);
}

/* The result at the receiver's end. */
struct outcome {
    unsigned taken; /* messages, all of them right and in order */
    int status;     /* of the end; 0: not ended */
};

/* Takes events until there are no more. Every message must be the sender's next one. */
static struct outcome receive(struct ibx_conn *receiver, struct ibx_conn *sender, unsigned expected)
{
    struct outcome o = {0};
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE);
    while (!o.status && o.taken < expected && ibx_now_ns() < deadline) {
        struct ibx_event event, other;
        uint8_t right[WORDS];
        ibx_poll(sender, &other, 1);
        if (ibx_poll(receiver, &event, 1) != 1)
            continue;
        if (event.type == IBX_EVENT_CLOSED) {
            o.status = event.status;
            break;
        }
        assert_int_equal(event.type, IBX_EVENT_MESSAGE);
        size_t n = words(o.taken, right);
        assert_int_equal(event.length, n);
        assert_memory_equal(event.data, right, n);
        o.taken++;
        ibx_message_release(receiver, &event);
    }
    return o;
}

/* The receiver sends a message too, so that the relay knows one of the other direction. */
static void note_ours(struct ibx_conn *receiver)
{
    uint8_t bytes[WORDS];
    struct iovec iov = {bytes, words(0, bytes)};
    memcpy(relay.ours, bytes, iov.iov_len);
    relay.ours_length = iov.iov_len + IBX_MAC_BYTES;
    if (receiver->mac)
        assert_int_equal(ibx_mac_make(receiver->mac, bytes, iov.iov_len, relay.ours + iov.iov_len),
                         0);
    assert_int_equal(ibx_send(receiver, &iov, 1, 0, 0), 0);
}

static struct outcome session(enum attack what, unsigned at, size_t offset, bool to_server)
{
    open_pair(with_key ? key_file : "");
    struct ibx_conn *receiver = to_server ? pair.server : pair.client;
    struct ibx_conn *sender = to_server ? pair.client : pair.server;
    memset(&relay, 0, sizeof(relay));
    relay.attack = what;
    relay.at = at;
    relay.offset = offset;
    note_ours(receiver);
    relay_attach(receiver);
    for (unsigned i = 0; i < SENT; i++)
        send_one(sender, i);
    struct outcome o = receive(receiver, sender, SENT);
    if (o.status == -EBADMSG)
        assert_non_null(strstr(ibx_conn_reason(receiver), "changed on its way"));
    memory_pair_close(&pair);
    return o;
}

/* ------------------------------------------------------------------------- tests */

static void test_untouched(void **state)
{
    (void)state;
    struct outcome o = session(NONE, 0, 0, true);
    assert_true(o.taken == SENT && !o.status);
}

static void test_attacks(void **state)
{
    (void)state;
    for (enum attack what = FLIP; what <= LATE; what++) {
        for (unsigned at = what == LATE; at < SENT - 1; at += 3) {
            struct outcome o = session(what, at, 3, at % 2);
            unsigned good = what == REPEAT ? at + 1 : at;
            if (o.taken != good || o.status != -EBADMSG)
                fail_msg("attack %d on message %u: %u taken, status %d", (int)what, at, o.taken,
                         o.status);
        }
    }
}

/* That the last message is missing cannot be detected: the connection continues, and then ends. */
static void test_the_last_one_is_dropped(void **state)
{
    (void)state;
    open_pair(key_file);
    memset(&relay, 0, sizeof(relay));
    relay.attack = DROP;
    relay.at = SENT - 1;
    relay_attach(pair.server);
    for (unsigned i = 0; i < SENT; i++)
        send_one(pair.client, i);
    assert_int_equal(receive(pair.server, pair.client, SENT - 1).taken, SENT - 1);
    ibx_close(pair.client);
    pair.client = NULL;
    struct ibx_event event = {0};
    while (ibx_poll(pair.server, &event, 1) != 1)
        ibx_wait(pair.server, 100);
    assert_int_equal(event.type, IBX_EVENT_CLOSED);
    assert_int_not_equal(event.status, 0);
    memory_pair_close(&pair);
}

static void test_no_changed_byte_is_taken(void **state)
{
    (void)state;
    unsigned flips = strcmp(provider, "ofi") ? FLIPS : 10;
    srand(1);
    for (unsigned i = 0; i < flips; i++) {
        unsigned at = (unsigned)rand() % SENT;
        struct outcome o = session(FLIP, at, (size_t)rand(), i % 2);
        assert_int_equal(o.taken, at);
        assert_int_equal(o.status, -EBADMSG);
    }
}

/* A process that has access to the segment writes to it after the sender and before the receiver
 * looks. */
static void test_the_segment_is_written_to(void **state)
{
    (void)state;
    if (strcmp(provider, "shm"))
        skip();
    for (unsigned i = 0; i < 40; i++) {
        uint8_t bytes[WORDS] = {0};
        bool inside = i % 2; /* its command, or a separate buffer */
        struct iovec iov = {bytes, inside ? 20 : WORDS};
        open_pair(key_file);
        assert_int_equal(ibx_send(pair.client, &iov, 1, 0, 0), 0);
        struct shm *shm = pair.server->endpoint;
        uint8_t *at = inside ? shm->theirs.commands[0].data : shm->theirs.messages;
        if (i < 2)
            shm->theirs.commands[0].length--;
        else
            at[i * 13 % iov.iov_len] ^= 1;
        struct outcome o = receive(pair.server, pair.client, 1);
        assert_int_equal(o.taken, 0);
        assert_int_equal(o.status, -EBADMSG);
        memory_pair_close(&pair);
    }
}

/* A forked child has its parent's keys. A message of the child's would have a number, and so a
 * key or a nonce, that a message of the parent's has too. With two messages under one such key,
 * an eavesdropper could forge others. */
static void forked_child_uses(struct ibx_conn *conn)
{
    struct ibx_event event;
    uint8_t byte = 0;
    struct iovec iov = {&byte, 1};
    struct ibx_remote remote = {.address = 4096, .length = 1};
    struct ibx_span span = ibx_span_host(&byte, 1);
    struct ibx_mr *mr = NULL;
    const bool refused =
        ibx_send(conn, &iov, 1, 0, 0) == -ENOTCONN && ibx_poll(conn, &event, 1) == -ENOTCONN &&
        ibx_mr_register(conn, &span, IBX_ACCESS_LOCAL, &mr, NULL) == -ENOTCONN &&
        ibx_read(conn, mr, &byte, &remote, 0, 1, 0, 0) == -ENOTCONN && ibx_wait(conn, -1) == 1 &&
        ibx_conn_over(conn) && ibx_wait_watch(conn, STDIN_FILENO) == -ENOTCONN;
    ibx_wake(conn);
    ibx_close(conn);
    _exit(refused ? 0 : 1);
}

static void test_a_forked_child_sends_nothing(void **state)
{
    (void)state;
    for (unsigned encrypted = 0; encrypted < 2; encrypted++) {
        int status = -1;
        if (encrypted && strcmp(provider, "tcp"))
            continue;
        encryption = encrypted ? IBX_ENCRYPTION_REQUIRED : IBX_ENCRYPTION_OFF;
        open_pair(key_file);
        send_one(pair.client, 0);
        const pid_t child = fork();
        if (!child)
            forked_child_uses(pair.client);
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_int_not_equal(ibx_wait(pair.client, 0), -EINTR);
        for (unsigned i = 1; i < 4; i++)
            send_one(pair.client, i);
        const struct outcome o = receive(pair.server, pair.client, 4);
        assert_int_equal(o.status, 0);
        assert_int_equal(o.taken, 4);
        assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
        memory_pair_close(&pair);
    }
    encryption = IBX_ENCRYPTION_OFF;
}

/* Shows that the relay works: without a key all messages are accepted. */
static void test_the_relay_works(void **state)
{
    (void)state;
    with_key = false;
    for (unsigned i = 0; i < 2; i++) {
        open_pair("");
        memset(&relay, 0, sizeof(relay));
        relay.attack = i ? DROP : REPEAT;
        relay_attach(pair.server);
        for (unsigned k = 0; k < 4; k++)
            send_one(pair.client, k);
        unsigned taken = 0, expected = i ? 3 : 5;
        uint64_t deadline = ibx_deadline_in_ms(PATIENCE);
        struct ibx_event event;
        while (taken < expected && ibx_now_ns() < deadline) {
            ibx_poll(pair.client, &event, 1);
            if (ibx_poll(pair.server, &event, 1) != 1)
                continue;
            assert_int_equal(event.type, IBX_EVENT_MESSAGE);
            taken++;
        }
        assert_int_equal(taken, expected);
        memory_pair_close(&pair);
    }
    with_key = true;
}

static int setup(void **state)
{
    (void)state;
    static const char hex[] = "5ca1ab1e0ddba11c0ffee0decade0123456789abcdef0123456789abcdef0011\n";
    int fd = mkstemp(key_file);
    if (fd < 0 || write(fd, hex, sizeof(hex) - 1) != sizeof(hex) - 1)
        return -1;
    close(fd);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(key_file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        provider = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_relay_works),
        cmocka_unit_test(test_untouched),
        cmocka_unit_test(test_attacks),
        cmocka_unit_test(test_the_last_one_is_dropped),
        cmocka_unit_test(test_no_changed_byte_is_taken),
        cmocka_unit_test(test_the_segment_is_written_to),
        cmocka_unit_test(test_a_forked_child_sends_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
