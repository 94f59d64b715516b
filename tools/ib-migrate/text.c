/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What ib-migrate prints: messages, the progress bar, a line for each phase, the summary. */
#include "tools/ib-migrate/ib-migrate.h"
#include "tools/options.h"

#include "common/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BAR_COLUMNS 20
#define NS_PER_S    1000000000ull

/* The message may contain texts of other hosts, of a QEMU and of files, so it is sanitized. */
void ibx_cli_message(const char *message)
{
    char text[PATH_MAX + 2 * IBX_ERROR_MAX];
    snprintf(text, sizeof(text), "%s", message);
    ibx_text_plain(text);
    fprintf(stderr, "ib-migrate: %s\n", text);
}

int ibx_cli_fail(const char *message)
{
    ibx_cli_message(message);
    ibx_cli_result_failed(message);
    return MIGRATE_FAILED;
}

void ibx_cli_print(const char *format, ...)
{
    char text[2 * PATH_MAX + IBX_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    ibx_text_plain(text);
    puts(text);
}

/* Prints JSON, and escapes the control characters DEL and U+0080 to U+009F (C2 80 to C2 9F), which
 * the JSON library does not. They occur in strings only. */
static void put_escaped(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        const bool long_one = *c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        if (long_one || *c == 0x7f)
            printf("\\u%04X", long_one ? *++c : *c);
        else
            putchar(*c);
    }
    putchar('\n');
}

static int json_lost; /* why an object was not written, a negative errno; 0: all were */

void ibx_cli_print_json(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    if (text)
        put_escaped(text);
    const bool failed = fflush(stdout) || ferror(stdout);
    if (failed || !text) {
        json_lost = failed ? -EIO : -ENOMEM;
        clearerr(stdout); /* the reader may have gone; a migration continues */
    }
    free(text);
    json_decref(json);
}

int ibx_cli_flush(int status)
{
    struct ibx_error err = {0};
    int rc = ibx_tool_flush(&err);
    if (!rc && json_lost)
        rc = ibx_error_set(&err, json_lost, "%s",
                           json_lost == -ENOMEM ? "no memory for a line of standard output"
                                                : "standard output could not be written");
    return rc ? ibx_cli_fail(err.message) : status;
}

int ibx_cli_done(void)
{
    ibx_cli_flush(MIGRATE_DONE);
    return MIGRATE_DONE;
}

/* ------------------------------------------------------------ figures */

void ibx_cli_time(uint64_t seconds, char *out, size_t size)
{
    const time_t then = (time_t)seconds;
    struct tm local;
    if (!localtime_r(&then, &local) || !strftime(out, size, "%Y-%m-%d %H:%M:%S %z", &local))
        snprintf(out, size, "an unknown time");
}

void ibx_cli_bytes(uint64_t bytes, char *out, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(out, size, "%.*f %s", unit && value < 100 ? 1 : 0, value, units[unit]);
}

void ibx_cli_duration(uint64_t ns, char *out, size_t size)
{
    static const struct {
        uint64_t ns;
        const char *name;
    } units[] = {{NS_PER_S, "s"}, {IBX_NS_PER_MS, "ms"}, {IBX_NS_PER_US, "us"}, {1, "ns"}};
    unsigned i = 0;
    while (i < 3 && ns < units[i].ns)
        i++;
    double value = (double)ns / (double)units[i].ns;
    snprintf(out, size, "%.*f %s",
             value < 10 && i < 3    ? 2
             : value < 100 && i < 3 ? 1
                                    : 0,
             value, units[i].name);
}

/* Minutes and seconds, as a clock shows them. */
static void clock_text(uint64_t seconds, char *out, size_t size)
{
    if (seconds >= 3600)
        snprintf(out, size, "%" PRIu64 ":%02u:%02u", seconds / 3600, (unsigned)(seconds / 60 % 60),
                 (unsigned)(seconds % 60));
    else
        snprintf(out, size, "%u:%02u", (unsigned)(seconds / 60), (unsigned)(seconds % 60));
}

