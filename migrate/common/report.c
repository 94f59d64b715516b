/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a side tells the tool that runs it: the status, notices, and that the peer is silent. */
#include "migrate/common/common.h"

#include "common/clock.h"
#include "common/line_bound.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#define RATE_NS       (1000 * IBX_NS_PER_MS) /* over which rates are measured */
#define SILENT_MIN_MS 1000
#define NOTICE_NS     (100 * IBX_NS_PER_MS) /* ten a second */
#define KINDS         512u                  /* of lines, four times as many as this program has */

/* 0 if the count is less than before: a new tool at the destination counts from 0 again. */
static uint64_t per_second(uint64_t now, uint64_t before, double seconds)
{
    return now < before ? 0 : (uint64_t)((double)(now - before) / seconds);
}

void ibx_migration_report(struct migration_reporter *reporter, struct ibx_migrate_status *status,
                          bool now)
{
    const uint64_t t = ibx_now_ns();
    status->now_ns = t;
    if (!now && t - reporter->told_ns < MIGRATION_TICK_MS * IBX_NS_PER_MS)
        return;
    reporter->told_ns = t;
    /* The first rate comes after a tenth of RATE_NS, later ones are over RATE_NS. */
    const bool first = !status->bytes_per_second && status->bytes > reporter->rate_bytes;
    if (t - reporter->rate_ns >= (first ? RATE_NS / 10 : RATE_NS)) {
        const double seconds = (double)(t - reporter->rate_ns) / 1e9;
        if (reporter->rate_ns) {
            status->bytes_per_second = per_second(status->bytes, reporter->rate_bytes, seconds);
            status->faults_per_second = per_second(status->faults, reporter->rate_faults, seconds);
        }
        reporter->rate_ns = t;
        reporter->rate_bytes = status->bytes;
        reporter->rate_faults = status->faults;
    }
    if (reporter->observer->status)
        reporter->observer->status(reporter->observer->context, status);
}

/* One bound for each kind of line, which the address of its format identifies: a peer must not fill
 * the log of this host, nor keep lines of another kind out of it. */
static struct kind {
    const char *_Atomic format; /* NULL: the entry is free; once set, it never changes */
    struct ibx_line_bound bound;
} kinds[KINDS];

/* The bound of a kind; if the table is full, kinds share one. */
static struct ibx_line_bound *bound_of(const char *format)
{
    const size_t first = (uintptr_t)format % KINDS;
    for (size_t i = 0; i < KINDS; i++) {
        struct kind *kind = &kinds[(first + i) % KINDS];
        const char *has = NULL;
        if (atomic_compare_exchange_strong(&kind->format, &has, format) || has == format)
            return &kind->bound;
    }
    return &kinds[first].bound;
}

void ibx_migration_notify(const struct ibx_migrate_observer *observer, const char *format, ...)
{
    char line[IBX_ERROR_MAX + 128];
    uint64_t before;
    va_list arguments;
    if (!observer->notify || !ibx_line_bound_take(bound_of(format), NOTICE_NS, &before))
        return;
    if (before) {
        snprintf(line, sizeof(line),
                 "lines like the next one were left out, because there were too many: %llu",
                 (unsigned long long)before);
        observer->notify(observer->context, line);
    }
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    ibx_text_sanitize(line);
    observer->notify(observer->context, line);
}

static unsigned seconds(uint64_t ns)
{
    return (unsigned)(ns / (1000 * IBX_NS_PER_MS));
}

/* The connection lives, but nothing comes: the peer's tool is stopped (SIGSTOP, a debugger, a host
 * without free processors), or the network is down and that has not been detected yet. This
 * side can only notify. */
void ibx_migration_check_silence(struct migration_silence *silence,
                                 const struct migration_expectation *expected,
                                 struct ibx_migrate_status *status,
                                 const struct ibx_migrate_observer *observer)
{
    const uint64_t now = ibx_now_ns(), half_ms = expected->timeout_ms / 2;
    const uint64_t limit_ms = half_ms > SILENT_MIN_MS ? half_ms : SILENT_MIN_MS;
    const char *peer = status->record.peer[0] ? status->record.peer : "the other side";
    const bool came = silence->count != expected->count;
    const bool away = now - silence->looked_ns > MIGRATION_AWAY_NS;
    silence->looked_ns = now;
    if (away || !expected->awaited || came) {
        if (silence->notified && came)
            ibx_migration_notify(observer, "%s sends again, after %u s", peer,
                                 seconds(now - silence->since_ns));
        *silence = (struct migration_silence){now, now, expected->count, false};
        status->silent_ns = 0;
        return;
    }
    if (now - silence->since_ns < limit_ms * IBX_NS_PER_MS + expected->pause_ns)
        return;
    status->silent_ns = now - silence->since_ns;
    if (silence->notified)
        return;
    silence->notified = true;
    ibx_migration_notify(
        observer,
        "nothing has come from %s for %u s: %s; nothing is lost, and the migration continues by "
        "itself: check whether the ib-migrate there is stopped and whether the network is up",
        peer, seconds(status->silent_ns), expected->means);
}
