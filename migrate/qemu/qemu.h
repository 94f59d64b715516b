/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A running QEMU, seen and used from outside. The source, the destination and preflight call it; it
 * knows no migration.
 *
 *   qmp.c, qmp_connect.c          a client of its machine protocol (QMP) over a unix socket
 *   qmp_stream.c                  the bytes of that connection, and how it ends
 *   qmp_kept.c                    how much of what QEMU sends is kept
 *   qmp_client.c                  which process has a monitor
 *   guest_ram.c, guest_ram_proc.c its guest RAM, by QMP and by /proc
 *   guest_ram_file.c, file_users.c files of guest RAM after QEMU's end; who can write to them
 *   inject.c, inject_uffd.c       a userfaultfd of QEMU's, made by ptrace
 *   registers.c                   registers of the processors for which this is known
 *   tracker.c                     which pages of guest RAM are written while the VM runs
 *   adopt.c                       replaces the file of a block by another one
 *   proc.c                        what /proc tells of its descriptors and its memory
 */
#ifndef IBX_MIGRATE_QEMU_QEMU_H
#define IBX_MIGRATE_QEMU_QEMU_H

#include "common/error.h"

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>

/* ------------------------------------------------------------ QMP */

/*
 * QMP. One thread owns a client. No call blocks beyond its deadline (CLOCK_MONOTONIC nanoseconds,
 * common/clock.h); a deadline that has passed means "only what is there already". The peer is not
 * trusted: lines, nesting and the queue of events are limited. A peer that does not speak QMP,
 * hangs up or stops reading leaves the client failed: every later call returns the same error. A
 * call that ran into its deadline (-ETIMEDOUT) leaves it usable: the late answer is dropped.
 */
#define IBX_QMP_EVENTS_MAX 1024u /* queued; those that no migration needs are dropped first */
#define IBX_QMP_AHEAD_MAX  64u   /* queries of ibx_qmp_ahead() at a time */
#define IBX_QMP_NAME_MAX   80u /* bytes of a socket's name in its folder; the path may be longer */

struct ibx_qmp;

struct ibx_qmp_version {
    unsigned major, minor, micro;
};

/* Whether a path can be connected to: it, or its last component, fits a socket address. */
bool ibx_qmp_reachable(const char *path);
/* Connects to the socket at `path`, waits for the greeting and negotiates. -ETIMEDOUT also when
 * another client holds the monitor: QEMU serves one at a time. `*qmp` is set on success only. */
int ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                    struct ibx_error *err);
/* The same for whoever begins something new. -EBUSY, after a second: that client is an ib-migrate,
 * which keeps it; another one is named in the log then. (Whoever has to continue a VM waits: that
 * ib-migrate may be about to end.) */
int ibx_qmp_connect_unless_busy(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                                struct ibx_error *err);
/* The process that has the monitor at `path`, with its name, for a person: "process 7 (ib-migrate
 * freeze)". `at_work`: it is an ib-migrate that works on the VM, and not one that asks about it or
 * puts it back. -ENOENT: none has it; also where the kernel does not tell (unix_diag), or the
 * process is another user's. */
int ibx_qmp_client_find(const char *path, bool *at_work, char *text, size_t size);
/* The same over a connected socket, which the client takes over, also on failure. */
int ibx_qmp_attach(int fd, uint64_t deadline_ns, struct ibx_qmp **qmp, struct ibx_error *err);
/* Accepts NULL. QEMU still executes the commands that it has received. */
void ibx_qmp_close(struct ibx_qmp *qmp);
/* Goes on with a connection whose client has ended, in a child of that: `of` is the client as it
 * was when this process was made, and `fd` a copy of its descriptor, which is taken over. */
int ibx_qmp_take_over(const struct ibx_qmp *of, int fd, uint64_t deadline_ns, struct ibx_qmp **qmp,
                      struct ibx_error *err);
/* If the VM was shut down and QEMU is about to end: the reason ("guest-shutdown"); otherwise NULL.
 * From then on no command is sent (-ETIMEDOUT), and commands without an answer fail after a second
 * as if QEMU had closed the socket. Accepts NULL. */
