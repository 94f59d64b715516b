// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Back ends and functions that fail an application, and libraries that are not what they should
// be.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/frontend_scene.h"
#include "tests/fixtures/island.h"
#include "tests/fixtures/patience.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <sys/auxv.h>
#include <thread>
#include <vector>

// Sessions are set not to go on over another connection.
bool functions_lost(const char *test)
{
    GpuBackEnd back(true, "rdma.resume_seconds : 0\n");
    Application app(&back, application, test);
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "cudaLaunchHostFunc were not called") == 1);
    return true;
}

// The library's own threads say why they get no connection, each time that a call needs one.
bool own_threads_unconnected()
{
    GpuBackEnd back;
    Application app(&back, application, "own-threads-unconnected", "taken");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 4);
    return HOLDS(lines_with(app.said(), "Too many open files") == 4);
}

// A failure in this process is no broken connection: it would happen again over the next one.
bool memory_that_may_not_be_touched()
{
    GpuBackEnd back;
    Application app(&back, application, "memory-that-may-not-be-touched");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "the session continues") == 0);
    REQUIRE(lines_with(app.said(), "the session cannot go on: a copy") > 0);
    return lines_with(app.said(), "ibx: warn:") == 2; // one for each
}

bool sets_after_a_loss()
{
    GpuBackEnd back(true, "rdma.resume_seconds : 0\n");
    Application app(&back, application, "sets-after-a-loss");
    REQUIRE(app.good());
    return true;
}

// The application ends its process of the back end itself.
bool events_after_a_loss()
{
    GpuBackEnd back(true, "rdma.resume_seconds : 0\n");
    back.wanted_faults = 1;
    Application app(&back, application, "events-after-a-loss");
    return HOLDS(app.good());
}

// A line says what the program waits for, and the program goes on after that.
bool mapped_for_ever()
{
    GpuBackEnd back(true, one_process); // another client has its GPU stand still
    Application app(&back, application, "mapped-for-ever");
    auto over = connected(back.port);
    Remote other(over.get());
    char byte;
    bool said = false;
    REQUIRE(read(app.out, &byte, 1) == 1);
    other.hold(true);
    REQUIRE(write(app.in, "g", 1) == 1);
    for (unsigned left = patience_ms(30000); left && !said; left--) {
        said = lines_with(app.said(), "a kernel that waits for the host") == 1;
        usleep(1000);
    }
    other.hold(false);
    return HOLDS(app.good() && said);
}

bool function_for_ever()
{
    GpuBackEnd back;
    Application app(&back, application, "host-function-for-ever");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "the process ends though a function") == 1);
    return true;
}

// The back end's process for a killed client ends, although work of the client does not.
bool killed_beside_endless()
{
    GpuBackEnd back;
    Application first(&back, application, "killed-beside-endless", "taken");
    REQUIRE(first.ended() == 128 + SIGKILL);
    while (back.children().size() > 1) // the test's limit ends it otherwise; one is a spare one
        usleep(1000);
    return true;
}

