// SPDX-License-Identifier: LGPL-2.1-or-later
#include "tests/gvirtus/bench_results.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

void bench_add(const std::string &name, const Times &times, Results *results)
{
    auto named = [&](const Path &path) { return path.name == name; };
    auto path = std::find_if(results->begin(), results->end(), named);
    if (path == results->end())
        path = results->insert(path, Path{name, {}});
    path->rounds.push_back(times);
}

// Reads the cells from an application's output.
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
    bench_add(name + " pageable", pageable, results);
    bench_add(name + " pinned", pinned, results);
    return true;
}

static double gbps(std::size_t n, double seconds)
{
    return static_cast<double>(n) / seconds / 1e9;
}

static double seconds_of(const Times &times, bool to, std::size_t i)
{
    return to ? times.to[i] : times.from[i];
}

// The median of sorted values; the mean of the middle two if their number is even.
static double middle(const std::vector<double> &sorted)
{
    std::size_t half = sorted.size() / 2;
    return sorted.size() % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

static std::vector<double> sorted_rounds(const Path &path, bool to, std::size_t i)
{
    std::vector<double> seconds;
    for (const Times &times : path.rounds)
        seconds.push_back(seconds_of(times, to, i));
    std::sort(seconds.begin(), seconds.end());
    return seconds;
}

void bench_print_table(const Results &results, bool to)
{
    std::printf("\n| %s |", to ? "H2D" : "D2H");
    for (const Path &path : results)
        std::printf(" %s |", path.name.c_str());
    std::printf("\n|---|");
    for (std::size_t i = 0; i < results.size(); i++)
        std::printf("---|");
    for (std::size_t i = 0; i < bench_size_count; i++) {
        std::printf("\n| %zu |", bench_sizes[i]);
        for (const Path &path : results) {
            double seconds = middle(sorted_rounds(path, to, i));
            if (bench_sizes[i] < 1024)
                std::printf(" %.1f us |", seconds * 1e6);
            else
                std::printf(" %.2f |", gbps(bench_sizes[i], seconds));
        }
    }
    std::printf("\n");
}

// Compares a path with the base of the same round: how many times as fast it is, or how much later
// where a call is only latency. One value for each round, sorted.
static std::vector<double> beside(const Path &path, const Path &base, bool to, std::size_t i)
{
    std::vector<double> values;
    for (std::size_t round = 0; round < path.rounds.size(); round++) {
        double ours = seconds_of(path.rounds[round], to, i);
        double its = seconds_of(base.rounds[round], to, i);
        values.push_back(bench_sizes[i] < 1024 ? (ours - its) * 1e6 : its / ours);
    }
    std::sort(values.begin(), values.end());
    return values;
}

static void print_beside(const Path &path, const Path &base, bool to)
{
    std::printf("\n| %s %s |", path.name.c_str(), to ? "H2D" : "D2H");
    for (std::size_t i = 0; i < bench_size_count; i++) {
        std::vector<double> values = beside(path, base, to, i);
        const char *form = bench_sizes[i] < 1024 ? " %+.1f us" : " x%.2f";
        std::printf(form, middle(values));
        if (values.size() > 1)
            std::printf(" (%.2f to %.2f)", values.front(), values.back());
        std::printf(" |");
    }
}

void bench_print_beside(const Results &results, const std::string &base)
{
    bool begun = false;
    for (const Path &path : results) {
        bool pinned = path.name.find(" pinned") != std::string::npos;
        auto same = [&](const Path &other) {
            return other.name == base + (pinned ? " pinned" : " pageable") ||
                   (other.name == base && !pinned);
        };
        auto its = std::find_if(results.begin(), results.end(), same);
        if (its == results.end() || its->name == path.name ||
            path.name.compare(0, 6, "native") == 0 || its->rounds.size() != path.rounds.size())
            continue;
        if (!begun) {
            std::printf("\n| beside %s |", base.c_str());
            for (std::size_t n : bench_sizes)
                std::printf(" %zu |", n);
            std::printf("\n|---|");
            for (std::size_t i = 0; i < bench_size_count; i++)
                std::printf("---|");
            begun = true;
        }
        print_beside(path, *its, true);
        print_beside(path, *its, false);
    }
    if (begun)
        std::printf("\n");
}

void bench_write_json(const Results &results, const char *file)
{
    std::ofstream out(file);
    const char *between = "";
    out << "[";
    for (const Path &path : results) {
        for (std::size_t i = 0; i < bench_size_count; i++) {
            for (bool to : {true, false}) {
                std::vector<double> seconds = sorted_rounds(path, to, i);
                out << between << "\n  {\"path\": \"" << path.name << "\", \"op\": \""
                    << (to ? "h2d" : "d2h") << "\", \"bytes\": " << bench_sizes[i]
                    << ", \"median_us\": " << middle(seconds) * 1e6
                    << ", \"least_us\": " << seconds.front() * 1e6
                    << ", \"most_us\": " << seconds.back() * 1e6
                    << ", \"gbps\": " << gbps(bench_sizes[i], middle(seconds)) << "}";
                between = ",";
            }
        }
    }
    out << "\n]\n";
}
