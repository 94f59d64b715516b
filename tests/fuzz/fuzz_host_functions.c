/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Functions of an application that its back end names; the back end answers anything. A function
 * is called at most as often as it was enqueued, functions of graphs in total as often as
 * launched graphs call one, and no function is called that the program has not named. Once the
 * back end has gone, no function is waited for.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end. The thread that calls functions
 * runs when the program waits for it, and between steps while a function is outstanding. Input,
 * in this order:
 *
 * - u8 n, and n steps of two bytes: an action and its argument, see run_step();
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fuzz/fake_frontend.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__asan_default_options(void);

#define FUNCTIONS 4u

/* A process that forks leaks what it knows about its functions. */
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

/* ------------------------------------------------------------ the thread */

static void *(*thread)(void *argument);
static void (*forgets)(void); /* called in a child */
static bool inside;
static jmp_buf before;

int __real_pthread_create(pthread_t *id, const pthread_attr_t *how, void *(*start)(void *argument),
                          void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *how, void *(*start)(void *argument),
                          void *argument);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *how, void *(*start)(void *argument),
                          void *argument)
{
    if (argument) /* one of libFuzzer's */
        return __real_pthread_create(id, how, start, argument);
    *id = pthread_self();
    thread = start;
    return 0;
}

/* The last handlers are those of the functions; others are registered before main(). */
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    (void)prepare, (void)parent;
    forgets = child;
    return 0;
}

/* Runs the thread until it would sleep, or ends. */
static void run_thread(void)
{
    if (!thread || inside)
        return;
    inside = true;
    if (!setjmp(before))
        thread(NULL);
    inside = false;
}

bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
bool __wrap_ibx_thread_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    (void)condition;
    pthread_mutex_unlock(mutex);
    if (inside)
        longjmp(before, 1);
    run_thread();
    pthread_mutex_lock(mutex);
    return true;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  clockid_t clock, const struct timespec *until);
int __wrap_pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  clockid_t clock, const struct timespec *until)
{
    (void)clock, (void)until;
    return !__wrap_ibx_thread_wait(condition, mutex);
}

bool __wrap_ibx_thread_may_spin(void);
bool __wrap_ibx_thread_may_spin(void)
{
    return false;
}

/* ------------------------------------------------------------ replaced functions of other files */

static bool takes_bytes;

bool ibx_frontend_graph_takes_bytes(void)
{
    return takes_bytes;
}

bool ibx_frontend_graph_copied(void (*function)(void *), void *argument, uint8_t *bytes, size_t n)
{
    static volatile uint8_t sum;
    (void)function, (void)argument;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + bytes[i]);
    return false;
}

void ibx_frontend_graph_give(void *argument, struct ibx_launch_bytes *taken)
{
    static volatile uint8_t sum;
    (void)argument;
    sum = (uint8_t)(sum + *(const uint8_t *)taken);
}

void ibx_launch_bytes_free(struct ibx_launch_bytes *taken)
{
    free(taken);
}

void ibx_frontend_graph_behind_trim(void) {}

int ibx_frontend_relax(void)
{
    return 0;
}

void ibx_frontend_relax_end(int mode)
{
    (void)mode;
}

bool ibx_frontend_captures(void *stream)
{
    (void)stream;
    return false;
}

int ibx_frontend_capture_function(void *stream, void (*function)(void *argument), void *argument)
{
    (void)stream, (void)function, (void)argument;
    return CUDA_NOT_SUPPORTED;
}

/* ------------------------------------------------------------ the program */

static unsigned enqueued[2][FUNCTIONS], called[2][FUNCTIONS]; /* by stream */
static unsigned launched, called_of_graphs;
static bool known[FUNCTIONS]; /* to graphs */
static char marks[3][FUNCTIONS];
static uint64_t numbers[FUNCTIONS]; /* of the functions of graphs */

static unsigned which_of(const char *marked, unsigned kind)
{
    const uintptr_t at = (uintptr_t)marked, first = (uintptr_t)marks[kind];
    require(at >= first && at < first + FUNCTIONS);
    return (unsigned)(at - first);
}

static void function(void *argument)
{
    const unsigned i = which_of(argument, 0);
    require(called[0][i]++ < enqueued[0][i]);
}

static void callback(void *stream, int status, void *argument)
{
    const unsigned i = which_of(argument, 1);
    (void)status;
    require((uintptr_t)stream < 4);
    require(called[1][i]++ < enqueued[1][i]);
}

static void function_of_graph(void *argument)
{
    require(known[which_of(argument, 2)]);
    require(called_of_graphs++ < launched);
}

static int launch(void *exec, void *stream)
{
    int rc;
    (void)exec, (void)stream;
    const struct ibx_frontend_request r = {.name = "launch"};
    return ibx_frontend_plugin()->call(&r, &rc) ? CUDA_UNKNOWN : rc;
}

