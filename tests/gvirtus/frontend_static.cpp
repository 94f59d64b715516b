// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs, libraries and modules of Python with a statically linked CUDA runtime.
#include "tests/fixtures/island.h"
#include "tests/gvirtus/frontend_scene.h"

#include <cstring>
#include <filesystem>
#include <sstream>

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
    const std::string packages = folder + "/packages_ptds"; // this name means nothing
    for (const char *package : {"/cuda/bindings/_internal", "/mine"}) {
        std::filesystem::create_directories(packages + package);
        for (const char *file : {"/runtime.so", "/runtime_ptds.so"})
            std::filesystem::copy_file(module, packages + package + file);
    }
    setenv("TEST_CALLS", "0", 1);
    Application silent(nullptr, python, program, packages.c_str());
    REQUIRE(silent.good() && lines_with(silent.said(), "ibx:") == 0);
    unsetenv("TEST_CALLS");
    Application alone(nullptr, python, program, packages.c_str());
    REQUIRE(alone.ended() == 1 && lines_with(alone.said(), "LD_LIBRARY_PATH has to name") == 1);
    REQUIRE(lines_with(alone.said(), "_internal/runtime.so contains") == 1);
    REQUIRE(lines_with(alone.said(), "ibx:") == 1);
    setenv("TEST_OF_12", "1", 1);
    Application of_12(nullptr, python, program, packages.c_str());
    REQUIRE(of_12.ended() == 1 && lines_with(of_12.said(), "libcudart.so.12") == 1);
    unsetenv("TEST_OF_12");
    GpuBackEnd back;
    const Installed installed;
    Application app(&back, python, program, packages.c_str());
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 0);
    setenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "1", 1);
    Application by_thread(&back, python, program, packages.c_str());
    unsetenv("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM");
    REQUIRE(by_thread.good() && lines_with(by_thread.said(), "ibx:") == 0);
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
