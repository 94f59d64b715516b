// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A test is a function that returns whether it passed; check() runs it and prints a line that
// tests/count-results counts. With IBX_TEST_ONLY in the environment only those run whose name has
// that in it.
#ifndef TESTS_GVIRTUS_CHECKS_H
#define TESTS_GVIRTUS_CHECKS_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

inline int passed, failed;

inline void check(const char *name, const std::function<bool()> &test)
{
    const char *only = std::getenv("IBX_TEST_ONLY");
    if (only && !std::strstr(name, only))
        return;
    bool good = test();
    std::printf("%s %s\n", good ? "ok  " : "FAIL", name);
    std::fflush(stdout);
    (good ? passed : failed)++;
}

#endif
