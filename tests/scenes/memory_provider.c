/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/memory_provider.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define WIRES 64u

#define DEFAULTS                                                                                   \
    {                                                                                              \
        .chunk = 4096, .depth = 16, .lanes = 2, .rendezvous = 16384                                \
    }

struct memory_control memory_control = DEFAULTS;
struct memory_log_entry memory_log[MEMORY_LOG_MAX];
unsigned memory_log_count, memory_in_flight, memory_in_flight_max;
static _Atomic int live_endpoints, live_regions;

struct message {
    struct message *next;
    size_t length;
    uint8_t bytes[];
};

struct region {
    struct region *next;
    uint64_t key, address, length;
    unsigned access;
};

struct end {
    bool attached, closed;
    int event_fd;
    struct message *head, **tail;
    struct message *held; /* delivered and not yet released */
    struct region *regions;
    unsigned unreleased; /* messages queued or held here: the peer's used credit */
};

/* What two endpoints share. Ends are indexed by role. */
struct wire {
    uint64_t id; /* 0: free */
    struct end ends[2];
};

struct endpoint {
    struct ibx_link *link;
    bool first; /* it is "shm" */
    bool aborted;
    struct wire *wire;
    struct ibx_chunk *head, **tail;
    unsigned taken;
    unsigned on_lane[32];
};

/* One lock for all: tests, not speed. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct wire wires[WIRES];
static uint64_t last_id = 1000, last_key;

void memory_control_reset(void)
{
    memory_control = (struct memory_control)DEFAULTS;
    memory_log_count = memory_in_flight = memory_in_flight_max = 0;
}

int memory_live_endpoints(void)
{
    return atomic_load(&live_endpoints);
}

int memory_live_regions(void)
{
    return atomic_load(&live_regions);
}

static struct end *own_end(struct endpoint *ep)
{
    return &ep->wire->ends[ibx_link_role(ep->link)];
}

static struct end *peer_end(struct endpoint *ep)
{
    return &ep->wire->ends[!ibx_link_role(ep->link)];
}

static void poke(struct end *end)
{
    uint64_t one = 1;
    if (end->attached && write(end->event_fd, &one, sizeof(one)) < 0)
        abort();
}

/* -------------------------------------------------------------------- setting up */

static int open_any(struct ibx_link *link, void **out, bool first, struct ibx_error *err)
{
    if (first && memory_control.fail_open)
        return ibx_error_set(err, memory_control.fail_open, "open told to fail");
    struct endpoint *ep = calloc(1, sizeof(*ep));
    if (!ep)
        return ibx_error_set(err, -ENOMEM, "no memory for an endpoint");
    ep->link = link;
    ep->first = first;
    ep->tail = &ep->head;
    atomic_fetch_add(&live_endpoints, 1);
    *out = ep;
    return 0;
}

static int open_first(struct ibx_link *link, void **out, struct ibx_error *err)
{
    return open_any(link, out, true, err);
}

static int open_second(struct ibx_link *link, void **out, struct ibx_error *err)
{
    return open_any(link, out, false, err);
}

static struct wire *wire_find(uint64_t id)
{
    for (unsigned i = 0; i < WIRES; i++) {
        if (wires[i].id == id)
            return &wires[i];
    }
    return NULL;
}

