/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a destination answers to tools that ask it about its migration, and what it does then: by
 * the answer a VM may be continued at its source. */
#include "migrate/common/vm.h"
#include "migrate/destination/destination.h"
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPOCH 3u

static char key_file[] = "/tmp/ibx-requests-XXXXXX";
static struct ibx_options transport;
static struct destination destination;
static bool asks_to_verify, vm_runs; /* what the source's HELLO says */
static uint8_t asks_as = 1;          /* the id there */
static const struct ibx_receive_options options = {.folder = "/nonexistent"};
static struct ibx_guest_block blocks[] = {{.id = "ram0", .size = 4096, .page_size = 4096},
                                          {.id = "ram1", .size = 4096, .page_size = 4096}};

/* ------------------------------------------------------------ replaced functions */

/* Which check of this side finds something. */
static enum { NOTHING, SIDE, MEMORY, HUGE, MACHINE, CHECKS } in_the_way;

static int found(unsigned check, struct ibx_blockers *blockers)
{
    if (in_the_way == check)
        ibx_blockers_add(blockers, "check %u says no", check);
    return 0;
}

int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    snprintf(status, size, "inmigrate");
    return 0;
}

int __wrap_ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                              enum ibx_migrate_role role, struct ibx_blockers *blockers,
                              uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_preflight_side(struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                              enum ibx_migrate_role role, struct ibx_blockers *blockers,
                              uint64_t deadline_ns, struct ibx_error *err)
{
    (void)qmp, (void)ram, (void)role, (void)deadline_ns, (void)err;
    return found(SIDE, blockers);
}

void __wrap_ibx_preflight_memory_limit_own(const struct ibx_guest_ram *ram, unsigned links,
                                           struct ibx_blockers *blockers);
void __wrap_ibx_preflight_memory_limit_own(const struct ibx_guest_ram *ram, unsigned links,
                                           struct ibx_blockers *blockers)
{
    (void)ram, (void)links;
    found(MEMORY, blockers);
}

void __wrap_ibx_preflight_huge_limit_own(const struct ibx_guest_ram *ram,
                                         struct ibx_blockers *blockers);
void __wrap_ibx_preflight_huge_limit_own(const struct ibx_guest_ram *ram,
                                         struct ibx_blockers *blockers)
{
    (void)ram;
    found(HUGE, blockers);
}

void __wrap_ibx_qmp_remember(struct ibx_qmp *qmp, bool on);
void __wrap_ibx_qmp_remember(struct ibx_qmp *qmp, bool on)
{
    (void)qmp, (void)on;
}

static const struct ibx_control_socket_ops *operator_ops;

int __wrap_ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                                   void *context, const char *other,
                                   struct ibx_control_socket **server, struct ibx_error *err);
int __wrap_ibx_control_socket_open(const char *path, const struct ibx_control_socket_ops *ops,
                                   void *context, const char *other,
                                   struct ibx_control_socket **server, struct ibx_error *err)
{
    (void)path, (void)other, (void)server, (void)err;
    assert_ptr_equal(context, &destination);
    operator_ops = ops;
    return 0;
}

static unsigned joined; /* page connections that were taken */

int __wrap_ibx_destination_link_join(struct destination_link *link, struct ibx_conn *conn,
                                     unsigned at, struct ibx_error *err);
int __wrap_ibx_destination_link_join(struct destination_link *link, struct ibx_conn *conn,
                                     unsigned at, struct ibx_error *err)
{
    (void)link, (void)at, (void)err;
    joined++;
    ibx_close(conn);
    return 0;
}

/* ------------------------------------------------------------ steps */

static int begin_all(void **state)
{
    (void)state;
    const int fd = mkstemp(key_file);
    dprintf(fd, "ours:%032u\nother:%032u\n", 1u, 2u);
    ibx_options_init(&transport);
    snprintf(transport.key_file, sizeof(transport.key_file), "%s", key_file);
    transport.timeout_ms = patience_ms(20000);
    transport.message = IBX_MIGRATE_MESSAGE;
    return fd < 0 || close(fd);
}

