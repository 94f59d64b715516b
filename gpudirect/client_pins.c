/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/client_pins.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CUDA_INVALID_VALUE 1 /* CUresult: there is no such pinned memory */
#define ROOM_FIRST         64u
#define JOINS_EVERY        64u /* copies: then memory in parts is pinned whole, if it can be */

static const struct ibx_state pin_states[] = {
    [IBX_PIN_PINNED] = {"pinned", IBX_TO(IBX_PIN_REFUSED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [IBX_PIN_REFUSED] = {"refused", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
};
static const struct ibx_state_table pin_table = IBX_STATE_TABLE("client pin", pin_states);

static bool is_pinned(const struct ibx_client_pin *pin)
{
    return pin->state.now == IBX_PIN_PINNED;
}

static bool holds(const struct ibx_client_pin *pin, const void *address)
{
    return (uintptr_t)address - (uintptr_t)pin->base < pin->length;
}

/* The first entry with memory at or behind that address. */
static unsigned first_from(const struct ibx_client_pins *pins, const uint8_t *address)
{
    unsigned low = 0, high = pins->count;
    while (low < high) {
        const unsigned middle = low + (high - low) / 2;
        const struct ibx_client_pin *pin = &pins->pins[middle];
        if (pin->base + pin->length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool begins_before(const struct ibx_client_pins *pins, unsigned i, const uint8_t *end)
{
    return i < pins->count && pins->pins[i].base < end;
}

/* The entry that holds that address, of which there is one at most; NULL: there is none. */
static struct ibx_client_pin *find(struct ibx_client_pins *pins, const void *address)
{
    if (pins->pin >= pins->count || !holds(&pins->pins[pins->pin], address))
        pins->pin = first_from(pins, address);
    return pins->pin < pins->count && holds(&pins->pins[pins->pin], address)
               ? &pins->pins[pins->pin]
               : NULL;
}

/* ------------------------------------------------------------------- stream fences */

static uint64_t busy_fences(const struct ibx_client_pins *pins)
{
    uint64_t busy = 0;
    for (unsigned i = 0; i < pins->count; i++)
        busy |= pins->pins[i].fences;
    return busy;
}

static void fence_over(struct ibx_client_pins *pins, unsigned fence)
{
    for (unsigned i = 0; i < pins->count; i++)
        pins->pins[i].fences &= ~(1ull << fence);
}

/* Waits for the fences whose bits are set. A context that cannot be made current is gone or has
 * failed: nothing runs in it any more, so there is nothing to wait for. */
static void fences_wait(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, uint64_t fences)
{
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        if (!(fences & 1ull << i))
            continue;
        void *popped = NULL;
        if (!cuda->ctx_push_current(pins->fences[i].context)) {
            cuda->event_synchronize(pins->fences[i].event);
            cuda->ctx_pop_current(&popped);
        }
        fence_over(pins, i);
    }
}

/* Whether the event has occurred. In relaxed mode, since a stream may be captured meanwhile, and
 * the query would fail and end the capture. */
static bool is_over(const struct ibx_cuda *cuda, void *event)
{
    int mode = ibx_cuda_capture_relax(cuda);
    int rc = cuda->event_query(event);
    ibx_cuda_capture_restore(cuda, mode);
    return !rc;
}

/* Destroys the fence's event, unless its context is gone, which took the event with it. */
static void fence_drop(struct ibx_stream_fence *fence, const struct ibx_cuda *cuda)
{
    void *popped = NULL;
    if (fence->event && !cuda->ctx_push_current(fence->context)) {
        cuda->event_destroy(fence->event);
        cuda->ctx_pop_current(&popped);
    }
    *fence = (struct ibx_stream_fence){0};
}

/* The stream's own fence, or else one that another stream does not need any more: one that no pin
 * refers to, then one whose event has occurred, then an unused one of another context. NULL: all
 * are in use. */
static struct ibx_stream_fence *fence_for(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                                          const void *context, const void *stream)
{
    struct ibx_stream_fence *idle = NULL, *foreign = NULL;
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        struct ibx_stream_fence *fence = &pins->fences[i];
        if (fence->event && fence->context == context && fence->stream == stream)
            return fence;
    }
    uint64_t busy = busy_fences(pins);
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        struct ibx_stream_fence *fence = &pins->fences[i];
        bool is_idle = !fence->event || !(busy & 1ull << i);
        bool is_ours = !fence->event || fence->context == context;
        if (is_idle && is_ours && !idle)
            idle = fence;
        if (is_idle && !is_ours && !foreign)
            foreign = fence;
    }
    for (unsigned i = 0; i < IBX_STREAM_FENCES && !idle; i++) {
        if (pins->fences[i].context != context || !is_over(cuda, pins->fences[i].event))
            continue;
        fence_over(pins, i);
        idle = &pins->fences[i];
    }
    if (!idle && foreign)
        fence_drop(foreign, cuda);
    return idle ? idle : foreign;
}

bool ibx_client_pin_fence(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream)
{
    void *context = NULL, *of_stream = NULL;
    const struct ibx_client_pin *pin = find(pins, base);
    if (!pin || !is_pinned(pin) || cuda->ctx_get_current(&context) ||
        cuda->stream_get_context(stream, &of_stream) || of_stream != context)
        return false;
    struct ibx_stream_fence *fence = fence_for(pins, cuda, context, stream);
    if (!fence ||
        (!fence->event && cuda->event_create(&fence->event, IBX_CUDA_EVENT_DISABLE_TIMING)))
        return false;
    fence->context = context;
    fence->stream = stream;
    pins->fence = (unsigned)(fence - pins->fences);
    return true;
}

void ibx_client_pin_fence_record(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                                 const void *address, size_t n)
{
    const struct ibx_stream_fence *fence = &pins->fences[pins->fence];
    const uint8_t *at = address;
    if (cuda->event_record(fence->event, fence->stream)) {
        ibx_cuda_stream_wait(cuda, fence->stream);
        return;
    }
    for (unsigned i = first_from(pins, at); begins_before(pins, i, at + n); i++)
        pins->pins[i].fences |= 1ull << pins->fence;
}

void ibx_client_pins_wait(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    int mode = ibx_cuda_capture_relax(cuda);
    fences_wait(pins, cuda, busy_fences(pins));
    ibx_cuda_capture_restore(cuda, mode);
}

void ibx_client_pins_forget(struct ibx_client_pins *pins, const void *context)
{
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++) {
        if (context && pins->fences[i].context != context)
            continue;
        pins->fences[i] = (struct ibx_stream_fence){0};
        fence_over(pins, i);
    }
}

void ibx_client_pins_drop_fences(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    ibx_client_pins_wait(pins, cuda);
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++)
        fence_drop(&pins->fences[i], cuda);
}

/* ---------------------------------------------------------------------------- pins */

/* Subtracts a pin from the totals. */
static void uncount(struct ibx_client_pins *pins, const struct ibx_client_pin *pin)
{
    pins->bytes -= pin->length;
    if (pins->quota)
        ibx_quota_give(pins->quota, pin->length);
}

static void unregister(const struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base)
{
    if (pins->waits)
        pins->waits(pins->owner, true);
    cuda->mem_host_unregister(base);
    if (pins->waits)
        pins->waits(pins->owner, false);
}

/* Unpins the memory and removes the entry. A context that is gone, or was reset, has unpinned the
 * memory already. Waits for our own copies first: cuMemHostUnregister() waits for all work of the
 * context, other clients' too, and blocks every other caller of the driver meanwhile. The mapping
 * must still exist, since the driver identifies memory by its address. */
static void unpin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                  struct ibx_client_pin *pin)
{
    void *context = NULL, *popped = NULL;
    if (is_pinned(pin)) {
        bool foreign = cuda->ctx_get_current(&context) || !context;
        int mode = ibx_cuda_capture_relax(cuda);
        if (!foreign || !cuda->ctx_push_current(pin->context)) {
            fences_wait(pins, cuda, pin->fences);
            unregister(pins, cuda, pin->base);
            if (foreign)
                cuda->ctx_pop_current(&popped);
        }
        ibx_cuda_capture_restore(cuda, mode);
        uncount(pins, pin);
    }
    const struct ibx_client_pin *behind = pin + 1;
    memmove(pin, behind, (size_t)(pins->pins + pins->count-- - behind) * sizeof(*pin));
}

