/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies with the peer's help, piece by piece: the peer copies between its memory and a bounce
 * buffer while this side copies between another bounce buffer and its own memory. A piece fits in
 * the L2 cache. A request can be withdrawn until the peer begins to serve it: both change its state
 * by compare-and-exchange. Its bounce buffer is free again when the peer has answered.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>

#define SERVE_AT_ONCE 2u /* pieces a progress, so that messages are received in between */

/* The bounce buffer of a piece for the serving side's memory at `address`. Some processors stall a
 * store that differs from a load just before by a multiple of IBX_SHM_ALIAS bytes, which halves the
 * speed of memcpy, and the memory of both sides mostly has one offset. So the bounce buffer has
 * another one. */
static uint8_t *bounce_of(const struct shm_half *half, unsigned piece, uint64_t address)
{
    return half->bounce + (size_t)piece * IBX_SHM_PIECE_ROOM +
           (address + IBX_SHM_ALIAS / 4) % IBX_SHM_ALIAS;
}

static bool settle(struct shm_half *requester, unsigned piece, enum shm_request_state how)
{
    uint32_t open = SHM_REQUEST_OPEN;
    return atomic_compare_exchange_strong(&requester->control->requests[piece], &open, how);
}

/* --------------------------------------------------------------- requesting */

