/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NCCL. A program's communicators are made at the back end, so the GPUs' own links carry what they
 * send, and nothing of it passes through the program.
 *
 * Communicators are made as non-blocking ones, whatever the program wants: their threads do what
 * takes long, such as waiting for all ranks. This thread waits as long as the call has to, and
 * looks after its client. A client that is gone, or aborts the communicator, is not waited for; so
 * ranks that never come keep nothing here. Programs get the address of a struct communicator, and
 * of NCCL's own only what NCCL says of it.
 *
 * A request has a whole group, whose handles, addresses and streams are checked together: none of
 * them can end between the check and the end of the group. NCCL is not called by two threads at a
 * time for one communicator: a request has it alone (math_limits.c), and questions about its state
 * take a lock.
 */
#include "frontend-glue/device_calls/math_nccl_communicators.h"

#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS      256u      /* of a tenant, without a communicator yet */
#define ALONE_MS 10000u    /* for so long a request waits until it has one alone */
#define SPIN_NS  200000u   /* for so long a call is polled for before the thread sleeps */
#define SOON_NS  20000000u /* ... and for so long its naps stay short */
#define LOOK_NS  1000000u  /* ... and so often it looks after its client */

/* For all clients: nothing that may take long is done under it, and no other lock waited for. */
static pthread_mutex_t links = PTHREAD_MUTEX_INITIALIZER;

bool ibx_nccl_allowed(const struct gpu_session *x)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!x->options.nccl && !atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN, "a client calls NCCL, which is not allowed here: set rdma.nccl : on "
                              "in gvirtus.properties if clients may connect GPUs with each other");
    return x->options.nccl;
}

/* ------------------------------------------------------------------------------- who has it */

/* Waits until the request has it alone. False: it takes too long, or somebody ends it. */
bool ibx_nccl_begin_alone(const struct gpu_session *x, struct communicator *c)
{
    const uint64_t deadline = ibx_deadline_in_ms(ALONE_MS);
    const struct gpu_session *user = NULL;
    uint64_t ns = 0;
    while (!atomic_compare_exchange_strong(&c->user, &user, x) && user != x) {
        if (atomic_load(&c->ends) || ibx_now_ns() > deadline)
            return false;
        ibx_nap(&ns);
        user = NULL;
    }
    return true;
}

void ibx_nccl_end_alone(const struct gpu_session *x, struct communicator *c)
{
    const struct gpu_session *user = x;
    atomic_compare_exchange_strong(&c->user, &user, NULL);
}

/* ------------------------------------------------------------------------------- unique ids */

/* For each id NCCL has a thread that waits for all ranks, and nothing but these ends it, not even
 * an abort. So a client gets only so many before their communicators are made. An id has room for
 * what NCCL does not read: its bytes themselves are compared, so no other one passes for it. */
static struct place {
    struct place *next;
    enum { PLACE_FREE, PLACE_TAKEN /* without an id yet */, PLACE_WAITS } state;
    const struct ibx_tenant *tenant;
    uint8_t id[IBX_NCCL_ID_BYTES];
} * places; /* kept, and used again */
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;

static void forget_id(const uint8_t id[IBX_NCCL_ID_BYTES])
{
    pthread_mutex_lock(&places_lock);
    for (struct place *p = places; p; p = p->next)
        if (p->state == PLACE_WAITS && !memcmp(p->id, id, sizeof(p->id)))
            p->state = PLACE_FREE;
    pthread_mutex_unlock(&places_lock);
}

/* NULL: the tenant has as many as it may have, or there is no memory. */
static struct place *take_place(const struct ibx_tenant *tenant)
{
    struct place *place = NULL;
    unsigned own = 0;
    pthread_mutex_lock(&places_lock);
    for (struct place *p = places; p; p = p->next) {
        own += p->state != PLACE_FREE && p->tenant == tenant;
        place = p->state == PLACE_FREE ? p : place;
    }
    if (own >= IDS)
        place = NULL;
    else if (!place && (place = calloc(1, sizeof(*place)))) {
        place->next = places;
        places = place;
    }
    if (place) {
        place->state = PLACE_TAKEN;
        place->tenant = tenant;
    }
    pthread_mutex_unlock(&places_lock);
    return place;
}

