/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GUEST_MS 5000 /* for somebody who asked, to take the answer and go */

enum ibx_answer_state ibx_destination_standing(const struct destination *d)
{
    switch (d->state) {
    case DESTINATION_WAITING:
        return IBX_ANSWER_WAITING;
    case DESTINATION_RESUMING:
    case DESTINATION_FILLING:
        return IBX_ANSWER_RUNNING;
    case DESTINATION_COMPLETE:
    case DESTINATION_DONE:
        return IBX_ANSWER_COMPLETE;
    case DESTINATION_GIVEN_UP:
        return IBX_ANSWER_GIVEN_UP;
    default:
        return IBX_ANSWER_NONE;
    }
}

/* ---------------------------------------------------------------- answers */

static int send_answer(struct ibx_channel *control, bool accepted, enum ibx_answer_state standing,
                       uint16_t links, const struct ibx_blockers *refusals)
{
    struct ibx_migrate_answer *answer = calloc(1, sizeof(*answer));
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_ANSWER, .is.answer = answer};
    if (!answer)
        return -ENOMEM;
    answer->accepted = accepted;
    answer->state = (uint8_t)standing;
    answer->links = links;
    ibx_migrate_host(answer->host, sizeof(answer->host));
    for (size_t i = 0; refusals && i < refusals->count && answer->count < IBX_MIGRATE_REASONS_MAX;
         i++)
        memcpy(answer->reasons[answer->count++], refusals->reasons[i], IBX_ERROR_MAX);
    int rc = ibx_channel_send(control, &message);
    free(answer);
    return rc;
}

static void guest_end(struct destination *d, unsigned i)
{
    ibx_channel_fini(&d->guests[i]);
    d->guest_since[i] = 0;
}

/* An answer and nothing more: whoever asked takes it and goes. */
static void dismiss(struct destination *d, struct ibx_conn *conn, bool accepted,
                    enum ibx_answer_state standing, uint16_t links,
                    const struct ibx_blockers *refusals)
{
    unsigned at = 0;
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++) {
        if (!d->guests[i].conn) {
            at = i;
            break;
        }
        if (d->guest_since[i] < d->guest_since[at])
            at = i;
    }
    guest_end(d, at);
    ibx_channel_init(&d->guests[at], conn);
    d->guest_since[at] = ibx_now_ns();
    if (send_answer(&d->guests[at], accepted, standing, links, refusals))
        guest_end(d, at);
}

static int not_a_word(void *context, const struct ibx_migrate_any *message)
{
    (void)context, (void)message;
    return -EPROTO;
}

void ibx_destination_link_tend(struct destination *d)
{
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++)
        if (d->guests[i].conn && (ibx_channel_take(&d->guests[i], not_a_word, NULL, NULL) ||
                                  ibx_now_ns() - d->guest_since[i] > GUEST_MS * IBX_NS_PER_MS))
            guest_end(d, i);
}

bool ibx_destination_link_alone(const struct destination *d)
{
    for (unsigned i = 0; i < DESTINATION_GUESTS; i++)
        if (d->guests[i].conn)
            return false;
    return true;
}

static void dismiss_because(struct destination *d, struct ibx_conn *conn,
                            enum ibx_answer_state standing, const char *why)
{
    struct ibx_blockers refusals = {0};
    ibx_blockers_add(&refusals, "%s", why);
    dismiss(d, conn, false, standing, 0, &refusals);
}

/* ---------------------------------------------------------------- HELLO */

/* Page numbers and regions count through the blocks in their order. */
static void refuse_order(const struct destination *d, const struct ibx_migrate_hello *hello,
                         struct ibx_blockers *refusals)
{
    for (unsigned i = 0; i < hello->block_count && i < d->ram.count; i++) {
        if (!strcmp(hello->blocks[i].id, d->ram.blocks[i].id))
            continue;
        ibx_blockers_add(refusals,
                         "the source names guest RAM %s where %s is expected: its ib-migrate "
                         "is not like this one",
                         hello->blocks[i].id, d->ram.blocks[i].id);
        return;
    }
}

