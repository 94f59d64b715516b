/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What the destination's QEMU says, by its monitor. The monitor can be lost while QEMU lives (it
 * serves one client, and not while its main thread waits for a page): as long as the process is
 * there, so is the VM, and the monitor is looked for again.
 */
#include "migrate/destination/destination.h"
#include "migrate/common/vm.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define MONITOR_MS       500 /* for the monitor of a VM that runs: its loop has other things to do */
#define MONITOR_AGAIN_MS 1000 /* between two tries */
#define STOP_MS          2000
#define LOADING_MS       5000 /* for QEMU to notice that its stream has ended */
#define LOADING_LOOK_MS  20

bool ibx_destination_qemu_lives(const struct destination *d)
{
    return d->status.record.pid_started &&
           ibx_process_started(d->ram.pid) == d->status.record.pid_started;
}

/* A VM that was paused at the source does not resume here either. */
static int heed_loaded(struct destination *d, uint64_t deadline_ns, struct ibx_error *err)
{
    char status[32];
    if (d->resumed)
        return 0;
    int rc = ibx_vm_status(d->qmp, status, sizeof(status), deadline_ns, err);
    if (!rc && strcmp(status, "inmigrate"))
        d->resumed = true;
    return rc;
}

static int hear(struct destination *d, struct ibx_error *err)
{
    json_t *event;
    int rc = ibx_qmp_pump(d->qmp, err);
    while ((event = ibx_qmp_event_next(d->qmp))) {
        if (ibx_vm_event_is(event, "RESUME", NULL))
            d->resumed = true;
        else if (!rc && ibx_vm_event_is(event, "MIGRATION", "completed"))
            rc = heed_loaded(d, ibx_deadline_in_ms(MONITOR_MS), err);
        else if (ibx_vm_event_is(event, "MIGRATION", "failed"))
            d->qemu_failed = true;
        json_decref(event);
    }
    return rc;
}

int ibx_destination_qemu_reach(struct destination *d, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_qmp_connect(d->options->qmp, deadline_ns, &d->qmp, err);
    if (rc || !ibx_qmp_pid(d->qmp) || ibx_qmp_pid(d->qmp) == d->ram.pid)
        return rc;
    rc = ibx_error_set(err, -ESRCH, "process %d has %s, and not QEMU (process %d)",
                       (int)ibx_qmp_pid(d->qmp), d->options->qmp, (int)d->ram.pid);
    ibx_qmp_close(d->qmp);
    d->qmp = NULL;
    return rc;
}

/* For a tool that took over before it could know whether the VM runs: QEMU that still waits for its
 * state has lost it with the dead tool, as soon as it notices. */
static int learn(struct destination *d, struct ibx_error *err)
{
    int rc = heed_loaded(d, ibx_deadline_in_ms(MONITOR_MS), err);
    if (rc || d->resumed)
        return rc;
    if (!d->inmigrate_ns)
        d->inmigrate_ns = ibx_now_ns();
    d->qemu_failed |= ibx_now_ns() - d->inmigrate_ns > LOADING_MS * IBX_NS_PER_MS;
    return 0;
}

/* Only while the VM is ours: before that a lost monitor is the end of the move. */
static int look_for_monitor(struct destination *d, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    if (!ibx_destination_qemu_lives(d))
        return ibx_error_set(err, -ESRCH, "QEMU (process %d) has ended", (int)d->ram.pid);
    if (ibx_now_ns() < d->monitor_ns)
        return 0;
    int rc = ibx_destination_qemu_reach(d, ibx_deadline_in_ms(MONITOR_MS), &silent);
    if (!rc)
        rc = heed_loaded(d, ibx_deadline_in_ms(MONITOR_MS), &silent);
    if (rc)
        ibx_destination_qemu_lose(d, silent.message);
    else
        ibx_log(IBX_LOG_INFO, "move: QEMU's monitor is there");
    return 0;
}

void ibx_destination_qemu_lose(struct destination *d, const char *why)
{
    if (!d->monitor_ns)
        ibx_migration_notify(&d->options->observer,
                             "QEMU (process %d) lives, but not its monitor (%s): going on "
                             "without",
                             (int)d->ram.pid, why);
    ibx_qmp_close(d->qmp);
    d->qmp = NULL;
    d->monitor_ns = ibx_deadline_in_ms(MONITOR_AGAIN_MS);
}

/* The stream had an end before its end: of a source that lies, since state_tail.h keeps back any
 * that QEMU writes. */
static int ran_early(struct destination *d, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    int rc = ibx_qmp_execute(d->qmp, "stop", NULL, NULL, ibx_deadline_in_ms(STOP_MS), &silent);
    return ibx_error_set(err, -EPROTO,
                         "the device state ended before its end, and QEMU (process %d) ran without "
                         "the source's word: it was stopped%s%s; end it",
                         (int)d->ram.pid, rc ? ", in vain: " : "", rc ? silent.message : "");
}

int ibx_destination_qemu_hear(struct destination *d, struct ibx_error *err)
{
    int rc = d->qmp ? hear(d, err) : look_for_monitor(d, err);
    if (!rc && d->qmp && d->taken_over && !d->resumed)
        rc = learn(d, err);
    if (d->resumed && !d->committed)
        return ran_early(d, err);
    if (!rc && d->qemu_failed && !d->resumed)
        rc = ibx_error_set(err, -EIO, "QEMU could not load the device state: its log says why");
    return rc;
}

int ibx_destination_qemu_has_loaded(struct destination *d, struct ibx_error *err)
{
    char status[32], why[256];
    ibx_qmp_spin_until(d->qmp, d->busy_until_ns);
    int rc = ibx_vm_migration(d->qmp, status, sizeof(status), why, sizeof(why),
                              ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc || strcmp(status, "failed"))
        return rc;
    return ibx_error_set(err, -EIO, "QEMU could not load the device state: %s",
                         why[0] ? why : "its log says why");
}

int ibx_destination_qemu_await(struct destination *d, char *status, size_t size,
                               struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(LOADING_MS);
    int rc;
    while (!(rc = ibx_vm_status(d->qmp, status, size, ibx_deadline_in_ms(MIGRATION_QMP_MS), err)) &&
           !strcmp(status, "inmigrate") && ibx_now_ns() < deadline)
        poll(NULL, 0, LOADING_LOOK_MS);
    return rc;
}
