/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * READ and WRITE. A chunk's bytes are copied in the first of these ways that is possible and fast:
 *
 *   mapped      the peer's memory lies in an arena: one memcpy by this side (peer_arena.c)
 *   requested   the peer and this side copy one half each (request.c); fast while the peer polls
 *   direct      process_vm_readv or process_vm_writev: one copy by this side, in the kernel
 *
 * Where the last two are possible, only a peer that is PRESENT (shm.h) gets requests, and an ABSENT
 * one gets one every PROBE_BYTES, which also wakes it. So nothing depends on the peer's polling.
 * Direct copies are tried only between processes of one user: a peer of another user could block us
 * in the kernel, on memory whose faults it does not answer.
 */
#include "transport/shm/shm.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define QUIET_NS         (50 * IBX_NS_PER_US) /* several times what a piece takes */
#define PROBE_BYTES      (1u << 20)
#define ALONE_AT_ONCE    (256u << 10) /* bytes copied before other work has its turn */
#define REQUESTS_AT_ONCE 2u           /* pieces likewise */
#define URGENT_RUN       4u           /* urgent steps, then one of bulk if there is any */
#define THREADS_TRIED    3u           /* of the peer's, which may end one after the other */

/* A chunk's cookie[0] is the number of bytes copied or requested; cookie[1] holds the number of
 * requests that the peer has not answered and, above it, the first error. */
#define OUTSTANDING_MASK 0xffffffffull
#define STATUS_SHIFT     32

static int chunk_status(const struct ibx_chunk *chunk)
{
    return -(int)(chunk->cookie[1] >> STATUS_SHIFT);
}

/* -------------------------------------------------------------------- queues */

static void queue_remove(struct shm_queue *queue, struct ibx_chunk *chunk)
{
    struct ibx_chunk **link = &queue->head;
    while (*link && *link != chunk)
        link = &(*link)->next;
    if (!*link)
        return;
    *link = chunk->next;
    if (!*link)
        queue->tail = link;
}

static const struct ibx_state peer_states[] = {
    [SHM_PEER_ABSENT] = {"absent", IBX_TO(SHM_PEER_PRESENT), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [SHM_PEER_PRESENT] = {"present", IBX_TO(SHM_PEER_ABSENT), 0}};
static const struct ibx_state_table peer_table = IBX_STATE_TABLE("shm peer", peer_states);

void ibx_shm_copy_init(struct shm *shm)
{
    ibx_state_begin(&shm->peer, &peer_table, SHM_PEER_ABSENT);
    ibx_shm_request_init(shm);
    shm->urgent.tail = &shm->urgent.head;
    shm->bulk.tail = &shm->bulk.head;
}

static struct shm_queue *queue_of(struct shm *shm, const struct ibx_chunk *chunk)
{
    return chunk->lane ? &shm->bulk : &shm->urgent;
}

int ibx_shm_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct shm *shm = endpoint;
    struct shm_queue *queue = queue_of(shm, chunk);
    chunk->cookie[0] = chunk->cookie[1] = 0;
    chunk->next = NULL;
    *queue->tail = chunk;
    queue->tail = &chunk->next;
    return 0;
}

/* -------------------------------------------------------------- direct copies */

/* Reads the peer's nonce and, in the same call and so from the same address space, `length` bytes
 * at `address`. Neither a process that took over the peer's id nor a program that the peer has
 * executed since has the nonce. */
static int read_by(const struct shm *shm, pid_t thread, void *local, uint64_t address,
                   size_t length)
{
    uint8_t nonce[IBX_SHM_NONCE];
    struct iovec to[2] = {{nonce, sizeof(nonce)}, {local, length}};
    struct iovec from[2] = {{(void *)(uintptr_t)shm->peer_nonce_address, sizeof(nonce)},
                            {(void *)(uintptr_t)address, length}};
    unsigned long parts = length ? 2 : 1;
    ssize_t n = process_vm_readv(thread, to, parts, from, parts, 0);
    if (n < 0 && errno != EFAULT)
        return -errno;
    if (n < (ssize_t)sizeof(nonce) || memcmp(nonce, shm->peer_nonce, sizeof(nonce)))
        return -ESRCH;
    return (size_t)n == sizeof(nonce) + length ? 0 : -EFAULT;
}

/* The same for a write, which writes the nonce over itself. This process may be stopped for any
 * time before the second call, so that call accesses the nonce first, too. */
