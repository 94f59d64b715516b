/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A source connects again, with the key of its migration or with another one: what somebody else
 * answers says nothing of where the VM runs, and confirms nothing. */
#include "migrate/source/source.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 20000

static char key_file[] = "/tmp/ibx-source-link-XXXXXX";
static struct ibx_acceptor *acceptor;
static struct ibx_options options;

static int begin(void **state)
{
    (void)state;
    const int fd = mkstemp(key_file);
    dprintf(fd, "ours:%032u\nother:%032u\n", 1u, 2u);
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", key_file);
    options.timeout_ms = PATIENCE_MS;
    options.message = IBX_MIGRATE_MESSAGE;
    return fd < 0 || close(fd) || ibx_acceptor_open("tcp://127.0.0.1:0", &options, &acceptor, NULL);
}

static int end(void **state)
{
    (void)state;
    ibx_acceptor_close(acceptor);
    return unlink(key_file);
}

/* The VM runs here, and no link can be made now. */
static const struct ibx_migrate_answer runs_here = {
    .state = IBX_ANSWER_RUNNING, .host = "there", .count = 1, .reasons = {"not now"}};
static const struct ibx_migrate_answer gave_up = {
    .state = IBX_ANSWER_GIVEN_UP, .host = "there", .count = 1, .reasons = {"it was told to"}};
static const struct ibx_migrate_answer waits = {
    .accepted = true, .state = IBX_ANSWER_WAITING, .host = "there", .links = 1};

static const struct ibx_migrate_answer has_all = {
    .accepted = true, .state = IBX_ANSWER_COMPLETE, .host = "there"};

static bool aborted;

static int note_abort(void *context, const struct ibx_migrate_any *message)
{
    (void)context;
    aborted = message->type == IBX_MIGRATE_ABORT;
    return aborted ? -ECANCELED : 0;
}

/* As a destination, it closes the connection once it has been told, or has given up. */
static void *answer_main(void *context)
{
    const struct ibx_migrate_answer *answer = context;
    const struct ibx_migrate_any message = {.type = IBX_MIGRATE_ANSWER, .is.answer = answer};
    const uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
    struct ibx_connection_request request;
    struct ibx_channel control;
    while (!ibx_acceptor_take(acceptor, &request) && ibx_now_ns() < deadline)
        poll(&wait, 1, 100);
    ibx_channel_init(&control, request.conn);
    ibx_migrate_message_free(&request.first);
    ibx_channel_send(&control, &message, NULL);
    aborted = false;
    ibx_channel_take_until(
        &control, note_abort, NULL,
        answer->state == IBX_ANSWER_GIVEN_UP ? ibx_deadline_in_ms(100) : deadline, NULL);
    ibx_channel_fini(&control);
    return NULL;
}

static struct ibx_guest_block block = {.id = "ram0", .size = 4096, .page_size = 4096};
static struct source_vm vm = {.ram = {.blocks = &block,
                                      .count = 1,
                                      .machine = "pc",
                                      .uuid = "00000000-0000-0000-0000-000000000000"}};

/* A source that has this key, of a migration that began with "ours". */
struct side {
    struct ibx_record record;
    struct ibx_options own;
    struct source_link link;
    pthread_t other;
};

static void side_begin(struct side *side, const char *key, const struct ibx_migrate_answer *answer)
{
    *side = (struct side){
        .record = {.id = {1}, .epoch = 2, .source_key_known = true, .source_key = "ours"},
        .own = options};
    snprintf(side->own.name, sizeof(side->own.name), "%s", key);
    snprintf(side->record.uri, sizeof(side->record.uri), "%s", ibx_acceptor_uri(acceptor));
    assert_int_equal(pthread_create(&side->other, NULL, answer_main, (void *)answer), 0);
    ibx_source_link_init(&side->link, &side->record, &side->own, &vm, 1, false);
}

/* What the source takes as the state there when it connects with this key. */
static enum ibx_answer_state there_for(const char *key, const char *words)
{
    struct side side;
    struct ibx_error err = {0};
    enum ibx_answer_state there = (enum ibx_answer_state)0;
    side_begin(&side, key, &runs_here);
    assert_int_equal(ibx_source_link_rejoin(&side.link, &there, &err), -EAGAIN);
    if (!strstr(err.message, words))
        fail_msg("%s", err.message);
    assert_false(source_linked(&side.link));
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return there;
}

static void test_only_the_key_of_the_migration_counts(NO_STATE)
{
    assert_int_equal(there_for("ours", "reports: not now"), IBX_ANSWER_RUNNING);
    assert_int_equal(there_for("other", "recover with the key that it began with"), 0);
}

/* What comes of connecting again. */
static int resumed(const char *key, const struct ibx_migrate_answer *answer,
                   enum ibx_answer_state *there, struct ibx_error *err)
{
    struct side side;
    *there = (enum ibx_answer_state)0;
    side_begin(&side, key, answer);
    const int rc = ibx_source_link_resume(&side.link, there, err);
    assert_false(source_linked(&side.link));
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return rc;
}

