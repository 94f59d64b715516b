/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The results for programs; ib-bw(1) documents every field, and FORMAT changes when one does. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#define FORMAT 1

static json_t *text(const char *string)
{
    json_t *value = json_string(string);
    return value ? value : json_string("?"); /* not UTF-8 */
}

/* Nanoseconds are all that was measured. */
static json_t *rounded(double value)
{
    return json_real(round(value * 1e4) / 1e4);
}

static json_t *ratio_or_null(double ratio)
{
    return ratio > 0 ? rounded(ratio) : json_null();
}

static json_t *result(const struct bw_results *results, unsigned path, unsigned op, unsigned size)
{
    struct bw_summary s = ibx_bw_results_summary(results, path, op, size);
    json_t *one = json_object();
    json_object_set_new(one, "path", text(results->paths[path]));
    json_object_set_new(one, "op", text(ibx_bw_op_name(results->ops[op])));
    json_object_set_new(one, "bytes", json_integer((json_int_t)results->sizes[size]));
    json_object_set_new(one, "n", json_integer((json_int_t)s.calls));
    json_object_set_new(one, "median_us", rounded(s.median_us));
    json_object_set_new(one, "p99_us", rounded(s.p99_us));
    json_object_set_new(one, "gbps", json_real(s.gbps));
    json_object_set_new(one, "ratio_to_stock", ratio_or_null(s.ratio));
    return one;
}

static json_t *result_list(const struct bw_results *results)
{
    json_t *list = json_array();
    for (unsigned op = 0; op < results->op_count; op++) {
        for (unsigned size = 0; size < results->size_count; size++) {
            for (unsigned path = 0; path < results->path_count; path++) {
                if (ibx_bw_results_cell(results, path, op, size)->samples)
                    json_array_append_new(list, result(results, path, op, size));
            }
        }
    }
    return list;
}

static json_t *chosen(const struct bw_results *results)
{
    const struct ibx_caps *caps = &results->chosen_caps;
    if (!results->chosen.provider[0])
        return json_null();
    json_t *crossover = json_object();
    json_object_set_new(crossover, "one_sided_bytes", json_integer((json_int_t)caps->rendezvous));
    json_object_set_new(crossover, "message_bytes", json_integer((json_int_t)caps->message_max));
    json_object_set_new(crossover, "chunk_bytes", json_integer((json_int_t)caps->chunk));
    json_t *object = json_object();
    json_object_set_new(object, "provider", text(results->chosen.provider));
    json_object_set_new(object, "description", text(results->chosen.description));
    json_object_set_new(object, "crossover", crossover);
    return object;
}

static json_t *refused(const struct bw_results *results)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < results->refused_count; i++) {
        json_t *one = json_object();
        json_object_set_new(one, "path", text(results->refused[i].path));
        json_object_set_new(one, "reason", text(results->refused[i].reason));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *yardstick(const struct bw_results *results)
{
    json_t *object = json_object();
    json_object_set_new(object, "iperf3_before_gbps", ratio_or_null(results->iperf_gbps[0]));
    json_object_set_new(object, "iperf3_after_gbps", ratio_or_null(results->iperf_gbps[1]));
    json_object_set_new(object, "memcpy_gbps", ratio_or_null(results->memcpy_gbps));
    return object;
}

static json_t *processors(const struct bw_results *results)
{
    if (results->pins.client < 0)
        return json_null();
    json_t *list = json_array();
    json_array_append_new(list, json_integer(results->pins.client));
    json_array_append_new(list, json_integer(results->pins.server));
    return list;
}

static json_t *processors_each(const struct bw_results *results)
{
    const struct bw_pins *pins = &results->pins;
    return pins->client < 0 ? json_null() : json_integer(CPU_COUNT(&pins->server_set));
}

static char *dump(const struct bw_results *results)
{
    json_t *root = json_object();
    json_object_set_new(root, "version", text(IBX_VERSION));
    json_object_set_new(root, "format", json_integer(FORMAT));
    json_object_set_new(root, "host", text(results->host));
    json_object_set_new(root, "processors", processors(results));
    json_object_set_new(root, "processors_each", processors_each(results));
    json_object_set_new(root, "complete", json_boolean(!atomic_load(&ibx_bw_stop)));
    json_object_set_new(root, "results", result_list(results));
    json_object_set_new(root, "chosen", chosen(results));
    json_object_set_new(root, "refused", refused(results));
    json_object_set_new(root, "yardstick", yardstick(results));
    char *string = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(root);
    return string;
}

static int write_file(const char *name, const char *string, struct ibx_error *err)
{
    struct bw_file file;
    int rc = ibx_bw_file_open(&file, name, err);
    if (rc)
        return rc;
    if (dprintf(file.fd, "%s\n", string) < 0)
        rc = ibx_error_set(err, -errno, "%s cannot be written: %s", name, strerror(errno));
    return ibx_bw_file_close(&file, rc, err);
}

int ibx_bw_json_write(const struct bw_results *results, const char *file, struct ibx_error *err)
{
    char *string = dump(results);
    if (!string)
        return ibx_error_set(err, -ENOMEM, "no memory for JSON");
    int rc = 0;
    if (!strcmp(file, "-"))
        puts(string); /* whether it could be written shows at the flush */
    else
        rc = write_file(file, string, err);
    free(string);
    return rc;
}
