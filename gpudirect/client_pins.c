/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/client_pins.h"

/* A context that is gone, or a reset, took the registration along: all that is left is to forget.
 */
static void unpin(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                  struct ibx_client_pin *pin)
{
    void *context = NULL, *popped = NULL;
    if (pin->refused) {
        *pin = (struct ibx_client_pin){0};
        return;
    }
    bool foreign = cuda->ctx_get_current(&context) || !context;
    foreign = foreign || (pin->left && context != pin->context);
    bool inside = !foreign || !cuda->ctx_push_current(pin->context);
    if (inside && pin->left)
        cuda->ctx_synchronize();
    if (inside)
        cuda->mem_host_unregister(pin->base);
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

bool ibx_client_pin_leave(struct ibx_client_pins *pins, const struct ibx_cuda *cuda,
                          const void *base, void *stream)
{
    void *context = NULL;
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
        struct ibx_client_pin *pin = &pins->pins[i];
        if (pin->base != base || pin->refused)
            continue;
        if (cuda->stream_get_context(stream, &context) || context != pin->context)
            return false;
        pin->left = true;
        return true;
    }
    return false;
}

void ibx_client_pins_drop(struct ibx_client_pins *pins, const struct ibx_cuda *cuda)
{
    for (unsigned i = 0; i < IBX_CLIENT_PINS; i++) {
        if (pins->pins[i].base)
            unpin(pins, cuda, &pins->pins[i]);
    }
}
