/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between a client and the slot of the function that it is calling (graph_slots.h), or pages
 * that stand in for its page-locked memory (clients/host_maps.c), by the transport alone. A graph
 * or a stream waits meanwhile, so no CUDA call is made here.
 */
#include "frontend-glue/device_copies/copies.h"
#include "frontend-glue/clients/graph_slots.h"

#include "common/clock.h"

#include <stdlib.h>
#include <string.h>

struct slot_copy {
    struct ibx_frame frame;
    uint8_t *at;
    struct ibx_mr *region; /* with `at` in it; for long payloads */
    uint64_t map;          /* the bytes of a mapping that `at` is a copy of; 0: it is a slot */
};

#define MAP_MOST (1u << 20) /* bytes of a copy with a mapping, which are allocated */

static uint64_t name_of(const struct ibx_frame *f)
{
    return f->kind == IBX_FRAME_H2D ? f->dst : f->kind == IBX_FRAME_D2H ? f->src : 0;
}

bool ibx_slot_is_named(const struct gpu_session *x, const struct ibx_request *q)
{
    struct ibx_frame f;
    if (q->call != IBX_FRAME_MEMCPY_ASYNC || !(q->body || q->tail_length) ||
        !ibx_copies_parse(q, &f) || f.height != 1)
        return false;
    return name_of(&f) >> 63 ? x->host_queue != NULL : (name_of(&f) & IBX_EXT_PAGES) != 0;
}

/* The registration of the slot's block with the connection. NULL: it cannot be registered. */
static struct ibx_mr *region_of(struct gpu_session *x, const struct ibx_slot_memory *memory)
{
    struct ibx_error err = {0};
    const struct ibx_span span = ibx_span_host(memory->base, memory->length);
    if (!x->slot_regions && !(x->slot_regions = calloc(IBX_SLOT_BLOCKS, sizeof(struct ibx_mr *))))
        return NULL;
    struct ibx_mr **region = &x->slot_regions[memory->block];
    if (!*region && ibx_mr_register(ibx_session_conn(x->s), &span, IBX_ACCESS_LOCAL, region, &err))
        ibx_copies_note_refusal(x, err.message);
    return *region;
}

void ibx_slot_regions_end(struct gpu_session *x)
{
    for (unsigned i = 0; x->slot_regions && i < IBX_SLOT_BLOCKS; i++)
        ibx_mr_deregister(x->slot_regions[i]);
    free(x->slot_regions);
    x->slot_regions = NULL;
}

static int move(struct gpu_session *x, const struct slot_copy *c, bool read,
                const struct ibx_remote *remote)
{
    const struct ibx_session_op op = {
        .read = read, .mr = c->region, .local = c->at, .remote = remote, .n = c->frame.width};
    const int rc = ibx_session_post(x->s, &op);
    return rc ? rc : ibx_session_finish_posts(x->s);
}

static int take(struct gpu_session *x, const struct ibx_request *q, const struct slot_copy *c,
                uint64_t began)
{
    int rc = 0;
    if (q->body)
        memcpy(c->at, q->body + c->frame.payload_at, c->frame.width);
    else
        rc = move(x, c, true, &q->remote);
    if (rc)
        return rc;
    const bool there = !c->map || ibx_host_maps_copy(x, c->map, c->at, c->frame.width, true);
    ibx_session_consume(x->s, q);
    return there ? ibx_copies_answer(x, began, NULL, 0)
                 : ibx_copies_write_head(x, CUDA_INVALID_VALUE, began, 0);
}

