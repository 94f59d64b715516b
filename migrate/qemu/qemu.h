/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A running QEMU, seen and used from outside. The source, the destination and preflight call it; it
 * knows no migration.
 *
 *   qmp.c, qmp_connect.c          a client of its machine protocol (QMP) over a unix socket
 *   qmp_stream.c                  the bytes of that, and its end
 *   guest_ram.c, guest_ram_proc.c its guest RAM, by QMP and by /proc
 *   guest_ram_file.c, file_users.c its files when QEMU has ended, and who else can write to them
 *   inject.c, inject_uffd.c       a userfaultfd of QEMU's, made by ptrace
 *   tracker.c                     which pages of guest RAM are written while the VM runs
 *   adopt.c                       another file in the place of a block's
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
#define IBX_QMP_EVENTS_MAX 1024u /* kept for later: those that no migration needs go first */
#define IBX_QMP_AHEAD_MAX  64u   /* questions that are sent before they are asked */
#define IBX_QMP_NAME_MAX   80u /* bytes of a socket's name in a folder, however long its path is */

struct ibx_qmp;

struct ibx_qmp_version {
    unsigned major, minor, micro;
};

/* Whether a path can be connected to: it is short enough for a socket's address, or its name in
 * its folder is. */
bool ibx_qmp_reachable(const char *path);
/* Connects to the socket at `path`, waits for the greeting and negotiates. -ETIMEDOUT also when
 * another client holds the monitor: QEMU serves one at a time. `*qmp` is set on success only. */
int ibx_qmp_connect(const char *path, uint64_t deadline_ns, struct ibx_qmp **qmp,
                    struct ibx_error *err);
/* The same over a connected socket, which the client owns from here, also on failure. */
int ibx_qmp_attach(int fd, uint64_t deadline_ns, struct ibx_qmp **qmp, struct ibx_error *err);
/* NULL is fine. QEMU still executes the commands that it has received. */
void ibx_qmp_close(struct ibx_qmp *qmp);
/* Why the VM was shut down ("guest-shutdown"), where its QEMU ends with it; NULL: it does not. From
 * then on nothing is sent, which fails with -ETIMEDOUT; what is unanswered fails after a second as
 * if QEMU had closed the socket. NULL is fine. */
const char *ibx_qmp_ends(const struct ibx_qmp *qmp);
/* Before it is closed: a QEMU that hangs in its end over a question of this client's gets SIGTERM.
 * `pid`: of the QEMU, for certain; 0: not known. Waits for a second at most. NULL is fine. */
void ibx_qmp_end(struct ibx_qmp *qmp, pid_t pid);

/* For poll(2) with POLLIN; then ibx_qmp_pump. */
int ibx_qmp_fd(const struct ibx_qmp *qmp);
/* The process at the other end, by SO_PEERCRED: who created the listening socket. 0 when the kernel
 * does not know it (another PID namespace). */
pid_t ibx_qmp_pid(const struct ibx_qmp *qmp);
/* -ECONNRESET: it has ended, and the number may be another process's by now, where somebody else
 * serves its socket. 0, too, where the kernel does not tell (before Linux 6.5). */
int ibx_qmp_lives(const struct ibx_qmp *qmp, struct ibx_error *err);
struct ibx_qmp_version ibx_qmp_version(const struct ibx_qmp *qmp);
/* True from `major`.`minor` on. */
bool ibx_qmp_at_least(struct ibx_qmp_version is, unsigned major, unsigned minor);
/* Whether this QEMU does not wake a VM that sleeps (S3) when it stops it: it cannot continue it. */
bool ibx_qmp_sleeps_on(struct ibx_qmp_version is);

/* Runs a command and waits for its answer. `arguments` (an object or NULL) is consumed, also on
 * failure. `result`, when not NULL, gets a reference to what QEMU returned.
 * -EOPNOTSUPP: QEMU does not know the command; -EREMOTEIO: QEMU refused, in its own words. */
int ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments, json_t **result,
                    uint64_t deadline_ns, struct ibx_error *err);
/* query-named-block-nodes, without what is asked for node by node where QEMU has "flat", as it has
 * from 5.0 on. Sent ahead it has "flat", too. */
int ibx_qmp_block_nodes(struct ibx_qmp *qmp, json_t **nodes, uint64_t deadline_ns,
                        struct ibx_error *err);
/* Sends a question that ibx_qmp_execute() is to ask soon with the same arguments, and takes its
 * answer then: QEMU answers several in the time of one. Of what changes nothing, and of what may
 * be answered a moment early. Consumes `arguments`. What cannot be sent now is sent when it is
 * asked, and what has been sent ahead already is not sent again. */
