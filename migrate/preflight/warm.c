/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Devices and processors that change guest RAM without QEMU's page tables, so that it is unknown
 * which pages are written. Such a VM is still migrated, but no page of it is fetched before it
 * stops. */
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CR4_VMXE  (1u << 13)
#define EFER_SVME (1u << 12)

/* How the types of devices and the names of block drivers begin that give guest RAM to the host's
 * kernel, or to a device of the host, permanently; or that take memory from the guest and give it
 * back without a write. */
static const char *const devices[] = {"vhost-scsi", "virtio-mem"};
static const char *const drivers[] = {"nvme", "io_uring", "virtio-blk-"};

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* A device of a running QEMU, and how to ask it for more. */
struct device {
    struct ibx_qmp *qmp;
    uint64_t deadline_ns;
    const char *folder; /* the QOM path that it is under */
    const char *name, *type;
};

typedef int device_check(const struct device *device, struct ibx_error *err);

/* Whether this is a balloon with this property on. */
static bool is_balloon_with(const struct device *device, const char *property)
{
    char path[512];
    json_t *value = NULL;
    if (!begins(device->type, "virtio-balloon"))
        return false;
    snprintf(path, sizeof(path), "%s/%s", device->folder, device->name);
    const int rc = ibx_qmp_execute(device->qmp, "qom-get",
                                   json_pack("{s:s, s:s}", "path", path, "property", property),
                                   &value, device->deadline_ns, NULL);
    const bool on = !rc && json_is_true(value);
    json_decref(value);
    return on;
}

/* Whether the guest reports free pages, which QEMU then gives back to the host. */
static bool reports_pages(const struct device *device)
{
    return is_balloon_with(device, "free-page-reporting");
}

/* Calls `check` for each device under a QOM path, until it returns an error. */
static int each_device_in(const char *folder, struct ibx_qmp *qmp, uint64_t deadline_ns,
                          device_check *check, struct ibx_error *err)
{
    json_t *types = json_object(), *type;
    const char *name;
    int rc = types ? ibx_preflight_children(qmp, folder, types, deadline_ns, err)
                   : ibx_error_set(err, -ENOMEM, "no memory for a list of devices");
    json_object_foreach(types, name, type)
    {
        const struct device device = {qmp, deadline_ns, folder, name, json_string_value(type)};
        if (!rc)
            rc = check(&device, err);
    }
    json_decref(types);
    return rc;
}

static int each_device(struct ibx_qmp *qmp, uint64_t deadline_ns, device_check *check,
                       struct ibx_error *err)
{
    int rc = each_device_in("/machine/peripheral", qmp, deadline_ns, check, err);
    return rc ? rc : each_device_in("/machine/peripheral-anon", qmp, deadline_ns, check, err);
}

static int check_writes(const struct device *device, struct ibx_error *err)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        if (begins(device->type, devices[i]))
            return ibx_error_set(err, -EOPNOTSUPP,
                                 "writes of device %.64s (%.64s) to guest RAM are not seen",
                                 device->name, device->type);
    if (reports_pages(device))
        return ibx_error_set(
            err, -EOPNOTSUPP,
            "device %.64s has free-page-reporting, which changes pages without being seen",
            device->name);
    return 0;
}

/* Refuses devices that give pages back unnoticed. A balloon without free-page-reporting does not:
 * it reports its size. */
static int check_gives_back(const struct device *device, struct ibx_error *err)
{
    const bool reports = reports_pages(device);
    if (!reports && !begins(device->type, "virtio-mem"))
        return 0;
    return ibx_error_set(err, -EOPNOTSUPP, "device %.64s (%s)", device->name,
                         reports ? "free-page-reporting" : "virtio-mem");
}

int ibx_preflight_gives_back(struct ibx_qmp *qmp, const char *fabric, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = each_device(qmp, deadline_ns, check_gives_back, &why);
    if (rc != -EOPNOTSUPP)
        return rc ? ibx_error_set(err, rc, "%s", why.message) : 0;
    return ibx_error_set(err, rc,
                         "the guest gives pages back by %s, and %s registers its memory, which "
                         "keeps those pages: migrate over tcp or shm, or remove the device",
                         why.message, fabric);
}

/* Refuses a device whose guest may expect reported pages to come back as zeros. Linux negotiates
 * page poisoning only if it clears or poisons pages when it frees them, and QEMU leaves poisoned
 * pages alone; but which of the two it does cannot be seen. */
