/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* status, cancel, set and prune: the records, and the control sockets of running migrations and of
 * receivers that wait for a source, which have no record yet. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"
#include "common/shell_word.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* In which a tool has to answer: it reads its socket all the time, but it also waits for QEMU. */
#define ASK_MS 10000
#define LINE   (IBX_ERROR_MAX + 256u) /* longer than any progress line */

/* The status of the ib-migrate that answers at `path`, as ibx_cli_ask_status(). */
static json_t *ask_path(const char *path, struct ibx_error *err)
{
    json_t *answer = NULL;
    if (ibx_control_socket_ask(path, json_pack("{s:s}", "command", "status"), &answer,
                               ibx_deadline_in_ms(ASK_MS), err))
        return NULL;
    json_t *status = json_incref(json_object_get(answer, "status"));
    json_decref(answer);
    return status;
}

json_t *ibx_cli_ask_status(const struct migrate_args *args, const struct ibx_record *record,
                           struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_journal_path(args->folder, record, ".sock", path, sizeof(path));
    return ask_path(path, err);
}

void ibx_cli_use_record(struct ibx_options *options, const struct ibx_record *record)
{
    if (!options->key_file[0])
        memcpy(options->key_file, record->key_file, sizeof(options->key_file));
    /* The key's name belongs to that file. */
    if (!options->name[0] && !strcmp(options->key_file, record->key_file))
        memcpy(options->name, record->key_name, sizeof(options->name));
    if (!options->allow[0])
        memcpy(options->allow, record->allow, sizeof(options->allow));
    if (options->encryption == IBX_ENCRYPTION_AUTO)
        options->encryption = record->encryption;
    options->insecure |= record->insecure;
}

/* ------------------------------------------------------------ what there is */

struct receiver {
    pid_t pid;
    char path[PATH_MAX]; /* of its socket */
    json_t *status;
};

/* The records and the waiting receivers of --qmp, or all. */
struct found {
    const struct migrate_args *args;
    struct ibx_record *records;
    size_t record_count, all_count; /* those of --qmp come first, then the others */
    struct receiver *receivers;
    size_t receiver_count;
    struct ibx_error unread; /* of a record that is not among them */
    bool no_memory;
};

static const char *text_of(const json_t *status, const char *member)
{
    const json_t *record = json_object_get(status, "record");
    const char *text = json_string_value(json_object_get(record, member));
    return text ? text : "";
}

/* Adds a waiting receiver. If its source has come meanwhile, its socket is gone and it has a
 * record. */
static void add_receiver(void *context, const char *path, pid_t pid)
{
    struct found *found = context;
    const char *qmp = found->args->qmp;
    struct ibx_error err = {0};
    json_t *status = ask_path(path, &err);
    if (err.code == -ETIMEDOUT) { /* its monitor is unknown, so it may be that of --qmp */
        char text[160];
        snprintf(text, sizeof(text),
                 "an ib-migrate (process %d) that waits for a VM does not answer: if it is "
                 "stopped, kill -CONT %d continues it",
                 (int)pid, (int)pid);
        ibx_cli_message(text);
    }
    if (json_is_object(status) && (!*qmp || !strcmp(qmp, text_of(status, "qmp")))) {
        struct receiver *list =
            reallocarray(found->receivers, found->receiver_count + 1, sizeof(*list));
        if (list) {
            found->receivers = list;
            list += found->receiver_count++;
            *list = (struct receiver){.pid = pid, .status = json_incref(status)};
            snprintf(list->path, sizeof(list->path), "%s", path);
        }
        found->no_memory |= !list;
    }
    json_decref(status);
}

static void found_free(struct found *found)
{
    for (size_t i = 0; i < found->receiver_count; i++)
        json_decref(found->receivers[i].status);
    free(found->receivers);
    free(found->records);
}

static int find(const struct migrate_args *args, struct found *found, struct ibx_error *err)
{
    size_t kept = 0;
    *found = (struct found){.args = args};
    int rc = ibx_control_socket_waiting(args->folder, add_receiver, found, err);
    if (!rc && found->no_memory)
        rc = ibx_error_set(err, -ENOMEM, "no memory for the receivers in %s", args->folder);
    if (!rc)
        rc = ibx_journal_list_readable(args->folder, &found->records, &found->record_count,
                                       &found->unread, err);
    found->all_count = found->record_count;
    for (size_t i = 0; !rc && i < found->all_count; i++) {
        if (args->qmp[0] && strcmp(args->qmp, found->records[i].qmp) != 0)
            continue;
        const struct ibx_record wanted = found->records[i];
        found->records[i] = found->records[kept];
        found->records[kept++] = wanted;
    }
    found->record_count = kept;
    if (rc)
        found_free(found);
    return rc;
}

