/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The byte stream of a session between two threads: however writes and reads are split, the
 * bytes are the same.
 *
 *   test_session PROVIDER [PATTERN [ADDRESS]]     shm, tcp, ...; tests whose names match; where the
 *                                                 server listens
 *
 * Linked with memory_provider.c it runs on the fabric inside the process, whatever PROVIDER is. */
#include "tests/fixtures/open_fds.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/rounds.h"
#include "tests/fixtures/session_pair.h"

#include "common/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* ----------------------------------------------------------------------------- random dialogues */

/* Both sides make the same plan from the same seed: who writes how much, in which pieces and
 * with which syncs, and in which pieces it is read. Client and server alternate. */
struct talk {
    uint64_t seed;
    unsigned turns;
    size_t rendezvous, message;
};

static size_t some_size(struct random *r, const struct talk *t)
{
    switch (random_below(r, 9)) {
    case 0:
        return 0;
    case 1:
    case 2:
        return random_below(r, 9);
    case 3:
        return random_below(r, 300);
    case 4:
        return t->message - 8 + random_below(r, 16);
    case 5:
        return t->rendezvous - 3 + random_below(r, 7);
    case 6:
        return random_below(r, 4 * t->message);
    case 7:
        return t->rendezvous + random_below(r, 300000);
    default:
        return random_below(r, 5000);
    }
}

static int move_pieces(struct ibx_session *s, struct random *r, const struct talk *t, bool writing,
                       uint8_t *bytes, size_t total)
{
    for (size_t at = 0, n; at < total; at += n) {
        n = some_size(r, t);
        if (n > total - at)
            n = total - at;
        ssize_t rc =
            writing ? ibx_session_write(s, bytes + at, n) : ibx_session_read(s, bytes + at, n);
        if (rc != (ssize_t)n || (writing && random_below(r, 6) == 0 && ibx_session_sync(s)))
            return -1;
    }
    return writing ? ibx_session_sync(s) : 0;
}

static int talk(struct ibx_session *s, const struct talk *t, bool server)
{
    struct random plan = {t->seed};
    uint8_t *kept = NULL; /* a client's bytes stay until the answer is read */
    int rc = 0;
    for (unsigned turn = 0; turn < t->turns && !rc; turn++) {
        size_t total = 1;
        for (size_t i = random_below(&plan, 12); i > 0; i--)
            total += some_size(&plan, t);
        uint8_t *bytes = malloc(total);
        bool writing = (turn % 2 == 0) != server; /* the client begins */
        struct random pieces = {random_next(&plan) + writing};
        if (writing)
            pattern_fill(bytes, total, t->seed + turn);
        else
            memset(bytes, 0, total);
        rc = move_pieces(s, &pieces, t, writing, bytes, total);
        if (!rc && pattern_check(bytes, total, t->seed + turn) != total)
            rc = -1;
        free(kept);
        kept = writing ? bytes : NULL;
        if (!writing)
            free(bytes);
    }
    free(kept);
    return rc;
}

static int serve_talk(struct session_pair *pair, void *argument)
{
    return talk(pair->server, argument, true);
}

static void any_split_gives_the_same_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= ROUNDS(20, 5); seed++) {
        struct session_pair pair;
        session_pair_open(&pair);
        struct talk t = {seed, 16, pair.rendezvous, pair.message};
        session_pair_start(&pair, serve_talk, &t);
        int rc = talk(pair.client, &t, false);
        if (rc)
            ibx_session_close(pair.client); /* so that the other side ends too */
        int served = session_pair_join(&pair);
        if (rc || served)
            fail_msg("seed %u: client %d \"%s\", server %d \"%s\"", (unsigned)seed, rc,
                     ibx_session_reason(pair.client), served, ibx_session_reason(pair.server));
        session_pair_close(&pair);
    }
}

/* ---------------------------------------------------------------------- plain calls */

/* The server's part of most tests: requests of one size each, answered by as many bytes. */
struct exchange {
    const size_t *sizes;
    unsigned count;
    bool at_once; /* all requests are read before the first answer */
};

