// SPDX-License-Identifier: LGPL-2.1-or-later
//
// libibx-frontend.so as an application meets it: applications of CUDA with the library preloaded
// before a libcudart that does what GVirtuS's does, and a back-end process with the plugin.
//
//   test_frontend PLUGIN.so PRELOAD.so APPLICATION APPLICATION_LOCAL LIBCUDART.so PROVIDER [short]
//
// With "short", only tests for which the provider makes a difference.
#include "tests/gvirtus/frontend_scene.h"

#include "frontend-glue/session/extensions.h"

#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

namespace
{

// One of the application's own tests.
bool run(const char *test, bool taken, const char *properties = "")
{
    GpuBackEnd back(taken, properties);
    Application app(&back, application, test, taken ? "taken" : nullptr);
    REQUIRE(app.good());
    // libfabric's emulation is so slow that a thread may wait for 5 s for the work of others.
    const bool many = provider == "ofi" && !std::strcmp(test, "managed");
    const std::size_t slow = many ? lines_with(app.said(), "and waits for 5 s until") : 0;
    return HOLDS(lines_with(app.said(), "ibx:") == slow);
}

// The connection of the program that has closed its descriptors is made anew.
bool own_descriptors()
{
    GpuBackEnd back;
    Application app(&back, application, "own-descriptors", "taken");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 1);
    return HOLDS(lines_with(app.said(), "the session continues over") == 1);
}

// A child is refused and, while the child has memory in the way, its parent, too; each says so.
bool reach_in_place()
{
    GpuBackEnd back;
    Application app(&back, application, "page-locked-in-place", "taken");
    REQUIRE(app.good());
    const std::size_t told = lines_with(app.said(), "kernels do not reach");
    const std::size_t failed = lines_with(app.said(), "cannot become managed memory");
    REQUIRE(told == (provider == "shm" ? 0 : 2) && (failed > 0) == (provider != "shm"));
    return HOLDS(lines_with(app.said(), "ibx:") == told + failed);
}

// A case fails if a process of its back end crashes, even if no application notices.
bool crash_is_heard()
{
    GpuBackEnd back;
    const pid_t crashes = back.serving();
    back.wanted_faults = 1;
    REQUIRE(kill(crashes, SIGABRT) == 0);
    while (kill(crashes, 0) == 0) // until its supervisor knows, and the test's limit at the latest
        usleep(1000);
    return true;
}

