/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Accesses of the host to managed memory (managed.h): a handler of SIGSEGV. What needs the device a
 * thread of this library's does, over a connection of its own: the thread that was interrupted may
 * be in the middle of anything. The handler itself makes a few system calls, on whatever stack.
 *
 * Faults elsewhere are the program's. Its handler, set before or later, gets them. A thread that
 * blocks the signal would be killed by such an access: no thread does, and each is told that it
 * does (pthread_sigmask(3)), also one that inherits that.
 */
#include "frontend-glue/preload/managed.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* ----------------------------------------------------------------------- the thread */

enum fault_kind {
    FAULT_ACCESS,
    FAULT_REST,      /* it is none: the device is to rest */
    FAULT_GIVE,      /* nor is this: the device is to have what is newer here ... */
    FAULT_GIVE_WORKS /* ... and works then */
};

/* In the stack of the thread that waits for it. */
struct fault {
    struct fault *next;
    enum fault_kind kind;
    uintptr_t at; /* an access */
    enum pages_access access;
    enum pages_answer answer;
    int rc; /* of what was given */
    atomic_uint over;
};

#define LONG_S     5     /* that an access waits before a line says so */
#define END_MS     2000u /* that the end of the process waits for one */
#define CONNECT_MS 2000u /* that the first call waits for the thread's connection */

static _Atomic(struct fault *) faults;
static atomic_uint count; /* of all so far */