static bool over_quota(size_t length, struct ibx_error *err)
{
    ibx_error_set(err, -EDQUOT,
                  "%zu bytes of the client's memory would be more pinned memory than rdma.pins and "
                  "rdma.tenant_share allow",
                  length);
    return false;
}

/* Room for one more entry. False: there are as many as there may be, or there is no memory. */
static bool room_for_one(struct ibx_client_pins *pins)
{
    const unsigned more = pins->room ? 2 * pins->room : ROOM_FIRST;
    if (pins->count < pins->room)
        return true;
    struct ibx_client_pin *grown =
        pins->room < IBX_CLIENT_PINS ? realloc(pins->pins, more * sizeof(*grown)) : NULL;
    if (!grown)
        return false;
    pins->pins = grown;
    pins->room = more;
    return true;
}

/* Whether unpinning now would wait for work that may never end. */
static bool unpin_would_wait(struct ibx_client_pins *pins, const struct ibx_client_pin *pin)
{
    pins->put_off = is_pinned(pin) && pins->works && pins->works(pins->owner, false);
    return pins->put_off;
}

/* Whether there could be room for so many bytes. */
static bool fits(const struct ibx_client_pins *pins, size_t length, struct ibx_error *err)
{
    const uint64_t left = ibx_quota_left(pins->quota);
    if (length > pins->bytes_max)
        return false;
    return left >= length || length - left <= pins->bytes || over_quota(length, err);
}

