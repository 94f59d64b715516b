/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Hints about managed memory: cudaMemAdvise, cudaMemPrefetchAsync, and cudaMemRangeGetAttribute,
 * which returns them. They have no effect but that a prefetch is work of its stream.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define AT_LAST 4 /* cudaMemLocationTypeHostNumaCurrent */
#define HOST    CUDA_CPU_DEVICE
#define NOWHERE (-2) /* cudaInvalidDeviceId */
#define DEVICES 63   /* devices with higher numbers are not noted */

enum { /* cudaMemoryAdvise */
       ADVISE_READ_MOSTLY = 1,
       ADVISE_NOT_READ_MOSTLY,
       ADVISE_PREFER,
       ADVISE_NOT_PREFER,
       ADVISE_ACCESSED,
       ADVISE_NOT_ACCESSED,
       PREFETCHED /* no cudaMemoryAdvise: a prefetch */
};

enum { /* cudaMemRangeAttribute */
       READ_MOSTLY = 1,
       PREFERRED,
       ACCESSED_BY,
       LAST_PREFETCH,
       PREFERRED_TYPE,
       PREFERRED_ID,
       LAST_PREFETCH_TYPE,
       LAST_PREFETCH_ID
};

struct hint {
    bool read_mostly;
    int preferred, prefetched; /* a device, HOST or NOWHERE */
    uint64_t accessed;         /* a bit for the host, then one for each device */
};
static const struct hint no_hint = {.preferred = NOWHERE, .prefetched = NOWHERE};

/* Parts with hints, sorted by address, without overlaps. Memory in no part has no hint. Protected
 * by the lock of ranges. */
struct part {
    struct part *next;
    uintptr_t begin, end;
    struct hint hint;
};
static struct part *parts;

static struct part *new_part(struct part **at, uintptr_t begin, uintptr_t end,
                             const struct hint *hint)
{
    struct part *made = malloc(sizeof(*made));
    if (made) {
        *made = (struct part){*at, begin, end, *hint};
        *at = made;
    }
    return made;
}

/* Splits a part that contains `where`. False: no memory. */
static bool cut(uintptr_t where)
{
    struct part *p = parts;
    while (p && !(p->begin < where && where < p->end))
        p = p->next;
    if (p && !new_part(&p->next, where, p->end, &p->hint))
        return false;
    if (p)
        p->end = where;
    return true;
}

static void change(struct hint *h, int advice, int device)
{
    const uint64_t bit = device == HOST                        ? 1
                         : device >= 0 && device < DEVICES - 1 ? (uint64_t)2 << device
                                                               : 0;
    if (advice == ADVISE_READ_MOSTLY || advice == ADVISE_NOT_READ_MOSTLY)
        h->read_mostly = advice == ADVISE_READ_MOSTLY;
    else if (advice == ADVISE_PREFER || advice == ADVISE_NOT_PREFER)
        h->preferred = advice == ADVISE_PREFER ? device : NOWHERE;
    else if (advice == PREFETCHED)
        h->prefetched = device;
    else
        h->accessed = advice == ADVISE_ACCESSED ? h->accessed | bit : h->accessed & ~bit;
}

/* Called under the lock. Sets a hint for all of [begin, end). False: no memory. */
static bool note(uintptr_t begin, uintptr_t end, int advice, int device)
{
    bool good = cut(begin) && cut(end);
    struct part **at = &parts;
    while (*at && (*at)->end <= begin)
        at = &(*at)->next;
    for (uintptr_t from = begin; from < end && good;) {
        if (!*at || (*at)->begin > from) {
            const uintptr_t to = *at && (*at)->begin < end ? (*at)->begin : end;
            good = new_part(at, from, to, &no_hint);
        }
        if (good) {
            change(&(*at)->hint, advice, device);
            from = (*at)->end;
            at = &(*at)->next;
        }
    }
    return good;
}