static int write_by(const struct shm *shm, pid_t thread, void *local, uint64_t address,
                    size_t length)
{
    int rc = read_by(shm, thread, NULL, 0, 0); /* is it still the peer? */
    if (rc)
        return rc;
    struct iovec from[2] = {{(void *)(uintptr_t)shm->peer_nonce, IBX_SHM_NONCE}, {local, length}};
    struct iovec to[2] = {{(void *)(uintptr_t)shm->peer_nonce_address, IBX_SHM_NONCE},
                          {(void *)(uintptr_t)address, length}};
    ssize_t n = process_vm_writev(thread, from, 2, to, 2, 0);
    if (n < 0)
        return errno == EFAULT ? -ESRCH : -errno;
    return (size_t)n == IBX_SHM_NONCE + length ? 0 : -EFAULT;
}

/* Finds a thread of the peer that direct copies can name. A process lives on when its main thread
 * has ended and others run; the kernel then reaches its memory by their ids alone. */
static bool thread_find(struct shm *shm)
{
    char path[32];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/task", shm->peer_pid);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads && !found && (entry = readdir(threads));) {
        const pid_t thread = atoi(entry->d_name);
        found = thread > 0 && !read_by(shm, thread, NULL, 0, 0);
        if (found)
            atomic_store(&shm->peer_thread, thread);
    }
    if (threads)
        closedir(threads);
    return found;
}

/* Copies between this process and the peer's memory by a system call. From any thread. 0 or a
 * negative errno; -ESRCH: the peer's process is gone. */
static int direct_copy(struct shm *shm, bool read, void *local, uint64_t address, size_t length)
{
    for (unsigned tries = 0;; tries++) {
        const pid_t thread = atomic_load_explicit(&shm->peer_thread, memory_order_relaxed);
        const int rc = (read ? read_by : write_by)(shm, thread, local, address, length);
        if (rc != -ESRCH || tries == THREADS_TRIED || !thread_find(shm))
            return rc;
    }
}

static void no_direct(struct shm *shm, const char *reason)
{
    shm->direct = false;
    snprintf(shm->direct_reason, sizeof(shm->direct_reason), "%s", reason);
}

bool ibx_shm_direct_wanted(const struct shm *shm)
{
    const struct ibx_options *options = ibx_link_options(shm->link);
    return options->shm_direct && !(options->shm_not_direct && *options->shm_not_direct);
}

void ibx_shm_direct_probe(struct shm *shm)
{
    struct ucred peer = {0};
    socklen_t length = sizeof(peer);
    if (getsockopt(shm->control, SOL_SOCKET, SO_PEERCRED, &peer, &length) || peer.pid <= 0) {
        no_direct(shm, "the peer is in another PID namespace");
        return;
    }
    if (peer.uid != geteuid()) {
        no_direct(shm, "the peer is another user");
        return;
    }
    if (!ibx_shm_direct_wanted(shm)) {
        no_direct(shm, "this end does not allow it (shm_direct)");
        return;
    }
    if (!shm->peer_nonce_address) {
        no_direct(shm, "the peer does not allow it (shm_direct)");
        return;
    }
    shm->peer_pid = peer.pid;
    atomic_store(&shm->peer_thread, peer.pid);
    int rc = direct_copy(shm, true, NULL, 0, 0);
    shm->direct = !rc;
    if (rc == -EPERM)
        no_direct(shm, "process_vm_readv is not permitted (kernel.yama.ptrace_scope, or seccomp)");
    else if (rc)
        no_direct(shm, "process_vm_readv does not reach the peer");
}

/* Whether direct copies are still permitted: the peer may have changed its user, or become
 * undumpable. */
bool ibx_shm_direct_permitted(struct shm *shm)
{
    if (direct_copy(shm, true, NULL, 0, 0) == -EPERM)
        no_direct(shm, "process_vm_readv is no longer permitted");
    return shm->direct;
}

/* Copies through the mapping: 0 or a negative errno. 1: the memory is not mapped, or it is a WRITE
 * that would make pages in the peer's memory. */
static int mapped_copy(const struct shm_view *view, bool read, uint8_t *local, size_t length)
{
    if (!view->address)
        return 1;
    if (!ibx_shm_view_filled(view, length))
        return read ? ibx_shm_view_read(view, local, length) : 1;
    memcpy(read ? local : view->address, read ? view->address : local, length);
    return 0;
}

