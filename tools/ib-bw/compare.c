/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The commands run and self: they open the paths, measure and report. */
#include "tools/ib-bw/ib-bw.h"

#include "frontend-glue/session/session.h"
#include "tools/options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LISTENERS_MAX 8

static struct bw_bench bench;

/* ------------------------------------------------------------------------- paths */

/* Adds a path to the comparison; takes over the stream. */
static void add_path(struct bw_stream *stream, const char *name, bool encrypted)
{
    struct bw_results *results = &bench.results;
    unsigned index = results->path_count++;
    snprintf(results->paths[index], sizeof(results->paths[index]), "%s", name);
    results->encrypted[index] = encrypted;
    if (!strcmp(name, BW_STOCK))
        results->stock = (int)index;
    bench.streams[index] = stream;
}

/* Connects by `uri` with the provider of `options`. */
static int connect_session(const char *uri, const struct ibx_options *options,
                           struct ibx_error *err)
{
    struct bw_stream *stream;
    int rc = ibx_bw_session_connect(uri, options, &stream, err);
    if (!rc) {
        const struct ibx_path *path = ibx_session_path(stream->session);
        add_path(stream, path->provider, path->encrypted);
    }
    return rc;
}

static int connect_stock(const char *where, struct ibx_error *err)
{
    struct bw_stream *stream;
    int rc = ibx_bw_stock_connect(where, &stream, err);
    if (!rc)
        add_path(stream, BW_STOCK, false);
    return rc;
}

/* Finds out which path rdma:// chooses to a server. */
static int find_chosen(const char *uri, struct ibx_error *err)
{
    struct ibx_conn *conn;
    int rc = ibx_connect(uri, &bench.args->options, &conn, err);
    if (rc)
        return rc;
    bench.results.chosen = *ibx_conn_path(conn);
    bench.results.chosen_caps = *ibx_conn_caps(conn);
    ibx_close(conn);
    return 0;
}

/* ------------------------------------------------------------------------ reports */

static int report(struct ibx_error *err)
{
    const struct bw_args *args = bench.args;
    struct bw_results *results = &bench.results;
    int rc = 0;
    pthread_mutex_lock(&results->lock);
    if (!args->json || strcmp(args->json, "-"))
        ibx_bw_table_print(results, args->line_a_path, stdout);
    if (args->json)
        rc = ibx_bw_json_write(results, args->json, err);
    if (!rc && args->plot)
        rc = ibx_bw_plot_write(results, args->plot, err);
    if (fflush(stdout) && !rc)
        rc = ibx_error_set(err, -errno, "standard output: %s", strerror(errno));
    pthread_mutex_unlock(&results->lock);
    return rc;
}

/* Warns if some paths of a comparison are encrypted and others are not. */
static void warn_of_plain(void)
{
    const struct bw_results *results = &bench.results;
    const bool stock = results->stock >= 0;
    char plain[128] = "";
    if (bench.args->options.encryption != IBX_ENCRYPTION_REQUIRED)
        return;
    for (unsigned i = 0; i < results->path_count; i++) {
        size_t used = strlen(plain);
        if (!results->encrypted[i])
            snprintf(plain + used, sizeof(plain) - used, "%s%s", used ? ", " : "",
                     results->paths[i]);
    }
    if (*plain)
        fprintf(stderr,
                "ib-bw: warning: encryption was required, and measured without it: %s (shm stays "
                "in this host%s)\n",
                plain, stock ? ", stock has none: ratios are to plain TCP" : "");
}

static void report_at_once(void)
{
    report(NULL);
    ibx_bw_child_stop(&bench.server);
}

/* Opens the paths, measures and reports. Exit status. */
static int compare(const struct bw_args *args,
                   int (*open)(const struct bw_args *, struct ibx_error *))
{
    struct ibx_error err = {0};
    int status = EXIT_SUCCESS;
    bench.args = args;
    int rc = ibx_bw_results_init(&bench.results, args, &err);
    if (!rc)
        rc = open(args, &err);
    if (!rc)
        rc = ibx_bw_watch_start(&bench.results.stopped, report_at_once, &err);
    if (rc) {
        status = ibx_tool_fail(&err);
    } else {
        if (ibx_bw_bench_measure(&bench, &err))
            status = ibx_tool_fail(&err);
        ibx_bw_watch_end();
        if (report(&err))
            status = ibx_tool_fail(&err);
        warn_of_plain();
        if (atomic_load(&bench.results.stopped))
            status = 130;
    }
    for (unsigned i = 0; i < bench.results.path_count; i++) {
        if (bench.streams[i])
            bench.streams[i]->ops->destroy(bench.streams[i]);
    }
    ibx_bw_child_stop(&bench.server);
    ibx_bw_buffer_fini(&bench.request);
    ibx_bw_buffer_fini(&bench.reply);
    ibx_bw_results_fini(&bench.results);
    return status;
}

/* ---------------------------------------------------------------------------- run */

static int open_run(const struct bw_args *args, struct ibx_error *err)
{
    int rc = find_chosen(args->uri, err);
    if (!rc && args->stock)
        rc = connect_stock(args->stock, err);
    if (!rc)
        rc = connect_session(args->uri, &args->options, err);
    const struct ibx_path *chosen = &bench.results.chosen;
    for (unsigned i = 0; !rc && i < chosen->refused_count; i++)
        ibx_bw_results_refuse(&bench.results, chosen->refused[i].provider,
                              chosen->refused[i].reason);
    return rc;
}

