// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API: memory that is made apart from its addresses, and mapped there.
#include "tests/gvirtus/application_driver.h"

#include <cstdint>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

namespace
{

int create(Address *handle, std::size_t n)
{
    const MappedProperties properties;
    return cu("cuMemCreate", handle, n, &properties, 0ull);
}
int reserve(Address *address, std::size_t n, std::size_t alignment = 0)
{
    return cu("cuMemAddressReserve", address, n, alignment, Address{0}, 0ull);
}
int map(Address address, std::size_t n, Address handle, std::size_t offset = 0)
{
    return cu("cuMemMap", address, n, offset, handle, 0ull);
}
int unmap(Address address, std::size_t n)
{
    return cu("cuMemUnmap", address, n);
}
int set_access(Address address, std::size_t n)
{
    const MappedAccess access;
    return cu("cuMemSetAccess", address, n, &access, std::size_t{1});
}
int release(Address handle)
{
    return cu("cuMemRelease", handle);
}
int free_addresses(Address address, std::size_t n)
{
    return cu("cuMemAddressFree", address, n);
}
int pointer(void *answer, int attribute, Address address)
{
    return cu("cuPointerGetAttribute", answer, attribute, address);
}

bool nothing_left()
{
    const auto stats = stub_remote()->stats();
    return HOLDS(stats.reservations == 0 && stats.mappable == 0);
}

} // namespace