/* -EBUSY: an ib-migrate works on this migration of the QEMU at --qmp. */
static int at_work(const struct migrate_args *args, const struct ibx_record *record,
                   struct ibx_error *err)
{
    const int worker = (int)ibx_journal_worker(args->folder, record);
    if (record->source && args->listen)
        return ibx_error_set(err, -EBUSY,
                             "the monitor %s has a client already: an ib-migrate (process %d) that "
                             "serves the memory of the VM that has left this QEMU, or is about to; "
                             "a VM%s comes into a QEMU of its own: start one with -incoming defer, "
                             "and give its monitor",
                             args->qmp, worker, record->borrow ? ", also this one," : "");
    return ibx_error_set(err, -EBUSY,
                         "the monitor %s has a client already: an ib-migrate (process %d) that "
                         "works on a migration; ib-migrate status shows it%s",
                         args->qmp, worker,
                         !record->source && record->borrow
                             ? ", and a borrowed VM leaves by ib-migrate return alone"
                             : "");
}

/* -ENOENT says where the VM of --qmp went, if its QEMU has ended since. Otherwise the error would
 * be the missing monitor, with the advice to start a QEMU: a second running copy of the VM would
 * destroy its disks. A QEMU that is to receive a VM has to be started all the same. */
static int check_left(const struct migrate_args *args, const struct found *found,
                      struct ibx_error *err)
{
    const bool receives = args->destination || (args->listen && !args->to);
    const struct ibx_record *last = found->records; /* the newest one */
    char sentence[IBX_ERROR_MAX];
    if (receives || !found->record_count || !last->source || !access(args->qmp, F_OK) ||
        errno != ENOENT || !ibx_journal_qemu_gone(last) ||
        (last->state != IBX_JOURNAL_DONE && last->state != IBX_JOURNAL_MOVED &&
         last->state != IBX_JOURNAL_MAY_RUN))
        return 0;
    ibx_cli_vm_state(last, sentence, sizeof(sentence));
    return ibx_error_set(err, -ENOENT, "no QEMU has the QMP socket %s: %s", args->qmp, sentence);
}

int ibx_cli_monitor_check(const struct migrate_args *args, struct ibx_error *err)
{
    struct found found;
    int rc = find(args, &found, err);
    if (rc)
        return rc;
    if (found.unread.code)
        rc = ibx_error_set(err, found.unread.code, "%s", found.unread.message);
    else if (found.receiver_count)
        rc = ibx_error_set(err, -EBUSY,
                           "the monitor %s has a client already: an ib-migrate (process %d) that "
                           "waits for a VM; ib-migrate cancel %s ends it",
                           args->qmp, (int)found.receivers[0].pid,
                           ibx_journal_options(args->qmp).text);
    for (size_t i = 0; !rc && i < found.record_count; i++) {
        struct ibx_error silent = {0};
        /* A destination that is complete no longer uses its monitor. */
        const bool busy = !ibx_journal_over(&found.records[i]) &&
                          found.records[i].state != IBX_JOURNAL_COMPLETE &&
                          found.records[i].state != IBX_JOURNAL_SHUT_DOWN;
        json_t *status = busy ? ibx_cli_ask_status(args, &found.records[i], &silent) : NULL;
        if (status)
            rc = at_work(args, &found.records[i], err);
        json_decref(status);
    }
    if (!rc)
        rc = check_left(args, &found, err);
    found_free(&found);
    return rc;
}

/* ------------------------------------------------------------ status */

/* Why an ib-migrate that works on the migration did not answer; NULL: none works on it. */
static const char *trouble(const struct ibx_error *err)
{
    return err->code && err->code != -ENOENT && err->code != -ECONNREFUSED ? err->message : NULL;
}

/* The later migration by which a VM has left, or may have, the QEMU in which this record says that
 * it runs; NULL: none. */
