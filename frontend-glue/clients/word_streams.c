/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The streams in which words are written for clients that have ended (stream_waits.c): one for each
 * context in which a client has ever waited for a word.
 *
 * The driver makes no stream while a call waits in the same context, such as a copy of pageable
 * memory, or the first launch of a kernel (seen with driver 580). If that call waits for the very
 * word, a stream that is made only when the word has to be written is never made. So it is made
 * before the first wait.
 */
#include "frontend-glue/clients/clients.h"

#include <pthread.h>
#include <stdlib.h>

struct word_stream {
    struct word_stream *next;
    void *context, *stream;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct word_stream *streams;

/* Locked. */
static void *find(const void *context)
{
    const struct word_stream *s = streams;
    while (s && s->context != context)
        s = s->next;
    return s ? s->stream : NULL;
}

void *ibx_word_stream_of(const void *context)
{
    pthread_mutex_lock(&lock);
    void *stream = find(context);
    pthread_mutex_unlock(&lock);
    return stream;
}

/* False: another thread was faster. */
static bool keep(struct word_stream *made)
{
    pthread_mutex_lock(&lock);
    const bool first = !find(made->context);
    if (first) {
        made->next = streams;
        streams = made;
    }
    pthread_mutex_unlock(&lock);
    return first;
}

void ibx_word_stream_prepare(const struct gpu_session *x)
{
    void *context = NULL;
    if (x->cuda->ctx_get_current(&context) || !context || ibx_word_stream_of(context))
        return;
    struct word_stream *made = malloc(sizeof(*made));
    if (made)
        *made = (struct word_stream){NULL, context, ibx_own_stream_begin()};
    if (made && made->stream && keep(made))
        return;
    if (made && made->stream)
        ibx_own_stream_leave(made->stream);
    free(made);
}

void ibx_word_stream_forget(const void *context)
{
    pthread_mutex_lock(&lock);
    for (struct word_stream **at = &streams; *at;) {
        struct word_stream *s = *at;
        if (!context || s->context == context) {
            *at = s->next;
            free(s);
        } else {
            at = &s->next;
        }
    }
    pthread_mutex_unlock(&lock);
}
