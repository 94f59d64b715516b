/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/raw_handshake.h"
#include "tests/scenes/patience.h"

#include "common/log.h"
#include "common/wire.h"
#include "transport/core/crypto.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

/* In hex, as in the file, and the bytes that the digits stand for. */
#define KEY_HEX     "61206b6579206f662074686573652074657374732c2033322062797465732e2e"
#define KEY         "a key of these tests, 32 bytes.."
#define PATIENCE_MS ((int)patience_ms(60000)) /* for an answer of the code under test */

static struct sockaddr_in address_of(const char *host, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    return address;
}

static void begin(struct raw *raw)
{
    raw->flags = RAW_SAME_HOST;
    raw->name = raw->purpose = "";
    raw->encryption = 1;
    assert_int_equal(ibx_random(raw->client ? raw->client_nonce : raw->server_nonce, 32, NULL), 0);
    assert_int_equal(ibx_exchange_create(&raw->exchange, raw->own_public, NULL), 0);
}

struct raw raw_connect(uint16_t port, const char *from, const char *to)
{
    struct raw raw = {.client = true};
    struct sockaddr_in here = address_of(from, 0), there = address_of(to, port);
    raw.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(raw.fd, (struct sockaddr *)&here, sizeof(here)), 0);
    assert_int_equal(connect(raw.fd, (struct sockaddr *)&there, sizeof(there)), 0);
    begin(&raw);
    return raw;
}

int raw_listen(uint16_t *port)
{
    struct sockaddr_in address = address_of("127.0.0.1", 0);
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void wait_readable(int fd)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, PATIENCE_MS), 1);
}

struct raw raw_accept(int listening)
{
    struct raw raw = {.client = false};
    wait_readable(listening);
    raw.fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    assert_true(raw.fd >= 0);
    begin(&raw);
    return raw;
}

void raw_close(struct raw *raw)
{
    close(raw->fd);
    raw->fd = -1;
    ibx_exchange_destroy(raw->exchange);
    raw->exchange = NULL;
}

/* ------------------------------------------------------------------------- frames */

static void transcribe(struct raw *raw, const uint8_t *bytes, size_t length)
{
    struct ibx_piece pieces[2] = {{raw->transcript, RAW_HASH}, {bytes, length}};
    ibx_hash(pieces, 2, raw->transcript);
}

/* HMAC(session key, "frame " | 1 from a client, 0 from a server | u64 number | frame) */
static void mac_of(const struct raw *raw, bool from_client, uint64_t number, const uint8_t *bytes,
                   size_t length, uint8_t mac[RAW_HASH])
{
    uint8_t head[15] = "frame ";
    head[6] = from_client;
    for (int i = 0; i < 8; i++)
        head[7 + i] = (uint8_t)(number >> 8 * i);
    struct ibx_piece pieces[2] = {{head, sizeof(head)}, {bytes, length}};
    ibx_hmac(raw->session, pieces, 2, mac);
}

void raw_frame_make(struct raw *raw, struct raw_frame *frame, uint8_t type, const void *payload,
                    size_t length)
{
    size_t body = 1 + length + (raw->authenticated ? RAW_MAC : 0);
    for (int i = 0; i < 4; i++)
        frame->bytes[i] = (uint8_t)(body >> 8 * i);
    frame->bytes[4] = type;
    if (length)
        memcpy(frame->bytes + 5, payload, length);
    frame->length = 4 + body;
    if (raw->authenticated) {
        uint8_t mac[RAW_HASH];
        mac_of(raw, raw->client, raw->sent, frame->bytes, 5 + length, mac);
        memcpy(frame->bytes + 5 + length, mac, RAW_MAC);
    } else {
        transcribe(raw, frame->bytes, frame->length);
    }
    raw->sent++;
}

void raw_send(struct raw *raw, const void *bytes, size_t length)
{
    /* The other side may have closed already: that is for the test to see. */
    for (size_t at = 0; at < length;) {
        ssize_t n = send(raw->fd, (const char *)bytes + at, length - at, MSG_NOSIGNAL);
        if (n < 0)
            return;
        at += (size_t)n;
    }
}

void raw_send_frame(struct raw *raw, uint8_t type, const void *payload, size_t length)
{
    struct raw_frame frame;
    raw_frame_make(raw, &frame, type, payload, length);
    raw_send(raw, frame.bytes, frame.length);
}