static int get_id(struct gpu_session *x, void *function, uint8_t *out)
{
    int (*get)(uint8_t * id) = NULL;
    struct place *place = take_place(x->isolation.tenant);
    *(void **)&get = function;
    if (!place) {
        static atomic_flag told = ATOMIC_FLAG_INIT;
        if (!atomic_flag_test_and_set(&told))
            ibx_log(IBX_LOG_WARN,
                    "a client gets no more unique ids of NCCL: with %u no "
                    "communicator was made yet",
                    IDS);
        return NCCL_SYSTEM_ERROR;
    }
    const int rc = get(out);
    pthread_mutex_lock(&places_lock);
    memcpy(place->id, out, sizeof(place->id));
    place->state = rc ? PLACE_FREE : PLACE_WAITS;
    pthread_mutex_unlock(&places_lock);
    return rc;
}

/* ------------------------------------------------------------------------------- its state */

/* Locked. */
static int state_of(void *of)
{
    int (*ask)(void *communicator, int *state) = NULL;
    int state = NCCL_INTERNAL_ERROR;
    *(void **)&ask = FUNCTION(ncclCommGetAsyncError);
    const int rc = of && ask ? ask(of, &state) : NCCL_INTERNAL_ERROR;
    return rc ? rc : state;
}

static int abort_of(void *of)
{
    int (*end)(void *communicator) = NULL;
    *(void **)&end = FUNCTION(ncclCommAbort);
    const int rc = of && end ? end(of) : 0;
    return rc == NCCL_IN_PROGRESS ? 0 : rc;
}

