/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Copies between host and device in graphs. The back end cannot reach this host's memory by an
 * address. So it copies between the device and a slot, page-locked memory of its own, by a node of
 * CUDA's, and calls a function of ours (host_functions.c) before the copy to the device, and behind
 * that from it: this side then copies between the slot and its memory, which needs no call of
 * CUDA's. Few bytes from the device come with the word that the function is to be called.
 *
 * Where the back end has no slot for a copy, its graph calls another function of ours in place of
 * it, which makes the copy as any other while the graph waits, in a stream that waits for nothing
 * else, and in no order with other threads' calls, which may be waiting for the graph.
 *
 * The same copy is the same function. They are not given back here: nobody tells this process when
 * the last graph that calls one has gone.
 */
#include "frontend-glue/preload/internal.h"

#include "common/log.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#define DEVICES      64
#define NON_BLOCKING 1u /* cudaStreamNonBlocking */

#define SLOT(number) ((uint64_t)1 << 63 | (number) << 32) /* as docs/protocol.md has it */
#define PIECE        ((size_t)1 << 19) /* bytes of a slot in one request, which a message may have */

struct graph_copy {
    struct ibx_cuda_memcpy3d parameters;
    int device;              /* that was current */
    _Atomic uint64_t number; /* of the function that copies between the slot and this memory, in
                                the process that has asked for that; 0: none yet */
    atomic_uint called;      /* so often */
    uint8_t *taken;          /* its bytes, which the call has taken: behind functions only */
    bool gone;               /* they were given back, and nobody has asked for such a copy since */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Of bytes that were taken: a back end may name a function when no graph calls it any more. */
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;
static void *copies; /* a tree */
static struct streams {
    void *of[DEVICES];
    unsigned resets_seen;
} functions, beside;      /* of the one thread that calls functions; of the one that fetches */
static atomic_bool slots; /* the back end has some */
static _Atomic unsigned resets;
static _Atomic int failure;

/* Copies behind functions, each in a graph that is launched again. */
#define BEHIND       64u
#define BEHIND_BYTES ((size_t)256 << 20) /* of all, in slots of the back end's */
static struct behind {
    struct graph_copy *copy;
    void *exec, *stream; /* the latter of its last launch */
    unsigned due;        /* calls of the copy's function by which all its launches are over */
} behind[BEHIND];
static unsigned behind_count, behind_resets;
static size_t behind_bytes;
static pthread_mutex_t behind_lock = PTHREAD_MUTEX_INITIALIZER;

/* Another thread may be changing the tree, which the child goes on with. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&taken_lock, NULL);
    pthread_mutex_init(&behind_lock, NULL);
    behind_bytes = behind_count = 0;
    memset(&functions, 0, sizeof(functions));
    memset(&beside, 0, sizeof(beside));
    atomic_store(&slots, false);
    atomic_store(&failure, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

void ibx_frontend_graph_reset(void)
{
    atomic_fetch_add(&resets, 1);
}

int ibx_frontend_graph_failure(void)
{
    return atomic_load_explicit(&failure, memory_order_relaxed) ? atomic_exchange(&failure, 0) : 0;
}

/* ---------------------------------------------------------------------- when a graph gets there */

/* Those that went with their context. */
static void forget_streams(struct streams *s)
{
    const unsigned now = atomic_load_explicit(&resets, memory_order_relaxed);
    if (now == s->resets_seen)
        return;
    memset(s->of, 0, sizeof(s->of));
    s->resets_seen = now;
}

/* The device stays selected: the thread is none of the program's. */
static int stream_of(struct streams *s, int device, void **stream)
{
    int now = 0, rc = cudaGetDevice(&now);
    forget_streams(s);
    if (!rc && now != device)
        rc = cudaSetDevice(device);
    if (!rc && !s->of[device])
        rc = CALL_NEXT(cudaStreamCreateWithFlags, &s->of[device], NON_BLOCKING);
    *stream = s->of[device];
    return rc;
}

static void *row_of(const struct ibx_cuda_pitched *memory, const struct ibx_cuda_extent *at,
                    size_t y, size_t z)
{
    return (char *)memory->at + ((at->depth + z) * memory->y + at->height + y) * memory->pitch +
           at->width;
}

/* In no order with calls of other threads: these may wait for the graph. */
static int copy_row(const struct ibx_cuda_memcpy3d *p, size_t y, size_t z, void *stream)
{
    const bool to_device = p->kind == CUDA_MEMCPY_TO_DEVICE;
    void *to = row_of(&p->to, &p->to_at, y, z), *from = row_of(&p->from, &p->from_at, y, z);
    const struct ibx_frontend_copy copy = {.to_device = to_device,
                                           .async = true,
                                           .alone = true,
                                           .device = (uintptr_t)(to_device ? to : from),
                                           .host = to_device ? from : to,
                                           .n = p->extent.width,
                                           .stream = (uintptr_t)stream};
    int code = CUDA_SUCCESS;
    return ibx_frontend_plugin()->copy(&copy, &code) ? CUDA_UNKNOWN : code;
}

static int copy_rows(const struct ibx_cuda_memcpy3d *p, void *stream)
{
    int rc = CUDA_SUCCESS;
    for (size_t z = 0; z < p->extent.depth && !rc; z++)
        for (size_t y = 0; y < p->extent.height && !rc; y++) {
            if (p->kind == CUDA_MEMCPY_ON_HOST)
                memcpy(row_of(&p->to, &p->to_at, y, z), row_of(&p->from, &p->from_at, y, z),
                       p->extent.width);
            else
                rc = copy_row(p, y, z, stream);
        }
    return rc;
}

static int wait_for(void *stream)
{
    struct extra e;
    int code;
    ibx_frontend_extra_begin(&e, IBX_EXTRA_STREAM_WAIT, "cudaStreamSynchronize");
    ibx_put_u64(&e.body, (uintptr_t)stream);
    return ibx_frontend_extra_try(&e, NULL, 0, &code) ? code : CUDA_UNKNOWN;
}

int ibx_frontend_copy_beside(void *to, const void *from, size_t n, int kind, int device)
{
    const struct ibx_cuda_memcpy3d copy = {.kind = kind,
                                           .from = {(void *)(uintptr_t)from, n, n, 1},
                                           .to = {to, n, n, 1},
                                           .extent = {n, 1, 1}};
    void *stream;
    int rc = ibx_frontend_plugin() ? stream_of(&beside, device, &stream) : CUDA_UNKNOWN;
    if (!rc)
        rc = copy_row(&copy, 0, 0, stream);
    return rc ? rc : wait_for(stream);
}

static void note_failure(int rc)
{
    atomic_store(&failure, rc);
    ibx_log(IBX_LOG_ERROR,
            "a copy between host and device in a graph has failed with CUDA error %d: the next "
            "call that waits returns it",
            rc);
}

static void make_copy(void *argument)
{
    const struct graph_copy *copy = argument;
    void *stream;
    int rc = stream_of(&functions, copy->device, &stream);
    if (!rc)
        rc = copy_rows(&copy->parameters, stream);
    if (!rc && copy->parameters.kind != CUDA_MEMCPY_ON_HOST)
        rc = wait_for(stream); /* pinned memory is written without that */
    if (rc)
        note_failure(rc);
}

/* ---------------------------------------------------------------------------------- by a slot */

static bool copies_to_device(const struct graph_copy *copy)
{
    return copy->parameters.kind == CUDA_MEMCPY_TO_DEVICE;
}

static size_t bytes_of(const struct ibx_cuda_memcpy3d *p)
{
    return p->extent.width * p->extent.height * p->extent.depth;
}

static char *host_row(const struct ibx_cuda_memcpy3d *p, size_t y, size_t z)
{
    return p->kind == CUDA_MEMCPY_TO_DEVICE ? row_of(&p->from, &p->from_at, y, z)
                                            : row_of(&p->to, &p->to_at, y, z);
}

/* Whether the rows are one behind the other. */
static bool is_whole(const struct ibx_cuda_memcpy3d *p)
{
    const struct ibx_cuda_pitched *host = p->kind == CUDA_MEMCPY_TO_DEVICE ? &p->from : &p->to;
    const struct ibx_cuda_extent *e = &p->extent;
    return (e->height * e->depth == 1 || host->pitch == e->width) &&
           (e->depth == 1 || host->y == e->height);
}

/* Between the rows and bytes without gaps. */
static void pack(const struct ibx_cuda_memcpy3d *p, uint8_t *bytes, bool rows_to_bytes)
{
    for (size_t z = 0; z < p->extent.depth; z++)
        for (size_t y = 0; y < p->extent.height; y++, bytes += p->extent.width)
            memcpy(rows_to_bytes ? (char *)bytes : host_row(p, y, z),
                   rows_to_bytes ? host_row(p, y, z) : (char *)bytes, p->extent.width);
}

static int exchange_bytes(const struct graph_copy *copy, uint8_t *bytes, size_t n)
{
    int code = CUDA_SUCCESS;
    for (size_t at = 0; at < n && !code; at += PIECE) {
        const struct ibx_frontend_copy piece = {.to_device = copies_to_device(copy),
                                                .async = true,
                                                .alone = true,
                                                .device = SLOT(copy->number) + at,
                                                .host = bytes + at,
                                                .n = n - at < PIECE ? n - at : PIECE};
        if (ibx_frontend_plugin()->copy(&piece, &code))
            code = CUDA_UNKNOWN;
    }
    return code;
}

static int exchange_rows(const struct graph_copy *copy)
{
    const struct ibx_cuda_memcpy3d *p = &copy->parameters;
    const size_t n = bytes_of(p);
    uint8_t *bytes = is_whole(p) ? (uint8_t *)host_row(p, 0, 0) : malloc(n);
    int rc = bytes ? CUDA_SUCCESS : CUDA_MEMORY_ALLOCATION;
    if (bytes && !is_whole(p) && copies_to_device(copy))
        pack(p, bytes, true);
    if (bytes)
        rc = exchange_bytes(copy, bytes, n);
    if (!rc && !is_whole(p) && !copies_to_device(copy))
        pack(p, bytes, false);
    if (!is_whole(p))
        free(bytes);
    return rc;
}

/* Called when the graph gets there: gives the slot the bytes, or takes them. */
static void exchange(void *argument)
{
    struct graph_copy *copy = argument;
    pthread_mutex_lock(&taken_lock);
    const bool taken = copy->taken, gone = copy->gone;
    if (!taken)
        pthread_mutex_unlock(&taken_lock);
    const int rc = gone ? CUDA_UNKNOWN : exchange_rows(copy);
    if (taken)
        pthread_mutex_unlock(&taken_lock);
    atomic_fetch_add(&copy->called, 1);
    if (rc)
        note_failure(rc);
}

bool ibx_frontend_graph_takes_bytes(void)
{
    return atomic_load_explicit(&slots, memory_order_relaxed);
}

bool ibx_frontend_graph_copies(void (*function)(void *argument))
{
    return function == make_copy || function == exchange;
}

bool ibx_frontend_graph_copied(void (*function)(void *argument), void *argument, uint8_t *bytes,
                               size_t n)
{
    const struct graph_copy *copy = argument;
    if (function != exchange || copies_to_device(copy) || n != bytes_of(&copy->parameters))
        return false;
    pack(&copy->parameters, bytes, false);
    return true;
}

/* ------------------------------------------------------------------------------ in a graph */

bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *p)
{
    const bool by_address = p->kind == CUDA_MEMCPY_DEFAULT;
    const bool from_host = !p->from_array && !ibx_frontend_is_managed(p->from.at) &&
                           !ibx_frontend_only_device(p->from.at) &&
                           (p->kind == CUDA_MEMCPY_TO_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST ||
                            (by_address && !ibx_frontend_is_device(p->from.at)));
    const bool to_host = !p->to_array && !ibx_frontend_is_managed(p->to.at) &&
                         !ibx_frontend_only_device(p->to.at) &&
                         (p->kind == CUDA_MEMCPY_FROM_DEVICE || p->kind == CUDA_MEMCPY_ON_HOST ||
                          (by_address && !ibx_frontend_is_device(p->to.at)));
    p->kind = from_host && to_host ? CUDA_MEMCPY_ON_HOST
              : from_host          ? CUDA_MEMCPY_TO_DEVICE
              : to_host            ? CUDA_MEMCPY_FROM_DEVICE
                                   : CUDA_MEMCPY_ON_DEVICE;
    return from_host || to_host;
}

