// SPDX-License-Identifier: LGPL-2.1-or-later
//
// A device that shows only the order in which work has reached it: each piece of work changes a
// number of its stream in a way that does not commute. The back end's handlers run it in memory
// that the test shares. The test runs the same handlers on a world of its own, call by call: this
// is what a native program would see.
#ifndef TESTS_DOUBLES_GVIRTUS_WORLD_H
#define TESTS_DOUBLES_GVIRTUS_WORLD_H

#include "tests/doubles/gvirtus/gvirtus.h"

#include <atomic>
#include <cstdint>
#include <pthread.h>

constexpr std::uint64_t WORLD_THREAD_STREAM = 2; // each thread has its own, which keeps nothing
constexpr unsigned WORLD_STREAMS = 10, WORLD_EVENTS = 8, WORLD_BLOCKS = 4, WORLD_GRAPHS = 32;
constexpr unsigned WORLD_NON_BLOCKING = WORLD_STREAMS - 1; // of the streams: not for the legacy one
constexpr std::uint64_t WORLD_BLOCK = 1u << 20;            // bytes; the first one begins there, too
// cudaGraphLaunch takes what cudaGraphInstantiate returns, and a number below WORLD_EVENTS as well,
// for a graph that adds this number.
constexpr std::uint64_t WORLD_GRAPH = 0x1000, WORLD_EXEC = 0x2000;
constexpr unsigned WORLD_CAPTURED = 64; // calls in one capture
// A copy to the device adds a digest of all its bytes to its stream's number; one from the device
// has that number and bytes that follow from it, at most so many.
constexpr std::uint64_t WORLD_COPY_MAX = 1u << 24;

// A gate that is shut or open, for all processes that share it.
class Gate
{
  public:
    Gate &operator=(bool shut);
    void pass(); // waits until it is open

  private:
    std::atomic<int> shut_;
};

// What the calls of a capture would have done, in their order. Also that of the graph, and of its
// executable graphs.
struct WorldGraph {
    bool used;
    unsigned count;
    std::uint64_t values[WORLD_CAPTURED];
};

// The capture that the stream with this index has begun. Other streams join it by events.
struct WorldCapture {
    std::uint64_t number; // of all captures; 0: none is under way
    bool invalid;         // a call did what is forbidden
    const void *by;       // the thread that may end it; null: any thread
    WorldGraph graph;
};

// An event that was recorded in a capture cannot be used outside it.
struct WorldCapturedEvent {
    std::uint64_t capture;  // its number; 0: it was recorded outside
    unsigned stream, after; // of the stream's captured calls
};

// A handle of cuBLAS. Handles are 1 to WORLD_LIBRARIES; the first exists from the beginning.
struct WorldLibrary {
    bool made;
    std::uint64_t stream;
};
constexpr unsigned WORLD_LIBRARIES = 3;
constexpr int LIBRARY_NOT_INITIALIZED = 1, LIBRARY_INVALID_VALUE = 7, LIBRARY_FAILED = 13;

struct World {
    pthread_mutex_t lock;
    WorldLibrary libraries[WORLD_LIBRARIES];
    std::uint64_t work[WORLD_STREAMS]; // of stream 100 + i
    std::uint64_t events[WORLD_EVENTS];
    std::uint64_t fatal; // what every call returns from now on, as after a broken kernel
    WorldCapture captures[WORLD_STREAMS];
    std::uint64_t captured[WORLD_STREAMS]; // number of the capture that the stream is in, or 0
    unsigned ahead[WORLD_STREAMS];         // captured calls in it that the capture's stream lacks
    unsigned calls[WORLD_STREAMS];         // captured calls in it
    WorldCapturedEvent captured_events[WORLD_EVENTS];
    WorldGraph graphs[WORLD_GRAPHS], execs[WORLD_GRAPHS];
    std::uint64_t captures_begun;
    bool destroyed[WORLD_EVENTS];
    bool allocated[WORLD_BLOCKS]; // cudaMalloc returns the first that is free

    // The test sets these while the back end runs.
    Gate held;                           // what is enqueued waits meanwhile
    Gate full;                           // launches in WORLD_NON_BLOCKING do, as if too many were
    Gate late;                           // waits for a stream or an event do, before they answer
    std::atomic<unsigned> late_now;      // so many do now
    std::atomic<unsigned> slow_us;       // each call takes so long
    std::atomic<unsigned> fails_in;      // launches, 0: none fails
    std::atomic<int> fails_with;         // and how
    std::atomic<int> library_fails;      // what the next work of a library returns; or 0
    std::atomic<int> refuses;            // what a handler returns for a launch, without CUDA; or 0
    std::atomic<std::uint64_t> requests; // ever
    std::atomic<std::uint64_t> launches; // that were run
};

// In memory that forked children share.
World *world_create();
// Makes the world as if nothing had happened, except for what the test sets.
void world_clear(World *world);
bool world_captures(const World *world);
void world_destroy(World *world);

// The state of one connection.
struct WorldThread {
    int last_error = 0;
    std::int32_t device = 0;
    std::vector<std::vector<char>> configurations;
};

// Runs one request. `out` is the reply's buffer; returns the exit code.
int world_run(World *world, WorldThread *thread, const std::string &name,
              const std::vector<char> &in, Body *out);

// Serves a world as GVirtuS serves a GPU; never returns.
[[noreturn]] void world_back_end(World *world, std::shared_ptr<Communicator> listening, bool timed);

// Bodies of requests.
Body world_configuration(unsigned threads, std::uint64_t stream, unsigned blocks = 1);
Body world_launch(std::uint64_t function, unsigned threads, std::uint64_t stream,
                  std::uint64_t value, unsigned blocks = 1);

constexpr std::uint64_t KERNEL = 0x7000, KERNEL_OF_DEVICE_0 = 0x7100,
                        KERNEL_OF_CLUSTERS = 0x7200, // of three blocks each
    KERNEL_UNKNOWN = 0x8000;                         // from here on none is known

#endif
