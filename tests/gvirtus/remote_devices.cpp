// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/remote_calls.h"
#include "tests/gvirtus/remote_runtime.h"

#include <stdexcept>
#include <unistd.h>

namespace
{

thread_local unsigned pushed; // configurations of launches

int waits_at_the_gate(Frame &f)
{
    for (work.inside = true; work.shut || (work.endless && f.name == "cudaUnregisterFatBinary");)
        usleep(1000); // the latter waits for all work
    return work.inside = false, -1;
}

// A context, or an address.
int answer_any(Frame &f)
{
    const std::uint64_t any = 0x200000;
    return f.answer(&any, 8);
}

} // namespace

const Calls device_calls = {
    {"cudaGetDevice",
     [](Frame &f) -> int {
         f.out.i32(*f.device);
         return 0;
     }},
    {"cudaGetDeviceCount",
     [](Frame &f) -> int {
         const std::int32_t count = 2;
         return f.answer(&count, sizeof(count));
     }},
    // 16: multiprocessors; 33: the PCI bus; 75: the compute capability, 8 and 9; 142, 144: the
    // second device has pools of the host's memory.
    {"cudaDeviceGetAttribute",
     [](Frame &f) -> int {
         f.get<std::uint64_t>();
         f.get<std::int32_t>();
         const auto attribute = f.get<std::int32_t>(), device = f.get<std::int32_t>();
         const bool pools = attribute == 142 || attribute == 144;
         const std::int32_t value = attribute == 16   ? 132
                                    : attribute == 33 ? device + 3
                                    : attribute == 75 ? device + 8
                                    : pools           ? device
                                                      : 0;
         return device == 0 || device == 1 ? f.answer(&value, sizeof(value)) : 101;
     }},
    // Fails, and sends an address of its own, as G5's handler does.
    {"cudaMallocManaged",
     [](Frame &f) -> int {
         const void *unset = &unset;
         f.answer(&unset, sizeof(unset));
         return 2;
     }},
    {"cudaDeviceCanAccessPeer",
     [](Frame &f) -> int {
         f.get<std::uint64_t>();
         f.get<std::int32_t>();
         const auto device = f.get<std::int32_t>();
         const std::int32_t can = device != f.get<std::int32_t>();
         return f.answer(&can, sizeof(can));
     }},
    {"cudaDeviceEnablePeerAccess",
     [](Frame &f) -> int {
         const auto peer = f.get<std::int32_t>();
         return runtime().enable_peer(peer, f.get<unsigned>());
     }},
    {"cudaDeviceDisablePeerAccess",
     [](Frame &f) -> int { return runtime().disable_peer(f.get<std::int32_t>()); }},
    {"cudaDeviceReset", [](Frame &f) -> int { return f.app->primary_reset(*f.device); }},
    {"cudaDeviceSynchronize", [](Frame &f) -> int { return f.app->ctx_synchronize(); }},
    {"cudaGetLastError",
     [](Frame &) -> int { return runtime().get_last_error ? runtime().get_last_error() : 0; }},
    // None of these handlers leaves one.
    {"cudaPeekAtLastError", [](Frame &) { return 0; }},
    {"cuCtxCreate", answer_any},
    {"cudaIpcOpenMemHandle", answer_any},
    {"cudaPushCallConfiguration",
     [](Frame &) -> int {
         pushed++;
         return 0;
     }},
    {"cudaPopCallConfiguration",
     [](Frame &) -> int {
         const bool none = pushed == 0;
         pushed -= none ? 0 : 1;
         return none ? 52 : 0;
     }},
    {"__cudaRegisterFunction",
     [](Frame &f) -> int {
         work.met += work.registering++ != 0;
         usleep(100);
         work.registering--;
         f.out.bytes.resize(f.get<std::uint64_t>());
         work.registered++;
         return -1;
     }},
    {"cudaUnregisterFatBinary", waits_at_the_gate},
    {"cudaMemcpyFromSymbol", waits_at_the_gate},
    {"throws", [](Frame &) -> int { throw std::runtime_error("thrown by a handler"); }},
};
