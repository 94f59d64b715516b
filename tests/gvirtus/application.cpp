// SPDX-License-Identifier: LGPL-2.1-or-later
//
// An application of CUDA, for libibx-frontend.so to be preloaded into: test_frontend.cpp runs it.
//
//   application TEST [taken]     `taken`: the back end's plugin runs the copies
#include "tests/gvirtus/application.h"
#include "tests/fixtures/patience.h"

#include <atomic>
#include <cstdint>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <unistd.h>

bool taken, over_shm;

void stop(pid_t process)
{
    if (!kill(process, SIGSTOP))
        while (!threads_are(process, 'T', 0))
            std::this_thread::yield();
}

char *device_memory(std::size_t n)
{
    void *device = nullptr;
    return cudaMalloc(&device, n) ? nullptr : static_cast<char *>(device);
}

bool device_has(const char *device, const char *bytes, std::size_t n)
{
    std::vector<char> got(n, 'x');
    return stub_remote()->peek(reinterpret_cast<std::uintptr_t>(device), got.data(), n) &&
           !std::memcmp(got.data(), bytes, n);
}

long peak()
{
    long found = -1;
    char line[256];
    std::FILE *status = std::fopen("/proc/self/status", "re");
    while (status && std::fgets(line, sizeof(line), status))
        std::sscanf(line, "VmHWM: %ld", &found);
    std::fclose(status);
    return found;
}

