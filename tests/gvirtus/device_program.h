// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A program of device_programs.cu: its data, and its operations.
#ifndef IBX_TESTS_GVIRTUS_DEVICE_PROGRAM_H
#define IBX_TESTS_GVIRTUS_DEVICE_PROGRAM_H

#include "random_program.h"

#include <cstdint>
#include <cuda_runtime.h>
#include <vector>

namespace
{

constexpr unsigned SLOTS = 3; // on each device: the default stream, a blocking one, one that is not
constexpr std::size_t MOST = 1u << 20; // bytes of a slot's memory, a multiple of 4
constexpr unsigned THREADS = 16, TABLE = 509;
constexpr unsigned OPERATIONS_LEAST = 10, OPERATIONS_MOST = 40;

#ifdef __CUDACC__
constexpr bool has_kernels = true;

__device__ std::uint32_t table[THREADS][TABLE];

__global__ void mix(std::uint32_t *words, std::size_t n, std::uint32_t seed, std::uint32_t row)
{
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (i < n)
        words[i] = words[i] * 2654435761u + seed + table[row][(i + seed) % TABLE];
}

__global__ void combine(std::uint32_t *to, const std::uint32_t *from, std::size_t n,
                        std::uint32_t times)
{
    std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
    if (i >= n)
        return;
    std::uint32_t x = to[i];
    for (std::uint32_t t = 0; t < times; t++) // some take long
        x = x * 747796405u + from[(i + t) % n];
    to[i] = x;
}
#else
constexpr bool has_kernels = false;

std::uint32_t table[THREADS][TABLE];
void mix() {}
void combine() {}
#endif

struct Wish {
    unsigned devices = 0;
    bool all = false, graphs = false, managed = false, alone = true;
};

struct Slot {
    int device;
    bool waits; // its stream and the legacy stream wait for each other
    char *memory, *pinned, *pageable;
    cudaStream_t stream;
    cudaEvent_t event;
};

dim3 blocks_of(std::size_t words)
{
    return dim3(static_cast<unsigned>(words / 256 + 1));
}

struct Program : RandomProgram {
    unsigned thread;
    std::vector<Slot> &slots; // SLOTS of each device
    const Wish &wish;
    std::vector<std::uint8_t> &reaches; // [device * devices + peer]: kernels read its memory
    int now = -1;                       // the device that is selected

    Slot &any() { return slots[random.below(slots.size())]; }
    int any_device() { return static_cast<int>(random.below(wish.devices)); }
    void select(int device)
    {
        if (device != now || !random.below(8))
            answered(cudaSetDevice(device));
        now = device;
    }
    // Copies in a stream that is not a default stream may be made with any device selected.
    void select_for_copy(const Slot &slot)
    {
        select(slot.stream && !random.below(3) ? any_device() : slot.device);
    }
    void rest(const Slot &slot) // all of its work
    {
        select(slot.device);
        answered(random.below(2) ? cudaStreamSynchronize(slot.stream) : cudaDeviceSynchronize());
    }
    // GVirtuS is right about cudaMemcpyDefault only at the beginning of an allocation.
    bool by_addresses() { return wish.all && random.below(2); }
    cudaMemcpyKind within()
    {
        return by_addresses() ? cudaMemcpyDefault : cudaMemcpyDeviceToDevice;
    }
    bool can_read(int device, int other)
    {
        return device == other ||
               reaches[static_cast<unsigned>(device) * wish.devices + static_cast<unsigned>(other)];
    }