int ibx_bw_run(const struct bw_args *args)
{
    return compare(args, open_run);
}

/* ---------------------------------------------------------------- self: the server */

/* Where it listens. */
static struct {
    char uris[LISTENERS_MAX][300]; /* rdma:// at the loopback first */
    unsigned uri_count;
    uint16_t stock_port; /* at the loopback */
} server_at;

static int open_listener(const char *scheme, const char *host, struct ibx_error *err)
{
    char uri[128];
    const char *real;
    snprintf(uri, sizeof(uri), "%s://%s:0", scheme, host);
    int rc = ibx_bw_server_open(uri, &real, err);
    if (!rc)
        snprintf(server_at.uris[server_at.uri_count++], sizeof(server_at.uris[0]), "%s", real);
    return rc;
}

/* Listens at the addresses of all interfaces, too, since verbs finds its device by the address, and
 * no device has that of the loopback. */
static void open_device_listeners(void)
{
    struct ifaddrs *list;
    char host[INET_ADDRSTRLEN];
    if (getifaddrs(&list))
        return;
    /* One entry is left for ofi. */
    for (struct ifaddrs *a = list; a && server_at.uri_count < LISTENERS_MAX - 1; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET || !(a->ifa_flags & IFF_UP) ||
            (a->ifa_flags & IFF_LOOPBACK))
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a->ifa_addr;
        if (inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)))
            open_listener("rdma", host, NULL);
    }
    freeifaddrs(list);
}

/* Opens all listeners. Only rdma:// and stock are required; without another one its path is left
 * out.
 */
static int open_listeners(struct ibx_error *err)
{
    char description[192];
    int rc = open_listener("rdma", "127.0.0.1", err);
    if (rc)
        return rc;
    if (!ibx_provider_probe("verbs", &bench.args->options, description, sizeof(description), NULL))
        open_device_listeners();
    /* For libfabric's emulations, which rdma:// never chooses. */
    open_listener("ofi", "127.0.0.1", NULL);
    return ibx_bw_server_open_stock("127.0.0.1:0", &server_at.stock_port, err);
}

/* Serves until it is killed. */
static void server_main(FILE *to_parent)
{
    struct bw_args args = *bench.args;
    struct ibx_error err = {0};
    ibx_bw_server_init(&args);
    args.max_bytes = 0;
    for (unsigned i = 0; i < args.size_count; i++)
        args.max_bytes = args.sizes[i] > args.max_bytes ? args.sizes[i] : args.max_bytes;
    ibx_bw_pin(&bench.results.pins, BW_SERVER);
    int rc = open_listeners(&err);
    ibx_bw_child_report(to_parent, &err, &server_at, sizeof(server_at));
    while (!rc)
        pause();
}

/* -------------------------------------------------------------- self: the measuring */

/* Whether a listener can be used with a provider; rdma:// can with any, chosen by the options. */
static bool serves(const char *uri, const char *name)
{
    size_t n = strcspn(uri, ":");
    return !strncmp(uri, "rdma:", 5) || (strlen(name) == n && !memcmp(uri, name, n));
}

/* Tries one provider at each listener. */
static void open_provider(const char *name)
{
    struct ibx_options options = bench.args->options;
    char description[192], note[IBX_ERROR_MAX];
    struct ibx_error err = {0};
    snprintf(options.provider, sizeof(options.provider), "%s", name);
    int rc = ibx_provider_probe(name, &options, description, sizeof(description), &err);
    bool open = false;
    for (unsigned i = 0; !rc && i < server_at.uri_count && !open; i++)
        open =
            serves(server_at.uris[i], name) && !connect_session(server_at.uris[i], &options, &err);
    if (!open) {
        ibx_bw_results_refuse(&bench.results, name, err.message);
    } else if (ibx_provider_probe(name, &bench.args->options, description, sizeof(description),
                                  &err)) {
        /* libfabric's emulations are reached by ofi://, but never chosen by rdma://. */
        snprintf(note, sizeof(note), "measured, but rdma:// does not take it: %s", err.message);
        ibx_bw_results_refuse(&bench.results, name, note);
    }
}

static int open_self(const struct bw_args *args, struct ibx_error *err)
{
    struct bw_results *results = &bench.results;
    struct ibx_error why = {0};
    char stock[32];
    if (!args->no_pin)
        ibx_bw_pins_choose(&results->pins);
    int rc = ibx_bw_child_start("the server's end", server_main, &server_at, sizeof(server_at),
                                &bench.server, err);
    snprintf(stock, sizeof(stock), "127.0.0.1:%u", server_at.stock_port);
    ibx_bw_pin(&results->pins, BW_CLIENT);
    if (!rc && (!args->paths || args->paths & 1))
        rc = connect_stock(stock, err);
    if (rc)
        return rc;
    if (find_chosen(server_at.uris[0], &why))
        ibx_bw_results_refuse(results, "rdma", why.message);
    const char *name;
    for (unsigned i = 0; (name = ibx_provider_name(i)); i++) {
        if (!args->paths || args->paths & BW_PATH_BIT(i))
            open_provider(name);
    }
    if (!results->path_count)
        return ibx_error_set(err, -ENOTSUP, "there is no path to measure: %s: %.500s",
                             results->refused[0].path, results->refused[0].reason);
    results->memcpy_gbps = ibx_bw_memcpy_rate();
    return 0;
}

int ibx_bw_self(const struct bw_args *args)
{
    return compare(args, open_self);
}
