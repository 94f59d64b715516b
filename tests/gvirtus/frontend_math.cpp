// SPDX-License-Identifier: LGPL-2.1-or-later
//
// Programs that call cuBLAS, cuSOLVER and cuDNN: where these or some of their calls are not there,
// with calls that are too long, and without giving back what they have made.
#include "tests/gvirtus/frontend_scene.h"

#include <string>

// The back end has no plugins of cuBLAS and others.
bool without_math()
{
    const std::string libraries = std::getenv("IBX_TEST_MATH");
    unsetenv("IBX_TEST_MATH");
    GpuBackEnd back;
    setenv("IBX_TEST_MATH", libraries.c_str(), 1);
    Application app(&back, application, "no-math-libraries");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 1);
    return HOLDS(lines_with(app.said(), "cublasCreate_v2 returns 15") == 1);
}

// Calls with too many arguments: one line says so.
bool too_long_for_dnn()
{
    GpuBackEnd back;
    Application app(&back, application, "dnn-too-long");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 2);
    REQUIRE(lines_with(app.said(), "cudnnSetTensorNdDescriptor returns 2000: its arguments") == 1);
    return HOLDS(lines_with(app.said(), "1024 tensors at most over a remote GPU") == 1);
}

// Functions of these libraries that do not exist: one line for each.
bool without_some_math()
{
    GpuBackEnd back;
    Application app(&back, application, "absent-from-math");
    REQUIRE(app.good() && lines_with(app.said(), "ibx:") == 6);
    return HOLDS(lines_with(app.said(), "cusolverSpCcsreigvsi returns 9: it is not there") == 1);
}

// A back end that has loaded the libraries before its client's first call.
bool math_first()
{
    setenv("IBX_TEST_PLUGINS", "1", 1);
    GpuBackEnd back;
    unsetenv("IBX_TEST_PLUGINS");
    Application app(&back, application, "math-library-first");
    return HOLDS(app.good() && lines_with(app.said(), "ibx:") == 0);
}

// If its process of the back end goes on, handles that a program leaves are given back.
bool leaves_math()
{
    GpuBackEnd back(true, one_process);
    auto over = connected(back.port);
    Remote other(over.get());
    other.get_last_error();
    Application app(&back, application, "leaves-math-libraries");
    REQUIRE(app.good());
    while (other.library_handles()) // the test's limit ends it
        usleep(1000);
    return true;
}
