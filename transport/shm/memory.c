/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Regions: keys, the table that the peer sees, and memory to allocate.
 *
 * A registration pins nothing. A private table checks the peer's requests. A published one, of what
 * the peer may access anyway, is for a peer that copies alone: its hazard pointer names the region
 * meanwhile, and deregistration waits for it (peer_death.c). Allocated memory comes from arenas,
 * sparse memfds that the peer maps as well; of the one for READs it gets a read-only descriptor.
 */
#include "transport/shm/shm.h"

#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOTE      (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE)
#define ARENA_LEAST (1ull << 20)

#define INDEX_BITS 16u /* of a key; then 16 bits of generation, then 32 random ones */

void ibx_shm_memory_fini(struct shm *shm)
{
    for (int i = 0; i < SHM_ARENA_KINDS; i++) {
        if (shm->arenas[i].fd >= 0)
            close(shm->arenas[i].fd);
    }
    ibx_shm_peer_arenas_fini(shm);
    free(shm->regions);
    free(shm->region_free);
}

/* ---------------------------------------------------------------------- keys */

/* Doubles the table of regions. */
static int regions_grow(struct shm *shm, struct ibx_error *err)
{
    uint32_t count = shm->region_count ? 2 * shm->region_count : 64;
    if (count > IBX_SHM_REGIONS)
        return ibx_error_set(err, -ENOMEM, "a connection over shm has at most %u regions",
                             IBX_SHM_REGIONS);
    struct shm_region **regions = realloc(shm->regions, count * sizeof(struct shm_region *));
    if (regions)
        shm->regions = regions;
    uint32_t *stack = realloc(shm->region_free, count * sizeof(*stack));
    if (stack)
        shm->region_free = stack;
    if (!regions || !stack)
        return ibx_error_set(err, -ENOMEM, "no memory for %u regions", count);
    for (uint32_t i = shm->region_count; i < count; i++)
        regions[i] = NULL;
    for (uint32_t i = count; i-- > shm->region_count;)
        stack[shm->region_free_count++] = i;
    shm->region_count = count;
    return 0;
}

static int key_make(struct shm *shm, uint32_t index, uint64_t *key, struct ibx_error *err)
{
    if (!shm->randoms_left) {
        int rc = ibx_random(shm->randoms, sizeof(shm->randoms), err);
        if (rc)
            return rc;
        shm->randoms_left = sizeof(shm->randoms) / sizeof(shm->randoms[0]);
    }
    uint64_t random = shm->randoms[--shm->randoms_left];
    if (!++shm->generation) /* a key is never 0 */
        shm->generation = 1;
    *key = random << 32 | (uint64_t)shm->generation << INDEX_BITS | index;
    return 0;
}

static uint32_t key_index(uint64_t key)
{
    return key & ((1u << INDEX_BITS) - 1);
}

static void publish(struct shm *shm, const struct shm_region *region)
{
    struct shm_published *out = &shm->mine.regions[region->index];
    out->address = (uintptr_t)region->mr->span.address;
    out->length = region->mr->span.length;
    out->access = region->mr->access;
    out->arena = region->arena;
    out->arena_offset = region->extent.offset;
    out->allocation = region->id;
    out->allocation_offset = region->whole_offset;
    out->allocation_length = region->whole_length;
    atomic_store_explicit(&out->key, region->mr->keys[0], memory_order_release);
}

/* -------------------------------------------------------------------- arenas */

/* A second descriptor of the arena for the peer. The read-only one stays so for another user: the
 * file's mode lets no process open it again. */
static int arena_descriptor(int fd, enum shm_arena_kind kind)
{
    char path[40];
    if (kind == SHM_ARENA_WRITE)
        return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    snprintf(path, sizeof(path), "/proc/thread-self/fd/%d", fd);
    int copy = open(path, O_RDONLY | O_CLOEXEC);
    if (copy >= 0 && fchmod(fd, 0)) { /* the peer could open it again, for writing */
        close(copy);
        return -1;
    }
    return copy;
}

