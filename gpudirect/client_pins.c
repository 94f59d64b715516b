/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/client_pins.h"

/* ------------------------------------------------------------------------ trails */

/* Bits of the trails whose copies may be under way. */
static uint64_t trails_busy(const struct ibx_client_pins *pins)
{
    uint64_t busy = 0;
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++)
        busy |= pins->pins[i].left;
    return busy;
}

static void trail_is_over(struct ibx_client_pins *pins, unsigned trail)
{
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++)
        pins->pins[i].left &= ~(1ull << trail);
}

/* In a context that is gone, or has failed, nothing runs any more. */
static void trails_wait(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, uint64_t trails)
{
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        if (!(trails & 1ull << i))
            continue;
        void *popped = NULL;
        if (!cuda->ctx_push_current(pins->trails[i].context)) {
            cuda->event_synchronize(pins->trails[i].event);
            cuda->ctx_pop_current(&popped);
        }
        trail_is_over(pins, i);
    }
}

static struct ibx_client_trail *trail_of(struct ibx_client_pins *pins, const void *context,
                                         const void *stream)
{
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        struct ibx_client_trail *trail = &pins->trails[i];
        if (trail->event && trail->context == context && trail->stream == stream)
            return trail;
    }
    return NULL;
}

/* Whether the copies before it are, also to a thread that captures a stream of its own. */
static bool is_over(const struct ibx_cuda *cuda, void *event)
{
    int mode = ibx_cuda_capture_relax(cuda);
    int rc = cuda->event_query(event);
    ibx_cuda_capture_restore(cuda, mode);
    return !rc;
}

/* A context that is gone took its event along. */
static void trail_drop(struct ibx_client_trail *trail, const struct ibx_cuda *cuda)
{
    void *popped = NULL;
    if (trail->event && !cuda->ctx_push_current(trail->context)) {
        cuda->event_destroy(trail->event);
        cuda->ctx_pop_current(&popped);
    }
    *trail = (struct ibx_client_trail){0};
}

/* A place for the copies of another stream, with or without an event of that context; NULL: all
 * have copies under way. */
static struct ibx_client_trail *trail_place(struct ibx_client_pins *pins,
                                            const struct ibx_cuda *cuda, const void *context)
{
    uint64_t busy = trails_busy(pins);
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        struct ibx_client_trail *trail = &pins->trails[i];
        if (!trail->event || (trail->context == context && !(busy & 1ull << i)))
            return trail;
    }
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        struct ibx_client_trail *trail = &pins->trails[i];
        if (trail->context != context || !is_over(cuda, trail->event))
            continue;
        trail_is_over(pins, i);
        return trail;
    }
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        if (busy & 1ull << i)
            continue;
        trail_drop(&pins->trails[i], cuda); /* another context's */
        return &pins->trails[i];
    }
    return NULL;
}

bool ibx_client_pin_leave(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream)
{
    void *context = NULL, *streams = NULL;
    unsigned i = 0;
    while (i < IBX_CLIENT_PINS && (pins->pins[i].base != base || pins->pins[i].refused))
        i++;
    if (i == IBX_CLIENT_PINS || cuda->ctx_get_current(&context) ||
        cuda->stream_get_context(stream, &streams) || streams != context)
        return false;
    struct ibx_client_trail *trail = trail_of(pins, context, stream);
    if (!trail)
        trail = trail_place(pins, cuda, context);
    if (!trail ||
        (!trail->event && cuda->event_create(&trail->event, IBX_CUDA_EVENT_DISABLE_TIMING)))
        return false;
    trail->context = context;
    trail->stream = stream;
    pins->pin = i;
    pins->trail = (unsigned)(trail - pins->trails);
    return true;
}

void ibx_client_pin_left(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    const struct ibx_client_trail *trail = &pins->trails[pins->trail];
    if (!cuda->event_record(trail->event, trail->stream)) {
        pins->pins[pins->pin].left |= 1ull << pins->trail;
        return;
    }
    /* Nothing will say when the copy is over. */
    int mode = ibx_cuda_capture_relax(cuda);
    cuda->stream_synchronize(trail->stream);
    ibx_cuda_capture_restore(cuda, mode);
}

void ibx_client_pins_settle(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    int mode = ibx_cuda_capture_relax(cuda);
    trails_wait(pins, cuda, trails_busy(pins));
    ibx_cuda_capture_restore(cuda, mode);
}

