/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-migrate: migrates a running QEMU VM by post-copy; a front end of migrate/migrate.h.
 *
 *   ib-migrate.c  the command line
 *   migrate.c     receive, send, recover, check
 *   records.c     status, cancel, set, prune: the recorded migrations and the waiting receivers
 *   prometheus.c  status --prometheus
 *   result.c      what --json prints last, on every exit
 *   rollback.c    rollback
 *   snapshot.c    freeze, serve, clone
 *   borrow.c      borrow, return
 *   firecracker.c firecracker: the page fault handler of a restored microVM
 *   run.h         run: makes the destination's QEMU, over ssh
 *   vm_state.c    where a record says that the VM is
 *   core_dump.c   core dumps without guest memory
 *   stack.c       limits on the stack that are too low
 *   progress.c    shows a migration while it runs, from a thread of its own
 *   text.c        what the others print: progress bar, phases, summary
 */
#ifndef IBX_TOOLS_IB_MIGRATE_IB_MIGRATE_H
#define IBX_TOOLS_IB_MIGRATE_IB_MIGRATE_H

#include "migrate/migrate.h"

#include <stdio.h>

/* Exit statuses, see ib-migrate(1). */
enum {
    MIGRATE_DONE = 0,
    MIGRATE_FAILED = 1,
    MIGRATE_USAGE = 2,
    MIGRATE_UNFINISHED = 3,
    MIGRATE_ENDED = 4,
    MIGRATE_STOPPED = 5,
    MIGRATE_LOST = 6
};

#define RUN_QEMU_ARGS_MAX 64u
#define RUN_MAPS_MAX      32u
#define SERVE_CACHES_MAX  8u

/* Paths at the source that have another name at the destination. A mapping holds for OLD and all
 * that is below it; of several that match, the one with the longest OLD counts. */
struct run_maps {
    unsigned count;
    struct {
        char old[256], new[256];
    } maps[RUN_MAPS_MAX];
};

struct migrate_args {
    char qmp[PATH_MAX];    /* "" not given; else absolute, without links */
    const char *uri;       /* send, recover, check; else NULL */
    const char *listen;    /* receive, recover */
    const char *libvirt;   /* receive, send, check; else NULL */
    const char *state_dir; /* as given, or NULL */
    const char *output;    /* status --prometheus: the file; NULL: standard output */
    /* run; NULL or 0: not given */
    const char *to, *address, *ssh, *far_program, *far_state_dir, *memory_dir, *run_dir;
    struct run_maps maps;
    const char *qemu_args[RUN_QEMU_ARGS_MAX];
    unsigned qemu_arg_count;
    void (*on_leaving)(void); /* called before a signal ends the process at once; or NULL */
    bool keep, on_demand;
    bool multicast;                       /* serve, clone */
    const char *group, *interface;        /* likewise; or NULL */
    unsigned hops;                        /* serve; or 0 */
    size_t multicast_rate;                /* likewise, bytes a second */
    const char *caches[SERVE_CACHES_MAX]; /* serve */
    unsigned cache_count;
    char *const *command; /* clone: QEMU and its arguments, up to a NULL; or NULL */
    const char *name;     /* likewise */
    bool parent_mac;      /* likewise */
    unsigned mac_wait_s;  /* likewise; or 0 */
    /* firecracker; NULL or 0: not given */
    const char *socket, *from, *record, *replay;
    unsigned peer_uid, record_s;
    bool peer_given, background;
    char folder[PATH_MAX]; /* of the records */
    struct ibx_options options;
    uint64_t max_bandwidth;
    unsigned links, give_up_s;
    bool bandwidth_given, minor, paused, stand_still, no_verify, quit, remove, json, quiet, yes,
        destination, unfinished, prometheus, disks_differ, warm, resume, home, fill, borrow,
        keep_warm;
    unsigned warm_rounds, warm_seconds;
};

/* core_dump.c: keeps the memory of this process and its children, with keys and guest memory, out
 * of core dumps. The second function, for programs that are started for others, restores the filter
 * with which this process was started. */
void ibx_cli_keep_memory_out_of_cores(void);
void ibx_cli_give_cores_back(void);
/* stack.c: raises this process's limit on the stack as far as it may, if it is low. -ENOMEM. The
 * second function, for programs that are started, restores it. */
int ibx_cli_make_room_for_stacks(struct ibx_error *err);
void ibx_cli_give_stack_back(void);