void ibx_qmp_ahead(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                   uint64_t deadline_ns);
/* For ibx_qmp_ahead_end(): what has been sent until now is another caller's. */
uint64_t ibx_qmp_ahead_begin(const struct ibx_qmp *qmp);
/* Forgets the questions sent ahead since then (0: all) that nobody has asked, so that no later one
 * gets an old answer; returns how many there were. */
unsigned ibx_qmp_ahead_end(struct ibx_qmp *qmp, uint64_t since);
/* QEMU reads its monitor byte by byte, at some microseconds each. So the properties of its machine,
 * which do not change, are asked for once; and from now on what it has told of its memory, devices,
 * jobs and exports is not asked for again, for a second at most; false: it is. What is returned so
 * belongs to all who ask: nobody changes it. */
void ibx_qmp_remember(struct ibx_qmp *qmp, bool on);
/* Sends a command whose answer is taken by ibx_qmp_reply() after it has come, in place of one that
 * was sent so before; of that one, if it cannot be sent. */
int ibx_qmp_post(struct ibx_qmp *qmp, const char *command, uint64_t deadline_ns,
                 struct ibx_error *err);
/* That answer, a reference to the whole message, or NULL: ibx_qmp_pump() has not seen it. */
json_t *ibx_qmp_reply(struct ibx_qmp *qmp);
/* Passes `fd` (which stays the caller's) to QEMU under `name`, for "fd:NAME" and ioctls. */
int ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                  struct ibx_error *err);

/* Waits for answers spin until this time (CLOCK_MONOTONIC, ns). */
void ibx_qmp_spin_until(struct ibx_qmp *qmp, uint64_t until_ns);

/* Takes in whatever has arrived; never blocks. */
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
    bool left;           /* QEMU has it mapped no more: ibx_guest_ram_reopen_left() */
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

/* Sends questions of ibx_guest_ram_find(), which is called soon, by ibx_qmp_ahead(). The second
 * waits for some of their answers, and sends what is asked because of these. */
