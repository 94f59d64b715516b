/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SWEEP_MS          10000 /* for libvirt to end a QEMU after a failure */
#define SWEEP_LOOK_MS     10
#define AWAIT_LOOK_MS     5    /* between two looks whether libvirt has started QEMU */
#define DESCRIBE_AHEAD_MS 1000 /* for QEMU to describe its machine, before a source is served */

static void check_old_uffd(pid_t pid, struct ibx_blockers *blockers)
{
    struct ibx_uffd old;
    if (ibx_uffd_take(pid, -1, &old, NULL))
        return;
    close(old.fd);
    ibx_blockers_add(blockers,
                     "an earlier migration has left its userfaultfd in this QEMU (process %d): "
                     "restart it, unless ib-migrate status says that its VM runs here",
                     (int)pid);
}

static bool comes_here(const struct ibx_record *record)
{
    return !record->source && ibx_journal_qemu_lives(record);
}

/* QEMU may not answer because it waits for a page of an earlier migration: then the error is that
 * of the unfinished record. */
static int unanswered(const struct destination *d, int rc, struct ibx_error *err)
{
    struct ibx_record earlier;
    struct ibx_error why = {0};
    const char *qmp = d->options->qmp;
    if (ibx_journal_find(d->options->folder, qmp, comes_here, &earlier, NULL))
        return rc;
    const struct ibx_guest_ram ram = {.pid = earlier.pid};
    if (!ibx_migration_check_unfinished(d->options->folder, &ram, false, d->options->home, &why))
        return rc;
    *err = why;
    return why.code;
}

