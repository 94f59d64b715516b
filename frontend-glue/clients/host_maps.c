/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory of clients, for kernels. Natively kernels reach it at the program's address.
 * Over shm it is a part of a file that both ends map (ibx_shared_allocate()): an allocation that a
 * kernel is about to use is mapped here once more, at the client's own address, and pinned there.
 * Copies use the session's mapping (in_place.c), and are independent of this one.
 *
 * Over other paths, and where the client's memory is no part of such a file, pages of this
 * process's own stand in for it at that address: the client copies between them and its own
 * (preload's managed_in_place.c).
 *
 * Memory that a program has registered moves to such a file, and keeps its address (preload's
 * registered.c).
 *
 * A client chooses the address: between IBX_SHARED_FROM and IBX_SHARED_UNTIL or, of registered
 * memory, almost anywhere. If this process or another client has something there, the client is
 * refused. What a client could learn so about the addresses of this process is limited: few
 * refusals of a session are followed by others, whatever is there. A mapping lasts until the client
 * gives it back, or has no session any more, and no work that might still use it.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPS_MOST   5120 /* of all clients: each takes one of the process's 65530 mappings */
#define MAPS_TENANT 4096 /* of one tenant's clients, so that others have some */
#define MAPS_EACH   1024 /* of one client */
#define TEXT(n)     #n
#define TEXT_OF(n)  TEXT(n)
#define ENDING_MS   5000u /* for so long a new mapping waits for one that ends and is in its way */
#define WORK_MS     2000u /* for so long a client's work delays an unpinning */
#define TAKEN_MOST  8u    /* refusals of a session, because of what is at the address */
#define LOW         ((uint64_t)16 << 20) /* below this nothing is mapped for a client */
#define NEAR        ((uint64_t)1 << 30) /* nor so near to this process's first stack, which grows */

struct ibx_host_map {
    struct ibx_host_map *next;
    struct ibx_host_map *next_end; /* in the list of those that end */
    uint64_t client;               /* its number */
    const void *tenant;            /* whose client it is; only to compare */
    uint8_t *base;
    size_t length;
    uint64_t offset;         /* in the file, or that of the process's own pages */
    void *context;           /* the context in which it was pinned */
    struct ibx_quota *quota; /* the quota that its bytes count in */
    bool own;                /* pages of this process's, in no file */
    bool unpinned;           /* and about to be unmapped */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct ibx_host_map *maps, *ends; /* `ends`: taken out of `maps`, and not unmapped yet */
static unsigned count;                   /* of `maps` */

static bool overlaps(const struct ibx_host_map *m, uint64_t begin, uint64_t length)
{
    const uint64_t base = (uintptr_t)m->base;
    return base < begin + length && begin < base + m->length;
}

/* Locked. Takes out a mapping of the client that overlaps these bytes; NULL: there is none. */
static struct ibx_host_map *take(uint64_t client, uint64_t begin, uint64_t length)
{
    for (struct ibx_host_map **at = &maps; *at; at = &(*at)->next) {
        struct ibx_host_map *m = *at;
        if (m->client != client || !overlaps(m, begin, length))
            continue;
        *at = m->next;
        count--;
        m->next_end = ends;
        ends = m;
        return m;
    }
    return NULL;
}

static struct ibx_host_map *take_locking(uint64_t client, uint64_t begin, uint64_t length)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_map *m = take(client, begin, length);
    pthread_mutex_unlock(&lock);
    return m;
}

/* Adds it to the list. Returns NULL, or why there are too many. */
static const char *put(struct ibx_host_map *m)
{
    pthread_mutex_lock(&lock);
    unsigned own = 0, tenants = 0;
    for (const struct ibx_host_map *other = maps; other; other = other->next) {
        own += other->client == m->client;
        tenants += other->tenant == m->tenant;
    }
    const char *why =
        own >= MAPS_EACH
            ? "it has " TEXT_OF(
                  MAPS_EACH) " such allocations in use already: make fewer, larger ones"
        : tenants >= MAPS_TENANT
            ? "programs of its name have " TEXT_OF(MAPS_TENANT) " in use already"
        : count >= MAPS_MOST
            ? "all programs have " TEXT_OF(MAPS_MOST) " in use already: set "
                                                      "rdma.processes : tenant on the back end"
            : NULL;
    if (!why) {
        m->next = maps;
        maps = m;
        count++;
    }
    pthread_mutex_unlock(&lock);
    return why;
}

/* Unpins it, after which no kernel uses it. If its context is gone or was reset, it is unpinned
 * already. */
static void unpin(struct gpu_session *x, const struct ibx_host_map *m)
{
    void *popped = NULL;
    if (!ibx_back_end_have_cuda(x) || x->cuda->ctx_push_current(m->context))
        return;
    ibx_frees_begin(x, 0);
    const int mode = ibx_cuda_capture_relax(x->cuda);
    x->cuda->mem_host_unregister(m->base);
    ibx_cuda_capture_restore(x->cuda, mode);
    ibx_frees_end();
    x->cuda->ctx_pop_current(&popped);
}

static void unmap(const struct ibx_host_map *m)
{
    if (m->base)
        munmap(m->base, m->length);
    if (m->quota)
        ibx_quota_give(m->quota, m->length);
}

/* Unmaps and frees one that was taken out. */
static void end(struct gpu_session *x, struct ibx_host_map *m)
{
    unpin(x, m);
    pthread_mutex_lock(&lock);
    m->unpinned = true;
    pthread_mutex_unlock(&lock);
    unmap(m);
    pthread_mutex_lock(&lock);
    struct ibx_host_map **at = &ends;
    while (*at != m)
        at = &(*at)->next_end;
    *at = m->next_end;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    free(m);
}

/* The same for one that the client gives back; another of its sessions may be copying there. */
static void end_given_back(struct gpu_session *x, struct ibx_host_map *m)
{
    ibx_held_by_unmap(x, (uintptr_t)m->base, m->length);
    end(x, m);
    ibx_held_end(x);
}

/* Locked. Whether a mapping that ends is in the way of a new one. */
static bool is_in_the_way(const struct ibx_host_map_wish *w)
{
    const struct ibx_host_map *m = ends;
    while (m && !overlaps(m, w->address, w->length))
        m = m->next_end;
    return m;
}

/* A client may come again, with the same addresses, while its former mappings end. That may take as
 * long as its last graph runs, and other clients do not wait for it. */
static void wait_for_ends(const struct ibx_host_map_wish *w)
{
    const uint64_t deadline = ibx_deadline_in_ms(ENDING_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    pthread_mutex_lock(&lock);
    while (is_in_the_way(w) && ibx_now_ns() < deadline)
        pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&lock);
}

/* Takes all out at once: a mapping that was still in the list would be in the way of a new session
 * of the same process, which would not wait for it. */
struct ibx_host_map *ibx_host_maps_take(uint64_t client)
{
    struct ibx_host_map *all = NULL, *m;
    pthread_mutex_lock(&lock);
    while ((m = take(client, 0, UINT64_MAX))) {
        m->next = all;
        all = m;
    }
    pthread_mutex_unlock(&lock);
    return all;
}

/* In the context of a device. False: the client's work there is not over yet. */
static bool wait_for_work(struct gpu_session *x, uint64_t client, const void *context, unsigned ms)
{
    uint64_t whose;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const enum ibx_work work = ibx_work_wait(x, client, context, ms, &whose);
    ibx_cuda_capture_restore(x->cuda, mode);
    const bool of_others = work == IBX_WORK_OF_OTHERS && ibx_clients_several(x);
    return work == IBX_WORK_OVER || work == IBX_WORK_LOST || of_others;
}

bool ibx_work_on_devices(struct gpu_session *x, uint64_t client, unsigned ms)
{
    void *context = NULL;
    bool over = true;
    for (int i = 0, entered; over && (entered = ibx_cuda_primary_enter(x->cuda, i, &context)) >= 0;
         i++) {
        if (!entered)
            continue;
        over = wait_for_work(x, client, context, ms);
        ibx_cuda_primary_leave(x->cuda, i);
    }
    return over;
}

/* Mappings of clients that had work under way when they ended: perhaps a kernel that waits for a
 * word of its program's. They end with what else the client has left, when somebody comes or leaves
 * after that work is over, or with this process. Locked. */
static struct ibx_host_map *kept;

static void keep(struct ibx_host_map *m)
{
    pthread_mutex_lock(&lock);
    m->next = kept;
    kept = m;
    pthread_mutex_unlock(&lock);
}

static void end_or_keep(struct gpu_session *x, struct ibx_host_map *taken, unsigned ms)
{
    uint64_t client = 0;
    bool over = true;
    for (struct ibx_host_map *m; (m = taken);) {
        taken = m->next;
        if (m->client != client)
            over = ibx_back_end_have_cuda(x) && ibx_work_on_devices(x, m->client, ms);
        client = m->client;
        if (over)
            end(x, m);
        else
            keep(m);
    }
}

void ibx_host_maps_tidy(struct gpu_session *x)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_map *all = kept;
    kept = NULL;
    pthread_mutex_unlock(&lock);
    end_or_keep(x, all, 0);
}