void ibx_cli_vm_name(const struct ibx_record *record, char *out, size_t size)
{
    const bool has_uuid = strspn(record->uuid, "0-") < strlen(record->uuid);
    if (record->name[0])
        snprintf(out, size, "%s", record->name);
    else if (has_uuid)
        snprintf(out, size, "%s", record->uuid);
    else
        snprintf(out, size, "VM at %s", record->qmp);
    ibx_text_plain(out);
}

/* Pages that have not come yet. Until the first fetched page is counted, only zero pages are known.
 */
static uint64_t pages_left(const struct ibx_migrate_status *s)
{
    uint64_t there = s->present > s->zero_pages ? s->present : s->zero_pages;
    return s->pages > there ? s->pages - there : 0;
}

/* Whether the number of present pages is known. The source learns it from the destination, which
 * may have pages from before the stop, or from an earlier stay of a VM that returns. */
static bool pages_known(const struct ibx_migrate_status *s)
{
    return s->pages && (!s->source || s->present);
}

static uint64_t seconds_gone(const struct ibx_migrate_status *s)
{
    return s->now_ns > s->began_ns ? (s->now_ns - s->began_ns) / NS_PER_S : 0;
}

/* ------------------------------------------------------------ the bar */

enum piece { PHASE, BAR, LEFT, RATE, FAULTS, LATENCY, TIME, PIECES };

/* The order in which pieces are left out when the line is too narrow. */
static const enum piece least_first[] = {LATENCY, FAULTS, BAR, RATE, TIME, LEFT};

static void put_bar(const struct ibx_migrate_status *s, char *out, size_t size)
{
    const uint64_t there = s->pages - pages_left(s);
    unsigned full = (unsigned)(there * BAR_COLUMNS / s->pages), i;
    char line[BAR_COLUMNS + 1];
    for (i = 0; i < BAR_COLUMNS; i++)
        line[i] = i < full ? '#' : '-';
    line[i] = '\0';
    snprintf(out, size, "[%s] %" PRIu64 "%%", line, there * 100 / s->pages);
}

static void put_figures(const struct ibx_migrate_status *s, char pieces[PIECES][64])
{
    char a[32], b[32];
    if (pages_known(s)) {
        put_bar(s, pieces[BAR], sizeof(pieces[BAR]));
        snprintf(pieces[LEFT], sizeof(pieces[LEFT]), "%" PRIu64 " pages left", pages_left(s));
    }
    ibx_cli_bytes(s->bytes_per_second, a, sizeof(a));
    if (s->silent_ns)
        snprintf(pieces[RATE], sizeof(pieces[RATE]), "nothing for %" PRIu64 " s",
                 (uint64_t)(s->silent_ns / NS_PER_S));
    else if (s->bytes_per_second || seconds_gone(s)) /* the rate is not known at once */
        snprintf(pieces[RATE], sizeof(pieces[RATE]), "%s/s", a);
    if (s->faults_per_second || seconds_gone(s))
        snprintf(pieces[FAULTS], sizeof(pieces[FAULTS]), "%" PRIu64 " faults/s",
                 s->faults_per_second);
    if (s->faults && s->fault_p99_ns) { /* the source is told later how long they took */
        ibx_cli_duration(s->fault_p50_ns, a, sizeof(a));
        ibx_cli_duration(s->fault_p99_ns, b, sizeof(b));
        snprintf(pieces[LATENCY], sizeof(pieces[LATENCY]), "p50 %s p99 %s", a, b);
    }
    /* No time left for a borrowed VM: pages that it does not need never come. */
    const double left = (double)s->ram_bytes * (double)pages_left(s) / (double)s->pages;
    if (pages_known(s) && s->record.borrow != IBX_BORROW_LAZY && s->bytes_per_second &&
        left / (double)s->bytes_per_second < 86400.0 * 7) {
        clock_text((uint64_t)(left / (double)s->bytes_per_second), a, sizeof(a));
        snprintf(pieces[TIME], sizeof(pieces[TIME]), "%s left", a);
    }
}

static size_t columns_of(char pieces[PIECES][64])
{
    size_t sum = 0;
    for (unsigned i = 0; i < PIECES; i++)
        sum += pieces[i][0] ? strlen(pieces[i]) + (sum ? 2 : 0) : 0;
    return sum;
}