/* Copies to the client: into its memory if the request names that, else in the reply. */
static int give(struct gpu_session *x, const struct ibx_request *q, const struct slot_copy *c,
                uint64_t began)
{
    const size_t n = c->frame.width;
    uint8_t count[8];
    struct ibx_writer w = ibx_writer_of(count, sizeof(count));
    ibx_put_u64(&w, n);
    const bool early = q->reply_to.length == n && c->region;
    int rc = early ? move(x, c, false, &q->reply_to) : 0;
    if (rc)
        return rc;
    ibx_session_consume(x->s, q);
    if (early)
        rc = ibx_copies_reply_early(x, began, n);
    else if (!(rc = ibx_copies_write_head(x, 0, began, sizeof(count) + n)) &&
             !(rc = ibx_session_gather(x->s, count, sizeof(count)))) {
        const ssize_t wrote = ibx_session_write(x->s, c->at, n);
        rc = wrote < 0 ? (int)wrote : 0;
    }
    return rc ? rc : ibx_session_sync(x->s);
}

/* Finds the slot of the function that the client is calling, if its copy has this direction and
 * these bytes. The slot is held until the copy is over. 0: there is none. */
static uint64_t find(struct gpu_session *x, const struct ibx_frame *f,
                     struct ibx_slot_memory *memory)
{
    const uint64_t name = name_of(f), at = name & UINT32_MAX;
    const struct ibx_host_copy copy = ibx_host_work_taken(x, (uint32_t)(name << 1 >> 33));
    if (copy.to_device != (f->kind == IBX_FRAME_H2D) || at > copy.n || f->width > copy.n - at ||
        !ibx_slot_use(copy.slot, memory))
        return 0;
    memory->at += at;
    return copy.slot;
}

/* The copy is made with bytes of its own, since another session of the client may end the mapping
 * meanwhile. */
static int copy_pages(struct gpu_session *x, const struct ibx_request *q, struct slot_copy *c,
                      uint64_t began)
{
    struct ibx_error err = {0};
    const size_t n = c->frame.width;
    const bool to_pages = c->frame.kind == IBX_FRAME_H2D;
    c->map = name_of(&c->frame) & ~IBX_EXT_PAGES;
    c->at = n && n <= MAP_MOST ? malloc(n) : NULL;
    int rc = IBX_REQUEST_PASS;
    if (!c->at || !ibx_host_maps_hold(x, c->map, n) ||
        (!to_pages && !ibx_host_maps_copy(x, c->map, c->at, n, false)))
        goto done;
    const struct ibx_span span = ibx_span_host(c->at, n);
    if ((!q->body || q->reply_to.length) &&
        ibx_mr_register(ibx_session_conn(x->s), &span, IBX_ACCESS_LOCAL, &c->region, &err))
        ibx_copies_note_refusal(x, err.message);
    if (q->body || c->region) {
        rc = to_pages ? take(x, q, c, began) : give(x, q, c, began);
        rc = rc ? rc : IBX_REQUEST_DONE;
    }
    if (c->region)
        ibx_mr_deregister(c->region);
done:
    free(c->at);
    return rc;
}

/* A copy that cannot be made is left to GVirtuS, whose handler finds no such memory. */
int ibx_slot_copy(struct gpu_session *x, const struct ibx_request *q)
{
    const uint64_t began = ibx_now_ns();
    struct slot_copy c = {.at = NULL};
    struct ibx_slot_memory memory;
    int rc = ibx_session_answer_delayed(x->s);
    if (rc)
        return rc;
    const bool parsed = ibx_copies_parse(q, &c.frame);
    if (parsed && !(name_of(&c.frame) >> 63))
        return copy_pages(x, q, &c, began);
    const uint64_t slot = parsed ? find(x, &c.frame, &memory) : 0;
    if (!slot)
        return IBX_REQUEST_PASS;
    c.at = memory.at;
    c.region = !q->body || q->reply_to.length ? region_of(x, &memory) : NULL;
    const bool able = q->body || c.region;
    if (able)
        rc = c.frame.kind == IBX_FRAME_H2D ? take(x, q, &c, began) : give(x, q, &c, began);
    ibx_slot_stop_using(slot);
    return rc || !able ? rc : IBX_REQUEST_DONE;
}
