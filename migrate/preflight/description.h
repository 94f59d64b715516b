/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The parts of a description (preflight.h), for those who make and compare them. Each is a member
 * of the object; what a QEMU does not report is left out, and what is left out is not compared. */
#ifndef IBX_MIGRATE_PREFLIGHT_DESCRIPTION_H
#define IBX_MIGRATE_PREFLIGHT_DESCRIPTION_H

#include "migrate/journal/journal.h"
#include "migrate/preflight/preflight.h"

#include <stdio.h>

#define IBX_DESCRIBED_MAX 8192u /* vCPUs, devices or disks: more than a VM can have */

/* The QEMU to describe, and the description being made. */
struct describing {
    struct ibx_qmp *qmp;
    const struct ibx_guest_ram *ram;
    uint64_t deadline_ns;
    json_t *description;
    struct ibx_error *err;
};

/* ------------------------------------------------------------ devices.c */

/* The devices of QEMU's "info qtree": an array of
 *   {"type", "at": PLACE, "plugged": bool, "drive": NAME, "properties": {NAME: VALUE}}
 * plugged: on a bus where devices are plugged in (PCI, USB, SCSI, ...); others are of the board.
 * NULL: no memory, or more than IBX_DESCRIBED_MAX devices. */
json_t *ibx_devices_of_qtree(const char *qtree);
/* The simple properties of a QOM object: {NAME: VALUE}. */
int ibx_describe_properties(struct describing *d, const char *path, json_t *properties);
/* Adds "devices": those of the tree and those that are on no bus. */
int ibx_describe_devices(struct describing *d);

/* ------------------------------------------------------------ machine.c */

/* Adds "kvm", "cpus", "cpu", "cpuid", "cpu-properties", "machine", "numa", "memory", "order",
 * "ram", "backends", "user-networks". */
int ibx_describe_machine(struct describing *d);
/* Adds "kvm" alone, false with any other accelerator. */
int ibx_describe_accelerator(struct describing *d);
/* Adds "machine" alone, the properties of the machine. */
int ibx_describe_board(struct describing *d);
/* Adds "cpus", "cpu", "cpuid" and "cpu-properties"; of these no hv-... if "kvm" is false. */
int ibx_describe_processors(struct describing *d);
/* The blocks of QEMU's "info ramblock": {NAME: [used bytes, most bytes]}. NULL: no memory. */
json_t *ibx_ram_of_ramblock(const char *text);
/* "memory", from the answer to query-memory-devices: each device with its maximum size and that of
 * its blocks. NULL: no memory. */
json_t *ibx_memory_of_devices(const json_t *devices);
/* "order", from QEMU's "info mtree -f": the ids of guest RAM in the order of their addresses, if
 * the VM has several. NULL: no memory. */
json_t *ibx_order_of_mtree(const char *tree, const struct ibx_guest_ram *ram);
/* "numa": the lines of QEMU's "info numa", such as "node 0 cpus: 0 1", without plugged memory.
 * NULL: no memory. */
json_t *ibx_numa_of_info(const char *text);

/* ------------------------------------------------------------ disks.c */

/* Adds "disks": an array of
 *   {"at", "type", "removable": bool, "read-only": bool, "writeback": bool, "bytes",
 *    "firmware": bool, "bitmaps": [NAME], "layers": [LAYER]}
 * writeback: the guest has to flush; bitmaps: dirty bitmaps that are in memory only. Without a
 * medium only "at", "type", "removable" and "firmware" are there. A layer is a node of the chain of
 * images:
 *   {"role": "", "file", "backing", "backing/file", ..., "driver"}
 * A node that is not made of others also has "file", by ibx_disk_name(), and the members of
 * disk_identity.c. */
int ibx_describe_disks(struct describing *d);
/* The name of an image as QEMU has it, but without a password, since it is sent to the other host
 * and shown in messages of both. NULL: no memory. */
json_t *ibx_disk_name(const char *file);

/* ------------------------------------------------------------ disk_identity.c */

