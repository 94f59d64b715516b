/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* GPU memory of the simulated driver is registered with a simulated device of a fabric. */
#include "gpudirect/gpu_registrations.h"
#include "tests/fixtures/cuda_unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>

#define BYTES ((size_t)300000)

/* the fabric's device */
static struct device {
    bool refuse_dmabuf, refuse_pointer;
    unsigned entered, left, by_pointer;
    struct ibx_span last;
    uint8_t first; /* the first exported byte */
} nic;

static int enter(void *context, const struct ibx_span *span, void **registration,
                 struct ibx_error *err)
{
    struct device *d = context;
    bool pointer = span->dmabuf_fd < 0;
    assert_int_equal(span->kind, IBX_MEMORY_CUDA);
    assert_int_equal((uintptr_t)span->address % 4096, span->dmabuf_offset % 4096);
    if (pointer ? d->refuse_pointer : d->refuse_dmabuf)
        return ibx_error_set(err, -EOPNOTSUPP, pointer ? "no pointer" : "no such dma-buf");
    d->last = *span;
    if (!pointer) {
        uint8_t *bytes = mmap(NULL, span->length, PROT_READ, MAP_SHARED, span->dmabuf_fd,
                              (off_t)span->dmabuf_offset);
        assert_ptr_not_equal(bytes, MAP_FAILED);
        d->first = bytes[0];
        munmap(bytes, span->length);
    }
    d->by_pointer += pointer;
    d->entered++;
    *registration = malloc(1);
    return 0;
}

static void leave(void *context, void *registration)
{
    struct device *d = context;
    d->left++;
    free(registration);
}

static struct ibx_gpu_registrations cache_of(bool by_dmabuf, bool by_pointer)
{
    nic = (struct device){0};
    return (struct ibx_gpu_registrations){
        .registrar = {by_dmabuf, by_pointer, enter, leave, NULL, &nic}};
}

static int get(struct ibx_gpu_registrations *cache, uint64_t device, size_t n, void **out)
{
    struct ibx_error err = {0};
    return ibx_gpu_registration_get(cache, cuda, device, n, out, &err);
}

/* The whole allocation is registered once, whatever part is requested, and the descriptor is
 * closed. */
static void test_registered_once(void **state)
{
    (void)state;
    struct ibx_gpu_registrations cache = cache_of(true, true);
    uint64_t device;
    void *first = NULL, *again = NULL;
    assert_int_equal(app->mem_alloc(&device, BYTES), 0);
    assert_true(app->poke(device, "Q", 1));
    unsigned long exports = cuda_stats().exports, sync = cuda_stats().sync_memops;
    assert_int_equal(get(&cache, device + 777, 1000, &first), 0);
    assert_int_equal(nic.first, 'Q');
    assert_ptr_equal(nic.last.address, (void *)(uintptr_t)device);
    assert_true(nic.last.length >= BYTES && nic.last.length % 4096 == 0);
    assert_int_equal(nic.last.device, 0);
    assert_int_equal(fcntl(nic.last.dmabuf_fd, F_GETFD), -1);
    assert_int_equal(cuda_stats().sync_memops, sync + 1);
    assert_int_equal(get(&cache, device, BYTES, &again), 0);
    assert_ptr_equal(first, again);
    assert_int_equal(get(&cache, device + 1, BYTES, &again), -ERANGE);
    assert_int_equal(get(&cache, 4096, 1, &again), -ERANGE);
    assert_int_equal(cuda_stats().exports, exports + 1);
    assert_true(nic.entered == 1 && nic.by_pointer == 0);
    ibx_gpu_registrations_drop(&cache, 0);
    assert_int_equal(nic.left, 1);
    app->mem_free(device);
}

/* A dma-buf is mapped by PCIe if the driver supports that; if only the device refuses it, in the
 * other way. */
static void test_pcie_first(void **state)
{
    (void)state;
    uint64_t device;
    void *registration;
    assert_int_equal(app->mem_alloc(&device, BYTES), 0);
    for (int pcie = 0; pcie < 2; pcie++) {
        struct ibx_gpu_registrations cache = cache_of(true, false);
        unsigned long exports = cuda_stats().exports;
        app->attribute(0, pcie);
        assert_int_equal(get(&cache, device, 1, &registration), 0);
        assert_int_equal(cuda_stats().exports, exports + 1);
        ibx_gpu_registrations_drop(&cache, 0);
        nic.refuse_dmabuf = true;
        assert_int_equal(get(&cache, device, 1, &registration), -EIO);
        assert_int_equal(cuda_stats().exports, exports + 2 + (unsigned)pcie);
        ibx_gpu_registrations_drop(&cache, 0);
    }
    app->attribute(0, 0);
    app->mem_free(device);
}

