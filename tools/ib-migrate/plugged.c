/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What has been plugged in or out since QEMU was started. A device that was plugged in becomes an
 * argument with all properties that are not their defaults, so that its address, slot and queues
 * are the same. What it uses is described where QMP tells enough of it: memory, I/O threads, random
 * number sources, raw and qcow2 files, taps. Anything else is named, and refused.
 */
#include "tools/ib-migrate/run.h"

#include "migrate/preflight/description.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ASK_MS 20000
#define PLACE  "/machine/peripheral"
#define INFO   255 /* the longest description of a network; QEMU cuts what is longer */

struct finding {
    struct ibx_qmp *qmp;
    json_t *objects, *devices, *backends; /* ids on the command line */
    json_t *nodes;                        /* query-named-block-nodes */
    json_t *absent, *plugged;
    struct ibx_error *err;
};

static int ask(const struct finding *f, const char *command, json_t *arguments, json_t **answer)
{
    return ibx_qmp_execute(f->qmp, command, arguments, answer, ibx_deadline_in_ms(ASK_MS), f->err);
}

/* A property, a new reference; NULL: it cannot be read, which is normal for some. */
static json_t *property(const struct finding *f, const char *path, const char *name)
{
    json_t *value = NULL;
    struct ibx_error unreadable = {0};
    if (ibx_qmp_execute(f->qmp, "qom-get", json_pack("{s:s, s:s}", "path", path, "property", name),
                        &value, ibx_deadline_in_ms(ASK_MS), &unreadable))
        return NULL;
    return value;
}

static int no_memory(const struct finding *f)
{
    return ibx_error_set(f->err, -ENOMEM, "no memory for a description of QEMU's devices");
}

static int add(const struct finding *f, const char *option, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    int rc = !text || json_array_append_new(f->plugged, json_string(option)) ||
             json_array_append_new(f->plugged, json_string(text));
    free(text);
    return rc ? no_memory(f) : 0;
}

static int refuse(const struct finding *f, const char *what, const char *id, const char *why)
{
    return ibx_error_set(
        f->err, -ENOTSUP,
        "%s %.100s was plugged in while the VM ran, and %s: give what describes it "
        "by --qemu-arg, or migrate by ib-migrate send and receive",
        what, id, why);
}

/* ------------------------------------------------------------ objects */

/* The properties of an object of each type, "" last. */
static const struct {
    const char *type, *names[16];
} object_types[] = {
    {"memory-backend-file",
     {"size", "mem-path", "share", "prealloc", "merge", "dump", "host-nodes", "policy", "align",
      "pmem", "discard-data", "readonly", "reserve"}},
    {"iothread", {"poll-max-ns", "poll-grow", "poll-shrink", "aio-max-batch"}},
    {"rng-random", {"filename"}},
    {"rng-builtin", {NULL}},
};

static int add_object(const struct finding *f, const char *id, const char *type)
{
    char path[PATH_MAX];
    size_t kind = 0;
    const size_t kinds = sizeof(object_types) / sizeof(object_types[0]);
    while (kind < kinds && strcmp(type, object_types[kind].type))
        kind++;
    if (kind == kinds) {
        if (!strncmp(type, "memory-backend", 14) || !strncmp(type, "secret", 6) ||
            !strncmp(type, "tls-creds", 9))
            return refuse(f, "object", id, "QEMU does not tell what it is");
        return 0; /* made by the machine itself, or used by no device */
    }
    json_t *object = json_pack("{s:s, s:s}", "qom-type", type, "id", id);
    snprintf(path, sizeof(path), "/objects/%s", id);
    for (unsigned i = 0; object && object_types[kind].names[i]; i++) {
        json_t *value = property(f, path, object_types[kind].names[i]);
        const bool empty = json_is_array(value) && !json_array_size(value);
        if (value && !empty)
            json_object_set(object, object_types[kind].names[i], value);
        json_decref(value);
    }
    return add(f, "-object", object);
}

/* ------------------------------------------------------------ disks */

static const json_t *node_of(const struct finding *f, const char *name)
{
    size_t i;
    json_t *node;
    json_array_foreach(f->nodes, i,
                       node) if (!strcmp(ibx_member(node, "node-name"), name)) return node;
    return NULL;
}