static const struct ibx_record *left_by(const struct found *found, const struct ibx_record *record)
{
    const bool runs =
        record->state == (record->source ? IBX_JOURNAL_ROLLED_BACK : IBX_JOURNAL_DONE);
    for (size_t i = 0; runs && i < found->all_count; i++) {
        const struct ibx_record *later = &found->records[i];
        if (later->source && later->state != IBX_JOURNAL_HERE && later->state != IBX_JOURNAL_KEPT &&
            later->state != IBX_JOURNAL_ROLLED_BACK && ibx_journal_same_process(later, record) &&
            ibx_journal_is_later(later, record))
            return later;
    }
    return NULL;
}

/* As ibx_cli_vm_state(), but also looks at other records. */
static void vm_state(const struct found *found, const struct ibx_record *record, char *sentence,
                     size_t size)
{
    char vm[PATH_MAX], peer[sizeof(record->uri)];
    const struct ibx_record *later = ibx_journal_qemu_gone(record) ? NULL : left_by(found, record);
    if (!ibx_journal_over(record) && ibx_journal_back_marked(found->args->folder, record)) {
        ibx_cli_vm_name(record, vm, sizeof(vm));
        ibx_journal_name_peer(record, peer, sizeof(peer));
        snprintf(sentence, size,
                 "%s may run here or at %s: a rollback has begun and has not recorded its end"
                 "; " IBX_JOURNAL_UNLESS_AT_WORK
                 "\"ib-migrate recover\" or \"rollback\" here finds out, and \"recover\" continues "
                 "the migration if the VM does not run here",
                 vm, peer);
        ibx_text_plain(sentence);
        return;
    }
    if (!later) {
        ibx_cli_vm_state(record, sentence, size);
        return;
    }
    ibx_cli_vm_name(record, vm, sizeof(vm));
    ibx_journal_name_peer(later, peer, sizeof(peer));
    snprintf(sentence, size,
             "%s %s: where it is now is told by the record of its later migration to %s", vm,
             !record->source       ? "came here with all of its pages"
             : record->was_running ? "was taken back and ran here"
                                   : "was taken back",
             peer);
    ibx_text_plain(sentence);
}

/* For a source whose tool and watchdog have ended: adds that QEMU may still have the settings of
 * the migration. With x-ignore-shared savevm silently leaves out the VM's RAM. */
static void add_settings(const struct ibx_record *record, char *sentence, size_t size)
{
    const size_t used = strlen(sentence);
    bool leaves = true;
    if (!record->source || !record->settings[0] || !ibx_journal_qemu_lives(record) ||
        (record->state != IBX_JOURNAL_HERE && record->state != IBX_JOURNAL_MAY_RUN))
        return;
    const bool known = !ibx_migrate_leaves_out_ram(record, &leaves);
    snprintf(
        sentence + used, size - used,
        "; QEMU %s the settings of a migration%s, until \"ib-migrate recover\" or \"rollback\"",
        known && leaves ? "still has" : "may still have",
        leaves ? ", with which a snapshot of the VM (savevm) has no RAM" : "");
}

/* Fits a sentence to what is known of the ib-migrate that works on the migration. If there is none,
 * what to do then needs no condition. If there is one (`live`: its status), that is left out, and
 * so is what to do if the other side is lost, unless it is away. */
static void fit_to_work(char *sentence, const json_t *live)
{
    char *from = strstr(sentence, IBX_JOURNAL_UNLESS_AT_WORK);
    if (from) {
        const char *rest = from + strlen(IBX_JOURNAL_UNLESS_AT_WORK);
        if (live) {
            rest = strstr(rest, "; ");
            rest = rest ? rest : "";
            while (from > sentence && strchr(";: ", from[-1]))
                from--;
        }
        memmove(from, rest, strlen(rest) + 1);
    }
    char *lost = strstr(sentence, IBX_JOURNAL_FOR_GOOD);
    const char *phase = json_string_value(json_object_get(live, "phase"));
    if (lost && phase && strcmp(phase, ibx_migrate_phase_name(IBX_PHASE_RECONNECTING)) != 0)
        *lost = '\0';
}

static void print_line_json(json_t *record, const char *state, const char *trouble, json_t *status)
{
    ibx_cli_print_json(json_pack("{s:o, s:o, s:o, s:o}", "record", record, "sentence",
                                 ibx_json_text(state), "trouble",
                                 trouble ? ibx_json_text(trouble) : json_null(), "status",
                                 status ? json_incref(status) : json_null()));
}

