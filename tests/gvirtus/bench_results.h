// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What bench_gpu has measured, and how it is shown.
#ifndef TESTS_CUDA_BENCH_RESULTS_H
#define TESTS_CUDA_BENCH_RESULTS_H

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

constexpr std::size_t bench_sizes[] = {4,        65536,     262144,    1u << 20,
                                       4u << 20, 16u << 20, 64u << 20, 256u << 20};
constexpr std::size_t bench_size_count = sizeof(bench_sizes) / sizeof(bench_sizes[0]);

// Times of one path, by size: seconds of the median call.
struct Times {
    double to[bench_size_count], from[bench_size_count];
    std::uint64_t handled; // copies that GVirtuS's handler ran
};

// One path: one or more rounds, in their order. A machine has slower minutes: so paths that are
// compared are measured in turns, and each ratio is that of one round.
struct Path {
    std::string name;
    std::vector<Times> rounds;
};

using Results = std::vector<Path>;

// Adds a round to the path of that name.
void bench_add(const std::string &name, const Times &times, Results *results);
// Reads the cells that bench_application.cpp prints: a round of "NAME pageable" and one of "NAME
// pinned". False: they are not complete.
bool bench_add_cells(const std::string &name, std::istream &cells, Results *results);
// Prints medians of the rounds.
void bench_print_table(const Results &results, bool to);
// Prints each path beside the base's path with memory of the same kind, if they have equally many
// rounds: the median of the rounds' ratios, the least and the greatest.
void bench_print_beside(const Results &results, const std::string &base);
void bench_write_json(const Results &results, const char *file);

#endif
