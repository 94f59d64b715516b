/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * status --prometheus: the migrations of this host in Prometheus's text format (version 0.0.4), for
 * node_exporter's textfile collector. Of each monitor and role one record is shown: the one that is
 * not over, or else the newest, so that old migrations do not stay in a dashboard for ever.
 */
#include "tools/ib-migrate/ib-migrate.h"

#include "common/file_check.h"
#include "common/write_whole.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "ibx_migration_"

/* What is printed for one migration. */
struct sample {
    const struct migrate_view *view;
    char id[2 * IBX_MIGRATE_ID_BYTES + 1];
};

struct sheet {
    const struct migrate_view *views; /* of receivers without a record, too */
    size_t view_count, count;
    bool unread;
    struct sample *samples;
    FILE *out;
};

/* ------------------------------------------------------------ which ones */

static bool same_place(const struct ibx_record *a, const struct ibx_record *b)
{
    return a->source == b->source && !strcmp(a->qmp, b->qmp);
}

/* The newest comes first in the list. */
static bool is_shown(const struct sheet *sheet, size_t at)
{
    const struct ibx_record *record = &sheet->views[at].record;
    if (!record->state || !ibx_journal_over(record))
        return record->state != 0;
    for (size_t i = 0; i < sheet->view_count; i++) {
        const struct ibx_record *other = &sheet->views[i].record;
        if (i != at && other->state && same_place(record, other) &&
            (i < at || !ibx_journal_over(other)))
            return false;
    }
    return true;
}

static void choose(struct sheet *sheet)
{
    for (size_t i = 0; i < sheet->view_count; i++) {
        if (!is_shown(sheet, i))
            continue;
        struct sample *sample = &sheet->samples[sheet->count++];
        sample->view = &sheet->views[i];
        ibx_hex_text(sample->view->record.id, IBX_MIGRATE_ID_BYTES, sample->id);
    }
}

/* ------------------------------------------------------------ the format */

static void put_head(const struct sheet *sheet, const char *name, const char *type,
                     const char *help)
{
    fprintf(sheet->out, "# HELP " PREFIX "%s %s\n# TYPE " PREFIX "%s %s\n", name, help, name, type);
}

/* Prints a label. Its value has to be UTF-8, and three characters are escaped. Other control
 * characters become question marks, since a terminal may show it. */
static void put_label(const struct sheet *sheet, const char *name, const char *value)
{
    char text[PATH_MAX];
    json_t *utf8 = ibx_json_text(value);
    snprintf(text, sizeof(text), "%s", utf8 ? json_string_value(utf8) : "");
    json_decref(utf8);
    fprintf(sheet->out, "%s=\"", name);
    for (char *line = text, *end; line; line = end) {
        end = strchr(line, '\n');
        if (end)
            *end++ = '\0';
        ibx_text_plain(line);
        for (const char *c = line; *c; c++)
            fprintf(sheet->out, *c == '\\' || *c == '"' ? "\\%c" : "%c", *c);
        fputs(end ? "\\n" : "", sheet->out);
    }
    fputc('"', sheet->out);
}

/* NAME{id=...,role=...,vm=...[,label=value], without the closing brace. */
static void put_name(const struct sheet *sheet, const struct sample *sample, const char *name,
                     const char *label, const char *value)
{
    const struct ibx_record *record = &sample->view->record;
    char vm[PATH_MAX];
    ibx_cli_vm_name(record, vm, sizeof(vm));
    fprintf(sheet->out, PREFIX "%s{id=\"%s\",role=\"%s\",", name, sample->id,
            record->source ? "source" : "destination");
    put_label(sheet, "vm", vm);
    if (!label)
        return;
    fputc(',', sheet->out);
    put_label(sheet, label, value);
}

static void put_integer(const struct sheet *sheet, uint64_t value)
{
    fprintf(sheet->out, "} %" PRIu64 "\n", value);
}

/* ------------------------------------------------------------ of each record */

static void put_info(const struct sheet *sheet)
{
    put_head(sheet, "info", "gauge", "What the other figures of this id belong to; always 1.");
    for (size_t i = 0; i < sheet->count; i++) {
        const struct ibx_record *record = &sheet->samples[i].view->record;
        put_name(sheet, &sheet->samples[i], "info", "uuid", record->uuid);
        fputc(',', sheet->out);
        put_label(sheet, "qmp", record->qmp);
        fputc(',', sheet->out);
        put_label(sheet, "peer", record->peer);
        put_integer(sheet, 1);
    }
}

static void put_states(const struct sheet *sheet)
{
    put_head(sheet, "state", "gauge", "The state of the record, as a label; always 1.");
    for (size_t i = 0; i < sheet->count; i++) {
        put_name(sheet, &sheet->samples[i], "state", "state",
                 ibx_journal_state_name(sheet->samples[i].view->record.state));
        put_integer(sheet, 1);
    }
    put_head(sheet, "phase", "gauge",
             "The phase of the ib-migrate that works on it, as a label; always 1.");
    for (size_t i = 0; i < sheet->count; i++) {
        const struct migrate_view *view = sheet->samples[i].view;
        if (!view->live)
            continue;
        put_name(sheet, &sheet->samples[i], "phase", "phase",
                 ibx_migrate_phase_name(view->status.phase));
        put_integer(sheet, 1);
    }
}

