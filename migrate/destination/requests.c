/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DESCRIBED_MS 1000 /* so long a description of this QEMU is used */

/* ---------------------------------------------------------------- control socket */

static void on_status(void *context, struct ibx_migrate_status *status)
{
    struct destination *d = context;
    ibx_destination_update(d);
    *status = d->status;
    status->now_ns = ibx_now_ns();
}

static int on_cancel(void *context, struct ibx_error *err)
{
    struct destination *d = context;
    if (destination_ours(d) || destination_over(d))
        return ibx_error_set(err, -EBUSY,
                             "the VM is here already: its migration cannot be cancelled; to have "
                             "it at the source again, migrate it back, or a borrowed VM by "
                             "ib-migrate return");
    d->interrupts++;
    return 0;
}

static int on_bandwidth(void *context, uint64_t bytes_per_second, struct ibx_error *err)
{
    struct destination *d = context;
    (void)err;
    ibx_destination_ram_set_bandwidth(&d->ram, bytes_per_second);
    return 0;
}

static int on_lend(void *context, struct ibx_error *err)
{
    struct destination *d = context;
    if (!d->ram.borrow || d->state.now != DESTINATION_FILLING)
        return ibx_error_set(err, -EINVAL, "no borrowed VM runs here");
    if (!destination_linked(&d->link))
        return ibx_error_set(err, -ENOTCONN,
                             "%s the other side is away%s%s%s: the VM cannot go before it is back "
                             "(ib-migrate recover there)",
                             ibx_destination_ram_whole(&d->ram)
                                 ? "the VM runs on with all of its pages, but"
                                 : "the VM waits for pages, since",
                             *d->lost ? " (" : "", d->lost, *d->lost ? ")" : "");
    ibx_destination_borrow_lend(d);
    return 0;
}

/* Pages that are on their way may be newer than the VM's stop here. Home decides whether more come.
 * A tool that has read that the VM is at home fetches no more, and only waits until the other side
 * knows that. */
static int on_reconnect(void *context, struct ibx_error *err)
{
    struct destination *d = context;
    if (ibx_journal_has_returned(&d->status.record))
        return 0;
    if (!d->ram.borrow || d->state.now != DESTINATION_FILLING)
        return ibx_error_set(err, -EINVAL, "no borrowed VM runs here");
    ibx_destination_unlink(d, -ECONNRESET, "the VM is taken back from its return");
    return 0;
}

static const struct ibx_control_socket_ops socket_ops = {on_status, on_cancel, on_bandwidth,
                                                         on_lend, on_reconnect};

int ibx_destination_open_waiting(struct destination *d, struct ibx_error *err)
{
    char path[PATH_MAX];
    ibx_control_socket_waiting_path(d->options->folder, getpid(), path, sizeof(path));
    return ibx_control_socket_open(
        path, &socket_ops, d,
        d->options->home ? IBX_JOURNAL_COPY_FOLDER : IBX_JOURNAL_ANOTHER_FOLDER, &d->socket, err);
}

int ibx_destination_open_record(struct destination *d, struct ibx_error *err)
{
    char path[PATH_MAX];
    d->waiting_socket = d->socket;
    d->socket = NULL;
    int rc = ibx_journal_lock(d->options->folder, &d->status.record, &d->lock_fd, err);
    if (rc)
        return rc;
    ibx_journal_path(d->options->folder, &d->status.record, ".sock", path, sizeof(path));
    return ibx_control_socket_open(path, &socket_ops, d,
                                   ibx_journal_other_folder(&d->status.record), &d->socket, err);
}

void ibx_destination_close_waiting(struct destination *d)
{
    ibx_control_socket_close(d->waiting_socket);
    d->waiting_socket = NULL;
}

/* ---------------------------------------------------------------- HELLO: a new migration */

/* Adds a blocker if the blocks have another order there: page numbers and regions count through
 * them. */
static void check_order(const struct ibx_guest_ram *ram, const struct ibx_migrate_hello *hello,
                        struct ibx_blockers *blockers)
{
    for (unsigned i = 0; i < hello->block_count && i < ram->count; i++) {
        if (!strcmp(hello->blocks[i].id, ram->blocks[i].id))
            continue;
        ibx_blockers_add(blockers,
                         "the source names guest RAM %s where %s is expected: its ib-migrate "
                         "is not like this one",
                         hello->blocks[i].id, ram->blocks[i].id);
        return;
    }
}

void ibx_destination_forget_description(struct destination *d)
{
    json_decref(d->description);
    d->description = NULL;
}

