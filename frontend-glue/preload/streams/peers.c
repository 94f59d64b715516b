/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Access of a device's kernels to the memory of another device. All clients of a back end share its
 * contexts, so it enables access for any client, as often as requested, and never disables it. What
 * the calls of this process natively return depends on its own calls, which are noted here.
 *
 * Managed memory is memory of one device here (managed.h), and all devices use it. So all devices
 * that this process uses get access to that one; the application's calls do not show this.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <pthread.h>

#define DEVICES 64 /* calls about further devices go to GVirtuS */

#define ACCESS_ENABLED     704 /* cudaError_t */
#define ACCESS_NOT_ENABLED 705

/* A bit for each device. */
static _Atomic uint64_t enabled[DEVICES]; /* peers that the application has enabled */
static _Atomic uint64_t linked[DEVICES];  /* peers that this file has enabled */
static _Atomic uint64_t holders;          /* devices that have managed memory */

static void in_child(void)
{
    for (unsigned i = 0; i < DEVICES; i++) {
        atomic_store(&enabled[i], 0);
        atomic_store(&linked[i], 0);
    }
    atomic_store(&holders, 0);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

void ibx_frontend_peers_reset(int device)
{
    if (device < 0 || device >= DEVICES)
        return;
    for (unsigned i = 0; i < DEVICES; i++) {
        atomic_fetch_and(&enabled[i], ~((uint64_t)1 << device));
        atomic_fetch_and(&linked[i], ~((uint64_t)1 << device));
    }
    atomic_store(&enabled[device], 0);
    atomic_store(&linked[device], 0);
    ibx_frontend_peers_selected(device); /* managed memory of other devices is still there */
}

/* -------------------------------------------------------------------- the application's calls */

/* The peers of the current device; NULL: the call goes to GVirtuS. */
static _Atomic uint64_t *enabled_of(int peer)
{
    const int device = ibx_frontend_current_device();
    const bool known = device >= 0 && device < DEVICES && peer >= 0 && peer < DEVICES;
    return ibx_frontend_plugin() && known ? &enabled[device] : NULL;
}

int cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    _Atomic uint64_t *peers = enabled_of(peer);
    if (!flags && peers && atomic_load(peers) >> peer & 1)
        return ibx_frontend_fail(ACCESS_ENABLED);
    const int rc = CALL_NEXT(cudaDeviceEnablePeerAccess, peer, flags);
    if (!rc && (peers = enabled_of(peer)))
        atomic_fetch_or(peers, (uint64_t)1 << peer);
    return rc;
}

int cudaDeviceDisablePeerAccess(int peer)
{
    _Atomic uint64_t *peers = enabled_of(peer);
    if (peers && !(atomic_load(peers) >> peer & 1) && peer != ibx_frontend_current_device())
        return ibx_frontend_fail(ACCESS_NOT_ENABLED);
    const int rc = CALL_NEXT(cudaDeviceDisablePeerAccess, peer);
    if (!rc && peers)
        atomic_fetch_and(peers, ~((uint64_t)1 << peer));
    return rc;
}

bool ibx_frontend_peers_reach(int device)
{
    const int here = ibx_frontend_current_device();
    const bool known = device >= 0 && device < DEVICES && here >= 0 && here < DEVICES;
    return device == here || !known || atomic_load(&enabled[here]) >> device & 1;
}

/* ------------------------------------------------------------------------- managed memory */

static void no_access(int device, int peer)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&told))
        ibx_log(IBX_LOG_WARN,
                "kernels on device %d cannot use managed memory that was allocated while device %d "
                "was selected: these two have no access to each other's memory; allocate it where "
                "it is used",
                device, peer);
}

/* Gives the current device access to `peer`. */
static void link_to(int device, int peer)
{
    int can = 0;
    if (CALL_NEXT(cudaDeviceCanAccessPeer, &can, device, peer) || !can)
        no_access(device, peer);
    else if (CALL_NEXT(cudaDeviceEnablePeerAccess, peer, 0) == ACCESS_ENABLED)
        CALL_NEXT(cudaGetLastError); /* the back end may return an error if it is enabled already */
}

void ibx_frontend_peers_selected(int device)
{
    if (device < 0 || device >= DEVICES)
        return;
    const uint64_t wanted = atomic_load(&holders) & ~((uint64_t)1 << device);
    const uint64_t missing = wanted & ~atomic_fetch_or(&linked[device], wanted);
    for (int peer = 0; missing >> peer && peer < DEVICES; peer++) {
        if (missing >> peer & 1)
            link_to(device, peer);
    }
}

/* A thread that selects another device later gets access then; devices that were selected before
 * get it here. */
void ibx_frontend_peers_hold(int device)
{
    if (device < 0 || device >= DEVICES ||
        atomic_fetch_or(&holders, (uint64_t)1 << device) >> device & 1)
        return;
    ibx_frontend_each_device(ibx_frontend_peers_selected);
}