void ibx_host_maps_end(struct gpu_session *x, struct ibx_host_map *taken)
{
    ibx_host_maps_tidy(x);
    end_or_keep(x, taken, WORK_MS);
}

/* -------------------------------------------------------------------------------- a new one */

static int refuse(struct gpu_session *x, const struct ibx_host_map_wish *w, const char *why)
{
    if (!x->logged_maps)
        ibx_log(IBX_LOG_WARN,
                "kernels of %s do not reach its %llu bytes of page-locked memory at %#llx: %s",
                ibx_session_path(x->s)->peer, (unsigned long long)w->length,
                (unsigned long long)w->address, why);
    x->logged_maps = true;
    return CUDA_NOT_SUPPORTED;
}

static bool is_in_place_of_shared(const struct ibx_host_map_wish *w)
{
    return w->address >= IBX_SHARED_FROM && w->address < IBX_SHARED_UNTIL &&
           w->length <= IBX_SHARED_UNTIL - w->address;
}

/* The kernel's own data for a program is at the begin of its first stack. */
static bool is_for_programs(const struct ibx_host_map_wish *w)
{
    const uint64_t stack = getauxval(AT_RANDOM);
    return w->address >= LOW && w->length <= UINT64_MAX - w->address &&
           (w->address > stack + NEAR || w->address + w->length < stack - NEAR);
}