static int compare(const void *a, const void *b)
{
    const struct graph_copy *left = a, *right = b;
    const int copies_differ =
        memcmp(&left->parameters, &right->parameters, offsetof(struct ibx_cuda_memcpy3d, kind));
    if (copies_differ)
        return copies_differ;
    return left->device != right->device ? left->device - right->device
                                         : left->parameters.kind - right->parameters.kind;
}

static struct graph_copy *find_or_make(const struct ibx_cuda_memcpy3d *p, int device)
{
    const struct graph_copy wanted = {.parameters = *p, .device = device};
    pthread_mutex_lock(&lock);
    struct graph_copy *const *found = tfind(&wanted, &copies, compare);
    struct graph_copy *made = found ? NULL : malloc(sizeof(*made));
    if (made) {
        *made = wanted;
        found = tsearch(made, &copies, compare);
    }
    struct graph_copy *copy = found ? *found : NULL;
    pthread_mutex_unlock(&lock); /* who forks waits for it, and for no bytes of a copy */
    pthread_mutex_lock(&taken_lock);
    if (copy)
        copy->gone = false;
    pthread_mutex_unlock(&taken_lock);
    if (!copy)
        free(made);
    return copy;
}

static struct graph_copy *copy_of(const struct ibx_cuda_memcpy3d *p, int *rc)
{
    int device = 0;
    *rc = CUDA_NOT_SUPPORTED;
    /* Elements of an array have a size of their own; and a copy there is one of the legacy stream.
     */
    if (p->from_array || p->to_array || !NEXT(cudaStreamCreateWithFlags))
        return NULL;
    if (cudaGetDevice(&device) || device < 0 || device >= DEVICES)
        return NULL;
    *rc = CUDA_MEMORY_ALLOCATION;
    return find_or_make(p, device);
}

uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *p, uint64_t *queue, int *rc)
{
    struct graph_copy *copy = copy_of(p, rc);
    const uint64_t number = copy ? ibx_frontend_host_repeated(make_copy, copy, queue) : 0;
    if (copy && !number)
        *rc = CUDA_NOT_SUPPORTED;
    ibx_frontend_device_used();
    return number;
}

uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy)
{
    uint64_t queue, number;
    int rc;
    struct ibx_cuda_memcpy3d p = *copy;
    struct graph_copy *found =
        p.kind == CUDA_MEMCPY_ON_HOST || !bytes_of(&p) ? NULL : copy_of(&p, &rc);
    if (!found || !(number = ibx_frontend_host_repeated(exchange, found, &queue)) || number >> 31)
        return 0;
    found->number = number;
    *(p.kind == CUDA_MEMCPY_TO_DEVICE ? &p.from : &p.to) = (struct ibx_cuda_pitched){.at = NULL};
    ibx_put_u64(body, queue);
    ibx_put_u64(body, number);
    ibx_layout_put(body, IBX_LAYOUT_MEMCPY3D, &p);
    return number;
}

bool ibx_frontend_slot_made(struct extra *e, void *out, size_t n, int *rc)
{
    const bool made = ibx_frontend_extra_known(e, out, n, rc);
    if (made && !*rc)
        atomic_store(&slots, true);
    ibx_frontend_device_used();
    return made;
}

bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *p)
{
    struct host_node host;
    if (!ibx_frontend_host_function_of(number, &host) || host.function != exchange)
        return false;
    *p = ((const struct graph_copy *)host.argument)->parameters;
    return true;
}

/* --------------------------------------------------------------- behind functions of a stream's */

/* Locked. */
static struct behind take_behind(unsigned at)
{
    const struct behind taken = behind[at];
    behind[at] = behind[--behind_count];
    behind_bytes -= bytes_of(&taken.copy->parameters);
    return taken;
}

/* Locked. */
static void put_behind(const struct behind *last)
{
    behind[behind_count++] = *last;
    behind_bytes += bytes_of(&last->copy->parameters);
}

/* Locked. */
static bool is_over(const struct behind *b)
{
    return (int)(atomic_load(&b->copy->called) - b->due) >= 0;
}

/* Locked. Bytes that it has taken, if any. */
static void give_back(struct graph_copy *copy)
{
    pthread_mutex_lock(&taken_lock);
    copy->gone = copy->taken;
    free(copy->taken);
    copy->taken = NULL;
    pthread_mutex_unlock(&taken_lock);
}

/* Locked. Those that went with their context; before one of them is chosen for its bytes. */
static void forget_reset(void)
{
    const unsigned now = atomic_load(&resets);
    while (now != behind_resets && behind_count) {
        const struct behind gone = take_behind(behind_count - 1);
        if (is_over(&gone))
            give_back(gone.copy);
    }
    behind_resets = now;
}

