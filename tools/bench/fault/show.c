/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The figures as a table and as JSON, whose FORMAT changes when the meaning of a figure does. */
#include "tools/bench/fault/fault.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 1

static const char *const names[BENCH_FIGURES] = {
    [READ_P50] = "read_p50_us",
    [READ_P99] = "read_p99_us",
    [FAULT_P50] = "fault_p50_us",
    [FAULT_P99] = "fault_p99_us",
    [FAULT_ENGINE_P50] = "fault_engine_p50_us",
    [FAULT_ENGINE_P99] = "fault_engine_p99_us",
    [BEYOND_P50] = "beyond_p50_us",
    [BEYOND_P99] = "beyond_p99_us",
    [BEYOND_ENGINE_P50] = "beyond_engine_p50_us",
    [BEYOND_ENGINE_P99] = "beyond_engine_p99_us",
    [FLOOR_P50] = "floor_p50_us",
    [FLOOR_P99] = "floor_p99_us",
    [FLOOR_ENGINE_P50] = "floor_engine_p50_us",
    [FLOOR_ENGINE_P99] = "floor_engine_p99_us",
    [RAW_ONE] = "raw_one_link_gbps",
    [RAW_ALL] = "raw_links_gbps",
    [BACKGROUND] = "background_gbps",
    [RATIO_ONE] = "ratio_one_link",
    [RATIO_ALL] = "ratio_links",
    [FILL] = "fill_gbps",
    [FILL_FLOOR] = "floor_fill_gbps",
    [FILL_CPU] = "fill_cpu_s_per_gb",
    [FILL_FLOOR_CPU] = "floor_fill_cpu_s_per_gb",
    [BUSY_P50] = "busy_p50_us",
    [BUSY_P99] = "busy_p99_us",
    [BUSY_ENGINE_P50] = "busy_engine_p50_us",
    [BUSY_ENGINE_P99] = "busy_engine_p99_us",
    [BUSY_FAULTS] = "busy_faults_per_s",
};

struct spread {
    double median, least, most;
};

