/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The VM's devices with all of their properties. QEMU has its tree of devices only as a text for
 * people: query-pci does not see behind a bridge that no firmware has set up yet, and asking QOM
 * for one property after the other costs 0.2 ms each, where the whole text costs 2 ms. */
#include "migrate/preflight/description.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX     12 /* levels of the tree of buses */
#define WORD_MAX      64
#define VALUE_MAX     160 /* bytes of a value that are compared */
#define BUSLESS_MAX   64  /* devices on no bus that are asked for their properties */
#define UNATTACHED    "/machine/unattached"
#define PERIPHERAL    "/machine/peripheral"
#define PERIPHERAL_NO "/machine/peripheral-anon"

/* ------------------------------------------------------------ properties of the host */

/* Properties of a device or of the machine that may differ between hosts. */
static const char *const host_properties[] = {
    /* Names of back ends on this host. What they are is compared elsewhere (disks), or is a
     * matter of the host (networks, character devices, displays). */
    "drive",
    "netdev",
    "chardev",
    "audiodev",
    "display",
    "head",
    "memdev",
    "tpmdev",
    "iothread",
    "rng",
    "cryptodev",
    "fsdev",
    "failover_pair_id",
    "pcap",
    "pflash0",
    "pflash1",
    "pcspk-audiodev",
    "memory-backend",
    "sgx-epc",
    "cxl-fmw",
    "hostmem",
    /* Paths, and the size of flash memory, which is compared as that of RAM; the content is in
     * the device state. */
    "num-blocks",
    "romfile",
    "firmware",
    "dtb",
    "dumpdtb",
    /* How the host does the work; neither guest nor device state depend on it. */
    "ioeventfd",
    "vhost",
    "vhostforce",
    "vhostfd",
    "x-txtimer",
    "x-txburst",
    "tx",
    "share-rw",
    "rerror",
    "werror",
    "account-invalid",
    "account-failed",
    "backend_defaults",
    "dump-guest-core",
    "mem-merge",
    "suppress-vmdesc",
    "bus-lock-ratelimit",
    "graphics",
    "request-merging",
    "indirect",
    "aio",
    /* Used only while the guest boots, which is over. */
    "bootindex",
    "boot",
    "kernel",
    "initrd",
    "append",
    "phandle-start",
    "dt-compatible",
    "acpi-index",
    /* Guessed from the disk's partition table when QEMU starts, which may have changed since.
     */
    "cyls",
    "heads",
    "secs",
    "lcyls",
    "lheads",
    "lsecs",
    /* Where the device is plugged in: its place is compared. */
    "addr",
    "nr",
    "channel",
    "scsi-id",
    "lun",
    "unit",
    "bus",
    "parent_bus",
    /* Values that change while a VM runs, or differ between equal QEMUs. */
    "MCFG",
    "busnr", /* of a PCI device: the guest numbers its buses (QEMU 10) */
    "smb_io_base",
    "realized",
    "hotplugged",
    "hotpluggable",
    "type",
    "rtc-time",
    "id",
    "legacy-addr",
};

/* Whether a property is one of these, so that it is not compared. */
static bool is_of_host(const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof(host_properties) / sizeof(host_properties[0]); i++)
        if (!strcmp(name, host_properties[i]))
            return true;
    return value && !strncmp(value, "/objects/", strlen("/objects/"));
}

/* ------------------------------------------------------------ the tree of devices */

/* A device and the bus it is on. */
struct level {
    char bus[WORD_MAX];   /* its type */
    char index[WORD_MAX]; /* which of several such buses; "" where there is only one */
    char type[WORD_MAX], place[WORD_MAX];
    json_t *device; /* borrowed from the tree's list; NULL: not one of it */
    json_t *properties;
};

struct tree {
    struct level levels[DEPTH_MAX];
    int open; /* level of the device whose lines are being read; -1 none */
    json_t *list;
    bool failed; /* no memory */
};

/* A device of the accelerator has the same state as the one of the board that it replaces. */
static const char *plain_type(const char *type)
{
    static const char *const same[][2] = {
        {"kvm-i8259", "isa-i8259"}, {"kvm-pit", "isa-pit"}, {"kvm-ioapic", "ioapic"}};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (!strcmp(type, same[i][0]))
            return same[i][1];
    return type;
}

static bool pluggable(const char *bus)
{
    static const char *const types[] = {
        "PCI", "PCIE", "usb-bus", "SCSI", "virtio-serial-bus", "virtio-mmio-bus"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(bus, types[i]))
            return true;
    return false;
}

/* Whether this is the inner half of a virtio PCI device, which is one device together with the
 * outer.
 */
