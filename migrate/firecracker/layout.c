/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The message of Firecracker: a JSON array with one object a memory region. All versions name
 * base_host_virt_addr, size and offset. Versions before 1.7 send no page size (it is 4096). Later
 * ones send page_size_kib, which is in bytes in spite of its name, then page_size as well, and
 * from 2.0 on page_size alone. Other members are ignored, as by Firecracker's own examples.
 */
#include "migrate/firecracker/firecracker.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#define SMALL_PAGE 4096u
#define HUGE_PAGE  (2u * 1024 * 1024)
#define END_MAX    (1ull << 52) /* of addresses and of offsets: 2^40 pages of 4096 bytes */

/* Reads a member that is required and must be a number. */
static int number(const json_t *region, unsigned index, const char *name, uint64_t *value,
                  struct ibx_error *err)
{
    const json_t *member = json_object_get(region, name);
    if (!json_is_integer(member) || json_integer_value(member) < 0)
        return ibx_error_set(err, -EPROTO,
                             "region %u of Firecracker's message has no \"%s\" that is a whole "
                             "number of 0 or more",
                             index, name);
    *value = (uint64_t)json_integer_value(member);
    return 0;
}

/* The value of page_size_kib in bytes. Firecracker sends bytes, although name and manual say KiB; 4
 * and 2048 can only be KiB, since no page has so few bytes. */
static uint64_t bytes_of_kib(uint64_t value)
{
    return value == SMALL_PAGE / 1024 || value == HUGE_PAGE / 1024 ? value * 1024 : value;
}

static int page_size(const json_t *region, unsigned index, uint32_t *size, struct ibx_error *err)
{
    const bool has_new = json_object_get(region, "page_size") != NULL;
    const bool has_old = json_object_get(region, "page_size_kib") != NULL;
    uint64_t now = SMALL_PAGE, old = SMALL_PAGE;
    int rc = has_new ? number(region, index, "page_size", &now, err) : 0;
    if (!rc && has_old)
        rc = number(region, index, "page_size_kib", &old, err);
    if (rc)
        return rc;
    old = has_old ? bytes_of_kib(old) : now;
    now = has_new ? now : old;
    if (now != old)
        return ibx_error_set(err, -EPROTO,
                             "region %u of Firecracker's message has a page_size of %" PRIu64
                             " and a page_size_kib of %" PRIu64 " bytes, and the two must be equal",
                             index, now, old);
    if (now != SMALL_PAGE && now != HUGE_PAGE)
        return ibx_error_set(err, -EPROTO,
                             "region %u of Firecracker's message has pages of %" PRIu64
                             " bytes: only 4096 and 2097152 are served",
                             index, now);
    *size = (uint32_t)now;
    return 0;
}

static int region_take(const json_t *from, unsigned index, struct ibx_firecracker_region *region,
                       uint32_t *size, struct ibx_error *err)
{
    if (!json_is_object(from))
        return ibx_error_set(err, -EPROTO, "region %u of Firecracker's message is no JSON object",
                             index);
    int rc = number(from, index, "base_host_virt_addr", &region->start, err);
    rc = rc ? rc : number(from, index, "size", &region->length, err);
    rc = rc ? rc : number(from, index, "offset", &region->offset, err);
    rc = rc ? rc : page_size(from, index, size, err);
    if (rc)
        return rc;
    if (!region->length || (region->start | region->length | region->offset) % *size)
        return ibx_error_set(err, -EPROTO,
                             "region %u of Firecracker's message (%" PRIu64 " bytes at 0x%" PRIx64
                             ", offset %" PRIu64 ") is empty, or not of whole pages of %u bytes",
                             index, region->length, region->start, region->offset, *size);
    if (region->start > END_MAX || region->length > END_MAX || region->offset > END_MAX ||
        region->start + region->length > END_MAX || region->offset + region->length > END_MAX)
        return ibx_error_set(err, -EPROTO,
                             "region %u of Firecracker's message (%" PRIu64 " bytes at 0x%" PRIx64
                             ", offset %" PRIu64 ") ends beyond 2^52",
                             index, region->length, region->start, region->offset);
    return 0;
}

static bool meet(uint64_t a, uint64_t b, uint64_t a_length, uint64_t b_length)
{
    return a < b + b_length && b < a + a_length;
}

static int region_add(struct ibx_firecracker_layout *layout, const json_t *from,
                      struct ibx_error *err)
{
    struct ibx_firecracker_region r;
    uint32_t size = SMALL_PAGE;
    int rc = region_take(from, layout->count, &r, &size, err);
    if (rc)
        return rc;
    if (layout->count && size != layout->page_size)
        return ibx_error_set(err, -EPROTO,
                             "Firecracker's message has regions with pages of %u and of %u bytes",
                             layout->page_size, size);
    for (unsigned i = 0; i < layout->count; i++) {
        const struct ibx_firecracker_region *other = &layout->regions[i];
        if (meet(r.start, other->start, r.length, other->length) ||
            meet(r.offset, other->offset, r.length, other->length))
            return ibx_error_set(err, -EPROTO,
                                 "regions %u and %u of Firecracker's message share addresses, or "
                                 "parts of the memory file",
                                 i, layout->count);
    }
    layout->page_size = size;
    layout->pages += r.length / size;
    if (r.offset + r.length > layout->end)
        layout->end = r.offset + r.length;
    layout->regions[layout->count++] = r;
    return 0;
}

static int array_take(const json_t *array, struct ibx_firecracker_layout *layout,
                      struct ibx_error *err)
{
    const json_t *region;
    size_t i;
    if (!json_is_array(array) || !json_array_size(array))
        return ibx_error_set(err, -EPROTO,
                             "Firecracker's message is not an array of memory regions: this "
                             "handler is for snapshots that are loaded with the Uffd backend");
    if (json_array_size(array) > IBX_FIRECRACKER_REGIONS_MAX)
        return ibx_error_set(err, -E2BIG, "Firecracker's message has %zu regions: %u at most",
                             json_array_size(array), IBX_FIRECRACKER_REGIONS_MAX);
    json_array_foreach(array, i, region)
    {
        int rc = region_add(layout, region, err);
        if (rc)
            return rc;
    }
    return 0;
}

int ibx_firecracker_layout_parse(const char *text, size_t length,
                                 struct ibx_firecracker_layout *layout, struct ibx_error *err)
{
    struct ibx_firecracker_layout parsed = {0};
    json_error_t why;
    if (length > IBX_FIRECRACKER_MESSAGE_MAX)
        return ibx_error_set(err, -E2BIG, "Firecracker's message has %zu bytes: %u at most", length,
                             IBX_FIRECRACKER_MESSAGE_MAX);
    json_t *array = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!array && json_error_code(&why) == json_error_premature_end_of_input)
        return ibx_error_set(err, -EAGAIN,
                             "Firecracker's message ends after %zu bytes, within the "
                             "JSON",
                             length);
    if (!array) {
        ibx_text_sanitize(why.text);
        return ibx_error_set(err, -EPROTO, "Firecracker's message is not JSON: %s (byte %d)",
                             why.text, why.position);
    }
    int rc = array_take(array, &parsed, err);
    json_decref(array);
    if (!rc)
        *layout = parsed;
    return rc;
}