const char *ibx_qmp_ends(const struct ibx_qmp *qmp);
/* To be called before close: if QEMU hangs while it ends because of an unanswered command of this
 * client, it gets SIGTERM. `pid`: certainly of this QEMU; 0: not known. Waits for a second at most.
 * Accepts NULL. */
void ibx_qmp_end(struct ibx_qmp *qmp, pid_t pid);

/* For poll(2) with POLLIN; then ibx_qmp_pump. */
int ibx_qmp_fd(const struct ibx_qmp *qmp);
/* The process at the other end, by SO_PEERCRED: who created the listening socket. 0 when the kernel
 * does not know it (another PID namespace). */
pid_t ibx_qmp_pid(const struct ibx_qmp *qmp);
/* Whether that process lives. -ECONNRESET: it has ended, and its pid may be another process's by
 * now, even though somebody still serves the socket. 0: it lives, or the kernel cannot tell (before
 * Linux 6.5). */
int ibx_qmp_lives(const struct ibx_qmp *qmp, struct ibx_error *err);
struct ibx_qmp_version ibx_qmp_version(const struct ibx_qmp *qmp);
/* Whether version `is` is `major`.`minor` or later. */
bool ibx_qmp_at_least(struct ibx_qmp_version is, unsigned major, unsigned minor);
/* Whether both are of one release series, such as 7.2.0 and 7.2.9: they have the same devices and
 * properties. */
bool ibx_qmp_same_version(struct ibx_qmp_version a, struct ibx_qmp_version b);
/* Whether this version of QEMU leaves a sleeping (S3) VM asleep when it stops it, so that it cannot
 * be continued. */
bool ibx_qmp_sleeps_on(struct ibx_qmp_version is);

/* Runs a command and waits for its answer. `arguments` (an object or NULL) is consumed, also on
 * failure. `result`, when not NULL, gets a reference to what QEMU returned.
 * -EOPNOTSUPP: QEMU does not know the command; -EREMOTEIO: QEMU refused, in its own words. */
int ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments, json_t **result,
                    uint64_t deadline_ns, struct ibx_error *err);
/* Two commands that QEMU gets in one piece: nothing that becomes of this process comes between
 * them, and of another client's commands one at most. */
struct ibx_qmp_pair {
    const char *first, *second;
    json_t *arguments[2]; /* objects or NULL; consumed */
};
/* Runs both, the second also if QEMU refuses the first, and waits for both answers. Returns what
 * became of the second; `*first`, which is only set if both were sent, what became of the first.
 * Drops queries that were sent ahead. */
int ibx_qmp_execute_both(struct ibx_qmp *qmp, const struct ibx_qmp_pair *both, int *first,
                         uint64_t deadline_ns, struct ibx_error *err);
/* Runs query-named-block-nodes, with "flat" if QEMU knows that argument (5.0): then the answer does
 * not repeat the backing chain of every node. ibx_qmp_ahead() has to send it with "flat", too. */
int ibx_qmp_block_nodes(struct ibx_qmp *qmp, json_t **nodes, uint64_t deadline_ns,
                        struct ibx_error *err);
/* Sends a query before ibx_qmp_execute() is called for it, soon, with the same arguments, which
 * then takes the answer: QEMU answers several queries in the time of one. Only for commands that
 * change nothing, and whose answer may be a moment old. Consumes `arguments`. A query that cannot
 * be sent now is sent by ibx_qmp_execute(); one that is under way is not sent again. */
void ibx_qmp_ahead(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                   uint64_t deadline_ns);
/* The id of commands that the watchdog sends over a tool's connection (common/stand_in.h). The tool
 * takes no notice of the answers but this: */
#define IBX_QMP_STAND_IN "ibx-stand-in"
/* A mark of the last answer, from which such commands count. */
uint64_t ibx_qmp_mark(struct ibx_qmp *qmp);
/* Whether QEMU has done the first of them after a mark's answer. */
bool ibx_qmp_stood_in(const struct ibx_qmp *qmp, uint64_t since);
/* A mark of the first answer to a command that is asked from now on. */
uint64_t ibx_qmp_mark_next(const struct ibx_qmp *qmp);
/* A mark for ibx_qmp_ahead_end(), which leaves queries sent before it alone. */
uint64_t ibx_qmp_ahead_begin(const struct ibx_qmp *qmp);
/* Drops the queries sent ahead since the mark (0: all) that ibx_qmp_execute() has not asked for, so
 * that no later call gets an old answer. Returns how many there were. */
