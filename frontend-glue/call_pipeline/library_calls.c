/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Calls of cuBLAS, cuDNN, cuFFT and cuRAND that GVirtuS's plugins serve. A call that only adds work
 * succeeds again with exactly the same arguments, unless a call has set up something of such a
 * library since, and is then answered. Some handlers also return an address that was among the
 * arguments, always the same one: so does the answer. The exit code of such a call is a status of
 * the library.
 *
 * The stream of a handle is known if this process has selected one for it, or if the call names it:
 * then the call has to come after other threads' work in that stream only, as a launch.
 */
#include "frontend-glue/call_pipeline/internal.h"

#include "common/log.h"

#include <string.h>

#define ADDRESS      8u
#define STEP         4u  /* bytes between places where an address may be */
#define PLACES       16u /* places that are tried, from the body's end */
#define NO_OUTPUT    0u
#define WITH_ADDRESS 1u /* + the address's place */

#define CUDA_LAUNCH_FAILURE 719

#define HANDLES 64u

/* Handles whose stream is known; if several share a place, the last one. */
static struct {
    pthread_mutex_t lock;
    struct {
        uint64_t key, stream; /* 0: none */
    } of[HANDLES];
} handles = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The key of a handle of 8 bytes, or of a plan of 4, with which the body begins; 0: the body is
 * shorter, or the handle is NULL. */
static uint64_t handle_in(const uint8_t *body, size_t n, bool plan)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t handle = plan ? (uint64_t)1 << 63 | ibx_get_u32(&r) : ibx_get_u64(&r);
    return r.failed ? 0 : handle;
}

static unsigned place_of(uint64_t key)
{
    return (unsigned)(ibx_request_hash(7, &key, sizeof(key)) % HANDLES);
}

static bool stream_of(uint64_t key, uint64_t *stream)
{
    pthread_mutex_lock(&handles.lock);
    const unsigned i = place_of(key);
    const bool known = key && handles.of[i].key == key;
    if (known)
        *stream = handles.of[i].stream;
    pthread_mutex_unlock(&handles.lock);
    return known;
}

/* The stream in the body's last bytes. */
static bool last_stream(const uint8_t *body, size_t n, uint64_t *stream)
{
    if (n < 8)
        return false;
    struct ibx_reader r = ibx_reader_of(body + n - 8, 8);
    *stream = ibx_get_u64(&r);
    return true;
}

bool ibx_library_stream(const struct ibx_call *call, const uint8_t *body, size_t n,
                        uint64_t *stream)
{
    if (call->stream_at == IBX_CALL_OF_LIBRARY)
        return last_stream(body, n, stream);
    const bool plan = call->stream_at == IBX_CALL_OF_PLAN;
    return (plan || call->stream_at == IBX_CALL_OF_HANDLE) &&
           stream_of(handle_in(body, n, plan), stream);
}

static void note_stream(uint64_t key, uint64_t stream)
{
    pthread_mutex_lock(&handles.lock);
    const unsigned i = place_of(key);
    handles.of[i].key = key;
    handles.of[i].stream = stream;
    pthread_mutex_unlock(&handles.lock);
}

static void forget_stream(uint64_t key)
{
    pthread_mutex_lock(&handles.lock);
    const unsigned i = place_of(key);
    if (handles.of[i].key == key)
        handles.of[i].key = 0;
    pthread_mutex_unlock(&handles.lock);
}

/* The key of the handle for which the request in hand selects a stream; 0: it is too short. */
static uint64_t selected(const struct ibx_pipeline *p, const uint8_t *body, size_t n,
                         uint64_t *stream)
{
    const uint64_t key = handle_in(body, n, !memcmp(p->staged, "cufft", 5));
    return last_stream(body, n, stream) ? key : 0;
}

void ibx_library_selected(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    uint64_t stream;
    const uint64_t key = selected(p, body, n, &stream);
    if (key)
        note_stream(key, stream);
}

bool ibx_library_has_selected(const struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    uint64_t stream, known;
    const uint64_t key = selected(p, body, n, &stream);
    return key && stream_of(key, &known) && known == stream;
}

/* The request may end the handle, whose number another one may get then. Or its effect, as a
 * workspace for cuBLAS, may be undone by selecting the same stream again. And if a selection fails,
 * only the library knows the handle's stream. */
