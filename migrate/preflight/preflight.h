/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Blockers: what keeps a VM from migrating, found before anything is changed. Each is one sentence
 * with the value and the remedy. Both sides and `ib-migrate check` look for them; that needs a
 * monitor and the guest RAM, no migration.
 *
 *   blockers.c       QEMU, its RAM, this host; what both sides have in common
 *   bypassing.c      devices and back ends that access guest RAM without QEMU
 *   block_users.c    block jobs, exports and locks: who else uses the disks
 *   replay.c         recorded and replayed VMs
 *   recheck.c        whether a VM still has the devices and images that were compared
 *   description.c    the VM as both sides must have it: devices.c, machine.c, disks.c,
 *                    disk_identity.c, options.c; and the comparison: compare.c, compare_cpu.c,
 *                    compare_disks.c, compare_options.c; both: virtio.c
 *   settings.c       QEMU's migration capabilities and parameters: what a migration needs
 *   listening.c      a QEMU that listens for a migration itself
 *   ram_file.c       who can reach the file of guest RAM, or QEMU's monitor
 *   memory_limit.c   memory that this host, a control group or a file system does not have
 *   huge_pages.c     huge pages that QEMU has not reserved
 *   warm.c           devices that write to guest RAM without the tracker noticing
 *   findings.c       how blockers and notes, and the names in them, become texts
 *
 * Functions that return an int fail only when QEMU could not be asked; what they find goes to
 * `blockers`. A migration may begin when blockers->count is 0.
 */
#ifndef IBX_MIGRATE_PREFLIGHT_PREFLIGHT_H
#define IBX_MIGRATE_PREFLIGHT_PREFLIGHT_H

#include "migrate/channel/channel.h"

#define IBX_BLOCKERS_MAX 24u
#define IBX_NOTES_MAX    IBX_MIGRATE_REASONS_MAX

struct ibx_blockers {
    size_t count; /* more than IBX_BLOCKERS_MAX are counted, not kept */
    char reasons[IBX_BLOCKERS_MAX][IBX_ERROR_MAX];
    /* What the operator should know, although it does not prevent a migration. */
    size_t note_count;
    char notes[IBX_NOTES_MAX][IBX_ERROR_MAX];
    /* The caller sets the following fields before it looks for blockers. */
    /* No page is missing when the VM runs at the destination (--stand-still). */
    bool stands_still;
    /* This QEMU gets the memory that the VM left here. So it needs no room for its own, only for
     * pages that come into that memory. */
    bool takes_over;
    /* A borrowed VM returns; the other end has the pages that are missing here. */
    bool returns;
    /* A snapshot is made of this VM, or this QEMU becomes a child of one. */
    bool snapshot;
    /* libvirt may have this QEMU listen at a unix socket, through which the tool passes the state.
     */
    bool managed;
    /* Bytes of memory that the VM holds, as its source says. UINT64_MAX: the source does not say,
     * so it may be all of its RAM. 0: it is not known yet which VM comes, or only pages that it
     * needs come. */
    uint64_t holds;
};

enum ibx_migrate_role { IBX_MIGRATE_SOURCE, IBX_MIGRATE_DESTINATION };

/* Everything below for one side: what QEMU, its RAM, its devices and this host allow. */
int ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err);
/* The two parts of that: ibx_preflight_qemu() asks QEMU, ibx_preflight_host() does not. */
int ibx_preflight_qemu(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err);
/* Sends the queries of ibx_preflight_qemu(), which is called soon, by ibx_qmp_ahead(). */
void ibx_preflight_ask_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns);
void ibx_preflight_host(const struct ibx_guest_ram *ram, enum ibx_migrate_role role,
                        struct ibx_blockers *blockers);
/* listening.c: finds out whether a QEMU that waits for a VM listens for another migration than this
 * one. `migration` is its answer to query-migrate. */
void ibx_preflight_listening(const struct ibx_guest_ram *ram, const json_t *migration,
                             struct ibx_blockers *blockers);
/* -EINVAL: libvirt has this QEMU listen for a migration, but not at the socket `path`. */
int ibx_preflight_listens_at(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                             struct ibx_error *err);
/* blockers.c: makes the queries of a later preflight of this QEMU now, while answers are cached
 * (ibx_qmp_remember()). */
void ibx_preflight_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* What the two sides must have in common: machine type, memory backends, sizes, page sizes, UUID.
 * Looks at machine, uuid, count and the blocks' id, size and page_size only. */
void ibx_preflight_pair(const struct ibx_guest_ram *source, const struct ibx_guest_ram *destination,
                        struct ibx_blockers *blockers);
/* Adds a note if a VM that is borrowed cannot return to a QEMU of the source's version. */
void ibx_preflight_return(const struct ibx_guest_ram *source,
                          const struct ibx_guest_ram *destination, struct ibx_blockers *blockers);

