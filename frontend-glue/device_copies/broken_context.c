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

static atomic_int broken; /* the first of them, 0: none */

void ibx_copies_note_error(const struct copies *x, int code)
{
    int none = 0;
    if (stays(code) && atomic_compare_exchange_strong(&broken, &none, code))
        ibx_log(IBX_LOG_ERROR,
                "CUDA error %d of %s stays: it has broken the context of all clients of this back "
                "end, whose calls fail from now on; start the back end again",
                code, ibx_session_path(x->s)->peer);
}

void ibx_copies_note_reset(void)
{
    atomic_store(&broken, 0);
}

bool ibx_copies_broken(void)
{
    return atomic_load(&broken);
}

void ibx_copies_tell_broken(const struct copies *x)
{
    const int code = atomic_load(&broken);
    if (code)
        ibx_log(IBX_LOG_ERROR,
                "the CUDA calls of %s will fail: error %d of an earlier client has broken the "
                "context of this back end; start it again",
                ibx_session_path(x->s)->peer, code);
}
