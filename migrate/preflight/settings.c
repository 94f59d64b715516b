/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BANDWIDTH_MIN   (128u << 20) /* bytes a second, QEMU's default; for the small RAM blocks */
#define DOWNTIME_MIN_MS 300          /* QEMU's default; with 0 it waits for an idle VM */
#define IGNORE_SHARED   "x-ignore-shared"

enum want { OFF, ON, ANY };

static const struct capability {
    const char *name;
    enum want want; /* ON: required of QEMU. ANY: either value will do */
} capabilities[] = {
    {IGNORE_SHARED, ON},
    {"events", ON},
    /* Costs a millisecond and a command; the source stops QEMU's stream without it. */
    {"pause-before-switchover", OFF},
    /* With each of these QEMU would send RAM in another way, or expect another stream or an answer.
     */
    {"postcopy-ram", OFF},
    {"postcopy-preempt", OFF},
    {"multifd", OFF},
    {"mapped-ram", OFF},
    {"background-snapshot", OFF},
    {"x-colo", OFF},
    {"block", OFF},
    {"release-ram", OFF},
    {"return-path", OFF},
    {"switchover-ack", OFF},
    {"zero-copy-send", OFF},
    {"compress", OFF},
    {"xbzrle", OFF},
    /* These slow the vCPUs down. */
    {"auto-converge", OFF},
    {"dirty-limit", OFF},
    /* They concern QEMU's RDMA, its post-copy or copied disks, or are checks that do no harm. */
    {"rdma-pin-all", ANY},
    {"x-rdma-pin-all", ANY},
    {"postcopy-blocktime", ANY},
    {"zero-blocks", ANY},
    {"validate-uuid", ANY},
    {"late-block-activate", ANY},
    {"dirty-bitmaps", ANY},
};

static const struct parameter {
    const char *name;
    const char *text; /* the required text; NULL: a number or boolean, by the next fields */
    json_int_t least; /* at least this number; QEMU's 0 means no limit and is fine */
    bool zero_too;    /* ... but 0 has to be raised to `least`, too */
    bool is_zero;     /* exactly 0, or false */
} parameters[] = {
    /* ib-migrate carries QEMU's stream and encrypts it itself. A name here makes QEMU wait for a
     * TLS handshake that never comes. */
    {.name = "tls-creds", .text = ""},
    {.name = "tls-hostname", .text = ""},
    {.name = "tls-authz", .text = ""},
    {.name = "mode", .text = "normal"}, /* not one of the checkpoint-restart modes */
    {.name = "max-bandwidth", .least = BANDWIDTH_MIN},
    {.name = "downtime-limit", .least = DOWNTIME_MIN_MS, .zero_too = true},
    {.name = "avail-switchover-bandwidth", .is_zero = true}, /* 0: as it measures */
    {.name = "direct-io", .is_zero = true},
};

static json_t *part(const json_t *settings, const char *name)
{
    return json_object_get(settings, name);
}

/* ------------------------------------------------------------ what has to change */

static int no_memory(struct ibx_error *err)
{
    return ibx_error_set(err, -ENOMEM, "out of memory");
}

static const struct capability *capability_of(const char *name)
{
    for (size_t i = 0; i < sizeof(capabilities) / sizeof(capabilities[0]); i++)
        if (!strcmp(name, capabilities[i].name))
            return &capabilities[i];
    return NULL;
}

/* A capability that this code does not know may change the stream: it is switched off, unless QEMU
 * refuses that. */
static int plan_capability(struct ibx_settings *s, const char *name, bool is, struct ibx_error *err)
{
    const struct capability *known = capability_of(name);
    const enum want want = known ? known->want : OFF;
    if (want == ANY || is == (want == ON))
        return 0;
    if (!known) {
        const size_t used = strlen(s->unknown);
        snprintf(s->unknown + used, sizeof(s->unknown) - used, "%s%s", used ? ", " : "", name);
    }
    if (json_object_set_new(part(s->change, "capabilities"), name, json_boolean(!is)) ||
        json_object_set_new(part(s->before, "capabilities"), name, json_boolean(is)))
        return no_memory(err);
    return 0;
}

