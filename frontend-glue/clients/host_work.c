/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of the client that a stream waits for (cudaLaunchHostFunc, cudaStreamAddCallback). In
 * place of each, CUDA calls one of ours, in a thread of the driver's, which waits until the client
 * has called its own function: so the order is CUDA's. A thread of the client asks which function
 * it is to call, over a connection of its own (IBX_EXT_WORK), and reports each that it has called.
 *
 * A function that a graph calls is a new entry at each call. It is known as long as a graph, or an
 * executable graph, has it, which a user object of CUDA's tells. No object tells of one that a node
 * has in an executable graph alone (exec_functions.c): its launches and calls are counted, so that
 * it can go when the last launch has called it. A function that copies between the
 * client and a slot (graph_slots.h) needs no calls of CUDA: a bit of its id says that it does, also
 * when its queue is gone.
 *
 * A queue belongs to the session that asks. When that session ends, nothing waits for the client
 * any more. CUDA is given a number instead of an address: if it calls a function a second time (in
 * a graph that another session has begun to capture meanwhile), the function is not found, and the
 * call returns.
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/state_machine.h"
#include "common/thread.h"
#include "frontend-glue/clients/graph_slots.h"

#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>

#define FUNCTIONS_MAX 65536u  /* of one queue, at a time; with the queue's session */
#define ASK_MS        20u     /* for so long a request waits, and the connection is not looked at */
#define POLL_NS       100000u /* polling before a thread sleeps, if there are enough processors */
#define ID_COPIES     1u      /* bit of an id: the function copies by a slot */

/*
 * state machine: function that a stream waits for
 *   [*] -> REPEATED -> [*]              of graphs, until the last one: what others are made of
 *   [*] -> WAITING                      enqueued
 *   WAITING -> REACHED                  its stream has got there
 *   REACHED -> TAKEN                    the client's thread has asked, and calls it
 *   TAKEN -> OVER -> [*]                it has asked again, and said so
 *   WAITING | REACHED | TAKEN -> [*]    it was not enqueued; its queue's session has ended
 */
enum function_state {
    FUNCTION_REPEATED,
    FUNCTION_WAITING,
    FUNCTION_REACHED,
    FUNCTION_TAKEN,
    FUNCTION_OVER
};

