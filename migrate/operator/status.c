/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The status of a migration as JSON, and back; ib-migrate(1) documents every member. */
#include "migrate/migrate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *ibx_migrate_phase_name(enum ibx_migrate_phase phase)
{
    static const char *const phases[] = {"waiting",   "preparing", "warming",
                                         "switching", "filling",   "reconnecting",
                                         "done",      "ended",     "failed"};
    return (unsigned)phase < sizeof(phases) / sizeof(phases[0]) ? phases[phase] : "unknown";
}

/* ------------------------------------------------------------ figures */

struct figure {
    const char *name;
    size_t offset;
    bool later; /* JSON null until it is known */
};

#define FIGURE(member, name)                                                                       \
    {                                                                                              \
        name, offsetof(struct ibx_migrate_status, member), false                                   \
    }
#define LATER(member)                                                                              \
    {                                                                                              \
#member, offsetof(struct ibx_migrate_status, member), true                                 \
    }

static const struct figure figures[] = {
    FIGURE(ram_bytes, "ram_bytes"),
    FIGURE(pages, "pages"),
    FIGURE(present, "present_pages"),
    FIGURE(zero_pages, "zero_pages"),
    FIGURE(bytes, "wire_bytes"),
    FIGURE(bytes_per_second, "bytes_per_second"),
    FIGURE(faults, "faults"),
    FIGURE(faults_per_second, "faults_per_second"),
    FIGURE(fault_p50_ns, "fault_p50_ns"),
    FIGURE(fault_p99_ns, "fault_p99_ns"),
    FIGURE(fault_max_ns, "fault_max_ns"),
    FIGURE(fault_sum_ns, "fault_sum_ns"),
    LATER(max_bandwidth),
    LATER(silent_ns),
    LATER(downtime_ns),
    LATER(map_ns),
    LATER(state_ns),
    LATER(commit_ns),
    LATER(register_ns),
    LATER(filled_ns),
    LATER(total_ns),
    LATER(source_cpu_ns),
    LATER(state_bytes),
    LATER(warm_rounds),
    LATER(warm_bytes),
    LATER(warm_pages),
};
#define FIGURES (sizeof(figures) / sizeof(figures[0]))

static json_t *number(uint64_t value)
{
    return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

static json_t *figure_json(const struct ibx_migrate_status *status, const struct figure *figure)
{
    uint64_t value;
    memcpy(&value, (const char *)status + figure->offset, sizeof(value));
    return value || !figure->later ? number(value) : json_null();
}

/* ------------------------------------------------------------ out */

static json_t *vm_status_json(const struct ibx_record *record)
{
    return record->vm_status[0] ? ibx_json_text(record->vm_status) : json_null();
}

json_t *ibx_migrate_record_json(const struct ibx_record *record)
{
    static const char *const borrows[] = {"no", "lazy", "fill"};
    char id[2 * IBX_MIGRATE_ID_BYTES + 1], base[2 * IBX_MIGRATE_ID_BYTES + 1];
    ibx_hex_text(record->id, IBX_MIGRATE_ID_BYTES, id);
    ibx_hex_text(record->base, IBX_MIGRATE_ID_BYTES, base);
    return json_pack("{s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:s, "
                     "s:o}",
                     "id", id, "role", record->source ? "source" : "destination", "state",
                     ibx_journal_state_name(record->state), "over", ibx_journal_over(record),
                     "epoch", number(record->epoch), "name", ibx_json_text(record->name), "uuid",
                     ibx_json_text(record->uuid), "qmp", ibx_json_text(record->qmp), "pid",
                     json_integer(record->pid), "uri", ibx_json_text(record->uri), "peer",
                     ibx_json_text(record->peer), "vm_status", vm_status_json(record), "written",
                     number(record->written_s), "libvirt", record->libvirt, "borrow",
                     borrows[record->borrow], "returns_from",
                     ibx_journal_returns(record) ? json_string(base) : json_null());
}

/* JSON null before the two tools have met, since there is no record yet. */
static json_t *record_or_null(const struct ibx_record *record)
{
    return record->state ? ibx_migrate_record_json(record) : json_null();
}

json_t *ibx_migrate_status_json(const struct ibx_migrate_status *status)
{
    json_t *json = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:o, s:i, s:o}", "role",
        status->source ? "source" : "destination", "phase", ibx_migrate_phase_name(status->phase),
        "record", record_or_null(&status->record), "path", ibx_json_text(status->path), "sentence",
        ibx_json_text(status->message), "elapsed_ns",
        number(status->now_ns > status->began_ns ? status->now_ns - status->began_ns : 0),
        "reconnects", (int)status->reconnects, "vm_status", vm_status_json(&status->record));
    int failed = !json;
    for (size_t i = 0; i < FIGURES && !failed; i++)
        failed = json_object_set_new(json, figures[i].name, figure_json(status, &figures[i]));
    if (failed) {
        json_decref(json);
        return NULL;
    }
    return json;
}