static int end_all(void **state)
{
    (void)state;
    return unlink(key_file);
}

static void begin(enum destination_state at)
{
    struct ibx_error err = {0};
    new_destination(&destination, &options);
    destination.status.record = (struct ibx_record){
        .id = {1}, .epoch = EPOCH, .source_key_known = true, .source_key = "ours"};
    assert_int_equal(ibx_destination_begin(&destination, DESTINATION_LISTENING), 0);
    if (ibx_acceptor_open("tcp://127.0.0.1:0", &transport, &destination.link.acceptor, &err))
        fail_msg("%s", err.message);
    destination.state.now = at;
    destination.link.state.now = LINK_MAPPED; /* over a connection that the source has lost */
}

static void end(void)
{
    ibx_destination_link_fini(&destination.link, 0);
}

/* A tool that asks with this key. */
struct asking {
    struct ibx_options own;
    const char *uri;
    enum ibx_migrate_purpose purpose;
    uint64_t epoch;
    struct ibx_migrate_answer answer;
    struct ibx_error err;
    int rc;
    _Atomic bool over;
};

static void *ask_main(void *argument)
{
    static const struct ibx_guest_ram ram = {.blocks = blocks,
                                             .count = COUNT(blocks),
                                             .machine = "pc",
                                             .uuid = "00000000-0000-0000-0000-000000000000"};
    static struct ibx_migrate_hello hello;
    struct asking *a = argument;
    struct ibx_channel control;
    hello = (struct ibx_migrate_hello){.purpose = (uint8_t)a->purpose, .epoch = a->epoch};
    hello.id[0] = asks_as;
    hello.disks_differ = asks_to_verify;
    hello.verify = asks_to_verify;
    hello.runs = vm_runs;
    ibx_migration_offer_links(&hello, 1);
    ibx_migrate_hello_describe(&hello, &ram);
    a->rc = ibx_migration_greet(a->uri, &a->own, &hello, &control, &a->answer, &a->err);
    if (!a->rc)
        ibx_channel_fini(&control);
    atomic_store(&a->over, true);
    return NULL;
}