// The process of the back end that has the parent's modules ends before the child's first call, if
// not all clients share it.
static bool daemon_launches(const std::string &each)
{
    GpuBackEnd back(true, "rdma.processes : " + each + "\n");
    Application app(&back, application, "daemon-launches", "taken");
    char said = 0;
    REQUIRE(app.good());
    while (back.children().size() > 1) // the test's limit ends it otherwise; one is a spare one
        usleep(1000);
    REQUIRE(write(app.in, "g", 1) == 1 && read(app.out, &said, 1) == 1);
    REQUIRE(said == 'a' || (said == 'g' && each == "one"));
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

bool daemons_that_launch()
{
    return daemon_launches("program") && daemon_launches("one");
}

// A client is killed while its graph, or its stream, waits for it; the next client's graph works.
bool killed_in_graph(const char *test)
{
    GpuBackEnd back;
    Application first(&back, application, test, "taken");
    REQUIRE(first.ended() == 128 + SIGKILL);
    while (has_maps(back)) // the test's limit ends it otherwise
        usleep(1000);
    Application second(&back, application, "graphs", "taken");
    return HOLDS(second.good());
}

namespace
{

// Answers each request with success; a graph has as many nodes as 64 bits can say, an array has
// long elements.
void serve_lies(Communicator *client)
{
    for (;;) {
        std::string name;
        for (char byte = 1; byte;) {
            if (client->Read(&byte, 1) != 1)
                return;
            if (byte)
                name += byte;
        }
        std::uint64_t length = 0, out = 0;
        client->Read(reinterpret_cast<char *>(&length), sizeof(length));
        std::vector<char> body(length + 2), told(8 + 8 * IBX_EXT_LISTED, '\xff');
        if (length)
            client->Read(body.data(), length);
        const int number = name == IBX_EXT_NAME ? body[0] : 0;
        if (number == IBX_EXT_GRAPH_CREATE || number == IBX_EXT_GRAPH_INSTANTIATE ||
            number == IBX_EXT_MALLOC_ARRAY || name == "cudaMalloc")
            out = 8;
        if (number == IBX_EXT_CHANNEL_DESC) {
            out = 20;
            std::fill(told.begin(), told.end(), '\0');
            told[1] = 2; // 64 bytes, in bits
        }
        if (number == IBX_EXT_PARAMETERS) { // two of 8 bytes, of any kernel
            const std::uint32_t two[] = {2, 0, 8, 8, 8};
            out = 4 + 8 * IBX_EXT_LISTED;
            std::memcpy(told.data(), two, sizeof(two));
        }
        if (number == IBX_EXT_GRAPH_NODES || number == IBX_EXT_GRAPH_FUNCTIONS)
            out = told.size();
        const char head[12] = {};
        client->Write(head, 4);
        client->Write(head + 4, 8);
        client->Write(reinterpret_cast<const char *>(&out), sizeof(out));
        if (out)
            client->Write(told.data(), out);
        client->Sync();
    }
}

} // namespace

bool lied_to()
{
    BackEnd back("rdma.gpu : off\n", [](auto listening) {
        listening->Serve();
        for (;;)
            std::thread(serve_lies, const_cast<Communicator *>(listening->Accept())).detach();
    });
    Application app(&back, application, "lied-to");
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "the graph has 18446744073709551615 nodes") == 2 &&
                 lines_with(app.said(), "the program's code has 1 arguments") == 1);
}

// The back end waits for the client's copies, and lets its memory go.
bool ends_in_the_middle()
{
    GpuBackEnd back;
    Application app(&back, application, "leaves");
    REQUIRE(app.good());
    Application next(&back, application, "after");
    REQUIRE(next.good());
    return true;
}

// `pause`: microseconds from one round to the next, so that the kill falls into a copy; any other
// moment has to work, too.
bool killed(const char *test, unsigned rounds, unsigned pause)
{
    for (unsigned i = 0; i < rounds; i++) {
        GpuBackEnd back;
        Application app(&back, application, test);
        char byte;
        REQUIRE(read(app.out, &byte, 1) == 1);
        usleep(i * pause);
        back.end();
        REQUIRE(app.good());
        std::size_t gone = app.said().find("the back end is gone");
        REQUIRE(gone != std::string::npos);
        if (!std::strcmp(test, "killed")) { // its one connection says so once, before it is seen
            REQUIRE(lines_with(app.said(), "the back end is gone") == 1);
            REQUIRE(gone < app.said().find("the first failure"));
        }
    }
    return true;
}

// A library of that name, in a folder of its own.
bool library_loaded_later(const char *file, const char *test, const char *line)
{
    GpuBackEnd back;
    const std::string name = folder + "/" + file;
    std::ifstream from(local_library, std::ios::binary);
    std::ofstream(name, std::ios::binary) << from.rdbuf();
    setenv("TEST_LOCAL_LIBRARY", name.c_str(), 1);
    Application app(&back, application, test);
    REQUIRE(app.good());
    REQUIRE(!line || lines_with(app.said(), line) == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == (line != nullptr));
}

