// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Shared by the tests of application.cpp and those about page-locked memory and asynchronous
// copies.
#ifndef TESTS_FRONTEND_APPLICATION_H
#define TESTS_FRONTEND_APPLICATION_H

#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/remote.h"
#include "tests/doubles/gvirtus/cudart.h"
#include "tests/scenes/random_fill.h"

#include <cstddef>
#include <dlfcn.h>

// `taken`: the back end's plugin runs the copies.
extern bool taken, over_shm;

constexpr int DEFAULT = 4; // cudaMemcpyDefault

constexpr std::size_t device_bytes_each = 20u << 20;

template <typename F> F *preloaded(const char *name)
{
    return reinterpret_cast<F *>(dlsym(RTLD_DEFAULT, name));
}

char *device_memory(std::size_t n = device_bytes_each);
bool device_has(const char *device, const char *bytes, std::size_t n);
// To the device and back into other memory, with a gap on both sides that stays as it was.
bool round_trip(char *device, char *memory, std::size_t n, unsigned seed, void *stream = nullptr);

// Peak memory of this process, KiB.
long peak();

// application_pinned.cpp

// Page-locked memory; of an application after one that has left without freeing its own.
bool pinned();
bool after();
// Memory that is registered, and such that is gone without a word.
bool host_register();
bool stale_registration();

// application_async.cpp

bool async();
// Copies that are run beside everything else, from and to registered memory or allocated one.
bool background(bool registered);
// Copies on the host after others that are under way.
bool on_host();
// Several devices at once.
bool devices();
// A device that there is not.
bool no_device();
// Ends in the middle of copies.
bool leaves();
// Ends with copies in the background, and is told nothing of the memory's end.
bool exits();
// The back end is killed in the middle of them.
bool killed_background();

#endif
