/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "gpudirect/gpu_registrations.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#define FREED_MS 50u /* for so long who frees memory waits for others' registrations of it */

/* Caches that have registrations, which other threads may look at under the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static struct ibx_gpu_registrations *all;
static atomic_uint caches; /* how many there are */

/* Locked. */
static void show(struct ibx_gpu_registrations *cache)
{
    if (cache->registered++)
        return;
    cache->next = all;
    all = cache;
    atomic_fetch_add(&caches, 1);
}

/* Locked. */
static void hide(struct ibx_gpu_registrations *cache)
{
    struct ibx_gpu_registrations **at = &all;
    if (--cache->registered)
        return;
    while (*at != cache)
        at = &(*at)->next;
    *at = cache->next;
    atomic_fetch_sub(&caches, 1);
}

static void set(struct ibx_gpu_registrations *cache, struct ibx_gpu_registration *entry,
                const struct ibx_gpu_registration *made)
{
    pthread_mutex_lock(&lock);
    if (entry->handle)
        hide(cache);
    if (made->handle)
        show(cache);
    *entry = *made;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
}

static void leave(struct ibx_gpu_registrations *cache, struct ibx_gpu_registration *entry)
{
    if (entry->handle)
        cache->registrar.leave(cache->registrar.context, entry->handle);
    set(cache, entry, &(struct ibx_gpu_registration){0});
}

static bool holds(const struct ibx_gpu_registration *entry, uint64_t device)
{
    return entry->base && (!device || device - entry->base < entry->size);
}

void ibx_gpu_registrations_drop(struct ibx_gpu_registrations *cache, uint64_t device)
{
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS; i++) {
        if (holds(&cache->entries[i], device))
            leave(cache, &cache->entries[i]);
    }
    if (!cache->registered) /* nobody else looks at it */
        cache->paused = false;
}

/* --------------------------------------------------------- memory that another thread frees */

/* Locked. Whether the cache's thread is to end registrations of that memory, and may do so soon. */
static bool tell(struct ibx_gpu_registrations *cache, uint64_t device)
{
    bool any = false, news = false;
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS; i++) {
        struct ibx_gpu_registration *entry = &cache->entries[i];
        if (!entry->handle || !holds(entry, device))
            continue;
        any = true;
        news = news || !entry->freed;
        entry->freed = true;
    }
    if (news)
        atomic_store(&cache->untidy, true);
    if (news && cache->registrar.wake && !cache->paused)
        cache->registrar.wake(cache->registrar.context);
    return any && !cache->paused;
}

void ibx_gpu_registrations_freed(struct ibx_gpu_registrations *cache, uint64_t device)
{
    if (cache)
        ibx_gpu_registrations_drop(cache, device);
    if (!atomic_load(&caches))
        return;
    const uint64_t deadline = ibx_deadline_in_ms(FREED_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    bool any = true;
    pthread_mutex_lock(&lock);
    for (int rc = 0; any && !rc;) {
        any = false;
        for (struct ibx_gpu_registrations *other = all; other; other = other->next)
            any = (other != cache && tell(other, device)) || any;
        if (any)
            rc = pthread_cond_clockwait(&ended, &lock, CLOCK_MONOTONIC, &until);
    }
    pthread_mutex_unlock(&lock);
}

bool ibx_gpu_registrations_tidy(struct ibx_gpu_registrations *cache)
{
    uint64_t freed = 0; /* a bit for each entry */
    if (!atomic_load(&cache->untidy))
        return false;
    pthread_mutex_lock(&lock);
    atomic_store(&cache->untidy, false);
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS; i++)
        freed |= (uint64_t)cache->entries[i].freed << i;
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS; i++) {
        if (freed >> i & 1)
            leave(cache, &cache->entries[i]);
    }
    return freed != 0;
}

void ibx_gpu_registrations_pause(struct ibx_gpu_registrations *cache)
{
    pthread_mutex_lock(&lock);
    cache->paused = true;
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------ registration */

/* Only whole pages can be exported; a small allocation shares its page with others. */
static struct ibx_span pages_of(uint64_t base, size_t size, int device)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t from = base & ~(page - 1), to = (base + size + page - 1) & ~(page - 1);
    return (struct ibx_span){
        .address = (void *)(uintptr_t)from,
        .length = (size_t)(to - from),
        .kind = IBX_MEMORY_CUDA,
        .dmabuf_fd = -1,
        .device = device,
    };
}

static int enter_dmabuf(struct ibx_gpu_registrations *cache, const struct ibx_cuda *cuda,
                        struct ibx_span span, void **handle, struct ibx_error *err)
{
    int can = 0, rc = 0;
    if (!cuda->mem_get_handle_for_address_range)
        return ibx_error_set(err, -ENOSYS, "no dma-buf: the driver is older than CUDA 11.7");
    if (cuda->device_get_attribute(&can, IBX_CUDA_DEVICE_DMA_BUF, span.device) || !can)
        return ibx_error_set(err, -ENOSYS,
                             "no dma-buf: GPU %d has none (open kernel modules are needed)",
                             span.device);
    for (int pcie = 1; pcie >= 0; pcie--) {
        rc = cuda->mem_get_handle_for_address_range(&span.dmabuf_fd, (uintptr_t)span.address,
                                                    span.length, IBX_CUDA_RANGE_DMA_BUF_FD,
                                                    pcie ? IBX_CUDA_RANGE_DMA_BUF_PCIE : 0);
        if (rc)
            continue;
        int refused = cache->registrar.enter(cache->registrar.context, &span, handle, err);
        close(span.dmabuf_fd); /* a registration has its own reference */
        if (!refused)
            return 0;
    }
    if (rc)
        return ibx_error_set(err, -EIO, "no dma-buf of %zu bytes of GPU memory: %s", span.length,
                             ibx_cuda_error_name(cuda, rc));
    return -EIO; /* the registrar has set err */
}

