// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote.h"
#include "tests/gvirtus/remote_calls.h"
#include "tests/gvirtus/remote_libraries.h"
#include "tests/gvirtus/remote_runtime.h"

#include <cstdio>
#include <cstdlib>

/* ------------------------------------------------------------------- front end */

int Remote::to_symbol(std::uint64_t symbol, const void *from, std::size_t n, std::size_t offset)
{
    char address[24];
    std::snprintf(address, sizeof(address), "%p", reinterpret_cast<void *>(symbol));
    Body body;
    body.string(address).string("").host(from, n).u64(n).u64(offset).i32(H2D);
    return call("cudaMemcpyToSymbol", body);
}

/* -------------------------------------------------------------------- back end */

Work work;

namespace
{

std::atomic<std::uint64_t> handles_made;

// A plan is an array of one int, which is counted.
int answer_made(Frame &f, const std::string &name, std::uint64_t made, int code)
{
    if (name == "cufftCreate")
        f.out.u64(sizeof(std::int32_t)).i32(static_cast<std::int32_t>(made));
    else
        f.out.u64(made);
    return code;
}

// With values of options.
int answer_options(Frame &f)
{
    const auto options = f.in.empty() ? 3 : f.get<std::uint32_t>();
    f.out.u64(0x5000'0000 + 16 * ++handles_made);
    for (std::uint32_t i = 0; i < options; i++)
        f.out.u64(8).u64(0x7ffc'0000'1000);
    return 0;
}

int answer_unset(Frame &f)
{
    std::string unset(256, 'g'); // what the heap held
    if (f.name[0] == 'n')
        std::memcpy(unset.data(), "580.1", 6);
    f.out.host(unset.data(), unset.size());
    return f.name[0] == 'n' ? 0 : 103;
}

// They make no context current.
const Calls calls_without_context = {
    {"cuModuleLoadDataEx", answer_options},
    {"testSameReply", answer_options},
    {"curandGenerateUniform", answer_unset},
    {"nvmlSystemGetDriverVersion", answer_unset},
    {"cublasDestroy_v2", [](Frame &f) -> int { return library_ends_blas(f.get<std::uint64_t>()); }},
    {"cufftDestroy", [](Frame &f) -> int { return library_ends_plan(f.get<std::int32_t>()); }},
    {"cudaSetDevice",
     [](Frame &f) -> int {
         auto device = f.get<std::int32_t>();
         if (device != 0 && device != 1)
             return 101;
         cuda_application_use(device);
         *f.device = device;
         return 0;
     }},
};

int copy_between_devices(Frame &f)
{
    auto *to = reinterpret_cast<void *>(f.get<std::uint64_t>());
    const auto to_device = f.get<std::int32_t>();
    const auto *from = reinterpret_cast<const void *>(f.get<std::uint64_t>());
    const auto from_device = f.get<std::int32_t>();
    const auto n = f.get<std::uint64_t>();
    return runtime().copy_peer(to, to_device, from, from_device, n,
                               reinterpret_cast<void *>(f.get<std::uint64_t>()));
}

// Like CUDA's runtime, makes a context current at the first call that needs one.
int execute(Frame &f)
{
    if (f.name == "cudaMemcpyPeerAsync" && is_captured(f.back<std::uint64_t>(0)))
        return runtime().copy_peer(nullptr, 0, nullptr, 0, 0,
                                   reinterpret_cast<void *>(f.back<std::uint64_t>(0)));
    if (f.name == "cudaMemcpyPeerAsync" && f.back<std::uint64_t>(32)) // not a test's empty one
        return copy_between_devices(f);
    if (is_echoed(f.name))
        return f.answer(f.in.data(), f.in.size());
    int code = 0;
    std::uint64_t made = 0;
    for (const Calls *table : {&calls_without_context, &test_calls}) {
        if (table->count(f.name))
            return table->at(f.name)(f);
    }
    if (makes_handle(f.name) && !f.in.empty()) {
        f.out.u64(0x5000'0000 + 16 * ++handles_made);
        return 0;
    }
    if (library_makes(f.name, &made, &code))
        return answer_made(f, f.name, made, code);
    if (*f.device < 0)
        cuda_application_use(*f.device = 0);
    for (const Calls *table :
         {&copy_calls, &memory_calls, &stream_calls, &graph_calls, &device_calls}) {
        if (table->count(f.name))
            return table->at(f.name)(f);
    }
    return -1;
}

} // namespace

void cuda_back_end_child(std::shared_ptr<Communicator> listening, bool timed)
{
    runtime(); // as part of a plugin, before there are clients
    serve_clients(
        listening,
        []() -> Handler {
            if (std::getenv("IBX_TEST_PLUGINS")) // GVirtuS loads all of its plugins then
                runtime();
            return [device = -1](const std::string &name, const std::vector<char> &in,
                                 Body *out) mutable {
                Frame frame{name, in, *out, &device};
                return execute(frame);
            };
        },
        timed);
}