/* Finds RAM that is private, of a kind that QEMU would send itself, or not of whole pages. */
void ibx_preflight_ram(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Destination: finds RAM in pages that the fault engine does not fetch, of neither 4 KiB nor 2 MiB:
 * those of 1 GiB, and of 16 or 64 KiB, which hosts of aarch64 may have. */
void ibx_preflight_pages(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* bypassing.c: finds devices and disks that access guest RAM without QEMU's page tables: VFIO,
 * vhost-user, vhost-vdpa. */
int ibx_preflight_devices(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                          struct ibx_error *err);
/* Sends its queries by ibx_qmp_ahead(). */
void ibx_preflight_devices_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* block_users.c: finds jobs that would use the disks of a source after they were handed over, and
 * clients of exports. Takes two commands of 0.1 ms, so it can be called right before the stop. */
int ibx_preflight_block_users(struct ibx_qmp *qmp, struct ibx_blockers *blockers,
                              uint64_t deadline_ns, struct ibx_error *err);
/* Sends its queries by ibx_qmp_ahead(). */
void ibx_preflight_block_users_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* The id of a job that is at work by this event of QEMU; NULL: none. The text belongs to the event.
 */
const char *ibx_preflight_block_job(json_t *event);
/* replay.c: finds out whether QEMU records its VM's execution or replays it. */
int ibx_preflight_replay(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                         struct ibx_error *err);
/* block_users.c: images (files, and with `devices` block devices) that a QEMU writes and that
 * others must not write, by its locks on them. The second function tells whether QEMU still has
 * such a lock although it has handed its disks over (1), and sets `path` to that image. An error:
 * it cannot be seen. */
#define IBX_IMAGES_MAX 16u
struct ibx_images {
    bool devices;
    unsigned count;
    struct {
        dev_t dev;
        ino_t ino;
    } files[IBX_IMAGES_MAX]; /* QEMU may open them anew as it hands them over (auto-read-only) */
};
int ibx_preflight_find_images(pid_t pid, bool devices, struct ibx_images *images,
                              struct ibx_error *err);
int ibx_preflight_keeps_image(pid_t pid, struct ibx_images *images, char path[PATH_MAX],
                              struct ibx_error *err);
/* recheck.c: ibx_preflight_compared() makes an object with the devices that have been plugged into
 * a VM, and with `disks` the images of each disk; ibx_preflight_since() adds blockers for what has
 * changed since. Two to five commands of 0.1 ms each; the _ask functions send them and do not wait.
 * `compared`: the last such object, which tells whether all commands are needed again, or NULL. */
void ibx_preflight_compared_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                                uint64_t deadline_ns);
int ibx_preflight_compared(struct ibx_qmp *qmp, bool disks, json_t **compared, uint64_t deadline_ns,
                           struct ibx_error *err);
/* To be called after QEMU was told to migrate: sends the queries of ibx_preflight_since() whose
 * answers can no longer change. From then on QEMU plugs nothing in, but until the VM has stopped,
 * the guest may still eject devices, and somebody may change an image; those queries are sent once
 * `stopped`. */
void ibx_preflight_since_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared, bool stopped,
                             uint64_t deadline_ns);
int ibx_preflight_since(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                        struct ibx_blockers *blockers, uint64_t deadline_ns, struct ibx_error *err);
/* Adds each child of the QOM path `path` to `types`, as name and type. */
int ibx_preflight_children(struct ibx_qmp *qmp, const char *path, json_t *types,
                           uint64_t deadline_ns, struct ibx_error *err);