void ibx_client_pins_forget(struct ibx_client_pins *pins, const void *context)
{
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++) {
        if (context && pins->trails[i].context != context)
            continue;
        pins->trails[i] = (struct ibx_client_trail){0};
        trail_is_over(pins, i);
    }
}

void ibx_client_pins_drop_events(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    ibx_client_pins_settle(pins, cuda);
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++)
        trail_drop(&pins->trails[i], cuda);
}

/* -------------------------------------------------------------------------- pins */

/* A context that is gone, or a reset, took the registration along: all that is left is to forget.
 * cuMemHostUnregister() waits for all work of the context by itself, other clients' too, and
 * whoever calls the driver there waits with it, as with cudaFree(): so our own copies are over
 * before. The mapping must not end first, for the driver knows memory by its address. */
static void unpin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                  struct ibx_client_pin *pin)
{
    void *context = NULL, *popped = NULL;
    if (pin->refused) {
        *pin = (struct ibx_client_pin){0};
        return;
    }
    bool foreign = cuda->ctx_get_current(&context) || !context;
    bool inside = !foreign || !cuda->ctx_push_current(pin->context);
    int mode = ibx_cuda_capture_relax(cuda);
    if (inside)
        trails_wait(pins, cuda, pin->left);
    if (inside)
        cuda->mem_host_unregister(pin->base);
    ibx_cuda_capture_restore(cuda, mode);
    if (foreign && inside)
        cuda->ctx_pop_current(&popped);
    pins->bytes -= pin->length;
    *pin = (struct ibx_client_pin){0};
}

static bool overlap(const struct ibx_client_pin *pin, const uint8_t *base, size_t length)
{
    return pin->base && pin->base < base + length && base < pin->base + pin->length;
}

/* A place for `length` more bytes, the longest unused first. NULL: there cannot be. */
static struct ibx_client_pin *make_room(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                                        size_t length)
{
    if (length > pins->bytes_max)
        return NULL;
    for (;;) {
        struct ibx_client_pin *free_one = NULL, *oldest = NULL;
        for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
            struct ibx_client_pin *pin = &pins->pins[i];
            if (!pin->base)
                free_one = pin;
            else if (!oldest || pin->used < oldest->used)
                oldest = pin;
        }
        if (free_one && pins->bytes_max - pins->bytes >= length)
            return free_one;
        unpin(pins, cuda, oldest);
    }
}

static bool pin_now(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                    struct ibx_client_pin *pin, bool writable, struct ibx_error *err)
{
    unsigned flags =
        IBX_CUDA_HOST_REGISTER_PORTABLE | (writable ? 0 : IBX_CUDA_HOST_REGISTER_READ_ONLY);
    int rc = cuda->mem_host_register(pin->base, pin->length, flags);
    pin->refused = rc != 0;
    if (rc) {
        ibx_error_set(err, rc, "CUDA does not pin %zu bytes of the client's (%s)", pin->length,
                      ibx_cuda_error_name(cuda, rc));
        return false;
    }
    cuda->ctx_get_current(&pin->context);
    pins->bytes += pin->length;
    return true;
}

bool ibx_client_pin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda, void *base,
                    size_t length, uint64_t id, bool writable, struct ibx_error *err)
{
    unsigned flags;
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
        struct ibx_client_pin *pin = &pins->pins[i];
        if (pin->base != base || pin->length != length || pin->id != id)
            continue;
        pin->used = ++pins->clock;
        if (pin->refused || !cuda->mem_host_get_flags(&flags, base))
            return !pin->refused;
        pins->bytes -= pin->length; /* a reset took it */
        return pin_now(pins, cuda, pin, writable, err);
    }
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
        if (overlap(&pins->pins[i], base, length))
            unpin(pins, cuda, &pins->pins[i]);
    }
    struct ibx_client_pin *pin = make_room(pins, cuda, length);
    if (!pin)
        return false;
    *pin = (struct ibx_client_pin){.base = base, .length = length, .id = id, .used = ++pins->clock};
    return pin_now(pins, cuda, pin, writable, err);
}

void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
        if (pins->pins[i].base)
            unpin(pins, cuda, &pins->pins[i]);
    }
    for (unsigned i = 0; i < IBX_CLIENT_TRAILS; i++)
        trail_drop(&pins->trails[i], cuda);
}
