/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For tests that speak a session's messages by hand, over the fabric inside the process. */
#ifndef IBX_TESTS_SCENES_SESSION_MEMORY_H
#define IBX_TESTS_SCENES_SESSION_MEMORY_H

#include "common/log.h"
#include "tests/scenes/memory_provider.h"
#include "tests/scenes/patience.h"
#include "tests/scenes/session_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define BODY (64u << 10)

struct message {
    size_t length;
    uint8_t bytes[64];
};

#define BYTES(...)                                                                                 \
    {                                                                                              \
        sizeof((const uint8_t[]){__VA_ARGS__}),                                                    \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
/* A field of a remote. */
#define REMOTE_1 1, 0, 0, 0, 0, 0, 0, 0
#define REMOTE_0 0, 0, 0, 0, 0, 0, 0, 0

static inline int session_memory_begin(void **state)
{
    (void)state;
    memory_control_reset();
    alarm(120 * patience_times());
    return 0;
}

static inline int session_memory_end(void **state)
{
    (void)state;
    alarm(0);
    if (!memory_live_endpoints() && !memory_live_regions())
        return 0;
    print_error("%d endpoints, %d regions are left\n", memory_live_endpoints(),
                memory_live_regions());
    return -1;
}

static inline int session_memory_group(void **state)
{
    (void)state;
    ibx_log_set_level(IBX_LOG_ERROR);
    session_pair_use("shm", NULL, NULL, NULL);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, session_memory_begin, session_memory_end)

#endif
