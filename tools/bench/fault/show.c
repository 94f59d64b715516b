/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The figures for people and for programs; ib-fault(1) says what each is, and FORMAT changes when
 * one does. */
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

/* "12.3 (11-14)" */
static void cell(const struct bench_round *rounds, unsigned count, enum bench_figure figure)
{
    struct spread s = spread_of(rounds, count, figure);
    char text[64];
    int digits = fabs(s.median) >= 100 ? 0 : fabs(s.median) >= 10 ? 1 : 2;
    snprintf(text, sizeof(text), "%.*f (%.*f to %.*f)", digits, s.median, digits, s.least, digits,
             s.most);
    printf("%26s", text);
}

static void row(const struct bench_round *rounds, unsigned count, const char *label,
                enum bench_figure p50, enum bench_figure p99, const char *wanted)
{
    printf("%-46s", label);
    cell(rounds, count, p50);
    if (p99 != p50)
        cell(rounds, count, p99);
    printf("%s%s\n", *wanted ? "  " : "", wanted);
}

void ibx_bench_table_print(const struct bench *b, const struct bench_round *rounds, unsigned count)
{
    const struct bench_args *args = b->args;
    char label[64];
    printf("%s\n%u link%s, %u of them for faults alone; %llu MiB of %s pages%s; median (least to "
           "most) of %u rounds\n\n",
           ibx_page_reader_path(b->readers[0])->description, b->links, b->links > 1 ? "s" : "",
           b->links - b->bulk_links, (unsigned long long)args->size >> 20,
           args->page == BENCH_HUGE_PAGE ? "2 MiB" : "4 KiB", args->minor ? " in place" : "",
           count);
    printf("%-46s%26s%26s\n", "nothing else going on, us", "p50", "p99");
    row(rounds, count, "READ of a page, without the engine", READ_P50, READ_P99, "");
    row(rounds, count, "fault, as its thread sees it", FAULT_P50, FAULT_P99, "");
    row(rounds, count, "  beyond the READ", BEYOND_P50, BEYOND_P99, "wanted: 10, 60");
    row(rounds, count, "fault, from the engine's reading it on", FAULT_ENGINE_P50, FAULT_ENGINE_P99,
        "");
    row(rounds, count, "  beyond the READ", BEYOND_ENGINE_P50, BEYOND_ENGINE_P99, "");
    row(rounds, count, "fault without a wire, as its thread sees it", FLOOR_P50, FLOOR_P99, "");
    row(rounds, count, "  from the engine's reading it on", FLOOR_ENGINE_P50, FLOOR_ENGINE_P99, "");
    snprintf(label, sizeof(label), "\nwhile all is filled and %u thread%s at random, GB/s",
             args->threads, args->threads > 1 ? "s fault" : " faults");
    puts(label);
    row(rounds, count, "READs of 1 MiB without the engine, one link", RAW_ONE, RAW_ONE, "");
    snprintf(label, sizeof(label), "  %u link%s", b->bulk_links, b->bulk_links > 1 ? "s" : "");
    row(rounds, count, label, RAW_ALL, RAW_ALL, "");
    row(rounds, count, "background", BACKGROUND, BACKGROUND, "");
    row(rounds, count, "  of READs over one link, as ib-bw --raw has it", RATIO_ONE, RATIO_ONE,
        "wanted: 0.85");
    snprintf(label, sizeof(label), "  of READs over %u link%s", b->bulk_links,
             b->bulk_links > 1 ? "s" : "");
    row(rounds, count, label, RATIO_ALL, RATIO_ALL, "");
    row(rounds, count, "all pages", FILL, FILL, "");
    row(rounds, count, "all pages without a wire", FILL_FLOOR, FILL_FLOOR, "");
    row(rounds, count, "processor time of this end for 1 GB, s", FILL_CPU, FILL_CPU, "");
    row(rounds, count, "  without a wire", FILL_FLOOR_CPU, FILL_FLOOR_CPU, "");
    row(rounds, count, "faults a second", BUSY_FAULTS, BUSY_FAULTS, "");
    row(rounds, count, "their p50 and p99, as threads see it, us", BUSY_P50, BUSY_P99, "");
    row(rounds, count, "  from the engine's reading them on", BUSY_ENGINE_P50, BUSY_ENGINE_P99, "");
}

/* ----------------------------------------------------------------------- JSON */

/* Nanoseconds are all that was measured. */
static json_t *rounded(double value)
{
    return json_real(round(value * 1e4) / 1e4);
}

static json_t *settings(const struct bench *b)
{
    const struct bench_args *args = b->args;
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)args->size));
    json_object_set_new(object, "page_bytes", json_integer(args->page));
    json_object_set_new(object, "links", json_integer(b->links));
    json_object_set_new(object, "fault_workers", json_integer(b->links - b->bulk_links));
    json_object_set_new(object, "minor", json_boolean(args->minor));
    json_object_set_new(object, "spin_us", json_integer(args->spin_us));
    json_object_set_new(object, "threads", json_integer(args->threads));
    json_object_set_new(object, "pause_us", json_integer(args->pause_us));
    json_object_set_new(object, "touches", json_integer(args->touches));
    return object;
}

static json_t *round_json(const struct bench_round *one)
{
    json_t *object = json_object();
    for (unsigned i = 0; i < BENCH_FIGURES; i++)
        json_object_set_new(object, names[i], rounded(one->is[i]));
    return object;
}

static json_t *medians(const struct bench_round *rounds, unsigned count)
{
    struct bench_round median;
    for (unsigned i = 0; i < BENCH_FIGURES; i++)
        median.is[i] = spread_of(rounds, count, (enum bench_figure)i).median;
    return round_json(&median);
}

static char *dump(const struct bench *b, const struct bench_round *rounds, unsigned count)
{
    const struct ibx_path *path = ibx_page_reader_path(b->readers[0]);
    json_t *root = json_object(), *list = json_array();
    json_object_set_new(root, "version", json_string(IBX_VERSION));
    json_object_set_new(root, "format", json_integer(FORMAT));
    json_object_set_new(root, "provider", json_string(path->provider));
    json_object_set_new(root, "description", json_string(path->description));
    json_object_set_new(root, "settings", settings(b));
    json_object_set_new(root, "median", medians(rounds, count));
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, round_json(&rounds[i]));
    json_object_set_new(root, "rounds", list);
    char *string = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    return string;
}

int ibx_bench_json_write(const struct bench *b, const struct bench_round *rounds, unsigned count,
                         const char *name, struct ibx_error *err)
{
    bool out = !strcmp(name, "-");
    char *string = dump(b, rounds, count);
    if (!string)
        return ibx_error_set(err, -ENOMEM, "no memory for JSON");
    FILE *file = out ? stdout : fopen(name, "we");
    bool good = file && fprintf(file, "%s\n", string) > 0 && !fflush(file);
    int code = errno;
    if (file && !out)
        good &= !fclose(file);
    free(string);
    return good ? 0 : ibx_error_set(err, -code, "%s cannot be written: %s", name, strerror(code));
}