/* Sets SYNC_MEMOPS: otherwise a synchronous copy by the driver may return before it has ended, and
 * the fabric would read old data. */
static int enter(struct ibx_gpu_registrations *cache, const struct ibx_cuda *cuda,
                 struct ibx_gpu_registration *entry, int device, struct ibx_error *err)
{
    unsigned one = 1;
    struct ibx_span pages = pages_of(entry->base, entry->size, device);
    int rc = cuda->pointer_set_attribute(&one, IBX_CUDA_POINTER_SYNC_MEMOPS, entry->base);
    if (rc)
        return ibx_error_set(err, -EIO, "GPU memory cannot be made synchronous: %s",
                             ibx_cuda_error_name(cuda, rc));
    rc = cache->registrar.by_dmabuf
             ? enter_dmabuf(cache, cuda, pages, &entry->handle, err)
             : ibx_error_set(err, -EOPNOTSUPP, "this fabric's device registers no dma-buf");
    struct ibx_error second = {0};
    if (rc && cache->registrar.by_pointer) {
        rc = cache->registrar.enter(cache->registrar.context, &pages, &entry->handle, &second);
        if (rc)
            *err = second;
    }
    return rc;
}

/* A free entry, or else the least recently used one. */
static struct ibx_gpu_registration *entry_for_one(struct ibx_gpu_registrations *cache)
{
    struct ibx_gpu_registration *oldest = &cache->entries[0];
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS; i++) {
        struct ibx_gpu_registration *entry = &cache->entries[i];
        if (!entry->base)
            return entry;
        if (entry->used < oldest->used)
            oldest = entry;
    }
    leave(cache, oldest);
    return oldest;
}

int ibx_gpu_registration_get(struct ibx_gpu_registrations *cache, const struct ibx_cuda *cuda,
                             uint64_t device, size_t n, void **handle, struct ibx_error *err)
{
    static const int names[] = {IBX_CUDA_POINTER_BUFFER_ID, IBX_CUDA_POINTER_ORDINAL};
    unsigned long long id = 0;
    int ordinal = 0;
    void *values[] = {&id, &ordinal};
    uint64_t base = 0;
    size_t size = 0;
    int rc = cuda->mem_get_address_range(&base, &size, device);
    if (!rc)
        rc = cuda->pointer_get_attributes(2, names, values, device);
    if (rc || !base || device - base > size || n > size - (device - base))
        return ibx_error_set(err, -ERANGE, "%zu bytes of GPU memory are not one allocation's", n);
    ibx_gpu_registrations_tidy(cache);
    struct ibx_gpu_registration *entry = NULL;
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS && !entry; i++) {
        struct ibx_gpu_registration *known = &cache->entries[i];
        if (!known->base || known->base >= base + size || base >= known->base + known->size)
            continue;
        if (known->base == base && known->size == size && known->id == id)
            entry = known;
        else
            leave(cache, known); /* its memory was freed and given out again */
    }
    rc = 0;
    if (!entry) {
        struct ibx_gpu_registration made = {.base = base, .size = size, .id = id};
        entry = entry_for_one(cache);
        rc = enter(cache, cuda, &made, ordinal, err);
        set(cache, entry, &made);
    }
    entry->used = ++cache->clock;
    if (!entry->handle)
        return rc ? rc : -EOPNOTSUPP;
    *handle = entry->handle;
    return 0;
}

/* ------------------------------------------------------------------------ order */

static int attribute(const struct ibx_cuda *cuda, int name)
{
    int device = 0, value = 0;
    bool known =
        !cuda->ctx_get_device(&device) && !cuda->device_get_attribute(&value, name, device);
    return known ? value : 0;
}

bool ibx_gpu_writes_ordered(const struct ibx_cuda *cuda, struct ibx_error *err)
{
    if (attribute(cuda, IBX_CUDA_DEVICE_RDMA_ORDERING) >= IBX_CUDA_ORDERING_OWNER ||
        (cuda->flush_gpu_direct_rdma_writes &&
         attribute(cuda, IBX_CUDA_DEVICE_RDMA_FLUSH) & IBX_CUDA_FLUSH_BY_HOST))
        return true;
    ibx_error_set(err, -EOPNOTSUPP,
                  "what a fabric writes into this GPU's memory can be neither ordered nor flushed");
    return false;
}

int ibx_gpu_writes_flush(const struct ibx_cuda *cuda)
{
    if (attribute(cuda, IBX_CUDA_DEVICE_RDMA_ORDERING) >= IBX_CUDA_ORDERING_OWNER)
        return 0;
    return cuda->flush_gpu_direct_rdma_writes(IBX_CUDA_FLUSH_CURRENT_CTX, IBX_CUDA_ORDERING_OWNER);
}
