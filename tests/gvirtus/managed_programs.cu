// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Random programs with managed memory, each word compared with a model in this process:
//
//   managed-programs PROGRAMS [SEED [THREADS]]
//
// Writes and reads of the host, kernels, copies and sets on several streams, memory that comes and
// goes; threads at once, each with its own memory and streams. Built as random_programs.cu. With
// NOKERNEL in the environment nothing is launched, for a double of CUDA's driver.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <random>
#include <thread>
#include <vector>

#define OK(call)                                                                                   \
    do {                                                                                           \
        const cudaError_t code = (call);                                                           \
        if (code != cudaSuccess) {                                                                 \
            std::printf("line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(code));           \
            std::exit(3);                                                                          \
        }                                                                                          \
    } while (0)

static const bool no_kernel = std::getenv("NOKERNEL");
static std::atomic<long> wrong, checks, steps;

__global__ void add(unsigned *p, size_t n, unsigned k)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        p[i] += k + unsigned(i);
}

__global__ void mix(unsigned *to, const unsigned *from, size_t n)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        to[i] = to[i] * 3 + from[i];
}

struct Buffer {
    unsigned *at = nullptr;
    size_t n = 0; // words
    bool managed = false;
    std::vector<unsigned> model;
    cudaStream_t last = nullptr; // whose work may be under way
    bool busy = false;
};

struct Program {
    std::mt19937 random;
    int thread;
    std::vector<Buffer> buffers;
    std::vector<cudaStream_t> streams;

    size_t pick(size_t n) { return random() % n; }

    void make(Buffer &b)
    {
        b.n = 1 + pick(pick(3) ? 5000 : pick(3) ? 200000 : 2000000);
        b.managed = pick(4);
        if (b.managed)
            OK(cudaMallocManaged(&b.at, b.n * 4));
        else
            OK(cudaMalloc(&b.at, b.n * 4));
        b.model.assign(b.n, 0);
        b.busy = false;
        OK(cudaMemset(b.at, 0, b.n * 4));
        OK(cudaDeviceSynchronize());
    }

    // It is used in that stream next.
    void order(Buffer &b, cudaStream_t stream)
    {
        if (b.busy && b.last != stream && pick(2)) {
            OK(cudaStreamSynchronize(b.last));
        } else if (b.busy && b.last != stream) {
            cudaEvent_t event;
            OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            OK(cudaEventRecord(event, b.last));
            OK(cudaStreamWaitEvent(stream, event, 0));
            OK(cudaEventDestroy(event));
        }
        b.last = stream;
        b.busy = true;
    }

    // The host uses it next.
    void rest(Buffer &b)
    {
        if (b.busy)
            OK(pick(2) ? cudaStreamSynchronize(b.last) : cudaDeviceSynchronize());
        b.busy = false;
    }

    void check(const unsigned *has, const Buffer &b, size_t at, size_t n)
    {
        checks++;
        for (size_t i = 0; i < n; i++) {
            if (has[i] == b.model[at + i])
                continue;
            if (!wrong++)
                std::printf("thread %d: word %zu of %zu is %u, not %u\n", thread, at + i, b.n,
                            has[i], b.model[at + i]);
            return;
        }
    }

    void host(Buffer &b, size_t at, size_t n, bool writes)
    {
        const unsigned value = random();
        const size_t each = pick(3) ? 1 : 1 + pick(5000);
        if (!b.managed)
            return;
        rest(b);
        if (!writes)
            check(b.at + at, b, at, n);
        for (size_t i = at; writes && i < at + n; i += each)
            b.at[i] = b.model[i] = value + unsigned(i);
    }

    void copy(Buffer &b, size_t at, size_t n, bool to_device)
    {
        std::vector<unsigned> words(n);
        rest(b);
        if (to_device) {
            for (size_t i = 0; i < n; i++)
                words[i] = b.model[at + i] = random();
            OK(cudaMemcpy(b.at + at, words.data(), n * 4,
                          pick(2) ? cudaMemcpyDefault : cudaMemcpyHostToDevice));
            OK(cudaDeviceSynchronize());
        } else {
            OK(cudaMemcpy(words.data(), b.at + at, n * 4,
                          pick(2) ? cudaMemcpyDefault : cudaMemcpyDeviceToHost));
            check(words.data(), b, at, n);
        }
    }

    void kernel(Buffer &b, size_t at, size_t n, cudaStream_t stream)
    {
        const unsigned k = random() % 100;
        if (no_kernel)
            return;
        order(b, stream);
        add<<<1 + pick(40), 128, 0, stream>>>(b.at + at, n, k);
        for (size_t i = 0; i < n; i++)
            b.model[at + i] += k + unsigned(i);
    }

    void kernel_of_two(Buffer &b, Buffer &from, size_t at, size_t n, cudaStream_t stream)
    {
        if (no_kernel || &b == &from)
            return;
        order(b, stream);
        order(from, stream);
        mix<<<1 + pick(40), 128, 0, stream>>>(b.at + at, from.at, n);
        for (size_t i = 0; i < n; i++)
            b.model[at + i] = b.model[at + i] * 3 + from.model[i];
    }

    void copy_of_two(Buffer &b, Buffer &from, size_t at, size_t n, cudaStream_t stream)
    {
        if (&b == &from)
            return;
        order(b, stream);
        order(from, stream);
        OK(cudaMemcpyAsync(b.at + at, from.at, n * 4,
                           pick(2) ? cudaMemcpyDefault : cudaMemcpyDeviceToDevice, stream));
        std::memcpy(&b.model[at], from.model.data(), n * 4);
    }

    void set(Buffer &b, size_t at, size_t n, cudaStream_t stream)
    {
        const int value = int(pick(256));
        order(b, stream);
        OK(cudaMemsetAsync(b.at + at, value, n * 4, stream));
        std::memset(&b.model[at], value, n * 4);
    }

    void again(Buffer &b)
    {
        rest(b);
        if (b.managed)
            check(b.at, b, 0, b.n);
        OK(cudaFree(b.at));
        make(b);
    }

    void step()
    {
        Buffer &b = buffers[pick(buffers.size())], &other = buffers[pick(buffers.size())];
        const cudaStream_t stream = streams[pick(streams.size())];
        const bool whole = !pick(4);
        const size_t at = whole ? 0 : pick(b.n), n = whole ? b.n : 1 + pick(b.n - at);
        const size_t of_two = std::min(n, other.n), what = pick(73);
        steps++;
        if (what < 24)
            host(b, at, n, what < 12);
        else if (what < 36)
            kernel(b, at, n, stream);
        else if (what < 42)
            kernel_of_two(b, other, at, of_two, stream);
        else if (what < 48)
            copy_of_two(b, other, at, of_two, stream);
        else if (what < 66)
            what < 60 ? copy(b, at, n, what < 54) : set(b, at, n, stream);
        else if (what == 72)
            again(b);
    }

    void run()
    {
        if (!thread)
            streams.push_back(nullptr);
        for (unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking, cudaStreamNonBlocking}) {
            streams.emplace_back();
            OK(cudaStreamCreateWithFlags(&streams.back(), flags));
        }
        buffers.resize(5);
        for (Buffer &b : buffers)
            make(b);
        for (int i = 0; i < 150; i++)
            step();
        OK(cudaDeviceSynchronize());
        for (Buffer &b : buffers) {
            if (b.managed)
                check(b.at, b, 0, b.n);
            OK(cudaFree(b.at));
        }
        for (cudaStream_t stream : streams) {
            if (stream)
                OK(cudaStreamDestroy(stream));
        }
    }
};

int main(int argc, char **argv)
{
    const int programs = argc > 1 ? std::atoi(argv[1]) : 10;
    const unsigned seed = argc > 2 ? unsigned(std::atoi(argv[2])) : 1;
    const int threads = argc > 3 ? std::atoi(argv[3]) : 1;
    for (int i = 0; i < programs; i++) {
        std::vector<std::thread> all;
        for (int t = 0; t < threads; t++) {
            all.emplace_back([=] {
                Program program{std::mt19937(seed + unsigned(100 * i + t)), t, {}, {}};
                program.run();
            });
        }
        for (std::thread &thread : all)
            thread.join();
    }
    std::printf("%d programs, %ld steps, %ld checks, %ld wrong\n", programs, steps.load(),
                checks.load(), wrong.load());
    return wrong ? 1 : 0;
}
