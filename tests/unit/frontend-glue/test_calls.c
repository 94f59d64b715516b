/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a front end knows about GVirtuS's calls, and what it learns from replies. */
#include "common/wire.h"
#include "frontend-glue/call_pipeline/reply_cache.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/extensions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct ibx_call *find(const char *name)
{
    return ibx_call_find(name, strlen(name) + 1);
}

static void names_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum ibx_call_kind kind;
    } calls[] = {
        {"cudaLaunchKernel", IBX_CALL_LAUNCH},
        {"cudaDeviceCanAccessPeer", IBX_CALL_CONSTANT}, /* the first in the table */
        {"cudaStreamWaitEvent", IBX_CALL_REPEATS},      /* the last in the table */
        {"__cudaPushCallConfiguration", IBX_CALL_PUSH}, /* the name in some generations */
        {"cudaPopCallConfiguration", IBX_CALL_POP},
        {"__cudaRegisterFunction", IBX_CALL_REGISTERS},
        {"__cudaRegisterFatBinary", IBX_CALL_RESETS}, /* other calls of this kind */
        {"cudaFuncSetAttribute", IBX_CALL_RESETS},
        {"cudaDeviceReset", IBX_CALL_RESETS},
        {"cuCtxSetCurrent", IBX_CALL_RESETS},
        {"cudaStreamBeginCaptureToGraph", IBX_CALL_BEGIN_CAPTURE},
        {"cudaIpcGetEventHandle", IBX_CALL_SHARES},
        {"cuIpcOpenEventHandle", IBX_CALL_SHARES},
        {"cudaIpcOpenMemHandle", IBX_CALL_OTHER},
        {"cudaImportExternalSemaphore", IBX_CALL_SHARES},
        {"cudaMallocManaged", IBX_CALL_OTHER},
        {"cublasSgemm", IBX_CALL_LIBRARY},
        {"cublasSgemm_v2", IBX_CALL_LIBRARY},
        {"cublasCsscal_v2", IBX_CALL_LIBRARY}, /* of two types */
        {"cublasGemmEx", IBX_CALL_LIBRARY},
        {"cublasLtMatmul", IBX_CALL_LIBRARY},
        {"cublasLtMatmulDescCreate", IBX_CALL_SETS_UP},
        {"cublasSdot_v2", IBX_CALL_OTHER}, /* these return a value */
        {"cublasScnrm2_v2", IBX_CALL_OTHER},
        {"cublasIsamax_v2", IBX_CALL_OTHER},
        {"cublasXtSgemm", IBX_CALL_OTHER}, /* uses memory of the host */
        {"cublas", IBX_CALL_OTHER},
        {"cublasS", IBX_CALL_OTHER},
        {"cublasSetStream_v2", IBX_CALL_SELECTS},
        {"cublasSetMathMode", IBX_CALL_SETS_UP},
        {"cublasDestroy_v2", IBX_CALL_SETS_UP},
        {"cufftExecC2C", IBX_CALL_LIBRARY},
        {"cufftPlan1d", IBX_CALL_SETS_UP},
        {"cudnnConvolutionForward", IBX_CALL_LIBRARY},
        {"cudnnSetTensor4dDescriptor", IBX_CALL_SETS_UP},
        {"curandGenerateUniform", IBX_CALL_LIBRARY},
        {"cusolverDnSgetrf", IBX_CALL_OTHER},
        {"ibxMathAdds", IBX_CALL_LIBRARY}, /* ibx's own */
        {"ibxMathSelects", IBX_CALL_SELECTS},
        {"ibxMathSetsUp", IBX_CALL_SETS_UP},
        {"ibxMathWaits", IBX_CALL_OTHER},
        {"ibxMathAsks", IBX_CALL_ASKS},
        {"ibxMathAborts", IBX_CALL_SETS_UP},
        {"cudaLaunchKernel_", IBX_CALL_OTHER},
        {"cudaLaunchKerne", IBX_CALL_OTHER},
        {"", IBX_CALL_OTHER},
    };
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (find(calls[i].name)->kind != calls[i].kind)
            fail_msg("%s", calls[i].name);
    }
    /* without a NUL */
    assert_int_equal(ibx_call_find("cudaLaunchKernel", 16)->kind, IBX_CALL_RESETS);
    assert_int_equal(ibx_call_find("cudaFree\0x", 10)->kind, IBX_CALL_RESETS);
}

static void unknown_calls_come_after_everything(void **state)
{
    (void)state;
    static const char *const names[] = {"cusolverDnSgetrf", "cudaDeviceReset", "cudaBeginCapture"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(find(names[i])->stream_at, IBX_CALL_ALL_STREAMS);
        assert_true(find(names[i])->event);
        assert_false(ibx_call_is_quick(find(names[i]), NULL, 0));
    }
}

