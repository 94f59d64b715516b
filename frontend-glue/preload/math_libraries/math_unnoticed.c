/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Work of the device on behalf of functions in which, natively, the device has no part: captures
 * and the program's last error do not notice it.
 */
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include "frontend-glue/preload/streams/streams.h"

#define RELAXED 2 /* cudaStreamCaptureModeRelaxed */

void ibx_math_unnoticed_begin(struct ibx_math_unnoticed *u)
{
    u->mode = RELAXED;
    ibx_frontend_drives(&u->before);
    u->relaxed = ibx_frontend_capturing() && !cudaThreadExchangeStreamCaptureMode(&u->mode);
}

void ibx_math_unnoticed_end(struct ibx_math_unnoticed *u, bool failed)
{
    if (u->relaxed)
        cudaThreadExchangeStreamCaptureMode(&u->mode);
    ibx_frontend_drove(&u->before, failed);
}
