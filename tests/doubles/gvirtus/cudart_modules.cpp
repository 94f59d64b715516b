// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Modules that are registered, their kernels, and launches of these.
#include "tests/doubles/cuda/driver.h"
#include "tests/doubles/gvirtus/cudart_internal.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

EXPORTED int stub_launch(void *to, const void *from, std::size_t n, void *stream)
{
    void *arguments[] = {&to, &from, &n};
    return cudaLaunchKernel(&stub_kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, stream);
}

static std::atomic<std::uint64_t> launches;

EXPORTED std::uint64_t stub_launches()
{
    return launches;
}

EXPORTED char stub_kernel = 0;

static std::atomic<bool> hold_registered, holds_registered;

EXPORTED void stub_hold_registered(bool held)
{
    hold_registered = held;
    holds_registered = false;
}

EXPORTED bool stub_holds_registered()
{
    return holds_registered;
}

static std::atomic<std::uint64_t> functions;

EXPORTED std::uint64_t stub_functions()
{
    return functions;
}

static std::size_t registered_bytes;

EXPORTED void stub_registers(std::size_t n)
{
    registered_bytes = n;
}

// A request that begins with the module's name; its exit code.
static int tell_of(void **module, const char *call, const Body &more = Body())
{
    char name[24];
    Body body;
    if (!registered_bytes)
        return 0;
    std::snprintf(name, sizeof(name), "%p", static_cast<void *>(module));
    body.string(name);
    append(&body.bytes, more.bytes.data(), more.bytes.size());
    return mine()->call(call, body);
}

// What was registered: a letter for each module, end of a module, kernel and variable.
static std::string registered;

EXPORTED const char *stub_registered()
{
    return registered.c_str();
}

// What nvcc's code passes: a fat binary. Each of its images has a head.
struct Wrapper {
    std::uint32_t magic, version;
    const char *fat;
};

static bool is_fat(const Wrapper *w)
{
    return w->magic == 0x466243b1 && !std::memcmp(w->fat, "\x50\xed\x55\xba", 4);
}

// The value at this offset in the head of each image.
template <typename Value> static std::vector<Value> of_images(const Wrapper *w, std::size_t place)
{
    std::vector<Value> all;
    std::uint64_t length, bytes;
    std::uint32_t head;
    std::memcpy(&length, w->fat + 8, sizeof(length));
    for (const char *at = w->fat + 16, *end = at + length; at < end; at += head + bytes) {
        std::memcpy(&head, at + 4, sizeof(head));
        std::memcpy(&bytes, at + 8, sizeof(bytes));
        if (head < 64)
            break; // not the head of an image
        Value value;
        std::memcpy(&value, at + place, sizeof(value));
        all.push_back(value);
    }
    return all;
}

// As G5, which cannot read images compressed by Zstandard, and does not load a module with an image
// that it cannot read.
static bool is_compressed(const Wrapper *w)
{
    for (std::uint64_t uncompressed : of_images<std::uint64_t>(w, 56)) {
        if (uncompressed)
            return true;
    }
    return false;
}

// As G5, which finds the arguments of kernels only in cubins.
static bool has_cubin(const Wrapper *w)
{
    for (std::uint16_t kind : of_images<std::uint16_t>(w, 0)) {
        if (kind == 2)
            return true;
    }
    return false;
}

extern "C" void **__cudaRegisterFatBinary(void *);
extern "C" EXPORTED void **__cudaRegisterFatBinary(void *wrapper)
{
    Body module;
    const auto *w = static_cast<const Wrapper *>(wrapper);
    if (is_fat(w) && is_compressed(w))
        return nullptr;
    registered += 'M';
    module.bytes.resize(registered_bytes);
    const int rc = tell_of(static_cast<void **>(wrapper), "cudaRegisterFatBinary", module);
    return rc == 999 ? nullptr : static_cast<void **>(wrapper);
}

extern "C" void __cudaRegisterFatBinaryEnd(void **);
extern "C" EXPORTED void __cudaRegisterFatBinaryEnd(void **module)
{
    for (holds_registered = true; hold_registered;)
        usleep(100);
    registered += 'E';
    tell_of(module, "cudaRegisterFatBinaryEnd");
}

extern "C" void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *,
                                       void *, void *, void *, int *);
// Kernels of modules: each is the one kernel that exists. The value: whether its arguments are
// known.
static std::mutex launchable_lock;
static std::map<const void *, bool> launchable;
static std::map<const void *, int> attributes_fail; // with this error, unless it is 0

static std::atomic<bool> takes_for_another;

EXPORTED void stub_takes_for_another(bool takes)
{
    takes_for_another = takes;
}