static const struct ibx_state function_states[] = {
    [FUNCTION_REPEATED] = {"repeated", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [FUNCTION_WAITING] = {"waiting", IBX_TO(FUNCTION_REACHED), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [FUNCTION_REACHED] = {"reached", IBX_TO(FUNCTION_TAKEN), IBX_STATE_FINAL},
    [FUNCTION_TAKEN] = {"taken", IBX_TO(FUNCTION_OVER), IBX_STATE_FINAL},
    [FUNCTION_OVER] = {"over", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table function_table =
    IBX_STATE_TABLE("function that a stream waits for", function_states);

struct function {
    struct ibx_host_queue *queue;
    struct function *next;          /* of those that were reached, or are repeated */
    struct function **at;           /* where that list has it, if it is repeated */
    uintptr_t id;                   /* what CUDA has instead of an address */
    uint64_t number;                /* the client's number of it */
    struct ibx_state_machine state; /* enum function_state; the lock's */
    int status;                     /* cudaError_t of the stream, for a callback */
    struct ibx_host_copy copy;
    unsigned users; /* graphs that have it, and threads that are about to give it to one */
    bool for_good;  /* ibx_host_work_for_good() */
    bool lone;      /* of one node of an executable graph: */
    bool replaced;  /* ... it is not launched any more */
    uint64_t launched, called;
};

struct ibx_host_queue {
    struct ibx_host_queue *next;
    uint64_t id; /* nobody else can guess it */
    const struct ibx_tenant *tenant;
    struct function *reached; /* in the order in which their streams have got there */
    struct function *repeated;
    unsigned holders; /* the session, and functions */
    bool ended;       /* the session has ended */
    bool told;        /* it was logged that the queue is full */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t changes;
static struct ibx_host_queue *queues; /* of sessions */
static void *functions;               /* a tree of all, by id */
static void *repeated_ones;           /* a tree of those in state REPEATED, by queue and number */
static uintptr_t last_id;

/* Locked. */
static void tell(void)
{
    atomic_fetch_add(&changes, 1);
    pthread_cond_broadcast(&changed);
}

/* When polling that begins now is to end; 0: there are too few processors to poll. */
static uint64_t poll_until(void)
{
    static atomic_uint spins; /* 0: not known, 1: there are enough processors, 2: there are not */
    if (!atomic_load_explicit(&spins, memory_order_relaxed))
        atomic_store(&spins, ibx_thread_may_spin() ? 1 : 2);
    return atomic_load_explicit(&spins, memory_order_relaxed) == 1 ? ibx_now_ns() + POLL_NS : 0;
}

/* Locked; returns as pthread_cond_clockwait(). A graph stands still meanwhile, and a sleeping
 * thread takes 12 us to wake up: so this polls first, until `polls_ns`. */
static int wait_for_change(uint64_t polls_ns, const struct timespec *until)
{
    const uint64_t before = atomic_load(&changes);
    if (ibx_now_ns() < polls_ns) {
        pthread_mutex_unlock(&lock);
        while (atomic_load_explicit(&changes, memory_order_acquire) == before &&
               ibx_now_ns() < polls_ns)
            ibx_cpu_relax();
        pthread_mutex_lock(&lock);
        if (atomic_load(&changes) != before)
            return 0;
    }
    if (until)
        return pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, until);
    ibx_thread_wait(&changed, &lock);
    return 0;
}

static int compare(const void *a, const void *b)
{
    const struct function *left = a, *right = b;
    return (left->id > right->id) - (left->id < right->id);
}

static int compare_numbers(const void *a, const void *b)
{
    const struct function *left = a, *right = b;
    const uintptr_t of_left = (uintptr_t)left->queue, of_right = (uintptr_t)right->queue;
    return of_left != of_right ? (of_left > of_right) - (of_left < of_right)
                               : (left->number > right->number) - (left->number < right->number);
}

/* Locked. */
static struct ibx_host_queue *find(const struct gpu_session *x, uint64_t id)
{
    struct ibx_host_queue *q = queues;
    while (q && (q->id != id || q->tenant != x->isolation.tenant))
        q = q->next;
    return q;
}

/* Locked. */
static void let_go(struct ibx_host_queue *q)
{
    if (!--q->holders)
        free(q);
}

/* ------------------------------------------------------------------- a thread of the driver's */

/* Locked. The function with that id, if it is in that state. NULL: it was called already, or is
 * gone. */
static struct function *in_that_state(const void *id, enum function_state state)
{
    const struct function wanted = {.id = (uintptr_t)id};
    struct function *const *found = tfind(&wanted, &functions, compare);
    return found && (*found)->state.now == state ? *found : NULL;
}

static struct function *first_call(const void *id)
{
    return in_that_state(id, FUNCTION_WAITING);
}

/* Locked. */
static void forget(struct function *f)
{
    tdelete(f, &functions, compare);
    let_go(f->queue);
    free(f);
}

static void wait_for_client(void *id, int status)
{
    pthread_mutex_lock(&lock);
    struct function *f = first_call(id), **at = f ? &f->queue->reached : NULL;
    if (!f) {
        pthread_mutex_unlock(&lock);
        return;
    }
    while (*at)
        at = &(*at)->next;
    *at = f;
    ibx_state_move(&f->state, FUNCTION_REACHED);
    f->status = status;
    tell();
    const uint64_t polls = poll_until();
    while (f->state.now != FUNCTION_OVER && !f->queue->ended)
        wait_for_change(polls, NULL);
    for (at = &f->queue->reached; *at != f;)
        at = &(*at)->next;
    *at = f->next;
    forget(f);
    pthread_mutex_unlock(&lock);
}

static void call_function(void *id)
{
    wait_for_client(id, 0);
}

static void call_back(void *stream, int status, void *id)
{
    (void)stream;
    wait_for_client(id, status);
}

static void call_nothing(void *stream, int status, void *id)
{
    (void)stream, (void)status, (void)id;
}

/* Locked. A new function of the queue, in that state; NULL: no memory. */
static struct function *enter(struct ibx_host_queue *q, uint64_t number, enum function_state state,
                              bool copies)
{
    struct function *f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    last_id += 2;
    *f = (struct function){
        .queue = q, .id = copies ? last_id | ID_COPIES : last_id, .number = number};
    ibx_state_begin(&f->state, &function_table, state);
    if (!tsearch(f, &functions, compare)) {
        free(f);
        return NULL;
    }
    q->holders++;
    return f;
}

/* ----------------------------------------------------------------------------- requests */

int ibx_host_work_open(struct gpu_session *x, uint64_t *id)
{
    struct ibx_host_queue *q = x->host_queue ? NULL : calloc(1, sizeof(*q));
    if (!q || getrandom(&q->id, sizeof(q->id), 0) != sizeof(q->id)) {
        free(q);
        return x->host_queue ? CUDA_INVALID_VALUE : CUDA_MEMORY_ALLOCATION;
    }
    q->tenant = x->isolation.tenant;
    q->holders = 1;
    pthread_mutex_lock(&lock);
    q->next = queues;
    queues = q;
    pthread_mutex_unlock(&lock);
    x->host_queue = q;
    ibx_clients_calls(x);
    *id = q->id;
    return 0;
}

/* Locked. The tenant's queue with that id, if it takes another function of that number; NULL: *rc
 * is the error. */
static struct ibx_host_queue *with_room(const struct gpu_session *x, uint64_t id, uint64_t number,
                                        int *rc)
{
    struct ibx_host_queue *q = find(x, id);
    *rc = !q || !number                ? CUDA_INVALID_VALUE
          : q->holders > FUNCTIONS_MAX ? CUDA_MEMORY_ALLOCATION
                                       : 0;
    if (*rc == CUDA_MEMORY_ALLOCATION && !q->told)
        ibx_log(IBX_LOG_WARN,
                "a client gets no more functions that streams or graphs call: %u wait to be "
                "called, or are in graphs that it has not destroyed",
                FUNCTIONS_MAX);
    if (*rc == CUDA_MEMORY_ALLOCATION)
        q->told = true;
    return *rc ? NULL : q;
}

/* Locked. The queue's function in REPEATED with that number; NULL: there is none. */
static struct function *find_repeated(struct ibx_host_queue *q, uint64_t number)
{
    const struct function wanted = {.queue = q, .number = number};
    struct function *const *found = tfind(&wanted, &repeated_ones, compare_numbers);
    return found ? *found : NULL;
}

/* Locked. */
static void add_to_repeated(struct ibx_host_queue *q, struct function *f)
{
    f->next = q->repeated;
    f->at = &q->repeated;
    if (f->next)
        f->next->at = &f->next;
    q->repeated = f;
    ibx_graph_functions_count(1);
}

/* Locked. A new function in REPEATED, which find_repeated() finds; NULL: no memory. */
static struct function *enter_repeated(struct ibx_host_queue *q, uint64_t number, bool copies)
{
    struct function *f = enter(q, number, FUNCTION_REPEATED, copies);
    if (f && !tsearch(f, &repeated_ones, compare_numbers)) {
        forget(f);
        return NULL;
    }
    if (f)
        add_to_repeated(q, f);
    return f;
}

/* Locked. The same for the function of a node alone, which nobody looks for. */
static struct function *enter_lone(struct ibx_host_queue *q, uint64_t number)
{
    struct function *f = enter(q, number, FUNCTION_REPEATED, false);
    if (f) {
        f->lone = true;
        add_to_repeated(q, f);
    }
    return f;
}

/* Adds a function, in REPEATED one of a node alone, and returns its id for CUDA; NULL: *rc is the
 * error. */
static void *add(const struct gpu_session *x, uint64_t id, uint64_t number,
                 enum function_state state, int *rc)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_queue *q = with_room(x, id, number, rc);
    const struct function *f = !q                           ? NULL
                               : state == FUNCTION_REPEATED ? enter_lone(q, number)
                                                            : enter(q, number, state, false);
    void *made = f ? (void *)f->id : NULL;
    pthread_mutex_unlock(&lock);
    if (!made && !*rc)
        *rc = CUDA_MEMORY_ALLOCATION;
    return made;
}

/* Locked. */
static void forget_repeated(struct function *f)
{
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
    ibx_graph_functions_count(-1);
    if (!f->lone)
        tdelete(f, &repeated_ones, compare_numbers);
    forget(f);
}

/* Locked. */
static void forget_if_over(struct function *f)
{
    if (f->replaced && f->called >= f->launched && !f->for_good)
        forget_repeated(f);
}

void ibx_host_work_call(void *repeated)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    const bool known = f, copies = ibx_host_work_is_copy(repeated);
    struct function *once = f ? enter(f->queue, f->number, FUNCTION_WAITING, copies) : NULL;
    if (once)
        once->copy = f->copy;
    void *id = once ? (void *)once->id : NULL;
    if (f && f->lone) {
        f->called++;
        forget_if_over(f);
    }
    pthread_mutex_unlock(&lock);
    if (known && !once)
        ibx_log(IBX_LOG_ERROR, "no memory to call a function of a client's graph: the graph goes "
                               "on without it");
    if (once)
        wait_for_client(id, 0);
    if (!copies)
        ibx_graph_room_give(1);
}

void ibx_host_work_unused(const void *repeated, uint64_t slot)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    if (f && !f->users && f->copy.slot == slot)
        forget_repeated(f);
    pthread_mutex_unlock(&lock);
}

static void *repeat(const struct gpu_session *x, uint64_t id, uint64_t number, bool copies, int *rc)
{
    pthread_mutex_lock(&lock);
    struct ibx_host_queue *q = with_room(x, id, number, rc);
    struct function *f = q ? find_repeated(q, number) : NULL;
    if (q && !f)
        f = enter_repeated(q, number, copies);
    void *made = f ? (void *)f->id : NULL;
    const bool good = made && ibx_host_work_is_copy(made) == copies;
    if (good)
        f->users++;
    pthread_mutex_unlock(&lock);
    if (!made && !*rc)
        *rc = CUDA_MEMORY_ALLOCATION;
    else if (made && !good)
        *rc = CUDA_INVALID_VALUE;
    return good ? made : NULL;
}

void *ibx_host_work_repeat(struct gpu_session *x, uint64_t id, uint64_t number, int *rc)
{
    return repeat(x, id, number, false, rc);
}

void *ibx_host_work_repeat_lone(struct gpu_session *x, uint64_t id, uint64_t number, int *rc)
{
    return add(x, id, number, FUNCTION_REPEATED, rc);
}

void ibx_host_work_launch(const void *lone, int more)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(lone, FUNCTION_REPEATED);
    if (f)
        f->launched += (uint64_t)(int64_t)more;
    pthread_mutex_unlock(&lock);
}

