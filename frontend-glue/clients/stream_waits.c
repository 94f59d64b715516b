/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Words in memory that clients' streams wait for (cuStreamWaitValue32). Natively the wait ends with
 * its process. Here it would last until the back end ends, and so would other clients' calls that
 * wait for all work. So when a process has ended, and a second later its work has not, the words
 * are written that its streams may still wait for: the oldest wait's first, and all of them again
 * until the work is over.
 *
 * What the streams have behind their waits then runs, without what the process would have written
 * before. It has nothing but the client's own memory, which is freed when the work is over
 * (client_ends.c). A client that shares memory or events with other programs (cudaIpc*) is left
 * alone: its work might write to what these use, and they may still write the word.
 *
 * A word is written if it is in memory of the client's own that nobody frees meanwhile. Otherwise
 * that address may be another client's by now.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAITS_MOST 1024u    /* of a client; CUDA takes about a thousand entries in a stream */
#define WAITS_ROOM 16u      /* at first */
#define WRITTEN_MS 1000u    /* for so long a write is waited for */
#define DWELL_NS   1000000L /* for so long a word is left as it is, so that the GPU sees it */

enum condition { NOT_LESS, EQUAL, AND, NOR }; /* CUstreamWaitValue_flags */
#define CONDITIONS 3u

struct wait {
    uint64_t address, value;
    unsigned bytes; /* of the word: 4 or 8 */
    enum condition condition;
    void *context, *stream;
};

