/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tests of a program that are wanted, by their names. IBX_TEST_ONLY in the environment has the
 * only ones that run, IBX_TEST_SKIP those that do not. Each is a list with commas; an entry is a
 * part of a name, or with `*` or `?` in it a pattern for the whole name.
 */
#ifndef IBX_TESTS_SCENES_SELECTION_H
#define IBX_TESTS_SCENES_SELECTION_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif
/* Whether the test of this name is to run. */
bool selection_has(const char *name);
/* For the end of main, when selection_has() was asked about every name: the number of entries of
 * IBX_TEST_ONLY that no name had, with one sentence for each on standard error. */
int selection_unmatched(void);
#ifdef __cplusplus
}
#endif

#endif
