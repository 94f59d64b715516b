/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * QEMU's migration at the source, held open until the destination has every page.
 *
 * With its capability return-path QEMU waits, when it has written the device state, for the message
 * SHUT on the stream's way back. Until then its run state is finish-migrate, and it refuses to
 * continue the VM ("Migration is not finalized yet") whoever asks. If the other end of the stream
 * is closed, QEMU reports the migration as failed and continues the VM by itself. So QEMU gets a
 * copy of that end, which stays open when this tool is killed.
 */
#ifndef IBX_MIGRATE_COMMON_RETURN_PATH_H
#define IBX_MIGRATE_COMMON_RETURN_PATH_H

#include "migrate/journal/journal.h"
#include "migrate/preflight/preflight.h"

/* The inode number of the socket: it names an end of the stream in any process, and is what the
 * journal keeps. 0: fstat(2) has failed. */
uint64_t ibx_return_path_name(int fd);
/* Switches the capability off. QEMU refuses this (-EREMOTEIO) until its migration has ended. */
int ibx_return_path_disable(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Adds the capability to the settings that are changed for a migration, and to those that are put
 * back after it. If the machine does not describe its state (suppress-vmdesc), adds that to the
 * latter. */
int ibx_return_path_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                         struct ibx_error *err);
/* Whether these settings, changed or put back, have the capability. */
#define IBX_RETURN_PATH_CAPABILITY "return-path"
bool ibx_return_path_planned(const json_t *before);
/* Has QEMU describe its state at the end of the stream, which old machine types do not (those with
 * suppress-vmdesc in `before`). The description shows the end of the stream, since there is no end
 * of file. */
int ibx_return_path_describe(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                             struct ibx_error *err);
/* Gives QEMU a copy of `fd`, this tool's end of the stream. Only when QEMU has written its whole
 * state: with a copy, and without a tool that reads, QEMU would wait for ever with its lock held.
 */
int ibx_return_path_keep(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns, struct ibx_error *err);
/* Takes the copy that QEMU has kept for a tool that has ended. `*fd` is the caller's. -ENOENT: QEMU
 * has none. */
int ibx_return_path_take(pid_t pid, uint64_t name, int *fd, struct ibx_error *err);
/* Sets `*has`: whether process `pid` has a descriptor of that name. An error: its descriptors
 * cannot be seen. */
int ibx_return_path_find(pid_t pid, uint64_t name, bool *has, struct ibx_error *err);
/* Sends SHUT: tells QEMU that its migration is complete. 0, too, if QEMU's migration has ended
 * already. */
int ibx_return_path_send_shut(int fd, struct ibx_error *err);
/* Ends the migration as completed, and waits for that (run state postmigrate). `fd` stays the
 * caller's, and QEMU keeps its copy. If the monitor does not answer, SHUT is not sent. */
int ibx_return_path_release(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns,
                            struct ibx_error *err);
/* Has QEMU close its copy. If this fails, QEMU keeps a socket that leads nowhere. */
void ibx_return_path_forget(struct ibx_qmp *qmp, uint64_t deadline_ns);

/* What QEMU reports of its last migration, if that has completed: times, and the pages that it has
 * sent. -ENODATA: QEMU has made none, or the last one still runs or has failed. */
int ibx_return_path_last(struct ibx_qmp *qmp, char text[IBX_JOURNAL_FIGURES], uint64_t deadline_ns,
                         struct ibx_error *err);
/* Has QEMU keep a copy of `fd`, any descriptor, under a name made of the times and pages that it
 * reports of its last migration, which has ended. From then on ibx_return_path_marked() is true
 * over this monitor, until anybody makes another migration. If this fails there is no mark. */
void ibx_return_path_mark(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns);
/* Whether QEMU's last migration is the one that was marked. The mark stays, with a copy of `fd`. */
bool ibx_return_path_marked(struct ibx_qmp *qmp, int fd, uint64_t deadline_ns);
/* Removes the mark of QEMU's last migration, if it has one. */
void ibx_return_path_unmark(struct ibx_qmp *qmp, uint64_t deadline_ns);

#endif
