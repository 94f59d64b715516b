/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What requests have the driver's linker do. The client has put its images into memory of the
 * device, since a request holds too little. The linker wants them in memory of the host.
 */
#include "frontend-glue/extensions/linker.h"

#include "gpudirect/cuda.h"

#include <stdlib.h>

bool ibx_linker_find(struct ibx_linker *linker)
{
    *(void **)&linker->create = ibx_cuda_symbol("cuLinkCreate_v2");
    *(void **)&linker->add = ibx_cuda_symbol("cuLinkAddData_v2");
    *(void **)&linker->complete = ibx_cuda_symbol("cuLinkComplete");
    *(void **)&linker->destroy = ibx_cuda_symbol("cuLinkDestroy");
    return linker->create && linker->add && linker->complete && linker->destroy;
}

struct work {
    int (*run)(struct extension_request *e, void *of, uint8_t *host);
    void *of;
    uint8_t *host;
};

static int run(struct extension_request *e, void *of)
{
    const struct work *work = of;
    return work->run(e, work->of, work->host);
}

int ibx_linker_run(struct extension_request *e, uint64_t at, uint64_t length, size_t bytes,
                   int (*work)(struct extension_request *e, void *of, uint8_t *host), void *of)
{
    int rc = CUDA_MEMORY_ALLOCATION;
    if (!ibx_room_take(e->x, IBX_HOLD_REQUESTS, bytes))
        return rc;
    struct work is = {work, of, calloc(1, bytes)};
    if (is.host)
        rc = ibx_extension_held(e, at, length, run, &is);
    free(is.host);
    ibx_room_give(e->x, IBX_HOLD_REQUESTS, bytes);
    return rc;
}
