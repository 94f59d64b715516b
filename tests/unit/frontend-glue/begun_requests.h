/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests of single files of preload/: requests begin as in extensions.c, and the test says what
 * the back end answers. */
#ifndef IBX_TESTS_BEGUN_REQUESTS_H
#define IBX_TESTS_BEGUN_REQUESTS_H

#include "frontend-glue/preload/preload.h"

void ibx_frontend_request_begin(struct extension_request *e, enum ibx_extension number,
                                const char *call)
{
    e->name = NULL;
    e->call = call;
    e->body = ibx_writer_of(e->bytes, sizeof(e->bytes));
    ibx_put_u16(&e->body, (uint16_t)number);
}

void ibx_frontend_node_begin(struct extension_request *e, enum ibx_extension number,
                             const char *call, const void *exec, const void *node)
{
    ibx_frontend_request_begin(e, number, call);
    ibx_put_u64(&e->body, (uintptr_t)exec);
    ibx_put_u64(&e->body, (uintptr_t)node);
}

#endif
