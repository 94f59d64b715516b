/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Connections to the destination: their options, HELLO and its answer. */
#include "migrate/common/common.h"

#include "common/clock.h"
#include "common/locked.h"
#include "common/thread.h"
#include "migrate/pages/pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes the options that say who may connect and how. A record keeps them, because a listener's URI
 * has no query. */
static void take_wishes(struct ibx_options *ours, const struct ibx_options *wishes)
{
    memcpy(ours->key_file, wishes->key_file, sizeof(ours->key_file));
    memcpy(ours->name, wishes->name, sizeof(ours->name));
    memcpy(ours->allow, wishes->allow, sizeof(ours->allow));
    ours->encryption = wishes->encryption;
    ours->insecure = wishes->insecure;
    ours->timeout_ms = wishes->timeout_ms;
}

struct ibx_options ibx_migration_options(const struct ibx_options *options, const char *uri)
{
    struct ibx_options ours = *options, wishes = *options;
    struct ibx_uri parsed;
    if (uri && !ibx_uri_parse(uri, &parsed, NULL) && !ibx_uri_options(&parsed, &wishes, NULL))
        take_wishes(&ours, &wishes);
    if (!ibx_thread_may_spin())
        ours.spin_us = 0;
    if (ours.message < IBX_MIGRATE_MESSAGE)
        ours.message = IBX_MIGRATE_MESSAGE;
    return ours;
}

struct ibx_options ibx_migration_retry_options(const struct ibx_options *options)
{
    struct ibx_options ours = *options;
    if (ours.timeout_ms > MIGRATION_TRY_MS)
        ours.timeout_ms = MIGRATION_TRY_MS;
    return ours;
}

int ibx_migration_refused(const char *where, const struct ibx_blockers *blockers,
                          struct ibx_error *err)
{
    static const char and[] = "; and ", longest[] = "; and 4294967295 more reasons";
    const size_t kept = blockers->count < IBX_BLOCKERS_MAX ? blockers->count : IBX_BLOCKERS_MAX;
    char all[IBX_ERROR_MAX] = "", rest[sizeof(longest)] = "";
    const size_t room = sizeof(all) - sizeof(longest) - strlen(where) - strlen(": ");
    size_t length = 0, told = 0;
    for (; told < kept; told++) {
        const size_t end = length + strlen(blockers->reasons[told]) + (told ? strlen(and) : 0);
        if (told && end > room)
            break;
        snprintf(all + length, room + 1 - length, "%s%s", told ? and : "", blockers->reasons[told]);
        length = end < room ? end : room;
    }
    if (told < blockers->count)
        snprintf(rest, sizeof(rest), "; and %u more reason%s", (unsigned)(blockers->count - told),
                 blockers->count - told > 1 ? "s" : "");
    return ibx_error_set(err, -EPERM, "%s: %s%s", where, all[0] ? all : "without a reason", rest);
}

void ibx_migration_offer_links(struct ibx_migrate_hello *hello, unsigned wished)
{
    const unsigned links = wished ? wished : ibx_page_links_default();
    hello->links = (uint16_t)(links < IBX_MIGRATE_LINKS_MAX ? links : IBX_MIGRATE_LINKS_MAX);
    hello->links_least = wished ? hello->links : 1;
}

