/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether both QEMUs have the same disks. A VM whose disk at the destination is another one, or an
 * old copy, destroys its data without any error. So disks that cannot be shown to be the same are
 * refused; an operator who knows better can give --disks-differ-on-purpose.
 */
#include "migrate/preflight/description.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_MAX 300

/* A disk at both ends. */
struct disk_pair {
    const json_t *here, *there;
    bool one_host, on_purpose;
    struct ibx_blockers *blockers;
};

static bool is_set(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

static bool equal(const json_t *a, const json_t *b, const char *name)
{
    return *ibx_member(a, name) && !strcmp(ibx_member(a, name), ibx_member(b, name));
}

static bool differ(const json_t *a, const json_t *b, const char *name)
{
    return *ibx_member(a, name) && *ibx_member(b, name) &&
           strcmp(ibx_member(a, name), ibx_member(b, name)) != 0;
}

static json_int_t bytes_of(const json_t *object)
{
    return json_integer_value(json_object_get(object, "bytes"));
}

static void found(const struct disk_pair *p, const char *here, const char *there,
                  const char *remedy)
{
    const char *type = ibx_member(p->here, "type"), *at = ibx_member(p->here, "at");
    if (p->on_purpose)
        ibx_blockers_note(p->blockers,
                          "the disk of %.60s @ %.90s is %.250s here and %.250s at the destination, "
                          "as is said to be on purpose",
                          type, at, here, there);
    else
        ibx_blockers_add(p->blockers,
                         "the disk of %.60s @ %.90s is %.250s here and %.250s at the destination: "
                         "%.200s (send and check take --disks-differ-on-purpose)",
                         type, at, here, there, remedy);
}

static const char same_image[] = "give both QEMUs the same image, on storage that both hosts reach";

/* ------------------------------------------------------------ a file or device */

static void show(const json_t *layer, bool one_host, char out[SHOWN_MAX])
{
    const char *file = ibx_member(layer, "file"), *shown = ibx_member(layer, "shown");
    const char *type = ibx_member(layer, "type"), *wwn = ibx_member(layer, "wwn");
    if (!strcmp(ibx_member(layer, "reach"), "local") && !one_host)
        snprintf(out, SHOWN_MAX, "%.200s on %.40s, a file system of one host", file,
                 *type ? type : "a disk");
    else if (*ibx_member(layer, "source") && !one_host)
        snprintf(out, SHOWN_MAX, "%.120s (%.100s on %.40s)", file, ibx_member(layer, "source"),
                 type);
    else if (*wwn)
        snprintf(out, SHOWN_MAX, "%.120s (%.120s)", file, wwn);
    else if (*shown)
        snprintf(out, SHOWN_MAX, "%.200s (%.60s)", file, shown);
    else
        snprintf(out, SHOWN_MAX, "%.280s", *file ? file : ibx_member(layer, "driver"));
}

static bool unlike(const struct disk_pair *p, const json_t *here, const json_t *there,
                   const char *remedy)
{
    char a[SHOWN_MAX], b[SHOWN_MAX];
    show(here, p->one_host, a);
    show(there, p->one_host, b);
    found(p, a, b, remedy);
    return false;
}

/* Whether a name has a meaning on this host only. */
static bool means_this_host(const char *file)
{
    return strstr(file, "socket=") || strstr(file, "\"unix\"") || strstr(file, "//localhost") ||
           strstr(file, "//127.") || strstr(file, "//[::1]") || strstr(file, "\"localhost\"") ||
           strstr(file, "\"127.");
}

/* Compares storage that QEMU itself reaches over the network, or that has no content (null-co). */
static bool compare_names(const struct disk_pair *p, const json_t *here, const json_t *there)
{
    const char *file = ibx_member(here, "file");
    if (strcmp(file, ibx_member(there, "file")))
        return unlike(p, here, there, same_image);
    if (!p->one_host && (*file == '/' || means_this_host(file)))
        return unlike(p, here, there,
                      "nothing shows that these are one: name it as both hosts reach it, or run "
                      "ib-migrate with the right to look into QEMU");
    return true;
}

static bool compare_devices(const struct disk_pair *p, const json_t *here, const json_t *there)
{
    if (equal(here, there, "wwn"))
        return true;
    if (differ(here, there, "wwn") || bytes_of(here) != bytes_of(there) ||
        !equal(here, there, "digest"))
        return unlike(p, here, there, same_image);
    ibx_blockers_note(p->blockers,
                      "the disk of %.60s @ %.90s (%.200s) has no name that both hosts know: its "
                      "size and its first bytes are the same at both ends",
                      ibx_member(p->here, "type"), ibx_member(p->here, "at"),
                      ibx_member(here, "file"));
    return true;
}

/* Compares files on file systems that several hosts can mount. Inode numbers come from the server;
 * files with the same number on two servers are unlikely to begin with the same bytes, too. */
static bool compare_mounted(const struct disk_pair *p, const json_t *here, const json_t *there)
{
    const bool cluster =
        equal(here, there, "reach") && !strcmp(ibx_member(here, "reach"), "cluster");
    if (cluster && !equal(here, there, "inode"))
        return unlike(p, here, there, same_image);
    if (differ(here, there, "source") && !(cluster && equal(here, there, "digest")))
        return unlike(p, here, there, same_image);
    if (!cluster && !equal(here, there, "path"))
        return unlike(p, here, there, same_image);
    if (is_set(here, "unsafe") && !is_set(p->here, "read-only"))
        return unlike(p, here, there,
                      "cache=unsafe (cache.no-flush=on) leaves data in the memory of this host, "
                      "which the other one does not see: use cache=none, directsync or writeback");
    return true;
}

/* Whether both are read-only and have the same content, such as copies of an ISO image or firmware.
 */
static bool same_content(const struct disk_pair *p, const json_t *here, const json_t *there)
{
    return is_set(p->here, "read-only") && is_set(p->there, "read-only") &&
           bytes_of(here) == bytes_of(there) && equal(here, there, "digest");
}

static bool compare_bytes(const struct disk_pair *p, const json_t *here, const json_t *there)
{
    const char *reach_here = ibx_member(here, "reach"), *reach_there = ibx_member(there, "reach");
    if (same_content(p, here, there))
        return true;
    if (p->one_host && *ibx_member(here, "id") && *ibx_member(there, "id"))
        return equal(here, there, "id") || unlike(p, here, there, same_image);
    if (!*reach_here || !*reach_there)
        return compare_names(p, here, there);
    if (!strcmp(reach_here, "local") || !strcmp(reach_there, "local"))
        return unlike(p, here, there,
                      "use storage that both hosts reach (NFS, Ceph, iSCSI, ...): what is on "
                      "one host's own disk is not at the other");
    if (!strcmp(reach_here, "device") && !strcmp(reach_there, "device"))
        return compare_devices(p, here, there);
    return compare_mounted(p, here, there);
}

/* ------------------------------------------------------------ the chain of images */

static void chain_of(const json_t *layers, char out[SHOWN_MAX])
{
    size_t index, used = 0;
    json_t *layer;
    *out = '\0';
    json_array_foreach(layers, index, layer)
    {
        const char *role = ibx_member(layer, "role"), *last = strrchr(role, '/');
        if (used < SHOWN_MAX - 1)
            used += (size_t)snprintf(out + used, SHOWN_MAX - used, "%s%s%s%.30s", used ? ", " : "",
                                     last ? last + 1 : role, *role ? " " : "",
                                     ibx_member(layer, "driver"));
    }
}

static bool compare_chains(const struct disk_pair *p)
{
    const json_t *here = json_object_get(p->here, "layers"),
                 *there = json_object_get(p->there, "layers");
    bool same = json_array_size(here) == json_array_size(there);
    for (size_t i = 0; same && i < json_array_size(here); i++) {
        const json_t *a = json_array_get(here, i), *b = json_array_get(there, i);
        same = !strcmp(ibx_member(a, "role"), ibx_member(b, "role")) &&
               !strcmp(ibx_member(a, "driver"), ibx_member(b, "driver"));
    }
    char a[SHOWN_MAX], b[SHOWN_MAX];
    if (!same) {
        chain_of(here, a);
        chain_of(there, b);
        found(p, a, b,
              "give both QEMUs the same image in the same format, with the same backing files");
        return false;
    }
    for (size_t i = 0; same && i < json_array_size(here); i++)
        if (*ibx_member(json_array_get(here, i), "file"))
            same = compare_bytes(p, json_array_get(here, i), json_array_get(there, i));
    return same;
}

/* ------------------------------------------------------------ a disk */

/* Flash memory need not be shared: QEMU sends its content with the device state, and writes it to
 * the destination's file. */
static void compare_firmware(const struct disk_pair *p)
{
    const json_t *here = json_array_get(json_object_get(p->here, "layers"), 0);
    const json_t *there = json_array_get(json_object_get(p->there, "layers"), 0);
    if (is_set(p->here, "read-only") && is_set(p->there, "read-only") &&
        differ(here, there, "digest"))
        ibx_blockers_note(p->blockers,
                          "the firmware %.200s here is another one than %.200s at the destination: "
                          "the VM takes its own along, until a QEMU is started anew there",
                          ibx_member(here, "file"), ibx_member(there, "file"));
}

static void show_medium(const struct disk_pair *p, const json_t *disk, char out[SHOWN_MAX])
{
    size_t index;
    json_t *layer;
    snprintf(out, SHOWN_MAX, "an empty drive");
    json_array_foreach(json_object_get(disk, "layers"), index, layer)
    {
        if (!*ibx_member(layer, "file"))
            continue;
        show(layer, p->one_host, out);
        return;
    }
}

/* Whether the guest of a SCSI disk has seen that its writes are on the disk when they end, and at
 * the destination they are not. The device state of virtio and IDE says which it is. */
static bool needs_flushes_only_there(const struct disk_pair *p)
{
    return json_is_false(json_object_get(p->here, "writeback")) && is_set(p->there, "writeback") &&
           !is_set(p->here, "read-only") && !strncmp(ibx_member(p->here, "type"), "scsi-", 5);
}

static void compare_disk(const struct disk_pair *p)
{
    const bool here = json_object_get(p->here, "layers"),
               there = json_object_get(p->there, "layers");
    char a[SHOWN_MAX], b[SHOWN_MAX];
    if (!here && !there)
        return;
    if (here != there) {
        show_medium(p, p->here, a);
        show_medium(p, p->there, b);
        found(p, a, b,
              "insert the same medium at both ends (blockdev-change-medium), or eject it (eject)");
        return;
    }
    if (bytes_of(p->here) != bytes_of(p->there)) {
        snprintf(a, sizeof(a), "of %" JSON_INTEGER_FORMAT " bytes", bytes_of(p->here));
        snprintf(b, sizeof(b), "of %" JSON_INTEGER_FORMAT " bytes", bytes_of(p->there));
        found(p, a, b, same_image);
        return;
    }
    if (is_set(p->here, "read-only") != is_set(p->there, "read-only")) {
        found(p, is_set(p->here, "read-only") ? "read-only" : "writable",
              is_set(p->there, "read-only") ? "read-only" : "writable",
              "start both QEMUs with the same read-only= for it");
        return;
    }
    if (needs_flushes_only_there(p)) {
        found(p, "written through (write-cache=off or cache=writethrough)",
              "cached until a flush, which this guest never sends",
              "start the destination's QEMU with write-cache=off for the device");
        return;
    }
    if (is_set(p->here, "firmware"))
        compare_firmware(p);
    else
        compare_chains(p);
}

/* Notes risks that the operator may not know of, and that are no blockers. */
static void note_risks(const struct disk_pair *p)
{
    const char *type = ibx_member(p->here, "type"), *at = ibx_member(p->here, "at");
    size_t index;
    json_t *item;
    json_array_foreach(json_object_get(p->here, "bitmaps"), index, item)
    {
        ibx_blockers_note(
            p->blockers,
            "the dirty bitmap %.64s of %.60s @ %.90s is in this QEMU's memory only and "
            "does not move unless the capability dirty-bitmaps is on at both ends: the next backup "
            "by it has to be a full one",
            json_is_string(item) ? json_string_value(item) : "", type, at);
    }
    json_array_foreach(json_object_get(p->here, "layers"), index, item)
    {
        if (json_is_false(json_object_get(item, "locked")) && !is_set(p->here, "read-only") &&
            !strstr(ibx_member(item, "role"), "backing"))
            ibx_blockers_note(p->blockers,
                              "%.200s is not locked (file.locking=off, or a file system without "
                              "locks): QEMU itself does not keep two VMs from writing to it",
                              ibx_member(item, "file"));
    }
}

/* The disk in the same place; NULL: the other side has none, or an empty drive (drive_at()). */
static const json_t *find_at(const json_t *disks, const json_t *disk)
{
    size_t index;
    json_t *other;
    json_array_foreach(disks, index, other)
    {
        if (equal(other, disk, "at") &&
            !strcmp(ibx_member(other, "type"), ibx_member(disk, "type")))
            return other;
    }
    return NULL;
}

/* The device of a drive that was started empty, as libvirt starts one (-device ide-cd without
 * drive=): such a drive has no back end, so it is not in the list of disks. NULL: there is none. */
static const json_t *drive_at(const json_t *description, const json_t *disk)
{
    const bool may_be_empty = is_set(disk, "removable") && json_object_get(disk, "layers");
    return may_be_empty ? find_at(json_object_get(description, "devices"), disk) : NULL;
}

void ibx_compare_disks(const struct ibx_comparison *c)
{
    const json_t *here = json_object_get(c->source, "disks"),
                 *there = json_object_get(c->destination, "disks");
    struct disk_pair pair = {.one_host = equal(c->source, c->destination, "host"),
                             .on_purpose = c->disks_differ,
                             .blockers = c->blockers};
    size_t index;
    json_t *disk;
    json_array_foreach(here, index, disk)
    {
        pair.here = disk;
        pair.there = find_at(there, disk);
        if (!pair.there)
            pair.there = drive_at(c->destination, disk);
        if (pair.there)
            compare_disk(&pair);
        note_risks(&pair);
    }
    json_array_foreach(there, index, disk)
    {
        pair.here = find_at(here, disk) ? NULL : drive_at(c->source, disk);
        pair.there = disk;
        if (pair.here)
            compare_disk(&pair);
    }
}
