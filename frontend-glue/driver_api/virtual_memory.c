/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that is mapped to reserved addresses, by extension requests, which the back end's driver
 * runs. This file notes what is mapped where, and how often a handle is held: the back end keeps
 * each piece of memory until it is neither held nor mapped. What another process has exported is
 * another piece here, with a handle of its own. A reset of the device gives all of it back at the
 * back end; the next call notices that here.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/driver_api/driver.h"
#include "frontend-glue/session/mapped_memory.h"

#include <pthread.h>
#include <stdlib.h>

#define OPTIONS 2 /* CU_MEM_ALLOC_GRANULARITY_* */

struct memory {
    struct memory *next;
    uint64_t number; /* the back end's, and the program's handle */
    size_t n;
    int device, handles; /* of other processes, which the program has asked for */
    bool is_imported;
    unsigned held, mappings;
};

struct mapping {
    struct mapping *next;
    uint64_t at, number;
    struct memory *of;
    int access; /* CUmemAccess_flags, of the last device that was named */
};

struct addresses {
    struct addresses *next;
    uint64_t begin, n;
    struct mapping *mappings;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static struct addresses *reserved;
static uint64_t numbers; /* of mappings */
static atomic_uint reservations;
static unsigned resets; /* that are noticed; locked */

/* All that is noted belongs to the parent. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    memories = NULL;
    reserved = NULL;
    atomic_store(&reservations, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* ------------------------------------------------------------------------ what is where; locked */

/* Forgets memory that is neither held nor mapped any more. False: it is. */
static bool take_out_unused(struct memory *m)
{
    struct memory **at = &memories;
    if (m->held || m->mappings)
        return false;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    free(m);
    return true;
}

static void drop(struct addresses *a)
{
    for (struct mapping *m = a->mappings, *next; m; m = next) {
        next = m->next;
        m->of->mappings--;
        take_out_unused(m->of);
        free(m);
    }
    atomic_fetch_sub(&reservations, 1);
    free(a);
}

/* Forgets the addresses that resets have given back: there may be other memory by now. */
static void drop_gone(void)
{
    for (struct addresses **at = &reserved, *a; (a = *at);) {
        if (ibx_frontend_is_reserved((const void *)(uintptr_t)a->begin)) {
            at = &a->next;
            continue;
        }
        *at = a->next;
        drop(a);
    }
}

static void enter(void)
{
    const unsigned now = ibx_frontend_reserved_resets();
    pthread_mutex_lock(&lock);
    if (now != resets)
        drop_gone();
    resets = now;
}

static void leave(void)
{
    pthread_mutex_unlock(&lock);
}

static struct addresses *holding(uint64_t at, uint64_t n)
{
    struct addresses *a = reserved;
    while (a && !(at >= a->begin && at - a->begin < a->n && n <= a->n - (at - a->begin)))
        a = a->next;
    return a;
}

static struct mapping *mapped(const struct addresses *a, uint64_t at)
{
    struct mapping *m = a ? a->mappings : NULL;
    while (m && !(at >= m->at && at - m->at < m->of->n))
        m = m->next;
    return m;
}

static struct memory *find(uint64_t number)
{
    struct memory *m = memories;
    while (m && (m->number != number || !m->held))
        m = m->next;
    return m;
}

enum ibx_driver_place ibx_driver_mapping(uint64_t address, struct ibx_driver_mapping *is)
{
    if (!atomic_load(&reservations))
        return NOT_RESERVED;
    enter();
    const struct addresses *a = holding(address, 1);
    const struct mapping *m = mapped(a, address);
    if (m)
        *is = (struct ibx_driver_mapping){m->at,         m->of->n,      m->number,
                                          m->of->number, m->of->device, m->access};
    leave();
    return m ? MAPPED : a ? RESERVED : NOT_RESERVED;
}

/* ------------------------------------------------------------------------------- granularity */

static int check(const struct ibx_mapped_properties *p)
{
    if (!p || p->type != IBX_MAPPED_PINNED)
        return CUDA_INVALID_VALUE;
    return p->at.type != IBX_MAPPED_OF_DEVICE || p->handles & ~IBX_MAPPED_POSIX_FILE || p->rdma
               ? CUDA_NOT_SUPPORTED
               : ibx_driver_check_device(p->at.id);
}

static void begin_granularity(struct extension_request *e, int device, int option)
{
    ibx_frontend_request_begin(e, IBX_EXT_VIRTUAL_GRANULARITY, "cuMemGetAllocationGranularity");
    ibx_put_u32(&e->body, (uint32_t)device);
    ibx_put_u32(&e->body, (uint32_t)option);
}

bool ibx_driver_maps_memory(int device)
{
    struct extension_request e;
    uint8_t bytes[8];
    int code;
    begin_granularity(&e, device, 0);
    return ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code) && !code;
}

