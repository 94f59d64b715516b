/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The peer's arenas, mapped. They are sparse: to touch a page that the peer never did makes one,
 * and the system charges it to who touched it. So holes are read by pread(2), which gives zeros and
 * makes nothing, and written by the peer itself or in its address space. mincore(2) finds them; not
 * lseek(2), in which the peer could make us wait for as long as it likes, by its own calls on that
 * file.
 *
 * A peer that empties its memory in the moment between the look and the copy makes this process pay
 * for the pages of what was looked at, and in the end for IBX_SHM_ARENA bytes an arena.
 */
#include "transport/shm/shm.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_PAGES 256u
/* A look at 64 MiB takes 4 % of the time of its copy into a GPU. */
#define BELIEVED_NS (100 * (uint64_t)IBX_NS_PER_MS)

static _Atomic uint64_t mapped_bytes; /* of this process */

/* Arenas are mapped where little else is: where the kernel would place them, they would be in the
 * way of what has to have the address that it has in another process, such as memory that a program
 * has registered. */
#define FROM  0x110000000000u
#define UNTIL IBX_SHARED_FROM
#define TRIES 4u

/* The address is a hint, without MAP_FIXED_NOREPLACE: ThreadSanitizer replaces one that is in its
 * own memory by 0, and with that flag root would get an arena at the address 0. */
static void *map_apart(uint64_t whole, int protection, int fd)
{
    const int kind = MAP_SHARED | MAP_NORESERVE;
    const uint64_t places = (UNTIL - FROM - whole) / IBX_SHM_HUGE;
    uint64_t random;
    for (unsigned i = 0; i < TRIES && !ibx_random(&random, sizeof(random), NULL); i++) {
        void *wanted = (void *)(uintptr_t)(FROM + random % places * IBX_SHM_HUGE);
        void *there = mmap(wanted, whole, protection, kind, fd, 0);
        if (there == wanted || there == MAP_FAILED)
            return there;
        munmap(there, whole); /* something else is where it was wanted */
    }
    return mmap(NULL, whole, protection, kind, fd, 0);
}

/* -ENOSPC: the process has mapped as much as it may. */
static int arena_map(struct shm_peer_arena *arena, const struct stat *status, int protection,
                     int fd)
{
    const uint64_t bytes = (uint64_t)status->st_size;
    /* One page more, behind the end of the file, where the file has none: see look_is_true(). */
    const uint64_t whole = bytes + ibx_shm_page();
    if (atomic_fetch_add(&mapped_bytes, whole) + whole > IBX_SHM_MAPPED) {
        atomic_fetch_sub(&mapped_bytes, whole);
        return -ENOSPC;
    }
    void *base = map_apart(whole, protection, fd);
    if (base == MAP_FAILED) {
        int rc = -errno;
        atomic_fetch_sub(&mapped_bytes, whole);
        return rc;
    }
    madvise(base, whole, MADV_DONTDUMP);
    ibx_shm_huge_advise(base, bytes);
    *arena = (struct shm_peer_arena){
        .seen = true, .base = base, .bytes = bytes, .fd = fd, .ours = status->st_uid == geteuid()};
    return 0;
}

void ibx_shm_arena_accept(struct shm *shm, unsigned kind, int fd)
{
    struct stat status;
    bool valid = kind > SHM_ARENA_NONE && kind < SHM_ARENA_KINDS && !shm->peer_arenas[kind].seen;
    if (valid && fd >= 0)
        valid = ibx_shm_memfd_safe(fd) && !fstat(fd, &status) && status.st_size > 0 &&
                (uint64_t)status.st_size <= IBX_SHM_ARENA &&
                (uint64_t)status.st_size % ibx_shm_page() == 0;
    if (!valid) {
        ibx_shm_break(shm, -EPROTO, "the peer's arena is not what it should be");
        if (fd >= 0)
            close(fd);
        return;
    }
    struct shm_peer_arena *arena = &shm->peer_arenas[kind];
    int protection = kind == SHM_ARENA_READ ? PROT_READ : PROT_READ | PROT_WRITE;
    arena->seen = true;
    /* If this process has no room for the descriptor or the mapping (IBX_SHM_MAPPED, RLIMIT_AS),
     * copies are requested or direct. */
    if (fd >= 0 && arena_map(arena, &status, protection, fd))
        close(fd);
}

