/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client whose session continues, and a relay between it and its server that has no key. It
 * changes one byte of each of the first connections that are to continue the session, behind the
 * server's proof. That proves nothing, and the session goes on over the next connection. */
#include "tests/fixtures/must.h"
#include "tests/fixtures/relayed_connect.h"
#include "tests/fixtures/resume_scene.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define KEY    "alice:00112233445566778899aabbccddeeff\n"
#define SPOILT 2u /* connections, after the first one */

/* What the server sends: CHALLENGE and PROOF, and then, encrypted or not, what is changed. */
#define FRAMES      2u
#define FRAME_HEAD  4u
#define RECORD_HEAD 5u /* of TLS */

/* Which byte behind the server's proof is changed. */
enum place { SEALED = -1, RECORD_TYPE, LENGTH, FRAME_TYPE = FRAME_HEAD };

static enum place place;
static const char *encryption;
static atomic_uint connections, changed;

/* ------------------------------------------------------------ the relay */

struct pipe {
    int from, to;
    bool spoils; /* what comes behind the server's proof */
};

static bool take(int fd, uint8_t *bytes, size_t n)
{
    return recv(fd, bytes, n, MSG_WAITALL) == (ssize_t)n;
}

static bool give(int fd, const uint8_t *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Passes the server's proof on, and changes a byte of what follows. */
static bool change(const struct pipe *pipe)
{
    static __thread uint8_t bytes[1 << 16];
    for (unsigned i = 0; i < FRAMES; i++) {
        if (!take(pipe->from, bytes, FRAME_HEAD))
            return false;
        const size_t n = bytes[0] | (size_t)bytes[1] << 8;
        if (!take(pipe->from, bytes + FRAME_HEAD, n) || !give(pipe->to, bytes, FRAME_HEAD + n))
            return false;
    }
    size_t at = (size_t)place, n = at + 1;
    if (place == SEALED) { /* the last byte of the second record */
        if (!take(pipe->from, bytes, RECORD_HEAD) ||
            !take(pipe->from, bytes + RECORD_HEAD, bytes[4] | (size_t)bytes[3] << 8) ||
            !give(pipe->to, bytes, RECORD_HEAD + (bytes[4] | (size_t)bytes[3] << 8)) ||
            !take(pipe->from, bytes, RECORD_HEAD))
            return false;
        n = RECORD_HEAD + (bytes[4] | (size_t)bytes[3] << 8);
        at = n - 1;
        if (!take(pipe->from, bytes + RECORD_HEAD, n - RECORD_HEAD))
            return false;
    } else if (!take(pipe->from, bytes, n)) {
        return false;
    }
    bytes[at] ^= 0x40;
    atomic_fetch_add(&changed, 1);
    return give(pipe->to, bytes, n);
}

static void *pass(void *argument)
{
    struct pipe *pipe = argument;
    uint8_t bytes[4096];
    ssize_t n = !pipe->spoils || change(pipe);
    while (n > 0 && (n = recv(pipe->from, bytes, sizeof(bytes), 0)) > 0)
        if (!give(pipe->to, bytes, (size_t)n))
            break;
    shutdown(pipe->to, SHUT_WR);
    close(pipe->from); /* each thread has descriptors of its own */
    close(pipe->to);
    free(pipe);
    return NULL;
}

static void begin(void *(*run)(void *), int from, int to, bool spoils)
{
    struct pipe *pipe = malloc(sizeof(*pipe));
    pthread_t thread;
    MUST(pipe);
    *pipe = (struct pipe){from, to, spoils};
    MUST(!pthread_create(&thread, NULL, run, pipe) && !pthread_detach(thread));
}

/* The first bytes of the client tell whether this is the socket of a handshake. Others go to the
 * server as they are. */
static void *pass_from_client(void *argument)
{
    struct pipe *pipe = argument;
    uint8_t first[9];
    bool spoils = false;
    if (take(pipe->from, first, sizeof(first)) && !memcmp(first + 5, "IBXD", 4)) {
        const unsigned connection = atomic_fetch_add(&connections, 1);
        spoils = connection && connection <= SPOILT;
    }
    begin(pass, dup(pipe->to), dup(pipe->from), spoils);
    give(pipe->to, first, sizeof(first));
    return pass(argument);
}

void relay_start(int client, int server)
{
    begin(pass_from_client, client, server, false);
}

/* ------------------------------------------------------------ tests */

static void encrypt(struct ibx_options *options, unsigned n)
{
    (void)n;
    assert_int_equal(ibx_options_set(options, "encryption", encryption, NULL), 0);
}

static void goes_on(const char *how, enum place at)
{
    struct talk t = {11, 6};
    struct scene scene;
    encryption = how;
    place = at;
    connections = changed = 0;
    cuts_connect_with = encrypt;
    cuts_plan_nothing();
    client_end.plan[0] = 5;
    scene_open(&scene, SECONDS, talk_serve, &t);
    assert_true(scene_talk(&scene, &t, NULL) > 0);
    assert_int_equal(changed, SPOILT);
}

static void a_length_without_encryption(void **state)
{
    (void)state;
    goes_on("off", LENGTH);
}

static void a_type_without_encryption(void **state)
{
    (void)state;
    goes_on("off", FRAME_TYPE);
}

static void a_record_that_is_none(void **state)
{
    (void)state;
    goes_on("required", RECORD_TYPE);
}

static void a_record_that_was_sealed(void **state)
{
    (void)state;
    goes_on("required", SEALED);
}

static int make_key(void **state)
{
    (void)state;
    strcpy(scene_key_file, "/tmp/ibx-tampered-XXXXXX");
    const int fd = mkstemp(scene_key_file);
    const bool made = fd >= 0 && write(fd, KEY, sizeof(KEY) - 1) == sizeof(KEY) - 1;
    close(fd);
    return made ? 0 : -1;
}

static int remove_key(void **state)
{
    (void)state;
    return unlink(scene_key_file);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_length_without_encryption),
        cmocka_unit_test(a_type_without_encryption),
        cmocka_unit_test(a_record_that_is_none),
        cmocka_unit_test(a_record_that_was_sealed),
    };
    scene_provider = "tcp";
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
