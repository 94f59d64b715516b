/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/common/common.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/link.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A destination has places for this many connections that have not sent a message yet, besides the
 * control connection. */
#define EARLY_LINKS (IBX_ACCEPTOR_PEER - 2)

#define RETRY_MIN_MS    250
#define RETRY_MAX_MS    5000
#define RETRY_FORGET_MS 10000 /* a link that lasted so long begins a new series of tries */

static const struct ibx_state link_states[] = {
    [LINK_NONE] = {"none", IBX_TO(LINK_OPEN), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [LINK_OPEN] = {"open", IBX_TO(LINK_EXPOSING) | IBX_TO(LINK_NONE), 0},
    [LINK_EXPOSING] = {"exposing", IBX_TO(LINK_EXPOSED) | IBX_TO(LINK_NONE), 0},
    [LINK_EXPOSED] = {"exposed", IBX_TO(LINK_MAPPED) | IBX_TO(LINK_EXPOSING) | IBX_TO(LINK_NONE),
                      0},
    [LINK_MAPPED] = {"mapped", IBX_TO(LINK_NONE), 0},
};
static const struct ibx_state_table link_table = IBX_STATE_TABLE("source link", link_states);

void ibx_source_link_init(struct source_link *link, const struct ibx_record *record,
                          const struct ibx_options *transport, const struct source_vm *vm,
                          unsigned wished, bool verify)
{
    *link = (struct source_link){
        .record = record, .transport = transport, .vm = vm, .wished = wished, .verify = verify};
    ibx_channel_init(&link->control, NULL);
    ibx_state_begin(&link->state, &link_table, LINK_NONE);
}

/* The control connection, which a thread makes while QEMU tells what the VM is made of. */
struct connecting {
    const struct source_link *link;
    const struct ibx_options *options;
    uint8_t purpose;
    struct ibx_conn *conn;
    int rc;
    struct ibx_error err;
};

static void *connect_main(void *argument)
{
    struct connecting *c = argument;
    c->rc = ibx_migration_connect(c->link->record->uri, c->options, c->purpose, &c->conn, &c->err);
    return NULL;
}

/* This comes before the description: a change in between is then refused, not missed. */
static int note_compared(struct source_link *link, struct ibx_error *err)
{
    json_decref(link->compared);
    link->compared = NULL;
    return ibx_preflight_compared(link->vm->qmp, !link->disks_differ, &link->compared,
                                  ibx_deadline_in_ms(MIGRATION_QMP_MS), err);
}

static int describe_and_connect(struct source_link *link, const struct ibx_options *options,
                                struct ibx_conn **conn, struct ibx_error *err)
{
    struct connecting c = {.link = link, .options = options, .purpose = link->hello.purpose};
    pthread_t thread;
    const uint64_t patience_ns = ibx_migrate_first_ms(options) * IBX_NS_PER_MS / 2;
    const uint64_t from_ns = ibx_now_ns();
    bool fresh = !pthread_create(&thread, NULL, connect_main, &c);
    ibx_source_vm_check_ahead(link->vm);
    int rc = note_compared(link, err);
    if (!rc)
        rc = ibx_migration_describe_vm(link->vm->qmp, &link->vm->ram, &link->hello, err);
    ibx_qmp_ahead_end(link->vm->qmp, 0);
    ibx_qmp_remember(link->vm->qmp, false);
    if (fresh)
        pthread_join(thread, NULL);
    if (fresh && !c.rc && ibx_now_ns() - from_ns > patience_ns) { /* HELLO is about to be overdue */
        ibx_close(c.conn);
        c.conn = NULL;
        fresh = false;
    }
    if (!fresh && !rc)
        connect_main(&c);
    if (!rc && c.rc)
        return ibx_error_set(err, c.rc, "%s", c.err.message);
    if (rc)
        ibx_close(c.conn);
    *conn = c.conn;
    return rc;
}

/* Connects, sends HELLO and takes its answer. RESUME has the short timeout of one of many tries. */
static int greet(struct source_link *link, enum ibx_migrate_purpose purpose, struct ibx_error *err)
{
    struct ibx_migrate_hello *hello = &link->hello;
    struct ibx_options options = *link->transport;
    const unsigned wished = link->count ? link->count : link->wished;
    *hello = (struct ibx_migrate_hello){.purpose = (uint8_t)purpose};
    hello->disks_differ = link->disks_differ;
    const bool returns = ibx_journal_returns(link->record);
    hello->warm =
        link->warm && purpose == IBX_PURPOSE_MOVE && (link->record->was_running || returns);
    if (purpose == IBX_PURPOSE_MOVE) {
        hello->borrow = link->borrow;
        memcpy(hello->base, link->record->base, sizeof(hello->base));
    }
    hello->epoch = link->record->epoch;
    hello->verify = purpose == IBX_PURPOSE_RESUME ? link->record->verify : link->verify;
    hello->runs = link->record->was_running;
    ibx_migration_offer_links(hello, wished);
    if (!wished && purpose == IBX_PURPOSE_RESUME) /* an earlier tool has agreed on the number */
        hello->links = IBX_MIGRATE_LINKS_MAX;
    memcpy(hello->id, link->record->id, sizeof(hello->id));
    ibx_migrate_hello_describe(hello, &link->vm->ram);
    struct ibx_conn *conn = NULL;
    int rc;
    if (purpose == IBX_PURPOSE_RESUME) {
        options = ibx_migration_retry_options(link->transport);
        rc = ibx_migration_connect(link->record->uri, &options, hello->purpose, &conn, err);
    } else {
        rc = describe_and_connect(link, &options, &conn, err);
    }
    if (!rc)
        rc = ibx_migration_say_hello(conn, &options, hello, &link->control, &link->answer, err);
    free(hello->description);
    hello->description = NULL;
    return rc;
}

/* Opens as many page connections as the destination has chosen. */
static int open_pages(struct source_link *link, struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = &link->hello;
    const struct ibx_migrate_answer *answer = &link->answer;
    if (answer->links < hello->links_least || answer->links > hello->links)
        return ibx_error_set(err, -EPROTO,
                             "the destination (%s) wants %u page connections where %u to %u were "
                             "offered: its ib-migrate is not like this one",
                             answer->host, answer->links, hello->links_least, hello->links);
    link->count = answer->links;
    struct ibx_page_server_config config = {
        .ram = &link->vm->ram,
        .uri = link->record->uri,
        .options = link->transport,
        .join = {.epoch = link->record->epoch},
        .links = link->count,
        .begun = link->begun,
        .pads = hello->purpose == IBX_PURPOSE_MOVE,
    };
    link->begun = NULL;
    memcpy(config.join.id, link->record->id, sizeof(config.join.id));
    return ibx_page_server_open(&config, &link->pages, err);
}

static int refused(const struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    struct ibx_blockers blockers = {.count = answer->count};
    char where[160];
    for (unsigned i = 0; i < answer->count && i < IBX_MIGRATE_REASONS_MAX; i++)
        memcpy(blockers.reasons[i], answer->reasons[i], sizeof(blockers.reasons[i]));
    snprintf(where, sizeof(where), "the destination (%s) refuses", answer->host);
    return ibx_migration_refused(where, &blockers, err);
}

/* Checks that this source can go on with the answer. */
static int check_agreed(const struct source_link *link, struct ibx_error *err)
{
    if (!link->answer.accepted)
        return refused(&link->answer, err);
    if (link->verify && !link->answer.verify)
        return ibx_error_set(err, -EPROTO,
                             "the destination (%s) does not verify pages, as it was asked to: its "
                             "ib-migrate is not like this one",
                             link->answer.host);
    if (link->answer.warm && !link->hello.warm)
        return ibx_error_set(err, -EPROTO,
                             "the destination (%s) fetches pages before the stop, and was not "
                             "asked to: its ib-migrate is not like this one",
                             link->answer.host);
    if (!link->answer.warm && ibx_journal_returns(link->record))
        return ibx_error_set(err, -EPROTO,
                             "the destination (%s) does not take a VM that returns: its ib-migrate "
                             "is not like this one",
                             link->answer.host);
    return 0;
}

/* A page connection takes as many round trips as the control connection, so both are made at the
 * same time. A failure is reported later, when page connections are needed. Not where libvirt
 * drives: there the destination is asked repeatedly until it is there. */
static void begin_pages(struct source_link *link)
{
    const unsigned wished = link->wished ? link->wished : ibx_page_links_default();
    if (link->vm->libvirt.now == LIBVIRT_OFF && wished <= EARLY_LINKS)
        ibx_page_connections_begin(link->record->uri, link->transport, wished, &link->begun);
}

void ibx_source_link_quiet(struct source_link *link)
{
    ibx_pad(link->control.conn, 0);
    ibx_page_server_quiet(link->pages);
}

int ibx_source_link_ask(struct source_link *link, char *peer, size_t size, struct ibx_error *err)
{
    begin_pages(link);
    int rc = greet(link, IBX_PURPOSE_MOVE, err);
    if (!rc)
        snprintf(peer, size, "%s", link->answer.host);
    if (!rc)
        rc = check_agreed(link, err);
    if (!rc)
        rc = ibx_state_move(&link->state, LINK_OPEN);
    if (!rc)
        rc = open_pages(link, err);
    ibx_page_connections_drop(link->begun);
    link->begun = NULL;
    return rc;
}

int ibx_source_link_expose(struct source_link *link, struct ibx_error *err)
{
    int rc = ibx_state_move(&link->state, LINK_EXPOSING);
    return rc ? rc : ibx_page_server_expose(link->pages, &link->vm->map, err);
}

int ibx_source_link_exposed(struct source_link *link, struct ibx_error *err)
{
    if (link->state.now != LINK_EXPOSING)
        return 0;
    int rc = ibx_page_server_done(link->pages, &link->regions, err);
    return rc ? rc : ibx_state_move(&link->state, LINK_EXPOSED);
}

int ibx_source_link_send_map(struct source_link *link, struct ibx_error *err)
{
    uint8_t bytes[IBX_MIGRATE_MESSAGE];
    const struct ibx_page_map *map = &link->vm->map;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_MAP};
    size_t room = ibx_channel_room(&link->control), length;
    uint64_t from = 0;
    int rc = 0;
    while (!rc && (length = ibx_page_map_encode(map, &from, bytes, room)) > 0) {
        message.is.map.bytes = bytes;
        message.is.map.length = length;
        rc = ibx_channel_send(&link->control, &message, err);
    }
    message = (struct ibx_migrate_any){.type = IBX_MIGRATE_MAP_END};
    message.is.map_end = (struct ibx_migrate_map_end){
        .pages = map->pages, .data_pages = map->data_pages, .regions = link->regions};
    ibx_page_map_hash(map, message.is.map_end.hash);
    if (!rc)
        rc = ibx_channel_send(&link->control, &message, err);
    return rc ? rc : ibx_state_move(&link->state, LINK_MAPPED);
}