static int check_zeros(const struct device *device, struct ibx_error *err)
{
    char path[512];
    const char *feature;
    json_t *status, *item;
    size_t i;
    bool wants = false;
    if (!reports_pages(device))
        return 0;
    snprintf(path, sizeof(path), "%s/%s/virtio-backend", device->folder, device->name);
    int rc = ibx_qmp_execute(device->qmp, "x-query-virtio-status", json_pack("{s:s}", "path", path),
                             &status, device->deadline_ns, err);
    if (rc && rc != -EOPNOTSUPP && rc != -EREMOTEIO)
        return rc;
    if (rc)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "device %.64s has free-page-reporting, and QEMU does not tell whether "
                             "the guest clears pages as it frees them (init_on_free=1): it would "
                             "take the snapshot's bytes for zeros; start it with "
                             "free-page-reporting=off",
                             device->name);
    json_array_foreach(json_object_get(json_object_get(status, "guest-features"), "dev-features"),
                       i, item)
    {
        feature = json_string_value(item);
        wants |= feature && begins(feature, "VIRTIO_BALLOON_F_PAGE_POISON");
    }
    json_decref(status);
    return wants ? ibx_error_set(err, -EOPNOTSUPP,
                                 "its guest clears pages as it frees them (init_on_free=1 or "
                                 "page_poison=1) and gives them back by device %.64s: in a child "
                                 "they would have the snapshot's bytes, which it takes for zeros; "
                                 "start it with free-page-reporting=off",
                                 device->name)
                 : 0;
}

int ibx_preflight_wants_zeros(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    return each_device(qmp, deadline_ns, check_zeros, err);
}

/* While QEMU migrates a running VM, its guest names free pages, and QEMU looks them up in its list
 * of dirty pages. With x-ignore-shared it has none for guest RAM, and ends by SIGSEGV (7.2). */
static int check_hints(const struct device *device, struct ibx_error *err)
{
    return is_balloon_with(device, "free-page-hint")
               ? ibx_error_set(
                     err, -EOPNOTSUPP,
                     "device %.64s (%.64s) has free-page-hint=on, by which QEMU may crash "
                     "when it migrates without guest RAM: unplug it (device_del), or "
                     "start QEMU without free-page-hint (free-page-reporting is fine)",
                     device->name, device->type)
               : 0;
}

int ibx_preflight_hints(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    struct ibx_error why = {0};
    const int rc = each_device(qmp, deadline_ns, check_hints, &why);
    if (rc == -EOPNOTSUPP)
        ibx_blockers_add(blockers, "%s", why.message);
    return rc && rc != -EOPNOTSUPP ? ibx_error_set(err, rc, "%s", why.message) : 0;
}

static int check_empties(const struct device *device, struct ibx_error *err)
{
    return begins(device->type, "virtio-balloon") || begins(device->type, "virtio-mem")
               ? ibx_error_set(err, -EOPNOTSUPP, "device %.64s (%.64s)", device->name, device->type)
               : 0;
}

void ibx_preflight_minor(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                         struct ibx_blockers *blockers, uint64_t deadline_ns)
{
    struct ibx_error why = {0};
    size_t i = 0;
    while (i < ram->count && ram->blocks[i].page_size <= 4096)
        i++;
    if (i == ram->count || each_device(qmp, deadline_ns, check_empties, &why) != -EOPNOTSUPP)
        return;
    ibx_blockers_add(blockers,
                     "guest RAM %s has pages of %llu bytes, and %s may give one back while it "
                     "comes, which QEMU does not tell: receive without --minor, or without "
                     "verifying pages (--no-verify at both ends)",
                     ram->blocks[i].id, (unsigned long long)ram->blocks[i].page_size, why.message);
}

