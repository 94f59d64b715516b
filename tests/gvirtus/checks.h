// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A test is a function that returns whether it passed; check() runs it and prints a line that
// tests/count-results counts, if tests/fixtures/selection.h has it run.
#ifndef TESTS_GVIRTUS_CHECKS_H
#define TESTS_GVIRTUS_CHECKS_H

#include "tests/fixtures/selection.h"

#include <atomic>
#include <cstdio>
#include <functional>
#include <unistd.h>

// Where a check that does not hold is reported, also while a test reads its own stderr.
inline int report_to = STDERR_FILENO;

// How many checks have not held in this process. If some have not, a program that a test has
// started reports how it has ended.
inline std::atomic_uint not_held;

inline bool holds(bool good, const char *file, int line, const char *condition)
{
    if (!good)
        dprintf(report_to, "%s:%d: %s\n", file, line, condition);
    not_held += good ? 0 : 1;
    return good;
}

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!holds(static_cast<bool>(condition), __FILE__, __LINE__, #condition))                  \
            return false;                                                                          \
    } while (0)

// For the end of a test: "return HOLDS(a && b);" reports the condition, as REQUIRE does, if it is
// false.
#define HOLDS(...) holds((__VA_ARGS__), __FILE__, __LINE__, #__VA_ARGS__)

// In a destructor, whose test cannot return that it has failed: it fails all the same.
inline std::atomic_uint not_held_at_end;
#define HOLDS_AT_END(...) ((void)(HOLDS(__VA_ARGS__) || ++not_held_at_end))

inline int passed, failed;

inline void check(const char *name, const std::function<bool()> &test)
{
    if (!selection_has(name))
        return;
    const unsigned before = not_held_at_end;
    const bool good = test() && not_held_at_end == before;
    std::printf("%s %s\n", good ? "ok  " : "FAIL", name);
    std::fflush(stdout);
    (good ? passed : failed)++;
}

#endif
