// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Tenants of one back end: clients whose keys have different names, and a double of libcuda.
#ifndef TESTS_GVIRTUS_TENANTS_SCENE_H
#define TESTS_GVIRTUS_TENANTS_SCENE_H

#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/scene.h"

#include <memory>
#include <string>
#include <vector>

constexpr int bad_pointer = 1; // cudaErrorInvalidValue
constexpr int gone = 999;      // what a client gets when its session has ended
constexpr std::size_t device_size = 4u << 20;

inline std::string keys()
{
    return "rdma.key_file : " + folder + "/keys\n";
}

struct TenantsBackEnd : BackEnd {
    explicit TenantsBackEnd(const std::string &more = "")
        : BackEnd(keys() + more, [](auto listening) { cuda_back_end_child(listening, true); })
    {
    }
};

struct Client {
    std::shared_ptr<Communicator> over;
    Remote remote;

    Client(const BackEnd &back, const std::string &name)
        : over(connected(back.port, keys() + "rdma.name : " + name + "\n")), remote(over.get())
    {
    }
};

// To and from the device by each path that its size can take, and each kind of request.
const std::size_t sizes[] = {1, 4, 100, 16384, 70000, 600001, 3500000};

inline Body rows_to(std::uint64_t device, const std::vector<char> &bytes, std::size_t width)
{
    Body body;
    std::size_t height = bytes.size() / width;
    body.u64(device).host(bytes.data(), width * height);
    return body.u64(width).u64(width).u64(width).u64(height).i32(H2D);
}

inline Body rows_from(std::uint64_t device, std::size_t n, std::size_t width)
{
    Body body;
    body.host("", 1).u64(device);
    return body.u64(width).u64(width).u64(width).u64(n / width).i32(D2H);
}

inline bool works(Remote *remote, std::uint64_t device, std::size_t room)
{
    for (std::size_t n : sizes) {
        if (n > room)
            break;
        auto sent = random_bytes(n, 7), got = random_bytes(n, 8);
        REQUIRE(remote->to_device(device, sent.data(), n) == 0);
        REQUIRE(remote->from_device(got.data(), device, n) == 0 && got == sent);
        REQUIRE(remote->to_device_async(device + room - n, sent.data(), n, 0) == 0);
        REQUIRE(remote->from_device_async(got.data(), device + room - n, n, 0) == 0);
        REQUIRE(got == sent);
    }
    return true;
}

inline bool zeros(const std::vector<char> &bytes)
{
    for (char c : bytes)
        REQUIRE(c == 0);
    return true;
}

// Each request that names `theirs`, at its first byte or in the middle; `own` is the client's.
inline bool refused(Remote *remote, std::uint64_t theirs, std::uint64_t own, std::size_t room)
{
    for (std::size_t n : sizes) {
        for (std::uint64_t at : {theirs, theirs + room - n, theirs + (room - n) / 2}) {
            if (n > room)
                continue;
            auto bytes = random_bytes(n, 9);
            REQUIRE(remote->to_device(at, bytes.data(), n) == bad_pointer);
            REQUIRE(remote->to_device_async(at, bytes.data(), n, 0) == bad_pointer);
            REQUIRE(remote->from_device(bytes.data(), at, n) == bad_pointer);
            REQUIRE(zeros(remote->out));
            REQUIRE(remote->from_device_async(bytes.data(), at, n, 0) == bad_pointer);
            REQUIRE(zeros(remote->out));
            REQUIRE(remote->on_device(own, at, n) == bad_pointer);
            REQUIRE(remote->on_device(at, own, n) == bad_pointer);
            REQUIRE(remote->on_device_async(own, at, n, 0) == bad_pointer);
            REQUIRE(remote->on_device_async(at, own, n, 0) == bad_pointer);
            REQUIRE(remote->call("cudaMemset", Body().u64(at).i32(3).u64(n)) == bad_pointer);
            if (n < 200)
                continue;
            REQUIRE(remote->call("cudaMemcpy2D", rows_to(at, bytes, 50)) == bad_pointer);
            REQUIRE(remote->call("cudaMemcpy2D", rows_from(at, n, 50)) == bad_pointer);
            REQUIRE(zeros(remote->out));
        }
    }
    return true;
}

inline bool untouched(Remote *owner, std::uint64_t device, const std::vector<char> &bytes)
{
    std::vector<char> got(bytes.size());
    REQUIRE(owner->from_device(got.data(), device, got.size()) == 0);
    REQUIRE(got == bytes);
    return true;
}

// The tests of tenants_FILE.cpp.
void check_tenants_requests();
void check_tenants_limits();
void check_tenants_handles();

#endif