static void end_init(struct end *end)
{
    *end = (struct end){.attached = true, .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    end->tail = &end->head;
}

static int attach(struct endpoint *ep, struct wire *wire, struct ibx_error *err)
{
    struct end *end = &wire->ends[ibx_link_role(ep->link)];
    if (end->attached)
        return ibx_error_set(err, -EBUSY, "this end of the wire is taken");
    end_init(end);
    ep->wire = wire;
    return 0;
}

void memory_wire_make(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct wire *wire = wire_find(0);
    *wire = (struct wire){.id = id};
    end_init(&wire->ends[IBX_ROLE_SERVER]);
    pthread_mutex_unlock(&lock);
}

static int memory_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct endpoint *ep = endpoint;
    if (ep->first && memory_control.fail_offer)
        return ibx_error_set(err, memory_control.fail_offer, "offer told to fail");
    pthread_mutex_lock(&lock);
    struct wire *wire = wire_find(0);
    int rc = wire ? 0 : ibx_error_set(err, -EBUSY, "all wires are in use");
    if (!rc) {
        *wire = (struct wire){.id = ++last_id};
        rc = attach(ep, wire, err);
        ibx_put_u64(offer, wire->id);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int memory_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                       struct ibx_error *err)
{
    struct endpoint *ep = endpoint;
    uint64_t id = ibx_get_u64(offer);
    (void)answer;
    if (ep->first && memory_control.fail_join)
        return ibx_error_set(err, memory_control.fail_join, "join told to fail");
    if (offer->failed || !id)
        return ibx_error_set(err, -EPROTO, "a malformed offer");
    pthread_mutex_lock(&lock);
    struct wire *wire = wire_find(id);
    int rc = wire ? attach(ep, wire, err) : ibx_error_set(err, -ENOENT, "there is no such wire");
    pthread_mutex_unlock(&lock);
    return rc;
}

static int memory_finish(void *endpoint, struct ibx_reader *answer, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    struct endpoint *ep = endpoint;
    (void)deadline_ns;
    if (ep->first && memory_control.fail_finish)
        return ibx_error_set(err, memory_control.fail_finish, "finish told to fail");
    if (answer && ibx_reader_left(answer))
        return ibx_error_set(err, -EPROTO, "an answer of %zu bytes where none is due",
                             ibx_reader_left(answer));
    return ibx_link_watch(ep->link, own_end(ep)->event_fd);
}

static void memory_query(void *endpoint, struct ibx_caps *caps, char *description, size_t size)
{
    struct endpoint *ep = endpoint;
    *caps = (struct ibx_caps){
        .message_max = ibx_link_options(ep->link)->message,
        .chunk = memory_control.chunk,
        .depth = memory_control.depth,
        .lanes = memory_control.lanes,
        .rendezvous = memory_control.rendezvous,
        .register_free = !memory_control.pins,
    };
    snprintf(description, size, "memory of this process");
}

/* ------------------------------------------------------------------------ memory */

static bool is_there(const struct ibx_span *span)
{
    const uintptr_t begin = (uintptr_t)span->address & ~(uintptr_t)4095;
    const size_t length = (uintptr_t)span->address + span->length - begin;
    unsigned char *pages = malloc(length / 4096 + 1);
    const bool there = pages && !mincore((void *)begin, length, pages);
    free(pages);
    return there;
}

static int memory_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct endpoint *ep = endpoint;
    int fail = mr->allocated ? memory_control.fail_allocate : memory_control.fail_register;
    if (fail)
        return ibx_error_set(err, fail, "registration told to fail");
    if (memory_control.pins && !mr->allocated && !is_there(&mr->span))
        return ibx_error_set(err, -EFAULT, "no memory is there");
    struct region *region = malloc(sizeof(*region));
    if (region && mr->allocated)
        mr->span.address = aligned_alloc(4096, (mr->span.length + 4095) & ~(size_t)4095);
    if (!region || !mr->span.address) {
        free(region);
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    }
    if (mr->allocated)
        memset(mr->span.address, 0, mr->span.length);
    pthread_mutex_lock(&lock);
    struct end *end = own_end(ep);
    *region = (struct region){end->regions, ++last_key, (uintptr_t)mr->span.address,
                              mr->span.length, mr->access};
    end->regions = region;
    mr->keys[0] = region->key;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&live_regions, 1);
    return 0;
}

static void memory_mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    struct endpoint *ep = endpoint;
    pthread_mutex_lock(&lock);
    struct region **at = &own_end(ep)->regions;
    while ((*at)->key != mr->keys[0])
        at = &(*at)->next;
    struct region *region = *at;
    *at = region->next;
    pthread_mutex_unlock(&lock);
    free(region);
    if (mr->allocated)
        free(mr->span.address);
    atomic_fetch_sub(&live_regions, 1);
}

/* -------------------------------------------------------------------------- work */

