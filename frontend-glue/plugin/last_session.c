/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The last session of a process. What the process has at the back end is kept until the process has
 * ended, and a back end on another host can notice that only by the process's sessions. So the last
 * session stays open when its thread ends: until another thread connects, or until the process
 * ends, which says so if it can, and closes the connection in any case.
 *
 * Locks: an attachment's `closing`, then the one here.
 */
#include "frontend-glue/plugin/attached.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned open_sessions;      /* of this process, including `last` */
static struct ibx_attachment *last; /* whose session stays without a thread; NULL: none */
static atomic_uint epoch;           /* how many sessions of this process have ended */

unsigned ibx_attached_epoch(void)
{
    return atomic_load(&epoch);
}

/* Locked. A session ends: the back end may then give back what this process had, since a client
 * without a session may have ended. This counts for each session, since each may be the last one
 * that the back end knows: it knows a session only from its first reply on. */
static void count_end(struct ibx_attachment *attachment)
{
    if (!attachment->counted)
        return;
    attachment->counted = false;
    open_sessions--;
    atomic_fetch_add(&epoch, 1);
}

void ibx_last_session_begins(struct ibx_attachment *attachment)
{
    pthread_mutex_lock(&lock);
    attachment->counted = true;
    open_sessions++;
    pthread_mutex_unlock(&lock);
    ibx_last_session_close();
}

bool ibx_last_session_stays(struct ibx_attachment *attachment)
{
    struct ibx_session *session = atomic_load(&attachment->session);
    ibx_pipeline_lock(attachment->pipeline);
    const bool shows = session && ibx_session_shows_process(session);
    ibx_pipeline_unlock(attachment->pipeline);
    pthread_mutex_lock(&lock);
    const bool stays = shows && attachment->counted && open_sessions == 1;
    if (!stays)
        count_end(attachment);
    if (stays && !last) /* otherwise `last` is this one */
        atomic_fetch_add(&attachment->users, 1);
    if (stays)
        last = attachment;
    pthread_mutex_unlock(&lock);
    return stays;
}

void ibx_last_session_ends(struct ibx_attachment *attachment)
{
    pthread_mutex_lock(&lock);
    count_end(attachment);
    const bool was = last == attachment;
    if (was)
        last = NULL;
    pthread_mutex_unlock(&lock);
    if (was)
        ibx_attachment_drop(attachment);
}

void ibx_last_session_close(void)
{
    pthread_mutex_lock(&lock);
    struct ibx_attachment *attachment = last;
    last = NULL;
    if (attachment)
        count_end(attachment);
    pthread_mutex_unlock(&lock);
    if (!attachment)
        return;
    pthread_mutex_lock(&attachment->closing);
    struct ibx_session *session = attachment->owned;
    session = session ? session : atomic_load(&attachment->session);
    if (session) {
        ibx_pipeline_lock(attachment->pipeline);
        ibx_session_close(session);
        ibx_pipeline_unlock(attachment->pipeline);
    }
    if (attachment->owned && ibx_pipeline_destroy(attachment->pipeline))
        ibx_session_destroy(session);
    pthread_mutex_unlock(&attachment->closing);
    ibx_attachment_drop(attachment);
}

/* `last` and its connection belong to the parent: closing it here only frees memory. */
void ibx_last_session_forked(void)
{
    pthread_mutex_init(&lock, NULL);
    if (last)
        pthread_mutex_init(&last->closing, NULL);
    if (last)
        last->counted = false;
    open_sessions = 0;
    atomic_fetch_add(&epoch, 1);
}
