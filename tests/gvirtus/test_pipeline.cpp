// SPDX-License-Identifier: LGPL-2.1-or-later
//
//   test_pipeline PLUGIN.so PROVIDER [PROGRAMS]
#include "tests/gvirtus/pipeline_scene.h"

#include <cstdio>
#include <cstdlib>

const ibx_frontend_calls *direct;

__attribute__((visibility("default"))) void ibx_frontend_attach(const ibx_frontend_calls *calls)
{
    direct = calls;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        std::fprintf(stderr, "usage: test_pipeline PLUGIN.so PROVIDER [PROGRAMS]\n");
        return 2;
    }
    const unsigned programs =
        argc > 3 ? static_cast<unsigned>(std::strtoul(argv[3], nullptr, 10)) : 16;
    scene_open(argv[1], argv[2]);

    check_answers();
    check_direct();
    check_memory();
    check_copies();
    check_errors();
    check_events();
    check_threads();
    check_processes();
    check_programs(programs);

    return scene_close();
}
