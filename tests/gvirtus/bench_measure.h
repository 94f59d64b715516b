// SPDX-License-Identifier: LGPL-2.1-or-later
//
// What bench_gpu and bench-application measure with.
#ifndef TESTS_GVIRTUS_BENCH_MEASURE_H
#define TESTS_GVIRTUS_BENCH_MEASURE_H

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

inline double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Seconds of the median call in `slice` seconds. The first calls, or a long first one, warm up.
inline double median_of(const std::function<void()> &call, double slice)
{
    double warm = now() + slice;
    for (int i = 0; i < 3 && (!i || now() < warm); i++)
        call();
    std::vector<double> times;
    for (double end = now() + slice; now() < end || times.size() < 3;) {
        double begin = now();
        call();
        times.push_back(now() - begin);
    }
    auto middle = times.begin() + static_cast<long>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

// Seconds for each of many calls in a row. `finish` waits for calls that have returned before they
// were run. The median of five such rows in `slice` seconds.
inline double mean_of(const std::function<void()> &call, const std::function<void()> &finish,
                      double slice)
{
    constexpr int rows = 5;
    double warm = now() + slice;
    for (int i = 0; i < 3 && (!i || now() < warm); i++)
        call();
    finish();
    std::vector<double> means;
    for (int i = 0; i < rows; i++) {
        const double begin = now();
        unsigned calls = 0;
        for (; !calls || now() < begin + slice / rows; calls++)
            call();
        finish();
        means.push_back((now() - begin) / calls);
    }
    std::nth_element(means.begin(), means.begin() + rows / 2, means.end());
    return means[rows / 2];
}

inline void fill(char *bytes, std::size_t n, std::uint64_t seed)
{
    std::uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (std::size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = static_cast<char>(x >> 56);
    }
}

#endif
