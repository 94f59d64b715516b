/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of the double that is mapped to reserved addresses. As with the driver, an invalid handle
 * ends the process, and a new piece of memory has the contents of the last one of its size.
 */
#include "tests/doubles/cuda/internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULE    ((size_t)2 << 20)
#define POSIX_FILE 1

struct piece {
    struct piece *next;
    size_t n;
    int fd, device;
    bool held;
    bool exportable, shared; /* shared: with another process, or with another piece of this one */
    unsigned mappings;
};

struct mapping {
    struct mapping *next;
    struct allocation *in;
    size_t at;
    struct piece *of;
    unsigned long long access, id;
};

/* CUmemAllocationProp, CUmemAccessDesc: the members that are used. */
struct properties {
    int type, handles, at, device;
};
struct access {
    int at, device;
    unsigned flags;
};

static struct piece *pieces, *spare; /* the spare one was released, and has its bytes */
static struct mapping *mappings;
static unsigned long long ids = 1ull << 40;

/* ---------------------------------------------------------------- for memory.c and driver.c */

static struct mapping *mapping_of(const struct allocation *a, size_t at)
{
    struct mapping *m = mappings;
    while (m && (m->in != a || at < m->at || at - m->at >= m->of->n))
        m = m->next;
    return m;
}

bool virtual_is_there(const struct allocation *a, size_t at, size_t n)
{
    for (size_t done = 0; done < n;) {
        const struct mapping *m = mapping_of(a, at + done);
        if (!m || !m->access)
            return false;
        done = m->at + m->of->n - at;
    }
    return true;
}

bool virtual_mapping(const struct allocation *a, size_t at, struct virtual_mapping *is)
{
    const struct mapping *m = mapping_of(a, at);
    if (m)
        *is =
            (struct virtual_mapping){(uintptr_t)a->address + m->at, m->of->n, m->id, m->of->device};
    return m;
}

/* -------------------------------------------------------------------------------- addresses */

static struct allocation *holding(uint64_t address, size_t n)
{
    struct allocation *a = allocations;
    while (a && !(a->reserved && address >= (uintptr_t)a->address &&
                  address - (uintptr_t)a->address < a->size &&
                  n <= a->size - (address - (uintptr_t)a->address)))
        a = a->next;
    return a;
}

EXPORT int cuMemGetAllocationGranularity(size_t *n, const struct properties *p, int option)
{
    int code = enter("cuMemGetAllocationGranularity");
    if (code)
        return code;
    *n = GRANULE;
    return leave(p->type != 1 || p->at != 1 || option < 0 || option > 1 ? INVALID_VALUE : SUCCESS);
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t n, size_t alignment, uint64_t wanted,
                               unsigned long long flags)
{
    int code = enter_unsafe("cuMemAddressReserve");
    (void)wanted;
    if (code)
        return code;
    if (!n || n % GRANULE || flags || alignment & (alignment - 1))
        return leave(INVALID_VALUE);
    struct allocation *a = memory_reserve(n);
    if (!a)
        return leave(OUT_OF_MEMORY);
    *address = (uintptr_t)a->address;
    stats.reservations++;
    return leave(SUCCESS);
}

EXPORT int cuMemAddressFree(uint64_t address, size_t n)
{
    int code = enter_unsafe("cuMemAddressFree");
    if (code)
        return code;
    struct allocation *a = holding(address, n);
    const struct mapping *m = mappings;
    while (m && m->in != a)
        m = m->next;
    if (!a || m || (uintptr_t)a->address != address || a->size != n)
        return leave(INVALID_VALUE);
    memory_unmap(a);
    stats.reservations--;
    return leave(SUCCESS);
}

/* ------------------------------------------------------------------------------- memory */

static void drop(struct piece *p)
{
    struct piece **at = &pieces;
    if (p->held || p->mappings)
        return;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    stats.mappable--;
    struct piece *gone = p;
    if (!p->shared) {
        gone = spare;
        spare = p;
    }
    if (gone) {
        close(gone->fd);
        free(gone);
    }
}

static void enter_piece(struct piece *p)
{
    p->next = pieces;
    p->held = true;
    pieces = p;
    stats.mappable++;
}

EXPORT int cuMemCreate(unsigned long long *handle, size_t n, const struct properties *p,
                       unsigned long long flags)
{
    int code = enter_unsafe("cuMemCreate");
    if (code)
        return code;
    if (!n || n % GRANULE || flags || p->type != 1 || p->at != 1 || p->device < 0 || p->device > 1)
        return leave(INVALID_VALUE);
    struct piece *made = spare && spare->n == n ? spare : calloc(1, sizeof(*made));
    if (made == spare)
        spare = NULL;
    else
        made->fd = memfd_create("mapped", MFD_CLOEXEC);
    if (ftruncate(made->fd, (off_t)n))
        abort();
    *made = (struct piece){
        .n = n, .fd = made->fd, .device = p->device, .exportable = p->handles == POSIX_FILE};
    enter_piece(made);
    *handle = (uintptr_t)made;
    return leave(SUCCESS);
}

static struct piece *piece_of(unsigned long long handle)
{
    struct piece *p = pieces;
    while (p && ((uintptr_t)p != handle || !p->held))
        p = p->next;
    if (!p)
        abort();
    return p;
}

