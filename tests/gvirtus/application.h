// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Shared by the tests of application.cpp and those about page-locked memory and asynchronous
// copies.
#ifndef TESTS_FRONTEND_APPLICATION_H
#define TESTS_FRONTEND_APPLICATION_H

#include "tests/gvirtus/checks.h"
#include "tests/gvirtus/remote.h"
#include "tests/doubles/gvirtus/cudart.h"
#include "tests/fixtures/random_fill.h"
#include "tests/fixtures/thread_state.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <thread>
#include <unistd.h>
#include <vector>

// taken: the back end's plugin runs the copies.
extern bool taken, over_shm;

constexpr int DEFAULT = 4; // cudaMemcpyDefault

constexpr std::size_t device_bytes_each = 20u << 20;

template <typename F> F *preloaded(const char *name)
{
    return reinterpret_cast<F *>(dlsym(RTLD_DEFAULT, name));
}

// These call the preload's functions; the libcudart has none.
inline int host_register(void *address, std::size_t n, unsigned flags = 0)
{
    return preloaded<int(void *, std::size_t, unsigned)>("cudaHostRegister")(address, n, flags);
}
inline int host_unregister(void *address)
{
    return preloaded<int(void *)>("cudaHostUnregister")(address);
}

// cudaLaunchAttribute and cudaLaunchConfig_t, for cudaLaunchKernelExC.
struct LaunchAttribute {
    long id;
    int value[16];
};
struct LaunchConfig {
    StubDim3 grid, block;
    std::size_t shared;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned count;
};
using LaunchAs = int(const LaunchConfig *config, const void *function, void **arguments);

// Whether the call has failed with this code, which cudaGetLastError() then returns once.
inline bool fails(int rc, int code)
{
    REQUIRE(rc == code && cudaGetLastError() == code && cudaGetLastError() == 0);
    return true;
}

// The first calls of threads that begin together. GVirtuS makes a thread's connection then.
class FirstCalls
{
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = Clock::now();
    const unsigned most_before = std::max(2u, stub_connecting_most());
    std::atomic<Clock::duration> last{};

  public:
    // The thread's first call has returned.
    void note_end()
    {
        const Clock::duration took = Clock::now() - began;
        for (Clock::duration seen = last; seen < took && !last.compare_exchange_weak(seen, took);)
            ;
    }
    // Whether at most one that was about to return was beside the next one. A thread waits 3 s for
    // its turn.
    bool came_in_turn() const
    {
        return stub_connecting_most() <= most_before || last.load() >= std::chrono::seconds(3);
    }
};

// For a function of a stream: whether it is over. It ends when the thread has waited for a while.
struct UntilItWaits {
    std::atomic<bool> over{false};
    const pid_t thread = gettid();
};
inline void until_it_waits(void *one)
{
    auto *it = static_cast<UntilItWaits *>(one);
    for (int asleep = 0; asleep < 200; usleep(1000))
        asleep = thread_state(getpid(), it->thread) == 'S' ? asleep + 1 : 0;
    it->over = true;
}

// For a function of a stream that is over when a flag of its own is set.
inline void until_set(void *flag)
{
    while (!*static_cast<std::atomic<bool> *>(flag))
        std::this_thread::yield();
}

// Stops the process, and waits until none of its threads runs any more.
void stop(pid_t process);

inline std::vector<char> random_bytes(std::size_t n, unsigned seed)
{
    std::vector<char> bytes(n);
    random_fill(bytes.data(), n, seed);
    return bytes;
}
inline bool has(const char *memory, const std::vector<char> &bytes)
{
    return !std::memcmp(memory, bytes.data(), bytes.size());
}

char *device_memory(std::size_t n = device_bytes_each);
bool device_has(const char *device, const char *bytes, std::size_t n);
// Copies to the device, and back into other memory. The bytes before and after that must not
// change.
bool round_trip(char *device, char *memory, std::size_t n, unsigned seed, void *stream = nullptr);

// Peak memory of this process, KiB.
long peak();

// application_copies.cpp
bool sizes_and_offsets();
bool default_kind();
bool rows();
bool empty_rows();
bool planes_of_blocks();
bool no_copy();
bool remapped();
bool errors();
bool refused();

