// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Libraries of kernels that the program loads.
#include "tests/gvirtus/application.h"
#include "tests/gvirtus/cubin.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>
#include <unistd.h>

// A cubin with the kernel that the double has, another kernel, a function and a variable.
std::vector<char> library_cubin()
{
    Cubin cubin;
    const Elf64_Section code = cubin.section(".text", SHT_PROGBITS, std::string(8, '\0')),
                        zeros = cubin.section(".nv.global", SHT_NOBITS, std::string(8, '\0'));
    cubin.symbol(STUB_LIBRARY_KERNEL, STT_FUNC, code, 8, 0, Cubin::entry);
    cubin.symbol("other", STT_FUNC, code, 8, 0, Cubin::entry);
    cubin.symbol("function", STT_FUNC, code, 8);
    cubin.symbol("v1.16.8", STT_OBJECT, zeros, 8);
    cubin.symbol("v2.4096.100", STT_OBJECT, zeros, 100, 8);
    return cubin.image();
}

namespace
{

constexpr std::size_t library_bytes = 5000;

const char ptx[] = "// .entry none(\n.version 9.0\n.target sm_90a\n.address_size 64\n/* .entry "
                   "two */ .visible .entry " STUB_LIBRARY_KERNEL
                   "(.param .u64 a, .param .u64 b, .param .align 8 .b8 c[8])\n{\n ret;\n}";

// Compressed by Zstandard, as by nvcc's default; here as one block that is stored as it is.
std::string zstandard(const std::string &bytes)
{
    const auto number = [](std::size_t value, unsigned count) {
        return std::string(reinterpret_cast<const char *>(&value), count);
    };
    return "\x28\xb5\x2f\xfd\xa0" + number(bytes.size(), 4) + number(bytes.size() << 3 | 1, 3) +
           bytes;
}

template <typename Value> void append(std::string &to, Value value)
{
    to.append(reinterpret_cast<const char *>(&value), sizeof(value));
}

// A fat binary of one cubin.
std::string fat_binary(const std::vector<char> &cubin, bool compressed)
{
    const std::string image(cubin.data(), cubin.size());
    std::string packed = compressed ? zstandard(image) : image, fat;
    const std::size_t packed_size = packed.size();
    packed.resize((packed_size + 7) & ~std::size_t{7});
    append<std::uint64_t>(fat, 0x0010'0001'ba55'ed50);
    append<std::uint64_t>(fat, 64 + packed.size());
    append<std::uint64_t>(fat, 64ull << 32 | 0x0101'0002);
    append<std::uint64_t>(fat, packed.size());
    append<std::uint64_t>(fat, compressed ? packed_size : 0);
    append<std::uint64_t>(fat, 8 | 1ull << 16 | 90ull << 32);
    append<std::uint64_t>(fat, 0);
    append<std::uint64_t>(fat, compressed ? 0x8011 : 0x11);
    append<std::uint64_t>(fat, 0);
    append<std::uint64_t>(fat, compressed ? image.size() : 0);
    return fat + packed;
}

int load(void **library, const void *code, unsigned options = 0)
{
    using Load = int(void **, const void *, const int *, void *const *, unsigned, const int *,
                     void *const *, unsigned);
    const int option = 0;
    return preloaded<Load>("cudaLibraryLoadData")(library, code, &option, nullptr, options, nullptr,
                                                  nullptr, 0);
}

int load_file(void **library, const char *path)
{
    using Load = int(void **, const char *, const int *, void *const *, unsigned, const int *,
                     void *const *, unsigned);
    return preloaded<Load>("cudaLibraryLoadFromFile")(library, path, nullptr, nullptr, 0, nullptr,
                                                      nullptr, 0);
}

int kernel_of(void **kernel, void *library, const char *name)
{
    return preloaded<int(void **, void *, const char *)>("cudaLibraryGetKernel")(kernel, library,
                                                                                 name);
}

int count_of(unsigned *count, void *library)
{
    return preloaded<int(unsigned *, void *)>("cudaLibraryGetKernelCount")(count, library);
}

int unload(void *library)
{
    return preloaded<int(void *)>("cudaLibraryUnload")(library);
}

// It copies bytes within the device, as the program's own kernel does.
bool launches(const void *kernel)
{
    char *device = device_memory(2 * library_bytes);
    void *to = device + library_bytes, *from = device;
    std::size_t bytes_each = library_bytes;
    void *arguments[] = {&to, &from, &bytes_each};
    std::vector<char> bytes(library_bytes);
    random_fill(bytes.data(), library_bytes, 31);
    for (unsigned i = 0; i < 3; i++) {
        bytes[i]++;
        REQUIRE(cudaMemcpy(device, bytes.data(), library_bytes, H2D) == 0);
        REQUIRE(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, nullptr) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 &&
                device_has(device + library_bytes, bytes.data(), library_bytes));
    }
    return cudaFree(device) == 0;
}

bool runs(void *library)
{
    void *kernel = nullptr;
    REQUIRE(kernel_of(&kernel, library, STUB_LIBRARY_KERNEL) == 0 && kernel && launches(kernel));
    const char *name = nullptr;
    REQUIRE(preloaded<int(const char **, const void *)>("cudaFuncGetName")(&name, kernel) == 0);
    REQUIRE(!std::strcmp(name, STUB_LIBRARY_KERNEL));
    return true;
}

// As nvcc's code registers a module.
bool registers(const void *fat)
{
    const struct {
        std::uint32_t magic, version;
        const void *fat;
        void *unused;
    } wrapper = {0x466243b1, 1, fat, nullptr};
    char kernel = 0;
    void **module = preloaded<void **(const void *)>("__cudaRegisterFatBinary")(&wrapper);
    REQUIRE(module);
    preloaded<void(void **, const char *, const char *, const char *, int, void *, void *, void *,
                   void *, int *)>("__cudaRegisterFunction")(module, &kernel, STUB_LIBRARY_KERNEL,
                                                             STUB_LIBRARY_KERNEL, -1, nullptr,
                                                             nullptr, nullptr, nullptr, nullptr);
    preloaded<void(void **)>("__cudaRegisterFatBinaryEnd")(module);
    REQUIRE(launches(&kernel));
    preloaded<void(void **)>("__cudaUnregisterFatBinary")(module);
    return true;
}

using GetVariable = int(void **, std::size_t *, void *, const char *);

bool has_variable(void *library)
{
    auto *global = preloaded<GetVariable>("cudaLibraryGetGlobal");
    void *at = nullptr;
    std::size_t bytes = 0;
    char back[8] = {};
    REQUIRE(global(&at, &bytes, library, "v1.16.8") == 0 && at && bytes == 8);
    REQUIRE(cudaMemcpy(at, "variable", 8, H2D) == 0 && cudaMemcpy(back, at, 8, D2H) == 0);
    REQUIRE(!std::memcmp(back, "variable", 8) && global(nullptr, &bytes, library, "v1.16.8") == 0);
    return HOLDS(fails(global(&at, &bytes, library, "other"), 500) &&
                 fails(global(nullptr, nullptr, library, "other"), 1));
}

// Those that are declared __managed__ (in a cubin by the bit 4 of a symbol): the program reads and
// writes them, and so do kernels.
bool has_managed()
{
    Cubin cubin;
    const Elf64_Section code = cubin.section(".text", SHT_PROGBITS, std::string(8, '\0')),
                        zeros = cubin.section(".nv.global", SHT_NOBITS, std::string(20000, '\0'));
    cubin.symbol(STUB_LIBRARY_KERNEL, STT_FUNC, code, 8, 0, Cubin::entry);
    cubin.symbol("l5.8192.5000", STT_OBJECT, zeros, 5000, 0, 4);
    cubin.symbol("l5.16000.9", STT_OBJECT, zeros, 9, 5000, 4);
    cubin.symbol("v5.100.8", STT_OBJECT, zeros, 8, 5016);
    const std::vector<char> image = cubin.image(), bytes = random_bytes(5000, 4);
    void *library = nullptr, *kernel = nullptr, *at = nullptr, *small = nullptr, *same = nullptr;
    std::size_t n = 0;
    auto *managed = preloaded<GetVariable>("cudaLibraryGetManaged");
    REQUIRE(load(&library, image.data()) == 0);
    REQUIRE(kernel_of(&kernel, library, STUB_LIBRARY_KERNEL) == 0);
    REQUIRE(fails(managed(&at, &n, library, "v5.100.8"), 500) && !at);
    REQUIRE(fails(managed(&at, &n, library, "other"), 500));
    REQUIRE(fails(managed(nullptr, nullptr, library, "l5.8192.5000"), 1));
    REQUIRE(fails(managed(&at, &n, library, nullptr), 1));
    REQUIRE(managed(&at, &n, library, "l5.8192.5000") == 0 && at && n == 5000);
    REQUIRE(managed(nullptr, &n, library, "l5.16000.9") == 0 && n == 9);
    REQUIRE(managed(&small, nullptr, library, "l5.16000.9") == 0);
    REQUIRE(static_cast<char *>(small) == static_cast<char *>(at) + 16000 - 8192);
    REQUIRE(managed(&same, nullptr, library, "l5.8192.5000") == 0 && same == at);
    REQUIRE(preloaded<GetVariable>("cudaLibraryGetGlobal")(&same, &n, library, "l5.16000.9") == 0 &&
            same == small && n == 9);
    std::uint64_t address = 0;
    REQUIRE(preloaded<int(std::uint64_t *, std::size_t *, void *, const char *)>(
                "cuLibraryGetManaged")(&address, &n, library, "l5.16000.9") == 0);
    REQUIRE(address == reinterpret_cast<std::uintptr_t>(small) && n == 9);
    // What the program writes a kernel reads, and the other way round.
    char *device = device_memory(5000);
    std::memcpy(at, bytes.data(), bytes.size());
    n = bytes.size();
    void *forth[] = {&device, &at, &n}, *back[] = {&at, &device, &n};
    REQUIRE(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, forth, 0, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device, bytes.data(), n));
    REQUIRE(cudaMemset(device, 'k', n) == 0);
    REQUIRE(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, back, 0, nullptr) == 0);
    REQUIRE(cudaDeviceSynchronize() == 0 &&
            has(static_cast<char *>(at), std::vector<char>(n, 'k')));
    REQUIRE(unload(library) == 0 && cudaFree(device) == 0);
    return HOLDS(fails(managed(&at, &n, library, "l5.8192.5000"), 400));
}

