// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Back ends and functions that fail an application, and libraries and programs that are not what
// they should be.
#include "frontend-glue/session/extensions.h"
#include "tests/gvirtus/frontend_scene.h"
#include "tests/fixtures/island.h"
#include "tests/fixtures/patience.h"

#include <algorithm>
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

// GVirtuS's libcudart, by the name that it has for that version of CUDA.
struct Installed {
    const std::string in = folder + "/front end";
    explicit Installed(int version = 13)
    {
        std::filesystem::create_directory(in);
        std::filesystem::create_symlink(std::filesystem::absolute(cudart),
                                        in + "/libcudart.so." + std::to_string(version));
        const char *libraries = std::getenv("LD_LIBRARY_PATH");
        before = libraries ? libraries : "";
        setenv("LD_LIBRARY_PATH", (in + ":" + before).c_str(), 1);
    }
    ~Installed()
    {
        setenv("LD_LIBRARY_PATH", before.c_str(), 1);
        std::filesystem::remove_all(in);
    }

  private:
    std::string before;
};

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

static bool reaches(const std::string &program, const char *how)
{
    GpuBackEnd back;
    const Installed installed;
    Application app(&back, program, how);
    return HOLDS(app.good() && lines_with(app.said(), "ibx:") == 0);
}

// A program with a statically linked CUDA runtime calls GVirtuS's functions and ours.
bool static_runtime()
{
    const char *program = std::getenv("IBX_TEST_STATIC_PROGRAM");
    REQUIRE(program);
    return HOLDS(reaches(program, "reaches"));
}

// So does a program that only copies, or calls libcublas: it contains no kernels.
bool static_runtime_host_only()
{
    const char *program = std::getenv("IBX_TEST_STATIC_PROGRAM");
    REQUIRE(program);
    return HOLDS(reaches(std::string(program) + "-host-only", "reaches"));
}

// ... and a program that has its own malloc(3), which all call while the code is changed.
bool static_runtime_allocator()
{
    const char *program = std::getenv("IBX_TEST_STATIC_PROGRAM");
    REQUIRE(program);
    return HOLDS(reaches(std::string(program) + "-allocator", "reaches"));
}

// ... also if no memory may become executable (systemd's MemoryDenyWriteExecute=), and if the
// loader is started by its own name.
bool static_runtime_odd_starts()
{
    const char *program = std::getenv("IBX_TEST_STATIC_PROGRAM");
    REQUIRE(program);
    REQUIRE(reaches(program, "no new code"));
    return HOLDS(reaches(program, "by its loader"));
}

// If this is impossible in a program, a line says why, and the program goes on as without us.
bool static_runtime_refused()
{
    const char *program = std::getenv("IBX_TEST_STATIC_PROGRAM"),
               *without = std::getenv("IBX_TEST_OTHER_PROGRAM");
    REQUIRE(program && without);
    const std::string stripped = std::string(program) + "-stripped",
                      of_12 = std::string(program) + "-of-12";
    Application alone(nullptr, program, "");
    REQUIRE(alone.good() && lines_with(alone.said(), "LD_LIBRARY_PATH has to name") == 1);
    REQUIRE(lines_with(alone.said(), program) == 1 && lines_with(alone.said(), "ibx:") == 1);
    const Installed installed;
    Application other_version(nullptr, of_12, "");
    REQUIRE(other_version.good() && lines_with(other_version.said(), "libcudart.so.12") == 1);
    Application nameless(nullptr, stripped, "");
    REQUIRE(nameless.good() && lines_with(nameless.said(), "do not strip it") == 1);
    REQUIRE(lines_with(nameless.said(), stripped) == 1);
    REQUIRE(lines_with(nameless.said(), "ibx:") == 1);
    Application other(nullptr, without, "");
    return HOLDS(other.good() && other.said().empty());
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

// The double's library of that kind.
static std::string static_library(const char *kind)
{
    const char *library = std::getenv("IBX_TEST_STATIC_LIBRARY");
    std::string name = library ? library : "";
    return name.empty() ? name : name.replace(name.rfind(".so"), 0, kind);
}

// A program's libraries that contain CUDA's runtime: their constructors call it before ours run.
bool static_libraries_linked()
{
    const char *programs = std::getenv("IBX_TEST_STATIC_LINKED");
    REQUIRE(programs);
    setenv("TEST_STATIC_LIBRARY", static_library("-2").c_str(), 1);
    std::istringstream all(programs);
    for (std::string program; std::getline(all, program, ':');)
        REQUIRE(reaches(program, "linked"));
    return true;
}

// Likewise libraries that the program opens. "nested": one opens another in its constructor. "far":
// one is linked for an address at which nothing can be, like the vDSO of some kernels. "copy": the
// program has a copy of the loader's list.
bool static_libraries_opened(const char *how)
{
    const char *program = std::getenv("IBX_TEST_STATIC_OPENER");
    const bool nested = !std::strcmp(how, "nested"), own = !std::strcmp(how, "first calls");
    const bool far = !std::strcmp(how, "far"), copy = !std::strcmp(how, "copy");
    REQUIRE(program);
    setenv("TEST_STATIC_LIBRARY", static_library(own ? "-own" : far ? "-far" : "").c_str(), 1);
    setenv("TEST_STATIC_LIBRARY_2", static_library(nested ? "-opens" : "-2").c_str(), 1);
    setenv("LD_BIND_NOW", !std::strcmp(how, "flags") ? "1" : "", 1); // empty: not set
    return HOLDS(
        reaches(program + std::string(copy ? "-copy" : ""), nested || far || copy ? "once" : how));
}

// A call that neither GVirtuS nor this library has returns an error, and a line names it.
bool static_libraries_lacking()
{
    const char *program = std::getenv("IBX_TEST_STATIC_OPENER");
    GpuBackEnd back;
    const Installed installed;
    REQUIRE(program);
    setenv("TEST_STATIC_LIBRARY", static_library("-2").c_str(), 1);
    setenv("TEST_STATIC_LIBRARY_2", "", 1);
    const char *wanted = std::getenv("TEST_STATIC_ROUNDS");
    const std::string rounds = wanted ? wanted : ""; // empty: as many as usual
    setenv("TEST_STATIC_ROUNDS", "1", 1);
    Application one(&back, program, "lacked");
    setenv("TEST_STATIC_ROUNDS", rounds.c_str(), 1);
    REQUIRE(one.good() && lines_with(one.said(), "ibx:") == 1);
    REQUIRE(lines_with(one.said(), "cudaNothing returns cudaErrorNotSupported") == 1);
    Application many(&back, program, "lacked");
    return HOLDS(many.good());
}

// Modules of the Python package cuda.bindings call a stripped runtime by functions that they name;
// other modules with such names are left alone. An interpreter has no sanitizer.
bool static_runtime_of_python()
{
    const char *python = std::getenv("IBX_TEST_PYTHON"),
               *program = std::getenv("IBX_TEST_PYTHON_PROGRAM"),
               *module = std::getenv("IBX_TEST_PYTHON_RUNTIME");
    REQUIRE(python && program && module);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const std::string packages = folder + "/packages";
    for (const char *package : {"/cuda/bindings/_internal", "/mine"}) {
        std::filesystem::create_directories(packages + package);
        std::filesystem::copy_file(module, packages + package + "/runtime.so");
    }
    Application alone(nullptr, python, program, packages.c_str());
    REQUIRE(alone.ended() == 1 && lines_with(alone.said(), "LD_LIBRARY_PATH has to name") == 1);
    REQUIRE(lines_with(alone.said(), "_internal/runtime.so contains") == 1);
    REQUIRE(lines_with(alone.said(), "ibx:") == 1);
    GpuBackEnd back;
    const Installed installed;
    Application app(&back, python, program, packages.c_str());
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 0);
#endif
    return true;
}

