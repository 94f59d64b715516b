/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * cudaMallocManaged, cudaHostAlloc for memory that the device uses as well (cudaHostAllocMapped),
 * and queries of such memory (managed.h). It is device memory of cudaMalloc, and is accounted,
 * checked and freed as such. This process maps pages at the same address; if something is mapped
 * there already, other device memory is allocated.
 *
 * All other calls see it as device memory (device_memory.c).
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/memory/managed_pages.h"

#include "common/fork_lock.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NON_BLOCKING  1u /* cudaStreamNonBlocking */
#define ATTACH_GLOBAL 1u /* flags of cudaMallocManaged, cudaStreamAttachMemAsync */
#define ATTACH_HOST   2u
#define ATTACH_SINGLE 4u

#define ALLOC_MAPPED 2u /* flags of cudaHostAlloc */
#define ALLOC_FLAGS  7u

/* Lowest address for mappings, whatever address a back end returns: below it null pointers, and
 * members at an offset from one, must fault. Linux enforces this for everybody except root. */
#define LOWEST (64u << 10)

#define TRIES       8u          /* how many addresses are tried */
#define BLOCK_LEAST (64u << 10) /* bytes */
#define BLOCKS_MOST 32768u      /* each may become a mapping; a process may have 65530 */

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ----------------------------------------------------------------------------- making it */

static void unmap(struct managed *m)
{
    if (m->begin)
        munmap((void *)m->begin, m->n);
    if (m->other)
        munmap(m->other, m->n);
}

/* MAP_NORESERVE, so that there may be more managed memory than the host has. With
 * vm.overcommit_memory 2 Linux ignores that, and accounts for all of it at once, or refuses. A
 * memory file would be accounted page by page, when pages are touched, and raise SIGBUS at the
 * limit. */
static void *map_at(uintptr_t wanted, size_t n)
{
    const int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *there = mmap((void *)wanted, n, PROT_READ, flags, -1, 0);
    if (there == MAP_FAILED || there == (void *)wanted)
        return there;
    munmap(there, n); /* a kernel before 4.17 ignores MAP_FIXED_NOREPLACE */
    errno = EEXIST;
    return MAP_FAILED;
}

/* A second mapping of these pages, which is writable. */
static void *map_again(void *there, size_t n)
{
    void *other = mremap(there, 0, n, MREMAP_MAYMOVE);
    if (other == MAP_FAILED || !mprotect(other, n, PROT_READ | PROT_WRITE))
        return other;
    const int why = errno;
    munmap(other, n);
    errno = why;
    return MAP_FAILED;
}

int ibx_managed_map(struct managed *m)
{
    if (m->begin < LOWEST)
        return -EINVAL;
    void *there = map_at(m->begin, m->n);
    if (there == MAP_FAILED)
        return -errno;
    void *other = map_again(there, m->n);
    if (other == MAP_FAILED) {
        const int why = errno;
        munmap(there, m->n);
        return -why;
    }
    madvise(there, m->n, MADV_DONTFORK);
    madvise(other, m->n, MADV_DONTFORK);
    m->other = other;
    return 0;
}

/* Allocates device memory with m->n bytes from the beginning of a page on. */
static int allocate(struct managed *m)
{
    const size_t page = page_size();
    int rc = cudaMalloc(&m->base, m->n);
    if (!rc && (uintptr_t)m->base % page) {
        cudaFree(m->base);
        rc = cudaMalloc(&m->base, m->n + page);
    }
    m->begin = rc ? 0 : ((uintptr_t)m->base + page - 1) / page * page;
    return rc;
}

static int clear_in(void *stream, const struct managed *m)
{
    const int rc = cudaMemsetAsync((void *)m->begin, 0, m->n, stream);
    return rc ? rc : cudaStreamSynchronize(stream);
}

/* In a stream that comes after nothing. */
static int clear_beside(const struct managed *m)
{
    void *stream = NULL;
    int rc = CALL_NEXT(cudaStreamCreateWithFlags, &stream, NON_BLOCKING);
    if (rc)
        return rc;
    rc = clear_in(stream, m);
    CALL_NEXT(cudaStreamDestroy, stream);
    return rc;
}

/* Clears the device memory: CUDA's managed memory is zero at first, and so are the pages here. It
 * runs in the legacy stream, so not during captures, if nothing can be there that this would wait
 * for: work of this process, or of the parent of a child. */
static int clear(const struct managed *m)
{
    ibx_managed_own_begin();
    const bool rests = ibx_frontend_knows(IBX_FRONTEND_ALL_RESTS, 0, NULL);
    const int rc = rests && !ibx_frontend_is_child() ? clear_in(NULL, m) : clear_beside(m);
    ibx_managed_own_end();
    return rc;
}

