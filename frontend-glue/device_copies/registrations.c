/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * GVirtuS's handlers note the modules, kernels and variables of all clients in maps of the process,
 * without a lock, and each client's handlers run in a thread of its own. Two programs that began at
 * once could end the back end (G5: "host function not found") or each other. So a handler that
 * changes these maps runs alone, and one that looks something up beside such others only.
 */
#include "frontend-glue/device_copies/copies.h"

#include "frontend-glue/session/calls.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned looking; /* handlers that look something up */
static bool changing;

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

enum registrations_use ibx_registrations_use(const char *name)
{
    const char *plain = begins(name, "__") ? name + 2 : name;
    if (begins(plain, "cudaRegister") || begins(plain, "cudaUnregister"))
        return REGISTRATIONS_CHANGED;
    return begins(plain, "cudaLaunch") || strstr(plain, "Symbol") ? REGISTRATIONS_LOOKED_UP
                                                                  : REGISTRATIONS_UNUSED;
}

/* Those that look up do not wait for one that waits to change: some wait for the GPU. */
void ibx_registrations_begin(struct copies *x)
{
    const enum registrations_use use = x->registrations_use;
    if (use == REGISTRATIONS_UNUSED || x->uses_registrations)
        return;
    pthread_mutex_lock(&lock);
    while (changing || (use == REGISTRATIONS_CHANGED && looking))
        pthread_cond_wait(&changed, &lock);
    changing = use == REGISTRATIONS_CHANGED;
    looking += use == REGISTRATIONS_LOOKED_UP;
    pthread_mutex_unlock(&lock);
    x->uses_registrations = true;
}

void ibx_registrations_end(struct copies *x)
{
    if (!x->uses_registrations)
        return;
    pthread_mutex_lock(&lock);
    if (x->registrations_use == REGISTRATIONS_CHANGED)
        changing = false;
    else
        looking--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    x->uses_registrations = false;
}