bool ibx_source_link_has_early(const struct source_link *link)
{
    const struct ibx_page_map *map = &link->vm->map;
    return map->blocks[0].page_size == IBX_EARLY_PAGE &&
           map->blocks[0].pages * IBX_EARLY_PAGE >= IBX_EARLY_AT + IBX_EARLY_BYTES &&
           !strncmp(link->vm->ram.machine, IBX_EARLY_MACHINES, strlen(IBX_EARLY_MACHINES));
}

uint32_t ibx_source_link_early(const struct source_link *link)
{
    _Static_assert(IBX_EARLY_PAGES == 32, "a bit for each");
    uint32_t which = 0;
    if (!ibx_conn_path(link->control.conn)->remote || !ibx_source_link_has_early(link))
        return 0;
    for (unsigned i = 0; i < IBX_EARLY_PAGES; i++)
        if (ibx_page_map_data(&link->vm->map, IBX_EARLY_AT / IBX_EARLY_PAGE + i))
            which |= 1u << i;
    return which;
}

/* How many of these pages from this one on follow each other and fit into a message. */
static unsigned early_run(const struct source_link *link, uint32_t which, unsigned from)
{
    const size_t most = (ibx_channel_room(&link->control) - sizeof(uint64_t)) / IBX_EARLY_PAGE;
    unsigned run = 0;
    while (from + run < IBX_EARLY_PAGES && run < most && which >> (from + run) & 1)
        run++;
    return run;
}

