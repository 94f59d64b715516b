/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* receive, send, recover and check. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ the end of a move */

/* Whether the VM runs at the destination, or may, and that is not agreed by both sides. */
static bool unfinished(const struct ibx_journal *record)
{
    return record->state == IBX_JOURNAL_MAY_RUN || record->state == IBX_JOURNAL_MOVED ||
           record->state == IBX_JOURNAL_RUNNING || record->state == IBX_JOURNAL_COMPLETE;
}

static int exit_status(int rc, const struct ibx_journal *record)
{
    if (!rc)
        return MIGRATE_DONE;
    return unfinished(record) ? MIGRATE_UNFINISHED : MIGRATE_FAILED;
}

static void say_failure(const struct ibx_migrate_status *last, const struct ibx_error *err)
{
    char said[IBX_ERROR_MAX];
    ibx_cli_complain(err->message);
    if (!last->record.written_s) /* nothing was begun */
        return;
    if (!last->source && last->record.state != IBX_JOURNAL_COMPLETE &&
        ibx_journal_qemu_gone(&last->record)) /* that is said, and it runs nowhere */
        return;
    ibx_cli_truth(&last->record, said, sizeof(said));
    ibx_cli_complain(said);
}

static void say_success(const struct ibx_migrate_status *last)
{
    char vm[PATH_MAX], peer[sizeof(last->record.peer)];
    ibx_cli_vm(&last->record, vm, sizeof(vm));
    snprintf(peer, sizeof(peer), "%s", last->record.peer);
    ibx_text_sanitize(peer);
    printf("%s: moved%s%s, complete and confirmed\n", vm,
           !*peer         ? ""
           : last->source ? " to "
                          : " from ",
           peer);
    ibx_cli_summary(stdout, last);
}

static void print_summary(int rc, int status, const struct ibx_migrate_status *last,
                          const struct ibx_error *err)
{
    json_t *summary = ibx_migrate_status_json(last);
    if (!summary || json_object_set_new(summary, "complete", json_boolean(!rc)) ||
        json_object_set_new(summary, "exit_status", json_integer(status)) ||
        json_object_set_new(summary, "error", rc ? ibx_json_text(err->message) : json_null()))
        ibx_cli_complain("no memory for the summary");
    ibx_cli_print_json(json_pack("{s:o}", "summary", summary));
}

static int end_move(const struct migrate_args *args, int rc, const struct ibx_migrate_status *last,
                    const struct ibx_error *err)
{
    const int status = exit_status(rc, &last->record);
    if (args->json)
        print_summary(rc, status, last, err);
    if (rc)
        say_failure(last, err);
    else if (!args->json && !args->quiet)
        say_success(last);
    fflush(stdout);
    return status;
}

/* ------------------------------------------------------------ moving */

static int receive_as(const struct migrate_args *args, const struct ibx_migrate_observer *observer,
                      const struct ibx_journal *again, struct ibx_migrate_status *last,
                      struct ibx_error *err)
{
    struct ibx_receive_options options = {
        .qmp = args->qmp,
        .listen = args->listen,
        .folder = args->folder,
        .transport = args->options,
        .max_bandwidth = args->max_bandwidth,
        .give_up_s = args->give_up_s,
        .minor = args->minor,
        .observer = *observer,
    };
    return again ? ibx_migrate_receive_again(&options, again, last, err)
                 : ibx_migrate_receive(&options, last, err);
}

static int send_as(const struct migrate_args *args, const struct ibx_migrate_observer *observer,
                   const struct ibx_journal *again, struct ibx_migrate_status *last,
                   struct ibx_error *err)
{
    struct ibx_send_options options = {
        .qmp = args->qmp,
        .uri = args->uri,
        .folder = args->folder,
        .transport = args->options,
        .links = args->links,
        .give_up_s = args->give_up_s,
        .quit = args->quit,
        .observer = *observer,
    };
    return again ? ibx_migrate_send_again(&options, again, last, err)
                 : ibx_migrate_send(&options, last, err);
}

