/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The beginning and the end of the source's side: what is looked at before, and opened. */
#include "migrate/source/source.h"

#include "common/clock.h"

#include <errno.h>
#include <openssl/rand.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the socket */

static void talk_status(void *context, struct ibx_migrate_status *status)
{
    struct source *s = context;
    *status = s->status;
    status->now_ns = ibx_now_ns();
}

static int talk_cancel(void *context, struct ibx_error *err)
{
    struct source *s = context;
    if (source_committed(s) || s->state == SOURCE_DONE || s->state == SOURCE_KEPT)
        return ibx_error_set(err, -EBUSY, "the VM runs at %s already: it cannot be cancelled",
                             s->status.record.uri);
    s->cancelled = true;
    return 0;
}

static int talk_bandwidth(void *context, uint64_t bytes_per_second, struct ibx_error *err)
{
    (void)context, (void)bytes_per_second;
    return ibx_error_set(err, -EOPNOTSUPP,
                         "the destination fetches the pages: set the bandwidth "
                         "there");
}

static const struct ibx_control_socket_ops talk_ops = {talk_status, talk_cancel, talk_bandwidth};

static int find_vm(struct source *s, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = ibx_qmp_connect(s->options->qmp, deadline, &s->qmp, err);
    if (rc)
        return rc;
    rc = ibx_guest_ram_find(s->qmp, 0, true, &s->ram, deadline, err);
    if (rc == -EACCES || rc == -EROFS)
        rc = ibx_guest_ram_find(s->qmp, 0, false, &s->ram, deadline, err);
    return rc;
}

/* Only of RAM that can be moved at all. */
static int measure(struct source *s, struct ibx_error *err)
{
    struct ibx_migrate_hello hello = {0};
    ibx_migrate_hello_describe(&hello, &s->ram);
    s->status.ram_bytes = s->ram.bytes;
    return ibx_page_map_init(&s->map, hello.blocks, hello.block_count, err);
}

static int open_record(struct source *s, struct ibx_error *err)
{
    char path[PATH_MAX];
    int rc = ibx_journal_lock(s->options->folder, &s->status.record, &s->lock_fd, err);
    if (rc)
        return rc;
    ibx_journal_path(s->options->folder, &s->status.record, ".sock", path, sizeof(path));
    rc = ibx_migration_signals_open(&s->signals, err);
    return rc ? rc : ibx_control_socket_open(path, &talk_ops, s, &s->talk, err);
}

/* Everything that can be found wrong without touching anything. */
static int look(struct source *s, struct ibx_error *err)
{
    struct ibx_blockers refusals = {0};
    struct ibx_journal *record = &s->status.record;
    struct ibx_options wishes = s->transport;
    struct ibx_uri uri;
    int rc = ibx_uri_parse(s->options->uri, &uri, err);
    if (!rc)
        rc = ibx_uri_options(&uri, &wishes, err);
    if (!rc)
        rc = find_vm(s, err);
    /* First, as what else is wrong with a VM that has moved has remedies that would end it. */
    if (!rc)
        rc =
            ibx_migration_check_unfinished(s->options->folder, &s->ram, s->options->qmp, true, err);
    if (!rc)
        rc = ibx_preflight_side(s->qmp, &s->ram, IBX_MIGRATE_SOURCE, &refusals,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && refusals.count)
        rc = ibx_migration_refused("this VM cannot be moved", &refusals, err);
    if (!rc)
        rc = measure(s, err);
    if (rc)
        return rc;
    if (RAND_bytes(record->id, sizeof(record->id)) != 1)
        return ibx_error_set(err, -EIO, "no random numbers for an id");
    record->source = true;
    record->epoch = 1;
    record->uffd = -1;
    record->state = IBX_JOURNAL_HERE;
    ibx_migration_describe(record, &s->ram, s->options->qmp, s->options->uri, &s->transport);
    s->vm.was_running = record->was_running = !strcmp(s->ram.status, "running");
    return 0;
}

/* ------------------------------------------------------------------------ asking */

struct vigil {
    int signals, over;
};

