/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Accesses of the host to managed memory (managed.h): the handler of SIGSEGV. Calls of CUDA are
 * made by a thread of this library, over its own connection, because the interrupted thread may be
 * in the middle of anything. The handler itself only makes a few system calls, on any stack.
 *
 * A second such thread serves functions that a stream waits for, since the first one may be waiting
 * for that stream.
 *
 * Other faults are the program's (managed_signals.c).
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/memory/managed.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* ----------------------------------------------------------------------- the thread */

enum fault_kind {
    FAULT_ACCESS,
    FAULT_REST,       /* no access: wait for the device */
    FAULT_GIVE,       /* no access: copy newer bytes to the device ... */
    FAULT_GIVE_WORKS, /* ... which works then */
    FAULT_OF_FUNCTION,
    FAULT_FUNCTION_OVER /* no access: a function that had blocks has returned */
};

/* On the stack of the thread that waits for it. */
struct fault {
    struct fault *next;
    enum fault_kind kind;
    uintptr_t at; /* of an access */
    enum pages_access access;
    enum pages_answer answer;
    int rc; /* the result of FAULT_GIVE */
    atomic_uint over;
};

#define LONG_S     5     /* how long an access waits before a warning */
#define END_MS     2000u /* how long the end of the process waits for one */
#define CONNECT_MS 2000u /* how long the first call waits for the thread's connection */

enum connection {
    CONNECTION_COMING,
    CONNECTION_MADE,
    CONNECTION_REFUSED, /* until _WANTED: managed memory that there is already gets errors */
    CONNECTION_WANTED   /* by another call: the thread is to try again */
};

/* A thread that serves. It connects before the first access: an interrupted thread may hold a lock
 * that GVirtuS takes when it connects, such as that of stdout. */
static struct server {
    _Atomic(struct fault *) faults;
    atomic_uint count;      /* number of faults so far */
    atomic_uint connection; /* an enum connection */
    bool begun;             /* the thread was started; protected by `lock` */
    bool waited;            /* the first call has waited for its connection; protected by `lock` */
} all_threads, functions;   /* whose accesses */

static void sleep_on(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void make_connection(struct server *s)
{
    atomic_store(&s->connection, CONNECTION_COMING);
    atomic_store(&s->connection, ibx_frontend_connect_own() ? CONNECTION_MADE : CONNECTION_REFUSED);
    wake(&s->connection);
}

static void run(struct fault *fault)
{
    switch (fault->kind) {
    case FAULT_ACCESS:
        fault->answer = ibx_managed_fetch(fault->at, fault->access);
        break;
    case FAULT_REST:
        ibx_managed_rest();
        break;
    case FAULT_GIVE:
    case FAULT_GIVE_WORKS:
        fault->rc = ibx_managed_give(fault->kind == FAULT_GIVE_WORKS);
        break;
    case FAULT_OF_FUNCTION:
        fault->answer = ibx_managed_fetch_for_function(fault->at, fault->access);
        break;
    case FAULT_FUNCTION_OVER:
        fault->rc = ibx_managed_function_over();
        break;
    }
}

static void *serve(void *argument)
{
    struct server *s = argument;
    ibx_managed_serves(s == &functions);
    ibx_frontend_is_no_caller();
    make_connection(s);
    for (;;) {
        const unsigned seen = atomic_load(&s->count);
        if (atomic_load(&s->connection) == CONNECTION_WANTED)
            make_connection(s);
        struct fault *fault = atomic_exchange(&s->faults, NULL);
        if (!fault)
            sleep_on(&s->count, seen);
        for (struct fault *next; fault; fault = next) {
            next = fault->next;
            run(fault);
            atomic_store(&fault->over, 1); /* from now on `fault` may be invalid */
            wake(&fault->over);
        }
    }
    return NULL;
}

/* The process is ending, and GVirtuS's front end is about to be destroyed. Other threads go on
 * until the end. */
static atomic_bool ended;
static pthread_t ender;

void ibx_frontend_managed_ends(void)
{
    if (!ibx_managed_catches())
        return;
    ender = pthread_self();
    atomic_store(&ended, true);
    ibx_managed_end(END_MS);
}

static bool is_over(void)
{
    while (atomic_load(&ended) && !pthread_equal(pthread_self(), ender))
        pause();
    return atomic_load(&ended);
}

/* A warning only: the work may still end. */
static void tell_long(uintptr_t at)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "the program has touched memory that kernels use, at %p, and waits for %d s until "
                "the work of the device has ended: a kernel that waits for the host to write such "
                "memory (of cudaHostAllocMapped, or managed) never ends; end the program, and "
                "write before the launch",
                (void *)at, LONG_S);
}