static int place(struct managed *m)
{
    void *missed[TRIES];
    unsigned tries = 0;
    int rc, mapped = -EEXIST;
    while (!(rc = allocate(m)) && (mapped = ibx_managed_map(m)) == -EEXIST && tries < TRIES)
        missed[tries++] = m->base;
    if (!rc && mapped) {
        ibx_log(IBX_LOG_WARN,
                "the application gets no %zu bytes of managed memory: it cannot map them at %p, "
                "where the device has them: %s",
                m->asked, (void *)m->begin, strerror(-mapped));
        cudaFree(m->base);
        m->begin = 0;
        rc = CUDA_MEMORY_ALLOCATION;
    }
    while (tries)
        cudaFree(missed[--tries]);
    return rc;
}

static atomic_size_t all_blocks; /* blocks of all managed memory of this process */

/* A child has no managed memory. */
static void in_child(void)
{
    atomic_store(&all_blocks, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* Blocks for a new allocation: a quarter of those that are left. */
static size_t blocks_most(void)
{
    const size_t now = atomic_load(&all_blocks);
    return now + 4 > BLOCKS_MOST ? 1 : (BLOCKS_MOST - now) / 4;
}

void ibx_managed_discard(struct managed *m)
{
    ibx_managed_hints_gone(m->begin, m->n);
    unmap(m);
    ibx_managed_forget_lent(m);
    atomic_fetch_sub(&all_blocks, m->blocks);
    free(m->variables);
    free(m);
}

struct managed *ibx_managed_make(size_t asked, size_t n)
{
    size_t block = BLOCK_LEAST;
    while ((n + block - 1) / block > blocks_most())
        block *= 2;
    const size_t blocks = (n + block - 1) / block;
    struct managed *m = calloc(1, sizeof(*m) + blocks);
    if (!m)
        return NULL;
    *m = (struct managed){.asked = asked, .n = n, .block = block, .blocks = blocks};
    cudaGetDevice(&m->device);
    atomic_fetch_add(&all_blocks, blocks);
    return m;
}

/* During captures the zeros are copied to the device with what the host writes: state PAGES_NEWER.
 */
static struct managed *make(size_t n, enum pages_state *state, int *rc)
{
    const size_t page = page_size();
    struct managed *m =
        n > PTRDIFF_MAX - 2 * page ? NULL : ibx_managed_make(n, (n + page - 1) / page * page);
    *rc = m ? place(m) : CUDA_MEMORY_ALLOCATION;
    void *placed = *rc ? NULL : m->base;
    *state = ibx_frontend_capturing() ? PAGES_NEWER : PAGES_SAME;
    if (placed && *state == PAGES_SAME)
        *rc = clear(m);
    if (!*rc)
        return m;
    if (m)
        ibx_managed_discard(m);
    if (placed)
        cudaFree(placed);
    return NULL;
}

/* What the plugin has been told to ask. Without managed memory it need not tell of each call. */
static enum watch { WATCH_NOTHING, WATCH_JOINS, WATCH_ALL } watches; /* protected by `watching` */
static struct ibx_fork_lock watching = IBX_FORK_LOCK;

static void watch(enum watch wanted)
{
    ibx_fork_lock_take(&watching);
    if (watches <= wanted) {
        watches = wanted;
        ibx_frontend_plugin()->watch(wanted == WATCH_ALL ? &ibx_managed_watch
                                                         : &ibx_managed_joining);
    }
    ibx_fork_lock_release(&watching);
}

bool ibx_managed_begin(void)
{
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    if (!ibx_frontend_plugin() || !ibx_managed_faults_begin())
        return false;
    watch(WATCH_ALL);
    return true;
}

bool ibx_managed_begin_joins(void)
{
    if (!ibx_managed_faults_wait())
        return false;
    watch(WATCH_JOINS);
    return true;
}

static int give(void **address, size_t n, unsigned mapped)
{
    enum pages_state state;
    int rc;
    struct managed *m = make(n, &state, &rc);
    if (!m)
        return ibx_frontend_fail(rc);
    const uintptr_t begin = m->begin;
    m->mapped = mapped;
    ibx_frontend_peers_hold(m->device);
    ibx_managed_add(m, state); /* from now on another thread may free it */
    *address = (void *)begin;
    return CUDA_SUCCESS;
}

int cudaMallocManaged(void **address, size_t n, unsigned flags)
{
    if (!ibx_managed_begin()) {
        if (!ibx_frontend_plugin())
            return CALL_NEXT(cudaMallocManaged, address, n, flags);
        return ibx_frontend_fail(CUDA_MEMORY_ALLOCATION);
    }
    if (address)
        *address = NULL;
    if (!address || (flags != ATTACH_GLOBAL && flags != ATTACH_HOST))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return n ? give(address, n, 0) : CUDA_SUCCESS;
}

bool ibx_frontend_mapped(void **address, size_t n, unsigned flags, int *rc)
{
    if (!ibx_managed_begin())
        return false;
    *rc = give(address, n, flags);
    return true;
}

/* ---------------------------------------------------------------------------- giving it back */

static void *taken(uintptr_t begin, int *rc)
{
    struct managed *m = ibx_managed_take(begin);
    void *base = m ? m->base : NULL;
    *rc = m ? CUDA_SUCCESS : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (m)
        ibx_managed_discard(m); /* before the device memory is freed: another thread may get the
                                   same address then */
    return base;
}

bool ibx_frontend_managed_free(const void *address, void **base, int *rc)
{
    struct managed m;
    if (!ibx_managed_find((uintptr_t)address, &m))
        return false;
    if (m.mapped) {
        *rc = ibx_frontend_fail(CUDA_INVALID_VALUE);
        return true;
    }
    void *is = taken((uintptr_t)address, rc);
    if (is)
        *base = is;
    return true;
}

/* It leaves the list before, as always, but its pages stay until the device memory is free. */
bool ibx_frontend_managed_free_captured(const void *address, int (*free_it)(void *base), int *rc)
{
    struct managed found;
    const bool is =
        ibx_managed_find((uintptr_t)address, &found) && !found.mapped && !found.in_place;
    struct managed *m = is ? ibx_managed_take((uintptr_t)address) : NULL;
    if (!m)
        return false;
    *rc = free_it(m->base);
    if (*rc)
        ibx_managed_put_back(m);
    else
        ibx_managed_discard(m);
    return true;
}

bool ibx_frontend_mapped_free(void *address, int *rc)
{
    struct managed m;
    if (!ibx_managed_find((uintptr_t)address, &m) || m.in_place)
        return false; /* host_memory.c frees it */
    void *base = m.mapped ? taken((uintptr_t)address, rc) : NULL;
    *rc = base ? cudaFree(base) : m.mapped ? *rc : ibx_frontend_fail(CUDA_INVALID_VALUE);
    return true;
}

void ibx_frontend_managed_reset(void)
{
    for (struct managed *m; (m = ibx_managed_take(0));)
        ibx_managed_discard(m);
}

/* ------------------------------------------------------------------------- what it is */

enum { TYPE_UNREGISTERED, TYPE_HOST, TYPE_DEVICE, TYPE_MANAGED }; /* cudaMemoryType */
#define NO_DEVICE (-2)                                            /* cudaInvalidDeviceId */

/* Nothing is mapped here at an address of freed device memory either, so the back end is asked. If
 * it cannot tell, it counts as device memory. */
static bool is_device_memory(const void *address, int *device)
{
    struct extension_request e;
    uint8_t bytes[8] = {0};
    struct ibx_reader r = ibx_reader_of(bytes, sizeof(bytes));
    int code;
    *device = ibx_frontend_device_of(address);
    if (!address || !ibx_frontend_is_device(address) || ibx_frontend_given_out(address))
        return address && ibx_frontend_is_device(address);
    ibx_frontend_request_begin(&e, IBX_EXT_POINTER, "cudaPointerGetAttributes");
    ibx_put_u64(&e.body, (uintptr_t)address);
    if (!ibx_frontend_request_try(&e, bytes, sizeof(bytes), &code) || code)
        return true;
    const bool is = ibx_get_u32(&r);
    *device = (int)ibx_get_u32(&r);
    return is;
}

/* The address by which the current device's kernels reach the memory; NULL: they do not. Which
 * devices reach memory of a pool, and memory that is mapped, its own access says. */
static void *reached_at(void *address, int device)
{
    struct range range;
    const bool plain = ibx_frontend_allocation(address, &range) && !range.pooled && !range.reserved;
    return plain && !ibx_frontend_peers_reach(device) ? NULL : address;
}

/* GVirtuS's back end does not have this call. */
int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address)
{
    struct managed m;
    unsigned flags;
    void *at = (void *)(uintptr_t)address;
    int device;
    if (!ibx_frontend_plugin())
        ibx_frontend_connect();
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaPointerGetAttributes, attributes, address);
    if (!attributes)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_managed_find((uintptr_t)address, &m))
        *attributes =
            (struct pointer_attributes){m.mapped ? TYPE_HOST : TYPE_MANAGED, m.device, at, at};
    else if (ibx_frontend_host_known(address, &device, &flags))
        *attributes = (struct pointer_attributes){
            TYPE_HOST, device, ibx_frontend_host_can_reach(address) ? at : NULL, at};
    else if (is_device_memory(address, &device))
        *attributes =
            (struct pointer_attributes){TYPE_DEVICE, device, reached_at(at, device), NULL};
    else
        *attributes = (struct pointer_attributes){TYPE_UNREGISTERED, NO_DEVICE, NULL, at};
    return CUDA_SUCCESS;
}

