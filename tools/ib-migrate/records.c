/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* status, cancel, set and prune: what is on record, and the sockets of those moves that run. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* For an answer: a tool looks at its socket all the time, but it asks QEMU, too. */
#define ASK_MS   10000
#define BAR_ROOM (IBX_ERROR_MAX + 256u) /* a line of it is as long as it is */

struct records {
    struct ibx_journal *all;
    size_t count;
};

/* Those of --qmp, if given. */
static int list(const struct migrate_args *args, struct records *records, struct ibx_error *err)
{
    int rc = ibx_journal_list(args->folder, &records->all, &records->count, err);
    size_t kept = 0;
    for (size_t i = 0; !rc && i < records->count; i++) {
        if (!args->qmp[0] || !strcmp(args->qmp, records->all[i].qmp))
            records->all[kept++] = records->all[i];
    }
    records->count = kept;
    return rc;
}

static int ask(const struct migrate_args *args, const struct ibx_journal *record, json_t *request,
               json_t **answer, struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_journal_path(args->folder, record, ".sock", path, sizeof(path));
    return ibx_control_socket_ask(path, request, answer, ibx_deadline_in_ms(ASK_MS), err);
}

/* The status of the tool at work on it (a reference), or NULL. */
static json_t *live_status(const struct migrate_args *args, const struct ibx_journal *record,
                           struct ibx_error *err)
{
    json_t *answer = NULL, *status = NULL;
    if (!ask(args, record, json_pack("{s:s}", "command", "status"), &answer, err))
        status = json_incref(json_object_get(answer, "status"));
    json_decref(answer);
    return status;
}

/* ------------------------------------------------------------ status */

/* Why nobody answered, where that is more than that nobody is there. */
static const char *trouble(const struct ibx_error *err)
{
    return err->code && err->code != -ENOENT && err->code != -ECONNREFUSED ? err->message : NULL;
}

/* In the place of ibx_journal_say(), where the QEMU that the VM was in has ended; false: the same.
 */
static bool say_ended(const struct ibx_journal *record, char *sentence, size_t size)
{
    char vm[PATH_MAX];
    const int pid = (int)record->pid;
    ibx_cli_vm(record, vm, sizeof(vm));
    if (!record->source &&
        (record->state == IBX_JOURNAL_MAY_RUN || record->state == IBX_JOURNAL_RUNNING))
        snprintf(sentence, size,
                 "%s does not run here: its QEMU (process %d) is gone; \"ib-migrate rollback\" at "
                 "the source restarts it from its stop",
                 vm, pid);
    else if (!record->source && record->state == IBX_JOURNAL_DONE)
        snprintf(sentence, size,
                 "%s came here with all of its pages; its QEMU (process %d) has ended since", vm,
                 pid);
    else if (record->state == IBX_JOURNAL_DONE)
        snprintf(sentence, size,
                 "%s went to %s with all of its pages; its QEMU here (process %d) has ended", vm,
                 record->peer[0] ? record->peer : "the other side", pid);
    else if (record->state == IBX_JOURNAL_ROLLED_BACK)
        snprintf(sentence, size,
                 "%s was taken back and ran here from where it had stopped; its QEMU (process %d) "
                 "has ended since",
                 vm, pid);
    else
        return false;
    return true;
}

void ibx_cli_truth(const struct ibx_journal *record, char *sentence, size_t size)
{
    if (!ibx_journal_qemu_gone(record) || !say_ended(record, sentence, size))
        ibx_journal_say(record, sentence, size);
    ibx_text_sanitize(sentence);
}

static void print_record(const struct ibx_journal *record, json_t *live,
                         const struct ibx_error *err)
{
    char said[IBX_ERROR_MAX];
    ibx_cli_truth(record, said, sizeof(said));
    ibx_cli_print_json(json_pack("{s:o, s:o, s:o, s:o}", "record", ibx_migrate_record_json(record),
                                 "sentence", ibx_json_text(said), "trouble",
                                 trouble(err) ? ibx_json_text(trouble(err)) : json_null(), "status",
                                 live ? json_incref(live) : json_null()));
}

static void say_record(const struct ibx_journal *record, const json_t *live, struct ibx_error *err)
{
    char said[IBX_ERROR_MAX], vm[PATH_MAX], bar[BAR_ROOM + 1];
    struct ibx_migrate_status status = {.record = *record};
    ibx_cli_truth(record, said, sizeof(said));
    ibx_cli_vm(record, vm, sizeof(vm));
    printf("%s  %s  %s  %s\n  %s\n", vm, record->source ? "source" : "destination",
           ibx_journal_state_name(record->state), record->qmp, said);
    if (live && !ibx_migrate_status_take(live, &status, err)) {
        ibx_cli_bar(&status, BAR_ROOM, bar, sizeof(bar));
        printf("  %s\n", bar);
    } else if (trouble(err)) {
        printf("  %s\n", err->message);
    } else if (!ibx_journal_over(record)) {
        printf("  no ib-migrate is at work on it\n");
        if (record->source && ibx_journal_qemu_gone(record))
            printf("  its QEMU (process %d) is gone: pages that had not come are lost\n",
                   record->pid);
    }
}

