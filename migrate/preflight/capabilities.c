/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <string.h>

static const struct capability {
    const char *name;
    bool wanted; /* and a QEMU without it will not do */
} capabilities[] = {
    {"x-ignore-shared", true},
    {"events", true},
    /* Takes a millisecond and a command more; the source stops QEMU's stream without it. */
    {"pause-before-switchover", false},
    /* Each of these sends RAM in a way of its own, or expects another stream. */
    {"postcopy-ram", false},
    {"postcopy-preempt", false},
    {"multifd", false},
    {"mapped-ram", false},
    {"background-snapshot", false},
    {"x-colo", false},
    {"block", false},
    {"release-ram", false},
    {"return-path", false},
    {"zero-copy-send", false},
    {"compress", false},
};

/* The state of a capability in QEMU's list: NULL when it does not know it. */
static json_t *state_of(json_t *list, const char *name)
{
    json_t *item;
    size_t index;
    json_array_foreach(list, index, item)
    {
        const char *is = json_string_value(json_object_get(item, "capability"));
        if (is && !strcmp(is, name))
            return json_object_get(item, "state");
    }
    return NULL;
}

static int append_state(json_t *list, const char *name, bool state)
{
    return json_array_append_new(list,
                                 json_pack("{s:s,s:b}", "capability", name, "state", (int)state));
}

/* What has to change, and what undoes it. */
static int compare(json_t *list, json_t *change, json_t *undo, struct ibx_error *err)
{
    for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++) {
        const struct capability *c = &capabilities[i];
        json_t *state = state_of(list, c->name);
        if (!state && c->wanted)
            return ibx_error_set(
                err, -EOPNOTSUPP,
                "this QEMU lacks the migration capability %s: use QEMU 4.0 or later", c->name);
        if (!state || json_is_true(state) == c->wanted)
            continue;
        if (append_state(change, c->name, c->wanted) || append_state(undo, c->name, !c->wanted))
            return ibx_error_set(err, -ENOMEM, "out of memory");
    }
    return 0;
}

int ibx_capabilities_restore(struct ibx_qmp *qmp, json_t *before, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    if (!json_array_size(before))
        return 0;
    return ibx_qmp_execute(qmp, "migrate-set-capabilities",
                           json_pack("{s:O}", "capabilities", before), NULL, deadline_ns, err);
}

int ibx_capabilities_set(struct ibx_qmp *qmp, json_t **before, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *list;
    int rc = ibx_qmp_execute(qmp, "query-migrate-capabilities", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    json_t *change = json_array(), *undo = json_array();
    rc = compare(list, change, undo, err);
    if (!rc)
        rc = ibx_capabilities_restore(qmp, change, deadline_ns, err);
    json_decref(list);
    json_decref(change);
    if (rc)
        json_decref(undo);
    else
        *before = undo;
    return rc;
}