/* Makes the arena and sends it to the peer; arena->fd stays -1 when that is not possible. */
static void arena_make(struct shm *shm, enum shm_arena_kind kind)
{
    struct shm_arena *arena = &shm->arenas[kind];
    struct rlimit limit;
    arena->bytes = IBX_SHM_ARENA;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < arena->bytes)
        arena->bytes = limit.rlim_cur & ~(IBX_SHM_HUGE - 1);
    if (arena->bytes < ARENA_LEAST)
        return;
    int fd = ibx_shm_memfd("ibx-arena", arena->bytes);
    int copy = fd < 0 ? -1 : arena_descriptor(fd, kind);
    char packet[2] = {'a', (char)kind};
    if (copy >= 0 && !ibx_shm_packet_send(shm->control, packet, sizeof(packet), copy)) {
        arena->fd = fd;
        fd = -1;
    }
    if (copy >= 0)
        close(copy);
    if (fd >= 0)
        close(fd);
}

static void arena_leave(struct shm_arena *arena, struct shm_region *region)
{
    ibx_shm_extent_remove(&arena->regions, &region->extent);
    /* Returns the memory to the system; the next allocation here reads zeros. */
    fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)region->extent.offset,
              (off_t)region->extent.length);
}

/* Memory in the arena for this access, else private memory, which is copied like all other memory.
 */