// Each program has a process of the back end.
bool between_programs()
{
    const Listening back("rdma.gpu : on\n");
    auto over = connected(back.port);
    Remote other(over.get()); // Application looks for a process that serves
    other.get_last_error();
    Application app(&back, application, "programs", "taken");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

// A program that resets the device, again and again, beside another one.
bool resets_beside_another()
{
    GpuBackEnd back;
    auto over = connected(back.port);
    Remote other(over.get());
    const std::vector<char> bytes = random_bytes(4096, 12);
    std::vector<char> got(4096);
    other.get_last_error();
    const std::uint64_t memory = other.malloc(4096), stream = other.stream_create();
    REQUIRE(memory && stream && other.to_device(memory, bytes.data(), 4096) == 0);
    for (const char *test : {"graphs-after-resets", "processes"}) {
        Application app(&back, application, test);
        REQUIRE(app.good());
        REQUIRE(other.from_device_async(got.data(), memory, 4096, stream) == 0 && got == bytes);
    }
    return HOLDS(other.stream_synchronize(stream) == 0 && other.free(memory) == 0);
}

// Another program has the same process of the back end, where accesses wait for work.
bool managed_beside_another()
{
    GpuBackEnd back(true, one_process);
    auto over = connected(back.port);
    Remote other(over.get());
    other.get_last_error();
    Application app(&back, application, "managed", "taken");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

// If the back end may not pin enough memory.
bool copies_in_graphs_by_calls()
{
    GpuBackEnd back(true, "rdma.pins : 1M\nrdma.tenant_share : 100\n");
    Application app(&back, application, "copies-in-graphs-by-calls");
    return HOLDS(app.good());
}

// One session pins the memory, and kernels reach it; there is no room to pin it for another one.
bool sent_on_beyond_pins()
{
    GpuBackEnd back(true, "rdma.pins : 2M\nrdma.tenant_share : 100\n");
    Application app(&back, application, "sent-on-beyond-pins", "taken");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

// When the application says so, another client of the same process begins a kernel that does not
// end, and ends it.
bool pinned_beside_others()
{
    GpuBackEnd back(true, one_process);
    auto over = connected(back.port);
    Remote other(over.get());
    other.get_last_error();
    const std::uint64_t stream = other.stream_create(), memory = other.malloc(4096);
    Application app(&back, application, "pinned-beside-others", "taken");
    for (char what; read(app.out, &what, 1) == 1;) {
        other.hold_stream(what == 'h' ? stream : 0);
        const Body set =
            Body().put(std::uint16_t{IBX_EXT_MEMSET}).u64(memory).i32(0).u64(4096).u64(stream);
        REQUIRE(what == 'r' ||
                (other.call(IBX_EXT_NAME, set) == 0 && other.stream_query(stream) == 600));
        REQUIRE(write(app.in, &what, 1) == 1);
    }
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

bool random_pins(const char *limits)
{
    GpuBackEnd back(true, limits);
    Application app(&back, application, "random-pins", "taken");
    return HOLDS(app.good());
}

bool mapped_memory()
{
    GpuBackEnd back;
    Application app(&back, application, "mapped");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "ibx:") == 1);
    REQUIRE(lines_with(app.said(), "cudaHostAllocMapped") == 1);
    return true;
}

// CUDA_VISIBLE_DEVICES of the program: a line if it names other devices than the program sees.
bool visible_devices()
{
    GpuBackEnd back; // it has two
    const std::pair<const char *, bool> lists[] = {
        {"1", true},   {"GPU-8932f937", true}, {"1,0", true},  {"0,2", true},
        {"0", true},   {"0,1,2", false},       {"0,1", false}, {"", false},
        {"-1", false}, {"NoDevFiles", false}};
    for (const auto &[list, told] : lists) {
        setenv("CUDA_VISIBLE_DEVICES", list, 1);
        Application app(&back, application, "visible-devices");
        unsetenv("CUDA_VISIBLE_DEVICES");
        REQUIRE(app.good());
        REQUIRE(lines_with(app.said(), "ibx:") == told);
        REQUIRE(!told ||
                lines_with(app.said(), std::string("CUDA_VISIBLE_DEVICES=") + list + " chooses"));
    }
    return true;
}

bool driver_entry_points()
{
    GpuBackEnd back;
    Application app(&back, application, "driver-entry-points");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "cuGetExportTable returns CUDA_ERROR_NOT_FOUND") == 1);
    REQUIRE(lines_with(app.said(), "cuMulticastCreate returns CUDA_ERROR_NOT_SUPPORTED") == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == 2);
}

bool managed_in_function(const std::string &test)
{
    GpuBackEnd back;
    Application app(&back, application, test);
    return HOLDS(app.good() && lines_with(app.said(), "ibx:") == 0);
}

// One of the graphs' copies fails, which the library's thread says.
bool frees_beside_graphs()
{
    GpuBackEnd back(true, "rdma.pins : 1M\nrdma.tenant_share : 100\n");
    Application app(&back, application, "frees-beside-graphs");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "a copy between host and device in a graph has failed") == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == 1);
}

// What GVirtuS lacks is looked up in all libraries: not for each of the 300 launches.
bool looks_once()
{
    GpuBackEnd back;
    setenv("LD_DEBUG", "symbols", 1);
    Application app(&back, application, "launch", "taken");
    unsetenv("LD_DEBUG");
    REQUIRE(app.good());
    const std::size_t looks = lines_with(app.said(), "symbol=__cudaLaunchKernel;");
    return HOLDS(looks > 0 && looks < 300);
}

// With a driver that lets nobody in while it waits.
bool alone(const char *test)
{
    setenv("IBX_DOUBLE_ALONE", "1", 1);
    const bool good = run(test, true);
    unsetenv("IBX_DOUBLE_ALONE");
    return good;
}

// Two programs, one after the other: the first leaves behind what it has enabled.
bool peers()
{
    GpuBackEnd back;
    for (int i = 0; i < 2; i++) {
        Application app(&back, application, "peers");
        REQUIRE(app.good());
    }
    return true;
}

// If the variables of a module cannot be found, a line says so.
bool variables()
{
    GpuBackEnd back;
    Application app(&back, application, "variables");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "the back end does not tell where they are") == 2 &&
                 lines_with(app.said(), "ibx:") == 2);
}