// A line names a library that is opened in another namespace, if the loader lists it (glibc 2.35).
// A sanitizer would be loaded twice.
bool static_libraries_elsewhere()
{
    const char *program = std::getenv("IBX_TEST_STATIC_OPENER");
    REQUIRE(program);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&                             \
    (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 35)
    const std::string first = static_library(""), second = static_library("-2");
    setenv("TEST_STATIC_LIBRARY", first.c_str(), 1);
    setenv("TEST_STATIC_LIBRARY_2", second.c_str(), 1);
    Application app(nullptr, program, "namespace");
    REQUIRE(app.good() && lines_with(app.said(), "into a namespace of its own") == 2);
    REQUIRE(lines_with(app.said(), first) == 1 && lines_with(app.said(), second) == 1);
    REQUIRE(lines_with(app.said(), "ibx:") == 2);
#endif
    return true;
}

// One libcudart of GVirtuS is in use, that for the version of the first library.
static bool of_two_versions(const char *program)
{
    GpuBackEnd back;
    const Installed installed;
    const std::string other = static_library("-of-12");
    setenv("TEST_STATIC_LIBRARY", static_library("").c_str(), 1);
    setenv("TEST_STATIC_LIBRARY_2", other.c_str(), 1);
    Application app(&back, program, "versions");
    REQUIRE(app.good() && lines_with(app.said(), other) == 1);
    REQUIRE(lines_with(app.said(), "with one version of CUDA") == 1);
    return HOLDS(lines_with(app.said(), "ibx:") == 1);
}

// There is no line about a library of NVIDIA's, which its whole name tells, whatever runtime it
// contains; there is one about anybody else's.
static bool by_name(const char *program, const char *name, unsigned lines)
{
    const std::string file = folder + "/" + name;
    for (const char *kind : {"-stripped", ""}) {
        std::filesystem::copy_file(static_library(kind), file,
                                   std::filesystem::copy_options::overwrite_existing);
        setenv("TEST_STATIC_LIBRARY", file.c_str(), 1);
        Application app(nullptr, program, "told");
        REQUIRE(app.good() && lines_with(app.said(), "ibx:") == lines);
    }
    return true;
}

// If this is impossible in a library, a line names it and says why; if a library's runtime is in
// none of its files, there is no line.
bool static_libraries_refused()
{
    const char *program = std::getenv("IBX_TEST_STATIC_OPENER");
    REQUIRE(program && of_two_versions(program));
    for (const char *name : {"libcudnn.so", "libcudart-0123abcd.so.13", "libnvrtc.alt.so.13",
                             "libnvjpeg.36e11081.so.13"})
        REQUIRE(by_name(program, name, 0));
    for (const char *name :
         {"libcudnn_mine.so", "libnccl-net.so", "libcublas-mathematics.so", "libnvjpeg.mine.so"})
        REQUIRE(by_name(program, name, 1));
    const struct {
        const char *kind, *says;
    } all[] = {{"-stripped", "do not strip it"},
               {"-relocated", "DT_TEXTREL"},
               {"", "LD_LIBRARY_PATH has to name"},
               {"-elsewhere", nullptr}};
    for (const auto &each : all) {
        const std::string library = static_library(each.kind);
        setenv("TEST_STATIC_LIBRARY", library.c_str(), 1);
        setenv("TEST_STATIC_LIBRARY_2", "", 1);
        Application app(nullptr, program, "told");
        REQUIRE(app.good());
        REQUIRE(!each.says || lines_with(app.said(), each.says) == 1);
        REQUIRE(lines_with(app.said(), library) == (each.says != nullptr));
        REQUIRE(lines_with(app.said(), "ibx:") == (each.says != nullptr));
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