static int read_pattern(struct ibx_session *s, size_t n, uint64_t seed)
{
    uint8_t *bytes = calloc(1, n + 1);
    int rc = ibx_session_read(s, bytes, n) == (ssize_t)n ? 0 : -1;
    if (!rc && pattern_check(bytes, n, seed) != n)
        rc = -2;
    free(bytes);
    return rc;
}

/* The caller frees the bytes once the other side is known to have them. */
static int write_pattern(struct ibx_session *s, size_t n, uint64_t seed, uint8_t **bytes)
{
    *bytes = malloc(n + 1);
    pattern_fill(*bytes, n, seed);
    return ibx_session_write(s, *bytes, n) == (ssize_t)n ? ibx_session_sync(s) : -1;
}

static int answer(struct ibx_session *s, size_t n, uint64_t seed)
{
    uint8_t *bytes;
    int rc = write_pattern(s, n, seed, &bytes);
    free(bytes);
    return rc;
}

static int serve_exchange(struct session_pair *pair, void *argument)
{
    const struct exchange *e = argument;
    int rc = 0;
    for (unsigned i = 0; i < e->count && !rc; i++) {
        rc = read_pattern(pair->server, e->sizes[i], i);
        if (!rc && !e->at_once)
            rc = answer(pair->server, e->sizes[i], 1000 + i);
    }
    for (unsigned i = 0; i < e->count && !rc && e->at_once; i++)
        rc = answer(pair->server, e->sizes[i], 1000 + i);
    return rc;
}

static void check_both(struct session_pair *pair, int rc)
{
    if (rc)
        ibx_session_close(pair->client);
    int served = session_pair_join(pair);
    if (rc || served)
        fail_msg("client %d \"%s\", server %d \"%s\"", rc, ibx_session_reason(pair->client), served,
                 ibx_session_reason(pair->server));
    session_pair_close(pair);
}

/* The client's part. */
static int send_requests(struct ibx_session *client, const struct exchange *e)
{
    int rc = 0;
    for (unsigned i = 0; i < e->count && !rc; i++) {
        uint8_t *bytes;
        rc = write_pattern(client, e->sizes[i], i, &bytes);
        if (!rc)
            rc = read_pattern(client, e->sizes[i], 1000 + i);
        free(bytes);
    }
    return rc;
}

static void run_exchange(struct session_pair *pair, const struct exchange *e)
{
    session_pair_start(pair, serve_exchange, (void *)(uintptr_t)e);
    check_both(pair, send_requests(pair->client, e));
}

static void sizes_round_the_boundaries(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    size_t sizes[64], count = 0;
    const size_t centres[] = {2,          4096,    pair.message, pair.rendezvous, 2 * pair.message,
                              256u << 10, 1u << 20};
    for (unsigned c = 0; c < 7; c++) {
        for (int d = -3; d <= 3; d++) {
            if (d >= 0 || centres[c] > 2)
                sizes[count++] = centres[c] + (size_t)d;
        }
    }
    sizes[count++] = 1;
    struct exchange e = {sizes, (unsigned)count, false};
    run_exchange(&pair, &e);
}

/* 16 MiB and an odd rest in both directions, in one write and one read each. */
static void long_bodies_both_ways(void **state)
{
    (void)state;
    static const size_t sizes[] = {(16u << 20) + 13, 5, (4u << 20) - 1, (16u << 20) + 4096};
    struct session_pair pair;
    struct exchange e = {sizes, 4, false};
    session_pair_open(&pair);
    run_exchange(&pair, &e);
}

static void nothing_is_written_and_read(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t byte = 7;
    session_pair_open(&pair);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(ibx_session_write(pair.client, NULL, 0), 0);
    assert_int_equal(ibx_session_write(pair.client, &byte, 0), 0);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    assert_int_equal(ibx_session_read(pair.server, &byte, 0), 0);
    assert_int_equal(ibx_session_write(pair.client, &byte, 1), 1);
    assert_int_equal(ibx_session_write(pair.client, NULL, 0), 0);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    byte = 0;
    assert_int_equal(ibx_session_read(pair.server, &byte, 1), 1);
    assert_int_equal(byte, 7);
    session_pair_close(&pair);
}

