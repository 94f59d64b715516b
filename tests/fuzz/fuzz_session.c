/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A session whose peer sends anything. What it reports to have read is what was sent, each
 * message is released once, no copy accesses memory outside registered regions, and the session
 * ends.
 *
 * fake_transport.c replaces transport. Input, in this order:
 *
 * - flags: bit 0: this side is the client; 5: the server runs copies of a GPU; 6: one of the GPU's
 *   calls fails; the others: see fake_transport_begin();
 * - n, whose bit 7 says that the session survives its connections;
 * - n steps of this side: 0 to 99 reads, and 100 to 199 writes, this many times 8 bytes (the last
 *   three 20000), 200 and up syncs; from 240 on a client copies, see run_copy();
 * - the messages, see fake_transport.h. */
#include "frontend-glue/client_copies/client_copies.h"
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/session/session_internal.h"

#include "tests/fuzz/fake_cuda.h"
#include "tests/fuzz/fake_transport.h"
#include "tests/fuzz/quiet.h"

#include <errno.h>
#include <string.h>

#define LONGEST 20000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Replaces dead_backend.c, whose message is of no use here. */
void ibx_session_tell_end(struct ibx_session *s)
{
    s->answering = true;
}

/* -------------------------------------------------------------------------- the test */

static uint8_t outgoing[LONGEST];
static bool named; /* whether the peer has a name, that is, is a tenant */

static size_t step_length(uint8_t step)
{
    return step % 100 > 96 ? LONGEST : step % 100 * 8u;
}

/* Memory with not a byte more than is to be read. */
static uint8_t *room_for(size_t n)
{
    uint8_t *bytes = malloc(n ? n : 1);
    require(bytes);
    return bytes;
}

/* A copy of the client's own, in place of GVirtuS. The bits of `step`: to the device, of rows,
 * asynchronous; and short. */
static bool run_copy(struct ibx_session *s, uint8_t step)
{
    int code = -1;
    struct ibx_frontend_copy wish = {
        .to_device = step & 1,
        .async = step & 4 && !(step & 2),
        .device = 4096,
        .n = step & 8   ? 100
             : step & 2 ? 1000
                        : LONGEST,
        .stream = step & 4 ? 77 : 0,
        .rows = step & 2 ? 10 : 0,
        .host_pitch = step & 2 ? (step & 4 ? 1900 : 1000) : 0,
        .device_pitch = step & 2 ? 1024 : 0,
    };
    uint8_t *incoming = room_for(ibx_frontend_copy_extent(&wish));
    wish.host = wish.to_device ? outgoing : incoming;
    int rc = ibx_client_copy(s, &wish, &code);
    free(incoming);
    require(rc == 0 || rc == -ENOTCONN);
    require(ibx_session_live(s) || code == IBX_CUDA_ERROR_UNKNOWN);
    require(rc || s->state.now == SESSION_DEAD || !s->early_cts.mr);
    return ibx_session_live(s);
}

/* Reads as GVirtuS does. For a named tenant any other length ends the session. */
static size_t read_length(const struct ibx_session *s, size_t n)
{
    const struct gpu_session *x = ibx_copies_of(s);
    if (!x || x->requests.stage == IBX_REQUEST_NAME)
        return 1;
    if (x->requests.stage == IBX_REQUEST_LENGTH)
        return 8;
    return x->requests.length <= LONGEST ? (size_t)x->requests.length : n;
}

/* Returns false when the session has ended. */
static bool run_step(struct ibx_session *s, uint8_t step)
{
    size_t n = step_length(step);
    ssize_t rc;
    if (step >= 240 && !s->server)
        return run_copy(s, step);
    if (step < 100 && named)
        n = read_length(s, n);
    if (step < 100) {
        uint8_t *incoming = room_for(n);
        rc = ibx_session_read(s, incoming, n);
        free(incoming);
    } else if (step < 200)
        rc = ibx_session_write(s, outgoing, n);
    else
        return ibx_session_sync(s) == 0;
    require(rc <= 0 || rc == (ssize_t)n);
    require(rc >= 0 || s->state.now == SESSION_DEAD);
    require(rc >= 0 || ibx_session_reason(s)[0]);
    return ibx_session_live(s);
}

/* No tuning file, and both extremes of one. */
static const struct ibx_tuning tunings[3] = {
    [1] = {.found = true,
           .choice = {.ways = {{.inline_max = IBX_CHOICE_TO_MAX},
                               {.inline_max = IBX_CHOICE_FROM_MAX}},
                      .chunk = IBX_CHOICE_CHUNK_UNIT}},
    [2] = {.found = true,
           .choice = {.ways = {{0, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER},
                               {0, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER, IBX_CHOICE_NEVER}},
                      .chunk = IBX_PINNED_CHUNK}},
};

/* Every other one of the device's first pages belongs to another tenant. */
static void own_some(const struct ibx_tenant_limits *limits)
{
    struct ibx_tenant *other = ibx_tenant_get("bob", limits, 2);
    ibx_owners_forget(NULL);
    for (uint64_t i = 0; i < 8; i++)
        require(ibx_owners_add(other, 4096 + i * 8192, 4096, NULL, 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_options options = {.slots = FAKE_SLOTS, .message = FAKE_MESSAGE};
    struct ibx_session *s;
    struct ibx_reader input = ibx_reader_of(data, size);
    const uint8_t flags = ibx_get_u8(&input);
    uint8_t count = ibx_get_u8(&input);
    const bool kept = count & 128;
    count &= 127;
    const uint8_t *steps = ibx_get_bytes(&input, count);
    if (!steps)
        return 0;
    named = flags & 32 && count & 4;
    fake_transport_begin(flags, ibx_reader_of(data + input.position, size - input.position),
                         named ? "alice" : "");
    require(!ibx_session_create("rdma://fuzzer:1", &options, &s, NULL));
    fake_transport_of(s);
    ibx_session_keep(s, kept ? 1 : 0);
    if (flags & 1) {
        if (ibx_session_connect(s, NULL) || !ibx_session_live(s))
            count = 0;
    } else { /* as ibx_session_accept() leaves it */
        require(!ibx_session_adopt(s, fake_conn_next()));
        s->link.registry = kept ? ibx_session_registry_create(false) : NULL;
        require(ibx_session_read(s, NULL, 0) == 0 && ibx_session_live(s));
        if (flags & 32) {
            struct ibx_gpu_options gpu = {
                .mode = IBX_GPU_ON, .memory = 2 * (size_t)IBX_PINNED_STRIDE, .threads = 1};
            gpu.tuning = tunings[count % 3];
            gpu.limits.requests = 1u << 20;
            own_some(&gpu.limits);
            require(!ibx_device_copies_attach(s, &gpu, NULL));
            ibx_copies_of(s)->replies.shape = IBX_REPLY_TIMED;
        }
        fake_cuda_fail_in = flags & 64 ? 1 + count % 8u : 0;
    }
    for (unsigned i = 0; i < count && run_step(s, steps[i]); i++)
        ;
    ibx_session_destroy(s);
    fake_transport_of(NULL);
    require(fake_transport_regions() == 0 && (!ibx_pinned_count() || !ibx_pinned_taken()));
    return 0;
}