static void print_receiver(const struct migrate_args *args, const struct receiver *one)
{
    const char *name = text_of(one->status, "name"), *qmp = text_of(one->status, "qmp");
    char vm[PATH_MAX + 16], state[PATH_MAX];
    snprintf(vm, sizeof(vm), "%s%s", *name ? name : "VM at ", *name ? "" : qmp);
    snprintf(state, sizeof(state), "no VM has come: an ib-migrate (process %d) waits for one at %s",
             (int)one->pid, text_of(one->status, "uri"));
    ibx_text_plain(vm);
    ibx_text_sanitize(state);
    if (args->json) {
        print_line_json(json_incref(json_object_get(one->status, "record")), state, NULL,
                        one->status);
    } else {
        ibx_cli_print("%s  destination  waiting  %s", vm, qmp);
        printf("  %s\n", state);
    }
}

/* The record, with what the ib-migrate that works on it knows better. It writes "may-run" before
 * the VM can run at the destination, and with --warm long before that. Until the VM stops, its
 * phase tells that the VM is at the source. */
static struct ibx_record record_now(const struct ibx_record *record, const json_t *live)
{
    struct ibx_record now = *record;
    const char *phase = json_string_value(json_object_get(live, "phase"));
    if (*text_of(live, "vm_status")) /* the record has that of its last state */
        snprintf(now.vm_status, sizeof(now.vm_status), "%s", text_of(live, "vm_status"));
    if (phase && record->state == IBX_JOURNAL_MAY_RUN &&
        (!strcmp(phase, ibx_migrate_phase_name(IBX_PHASE_PREPARING)) ||
         !strcmp(phase, ibx_migrate_phase_name(IBX_PHASE_WARMING))))
        now.state = record->source ? IBX_JOURNAL_HERE : IBX_JOURNAL_NOT_YET;
    return now;
}

bool ibx_cli_copied(const struct migrate_args *args, const struct ibx_record *record, char *text,
                    size_t size)
{
    char path[PATH_MAX];
    ibx_journal_path(args->folder, record, ".json", path, sizeof(path));
    snprintf(text, size, "%s is damaged, and a copy of it was read", path);
    return record->copied;
}

static void print_record(const struct migrate_args *args, const struct found *found,
                         const struct ibx_record *record)
{
    char state[IBX_ERROR_MAX], vm[PATH_MAX], bar[LINE + 1], when[64], copied[2 * PATH_MAX];
    struct ibx_migrate_status status = {.record = *record};
    struct ibx_error err = {0};
    json_t *live = ibx_journal_over(record) ? NULL : ibx_cli_ask_status(args, record, &err);
    const struct ibx_record now = record_now(record, live);
    vm_state(found, &now, state, sizeof(state));
    if (!live && !trouble(&err))
        add_settings(record, state, sizeof(state));
    if (live || !trouble(&err))
        fit_to_work(state, live);
    ibx_cli_vm_name(record, vm, sizeof(vm));
    const bool is_copy = ibx_cli_copied(args, record, copied, sizeof(copied));
    if (args->json) {
        const char *wrong = trouble(&err);
        print_line_json(ibx_migrate_record_json(record), state, wrong || !is_copy ? wrong : copied,
                        live);
        json_decref(live);
        return;
    }
    ibx_cli_time(record->written_s, when, sizeof(when));
    ibx_cli_print("%s  %s  %s  %s  %s", vm, record->source ? "source" : "destination",
                  ibx_journal_state_name(now.state), record->qmp, when);
    ibx_cli_print("  %s", state);
    if (live && !ibx_migrate_status_take(live, &status, &err)) {
        ibx_cli_bar(&status, LINE, bar, sizeof(bar));
        printf("  %s\n", bar);
    } else if (trouble(&err)) {
        printf("  %s\n", err.message);
    } else if (!ibx_journal_over(record)) {
        printf("  no ib-migrate works on it\n");
    }
    if (is_copy)
        ibx_cli_print("  %s", copied);
    json_decref(live);
}

