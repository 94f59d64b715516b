/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces gpudirect/cuda.c. */
#include "tests/fuzz/fake_cuda.h"

#include "gpudirect/gpudirect.h"

#include <stdlib.h>
#include <string.h>

unsigned fake_cuda_fail_in;

static int result(void)
{
    return fake_cuda_fail_in && !--fake_cuda_fail_in ? 700 : 0;
}

static void check(int good)
{
    if (!good)
        abort();
}

static void check_device(uint64_t device, size_t n)
{
    check(n && n <= FAKE_DEVICE_BYTES && device <= FAKE_DEVICE_BYTES - n);
}

static void read_host(const void *from, size_t n)
{
    static unsigned char last_read[2u << 20];
    memcpy(last_read, from, n < sizeof(last_read) ? n : sizeof(last_read));
}

static int ctx_get_current(void **context)
{
    *context = &fake_cuda_fail_in;
    return 0;
}

static int ctx_get_device(int *device)
{
    *device = 0;
    return 0;
}

static int to_device(uint64_t to, const void *from, size_t n)
{
    check_device(to, n);
    read_host(from, n);
    return result();
}

static int from_device(void *to, uint64_t from, size_t n)
{
    check_device(from, n);
    memset(to, 0x33, n);
    return result();
}

static int to_device_async(uint64_t to, const void *from, size_t n, void *stream)
{
    (void)stream;
    return to_device(to, from, n);
}

static int from_device_async(void *to, uint64_t from, size_t n, void *stream)
{
    (void)stream;
    return from_device(to, from, n);
}

static int on_device_async(uint64_t to, uint64_t from, size_t n, void *stream)
{
    (void)stream;
    check_device(to, n);
    check_device(from, n);
    return result();
}

static int rows_async(const struct ibx_cuda_memcpy2d *c, void *stream)
{
    (void)stream;
    check(c->width && c->height && c->width <= c->src_pitch && c->width <= c->dst_pitch);
    if (c->src_type == IBX_CUDA_MEMORY_DEVICE)
        check_device(c->src_device, (c->height - 1) * c->src_pitch + c->width);
    else
        read_host(c->src_host, (c->height - 1) * c->src_pitch + c->width);
    if (c->dst_type == IBX_CUDA_MEMORY_DEVICE)
        check_device(c->dst_device, (c->height - 1) * c->dst_pitch + c->width);
    else
        memset(c->dst_host, 0x33, (c->height - 1) * c->dst_pitch + c->width);
    return result();
}

static int event_create(void **event, unsigned flags)
{
    (void)flags;
    *event = malloc(1);
    return 0;
}

static int event_record(void *event, void *stream)
{
    (void)stream;
    check(event != NULL);
    return result();
}

static int stream_wait_event(void *stream, void *event, unsigned flags)
{
    (void)flags;
    return event_record(event, stream);
}

static int event_query(void *event)
{
    check(event != NULL);
    return 0;
}

static int event_destroy(void *event)
{
    free(event);
    return 0;
}

static int stream_synchronize(void *stream)
{
    (void)stream;
    return result();
}

static int exchange_mode(int *mode)
{
    static __thread int now;
    int before = now;
    now = *mode;
    *mode = before;
    return 0;
}

static int is_capturing(void *stream, int *status)
{
    *status = (uintptr_t)stream & 1;
    return 0;
}

static int stream_get_context(void *stream, void **context)
{
    (void)stream;
    return ctx_get_current(context);
}

static int get_attributes(unsigned count, const int *names, void **values, uint64_t pointer)
{
    unsigned type = pointer < FAKE_DEVICE_BYTES ? IBX_CUDA_MEMORY_DEVICE : 0;
    for (unsigned i = 0; i < count; i++) {
        if (names[i] == IBX_CUDA_POINTER_MEMORY_TYPE)
            memcpy(values[i], &type, sizeof(type));
        else if (names[i] == IBX_CUDA_POINTER_RANGE_SIZE)
            memcpy(values[i], &(size_t){FAKE_DEVICE_BYTES}, sizeof(size_t));
        else
            memset(values[i], 0, sizeof(int));
    }
    return 0;
}

static int get_range(uint64_t *base, size_t *size, uint64_t pointer)
{
    *base = 0;
    *size = FAKE_DEVICE_BYTES;
    return pointer < FAKE_DEVICE_BYTES ? 0 : 1;
}

static int host_register(void *address, size_t n, unsigned flags)
{
    (void)flags;
    read_host(address, n);
    return 0;
}

static int host_unregister(void *address)
{
    check(address != NULL);
    return 0;
}

static int ctx_push_current(void *context)
{
    check(context != NULL);
    return 0;
}

static int host_get_flags(unsigned *flags, void *address)
{
    static void *known;
    *flags = 0;
    if (known == address)
        return 0;
    known = address;
    return 1;
}

static int error_name(int code, const char **name)
{
    (void)code;
    *name = "told to fail";
    return 0;
}

static int device_name(char *name, int size, int device)
{
    (void)device;
    name[size - 1] = '\0';
    memset(name, 'x', (size_t)size - 1);
    return result();
}

static int driver_version(int *version)
{
    *version = 12080;
    return result();
}

const struct ibx_cuda *ibx_cuda_load(struct ibx_error *err)
{
    static const struct ibx_cuda table = {
        .ctx_get_current = ctx_get_current,
        .ctx_get_device = ctx_get_device,
        .memcpy_to_device = to_device,
        .memcpy_from_device = from_device,
        .memcpy_to_device_async = to_device_async,
        .memcpy_from_device_async = from_device_async,
        .memcpy_async = on_device_async,
        .memcpy_2d_async = rows_async,
        .event_create = event_create,
        .event_record = event_record,
        .stream_wait_event = stream_wait_event,
        .event_query = event_query,
        .event_synchronize = event_query,
        .event_destroy = event_destroy,
        .stream_synchronize = stream_synchronize,
        .stream_is_capturing = is_capturing,
        .stream_get_context = stream_get_context,
        .pointer_get_attributes = get_attributes,
        .mem_get_address_range = get_range,
        .mem_host_register = host_register,
        .mem_host_unregister = host_unregister,
        .ctx_push_current = ctx_push_current,
        .ctx_pop_current = ctx_get_current,
        .thread_exchange_stream_capture_mode = exchange_mode,
        .mem_host_get_flags = host_get_flags,
        .get_error_name = error_name,
        .device_get_name = device_name,
        .driver_get_version = driver_version,
    };
    (void)err;
    return &table;
}

const char *ibx_cuda_error_name(const struct ibx_cuda *cuda, int code)
{
    (void)cuda;
    (void)code;
    return "told to fail";
}

/* It lacks all functions that the table lacks. */
void *ibx_cuda_symbol(const char *name)
{
    (void)name;
    return NULL;
}
