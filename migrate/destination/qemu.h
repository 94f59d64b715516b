/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The monitor of the destination's QEMU. Part of destination.h. */
#ifndef IBX_MIGRATE_DESTINATION_QEMU_H
#define IBX_MIGRATE_DESTINATION_QEMU_H

#include "common/state_machine.h"
#include "migrate/migrate.h"
#include "migrate/qemu/qemu.h"

/*
 * state machine: destination qemu
 *   [*] -> LOADING -> RUNNING | FAILED -> [*]
 *   FAILED -> RUNNING                           the last report of QEMU counts
 *   [*] -> RUNNING                              recover
 */
enum destination_qemu_state {
    QEMU_LOADING,
    QEMU_RUNNING, /* it has the whole state: running, or paused */
    QEMU_FAILED   /* it could not load the state, or cannot run what it has loaded */
};

/* Whether QEMU saves guest RAM with the VM. It goes down this list only. */
enum destination_qemu_ram {
    QEMU_RAM_OMITTED, /* x-ignore-shared is set; recover: perhaps */
    QEMU_RAM_ASKED,   /* told to reset it; no answer yet, or it has refused */
    QEMU_RAM_SAVED
};

/*
 * The monitor can be lost while QEMU lives: QEMU serves one client, and none while its main thread
 * waits for a page. As long as the process is there, so is the VM, and the monitor is tried again.
 */
struct destination_qemu {
    struct ibx_state_machine state;
    struct ibx_qmp *qmp; /* NULL: none */
    const char *path;
    const struct ibx_record *record; /* names the process */
    const struct ibx_migrate_observer *observer;
    char status[IBX_MIGRATE_STATUS]; /* of query-status, lately; "": not known */
    char told[IBX_MIGRATE_STATUS];   /* the status that was last looked at (tell_of_stop()) */
    char end[IBX_MIGRATE_STATUS];    /* QEMU's reason for its end, of SHUTDOWN; "": none yet */
    bool completed;                  /* QEMU has reported its incoming migration as completed */
    bool stale; /* the status is another one now, by an event, or soon, after "finish-migrate" */
    uint64_t ask_ns;  /* when to ask for it, because QEMU gave no answer or libvirt is at work */
    json_t *settings; /* to put back: ibx_settings_restore(); NULL: none */
    enum destination_qemu_ram ram;
    uint64_t settle_ns; /* when to try again to put them back; 0: that has not failed */
    uint64_t retry_ns;  /* when to try a lost monitor again; 0: it was never lost */
    uint64_t cont_ns;   /* when to tell QEMU again to continue the VM; 0: it has not refused that */
    uint64_t inmigrate_ns; /* recover: since when QEMU waits for the state; or 0 */
    bool managed;          /* libvirt continues the VM when it has loaded */
    bool ran;              /* managed: the VM has been seen running */
    bool decided;          /* managed: the VM stays here, also if it is paused */
};

/* Managed: libvirt has ended the source's QEMU, so that the VM stays here. */
void ibx_destination_qemu_decided(struct destination_qemu *qemu);
void ibx_destination_qemu_init(struct destination_qemu *qemu, const char *path,
                               const struct ibx_record *record,
                               const struct ibx_migrate_observer *observer);
/* Connects to the monitor, which must be that of this process (-ESRCH). */
int ibx_destination_qemu_reach(struct destination_qemu *qemu, uint64_t deadline_ns,
                               struct ibx_error *err);
/* Takes QEMU's events, or tries a lost monitor. `recovered`: also asks QEMU for the status, because
 * the VM may have begun to run before this tool was there. -EIO: QEMU has failed; -ESRCH: its
 * process has ended; others: its monitor is lost. */
int ibx_destination_qemu_check(struct destination_qemu *qemu, bool recovered,
                               struct ibx_error *err);
/* QEMU has loaded the VM, cannot have its disks, and never runs it. */
bool ibx_destination_qemu_stuck(const struct destination_qemu *qemu);
/* Ends QEMU, by SIGKILL if it does not quit in time: its VM is not to run here. */
void ibx_destination_qemu_end(struct destination_qemu *qemu);
/* The VM is loaded: continues it if it is `to_run` and does not (-S, a paused start), or pauses it
 * if it is not to run though it does. A VM that QEMU refuses to continue stands still: see the next
 * function. */
void ibx_destination_qemu_run(struct destination_qemu *qemu, bool to_run);
/* Whether the VM still stands still because QEMU has refused to continue it. QEMU refuses as long
 * as it cannot have the VM's disks, and is told again from time to time. */
bool ibx_destination_qemu_stands(struct destination_qemu *qemu);
/* Whether QEMU ended because its guest has shut the VM down. */
bool ibx_destination_qemu_shut_down(const struct destination_qemu *qemu);
/* What QEMU's end was, for a person: "its guest panicked, and its QEMU (process 7) ended then". */
void ibx_destination_qemu_describe_end(const struct destination_qemu *qemu, char *text,
                                       size_t size);
/* 0: QEMU has done whatever it was doing under the lock of its main loop when this was called. */
int ibx_destination_qemu_pass(struct destination_qemu *qemu);
/* Leaves the monitor to the tool by which a borrowed VM returns, for a while. */
void ibx_destination_qemu_lend(struct destination_qemu *qemu);
/* Continues without the monitor. */
void ibx_destination_qemu_lose(struct destination_qemu *qemu, const char *why);
/* QEMU has read the set-up of guest RAM: tells it to reset x-ignore-shared, so that it saves its
 * RAM when somebody asks it to, whatever becomes of this tool. Does not wait: QEMU has done so, or
 * refused, when ibx_destination_qemu_check_loaded() returns 0. */
void ibx_destination_qemu_save_ram(struct destination_qemu *qemu);
/* The stream is loaded but for its end: 0 once QEMU's main thread, which loads, answers. */
int ibx_destination_qemu_check_loaded(struct destination_qemu *qemu, uint64_t hurry_until_ns,
                                      struct ibx_error *err);
/* The VM's status, once QEMU has noticed that its stream has ended. */
int ibx_destination_qemu_await(struct destination_qemu *qemu, char *status, size_t size,
                               struct ibx_error *err);
/* The VM ran before the commit: stops it. -EPROTO. */
int ibx_destination_qemu_stop(struct destination_qemu *qemu, struct ibx_error *err);
/* Pauses the VM, as far as the monitor answers soon. */
int ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err);
/* Finds which migration settings have to change, writes what they are into the record, sets them.
 */
int ibx_destination_qemu_set(struct destination_qemu *qemu, const char *folder,
                             struct ibx_record *record, struct ibx_error *err);
/* Puts the settings back, at once or, after a failure, when it is time to try again. 0: they are,
 * and the record, which is not written here, says so. */
int ibx_destination_qemu_settle(struct destination_qemu *qemu, struct ibx_record *record);
/* QEMU is not needed any more: puts the settings back at once, and closes the monitor. If this is
 * repeated after a failure, it connects to the monitor again. 0 also when QEMU has ended. */
int ibx_destination_qemu_leave(struct destination_qemu *qemu, struct ibx_record *record,
                               struct ibx_error *err);
void ibx_destination_qemu_fini(struct destination_qemu *qemu);

#endif
