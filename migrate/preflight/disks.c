/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The VM's disks: the chain of images behind each device, from QEMU's graph of block nodes. */
#include "migrate/preflight/description.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX  64  /* levels of block nodes */
#define LAYERS_MAX 256 /* of one disk */
#define ROLE_MAX   256
#define JSON_MAX   65536                  /* bytes of an image's name that is JSON */
#define EXACT_MAX  ((double)(1ull << 53)) /* a double has each whole number below */

struct graph {
    struct describing *d;
    json_t *nodes, *debug, *fdsets;
    json_t *bitmaps; /* names of the present disk's */
    bool whole;      /* the digest covers the whole disk: nobody writes to it, or it is firmware */
};

/* ------------------------------------------------------------ the graph */

static const json_t *node_of(const struct graph *graph, const char *name)
{
    size_t index;
    json_t *node;
    json_array_foreach(graph->nodes, index, node)
    {
        if (!strcmp(ibx_member(node, "node-name"), name))
            return node;
    }
    return NULL;
}

/* The node's number in the list of edges; -1: it is not there. */
static json_int_t number_of(const struct graph *graph, const char *name)
{
    size_t index;
    json_t *node;
    json_array_foreach(json_object_get(graph->debug, "nodes"), index, node)
    {
        if (!strcmp(ibx_member(node, "type"), "block-driver") &&
            !strcmp(ibx_member(node, "name"), name))
            return json_integer_value(json_object_get(node, "id"));
    }
    return -1;
}

static const char *name_of(const struct graph *graph, json_int_t number)
{
    size_t index;
    json_t *node;
    json_array_foreach(json_object_get(graph->debug, "nodes"), index, node)
    {
        if (json_integer_value(json_object_get(node, "id")) == number)
            return ibx_member(node, "name");
    }
    return "";
}

/* Whether a node does not change what is read, so that one side may have it and the other not:
 * certain filters, and raw unless it shows only a part. */
static bool passes_through(const json_t *node, const char *driver)
{
    static const char *const drivers[] = {"throttle", "copy-on-read", "preallocate",
                                          "blkdebug", "blklogwrites", "compress"};
    for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
        if (!strcmp(driver, drivers[i]))
            return true;
    return !strcmp(driver, "raw") && strncmp(ibx_member(node, "file"), "json:", 5) != 0;
}

/* ------------------------------------------------------------ its name */

/* Removes the password from "scheme://user:password@host/...". False: there is none. */
static bool cut_password(char *url)
{
    char *user = strstr(url, "://");
    if (!user)
        return false;
    user += 3;
    const size_t authority = strcspn(user, "/?#");
    const char *host = memrchr(user, '@', authority);
    char *colon = host ? memchr(user, ':', (size_t)(host - user)) : NULL;
    if (colon)
        memmove(colon, host, strlen(host) + 1);
    return colon;
}

/* The same for a JSON string. Without memory sets `failed`; then the name must not be passed on. */
static bool cut_password_in(json_t *string, bool *failed)
{
    char *text = strdup(json_string_value(string));
    const bool found = text && cut_password(text);
    *failed |= !text || (found && json_string_set_nocheck(string, text));
    free(text);
    return found;
}

/* Removes the passwords in the options of a node and its children. False: there was none. */
static bool drop_passwords(json_t *options, bool *failed)
{
    const char *key;
    json_t *part;
    size_t index;
    if (json_is_string(options))
        return cut_password_in(options, failed);
    bool found = !json_object_del(options, "password");
    json_object_foreach(options, key, part)
    {
        found |= drop_passwords(part, failed);
    }
    json_array_foreach(options, index, part)
    {
        found |= drop_passwords(part, failed);
    }
    return found;
}

static bool is_json(const char *file)
{
    return !strncmp(file, "json:", 5);
}

/* The options in a name of the form "json:{...}"; NULL: it has another form, or is too long:
 * parsing one from a hostile QEMU could take a hundred times the memory of its text. */
static json_t *options_of(const char *file)
{
    return is_json(file) && strlen(file) <= JSON_MAX ? json_loads(file + 5, 0, NULL) : NULL;
}

