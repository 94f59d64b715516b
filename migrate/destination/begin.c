/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The beginning and the end of the destination's side: what is looked at before, and opened. */
#include "migrate/destination/destination.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the socket */

static void talk_status(void *context, struct ibx_migrate_status *status)
{
    struct destination *d = context;
    ibx_destination_vm_stats(d);
    *status = d->status;
    status->now_ns = ibx_now_ns();
}

static int talk_cancel(void *context, struct ibx_error *err)
{
    struct destination *d = context;
    if (ibx_destination_ours(d) || ibx_destination_over(d))
        return ibx_error_set(err, -EBUSY, "the VM runs here already: it cannot be cancelled");
    d->cancelled = true;
    return 0;
}

static int talk_bandwidth(void *context, uint64_t bytes_per_second, struct ibx_error *err)
{
    struct destination *d = context;
    (void)err;
    d->status.max_bandwidth = bytes_per_second;
    if (d->engine)
        ibx_fault_set_bandwidth(d->engine, bytes_per_second);
    return 0;
}

static const struct ibx_control_socket_ops talk_ops = {talk_status, talk_cancel, talk_bandwidth};

static void destination_init(struct destination *d, const struct ibx_receive_options *options)
{
    *d = (struct destination){.options = options, .stream = -1, .lock_fd = -1};
    d->transport = ibx_migration_options(&options->transport, options->listen);
    d->signals.fd = d->uffd.fd = -1;
    d->reporter.observer = &options->observer;
    d->status.began_ns = ibx_now_ns();
    d->status.max_bandwidth = options->max_bandwidth;
    d->minor = options->minor;
    ibx_channel_init(&d->control, NULL);
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++)
        ibx_channel_init(&d->guests[i], NULL);
}

/* Until then the socket is named by the process. */
static int open_waiting(struct destination *d, struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_control_socket_waiting_path(d->options->folder, getpid(), path, sizeof(path));
    return ibx_control_socket_open(path, &talk_ops, d, &d->talk, err);
}

/* With the move's id, which the source brings, there is a record, a lock and a socket. */
int ibx_destination_open_record(struct destination *d, struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_control_socket_close(d->talk);
    d->talk = NULL;
    int rc = ibx_journal_lock(d->options->folder, &d->status.record, &d->lock_fd, err);
    if (rc)
        return rc;
    ibx_journal_path(d->options->folder, &d->status.record, ".sock", path, sizeof(path));
    return ibx_control_socket_open(path, &talk_ops, d, &d->talk, err);
}

static int look(struct destination *d, struct ibx_error *err)
{
    struct ibx_blockers refusals = {0};
    struct ibx_journal *record = &d->status.record;
    struct ibx_uffd old;
    int rc = ibx_destination_vm_find(d, err);
    /* First, as what else is wrong with a VM that has come has remedies that would end it. */
    if (!rc)
        rc = ibx_migration_check_unfinished(d->options->folder, &d->ram, d->options->qmp, false,
                                            err);
    if (!rc)
        rc = ibx_preflight_side(d->qmp, &d->ram, IBX_MIGRATE_DESTINATION, &refusals,
                                ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc && !ibx_uffd_take(d->ram.pid, -1, &old, NULL)) {
        close(old.fd);
        ibx_blockers_add(&refusals,
                         "an earlier move has left its userfaultfd in this QEMU (process %d): "
                         "start it anew, unless ib-migrate status says that its VM runs here",
                         (int)d->ram.pid);
    }
    if (!rc && refusals.count)
        rc = ibx_migration_refused("no VM can be moved here", &refusals, err);
    if (!rc)
        rc = ibx_destination_vm_measure(d, err);
    if (rc)
        return rc;
    record->epoch = 1;
    record->uffd = -1;
    record->state = IBX_JOURNAL_NOT_YET;
    ibx_migration_describe(record, &d->ram, d->options->qmp, d->options->listen, &d->transport);
    return 0;
}

