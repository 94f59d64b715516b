/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A relay between the ends of a session swallows one frame, or a part of one, or sends one twice or
 * behind the next one, and then passes everything. The session notices within BOUND_MS: it connects
 * again and continues with right results, or ends if it was not established yet.
 *
 * All sockets go through the relay. It knows frames of the handshake, of
 * the tcp provider, and records of TLS. Arguments: "off" or "required" (encryption), and "key" or
 * nothing. Some of all positions are tried, beginning at one that the process number chooses;
 * IBX_TEST_ALL=1: all.
 */
#include "frontend-glue/session/session_internal.h"
#include "tests/fixtures/must.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/pattern.h"
#include "tests/fixtures/relayed_connect.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define TIMEOUT_MS 2000u  /* of the handshake */
#define SECONDS    3u     /* for which sessions are kept */
#define BOUND_MS   10000u /* for all calls of one session */
#define CALLS      3u
#define LONG       ((size_t)700000) /* READ and WRITTEN by the server */
#define SOCKETS    32u
#define UNIT_MAX   ((size_t)4 << 20)
#define STEP       8u  /* one of so many positions */
#define HELLO      40u /* bytes, of a bulk lane */
#define READ       2u  /* a type of the tcp provider's frames */
#define RESULT     7u  /* of the handshake's */

/* ------------------------------------------------------------------------- the relay */

enum harm { NONE, DROPPED, HALVED, REPEATED, LATE };
static const char *const harms[] = {"passed", "dropped", "halved", "repeated", "delayed"};

struct pipe {
    int from, to;
    bool up;            /* to the server */
    atomic_bool frames; /* the handshake is over */
    struct pipe *back;
    uint8_t *bytes;
    size_t have;
    uint8_t *late;
    size_t late_bytes;
    pthread_t thread;
};