json_t *ibx_disk_name(const char *file)
{
    if (is_json(file) && strlen(file) > JSON_MAX)
        return json_string("json: a name that is too long to be told");
    json_t *options = options_of(file);
    bool failed = false;
    const bool told = drop_passwords(options, &failed);
    char *text = NULL, *rest = told && !failed ? json_dumps(options, 0) : NULL;
    if (!told && !failed)
        text = strdup(file);
    else if (rest && asprintf(&text, "json:%s", rest) < 0)
        text = NULL;
    if (text && !options)
        cut_password(text);
    json_t *name = text ? ibx_json_text(text) : NULL;
    json_decref(options);
    free(rest);
    free(text);
    return name;
}

/* Adds the identity of a file. Its name is a path, or "json:{...}" with the path in "filename", if
 * there are options that a plain name cannot express. */
static void identify(const struct graph *graph, const char *file, json_t *layer)
{
    json_t *options = options_of(file);
    const char *path = is_json(file) ? ibx_member(options, "filename") : file;
    const char *driver = ibx_member(layer, "driver");
    if (*path == '/' || (*path && (!strcmp(driver, "file") || !strncmp(driver, "host_", 5))))
        ibx_disk_identify(graph->d->ram->pid, path, graph->fdsets, graph->whole, layer);
    json_decref(options);
}

/* Reads a number of bytes as QEMU takes one: 4096, 0x1000, 4k, 1.5M. False: it is no whole number,
 * or cannot be told from its neighbours. */
static bool read_bytes(const char *text, size_t *bytes)
{
    static const char units[] = "BKMGTPE";
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : units;
    if (!isdigit((unsigned char)*text) || !unit || (*end && end[1]))
        return false;
    for (; unit > units; unit--)
        value *= 1024;
    if (value >= EXACT_MAX || (double)(size_t)value < value)
        return false;
    *bytes = (size_t)value;
    return true;
}

/* The driver, and for raw where in its file the disk begins. QEMU repeats the number as it got it.
 */
static json_t *driver_of(const char *driver, const char *file)
{
    json_t *options = strcmp(driver, "raw") ? NULL : options_of(file), *text;
    const json_t *offset = json_object_get(options, "offset");
    size_t bytes = json_is_integer(offset) ? (size_t)json_integer_value(offset) : 0;
    if (json_is_string(offset) && !read_bytes(json_string_value(offset), &bytes))
        text = json_sprintf("raw from %s", json_string_value(offset));
    else
        text = bytes ? json_sprintf("raw from byte %zu", bytes) : json_string(driver);
    json_decref(options);
    return text;
}

/* Notes the dirty bitmaps of a node that are in QEMU's memory only. */
static void add_bitmaps(const json_t *node, json_t *names)
{
    json_t *bitmap;
    size_t index;
    json_array_foreach(json_object_get(node, "dirty-bitmaps"), index, bitmap)
    {
        if (!json_is_true(json_object_get(bitmap, "persistent")) && *ibx_member(bitmap, "name"))
            json_array_append_new(names, ibx_json_text(ibx_member(bitmap, "name")));
    }
}

static void add_children(const struct graph *graph, const char *name, const char *role, bool same,
                         unsigned depth, json_t *layers);

static void add_layer(const struct graph *graph, const char *name, const char *role, unsigned depth,
                      json_t *layers)
{
    const json_t *node = node_of(graph, name);
    const char *driver = ibx_member(node, "drv"), *file = ibx_member(node, "file");
    if (!node || depth > DEPTH_MAX || json_array_size(layers) >= LAYERS_MAX)
        return;
    add_bitmaps(node, graph->bitmaps);
    const bool same = passes_through(node, driver);
    const size_t before = json_array_size(layers);
    json_t *layer = NULL;
    if (!same) {
        layer = json_pack("{s:s, s:o}", "role", role, "driver", driver_of(driver, file));
        json_array_append_new(layers, layer);
    }
    add_children(graph, name, role, same, depth + 1, layers);
    if (!layer || json_array_size(layers) > before + 1)
        return;
    /* The node is not made of others: it has the bytes. */
    json_object_set_new(layer, "file", ibx_disk_name(file));
    if (json_is_true(json_object_get(json_object_get(node, "cache"), "no-flush")))
        json_object_set_new(layer, "unsafe", json_true());
    identify(graph, file, layer);
}

