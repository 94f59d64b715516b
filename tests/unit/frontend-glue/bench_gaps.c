/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures how long calls wait when the connection of their session breaks, or when its network
 * is silent. This is not a test: it checks nothing. Needs root.
 *
 *   bench_gaps [TIMES [KEY-FILE]]
 *
 * A back end and a client in two network namespaces, connected by a bridge that can drop
 * packets, as when a VM leaves its host. Calls have 8 bytes. Prints milliseconds: median, 90th
 * percentile, (maximum):
 *
 *   cut     the connection is closed: from then to the answer to the next call
 *   path    the same, and the next connection is of another provider (both on one host)
 *   silent  nothing reaches the client for a while: from the end of that to the answer, when the
 *           connection is no longer new
 *   waits   the same, when the client has waited for some seconds for the answer before
 *   moved   the client has no address for a while, and then another one: from then on */
#include "tests/fixtures/session_pair.h"
#include "tests/fixtures/shell.h"

#include "common/clock.h"
#include "common/log.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define CALL_BYTES 8u
#define SERVER     "10.99.0.1"
#define TIMES_MAX  1000u
#define SECONDS    60u
#define SETTLED_MS 1100u /* transport/tcp/probe.c */
#define WAITS_MS   4000u

enum ask { ASK_ECHO, ASK_DROP }; /* the first byte of a call */

static struct ibx_session *listening, *server, *client;
static unsigned times = 50;
static const char *key_file;
static char uri[64];
static unsigned port;

/* of the current pause */
static unsigned pause_ms, wait_ms;
static _Atomic uint64_t pause_over;

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "bench_gaps: %s\n", what);
    exit(1);
}

static void sleep_ms(unsigned ms)
{
    usleep(1000 * ms);
}

/* ------------------------------------------------------------------- the back end */

static void *serve(void *argument)
{
    struct ibx_session *s = argument;
    uint8_t bytes[CALL_BYTES];
    while (ibx_session_read(s, bytes, CALL_BYTES) == CALL_BYTES) {
        const bool drop = bytes[0] == ASK_DROP;
        if (drop)
            sleep_ms(wait_ms);
        if (drop)
            shell("bridge link set dev v0 state 0");
        if (ibx_session_write(s, bytes, CALL_BYTES) != CALL_BYTES || ibx_session_sync(s))
            break;
        if (!drop)
            continue;
        sleep_ms(pause_ms);
        shell("bridge link set dev v0 state 3");
        pause_over = ibx_now_ns();
    }
    return NULL;
}

/* Starts a thread for each session, as GVirtuS does. */
static void *accept_all(void *argument)
{
    pthread_t thread;
    (void)argument;
    while (!ibx_session_accept(listening, &server, NULL))
        pthread_create(&thread, NULL, serve, server);
    return NULL;
}

static void set_options(struct ibx_options *options, const char *provider)
{
    ibx_options_init(options);
    ibx_options_set(options, "provider", provider, NULL);
    ibx_options_set(options, "timeout_ms", "60000", NULL);
    if (key_file)
        ibx_options_set(options, "key_file", key_file, NULL);
    options->insecure = !key_file;
}

static void listen_at(const char *address, const char *provider)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    char text[128];
    pthread_t thread;
    set_options(&options, provider);
    snprintf(text, sizeof(text), "rdma://%s:0", address);
    int rc = ibx_session_create(text, &options, &listening, &err);
    if (!rc)
        ibx_session_keep(listening, SECONDS);
    if (!rc)
        rc = ibx_session_serve(listening, &err);
    must(!rc, err.message);
    port = (unsigned)strtoul(strrchr(ibx_session_uri(listening), ':') + 1, NULL, 10);
    pthread_create(&thread, NULL, accept_all, NULL);
}

/* --------------------------------------------------------------------- the client */

static void connect_by(const char *provider)
{
    struct ibx_error err = {0};
    struct ibx_options options;
    set_options(&options, provider);
    int rc = ibx_session_create(uri, &options, &client, &err);
    if (!rc)
        ibx_session_keep(client, SECONDS);
    if (!rc)
        rc = ibx_session_connect(client, &err);
    must(!rc, err.message);
}

