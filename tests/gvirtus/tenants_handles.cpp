// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Handles that requests name for GVirtuS's handlers of libraries and of the driver. Those here
// answer with the body that they get.
#include "tests/gvirtus/tenants_scene.h"

#include <algorithm>
#include <cstring>

namespace
{

constexpr std::uint64_t invented = 0x7f00'1234'5670;

// 8 bytes that the handler gets there; `invented`: it gets none.
std::uint64_t passed(Client *client, const char *name, const Body &body, std::size_t at)
{
    std::uint64_t value = invented;
    if (client->remote.call(name, body) == 0 && client->remote.out.size() >= 8 + at + 8)
        std::memcpy(&value, client->remote.out.data() + 8 + at, 8);
    return value;
}

// A handler makes something, if its request has a byte.
std::uint64_t made(Client *client, const char *name)
{
    return client->remote.address(name, Body().i32(1));
}

std::uint64_t function_of(Client *client, std::uint64_t module)
{
    return client->remote.address("cuModuleGetFunction", Body().string("kernel").u64(module));
}

std::uint64_t launched(Client *client, std::uint64_t function)
{
    Body body;
    body.u64(function);
    for (int i = 0; i < 7; i++)
        body.i32(1);
    return passed(client, "cuLaunchKernel", body.u64(0).u64(0).u64(0), 0);
}

bool made_up_modules()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), beside(back, "alice"), bob(back, "bob");
    const std::uint64_t module = made(&alice, "cuModuleLoadData");
    const std::uint64_t function = function_of(&alice, module);
    REQUIRE(module && function && launched(&alice, function) == function);
    REQUIRE(launched(&beside, function) == function);
    REQUIRE(launched(&bob, function) == 0 && launched(&alice, invented) == 0);
    REQUIRE(launched(&alice, module) == 0 && launched(&alice, 0) == 0);
    const std::string name = "variable";
    for (Client *client : {&alice, &bob}) {
        const std::uint64_t got = passed(client, "cuModuleGetGlobal",
                                         Body().string(name).u64(module), 16 + name.size() + 1);
        REQUIRE(got == (client == &alice ? module : 0));
    }
    const Body attribute = Body().u64(4).i32(0).i32(1).u64(function);
    REQUIRE(passed(&alice, "cuFuncGetAttribute", attribute, 16) == function);
    REQUIRE(passed(&bob, "cuFuncGetAttribute", attribute, 16) == 0);
    const Body none = Body().u64(0).i32(1).u64(function);
    REQUIRE(passed(&alice, "cuFuncGetAttribute", none, 12) == function);
    REQUIRE(passed(&bob, "cuFuncGetAttribute", none, 12) == 0);
    REQUIRE(passed(&alice, "cuTexRefGetFlags", Body().u64(function), 0) == 0);
    // What is in a module ends with it.
    REQUIRE(passed(&bob, "cuModuleUnload", Body().u64(module), 0) == 0);
    REQUIRE(launched(&alice, function) == function);
    REQUIRE(passed(&alice, "cuModuleUnload", Body().u64(module), 0) == module);
    REQUIRE(launched(&alice, function) == 0);
    return HOLDS(passed(&alice, "cuModuleUnload", Body().u64(module), 0) == 0 && back.alive());
}

// A module with a function that is launched while somebody captures stays: a graph may have it.
bool captured_modules()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), beside(back, "alice");
    const std::uint64_t module = made(&alice, "cuModuleLoadData"),
                        other = made(&alice, "cuModuleLoadData"),
                        stream = alice.remote.stream_create();
    const std::uint64_t functions[] = {function_of(&alice, module), function_of(&alice, other)};
    REQUIRE(module && other && stream && launched(&alice, functions[1]) == functions[1]);
    REQUIRE(beside.remote.call("cudaStreamBeginCapture", Body().u64(stream).i32(2)) == 0);
    REQUIRE(launched(&alice, functions[0]) == functions[0]);
    REQUIRE(beside.remote.call("cudaStreamEndCapture", Body().u64(stream)) == 0);
    REQUIRE(passed(&alice, "cuModuleUnload", Body().u64(module), 0) == 0);
    REQUIRE(launched(&alice, functions[0]) == functions[0]);
    return HOLDS(passed(&alice, "cuModuleUnload", Body().u64(other), 0) == other && back.alive());
}

// The place of a module behind a string that is so long that the sum of both wraps around. What is
// overwritten there would be the string's length, and the handler would find the module elsewhere.
bool wrapped_strings()
{
    TenantsBackEnd back;
    for (std::uint64_t length : {-std::uint64_t{16}, -std::uint64_t{12}, -std::uint64_t{8}, ~0ul}) {
        Client alice(back, "alice");
        REQUIRE(made(&alice, "cuModuleLoadData"));
        const Body body = Body().u64(length).u64(1).u64(invented).u64(invented);
        REQUIRE(alice.remote.call("cuModuleGetGlobal", body) == gone);
    }
    return HOLDS(back.alive());
}

