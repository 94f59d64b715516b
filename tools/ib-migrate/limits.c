/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Limits of a VM's disks that a monitor may have changed since QEMU was started: those of
 * block_set_io_throttle, and of the objects that the block driver throttle uses (-object
 * throttle-group). QEMU does not migrate them, since they are the host's. So the source reads them,
 * and the far end sets those in its QEMU that are others there:
 *
 *   {"disks": [{"device": "d0", "qdev": "/machine/...", "limits": {"bps": 0, ...}}],
 *    "groups": {"/objects/g0": {"bps-total": 0, ...}}}
 */
#include "tools/ib-migrate/run.h"

#include "migrate/preflight/description.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>

#define ASK_MS 20000
#define PLACE  "/objects/"

/* ------------------------------------------------------------ disks */

/* block_set_io_throttle needs the first six. The others may be given only with a limit of their
 * kind, and query-block tells those of a disk without limits as 0, or not. */
static const char *const needed[] = {"bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"};
static const char *const others[] = {"bps_max",         "bps_rd_max",         "bps_wr_max",
                                     "iops_max",        "iops_rd_max",        "iops_wr_max",
                                     "bps_max_length",  "bps_rd_max_length",  "bps_wr_max_length",
                                     "iops_max_length", "iops_rd_max_length", "iops_wr_max_length",
                                     "iops_size"};

static json_t *limits_of(const json_t *inserted)
{
    json_t *limits = json_object();
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        json_object_set_new(limits, needed[i],
                            json_integer(json_integer_value(json_object_get(inserted, needed[i]))));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (json_integer_value(json_object_get(inserted, others[i])))
            json_object_set(limits, others[i], json_object_get(inserted, others[i]));
    if (*ibx_member(inserted, "group"))
        json_object_set(limits, "group", json_object_get(inserted, "group"));
    return limits;
}

static int read_disks(struct ibx_qmp *qmp, json_t *disks, struct ibx_error *err)
{
    json_t *all, *one;
    size_t i;
    int rc = ibx_qmp_execute(qmp, "query-block", NULL, &all, ibx_deadline_in_ms(ASK_MS), err);
    if (rc)
        return rc;
    json_array_foreach(all, i, one)
    {
        const json_t *inserted = json_object_get(one, "inserted");
        if (inserted)
            json_array_append_new(
                disks, json_pack("{s:s, s:s, s:o}", "device", ibx_member(one, "device"), "qdev",
                                 ibx_member(one, "qdev"), "limits", limits_of(inserted)));
    }
    json_decref(all);
    return 0;
}

/* The disk with the same name, or without one at the same place, in the other QEMU. */
static const json_t *same_disk(const json_t *disks, const json_t *disk)
{
    const char *key = *ibx_member(disk, "device") ? "device" : "qdev";
    json_t *one;
    size_t i;
    json_array_foreach(disks, i, one)
    {
        if (*ibx_member(disk, key) && !strcmp(ibx_member(one, key), ibx_member(disk, key)))
            return one;
    }
    return NULL;
}

static int set_disk(struct ibx_qmp *qmp, const json_t *disk, struct ibx_error *err)
{
    const char *name = ibx_member(disk, "device");
    json_t *arguments = json_copy(json_object_get(disk, "limits"));
    json_object_set_new(arguments, *name ? "device" : "id",
                        ibx_json_text(*name ? name : ibx_member(disk, "qdev")));
    return ibx_qmp_execute(qmp, "block_set_io_throttle", arguments, NULL,
                           ibx_deadline_in_ms(ASK_MS), err);
}

/* ------------------------------------------------------------ groups */

static int read_groups(struct ibx_qmp *qmp, json_t *groups, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(ASK_MS);
    char path[256];
    json_t *all, *one, *limits;
    size_t i;
    int rc = ibx_qmp_execute(qmp, "qom-list", json_pack("{s:s}", "path", "/objects"), &all,
                             deadline, err);
    if (rc)
        return rc;
    json_array_foreach(all, i, one)
    {
        if (rc || strcmp(ibx_member(one, "type"), "child<throttle-group>"))
            continue;
        snprintf(path, sizeof(path), PLACE "%.200s", ibx_member(one, "name"));
        rc = ibx_qmp_execute(qmp, "qom-get",
                             json_pack("{s:s, s:s}", "path", path, "property", "limits"), &limits,
                             deadline, err);
        if (!rc)
            json_object_set_new(groups, path, limits);
    }
    json_decref(all);
    return rc;
}

static int set_group(struct ibx_qmp *qmp, const char *path, json_t *limits, struct ibx_error *err)
{
    return ibx_qmp_execute(
        qmp, "qom-set",
        json_pack("{s:s, s:s, s:O}", "path", path, "property", "limits", "value", limits), NULL,
        ibx_deadline_in_ms(ASK_MS), err);
}

/* ------------------------------------------------------------ both */

int ibx_run_limits(struct ibx_qmp *qmp, json_t **limits, struct ibx_error *err)
{
    json_t *disks = json_array(), *groups = json_object();
    int rc = read_disks(qmp, disks, err);
    if (!rc)
        rc = read_groups(qmp, groups, err);
    json_t *both = json_pack("{s:o, s:o}", "disks", disks, "groups", groups);
    if (!rc && !both)
        rc = ibx_error_set(err, -ENOMEM, "no memory for the limits of QEMU's disks");
    if (rc)
        json_decref(both);
    else
        *limits = both;
    return rc;
}

static int set_all(struct ibx_qmp *qmp, const json_t *wanted, const json_t *now,
                   struct ibx_error *err)
{
    json_t *disk, *limits, *groups = json_object_get(wanted, "groups");
    const char *path;
    size_t i;
    int rc = 0;
    json_object_foreach(groups, path, limits)
    {
        const json_t *is = json_object_get(json_object_get(now, "groups"), path);
        if (!rc && is && !json_equal(is, limits) && (rc = set_group(qmp, path, limits, err)))
            ibx_error_prefix(err, rc, "the limits of %.200s", path);
    }
    json_array_foreach(json_object_get(wanted, "disks"), i, disk)
    {
        const json_t *is = same_disk(json_object_get(now, "disks"), disk);
        const json_t *has = json_object_get(is, "limits");
        if (!rc && is && !json_equal(has, json_object_get(disk, "limits")) &&
            (rc = set_disk(qmp, disk, err)))
            ibx_error_prefix(err, rc, "the limits of disk %.200s",
                             *ibx_member(disk, "device") ? ibx_member(disk, "device")
                                                         : ibx_member(disk, "qdev"));
    }
    return rc;
}

int ibx_run_limits_set(const char *monitor, const json_t *wanted, struct ibx_error *err)
{
    struct ibx_qmp *qmp;
    json_t *now;
    if (!json_array_size(json_object_get(wanted, "disks")) &&
        !json_object_size(json_object_get(wanted, "groups")))
        return 0;
    int rc = ibx_qmp_connect(monitor, ibx_deadline_in_ms(ASK_MS), &qmp, err);
    if (rc)
        return rc;
    rc = ibx_run_limits(qmp, &now, err);
    if (!rc) {
        rc = set_all(qmp, wanted, now, err);
        json_decref(now);
    }
    ibx_qmp_close(qmp);
    return rc;
}
