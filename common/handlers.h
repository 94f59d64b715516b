/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Handlers of the program's signals, in threads that are inside of a library. A handler may need
 * what its own thread has there, a lock or a connection, and would wait for it for ever. So a
 * thread holds them back while it is inside, and waits in short pieces, between which those that
 * are due run: it has no lock then.
 */
#ifndef IBX_COMMON_HANDLERS_H
#define IBX_COMMON_HANDLERS_H

#include <stdbool.h>

#define IBX_HANDLERS_MS 1 /* how long a piece of a wait is at most */

/* Of the calling thread. hold() is false where there are no handlers; then let() does not come. */
struct ibx_handlers_calls {
    bool (*hold)(void);
    void (*let)(void);
};

/* Until then nothing is held. For good. */
void ibx_handlers_use(const struct ibx_handlers_calls *calls);
/* Around what the calling thread does inside; they nest. `held` is what hold() has returned. */
bool ibx_handlers_hold(void);
void ibx_handlers_let(bool held);
/* Whether a wait of the calling thread has to be one in pieces. */
bool ibx_handlers_held(void);
/* Between two of them: without any lock. */
void ibx_handlers_run(void);

#endif