static struct ibx_client_pin *oldest_of(const struct ibx_client_pins *pins)
{
    struct ibx_client_pin *oldest = NULL;
    for (unsigned i = 0; i < pins->count; i++) {
        if (!oldest || pins->pins[i].used < oldest->used)
            oldest = &pins->pins[i];
    }
    return oldest;
}

/* Makes room for one more entry, of `length` bytes, by unpinning those that were not used for
 * longest. False: `length` exceeds bytes_max, or what the quota leaves to this connection, or
 * unpinning would wait. */
static bool make_room(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, size_t length,
                      struct ibx_error *err)
{
    while (fits(pins, length, err)) {
        if (pins->bytes_max - pins->bytes >= length && ibx_quota_left(pins->quota) >= length &&
            room_for_one(pins))
            return true;
        struct ibx_client_pin *oldest = oldest_of(pins);
        if (!oldest || unpin_would_wait(pins, oldest))
            return false;
        unpin(pins, cuda, oldest);
    }
    return false;
}

static struct ibx_client_pin *insert(struct ibx_client_pins *pins,
                                     const struct ibx_client_pin *memory)
{
    struct ibx_client_pin *at = &pins->pins[first_from(pins, memory->base)];
    memmove(at + 1, at, (size_t)(pins->pins + pins->count++ - at) * sizeof(*at));
    *at = *memory;
    return at;
}

/* Pinning allocates pages that the client has not touched yet, and they would be charged to this
 * process. If mincore(2) fails, all pages count as touched. */
bool ibx_client_pin_is_whole(uint8_t *base, size_t length)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char there[512];
    for (size_t at = 0, some; at < length; at += some) {
        some = length - at < sizeof(there) * page ? length - at : sizeof(there) * page;
        if (mincore(base + at, some, there))
            return true;
        for (size_t i = 0; i < (some + page - 1) / page; i++) {
            if (!(there[i] & 1))
                return false;
        }
    }
    return true;
}

/* The caller has taken the bytes from the quota; they are given back if CUDA refuses. */
static bool pin_now(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                    struct ibx_client_pin *pin, bool writable, struct ibx_error *err)
{
    unsigned flags =
        IBX_CUDA_HOST_REGISTER_PORTABLE | (writable ? 0 : IBX_CUDA_HOST_REGISTER_READ_ONLY);
    int rc = cuda->mem_host_register(pin->base, pin->length, flags);
    if (rc) {
        ibx_error_set(err, rc, "CUDA does not pin %zu bytes of the client's memory (%s)",
                      pin->length, ibx_cuda_error_name(cuda, rc));
        if (pins->quota)
            ibx_quota_give(pins->quota, pin->length);
        return false;
    }
    cuda->ctx_get_current(&pin->context);
    pins->bytes += pin->length;
    return true;
}

/* Whether the entry tells about these bytes: what is pinned, does so about each part, as long as
 * pages stay under their id; what was refused, only about the whole. */
static bool is_about(const struct ibx_client_pin *pin, const uint8_t *base, size_t length,
                     uint64_t id)
{
    if (pin->id != id)
        return false;
    return is_pinned(pin) ? length <= pin->length - (size_t)(base - pin->base)
                          : pin->base == base && pin->length == length;
}

/* Unpins what is in the way of new memory. Pins of the same pages stay if unpinning would wait, for
 * whomever. False: other pages are pinned there, and that would wait. */
static bool clear(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, const uint8_t *begin,
                  size_t length, uint64_t id)
{
    bool asked = false, stay = false;
    for (unsigned i = first_from(pins, begin); begins_before(pins, i, begin + length);) {
        struct ibx_client_pin *pin = &pins->pins[i];
        const bool same = is_pinned(pin) && pin->id == id;
        if (same && !asked)
            stay = pins->works && pins->works(pins->owner, true);
        asked = asked || same;
        if (same && stay) {
            i++;
            continue;
        }
        if (unpin_would_wait(pins, pin))
            return false;
        unpin(pins, cuda, pin); /* the next one has its place */
    }
    return true;
}

/* Whether the memory is pinned as the entry says. Pins it again after a reset. */
static bool is_there(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                     struct ibx_client_pin *pin, bool writable, struct ibx_error *err)
{
    unsigned flags;
    pin->used = ++pins->clock;
    int rc = is_pinned(pin) ? cuda->mem_host_get_flags(&flags, pin->base) : 0;
    if (!rc)
        return is_pinned(pin);
    if (rc != CUDA_INVALID_VALUE) { /* an error of other work: the memory is still pinned */
        ibx_error_set(err, rc, "CUDA fails (%s)", ibx_cuda_error_name(cuda, rc));
        return false;
    }
    pins->bytes -= pin->length; /* a reset has unpinned it; the quota keeps the bytes */
    if (pin_now(pins, cuda, pin, writable, err))
        return true;
    ibx_state_move(&pin->state, IBX_PIN_REFUSED);
    return false;
}

