/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * An open device with a protection domain: of one connection, or of all connections of a domain
 * (transport.h). Queue pairs reach the registrations of their protection domain only, and both
 * belong to one open device, so that is all that such connections share.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>

/* libibverbs has one struct for a device, which stays as long as somebody has the device open. A
 * device that was taken away and came back has the same name and another struct, and what was
 * opened before is of no use. Neither is a protection domain with a region that nobody must reach.
 */
static bool fits(const struct ibx_domain_part *part, const void *what)
{
    const struct verbs_device *device = (const struct verbs_device *)part;
    return device->context->device == what && !device->shut;
}

static void device_close(struct ibx_domain_part *part)
{
    struct verbs_device *device = (struct verbs_device *)part;
    if (device->pd)
        ibv_dealloc_pd(device->pd);
    if (device->context)
        ibv_close_device(device->context);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static int device_open(void *what, const struct ibx_domain *domain, struct ibx_domain_part **out,
                       struct ibx_error *err)
{
    (void)domain; /* verbs may be called from any thread */
    const char *name = ibv_get_device_name(what);
    struct verbs_device *device = calloc(1, sizeof(*device));
    if (!device)
        return ibx_error_set(err, -ENOMEM, "no memory for a device");
    pthread_mutex_init(&device->lock, NULL);
    device->context = ibv_open_device(what);
    int rc = device->context
                 ? 0
                 : ibx_error_set(err, -errno, "%s cannot be opened: %s", name, strerror(errno));
    if (!rc && !(device->pd = ibv_alloc_pd(device->context)))
        rc = ibx_error_set(err, -errno, "%s cannot create a protection domain: %s", name,
                           strerror(errno));
    if (rc) {
        device_close(&device->part);
        return rc;
    }
    *out = &device->part;
    return 0;
}

int ibx_verbs_device_hold(struct ibx_domain *domain, struct ibv_device *what,
                          struct verbs_device **out, struct ibx_error *err)
{
    static const struct ibx_domain_part_ops ops = {fits, device_open, device_close};
    struct ibx_domain_part *part;
    int rc = ibx_domain_part_hold(domain, &ops, what, &part, err);
    if (!rc)
        *out = (struct verbs_device *)part;
    return rc;
}

void ibx_verbs_device_release(struct verbs_device *device)
{
    ibx_domain_part_release(&device->part);
}

bool ibx_verbs_device_enter(struct verbs_device *device, struct verbs_lane *lane)
{
    pthread_mutex_lock(&device->lock);
    const bool shut = device->shut;
    lane->beside = device->lanes;
    device->lanes = lane;
    pthread_mutex_unlock(&device->lock);
    return !shut;
}

void ibx_verbs_device_leave(struct verbs_device *device, const struct verbs_lane *lane)
{
    struct verbs_lane **at = &device->lanes;
    pthread_mutex_lock(&device->lock);
    while (*at && *at != lane)
        at = &(*at)->beside;
    if (*at)
        *at = lane->beside;
    pthread_mutex_unlock(&device->lock);
}

int ibx_verbs_device_shut(struct verbs_device *device)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    int open = 0;
    pthread_mutex_lock(&device->lock);
    device->shut = true;
    for (const struct verbs_lane *lane = device->lanes; lane; lane = lane->beside) {
        const int rc = ibv_modify_qp(lane->qp, &attr, IBV_QP_STATE);
        open = rc ? rc : open;
    }
    pthread_mutex_unlock(&device->lock);
    return open;
}
