/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls that were answered before the back end has run them, over connections that break. Each
 * is run once and in order, whatever the next connection can carry.
 *
 *   test_resume_calls PROVIDER [CUTS]    shm, tcp, ...; the least number of random cuts */
#include "tests/fixtures/cuts.h"
#include "tests/fixtures/patience.h"

#include "common/clock.h"
#include "frontend-glue/call_pipeline/internal.h"
#include "frontend-glue/client_copies/client_frame.h"
#include "frontend-glue/session/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#define SLOTS          16u
#define LONG_BODY      1900u
#define LONG_EXTENSION 34000u /* a launch with the longest arguments */
#define LONG_COPY      65536u
#define EXTENSION      65536u /* no request with such a number has an effect in this test */
#define TINY           1024u  /* the shortest message length that can be agreed on */

static unsigned random_cuts = 40;
static struct session_pair pair;
static struct ibx_pipeline *pipeline;
/* calls that the back end has run, each of which has its number in its body */
static atomic_uint effects;
static atomic_bool wrong, busy;
static atomic_uint cut_short; /* extension requests that continue in another message */
static unsigned gone_ahead;   /* copies that have returned early */
static bool gathers; /* some calls stay in the backlog; then only the monitor notices a cut */
static bool runs_extensions; /* the back end's plugin runs requests, as in device_copies/ */
static bool between;         /* the back end is about to read the first byte of a request */

/* ---------------------------------------------------------------------- the back end */

static void note_effect(const uint8_t *body, uint64_t length, size_t around)
{
    uint64_t number;
    memcpy(&number, body, 8);
    if (number >= EXTENSION)
        number /= EXTENSION;
    const size_t payload = (size_t)length - around;
    wrong = wrong || number != effects || pattern_check(body + 16, payload, number) != payload;
    effects++;
}

static int answer(struct ibx_session *s)
{
    static const uint8_t reply[20];
    for (size_t at = 0; at < sizeof(reply); at += at ? 8 : 4)
        ibx_session_write(s, reply + at, at ? 8 : 4);
    return ibx_session_sync(s);
}

static bool wants_request(void *context)
{
    (void)context;
    return between;
}

static int run_extension(void *context, const struct ibx_request *q)
{
    (void)context;
    if (!q->called || q->called->kind != IBX_CALL_EXTENSION)
        return IBX_REQUEST_PASS;
    note_effect(q->body, q->length, 36);
    ibx_session_consume(pair.server, q);
    const int rc = answer(pair.server);
    return rc ? rc : IBX_REQUEST_DONE;
}

static const struct ibx_session_hooks own_hooks = {.wants_request = wants_request,
                                                   .request = run_extension};

/* Serves like GVirtuS. The body of each call starts with a number; the call's effect is to
 * count. */
static int serve(struct ibx_session *s, void *argument)
{
    uint8_t *body = malloc(1 << 20);
    (void)argument;
    for (;;) {
        char name[64];
        uint64_t length;
        size_t n = 0;
        between = runs_extensions;
        while (n < sizeof(name) && ibx_session_read(s, name + n, 1) == 1 && name[n]) {
            between = false;
            n++;
        }
        if (n == sizeof(name) || !ibx_session_live(s) || ibx_session_read(s, &length, 8) != 8)
            break;
        const bool extension = !strcmp(name, IBX_EXT_NAME);
        cut_short += extension && s->in.segment.left < length;
        wrong = wrong || (extension && runs_extensions);
        if (ibx_session_read(s, body, length) != (ssize_t)length)
            break;
        while (busy)
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        note_effect(body, length, strcmp(name, "cudaMemcpy") ? 36 : 28);
        if (answer(s))
            break;
    }
    free(body);
    return 0;
}

static int serve_pair(struct session_pair *p, void *argument)
{
    return serve(p->server, argument);
}

/* ------------------------------------------------------------------------- the calls */

