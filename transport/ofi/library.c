/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libfabric, loaded when ofi is tried and not before.
 *
 * Distributions build libfabric with everything. Loading it then loads the PSM libraries, whose
 * constructors look for devices for 200 ms and install handlers for SIGSEGV, SIGINT, SIGTERM and
 * others. That must not happen to every application that loads a GVirtuS plugin. Where the fabric
 * is wanted, the application keeps its signal handlers.
 *
 * The functions below have the names and types of libfabric's few exported ones; all others are
 * inline in its headers.
 */
#include "transport/ofi/ofi.h"

#include "common/clock.h"
#include "common/library_environment.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define FORK_WAITS_MS 15000u /* loading takes 200 ms, seconds from a disk that is busy */

static struct {
    char reason[320]; /* why it is not there */
    uint32_t (*version)(void);
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
                   struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* also around fi_getinfo() */
static atomic_bool decided; /* it is known whether libfabric is there */
static _Thread_local bool holds;
static atomic_bool used, inherited; /* fi_getinfo() was called here, or before the fork */

static atomic_uint forking; /* threads that are about to fork */

/* Takes the lock. While another thread is about to fork, waits for that, but not for ever: the
 * other thread may wait for something that this one has. */
static void take(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(FORK_WAITS_MS);
    pthread_mutex_lock(&lock);
    while (atomic_load(&forking) && ibx_now_ns() < deadline) {
        pthread_mutex_unlock(&lock);
        poll(NULL, 0, 1);
        pthread_mutex_lock(&lock);
    }
    holds = true;
}

static void give(void)
{
    holds = false;
    pthread_mutex_unlock(&lock);
}

/* A child that is forked while another thread is in fi_getinfo() finds libfabric's own locks taken,
 * by nobody. So the fork waits for that thread, and no thread begins until the fork is over. But
 * the fork keeps no lock that such a thread may wait for, and neither waits for ever: either may
 * need what the other one, or other handlers of this fork, have taken. */
static void before_fork(void)
{
    const uint64_t deadline = ibx_deadline_in_ms(FORK_WAITS_MS);
    int rc = 0;
    atomic_fetch_add(&forking, 1);
    while (!holds && (rc = pthread_mutex_trylock(&lock)) && ibx_now_ns() < deadline)
        poll(NULL, 0, 1);
    if (!holds && !rc)
        pthread_mutex_unlock(&lock);
}

static void in_parent(void)
{
    atomic_fetch_sub(&forking, 1);
}

static void in_child(void)
{
    atomic_store(&forking, 0);
    if (!holds)
        lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    if (atomic_load(&used))
        atomic_store(&inherited, true);
}

bool ibx_ofi_inherited(void)
{
    return atomic_load(&inherited);
}

static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

static void *open_quietly(const char *name)
{
    struct sigaction before[NSIG];
    bool known[NSIG];
    for (int i = 1; i < NSIG; i++)
        known[i] = sigaction(i, NULL, &before[i]) == 0;
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (int i = 1; i < NSIG; i++) {
        if (known[i])
            sigaction(i, &before[i], NULL);
    }
    return handle;
}

/* Whether dlerror() tells of a shortage, which may pass. The dynamic linker leaves no errno. */
static bool tells_of_lack(const char *why)
{
    static const int lacks[] = {EMFILE, ENFILE, ENOMEM};
    for (size_t i = 0; why && i < sizeof(lacks) / sizeof(lacks[0]); i++) {
        if (strstr(why, strerror(lacks[i])))
            return true;
    }
    return false;
}

/* Loads libfabric, or notes why not. False: because of such a shortage. */
static bool load(void)
{
    struct ibx_error unsafe = {0};
    if (ibx_library_environment_check(&unsafe)) {
        snprintf(library.reason, sizeof(library.reason), "%s", unsafe.message);
        return true;
    }
    void *handle = open_quietly("libfabric.so.1");
    if (!handle) {
        const char *why = dlerror();
        snprintf(library.reason, sizeof(library.reason),
                 "libfabric cannot be loaded (Debian: libfabric1): %.180s", why ? why : "unknown");
        return !tells_of_lack(why);
    }
    /* POSIX allows the conversion of what dlsym() returns, ISO C does not. */
    *(void **)&library.version = dlsym(handle, "fi_version");
    *(void **)&library.freeinfo = dlsym(handle, "fi_freeinfo");
    *(void **)&library.dupinfo = dlsym(handle, "fi_dupinfo");
    *(void **)&library.fabric = dlsym(handle, "fi_fabric");
    *(void **)&library.strerror = dlsym(handle, "fi_strerror");
    void *getinfo = dlsym(handle, "fi_getinfo");
    if (!library.version || !library.freeinfo || !library.dupinfo || !library.fabric ||
        !library.strerror || !getinfo) {
        snprintf(library.reason, sizeof(library.reason),
                 "libfabric.so.1 lacks functions that it should have: "
                 "install Debian's libfabric1");
        return true;
    }
    *(void **)&library.getinfo = getinfo;
    return true;
}

int ibx_ofi_library(struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (atomic_load(&decided))
        return library.getinfo ? 0 : ibx_error_set(err, -ENOSYS, "%s", library.reason);
    pthread_once(&once, watch_forks);
    take();
    if (!atomic_load(&decided) && load())
        atomic_store(&decided, true);
    const int rc = library.getinfo ? 0 : ibx_error_set(err, -ENOSYS, "%s", library.reason);
    give();
    return rc;
}

uint32_t fi_version(void)
{
    return ibx_ofi_library(NULL) ? 0 : library.version();
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
               const struct fi_info *hints, struct fi_info **info)
{
    if (ibx_ofi_library(NULL))
        return -FI_ENOSYS;
    take();
    atomic_store(&used, true);
    const int rc = library.getinfo(version, node, service, flags, hints, info);
    give();
    return rc;
}

/* The functions below are called only with what fi_getinfo() gave, or with an error of a loaded
 * library. Unlike libfabric's own, this one accepts NULL. */
void fi_freeinfo(struct fi_info *info)
{
    if (info)
        library.freeinfo(info);
}

struct fi_info *fi_dupinfo(const struct fi_info *info)
{
    return ibx_ofi_library(NULL) ? NULL : library.dupinfo(info);
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
    return library.fabric(attr, fabric, context);
}

const char *fi_strerror(int code)
{
    return ibx_ofi_library(NULL) ? "libfabric is not there" : library.strerror(code);
}
