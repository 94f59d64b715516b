/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What holds for each input: libFuzzer keeps one for which it does not. */
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