static int check_disks(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *list, *node;
    size_t index;
    int rc = ibx_qmp_block_nodes(qmp, &list, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(list, index, node)
    {
        const char *driver = json_string_value(json_object_get(node, "drv"));
        for (size_t i = 0; !rc && driver && i < sizeof(drivers) / sizeof(drivers[0]); i++)
            if (begins(driver, drivers[i]))
                rc = ibx_error_set(
                    err, -EOPNOTSUPP,
                    "a disk uses QEMU's driver %.32s, whose writes to guest RAM are not seen",
                    driver);
    }
    json_decref(list);
    return rc;
}

/* Finds the feature that lets the guest run VMs of its own under KVM; NULL: it cannot, or QEMU does
 * not use KVM. For such a nested VM the processor writes a page (the virtual APIC) without any page
 * table.
 */
static int find_nesting(struct ibx_qmp *qmp, const char **feature, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    static const char *const features[] = {"vmx", "svm"};
    json_t *kvm, *cpus, *value;
    *feature = NULL;
    int rc = ibx_qmp_execute(qmp, "query-kvm", NULL, &kvm, deadline_ns, err);
    if (rc)
        return rc;
    const bool enabled = json_is_true(json_object_get(kvm, "enabled"));
    json_decref(kvm);
    if (!enabled)
        return 0;
    rc = ibx_qmp_execute(qmp, "query-cpus-fast", NULL, &cpus, deadline_ns, err);
    if (rc)
        return rc;
    const char *path = json_string_value(json_object_get(json_array_get(cpus, 0), "qom-path"));
    for (size_t i = 0; path && i < 2; i++) {
        if (ibx_qmp_execute(qmp, "qom-get",
                            json_pack("{s:s, s:s}", "path", path, "property", features[i]), &value,
                            deadline_ns, NULL))
            continue; /* a processor without that property */
        if (json_is_true(value))
            *feature = features[i];
        json_decref(value);
    }
    json_decref(cpus);
    return 0;
}

/* Whether one of these registers, as "info registers" prints them for each vCPU, has the bit. */
static bool any_has(const char *registers, const char *name, uint64_t bit)
{
    const size_t length = strlen(name);
    for (const char *at = registers; (at = strstr(at, name)); at += length)
        if ((at == registers || at[-1] == ' ' || at[-1] == '\n') &&
            strtoull(at + length, NULL, 16) & bit)
            return true;
    return false;
}

int ibx_preflight_nested(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *text;
    int rc = ibx_qmp_execute(qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info registers -a"), &text,
                             deadline_ns, err);
    if (rc)
        return rc;
    const char *registers = json_is_string(text) ? json_string_value(text) : "";
    const bool vmx = any_has(registers, "CR4=", CR4_VMXE),
               svm = any_has(registers, "EFER=", EFER_SVME),
               known = strstr(registers, "CR4=") && strstr(registers, "EFER=");
    json_decref(text);
    if (known && !vmx && !svm)
        return 0;
    return ibx_error_set(
        err, -EOPNOTSUPP,
        known ? "its guest runs VMs of its own (%s is on), whose writes to guest RAM are not seen"
              : "QEMU does not tell whether its guest runs VMs of its own (%s)",
        !known ? "info registers -a"
        : vmx  ? "CR4.VMXE"
               : "EFER.SVME");
}

static int check_nested(struct ibx_qmp *qmp, bool *nests, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    const char *feature;
    int rc = find_nesting(qmp, &feature, deadline_ns, err);
    if (!rc && nests)
        *nests = feature != NULL;
    if (rc || !feature)
        return rc;
    if (nests)
        return ibx_preflight_nested(qmp, deadline_ns, err);
    return ibx_error_set(err, -EOPNOTSUPP,
                         "its processor can run VMs (%s), whose writes to guest RAM are not seen: "
                         "start it with -cpu ...,%s=off",
                         feature, feature);
}

/* Nobody reports what another process writes to guest RAM. */
static int check_users(const struct ibx_guest_ram *ram, struct ibx_error *err)
{
    struct ibx_guest_user user;
    struct ibx_error why = {0};
    if (ibx_guest_ram_find_user(ram, ram->pid, false, &user, &why))
        return ibx_error_set(err, -EOPNOTSUPP, "%s", why.message);
    return user.pid ? ibx_error_set(err, -EOPNOTSUPP,
                                    "process %d (%s) uses %s, the file of guest RAM %s, too, and "
                                    "what it writes there is not seen: end that process",
                                    (int)user.pid, user.name, user.block->path, user.block->id)
                    : 0;
}

int ibx_preflight_warm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, bool *nests,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = each_device(qmp, deadline_ns, check_writes, err);
    if (!rc)
        rc = check_nested(qmp, nests, deadline_ns, err);
    if (!rc)
        rc = check_disks(qmp, deadline_ns, err);
    return rc ? rc : check_users(ram, err);
}
