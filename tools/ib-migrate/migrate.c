/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* receive, send, recover and check. */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEFT_MS      (IBX_MIGRATE_STAY_MS + 5000u) /* a watchdog then writes its record */
#define LEFT_SAY_MS  1000                          /* until it is said what is waited for */
#define LEFT_LOOK_MS 50

/* ------------------------------------------------------------ the end */

/* Whether the VM runs at the destination, or may, and the two sides have not agreed on it yet. */
static bool unfinished(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_MAY_RUN || record->state == IBX_JOURNAL_MOVED ||
           record->state == IBX_JOURNAL_RUNNING || record->state == IBX_JOURNAL_COMPLETE ||
           record->state == IBX_JOURNAL_SHUT_DOWN;
}

/* Destination: whether only the source has to learn how it ended, which needs no QEMU. */
static bool waits_for_source(const struct ibx_record *record)
{
    return record->state == IBX_JOURNAL_COMPLETE || record->state == IBX_JOURNAL_SHUT_DOWN;
}

/* Whether recover can do nothing here, now or later: the QEMU that was to run the VM has ended.
 * Only the source may know whether the VM ever ran in it. */
static bool is_nothing_left_here(const struct ibx_record *record)
{
    return !record->source && !waits_for_source(record) && ibx_journal_qemu_gone(record);
}

/* Whether recover can do nothing more for the VM: its QEMU has ended at the destination, where it
 * ran, before all pages were there, or libvirt has saved it at the source without its memory. */
static bool is_lost(const struct ibx_record *record)
{
    if (record->source)
        return ibx_journal_lost_there(record) || ibx_journal_without_ram(record);
    return is_nothing_left_here(record) && ibx_journal_ran_here(record);
}

static void print_failure(const struct ibx_migrate_status *last, const struct ibx_error *err)
{
    char state[IBX_ERROR_MAX];
    ibx_cli_message(err->message);
    if (!last->record.written_s) /* nothing was begun */
        return;
    if (last->source && (ibx_journal_lost_there(&last->record) || err->code == -ENOTRECOVERABLE))
        return;                                /* the error message tells it */
    if (is_nothing_left_here(&last->record)) { /* the error message tells where the VM is */
        snprintf(state, sizeof(state),
                 "the QEMU here (process %d) has ended with this migration: start it anew before "
                 "the next ib-migrate receive",
                 (int)last->record.pid);
        if (last->record.state == IBX_JOURNAL_GIVEN_UP)
            ibx_cli_message(state);
        return;
    }
    ibx_cli_vm_state(&last->record, state, sizeof(state));
    ibx_cli_message(state);
}

/* `again`: the command is recover, which at a destination counts from its own start. */
static void print_success(const struct ibx_migrate_status *last, bool again)
{
    char vm[PATH_MAX], peer[sizeof(last->record.peer)];
    if (last->record.state == IBX_JOURNAL_ENDED) {
        char state[IBX_ERROR_MAX];
        ibx_cli_vm_state(&last->record, state, sizeof(state));
        printf("%s\n", state);
        return;
    }
    ibx_cli_vm_name(&last->record, vm, sizeof(vm));
    snprintf(peer, sizeof(peer), "%s", last->record.peer);
    ibx_text_sanitize(peer);
    printf("%s: migrated%s%s, complete and confirmed\n", vm,
           !*peer         ? ""
           : last->source ? " to "
                          : " from ",
           peer);
    ibx_cli_summary(stdout, last);
    if (again && !last->source)
        printf("  %-18s since this recover began, without what had come before\n", "counted");
}

void ibx_cli_print_summary(int rc, int status, const struct ibx_migrate_status *last,
                           const struct ibx_error *err)
{
    json_t *summary = ibx_migrate_status_json(last);
    if (!summary ||
        json_object_set_new(summary, "complete", json_boolean(status == MIGRATE_DONE)) ||
        json_object_set_new(summary, "outcome", json_string(ibx_cli_outcome(status))) ||
        json_object_set_new(summary, "exit_status", json_integer(status)) ||
        json_object_set_new(summary, "error", rc ? ibx_json_text(err->message) : json_null()))
        ibx_cli_message("no memory for the summary");
    ibx_cli_print_json(json_pack("{s:o}", "summary", summary));
    ibx_cli_result_told();
}

