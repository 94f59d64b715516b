/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Blockers: what keeps a VM from migrating, found before anything is changed. Each is one sentence
 * with the value and the remedy. Both sides and `ib-migrate check` look for them; that needs a
 * monitor and the guest RAM, no migration.
 *
 *   blockers.c       QEMU, its RAM, this host; what both sides have in common
 *   bypassing.c      devices and back ends that reach guest RAM past QEMU
 *   block_users.c    block jobs, exports and locks: who else uses the disks
 *   replay.c         recorded and replayed VMs
 *   recheck.c        whether a VM has the devices and images that the destination has compared
 *   description.c    the VM as both sides must have it: devices.c, machine.c, disks.c,
 *                    disk_identity.c, virtio.c; and the comparison: compare.c, compare_disks.c
 *   settings.c       QEMU's migration capabilities and parameters: what a migration needs
 *   listening.c      a QEMU that takes a migration of its own
 *   ram_file.c       who can reach the file of guest RAM
 *   memory_limit.c   memory that this host, a control group or a file system does not have
 *   warm.c           who writes to guest RAM unseen
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
    /* What the operator should know, and what keeps no VM from migrating. */
    size_t note_count;
    char notes[IBX_NOTES_MAX][IBX_ERROR_MAX];
    /* Set by who looks for them: no page is missing when the VM runs at the destination. */
    bool stands_still;
    /* Likewise: this QEMU gets the memory that the VM left here, and needs no room for its own, but
     * for what is to come into that. */
    bool takes_over;
    /* Likewise: a borrowed VM returns, and the other end has the pages that are missing here. */
    bool returns;
    /* Likewise: a snapshot is made of this VM, or this QEMU is to be a child of one. */
    bool snapshot;
    /* Likewise: libvirt may have this QEMU listen at a unix socket, where its tool brings it the
     * state. */
    bool managed;
    /* Likewise: what the VM that is to come brings of memory, in bytes, as its source says;
     * UINT64_MAX: no source says, and it may be all of its RAM; 0: it is not known which VM comes,
     * or only what it needs comes. */
    uint64_t holds;
};

enum ibx_migrate_role { IBX_MIGRATE_SOURCE, IBX_MIGRATE_DESTINATION };

/* Everything below for one side: what QEMU, its RAM, its devices and this host allow. */
int ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err);
/* The two parts of that: what QEMU is asked, and what is seen without asking it. */
int ibx_preflight_qemu(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                       enum ibx_migrate_role role, struct ibx_blockers *blockers,
                       uint64_t deadline_ns, struct ibx_error *err);
/* Sends the questions of the first part, which is called soon, by ibx_qmp_ahead(). */
void ibx_preflight_ask_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns);
void ibx_preflight_host(const struct ibx_guest_ram *ram, enum ibx_migrate_role role,
                        struct ibx_blockers *blockers);
/* listening.c: what a QEMU that waits for a VM takes instead of ours. `migration` is what it
 * answers to query-migrate. */
void ibx_preflight_listening(const struct ibx_guest_ram *ram, const json_t *migration,
                             struct ibx_blockers *blockers);
/* -EINVAL: libvirt has this QEMU listen for a migration, and not at the socket `path`. */
int ibx_preflight_listens_at(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns,
                             struct ibx_error *err);
/* Asks what the next call for this QEMU needs to know, while it remembers that. */
void ibx_preflight_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* What the two sides must have in common: machine type, memory backends, sizes, page sizes, UUID.
 * Looks at machine, uuid, count and the blocks' id, size and page_size only. */
void ibx_preflight_pair(const struct ibx_guest_ram *source, const struct ibx_guest_ram *destination,
                        struct ibx_blockers *blockers);

