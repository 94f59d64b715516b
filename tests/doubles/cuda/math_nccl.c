/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A double of libnccl: ranks in threads and processes of this host exchange what they send in
 * memory that they share, and compute what NCCL's kernels do, from and to memory of the driver's
 * double. Communicators are non-blocking, and NCCL's rules for these hold: a group is run by a
 * thread for each communicator, and until that is done the communicator takes nothing else. Unlike
 * NCCL's, a communicator is in progress until all ranks have done their part.
 */
#include "tests/doubles/cuda/math_handles.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define CUDA_ERROR       1
#define SYSTEM_ERROR     2
#define INTERNAL_ERROR   3
#define INVALID_ARGUMENT 4
#define IN_PROGRESS      7

#define RANKS      8
#define DATA       32768
#define OPERATIONS 64
#define OPERATORS  8
#define MAGIC      0x6e63636c
#define LATE       100 /* the place in an id where a test writes 1: see ncclCommAbort() */
#define ASKED      200u
#define SENDS      2

struct id {
    char name[128];
};

/* What all ranks of a communicator share. */
struct shared {
    atomic_uint joined, arrived, rounds;
    atomic_int mail[RANKS][RANKS]; /* from, to: bytes that wait */
    int color[RANKS], key[RANKS];
    uint8_t data[RANKS][DATA];
    uint8_t letters[RANKS][RANKS][DATA / RANKS];
};

enum call {
    ALL_REDUCE,
    BROADCAST,
    REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    SEND,
    RECEIVE,
    ALL_TO_ALL,
    GATHER,
    SCATTER,
    SPLIT
};

struct communicator;
struct operation {
    enum call call;
    const void *from;
    void *to, *stream;
    size_t count;
    int type, op, peer;
    struct communicator **made; /* of a split */
};

struct communicator {
    int magic;
    struct communicator *next; /* in a group */
    struct shared *shared;
    char name[128];
    int rank, ranks, device, splits, color, key;
    void *context;
    atomic_int state, aborted, users, asked; /* asked: for its state */
    bool is_running, in_group, ends_late, finalizes;
    pthread_t runner;
    struct operation all[OPERATIONS];
    int count;
    double scalars[OPERATORS];
    bool used[OPERATORS];
};

atomic_uint math_handles;
static atomic_uint asked; /* how often for a communicator's state */

/* Communicators that were made and not ended. */
EXPORT unsigned ibx_double_handles(void)
{
    return math_handles;
}

static _Thread_local struct communicator *group;
static _Thread_local int depth;

/* ------------------------------------------------------------------------------- ranks */

static bool join_shared(struct communicator *c)
{
    const int file = shm_open(c->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *at = MAP_FAILED;
    if (file >= 0 && !ftruncate(file, sizeof(struct shared)))
        at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    c->shared = at == MAP_FAILED ? NULL : at;
    return c->shared;
}

/* Lets others run until it is so; false: the communicator was aborted. */
#define UNTIL(c, condition)                                                                        \
    __extension__({                                                                                \
        while (!atomic_load(&(c)->aborted) && !(condition))                                        \
            usleep(50);                                                                            \
        !atomic_load(&(c)->aborted);                                                               \
    })

static bool meet(struct communicator *c)
{
    struct shared *s = c->shared;
    const unsigned round = s->rounds;
    if (atomic_fetch_add(&s->arrived, 1) + 1 == (unsigned)c->ranks) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->rounds, 1);
        return true;
    }
    return UNTIL(c, s->rounds != round);
}

/* ------------------------------------------------------------------------------- what it computes
 */

static size_t size_of(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return sizes[type];
}

static double value_at(const uint8_t *bytes, int type, size_t i)
{
    float f;
    double d;
    int32_t n;
    if (type == 7)
        return memcpy(&f, bytes + 4 * i, 4), (double)f;
    if (type == 8)
        return memcpy(&d, bytes + 8 * i, 8), d;
    return type == 2 ? (memcpy(&n, bytes + 4 * i, 4), n) : bytes[i];
}

static void set_value(uint8_t *bytes, int type, size_t i, double value)
{
    const float f = (float)value;
    const int32_t n = (int32_t)value;
    if (type == 7)
        memcpy(bytes + 4 * i, &f, 4);
    else if (type == 8)
        memcpy(bytes + 8 * i, &value, 8);
    else if (type == 2)
        memcpy(bytes + 4 * i, &n, 4);
    else
        bytes[i] = (uint8_t)value;
}

static double combined(int op, double a, double b)
{
    return op == 1 ? a * b : op == 2 ? (a > b ? a : b) : op == 3 ? (a < b ? a : b) : a + b;
}