static int granularity(size_t *n, const struct ibx_mapped_properties *p, int option)
{
    struct extension_request e;
    uint64_t answer = 0;
    int rc = n && option >= 0 && option < OPTIONS ? check(p) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    begin_granularity(&e, p->at.id, option);
    rc = ibx_frontend_request_ask(&e, &answer);
    if (!rc)
        *n = answer;
    return rc;
}

EXPORTED int cuMemGetAllocationGranularity(size_t *n, const struct ibx_mapped_properties *p,
                                           int option)
{
    return ANYWHERE(granularity(n, p, option));
}

/* ------------------------------------------------------------------------------- addresses */

/* An address that the program asks for would be one of its own process; the back end has others. */
static int reserve(uint64_t *address, size_t n, size_t alignment, unsigned long long flags)
{
    struct extension_request e;
    uint64_t begins = 0;
    struct addresses *a = address && n && !flags ? calloc(1, sizeof(*a)) : NULL;
    if (!a)
        return address && n && !flags ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE;
    enter(); /* forgets what a reset has given back, since the same addresses may come again */
    leave();
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_RESERVE, "cuMemAddressReserve");
    ibx_put_u64(&e.body, n);
    ibx_put_u64(&e.body, alignment);
    const int rc = ibx_frontend_request_ask(&e, &begins);
    if (rc) {
        free(a);
        return rc;
    }
    ibx_frontend_reserved_memory((void *)(uintptr_t)begins, n);
    enter();
    *a = (struct addresses){reserved, begins, n, NULL};
    reserved = a;
    atomic_fetch_add(&reservations, 1);
    leave();
    *address = begins;
    return CUDA_SUCCESS;
}

EXPORTED int cuMemAddressReserve(uint64_t *address, size_t n, size_t alignment, uint64_t wanted,
                                 unsigned long long flags)
{
    (void)wanted;
    return ANYWHERE(reserve(address, n, alignment, flags));
}

/* Takes the addresses out of the notes, before another thread may get them. */
static struct addresses *take_out(uint64_t begins, uint64_t n)
{
    enter();
    struct addresses **at = &reserved;
    while (*at && ((*at)->begin != begins || (*at)->n != n || (*at)->mappings))
        at = &(*at)->next;
    struct addresses *found = *at;
    if (found)
        *at = found->next;
    leave();
    return found;
}

static int free_addresses(uint64_t begins, uint64_t n)
{
    struct extension_request e;
    struct addresses *a = take_out(begins, n);
    if (!a)
        return CUDA_INVALID_VALUE;
    ibx_frontend_device_memory_gone((void *)(uintptr_t)begins);
    atomic_fetch_sub(&reservations, 1);
    free(a);
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_FREE, "cuMemAddressFree");
    ibx_put_u64(&e.body, begins);
    ibx_put_u64(&e.body, n);
    return ibx_frontend_request_make(&e, NULL, 0);
}

EXPORTED int cuMemAddressFree(uint64_t address, size_t n)
{
    return ANYWHERE(free_addresses(address, n));
}

/* ------------------------------------------------------------------------------- memory */

/* Notes memory that the program holds once. `made`: room for the note. */
static void note_memory(struct memory *made, uint64_t number, size_t n, int device, int handles,
                        bool is_imported)
{
    enter();
    *made = (struct memory){memories, number, n, device, handles, is_imported, 1, 0};
    memories = made;
    leave();
}

