/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-migrate run: one command that makes the destination's QEMU and runs both ends.
 *
 *   run.c           the source: plans the far QEMU, starts the far end over ssh, sends the VM
 *   run_keys.c      the key of the migration, in a file beside the records
 *   far_end.c       the far end: starts QEMU and receive, and removes what nothing became of
 *   command_line.c  QEMU's arguments: from those of the source to those of the destination
 *   plugged.c       what has been plugged in or out since QEMU was started, by QMP
 *   json_lines.c    what the two ends say to each other: a JSON object a line
 *
 * Nothing of QEMU's arguments ever passes a shell: they go to the far end as JSON on its standard
 * input, and from there to execvp(3).
 */
#ifndef IBX_TOOLS_IB_MIGRATE_RUN_H
#define IBX_TOOLS_IB_MIGRATE_RUN_H

#include "tools/ib-migrate/ib-migrate.h"

/* ------------------------------------------------------------ command_line.c */

/* "OLD=NEW", both absolute. */
int ibx_run_map_add(struct run_maps *maps, const char *text, struct ibx_error *err);
/* A path as it is at the destination; for free(). */
char *ibx_run_map_path(const struct run_maps *maps, const char *path);

/* Names of folders that the far end replaces in arguments: random, so that no argument has them by
 * chance. */
struct run_tokens {
    char run[48];    /* of its sockets */
    char memory[48]; /* of guest memory */
};

/* The arguments of a process, a list of strings; NULL with `err`. */
json_t *ibx_run_arguments_of(pid_t pid, struct ibx_error *err);
/* Those of the destination's QEMU: the same devices, other paths by `maps`, guest memory in the
 * folder of its token, waiting for a VM at a monitor in the folder of the other. `absent`: ids of
 * objects and devices that are gone by now, `plugged`: arguments for those that came. A reference;
 * NULL with `err`: an argument has no meaning on another host. */
json_t *ibx_run_arguments(const json_t *given, const struct run_maps *maps,
                          const struct run_tokens *tokens, const json_t *absent,
                          const json_t *plugged, struct ibx_error *err);
/* Ids of all "-object" (true) or "-device" arguments: {id: true}. */
json_t *ibx_run_ids(const json_t *given, bool objects);
/* Ids of what devices use: of netdev, chardev, blockdev and drive arguments. */
json_t *ibx_run_backend_ids(const json_t *given);
/* Whether this value of -qmp is the monitor that an earlier run gave a QEMU; and its folder. */
bool ibx_run_folder_of(const char *value, char *folder, size_t size);
/* The unix socket at which QEMU listens by this argument, for free(); NULL: none. */
char *ibx_run_socket_of(const char *argument);
/* The process that listens at this socket; 0: none. */
pid_t ibx_run_listener(const char *path);
/* Replaces one token in an argument; for free(). */
char *ibx_run_replace(const char *text, const char *token, const char *by);

/* ------------------------------------------------------------ run_keys.c */

/* A new file with this line, which is this process's. */
int ibx_run_key_make(const char *path, const char *key, struct ibx_error *err);

/* ------------------------------------------------------------ plugged.c */

/* What QEMU has that its command line has not, as further arguments (references), and the ids of
 * what it has no more. An error names the device that cannot be described. */
int ibx_run_plugged(struct ibx_qmp *qmp, const json_t *given, json_t **absent, json_t **plugged,
                    struct ibx_error *err);

/* ------------------------------------------------------------ json_lines.c */

/* Reads a JSON object a line from a descriptor. */
struct json_lines {
    int fd;
    char *text;
    size_t length, room;
    char strange[64]; /* how what is no object begins, "" none has come */
};
void ibx_json_lines_init(struct json_lines *lines, int fd);
void ibx_json_lines_fini(struct json_lines *lines);
/* The next whole object (a reference), or NULL: with *rc 0 none is there yet, -EPIPE at the end,
 * -EPROTO for what is no object. Blocks for one read(2) unless an object is there already. */
json_t *ibx_json_lines_next(struct json_lines *lines, int *rc);
/* Writes it whole; consumed. */
int ibx_json_lines_put(int fd, json_t *object);

#endif