/* blockers.c: at the destination, checks the rights to trace QEMU and to make a userfaultfd. */
void ibx_preflight_permissions(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* ram_file.c: finds files of guest RAM that other users can read or change, or have made. */
void ibx_preflight_ram_files(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* At a destination: finds another process than QEMU that has mapped these files, such as a QEMU
 * that was started with the same mem-path, whose VM would be overwritten. */
void ibx_preflight_users(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* At a source: adds a note if there is such a process. */
void ibx_preflight_writers(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Adds a note if users other than that of QEMU (process `pid`) can connect to its monitor, the
 * socket `path`. */
void ibx_preflight_monitor_file(const char *path, pid_t pid, struct ibx_blockers *blockers);
/* memory_limit.c. Functions that take `blockers` add a blocker if there is too little memory for
 * what the VM holds (blockers->holds), and a note if there is too little for the rest of its RAM.
 */
/* Bytes of memory that a VM holds, without huge pages, by the allocated size of its files. */
uint64_t ibx_preflight_held(const struct ibx_guest_ram *ram);
/* The memory of this host. The second function: bytes that the host has available, including cached
 * files, by the proc file system mounted at `proc`; UINT64_MAX: not known. */
void ibx_preflight_host_memory(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
uint64_t ibx_preflight_host_room(const char *proc);
/* At either end, on a host without overcommit: what a QEMU commits for a migration. The second
 * function: bytes that may still be committed; UINT64_MAX: no limit. */
void ibx_preflight_commit(const char *proc, struct ibx_blockers *blockers);
uint64_t ibx_preflight_commit_room(const char *proc);
/* The limits of QEMU's control groups. */
void ibx_preflight_memory_limit(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Those of this process: in minor mode, when the VM's pages are charged to it; ... */
void ibx_preflight_memory_limit_minor(const struct ibx_guest_ram *ram,
                                      struct ibx_blockers *blockers);
/* ... and otherwise, for what it takes itself with `links` page connections. */
void ibx_preflight_memory_limit_own(const struct ibx_guest_ram *ram, unsigned links,
                                    struct ibx_blockers *blockers);
/* Bytes that control groups leave to a process; UINT64_MAX: no limit. `root`: where they are
 * mounted; `groups`: the contents of /proc/PID/cgroup; `swap`: the host's free swap; sets `name` to
 * the group that leaves least. */
uint64_t ibx_preflight_memory_room(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX]);
/* The same up to memory.high, beyond which the kernel slows processes down. */
uint64_t ibx_preflight_memory_high(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX]);
/* Bytes of huge pages that control groups leave to a process, as above. Those that are `there` will
 * be dropped, and make room in the groups of who allocated them (the contents of its
 * /proc/PID/cgroup). */
struct ibx_huge_pages {
    uint64_t size, there; /* bytes */
    const char *owner_groups;
};
uint64_t ibx_preflight_huge_room(const char *root, const char *groups,
                                 const struct ibx_huge_pages *pages, char name[PATH_MAX]);
/* The limits of the control groups of a receiving tool on the huge pages of guest RAM; `root` and
 * `groups` as above, or those of this process. `qemu_groups`: those of QEMU. */
void ibx_preflight_huge_limit(const char *root, const char *groups, const char *qemu_groups,
                              const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
void ibx_preflight_huge_limit_own(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Room on the file systems of guest RAM. */
void ibx_preflight_space(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* huge_pages.c. Adds a blocker for huge pages that QEMU has not reserved, if there are too few, or
 * a note if it cannot tell. Takes none. */
void ibx_preflight_huge_pages(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Room and memory for `bytes` that this process may still put, or with `all` will put, into the
 * cache of a snapshot in the open folder `folder`. */
void ibx_preflight_fill(int folder, const char *path, uint64_t bytes, bool all,
                        struct ibx_blockers *blockers);

/* blockers.c: bytes that the source pins for page connections over a fabric that pins: pieces that
 * hold data. */
int ibx_preflight_locked_bytes(const struct ibx_guest_ram *ram, uint64_t *bytes,
                               struct ibx_error *err);
/* warm.c: whether the tracker sees all changes of guest RAM while the VM runs. -EOPNOTSUPP names
 * what it does not see, for instance a guest that can run VMs of its own under KVM. With `nests`
 * (may be NULL) such a guest is accepted if it runs none now, and `*nests` is set: then
 * ibx_preflight_nested() has to be called again and again. */
int ibx_preflight_warm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, bool *nests,
                       uint64_t deadline_ns, struct ibx_error *err);
/* -EOPNOTSUPP: a vCPU has VMX or SVM switched on at present. */
int ibx_preflight_nested(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* To be called if guest RAM is registered with `fabric`: whether a device lets the guest give pages
 * back, and get other ones in their place, without this tool noticing. -EOPNOTSUPP names the
 * device. */
int ibx_preflight_gives_back(struct ibx_qmp *qmp, const char *fabric, uint64_t deadline_ns,
                             struct ibx_error *err);
/* Whether the guest expects pages that it has given back to be zero when it gets them again
 * (init_on_free=1); in the children of a snapshot they are not. -EOPNOTSUPP: it does, or that is
 * not known. */
int ibx_preflight_wants_zeros(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* At the source: refuses a balloon whose guest makes QEMU crash while it migrates. */
int ibx_preflight_hints(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                        struct ibx_error *err);
/* Minor mode with verified pages: refuses devices by which QEMU may discard a huge page, since no
 * event tells that, and the page may be in flight. */
void ibx_preflight_minor(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                         struct ibx_blockers *blockers, uint64_t deadline_ns);
/* blockers.c: checks that this process may lock `bytes`, which `fabric` has to pin in all. */
void ibx_preflight_locked(const char *fabric, uint64_t bytes, struct ibx_blockers *blockers);

/* findings.c: adds a blocker, or a note. */
void ibx_blockers_add(struct ibx_blockers *blockers, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ibx_blockers_note(struct ibx_blockers *blockers, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ------------------------------------------------------------ settings */

/*
 * QEMU's migration capabilities and parameters, which somebody may have set for something else: an
 * encrypted migration of QEMU's own, a slow one, one to a file. As JSON objects:
 *
 *   {"capabilities": {"x-ignore-shared": true, ...}, "parameters": {"tls-creds": "", ...}}
 *
 * and, only for restoring, {"machine": {"suppress-vmdesc": true}} (migrate/common/return_path.h).
 * Use: plan; write `before` to where it outlives this process; set; and restore as soon as the
 * migration does not need them any more. With x-ignore-shared left on, a snapshot of the VM would
 * lack its RAM.
 */
#define IBX_SETTINGS_OF_MACHINE "machine"
#define IBX_SETTINGS_MACHINE    "/machine" /* where QEMU has it */

struct ibx_settings {
    json_t *change;    /* settings to change for the migration; never NULL after a plan */
    json_t *before;    /* the present values of the same settings */
    char unknown[256]; /* capabilities among them that this version does not know, or "" */
};

/* Asks QEMU and changes nothing. -EOPNOTSUPP: QEMU lacks a capability that a migration needs. */
int ibx_settings_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                      struct ibx_error *err);
/* The name of the first setting that would be changed, other than `but` (or NULL); NULL: none.
 * After ibx_settings_set(), a plan that changes something tells that another client has. */
const char *ibx_settings_first_change(const struct ibx_settings *settings, const char *but);
int ibx_settings_set(struct ibx_qmp *qmp, const struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Sets the values of `before` (which may be NULL and is not consumed), except for parameters that
 * somebody else has set since. QEMU refuses capabilities while its own migration is not over:
 * -EREMOTEIO. May be repeated. */
int ibx_settings_restore(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                         struct ibx_error *err);
/* Whether x-ignore-shared was switched on: it was off before. */
bool ibx_settings_omit_ram(const json_t *before);
/* Takes x-ignore-shared out of the settings to change, so that ibx_settings_set() leaves it: what
 * another client saves or migrates has RAM until QEMU begins the migration that is to have none
 * (ibx_vm_migrate_without_ram()). False: it was on already. */
bool ibx_settings_set_aside_ram(struct ibx_settings *settings);
/* The arguments of migrate-set-capabilities that switch it on; NULL: it was on before, or no
 * memory. */
json_t *ibx_settings_leave_out_ram(const json_t *before);
/* The same to switch it off again. */
json_t *ibx_settings_save_ram(const json_t *before);
/* Whether x-ignore-shared was on before anything was changed, as a tool leaves it that is killed
 * together with its watchdog. It stays on, and the operator is told. */
bool ibx_settings_left_on(const struct ibx_settings *settings);
#define IBX_SETTINGS_LEFT_ON                                                                       \
    "x-ignore-shared was on in QEMU already, as a tool leaves it that is killed together with "    \
    "its watchdog, and stays so: savevm, and libvirt's managedsave, would leave out the VM's "     \
    "RAM; unless another program needs it, switch it off by migrate-set-capabilities in QEMU's "   \
    "monitor"
void ibx_settings_fini(struct ibx_settings *settings);

/* ------------------------------------------------------------ descriptions */

/*
 * What both sides must have in common, as a JSON object that goes to the other side with HELLO: the
 * VM's processors, memory, machine, devices with their properties, and disks (description.h has its
 * members). It leaves out what only the host sees: the tap or monitor behind a device, the names of
 * nodes and back ends.
 */

/* Makes the description; the caller owns the reference. Takes some milliseconds, while the VM runs.
 * -ENOMEM, or an error of QMP. */
int ibx_describe(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, json_t **description,
                 uint64_t deadline_ns, struct ibx_error *err);
/* Whether that VM has a TPM, whose content goes with the device state. */
bool ibx_description_has_tpm(const json_t *description);
/* Sends the queries of ibx_describe(), which is called soon, by ibx_qmp_ahead(). */
void ibx_describe_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Asks for the parts of a description that do not change, at a time when nobody waits, so that they
 * are cached. */
void ibx_describe_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Makes the text, which the caller frees by free(). -EMSGSIZE: it would be longer than
 * IBX_MIGRATE_DESCRIPTION_MAX. */
int ibx_description_write(const json_t *description, char **text, size_t *length,
                          struct ibx_error *err);
/* Parses the text of a peer. -EPROTO. */
int ibx_description_read(const char *text, size_t length, json_t **description,
                         struct ibx_error *err);

/* Two descriptions to compare, one of which comes from a peer and may be any object. */
struct ibx_comparison {
    const json_t *source, *destination;
    bool same_version; /* ibx_qmp_same_version() of both QEMUs */
    bool disks_differ; /* on purpose: such differences become notes */
    struct ibx_blockers *blockers;
};
/* Adds blockers for differences that would break the loading of the device state, the guest, or its
 * data. */
void ibx_compare(const struct ibx_comparison *comparison);

#endif
