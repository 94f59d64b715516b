// SPDX-License-Identifier: LGPL-2.1-or-later
//
//   test_pipeline PLUGIN.so PROVIDER [PROGRAMS]
#include "tests/gvirtus/pipeline_scene.h"

#include <cstdio>
#include <cstdlib>

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
    check_errors();
    check_threads();
    check_processes();
    check_programs(programs);

    return scene_close();
}
