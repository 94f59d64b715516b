/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * NCCL. Its functions are requests, and the back end's library makes the calls
 * (device_calls/math_nccl.c). NVIDIA's library in the program, if there is one, gets none of them.
 *
 * The operations of a group are kept until its end, and are one request; so is an operation outside
 * of groups. Making a communicator is begun by one request and waited for by another, so within a
 * group all are begun before the first is waited for.
 */
#include "frontend-glue/preload/exported.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/session/math_nccl.h"

#include "common/clock.h"
#include "common/fork_lock.h"
#include "common/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Declared in nccl.h. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define EXPORTED __attribute__((visibility("default")))
/* The name by which a profiler that replaces the function calls it. */
#define ALSO(function)                                                                             \
    extern EXPORTED __typeof__(function) p##function __attribute__((alias(#function)))

#define CUDA_ERROR     1 /* ncclUnhandledCudaError */
#define SCALAR_BYTES   8
#define CONFIG_MAGIC   0xcafebeefu
#define DEVICES_MOST   1024
#define SAME_NS        1000000u /* for so long "no error" is answered without a request */
#define SPLIT_NO_COLOR (-1)
#define SCALAR_OF_HOST 1 /* ncclScalarHostImmediate */

struct unique_id {
    char bytes[IBX_NCCL_ID_BYTES];
};

/* What a thread's group has to do at its end. */
struct ended {
    void *communicator;
    int op; /* that is destroyed; -1: the communicator is waited for */
    struct ended *next;
};

static _Thread_local struct {
    int depth, status; /* the first error within the group */
    struct ibx_nccl_operation *all;
    unsigned count;
    struct ended *ends;
} group;

static atomic_uint changes; /* communicators that were made, changed or ended */

static int ask(unsigned number, const union ibx_math_value *values)
{
    const unsigned use = ibx_math_find(number)->use;
    if (use == IBX_MATH_USE_SETS_UP || use == IBX_MATH_USE_ENDS)
        atomic_fetch_add(&changes, 1);
    return ibx_frontend_math_now(number, values);
}

/* Within a group errors come back at its end, too. */
static int within(int status)
{
    if (group.depth && !group.status)
        group.status = status;
    return status;
}

/* ------------------------------------------------------------------------------- its state */

/* The state of a communicator; waits for it if that is the communicator's mode. */
static int state_of(void *communicator, int wait)
{
    int state = NCCL_INTERNAL_ERROR;
    const union ibx_math_value values[] = {{.p = communicator}, {.i = wait}, {.p = &state}};
    const int status = ask(IBX_MATH_ncclCommGetAsyncError, values);
    return status ? status : state;
}

static int later(void *communicator, int op)
{
    struct ended *one = malloc(sizeof(*one));
    if (!one)
        return within(NCCL_SYSTEM_ERROR);
    *one = (struct ended){communicator, op, group.ends};
    group.ends = one;
    return NCCL_SUCCESS;
}

/* Waits for what was begun, or leaves that to the end of the group. */
static int settle(void *communicator)
{
    return group.depth ? later(communicator, -1) : state_of(communicator, 1);
}

/* ------------------------------------------------------------------------------- ranks */

/* If the process has several ranks of one communicator, one rank's operation may wait for
 * another's. Operations must not be answered early then: calls of other threads, which may be that
 * other rank's, would come after it. So the process notes which unique ids it has used. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct used {
    struct used *next;
    struct unique_id id;
} * used_ids;
static atomic_bool several;

IBX_FORKS_WAIT_FOR(lock);

static void note_id(const struct unique_id *id)
{
    struct used *one = malloc(sizeof(*one));
    pthread_mutex_lock(&lock);
    const struct used *other = used_ids;
    while (other && memcmp(&other->id, id, sizeof(*id)) != 0)
        other = other->next;
    if (other || !one)
        atomic_store(&several, true);
    if (!other && one) {
        *one = (struct used){used_ids, *id};
        used_ids = one;
        one = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(one);
}

/* A number that no request has had, if requests must not be answered early. */
static int different(void)
{
    static atomic_int numbers;
    return atomic_load(&several) ? (atomic_fetch_add(&numbers, 1) & 0x7fffffff) + 1 : 0;
}

/* ------------------------------------------------------------------------------- operations */

static void put_operation(struct ibx_writer *w, const struct ibx_nccl_operation *o)
{
    ibx_put_u32(w, o->call);
    ibx_put_u32(w, (uint32_t)o->type);
    ibx_put_u32(w, (uint32_t)o->op);
    ibx_put_u32(w, (uint32_t)o->peer);
    ibx_put_u64(w, o->from);
    ibx_put_u64(w, o->to);
    ibx_put_u64(w, o->count);
    ibx_put_u64(w, o->communicator);
    ibx_put_u64(w, o->stream);
}

