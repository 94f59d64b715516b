// SPDX-License-Identifier: LGPL-2.1-or-later
//
// NCCL, whose calls the preload makes requests of: ranks in one thread, in threads and in
// processes. The double of its library computes what NCCL does, so results are compared with what
// all ranks have given.
#include "tests/gvirtus/application_math.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <unistd.h>

namespace
{

constexpr int INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7;
constexpr int INT32 = 2, FLOAT = 7;
constexpr int SUM = 0, PROD = 1, MAX = 2, AVG = 4;
constexpr std::size_t SOME = 5; // elements of each rank

struct Id {
    char bytes[128];
};

struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 22809;
    int blocking = -0x7fffffff - 1, numbers[3] = {blocking, blocking, blocking};
    const char *network = nullptr;
    int share = blocking;
};

Id new_id()
{
    Id id{};
    return math("ncclGetUniqueId", &id) ? Id{} : id;
}

void *rank_of(const Id &id, int ranks, int rank, Config *config = nullptr)
{
    void *made = nullptr;
    const int status = config ? math("ncclCommInitRankConfig", &made, ranks, id, rank, config)
                              : math("ncclCommInitRank", &made, ranks, id, rank);
    return status && status != IN_PROGRESS ? nullptr : made;
}

// What a rank gives: numbers that show whose they are.
std::vector<float> gift(int rank, std::size_t n = SOME)
{
    std::vector<float> values;
    for (std::size_t i = 0; i < n; i++)
        values.push_back(static_cast<float>(100 * rank) + static_cast<float>(i + 1));
    return values;
}

std::vector<float> of_all(int ranks, const std::function<float(float, float)> &combine)
{
    std::vector<float> values = gift(0);
    for (int rank = 1; rank < ranks; rank++)
        for (std::size_t i = 0; i < SOME; i++)
            values[i] = combine(values[i], gift(rank)[i]);
    return values;
}

std::vector<float> joined(int ranks)
{
    std::vector<float> values;
    for (int rank = 0; rank < ranks; rank++)
        for (float value : gift(rank))
            values.push_back(value);
    return values;
}

using List = std::vector<float>;

bool reductions(void *comm, int rank, int ranks, void *stream)
{
    float *from = device_copy<float>(gift(rank)), *to = device_copy<float>(List(SOME, -1));
    const auto plus = [](float a, float b) { return a + b; };
    const auto reduce = [&](int op) {
        return math("ncclAllReduce", from, to, SOME, FLOAT, op, comm, stream) ||
                       cudaStreamSynchronize(stream)
                   ? List{}
                   : host_copy(to, SOME);
    };
    REQUIRE(from && to && reduce(SUM) == of_all(ranks, plus));
    REQUIRE(reduce(PROD) == of_all(ranks, [](float a, float b) { return a * b; }));
    REQUIRE(reduce(MAX) == gift(ranks - 1));
    List average = of_all(ranks, plus);
    for (float &value : average)
        value /= static_cast<float>(ranks);
    REQUIRE(reduce(AVG) == average);
    for (int i = 0; i < 20; i++) // the same request: it does not wait
        REQUIRE(reduce(SUM) == of_all(ranks, plus));
    // An operator of the program's.
    int op = -1;
    const float half = 0.5f;
    List halves = of_all(ranks, plus);
    for (float &value : halves)
        value /= 2;
    REQUIRE(math("ncclRedOpCreatePreMulSum", &op, &half, FLOAT, 1, comm) == 0 && op >= 5);
    REQUIRE(reduce(op) == halves && math("ncclRedOpDestroy", op, comm) == 0);
    REQUIRE(math("ncclRedOpDestroy", op, comm) == INVALID_ARGUMENT);
    REQUIRE(math("ncclRedOpCreatePreMulSum", &op, device_copy<float>({0.5f}), FLOAT, 0, comm) == 0);
    REQUIRE(reduce(op) == halves && math("ncclRedOpDestroy", op, comm) == 0);
    REQUIRE(math("ncclReduce", from, to, SOME, FLOAT, SUM, 1, comm, stream) == 0);
    REQUIRE(host_copy(to, SOME) == (rank == 1 ? of_all(ranks, plus) : halves));
    return HOLDS(math("ncclAllReduce", from, to, SOME, 99, SUM, comm, stream) == INVALID_ARGUMENT);
}