/* ------------------------------------------------------ several requests before the first reply */

/* As after so many payloads that their counter is about to wrap. */
static void begin_near_the_wrap(struct session_pair *pair, uint32_t before)
{
    pair->server->payloads_read = pair->client->payloads_read = 0u - before;
    pair->client->payloads_flushed = 0u - before;
}

/* Requests are sent one after another; only then are the answers read. */
static void exchange_ahead(uint32_t before_wrap)
{
    for (int at_once = 0; at_once < 2; at_once++) {
        for (unsigned kinds = 0; kinds < 8; kinds++) {
            struct session_pair pair;
            session_pair_open(&pair);
            begin_near_the_wrap(&pair, before_wrap);
            size_t sizes[3];
            unsigned ahead = at_once ? 3 : 2; /* a server that answers at once allows fewer */
            for (unsigned i = 0; i < ahead; i++)
                sizes[i] = kinds & 1u << i ? pair.rendezvous + 5000 * i : 10 + i;
            struct exchange e = {sizes, ahead, at_once};
            uint8_t *bytes[3] = {0};
            int rc = 0;
            session_pair_start(&pair, serve_exchange, &e);
            for (unsigned i = 0; i < ahead && !rc; i++)
                rc = write_pattern(pair.client, sizes[i], i, &bytes[i]);
            for (unsigned i = 0; i < ahead && !rc; i++) {
                rc = read_pattern(pair.client, sizes[i], 1000 + i);
                if (!rc) /* its reply has been read, so its memory is free */
                    memset(bytes[i], 0, sizes[i]);
            }
            check_both(&pair, rc);
            for (unsigned i = 0; i < 3; i++)
                free(bytes[i]);
        }
    }
}

static void requests_before_answers(void **state)
{
    (void)state;
    exchange_ahead(0);
}

static void requests_when_counters_wrap(void **state)
{
    (void)state;
    for (uint32_t before = 1; before <= 3; before++)
        exchange_ahead(before);
}

/* A reply that was sent before FLUSHED arrived counts fewer payloads than FLUSHED, even if the
 * counter has wrapped. */
static void late_reply_when_counters_wrap(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    begin_near_the_wrap(&pair, 1);
    assert_int_equal(ibx_rendezvous_announce(pair.client, "payload", 7), 0);
    ibx_rendezvous_drop(pair.client);
    assert_int_equal(ibx_rendezvous_confirm(pair.client, UINT32_MAX), 0);
    session_pair_close(&pair);
}

/* Further ahead neither side could continue: this is an error, not a deadlock. */
static void too_many_requests_ahead(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    size_t sizes[3] = {pair.rendezvous, pair.rendezvous, pair.rendezvous};
    struct exchange e = {sizes, 3, false};
    uint8_t *bytes[3] = {0};
    int rc = 0;
    session_pair_start(&pair, serve_exchange, &e);
    for (unsigned i = 0; i < 3 && !rc; i++)
        rc = write_pattern(pair.client, sizes[i], i, &bytes[i]);
    assert_int_not_equal(rc, 0);
    assert_int_not_equal(session_pair_join(&pair), 0);
    assert_non_null(strstr(ibx_session_reason(pair.server), "ahead of long replies"));
    session_pair_close(&pair);
    for (unsigned i = 0; i < 3; i++)
        free(bytes[i]);
}

static int serve_reading(struct session_pair *pair, void *argument)
{
    const struct exchange *e = argument;
    int rc = 0;
    for (unsigned i = 0; i < e->count && !rc; i++)
        rc = read_pattern(pair->server, e->sizes[i], i);
    return rc ? rc : answer(pair->server, 1, 0);
}

/* A client that only writes may reuse a body's memory when the write after its sync has
 * returned. */
