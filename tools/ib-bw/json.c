/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The results for programs. ib-bw(1) documents every field, and FORMAT changes when one does. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#define FORMAT 2

static json_t *text(const char *string)
{
    json_t *value = json_string(string);
    return value ? value : json_string("?"); /* not UTF-8 */
}

/* Rounds microseconds to a tenth of a nanosecond; they were measured in whole nanoseconds. */
static double rounded(double value)
{
    return round(value * 1e4) / 1e4;
}

static json_t *real_or_null(double value)
{
    return value > 0 ? json_real(rounded(value)) : json_null();
}

static json_t *cell_json(const struct bw_results *results, unsigned path, enum bw_op op,
                         unsigned size)
{
    struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
    return json_pack("{s:o, s:b, s:s, s:I, s:I, s:f, s:f, s:f, s:o}", "path",
                     text(results->paths[path]), "encrypted", results->encrypted[path], "op",
                     ibx_bw_op_names[op], "bytes", (json_int_t)results->sizes[size], "n",
                     (json_int_t)s.calls, "median_us", rounded(s.median_us), "p99_us",
                     rounded(s.p99_us), "gbps", s.gbps, "ratio_to_stock", real_or_null(s.ratio));
}

static json_t *cells_json(const struct bw_results *results)
{
    json_t *list = json_array();
    for (unsigned op = 0; op < BW_OPS; op++) {
        for (unsigned size = 0; size < results->size_count; size++) {
            for (unsigned path = 0; path < results->path_count; path++) {
                if (ibx_bw_results_cell(results, path, (enum bw_op)op, size)->samples)
                    json_array_append_new(list, cell_json(results, path, (enum bw_op)op, size));
            }
        }
    }
    return list;
}

static json_t *chosen_json(const struct bw_results *results)
{
    const struct ibx_caps *caps = &results->chosen_caps;
    if (!results->chosen.provider[0])
        return json_null();
    return json_pack("{s:o, s:o, s:b, s:{s:I, s:I, s:I}}", "provider",
                     text(results->chosen.provider), "description",
                     text(results->chosen.description), "encrypted", results->chosen.encrypted,
                     "crossover", "one_sided_bytes", (json_int_t)caps->rendezvous, "message_bytes",
                     (json_int_t)caps->message_max, "chunk_bytes", (json_int_t)caps->chunk);
}

static json_t *refused_json(const struct bw_results *results)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < results->refused_count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o}", "path", text(results->refused[i].path),
                                              "reason", text(results->refused[i].reason)));
    return list;
}

static json_t *results_json(const struct bw_results *results)
{
    const struct bw_pins *pins = &results->pins;
    bool pinned = pins->client >= 0;
    return json_pack("{s:s, s:i, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:{s:o}}", "version",
                     IBX_VERSION, "format", FORMAT, "host", text(results->host), "processors",
                     pinned ? json_pack("[i, i]", pins->client, pins->server) : json_null(),
                     "processors_each",
                     pinned ? json_integer(CPU_COUNT(&pins->server_set)) : json_null(), "complete",
                     !atomic_load(&results->stopped), "results", cells_json(results), "chosen",
                     chosen_json(results), "refused", refused_json(results), "yardstick",
                     "memcpy_gbps", real_or_null(results->memcpy_gbps));
}

int ibx_bw_json_write(const struct bw_results *results, const char *name, struct ibx_error *err)
{
    struct bw_file file = {.out = stdout};
    int rc = strcmp(name, "-") ? ibx_bw_file_open(&file, name, err) : 0;
    if (rc)
        return rc;
    json_t *root = results_json(results);
    if (!root || json_dumpf(root, file.out, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) ||
        fputc('\n', file.out) == EOF)
        rc = file.out == stdout
                 ? ibx_error_set(err, -EIO, "standard output: %s", strerror(errno))
                 : ibx_error_set(err, -EIO, "%s cannot be written: %s", name, strerror(errno));
    json_decref(root);
    return file.out == stdout ? rc : ibx_bw_file_close(&file, rc, err);
}