unsigned ibx_qmp_ahead_end(struct ibx_qmp *qmp, uint64_t since);
/* Caching of answers: QEMU reads its monitor byte by byte, at some microseconds each. Properties of
 * the machine, which do not change, are always cached. With `on` answers about memory, devices,
 * jobs and exports are cached from now on, each for a second at most; with false they no longer
 * are. A cached result is shared by all callers, who must not change it. */
void ibx_qmp_remember(struct ibx_qmp *qmp, bool on);
/* Properties of the object at `path` for which `constant` returns true do not change either: from
 * now on they are cached as those of the machine, instead of those of an earlier path. */
void ibx_qmp_fix(struct ibx_qmp *qmp, const char *path, bool (*constant)(const char *property));
/* Sends a command without waiting; ibx_qmp_reply() takes the answer. Replaces an earlier posted
 * command, whose answer is dropped, unless this one cannot be sent. */
int ibx_qmp_post(struct ibx_qmp *qmp, const char *command, uint64_t deadline_ns,
                 struct ibx_error *err);
/* The whole message that answers the posted command, a new reference; NULL: ibx_qmp_pump() has not
 * received it yet. */
json_t *ibx_qmp_reply(struct ibx_qmp *qmp);
/* Passes `fd` (which stays the caller's) to QEMU under `name`, for "fd:NAME" and ioctls. */
int ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                  struct ibx_error *err);

/* Until this time (CLOCK_MONOTONIC, ns) waiting for answers polls instead of sleeping. */
void ibx_qmp_spin_until(struct ibx_qmp *qmp, uint64_t until_ns);

/* Receives whatever has arrived; never blocks. */
int ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err);
/* Whether events are queued: poll(2) no longer reports them. */
bool ibx_qmp_has_events(const struct ibx_qmp *qmp);
/* The oldest queued event (a new reference), or NULL. */
json_t *ibx_qmp_event_next(struct ibx_qmp *qmp);

/* ------------------------------------------------------------ guest RAM */

/*
 * Guest RAM: which memory backends QEMU has (QMP), where they lie in its address space and in which
 * file (/proc), and which of their pages were ever written. Hot-plugged backends count too. Small
 * RAM blocks of devices and firmware are no backends: QEMU sends them with the device state.
 */
#define IBX_GUEST_BLOCKS_MAX 64u
#define IBX_GUEST_ID_MAX     128u

struct ibx_guest_block {
    char id[IBX_GUEST_ID_MAX]; /* of the memory backend: the same on both sides */
    char type[48];       /* memory-backend-file, memory-backend-memfd, memory-backend-ram, ... */
    char path[PATH_MAX]; /* mem-path as QEMU knows it; "" for other types than file */
    bool shared;         /* share=on; what follows is set for shared blocks only */
    bool named;          /* `path` leads to this very file */
    bool discards;       /* discard-data=on: QEMU empties the file when it ends */
    uint64_t size;       /* bytes */
    uint64_t page_size;  /* bytes: 4096, or the huge page's */
    uint64_t offset;     /* of the block in its file, bytes */
    uint64_t address;    /* in QEMU's address space */
    uint64_t dev, ino;   /* of the file */
    uint64_t file;       /* differs for each file of every host; 0: not known */
    bool unmapped;       /* QEMU has it mapped no more: ibx_guest_ram_reopen_unmapped() */
    bool gone;           /* ... and its file is gone, too: `fd` is another one in its place */
    int fd;              /* the file, opened for us; -1 when not shared */
};

struct ibx_guest_ram {
    pid_t pid;
    struct ibx_qmp_version version;
    char machine[64];               /* type, such as pc-q35-7.2 */
    char uuid[40];                  /* all zeros when QEMU was not given one */
    char name[128];                 /* -name, "" without */
    char status[32];                /* run state: running, paused, inmigrate, ... */
    uint64_t machine_bytes;         /* base and plugged memory of the machine */
    uint64_t bytes;                 /* sum of all blocks */
    struct ibx_guest_block *blocks; /* by id */
    size_t count;
};