static bool hear_bytes(struct raw *raw, uint8_t *out, size_t length)
{
    for (size_t at = 0; at < length;) {
        wait_readable(raw->fd);
        ssize_t n = recv(raw->fd, out + at, length - at, 0);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

bool raw_receive(struct raw *raw, struct raw_frame *frame)
{
    if (!hear_bytes(raw, frame->bytes, 4))
        return false;
    size_t body = 0;
    for (int i = 0; i < 4; i++)
        body |= (size_t)frame->bytes[i] << 8 * i;
    assert_in_range(body, 1, RAW_FRAME - 4);
    if (!hear_bytes(raw, frame->bytes + 4, body))
        return false;
    frame->length = 4 + body;
    frame->type = frame->bytes[4];
    frame->payload = frame->bytes + 5;
    frame->payload_length = body - 1;
    if (raw->authenticated) {
        uint8_t mac[RAW_HASH];
        assert_true(body >= 1 + RAW_MAC);
        frame->payload_length -= RAW_MAC;
        mac_of(raw, !raw->client, raw->received, frame->bytes, frame->length - RAW_MAC, mac);
        assert_memory_equal(frame->bytes + frame->length - RAW_MAC, mac, RAW_MAC);
    } else {
        transcribe(raw, frame->bytes, frame->length);
    }
    raw->received++;
    return true;
}

void raw_expect(struct raw *raw, uint8_t type, struct raw_frame *frame)
{
    assert_true(raw_receive(raw, frame));
    assert_int_equal(frame->type, type);
}

bool raw_receives_end(struct raw *raw)
{
    uint8_t byte;
    return !hear_bytes(raw, &byte, 1);
}

/* -------------------------------------------------------------------------- scenes */

char raw_key_file[64];

int raw_make_key(void **state)
{
    (void)state;
    ibx_log_set_level(IBX_LOG_ERROR);
    snprintf(raw_key_file, sizeof(raw_key_file), "/tmp/ibx_test_door.XXXXXX");
    int fd = mkstemp(raw_key_file);
    return fd < 0 || write(fd, KEY_HEX, strlen(KEY_HEX)) < 0 || close(fd);
}

int raw_remove_key(void **state)
{
    (void)state;
    return unlink(raw_key_file);
}

void raw_set_key(struct raw *raw)
{
    struct ibx_piece piece = {KEY, strlen(KEY)};
    ibx_hash(&piece, 1, raw->key);
}

/* ----------------------------------------------------------------------- payloads */

size_t raw_opening(const struct raw *raw, uint8_t *out, bool has_key)
{
    struct ibx_writer w = ibx_writer_of(out, 300);
    ibx_put_bytes(&w, "IBXD", 4);
    ibx_put_u16(&w, 2);
    ibx_put_u8(&w, has_key);
    ibx_put_bytes(&w, raw->client ? raw->client_nonce : raw->server_nonce, 32);
    ibx_put_bytes(&w, raw->own_public, 32);
    ibx_put_u8(&w, raw->encryption);
    ibx_put_u32(&w, 16);
    ibx_put_u64(&w, 16384);
    assert_int_equal(w.length, RAW_OPENING);
    if (raw->client) {
        ibx_put_string(&w, raw->name);
        ibx_put_string(&w, raw->purpose);
    } else {
        ibx_put_u8(&w, 1); /* the client is on this host */
    }
    return w.length;
}

void raw_take_opening(struct raw *raw, const struct raw_frame *frame)
{
    assert_true(frame->payload_length >= RAW_OPENING);
    memcpy(raw->client ? raw->server_nonce : raw->client_nonce, frame->payload + 7, 32);
    memcpy(raw->peer_public, frame->payload + 39, 32);
}

void raw_host_mark(const struct raw *raw, uint8_t mark[RAW_HASH])
{
    char boot[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, boot, sizeof(boot));
    close(fd);
    struct ibx_piece pieces[4] = {
        {"host ", 5}, {boot, (size_t)n}, {raw->client_nonce, 32}, {raw->server_nonce, 32}};
    ibx_hash(pieces, 4, mark);
}

void raw_end_mark(const struct raw *raw, int fd, uint8_t mark[RAW_HASH])
{
    struct stat status = {0};
    uint8_t number[8];
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd); /* which another thread may be closing */
    if (stat(path, &status))
        status.st_ino = 0;
    for (unsigned i = 0; i < 8; i++)
        number[i] = (uint8_t)((uint64_t)status.st_ino >> 8 * i);
    struct ibx_piece pieces[4] = {
        {"end ", 4}, {number, 8}, {raw->client_nonce, 32}, {raw->server_nonce, 32}};
    ibx_hash(pieces, 4, mark);
}

/* HKDF of RFC 5869 by hand: PRK = HMAC(transcript, key | X25519 secret), then its first block for
 * the label and the client's flags. */
static void derive_one(const struct raw *raw, const char *label, uint8_t out[RAW_HASH])
{
    uint8_t secret[RAW_HASH], prk[RAW_HASH], one = 1;
    assert_int_equal(ibx_exchange_secret(raw->exchange, raw->peer_public, secret, NULL), 0);
    struct ibx_piece input[2] = {{raw->key, RAW_HASH}, {secret, RAW_HASH}};
    ibx_hmac(raw->transcript, input, 2, prk);
    struct ibx_piece pieces[3] = {{label, strlen(label)}, {&raw->flags, 1}, {&one, 1}};
    ibx_hmac(prk, pieces, 3, out);
}

void raw_derive(struct raw *raw, uint8_t client[RAW_HASH], uint8_t server[RAW_HASH])
{
    derive_one(raw, "ibx client ", client);
    derive_one(raw, "ibx server ", server);
    derive_one(raw, "ibx session ", raw->session);
}

size_t raw_proof(const struct raw *raw, const uint8_t proof[RAW_HASH], uint8_t *out)
{
    out[0] = raw->flags;
    memcpy(out + 1, proof, RAW_HASH);
    return 1 + RAW_HASH;
}

void raw_send_proof(struct raw *raw, const uint8_t proof[RAW_HASH])
{
    uint8_t payload[1 + RAW_HASH];
    raw_send_frame(raw, PROOF, payload, raw_proof(raw, proof, payload));
}

size_t raw_string(uint8_t *out, const char *text)
{
    struct ibx_writer w = ibx_writer_of(out, 1000);
    ibx_put_string(&w, text);
    return w.length;
}

size_t raw_result(uint8_t *out, int32_t code, const char *reason)
{
    struct ibx_writer w = ibx_writer_of(out, 1000);
    ibx_put_u32(&w, (uint32_t)code);
    ibx_put_string(&w, reason);
    return w.length;
}
