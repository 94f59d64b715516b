/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cudaLaunchHostFunc and cudaStreamAddCallback; host_functions.c calls the functions. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

static int enqueue(const struct ibx_frontend_host_call *wish, const char *name)
{
    ibx_frontend_graph_behind_trim();
    return ibx_frontend_host_enqueue(wish, name);
}

int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    const struct ibx_frontend_host_call wish = {
        .stream = stream, .argument = argument, .function = function};
    if (!function)
        return ibx_frontend_fail(CUDA_INVALID_VALUE);
    return ibx_frontend_captures(stream) ? ibx_frontend_capture_function(stream, function, argument)
                                         : enqueue(&wish, "cudaLaunchHostFunc");
}

/* How the stream waits for the function: asleep, or spinning (cudaHostTaskSyncMode). This changes
 * nothing here. */
int cudaLaunchHostFunc_v2(void *stream, void (*function)(void *argument), void *argument,
                          unsigned how)
{
    return how > 1 ? ibx_frontend_fail(CUDA_INVALID_VALUE)
                   : cudaLaunchHostFunc(stream, function, argument);
}

int cudaStreamAddCallback(void *stream, void (*callback)(void *stream, int status, void *argument),
                          void *argument, unsigned flags)
{
    const struct ibx_frontend_host_call wish = {
        .stream = stream, .argument = argument, .callback = callback};
    return callback && !flags ? enqueue(&wish, "cudaStreamAddCallback")
                              : ibx_frontend_fail(CUDA_INVALID_VALUE);
}