int ibx_source_link_send_early(struct source_link *link, uint32_t which, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0, run; !rc && i < IBX_EARLY_PAGES; i += run ? run : 1) {
        const uint64_t page = IBX_EARLY_AT / IBX_EARLY_PAGE + i;
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_PAGES, .is.pages.first = page};
        run = early_run(link, which, i);
        message.is.pages.bytes.bytes = ibx_page_server_bytes(link->pages, 0, page * IBX_EARLY_PAGE);
        message.is.pages.bytes.length = (size_t)run * IBX_EARLY_PAGE;
        rc = run ? ibx_channel_send(&link->control, &message, err) : 0;
    }
    return rc;
}

int ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                         struct ibx_error *err)
{
    struct ibx_migrate_any message = {.type = type};
    if (type == IBX_MIGRATE_COMMIT)
        message.is.commit =
            (struct ibx_migrate_commit){link->record->epoch, link->record->was_running};
    else
        message.is.epoch = link->record->epoch;
    return ibx_channel_send(&link->control, &message, err);
}

/* Page connections that are not needed any more, which a thread closes: unmapping guest RAM takes
 * 35 ms a GiB. */
struct retiring {
    struct ibx_page_server *pages;
    pthread_t thread;
};

static void *retire_main(void *argument)
{
    struct retiring *retiring = argument;
    ibx_page_server_close(retiring->pages);
    return NULL;
}

