/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Operations of NCCL's communicators: what a request may name, and the calls. */
#include "frontend-glue/device_calls/math_nccl_communicators.h"

#include "frontend-glue/clients/clients.h"

#include "common/wire.h"

#include <stdlib.h>

#define KIND      ((enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_COMM))
#define OPERATORS 5 /* ncclNumOps: those that NCCL itself has */

/* ------------------------------------------------------------------------------- operators */

/* While it is being made, or split off, there is perhaps nothing yet that NCCL could be given. */
static bool is_made(struct communicator *c)
{
    return c->made || (!ibx_nccl_look(c) && c->made);
}

int ibx_nccl_make_operator(struct communicator *c, void *function,
                           const union ibx_math_value *values)
{
    int (*make)(int *made, const void *scalar, int type, int residence, void *of) = NULL;
    const int type = values[1].i, on_host = values[2].i;
    const uint64_t scalar = on_host ? 0 : (uintptr_t)values[3].p;
    *(void **)&make = function;
    if (!ibx_nccl_bytes(type) || (on_host ? !values[4].p : !scalar) || !is_made(c))
        return NCCL_INVALID_ARGUMENT;
    if (c->operator_count == OWN_OPERATORS)
        return NCCL_SYSTEM_ERROR;
    pthread_mutex_lock(&c->lock);
    const int rc =
        make(values[5].p, on_host ? values[4].p : values[3].p, type, on_host ? 1 : 0, c->of);
    pthread_mutex_unlock(&c->lock);
    if (!rc)
        c->operators[c->operator_count++] = (struct reduction){*(int *)values[5].p, scalar};
    return rc;
}

static struct reduction *operator_of(struct communicator *c, int number)
{
    for (unsigned i = 0; i < c->operator_count; i++)
        if (c->operators[i].number == number)
            return &c->operators[i];
    return NULL;
}

int ibx_nccl_end_operator(struct communicator *c, void *function, int number)
{
    int (*destroy_one)(int number, void *of) = NULL;
    struct reduction *gone = operator_of(c, number);
    *(void **)&destroy_one = function;
    if (!gone)
        return NCCL_INVALID_ARGUMENT;
    *gone = c->operators[--c->operator_count];
    pthread_mutex_lock(&c->lock);
    const int rc = destroy_one(number, c->of);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ------------------------------------------------------------------------------- operations */

static struct ibx_nccl_operation get_operation(struct ibx_reader *r)
{
    struct ibx_nccl_operation o;
    o.call = ibx_get_u32(r);
    o.type = (int32_t)ibx_get_u32(r);
    o.op = (int32_t)ibx_get_u32(r);
    o.peer = (int32_t)ibx_get_u32(r);
    o.from = ibx_get_u64(r);
    o.to = ibx_get_u64(r);
    o.count = ibx_get_u64(r);
    o.communicator = ibx_get_u64(r);
    o.stream = ibx_get_u64(r);
    return o;
}

/* What a function reads and writes, in elements of `count`. */
enum share { NONE, ONE, ALL /* one for each rank */ };
static const struct {
    const char *name;
    enum share from, to;
    bool from_of_root, to_of_root; /* only the root's is used */
    bool reduces, peer;
} calls[IBX_NCCL_CALLS] = {
    [IBX_NCCL_ALL_REDUCE] = {"ncclAllReduce", ONE, ONE, false, false, true, false},
    [IBX_NCCL_BROADCAST] = {"ncclBroadcast", ONE, ONE, true, false, false, true},
    [IBX_NCCL_REDUCE] = {"ncclReduce", ONE, ONE, false, true, true, true},
    [IBX_NCCL_ALL_GATHER] = {"ncclAllGather", ONE, ALL, false, false, false, false},
    [IBX_NCCL_REDUCE_SCATTER] = {"ncclReduceScatter", ALL, ONE, false, false, true, false},
    [IBX_NCCL_SEND] = {"ncclSend", ONE, NONE, false, false, false, true},
    [IBX_NCCL_RECEIVE] = {"ncclRecv", NONE, ONE, false, false, false, true},
    [IBX_NCCL_ALL_TO_ALL] = {"ncclAlltoAll", ALL, ALL, false, false, false, false},
    [IBX_NCCL_GATHER] = {"ncclGather", ONE, ALL, false, true, false, true},
    [IBX_NCCL_SCATTER] = {"ncclScatter", ALL, ONE, true, false, false, true},
};

/* Looked up once; NULL: the library is older than that function. */
static void *function_of(enum ibx_nccl_call call)
{
    static _Atomic(void *) known[IBX_NCCL_CALLS];
    void *found = atomic_load(&known[call]);
    if (!found && (found = ibx_math_symbol(IBX_MATH_ncclGroupEnd, calls[call].name)))
        atomic_store(&known[call], found);
    return found;
}

/* Whether it is memory of that device, or none of a device's. */
static bool is_of_device(const struct gpu_session *x, uint64_t address, int device)
{
    const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_IS_MANAGED,
                         IBX_CUDA_POINTER_ORDINAL};
    unsigned type = 0, managed = 0;
    int ordinal = device;
    void *values[] = {&type, &managed, &ordinal};
    return x->cuda->pointer_get_attributes(3, names, values, address) ||
           type != IBX_CUDA_MEMORY_DEVICE || managed || ordinal == device;
}

