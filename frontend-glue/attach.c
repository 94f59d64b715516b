/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/attach.h"

#include "frontend-glue/frontend.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Held by the thread and by who attached it; either may be gone first. */
struct ibx_attachment {
    _Atomic(struct ibx_session *) session; /* NULL: detached */
    _Atomic unsigned users;
};

static _Thread_local struct ibx_attachment *mine;
static pthread_key_t thread_end;
static pthread_once_t begun = PTHREAD_ONCE_INIT;
static bool keyed;

static void drop(struct ibx_attachment *attachment)
{
    if (atomic_fetch_sub(&attachment->users, 1) == 1)
        free(attachment);
}

static void end_thread(void *attachment)
{
    mine = NULL;
    drop(attachment);
}

/* The connection stays the parent's: GVirtuS makes another one for the child, whose thread has
 * another id. */
static void end_parent(void)
{
    mine = NULL;
    pthread_setspecific(thread_end, NULL);
}

static void begin(void)
{
    keyed = !pthread_key_create(&thread_end, end_thread) && !pthread_atfork(NULL, NULL, end_parent);
}

static int copy(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_session *session = mine ? atomic_load(&mine->session) : NULL;
    return session ? ibx_session_copy(session, wish, exit_code) : -ENOTCONN;
}

struct ibx_attachment *ibx_attach(struct ibx_session *session)
{
    static const struct ibx_frontend_calls calls = {.version = IBX_FRONTEND_VERSION, .copy = copy};
    void (*attach)(const struct ibx_frontend_calls *calls) = NULL;
    *(void **)&attach = dlsym(RTLD_DEFAULT, IBX_FRONTEND_ATTACH);
    pthread_once(&begun, begin);
    struct ibx_attachment *attachment = attach && keyed ? malloc(sizeof(*attachment)) : NULL;
    if (!attachment)
        return NULL;
    atomic_init(&attachment->session, session);
    atomic_init(&attachment->users, 2);
    if (mine)
        drop(mine);
    mine = attachment;
    pthread_setspecific(thread_end, attachment);
    attach(&calls);
    return attachment;
}

void ibx_detach(struct ibx_attachment *attachment)
{
    if (!attachment)
        return;
    atomic_store(&attachment->session, NULL);
    drop(attachment);
}