void ibx_library_sets_up(const uint8_t *body, size_t n)
{
    if (!body)
        return;
    forget_stream(handle_in(body, n, false));
    forget_stream(handle_in(body, n, true));
}

/* The handle is new, whatever else had its number before: when a back end dies, handles go that
 * nobody has ended, and another back end's process may use the same addresses. */
void ibx_library_made(const uint8_t *out, size_t n)
{
    if (n >= 8)
        forget_stream(handle_in(out + n - 8, 8, false));
    if (n >= 4)
        forget_stream(handle_in(out + n - 4, 4, true));
}

/* Another stream may get the handle of this one, and then be selected in a library. */
void ibx_library_stream_ends(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t stream = ibx_get_u64(&r);
    pthread_mutex_lock(&handles.lock);
    for (unsigned i = 0; i < HANDLES; i++) {
        if (handles.of[i].stream == stream)
            handles.of[i].key = 0;
    }
    pthread_mutex_unlock(&handles.lock);
}

void ibx_library_clear(void)
{
    pthread_mutex_lock(&handles.lock);
    memset(handles.of, 0, sizeof(handles.of));
    pthread_mutex_unlock(&handles.lock);
}

void ibx_library_lock(void)
{
    pthread_mutex_lock(&handles.lock);
}

void ibx_library_unlock(void)
{
    pthread_mutex_unlock(&handles.lock);
}

/* The hash of the request in hand, with the name of its function. */
static uint64_t hash_of(const struct ibx_pipeline *p)
{
    return ibx_request_hash(6 ^ (uint64_t)ibx_request_word(p->device.body) << 8, p->staged,
                            p->staged_length);
}

/* The key for such an answer to that request. */
static uint64_t key_of(uint64_t request, unsigned answer)
{
    return ibx_request_hash(answer, &request, sizeof(request));
}

/* The address at that place of the body; NULL: the body is shorter. */
static const uint8_t *place_in(const uint8_t *body, size_t n, unsigned place)
{
    const size_t from_end = ADDRESS + (size_t)STEP * place;
    return from_end <= n ? body + n - from_end : NULL;
}

void ibx_library_learn(struct ibx_pipeline *p, const uint8_t *body, size_t n, uint64_t out)
{
    if (ibx_process_captures()) /* then a success says little */
        return;
    if (!out)
        ibx_successes_add(&p->libraries, key_of(hash_of(p), NO_OUTPUT));
    for (unsigned i = 0; out == ADDRESS && i < PLACES; i++) {
        const uint8_t *at = place_in(body, n, i);
        if (at && !memcmp(at, p->reply + IBX_REPLY_HEAD, ADDRESS)) {
            ibx_successes_add(&p->libraries, key_of(hash_of(p), WITH_ADDRESS + i));
            return;
        }
    }
}

static void answer_address(struct ibx_pipeline *p, const uint8_t *address)
{
    struct ibx_writer w = ibx_writer_of(p->reply, IBX_REPLY_HEAD + ADDRESS);
    ibx_put_u32(&w, 0);
    ibx_put_u64(&w, 0);
    ibx_put_u64(&w, ADDRESS);
    ibx_put_bytes(&w, address, ADDRESS);
    p->answer = p->reply;
    p->answer_left = w.length;
}

bool ibx_library_answer(struct ibx_pipeline *p, const uint8_t *body, size_t n)
{
    const uint64_t request = hash_of(p);
    if (ibx_successes_hold(&p->libraries, key_of(request, NO_OUTPUT))) {
        ibx_answer_success(p);
        return true;
    }
    for (unsigned i = 0; i < PLACES && place_in(body, n, i); i++) {
        if (ibx_successes_hold(&p->libraries, key_of(request, WITH_ADDRESS + i))) {
            answer_address(p, place_in(body, n, i));
            return true;
        }
    }
    return false;
}

/* The word with the bit of that request. Of requests that are AHEAD_MOST apart, only one is without
 * a reply. */
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
    ibx_log(
        IBX_LOG_WARN,
        "a call of cuBLAS or another library that had returned 0 before it was run has failed with "
        "the library's status %d: the next call that waits for the device returns CUDA error %d",
        exit_code, CUDA_LAUNCH_FAILURE);
    return CUDA_LAUNCH_FAILURE;
}