static int plan_capabilities(struct ibx_settings *s, json_t *list, struct ibx_error *err)
{
    bool found[sizeof(capabilities) / sizeof(capabilities[0])] = {false};
    json_t *item;
    size_t index;
    json_array_foreach(list, index, item)
    {
        const char *name = json_string_value(json_object_get(item, "capability"));
        const struct capability *known = name ? capability_of(name) : NULL;
        if (known)
            found[known - capabilities] = true;
        int rc =
            name ? plan_capability(s, name, json_is_true(json_object_get(item, "state")), err) : 0;
        if (rc)
            return rc;
    }
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++)
        if (capabilities[i].want == ON && !found[i])
            return ibx_error_set(
                err, -EOPNOTSUPP,
                "this QEMU lacks the migration capability %s: use QEMU 4.0 or later",
                capabilities[i].name);
    return 0;
}

/* The value that a parameter needs instead of `is`, a new reference; NULL: `is` will do. */
static json_t *better(const struct parameter *p, const json_t *is)
{
    if (p->text)
        return json_is_string(is) && strcmp(json_string_value(is), p->text) != 0
                   ? json_string(p->text)
                   : NULL;
    if (p->is_zero)
        return json_is_true(is)              ? json_false()
               : json_integer_value(is) != 0 ? json_integer(0)
                                             : NULL;
    const json_int_t value = json_integer_value(is);
    return json_is_integer(is) && value < p->least && (value || p->zero_too)
               ? json_integer(p->least)
               : NULL;
}

/* Parameters that this QEMU does not have are skipped. */
static int plan_parameters(struct ibx_settings *s, const json_t *all, struct ibx_error *err)
{
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++) {
        const struct parameter *p = &parameters[i];
        json_t *is = json_object_get(all, p->name), *to = is ? better(p, is) : NULL;
        if (to && (json_object_set_new(part(s->change, "parameters"), p->name, to) ||
                   json_object_set(part(s->before, "parameters"), p->name, is)))
            return no_memory(err);
    }
    return 0;
}

int ibx_settings_plan(struct ibx_qmp *qmp, struct ibx_settings *settings, uint64_t deadline_ns,
                      struct ibx_error *err)
{
    struct ibx_settings found = {json_pack("{s:{}, s:{}}", "capabilities", "parameters"),
                                 json_pack("{s:{}, s:{}}", "capabilities", "parameters"), ""};
    json_t *list = NULL, *all = NULL;
    int rc = found.change && found.before ? 0 : no_memory(err);
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ibx_qmp_ahead(qmp, "query-migrate-capabilities", NULL, deadline_ns);
    ibx_qmp_ahead(qmp, "query-migrate-parameters", NULL, deadline_ns);
    if (!rc)
        rc = ibx_qmp_execute(qmp, "query-migrate-capabilities", NULL, &list, deadline_ns, err);
    if (!rc)
        rc = plan_capabilities(&found, list, err);
    if (!rc)
        rc = ibx_qmp_execute(qmp, "query-migrate-parameters", NULL, &all, deadline_ns, err);
    if (!rc)
        rc = plan_parameters(&found, all, err);
    ibx_qmp_ahead_end(qmp, before);
    json_decref(list);
    json_decref(all);
    if (rc)
        ibx_settings_fini(&found);
    else
        *settings = found;
    return rc;
}

void ibx_settings_fini(struct ibx_settings *settings)
{
    json_decref(settings->change);
    json_decref(settings->before);
    *settings = (struct ibx_settings){.change = NULL};
}

bool ibx_settings_left_on(const struct ibx_settings *settings)
{
    return !json_object_get(part(settings->change, "capabilities"), IGNORE_SHARED);
}

const char *ibx_settings_first_change(const struct ibx_settings *settings, const char *but)
{
    static const char *const parts[] = {"capabilities", "parameters"};
    const char *name;
    json_t *value;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        json_object_foreach(part(settings->change, parts[i]), name, value)
        {
            if (!but || strcmp(name, but) != 0)
                return name;
        }
    return NULL;
}

bool ibx_settings_omit_ram(const json_t *before)
{
    return json_is_false(json_object_get(part(before, "capabilities"), IGNORE_SHARED));
}

bool ibx_settings_set_aside_ram(struct ibx_settings *settings)
{
    return !json_object_del(part(settings->change, "capabilities"), IGNORE_SHARED);
}

static json_t *leave_out(bool on)
{
    return json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", IGNORE_SHARED, "state", on);
}