static bool described(const struct destination *d)
{
    return d->description && ibx_now_ns() - d->described_ns < DESCRIBED_MS * IBX_NS_PER_MS;
}

static void forget_compared(struct destination *d)
{
    json_decref(d->compared);
    d->compared = NULL;
}

static int describe(struct destination *d, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    ibx_destination_forget_description(d);
    forget_compared(d);
    /* This first: a change in between is then refused, not missed. */
    int rc = ibx_preflight_compared(d->qemu.qmp, true, &d->compared, deadline, err);
    if (!rc)
        rc = ibx_describe(d->qemu.qmp, &d->ram.guest, &d->description, deadline, err);
    d->described_ns = ibx_now_ns();
    return rc;
}

/* A source connects while it asks its QEMU what the VM is made of: this side does the same
 * meanwhile, which takes as long. */
static void describe_early(struct destination *d)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_error silent = {0}; /* HELLO asks again */
    if (d->state.now != DESTINATION_LISTENING || !d->qemu.qmp || described(d) ||
        !ibx_acceptor_busy(d->link.acceptor))
        return;
    ibx_qmp_remember(d->qemu.qmp, true);
    if (!describe(d, &silent))
        ibx_preflight_ask(d->qemu.qmp, deadline);
}

static int compare(struct destination *d, const struct ibx_migrate_hello *hello,
                   const json_t *theirs, struct ibx_blockers *blockers, struct ibx_error *err)
{
    int rc = described(d) ? 0 : describe(d, err);
    if (!rc)
        ibx_compare(&(struct ibx_comparison){
            .source = theirs,
            .destination = d->description,
            .same_version = ibx_qmp_same_version(hello->version, d->ram.guest.version),
            .disks_differ = hello->disks_differ,
            .blockers = blockers});
    ibx_destination_forget_description(d);
    return rc;
}

/* What the source's VM holds, bytes, by its description. UINT64_MAX: an earlier version does not
 * say. */
static uint64_t held_there(const json_t *theirs)
{
    const json_t *holds = json_object_get(theirs, "holds");
    const json_int_t bytes = json_integer_value(holds);
    return json_is_integer(holds) && bytes > 0 ? (uint64_t)bytes : UINT64_MAX;
}

/* Collects all reasons against taking this VM. They are looked for at each HELLO, since QEMU may
 * have changed. */
static int blockers_of(struct destination *d, const struct ibx_migrate_hello *hello,
                       struct ibx_blockers *blockers, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(MIGRATION_QMP_MS);
    struct ibx_guest_ram *ours = &d->ram.guest, theirs;
    struct ibx_error invalid = {0};
    json_t *description = NULL;
    int rc = ibx_migrate_hello_ram(hello, &theirs);
    if (rc)
        return ibx_error_set(err, rc, "no memory for a description of the VM");
    if (hello->description_length &&
        ibx_description_read(hello->description, hello->description_length, &description, &invalid))
        ibx_blockers_add(blockers, "%s", invalid.message); /* this receiver waits for another */
    blockers->holds = hello->borrow == IBX_BORROW_LAZY ? 0 : held_there(description);
    if (!described(d)) {
        ibx_qmp_remember(d->qemu.qmp, false);
        forget_compared(d); /* of a source that did not come */
    }
    blockers->stands_still = d->options->stand_still;
    blockers->takes_over = d->options->home;
    blockers->managed = d->qemu.managed;
    /* A VM that has come by another monitor may be paused, which no event says. */
    rc = ibx_vm_status(d->qemu.qmp, ours->status, sizeof(ours->status), deadline, err);
    if (!rc)
        rc =
            ibx_preflight_side(d->qemu.qmp, ours, IBX_MIGRATE_DESTINATION, blockers, deadline, err);
    ibx_preflight_pair(&theirs, ours, blockers);
    if (hello->borrow)
        ibx_preflight_return(&theirs, ours, blockers);
    if (!blockers->count)
        check_order(ours, hello, blockers);
    /* With another machine type everything is different. */
    if (!rc && description && !strcmp(theirs.machine, ours->machine))
        rc = compare(d, hello, description, blockers, err);
    ibx_qmp_remember(d->qemu.qmp, false);
    json_decref(description);
    ibx_guest_ram_fini(&theirs);
    return rc;
}

/* The source's name for itself, and its address. */
static void name_of(const struct ibx_connection_request *request, char *out, size_t size)
{
    const char *host = request->first.is.hello->host;
    struct ibx_peer peer;
    ibx_peer_of(request->conn, &peer);
    snprintf(out, size, "%.64s%s%s%s", host, *host ? " (" : "", peer.address, *host ? ")" : "");
}