extern "C" EXPORTED void __cudaRegisterFunction(void **module, const char *function, char *,
                                                const char *name, int, void *, void *, void *,
                                                void *, int *)
{
    registered += std::string("k(") + name + ")";
    functions++;
    if (!std::strcmp(name, STUB_LARGE_KERNEL)) {
        std::lock_guard<std::mutex> guard(launchable_lock);
        attributes_fail[function] = 2; // cudaErrorMemoryAllocation
    }
    if (!std::strcmp(name, STUB_STRANGE_KERNEL)) {
        std::lock_guard<std::mutex> guard(launchable_lock);
        attributes_fail[function] = 98; // cudaErrorInvalidDeviceFunction
        launchable[function] = false;   // CUDA does not know it either, since it cannot compile it
        mine()->call("cudaTestRegisterFunction", Body().u64(0));
    }
    if (!std::strcmp(name, STUB_LIBRARY_KERNEL)) {
        std::lock_guard<std::mutex> guard(launchable_lock);
        attributes_fail.erase(function); // of one that was unloaded
        const auto *w = reinterpret_cast<const Wrapper *>(module);
        const bool known = !is_fat(w) || has_cubin(w);
        launchable[function] = known;
        if (!known)
            mine()->call("cudaTestRegisterFunction", Body().u64(number(function)));
    }
    Body body;
    body.u64(function == &stub_kernel ? IBX_DOUBLE_KERNEL : number(function));
    tell_of(module, "cudaRegisterFunction", body.string(name).string(name).u64(0).u64(0));
}

extern "C" void __cudaRegisterVar(void **, char *, char *, const char *, int, std::size_t, int,
                                  int);
extern "C" EXPORTED void __cudaRegisterVar(void **module, char *, char *, const char *name, int,
                                           std::size_t n, int constant, int)
{
    Body body;
    tell_of(module, "cudaRegisterVar", body.string("0x1000").string(name).string(name));
    registered += std::string("v(") + name + "," + std::to_string(n) + (constant ? ",c" : "") + ")";
}

static std::atomic<std::uint64_t> unloads;

EXPORTED std::uint64_t stub_unloads()
{
    return unloads;
}

extern "C" EXPORTED void __cudaUnregisterFatBinary(void **module)
{
    unloads++;
    tell_of(module, "cudaUnregisterFatBinary");
}

EXPORTED int cudaLaunchKernel(const void *function, StubDim3 grid, StubDim3 block, void **arguments,
                              std::size_t shared, void *stream)
{
    Body body, in;
    const std::uint64_t wide = number(function) - IBX_DOUBLE_WIDE;
    const bool is_wide = wide && wide <= IBX_DOUBLE_WIDEST;
    launches++;
    launchable_lock.lock();
    const auto known = launchable.find(function);
    const bool is_library = known != launchable.end();
    const bool other = is_library && takes_for_another;
    const bool knows = !is_library || known->second || other;
    launchable_lock.unlock();
    if (!knows)
        throw std::runtime_error("device function not found");
    if (function != &stub_kernel && !is_library && !is_wide)
        return 98; // cudaErrorInvalidDeviceFunction
    for (int i = 0; i < (other ? 2 : 3) && !is_wide; i++)
        in.u64(*static_cast<std::uint64_t *>(arguments[i]));
    if (is_wide && wide <= STUB_WIDE_KNOWN) {
        in.bytes.resize((8 + wide + 3) / 4 * 4 + 4);
        std::memcpy(&in.bytes[0], arguments[0], 8);
        std::memcpy(&in.bytes[8], arguments[1], wide);
        std::memcpy(&in.bytes[in.bytes.size() - 4], arguments[2], 4);
    }
    body.u64(is_wide ? number(function) : IBX_DOUBLE_KERNEL);
    for (const StubDim3 &size : {grid, block}) {
        for (unsigned one : {size.x, size.y, size.z})
            body.i32(static_cast<std::int32_t>(one));
    }
    body.u64(shared).u64(number(stream)).host(in.bytes.data(), in.bytes.size());
    return mine()->call("cudaLaunchKernel", body);
}

extern "C" int cudaFuncGetAttributes(void *, const void *);
extern "C" EXPORTED int cudaFuncGetAttributes(void *, const void *function)
{
    std::lock_guard<std::mutex> guard(launchable_lock);
    return attributes_fail[function];
}

// As in G5, which has no __cudaRegisterManagedVar.
extern "C" char __cudaInitModule(void **);
extern "C" EXPORTED char __cudaInitModule(void **)
{
    return 1;
}
