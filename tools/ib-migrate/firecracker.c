/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate firecracker: what it prints. */
#include "migrate/firecracker/firecracker.h"
#include "tools/ib-migrate/ib-migrate.h"

#include <string.h>
#include <unistd.h>

static const char *kind_name(enum ibx_firecracker_event_kind kind)
{
    static const char *const names[] = {
        [IBX_FIRECRACKER_LISTENING] = "listening", [IBX_FIRECRACKER_SERVING] = "serving",
        [IBX_FIRECRACKER_RECORDED] = "recorded",   [IBX_FIRECRACKER_LOST] = "lost",
        [IBX_FIRECRACKER_FULL] = "full",           [IBX_FIRECRACKER_RESTARTED] = "restarted",
        [IBX_FIRECRACKER_ENDED] = "ended",
    };
    return names[kind];
}

static json_t *figures(const struct ibx_fault_stats *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pages",
                     (json_int_t)s->pages, "by_fault", (json_int_t)s->by_cause[IBX_FAULT_BY_FAULT],
                     "by_prefetch", (json_int_t)s->by_cause[IBX_FAULT_BY_PREFETCH], "by_background",
                     (json_int_t)s->by_cause[IBX_FAULT_BY_BACKGROUND], "zero",
                     (json_int_t)s->by_cause[IBX_FAULT_BY_ZERO], "removed",
                     (json_int_t)s->by_cause[IBX_FAULT_BY_REMOVE], "before",
                     (json_int_t)s->by_cause[IBX_FAULT_BY_REBUILD], "bytes", (json_int_t)s->bytes,
                     "faults", (json_int_t)s->faults, "removals", (json_int_t)s->removes,
                     "latency_p50_ns", (json_int_t)s->latency_p50, "latency_p99_ns",
                     (json_int_t)s->latency_p99);
}

static void print_json(const struct ibx_firecracker_event *e)
{
    json_t *line = json_pack("{s:s}", "event", kind_name(e->kind));
    if (e->kind != IBX_FIRECRACKER_LISTENING) {
        json_object_set_new(line, "firecracker", json_integer(e->pid));
        json_object_set_new(line, "restarts", json_integer(e->restarts));
    }
    if (e->handler)
        json_object_set_new(line, "handler", json_integer(e->handler));
    if (e->kind == IBX_FIRECRACKER_RESTARTED) {
        json_object_set_new(line, "signal", json_integer(e->signal));
        json_object_set_new(line, "status", json_integer(e->status));
    }
    if (e->reason)
        json_object_set_new(line, "reason", json_string(e->reason));
    if (e->pages)
        json_object_set_new(line, "pages", json_integer((json_int_t)e->pages));
    if (e->ns)
        json_object_set_new(line, "after_ns", json_integer((json_int_t)e->ns));
    if (e->kind == IBX_FIRECRACKER_ENDED)
        json_object_set_new(line, "figures", figures(&e->stats));
    ibx_cli_print_json(line);
}

static void print_end(const struct ibx_firecracker_event *e)
{
    char bytes[32], p50[32], p99[32], took[96] = "";
    const struct ibx_fault_stats *s = &e->stats;
    ibx_cli_bytes(s->bytes, bytes, sizeof(bytes));
    ibx_cli_duration(s->latency_p50, p50, sizeof(p50));
    ibx_cli_duration(s->latency_p99, p99, sizeof(p99));
    if (s->latency_p99) /* there were some */
        snprintf(took, sizeof(took), ", a fault took %s (99 %%: %s)", p50, p99);
    printf("Firecracker (process %d) has ended: %s fetched, %llu pages by faults and %llu ahead of "
           "them%s\n",
           (int)e->pid, bytes, (unsigned long long)s->by_cause[IBX_FAULT_BY_FAULT],
           (unsigned long long)(s->by_cause[IBX_FAULT_BY_PREFETCH] +
                                s->by_cause[IBX_FAULT_BY_BACKGROUND]),
           took);
}

static void print_text(const struct migrate_args *args, const struct ibx_firecracker_event *e)
{
    char memory[32];
    switch (e->kind) {
    case IBX_FIRECRACKER_LISTENING:
        ibx_cli_print("Waiting at %s for Firecracker", args->socket);
        break;
    case IBX_FIRECRACKER_SERVING:
        ibx_cli_bytes(e->layout->pages * e->layout->page_size, memory, sizeof(memory));
        printf("Serving %s of Firecracker (process %d)\n", memory, (int)e->pid);
        break;
    case IBX_FIRECRACKER_RECORDED:
        ibx_cli_print("%llu touched pages are in %s", (unsigned long long)e->pages, args->record);
        break;
    case IBX_FIRECRACKER_LOST:
        ibx_cli_print("The other host is lost, and is asked again: %s", e->reason);
        break;
    case IBX_FIRECRACKER_FULL:
        ibx_cli_print("The microVM waits for a page, which is tried again: %s", e->reason);
        break;
    case IBX_FIRECRACKER_RESTARTED:
        printf("The handler (process %d) has died of %s %d and is started again\n", (int)e->handler,
               e->signal ? "signal" : "status", e->signal ? e->signal : e->status);
        break;
    case IBX_FIRECRACKER_ENDED:
        print_end(e);
        break;
    }
    fflush(stdout);
}

static void show(void *context, const struct ibx_firecracker_event *event)
{
    const struct migrate_args *args = context;
    if (args->json)
        print_json(event);
    else if (!args->quiet)
        print_text(args, event);
}

int ibx_cli_firecracker(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    const struct ibx_firecracker_config config = {
        .socket = args->socket,
        .from = args->from,
        .peer = args->peer_given ? args->peer_uid : geteuid(),
        .record = args->record,
        .record_s = args->record_s,
        .replay = args->replay,
        .background = args->background,
        .max_bandwidth = args->max_bandwidth,
        .options = &args->options,
        .event = show,
        .context = (void *)(uintptr_t)args,
    };
    return ibx_firecracker_run(&config, &err) ? ibx_cli_fail(err.message) : MIGRATE_DONE;
}