void ibx_destination_expect_recorded(struct destination *d)
{
    const char *peer = d->status.record.peer, *open = strrchr(peer, '(');
    char address[IBX_ADDRESS_MAX];
    snprintf(address, sizeof(address), "%s", open ? open + 1 : peer);
    if (open)
        address[strcspn(address, ")")] = '\0';
    ibx_acceptor_expect_host(d->link.acceptor, address, d->status.record.source_key);
}

static bool same_migration(const struct destination *d, const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    return d->state.now != DESTINATION_LISTENING &&
           !memcmp(d->status.record.id, id, IBX_MIGRATE_ID_BYTES);
}

/* The state to answer about the migration of this HELLO. */
static enum ibx_answer_state state_for(const struct destination *d,
                                       const struct ibx_migrate_hello *hello)
{
    return same_migration(d, hello->id) ? ibx_destination_answer_state(d) : IBX_ANSWER_NONE;
}

/* How many page connections: as many as suit this machine, within the offer; or as many as the
 * engine has. */
static unsigned links_of(const struct destination *d, const struct ibx_migrate_hello *hello)
{
    const unsigned links = d->ram.engine ? d->link.count : ibx_page_links_default();
    const unsigned most = links < hello->links ? links : hello->links;
    return most > hello->links_least ? most : hello->links_least;
}

/* Pages are verified when either side wants it. */
static bool verifies(const struct destination *d, const struct ibx_migrate_hello *hello)
{
    return hello->verify || (!hello->borrow && !d->options->no_verify);
}

static int accept_migration(struct destination *d, const struct ibx_connection_request *request,
                            const struct ibx_blockers *notes, struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    struct ibx_record *record = &d->status.record;
    memcpy(d->link.blocks, hello->blocks, sizeof(d->link.blocks));
    d->link.block_count = hello->block_count;
    memcpy(record->id, hello->id, sizeof(record->id));
    record->epoch = hello->epoch;
    name_of(request, record->peer, sizeof(record->peer));
    if (!record->name[0])
        memcpy(record->name, hello->name, sizeof(record->name));
    d->status.began_ns = ibx_now_ns();
    ibx_migration_note_key(record, request->conn);
    ibx_migration_warn_plain(&d->options->observer, &d->transport, request->conn);
    d->disks_differ = hello->disks_differ;
    record->borrow = d->ram.borrow = hello->borrow;
    d->ram.holds = notes->holds;
    memcpy(record->base, hello->base, sizeof(record->base));
    record->verify = verifies(d, hello);
    if (record->verify)
        ibx_conn_secret(request->conn, IBX_MIGRATION_VERIFY, record->verify_key);
    int rc = ibx_destination_move(d, DESTINATION_JOINING, err);
    if (rc) {
        ibx_close(request->conn);
        return rc;
    }
    const bool warm =
        hello->warm && !d->ram.minor && (!hello->borrow || ibx_journal_returns(record));
    rc = ibx_destination_warm_wish(&d->warm, warm);
    if (rc) {
        ibx_close(request->conn);
        return rc;
    }
    const struct link_terms terms = {.accepted = true,
                                     .state = IBX_ANSWER_NONE,
                                     .links = links_of(d, hello),
                                     .verify = record->verify,
                                     .warm = warm};
    return ibx_destination_link_accept(&d->link, request->conn, &terms, notes);
}

/* The source of a migration that failed at its last step may call again, before anybody here knows
 * that the VM stayed there: then only an operator can end that migration. */
static const char *why_busy(const struct destination *d)
{
    if (destination_over(d))
        return "a migration has just failed here";
    return d->state.now == DESTINATION_WAITING
               ? "a VM that was sent before waits here for its source to hand it over: if it runs "
                 "on there, end that migration (interrupt its ib-migrate here), then start QEMU "
                 "and ib-migrate receive anew"
               : "a migration to this QEMU is under way: \"ib-migrate status\" here shows it";
}