static const struct ibx_migrate_answer *ask(enum ibx_migrate_purpose purpose, const char *key,
                                            uint64_t epoch)
{
    static struct asking a;
    struct ibx_error err = {0};
    pthread_t thread;
    a = (struct asking){.own = transport,
                        .uri = ibx_acceptor_uri(destination.link.acceptor),
                        .purpose = purpose,
                        .epoch = epoch};
    snprintf(a.own.name, sizeof(a.own.name), "%s", key);
    assert_int_equal(pthread_create(&thread, NULL, ask_main, &a), 0);
    struct pollfd wait = {.fd = ibx_acceptor_fd(destination.link.acceptor), .events = POLLIN};
    while (!atomic_load(&a.over)) {
        poll(&wait, 1, 1);
        assert_int_equal(ibx_destination_check_requests(&destination, &err), 0);
        ibx_destination_link_check_queries(&destination.link);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    if (a.rc)
        fail_msg("%d: %s", a.rc, a.err.message);
    return &a.answer;
}

/* Makes a page connection. */
static void joins(const char *key, uint64_t epoch, uint8_t id)
{
    const char *uri = ibx_acceptor_uri(destination.link.acceptor);
    struct ibx_options own = transport;
    struct ibx_page_connections *begun = NULL;
    struct ibx_conn *conn = NULL;
    struct ibx_domain *domain = NULL;
    struct ibx_error err = {0};
    struct ibx_event event;
    snprintf(own.name, sizeof(own.name), "%s", key);
    assert_int_equal(ibx_page_connections_begin(uri, &own, 1, &begun), 0);
    const struct ibx_page_server_config config = {.uri = uri,
                                                  .options = &own,
                                                  .join = {.id = {id}, .epoch = epoch},
                                                  .links = 1,
                                                  .begun = begun};
    if (ibx_page_connections_take(&config, &conn, &domain, &err))
        fail_msg("%s", err.message);
    do { /* until the other end has closed it */
        poll(NULL, 0, 1);
        assert_int_equal(ibx_destination_check_requests(&destination, &err), 0);
    } while (ibx_poll(conn, &event, 1) != 1 || event.type != IBX_EVENT_CLOSED);
    ibx_close(conn);
}

/* ------------------------------------------------------------ tests */

/* A COMMIT of a source that has died may still be on its way to a destination that has said that
 * the VM has not run there: then it must not be taken any more. */
static void test_a_rollback_asks(NO_STATE)
{
    begin(DESTINATION_WAITING);
    assert_int_equal(ask(IBX_PURPOSE_QUERY, "ours", EPOCH)->state, IBX_ANSWER_WAITING);
    assert_false(destination_linked(&destination.link));
    end();
    begin(DESTINATION_FILLING);
    assert_int_equal(ask(IBX_PURPOSE_QUERY, "ours", EPOCH)->state, IBX_ANSWER_RUNNING);
    assert_true(destination_linked(&destination.link));
    destination.link.state.now = LINK_NONE;
    end();
}

/* Nobody else cuts the link. */
static void test_somebody_else_asks(NO_STATE)
{
    begin(DESTINATION_COMPLETE);
    const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_QUERY, "other", EPOCH);
    assert_false(answer->accepted);
    assert_true(destination_linked(&destination.link));
    assert_false(ask(IBX_PURPOSE_RESUME, "other", EPOCH + 1)->accepted);
    assert_true(destination_linked(&destination.link) && !destination.link.resume.conn);
    destination.link.state.now = LINK_NONE;
    end();
}

/* Nor does who asks for another migration, by whatever key, or begins one. */
static void test_somebody_asks_for_another_migration(NO_STATE)
{
    begin(DESTINATION_WAITING);
    asks_as = 2;
    assert_int_equal(ask(IBX_PURPOSE_QUERY, "ours", EPOCH)->state, IBX_ANSWER_NONE);
    assert_false(ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1)->accepted);
    const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_MOVE, "ours", 1);
    asks_as = 1;
    assert_false(answer->accepted);
    text_has(answer->reasons[0], "waits here for its source to hand it over");
    assert_int_equal(destination.status.record.id[0], 1);
    assert_int_equal(destination.state.now, DESTINATION_WAITING);
    assert_true(destination_linked(&destination.link));
    destination.link.state.now = LINK_NONE;
    end();
}

/* A source that is out of date does not take the link from the one that serves the pages. */
static void test_an_old_source_resumes(NO_STATE)
{
    for (uint64_t epoch = EPOCH - 1; epoch <= EPOCH; epoch++) {
        begin(DESTINATION_FILLING);
        const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_RESUME, "ours", epoch);
        assert_false(answer->accepted);
        text_has(answer->reasons[0], "out of date");
        assert_true(destination_linked(&destination.link) && !destination.link.resume.conn);
        destination.link.state.now = LINK_NONE;
        end();
    }
}

/* Before the whole VM is here there is nothing to go on with; and one that has given up has done
 * so for good once its source knows. */
static void test_a_source_resumes_what_is_lost(NO_STATE)
{
    begin(DESTINATION_MAPPED);
    const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1);
    assert_false(answer->accepted);
    text_has(answer->reasons[0], "start again");
    destination.link.state.now = LINK_NONE;
    end();
    begin(DESTINATION_ANSWERING);
    destination.link.state.now = LINK_NONE;
    assert_int_equal(ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1)->state, IBX_ANSWER_GIVEN_UP);
    assert_int_equal(destination.state.now, DESTINATION_GIVEN_UP);
    end();
}