static void writes_and_syncs_without_a_read(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    size_t sizes[40], longest = 0;
    struct random r = {4711};
    for (unsigned i = 0; i < 40; i++) {
        sizes[i] = random_below(&r, 2) ? pair.rendezvous + random_below(&r, 100000)
                                       : 1 + random_below(&r, 5000);
        longest = sizes[i] > longest ? sizes[i] : longest;
    }
    struct exchange e = {sizes, 40, false};
    session_pair_start(&pair, serve_reading, &e);
    uint8_t *two[2] = {malloc(longest), malloc(longest)};
    int rc = 0;
    for (unsigned i = 0; i < 40 && !rc; i++) {
        pattern_fill(two[i % 2], sizes[i], i);
        rc = ibx_session_write(pair.client, two[i % 2], sizes[i]) < 0;
        if (!rc)
            rc = ibx_session_sync(pair.client);
    }
    if (!rc)
        rc = read_pattern(pair.client, 1, 0);
    check_both(&pair, rc);
    free(two[0]);
    free(two[1]);
}

/* One sync of several long pieces and more small ones than all message slots hold. */
static int write_mixture(struct ibx_session *s, size_t rendezvous, uint8_t **bytes)
{
    size_t longs = rendezvous + 777, shorts = 600000;
    *bytes = malloc(2 * longs + shorts);
    pattern_fill(*bytes, 2 * longs + shorts, 5);
    if (ibx_session_write(s, *bytes, longs) < 0)
        return -1;
    for (size_t at = 0; at < shorts; at += 100) {
        if (ibx_session_write(s, *bytes + longs + at, 100) != 100)
            return -1;
    }
    if (ibx_session_write(s, *bytes + longs + shorts, longs) < 0)
        return -1;
    return ibx_session_sync(s);
}

static int read_mixture(struct ibx_session *s, size_t rendezvous)
{
    return read_pattern(s, 2 * (rendezvous + 777) + 600000, 5);
}

static int serve_mixture(struct session_pair *pair, void *argument)
{
    uint8_t *bytes = NULL;
    (void)argument;
    int rc = read_mixture(pair->server, pair->rendezvous);
    if (!rc)
        rc = write_mixture(pair->server, pair->rendezvous, &bytes);
    free(bytes);
    return rc;
}

static void long_and_short_pieces_in_one_sync(void **state)
{
    (void)state;
    struct session_pair pair;
    uint8_t *bytes = NULL;
    session_pair_open(&pair);
    session_pair_start(&pair, serve_mixture, NULL);
    int rc = write_mixture(pair.client, pair.rendezvous, &bytes);
    if (!rc)
        rc = read_mixture(pair.client, pair.rendezvous);
    check_both(&pair, rc);
    free(bytes);
}

/* ------------------------------------------------------------------------- the end */

static int serve_until_end(struct session_pair *pair, void *argument)
{
    size_t *count = argument;
    uint8_t byte;
    ssize_t n;
    while ((n = ibx_session_read(pair->server, &byte, 1)) == 1) {
        if (byte != (uint8_t)*count)
            return -1;
        ++*count;
    }
    return (int)n;
}

/* What was synced before the close is read; then the stream has ended. */
static void end_comes_after_the_bytes(void **state)
{
    (void)state;
    for (unsigned writes = 0; writes < 28; writes++) {
        struct session_pair pair;
        size_t count = 0;
        bool before = writes % 2; /* the client closes before the server begins to read */
        session_pair_open(&pair);
        for (unsigned i = 0; i < writes / 2; i++) {
            uint8_t byte = (uint8_t)i;
            assert_int_equal(ibx_session_write(pair.client, &byte, 1), 1);
            assert_int_equal(ibx_session_sync(pair.client), 0);
        }
        if (before)
            ibx_session_close(pair.client);
        session_pair_start(&pair, serve_until_end, &count);
        if (!before)
            ibx_session_close(pair.client);
        assert_int_equal(session_pair_join(&pair), 0);
        assert_int_equal(count, writes / 2);
        uint8_t byte;
        assert_int_equal(ibx_session_read(pair.server, &byte, 1), 0);
        assert_int_equal(ibx_session_write(pair.server, &byte, 1), -ENOTCONN);
        assert_int_equal(ibx_session_sync(pair.server), -ENOTCONN);
        session_pair_close(&pair);
    }
}