static struct {
    struct pipe pipes[2 * SOCKETS];
    unsigned count;
    pthread_mutex_t lock;
    enum harm harm;
    bool up;           /* the direction of the unit that is harmed */
    unsigned position; /* which of that direction's */
    unsigned units[2];
    bool hit;
} relay = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint32_t word(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Bytes of the unit that begins here; 0: not known yet. */
static size_t unit_size(const struct pipe *pipe)
{
    const uint8_t *b = pipe->bytes;
    if (pipe->have < 5)
        return 0;
    if (b[0] >= 20 && b[0] <= 23 && b[1] == 3)
        return 5 + ((size_t)b[3] << 8) + b[4];
    if (!memcmp(b, "ibxL", 4))
        return HELLO;
    if (!pipe->frames)
        return 4 + (size_t)word(b);
    return pipe->have < 32 ? 0 : 32 + (b[0] == READ ? 0 : (size_t)word(b + 12));
}

static void send_on(const struct pipe *pipe, const uint8_t *bytes, size_t n)
{
    while (n) {
        const ssize_t sent = send(pipe->to, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the receiver has gone */
        bytes += sent;
        n -= (size_t)sent;
    }
}

static enum harm next_harm(const struct pipe *pipe)
{
    pthread_mutex_lock(&relay.lock);
    const bool hit =
        relay.harm && relay.up == pipe->up && relay.units[pipe->up] == relay.position && !relay.hit;
    relay.units[pipe->up]++;
    relay.hit |= hit;
    const enum harm harm = hit ? relay.harm : NONE;
    pthread_mutex_unlock(&relay.lock);
    return harm;
}

static void pass_unit(struct pipe *pipe, size_t n)
{
    const enum harm harm = next_harm(pipe);
    const uint8_t *b = pipe->bytes;
    const bool last = !pipe->frames && (n == HELLO || (b[4] == RESULT && !word(b + 5)));
    if (harm == LATE) {
        pipe->late = malloc(n);
        memcpy(pipe->late, b, n);
        pipe->late_bytes = n;
    } else if (harm != DROPPED) {
        send_on(pipe, b, harm == HALVED ? n / 2 : n);
        if (harm == REPEATED)
            send_on(pipe, b, n);
        send_on(pipe, pipe->late, pipe->late_bytes);
        pipe->late_bytes = 0;
    }
    if (last)
        pipe->frames = true;
    if (last && n == HELLO) /* only the client sends one */
        pipe->back->frames = true;
    pipe->have -= n;
    memmove(pipe->bytes, b + n, pipe->have);
}

static void *pass(void *argument)
{
    struct pipe *pipe = argument;
    ssize_t n;
    pipe->bytes = malloc(UNIT_MAX);
    while ((n = recv(pipe->from, pipe->bytes + pipe->have, UNIT_MAX - pipe->have, 0)) > 0) {
        pipe->have += (size_t)n;
        for (size_t unit; (unit = unit_size(pipe)) && unit <= pipe->have;)
            pass_unit(pipe, unit);
    }
    shutdown(pipe->to, SHUT_WR);
    free(pipe->bytes);
    free(pipe->late);
    return NULL;
}

void relay_start(int client, int server)
{
    pthread_mutex_lock(&relay.lock);
    MUST(relay.count < 2 * SOCKETS);
    struct pipe *up = &relay.pipes[relay.count], *down = up + 1;
    relay.count += 2;
    pthread_mutex_unlock(&relay.lock);
    *up = (struct pipe){.from = client, .to = server, .up = true, .back = down};
    *down = (struct pipe){.from = server, .to = client, .back = up};
    MUST(!pthread_create(&up->thread, NULL, pass, up));
    MUST(!pthread_create(&down->thread, NULL, pass, down));
}

static void relay_begin(enum harm harm, bool up, unsigned position)
{
    pthread_mutex_lock(&relay.lock);
    relay.harm = harm;
    relay.up = up;
    relay.position = position;
    relay.units[0] = relay.units[1] = 0;
    relay.hit = false;
    pthread_mutex_unlock(&relay.lock);
}

static bool relay_hit(void)
{
    pthread_mutex_lock(&relay.lock);
    const bool hit = relay.hit;
    pthread_mutex_unlock(&relay.lock);
    return hit;
}

static void relay_end(void)
{
    for (unsigned i = 0; i < relay.count; i++)
        pthread_join(relay.pipes[i].thread, NULL);
    for (unsigned i = 0; i < relay.count; i++)
        close(relay.pipes[i].from);
    relay.count = 0;
}

/* ------------------------------------------------------------------------- the server */

static const char *arguments[2] = {"off"};
static struct ibx_session *listening;
static struct ibx_options options;
static char key_file[] = "/tmp/ibx-test-key-XXXXXX";
static atomic_bool server_ends;
static atomic_uint serving, wrong_requests;

/* A request is a long pattern or four bytes; the reply is as long. */
static void *serve(void *argument)
{
    struct ibx_session *s = argument;
    static const uint64_t seed = 7;
    uint8_t *bytes = malloc(LONG), kind[4];
    while (ibx_session_read(s, kind, 4) == 4) {
        if (kind[0] == 'L') {
            if (ibx_session_read(s, bytes, LONG) != (ssize_t)LONG)
                break;
            wrong_requests += pattern_check(bytes, LONG, seed) != LONG;
            pattern_fill(bytes, LONG, seed + 1);
        }
        kind[3]++;
        if (ibx_session_write(s, kind, 4) != 4 ||
            (kind[0] == 'L' && ibx_session_write(s, bytes, LONG) != (ssize_t)LONG) ||
            ibx_session_sync(s))
            break;
    }
    ibx_session_destroy(s);
    free(bytes);
    serving--;
    return NULL;
}

static void *accept_all(void *nothing)
{
    struct ibx_session *s;
    pthread_t thread;
    (void)nothing;
    while (!ibx_session_accept(listening, &s, NULL)) {
        if (server_ends) {
            ibx_session_destroy(s);
            return NULL;
        }
        serving++;
        MUST(!pthread_create(&thread, NULL, serve, s) && !pthread_detach(thread));
    }
    return NULL;
}

/* ------------------------------------------------------------------------- the client */

static struct ibx_session *client_create(void)
{
    struct ibx_session *s;
    MUST(!ibx_session_create(ibx_session_uri(listening), &options, &s, NULL));
    ibx_session_keep(s, SECONDS);
    return s;
}

static bool call(struct ibx_session *s, uint8_t number)
{
    uint8_t bytes[4] = {'S', number, 0, 0};
    return ibx_session_write(s, bytes, 4) == 4 && !ibx_session_sync(s) &&
           ibx_session_read(s, bytes, 4) == 4 && bytes[1] == number && bytes[3] == 1;
}

static bool call_long(struct ibx_session *s, uint8_t *bytes)
{
    uint8_t kind[4] = {'L'};
    static const uint64_t seed = 7;
    pattern_fill(bytes, LONG, seed);
    if (ibx_session_write(s, kind, 4) != 4 || ibx_session_write(s, bytes, LONG) != (ssize_t)LONG ||
        ibx_session_sync(s) || ibx_session_read(s, kind, 4) != 4 || kind[3] != 1)
        return false;
    memset(bytes, 0, LONG);
    return ibx_session_read(s, bytes, LONG) == (ssize_t)LONG &&
           pattern_check(bytes, LONG, seed + 1) == LONG;
}

/* Makes all calls in one session. -ENOTCONN: it ended before both ends knew that it would survive
 * its connection. 1: it has gone on over another one. */
static int talk(uint8_t *bytes)
{
    struct ibx_session *s = client_create();
    bool right = !ibx_session_connect(s, NULL);
    for (uint8_t i = 0; i < CALLS && right; i++)
        right = call(s, i);
    right = right && call_long(s, bytes) && call(s, CALLS);
    const bool was_kept = s->link.state.now != LINK_SINGLE;
    if (!right && was_kept)
        fail_msg("unit %u %s %s: %s", relay.position, relay.up ? "up" : "down", harms[relay.harm],
                 ibx_session_reason(s));
    const int resumed = ibx_session_resumed(s) > 0;
    ibx_session_destroy(s);
    return right ? resumed : -ENOTCONN;
}

/* Returns how long all calls took, in ms. */
static unsigned run(bool *resumed)
{
    uint8_t *bytes = malloc(LONG);
    const uint64_t began = ibx_now_ns();
    int rc = talk(bytes);
    if (rc < 0) { /* as a program that is started again */
        MUST(relay_hit());
        rc = talk(bytes);
    }
    MUST(rc >= 0);
    const unsigned ms = (unsigned)((ibx_now_ns() - began) / IBX_NS_PER_MS);
    *resumed = rc;
    while (serving)
        sched_yield();
    relay_end();
    free(bytes);
    return ms;
}

/* ------------------------------------------------------------------------- tests */

static void sweep(enum harm harm)
{
    const unsigned step = getenv("IBX_TEST_ALL") ? 1 : STEP;
    unsigned sessions = 0, resumed = 0, most_ms = 0;
    bool again;
    for (unsigned up = 0; up < 2; up++) {
        for (unsigned at = (unsigned)getpid() % step;; at += step) {
            relay_begin(harm, up, at);
            const unsigned ms = run(&again);
            if (!relay_hit())
                break;
            sessions++;
            resumed += again;
            most_ms = ms > most_ms ? ms : most_ms;
            if (ms > patience_ms(BOUND_MS))
                fail_msg("unit %u %s %s: %u ms", at, up ? "up" : "down", harms[harm], ms);
        }
    }
    print_message("%u units %s: %u sessions have gone on, at most after %u ms\n", sessions,
                  harms[harm], resumed, most_ms);
    assert_true(sessions && resumed);
    assert_int_equal(wrong_requests, 0);
}

static void test_dropped(void **state)
{
    (void)state;
    sweep(DROPPED);
}

/* Without a key no message shows that a part of it is missing. */
static void test_halved(void **state)
{
    (void)state;
    if (!arguments[1])
        skip();
    sweep(HALVED);
}

static void test_repeated(void **state)
{
    (void)state;
    sweep(REPEATED);
}

static void test_late(void **state)
{
    (void)state;
    sweep(LATE);
}

static pthread_t accepting;
static int setup(void **state)
{
    static const char hex[] = "5ca1ab1e0ddba11c0ffee0decade0123456789abcdef0123456789abcdef0011\n";
    struct ibx_error err = {0};
    (void)state;
    ibx_options_init(&options);
    MUST(!ibx_options_set(&options, "provider", "tcp", NULL));
    MUST(!ibx_options_set(&options, "encryption", arguments[0], NULL));
    options.timeout_ms = TIMEOUT_MS;
    options.insecure = !arguments[1];
    const int fd = mkstemp(key_file);
    MUST(fd >= 0 && write(fd, hex, sizeof(hex) - 1) == sizeof(hex) - 1 && !close(fd));
    if (arguments[1])
        MUST(!ibx_options_set(&options, "key_file", key_file, NULL));
    if (ibx_session_create("rdma://127.0.0.1:0", &options, &listening, &err))
        return -1;
    ibx_session_keep(listening, SECONDS);
    if (ibx_session_serve(listening, &err))
        return -1;
    return pthread_create(&accepting, NULL, accept_all, NULL);
}

static int teardown(void **state)
{
    (void)state;
    relay_begin(NONE, false, 0);
    server_ends = true;
    struct ibx_session *s = client_create();
    ibx_session_connect(s, NULL);
    pthread_join(accepting, NULL);
    ibx_session_destroy(s);
    relay_end();
    ibx_session_destroy(listening);
    return unlink(key_file);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc && i < 3; i++)
        arguments[i - 1] = argv[i];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_halved),
        cmocka_unit_test(test_repeated),
        cmocka_unit_test(test_late),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