void ibx_host_work_replace(const void *lone, bool over)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(lone, FUNCTION_REPEATED);
    if (f) {
        f->replaced = true;
        f->launched = over ? 0 : f->launched;
        forget_if_over(f);
    }
    pthread_mutex_unlock(&lock);
}

/* The copy of a function of graphs; `new`, unless NULL, replaces it before. */
static struct ibx_host_copy copy_of(const void *repeated, const struct ibx_host_copy *new)
{
    struct ibx_host_copy copy = {.slot = 0};
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    if (f && new)
        f->copy = *new;
    if (f)
        copy = f->copy;
    pthread_mutex_unlock(&lock);
    return copy;
}

/* Ends what repeat() has begun. A function that copies stays as long as it has a slot, which a
 * graph holds. */
void ibx_host_work_release(void *repeated)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    if (f && !--f->users && !f->copy.slot && !f->for_good)
        forget_repeated(f);
    pthread_mutex_unlock(&lock);
}

void ibx_host_work_for_good(const void *repeated)
{
    pthread_mutex_lock(&lock);
    struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    if (f)
        f->for_good = true;
    pthread_mutex_unlock(&lock);
}

/* All graphs with that function share one slot: two unordered copies from or to the same memory of
 * the client are a race natively, too, or copy the same bytes. */