/* RAM that is private, of a kind that QEMU would send itself, or not of whole pages. */
void ibx_preflight_ram(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* bypassing.c: devices and disks that reach guest RAM past QEMU's page tables: VFIO, vhost-user,
 * vhost-vdpa. */
int ibx_preflight_devices(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                          struct ibx_error *err);
/* Asks ahead what that will ask. */
void ibx_preflight_devices_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* block_users.c: jobs that would use the disks of a source after they were handed over, and the
 * clients of exports. Two commands of 0.1 ms: cheap enough for a look right before the stop. */
int ibx_preflight_block_users(struct ibx_qmp *qmp, struct ibx_blockers *blockers,
                              uint64_t deadline_ns, struct ibx_error *err);
/* Sends these by ibx_qmp_ahead(). */
void ibx_preflight_block_users_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Which job is at work, by this event of QEMU's; NULL: none. The text is the event's. */
const char *ibx_preflight_block_job(json_t *event);
/* replay.c: a QEMU that records what its VM does, or does so again. */
int ibx_preflight_replay(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                         struct ibx_error *err);
/* Files, and with `devices` block devices, that this process, a QEMU, writes and nobody else may,
 * as far as it locks them; and whether it does not let go of one though it has handed its disks
 * over, and of which. */
#define IBX_IMAGES_MAX 16u
struct ibx_images {
    bool devices;
    unsigned count;
    int fds[IBX_IMAGES_MAX]; /* of that process */
};
void ibx_preflight_find_images(pid_t pid, bool devices, struct ibx_images *images);
bool ibx_preflight_keeps_image(pid_t pid, const struct ibx_images *images, char path[PATH_MAX]);
/* recheck.c: which devices have been plugged into a VM, and with `disks` by which images each disk
 * is made, an object; and what of these is another one now. Two to five commands of 0.1 ms each;
 * the first function sends them, and does not wait for the answers. `compared`: the last answer,
 * which tells whether all of them are needed again, or NULL. */
void ibx_preflight_compared_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                                uint64_t deadline_ns);
int ibx_preflight_compared(struct ibx_qmp *qmp, bool disks, json_t **compared, uint64_t deadline_ns,
                           struct ibx_error *err);
/* Sends those of ibx_preflight_since() whose answers cannot change any more, after QEMU was told to
 * migrate: until it has stopped the VM, it plugs nothing in, and what there is the guest may eject,
 * or somebody may give another image. Each costs processors, so that the others come later. */
void ibx_preflight_since_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared, bool stopped,
                             uint64_t deadline_ns);
int ibx_preflight_since(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                        struct ibx_blockers *blockers, uint64_t deadline_ns, struct ibx_error *err);
/* Adds each object that QEMU has made under `path` to `types`: its type by its name. */
int ibx_preflight_children(struct ibx_qmp *qmp, const char *path, json_t *types,
                           uint64_t deadline_ns, struct ibx_error *err);
