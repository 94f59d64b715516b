// SPDX-License-Identifier: LGPL-2.1-or-later
//
// GVirtuS's front end (G5) has its threads' connections in a tree. Prepare(), which each call of
// its libcudart makes, searches it without the lock under which a thread that connects changes it.
#include <atomic>
#include <mutex>

#define EXPORTED __attribute__((visibility("default")))

// Under the name that it has there.
EXPORTED std::mutex gFrontendMutex;

namespace
{
std::atomic<unsigned> unlocked;
}

namespace gvirtus::frontend
{

class Frontend
{
  public:
    EXPORTED void Prepare();
};

void Frontend::Prepare()
{
    if (!gFrontendMutex.try_lock())
        return;
    unlocked++;
    gFrontendMutex.unlock();
}

} // namespace gvirtus::frontend

// How often that was so, without anybody's lock.
extern "C" EXPORTED unsigned stub_unlocked_looks()
{
    return unlocked;
}
