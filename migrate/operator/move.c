/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What both sides of a move have in common, and what is asked about one from outside of it. */
#include "migrate/preflight/hardware.h"
#include "migrate/operator/move_internal.h"
#include "migrate/pages/pages.h"
#include "migrate/source/vm.h"

#include "common/clock.h"
#include "common/locked.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define RATE_NS (1000 * IBX_NS_PER_MS) /* over which rates are measured */
#define BUSY_MS 20                     /* in one state: most of them take less than a millisecond */

const char *ibx_migrate_phase_name(enum ibx_migrate_phase phase)
{
    static const char *const phases[] = {"waiting", "preparing", "switching", "filling",
                                         "broken",  "done",      "failed"};
    return (unsigned)phase < sizeof(phases) / sizeof(phases[0]) ? phases[phase] : "unknown";
}

/* ---------------------------------------------------------------- waiting */

uint64_t ibx_migration_busy_until(void)
{
    return ibx_thread_may_spin() ? ibx_deadline_in_ms(BUSY_MS) : 0;
}

/* ---------------------------------------------------------------- signals, telling */

int ibx_migration_signals_open(struct move_signals *signals, struct ibx_error *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &signals->before);
    signals->fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals->fd >= 0)
        return 0;
    int code = errno;
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
    return ibx_error_set(err, -code, "no descriptor for signals: %s", strerror(code));
}