static int create(uint64_t *handle, size_t n, const struct ibx_mapped_properties *p,
                  unsigned long long flags)
{
    struct extension_request e;
    uint64_t number = 0;
    int rc = handle && n && !flags ? check(p) : CUDA_INVALID_VALUE;
    if (rc)
        return rc;
    struct memory *m = malloc(sizeof(*m));
    if (!m)
        return CUDA_MEMORY_ALLOCATION;
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_CREATE, "cuMemCreate");
    ibx_put_u64(&e.body, n);
    ibx_put_u32(&e.body, (uint32_t)p->at.id);
    rc = ibx_frontend_request_ask(&e, &number);
    if (rc) {
        free(m);
        return rc;
    }
    note_memory(m, number, n, p->at.id, p->handles, false);
    *handle = number;
    return CUDA_SUCCESS;
}

EXPORTED int cuMemCreate(uint64_t *handle, size_t n, const struct ibx_mapped_properties *p,
                         unsigned long long flags)
{
    return ANYWHERE(create(handle, n, p, flags));
}

/* Locked. Its number, if it is to be given back, because it is neither held nor mapped any more;
 * else 0. */
static uint64_t take_unused(struct memory *m)
{
    const uint64_t number = m->number;
    return take_out_unused(m) ? number : 0;
}

static int give_back(uint64_t number)
{
    struct extension_request e;
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_RELEASE, "cuMemRelease");
    ibx_put_u64(&e.body, number);
    return ibx_frontend_request_make(&e, NULL, 0);
}

static int release(uint64_t handle)
{
    uint64_t unused = 0;
    enter();
    struct memory *m = find(handle);
    if (m) {
        m->held--;
        unused = take_unused(m);
    }
    leave();
    return !m ? CUDA_INVALID_VALUE : unused ? give_back(unused) : CUDA_SUCCESS;
}

EXPORTED int cuMemRelease(uint64_t handle)
{
    return ANYWHERE(release(handle));
}

