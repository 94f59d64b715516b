// SPDX-License-Identifier: LGPL-2.1-or-later
//
// GVirtuS's front end (G5) has its threads' connections in a tree. A thread that connects changes
// the tree under a lock. Prepare(), which each call of GVirtuS's libcudart calls, searches the tree
// without this lock.
#ifndef TESTS_DOUBLES_GVIRTUS_FRONT_END_H
#define TESTS_DOUBLES_GVIRTUS_FRONT_END_H

#include <mutex>

// These have the names that they have in GVirtuS.
extern __attribute__((visibility("default"))) std::mutex gFrontendMutex;

namespace gvirtus::frontend
{

class Frontend
{
  public:
    __attribute__((visibility("default"))) void Prepare();
};

} // namespace gvirtus::frontend

#endif
