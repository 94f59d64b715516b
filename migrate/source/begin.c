/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/return_path.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define ASK_AGAIN_MS 20    /* between two questions to a destination that is not there yet */
#define WAIT_LOOK_MS 500   /* between two checks whether libvirt waits for it */
#define WAIT_MS      10000 /* so long libvirt may wait for a destination */

/* ---------------------------------------------------------------- control socket */

static void on_status(void *context, struct ibx_migrate_status *status)
{
    struct source *s = context;
    *status = s->status;
    status->now_ns = ibx_now_ns();
}

static int on_cancel(void *context, struct ibx_error *err)
{
    struct source *s = context;
    if (source_committed(s) || source_over(s))
        return ibx_error_set(err, -EBUSY,
                             "the VM is at %s already: its migration cannot be cancelled; to have "
                             "it here again, migrate it back, or a borrowed VM by ib-migrate "
                             "return there",
                             s->status.record.uri);
    s->interrupts++;
    return 0;
}

static int on_bandwidth(void *context, uint64_t bytes_per_second, struct ibx_error *err)
{
    (void)context, (void)bytes_per_second;
    return ibx_error_set(err, -EOPNOTSUPP,
                         "set the bandwidth on the destination, which fetches the pages");
}

static int on_lend(void *context, struct ibx_error *err)
{
    (void)context;
    return ibx_error_set(err, -EINVAL, "no borrowed VM runs here");
}

static const struct ibx_control_socket_ops socket_ops = {on_status, on_cancel, on_bandwidth,
                                                         on_lend, on_lend};

/* ---------------------------------------------------------------- what is checked */

static int open_record(struct source *s, struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = ibx_journal_lock(s->options->folder, &s->status.record, &s->lock_fd, err);
    if (rc)
        return rc;
    ibx_journal_path(s->options->folder, &s->status.record, ".sock", path, sizeof(path));
    rc = ibx_migration_signals_open(&s->signals, err);
    return rc ? rc
              : ibx_control_socket_open(path, &socket_ops, s,
                                        ibx_journal_other_folder(&s->status.record), &s->socket,
                                        err);
}

static int check_uri(const struct source *s, struct ibx_error *err)
{
    struct ibx_options wishes = s->transport;
    struct ibx_uri uri;
    int rc = ibx_uri_parse(s->options->uri, &uri, err);
    return rc ? rc : ibx_uri_options(&uri, &wishes, err);
}

static int search(void *context, pid_t *qemu, struct ibx_error *err)
{
    struct source *s = context;
    const int rc = ibx_source_vm_find(&s->vm, s->options->qmp, !source_managed(&s->vm), err);
    *qemu = s->vm.ram.pid;
    return rc;
}

static void let_go(void *context)
{
    struct source *s = context;
    ibx_source_vm_lose(&s->vm);
    ibx_guest_ram_fini(&s->vm.ram);
}

/* Finds the VM, and makes sure that no other tool works on it. */
static int find_vm(struct source *s, struct ibx_error *err)
{
    const struct ibx_vm_search how = {search, let_go, s, s->options->qmp};
    struct ibx_error claimed;
    int rc = ibx_vm_find_and_claim(&how, &s->vm.claim, &claimed, err);
    /* Before other blockers, because their remedies would end a VM that has migrated. */
    if (!rc)
        rc = ibx_migration_check_unfinished(s->options->folder, &s->vm.ram, true,
                                            s->options->returns != NULL, err);
    return rc || !claimed.code ? rc : ibx_error_set(err, claimed.code, "%s", claimed.message);
}

