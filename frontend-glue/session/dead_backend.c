/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a front end reads once its back end is gone. */
#include "frontend-glue/session/session_internal.h"

#include "common/log.h"

#include <stdlib.h>
#include <string.h>

void ibx_session_tell_end(struct ibx_session *s)
{
    if (!s->answering)
        ibx_log(IBX_LOG_ERROR, "the back end is gone, so every CUDA call fails from now on: %s",
                *s->reason ? s->reason : "it ended the connection");
    s->answering = true;
}

void ibx_session_reason_logged(struct ibx_session *s)
{
    s->answering = true;
}

/* Only the exit code of a reply has four bytes; zeros in the other fields mean no time and no
 * output. */
static void answer(void *buffer, size_t n, int32_t exit_code)
{
    memset(buffer, 0, n);
    if (n == sizeof(exit_code))
        memcpy(buffer, &exit_code, sizeof(exit_code));
}

/* GVirtuS ignores exceptions and short reads, and would return the success of the previous call to
 * the application. */
void ibx_session_answer(struct ibx_session *s, void *buffer, size_t n)
{
    bool told = s->answering;
    ibx_session_tell_end(s);
    if (!told && s->in_frame) {
        ibx_log(IBX_LOG_ERROR, "the connection broke inside a reply: the application ends here, "
                               "since GVirtuS cannot report it");
        abort();
    }
    answer(buffer, n, IBX_CUDA_ERROR_UNKNOWN);
}

void ibx_session_answer_registration(void *buffer, size_t n)
{
    answer(buffer, n, 0);
}

void ibx_session_answer_unloading(void *buffer, size_t n)
{
    answer(buffer, n, IBX_CUDA_ERROR_UNLOADING);
}