void *ibx_host_work_copy(struct gpu_session *x, uint64_t id, uint64_t number,
                         struct ibx_host_copy *copy, int *rc)
{
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    void *made = repeat(x, id, number, true, rc);
    if (!made)
        return NULL;
    pthread_mutex_lock(&making);
    const struct ibx_host_copy now = copy_of(made, NULL);
    if (now.slot && (now.n != copy->n || now.to_device != copy->to_device))
        *rc = CUDA_INVALID_VALUE;
    else if (now.slot && ibx_slot_hold(now.slot))
        *copy = now;
    else {
        copy->slot = ibx_slot_make(x, copy->n);
        *rc = copy->slot ? 0 : CUDA_NOT_SUPPORTED;
        ibx_slot_call(copy->slot, made);
        copy_of(made, copy); /* also if there is no slot: the former one has gone */
    }
    pthread_mutex_unlock(&making);
    ibx_host_work_release(made);
    return *rc ? NULL : made;
}

struct ibx_host_copy ibx_host_work_copy_of(const void *repeated)
{
    return copy_of(repeated, NULL);
}

bool ibx_host_work_is_copy(const void *repeated)
{
    return (uintptr_t)repeated & ID_COPIES;
}

uint64_t ibx_host_work_number(const struct gpu_session *x, const void *repeated)
{
    pthread_mutex_lock(&lock);
    const struct function *f = in_that_state(repeated, FUNCTION_REPEATED);
    const uint64_t number = f && f->queue->tenant == x->isolation.tenant ? f->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

typedef int add_callback(void *stream, void (*function)(void *stream, int status, void *id),
                         void *id, unsigned flags);

/* A graph would call the function more than once. CUDA itself refuses a callback, and the capture
 * has failed then. */
static int refuse_in_capture(const struct ibx_host_work *work, void *enqueue)
{
    add_callback *add_it = NULL;
    memcpy(&add_it, &enqueue, sizeof(add_it));
    const int rc =
        work->callback ? add_it((void *)(uintptr_t)work->stream, call_nothing, NULL, 0) : 0;
    return rc ? rc : CUDA_NOT_SUPPORTED;
}

int ibx_host_work_add(struct gpu_session *x, const struct ibx_host_work *work, void *enqueue)
{
    int (*launch)(void *stream, void (*function)(void *), void *argument) = NULL;
    add_callback *add_it = NULL;
    int capturing = 0, rc = 0;
    if (work->stream > 1 && ibx_back_end_have_cuda(x)) /* the legacy stream is never captured */
        rc = x->cuda->stream_is_capturing((void *)(uintptr_t)work->stream, &capturing);
    if (rc || capturing)
        return rc ? rc : refuse_in_capture(work, enqueue);
    void *id = add(x, work->queue, work->number, FUNCTION_WAITING, &rc);
    if (!id)
        return rc;
    if (work->callback) {
        memcpy(&add_it, &enqueue, sizeof(add_it));
        rc = add_it((void *)(uintptr_t)work->stream, call_back, id, 0);
    } else {
        memcpy(&launch, &enqueue, sizeof(launch));
        rc = launch((void *)(uintptr_t)work->stream, call_function, id);
    }
    if (!rc)
        return 0;
    pthread_mutex_lock(&lock);
    struct function *f = first_call(id);
    if (f)
        forget(f);
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Locked. The first reached function in that state, and with that number unless it is 0. */
static struct function *in_state(const struct ibx_host_queue *q, enum function_state state,
                                 uint64_t number)
{
    struct function *f = q->reached;
    while (f && (f->state.now != state || (number && f->number != number)))
        f = f->next;
    return f;
}

struct ibx_host_copy ibx_host_work_taken(const struct gpu_session *x, uint32_t number)
{
    pthread_mutex_lock(&lock);
    const struct function *f = x->host_queue ? x->host_queue->reached : NULL;
    while (f && (f->state.now != FUNCTION_TAKEN || (f->number & INT32_MAX) != number))
        f = f->next;
    const struct ibx_host_copy copy = f ? f->copy : (struct ibx_host_copy){.slot = 0};
    pthread_mutex_unlock(&lock);
    return copy;
}

int ibx_host_work_ask(struct gpu_session *x, uint64_t over, bool wait,
                      struct ibx_host_called *called)
{
    const uint64_t deadline = ibx_deadline_in_ms(ASK_MS);
    const struct timespec until = ibx_timespec_of(deadline);
    const struct ibx_host_queue *q = x->host_queue;
    const uint64_t polls = wait ? poll_until() : 0;
    struct function *f;
    int timeout = 0;
    if (!q)
        return CUDA_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct function *done = over ? in_state(q, FUNCTION_TAKEN, over) : NULL;
    if (done) {
        ibx_state_move(&done->state, FUNCTION_OVER);
        tell();
    }
    while (!(f = in_state(q, FUNCTION_REACHED, 0)) && wait && !timeout)
        timeout = wait_for_change(polls, &until);
    *called = f ? (struct ibx_host_called){f->number, f->status, f->copy}
                : (struct ibx_host_called){.number = 0};
    if (f)
        ibx_state_move(&f->state, FUNCTION_TAKEN);
    pthread_mutex_unlock(&lock);
    return over && !done ? CUDA_INVALID_VALUE : 0;
}

void ibx_host_work_end(struct gpu_session *x)
{
    struct ibx_host_queue *q = x->host_queue;
    if (!q)
        return;
    x->host_queue = NULL;
    pthread_mutex_lock(&lock);
    struct ibx_host_queue **at = &queues;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    q->ended = true;
    while (q->repeated)
        forget_repeated(q->repeated);
    tell();
    let_go(q);
    pthread_mutex_unlock(&lock);
}
