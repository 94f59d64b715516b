/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Parts of a long copy from the device to the client's memory, several of which the client requests
 * ahead. Each is answered when it has ended, but the GPU is given the next one before, if its
 * request is here. Otherwise the GPU would be idle while an answer or a request is on its way.
 *
 * If such a part fails, GVirtuS cannot run it, since its request has been taken out of the stream
 * by then. The failure is one of earlier work or of the context, which CUDA's runtime finds in any
 * case.
 */
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/clients/unpinned_copies.h"

int ibx_copies_delay(struct gpu_session *x, const struct ibx_request *q, uint64_t began)
{
    const int rc = ibx_session_answer_delayed(x->s);
    if (rc)
        return rc;
    ibx_session_consume(x->s, q);
    x->late = (struct late_copy){
        .pending = true, .bytes = x->copy.bytes, .began = began, .begun = x->copy.begun};
    ibx_session_delay(x->s);
    return IBX_REQUEST_DONE;
}

/* The runtime has to see the error, too: cudaGetLastError() is to return it after this. */
static int failed(struct gpu_session *x, const struct late_copy *late, int code)
{
    int (*query)(void *event) = NULL;
    *(void **)&query = ibx_back_end_runtime("cudaEventQuery");
    const int seen = query && late->begun.event ? query(late->begun.event) : 0;
    ibx_unpinned_wait(x);
    ibx_client_pins_wait(&x->pins, x->cuda); /* until nothing is under way in the client's memory */
    return seen && seen != IBX_CUDA_NOT_READY ? seen : code;
}

static int write_reply(struct gpu_session *x, const struct late_copy *late, int code)
{
    if (code) {
        ibx_context_note_error(x, code);
        return ibx_copies_write_head(x, code, late->began, 0);
    }
    const int rc = ibx_session_reply_placed(x->s);
    return rc ? rc : ibx_copies_reply_early(x, late->began, late->bytes);
}

int ibx_copies_answer_late(void *context)
{
    struct gpu_session *x = context;
    struct late_copy late = x->late;
    const bool answering = x->answering;
    if (!late.pending)
        return 0;
    x->late.pending = false;
    x->answering = true;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    ibx_back_end_handle_resets(x);
    int code = ibx_staging_end_straight(x->staging, &late.begun);
    if (code)
        code = failed(x, &late, code);
    ibx_cuda_capture_restore(x->cuda, mode);
    int rc = write_reply(x, &late, code);
    if (!rc)
        rc = ibx_session_sync_delayed(x->s);
    x->answering = answering;
    return rc;
}
