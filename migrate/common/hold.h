/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's migration at the source, held open until the destination has every page.
 *
 * With its capability return-path QEMU waits, when it has written the device state, for the message
 * SHUT on the stream's way back. Until then its run state is finish-migrate, and it refuses to
 * continue the VM ("Migration is not finalized yet") whoever asks. Should the other end of the
 * stream be closed, QEMU calls the migration failed and continues the VM by itself. So QEMU gets a
 * copy of that end, which stays open when this tool is killed.
 */
#ifndef IBX_MIGRATE_COMMON_HOLD_H
#define IBX_MIGRATE_COMMON_HOLD_H

#include "migrate/journal/journal.h"
#include "migrate/preflight/preflight.h"

/* What names an end of the stream, in whatever process: a number for the journal; 0: an error. */
uint64_t ibx_hold_name(int fd);
/* Sets the capability. QEMU refuses while its migration is not over. */
int ibx_hold_allow(struct ibx_qmp *qmp, bool on, uint64_t deadline_ns, struct ibx_error *err);
/* Adds the capability to what is set before a migration, and to what is put back after it, and to
 * the latter that the machine is not to describe its state, where it is so. */
int ibx_hold_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                  struct ibx_error *err);
/* Whether it is among these. */
#define IBX_HOLD_CAPABILITY "return-path"
bool ibx_hold_planned(const json_t *before);
/* Has QEMU describe its state at the end of the stream, which old machine types do not: by that the
 * end is known, since there is no end of file. */
int ibx_hold_describe(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                      struct ibx_error *err);
/* Gives QEMU a copy of it. Only when QEMU has written everything: nobody else may read it. */
int ibx_hold_keep(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns, struct ibx_error *err);
/* Takes a copy of QEMU's, after a tool that has ended. -ENOENT: QEMU has none. */
int ibx_hold_take(pid_t pid, uint64_t name, int *fd, struct ibx_error *err);
/* Whether this process has the descriptor of that name. An error: it is not to be seen. */
int ibx_hold_find(pid_t pid, uint64_t name, bool *has, struct ibx_error *err);
/* Tells QEMU that its migration is complete. */
int ibx_hold_say_shut(int fd, struct ibx_error *err);
/* Ends the migration as completed: run state postmigrate. Waits for that. `fd` stays the caller's,
 * and QEMU's copy stays. Nothing is done by a monitor that is lost. */
int ibx_hold_release(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns, struct ibx_error *err);
/* Takes QEMU's copy away. If this fails, QEMU keeps a socket that leads nowhere. */
void ibx_hold_forget(struct ibx_qmp *qmp, uint64_t deadline_ns);

/* What QEMU tells of its last migration, which is over: times, and the pages that it has sent;
 * -ENODATA: it has made none, or the last one lasts, or came to nothing. */
int ibx_hold_last(struct ibx_qmp *qmp, char text[IBX_JOURNAL_FIGURES], uint64_t deadline_ns,
                  struct ibx_error *err);
/* Has QEMU keep a copy, of any descriptor, under a name made of the times that it tells of its last
 * migration, which is over, and of the pages that it has sent: ibx_hold_marked() is true, by this
 * monitor, until there is another one, whoever makes that. A failure leaves no mark. */
void ibx_hold_mark(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns);
/* Whether the last migration is the one that was marked; keeps the mark. */
bool ibx_hold_marked(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns);
void ibx_hold_unmark(struct ibx_qmp *qmp, uint64_t deadline_ns);

#endif