// With the preload, and by libcuda.so.1 alone.
bool driver_alone()
{
    const char *library = std::getenv("IBX_TEST_DRIVER"),
               *program = std::getenv("IBX_TEST_DRIVER_PROGRAM");
    REQUIRE(library && program);
    if (std::getenv("IBX_CONTRACT_SMALL")) // a stub with a sanitizer is not opened by a plain one
        return true;
    const std::string before = preload;
    for (const std::string &with : {before, std::string()}) {
        GpuBackEnd back;
        preload = with;
        Application app(&back, program, library);
        preload = before;
        REQUIRE(app.good());
        REQUIRE(lines_with(app.said(), "ibx:") == 0);
    }
    return true;
}

// Opened in another namespace of the loader, the driver is ours by the preload, or says that it is
// of no use there. A sanitizer would be loaded twice.
bool driver_elsewhere()
{
    const char *library = std::getenv("IBX_TEST_DRIVER"),
               *program = std::getenv("IBX_TEST_DRIVER_PROGRAM");
    REQUIRE(library && program);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    GpuBackEnd back;
    const Installed installed;
    Application with(&back, program, library, "namespace");
    REQUIRE(with.good() && lines_with(with.said(), "ibx:") == 0);
    const std::string before = preload;
    preload = "";
    Application without(&back, program, library, "namespace");
    preload = before;
    REQUIRE(without.ended() == 100);
    REQUIRE(lines_with(without.said(), "into a namespace of its own") == 1);
    REQUIRE(lines_with(without.said(), "ibx:") == 1);
#endif
    return true;
}

// Before CUDA 13 the runtime has no data of edges, and the driver has, from 12.3 on; and hints for
// managed memory have a device instead of a place.
bool driver_beside_versions()
{
    const char *library = std::getenv("IBX_TEST_DRIVER"),
               *program = std::getenv("IBX_TEST_DRIVER_PROGRAM");
    REQUIRE(library && program);
    if (std::getenv("IBX_CONTRACT_SMALL")) // a stub with a sanitizer is not opened by a plain one
        return true;
    for (const int version : {12, 13}) {
        GpuBackEnd back;
        const Installed installed(version);
        Application app(&back, program, library, ("version-" + std::to_string(version)).c_str());
        REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 0);
    }
    return true;
}

// CUDA_ERROR_NO_DEVICE, and a line.
bool driver_without_gvirtus()
{
    const char *library = std::getenv("IBX_TEST_DRIVER"),
               *program = std::getenv("IBX_TEST_DRIVER_PROGRAM");
    const std::string before = cudart;
    REQUIRE(library && program);
    const char *libraries = std::getenv("LD_LIBRARY_PATH");
    const std::string all = libraries ? libraries : "";
    unsetenv("LD_LIBRARY_PATH");
    cudart = "/nowhere/libcudart.so";
    Application app(nullptr, program, library);
    cudart = before;
    setenv("LD_LIBRARY_PATH", all.c_str(), 1);
    REQUIRE(app.ended() == 100);
    return HOLDS(lines_with(app.said(), "no libcudart.so of GVirtuS's is found") == 1 &&
                 lines_with(app.said(), "ibx:") == 1);
}

// One line says that they do not divide the device.
bool green_contexts()
{
    GpuBackEnd back;
    Application app(&back, application, "driver-green-contexts");
    REQUIRE(app.good() && lines_with(app.said(), "which is not divided") == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == 1);
}

bool absent()
{
    GpuBackEnd back;
    Application app(&back, application, "absent");
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "ibx:") == 3);
    REQUIRE(lines_with(app.said(), "cudaGetDriverEntryPoint finds no cuGreenCtxWaitEvent") == 1);
    return HOLDS(lines_with(app.said(), "cudaImportExternalMemory returns cudaErrorNotSupported") ==
                 1);
}

// A program that calls the runtime, but has loaded no libcudart.
bool runtime_without_gvirtus()
{
    const char *program = std::getenv("IBX_TEST_DRIVER_PROGRAM");
    REQUIRE(program);
    Application app(nullptr, program, "");
    REQUIRE(app.ended() == 101); // 801
    return HOLDS(lines_with(app.said(), "has loaded no libcudart.so") == 1 &&
                 lines_with(app.said(), "ibx:") == 1);
}