/* Either both ends compare pages, or none: else the end would come without a comparison, or never.
 */
static void test_a_source_resumes_and_compares_otherwise(NO_STATE)
{
    static const char *const reasons[] = {"the source does not", "cannot verify pages any more"};
    for (unsigned verify = 0; verify < 2; verify++) {
        begin(DESTINATION_FILLING);
        destination.ram.page_tags = verify ? NULL : (struct ibx_page_tags *)&destination;
        asks_to_verify = verify;
        const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1);
        asks_to_verify = false;
        assert_false(answer->accepted);
        text_has(answer->reasons[0], reasons[verify]);
        assert_true(destination_linked(&destination.link) && !destination.link.resume.conn);
        destination.link.state.now = LINK_NONE;
        end();
    }
}

/* The engine has as many workers as it had page connections. */
static void test_a_source_resumes_with_fewer_connections(NO_STATE)
{
    begin(DESTINATION_FILLING);
    destination.ram.engine = (struct ibx_fault *)&destination;
    destination.link.count = 2;
    const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1);
    assert_false(answer->accepted);
    text_has(answer->reasons[0], "another number of page connections");
    destination.ram.engine = NULL;
    destination.link.state.now = LINK_NONE;
    end();
}

/* Nothing that was sent or decoded over the last link counts over the next one. */
static void test_a_source_is_back(NO_STATE)
{
    static const uint8_t key[IBX_DIGEST_KEY], page[4096] = {1};
    static _Atomic uint64_t tags[1], uncompared;
    const struct ibx_guest_ram ram = {.blocks = blocks, .count = 1};
    uint8_t entry[IBX_DIGEST_ENTRY];
    struct ibx_error err = {0};
    begin(DESTINATION_FILLING);
    destination.link.state.now = LINK_NONE;
    struct ibx_page_map *map = &destination.ram.map;
    assert_int_equal(ibx_page_map_init_ram(map, &ram, &err), 0);
    ibx_page_map_set(map, 0, 1);
    map->next = 1;
    struct ibx_page_tags **of = &destination.ram.page_tags;
    assert_int_equal(ibx_page_tags_create(map, tags, key, 1, of, &err), 0);
    ibx_page_tags_count(*of, &uncompared);
    assert_int_equal(ibx_page_tags_note(*of, 0, 0, 1, page, &err), 0);
    assert_true(ibx_page_tags_fresh_entry(*of, 0, entry));
    assert_false(ibx_page_tags_fresh(*of, 0));
    destination.ram.borrow = IBX_BORROW_LAZY;
    destination.digests.sent = calloc(1, sizeof(*destination.digests.sent));
    asks_to_verify = true;
    assert_true(ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1)->accepted);
    asks_to_verify = false;
    assert_int_equal(destination.status.record.epoch, EPOCH + 1);
    assert_int_equal(map->next, 0);
    assert_null(destination.digests.sent);
    assert_true(ibx_page_tags_fresh(*of, 0));
    assert_true(destination_linked(&destination.link));
    end();
    ibx_destination_ram_fini(&destination.ram);
}

/* A source that has noticed the loss of the link first says how the VM ran there: it runs on here
 * only if it did. */
static void test_whether_the_vm_ran_at_a_source_that_is_back(NO_STATE)
{
    const struct ibx_guest_ram ram = {.blocks = blocks, .count = 1};
    for (unsigned runs = 0; runs < 2; runs++) {
        begin(DESTINATION_RESUMING);
        assert_int_equal(ibx_page_map_init_ram(&destination.ram.map, &ram, NULL), 0);
        vm_runs = runs;
        assert_true(ask(IBX_PURPOSE_RESUME, "ours", EPOCH + 1)->accepted);
        vm_runs = false;
        assert_int_equal(destination.wish, runs ? WISH_RUNS : WISH_PAUSED);
        assert_int_equal(destination.status.reconnects, 1);
        assert_true(destination_linked(&destination.link));
        end();
        ibx_destination_ram_fini(&destination.ram);
    }
}

