/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory that is mapped apart from its addresses (cuMemAddressReserve, cuMemCreate, cuMemMap), by
 * the driver of this host. The requests are in extensions/virtual_memory.c.
 *
 * CUDA uses a handle of such memory as an address without a check, and maps memory beyond the
 * reserved addresses, where others' may be. So a client gets numbers for memory, and may only name
 * addresses that it has reserved itself, and whole mappings. Reserved addresses count as the
 * client's memory (handle_memory.c, owners.c), whether they are mapped or not: therefore copies,
 * sets and kernels' arguments of others that name them are refused, and they are given back behind
 * the client's work when the client has ended. Memory counts as allocated (rdma.device_memory) from
 * its creation until it is neither named nor mapped. It is cleared as that of cudaMalloc, before
 * the client learns of it: at addresses that are reserved for that.
 *
 * All calls of the driver about mappings are made under the lock: they do not wait for work. Each
 * copy of any client looks in here as long as anybody has reserved anything, and a client that has
 * much must not make that slow for others.
 */
#include "frontend-glue/clients/virtual_memory_internal.h"
#include "frontend-glue/tenants/shared_handles.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SUPPORTED  102 /* CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
#define EXPORTABLE 103 /* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
#define READ_WRITE 3u  /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */

struct mapping {
    struct ibx_range range;
    struct memory *of;
};

struct addresses {
    struct ibx_range range;
    struct addresses *next, **at;
    uint64_t n;
    struct ibx_tenant *tenant;
    uint64_t client;
    const void *context;
    void *mappings, *cover; /* trees: the mappings, and what they cover together */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all the following */
static struct memory *memories;
static struct addresses *reserved;
static void *memory_tree, *reserved_tree; /* the same in trees */
static uint64_t numbers;
static atomic_uint reservations; /* 0: nobody needs to take the lock */

struct ibx_virtual_driver ibx_virtual_driver;
static bool driver_has_all; /* but for export and import; both are set once, by look_up() */

static void look_up(void)
{
    *(void **)&ibx_virtual_driver.granularity = ibx_cuda_symbol("cuMemGetAllocationGranularity");
    *(void **)&ibx_virtual_driver.reserve = ibx_cuda_symbol("cuMemAddressReserve");
    *(void **)&ibx_virtual_driver.free = ibx_cuda_symbol("cuMemAddressFree");
    *(void **)&ibx_virtual_driver.create = ibx_cuda_symbol("cuMemCreate");
    *(void **)&ibx_virtual_driver.release = ibx_cuda_symbol("cuMemRelease");
    *(void **)&ibx_virtual_driver.map = ibx_cuda_symbol("cuMemMap");
    *(void **)&ibx_virtual_driver.unmap = ibx_cuda_symbol("cuMemUnmap");
    *(void **)&ibx_virtual_driver.set_access = ibx_cuda_symbol("cuMemSetAccess");
    *(void **)&ibx_virtual_driver.get_access = ibx_cuda_symbol("cuMemGetAccess");
    *(void **)&ibx_virtual_driver.export = ibx_cuda_symbol("cuMemExportToShareableHandle");
    *(void **)&ibx_virtual_driver.import = ibx_cuda_symbol("cuMemImportFromShareableHandle");
    driver_has_all =
        ibx_virtual_driver.granularity && ibx_virtual_driver.reserve && ibx_virtual_driver.free &&
        ibx_virtual_driver.create && ibx_virtual_driver.release && ibx_virtual_driver.map &&
        ibx_virtual_driver.unmap && ibx_virtual_driver.set_access && ibx_virtual_driver.get_access;
}

bool ibx_virtual_is_known(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look_up);
    return driver_has_all;
}

int ibx_virtual_enter(void)
{
    pthread_mutex_lock(&lock);
    return ibx_cuda_capture_relax(ibx_cuda_load(NULL));
}

void ibx_virtual_leave(int mode)
{
    ibx_cuda_capture_restore(ibx_cuda_load(NULL), mode);
    pthread_mutex_unlock(&lock);
}

static struct ibx_mapped_properties of_device(int device)
{
    return (struct ibx_mapped_properties){.type = IBX_MAPPED_PINNED,
                                          .at = {IBX_MAPPED_OF_DEVICE, device}};
}

/* Of memory that other processes of this back end may import, if there are any, and it can be. */
static struct ibx_mapped_properties of_new(const struct gpu_session *x, int device)
{
    struct ibx_mapped_properties p = of_device(device);
    int can = 0;
    if (ibx_shared_handles_any() && ibx_virtual_driver.export &&
        !x->cuda->device_get_attribute(&can, EXPORTABLE, device) && can)
        p.handles = IBX_MAPPED_POSIX_FILE;
    return p;
}