static void wait_for(struct fault *fault)
{
    const uint64_t deadline = ibx_deadline_in_ms(LONG_S * 1000u);
    while (!atomic_load(&fault->over)) {
        const int ms = ibx_ms_until(deadline);
        const struct timespec most = {ms / 1000, ms % 1000 * 1000000L};
        if (ms <= 0 && fault->kind == FAULT_ACCESS)
            tell_long(fault->at);
        syscall(SYS_futex, &fault->over, FUTEX_WAIT_PRIVATE, 0, ms > 0 ? &most : NULL, NULL, 0);
    }
}

static void have_served(struct server *s, struct fault *fault)
{
    fault->next = atomic_load(&s->faults);
    while (!atomic_compare_exchange_weak(&s->faults, &fault->next, fault))
        ;
    atomic_fetch_add(&s->count, 1);
    wake(&s->count);
    wait_for(fault);
}

void ibx_managed_have_rested(void)
{
    struct fault none = {.kind = FAULT_REST};
    if (!atomic_load(&ended))
        have_served(&all_threads, &none);
}

int ibx_managed_have_given(bool works)
{
    struct fault none = {.kind = works ? FAULT_GIVE_WORKS : FAULT_GIVE};
    if (atomic_load(&ended))
        return ibx_managed_give(works);
    have_served(&all_threads, &none);
    return none.rc;
}

static enum pages_answer have_fetched(uintptr_t at, enum pages_access access)
{
    const bool of_function = ibx_frontend_in_host_function();
    struct fault fault = {
        .kind = of_function ? FAULT_OF_FUNCTION : FAULT_ACCESS, .at = at, .access = access};
    if (is_over()) {
        ibx_log(IBX_LOG_ERROR,
                "the program touches managed memory at %p, which the device has, when GVirtuS's "
                "front end is about to go: copy what destructors of libraries need before exit(3)",
                (void *)at);
        return PAGES_FAILED;
    }
    const bool works = ibx_managed_wait_begin();
    have_served(of_function ? &functions : &all_threads, &fault);
    ibx_managed_wait_end(works);
    if (fault.answer == PAGES_FAILED)
        is_over(); /* perhaps because the process ends */
    return fault.answer;
}

/* ----------------------------------------------------------------------- the signal */

#if defined(__x86_64__)
static enum pages_access access_of(const void *context)
{
    const ucontext_t *at = context;
    return at->uc_mcontext.gregs[REG_ERR] & 2 ? ACCESS_WRITE : ACCESS_READ;
}
#elif defined(__aarch64__)
/* The syndrome of the exception (ESR_EL1) is in one of the records behind the registers, the last
 * of which has no magic number. */
static enum pages_access access_of(const void *context)
{
    const mcontext_t *machine = &((const ucontext_t *)context)->uc_mcontext;
    const uint8_t *at = machine->__reserved, *const end = at + sizeof(machine->__reserved);
    struct esr_context record;
    while ((size_t)(end - at) >= sizeof(record)) {
        memcpy(&record, at, sizeof(record));
        if (record.head.magic == ESR_MAGIC && (record.esr >> 26 & 0x3f) == 0x24) /* of data */
            return (record.esr & (1u << 6)) && !(record.esr & (1u << 8)) ? ACCESS_WRITE
                                                                         : ACCESS_READ;
        if (!record.head.magic || record.head.size < sizeof(record.head) ||
            record.head.size > (size_t)(end - at))
            break;
        at += record.head.size;
    }
    return ACCESS_UNKNOWN;
}
#else
static enum pages_access access_of(const void *context)
{
    (void)context;
    return ACCESS_UNKNOWN;
}
#endif

static atomic_bool serves_functions; /* there is a thread that does */

/* For a function that a stream waits for: the device waits for the stream, and the holder of the
 * lock may wait for the device. So the thread that may borrow the lock looks as well. */
static enum pages_answer answer_to_function(uintptr_t at, enum pages_access access)
{
    if (!ibx_managed_find(at, NULL))
        return PAGES_NONE;
    if (atomic_load(&serves_functions))
        return have_fetched(at, access);
    ibx_log(IBX_LOG_ERROR,
            "a function that a stream waits for touches managed memory at %p, which the device "
            "has, and no thread can copy it: raise the limits on threads, and see what the back "
            "end says",
            (void *)at);
    return PAGES_FAILED;
}