static int refuse_hardware(const struct destination *d, const struct ibx_migrate_hello *hello,
                           struct ibx_blockers *refusals, struct ibx_error *err)
{
    const struct ibx_qmp_version *from = &hello->version, *to = &d->ram.version;
    char *own = malloc(IBX_HARDWARE_MAX);
    if (!own)
        return ibx_error_set(err, -ENOMEM, "no memory for a description of the VM");
    int rc = ibx_hardware_describe(d->qmp, own, ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    if (!rc)
        ibx_preflight_hardware(hello->hardware, own,
                               from->major == to->major && from->minor == to->minor, refusals);
    free(own);
    return rc;
}

/* All reasons against taking this VM; looked for anew, since QEMU may have changed meanwhile. */
static int refusals_for(struct destination *d, const struct ibx_migrate_hello *hello,
                        struct ibx_blockers *refusals, struct ibx_error *err)
{
    struct ibx_guest_ram theirs;
    int rc = ibx_migrate_hello_ram(hello, &theirs);
    if (rc)
        return ibx_error_set(err, rc, "no memory for a description of the VM");
    rc = ibx_preflight_side(d->qmp, &d->ram, IBX_MIGRATE_DESTINATION, refusals,
                            ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
    ibx_preflight_pair(&theirs, &d->ram, refusals);
    if (!refusals->count)
        refuse_order(d, hello, refusals);
    /* Of another machine everything is different. */
    if (!rc && !strcmp(theirs.machine, d->ram.machine))
        rc = refuse_hardware(d, hello, refusals, err);
    ibx_guest_ram_fini(&theirs);
    return rc;
}

/* As it calls itself, and where it is: not from which port, which is another one each time. */
static void name_of(const struct ibx_connection_request *knock, char *out, size_t size)
{
    const char *host = knock->first.is.hello->host, *from = ibx_conn_path(knock->conn)->peer;
    const char *colon = strrchr(from, ':');
    const bool port = colon && colon[1] && strspn(colon + 1, "0123456789") == strlen(colon + 1);
    const int length = (int)(port ? colon - from : (ptrdiff_t)strlen(from));
    snprintf(out, size, "%.64s%s%.*s%s", host, *host ? " (" : "", length < 55 ? length : 55, from,
             *host ? ")" : "");
}

static bool same_move(const struct destination *d, const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    return d->state != DESTINATION_LISTENING &&
           !memcmp(d->status.record.id, id, IBX_MIGRATE_ID_BYTES);
}

/* As many as this machine is good for, within what is offered; or those that the engine has. */
static uint16_t links_of(const struct destination *d, const struct ibx_migrate_hello *hello)
{
    const unsigned links = d->engine ? d->hello.links : ibx_page_links_default();
    const unsigned most = links < hello->links ? links : hello->links;
    return most > hello->links_least ? (uint16_t)most : hello->links_least;
}

static void accept_move(struct destination *d, struct ibx_connection_request *knock)
{
    const struct ibx_migrate_hello *hello = knock->first.is.hello;
    struct ibx_journal *record = &d->status.record;
    d->hello = *hello;
    d->hello.links = links_of(d, hello);
    memcpy(record->id, hello->id, sizeof(record->id));
    record->epoch = hello->epoch;
    name_of(knock, record->peer, sizeof(record->peer));
    if (!record->name[0])
        memcpy(record->name, hello->name, sizeof(record->name));
    ibx_channel_init(&d->control, knock->conn);
    d->linked = true;
    d->status.began_ns = ibx_now_ns();
    ibx_destination_move(d, DESTINATION_JOINING);
    send_answer(&d->control, true, IBX_ANSWER_NONE, d->hello.links, NULL);
}

static int heed_move(struct destination *d, struct ibx_connection_request *knock,
                     struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = knock->first.is.hello;
    struct ibx_blockers refusals = {0};
    char peer[sizeof(d->status.record.peer)];
    name_of(knock, peer, sizeof(peer));
    if (d->state != DESTINATION_LISTENING) {
        dismiss_because(d, knock->conn, IBX_ANSWER_NONE,
                        d->state == DESTINATION_GIVEN_UP ? "a move has just failed here"
                                                         : "another VM is being moved here");
        return 0;
    }
    int rc = refusals_for(d, hello, &refusals, err);
    if (rc) {
        dismiss_because(d, knock->conn, IBX_ANSWER_NONE, err->message);
        return rc;
    }
    if (d->minor)
        ibx_migration_check_locked(knock->conn, links_of(d, hello), d->ram.bytes, &refusals);
    if (refusals.count)
        ibx_migration_notify(&d->options->observer, "refused %s from %s: %s",
                             hello->name[0] ? hello->name : "a VM", peer, refusals.reasons[0]);
    if (hello->purpose == IBX_PURPOSE_CHECK || refusals.count)
        dismiss(d, knock->conn, !refusals.count, IBX_ANSWER_NONE, links_of(d, hello), &refusals);
    else
        accept_move(d, knock);
    return 0;
}

static void resume_link(struct destination *d, struct ibx_connection_request *knock)
{
    const struct ibx_migrate_hello *hello = knock->first.is.hello;
    d->hello.links = links_of(d, hello);
    d->status.record.epoch = hello->epoch;
    ibx_channel_init(&d->control, knock->conn);
    ibx_page_map_restart(&d->map);
    d->map_ended = false;
    d->joined = 0;
    d->linked = true;
    d->status.reconnects++;
    name_of(knock, d->status.record.peer, sizeof(d->status.record.peer));
    ibx_migration_notify(&d->options->observer, "the source is back: %s", d->status.record.peer);
    send_answer(&d->control, true, ibx_destination_standing(d), d->hello.links, NULL);
}

/* The engine needs as many links as it has workers. */
static const char *against_resume(const struct destination *d,
                                  const struct ibx_migrate_hello *hello)
{
    if (!same_move(d, hello->id))
        return "this destination knows nothing of that move";
    if (d->state == DESTINATION_GIVEN_UP)
        return d->status.message[0] ? d->status.message : "the move was given up";
    if (hello->epoch <= d->status.record.epoch)
        return "a newer source has been here: this one is out of date";
    if (d->engine && links_of(d, hello) != d->hello.links)
        return "another number of page connections than before";
    if (d->state < DESTINATION_WAITING)
        return "the move was lost before everything was here: begin anew";
    return NULL;
}

static void heed_resume(struct destination *d, struct ibx_connection_request *knock)
{
    const char *why = against_resume(d, knock->first.is.hello);
    if (why) {
        d->told |= d->state == DESTINATION_GIVEN_UP && same_move(d, knock->first.is.hello->id);
        dismiss_because(d, knock->conn,
                        same_move(d, knock->first.is.hello->id) ? ibx_destination_standing(d)
                                                                : IBX_ANSWER_NONE,
                        why);
        return;
    }
    /* The source noticed the loss before this side did. */
    if (d->linked)
        ibx_destination_unlink(d, -ECONNRESET, "the source connected again");
    if (d->resume.conn)
        ibx_close(d->resume.conn);
    ibx_migrate_message_free(&d->resume.first);
    d->resume = *knock;
    knock->first.is.hello = NULL; /* it is d->resume's now */
}

/* A source that has this on record needs nothing more of this side, and keeps nothing for it. */
static void heed_confirm(struct destination *d, struct ibx_connection_request *knock)
{
    const struct ibx_migrate_hello *hello = knock->first.is.hello;
    if (!same_move(d, hello->id)) {
        dismiss(d, knock->conn, true, IBX_ANSWER_NONE, 0, NULL);
    } else if (d->state != DESTINATION_COMPLETE || hello->epoch < d->status.record.epoch) {
        dismiss_because(d, knock->conn, ibx_destination_standing(d),
                        "not all pages are here, as far as this source can know");
    } else {
        d->confirmed = true;
        dismiss(d, knock->conn, true, IBX_ANSWER_COMPLETE, 0, NULL);
    }
}

static int heed_hello(struct destination *d, struct ibx_connection_request *knock,
                      struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = knock->first.is.hello;
    switch (hello->purpose) {
    case IBX_PURPOSE_MOVE:
    case IBX_PURPOSE_CHECK:
        return heed_move(d, knock, err);
    case IBX_PURPOSE_RESUME:
        heed_resume(d, knock);
        return 0;
    case IBX_PURPOSE_CONFIRM:
        heed_confirm(d, knock);
        return 0;
    default:
        /* Only rollback asks, and what it hears has to stay true: the word of a source that has
         * died may still be under way. */
        if (d->state == DESTINATION_WAITING && same_move(d, hello->id))
            ibx_destination_unlink(d, -ECONNRESET, "ib-migrate rollback asks for the VM");
        dismiss(d, knock->conn, true,
                same_move(d, hello->id) ? ibx_destination_standing(d) : IBX_ANSWER_NONE, 0, NULL);
        return 0;
    }
}

/* ---------------------------------------------------------------- JOIN */

static int heed_join(struct destination *d, struct ibx_connection_request *knock,
                     struct ibx_error *err)
{
    const struct ibx_migrate_join *join = &knock->first.is.join;
    if (!d->linked || !same_move(d, join->id) || join->epoch != d->status.record.epoch ||
        join->link >= d->hello.links || d->sources[join->link]) {
        ibx_log(IBX_LOG_WARN, "a page connection from %s belongs to no move here",
                ibx_conn_path(knock->conn)->peer);
        ibx_close(knock->conn);
        return 0;
    }
    int rc = ibx_page_reader_create(knock->conn, d->hello.blocks, d->hello.block_count,
                                    &d->sources[join->link], err);
    if (rc) {
        ibx_close(knock->conn);
        return rc;
    }
    d->heard++;
    if (!d->joined++)
        memcpy(d->status.path, ibx_page_reader_path(d->sources[join->link])->description,
               sizeof(d->status.path));
    return 0;
}

int ibx_destination_link_serve(struct destination *d, struct ibx_error *err)
{
    struct ibx_connection_request knock;
    int rc = 0;
    if (d->resume.conn && !d->linked && !d->stopping) {
        struct ibx_connection_request resume = d->resume;
        d->resume = (struct ibx_connection_request){.conn = NULL};
        if (d->state == DESTINATION_GIVEN_UP)
            heed_resume(d, &resume);
        else
            resume_link(d, &resume);
        ibx_migrate_message_free(&resume.first);
    }
    while (!rc && ibx_acceptor_take(d->porch, &knock)) {
        rc = knock.first.type == IBX_MIGRATE_HELLO ? heed_hello(d, &knock, err)
                                                   : heed_join(d, &knock, err);
        ibx_migrate_message_free(&knock.first);
    }
    return rc;
}

int ibx_destination_link_complete(struct destination *d, struct ibx_error *err)
{
    bool whole = d->map_ended && d->joined == d->hello.links;
    d->regions = 0;
    for (unsigned i = 0; i < d->hello.links; i++) {
        if (!d->sources[i])
            continue;
        int regions = ibx_page_reader_regions(d->sources[i], err);
        if (regions < 0)
            return regions;
        d->regions += (uint64_t)regions;
        whole = whole && (uint32_t)regions >= d->map_end.regions;
    }
    return whole ? 0 : -EAGAIN;
}

void ibx_destination_link_close(struct destination *d)
{
    for (unsigned i = 0; i < IBX_MIGRATE_LINKS_MAX; i++) {
        ibx_page_reader_destroy(d->sources[i]);
        d->sources[i] = NULL;
    }
    d->joined = 0;
    ibx_channel_fini(&d->control);
    d->linked = false;
}