void ibx_guest_ram_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
void ibx_guest_ram_ask_backends(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Finds all of it, in the process at the other end of the QMP socket. `writable` opens the files
 * for writing too: the destination needs it, and RDMA registration at the source on some kernels.
 * Private blocks are listed, not opened: ibx_preflight_ram() makes them blockers.
 * -EACCES, -EPERM: missing permission on the process; -ENOENT, -ESRCH: not the process that holds
 * this RAM. `ram` is set on success only; ibx_guest_ram_fini() ends it. */
int ibx_guest_ram_find(struct ibx_qmp *qmp, bool writable, struct ibx_guest_ram *ram,
                       uint64_t deadline_ns, struct ibx_error *err);
/* The same without QMP, from a known layout: pid, and each block's id, size, page_size, offset,
 * address, dev, ino and fd -1. Opens the files; ibx_guest_ram_fini() closes them, also after a
 * failure. -ESTALE: the process has something else there. */
int ibx_guest_ram_reopen(struct ibx_guest_ram *ram, bool writable, struct ibx_error *err);
/* The same where another client of QEMU may have removed a backend since (object-del): if nothing
 * of its file is mapped any more, the block is `left`, and its file is opened as by
 * ibx_guest_file_open(). `files`: of each block. */
struct ibx_guest_file;
int ibx_guest_ram_reopen_left(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                              const char *suffix, bool writable, struct ibx_error *err);
/* Closes the files. */
void ibx_guest_ram_fini(struct ibx_guest_ram *ram);

/* Where a private block lies in QEMU's address space, by its human monitor. -ENOTSUP: the machine
 * does not show it. */
int ibx_guest_block_ask_address(struct ibx_qmp *qmp, const struct ibx_guest_block *block,
                                uint64_t *address, uint64_t deadline_ns, struct ibx_error *err);

/* Where a backend begins in the guest's addresses, by QEMU's "info mtree -f", or where the first
 * part of it does that the machine shows, `into` bytes of it. False: it shows none. */
bool ibx_guest_physical_find(const char *tree, const char *id, uint64_t *physical, uint64_t *into);

const struct ibx_guest_block *ibx_guest_ram_block(const struct ibx_guest_ram *ram, const char *id);

/* Sets a bit in `bits` (one per page of the block, lowest first, (pages + 63) / 64 words) for every
 * page that may hold something else than zeros, clears the others and counts the set ones. Reads no
 * page, so it allocates none. While the VM runs, the answer is out of date at once. */
int ibx_guest_block_written(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                            uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* The same for every page that QEMU itself has mapped, or had when it was swapped out. Pages that
 * other processes put in the file do not count, nor those that QEMU has unmapped. */
int ibx_guest_block_mapped(const struct ibx_guest_ram *ram, const struct ibx_guest_block *block,
                           uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* ibx_guest_block_written() after an earlier answer in `bits` and `count`: looks only into the
 * holes of that time, because the kernel takes 15 ms a GiB to walk through written memory. A page
 * that was discarded since keeps its bit. */
int ibx_guest_block_written_since(const struct ibx_guest_ram *ram,
                                  const struct ibx_guest_block *block, uint64_t *bits,
                                  uint64_t *count, struct ibx_error *err);
/* The first page of [page, end) whose bit is `value`, or `end`. */
uint64_t ibx_guest_bits_next(const uint64_t *bits, uint64_t page, uint64_t end, bool value);

/* ------------------------------------------------------------ guest RAM without its QEMU */

/*
 * The file of a shared block outlives its QEMU where it has a name (a mem-path in /dev/shm or in
 * hugetlbfs). With what is noted while QEMU lives, the very file is found again: on the same boot
 * of the same host, the same inode with the same owner and mode.
 */
#define IBX_GUEST_FILE_PATH 256u

struct ibx_guest_file {
    char path[IBX_GUEST_FILE_PATH]; /* as this tool reaches it; "": by no name, or a longer one */
    uint64_t file;                  /* of struct ibx_guest_block: this file in this boot */
    uint32_t owner, mode;           /* st_uid; st_mode with the type */
};

/* `block` has been found, and its QEMU lives. */
void ibx_guest_file_describe(pid_t pid, const struct ibx_guest_block *block,
                             struct ibx_guest_file *file);
/* Whether the file of a block, of which dev and ino are set, still has its name, or that name with
 * `suffix` behind it, as ibx_guest_file_set_aside() gives it; `path` gets the name. -ENOENT: there
 * is no such file; -ESTALE: another one, or of another owner or mode. */
int ibx_guest_file_find(const struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, char path[PATH_MAX], struct ibx_error *err);
/* Opens that file, whatever has its name by now, and sets the block's path. -ESTALE also of another
 * page size. */
int ibx_guest_file_open(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                        const char *suffix, bool writable, struct ibx_error *err);
/* The folder of `path`, by O_PATH, in which `*base` is that file and no link to it: whoever may
 * rename folders of the path cannot have another file removed or renamed. -ESTALE: it is not. */
int ibx_guest_file_folder(const char *path, uint64_t dev, uint64_t ino, const char **base);
/* ibx_guest_ram_reopen() for a QEMU that has ended, with a file for each block: opens the files and
 * sets the blocks' paths. ram->pid becomes 0: all pages of hugetlbfs count as written. -EBUSY: a
 * process that has such a file open for writing, or mapped so, is named. */
int ibx_guest_ram_open_files(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                             const char *suffix, bool writable, struct ibx_error *err);
/* Renames the open file of a block: adds `suffix` to the name, so that a QEMU that is started again
 * by its old command line makes a new file instead of writing to this one. Sets the block's path.
 * Nothing is to be done for one that has been set aside. */
int ibx_guest_file_set_aside(struct ibx_guest_block *block, const struct ibx_guest_file *file,
                             const char *suffix, struct ibx_error *err);
/* -EBUSY names a process, other than this one and `qemu` (or 0), that can write to the file of an
 * open block. Processes of other users are seen by root only. */
int ibx_guest_ram_check_unused(const struct ibx_guest_ram *ram, pid_t qemu, struct ibx_error *err);

/* ------------------------------------------------------------ userfaultfd */

/*
 * A userfaultfd that belongs to a running QEMU, obtained without QEMU's help.
 *
 * A userfaultfd serves the address space of the process that creates it, so QEMU has to make the
 * call. ptrace seizes its main thread, has it execute one system call in place of what it was about
 * to do, restores all its registers and releases it. The kernel restarts a system call that this
 * has interrupted, as after an ignored signal. pidfd_getfd then copies the descriptor to us.
 *
 * Whatever fails here, QEMU is not harmed, nor does SIGKILL to this tool harm it: a process of its
 * own takes the step, some ten microseconds, and lives on to its end. Only SIGKILL to that process,
 * as to all of a control group, within the step ends QEMU.
 *
 * x86-64 only; elsewhere every call returns -ENOTSUP.
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
/* Finds the one that an earlier run of this tool made, and takes a copy. `remote`: its number as
 * it was recorded, or -1. -ENOENT: there is none; -ENOTUNIQ: with -1, QEMU has several. */
int ibx_uffd_take(pid_t pid, int remote, struct ibx_uffd *uffd, struct ibx_error *err);
/* 1: this process has any, and memory that waits for pages by one; 0: it does not; < 0: that cannot
 * be seen. If it has any, the kernel walks all of its page tables for the answer. */
int ibx_uffd_awaits_pages(pid_t pid, struct ibx_error *err);
/* Closes it in QEMU and here. Only after a complete migration: pages that are missing then read as
 * zeros. After a failure both are still open. */
int ibx_uffd_close_in_qemu(struct ibx_uffd *uffd, uint64_t deadline_ns, struct ibx_error *err);
/* Transparent huge pages of guest RAM: QEMU asks the kernel for them. Before Linux 6.4 the kernel
 * makes one of a file's pages where some of them are missing, with zeros in their place, for which
 * no fault comes: so none are allowed as long as pages may be missing, and then again. */
int ibx_guest_ram_huge_pages(const struct ibx_guest_ram *ram, bool allowed, uint64_t deadline_ns,
                             struct ibx_error *err);

/* Whether IBX_UFFD_ANY would find a way, without touching QEMU: 0, or an error with the remedy.
 * `way` may be NULL. */
int ibx_uffd_possible(pid_t pid, enum ibx_uffd_way *way, struct ibx_error *err);

/*
 * Which pages of its RAM QEMU writes, vCPUs and devices included, by a userfaultfd of QEMU's that
 * nobody waits for (userfaultfd/dirty.h). It is this process's alone, so that whatever becomes of
 * the tool, QEMU is as it was.
 */
struct ibx_tracker {
    const struct ibx_guest_ram *ram;
    int uffd, pagemap; /* -1: it is not open */
};
void ibx_tracker_init(struct ibx_tracker *tracker);
/* `ram` is the caller's until close. No page is protected yet. -EOPNOTSUPP: the kernel is too old;
 * others as ibx_uffd_make(). */
int ibx_tracker_open(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                     struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* For guest RAM whose pages were placed write-protected (userfaultfd/fault.h) by another tool,
 * which serves it: scans find all that was written since, and change nothing. */
int ibx_tracker_attach(struct ibx_tracker *tracker, const struct ibx_guest_ram *ram,
                       struct ibx_error *err);
/* Protects the pages of guest RAM that are there, and those that come as they are, for such a
 * tracker: after its userfaultfd was registered, before the VM runs. */
int ibx_guest_ram_protect(const struct ibx_guest_ram *ram, struct ibx_error *err);
/* Whether QEMU has mapped any page of guest RAM. -EOPNOTSUPP: the kernel (6.6 or older) does not
 * tell. */
int ibx_guest_ram_any_mapped(const struct ibx_guest_ram *ram, bool *any, struct ibx_error *err);
/* Writes to these pages of a block are noted from here on; the first one to each costs a vCPU a
 * page fault (1.5 us). Others in the same 2 MiB are protected with them. Sets the bits of those
 * that were written before, or were never protected: no later scan tells. */
int ibx_tracker_protect(const struct ibx_tracker *tracker, size_t block, const uint64_t *which,
                        uint64_t *bits, struct ibx_error *err);
/* Sets the bits of the pages of a block that were written since they were protected, or never were;
 * of small pages those that QEMU has not mapped, too. Protects none, and so costs the VM nothing.
 * `last`: the VM stands still. */
int ibx_tracker_scan(const struct ibx_tracker *tracker, size_t block, bool last, uint64_t *bits,
                     uint64_t *count, struct ibx_error *err);
/* The same for the last time, or of a tracker that was attached. Of `among` (NULL: all pages) those
 * are sure to be looked at that have their bits set. By several threads where there are
 * processors. */
int ibx_tracker_scan_last(const struct ibx_tracker *tracker, size_t block, const uint64_t *among,
                          uint64_t *bits, uint64_t *count, struct ibx_error *err);
/* Sets the bits of the pages of a block that QEMU has mapped, so that they are in its file. */
int ibx_tracker_mapped(const struct ibx_tracker *tracker, size_t block, uint64_t *bits,
                       uint64_t *count, struct ibx_error *err);
/* The same of `pages` of them from page `first` on, which is the first bit. */
int ibx_tracker_mapped_part(const struct ibx_tracker *tracker, size_t block, uint64_t first,
                            uint64_t pages, uint64_t *bits, struct ibx_error *err);
/* Waits until what the host's kernel was writing into pages of guest RAM before the last scan is
 * there: reads past the page cache (cache=none) and commands of SCSI devices mark the pages that
 * they fill when they begin, not when the data comes. The guest's disks rest for as long. */
int ibx_tracker_settle(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
void ibx_tracker_close(struct ibx_tracker *tracker);

/*
 * Puts the memory of `base`, whose blocks are as large and in files that are open here, into the
 * place of the guest RAM of a QEMU that has not run yet (-incoming defer): QEMU then has mapped and
 * open what it would have if it had been started with these files, but has not touched them. `ram`
 * describes them afterwards, with the paths of `base`. After a failure QEMU is of no use and must
 * end.
 */
int ibx_guest_ram_adopt(struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                        struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Whether it can be, without touching QEMU. -EINVAL, -EXDEV. */
int ibx_guest_ram_adoptable(const struct ibx_guest_ram *ram, const struct ibx_guest_ram *base,
                            struct ibx_error *err);

/* ------------------------------------------------------------ /proc */

/* Whether the process has crashed, and the kernel still writes its core dump: it has not ended, and
 * has its sockets open, until that is done. False also where the kernel does not tell. */
bool ibx_proc_dumps_core(pid_t pid);
/* Whether this descriptor, the link at `path`, is it. False with errno EACCES or EPERM: it may not
 * be looked at. */
typedef bool ibx_proc_look(void *context, int number, const char *path);
/* The number of the first descriptor of `pid` that is it. -ENOENT: there is none; -EACCES, -EPERM:
 * none among those that may be looked at, or /proc does not show the process; -ESRCH: there is no
 * such process. */
int ibx_proc_find_descriptor(pid_t pid, ibx_proc_look *look, void *context);
/* A duplicate of descriptor `number` of the process (pidfd_getfd), close-on-exec, or an error:
 * -EPERM: this process may not trace it; -EBADF: it has none; -ESRCH: it has ended. */
int ibx_proc_take(pid_t pid, int number);
/* Opens that file to which `path` leads at one moment, if `fits` says that it is the right one:
 * whatever a process puts in its place is not opened, which alone may do something (arm a
 * watchdog). A descriptor; -ESTALE: it does not fit; or an error of open(2). */
int ibx_proc_open(const char *path, int flags,
                  bool (*fits)(const void *context, const struct stat *st), const void *context);
/* One line of /proc/PID/maps. */
struct ibx_proc_mapping {
    uint64_t start, end;
    uint64_t offset, dev, ino; /* in its file; ino 0: it has none */
    char permissions[5];       /* "rw-p", "r-xs" */
    const char *path;          /* "[vdso]", "" */
};
/* Whether this mapping is it. */
typedef bool ibx_proc_look_mapping(void *context, const struct ibx_proc_mapping *mapping);
/* 1: one of `pid` is, by rising addresses; 0: none is; < 0: they cannot be seen. */
int ibx_proc_find_mapping(pid_t pid, ibx_proc_look_mapping *look, void *context);
/* Whether the mapping from `start` to `end` is it; `flags` are the words of VmFlags, each behind a
 * blank. */
typedef bool ibx_proc_look_flags(void *context, uint64_t start, uint64_t end, const char *flags);
/* As ibx_proc_find_mapping(), but the kernel walks all page tables of the process for the answer.
 */
int ibx_proc_find_flags(pid_t pid, ibx_proc_look_flags *look, void *context);
/* The error for a file of /proc/PID that cannot be opened, with this errno: where /proc hides the
 * processes of others (hidepid) one that is there is not found. */
int ibx_proc_error(pid_t pid, int code);
/* "; run this tool as ...", "" for an error that is not for want of a right. */
const char *ibx_proc_remedy(int rc);
/* Whether a QEMU stays when its guest has shut the VM down, by its command line (-no-shutdown,
 * -action shutdown=pause). What a monitor has changed since (set-action) is not seen. False where
 * `pid` is not known. */
bool ibx_proc_stays(pid_t pid);

/* ------------------------------------------------------------ a call in QEMU */

/* One system call in the main thread of `pid`: one that does not wait and ends no thread. `result`
 * gets what the kernel returned, a negative errno too. */
int ibx_inject_syscall(pid_t pid, long number, const uint64_t arguments[6], int64_t *result,
                       uint64_t deadline_ns, struct ibx_error *err);

#endif
