/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A client's calls whose back end answers anything. Each call ends, writes no more than its
 * output has room for, and returns an error if there was no answer of the right length.
 *
 * fake_transport.c replaces transport. Calls that were answered early are sent at once, or with
 * the next one. Input, in this order:
 *
 * - flags: see fake_transport_begin(); bit 0: calls within the device are answered early too; 7:
 *   the session survives its connections;
 * - u8 n, and n steps of two bytes: an action and its argument, see run_step();
 * - the messages, see fake_transport.h. */
#include "frontend-glue/call_pipeline/internal.h"
#include "frontend-glue/session/extensions.h"
#include "frontend-glue/session/session_internal.h"

#include "tests/fuzz/fake_transport.h"
#include "tests/fuzz/quiet.h"

#include <errno.h>
#include <string.h>

#define LONGEST 4096u /* output that GVirtuS's front end reads */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Replaces dead_backend.c. A reply that breaks while GVirtuS reads it ends the program; a call
 * that ibx makes for the application must not do that. */
static bool is_own;

void ibx_session_tell_end(struct ibx_session *s)
{
    s->answering = true;
}

void ibx_session_answer(struct ibx_session *s, void *buffer, size_t n)
{
    const int32_t unknown = IBX_CUDA_ERROR_UNKNOWN;
    require(!is_own || s->answering || !s->in_frame);
    s->answering = true;
    memset(buffer, 0, n);
    if (n == sizeof(unknown))
        memcpy(buffer, &unknown, sizeof(unknown));
}

/* No sending thread, because a fuzzer runs its inputs one after the other. */
bool __wrap_ibx_process_send_soon(uint32_t patience);
bool __wrap_ibx_process_send_soon(uint32_t patience)
{
    return patience & 1;
}

void ibx_connection_monitor_begin(void) {}
void ibx_connection_monitor_check(void) {}