static int serve_one_read(struct session_pair *pair, void *argument)
{
    uint8_t *bytes = malloc(*(size_t *)argument);
    ssize_t n = ibx_session_read(pair->server, bytes, *(size_t *)argument);
    free(bytes);
    return (int)n;
}

/* An end in the middle of a read is reported as an end, never as a short count. */
static void end_in_the_middle_of_a_read(void **state)
{
    (void)state;
    struct session_pair pair;
    size_t wanted = 100;
    session_pair_open(&pair);
    session_pair_start(&pair, serve_one_read, &wanted);
    assert_int_equal(ibx_session_write(pair.client, "half of it", 10), 10);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    ibx_session_close(pair.client);
    assert_int_equal(session_pair_join(&pair), 0);
    session_pair_close(&pair);
}

/* A client closes while its body is wanted, or a server while its own is. The other side returns
 * with an error or the end. */
static void end_in_the_middle_of_a_body(void **state)
{
    (void)state;
    struct session_pair pair;
    session_pair_open(&pair);
    size_t n = pair.rendezvous + 100000;
    uint8_t *bytes = calloc(1, n);
    assert_int_equal(ibx_session_write(pair.client, bytes, n), n);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    ibx_session_close(pair.client);
    session_pair_start(&pair, serve_one_read, &n);
    assert_true(session_pair_join(&pair) <= 0);
    session_pair_close(&pair);

    session_pair_open_bare_client(&pair);
    assert_int_equal(ibx_session_write(pair.server, bytes, n), n);
    session_pair_leave(&pair);
    assert_true(ibx_session_sync(pair.server) < 0);
    assert_string_not_equal(ibx_session_reason(pair.server), "");
    session_pair_close(&pair);
    free(bytes);
}

static void sessions_in_the_wrong_state(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_session *s;
    struct ibx_error err = {0};
    uint8_t byte = 0;
    ibx_options_init(&options);
    assert_int_equal(ibx_session_create("nonsense", &options, &s, &err), -EINVAL);
    assert_int_equal(ibx_session_create("rdma://127.0.0.1:0", &options, &s, &err), 0);
    assert_int_equal(ibx_session_read(s, &byte, 1), 0);
    assert_int_equal(ibx_session_write(s, &byte, 1), -ENOTCONN);
    assert_int_equal(ibx_session_sync(s), -ENOTCONN);
    assert_null(ibx_session_path(s));
    struct ibx_session *none;
    assert_int_equal(ibx_session_accept(s, &none, &err), -EINVAL);
    assert_int_equal(ibx_session_serve(s, &err), 0);
    assert_int_equal(ibx_session_serve(s, &err), -EINVAL);
    assert_int_equal(ibx_session_connect(s, &err), -EINVAL);
    assert_int_equal(ibx_session_read(s, &byte, 1), 0);
    ibx_session_close(s);
    ibx_session_close(s);
    assert_int_equal(ibx_session_connect(s, &err), -EINVAL);
    ibx_session_destroy(s);
    ibx_session_destroy(NULL);
}

/* ---------------------------------------------------------------------- lost links */

static int serve_exchange_and_close(struct session_pair *pair, void *argument)
{
    int rc = serve_exchange(pair, argument);
    ibx_session_close(pair->server);
    return rc;
}

/* The n-th chunk or message of one side breaks the connection. Both sides return, and what was
 * read before was right. */