static int open_porch(struct destination *d, const char *uri, struct ibx_error *err)
{
    int rc = ibx_migration_signals_open(&d->signals, err);
    /* In minor mode all page connections READ into the same memory. */
    if (!rc && d->minor)
        rc = ibx_domain_create(&d->transport.domain, err);
    if (!rc)
        rc = ibx_acceptor_open(uri, &d->transport, &d->porch, err);
    if (rc)
        return rc;
    snprintf(d->status.record.uri, sizeof(d->status.record.uri), "%s", ibx_acceptor_uri(d->porch));
    ibx_migration_notify(&d->options->observer, "waiting at %s%s", d->status.record.uri,
                         d->transport.key_file[0] || d->transport.insecure
                             ? ""
                             : " (for sources on this host only: others need a key, --key-file)");
    return 0;
}

static int finish(struct destination *d, int rc, struct ibx_migrate_status *last,
                  struct ibx_error *err)
{
    if (rc && err)
        memcpy(d->status.message, err->message, sizeof(d->status.message));
    d->status.phase = rc ? IBX_PHASE_FAILED : IBX_PHASE_DONE;
    ibx_destination_vm_stats(d);
    ibx_fault_destroy(d->engine);
    d->engine = NULL;
    /* After a move the source closes when it has heard the last word. */
    ibx_channel_linger(&d->control, rc ? 0 : ibx_deadline_in_ms(MIGRATION_LINGER_MS));
    ibx_destination_link_close(d);
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++) {
        ibx_channel_linger(&d->guests[i], rc ? 0 : ibx_deadline_in_ms(MIGRATION_LINGER_MS));
        ibx_channel_fini(&d->guests[i]);
    }
    ibx_close(d->resume.conn);
    ibx_migrate_message_free(&d->resume.first);
    ibx_migration_report(&d->reporter, &d->status, true);
    if (last)
        *last = d->status;
    ibx_acceptor_close(d->porch);
    ibx_domain_release(d->transport.domain);
    ibx_control_socket_close(d->talk);
    ibx_destination_vm_fini(d);
    ibx_migration_signals_close(&d->signals);
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    free(d);
    return rc;
}

int ibx_migrate_receive(const struct ibx_receive_options *options, struct ibx_migrate_status *last,
                        struct ibx_error *err)
{
    struct ibx_error local = {0};
    struct destination *d = malloc(sizeof(*d));
    err = err ? err : &local;
    if (!d)
        return ibx_error_set(err, -ENOMEM, "no memory for a move");
    destination_init(d, options);
    int rc = look(d, err);
    ibx_journal_prune_old(options->folder);
    if (!rc)
        rc = open_porch(d, options->listen, err);
    if (!rc)
        rc = open_waiting(d, err);
    if (!rc) {
        ibx_migration_stop_at("destination", "listening");
        rc = ibx_destination_run(d, err);
    }
    if (rc && d->answering)
        ibx_destination_answer(d, err);
    return finish(d, rc, last, err);
}

static int take_over(struct destination *d, struct ibx_error *err)
{
    int rc = ibx_destination_open_record(d, err);
    if (!rc)
        rc = ibx_migration_reload(d->options->folder, &d->status.record, err);
    return rc ? rc : ibx_destination_take_over(d, err);
}

int ibx_migrate_receive_again(const struct ibx_receive_options *options,
                              const struct ibx_journal *record, struct ibx_migrate_status *last,
                              struct ibx_error *err)
{
    struct ibx_error local = {0}, silent = {0};
    struct destination *d = malloc(sizeof(*d));
    err = err ? err : &local;
    if (!d)
        return ibx_error_set(err, -ENOMEM, "no memory for a move");
    destination_init(d, options);
    d->status.record = *record;
    int rc = take_over(d, err);
    if (rc == -ECANCELED) {
        ibx_destination_record(d, IBX_JOURNAL_GIVEN_UP, &silent);
        ibx_destination_arrived_remove(d);
    }
    d->lost_ns = ibx_now_ns();
    if (!rc)
        rc = open_porch(d, options->listen ? options->listen : d->status.record.uri, err);
    if (!rc && d->state == DESTINATION_COMPLETE)
        ibx_migration_notify(&options->observer, "%s", DESTINATION_UNCONFIRMED);
    if (!rc)
        rc = ibx_destination_run(d, err);
    return finish(d, rc, last, err);
}