void ibx_managed_hints_gone(uintptr_t begin, size_t n)
{
    ibx_frontend_ranges_lock();
    for (struct part **at = &parts; *at;) {
        struct part *p = *at;
        if (p->begin >= begin && p->begin - begin < n) {
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    }
    ibx_frontend_ranges_unlock();
}

/* ----------------------------------------------------------------------- the calls */

/* How many of n bytes from there on are the program's managed memory. Those of a variable may be in
 * pages of another module's variables, and continue in other pages. Page-locked memory that is
 * implemented as managed memory is none to the program. */
static size_t managed_from(uintptr_t at, size_t n)
{
    struct managed m;
    size_t good = 0, here = 0;
    do {
        good += here;
        const bool found = ibx_managed_find(at + good, &m) && !m.mapped && !m.in_place;
        const size_t skipped = found ? at + good - m.begin - m.before : 0;
        here = found && skipped < m.asked ? m.asked - skipped : 0;
    } while (here && here < n - good && m.variables && m.before + m.asked == m.n);
    return here < n - good ? good + here : n;
}

int ibx_managed_check(const void *address, size_t n)
{
    const bool good = n && managed_from((uintptr_t)address, n) == n;
    return good ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
}

static int hint(const void *address, size_t n, int advice, int device)
{
    const uintptr_t at = (uintptr_t)address;
    int rc = ibx_managed_check(address, n);
    if (rc)
        return rc;
    ibx_frontend_ranges_lock();
    rc = note(at, at + n, advice, device) ? CUDA_SUCCESS : CUDA_MEMORY_ALLOCATION;
    ibx_frontend_ranges_unlock();
    return rc ? ibx_frontend_fail(rc) : CUDA_SUCCESS;
}

static int device_of(struct memory_location location)
{
    return location.type == CUDA_AT_DEVICE ? location.id
           : location.type >= CUDA_AT_HOST ? HOST
                                           : NOWHERE;
}

/* Of this host, where the memory is. If the kernel has no NUMA nodes in sysfs, there is node 0. */
bool ibx_frontend_host_node(int id)
{
    char path[64];
    snprintf(path, sizeof(path), "/sys/devices/system/node/node%d", id);
    return !id || (id > 0 && !access(path, F_OK));
}

/* CUDA's error for this location, or 0. */
static int wrong_place(struct memory_location location, int advice)
{
    const int type = location.type, id = location.id;
    const bool accesses = advice == ADVISE_ACCESSED || advice == ADVISE_NOT_ACCESSED;
    int count = 0;
    if (type < CUDA_AT_DEVICE || type > AT_LAST || (accesses && type >= CUDA_AT_NODE))
        return CUDA_INVALID_VALUE;
    if ((type != CUDA_AT_DEVICE && type != CUDA_AT_NODE) ||
        !(accesses || advice == ADVISE_PREFER || advice == PREFETCHED))
        return CUDA_SUCCESS;
    if (type == CUDA_AT_NODE ? ibx_frontend_host_node(id)
                             : id >= 0 && !cudaGetDeviceCount(&count) && id < count)
        return CUDA_SUCCESS;
    return type == CUDA_AT_DEVICE && advice == PREFETCHED ? CUDA_INVALID_DEVICE
                                                          : CUDA_INVALID_VALUE;
}

int cudaMemAdvise_v2(const void *address, size_t n, int advice, struct memory_location location)
{
    if (advice < ADVISE_READ_MOSTLY || advice > ADVISE_NOT_ACCESSED)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    int rc = ibx_frontend_unsafe();
    if (rc)
        return rc;
    rc = wrong_place(location, advice);
    return rc ? ibx_frontend_fail(rc) : hint(address, n, advice, device_of(location));
}

/* A prefetch is work of its stream, of which a wait includes what it comes after. */
int cudaMemPrefetchAsync_v2(const void *address, size_t n, struct memory_location location,
                            unsigned flags, void *stream)
{
    int rc;
    if ((rc = ibx_frontend_broken()) || ibx_frontend_capture_refuses(stream, &rc) ||
        ibx_frontend_legacy_refuses(stream, &rc))
        return rc;
    rc = ibx_managed_check(address, n); /* natively, too, before the device is looked at */
    if (rc)
        return rc;
    rc = flags ? CUDA_INVALID_VALUE : wrong_place(location, PREFETCHED);
    if (rc)
        return ibx_frontend_fail(rc);
    rc = hint(address, n, PREFETCHED, device_of(location));
    return rc ? rc : ibx_frontend_order_work(stream);
}

/* Called under the lock. The hints that all bytes have in common. */
static struct hint common(uintptr_t begin, uintptr_t end)
{
    struct hint all = no_hint;
    uintptr_t from = begin;
    for (const struct part *p = parts; p && from < end && p->begin <= from; p = p->next) {
        if (p->end <= from)
            continue;
        if (from == begin)
            all = p->hint;
        all.read_mostly = all.read_mostly && p->hint.read_mostly;
        all.preferred = all.preferred == p->hint.preferred ? all.preferred : NOWHERE;
        all.prefetched = all.prefetched == p->hint.prefetched ? all.prefetched : NOWHERE;
        all.accessed &= p->hint.accessed;
        from = p->end;
    }
    return from < end ? no_hint : all;
}

static int type_of(int device)
{
    return device == NOWHERE ? 0 : device == HOST ? CUDA_AT_HOST : CUDA_AT_DEVICE;
}

static void list_accessors(uint64_t accessed, int *list, size_t room)
{
    size_t count = 0;
    for (int i = 0; i < DEVICES && count < room; i++) {
        if (accessed >> i & 1)
            list[count++] = i - 1; /* bit 0 is the host */
    }
    while (count < room)
        list[count++] = NOWHERE;
}

int cudaMemRangeGetAttribute(void *data, size_t size, int attribute, const void *address, size_t n)
{
    const uintptr_t at = (uintptr_t)address;
    const bool fits =
        attribute == ACCESSED_BY ? size && size % sizeof(int) == 0 : size == sizeof(int);
    if (!data || !fits || attribute < READ_MOSTLY || attribute > LAST_PREFETCH_ID)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = ibx_managed_check(address, n);
    if (rc)
        return rc;
    ibx_frontend_ranges_lock();
    const struct hint h = common(at, at + n);
    ibx_frontend_ranges_unlock();
    const int values[] = {
        [READ_MOSTLY] = h.read_mostly,    [PREFERRED] = h.preferred,
        [LAST_PREFETCH] = h.prefetched,   [PREFERRED_TYPE] = type_of(h.preferred),
        [PREFERRED_ID] = h.preferred,     [LAST_PREFETCH_TYPE] = type_of(h.prefetched),
        [LAST_PREFETCH_ID] = h.prefetched};
    if (attribute == ACCESSED_BY)
        list_accessors(h.accessed, data, size / sizeof(int));
    else
        memcpy(data, &values[attribute], sizeof(int));
    return CUDA_SUCCESS;
}

int cudaMemRangeGetAttributes(void **data, size_t *sizes, const int *attributes, size_t count,
                              const void *address, size_t n)
{
    int rc =
        data && sizes && attributes && count ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < count && !rc; i++)
        rc = cudaMemRangeGetAttribute(data[i], sizes[i], attributes[i], address, n);
    return rc;
}