static const struct ibx_state piece_states[] = {
    [SHM_PIECE_FREE] = {"free", IBX_TO(SHM_PIECE_REQUESTED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SHM_PIECE_REQUESTED] = {"requested", IBX_TO(SHM_PIECE_FREE) | IBX_TO(SHM_PIECE_WITHDRAWN), 0},
    [SHM_PIECE_WITHDRAWN] = {"withdrawn", IBX_TO(SHM_PIECE_FREE), 0}};
static const struct ibx_state_table piece_table = IBX_STATE_TABLE("shm piece", piece_states);

void ibx_shm_request_init(struct shm *shm)
{
    for (unsigned i = 0; i < IBX_SHM_PIECES; i++)
        ibx_state_begin(&shm->pieces[i].state, &piece_table, SHM_PIECE_FREE);
}

static struct shm_piece *piece_free(struct shm *shm, bool urgent)
{
    for (unsigned i = urgent ? 0 : IBX_SHM_URGENT_PIECES; i < IBX_SHM_PIECES; i++) {
        if (shm->pieces[i].state.now == SHM_PIECE_FREE)
            return &shm->pieces[i];
    }
    return NULL;
}

bool ibx_shm_request_room(struct shm *shm, const struct ibx_chunk *chunk)
{
    return piece_free(shm, !chunk->lane) != NULL;
}

bool ibx_shm_request_post(struct shm *shm, struct ibx_chunk *chunk, uint8_t *local,
                          uint64_t address, size_t length)
{
    struct shm_piece *piece = piece_free(shm, !chunk->lane);
    if (!piece)
        return false;
    ibx_state_move(&piece->state, SHM_PIECE_REQUESTED);
    shm->pieces_used++;
    unsigned index = (unsigned)(piece - shm->pieces);
    if (chunk->kind == IBX_RDMA_WRITE)
        memcpy(bounce_of(&shm->mine, index, address), local, length);
    struct shm_command command = {
        .kind = chunk->kind == IBX_RDMA_READ ? SHM_COMMAND_READ : SHM_COMMAND_WRITE,
        .urgent = !chunk->lane,
        .piece = (uint16_t)index,
        .length = (uint32_t)length,
        .target = {.key = chunk->remote_keys[0], .address = address},
    };
    *piece = (struct shm_piece){
        .state = piece->state,
        .chunk = chunk,
        .local = local,
        .address = address,
        .length = length,
    };
    atomic_store_explicit(&shm->mine.control->requests[index], SHM_REQUEST_OPEN,
                          memory_order_relaxed);
    ibx_shm_command_put(shm, &command);
    return true;
}

int ibx_shm_on_request_done(struct shm *shm, unsigned index, int status)
{
    struct shm_piece *piece = index < IBX_SHM_PIECES ? &shm->pieces[index] : NULL;
    if (!piece || piece->state.now == SHM_PIECE_FREE || status > 0 || status < -4095) {
        ibx_shm_break(shm, -EPROTO, "the peer answers a request that was not made");
        return 0;
    }
    struct ibx_chunk *chunk = piece->chunk;
    piece->chunk = NULL;
    ibx_state_move(&piece->state, SHM_PIECE_FREE);
    shm->pieces_used--;
    if (!chunk)
        return 0;
    if (chunk->kind == IBX_RDMA_READ && !status)
        memcpy(piece->local, bounce_of(&shm->mine, index, piece->address), piece->length);
    return ibx_shm_chunk_part_done(shm, chunk, status);
}

static struct shm_piece *open_piece(struct shm *shm)
{
    for (unsigned i = 0; shm->pieces_used && i < IBX_SHM_PIECES; i++) {
        struct shm_piece *piece = &shm->pieces[i];
        if (piece->state.now == SHM_PIECE_REQUESTED &&
            atomic_load_explicit(&shm->mine.control->requests[i], memory_order_relaxed) ==
                SHM_REQUEST_OPEN)
            return piece;
    }
    return NULL;
}

bool ibx_shm_request_open(struct shm *shm)
{
    return open_piece(shm) != NULL;
}

int ibx_shm_request_withdraw(struct shm *shm)
{
    struct shm_piece *piece = open_piece(shm);
    if (!piece || !ibx_shm_direct_permitted(shm) ||
        !settle(&shm->mine, (unsigned)(piece - shm->pieces), SHM_REQUEST_WITHDRAWN))
        return 0;
    struct ibx_chunk *chunk = piece->chunk;
    piece->chunk = NULL;
    ibx_state_move(&piece->state, SHM_PIECE_WITHDRAWN);
    int rc =
        ibx_shm_copy_alone(shm, chunk, piece->local, piece->address, piece->length, shm->direct);
    return ibx_shm_chunk_part_done(shm, chunk, rc > 0 ? -EPERM : rc);
}

/* -------------------------------------------------------------------- serving */

void ibx_shm_on_request(struct shm *shm, unsigned piece, bool urgent,
                        const struct shm_request *request)
{
    if (piece >= IBX_SHM_PIECES || shm->requests[piece].pending || !request->length ||
        request->length > IBX_SHM_PIECE) {
        ibx_shm_break(shm, -EPROTO, "the peer requests an impossible copy");
        return;
    }
    struct shm_pieces_fifo *fifo = urgent ? &shm->requested_urgent : &shm->requested_bulk;
    shm->requests[piece] = *request;
    fifo->items[(fifo->head + fifo->count++) % IBX_SHM_PIECES] = (uint16_t)piece;
}

static void serve_one(struct shm *shm, struct shm_pieces_fifo *fifo)
{
    uint16_t piece = fifo->items[fifo->head];
    fifo->head = (fifo->head + 1) % IBX_SHM_PIECES;
    fifo->count--;
    struct shm_request *request = &shm->requests[piece];
    request->pending = false;
    struct shm_command done = {.kind = SHM_COMMAND_DONE, .piece = piece};
    if (settle(&shm->theirs, piece, SHM_REQUEST_SERVED))
        done.status =
            ibx_shm_region_copy(shm, request, bounce_of(&shm->theirs, piece, request->address));
    ibx_shm_command_put(shm, &done);
}

int ibx_shm_serve(struct shm *shm)
{
    int served = 0;
    for (unsigned i = 0; i < SERVE_AT_ONCE; i++) {
        bool urgent = shm->requested_urgent.count;
        if (!urgent && !shm->requested_bulk.count)
            break;
        serve_one(shm, urgent ? &shm->requested_urgent : &shm->requested_bulk);
        served++;
    }
    return served;
}