int ibx_virtual_granularity(const struct gpu_session *x, int device, int option, size_t *n)
{
    const struct ibx_mapped_properties properties = of_device(device);
    int supported = 0;
    const int rc = x->cuda->device_get_attribute(&supported, SUPPORTED, device);
    return rc          ? rc
           : supported ? ibx_virtual_driver.granularity(n, &properties, option)
                       : CUDA_NOT_SUPPORTED;
}

/* ------------------------------------------------------------------------------- addresses */

/* Locked. The reserved addresses that `at` is in, whoever has reserved them. */
static struct addresses *around(uint64_t at)
{
    return ibx_ranges_find(reserved_tree, at, at);
}

/* Locked. The reserved addresses with all of these n bytes, if they are the client's; NULL: there
 * are none. */
static struct addresses *own(struct gpu_session *x, uint64_t at, uint64_t n)
{
    struct addresses *a = n ? around(at) : NULL;
    return a && n <= a->n - (at - a->range.begin) && a->tenant == x->isolation.tenant &&
                   a->client == ibx_clients_number(x)
               ? a
               : NULL;
}

bool ibx_virtual_holds(uint64_t address)
{
    if (!atomic_load(&reservations))
        return false;
    pthread_mutex_lock(&lock);
    const bool holds = around(address);
    pthread_mutex_unlock(&lock);
    return holds;
}

bool ibx_virtual_lacks(uint64_t address, uint64_t n)
{
    if (!atomic_load(&reservations))
        return false;
    pthread_mutex_lock(&lock);
    const struct addresses *a = around(address);
    const bool lacks = a && n && !ibx_cover_has(a->cover, address, ibx_range_last(address, n));
    pthread_mutex_unlock(&lock);
    return lacks;
}

static struct ibx_quota *entries_of(struct ibx_tenant *tenant)
{
    return ibx_tenant_quota(tenant, IBX_HOLD_ALLOCATIONS);
}

static bool count_addresses(const struct addresses *a)
{
    struct ibx_quota *bytes = ibx_tenant_quota(a->tenant, IBX_HOLD_ADDRESSES);
    if (!ibx_quota_take(bytes, a->n))
        return false;
    if (ibx_quota_take(entries_of(a->tenant), 1))
        return true;
    ibx_quota_give(bytes, a->n);
    return false;
}

static void count_addresses_no_more(const struct addresses *a)
{
    ibx_quota_give(ibx_tenant_quota(a->tenant, IBX_HOLD_ADDRESSES), a->n);
    ibx_quota_give(entries_of(a->tenant), 1);
}

/* Locked. */
static bool enter_addresses(struct addresses *a)
{
    if (!ibx_ranges_add(&reserved_tree, &a->range))
        return false;
    a->at = &reserved;
    a->next = reserved;
    if (a->next)
        a->next->at = &a->next;
    reserved = a;
    atomic_fetch_add(&reservations, 1);
    return true;
}

/* Locked. Gives back addresses that have no mappings. */
static void give_back(struct addresses *a)
{
    ibx_ranges_remove(&reserved_tree, &a->range);
    *a->at = a->next;
    if (a->next)
        a->next->at = a->at;
    ibx_virtual_driver.free(a->range.begin, a->n);
    count_addresses_no_more(a);
    atomic_fetch_sub(&reservations, 1);
    free(a);
}

/* Locked. Reserves addresses, and notes them. Returns the driver's result. */
static int reserve_there(struct gpu_session *x, struct addresses *a, size_t alignment)
{
    void *context = NULL;
    int rc = x->cuda->ctx_get_current(&context);
    if (!rc)
        rc = ibx_virtual_driver.reserve(&a->range.begin, a->n, alignment, 0, 0);
    if (rc)
        return rc;
    a->range.last = ibx_range_last(a->range.begin, a->n);
    a->context = context;
    if (enter_addresses(a))
        return 0;
    ibx_virtual_driver.free(a->range.begin, a->n);
    return CUDA_MEMORY_ALLOCATION;
}

/* Locked. NULL: *rc is the error; CUDA_MEMORY_ALLOCATION also if the tenant has too many. */
static struct addresses *reserve_some(struct gpu_session *x, size_t n, size_t alignment, int *rc)
{
    struct addresses *a = malloc(sizeof(*a));
    *rc = CUDA_MEMORY_ALLOCATION;
    if (!a)
        return NULL;
    *a = (struct addresses){.n = n, .tenant = x->isolation.tenant, .client = ibx_clients_number(x)};
    if (count_addresses(a)) {
        *rc = reserve_there(x, a, alignment);
        if (!*rc)
            return a;
        count_addresses_no_more(a);
    }
    free(a);
    return NULL;
}

