// SPDX-License-Identifier: LGPL-2.1-or-later
//
// log4cplus's end, with which GVirtuS's front end comes: it waits for threads, of which a forked
// child has none. Its streams end as all do that a library has begun: what the program has written
// leaves with the last one's.
#include <cstdlib>
#include <iostream>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) void stub_log_begin();

namespace
{

const pid_t first = getpid();

void end()
{
    while (getpid() != first)
        pause();
}

[[gnu::destructor]] void end_library()
{
    end();
}

} // namespace

// As of an object, besides the destructor of the library.
void stub_log_begin()
{
    static const bool begun = std::atexit(end) == 0;
    if (!begun)
        std::abort();
}
