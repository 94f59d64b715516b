// SPDX-License-Identifier: LGPL-2.1-or-later
//
// CUDA's driver API: maps of tensors, which the double fills with what the call says.
#include "tests/gvirtus/application_driver.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace
{

struct alignas(64) Map {
    std::array<unsigned char, 128> bytes{};
    bool operator==(const Map &other) const { return bytes == other.bytes; }
};

struct Expected {
    Map map;
    std::size_t n = 0;
    template <typename T> Expected &put(T value)
    {
        std::memcpy(&map.bytes[n], &value, sizeof(value));
        n += sizeof(value);
        return *this;
    }
    Expected &bytes(std::initializer_list<unsigned char> all)
    {
        for (unsigned char byte : all)
            put(byte);
        return *this;
    }
};

constexpr std::uint64_t tensor_sizes[] = {64, 128, 7, 5, 3},
                        pitches[] = {4096, 1 << 20, 1 << 22, 1 << 24};
constexpr std::uint32_t box[] = {16, 8, 4, 2, 1}, steps[] = {1, 2, 3, 4, 5};
void *const there = reinterpret_cast<void *>(0x7f1234560010);

int tiled(void *map, unsigned rank, void *at = there)
{
    return cu("cuTensorMapEncodeTiled", map, 7, rank, at, tensor_sizes, pitches, box, steps, 1, 2,
              3, 0);
}

} // namespace

bool driver_maps_tensors()
{
    void *context = nullptr, *function = nullptr;
    Map map, same;
    int found = 9, has = 9;
    REQUIRE(cu("cuInit", 0) == 0);
    // The second device has them (its compute capability is 9.0), the first one has not.
    REQUIRE(cu("cuDeviceGetAttribute", &has, 127, 0) == 0 && has == 0);
    REQUIRE(cu("cuDeviceGetAttribute", &has, 127, 1) == 0 && has == 1);
    for (unsigned rank : {1u, 2u, 5u}) {
        Expected is;
        is.put(reinterpret_cast<std::uintptr_t>(there)).bytes({0, 7, std::uint8_t(rank)});
        for (unsigned i = 0; i < rank; i++)
            is.put(tensor_sizes[i]);
        for (unsigned i = 0; i + 1 < rank; i++)
            is.put(pitches[i]);
        for (unsigned i = 0; i < rank; i++)
            is.bytes({std::uint8_t(box[i]), std::uint8_t(steps[i])});
        is.bytes({1, 2, 3, 0});
        REQUIRE(tiled(&map, rank) == 0 && map == is.map);
    }
    // A map may be anywhere, as those of Python's objects are.
    alignas(64) std::uint8_t room[sizeof(Map) + 16] = {};
    for (const unsigned off : {1u, 8u, 16u}) {
        REQUIRE(tiled(&room[off], 5) == 0 && !std::memcmp(&room[off], &map, sizeof(map)));
        REQUIRE(cu("cuTensorMapReplaceAddress", static_cast<void *>(&room[off]), there) == 0 &&
                !std::memcmp(&room[off], &map, sizeof(map)));
    }
    REQUIRE(driver_has_context(&context));
    // The address alone.
    same = map;
    REQUIRE(cu("cuTensorMapReplaceAddress", &map, static_cast<void *>(nullptr)) == 0);
    REQUIRE(!(map == same) && cu("cuTensorMapReplaceAddress", &map, there) == 0 && map == same);
    // Corners below 0.
    const int lower[] = {-1, -2}, upper[] = {1, -2};
    Expected is;
    is.put(reinterpret_cast<std::uintptr_t>(there)).bytes({1, 6, 4});
    is.put(tensor_sizes[0]).put(tensor_sizes[1]).put(tensor_sizes[2]).put(tensor_sizes[3]);
    is.put(pitches[0]).put(pitches[1]).put(pitches[2]);
    is.put(-1).put(-2).put(1).put(-2).bytes({32, 64, 1, 2, 3, 4, 0, 1, 2, 1});
    REQUIRE(cu("cuTensorMapEncodeIm2col", &map, 6, 4u, there, tensor_sizes, pitches, lower, upper,
               32u, 64u, steps, 0, 1, 2, 1) == 0);
    REQUIRE(map == is.map);
    // A wrong argument leaves the map as it was.
    same = map;
    REQUIRE(tiled(&map, 0) == 1 && tiled(&map, 6) == 1);
    REQUIRE(tiled(nullptr, 2) == 1 && tiled(&map, 2, &map.bytes[1]) == 1);
    REQUIRE(cu("cuTensorMapEncodeIm2col", &map, 6, 2u, there, tensor_sizes, pitches, lower, upper,
               32u, 64u, steps, 0, 1, 2, 1) == 1);
    REQUIRE(cu("cuTensorMapEncodeIm2colWide", &map, 6, 3u, there, tensor_sizes, pitches, -1, 1, 32u,
               64u, steps, 0, 0, 1, 2, 1) == 801);
    REQUIRE(map == same && cudaGetLastError() == 0);
    // CUTLASS and Triton ask for it by its name.
    REQUIRE(cu("cuGetProcAddress_v2", "cuTensorMapEncodeTiled", &function, 12000, 0ull, &found) ==
            0);
    return HOLDS(function && found == 0);
}
