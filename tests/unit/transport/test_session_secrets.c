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
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define CHUNK    (1u << 20)
#define MAPS_MAX 8192

static struct {
    uint64_t from, to;
} maps[MAPS_MAX];
static unsigned map_count;

/* The mappings that a core dump contains, or all that can be read. Their list changes while they
 * are read, so it is read first. */
static void find_mappings(bool all)
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
        } else if (!strncmp(line, "VmFlags:", 8) && (all || !strstr(line, " dd")) &&
                   strstr(line, " rd")) {
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
    find_mappings(false);
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
    find_mappings(false);
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

/* Whether the bytes whose inverse is `inverse` are in any memory that this process can read. */
static bool memory_has(const uint8_t inverse[IBX_HASH_BYTES])
{
    static uint8_t page[4096];
    int mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    bool found = false;
    find_mappings(true);
    for (unsigned i = 0; i < map_count; i++) {
        if (maps[i].to - maps[i].from > 1ull << 30)
            continue; /* what a sanitizer knows of the memory: it would take hours */
        for (uint64_t at = maps[i].from; at < maps[i].to && !found; at += sizeof(page)) {
            if (pread(mem, page, sizeof(page), (off_t)at) != sizeof(page))
                continue;
            for (size_t from = 0; from + IBX_HASH_BYTES <= sizeof(page) && !found; from++) {
                size_t n = 0;
                while (n < IBX_HASH_BYTES && (page[from + n] ^ inverse[n]) == 0xff)
                    n++;
                found = n == IBX_HASH_BYTES;
            }
        }
    }
    explicit_bzero(page, sizeof(page));
    close(mem);
    return found;
}

/* A GPU kernel of the client may read the memory of the process that serves it. Must run first: a
 * client keeps the keys that it has read. */
static void a_process_that_serves_one_client_has_no_keys(void **state)
{
    (void)state;
    static const uint8_t zeros[sizeof(struct raw)];
    struct handshake_scene s;
    struct raw raw = {0};
    uint8_t inverse[IBX_HASH_BYTES], hash[IBX_HASH_BYTES];
    int ends[2], status;
    handshake_open(&s, true, 10000);
    raw_set_key(&raw);
    for (unsigned i = 0; i < IBX_HASH_BYTES; i++)
        inverse[i] = (uint8_t)~raw.key[i];
    explicit_bzero(&raw, sizeof(raw));
    const struct ibx_piece none = {zeros, 16}; /* OpenSSL leaves traces of what it hashes */
    ibx_hash(&none, 1, hash);
    assert_true(memory_has(inverse));
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (!child) {
        ibx_listener_take_from(s.listener, ends[0]);
        _exit(memory_has(inverse));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(ends[0]);
    close(ends[1]);
    handshake_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_serves_one_client_has_no_keys),
        cmocka_unit_test(keys_are_in_no_dump),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