/* Whether this is a receiver that was told to end and leaves nothing behind, nor work for recover.
 */
static bool was_stopped(int rc, const struct ibx_migrate_status *last)
{
    return rc == -ECANCELED && !last->source &&
           (!last->record.written_s || last->record.state == IBX_JOURNAL_GIVEN_UP);
}

/* Prints how the migration ended, and returns the exit status, which a standard output that takes
 * nothing does not change: that is only said. `again`: the command is recover. */
static int finish(const struct migrate_args *args, int rc, bool again,
                  const struct ibx_migrate_status *last, const struct ibx_error *err)
{
    const bool ended =
        !rc && last->record.state == IBX_JOURNAL_ENDED && !ibx_journal_has_returned(&last->record);
    ibx_cli_result_late_signals();
    const int status = ended                                          ? MIGRATE_ENDED
                       : !rc                                          ? MIGRATE_DONE
                       : !again && was_stopped(rc, last)              ? MIGRATE_STOPPED
                       : !unfinished(&last->record)                   ? MIGRATE_FAILED
                       : again && is_lost(&last->record)              ? MIGRATE_LOST
                       : again && is_nothing_left_here(&last->record) ? MIGRATE_FAILED
                                                                      : MIGRATE_UNFINISHED;
    if (args->json)
        ibx_cli_print_summary(rc, status, last, err);
    if (rc)
        print_failure(last, err);
    else if (!args->json && !args->quiet)
        print_success(last, again);
    ibx_cli_flush(status);
    return status;
}

/* ------------------------------------------------------------ receive, send */

static int receive(const struct migrate_args *args, const struct ibx_migrate_observer *observer,
                   const struct ibx_record *record, struct ibx_migrate_status *last,
                   struct ibx_error *err)
{
    struct ibx_receive_options options = {
        .qmp = args->qmp,
        .listen = args->listen,
        .libvirt = args->libvirt,
        .folder = args->folder,
        .transport = args->options,
        .max_bandwidth = args->max_bandwidth,
        .give_up_s = args->give_up_s,
        .home = args->home,
        .minor = args->minor,
        .paused = args->paused,
        .stand_still = args->stand_still,
        .no_verify = args->no_verify,
        .observer = *observer,
    };
    return ibx_migrate_receive(&options, record, last, err);
}

static int send(const struct migrate_args *args, const struct ibx_migrate_observer *observer,
                const struct ibx_record *record, const struct ibx_record *returns,
                struct ibx_migrate_status *last, struct ibx_error *err)
{
    struct ibx_send_options options = {
        .qmp = args->qmp,
        .uri = args->uri,
        .libvirt = args->libvirt,
        .folder = args->folder,
        .transport = args->options,
        .links = args->links,
        .give_up_s = args->give_up_s,
        .quit = args->quit || ((returns || (record && ibx_journal_returns(record))) &&
                               !args->keep_warm && !args->borrow && !(record && record->borrow)),
        .borrow = args->keep_warm || (args->borrow && args->fill) ? IBX_BORROW_FILL
                  : args->borrow                                  ? IBX_BORROW_LAZY
                                                                  : IBX_BORROW_NOT,
        .returns = returns,
        .remove = args->remove,
        .no_verify = args->no_verify,
        .disks_differ = args->disks_differ,
        .stand_still = args->stand_still,
        .warm = args->warm || args->warm_rounds || args->warm_seconds,
        .warm_rounds = args->warm_rounds,
        .warm_seconds = args->warm_seconds,
        .observer = *observer,
    };
    return ibx_migrate_send(&options, record, last, err);
}

