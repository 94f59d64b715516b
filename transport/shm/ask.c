/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies with the peer's help, piece by piece: the peer copies between its
 * memory and a bounce buffer while this side copies between the bounce buffer of
 * another piece and its own memory. A piece fits in the L2 cache, so the second
 * of its two copies does not go to memory, and both processors work. The peer
 * checks key, range and access itself.
 *
 * Who asked may change its mind as long as the peer has not begun: both change
 * the piece's claim by compare-and-exchange, and only the first succeeds. The
 * piece's bounce buffer is free again when the peer has answered in any case.
 */
#include "transport/shm/shm.h"

#include <errno.h>
#include <string.h>

#define SERVE_AT_ONCE 2u /* pieces a progress, so that messages are looked at in between */

/* The bounce buffer of a piece whose memory at the asked side is at `address`. Bytes that are
 * copied to where the same place of a page was read just before wait for that, on some processors,
 * and a memcpy is at less than half its speed; mostly both sides' memory begins at one place of a
 * page. */
static uint8_t *bounce_of(const struct shm_half *half, unsigned piece, uint64_t address)
{
    return half->bounce + (size_t)piece * IBX_SHM_PIECE_ROOM +
           (address + IBX_SHM_PAGE / 4) % IBX_SHM_PAGE;
}

static bool claim(struct shm_half *asker, unsigned piece, enum shm_claim how)
{
    uint32_t open = SHM_CLAIM_OPEN;
    return atomic_compare_exchange_strong(&asker->control->claims[piece], &open, how);
}

/* --------------------------------------------------------------------- asking */

static struct shm_piece *piece_free(struct shm *shm, bool urgent)
{
    for (unsigned i = urgent ? 0 : IBX_SHM_URGENT_PIECES; i < IBX_SHM_PIECES; i++) {
        if (!shm->pieces[i].busy)
            return &shm->pieces[i];
    }
    return NULL;
}

bool ibx_shm_ask_room(struct shm *shm, const struct ibx_chunk *chunk)
{
    return piece_free(shm, !chunk->lane) != NULL;
}

bool ibx_shm_ask(struct shm *shm, struct ibx_chunk *chunk, uint8_t *local, uint64_t address,
                 size_t length)
{
    struct shm_piece *piece = piece_free(shm, !chunk->lane);
    if (!piece)
        return false;
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
        .chunk = chunk,
        .local = local,
        .address = address,
        .length = length,
        .busy = true,
    };
    atomic_store_explicit(&shm->mine.control->claims[index], SHM_CLAIM_OPEN, memory_order_relaxed);
    ibx_shm_command_put(shm, &command);
    return true;
}

int ibx_shm_ask_done(struct shm *shm, unsigned index, int status)
{
    struct shm_piece *piece = index < IBX_SHM_PIECES ? &shm->pieces[index] : NULL;
    if (!piece || !piece->busy || status > 0 || status < -4095) {
        ibx_shm_break(shm, -EPROTO, "the peer answers what it was not asked");
        return 0;
    }
    struct ibx_chunk *chunk = piece->chunk;
    piece->busy = false;
    piece->chunk = NULL;
    if (!chunk) /* taken back */
        return 0;
    if (chunk->kind == IBX_RDMA_READ && !status)
        memcpy(piece->local, bounce_of(&shm->mine, index, piece->address), piece->length);
    return ibx_shm_chunk_part_done(shm, chunk, status);
}

static struct shm_piece *open_piece(struct shm *shm)
{
    for (unsigned i = 0; i < IBX_SHM_PIECES; i++) {
        struct shm_piece *piece = &shm->pieces[i];
        if (piece->chunk && atomic_load_explicit(&shm->mine.control->claims[i],
                                                 memory_order_relaxed) == SHM_CLAIM_OPEN)
            return piece;
    }
    return NULL;
}

bool ibx_shm_ask_open(struct shm *shm)
{
    return open_piece(shm) != NULL;
}

int ibx_shm_ask_take_back(struct shm *shm)
{
    struct shm_piece *piece = open_piece(shm);
    if (!piece || !claim(&shm->mine, (unsigned)(piece - shm->pieces), SHM_CLAIM_TAKEN_BACK))
        return 0;
    struct ibx_chunk *chunk = piece->chunk;
    piece->chunk = NULL;
    int rc =
        ibx_shm_copy_alone(shm, chunk, piece->local, piece->address, piece->length, shm->direct);
    return ibx_shm_chunk_part_done(shm, chunk, rc > 0 ? -EPERM : rc);
}

/* -------------------------------------------------------------------- serving */

void ibx_shm_request_take(struct shm *shm, unsigned piece, bool urgent,
                          const struct shm_request *request)
{
    if (piece >= IBX_SHM_PIECES || shm->requests[piece].pending || !request->length ||
        request->length > IBX_SHM_PIECE) {
        ibx_shm_break(shm, -EPROTO, "the peer asks for a copy that cannot be");
        return;
    }
    struct shm_pieces_fifo *fifo = urgent ? &shm->asked_urgent : &shm->asked_bulk;
    shm->requests[piece] = *request;
    fifo->items[(fifo->head + fifo->count++) % IBX_SHM_PIECES] = (uint16_t)piece;
}

static int copy_asked(struct shm *shm, const struct shm_request *request, uint8_t *bounce)
{
    int status;
    uint8_t *memory = ibx_shm_region_find(shm, request, &status);
    if (memory && request->kind == IBX_RDMA_READ)
        memcpy(bounce, memory, request->length);
    else if (memory)
        memcpy(memory, bounce, request->length);
    return status;
}

static void serve_one(struct shm *shm, struct shm_pieces_fifo *fifo)
{
    uint16_t piece = fifo->items[fifo->head];
    fifo->head = (fifo->head + 1) % IBX_SHM_PIECES;
    fifo->count--;
    struct shm_request *request = &shm->requests[piece];
    request->pending = false;
    struct shm_command done = {.kind = SHM_COMMAND_DONE, .piece = piece};
    if (claim(&shm->theirs, piece, SHM_CLAIM_TAKEN))
        done.status = copy_asked(shm, request, bounce_of(&shm->theirs, piece, request->address));
    ibx_shm_command_put(shm, &done);
}

int ibx_shm_serve(struct shm *shm)
{
    int served = 0;
    for (unsigned i = 0; i < SERVE_AT_ONCE; i++) {
        bool urgent = shm->asked_urgent.count;
        if (!urgent && !shm->asked_bulk.count)
            break;
        serve_one(shm, urgent ? &shm->asked_urgent : &shm->asked_bulk);
        served++;
    }
    return served;
}