static int check(struct destination *d, struct ibx_error *err)
{
    struct ibx_blockers blockers = {.stands_still = d->options->stand_still,
                                    .takes_over = d->options->home,
                                    .managed = d->qemu.managed};
    struct ibx_record *record = &d->status.record;
    struct ibx_guest_ram *ram = &d->ram.guest;
    const char *qmp = d->options->qmp;
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = d->qemu.qmp ? 0 : ibx_qmp_connect_unless_busy(qmp, deadline, &d->qemu.qmp, err);
    if (!rc)
        rc = ibx_guest_ram_find(d->qemu.qmp, true, ram, deadline, err);
    if (rc)
        return unanswered(d, rc, err);
    /* Before other blockers, because their remedies would end a VM that has migrated here. */
    rc = ibx_migration_check_unfinished(d->options->folder, ram, false, d->options->home, err);
    if (!rc)
        rc = ibx_preflight_side(d->qemu.qmp, ram, IBX_MIGRATE_DESTINATION, &blockers,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        check_old_uffd(ram->pid, &blockers);
    if (!rc && d->ram.minor)
        ibx_preflight_memory_limit_minor(ram, &blockers);
    if (!rc && blockers.count)
        rc = ibx_migration_refused("this QEMU cannot receive a VM", &blockers, err);
    for (size_t i = 0; !rc && i < blockers.note_count; i++)
        ibx_migration_notify(&d->options->observer, "%s", blockers.notes[i]);
    if (!rc)
        rc = ibx_page_map_init_ram(&d->ram.map, ram, err);
    if (rc)
        return rc;
    record->state = IBX_JOURNAL_NOT_YET;
    record->libvirt = d->qemu.managed;
    return ibx_migration_describe(record, ram, qmp, d->options->listen, &d->transport, err);
}

static int open_acceptor(struct destination *d, const char *uri, struct ibx_error *err)
{
    char *own = d->status.record.uri;
    int rc = d->signals.fd < 0 ? ibx_migration_signals_open(&d->signals, err) : 0;
    /* In minor mode all page connections READ into the same memory, and share its registration. */
    if (!rc && d->ram.minor)
        rc = ibx_domain_create(&d->transport.domain, err);
    if (!rc)
        rc = ibx_acceptor_open(uri, &d->transport, &d->link.acceptor, err);
    if (rc)
        return rc;
    snprintf(own, sizeof(d->status.record.uri), "%s", ibx_acceptor_uri(d->link.acceptor));
    return 0;
}

static void say_waiting(const struct destination *d)
{
    ibx_migration_notify(&d->options->observer, "waiting at %s%s", d->status.record.uri,
                         d->transport.key_file[0] || d->transport.insecure
                             ? ""
                             : " (for sources on this host only: others need a key, --key-file)");
}

static struct destination *destination_create(const struct ibx_receive_options *options,
                                              struct ibx_error *err)
{
    struct destination *d = malloc(sizeof(*d));
    if (!d) {
        ibx_error_set(err, -ENOMEM, "no memory for a migration");
        return NULL;
    }
    *d = (struct destination){.options = options, .ram_lock_fds = {-1, -1}, .lock_fd = -1};
    d->transport = ibx_migration_options(&options->transport, options->listen);
    d->transport.answer_ms = (unsigned)ibx_migration_sign_ms(&d->transport);
    d->signals.fd = -1;
    d->reporter.observer = &options->observer;
    d->status.began_ns = ibx_now_ns();
    ibx_destination_ram_init(&d->ram, options->minor, options->max_bandwidth);
    ibx_destination_link_init(&d->link);
    ibx_destination_warm_init(&d->warm);
    ibx_destination_stream_init(&d->stream, STREAM_CLOSED);
    ibx_destination_qemu_init(&d->qemu, options->qmp, &d->status.record, &options->observer);
    d->qemu.managed = options->libvirt != NULL;
    return d;
}

/* Removes the socket at which libvirt had QEMU listen: libvirt ends a QEMU to which no VM has come,
 * and leaves its socket. The socket may not even be there yet, and is open until the last of QEMU's
 * threads has ended. */
static void remove_libvirt_socket(const struct destination *d, bool failed)
{
    const bool stays = d->state.now == DESTINATION_LEFT || d->state.now == DESTINATION_BROKEN;
    const bool awaited = failed && !stays && d->status.record.pid;
    const uint64_t deadline = ibx_deadline_in_ms(awaited ? SWEEP_MS : 0);
    ibx_gate_sweep(d->options->libvirt);
    while (ibx_now_ns() < deadline &&
           (ibx_journal_qemu_lives(&d->status.record) || !access(d->options->libvirt, F_OK))) {
        poll(NULL, 0, SWEEP_LOOK_MS);
        if (!ibx_journal_qemu_lives(&d->status.record))
            ibx_gate_sweep(d->options->libvirt);
    }
}

/* Frees the destination and all that it has. The journal is unlocked last, because that admits
 * other commands. */
static void destination_destroy(struct destination *d, bool failed)
{
    ibx_domain_release(d->transport.domain);
    ibx_control_socket_close(d->socket);
    ibx_destination_close_waiting(d);
    ibx_destination_ram_fini(&d->ram); /* after the page connections, which READ into it */
    ibx_destination_stream_fini(&d->stream);
    ibx_destination_warm_fini(&d->warm);
    ibx_destination_early_fini(&d->early);
    ibx_destination_home_fini(&d->home);
    ibx_destination_unlock(d);
    ibx_destination_forget_description(d);
    json_decref(d->compared);
    ibx_destination_watchdog_end(&d->watchdog);
    if (d->options->libvirt) /* the socket of a QEMU that has ended */
        remove_libvirt_socket(d, failed);
    ibx_destination_digests_restart(d);
    ibx_destination_qemu_fini(&d->qemu);
    ibx_migration_signals_take(&d->signals, true); /* too late: the migration has ended */
    ibx_migration_signals_close(&d->signals);
    ibx_journal_unlock(d->options->folder, &d->status.record, d->lock_fd);
    free(d);
}

/* Ends the migration, which has succeeded or failed with rc: closes the connections, reports, and
 * frees the destination. */
static int end_migration(struct destination *d, int rc, struct ibx_migrate_status *last,
                         struct ibx_error *err)
{
    if (rc)
        memcpy(d->status.message, err->message, sizeof(d->status.message));
    d->status.phase = rc ? IBX_PHASE_FAILED : ibx_destination_phase(d);
    ibx_destination_update(d);
    ibx_destination_ram_end_engine(&d->ram);
    ibx_destination_link_engine_ended(&d->link);
    /* After a migration the source closes when it has taken the last message. */
    ibx_destination_link_fini(&d->link, rc ? 0 : ibx_deadline_in_ms(MIGRATION_LINGER_MS));
    ibx_migration_report(&d->reporter, &d->status, true);
    *last = d->status;
    destination_destroy(d, rc != 0);
    return rc;
}

/* libvirt starts QEMU when a migration begins: waits for its monitor. */
static int await_qemu(struct destination *d, struct ibx_error *err)
{
    struct pollfd fds[2 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    int rc;
    while ((rc = ibx_qmp_connect_unless_busy(d->options->qmp, ibx_deadline_in_ms(MIGRATION_QMP_MS),
                                             &d->qemu.qmp, err)) == -ENOENT ||
           rc == -ECONNREFUSED) {
        fds[0] = (struct pollfd){.fd = d->signals.fd, .events = POLLIN};
        const unsigned n = 1 + ibx_control_socket_poll_fds(d->socket, fds + 1);
        if (poll(fds, n, AWAIT_LOOK_MS) > 0)
            ibx_control_socket_serve(d->socket);
        rc = ibx_destination_check_interrupts(d, err);
        if (rc)
            return rc;
        err->message[0] = 0;
    }
    return rc;
}

static int begin_managed(struct destination *d, struct ibx_error *err)
{
    struct ibx_record *record = &d->status.record;
    record->state = IBX_JOURNAL_NOT_YET; /* now: whoever asks finds the monitor in it */
    record->libvirt = true;
    snprintf(record->uri, sizeof(record->uri), "%s", d->options->listen);
    snprintf(record->qmp, sizeof(record->qmp), "%s", d->options->qmp);
    int rc = ibx_destination_watchdog_start(&d->watchdog, err);
    if (!rc)
        rc = ibx_migration_signals_open(&d->signals, err);
    if (!rc)
        rc = ibx_destination_open_waiting(d, err);
    if (rc)
        return rc;
    ibx_migration_notify(&d->options->observer, "waiting for libvirt to start the QEMU of %s",
                         d->options->qmp);
    return await_qemu(d, err);
}

static int receive_new(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_begin(d, DESTINATION_LISTENING);
    if (!rc && d->qemu.managed)
        rc = begin_managed(d, err);
    if (!rc)
        rc = check(d, err);
    ibx_journal_prune_old(d->options->folder, d->status.record.qmp);
    if (!rc)
        rc = open_acceptor(d, d->options->listen, err);
    if (!rc && !d->socket)
        rc = ibx_destination_open_waiting(d, err);
    if (!rc) {
        say_waiting(d);
        if (!d->qemu.managed) /* otherwise somebody may be waiting already */
            ibx_describe_ahead(d->qemu.qmp, ibx_deadline_in_ms(DESCRIBE_AHEAD_MS));
        ibx_migration_stop_at("destination", "listening");
        rc = ibx_destination_run(d, err);
    }
    if (rc && d->state.now == DESTINATION_ANSWERING)
        ibx_destination_answer(d, err);
    return rc;
}

/* Tells that the source's confirmation is missing, and what to do if the source does not come. */
static void notify_complete(const struct destination *d)
{
    const struct ibx_migrate_observer *observer = &d->options->observer;
    ibx_migration_notify(observer, "%s", DESTINATION_UNCONFIRMED);
    if (!ibx_journal_qemu_lives(&d->status.record))
        ibx_migration_notify(observer,
                             "its QEMU here (process %d) has ended since; if the VM was taken back "
                             "at the source, interrupt this tool, which waits for the source to be "
                             "back, and then ib-migrate prune --unfinished %s",
                             (int)d->status.record.pid,
                             ibx_journal_options(d->status.record.qmp).text);
}

static int recover(struct destination *d, const struct ibx_record *record, struct ibx_error *err)
{
    const struct ibx_receive_options *options = d->options;
    struct ibx_error silent = {0};
    d->status.record = *record;
    int rc = ibx_destination_open_record(d, err);
    if (!rc)
        rc = ibx_migration_reload(options->folder, &d->status.record, err);
    d->qemu.managed = d->status.record.libvirt;
    if (options->no_verify)
        d->status.record.verify = false;
    if (!rc)
        rc = ibx_destination_recover(d, err);
    if (rc == -ECANCELED) {
        ibx_destination_qemu_leave(&d->qemu, &d->status.record, &silent);
        ibx_destination_home_never_came(d);
        ibx_destination_record(d, IBX_JOURNAL_GIVEN_UP, &silent);
        ibx_destination_arrived_remove(&d->status.record);
        ibx_destination_tags_remove(&d->status.record);
    }
    d->lost_ns = ibx_now_ns();
    if (!rc)
        rc = open_acceptor(d, options->listen ? options->listen : d->status.record.uri, err);
    if (!rc) {
        say_waiting(d);
        ibx_destination_expect_recorded(d);
    }
    const char *undecided = ibx_destination_undecided(d);
    if (!rc && undecided)
        ibx_migration_notify(&options->observer, "%s", undecided);
    else if (!rc)
        ibx_destination_tell_waits(d);
    if (!rc && d->state.now == DESTINATION_COMPLETE)
        notify_complete(d);
    if (!rc && d->state.now == DESTINATION_SHUT_DOWN)
        ibx_migration_notify(&options->observer, "%s",
                             destination_unconfirmed_end(&d->status.record));
    return rc ? rc : ibx_destination_run(d, err);
}

int ibx_migrate_receive(const struct ibx_receive_options *options, const struct ibx_record *record,
                        struct ibx_migrate_status *last, struct ibx_error *err)
{
    struct destination *d = destination_create(options, err);
    if (!d)
        return -ENOMEM;
    return end_migration(d, record ? recover(d, record, err) : receive_new(d, err), last, err);
}
