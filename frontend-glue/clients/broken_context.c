/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sticky CUDA errors: this process, whose clients share it, runs nothing on any GPU any more, and
 * no call mends that. If it has a supervisor, it is replaced when its last session has ended, or a
 * little later: clients that have a session see the error; others wait to be let in. If it has
 * none, the log tells the operator. A process that serves one tenant or program stays for the
 * clients that have come, and gets no others.
 *
 * Seen with driver 580 on two H100, after errors 700, 710, 716 and 719 alike: the contexts of other
 * devices return the same error from then on; cudaDeviceReset returns 0, and behind it no context
 * can be made (cudaErrorDevicesUnavailable, 46).
 */
#include "frontend-glue/clients/clients.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"
#include "frontend-glue/back_end_processes/supervisor.h"
#include "frontend-glue/session/calls.h"
#include "frontend-glue/session/client_process.h"

#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

#define LEAVE_MS 3000u /* for sessions to see the error; less than a connecting client waits */
#define LOOK_MS  10

static atomic_int broken; /* the first sticky error, 0: none */

static void *leave(void *nothing)
{
    const uint64_t deadline = ibx_deadline_in_ms(LEAVE_MS);
    (void)nothing;
    while (ibx_clients_any() && ibx_ms_until(deadline))
        poll(NULL, 0, LOOK_MS);
    ibx_supervised_begin_again();
}

/* Replaces the process later, by a thread that waits; at once, if there is no thread. */
static void replace(void)
{
    if (ibx_thread_begin(NULL, leave, NULL))
        ibx_supervised_begin_again();
}

void ibx_context_note_error(const struct gpu_session *x, int code)
{
    int none = 0;
    if (!ibx_call_breaks_contexts(code) || !atomic_compare_exchange_strong(&broken, &none, code))
        return;
    if (ibx_client_process()) {
        ibx_log(IBX_LOG_ERROR,
                "CUDA error %d of %s stays: the calls of all programs of process %d fail from now "
                "on; others go on, and those that begin later get another process",
                code, ibx_session_path(x->s)->peer, (int)getpid());
        ibx_client_process_retire();
        return;
    }
    ibx_log(IBX_LOG_ERROR,
            "CUDA error %d of %s stays: it has broken the contexts of all clients of this back "
            "end, whose calls fail from now on; %s",
            code, ibx_session_path(x->s)->peer,
            ibx_supervised() ? "its process is replaced when they have ended, or in 3 seconds"
                             : "start the back end again");
    if (ibx_supervised())
        replace();
}

bool ibx_context_broken(void)
{
    return atomic_load(&broken);
}

/* Not in a supervised process: it lets nobody in, and its successor begins soon. */
void ibx_context_tell_broken(const struct gpu_session *x)
{
    const int code = atomic_load(&broken);
    if (code && !ibx_supervised() && !ibx_client_process())
        ibx_log(IBX_LOG_ERROR,
                "the CUDA calls of %s will fail: error %d of an earlier client has broken the "
                "contexts of this back end; start it again",
                ibx_session_path(x->s)->peer, code);
}

/* The supervisor has the listening socket as well: the next process finds waiting clients there. */
void ibx_memory_hold_back(void)
{
    while (ibx_supervised() && ibx_context_broken())
        pause();
}