// Two pieces side by side, one for copies, sets and kernels; then one of them elsewhere.
bool driver_maps_memory()
{
    void *context = nullptr;
    std::size_t each = 0, n = 0;
    Address at = 0, one = 0, other = 0, same = 0, base = 0;
    const MappedProperties properties;
    REQUIRE(driver_has_context(&context));
    REQUIRE(cu("cuMemGetAllocationGranularity", &each, &properties, 0) == 0 && each == 2u << 20);
    REQUIRE(reserve(&at, 8 * each) == 0 && create(&one, each) == 0 &&
            create(&other, 2 * each) == 0);
    REQUIRE(one != other && map(at, each, one) == 0 && map(at + each, 2 * each, other) == 0);
    REQUIRE(set_access(at, 3 * each) == 0);
    // As other memory, across both.
    const std::vector<char> bytes = random_bytes(2 * each, 21);
    std::vector<char> back(bytes.size());
    const auto write = [&](Address to) {
        return cu("cuMemcpyHtoD_v2", to, static_cast<const void *>(bytes.data()), bytes.size());
    };
    const auto reads = [&](Address from) {
        back.assign(back.size(), 'x');
        return cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), from, back.size()) == 0 &&
               back == bytes;
    };
    REQUIRE(write(at + 777) == 0 && reads(at + 777));
    REQUIRE(cudaMemcpy(reinterpret_cast<void *>(at + 999), bytes.data(), bytes.size(), DEFAULT) ==
            0);
    REQUIRE(reads(at + 999));
    REQUIRE(cu("cuMemsetD32Async", at + each - 400, 0x01020304u, std::size_t{200},
               static_cast<void *>(nullptr)) == 0);
    REQUIRE(cu("cuMemcpyDtoH_v2", static_cast<void *>(back.data()), at + each - 400,
               std::size_t{800}) == 0);
    for (std::size_t i = 0; i < 800; i += 4)
        REQUIRE(!std::memcmp(&back[i], "\4\3\2\1", 4));
    // What it is.
    int type = 0, device = 9, access = 0;
    std::uint64_t id = 0, size = 0, begin = 0;
    REQUIRE(pointer(&type, 2, at + each) == 0 && type == 2);
    REQUIRE(pointer(&device, 9, at + each) == 0 && device == 0);
    REQUIRE(pointer(&access, 16, at + each) == 0 && access == 3);
    REQUIRE(pointer(&begin, 11, at + each) == 0 && begin == at);
    REQUIRE(pointer(&size, 12, at + each) == 0 && size == 8 * each);
    REQUIRE(pointer(&size, 18, at + each + 5) == 0 && size == 2 * each);
    REQUIRE(pointer(&begin, 19, at + each + 5) == 0 && begin == at + each);
    REQUIRE(pointer(&id, 1, at + each) == 0 && !id); // it is in no context
    REQUIRE(pointer(&id, 7, at + each) == 0 && id && pointer(&type, 2, at + 3 * each) == 1);
    REQUIRE(cu("cuMemGetAddressRange_v2", &base, &n, at + each + 9) == 0 && base == at + each &&
            n == 2 * each);
    REQUIRE(cu("cuMemGetAddressRange_v2", &base, &n, at + 3 * each) == 500);
    unsigned long long flags = 0;
    const MappedLocation location;
    REQUIRE(cu("cuMemGetAccess", &flags, &location, at + each) == 0 && flags == 3);
    REQUIRE(write(at + 2 * each) == 1); // beyond what is mapped
    // Handles are counted; memory stays as long as it is mapped.
    MappedProperties told;
    told.device = 7;
    REQUIRE(cu("cuMemRetainAllocationHandle", &same, reinterpret_cast<void *>(at + 5)) == 0);
    REQUIRE(same == one && release(one) == 0 && release(same) == 0 && release(one) == 1);
    REQUIRE(cu("cuMemGetAllocationPropertiesFromHandle", &told, other) == 0 && told.type == 1 &&
            told.device == 0);
    REQUIRE(write(at) == 0 && reads(at));
    REQUIRE(unmap(at, 3 * each) == 0 && write(at) == 1);
    REQUIRE(stub_remote()->stats().mappable == 1);
    REQUIRE(map(at + 5 * each, 2 * each, other) == 0 && set_access(at + 5 * each, 2 * each) == 0);
    REQUIRE(write(at + 5 * each) == 0 && reads(at + 5 * each));
    REQUIRE(unmap(at + 5 * each, 2 * each) == 0 && release(other) == 0);
    REQUIRE(free_addresses(at, 8 * each) == 0 && nothing_left());
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// Here a reset takes mapped memory, too: nothing of it is known any more, and other memory may get
// its addresses.
bool driver_maps_until_reset()
{
    void *context = nullptr, *memory = nullptr;
    std::size_t n = 0;
    Address at = 0, one = 0, base = 0, none = 0;
    int type = 0;
    unsigned long long flags = 0;
    const std::size_t each = 2u << 20;
    const MappedLocation location;
    REQUIRE(driver_has_context(&context));
    REQUIRE(reserve(&at, 4 * each) == 0 && create(&one, each) == 0 && map(at, each, one) == 0);
    REQUIRE(set_access(at, each) == 0 && cu("cuDevicePrimaryCtxReset_v2", 0) == 0);
    REQUIRE(nothing_left());
    for (const Address address : {at, at + each}) { // mapped, and not
        REQUIRE(cu("cuMemGetAddressRange_v2", &base, &n, address) == 500);
        REQUIRE(pointer(&type, 2, address) == 1);
    }
    flags = 9;
    REQUIRE(cu("cuMemGetAccess", &flags, &location, at) == 1 && flags == 0);
    REQUIRE(cu("cuMemRetainAllocationHandle", &none, reinterpret_cast<void *>(at)) == 1);
    REQUIRE(release(one) == 1 && unmap(at, each) == 1 && free_addresses(at, 4 * each) == 1);
    // What is made now is what it is, wherever it lies.
    for (int i = 0; i < 8; i++) {
        REQUIRE(cudaMalloc(&memory, each) == 0);
        const Address is = reinterpret_cast<Address>(memory);
        REQUIRE(cu("cuMemGetAddressRange_v2", &base, &n, is + 5) == 0 && base == is && n == each);
        REQUIRE(pointer(&type, 2, is) == 0 && type == 2 && pointer(&none, 11, is) == 0);
        REQUIRE(none == is);
    }
    REQUIRE(cu("cuDevicePrimaryCtxReset_v2", 0) == 0);
    return HOLDS(cu("cuCtxDestroy_v2", context) == 0 && cudaGetLastError() == 0);
}