bool modules_of_ended(const char *test)
{
    GpuBackEnd back(true, "rdma.requests : 1M\n");
    Application app(&back, application, test);
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

// Each thread has the child's own modules, however long that takes; a line says so.
bool modules_of_two_threads()
{
    GpuBackEnd back;
    Application app(&back, application, "modules-of-two-threads");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 1);
    return HOLDS(lines_with(app.said(), "has waited for 30 s for another one") == 1);
}

// Said once.
bool without_extra()
{
    GpuBackEnd back(false);
    Application app(&back, application, "not-supported");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "returns cudaErrorNotSupported") == 1);
    REQUIRE(lines_with(app.said(), "ibx:") == 1);
    return true;
}

// Said once.
bool taken_for_another()
{
    GpuBackEnd back(false);
    Application app(&back, application, "taken-for-another");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "launches of library_kernel return cudaErrorNotSupported") == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == 1);
}

// Over shm the back end sees the page-locked memory itself.
bool pinned()
{
    GpuBackEnd back;
    Application app(&back, application, "pinned");
    char byte;
    REQUIRE(read(app.out, &byte, 1) == 1 || (app.good(), false));
    std::ifstream maps("/proc/" + std::to_string(back.serving()) + "/maps");
    std::string text{std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>()};
    REQUIRE((lines_with(text, "ibx-shared") > 0) == (provider == "shm"));
    REQUIRE(write(app.in, "g", 1) == 1);
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "ibx:") == 1); // about memory that it could not have
    REQUIRE(lines_with(app.said(), "no 1152921504606846976 bytes of page-locked memory") == 1);
    return true;
}

// Asynchronous copies beside everything else; when the application says so, another client of the
// same process makes the GPU stand still.
bool background(const char *test, bool taken)
{
    GpuBackEnd back(taken, one_process);
    auto over = make_communicator(create, "tcp/ip", "oldtcp", host, back.port);
    over->Connect();
    Remote remote(over.get());
    Application app(&back, application, test, taken ? "taken" : nullptr);
    for (char what; read(app.out, &what, 1) == 1;) {
        remote.hold(what == 'h');
        REQUIRE(write(app.in, &what, 1) == 1);
    }
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "ibx:") == 0);
    return true;
}