/* A page connection of another source, or of an earlier link, would be read as this one's. */
static void test_who_may_join(NO_STATE)
{
    static const struct {
        const char *key;
        uint64_t epoch;
        uint8_t id;
        bool linked, full, joins;
        unsigned places;
    } cases[] = {
        {"ours", EPOCH, 1, true, false, true, 1},
        {"other", EPOCH, 1, true, false, false, 1},
        {"ours", EPOCH - 1, 1, true, false, false, 1},
        {"ours", EPOCH + 1, 1, true, false, false, 1},
        {"ours", EPOCH, 2, true, false, false, 1},
        {"ours", EPOCH, 1, false, false, false, 1},
        {"ours", EPOCH, 1, true, true, false, 1},
        {"ours", EPOCH, 1, true, false, false, 0}, /* its number is that of no place */
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(DESTINATION_FILLING);
        destination.link.count = cases[i].places;
        if (!cases[i].linked)
            destination.link.state.now = LINK_NONE;
        if (cases[i].full)
            destination.link.readers[0] = (struct ibx_page_reader *)&destination;
        joined = 0;
        joins(cases[i].key, cases[i].epoch, cases[i].id);
        assert_int_equal(joined, cases[i].joins);
        destination.link.readers[0] = NULL;
        destination.link.state.now = LINK_NONE;
        end();
    }
}

/* Only who knows that all pages have come confirms it. */
static void test_a_source_confirms(NO_STATE)
{
    begin(DESTINATION_FILLING);
    assert_false(ask(IBX_PURPOSE_CONFIRM, "ours", EPOCH)->accepted);
    assert_int_equal(destination.peer.now, PEER_QUIET);
    destination.state.now = DESTINATION_COMPLETE;
    assert_false(ask(IBX_PURPOSE_CONFIRM, "ours", EPOCH - 1)->accepted);
    assert_int_equal(destination.peer.now, PEER_QUIET);
    assert_true(ask(IBX_PURPOSE_CONFIRM, "ours", EPOCH)->accepted);
    assert_int_equal(destination.peer.now, PEER_CONFIRMED);
    destination.link.state.now = LINK_NONE;
    end();
}

/* ------------------------------------------------------------ a new migration */

static void begin_new(const struct ibx_receive_options *with)
{
    static struct ibx_guest_block ours[COUNT(blocks)];
    begin(DESTINATION_LISTENING);
    memcpy(ours, blocks, sizeof(ours));
    destination.options = with;
    destination.link.state.now = LINK_NONE;
    memset(&destination.status.record, 0, sizeof(destination.status.record));
    ibx_destination_warm_init(&destination.warm);
    destination.ram.guest = (struct ibx_guest_ram){.blocks = ours,
                                                   .count = COUNT(ours),
                                                   .machine = "pc",
                                                   .uuid = "00000000-0000-0000-0000-000000000000"};
}

/* Page numbers and regions count through the blocks: in another order each page would be put in
 * another's place. */
static void test_blocks_in_another_order(NO_STATE)
{
    for (unsigned i = 0; i < 2; i++) {
        begin_new(&options);
        struct ibx_guest_block *ours = destination.ram.guest.blocks;
        if (i) {
            ours[0] = blocks[1];
            ours[1] = blocks[0];
        }
        const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_CHECK, "ours", 1);
        assert_int_equal(answer->accepted, !i);
        if (i)
            text_has(answer->reasons[0], "names guest RAM ram0 where ram1 is expected");
        end();
    }
}

static char notices[1024];

static void note_notice(void *context, const char *text)
{
    (void)context;
    snprintf(notices, sizeof(notices), "%s", text);
}