static bool inner(const struct level *level)
{
    return !strcmp(level->bus, "virtio-pci-bus");
}

/* Copies up to a blank, a separator or the end of the line. */
static void copy_word(char out[WORD_MAX], const char *from)
{
    size_t n = strcspn(from, " ,;\"\r\n");
    n = n < WORD_MAX - 1 ? n : WORD_MAX - 1;
    memcpy(out, from, n);
    out[n] = '\0';
}

static const char *after(const char *line, const char *begin)
{
    const size_t n = strlen(begin);
    return strncmp(line, begin, n) ? NULL : line + n;
}

static void add_place(struct level *level, const char *value)
{
    char word[WORD_MAX];
    copy_word(word, value);
    size_t used = strlen(level->place);
    snprintf(level->place + used, sizeof(level->place) - used, "%s%s", used ? ":" : "", word);
}

/* Sets the device's place, which is known when its first child begins: its properties come before.
 */
static void end_device(struct tree *tree)
{
    char place[DEPTH_MAX * 2 * WORD_MAX]; /* an index and a place of each level */
    const int depth = tree->open;
    size_t used = 0;
    tree->open = -1;
    if (depth < 0 || !tree->levels[depth].device || inner(&tree->levels[depth]))
        return;
    for (int i = 0; i <= depth; i++) {
        const struct level *level = &tree->levels[i];
        if (!inner(level))
            used += (size_t)snprintf(place + used, sizeof(place) - used, "%s%s%s%s", i ? "/" : "",
                                     level->index, level->index[0] ? ":" : "",
                                     level->place[0] ? level->place : plain_type(level->type));
    }
    tree->failed |=
        json_object_set_new(tree->levels[depth].device, "at", ibx_json_text(place)) != 0;
}

/* Adds a device to the list, or takes it as the inner half of the last one. */
static void begin_device(struct tree *tree, int depth, const char *type)
{
    struct level *level = &tree->levels[depth];
    const struct level *outer = depth ? &tree->levels[depth - 1] : NULL;
    end_device(tree);
    copy_word(level->type, type);
    level->place[0] = '\0';
    level->device = level->properties = NULL;
    tree->open = depth;
    if (!strcmp(level->type, "kvmclock") || !strcmp(level->type, "kvmvapic"))
        return; /* only KVM has these */
    if (inner(level) && outer) {
        level->device = outer->device;
        level->properties = outer->properties;
        return;
    }
    level->properties = json_object();
    level->device = json_pack("{s:s, s:b, s:o}", "type", plain_type(level->type), "plugged",
                              pluggable(level->bus), "properties", level->properties);
    if (!level->device || json_array_append_new(tree->list, level->device)) {
        level->device = NULL; /* it is gone */
        tree->failed = true;
    }
    tree->failed |= json_array_size(tree->list) > IBX_DESCRIBED_MAX;
}

/* Takes a property. A value is "text", a word, or a number followed by the same in other words. */
static void add_property(struct tree *tree, const struct level *level, const char *line)
{
    char name[WORD_MAX], value[VALUE_MAX];
    const size_t length = strcspn(line, "\r\n");
    const char *equals = memmem(line, length, " = ", 3);
    if (!level->device || !equals || equals - line >= WORD_MAX)
        return;
    snprintf(name, sizeof(name), "%.*s", (int)(equals - line), line);
    const char *at = equals + 3;
    size_t n = length - (size_t)(at - line);
    if (n > 1 && *at == '"' && at[n - 1] == '"')
        at++, n -= 2;
    else
        n = strcspn(at, " \r\n");
    snprintf(value, sizeof(value), "%.*s", (int)(n < VALUE_MAX ? n : VALUE_MAX - 1), at);
    if (!strcmp(name, "port") && !strcmp(level->bus, "usb-bus"))
        return; /* the address as it was given; the place has the actual one */
    if (!strcmp(name, "drive") && value[0])
        tree->failed |= json_object_set_new(level->device, "drive", ibx_json_text(value)) != 0;
    if (!is_of_host(name, value) && !json_object_get(level->properties, name))
        tree->failed |= json_object_set_new(level->properties, name, ibx_json_text(value)) != 0;
}

/* Takes the device's place on its bus. The port of a USB device is in its summary line, even if
 * QEMU has chosen it. */
