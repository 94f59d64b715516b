/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AHEAD_MS 1000 /* so long answers about what the VM is made of are used */

static const struct ibx_state vm_states[] = {
    [VM_GOING] = {"going", IBX_TO(VM_STOPPED) | IBX_TO(VM_FINISHING), IBX_STATE_INITIAL},
    [VM_STOPPED] = {"stopped", IBX_TO(VM_GOING) | IBX_TO(VM_SAVED), 0},
    [VM_FINISHING] = {"finishing", IBX_TO(VM_SAVED), 0},
    [VM_SAVED] = {"saved", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table vm_table = IBX_STATE_TABLE("source vm", vm_states);

static const struct ibx_state libvirt_states[] = {
    [LIBVIRT_OFF] = {"off", 0, IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LIBVIRT_DRIVES] = {"drives", IBX_TO(LIBVIRT_AWAITED) | IBX_TO(LIBVIRT_CONTINUED),
                        IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LIBVIRT_AWAITED] = {"awaited", IBX_TO(LIBVIRT_CONTINUED), IBX_STATE_FINAL},
    [LIBVIRT_CONTINUED] = {"continued", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table libvirt_table =
    IBX_STATE_TABLE("source libvirt", libvirt_states);

void ibx_source_vm_init(struct source_vm *vm)
{
    *vm = (struct source_vm){.watchdog.fd = -1, .claim = -1};
    ibx_state_begin(&vm->state, &vm_table, VM_GOING);
    ibx_source_vm_drive(vm, false);
}

void ibx_source_vm_drive(struct source_vm *vm, bool libvirt)
{
    ibx_state_begin(&vm->libvirt, &libvirt_table, libvirt ? LIBVIRT_DRIVES : LIBVIRT_OFF);
}

/* Sends all questions that are asked until the VM has been described, so that QEMU answers while
 * this tool does other things. Those about guest RAM come first: it is looked for in /proc as soon
 * as QEMU has named its files. */
static void ask_ahead(struct source_vm *vm)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    vm->ahead_until_ns = ibx_deadline_in_ms(AHEAD_MS);
    ibx_guest_ram_ask(vm->qmp, deadline);
    ibx_preflight_ask_ahead(vm->qmp, deadline);
    ibx_guest_ram_ask_backends(vm->qmp, deadline);
    ibx_describe_ask(vm->qmp, deadline);
}

int ibx_source_vm_find(struct source_vm *vm, const char *qmp, bool ahead, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = vm->qmp ? 0 : ibx_qmp_connect_unless_busy(qmp, deadline, &vm->qmp, err);
    if (rc)
        return rc;
    ibx_qmp_remember(vm->qmp, true);
    if (ahead)
        ask_ahead(vm);
    rc = ibx_guest_ram_find(vm->qmp, true, &vm->ram, deadline, err);
    if (rc == -EACCES || rc == -EROFS)
        rc = ibx_guest_ram_find(vm->qmp, false, &vm->ram, deadline, err);
    return rc;
}

void ibx_source_vm_check_ahead(const struct source_vm *vm)
{
    if (ibx_now_ns() > vm->ahead_until_ns)
        ibx_qmp_ahead_end(vm->qmp, 0);
}

int ibx_source_vm_of_record(struct source_vm *vm, const char *qmp, const struct ibx_record *record,
                            struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    int rc = vm->qmp ? 0 : ibx_qmp_connect(qmp, deadline, &vm->qmp, err);
    if (rc)
        return rc;
    /* Another client may have added or removed memory backends since. */
    if (!record->block_count || !record->machine[0])
        return ibx_source_vm_find(vm, qmp, false, err); /* a record of an earlier version */
    rc = ibx_journal_recall_ram(record, &vm->ram, err);
    if (rc)
        return rc;
    vm->ram.pid = ibx_qmp_pid(vm->qmp);
    rc = ibx_vm_status(vm->qmp, vm->ram.status, sizeof(vm->ram.status), deadline, err);
    return rc || vm->ram.pid != record->pid ? rc : ibx_journal_reopen_ram(record, &vm->ram, err);
}

int ibx_source_vm_keep_data(struct source_vm *vm, unsigned i, bool look, uint64_t *bits,
                            struct ibx_error *err)
{
    const struct ibx_guest_block *block = &vm->ram.blocks[i];
    const bool huge = block->page_size > (uint64_t)sysconf(_SC_PAGESIZE);
    const size_t words = (block->size / block->page_size + 63) / 64;
    uint64_t *data = ibx_guest_bits_make(block, err), count;
    if (!data)
        return -ENOMEM;
    count = ibx_page_map_get_block(&vm->map, i, data);
    int rc = look && !huge ? ibx_guest_block_written_since(&vm->ram, block, data, &count, err) : 0;
    for (size_t w = 0; !rc && w < words; w++) {
        data[w] |= huge ? bits[w] : 0;
        bits[w] &= data[w];
    }
    if (!rc)
        ibx_page_map_put_block(&vm->map, i, data);
    free(data);
    return rc;
}

/* QEMU reports STOP before it has waited for its disks, which may still write to guest RAM. They
 * are done when it looks at dirty pages for the last time (MIGRATION_PASS; it holds the same lock
 * from the STOP to the end of its state), or saves its devices ("device", since QEMU 10).
 *
 * The lock is also that of QEMU's monitors: a question that was asked after one of these events is
 * answered when the state is written. But with KVM, and in QEMU 10, QEMU lets go of it for moments
 * before that. So the answer is not enough (stream.c). */
static bool may_finish(json_t *event)
{
    return ibx_vm_event_is(event, "MIGRATION_PASS", NULL) ||
           ibx_vm_event_is(event, "MIGRATION", "device");
}

int ibx_source_vm_ask(struct source_vm *vm, struct ibx_error *err)
{
    if (!vm->asks)
        return 0;
    vm->asks = false;
    return ibx_qmp_post(vm->qmp, "query-status", ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
}

/* A VM that was paused before reports no STOP. It is certain to be quiet once QEMU finishes its
 * migration, and the answer to a second question has the same meaning as above. */
int ibx_source_vm_check_saved(struct source_vm *vm, enum source_vm_event *what,
                              struct ibx_error *err)
{
    *what = VM_NOTHING;
    json_t *reply = ibx_qmp_reply(vm->qmp);
    const char *status =
        json_string_value(json_object_get(json_object_get(reply, "return"), "status"));
    const bool finishes = status && !strcmp(status, "finish-migrate");
    json_decref(reply);
    if (!finishes || vm->state.now == VM_SAVED)
        return 0;
    if (vm->state.now != VM_GOING)
        return ibx_state_move(&vm->state, VM_SAVED);
    *what = VM_QUIET;
    int rc = ibx_state_move(&vm->state, VM_FINISHING);
    vm->asks = true;
    return rc ? rc : ibx_source_vm_ask(vm, err);
}

enum source_vm_event ibx_source_vm_on_event(struct source_vm *vm, bool starting, json_t *event)
{
    if (ibx_vm_event_is(event, "MIGRATION", "failed") ||
        ibx_vm_event_is(event, "MIGRATION", "cancelled"))
        return VM_FAILED;
    if (ibx_vm_event_is(event, "RESET", NULL))
        return VM_RESET;
    if (ibx_vm_event_is(event, "RESUME", NULL)) {
        if (vm->state.now == VM_STOPPED)
            ibx_state_move(&vm->state, VM_GOING);
        vm->stop_ns = 0;
        vm->paused = false;
        vm->ran = false;
        return VM_CONTINUED;
    }
    if (ibx_vm_event_is(event, "STOP", NULL)) {
        if (starting && vm->state.now == VM_GOING) {
            ibx_state_move(&vm->state, VM_STOPPED);
            vm->ran = true;
        } else {
            vm->paused = true;
        }
        vm->stop_ns = ibx_vm_event_ns(event);
    }
    /* QEMU reports no STOP of a VM that is shut down (-no-shutdown) while QEMU stops it, or later.
     */
    if (!source_managed(vm) && ibx_vm_event_is(event, "SHUTDOWN", NULL)) {
        vm->paused = true;
        return VM_SHUT_DOWN;
    }
    /* Only now does QEMU begin this tool's migration: the STOP before was another client's. */
    if (ibx_vm_event_is(event, "MIGRATION", "setup") && !source_managed(vm) &&
        vm->state.now == VM_STOPPED) {
        ibx_state_move(&vm->state, VM_GOING);
        vm->paused = true;
        vm->ran = false;
        vm->stop_ns = 0;
    }
    if (ibx_vm_event_is(event, "MIGRATION", "pre-switchover")) {
        if (vm->libvirt.now == LIBVIRT_DRIVES)
            ibx_state_move(&vm->libvirt, LIBVIRT_AWAITED);
        return vm->state.now == VM_STOPPED ? VM_QUIET : VM_NOTHING;
    }
    if (vm->libvirt.now == LIBVIRT_AWAITED && ibx_vm_event_is(event, "MIGRATION", "device"))
        return VM_NOTHING; /* QEMU does not hold the lock then */
    vm->asks = may_finish(event) && (vm->state.now == VM_STOPPED || vm->paused);
    return vm->state.now == VM_STOPPED && may_finish(event) ? VM_QUIET : VM_NOTHING;
}

void ibx_source_vm_lose(struct source_vm *vm)
{
    ibx_qmp_end(vm->qmp, vm->ram.pid);
    ibx_qmp_close(vm->qmp);
    vm->qmp = NULL;
    vm->retry_ns = 0;
}

int ibx_source_vm_reach(struct source_vm *vm, const char *path, unsigned ms, struct ibx_error *err)
{
    if (vm->qmp || !vm->retry_ns)
        return 0;
    int rc = ibx_qmp_connect(path, ibx_deadline_in_ms(ms), &vm->qmp, err);
    const int pid = rc ? 0 : (int)ibx_qmp_pid(vm->qmp), own = (int)vm->ram.pid;
    if (!rc && pid != own) {
        ibx_qmp_close(vm->qmp);
        vm->qmp = NULL;
        rc = ibx_error_set(err, -ESRCH, "process %d has %s, and not QEMU (process %d)", pid, path,
                           own);
    }
    if (!rc)
        vm->retry_ns = 0;
    return rc;
}

void ibx_source_vm_fini(struct source_vm *vm)
{
    if (vm->claim >= 0)
        close(vm->claim);
    vm->claim = -1;
    json_decref(vm->undo.before);
    ibx_page_map_fini(&vm->map);
    ibx_guest_ram_fini(&vm->ram);
    ibx_source_vm_lose(vm);
}
