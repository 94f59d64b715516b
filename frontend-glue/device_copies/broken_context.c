/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUDA errors that stay: the context, which all clients of this process share, runs nothing any
 * more, and no call mends that. Whoever runs the back end is told, since clients only see that each
 * of their calls fails.
 */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#include <stdatomic.h>

/* cudaError_t after which "the process must be terminated and relaunched", from CUDA 10.1 on. */
static bool stays(int code)
{
    static const int codes[] = {214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (codes[i] == code)
            return true;
    }
    return false;
}

#define DEVICES 64 /* and one more for those beyond */

static atomic_int broken[DEVICES + 1]; /* the first of them on each device, 0: none */

/* The place of the device that the session's runtime uses: each has a context of its own. */
static atomic_int *of_device(const struct copies *x)
{
    const struct ibx_cuda *cuda = ibx_cuda_load(NULL);
    int device = x->requests.device;
    if (device < 0 && (!cuda || cuda->ctx_get_device(&device)))
        device = 0;
    return &broken[device < 0 || device > DEVICES ? DEVICES : device];
}

void ibx_copies_note_error(const struct copies *x, int code)
{
    int none = 0;
    atomic_int *place = stays(code) ? of_device(x) : NULL;
    if (place && atomic_compare_exchange_strong(place, &none, code))
        ibx_log(IBX_LOG_ERROR,
                "CUDA error %d of %s stays: it has broken the context of all clients of this back "
                "end on device %d, whose calls fail from now on; start the back end again",
                code, ibx_session_path(x->s)->peer, (int)(place - broken));
}

void ibx_copies_note_reset(const struct copies *x)
{
    atomic_store(of_device(x), 0);
}

bool ibx_copies_broken(const struct copies *x)
{
    return atomic_load(of_device(x));
}

void ibx_copies_tell_broken(const struct copies *x)
{
    for (int i = 0; i <= DEVICES; i++) {
        const int code = atomic_load(&broken[i]);
        if (code)
            ibx_log(IBX_LOG_ERROR,
                    "the CUDA calls of %s on device %d will fail: error %d of an earlier client "
                    "has broken the context of this back end; start it again",
                    ibx_session_path(x->s)->peer, i, code);
    }
}