static uint64_t is_over(const struct migrate_view *view)
{
    return ibx_journal_over(&view->record);
}

static uint64_t is_live(const struct migrate_view *view)
{
    return view->live;
}

/* Whether an operator has to do something. Not for a destination in NOT_YET without a tool: the VM
 * is at the source. */
static uint64_t needs_operator(const struct migrate_view *view)
{
    const enum ibx_journal_state state = view->record.state;
    if (state == IBX_JOURNAL_BROKEN || view->mute)
        return 1;
    return !ibx_journal_over(&view->record) && !view->live && state != IBX_JOURNAL_NOT_YET;
}

static uint64_t written(const struct migrate_view *view)
{
    return view->record.written_s;
}

static const struct {
    const char *name, *help;
    uint64_t (*value)(const struct migrate_view *view);
} record_figures[] = {
    {"over", "1: the migration has ended on this side.", is_over},
    {"worked_on", "1: an ib-migrate works on it and answers.", is_live},
    {"needs_operator",
     "1: nobody works on it though it is not over, or its ib-migrate does not answer, or the "
     "memory at both ends differs; see ib-migrate status.",
     needs_operator},
    {"written_timestamp_seconds", "When its record was written last.", written},
};

static void put_record_figures(const struct sheet *sheet)
{
    for (size_t f = 0; f < sizeof(record_figures) / sizeof(record_figures[0]); f++) {
        put_head(sheet, record_figures[f].name, "gauge", record_figures[f].help);
        for (size_t i = 0; i < sheet->count; i++) {
            put_name(sheet, &sheet->samples[i], record_figures[f].name, NULL, NULL);
            put_integer(sheet, record_figures[f].value(sheet->samples[i].view));
        }
    }
}

/* ------------------------------------------------------------ of each that is worked on */

#define AT(member) offsetof(struct ibx_migrate_status, member)

/* All are uint64_t; those whose names end in _seconds are in nanoseconds. */
static const struct {
    const char *name, *type, *help;
    size_t at;
    bool later; /* absent while it is 0, not known */
} live_figures[] = {
    {"elapsed_seconds", "gauge", "Since its ib-migrate began.", AT(now_ns), false},
    {"ram_bytes", "gauge", "The VM's memory.", AT(ram_bytes), false},
    {"pages", "gauge", "Pages of the VM's memory.", AT(pages), false},
    {"present_pages", "gauge", "Pages that have arrived.", AT(present), false},
    {"zero_pages", "gauge", "Pages that are zero and never fetched.", AT(zero_pages), false},
    {"wire_bytes_total", "counter", "Bytes of pages that were fetched.", AT(bytes), false},
    {"bytes_per_second", "gauge", "The rate of that, over the last second.", AT(bytes_per_second),
     false},
    {"faults_total", "counter", "Pages for which the VM has waited.", AT(faults), false},
    {"fault_p50_seconds", "gauge", "How long it has waited for one, median.", AT(fault_p50_ns),
     false},
    {"fault_p99_seconds", "gauge", "How long it has waited for one, 99th percentile.",
     AT(fault_p99_ns), false},
    {"fault_max_seconds", "gauge", "How long it has waited for one, at most.", AT(fault_max_ns),
     false},
    {"silent_seconds", "gauge",
     "For how long an expected message has not come from the other side; 0: it comes.",
     AT(silent_ns), false},
    {"max_bandwidth_bytes", "gauge", "The limit in bytes a second.", AT(max_bandwidth), true},
    {"downtime_seconds", "gauge", "From the VM's stop to its resume, once it is known.",
     AT(downtime_ns), true},
    {"warm_rounds", "gauge", "Passes through its memory before its stop.", AT(warm_rounds), true},
    {"warm_bytes_total", "counter", "Bytes of pages that were fetched in them.", AT(warm_bytes),
     true},
    {"warm_pages", "gauge", "Pages that needed no fetching after the stop.", AT(warm_pages), true},
};

static void put_live_figure(const struct sheet *sheet, size_t f)
{
    const char *name = live_figures[f].name;
    const size_t length = strlen(name);
    const bool seconds = length > 8 && !strcmp(name + length - 8, "_seconds");
    put_head(sheet, name, live_figures[f].type, live_figures[f].help);
    for (size_t i = 0; i < sheet->count; i++) {
        uint64_t value;
        const struct migrate_view *view = sheet->samples[i].view;
        memcpy(&value, (const char *)&view->status + live_figures[f].at, sizeof(value));
        if (!view->live || (live_figures[f].later && !value))
            continue;
        put_name(sheet, &sheet->samples[i], name, NULL, NULL);
        if (seconds)
            fprintf(sheet->out, "} %" PRIu64 ".%09" PRIu64 "\n", value / 1000000000,
                    value % 1000000000);
        else
            put_integer(sheet, value);
    }
}

