// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/front_end.h"

#include <atomic>

std::mutex gFrontendMutex;

namespace
{
std::atomic<unsigned> unlocked;
}

namespace gvirtus::frontend
{

void Frontend::Prepare()
{
    if (!gFrontendMutex.try_lock())
        return;
    unlocked++;
    gFrontendMutex.unlock();
}

} // namespace gvirtus::frontend

// How often the tree was searched while no thread held the lock.
extern "C" __attribute__((visibility("default"))) unsigned stub_unlocked_looks()
{
    return unlocked;
}