void ibx_source_link_retire(struct source_link *link)
{
    struct retiring *retiring = link->pages ? malloc(sizeof(*retiring)) : NULL;
    if (!retiring)
        return;
    retiring->pages = link->pages;
    link->cpu_ns += ibx_page_server_cpu_ns(link->pages);
    if (pthread_create(&retiring->thread, NULL, retire_main, retiring)) {
        retire_main(retiring);
        free(retiring);
    } else {
        link->retiring = retiring;
    }
    link->pages = NULL;
}

void ibx_source_link_retired(struct source_link *link)
{
    if (link->retiring)
        pthread_join(link->retiring->thread, NULL);
    free(link->retiring);
    link->retiring = NULL;
}

void ibx_source_link_close(struct source_link *link)
{
    if (link->pages)
        link->cpu_ns += ibx_page_server_cpu_ns(link->pages);
    ibx_page_server_close(link->pages);
    link->pages = NULL;
    ibx_channel_fini(&link->control);
    json_decref(link->compared);
    link->compared = NULL;
    if (source_linked(link))
        ibx_state_move(&link->state, LINK_NONE);
}

int ibx_source_link_disown(struct source_link *link, const char *why)
{
    ibx_source_link_close(link);
    int rc = greet(link, IBX_PURPOSE_RESUME, NULL);
    if (!rc)
        rc = ibx_migration_check_key(link->record, link->control.conn, NULL);
    if (rc) {
        ibx_channel_fini(&link->control);
        return -EAGAIN;
    }
    rc = link->answer.state == IBX_ANSWER_GIVEN_UP ? -EALREADY
         : link->answer.accepted                   ? ibx_channel_send_abort(&link->control, why)
                                                   : -EAGAIN;
    if (!rc)
        ibx_channel_linger(
            &link->control,
            ibx_deadline_in_ms(ibx_migration_retry_options(link->transport).timeout_ms));
    ibx_channel_fini(&link->control);
    return rc;
}

/* ---------------------------------------------------------------- after the commit */

