/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The program's signal handlers, and its pthread_cancel(3), in threads that are inside of this
 * library. A handler may need what its own thread has there, a lock or a connection, and would wait
 * for it for ever. So a thread holds handlers back while it is inside. It waits in short pieces;
 * between two of them it has no lock, and handlers that are due run. A thread that is cancelled
 * ends when it is outside again.
 *
 * Where handlers are not held back, one may call exit(3) while its thread is inside. Nobody
 * releases what that thread has any more, so the end of the process must leave all of that alone.
 */
#ifndef IBX_COMMON_HANDLERS_H
#define IBX_COMMON_HANDLERS_H

#include <stdbool.h>

#define IBX_HANDLERS_MS 1 /* how long a piece of a wait is at most */

/* How to hold handlers back in the calling thread, and to let them run. hold() is false where the
 * program has no handlers; then let() is not called. */
struct ibx_handlers_calls {
    bool (*hold)(void);
    void (*let)(void);
};

/* Sets these calls, for good. Until then nothing is held back. */
void ibx_handlers_use(const struct ibx_handlers_calls *calls);
/* Around what the calling thread does inside of the library; such pairs may nest. `inside` is what
 * ibx_inside_begin() has returned. */
struct ibx_inside {
    bool holds; /* handlers */
    int cancel; /* ibx_thread_hold_cancel() */
};
struct ibx_inside ibx_inside_begin(void);
void ibx_inside_end(struct ibx_inside inside);
/* Whether the calling thread holds handlers back, so that it has to wait in pieces. */
bool ibx_handlers_held(void);
/* Runs handlers that are due, between two pieces of a wait. The caller has no lock. If a handler
 * leaves by longjmp(3), the thread's cancellation is as it was before the outermost pair, unless
 * the handler has a stack of its own (sigaltstack(2)). */
void ibx_handlers_run(void);
/* The calling thread has called exit(3), perhaps in a handler: notes for good, and returns, whether
 * that has interrupted it inside. The thread must not use what is inside then: no lock, no
 * connection. */
bool ibx_inside_exits(void);
/* Whether that was so. */
bool ibx_inside_cut_off(void);

#endif