int ibx_cli_status(const struct migrate_args *args)
{
    struct records records = {0};
    struct migrate_waiting *waiting = NULL;
    struct ibx_error err = {0};
    size_t waits = 0;
    if (list(args, &records, &err) || ibx_cli_waiting_list(args, &waiting, &waits, &err)) {
        free(records.all);
        ibx_cli_complain(err.message);
        return MIGRATE_FAILED;
    }
    for (size_t i = 0; i < waits; i++)
        ibx_cli_waiting_print(args, &waiting[i]);
    for (size_t i = 0; i < records.count; i++) {
        struct ibx_error why = {0};
        json_t *live =
            ibx_journal_over(&records.all[i]) ? NULL : live_status(args, &records.all[i], &why);
        if (args->json)
            print_record(&records.all[i], live, &why);
        else
            say_record(&records.all[i], live, &why);
        json_decref(live);
    }
    if (!records.count && !waits && !args->json)
        printf("no move%s%s is on record in %s\n", args->qmp[0] ? " of the QEMU at " : "",
               args->qmp, args->folder);
    free(records.all);
    ibx_cli_waiting_free(waiting, waits);
    if (fflush(stdout) || ferror(stdout)) {
        ibx_cli_complain("the status could not be written");
        return MIGRATE_FAILED;
    }
    return MIGRATE_DONE;
}

/* ------------------------------------------------------------ cancel, set */

/* The socket of the one tool that is at work on a move, or waits for one. */
static int find_live(const struct migrate_args *args, char path[PATH_MAX], struct ibx_error *err)
{
    struct records records = {0};
    struct migrate_waiting *waiting = NULL;
    struct ibx_error why = {0};
    size_t living = 0;
    int rc = ibx_cli_waiting_list(args, &waiting, &living, err);
    if (!rc)
        rc = list(args, &records, err);
    if (living)
        snprintf(path, PATH_MAX, "%s", waiting[0].path);
    ibx_cli_waiting_free(waiting, living);
    for (size_t i = 0; !rc && i < records.count; i++) {
        struct ibx_error silent = {0};
        const struct ibx_journal *record = &records.all[i];
        json_t *live = ibx_journal_over(record) ? NULL : live_status(args, record, &silent);
        if (live && !living++)
            ibx_journal_path(args->folder, record, ".sock", path, PATH_MAX);
        if (!live && trouble(&silent))
            why = silent;
        json_decref(live);
    }
    free(records.all);
    if (rc || living == 1)
        return rc;
    if (living)
        return ibx_error_set(err, -ENOTUNIQ,
                             "%zu moves run or are waited for here: name one by --qmp", living);
    if (why.code)
        return ibx_error_set(err, why.code, "%s", why.message);
    return ibx_error_set(err, -ENOENT,
                         "no ib-migrate is at work on a move%s%s: \"ib-migrate status\" shows what "
                         "is on record in %s",
                         args->qmp[0] ? " of the QEMU at " : "", args->qmp, args->folder);
}

static int tell_live(const struct migrate_args *args, json_t *request)
{
    char path[PATH_MAX];
    struct ibx_error err = {0};
    json_t *answer = NULL;
    int rc = find_live(args, path, &err);
    if (rc)
        json_decref(request);
    else
        rc = ibx_control_socket_ask(path, request, &answer, ibx_deadline_in_ms(ASK_MS), &err);
    json_decref(answer);
    if (rc)
        ibx_cli_complain(err.message);
    return rc ? MIGRATE_FAILED : MIGRATE_DONE;
}

int ibx_cli_cancel(const struct migrate_args *args)
{
    return tell_live(args, json_pack("{s:s}", "command", "cancel"));
}

int ibx_cli_set(const struct migrate_args *args)
{
    return tell_live(args, json_pack("{s:s, s:I}", "command", "set", "max-bandwidth",
                                     (json_int_t)args->max_bandwidth));
}

/* ------------------------------------------------------------ prune */

struct pruned {
    size_t gone, kept;
};

static void say_pruned(void *context, const struct ibx_journal *record, const char *why)
{
    struct pruned *pruned = context;
    char said[IBX_ERROR_MAX];
    ibx_cli_truth(record, said, sizeof(said));
    printf("%s: %s%s%s%s\n", why ? "kept" : "forgotten", said, why ? " (" : "", why ? why : "",
           why ? ")" : "");
    pruned->gone += !why;
    pruned->kept += why != NULL;
}

int ibx_cli_prune(const struct migrate_args *args)
{
    struct pruned pruned = {0};
    struct ibx_error err = {0};
    const struct ibx_journal_prune which = {.qmp = args->qmp[0] ? args->qmp : NULL,
                                            .unfinished = args->unfinished,
                                            .before_s = UINT64_MAX,
                                            .each = say_pruned,
                                            .context = &pruned};
    if (ibx_journal_prune(args->folder, &which, &err)) {
        ibx_cli_complain(err.message);
        return MIGRATE_FAILED;
    }
    if (!pruned.gone && !pruned.kept)
        printf("no move%s%s is on record in %s\n", args->qmp[0] ? " of the QEMU at " : "",
               args->qmp, args->folder);
    if (fflush(stdout) || ferror(stdout)) {
        ibx_cli_complain("what was forgotten could not be written");
        return MIGRATE_FAILED;
    }
    return MIGRATE_DONE;
}