/* The commands; each returns the exit status. */
int ibx_cli_receive(const struct migrate_args *args);
int ibx_cli_send(const struct migrate_args *args);
int ibx_cli_borrow(const struct migrate_args *args);
int ibx_cli_return(const struct migrate_args *args);
int ibx_cli_recover(const struct migrate_args *args);
int ibx_cli_check(const struct migrate_args *args);
int ibx_cli_rollback(const struct migrate_args *args);
/* Whether the destination knows that the VM was taken back here: `there` and `rc` are those of
 * ibx_migrate_disown(). */
bool ibx_cli_has_heard(int rc, enum ibx_answer_state there);
/* Prints what a destination that has, or had, the VM does now that it was taken back here: `there`,
 * `rc` and `err` are those of ibx_migrate_disown(). */
void ibx_cli_say_disowned(const struct ibx_record *record, enum ibx_answer_state there, int rc,
                          const struct ibx_error *err);
int ibx_cli_status(const struct migrate_args *args);
int ibx_cli_cancel(const struct migrate_args *args);
int ibx_cli_set(const struct migrate_args *args);
int ibx_cli_prune(const struct migrate_args *args);
int ibx_cli_run(const struct migrate_args *args);
int ibx_cli_far_end(const struct migrate_args *args);
int ibx_cli_freeze(const struct migrate_args *args);
int ibx_cli_serve(const struct migrate_args *args);
int ibx_cli_clone(const struct migrate_args *args);
int ibx_cli_firecracker(const struct migrate_args *args);

/* ------------------------------------------------------------ borrow.c, rollback.c */

/* Whether the operator agrees, by --yes or when asked for the name `vm`, or about the VM at --qmp
 * if that is NULL. If not, prints that `command` has done nothing. */
bool ibx_cli_agreed(const struct migrate_args *args, const char *command, const char *vm,
                    const char *purpose);

/* ------------------------------------------------------------ migrate.c */

/* `left`: no ib-migrate works on the record, as it is now then. One that was killed may have left a
 * watchdog, which has the lock until it has done what it can: that is waited for, as long as it may
 * take. -EBUSY: it still has it. */
int ibx_cli_await_left(const char *folder, struct ibx_record *record, bool *left,
                       struct ibx_error *err);
/* Sends a borrowed VM back; `came` is the record of the migration by which it came. */
int ibx_cli_send_home(const struct migrate_args *args, const struct ibx_record *came);

/* The last line of --json. `rc` and `err` are those of the migration, `status` the exit status. */
void ibx_cli_print_summary(int rc, int status, const struct ibx_migrate_status *last,
                           const struct ibx_error *err);

/* ------------------------------------------------------------ records.c */

/* Whether the record was read from its copy, since it is damaged; `text` says so. */
bool ibx_cli_copied(const struct migrate_args *args, const struct ibx_record *record, char *text,
                    size_t size);
/* -EBUSY names another ib-migrate that uses the monitor of --qmp, which serves one client. -ENOENT
 * says where the VM went if its QEMU has ended, unless one is to be received. */
int ibx_cli_monitor_check(const struct migrate_args *args, struct ibx_error *err);
/* Asks the ib-migrate that works on a migration for its status. Returns a new reference, or NULL
 * with `err`; -ENOENT or -ECONNREFUSED: none works on it. */
json_t *ibx_cli_ask_status(const struct migrate_args *args, const struct ibx_record *record,
                           struct ibx_error *err);
/* Takes the key file, the key's name, the accepted names and the encryption from the record, unless
 * the command line gives them. */
void ibx_cli_use_record(struct ibx_options *options, const struct ibx_record *record);

/* A migration, or a receiver that waits for one, as status knows it. */
struct migrate_view {
    struct ibx_record record; /* has no state if this is a waiting receiver */
    bool live;                /* an ib-migrate works on it and has answered; `status` is set */
    bool mute;                /* an ib-migrate works on it but did not answer */
    struct ibx_migrate_status status;
};

/* ------------------------------------------------------------ run_keys.c */

/* Removes the key of a migration that is over, if ib-migrate run has made it. A source's key is
 * kept until the destination knows that the source is done, since it may ask once more. */
void ibx_cli_forget_key(const char *folder, const struct ibx_record *record);
/* Whether the key was removed, so that the other side knows that this one is done. */
bool ibx_cli_key_forgotten(const char *folder, const struct ibx_record *record);
/* Whether it is a key that ib-migrate run has made, here or at the far end. */
bool ibx_cli_is_run_key(const char *folder, const char *path);
/* Removes keys that killed processes of ib-migrate run have left, and that no record names. */
void ibx_cli_prune_keys(const char *folder);

/* ------------------------------------------------------------ vm_state.c */