static int retain(uint64_t *handle, uint64_t address)
{
    enter();
    const struct mapping *m = mapped(holding(address, 1), address);
    if (m && handle) {
        m->of->held++;
        *handle = m->of->number;
    }
    leave();
    return m && handle ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORTED int cuMemRetainAllocationHandle(uint64_t *handle, void *address)
{
    return ANYWHERE(retain(handle, (uintptr_t)address));
}

/* Of memory of another process CUDA does not say what that has asked for. */
static int describe(struct ibx_mapped_properties *p, uint64_t handle)
{
    enter();
    const struct memory *m = find(handle);
    if (m && p)
        *p = (struct ibx_mapped_properties){.type = IBX_MAPPED_PINNED,
                                            .handles = m->is_imported ? 0 : m->handles,
                                            .at = {IBX_MAPPED_OF_DEVICE, m->device}};
    leave();
    return m && p ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

EXPORTED int cuMemGetAllocationPropertiesFromHandle(struct ibx_mapped_properties *p,
                                                    uint64_t handle)
{
    return ANYWHERE(describe(p, handle));
}

/* ------------------------------------------------------------------------ of other processes */

static void begin_export(struct extension_request *e, uint64_t number)
{
    ibx_frontend_request_begin(e, IBX_EXT_VIRTUAL_EXPORT, "cuMemExportToShareableHandle");
    ibx_put_u64(&e->body, number);
}

/* A back end that can do it answers for memory that does not exist, too. */
bool ibx_driver_exports_memory(int device)
{
    struct extension_request e;
    int code;
    begin_export(&e, 0);
    return ibx_driver_maps_memory(device) && ibx_frontend_request_try(&e, NULL, 0, &code) &&
           code == CUDA_INVALID_VALUE;
}

static int export_memory(int *file, uint64_t handle, int type, unsigned long long flags)
{
    struct extension_request e;
    uint8_t bytes[IBX_EXT_HANDLE];
    enter();
    const struct memory *m = find(handle);
    const bool can = m && m->handles & type;
    leave();
    if (!file || !m || flags || (type == IBX_MAPPED_POSIX_FILE && !can))
        return CUDA_INVALID_VALUE;
    if (type != IBX_MAPPED_POSIX_FILE)
        return CUDA_NOT_SUPPORTED;
    begin_export(&e, handle);
    const int rc = ibx_frontend_request_make(&e, bytes, sizeof(bytes));
    const int fd = rc ? -1 : ibx_frontend_handle_file(FILE_OF_MAPPED, bytes);
    if (rc || fd < 0)
        return rc ? rc : CUDA_MEMORY_ALLOCATION;
    *file = fd;
    return CUDA_SUCCESS;
}

EXPORTED int cuMemExportToShareableHandle(void *made, uint64_t handle, int type,
                                          unsigned long long flags)
{
    return ANYWHERE(export_memory(made, handle, type, flags));
}

static int ask_import(struct extension_request *e, struct memory *made, uint64_t *handle)
{
    uint8_t bytes[8 + 8 + 4];
    const int rc = ibx_frontend_request_make(e, bytes, sizeof(bytes));
    if (rc)
        return rc == CUDA_INVALID_HANDLE ? CUDA_INVALID_VALUE : rc;
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    const uint64_t number = ibx_get_u64(&r), n = ibx_get_u64(&r);
    note_memory(made, number, n, (int)ibx_get_u32(&r), IBX_MAPPED_POSIX_FILE, true);
    *handle = number;
    return CUDA_SUCCESS;
}

/* `file` is the descriptor itself, which remains the caller's. */
static int import_memory(uint64_t *handle, const void *file, int type)
{
    struct extension_request e;
    uint8_t bytes[IBX_EXT_HANDLE];
    if (type != IBX_MAPPED_POSIX_FILE || !handle)
        return handle ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE;
    if (!ibx_frontend_handle_in_file(FILE_OF_MAPPED, (int)(intptr_t)file, bytes))
        return CUDA_INVALID_VALUE;
    struct memory *made = malloc(sizeof(*made));
    if (!made)
        return CUDA_MEMORY_ALLOCATION;
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_IMPORT, "cuMemImportFromShareableHandle");
    ibx_put_bytes(&e.body, bytes, sizeof(bytes));
    const int rc = ask_import(&e, made, handle);
    if (rc)
        free(made);
    return rc;
}

EXPORTED int cuMemImportFromShareableHandle(uint64_t *handle, void *file, int type)
{
    return ANYWHERE(import_memory(handle, file, type));
}

/* ------------------------------------------------------------------------------- mappings */

/* Held while the back end maps it. NULL: *rc says why not. */
static struct memory *hold(uint64_t at, size_t n, uint64_t handle, int *rc)
{
    enter();
    struct memory *m = find(handle);
    *rc = !m || !holding(at, n) ? CUDA_INVALID_VALUE : m->n != n ? CUDA_NOT_SUPPORTED : 0;
    if (!*rc)
        m->mappings++;
    leave();
    return *rc ? NULL : m;
}

static void note(struct mapping *made, struct memory *of, uint64_t at, int rc)
{
    uint64_t unused = 0;
    enter();
    struct addresses *a = rc ? NULL : holding(at, of->n);
    if (a) {
        *made = (struct mapping){a->mappings, at, ++numbers, of, 0};
        a->mappings = made;
    } else {
        of->mappings--;
        unused = take_unused(of);
        free(made);
    }
    leave();
    if (unused)
        give_back(unused);
}

static int map(uint64_t at, size_t n, size_t offset, uint64_t handle, unsigned long long flags)
{
    struct extension_request e;
    int rc;
    if (offset || flags)
        return offset ? CUDA_NOT_SUPPORTED : CUDA_INVALID_VALUE;
    struct mapping *made = malloc(sizeof(*made));
    struct memory *of = made ? hold(at, n, handle, &rc) : NULL;
    if (!of) {
        free(made);
        return made ? rc : CUDA_MEMORY_ALLOCATION;
    }
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_MAP, "cuMemMap");
    ibx_put_u64(&e.body, at);
    ibx_put_u64(&e.body, n);
    ibx_put_u64(&e.body, handle);
    rc = ibx_frontend_request_make(&e, NULL, 0);
    note(made, of, at, rc);
    return rc;
}