// As natively, it has no kernels, and who wants one or a variable is told why.
bool does_not_work(void *library)
{
    void *kernel = nullptr;
    std::size_t bytes = 0;
    unsigned count = 9;
    const int why = kernel_of(&kernel, library, STUB_STRANGE_KERNEL);
    REQUIRE(why != 0 && cudaGetLastError() == why && !kernel);
    REQUIRE(fails(preloaded<GetVariable>("cudaLibraryGetGlobal")(&kernel, &bytes, library, "other"),
                  why));
    REQUIRE(count_of(&count, library) == 0 && count == 0);
    REQUIRE(preloaded<int(void **, unsigned, void *)>("cudaLibraryEnumerateKernels")(&kernel, 1,
                                                                                     library) == 0);
    REQUIRE(!kernel && cudaGetLastError() == 0);
    return HOLDS(unload(library) == 0);
}

} // namespace

bool libraries()
{
    const std::vector<char> image = library_cubin();
    void *library = nullptr, *again = nullptr, *kernel = nullptr, *kernels[5] = {};
    unsigned count = 0;
    REQUIRE(load(&library, image.data()) == 0 && library);
    REQUIRE(count_of(&count, library) == 0 && count == 2);
    REQUIRE(preloaded<int(void **, unsigned, void *)>("cudaLibraryEnumerateKernels")(kernels, 5,
                                                                                     library) == 0);
    REQUIRE(kernels[0] && kernels[1] && kernels[0] != kernels[1] && !kernels[2]);
    REQUIRE(runs(library) && has_variable(library));
    REQUIRE(fails(kernel_of(&kernel, library, "function"), 500));
    REQUIRE(fails(kernel_of(&kernel, library, "library_kerne"), 500));
    REQUIRE(fails(kernel_of(&kernel, nullptr, "other"), 400));
    // The same image once more is another library.
    REQUIRE(load(&again, image.data()) == 0 && again != library && runs(again));
    const std::uint64_t unloads = stub_unloads();
    REQUIRE(unload(library) == 0 && stub_unloads() == unloads + 1 && runs(again));
    REQUIRE(fails(unload(library), 400) && fails(count_of(&count, library), 400));
    REQUIRE(fails(kernel_of(&kernel, library, "other"), 400) && unload(again) == 0);
    // PTX that CUDA at the back end cannot compile.
    const std::string strange =
        ".version 99.0\n.target sm_90a\n.entry " STUB_STRANGE_KERNEL "()\n{\n}";
    REQUIRE(load(&library, strange.data()) == 0 && does_not_work(library));
    // PTX; files.
    REQUIRE(load(&library, ptx) == 0 && count_of(&count, library) == 0 && count == 1);
    REQUIRE(runs(library) && unload(library) == 0);
    // Another kernel of that name was there before, with other arguments.
    stub_takes_for_another(true);
    REQUIRE(load(&library, ptx) == 0 && runs(library) && unload(library) == 0);
    stub_takes_for_another(false);
    // Compressed, loaded and registered.
    const std::string packed = fat_binary(image, true);
    REQUIRE(load(&library, packed.data()) == 0 && runs(library) && has_variable(library));
    REQUIRE(unload(library) == 0 && registers(fat_binary(image, false).data()));
    REQUIRE(registers(packed.data()));
    const std::string path = "/tmp/ibx-library-" + std::to_string(getpid());
    std::ofstream(path) << std::string(image.data(), image.size());
    REQUIRE(load_file(&library, path.c_str()) == 0 && runs(library) && unload(library) == 0);
    REQUIRE(truncate(path.c_str(), static_cast<off_t>(image.size()) - 20) == 0);
    REQUIRE(fails(load_file(&library, path.c_str()), 200));
    std::ofstream(path) << std::string(ptx);
    REQUIRE(load_file(&library, path.c_str()) == 0 && unload(library) == 0);
    REQUIRE(unlink(path.c_str()) == 0 && fails(load_file(&library, path.c_str()), 301));
    REQUIRE(has_managed());
    // What is wrong.
    REQUIRE(fails(load(&library, "junk junk"), 200) && fails(load(&library, image.data(), 1), 801));
    REQUIRE(fails(load(nullptr, image.data()), 1) && fails(load(&library, nullptr), 1));
    return HOLDS(cudaGetLastError() == 0);
}