/* The node of the file itself under one of a format. */
static const json_t *file_of(const struct finding *f, const json_t *top)
{
    size_t i;
    json_t *node;
    json_array_foreach(f->nodes, i,
                       node) if (node != top &&
                                 !strcmp(ibx_member(node, "file"), ibx_member(top, "file")) &&
                                 (!strcmp(ibx_member(node, "drv"), "file") ||
                                  !strcmp(ibx_member(node, "drv"), "host_device"))) return node;
    return NULL;
}

/* QEMU does not tell "discard", "aio" and "locking". It takes detect-zeroes=unmap only together
 * with discard=unmap. */
static json_t *describe_node(const json_t *node)
{
    const json_t *cache = json_object_get(node, "cache");
    const char *zeroes = ibx_member(node, "detect_zeroes");
    json_t *json = json_pack("{s:s, s:b, s:{s:b, s:b}}", "driver", ibx_member(node, "drv"),
                             "read-only", json_is_true(json_object_get(node, "ro")), "cache",
                             "direct", json_is_true(json_object_get(cache, "direct")), "no-flush",
                             json_is_true(json_object_get(cache, "no-flush")));
    if (*zeroes && strcmp(zeroes, "off") != 0)
        json_object_set_new(json, "detect-zeroes", json_string(zeroes));
    if (!strcmp(zeroes, "unmap"))
        json_object_set_new(json, "discard", json_string(zeroes));
    return json;
}

static int add_disk(const struct finding *f, const char *name)
{
    const json_t *top = node_of(f, name);
    const char *driver = top ? ibx_member(top, "drv") : "";
    const bool format = !strcmp(driver, "raw") || !strcmp(driver, "qcow2");
    const json_t *file = format ? file_of(f, top) : top;
    if (json_object_get(f->backends, name))
        return 0;
    if (!file || (!format && strcmp(driver, "file") && strcmp(driver, "host_device")))
        return refuse(f, "disk", name, "it is no raw or qcow2 image in a file");
    json_t *json = describe_node(top), *inner = describe_node(file);
    json_object_set_new(inner, "filename", json_string(ibx_member(file, "file")));
    if (format)
        json_object_set_new(json, "file", inner);
    else {
        json_decref(json);
        json = inner;
    }
    json_object_set_new(json, "node-name", json_string(name));
    json_object_set_new(f->backends, name, json_true());
    return add(f, "-blockdev", json);
}

/* ------------------------------------------------------------ devices */

/* Whether QEMU or the guest sets a property, or it is the same for every device of a type. QEMU
 * does not tell which properties it would refuse to set. */
static bool is_fixed(const char *type, const char *name)
{
    return !strcmp(name, "romfile") || !strcmp(name, "romsize") || !strcmp(name, "type") ||
           !strcmp(name, "realized") || !strcmp(name, "guest-stats") ||
           (!strcmp(name, "attached") && !strncmp(type, "usb-", 4)) ||
           (!strcmp(name, "size") && (strstr(type, "dimm") || strstr(type, "virtio-mem")));
}

/* A property's value for -device, a new reference; NULL: it need not be given. */
static json_t *device_value(const json_t *described, const json_t *value)
{
    const char *type = ibx_member(described, "type"), *name = ibx_member(described, "name");
    const json_t *usual = json_object_get(described, "default-value");
    char text[PATH_MAX];
    if (!value || (usual && json_equal(usual, value)) || !strncmp(type, "child<", 6) ||
        (json_is_string(value) && !*json_string_value(value)) ||
        (!usual && json_integer_value(value) == -1))
        return NULL;
    if (!strncmp(type, "link<", 5)) {
        const char *path = json_string_value(value);
        return path && !strncmp(path, "/objects/", 9) && !strchr(path + 9, '/')
                   ? json_string(path + 9)
                   : NULL;
    }
    if (!strcmp(name, "addr") && !strcmp(type, "int32")) { /* of a PCI device: slot and function */
        const unsigned at = (unsigned)json_integer_value(value);
        snprintf(text, sizeof(text), "%02x.%x", at >> 3, at & 7);
        return json_string(text);
    }
    return json_incref((json_t *)(uintptr_t)value);
}

