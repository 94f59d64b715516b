/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Devices and back ends that access guest RAM without QEMU's page tables, and others with which
 * QEMU cannot migrate. */
#include "migrate/preflight/preflight.h"

#include <stdio.h>
#include <string.h>

static bool begins(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

/* ------------------------------------------------------------ devices, objects */

/* Types of devices that access guest RAM without QEMU's page tables. */
static const char *const bypassing[] = {"vfio-",      "vfio-user",  "x-vfio-user",
                                        "vhost-user", "vhost-vdpa", "cryptodev-vhost-user"};

/* The remedy for vhost-user devices, whose back end maps guest RAM when the VM starts to run:
 * --stand-still. Not for a VM that returns, nor for children of a snapshot, which run before all of
 * their pages are there. */
static const char *stand_still(const struct ibx_blockers *blockers)
{
    return blockers->snapshot || blockers->returns || blockers->takes_over
               ? ""
               : ", or migrate by send and receive with --stand-still at both ends";
}

/* How to remove a child of the QOM path `path`. A device without an id has only a path for
 * device_del.
 */
static void name_removal(const char *path, const char *name, char *out, size_t size)
{
    if (!strcmp(path, "/objects"))
        snprintf(out, size, "remove it (object_del %.64s, after the device that uses it)", name);
    else if (strstr(path, "-anon"))
        snprintf(out, size, "unplug it (device_del %s/%.64s)", path, name);
    else
        snprintf(out, size, "unplug it (device_del %.64s)", name);
}

/* `type`: what follows "child<" in a QOM type such as "child<vfio-pci>". */
static void check_type(const char *path, const char *name, const char *type,
                       struct ibx_blockers *blockers)
{
    const int length = (int)strcspn(type, ">");
    char removal[160];
    name_removal(path, name, removal, sizeof(removal));
    for (size_t i = 0; i < sizeof(bypassing) / sizeof(bypassing[0]); i++) {
        if (!begins(type, bypassing[i]))
            continue;
        const bool user = memmem(type, strlen(type), "vhost-user", 10) != NULL;
        if (!user || !blockers->stands_still)
            ibx_blockers_add(blockers,
                             "device %.64s (%.*s) accesses guest RAM without QEMU, and would read "
                             "pages that are not there yet: %s first%s",
                             name, length, type, removal, user ? stand_still(blockers) : "");
        return;
    }
    /* RAM that is not in its stream, QEMU accepts only if it already has the same guest address;
     * that of a PCI device has the address that the guest gave it. */
    if (begins(type, "ivshmem"))
        ibx_blockers_add(
            blockers,
            "device %.64s (%.*s) shares memory with others on this host, who would not "
            "have it any more, and QEMU does not load it elsewhere: %s before the migration",
            name, length, type, removal);
    if (begins(type, "pci-serial-2x>")) /* tried with 7.2 and 10 */
        ibx_blockers_add(blockers,
                         "device %.64s (%.*s) makes QEMU crash when it migrates, whoever asks for "
                         "that: %s, or use two pci-serial",
                         name, length, type, removal);
}

/* Adds blockers for the children of a QOM path. */
static int check_children(struct ibx_qmp *qmp, const char *path, struct ibx_blockers *blockers,
                          uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *list, *item;
    int rc =
        ibx_qmp_execute(qmp, "qom-list", json_pack("{s:s}", "path", path), &list, deadline_ns, err);
    if (rc)
        return rc;
    size_t index;
    json_array_foreach(list, index, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *type = json_string_value(json_object_get(item, "type"));
        if (name && type && begins(type, "child<"))
            check_type(path, name, type + 6, blockers);
    }
    json_decref(list);
    return 0;
}

/* ------------------------------------------------------------ networks */

/* Network back ends are no QOM objects; the human monitor lists them. */
static const struct network {
    const char *told, *name;
    bool user; /* by a process that maps guest RAM when the VM begins to run */
} networks[] = {{"type=vhost-user", "vhost-user", true},
                {"type=vhost-vdpa", "vhost-vdpa", false},
                {"type=passt,vhost-user", "passt with vhost-user=on", true}}; /* QEMU 10.1 */

static const struct network *network_of(const char *line, size_t length)
{
    for (size_t i = 0; i < sizeof(networks) / sizeof(networks[0]); i++)
        if (memmem(line, length, networks[i].told, strlen(networks[i].told)))
            return &networks[i];
    return NULL;
}

static int check_networks(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                          struct ibx_error *err)
{
    json_t *text;
    int rc = ibx_qmp_execute(qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info network"), &text, deadline_ns,
                             err);
    if (rc)
        return rc;
    const char *line = json_string_value(text);
    for (; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const struct network *found = network_of(line, strcspn(line, "\r\n"));
        if (!found || (found->user && blockers->stands_still))
            continue;
        const char *name = line + strspn(line, " \\");
        ibx_blockers_add(blockers,
                         "the network %.*s is a %s, which accesses guest RAM without QEMU: use a "
                         "tap (vhost=on is fine) or unplug it first%s",
                         (int)strcspn(name, ":\r\n"), name, found->name,
                         found->user ? stand_still(blockers) : "");
    }
    json_decref(text);
    return 0;
}

/* ------------------------------------------------------------ block drivers */

/* Whether a block driver gives all of guest RAM to a device of this host or to another process when
 * the disk is opened. It keeps those pages, while pages that arrive later are others. */
static bool hands_over(const char *driver)
{
    return !strcmp(driver, "nvme") || begins(driver, "virtio-blk-");
}

static int check_drivers(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *nodes, *node;
    size_t i;
    int rc = ibx_qmp_block_nodes(qmp, &nodes, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(nodes, i, node)
    {
        const char *driver = json_string_value(json_object_get(node, "drv"));
        if (!driver || !hands_over(driver))
            continue;
        ibx_blockers_add(
            blockers,
            "a disk is used by QEMU's driver %.32s, which accesses guest RAM without QEMU's page "
            "tables: use a driver of the host's kernel (host_device, file)",
            driver);
        break;
    }
    json_decref(nodes);
    return 0;
}

/* ------------------------------------------------------------ all of them */

static const char *const places[] = {"/machine/peripheral", "/machine/peripheral-anon", "/objects"};

#define PLACES (sizeof(places) / sizeof(places[0]))

void ibx_preflight_devices_ask(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    for (size_t i = 0; i < PLACES; i++)
        ibx_qmp_ahead(qmp, "qom-list", json_pack("{s:s}", "path", places[i]), deadline_ns);
    ibx_qmp_ahead(qmp, "human-monitor-command", json_pack("{s:s}", "command-line", "info network"),
                  deadline_ns);
    ibx_qmp_ahead(qmp, "query-named-block-nodes", json_pack("{s:b}", "flat", 1), deadline_ns);
}

int ibx_preflight_devices(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                          struct ibx_error *err)
{
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    int rc = 0;
    ibx_preflight_devices_ask(qmp, deadline_ns);
    for (size_t i = 0; !rc && i < PLACES; i++)
        rc = check_children(qmp, places[i], blockers, deadline_ns, err);
    if (!rc)
        rc = check_networks(qmp, blockers, deadline_ns, err);
    if (!rc)
        rc = check_drivers(qmp, blockers, deadline_ns, err);
    ibx_qmp_ahead_end(qmp, before);
    return rc;
}
