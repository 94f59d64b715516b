/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A copy that the client requests without GVirtuS. The frame is GVirtuS's own, byte for byte, but
 * the payload is sent from the application's memory, and received there.
 */
#include "frontend-glue/client_copies/client_frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AROUND 256u /* most bytes of a frame and its message, beside the payload */

/* As ibx_session_read(), but an end of the stream is -ENOTCONN. */
static int take(struct ibx_session *s, void *to, size_t n)
{
    ssize_t rc = n ? ibx_session_read(s, to, n) : 0;
    return rc == (ssize_t)n ? 0 : rc < 0 ? (int)rc : -ENOTCONN;
}

/* Handlers answer with output even when they have failed. */
int ibx_client_drain(struct ibx_session *s, uint64_t n)
{
    uint8_t *scratch = n ? malloc(CLIENT_SCRATCH) : NULL;
    if (n && !scratch)
        return ibx_session_fail(s, -ENOMEM, "no memory for a reply of %llu bytes",
                                (unsigned long long)n);
    int rc = 0;
    while (n && !rc) {
        size_t some = n < CLIENT_SCRATCH ? (size_t)n : CLIENT_SCRATCH;
        rc = take(s, scratch, some);
        n -= some;
    }
    free(scratch);
    return rc;
}

/* ---------------------------------------------------------------------- the request */

static void put_tail(struct ibx_writer *w, const struct ibx_frontend_copy *copy)
{
    if (copy->rows) {
        ibx_put_u64(w, copy->to_device ? copy->device_pitch : copy->host_pitch);
        ibx_put_u64(w, copy->to_device ? copy->host_pitch : copy->device_pitch);
    }
    ibx_put_u64(w, copy->n);
    if (copy->rows)
        ibx_put_u64(w, copy->rows);
    ibx_put_u32(w, copy->to_device ? IBX_FRAME_H2D : IBX_FRAME_D2H);
    if (copy->async)
        ibx_put_u64(w, copy->stream);
}

/* Writes name, length, and what comes before a payload; the whole frame if there is none. */
static void put_head(struct ibx_writer *w, const struct ibx_frontend_copy *copy,
                     const struct ibx_writer *tail)
{
    const char *name = copy->rows ? "cudaMemcpy2D" : copy->async ? "cudaMemcpyAsync" : "cudaMemcpy";
    size_t payload = client_payload(copy);
    ibx_put_bytes(w, name, strlen(name) + 1);
    if (copy->to_device) {
        ibx_put_u64(w, IBX_FRAME_PAYLOAD_AT + payload + tail->length);
        ibx_put_u64(w, copy->device);
        ibx_put_u64(w, payload);
    } else {
        ibx_put_u64(w, 17 + tail->length);
        ibx_put_u64(w, 1);
        ibx_put_u8(w, 0);
        ibx_put_u64(w, copy->device);
        ibx_put_bytes(w, tail->data, tail->length);
    }
}

/* Whether the payload stays where it is. A short payload is faster in the message, unless it needs
 * several messages, or the GPU may use its memory after the call has returned. */
static bool by_reference(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    const struct ibx_caps *caps = ibx_session_caps(s);
    size_t payload = client_payload(copy);
    return payload >= caps->rendezvous ||
           (caps->register_free && payload + AROUND > caps->message_max) ||
           (copy->async && copy->lasting && (copy->to_device || ibx_client_leaves(s, payload)));
}

/* Tells the server where the reply's payload may go. Not for copies of rows: servers send their
 * replies like any other. */
static int send_cts(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                    const struct ibx_remote *registered)
{
    if (copy->to_device || copy->rows)
        return 0;
    if (registered)
        return ibx_session_cts_registered(s, registered);
    return by_reference(s, copy) ? ibx_session_cts(s, copy->host, copy->n) : 0;
}

/* Sends the payload, and then the frame's tail. */
static int send_payload(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                        const struct client_rows *from, const struct ibx_remote *registered,
                        const struct ibx_writer *tail)
{
    size_t payload = client_payload(copy);
    int rc = 0;
    if (registered)
        rc = ibx_session_write_registered(s, copy->host, registered);
    else if (!from && !by_reference(s, copy))
        return ibx_session_gather_around(s, copy->host, payload, tail->data, tail->length);
    else if (!from)
        rc = ibx_session_write_payload(s, copy->host, payload);
    if (rc > 0) /* it cannot be registered */
        rc = ibx_session_gather(s, copy->host, payload);
    for (size_t i = 0; from && i < from->count && !rc; i++)
        rc = ibx_session_gather(s, from->first + i * from->pitch, copy->n);
    return rc ? rc : ibx_session_gather(s, tail->data, tail->length);
}

