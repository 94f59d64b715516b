// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/scenes/selection.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX 64 /* of IBX_TEST_ONLY; whether those behind it match is not noted */

static bool matched[ENTRIES_MAX];

static bool matches(const char *name, const char *entry)
{
    return strpbrk(entry, "*?") ? !fnmatch(entry, name, 0) : strstr(name, entry) != NULL;
}

/* Whether one entry of the list matches; all that do are noted. */
static bool any_matches(const char *name, const char *list, bool *noted)
{
    char copy[4096], *rest = NULL;
    bool any = false;
    size_t i = 0;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *entry = strtok_r(copy, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest), i++) {
        if (!matches(name, entry))
            continue;
        any = true;
        if (noted && i < ENTRIES_MAX)
            noted[i] = true;
    }
    return any;
}

bool selection_has(const char *name)
{
    const char *only = getenv("IBX_TEST_ONLY"), *skip = getenv("IBX_TEST_SKIP");
    return (!only || any_matches(name, only, matched)) && !(skip && any_matches(name, skip, NULL));
}

int selection_unmatched(void)
{
    const char *only = getenv("IBX_TEST_ONLY");
    char copy[4096], *rest = NULL;
    int missing = 0;
    size_t i = 0;
    snprintf(copy, sizeof(copy), "%s", only ? only : "");
    for (char *entry = strtok_r(copy, ",", &rest); entry; entry = strtok_r(NULL, ",", &rest), i++) {
        if (i >= ENTRIES_MAX || matched[i])
            continue;
        fprintf(
            stderr,
            "FAILED IBX_TEST_ONLY: no case here has \"%s\" in its name; unset it to see them all\n",
            entry);
        missing++;
    }
    if (only && !i) {
        fprintf(stderr, "FAILED IBX_TEST_ONLY is \"%s\": give names, or unset it\n", only);
        missing++;
    }
    memset(matched, 0, sizeof(matched));
    return missing;
}
