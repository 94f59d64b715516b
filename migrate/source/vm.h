/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU at the source: what its events mean, which pages hold data; and in files.c guest RAM when
 * QEMU has ended. Part of source.h. */
#ifndef IBX_MIGRATE_SOURCE_VM_H
#define IBX_MIGRATE_SOURCE_VM_H

#include "common/state_machine.h"
#include "migrate/common/vm.h"
#include "migrate/common/watchdog.h"
#include "migrate/migrate.h"
#include "migrate/pages/pages.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: source vm
 *   [*] -> GOING -> STOPPED -> GOING     STOPPED: by QEMU's STOP, since its migration began
 *   GOING -> FINISHING                   it was paused before, and QEMU's migration finishes
 *   STOPPED | FINISHING -> SAVED -> [*]  QEMU has written its device state
 */
enum source_vm_state { VM_GOING, VM_STOPPED, VM_FINISHING, VM_SAVED };

/*
 * state machine: source libvirt
 *   [*] -> OFF -> [*]              QEMU's migration is this tool's
 *   [*] -> DRIVES -> AWAITED       libvirt starts it; AWAITED: QEMU pauses before its device state
 *   DRIVES | AWAITED -> CONTINUED  it has continued the VM here, because its migration failed
 *   DRIVES | AWAITED | CONTINUED -> [*]
 */
enum source_libvirt_state { LIBVIRT_OFF, LIBVIRT_DRIVES, LIBVIRT_AWAITED, LIBVIRT_CONTINUED };

struct source_vm {
    struct ibx_state_machine state;
    struct ibx_qmp *qmp; /* NULL: after the commit, QEMU has ended, or its monitor is lost */
    uint64_t retry_ns;   /* when to try a lost monitor again; else 0 */
    int claim;           /* of ibx_vm_claim(), until fini; -1: none */
    bool of_files;       /* QEMU had ended when this tool began: RAM is what its files hold */
    struct ibx_guest_ram ram;
    struct ibx_page_map map;
    struct ibx_vm_undo undo;
    struct ibx_watchdog watchdog;
    struct ibx_state_machine libvirt;
    uint64_t ahead_until_ns; /* until when answers to questions ahead are used */
    uint64_t stop_ns;        /* of QEMU's STOP; 0: the VM was paused before */
    bool paused;             /* before QEMU's migration was started */
    bool asks;               /* QEMU is to be asked whether it has written its state */
    bool ran_there;          /* the destination has said so, or this tool cannot know */
    bool ran;                /* the VM ran until QEMU's migration stopped it */
};

static inline bool source_managed(const struct source_vm *vm)
{
    return vm->libvirt.now != LIBVIRT_OFF;
}

/* What an event of QEMU means for the migration. */
enum source_vm_event {
    VM_NOTHING,
    VM_QUIET,  /* nothing writes to guest RAM any more */
    VM_FAILED, /* QEMU's migration has failed */
    VM_RESET,
    VM_SHUT_DOWN,
    VM_CONTINUED, /* another client has continued the VM */
};

void ibx_source_vm_init(struct source_vm *vm);
/* To be called before anything else: whether libvirt drives QEMU's migration. */
void ibx_source_vm_drive(struct source_vm *vm, bool libvirt);
/* Connects to QEMU, unless that is done, and finds its RAM; `ahead`: sends at once all questions
 * that are asked until the VM has been described. -EBUSY: an ib-migrate works at its monitor. */
int ibx_source_vm_find(struct source_vm *vm, const char *qmp, bool ahead, struct ibx_error *err);
/* To be called before the description: drops answers that are too old. */
void ibx_source_vm_check_ahead(const struct source_vm *vm);
/* The same for whoever continues a VM, and waits for the monitor. Guest RAM is found by this
 * record, unless it is of an earlier version: its files may have other names by now, or QEMU may
 * not use them any more, or have more memory than these. */
int ibx_source_vm_of_record(struct source_vm *vm, const char *qmp, const struct ibx_record *record,
                            struct ibx_error *err);
/* Finds guest RAM in the files of this record, whose QEMU has ended, and sets them aside. -ESRCH
 * with the reason: they are not there, or are another process's now. */
int ibx_source_vm_of_files(struct source_vm *vm, const struct ibx_record *record,
                           const struct ibx_migrate_observer *observer, struct ibx_error *err);
/* `bits`, of a scan for written pages of a block, keeps only pages that hold data, and pages that
 * have got data are added to the map; with `look`, the holes of the file are looked into. Huge
 * pages that are not there do not count as written. */
int ibx_source_vm_keep_data(struct source_vm *vm, unsigned block, bool look, uint64_t *bits,
                            struct ibx_error *err);
/* `starting`: QEMU's migration has been started, and the VM is expected to stop. */
enum source_vm_event ibx_source_vm_on_event(struct source_vm *vm, bool starting, json_t *event);
/* After each event: asks QEMU, if it may have been the last one before its state. */
int ibx_source_vm_ask(struct source_vm *vm, struct ibx_error *err);
/* Whether the answer says that QEMU has written its state: SAVED. `what`: VM_QUIET or VM_NOTHING.
 */
int ibx_source_vm_check_saved(struct source_vm *vm, enum source_vm_event *what,
                              struct ibx_error *err);
/* Closes the monitor. */
void ibx_source_vm_lose(struct source_vm *vm);
/* Connects to a lost monitor again, which must be that of the same process (-ESRCH). 0 also when
 * the monitor is there, or QEMU has ended. */
int ibx_source_vm_reach(struct source_vm *vm, const char *path, unsigned ms, struct ibx_error *err);
/* QEMU has ended after the commit: sets the files aside that still have a name. */
void ibx_source_vm_keep_files(struct source_vm *vm, const struct ibx_record *record,
                              const struct ibx_migrate_observer *observer);
void ibx_source_vm_fini(struct source_vm *vm);

#endif