/* Runs one side to its end. `record`: of the migration to continue, or NULL. */
static int migrate(const struct migrate_args *args, bool source, const struct ibx_record *record,
                   const struct ibx_record *returns)
{
    struct migrate_progress *progress;
    struct ibx_migrate_observer observer;
    struct ibx_error err = {0};
    struct ibx_migrate_status last = {.source = source, .phase = IBX_PHASE_FAILED};
    /* Checks that need no QEMU come first. */
    int rc =
        ibx_options_check_key(&args->options, source ? args->uri : args->listen, !source, &err);
    if (!rc && !record && !returns) /* otherwise a lock protects it, or the monitor was lent */
        rc = ibx_cli_monitor_check(args, &err);
    if (!rc)
        rc = ibx_cli_progress_start(args, &progress, &observer, &err);
    if (!rc) {
        rc = source ? send(args, &observer, record, returns, &last, &err)
                    : receive(args, &observer, record, &last, &err);
        ibx_cli_progress_end(progress);
    }
    if (record && !last.record.state)
        last.record = *record;
    if (!source || last.record.state != IBX_JOURNAL_DONE)
        ibx_cli_forget_key(args->folder, &last.record);
    return finish(args, rc, record != NULL, &last, &err);
}

int ibx_cli_receive(const struct migrate_args *args)
{
    return migrate(args, false, NULL, NULL);
}

int ibx_cli_send(const struct migrate_args *args)
{
    return migrate(args, true, NULL, NULL);
}

int ibx_cli_send_home(const struct migrate_args *args, const struct ibx_record *came)
{
    return migrate(args, true, NULL, came);
}

/* ------------------------------------------------------------ recover */

static bool is_unfinished(const struct ibx_record *record)
{
    return !ibx_journal_over(record);
}

static void say_waits(void)
{
    char text[IBX_ERROR_MAX];
    snprintf(text, sizeof(text),
             "the watchdog of an ib-migrate that has ended still works on this migration, and is "
             "waited for: for %u s at most",
             LEFT_MS / 1000);
    ibx_cli_message(text);
}

int ibx_cli_await_left(const char *folder, struct ibx_record *record, bool *left,
                       struct ibx_error *err)
{
    const uint64_t say = ibx_deadline_in_ms(LEFT_SAY_MS), deadline = ibx_deadline_in_ms(LEFT_MS);
    bool said = false;
    int lock, rc;
    *left = false;
    while ((rc = ibx_journal_lock(folder, record, &lock, err)) == -EBUSY) {
        if (ibx_journal_worker(folder, record))
            return 0;
        if (ibx_now_ns() >= deadline)
            return rc;
        if (!said && ibx_now_ns() >= say) {
            say_waits();
            said = true;
        }
        poll(NULL, 0, LEFT_LOOK_MS);
    }
    if (!rc)
        close(lock);
    *left = !rc && !ibx_journal_reload(folder, record, NULL);
    return 0;
}

/* Finds the unfinished record of --qmp. A QEMU has two, one as destination and one as source, if
 * its VM was sent on before all pages had arrived, or returns from a borrowing. Then it is the
 * newer one on which no ib-migrate works. -EBUSY: a watchdog does, and the older one may be wrong.
 * A record that cannot be read may be newer, and is named. */
static int find_unfinished(const struct migrate_args *args, struct ibx_record *record,
                           struct ibx_error *err)
{
    struct ibx_record *all;
    struct ibx_error why = {0};
    size_t count;
    bool found = false;
    int rc = ibx_journal_find(args->folder, args->qmp, is_unfinished, record, err);
    if (rc || ibx_journal_list_readable(args->folder, &all, &count, &why, NULL))
        return rc;
    if (why.code)
        ibx_cli_message(why.message);
    for (size_t i = 0; !rc && !found && i < count; i++) {
        if (strcmp(args->qmp, all[i].qmp) != 0 || !is_unfinished(&all[i]))
            continue;
        rc = ibx_cli_await_left(args->folder, &all[i], &found, &why);
        found = found && is_unfinished(&all[i]);
        if (rc || found)
            *record = all[i];
    }
    free(all);
    if (rc)
        *err = why;
    return rc || found ? rc : ibx_journal_find(args->folder, args->qmp, is_unfinished, record, err);
}

/* Whether this is a source that is done; its destination may not know that yet. */
static bool is_done(const struct ibx_record *record)
{
    return record->source &&
           (record->state == IBX_JOURNAL_DONE || record->state == IBX_JOURNAL_ENDED);
}

/* Whether the VM stayed here, or was taken back. Its destination may not know that: if both tools
 * were killed, its QEMU may wait for a page to load the VM's state, and recover waits for it. Where
 * libvirt drives, only libvirt knows where the VM is. */