static bool served(uintptr_t at, enum pages_access access)
{
    if (ibx_managed_joins(at, 1)) {
        ibx_managed_wait_for_join(at);
        return true;
    }
    if (!ibx_managed_may_hold(at))
        return false;
    if (ibx_frontend_in_host_function())
        return answer_to_function(at, access) == PAGES_READY;
    const enum pages_answer answer = ibx_managed_look(at, access);
    return (answer == PAGES_REMOTE ? have_fetched(at, access) : answer) == PAGES_READY;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const int before = errno;
    const bool done =
        info->si_code == SEGV_ACCERR && served((uintptr_t)info->si_addr, access_of(context));
    errno = before;
    if (!done)
        ibx_managed_pass_on(number, info, context);
}

/* ----------------------------------------------------------------------------- beginning */

static bool start_thread(struct server *s)
{
    pthread_t thread;
    sigset_t most, before;
    sigfillset(&most);
    ibx_managed_real_mask(SIG_SETMASK, &most, &before);
    const int rc = pthread_create(&thread, NULL, serve, s);
    ibx_managed_real_mask(SIG_SETMASK, &before, NULL);
    if (!rc)
        pthread_detach(thread);
    return !rc;
}

/* With a limit: this thread may be in the constructor of a library, and hold a lock of the loader
 * for which the other thread waits. */
static void wait_until_connected(struct server *s)
{
    const uint64_t deadline = ibx_deadline_in_ms(CONNECT_MS);
    unsigned now;
    for (int ms; (now = atomic_load(&s->connection)) != CONNECTION_MADE &&
                 now != CONNECTION_REFUSED && (ms = ibx_ms_until(deadline)) > 0;) {
        const struct timespec most = {ms / 1000, ms % 1000 * 1000000L};
        syscall(SYS_futex, &s->connection, FUTEX_WAIT_PRIVATE, now, &most, NULL, 0);
    }
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void forget(struct server *s)
{
    s->waited = s->begun = false;
    atomic_store(&s->connection, CONNECTION_COMING);
    atomic_store(&s->faults, NULL);
}

/* A child has no other threads. */
static void in_child(void)
{
    forget(&all_threads);
    forget(&functions);
    atomic_store(&serves_functions, false);
    pthread_mutex_init(&lock, NULL);
}

/* Called under the lock. False: it has no connection. */
static bool server_begins(struct server *s)
{
    unsigned refused = CONNECTION_REFUSED;
    if (!s->begun) {
        s->begun = start_thread(s);
    } else if (atomic_compare_exchange_strong(&s->connection, &refused, CONNECTION_WANTED)) {
        s->waited = false;
        atomic_fetch_add(&s->count, 1);
        wake(&s->count);
    }
    if (s->begun && !s->waited)
        wait_until_connected(s);
    s->waited = s->begun;
    return s->begun && atomic_load(&s->connection) != CONNECTION_REFUSED;
}

/* A function is about to be called, and may access managed memory. */
static void function_begins(void)
{
    if (atomic_load_explicit(&serves_functions, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    atomic_store(&serves_functions, server_begins(&functions));
    pthread_mutex_unlock(&lock);
}

/* Without such a thread no function has got blocks, and nobody would answer. */
static void function_ends(void)
{
    struct fault none = {.kind = FAULT_FUNCTION_OVER};
    if (ibx_managed_any_lent() && atomic_load(&serves_functions) && !is_over())
        have_served(&functions, &none);
}

static const struct ibx_frontend_around around = {
    .first = ibx_managed_copies_end, .begins = function_begins, .ends = function_ends};

/* Locked. */
static void watch_forks(void)
{
    static bool watches;
    if (!watches)
        watches = !pthread_atfork(NULL, NULL, in_child);
}

bool ibx_managed_faults_wait(void)
{
    pthread_mutex_lock(&lock);
    watch_forks();
    const bool good = ibx_managed_catch(on_fault);
    pthread_mutex_unlock(&lock);
    return good;
}

bool ibx_managed_faults_begin(void)
{
    pthread_mutex_lock(&lock);
    watch_forks();
    const bool good =
        (all_threads.begun || ibx_managed_catch(on_fault)) && server_begins(&all_threads);
    pthread_mutex_unlock(&lock);
    if (good)
        ibx_frontend_around_functions(&around);
    return good;
}