/* Finds the VM, and looks for all that prevents its migration. */
static int check_vm(struct source *s, struct ibx_error *err)
{
    struct ibx_blockers blockers = {.stands_still = s->options->stand_still,
                                    .returns = s->options->returns != NULL};
    const struct ibx_guest_ram *ram = &s->vm.ram;
    int rc = find_vm(s, err);
    if (!rc)
        rc = ibx_preflight_qemu(s->vm.qmp, ram, IBX_MIGRATE_SOURCE, &blockers,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        ibx_preflight_host(ram, IBX_MIGRATE_SOURCE, &blockers);
    if (!rc && blockers.count)
        rc = ibx_migration_refused("this VM cannot be migrated", &blockers, err);
    return rc ? rc : ibx_page_map_init_ram(&s->vm.map, ram, err);
}

/* The record's first entries: nothing of the migration has been done yet. */
static int begin_record(struct source *s, struct ibx_error *err)
{
    struct ibx_record *record = &s->status.record;
    const struct ibx_guest_ram *ram = &s->vm.ram;
    if (getrandom(record->id, sizeof(record->id), 0) != sizeof(record->id))
        return ibx_error_set(err, -EIO, "there are no random numbers for the migration's id");
    record->source = true;
    record->state = IBX_JOURNAL_HERE;
    ibx_journal_note_ram(record, ram);
    record->libvirt = source_managed(&s->vm);
    record->was_running = ibx_vm_lives(ram->status);
    return ibx_migration_describe(record, ram, s->options->qmp, s->options->uri, &s->transport,
                                  err);
}

/* Checks all that can be checked before anything is changed. */
static int check(struct source *s, struct ibx_error *err)
{
    struct ibx_record *record = &s->status.record;
    const struct ibx_guest_ram *ram = &s->vm.ram;
    int rc = check_uri(s, err);
    record->borrow = (uint8_t)s->options->borrow;
    if (s->options->returns)
        memcpy(record->base, s->options->returns->id, sizeof(record->base));
    if (!rc)
        rc = check_vm(s, err);
    if (!rc)
        rc = begin_record(s, err);
    if (rc)
        return rc;
    if (source_managed(&s->vm) && strcmp(ram->status, "running") != 0)
        return ibx_error_set(
            err, -EPERM,
            "the VM is \"%s\": a VM that does not run gains nothing from post-copy, "
            "let virsh migrate move it without --migrateuri",
            ram->status);
    if (source_managed(&s->vm)) /* libvirt undoes what it did */
        return 0;
    s->vm.undo.was_running = record->was_running;
    ibx_source_tell_of_stop(s, s->vm.ram.status);
    rc = source_returns(s) ? ibx_source_return_open(s, err) : 0;
    if (rc)
        return rc;
    rc = ibx_source_stream_make(&s->stream, &record->hold, err);
    record->stream = rc ? 0 : ibx_return_path_name(s->stream.theirs);
    s->vm.undo.hold = record->hold;
    s->vm.undo.stream = record->stream;
    s->vm.paused = !record->was_running;
    return rc;
}

/* ---------------------------------------------------------------- asking */

/* How long libvirt has waited for a destination that is not there. */
struct managed_wait {
    uint64_t since_ns, look_ns; /* since when, or 0; when to ask again */
};

struct signal_watch {
    struct migration_signals *signals;
    struct ibx_watchdog *watchdog; /* NULL: it has something to undo, and says so */
    int over;
    const struct ibx_migrate_observer *observer;
    struct ibx_migrate_status last; /* a copy of the status */
    char socket[PATH_MAX];          /* the control socket */
};

/* Ends the process at a signal: nothing has been changed, and the watchdog records that the VM
 * stays here. */
static void *leave_on_signal(void *argument)
{
    struct signal_watch *watch = argument;
    struct pollfd fds[2] = {{.fd = watch->signals->fd, .events = POLLIN},
                            {.fd = watch->over, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    if (!fds[0].revents || fds[1].revents)
        return NULL;
    ibx_migration_signals_take(watch->signals,
                               true); /* a further one may end this thread's output */
    watch->last.phase = IBX_PHASE_FAILED;
    watch->last.now_ns = ibx_now_ns();
    if (watch->observer->leaving)
        watch->observer->leaving(watch->observer->context, &watch->last,
                                 "cancelled before the destination answered: the VM stays here");
    if (watch->watchdog)
        ibx_watchdog_interrupted(watch->watchdog);
    unlink(watch->socket);
    _exit(EXIT_FAILURE);
}

/* Sends HELLO and takes the ANSWER. Waits timeout_ms for a host that does not answer, or until a
 * signal, which ends the process. */
static int ask(struct source *s, struct ibx_error *err)
{
    struct signal_watch watch = {.signals = &s->signals,
                                 .watchdog = source_managed(&s->vm) ? NULL : &s->vm.watchdog,
                                 .over = eventfd(0, EFD_CLOEXEC),
                                 .observer = &s->options->observer,
                                 .last = s->status};
    pthread_t thread;
    ibx_journal_path(s->options->folder, &s->status.record, ".sock", watch.socket,
                     sizeof(watch.socket));
    bool watched = watch.over >= 0 && !pthread_create(&thread, NULL, leave_on_signal, &watch);
    int rc =
        ibx_source_link_ask(&s->link, s->status.record.peer, sizeof(s->status.record.peer), err);
    if (watched) {
        eventfd_write(watch.over, 1);
        pthread_join(thread, NULL);
    }
    if (watch.over >= 0)
        close(watch.over);
    for (unsigned i = 0; !rc && i < s->link.answer.note_count; i++)
        ibx_migration_notify(&s->options->observer, "%s", s->link.answer.notes[i]);
    if (!rc) {
        ibx_migration_note_key(&s->status.record, s->link.control.conn);
        ibx_migration_warn_plain(&s->options->observer, &s->transport, s->link.control.conn);
    }
    s->status.record.verify = !rc && s->link.answer.verify;
    if (s->status.record.verify)
        ibx_conn_secret(s->link.control.conn, IBX_MIGRATION_VERIFY, s->status.record.verify_key);
    return rc;
}

/* -ETIMEDOUT: libvirt has waited at the gate for too long, with virsh and whoever else wants to use
 * the domain, because no destination answers. QEMU is asked from time to time. */
static int check_wait(struct source *s, struct managed_wait *wait, struct ibx_error *err)
{
    bool waits;
    const uint64_t now = ibx_now_ns();
    if (now < wait->look_ns)
        return 0;
    wait->look_ns = now + WAIT_LOOK_MS * IBX_NS_PER_MS;
    int rc = ibx_libvirt_waits(s->vm.qmp, &waits, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    wait->since_ns = !waits ? 0 : wait->since_ns ? wait->since_ns : now;
    if (!waits || now - wait->since_ns < WAIT_MS * IBX_NS_PER_MS)
        return 0;
    return ibx_error_set(err, -ETIMEDOUT,
                         "libvirt has begun to migrate the VM, and no ib-migrate receive --libvirt "
                         "answers at %s: start it there before virsh migrate",
                         s->options->uri);
}

/* A destination that waits for libvirt listens from the moment when libvirt has started its QEMU:
 * by then libvirt keeps others from saving this VM. */
static int ask_managed(struct source *s, struct ibx_error *err)
{
    struct managed_wait wait = {0};
    struct pollfd fds[2 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    int rc;
    while ((rc = ask(s, err)) == -ECONNREFUSED) {
        struct ibx_error trouble = {0};
        fds[0] = (struct pollfd){.fd = s->signals.fd, .events = POLLIN};
        const unsigned n = 1 + ibx_control_socket_poll_fds(s->socket, fds + 1);
        if (poll(fds, n, ASK_AGAIN_MS) > 0)
            ibx_control_socket_serve(s->socket);
        rc = ibx_source_check_interrupts(s, &trouble);
        if (!rc)
            rc = ibx_qmp_pump(s->vm.qmp, &trouble);
        for (json_t *event; (event = ibx_qmp_event_next(s->vm.qmp));) {
            if (ibx_vm_event_is(event, "STOP", NULL) || ibx_vm_event_is(event, "RESUME", NULL))
                ibx_source_vm_on_event(&s->vm, false, event);
            json_decref(event); /* other events do not matter yet */
        }
        if (!rc)
            rc = check_wait(s, &wait, &trouble);
        if (rc)
            return ibx_error_set(err, rc, "%s", trouble.message);
        err->message[0] = 0;
    }
    return rc;
}

/* Whether QEMU, which is in another migration, has taken none of the settings. */
static bool are_unchanged(const struct source *s, const struct ibx_settings *settings)
{
    struct ibx_settings now;
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    if (source_managed(&s->vm) || ibx_settings_plan(s->vm.qmp, &now, deadline, NULL))
        return false;
    const bool same = !ibx_return_path_plan(s->vm.qmp, &now, deadline, NULL) &&
                      json_equal(now.before, settings->before);
    ibx_settings_fini(&now);
    return same;
}

int ibx_source_set_settings(struct source *s, struct ibx_error *err)
{
    struct ibx_settings settings;
    const enum ibx_vm_migration kind =
        source_managed(&s->vm) ? IBX_VM_MIGRATION_LIBVIRT : IBX_VM_MIGRATION_HELD;
    int rc = ibx_vm_settings(s->vm.qmp, kind, s->options->folder, &s->status.record, &settings,
                             &s->options->observer, err);
    if (rc)
        return rc;
    s->vm.undo.before = json_incref(settings.before);
    rc = ibx_watchdog_settings(&s->vm.watchdog, settings.before, err);
    if (!source_managed(&s->vm)) /* ibx_source_stream_open() does that */
        ibx_settings_set_aside_ram(&settings);
    if (!rc)
        rc = ibx_settings_set(s->vm.qmp, &settings, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc == -EREMOTEIO &&
        (ibx_source_libvirt_is_early(s, &rc, err) || are_unchanged(s, &settings))) {
        json_decref(s->vm.undo.before);
        s->vm.undo.before = NULL;
    }
    if (!rc && !source_managed(&s->vm))
        rc = ibx_return_path_describe(s->vm.qmp, settings.before,
                                      ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    ibx_settings_fini(&settings);
    return rc;
}

static int start_watchdog(struct source *s, struct ibx_error *err)
{
    const struct ibx_watchdog_terms terms = {.folder = s->options->folder,
                                             .record = &s->status.record,
                                             .transport = &s->options->transport,
                                             .vm = &s->vm.undo,
                                             .qmp = s->vm.qmp,
                                             .lock_fd = s->lock_fd,
                                             .claim_fd = s->vm.claim};
    return ibx_watchdog_start(&s->vm.watchdog, &terms, err);
}

static int prepare(struct source *s, struct ibx_error *err)
{
    ibx_journal_prune_old(s->options->folder, s->status.record.qmp);
    int rc = open_record(s, err);
    if (!rc) /* before the record: a tool that is killed in between would leave it */
        rc = start_watchdog(s, err);
    if (!rc)
        rc = ibx_migration_record(s->options->folder, &s->status.record, IBX_JOURNAL_HERE, err);
    ibx_migration_stop_at("source", "recorded");
    if (!rc)
        rc = ibx_source_stop_map_make(s, err);
    if (!rc)
        rc = ibx_source_return_await_compared(s, err);
    if (!rc) {
        ibx_migration_stop_at("source", "asking");
        rc = source_managed(&s->vm) ? ibx_gate_shut(&s->gate, s->vm.ram.pid, err) : 0;
    }
    if (!rc)
        rc = source_managed(&s->vm) ? ask_managed(s, err) : ask(s, err);
    if (!rc && source_returns(s))
        rc = ibx_source_return_check_fabric(s, err);
    if (!rc && ibx_page_server_keeps(s->link.pages))
        rc = ibx_preflight_gives_back(s->vm.qmp, ibx_page_server_path(s->link.pages)->provider,
                                      ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        rc = ibx_source_find_map(s, err);
    if (!rc)
        rc = ibx_source_link_expose(&s->link, err);
    return rc ? rc : ibx_source_move(s, SOURCE_EXPOSING, err);
}

/* ---------------------------------------------------------------- beginning and end */

static struct source *source_create(const struct ibx_send_options *options, struct ibx_error *err)
{
    struct source *s = malloc(sizeof(*s));
    if (!s) {
        ibx_error_set(err, -ENOMEM, "no memory for a migration");
        return NULL;
    }
    *s = (struct source){.options = options, .lock_fd = -1};
    s->transport = ibx_migration_options(&options->transport, options->uri);
    s->signals.fd = -1;
    s->reporter.observer = &options->observer;
    s->status.source = true;
    s->status.began_ns = ibx_now_ns();
    ibx_source_vm_init(&s->vm);
    ibx_source_vm_drive(&s->vm, options->libvirt != NULL);
    s->vm.undo.libvirt = options->libvirt;
    ibx_gate_init(&s->gate, options->libvirt);
    ibx_source_stream_init(&s->stream);
    ibx_source_protection_init(s);
    ibx_source_link_init(&s->link, &s->status.record, &s->transport, &s->vm, options->links,
                         !options->no_verify || options->borrow);
    s->link.disks_differ = options->disks_differ;
    s->link.warm = options->warm || options->returns;
    s->link.borrow = (uint8_t)options->borrow;
    ibx_source_warm_init(&s->warm);
    return s;
}

static void quit_qemu(struct source *s)
{
    struct ibx_error err = {0};
    if (ibx_vm_quit(s->vm.qmp, &err))
        ibx_migration_notify(&s->options->observer, "QEMU (process %d) did not quit: %s",
                             (int)s->vm.ram.pid, err.message);
}

/* Frees the source and all that it has. The journal is unlocked last, because that admits other
 * commands. */
static void source_destroy(struct source *s)
{
    ibx_source_warm_end(s);
    ibx_source_return_fini(s);
    ibx_source_stop_map_fini(s);
    ibx_source_stream_close(&s->stream);
    ibx_write_protection_leave(&s->protection);
    ibx_gate_close(&s->gate);
    if (source_managed(&s->vm) && (s->state.now == SOURCE_DONE || s->state.now == SOURCE_KEPT))
        ibx_journal_unlink_files(&s->status.record);
    ibx_control_socket_close(s->socket);
    ibx_migration_signals_take(&s->signals, true); /* too late: the migration has ended */
    ibx_migration_signals_close(&s->signals);
    ibx_source_vm_fini(&s->vm);
    if (s->state.now == SOURCE_STRANDED)
        ibx_watchdog_leave(&s->vm.watchdog);
    ibx_watchdog_release(&s->vm.watchdog);
    ibx_journal_unlock(s->options->folder, &s->status.record, s->lock_fd);
    free(s);
}

/* Ends the migration, which has succeeded or failed with rc: settles what becomes of the VM and its
 * QEMU here, reports that, and frees the source. */
static int end_migration(struct source *s, int rc, struct ibx_migrate_status *last,
                         struct ibx_error *err)
{
    if (s->state.now == SOURCE_DONE) {
        ibx_source_link_close(&s->link); /* the destination waits for that */
        ibx_source_let_go(s);
        rc = rc ? rc : ibx_source_verdict(s, err);
    }
    ibx_source_stop_at_last(s);
    const bool returned = ibx_journal_has_returned(&s->status.record);
    if (!rc && (s->options->quit || returned) && s->vm.qmp)
        quit_qemu(s);
    else
        ibx_source_settle_at_last(s);
    const enum ibx_journal_state at = s->status.record.state;
    if (!rc && (at == IBX_JOURNAL_DONE || at == IBX_JOURNAL_ENDED))
        ibx_source_libvirt_tell_left(s);
    if (s->state.now == SOURCE_KEPT)
        ibx_source_libvirt_tell_paused(s);
    if (!rc && !returned) /* otherwise the files are those of the VM, which runs here */
        ibx_source_remove_files(s);
    if (rc)
        memcpy(s->status.message, err->message, sizeof(s->status.message));
    s->status.phase = rc ? IBX_PHASE_FAILED : ibx_source_phase(s);
    ibx_source_link_close(&s->link);
    ibx_source_link_retired(&s->link);
    ibx_verifier_close(s->verifier);
    ibx_source_update(s);
    ibx_migration_report(&s->reporter, &s->status, true);
    *last = s->status;
    source_destroy(s);
    return rc;
}

static int send_new(struct source *s, struct ibx_error *err)
{
    int rc = ibx_source_begin(s, SOURCE_ASKING);
    if (!rc)
        rc = check(s, err);
    if (rc)
        return rc;
    rc = prepare(s, err);
    return rc ? ibx_source_keep(s, rc, err) : ibx_source_run(s, err);
}

/* ---------------------------------------------------------------- recover */

/* QEMU's migration has to be held open still, or to have been ended by somebody ("postmigrate"). */
static int check_held(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    const char *status = s->vm.ram.status;
    if (source_managed(&s->vm) && !strcmp(status, "running"))
        return ibx_error_set(err, -EBUSY,
                             "libvirt has continued the VM here, in QEMU (process %d): its "
                             "migration to %s failed there; ib-migrate rollback ends what is left "
                             "of it",
                             (int)record->pid, record->peer);
    int rc = ibx_source_stream_take(&s->stream, record->pid, record->hold, err);
    const bool held = !rc && !strcmp(status, "finish-migrate");
    if (rc && rc != -ENOENT)
        return rc;
    if (!held && !strcmp(status, "finish-migrate"))
        return ibx_error_set(err, -EBUSY,
                             "QEMU (process %d) is in a migration of this VM that is not this one: "
                             "end that one, or wait for its end; then ib-migrate rollback ends "
                             "this one",
                             (int)record->pid);
    if (!held && strcmp(status, "postmigrate") != 0)
        return ibx_error_set(
            err, -EBUSY,
            "the VM is \"%s\" in this QEMU (process %d), where one that has migrated is "
            "\"finish-migrate\" or \"postmigrate\": the migration never came to its commit, or the "
            "VM was taken back since; ib-migrate rollback ends the migration",
            status, (int)record->pid);
    if (!held && !source_managed(&s->vm))
        ibx_migration_notify(&s->options->observer,
                             "QEMU (process %d) calls its migration complete: it does not refuse "
                             "to continue the VM here, which nobody must do while it runs at %s",
                             (int)record->pid, record->uri);
    return 0;
}

static int find_pages(struct source *s, struct ibx_error *err)
{
    int rc = ibx_page_map_init_ram(&s->vm.map, &s->vm.ram, err);
    if (!rc)
        rc = ibx_source_stop_map_recall(s, err);
    return rc == -ENOENT ? ibx_source_find_map(s, err) : rc;
}

/* Checks that the VM of a migration that came to its commit is in the QEMU of the record, and has
 * not run there since; or that this QEMU has ended, and its files are there. */
static int check_recovered(struct source *s, struct ibx_error *err)
{
    const struct ibx_record *record = &s->status.record;
    if (ibx_journal_qemu_gone(record)) {
        int rc = ibx_source_vm_of_files(&s->vm, record, &s->options->observer, err);
        return rc ? rc : find_pages(s, err);
    }
    int rc = ibx_vm_claim_when_free(record->pid, &s->vm.claim, err); /* a copy of the record, too */
    if (!rc)
        rc = ibx_source_protection_take(s, err);
    if (rc == -EAGAIN) {
        ibx_migration_stop_at("source", "looked");
        rc = ibx_source_protection_reach(s, err);
    }
    if (rc != -EAGAIN)
        return rc ? rc : find_pages(s, err);
    rc = ibx_source_vm_of_record(&s->vm, s->options->qmp, record, err);
    if (rc) {
        rc = ibx_source_protection_blamed(s, rc, err);
        return rc ? rc : find_pages(s, err);
    }
    ibx_qmp_remember(s->vm.qmp, false);
    if (s->vm.ram.pid != record->pid)
        return ibx_error_set(err, -ESRCH,
                             "the monitor %s belongs to process %d, and this VM's pages are in the "
                             "QEMU of process %d: restore that QEMU's monitor",
                             s->options->qmp, (int)s->vm.ram.pid, (int)record->pid);
    rc = check_held(s, err);
    if (!rc)
        rc = ibx_source_protection_check_past(s, err);
    return rc ? rc : find_pages(s, err);
}

static int recover(struct source *s, const struct ibx_record *record, struct ibx_error *err)
{
    const struct ibx_send_options *options = s->options;
    s->status.record = *record;
    s->lost_ns = s->still_ns = s->heard_ns = ibx_now_ns();
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = open_record(s, err)) == -EBUSY && ibx_now_ns() < deadline)
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    /* The record may have changed while this tool waited for the lock. */
    if (!rc)
        rc = ibx_migration_reload(options->folder, &s->status.record, err);
    if (options->no_verify)
        s->status.record.verify = false;
    ibx_source_vm_drive(&s->vm, s->status.record.libvirt);
    if (!rc && options->uri)
        ibx_migration_note_uri(&s->status.record, options->uri);
    if (!rc)
        rc = ibx_source_begin(s, s->status.record.state == IBX_JOURNAL_MOVED ? SOURCE_SERVING
                                                                             : SOURCE_COMMITTED);
    if (!rc && ibx_journal_without_ram(&s->status.record))
        rc = ibx_source_move(s, SOURCE_LEFT, err);
    if (!rc && s->state.now == SOURCE_LEFT)
        return ibx_source_libvirt_say_saved(s, err);
    if (!rc && ibx_journal_lost_there(&s->status.record))
        return ibx_source_recover_lost(s, err);
    if (!rc && s->status.record.state == IBX_JOURNAL_BROKEN)
        return ibx_source_recover_broken(s, err);
    if (!rc)
        rc = check_recovered(s, err);
    s->vm.undo.touched = s->vm.ran_there = true;
    s->vm.undo.was_running = s->status.record.was_running && !source_managed(&s->vm);
    s->vm.undo.before = json_loads(s->status.record.settings, 0, NULL);
    s->vm.undo.hold = s->status.record.hold;
    s->vm.undo.stream = s->status.record.stream;
    return rc ? rc : ibx_source_run(s, err);
}

int ibx_migrate_send(const struct ibx_send_options *options, const struct ibx_record *record,
                     struct ibx_migrate_status *last, struct ibx_error *err)
{
    struct source *s = source_create(options, err);
    if (!s)
        return -ENOMEM;
    return end_migration(s, record ? recover(s, record, err) : send_new(s, err), last, err);
}
