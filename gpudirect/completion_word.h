/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Words of pinned memory that the GPU sets behind copies. Who polls one sees the end of a copy
 * sooner than cuMemcpyHtoD() or cuEventSynchronize() return.
 *
 * Words lie in one page for each context, a cache line apart. A page is registered before the first
 * of its words is used and never unregistered, because unregistering waits for all work of the
 * context and blocks other callers of the driver. A reset of the context ends the registration; the
 * page is then registered again in the next context. Contexts do not share a page, so a reset does
 * not affect copies of another device.
 *
 * Used only where there are enough processors, since polling occupies one. From any thread; a word
 * belongs to the thread that took it.
 */
#ifndef IBX_GPUDIRECT_COMPLETION_WORD_H
#define IBX_GPUDIRECT_COMPLETION_WORD_H

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
/* Accepts NULL. Calls no CUDA function, so the context may be gone. The word is not given to
 * another caller before the GPU has written its last value, unless the context was reset. */
void ibx_word_give(struct ibx_word *word);

/* Has the GPU write the word after the work that the stream has. 0 or a CUresult. */
int ibx_word_set(const struct ibx_cuda *cuda, struct ibx_word *word, void *stream);
/* Waits until the GPU has written the word. 0, or the CUresult of the stream, if it fails before.
 * If it takes long, the driver is asked about the stream, but about the legacy stream by `event`,
 * an event of the context that is free meanwhile: querying the legacy stream while another thread
 * captures a stream that synchronizes with it fails and ends the capture. */
int ibx_word_wait(const struct ibx_cuda *cuda, const struct ibx_word *word, void *stream,
                  void *event);

#endif
