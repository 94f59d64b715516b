/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Payloads that both ends can make and check, and their buffers. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* From splitmix64: an odd constant that mixes well, and the finaliser below. */
#define GOLDEN 0x9e3779b97f4a7c15ull
#define LANES  4u

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* The bytes are not random, but all words, pages and seeds differ; about as fast as memory. */
void ibx_bw_payload_fill(uint8_t *payload, size_t n, uint64_t seed)
{
    uint64_t word = mix(seed + GOLDEN);
    size_t at = 0;
    for (; at + sizeof(word) <= n; at += sizeof(word)) {
        memcpy(payload + at, &word, sizeof(word));
        word += GOLDEN;
    }
    memcpy(payload + at, &word, n - at);
}

/* Four independent lanes, so that one multiplication need not wait for another. */
uint64_t ibx_bw_payload_sum(const uint8_t *payload, size_t n)
{
    uint64_t lane[LANES] = {1, 2, 3, 4}, word[LANES];
    size_t at = 0;
    for (; at + sizeof(word) <= n; at += sizeof(word)) {
        memcpy(word, payload + at, sizeof(word));
        for (unsigned i = 0; i < LANES; i++)
            lane[i] = ((lane[i] ^ word[i]) * GOLDEN) ^ (lane[i] >> 29);
    }
    memset(word, 0, sizeof(word));
    memcpy(word, payload + at, n - at);
    uint64_t sum = n;
    for (unsigned i = 0; i < LANES; i++)
        sum = mix(sum ^ lane[i] ^ mix(word[i] + i));
    return sum;
}

static size_t mark_length(size_t n)
{
    return n < sizeof(uint64_t) ? n : sizeof(uint64_t);
}

void ibx_bw_payload_mark(uint8_t *payload, size_t n, uint64_t token)
{
    memcpy(payload, &token, mark_length(n));
    if (n >= 2 * sizeof(token))
        memcpy(payload + n - sizeof(token), &token, sizeof(token));
}

bool ibx_bw_payload_marked(const uint8_t *payload, size_t n, uint64_t token)
{
    if (memcmp(payload, &token, mark_length(n)))
        return false;
    return n < 2 * sizeof(token) || !memcmp(payload + n - sizeof(token), &token, sizeof(token));
}

int ibx_bw_buffer_room(struct bw_buffer *buffer, size_t bytes)
{
    if (bytes <= buffer->room)
        return 0;
    uint8_t *data = malloc(bytes);
    if (!data)
        return -ENOMEM;
    free(buffer->data);
    *buffer = (struct bw_buffer){data, bytes};
    return 0;
}

void ibx_bw_buffer_fini(struct bw_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct bw_buffer){0};
}