static int by_value(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static struct spread spread_of(const struct bench_round *rounds, unsigned count,
                               enum bench_figure figure)
{
    double values[BENCH_ROUNDS_MAX];
    for (unsigned i = 0; i < count; i++)
        values[i] = rounds[i].is[figure];
    qsort(values, count, sizeof(values[0]), by_value);
    double upper = values[count / 2], lower = values[(count - 1) / 2];
    return (struct spread){(lower + upper) / 2, values[0], values[count - 1]};
}

/* ---------------------------------------------------------------------- table */

static const struct row {
    const char *label;
    enum bench_figure first, second; /* the same: one column */
    const char *wanted;
} rows[] = {
    {"READ of a page, without the engine", READ_P50, READ_P99, ""},
    {"fault, as its thread sees it", FAULT_P50, FAULT_P99, ""},
    {"  beyond the READ", BEYOND_P50, BEYOND_P99, "  wanted: 10, 60"},
    {"fault, from the engine's read on", FAULT_ENGINE_P50, FAULT_ENGINE_P99, ""},
    {"  beyond the READ", BEYOND_ENGINE_P50, BEYOND_ENGINE_P99, ""},
    {"fault without a network, as its thread sees it", FLOOR_P50, FLOOR_P99, ""},
    {"  from the engine's read on", FLOOR_ENGINE_P50, FLOOR_ENGINE_P99, ""},
    {"READs of 1 MiB without the engine, one link", RAW_ONE, RAW_ONE, ""},
    {"  over the links of the background", RAW_ALL, RAW_ALL, ""},
    {"background", BACKGROUND, BACKGROUND, ""},
    {"  of READs over one link", RATIO_ONE, RATIO_ONE, "  wanted: 0.85"},
    {"  of READs over its links", RATIO_ALL, RATIO_ALL, ""},
    {"all pages", FILL, FILL, ""},
    {"all pages without a network", FILL_FLOOR, FILL_FLOOR, ""},
    {"processor time of this end for 1 GB, s", FILL_CPU, FILL_CPU, ""},
    {"  without a network", FILL_FLOOR_CPU, FILL_FLOOR_CPU, ""},
    {"faults a second", BUSY_FAULTS, BUSY_FAULTS, ""},
    {"their p50 and p99, as threads see it, us", BUSY_P50, BUSY_P99, ""},
    {"  from the engine's read on", BUSY_ENGINE_P50, BUSY_ENGINE_P99, ""},
};

/* Prints the median and spread of a figure, such as "12.3 (11.0 to 14.1)". */
static void print_cell(const struct bench_round *rounds, unsigned count, enum bench_figure figure)
{
    struct spread s = spread_of(rounds, count, figure);
    char text[64];
    int digits = fabs(s.median) >= 100 ? 0 : fabs(s.median) >= 10 ? 1 : 2;
    snprintf(text, sizeof(text), "%.*f (%.*f to %.*f)", digits, s.median, digits, s.least, digits,
             s.most);
    printf("%26s", text);
}

void ibx_bench_table_print(const struct bench *b, const struct bench_round *rounds, unsigned count)
{
    const struct bench_args *args = b->args;
    printf("%s\n%u link%s, %u of them for faults alone; %llu MiB of %s pages%s; median (least to "
           "most) of %u rounds\n",
           ibx_conn_path(ibx_page_reader_conn(b->readers[0]))->description, b->links,
           b->links > 1 ? "s" : "", b->links - b->bulk_links, (unsigned long long)args->size >> 20,
           args->page == BENCH_HUGE_PAGE ? "2 MiB" : "4 KiB", args->minor ? " in place" : "",
           count);
    for (const struct row *row = rows; row < rows + sizeof(rows) / sizeof(rows[0]); row++) {
        if (row->first == READ_P50)
            printf("\n%-46s%26s%26s\n", "idle connections, us", "p50", "p99");
        if (row->first == RAW_ONE)
            printf("\nwhile all is filled and %u thread%s at random, GB/s\n", args->threads,
                   args->threads > 1 ? "s fault" : " faults");
        printf("%-46s", row->label);
        print_cell(rounds, count, row->first);
        if (row->second != row->first)
            print_cell(rounds, count, row->second);
        puts(row->wanted);
    }
}

/* ----------------------------------------------------------------------- JSON */

static json_t *round_json(const struct bench_round *one)
{
    json_t *object = json_object();
    for (unsigned i = 0; i < BENCH_FIGURES; i++)
        json_object_set_new(object, names[i], json_real(round(one->is[i] * 1e4) / 1e4));
    return object;
}

static json_t *dump(const struct bench *b, const struct bench_round *rounds, unsigned count)
{
    const struct ibx_path *path = ibx_conn_path(ibx_page_reader_conn(b->readers[0]));
    const struct bench_args *args = b->args;
    struct bench_round median;
    json_t *list = json_array();
    for (unsigned i = 0; i < BENCH_FIGURES; i++)
        median.is[i] = spread_of(rounds, count, (enum bench_figure)i).median;
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, round_json(&rounds[i]));
    json_t *settings =
        json_pack("{s:I, s:i, s:i, s:i, s:b, s:i, s:i, s:i, s:i}", "bytes", (json_int_t)args->size,
                  "page_bytes", (int)args->page, "links", (int)b->links, "fault_workers",
                  (int)(b->links - b->bulk_links), "minor", args->minor, "spin_us",
                  (int)args->spin_us, "threads", (int)args->threads, "pause_us",
                  (int)args->pause_us, "touches", (int)args->touches);
    return json_pack("{s:s, s:i, s:s, s:s, s:o, s:o, s:o}", "version", IBX_VERSION, "format",
                     FORMAT, "provider", path->provider, "description", path->description,
                     "settings", settings, "median", round_json(&median), "rounds", list);
}

int ibx_bench_json_write(const struct bench *b, const struct bench_round *rounds, unsigned count,
                         const char *name, struct ibx_error *err)
{
    bool out = !strcmp(name, "-");
    FILE *file = out ? stdout : fopen(name, "we");
    json_t *root = dump(b, rounds, count);
    bool good = file && root && !json_dumpf(root, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) &&
                fputc('\n', file) != EOF && !fflush(file);
    int code = errno;
    if (file && !out)
        fclose(file);
    json_decref(root);
    return good ? 0 : ibx_error_set(err, -code, "%s cannot be written: %s", name, strerror(code));
}