/* Whether the operation may have that buffer, of which NCCL uses so many bytes. */
static bool is_buffer(struct gpu_session *x, const struct communicator *c, uint64_t address,
                      uint64_t bytes)
{
    return !bytes ||
           (address && bytes <= UINT64_MAX - address &&
            ibx_isolation_is_memory(x, address, bytes) && is_of_device(x, address, c->device));
}

/* Bytes of a share; 0 also of an operation without elements. */
static uint64_t bytes_in(const struct communicator *c, const struct ibx_nccl_operation *o,
                         enum share share)
{
    const uint64_t one = share == NONE ? 0 : o->count * ibx_nccl_bytes(o->type);
    return share == ALL ? one * (uint64_t)c->ranks : one;
}

/* An operator of the client's multiplies by a scalar, which has to be there still. */
static bool is_operator(struct gpu_session *x, struct communicator *c, int number, int type)
{
    const struct reduction *own = operator_of(c, number);
    return (number >= 0 && number < OPERATORS) ||
           (own && (!own->scalar || ibx_isolation_is_memory(x, own->scalar, ibx_nccl_bytes(type))));
}

/* Checks the operation of a communicator that the request has alone. An address that NCCL does not
 * use becomes the other one's. */
static bool check(struct gpu_session *x, struct ibx_nccl_operation *o)
{
    struct communicator *c = communicator_of((void *)(uintptr_t)o->communicator);
    if (o->call >= IBX_NCCL_CALLS || !ibx_nccl_bytes(o->type) || !ibx_named_stream(x, o->stream) ||
        o->stream == (uintptr_t)IBX_CUDA_STREAM_PER_THREAD ||
        !function_of((enum ibx_nccl_call)o->call) || !is_made(c))
        return false;
    if (c->finalized || o->count > UINT64_MAX / 16 / (uint64_t)c->ranks ||
        (calls[o->call].peer && (o->peer < 0 || o->peer >= c->ranks)) ||
        (calls[o->call].reduces && !is_operator(x, c, o->op, o->type)))
        return false;
    const bool root = c->rank == o->peer;
    const bool from = calls[o->call].from != NONE && (root || !calls[o->call].from_of_root);
    const bool to = calls[o->call].to != NONE && (root || !calls[o->call].to_of_root);
    if (!is_buffer(x, c, o->from, from ? bytes_in(c, o, calls[o->call].from) : 0) ||
        !is_buffer(x, c, o->to, to ? bytes_in(c, o, calls[o->call].to) : 0))
        return false;
    o->from = from ? o->from : o->to;
    o->to = to ? o->to : o->from;
    return true;
}