int ibx_client_send_frame(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          const struct client_rows *rows, const struct ibx_remote *registered)
{
    uint8_t head[80], tail[IBX_FRAME_TAIL_MAX];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head)),
                      end = ibx_writer_of(tail, sizeof(tail));
    put_tail(&end, copy);
    put_head(&w, copy, &end);
    int rc = copy->settle ? ibx_session_settle(s) : 0;
    if (!rc)
        rc = send_cts(s, copy, registered);
    if (!rc)
        rc = ibx_session_gather(s, head, w.length);
    if (!rc && copy->to_device)
        rc = send_payload(s, copy, rows, registered, &end);
    return rc ? rc : ibx_session_sync(s);
}

bool ibx_client_fits(const struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    return copy->n + AROUND <= ibx_session_room(s);
}

int ibx_client_send_whole(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    uint8_t head[80], tail[IBX_FRAME_TAIL_MAX];
    struct ibx_writer w = ibx_writer_of(head, sizeof(head)),
                      end = ibx_writer_of(tail, sizeof(tail));
    put_tail(&end, copy);
    put_head(&w, copy, &end);
    int rc = ibx_session_gather(s, head, w.length);
    if (!rc)
        rc = ibx_session_gather_around(s, copy->host, copy->n, tail, end.length);
    return rc ? rc : ibx_session_sync(s);
}

/* ------------------------------------------------------------------------ the reply */

int ibx_client_take_head(struct ibx_session *s, int *exit_code, uint64_t *out)
{
    uint8_t head[20];
    ibx_session_await_reply(s);
    int rc = take(s, head, sizeof(head));
    ibx_session_reply_begins(s);
    struct ibx_reader r = ibx_reader_of(head, sizeof(head));
    if (rc)
        return rc;
    *exit_code = (int)ibx_get_u32(&r);
    ibx_get_u64(&r);
    *out = ibx_get_u64(&r);
    return 0;
}

/* Reads the payload into rows, `width` bytes each. */
static int take_rows(struct ibx_session *s, const struct client_rows *rows, size_t width)
{
    size_t each = width < CLIENT_SCRATCH ? CLIENT_SCRATCH / width : 0; /* 0: row by row */
    uint8_t *scratch = each ? malloc(CLIENT_SCRATCH) : NULL;
    if (each && !scratch)
        return ibx_session_fail(s, -ENOMEM, "no memory for a reply of %zu rows", rows->count);
    int rc = 0;
    for (size_t i = 0; i < rows->count && !rc; i += each ? each : 1) {
        size_t some = rows->count - i < each ? rows->count - i : each;
        uint8_t *to = rows->first + i * rows->pitch;
        rc = take(s, each ? scratch : to, each ? some * width : width);
        for (size_t j = 0; j < some && !rc; j++)
            memcpy(to + j * rows->pitch, scratch + j * width, width);
    }
    free(scratch);
    return rc;
}

int ibx_client_take_reply(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          const struct client_rows *to, int *exit_code)
{
    uint64_t out, count = 0;
    uint8_t bytes[8];
    int rc = ibx_client_take_head(s, exit_code, &out);
    if (rc)
        return rc;
    if (*exit_code || copy->to_device)
        return ibx_client_drain(s, out);
    if (out >= 8) {
        rc = take(s, bytes, sizeof(bytes));
        struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
        count = rc ? 0 : ibx_get_u64(&r);
        out -= 8;
    }
    size_t payload = client_payload(copy);
    if (!rc && count == payload && out == payload)
        return to ? take_rows(s, to, copy->n) : take(s, copy->host, payload);
    *exit_code = IBX_CUDA_ERROR_UNKNOWN;
    return rc ? rc : ibx_client_drain(s, out);
}

int ibx_client_exchange(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                        const struct client_rows *rows, int *exit_code)
{
    int rc = (int)ibx_session_write(s, NULL, 0); /* the server READs earlier payloads now */
    if (!rc)
        rc = ibx_client_send_frame(s, copy, rows, NULL);
    if (!rc)
        ibx_session_expect(s, copy->n);
    if (!rc)
        rc = ibx_client_take_reply(s, copy, rows, exit_code);
    if (!rc) {
        ibx_session_cts_end(s);
        ibx_session_all_answered(s);
    }
    return rc;
}