namespace
{

bool threads()
{
    bool good[4] = {};
    std::vector<std::thread> all;
    FirstCalls first_calls;
    for (unsigned i = 0; i < 4; i++)
        all.emplace_back([&good, &first_calls, i] {
            // The first call of a thread is a copy: GVirtuS makes its connection then.
            char byte = 1, *nowhere = reinterpret_cast<char *>(std::uintptr_t{4096});
            bool first = cudaMemcpy(nowhere, &byte, 1, H2D) != 0;
            first_calls.note_end();
            char *device = device_memory();
            std::vector<char> memory(3000000);
            good[i] = first && device;
            for (unsigned round = 0; round < 20 && good[i]; round++)
                good[i] =
                    round_trip(device, memory.data(), 30000 + round * 140000, i * 100 + round);
        });
    for (std::thread &thread : all)
        thread.join();
    REQUIRE(good[0] && good[1] && good[2] && good[3]);
    REQUIRE(stub_copies() == 4);
    return HOLDS(first_calls.came_in_turn());
}

std::size_t open_files()
{
    std::size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

// A thread's connection ends with the thread, though GVirtuS keeps its data about that thread.
bool threads_end()
{
    std::size_t files = 0;
    pid_t last = 0;
    bool good = true;
    auto in_thread = [&](const std::function<void()> &what) {
        std::thread thread(what);
        thread.join();
    };
    char *device = device_memory();
    std::vector<char> memory(3000000);
    REQUIRE(round_trip(device, memory.data(), memory.size(), 99));
    for (unsigned i = 0; i < 20 && good; i++) {
        in_thread([&] {
            last = gettid();
            char *own = device_memory(memory.size());
            good = own && round_trip(own, memory.data(), memory.size(), i) && !cudaFree(own);
        });
        files = i ? files : open_files();
    }
    REQUIRE(good && open_files() <= files);
    // The number of the thread is given out again.
    std::uint64_t before = stub_copies();
    in_thread([&] {
        stub_same_number(last);
        char byte = 1, *nowhere = reinterpret_cast<char *>(std::uintptr_t{4096});
        good = cudaMemcpy(nowhere, &byte, 1, H2D) == 1;
        good = good && round_trip(device, memory.data(), memory.size(), 100);
    });
    REQUIRE(good && stub_copies() == before + 1);
    // What the thread has begun goes on.
    void *stream, *page_locked;
    REQUIRE(cudaStreamCreate(&stream) == 0 && cudaMallocHost(&page_locked, memory.size()) == 0);
    random_fill(memory.data(), memory.size(), 101);
    std::memcpy(page_locked, memory.data(), memory.size());
    stub_remote()->slow(50000);
    in_thread([&] {
        good = device_memory(1) &&
               !cudaMemcpyAsync(device, page_locked, memory.size(), H2D, stream) &&
               !cudaMemcpyAsync(page_locked, device, memory.size(), D2H, stream);
    });
    REQUIRE(good && cudaStreamSynchronize(stream) == 0);
    stub_remote()->slow(0);
    REQUIRE(!std::memcmp(page_locked, memory.data(), memory.size()));
    REQUIRE(device_has(device, memory.data(), memory.size()));
    return HOLDS(cudaFreeHost(page_locked) == 0);
}

// Variables of the device, which GVirtuS copies in one direction only.
bool symbols()
{
    constexpr std::size_t n = 3000;
    static char variable[1]; // by whose address the back end knows it
    char *device = device_memory(), back[n], there[n];
    using Copy = int(void *, const void *, std::size_t, std::size_t, int);
    using CopyAsync = int(void *, const void *, std::size_t, std::size_t, int, void *);
    auto *copy = preloaded<Copy>("cudaMemcpyFromSymbol");
    auto *copy_async = preloaded<CopyAsync>("cudaMemcpyFromSymbolAsync");
    REQUIRE(copy && copy_async);
    const auto symbol = reinterpret_cast<std::uint64_t>(variable);
    if (!stub_remote()->register_var(symbol, reinterpret_cast<std::uint64_t>(device), n))
        return true; // nothing stands for CUDA's runtime here
    random_fill(there, n, 9);
    REQUIRE(cudaMemcpy(device, there, n, H2D) == 0);
    for (int kind : {static_cast<int>(D2H), DEFAULT}) {
        std::memset(back, 0, n);
        REQUIRE(copy(back, variable, n - 100, 100, kind) == 0);
        REQUIRE(!std::memcmp(back, there + 100, n - 100) && back[n - 100] == 0);
        REQUIRE(copy_async(back, variable, n, 0, kind, nullptr) == 0);
        REQUIRE(cudaDeviceSynchronize() == 0 && !std::memcmp(back, there, n));
    }
    for (int kind : {static_cast<int>(D2D), DEFAULT}) {
        REQUIRE(cudaMemcpy(device + n, back, n - 1, H2D) == 0);
        REQUIRE(copy(device + n, variable, n, 0, kind) == 0 && cudaDeviceSynchronize() == 0);
        REQUIRE(device_has(device + n, there, n));
        std::memset(back, 1, n);
    }
    cudaGetLastError();
    REQUIRE(copy(back, variable, n, 0, H2D) == 21 && cudaGetLastError() == 21);
    REQUIRE(copy(back, &device, n, 0, D2H) == 13);
    return true;
}

// Calls that need no back end, and work when there is none.
bool names()
{
    using Text = const char *(int);
    auto *name = preloaded<Text>("cudaGetErrorName"), *text = preloaded<Text>("cudaGetErrorString");
    auto *start = preloaded<int()>("cudaProfilerStart"),
         *stop = preloaded<int()>("cudaProfilerStop");
    REQUIRE(name && text && start && stop && start() == 0 && stop() == 0);
    const struct {
        int code;
        const char *name, *text;
    } known[] = {
        {0, "cudaSuccess", "no error"},
        {1, "cudaErrorInvalidValue", "invalid argument"},
        {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
        {209, "cudaErrorNoKernelImageForDevice",
         "no kernel image is available for execution on the device"},
        {402, "cudaErrorLossyQuery", "attempted introspection would be semantically lossy"},
        {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
        {912, "cudaErrorInvalidClusterSize",
         "a kernel launch error has occurred due to cluster misconfiguration"},
        {999, "cudaErrorUnknown", "unknown error"},
        {-1, "unrecognized error code", "unrecognized error code"},
        {12345, "unrecognized error code", "unrecognized error code"},
    };
    for (const auto &each : known) {
        REQUIRE(!std::strcmp(name(each.code), each.name));
        REQUIRE(!std::strcmp(text(each.code), each.text));
    }
    return true;
}

// With a communicator of GVirtuS's own.
bool stock()
{
    void *device = nullptr;
    char there[100], back[100] = {};
    random_fill(there, sizeof(there), 1);
    REQUIRE(cudaMalloc(&device, sizeof(there)) == 0);
    for (unsigned i = 0; i < 3; i++) {
        REQUIRE(cudaMemcpy(device, there, sizeof(there), H2D) == 0);
        REQUIRE(cudaMemcpyAsync(back, device, sizeof(back), D2H, nullptr) == 0);
        REQUIRE(!std::memcmp(there, back, sizeof(back)));
    }
    REQUIRE(stub_copies() == 6);
    void *page_locked;
    REQUIRE(cudaMallocHost(&page_locked, 10) == 0 && cudaFreeHost(page_locked) == 0);
    REQUIRE(cudaHostAlloc(&page_locked, 10, 0) == 0 && cudaFreeHost(page_locked) == 0);
    REQUIRE(stub_hosts() == 4);
    REQUIRE(host_register(there, sizeof(there), 0) == 801); // as this libcudart has none
    REQUIRE(cudaFree(device) == 0);
    return true;
}

// With a plugin of another build.
bool other_version()
{
    const struct {
        unsigned version;
    } calls = {4711};
    using Attach = void(const void *);
    auto *attach = reinterpret_cast<Attach *>(dlsym(RTLD_DEFAULT, "ibx_frontend_attach"));
    REQUIRE(attach);
    attach(&calls);
    attach(&calls);
    return HOLDS(stock());
}

} // namespace

int main(int argc, char **argv)
{
    const std::map<std::string, std::function<bool()>> tests = {
        {"sizes", sizes_and_offsets},
        {"default", default_kind},
        {"rows", [] { return rows() && empty_rows(); }},
        {"threads", threads},
        {"threads-end", threads_end},
        {"threads-connect-at-once", threads_connect_at_once},
        {"thread-is-refused", thread_is_refused},
        {"forks-among-beginners", forks_among_beginners},
        {"threads-are-refused", threads_are_refused},
        {"endpoint-is-kept", endpoint_is_kept},
        {"no-copy", no_copy},
        {"remapped", remapped},
        {"errors", errors},
        {"first-thread-ends", first_thread_ends},
        {"cancelled-thread", cancelled_thread},
        {"cancelled-in-first-call", cancelled_in_first_call},
        {"forked", forked},
        {"forked-exit", forked_exit},
        {"closes-at-exit", closes_at_exit},
        {"threads-have-ended", threads_have_ended},
        {"thread-ends-late", thread_ends_late},
        {"threads-go-on", threads_go_on},
        {"thread-connects-last", thread_connects_last},
        {"threads-go-on-in-child", threads_go_on_in_child},
        {"killed", killed},
        {"killed-background", killed_background},
        {"pinned", pinned},
        {"freed-beside-captures", freed_beside_captures},
        {"sent-on", sent_on},
        {"sent-on-beyond-pins", sent_on_beyond_pins},
        {"pinned-beside-others", pinned_beside_others},
        {"random-pins", random_pins},
        {"page-locked-ends", page_locked_ends},
        {"kernels-and-page-locked", kernels_and_page_locked},
        {"page-locked-of-threads", page_locked_of_threads},
        {"page-locked-after-resets", page_locked_after_resets},
        {"page-locked-again", page_locked_again},
        {"page-locked-in-turn", page_locked_in_turn},
        {"page-locked-of-unknown", page_locked_of_unknown},
        {"page-locked-of-graphs", page_locked_of_graphs},
        {"page-locked-and-forks", page_locked_and_forks},
        {"page-locked-pieces", page_locked_pieces},
        {"page-locked-in-place", page_locked_in_place},
        {"registered-in-kernels", registered_in_kernels},
        {"registered-beside-others", registered_beside_others},
        {"registered-and-forks", registered_and_forks},
        {"registered-and-handlers-of-forks", registered_and_handlers_of_forks},
        {"registered-anywhere", registered_anywhere},
        {"registered-beyond-pins", registered_beyond_pins},
        {"async", async},
        {"on-host", on_host},
        {"devices", devices},
        {"no-device", no_device},
        {"peers", peers},
        {"memory-after-reset", memory_after_reset},
        {"managed-on-devices", managed_on_devices},
        {"pools-of-devices", pools_of_devices},
        {"pools-of-peers", pools_of_peers},
        {"calls", calls},
        {"processes", processes},
        {"programs", programs},
        {"processes-and-pools", processes_and_pools},
        {"processes-and-mapped", processes_and_mapped},
        {"processes-apart", processes_apart},
        {"sets-in-streams", sets_in_streams},
        {"sets-after-a-loss", sets_after_a_loss},
        {"sets-nowhere", sets_nowhere},
        {"fails-beyond", fails_beyond},
        {"kinds-of-planes", kinds_of_planes},
        {"page-locked-is-called-device", page_locked_is_called_device},
        {"device-is-called-host", device_is_called_host},
        {"failed-allocations", failed_allocations},
        {"errors-around-work", errors_around_work},
        {"configurations", configurations},
        {"memory-that-ends", memory_that_ends},
        {"memory-that-may-not-be-touched", memory_that_may_not_be_touched},
        {"short-copies", short_copies},
        {"background", [] { return background(false); }},
        {"background-registered", [] { return background(true); }},
        {"leaves", leaves},
        {"exits", exits},
        {"after", after},
        {"host-register", registrations},
        {"stale-registration", stale_registration},
        {"refused", refused},
        {"launch", launch},
        {"launches", launches},
        {"launches-after-modules", launches_after_modules},
        {"launches-of-new-threads", launches_of_new_threads},
        {"launches-unseen", launches_unseen},
        {"launches-of-many-bytes", launches_of_many_bytes},
        {"nodes-of-many-bytes", nodes_of_many_bytes},
        {"arrays", arrays},
        {"libraries", libraries},
        {"libraries-again", libraries_again},
        {"libraries-beside-unloads", libraries_beside_unloads},
        {"taken-for-another", taken_for_another},
        {"math-libraries", math_libraries},
        {"dnn-graphs", dnn_graphs},
        {"dnn-tensors", dnn_tensors},
        {"dnn-values", dnn_values},
        {"dnn-addresses", dnn_addresses},
        {"dnn-networks", dnn_networks},
        {"dnn-too-long", dnn_too_long},
        {"dnn-without-number", dnn_without_number},
        {"dnn-threads", dnn_threads},
        {"dnn-alike", dnn_alike},
        {"dnn-long", dnn_long},
        {"nccl-threads", nccl_threads},
        {"nccl-one-thread", nccl_one_thread},
        {"nccl-without-waiting", nccl_without_waiting},
        {"nccl-aborts", nccl_aborts},
        {"nccl-asked", nccl_asked},
        {"nccl-destroyed", nccl_destroyed},
        {"nccl-first-rank", [] { return nccl_rank(0); }},
        {"nccl-second-rank", [] { return nccl_rank(1); }},
        {"nccl-left", nccl_left},
        {"no-nccl", no_nccl},
        {"nccl-by-name", nccl_by_name},
        {"lt-library", lt_library},
        {"math-settings", math_settings},
        {"math-library-first", math_library_first},
        {"math-threads", math_threads},
        {"no-math-libraries", no_math_libraries},
        {"absent-from-math", absent_from_math},
        {"leaves-math-libraries", leaves_math_libraries},
        {"mipmaps", mipmaps},
        {"planes", planes_of_arrays},
        {"planes-of-memory", planes_of_memory},
        {"planes-of-blocks", planes_of_blocks},
        {"array-to-array", array_to_array},
        {"textures", textures},
        {"descriptions", descriptions},
        {"textures-beyond", textures_beyond},
        {"capture-modes", capture_modes},
        {"pools", pools},
        {"pools-of-host", pools_of_host},
        {"stream-of-thread", stream_of_thread},
        {"destroyed-beside-wait", destroyed_beside_wait},
        {"queries", queries},
        {"printed", printed},
        {"printed-told", printed_told},
        {"printed-last", [] { return printed_last(PrintedLast::returns); }},
        {"printed-last-beside-child", [] { return printed_last(PrintedLast::child); }},
        {"printed-last-in-function", [] { return printed_last(PrintedLast::function); }},
        {"printed-last-by-thread", [] { return printed_last(PrintedLast::thread); }},
        {"printed-last-stopped", [] { return printed_last(PrintedLast::stopped); }},
        {"printed-last-at-once", [] { return printed_last(PrintedLast::at_once); }},
        {"visible-devices", visible_devices},
        {"names-of-runtime", names_of_runtime},
        {"calls-of-cuda-12", calls_of_cuda_12},
        {"calls-after-cuda-13", calls_after_cuda_13},
        {"driver-after-cuda-13", driver_after_cuda_13},
        {"absent", absent},
        {"managed", managed},
        {"mapped", mapped},
        {"mapped-for-ever", mapped_for_ever},
        {"signals-in-calls", signals_in_calls},
        {"pointers", pointers},
        {"managed-reads", managed_reads},
        {"managed-in-function", managed_in_function},
        {"managed-in-function-before-copies to the host", managed_in_function_before_copies},
        {"managed-in-function-before-copies to the device",
         managed_in_function_before_copies_to_device},
        {"managed-in-function-before-kernels", managed_in_function_before_kernels},
        {"managed-in-function-beside-load", managed_in_function_beside_load},
        {"managed-in-function-beside-load-with-attribute",
         managed_in_function_beside_load_with_attribute},
        {"managed-in-function-and-child", managed_in_function_and_child},
        {"managed-made-beside-function", managed_made_beside_function},
        {"managed-given-beside-first-function", managed_given_beside_first_function},
        {"copies-of-managed-in-graphs", copies_of_managed_in_graphs},
        {"managed-at-exit", managed_at_exit},
        {"meanwhile", meanwhile},
        {"cooperative", cooperative},
        {"cooperative-again", cooperative_again},
        {"copies-in-graphs", copies_in_graphs},
        {"copies-in-graphs-by-calls", copies_in_graphs_by_calls},
        {"copies-with-arrays", copies_with_arrays},
        {"bytes-of-launches", bytes_of_launches},
        {"awaited-copies", copies_that_launches_await},
        {"graphs", graphs},
        {"few-bytes-of-graphs", few_bytes_of_graphs},
        {"graphs-within-graphs", graphs_within_graphs},
        {"graphs-after-resets", graphs_after_resets},
        {"pinned-bytes-of-graphs", pinned_bytes_of_graphs},
        {"nodes-of-graphs", nodes_of_graphs},
        {"questions-about-graphs", questions_about_graphs},
        {"kernels-of-graphs", kernels_of_graphs},
        {"kernels-set-again",
         [] { return kernels_that_are_set_again() && updates_that_are_repeated(); }},
        {"attributes-of-nodes", attributes_of_nodes},
        {"events-and-functions-of-nodes",
         [] { return events_and_functions_of_nodes() && nodes_of_no_executable(); }},
        {"graphs-of-nodes", graphs_of_nodes},
        {"parameters-of-all-kinds", parameters_of_all_kinds},
        {"objects-of-graphs", objects_of_graphs},
        {"drawings-of-graphs", drawings_of_graphs},
        {"captures", captures},
        {"captures-of-planes", captures_of_planes},
        {"captures-of-events", captures_of_events},
        {"captures-of-callbacks", captures_of_callbacks},
        {"captures-forbid", captures_forbid},
        {"copies-beside-captures", copies_beside_captures},
        {"empty-copies-in-captures", empty_copies_in_captures},
        {"captures-are-known", captures_are_known},
        {"sticky-errors", sticky_errors_of_local_calls},
        {"waits-for-captures", captures_keep_nobody_waiting},
        {"conditions", conditions},
        {"graphs-lost", graphs_lost},
        {"frees-beside-graphs", frees_beside_graphs},
        {"destroyed-while-running", destroyed_while_running},
        {"unpinned-beside-graphs", unpinned_beside_graphs},
        {"loads-beside-graphs", loads_beside_graphs},
        {"killed-in-graph", killed_in_graph},
        {"killed-while-mapped", killed_while_mapped},
        {"killed-beside-endless", killed_beside_endless},
        {"lied-to", lied_to},
        {"host-functions", host_functions},
        {"host-functions-as-gates", host_functions_as_gates},
        {"gates-after-reset", gates_after_reset},
        {"launches-beside-gates", launches_beside_gates},
        {"order-behind-legacy", order_behind_legacy},
        {"order-between-streams", order_between_streams},
        {"order-behind-kernels", order_behind_kernels},
        {"events-are-kept", events_are_kept},
        {"events-after-a-loss", events_after_a_loss},
        {"calls-in-host-functions", calls_in_host_functions},
        {"host-functions-after-reset", host_functions_after_reset},
        {"host-functions-lost", host_functions_lost},
        {"host-functions-at-exit", host_functions_at_exit},
        {"own-threads-unconnected", own_threads_unconnected},
        {"host-function-for-ever", host_function_for_ever},
        {"local-library", local_library},
        {"local-driver", local_driver},
        {"driver-begins", driver_begins},
        {"driver-contexts", driver_contexts},
        {"driver-context-of-threads", driver_context_of_threads},
        {"driver-and-runtime", driver_and_runtime},
        {"driver-errors-apart", driver_errors_apart},
        {"driver-tells-late-errors", driver_tells_late_errors},
        {"driver-keeps-order-of-errors", driver_keeps_order_of_errors},
        {"driver-memory", driver_memory},
        {"driver-modules", driver_modules},
        {"driver-streams", driver_streams},
        {"driver-values", driver_values},
        {"driver-killed-while-waiting", driver_killed_while_waiting},
        {"driver-killed-without-handles", driver_killed_without_handles},
        {"driver-killed-in-call-without-handles", driver_killed_in_call_without_handles},
        {"driver-entry-points", driver_entry_points},
        {"driver-planes", driver_planes},
        {"driver-arrays", driver_arrays},
        {"driver-graphs", driver_graphs},
        {"driver-pools", driver_pools},
        {"driver-refused-frees", driver_refused_frees},
        {"driver-textures", driver_textures},
        {"driver-shares", driver_shares},
        {"driver-hints", driver_hints},
        {"driver-pointer-answers", driver_pointer_answers},
        {"driver-ranges-of-variables", driver_ranges_of_variables},
        {"driver-begins-after-runtime", driver_begins_after_runtime},
        {"driver-begins-in-another-thread", driver_begins_in_another_thread},
        {"driver-after-questions", driver_after_questions},
        {"driver-odd-answers", driver_odd_answers},
        {"driver-launch-answers", driver_launch_answers},
        {"driver-launches-what-is-set", driver_launches_what_is_set},
        {"driver-green-contexts", driver_green_contexts},
        {"driver-sets-elements", driver_sets_elements},
        {"driver-lone-variables", driver_lone_variables},
        {"driver-without-context", driver_without_context},
        {"driver-packed-nodes", driver_packed_nodes},
        {"driver-compiler-says", driver_compiler_says},
        {"driver-maps-memory", driver_maps_memory},
        {"driver-maps-tensors", driver_maps_tensors},
        {"driver-maps-nothing", driver_maps_nothing},
        {"driver-maps-until-reset", driver_maps_until_reset},
        {"not-supported", not_supported},
        {"symbols", symbols},
        {"variables", variables},
        {"variables-in-children", variables_in_children},
        {"modules-of-ended", modules_of_ended},
        {"modules-of-ended-alone", modules_of_ended_alone},
        {"daemon-launches", daemon_launches},
        {"left-beside-child", left_beside_child},
        {"modules-of-two-threads", modules_of_two_threads},
        {"modules-and-forks", modules_and_forks},
        {"modules-deferred", modules_deferred},
        {"modules-deferred-print", modules_deferred_print},
        {"modules-deferred-beside-open", modules_deferred_beside_open},
        {"names", names},
        {"forked-meanwhile", forked_meanwhile},
        {"forked-at-first-calls", forked_at_first_calls},
        {"forked-beside-first-call", forked_beside_first_call},
        {"forked-beside-connected", forked_beside_connected},
        {"forked-beside-a-look", forked_beside_a_look},
        {"looks-under-the-lock", looks_under_the_lock},
        {"programs-beside-calls", programs_beside_calls},
        {"daemons", daemons},
        {"own-descriptors", own_descriptors},
        {"helpers-of-clone", helpers_of_clone},
        {"waits-in-handlers", waits_in_signal_handlers},
        {"cancelled-in-copies", cancelled_in_copies},
        {"cancelled-before-calls", cancelled_before_calls},
        {"small-stacks", small_stacks},
        {"modules-beside-launches", modules_beside_launches},
        {"exits-in-function-waited-for", [] { return exits_in_host_function(Meanwhile::waits); }},
        {"exits-in-function-beside-work", [] { return exits_in_host_function(Meanwhile::works); }},
        {"exits-in-function-alone", [] { return exits_in_host_function(Meanwhile::pauses); }},
        {"calls-as-threads-end", calls_as_threads_end},
        {"calls-as-process-ends", calls_as_process_ends},
        {"exits-in-handler", exits_in_handler},
        {"exits-in-search", exits_in_search},
        {"exits-in-wait", exits_in_wait},
        {"ends-beside-standstill", ends_beside_standstill},
        {"bytes-are-taken", bytes_are_taken},
        {"copies-behind-gates", copies_behind_gates},
        {"forked-beside-waits", forked_beside_waits},
        {"stock", stock},
        {"other-version", other_version},
    };
    alarm(100 * patience_times());
    taken = argc > 2;
    const char *provider = std::getenv("STUB_PROVIDER");
    over_shm = provider && !std::strcmp(provider, "shm");
    auto test = argc > 1 ? tests.find(argv[1]) : tests.end();
    return test == tests.end() ? 2 : test->second() ? 0 : 1;
}