bool spreads(void *comm, int rank, int ranks, void *stream)
{
    const auto n = static_cast<std::size_t>(ranks) * SOME;
    float *from = device_copy<float>(gift(rank)), *to = device_copy<float>(List(n, -1));
    float *all = device_copy<float>(joined(ranks));
    const auto part = [&](const List &of, int which) {
        const auto at = of.begin() + static_cast<std::ptrdiff_t>(SOME) * which;
        return List(at, at + static_cast<std::ptrdiff_t>(SOME));
    };
    REQUIRE(math("ncclBroadcast", from, to, SOME, FLOAT, 1, comm, stream) == 0);
    REQUIRE(host_copy(to, SOME) == gift(1));
    REQUIRE(math("ncclBcast", from, SOME, FLOAT, 0, comm, stream) == 0);
    REQUIRE(host_copy(from, SOME) == gift(0));
    REQUIRE(cudaMemcpy(from, gift(rank).data(), SOME * sizeof(float), H2D) == 0);
    REQUIRE(math("ncclAllGather", from, to, SOME, FLOAT, comm, stream) == 0);
    REQUIRE(host_copy(to, n) == joined(ranks));
    REQUIRE(math("ncclReduceScatter", all, to, SOME, FLOAT, SUM, comm, stream) == 0);
    List sum = part(joined(ranks), rank);
    for (float &value : sum)
        value *= static_cast<float>(ranks);
    REQUIRE(host_copy(to, SOME) == sum);
    REQUIRE(math("ncclAlltoAll", all, to, SOME, FLOAT, comm, stream) == 0);
    REQUIRE(part(host_copy(to, n), 1) == gift(rank));
    REQUIRE(cudaMemcpy(to, List(n, -1).data(), n * sizeof(float), H2D) == 0);
    REQUIRE(math("ncclGather", from, to, SOME, FLOAT, 0, comm, stream) == 0);
    REQUIRE(host_copy(to, n) == (rank ? List(n, -1) : joined(ranks)));
    REQUIRE(math("ncclScatter", all, to, SOME, FLOAT, 1, comm, stream) == 0);
    return HOLDS(host_copy(to, SOME) == gift(rank));
}

// To the next rank, from the one before: only a group can do both.
bool letters(void *comm, int rank, int ranks, void *stream)
{
    float *from = device_copy<float>(gift(rank)), *to = device_copy<float>(List(SOME, -1));
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    REQUIRE(math("ncclGroupStart") == 0);
    REQUIRE(math("ncclSend", from, SOME, FLOAT, next, comm, stream) == 0);
    REQUIRE(math("ncclRecv", to, SOME, FLOAT, before, comm, stream) == 0);
    REQUIRE(host_copy(to, SOME) == List(SOME, -1)); // not before the group's end
    REQUIRE(math("ncclGroupEnd") == 0 && host_copy(to, SOME) == gift(before));
    REQUIRE(math("ncclGroupStart") == 0 && math("ncclGroupEnd") == 0);
    REQUIRE(math("ncclGroupEnd") == INVALID_USAGE);
    // An error comes back at the group's end, too, and the group is over.
    REQUIRE(math("ncclGroupStart") == 0);
    REQUIRE(math("ncclSend", from, SOME, FLOAT, next, nullptr, stream) == INVALID_ARGUMENT);
    REQUIRE(math("ncclGroupEnd") == INVALID_ARGUMENT);
    return HOLDS(math("ncclSend", from, SOME, FLOAT, 99, comm, stream) == INVALID_ARGUMENT);
}

bool numbers(void *comm, int rank, int ranks, int device)
{
    int count = -1, own = -1, on = -1, state = -1;
    REQUIRE(math("ncclCommCount", comm, &count) == 0 && count == ranks);
    REQUIRE(math("ncclCommUserRank", comm, &own) == 0 && own == rank);
    REQUIRE(math("ncclCommCuDevice", comm, &on) == 0 && on == device);
    return HOLDS(math("ncclCommGetAsyncError", comm, &state) == 0 && state == 0);
}