static bool is_quick(const char *name, uint16_t number)
{
    uint8_t body[64];
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    ibx_put_u16(&w, number);
    return ibx_call_is_quick(find(name), body, sizeof(body));
}

static void replies_of_quick_calls_wait(void **state)
{
    (void)state;
    assert_true(is_quick("cudaLaunchKernel", 0));
    assert_false(is_quick("cudaMemcpyAsync", 0)); /* a session may run it */
    assert_false(is_quick("cudaStreamSynchronize", 0));
    assert_false(is_quick("cudaMalloc", IBX_EXT_SET_KERNEL));
    assert_true(is_quick(IBX_EXT_NAME, IBX_EXT_SET_KERNEL));
    assert_false(is_quick(IBX_EXT_NAME, IBX_EXT_EXEC_UPDATE));
    assert_false(ibx_call_is_quick(find(IBX_EXT_NAME), NULL, 0));
}

static void streams_are_where_requests_have_them(void **state)
{
    (void)state;
    uint8_t body[64] = {0};
    uint64_t stream = 0;
    struct ibx_writer w = ibx_writer_of(body + 40, 24);
    ibx_put_u64(&w, 0x1122);
    assert_true(ibx_call_stream(find("cudaLaunchKernel"), body, 64, &stream));
    assert_int_equal(stream, 0x1122);
    /* the stream is in its last bytes */
    assert_true(ibx_call_stream(find("cudaMemsetAsync"), body, 48, &stream));
    assert_int_equal(stream, 0x1122);
    assert_false(ibx_call_stream(find("cudaLaunchKernel"), body, 47, &stream));
    assert_false(ibx_call_stream(find("cudaMemsetAsync"), body, 7, &stream));
    assert_false(ibx_call_stream(find("cudaFree"), body, 8, &stream));
    assert_false(ibx_call_stream(find("cudaGetDevice"), body, 8, &stream));
}

static void requests_are_found_whole(void **state)
{
    (void)state;
    static const uint8_t bytes[] = "cudaFree\0\3\0\0\0\0\0\0\0abcd";
    const struct ibx_call *call = NULL;
    const size_t whole = 9 + 8 + 3;
    for (size_t n = 0; n < whole; n++)
        assert_int_equal(ibx_call_request(bytes, n, &call), 0);
    assert_null(call);
    assert_int_equal(ibx_call_request(bytes, whole, &call), whole);
    assert_int_equal(ibx_call_request(bytes, whole + 1, &call), whole);
    assert_string_equal(call->name, "cudaFree");
    static const uint8_t longest[] = "cudaFree\0\377\377\377\377\377\377\377\377ab";
    assert_int_equal(ibx_call_request(longest, sizeof(longest), &call), 0);
}

static void successes_are_remembered(void **state)
{
    (void)state;
    struct ibx_successes set = {0};
    for (uint64_t i = 1; i <= 5000; i++) {
        const uint64_t hash = ibx_request_hash(1, &i, sizeof(i));
        assert_false(ibx_successes_hold(&set, hash));
        ibx_successes_add(&set, hash);
        ibx_successes_add(&set, hash);
        assert_true(ibx_successes_hold(&set, hash));
        assert_int_equal(set.count, i);
        assert_int_not_equal(hash, ibx_request_hash(2, &i, sizeof(i)));
        assert_int_not_equal(hash, ibx_request_hash(1, &i, sizeof(i) - 1));
    }
    for (uint64_t i = 1; i <= 5000; i++)
        assert_true(ibx_successes_hold(&set, ibx_request_hash(1, &i, sizeof(i))));
    ibx_successes_clear(&set);
    assert_false(ibx_successes_hold(&set, ibx_request_hash(1, "", 0)));
    for (uint64_t i = 1; i <= IBX_SUCCESSES_MAX + 10; i++) /* then the set starts anew */
        ibx_successes_add(&set, i);
    assert_int_equal(set.count, 10);
    ibx_successes_fini(&set);
}

static void replies_are_remembered(void **state)
{
    (void)state;
    struct ibx_known_replies replies = {0};
    char request[8], reply[8];
    for (unsigned i = 0; i < IBX_REPLIES + 5; i++) { /* the oldest are dropped */
        snprintf(request, sizeof(request), "q%u", i);
        snprintf(reply, sizeof(reply), "r%u", i);
        assert_null(ibx_replies_find(&replies, request, strlen(request)));
        ibx_replies_add(&replies, request, strlen(request), reply, strlen(reply));
        const struct ibx_known_reply *known = ibx_replies_find(&replies, request, strlen(request));
        assert_non_null(known);
        assert_int_equal(known->reply, strlen(reply));
        assert_memory_equal(known->bytes + known->request, reply, known->reply);
    }
    assert_null(ibx_replies_find(&replies, "q4", 2));
    assert_non_null(ibx_replies_find(&replies, "q5", 2));
    static const char large[IBX_REPLY_MAX + 1];
    ibx_replies_add(&replies, large, sizeof(large), "r", 1);
    ibx_replies_add(&replies, "q", 1, large, sizeof(large));
    assert_null(ibx_replies_find(&replies, "q", 1));
    ibx_replies_clear(&replies);
    assert_null(ibx_replies_find(&replies, "q5", 2));
}