static void take_property(struct tree *tree, struct level *level, const char *line)
{
    static const struct {
        const char *bus, *property;
    } places[] = {{"PCI", "addr = "}, {"PCIE", "addr = "},       {"virtio-serial-bus", "nr = "},
                  {"IDE", "unit = "}, {"SCSI", "channel = "},    {"SCSI", "scsi-id = "},
                  {"SCSI", "lun = "}, {"floppy-bus", "unit = "}, {"nvme-bus", "nsid = "}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *value =
            strcmp(level->bus, places[i].bus) ? NULL : after(line, places[i].property);
        if (value)
            add_place(level, value);
    }
    const char *mmio = strcmp(level->type, "virtio-mmio") ? NULL : after(line, "mmio ");
    const char *flash = strncmp(level->type, "cfi.pflash", 10) ? NULL : after(line, "name = \"");
    const char *port = strcmp(level->bus, "usb-bus") || !after(line, "addr ")
                           ? NULL
                           : memmem(line, strcspn(line, "\n"), ", port ", 7);
    const char *place = mmio ? mmio : flash ? flash : port ? port + 7 : NULL;
    if (place)
        add_place(level, place);
    add_property(tree, level, line);
}

/* Notes the index of a bus, if a controller has several: ide.0, ide.1, ... */
static void begin_bus(struct tree *tree, int depth, const char *name)
{
    struct level *level = &tree->levels[depth];
    const char *dot = memrchr(name, '.', strcspn(name, "\r\n"));
    end_device(tree);
    level->bus[0] = '\0';
    copy_word(level->index, dot ? dot + 1 : "");
}

static void take_line(struct tree *tree, const char *line)
{
    const int indent = (int)strspn(line, " ");
    line += indent;
    const char *bus = after(line, "bus: "), *device = after(line, "dev: "),
               *type = after(line, "type ");
    const int depth = device || type ? (indent - 2) / 4 : indent / 4;
    if (depth < 0 || depth >= DEPTH_MAX)
        return;
    if (bus) {
        begin_bus(tree, depth, bus);
    } else if (type && tree->open < 0) {
        copy_word(tree->levels[depth].bus, type);
        if (strcmp(tree->levels[depth].bus, "IDE"))
            tree->levels[depth].index[0] = '\0';
    } else if (device) {
        begin_device(tree, depth, device);
    } else if (tree->open >= 0) {
        take_property(tree, &tree->levels[tree->open], line);
    }
}

json_t *ibx_devices_of_qtree(const char *qtree)
{
    struct tree tree = {.open = -1, .list = json_array()};
    tree.failed = !tree.list;
    while (*qtree && !tree.failed) {
        take_line(&tree, qtree);
        qtree += strcspn(qtree, "\n");
        qtree += *qtree == '\n';
    }
    end_device(&tree);
    if (!tree.failed)
        return tree.list;
    json_decref(tree.list);
    return NULL;
}

/* ------------------------------------------------------------ devices on no bus */

/* Whether a property is a number, word or text; others are links, or change. */
static bool simple(const char *type)
{
    static const char *const types[] = {"bool",   "str",   "string", "size",
                                        "int",    "uint8", "uint16", "uint32",
                                        "uint64", "int32", "int64",  "OnOffAuto"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(type, types[i]) ||
            (!strncmp(type, types[i], strlen(types[i])) && !strcmp(type + strlen(types[i]), "_t")))
            return true;
    return false;
}

static json_t *property(const char *path, const char *name)
{
    return json_pack("{s:s, s:s}", "path", path, "property", name);
}

/* Whether the property of an item of qom-list is compared. */
static bool is_compared(const json_t *item)
{
    return simple(ibx_member(item, "type")) && !is_of_host(ibx_member(item, "name"), NULL);
}

/* The text of a property, to be freed by free(); NULL: it is not compared. */
static char *asked_property(const struct describing *d, const char *path, const char *name)
{
    json_t *value;
    if (ibx_qmp_execute(d->qmp, "qom-get", property(path, name), &value, d->deadline_ns, NULL))
        return NULL;
    char *text = json_is_string(value) ? strdup(json_string_value(value))
                                       : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    json_decref(value);
    if (!text || !is_of_host(name, text))
        return text;
    free(text);
    return NULL;
}

int ibx_describe_properties(struct describing *d, const char *path, json_t *properties)
{
    size_t index, bytes = 0;
    json_t *list, *item;
    int rc = ibx_qmp_execute(d->qmp, "qom-list", json_pack("{s:s}", "path", path), &list,
                             d->deadline_ns, d->err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        if (is_compared(item))
            ibx_qmp_ahead(d->qmp, "qom-get", property(path, ibx_member(item, "name")),
                          d->deadline_ns);
    }
    json_array_foreach(list, index, item)
    {
        const char *name = ibx_member(item, "name");
        char *text = is_compared(item) ? asked_property(d, path, name) : NULL;
        if (!text)
            continue;
        bytes += strlen(name) + strlen(text);
        if (bytes <= IBX_MIGRATE_DESCRIPTION_MAX)
            json_object_set_new(properties, name, ibx_json_text(text));
        free(text);
        if (bytes > IBX_MIGRATE_DESCRIPTION_MAX)
            break;
    }
    json_decref(list);
    return bytes <= IBX_MIGRATE_DESCRIPTION_MAX
               ? 0
               : ibx_error_set(d->err, -EMSGSIZE,
                               "the properties of %.128s are longer than a description may be: %u "
                               "bytes",
                               path, IBX_MIGRATE_DESCRIPTION_MAX);
}