static void disconnected_at_every_step(void **state)
{
    (void)state;
    for (int side = 0; side < 2; side++) {
        bool survived = false;
        for (unsigned nth = 1; nth < 200 && !survived; nth++) {
            struct ibx_injected_faults faults = {.disconnect_in = 0};
            struct session_pair pair;
            session_faults_server = side ? &faults : NULL;
            session_faults_client = side ? NULL : &faults;
            session_pair_open(&pair);
            size_t sizes[2] = {pair.rendezvous + 300000, 20};
            struct exchange e = {sizes, 2, false};
            faults.disconnect_in = nth;
            session_pair_start(&pair, serve_exchange_and_close, &e);
            int rc = send_requests(pair.client, &e);
            if (rc)
                ibx_session_close(pair.client);
            int served = session_pair_join(&pair);
            assert_int_not_equal(rc, -2); /* wrong bytes */
            assert_int_not_equal(served, -2);
            survived = !rc && !served;
            session_pair_close(&pair);
        }
        assert_true(survived);
    }
    session_faults_server = session_faults_client = NULL;
}

/* A copy that fails ends the session, with the reason. */
static void failing_copy_ends_the_session(void **state)
{
    (void)state;
    struct ibx_injected_faults faults = {0};
    struct session_pair pair;
    session_faults_server = &faults;
    session_pair_open(&pair);
    session_faults_server = NULL;
    size_t n = pair.rendezvous + 300000;
    uint8_t *bytes = calloc(1, n);
    faults.fail_in = 1;
    session_pair_start(&pair, serve_one_read, &n);
    assert_int_equal(ibx_session_write(pair.client, bytes, n), n);
    assert_int_equal(ibx_session_sync(pair.client), 0);
    uint8_t byte;
    assert_true(ibx_session_read(pair.client, &byte, 1) <= 0);
    assert_int_equal(session_pair_join(&pair), -EIO);
    assert_non_null(strstr(ibx_session_reason(pair.server), "copying with"));
    session_pair_close(&pair);
    free(bytes);
}

/* The child's copy of the session ends, and the parent's continues. */
static void a_forked_child_has_no_session(void **state)
{
    (void)state;
    static const size_t sizes[] = {100, 300000};
    const struct exchange e = {sizes, 2, false};
    struct session_pair pair;
    int status = -1;
    session_pair_open(&pair);
    const pid_t child = fork();
    if (!child) {
        uint8_t *bytes, byte;
        const int rc = write_pattern(pair.client, 100, 0, &bytes);
        const bool refused = rc && ibx_session_read(pair.client, &byte, 1) <= 0 &&
                             strstr(ibx_session_reason(pair.client), "its parent's");
        ibx_session_close(pair.client);
        _exit(refused ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    run_exchange(&pair, &e);
}

static int warm_up(void **state)
{
    struct session_pair pair;
    (void)state;
    ibx_log_set_level(IBX_LOG_ERROR);
    session_pair_open(&pair); /* opens what a fabric's library opens once and keeps */
    session_pair_close(&pair);
    return 0;
}

static int fds_before;

/* An alarm kills a test that hangs. */
static int begin(void **state)
{
    (void)state;
    fds_before = open_fds();
    alarm(120 * patience_times());
    return 0;
}

static int end(void **state)
{
    (void)state;
    alarm(0);
    if (open_fds() != fds_before) {
        print_error("%d descriptors are open, %d were\n", open_fds(), fds_before);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(any_split_gives_the_same_bytes),  TEST(sizes_round_the_boundaries),
        TEST(long_bodies_both_ways),           TEST(nothing_is_written_and_read),
        TEST(requests_before_answers),         TEST(requests_when_counters_wrap),
        TEST(late_reply_when_counters_wrap),   TEST(too_many_requests_ahead),
        TEST(writes_and_syncs_without_a_read), TEST(long_and_short_pieces_in_one_sync),
        TEST(end_comes_after_the_bytes),       TEST(end_in_the_middle_of_a_read),
        TEST(end_in_the_middle_of_a_body),     TEST(sessions_in_the_wrong_state),
        TEST(disconnected_at_every_step),      TEST(failing_copy_ends_the_session),
        TEST(a_forked_child_has_no_session),
    };
    if (argc > 1)
        session_pair_use(argv[1], argc > 3 ? argv[3] : NULL, NULL, NULL);
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests(tests, warm_up, NULL);
}
