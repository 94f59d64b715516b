// SPDX-License-Identifier: LGPL-2.1-or-later
//
// cuDNN, whose calls the preload makes requests of. The double multiplies one tensor by another one
// that is passed by its value.
#include "tests/gvirtus/application_math.h"

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace
{

constexpr int BAD_PARAM = 2000, NOT_FINALIZED = 2004, UNSUPPORTED = 3000;
constexpr int GRAPH = 15, PACK = 16, TENSOR = 17, PLAN = 5, CONFIGURATION = 3;
constexpr int SIZES = 902, NUMBER = 906, BY_VALUE = 908, OPERATIONS = 800;
constexpr int BOOLEAN = 2, INT64 = 3, POINTER = 6, DESCRIPTOR = 15, TEXT = 24;

void *made(int type)
{
    void *descriptor = nullptr;
    return math("cudnnBackendCreateDescriptor", type, &descriptor) ? nullptr : descriptor;
}
template <typename T> int set(void *descriptor, int name, int type, const std::vector<T> &values)
{
    return math("cudnnBackendSetAttribute", descriptor, name, type,
                static_cast<std::int64_t>(values.size()), static_cast<const void *>(values.data()));
}
int finalize(void *descriptor)
{
    return math("cudnnBackendFinalize", descriptor);
}
int end(void *descriptor)
{
    return math("cudnnBackendDestroyDescriptor", descriptor);
}

void *tensor(std::int64_t number, bool by_value)
{
    void *made_one = made(TENSOR);
    const std::vector<std::uint8_t> is{by_value};
    return made_one && !set(made_one, NUMBER, INT64, std::vector<std::int64_t>{number}) &&
                   !set(made_one, BY_VALUE, BOOLEAN, is) && !finalize(made_one)
               ? made_one
               : nullptr;
}

// A plan of a graph, by a configuration that the graph gives.
void *plan_of(void *graph)
{
    void *configuration = made(CONFIGURATION), *plan = made(PLAN);
    std::int64_t written = 0;
    const bool good = !math("cudnnBackendGetAttribute", graph, 804, DESCRIPTOR, std::int64_t{1},
                            &written, static_cast<void *>(&configuration)) &&
                      written == 3 && !finalize(configuration) &&
                      !set(plan, 401, DESCRIPTOR, std::vector<void *>{configuration}) &&
                      !finalize(plan) && !end(configuration);
    return good ? plan : nullptr;
}

} // namespace

bool dnn_graphs()
{
    void *handle = nullptr;
    REQUIRE(preloaded<std::size_t()>("cudnnGetVersion")() == 90807);
    REQUIRE(math("cudnnCreate", &handle) == 0 && handle);
    float *from = device_copy<float>({1, 2, 3, 4}), *to = device_copy<float>({0, 0, 0, 0});
    float by = 2.5f;
    std::vector<void *> tensors = {tensor(1, false), tensor(2, false), tensor(3, true)};
    void *graph = made(GRAPH), *pack = made(PACK), *plan = nullptr;
    REQUIRE(tensors[0] && tensors[1] && tensors[2] && pack);
    REQUIRE(set(graph, OPERATIONS, DESCRIPTOR, tensors) == 0 && finalize(graph) == 0);
    REQUIRE((plan = plan_of(graph)));
    const auto execute = [&](void *with) {
        return math("cudnnBackendExecute", handle, plan, with);
    };
    REQUIRE(set(pack, 1000, INT64, std::vector<std::int64_t>{3, 1, 2}) == 0);
    REQUIRE(set(pack, 1001, POINTER, std::vector<void *>{&by, from, to}) == 0);
    REQUIRE(set(pack, 1003, POINTER, std::vector<void *>{nullptr}) == 0);
    REQUIRE(execute(pack) == NOT_FINALIZED && finalize(pack) == 0 && execute(pack) == 0);
    REQUIRE((host_copy(to, 4) == std::vector<float>{2.5f, 5, 7.5f, 10}));
    by = -1; // an execution takes what is there then
    REQUIRE(execute(pack) == 0 && host_copy(to, 4)[3] == -4 && execute(graph) == BAD_PARAM);
    // Not a handle of another process, or of another kind: the library would take it.
    void *open = made(GRAPH);
    REQUIRE(set(open, OPERATIONS, DESCRIPTOR, std::vector<void *>{handle}) == BAD_PARAM);
    REQUIRE(set(open, OPERATIONS, POINTER, std::vector<void *>{from}) == UNSUPPORTED);
    REQUIRE(end(open) == 0);
    REQUIRE(set(plan, 405, TEXT, std::vector<char>{'{'}) == UNSUPPORTED);
    REQUIRE(set(pack, 1000, INT64, std::vector<std::int64_t>{1}) == BAD_PARAM);
    REQUIRE(end(pack) == 0 && end(plan) == 0 && end(plan) != 0 && end(graph) == 0);
    for (void *one : tensors)
        REQUIRE(end(one) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0 && cudaDeviceSynchronize() == 0);
}