// Logs of modules are empty, in the form that GVirtuS's front end reads; and the module is known.
bool empty_logs()
{
    constexpr int log = 3, bytes = 4, last = 0;
    TenantsBackEnd back;
    Client alice(back, "alice");
    const std::vector<char> &out = alice.remote.out;
    const auto number = [&out](std::size_t at) {
        std::uint64_t value = 0;
        std::memcpy(&value, out.data() + at, sizeof(value));
        return value;
    };
    REQUIRE(alice.remote.call("cudaGetLastError", Body()) == 0);
    Body load;
    load.i32(3).u64(12).i32(log).i32(bytes).i32(last).string("PTX");
    for (int i = 0; i < 3; i++)
        load.u64(8).u64(0x1000);
    REQUIRE(alice.remote.call("cuModuleLoadDataEx", load) == 0 && out.size() == 8 + 3 * 16);
    const std::uint64_t module = number(0);
    REQUIRE(number(8) == std::uint64_t{4} << 32 && number(16) == 0); // no log; its length: 4 bytes
    const std::uint64_t function = function_of(&alice, module);
    REQUIRE(function && launched(&alice, function) == function);
    REQUIRE(alice.remote.call("cuModuleLoadDataEx", load) == 0);
    // The next reply is as its handler gives it.
    REQUIRE(alice.remote.call("testSameReply", Body()) == 0);
    return HOLDS(out.size() == 56 && number(8) == 8 && number(16) == 0x7ffc'0000'1000);
}

bool made_up_contexts()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    const std::uint64_t context = made(&alice, "cuCtxGetCurrent");
    for (Client *client : {&alice, &bob}) { // it is a device's own
        REQUIRE(passed(client, "cuCtxSetCurrent", Body().u64(context), 0) == context);
        REQUIRE(passed(client, "cuCtxSetCurrent", Body().u64(invented), 0) == 0);
        REQUIRE(passed(client, "cuCtxDestroy", Body().u64(context), 0) == 0);
    }
    // Handlers of cuCtxAttach return where the client's request is.
    const std::uint64_t request = made(&alice, "cuCtxAttach");
    REQUIRE(request && passed(&alice, "cuCtxSetCurrent", Body().u64(request), 0) == 0);
    return HOLDS(back.alive());
}

Body shape(std::uint64_t tensor)
{
    return Body().u64(tensor).i32(0).i32(0).i32(1).i32(1).i32(1).i32(1);
}

// cuDNN follows what it gets.
bool library_descriptors()
{
    TenantsBackEnd back;
    Client alice(back, "alice");
    const std::uint64_t tensor = made(&alice, "cudnnCreateTensorDescriptor");
    const std::uint64_t handle = made(&alice, "cudnnCreate");
    REQUIRE(passed(&alice, "cudnnSetTensor4dDescriptor", shape(tensor), 0) == tensor);
    for (const std::uint64_t other : {invented, handle, tensor, std::uint64_t{0}}) {
        Client bob(back, "bob");
        REQUIRE(bob.remote.call("cudnnSetTensor4dDescriptor", shape(other)) == gone);
    }
    { // the second handle
        Client beside(back, "alice");
        const Body body = Body().u64(handle).u64(invented).u64(tensor);
        REQUIRE(beside.remote.call("cudnnActivationForward", body) == gone);
    }
    // Programs may destroy what a reset has ended.
    REQUIRE(passed(&alice, "cudnnDestroyTensorDescriptor", Body().u64(invented), 0) == 0);
    REQUIRE(passed(&alice, "cudnnDestroyTensorDescriptor", Body().u64(tensor), 0) == tensor);
    REQUIRE(passed(&alice, "cudnnDestroyTensorDescriptor", Body().u64(tensor), 0) == 0);
    const std::uint64_t operation = made(&alice, "cublasLtMatmulDescCreate");
    const Body attribute = Body().u64(operation).i32(0).u64(4).u64(4).i32(1);
    REQUIRE(passed(&alice, "cublasLtMatmulDescSetAttribute", attribute, 0) == operation);
    Client bob(back, "bob");
    REQUIRE(bob.remote.call("cublasLtMatmulDescSetAttribute", attribute) == gone);
    return HOLDS(alice.remote.call("cudaGetLastError", Body()) == 0 && back.alive());
}