static bool is_here(const struct ibx_record *record)
{
    return record->source && (record->state == IBX_JOURNAL_ROLLED_BACK ||
                              (record->state == IBX_JOURNAL_KEPT && !record->libvirt));
}

static bool is_over_here(const struct ibx_record *record)
{
    return is_done(record) || is_here(record);
}

/* Ends the hold of QEMU's migration. A QEMU whose VM has returned is ended, even if the destination
 * has not confirmed that: the VM would run twice if somebody continued it here. */
static void let_go(const struct ibx_record *record, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (ibx_migrate_let_go(record, err) || !ibx_journal_has_returned(record) ||
        !ibx_migrate_quit(record, &why))
        return;
    ibx_error_set(err, why.code,
                  "QEMU (process %d) has the memory of the VM, which has returned, and did not "
                  "quit (%s): end it",
                  (int)record->pid, why.message);
}

static void not_confirmed(const struct ibx_record *record, const struct ibx_error *none, int rc,
                          struct ibx_error *err)
{
    const bool ended = record->state == IBX_JOURNAL_ENDED;
    ibx_error_prefix(err, rc,
                     "%s. %s. Its destination needs the confirmation only if ib-migrate status "
                     "reports %s there: then start ib-migrate recover there first",
                     none->message,
                     ibx_journal_has_returned(record) ? "The VM that left from there has returned"
                                                      : "The last migration from there is done "
                                                        "here",
                     ended ? "shut-down" : "complete");
}

/* Confirms a migration that is done here to its destination once more. `none`: the error that there
 * is no unfinished migration. */
static int confirm(const struct migrate_args *args, const struct ibx_record *record,
                   const struct ibx_error *none)
{
    struct ibx_error err = {0};
    struct ibx_migrate_status last = {.source = true, .record = *record, .phase = IBX_PHASE_DONE};
    char vm[PATH_MAX], text[PATH_MAX + 128];
    if (args->uri)
        snprintf(last.record.uri, sizeof(last.record.uri), "%s", args->uri);
    last.began_ns = ibx_now_ns();
    struct ibx_error held = {0};
    let_go(record, &held);
    int rc = ibx_migrate_confirm(&last.record, &args->options, &err);
    if (!rc && record->libvirt)
        ibx_journal_unlink_files(record);
    last.now_ns = ibx_now_ns();
    if (rc) {
        not_confirmed(record, none, rc, &err);
        if (held.code)
            ibx_cli_message(held.message);
        last.phase = IBX_PHASE_FAILED;
        memcpy(last.message, err.message, sizeof(last.message));
    } else if (held.code) {
        rc = held.code;
        err = held;
    } else if (args->quit && ibx_migrate_quit(record, &err)) {
        ibx_error_prefix(&err, err.code, "QEMU (process %d) did not quit", (int)record->pid);
    }
    if (err.code)
        ibx_cli_message(err.message);
    else
        ibx_cli_forget_key(args->folder, record);
    ibx_cli_vm_name(record, vm, sizeof(vm));
    snprintf(text, sizeof(text), "%s: %s, and the destination knows it", vm,
             ibx_journal_has_returned(record)     ? "has returned"
             : record->state == IBX_JOURNAL_ENDED ? "its guest has shut it down there"
                                                  : "migrated, complete");
    if (!rc && args->json)
        ibx_cli_print_json(json_pack("{s:o}", "say", ibx_json_text(text)));
    else if (!rc && !args->quiet)
        printf("%s\n", text); /* not a summary, since there are no figures */
    if (args->json)
        ibx_cli_print_summary(rc, rc ? MIGRATE_FAILED : MIGRATE_DONE, &last, &err);
    ibx_cli_flush(MIGRATE_DONE);
    return rc ? MIGRATE_FAILED : MIGRATE_DONE;
}

/* The last migration of this QEMU was rolled back, or ended before the VM could leave. Its
 * destination may not know that: an ib-migrate that recovers it waits there for pages. `err`: that
 * there is nothing to recover; `what`: why, unless the destination knows it. */
