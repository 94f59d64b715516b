/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests of single files of preload/: what these need to call GVirtuS's functions, which a test
 * replaces by functions of its own: next_NAME() is GVirtuS's NAME(). */
#ifndef IBX_TESTS_NEXT_CALLS_H
#define IBX_TESTS_NEXT_CALLS_H

#include "frontend-glue/preload/preload.h"

#include <string.h>

/* In ibx_frontend_next(), which the test defines. */
#define RETURN_NEXT(symbol, name)                                                                  \
    do                                                                                             \
        if (!strcmp(symbol, #name))                                                                \
            return (void *)(uintptr_t)next_##name;                                                 \
    while (0)

bool ibx_frontend_first_begins(void)
{
    return true;
}

void ibx_frontend_first_is_over(void) {}

#endif