unsigned ibx_migration_signals_take(struct move_signals *signals)
{
    struct signalfd_siginfo info;
    unsigned n = 0;
    while (signals->fd >= 0 && read(signals->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        n++;
    return n;
}

void ibx_migration_signals_close(struct move_signals *signals)
{
    if (signals->fd < 0)
        return;
    close(signals->fd);
    signals->fd = -1;
    pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
}

void ibx_migration_stop_at(const char *side, const char *state)
{
    static bool stopped;
    char name[64];
    const char *at = getenv("IBX_MOVE_STOP_AT");
    snprintf(name, sizeof(name), "%s:%s", side, state);
    if (!at || stopped || strcmp(at, name))
        return;
    stopped = true;
    raise(SIGSTOP);
}

void ibx_migration_tell(struct move_teller *teller, struct ibx_migrate_status *status, bool now)
{
    const uint64_t t = ibx_now_ns();
    status->now_ns = t;
    if (!now && t - teller->told_ns < MOVE_TICK_MS * IBX_NS_PER_MS)
        return;
    teller->told_ns = t;
    /* The first rate as soon as there is one, and then a steady one. */
    const bool first = !status->bytes_per_second && status->bytes > teller->rate_bytes;
    if (t - teller->rate_ns >= (first ? RATE_NS / 10 : RATE_NS)) {
        const double seconds = (double)(t - teller->rate_ns) / 1e9;
        if (teller->rate_ns && status->bytes >= teller->rate_bytes) {
            status->bytes_per_second =
                (uint64_t)((double)(status->bytes - teller->rate_bytes) / seconds);
            status->faults_per_second =
                (uint64_t)((double)(status->faults - teller->rate_faults) / seconds);
        }
        teller->rate_ns = t;
        teller->rate_bytes = status->bytes;
        teller->rate_faults = status->faults;
    }
    if (teller->tell->status)
        teller->tell->status(teller->tell->context, status);
}

void ibx_migration_say(const struct ibx_migrate_tell *tell, const char *format, ...)
{
    char line[IBX_ERROR_MAX + 128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    ibx_text_sanitize(line);
    if (tell->say)
        tell->say(tell->context, line);
}

/* ---------------------------------------------------------------- small things */

struct ibx_options ibx_migration_options(const struct ibx_options *options, const char *uri)
{
    struct ibx_options ours = *options, wishes = *options;
    struct ibx_uri parsed;
    if (uri && !ibx_uri_parse(uri, &parsed, NULL) && !ibx_uri_options(&parsed, &wishes, NULL))
        ours.timeout_ms = wishes.timeout_ms;
    if (!ibx_thread_may_spin())
        ours.spin_us = 0;
    if (ours.message < IBX_MIGRATE_MESSAGE)
        ours.message = IBX_MIGRATE_MESSAGE;
    return ours;
}

struct ibx_options ibx_migration_options_of_a_try(const struct ibx_options *options)
{
    struct ibx_options ours = *options;
    if (ours.timeout_ms > MOVE_TRY_MS)
        ours.timeout_ms = MOVE_TRY_MS;
    return ours;
}

int ibx_migration_refused(const char *where, const struct ibx_blockers *refusals,
                          struct ibx_error *err)
{
    size_t kept = refusals->count < IBX_PREFLIGHT_MAX ? refusals->count : IBX_PREFLIGHT_MAX;
    char all[IBX_ERROR_MAX] = "";
    size_t length = 0;
    for (size_t i = 0; i < kept && length < sizeof(all) - 1; i++)
        length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s", i ? "; and " : "",
                                   refusals->sentences[i]);
    return ibx_error_set(err, -EPERM, "%s: %s", where, all[0] ? all : "without a reason");
}

uint64_t ibx_migration_event_ns(json_t *event)
{
    json_int_t seconds = 0, micro = 0;
    struct timespec real;
    json_unpack(event, "{s:{s:I,s:I}}", "timestamp", "seconds", &seconds, "microseconds", &micro);
    clock_gettime(CLOCK_REALTIME, &real);
    int64_t age = ((int64_t)real.tv_sec - (int64_t)seconds) * 1000000000 + real.tv_nsec -
                  (int64_t)micro * 1000;
    uint64_t now = ibx_now_ns();
    return age > 0 && age < 10ll * 1000000000 ? now - (uint64_t)age : now;
}

bool ibx_migration_event_is(json_t *event, const char *name, const char *status)
{
    const char *is = json_string_value(json_object_get(event, "event"));
    const char *has = json_string_value(json_object_get(json_object_get(event, "data"), "status"));
    return is && !strcmp(is, name) && (!status || (has && !strcmp(has, status)));
}

static bool has_uuid(const char *uuid)
{
    return uuid[0] && strspn(uuid, "0-") != strlen(uuid);
}

int ibx_migration_no_other(const char *folder, const struct ibx_guest_ram *ram, const char *qmp,
                           bool source, struct ibx_error *err)
{
    struct ibx_journal *records;
    size_t count;
    char said[IBX_ERROR_MAX];
    int rc = ibx_journal_list(folder, &records, &count, err);
    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < count; i++) {
        const struct ibx_journal *r = &records[i];
        const bool same_process = r->pid == ram->pid && !strcmp(r->qmp, qmp) &&
                                  r->pid_started == ibx_process_started(ram->pid);
        const bool same_vm = has_uuid(ram->uuid) && !strcmp(r->uuid, ram->uuid);
        /* COMPLETE needs nothing of any QEMU; and what has run in one that ended runs there no
         * more. */
        const bool harmless = r->state == IBX_JOURNAL_COMPLETE ||
                              (!r->source && !same_process && ibx_journal_qemu_gone(r));
        if (ibx_journal_over(r) || harmless || r->source != source || (!same_process && !same_vm))
            continue;
        ibx_journal_say(r, said, sizeof(said));
        rc = ibx_error_set(
            err, -EBUSY,
            "an earlier move of this VM is not over: %s; see ib-migrate status, then "
            "ib-migrate recover%s",
            said, source ? " or rollback, or prune --unfinished when its QEMU has ended" : "");
    }
    free(records);
    return rc;
}

int ibx_migration_record_again(const char *folder, struct ibx_journal *record,
                               struct ibx_error *err)
{
    char said[IBX_ERROR_MAX];
    int rc = ibx_journal_reload(folder, record, err);
    if (rc || !ibx_journal_over(record))
        return rc;
    ibx_journal_say(record, said, sizeof(said));
    return ibx_error_set(err, -EALREADY, "this move is over meanwhile: %s", said);
}

void ibx_migration_record_describe(struct ibx_journal *record, const struct ibx_guest_ram *ram,
                                   const char *qmp, const char *uri,
                                   const struct ibx_options *transport)
{
    record->pid = ram->pid;
    record->pid_started = ibx_process_started(ram->pid);
    snprintf(record->uuid, sizeof(record->uuid), "%s", ram->uuid);
    snprintf(record->name, sizeof(record->name), "%s", ram->name);
    char *whole = realpath(qmp, NULL);
    snprintf(record->qmp, sizeof(record->qmp), "%s", whole ? whole : qmp);
    free(whole);
    snprintf(record->uri, sizeof(record->uri), "%s", uri);
    snprintf(record->key_file, sizeof(record->key_file), "%s", transport->key_file);
}

void ibx_migration_offer_links(struct ibx_migrate_hello *hello, unsigned wished)
{
    const unsigned links = wished ? wished : ibx_page_links_default();
    hello->links = (uint16_t)(links < IBX_MIGRATE_LINKS_MAX ? links : IBX_MIGRATE_LINKS_MAX);
    hello->links_least = wished ? hello->links : 1;
}

/* A fabric that pins memory has pinned this connection's messages. Where connections share what is
 * pinned, it is as if there were one. */
void ibx_migration_refuse_locked(const struct ibx_conn *conn, unsigned links, uint64_t bytes,
                                 struct ibx_blockers *refusals)
{
    const uint64_t pinned = ibx_locked_now();
    const struct ibx_caps *caps = ibx_conn_caps(conn);
    const uint64_t all = caps->shares ? bytes : links * bytes;
    if (pinned && !caps->register_free)
        ibx_preflight_locked(ibx_conn_path(conn)->provider, pinned + all, refusals);
}

/* ---------------------------------------------------------------- greeting */

struct greeting {
    struct ibx_migrate_answer *answer;
    bool heard;
    struct ibx_error *err;
};

static int hear_answer(void *context, const struct ibx_migrate_any *message)
{
    struct greeting *g = context;
    if (g->heard)
        return 0;
    if (message->type == IBX_MIGRATE_ABORT)
        return ibx_error_set(g->err, -ECONNABORTED, "the destination says: %s",
                             message->is.sentence);
    if (message->type != IBX_MIGRATE_ANSWER)
        return ibx_error_set(g->err, -EPROTO, "the destination answered HELLO with %s",
                             ibx_migrate_message_name(message->type));
    *g->answer = *message->is.answer;
    g->heard = true;
    return 0;
}

/* What comes right behind the answer is dropped: that is COMPLETE at most, and it is repeated. */
static int wait_for_answer(struct ibx_channel *control, struct greeting *g, unsigned timeout_ms)
{
    const uint64_t deadline = ibx_deadline_in_ms(timeout_ms);
    while (!g->heard) {
        int rc = ibx_channel_take(control, hear_answer, g, g->err);
        if (rc)
            return rc;
        if (g->heard)
            return 0;
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(g->err, -ETIMEDOUT, "the destination did not answer within %u ms",
                                 timeout_ms);
        ibx_wait(control->conn, ibx_ms_until(deadline));
    }
    return 0;
}

/* The transport knows of servers only. */
static void name_tool(uint8_t purpose, struct ibx_error *err)
{
    static const char server[] = "start the server there";
    char rest[IBX_ERROR_MAX], *at = err ? strstr(err->message, server) : NULL;
    const bool fresh = purpose == IBX_PURPOSE_MOVE || purpose == IBX_PURPOSE_CHECK;
    if (!at)
        return;
    snprintf(rest, sizeof(rest), "%s", at + strlen(server));
    snprintf(at, sizeof(err->message) - (size_t)(at - err->message),
             "start \"ib-migrate %s\" there%s", fresh ? "receive" : "recover", rest);
}

#define URI_BYTES 1024 /* more than one can be long */

/* What a URI asks for overrides the options of a connection, but here it is in them already. */
static void leave_out_timeout(const char *uri, char *out, size_t size)
{
    const char *at = strchr(uri, '?');
    size_t length = at ? (size_t)(at - uri) : strlen(uri);
    snprintf(out, size, "%.*s", (int)length, uri);
    char separator = '?';
    for (; at; at = strchr(at, '&')) {
        at++;
        if (!strncmp(at, "timeout_ms=", strlen("timeout_ms=")))
            continue;
        length = strlen(out);
        snprintf(out + length, size - length, "%c%.*s", separator, (int)strcspn(at, "&"), at);
        separator = '&';
    }
}

int ibx_migration_greet(const char *uri, const struct ibx_options *options,
                        const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                        struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    struct ibx_conn *conn;
    struct greeting g = {.answer = answer, .err = err};
    char plain[URI_BYTES];
    leave_out_timeout(uri, plain, sizeof(plain));
    int rc = ibx_connect(plain, options, &conn, err);
    if (rc) {
        name_tool(hello->purpose, err);
        return rc;
    }
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = hello};
    ibx_channel_init(control, conn);
    rc = ibx_channel_send(control, &message);
    if (rc)
        ibx_error_set(err, rc, "the greeting could not be sent: %s", strerror(-rc));
    else
        rc = wait_for_answer(control, &g, options->timeout_ms);
    if (rc)
        ibx_channel_fini(control);
    return rc;
}