/* Makes a reply to cudaPopCallConfiguration. Each bit in `form` says that a field is preceded by
 * its length. */
static size_t pop_reply(const uint8_t *pushed, int form, uint8_t out[72])
{
    static const size_t fields[] = {12, 12, 8, 8};
    struct ibx_writer w = ibx_writer_of(out, 72);
    for (int i = 0; i < 4; i++) {
        if (form & 1 << i)
            ibx_put_u64(&w, fields[i]);
        ibx_put_bytes(&w, pushed, fields[i]);
        pushed += fields[i];
    }
    return w.length;
}

static void configurations_come_back_as_the_back_end_gives_them(void **state)
{
    (void)state;
    for (int form = 0; form < 16; form++) {
        struct ibx_configurations all;
        uint8_t first[40], second[40], out[72], expected[72];
        for (uint8_t i = 0; i < 40; i++) {
            first[i] = (uint8_t)(i + 1);
            second[i] = (uint8_t)(i * 3 + 1);
        }
        ibx_configurations_init(&all);
        ibx_configurations_push(&all, first, true);
        assert_int_equal(ibx_configurations_pop(&all, out), 0); /* the back end has it */
        ibx_configurations_popped(&all, expected, pop_reply(first, form, expected));
        assert_int_equal(all.form, form);
        ibx_configurations_push(&all, second, false);
        ibx_configurations_push(&all, first, false);
        size_t n = pop_reply(first, form, expected);
        assert_int_equal(ibx_configurations_pop(&all, out), n);
        assert_memory_equal(out, expected, n);
        pop_reply(second, form, expected);
        assert_int_equal(ibx_configurations_pop(&all, out), n);
        assert_memory_equal(out, expected, n);
        assert_int_equal(ibx_configurations_pop(&all, out), 0);
    }
}

static void replies_of_another_form_are_never_made(void **state)
{
    (void)state;
    struct ibx_configurations all;
    uint8_t pushed[40] = {1, 2, 3}, out[72] = {9};
    ibx_configurations_init(&all);
    ibx_configurations_push(&all, pushed, true);
    ibx_configurations_popped(&all, out, 40);
    assert_int_equal(all.form, -1);
    assert_true(all.lost);
    for (unsigned i = 0; i <= IBX_CONFIGURATIONS; i++)
        ibx_configurations_push(&all, pushed, false);
    assert_int_equal(ibx_configurations_pop(&all, out), 0);
}

/* Only the back end has those that do not fit, and they are popped first. */
static void configurations_that_do_not_fit_are_popped_first(void **state)
{
    (void)state;
    struct ibx_configurations all;
    uint8_t own[40] = {1, 2, 3}, beyond[40] = {4, 5, 6}, out[72], expected[72];
    ibx_configurations_init(&all);
    ibx_configurations_push(&all, own, true);
    ibx_configurations_popped(&all, expected, pop_reply(own, 0, expected));
    for (unsigned i = 0; i < IBX_CONFIGURATIONS; i++)
        ibx_configurations_push(&all, own, false);
    ibx_configurations_push(&all, beyond, true);
    assert_int_equal(ibx_configurations_pop(&all, out), 0);
    ibx_configurations_popped(&all, expected, pop_reply(beyond, 0, expected));
    assert_false(all.lost);
    const size_t n = pop_reply(own, 0, expected);
    for (unsigned i = 0; i < IBX_CONFIGURATIONS; i++) {
        assert_int_equal(ibx_configurations_pop(&all, out), n);
        assert_memory_equal(out, expected, n);
    }
    assert_int_equal(ibx_configurations_pop(&all, out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(unknown_calls_come_after_everything),
        cmocka_unit_test(replies_of_quick_calls_wait),
        cmocka_unit_test(streams_are_where_requests_have_them),
        cmocka_unit_test(requests_are_found_whole),
        cmocka_unit_test(successes_are_remembered),
        cmocka_unit_test(replies_are_remembered),
        cmocka_unit_test(configurations_come_back_as_the_back_end_gives_them),
        cmocka_unit_test(replies_of_another_form_are_never_made),
        cmocka_unit_test(configurations_that_do_not_fit_are_popped_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