/* Only this lets the VM continue at the source. */
static void test_the_destination_has_given_up(NO_STATE)
{
    enum ibx_answer_state there;
    struct ibx_error err = {0};
    assert_int_equal(resumed("ours", &gave_up, &there, &err), -ECANCELED);
    assert_int_equal(there, IBX_ANSWER_GIVEN_UP);
    assert_non_null(strstr(err.message, "before the VM ran there: it was told to"));
    assert_int_equal(resumed("other", &gave_up, &there, &err), -EAGAIN);
    assert_int_equal(there, 0);
}

/* Pages that one side alone compares are not compared. */
static void test_both_sides_verify_or_none(NO_STATE)
{
    static const struct ibx_migrate_answer verifies = {
        .accepted = true, .verify = true, .state = IBX_ANSWER_RUNNING, .host = "there", .links = 1};
    enum ibx_answer_state there;
    struct ibx_error err = {0};
    assert_int_equal(resumed("ours", &verifies, &there, &err), -EAGAIN);
    if (!strstr(err.message, "verifies pages, and this side does not"))
        fail_msg("%s", err.message);
}

/* What comes of telling the destination that the VM stays at the source. */
static int told(const char *key, const struct ibx_migrate_answer *answer)
{
    struct side side;
    side_begin(&side, key, answer);
    const int rc = ibx_source_link_disown(&side.link, "it stays");
    assert_null(side.link.control.conn);
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return rc;
}

/* Otherwise the source takes whoever answers for told, and its destination waits with the VM. */
static void test_nobody_else_is_told_that_the_vm_stays(NO_STATE)
{
    assert_int_equal(told("ours", &waits), 0);
    assert_true(aborted);
    assert_int_equal(told("ours", &gave_up), -EALREADY);
    assert_int_equal(told("other", &gave_up), -EAGAIN);
    assert_int_equal(told("other", &waits), -EAGAIN);
    assert_false(aborted);
}

/* The same by a tool that has no link: rollback, recover of a record that is over, the watchdog. */
static int told_without_a_link(const char *key, const struct ibx_migrate_answer *answer)
{
    struct side side;
    struct ibx_error err = {0};
    enum ibx_answer_state there = IBX_ANSWER_NONE;
    side_begin(&side, key, answer);
    side.record.block_count = 1;
    strcpy(side.record.machine, "pc");
    strcpy(side.record.uuid, vm.ram.uuid);
    strcpy(side.record.blocks[0].id, "ram0");
    side.record.blocks[0].size = side.record.blocks[0].page_size = 4096;
    const int rc = ibx_migration_take_from(&side.record, &side.own, "it stays", &there, &err);
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return rc;
}

static void test_nobody_else_is_told_without_a_link(NO_STATE)
{
    assert_int_equal(told_without_a_link("ours", &gave_up), 0);
    assert_int_equal(told_without_a_link("other", &gave_up), -EPERM);
    assert_int_equal(told_without_a_link("other", &waits), -EPERM);
    assert_false(aborted);
}

/* recover would have the source's QEMU end, and the destination would keep waiting. */
static int confirmed(const char *key)
{
    struct side side;
    struct ibx_error err = {0};
    side_begin(&side, key, &has_all);
    const int rc = ibx_migration_confirm(&side.record, &side.own, &err);
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return rc;
}

static void test_nobody_else_confirms(NO_STATE)
{
    assert_int_equal(confirmed("ours"), 0);
    assert_int_equal(confirmed("other"), -EPERM);
}

static int asked(const char *key, const struct ibx_migrate_answer *answer)
{
    struct side side;
    struct ibx_error err = {0};
    static struct ibx_migrate_answer got;
    side_begin(&side, key, answer);
    const int rc = ibx_migration_ask(&side.record, IBX_PURPOSE_QUERY, &side.own, &got, &err);
    assert_int_equal(pthread_join(side.other, NULL), 0);
    return rc;
}

static void test_nobody_else_permits_a_rollback(NO_STATE)
{
    assert_int_equal(asked("ours", &gave_up), 0);
    assert_int_equal(asked("other", &has_all), 0);
    assert_int_equal(asked("other", &gave_up), -EPERM);
    assert_int_equal(asked("other", &waits), -EPERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_key_of_the_migration_counts),
        cmocka_unit_test(test_the_destination_has_given_up),
        cmocka_unit_test(test_both_sides_verify_or_none),
        cmocka_unit_test(test_nobody_else_is_told_that_the_vm_stays),
        cmocka_unit_test(test_nobody_else_is_told_without_a_link),
        cmocka_unit_test(test_nobody_else_confirms),
        cmocka_unit_test(test_nobody_else_permits_a_rollback),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
