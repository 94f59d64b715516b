/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Regions of the shm provider between two correct ends: deregistration, memory that both ends
 * map, and memory that belongs to the process. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/rounds.h"
#include "tests/fixtures/shm_pair.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (1000003u)

static struct end *const server = &both.server, *const client = &both.client;

/* -------------------------------------------------------------- deregistration */

struct dropping {
    struct ibx_mr *mr;
    pthread_t thread;
    _Atomic bool done;
};

static void *drop_run(void *arg)
{
    struct dropping *d = arg;
    end_deregister(client, d->mr);
    atomic_store(&d->done, true);
    return NULL;
}

/* Starts to deregister a region that the server pretends to be copying. */
static uint32_t drop_in_use(struct dropping *d, void *memory)
{
    d->mr = end_register(client, memory, 64, READ_WRITE);
    uint32_t index = d->mr->keys[0] & 0xffff;
    atomic_store(&server->shm->mine.control->copying, index + 1);
    assert_int_equal(pthread_create(&d->thread, NULL, drop_run, d), 0);
    return index;
}

static void test_deregistration_waits_for_a_copy(void **state)
{
    (void)state;
    uint8_t memory[64];
    struct dropping d = {0};
    uint32_t index = drop_in_use(&d, memory);
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (atomic_load(&server->shm->theirs.regions[index].key))
        assert_true(ibx_now_ns() < deadline); /* the key is removed first */
    assert_false(atomic_load(&d.done));
    atomic_store(&server->shm->mine.control->copying, 0);
    pthread_join(d.thread, NULL);
    assert_true(atomic_load(&d.done));
    end_turn(client);
    assert_int_equal(client->count, 0);
}

static void test_deregistration_does_not_wait_for_the_dead(void **state)
{
    (void)state;
    uint8_t memory[64];
    struct dropping d = {0};
    drop_in_use(&d, memory);
    shutdown(server->shm->control, SHUT_RDWR);
    pthread_join(d.thread, NULL); /* the test's own time limit applies */
    end_turn(client);
    assert_int_equal(client->count, 0);
}

static void test_deregistration_does_not_wait_forever(void **state)
{
    (void)state;
    uint8_t memory[64];
    struct dropping d = {0};
    client->options.timeout_ms = 1;
    drop_in_use(&d, memory);
    pthread_join(d.thread, NULL);
    end_turn(client);
    assert_lost(client, -ETIMEDOUT);
}

static void test_many_regions(void **state)
{
    (void)state;
    static struct ibx_mr *mrs[IBX_SHM_REGIONS];
    uint8_t memory[64];
    for (unsigned i = 0; i < IBX_SHM_REGIONS; i++)
        mrs[i] = end_register(client, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ);
    struct ibx_mr more = {.span = ibx_span_host(memory, 1), .access = IBX_ACCESS_REMOTE_READ};
    assert_int_equal(ibx_provider_shm.mr_register(client->shm, &more, &client->err), -ENOMEM);
    assert_non_null(strstr(client->err.message, "16384"));
    /* Memory that the peer never names takes no place in the table. */
    end_deregister(client, end_register(client, memory, sizeof(memory), IBX_ACCESS_LOCAL));
    for (unsigned i = 0; i < IBX_SHM_REGIONS; i++)
        end_deregister(client, mrs[i]);
    end_deregister(client, end_register(client, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ));
}

/* ---------------------------------------------------------------------- arenas */

/* Memory of the provider with pages in it: only such memory is copied through a mapping. */
static struct ibx_mr *register_filled(size_t length, unsigned access)
{
    struct ibx_mr *mr = end_register(client, NULL, length, access);
    memset(mr->span.address, 0, length);
    return mr;
}