/* A copy of n bytes to the device address `number`, in a stream. */
static void put_call(uint8_t *body, unsigned number, size_t n)
{
    struct ibx_writer w = ibx_writer_of(body, n + 36);
    ibx_put_u64(&w, number);
    ibx_put_u64(&w, n);
    pattern_fill(body + w.length, n, number);
    w.length += n;
    ibx_put_u64(&w, n);
    ibx_put_u32(&w, IBX_FRAME_H2D);
    ibx_put_u64(&w, 5);
}

static void put_extension(uint8_t *body, unsigned number, size_t n)
{
    const uint64_t extension_number = (uint64_t)number * EXTENSION;
    put_call(body, number, n);
    memcpy(body, &extension_number, 8);
}

/* A call that is answered at once. */
static void call_ahead(unsigned number, size_t n)
{
    uint8_t body[LONG_BODY + 36];
    int code = -1;
    put_call(body, number, n);
    const struct ibx_pipeline_request call = {.name = "cudaMemcpyAsync", .body = body, .n = n + 36};
    assert_int_equal(ibx_pipeline_call(pipeline, &call, &code), 0);
    assert_int_equal(code, 0);
}

/* A synchronous copy that is answered at once; its memory is reused then. */
static void copy_ahead(unsigned number, size_t n)
{
    static uint8_t bytes[LONG_COPY];
    int code = -1;
    const struct ibx_frontend_copy copy = {
        .to_device = true, .device = number, .host = bytes, .n = n};
    pattern_fill(bytes, n, number);
    ibx_process_settled(ibx_process_left());
    ibx_client_stage_ahead(pair.client)->reached = true;
    if (gathers && ibx_pipeline_copy_gathered(pipeline, copy.device, copy.host, copy.n)) {
        memset(bytes, 0x5a, n);
        gone_ahead++;
        return;
    }
    ibx_pipeline_lock(pipeline);
    const bool can = ibx_client_can_go_ahead(pair.client, &copy);
    ibx_pipeline_unlock(pipeline);
    if (!can) { /* messages are too short on this connection */
        call_ahead(number, n < LONG_BODY ? n : LONG_BODY);
        return;
    }
    assert_true(ibx_pipeline_copy_begin(pipeline, copy.device, copy.n));
    ibx_client_go_ahead(pair.client, &copy, &code);
    ibx_pipeline_copy_end(pipeline);
    assert_int_equal(code, 0);
    memset(bytes, 0x5a, n);
    gone_ahead++;
}

/* A call that GVirtuS does not have, and that waits for its reply. */
static void call_extension(unsigned number, size_t n)
{
    static uint8_t body[LONG_EXTENSION + 36];
    int code = -1;
    put_extension(body, number, n);
    const struct ibx_pipeline_request call = {.name = IBX_EXT_NAME, .body = body, .n = n + 36};
    assert_int_equal(ibx_pipeline_call(pipeline, &call, &code), 0);
    assert_int_equal(code, 0);
    assert_int_equal(effects, number + 1);
}

/* A call that waits, as GVirtuS's front end makes it. */
static void call_and_wait(unsigned number, size_t n)
{
    uint8_t body[LONG_BODY + 36];
    const uint64_t length = n + 36;
    uint8_t reply[20] = {1};
    put_call(body, number, n);
    ibx_pipeline_write(pipeline, "cudaSomething", 14);
    ibx_pipeline_write(pipeline, &length, 8);
    ibx_pipeline_write(pipeline, body, length);
    ibx_pipeline_sync(pipeline);
    for (size_t at = 0; at < sizeof(reply); at += at ? 8 : 4)
        assert_true(ibx_pipeline_read(pipeline, reply + at, at ? 8 : 4));
    assert_int_equal(reply[0], 0);
    assert_int_equal(effects, number + 1);
}

