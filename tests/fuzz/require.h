/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checks what must hold for each input; libFuzzer keeps an input that fails. */
#ifndef IBX_TESTS_FUZZ_REQUIRE_H
#define IBX_TESTS_FUZZ_REQUIRE_H

#include <stdbool.h>
#include <stdlib.h>

static inline void require(bool good)
{
    if (!good)
        abort();
}

#endif