static void sleep_on(atomic_uint *word, unsigned value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* It has a connection before any access needs one: the thread that is interrupted may hold what
 * GVirtuS takes as it connects, stdout's lock for instance. */
static atomic_uint connected;

static void run(struct fault *fault)
{
    if (fault->kind == FAULT_ACCESS)
        fault->answer = ibx_managed_fetch(fault->at, fault->access);
    else if (fault->kind == FAULT_REST)
        ibx_managed_rest();
    else
        fault->rc = ibx_managed_give(fault->kind == FAULT_GIVE_WORKS);
}

static void *serve(void *argument)
{
    (void)argument;
    ibx_managed_serves();
    ibx_frontend_is_no_caller();
    ibx_frontend_connect();
    atomic_store(&connected, 1);
    wake(&connected);
    for (;;) {
        const unsigned seen = atomic_load(&count);
        struct fault *fault = atomic_exchange(&faults, NULL);
        if (!fault)
            sleep_on(&count, seen);
        for (struct fault *next; fault; fault = next) {
            next = fault->next;
            run(fault);
            atomic_store(&fault->over, 1); /* from here on it may be gone */
            wake(&fault->over);
        }
    }
    return NULL;
}

/* GVirtuS's front end goes with the process. Other threads go on until then. */
static atomic_bool ended;
static pthread_t ender;
static atomic_bool installed; /* the handler */

void ibx_frontend_managed_ends(void)
{
    if (!atomic_load(&installed))
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

/* The work may end yet: nobody can tell. */
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

static void have_served(struct fault *fault)
{
    fault->next = atomic_load(&faults);
    while (!atomic_compare_exchange_weak(&faults, &fault->next, fault))
        ;
    atomic_fetch_add(&count, 1);
    wake(&count);
    wait_for(fault);
}

void ibx_managed_have_rested(void)
{
    struct fault none = {.kind = FAULT_REST};
    if (!atomic_load(&ended))
        have_served(&none);
}

int ibx_managed_have_given(bool works)
{
    struct fault none = {.kind = works ? FAULT_GIVE_WORKS : FAULT_GIVE};
    if (atomic_load(&ended))
        return ibx_managed_give(works);
    have_served(&none);
    return none.rc;
}

static enum pages_answer have_fetched(uintptr_t at, enum pages_access access)
{
    struct fault fault = {.at = at, .access = access};
    if (is_over()) {
        ibx_log(IBX_LOG_ERROR,
                "the program touches managed memory at %p, which the device has, when GVirtuS's "
                "front end is about to go: copy what destructors of libraries need before exit(3)",
                (void *)at);
        return PAGES_FAILED;
    }
    ibx_managed_wait_begin();
    have_served(&fault);
    ibx_managed_wait_end();
    if (fault.answer == PAGES_FAILED)
        is_over(); /* perhaps for that */
    return fault.answer;
}

/* ----------------------------------------------------------------------- the signal */

static struct sigaction theirs; /* the program's */

typedef int (*setter)(int number, const struct sigaction *action, struct sigaction *old);

typedef int (*masker)(int how, const sigset_t *set, sigset_t *old);
static _Atomic(void *) found_sigaction, found_signal, found_sysv, found_mask, found_process_mask,
    found_create;
static _Thread_local bool blocks; /* the signal, as far as the program knows */

static setter real_sigaction(void)
{
    setter next = NULL;
    *(void **)&next = ibx_frontend_next(&found_sigaction, "sigaction");
    return next;
}

static masker real_mask(void)
{
    masker next = NULL;
    *(void **)&next = ibx_frontend_next(&found_mask, "pthread_sigmask");
    return next;
}

/* Signals that have a handler of the program's, a bit for each from 1 on. */
static _Atomic uint64_t handled;

/* A thread raises some by what it does: blocked, such a one ends the process. */
static void note_handler(int number, __sighandler_t handler)
{
    const uint64_t bit = UINT64_C(1) << (number - 1);
    if (number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL ||
        number == SIGTRAP || number == SIGSYS)
        return;
    if (handler == SIG_DFL || handler == SIG_IGN)
        atomic_fetch_and(&handled, ~bit);
    else
        atomic_fetch_or(&handled, bit);
}

/* Those that were set before this library was there, or by a function that it has not. */
static void note_handlers(void)
{
    struct sigaction now;
    for (int number = 1; number < NSIG; number++) {
        if (!real_sigaction()(number, NULL, &now))
            note_handler(number, now.sa_handler);
    }
}

void ibx_managed_hold_handlers(struct held_handlers *held)
{
    uint64_t left = atomic_load_explicit(&handled, memory_order_relaxed);
    sigset_t these;
    held->any = left;
    if (!left)
        return;
    sigemptyset(&these);
    for (; left; left &= left - 1)
        sigaddset(&these, __builtin_ctzll(left) + 1);
    real_mask()(SIG_BLOCK, &these, &held->before);
}

void ibx_managed_let_handlers(const struct held_handlers *held)
{
    if (held->any)
        real_mask()(SIG_SETMASK, &held->before, NULL);
}

/* Before main(), as in managed_io.c. The process may have been begun with the signal blocked. */
__attribute__((constructor)) static void find_names(void)
{
    sigset_t ours, before;
    ibx_frontend_next(&found_sigaction, "sigaction");
    ibx_frontend_next(&found_signal, "signal");
    ibx_frontend_next(&found_sysv, "__sysv_signal");
    ibx_frontend_next(&found_process_mask, "sigprocmask");
    ibx_frontend_next(&found_create, "pthread_create");
    sigemptyset(&ours);
    sigaddset(&ours, SIGSEGV);
    if (!real_mask()(SIG_UNBLOCK, &ours, &before) && sigismember(&before, SIGSEGV))
        blocks = true;
}

static enum pages_access access_of(const void *context)
{
#ifdef __x86_64__
    const ucontext_t *at = context;
    return at->uc_mcontext.gregs[REG_ERR] & 2 ? ACCESS_WRITE : ACCESS_READ;
#else
    (void)context;
    return ACCESS_UNKNOWN;
#endif
}

/* A stream waits for the function, and the device for the stream: whoever has the lock may wait for
 * both. */
static bool is_allowed(uintptr_t at)
{
    if (!ibx_frontend_in_host_function() || !ibx_managed_find(at, NULL))
        return true;
    ibx_log(IBX_LOG_ERROR,
            "a function that a stream waits for touches managed memory at %p, which the device "
            "has: copy it before, or touch it behind cudaStreamSynchronize",
            (void *)at);
    return false;
}

static bool served(uintptr_t at, enum pages_access access)
{
    if (ibx_managed_joins(at, 1)) {
        ibx_managed_wait_for_join(at);
        return true;
    }
    if (!ibx_managed_may_hold(at) || !is_allowed(at))
        return false;
    const enum pages_answer answer = ibx_managed_look(at, access);
    return (answer == PAGES_REMOTE ? have_fetched(at, access) : answer) == PAGES_READY;
}

/* The program has no handler: the same access ends the process, or the signal once more where
 * somebody has sent it. */
static void end_by(int number, bool sent)
{
    const struct sigaction none = {.sa_handler = SIG_DFL};
    real_sigaction()(number, &none, NULL);
    if (sent)
        raise(number);
}

/* As the kernel calls a handler. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction action = theirs;
    const bool sent = info->si_code <= 0;
    sigset_t held = action.sa_mask, before;
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        if (action.sa_handler == SIG_DFL || !sent)
            end_by(number, sent);
        return;
    }
    if (action.sa_flags & (int)SA_RESETHAND)
        theirs = (struct sigaction){.sa_handler = SIG_DFL};
    if (!(action.sa_flags & SA_NODEFER))
        sigaddset(&held, number);
    real_mask()(SIG_BLOCK, &held, &before);
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(number, info, context);
    else
        action.sa_handler(number);
    real_mask()(SIG_SETMASK, &before, NULL);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const int before = errno;
    const bool done =
        info->si_code == SEGV_ACCERR && served((uintptr_t)info->si_addr, access_of(context));
    errno = before;
    if (!done)
        pass_on(number, info, context);
}

/* Without the signal, if it is in there. */
static const sigset_t *open_to_faults(const sigset_t *set, sigset_t *copy)
{
    if (!set || sigismember(set, SIGSEGV) != 1)
        return set;
    *copy = *set;
    sigdelset(copy, SIGSEGV);
    return copy;
}

/* The program's handlers stay behind ours. */
__attribute__((visibility("default"))) int sigaction(int number, const struct sigaction *action,
                                                     struct sigaction *old)
{
    struct sigaction ours;
    if (number == SIGSEGV && atomic_load(&installed)) {
        const struct sigaction before = theirs;
        if (action)
            theirs = *action;
        if (old)
            *old = before;
        return 0;
    }
    if (action && number != SIGSEGV) {
        ours = *action;
        open_to_faults(&action->sa_mask, &ours.sa_mask);
        action = &ours;
    }
    const int rc = real_sigaction()(number, action, old);
    if (!rc && action)
        note_handler(number, action->sa_handler);
    return rc;
}

/* As `name`, which the C library sets with these flags. */
static __sighandler_t set_handler(_Atomic(void *) *found, const char *name, int number,
                                  __sighandler_t handler, int flags)
{
    __sighandler_t (*next)(int, __sighandler_t) = NULL;
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, old;
    if (number == SIGSEGV && atomic_load(&installed))
        return sigaction(number, &action, &old) ? SIG_ERR : old.sa_handler;
    *(void **)&next = ibx_frontend_next(found, name);
    const __sighandler_t before = next(number, handler);
    if (before != SIG_ERR)
        note_handler(number, handler);
    return before;
}

__attribute__((visibility("default"))) __sighandler_t signal(int number, __sighandler_t handler)
{
    return set_handler(&found_signal, "signal", number, handler, SA_RESTART);
}

/* What <signal.h> makes of signal(3) in strict ISO C. */
__attribute__((visibility("default"))) __sighandler_t __sysv_signal(int number,
                                                                    __sighandler_t handler)
{
    return set_handler(&found_sysv, "__sysv_signal", number, handler,
                       (int)SA_RESETHAND | SA_NODEFER);
}

static int set_mask(masker next, int how, const sigset_t *set, sigset_t *old)
{
    sigset_t copy;
    const bool before = blocks, in_set = set && sigismember(set, SIGSEGV) == 1;
    const bool keeps = !set || how != SIG_SETMASK;
    const int rc = next(how, how == SIG_UNBLOCK ? set : open_to_faults(set, &copy), old);
    if (rc)
        return rc;
    blocks = how == SIG_UNBLOCK ? before && !in_set : in_set || (keeps && before);
    if (old && before)
        sigaddset(old, SIGSEGV);
    return rc;
}

__attribute__((visibility("default"))) int pthread_sigmask(int how, const sigset_t *set,
                                                           sigset_t *old)
{
    return set_mask(real_mask(), how, set, old);
}

__attribute__((visibility("default"))) int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
    masker next = NULL;
    *(void **)&next = ibx_frontend_next(&found_process_mask, "sigprocmask");
    return set_mask(next, how, set, old);
}

/* What a thread runs that has inherited the signal as blocked, as far as the program knows. */
struct blocked {
    void *(*start)(void *argument);
    void *argument;
};

static void *run_blocked(void *argument)
{
    const struct blocked b = *(struct blocked *)argument;
    free(argument);
    blocks = true;
    return b.start(b.argument);
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*start)(void *argument),
                                                          void *argument)
{
    __typeof__(&pthread_create) next = NULL;
    struct blocked *b = blocks ? malloc(sizeof(*b)) : NULL;
    *(void **)&next = ibx_frontend_next(&found_create, "pthread_create");
    if (!b)
        return next(thread, attributes, start, argument);
    *b = (struct blocked){start, argument};
    const int rc = next(thread, attributes, run_blocked, b);
    if (rc)
        free(b);
    return rc;
}