// The ranks in the other order, and rank 0 alone.
bool splits(void *comm, int rank, int ranks)
{
    void *turned = nullptr, *alone = nullptr, *none = &turned;
    REQUIRE(math("ncclCommSplit", comm, 3, ranks - rank, &turned, nullptr) == 0 && turned);
    REQUIRE(numbers(turned, ranks - 1 - rank, ranks, rank));
    float *to = device_copy<float>(gift(rank));
    REQUIRE(math("ncclBcast", to, SOME, FLOAT, 0, turned, nullptr) == 0);
    REQUIRE(host_copy(to, SOME) == gift(ranks - 1));
    REQUIRE(math("ncclCommSplit", comm, rank ? -1 : 0, 0, rank ? &none : &alone, nullptr) == 0);
    REQUIRE(rank ? !none : alone && numbers(alone, 0, 1, rank));
    REQUIRE(rank || math("ncclCommDestroy", alone) == 0);
    return HOLDS(math("ncclCommDestroy", turned) == 0);
}

bool all_of(void *comm, int rank, int ranks)
{
    void *stream = nullptr;
    REQUIRE(comm && cudaStreamCreate(&stream) == 0 && numbers(comm, rank, ranks, rank));
    REQUIRE(reductions(comm, rank, ranks, stream) && spreads(comm, rank, ranks, stream));
    REQUIRE(letters(comm, rank, ranks, stream) && splits(comm, rank, ranks));
    REQUIRE(cudaStreamDestroy(stream) == 0);
    REQUIRE(math("ncclCommFinalize", comm) == 0 && math("ncclCommDestroy", comm) == 0);
    return HOLDS(math("ncclCommDestroy", comm) == INVALID_ARGUMENT && cudaGetLastError() == 0);
}

} // namespace

// Each rank is a thread of its own.
bool nccl_threads()
{
    constexpr int ranks = 2;
    std::array<bool, ranks> good{};
    std::vector<std::thread> threads;
    int version = 0;
    REQUIRE(math("ncclGetVersion", &version) == 0 && version == 22809);
    const Id id = new_id();
    for (int rank = 0; rank < ranks; rank++)
        threads.emplace_back([&good, id, rank] {
            good.at(static_cast<std::size_t>(rank)) =
                cudaSetDevice(rank) == 0 && all_of(rank_of(id, ranks, rank), rank, ranks);
        });
    for (std::thread &thread : threads)
        thread.join();
    auto *error = preloaded<const char *(int)>("ncclGetErrorString");
    REQUIRE(!std::strcmp(error(0), "no error") && !std::strcmp(error(-1), "unknown result code"));
    auto *last = preloaded<const char *(void *)>("ncclGetLastError");
    REQUIRE(!std::strcmp(last(nullptr), "the double's last error"));
    return HOLDS(good[0] && good[1]);
}

// One thread has a rank on each GPU.
bool nccl_one_thread()
{
    constexpr int ranks = 2;
    std::array<void *, ranks> comms{}, streams{};
    std::array<float *, ranks> from{}, to{};
    const std::array<int, ranks> devices = {1, 0}, none = {0, 99};
    REQUIRE(math("ncclCommInitAll", comms.data(), ranks, none.data()) == 4);
    REQUIRE(math("ncclCommInitAll", comms.data(), 9, static_cast<int *>(nullptr)) == 1);
    REQUIRE(math("ncclCommInitAll", comms.data(), ranks, devices.data()) == 0);
    for (std::size_t i = 0; i < ranks; i++) {
        REQUIRE(cudaSetDevice(devices.at(i)) == 0 && cudaStreamCreate(&streams.at(i)) == 0);
        from.at(i) = device_copy<float>(gift(static_cast<int>(i)));
        to.at(i) = device_copy<float>(List(SOME, -1));
        REQUIRE(from.at(i) && to.at(i));
        REQUIRE(numbers(comms.at(i), static_cast<int>(i), ranks, devices.at(i)));
    }
    for (int round = 0; round < 3; round++) {
        REQUIRE(math("ncclGroupStart") == 0 && math("ncclGroupStart") == 0);
        for (std::size_t i = 0; i < ranks; i++)
            REQUIRE(math("ncclAllReduce", from.at(i), to.at(i), SOME, FLOAT, SUM, comms.at(i),
                         streams.at(i)) == 0);
        REQUIRE(math("ncclGroupEnd") == 0 && math("ncclGroupEnd") == 0);
        for (std::size_t i = 0; i < ranks; i++) {
            REQUIRE(cudaStreamSynchronize(streams.at(i)) == 0);
            REQUIRE(host_copy(to.at(i), SOME) ==
                    of_all(ranks, [](float a, float b) { return a + b; }));
        }
    }
    // Memory of the other GPU.
    REQUIRE(math("ncclSend", from[1], SOME, FLOAT, 1, comms[0], streams[0]) == INVALID_ARGUMENT);
    for (void *comm : comms)
        REQUIRE(math("ncclCommDestroy", comm) == 0);
    return HOLDS(cudaGetLastError() == 0);
}

