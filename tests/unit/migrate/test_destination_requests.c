/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a destination answers to tools that ask it about its migration, and what it does then: by
 * the answer a VM may be continued at its source. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define EPOCH 3u

static char key_file[] = "/tmp/ibx-requests-XXXXXX";
static struct ibx_options transport;
static struct destination destination;
static bool asks_to_verify;
static const struct ibx_receive_options options = {.folder = "/nonexistent"};

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
    destination = (struct destination){.options = &options, .lock_fd = -1};
    destination.status.record = (struct ibx_record){
        .id = {1}, .epoch = EPOCH, .source_key_known = true, .source_key = "ours"};
    ibx_destination_ram_init(&destination.ram, false, 0);
    ibx_destination_link_init(&destination.link);
    ibx_destination_stream_init(&destination.stream, STREAM_CLOSED);
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
    static struct ibx_guest_block block = {.id = "ram0", .size = 4096, .page_size = 4096};
    static const struct ibx_guest_ram ram = {.blocks = &block,
                                             .count = 1,
                                             .machine = "pc",
                                             .uuid = "00000000-0000-0000-0000-000000000000"};
    static struct ibx_migrate_hello hello;
    struct asking *a = argument;
    struct ibx_channel control;
    hello = (struct ibx_migrate_hello){.purpose = (uint8_t)a->purpose, .epoch = a->epoch};
    hello.id[0] = 1;
    hello.verify = asks_to_verify;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rollback_asks),
        cmocka_unit_test(test_somebody_else_asks),
        cmocka_unit_test(test_an_old_source_resumes),
        cmocka_unit_test(test_a_source_resumes_what_is_lost),
        cmocka_unit_test(test_a_source_resumes_and_compares_otherwise),
        cmocka_unit_test(test_a_source_confirms),
    };
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