/* Makes the view of a record, with the figures of the ib-migrate that works on it. */
static void view_record(const struct migrate_args *args, const struct ibx_record *record,
                        struct migrate_view *view)
{
    struct ibx_error err = {0};
    json_t *live = ibx_journal_over(record) ? NULL : ibx_cli_ask_status(args, record, &err);
    view->record = *record;
    view->live = live && !ibx_migrate_status_take(live, &view->status, &err);
    view->mute = !view->live && trouble(&err);
    json_decref(live);
}

static int print_prometheus(const struct migrate_args *args, const struct found *found)
{
    struct ibx_error err = {0};
    const size_t count = found->record_count + found->receiver_count;
    struct migrate_view *views = calloc(count + 1, sizeof(*views));
    if (!views)
        return ibx_cli_fail("no memory for the figures of all migrations");
    for (size_t i = 0; i < found->record_count; i++)
        view_record(args, &found->records[i], &views[i]);
    int rc = ibx_cli_prometheus(args, views, count, found->unread.code != 0, &err);
    free(views);
    if (!rc)
        err = found->unread;
    return err.code ? ibx_cli_fail(err.message) : ibx_cli_flush(MIGRATE_DONE);
}

/* Says that nothing is recorded: on standard error where standard output is for programs, and there
 * only if the folder does not exist, which may be a wrong one. */
static void print_none(const struct migrate_args *args)
{
    const bool absent = access(args->folder, F_OK) != 0;
    char text[3 * PATH_MAX];
    snprintf(text, sizeof(text), "no migration%s%s is recorded in %s%s",
             args->qmp[0] ? " of the QEMU at " : "", args->qmp, args->folder,
             absent ? ": there is no such folder; see --state-dir" : "");
    if (!args->json && !args->prometheus)
        ibx_cli_print("%s", text);
    else if (absent)
        ibx_cli_message(text);
}

int ibx_cli_status(const struct migrate_args *args)
{
    struct found found;
    struct ibx_error err = {0};
    if (find(args, &found, &err))
        return ibx_cli_fail(err.message);
    if (!found.record_count && !found.receiver_count && !found.unread.code)
        print_none(args);
    if (args->prometheus) {
        int status = print_prometheus(args, &found);
        found_free(&found);
        return status;
    }
    for (size_t i = 0; i < found.receiver_count; i++)
        print_receiver(args, &found.receivers[i]);
    for (size_t i = 0; i < found.record_count; i++)
        print_record(args, &found, &found.records[i]);
    found_free(&found);
    return found.unread.code ? ibx_cli_fail(found.unread.message) : ibx_cli_flush(MIGRATE_DONE);
}

/* ------------------------------------------------------------ cancel, set */

/* Adds one that works on a migration, or waits for one, to "--qmp PATH (source), ...". */
static void list_live(char *list, size_t size, const char *qmp, const char *role)
{
    const size_t used = strlen(list);
    snprintf(list + used, size - used, "%s--qmp %s (%s)", used ? ", " : "",
             ibx_shell_word(qmp).text, role);
}

/* The socket of the one ib-migrate that works on a migration, or waits for one. `hint` helps to
 * choose between several. */
static int find_live(const struct migrate_args *args, const char *hint, char path[PATH_MAX],
                     struct ibx_error *err)
{
    char list[IBX_ERROR_MAX / 2] = "";
    struct found found;
    struct ibx_error why = {0};
    int rc = find(args, &found, err);
    if (rc)
        return rc;
    size_t live = found.receiver_count;
    if (live)
        snprintf(path, PATH_MAX, "%s", found.receivers[0].path);
    for (size_t i = 0; i < live; i++)
        list_live(list, sizeof(list), text_of(found.receivers[i].status, "qmp"),
                  "waiting for a source");
    for (size_t i = 0; i < found.record_count; i++) {
        struct ibx_error silent = {0};
        const struct ibx_record *record = &found.records[i];
        json_t *status =
            ibx_journal_over(record) ? NULL : ibx_cli_ask_status(args, record, &silent);
        if (status && !live++)
            ibx_journal_path(args->folder, record, ".sock", path, PATH_MAX);
        if (status)
            list_live(list, sizeof(list), record->qmp, record->source ? "source" : "destination");
        if (trouble(&silent))
            why = silent;
        json_decref(status);
    }
    found_free(&found);
    if (live == 1)
        return 0;
    if (live)
        return ibx_error_set(err, -ENOTUNIQ,
                             "%zu ib-migrate processes work here, choose one of them%s: %s", live,
                             hint, list);
    if (!why.code)
        why = found.unread;
    if (why.code)
        return ibx_error_set(err, why.code, "%s", why.message);
    return ibx_error_set(err, -ENOENT,
                         "no ib-migrate works on a migration%s%s: \"ib-migrate status\" shows the "
                         "records in %s",
                         args->qmp[0] ? " of the QEMU at " : "", args->qmp, args->folder);
}

