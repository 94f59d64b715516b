/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Words in memory that streams write, and wait for. The driver adds the operation to the stream and
 * does not wait. A wait that nobody ends is work that does not end, as a kernel's may be
 * (clients/work_under_way.c). Graphs have no such nodes here: no request would tell what one names.
 */
#include "frontend-glue/extensions/extensions.h"

static bool is_captured(const struct extension_request *e, const void *stream)
{
    uint64_t id;
    return ibx_captures_active(e->x, (uintptr_t)stream, &id);
}

/* Calls the driver. The types of all four functions differ by that of the value alone. */
static int add(const char *name, bool wide, void *stream, uint64_t address, uint64_t value,
               unsigned flags)
{
    int (*add_32)(void *stream, uint64_t address, uint32_t value, unsigned flags) = NULL;
    int (*add_64)(void *stream, uint64_t address, uint64_t value, unsigned flags) = NULL;
    void *function = ibx_cuda_symbol(name);
    if (!function)
        return CUDA_NOT_SUPPORTED;
    *(void **)&add_32 = function;
    *(void **)&add_64 = function;
    return wide ? add_64(stream, address, value, flags)
                : add_32(stream, address, (uint32_t)value, flags);
}

static int stream_value(struct extension_request *e)
{
    static const char *const names[] = {[IBX_VALUE_WAIT_32] = "cuStreamWaitValue32_v2",
                                        [IBX_VALUE_WRITE_32] = "cuStreamWriteValue32_v2",
                                        [IBX_VALUE_WAIT_64] = "cuStreamWaitValue64_v2",
                                        [IBX_VALUE_WRITE_64] = "cuStreamWriteValue64_v2"};
    void *address = pointer(&e->in);
    const uint64_t value = ibx_get_u64(&e->in);
    const uint32_t type = ibx_get_u32(&e->in), flags = ibx_get_u32(&e->in);
    void *stream = stream_in(e);
    const bool wide = type == IBX_VALUE_WAIT_64 || type == IBX_VALUE_WRITE_64;
    const size_t n = wide ? 8 : 4;
    if (!whole(e) || type >= sizeof(names) / sizeof(names[0]) || !names[type] ||
        (uintptr_t)address % n || ibx_memory_not_there(e->x, (uintptr_t)address, n) ||
        !mine(e, address, n))
        return CUDA_INVALID_VALUE;
    if (!ready(e) || is_captured(e, stream))
        return CUDA_NOT_SUPPORTED;
    const bool waits = type == IBX_VALUE_WAIT_32 || type == IBX_VALUE_WAIT_64;
    if (waits) {
        ibx_word_stream_prepare(e->x);
        ibx_frees_word_begin(e->x);
    }
    const int rc = add(names[type], wide, stream, (uintptr_t)address, value, flags);
    if (waits)
        ibx_frees_word_end();
    if (!rc && waits)
        ibx_stream_waits_add(e->x, stream, (uintptr_t)address, (unsigned)n, value, flags);
    return rc;
}

const struct extension_call ibx_value_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_STREAM_VALUE] = {NULL, stream_value},
};