// A wrong call returns an error, and changes nothing.
bool driver_maps_nothing()
{
    void *context = nullptr, *found = nullptr;
    const std::size_t each = 2u << 20;
    Address at = 0, one = 0, none = 0;
    REQUIRE(driver_has_context(&context));
    REQUIRE(reserve(&at, 5) == 1 && reserve(&at, each, 3) == 1 && reserve(&at, 0) == 1);
    REQUIRE(create(&none, 5) == 1 && create(&none, 0) == 1 && !none);
    REQUIRE(reserve(&at, std::size_t{1} << 60) == 2);
    MappedProperties to_share, of_host;
    to_share.handles = 8; // over a fabric
    of_host.at = 2;
    REQUIRE(cu("cuMemCreate", &none, each, static_cast<const MappedProperties *>(&to_share),
               0ull) == 801);
    REQUIRE(cu("cuMemCreate", &none, each, static_cast<const MappedProperties *>(&of_host), 0ull) ==
            801);
    to_share.handles = 1; // by a descriptor, as PyTorch wants it
    REQUIRE(cu("cuMemCreate", &none, each, static_cast<const MappedProperties *>(&to_share),
               0ull) == 0);
    REQUIRE(cu("cuMemGetAllocationPropertiesFromHandle", &of_host, none) == 0);
    REQUIRE(of_host.handles == 1 && of_host.at == 1 && release(none) == 0);
    REQUIRE(reserve(&at, 4 * each) == 0 && create(&one, 2 * each) == 0);
    REQUIRE(map(at + 3 * each, 2 * each, one) == 1); // beyond the end
    REQUIRE(map(at - 2 * each, 2 * each, one) == 1); // before the beginning
    REQUIRE(map(at, each, one) == 801);              // a part
    REQUIRE(map(at, 2 * each, one, each) == 801);
    REQUIRE(map(at, 2 * each, one + 1) == 1 && map(at, 2 * each, 0) == 1);
    REQUIRE(map(at + 5, 2 * each, one) == 1);
    REQUIRE(map(at, 2 * each, one) == 0 && map(at + each, 2 * each, one) == 1);
    REQUIRE(set_access(at, each) == 1 && set_access(at, 4 * each) == 1);
    REQUIRE(cu("cuMemsetD8_v2", at, static_cast<unsigned char>(1), std::size_t{9}) == 1);
    REQUIRE(set_access(at, 2 * each) == 0);
    REQUIRE(unmap(at, each) == 1 && unmap(at + each, 2 * each) == 1 && unmap(at, 5 * each) == 1);
    REQUIRE(unmap(at + 2 * each, each) == 0); // nothing, as natively
    REQUIRE(free_addresses(at, 4 * each) == 1 && free_addresses(at, each) == 1);
    REQUIRE(cu("cuMemFree_v2", at) == 1);
    REQUIRE(cu("cuMemFreeAsync", at, static_cast<void *>(nullptr)) == 1);
    unsigned char handle[64];
    REQUIRE(cu("cuIpcGetMemHandle", static_cast<void *>(handle), at) == 1);
    int status = -1;
    REQUIRE(cu("cuGetProcAddress_v2", "cuMemCreate", &found, 12000, 0ull, &status) == 0 &&
            found == dlsym(RTLD_DEFAULT, "cuMemCreate"));
    REQUIRE(cu("cuMemsetD8_v2", at, static_cast<unsigned char>(1), std::size_t{9}) == 0);
    // A child has none of it, and what it makes is its own.
    const pid_t child = fork();
    if (!child) {
        Address own = 0;
        const bool alone = driver_has_context(&context) && release(one) == 1 &&
                           unmap(at, 2 * each) == 1 && map(at + 2 * each, 2 * each, one) == 1 &&
                           free_addresses(at, 4 * each) == 1 && create(&own, each) == 0;
        _exit(alone ? 0 : 1);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(cu("cuMemsetD8_v2", at, static_cast<unsigned char>(1), std::size_t{9}) == 0);
    REQUIRE(unmap(at, 4 * each) == 0 && free_addresses(at, 4 * each) == 0);
    REQUIRE(free_addresses(at, 4 * each) == 1 && release(one) == 0);
    // The back end gives back what the child has left a little later.
    while (stub_remote()->stats().mappable)
        usleep(1000);
    return HOLDS(nothing_left() && cudaGetLastError() == 0);
}
