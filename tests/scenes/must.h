/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is not true here aborts, in any thread and without CMocka, so that fuzzers can use it. */
#ifndef IBX_TESTS_SCENES_MUST_H
#define IBX_TESTS_SCENES_MUST_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition,          \
                    strerror(errno));                                                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