int ibx_migration_describe_vm(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                              struct ibx_migrate_hello *hello, struct ibx_error *err)
{
    json_t *description;
    size_t length;
    int rc = ibx_describe(qmp, ram, &description, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (rc)
        return rc;
    free(hello->description);
    hello->description = NULL;
    rc = ibx_description_write(description, &hello->description, &length, err);
    hello->description_length = rc ? 0 : (uint32_t)length;
    json_decref(description);
    return rc;
}

/* If nothing is locked now, the fabric does not pin memory: it would have pinned the message
 * buffers of `conn`. */
void ibx_migration_check_locked(const struct ibx_conn *conn, unsigned links, uint64_t bytes,
                                struct ibx_blockers *blockers)
{
    const uint64_t pinned = ibx_locked_now();
    const struct ibx_caps *caps = ibx_conn_caps(conn);
    const uint64_t all = caps->shares ? bytes : links * bytes;
    if (pinned && !caps->register_free)
        ibx_preflight_locked(ibx_conn_path(conn)->provider, pinned + all, blockers);
}

void ibx_migration_warn_plain(const struct ibx_migrate_observer *observer,
                              const struct ibx_options *options, const struct ibx_conn *conn)
{
    const struct ibx_path *path = ibx_conn_path(conn);
    if (path->remote && !path->encrypted && options->encryption == IBX_ENCRYPTION_OFF)
        ibx_migration_notify(
            observer,
            "guest RAM is not encrypted between this host and %s, because of --encryption off: "
            "--encryption auto, with a key, encrypts it over tcp",
            path->peer);
}

#define PAUSED_MS 2500 /* for a destination to have QEMU pause the VM, which takes 2 s at most */
#define STATE_PAD (512u << 10) /* bytes; mostly more than the page map and the device state */

struct greeting {
    struct ibx_migrate_answer *answer;
    struct ibx_error *err;
};

/* -EISCONN: the ANSWER has come. Messages after it stay for the next call that takes. */
static int on_answer(void *context, const struct ibx_migrate_any *message)
{
    struct greeting *g = context;
    if (message->type == IBX_MIGRATE_ABORT) /* the peer is of another version, and cannot answer */
        return ibx_error_set(g->err, -EPROTOTYPE, "the destination reports: %s",
                             message->is.reason);
    if (message->type != IBX_MIGRATE_ANSWER)
        return ibx_error_set(g->err, -EPROTO, "the destination answered HELLO with %s",
                             ibx_migrate_message_name(message->type));
    *g->answer = *message->is.answer;
    return -EISCONN;
}

/* Where the transport says to start the server, names the command of ib-migrate to start. */
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

#define URI_BYTES 1024 /* more than a URI can have */

/* Copies the URI without its timeout_ms, which would override that of the options: these have it
 * already, or a shorter one. */
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

static int send_description(struct ibx_channel *control, const struct ibx_migrate_hello *hello,
                            struct ibx_error *err)
{
    const size_t room = ibx_channel_room(control);
    int rc = 0;
    for (size_t at = 0; !rc && at < hello->description_length; at += room) {
        const size_t left = hello->description_length - at;
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_DESCRIPTION};
        message.is.description.bytes = (const uint8_t *)hello->description + at;
        message.is.description.length = left < room ? left : room;
        rc = ibx_channel_send(control, &message, err);
    }
    return rc;
}

int ibx_migration_connect(const char *uri, const struct ibx_options *options, uint8_t purpose,
                          struct ibx_conn **conn, struct ibx_error *err)
{
    struct ibx_options own = *options;
    char plain[URI_BYTES];
    leave_out_timeout(uri, plain, sizeof(plain));
    snprintf(own.purpose, sizeof(own.purpose), IBX_MIGRATE_PURPOSE);
    own.lanes = 1;
    own.messages_only = true; /* each further socket costs a round trip and a handshake */
    struct ibx_conn *made;
    int rc = ibx_connect(plain, &own, &made, err);
    if (rc) {
        name_tool(purpose, err);
        return rc;
    }
    rc = ibx_channel_check_room(made, err);
    if (rc) {
        ibx_close(made);
        return rc;
    }
    ibx_receive_ahead(made);
    *conn = made;
    return 0;
}

/* The peer has authenticated and closed: it is ending, or of a version that does not yet send that
 * versions differ. */
static int unanswered(struct ibx_error *err)
{
    const struct ibx_error why = err ? *err : (struct ibx_error){0};
    return ibx_error_set(err, -ENODATA,
                         "%s, before it answered: what ib-migrate prints there says why (if it is "
                         "of an earlier release, install the same ibx on both hosts)",
                         why.message);
}

int ibx_migration_greet(const char *uri, const struct ibx_options *options,
                        const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                        struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    struct ibx_conn *conn;
    int rc = ibx_migration_connect(uri, options, hello->purpose, &conn, err);
    return rc ? rc : ibx_migration_say_hello(conn, options, hello, control, answer, err);
}