// application_ends.cpp
bool forked_exit();
bool closes_at_exit();
bool threads_have_ended();
bool threads_go_on();
bool thread_connects_last();
bool thread_ends_late();
bool threads_go_on_in_child();
bool first_thread_ends();
bool threads_connect_at_once();
bool thread_is_refused();
bool forks_among_beginners();
bool threads_are_refused();
bool endpoint_is_kept();
bool cancelled_thread();
bool cancelled_in_first_call();
bool forked();
bool forked_meanwhile();
bool forked_at_first_calls();
bool forked_beside_first_call();
bool forked_beside_connected();
bool forked_beside_a_look();
bool looks_under_the_lock();
bool killed();

// application_names.cpp

bool names_of_runtime();
bool absent();
bool local_library();
bool local_driver();

// application_versions.cpp

bool calls_of_cuda_12();
bool calls_after_cuda_13();
bool driver_after_cuda_13();

// application_pinned.cpp

// Page-locked memory. after(): in an application after one that has ended without freeing its own.
bool pinned();
bool pools_of_host();
bool freed_beside_captures();
bool after();
// Bytes that come from the device in a stream, and are sent on from there.
bool sent_on();
// application_pins.cpp. The same of memory that the back end may not pin for the session.
bool sent_on_beyond_pins();
bool pinned_beside_others();
bool random_pins();
// The calls that end page-locked memory wait for all streams.
bool page_locked_ends();
// Registered memory, and registered memory that was unmapped.
bool registrations();
bool stale_registration();

// application_in_place.cpp. at_withdrawal is called when managed memory has been withdrawn from the
// host, in the thread that gives it to the device. at_fetch is called when it is back, in the
// thread that has fetched it.
extern void (*at_withdrawal)(), (*at_fetch)();

// application_calls.cpp

// Calls that GVirtuS's front end does not see.
bool calls();
bool short_copies();
bool launches_of_many_bytes();
bool nodes_of_many_bytes();
bool sets_in_streams();
bool sets_after_a_loss();
bool sets_nowhere();
bool fails_beyond();
bool kinds_of_planes();
bool page_locked_is_called_device();
bool device_is_called_host();
int copy_as(int how, char *to, char *from, int kind, void *stream);
bool failed_allocations();
bool errors_around_work();
bool configurations();
bool memory_that_ends();
bool memory_that_may_not_be_touched();

// application_arrays.cpp
bool arrays();
bool mipmaps();
bool planes_of_arrays();
bool planes_of_memory();
bool array_to_array();
bool textures();
bool descriptions();
bool textures_beyond();

// application_extensions.cpp

// Calls that the libcudart does not have.
bool capture_modes();
bool pools();
bool meanwhile();
bool cooperative();
bool cooperative_again();
// The same calls with a back end that does not know them.
bool not_supported();

// application_nccl.cpp
bool nccl_threads();
bool nccl_one_thread();
bool nccl_without_waiting();
bool nccl_aborts();
bool nccl_asked();
bool nccl_destroyed();
bool nccl_rank(int rank);
bool nccl_left();
bool no_nccl();
bool nccl_by_name();
// application_dnn.cpp
bool dnn_graphs();
bool dnn_tensors();
bool dnn_values();
bool dnn_addresses();
bool dnn_networks();
bool dnn_too_long();
bool dnn_without_number();
bool dnn_threads();
bool dnn_alike();
bool dnn_long();
// application_lt.cpp
bool lt_library();
// application_math_settings.cpp
bool math_settings();
// application_math.cpp
bool math_libraries();
bool math_library_first();
bool math_threads();
bool no_math_libraries();
bool absent_from_math();
bool leaves_math_libraries();

// application_libraries.cpp
bool libraries();
bool libraries_again();
bool libraries_beside_unloads();
bool taken_for_another();
// An image that the double's back end takes.
std::vector<char> library_cubin();

// application_driver.cpp
bool driver_begins();
bool driver_contexts();
bool driver_context_of_threads();
bool driver_and_runtime();
bool driver_errors_apart();
bool driver_tells_late_errors();
bool driver_keeps_order_of_errors();
bool driver_memory();
bool driver_modules();
bool driver_streams();
bool driver_entry_points();
// application_driver_things.cpp
bool driver_planes();
bool driver_arrays();
bool driver_graphs();
bool driver_pools();
bool driver_refused_frees();
bool driver_textures();
bool driver_shares();
bool driver_hints();

