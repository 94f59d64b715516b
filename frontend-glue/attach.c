/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/attach.h"

#include "common/log.h"
#include "frontend-glue/frontend.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Held by the thread and by who attached it; either may be gone first. */
struct ibx_attachment {
    _Atomic(struct ibx_session *) session; /* NULL: detached */
    _Atomic unsigned users;
};

static _Thread_local struct ibx_attachment *mine;
static pthread_key_t thread_end;
static pthread_once_t begun = PTHREAD_ONCE_INIT;
static bool keyed;
static atomic_bool over_shm; /* the last connection is */

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

static struct ibx_session *session_of_thread(void)
{
    return mine ? atomic_load(&mine->session) : NULL;
}

static bool is_over_shm(const struct ibx_session *session)
{
    const struct ibx_path *path = ibx_session_path(session);
    return path && !strcmp(path->provider, "shm");
}

static int run_copy(const struct ibx_frontend_copy *wish, int *exit_code)
{
    struct ibx_session *session = session_of_thread();
    struct ibx_frontend_copy copy = *wish;
    if (!session)
        return -ENOTCONN;
    /* Only there does it help the back end. */
    copy.lasting = copy.lasting && is_over_shm(session);
    return ibx_session_copy(session, &copy, exit_code);
}

static void prepare(void *address, size_t n)
{
    struct ibx_session *session = session_of_thread();
    if (session)
        ibx_session_prepare(session, address, n);
}

static void *map(size_t n)
{
    void *address = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return NULL;
    madvise(address, n, MADV_HUGEPAGE);
    if (!madvise(address, n, MADV_POPULATE_WRITE) || errno == EINVAL) /* from Linux 5.14 on */
        return address;
    int why = errno;
    munmap(address, n);
    errno = why;
    return NULL;
}

/* Over shm where the back end sees it; elsewhere of the kind whose registrations can be cached. */
static void *allocate(size_t n)
{
    void *address = atomic_load(&over_shm) ? ibx_shared_allocate(n, NULL) : NULL;
    if (address)
        return address;
    address = map(n);
    if (address)
        prepare(address, n);
    else
        ibx_log(IBX_LOG_WARN, "the application gets no %zu bytes of page-locked memory: %s", n,
                strerror(errno));
    return address;
}

static void release(void *address, size_t n)
{
    if (!ibx_shared_free(address))
        munmap(address, n);
}

struct ibx_attachment *ibx_attach(struct ibx_session *session)
{
    static const struct ibx_frontend_calls calls = {
        .version = IBX_FRONTEND_VERSION,
        .copy = run_copy,
        .allocate = allocate,
        .release = release,
        .prepare = prepare,
    };
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
    atomic_store(&over_shm, is_over_shm(session));
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