static int allocate(struct shm *shm, struct shm_region *region, struct ibx_error *err)
{
    struct ibx_mr *mr = region->mr;
    if (mr->span.length > SIZE_MAX / 2)
        return ibx_error_set(err, -ENOMEM, "%zu bytes are too many", mr->span.length);
    region->extent.length =
        (mr->span.length + ibx_shm_page() - 1) & ~(uint64_t)(ibx_shm_page() - 1);
    enum shm_arena_kind kind = mr->access & IBX_ACCESS_REMOTE_WRITE  ? SHM_ARENA_WRITE
                               : mr->access & IBX_ACCESS_REMOTE_READ ? SHM_ARENA_READ
                                                                     : SHM_ARENA_NONE;
    struct shm_arena *arena = &shm->arenas[kind];
    if (kind != SHM_ARENA_NONE && arena->fd < 0)
        arena_make(shm, kind);
    void *address = MAP_FAILED;
    if (arena->fd >= 0 && ibx_shm_extent_place(&arena->regions, &region->extent, arena->bytes)) {
        address = mmap(NULL, region->extent.length, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd,
                       (off_t)region->extent.offset);
        region->arena = kind;
        region->id = ++shm->allocations;
        region->whole_offset = region->extent.offset;
        region->whole_length = region->extent.length;
    } else {
        address = mmap(NULL, region->extent.length, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (address == MAP_FAILED) {
        int rc = -errno;
        if (region->arena)
            arena_leave(arena, region);
        return ibx_error_set(err, rc, "cannot allocate %zu bytes: %s", mr->span.length,
                             strerror(-rc));
    }
    ibx_shm_huge_advise(address, region->extent.length);
    mr->span.address = address;
    return 0;
}

static void deallocate(struct shm *shm, struct shm_region *region)
{
    if (!region->extent.length)
        return;
    munmap(region->mr->span.address, region->extent.length);
    if (region->arena)
        arena_leave(&shm->arenas[region->arena], region);
}

/* Finds this side's allocation that the region is a part of. The peer's mapping of it lasts as long
 * as the allocation: a peer that hangs in a copy through its mapping can still end that copy after
 * the part was deregistered. */
static bool find_allocated(struct shm *shm, struct shm_region *region)
{
    const struct ibx_mr *mr = region->mr;
    int first = mr->access & IBX_ACCESS_REMOTE_WRITE ? SHM_ARENA_WRITE : SHM_ARENA_READ;
    for (int kind = first; kind < SHM_ARENA_KINDS; kind++) {
        for (const struct shm_extent *e = shm->arenas[kind].regions; e; e = e->next) {
            const struct shm_region *whole = (const struct shm_region *)e;
            uint64_t at =
                (uint64_t)((uintptr_t)mr->span.address - (uintptr_t)whole->mr->span.address);
            if (at > e->length || mr->span.length > e->length - at)
                continue;
            region->arena = (enum shm_arena_kind)kind;
            region->extent.offset = e->offset + at;
            region->id = whole->id;
            region->whole_offset = e->offset;
            region->whole_length = e->length;
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------- registrations */

static bool send_shared(struct shm *shm, int fd)
{
    char packet[2] = {'a', SHM_ARENA_SHARED};
    shm->shared_sent =
        shm->shared_sent || !ibx_shm_packet_send(shm->control, packet, sizeof(packet), fd);
    return shm->shared_sent;
}

/* Memory of ibx_shared_allocate() is in an arena, too, if the peer has that arena, or gets it
 * now. */
static void find_shared(struct shm *shm, struct shm_region *region)
{
    const struct ibx_span *span = &region->mr->span;
    uint64_t offset = 0;
    int fd = ibx_shm_shared_fd(span->address, span->length, &offset);
    if (fd < 0 || !send_shared(shm, fd))
        return;
    region->arena = SHM_ARENA_SHARED;
    region->extent.offset = offset;
    if (ibx_shm_shared_allocation(offset, &region->whole_offset, &region->whole_length))
        region->id = IBX_SHM_SHARED_ID;
}

int ibx_shm_shared_give(void *endpoint)
{
    const int fd = ibx_shm_shared_file();
    return fd >= 0 && send_shared(endpoint, fd) ? 0 : -EOPNOTSUPP;
}

static int region_enter(struct shm *shm, struct shm_region *region, struct ibx_error *err)
{
    if (!(region->mr->access & REMOTE))
        return 0; /* the peer cannot name it */
    int rc = shm->region_free_count ? 0 : regions_grow(shm, err);
    if (rc)
        return rc;
    uint32_t index = shm->region_free[shm->region_free_count - 1];
    rc = key_make(shm, index, &region->mr->keys[0], err);
    if (rc)
        return rc;
    shm->region_free_count--;
    shm->regions[index] = region;
    region->index = index;
    publish(shm, region);
    return 0;
}

int ibx_shm_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct shm *shm = endpoint;
    if (mr->span.kind != IBX_MEMORY_HOST)
        return ibx_error_set(err, -EOPNOTSUPP, "shm moves host memory only: stage GPU memory");
    /* A peer that hangs in the middle of a copy may still write to an arena, so nothing new is
     * placed in it. */
    if (shm->nonce_revoked)
        return ibx_error_set(err, -ENOTCONN, "the connection is over: %s", shm->broken_reason);
    struct shm_region *region = calloc(1, sizeof(*region));
    if (!region)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    region->mr = mr;
    int rc = 0;
    if (mr->allocated)
        rc = allocate(shm, region, err);
    else if (mr->access & REMOTE && !find_allocated(shm, region))
        find_shared(shm, region);
    if (!rc) {
        rc = region_enter(shm, region, err);
        if (rc)
            deallocate(shm, region);
    }
    if (rc) {
        free(region);
        return rc;
    }
    mr->provider_data = region;
    return 0;
}

void ibx_shm_mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    struct shm *shm = endpoint;
    struct shm_region *region = mr->provider_data;
    if (mr->keys[0]) {
        ibx_shm_key_revoke(shm, region->index);
        shm->regions[region->index] = NULL;
        shm->region_free[shm->region_free_count++] = region->index;
    }
    deallocate(shm, region);
    free(region);
}

/* -------------------------------------------------------------------- look-ups */

static int check(uint64_t address, uint64_t length, unsigned access, uint64_t region_address,
                 uint64_t region_length, unsigned region_access)
{
    if (!(region_access & access))
        return -EACCES;
    /* Below the region the difference wraps and is too large as well. */
    if (address - region_address > region_length ||
        length > region_length - (address - region_address))
        return -ERANGE;
    return 0;
}

int ibx_shm_region_copy(struct shm *shm, const struct shm_request *request, uint8_t *bounce)
{
    const uint32_t index = key_index(request->key);
    const bool read = request->kind == IBX_RDMA_READ;
    const struct shm_region *region = index < shm->region_count ? shm->regions[index] : NULL;
    const struct ibx_mr *mr = region ? region->mr : NULL;
    if (!mr || mr->keys[0] != request->key)
        return -EACCES;
    const int rc = check(request->address, request->length,
                         read ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE,
                         (uintptr_t)mr->span.address, mr->span.length, mr->access);
    if (rc)
        return rc;
    /* Accessing memory that has been freed, perhaps by another thread meanwhile, would raise a
     * signal. */
    const bool shared = ibx_shared_holds(mr->span.address, mr->span.length);
    if (shared && !ibx_shm_shared_hold(mr->span.address, mr->span.length))
        return -EACCES;
    uint8_t *memory = (uint8_t *)(uintptr_t)request->address;
    memcpy(read ? bounce : memory, read ? memory : bounce, request->length);
    if (shared)
        ibx_shm_shared_let_go();
    return 0;
}

/* What the peer published about a region, copied out. */
static struct shm_published snapshot(const struct shm_published *shared)
{
    struct shm_published seen = {
        .address = shared->address,
        .length = shared->length,
        .arena_offset = shared->arena_offset,
        .access = shared->access,
        .arena = shared->arena,
        .allocation = shared->allocation,
        .allocation_offset = shared->allocation_offset,
        .allocation_length = shared->allocation_length,
    };
    atomic_signal_fence(
        memory_order_seq_cst); /* no second read of shared memory after the checks */
    return seen;
}

/* Sets the hazard pointer and checks the access; after an error nothing is acquired. */
static int acquire(struct shm *shm, uint64_t key, uint64_t address, uint64_t length,
                   unsigned access, struct shm_published *seen)
{
    uint32_t index = key_index(key);
    if (!key || index >= IBX_SHM_REGIONS)
        return -EACCES;
    const struct shm_published *shared = &shm->theirs.regions[index];
    /* First the hazard pointer, then the key: see ibx_shm_key_revoke(). */
    atomic_store(&shm->mine.control->copying, index + 1);
    int rc = atomic_load(&shared->key) == key ? 0 : -EACCES;
    if (!rc) {
        *seen = snapshot(shared);
        rc = check(address, length, access, seen->address, seen->length, seen->access);
    }
    if (!rc && seen->arena == SHM_ARENA_READ && access == IBX_ACCESS_REMOTE_WRITE)
        rc = -EACCES;
    if (rc)
        ibx_shm_region_release(shm);
    return rc;
}

int ibx_shm_region_acquire(struct shm *shm, uint64_t key, uint64_t address, uint64_t length,
                           unsigned access, struct shm_view *view)
{
    struct shm_published seen;
    int rc = acquire(shm, key, address, length, access, &seen);
    if (!rc)
        *view = ibx_shm_peer_view(shm, seen.arena, seen.arena_offset + (address - seen.address),
                                  length);
    return rc;
}

int ibx_shm_region_acquire_whole(struct shm *shm, const struct ibx_remote *remote, unsigned access,
                                 struct ibx_reach *reach)
{
    struct shm_published seen;
    int rc = acquire(shm, remote->keys[0], remote->address, remote->length, access, &seen);
    if (rc)
        return rc;
    uint64_t at = seen.arena_offset + (remote->address - seen.address);
    struct shm_view view = ibx_shm_peer_view(shm, seen.arena, at, remote->length);
    if (!view.address || !ibx_shm_view_filled(&view, remote->length))
        return 0;
    reach->address = view.address;
    /* Below the allocation the difference wraps and is too large as well. */
    uint64_t into = at - seen.allocation_offset;
    view = ibx_shm_peer_view(shm, seen.arena, seen.allocation_offset, seen.allocation_length);
    if (!view.address || !seen.allocation || seen.allocation_offset % ibx_shm_page() ||
        into > seen.allocation_length || remote->length > seen.allocation_length - into)
        return 0;
    reach->base = view.address;
    reach->length = (size_t)seen.allocation_length;
    reach->id = seen.allocation;
    reach->writable = seen.arena != SHM_ARENA_READ;
    reach->lasting = seen.arena == SHM_ARENA_SHARED;
    return 0;
}

void ibx_shm_region_release(struct shm *shm)
{
    atomic_store_explicit(&shm->mine.control->copying, 0, memory_order_release);
}