/* Elements from `first` on, of all ranks. */
static void reduce(const struct communicator *c, const struct operation *o, size_t first,
                   uint8_t *out)
{
    const double by = o->op >= 5 ? c->scalars[o->op - 5] : 1;
    for (size_t i = 0; i < o->count; i++) {
        double value = by * value_at(c->shared->data[0], o->type, first + i);
        for (int rank = 1; rank < c->ranks; rank++)
            value =
                combined(o->op, value, by * value_at(c->shared->data[rank], o->type, first + i));
        set_value(out, o->type, i, o->op == 4 ? value / c->ranks : value);
    }
}

/* Of a collective operation: what the rank gives, and gets. */
static size_t given(const struct communicator *c, const struct operation *o)
{
    const size_t n = o->count * size_of(o->type);
    const bool all = o->call == REDUCE_SCATTER || o->call == ALL_TO_ALL;
    if (o->call == BROADCAST || o->call == SCATTER)
        return c->rank != o->peer ? 0 : o->call == SCATTER ? n * (size_t)c->ranks : n;
    return all ? n * (size_t)c->ranks : n;
}

static size_t compute(const struct communicator *c, const struct operation *o, uint8_t *out)
{
    const size_t n = o->count * size_of(o->type);
    const bool one_each = o->call == ALL_GATHER || o->call == GATHER || o->call == ALL_TO_ALL;
    if ((o->call == REDUCE || o->call == GATHER) && c->rank != o->peer)
        return 0;
    if (o->call == BROADCAST || o->call == SCATTER) {
        const size_t at = o->call == SCATTER ? n * (size_t)c->rank : 0;
        memcpy(out, c->shared->data[o->peer] + at, n);
        return n;
    }
    if (!one_each) {
        reduce(c, o, o->call == REDUCE_SCATTER ? o->count * (size_t)c->rank : 0, out);
        return n;
    }
    for (int rank = 0; rank < c->ranks; rank++)
        memcpy(out + n * (size_t)rank,
               c->shared->data[rank] + (o->call == ALL_TO_ALL ? n * (size_t)c->rank : 0), n);
    return n * (size_t)c->ranks;
}

static int collective(struct communicator *c, const struct operation *o)
{
    static _Thread_local uint8_t out[DATA];
    const size_t n = given(c, o);
    if (n * (size_t)c->ranks > DATA)
        return INVALID_ARGUMENT;
    if (n && !math_get(c->shared->data[c->rank], o->from, n))
        return CUDA_ERROR;
    if (!meet(c))
        return INTERNAL_ERROR;
    const size_t got = compute(c, o, out);
    if (!meet(c))
        return INTERNAL_ERROR;
    return !got || math_put(o->to, out, got) ? 0 : CUDA_ERROR;
}

static int letter(struct communicator *c, const struct operation *o)
{
    const int n = (int)(o->count * size_of(o->type)), to = o->call == SEND ? o->peer : c->rank;
    const int from = o->call == SEND ? c->rank : o->peer;
    atomic_int *waits = &c->shared->mail[from][to];
    uint8_t *bytes = c->shared->letters[from][to];
    if (n > DATA / RANKS)
        return INVALID_ARGUMENT;
    if (!UNTIL(c, o->call == SEND ? !*waits : *waits))
        return INTERNAL_ERROR;
    if (o->call == SEND ? !math_get(bytes, o->from, (size_t)n) : !math_put(o->to, bytes, (size_t)n))
        return CUDA_ERROR;
    atomic_store(waits, o->call == SEND ? n : 0);
    return 0;
}

/* ------------------------------------------------------------------------------- its threads */

static struct communicator *new_one(int device)
{
    struct communicator *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->magic = MAGIC;
    int (*get)(void **context) = NULL;
    *(void **)&get = math_driver("cuCtxGetCurrent");
    get(&c->context);
    c->device = device;
    c->state = IN_PROGRESS;
    math_handles++;
    return c;
}

/* The name goes when all have joined, or when one gives up: `by` is aborted. */
static bool join_all(struct communicator *c, struct communicator *by)
{
    if (!join_shared(c))
        return false;
    atomic_fetch_add(&c->shared->joined, 1);
    const bool whole = UNTIL(by, c->shared->joined == (unsigned)c->ranks);
    if (!whole || !c->rank)
        shm_unlink(c->name);
    return whole;
}