static int call(const struct ibx_nccl_operation *o)
{
    const struct communicator *c = communicator_of((void *)(uintptr_t)o->communicator);
    void *const function = function_of((enum ibx_nccl_call)o->call);
    void *const from = (void *)(uintptr_t)o->from, *const to = (void *)(uintptr_t)o->to;
    void *const stream = (void *)(uintptr_t)o->stream;
    int (*reduce)(void *, void *, size_t, int, int, void *, void *) = NULL;
    int (*reduce_at)(void *, void *, size_t, int, int, int, void *, void *) = NULL;
    int (*spread)(void *, void *, size_t, int, void *, void *) = NULL;
    int (*with)(void *, size_t, int, int, void *, void *) = NULL;
    switch ((enum ibx_nccl_call)o->call) {
    case IBX_NCCL_ALL_REDUCE:
    case IBX_NCCL_REDUCE_SCATTER:
        *(void **)&reduce = function;
        return reduce(from, to, o->count, o->type, o->op, c->of, stream);
    case IBX_NCCL_REDUCE:
        *(void **)&reduce_at = function;
        return reduce_at(from, to, o->count, o->type, o->op, o->peer, c->of, stream);
    case IBX_NCCL_BROADCAST:
    case IBX_NCCL_GATHER:
    case IBX_NCCL_SCATTER: /* the root is where others have the operator */
        *(void **)&reduce = function;
        return reduce(from, to, o->count, o->type, o->peer, c->of, stream);
    case IBX_NCCL_ALL_GATHER:
    case IBX_NCCL_ALL_TO_ALL:
        *(void **)&spread = function;
        return spread(from, to, o->count, o->type, c->of, stream);
    case IBX_NCCL_SEND:
    case IBX_NCCL_RECEIVE:
        *(void **)&with = function;
        return with(o->call == IBX_NCCL_SEND ? from : to, o->count, o->type, o->peer, c->of,
                    stream);
    default:
        return NCCL_INVALID_ARGUMENT;
    }
}

/* Locks each communicator of the group once, or unlocks it. The request has them alone, so nobody
 * else locks several. */
static void lock_all(const struct ibx_nccl_operation *all, int count, bool lock)
{
    for (int i = 0; i < count; i++) {
        int k = 0;
        while (all[k].communicator != all[i].communicator)
            k++;
        if (k < i)
            continue;
        struct communicator *c = communicator_of((void *)(uintptr_t)all[i].communicator);
        if (lock)
            pthread_mutex_lock(&c->lock);
        else
            pthread_mutex_unlock(&c->lock);
    }
}

/* Calls all of them. */
static int issue(const struct ibx_nccl_operation *all, int count)
{
    int (*begin)(void) = NULL, (*over)(void) = NULL;
    int rc = NCCL_SUCCESS;
    *(void **)&begin = FUNCTION(ncclGroupStart);
    *(void **)&over = FUNCTION(ncclGroupEnd);
    if (count == 1)
        return call(&all[0]);
    if (!begin || !over || (rc = begin()))
        return rc ? rc : NCCL_INTERNAL_ERROR;
    for (int i = 0; i < count && (!rc || rc == NCCL_IN_PROGRESS); i++)
        rc = call(&all[i]);
    const int ended = over();
    return rc && rc != NCCL_IN_PROGRESS ? rc : ended;
}

static int run_all(struct gpu_session *x, struct ibx_nccl_operation *all, int count)
{
    lock_all(all, count, true);
    int rc = issue(all, count);
    lock_all(all, count, false);
    if (rc && rc != NCCL_IN_PROGRESS)
        return rc;
    rc = NCCL_SUCCESS;
    for (int i = 0; i < count; i++) {
        struct communicator *c = communicator_of((void *)(uintptr_t)all[i].communicator);
        const int state =
            i && all[i].communicator == all[i - 1].communicator ? 0 : ibx_nccl_wait(x, c);
        rc = rc ? rc : state;
    }
    return rc;
}

/* `stream`: that of all operations; NULL: each names its own. */
int ibx_nccl_run_group(struct gpu_session *x, const union ibx_math_value *values,
                       const uint64_t *stream)
{
    const int count = values[1].i;
    if (count < 1 || count > (int)IBX_NCCL_OPERATIONS || !values[2].p)
        return NCCL_INVALID_ARGUMENT;
    struct ibx_nccl_operation *all = malloc((size_t)count * sizeof(*all));
    struct ibx_reader r = ibx_reader_of(values[2].p, (size_t)count * IBX_NCCL_OPERATION_BYTES);
    bool good = all;
    int taken = 0; /* of whose communicators the request has each alone */
    while (good && taken < count) {
        struct ibx_nccl_operation *o = &all[taken];
        *o = get_operation(&r);
        good = (!stream || o->stream == *stream) && ibx_handles_know(x, KIND, o->communicator) &&
               ibx_nccl_begin_alone(x, communicator_of((void *)(uintptr_t)o->communicator));
        taken += good;
        good = good && check(x, o);
    }
    const int rc = !all ? NCCL_SYSTEM_ERROR : good ? run_all(x, all, count) : NCCL_INVALID_ARGUMENT;
    for (int i = 0; i < taken; i++)
        ibx_nccl_end_alone(x, communicator_of((void *)(uintptr_t)all[i].communicator));
    free(all);
    return rc;
}
