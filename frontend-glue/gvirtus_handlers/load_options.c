/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The options of cuModuleLoadDataEx. The handler gives CUDA an address of its own in place of every
 * value: as the length of a log, too, for which it has allocated 1,024 bytes, or as many as the
 * client says, and as lists of symbols. Options whose values are numbers are harmless.
 *
 * So an option for a log becomes one that takes no value, and the reply says that the log is empty.
 * GVirtuS's front end sends 8 bytes of each value, of which the handler takes 4, and reads the
 * reply otherwise than the handler writes it. This file corrects both.
 */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include "common/wire.h"

#include <string.h>

#define SENT  8u /* bytes of a value that the front end sends, behind their number */
#define TAKEN 4u /* ... that the handler takes */

/* CUjit_option. WALL_TIME returns a time; the others take addresses, or lengths of logs. */
enum {
    WALL_TIME = 2,
    INFO_LOG = 3,
    INFO_LOG_BYTES = 4,
    ERROR_LOG = 5,
    ERROR_LOG_BYTES = 6,
    SYMBOL_NAMES = 17,
    SYMBOL_ADDRESSES = 18,
    KERNEL_NAMES = 25,
    VARIABLE_NAMES = 27
};

static bool is_of_log(uint32_t option)
{
    return option >= INFO_LOG && option <= ERROR_LOG_BYTES;
}

static bool is_memory(uint32_t option)
{
    return option == INFO_LOG || option == ERROR_LOG || option == SYMBOL_NAMES ||
           option == SYMBOL_ADDRESSES || option == KERNEL_NAMES || option == VARIABLE_NAMES;
}

/* The number of options, their list behind its length, the image as a string, and the values, of
 * each of which the handler takes 4 bytes behind a length. Reads what is before the values; `list`:
 * where the list is. */
static bool read_options(struct ibx_reader *r, uint32_t *count, size_t *list)
{
    *count = ibx_get_u32(r);
    const uint64_t bytes = ibx_get_u64(r);
    *list = r->position;
    if (r->failed || *count > IBX_LOAD_OPTIONS || bytes != 4 * (uint64_t)*count)
        return false;
    ibx_get_bytes(r, (size_t)bytes);
    const uint64_t image = ibx_get_u64(r), present = ibx_get_u64(r);
    if (r->failed || (present && image > ibx_reader_left(r)))
        return false;
    const uint8_t *at = present ? ibx_get_bytes(r, (size_t)image) : NULL;
    return !r->failed && (!present || ibx_image_fits(at, (size_t)image));
}

bool ibx_load_options_fit(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    uint32_t count;
    size_t list;
    if (!read_options(&r, &count, &list))
        return false;
    struct ibx_reader options = ibx_reader_of(body + list, 4 * (size_t)count);
    for (uint32_t i = 0; i < count; i++) {
        if (is_memory(ibx_get_u32(&options)) || !ibx_get_u64(&r) || !ibx_get_bytes(&r, TAKEN))
            return false;
    }
    return true;
}

/* Whether each of the values is as the front end sends it. */
static bool is_as_sent(const uint8_t *body, size_t n, size_t from, uint32_t count)
{
    struct ibx_reader r = ibx_reader_of(body + from, n - from);
    for (uint32_t i = 0; i < count; i++) {
        if (ibx_get_u64(&r) != SENT || !ibx_get_bytes(&r, SENT))
            return false;
    }
    return ibx_reader_left(&r) == 0;
}

void ibx_load_options_sanitize(uint8_t *body, size_t n, struct ibx_load_options *options)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    uint32_t count;
    size_t list;
    options->count = 0;
    if (!read_options(&r, &count, &list) || !is_as_sent(body, n, r.position, count))
        return;
    const size_t values = r.position;
    struct ibx_writer w = ibx_writer_of(body + values, n - values);
    for (uint32_t i = 0; i < count; i++) {
        struct ibx_reader option = ibx_reader_of(body + list + 4 * (size_t)i, 4);
        struct ibx_writer instead = ibx_writer_of(body + list + 4 * (size_t)i, 4);
        struct ibx_reader value = ibx_reader_of(body + values + (8 + SENT) * (size_t)i + 8, TAKEN);
        const uint32_t kind = ibx_get_u32(&option), number = ibx_get_u32(&value);
        options->kinds[i] = kind > UINT8_MAX ? UINT8_MAX : (uint8_t)kind;
        if (is_of_log(kind))
            ibx_put_u32(&instead, WALL_TIME);
        ibx_put_u64(&w, TAKEN); /* shorter than what was read: never overtakes it */
        ibx_put_u32(&w, number);
    }
    memset(body + values + w.length, 0, n - values - w.length);
    options->count = count;
}

void ibx_load_options_answer(const struct ibx_load_options *options, uint8_t *payload, size_t n)
{
    const size_t handle = 8;
    uint8_t answer[8 + IBX_LOAD_OPTIONS * 17u];
    struct ibx_writer w = ibx_writer_of(answer, sizeof(answer));
    if (!options->count || n != handle + (8 + SENT) * (size_t)options->count)
        return;
    for (uint32_t i = 0; i + 1 < options->count; i++) { /* the front end leaves out the last one */
        struct ibx_reader value = ibx_reader_of(payload + handle + (8 + SENT) * (size_t)i + 8, 4);
        const uint32_t time = ibx_get_u32(&value);
        if (options->kinds[i] == INFO_LOG) {
            ibx_put_u32(&w, 0);
        } else if (options->kinds[i] == ERROR_LOG) {
            ibx_put_u64(&w, 1); /* a string of a NUL, whose length comes twice */
            ibx_put_u64(&w, 1);
            ibx_put_u8(&w, 0);
        } else {
            ibx_put_u64(&w, TAKEN);
            ibx_put_u32(&w, options->kinds[i] == WALL_TIME ? time : 0);
        }
    }
    memset(payload + handle, 0, n - handle);
    memcpy(payload + handle, answer, w.length < n - handle ? w.length : n - handle);
}