/* HELLO is the first message longer than a packet: a network that loses long packets may have
 * passed all before it. */
static int silent(const struct ibx_conn *conn, unsigned timeout_ms, struct ibx_error *err)
{
    const struct ibx_path *path = ibx_conn_path(conn);
    const bool cuts = path->remote && !strcmp(path->provider, "tcp");
    return ibx_error_set(err, -ETIMEDOUT,
                         "the destination did not answer within %u ms: see whether its ib-migrate "
                         "or its QEMU is stopped%s, or give it more time (--set timeout_ms=)",
                         timeout_ms,
                         cuts ? ", or whether the network loses long packets (with "
                                "net.ipv4.tcp_mtu_probing at 1 on both hosts it does no harm)"
                              : "");
}

int ibx_migration_say_hello(struct ibx_conn *conn, const struct ibx_options *options,
                            const struct ibx_migrate_hello *hello, struct ibx_channel *control,
                            struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    struct greeting g = {.answer = answer, .err = err};
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_HELLO, .is.hello = hello};
    ibx_channel_init(control, conn);
    int rc = ibx_channel_send(control, &message, err);
    if (!rc)
        rc = send_description(control, hello, err);
    /* Padding opens TCP's window: what the stopped VM will wait for then takes one round trip. */
    if (!rc && hello->purpose == IBX_PURPOSE_MOVE && ibx_path_is_far(ibx_conn_path(conn)))
        ibx_pad(conn, STATE_PAD);
    if (!rc) {
        rc = ibx_channel_take_until(control, on_answer, &g, ibx_deadline_in_ms(options->timeout_ms),
                                    err);
        if (!rc)
            rc = silent(conn, options->timeout_ms, err);
    }
    if (rc == -EISCONN)
        return 0;
    ibx_channel_fini(control);
    return rc == -ECONNRESET ? unanswered(err) : rc;
}

int ibx_migration_ask(const struct ibx_record *record, enum ibx_migrate_purpose purpose,
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
    if (rc)
        return rc;
    if (purpose == IBX_PURPOSE_CONFIRM || answer->state == IBX_ANSWER_WAITING ||
        answer->state == IBX_ANSWER_GIVEN_UP) /* by these rollback would say that it never ran */
        rc = ibx_migration_check_key(record, control.conn, err);
    ibx_channel_fini(&control);
    return rc;
}

int ibx_migration_confirm(const struct ibx_record *record, const struct ibx_options *options,
                          struct ibx_error *err)
{
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    if (!answer)
        return ibx_error_set(err, -ENOMEM, "no memory for an answer");
    int rc = ibx_migration_ask(record, IBX_PURPOSE_CONFIRM, options, answer, err);
    if (!rc && answer->state == IBX_ANSWER_NONE)
        rc = ibx_error_set(err, -ENOENT, "the tool at %s (%s) knows nothing of this migration",
                           record->uri, answer->host);
    else if (!rc && (!answer->accepted ||
                     (answer->state != IBX_ANSWER_COMPLETE && answer->state != IBX_ANSWER_ENDED)))
        rc = ibx_error_set(err, -EPROTO, "the destination (%s) reports: %s", answer->host,
                           answer->count ? answer->reasons[0]
                                         : ibx_answer_state_name(answer->state));
    free(answer);
    return rc;
}

/* Sends HELLO like a source that connects again (RESUME): a destination that waits for COMMIT
 * accepts an ABORT from no other. */
static int greet_to_disown(const struct ibx_record *record, const struct ibx_options *options,
                           bool verify, struct ibx_channel *control,
                           struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    struct ibx_guest_ram ram;
    struct ibx_migrate_hello *hello = calloc(1, sizeof(*hello));
    int rc = hello ? ibx_journal_recall_ram(record, &ram, err)
                   : ibx_error_set(err, -ENOMEM, "no memory for a greeting");
    if (rc) {
        free(hello);
        return rc;
    }
    hello->purpose = IBX_PURPOSE_RESUME;
    hello->epoch = record->epoch;
    hello->verify = verify;
    memcpy(hello->id, record->id, sizeof(hello->id));
    hello->links = IBX_MIGRATE_LINKS_MAX; /* the destination has chosen before */
    hello->links_least = 1;
    ibx_migrate_hello_describe(hello, &ram);
    rc = ibx_migration_greet(record->uri, options, hello, control, answer, err);
    ibx_guest_ram_fini(&ram);
    free(hello);
    return rc;
}

