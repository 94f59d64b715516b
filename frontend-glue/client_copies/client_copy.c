/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/client_copies/client_frame.h"

#include <errno.h>
#include <string.h>

#define FEW          128u /* bytes */
#define FEW_NOT_LEFT 63u  /* copies until one is left to the GPU again */

/* The outcome of a call: an error has ended the session. */
static int finish(struct ibx_session *s, int rc, int *exit_code)
{
    if (rc) {
        ibx_session_tell_end(s);
        *exit_code = IBX_CUDA_ERROR_UNKNOWN;
    }
    return 0;
}

static bool is_few(const struct ibx_frontend_copy *copy)
{
    return copy->async && copy->lasting && !copy->to_device && copy->n < FEW;
}

bool ibx_client_leaves(struct ibx_session *s, size_t n)
{
    const struct client_ahead *ahead = n < FEW ? ibx_client_stage_ahead(s) : NULL;
    return n >= FEW || (ahead && !ahead->few);
}

bool ibx_client_leaves_surely(struct ibx_session *s, size_t n)
{
    const struct client_ahead *ahead = n < FEW ? ibx_client_stage_ahead(s) : NULL;
    return n >= FEW || (ahead && !ahead->few && ahead->reached);
}

/* Notes whether the GPU has put a payload into memory that both ends map: so it can use such
 * memory. */
static void note_reach(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    const bool placed = ibx_session_take_placed(s), few = is_few(copy);
    struct client_ahead *ahead = placed || few ? ibx_client_stage_ahead(s) : NULL;
    if (!ahead)
        return;
    ahead->reached = ahead->reached || placed;
    if (placed)
        ahead->few = 0;
    else if (few)
        ahead->few = ahead->few ? ahead->few - 1 : FEW_NOT_LEFT;
}

int ibx_client_copy(struct ibx_session *s, const struct ibx_frontend_copy *copy, int *exit_code)
{
    if (!ibx_session_idle(s))
        return -ENOTCONN;
    int rc = copy->rows                        ? ibx_client_copy_rows(s, copy, exit_code)
             : ibx_client_stage_wants(s, copy) ? ibx_client_stage_copy(s, copy, exit_code)
                                               : ibx_client_exchange(s, copy, NULL, exit_code);
    if (!rc)
        note_reach(s, copy);
    return finish(s, rc, exit_code);
}

void ibx_client_go_ahead(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                         int *exit_code)
{
    *exit_code = 0;
    finish(s, ibx_client_send_ahead(s, copy), exit_code);
}

int ibx_client_call(struct ibx_session *s, const char *name, const void *body, size_t n,
                    int *exit_code)
{
    uint8_t length[8];
    struct ibx_writer w = ibx_writer_of(length, sizeof(length));
    uint64_t out = 0;
    if (!ibx_session_idle(s))
        return -ENOTCONN;
    ibx_put_u64(&w, n);
    int rc = ibx_session_reserve(s, 2 * sizeof(length) + strlen(name) + 1 + n);
    if (!rc)
        rc = ibx_session_gather(s, (const uint8_t *)name, strlen(name) + 1);
    if (!rc)
        rc = ibx_session_gather(s, length, w.length);
    if (!rc)
        rc = ibx_session_gather(s, body, n);
    if (!rc)
        rc = ibx_session_sync(s);
    if (!rc)
        rc = ibx_client_take_head(s, exit_code, &out);
    if (!rc)
        rc = ibx_client_drain(s, out);
    return finish(s, rc, exit_code);
}