/* Locked. False: it is not there yet. */
static bool find_behind(const struct graph_copy *copy, struct behind *found)
{
    unsigned i = 0;
    while (i < behind_count && behind[i].copy != copy)
        i++;
    const bool there = i < behind_count;
    if (there)
        *found = take_behind(i);
    return there;
}

/* Locked. All its launches are over. */
static void end_behind(struct behind over)
{
    cudaGraphExecDestroy(over.exec);
    give_back(over.copy);
}

/* Locked. Those that are not under way. The driver may wait for what else is in their streams, so
 * not while a function is. */
static void drop_behind(void)
{
    for (unsigned i = 0; atomic_load(&resets) == behind_resets && i < behind_count;) {
        if (!is_over(&behind[i]) || ibx_frontend_host_waits(behind[i].stream))
            i++;
        else
            end_behind(take_behind(i));
    }
}

void ibx_frontend_graph_behind_trim(void)
{
    pthread_mutex_lock(&behind_lock);
    if (behind_count > BEHIND / 2 || behind_bytes > BEHIND_BYTES / 2)
        drop_behind();
    pthread_mutex_unlock(&behind_lock);
}

/* Locked. */
static bool has_room(const struct graph_copy *copy)
{
    return behind_count < BEHIND && bytes_of(&copy->parameters) <= BEHIND_BYTES - behind_bytes;
}

/* Locked. False: it is not to be had. */
static bool make_behind(struct graph_copy *copy, struct behind *made)
{
    void *graph = NULL, *node;
    int rc = CUDA_SUCCESS;
    *made = (struct behind){.copy = copy, .due = atomic_load(&copy->called)};
    if (!has_room(copy))
        drop_behind();
    if (!has_room(copy) || cudaGraphCreate(&graph, 0))
        return false;
    const bool good = ibx_frontend_slot_node(&node, graph, &copy->parameters, &rc) && !rc &&
                      !cudaGraphInstantiate(&made->exec, graph, 0);
    cudaGraphDestroy(graph);
    return good;
}

/* Locked. Likewise; then no call of the program's has failed. */
static bool try_behind(struct graph_copy *copy, struct behind *made)
{
    const int before = cudaPeekAtLastError();
    if (make_behind(copy, made))
        return true;
    cudaGetLastError();
    if (before)
        ibx_frontend_fail(before);
    return false;
}

/* Locked. One that takes as many bytes to the same place, and is over; NULL: there is none. */
static struct graph_copy *find_taken(const struct ibx_cuda_memcpy3d *p)
{
    int device = -1;
    for (unsigned i = 0; i < behind_count && !cudaGetDevice(&device); i++) {
        struct graph_copy *copy = behind[i].copy;
        if (copy->taken && copy->device == device && copy->parameters.to.at == p->to.at &&
            bytes_of(&copy->parameters) == bytes_of(p) && is_over(&behind[i]))
            return copy;
    }
    return NULL;
}

/* Locked. That copy of the bytes that its memory has now; NULL: no memory. */
static struct graph_copy *take_bytes(const struct ibx_cuda_memcpy3d *p)
{
    struct ibx_cuda_memcpy3d own = *p;
    int code;
    struct graph_copy *copy = find_taken(p);
    if (!copy && (own.from.at = malloc(bytes_of(p))) && (copy = copy_of(&own, &code)))
        copy->taken = own.from.at;
    else if (!copy)
        free(own.from.at);
    if (copy)
        memcpy(copy->taken, p->from.at, bytes_of(p));
    return copy;
}

bool ibx_frontend_graph_copy_behind(const struct ibx_cuda_memcpy3d *parameters, bool takes,
                                    void *stream, int *rc)
{
    struct behind b;
    int code;
    pthread_mutex_lock(&behind_lock);
    forget_reset();
    struct graph_copy *copy = takes ? take_bytes(parameters) : copy_of(parameters, &code);
    if (!copy) {
        pthread_mutex_unlock(&behind_lock);
        return false;
    }
    const bool there = find_behind(copy, &b) || try_behind(copy, &b);
    if (there) {
        const unsigned called = atomic_load(&copy->called);
        *rc = cudaGraphLaunch(b.exec, stream);
        b.stream = stream;
        if (!*rc)
            b.due = ((int)(b.due - called) > 0 ? b.due : called) + 1;
        put_behind(&b);
    } else if (takes) {
        give_back(copy);
    }
    pthread_mutex_unlock(&behind_lock);
    return there;
}