/* Pins memory of which nothing is pinned. NULL: see ibx_client_pin(). */
static struct ibx_client_pin *pin_new(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                                      const struct ibx_client_pin *memory, bool writable,
                                      struct ibx_error *err)
{
    if (!ibx_client_pin_is_whole(memory->base, memory->length)) {
        ibx_error_set(err, -ENODATA, "of %zu bytes of the client's memory some were never touched",
                      memory->length);
        return NULL;
    }
    if (!make_room(pins, cuda, memory->length, err))
        return NULL;
    if (pins->quota && !ibx_quota_take(pins->quota, memory->length)) {
        over_quota(memory->length, err); /* another session took the rest */
        return NULL;
    }
    struct ibx_client_pin *pin = insert(pins, memory);
    pin->used = ++pins->clock;
    const bool pinned = pin_now(pins, cuda, pin, writable, err);
    ibx_state_begin(&pin->state, &pin_table, pinned ? IBX_PIN_PINNED : IBX_PIN_REFUSED);
    return pinned ? pin : NULL;
}

/* How many bytes from there on, `most` of them, no entry has; none has the first. */
static size_t gap(const struct ibx_client_pins *pins, const uint8_t *at, size_t most)
{
    const unsigned i = first_from(pins, at);
    return begins_before(pins, i, at + most) ? (size_t)(pins->pins[i].base - at) : most;
}

/* Pins what is between the pins that have stayed. */
static bool pin_gaps(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, uint8_t *base,
                     size_t length, uint64_t id, bool writable, struct ibx_error *err)
{
    uint8_t *const end = base + length;
    for (uint8_t *at = base; at < end;) {
        struct ibx_client_pin *pin = find(pins, at);
        const struct ibx_client_pin missing = {
            .base = at, .length = pin ? 0 : gap(pins, at, (size_t)(end - at)), .id = id};
        if (pin && !is_there(pins, cuda, pin, writable, err))
            return false;
        if (!pin && !(pin = pin_new(pins, cuda, &missing, writable, err)))
            return false;
        at = pin->base + pin->length;
    }
    for (uint8_t *at = base; at < end && !pins->put_off;) {
        const struct ibx_client_pin *pin = find(pins, at);
        pins->put_off = !pin; /* room was made at the expense of this memory */
        at = pin ? pin->base + pin->length : end;
    }
    return !pins->put_off;
}

/* Whether all of it is pinned, in parts. */
static bool is_in_parts(struct ibx_client_pins *pins, const uint8_t *base, size_t length,
                        uint64_t id)
{
    const uint8_t *at = base;
    while (at < base + length) {
        const struct ibx_client_pin *pin = find(pins, at);
        if (!pin || !is_pinned(pin) || pin->id != id)
            return false;
        at = pin->base + pin->length;
    }
    return true;
}

bool ibx_client_pin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base,
                    size_t length, uint64_t id, bool writable, struct ibx_error *err)
{
    struct ibx_client_pin *pin = find(pins, base);
    pins->put_off = false;
    if (pin && is_about(pin, base, length, id))
        return is_there(pins, cuda, pin, writable, err);
    const bool joins = !is_in_parts(pins, base, length, id) || ++pins->in_parts % JOINS_EVERY == 0;
    return (!joins || (clear(pins, cuda, base, length, id) && fits(pins, length, err))) &&
           pin_gaps(pins, cuda, base, length, id, writable, err);
}

size_t ibx_client_pin_rest(struct ibx_client_pins *pins, const void *address)
{
    const struct ibx_client_pin *pin = find(pins, address);
    return pin && is_pinned(pin) ? (size_t)(pin->base + pin->length - (const uint8_t *)address) : 0;
}

bool ibx_client_pins_yield(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, uint64_t n)
{
    uint64_t left;
    pins->put_off = false;
    while ((left = ibx_quota_left(pins->quota)) < n) {
        struct ibx_client_pin *oldest = oldest_of(pins);
        if (n - left > pins->bytes || unpin_would_wait(pins, oldest))
            return false;
        unpin(pins, cuda, oldest);
    }
    return true;
}

void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    while (pins->count)
        unpin(pins, cuda, &pins->pins[pins->count - 1]);
    for (unsigned i = 0; i < IBX_STREAM_FENCES; i++)
        fence_drop(&pins->fences[i], cuda);
    free(pins->pins);
    pins->pins = NULL;
    pins->room = 0;
}
