/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* cmocka with the headers that it needs before it, and what tests of one module share. */
#ifndef IBX_TESTS_UNIT_H
#define IBX_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The parameter of a test that needs none. */
#define NO_STATE     void **state __attribute__((unused))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Fails when `words` are not in `text`. */
static inline void text_has(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

#endif