// A folder before that of GVirtuS's, of libraries for another processor or of 32 bits.
struct Others {
    const std::string in = folder + "/others", before = std::getenv("LD_LIBRARY_PATH");
    explicit Others(const char *library)
    {
        std::filesystem::create_directory(in);
        const std::string file = in + "/libcudart.so.13";
        std::filesystem::copy_file(library, file);
        std::fstream(file).seekp(4).put(1); // ELFCLASS32
        setenv("LD_LIBRARY_PATH", (in + ":" + before).c_str(), 1);
    }
    ~Others()
    {
        setenv("LD_LIBRARY_PATH", before.c_str(), 1);
        std::filesystem::remove_all(in);
    }
};

// A program that finds NVIDIA's libcudart by itself, whatever LD_LIBRARY_PATH says, gets GVirtuS's
// if the loader is told to look there first.
bool libraries_found_elsewhere()
{
    const char *program = std::getenv("IBX_TEST_LOCAL_PROGRAM"),
               *local = std::getenv("IBX_TEST_LOCAL_CUDART"),
               *opener = std::getenv("IBX_TEST_LOCAL_OPENER"),
               *search = std::getenv("IBX_TEST_SEARCH"),
               *other = std::getenv("IBX_TEST_OTHER_PROGRAM");
    REQUIRE(program && local && opener && search && other);
    GpuBackEnd back;
    const Installed installed;
    const Others narrow(local);
    Application without(&back, program, local);
    REQUIRE(without.ended() == 35);
    REQUIRE(lines_with(without.said(), "LD_AUDIT") == 1 &&
            lines_with(without.said(), "libcudart.so.13 is NVIDIA's") == 1);
    REQUIRE(lines_with(without.said(), "ibx:") == 1);
    setenv("LD_AUDIT", search, 1);
    Application with(&back, program, local);
    REQUIRE(with.good() && lines_with(with.said(), "ibx:") == 0);
    // A program that has overwritten its environment by then.
    Application titled(&back, opener, local);
    REQUIRE(titled.good() && lines_with(titled.said(), "ibx:") == 0);
    Application nowhere(nullptr, other, "");
    unsetenv("LD_AUDIT");
    return HOLDS(nowhere.good() && nowhere.said().empty());
}

// Whether a program that finds NVIDIA's by DT_RPATH gets GVirtuS's, with this in LD_LIBRARY_PATH.
static bool finds_by(const GpuBackEnd &back, const std::string &listed)
{
    const char *program = std::getenv("IBX_TEST_LOCAL_PROGRAM"),
               *local = std::getenv("IBX_TEST_LOCAL_CUDART"),
               *search = std::getenv("IBX_TEST_SEARCH");
    const std::string before = std::getenv("LD_LIBRARY_PATH");
    REQUIRE(program && local && search);
    setenv("LD_LIBRARY_PATH", (listed + ":" + before).c_str(), 1);
    setenv("LD_AUDIT", search, 1);
    Application app(&back, program, local);
    unsetenv("LD_AUDIT");
    setenv("LD_LIBRARY_PATH", before.c_str(), 1);
    REQUIRE(app.good());
    return HOLDS(lines_with(app.said(), "ibx:") == 0);
}

