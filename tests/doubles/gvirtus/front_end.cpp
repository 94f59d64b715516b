// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/doubles/gvirtus/front_end.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

std::mutex gFrontendMutex;

namespace
{
std::atomic<unsigned> unlocked, endpoints_read;
}

struct __attribute__((visibility("default"))) PortOfFile {
    int port = 0;
};

// The name is that of EndpointFactory::get_endpoint(), whose argument begins with a string.
__attribute__((visibility("default"))) std::shared_ptr<PortOfFile>
endpoint_of(const std::string &path) __asm__("_ZN7gvirtus13communicators15EndpointFactory12get_"
                                             "endpointERKNSt12experimental10filesystem2v17__"
                                             "cxx114pathE");

std::shared_ptr<PortOfFile> endpoint_of(const std::string &path)
{
    std::ifstream file(path);
    auto read = std::make_shared<PortOfFile>();
    endpoints_read++;
    if (!(file >> read->port))
        throw std::runtime_error("no end point");
    return read;
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

// The port in such a file; -1: it has none.
extern "C" __attribute__((visibility("default"))) int stub_endpoint(const char *path)
{
    try {
        return endpoint_of(path)->port;
    } catch (const std::exception &) {
        return -1;
    }
}

extern "C" __attribute__((visibility("default"))) unsigned stub_endpoints_read()
{
    return endpoints_read;
}
