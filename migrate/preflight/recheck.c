/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Checks that a VM still has the devices, and its disks the images, that the destination has
 * compared. Meanwhile another client of QEMU may take a snapshot of a disk, change a medium or
 * plug devices. The VM would then write to an image that the destination does not have, and lose
 * that data there, or find a disk there that was removed here. */
#include "migrate/preflight/description.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define LAYERS_MAX 256 /* of one disk */

static const char *const folders[] = {"/machine/peripheral", "/machine/peripheral-anon"};
/* Devices that QEMU has made for other options, or for the machine itself. On the machine pc a
 * guest can eject such cards, so there they are checked, too. vCPUs (-smp), which a guest of q35
 * can eject, are not: that the destination has a vCPU too many does less harm than a stop for
 * nothing. (It could not be tested with TCG either: once a vCPU has been ejected, QEMU 7.2 writes
 * to freed memory when its memory map changes, as it does when a migration is cancelled.) */
#define MADE_BY_QEMU "/machine/unattached"
#define EJECTS       "i440FX-pcihost"

/* ------------------------------------------------------------ what there is */

/* The image that is written to, its size, and its backing images, by one answer of QEMU. */
static json_t *images_of(const json_t *inserted)
{
    const json_t *image = json_object_get(inserted, "image");
    json_t *names = json_array();
    for (unsigned i = 0; image && i < LAYERS_MAX; i++) {
        json_array_append_new(names, ibx_disk_name(ibx_member(image, "filename")));
        image = json_object_get(image, "backing-image");
    }
    image = json_object_get(inserted, "image");
    return json_pack("{s:o, s:o, s:I, s:b}", "images", names, "file",
                     ibx_disk_name(ibx_member(inserted, "file")), "bytes",
                     json_integer_value(json_object_get(image, "virtual-size")), "read-only",
                     json_is_true(json_object_get(inserted, "ro")));
}

static int find_disks(struct ibx_qmp *qmp, json_t *disks, uint64_t deadline_ns,
                      struct ibx_error *err)
{
    json_t *list, *item;
    size_t index;
    int rc = ibx_qmp_execute(qmp, "query-block", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        const json_t *inserted = json_object_get(item, "inserted");
        if (*ibx_member(item, "qdev"))
            json_object_set_new(disks, ibx_member(item, "qdev"),
                                inserted ? images_of(inserted) : json_object());
    }
    json_decref(list);
    return 0;
}

int ibx_preflight_children(struct ibx_qmp *qmp, const char *path, json_t *types,
                           uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *list, *item;
    size_t index;
    int rc =
        ibx_qmp_execute(qmp, "qom-list", json_pack("{s:s}", "path", path), &list, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        const char *type = ibx_member(item, "type");
        char name[64];
        if (sscanf(type, "child<%63[^>]", name) == 1 &&
            json_object_set_new(types, ibx_member(item, "name"), ibx_json_text(name)))
            rc = ibx_error_set(err, -ENOMEM, "no memory for a list of devices");
    }
    json_decref(list);
    return rc;
}

static bool ejects(const json_t *machine)
{
    const char *name;
    json_t *type;
    json_object_foreach((json_t *)(uintptr_t)machine, name, type)
    {
        if (!strcmp(json_string_value(type), EJECTS))
            return true;
    }
    return false;
}

static bool is_vcpu(const char *type)
{
    const size_t n = strlen(type), end = strlen("-cpu");
    return n > end && !strcmp(type + n - end, "-cpu");
}

/* Finds the devices of MADE_BY_QEMU, if the guest can eject any. */
static int find_made(struct ibx_qmp *qmp, json_t *made, uint64_t deadline_ns, struct ibx_error *err)
{
    const char *name;
    json_t *type, *machine = json_object(), *all = json_object();
    int rc = ibx_preflight_children(qmp, "/machine", machine, deadline_ns, err);
    if (!rc && ejects(machine))
        rc = ibx_preflight_children(qmp, MADE_BY_QEMU, all, deadline_ns, err);
    json_object_foreach(all, name, type)
    {
        const bool device = !strncmp(name, "device[", 7) && !is_vcpu(json_string_value(type));
        if (!rc && device && json_object_set(made, name, type))
            rc = ibx_error_set(err, -ENOMEM, "no memory for a list of devices");
    }
    json_decref(machine);
    json_decref(all);
    return rc;
}

/* Whether those devices have to be checked; NULL: nothing was compared yet, so they have to. */
static bool may_eject(const json_t *compared)
{
    return !compared || json_object_size(json_object_get(compared, "made"));
}

static void ask_devices(struct ibx_qmp *qmp, const char *path, uint64_t deadline_ns)
{
    ibx_qmp_ahead(qmp, "qom-list", json_pack("{s:s}", "path", path), deadline_ns);
}

