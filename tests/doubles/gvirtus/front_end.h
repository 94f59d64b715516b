// SPDX-License-Identifier: LGPL-2.1-or-later
//
// GVirtuS's front end (G5) has its threads' connections in a tree. Prepare(), which each call of
// its libcudart makes, searches it without the lock under which a thread that connects changes it.
#ifndef TESTS_DOUBLES_GVIRTUS_FRONT_END_H
#define TESTS_DOUBLES_GVIRTUS_FRONT_END_H

#include <mutex>

// Under the names that they have there.
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
