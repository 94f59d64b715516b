/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* freeze and serve: snapshots of VMs. */
#include "migrate/snapshot/snapshot.h"
#include "tools/ib-migrate/ib-migrate.h"

#include <string.h>

/* ------------------------------------------------------------ freeze */

static void print_frozen(const struct migrate_args *args, const struct ibx_freeze_result *result)
{
    char data[32], ram[32], stopped[32];
    if (args->json) {
        ibx_cli_print_json(json_pack("{s:{s:s, s:I, s:I, s:I, s:I, s:b}}", "frozen", "folder",
                                     args->uri, "ram_bytes", (json_int_t)result->ram_bytes,
                                     "data_bytes", (json_int_t)result->data_bytes, "state_bytes",
                                     (json_int_t)result->state_bytes, "stopped_ns",
                                     (json_int_t)result->stopped_ns, "runs", (int)result->runs));
        return;
    }
    ibx_cli_bytes(result->data_bytes, data, sizeof(data));
    ibx_cli_bytes(result->ram_bytes, ram, sizeof(ram));
    ibx_cli_duration(result->stopped_ns, stopped, sizeof(stopped));
    printf("%s: frozen, %s of %s hold data; the VM %s %s\n", args->uri, data, ram,
           result->runs ? "runs on after" : "stands still; the copy took", stopped);
}

int ibx_cli_freeze(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    struct ibx_freeze_result result;
    const enum ibx_freeze_after after = args->resume ? IBX_FREEZE_RESUME
                                        : args->quit ? IBX_FREEZE_QUIT
                                                     : IBX_FREEZE_STOPPED;
    if (ibx_cli_monitor_check(args, &err) ||
        ibx_snapshot_freeze(args->qmp, args->uri, after, &result, &err))
        return ibx_cli_fail(err.message);
    print_frozen(args, &result);
    return ibx_cli_flush(MIGRATE_DONE);
}

/* ------------------------------------------------------------ serve */

struct told {
    const struct migrate_args *args;
    bool begun;
    unsigned connections;
};

static void tell(void *context, const char *uri, const struct ibx_snapshot_server_stats *stats)
{
    struct told *told = context;
    const bool first = !told->begun;
    if (!first && stats->connections == told->connections)
        return;
    told->begun = true;
    told->connections = stats->connections;
    if (told->args->json)
        ibx_cli_print_json(json_pack("{s:{s:s, s:s, s:i, s:I}}", "serving", "folder",
                                     told->args->uri, "uri", uri, "connections",
                                     (int)stats->connections, "served", (json_int_t)stats->served));
    else if (!told->args->quiet && first)
        printf("%s is served at %s\n", told->args->uri, uri);
    fflush(stdout);
}

int ibx_cli_serve(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    struct told told = {.args = args};
    const struct ibx_serve_options options = {.folder = args->uri,
                                              .listen = args->listen,
                                              .transport = args->options,
                                              .status = tell,
                                              .context = &told};
    if (ibx_snapshot_serve(&options, &err))
        return ibx_cli_fail(err.message);
    return ibx_cli_flush(MIGRATE_DONE);
}