static void join(char pieces[PIECES][64], char *out, size_t size)
{
    out[0] = '\0';
    for (unsigned i = 0; i < PIECES; i++) {
        size_t used = strlen(out);
        if (pieces[i][0])
            snprintf(out + used, size - used, "%s%s", used ? "  " : "", pieces[i]);
    }
}

void ibx_cli_bar(const struct ibx_migrate_status *status, unsigned width, char *out, size_t size)
{
    if (status->phase == IBX_PHASE_FILLING && status->pages) {
        char pieces[PIECES][64] = {"filling"};
        put_figures(status, pieces);
        for (unsigned i = 0; i < PIECES - 1 && columns_of(pieces) > width; i++)
            pieces[least_first[i]][0] = '\0';
        join(pieces, out, size);
    } else {
        char text[IBX_ERROR_MAX + 128], gone[32];
        ibx_cli_phase_line(status, text, sizeof(text));
        clock_text(seconds_gone(status), gone, sizeof(gone));
        snprintf(out, size, "%s  %s", gone, text);
    }
    if (strlen(out) > width)
        out[width] = '\0';
}

/* ------------------------------------------------------------ phases */

/* What the VM does at the source; only the source knows whether it runs, once it knows its memory.
 */
static const char *does_at_source(const struct ibx_migrate_status *s)
{
    return !s->source || !s->ram_bytes ? "is" : s->record.was_running ? "runs" : "is paused";
}

void ibx_cli_phase_line(const struct ibx_migrate_status *s, char *out, size_t size)
{
    char ram[32], there[96] = "", runs[IBX_MIGRATE_STATUS + 8] = "runs";
    ibx_cli_bytes(s->ram_bytes, ram, sizeof(ram));
    switch (s->phase) {
    case IBX_PHASE_WAITING:
        if (s->source)
            snprintf(out, size, "waiting for the destination at %s", s->record.uri);
        else
            snprintf(out, size, "waiting for a source at %s", s->record.uri);
        break;
    case IBX_PHASE_PREPARING:
        snprintf(out, size, "preparing: the VM %s at the source%s%s", does_at_source(s),
                 s->ram_bytes ? ", " : "", s->ram_bytes ? ram : "");
        break;
    case IBX_PHASE_WARMING:
        if (pages_known(s))
            snprintf(there, sizeof(there),
                     ", %" PRIu64 " of %" PRIu64 " pages are at the destination", s->present,
                     s->pages);
        snprintf(out, size, "warming: the VM %s at the source%s", does_at_source(s), there);
        break;
    case IBX_PHASE_SWITCHING:
        snprintf(out, size, "switching: the VM is stopped");
        break;
    case IBX_PHASE_FILLING:
        if (ibx_journal_stands(&s->record))
            snprintf(runs, sizeof(runs), "is \"%s\"", s->record.vm_status);
        if (s->pages && s->path[0])
            snprintf(out, size,
                     "filling: the VM %s at the destination, %s%" PRIu64 " pages to fetch over %s",
                     runs, pages_known(s) ? "" : "at most ", pages_left(s), s->path);
        else /* continued, and the pages are not counted yet */
            snprintf(out, size, "filling: the VM %s at the destination", runs);
        break;
    case IBX_PHASE_RECONNECTING:
        if (s->message[0])
            snprintf(out, size, "reconnecting: %s", s->message);
        else
            snprintf(out, size, "reconnecting: waiting for the other side to connect");
        break;
    case IBX_PHASE_ENDED:
        snprintf(out, size, "ended: the %s",
                 ibx_journal_has_returned(&s->record)
                     ? "VM was borrowed and has returned"
                     : "guest has shut the VM down at the destination");
        break;
    case IBX_PHASE_DONE:
        snprintf(out, size, "done: complete and confirmed");
        break;
    default:
        snprintf(out, size, "failed: %s", s->message);
        break;
    }
    ibx_text_sanitize(out);
}

/* ------------------------------------------------------------ summary */

static void put_line(FILE *out, const char *name, const char *value)
{
    fprintf(out, "  %-18s %s\n", name, value);
}