EXPORTED int cuMemMap(uint64_t address, size_t n, size_t offset, uint64_t handle,
                      unsigned long long flags)
{
    return ANYWHERE(map(address, n, offset, handle, flags));
}

/* Takes out a mapping that begins in these n bytes, which are not mapped any more. False: there is
 * none. *unused: memory that is to be given back, or 0. */
static bool take_mapping(uint64_t at, size_t n, uint64_t *unused)
{
    enter();
    struct addresses *a = holding(at, n);
    struct mapping **place = a ? &a->mappings : NULL;
    while (place && *place && ((*place)->at < at || (*place)->at - at >= n))
        place = &(*place)->next;
    struct mapping *m = place ? *place : NULL;
    if (m) {
        *place = m->next;
        m->of->mappings--;
        *unused = take_unused(m->of);
        free(m);
    }
    leave();
    return m;
}

static int unmap(uint64_t at, size_t n)
{
    struct extension_request e;
    uint64_t unused = 0;
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_UNMAP, "cuMemUnmap");
    ibx_put_u64(&e.body, at);
    ibx_put_u64(&e.body, n);
    int rc = ibx_frontend_request_make(&e, NULL, 0);
    while (!rc && take_mapping(at, n, &unused)) {
        if (unused)
            rc = give_back(unused);
    }
    return rc;
}

EXPORTED int cuMemUnmap(uint64_t address, size_t n)
{
    return ANYWHERE(unmap(address, n));
}

static void note_access(uint64_t at, size_t n, int flags)
{
    enter();
    const struct addresses *a = holding(at, n);
    for (struct mapping *m = a ? a->mappings : NULL; m; m = m->next)
        if (m->at >= at && m->at - at < n)
            m->access = flags;
    leave();
}

static int set_access(uint64_t at, size_t n, const struct ibx_mapped_access *list, size_t count)
{
    int rc = list && count ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
    for (size_t i = 0; i < count && !rc; i++) {
        struct extension_request e;
        if (list[i].at.type != IBX_MAPPED_OF_DEVICE)
            return CUDA_NOT_SUPPORTED;
        ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_SET_ACCESS, "cuMemSetAccess");
        ibx_put_u64(&e.body, at);
        ibx_put_u64(&e.body, n);
        ibx_put_u32(&e.body, (uint32_t)list[i].at.id);
        ibx_put_u32(&e.body, list[i].flags);
        rc = ibx_frontend_request_make(&e, NULL, 0);
        if (!rc)
            note_access(at, n, (int)list[i].flags);
    }
    return rc;
}

EXPORTED int cuMemSetAccess(uint64_t address, size_t n, const struct ibx_mapped_access *list,
                            size_t count)
{
    return ANYWHERE(set_access(address, n, list, count));
}

static int get_access(unsigned long long *flags, const struct memory_location *at, uint64_t address)
{
    struct extension_request e;
    uint64_t answer = 0;
    if (!flags || !at)
        return CUDA_INVALID_VALUE;
    if (at->type != IBX_MAPPED_OF_DEVICE)
        return CUDA_NOT_SUPPORTED;
    ibx_frontend_request_begin(&e, IBX_EXT_VIRTUAL_GET_ACCESS, "cuMemGetAccess");
    ibx_put_u64(&e.body, address);
    ibx_put_u32(&e.body, (uint32_t)at->id);
    const int rc = ibx_frontend_request_ask(&e, &answer);
    *flags = rc ? 0 : answer; /* as natively, for memory that is not mapped */
    return rc;
}

EXPORTED int cuMemGetAccess(unsigned long long *flags, const struct memory_location *at,
                            uint64_t address)
{
    return ANYWHERE(get_access(flags, at, address));
}