int ibx_virtual_reserve(struct gpu_session *x, size_t n, size_t alignment, uint64_t *begin,
                        const void **context)
{
    int rc;
    const int mode = ibx_virtual_enter();
    const struct addresses *a = reserve_some(x, n, alignment, &rc);
    if (a) {
        *begin = a->range.begin;
        *context = a->context;
    }
    ibx_virtual_leave(mode);
    return rc;
}

/* Locked. Whether these are all of the reserved addresses, and nothing is mapped there. */
static bool is_empty(const struct addresses *a, uint64_t begin, uint64_t n)
{
    return a->range.begin == begin && a->n == n && !a->mappings;
}

bool ibx_virtual_is_empty(struct gpu_session *x, uint64_t begin, uint64_t n)
{
    const int mode = ibx_virtual_enter();
    const struct addresses *a = own(x, begin, n);
    const bool is = a && is_empty(a, begin, n);
    ibx_virtual_leave(mode);
    return is;
}

/* ---------------------------------------------------------------------------------- memory */

/* Locked. Frees memory if it is neither named nor mapped any more. */
static void give_back_memory(struct memory *m)
{
    if (m->named || m->mappings)
        return;
    ibx_ranges_remove(&memory_tree, &m->number);
    *m->at = m->next;
    if (m->next)
        m->next->at = m->at;
    if (!--m->is->users) {
        ibx_quota_give(ibx_tenant_quota(m->tenant, IBX_HOLD_DEVICE), m->is->charge);
        free(m->is);
    }
    ibx_quota_give(entries_of(m->tenant), 1);
    free(m);
}

/* Locked. */
struct memory *ibx_virtual_find(uint64_t number)
{
    return ibx_ranges_find(memory_tree, number, number);
}

/* Locked. */
static void name_no_more(struct memory *m)
{
    if (!m->named)
        return;
    if (!--m->is->names)
        ibx_virtual_driver.release(m->is->handle);
    m->named = false;
    give_back_memory(m);
}

void ibx_virtual_end_memory(uint64_t number)
{
    const int mode = ibx_virtual_enter();
    struct memory *m = ibx_virtual_find(number);
    if (m)
        name_no_more(m);
    ibx_virtual_leave(mode);
}

/* Clears the memory at temporary addresses, in the current context. */
static int clear_here(struct gpu_session *x, const struct backing *b)
{
    const struct ibx_mapped_access access = {{IBX_MAPPED_OF_DEVICE, b->device}, READ_WRITE};
    uint64_t at = 0;
    int rc = ibx_virtual_driver.reserve(&at, b->n, 0, 0, 0);
    if (rc)
        return rc;
    rc = ibx_virtual_driver.map(at, b->n, 0, b->handle, 0);
    if (!rc) {
        rc = ibx_virtual_driver.set_access(at, b->n, &access, 1);
        if (!rc)
            rc = ibx_clear_new(x, at, b->n);
        ibx_virtual_driver.unmap(at, b->n);
    }
    ibx_virtual_driver.free(at, b->n);
    return rc;
}

/* Clears the memory in its own device's context, since other devices may not reach it. */
static int clear(struct gpu_session *x, const struct backing *b)
{
    void *context = NULL, *popped = NULL;
    int rc = x->cuda->device_primary_ctx_retain
                 ? x->cuda->device_primary_ctx_retain(&context, b->device)
                 : CUDA_NOT_SUPPORTED;
    if (rc)
        return rc;
    rc = x->cuda->ctx_push_current(context);
    if (!rc) {
        rc = clear_here(x, b);
        x->cuda->ctx_pop_current(&popped);
    }
    x->cuda->device_primary_ctx_release(b->device);
    return rc;
}

bool ibx_virtual_count(struct gpu_session *x, struct backing *b)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    struct ibx_quota *bytes = ibx_tenant_quota(tenant, IBX_HOLD_DEVICE);
    if (!ibx_quota_take(entries_of(tenant), 1))
        return false;
    b->charge = x->isolation.limited ? b->n : 0;
    while (!ibx_quota_take(bytes, b->charge)) {
        if (!ibx_client_ends_wait()) {
            ibx_quota_give(entries_of(tenant), 1);
            return false;
        }
    }
    return true;
}