void ibx_preflight_compared_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                                uint64_t deadline_ns)
{
    if (disks)
        ibx_qmp_ahead(qmp, "query-block", NULL, deadline_ns);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        ask_devices(qmp, folders[i], deadline_ns);
    if (!compared)
        ask_devices(qmp, "/machine", deadline_ns);
    if (may_eject(compared))
        ask_devices(qmp, MADE_BY_QEMU, deadline_ns);
}

void ibx_preflight_since_ask(struct ibx_qmp *qmp, bool disks, const json_t *compared, bool stopped,
                             uint64_t deadline_ns)
{
    const json_t *counts = json_object_get(compared, "counts");
    if (disks && stopped == (json_object_size(json_object_get(compared, "disks")) > 0))
        ibx_qmp_ahead(qmp, "query-block", NULL, deadline_ns);
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        if (stopped == (json_integer_value(json_array_get(counts, i)) > 0))
            ask_devices(qmp, folders[i], deadline_ns);
    if (stopped && may_eject(compared))
        ask_devices(qmp, MADE_BY_QEMU, deadline_ns);
}

/* Makes the object of ibx_preflight_compared(). `last`: the previous one, or NULL. */
static int find(struct ibx_qmp *qmp, bool disks, const json_t *last, json_t **compared,
                uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *found = json_pack("{s:{}, s:{}, s:{}, s:[]}", "disks", "devices", "made", "counts");
    json_t *devices = json_object_get(found, "devices"), *counts = json_object_get(found, "counts");
    int rc = found ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a description of the VM");
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ibx_preflight_compared_ask(qmp, disks, last, deadline_ns);
    if (!rc && disks)
        rc = find_disks(qmp, json_object_get(found, "disks"), deadline_ns, err);
    for (size_t i = 0; !rc && i < sizeof(folders) / sizeof(folders[0]); i++) {
        const size_t others = json_object_size(devices);
        rc = ibx_preflight_children(qmp, folders[i], devices, deadline_ns, err);
        json_array_append_new(counts,
                              json_integer((json_int_t)(json_object_size(devices) - others)));
    }
    if (!rc && may_eject(last))
        rc = find_made(qmp, json_object_get(found, "made"), deadline_ns, err);
    ibx_qmp_ahead_end(qmp, before);
    if (rc)
        json_decref(found);
    else
        *compared = found;
    return rc;
}

int ibx_preflight_compared(struct ibx_qmp *qmp, bool disks, json_t **compared, uint64_t deadline_ns,
                           struct ibx_error *err)
{
    return find(qmp, disks, NULL, compared, deadline_ns, err);
}

/* ------------------------------------------------------------ what is another */

/* Describes a disk for a message. */
static void show(const json_t *disk, char *text, size_t size)
{
    if (!*ibx_member(disk, "file"))
        snprintf(text, size, "none");
    else
        snprintf(text, size, "%.160s (%" JSON_INTEGER_FORMAT " bytes, layers: %zu%s)",
                 ibx_member(disk, "file"), json_integer_value(json_object_get(disk, "bytes")),
                 json_array_size(json_object_get(disk, "images")),
                 json_is_true(json_object_get(disk, "read-only")) ? ", read-only" : "");
}

static void compare_disks(const json_t *compared, json_t *disks, struct ibx_blockers *blockers)
{
    const char *name;
    json_t *disk;
    json_object_foreach(disks, name, disk)
    {
        const json_t *before = json_object_get(compared, name);
        char is[256], was[256];
        if (!before || json_equal(disk, before))
            continue;
        show(disk, is, sizeof(is));
        show(before, was, sizeof(was));
        ibx_blockers_add(blockers,
                         "the image of the disk %.160s is %s, and the destination has compared %s: "
                         "another client of QEMU has changed it meanwhile; give the destination's "
                         "QEMU the same image and migrate again",
                         name, is, was);
    }
}

/* Adds a blocker for each device of `some` that is not in `others`. */
static void compare_devices(json_t *some, const json_t *others, const char *what,
                            struct ibx_blockers *blockers)
{
    const char *name;
    json_t *type;
    json_object_foreach(some, name, type)
    {
        if (!json_equal(type, json_object_get(others, name)))
            ibx_blockers_add(blockers,
                             "the device %.160s (%.64s) has been plugged %s since the destination "
                             "compared: give the destination's QEMU the same devices and migrate "
                             "again",
                             name, json_string_value(type), what);
    }
}

int ibx_preflight_since(struct ibx_qmp *qmp, bool disks, const json_t *compared,
                        struct ibx_blockers *blockers, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *now;
    int rc = find(qmp, disks, compared, &now, deadline_ns, err);
    if (rc)
        return rc;
    json_t *devices = json_object_get(now, "devices"),
           *before = json_object_get(compared, "devices");
    compare_disks(json_object_get(compared, "disks"), json_object_get(now, "disks"), blockers);
    compare_devices(devices, before, "in", blockers);
    compare_devices(before, devices, "out", blockers);
    compare_devices(json_object_get(compared, "made"), json_object_get(now, "made"), "out",
                    blockers);
    json_decref(now);
    return 0;
}
