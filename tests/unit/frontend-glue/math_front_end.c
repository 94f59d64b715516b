/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Replaces functions of the front end that math_calls.c calls besides requests. */
#include "frontend-glue/preload/math_libraries/math_calls.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <stdlib.h>

int ibx_frontend_arguments_reach(const void *arguments, size_t n)
{
    (void)arguments, (void)n;
    return 0;
}

void ibx_frontend_connect(void) {}

void ibx_frontend_stream_used(const void *stream)
{
    (void)stream;
}

void ibx_frontend_stream_worked(void *stream)
{
    (void)stream;
}

bool ibx_frontend_request_room(struct extension_request *e, size_t n)
{
    (void)e;
    return n <= sizeof(e->bytes);
}

void ibx_frontend_request_free(struct extension_request *e)
{
    free(e->more);
}

bool ibx_frontend_first_begins(void)
{
    return false;
}

void ibx_frontend_first_is_over(void) {}

bool ibx_frontend_lt_is_ours(void)
{
    return true;
}

void *ibx_frontend_next(_Atomic(void *) *found, const char *name)
{
    (void)found, (void)name;
    return NULL;
}
