/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Short copies to the device whose calls return before the copies are made. Their bytes go in a
 * message; over shm, where messages are short, in one of a few slots of memory that both ends map,
 * from which the GPU takes them. A slot is used again when the reply to its copy has come.
 */
#include "frontend-glue/client_copies/client_frame.h"

#include "common/log.h"
#include "common/stream_copy.h"

#include <stdlib.h>
#include <string.h>

#define IN_MESSAGE_MAX (128u << 10) /* bytes; longer copies gain nothing */
#define IN_SLOT_MAX    (64u << 10)
#define SLOTS          8u
#define PAGE           4096u
#define STRIDE         (IN_SLOT_MAX + PAGE)
#define BYTES          ((size_t)SLOTS * STRIDE)

void ibx_client_ahead_end(struct client_ahead *ahead)
{
    ibx_mr_deregister(ahead->mr);
    if (ahead->memory)
        ibx_shared_free(ahead->memory);
    free(ahead->busy_until);
    *ahead = (struct client_ahead){.failed = true};
}

static bool make_memory(struct ibx_session *s, struct client_ahead *ahead)
{
    struct ibx_error err = {0};
    uint8_t *memory = ibx_shared_allocate(BYTES, &err);
    struct ibx_span span = ibx_span_host(memory, BYTES);
    uint64_t *busy_until = calloc(SLOTS, sizeof(*busy_until));
    if (memory && busy_until &&
        !ibx_mr_register(ibx_session_conn(s), &span, IBX_ACCESS_REMOTE_READ, &ahead->mr, &err)) {
        ahead->memory = memory;
        ahead->busy_until = busy_until;
        return true;
    }
    ibx_log(IBX_LOG_INFO, "short copies do not return early: %s",
            busy_until ? err.message : "no memory");
    ahead->failed = true;
    free(busy_until);
    if (memory)
        ibx_shared_free(memory);
    return false;
}

static struct client_ahead *slots_of(struct ibx_session *s)
{
    struct client_ahead *ahead = ibx_client_stage_ahead(s);
    if (!ahead || !ahead->reached || ahead->failed)
        return NULL;
    return ahead->memory || make_memory(s, ahead) ? ahead : NULL;
}

bool ibx_client_can_go_ahead(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    if (!ibx_session_idle(s))
        return false;
    if (ibx_client_fits(s, copy))
        return copy->n <= IN_MESSAGE_MAX;
    return copy->n <= IN_SLOT_MAX && !strcmp(ibx_session_path(s)->provider, "shm") && slots_of(s);
}

/* The bytes have the same offset in a page in the slot as in host memory: see slot_of() in
 * client_stage.c. */
static int send_from_slot(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    struct client_ahead *ahead = slots_of(s);
    struct ibx_frontend_copy moved = *copy;
    struct ibx_remote remote;
    if (!ahead)
        return ibx_client_send_whole(s, copy); /* in several messages */
    const unsigned slot = ahead->next++ % SLOTS;
    const size_t at = (size_t)slot * STRIDE + (uintptr_t)copy->host % PAGE;
    int rc = ibx_session_wait_owed(s, ahead->busy_until[slot]);
    if (rc)
        return rc;
    ibx_stream_copy(ahead->memory + at, copy->host, copy->n);
    moved.host = ahead->memory + at;
    ahead->busy_until[slot] = ibx_session_owed_last(s);
    rc = ibx_session_reserve(s, CLIENT_FRAME);
    if (rc)
        return rc;
    rc = ibx_mr_remote(ahead->mr, at, copy->n, &remote);
    if (!rc)
        rc = ibx_client_send_frame(s, &moved, NULL, &remote);
    else
        rc = ibx_session_fail(s, rc, "cannot name the memory of a copy: %s", strerror(-rc));
    if (!rc)
        ibx_session_keep_payloads(s);
    return rc;
}

int ibx_client_send_ahead(struct ibx_session *s, const struct ibx_frontend_copy *copy)
{
    return ibx_client_fits(s, copy) ? ibx_client_send_whole(s, copy) : send_from_slot(s, copy);
}
