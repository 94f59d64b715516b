/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-bw serve, run and self. */
#include "tools/ib-bw/ib-bw.h"

#include "common/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IPERF_SECONDS 1.0

static int say(const struct ibx_error *err)
{
    fprintf(stderr, "ib-bw: %s\n", err->message);
    return EXIT_FAILURE;
}

/* -------------------------------------------------------------------------- serve */

static int open_doors(struct bw_server *server, const struct bw_args *args, struct ibx_error *err)
{
    const char *real;
    uint16_t port;
    int rc = ibx_bw_server_open(server, args->uri, &real, err);
    bool whole = args->options.key_file[0] || args->options.insecure || strchr(args->uri, '?');
    if (!rc)
        printf("serving %s at %s%s\n", args->raw ? "raw" : "calls", real,
               whole ? "" : " to this host only: others need a key (--key-file)");
    if (!rc && args->stock) {
        rc = ibx_bw_server_open_stock(server, args->stock, &port, err);
        if (!rc)
            printf("serving stock, which knows no keys, at port %u\n", port);
    }
    return rc;
}

int ibx_bw_serve(const struct bw_args *args)
{
    struct bw_server *server = NULL;
    struct ibx_error err = {0};
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    int rc = ibx_bw_server_create(args, &server, &err);
    if (!rc)
        rc = open_doors(server, args, &err);
    if (!rc)
        rc = ibx_bw_server_start(server, &err);
    if (!rc) {
        fflush(stdout);
        sigwait(&set, &number);
    }
    ibx_bw_server_leave(server);
    /* Not exit(3): threads are at work. */
    _exit(rc ? say(&err) : EXIT_SUCCESS);
}

/* ---------------------------------------------------------------- what both share */

static void quiet(void)
{
    /* What goes wrong with a path is told once, in the report. */
    if (!getenv("IBX_LOG"))
        ibx_log_set_level(IBX_LOG_ERROR);
}

static void run_iperf(struct bw_bench *bench, unsigned which)
{
    struct ibx_error err = {0};
    bool terminal = isatty(STDERR_FILENO);
    if (!bench->args->iperf || atomic_load(&ibx_bw_stop))
        return;
    if (terminal)
        fputs("\r\033[Kiperf3, one stream", stderr);
    int rc = ibx_bw_iperf_run(IPERF_SECONDS, &bench->results.pins,
                              &bench->results.iperf_gbps[which], &err);
    if (terminal)
        fputs("\r\033[K", stderr);
    if (rc && !which)
        say(&err);
}

/* Measures whatever paths are open and reports. */
static int measure_and_report(struct bw_bench *bench)
{
    struct ibx_error err = {0};
    run_iperf(bench, 0);
    int rc = ibx_bw_bench_measure(bench, &err);
    run_iperf(bench, 1);
    ibx_bw_watch_end();
    if (rc)
        say(&err);
    int reported = ibx_bw_bench_report(bench, &err);
    if (reported)
        say(&err);
    if (atomic_load(&ibx_bw_stop))
        return 130;
    return rc || reported ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---------------------------------------------------------------------------- run */

static int open_run(struct bw_bench *bench, const struct bw_args *args, struct ibx_error *err)
{
    int rc = ibx_bw_bench_choose(bench, args->uri, err);
    if (!rc && args->stock)
        rc = ibx_bw_bench_connect_stock(bench, args->stock, err);
    if (!rc)
        rc = ibx_bw_bench_connect(bench, args->uri, &args->options, err);
    const struct ibx_path *chosen = &bench->results.chosen;
    for (unsigned i = 0; !rc && i < chosen->refused_count; i++)
        ibx_bw_results_refuse(&bench->results, chosen->refused[i].provider,
                              chosen->refused[i].reason);
    return rc;
}

int ibx_bw_run(const struct bw_args *args)
{
    static struct bw_bench bench;
    struct ibx_error err = {0};
    quiet();
    int rc = ibx_bw_bench_init(&bench, args);
    if (rc)
        ibx_error_set(&err, rc, "no memory for results");
    if (!rc)
        rc = open_run(&bench, args, &err);
    if (!rc)
        rc = ibx_bw_watch_start(&bench, &err);
    int status = rc ? say(&err) : measure_and_report(&bench);
    ibx_bw_bench_fini(&bench);
    return status;
}

/* --------------------------------------------------------------------------- self */

static bool wanted(const struct bw_args *args, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = args->paths; p; p = *p ? p + 1 : NULL) {
        size_t m = strcspn(p, ",");
        if (m == n && !memcmp(p, name, n))
            return true;
        p += m;
    }
    return !args->paths;
}