/* ------------------------------------------------------------ in */

static int phase_of(const char *name, enum ibx_migrate_phase *phase)
{
    for (unsigned i = IBX_PHASE_WAITING; name && i <= IBX_PHASE_FAILED; i++) {
        if (!strcmp(ibx_migrate_phase_name((enum ibx_migrate_phase)i), name)) {
            *phase = (enum ibx_migrate_phase)i;
            return 0;
        }
    }
    return -EPROTO;
}

/* Reads a number that must not be negative; null counts as 0. */
static int number_of(const json_t *json, const char *name, uint64_t *value)
{
    const json_t *member = json_object_get(json, name);
    json_int_t got = json_integer_value(member);
    if ((!json_is_integer(member) && !json_is_null(member)) || got < 0)
        return -EPROTO;
    *value = (uint64_t)got;
    return 0;
}

static int text_of(const json_t *json, const char *name, char *out, size_t size)
{
    const char *text = json_string_value(json_object_get(json, name));
    if (!text)
        return -EPROTO;
    snprintf(out, size, "%s", text);
    ibx_text_sanitize(out);
    return 0;
}

static int bad_member(struct ibx_error *err, const char *name)
{
    return ibx_error_set(
        err, -EPROTO,
        "the answer of the tool at work on the migration has no good \"%s\": is it of "
        "another version?",
        name);
}

int ibx_migrate_status_take(const json_t *json, struct ibx_migrate_status *status,
                            struct ibx_error *err)
{
    struct ibx_migrate_status taken = {.record = status->record};
    const char *role = json_string_value(json_object_get(json, "role"));
    if (!role)
        return bad_member(err, "role");
    taken.source = !strcmp(role, "source");
    if (phase_of(json_string_value(json_object_get(json, "phase")), &taken.phase))
        return bad_member(err, "phase");
    if (text_of(json, "path", taken.path, sizeof(taken.path)))
        return bad_member(err, "path");
    if (text_of(json, "sentence", taken.message, sizeof(taken.message)))
        return bad_member(err, "sentence");
    const char *vm_status = json_string_value(json_object_get(json, "vm_status"));
    if (vm_status) {
        snprintf(taken.record.vm_status, sizeof(taken.record.vm_status), "%s", vm_status);
        ibx_text_sanitize(taken.record.vm_status);
    }
    uint64_t reconnects = 0;
    if (number_of(json, "elapsed_ns", &taken.now_ns))
        return bad_member(err, "elapsed_ns");
    if (number_of(json, "reconnects", &reconnects) || reconnects > UINT32_MAX)
        return bad_member(err, "reconnects");
    taken.reconnects = (unsigned)reconnects;
    for (size_t i = 0; i < FIGURES; i++) {
        uint64_t value;
        if (number_of(json, figures[i].name, &value))
            return bad_member(err, figures[i].name);
        memcpy((char *)&taken + figures[i].offset, &value, sizeof(value));
    }
    *status = taken;
    return 0;
}
