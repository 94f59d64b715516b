// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What the back end of a test does for its clients' calls. Tables say it, by the calls' names.
#ifndef TESTS_GVIRTUS_REMOTE_CALLS_H
#define TESTS_GVIRTUS_REMOTE_CALLS_H

#include "tests/fixtures/cuda_application.h"
#include "tests/gvirtus/remote.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

// What a handler reads from its request, and its answer.
struct Frame {
    const std::string &name;
    const std::vector<char> &in;
    Body &out;
    int *device; // current in this thread; negative: none yet
    const cuda_calls *app = cuda_application();
    std::size_t at = 0;

    template <typename T> T get()
    {
        T value{};
        if (at + sizeof(T) > in.size())
            return value;
        std::memcpy(&value, in.data() + at, sizeof(T));
        at += sizeof(T);
        return value;
    }
    void *pointer() { return reinterpret_cast<void *>(get<std::uint64_t>()); }
    const char *host(std::uint64_t *n)
    {
        *n = get<std::uint64_t>();
        const char *bytes = in.data() + at;
        at += *n;
        return bytes;
    }
    template <typename T> T back(std::size_t behind) const
    {
        T value{};
        if (in.size() >= behind + sizeof(T))
            std::memcpy(&value, in.data() + in.size() - behind - sizeof(T), sizeof(T));
        return value;
    }
    int answer(const void *bytes, std::size_t n)
    {
        out.host(bytes, n);
        return 0;
    }
};

using Calls = std::map<std::string, int (*)(Frame &f)>;

// remote_memory.cpp, remote_streams.cpp, remote_devices.cpp, remote_tests.cpp
extern const Calls memory_calls, copy_calls, stream_calls, graph_calls, device_calls, test_calls;

// What tests look at, and set.
struct Work {
    std::atomic<bool> shut, inside;         // a gate in the way of two handlers
    std::atomic<bool> endless;              // work of a stream
    std::atomic<unsigned> registering, met; // handlers of registrations; how often others met one
    std::atomic<unsigned> registered;       // handlers of registrations that have returned
    std::atomic<std::uint64_t> handled;     // copies and launches
};
extern Work work;

// Variables, and the body of the last copy to one, as it came. remote_memory.cpp
int register_var(Frame &f);
int last_symbol_body(Frame &f);

#endif