static void put_downtime(FILE *out, const struct ibx_migrate_status *s)
{
    const struct {
        const char *name;
        uint64_t ns;
    } parts[] = {{"map", s->map_ns}, {"device state", s->state_ns}, {"resume", s->commit_ns}};
    char text[192], one[32];
    if (!s->downtime_ns)
        return;
    ibx_cli_duration(s->downtime_ns, text, sizeof(text));
    const char *before = " (";
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t used = strlen(text);
        if (!parts[i].ns)
            continue;
        ibx_cli_duration(parts[i].ns, one, sizeof(one));
        snprintf(text + used, sizeof(text) - used, "%s%s %s", before, parts[i].name, one);
        before = ", ";
    }
    if (*before == ',')
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ")");
    put_line(out, "downtime", text);
}

static void put_total(FILE *out, const struct ibx_migrate_status *s)
{
    char text[128], one[32];
    ibx_cli_duration(s->total_ns ? s->total_ns : s->now_ns - s->began_ns, one, sizeof(one));
    size_t used = (size_t)snprintf(text, sizeof(text), "%s", one);
    if (s->register_ns) {
        ibx_cli_duration(s->register_ns, one, sizeof(one));
        snprintf(text + used, sizeof(text) - used,
                 ", including %s to register memory before the stop", one);
    }
    put_line(out, "total time", text);
}

static void put_faults(FILE *out, const struct ibx_migrate_status *s)
{
    char text[192], p50[32], p99[32], max[32], sum[32];
    ibx_cli_duration(s->fault_p50_ns, p50, sizeof(p50));
    ibx_cli_duration(s->fault_p99_ns, p99, sizeof(p99));
    ibx_cli_duration(s->fault_max_ns, max, sizeof(max));
    ibx_cli_duration(s->fault_sum_ns, sum, sizeof(sum));
    int n = snprintf(text, sizeof(text), "%" PRIu64, s->faults);
    if (s->faults)
        n +=
            snprintf(text + n, sizeof(text) - (size_t)n, ", p50 %s, p99 %s, max %s", p50, p99, max);
    if (s->faults && s->fault_sum_ns)
        snprintf(text + n, sizeof(text) - (size_t)n, ", together %s", sum);
    put_line(out, "faults", text);
}

static void put_memory(FILE *out, const struct ibx_migrate_status *s)
{
    char text[320], one[32];
    snprintf(text, sizeof(text), "%" PRIu64 " of %" PRIu64 " (%" PRIu64 "%%), not sent",
             s->zero_pages, s->pages, s->zero_pages * 100 / s->pages);
    put_line(out, "zero pages", text);
    ibx_cli_bytes(s->bytes, one, sizeof(one));
    snprintf(text, sizeof(text), "%s of pages%s%s", one, s->path[0] ? " over " : "", s->path);
    ibx_text_sanitize(text);
    put_line(out, "bytes on the wire", text);
    if (s->warm_bytes) {
        ibx_cli_bytes(s->warm_bytes, one, sizeof(one));
        snprintf(text, sizeof(text),
                 "%s of pages; %" PRIu64 " pages had not changed again when the VM stopped", one,
                 s->warm_pages);
        put_line(out, "before the stop", text);
    }
    if (s->state_bytes) {
        ibx_cli_bytes(s->state_bytes, one, sizeof(one));
        put_line(out, "device state", one);
    }
}

void ibx_cli_summary(FILE *out, const struct ibx_migrate_status *s)
{
    char text[192];
    if (ibx_journal_stands(&s->record)) {
        snprintf(text, sizeof(text), "%s, so it has no downtime yet", s->record.vm_status);
        if (s->downtime_ns)
            text[strlen(s->record.vm_status)] = '\0';
        ibx_text_sanitize(text);
        put_line(out, "VM", text);
    }
    put_downtime(out, s);
    put_total(out, s);
    put_faults(out, s);
    if (s->pages)
        put_memory(out, s);
    if (s->source_cpu_ns) {
        ibx_cli_duration(s->source_cpu_ns, text, sizeof(text));
        put_line(out, "source CPU", text);
    }
    if (s->reconnects) {
        snprintf(text, sizeof(text), "%u", s->reconnects);
        put_line(out, "reconnections", text);
    }
}