/* Without dma-bufs the address is registered, if the device understands it. A refusal is logged
 * once. */
static void test_second_choice(void **state)
{
    (void)state;
    uint64_t device;
    void *registration;
    struct ibx_error err = {0}, again = {0};
    assert_int_equal(app->mem_alloc(&device, BYTES), 0);
    for (unsigned why = 0; why < 3; why++) {
        struct ibx_gpu_registrations cache = cache_of(why != 0, true);
        app->attribute(IBX_CUDA_DEVICE_DMA_BUF, why != 1);
        nic.refuse_dmabuf = true;
        assert_int_equal(get(&cache, device, BYTES, &registration), 0);
        assert_true(nic.entered == 1 && nic.by_pointer == 1);
        ibx_gpu_registrations_drop(&cache, device + 5);
        assert_int_equal(nic.left, 1);
    }
    app->attribute(IBX_CUDA_DEVICE_DMA_BUF, 0);
    struct ibx_gpu_registrations cache = cache_of(true, false);
    assert_true(ibx_gpu_registration_get(&cache, cuda, device, 1, &registration, &err) < 0);
    assert_non_null(strstr(err.message, "GPU 0 has none"));
    assert_int_equal(ibx_gpu_registration_get(&cache, cuda, device, 1, &registration, &again),
                     -EOPNOTSUPP);
    assert_int_equal(again.code, 0);
    app->attribute(IBX_CUDA_DEVICE_DMA_BUF, 1);
    ibx_gpu_registrations_drop(&cache, 0);
    app->inject("cuPointerSetAttribute", 1, 801, false);
    assert_true(ibx_gpu_registration_get(&cache, cuda, device, 1, &registration, &err) < 0);
    assert_non_null(strstr(err.message, "synchronous"));
    ibx_gpu_registrations_drop(&cache, 0);
    app->inject("cuMemGetHandleForAddressRange", 2, 999, false);
    assert_true(ibx_gpu_registration_get(&cache, cuda, device, 1, &registration, &err) < 0);
    assert_non_null(strstr(err.message, "no dma-buf of"));
    assert_int_equal(nic.entered, 0);
    app->mem_free(device);
}

/* Memory at the same address that is other memory. */
static void test_another_buffer(void **state)
{
    (void)state;
    struct ibx_gpu_registrations cache = cache_of(true, true);
    uint64_t device, next;
    void *registration;
    assert_int_equal(app->mem_alloc(&device, BYTES), 0);
    assert_int_equal(get(&cache, device, 1, &registration), 0);
    cache.entries[0].id++; /* as if another buffer had been there before */
    assert_int_equal(get(&cache, device, 1, &registration), 0);
    assert_true(nic.entered == 2 && nic.left == 1);
    app->mem_free(device);
    assert_int_equal(app->mem_alloc(&next, BYTES), 0);
    assert_int_equal(get(&cache, next, 1, &registration), 0);
    assert_true(nic.entered == 3 && (next != device || nic.left == 2));
    ibx_gpu_registrations_drop(&cache, 0);
    assert_int_equal(nic.left, 3);
    app->mem_free(next);
}

static void test_bounded(void **state)
{
    (void)state;
    struct ibx_gpu_registrations cache = cache_of(true, true);
    uint64_t devices[IBX_GPU_REGISTRATIONS + 3];
    void *registration;
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS + 3; i++) {
        assert_int_equal(app->mem_alloc(&devices[i], 4096), 0);
        assert_int_equal(get(&cache, devices[i], 1, &registration), 0);
        assert_int_equal(get(&cache, devices[0], 1, &registration), 0); /* in use all the time */
    }
    assert_int_equal(nic.entered, IBX_GPU_REGISTRATIONS + 3);
    assert_int_equal(nic.left, 3);
    ibx_gpu_registrations_drop(&cache, devices[0]);
    assert_int_equal(nic.left, 4);
    ibx_gpu_registrations_drop(&cache, 0);
    assert_int_equal(nic.left, nic.entered);
    for (unsigned i = 0; i < IBX_GPU_REGISTRATIONS + 3; i++)
        app->mem_free(devices[i]);
}

/* -------------------------------------------------------------- freed by another thread */

/* The thread of a cache, which sleeps until it is woken. */
static struct owner {
    struct ibx_gpu_registrations cache;
    pthread_t thread;
    sem_t woken;
    bool ends; /* instead of tidying */
} owner;

