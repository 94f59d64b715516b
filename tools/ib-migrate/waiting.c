/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Receivers that wait for a source: by their sockets, since nothing is on record before it comes.
 */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ASK_MS 10000

struct gathering {
    const struct migrate_args *args;
    struct migrate_waiting *list;
    size_t count;
    bool full; /* no memory for more */
};

static const char *text_of(const json_t *status, const char *member)
{
    const json_t *record = json_object_get(status, "record");
    const char *text = json_string_value(json_object_get(record, member));
    return text ? text : "";
}

/* For which monitor it waits only itself could say. */
static void complain_of_stopped(pid_t pid)
{
    char said[160];
    snprintf(said, sizeof(said),
             "an ib-migrate (process %d) that waits for a VM does not answer: if it is stopped, "
             "kill -CONT %d lets it go on",
             (int)pid, (int)pid);
    ibx_cli_complain(said);
}

/* One that has begun a move meanwhile is on record, and its socket is gone. */
static void gather(void *context, const char *path, pid_t pid)
{
    struct gathering *g = context;
    json_t *answer = NULL;
    int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "status"), &answer,
                                    ibx_deadline_in_ms(ASK_MS), NULL);
    if (rc == -ETIMEDOUT)
        complain_of_stopped(pid);
    if (rc)
        return;
    json_t *status = json_incref(json_object_get(answer, "status"));
    json_decref(answer);
    const bool wanted = json_is_object(status) &&
                        (!g->args->qmp[0] || !strcmp(g->args->qmp, text_of(status, "qmp")));
    struct migrate_waiting *list =
        wanted ? reallocarray(g->list, g->count + 1, sizeof(*list)) : NULL;
    if (list) {
        g->list = list;
        list[g->count] = (struct migrate_waiting){.pid = pid, .status = status};
        snprintf(list[g->count++].path, sizeof(list->path), "%s", path);
        return;
    }
    g->full |= wanted;
    json_decref(status);
}

int ibx_cli_waiting_list(const struct migrate_args *args, struct migrate_waiting **list,
                         size_t *count, struct ibx_error *err)
{
    struct gathering g = {.args = args};
    int rc = ibx_control_socket_waiting(args->folder, gather, &g, err);
    if (!rc && g.full)
        rc = ibx_error_set(err, -ENOMEM, "no memory for the receivers in %s", args->folder);
    if (rc) {
        ibx_cli_waiting_free(g.list, g.count);
        return rc;
    }
    *list = g.list;
    *count = g.count;
    return 0;
}

void ibx_cli_waiting_free(struct migrate_waiting *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        json_decref(list[i].status);
    free(list);
}

/* At its end a destination's tool has let the monitor go. */
static bool at_work(const struct migrate_args *args, const struct ibx_journal *record)
{
    char path[PATH_MAX];
    json_t *answer = NULL;
    if (ibx_journal_over(record) || record->state == IBX_JOURNAL_COMPLETE ||
        strcmp(record->qmp, args->qmp) != 0)
        return false;
    ibx_journal_path(args->folder, record, ".sock", path, sizeof(path));
    int rc = ibx_control_socket_ask(path, json_pack("{s:s}", "command", "status"), &answer,
                                    ibx_deadline_in_ms(ASK_MS), NULL);
    json_decref(answer);
    return !rc;
}

int ibx_cli_monitor_free(const struct migrate_args *args, struct ibx_error *err)
{
    struct migrate_waiting *waiting = NULL;
    struct ibx_journal *records = NULL;
    size_t waits = 0, count = 0;
    int rc = ibx_cli_waiting_list(args, &waiting, &waits, err);
    if (!rc && waits)
        rc = ibx_error_set(err, -EBUSY,
                           "the monitor %s has a client already: an ib-migrate (process %d) that "
                           "waits for a VM; ib-migrate cancel --qmp %s ends it",
                           args->qmp, (int)waiting[0].pid, args->qmp);
    if (!rc)
        rc = ibx_journal_list(args->folder, &records, &count, err);
    for (size_t i = 0; !rc && i < count; i++)
        if (at_work(args, &records[i]))
            rc = ibx_error_set(err, -EBUSY,
                               "the monitor %s has a client already: an ib-migrate that is at work "
                               "on a move; ib-migrate status shows it",
                               args->qmp);
    free(records);
    ibx_cli_waiting_free(waiting, waits);
    return rc;
}

void ibx_cli_waiting_print(const struct migrate_args *args, const struct migrate_waiting *one)
{
    const char *name = text_of(one->status, "name"), *qmp = text_of(one->status, "qmp");
    char vm[PATH_MAX + 16], said[PATH_MAX];
    snprintf(vm, sizeof(vm), "%s%s", *name ? name : "VM at ", *name ? "" : qmp);
    snprintf(said, sizeof(said), "no VM has come: an ib-migrate (process %d) waits for one at %s",
             (int)one->pid, text_of(one->status, "uri"));
    ibx_text_sanitize(vm);
    ibx_text_sanitize(said);
    if (!args->json) {
        printf("%s  destination  waiting  %s\n  %s\n", vm, qmp, said);
        return;
    }
    ibx_cli_print_json(json_pack("{s:O, s:o, s:n, s:O}", "record",
                                 json_object_get(one->status, "record"), "sentence",
                                 ibx_json_text(said), "trouble", "status", one->status));
}