// The bytes of copies, the connection, and the memory that both sides see.
void check_what_the_provider_changes()
{
    if (provider != "ofi") // libfabric has descriptors of its own
        check("descriptors of a program that has closed ours", own_descriptors);
    check("all sizes and offsets", [] { return run("sizes", true); });
    check("rows", [] { return run("rows", true); });
    check("four threads, each with a connection", [] { return run("threads", true); });
    check("threads that end", [] { return run("threads-end", true); });
    check("no second copy in the application", [] { return run("no-copy", true); });
    check("memory that comes and goes at one address", [] { return run("remapped", true); });
    check("memory that ends", [] { return run("memory-that-ends", true); });
    check("page-locked memory", pinned);
    check("... that is freed beside captures", [] { return run("freed-beside-captures", true); });
    check("words in memory that streams wait for", [] { return run("driver-values", true); });
    check("memory that is registered", [] { return run("host-register", true); });
    check("and is gone without a word", [] { return run("stale-registration", true); });
    if (provider == "tcp") { // its connections can be broken by their socket
        check("memory that may not be touched", memory_that_may_not_be_touched);
        check("functions that are lost", [] { return functions_lost("host-functions-lost"); });
        check("graphs that are lost", [] { return functions_lost("graphs-lost"); });
        check("memory set in streams after a connection was lost", sets_after_a_loss);
    }
    check("events that are lost with the back end's process", events_after_a_loss);
    for (const char *test : {"waits-for-captures", "sticky-errors", "graphs", "copies-in-graphs"})
        check(test, [=] { return run(test, true); });
    check("copies in graphs, by other calls", copies_in_graphs_by_calls);
    check("copies with arrays in graphs", [] { return run("copies-with-arrays", true); });
    check("bytes that launches of graphs take", [] { return run("bytes-of-launches", true); });
    check("copies that launches of graphs await", [] { return run("awaited-copies", true); });
    for (const char *test :
         {"graphs-within-graphs", "few-bytes-of-graphs", "pinned-bytes-of-graphs",
          "order-behind-legacy", "order-between-streams", "order-behind-kernels", "events-are-kept",
          "captures", "captures-of-planes", "captures-of-events", "captures-of-callbacks",
          "captures-forbid", "copies-beside-captures", "empty-copies-in-captures",
          "captures-are-known", "copies-of-managed-in-graphs", "destroyed-while-running",
          "bytes-are-taken", "copies-behind-gates"})
        check(test, [=] { return run(test, true); });
    check("conditions in graphs", [] { return run("conditions", true); });
    check("managed memory", [] { return run("managed", true); });
    check("... and signals in the middle of calls", [] { return run("signals-in-calls", true); });
    for (bool taken : {true, false})
        check("kernels that use page-locked memory",
              [=] { return reach("kernels-and-page-locked", taken); });
    check("... of threads that have ended", [] { return reach("page-locked-of-threads", true); });
    check("... after resets", [] { return reach("page-locked-after-resets", true); });
    check("... of a session that is not known",
          [] { return reach("page-locked-of-unknown", true); });
    check("... in graphs", [] { return reach("page-locked-of-graphs", true); });
    check("... beside forks", [] { return reach("page-locked-and-forks", true); });
    check("... in short pieces", [] { return reach("page-locked-pieces", true); });
    check("... that becomes managed where it is", reach_in_place);
    check_registered();
    check("short copies with other calls", [] { return run("short-copies", true); });
    check("asynchronous copies", [] { return run("async", true); });
    check("page-locked memory that is sent on", [] { return run("sent-on", true); });
    check("... and is not pinned", sent_on_beyond_pins);
    check("... and is pinned beside others' work", pinned_beside_others);
    for (const char *limits : {"", "rdma.pins : 6M\nrdma.tenant_share : 100\n"})
        check("random uses of page-locked memory", [=] { return random_pins(limits); });
    for (bool taken : {true, false}) {
        if (provider != "shm")
            check("copies in the background", [=] { return background("background", taken); });
        check("copies of registered memory in the background",
              [=] { return background("background-registered", taken); });
    }
    check("a first thread that ends", [] { return run("first-thread-ends", true); });
    check("forked children", [] { return run("forked", true); });
    check("modules of processes that have ended",
          [] { return modules_of_ended("modules-of-ended"); });
    check("modules of processes that have ended, with variables",
          [] { return modules_of_ended("modules-of-ended-alone"); });
    check("... and what else they had, beside a child",
          [] { return run("left-beside-child", true); });
    check("daemons that launch, without their parents", daemons_that_launch);
    check("forked children that exit", [] { return run("forked-exit", true); });
    check("a connection that is closed at the process's end",
          [] { return run("closes-at-exit", true); });
    check("... of a program whose threads have ended",
          [] { return run("threads-have-ended", true); });
    check("threads in calls as the process ends", [] { return run("threads-go-on", true); });
    check("... and one that connects behind all destructors",
          [] { return run("thread-connects-last", true); });
    check("a thread that ends late as the process ends",
          [] { return run("thread-ends-late", true); });
    check("threads in calls as a forked child ends",
          [] { return run("threads-go-on-in-child", true); });
    check_exits();
    check("a back end that is killed", [] { return killed("killed", 6, 7000); });
    check("a back end that is killed in the middle of asynchronous copies",
          [] { return killed("killed-background", 4, 3000); });
}

