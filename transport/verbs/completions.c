/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a completion means: of a chunk, a send or a receive, and of a failed work request. */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdio.h>

#define BATCHES_MAX 8 /* polls of a completion queue in one progress */

static int status_errno(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_SUCCESS:
        return 0;
    case IBV_WC_WR_FLUSH_ERR:
        return -ECONNRESET;
    case IBV_WC_LOC_LEN_ERR:
        return -EMSGSIZE;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
        return -EFAULT;
    case IBV_WC_REM_ACCESS_ERR:
        return -EACCES;
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_INV_RD_REQ_ERR:
    case IBV_WC_BAD_RESP_ERR:
        return -EPROTO;
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return -EREMOTEIO;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return -ETIMEDOUT;
    default:
        return -EIO;
    }
}

/* A failed work request has already brought its queue pair down, and with it the connection. */
static int wc_failed(struct verbs *v, const struct ibv_wc *wc, const char *what)
{
    int status = status_errno(wc->status);
    if (!status || v->state.now == VERBS_ABORTED)
        return 0;
    if (wc->status == IBV_WC_WR_FLUSH_ERR) {
        /* A flushed request is an effect: this is reported later, so that the cause, if there is
         * one, comes first. */
        ibx_verbs_lost(v, status, "the queue pair went into the error state");
        return 0;
    }
    const char *why = wc->status == IBV_WC_REM_ACCESS_ERR
                          ? "the peer has no such region, or not with that access"
                      : wc->status == IBV_WC_RETRY_EXC_ERR ? "the peer does not answer any more"
                      : status == -EFAULT ? "local memory is not registered (any more)"
                                          : "the queue pair is broken";
    char reason[160];
    snprintf(reason, sizeof(reason), "%s failed: %s (%s, vendor error %#x)", what, why,
             ibv_wc_status_str(wc->status), wc->vendor_err);
    v->link->up->lost(v->link, status, reason);
    return 1;
}

static int take_completion(struct verbs *v, const struct ibv_wc *wc)
{
    /* After an abort a chunk that was completed counts as flushed, too. */
    int status = v->state.now == VERBS_ABORTED ? -ECONNRESET : status_errno(wc->status);
    uint64_t number = wc->wr_id >> 2;
    switch (wc->wr_id & VERBS_ID_MASK) {
    case VERBS_ID_SEND:
        return wc_failed(v, wc, "sending a message") + ibx_verbs_sends_retire(v, number, status);
    case VERBS_ID_RECEIVE:
        if (wc->status != IBV_WC_SUCCESS)
            return wc_failed(v, wc, "receiving a message");
        /* A WRITE with immediate data completes a receive, too: nothing is in its buffer, and the
         * length is that of the WRITE. */
        return v->state.now == VERBS_ABORTED
                   ? 0
                   : ibx_verbs_message_received(v, number,
                                                wc->opcode == IBV_WC_RECV ? wc->byte_len : 0);
    default: {
        struct ibx_chunk *chunk = (struct ibx_chunk *)(uintptr_t)wc->wr_id;
        const char *what = chunk->kind == IBX_RDMA_READ ? "an RDMA READ" : "an RDMA WRITE";
        int made = wc_failed(v, wc, what);
        return made + ibx_verbs_chunk_over(v, chunk, status);
    }
    }
}

int ibx_verbs_completions_take(struct verbs *v, struct verbs_rail *rail, struct ibv_wc *wc, int n)
{
    int made = 0;
    for (int batch = 1;; batch++) {
        if (n < 0)
            ibx_verbs_lost(v, -EIO, "the completion queue of %s failed",
                           ibv_get_device_name(rail->context->device));
        for (int i = 0; i < n; i++)
            made += take_completion(v, &wc[i]);
        rail->more = n == VERBS_BATCH;
        if (!rail->more || batch == BATCHES_MAX)
            return made;
        n = ibv_poll_cq(rail->cq, VERBS_BATCH, wc);
    }
}