/* From here to the exit status; `again`: the record of what is gone on with. */
static int move(const struct migrate_args *args, bool source, const struct ibx_journal *again)
{
    struct migrate_show *show;
    struct ibx_migrate_observer observer;
    struct ibx_error err = {0};
    struct ibx_migrate_status last = {.source = source, .phase = IBX_PHASE_FAILED};
    int rc = again ? 0 : ibx_cli_monitor_free(args, &err); /* whose lock says it */
    if (!rc)
        rc = ibx_cli_show_start(args, &show, &observer, &err);
    if (!rc) {
        rc = source ? send_as(args, &observer, again, &last, &err)
                    : receive_as(args, &observer, again, &last, &err);
        ibx_cli_show_end(show);
    }
    if (again && !last.record.state)
        last.record = *again;
    return end_move(args, rc, &last, &err);
}

int ibx_cli_receive(const struct migrate_args *args)
{
    return move(args, false, NULL);
}

int ibx_cli_send(const struct migrate_args *args)
{
    return move(args, true, NULL);
}

/* ------------------------------------------------------------ recover */

/* The unfinished move of this monitor. A QEMU can have one in each role, when it was sent on before
 * all of it had come; then the later one is what it waits for. */
static int find_either(const struct migrate_args *args, struct ibx_journal *record,
                       struct ibx_error *err)
{
    struct ibx_journal other;
    struct ibx_error silent;
    int rc = ibx_journal_find(args->folder, false, args->qmp, record, err);
    if (rc && rc != -ENOENT)
        return rc;
    int rc2 = ibx_journal_find(args->folder, true, args->qmp, &other, &silent);
    if (rc2 && rc2 != -ENOENT)
        return ibx_error_set(err, rc2, "%s", silent.message);
    if (!rc2 && (rc || other.written_s > record->written_s)) {
        *record = other;
        rc = 0;
    }
    if (rc)
        ibx_error_set(err, rc,
                      "there is no unfinished move of the QEMU at %s on record in %s: \"ib-migrate "
                      "status\" shows those that are",
                      args->qmp, args->folder);
    return rc;
}

static void use_key_file(struct migrate_args *args, const struct ibx_journal *record)
{
    if (!args->options.key_file[0])
        snprintf(args->options.key_file, sizeof(args->options.key_file), "%s", record->key_file);
}

/* The newest move from this monitor, when that is done: its destination may not have heard so. */
static bool find_done(const struct migrate_args *args, struct ibx_journal *record)
{
    struct ibx_journal *all;
    size_t count;
    bool found = false;
    if (ibx_journal_list(args->folder, &all, &count, NULL))
        return false;
    for (size_t i = 0; i < count && !found; i++) {
        if (!all[i].source || all[i].state != IBX_JOURNAL_DONE ||
            strcmp(all[i].qmp, args->qmp) != 0)
            continue;
        *record = all[i];
        found = true;
    }
    free(all);
    return found;
}

