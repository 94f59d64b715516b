/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handlers of the program's signals, since this library has the handler of SIGSEGV
 * (managed_faults.c). The program's own handler of SIGSEGV, whenever it is set, gets the faults
 * that are not this library's. Handlers of other signals are held back while their thread holds a
 * lock that they may need. Masks are in managed_masks.c.
 */
#include "frontend-glue/preload/memory/managed.h"

#include <signal.h>
#include <ucontext.h>

static atomic_bool installed;   /* the handler of SIGSEGV */
static struct sigaction theirs; /* the program's handler of it */

typedef int (*setter)(int number, const struct sigaction *action, struct sigaction *old);

static _Atomic(void *) found_sigaction, found_signal, found_sysv;

static setter real_sigaction(void)
{
    setter next = NULL;
    *(void **)&next = ibx_frontend_next(&found_sigaction, "sigaction");
    return next;
}

/* The signals for which the program has a handler, a bit for each from 1 on. */
static _Atomic uint64_t handled;

/* Not signals that a thread raises by its own instructions: if such a signal is blocked, it ends
 * the process. */
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

/* Finds handlers that were set before this library was loaded, or by a function that it does not
 * replace. */
static void note_handlers(void)
{
    struct sigaction now;
    for (int number = 1; number < NSIG; number++) {
        if (!real_sigaction()(number, NULL, &now))
            note_handler(number, now.sa_handler);
    }
}

static void hold_all(struct held_handlers *held)
{
    uint64_t left = atomic_load_explicit(&handled, memory_order_relaxed);
    sigset_t these;
    held->any = left;
    if (!left)
        return;
    sigemptyset(&these);
    for (; left; left &= left - 1)
        sigaddset(&these, __builtin_ctzll(left) + 1);
    ibx_managed_real_mask(SIG_BLOCK, &these, &held->before);
}

static void let_all(const struct held_handlers *held)
{
    if (held->any)
        ibx_managed_real_mask(SIG_SETMASK, &held->before, NULL);
}

/* Number of reasons why this library holds back handlers in this thread. */
static _Thread_local unsigned reasons;

void ibx_managed_hold_handlers(struct held_handlers *held)
{
    hold_all(held);
    reasons++;
}

void ibx_managed_let_handlers(const struct held_handlers *held)
{
    reasons--;
    let_all(held);
}

/* The state while the thread is inside the plugin, except in pauses. There are no pauses while the
 * plugin makes a copy for this library. */
static _Thread_local struct held_handlers inside;

static bool hold_inside(void)
{
    if (!reasons)
        hold_all(&inside);
    return reasons || inside.any;
}

static void let_inside(void)
{
    if (!reasons)
        let_all(&inside);
}

const struct ibx_handlers_calls ibx_managed_handlers = {hold_inside, let_inside};

/* Before main(), as in managed_io.c. */
__attribute__((constructor)) static void find_names(void)
{
    ibx_frontend_next(&found_sigaction, "sigaction");
    ibx_frontend_next(&found_signal, "signal");
    ibx_frontend_next(&found_sysv, "__sysv_signal");
}

/* The program has no handler: the access, repeated, ends the process; if the signal was sent, it is
 * sent again. */
static void end_by(int number, bool sent)
{
    const struct sigaction none = {.sa_handler = SIG_DFL};
    real_sigaction()(number, &none, NULL);
    if (sent)
        raise(number);
}

/* Acts like the kernel: calls the program's handler, or ends the process if it has none or blocks
 * the signal. */
void ibx_managed_pass_on(int number, siginfo_t *info, void *context)
{
    const struct sigaction action = theirs;
    const bool sent = info->si_code <= 0;
    sigset_t held = action.sa_mask, before;
    if (!sent && ibx_managed_marked(&((const ucontext_t *)context)->uc_sigmask)) {
        end_by(number, sent);
        return;
    }
    if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
        if (action.sa_handler == SIG_DFL || !sent)
            end_by(number, sent);
        return;
    }
    if (action.sa_flags & (int)SA_RESETHAND)
        theirs = (struct sigaction){.sa_handler = SIG_DFL};
    if (!(action.sa_flags & SA_NODEFER))
        sigaddset(&held, number);
    ibx_managed_mark(&held);
    ibx_managed_real_mask(SIG_BLOCK, &held, &before);
    if (action.sa_flags & SA_SIGINFO)
        action.sa_sigaction(number, info, context);
    else
        action.sa_handler(number);
    ibx_managed_real_mask(SIG_SETMASK, &before, NULL);
}

/* The program's handler of SIGSEGV is kept, and called by this library's. */
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
        ibx_managed_mark(&ours.sa_mask);
        action = &ours;
    }
    const int rc = real_sigaction()(number, action, old);
    if (!rc && action)
        note_handler(number, action->sa_handler);
    if (!rc && old && number != SIGSEGV)
        ibx_managed_unmark(&old->sa_mask);
    return rc;
}

/* Acts as the function `name`, which sets a handler with these flags. */
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

/* The name of signal(3) in strict ISO C. */
__attribute__((visibility("default"))) __sighandler_t __sysv_signal(int number,
                                                                    __sighandler_t handler)
{
    return set_handler(&found_sysv, "__sysv_signal", number, handler,
                       (int)SA_RESETHAND | SA_NODEFER);
}

/* Other names of these functions in the C library. */
__sighandler_t bsd_signal(int number, __sighandler_t handler);
int __sigaction(int number, const struct sigaction *action, struct sigaction *old);
#define ALSO(other, name)                                                                          \
    __attribute__((visibility("default"))) __sighandler_t other(int number,                        \
                                                                __sighandler_t handler)            \
    {                                                                                              \
        return name(number, handler);                                                              \
    }
ALSO(ssignal, signal)
ALSO(bsd_signal, signal)
ALSO(sysv_signal, __sysv_signal)

__attribute__((visibility("default"))) int __sigaction(int number, const struct sigaction *action,
                                                       struct sigaction *old)
{
    return sigaction(number, action, old);
}

/* As in the C library: SIG_HOLD blocks the signal, and is returned if it is blocked. */
__attribute__((visibility("default"))) __sighandler_t sigset(int number, __sighandler_t handler)
{
    const __sighandler_t hold = (__sighandler_t)2;
    const struct sigaction action = {.sa_handler = handler};
    struct sigaction old;
    sigset_t this, masked;
    sigemptyset(&this);
    if (sigaddset(&this, number) || sigaction(number, handler == hold ? NULL : &action, &old) ||
        sigprocmask(handler == hold ? SIG_BLOCK : SIG_UNBLOCK, &this, &masked))
        return SIG_ERR;
    return sigismember(&masked, number) == 1 ? hold : old.sa_handler;
}

__attribute__((visibility("default"))) int sigignore(int number)
{
    return sigaction(number, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

bool ibx_managed_catches(void)
{
    return atomic_load(&installed);
}

/* sa_sigaction is set by the first ibx_managed_catch(). */
static struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};

bool ibx_managed_catch(void (*handler)(int number, siginfo_t *info, void *context))
{
    if (atomic_load(&installed))
        return true;
    ours.sa_sigaction = handler;
    note_handlers();
    if (!real_sigaction()(SIGSEGV, &ours, &theirs))
        atomic_store(&installed, true);
    return atomic_load(&installed);
}

void ibx_managed_catch_again(void)
{
    struct sigaction now;
    if (!atomic_load(&installed) || real_sigaction()(SIGSEGV, NULL, &now) ||
        now.sa_sigaction == ours.sa_sigaction || real_sigaction()(SIGSEGV, &ours, NULL))
        return;
    theirs = now;
}