static int memory_rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct endpoint *ep = endpoint;
    if (memory_control.refuse)
        return memory_control.refuse;
    if ((memory_control.room && ep->taken >= memory_control.room) ||
        (memory_control.lane_room && ep->on_lane[chunk->lane] >= memory_control.lane_room))
        return -EAGAIN;
    pthread_mutex_lock(&lock);
    if (memory_log_count < MEMORY_LOG_MAX)
        memory_log[memory_log_count] =
            (struct memory_log_entry){chunk->lane, chunk->length, chunk->remote_address};
    memory_log_count++;
    memory_in_flight++;
    if (memory_in_flight > memory_in_flight_max)
        memory_in_flight_max = memory_in_flight;
    pthread_mutex_unlock(&lock);
    chunk->next = NULL;
    *ep->tail = chunk;
    ep->tail = &chunk->next;
    ep->taken++;
    ep->on_lane[chunk->lane]++;
    return 0;
}

/* Under the lock: the peer's region stays for as long as it is held. */
static int carry_out(struct endpoint *ep, const struct ibx_chunk *chunk)
{
    unsigned need = chunk->kind == IBX_RDMA_READ ? IBX_ACCESS_REMOTE_READ : IBX_ACCESS_REMOTE_WRITE;
    struct end *peer = peer_end(ep);
    if (memory_control.fail_in && !--memory_control.fail_in)
        return -EIO;
    if (!peer->attached || peer->closed)
        return memory_control.survives ? 0 : -ECONNRESET;
    for (struct region *r = peer->regions; r; r = r->next) {
        uint64_t offset = chunk->remote_address - r->address;
        if (r->key != chunk->remote_keys[0] || !(r->access & need) || offset > r->length ||
            chunk->length > r->length - offset)
            continue;
        void *remote = (void *)(uintptr_t)chunk->remote_address; /* checked to lie in r */
        if (chunk->kind == IBX_RDMA_READ)
            memcpy(chunk->local, remote, chunk->length);
        else
            memcpy(remote, chunk->local, chunk->length);
        return 0;
    }
    return -EACCES;
}

static int chunks_finish(struct endpoint *ep, int forced)
{
    int made = 0;
    unsigned most = forced || !memory_control.per_round ? UINT_MAX : memory_control.per_round;
    while (ep->head && most--) {
        struct ibx_chunk *chunk = ep->head;
        ep->head = chunk->next;
        if (!ep->head)
            ep->tail = &ep->head;
        ep->taken--;
        ep->on_lane[chunk->lane]--;
        pthread_mutex_lock(&lock);
        memory_in_flight--;
        int status = forced ? forced : carry_out(ep, chunk);
        pthread_mutex_unlock(&lock);
        ep->link->up->chunk_done(ep->link, chunk, status);
        made++;
    }
    return made;
}

static int memory_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                       uint64_t cookie, unsigned flags)
{
    struct endpoint *ep = endpoint;
    size_t capacity = ibx_link_options(ep->link)->slots;
    (void)cookie;
    (void)flags;
    struct message *message = malloc(sizeof(*message) + length);
    if (!message)
        return -ENOMEM;
    message->next = NULL;
    message->length = length;
    ibx_gather(message->bytes, iov, iovcnt);
    pthread_mutex_lock(&lock);
    struct end *peer = peer_end(ep);
    bool lost = !peer->attached || peer->closed;
    bool full = !lost && peer->unreleased >= capacity;
    if (!lost && !full) {
        *peer->tail = message;
        peer->tail = &message->next;
        peer->unreleased++;
        poke(peer);
    }
    pthread_mutex_unlock(&lock);
    if (lost || full)
        free(message);
    return full ? -EAGAIN : 0; /* what is sent to nobody is lost with the connection */
}

static void memory_release(void *endpoint, uint64_t slot)
{
    struct endpoint *ep = endpoint;
    struct message *message = (struct message *)(uintptr_t)slot;
    pthread_mutex_lock(&lock);
    struct end *end = own_end(ep);
    struct message **at = &end->held;
    while (*at != message)
        at = &(*at)->next;
    *at = message->next;
    end->unreleased--;
    poke(peer_end(ep));
    pthread_mutex_unlock(&lock);
    free(message);
}

