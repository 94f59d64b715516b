/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The options of cuModuleLoadDataEx. The handler gives CUDA an address of its own in place of every
 * value: as the length of a log, too, for which it has allocated 1,024 bytes, or as many as the
 * client says, and as lists of symbols. Numbers as options only make no difference to others.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include "common/wire.h"

#define OPTIONS_MOST 64u /* CUDA has fewer */

/* Values of CUjit_option that stand for memory. */
enum {
    INFO_LOG = 3,
    ERROR_LOG = 5,
    SYMBOL_NAMES = 17,
    SYMBOL_ADDRESSES = 18,
    KERNEL_NAMES = 25,
    VARIABLE_NAMES = 27
};

static bool is_memory(uint32_t option)
{
    return option == INFO_LOG || option == ERROR_LOG || option == SYMBOL_NAMES ||
           option == SYMBOL_ADDRESSES || option == KERNEL_NAMES || option == VARIABLE_NAMES;
}

/* The number of options, their list behind its length, the image as a string, and the values, of
 * each of which the handler takes 4 bytes behind a length. */
bool ibx_load_options_fit(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint32_t count = ibx_get_u32(&r);
    const uint64_t bytes = ibx_get_u64(&r);
    if (r.failed || count > OPTIONS_MOST || bytes != 4 * (uint64_t)count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (is_memory(ibx_get_u32(&r)))
            return false;
    }
    const uint64_t image = ibx_get_u64(&r), present = ibx_get_u64(&r);
    if (r.failed || (present && image > ibx_reader_left(&r)))
        return false;
    if (present)
        ibx_get_bytes(&r, (size_t)image);
    for (uint32_t i = 0; i < count; i++) {
        if (!ibx_get_u64(&r) || !ibx_get_bytes(&r, 4))
            return false;
    }
    return true;
}