/* The library's kernels need access to page-locked memory, too. */
static bool reach(const struct ibx_nccl_operation *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const uint64_t addresses[] = {all[i].from, all[i].to};
        if (ibx_frontend_arguments_reach(addresses, sizeof(addresses)))
            return false;
    }
    return true;
}

static int send_all(const struct ibx_nccl_operation *all, unsigned count, uint8_t *bytes)
{
    struct ibx_writer w = ibx_writer_of(bytes, count * IBX_NCCL_OPERATION_BYTES);
    bool one_stream = true, own = false;
    for (unsigned i = 0; i < count; i++) {
        put_operation(&w, &all[i]);
        one_stream = one_stream && all[i].stream == all[0].stream;
        own = own || all[i].stream == (uintptr_t)CUDA_STREAM_PER_THREAD;
    }
    const union ibx_math_value values[] = {{.p = (void *)(uintptr_t)all[0].communicator},
                                           {.i = (int)count},
                                           {.p = bytes},
                                           {.i = different()},
                                           {.p = (void *)(uintptr_t)all[0].stream}};
    if (!reach(all, count))
        return NCCL_INVALID_ARGUMENT;
    if (one_stream) /* which the request names */
        return ask(IBX_MATH_ncclGroupEnd, values);
    if (own)
        ibx_frontend_stream_used(CUDA_STREAM_PER_THREAD);
    const int status = ask(IBX_MATH_ncclGroupStart, values);
    if (own)
        ibx_frontend_stream_worked(CUDA_STREAM_PER_THREAD);
    return status;
}

static int send_group(const struct ibx_nccl_operation *all, unsigned count)
{
    uint8_t *bytes = malloc((size_t)count * IBX_NCCL_OPERATION_BYTES);
    const int status = bytes ? send_all(all, count, bytes) : NCCL_SYSTEM_ERROR;
    free(bytes);
    return status;
}

static int tell_many(void)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "a group of NCCL has more than the %u operations that it has over remote GPUs: it "
                "returns ncclInvalidUsage",
                IBX_NCCL_OPERATIONS);
    return within(NCCL_INVALID_USAGE);
}

/* Sends the operation, or keeps it until the end of the group. */
static int operate(const struct ibx_nccl_operation *o)
{
    uint8_t bytes[IBX_NCCL_OPERATION_BYTES];
    if (!o->communicator)
        return within(NCCL_INVALID_ARGUMENT);
    if (!group.depth)
        return send_all(o, 1, bytes);
    if (group.count == IBX_NCCL_OPERATIONS)
        return tell_many();
    if (!group.all)
        group.all = malloc(IBX_NCCL_OPERATIONS * sizeof(*group.all));
    if (!group.all)
        return within(NCCL_SYSTEM_ERROR);
    group.all[group.count++] = *o;
    return NCCL_SUCCESS;
}

EXPORTED int ncclGroupStart(void)
{
    group.depth++;
    return NCCL_SUCCESS;
}

/* All that was begun is waited for, unless a call within the group has failed: ranks may be missing
 * then, and never come. NCCL_IN_PROGRESS is returned if there is no error. */
EXPORTED int ncclGroupEnd(void)
{
    if (!group.depth)
        return NCCL_INVALID_USAGE;
    if (--group.depth)
        return NCCL_SUCCESS;
    int status = group.status, progress = NCCL_SUCCESS;
    const bool waits = !status;
    if (!status && group.count)
        status = send_group(group.all, group.count);
    while (group.ends) {
        struct ended *one = group.ends;
        const union ibx_math_value values[] = {{.p = one->communicator}, {.i = one->op}};
        const int state = one->op < 0 ? state_of(one->communicator, waits)
                                      : ask(IBX_MATH_ncclRedOpDestroy, values);
        group.ends = one->next;
        free(one);
        progress = state == NCCL_IN_PROGRESS ? state : progress;
        status = status || state == NCCL_IN_PROGRESS ? status : state;
    }
    free(group.all);
    group.all = NULL;
    group.count = 0;
    group.status = NCCL_SUCCESS;
    return status ? status : progress;
}

#define U(pointer) ((uint64_t)(uintptr_t)(pointer))

