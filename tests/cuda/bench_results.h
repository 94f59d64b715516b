// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What bench_gpu has measured, and how it is shown.
#ifndef TESTS_CUDA_BENCH_RESULTS_H
#define TESTS_CUDA_BENCH_RESULTS_H

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <utility>
#include <vector>

constexpr std::size_t bench_sizes[] = {4,        65536,     262144,    1u << 20,
                                       4u << 20, 16u << 20, 64u << 20, 256u << 20};
constexpr std::size_t bench_size_count = sizeof(bench_sizes) / sizeof(bench_sizes[0]);

// Of one path, by size; seconds of the median call.
struct Times {
    double to[bench_size_count], from[bench_size_count];
    std::uint64_t handled; // copies that GVirtuS's handler ran
};

using Results = std::vector<std::pair<std::string, Times>>;

// The cells that bench_application.cpp prints. False: it has not come to its end.
bool bench_add_cells(const std::string &name, std::istream &cells, Results *results);
void bench_print_table(const Results &results, bool to);
void bench_write_json(const Results &results, const char *file);

#endif
