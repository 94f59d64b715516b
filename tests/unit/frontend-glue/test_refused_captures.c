/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The end of a stream is refused, as a request uses the graph of its capture for too long. */
#include "frontend-glue/session/session_internal.h"
#include "tests/unit/frontend-glue/told_captures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct client other; /* another session of alice's */

static void make_other(void)
{
    other.x.s = session;
    other.x.options.mode = IBX_GPU_ON;
    other.x.replies.shape = IBX_REPLY_TIMED;
    other.x.isolation = alice.x.isolation;
}

static bool keeps; /* a request has the graph for too long */

bool __real_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
bool __wrap_ibx_handles_change(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value)
{
    return !keeps && __real_ibx_handles_change(x, kind, value);
}

/* The handler of alice's is about to destroy the stream. */
static void stream_is_dropped(void *stream, uint64_t *body)
{
    struct ibx_writer first = ibx_writer_of(alice.x.requests.first, 8);
    ibx_put_u64(&first, (uintptr_t)stream);
    alice.x.requests.length = 8;
    alice.x.handler.made = MADE_ENDS;
    alice.x.handler.made_kind = IBX_HANDLE_STREAM;
    assert_int_equal(ibx_made_run(&alice.x, (uint8_t *)body), 0);
    alice.x.handler.made = MADE_UNUSED;
}

/* A request of the other session, which has named the stream before, begins a capture, and a client
 * is told its graph, by a stream that has joined it. */
static void begins_unknown(void *stream)
{
    int (*get)(void *of, int *status, uint64_t *id, void **graph, void *const **behind,
               const void **edges, size_t *count) = NULL;
    int status;
    uint64_t id;
    void *graph, *const *behind;
    size_t count;
    *(void **)&get = ibx_back_end_runtime("cudaStreamGetCaptureInfo");
    ext_capture_begin(&other, stream);
    assert_int_equal(get(stream, &status, &id, &graph, &behind, NULL, &count), 0);
    assert_int_equal(ibx_captures_tell_graph(&other.x, id, (uintptr_t)graph), 0);
}

/* A stream that its users destroy, or have destroyed, is not given to the client again: the handler
 * destroys another one, or none. */
static void test_refused_stream_is_gone(void **state)
{
    int (*destroy)(uint64_t stream) = NULL;
    void (*destroyed)(void *stream) = NULL;
    (void)state;
    *(void **)&destroy = ibx_back_end_runtime("cudaStreamDestroy");
    *(void **)&destroyed = ibx_back_end_runtime("ibx_double_stream_destroyed");
    session->path.provider[0] = 'p';
    for (unsigned i = 0; i < 2; i++) {
        void *stream = ext_stream_make(&alice);
        uint64_t body[2] = {(uintptr_t)stream, 7};
        make_other();
        assert_true(ibx_named_stream(&other.x, (uintptr_t)stream));
        stream_is_dropped(stream, body);
        const uint64_t another = body[0];
        assert_true(another && another != (uintptr_t)stream);
        begins_unknown(stream);
        keeps = true;
        assert_false(handler(&alice, CAPTURES_DROPPED, stream));
        keeps = false;
        if (i) { /* it was refused before that, and its users have destroyed it */
            body[0] = 0;
            ibx_handles_let_go(&other.x);
        }
        assert_int_equal(ibx_captures_refuse(&alice.x, (uint8_t *)body), 0);
        assert_false(knows(&alice, IBX_HANDLE_STREAM, (uintptr_t)stream));
        assert_true(body[0] == (i ? 0 : another) && body[1] == 7);
        assert_int_equal(destroy(another), 0);
        answers(&alice, i ? CUDA_INVALID_HANDLE : 0);
        assert_true(ibx_captures_any() == i);
        ibx_handles_let_go(&other.x);
        assert_false(ibx_handles_there(IBX_HANDLE_STREAM, (uintptr_t)stream));
        destroyed(stream);
        ibx_captures_end(&other.x);
        assert_false(ibx_captures_any());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused_stream_is_gone)};
    return cmocka_run_group_tests(tests, ext_set_up, ext_tear_down);
}
