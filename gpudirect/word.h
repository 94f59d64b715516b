/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Words of pinned memory that the GPU sets behind copies. Who polls one sees the end of a copy
 * sooner than cuMemcpyHtoD() or cuEventSynchronize() return.
 *
 * They lie in one page for each context, a cache line apart. A page is registered before the first
 * of its words is used and never unregistered: that waits for all work of the context and keeps
 * others out of the driver. A context that is reset takes the registration with it; the page is
 * registered again with the next one. Pages have contexts of their own, so that no reset takes a
 * page from another device's copies.
 *
 * Only where processors abound, as polling takes one. From any thread; a word belongs to the thread
 * that took it.
 */
#ifndef IBX_GPUDIRECT_WORD_H
#define IBX_GPUDIRECT_WORD_H

#include "gpudirect/cuda.h"

#include <stdbool.h>

#define IBX_WORD_PAGE     4096u
#define IBX_WORD_LINE     64u
#define IBX_WORD_COUNT    (IBX_WORD_PAGE / IBX_WORD_LINE) /* of a context */
#define IBX_WORD_CONTEXTS 16u

struct ibx_word {
    _Atomic uint32_t *at;
    uint32_t told; /* what the GPU was last told to write there */
    bool taken;
};

/* A word of the calling thread's current context, which is `context`. NULL: all are taken, the
 * driver refuses, or there are too few processors. */
struct ibx_word *ibx_word_take(const struct ibx_cuda *cuda, void *context);
/* Accepts NULL; calls nothing of CUDA, so that the context may be gone. Nobody has the word again
 * before the GPU has written it as it was last told, unless the context was reset. */
void ibx_word_give(struct ibx_word *word);

/* Has the GPU set it behind what the stream has; waits until it has. 0 or a CUresult: of the
 * stream, where the GPU never comes to it. An event of the context that is free meanwhile stands
 * for the legacy stream where that takes long: a question about that one fails while another thread
 * captures a stream that waits for it, and ends the capture. */
int ibx_word_set(const struct ibx_cuda *cuda, struct ibx_word *word, void *stream);
int ibx_word_wait(const struct ibx_cuda *cuda, const struct ibx_word *word, void *stream,
                  void *event);

#endif
