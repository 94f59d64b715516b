/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The back end of tune: like GVirtuS's, but its handlers run no copy. */
#include "tools/ib-bw/tune.h"

#include "common/wire.h"
#include "frontend-glue/session/session.h"
#include "gpudirect/gpudirect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BODY_MAX    (64u << 10)        /* bytes read at once of a request that is no copy */
#define NOT_RUN     1u                 /* exit code of a request that the session passes on */
#define POOL_BYTES  ((size_t)64 << 20) /* the default of rdma.gpu_memory */
#define URI_ANYPORT "rdma://127.0.0.1:0"

static struct {
    const struct bw_args *args;
    const struct tune *tune;
    const struct ibx_cuda *cuda;
    void *context;
} back;

/* --------------------------------------------------------------------- the GPU */

static int gpu_failed(const char *what, int code, struct ibx_error *err)
{
    return ibx_error_set(err, -ENODEV, "no GPU can be used: %s says %s (%d); see nvidia-smi", what,
                         ibx_cuda_error_name(back.cuda, code), code);
}

/* Opens GPU 0 and allocates `bytes` on it. */
static int gpu_open(size_t bytes, uint64_t *device, struct ibx_error *err)
{
    int (*init)(unsigned flags), (*mem_alloc)(uint64_t * device, size_t n);
    back.cuda = ibx_cuda_load(err);
    if (!back.cuda)
        return -ENOENT;
    *(void **)&init = ibx_cuda_symbol("cuInit");
    *(void **)&mem_alloc = ibx_cuda_symbol("cuMemAlloc_v2");
    if (!init || !mem_alloc || !back.cuda->device_primary_ctx_retain)
        return ibx_error_set(err, -ENOENT, "the CUDA driver lacks functions of CUDA 7");
    int rc = init(0);
    if (rc)
        return gpu_failed("cuInit", rc, err);
    rc = back.cuda->device_primary_ctx_retain(&back.context, 0);
    if (!rc)
        rc = back.cuda->ctx_push_current(back.context);
    if (rc)
        return gpu_failed("cuDevicePrimaryCtxRetain", rc, err);
    rc = mem_alloc(device, bytes);
    return rc ? ibx_error_set(err, -ENOMEM,
                              "the GPU has no %zu bytes to spare (%s): give smaller --sizes", bytes,
                              ibx_cuda_error_name(back.cuda, rc))
              : 0;
}

/* --------------------------------------------------------------------- sessions */

static bool read_request(struct bw_stream *stream, char name[BW_NAME_MAX], uint8_t *scratch)
{
    uint8_t length[8];
    if (!ibx_bw_read_name(stream, name) ||
        stream->ops->read(stream, length, sizeof(length)) != sizeof(length))
        return false;
    struct ibx_reader r = ibx_reader_of(length, sizeof(length));
    for (uint64_t left = ibx_get_u64(&r); left;) {
        size_t some = left < BODY_MAX ? (size_t)left : BODY_MAX;
        if (stream->ops->read(stream, scratch, some) != (ssize_t)some)
            return false;
        left -= some;
    }
    return true;
}

/* The thread of a client; takes over the session. */
static void *serve(void *session)
{
    struct bw_stream *stream;
    char name[BW_NAME_MAX];
    struct tune_count count = {0};
    uint8_t *scratch = malloc(BODY_MAX);
    if (ibx_bw_stream_of_session(session, &stream, NULL))
        return NULL;
    bool good = scratch && !back.cuda->ctx_push_current(back.context);
    while (good && read_request(stream, name, scratch)) {
        bool counted = !strcmp(name, TUNE_COUNT);
        if (counted) {
            ibx_device_copies_count(session, &count.copies);
            snprintf(count.refused, sizeof(count.refused), "%s",
                     ibx_device_copies_refused(session));
        }
        good = ibx_bw_reply(stream, counted ? 0 : NOT_RUN, &count, counted ? sizeof(count) : 0);
    }
    stream->ops->destroy(stream);
    free(scratch);
    return NULL;
}

/* Accepts the next client, whose copies take this way. */
static int accept_one(struct ibx_session *listener, const struct tune_way *way)
{
    struct ibx_gpu_options gpu = {
        .mode = IBX_GPU_ON, .memory = POOL_BYTES, .tuning = {.found = true, .choice = way->choice}};
    struct ibx_session *session;
    pthread_t thread;
    if (ibx_session_accept(listener, &session, NULL) ||
        ibx_device_copies_attach(session, &gpu, NULL))
        return -ENOMEM;
    return -pthread_create(&thread, NULL, serve, session);
}

/* ---------------------------------------------------------------------- the process */

static int back_open(struct ibx_session **near, struct ibx_session **far, struct tune_back *report,
                     struct ibx_error *err)
{
    const struct ibx_options *options = &back.args->options;
    const char *over = back.args->over;
    int rc = gpu_open(back.tune->sizes[back.tune->size_count - 1], &report->device, err);
    if (!rc)
        rc = ibx_bw_session_listen(URI_ANYPORT, options, near, err);
    if (!rc && over && (rc = ibx_bw_session_listen(over, options, far, err)))
        ibx_error_prefix(err, rc, "--over");
    if (rc)
        return rc;
    ibx_tuning_machine_of(back.cuda, 0, &report->machine);
    snprintf(report->uri, sizeof(report->uri), "%s", ibx_session_uri(*near));
    snprintf(report->far_uri, sizeof(report->far_uri), "%s", over ? ibx_session_uri(*far) : "");
    return 0;
}

static void back_main(FILE *to_parent)
{
    struct ibx_session *near = NULL, *far = NULL;
    struct tune_back report = {.device = 0};
    struct ibx_error err = {0};
    int rc = back_open(&near, &far, &report, &err);
    ibx_bw_child_report(to_parent, &err, &report, sizeof(report));
    for (unsigned i = 0; !rc && i < back.tune->way_count; i++)
        rc = accept_one(back.tune->ways[i].far ? far : near, &back.tune->ways[i]);
    while (!rc)
        pause();
}

int ibx_tune_back_start(const struct bw_args *args, const struct tune *tune, struct tune_back *out,
                        pid_t *pid, struct ibx_error *err)
{
    back.args = args;
    back.tune = tune;
    return ibx_bw_child_start("the back end", back_main, out, sizeof(*out), pid, err);
}