static int split(struct communicator *c, const struct operation *o)
{
    struct shared *s = c->shared;
    s->color[c->rank] = c->color;
    s->key[c->rank] = c->key;
    if (!meet(c))
        return INTERNAL_ERROR;
    struct communicator *made = new_one(c->device);
    for (int rank = 0; made && rank < c->ranks; rank++) {
        const bool before = s->key[rank] < c->key || (s->key[rank] == c->key && rank < c->rank);
        made->ranks += s->color[rank] == c->color;
        made->rank += s->color[rank] == c->color && before;
    }
    const bool met = meet(c);
    if (!made)
        return INTERNAL_ERROR;
    snprintf(made->name, sizeof(made->name), "%.90s-%d-%d", c->name, c->splits, c->color);
    const bool joined = met && c->color >= 0 && join_all(made, c);
    if (!joined) {
        if (made->shared)
            munmap(made->shared, sizeof(*made->shared));
        free(made);
        math_handles--;
        *o->made = NULL;
        return met && c->color < 0 ? 0 : INTERNAL_ERROR;
    }
    made->state = 0;
    made->ends_late = c->ends_late;
    *o->made = made;
    return 0;
}

static void *run(void *of)
{
    struct communicator *c = of;
    int (*set)(void *context) = NULL;
    *(void **)&set = math_driver("cuCtxSetCurrent");
    set(c->context);
    int status = c->shared || join_all(c, c) ? 0 : SYSTEM_ERROR;
    if (c->finalizes && !UNTIL(c, c->asked > SENDS))
        status = INTERNAL_ERROR;
    for (int i = 0; i < c->count && !status; i++) {
        const struct handle in = {.stream = c->all[i].stream};
        const bool sends = c->all[i].call == SEND || c->all[i].call == RECEIVE;
        if (c->all[i].call != SPLIT)
            math_wait(&in);
        status = c->all[i].call == SPLIT ? split(c, &c->all[i])
                 : sends                 ? letter(c, &c->all[i])
                                         : collective(c, &c->all[i]);
    }
    c->count = 0;
    atomic_store(&c->state, status);
    return NULL;
}

static void rest(struct communicator *c)
{
    if (c->is_running)
        pthread_join(c->runner, NULL);
    c->is_running = false;
}

static int start(struct communicator *c)
{
    rest(c);
    atomic_store(&c->state, IN_PROGRESS);
    c->is_running = !pthread_create(&c->runner, NULL, run, c);
    return c->is_running ? IN_PROGRESS : SYSTEM_ERROR;
}

static bool is_ready(const struct communicator *c)
{
    if (c->magic != MAGIC)
        abort();
    return !c->state;
}

/* ------------------------------------------------------------------------------- communicators */

EXPORT int ncclGetVersion(int *version)
{
    *version = 22809;
    return 0;
}

EXPORT int ncclGetUniqueId(struct id *id)
{
    static atomic_uint ids;
    memset(id, 0, sizeof(*id));
    snprintf(id->name, sizeof(id->name), "/ibx-nccl-%d-%u", getpid(), ids++);
    return 0;
}

struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

EXPORT int ncclCommInitRankConfig(struct communicator **made, int ranks, struct id id, int rank,
                                  const struct config *config)
{
    int (*get)(int *device) = NULL, device = -1;
    *(void **)&get = math_driver("cuCtxGetDevice");
    if (config->magic != 0xcafebeef || config->blocking || ranks > RANKS || get(&device) ||
        strncmp(id.name, "/ibx-nccl-", 10) != 0)
        return INVALID_ARGUMENT;
    struct communicator *c = new_one(device);
    *made = c;
    if (!c)
        return SYSTEM_ERROR;
    memcpy(c->name, id.name, sizeof(c->name));
    c->name[127] = 0;
    c->ends_late = id.name[LATE] == 1;
    c->ranks = ranks;
    c->rank = rank;
    return start(c);
}

EXPORT int ncclCommGetAsyncError(struct communicator *c, int *state)
{
    if (c->magic != MAGIC)
        abort();
    asked++;
    c->asked++;
    *state = c->state;
    return 0;
}

EXPORT int ncclCommCount(const struct communicator *c, int *count)
{
    *count = c->ranks;
    return is_ready(c) ? 0 : INVALID_ARGUMENT;
}

EXPORT int ncclCommUserRank(const struct communicator *c, int *rank)
{
    *rank = c->rank;
    return is_ready(c) ? 0 : INVALID_ARGUMENT;
}

EXPORT int ncclCommCuDevice(const struct communicator *c, int *device)
{
    *device = c->device;
    return is_ready(c) ? 0 : INVALID_ARGUMENT;
}

/* What the network still has to send takes until the state was asked for a few times. */
EXPORT int ncclCommFinalize(struct communicator *c)
{
    if (!is_ready(c))
        return INVALID_ARGUMENT;
    c->finalizes = true;
    c->asked = 0;
    return start(c);
}

static int end(struct communicator *c)
{
    rest(c);
    if (c->shared)
        munmap(c->shared, sizeof(*c->shared));
    c->magic = 0;
    math_handles--;
    free(c);
    return 0;
}

EXPORT int ncclCommDestroy(struct communicator *c)
{
    return is_ready(c) ? end(c) : INVALID_ARGUMENT;
}