/* Destination: rights to trace QEMU and to make a userfaultfd. */
void ibx_preflight_permissions(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* ram_file.c: a file that other users can read or change, or made. */
void ibx_preflight_ram_files(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* memory_limit.c: what a VM holds of memory without its huge pages, as far as the size of its files
 * tells. */
uint64_t ibx_preflight_held(const struct ibx_guest_ram *ram);
/* A host without memory for what the VM `holds`, and a note where only the rest of its RAM finds
 * none; how much it has, and can get by forgetting what it keeps of files, by `proc`, where that is
 * mounted (UINT64_MAX: it does not tell). */
void ibx_preflight_host_memory(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
uint64_t ibx_preflight_host_room(const char *proc);
/* A host without overcommit that has not left what a QEMU takes for a migration, at either end;
 * what it has left by `proc` (UINT64_MAX: no limit). */
void ibx_preflight_commit(const char *proc, struct ibx_blockers *blockers);
uint64_t ibx_preflight_commit_room(const char *proc);
/* Likewise, control groups that do not let QEMU have it; what they leave (UINT64_MAX: they
 * have no limit) by `groups`, the content of /proc/PID/cgroup, the place where they are mounted and
 * the host's free swap, and the name of the one that leaves least. */
void ibx_preflight_memory_limit(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* The same of this process in minor mode. */
void ibx_preflight_memory_limit_minor(const struct ibx_guest_ram *ram,
                                      struct ibx_blockers *blockers);
/* ... and otherwise, with so many page connections: what it takes itself. */
void ibx_preflight_memory_limit_own(const struct ibx_guest_ram *ram, unsigned links,
                                    struct ibx_blockers *blockers);
uint64_t ibx_preflight_memory_room(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX]);
/* The same until the kernel slows QEMU down (memory.high), which is noted. */
uint64_t ibx_preflight_memory_high(const char *root, const char *groups, uint64_t swap,
                                   char name[PATH_MAX]);
/* Likewise, file systems of guest RAM without room for it. */
void ibx_preflight_space(const struct ibx_guest_ram *ram, struct ibx_blockers *blockers);
/* Likewise, for `bytes` that this process may still put into a cache of a snapshot, and with `all`
 * will, in this open folder. */
void ibx_preflight_fill(int folder, const char *path, uint64_t bytes, bool all,
                        struct ibx_blockers *blockers);

/* Bytes that the source pins for page connections on a fabric that pins: pieces that hold data. */
int ibx_preflight_locked_bytes(const struct ibx_guest_ram *ram, uint64_t *bytes,
                               struct ibx_error *err);
/* Whether all that changes guest RAM while the VM runs can be seen. -EOPNOTSUPP: what cannot. With
 * `nests` a guest that can run VMs of its own under KVM and runs none now is right, which
 * ibx_preflight_nested() is to be asked about from then on when `*nests` is true; without it, none.
 */
int ibx_preflight_warm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, bool *nests,
                       uint64_t deadline_ns, struct ibx_error *err);
/* -EOPNOTSUPP: a vCPU has VMX or SVM switched on at this moment. */
int ibx_preflight_nested(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Whether the guest may give pages back, and get others in their place, unnoticed: not where its
 * memory is registered. -EOPNOTSUPP: by which device. */
int ibx_preflight_gives_back(struct ibx_qmp *qmp, const char *fabric, uint64_t deadline_ns,
                             struct ibx_error *err);
/* Whether the guest takes pages that it gives back for zeros when they come again (init_on_free=1),
 * which they are not in the children of its snapshot. -EOPNOTSUPP: it does, or that is not known.
 */
int ibx_preflight_wants_zeros(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err);
/* Minor mode with pages that are verified: QEMU does not tell when it empties a huge page, which
 * may be on its way then. */
void ibx_preflight_minor(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                         struct ibx_blockers *blockers, uint64_t deadline_ns);
/* `fabric` has to pin `bytes` in all, and this process may not lock that many. */
void ibx_preflight_locked(const char *fabric, uint64_t bytes, struct ibx_blockers *blockers);

/* Adds one. */
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
 * and, to be put back alone, {"machine": {"suppress-vmdesc": true}} (migrate/common/hold.h).
 * Their order of use: plan; note `before` where it outlives this process; set; and restore as soon
 * as the migration does not need them. A snapshot with x-ignore-shared left on has no RAM.
 */
#define IBX_SETTINGS_OF_MACHINE "machine"
#define IBX_SETTINGS_MACHINE    "/machine" /* where QEMU has it */

struct ibx_settings {
    json_t *change;    /* what the migration needs and QEMU has not; never NULL after a plan */
    json_t *before;    /* what undoes it: the same names */
    char unknown[256]; /* capabilities among them that this version does not know, or "" */
};

/* Asks QEMU and changes nothing. -EOPNOTSUPP: QEMU lacks a capability that a migration needs. */
int ibx_settings_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                      struct ibx_error *err);
int ibx_settings_set(struct ibx_qmp *qmp, const struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err);
/* Sets the values of `before` (which may be NULL and is not consumed), except for parameters that
 * somebody else has set since. QEMU refuses capabilities while its own migration is not over:
 * -EREMOTEIO. May be repeated. */
int ibx_settings_restore(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                         struct ibx_error *err);
/* What puts x-ignore-shared back to off, for migrate-set-capabilities; NULL: it was on, or memory
 * is out. */
json_t *ibx_settings_save_ram(const json_t *before);
/* Whether this QEMU left shared RAM out of what it saves before anything was changed, as a tool
 * that was killed together with its watchdog leaves it. That stays so, and the operator is told. */
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

/* -ENOMEM, or QEMU could not be asked. `*description` is a reference. Costs some milliseconds: the
 * VM runs meanwhile. */
int ibx_describe(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, json_t **description,
                 uint64_t deadline_ns, struct ibx_error *err);
/* Whether that VM has a TPM, whose content goes with the device state. */
bool ibx_description_has_tpm(const json_t *description);
/* Sends the questions of ibx_describe(), which is called soon, by ibx_qmp_ahead(). */
void ibx_describe_ask(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* Asks for what of it stays as it is, before anybody waits for it. */
void ibx_describe_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns);
/* As a text, for free(). -EMSGSIZE: longer than IBX_MIGRATE_DESCRIPTION_MAX. */
int ibx_description_write(const json_t *description, char **text, size_t *length,
                          struct ibx_error *err);
/* The reverse, of a peer's. -EPROTO. */
int ibx_description_read(const char *text, size_t length, json_t **description,
                         struct ibx_error *err);
/* Differences that break QEMU's device state, or the guest, or its data. `same_version`: of both
 * QEMUs. `disks_differ`: the operator knows, so that it is a note. `source` comes from a peer: it
 * may be any object. */
void ibx_compare(const json_t *source, const json_t *destination, bool same_version,
                 bool disks_differ, struct ibx_blockers *blockers);

#endif
