/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A handshake on either side that receives anything ends in an error with a message, or in a
 * connection that closes in order, and leaks nothing.
 *
 *   first byte   bit 0: this side is the client; bit 1: it has a key; bit 2: "shm" fails
 *   the rest     what the peer sends, byte by byte
 *
 * Random numbers, hashes, MACs and secrets are all zero here, so that inputs get beyond the
 * proofs. Offers may name the wire of the fabric inside the process, which has the number 1. */
#include "tests/fixtures/memory_provider.h"
#include "tests/fuzz/require.h"

#include "common/log.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static bool with_key;
static struct ibx_options options;
static int next_socket; /* the socket that ibx_connect() returns next */

/* ------------------------------------------------------- in place of crypto.c, key_file.c,
 * connect.c */

static const struct ibx_key zeros = {.name = ""};

int ibx_keys_load(const char *path, struct ibx_keys **keys, struct ibx_error *err)
{
    (void)path;
    (void)err;
    *keys = NULL;
    return 0;
}

int ibx_keys_load_as_client(const char *path, struct ibx_keys **out, struct ibx_error *err)
{
    return ibx_keys_load(path, out, err);
}

int ibx_keys_own(const struct ibx_keys *keys, const struct ibx_options *o,
                 const struct ibx_key **key, struct ibx_error *err)
{
    (void)keys;
    (void)o;
    (void)err;
    *key = with_key ? &zeros : NULL;
    return 0;
}

const struct ibx_key *ibx_keys_find(const struct ibx_keys *keys, const char *name)
{
    (void)keys;
    return strcmp(name, "nobody") ? &zeros : NULL;
}

const struct ibx_key *ibx_keys_nobodys(const struct ibx_keys *keys)
{
    static const struct ibx_key nobodys = {.bytes = {1}};
    (void)keys;
    return &nobodys;
}

int ibx_keys_check_allowed(const struct ibx_keys *keys, const struct ibx_options *o,
                           struct ibx_error *err)
{
    (void)keys;
    (void)o;
    (void)err;
    return 0;
}

bool ibx_key_name_valid(const char *name, size_t length)
{
    return name[0] != ' ' && length;
}

struct ibx_keys *ibx_keys_hold(struct ibx_keys *keys)
{
    return keys;
}

void ibx_keys_release(struct ibx_keys *keys)
{
    (void)keys;
}

void ibx_hash(const struct ibx_piece *pieces, int count, uint8_t out[IBX_HASH_BYTES])
{
    (void)pieces;
    (void)count;
    memset(out, 0, IBX_HASH_BYTES);
}

void ibx_hmac(const uint8_t key[IBX_HASH_BYTES], const struct ibx_piece *pieces, int count,
              uint8_t out[IBX_HASH_BYTES])
{
    (void)key;
    ibx_hash(pieces, count, out);
}

void ibx_hkdf(const struct ibx_piece *secret, const struct ibx_piece *salt,
              const struct ibx_piece *info, uint8_t out[IBX_HASH_BYTES])
{
    (void)secret;
    (void)salt;
    (void)info;
    memset(out, 0, IBX_HASH_BYTES);
}

bool ibx_crypto_lacked(void)
{
    return false;
}

int ibx_exchange_create(struct ibx_exchange **exchange, uint8_t ours[IBX_PUBLIC_BYTES],
                        struct ibx_error *err)
{
    (void)err;
    *exchange = NULL;
    memset(ours, 0, IBX_PUBLIC_BYTES);
    return 0;
}

int ibx_exchange_hold(struct ibx_exchange *exchange, struct ibx_error *err)
{
    (void)exchange;
    (void)err;
    return 0;
}

/* A public key that starts with 1 is of low order. */
int ibx_exchange_secret(struct ibx_exchange *exchange, const uint8_t theirs[IBX_PUBLIC_BYTES],
                        uint8_t secret[IBX_HASH_BYTES], struct ibx_error *err)
{
    (void)exchange;
    memset(secret, 0, IBX_HASH_BYTES);
    return theirs[0] == 1 ? ibx_error_set(err, -EPROTO, "its public key is of low order") : 0;
}

void ibx_exchange_destroy(struct ibx_exchange *exchange)
{
    (void)exchange;
}

bool ibx_hash_equal(const uint8_t a[IBX_HASH_BYTES], const uint8_t b[IBX_HASH_BYTES])
{
    return !memcmp(a, b, IBX_HASH_BYTES);
}

int ibx_random(void *out, size_t length, struct ibx_error *err)
{
    (void)err;
    memset(out, 0, length);
    return 0;
}

void ibx_handshake_peer_name(int fd, char *out, size_t size)
{
    (void)fd;
    snprintf(out, size, "the fuzzer");
}

int ibx_handshake_connect(const struct ibx_uri *uri, const struct ibx_lookup *lookup,
                          unsigned timeout_ms, bool (*ends)(void), int *fd, unsigned *hosts,
                          struct ibx_error *err)
{
    (void)uri;
    (void)lookup;
    (void)timeout_ms;
    (void)ends;
    (void)err;
    *fd = next_socket;
    *hosts = 1;
    return 0;
}

/* -------------------------------------------------------------------------- the test */

/* The peer has closed already, so the end comes by itself. */
static void live_and_die(struct ibx_conn *conn)
{
    struct ibx_event event = {.type = IBX_EVENT_MESSAGE};
    require(ibx_conn_path(conn)->provider[0]);
    while (event.type != IBX_EVENT_CLOSED) {
        require(ibx_wait(conn, 10000) == 1);
        require(ibx_poll(conn, &event, 1) == 1);
    }
    require(ibx_conn_reason(conn)[0]);
}

static void run(bool client, int socket)
{
    struct ibx_error err = {0};
    struct ibx_conn *conn = NULL;
    int rc;
    if (client) {
        next_socket = socket;
        rc = ibx_connect("rdma://fuzzer:1", &options, &conn, &err);
        require((rc == 0) == (conn != NULL));
    } else {
        struct ibx_handshake *h = ibx_handshake_create(
            socket, IBX_ROLE_SERVER, &options, with_key ? (struct ibx_keys *)&zeros : NULL, NULL);
        require(h);
        struct ibx_turn turn = {0};
        conn = h->conn;
        do
            rc = ibx_handshake_turn(h, &turn, &err);
        while (rc == -EAGAIN && turn.phase == IBX_TURN_WAITS);
        require(rc != -EAGAIN); /* the peer has sent everything, and has room */
        if (!rc)
            rc = ibx_establish(conn, &err);
    }
    if (rc)
        require(rc < 0 && err.code < 0 && err.message[0] && !strchr(err.message, '\n'));
    else
        live_and_die(conn);
    ibx_close(conn);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    ibx_options_init(&options);
    options.timeout_ms = 5000;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    if (!size || size > 1 << 16) /* as much as a socket holds without a reader */
        return 0;
    memory_control_reset();
    with_key = data[0] & 2;
    if (data[0] & 4)
        memory_control.fail_finish = -ENODEV;
    require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
    require(send(ends[1], data + 1, size - 1, MSG_NOSIGNAL) == (ssize_t)size - 1);
    shutdown(ends[1], SHUT_WR);
    memory_wire_make(1);
    run(data[0] & 1, ends[0]);
    memory_wire_drop(1);
    close(ends[1]);
    require(!memory_live_endpoints() && !memory_live_regions());
    return 0;
}
