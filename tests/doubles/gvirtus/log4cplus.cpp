// SPDX-License-Identifier: LGPL-2.1-or-later
//
// The end of log4cplus, which GVirtuS's front end uses: it waits for threads, which do not exist in
// a forked child, and nobody may log after it. Its streams end as those of every library do: what
// the program has written is flushed with the last one.
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) void stub_log_begin();
extern "C" __attribute__((visibility("default"))) void stub_log();

namespace
{

const pid_t first = getpid();
std::atomic<bool> ended;

void end()
{
    while (getpid() != first)
        pause();
    ended = true;
}

[[gnu::destructor]] void end_library()
{
    end();
}

} // namespace

// As the destructor of an object, besides that of the library.
void stub_log_begin()
{
    static const bool begun = std::atexit(end) == 0;
    if (!begun)
        std::abort();
}

void stub_log()
{
    if (ended)
        std::abort();
}
