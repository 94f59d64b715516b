// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/cuda/bench_results.h"

#include <cstdio>
#include <fstream>

// The cells of an application's output.
bool bench_add_cells(const std::string &name, std::istream &cells, Results *results)
{
    Times pageable{}, pinned{};
    std::string word, kind, op;
    bool done = false;
    while (cells >> word) {
        std::size_t n = 0, i = 0;
        double us = 0;
        done = word == "DONE";
        if (word != "CELL" || !(cells >> kind >> op >> n >> us))
            continue;
        while (i < bench_size_count && bench_sizes[i] != n)
            i++;
        Times &times = kind == "pinned" ? pinned : pageable;
        if (i < bench_size_count)
            (op == "h2d" ? times.to : times.from)[i] = us / 1e6;
    }
    if (!done)
        return false;
    results->emplace_back(name + " pageable", pageable);
    results->emplace_back(name + " pinned", pinned);
    return true;
}

static double gbps(std::size_t n, double seconds)
{
    return static_cast<double>(n) / seconds / 1e9;
}

void bench_print_table(const Results &results, bool to)
{
    std::printf("\n| %s |", to ? "H2D" : "D2H");
    for (const auto &result : results)
        std::printf(" %s |", result.first.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < results.size(); i++)
        std::printf("---|");
    for (std::size_t i = 0; i < bench_size_count; i++) {
        std::printf("\n| %zu |", bench_sizes[i]);
        for (const auto &result : results) {
            double seconds = to ? result.second.to[i] : result.second.from[i];
            if (bench_sizes[i] < 1024)
                std::printf(" %.1f us |", seconds * 1e6);
            else
                std::printf(" %.2f |", gbps(bench_sizes[i], seconds));
        }
    }
    std::printf("\n");
}

void bench_write_json(const Results &results, const char *file)
{
    std::ofstream out(file);
    const char *between = "";
    out << "[";
    for (const auto &result : results) {
        for (std::size_t i = 0; i < bench_size_count; i++) {
            for (bool to : {true, false}) {
                double seconds = to ? result.second.to[i] : result.second.from[i];
                out << between << "\n  {\"path\": \"" << result.first << "\", \"op\": \""
                    << (to ? "h2d" : "d2h") << "\", \"bytes\": " << bench_sizes[i]
                    << ", \"median_us\": " << seconds * 1e6
                    << ", \"gbps\": " << gbps(bench_sizes[i], seconds) << "}";
                between = ",";
            }
        }
    }
    out << "\n]\n";
}