static struct message *message_take(struct end *end)
{
    pthread_mutex_lock(&lock);
    struct message *message = end->head;
    if (message) {
        end->head = message->next;
        if (!end->head)
            end->tail = &end->head;
        message->next = end->held;
        end->held = message;
    }
    pthread_mutex_unlock(&lock);
    return message;
}

static int messages_deliver(struct endpoint *ep)
{
    int made = 0;
    for (struct message *m; made < 8 && (m = message_take(own_end(ep))); made++)
        ep->link->up->message(ep->link, m->bytes, m->length, (uintptr_t)m);
    return made;
}

static int memory_progress(void *endpoint)
{
    struct endpoint *ep = endpoint;
    int made = ep->aborted ? 0 : messages_deliver(ep);
    if (ep->aborted)
        made += chunks_finish(ep, -ECONNRESET);
    else if (!memory_control.hold)
        made += chunks_finish(ep, 0);
    void (*hook)(void) = memory_control.when_idle;
    if (hook && !made) {
        memory_control.when_idle = NULL;
        hook();
    }
    return made + memory_control.busy;
}

static int memory_arm(void *endpoint)
{
    struct endpoint *ep = endpoint;
    uint64_t count;
    pthread_mutex_lock(&lock);
    struct end *end = own_end(ep);
    ssize_t ignored = read(end->event_fd, &count, sizeof(count));
    (void)ignored;
    bool more = end->head || (ep->head && !memory_control.hold);
    pthread_mutex_unlock(&lock);
    return more;
}

/* --------------------------------------------------------------------------- end */

static void memory_abort(void *endpoint)
{
    struct endpoint *ep = endpoint;
    ep->aborted = true;
    if (!memory_control.late_abort)
        chunks_finish(ep, -ECONNRESET);
}

static void messages_free(struct message *head)
{
    for (struct message *next; head; head = next) {
        next = head->next;
        free(head);
    }
}

static void detach(struct wire *wire, enum ibx_role role)
{
    struct end *end = &wire->ends[role];
    close(end->event_fd);
    messages_free(end->head);
    messages_free(end->held);
    *end = (struct end){.closed = true};
    if (!wire->ends[!role].attached)
        wire->id = 0;
}

void memory_wire_drop(uint64_t id)
{
    pthread_mutex_lock(&lock);
    detach(wire_find(id), IBX_ROLE_SERVER);
    pthread_mutex_unlock(&lock);
}

static void memory_close(void *endpoint)
{
    struct endpoint *ep = endpoint;
    if (ep->wire) {
        pthread_mutex_lock(&lock);
        ibx_link_unwatch(ep->link, own_end(ep)->event_fd);
        detach(ep->wire, ibx_link_role(ep->link));
        pthread_mutex_unlock(&lock);
    }
    free(ep);
    atomic_fetch_sub(&live_endpoints, 1);
}

#define CALLS                                                                                      \
    .offer = memory_offer, .join = memory_join, .finish = memory_finish, .query = memory_query,    \
    .mr_register = memory_mr_register, .mr_deregister = memory_mr_deregister, .rdma = memory_rdma, \
    .send = memory_send, .release = memory_release, .progress = memory_progress,                   \
    .arm = memory_arm, .abort = memory_abort, .close = memory_close

static const struct ibx_provider first = {.name = "shm", .open = open_first, CALLS};
static const struct ibx_provider second = {.name = "tcp", .open = open_second, CALLS};

/* ------------------------------------------------- in place of transport/core/providers.c */

static const char *const names[] = {"shm", "verbs", "ofi", "tcp"};

const struct ibx_provider *ibx_provider_find(const char *name)
{
    return !strcmp(name, "shm") ? &first : !strcmp(name, "tcp") ? &second : NULL;
}

const char *ibx_provider_name(unsigned index)
{
    return index < 4 ? names[index] : NULL;
}