static int on_new(struct destination *d, const struct ibx_connection_request *request,
                  struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    struct ibx_blockers blockers = {0};
    char peer[sizeof(d->status.record.peer)];
    const unsigned links = links_of(d, hello);
    if (d->state.now != DESTINATION_LISTENING) {
        ibx_destination_link_refuse(&d->link, request->conn, IBX_ANSWER_NONE, why_busy(d));
        return 0;
    }
    int rc = blockers_of(d, hello, &blockers, err);
    if (rc) {
        ibx_destination_link_refuse(&d->link, request->conn, IBX_ANSWER_NONE, err->message);
        return rc;
    }
    if (d->ram.minor) {
        ibx_preflight_memory_limit_minor(&d->ram.guest, &blockers);
        ibx_migration_check_locked(request->conn, links, d->ram.guest.bytes, &blockers);
    } else {
        ibx_preflight_memory_limit_own(&d->ram.guest, links, &blockers);
    }
    ibx_preflight_huge_limit_own(&d->ram.guest, &blockers);
    if (d->ram.minor && verifies(d, hello))
        ibx_preflight_minor(d->qemu.qmp, &d->ram.guest, &blockers,
                            ibx_deadline_in_ms(MIGRATION_QMP_MS));
    ibx_destination_borrow_check(d, hello, &blockers);
    ibx_destination_home_check(d, hello, &blockers);
    name_of(request, peer, sizeof(peer));
    if (blockers.count)
        ibx_migration_notify(&d->options->observer, "refused %s from %s: %s",
                             hello->name[0] ? hello->name : "a VM", peer, blockers.reasons[0]);
    if (hello->purpose != IBX_PURPOSE_CHECK && !blockers.count)
        return accept_migration(d, request, &blockers, err);
    const struct link_terms terms = {
        .accepted = !blockers.count, .state = IBX_ANSWER_NONE, .links = links};
    ibx_destination_link_answer(&d->link, request->conn, &terms, &blockers);
    return 0;
}

/* ---------------------------------------------------------------- HELLO: resume, confirm, query */

static int resume_link(struct destination *d, const struct ibx_connection_request *request,
                       struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    struct ibx_record *record = &d->status.record;
    record->epoch = hello->epoch;
    d->wish = hello->runs ? WISH_RUNS : WISH_PAUSED;
    ibx_page_map_restart(&d->ram.map);
    name_of(request, record->peer, sizeof(record->peer));
    ibx_migration_note_key(record, request->conn); /* an earlier version did not note it */
    ibx_destination_digests_restart(d);
    if (d->ram.borrow && d->ram.page_tags)
        ibx_page_tags_unsend(d->ram.page_tags);
    const struct link_terms terms = {.accepted = true,
                                     .state = ibx_destination_answer_state(d),
                                     .links = links_of(d, hello),
                                     .verify = hello->verify};
    int rc = ibx_destination_link_accept(&d->link, request->conn, &terms, NULL);
    if (rc)
        return ibx_error_set(err, rc, "the source's connection cannot be taken");
    d->status.reconnects++;
    d->back_ns = ibx_now_ns();
    if (!d->full)
        ibx_migration_notify(&d->options->observer, "the source is back: %s", record->peer);
    return 0;
}

/* Why this source cannot resume the migration, or NULL. The engine needs as many page connections
 * as it has workers. */
static const char *against_resume(const struct destination *d,
                                  const struct ibx_migrate_hello *hello)
{
    if (!same_migration(d, hello->id))
        return "this destination knows nothing of that migration";
    if (destination_over(d))
        return d->status.message[0] ? d->status.message : "the migration was given up";
    if (hello->epoch <= d->status.record.epoch)
        return "a newer source has been here: this one is out of date";
    if (d->ram.engine && links_of(d, hello) != d->link.count)
        return "another number of page connections than before";
    if (d->state.now == DESTINATION_SHUT_DOWN)
        return NULL;
    if (hello->verify && !d->ram.page_tags)
        return "it cannot verify pages any more: give --no-verify to ib-migrate recover at both "
               "ends";
    if (!hello->verify && d->ram.page_tags)
        return "it verifies pages and the source does not: give --no-verify to ib-migrate recover "
               "at both ends";
    if (d->state.now < DESTINATION_WAITING)
        return "the migration was lost before everything was here: start again";
    return NULL;
}

static void on_resume(struct destination *d, struct ibx_connection_request *request)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    const char *why = against_resume(d, hello);
    struct ibx_error silent = {0};
    if (why) {
        ibx_destination_link_refuse(&d->link, request->conn, state_for(d, hello), why);
        if (d->state.now == DESTINATION_ANSWERING && same_migration(d, hello->id))
            ibx_destination_move(d, DESTINATION_GIVEN_UP, &silent);
        return;
    }
    /* The source noticed the loss before this side did. */
    ibx_destination_unlink(d, -ECONNRESET, "the source connected again");
    ibx_close(d->link.resume.conn);
    ibx_migrate_message_free(&d->link.resume.first);
    d->link.resume = *request;
    request->first.is.hello = NULL; /* it is link.resume's now */
}