// Tests of single calls, and of what the back end does with them.
void check_what_it_does_not()
{
    check("a crash of the back end that no application notices", crash_is_heard);
    check("all sizes, run by GVirtuS's handlers", [] { return run("sizes", false); });
    check("rows, copied by GVirtuS's handlers", [] { return run("rows", false); });
    check("pointers that say what they are", [] { return run("default", true); });
    check("no second copy where GVirtuS's handlers run them", [] { return run("no-copy", false); });
    check("launches without GVirtuS's front end", [] { return run("launches", true); });
    check("... of threads that begin with one",
          [] { return run("launches-of-new-threads", true); });
    check("launches by <<<>>>", [] { return run("launches-unseen", true); });
    check("kernels as nvcc 13 launches them", [] { return run("launch", true); });
    check("... by what is looked for once", looks_once);
    for (const char *test : {"arrays",
                             "libraries",
                             "math-libraries",
                             "dnn-graphs",
                             "dnn-tensors",
                             "dnn-values",
                             "dnn-addresses",
                             "dnn-networks",
                             "dnn-without-number",
                             "dnn-threads",
                             "dnn-alike",
                             "dnn-long",
                             "lt-library",
                             "math-settings",
                             "math-threads",
                             "mipmaps",
                             "planes",
                             "planes-of-memory",
                             "planes-of-blocks",
                             "array-to-array",
                             "textures",
                             "descriptions",
                             "textures-beyond",
                             "capture-modes",
                             "pools",
                             "pools-of-host",
                             "meanwhile",
                             "cooperative",
                             "cooperative-again",
                             "nodes-of-graphs",
                             "questions-about-graphs",
                             "kernels-of-graphs",
                             "kernels-set-again",
                             "attributes-of-nodes",
                             "events-and-functions-of-nodes",
                             "graphs-of-nodes",
                             "parameters-of-all-kinds",
                             "objects-of-graphs",
                             "drawings-of-graphs",
                             "stream-of-thread",
                             "destroyed-beside-wait",
                             "queries",
                             "launches-after-modules",
                             "launches-of-many-bytes",
                             "nodes-of-many-bytes",
                             "names-of-runtime",
                             "calls-of-cuda-12",
                             "calls-after-cuda-13",
                             "graphs-after-resets",
                             "host-functions",
                             "host-functions-as-gates",
                             "gates-after-reset",
                             "launches-beside-gates",
                             "calls-in-host-functions",
                             "host-functions-at-exit"})
        check(test, [=] { return run(test, true); });
    check("resets beside another program", resets_beside_another);
    check("visible devices of the program", visible_devices);
    check("calls that are not there for a remote GPU", absent);
    check("functions after a reset", [] { return run("host-functions-after-reset", true); });
    check("own threads that get no connection", own_threads_unconnected);
    check("a function that never returns", function_for_ever);
    check("a thread that is cancelled", [] { return run("cancelled-thread", true); });
    check("... in its first call", [] { return run("cancelled-in-first-call", true); });
    check("memory that is given back beside graphs", frees_beside_graphs);
    check("memory that is unpinned beside graphs", [] { return alone("unpinned-beside-graphs"); });
    check("kernels that are loaded beside graphs", [] { return alone("loads-beside-graphs"); });
    check("a client that is killed beside work that never ends", killed_beside_endless);
    check("a client that is killed in a graph", [] { return killed_in_graph("killed-in-graph"); });
    check("... whose memory kernels reach", [] { return killed_in_graph("killed-while-mapped"); });
    check("a client that is killed while its streams wait for words",
          [] { return killed_in_graph("driver-killed-while-waiting"); });
    check("... that has nothing but page-locked memory",
          [] { return killed_in_graph("driver-killed-without-handles"); });
    check("... and is killed in a call",
          [] { return killed_in_graph("driver-killed-in-call-without-handles"); });
    check("a back end that lies", lied_to);
    check("a library of NVIDIA's that is loaded later", [] {
        return library_loaded_later("libcurand.so.99", "local-library",
                                    "libcurand.so.99 is not GVirtuS's");
    });
    check("a driver of this host that is loaded later",
          [] { return library_loaded_later("libcuda.so.1", "local-driver", nullptr); });
    check("a program that knows the driver alone", driver_alone);
    check("... and no GVirtuS", driver_without_gvirtus);
    check("... in a namespace of its own", driver_elsewhere);
    check("... and calls in the forms of two versions", driver_beside_versions);
    check("a program that has loaded no runtime", runtime_without_gvirtus);
    for (const char *test : {"driver-begins",
                             "driver-contexts",
                             "driver-context-of-threads",
                             "driver-and-runtime",
                             "driver-errors-apart",
                             "driver-memory",
                             "driver-modules",
                             "driver-streams",
                             "driver-planes",
                             "driver-arrays",
                             "driver-graphs",
                             "driver-pools",
                             "driver-refused-frees",
                             "driver-textures",
                             "driver-shares",
                             "driver-hints",
                             "driver-after-cuda-13",
                             "driver-pointer-answers",
                             "driver-ranges-of-variables",
                             "driver-begins-after-runtime",
                             "driver-begins-in-another-thread",
                             "driver-after-questions",
                             "driver-odd-answers",
                             "driver-launch-answers",
                             "driver-launches-what-is-set",
                             "driver-sets-elements",
                             "driver-maps-memory",
                             "driver-maps-tensors",
                             "driver-maps-nothing",
                             "driver-maps-until-reset",
                             "driver-lone-variables",
                             "driver-without-context",
                             "driver-packed-nodes",
                             "driver-tells-late-errors",
                             "driver-keeps-order-of-errors"})
        check(test, [=] { return run(test, true); });
    for (bool taken : {true, false})
        check("driver-compiler-says", [=] { return run("driver-compiler-says", taken); });
    check("green contexts of the driver", green_contexts);
    check("the driver's calls by their names", driver_entry_points);
    check("a back end without these calls", without_extra);
    check("... and a kernel that GVirtuS takes for another", taken_for_another);
    check("math-library that is called first", math_first);
    check("math-libraries that are not there", without_math);
    check("... and calls that are too long", too_long_for_dnn);
    check("math-libraries without some functions", without_some_math);
    check("math-libraries that a program leaves", leaves_math);
    check("managed memory, copied by GVirtuS's handlers", [] { return run("managed", false); });
    check("managed memory that is only read", [] { return run("managed-reads", true); });
    for (const char *test : {"managed-in-function", "managed-in-function-and-child",
                             "managed-made-beside-function", "managed-given-beside-first-function"})
        check("managed memory, touched in a function of a stream",
              [=] { return managed_in_function(test); });
    for (const std::string work : {"copies to the host", "copies to the device", "kernels"})
        check(("... before " + work + " of other streams").c_str(),
              [=] { return managed_in_function("managed-in-function-before-" + work); });
    for (const char *test :
         {"managed-in-function-beside-load", "managed-in-function-beside-load-with-attribute"})
        check("... while CUDA loads a kernel", [=] { return alone(test); });
    check("managed memory as the process ends", [] { return run("managed-at-exit", true); });
    check("memory of the host that kernels use", mapped_memory);
    check("... that one uses without end", mapped_for_ever);
    for (const char *test : {"pointers", "modules-deferred", "printed-told", "printed"})
        check(test, [test] { return run(test, true); });
    check("... as the program ends",
          [] { return printed_last("printed-last", "behind all waits\n"); });
    check("... beside a child",
          [] { return printed_last("printed-last-beside-child", "behind all waits\n"); });
    for (const char *way : {"in-function", "by-thread", "stopped", "at-once"})
        check((std::string("... and is lost, printed-last-") + way).c_str(),
              [=] { return printed_last((std::string("printed-last-") + way).c_str(), ""); });
    check("variables of the device", [] { return run("symbols", true); });
    check("the same, copied by GVirtuS's handlers", [] { return run("symbols", false); });
    check("variables of the device by their names", variables);
    check("... and of children", [] { return run("variables-in-children", true); });
    check("modules of a child with two threads", modules_of_two_threads);
    for (const char *test : {"and-forks", "deferred-print", "deferred-beside-open"})
        check(test, [test] { return run((std::string("modules-") + test).c_str(), true); });
    check("names of errors, the profiler", [] { return run("names", true); });
    check("more bytes than there are, and no memory", [] { return run("refused", true); });
    check("calls without GVirtuS's front end", [] { return run("calls", true); });
    check("memory and events of another program", between_programs);
    for (const char *test : {"processes", "processes-and-pools", "processes-and-mapped"}) {
        check(test, [=] { return run(test, true); });
        check((std::string("... in one of the back end: ") + test).c_str(),
              [=] { return run(test, true, one_process); });
    }
    check("what a program that shares it has made",
          [] { return run("processes-apart", true, one_process); });
    check("configurations of launches", [] { return run("configurations", true); });
    check("memory that is set in streams", [] { return run("sets-in-streams", true); });
    check("memory that is set, and not there", [] { return run("sets-nowhere", true); });
    check("copies of planes of each kind", [] { return run("kinds-of-planes", true); });
    check("page-locked memory is called the device's",
          [] { return run("page-locked-is-called-device", true); });
    check("device memory is called the host's", [] { return run("device-is-called-host", true); });
    check("errors around work", [] { return run("errors-around-work", true); });
    check("short copies, run by GVirtuS's handlers", [] { return run("short-copies", false); });
    check("asynchronous copies, run by GVirtuS's handlers", [] { return run("async", false); });
    check("copies on the host after asynchronous ones", [] { return run("on-host", true); });
    check("the same, run by GVirtuS's handlers", [] { return run("on-host", false); });
    check("page-locked memory that is sent on, by GVirtuS's handlers",
          [] { return run("sent-on", false); });
    check("asynchronous copies on several devices", [] { return run("devices", true); });
    check("and on one that there is not", [] { return run("no-device", true); });
    check("access to other devices' memory", peers);
    check("memory of a device that is reset", [] { return run("memory-after-reset", true); });
    check("pools of several devices", [] { return run("pools-of-devices", true); });
    check("pools of each of several devices", [] { return run("pools-of-peers", true); });
    check("managed memory beside another program", managed_beside_another);
    check("managed memory on several devices", [] { return run("managed-on-devices", true); });
    check("an application that frees its memory as it ends", [] { return run("exits", true); });
    check("errors are those of the handlers", [] { return run("errors", true); });
    check("children of a process with busy threads", [] { return run("forked-meanwhile", true); });
    check("children of a process whose threads connect",
          [] { return run("forked-at-first-calls", true); });
    check("... one of which takes long", [] { return run("forked-beside-first-call", true); });
    check("... beside calls of other threads", [] { return run("forked-beside-a-look", true); });
    check("calls beside threads that connect", [] { return run("looks-under-the-lock", true); });
    check("a libcudart that was loaded locally", [] { return loaded_locally("copies", 1); });
    check("... and whose calls are looked up there", [] { return loaded_locally("looked-up", 1); });
    check("loaded locally, and a forked child that exits",
          [] { return loaded_locally("forked", 3); });
    check("loaded locally, and a thread in calls at the end",
          [] { return loaded_locally("threads", 1); });
    check("a program with a statically linked CUDA runtime", static_runtime);
    check("... with a static runtime and without kernels", static_runtime_host_only);
    check("... with a static runtime and an allocator", static_runtime_allocator);
    check("... with a static runtime, under a loader or without new code",
          static_runtime_odd_starts);
    check("... with a static runtime that cannot reach the remote GPU", static_runtime_refused);
    check("a libcudart that the program brings with it", libraries_found_elsewhere);
    check("... where LD_LIBRARY_PATH has the loader's own words", libraries_found_by_tokens);
    check("a libcusparse that the program brings with it", libraries_of_its_own);
    check("libraries that ask for a private table of the driver", libraries_ask_driver);
    check("libraries with a statically linked CUDA runtime", static_libraries_linked);
    for (const char *how : {"once", "again", "flags", "threads", "forked", "forks", "no new code",
                            "nested", "first calls", "far", "copy"})
        check((std::string("... that are opened: ") + how).c_str(),
              [how] { return static_libraries_opened(how); });
    check("... a call that is nowhere else", static_libraries_lacking);
    check("... in a namespace of their own", static_libraries_elsewhere);
    check("... libraries that cannot be reached", static_libraries_refused);
    check("modules of Python with a stripped runtime", static_runtime_of_python);
    for (const char *test :
         {"forked-beside-waits", "forked-beside-connected", "programs-beside-calls", "daemons",
          "helpers-of-clone", "waits-in-handlers", "cancelled-in-copies", "cancelled-before-calls",
          "small-stacks", "modules-beside-launches", "libraries-again", "libraries-beside-unloads",
          "exits-in-function-waited-for", "exits-in-function-beside-work",
          "exits-in-function-alone", "calls-as-threads-end", "calls-as-process-ends",
          "fails-beyond", "failed-allocations"})
        check(test, [test] { return run(test, true); });
    check("a communicator of GVirtuS's own",
          [] { return stock("stock", "finds no rdma communicator"); });
    check("a plugin of another build",
          [] { return stock("other-version", "does not belong to this rdma communicator"); });
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 7) {
        std::fprintf(stderr, "usage: test_frontend PLUGIN.so PRELOAD.so APPLICATION "
                             "APPLICATION_LOCAL LIBCUDART.so PROVIDER [short]\n");
        return 2;
    }
    plugin = argv[1], preload = argv[2], application = argv[3];
    application_local = argv[4], cudart = argv[5];
    if (const char *toy = std::getenv("IBX_TEST_LIBRARY"))
        local_library = toy;
    scene_open(argv[1], argv[6]);
    check_what_the_provider_changes();
    const bool all = argc < 8 || std::strcmp(argv[7], "short") != 0;
    check_nccl(all);
    if (all)
        check_what_it_does_not();
    return scene_close();
}