/* A failed call has not enqueued the function, which may have been called anyway. */
static void enqueue(unsigned kind, unsigned argument)
{
    const unsigned i = argument % FUNCTIONS;
    void *stream = (void *)(uintptr_t)(argument >> 2 & 3);
    enqueued[kind][i]++;
    if (kind)
        cudaStreamAddCallback(stream, callback, &marks[1][i], 0);
    else
        cudaLaunchHostFunc(stream, function, &marks[0][i]);
}

static void make_of_graph(unsigned argument)
{
    const unsigned i = argument % FUNCTIONS;
    struct host_node node;
    uint64_t queue;
    numbers[i] = ibx_frontend_host_repeated(function_of_graph, &marks[2][i], &queue);
    known[i] = known[i] || numbers[i];
    if (numbers[i])
        require(ibx_frontend_host_function_of(numbers[i], &node) && node.argument == &marks[2][i]);
}

static void give(const struct ibx_launch *made, unsigned i)
{
    struct ibx_launch_bytes *taken = calloc(1, 1);
    if (!ibx_frontend_host_give(made->id, made->numbers[i], taken))
        free(taken);
}

static void launch_graph(unsigned argument)
{
    static const enum ibx_launch_use uses[] = {IBX_COPY_LATER, IBX_COPY_TAKEN, IBX_COPY_AWAITED,
                                               IBX_COPY_UNTAKEN};
    const enum ibx_launch_use use = uses[argument >> 6 & 3];
    uint64_t called_by_it[FUNCTIONS];
    struct ibx_launch_copy copies[FUNCTIONS] = {{IBX_COPY_LATER, NULL}};
    unsigned n = 0;
    for (unsigned i = 0; i < FUNCTIONS; i++)
        if (argument >> i & 1 && numbers[i])
            called_by_it[n++] = numbers[i];
    launched += n;
    for (unsigned i = 0; i < n; i++)
        copies[i] = (struct ibx_launch_copy){use, use == IBX_COPY_TAKEN ? calloc(1, 1) : NULL};
    struct ibx_launch made = {.numbers = called_by_it, .copies = copies, .count = n};
    void *stream = (void *)(uintptr_t)(argument >> 4 & 3);
    struct ibx_launch_wait wait = {.code = CUDA_NOT_READY};
    for (bool waits = !ibx_frontend_host_launch(&made, stream, launch, NULL);
         waits && wait.code == CUDA_NOT_READY;) {
        ibx_frontend_host_await(&made, stream, &wait);
        for (unsigned i = 0; i < n && use == IBX_COPY_UNTAKEN; i++)
            give(&made, i);
    }
    for (unsigned i = 0; i < n; i++)
        free(copies[i].taken);
}

static void ask(unsigned what, unsigned argument)
{
    void *stream = (void *)(uintptr_t)(argument & 3), *event = (void *)(uintptr_t)(argument >> 2);
    switch (what & 7) {
    case 0:
        ibx_frontend_host_lost(ibx_frontend_host_enqueued(), argument & 4, stream);
        break;
    case 1:
        ibx_frontend_host_waits(stream);
        break;
    case 2:
        ibx_frontend_host_before(stream, 1000);
        break;
    case 3:
        ibx_frontend_host_gone(stream);
        break;
    case 4:
        ibx_frontend_host_event(event, stream);
        break;
    case 5:
        ibx_frontend_host_event_lost(event);
        break;
    case 6:
        ibx_frontend_host_reset(0);
        break;
    default:
        takes_bytes = argument & 1;
    }
}

static void run_step(uint8_t what, uint8_t argument)
{
    switch (what & 3) {
    case 0:
        enqueue(what >> 2 & 1, argument);
        break;
    case 1:
        make_of_graph(argument);
        break;
    case 2:
        launch_graph(argument);
        break;
    default:
        ask(what >> 2, argument);
    }
    if (ibx_frontend_host_functions() && what & 128)
        run_thread();
}

/* There are no more answers: the thread ends, and nobody waits. */
static void end(void)
{
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    run_thread();
    for (uintptr_t stream = 0; stream < 4; stream++)
        ibx_frontend_host_lost(ibx_frontend_host_enqueued(), false, (void *)stream);
    ibx_frontend_host_reset(0);
    for (uintptr_t stream = 0; stream < 4; stream++)
        require(!ibx_frontend_host_gone((void *)stream));
    if (forgets)
        forgets();
    require(!ibx_frontend_host_functions());
    thread = NULL;
    memset(enqueued, 0, sizeof(enqueued));
    memset(called, 0, sizeof(called));
    memset(numbers, 0, sizeof(numbers));
    memset(known, 0, sizeof(known));
    launched = called_of_graphs = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, 2, &count);
    if (!steps)
        return 0;
    for (unsigned i = 0; i < count; i++)
        run_step(steps[2 * i], steps[2 * i + 1]);
    end();
    return 0;
}