EXPORT int cuMemExportToShareableHandle(int *fd, unsigned long long handle, int type,
                                        unsigned long long flags)
{
    int code = enter("cuMemExportToShareableHandle");
    if (code)
        return code;
    struct piece *p = piece_of(handle);
    const int made =
        p->exportable && type == POSIX_FILE && !flags ? fcntl(p->fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (made >= 0) {
        p->shared = true;
        *fd = made;
    }
    return leave(made >= 0 ? SUCCESS : INVALID_VALUE);
}

/* Another piece, with the same bytes. */
EXPORT int cuMemImportFromShareableHandle(unsigned long long *handle, void *fd, int type)
{
    struct stat is;
    int code = enter("cuMemImportFromShareableHandle");
    if (code)
        return code;
    const int file = (int)(intptr_t)fd;
    if (type != POSIX_FILE || fcntl(file, F_GET_SEALS) < 0 || fstat(file, &is))
        return leave(INVALID_VALUE);
    struct piece *made = calloc(1, sizeof(*made));
    if (!made)
        abort();
    *made = (struct piece){
        .n = (size_t)is.st_size, .fd = fcntl(file, F_DUPFD_CLOEXEC, 3), .shared = true};
    enter_piece(made);
    *handle = (uintptr_t)made;
    return leave(SUCCESS);
}

EXPORT int cuMemRelease(unsigned long long handle)
{
    int code = enter_unsafe("cuMemRelease");
    if (code)
        return code;
    struct piece *p = piece_of(handle);
    p->held = false;
    drop(p);
    return leave(SUCCESS);
}

/* ------------------------------------------------------------------------------- mappings */

/* Also maps beyond what was reserved: ibx must never ask for that. */
EXPORT int cuMemMap(uint64_t address, size_t n, size_t offset, unsigned long long handle,
                    unsigned long long flags)
{
    int code = enter_unsafe("cuMemMap");
    if (code)
        return code;
    struct piece *p = piece_of(handle);
    struct allocation *a = holding(address, 1);
    if (!a || n > a->size - (address - (uintptr_t)a->address))
        abort();
    const size_t at = address - (uintptr_t)a->address;
    if (offset || n != p->n)
        return leave(NOT_SUPPORTED);
    if (at % GRANULE || flags)
        return leave(INVALID_VALUE);
    for (size_t i = 0; i < n; i += GRANULE)
        if (mapping_of(a, at + i))
            return leave(INVALID_VALUE);
    struct mapping *m = calloc(1, sizeof(*m));
    if (!m || mmap(a->bytes + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, 0) ==
                  MAP_FAILED)
        abort();
    *m = (struct mapping){mappings, a, at, p, 0, ++ids};
    mappings = m;
    p->mappings++;
    return leave(SUCCESS);
}

/* Bytes of mappings that are wholly there; SIZE_MAX: a mapping crosses an end. */
static size_t whole(const struct allocation *a, size_t at, size_t n)
{
    size_t all = 0;
    for (const struct mapping *m = mappings; m; m = m->next) {
        if (m->in != a || m->at >= at + n || at >= m->at + m->of->n)
            continue;
        if (m->at < at || m->at + m->of->n > at + n)
            return SIZE_MAX;
        all += m->of->n;
    }
    return all;
}

EXPORT int cuMemUnmap(uint64_t address, size_t n)
{
    int code = enter_unsafe("cuMemUnmap");
    if (code)
        return code;
    const struct allocation *a = holding(address, n);
    const size_t at = a ? address - (uintptr_t)a->address : 0;
    if (!a || !n || n % GRANULE || at % GRANULE || whole(a, at, n) == SIZE_MAX)
        return leave(INVALID_VALUE);
    for (struct mapping **place = &mappings; *place;) {
        struct mapping *m = *place;
        if (m->in != a || m->at < at || m->at - at >= n) {
            place = &m->next;
            continue;
        }
        *place = m->next;
        m->of->mappings--;
        drop(m->of);
        free(m);
    }
    if (mmap(a->bytes + at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        abort();
    return leave(SUCCESS);
}

EXPORT int cuMemSetAccess(uint64_t address, size_t n, const struct access *list, size_t count)
{
    int code = enter_unsafe("cuMemSetAccess");
    if (code)
        return code;
    const struct allocation *a = holding(address, n);
    const size_t at = a ? address - (uintptr_t)a->address : 0;
    if (!a || count != 1 || list->at != 1 || list->device < 0 || list->device > 1 ||
        list->flags > 3 || whole(a, at, n) != n)
        return leave(INVALID_VALUE);
    for (struct mapping *m = mappings; m; m = m->next)
        if (m->in == a && m->at >= at && m->at - at < n)
            m->access = list->flags;
    return leave(SUCCESS);
}

EXPORT int cuMemGetAccess(unsigned long long *flags, const struct access *location,
                          uint64_t address)
{
    int code = enter("cuMemGetAccess");
    if (code)
        return code;
    const struct allocation *a = holding(address, 1);
    const struct mapping *m = a ? mapping_of(a, address - (uintptr_t)a->address) : NULL;
    if (m)
        *flags = m->access;
    return leave(m && location->at == 1 ? SUCCESS : INVALID_VALUE);
}