/*
 * What the file or block device behind a layer is, as QEMU (process `pid`) sees it; members are
 * added to `layer`:
 *   "id"      the same for the same file or device on this host, until it boots; else different
 *   "shown"   names the file or device for a person
 *   "reach"   "local", "cluster" (a file has one inode number on all hosts), "network" (other file
 *             systems that several hosts can mount), "device"
 *   "type"    of its file system
 *   "source", "path"   what is mounted, and where the file is in it
 *   "inode", "bytes"
 *   "locked"  any process has a lock on it
 *   "wwn"     of a block device: a name that is the same on every host
 *   "digest"  of its first bytes; with `whole`, of all of a small one or of samples of a large one
 * None of these if this process may not look at the file, or it is gone.
 */
void ibx_disk_identify(pid_t pid, const char *file, const json_t *fdsets, bool whole,
                       json_t *layer);
/* Adds "type", "source" and "path" of `file`, by its line of mountinfo, which is modified. */
void ibx_disk_mount(char *line, const char *file, json_t *layer);
/* A name of this host that is the same until it boots (boot_id). "": not known. */
void ibx_disk_host(char *out, size_t size);

/* ------------------------------------------------------------ options.c */

/*
 * Adds what QEMU's command line says, if this process may read it and no file has more of it:
 *   "icount"     "shift=SHIFT" and, if so, ",sleep=off"; "" without -icount
 *   "rtc-clock"  "host", "vm" or "rt"
 *   "fw_cfg"     {NAME: DIGEST of the text, or "" if QEMU reads a file}
 *   "smbios"     [[TYPE, DIGEST of the option]]
 *   "actions"    {EVENT: ACTION}, by -action and the options that stand for it
 */
void ibx_describe_options(struct describing *d);
/* The same for these arguments, each of which ends with a null byte. */
void ibx_options_read(FILE *arguments, json_t *description);
/* The events of -action, and what QEMU does without it. */
#define IBX_ACTIONS 4u
extern const struct ibx_action {
    const char *event, *usual;
} ibx_actions[IBX_ACTIONS];

/* ------------------------------------------------------------ virtio.c */

/* Adds "virtio": {QOM PATH: {"name", "addr", "used": [FEATURE], "offered": [FEATURE]}} */
void ibx_describe_virtio(struct describing *d);
void ibx_compare_virtio(const struct ibx_comparison *c);

/* ------------------------------------------------------------ compare.c and compare_*.c */

/* Properties of a vCPU that cpuid shows to its guest, without features. */
struct ibx_cpu_property {
    const char *name;
    enum {
        IBX_CPU_SAME,     /* the guest's code depends on it */
        IBX_CPU_LEAST,    /* a number that may be higher at the destination */
        IBX_CPU_LEVEL,    /* as IBX_CPU_LEAST, and may differ where the model is the host's */
        IBX_CPU_BY_MODEL, /* may differ where the model is the host's processor */
    } rule;
};
extern const struct ibx_cpu_property ibx_cpu_properties[];
extern const size_t ibx_cpu_property_count;
void ibx_compare_cpu_properties(const struct ibx_comparison *c);

/* Each compares a part of both descriptions. */
void ibx_compare_machines(const struct ibx_comparison *c);
void ibx_compare_devices(const struct ibx_comparison *c);
void ibx_compare_options(const struct ibx_comparison *c);
void ibx_compare_disks(const struct ibx_comparison *c);

/* ------------------------------------------------------------ findings.c */

#define IBX_NAMES_MAX 400 /* bytes of names in one sentence */

/* The first names of a list, for a message; zeroed before. */
struct ibx_names {
    char text[IBX_NAMES_MAX];
    size_t used;
    unsigned count; /* of all */
};
void ibx_names_add(struct ibx_names *names, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* " and 2 more", or "" if `text` has all. */
const char *ibx_names_more(const struct ibx_names *names, char out[32]);

/* A member that is text, or "". */
const char *ibx_member(const json_t *object, const char *name);

#endif
