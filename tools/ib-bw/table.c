/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The results for people. */
#include "tools/ib-bw/ib-bw.h"

#include <string.h>

#define FAST_BYTES ((size_t)64 << 10) /* from this size on rates are shown, not times */
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

const char *ibx_bw_path_label(const struct bw_results *results, unsigned path,
                              char text[BW_LABEL_TEXT])
{
    snprintf(text, BW_LABEL_TEXT, "%s%s", results->paths[path],
             results->encrypted[path] ? "+TLS" : "");
    return text;
}

static void print_time(double us, char out[16])
{
    if (us < 1e4)
        snprintf(out, 16, "%.1f us", us);
    else
        snprintf(out, 16, "%.1f ms", us / 1e3);
}

static void print_ratio(double ratio, char out[16])
{
    if (ratio > 0)
        snprintf(out, 16, "x%.2f", ratio);
    else
        snprintf(out, 16, "-");
}

/* ---------------------------------------------------------------------- side by side */

/* The width of the ratio's column; 0: there is none, for stock itself or without stock. */
static int ratio_width(const struct bw_results *results, unsigned path)
{
    return results->stock >= 0 && results->stock != (int)path ? RATIO : 0;
}

static void print_row(const struct bw_results *results, enum bw_op op, unsigned size, FILE *out)
{
    char text[BW_SIZE_TEXT], value[16], ratio[16];
    fprintf(out, "%9s", ibx_bw_size_print(results->sizes[size], text));
    for (unsigned path = 0; path < results->path_count; path++) {
        struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
        if (!s.calls)
            snprintf(value, sizeof(value), "-");
        else if (results->sizes[size] < FAST_BYTES)
            print_time(s.median_us, value);
        else
            snprintf(value, sizeof(value), "%.2f GB/s", s.gbps);
        fprintf(out, "%*s", VALUE, value);
        if (ratio_width(results, path)) {
            print_ratio(s.ratio, ratio);
            fprintf(out, "%*s", RATIO, ratio);
        }
    }
    fputc('\n', out);
}

static void print_block(const struct bw_results *results, enum bw_op op, FILE *out)
{
    char label[BW_LABEL_TEXT];
    fprintf(out, "%s\n%9s", ibx_bw_op_titles[op], "bytes");
    for (unsigned path = 0; path < results->path_count; path++)
        fprintf(out, "%*s", VALUE + ratio_width(results, path),
                ibx_bw_path_label(results, path, label));
    fputc('\n', out);
    for (unsigned size = 0; size < results->size_count; size++) {
        if (ibx_bw_results_measured(results, op, size, 1))
            print_row(results, op, size, out);
    }
    fputc('\n', out);
}

/* ------------------------------------------------------------------------ line a path */

static void print_long_block(const struct bw_results *results, enum bw_op op, FILE *out)
{
    char text[BW_SIZE_TEXT], label[BW_LABEL_TEXT], median[16], p99[16], ratio[16];
    bool ratios = results->stock >= 0;
    fprintf(out, "%s\n%9s  %-8s%9s%12s%12s%10s%*s\n", ibx_bw_op_titles[op], "bytes", "path",
            "calls", "median", "99th pct.", "GB/s", ratios ? RATIO : 0, ratios ? "ratio" : "");
    for (unsigned size = 0; size < results->size_count; size++) {
        for (unsigned path = 0; path < results->path_count; path++) {
            struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
            if (!s.calls)
                continue;
            print_time(s.median_us, median);
            print_time(s.p99_us, p99);
            print_ratio(s.ratio, ratio);
            fprintf(out, "%9s  %-8s%9zu%12s%12s%10.3f%*s\n",
                    ibx_bw_size_print(results->sizes[size], text),
                    ibx_bw_path_label(results, path, label), s.calls, median, p99, s.gbps,
                    ratios ? RATIO : 0, ratios ? ratio : "");
        }
    }
    fputc('\n', out);
}

/* ---------------------------------------------------------------------------- the rest */

static void print_medians(const struct bw_results *results, FILE *out)
{
    char label[BW_LABEL_TEXT];
    for (unsigned path = 0; path < results->path_count; path++) {
        for (unsigned op = 0; op < BW_OPS && (int)path != results->stock; op++) {
            double ratios[BW_SIZES_MAX];
            unsigned n = 0;
            for (unsigned i = 0; i < results->size_count; i++) {
                double ratio = ibx_bw_results_summary(results, path, (enum bw_op)op, i).ratio;
                if (results->sizes[i] >= MIB && results->sizes[i] <= 64 * MIB && ratio > 0)
                    ratios[n++] = ratio;
            }
            if (n)
                fprintf(out, "%s against stock, %s, 1 to 64 MiB: x%.2f (median of the ratios)\n",
                        ibx_bw_path_label(results, path, label), ibx_bw_op_names[op],
                        ibx_bw_median(ratios, n));
        }
    }
}

static void print_machine(const struct bw_results *results, FILE *out)
{
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

void ibx_bw_table_print(const struct bw_results *results, bool line_a_path, FILE *out)
{
    char text[BW_SIZE_TEXT];
    const bool any = ibx_bw_results_measured(results, BW_H2D, 0, results->size_count) ||
                     ibx_bw_results_measured(results, BW_D2H, 0, results->size_count);
    if (any && results->path_count > 1)
        fprintf(out, "Median of a call%s\n\n",
                results->stock < 0
                    ? ""
                    : ", and how many times faster it is than stock, GVirtuS's own TCP (x)");
    for (unsigned op = 0; any && op < BW_OPS; op++) {
        if (line_a_path || results->path_count == 1)
            print_long_block(results, (enum bw_op)op, out);
        else
            print_block(results, (enum bw_op)op, out);
    }
    print_medians(results, out);
    print_machine(results, out);
    if (results->chosen.provider[0])
        fprintf(out, "chosen here: %s; payloads of %s and more go one-sided\n",
                results->chosen.description,
                ibx_bw_size_print(results->chosen_caps.rendezvous, text));
    for (unsigned i = 0; i < results->refused_count; i++)
        fprintf(out, "refused: %s: %s\n", results->refused[i].path, results->refused[i].reason);
}