static void free_communicator(struct communicator *c)
{
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* `links` is locked: the parent has made its child, or has failed to. What is returned is to be
 * given to end_orphan() without that lock. */
static struct communicator *split_is_over(struct communicator *parent)
{
    struct communicator *child = parent->child;
    parent->child = NULL;
    if (!child)
        return NULL;
    child->parent = NULL;
    return child->orphan ? child : NULL;
}

static void end_orphan(struct communicator *orphan)
{
    if (!orphan)
        return;
    abort_of(orphan->of);
    free_communicator(orphan);
}

/* `links` is locked. The parent's state: it is in progress, too, while NCCL is called for it. */
static int look_at_split(struct communicator *parent, struct communicator **orphan)
{
    int state = NCCL_IN_PROGRESS;
    if (pthread_mutex_trylock(&parent->lock))
        return state;
    state = state_of(parent->of);
    pthread_mutex_unlock(&parent->lock);
    if (state != NCCL_IN_PROGRESS)
        *orphan = split_is_over(parent);
    return state;
}

/* The state of a communicator that is being split off; NCCL_SUCCESS also if it is none. */
static int state_of_split(struct communicator *c)
{
    struct communicator *orphan = NULL;
    int state = NCCL_SUCCESS;
    pthread_mutex_lock(&links);
    if (c->parent)
        state = look_at_split(c->parent, &orphan);
    pthread_mutex_unlock(&links);
    end_orphan(orphan);
    return state;
}

/* Whether all ranks are there is known once; then so are these numbers. */
static bool note_made(struct communicator *c)
{
    int (*count)(void *communicator, int *n) = NULL, (*rank)(void *communicator, int *n) = NULL;
    *(void **)&count = FUNCTION(ncclCommCount);
    *(void **)&rank = FUNCTION(ncclCommUserRank);
    c->made = count && rank && !count(c->of, &c->ranks) && !rank(c->of, &c->rank);
    return c->made;
}

/* A split may have begun since its state was asked for, so that is asked for again. */
static void look_at_child(struct communicator *c)
{
    struct communicator *orphan = NULL;
    pthread_mutex_lock(&links);
    if (c->child)
        look_at_split(c, &orphan);
    pthread_mutex_unlock(&links);
    end_orphan(orphan);
}

/* What NCCL says; for a client's blocking communicator that is made, no work is in progress. */
int ibx_nccl_look(struct communicator *c)
{
    int state = state_of_split(c);
    if (state == NCCL_IN_PROGRESS)
        return state;
    pthread_mutex_lock(&c->lock);
    const int own = state_of(c->of);
    state = state ? state : own;
    const bool newly_made = !state && !c->made && note_made(c);
    pthread_mutex_unlock(&c->lock);
    if (newly_made)
        forget_id(c->id);
    if (state != NCCL_IN_PROGRESS)
        look_at_child(c);
    return state;
}

/* Waits until nothing is in progress. */
int ibx_nccl_wait(struct gpu_session *x, struct communicator *c)
{
    const uint64_t began = ibx_now_ns();
    uint64_t since = 0, looked = began, ns = 0;
    int state;
    while ((state = ibx_nccl_look(c)) == NCCL_IN_PROGRESS) {
        const uint64_t now = ibx_now_ns();
        if (atomic_load(&c->ends))
            return NCCL_INTERNAL_ERROR;
        if (now - looked > LOOK_NS && ibx_session_client_gone(x->s, &since))
            return NCCL_REMOTE_ERROR;
        looked = now - looked > LOOK_NS ? now : looked;
        ns = now - began < SOON_NS ? 0 : ns;
        if (now - began > SPIN_NS)
            ibx_nap(&ns);
    }
    return state;
}

static int get_state(struct gpu_session *x, struct communicator *c, bool wait, int *out)
{
    *out = wait && c->blocking ? ibx_nccl_wait(x, c) : ibx_nccl_look(c);
    if (*out == NCCL_IN_PROGRESS && c->blocking && c->made)
        *out = NCCL_SUCCESS;
    return NCCL_SUCCESS;
}

/* ------------------------------------------------------------------------------- making one */

struct unique_id {
    char bytes[IBX_NCCL_ID_BYTES];
};

/* ncclConfig_t as of 2.18; later versions of the library accept it. */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster, least_ctas, most_ctas;
    const char *network;
    int split_share;
};

static struct config config_of(const int *numbers, int count)
{
    int n[IBX_NCCL_NUMBERS];
    for (int i = 0; i < IBX_NCCL_NUMBERS; i++)
        n[i] = numbers && i < count ? numbers[i] : IBX_NCCL_UNSET;
    return (struct config){.size = sizeof(struct config),
                           .magic = 0xcafebeef,
                           .version = 21800,
                           .cga_cluster = n[IBX_NCCL_CGA_CLUSTER],
                           .least_ctas = n[IBX_NCCL_LEAST_CTAS],
                           .most_ctas = n[IBX_NCCL_MOST_CTAS],
                           .split_share = n[IBX_NCCL_SPLIT_SHARE]};
}

static bool wants_to_block(const int *numbers, int count, bool otherwise)
{
    const int number =
        numbers && count > IBX_NCCL_BLOCKING ? numbers[IBX_NCCL_BLOCKING] : IBX_NCCL_UNSET;
    return number == IBX_NCCL_UNSET ? otherwise : number != 0;
}

static struct communicator *new_communicator(int device, bool blocking)
{
    struct communicator *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    pthread_mutex_init(&c->lock, NULL);
    c->device = device;
    c->blocking = blocking;
    return c;
}