int ibx_migration_send_map(struct ibx_channel *control, const struct ibx_page_map *map,
                           uint32_t regions, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_MAP};
    size_t room = ibx_channel_room(control), length;
    uint64_t from = 0;
    int rc = 0;
    while (!rc && (length = ibx_page_map_give(map, &from, bytes, room)) > 0) {
        message.is.map.bytes = bytes;
        message.is.map.length = length;
        rc = ibx_channel_send(control, &message);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_MAP_END};
    message.is.map_end = (struct ibx_migrate_map_end){
        .pages = map->pages, .data_pages = map->data_pages, .regions = regions};
    ibx_page_map_hash(map, message.is.map_end.hash);
    if (!rc)
        rc = ibx_channel_send(control, &message);
    return rc ? ibx_error_set(err, rc, "the page map could not be sent: %s", strerror(-rc)) : 0;
}

/* ---------------------------------------------------------------- from outside */

/* About a move, by its record alone. */
static int ask(const struct ibx_journal *record, enum ibx_migrate_purpose purpose,
               const struct ibx_options *options, struct ibx_migrate_answer *answer,
               struct ibx_error *err)
{
    struct ibx_channel control;
    struct ibx_migrate_hello *hello = calloc(1, sizeof(*hello));
    if (!hello)
        return ibx_error_set(err, -ENOMEM, "no memory for a greeting");
    hello->purpose = (uint8_t)purpose;
    hello->epoch = record->epoch;
    memcpy(hello->id, record->id, sizeof(hello->id));
    int rc = ibx_migration_greet(record->uri, options, hello, &control, answer, err);
    free(hello);
    if (!rc)
        ibx_channel_fini(&control);
    return rc;
}