/* To be called before ibx_guest_ram_find(): sends its queries by ibx_qmp_ahead(). The second
 * function waits for some of the answers and sends the queries that depend on them. */
void ibx_guest_ram_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
void ibx_guest_ram_ask_backends(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Finds guest RAM, in the process at the other end of the QMP socket. `writable` opens the files
 * for writing, too: the destination needs it, and RDMA registration at the source on some kernels.
 * Private blocks are listed, not opened: ibx_preflight_ram() makes them blockers.
 * -EACCES, -EPERM: missing permission on the process; -ENOENT, -ESRCH: not the process that holds
 * this RAM. `ram` is set on success only; ibx_guest_ram_fini() ends it. */
int ibx_guest_ram_find(struct ibx_qmp *qmp, bool writable, struct ibx_guest_ram *ram,
                       uint64_t deadline_ns, struct ibx_error *err);
/* The same without QMP, from a known layout: pid, and each block's id, size, page_size, offset,
 * address, dev, ino and fd -1. Opens the files for writing, too; ibx_guest_ram_fini() closes them,
 * also after a failure. -ESTALE: the process has something else there. */
int ibx_guest_ram_reopen(struct ibx_guest_ram *ram, struct ibx_error *err);
/* The same where another client of QEMU may have removed a backend since (object-del): if nothing
 * of its file is mapped any more, the block is `unmapped`, and its file is opened as by
 * ibx_guest_file_open(); fd stays -1 if that file is gone (see below). `files`: of each block. */
struct ibx_guest_file;
int ibx_guest_ram_reopen_unmapped(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                                  const char *suffix, bool writable, struct ibx_error *err);
/* Closes the files. */
void ibx_guest_ram_fini(struct ibx_guest_ram *ram);

/* Where a private block lies in QEMU's address space, by its human monitor. -ENOTSUP: the machine
 * does not show it. */
int ibx_guest_block_ask_address(struct ibx_qmp *qmp, const struct ibx_guest_block *block,
                                uint64_t *address, uint64_t deadline_ns, struct ibx_error *err);
/* A property of the block of this id that a new mapping of it has to be told again: `dump`, whether
 * QEMU wants it in its core dumps, and `merge`, whether KSM may merge its pages. The machine's
 * dump-guest-core and mem-merge are their defaults. */
int ibx_guest_block_ask_flag(struct ibx_qmp *qmp, const char *id, const char *property, bool *flag,
                             uint64_t deadline_ns, struct ibx_error *err);

/* Finds in the output of QEMU's "info mtree -f" the guest physical address of the first part of a
 * backend that the machine shows, and the offset `into` the backend at which that part begins.
 * False: it shows no part. */
bool ibx_guest_physical_find(const char *tree, const char *id, uint64_t *physical, uint64_t *into);

const struct ibx_guest_block *ibx_guest_ram_block(const struct ibx_guest_ram *ram, const char *id);

/* Sets a bit in `bits` (one per page of the block, lowest first, (pages + 63) / 64 words) for every
 * page that may hold something else than zeros, clears the others and counts the set ones. Reads no
 * page, so it allocates none. While the VM runs, the answer is out of date at once. */
int ibx_guest_block_written(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* The same for every page that QEMU itself has mapped, or had mapped when it was swapped out. Pages
 * that other processes put in the file do not count, nor those that QEMU has unmapped. */
int ibx_guest_block_mapped(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                           uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* Updates `bits` and `count` of an earlier ibx_guest_block_written(). Searches only what were holes
 * then, because the kernel takes 15 ms a GiB to walk through written memory. A page that was
 * discarded since keeps its bit. */
int ibx_guest_block_written_since(const struct ibx_guest_ram *ram,
                                  const struct ibx_guest_block *block, uint64_t *bits,
                                  uint64_t *count, struct ibx_error *err);
/* Room for the bits of a block's pages, all 0; to be freed. NULL: there is no memory, and *err says
 * so. */
uint64_t *ibx_guest_bits_make(const struct ibx_guest_block *block, struct ibx_error *err);
/* The first page of [page, end) whose bit is `value`, or `end`. */
uint64_t ibx_guest_bits_next(const uint64_t *bits, uint64_t page, uint64_t end, bool value);

/* ------------------------------------------------------------ guest RAM without its QEMU */

/*
 * The file of a shared block outlives its QEMU if it has a name (a mem-path in /dev/shm or in
 * hugetlbfs). struct ibx_guest_file is made while QEMU lives, to find exactly that file again: the
 * same inode with the same owner and mode, in the same boot of the same host.
 */
#define IBX_GUEST_FILE_PATH 256u

struct ibx_guest_file {
    char path[IBX_GUEST_FILE_PATH]; /* as this tool reaches it; "": it has no name, or a longer one
                                     */
    uint64_t file;                  /* ibx_guest_block.file: identifies the file in this boot */
    uint32_t owner, mode;           /* st_uid; st_mode with the type */
};

/* Describes the file of a block that has been found in a QEMU that lives. */
void ibx_guest_file_describe(pid_t pid, const struct ibx_guest_block *block,
                             struct ibx_guest_file *file);
/* Finds the file of a block, whose dev and ino are set, under its name or under that name with
 * `suffix`, which ibx_guest_file_set_aside() gives it; sets `path`. -ENOENT: there is no such file;
 * -ESTALE: it is another file, or has another owner or mode. */
int ibx_guest_file_find(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, char path[PATH_MAX], struct ibx_error *err);
/* Whether nobody finds the file any more, or all of it: it has no name, another file has its names
 * now, or it was cut short. */
bool ibx_guest_file_is_gone(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                            const char *suffix);
/* Opens that file, and no other that has its name by now, and sets the block's path. -ESTALE also
 * if the page size differs. */
int ibx_guest_file_open(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, bool writable, struct ibx_error *err);
/* Opens the folder of `path` by O_PATH and sets `*base` to the file's name in it, after checking
 * that it is that file and no symbolic link. Removing or renaming the file in that folder is then
 * safe from somebody who renames folders of the path. -ESTALE: it is another file. */
int ibx_guest_file_folder(const char *path, uint64_t dev, uint64_t ino, const char **base);
/* As ibx_guest_ram_reopen(), for a QEMU that has ended; `files` has one entry a block. Opens the
 * files and sets the blocks' paths. ram->pid becomes 0, and all pages in hugetlbfs count as
 * written. -EBUSY names a process that has such a file open or mapped for writing. */
int ibx_guest_ram_open_files(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                             const char *suffix, bool writable, struct ibx_error *err);
/* Adds `suffix` to the name of a block's open file, so that a QEMU that is started again by its old
 * command line makes a new file instead of writing to this one. Sets the block's path. Has no
 * effect on a file that has been set aside before. */
int ibx_guest_file_set_aside(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                             const char *suffix, struct ibx_error *err);
/* A process that can write to the file of a block. */
struct ibx_guest_user {
    pid_t pid; /* 0: there is none */
    char name[32];
    const struct ibx_guest_block *block;
};
/* Finds a process, other than this one, `qemu` (or 0) and its children, that can write to the file
 * of an open block; with `mapped` only one that has mapped it. Processes of other users are seen by
 * root only. -ETIMEDOUT names a process whose maps cannot be read now; a thread is left then, which
 * ends when they can. */
int ibx_guest_ram_find_user(const struct ibx_guest_ram *ram, pid_t qemu, bool mapped,
                            struct ibx_guest_user *found, struct ibx_error *err);
/* For a QEMU that has ended: -EBUSY names such a process. */
int ibx_guest_ram_check_unused(const struct ibx_guest_ram *ram, struct ibx_error *err);

/* 1: the process has a block's file mapped as guest RAM; 0: it has not; < 0: its mappings cannot be
 * read, as when it ends. */
int ibx_guest_block_find_mapping(pid_t pid, const struct ibx_guest_block *block);
/* -ESTALE names an open block's file that somebody has cut short since: whoever reads beyond its
 * end gets SIGBUS, QEMU too, and what was there is lost. Does not see a file that was cut and has
 * its size again. `used`: only files that the QEMU still has mapped, since no VM needs memory that
 * was removed from it. */
int ibx_guest_ram_check_sizes(const struct ibx_guest_ram *ram, bool used, struct ibx_error *err);
/* The same for the file of one block, which `path` and `st` describe. */
int ibx_guest_block_check_size(const struct ibx_guest_block *block, const char *path,
                               const struct stat *st, struct ibx_error *err);

/* ------------------------------------------------------------ userfaultfd */

/*
 * A userfaultfd that belongs to a running QEMU, obtained without QEMU's help.
 *
 * A userfaultfd serves the address space of the process that creates it, so QEMU has to make the
 * call. This tool seizes QEMU's main thread by ptrace, has it execute one system call, restores all
 * its registers and releases it. The kernel restarts a system call that this has interrupted, as
 * after an ignored signal. pidfd_getfd then copies the descriptor to this tool.
 *
 * No failure here harms QEMU, nor does SIGKILL to this tool: a helper process makes the step, which
 * takes some ten microseconds, and finishes it. Only if SIGKILL hits that process, too, within the
 * step (a whole control group is killed, for instance), QEMU ends.
 *
 * On aarch64 a sleep of that thread for a length of time begins anew; QEMU's has none.
 * x86-64 and aarch64 only; elsewhere every call returns -ENOTSUP.
 */
enum ibx_uffd_way {
    IBX_UFFD_ANY,     /* the system call where QEMU may make it, else the device */
    IBX_UFFD_SYSCALL, /* userfaultfd(2) */
    IBX_UFFD_DEVICE,  /* /dev/userfaultfd (Linux 6.1) passed by QMP, then its ioctl */
};

/* QEMU's userfaultfd. Faults on missing pages wait until it is closed in QEMU, or QEMU ends. */
struct ibx_uffd {
    pid_t pid;
    int fd;     /* ours; non-blocking, CLOEXEC */
    int remote; /* its number in QEMU */
    enum ibx_uffd_way way;
};

/* Makes one. `pid` is QEMU's, `qmp` its monitor (for the device; may be NULL with SYSCALL). The
 * caller does the API handshake (UFFDIO_API). -EPERM: QEMU or we may not; -EBUSY: QEMU is traced
 * already or stopped by a signal; -ETIMEDOUT: its main thread did not come to a stop.
 * `uffd` is set on success only; the caller owns uffd->fd. */
int ibx_uffd_make(pid_t pid, struct ibx_qmp *qmp, enum ibx_uffd_way way, struct ibx_uffd *uffd,
                  uint64_t deadline_ns, struct ibx_error *err);
/* Finds the userfaultfd that an earlier run of this tool made, and takes a copy. `remote`: its
 * recorded number in QEMU, or -1. -ENOENT: there is none; -ENOTUNIQ: `remote` is -1 and QEMU has
 * several. */
int ibx_uffd_take(pid_t pid, int remote, struct ibx_uffd *uffd, struct ibx_error *err);
/* Whether the process has a userfaultfd with which memory is registered for missing or minor
 * faults: 1, 0, or an error if that cannot be seen. If it has a userfaultfd, the kernel walks all
 * of its page tables for the answer. */
int ibx_uffd_awaits_pages(pid_t pid, struct ibx_error *err);
/* Closes the userfaultfd in QEMU and here. Only after a complete migration: pages that are still
 * missing would read as zeros. After a failure both are still open. */
int ibx_uffd_close_in_qemu(struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err);
/* Allows or forbids transparent huge pages for guest RAM, for which QEMU asks. Before Linux 6.4 the
 * kernel may collapse pages of a file into a huge page while some of them are missing; these read
 * as zeros, and no fault is reported. So they are forbidden while pages may be missing. */
int ibx_guest_ram_huge_pages(const struct ibx_guest_ram *ram, bool allowed, uint64_t deadline_ns,
                             struct ibx_error *err);

/* Whether IBX_UFFD_ANY would find a way, without touching QEMU: 0, or an error with the remedy.
 * `way` may be NULL. */
int ibx_uffd_possible(pid_t pid, enum ibx_uffd_way *way, struct ibx_error *err);

/*
 * Tells which pages of its RAM QEMU writes, vCPUs and devices included, by a userfaultfd of QEMU's
 * that blocks no writer (userfaultfd/dirty.h). QEMU keeps no copy of it, so when this tool ends, in
 * whatever way, the kernel removes the protection.
 */
struct ibx_tracker {
    const struct ibx_guest_ram *ram;
    int uffd, pagemap; /* -1: it is not open */
};
void ibx_tracker_init(struct ibx_tracker *tracker);
/* `ram` stays the caller's and must not change until close. No page is protected yet. -EOPNOTSUPP:
 * the kernel is too old; others as ibx_uffd_make(). */
int ibx_tracker_open(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                     struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Makes a tracker for guest RAM that another tool serves and whose pages that tool places
 * write-protected (userfaultfd/fault.h). Its scans find all pages written since they were placed,
 * and protect none. */
int ibx_tracker_attach(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                       struct ibx_error *err);
/* Write-protects the pages of guest RAM that are already present, for such a tracker. To be called
 * after the userfaultfd was registered and before the VM runs. */
int ibx_guest_ram_protect(const struct ibx_guest_ram *ram, struct ibx_error *err);
/* Whether QEMU has mapped any page of guest RAM. -EOPNOTSUPP: the kernel (6.6 or older) does not
 * tell. */
int ibx_guest_ram_any_mapped(const struct ibx_guest_ram *ram, bool *any);
/* Protects the pages of a block whose bits in `which` are set, so that writes are noted from here
 * on; the first write to each costs a vCPU a page fault (1.5 us). All other pages in the same 2 MiB
 * are protected, too. Sets in `bits` those that were written before, or were never protected: no
 * later scan reports these writes. */
int ibx_tracker_protect(const struct ibx_tracker *tracker, size_t block, const uint64_t *which,
                        uint64_t *bits, struct ibx_error *err);
/* Sets the bits of the pages of a block that were written since they were protected, or were never
 * protected; small pages that QEMU has not mapped count as written, too. Protects no page, and so
 * costs the VM nothing. `last`: the VM stands still, so the scan may use several threads. */
int ibx_tracker_scan(const struct ibx_tracker *tracker, size_t block, bool last, uint64_t *bits,
                     struct ibx_error *err);
/* The same when the VM stands still, or for a tracker that was attached; by several threads if
 * there are enough processors. With `among` (or NULL) the scan may skip pages whose bit there is
 * clear. */
int ibx_tracker_scan_last(const struct ibx_tracker *tracker, size_t block, const uint64_t *among,
                          uint64_t *bits, struct ibx_error *err);
/* Sets the bits of the pages of a block that QEMU has mapped, which therefore are in its file. */
int ibx_tracker_mapped(const struct ibx_tracker *tracker, size_t block, uint64_t *bits,
                       uint64_t *count, struct ibx_error *err);
/* The same for `pages` pages from page `first` on; bit 0 is page `first`. */
int ibx_tracker_mapped_part(const struct ibx_tracker *tracker, size_t block, uint64_t first,
                            uint64_t pages, uint64_t *bits, struct ibx_error *err);
/* Waits until data that the host's kernel was reading into guest RAM before the last scan has come.
 * Direct reads (cache=none) and commands of SCSI devices mark the pages that they fill as written
 * when they begin, not when the data comes. The guest's disks pause for as long. */
int ibx_tracker_settle(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
void ibx_tracker_close(struct ibx_tracker *tracker);

/*
 * Replaces the guest RAM of a QEMU that has not run yet (-incoming defer) by the memory of `base`,
 * whose blocks have the same sizes and whose files are open here. Afterwards QEMU has these files
 * open and mapped as if it had been started with them, but has not touched them, and `ram`
 * describes them, with the paths of `base`. After a failure QEMU is of no use and must end.
 */
int ibx_guest_ram_adopt(struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                        struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Whether ibx_guest_ram_adopt() is possible; does not touch QEMU. -EINVAL, -EXDEV: it is not. */
int ibx_guest_ram_adoptable(const struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                            struct ibx_error *err);

/* ------------------------------------------------------------ /proc */

/* Whether the process has crashed and the kernel is writing its core dump: until that is done, it
 * has not ended and its sockets are open. False also if the kernel does not tell. */
bool ibx_proc_dumps_core(pid_t pid);
/* Returns whether descriptor `number`, the link at `path`, is the wanted one. False with errno
 * EACCES or EPERM: it may not be read. */
typedef bool ibx_proc_look(void *context, int number, const char *path);
/* As stat(2) of the link at `path`, but sets only st_dev, st_ino, st_rdev and the type in st_mode,
 * and asks no server: a descriptor may be of a file on a file system that does not answer, of NFS
 * whose server is gone, or of FUSE, where any user may be the server. */
int ibx_proc_stat(const char *path, struct stat *st);
/* The number of the first descriptor of `pid` for which `look` is true. -ENOENT: there is none;
 * -EACCES, -EPERM: none among those that may be read, or /proc does not show the process; -ESRCH:
 * there is no such process; others: none among those that could be listed. */
int ibx_proc_find_descriptor(pid_t pid, ibx_proc_look *look, void *context);
/* The same for the socket with this inode number. */
int ibx_proc_find_socket(pid_t pid, uint64_t inode);
/* A duplicate of descriptor `number` of the process (pidfd_getfd), close-on-exec, or an error:
 * -EPERM: this process may not trace it; -EBADF: it has no such descriptor; -ESRCH: it has ended.
 */
int ibx_proc_take(pid_t pid, int number);
/* Opens the file to which `path` leads, after `fits` has said that it is the right one. A file that
 * another process puts in its place meanwhile is not opened, since opening alone may have an effect
 * (arm a watchdog). Returns a descriptor; -ESTALE: it does not fit; or an error of open(2). */
int ibx_proc_open(const char *path, int flags,
                  bool (*fits)(const void *context, const struct stat *st), const void *context);
/* One line of /proc/PID/maps. */
struct ibx_proc_mapping {
    uint64_t start, end;
    uint64_t offset, dev, ino; /* of its file; ino 0: it has no file */
    char permissions[5];       /* "rw-p", "r-xs" */
    const char *path;          /* "[vdso]", "" */
};
/* Returns whether this mapping is the wanted one; then the search ends. */
typedef bool ibx_proc_look_mapping(void *context, const struct ibx_proc_mapping *mapping);
/* Calls `look` for the mappings of `pid` by rising addresses. 1: it has returned true; 0: it has
 * not; < 0: the mappings cannot be read. */
int ibx_proc_find_mapping(pid_t pid, ibx_proc_look_mapping *look, void *context);
/* The same for the flags of the mapping [start, end): the words of VmFlags, each after a blank. */
typedef bool ibx_proc_look_flags(void *context, uint64_t start, uint64_t end, const char *flags);
/* As ibx_proc_find_mapping(), but the kernel walks all page tables of the process for the answer.
 */
int ibx_proc_find_flags(pid_t pid, ibx_proc_look_flags *look, void *context);
/* As ibx_proc_find_mapping(), but from Linux 6.11 on only for mappings of files that are shared and
 * writable: that kernel can be asked for these alone, and writes no text for all others. Their
 * `path` is "" then, and `permissions` "rw-s". */
int ibx_proc_find_writable(pid_t pid, ibx_proc_look_mapping *look, void *context);
/* The error to return if a file of /proc/PID cannot be opened with errno `code`: with hidepid,
 * /proc hides processes of other users, so ENOENT does not mean that there is no such process. */
int ibx_proc_error(pid_t pid, int code);
/* "; run this tool as ..." for an error caused by missing permissions, "" for others. */
const char *ibx_proc_remedy(int rc);
/* A copy of the command line of a process, each argument of which ends with a null byte; to be
 * closed by fclose(). NULL: `pid` is not known (0), or it cannot be read, or with errno E2BIG, it
 * is longer than any with which a program can be started. */
FILE *ibx_proc_arguments(pid_t pid);
/* Whether a QEMU keeps running after its guest has shut down, by its command line (-no-shutdown,
 * -action shutdown=pause). A change by a monitor (set-action) is not seen. False if `pid` is not
 * known. */
bool ibx_proc_stays(pid_t pid);

/* ------------------------------------------------------------ a call in QEMU */

/* Makes one system call in the main thread of `pid`; it must not wait and end no thread. `result`
 * gets what the kernel returned, which may be a negative errno. */
int ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                       uint64_t deadline_ns, struct ibx_error *err);

#endif