/* Whether that is said or not, the move is over here. */
static int confirm(const struct migrate_args *args, const struct ibx_journal *record,
                   const struct ibx_error *none)
{
    struct ibx_error err = {0};
    struct ibx_migrate_status last = {.source = true, .record = *record, .phase = IBX_PHASE_DONE};
    char vm[PATH_MAX], said[PATH_MAX + 128];
    if (args->uri)
        snprintf(last.record.uri, sizeof(last.record.uri), "%s", args->uri);
    last.began_ns = ibx_now_ns();
    int rc = ibx_migrate_confirm(&last.record, &args->options, &err);
    last.now_ns = ibx_now_ns();
    if (rc) {
        ibx_error_prefix(&err, rc,
                         "%s. The last move from there is done here; that its destination has "
                         "heard so, too, matters only if ib-migrate status says complete there: "
                         "start ib-migrate recover there first",
                         none->message);
        last.phase = IBX_PHASE_FAILED;
        memcpy(last.message, err.message, sizeof(last.message));
        if (args->json)
            print_summary(rc, MIGRATE_FAILED, &last, &err);
        ibx_cli_complain(err.message);
        fflush(stdout);
        return MIGRATE_FAILED;
    }
    if (args->quit && ibx_migrate_quit(record, &err)) {
        ibx_error_prefix(&err, err.code, "QEMU (process %d) did not quit", (int)record->pid);
        ibx_cli_complain(err.message);
    }
    ibx_cli_vm(record, vm, sizeof(vm));
    snprintf(said, sizeof(said), "%s: moved, complete, and the destination has heard so", vm);
    if (args->json) {
        ibx_cli_print_json(json_pack("{s:o}", "say", ibx_json_text(said)));
        print_summary(0, MIGRATE_DONE, &last, &err);
    } else if (!args->quiet) {
        printf("%s\n", said); /* it has no figures */
    }
    fflush(stdout);
    return MIGRATE_DONE;
}

int ibx_cli_recover(const struct migrate_args *given)
{
    static struct migrate_args args;
    struct ibx_journal record;
    struct ibx_error err = {0};
    args = *given;
    int rc = find_either(&args, &record, &err);
    const bool source = rc ? args.uri != NULL : record.source;
    if (rc == -ENOENT && !args.listen && find_done(&args, &record)) {
        use_key_file(&args, &record);
        return confirm(&args, &record, &err);
    }
    if (!rc && record.source && args.listen)
        rc = ibx_error_set(&err, -EINVAL,
                           "this is the move's source: it takes the destination's URI, not "
                           "--listen");
    if (!rc && !record.source && args.uri)
        rc = ibx_error_set(&err, -EINVAL,
                           "this is the move's destination: it takes --listen, not a URI");
    if (rc) {
        const struct ibx_migrate_status none = {.phase = IBX_PHASE_FAILED, .source = source};
        return end_move(&args, rc, &none, &err);
    }
    use_key_file(&args, &record);
    return move(&args, record.source, &record);
}

/* ------------------------------------------------------------ check */

static size_t kept(const struct ibx_blockers *refusals)
{
    return refusals->count < IBX_BLOCKERS_MAX ? refusals->count : IBX_BLOCKERS_MAX;
}

static void print_refusals(const struct ibx_blockers *refusals)
{
    json_t *list = json_array();
    for (size_t i = 0; i < kept(refusals); i++)
        json_array_append_new(list, ibx_json_text(refusals->reasons[i]));
    ibx_cli_print_json(json_pack("{s:b, s:o}", "movable", refusals->count == 0, "refusals", list));
}

static void say_refusals(const struct migrate_args *args, const struct ibx_blockers *refusals)
{
    if (!refusals->count)
        printf("the VM at %s can %s%s%s\n", args->qmp, args->destination ? "receive" : "be moved",
               args->uri ? " to " : "", args->uri ? args->uri : "");
    for (size_t i = 0; i < kept(refusals); i++)
        printf("%s\n", refusals->reasons[i]);
    if (refusals->count > IBX_BLOCKERS_MAX)
        printf("and %zu more\n", refusals->count - IBX_BLOCKERS_MAX);
}

int ibx_cli_check(const struct migrate_args *args)
{
    static struct ibx_blockers refusals;
    struct ibx_error err = {0};
    if (ibx_cli_monitor_free(args, &err) ||
        ibx_migrate_check(args->qmp, !args->destination, args->uri, &args->options, args->links,
                          &refusals, &err)) {
        ibx_cli_complain(err.message);
        return MIGRATE_FAILED;
    }
    if (args->json)
        print_refusals(&refusals);
    else
        say_refusals(args, &refusals);
    if (fflush(stdout) || ferror(stdout)) {
        ibx_cli_complain("the answer could not be written");
        return MIGRATE_FAILED;
    }
    return refusals.count ? MIGRATE_FAILED : MIGRATE_DONE;
}