/* If that cuts off what is still to be sent, the communicator counts for ever, so tests see it.
 * Takes as long as NCCL's may, if a test wants that: until states were asked for so often. */
EXPORT int ncclCommAbort(struct communicator *c)
{
    if (c->magic != MAGIC)
        abort();
    if (c->finalizes && c->state == IN_PROGRESS)
        math_handles++;
    atomic_store(&c->aborted, 1);
    const unsigned before = asked;
    while (c->ends_late && asked - before < ASKED)
        usleep(50);
    return end(c);
}

EXPORT const char *ncclGetLastError(struct communicator *c)
{
    (void)c;
    return "the double's last error";
}

EXPORT int ncclRedOpCreatePreMulSum(int *made, const void *scalar, int type, int residence,
                                    struct communicator *c)
{
    uint8_t bytes[8];
    int i = 0;
    while (i < OPERATORS && c->used[i])
        i++;
    if (!is_ready(c) || i == OPERATORS)
        return INVALID_ARGUMENT;
    if (residence)
        memcpy(bytes, scalar, size_of(type));
    else if (!math_get(bytes, scalar, size_of(type)))
        return CUDA_ERROR;
    c->used[i] = true;
    c->scalars[i] = value_at(bytes, type, 0);
    *made = 5 + i;
    return 0;
}

EXPORT int ncclRedOpDestroy(int op, struct communicator *c)
{
    c->used[op - 5] = false;
    return 0;
}

/* ------------------------------------------------------------------------------- groups */

EXPORT int ncclGroupStart(void)
{
    depth++;
    return 0;
}

EXPORT int ncclGroupEnd(void)
{
    int status = 0;
    if (--depth)
        return 0;
    for (struct communicator *c = group, *next; c; c = next) {
        next = c->next;
        c->in_group = false;
        status = start(c);
    }
    group = NULL;
    return status;
}

static int add(struct communicator *c, struct operation o)
{
    if (!is_ready(c) || !math_alone(&c->users) || c->count == OPERATIONS)
        return INVALID_ARGUMENT;
    c->all[c->count++] = o;
    if (!depth)
        return start(c);
    if (!c->in_group) {
        c->in_group = true;
        c->next = group;
        group = c;
    }
    return 0;
}

/* Whether it is in the stack of the calling thread, near where that is now. */
static bool is_in_stack(const void *address)
{
    const uintptr_t here = (uintptr_t)__builtin_frame_address(0), at = (uintptr_t)address;
    return (at > here ? at - here : here - at) < 65536;
}

/* *made is written when the split is over, also without a new communicator. */
EXPORT int ncclCommSplit(struct communicator *c, int color, int key, struct communicator **made,
                         const struct config *config)
{
    if ((config && config->blocking && config->blocking != -1) || !is_ready(c) || is_in_stack(made))
        return INVALID_ARGUMENT;
    c->splits++;
    c->color = color;
    c->key = key;
    return add(c, (struct operation){.call = SPLIT, .made = made});
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                         struct communicator *c, void *stream)
{
    return add(c, (struct operation){ALL_REDUCE, from, to, stream, count, type, op, 0, NULL});
}

EXPORT int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                         struct communicator *c, void *stream)
{
    return add(c, (struct operation){BROADCAST, from, to, stream, count, type, 0, root, NULL});
}

EXPORT int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
                      struct communicator *c, void *stream)
{
    return add(c, (struct operation){REDUCE, from, to, stream, count, type, op, root, NULL});
}

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *c,
                         void *stream)
{
    return add(c, (struct operation){ALL_GATHER, from, to, stream, count, type, 0, 0, NULL});
}

EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
                             struct communicator *c, void *stream)
{
    return add(c, (struct operation){REDUCE_SCATTER, from, to, stream, count, type, op, 0, NULL});
}

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, struct communicator *c,
                    void *stream)
{
    return add(c, (struct operation){SEND, from, NULL, stream, count, type, 0, peer, NULL});
}

EXPORT int ncclRecv(void *to, size_t count, int type, int peer, struct communicator *c,
                    void *stream)
{
    return add(c, (struct operation){RECEIVE, NULL, to, stream, count, type, 0, peer, NULL});
}

EXPORT int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct communicator *c,
                        void *stream)
{
    return add(c, (struct operation){ALL_TO_ALL, from, to, stream, count, type, 0, 0, NULL});
}

EXPORT int ncclGather(const void *from, void *to, size_t count, int type, int root,
                      struct communicator *c, void *stream)
{
    return add(c, (struct operation){GATHER, from, to, stream, count, type, 0, root, NULL});
}

EXPORT int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                       struct communicator *c, void *stream)
{
    return add(c, (struct operation){SCATTER, from, to, stream, count, type, 0, root, NULL});
}