/* Whether devices of this type are on no bus: not those in the tree, whose first `known` entries
 * came from "info qtree", and not DIMMs and vCPUs, which are compared elsewhere. */
static bool is_busless(const json_t *tree, size_t known, const char *type)
{
    if (strstr(type, "dimm") || strstr(type, "-cpu"))
        return false;
    for (size_t i = 0; i < known; i++)
        if (!strcmp(ibx_member(json_array_get(tree, i), "type"), type))
            return false;
    return true;
}

static int add_busless(struct describing *d, const char *folder, json_t *tree, size_t known)
{
    json_t *list, *item;
    size_t index, asked = 0;
    int rc = ibx_qmp_execute(d->qmp, "qom-list", json_pack("{s:s}", "path", folder), &list,
                             d->deadline_ns, d->err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        char path[256], type[WORD_MAX];
        const char *child = after(ibx_member(item, "type"), "child<");
        snprintf(type, sizeof(type), "%.*s", child ? (int)strcspn(child, ">") : 0,
                 child ? child : "");
        snprintf(path, sizeof(path), "%s/%s", folder, ibx_member(item, "name"));
        if (!child || !is_busless(tree, known, type) || asked++ >= BUSLESS_MAX)
            continue;
        json_t *properties = json_object();
        rc = ibx_describe_properties(d, path, properties);
        json_array_append_new(tree, json_pack("{s:s, s:s, s:b, s:o}", "type", type, "at", type,
                                              "plugged", 1, "properties", properties));
        if (rc)
            break;
    }
    json_decref(list);
    return rc;
}

/* ------------------------------------------------------------ the south bridge of q35 */

#define ICH9 "ICH9-LPC"

static json_t *ich9_properties(const json_t *tree)
{
    size_t index;
    json_t *device;
    json_array_foreach(tree, index, device)
    {
        if (!strcmp(ibx_member(device, "type"), ICH9))
            return json_object_get(device, "properties");
    }
    return NULL;
}

/* Adds properties that "info qtree" shows for the south bridges of other machines, and not for this
 * one. */
static void add_to_ich9(struct describing *d, const json_t *tree)
{
    static const char *const hidden[] = {"acpi-pci-hotplug-with-bridge-support", "disable_s3",
                                         "disable_s4", "s4_val"};
    json_t *list, *item, *properties = ich9_properties(tree);
    size_t index;
    if (!properties || ibx_qmp_execute(d->qmp, "qom-list", json_pack("{s:s}", "path", UNATTACHED),
                                       &list, d->deadline_ns, NULL))
        return;
    json_array_foreach(list, index, item)
    {
        char path[256];
        snprintf(path, sizeof(path), "%s/%s", UNATTACHED, ibx_member(item, "name"));
        const bool is = !strcmp(ibx_member(item, "type"), "child<" ICH9 ">");
        for (size_t i = 0; is && i < sizeof(hidden) / sizeof(hidden[0]); i++)
            ibx_qmp_ahead(d->qmp, "qom-get", property(path, hidden[i]), d->deadline_ns);
        for (size_t i = 0; is && i < sizeof(hidden) / sizeof(hidden[0]); i++) {
            char *text = asked_property(d, path, hidden[i]);
            if (text)
                json_object_set_new(properties, hidden[i], ibx_json_text(text));
            free(text);
        }
    }
    json_decref(list);
}

int ibx_describe_devices(struct describing *d)
{
    json_t *text;
    int rc = ibx_qmp_execute(d->qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info qtree"), &text,
                             d->deadline_ns, d->err);
    if (rc)
        return rc;
    const char *lines = json_string_value(text);
    json_t *list = ibx_devices_of_qtree(lines ? lines : "");
    json_decref(text);
    if (!list)
        return ibx_error_set(d->err, -EMSGSIZE,
                             "the VM has more than %u devices, which no VM has, or there is no "
                             "memory for a description of them",
                             IBX_DESCRIBED_MAX);
    add_to_ich9(d, list);
    const size_t known = json_array_size(list);
    rc = add_busless(d, PERIPHERAL, list, known);
    if (!rc)
        rc = add_busless(d, PERIPHERAL_NO, list, known);
    json_object_set_new(d->description, "devices", list);
    return rc;
}