void ibx_virtual_count_no_more(const struct gpu_session *x, const struct backing *b)
{
    struct ibx_tenant *tenant = x->isolation.tenant;
    ibx_quota_give(ibx_tenant_quota(tenant, IBX_HOLD_DEVICE), b->charge);
    ibx_quota_give(entries_of(tenant), 1);
}

/* Makes the memory in CUDA, and clears it. */
static int make(struct gpu_session *x, struct backing *b)
{
    const struct ibx_mapped_properties properties = of_new(x, b->device);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    int rc = ibx_virtual_driver.create(&b->handle, b->n, &properties, 0);
    while (rc == CUDA_MEMORY_ALLOCATION && ibx_client_ends_wait())
        rc = ibx_virtual_driver.create(&b->handle, b->n, &properties, 0);
    if (!rc && ibx_clients_were_several()) {
        rc = clear(x, b);
        if (rc)
            ibx_virtual_driver.release(b->handle);
    }
    ibx_cuda_capture_restore(x->cuda, mode);
    return rc;
}

bool ibx_virtual_enter_memory(struct memory *m)
{
    m->number.begin = m->number.last = ++numbers;
    if (!ibx_ranges_add(&memory_tree, &m->number))
        return false;
    m->is->names++;
    m->is->users++;
    m->named = true;
    m->at = &memories;
    m->next = memories;
    if (m->next)
        m->next->at = &m->next;
    memories = m;
    return true;
}

struct memory *ibx_virtual_new_memory(struct gpu_session *x, int *rc)
{
    void *context = NULL;
    struct memory *m = malloc(sizeof(*m));
    *rc = m ? x->cuda->ctx_get_current(&context) : CUDA_MEMORY_ALLOCATION;
    if (*rc) {
        free(m);
        return NULL;
    }
    *m = (struct memory){.tenant = x->isolation.tenant, .context = context};
    return m;
}

static int create(struct gpu_session *x, struct memory *m)
{
    if (!ibx_virtual_count(x, m->is))
        return CUDA_MEMORY_ALLOCATION;
    int rc = make(x, m->is);
    if (!rc) {
        const int mode = ibx_virtual_enter();
        rc = ibx_virtual_enter_memory(m) ? 0 : CUDA_MEMORY_ALLOCATION;
        if (rc)
            ibx_virtual_driver.release(m->is->handle);
        ibx_virtual_leave(mode);
    }
    if (rc)
        ibx_virtual_count_no_more(x, m->is);
    return rc;
}

int ibx_virtual_create(struct gpu_session *x, size_t n, int device, uint64_t *number)
{
    int rc;
    struct backing *is = malloc(sizeof(*is));
    struct memory *m = ibx_virtual_new_memory(x, &rc);
    if (m && is) {
        *is = (struct backing){.n = n, .device = device};
        m->is = is;
        rc = create(x, m);
    } else if (m) {
        rc = CUDA_MEMORY_ALLOCATION;
    }
    if (rc) {
        free(m);
        free(is);
        return rc;
    }
    *number = m->number.begin;
    return 0;
}

/* -------------------------------------------------------------------------------- mappings */

/* Locked. A mapping in any of n bytes; NULL: there is none. */
static struct mapping *touched(const struct addresses *a, uint64_t at, uint64_t n)
{
    return ibx_ranges_find(a->mappings, at, at + n - 1);
}

/* Locked. Whether no mapping lies across an end of n bytes. */
static bool ends_are_free(const struct addresses *a, uint64_t at, uint64_t n)
{
    const struct mapping *first = touched(a, at, 1), *last = touched(a, at + n - 1, 1);
    return (!first || first->range.begin == at) && (!last || last->range.last == at + n - 1);
}

/* Locked. Whether n bytes are whole mappings, without gaps. */
static bool are_whole(const struct addresses *a, uint64_t at, uint64_t n)
{
    return ends_are_free(a, at, n) && ibx_cover_has(a->cover, at, at + n - 1);
}

/* Locked. False: no memory. */
static bool enter_mapping(struct addresses *a, struct mapping *m)
{
    if (!ibx_ranges_add(&a->mappings, &m->range))
        return false;
    if (ibx_cover_add(&a->cover, m->range.begin, m->range.last)) {
        m->of->mappings++;
        return true;
    }
    ibx_ranges_remove(&a->mappings, &m->range);
    return false;
}