// Non-blocking communicators, and one whose other rank never comes.
bool nccl_without_waiting()
{
    Config config;
    config.blocking = 0;
    int state = IN_PROGRESS;
    void *lonely = rank_of(new_id(), 2, 0, &config);
    REQUIRE(lonely && math("ncclCommGetAsyncError", lonely, &state) == 0 && state == IN_PROGRESS);
    float *at = device_copy<float>(gift(0));
    REQUIRE(math("ncclAllReduce", at, at, SOME, FLOAT, SUM, lonely, nullptr) == INVALID_ARGUMENT);
    REQUIRE(math("ncclCommAbort", lonely) == 0);
    // One thread makes both ranks, one after the other.
    const Id id = new_id();
    std::array<void *, 2> comms = {rank_of(id, 2, 0, &config), nullptr};
    REQUIRE(comms[0] && cudaSetDevice(1) == 0 && (comms[1] = rank_of(id, 2, 1, &config)));
    for (void *comm : comms) {
        do
            REQUIRE(math("ncclCommGetAsyncError", comm, &state) == 0);
        while (state == IN_PROGRESS);
        REQUIRE(state == 0);
    }
    for (void *comm : comms)
        REQUIRE(math("ncclCommAbort", comm) == 0);
    // A rank that cannot be made does not keep the others of its group waiting.
    REQUIRE(math("ncclGroupStart") == 0 && (comms[0] = rank_of(new_id(), 2, 0)));
    REQUIRE(!rank_of(id, 2, 2) && math("ncclGroupEnd") == INVALID_ARGUMENT);
    REQUIRE(math("ncclCommAbort", comms[0]) == 0);
    // A thread that waits for ranks returns when another one aborts. Its communicator is not known
    // before, so it is a collective operation that waits.
    Config one;
    REQUIRE(cudaSetDevice(0) == 0 && math("ncclCommAbort", rank_of(new_id(), 1, 0, &one)) == 0);
    Config bad;
    bad.magic = 0;
    REQUIRE(!rank_of(id, 1, 0, &bad));
    return HOLDS(cudaGetLastError() == 0);
}

// One rank's thread waits for the other rank, which aborts instead.
bool nccl_aborts()
{
    const Id id = new_id();
    std::array<void *, 2> comms{};
    int status = 0;
    std::thread other([&] {
        cudaSetDevice(1);
        comms[1] = rank_of(id, 2, 1);
    });
    comms[0] = rank_of(id, 2, 0);
    other.join();
    REQUIRE(comms[0] && comms[1]);
    std::thread waits([&] {
        float *at = device_copy<float>(gift(0));
        status = math("ncclAllReduce", at, at, SOME, FLOAT, SUM, comms[0], nullptr);
    });
    int rank = 0;
    while (!math("ncclCommUserRank", comms[0], &rank)) // until the operation is in progress
        usleep(1000);
    REQUIRE(math("ncclCommAbort", comms[0]) == 0);
    waits.join();
    return HOLDS(status != 0 && math("ncclCommAbort", comms[1]) == 0);
}

// Threads ask for the state of a communicator, as PyTorch's watchdog does, while another splits it.
bool nccl_asked()
{
    void *comm = rank_of(new_id(), 1, 0);
    std::atomic<bool> over{false}, good{true};
    std::vector<std::thread> threads;
    REQUIRE(comm);
    for (int i = 0; i < 2; i++)
        threads.emplace_back([&] {
            for (int state = 0; !over;)
                if (math("ncclCommGetAsyncError", comm, &state))
                    good = false;
        });
    for (int i = 0; i < 500 && good; i++) {
        void *made = nullptr;
        if (math("ncclCommSplit", comm, 0, 0, &made, nullptr) || math("ncclCommDestroy", made))
            good = false;
    }
    over = true;
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(good && math("ncclCommDestroy", comm) == 0);
}