/* The device is the one that the client's thread has selected. */
static int begin_rank(struct gpu_session *x, void *function, const union ibx_math_value *values)
{
    int (*begin)(void **made, int ranks, struct unique_id id, int rank, struct config *config) =
        NULL;
    const int ranks = values[1].i, rank = values[2].i, count = values[4].i;
    struct config config = config_of(values[5].p, count);
    struct unique_id id;
    if (!values[3].p || ranks < 1 || rank < 0 || rank >= ranks)
        return NCCL_INVALID_ARGUMENT;
    struct communicator *c = new_communicator(x->device, wants_to_block(values[5].p, count, true));
    if (!c)
        return NCCL_SYSTEM_ERROR;
    memcpy(&id, values[3].p, sizeof(id));
    memcpy(c->id, values[3].p, sizeof(c->id));
    *(void **)&begin = function;
    const int rc = begin(&c->of, ranks, id, rank, &config);
    if ((rc && rc != NCCL_IN_PROGRESS) || !c->of) {
        free_communicator(c);
        return rc ? rc : NCCL_INTERNAL_ERROR;
    }
    memcpy(values[0].p, &c, sizeof(c));
    return NCCL_SUCCESS;
}

/* With a negative color the rank takes part, and gets none. */
static int split(void *function, const union ibx_math_value *values)
{
    int (*begin)(void *parent, int color, int key, void **made, struct config *config) = NULL;
    struct communicator *parent = communicator_of(values[0].p), *child = NULL;
    const int color = values[1].i, count = values[4].i;
    struct config config = config_of(values[5].p, count);
    struct config *given = count > 0 ? &config : NULL; /* without it, the parent's */
    *(void **)&begin = function;
    if (color >= 0) {
        child =
            new_communicator(parent->device, wants_to_block(values[5].p, count, parent->blocking));
        if (!child)
            return NCCL_SYSTEM_ERROR;
    }
    const bool busy = ibx_nccl_look(parent) != NCCL_SUCCESS;
    pthread_mutex_lock(&parent->lock);
    int rc = busy
                 ? NCCL_INVALID_USAGE
                 : begin(parent->of, color, values[2].i, child ? &child->of : &parent->none, given);
    rc = rc == NCCL_IN_PROGRESS ? NCCL_SUCCESS : rc;
    if (!rc && child) { /* under both locks, so it is not seen to be over before it has begun */
        pthread_mutex_lock(&links);
        parent->child = child;
        child->parent = parent;
        pthread_mutex_unlock(&links);
    }
    pthread_mutex_unlock(&parent->lock);
    if (rc && child) {
        free_communicator(child);
        child = NULL;
    }
    memcpy(values[3].p, &child, sizeof(child));
    return rc;
}

/* ------------------------------------------------------------------------------- ending one */

/* Begins to. `wait`: also waits until it is done. */
static int finalize(struct gpu_session *x, struct communicator *c, bool wait)
{
    int (*begin)(void *communicator) = NULL;
    *(void **)&begin = FUNCTION(ncclCommFinalize);
    pthread_mutex_lock(&c->lock);
    int rc = !begin || !c->of ? NCCL_INVALID_USAGE : begin(c->of);
    c->finalized = c->finalized || !rc || rc == NCCL_IN_PROGRESS;
    pthread_mutex_unlock(&c->lock);
    if (rc == NCCL_IN_PROGRESS)
        rc = wait ? ibx_nccl_wait(x, c) : NCCL_SUCCESS;
    return rc;
}

/* Frees it. `gently`: its work is over. */
static int end(struct communicator *c, bool gently)
{
    int (*destroy)(void *communicator) = NULL;
    int rc;
    pthread_mutex_lock(&links);
    const bool waits = c->parent;
    c->orphan = waits;
    pthread_mutex_unlock(&links);
    if (waits) /* its parent still writes into it */
        return NCCL_SUCCESS;
    *(void **)&destroy = FUNCTION(ncclCommDestroy);
    pthread_mutex_lock(&c->lock);
    rc = gently && destroy && c->of ? destroy(c->of) : abort_of(c->of);
    c->of = NULL;
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_lock(&links);
    struct communicator *orphan = split_is_over(c);
    pthread_mutex_unlock(&links);
    end_orphan(orphan);
    free_communicator(c);
    return rc == NCCL_IN_PROGRESS ? NCCL_SUCCESS : rc;
}