// application_driver_answers.cpp
bool driver_pointer_answers();
bool driver_ranges_of_variables();
bool driver_begins_after_runtime();
bool driver_begins_in_another_thread();
bool driver_after_questions();
bool driver_odd_answers();
bool driver_launch_answers();
bool driver_launches_what_is_set();
bool driver_green_contexts();
bool driver_sets_elements();

// application_driver_modules.cpp
bool driver_lone_variables();
bool driver_without_context();
bool driver_packed_nodes();
bool driver_values();
bool driver_killed_while_waiting();
bool driver_killed_without_handles();
bool driver_killed_in_call_without_handles();
bool driver_compiler_says();

// application_driver_virtual.cpp
bool driver_maps_memory();
bool driver_maps_tensors();
bool driver_maps_nothing();
bool driver_maps_until_reset();

// application_printed.cpp
bool printed();
bool printed_told();
// What this process writes to its standard output meanwhile.
std::string written(const std::function<bool()> &during);
enum class PrintedLast { returns, child, function, thread, stopped, at_once };
bool printed_last(PrintedLast end);

// application_graph_copies.cpp
bool copies_in_graphs();
bool copies_in_graphs_by_calls();
bool copies_with_arrays();

// application_graph_launches.cpp
bool bytes_of_launches();
bool copies_that_launches_await();

// application_graphs.cpp

bool graphs();
bool few_bytes_of_graphs();
bool graphs_within_graphs();
bool graphs_after_resets();
bool pinned_bytes_of_graphs();
bool nodes_of_graphs();
bool questions_about_graphs();
bool captures();
bool captures_of_planes();
bool captures_of_events();
bool captures_of_callbacks();
// application_queries.cpp
bool sticky_errors_of_local_calls();
// application_capture_waits.cpp
bool captures_keep_nobody_waiting();
// application_captures.cpp
bool captures_forbid();
bool copies_beside_captures();
bool empty_copies_in_captures();
bool captures_are_known();
bool killed_in_graph();
bool killed_while_mapped();
bool killed_beside_endless();
bool lied_to();

// application_graph_conditions.cpp

bool conditions();

// application_graph_parameters.cpp

bool kernels_of_graphs();
bool kernels_that_are_set_again();
bool updates_that_are_repeated();
bool attributes_of_nodes();
bool events_and_functions_of_nodes();
bool nodes_of_no_executable();
bool graphs_of_nodes();
bool parameters_of_all_kinds();
bool objects_of_graphs();
bool drawings_of_graphs();

// application_graph_waits.cpp

bool graphs_lost();
bool frees_beside_graphs();
bool destroyed_while_running();
bool unpinned_beside_graphs();
bool loads_beside_graphs();

// application_launches.cpp

// Kernels, by each of CUDA's calls for them.
bool launch();
bool launches();
bool launches_after_modules();
bool launches_of_new_threads();
bool launches_unseen();

// application_managed.cpp

// Memory that both sides use at one address.
bool managed();
bool managed_reads();
// Memory of the host that kernels use as well; attributes of pointers.
bool mapped();
bool mapped_for_ever();
bool pointers();
// Managed memory that is used where that is not allowed.
bool managed_in_function();
bool managed_in_function_before_copies();
bool managed_in_function_before_copies_to_device();
bool managed_in_function_before_kernels();
bool managed_in_function_beside_load();
bool managed_in_function_beside_load_with_attribute();
bool managed_in_function_and_child();
bool managed_made_beside_function();
bool managed_given_beside_first_function();
// application_managed_graphs.cpp
bool copies_of_managed_in_graphs();
bool managed_at_exit();
char *managed_memory(std::size_t n);
// application_managed_captures.cpp
bool managed_beside_captures();
// application_managed_io.cpp
bool managed_system_calls();
// application_managed_signals.cpp
bool managed_signals();
bool signals_in_calls();

// application_queries.cpp

