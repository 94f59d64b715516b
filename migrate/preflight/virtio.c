/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Features of virtio devices. What a device offers also depends on the host (a tap with
 * offloads, a kernel with vhost), and QEMU refuses a device's state if its driver uses a feature
 * that is not offered. */
#include "migrate/preflight/description.h"

#include <stdio.h>
#include <string.h>

#define DEVICES_MAX 256

/* virtio-net offers this feature only if its tap has headers for offloads. QEMU refuses a state
 * that was saved with such a tap if there is none, whatever features the driver uses. */
#define OFFLOADS "VIRTIO_NET_F_CSUM"

static int ask(struct describing *d, const char *command, json_t *arguments, json_t **answer)
{
    return ibx_qmp_execute(d->qmp, command, arguments, answer, d->deadline_ns, NULL);
}

/* The names of features, without QEMU's explanation after a colon. */
static json_t *names_of(const json_t *features)
{
    static const char *const lists[] = {"dev-features", "transports"};
    json_t *names = json_array(), *item;
    size_t index;
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        json_array_foreach(json_object_get(features, lists[i]), index, item)
        {
            char name[96];
            const char *text = json_is_string(item) ? json_string_value(item) : "";
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, ":"), text);
            json_array_append_new(names, ibx_json_text(name));
        }
    return names;
}

/* The device's address on its bus, since the paths of devices without an id have only a number. */
static json_int_t address_of(struct describing *d, const char *path)
{
    char device[256];
    json_t *value;
    const char *end = strstr(path, "/virtio-backend");
    snprintf(device, sizeof(device), "%.*s", end ? (int)(end - path) : 0, path);
    if (!*device ||
        ask(d, "qom-get", json_pack("{s:s, s:s}", "path", device, "property", "addr"), &value))
        return -1;
    const json_int_t address = json_is_integer(value) ? json_integer_value(value) : -1;
    json_decref(value);
    return address;
}

/* Adds nothing with QEMU before 7.2, which lacks the command. */
void ibx_describe_virtio(struct describing *d)
{
    json_t *list, *item, *status, *out = json_object();
    size_t index;
    if (ask(d, "x-query-virtio", NULL, &list))
        list = NULL;
    json_array_foreach(list, index, item)
    {
        const char *path = ibx_member(item, "path");
        if (index >= DEVICES_MAX ||
            ask(d, "x-query-virtio-status", json_pack("{s:s}", "path", path), &status))
            continue;
        json_object_set_new(out, path,
                            json_pack("{s:s, s:I, s:o, s:o}", "name", ibx_member(item, "name"),
                                      "addr", address_of(d, path), "used",
                                      names_of(json_object_get(status, "guest-features")),
                                      "offered",
                                      names_of(json_object_get(status, "host-features"))));
        json_decref(status);
    }
    json_decref(list);
    json_object_set_new(d->description, "virtio", out);
}

/* ------------------------------------------------------------ the comparison */

static bool has(const json_t *names, const char *name)
{
    size_t index;
    json_t *item;
    json_array_foreach(names, index, item)
    {
        if (json_is_string(item) && !strcmp(json_string_value(item), name))
            return true;
    }
    return false;
}

/* The first feature that the destination has to offer and does not; NULL: none. */
static const char *missing(const json_t *here, const json_t *there)
{
    const json_t *offered = json_object_get(there, "offered");
    size_t index;
    json_t *item;
    json_array_foreach(json_object_get(here, "used"), index, item)
    {
        if (json_is_string(item) && !has(offered, json_string_value(item)))
            return json_string_value(item);
    }
    return has(json_object_get(here, "offered"), OFFLOADS) && !has(offered, OFFLOADS) ? OFFLOADS
                                                                                      : NULL;
}

void ibx_compare_virtio(const struct ibx_comparison *c)
{
    const char *path;
    json_t *here;
    json_object_foreach(json_object_get(c->source, "virtio"), path, here)
    {
        const json_t *there = json_object_get(json_object_get(c->destination, "virtio"), path);
        const char *feature;
        if (!json_is_array(json_object_get(there, "offered")) ||
            strcmp(ibx_member(here, "name"), ibx_member(there, "name")) ||
            json_integer_value(json_object_get(here, "addr")) !=
                json_integer_value(json_object_get(there, "addr")) ||
            !(feature = missing(here, there)))
            continue;
        ibx_blockers_add(c->blockers,
                         "%.40s %.120s has the feature %.60s here, which the destination cannot "
                         "offer: give it the same kind of back end there (a tap with "
                         "vnet_hdr=on, the same vhost=), on a kernel that is not older",
                         ibx_member(here, "name"), path, feature);
    }
}