static int disown(const struct migrate_args *args, struct ibx_record *record, const char *what,
                  struct ibx_error *err)
{
    enum ibx_answer_state there;
    struct ibx_error why = {0};
    struct ibx_options options = args->options;
    if (args->uri)
        snprintf(record->uri, sizeof(record->uri), "%s", args->uri);
    ibx_cli_use_record(&options, record);
    int rc = ibx_migrate_disown_again(args->folder, record, &options, &there, &why);
    ibx_cli_say_disowned(record, there, rc, &why);
    if (ibx_cli_has_heard(rc, there)) {
        ibx_cli_forget_key(args->folder, record);
        return ibx_error_set(err, -ENOENT,
                             "there is nothing to recover: the VM %s here, and its destination "
                             "knows it",
                             record->state == IBX_JOURNAL_KEPT ? "stayed" : "was taken back");
    }
    return ibx_error_set(err, -ENOENT,
                         "%s (its destination could not be told, and needs to know that only if an "
                         "ib-migrate waits for pages there: %s)",
                         what, why.message);
}

/* The same for a record that says it already. */
static int disown_again(const struct migrate_args *args, struct ibx_record *record,
                        struct ibx_error *err)
{
    char what[IBX_ERROR_MAX];
    snprintf(what, sizeof(what),
             "there is no unfinished migration of the QEMU at %s: the last one %s", args->qmp,
             record->state == IBX_JOURNAL_KEPT ? "ended before the VM could leave"
                                               : "was rolled back");
    return disown(args, record, what, err);
}

/* If the borrowed VM of this record has returned, confirms that to home once more. True: nothing
 * else is left to do, because an ib-migrate works on this record. */
static bool confirm_return(const struct migrate_args *args, const struct ibx_record *came)
{
    static struct migrate_args with;
    struct ibx_record record;
    struct ibx_error none = {0}, busy = {0};
    int lock;
    if (came->source || !came->borrow ||
        ibx_journal_find_return(args->folder, came, is_done, &record))
        return false;
    with = *args;
    with.quit = true;
    ibx_error_set(&none, -ENOENT, "the VM has returned");
    ibx_cli_use_record(&with.options, &record);
    if (ibx_journal_lock(args->folder, came, &lock, &busy))
        return confirm(&with, &record, &none) == MIGRATE_DONE;
    close(lock);
    confirm(&with, &record, &none);
    return false;
}

/* If both the tool and its watchdog were killed, and the VM has never left: does what the watchdog
 * would have done. The error is that there is nothing to recover any more. */
static int stayed(const struct migrate_args *args, struct ibx_record *record, struct ibx_error *err)
{
    bool stays;
    int rc = args->listen ? 0 : ibx_migrate_stays(args->folder, record, &stays, err);
    if (rc || args->listen || !stays)
        return rc;
    return disown(args, record, "the migration never came to its commit, and the VM stayed here",
                  err);
}

/* If a rollback was killed when it had continued the VM: does what it would have done next. */
static int taken_back(const struct migrate_args *args, struct ibx_record *record,
                      struct ibx_error *err)
{
    bool back;
    int rc = ibx_migrate_was_taken_back(args->folder, record, &back, err);
    if (rc || !back)
        return rc;
    return disown(args, record,
                  ibx_journal_qemu_gone(record)
                      ? "a rollback may have continued the VM, which its record says now"
                      : "a rollback had continued the VM, which its record says now",
                  err);
}

int ibx_cli_recover(const struct migrate_args *given)
{
    static struct migrate_args args;
    struct ibx_record record = {.source = false};
    struct ibx_error err = {0};
    char copied[2 * PATH_MAX];
    args = *given;
    int rc = find_unfinished(&args, &record, &err);
    const bool source = rc && rc != -EBUSY ? args.uri != NULL : record.source;
    struct ibx_migrate_status none = {.phase = IBX_PHASE_FAILED, .source = source};
    if (rc == -EBUSY)
        none.record = record;
    if (!rc && confirm_return(&args, &record))
        return MIGRATE_DONE;
    if (rc == -ENOENT && !args.listen &&
        !ibx_journal_find(args.folder, args.qmp, is_over_here, &record, NULL)) {
        const bool back = is_here(&record);
        const bool keyless = ibx_cli_key_forgotten(args.folder, &record);
        if (back && !keyless) {
            rc = disown_again(&args, &record, &err);
        } else if (!keyless) {
            ibx_cli_use_record(&args.options, &record);
            return confirm(&args, &record, &err);
        }
        if (!back)
            rc = ibx_error_set(&err, -ENOENT,
                               "there is nothing to recover: the last migration of the QEMU at %s "
                               "is done, and the destination has confirmed it",
                               args.qmp);
    }
    if (!rc && ((rc = taken_back(&args, &record, &err)) || (rc = stayed(&args, &record, &err))))
        none.record = record;
    if (!rc && record.source && args.listen)
        rc = ibx_error_set(&err, -EINVAL,
                           "this is the source of the migration: it takes the destination's URI, "
                           "not --listen");
    if (!rc && !record.source && args.uri)
        rc =
            ibx_error_set(&err, -EINVAL,
                          "this is the destination of the migration: it takes --listen, not a URI");
    if (rc)
        return finish(&args, rc, true, &none, &err);
    if (ibx_cli_copied(&args, &record, copied, sizeof(copied)))
        ibx_cli_message(copied);
    ibx_cli_use_record(&args.options, &record);
    return migrate(&args, record.source, &record, NULL);
}