    void copy_async(Slot &slot);
    void copy(Slot &slot);
    void rows(Slot &slot);
    void set(Slot &slot);
    void launch(Slot &slot) { launch(slot, slot.stream); }
    void launch(Slot &slot, cudaStream_t stream);
    void launches(Slot &slot);
    void order(Slot &first, Slot &then);
    void between(Slot &to, Slot &from);
    void between_in_order(Slot &to, Slot &from);
    void read_other(Slot &to, Slot &from);
    void variable(int device);
    void refused(Slot &slot, Slot &other);
    void pool(Slot &slot);
    void graph(Slot &slot, Slot &other);
    void managed(Slot &slot, Slot &other);
    void facts(int device);
    void more();
    void operation();
    void run_all();
};

void Program::copy_async(Slot &slot)
{
    const std::size_t n = length(MOST / 2), at = random.below(MOST - n + 1),
                      from = random.below(MOST / 2 - n + 1);
    const bool pinned = random.below(2), by_address = by_addresses();
    char *host = (pinned ? slot.pinned : slot.pageable) + from;
    select_for_copy(slot);
    if (random.below(2)) {
        if (pinned)
            answered(cudaStreamSynchronize(slot.stream));
        fill(host, n);
        answered(cudaMemcpyAsync(slot.memory + at, host, n,
                                 by_address && pinned ? cudaMemcpyDefault : cudaMemcpyHostToDevice,
                                 slot.stream));
        if (!pinned)
            fill(host, n < 64 ? n : 64);
        return;
    }
    host += MOST / 2;
    answered(cudaMemcpyAsync(host, slot.memory + at, n,
                             by_address && pinned ? cudaMemcpyDefault : cudaMemcpyDeviceToHost,
                             slot.stream));
    answered(cudaStreamSynchronize(slot.stream));
    note(host, n);
}

// With any device selected; nothing is under way on either device.
void Program::copy(Slot &slot)
{
    const std::size_t n = length(MOST / 2), at = random.below(MOST - n + 1);
    char *host = (random.below(2) ? slot.pinned : slot.pageable) + random.below(MOST / 2 - n + 1);
    const int from = random.below(2) ? slot.device : any_device();
    const bool there = random.below(2);
    if (from != slot.device || !slot.waits)
        rest(slot);
    select(from);
    if (there) {
        answered(cudaStreamSynchronize(slot.stream)); // the pinned memory is free
        fill(host, n);
        answered(cudaMemcpy(slot.memory + at, host, n, cudaMemcpyHostToDevice));
        fill(host, n < 64 ? n : 64);
    } else {
        answered(cudaMemcpy(host + MOST / 2, slot.memory + at, n, cudaMemcpyDeviceToHost));
        note(host + MOST / 2, n);
    }
    if (from != slot.device || !slot.waits)
        answered(cudaDeviceSynchronize());
}

void Program::rows(Slot &slot)
{
    const std::size_t width = 1 + random.below(3000), count = 1 + random.below(50),
                      pitch = width + random.below(500), other = width + random.below(500);
    const std::size_t at = random.below(MOST - other * count);
    rest(slot);
    if (random.below(2)) {
        fill(slot.pageable, pitch * count);
        answered(cudaMemcpy2D(slot.memory + at, other, slot.pageable, pitch, width, count,
                              cudaMemcpyHostToDevice));
        answered(cudaDeviceSynchronize());
        return;
    }
    answered(cudaMemcpy2D(slot.pageable + MOST / 2, pitch, slot.memory + at, other, width, count,
                          cudaMemcpyDeviceToHost));
    for (std::size_t row = 0; row < count; row++)
        note(slot.pageable + MOST / 2 + row * pitch, width);
}

void Program::set(Slot &slot)
{
    const std::size_t n = length(MOST), at = random.below(MOST - n + 1);
    const int value = static_cast<int>(random.below(256));
    select(slot.device);
    if (wish.all)
        return answered(cudaMemsetAsync(slot.memory + at, value, n, slot.stream));
    rest(slot);
    answered(cudaMemset(slot.memory + at, value, n));
    answered(cudaDeviceSynchronize()); // it is in the legacy stream
}

void Program::launch(Slot &slot, cudaStream_t stream)
{
    std::size_t n = 1 + length(MOST - 4) / 4;
    const std::size_t at = random.below(MOST / 4 - n + 1);
    auto *words = reinterpret_cast<std::uint32_t *>(slot.memory) + at;
    auto seed = static_cast<std::uint32_t>(random.next() >> 32);
    std::uint32_t row = thread;
    void *arguments[] = {&words, &n, &seed, &row};
    select(slot.device);
    if (has_kernels)
        answered(cudaLaunchKernel(reinterpret_cast<const void *>(mix), blocks_of(n), dim3(256),
                                  arguments, 0, stream));
}

void Program::launches(Slot &slot)
{
    for (auto times = 1 + random.below(12); times; times--)
        launch(slot);
    if (random.below(2))
        answered(cudaGetLastError());
}

// Later work of the second stream comes behind the work that is in the first one.
void Program::order(Slot &first, Slot &then)
{
    if (&first == &then)
        return;
    if (random.below(4)) {
        select(first.stream ? any_device() : first.device);
        answered(cudaEventRecord(first.event, first.stream));
        select(then.stream ? any_device() : then.device);
        answered(cudaStreamWaitEvent(then.stream, first.event, 0));
    } else {
        select(first.stream ? any_device() : first.device);
        answered(cudaEventRecord(first.event, first.stream));
        answered(cudaEventSynchronize(first.event));
    }
}

void Program::between(Slot &to, Slot &from)
{
    const std::size_t n = length(MOST / 2), at = random.below(MOST / 2 - n + 1);
    if (&to == &from)
        return;
    order(from, to);
    select_for_copy(to);
    char *target = to.memory + MOST / 2 + at;
    if (random.below(2))
        answered(cudaMemcpyAsync(target, from.memory + at, n, within(), to.stream));
    else
        answered(
            cudaMemcpyPeerAsync(target, to.device, from.memory + at, from.device, n, to.stream));
    order(to, from);
}

// A copy in the default stream between devices comes after all that was begun on both, and before
// all that is begun later, in streams that wait for it.
void Program::between_in_order(Slot &to, Slot &from)
{
    const std::size_t n = length(MOST / 2), at = random.below(MOST / 2 - n + 1);
    if (&to == &from || !to.waits || !from.waits)
        return;
    launches(from);
    select(random.below(2) ? to.device : from.device);
    if (wish.all && random.below(2))
        answered(
            cudaMemcpyPeer(to.memory + MOST / 2 + at, to.device, from.memory + at, from.device, n));
    else
        answered(cudaMemcpy(to.memory + MOST / 2 + at, from.memory + at, n, within()));
    launch(from);
    launch(to);
}

void Program::read_other(Slot &to, Slot &from)
{
    std::size_t n = 1000 + random.below(100000);
    auto *words = reinterpret_cast<std::uint32_t *>(to.memory);
    auto *others = reinterpret_cast<const std::uint32_t *>(from.memory);
    std::uint32_t times = random.below(4) ? 3 : 300;
    void *arguments[] = {&words, &others, &n, &times};
    if (&to == &from || !can_read(to.device, from.device))
        return;
    launch(from);
    order(from, to);
    select(to.device);
    if (has_kernels)
        answered(cudaLaunchKernel(reinterpret_cast<const void *>(combine), blocks_of(n), dim3(256),
                                  arguments, 0, to.stream));
    order(to, from);
}

// Each device has a variable of its own.
void Program::variable(int device)
{
    std::uint32_t words[TABLE];
    const std::size_t at = random.below(TABLE), n = 1 + random.below(TABLE - at),
                      offset = (thread * TABLE + at) * 4;
    select(device);
    answered(cudaDeviceSynchronize());
    if (random.below(2)) {
        fill(reinterpret_cast<char *>(words), n * 4);
        answered(cudaMemcpyToSymbol(table, words, n * 4, offset, cudaMemcpyHostToDevice));
        answered(cudaDeviceSynchronize());
        return;
    }
    void *there = nullptr;
    answered(cudaGetSymbolAddress(&there, table));
    if (random.below(2))
        answered(cudaMemcpyFromSymbol(words, table, n * 4, offset, cudaMemcpyDeviceToHost));
    else
        answered(
            cudaMemcpy(words, static_cast<char *>(there) + offset, n * 4, cudaMemcpyDeviceToHost));
    note(reinterpret_cast<const char *>(words), n * 4);
}

// Calls that CUDA refuses, and what it answers.
void Program::refused(Slot &slot, Slot &other)
{
    int value = -1;
    float ms = 0;
    switch (random.below(5)) {
    case 0:
        answered(cudaSetDevice(static_cast<int>(wish.devices) + 100));
        answered(cudaGetDevice(&value));
        note(static_cast<std::uint64_t>(value));
        break;
    case 1: // of another device
        if (slot.device == other.device || !slot.stream || !has_kernels)
            return;
        select(other.device);
        {
            std::size_t n = 1;
            auto *words = reinterpret_cast<std::uint32_t *>(slot.memory);
            std::uint32_t seed = 0, row = thread;
            void *arguments[] = {&words, &n, &seed, &row};
            answered(cudaLaunchKernel(reinterpret_cast<const void *>(mix), dim3(1), dim3(32),
                                      arguments, 0, slot.stream));
        }
        break;
    case 2:
        if (slot.device == other.device || !slot.stream)
            return;
        select(slot.device);
        answered(cudaEventRecord(other.event, slot.stream));
        break;
    case 3:
        if (slot.device == other.device)
            return;
        rest(slot);
        answered(cudaEventRecord(slot.event, slot.stream));
        rest(other);
        answered(cudaEventRecord(other.event, other.stream));
        rest(slot);
        rest(other);
        note(cudaEventElapsedTime(&ms, slot.event, other.event) != cudaSuccess);
        break;
    default:
        select(slot.device);
        answered(cudaDeviceEnablePeerAccess(slot.device, 0)); // of itself
        answered(cudaDeviceCanAccessPeer(&value, slot.device, slot.device));
        note(static_cast<std::uint64_t>(value));
    }
    answered(cudaGetLastError());
    answered(cudaGetLastError());
}

// Memory of the pool of the stream's device, whichever device is selected. Only the stream's device
// has access to it.
void Program::pool(Slot &slot)
{
    const std::size_t n = length(MOST / 2), at = random.below(MOST / 2 - n + 1);
    char *memory = nullptr;
    select(slot.stream ? any_device() : slot.device);
    const cudaError_t made = cudaMallocAsync(reinterpret_cast<void **>(&memory), n, slot.stream);
    answered(made);
    if (made != cudaSuccess)
        return;
    cudaPointerAttributes what{};
    answered(cudaPointerGetAttributes(&what, memory));
    note(static_cast<std::uint64_t>(what.device));
    select(slot.device);
    answered(cudaMemcpyAsync(memory, slot.memory + at, n, cudaMemcpyDeviceToDevice, slot.stream));
    launch(slot);
    answered(
        cudaMemcpyAsync(slot.memory + MOST / 2, memory, n, cudaMemcpyDeviceToDevice, slot.stream));
    answered(cudaFreeAsync(memory, slot.stream));
}

// A graph with work of two devices. The second device's work is between parts of the first one's.
void Program::graph(Slot &slot, Slot &other)
{
    cudaStream_t first = nullptr, second = nullptr;
    cudaEvent_t forth = nullptr, back = nullptr;
    cudaGraph_t made = nullptr;
    cudaGraphExec_t exec = nullptr;
    const std::size_t n = length(MOST / 2);
    if (!wish.alone)
        return;
    for (const Slot &each : slots)
        rest(each);
    select(other.device);
    answered(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    answered(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
    select(slot.device);
    answered(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    answered(cudaEventCreateWithFlags(&forth, cudaEventDisableTiming));
    answered(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed));
    launch(slot, first);
    answered(cudaEventRecord(forth, first));
    answered(cudaStreamWaitEvent(second, forth, 0));
    launch(other, second);
    if (&slot != &other)
        answered(cudaMemcpyAsync(other.memory, slot.memory, n, cudaMemcpyDeviceToDevice, second));
    answered(cudaEventRecord(back, second));
    select(slot.device);
    answered(cudaStreamWaitEvent(first, back, 0));
    launch(slot, first);
    answered(cudaStreamEndCapture(first, &made));
    answered(cudaGraphInstantiate(&exec, made, 0));
    for (auto times = random.below(4); times; times--)
        answered(cudaGraphLaunch(exec, first));
    answered(cudaStreamSynchronize(first));
    cudaGraphExecDestroy(exec); // G5's back end does not know it
    cudaGetLastError();
    answered(cudaGraphDestroy(made));
    answered(cudaEventDestroy(forth));
    answered(cudaEventDestroy(back));
    answered(cudaStreamDestroy(first));
    answered(cudaStreamDestroy(second));
}

// Managed memory: one device writes it, then the other one, then the first one again, and the host
// between them and last.
void Program::managed(Slot &slot, Slot &other)
{
    const std::size_t n = 4 * (1 + length(MOST / 2) / 4);
    char *memory = nullptr;
    select(any_device());
    const cudaError_t got = cudaMallocManaged(reinterpret_cast<void **>(&memory), n);
    answered(got);
    if (got != cudaSuccess)
        return;
    fill(memory, n);
    for (Slot *user : {&slot, &other, &slot}) {
        std::size_t words = n / 4;
        auto *at = reinterpret_cast<std::uint32_t *>(memory);
        auto seed = static_cast<std::uint32_t>(random.next() >> 32);
        std::uint32_t row = thread;
        void *arguments[] = {&at, &words, &seed, &row};
        select(user->device);
        if (has_kernels)
            answered(cudaLaunchKernel(reinterpret_cast<const void *>(mix), blocks_of(words),
                                      dim3(256), arguments, 0, user->stream));
        if (random.below(2))
            answered(cudaMemcpyAsync(user->memory, memory, n, cudaMemcpyDefault, user->stream));
        rest(*user);
        if (random.below(2)) {
            note(memory, n);
            fill(memory + n / 2, 1 + random.below(n - n / 2));
        }
    }
    note(memory, n);
    answered(cudaFree(memory));
}

void Program::facts(int device)
{
    int value = 0, count = 0;
    char id[32] = {};
    answered(cudaGetDeviceCount(&count));
    answered(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
    note(static_cast<std::uint64_t>(value));
    select(device);
    answered(cudaGetDevice(&value));
    note(static_cast<std::uint64_t>(value));
    if (!wish.all)
        return;
    answered(cudaDeviceGetPCIBusId(id, sizeof(id), device));
    note(id, sizeof(id));
    cudaPointerAttributes what{};
    const Slot &slot = any();
    answered(cudaPointerGetAttributes(&what, slot.memory + random.below(MOST)));
    note(static_cast<std::uint64_t>(what.device));
}

// Calls that some versions of GVirtuS lack.
void Program::more()
{
    switch (random.below(4)) {
    case 0:
        return variable(any_device());
    case 1:
        return pool(any());
    case 2:
        return wish.graphs ? graph(any(), any()) : variable(any_device());
    default:
        return wish.managed ? managed(any(), any()) : pool(any());
    }
}

void Program::operation()
{
    if (wish.all && !random.below(4))
        return more();
    switch (random.below(14)) {
    case 0:
    case 1:
        return copy_async(any());
    case 2:
        return copy(any());
    case 3:
        return rows(any());
    case 4:
        return set(any());
    case 5:
    case 6:
        return launches(any());
    case 7:
    case 8:
        return between(any(), any());
    case 9:
    case 10:
        return between_in_order(any(), any());
    case 11:
        return read_other(any(), any());
    case 12:
        return refused(any(), any());
    default:
        return facts(any_device());
    }
}

void Program::run_all()
{
    for (auto n = OPERATIONS_LEAST + random.below(OPERATIONS_MOST - OPERATIONS_LEAST); n; n--)
        operation();
    for (Slot &slot : slots) {
        rest(slot);
        select(any_device());
        answered(cudaStreamSynchronize(slot.stream ? slot.stream : nullptr));
        select(slot.device);
        answered(cudaMemcpy(slot.pinned + MOST / 2, slot.memory, MOST / 2, cudaMemcpyDeviceToHost));
        note(slot.pinned + MOST / 2, MOST / 2);
        answered(cudaMemcpy(slot.pageable + MOST / 2, slot.memory + MOST / 2, MOST / 2,
                            cudaMemcpyDeviceToHost));
        note(slot.pageable + MOST / 2, MOST / 2);
    }
}

} // namespace

#endif