// What cuDNN writes to need not be set.
bool attributes_to_write()
{
    constexpr int name = 1, handle = 0, parts = 15;
    TenantsBackEnd back;
    Client alice(back, "alice");
    const std::uint64_t graph = made(&alice, "cudnnBackendCreateDescriptor");
    const auto get = [&](int type) {
        return Body().u64(graph).i32(name).i32(type).u64(1).u64(8).u64(invented);
    };
    REQUIRE(passed(&alice, "cudnnBackendGetAttribute", get(handle), 0) == graph);
    return HOLDS(alice.remote.call("cudnnBackendGetAttribute", get(parts)) == gone && back.alive());
}

// Descriptors and devices of NVML are in no context, and do not end with any.
bool without_context()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    REQUIRE(alice.remote.call("cudaTestNoContext", Body()) == 0);
    const std::uint64_t tensor = made(&alice, "cudnnCreateTensorDescriptor");
    const std::uint64_t graph = made(&alice, "cudnnBackendCreateDescriptor");
    const std::uint64_t device = made(&alice, "nvmlDeviceGetHandleByIndex");
    const std::uint64_t operation = made(&alice, "cublasLtMatmulDescCreate");
    const auto all_known = [&] {
        REQUIRE(passed(&alice, "nvmlDeviceGetTemperature", Body().u64(8).u64(device).i32(64), 8) ==
                device);
        REQUIRE(passed(&alice, "cublasLtMatmulDescSetAttribute",
                       Body().u64(operation).i32(0).u64(4).u64(4).i32(1), 0) == operation);
        REQUIRE(passed(&alice, "cudnnBackendGetAttribute",
                       Body().u64(graph).i32(1).i32(1).u64(0).u64(0), 0) == graph);
        return passed(&alice, "cudnnSetTensor4dDescriptor", shape(tensor), 0) == tensor;
    };
    REQUIRE(all_known());
    const std::uint64_t context = made(&bob, "cuCtxCreate");
    REQUIRE(context && passed(&bob, "cuCtxDestroy", Body().u64(context), 0) == context);
    REQUIRE(all_known());
    bob.over->Close();
    REQUIRE(alice.remote.reset() == 0 && all_known());
    return HOLDS(back.alive());
}

bool nvml_devices()
{
    TenantsBackEnd back;
    Client alice(back, "alice"), bob(back, "bob");
    const std::uint64_t device = made(&alice, "nvmlDeviceGetHandleByIndex");
    for (Client *client : {&alice, &bob})
        REQUIRE(passed(client, "nvmlDeviceGetTemperature", Body().u64(8).u64(device).i32(64), 8) ==
                device);
    REQUIRE(bob.remote.call("nvmlDeviceGetTemperature", Body().u64(8).u64(invented).i32(64)) ==
            gone);
    return HOLDS(alice.remote.call("cudaGetLastError", Body()) == 0 && back.alive());
}

// What handlers of libraries send although nothing has set it.
bool unset()
{
    TenantsBackEnd back;
    Client alice(back, "alice");
    const auto has = [&alice](char c) {
        return std::count(alice.remote.out.begin(), alice.remote.out.end(), c) != 0;
    };
    REQUIRE(alice.remote.call("curandGenerateUniform", Body().u64(0).u64(64)) == 103);
    REQUIRE(alice.remote.out.size() == 8 + 256 && !has('g'));
    REQUIRE(alice.remote.call("nvmlSystemGetDriverVersion", Body().i32(256)) == 0);
    return HOLDS(alice.remote.out.size() == 8 + 256 && !has('g') && has('5'));
}

// A null where a handler's code follows it, and an end where cuBLAS refuses none.
bool blas_and_plans()
{
    TenantsBackEnd back;
    Client alice(back, "alice");
    const Body body = Body().u64(invented).u64(0).u64(0);
    REQUIRE(passed(&alice, "cublasSgemm_v2", body, 0) == 0);
    REQUIRE(alice.remote.call("cufftExecC2C", Body().i32(77).u64(1).u64(2).i32(1)) == 0);
    std::int32_t plan = 0;
    std::memcpy(&plan, alice.remote.out.data() + 8, sizeof(plan));
    return HOLDS(plan == -1 && back.alive());
}

} // namespace

void check_tenants_handles()
{
    check("modules, and functions in them, that were made up", made_up_modules);
    check("modules whose functions were captured", captured_modules);
    check("modules of which a log is wanted", empty_logs);
    check("... contexts", made_up_contexts);
    check("... descriptors of libraries", library_descriptors);
    check("... devices of NVML", nvml_devices);
    check("... behind strings that are too long", wrapped_strings);
    check("memory for attributes of cuDNN need not be set", attributes_to_write);
    check("what is in no context does not end with one", without_context);
    check("... handles of cuBLAS, and plans", blas_and_plans);
    check("memory that nothing has set is sent by no handler of a library", unset);
}