json_t *ibx_settings_leave_out_ram(const json_t *before)
{
    return ibx_settings_omit_ram(before) ? leave_out(true) : NULL;
}

json_t *ibx_settings_save_ram(const json_t *before)
{
    return ibx_settings_omit_ram(before) ? leave_out(false) : NULL;
}

/* ------------------------------------------------------------ changing it */

static int send_capabilities(struct ibx_qmp *qmp, const json_t *settings, uint64_t deadline_ns,
                             struct ibx_error *err)
{
    json_t *states = part(settings, "capabilities"), *list = json_array(), *state;
    const char *name;
    if (!list)
        return no_memory(err);
    json_object_foreach(states, name, state)
    {
        if (json_array_append_new(list,
                                  json_pack("{s:s, s:O}", "capability", name, "state", state))) {
            json_decref(list);
            return no_memory(err);
        }
    }
    if (json_array_size(list))
        return ibx_qmp_execute(qmp, "migrate-set-capabilities",
                               json_pack("{s:o}", "capabilities", list), NULL, deadline_ns, err);
    json_decref(list);
    return 0;
}

static int send_parameters(struct ibx_qmp *qmp, json_t *values, uint64_t deadline_ns,
                           struct ibx_error *err)
{
    if (!json_object_size(values))
        return 0;
    return ibx_qmp_execute(qmp, "migrate-set-parameters", json_copy(values), NULL, deadline_ns,
                           err);
}

/* Sets capabilities first (and restores them last), since QEMU refuses some parameters while
 * certain capabilities are on, but none with those that are set here. */
int ibx_settings_set(struct ibx_qmp *qmp, const struct ibx_settings *settings, uint64_t deadline_ns,
                     struct ibx_error *err)
{
    int rc = send_capabilities(qmp, settings->change, deadline_ns, err);
    if (rc && settings->unknown[0])
        return ibx_error_prefix(err, rc,
                                "QEMU has migration capabilities on that this ib-migrate does not "
                                "know (%s) and that it cannot switch off: switch them off",
                                settings->unknown);
    return rc ? rc : send_parameters(qmp, part(settings->change, "parameters"), deadline_ns, err);
}

/* The parameters to restore: those that still have the value that ibx_settings_set() gave them,
 * since another client may have changed others. A new reference; NULL with `err`. */
static json_t *ours(const json_t *before, const json_t *all, struct ibx_error *err)
{
    json_t *values = json_object();
    for (size_t i = 0; values && i < sizeof(parameters) / sizeof(parameters[0]); i++) {
        const struct parameter *p = &parameters[i];
        json_t *was = json_object_get(part(before, "parameters"), p->name);
        json_t *set = was ? better(p, was) : NULL;
        if (set && json_equal(set, json_object_get(all, p->name)) &&
            json_object_set(values, p->name, was)) {
            json_decref(values);
            values = NULL;
        }
        json_decref(set);
    }
    if (!values)
        no_memory(err);
    return values;
}

static int restore_machine(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                           struct ibx_error *err)
{
    const char *name;
    json_t *value;
    int rc = 0;
    json_object_foreach(part(before, IBX_SETTINGS_OF_MACHINE), name, value)
    {
        if (!rc)
            rc = ibx_qmp_execute(qmp, "qom-set",
                                 json_pack("{s:s, s:s, s:O}", "path", IBX_SETTINGS_MACHINE,
                                           "property", name, "value", value),
                                 NULL, deadline_ns, err);
    }
    return rc;
}

/* Capabilities need no such check: they have two values, so one that differs from `before` still
 * has the value that was set here. */
int ibx_settings_restore(struct ibx_qmp *qmp, const json_t *before, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *all = NULL;
    int rc = json_object_size(part(before, "parameters"))
                 ? ibx_qmp_execute(qmp, "query-migrate-parameters", NULL, &all, deadline_ns, err)
                 : 0;
    json_t *values = all ? ours(before, all, err) : NULL;
    if (!rc && all)
        rc = values ? send_parameters(qmp, values, deadline_ns, err) : err->code;
    json_decref(all);
    json_decref(values);
    if (!rc)
        rc = send_capabilities(qmp, before, deadline_ns, err);
    return rc ? rc : restore_machine(qmp, before, deadline_ns, err);
}