/* Returns the time of the answer. */
static uint64_t call(enum ask ask)
{
    uint8_t bytes[CALL_BYTES] = {(uint8_t)ask};
    must(ibx_session_write(client, bytes, CALL_BYTES) == CALL_BYTES && !ibx_session_sync(client) &&
             ibx_session_read(client, bytes, CALL_BYTES) == CALL_BYTES,
         ibx_session_reason(client));
    return ibx_now_ns();
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void show(const char *what, double *ms, unsigned count)
{
    qsort(ms, count, sizeof(*ms), compare);
    printf("%-28s %8.1f  nine of ten within %8.1f  (%.1f)\n", what, ms[count / 2],
           ms[count * 9 / 10], ms[count - 1]);
    fflush(stdout);
}

static void calls(unsigned n)
{
    while (n--)
        call(ASK_ECHO);
}

/* `other`: NULL, or a provider to change to and back. */
static void cuts(const char *provider, const char *other)
{
    double ms[TIMES_MAX];
    char what[64];
    connect_by(provider);
    for (unsigned i = 0; i < times; i++) {
        calls(20);
        if (other)
            ibx_options_set(&client->options, "provider", i % 2 ? provider : other, NULL);
        const uint64_t began = ibx_now_ns();
        ibx_abort(client->conn);
        ms[i] = (double)(call(ASK_ECHO) - began) / 1e6;
    }
    must(ibx_session_resumed(client) == times, "not every cut was one");
    snprintf(what, sizeof(what), other ? "path %s, %s" : "cut %s", provider, other);
    show(what, ms, times);
    ibx_session_destroy(client);
}

static void silent(unsigned pause, unsigned waits)
{
    double ms[TIMES_MAX];
    char what[64];
    for (unsigned i = 0; i < times; i++) {
        sleep_ms(SETTLED_MS);
        calls(20);
        pause_ms = pause + i % 17;
        wait_ms = waits ? waits + i * 731 % 2000 : 0;
        const uint64_t at = call(ASK_DROP);
        call(ASK_ECHO); /* the answer follows it */
        const uint64_t over = pause_over;
        ms[i] = at > over ? (double)(at - over) / 1e6 : 0;
    }
    snprintf(what, sizeof(what), waits ? "waits, silent for %u ms" : "silent for %u ms", pause);
    show(what, ms, times);
}

static void *change_address(void *argument)
{
    const unsigned n = *(const unsigned *)argument;
    sleep_ms(pause_ms);
    shell("ip addr add 10.99.0.%u/24 dev v1", 10 + (n + 1) % 2);
    pause_over = ibx_now_ns();
    return NULL;
}

static void moved(unsigned pause)
{
    double ms[TIMES_MAX];
    char what[64];
    const unsigned before = ibx_session_resumed(client);
    for (unsigned i = 0; i < times; i++) {
        pthread_t thread;
        calls(20);
        pause_ms = pause + i % 17;
        shell("ip addr del 10.99.0.%u/24 dev v1", 10 + i % 2);
        pthread_create(&thread, NULL, change_address, &i);
        const uint64_t at = call(ASK_ECHO);
        pthread_join(thread, NULL);
        const uint64_t over = pause_over;
        ms[i] = at > over ? (double)(at - over) / 1e6 : 0;
    }
    snprintf(what, sizeof(what), "moved, none for %u ms", pause);
    show(what, ms, times);
    if (ibx_session_resumed(client) != before + times)
        printf("  %u changes, gone on %u times\n", times, ibx_session_resumed(client) - before);
    if (times % 2)
        shell("ip addr del 10.99.0.11/24 dev v1 && ip addr add 10.99.0.10/24 dev v1");
}

/* the thread of the client, in a namespace of its own */
static _Atomic int client_tid;
static _Atomic bool wired;

static void *client_thread(void *argument)
{
    (void)argument;
    must(!unshare(CLONE_NEWNET), "a network namespace needs root");
    client_tid = gettid();
    while (!wired)
        sched_yield();
    shell("ip link set lo up && ip addr add 10.99.0.10/24 dev v1 && ip link set v1 up");
    connect_by("tcp");
    for (unsigned ms = 50; ms <= 3200; ms *= 2)
        silent(ms, 0);
    for (unsigned ms = 100; ms <= 3200; ms *= 2)
        silent(ms, WAITS_MS);
    for (unsigned ms = 50; ms <= 800; ms *= 4)
        moved(ms);
    ibx_session_destroy(client);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    times = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : times;
    key_file = argc > 2 ? argv[2] : NULL;
    must(times && times <= TIMES_MAX, "TIMES is 1 to 1000");
    must(!unshare(CLONE_NEWNET), "a network namespace needs root");
    /* Without another port that forwards packets the bridge has no carrier. */
    shell("ip link set lo up && ip link add br0 type bridge && ip addr add " SERVER
          "/24 dev br0 && ip link set br0 up && ip link add v0 type veth peer name v1 && "
          "ip link add w0 type veth peer name w1 && ip link set w0 master br0 up && "
          "ip link set w1 up && ip link set v0 master br0 up");
    listen_at("0.0.0.0", "shm,tcp");
    ibx_log_set_level(IBX_LOG_ERROR);
    printf("ms: median, nine of ten, (most)\n");
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", port);
    cuts("shm", NULL);
    cuts("tcp", NULL);
    cuts("shm", "tcp");
    snprintf(uri, sizeof(uri), "rdma://" SERVER ":%u", port);
    pthread_create(&thread, NULL, client_thread, NULL);
    while (!client_tid)
        sched_yield();
    shell("ip link set v1 netns %d", client_tid);
    wired = true;
    pthread_join(thread, NULL);
    return 0;
}