int cudaHostGetDevicePointer(void **on_device, void *address, unsigned flags)
{
    struct managed m;
    int device;
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaHostGetDevicePointer, on_device, address, flags);
    if (on_device)
        *on_device = NULL;
    if (!on_device || flags)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const bool mapped = ibx_managed_find((uintptr_t)address, &m) && m.mapped;
    if (!mapped && !ibx_frontend_host_known(address, &device, &flags))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    const int rc = mapped ? CUDA_SUCCESS : ibx_frontend_host_reach(address);
    if (rc)
        return ibx_frontend_fail(rc);
    *on_device = address;
    return CUDA_SUCCESS;
}

/* All page-locked memory has cudaHostAllocMapped. */
int cudaHostGetFlags(unsigned *flags, void *address)
{
    struct managed m;
    int device;
    if (!ibx_frontend_plugin())
        return CALL_NEXT(cudaHostGetFlags, flags, address);
    if (flags && ibx_managed_find((uintptr_t)address, &m) && m.mapped)
        *flags = m.mapped;
    else if (!flags || !ibx_frontend_host_known(address, &device, flags))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    *flags = (*flags & ALLOC_FLAGS) | ALLOC_MAPPED;
    return CUDA_SUCCESS;
}

/* The number of the attribute (cudaDeviceAttr), its value, and its offsets in cudaDeviceProp: from
 * CUDA 13 on, and of CUDA 12. */