static void add_children(const struct graph *graph, const char *name, const char *role, bool same,
                         unsigned depth, json_t *layers)
{
    const json_int_t number = number_of(graph, name);
    size_t index;
    json_t *edge;
    json_array_foreach(number < 0 ? NULL : json_object_get(graph->debug, "edges"), index, edge)
    {
        char child_role[ROLE_MAX];
        const char *edge_name = ibx_member(edge, "name");
        if (json_integer_value(json_object_get(edge, "parent")) != number)
            continue;
        snprintf(child_role, sizeof(child_role), "%.120s%s%.120s", role, *role && !same ? "/" : "",
                 same ? "" : edge_name);
        add_layer(graph, name_of(graph, json_integer_value(json_object_get(edge, "child"))),
                  child_role, depth, layers);
    }
}

/* ------------------------------------------------------------ a disk */

/* The device of a disk: the one in the tree of devices whose "drive" is the disk's name. */
static const json_t *device_of(const struct describing *d, const json_t *item)
{
    const char *names[] = {ibx_member(item, "device"),
                           ibx_member(json_object_get(item, "inserted"), "node-name")};
    size_t index;
    json_t *device;
    json_array_foreach(json_object_get(d->description, "devices"), index, device)
    {
        const char *drive = ibx_member(device, "drive");
        for (size_t i = 0; *drive && i < 2; i++)
            if (!strcmp(drive, names[i]))
                return device;
    }
    return NULL;
}

static json_t *describe_disk(struct graph *graph, const json_t *item)
{
    const json_t *inserted = json_object_get(item, "inserted");
    const json_t *device = device_of(graph->d, item);
    const json_t *size = json_object_get(json_object_get(inserted, "image"), "virtual-size");
    const char *at = ibx_member(device, "at"), *type = ibx_member(device, "type");
    const bool only_read = json_is_true(json_object_get(inserted, "ro"));
    const bool firmware = !strncmp(type, "cfi.pflash", 10);
    json_t *disk = json_pack(
        "{s:s, s:s, s:b, s:b}", "at", *at ? at : ibx_member(item, "qdev"), "type", type,
        "removable", json_is_true(json_object_get(item, "removable")), "firmware", firmware);
    if (!disk || !inserted)
        return disk;
    json_t *layers = json_array();
    graph->whole = only_read;
    json_object_set_new(disk, "read-only", json_boolean(only_read));
    json_object_set(disk, "writeback",
                    json_object_get(json_object_get(inserted, "cache"), "writeback"));
    json_object_set_new(disk, "bytes", json_integer(json_integer_value(size)));
    graph->bitmaps = json_array();
    json_object_set_new(disk, "bitmaps", graph->bitmaps);
    json_object_set_new(disk, "layers", layers);
    add_layer(graph, ibx_member(inserted, "node-name"), "", 0, layers);
    return disk;
}

/* An answer that is JSON null if this QEMU does not know the command. */
static int known(int rc, json_t **answer)
{
    if (rc == -EOPNOTSUPP) {
        *answer = json_null();
        return 0;
    }
    return rc;
}

static int ask(struct describing *d, const char *command, json_t *arguments, json_t **answer)
{
    return known(ibx_qmp_execute(d->qmp, command, arguments, answer, d->deadline_ns, d->err),
                 answer);
}

static int ask_nodes(struct describing *d, json_t **nodes)
{
    return known(ibx_qmp_block_nodes(d->qmp, nodes, d->deadline_ns, d->err), nodes);
}

int ibx_describe_disks(struct describing *d)
{
    struct graph graph = {.d = d};
    json_t *list = NULL, *item, *out = json_array();
    size_t index;
    int rc = ask(d, "query-block", NULL, &list);
    if (!rc)
        rc = ask_nodes(d, &graph.nodes);
    if (!rc)
        rc = ask(d, "x-debug-query-block-graph", NULL, &graph.debug);
    if (!rc)
        rc = ask(d, "query-fdsets", NULL, &graph.fdsets);
    json_array_foreach(rc ? NULL : list, index, item)
    {
        if (*ibx_member(item, "qdev"))
            json_array_append_new(out, describe_disk(&graph, item));
    }
    json_object_set_new(d->description, "disks", out);
    json_decref(graph.fdsets);
    json_decref(graph.debug);
    json_decref(graph.nodes);
    json_decref(list);
    return rc;
}