EXPORTED int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                           void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_ALL_REDUCE, type, op, 0, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                           void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_BROADCAST, type, 0, root, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclBcast(void *buffer, size_t count, int type, int root, void *communicator,
                       void *stream)
{
    return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

EXPORTED int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
                        void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_REDUCE, type, op, root, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclAllGather(const void *from, void *to, size_t count, int type, void *communicator,
                           void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_ALL_GATHER, type, 0, 0, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
                               void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_REDUCE_SCATTER, type, op, 0, U(from),
                                                U(to), count, U(communicator), U(stream)});
}

EXPORTED int ncclSend(const void *from, size_t count, int type, int peer, void *communicator,
                      void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_SEND, type, 0, peer, U(from), 0, count,
                                                U(communicator), U(stream)});
}

EXPORTED int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_RECEIVE, type, 0, peer, 0, U(to), count,
                                                U(communicator), U(stream)});
}

EXPORTED int ncclAlltoAll(const void *from, void *to, size_t count, int type, void *communicator,
                          void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_ALL_TO_ALL, type, 0, 0, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclGather(const void *from, void *to, size_t count, int type, int root,
                        void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_GATHER, type, 0, root, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

EXPORTED int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                         void *communicator, void *stream)
{
    return operate(&(struct ibx_nccl_operation){IBX_NCCL_SCATTER, type, 0, root, U(from), U(to),
                                                count, U(communicator), U(stream)});
}

/* ------------------------------------------------------------------------------- communicators */

/* Reads what a program has set in a ncclConfig_t of its version, which states its size. False: it
 * is none. */
static bool read_config(const void *config, int numbers[IBX_NCCL_NUMBERS])
{
    static const uint8_t places[IBX_NCCL_NUMBERS] = {16, 20, 24, 28, 40};
    size_t size;
    unsigned magic;
    for (unsigned i = 0; i < IBX_NCCL_NUMBERS; i++)
        numbers[i] = IBX_NCCL_UNSET;
    if (!config)
        return true;
    memcpy(&size, config, sizeof(size));
    memcpy(&magic, (const char *)config + sizeof(size), sizeof(magic));
    for (unsigned i = 0; i < IBX_NCCL_NUMBERS; i++)
        if (size >= places[i] + sizeof(int))
            memcpy(&numbers[i], (const char *)config + places[i], sizeof(int));
    return magic == CONFIG_MAGIC;
}

/* After a call that makes a communicator: aborts one that could not be made, and sets it to NULL.
 */
static int is_made(void **made, int status)
{
    if (!status || status == NCCL_IN_PROGRESS)
        return status;
    const union ibx_math_value values[] = {{.p = *made}};
    ask(IBX_MATH_ncclCommAbort, values);
    *made = NULL;
    return within(status);
}

EXPORTED int ncclCommInitRankConfig(void **made, int ranks, struct unique_id id, int rank,
                                    const void *config)
{
    int numbers[IBX_NCCL_NUMBERS];
    const union ibx_math_value values[] = {
        {.p = made},   {.i = ranks}, {.i = rank}, {.p = &id}, {.i = IBX_NCCL_NUMBERS},
        {.p = numbers}};
    if (!made || !read_config(config, numbers))
        return within(NCCL_INVALID_ARGUMENT);
    *made = NULL;
    note_id(&id);
    const int status = ask(IBX_MATH_ncclCommInitRankConfig, values);
    return status ? within(status) : is_made(made, settle(*made));
}

EXPORTED int ncclCommInitRank(void **made, int ranks, struct unique_id id, int rank)
{
    return ncclCommInitRankConfig(made, ranks, id, rank, NULL);
}

/* The first id is enough, since all ranks have the same ones. */
EXPORTED int ncclCommInitRankScalable(void **made, int ranks, int rank, int count,
                                      const struct unique_id *ids, const void *config)
{
    return count > 0 && ids ? ncclCommInitRankConfig(made, ranks, ids[0], rank, config)
                            : within(NCCL_INVALID_ARGUMENT);
}

EXPORTED int ncclGetUniqueId(struct unique_id *id)
{
    const union ibx_math_value values[] = {{.p = id}};
    return id ? ask(IBX_MATH_ncclGetUniqueId, values) : NCCL_INVALID_ARGUMENT;
}

/* A rank whose device does not exist would keep the others waiting. */
static bool has_devices(int count, const int *devices)
{
    int there = 0;
    bool all = !cudaGetDeviceCount(&there);
    for (int i = 0; i < count && all; i++)
        all = devices ? devices[i] >= 0 && devices[i] < there : i < there;
    return all;
}

EXPORTED int ncclCommInitAll(void **made, int count, const int *devices)
{
    struct unique_id id;
    int before = 0, status;
    if (!made || count < 1 || count > DEVICES_MOST)
        return NCCL_INVALID_ARGUMENT;
    if (!has_devices(count, devices))
        return devices ? NCCL_INVALID_ARGUMENT : CUDA_ERROR;
    status = ncclGetUniqueId(&id);
    if (status)
        return status;
    if (cudaGetDevice(&before))
        return CUDA_ERROR;
    ncclGroupStart();
    for (int i = 0; i < count && !status; i++)
        status = cudaSetDevice(devices ? devices[i] : i) ? within(CUDA_ERROR)
                                                         : ncclCommInitRank(&made[i], count, id, i);
    const int ended = ncclGroupEnd();
    if (cudaSetDevice(before) && !status)
        status = CUDA_ERROR;
    return status ? status : ended;
}

EXPORTED int ncclCommSplit(void *parent, int color, int key, void **made, const void *config)
{
    int numbers[IBX_NCCL_NUMBERS];
    const union ibx_math_value values[] = {{.p = parent},
                                           {.i = color},
                                           {.i = key},
                                           {.p = made},
                                           {.i = config ? IBX_NCCL_NUMBERS : 0},
                                           {.p = config ? numbers : NULL}};
    if (!parent || !made || color < SPLIT_NO_COLOR || !read_config(config, numbers))
        return within(NCCL_INVALID_ARGUMENT);
    *made = NULL;
    const int status = ask(IBX_MATH_ncclCommSplit, values);
    if (status)
        return within(status);
    return *made ? is_made(made, settle(*made)) : within(settle(parent));
}

EXPORTED int ncclCommFinalize(void *communicator)
{
    const union ibx_math_value values[] = {{.p = communicator}};
    const int status =
        communicator ? ask(IBX_MATH_ncclCommFinalize, values) : NCCL_INVALID_ARGUMENT;
    return within(status ? status : settle(communicator));
}

EXPORTED int ncclCommAbort(void *communicator)
{
    const union ibx_math_value values[] = {{.p = communicator}};
    return communicator ? within(ask(IBX_MATH_ncclCommAbort, values)) : NCCL_SUCCESS;
}

/* A thread of PyTorch's asks again and again. So for a moment after NCCL has found no error the
 * thread gets the same answer, unless a communicator was made or ended since. */
EXPORTED int ncclCommGetAsyncError(void *communicator, int *state)
{
    static _Thread_local struct {
        const void *communicator; /* NULL: none */
        unsigned changes;
        uint64_t until;
    } good;
    const union ibx_math_value values[] = {{.p = communicator}, {.i = 0}, {.p = state}};
    const unsigned now = atomic_load(&changes);
    if (!communicator || !state)
        return NCCL_INVALID_ARGUMENT;
    if (good.communicator == communicator && good.changes == now && ibx_now_ns() < good.until) {
        *state = NCCL_SUCCESS;
        return NCCL_SUCCESS;
    }
    const int status = ask(IBX_MATH_ncclCommGetAsyncError, values);
    good.communicator = status || *state ? NULL : communicator;
    good.changes = now;
    good.until = ibx_now_ns() + SAME_NS;
    return status;
}

static int number_of(unsigned function, void *communicator, int *number)
{
    const union ibx_math_value values[] = {{.p = communicator}, {.p = number}};
    return communicator && number ? ask(function, values) : NCCL_INVALID_ARGUMENT;
}

EXPORTED int ncclCommCount(void *communicator, int *count)
{
    return number_of(IBX_MATH_ncclCommCount, communicator, count);
}

EXPORTED int ncclCommCuDevice(void *communicator, int *device)
{
    return number_of(IBX_MATH_ncclCommCuDevice, communicator, device);
}

EXPORTED int ncclCommUserRank(void *communicator, int *rank)
{
    return number_of(IBX_MATH_ncclCommUserRank, communicator, rank);
}

/* The back end cuts off operations that are under way. So the work of the communicator's GPU ends
 * first, for which NCCL waits, too. That ends no capture if streams can be waited for one by one.
 * A communicator that is not made has none. */
static void wait_for_work(void *communicator)
{
    int device = 0, before = 0;
    if (ncclCommCuDevice(communicator, &device) || cudaGetDevice(&before))
        return;
    if (ibx_frontend_capturing() && !ibx_frontend_streams_rest(true))
        return;
    if (device == before || !cudaSetDevice(device))
        ibx_frontend_device_wait_within();
    if (device != before)
        cudaSetDevice(before);
}

EXPORTED int ncclCommDestroy(void *communicator)
{
    const union ibx_math_value values[] = {{.p = communicator}};
    if (!communicator)
        return NCCL_SUCCESS;
    wait_for_work(communicator);
    return within(ask(IBX_MATH_ncclCommDestroy, values));
}

/* ------------------------------------------------------------------------------- operators */

EXPORTED int ncclRedOpCreatePreMulSum(int *op, const void *scalar, int type, int residence,
                                      void *communicator)
{
    uint8_t bytes[SCALAR_BYTES] = {0};
    const bool of_host = residence == SCALAR_OF_HOST;
    const union ibx_math_value values[] = {{.p = communicator},
                                           {.i = type},
                                           {.i = of_host},
                                           {.p = of_host ? NULL : (void *)(uintptr_t)scalar},
                                           {.p = of_host ? bytes : NULL},
                                           {.p = op}};
    if (!op || !scalar || !communicator || !ibx_nccl_bytes(type))
        return within(NCCL_INVALID_ARGUMENT);
    if (of_host)
        memcpy(bytes, scalar, ibx_nccl_bytes(type));
    return within(ask(IBX_MATH_ncclRedOpCreatePreMulSum, values));
}

/* Operations of a group that name it are sent at the group's end, so it ends after them. */
EXPORTED int ncclRedOpDestroy(int op, void *communicator)
{
    const union ibx_math_value values[] = {{.p = communicator}, {.i = op}};
    if (!communicator || op < 0)
        return within(NCCL_INVALID_ARGUMENT);
    return group.depth ? later(communicator, op) : ask(IBX_MATH_ncclRedOpDestroy, values);
}

/* ------------------------------------------------------------------------------- memory */

/* NCCL can send memory faster if it has allocated or registered it. For everything else this is
 * ordinary device memory, as here. */
EXPORTED int ncclMemAlloc(void **made, size_t n)
{
    if (!made)
        return NCCL_INVALID_ARGUMENT;
    return cudaMalloc(made, n) ? CUDA_ERROR : NCCL_SUCCESS;
}

EXPORTED int ncclMemFree(void *memory)
{
    return cudaFree(memory) ? CUDA_ERROR : NCCL_SUCCESS;
}

EXPORTED int ncclCommRegister(void *communicator, void *memory, size_t n, void **made)
{
    (void)n;
    if (!communicator || !memory || !made)
        return NCCL_INVALID_ARGUMENT;
    *made = memory;
    return NCCL_SUCCESS;
}

EXPORTED int ncclCommDeregister(void *communicator, void *made)
{
    (void)made;
    return communicator ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}

/* ------------------------------------------------------------------------------- texts */

EXPORTED int ncclGetVersion(int *version)
{
    const union ibx_math_value values[] = {{.p = version}};
    return version ? ask(IBX_MATH_ncclGetVersion, values) : NCCL_INVALID_ARGUMENT;
}

EXPORTED const char *ncclGetErrorString(int status)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return status >= 0 && (size_t)status < sizeof(texts) / sizeof(texts[0]) ? texts[status]
                                                                            : "unknown result code";
}