int ibx_migrate_query(const struct ibx_journal *record, const struct ibx_options *transport,
                      struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_options(transport, record->uri);
    return ask(record, IBX_PURPOSE_QUERY, &options, answer, err);
}

int ibx_migrate_confirm(const struct ibx_journal *record, const struct ibx_options *transport,
                        struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_options(transport, record->uri);
    return ibx_migration_confirm(record, &options, err);
}

int ibx_migration_confirm(const struct ibx_journal *record, const struct ibx_options *options,
                          struct ibx_error *err)
{
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return ibx_error_set(err, -ENOMEM, "no memory for an answer");
    int rc = ask(record, IBX_PURPOSE_CONFIRM, options, answer, err);
    if (!rc && answer->standing == IBX_STANDING_NONE)
        rc = ibx_error_set(err, -ENOENT, "who answers at %s (%s) knows nothing of this move",
                           record->uri, answer->host);
    else if (!rc && (!answer->accepted || answer->standing != IBX_STANDING_COMPLETE))
        rc = ibx_error_set(err, -EPROTO, "the destination (%s) says: %s", answer->host,
                           answer->count ? answer->sentences[0]
                                         : ibx_migrate_standing_name(answer->standing));
    free(answer);
    return rc;
}

int ibx_migrate_rollback(const char *folder, struct ibx_journal *record,
                         const struct ibx_options *transport, struct ibx_error *err)
{
    struct ibx_migrate_answer answer;
    struct ibx_qmp *qmp;
    struct ibx_error silent = {0};
    struct ibx_source_vm vm = {.was_running = record->was_running, .touched = true};
    uint64_t deadline;
    int lock_fd;
    if (!record->source || ibx_journal_over(record))
        return ibx_error_set(err, -EINVAL, "there is nothing to roll back: this move is %s",
                             ibx_journal_state_name(record->state));
    int rc = ibx_migrate_query(record, transport, &answer, &silent);
    if (!rc &&
        (answer.standing == IBX_STANDING_RUNNING || answer.standing == IBX_STANDING_COMPLETE))
        return ibx_error_set(err, -EBUSY,
                             "the destination (%s) answers that the VM runs there: a second one "
                             "here would destroy its disks",
                             answer.host);
    /* The guardian of a tool that was just killed holds it until it has ended. */
    deadline = ibx_deadline_in_ms(MOVE_LOCK_MS);
    while ((rc = ibx_journal_lock(folder, record, &lock_fd, err)) == -EBUSY &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, MOVE_LOCK_LOOK_MS);
    if (rc)
        return rc;
    /* It may have gone on while the operator was asked. */
    struct ibx_journal back = *record;
    rc = ibx_migration_record_again(folder, &back, err);
    if (!rc && (back.state != record->state || back.epoch != record->epoch))
        rc = ibx_error_set(err, -EBUSY, "the move has gone on meanwhile: see ib-migrate status");
    deadline = ibx_deadline_in_ms(MOVE_QMP_MS); /* the query has taken its own time */
    if (!rc && !(rc = ibx_qmp_connect(record->qmp, deadline, &qmp, err))) {
        /* Only what has been done goes on record: QEMU refuses when the disks are in use by one
         * that runs there after all, and recover is needed then. */
        rc = ibx_vm_stay(qmp, &vm, deadline, err);
        back.state = IBX_JOURNAL_ROLLED_BACK;
        back.epoch++;
        if (!rc)
            rc = ibx_journal_write(folder, &back, err);
        if (!rc)
            *record = back;
        ibx_qmp_close(qmp);
    }
    close(lock_fd);
    return rc;
}