/* A destination that has been told BROKEN answers by it when the VM is paused, or with why it is
 * not. */
static int on_paused(void *context, const struct ibx_migrate_any *message)
{
    static const char not_paused[] = IBX_MIGRATE_NOT_PAUSED;
    struct ibx_error *err = context;
    if (message->type != IBX_MIGRATE_BROKEN)
        return 0;
    return strncmp(message->is.reason, not_paused, sizeof(not_paused) - 1) != 0
               ? -EISCONN
               : ibx_error_set(err, -EBUSY, "%s", message->is.reason + sizeof(not_paused) - 1);
}

static int have_paused(struct ibx_channel *control, const char *why, struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_BROKEN};
    memcpy(message.is.reason, why, strnlen(why, sizeof(message.is.reason) - 1));
    int rc = ibx_channel_send(control, &message, err);
    if (!rc)
        rc = ibx_channel_take_until(control, on_paused, err, ibx_deadline_in_ms(PAUSED_MS), err);
    return rc == -EISCONN ? 0
           : rc           ? rc
                          : ibx_error_set(err, -ETIMEDOUT, "it does not say that it has paused it");
}

/* A record that is over no longer says whether pages were verified, and the destination refuses a
 * source that differs in that. */
static int greet_either_way(const struct ibx_record *record, const struct ibx_options *options,
                            struct ibx_channel *control, struct ibx_migrate_answer *answer,
                            struct ibx_error *err)
{
    int rc = greet_to_disown(record, options, record->verify, control, answer, err);
    const bool again =
        !rc && !answer->accepted && ibx_journal_over(record) &&
        (answer->state == IBX_ANSWER_RUNNING || answer->state == IBX_ANSWER_COMPLETE);
    if (!again)
        return rc;
    ibx_channel_fini(control);
    return greet_to_disown(record, options, !record->verify, control, answer, err);
}

/* `ran`: it may have the VM, and is to pause it. */
static int disown(const struct ibx_record *record, const struct ibx_options *transport,
                  const char *why, bool ran, enum ibx_answer_state *there, struct ibx_error *err)
{
    const struct ibx_options options = ibx_migration_options(transport, record->uri);
    struct ibx_channel control;
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    int rc = answer ? greet_either_way(record, &options, &control, answer, err)
                    : ibx_error_set(err, -ENOMEM, "no memory for an answer");
    if (!rc && (rc = ibx_migration_check_key(record, control.conn, err)))
        ibx_channel_fini(&control);
    if (rc) {
        free(answer);
        return rc;
    }
    *there = (enum ibx_answer_state)answer->state;
    if (answer->accepted && answer->state == IBX_ANSWER_WAITING)
        rc = ibx_channel_send_abort(&control, why);
    else if (answer->accepted && ran)
        rc = have_paused(&control, why, err);
    else if (answer->state != IBX_ANSWER_GIVEN_UP)
        rc = ibx_error_set(err, -EPROTO, "it answers: %s",
                           answer->count ? answer->reasons[0]
                                         : ibx_answer_state_name(answer->state));
    if (!rc)
        ibx_channel_linger(&control, ibx_deadline_in_ms(options.timeout_ms));
    ibx_channel_fini(&control);
    free(answer);
    return rc;
}

int ibx_migration_disown(const struct ibx_record *record, const struct ibx_options *transport,
                         const char *why, struct ibx_error *err)
{
    enum ibx_answer_state there;
    return disown(record, transport, why, false, &there, err);
}

int ibx_migration_take_from(const struct ibx_record *record, const struct ibx_options *transport,
                            const char *why, enum ibx_answer_state *there, struct ibx_error *err)
{
    return disown(record, transport, why, true, there, err);
}