/* Whatever this side finds, the source learns it, and so does who waits here. */
static void test_what_is_in_the_way_here(NO_STATE)
{
    static const struct ibx_receive_options observed = {.folder = "/nonexistent",
                                                        .observer = {.notify = note_notice}};
    for (unsigned check = SIDE; check < CHECKS; check++) {
        char reason[32];
        snprintf(reason, sizeof(reason),
                 check == MACHINE ? "the machine is a pc" : "check %u says no", check);
        begin_new(&observed);
        if (check == MACHINE)
            strcpy(destination.ram.guest.machine, "q35");
        notices[0] = '\0';
        in_the_way = check;
        const struct ibx_migrate_answer *answer = ask(IBX_PURPOSE_MOVE, "ours", 1);
        in_the_way = NOTHING;
        assert_false(answer->accepted);
        text_has(answer->reasons[0], reason);
        text_has(notices, reason);
        assert_int_equal(destination.state.now, DESTINATION_LISTENING);
        end();
    }
}

/* By that this side knows later whom it may answer, and with which key it compares pages. */
static void who_comes_is_noted(const struct ibx_record *record)
{
    static const uint8_t none[sizeof(record->verify_key)];
    assert_int_equal(record->id[0], 1);
    text_has(record->peer, "127.0.0.1");
    assert_true(record->source_key_known);
    assert_string_equal(record->source_key, "ours");
    assert_int_equal(!memcmp(record->verify_key, none, sizeof(none)), !record->verify);
}

/* One side that wants it is enough. */
static void test_either_side_has_pages_compared(NO_STATE)
{
    static const struct ibx_receive_options unverified = {.folder = "/nonexistent",
                                                          .no_verify = true};
    for (unsigned i = 0; i < 4; i++) {
        begin_new(i & 1 ? &unverified : &options);
        asks_to_verify = i & 2;
        assert_true(ask(IBX_PURPOSE_MOVE, "ours", 1)->accepted);
        asks_to_verify = false;
        assert_int_equal(destination.state.now, DESTINATION_JOINING);
        assert_int_equal(destination.status.record.verify, i != 1);
        assert_int_equal(destination.status.record.epoch, 1);
        assert_int_equal(destination.disks_differ, (i & 2) != 0);
        who_comes_is_noted(&destination.status.record);
        end();
    }
}

/* ------------------------------------------------------------ an operator */

/* The VM would be lost, or run twice. */
static void test_a_vm_that_is_here_is_not_cancelled(NO_STATE)
{
    struct ibx_error err = {0};
    begin(DESTINATION_LISTENING);
    assert_int_equal(ibx_destination_open_waiting(&destination, &err), 0);
    for (enum destination_state now = DESTINATION_LISTENING; now <= DESTINATION_BROKEN; now++) {
        const bool refused = now >= DESTINATION_RESUMING;
        destination.state.now = now;
        destination.interrupts = 0;
        assert_int_equal(operator_ops->cancel(&destination, &err), refused ? -EBUSY : 0);
        assert_int_equal(destination.interrupts, !refused);
    }
    destination.link.state.now = LINK_NONE;
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rollback_asks),
        cmocka_unit_test(test_somebody_else_asks),
        cmocka_unit_test(test_somebody_asks_for_another_migration),
        cmocka_unit_test(test_an_old_source_resumes),
        cmocka_unit_test(test_a_source_resumes_what_is_lost),
        cmocka_unit_test(test_a_source_resumes_and_compares_otherwise),
        cmocka_unit_test(test_a_source_resumes_with_fewer_connections),
        cmocka_unit_test(test_a_source_is_back),
        cmocka_unit_test(test_whether_the_vm_ran_at_a_source_that_is_back),
        cmocka_unit_test(test_who_may_join),
        cmocka_unit_test(test_a_source_confirms),
        cmocka_unit_test(test_blocks_in_another_order),
        cmocka_unit_test(test_what_is_in_the_way_here),
        cmocka_unit_test(test_either_side_has_pages_compared),
        cmocka_unit_test(test_a_vm_that_is_here_is_not_cancelled),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
