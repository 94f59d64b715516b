// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What handlers of GVirtuS's plugins for CUDA's libraries do, in the back end of a test: calls of
// the doubles that IBX_TEST_MATH names.
#ifndef TESTS_GVIRTUS_REMOTE_LIBRARIES_H
#define TESTS_GVIRTUS_REMOTE_LIBRARIES_H

#include <cstdint>
#include <string>

// As the plugins bring them.
void load_libraries();
// Handles of theirs that have not been ended.
std::uint64_t library_handles();

// False: the handler of that name makes none. A generator of the host's makes its numbers in memory
// of the back end. *code: the library's status.
bool library_makes(const std::string &name, std::uint64_t *made, int *code);
int library_ends_blas(std::uint64_t handle);
int library_ends_plan(std::int32_t plan);

// Whether a handler's answer is the request's body, as CUDA would get it; ... the handle of
// something new.
bool is_echoed(const std::string &name);
bool makes_handle(const std::string &name);

#endif