/* Whether a provider may be asked for at a door: rdma:// leaves it to the options. */
static bool leads_to(const char *uri, const char *name)
{
    size_t n = strcspn(uri, ":");
    return !strncmp(uri, "rdma:", 5) || (strlen(name) == n && !memcmp(uri, name, n));
}

/* By its name a provider can be had which rdma:// leaves alone: libfabric's emulations. */
static void note_unchosen(struct bw_bench *bench, const char *name)
{
    char description[192], note[IBX_ERROR_MAX];
    struct ibx_error err = {0};
    if (!ibx_provider_probe(name, &bench->args->options, description, sizeof(description), &err))
        return;
    snprintf(note, sizeof(note), "measured, but rdma:// does not take it: %s", err.message);
    ibx_bw_results_refuse(&bench->results, name, note);
}

/* One provider at one door of the server's after the other. */
static void open_provider(struct bw_bench *bench, const char *name)
{
    const struct bw_child *child = &bench->child;
    struct ibx_options options = bench->args->options;
    char description[192];
    struct ibx_error err = {0};
    snprintf(options.provider, sizeof(options.provider), "%s", name);
    int rc = ibx_provider_probe(name, &options, description, sizeof(description), &err);
    for (unsigned i = 0; !rc && i < child->uri_count; i++) {
        if (leads_to(child->uris[i], name) &&
            !ibx_bw_bench_connect(bench, child->uris[i], &options, &err)) {
            note_unchosen(bench, name);
            return;
        }
    }
    ibx_bw_results_refuse(&bench->results, name, err.message);
}

static int open_self(struct bw_bench *bench, const struct bw_args *args, struct ibx_error *err)
{
    struct bw_pins *pins = &bench->results.pins;
    if (!args->loose)
        ibx_bw_pins_choose(pins);
    int rc = ibx_bw_child_start(args, pins, &bench->child, err);
    ibx_bw_pin(pins, BW_CLIENT);
    if (!rc && !args->raw && wanted(args, BW_STOCK))
        rc = ibx_bw_bench_connect_stock(bench, bench->child.stock, err);
    if (rc)
        return rc;
    struct ibx_error why = {0};
    if (ibx_bw_bench_choose(bench, bench->child.uris[0], &why))
        ibx_bw_results_refuse(&bench->results, "rdma", why.message);
    const char *name;
    for (unsigned i = 0; (name = ibx_provider_name(i)); i++) {
        if (wanted(args, name))
            open_provider(bench, name);
    }
    if (!bench->open_count)
        return ibx_error_set(err, -ENOTSUP, "there is no path to measure: %s: %.500s",
                             bench->results.refused[0].path, bench->results.refused[0].reason);
    return ibx_bw_watch_start(bench, err);
}

int ibx_bw_self(const struct bw_args *args)
{
    static struct bw_bench bench;
    struct ibx_error err = {0};
    quiet();
    int rc = ibx_bw_bench_init(&bench, args);
    if (rc)
        ibx_error_set(&err, rc, "no memory for results");
    if (!rc)
        rc = open_self(&bench, args, &err);
    if (!rc)
        bench.results.memcpy_gbps = ibx_bw_memcpy_rate();
    int status = rc ? say(&err) : measure_and_report(&bench);
    ibx_bw_bench_fini(&bench);
    return status;
}