/* Sends a request to that ib-migrate; consumes the request. `hint` as in find_live(). Returns the
 * exit status. */
static int command_live(const struct migrate_args *args, const char *hint, json_t *request)
{
    char path[PATH_MAX];
    struct ibx_error err = {0};
    json_t *answer = NULL;
    int rc = find_live(args, hint, path, &err);
    if (rc)
        json_decref(request);
    else
        rc = ibx_control_socket_ask(path, request, &answer, ibx_deadline_in_ms(ASK_MS), &err);
    json_decref(answer);
    return rc ? ibx_cli_fail(err.message) : MIGRATE_DONE;
}

int ibx_cli_cancel(const struct migrate_args *args)
{
    return command_live(args, "", json_pack("{s:s}", "command", "cancel"));
}

int ibx_cli_set(const struct migrate_args *args)
{
    return command_live(args, " (set is for the destination)",
                        json_pack("{s:s, s:I}", "command", "set", "max-bandwidth",
                                  (json_int_t)args->max_bandwidth));
}

/* ------------------------------------------------------------ prune */

struct pruning {
    const struct migrate_args *args;
    struct found found; /* all records, before the first was deleted */
    bool any;
};

/* Prints a record that was, or could be, deleted; `path`: memory that it leaves behind, or "". */
static void print_pruned_json(const struct ibx_record *record, const char *state, const char *why,
                              const char *path)
{
    ibx_cli_print_json(json_pack("{s:{s:o, s:o, s:b, s:o, s:o}}", "prune", "record",
                                 ibx_migrate_record_json(record), "sentence", ibx_json_text(state),
                                 "deleted", !why, "kept_because",
                                 why ? ibx_json_text(why) : json_null(), "memory_file",
                                 *path ? ibx_json_text(path) : json_null()));
}

static void print_pruned(void *context, const struct ibx_record *record, const char *why)
{
    struct pruning *pruning = context;
    char state[IBX_ERROR_MAX], path[PATH_MAX];
    pruning->any = true;
    if ((!why || ibx_journal_over(record)) &&
        ibx_cli_is_run_key(pruning->args->folder, record->key_file))
        unlink(record->key_file);
    vm_state(&pruning->found, record, state, sizeof(state));
    if (!ibx_journal_qemu_gone(record) || !ibx_journal_memory_file(record, path) ||
        (!record->source && !ibx_journal_in_run_folder(path)) || ibx_journal_memory_used(record))
        path[0] = '\0';
    if (pruning->args->json) {
        print_pruned_json(record, state, why, path);
        return;
    }
    ibx_cli_print("%s: %s%s%s%s", why ? "kept" : "deleted", state, why ? " (" : "", why ? why : "",
                  why ? ")" : "");
    ibx_text_sanitize(path);
    if (!why && *path)
        printf("  its memory still takes room in %s: remove that file%s\n", path,
               !record->source || record->state == IBX_JOURNAL_DONE ||
                       record->state == IBX_JOURNAL_ENDED
                   ? " (prune --remove would have done so)"
                   : "");
}

int ibx_cli_prune(const struct migrate_args *args)
{
    struct pruning pruning = {.args = args, .found.args = args};
    struct ibx_error err = {0};
    const struct ibx_journal_prune which = {.qmp = args->qmp[0] ? args->qmp : NULL,
                                            .unfinished = args->unfinished,
                                            .remove = args->remove,
                                            .before_s = UINT64_MAX,
                                            .each = print_pruned,
                                            .context = &pruning};
    int rc = ibx_journal_list(args->folder, &pruning.found.records, &pruning.found.all_count, &err);
    if (!rc)
        rc = ibx_journal_prune(args->folder, &which, &err);
    free(pruning.found.records);
    if (rc)
        return ibx_cli_fail(err.message);
    ibx_cli_prune_keys(args->folder);
    if (!pruning.any && !args->json)
        print_none(args);
    return ibx_cli_flush(MIGRATE_DONE);
}