/* Locked. Maps all of one piece of memory: CUDA maps no parts either. */
static int map_there(struct addresses *a, uint64_t at, struct memory *of)
{
    if (touched(a, at, of->is->n))
        return CUDA_INVALID_VALUE;
    struct mapping *m = malloc(sizeof(*m));
    if (!m || !ibx_quota_take(entries_of(a->tenant), 1)) {
        free(m);
        return CUDA_MEMORY_ALLOCATION;
    }
    *m = (struct mapping){{at, at + of->is->n - 1}, of};
    int rc = ibx_virtual_driver.map(at, of->is->n, 0, of->is->handle, 0);
    if (!rc && !enter_mapping(a, m)) {
        ibx_virtual_driver.unmap(at, of->is->n);
        rc = CUDA_MEMORY_ALLOCATION;
    }
    if (rc) {
        ibx_quota_give(entries_of(a->tenant), 1);
        free(m);
    }
    return rc;
}

int ibx_virtual_map(struct gpu_session *x, uint64_t at, uint64_t n, uint64_t number)
{
    const int mode = ibx_virtual_enter();
    struct memory *of = ibx_virtual_find(number);
    struct addresses *a = own(x, at, n);
    const int rc = !of || !of->named || !a ? CUDA_INVALID_VALUE
                   : of->is->n != n        ? CUDA_NOT_SUPPORTED
                                           : map_there(a, at, of);
    ibx_virtual_leave(mode);
    return rc;
}

/* Locked. */
static void drop(struct addresses *a, struct mapping *m)
{
    ibx_ranges_remove(&a->mappings, &m->range);
    ibx_cover_remove(&a->cover, m->range.begin, m->range.last);
    m->of->mappings--;
    give_back_memory(m->of);
    ibx_quota_give(entries_of(a->tenant), 1);
    free(m);
}

int ibx_virtual_unmap(struct gpu_session *x, uint64_t at, uint64_t n)
{
    const int mode = ibx_virtual_enter();
    struct addresses *a = own(x, at, n);
    const int rc =
        a && ends_are_free(a, at, n) ? ibx_virtual_driver.unmap(at, n) : CUDA_INVALID_VALUE;
    for (struct mapping *m; !rc && (m = touched(a, at, n));)
        drop(a, m);
    ibx_virtual_leave(mode);
    return rc;
}

int ibx_virtual_set_access(struct gpu_session *x, uint64_t at, uint64_t n, int device,
                           unsigned flags)
{
    const struct ibx_mapped_access access = {{IBX_MAPPED_OF_DEVICE, device}, flags};
    const int mode = ibx_virtual_enter();
    const struct addresses *a = own(x, at, n);
    const int rc = a && are_whole(a, at, n) ? ibx_virtual_driver.set_access(at, n, &access, 1)
                                            : CUDA_INVALID_VALUE;
    ibx_virtual_leave(mode);
    return rc;
}

int ibx_virtual_get_access(struct gpu_session *x, uint64_t at, int device,
                           unsigned long long *flags)
{
    const struct ibx_mapped_location location = {IBX_MAPPED_OF_DEVICE, device};
    const int mode = ibx_virtual_enter();
    const struct addresses *a = own(x, at, 1);
    const int rc = a && touched(a, at, 1) ? ibx_virtual_driver.get_access(flags, &location, at)
                                          : CUDA_INVALID_VALUE;
    ibx_virtual_leave(mode);
    return rc;
}

/* ---------------------------------------------------------------------------- it is given back */

/* Locked. Gives back the addresses with their mappings. */
static void end(struct addresses *a)
{
    for (struct mapping *m; (m = touched(a, a->range.begin, a->n));) {
        ibx_virtual_driver.unmap(m->range.begin, m->of->is->n);
        drop(a, m);
    }
    give_back(a);
}

bool ibx_virtual_end_addresses(uint64_t begin)
{
    if (!atomic_load(&reservations))
        return false;
    const int mode = ibx_virtual_enter();
    struct addresses *a = around(begin);
    const bool is = a && a->range.begin == begin;
    if (is)
        end(a);
    ibx_virtual_leave(mode);
    return is;
}

bool ibx_virtual_free(struct gpu_session *x, uint64_t begin, uint64_t n)
{
    const int mode = ibx_virtual_enter();
    struct addresses *a = own(x, begin, n);
    const bool is = a && is_empty(a, begin, n);
    if (is)
        give_back(a);
    ibx_virtual_leave(mode);
    return is;
}

/* The handles of these go with the context as well (handles.c). */
void ibx_virtual_forget(const void *context)
{
    const int mode = ibx_virtual_enter();
    for (struct memory *m = memories, *next; m; m = next) {
        next = m->next;
        if (!context || m->context == context)
            name_no_more(m);
    }
    for (struct addresses *a = reserved, *next; a; a = next) {
        next = a->next;
        if (!context || a->context == context)
            end(a);
    }
    ibx_virtual_leave(mode);
}