// One that is loaded, used and unloaded again and again leaves nothing of its kernels here.
bool libraries_again()
{
    constexpr unsigned times = 300;
    const std::string fat = fat_binary(library_cubin(), false);
    for (unsigned i = 0; i < 20; i++)
        REQUIRE(registers(fat.data()));
    const std::size_t before = mallinfo2().uordblks;
    for (unsigned i = 0; i < times; i++)
        REQUIRE(registers(fat.data()));
    const std::size_t now = mallinfo2().uordblks, grown = now > before ? now - before : 0;
    std::fprintf(stderr, "%zu bytes for each of %u\n", grown / times, times);
    return HOLDS(grown / times < 64);
}

// Kernels whose arguments GVirtuS does not know, in a thread beside which another one loads and
// unloads a library all the time.
bool libraries_beside_unloads()
{
    constexpr unsigned rounds = 100;
    const std::vector<char> image = library_cubin();
    std::atomic<unsigned> unloads{0};
    std::atomic<bool> over{false}, broken{false};
    std::thread other([&] {
        for (void *library = nullptr; !over && !broken; unloads++)
            broken = load(&library, image.data()) || unload(library);
    });
    stub_takes_for_another(true);
    unsigned good = 0;
    for (void *library = nullptr; good < rounds && !broken; good++) {
        for (const unsigned before = unloads; unloads == before && !broken;)
            std::this_thread::yield();
        if (load(&library, ptx) || !runs(library) || unload(library))
            break;
    }
    stub_takes_for_another(false);
    over = true;
    other.join();
    return HOLDS(!broken && good == rounds);
}