int ibx_shm_copy_alone(struct shm *shm, const struct ibx_chunk *chunk, uint8_t *local,
                       uint64_t address, size_t length, bool direct)
{
    struct shm_view view = {0};
    bool read = chunk->kind == IBX_RDMA_READ;
    int rc = ibx_shm_region_acquire(shm, chunk->remote_keys[0], address, length,
                                    read ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE, &view);
    if (rc)
        return rc;
    rc = mapped_copy(&view, read, local, length);
    if (rc > 0 && direct)
        rc = ibx_shm_remote_copy(shm, read, local, address, length);
    ibx_shm_region_release(shm);
    if (rc == -EPERM) {
        /* It was permitted at first: the peer has changed its user or become undumpable. */
        no_direct(shm, "process_vm_readv is no longer permitted");
        return 1;
    }
    if (rc != -ESRCH)
        return rc;
    ibx_shm_break(shm, -ECONNRESET, "the peer's process is gone");
    return -ECONNRESET;
}

/* ------------------------------------------------------------------ the chunks */

/* Records an error; the rest of the chunk is not copied then. */
static void chunk_fail(struct shm *shm, struct ibx_chunk *chunk, int status)
{
    if (!status || chunk_status(chunk))
        return;
    chunk->cookie[1] |= (uint64_t)(unsigned)-status << STATUS_SHIFT;
    if (chunk->cookie[0] < chunk->length)
        queue_remove(queue_of(shm, chunk), chunk);
    chunk->cookie[0] = chunk->length;
}

/* Reports the chunk if all of it is over. */
static int chunk_check(struct shm *shm, struct ibx_chunk *chunk)
{
    if (chunk->cookie[0] < chunk->length || chunk->cookie[1] & OUTSTANDING_MASK)
        return 0;
    shm->link->up->chunk_done(shm->link, chunk, chunk_status(chunk));
    return 1;
}

int ibx_shm_chunk_part_done(struct shm *shm, struct ibx_chunk *chunk, int status)
{
    chunk->cookie[1]--;
    chunk_fail(shm, chunk, status);
    return chunk_check(shm, chunk);
}

/* `length` more bytes of the chunk are copied or requested. */
static void chunk_advance(struct shm *shm, struct ibx_chunk *chunk, size_t length)
{
    chunk->cookie[0] += length;
    if (chunk->cookie[0] == chunk->length)
        queue_remove(queue_of(shm, chunk), chunk);
}

/* --------------------------------------------------------------- who copies */

/* Whether the peer was silent for too long; checked only while this side has nothing to copy. */
static bool quiet_too_long(struct shm *shm)
{
    uint64_t now = ibx_now_ns();
    if (!shm->quiet_since)
        shm->quiet_since = now;
    if (now - shm->quiet_since <= QUIET_NS)
        return false;
    ibx_shm_peer_is(shm, SHM_PEER_ABSENT);
    return true;
}

/* Whether the peer gets a request for the next bytes, unless they are mapped. */
static bool peer_copies(struct shm *shm, const struct ibx_chunk *chunk)
{
    if (!shm->direct)
        return true;
    if (atomic_load_explicit(&shm->theirs.control->sleeping, memory_order_relaxed) != SHM_AWAKE)
        ibx_shm_peer_is(shm, SHM_PEER_ABSENT);
    return shm->peer.now == SHM_PEER_PRESENT ||
           (chunk->lane && shm->copied_alone >= PROBE_BYTES && !ibx_shm_request_open(shm));
}

/* Requests the next bytes of the chunk from the peer; false when it has enough to do. */
static bool request_next(struct shm *shm, struct ibx_chunk *chunk)
{
    size_t done = (size_t)chunk->cookie[0], length = chunk->length - done;
    if (length > IBX_SHM_PIECE)
        length = IBX_SHM_PIECE;
    if (!ibx_shm_request_post(shm, chunk, (uint8_t *)chunk->local + done,
                              chunk->remote_address + done, length))
        return false;
    chunk->cookie[1]++;
    chunk_advance(shm, chunk, length);
    shm->copied_alone = 0;
    shm->quiet_since = 0;
    return true;
}

/* Copies or requests the next bytes of the chunk. Returns whether there is more to do at once; adds
 * upcalls to *made. */
