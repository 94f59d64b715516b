/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Keeps answers of cuBLASLt. The result of a search, or an attribute of an algorithm, depends only
 * on the bytes of the request, which contain the descriptors. Programs such as PyTorch search
 * before each product, and the library natively caches the results, too. Also answers of cuDNN
 * about descriptors that never change (math_contents.c).
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "common/fork_lock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ANSWERS  256u  /* places; a newer answer replaces an older one in the same place */
#define OUT_MOST 1024u /* bytes; longer answers are not kept */

struct answer {
    size_t n, out_n;
    uint8_t bytes[]; /* the request, followed by the answer */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct answer *answers[ANSWERS]; /* protected by the lock */
static uint64_t forgotten;              /* how often all were forgotten; protected by the lock */

/* The lock is held across a fork, because the child uses the answers. */
IBX_FORKS_WAIT_FOR(lock);

static struct answer **place_of(const uint8_t *body, size_t n)
{
    uint64_t hash = n, word;
    for (size_t at = 0; at < n; at += sizeof(word)) {
        const size_t some = n - at < sizeof(word) ? n - at : sizeof(word);
        word = 0;
        memcpy(&word, body + at, some);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return &answers[hash % ANSWERS];
}

bool ibx_math_answers_are_same(const struct ibx_math_function *f)
{
    switch (f->number) {
    case IBX_MATH_cublasLtMatmulAlgoGetHeuristic:
    case IBX_MATH_cublasLtMatmulAlgoGetIds:
    case IBX_MATH_cublasLtMatmulAlgoInit:
    case IBX_MATH_cublasLtMatmulAlgoCheck:
    case IBX_MATH_cublasLtMatmulAlgoConfigSetAttribute:
    case IBX_MATH_cublasLtMatmulAlgoConfigGetAttribute:
        return true;
    case IBX_MATH_cudnnGetStream:
    case IBX_MATH_cudnnBackendGetAttribute:
        return false;
    default:
        return ibx_math_is_dnn(f->number) && f->use == IBX_MATH_USE_ASKS;
    }
}

bool ibx_math_answer_known(const uint8_t *body, size_t n, uint8_t *out, size_t out_n,
                           uint64_t *since)
{
    pthread_mutex_lock(&lock);
    const struct answer *a = *place_of(body, n);
    const bool known = a && a->n == n && a->out_n == out_n && !memcmp(a->bytes, body, n);
    if (known)
        memcpy(out, a->bytes + n, out_n);
    *since = forgotten;
    pthread_mutex_unlock(&lock);
    return known;
}

void ibx_math_answer_keep(const uint8_t *body, size_t n, const uint8_t *out, size_t out_n,
                          uint64_t since)
{
    struct answer *made = out_n <= OUT_MOST ? malloc(sizeof(*made) + n + out_n) : NULL;
    if (!made)
        return;
    made->n = n;
    made->out_n = out_n;
    memcpy(made->bytes, body, n);
    memcpy(made->bytes + n, out, out_n);
    pthread_mutex_lock(&lock);
    if (since == forgotten) {
        struct answer **at = place_of(body, n);
        free(*at);
        *at = made;
        made = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(made);
}

void ibx_math_answers_forget(void)
{
    pthread_mutex_lock(&lock);
    forgotten++;
    for (unsigned i = 0; i < ANSWERS; i++) {
        free(answers[i]);
        answers[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
}
