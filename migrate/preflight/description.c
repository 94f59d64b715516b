/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A description of a VM: made, as a text, and compared with another one. */
#include "migrate/preflight/description.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sends all queries that are needed in any case, so that QEMU answers them together, in the order
 * in which the answers are needed. */
void ibx_describe_ask(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    static const struct {
        const char *command, *name, *value;
    } questions[] = {
        {"query-kvm", NULL, NULL},
        {"query-cpus-fast", NULL, NULL},
        {"human-monitor-command", "command-line", "info ramblock"},
        {"human-monitor-command", "command-line", "info numa"},
        {"query-memory-devices", NULL, NULL},
        {"qom-list", "path", "/machine"},
        {"human-monitor-command", "command-line", "info network"},
        {"query-tpm", NULL, NULL},
        {"human-monitor-command", "command-line", "info qtree"},
        {"qom-list", "path", "/machine/peripheral"},
        {"qom-list", "path", "/machine/peripheral-anon"},
        {"query-block", NULL, NULL},
        {"x-debug-query-block-graph", NULL, NULL},
        {"query-fdsets", NULL, NULL},
        {"x-query-virtio", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        ibx_qmp_ahead(qmp, questions[i].command,
                      questions[i].name ? json_pack("{s:s}", questions[i].name, questions[i].value)
                                        : NULL,
                      deadline_ns);
    ibx_qmp_ahead(qmp, "query-named-block-nodes", json_pack("{s:b}", "flat", 1), deadline_ns);
}

int ibx_describe(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, json_t **description,
                 uint64_t deadline_ns, struct ibx_error *err)
{
    char host[64];
    struct describing d = {.qmp = qmp,
                           .ram = ram,
                           .deadline_ns = deadline_ns,
                           .description = json_object(),
                           .err = err};
    ibx_disk_host(host, sizeof(host));
    json_object_set_new(d.description, "host", ibx_json_text(host));
    json_object_set_new(d.description, "holds", json_integer((json_int_t)ibx_preflight_held(ram)));
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ibx_describe_ask(qmp, deadline_ns);
    int rc = ibx_describe_machine(&d);
    if (!rc)
        rc = ibx_describe_devices(&d);
    if (!rc) /* after the devices, which name the disks */
        rc = ibx_describe_disks(&d);
    if (!rc) {
        ibx_describe_virtio(&d);
        ibx_describe_options(&d);
    }
    ibx_qmp_ahead_end(qmp, before);
    if (rc)
        json_decref(d.description);
    else
        *description = d.description;
    return rc;
}

void ibx_describe_ahead(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    struct ibx_error silent = {0};
    struct describing d = {
        .qmp = qmp, .deadline_ns = deadline_ns, .description = json_object(), .err = &silent};
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ibx_qmp_ahead(qmp, "query-kvm", NULL, deadline_ns);
    ibx_qmp_ahead(qmp, "query-cpus-fast", NULL, deadline_ns);
    if (!ibx_describe_board(&d) && !ibx_describe_accelerator(&d))
        ibx_describe_processors(&d);
    ibx_qmp_ahead_end(qmp, before);
    json_decref(d.description);
}

int ibx_description_write(const json_t *description, char **text, size_t *length,
                          struct ibx_error *err)
{
    char *out = json_dumps(description, JSON_COMPACT);
    if (!out)
        return ibx_error_set(err, -ENOMEM, "no memory for a description of the VM");
    *length = strlen(out);
    if (*length > IBX_MIGRATE_DESCRIPTION_MAX) {
        free(out);
        return ibx_error_set(err, -EMSGSIZE,
                             "the description of this VM is %zu bytes long, of %u that can be "
                             "compared: it has too many devices or images",
                             *length, IBX_MIGRATE_DESCRIPTION_MAX);
    }
    *text = out;
    return 0;
}

/* Whether a peer's description has too long a list: some are compared in quadratic time. */
static bool has_long_list(json_t *description)
{
    const char *name;
    json_t *value;
    json_object_foreach(description, name, value)
    {
        if (json_array_size(value) > IBX_DESCRIBED_MAX)
            return true;
    }
    return false;
}

/* Removes passwords from the names of disks, which an earlier release sends. */
static void drop_passwords(json_t *description)
{
    size_t i, k;
    json_t *disk, *layer;
    json_array_foreach(json_object_get(description, "disks"), i, disk)
    {
        json_array_foreach(json_object_get(disk, "layers"), k, layer)
        {
            if (*ibx_member(layer, "file"))
                json_object_set_new(layer, "file", ibx_disk_name(ibx_member(layer, "file")));
        }
    }
}

int ibx_description_read(const char *text, size_t length, json_t **description,
                         struct ibx_error *err)
{
    json_error_t why;
    json_t *read = length <= IBX_MIGRATE_DESCRIPTION_MAX
                       ? json_loadb(text, length, JSON_REJECT_DUPLICATES, &why)
                       : NULL;
    if (json_is_object(read) && !has_long_list(read)) {
        drop_passwords(read);
        *description = read;
        return 0;
    }
    json_decref(read);
    return ibx_error_set(err, -EPROTO,
                         "the source's description of its VM (%zu bytes) is not valid", length);
}

void ibx_compare(const struct ibx_comparison *comparison)
{
    ibx_compare_machines(comparison);
    ibx_compare_devices(comparison);
    if (comparison->same_version) /* the names of features may differ between versions */
        ibx_compare_virtio(comparison);
    ibx_compare_options(comparison);
    ibx_compare_disks(comparison);
}