static int check_there(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram, const char *uri,
                       const struct ibx_options *transport, unsigned links,
                       struct ibx_blockers *refusals, struct ibx_error *err)
{
    uint64_t bytes = 0;
    struct ibx_channel control;
    struct ibx_options options = ibx_migration_options(transport, uri);
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    struct ibx_migrate_hello *hello = calloc(1, sizeof(*hello));
    int rc = answer && hello ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a greeting");
    if (!rc) {
        hello->purpose = IBX_PURPOSE_CHECK;
        hello->epoch = 1;
        ibx_migration_offer_links(hello, links);
        ibx_migrate_hello_describe(hello, ram);
        rc = ibx_hardware_describe(qmp, hello->hardware, ibx_deadline_in_ms(MOVE_QMP_MS), err);
    }
    if (!rc)
        rc = ibx_preflight_locked_bytes(ram, &bytes, err);
    if (!rc)
        rc = ibx_migration_greet(uri, &options, hello, &control, answer, err);
    if (!rc) {
        ibx_migration_refuse_locked(control.conn, answer->links ? answer->links : hello->links,
                                    bytes, refusals);
        for (unsigned i = 0; i < answer->count; i++)
            ibx_preflight(refusals, "%s: %s", answer->host, answer->sentences[i]);
        if (!answer->accepted && !answer->count)
            ibx_preflight(refusals, "%s refuses without a reason", answer->host);
        ibx_channel_fini(&control);
    }
    free(hello);
    free(answer);
    return rc;
}

int ibx_migrate_check(const char *qmp_path, bool source, const char *uri,
                      const struct ibx_options *transport, unsigned links,
                      struct ibx_blockers *refusals, struct ibx_error *err)
{
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    const uint64_t deadline = ibx_deadline_in_ms(MOVE_QMP_MS);
    int rc = ibx_qmp_connect(qmp_path, deadline, &qmp, err);
    if (rc)
        return rc;
    rc = ibx_guest_ram_find(qmp, 0, !source, &ram, deadline, err);
    if (!rc) {
        rc = ibx_preflight_side(qmp, &ram, source ? IBX_MIGRATE_SOURCE : IBX_MIGRATE_DESTINATION,
                                refusals, deadline, err);
        if (!rc && source && uri)
            rc = check_there(qmp, &ram, uri, transport, links, refusals, err);
        ibx_guest_ram_fini(&ram);
    }
    ibx_qmp_close(qmp);
    return rc;
}