// Questions about streams, devices and kernels.
bool queries();
bool visible_devices();

// application_reach.cpp

// Page-locked memory as an argument of kernels: in threads that come and go, after resets, in
// graphs, beside forks.
bool kernels_and_page_locked();
bool page_locked_of_threads();
bool page_locked_after_resets();
bool page_locked_again();
bool page_locked_in_turn();
bool page_locked_of_unknown();
bool page_locked_of_graphs();
bool page_locked_and_forks();
bool page_locked_pieces();
constexpr std::size_t bytes_each = 300 << 10;
char *page_locked(std::size_t n);
int asks_for_map(std::uint64_t address, std::uint64_t n, std::uint64_t offset);
// application_in_place.cpp
bool page_locked_in_place();
extern void (*at_each_step)(); // called at each step in which pages of memory are replaced
extern int steps_left;         // until a step lacks memory for a mapping; below 0: none does
extern bool leaves_hole;       // the last step has unmapped what was there, as Linux may have it

// application_registered.cpp

// Registered memory as an argument of kernels.
bool registered_in_kernels();
bool registered_beside_others();
bool registered_and_forks();
bool registered_and_handlers_of_forks();
bool registered_anywhere();
bool registered_beyond_pins();

// application_streams.cpp

// A default stream for each thread.
bool stream_of_thread();
bool destroyed_beside_wait();

// application_stream_order.cpp

// The order between the legacy stream and others.
bool bytes_are_taken();     // by copies in streams that wait
bool copies_behind_gates(); // which are functions, in other streams, too
bool forked_beside_waits(); // of another thread
bool order_behind_legacy(); // of copies, and sets of memory
bool order_between_streams();
bool order_behind_kernels(); // of copies of few bytes

// application_kept_events.cpp

bool events_are_kept();
bool events_after_a_loss();

// application_variables.cpp

// Variables of the device, plain and managed.
bool variables();
bool variables_in_children();

// application_deferred.cpp
bool modules_deferred();
bool modules_deferred_print();
bool modules_deferred_beside_open();

// application_modules.cpp
bool modules_of_two_threads();
bool modules_and_forks();
bool modules_of_ended();
bool modules_of_ended_alone();
bool daemon_launches();
bool left_beside_child();

// application_devices.cpp

// Access of one device to another device's memory; managed memory and pools on several devices.
bool peers();
bool memory_after_reset();
bool managed_on_devices();
bool pools_of_devices();
bool pools_of_peers();

// application_host_functions.cpp

// Functions of the host in streams. One of them may not return.
bool host_functions();
bool host_functions_as_gates();
bool gates_after_reset();
bool launches_beside_gates();
bool calls_in_host_functions();
bool host_functions_after_reset();
bool host_functions_lost();
bool host_functions_at_exit();
bool own_threads_unconnected();
bool host_function_for_ever();

// application_programs.cpp

// What programs do besides CUDA.
bool programs_beside_calls();
bool daemons();
bool own_descriptors();
bool helpers_of_clone();
bool waits_in_signal_handlers();
bool cancelled_in_copies();
bool cancelled_before_calls();
bool small_stacks();
bool modules_beside_launches();
enum class Meanwhile { waits, works, pauses };
bool exits_in_host_function(Meanwhile what);
bool calls_as_threads_end();
bool calls_as_process_ends();

// application_exits.cpp

// exit(3) in handlers of signals.
bool exits_in_handler();
bool exits_in_search();
bool exits_in_wait();
bool ends_beside_standstill();
// Called when the thread has got a lock, with the address to which the call of that returns.
void got_lock(void *place);

// application_processes.cpp

// Memory and events of another process; pools and memory of them.
bool processes();
bool programs();
bool processes_and_pools();
bool processes_and_mapped();
bool processes_apart();

// application_async.cpp

bool async();
// Copies that run in the background, with registered or allocated memory.
bool background(bool registered);
// Copies within the host, behind copies that are under way.
bool on_host();
bool devices();
// A device that does not exist.
bool no_device();
// The application ends in the middle of copies.
bool leaves();
// The application ends with copies in the background, and does not unregister its memory.
bool exits();
// The back end is killed in the middle of copies in the background.
bool killed_background();

#endif