/* A source whose record is DONE needs nothing more from this side, and keeps nothing for it. */
static void on_confirm(struct destination *d, const struct ibx_connection_request *request)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    const enum ibx_answer_state state = state_for(d, hello);
    if (same_migration(d, hello->id) &&
        (!destination_settled(d) || hello->epoch < d->status.record.epoch)) {
        ibx_destination_link_refuse(&d->link, request->conn, state,
                                    "not all pages are here, as far as this source can know");
        return;
    }
    if ((state == IBX_ANSWER_COMPLETE || state == IBX_ANSWER_ENDED) &&
        d->peer.now != PEER_CONFIRMED)
        ibx_state_move(&d->peer, PEER_CONFIRMED);
    const struct link_terms terms = {.accepted = true, .state = state};
    ibx_destination_link_answer(&d->link, request->conn, &terms, NULL);
}

/* Only rollback sends QUERY, and the answer has to stay true. In WAITING the link is closed before,
 * because a COMMIT of a source that has died may still be under way. */
static void on_query(struct destination *d, const struct ibx_connection_request *request)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    if (d->state.now == DESTINATION_WAITING && same_migration(d, hello->id))
        ibx_destination_unlink(d, -ECONNRESET, "ib-migrate rollback asks for the VM");
    const struct link_terms terms = {.accepted = true, .state = state_for(d, hello)};
    ibx_destination_link_answer(&d->link, request->conn, &terms, NULL);
}

static int on_hello(struct destination *d, struct ibx_connection_request *request,
                    struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = request->first.is.hello;
    struct ibx_error why = {0};
    if (same_migration(d, hello->id) &&
        ibx_migration_check_key(&d->status.record, request->conn, &why)) {
        ibx_log(IBX_LOG_WARN, "%s: %s", ibx_conn_path(request->conn)->peer, why.message);
        ibx_destination_link_refuse(&d->link, request->conn, state_for(d, hello), why.message);
        return 0;
    }
    switch (hello->purpose) {
    case IBX_PURPOSE_MOVE:
    case IBX_PURPOSE_CHECK:
        return on_new(d, request, err);
    case IBX_PURPOSE_RESUME:
        on_resume(d, request);
        return 0;
    case IBX_PURPOSE_CONFIRM:
        on_confirm(d, request);
        return 0;
    default:
        on_query(d, request);
        return 0;
    }
}

/* ---------------------------------------------------------------- JOIN */

static int on_join(struct destination *d, const struct ibx_connection_request *request,
                   struct ibx_error *err)
{
    const struct ibx_migrate_join *join = &request->first.is.join;
    struct destination_link *link = &d->link;
    if (!destination_linked(link) || !same_migration(d, join->id) ||
        ibx_migration_check_key(&d->status.record, request->conn, NULL) ||
        join->epoch != d->status.record.epoch || join->link >= link->count ||
        link->readers[join->link]) {
        ibx_log(IBX_LOG_WARN, "a page connection from %s belongs to no migration here",
                ibx_conn_path(request->conn)->peer);
        ibx_close(request->conn);
        return 0;
    }
    int rc = ibx_destination_link_join(link, request->conn, join->link, err);
    if (rc)
        return rc;
    d->messages++;
    if (link->joined == 1)
        memcpy(d->status.path, ibx_conn_path(request->conn)->description, sizeof(d->status.path));
    return 0;
}

/* Takes a source that is back, once the engine has stopped. */
static int check_resume(struct destination *d, struct ibx_error *err)
{
    struct ibx_connection_request resume = d->link.resume;
    int rc = 0;
    if (!resume.conn || d->link.state.now != LINK_NONE)
        return 0;
    d->link.resume = (struct ibx_connection_request){.conn = NULL};
    if (destination_over(d))
        on_resume(d, &resume);
    else
        rc = resume_link(d, &resume, err);
    ibx_migrate_message_free(&resume.first);
    return rc;
}

int ibx_destination_check_requests(struct destination *d, struct ibx_error *err)
{
    struct ibx_connection_request request;
    int rc = check_resume(d, err);
    if (!rc)
        describe_early(d);
    while (!rc && ibx_acceptor_take(d->link.acceptor, &request)) {
        rc = request.first.type == IBX_MIGRATE_HELLO ? on_hello(d, &request, err)
                                                     : on_join(d, &request, err);
        ibx_migrate_message_free(&request.first);
    }
    return rc;
}