static bool is_sound(const struct ibx_host_map_wish *w, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return w->length && !(w->address % page) && !(w->length % page) &&
           (w->anywhere ? is_for_programs(w) : is_in_place_of_shared(w)) &&
           (w->own ||
            (!(w->offset % page) && w->offset <= bytes && w->length <= bytes - w->offset));
}

/* NULL, or the reason why it cannot be mapped. */
static const char *map(struct ibx_host_map *m, const struct ibx_host_map_wish *w, int fd)
{
    void *wanted = pointer_to(w->address);
    const int kind = w->own ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *there = mmap(wanted, w->length, PROT_READ | PROT_WRITE, kind | MAP_FIXED_NOREPLACE,
                       w->own ? -1 : fd, w->own ? 0 : (off_t)w->offset);
    if (there == MAP_FAILED)
        return strerror(errno);
    if (there != wanted) { /* a kernel, or a sanitizer, that does not know the flag */
        munmap(there, w->length);
        return strerror(EEXIST);
    }
    m->base = there;
    madvise(there, w->length, MADV_DONTDUMP);
    if (w->own)
        return NULL;
    return ibx_client_pin_is_whole(there, w->length) ? NULL : "some were never touched";
}

static const char *pin(struct gpu_session *x, struct ibx_host_map *m)
{
    const unsigned flags = IBX_CUDA_HOST_REGISTER_PORTABLE | IBX_CUDA_HOST_REGISTER_DEVICE_MAP;
    const int mode = ibx_cuda_capture_relax(x->cuda);
    const int rc = x->cuda->mem_host_register(m->base, m->length, flags);
    ibx_cuda_capture_restore(x->cuda, mode);
    if (rc)
        return ibx_cuda_error_name(x->cuda, rc);
    x->cuda->ctx_get_current(&m->context);
    return NULL;
}

/* The session may have pinned the same pages for copies, and other memory: copies find other ways,
 * but the kernel has none. Work may keep that from being unpinned, for ever if it waits for this
 * very program. */
static bool take_bytes(struct gpu_session *x, uint64_t client, struct ibx_quota *quota, uint64_t n)
{
    if (ibx_quota_take(quota, n))
        return true;
    bool room = ibx_client_pins_yield(&x->pins, x->cuda, n);
    if (!room && x->pins.put_off && ibx_work_on_devices(x, client, WORK_MS))
        room = ibx_client_pins_yield(&x->pins, x->cuda, n);
    return room && ibx_quota_take(quota, n);
}

static int make(struct gpu_session *x, uint64_t client, const struct ibx_host_map_wish *w, int fd)
{
    struct ibx_quota *quota = ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_PINS);
    struct ibx_host_map *m = calloc(1, sizeof(*m));
    if (!m)
        return refuse(x, w, "no memory");
    m->client = client;
    m->tenant = x->isolation.tenant;
    m->own = w->own;
    m->length = w->length;
    m->offset = w->offset;
    const char *why;
    if (take_bytes(x, client, quota, w->length)) {
        m->quota = quota;
        why = map(m, w, fd);
        x->maps_in_the_way += w->anywhere && !m->base;
    } else {
        why = "that is more than rdma.pins and rdma.tenant_share allow";
    }
    if (!why)
        why = pin(x, m);
    if (!why) {
        why = put(m);
        if (!why)
            return 0;
        unpin(x, m);
    }
    unmap(m);
    free(m);
    return refuse(x, w, why);
}

/* Locked. The client's mapping of these pages at that address; NULL: there is none. */
static struct ibx_host_map *same(uint64_t client, const struct ibx_host_map_wish *w)
{
    struct ibx_host_map *m = maps;
    while (m && !(m->client == client && (uintptr_t)m->base == w->address &&
                  m->length == w->length && m->offset == w->offset))
        m = m->next;
    return m;
}

