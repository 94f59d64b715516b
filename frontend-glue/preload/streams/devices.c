/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The device that a thread has selected, and those that this process uses. */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <pthread.h>

static _Thread_local int current; /* device */
static _Atomic uint64_t in_use;   /* a bit for each of the first 64 devices */

/* GVirtuS makes new connections in a child, which has selected and used no device yet. */
static void in_child(void)
{
    atomic_store(&in_use, 0);
    current = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void note_device(int device)
{
    if (device >= 0 && device < 64 &&
        !(atomic_load_explicit(&in_use, memory_order_relaxed) >> device & 1))
        atomic_fetch_or(&in_use, (uint64_t)1 << device);
}

void ibx_frontend_device_used(void)
{
    ibx_frontend_runtime_used();
    note_device(current);
}

bool ibx_frontend_device_in_use(int device)
{
    return device >= 0 && device < 64 && atomic_load(&in_use) >> device & 1;
}

int ibx_frontend_current_device(void)
{
    return current;
}

bool ibx_frontend_one_device(void)
{
    const uint64_t devices = atomic_load(&in_use);
    return !(devices & (devices - 1));
}

int cudaGetDevice(int *device)
{
    if (!device)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return ibx_frontend_knows(IBX_FRONTEND_DEVICE, 0, device) ? CUDA_SUCCESS
                                                              : ASK_NEXT(cudaGetDevice, device);
}

int cudaSetDevice(int device)
{
    if (ibx_frontend_knows(IBX_FRONTEND_SELECTED, (uint64_t)device, NULL))
        return CUDA_SUCCESS;
    int rc = CALL_NEXT(cudaSetDevice, device);
    if (!rc) {
        current = device;
        note_device(device);
        ibx_frontend_peers_selected(device);
    }
    return rc;
}

/* Device 0 counts as used: it is that of threads that have selected none. */
void ibx_frontend_each_device(void (*visit)(int device))
{
    const uint64_t all = atomic_load(&in_use) | 1;
    bool away = false;
    visit(current);
    for (int device = 0; device < 64; device++) {
        if (device == current || !(all >> device & 1) || CALL_NEXT(cudaSetDevice, device))
            continue;
        away = true;
        visit(device);
    }
    if (away)
        CALL_NEXT(cudaSetDevice, current);
}

/* Unused devices are left out, because GVirtuS's cudaSetDevice makes a context on a device. */
int ibx_frontend_devices_wait(void)
{
    uint64_t others = atomic_load(&in_use);
    const unsigned ended = ibx_frontend_threads_ended();
    bool away = false;
    int rc = ibx_frontend_own_work_wait();
    for (int device = 0; device < 64; device++) {
        if (device == current || !(others >> device & 1))
            continue;
        int code = CALL_NEXT(cudaSetDevice, device);
        away = away || !code;
        if (!code)
            code = ibx_frontend_own_work_wait();
        rc = rc ? rc : code;
    }
    if (!rc)
        ibx_frontend_threads_rest(ended);
    const int back = away ? CALL_NEXT(cudaSetDevice, current) : CUDA_SUCCESS;
    return rc ? rc : back;
}
