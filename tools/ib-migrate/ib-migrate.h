/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate: moves a running QEMU VM by post-copy. Shared by ib-migrate*.c only. */
#ifndef IBX_TOOLS_IB_MIGRATE_IB_MIGRATE_H
#define IBX_TOOLS_IB_MIGRATE_IB_MIGRATE_H

#include "migrate/migrate.h"

#include <stdio.h>

enum migrate_command {
    MIGRATE_RECEIVE,
    MIGRATE_SEND,
    MIGRATE_STATUS,
    MIGRATE_CANCEL,
    MIGRATE_SET,
    MIGRATE_RECOVER,
    MIGRATE_ROLLBACK,
    MIGRATE_CHECK,
    MIGRATE_PRUNE,
    MIGRATE_COMMANDS
};

/* Exit statuses, see ib-migrate(1). */
enum { MIGRATE_DONE = 0, MIGRATE_FAILED = 1, MIGRATE_USAGE = 2, MIGRATE_UNFINISHED = 3 };

struct migrate_args {
    enum migrate_command command;
    char qmp[PATH_MAX];    /* "" not given; else absolute, without links */
    const char *uri;       /* send, recover, check; else NULL */
    const char *listen;    /* receive, recover */
    char folder[PATH_MAX]; /* of records */
    struct ibx_options options;
    uint64_t max_bandwidth;
    bool bandwidth_given;
    unsigned links, give_up_s;
    bool minor, quit, json, quiet, yes, destination, unfinished;
};

/* 0: `args` is filled in and a command is to be run; 1: help or version was printed. -ENOEXEC:
 * wrong usage, told on stderr; others: a bad value, told in `err`. */
int ibx_cli_args_parse(int argc, char **argv, struct migrate_args *args, struct ibx_error *err);

/* The commands: their exit status. */
int ibx_cli_receive(const struct migrate_args *args);
int ibx_cli_send(const struct migrate_args *args);
int ibx_cli_recover(const struct migrate_args *args);
int ibx_cli_check(const struct migrate_args *args);
int ibx_cli_rollback(const struct migrate_args *args);
int ibx_cli_status(const struct migrate_args *args);
int ibx_cli_cancel(const struct migrate_args *args);
int ibx_cli_set(const struct migrate_args *args);
int ibx_cli_prune(const struct migrate_args *args);

/* ib-migrate-waiting.c: receivers that wait for a source, and are on no record yet. */

struct migrate_waiting {
    pid_t pid;
    char path[PATH_MAX]; /* of its socket */
    json_t *status;      /* what it answers */
};
/* Those of --qmp, if given, which answer; ended by _free. */
int ibx_cli_waiting_list(const struct migrate_args *args, struct migrate_waiting **list,
                         size_t *count, struct ibx_error *err);
void ibx_cli_waiting_free(struct migrate_waiting *list, size_t count);
/* -EBUSY and who: QEMU serves one client of its monitor, and another ib-migrate is that. */
int ibx_cli_monitor_free(const struct migrate_args *args, struct ibx_error *err);
void ibx_cli_waiting_print(const struct migrate_args *args, const struct migrate_waiting *one);

/* What is true of the VM: as ibx_journal_say(), and whether the QEMU that it ran in is there. */
void ibx_cli_truth(const struct ibx_journal *record, char *sentence, size_t size);
/* "ib-migrate: SENTENCE" on stderr. */
void ibx_cli_complain(const char *sentence);
/* One JSON object as one line on stdout; consumed. */
void ibx_cli_print_json(json_t *json);

/* ------------------------------------------------------------------- text */

/* "64.0 MiB", "1.23 ms": bytes and nanoseconds for a person. */
void ibx_cli_bytes(uint64_t bytes, char *out, size_t size);
void ibx_cli_duration(uint64_t ns, char *out, size_t size);
/* The VM's name, else its UUID, else its monitor. */
void ibx_cli_vm(const struct ibx_journal *record, char *out, size_t size);
/* Exactly one line of at most `width` columns: what does not fit is left out by its importance. */
void ibx_cli_bar(const struct ibx_migrate_status *status, unsigned width, char *out, size_t size);
/* What begins with this phase, in words. */
void ibx_cli_phase_line(const struct ibx_migrate_status *status, char *out, size_t size);
/* The figures of a move that has ended. */
void ibx_cli_summary(FILE *out, const struct ibx_migrate_status *status);

/* ------------------------------------------------------------------- while it moves */

/*
 * Shows a move from a thread of its own: a terminal that was stopped (Ctrl-S) or a pipe that nobody
 * reads holds up what is shown and never the move. What cannot be shown in time is replaced by what
 * came later; no change of phase is lost but by more than the queue holds.
 */
struct migrate_show;

int ibx_cli_show_start(const struct migrate_args *args, struct migrate_show **show,
                       struct ibx_migrate_observer *observer, struct ibx_error *err);
/* Shows what is left and ends the thread. */
void ibx_cli_show_end(struct migrate_show *show);

#endif