/* Whether it is mapped already, and still pinned: a reset by a client that was alone would have
 * unpinned it. The driver is asked without the lock: it may delay this thread for long, and a
 * client that ends needs the lock. */
static bool is_there(struct gpu_session *x, uint64_t client, const struct ibx_host_map_wish *w)
{
    unsigned flags;
    pthread_mutex_lock(&lock);
    const bool known = same(client, w);
    pthread_mutex_unlock(&lock);
    return known && !x->cuda->mem_host_get_flags(&flags, pointer_to(w->address));
}

/* Pins pages of this process's own again, after a reset has unpinned them: the client's bytes are
 * in them. Meanwhile they are taken out of the list, so that nobody unmaps them. False: there are
 * none, or they cannot be pinned. */
static bool pin_again(struct gpu_session *x, uint64_t client, const struct ibx_host_map_wish *w)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_map *m = same(client, w);
    m = m && m->own ? take(client, w->address, w->length) : NULL;
    pthread_mutex_unlock(&lock);
    if (!m)
        return false;
    const bool pinned = !pin(x, m);
    if (!pinned) {
        end(x, m);
        return false;
    }
    pthread_mutex_lock(&lock);
    struct ibx_host_map **at = &ends;
    while (*at != m)
        at = &(*at)->next_end;
    *at = m->next_end;
    m->next = maps;
    maps = m;
    count++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return true;
}

static bool holds(const struct ibx_host_map *m, uint64_t client, uint64_t address, uint64_t n)
{
    const uint64_t at = address - (uintptr_t)m->base;
    return m->client == client && !m->unpinned && at < m->length && n <= m->length - at;
}

/* Locked. The client's mapping with all n bytes; NULL: there is none. */
static const struct ibx_host_map *holding(uint64_t client, uint64_t address, uint64_t n)
{
    const struct ibx_host_map *m = maps;
    while (m && !holds(m, client, address, n))
        m = m->next;
    return m;
}

bool ibx_host_maps_hold(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    const bool whole = holding(client, address, n);
    pthread_mutex_unlock(&lock);
    return whole;
}

bool ibx_host_maps_copy(struct gpu_session *x, uint64_t address, void *bytes, size_t n,
                        bool to_pages)
{
    const uint64_t client = ibx_clients_number(x);
    pthread_mutex_lock(&lock);
    const struct ibx_host_map *m = holding(client, address, n);
    const bool whole = m && m->own;
    if (whole)
        memcpy(to_pages ? pointer_to(address) : bytes, to_pages ? bytes : pointer_to(address), n);
    pthread_mutex_unlock(&lock);
    return whole;
}

bool ibx_host_maps_write(uint64_t client, uint64_t address, unsigned bytes, uint64_t word)
{
    pthread_mutex_lock(&lock);
    const struct ibx_host_map *m = holding(client, address, bytes);
    if (!m)
        for (m = ends; m && !holds(m, client, address, bytes);)
            m = m->next_end;
    if (m && bytes == sizeof(uint64_t))
        __atomic_store_n((uint64_t *)pointer_to(address), word, __ATOMIC_RELEASE);
    else if (m)
        __atomic_store_n((uint32_t *)pointer_to(address), (uint32_t)word, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return m;
}

int ibx_host_maps_make(struct gpu_session *x, const struct ibx_host_map_wish *w)
{
    uint64_t bytes = 0, process_namespace;
    const uint64_t client = ibx_clients_number(x);
    const int fd = w->own ? -1 : ibx_shared_of_peer(ibx_session_conn(x->s), &bytes);
    if ((fd < 0 && !w->own) || !client || !ibx_back_end_begin_context(x))
        return refuse(x, w, "they are not shared with the back end");
    if (!ibx_session_process(x->s, &process_namespace))
        return refuse(x, w,
                      "the client did not say which process it is, since "
                      "rdma.resume_seconds is 0 at one end");
    if (!is_sound(w, bytes))
        return refuse(x, w, "this is not where such memory may be");
    if (w->anywhere && x->maps_in_the_way >= TAKEN_MOST)
        return refuse(x, w, "at too many such addresses the back end had something");
    if (is_there(x, client, w) || (w->own && pin_again(x, client, w)))
        return 0;
    for (struct ibx_host_map *m; (m = take_locking(client, w->address, w->length));)
        end_given_back(x, m); /* older ones */
    ibx_host_maps_tidy(x);
    wait_for_ends(w);
    return make(x, client, w, fd);
}

void ibx_host_maps_give_back(struct gpu_session *x, uint64_t address)
{
    const uint64_t client = ibx_clients_number(x);
    for (struct ibx_host_map *m; client && (m = take_locking(client, address, 1));)
        end_given_back(x, m);
}