/* ----------------------------------------------------------------------------- beginning */

static bool begun;

static bool start_thread(void)
{
    pthread_t thread;
    sigset_t most, before;
    sigfillset(&most);
    real_mask()(SIG_SETMASK, &most, &before);
    const int rc = pthread_create(&thread, NULL, serve, NULL);
    real_mask()(SIG_SETMASK, &before, NULL);
    if (!rc)
        pthread_detach(thread);
    return !rc;
}

/* Not for ever: this thread may be in a constructor of a library, for whose lock the other one
 * waits then. */
static void wait_until_connected(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(CONNECT_MS);
    for (int ms; !atomic_load(&connected) && (ms = ibx_ms_until(deadline)) > 0;) {
        const struct timespec most = {ms / 1000, ms % 1000 * 1000000L};
        syscall(SYS_futex, &connected, FUTEX_WAIT_PRIVATE, 0, &most, NULL, 0);
    }
}

static void install(void)
{
    struct sigaction ours = {.sa_sigaction = on_fault,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    note_handlers();
    if (!real_sigaction()(SIGSEGV, &ours, &theirs))
        atomic_store(&installed, true);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool waited; /* for its connection */

/* It has none of its parent's threads. */
static void in_child(void)
{
    waited = false;
    begun = false;
    atomic_store(&connected, 0);
    atomic_store(&faults, NULL);
    pthread_mutex_init(&lock, NULL);
}

bool ibx_managed_faults_begin(void)
{
    static bool watches;
    pthread_mutex_lock(&lock);
    if (!watches)
        watches = !pthread_atfork(NULL, NULL, in_child);
    if (!atomic_load(&installed))
        install();
    if (!begun && atomic_load(&installed))
        begun = start_thread();
    const bool good = begun;
    if (good && !waited)
        wait_until_connected();
    waited = good;
    pthread_mutex_unlock(&lock);
    return good;
}