/* Describes where the VM is, as ibx_journal_describe(), but also if the QEMU in which it ran has
 * ended.
 */
void ibx_cli_vm_state(const struct ibx_record *record, char *sentence, size_t size);

/* ------------------------------------------------------------ prometheus.c */

/* Prints all of it in Prometheus's text format, newest first, to args->output or standard output.
 * `unread`: there are records that could not be read. The file is replaced as a whole and readable
 * by everybody, as node_exporter wants it. */
int ibx_cli_prometheus(const struct migrate_args *args, const struct migrate_view *views,
                       size_t count, bool unread, struct ibx_error *err);

/* ------------------------------------------------------------ result.c */

/* To be called before the command line is parsed: looks for --json. With it, every exit(3) with a
 * status other than 0 from here on prints one object {"result": ...}, unless a result or a summary
 * was printed; commands that print no other JSON do so for status 0, too. */
void ibx_cli_result_begin(int argc, char **argv);
/* Sets the command's name; `always`: print a result also for status 0. */
void ibx_cli_result_command(const char *name, bool always);
/* Sets the sentence of the result; the last one counts. */
void ibx_cli_result_failed(const char *sentence);
/* Prints the result and ends the process at once, while other threads run. */
_Noreturn void ibx_cli_result_leave(int status);
/* Notes that a result or a summary has been printed. */
void ibx_cli_result_told(void);
/* From now on, until the migration handles signals itself, SIGINT, SIGTERM and SIGHUP, unless they
 * are ignored, end the process with this status, sentence and result. */
void ibx_cli_result_on_signal(int status, const char *sentence);
/* Sets a function that is called in the handler of such a signal; NULL: none. It must be
 * async-signal-safe. */
void ibx_cli_result_on_leaving(void (*leave)(void));
/* When a migration is over: the next one of these signals is ignored, because this process only
 * prints how it has ended. A further one has its default action, in case nobody takes what is
 * printed. */
void ibx_cli_result_late_signals(void);
/* Restores the default action of these signals. */
void ibx_cli_result_off_signals(void);
/* Has SIGBUS print a sentence before it ends the process. */
void ibx_cli_result_on_bus_error(void);
/* The name of an exit status, as ib-migrate(1) lists them: "done", "failed". */
const char *ibx_cli_outcome(int status);

/* ------------------------------------------------------------ text.c */

/* "ib-migrate: MESSAGE" on stderr. */
void ibx_cli_message(const char *message);
/* The same; returns MIGRATE_FAILED. */
int ibx_cli_fail(const char *message);
/* A line on stdout, in which control characters are question marks. */
void ibx_cli_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* One JSON object as one line on stdout, control characters escaped; consumed. */
void ibx_cli_print_json(json_t *json);
/* `status`, or MIGRATE_FAILED with a message when standard output could not be written. */
int ibx_cli_flush(int status);
/* MIGRATE_DONE, for a command that has done more than report: if standard output could not be
 * written, a message says so. */
int ibx_cli_done(void);

/* Seconds since 1970 as local time: "2026-11-26 07:15:22 +0000". */
void ibx_cli_time(uint64_t seconds, char *out, size_t size);
/* "64.0 MiB", "1.23 ms": bytes and nanoseconds for a person. */
void ibx_cli_bytes(uint64_t bytes, char *out, size_t size);
void ibx_cli_duration(uint64_t ns, char *out, size_t size);
/* The VM's name, else its UUID, else its monitor. */
void ibx_cli_vm_name(const struct ibx_record *record, char *out, size_t size);
/* One line of at most `width` columns, which leaves out the least important figures first. */
void ibx_cli_bar(const struct ibx_migrate_status *status, unsigned width, char *out, size_t size);
/* A line that says what begins with the status's phase. */
void ibx_cli_phase_line(const struct ibx_migrate_status *status, char *out, size_t size);
/* The figures of a migration that has ended. */
void ibx_cli_summary(FILE *out, const struct ibx_migrate_status *status);

/* ------------------------------------------------------------ progress.c */

/*
 * Shows a migration from a thread of its own: a stopped terminal (Ctrl-S) or a pipe without a
 * reader delays only what is shown. A newer status of the same phase replaces one that is not shown
 * yet; changes of phase are lost only when the queue is full.
 */
struct migrate_progress;

int ibx_cli_progress_start(const struct migrate_args *args, struct migrate_progress **progress,
                           struct ibx_migrate_observer *observer, struct ibx_error *err);
/* Shows what is left and ends the thread. */
void ibx_cli_progress_end(struct migrate_progress *progress);

#endif
