/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A reply to a call that ibx makes for the application ends early, or does not match the call's
 * output: the call returns an error. If a reply that GVirtuS reads is broken, the application
 * ends (session-copy), because GVirtuS cannot report it. */
#include "frontend-glue/call_pipeline/pipeline.h"
#include "frontend-glue/session/extensions.h"
#include "tests/fixtures/session_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define OUT 8u

/* How a back end answers: `out` bytes of output, although it may announce more. */
struct reply {
    int code;
    uint64_t said;
    size_t head, out; /* bytes that are sent */
    bool ends;        /* the connection ends with the reply */
};

static int serve(struct session_pair *pair, void *argument)
{
    const struct reply *reply = argument;
    uint8_t request[sizeof(IBX_EXT_NAME) + 8 + 2], head[20], out[64] = {7};
    struct ibx_writer w = ibx_writer_of(head, sizeof(head));
    if (ibx_session_read(pair->server, request, sizeof(request)) != sizeof(request))
        return -1;
    ibx_put_u32(&w, (uint32_t)reply->code);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, reply->said);
    ibx_session_write(pair->server, head, reply->head);
    if (reply->out)
        ibx_session_write(pair->server, out, reply->out);
    ibx_session_sync(pair->server);
    if (reply->ends)
        ibx_session_close(pair->server);
    return 0;
}

/* Returns what the call returns. After the connection has ended, the next call fails too. */
static int call(struct reply reply, uint8_t out[OUT])
{
    struct session_pair pair;
    const struct ibx_pipeline_request request = {
        .name = IBX_EXT_NAME, .body = "\1", .n = 2, .out = out, .out_n = OUT};
    int code = -1, unused;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    struct ibx_pipeline *p = ibx_pipeline_create(pair.client, IBX_PIPELINE_ALL);
    assert_non_null(p);
    session_pair_start(&pair, serve, &reply);
    assert_int_equal(ibx_pipeline_call(p, &request, &code), 0);
    assert_int_equal(session_pair_join(&pair), 0);
    if (reply.ends)
        assert_true(ibx_pipeline_call(p, &request, &unused) || unused);
    assert_true(ibx_pipeline_destroy(p));
    session_pair_close(&pair);
    return code;
}

static void a_reply_breaks_off(void **state)
{
    (void)state;
    uint8_t out[OUT];
    for (size_t head = 0; head < 20; head += head ? 8 : 4)
        assert_int_equal(call((struct reply){.said = OUT, .head = head, .ends = true}, out), 999);
    assert_int_equal(call((struct reply){0, OUT, 20, 4, true}, out), 999);
    assert_int_equal(call((struct reply){0, UINT64_MAX, 20, 64, true}, out), 999);
    assert_int_equal(call((struct reply){2, UINT64_MAX, 20, 64, true}, out), 999);
}

/* The output has room for eight bytes, and no others are written. */
static void a_reply_has_another_length(void **state)
{
    (void)state;
    uint8_t out[OUT];
    for (size_t n = 0; n <= 64; n += 4) {
        memset(out, 0xee, sizeof(out));
        const int code = call((struct reply){0, n, 20, n, false}, out);
        assert_int_equal(code, n == OUT ? 0 : 999);
        assert_int_equal(out[0], n == OUT ? 7 : 0xee);
    }
    assert_int_equal(call((struct reply){2, 64, 20, 64, false}, out), 2);
}

/* Nothing comes of what is said, and the connection stays: the call would wait for ever. */
static void a_reply_is_endless(void **state)
{
    (void)state;
    uint8_t out[OUT];
    for (int code = 0; code < 3; code += 2) {
        for (unsigned bits = 24; bits <= 64; bits += 8) {
            const uint64_t said = UINT64_MAX >> (64 - bits);
            assert_int_equal(call((struct reply){code, said, 20, 64, false}, out), 999);
        }
    }
}

/* Another thread may have found the end of the session since the reply's head was read. */
static void a_session_ends_before_its_output_is_read(void **state)
{
    struct session_pair pair;
    (void)state;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    assert_int_equal(ibx_session_check_unread(pair.client, 8), 0);
    ibx_session_close(pair.client);
    assert_int_not_equal(ibx_session_check_unread(pair.client, 8), 0);
    session_pair_close(&pair);
}

/* Runs a first record, and says that the second one has more output than any reply. */
static int say_endless_output(struct session_pair *pair, void *argument)
{
    uint8_t request[sizeof("cudaEventRecord") + 8 + 16], head[20] = {0};
    (void)argument;
    for (unsigned i = 0; i < 2; i++) {
        if (ibx_session_read(pair->server, request, sizeof(request)) != sizeof(request))
            return -1;
        memset(head + 12, i ? 0xff : 0, 8);
        ibx_session_write(pair->server, head, sizeof(head));
        ibx_session_sync(pair->server);
    }
    return 0;
}

/* The second record was answered before it was run. The next call would wait for ever. */
static void a_reply_that_nobody_reads_is_endless(void **state)
{
    static const uint64_t handles[2] = {7, 5};
    struct session_pair pair;
    const struct ibx_pipeline_request record = {
        .name = "cudaEventRecord", .body = handles, .n = sizeof(handles)};
    const struct ibx_pipeline_request wait = {.name = "cudaDeviceSynchronize", .body = ""};
    int code = -1;
    (void)state;
    session_pair_use("tcp", NULL, NULL, NULL);
    session_pair_open(&pair);
    struct ibx_pipeline *p = ibx_pipeline_create(pair.client, IBX_PIPELINE_ALL);
    assert_non_null(p);
    ibx_pipeline_learn(p, "cudaEventRecord");
    ibx_pipeline_learn(p, "cudaDeviceSynchronize");
    session_pair_start(&pair, say_endless_output, NULL);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ibx_pipeline_call(p, &record, &code), 0);
        assert_int_equal(code, 0);
    }
    assert_int_equal(ibx_pipeline_call(p, &wait, &code), 0);
    assert_int_equal(code, 999);
    assert_int_equal(session_pair_join(&pair), 0);
    assert_true(ibx_pipeline_destroy(p));
    session_pair_close(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_breaks_off),
        cmocka_unit_test(a_reply_has_another_length),
        cmocka_unit_test(a_reply_is_endless),
        cmocka_unit_test(a_session_ends_before_its_output_is_read),
        cmocka_unit_test(a_reply_that_nobody_reads_is_endless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