/* Valid until the thread's next call, as natively. */
EXPORTED const char *ncclGetLastError(void *communicator)
{
    static _Thread_local char text[256];
    const union ibx_math_value values[] = {{.p = communicator}, {.p = text}};
    if (ask(IBX_MATH_ncclGetLastError, values))
        text[0] = 0;
    return text;
}

ALSO(ncclAllGather);
ALSO(ncclAllReduce);
ALSO(ncclAlltoAll);
ALSO(ncclBcast);
ALSO(ncclBroadcast);
ALSO(ncclCommAbort);
ALSO(ncclCommCount);
ALSO(ncclCommCuDevice);
ALSO(ncclCommDeregister);
ALSO(ncclCommDestroy);
ALSO(ncclCommFinalize);
ALSO(ncclCommGetAsyncError);
ALSO(ncclCommInitAll);
ALSO(ncclCommInitRank);
ALSO(ncclCommInitRankConfig);
ALSO(ncclCommInitRankScalable);
ALSO(ncclCommRegister);
ALSO(ncclCommSplit);
ALSO(ncclCommUserRank);
ALSO(ncclGather);
ALSO(ncclGetErrorString);
ALSO(ncclGetLastError);
ALSO(ncclGetUniqueId);
ALSO(ncclGetVersion);
ALSO(ncclGroupEnd);
ALSO(ncclGroupStart);
ALSO(ncclMemAlloc);
ALSO(ncclMemFree);
ALSO(ncclRecv);
ALSO(ncclRedOpCreatePreMulSum);
ALSO(ncclRedOpDestroy);
ALSO(ncclReduce);
ALSO(ncclReduceScatter);
ALSO(ncclScatter);
ALSO(ncclSend);
