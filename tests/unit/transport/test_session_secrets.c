/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A core dump of a process that has an encrypted connection does not contain the connection's
 * keys. */
#include "tests/fixtures/handshake_scene.h"
#include "tests/fixtures/patience.h"
#include "transport/core/conn.h"
#include "transport/core/tls_state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define CHUNK    (1u << 20)
#define MAPS_MAX 8192

static struct {
    uint64_t from, to;
} maps[MAPS_MAX];
static unsigned map_count;

/* The mappings that a core dump contains. Their list changes while they are read, so it is read
 * first. */
static void find_mappings(void)
{
    char line[512];
    uint64_t from = 0, to = 0, a, b;
    FILE *file = fopen("/proc/self/smaps", "re");
    assert_non_null(file);
    map_count = 0;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &a, &b) == 2) {
            from = a;
            to = b;
        } else if (!strncmp(line, "VmFlags:", 8) && !strstr(line, " dd") && strstr(line, " rd")) {
            assert_true(map_count < MAPS_MAX);
            maps[map_count].from = from;
            maps[map_count++].to = to;
        }
    }
    fclose(file);
}

/* `wanted` and the buffer lie in memory that is in no dump; otherwise they would be found
 * themselves. */
static bool dump_has(const uint8_t wanted[IBX_HASH_BYTES])
{
    uint8_t *chunk = ibx_secret_allocate(CHUNK);
    int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    bool found = false;
    assert_non_null(chunk);
    assert_true(mem >= 0);
    find_mappings();
    for (unsigned i = 0; i < map_count && !found; i++) {
        uint64_t at = maps[i].from;
        while (at < maps[i].to && !found) {
            uint64_t left = maps[i].to - at;
            ssize_t n = pread(mem, chunk, left < CHUNK ? left : CHUNK, (off_t)at);
            if (n <= 0)
                break;
            found = memmem(chunk, (size_t)n, wanted, IBX_HASH_BYTES) != NULL;
            /* parts overlap: a key may lie across their border */
            at += at + (uint64_t)n < maps[i].to ? (uint64_t)n - IBX_HASH_BYTES : (uint64_t)n;
        }
    }
    close(mem);
    ibx_secret_free(chunk);
    return found;
}

/* Whether this memory is in a core dump. */
static bool is_dumped(const void *memory)
{
    const uint64_t at = (uintptr_t)memory;
    bool found = false;
    find_mappings();
    for (unsigned i = 0; i < map_count; i++)
        found |= at >= maps[i].from && at < maps[i].to;
    return found;
}

struct server {
    struct ibx_listener *listener;
    struct ibx_conn *conn;
};

static void *server_main(void *argument)
{
    struct server *server = argument;
    struct pollfd wait = {.fd = ibx_listener_fd(server->listener), .events = POLLIN};
    while (!server->conn && poll(&wait, 1, (int)patience_ms(20000)) == 1)
        if (!ibx_accept(server->listener, &server->conn, NULL))
            assert_int_equal(ibx_establish(server->conn, NULL), 0);
    return NULL;
}

static void keys_are_in_no_dump(void **state)
{
    (void)state;
    struct handshake_scene s;
    struct server server = {0};
    struct ibx_conn *client;
    struct ibx_error err = {0};
    pthread_t thread;
    handshake_open(&s, true, 10000);
    s.options.encryption = IBX_ENCRYPTION_REQUIRED;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &s.options, &server.listener, &err), 0);
    pthread_create(&thread, NULL, server_main, &server);
    if (ibx_connect(ibx_listener_uri(server.listener), &s.options, &client, &err))
        fail_msg("%s", err.message);
    pthread_join(thread, NULL);
    assert_non_null(server.conn);
    assert_non_null(client->tls);

    const struct ibx_conn *const ends[2] = {client, server.conn};
    for (unsigned i = 0; i < 2; i++) {
        assert_false(dump_has(ends[i]->session_key));
        /* OpenSSL may leave copies in memory that it has freed. */
        assert_false(is_dumped(ends[i]->tls->out.secret));
        assert_false(is_dumped(ends[i]->tls->in.secret));
    }
    uint8_t *copy = malloc(IBX_HASH_BYTES); /* shows that this test would find a key */
    memcpy(copy, client->session_key, IBX_HASH_BYTES);
    assert_true(dump_has(client->session_key) && is_dumped(copy));
    OPENSSL_cleanse(copy, IBX_HASH_BYTES);
    free(copy);

    ibx_close(client);
    ibx_close(server.conn);
    ibx_listener_close(server.listener);
    handshake_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_in_no_dump),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