static void put_reconnects(const struct sheet *sheet)
{
    put_head(sheet, "reconnects_total", "counter", "Reconnections of the two sides.");
    for (size_t i = 0; i < sheet->count; i++) {
        if (!sheet->samples[i].view->live)
            continue;
        put_name(sheet, &sheet->samples[i], "reconnects_total", NULL, NULL);
        put_integer(sheet, sheet->samples[i].view->status.reconnects);
    }
}

/* ------------------------------------------------------------ of the host */

static size_t count_of(const struct sheet *sheet, bool source, enum ibx_journal_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < sheet->view_count; i++)
        count += sheet->views[i].record.source == source && sheet->views[i].record.state == state;
    return count;
}

static void put_host(const struct sheet *sheet)
{
    static const enum ibx_journal_state states[2][10] = {
        {IBX_JOURNAL_NOT_YET, IBX_JOURNAL_MAY_RUN, IBX_JOURNAL_RUNNING, IBX_JOURNAL_COMPLETE,
         IBX_JOURNAL_DONE, IBX_JOURNAL_SHUT_DOWN, IBX_JOURNAL_ENDED, IBX_JOURNAL_BROKEN,
         IBX_JOURNAL_GIVEN_UP},
        {IBX_JOURNAL_HERE, IBX_JOURNAL_MAY_RUN, IBX_JOURNAL_MOVED, IBX_JOURNAL_DONE,
         IBX_JOURNAL_ENDED, IBX_JOURNAL_KEPT, IBX_JOURNAL_BROKEN, IBX_JOURNAL_ROLLED_BACK}};
    put_head(sheet, "receivers_waiting", "gauge", "Receivers to which no VM has come yet.");
    fprintf(sheet->out, PREFIX "receivers_waiting %zu\n",
            count_of(sheet, false, (enum ibx_journal_state)0));
    put_head(
        sheet, "records_unreadable", "gauge",
        "1: a record cannot be read, and its migration has no figures; see ib-migrate status.");
    fprintf(sheet->out, PREFIX "records_unreadable %d\n", sheet->unread);
    put_head(sheet, "records", "gauge", "Records on this host, by role and state.");
    for (unsigned source = 0; source < 2; source++)
        for (unsigned i = 0; states[source][i]; i++)
            fprintf(sheet->out, PREFIX "records{role=\"%s\",state=\"%s\"} %zu\n",
                    source ? "source" : "destination", ibx_journal_state_name(states[source][i]),
                    count_of(sheet, source, states[source][i]));
}

static void put_all(const struct sheet *sheet)
{
    put_host(sheet);
    put_info(sheet);
    put_states(sheet);
    put_record_figures(sheet);
    for (size_t f = 0; f < sizeof(live_figures) / sizeof(live_figures[0]); f++)
        put_live_figure(sheet, f);
    put_reconnects(sheet);
}

/* ------------------------------------------------------------ where to */

static int write_file(struct sheet *sheet, const char *path, struct ibx_error *err)
{
    char fresh[PATH_MAX];
    int rc = ibx_file_check_replace(path, err);
    if (rc)
        return rc;
    /* The temporary file must not be called *.prom, which the collector would read. */
    if ((size_t)snprintf(fresh, sizeof(fresh), "%s.XXXXXX", path) >= sizeof(fresh))
        return ibx_error_set(err, -ENAMETOOLONG, "--output %.64s...: the name is too long", path);
    int fd = mkstemp(fresh);
    sheet->out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!sheet->out)
        rc = -errno;
    if (sheet->out) {
        put_all(sheet);
        if (fflush(sheet->out) || ferror(sheet->out) || fchmod(fd, 0644) || fsync(fd))
            rc = -errno;
        if (fclose(sheet->out) && !rc)
            rc = -errno;
    }
    if (!rc && rename(fresh, path))
        rc = -errno;
    if (rc && fd >= 0)
        unlink(fresh);
    const bool full = rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
    return rc ? ibx_error_set(err, rc, "%s cannot be written: %s; %s", path, strerror(-rc),
                              full ? ibx_write_remedy(rc, "make room there, or give another path")
                                   : "give a path in a folder that exists and that this user may "
                                     "write to")
              : 0;
}

int ibx_cli_prometheus(const struct migrate_args *args, const struct migrate_view *views,
                       size_t count, bool unread, struct ibx_error *err)
{
    struct sheet sheet = {.views = views, .view_count = count, .unread = unread, .out = stdout};
    int rc = 0;
    sheet.samples = calloc(count + 1, sizeof(*sheet.samples));
    if (!sheet.samples)
        return ibx_error_set(err, -ENOMEM, "no memory for the figures of all migrations");
    choose(&sheet);
    if (args->output)
        rc = write_file(&sheet, args->output, err);
    else
        put_all(&sheet);
    free(sheet.samples);
    return rc;
}