/* No calls whose effects would stay for the next input. */
static const struct {
    const char *name;
    unsigned length, out;
} calls[] = {
    {"cudaLaunchKernel", 64, 0},
    {"cudaMalloc", 8, 8},
    {"cudaFree", 8, 0},
    {"cudaMemcpy", 36, 0}, /* of 8 bytes to the device */
    {"cudaMemsetAsync", 28, 0},
    {"cudaStreamCreate", 0, 8},
    {"cudaEventCreate", 0, 16},
    {"cudaEventRecord", 16, 0},
    {"cudaStreamWaitEvent", 20, 0},
    {"cudaStreamSynchronize", 8, 0},
    {"cudaEventQuery", 8, 0},
    {"cudaDeviceSynchronize", 0, 0},
    {"cudaGetLastError", 0, 0},
    {"cudaPeekAtLastError", 0, 0},
    {"cudaGetDevice", 0, 12},
    {"cudaSetDevice", 4, 0},
    {"cudaGetDeviceCount", 0, 4},
    {"cudaGetDeviceProperties", 8, 1032},
    {"cudaPushCallConfiguration", 40, 0},
    {"cudaPopCallConfiguration", 0, 40},
    {"cudaRegisterFunction", 24, 0},
    {"cudaDeviceReset", 0, 0},
    {"cudaGetSymbolAddress", 16, 8},
    {IBX_EXT_NAME, 18, 0},
    {IBX_EXT_NAME, 10, 8},
    {IBX_EXT_NAME, 10, 64},
    {IBX_EXT_NAME, 10, 1000},
    {IBX_EXT_NAME, 3000, 16},
    {IBX_EXT_QUEUE, 38, 0},
    {IBX_EXT_WORK, 18, 16},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

static uint8_t body[3000];

static void put_body(unsigned which, uint8_t argument)
{
    struct ibx_writer w = ibx_writer_of(body, sizeof(body));
    memset(body, 0, sizeof(body));
    if (!strcmp(calls[which].name, "cudaMemcpy")) { /* as GVirtuS has it */
        ibx_put_u64(&w, 4096);
        ibx_put_u64(&w, 8);
        ibx_put_u64(&w, argument);
        ibx_put_u64(&w, 8);
        ibx_put_u32(&w, IBX_FRAME_H2D);
    } else if (ibx_extension_is(calls[which].name)) {
        ibx_put_u16(&w, argument);
    } else if (calls[which].length >= 8) { /* a handle */
        ibx_put_u64(&w, argument % 4);
    }
}

/* Makes a call as GVirtuS's front end does. False: GVirtuS would throw an exception. */
static bool call_by_gvirtus(struct ibx_pipeline *p, unsigned which)
{
    uint8_t head[IBX_REPLY_HEAD] = {0};
    const size_t pieces[] = {4, 8, 8};
    uint64_t length = ibx_le64(calls[which].length);
    ibx_pipeline_write(p, calls[which].name, strlen(calls[which].name) + 1);
    ibx_pipeline_write(p, &length, sizeof(length));
    if (calls[which].length)
        ibx_pipeline_write(p, body, calls[which].length);
    ibx_pipeline_sync(p);
    ibx_pipeline_sync(p);
    for (size_t i = 0, at = 0; i < 3; at += pieces[i++]) {
        if (!ibx_pipeline_read(p, head + at, pieces[i]))
            ibx_session_answer(p->session, head + at, pieces[i]);
    }
    struct ibx_reader r = ibx_reader_of(head + 12, 8);
    const uint64_t out = ibx_get_u64(&r);
    if (!out || out > LONGEST)
        return !out;
    uint8_t *bytes = malloc((size_t)out);
    require(bytes);
    if (!ibx_pipeline_read(p, bytes, (size_t)out))
        ibx_session_answer(p->session, bytes, (size_t)out);
    free(bytes);
    return true;
}

static bool call_it(struct ibx_pipeline *p, unsigned which, bool unseen)
{
    uint8_t *out = malloc(calls[which].out ? calls[which].out : 1);
    require(out);
    const struct ibx_pipeline_request call = {.name = calls[which].name,
                                              .body = body,
                                              .n = calls[which].length,
                                              .out = out,
                                              .out_n = calls[which].out,
                                              .unseen = unseen && !which};
    int code = -1;
    is_own = true;
    const int rc = ibx_pipeline_call(p, &call, &code);
    is_own = false;
    free(out);
    require(!rc || rc == -ENOTCONN);
    return rc ? call_by_gvirtus(p, which) : true;
}

static bool copy_it(struct ibx_pipeline *p, uint8_t argument)
{
    uint8_t *host = calloc(1, 1 + argument);
    require(host);
    const bool done = ibx_pipeline_copy_gathered(p, 1 + argument % 4, host, 1 + argument);
    free(host);
    return done;
}

/* Up to 127: a call; from 128 on: an action between calls. False: the front end has ended. */
static bool run_step(struct ibx_pipeline *p, uint8_t what, uint8_t argument)
{
    int number;
    size_t n;
    if (what < 128) {
        put_body(what % CALLS, argument);
        return argument & 64 ? call_by_gvirtus(p, what % CALLS)
                             : call_it(p, what % CALLS, argument & 32);
    }
    switch (what % 8) {
    case 0:
        copy_it(p, argument);
        break;
    case 1:
        ibx_pipeline_settle(p, argument);
        break;
    case 2:
        ibx_pipeline_enter(p, argument % 4, argument & 8);
        ibx_pipeline_leave(p, argument & 16 ? 1 : 0, argument & 32);
        break;
    case 3:
        if (!ibx_pipeline_divert(p))
            break;
        put_body(0, argument);
        if (!call_by_gvirtus(p, 0))
            return false;
        ibx_pipeline_diverted(p, &n);
        break;
    case 4:
        ibx_pipeline_unseen(p, argument & 1);
        break;
    case 5:
        ibx_pipeline_has_no_error(p);
        ibx_pipeline_errors(p, &number);
        ibx_pipeline_answered(p, &number);
        ibx_pipeline_failures(p, (unsigned)number, &number);
        ibx_pipeline_launch_failure(p, &number);
        ibx_pipeline_knows_no_error(p);
        ibx_pipeline_has_no_late_error(p);
        ibx_pipeline_device(p, &number);
        break;
    case 6:
        ibx_pipeline_rests(p, argument % 4);
        ibx_pipeline_is_over(p, argument % 4);
        break;
    default:
        pthread_mutex_lock(&p->lock); /* as the sending thread does */
        ibx_backlog_push(p, argument & 1);
        pthread_mutex_unlock(&p->lock);
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_options options = {.slots = FAKE_SLOTS, .message = FAKE_MESSAGE};
    struct ibx_reader input = ibx_reader_of(data, size);
    const uint8_t flags = ibx_get_u8(&input), count = ibx_get_u8(&input) % 64;
    const uint8_t *steps = ibx_get_bytes(&input, 2 * (size_t)count);
    struct ibx_session *s;
    if (!steps)
        return 0;
    fake_transport_begin(flags & 30, ibx_reader_of(data + input.position, size - input.position),
                         "");
    require(!ibx_session_create("rdma://fuzzer:1", &options, &s, NULL));
    fake_transport_of(s);
    ibx_session_keep(s, flags & 128 ? 1 : 0);
    ibx_allocations_clear();
    if (!ibx_session_connect(s, NULL) && ibx_session_live(s)) {
        struct ibx_pipeline *p =
            ibx_pipeline_create(s, flags & 1 ? IBX_PIPELINE_ALL : IBX_PIPELINE_LAUNCHES);
        require(p);
        for (unsigned i = 0; i < count && run_step(p, steps[2 * i], steps[2 * i + 1]); i++)
            require(ibx_session_live(s) || ibx_session_reason(s)[0]);
        pthread_mutex_lock(&p->lock);
        if (!ibx_session_live(s) || !ibx_pipeline_idle(p))
            ibx_backlog_finish(p);
        require(ibx_pipeline_idle(p)); /* otherwise its end would wait */
        pthread_mutex_unlock(&p->lock);
        require(ibx_pipeline_destroy(p));
    }
    ibx_session_destroy(s);
    fake_transport_of(NULL);
    require(fake_transport_regions() == 0);
    return 0;
}