/* Its handle is gone, and what other threads waited for in it has returned: only this one waits. */
static int destroy(struct gpu_session *x, struct communicator *c)
{
    atomic_store(&c->ends, false);
    const int rc = c->finalized ? ibx_nccl_wait(x, c) : c->made ? finalize(x, c, true) : 1;
    return end(c, !rc);
}

void ibx_nccl_leave(uint64_t communicator)
{
    atomic_store(&communicator_of((void *)(uintptr_t)communicator)->ends, true);
}

void ibx_nccl_end(uint64_t communicator)
{
    end(communicator_of((void *)(uintptr_t)communicator), false);
}

/* ------------------------------------------------------------------------------- a request */

/* NCCL keeps one text for all: it is told as long as all of it is the client's. */
static int get_text(void *function, char *out)
{
    const char *(*get)(void *communicator) = NULL;
    *(void **)&get = function;
    const char *text = ibx_clients_were_several() ? NULL : get(NULL);
    snprintf(out, 248, "%s", text ? text : "");
    return NCCL_SUCCESS;
}

static int get_number(struct communicator *c, void *function, int *out)
{
    int (*get)(void *communicator, int *number) = NULL;
    *(void **)&get = function;
    pthread_mutex_lock(&c->lock);
    const int rc = c->of ? get(c->of, out) : NCCL_INVALID_ARGUMENT;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Calls that work with the communicator. */
static int run_alone(struct gpu_session *x, struct communicator *c, unsigned number, void *function,
                     const union ibx_math_value *values)
{
    if (!ibx_nccl_begin_alone(x, c))
        return NCCL_INVALID_USAGE;
    const int rc = number == IBX_MATH_ncclCommSplit      ? split(function, values)
                   : number == IBX_MATH_ncclCommFinalize ? finalize(x, c, false)
                   : number == IBX_MATH_ncclRedOpDestroy
                       ? ibx_nccl_end_operator(c, function, values[1].i)
                       : ibx_nccl_make_operator(c, function, values);
    ibx_nccl_end_alone(x, c);
    return rc;
}

int ibx_nccl_run(struct gpu_session *x, const struct ibx_math_function *f, void *function,
                 const union ibx_math_value *values)
{
    struct communicator *c = communicator_of(values[0].p); /* for functions of one */
    switch (f->number) {
    case IBX_MATH_ncclGetUniqueId:
        return get_id(x, function, values[0].p);
    case IBX_MATH_ncclCommInitRankConfig:
        return begin_rank(x, function, values);
    case IBX_MATH_ncclCommSplit:
    case IBX_MATH_ncclCommFinalize:
    case IBX_MATH_ncclRedOpCreatePreMulSum:
    case IBX_MATH_ncclRedOpDestroy:
        return run_alone(x, c, f->number, function, values);
    case IBX_MATH_ncclCommDestroy:
        return destroy(x, c);
    case IBX_MATH_ncclCommAbort:
        return end(c, false);
    case IBX_MATH_ncclCommGetAsyncError:
        return get_state(x, c, values[1].i, values[2].p);
    case IBX_MATH_ncclGetLastError:
        return get_text(function, values[1].p);
    case IBX_MATH_ncclCommCount:
    case IBX_MATH_ncclCommCuDevice:
    case IBX_MATH_ncclCommUserRank:
        return get_number(c, function, values[1].p);
    case IBX_MATH_ncclGroupEnd:
        return ibx_nccl_run_group(x, values, &(uint64_t){(uintptr_t)values[4].p});
    case IBX_MATH_ncclGroupStart:
        return ibx_nccl_run_group(x, values, NULL);
    default:
        return f->call(function, values);
    }
}