/* What the destination's state means for a source that has committed. */
static int check_answer(const struct source_link *link, struct ibx_error *err)
{
    const struct ibx_migrate_answer *answer = &link->answer;
    const char *why = answer->count ? answer->reasons[0] : "it gave no reason";
    if (answer->state == IBX_ANSWER_GIVEN_UP)
        return ibx_error_set(err, -ECANCELED,
                             "the destination (%s) has given up before the VM ran there: %s",
                             answer->host, why);
    if (answer->state != IBX_ANSWER_WAITING && answer->state != IBX_ANSWER_RUNNING &&
        answer->state != IBX_ANSWER_COMPLETE && answer->state != IBX_ANSWER_ENDED)
        return ibx_error_set(
            err, -EAGAIN,
            "the tool at %s (%s) knows nothing of this migration: start ib-migrate "
            "recover there; only if the VM certainly "
            "does not run there, take it back with ib-migrate rollback here",
            link->record->uri, answer->host);
    return answer->accepted
               ? 0
               : ibx_error_set(err, -EAGAIN, "the destination (%s) reports: %s", answer->host, why);
}

/* Makes the control connection again. Only who has the key of the migration says where the VM is.
 */
static int rejoin(struct source_link *link, enum ibx_answer_state *state, struct ibx_error *err)
{
    int rc = greet(link, IBX_PURPOSE_RESUME, err);
    if (rc)
        return rc;
    rc = ibx_migration_check_key(link->record, link->control.conn, err);
    if (rc)
        return rc;
    *state = (enum ibx_answer_state)link->answer.state;
    return check_answer(link, err);
}

/* A host that refuses a connection has not authenticated, but chooses the code of the refusal. So
 * only the answer GIVEN_UP counts as such, and any other failure becomes -EAGAIN. */
static int code_of(int rc, enum ibx_answer_state state)
{
    const bool given_up = rc == -ECANCELED && state == IBX_ANSWER_GIVEN_UP;
    return !rc || given_up ? rc : -EAGAIN;
}

int ibx_source_link_rejoin(struct source_link *link, enum ibx_answer_state *state,
                           struct ibx_error *err)
{
    int rc = rejoin(link, state, err);
    if (!rc)
        rc = ibx_state_move(&link->state, LINK_OPEN);
    if (rc)
        ibx_source_link_close(link);
    return code_of(rc, *state);
}

static int try_resume(struct source_link *link, enum ibx_answer_state *state, struct ibx_error *err)
{
    int rc = rejoin(link, state, err);
    if (!rc && link->answer.verify != link->record->verify)
        rc = ibx_error_set(err, -EPROTO, "the destination (%s) %s pages, and this side does not",
                           link->answer.host, link->answer.verify ? "verifies" : "does not verify");
    if (!rc)
        rc = ibx_state_move(&link->state, LINK_OPEN);
    if (rc || *state == IBX_ANSWER_COMPLETE || *state == IBX_ANSWER_ENDED)
        return rc;
    rc = open_pages(link, err);
    return rc ? rc : ibx_source_link_expose(link, err);
}

bool ibx_source_link_due(struct source_link *link)
{
    if (ibx_now_ns() < link->retry_ns)
        return false;
    if (ibx_now_ns() - link->tried_ns > RETRY_FORGET_MS * IBX_NS_PER_MS)
        link->retry_pause_ms = 0;
    return true;
}

void ibx_source_link_delay(struct source_link *link)
{
    uint64_t *pause = &link->retry_pause_ms;
    *pause = *pause ? *pause * 2 : RETRY_MIN_MS;
    *pause = *pause < RETRY_MAX_MS ? *pause : RETRY_MAX_MS;
    link->retry_ns = ibx_deadline_in_ms(*pause);
    link->tried_ns = ibx_now_ns();
}

int ibx_source_link_resume(struct source_link *link, enum ibx_answer_state *state,
                           struct ibx_error *err)
{
    int rc = try_resume(link, state, err);
    if (rc)
        ibx_source_link_close(link);
    return code_of(rc, *state);
}
