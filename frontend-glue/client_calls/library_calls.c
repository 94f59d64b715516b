/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of cuBLAS, cuDNN, cuFFT and cuRAND that GVirtuS's plugins serve. One that only adds work
 * succeeds again with the very same arguments, as long as no call has set up anything of such a
 * library anew, and is answered then. Some handlers return an address that was among the arguments
 * besides, always the same one: so is that. What such a call returns is a number of the library's.
 */
#include "frontend-glue/client_calls/internal.h"

#include "common/log.h"

#include <string.h>

#define ADDRESS      8u
#define STEP         4u /* between places where an address may be: numbers of 32 bits lie between */
#define PLACES       16u /* from the body's end, where it is in fact */
#define NO_OUTPUT    0u
#define WITH_ADDRESS 1u /* + its place */

#define CUDA_LAUNCH_FAILURE 719

/* That it was answered so; which function it is stands in front of the body. */
static uint64_t key_of(const struct ibx_pipeline *p, unsigned answer)
{
    return ibx_request_hash(6 ^ (uint64_t)answer << 8 ^ (uint64_t)ibx_request_word(p->device) << 16,
                            p->staged, p->staged_length);
}

/* NULL: the body is not that long. */
static const uint8_t *place_in(const uint8_t *body, size_t n, unsigned place)
{
    const size_t from_end = ADDRESS + (size_t)STEP * place;
    return from_end <= n ? body + n - from_end : NULL;
}

void ibx_library_learn(struct ibx_pipeline *p, const uint8_t *body, size_t n, uint64_t out)
{
    if (!out)
        ibx_successes_add(&p->libraries, key_of(p, NO_OUTPUT));
    for (unsigned i = 0; out == ADDRESS && i < PLACES; i++) {
        const uint8_t *at = place_in(body, n, i);
        if (at && !memcmp(at, p->reply + IBX_REPLY_HEAD, ADDRESS)) {
            ibx_successes_add(&p->libraries, key_of(p, WITH_ADDRESS + i));
            return;
        }
    }
}

static const uint8_t *known_address(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    for (unsigned i = 0; i < PLACES && place_in(body, n, i); i++) {
        if (ibx_successes_hold(&p->libraries, key_of(p, WITH_ADDRESS + i)))
            return place_in(body, n, i);
    }
    return NULL;
}

bool ibx_library_may_be_early(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    return ibx_successes_hold(&p->libraries, key_of(p, NO_OUTPUT)) || known_address(p, body, n);
}

void ibx_library_answer(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const uint8_t *address = known_address(p, body, n);
    struct ibx_writer w = ibx_writer_of(p->reply, IBX_REPLY_HEAD + ADDRESS);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, address ? ADDRESS : 0);
    if (address)
        ibx_put_bytes(&w, address, ADDRESS);
    p->answer = p->reply;
    p->answer_left = w.length;
}

/* Which of those without a reply they are; of requests that are AHEAD_MOST apart one has it. */
static uint64_t *word_of(struct ibx_pipeline *p, uint64_t number)
{
    return &p->library_calls[number % AHEAD_MOST / 64];
}

void ibx_library_note(struct ibx_pipeline *p, uint64_t number, bool is)
{
    const uint64_t bit = (uint64_t)1 << number % 64;
    uint64_t *word = word_of(p, number);
    *word = is ? *word | bit : *word & ~bit;
}

int ibx_library_replied(struct ibx_pipeline *p, uint64_t number, int exit_code)
{
    if (!exit_code || !(*word_of(p, number) >> number % 64 & 1))
        return exit_code;
    ibx_log(IBX_LOG_WARN,
            "a call of cuBLAS or another library that was answered with 0 has failed with the "
            "library's status %d: the next call that waits returns %d",
            exit_code, CUDA_LAUNCH_FAILURE);
    return CUDA_LAUNCH_FAILURE;
}