/* ------------------------------------------------------------ check */

static json_t *list_of(const char (*texts)[IBX_ERROR_MAX], size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, ibx_json_text(texts[i]));
    return list;
}

/* `err`: why not everything could be checked; code 0: everything was. */
static void print_check_json(const struct ibx_blockers *blockers, const struct ibx_error *err)
{
    const size_t kept = blockers->count < IBX_BLOCKERS_MAX ? blockers->count : IBX_BLOCKERS_MAX;
    const bool movable = !blockers->count && !err->code;
    ibx_cli_print_json(json_pack("{s:b, s:o, s:o, s:o, s:i}", "movable", movable, "refusals",
                                 list_of(blockers->reasons, kept), "notes",
                                 list_of(blockers->notes, blockers->note_count), "error",
                                 err->code ? ibx_json_text(err->message) : json_null(),
                                 "exit_status", movable ? MIGRATE_DONE : MIGRATE_FAILED));
    ibx_cli_result_told();
}

static void print_check(const struct migrate_args *args, const struct ibx_blockers *blockers,
                        const struct ibx_error *err)
{
    const size_t kept = blockers->count < IBX_BLOCKERS_MAX ? blockers->count : IBX_BLOCKERS_MAX;
    if (!blockers->count && !err->code)
        ibx_cli_print("the VM at %s can %s%s%s", args->qmp,
                      args->destination ? "receive" : "be migrated", args->uri ? " to " : "",
                      args->uri ? args->uri : "");
    for (size_t i = 0; i < kept; i++)
        printf("%s\n", blockers->reasons[i]);
    if (blockers->count > kept)
        printf("and %zu more\n", blockers->count - kept);
    for (size_t i = 0; i < blockers->note_count; i++)
        printf("note: %s\n", blockers->notes[i]);
}

/* A migration writes its record before it begins. */
static void check_folder(const struct migrate_args *args, struct ibx_blockers *blockers)
{
    struct ibx_error why = {0};
    if (ibx_journal_folder_check_writable(args->folder, &why))
        memcpy(blockers->reasons[blockers->count++], why.message, sizeof(why.message));
}

/* Prints the blockers that were found, even if not everything could be checked. */
int ibx_cli_check(const struct migrate_args *args)
{
    static struct ibx_blockers blockers;
    struct ibx_error err = {0};
    const struct ibx_check_options options = {.qmp = args->qmp,
                                              .source = !args->destination,
                                              .uri = args->uri,
                                              .transport = &args->options,
                                              .links = args->links,
                                              .disks_differ = args->disks_differ,
                                              .folder = args->folder};
    blockers.managed = args->libvirt;
    blockers.stands_still = args->stand_still;
    check_folder(args, &blockers);
    if (!ibx_options_check_key(&args->options, args->uri, args->destination, &err) &&
        !ibx_cli_monitor_check(args, &err))
        ibx_migrate_check(&options, &blockers, &err);
    if (args->json)
        print_check_json(&blockers, &err);
    else
        print_check(args, &blockers, &err);
    const int status = ibx_cli_flush(blockers.count ? MIGRATE_FAILED : MIGRATE_DONE);
    return err.code ? ibx_cli_fail(err.message) : status;
}