static void wait_for_effects(unsigned count)
{
    const uint64_t deadline = ibx_deadline_in_ms(patience_ms(30000));
    while (effects < count && ibx_now_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(effects, count);
}

/* ------------------------------------------------------------------------- the tests */

static void begin(void)
{
    effects = 0;
    wrong = false;
    session_keeps = 30;
    client_end.count = server_end.count = 0;
    session_pair_open(&pair);
    if (runs_extensions)
        ibx_session_set_hooks(pair.server, &own_hooks, NULL);
    session_pair_start(&pair, serve_pair, NULL);
    pipeline = ibx_pipeline_create(pair.client, IBX_PIPELINE_ALL);
    assert_non_null(pipeline);
    ibx_pipeline_learn(pipeline, "cudaMemcpyAsync");
    ibx_pipeline_learn(pipeline, "cudaMemcpy");
    ibx_allocations_add(0, 1u << 30);
}

static void end(void)
{
    ibx_pipeline_destroy(pipeline);
    ibx_session_close(pair.client);
    session_pair_join(&pair);
    session_pair_close(&pair);
    assert_false(wrong);
}

static void tiny_messages(struct ibx_options *options, unsigned n)
{
    if (n)
        options->message = TINY;
}

static void always_tiny_messages(struct ibx_options *options, unsigned n)
{
    (void)n;
    options->message = TINY;
}

/* The session continues over a connection with shorter messages. Returns how many calls were
 * made. */
static unsigned continue_with_shorter_messages(void)
{
    unsigned number = 0;
    cuts_plan_nothing();
    cuts_connect_with = tiny_messages;
    begin();
    while (number < 2 * SLOTS) /* so that the messages that are kept are short */
        call_and_wait(number++, 10);
    ibx_pipeline_lock(pipeline);
    ibx_abort(pair.client->conn);
    ibx_pipeline_unlock(pipeline);
    call_and_wait(number++, 10);
    assert_int_equal(ibx_session_resumed(pair.client), 1);
    return number;
}

/* A call that was accepted when messages were longer is sent in several messages, even if no
 * further call follows. */
static void test_shorter_messages(void **state)
{
    (void)state;
    unsigned number = continue_with_shorter_messages();
    if (strcmp(ibx_session_path(pair.client)->provider, "tcp")) /* tcp always has long messages */
        assert_in_range(ibx_session_room(pair.client), 1, TINY);
    for (unsigned i = 0; i < 3; i++) {
        call_ahead(number++, LONG_BODY);
        wait_for_effects(number);
    }
    for (unsigned i = 0; i < 100; i++)
        call_ahead(number++, i % 3 ? 10 : LONG_BODY - i);
    wait_for_effects(number);
    call_and_wait(number++, 10);
    end();
    cuts_connect_with = NULL;
}

/* The same for calls for which the end of the process waits. */
static void test_shorter_messages_at_the_end(void **state)
{
    (void)state;
    unsigned number = continue_with_shorter_messages();
    for (unsigned i = 0; i < 20; i++)
        call_ahead(number++, LONG_BODY);
    assert_true(ibx_pipeline_finish(pipeline, 10000));
    assert_int_equal(effects, number);
    end();
    cuts_connect_with = NULL;
}

/* An extension request, which only the plugin can run, must fit into one message. */
static void test_whole_requests(void **state)
{
    (void)state;
    unsigned number = 0;
    cuts_plan_nothing();
    begin();
    cut_short = 0;
    for (unsigned i = 0; i < 40; i++) {
        uint8_t body[LONG_BODY + 36];
        int code = -1;
        const struct ibx_pipeline_request call = {
            .name = IBX_EXT_NAME, .body = body, .n = sizeof(body)};
        busy = true; /* so that messages are not taken, and calls wait in the backlog */
        for (unsigned k = 0; k < 60 + i; k++)
            call_ahead(number++, LONG_BODY);
        put_extension(body, number++, LONG_BODY);
        busy = false;
        assert_int_equal(ibx_pipeline_call(pipeline, &call, &code), 0);
        assert_int_equal(code, 0);
    }
    end();
    assert_int_equal(effects, number);
    assert_int_equal(cut_short, 0);
}

/* A request that is longer than the messages of the connection over which the session continues. */
static void test_extensions_in_pieces(void **state)
{
    (void)state;
    runs_extensions = true;
    unsigned number = continue_with_shorter_messages();
    for (size_t n = 800; n < LONG_BODY; n += 7) { /* wherever they are cut */
        call_ahead(number++, n / 3);
        call_extension(number++, n);
    }
    for (size_t n = LONG_BODY; n <= LONG_EXTENSION;
         n += 401) { /* too long for a short request as well */
        call_ahead(number++, n % LONG_BODY);
        call_extension(number++, n);
    }
    call_and_wait(number++, 10);
    end();
    runs_extensions = false;
    cuts_connect_with = NULL;
}

/* Copies that have returned early, with the connection cut at each message of either end. */
static void test_copies_ahead(void **state)
{
    (void)state;
    gone_ahead = 0;
    for (unsigned cut = 1; cut <= 2 * 40; cut++) {
        unsigned number = 0;
        cuts_plan_nothing();
        (cut % 2 ? &client_end : &server_end)->plan[0] = 3 + cut / 2;
        gathers = cut % 20 == 9;
        begin();
        for (unsigned i = 0; i < 24; i++)
            copy_ahead(number++, i % 3 ? 10000 + i : LONG_COPY - i);
        call_and_wait(number++, 10);
        end();
        assert_int_equal(effects, number);
    }
    assert_true(gone_ahead > 1000);
}

/* Returns how often the session has continued. */
static unsigned run_calls(uint64_t seed)
{
    struct random random = {seed};
    unsigned number = 0;
    gathers = seed % 4 == 1;
    begin();
    for (unsigned i = 0; i < 400; i++) {
        const size_t n = random_below(&random, 20) ? 10 : random_below(&random, LONG_BODY);
        const size_t kind = random_below(&random, 30);
        if (kind == 1 && runs_extensions)
            call_extension(number++, i % 2 ? n + 900 : 1 + random_below(&random, LONG_EXTENSION));
        else if (kind < 4)
            copy_ahead(number++, 1 + random_below(&random, i % 4 ? 20000 : LONG_COPY));
        else if (kind)
            call_ahead(number++, n);
        else
            call_and_wait(number++, n);
    }
    ibx_pipeline_lock(pipeline);
    cuts_disarm(&client_end);
    ibx_pipeline_unlock(pipeline);
    call_and_wait(number++, 1);
    const unsigned resumed = ibx_session_resumed(pair.client);
    end();
    assert_int_equal(effects, number);
    return resumed;
}

static unsigned cut_at_random(unsigned least)
{
    unsigned cuts = 0;
    for (uint64_t seed = 1; cuts < least; seed++) {
        cuts_plan_nothing();
        client_end.random.state = seed;
        client_end.often = 60;
        client_end.plan[0] = 3 + (unsigned)seed % 30;
        cuts += run_calls(seed);
    }
    return cuts;
}

static void test_at_random(void **state)
{
    (void)state;
    print_message("%u cuts\n", cut_at_random(random_cuts));
}

/* Each request is run once, whatever is sent in pieces. */
static void test_extensions_at_random(void **state)
{
    (void)state;
    runs_extensions = true;
    cuts_connect_with = always_tiny_messages;
    print_message("%u cuts\n", cut_at_random(random_cuts));
    runs_extensions = false;
    cuts_connect_with = NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shorter_messages),
        cmocka_unit_test(test_shorter_messages_at_the_end),
        cmocka_unit_test(test_whole_requests),
        cmocka_unit_test(test_extensions_in_pieces),
        cmocka_unit_test(test_copies_ahead),
        cmocka_unit_test(test_at_random),
        cmocka_unit_test(test_extensions_at_random),
    };
    if (argc > 2)
        random_cuts = (unsigned)strtoul(argv[2], NULL, 10);
    session_pair_use(argc > 1 ? argv[1] : "tcp", NULL, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
