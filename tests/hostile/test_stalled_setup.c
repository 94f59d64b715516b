/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clients that hold a key, prove it, and then stop in the middle of the set-up. GVirtuS starts a
 * thread for each connection that it gets, so it gets no more of them than rdma.sessions and
 * rdma.tenant_share allow, and one tenant's clients do not keep another tenant out. */
#include "frontend-glue/device_copies/device_copies.h"
#include "tests/fixtures/handshake_scene.h"
#include "tests/fixtures/last_client.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define ALICE    "alice alice alice"
#define BOB      "bob bob bob bob "
#define KEYS     "alice:616c69636520616c69636520616c696365\nbob:626f6220626f6220626f6220626f6220\n"
#define SESSIONS 8u
#define SHARE    6u /* of one tenant */
#define CROWD    40u
#define PATIENCE patience_ms(20000)

static char key_file[] = "/tmp/ibx-test-half-way-XXXXXX";
static struct ibx_session *listening;
static uint16_t port;
static pthread_t accepting, serving[2 * CROWD];
static unsigned served;
static atomic_uint threads, most;
static atomic_bool ends; /* the next session is not served */

/* Reads from the session, in a thread of its own like GVirtuS's. */
static void *serve(void *session)
{
    char byte;
    ibx_session_read(session, &byte, 1);
    ibx_session_destroy(session);
    atomic_fetch_sub(&threads, 1);
    return NULL;
}

static void *accept_all(void *unused)
{
    struct ibx_session *session;
    (void)unused;
    while (!ibx_session_accept(listening, &session, NULL)) {
        if (ends) {
            ibx_session_destroy(session);
            break;
        }
        if (served == 2 * CROWD)
            abort();
        const unsigned now = atomic_fetch_add(&threads, 1) + 1;
        if (now > atomic_load(&most))
            atomic_store(&most, now);
        pthread_create(&serving[served++], NULL, serve, session);
    }
    return NULL;
}

/* A client that has authenticated and does not continue. */
static struct raw stop_half_way(const char *key, const char *name)
{
    struct raw raw = raw_connect(port, "127.0.0.1", "127.0.0.1");
    struct ibx_piece piece = {key, strlen(key)};
    struct raw_frame frame;
    ibx_hash(&piece, 1, raw.key);
    raw.name = name;
    handshake_play_to(&raw, AT_TRY);
    raw_expect(&raw, PROOF, &frame);
    raw.authenticated = true;
    return raw;
}

static bool goes_on(struct raw *raw)
{
    struct raw_frame frame;
    uint8_t payload[16];
    raw_send_frame(raw, TRY, payload, raw_string(payload, "shm"));
    return raw_receive(raw, &frame) && frame.type == OFFER;
}

static unsigned closed(struct raw *crowd)
{
    struct pollfd wait[CROWD];
    unsigned count = 0;
    for (unsigned i = 0; i < CROWD; i++)
        wait[i] = (struct pollfd){.fd = crowd[i].fd, .events = POLLIN};
    poll(wait, CROWD, 20);
    for (unsigned i = 0; i < CROWD; i++)
        count += wait[i].revents != 0;
    return count;
}

static void all_have_gone(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE);
    while (atomic_load(&threads) && ibx_now_ns() < deadline)
        poll(NULL, 0, 5);
    assert_int_equal(atomic_load(&threads), 0);
}

static void test_one_tenant_stops_half_way(void **state)
{
    (void)state;
    struct raw crowd[CROWD];
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE);
    for (unsigned i = 0; i < CROWD; i++)
        crowd[i] = stop_half_way(ALICE, "alice");
    while (closed(crowd) < CROWD - SHARE && ibx_now_ns() < deadline) {
    }
    assert_int_equal(closed(crowd), CROWD - SHARE);
    assert_int_equal(atomic_load(&most), SHARE);
    struct raw bob = stop_half_way(BOB, "bob");
    assert_true(goes_on(&bob));
    raw_close(&bob);
    for (unsigned i = 0; i < CROWD; i++)
        raw_close(&crowd[i]);
    all_have_gone();
    /* None of the stopped clients counts any more. */
    struct raw later = stop_half_way(ALICE, "alice");
    assert_true(goes_on(&later));
    raw_close(&later);
    all_have_gone();
}

static int setup(void **state)
{
    struct ibx_options options;
    struct ibx_gpu_options gpu = {.mode = IBX_GPU_OFF,
                                  .limits = {.sessions = SESSIONS, .share = 75}};
    int fd = mkstemp(key_file);
    if (raw_make_key(state) || fd < 0 || write(fd, KEYS, strlen(KEYS)) < 0 || close(fd))
        return -1;
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", key_file);
    options.timeout_ms = 60000; /* longer than the test takes */
    if (ibx_session_create("rdma://127.0.0.1:0", &options, &listening, NULL) ||
        ibx_device_copies_attach(listening, &gpu, NULL) || ibx_session_serve(listening, NULL))
        return -1;
    port = (uint16_t)atoi(strrchr(ibx_session_uri(listening), ':') + 1);
    return pthread_create(&accepting, NULL, accept_all, NULL);
}

static int teardown(void **state)
{
    struct ibx_options options;
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", key_file);
    ends = true;
    last_client(listening, &options, accepting);
    for (unsigned i = 0; i < served; i++)
        pthread_join(serving[i], NULL);
    ibx_session_destroy(listening);
    unlink(key_file);
    return raw_remove_key(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_tenant_stops_half_way),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