void ibx_shm_peer_arenas_fini(struct shm *shm)
{
    for (int i = 0; i < SHM_ARENA_KINDS; i++) {
        const struct shm_peer_arena *arena = &shm->peer_arenas[i];
        if (!arena->base)
            continue;
        munmap(arena->base, arena->bytes + ibx_shm_page());
        atomic_fetch_sub(&mapped_bytes, arena->bytes + ibx_shm_page());
        close(arena->fd);
    }
}

struct shm_view ibx_shm_peer_view(struct shm *shm, uint32_t kind, uint64_t offset, uint64_t length)
{
    struct shm_view none = {0};
    if (kind <= SHM_ARENA_NONE || kind >= SHM_ARENA_KINDS)
        return none;
    /* The peer sent the arena before it published anything in it. */
    if (!shm->peer_arenas[kind].seen)
        ibx_shm_control_drain(shm);
    struct shm_peer_arena *arena = &shm->peer_arenas[kind];
    if (!arena->base || offset > arena->bytes || length > arena->bytes - offset)
        return none;
    return (struct shm_view){arena->base + offset, arena};
}

int ibx_shm_shared_of_peer(void *endpoint, uint64_t *bytes)
{
    struct shm *shm = endpoint;
    const struct shm_peer_arena *arena = &shm->peer_arenas[SHM_ARENA_SHARED];
    if (!arena->seen) /* the peer has sent it before it tells of it */
        ibx_shm_control_drain(shm);
    if (!arena->base)
        return -EOPNOTSUPP;
    *bytes = arena->bytes;
    return arena->fd;
}

/* Whether mincore(2) tells the truth. About files of others that this user may not write to, it
 * says that all pages are there; then it says so about the page behind the end of the file, too. */
static bool look_is_true(const struct shm_peer_arena *arena)
{
    uint8_t there = 1;
    return arena->ours || (!mincore(arena->base + arena->bytes, ibx_shm_page(), &there) && !there);
}

/* How many bytes from `offset` on, a page's begin, have pages: all the `bytes` (up to LOOK_PAGES)
 * or those before the first hole. */
static uint64_t look(const struct shm_peer_arena *arena, uint64_t offset, uint64_t bytes)
{
    uint8_t there[LOOK_PAGES];
    const uint64_t page = ibx_shm_page(), pages = (bytes + page - 1) / page;
    if (mincore(arena->base + offset, bytes, there))
        return 0;
    const uint8_t *hole = memchr(there, 0, pages);
    return (hole ? (uint64_t)(hole - there) : pages) * page;
}

/* A look costs as much as copying some KiB. So it goes a bit ahead, and is believed for a
 * moment. */
bool ibx_shm_view_filled(const struct shm_view *view, size_t length)
{
    struct shm_peer_arena *arena = view->arena;
    const uint64_t begin = (uint64_t)(view->address - arena->base), end = begin + length;
    const uint64_t now = ibx_now_ns(), page = ibx_shm_page(), most = LOOK_PAGES * page;
    const uint64_t from = begin / page * page;
    if (begin >= arena->filled_from && end <= arena->filled_to && now < arena->believed_until)
        return true;
    uint64_t to = from, found, window;
    do {
        window = arena->bytes - to < most ? arena->bytes - to : most;
        found = look(arena, to, window);
        to += found;
    } while (to < end && found == most);
    if (to < end || !look_is_true(arena))
        return false;
    arena->filled_from = from;
    arena->filled_to = to;
    arena->believed_until = now + BELIEVED_NS;
    return true;
}

int ibx_shm_view_read(const struct shm_view *view, void *local, size_t length)
{
    uint8_t *to = local;
    off_t offset = view->address - view->arena->base;
    while (length) {
        ssize_t n = pread(view->arena->fd, to, length, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        to += n;
        offset += n;
        length -= (size_t)n;
    }
    return 0;
}