// By a back end that does not say which arguments kernels have: of one that GVirtuS would launch
// with another one's no launch takes place, nor where nobody knows whether it would.
bool taken_for_another()
{
    using Launch = int(const void *, StubDim3, StubDim3, void **, std::size_t, void *);
    char *device = device_memory(2 * library_bytes);
    const std::vector<char> image = library_cubin();
    void *library = nullptr, *other = nullptr, *kernel = nullptr;
    void *to = device + library_bytes, *from = device;
    std::size_t n = library_bytes;
    void *arguments[] = {&to, &from, &n};
    const std::vector<char> bytes(n, 'a'), before(n, 'b');
    REQUIRE(cudaMemcpy(device, bytes.data(), n, H2D) == 0);
    REQUIRE(cudaMemcpy(to, before.data(), n, H2D) == 0);
    stub_takes_for_another(true);
    REQUIRE(load(&library, ptx) == 0 && kernel_of(&kernel, library, STUB_LIBRARY_KERNEL) == 0);
    for (unsigned i = 0; i < 3; i++)
        REQUIRE(fails(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, nullptr), 801));
    REQUIRE(fails(preloaded<Launch>("cudaLaunchCooperativeKernel")(kernel, {1, 1, 1}, {1, 1, 1},
                                                                   arguments, 0, nullptr),
                  801));
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device + n, before.data(), n));
    stub_takes_for_another(false);
    REQUIRE(unload(library) == 0 && load(&library, image.data()) == 0 && runs(library));
    REQUIRE(load(&other, image.data()) == 0);
    REQUIRE(kernel_of(&kernel, other, STUB_LIBRARY_KERNEL) == 0);
    REQUIRE(fails(cudaLaunchKernel(kernel, {1, 1, 1}, {1, 1, 1}, arguments, 0, nullptr), 801));
    REQUIRE(cudaDeviceSynchronize() == 0 && device_has(device + n, before.data(), n));
    REQUIRE(runs(library) && unload(library) == 0 && runs(other) && unload(other) == 0);
    return HOLDS(cudaFree(device) == 0);
}