// Destroying a communicator lets the work of its GPU end first: only an abort cuts operations off.
// The wait for the work spoils no capture of another thread, and is made all the same.
bool is_destroyed_beside_a_capture(void *works)
{
    void *comm = rank_of(new_id(), 1, 0), *stream = nullptr, *graph = nullptr;
    UntilItWaits work;
    REQUIRE(comm && cudaStreamCreate(&stream) == 0);
    REQUIRE(preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc")(
                works, until_it_waits, &work) == 0);
    REQUIRE(cudaStreamBeginCapture(stream, 1) == 0);
    int rc = -1;
    std::thread([&] { rc = math("ncclCommDestroy", comm); }).join();
    REQUIRE(cudaStreamEndCapture(stream, &graph) == 0 && graph);
    return HOLDS(rc == 0 && work.over);
}

bool nccl_destroyed()
{
    void *comm = rank_of(new_id(), 1, 0), *stream = nullptr;
    UntilItWaits work;
    REQUIRE(comm && cudaStreamCreate(&stream) == 0);
    REQUIRE(preloaded<int(void *, void (*)(void *), void *)>("cudaLaunchHostFunc")(
                stream, until_it_waits, &work) == 0);
    REQUIRE(math("ncclCommDestroy", comm) == 0);
    REQUIRE(work.over && cudaGetLastError() == 0);
    return HOLDS(is_destroyed_beside_a_capture(stream));
}

// A rank of several processes. The first one tells the id, the others read it.
bool nccl_rank(int rank)
{
    Id id{};
    if (!rank) {
        id = new_id();
        REQUIRE(write(STDOUT_FILENO, &id, sizeof(id)) == sizeof(id));
    } else {
        REQUIRE(read(STDIN_FILENO, &id, sizeof(id)) == sizeof(id));
    }
    return cudaSetDevice(rank) == 0 && all_of(rank_of(id, 2, rank), rank, 2);
}

// What a program leaves: a communicator, one in which it waits for the other rank, and one that it
// has not got yet.
bool nccl_left()
{
    const Id id = new_id();
    void *whole = rank_of(id, 1, 0);
    REQUIRE(whole && write(STDOUT_FILENO, "w", 1) == 1);
    rank_of(new_id(), 2, 0); // until the process is killed
    return false;
}

// With a back end that allows none.
bool no_nccl()
{
    Id id{};
    void *made = nullptr;
    int version = 7;
    REQUIRE(math("ncclGetUniqueId", &id) == INVALID_USAGE);
    REQUIRE(math("ncclCommInitRank", &made, 1, id, 0) == INVALID_USAGE && !made);
    REQUIRE(math("ncclGetVersion", &version) == INVALID_USAGE && version == 7);
    return HOLDS(math("ncclCommDestroy", made) == 0 && cudaGetLastError() == 0);
}

// Programs of Python's look for the functions in the library that they bring.
bool nccl_by_name()
{
    void *library = dlopen(std::getenv("IBX_TEST_NCCL"), RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library && dlsym(library, "ncclAllReduce") == dlsym(RTLD_DEFAULT, "ncclAllReduce"));
    REQUIRE(dlsym(library, "pncclAllReduce") == dlsym(RTLD_DEFAULT, "ncclAllReduce"));
    REQUIRE(dlsym(library, "ibx_double_handles")); // it has that one itself
    REQUIRE(math("ncclCommShrink", nullptr) == INVALID_USAGE);
    REQUIRE(math("ncclCommWindowRegister", nullptr) == INVALID_USAGE);
    void *memory = nullptr, *registered = nullptr, *comm = rank_of(new_id(), 1, 0);
    REQUIRE(comm && math("ncclMemAlloc", &memory, std::size_t{64}) == 0 && memory);
    REQUIRE(math("ncclCommRegister", comm, memory, std::size_t{64}, &registered) == 0);
    REQUIRE(math("ncclCommDeregister", comm, registered) == 0 && math("ncclMemFree", memory) == 0);
    return HOLDS(math("ncclCommDestroy", comm) == 0);
}
