/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The tcp provider receives anything on its sockets. Nothing outside the memory that it
 * registered for writing changes, each chunk is reported exactly once, and what can be parsed
 * encodes to the same bytes.
 *
 * First byte 0: the parsers alone. Otherwise a server with a handshake socket and one bulk lane
 * receives records, each of them a head, a frame's header and payload. First byte 2: frames have
 * places, and most of them the right ones: what the record has there is added.
 *
 *   head  bit 0: on the bulk lane; bits 1 and 2: with the key and address of the read-only or the
 *         writable region filled in; bits 3 to 7: payload / 8 */
#include "tests/fixtures/tcp_end.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/quiet.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE  4096u
#define POSTS 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t memory[3 * PAGE]; /* the middle page is registered for writing */
static uint8_t constant[PAGE];
static uint8_t targets[POSTS][PAGE];

static void fuzz_parsers(const uint8_t *data, size_t size)
{
    uint8_t in[64] = {0}, out[64];
    memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
    struct ibx_tcp_frame frame;
    if (!ibx_tcp_frame_get(in, &frame)) {
        ibx_tcp_frame_put(&frame, out);
        require(!memcmp(in, out, IBX_TCP_FRAME_BYTES));
    }
    unsigned lane;
    const uint8_t *proof;
    if (!ibx_tcp_hello_get(in, &lane, &proof)) {
        ibx_tcp_hello_put(lane, proof, out);
        require(!memcmp(in, out, IBX_TCP_HELLO_BYTES));
    }
    struct ibx_tcp_terms terms;
    struct ibx_reader r = ibx_reader_of(in, size < sizeof(in) ? size : sizeof(in));
    if (!ibx_tcp_terms_get(&r, &terms)) {
        struct ibx_writer w = ibx_writer_of(out, sizeof(out));
        ibx_tcp_terms_put(&terms, &w);
        require(w.length == IBX_TCP_TERMS_BYTES && !memcmp(in, out, w.length));
    }
}

/* Drops what the server answered, so that it can continue. */
static void drain(const int *lanes)
{
    uint8_t scrap[4096];
    for (int i = 0; i < 2; i++) {
        while (recv(lanes[i], scrap, sizeof(scrap), MSG_DONTWAIT) > 0)
            ;
    }
}

static void forge(struct ibx_mr *const regions[2], uint8_t head, uint8_t *header)
{
    if (!(head & 6))
        return;
    const struct ibx_mr *mr = regions[head >> 1 & 1];
    struct ibx_writer w = ibx_writer_of(header + 16, 16);
    struct ibx_reader r = ibx_reader_of(header + 24, 8);
    uint64_t offset = ibx_get_u64(&r) & (2 * PAGE - 1);
    ibx_put_u64(&w, mr->keys[0]);
    ibx_put_u64(&w, (uintptr_t)mr->span.address + offset);
}

static void post_some(struct end *server, struct ibx_chunk *chunks)
{
    static const uint64_t keys[IBX_RAILS_MAX] = {1};
    for (unsigned i = 0; i < POSTS; i++) {
        chunks[i] = (struct ibx_chunk){
            .kind = i == 1 ? IBX_RDMA_WRITE : IBX_RDMA_READ,
            .lane = i ? 1 : 0,
            .local = targets[i],
            .remote_keys = keys,
            .length = 16,
        };
        require(!ibx_provider_tcp.rdma(server->tcp, &chunks[i]));
    }
}

/* Adds the right place to that of the header, and counts the bytes. */
static void place(uint8_t *header, size_t payload, uint64_t *at)
{
    struct ibx_reader r = ibx_reader_of(header + 4, 4);
    ibx_tcp_frame_place(header, *at + ibx_get_u32(&r));
    *at += IBX_TCP_FRAME_BYTES + payload;
}

static void speak(struct end *server, struct ibx_mr *const regions[2], const int *lanes,
                  const uint8_t *data, size_t size)
{
    uint64_t sent[2] = {0, 0};
    while (size > 1 + IBX_TCP_FRAME_BYTES && server->count < NOTES_MAX / 2) {
        uint8_t head = data[0], header[IBX_TCP_FRAME_BYTES];
        size_t payload = (size_t)(head >> 3) * 8, left = size - 1 - IBX_TCP_FRAME_BYTES;
        if (payload > left)
            payload = left;
        memcpy(header, data + 1, sizeof(header));
        forge(regions, head, header);
        if (raw_places)
            place(header, payload, &sent[head & 1]);
        if (send(lanes[head & 1], header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ||
            send(lanes[head & 1], data + 1 + sizeof(header), payload, MSG_NOSIGNAL | MSG_DONTWAIT) <
                0)
            return;
        data += 1 + sizeof(header) + payload;
        size -= 1 + sizeof(header) + payload;
        for (int i = 0; i < 3; i++)
            end_turn(server);
        drain(lanes);
        for (unsigned i = 0; i < server->count; i++) {
            if (server->notes[i].kind == NOTE_MESSAGE)
                ibx_provider_tcp.release(server->tcp, server->notes[i].token);
        }
    }
}

static void check(const struct end *server, const struct ibx_chunk *chunks)
{
    for (size_t i = 0; i < PAGE; i++)
        require(memory[i] == 0xab && memory[2 * PAGE + i] == 0xab && constant[i] == 0xcd);
    for (unsigned c = 0; c < POSTS; c++) {
        unsigned times = 0;
        for (unsigned i = 0; i < server->count; i++)
            times += server->notes[i].kind == NOTE_CHUNK && server->notes[i].chunk == &chunks[c];
        require(times == 1);
        for (size_t i = 16; i < PAGE; i++)
            require(targets[c][i] == 0xef);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (!data[0]) {
        fuzz_parsers(data + 1, size - 1);
        return 0;
    }
    static struct end server;
    int door[2], lanes[2];
    struct ibx_chunk chunks[POSTS];
    memset(memory, 0xab, sizeof(memory));
    memset(constant, 0xcd, sizeof(constant));
    memset(targets, 0xef, sizeof(targets));
    raw_places = data[0] == 2;
    sockets_unix(door);
    lanes[0] = door[1];
    end_init(&server, IBX_ROLE_SERVER, door[0], 1, 4);
    end_connect_raw(&server, lanes, 1);
    struct ibx_mr *regions[2] = {
        end_register(&server, constant, sizeof(constant), IBX_ACCESS_REMOTE_READ),
        end_register(&server, memory + PAGE, PAGE,
                     IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE),
    };
    post_some(&server, chunks);
    end_turn(&server);
    drain(lanes);
    speak(&server, regions, lanes, data + 1, size - 1);
    close(lanes[1]);
    end_turn(&server);
    ibx_provider_tcp.abort(server.tcp);
    end_turn(&server);
    end_deregister(&server, regions[0]);
    end_deregister(&server, regions[1]);
    check(&server, chunks);
    end_close(&server);
    close(lanes[0]);
    return 0;
}
