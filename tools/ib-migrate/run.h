/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-migrate run: one command that makes the destination's QEMU and runs both ends.
 *
 *   run.c           the source: plans the far QEMU, starts the far end over ssh, sends the VM
 *   run_keys.c      the key of the migration, in a file beside the records
 *   far_end.c       the far end: starts QEMU and receive, and cleans up if no VM came
 *   command_line.c  QEMU's arguments: from those of the source to those of the destination
 *   limits.c        limits of disks that a monitor has set since
 *   plugged.c       what has been plugged in or out since QEMU was started, by QMP
 *   json_lines.c    the messages of the two ends: a JSON object a line
 *
 * Nothing of QEMU's arguments ever passes a shell: they go to the far end as JSON on its standard
 * input, and from there to execvp(3).
 */
#ifndef IBX_TOOLS_IB_MIGRATE_RUN_H
#define IBX_TOOLS_IB_MIGRATE_RUN_H

#include "tools/ib-migrate/ib-migrate.h"

/* ------------------------------------------------------------ command_line.c */

/* Adds a mapping "OLD=NEW"; both paths are absolute. */
int ibx_run_map_add(struct run_maps *maps, const char *text, struct ibx_error *err);
/* How many words the command of --ssh has; it is run without a shell. */
#define RUN_SSH_WORDS 32u
#define RUN_SSH_SPACE " \t"
unsigned ibx_run_ssh_words(const char *command);
/* The path at the destination, to be freed by free(). */
char *ibx_run_map_path(const struct run_maps *maps, const char *path);

/* Names of folders that the far end replaces in arguments: random, so that no argument has them by
 * chance. */
struct run_tokens {
    char run[48];    /* for the folder of its sockets */
    char memory[48]; /* for the folder of guest memory */
};

/* The arguments of a process, a list of strings; NULL with `err`. */
json_t *ibx_run_arguments_of(pid_t pid, struct ibx_error *err);
/* The arguments of the destination's QEMU, a new reference: the same devices, with paths mapped by
 * `maps`, guest memory in the folder of one token, and -incoming defer with a monitor in the folder
 * of the other. `absent`: ids of objects and devices that have been removed; `plugged`: arguments
 * for those that were added. NULL with `err`: an argument has no meaning on another host. */
json_t *ibx_run_arguments(const json_t *given, const struct run_maps *maps,
                          const struct run_tokens *tokens, const json_t *absent,
                          const json_t *plugged, struct ibx_error *err);
/* Gives vmgenid in these arguments this GUID. With guid=auto, the default, QEMU would choose
 * another one there, as for a VM that was cloned. */
void ibx_run_set_guid(json_t *given, const char *guid);
/* Ids of all "-object" (true) or "-device" arguments: {id: true}. */
json_t *ibx_run_ids(const json_t *given, bool objects);
/* Ids of the back ends of devices: of netdev, chardev, blockdev and drive arguments. */
json_t *ibx_run_backend_ids(const json_t *given);
/* Whether this value of -qmp is a monitor that an earlier run gave a QEMU; sets its folder. */
bool ibx_run_folder_of(const char *value, char *folder, size_t size);
/* The unix socket at which QEMU listens by this argument, to be freed by free(); NULL: none. */
char *ibx_run_socket_of(const char *argument);
/* Replaces a token in an argument; the result is to be freed by free(). */
char *ibx_run_replace(const char *text, const char *token, const char *by);

/* ------------------------------------------------------------ far_end.c */

/* A connection to the program that listens at this unix socket. -ECONNREFUSED: none does; -EAGAIN:
 * its backlog is full. */
int ibx_run_connect(const char *path);
/* The process that listens at this socket; 0: none. */
pid_t ibx_run_listener(const char *path);

/* ------------------------------------------------------------ run_keys.c */

/* Makes a file with this line, locked until this process ends. */
int ibx_run_key_make(const char *path, const char *key, struct ibx_error *err);

/* ------------------------------------------------------------ limits.c */

/* The limits of all disks and throttle groups of a QEMU, a new reference. */
int ibx_run_limits(struct ibx_qmp *qmp, json_t **limits, struct ibx_error *err);
/* Sets them in the QEMU at this monitor where it has the disk or group with other limits. */
int ibx_run_limits_set(const char *monitor, const json_t *wanted, struct ibx_error *err);

/* ------------------------------------------------------------ plugged.c */

/* Sets `plugged` to arguments for devices and objects that QEMU has in addition to its command
 * line, and `absent` to the ids of those that it no longer has; both are new references. An error
 * names a device that cannot be described. */
int ibx_run_plugged(struct ibx_qmp *qmp, const json_t *given, json_t **absent, json_t **plugged,
                    struct ibx_error *err);

/* ------------------------------------------------------------ json_lines.c */

/* Reads a JSON object a line from a descriptor. */
struct json_lines {
    int fd;
    char *text;
    size_t length, room;
    char strange[64]; /* the beginning of a line that is no object; "": none has come */
};
void ibx_json_lines_init(struct json_lines *lines, int fd);
void ibx_json_lines_fini(struct json_lines *lines);
/* The next object, a new reference. NULL: *rc is 0: none has come completely yet; -EPIPE: the end;
 * -EPROTO: a line is no object. Blocks for one read(2) unless an object is there already. */
json_t *ibx_json_lines_next(struct json_lines *lines, int *rc);
/* Writes it whole; consumed. */
int ibx_json_lines_put(int fd, json_t *object);

#endif