/* Nothing has been touched, and the guardian says that the VM goes on. */
static void *leave_on_signal(void *argument)
{
    const struct vigil *vigil = argument;
    struct pollfd fds[2] = {{.fd = vigil->signals, .events = POLLIN},
                            {.fd = vigil->over, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    if (fds[0].revents && !fds[1].revents)
        _exit(EXIT_FAILURE);
    return NULL;
}

/* A silent host is waited for as long as timeout_ms says, but not by who interrupts. */
static int ask(struct source *s, struct ibx_error *err)
{
    struct vigil vigil = {.signals = s->signals.fd, .over = eventfd(0, EFD_CLOEXEC)};
    pthread_t thread;
    bool kept = vigil.over >= 0 && !pthread_create(&thread, NULL, leave_on_signal, &vigil);
    int rc = ibx_source_link_ask(s, err);
    if (kept) {
        eventfd_write(vigil.over, 1);
        pthread_join(thread, NULL);
    }
    if (vigil.over >= 0)
        close(vigil.over);
    return rc;
}

static int prepare(struct source *s, struct ibx_error *err)
{
    ibx_journal_prune_old(s->options->folder);
    int rc = open_record(s, err);
    if (!rc)
        rc = ibx_source_record(s, IBX_JOURNAL_HERE, err);
    if (!rc)
        rc = ibx_watchdog_start(&s->guard, s->options->folder, &s->status.record, &s->vm,
                                s->lock_fd, err);
    if (!rc) {
        ibx_migration_stop_at("source", "asking");
        rc = ask(s, err);
    }
    if (!rc)
        rc = ibx_capabilities_set(s->qmp, IBX_MIGRATE_SOURCE, &s->vm.before,
                                  ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        rc = ibx_watchdog_capabilities(&s->guard, s->vm.before, err);
    if (!rc)
        rc = ibx_source_find_map(s, err);
    if (!rc)
        rc = ibx_source_link_expose(s, err);
    if (!rc)
        ibx_source_move(s, SOURCE_EXPOSING);
    return rc;
}

static void source_init(struct source *s, const struct ibx_send_options *options)
{
    *s = (struct source){.options = options, .stream = -1, .lock_fd = -1};
    s->transport = ibx_migration_options(&options->transport, options->uri);
    s->guard.fd = s->signals.fd = -1;
    s->reporter.observer = &options->observer;
    s->status.source = true;
    s->status.began_ns = ibx_now_ns();
    ibx_channel_init(&s->control, NULL);
}

static void quit_qemu(struct source *s)
{
    struct ibx_error err = {0};
    if (ibx_vm_quit(s->qmp, &err))
        ibx_migration_notify(&s->options->observer, "QEMU (process %d) did not quit: %s",
                             (int)s->ram.pid, err.message);
}

static int finish(struct source *s, int rc, struct ibx_migrate_status *last, struct ibx_error *err)
{
    if (!rc && s->options->quit && s->qmp)
        quit_qemu(s);
    if (rc && err)
        memcpy(s->status.message, err->message, sizeof(s->status.message));
    s->status.phase = rc ? IBX_PHASE_FAILED : IBX_PHASE_DONE;
    ibx_source_link_close(s);
    ibx_migration_report(&s->reporter, &s->status, true);
    if (last)
        *last = s->status;
    if (s->stream >= 0)
        close(s->stream);
    if (s->talk)
        ibx_control_socket_close(s->talk);
    ibx_migration_signals_close(&s->signals);
    json_decref(s->vm.before);
    ibx_page_map_fini(&s->map);
    ibx_guest_ram_fini(&s->ram);
    ibx_qmp_close(s->qmp);
    if (s->unkept)
        ibx_watchdog_leave(&s->guard);
    ibx_watchdog_release(&s->guard);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    free(s);
    return rc;
}

int ibx_migrate_send(const struct ibx_send_options *options, struct ibx_migrate_status *last,
                     struct ibx_error *err)
{
    struct ibx_error local = {0};
    struct source *s = malloc(sizeof(*s));
    err = err ? err : &local;
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a move");
    source_init(s, options);
    int rc = look(s, err);
    if (rc)
        return finish(s, rc, last, err);
    rc = prepare(s, err);
    rc = rc ? ibx_source_keep(s, rc, err) : ibx_source_run(s, err);
    return finish(s, rc, last, err);
}

/* What may have been read before the lock was had, by a tool that waited for the guardian. And the
 * VM of a move that came to its commit has not run here since. */
static int look_again(struct source *s, struct ibx_error *err)
{
    struct ibx_journal *record = &s->status.record;
    int rc = ibx_migration_reload(s->options->folder, record, err);
    if (rc)
        return rc;
    if (s->options->uri)
        snprintf(record->uri, sizeof(record->uri), "%s", s->options->uri);
    s->state = record->state == IBX_JOURNAL_MOVED ? SOURCE_SERVING : SOURCE_COMMITTED;
    const bool same = ibx_process_started(record->pid) == record->pid_started;
    rc = same ? find_vm(s, err) : 0;
    if (rc)
        return rc;
    if (!same || s->ram.pid != record->pid)
        return ibx_error_set(err, -ESRCH,
                             "the QEMU (process %d) that holds this VM's pages has ended: what the "
                             "destination has not fetched is lost",
                             (int)record->pid);
    if (strcmp(s->ram.status, "postmigrate"))
        return ibx_error_set(err, -EBUSY,
                             "the VM is \"%s\" in this QEMU (process %d), where one that was moved "
                             "is \"postmigrate\": the move never came to its commit, or the VM was "
                             "taken back since; ib-migrate rollback ends it",
                             s->ram.status, (int)record->pid);
    return measure(s, err);
}

int ibx_migrate_send_again(const struct ibx_send_options *options, const struct ibx_journal *record,
                           struct ibx_migrate_status *last, struct ibx_error *err)
{
    struct ibx_error local = {0};
    struct source *s = malloc(sizeof(*s));
    err = err ? err : &local;
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a move");
    source_init(s, options);
    s->status.record = *record;
    s->lost_ns = s->still_ns = ibx_now_ns();
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_LOCK_MS);
    int rc;
    while ((rc = open_record(s, err)) == -EBUSY && ibx_now_ns() < deadline)
        poll(NULL, 0, MIGRATION_LOCK_LOOK_MS);
    if (!rc)
        rc = look_again(s, err);
    s->vm.touched = true;
    s->vm.was_running = s->status.record.was_running;
    if (!rc)
        rc = ibx_source_find_map(s, err);
    if (!rc)
        rc = ibx_source_run(s, err);
    return finish(s, rc, last, err);
}
