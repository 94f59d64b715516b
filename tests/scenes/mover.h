/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tool ib-migrate as a test runs it: processes with their output in files, waited for by what
 * they print. Failures fail the test at once. Includes what every such test needs.
 */
#ifndef IBX_TESTS_MIGRATE_MOVER_H
#define IBX_TESTS_MIGRATE_MOVER_H

#include "tests/scenes/vm.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct mover {
    pid_t pid; /* 0: not running */
    char out[96], err[96];
    char uri[300]; /* of a receiver */
};

/* A folder for this test's records and logs, made anew; removed by mover_end_all. */
extern char mover_folder[64], mover_state_dir[96];
/* A file of zeros there: its path. */
void mover_make_file(char *path, size_t size, const char *name, off_t bytes);
/* The network namespace that the next tools are started in; NULL: this one. */
extern const char *mover_namespace;
void mover_begin(void);
/* For each record of this test, and what its tool may have noted beside it. Returns how many
 * records there are. */
size_t mover_each_note(void (*look)(const char *record, const char *note));
/* Skips the test where ofi has no provider for TCP. */
void mover_needs_ofi(void);
/* Timeouts: of tools that may get no processor for seconds while many tests run; of those that are
 * to find the other side silent. */
#define PAIR_TIMEOUT       "timeout_ms=20000"
#define PAIR_TIMEOUT_SHORT "timeout_ms=3000"
/* A timeout where nothing is to fail: libfabric's emulation takes long to set up, and longer where
 * many tests run at once. */
#define PATIENT "timeout_ms=60000"
#define OFI     "ofi://127.0.0.1:0?ofi_provider=tcp&" PATIENT
/* Ends what still runs and all VMs. */
int mover_end_all(void **state);

/* The next sender or receiver, by the state, or the next recovery, stops itself (SIGSTOP) at this
 * state: "source:sending" for instance. One for each side may be told; "rollback:marked" is for
 * the next rollback, "clone:mapped" for the next clone. */
void mover_stop_next(const char *state);
/* Whatever is started from now on, until the end of the test, has this library before all others;
 * NULL: none. */
void mover_preload(const char *path);
/* ib-migrate with these arguments, NULL behind the last; --state-dir is added. */
void mover_start(struct mover *mover, const char *const *arguments);
/* `receive` for a VM at `uri`, and its real URI once it waits; `more` may be NULL. */
void mover_receive(struct mover *mover, const struct vm *vm, const char *uri,
                   const char *const *more);
void mover_send(struct mover *mover, const struct vm *vm, const char *uri, const char *const *more);
void mover_recover(struct mover *mover, const struct vm *vm);
/* A listening socket of this process where a receiver of this URI has listened and does no more. */
int mover_listen_in_place_of(const char *uri);
/* Until it ends: its exit status, or 128 + the signal. */
int mover_wait(struct mover *mover);
/* It must end with this status; otherwise the test fails with its output. */
void mover_ends(struct mover *mover, int status);
/* ib-migrate with these arguments, until it ends with this status. */
struct mover *mover_run(int status, const char *const *arguments);
#define MOVER_RUN(status, ...) mover_run((status), (const char *[]){__VA_ARGS__, NULL})
/* Whether it ended, with this status; false: it printed `words` instead. */
bool mover_ends_or_prints(struct mover *mover, int status, const char *words);
void mover_kill(struct mover *mover, int signal);
/* Until a line of its JSON output has `phase`; with `present` (percent of all pages) as well. */
void mover_await(struct mover *mover, const char *phase, unsigned present);
/* Until a line of it tells for how long nothing has come. */
void mover_await_silent(struct mover *mover);
/* Whether its output or its sentences contain `words`. */
bool mover_printed(const struct mover *mover, const char *words);
void mover_must_print(const struct mover *mover, const char *words);
/* Until it has printed them. */
void mover_await_words(struct mover *mover, const char *words);
/* Until the watchdog of one that was killed has printed them. */
void mover_await_watchdog(const struct mover *mover, const char *words);
/* Until it has stopped itself. */
void mover_await_stop(struct mover *mover);
/* Until each of its threads sleeps, at five looks one after the other: it is in the middle of
 * nothing. */
void mover_await_asleep(const struct mover *mover);
/* Until the record of the one "source" or "destination" here is in this state. */
void mover_await_record(const char *side, const char *state);
/* The heartbeats of these VMs, one after the other up to a NULL, are right for a guest with these
 * options. */
void mover_heartbeats(const struct vm *const *of, const char *options);
/* Whether its QEMU, which may be gone, has reported RESUME since this was asked last. */
bool mover_resumed(struct vm *vm);
/* The last status, or the summary, that it printed: a reference. */
json_t *mover_summary(const struct mover *mover);
/* A number of it. */
json_int_t mover_figure(const struct mover *mover, const char *name);
/* Until a line of its JSON output has at least this number there. */
void mover_await_figure(struct mover *mover, const char *name, json_int_t least);
/* The record of the one destination here, and its file of arrived pages in minor mode. */
void mover_record_path(char path[PATH_MAX]);
void mover_arrived_path(char path[PATH_MAX]);

/* ------------------------------------------------------------ two of each: mover_pair.c */

/* What most tests have: a source, a destination and their tools. A test sets for how many
 * heartbeats a VM is watched, and the timeout that both tools have by --set, if not PAIR_TIMEOUT.
 */
extern struct vm vms[2];
extern struct mover receiver, sender;
extern unsigned long pair_beats;
extern const char *pair_timeout;
/* Starts the source's QEMU alone. */
void pair_start_source(void);
/* Starts both QEMUs with these options (NULL: none), the second one as a destination. */
void pair_start(const struct vm_options *like);
#define TIMED "--set", pair_timeout
/* `receive` and `send` for it, with more options (NULL: none). */
void pair_receive(const char *const *more);
void pair_send(const char *const *more);
/* Starts both tools, the receiver with more options. */
void pair_run(const char *const *more);
/* The same, until one has stopped itself at this state, which is returned. */
struct mover *pair_run_to(const char *state, const char *const *more);
/* Both QEMUs and tools, the receiver with an option or NULL, until the VM runs at the destination;
 * nearly all of its pages are still at the source, and come slowly. */
void pair_filling(const struct vm_options *like, const char *option);
/* They come quickly, and all ends well. */
void pair_filled(void);
/* `recover` in the place of this sender or receiver. */
void pair_recover(struct mover *mover);
/* Both tools end well. */
void pair_done(void);
/* The VM goes on at the destination, right for `options`, and stands still at the source, whose
 * QEMU may have ended. */
void pair_moved(const char *options);
/* The VM goes on at the source, and all that it ever printed is right. */
void pair_runs_at_the_source(void);
/* The VM goes on at the source, and never ran at the destination, not even for an instant. */
void pair_stays(void);
/* The same, and all that it ever printed is right: for the end of a VM's life, since that computes
 * each heartbeat from the first one on. */
void pair_stayed(void);

#endif