static void test_mapped_regions(void **state)
{
    (void)state;
    struct ibx_mr *mr = register_filled(LENGTH, IBX_ACCESS_REMOTE_READ);
    assert_int_equal((uintptr_t)mr->span.address % ibx_shm_page(), 0);
    const uint8_t *there = pointer(server, mr, LENGTH);
    assert_non_null(there);
    assert_ptr_not_equal(there, mr->span.address);
#ifndef __SANITIZE_THREAD__ /* it has memory of its own there */
    /* Apart from where the kernel places what a program allocates, and from shared memory. */
    assert_in_range((uintptr_t)there, (uintptr_t)0x11 << 40, IBX_SHARED_FROM - 1);
#endif
    for (size_t i = 0; i < LENGTH; i++)
        assert_int_equal(there[i], 0);
    fill(mr->span.address, LENGTH);
    check(there, LENGTH, 0);
    /* Memory that may only be read cannot be made writable by mprotect(2). Nor can another user
     * open its file again, since the file has no mode. */
    struct stat status;
    assert_int_equal(fstat(server->shm->peer_arenas[SHM_ARENA_READ].fd, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0);
    uintptr_t page = (uintptr_t)there & ~(ibx_shm_page() - 1);
    assert_int_equal(mprotect((void *)page, ibx_shm_page(), PROT_READ | PROT_WRITE), -1);
    assert_int_equal(errno, EACCES);

    assert_null(pointer(server, mr, LENGTH + ibx_shm_page()));
    struct ibx_mr old = *mr;
    end_deregister(client, mr);
    assert_null(pointer(server, &old, 1));
    /* Heap memory has no mapping at the peer. */
    uint8_t memory[64];
    mr = end_register(client, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ);
    assert_null(pointer(server, mr, 1));
    end_deregister(client, mr);
}

/* A whole allocation has one id, and the next allocation at the same place has another one. A
 * part of it that is registered separately has the same id. */
static void test_reach(void **state)
{
    (void)state;
    struct ibx_reach whole, part, next;
    struct ibx_mr *first = register_filled(8192, READ_WRITE);
    struct ibx_mr *mr = register_filled(300000, READ_WRITE);
    assert_int_equal(hold(server, mr, 0, 300000, IBX_ACCESS_REMOTE_WRITE, &whole), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_true(whole.address == whole.base && whole.length >= 300000 && whole.id);
    assert_true(whole.writable && !whole.copies);
    fill(mr->span.address, 300000);
    check(whole.base, 300000, 0);

    uint8_t *inner = (uint8_t *)mr->span.address + 5000;
    struct ibx_mr *sub = end_register(client, inner, 1000, READ_WRITE);
    assert_int_equal(hold(server, sub, 100, 900, IBX_ACCESS_REMOTE_READ, &part), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_true(part.base == whole.base && part.id == whole.id && part.length == whole.length);
    assert_ptr_equal(part.address, (uint8_t *)whole.base + 5100);
    assert_int_equal(hold(server, sub, 100, 901, IBX_ACCESS_REMOTE_READ, &part), -ERANGE);
    const struct ibx_mr old = *sub;
    end_deregister(client, sub);
    assert_int_equal(hold(server, &old, 0, 1, IBX_ACCESS_REMOTE_READ, &part), -EACCES);
    /* A region that reaches beyond the allocation has no place in it. */
    sub = end_register(client, (uint8_t *)mr->span.address + 299000, 70000, IBX_ACCESS_REMOTE_READ);
    part = (struct ibx_reach){0};
    if (!hold(server, sub, 0, 1, IBX_ACCESS_REMOTE_READ, &part))
        ibx_provider_shm.remote_release(server->shm);
    assert_null(part.address);
    end_deregister(client, sub);

    end_deregister(client, mr);
    mr = register_filled(300000, READ_WRITE);
    assert_int_equal(hold(server, mr, 0, 1, IBX_ACCESS_REMOTE_READ, &next), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_true(next.base == whole.base && next.id != whole.id);
    end_deregister(client, mr);
    end_deregister(client, first);

    /* The mapping of memory that may only be read is not writable, and a WRITE to it fails. */
    mr = register_filled(4096, IBX_ACCESS_REMOTE_READ);
    assert_int_equal(hold(server, mr, 0, 1, IBX_ACCESS_REMOTE_READ, &next), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_false(next.writable);
    assert_int_equal(hold(server, mr, 0, 1, IBX_ACCESS_REMOTE_WRITE, &next), -EACCES);
    end_deregister(client, mr);
}

/* Heap memory is not mapped; the kernel copies it, for any thread. */
static void test_reach_of_the_heap(void **state)
{
    (void)state;
    struct ibx_reach reach;
    uint8_t memory[5000], got[5000];
    fill(memory, sizeof(memory));
    struct ibx_mr *mr = end_register(client, memory, sizeof(memory), READ_WRITE);
    int rc = hold(server, mr, 0, sizeof(memory), IBX_ACCESS_REMOTE_READ, &reach);
    assert_int_equal(rc, server->shm->direct ? 0 : -EOPNOTSUPP);
    if (!rc) {
        assert_true(!reach.address && !reach.id && reach.copies);
        assert_int_equal(
            ibx_provider_shm.remote_copy(server->shm, true, got, (uintptr_t)memory + 7, 4000), 0);
        check(got, 4000, 7);
        memset(got, 0x55, 10);
        assert_int_equal(
            ibx_provider_shm.remote_copy(server->shm, false, got, (uintptr_t)memory + 100, 10), 0);
        assert_memory_equal(memory + 100, got, 10);
        check(memory, 100, 0);
        check(memory + 110, 4000, 110);
        ibx_provider_shm.remote_release(server->shm);
    }
    end_deregister(client, mr);
}

/* Deregistration waits until the reach is released. */
static void test_reach_is_held(void **state)
{
    (void)state;
    struct ibx_reach reach;
    struct dropping d = {.mr = register_filled(4096, READ_WRITE)};
    uint32_t index = d.mr->keys[0] & 0xffff;
    assert_int_equal(hold(server, d.mr, 0, 1, IBX_ACCESS_REMOTE_READ, &reach), 0);
    assert_int_equal(pthread_create(&d.thread, NULL, drop_run, &d), 0);
    uint64_t deadline = ibx_deadline_in_ms(patience_ms(20000));
    while (atomic_load(&server->shm->theirs.regions[index].key))
        assert_true(ibx_now_ns() < deadline);
    assert_false(atomic_load(&d.done));
    ibx_provider_shm.remote_release(server->shm);
    pthread_join(d.thread, NULL);
    assert_true(atomic_load(&d.done));
}

static blkcnt_t blocks(int fd)
{
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    return status.st_blocks;
}

static void test_arena_memory_is_given_back(void **state)
{
    (void)state;
    /* Different sizes, freed in another order than allocated. */
    struct ibx_mr *mrs[4];
    for (size_t i = 0; i < 4; i++) {
        mrs[i] = end_register(client, NULL, (i + 1) * 300000, READ_WRITE);
        fill(mrs[i]->span.address, mrs[i]->span.length);
    }
    for (size_t i = 0; i < 4; i++)
        check(mrs[i]->span.address, mrs[i]->span.length, 0);
    int fd = client->shm->arenas[SHM_ARENA_WRITE].fd;
    assert_true(blocks(fd) > 0);
    const uint8_t *hole = pointer(server, mrs[1], 1);
    end_deregister(client, mrs[1]);
    end_deregister(client, mrs[3]);
    struct ibx_mr *again = end_register(client, NULL, 400000, READ_WRITE);
    for (size_t i = 0; i < 400000; i++)
        assert_int_equal(((uint8_t *)again->span.address)[i], 0);
    /* the first free place that is large enough */
    assert_ptr_equal(pointer(server, again, 1), hole);
    end_deregister(client, mrs[0]);
    end_deregister(client, again);
    check(mrs[2]->span.address, mrs[2]->span.length, 0);
    end_deregister(client, mrs[2]);
    assert_int_equal(blocks(fd), 0);
}

static void test_more_than_an_arena(void **state)
{
    (void)state;
    struct ibx_mr *mr = end_register(client, NULL, IBX_SHM_ARENA + 1, READ_WRITE);
    static uint8_t mine[100];
    assert_null(pointer(server, mr, 1));
    fill(mr->span.address, 100);
    struct ibx_chunk chunk;
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, 100);
    await_notes(server, client, 1);
    check(mine, 100, 0);
    end_deregister(client, mr);
}

/* memory of the process */

#define UNIT ((size_t)700001)

static size_t whole_pages(size_t n)
{
    return (n + ibx_shm_page() - 1) / ibx_shm_page() * ibx_shm_page();
}

static void test_in_two_connections(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint8_t *memory[4];
    for (size_t i = 0; i < 4; i++) {
        memory[i] = ibx_shared_allocate((i + 1) * UNIT, &err);
        assert_non_null(memory[i]);
        assert_int_equal((uintptr_t)memory[i] % ibx_shm_page(), 0);
        for (size_t at = 0; at < (i + 1) * UNIT; at += 1000)
            assert_int_equal(memory[i][at], 0);
        memset(memory[i], 'a' + (int)i, (i + 1) * UNIT);
    }
    /* Any connection may register odd parts of it. The peer sees them and may write there. */
    struct pair second;
    pair_open(&second);
    ends_connect(&second.server, &second.client);
    struct ibx_mr *mr = end_register(client, memory[2] + 333, 500000, READ_WRITE);
    struct ibx_mr *other = end_register(&second.client, memory[1] + 5, 7, READ_WRITE);
    const uint8_t *there = pointer(server, mr, 500000);
    assert_non_null(there);
    assert_ptr_not_equal(there, memory[2] + 333);
    assert_memory_equal(there, memory[2] + 333, 500000);
    uint8_t *writable = (uint8_t *)(uintptr_t)pointer(&second.server, other, 7);
    assert_non_null(writable);
    memcpy(writable, "written", 7);
    assert_memory_equal(memory[1] + 5, "written", 7);
    /* For whoever pins it, all parts are one allocation, each at its own offset. */
    struct ibx_reach reach;
    assert_int_equal(hold(server, mr, 67, 1000, IBX_ACCESS_REMOTE_WRITE, &reach), 0);
    ibx_provider_shm.remote_release(server->shm);
    assert_ptr_equal(reach.address, there + 67);
    assert_ptr_equal(reach.base, there - 333);
    assert_true(reach.length == whole_pages(3 * UNIT));
    assert_true(reach.id == IBX_SHM_SHARED_ID && reach.writable);
    /* A key is valid on its own connection only, until the deregistration. */
    assert_null(pointer(server, other, 7));
    const struct ibx_mr old = *mr;
    end_deregister(client, mr);
    assert_null(pointer(server, &old, 1));
    end_deregister(&second.client, other);
    pair_close(&second);

    /* The memory outlives the connection. Its pages are the same although it was freed in
     * between. */
    memcpy(memory[2], "seen", 5);
    const uint8_t *page = there - 333;
    assert_true(ibx_shared_free(memory[2]));
    assert_false(ibx_shared_free(memory[2]));
    assert_false(ibx_shared_free(memory[1] + 4096));
    assert_false(ibx_shared_free(&second));
    assert_ptr_equal(ibx_shared_allocate(3 * UNIT, &err), memory[2]);
    memcpy(memory[2], "again", 6);
    assert_string_equal((const char *)page, "again");
    for (size_t i = 0; i < 4; i++)
        assert_true(ibx_shared_free(memory[i]));
    assert_null(ibx_shared_allocate(IBX_SHM_ARENA + 1, &err));
    assert_non_null(strstr(err.message, "17179869185 bytes"));
}

/* A child inherits its parent's allocations. It neither frees them for the parent nor shares
 * them. */
static void test_in_a_child(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    uint8_t *memory = ibx_shared_allocate(5 << 20, &err);
    assert_non_null(memory);
    memory[4 << 20] = 'p';
    pid_t child = fork();
    if (!child) {
        bool good = memory[4 << 20] == 'p' && !ibx_shared_allocate(1, NULL);
        struct ibx_mr *mr = end_register(client, memory, 4096, READ_WRITE);
        good = good && !pointer(server, mr, 1) && ibx_shared_free(memory);
        _exit(good ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(memory[4 << 20], 'p');
    uint8_t *more = ibx_shared_allocate(5 << 20, &err);
    assert_true(more >= memory + (5 << 20) || more + (5 << 20) <= memory);
    assert_true(ibx_shared_free(memory) && ibx_shared_free(more));
}

/* populated by several threads */

static unsigned processors; /* simulated number of processors; 0: the real one */
static _Atomic unsigned made, made_most = UINT_MAX, populated, full_at;

unsigned __real_ibx_thread_processors(void);
unsigned __wrap_ibx_thread_processors(void);
unsigned __wrap_ibx_thread_processors(void)
{
    return processors ? processors : __real_ibx_thread_processors();
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    return made++ < made_most ? __real_pthread_create(thread, attributes, run, argument) : EAGAIN;
}

int __real_madvise(void *address, size_t length, int advice);
int __wrap_madvise(void *address, size_t length, int advice);
int __wrap_madvise(void *address, size_t length, int advice)
{
    if (advice == MADV_POPULATE_WRITE && ++populated == full_at) {
        errno = ENOMEM;
        return -1;
    }
    return __real_madvise(address, length, advice);
}

static bool all_there(uint8_t *memory, size_t n)
{
    const size_t all = n / ibx_shm_page();
    uint8_t *there = malloc(all);
    size_t pages = 0;
    assert_int_equal(mincore(memory, n, there), 0);
    while (pages < all && there[pages] & 1)
        pages++;
    free(there);
    return pages == all;
}

/* Several threads populate memory; fewer if the system allows no more; if one fails, the
 * allocation fails. */
static void test_populated_by_several_threads(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    static const struct {
        size_t n;
        unsigned processors, most, calls;
    } cases[] = {{33 << 20, 16, UINT_MAX, 4}, {17 << 20, 4, UINT_MAX, 2},
                 {33 << 20, 16, 1, 2},        {33 << 20, 16, 0, 1},
                 {33 << 20, 2, UINT_MAX, 1},  {15 << 20, 16, UINT_MAX, 1}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        processors = cases[i].processors;
        made = populated = full_at = 0;
        made_most = cases[i].most;
        uint8_t *memory = ibx_shared_allocate(cases[i].n, &err);
        assert_non_null(memory);
        assert_true(all_there(memory, cases[i].n));
        assert_int_equal(populated, cases[i].calls);
        assert_true(ibx_shared_free(memory));
    }
    processors = 16;
    made_most = UINT_MAX;
    for (unsigned fails = 1; fails <= 4; fails++) {
        populated = 0;
        full_at = fails;
        assert_null(ibx_shared_allocate(64 << 20, &err));
        assert_int_equal(err.code, -ENOMEM);
    }
    processors = 0;
    full_at = 0;
    uint8_t *memory = ibx_shared_allocate(64 << 20, &err);
    assert_non_null(memory);
    assert_true(ibx_shared_free(memory));
}

/* Always a cancellation point; glibc's pthread_join() is none if the thread has already ended. */
int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result)
{
    pthread_testcancel();
    return __real_pthread_join(thread, result);
}

/* A region whose memory has been freed must not stay usable: serving a request for it would end
 * in a signal. */
static void test_freed_under_its_region(void **state)
{
    (void)state;
    uint8_t *memory = ibx_shared_allocate(UNIT, NULL);
    assert_non_null(memory);
    struct ibx_mr *mr = end_register(client, memory, UNIT, READ_WRITE);
    const struct shm_request request = {
        .kind = IBX_RDMA_READ, .key = mr->keys[0], .address = (uintptr_t)memory, .length = 100};
    struct ibx_span piece;
    uint8_t bounce[100];
    assert_int_equal(ibx_shm_region_copy(client->shm, &request, bounce), 0);
    assert_true(ibx_shared_piece(memory + 5, UNIT - 5, &piece));
    assert_ptr_equal(piece.address, memory);
    assert_true(piece.length == whole_pages(UNIT));
    assert_false(ibx_shared_piece(memory + 5, piece.length, &piece));

    const uint64_t freed = ibx_shared_freed();
    assert_true(ibx_shared_free(memory));
    assert_true(ibx_shared_freed() == freed + 1);
    assert_false(ibx_shared_piece(memory, 1, &piece));
    assert_int_equal(ibx_shm_region_copy(client->shm, &request, bounce), -EACCES);
    assert_ptr_equal(ibx_shared_allocate(4096, NULL), memory);
    assert_int_equal(ibx_shm_region_copy(client->shm, &request, bounce), -EACCES);
    end_deregister(client, mr);
    assert_true(ibx_shared_free(memory));
}

/* The same if the peer has not mapped that memory and requests each copy. */
static void test_freed_without_mapping_at_the_peer(void **state)
{
    (void)state;
    struct shm *shm = client->shm;
    uint8_t *memory = ibx_shared_allocate(UNIT, NULL);
    const int control = shm->control;
    const bool sent = shm->shared_sent;
    uint8_t bounce[100];
    assert_non_null(memory);
    shm->control = -1;
    shm->shared_sent = false;
    struct ibx_mr *mr = end_register(client, memory, UNIT, READ_WRITE);
    shm->control = control;
    shm->shared_sent = sent;
    const struct shm_request request = {
        .kind = IBX_RDMA_READ, .key = mr->keys[0], .address = (uintptr_t)memory, .length = 100};
    assert_int_equal(ibx_shm_region_copy(shm, &request, bounce), 0);
    assert_true(ibx_shared_free(memory));
    assert_int_equal(ibx_shm_region_copy(shm, &request, bounce), -EACCES);
    end_deregister(client, mr);
}

static _Atomic bool copy_made, freeing_over;

static void *free_again_and_again(void *memory)
{
    while (!atomic_load(&copy_made))
        sched_yield();
    while (!atomic_load(&freeing_over)) {
        if (!ibx_shared_free(memory) || ibx_shared_allocate(UNIT, NULL) != memory)
            return memory;
    }
    return NULL;
}

/* The same if another thread frees the memory at any moment of a copy, from the second one on. */
static void test_freed_during_copies(void **state)
{
    (void)state;
    static uint8_t bounce[IBX_SHM_PIECE];
    uint8_t *memory = ibx_shared_allocate(UNIT, NULL);
    void *wrong = memory;
    pthread_t thread;
    assert_non_null(memory);
    struct ibx_mr *mr = end_register(client, memory, UNIT, READ_WRITE);
    const struct shm_request request = {.kind = IBX_RDMA_READ,
                                        .key = mr->keys[0],
                                        .address = (uintptr_t)memory,
                                        .length = sizeof(bounce)};
    atomic_store(&copy_made, false);
    atomic_store(&freeing_over, false);
    assert_int_equal(pthread_create(&thread, NULL, free_again_and_again, memory), 0);
    const int first = ibx_shm_region_copy(client->shm, &request, bounce);
    atomic_store(&copy_made, true);
    for (unsigned i = 0; i < 2000; i++)
        ibx_shm_region_copy(client->shm, &request, bounce);
    atomic_store(&freeing_over, true);
    pthread_join(thread, &wrong);
    assert_int_equal(first, 0);
    assert_null(wrong);
    end_deregister(client, mr);
    assert_true(ibx_shared_free(memory));
}

static void *allocate_and_be_cancelled(void *memory)
{
    pthread_cancel(pthread_self());
    *(uint8_t **)memory = ibx_shared_allocate(64 << 20, NULL);
    pthread_testcancel();
    return NULL;
}

/* pthread_cancel() ends a thread after its allocation, not within it, so that other threads can
 * allocate. */
static void test_a_cancelled_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void *result = NULL;
    uint8_t *memory = NULL;
    processors = 16;
    assert_int_equal(pthread_create(&thread, NULL, allocate_and_be_cancelled, &memory), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    processors = 0;
    assert_ptr_equal(result, PTHREAD_CANCELED);
    assert_non_null(memory);
    assert_true(ibx_shared_free(memory));
}

static bool modes_stay;
int __real_fchmod(int fd, mode_t mode), __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode)
{
    errno = EPERM;
    return modes_stay ? -1 : __real_fchmod(fd, mode);
}

/* The peer could open such a file again, for writing. So it gets none, and copies by requests. */
static void test_arena_that_stays_writable(void **state)
{
    (void)state;
    struct ibx_chunk chunk;
    static uint8_t local[4096];
    modes_stay = true;
    struct ibx_mr *mr = register_filled(sizeof(local), IBX_ACCESS_REMOTE_READ);
    modes_stay = false;
    fill(mr->span.address, sizeof(local));
    post(server, &chunk, IBX_RDMA_READ, 1, local, mr, 0, sizeof(local));
    await_notes(server, client, 1);
    check(local, sizeof(local), 0);
    assert_null(pointer(server, mr, sizeof(local)));
    end_deregister(client, mr);
}

/* The peer's memory arrives when this process has no free descriptor. It is then copied without
 * a mapping. */
static void test_no_descriptor_for_an_arena(void **state)
{
    (void)state;
    struct rlimit usual;
    struct ibx_chunk chunk;
    static uint8_t local[4096];
    struct ibx_mr *mr = end_register(client, NULL, sizeof(local), READ_WRITE);
    const int next = dup(client->shm->control);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    const struct rlimit none = {(rlim_t)next, usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    fill(mr->span.address, sizeof(local));
    post(server, &chunk, IBX_RDMA_READ, 1, local, mr, 0, sizeof(local));
    const bool noted = end_await(server, client, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_true(noted);
    assert_int_equal(server->notes[0].kind, NOTE_CHUNK);
    assert_int_equal(server->notes[0].status, 0);
    check(local, sizeof(local), 0);
    assert_null(pointer(server, mr, sizeof(local)));
    end_deregister(client, mr);
    end_turn(server);
    assert_int_equal(server->count, 1);
}

/* A process that had no descriptors when it first wanted shared memory gets it later. Must run
 * first: no other test may have used such memory. */
static void test_shared_without_descriptors(void **state)
{
    struct rlimit usual, none;
    struct ibx_error err = {0};
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = usual.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    void *memory = ibx_shared_allocate(4096, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
    assert_null(memory);
    assert_int_equal(err.code, -EMFILE);
    memory = ibx_shared_allocate(4096, &err);
    assert_non_null(memory);
    assert_true(ibx_shared_free(memory));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, both_connected, both_close)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_without_descriptors),
        TEST(test_deregistration_waits_for_a_copy),
        TEST(test_deregistration_does_not_wait_for_the_dead),
        TEST(test_deregistration_does_not_wait_forever),
        TEST(test_many_regions),
        TEST(test_mapped_regions),
        TEST(test_reach),
        TEST(test_reach_of_the_heap),
        TEST(test_reach_is_held),
        TEST(test_arena_memory_is_given_back),
        TEST(test_more_than_an_arena),
        TEST(test_in_two_connections),
        TEST(test_freed_under_its_region),
        TEST(test_freed_without_mapping_at_the_peer),
        TEST(test_freed_during_copies),
        TEST(test_in_a_child),
        TEST(test_populated_by_several_threads),
        TEST(test_a_cancelled_thread),
        TEST(test_arena_that_stays_writable),
        TEST(test_no_descriptor_for_an_arena),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm_regions", tests, NULL, NULL);
}
