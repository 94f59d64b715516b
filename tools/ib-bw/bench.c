/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a run holds: its paths and its results. */
#include "tools/ib-bw/ib-bw.h"

#include "frontend-glue/session/session.h"

#include <errno.h>
#include <string.h>

int ibx_bw_bench_init(struct bw_bench *bench, const struct bw_args *args)
{
    *bench = (struct bw_bench){.args = args};
    return ibx_bw_results_init(&bench->results, args);
}

void ibx_bw_bench_fini(struct bw_bench *bench)
{
    for (unsigned i = 0; i < bench->open_count; i++)
        bench->open[i]->destroy(bench->open[i]);
    bench->open_count = 0;
    ibx_bw_child_stop(&bench->child);
    ibx_bw_buffer_fini(&bench->front.request);
    ibx_bw_buffer_fini(&bench->front.reply);
    ibx_bw_results_fini(&bench->results);
}

/* ------------------------------------------------------------------------- paths */

int ibx_bw_bench_add(struct bw_bench *bench, struct bw_path *path, const char *name)
{
    int index = ibx_bw_results_path(&bench->results, name);
    if (index < 0) {
        path->destroy(path);
        return index;
    }
    path->index = (unsigned)index;
    bench->open[bench->open_count++] = path;
    return 0;
}

static int connect_session(struct bw_bench *bench, const char *uri,
                           const struct ibx_options *options, struct bw_path **path,
                           char provider[16], struct ibx_error *err)
{
    struct ibx_session *session;
    struct bw_stream *stream;
    int rc = ibx_session_create(uri, options, &session, err);
    if (rc)
        return rc;
    rc = ibx_session_connect(session, err);
    if (rc) {
        ibx_session_destroy(session);
        return rc;
    }
    memcpy(provider, ibx_session_path(session)->provider, 16);
    rc = ibx_bw_stream_of_session(session, &stream, err);
    return rc ? rc : ibx_bw_path_of_stream(stream, &bench->front, path, err);
}

int ibx_bw_bench_connect(struct bw_bench *bench, const char *uri, const struct ibx_options *options,
                         struct ibx_error *err)
{
    struct bw_path *path;
    char provider[16];
    int rc = bench->args->raw ? ibx_bw_raw_connect(uri, bench->args, options, &bench->front, &path,
                                                   provider, err)
                              : connect_session(bench, uri, options, &path, provider, err);
    return rc ? rc : ibx_bw_bench_add(bench, path, provider);
}

int ibx_bw_bench_connect_stock(struct bw_bench *bench, const char *where, struct ibx_error *err)
{
    struct bw_stream *stream;
    struct bw_path *path;
    int rc = ibx_bw_stock_connect(where, &stream, err);
    if (!rc)
        rc = ibx_bw_path_of_stream(stream, &bench->front, &path, err);
    return rc ? rc : ibx_bw_bench_add(bench, path, BW_STOCK);
}

int ibx_bw_bench_choose(struct bw_bench *bench, const char *uri, struct ibx_error *err)
{
    struct ibx_conn *conn;
    int rc = ibx_connect(uri, &bench->args->options, &conn, err);
    if (rc)
        return rc;
    bench->results.chosen = *ibx_conn_path(conn);
    bench->results.chosen_caps = *ibx_conn_caps(conn);
    ibx_close(conn);
    return 0;
}

/* ------------------------------------------------------------------------ reports */

int ibx_bw_bench_report(struct bw_bench *bench, struct ibx_error *err)
{
    const struct bw_args *args = bench->args;
    struct bw_results *results = &bench->results;
    int rc = 0;
    pthread_mutex_lock(&results->lock);
    if (!args->json || strcmp(args->json, "-"))
        ibx_bw_table_print(results, args->plain, stdout);
    if (args->json)
        rc = ibx_bw_json_write(results, args->json, err);
    if (!rc && args->plot)
        rc = ibx_bw_plot_write(results, args->plot, err);
    if (fflush(stdout) && !rc)
        rc = ibx_error_set(err, -errno, "standard output: %s", strerror(errno));
    pthread_mutex_unlock(&results->lock);
    return rc;
}