static void wake(void *context)
{
    assert_ptr_equal(context, &nic);
    sem_post(&owner.woken);
}

static void *own_thread(void *argument)
{
    (void)argument;
    while (!sem_wait(&owner.woken) && !owner.ends)
        ibx_gpu_registrations_tidy(&owner.cache);
    return NULL;
}

static void begin_owner(void)
{
    owner.cache = cache_of(true, true);
    owner.cache.registrar.wake = wake;
    owner.ends = false;
    sem_init(&owner.woken, 0, 0);
    pthread_create(&owner.thread, NULL, own_thread, NULL);
}

static void end_owner(void)
{
    owner.ends = true;
    sem_post(&owner.woken);
    pthread_join(owner.thread, NULL);
}

/* Natively memory that a thread frees can be allocated again at once. It cannot as long as another
 * thread has it registered. */
static void test_freed_by_another_thread(void **state)
{
    (void)state;
    struct ibx_gpu_registrations own = {0};
    uint64_t devices[2];
    void *registration;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(app->mem_alloc(&devices[i], BYTES), 0);
    begin_owner();
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(get(&owner.cache, devices[i], 1, &registration), 0);
    ibx_gpu_registrations_freed(&own, devices[0] + 5);
    assert_int_equal(nic.left, 1);
    ibx_gpu_registrations_freed(&own, devices[0] - 1); /* nobody has it */
    assert_int_equal(nic.left, 1);
    ibx_gpu_registrations_freed(NULL, 0);
    assert_int_equal(nic.left, 2);
    end_owner();
    for (unsigned i = 0; i < 2; i++)
        app->mem_free(devices[i]);
}

/* A thread that does not answer is not waited for without end, nor one that has no connection at
 * the moment. It ends the registration as soon as it can. */
static void test_freed_beside_a_busy_thread(void **state)
{
    (void)state;
    uint64_t device;
    void *registration;
    for (unsigned paused = 0; paused < 2; paused++) {
        struct ibx_gpu_registrations busy = cache_of(true, true);
        busy.registrar.wake = wake;
        sem_init(&owner.woken, 0, 0);
        assert_int_equal(app->mem_alloc(&device, BYTES), 0);
        assert_int_equal(get(&busy, device, 1, &registration), 0);
        if (paused)
            ibx_gpu_registrations_pause(&busy);
        ibx_gpu_registrations_freed(NULL, device);
        assert_int_equal(nic.left, 0);
        assert_int_equal(sem_trywait(&owner.woken), paused ? -1 : 0);
        assert_true(ibx_gpu_registrations_tidy(&busy));
        assert_false(ibx_gpu_registrations_tidy(&busy));
        assert_int_equal(nic.left, 1);
        ibx_gpu_registrations_drop(&busy, 0);
        assert_false(busy.paused);
        app->mem_free(device);
    }
}

/* A copy is flushed only if the GPU does not order writes itself; if it cannot be flushed, the
 * registration is refused. */
static void test_order(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    unsigned long flushes = cuda_stats().flushes;
    assert_true(ibx_gpu_writes_ordered(cuda, &err));
    assert_int_equal(ibx_gpu_writes_flush(cuda), 0);
    assert_int_equal(cuda_stats().flushes, flushes);
    app->attribute(IBX_CUDA_DEVICE_RDMA_ORDERING, 0);
    assert_false(ibx_gpu_writes_ordered(cuda, &err));
    assert_non_null(strstr(err.message, "flushed"));
    app->attribute(IBX_CUDA_DEVICE_RDMA_FLUSH, IBX_CUDA_FLUSH_BY_HOST);
    assert_true(ibx_gpu_writes_ordered(cuda, &err));
    assert_int_equal(ibx_gpu_writes_flush(cuda), 0);
    assert_int_equal(cuda_stats().flushes, flushes + 1);
    app->attribute(IBX_CUDA_DEVICE_RDMA_FLUSH, 0);
    app->attribute(IBX_CUDA_DEVICE_RDMA_ORDERING, IBX_CUDA_ORDERING_OWNER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registered_once),
        cmocka_unit_test(test_pcie_first),
        cmocka_unit_test(test_second_choice),
        cmocka_unit_test(test_another_buffer),
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_freed_by_another_thread),
        cmocka_unit_test(test_freed_beside_a_busy_thread),
    };
    return cmocka_run_group_tests_name("gpu-registrations", tests, find_cuda, NULL);
}