// The loader's variables in LD_LIBRARY_PATH: the program's folder, and the folder for libraries of
// this kind of processor, which has another name on each system.
bool libraries_found_by_tokens()
{
    const char *program = std::getenv("IBX_TEST_LOCAL_PROGRAM");
    REQUIRE(program);
    const std::filesystem::path in = std::filesystem::canonical(folder) / "tokens",
                                from = std::filesystem::canonical(program).parent_path(),
                                library = std::filesystem::absolute(cudart);
    const auto *platform = reinterpret_cast<const char *>(getauxval(AT_PLATFORM));
    const std::string here = in.lexically_relative(from);
    GpuBackEnd back;
    const std::pair<std::string, std::string> all[] = {
        {"$ORIGIN/" + here, ""},
        {"/nowhere/$LIB:${ORIGIN}/" + here, ""},
        {in.string() + "/$LIB", "lib"},
        {in.string() + "/${LIB}/of", "lib64/of"},
        {in.string() + "/$PLATFORM-of", platform ? platform + std::string("-of") : ""},
        {"$ORIGIN/" + here + "/$LIB/$OTHER", "lib/$OTHER"},
        {in.string() + "/$LIBRARY/$ORIGIN_", "$LIBRARY/$ORIGIN_"}};
    for (const auto &[listed, found] : all) {
        std::filesystem::create_directories(in / found);
        std::filesystem::create_symlink(library, in / found / "libcudart.so.13");
        const bool good = finds_by(back, listed);
        std::filesystem::remove_all(in);
        if (!good)
            std::fprintf(stderr, "not found by %s\n", listed.c_str());
        REQUIRE(good);
    }
    return true;
}

// A program finds the functions of a library that it has opened for itself alone, also those that
// other programs are told do not exist.
bool libraries_of_its_own()
{
    const char *opener = std::getenv("IBX_TEST_LOCAL_OPENER"),
               *sparse = std::getenv("IBX_TEST_LOCAL_SPARSE");
    REQUIRE(opener && sparse);
    Application app(nullptr, opener, sparse, "cusparseSbsrxmv");
    return HOLDS(app.good() && lines_with(app.said(), "cusparseSbsrxmv") == 0);
}

// Libraries that ask the driver for a private table. Nothing is said about one that works without
// it; a line names one of NVIDIA's as such, and says of any other that it may contain CUDA's
// runtime.
bool libraries_ask_driver()
{
    const char *opener = std::getenv("IBX_TEST_LOCAL_OPENER"),
               *asks = std::getenv("IBX_TEST_ASKS_DRIVER");
    REQUIRE(opener && asks);
    const struct {
        const char *name, *says;
    } all[] = {{"libnvidia-ml.so.1", nullptr},
               {"libnvrtc.so.13", nullptr},
               {"libcupti.so.13", "by which profilers see kernels"},
               {"libcudnn_graph.so.9", "which is NVIDIA's"},
               {"libnvidia-mlmine.so", "do not strip it"},
               {"libmine.so", "do not strip it"}};
    for (const auto &each : all) {
        const std::string file = folder + "/" + each.name;
        std::filesystem::copy_file(asks, file, std::filesystem::copy_options::overwrite_existing);
        Application app(nullptr, opener, file, "ask_driver");
        REQUIRE(app.good() && lines_with(app.said(), "ibx:") == (each.says ? 1 : 0));
        REQUIRE(!each.says || lines_with(app.said(), "to " + file) == 1);
        REQUIRE(!each.says || lines_with(app.said(), each.says) == 1);
        std::filesystem::remove(file);
    }
    return true;
}

bool stock(const char *test, const char *warning)
{
    Application app(nullptr, application, test);
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "ibx:") == 1);
    REQUIRE(lines_with(app.said(), warning) == 1);
    return true;
}

// `ends`: how many processes call exit(3).
bool loaded_locally(const char *test, unsigned ends)
{
    GpuBackEnd back;
    Application app(&back, application_local, cudart, test);
    REQUIRE(app.good());
    REQUIRE(lines_with(app.said(), "the program's handler\n") == ends);
    REQUIRE(lines_with(app.said(), "ibx:") == 0);
    return true;
}

// What kernels have printed is written as the program ends, whichever way it does, once at most.
bool printed_last(const char *test, const char *wanted)
{
    GpuBackEnd back;
    Application app(&back, application, test);
    const pid_t serving = back.serving();
    char bytes[100];
    std::string got;
    const auto begun = std::chrono::steady_clock::now();
    REQUIRE(app.good());
    const auto took = std::chrono::steady_clock::now() - begun;
    kill(serving, SIGCONT); // one has stopped it
    for (ssize_t n; (n = read(app.out, bytes, sizeof(bytes))) > 0;)
        got.append(bytes, static_cast<std::size_t>(n));
    return HOLDS(got == wanted && took < std::chrono::seconds(10 * patience_times()));
}