static bool step(struct shm *shm, struct ibx_chunk *chunk, int *made)
{
    bool request = peer_copies(shm, chunk);
    size_t done = (size_t)chunk->cookie[0], length = chunk->length - done;
    if (length > ALONE_AT_ONCE)
        length = ALONE_AT_ONCE;
    int rc = ibx_shm_copy_alone(shm, chunk, (uint8_t *)chunk->local + done,
                                chunk->remote_address + done, length, !request);
    if (rc <= 0) {
        shm->copied_alone += length;
        chunk_advance(shm, chunk, length);
        chunk_fail(shm, chunk, rc);
        *made += chunk_check(shm, chunk);
        return false;
    }
    if (request_next(shm, chunk))
        return true;
    if (shm->direct)
        quiet_too_long(shm);
    return false;
}

/* Urgent work first, but a stream of it must not starve the bulk. */
static struct ibx_chunk *queue_next(struct shm *shm)
{
    if (shm->urgent.head && (shm->urgent_run < URGENT_RUN || !shm->bulk.head)) {
        shm->urgent_run++;
        return shm->urgent.head;
    }
    shm->urgent_run = 0;
    return shm->bulk.head;
}

int ibx_shm_copy_progress(struct shm *shm)
{
    int made = ibx_shm_serve(shm);
    struct ibx_chunk *chunk = queue_next(shm);
    for (unsigned i = 0; chunk && i < REQUESTS_AT_ONCE; i++) {
        if (!step(shm, chunk, &made))
            return made;
        chunk = queue_next(shm);
    }
    if (!chunk && shm->direct && ibx_shm_request_open(shm) && quiet_too_long(shm))
        made += ibx_shm_request_withdraw(shm);
    return made;
}

bool ibx_shm_copy_due(struct shm *shm)
{
    const struct ibx_chunk *chunk = shm->urgent.head ? shm->urgent.head : shm->bulk.head;
    if (shm->requested_urgent.count || shm->requested_bulk.count)
        return true;
    if (shm->direct) /* without an answer this side has to copy */
        return chunk || ibx_shm_request_open(shm);
    /* A chunk that waits for a bounce buffer is woken by the peer's DONE. */
    return chunk && ibx_shm_request_room(shm, chunk);
}

/* ------------------------------------------------------------------------ end */

void ibx_shm_copy_abort(struct shm *shm)
{
    /* The peer accesses bounce buffers only, so there is nothing to wait for. A chunk is reported
     * once: with its last piece, or from the queue if it is still there. */
    for (unsigned i = 0; i < IBX_SHM_PIECES; i++) {
        struct ibx_chunk *chunk = shm->pieces[i].chunk;
        if (shm->pieces[i].state.now == SHM_PIECE_REQUESTED)
            ibx_state_move(&shm->pieces[i].state, SHM_PIECE_WITHDRAWN);
        shm->pieces[i].chunk = NULL;
        if (chunk && !(--chunk->cookie[1] & OUTSTANDING_MASK) && chunk->cookie[0] == chunk->length)
            shm->link->up->chunk_done(shm->link, chunk, -ECONNRESET);
    }
    for (int i = 0; i < 2; i++) {
        struct shm_queue *queue = i ? &shm->bulk : &shm->urgent;
        while (queue->head) {
            struct ibx_chunk *chunk = queue->head;
            queue_remove(queue, chunk);
            shm->link->up->chunk_done(shm->link, chunk, -ECONNRESET);
        }
    }
}

/* ------------------------------------------------- copies by others than the core */

/* Holds the peer's memory for a GPU or several threads. The hazard pointer is set meanwhile, as
 * during this side's own copies; there is only one, so no chunk may be in flight. */
int ibx_shm_remote_hold(void *endpoint, const struct ibx_remote *remote, unsigned access,
                        struct ibx_reach *reach)
{
    struct shm *shm = endpoint;
    if (shm->urgent.head || shm->bulk.head || ibx_shm_request_open(shm))
        return -EBUSY;
    int rc = ibx_shm_region_acquire_whole(shm, remote, access, reach);
    if (rc)
        return rc;
    reach->copies = !reach->address && shm->direct;
    if (reach->address || reach->copies)
        return 0;
    ibx_shm_region_release(shm);
    return -EOPNOTSUPP;
}

void ibx_shm_remote_release(void *endpoint)
{
    ibx_shm_region_release(endpoint);
}

/* Copies by the kernel. From any thread. */
int ibx_shm_remote_copy(void *endpoint, bool read, void *local, uint64_t address, size_t length)
{
    return direct_copy(endpoint, read, local, address, length);
}
