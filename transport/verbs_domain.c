/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A device opened, with a protection domain: of one connection, or of all that
 * have a domain in common (transport.h). Queue pairs reach the registrations of
 * their protection domain alone, and both belong to one open device, so that is
 * what such connections share, and nothing else.
 */
#include "transport/verbs.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct verbs_device *devices; /* those of domains; under the lock, as is what they hold */

/* In a forked child an open device is worthless. */
static struct verbs_device *find(const struct ibx_domain *domain, const char *name)
{
    for (struct verbs_device *device = devices; device; device = device->next) {
        if (device->domain == domain && device->owner == getpid() &&
            !strcmp(ibv_get_device_name(device->context->device), name))
            return device;
    }
    return NULL;
}

static int device_open(struct ibv_device *what, struct verbs_device **out, struct ibx_error *err)
{
    const char *name = ibv_get_device_name(what);
    struct verbs_device *device = calloc(1, sizeof(*device));
    if (!device)
        return ibx_error_set(err, -ENOMEM, "no memory for a device");
    device->context = ibv_open_device(what);
    int rc = device->context
                 ? 0
                 : ibx_error_set(err, -errno, "%s cannot be opened: %s", name, strerror(errno));
    if (!rc && !(device->pd = ibv_alloc_pd(device->context)))
        rc = ibx_error_set(err, -errno, "%s gives no protection domain: %s", name, strerror(errno));
    if (rc) {
        if (device->context)
            ibv_close_device(device->context);
        free(device);
        return rc;
    }
    device->owner = getpid();
    device->holders = 1;
    *out = device;
    return 0;
}

int ibx_verbs_device_hold(struct ibx_domain *domain, struct ibv_device *what,
                          struct verbs_device **out, struct ibx_error *err)
{
    if (!domain)
        return device_open(what, out, err);
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct verbs_device *device = find(domain, ibv_get_device_name(what));
    if (device) {
        device->holders++;
    } else if (!(rc = device_open(what, &device, err))) {
        device->domain = ibx_domain_hold(domain);
        device->next = devices;
        devices = device;
    }
    pthread_mutex_unlock(&lock);
    if (!rc)
        *out = device;
    return rc;
}

/* Takes it off the list of those that are shared; whether nobody holds it any more. */
static bool let_go(struct verbs_device *device)
{
    if (!device->domain)
        return true;
    pthread_mutex_lock(&lock);
    bool last = !--device->holders;
    for (struct verbs_device **at = &devices; last && *at; at = &(*at)->next) {
        if (*at == device) {
            *at = device->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return last;
}

void ibx_verbs_device_release(struct verbs_device *device)
{
    if (!let_go(device))
        return;
    ibv_dealloc_pd(device->pd);
    ibv_close_device(device->context);
    ibx_domain_release(device->domain);
    free(device);
}