bool dnn_tensors()
{
    void *handle = nullptr, *one = nullptr, *none = nullptr;
    std::size_t size = 0;
    const int extents[] = {4, 3}, strides[] = {3, 1};
    const float alpha = 2;
    const double beta = 40;
    float *at = device_copy<float>({0});
    REQUIRE(math("cudnnCreate", &handle) == 0 && math("cudnnCreateTensorDescriptor", &one) == 0);
    REQUIRE(math("cudnnSetTensorNdDescriptor", one, 1, 2, &extents[0], &strides[0]) == 0);
    REQUIRE(math("cudnnGetTensorSizeInBytes", one, &size) == 0 && size == 174);
    REQUIRE(math("cudnnAddTensor", handle, &alpha, one, at, &beta, one, at) == 0);
    REQUIRE(host_copy(at, 1)[0] == 42);
    REQUIRE(math("cudnnGetTensorSizeInBytes", none, &size) == 1001);
    // What has no place to be written to does not end the back end.
    REQUIRE(math("cudnnGetTensorSizeInBytes", one, none) == 0);
    void *rnn = nullptr, *found = nullptr, **nowhere = nullptr;
    const auto weights = [&](void *matrix, void **to) {
        return math("cudnnGetRNNWeightParams", handle, rnn, 0, std::size_t{100}, at, 4, matrix, to,
                    none, nowhere);
    };
    REQUIRE(math("cudnnCreateRNNDescriptor", &rnn) == 0 && weights(one, &found) == 0);
    REQUIRE(found == at + 1 && weights(none, &found) == BAD_PARAM);
    REQUIRE(math("cudnnDestroyRNNDescriptor", rnn) == 0);
    REQUIRE(math("cudnnDestroyTensorDescriptor", one) == 0);
    REQUIRE(math("cudnnGetTensorSizeInBytes", one, &size) == 1001);
    // No descriptor is destroyed with success.
    for (const char *call : {"cudnnDestroyTensorDescriptor", "cudnnDestroyRNNDescriptor"})
        REQUIRE(math(call, none) == 0);
    REQUIRE(end(none) == 2002); // CUDNN_STATUS_BAD_PARAM_NULL_POINTER
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// The request has all that the library reads in memory of the host, whatever a program does before:
// otherwise the library would take the program's addresses for the back end's.
bool dnn_values()
{
    void *handle = nullptr;
    REQUIRE(math("cudnnCreate", &handle) == 0);
    float *from = device_copy<float>({1, 2, 3, 4}), *to = device_copy<float>({0, 0, 0, 0});
    std::vector<void *> tensors = {tensor(1, false), tensor(2, false), tensor(3, true)};
    // The library refuses both.
    REQUIRE(set(tensors[2], BY_VALUE, BOOLEAN, std::vector<std::uint8_t>{0}) == BAD_PARAM);
    REQUIRE(set(tensors[2], NUMBER, INT64, std::vector<std::int64_t>{7}) == BAD_PARAM);
    void *graph = made(GRAPH), *full = made(CONFIGURATION), *pack = made(PACK);
    REQUIRE(set(graph, OPERATIONS, DESCRIPTOR, tensors) == 0 && finalize(graph) == 0);
    void *plan = plan_of(graph);
    REQUIRE(plan && set(pack, 1000, INT64, std::vector<std::int64_t>{3, 1, 2}) == 0);
    REQUIRE(set(pack, 1001, POINTER, std::vector<void *>{from, from, to}) == 0);
    REQUIRE(finalize(pack) == 0 && math("cudnnBackendExecute", handle, plan, pack) == BAD_PARAM);
    // A plan is refused, too, where there is no room to note its tensors.
    std::vector<void *> many;
    for (int i = 0; i < 32; i++)
        many.push_back(tensor(100 + i, true));
    set(full, 401, DESCRIPTOR, many);
    std::int64_t written = 0;
    REQUIRE(math("cudnnBackendGetAttribute", graph, 804, DESCRIPTOR, std::int64_t{1}, &written,
                 static_cast<void *>(&full)) == UNSUPPORTED);
    // A value has 8 bytes at most.
    void *long_one = made(TENSOR), *other = made(GRAPH);
    REQUIRE(set(long_one, NUMBER, INT64, std::vector<std::int64_t>{4}) == 0);
    REQUIRE(set(long_one, SIZES, INT64, std::vector<std::int64_t>{1, 3}) == 0);
    REQUIRE(set(long_one, BY_VALUE, BOOLEAN, std::vector<std::uint8_t>{1}) == 0);
    REQUIRE(finalize(long_one) == 0);
    REQUIRE(set(other, OPERATIONS, DESCRIPTOR, std::vector<void *>{long_one}) == UNSUPPORTED);
    REQUIRE(math("cudnnBackendSetAttribute", other, OPERATIONS, DESCRIPTOR, std::int64_t{1},
                 static_cast<void *>(nullptr)) == BAD_PARAM);
    many.insert(many.end(), {long_one, other, full, graph, plan, pack});
    many.insert(many.end(), tensors.begin(), tensors.end());
    for (void *one : many)
        REQUIRE(end(one) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// An address that this process cannot read is no value, and does not end the process; a tensor may
// be in page-locked memory as in that of the device.
bool dnn_addresses()
{
    void *handle = nullptr, *locked = nullptr;
    REQUIRE(math("cudnnCreate", &handle) == 0);
    float *to = device_copy<float>({0, 0, 0, 0}), by = 2;
    void *nowhere = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(cudaMallocHost(&locked, 4096) == 0);
    std::vector<void *> tensors = {tensor(1, false), tensor(2, false), tensor(3, true)};
    void *graph = made(GRAPH);
    REQUIRE(set(graph, OPERATIONS, DESCRIPTOR, tensors) == 0 && finalize(graph) == 0);
    void *plan = plan_of(graph);
    const auto execute = [&](void *value, void *from) {
        void *pack = made(PACK);
        int status = set(pack, 1000, INT64, std::vector<std::int64_t>{3, 1, 2});
        status = status ? status : set(pack, 1001, POINTER, std::vector<void *>{value, from, to});
        status = status ? status : finalize(pack);
        status = status ? status : math("cudnnBackendExecute", handle, plan, pack);
        return end(pack) ? -1 : status;
    };
    REQUIRE(plan && execute(nowhere, to) == BAD_PARAM && execute(&by, nowhere) == BAD_PARAM);
    for (int i = 0; i < 4; i++)
        static_cast<float *>(locked)[i] = static_cast<float>(i);
    REQUIRE(execute(&by, locked) == 0);
    REQUIRE((host_copy(to, 4) == std::vector<float>{0, 2, 4, 6}));
    tensors.insert(tensors.end(), {graph, plan});
    for (void *one : tensors)
        REQUIRE(end(one) == 0);
    REQUIRE(munmap(nowhere, 4096) == 0 && cudaFreeHost(locked) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// The library keeps the address of a network's dropout, and would look there after the dropout was
// destroyed.
bool dnn_networks()
{
    void *handle = nullptr, *rnn = nullptr, *dropout = nullptr, *none = nullptr, *more = nullptr;
    std::size_t n = 0;
    const auto use = [&](int size, void *of) {
        return math("cudnnSetRNNDescriptor_v8", rnn, 0, 0, 0, 0, 0, 0, 0, 0, size, 1, 1, 1, of, 0);
    };
    const auto ask = [&] { return math("cudnnGetRNNWeightSpaceSize", handle, rnn, &n); };
    const auto make = [&] { return math("cudnnCreateDropoutDescriptor", &dropout); };
    const auto end_dropout = [&] { return math("cudnnDestroyDropoutDescriptor", dropout); };
    REQUIRE(math("cudnnCreate", &handle) == 0 && math("cudnnCreateRNNDescriptor", &rnn) == 0);
    REQUIRE(ask() == 0 && n == 0 && make() == 0 && use(1, dropout) == 0 && ask() == 0 && n == 1);
    REQUIRE(end_dropout() == 0 && ask() == BAD_PARAM);
    REQUIRE(make() == 0 && ask() == BAD_PARAM); // that one may be where the other one was
    REQUIRE(use(1, dropout) == 0 && ask() == 0 && n == 1);
    REQUIRE(use(-1, dropout) == BAD_PARAM && ask() == BAD_PARAM && use(1, none) == 0);
    REQUIRE(ask() == 0 && n == 0 && end_dropout() == 0 && ask() == 0);
    // The network has what is set in the dropout later, whatever was set before.
    float *states = device_copy<float>({0});
    const auto fill_one = [&](void *of, float *with) {
        return math("cudnnSetDropoutDescriptor", of, handle, 0.5f, with, std::size_t{4}, 7ull);
    };
    const auto fill = [&](float *with) { return fill_one(dropout, with); };
    REQUIRE(make() == 0 && use(1, dropout) == 0);
    for (float *with : {states, static_cast<float *>(nullptr), states})
        REQUIRE(fill(with) == 0 && ask() == 0 && n == 1);
    REQUIRE(math("cudnnCreateDropoutDescriptor", &more) == 0 && fill_one(more, states) == 0);
    REQUIRE(use(3, more) == 0 && ask() == 0 && n == 3);
    REQUIRE(math("cudnnDestroyDropoutDescriptor", more) == 0 && ask() == BAD_PARAM);
    REQUIRE(use(1, none) == 0 && use(2, dropout) == 0 && ask() == 0 && n == 2);
    REQUIRE(fill(nullptr) == 0 && ask() == 0 && n == 2);
    REQUIRE(end_dropout() == 0 && ask() == BAD_PARAM);
    REQUIRE(math("cudnnDestroyRNNDescriptor", rnn) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// Descriptors with the same settings are one descriptor at the back end; no program notices.
bool dnn_alike()
{
    void *one = nullptr, *other = nullptr, *dropout = nullptr;
    float *states = device_copy<float>({0});
    int most = 0; // never the same question
    const auto set_to = [](void *of, int size, int dimensions = 2) {
        const std::array<int, 9> extents = {size, 3}, strides = {3, 1};
        return math("cudnnSetTensorNdDescriptor", of, 1, dimensions, extents.data(),
                    strides.data());
    };
    const auto bytes = [](void *of) {
        std::size_t size = 0;
        return math("cudnnGetTensorSizeInBytes", of, &size) ? -1 : static_cast<int>(size);
    };
    const auto handles = [&](void *by) {
        std::array<int, 80> extents{}, steps{};
        int type = 0, n = 0;
        const int status =
            math("cudnnGetTensorNdDescriptor", by, ++most, &type, &n, extents.data(), steps.data());
        return status || extents[0] != most ? -1 : n;
    };
    const auto make = [](void *&to) { return math("cudnnCreateTensorDescriptor", &to); };
    const auto end_one = [](void *of) { return math("cudnnDestroyTensorDescriptor", of); };
    REQUIRE(make(one) == 0 && make(other) == 0 && one != other);
    REQUIRE(set_to(one, 4) == 0 && set_to(other, 4) == 0 && bytes(one) == 174);
    const int before = handles(one);
    std::array<void *, 50> many{};
    for (void *&next : many)
        REQUIRE(make(next) == 0 && set_to(next, 4) == 0 && bytes(next) == 174);
    REQUIRE(before > 0 && handles(one) == before);
    for (void *next : many)
        REQUIRE(end_one(next) == 0 && bytes(next) == -1);
    REQUIRE(handles(one) == before);
    // No other descriptor is changed, and an error comes at once, each time.
    REQUIRE(set_to(other, 5) == 0 && bytes(other) == 184 && bytes(one) == 174);
    REQUIRE(set_to(other, 5, 9) == UNSUPPORTED && set_to(other, 5, 9) == UNSUPPORTED);
    REQUIRE(bytes(other) == 184 && handles(one) == before + 1);
    // What was set once is not kept for ever.
    for (int i = 0; i < 700; i++)
        REQUIRE(set_to(other, 1000 + i) == 0 && bytes(other) == 10134 + 10 * i);
    const int after = handles(one);
    REQUIRE(after > before && after < before + 600 && bytes(one) == 174);
    // One without states is shared, too.
    void *by = nullptr;
    REQUIRE(math("cudnnCreate", &by) == 0 && math("cudnnCreateDropoutDescriptor", &dropout) == 0);
    const auto keep = [&](float part) {
        return math("cudnnSetDropoutDescriptor", dropout, by, part, static_cast<void *>(nullptr),
                    std::size_t{0}, 7ull);
    };
    REQUIRE(keep(0.5f) == 0 && keep(2) == BAD_PARAM && keep(2) == BAD_PARAM && keep(0.5f) == 0);
    REQUIRE(math("cudnnDestroyDropoutDescriptor", dropout) == 0 && math("cudnnDestroy", by) == 0);
    // A dropout with states that a call fills is not shared, and goes when it is destroyed.
    int left = 0;
    for (int i = 0; i < 2; i++) {
        void *handle = nullptr;
        left = handles(one);
        REQUIRE(math("cudnnCreateDropoutDescriptor", &dropout) == 0 &&
                math("cudnnCreate", &handle) == 0);
        REQUIRE(math("cudnnSetDropoutDescriptor", dropout, handle, 0.5f, states, std::size_t{4},
                     7ull) == 0);
        REQUIRE(handles(one) >= left + 1);
        REQUIRE(math("cudnnDestroyDropoutDescriptor", dropout) == 0);
        REQUIRE(math("cudnnDestroy", handle) == 0);
    }
    REQUIRE(handles(one) == left);
    // With the device's reset the back end's are no more; new ones are.
    REQUIRE(end_one(one) == 0 && cudaDeviceReset() == 0 && make(one) == 0 && set_to(one, 4) == 0);
    REQUIRE(bytes(one) == 174 && set_to(other, 4) == 0 && bytes(other) == 174);
    return HOLDS(end_one(one) == 0 && end_one(other) == 0 && end_one(other) != 0);
}

// Requests that are longer than a message's usual part: a batch of many sequences, a graph of many
// tensors.
bool dnn_long()
{
    void *handle = nullptr, *rnn = nullptr, *data = nullptr, *pack = made(PACK);
    float fill = 0, by = 3;
    REQUIRE(math("cudnnCreate", &handle) == 0 && math("cudnnCreateRNNDescriptor", &rnn) == 0);
    REQUIRE(math("cudnnCreateRNNDataDescriptor", &data) == 0);
    for (const int batch : {464, 465, 1200, 5000, 15900}) {
        std::vector<int> lengths(static_cast<std::size_t>(batch));
        int sum = 0;
        for (int &length : lengths)
            sum += length = 1 + static_cast<int>(&length - lengths.data()) % 7;
        for (int times = 0; times < 2; times++) {
            std::size_t work = 0, reserve = 0;
            REQUIRE(math("cudnnSetRNNDataDescriptor", data, 0, 0, 7, batch, 1, lengths.data(),
                         &fill) == 0);
            REQUIRE(math("cudnnGetRNNTempSpaceSizes", handle, rnn, 0, data, &work, &reserve) == 0);
            REQUIRE(work == static_cast<std::size_t>(sum) && reserve == work);
        }
    }
    float *from = device_copy<float>({1, 2, 3, 4}), *to = device_copy<float>({0, 0, 0, 0});
    std::vector<void *> tensors = {tensor(1, false), tensor(2, false), tensor(3, true)};
    void *graph = made(GRAPH);
    REQUIRE(set(graph, OPERATIONS, DESCRIPTOR, tensors) == 0 && finalize(graph) == 0);
    void *plan = plan_of(graph);
    std::vector<std::int64_t> numbers = {3, 1, 2};
    std::vector<void *> addresses = {&by, from, to};
    for (std::int64_t i = 4; i <= 200; i++) {
        numbers.push_back(i);
        addresses.push_back(to);
    }
    REQUIRE(set(pack, 1000, INT64, numbers) == 0 && set(pack, 1001, POINTER, addresses) == 0);
    REQUIRE(finalize(pack) == 0 && math("cudnnBackendExecute", handle, plan, pack) == 0);
    REQUIRE((host_copy(to, 4) == std::vector<float>{3, 6, 9, 12}));
    tensors.insert(tensors.end(), {graph, plan, pack});
    for (void *one : tensors)
        REQUIRE(end(one) == 0);
    REQUIRE(math("cudnnDestroyRNNDataDescriptor", data) == 0);
    REQUIRE(math("cudnnDestroyRNNDescriptor", rnn) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// What does not fit into a request is refused, with a line that says so.
bool dnn_too_long()
{
    void *one = nullptr, *pack = made(PACK);
    const std::vector<int> extents(10000, 1);
    const std::vector<std::int64_t> numbers(1025, 1);
    REQUIRE(math("cudnnCreateTensorDescriptor", &one) == 0 && pack);
    REQUIRE(math("cudnnSetTensorNdDescriptor", one, 1, 10000, extents.data(), extents.data()) ==
            BAD_PARAM);
    REQUIRE(set(pack, 1000, INT64, numbers) == UNSUPPORTED);
    REQUIRE(math("cudnnDestroyTensorDescriptor", one) == 0);
    return HOLDS(end(pack) == 0);
}

// cuDNN writes all results that there are if it is asked for -1: there is no room for these.
bool dnn_without_number()
{
    std::array<void *, 4> of{};
    void *handle = nullptr;
    std::array<std::array<std::uint8_t, 48>, 8> results{};
    int n = 0;
    REQUIRE(math("cudnnCreate", &handle) == 0);
    REQUIRE(math("cudnnCreateTensorDescriptor", &of[0]) == 0);
    REQUIRE(math("cudnnCreateFilterDescriptor", &of[1]) == 0);
    REQUIRE(math("cudnnCreateConvolutionDescriptor", &of[2]) == 0);
    REQUIRE(math("cudnnCreateTensorDescriptor", &of[3]) == 0);
    const auto search = [&](int most) {
        return math("cudnnGetConvolutionForwardAlgorithm_v7", handle, of[0], of[1], of[2], of[3],
                    most, &n, results.data());
    };
    REQUIRE(search(-1) == BAD_PARAM && search(0) == 0 && n == 0);
    REQUIRE(search(3) == 0 && n == 3 && results[2][47] == 3 && results[3][0] == 0);
    REQUIRE(math("cudnnDestroyTensorDescriptor", of[3]) == 0);
    REQUIRE(math("cudnnDestroyConvolutionDescriptor", of[2]) == 0);
    REQUIRE(math("cudnnDestroyFilterDescriptor", of[1]) == 0);
    REQUIRE(math("cudnnDestroyTensorDescriptor", of[0]) == 0);
    return HOLDS(math("cudnnDestroy", handle) == 0);
}

// Two threads may set one dropout, each with a handle of its own: the library has no lock for that.
bool dnn_threads()
{
    constexpr unsigned long long CALLS = 300;
    void *dropout = nullptr;
    float *states = device_copy<float>({0}); // so that it is not another one each time
    REQUIRE(math("cudnnCreateDropoutDescriptor", &dropout) == 0);
    std::array<bool, 2> good{};
    std::vector<std::thread> threads;
    for (bool &is : good)
        threads.emplace_back([&is, dropout, states] {
            void *handle = nullptr;
            is = math("cudnnCreate", &handle) == 0;
            for (unsigned long long seed = 0; seed < CALLS && is; seed++) // none is like another
                is = math("cudnnSetDropoutDescriptor", dropout, handle, 0.5f, states,
                          std::size_t{4}, seed) == 0;
            is = is && math("cudnnDestroy", handle) == 0;
        });
    for (std::thread &thread : threads)
        thread.join();
    return HOLDS(good[0] && good[1] && math("cudnnDestroyDropoutDescriptor", dropout) == 0);
}