/* Whether this QEMU uses vhost-net for any network; it does not tell for which. */
static bool has_vhost(pid_t pid)
{
    char path[64], link[64];
    bool found = false;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        const ssize_t n = readlinkat(dirfd(dir), entry->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = '\0';
        found = !strcmp(link, "/dev/vhost-net");
    }
    if (dir)
        closedir(dir);
    return found;
}

struct tap {
    char ifname[17], script[INFO + 1], down[INFO + 1];
    unsigned queues;
    bool partial; /* QEMU has cut the description, or a name in it has a comma */
};

/* Takes a line of "info network" behind the name of the network. A tap has one for each queue:
 * ": index=0,type=tap,ifname=NAME,script=PATH,downscript=PATH". */
static void read_tap(const char *line, struct tap *tap)
{
    int begin = 0, end = 0;
    const int found = sscanf(line,
                             ": index=%*u,type=tap,%nifname=%16[^,\r\n],script=%255[^,\r\n],"
                             "downscript=%255[^,\r\n]%n",
                             &begin, tap->ifname, tap->script, tap->down, &end);
    const int length = (int)strcspn(line, "\r\n");
    tap->queues += found == 3;
    tap->partial |= begin && found > 0 && (length - begin >= INFO || length != end);
}

/* Adds a tap, from "info network". */
static int add_tap(const struct finding *f, const char *id, const char *name)
{
    json_t *text = NULL;
    struct tap tap = {.queues = 0};
    const size_t length = strlen(name);
    int rc =
        ask(f, "human-monitor-command", json_pack("{s:s}", "command-line", "info network"), &text);
    const char *line = rc ? NULL : json_string_value(text);
    for (; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *at = line + strspn(line, " \\");
        if (!strncmp(at, name, length))
            read_tap(at + length, &tap);
    }
    json_decref(text);
    if (rc)
        return rc;
    if (tap.partial)
        return refuse(f, "device", id, "QEMU does not tell the whole names of its tap's scripts");
    if (!tap.queues)
        return refuse(f, "device", id, "QEMU describes only networks of type tap");
    json_object_set_new(f->backends, name, json_true());
    json_t *json = json_sprintf("tap,id=%s,ifname=%s,script=%s,downscript=%s,queues=%u%s", name,
                                tap.ifname, tap.script, tap.down, tap.queues,
                                has_vhost(ibx_qmp_pid(f->qmp)) ? ",vhost=on" : "");
    return !json || json_array_append_new(f->plugged, json_string("-netdev")) ||
                   json_array_append_new(f->plugged, json)
               ? no_memory(f)
               : 0;
}

/* Adds the backend that the property "drive", "netdev" or "chardev" of a device names. */
static int add_backend(const struct finding *f, const char *id, const char *name,
                       const json_t *value)
{
    const char *backend = json_string_value(value);
    if (strcmp(name, "drive") && strcmp(name, "netdev") && strcmp(name, "chardev"))
        return 0;
    /* Commas separate QEMU's options, so a name cannot have one. */
    if (!backend || strchr(backend, ','))
        return refuse(f, "device", id, "QEMU gives no name of its backend");
    if (!strcmp(name, "drive"))
        return add_disk(f, backend);
    const bool given = json_object_get(f->backends, backend);
    if (!strcmp(name, "netdev") && !given)
        return add_tap(f, id, backend);
    if (!strcmp(name, "chardev") && !given)
        return refuse(f, "device", id, "QEMU does not tell what its backend is");
    return 0;
}

static int add_properties(const struct finding *f, const char *id, const char *path,
                          const json_t *described, json_t *device)
{
    const char *type = ibx_member(device, "driver");
    json_t *one;
    size_t i;
    int rc = 0;
    json_array_foreach(described, i, one)
    {
        const char *name = ibx_member(one, "name");
        if (rc || is_fixed(type, name))
            continue;
        json_t *is = property(f, path, name), *value = device_value(one, is);
        if (value)
            rc = add_backend(f, id, name, value);
        if (value && !rc)
            json_object_set(device, name, value);
        json_decref(value);
        json_decref(is);
    }
    return rc;
}

