/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The shm provider receives anything. Nothing outside the memory that it registered for writing
 * changes, and each chunk is reported exactly once.
 *
 *   first byte 0   an offer
 *              1   a hello, and an answer, at a socket
 *              2   or more: a connected end receives records from a peer that can write anything to
 *                  the shared memory:
 *
 *   record  u8 0: a packet at the control socket: its length, its bytes u8 1: 8 bytes for a place
 *           in the table of regions; u16 which, u8 which field u8 n: a command of kind n - 2: u8
 *           urgent, u8 piece, u32 length, i32 status, u16 offset, with the key of the read-only or
 *           (odd n) the writable region */
#include "tests/fixtures/shm_pair.h"
#include "tests/fuzz/quiet.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PAGE 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t memory[3 * PAGE]; /* the middle page is registered for writing */
static uint8_t constant[PAGE], mine[PAGE];

static void fuzz_offer(const uint8_t *data, size_t size)
{
    struct shm_place place;
    char directory[IBX_SHM_DIRECTORY];
    struct ibx_reader r = ibx_reader_of(data, size);
    ibx_shm_place_init(&place);
    if (!ibx_shm_place_get(&place, directory, &r))
        MUST(strlen(place.name) == IBX_SHM_NAME && !strchr(place.name, '/') &&
             strlen(directory) < IBX_SHM_DIRECTORY);
}

/* Nobody has the proof, so no peer may be accepted. */
static void fuzz_hello(const uint8_t *data, size_t size)
{
    uint8_t answer[IBX_PROOF_BYTES];
    int ends[2];
    struct pair pair;
    MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    pair_open(&pair);
    struct ibx_reader r = ibx_reader_of(data, size);
    MUST(ibx_shm_hello_check(pair.client.shm, ends[0], &r, answer));
    r = ibx_reader_of(data, size);
    MUST(ibx_shm_answer_check(pair.server.shm, ends[1], &r));
    pair_close(&pair);
    close(ends[0]);
    close(ends[1]);
}

static void put_command(struct pair *pair, struct ibx_mr *const regions[2], uint8_t kind,
                        struct ibx_reader *r)
{
    const struct ibx_mr *mr = regions[kind & 1];
    struct shm_command command = {.kind = (uint8_t)(kind - 2)};
    command.urgent = ibx_get_u8(r);
    command.piece = ibx_get_u8(r);
    command.length = ibx_get_u32(r);
    command.status = (int32_t)ibx_get_u32(r);
    command.target.key = mr->keys[0];
    command.target.address = (uintptr_t)mr->span.address + (uint64_t)(int16_t)ibx_get_u16(r);
    ibx_shm_command_put(pair->server.shm, &command);
}

static void put_region(struct pair *pair, struct ibx_reader *r)
{
    const uint8_t *value = ibx_get_bytes(r, 8);
    unsigned which = ibx_get_u16(r), field = ibx_get_u8(r);
    struct shm_published *regions = pair->server.shm->mine.regions;
    if (value && !r->failed)
        memcpy((uint8_t *)&regions[which % 4] + 8 * (field % 8), value, 8);
}

static void put_packet(struct pair *pair, struct ibx_reader *r)
{
    unsigned length = ibx_get_u8(r) % 8;
    const uint8_t *packet = ibx_get_bytes(r, length);
    if (packet)
        ibx_shm_packet_send(pair->server.shm->control, packet, length, -1);
}

static void fuzz_records(const uint8_t *data, size_t size)
{
    struct pair pair;
    struct ibx_chunk chunk;
    struct ibx_reader r = ibx_reader_of(data, size);
    memset(memory, 0x11, sizeof(memory));
    memset(constant, 0x22, sizeof(constant));
    pair_open(&pair);
    ends_connect(&pair.server, &pair.client);
    struct end *client = &pair.client;
    client->shm->direct = false;
    struct ibx_mr *regions[2] = {
        end_register(client, constant, PAGE, IBX_ACCESS_REMOTE_READ),
        end_register(client, memory + PAGE, PAGE, IBX_ACCESS_REMOTE_WRITE)};
    struct ibx_mr *theirs = end_register(&pair.server, NULL, PAGE, IBX_ACCESS_REMOTE_READ);
    post(client, &chunk, IBX_RDMA_READ, 1, mine, theirs, 0, PAGE);
    unsigned reported = 0;
    while (!r.failed && client->count < NOTES_MAX / 2 && !end_lost(client)) {
        uint8_t what = ibx_get_u8(&r);
        if (r.failed)
            break;
        if (what == 0)
            put_packet(&pair, &r);
        else if (what == 1)
            put_region(&pair, &r);
        else
            put_command(&pair, regions, what, &r);
        ibx_provider_shm.arm(client->shm);
        end_turn(client);
    }
    ibx_provider_shm.abort(client->shm);
    end_turn(client);
    for (unsigned i = 0; i < client->count; i++)
        reported += client->notes[i].kind == NOTE_CHUNK;
    MUST(reported == 1);
    for (unsigned i = 0; i < PAGE; i++)
        MUST(memory[i] == 0x11 && memory[2 * PAGE + i] == 0x11 && constant[i] == 0x22);
    end_deregister(client, regions[0]);
    end_deregister(client, regions[1]);
    end_deregister(&pair.server, theirs);
    pair_close(&pair);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] == 0)
        fuzz_offer(data + 1, size - 1);
    else if (data[0] == 1)
        fuzz_hello(data + 1, size - 1);
    else
        fuzz_records(data + 1, size - 1);
    return 0;
}
