// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The libcudart that a bench-... program measures, and that it opens by dlopen().
#ifndef TESTS_GVIRTUS_BENCH_LIBCUDART_H
#define TESTS_GVIRTUS_BENCH_LIBCUDART_H

#include <cerrno>
#include <cstdio>
#include <dlfcn.h>
#include <string_view>
#include <unistd.h>

// Ends without the destructors of GVirtuS's front ends, which may crash or hang.
[[noreturn]] inline void leave(int status)
{
    std::fflush(stdout);
    _exit(status);
}

// The first function of that name: a preload's before the libcudart's.
template <typename F> F symbol(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) {
        std::fprintf(stderr, "%s: the libcudart has no %s\n", program_invocation_short_name, name);
        leave(1);
    }
    return reinterpret_cast<F>(found);
}

inline void must(int rc, std::string_view what)
{
    if (!rc)
        return;
    std::fprintf(stderr, "%s: %.*s: error %d\n", program_invocation_short_name,
                 static_cast<int>(what.size()), what.data(), rc);
    leave(1);
}

#endif