/* Adds the properties that give a processor its place in the topology. */
static int add_cpu(const struct finding *f, const char *path, json_t *device)
{
    static const char *const names[] = {"socket-id", "die-id",    "cluster-id",
                                        "core-id",   "thread-id", NULL};
    for (unsigned i = 0; names[i]; i++) {
        json_t *value = property(f, path, names[i]);
        if (json_is_integer(value) && json_integer_value(value) >= 0)
            json_object_set(device, names[i], value);
        json_decref(value);
    }
    return add(f, "-device", device);
}

static int add_device(const struct finding *f, const char *id, const char *type)
{
    char path[PATH_MAX];
    const size_t length = strlen(type);
    snprintf(path, sizeof(path), PLACE "/%s", id);
    json_t *device = json_pack("{s:s, s:s}", "driver", type, "id", id), *described = NULL;
    if (!device)
        return no_memory(f);
    if (length > 4 && !strcmp(type + length - 4, "-cpu"))
        return add_cpu(f, path, device);
    json_t *bus = property(f, path, "parent_bus");
    const char *name = json_is_string(bus) ? strrchr(json_string_value(bus), '/') : NULL;
    if (name)
        json_object_set_new(device, "bus", json_string(name + 1));
    json_decref(bus);
    int rc = ask(f, "device-list-properties", json_pack("{s:s}", "typename", type), &described);
    if (!rc)
        rc = add_properties(f, id, path, described, device);
    json_decref(described);
    if (!rc)
        return add(f, "-device", device);
    json_decref(device);
    return rc;
}

/* ------------------------------------------------------------ all */

/* Adds the children of a QOM path that are not on the command line, and lists ids of the command
 * line that no longer exist. */
static int compare(const struct finding *f, const char *place, json_t *given,
                   int (*add_one)(const struct finding *f, const char *id, const char *type))
{
    json_t *children, *child, *present = json_object(), *unused;
    const char *id;
    size_t i;
    int rc = ask(f, "qom-list", json_pack("{s:s}", "path", place), &children);
    if (rc) {
        json_decref(present);
        return rc;
    }
    json_array_foreach(children, i, child)
    {
        const char *name = ibx_member(child, "name"), *type = ibx_member(child, "type");
        char plain[128];
        if (strncmp(type, "child<", 6))
            continue;
        snprintf(plain, sizeof(plain), "%.*s", (int)strcspn(type + 6, ">"), type + 6);
        json_object_set_new(present, name, json_true());
        if (!rc && !json_object_get(given, name))
            rc = add_one(f, name, plain);
    }
    json_object_foreach(given, id, unused) if (!json_object_get(present, id))
        json_object_set_new(f->absent, id, json_true());
    json_decref(present);
    json_decref(children);
    return rc;
}

/* Adds a device if it was plugged in. Objects that -machine and -m make were not: they have no
 * argument of their own and no given id. */
static int add_plugged_device(const struct finding *f, const char *id, const char *type)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), PLACE "/%s", id);
    json_t *plugged = property(f, path, "hotplugged");
    const bool yes = json_is_true(plugged);
    json_decref(plugged);
    return yes ? add_device(f, id, type) : 0;
}

int ibx_run_plugged(struct ibx_qmp *qmp, const json_t *given, json_t **absent, json_t **plugged,
                    struct ibx_error *err)
{
    struct finding f = {.qmp = qmp,
                        .objects = ibx_run_ids(given, true),
                        .devices = ibx_run_ids(given, false),
                        .backends = ibx_run_backend_ids(given),
                        .absent = json_object(),
                        .plugged = json_array(),
                        .err = err};
    int rc = ibx_qmp_block_nodes(qmp, &f.nodes, ibx_deadline_in_ms(ASK_MS), err);
    if (!rc)
        rc = compare(&f, "/objects", f.objects, add_object);
    if (!rc)
        rc = compare(&f, PLACE, f.devices, add_plugged_device);
    json_decref(f.objects);
    json_decref(f.devices);
    json_decref(f.backends);
    json_decref(f.nodes);
    if (!rc) {
        *absent = f.absent;
        *plugged = f.plugged;
        return 0;
    }
    json_decref(f.absent);
    json_decref(f.plugged);
    return rc;
}