struct waits {
    struct waits *next;
    uint64_t client;
    struct wait *all; /* the oldest first */
    size_t room, count;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct waits *clients;

/* Locked. Where the client's waits are in the list; the end of the list: it has none. */
static struct waits **find(uint64_t client)
{
    struct waits **at = &clients;
    while (*at && (*at)->client != client)
        at = &(*at)->next;
    return at;
}

/* Locked. False: no memory, or enough waits. */
static bool grow(struct waits *w)
{
    const size_t room = w->room ? 2 * w->room : WAITS_ROOM;
    struct wait *more = room <= WAITS_MOST ? realloc(w->all, room * sizeof(*more)) : NULL;
    if (!more)
        return false;
    w->all = more;
    w->room = room;
    return true;
}

/* Locked. Drops the oldest wait of that stream, which is the most likely to be over; the oldest of
 * all, if the stream has none. */
static void drop(struct waits *w, const void *stream)
{
    size_t i = 0;
    while (i < w->count && w->all[i].stream != stream)
        i++;
    i = i < w->count ? i : 0;
    memmove(w->all + i, w->all + i + 1, (w->count - i - 1) * sizeof(*w->all));
    w->count--;
}

/* Locked. */
static void put(struct waits *w, const struct wait *added)
{
    if (w->count == w->room && !grow(w) && w->count)
        drop(w, added->stream);
    if (w->count < w->room)
        w->all[w->count++] = *added;
}

void ibx_stream_waits_add(struct gpu_session *x, void *stream, uint64_t address, unsigned bytes,
                          uint64_t value, unsigned flags)
{
    struct wait added = {address, value, bytes, (enum condition)(flags & CONDITIONS), NULL, stream};
    const uint64_t client = ibx_clients_number(x);
    if (!client || x->cuda->ctx_get_current(&added.context) || !added.context)
        return;
    pthread_mutex_lock(&lock);
    struct waits **at = find(client);
    const bool first = !*at;
    if (first && (*at = calloc(1, sizeof(**at))))
        (*at)->client = client;
    if (*at)
        put(*at, &added);
    pthread_mutex_unlock(&lock);
    if (first)
        ibx_clients_watch(x);
}

bool ibx_stream_waits_first(uint64_t client, void **context)
{
    pthread_mutex_lock(&lock);
    const struct waits *w = *find(client);
    const bool any = w && w->count;
    if (any && context)
        *context = w->all[0].context;
    pthread_mutex_unlock(&lock);
    return any;
}

void ibx_stream_waits_over(uint64_t client, const void *context)
{
    pthread_mutex_lock(&lock);
    struct waits *w = *find(client);
    size_t kept = 0;
    for (size_t i = 0; w && i < w->count; i++)
        if (w->all[i].context != context)
            w->all[kept++] = w->all[i];
    if (w)
        w->count = kept;
    pthread_mutex_unlock(&lock);
}

void ibx_stream_waits_forget(uint64_t client)
{
    pthread_mutex_lock(&lock);
    struct waits **at = find(client), *gone = *at;
    if (gone)
        *at = gone->next;
    pthread_mutex_unlock(&lock);
    if (gone)
        free(gone->all);
    free(gone);
}

/* A copy of the client's waits, the oldest first, which the caller frees; NULL: there are none. */
static struct wait *copy_of(uint64_t client, size_t *count)
{
    pthread_mutex_lock(&lock);
    const struct waits *w = *find(client);
    *count = w ? w->count : 0;
    struct wait *all = *count ? calloc(*count, sizeof(*all)) : NULL;
    if (all)
        memcpy(all, w->all, *count * sizeof(*all));
    pthread_mutex_unlock(&lock);
    return all;
}

/* A word for which the stream does not wait. False: there is none. */
static bool word_for(const struct wait *w, uint64_t *word)
{
    const uint64_t bits = w->bytes == 8 ? UINT64_MAX : UINT32_MAX;
    *word = w->condition == NOR ? 0 : w->value & bits;
    return w->condition == NOR ? (w->value & bits) != bits : w->condition == AND ? *word : true;
}

static bool add_write(void *stream, const struct wait *w, uint64_t word)
{
    int (*write_32)(void *stream, uint64_t address, uint32_t value, unsigned flags) = NULL;
    int (*write_64)(void *stream, uint64_t address, uint64_t value, unsigned flags) = NULL;
    *(void **)&write_32 = ibx_cuda_symbol("cuStreamWriteValue32_v2");
    *(void **)&write_64 = ibx_cuda_symbol("cuStreamWriteValue64_v2");
    if (w->bytes == 8)
        return write_64 && !write_64(stream, w->address, word, 0);
    return write_32 && !write_32(stream, w->address, (uint32_t)word, 0);
}

/* In the word's context. False: the write may still come. */
static bool write_in_stream(const struct ibx_cuda *cuda, const struct wait *w, uint64_t word)
{
    const uint64_t deadline = ibx_deadline_in_ms(WRITTEN_MS);
    uint64_t ns = 0;
    void *own = NULL, *stream = ibx_word_stream_of(w->context);
    if (!stream && !(stream = own = ibx_own_stream_begin()))
        return true;
    bool written = !add_write(stream, w, word);
    while (!written && !(written = cuda->stream_query(stream) != IBX_CUDA_NOT_READY) &&
           ibx_now_ns() < deadline)
        ibx_nap(&ns);
    if (own)
        ibx_own_stream_leave(own);
    return written;
}

/* Writes to device memory, while nobody resets the context. False: as above. */
static bool write_on_device(const struct ibx_cuda *cuda, const struct wait *w, uint64_t word)
{
    void *popped = NULL;
    bool written = true;
    if (cuda->ctx_push_current(w->context))
        return true;
    const int mode = ibx_cuda_capture_relax(cuda);
    if (ibx_clients_give_begin()) {
        written = write_in_stream(cuda, w, word);
        ibx_clients_give_end();
    }
    ibx_cuda_capture_restore(cuda, mode);
    cuda->ctx_pop_current(&popped);
    return written;
}

/* False: a write may still come. Then the word's memory stays as being freed, and nobody ever gets
 * it. */
static bool end_wait(const struct ibx_cuda *cuda, uint64_t client, const struct wait *w)
{
    uint64_t word, base, number;
    if (!word_for(w, &word) || ibx_host_maps_write(client, w->address, w->bytes, word) ||
        !ibx_memory_keep_begin(client, w->address, w->bytes, &base, &number))
        return true;
    const bool written = write_on_device(cuda, w, word);
    if (written)
        ibx_memory_free_end(base, number, false);
    return written;
}

static bool has_address(const struct wait *all, size_t count, uint64_t address)
{
    size_t i = 0;
    while (i < count && all[i].address != address)
        i++;
    return i < count;
}

void ibx_stream_waits_end(struct gpu_session *x, uint64_t client)
{
    size_t count;
    struct wait *all = copy_of(client, &count);
    for (size_t i = 0, since = 0; all && i < count; i++) {
        if (has_address(all + since, i - since, all[i].address)) {
            nanosleep(&(struct timespec){.tv_nsec = DWELL_NS}, NULL);
            since = i;
        }
        if (!end_wait(x->cuda, client, &all[i]))
            break;
    }
    free(all);
}
