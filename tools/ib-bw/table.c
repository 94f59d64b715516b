/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table for people. */
#include "tools/ib-bw/ib-bw.h"

#include <string.h>

#define FAST_BYTES ((size_t)64 << 10) /* from here on a rate says more than a time */
#define MIB        ((size_t)1 << 20)
#define VALUE      11 /* columns */
#define RATIO      8

const char *ibx_bw_size_print(size_t bytes, char text[BW_SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    while (bytes >= 1024 && bytes % 1024 == 0 && unit < 3) {
        bytes /= 1024;
        unit++;
    }
    snprintf(text, BW_SIZE_TEXT, "%zu %s", bytes, units[unit]);
    return text;
}

static const char *title(enum bw_op op)
{
    static const char *const titles[] = {
        [BW_H2D] = "H2D: cudaMemcpy to the device",
        [BW_D2H] = "D2H: cudaMemcpy from the device",
        [BW_READ] = "READ: the server reads the client's memory",
        [BW_WRITE] = "WRITE: the server writes the client's memory",
        [BW_PING] = "PING: a message one way, half of the way there and back",
    };
    return titles[op];
}

static void print_time(double us, char out[16])
{
    if (us < 1e4)
        snprintf(out, 16, "%.1f us", us);
    else
        snprintf(out, 16, "%.1f ms", us / 1e3);
}

static void print_value(const struct bw_summary *s, bool as_time, char out[16])
{
    if (!s->calls)
        snprintf(out, 16, "-");
    else if (as_time)
        print_time(s->median_us, out);
    else
        snprintf(out, 16, "%.2f GB/s", s->gbps);
}

/* Of a path that is measured against stock; a ratio to itself says nothing. */
static void print_ratio(double ratio, char out[16])
{
    if (ratio > 0)
        snprintf(out, 16, "x%.2f", ratio);
    else
        snprintf(out, 16, "-");
}

static bool is_stock(const struct bw_results *results, unsigned path)
{
    return !strcmp(results->paths[path], BW_STOCK);
}

static bool has_stock(const struct bw_results *results)
{
    for (unsigned path = 0; path < results->path_count; path++) {
        if (is_stock(results, path))
            return true;
    }
    return false;
}

/* ---------------------------------------------------------------------- side by side */

/* 0: the column is left out. */
static int ratio_width(const struct bw_results *results, unsigned path)
{
    return has_stock(results) && !is_stock(results, path) ? RATIO : 0;
}

static void print_row(const struct bw_results *results, unsigned op, unsigned size, FILE *out)
{
    char text[BW_SIZE_TEXT], value[16], ratio[16];
    bool as_time = results->sizes[size] < FAST_BYTES || results->ops[op] == BW_PING;
    fprintf(out, "%9s", ibx_bw_size_print(results->sizes[size], text));
    for (unsigned path = 0; path < results->path_count; path++) {
        struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
        print_value(&s, as_time, value);
        fprintf(out, "%*s", VALUE, value);
        if (ratio_width(results, path)) {
            print_ratio(s.ratio, ratio);
            fprintf(out, "%*s", RATIO, ratio);
        }
    }
    fputc('\n', out);
}

static bool row_empty(const struct bw_results *results, unsigned op, unsigned size)
{
    for (unsigned path = 0; path < results->path_count; path++) {
        if (ibx_bw_results_cell(results, path, op, size)->samples)
            return false;
    }
    return true;
}

/* Nothing was measured at all. */
static bool empty(const struct bw_results *results)
{
    for (unsigned op = 0; op < results->op_count; op++) {
        for (unsigned size = 0; size < results->size_count; size++) {
            if (!row_empty(results, op, size))
                return false;
        }
    }
    return true;
}

static void print_block(const struct bw_results *results, unsigned op, FILE *out)
{
    fprintf(out, "%s\n%9s", title(results->ops[op]), "bytes");
    for (unsigned path = 0; path < results->path_count; path++) {
        fprintf(out, "%*s", VALUE + ratio_width(results, path), results->paths[path]);
    }
    fputc('\n', out);
    for (unsigned size = 0; size < results->size_count; size++) {
        if (!row_empty(results, op, size))
            print_row(results, op, size, out);
    }
    fputc('\n', out);
}

/* ------------------------------------------------------------------------ line a path */

static void print_long_block(const struct bw_results *results, unsigned op, FILE *out)
{
    char text[BW_SIZE_TEXT], median[16], p99[16], ratio[16];
    bool ratios = has_stock(results);
    fprintf(out, "%s\n%9s  %-6s%9s%12s%12s%10s%*s\n", title(results->ops[op]), "bytes", "path",
            "calls", "median", "99th pct.", "GB/s", ratios ? RATIO : 0, ratios ? "ratio" : "");
    for (unsigned size = 0; size < results->size_count; size++) {
        for (unsigned path = 0; path < results->path_count; path++) {
            struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
            if (!s.calls)
                continue;
            print_time(s.median_us, median);
            print_time(s.p99_us, p99);
            fprintf(out, "%9s  %-6s%9llu%12s%12s%10.3f",
                    ibx_bw_size_print(results->sizes[size], text), results->paths[path],
                    (unsigned long long)s.calls, median, p99, s.gbps);
            print_ratio(s.ratio, ratio);
            fprintf(out, "%*s\n", ratios ? RATIO : 0, ratios ? ratio : "");
        }
    }
    fputc('\n', out);
}

/* ---------------------------------------------------------------------------- the rest */

static void print_medians(const struct bw_results *results, FILE *out)
{
    for (unsigned path = 0; path < results->path_count; path++) {
        if (is_stock(results, path))
            continue;
        for (unsigned op = 0; op < results->op_count; op++) {
            double ratio = ibx_bw_results_ratio(results, path, op, MIB, 64 * MIB);
            if (ratio > 0)
                fprintf(out, "%s against stock, %s, 1 to 64 MiB: x%.2f (median of the ratios)\n",
                        results->paths[path], ibx_bw_op_name(results->ops[op]), ratio);
        }
    }
}

static void print_yardsticks(const struct bw_results *results, FILE *out)
{
    if (results->iperf_gbps[0] > 0)
        fprintf(out, "yardstick: iperf3, one stream: %.2f GB/s before, %.2f after\n",
                results->iperf_gbps[0], results->iperf_gbps[1]);
    const struct bw_pins *pins = &results->pins;
    if (pins->client >= 0 && CPU_COUNT(&pins->server_set) > 1)
        fprintf(out, "processors: %d for the front end, %d for the back end\n",
                CPU_COUNT(&pins->client_set), CPU_COUNT(&pins->server_set));
    else if (pins->client >= 0)
        fprintf(out, "processors: number %d for the front end, number %d for the back end\n",
                pins->client, pins->server);
    if (results->memcpy_gbps > 0)
        fprintf(out, "yardstick: memcpy, one thread: %.2f GB/s\n", results->memcpy_gbps);
}

void ibx_bw_table_print(const struct bw_results *results, bool plain, FILE *out)
{
    char text[BW_SIZE_TEXT];
    const unsigned blocks = empty(results) ? 0 : results->op_count;
    if (blocks && results->ops[0] == BW_H2D && results->path_count > 1)
        fprintf(out, "Median of a call%s\n\n",
                has_stock(results) ? ", and how many times faster than stock it is (x)" : "");
    for (unsigned op = 0; op < blocks; op++) {
        if (plain || results->path_count == 1)
            print_long_block(results, op, out);
        else
            print_block(results, op, out);
    }
    print_medians(results, out);
    print_yardsticks(results, out);
    if (results->chosen.provider[0])
        fprintf(out, "chosen here: %s; payloads of %s and more go one-sided\n",
                results->chosen.description,
                ibx_bw_size_print(results->chosen_caps.rendezvous, text));
    for (unsigned i = 0; i < results->refused_count; i++)
        fprintf(out, "refused: %s: %s\n", results->refused[i].path, results->refused[i].reason);
}
