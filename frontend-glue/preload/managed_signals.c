/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The program's signals, since SIGSEGV is this library's (managed_faults.c). The program's handler
 * of that, set before or later, gets what is not. A thread that blocks the signal would be killed
 * by an access to managed memory: no thread does, and each is told that it does
 * (pthread_sigmask(3)), also one that inherits that. Handlers of other signals wait while their
 * thread has a lock that they may need.
 */
#include "frontend-glue/preload/managed.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

static atomic_bool installed;   /* the handler */
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
void ibx_managed_pass_on(int number, siginfo_t *info, void *context)
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

int ibx_managed_real_mask(int how, const sigset_t *set, sigset_t *old)
{
    return real_mask()(how, set, old);
}

bool ibx_managed_catches(void)
{
    return atomic_load(&installed);
}

bool ibx_managed_catch(void (*handler)(int number, siginfo_t *info, void *context))
{
    struct sigaction ours = {.sa_sigaction = handler,
                             .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};
    if (atomic_load(&installed))
        return true;
    sigemptyset(&ours.sa_mask);
    note_handlers();
    if (!real_sigaction()(SIGSEGV, &ours, &theirs))
        atomic_store(&installed, true);
    return atomic_load(&installed);
}