static const struct {
    int attribute, value;
    size_t at, at_12;
} facts[] = {
    {19, 1, 392, 400},  /* canMapHostMemory */
    {83, 1, 636, 652},  /* managedMemory */
    {88, 0, 652, 672},  /* pageableMemoryAccess */
    {89, 0, 656, 676},  /* concurrentManagedAccess */
    {100, 0, 680, 704}, /* pageableMemoryAccessUsesHostPageTables */
    {101, 0, 684, 708}, /* directManagedMemAccessFromHost */
};
#define FACTS            (sizeof(facts) / sizeof(facts[0]))
#define PROPERTIES_SINCE 13

int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    const int rc = value ? ASK_NEXT(cudaDeviceGetAttribute, value, attribute, device)
                         : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < FACTS && !rc && ibx_frontend_plugin(); i++) {
        if (facts[i].attribute == attribute)
            *value = facts[i].value;
    }
    return rc;
}

int cudaGetDeviceProperties(void *properties, int device)
{
    const int rc = properties ? ASK_NEXT(cudaGetDeviceProperties, properties, device)
                              : ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (rc || !ibx_frontend_plugin() || ibx_frontend_cuda_version() < PROPERTIES_SINCE)
        return rc;
    for (size_t i = 0; i < FACTS; i++)
        memcpy((uint8_t *)properties + facts[i].at, &facts[i].value, sizeof(int));
    return rc;
}

/* What CUDA 12's header calls cudaGetDeviceProperties. */
int cudaGetDeviceProperties_v2(void *properties, int device)
{
    const int rc = properties ? ASK_NEXT(cudaGetDeviceProperties_v2, properties, device)
                              : ibx_frontend_fail(CUDA_INVALID_VALUE);
    for (size_t i = 0; i < FACTS && !rc && ibx_frontend_plugin(); i++)
        memcpy((uint8_t *)properties + facts[i].at_12, &facts[i].value, sizeof(int));
    return rc;
}

/* --------------------------------------------------------------------------------- hints */

/* CUDA would not wait for work in other streams then; here the device is waited for. Memory cannot
 * be attached to the legacy stream alone. In other streams the call is no work (H200). */
int cudaStreamAttachMemAsync(void *stream, void *address, size_t n, unsigned flags)
{
    const bool single = flags == ATTACH_SINGLE && (uintptr_t)stream > 1;
    struct managed m;
    int rc;
    if (ibx_frontend_capture_refuses(stream, &rc) || ibx_frontend_legacy_refuses(stream, &rc) ||
        (rc = ibx_frontend_unsafe()))
        return rc;
    if (flags != ATTACH_GLOBAL && flags != ATTACH_HOST && !single)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    if (ibx_managed_find((uintptr_t)address, &m) && !m.variables &&
        /* CUDA accepts only a whole allocation, which 0 bytes mean, too. */
        ((uintptr_t)address != m.begin + m.before || (n && n != m.asked)))
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    rc = ibx_managed_check(address, n ? n : 1);
    return rc ? rc : ibx_frontend_order_legacy(stream);
}
