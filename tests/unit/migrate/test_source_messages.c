/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every message in every state of a source. A message is accepted in the few states to which it
 * belongs; in any other one it causes a named error and changes nothing. */
#include "tests/fixtures/new_source.h"
#include "tests/fixtures/unit.h"
#include "tests/fixtures/wrong_map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct source source;
static const struct ibx_send_options options = {.folder = "/nonexistent"};

#define IN(state)    (1u << (state))
#define BEFORE_READY (IN(SOURCE_ASKING) | IN(SOURCE_EXPOSING))
#define BEFORE_STATE                                                                               \
    (IN(SOURCE_EXPOSING) | IN(SOURCE_WARMING) | IN(SOURCE_STARTING) | IN(SOURCE_STOPPED) |         \
     IN(SOURCE_SENDING))
#define AFTER_COMMIT                                                                               \
    (IN(SOURCE_COMMITTED) | IN(SOURCE_SERVING) | IN(SOURCE_LOST) | IN(SOURCE_CONFIRMING))

/* in which states of the source this can be the destination's last message */
static const unsigned reached[] = {
    [PEER_QUIET] = BEFORE_READY,
    [PEER_READY] = BEFORE_STATE,
    [PEER_LOADED] =
        IN(SOURCE_SENDING) | IN(SOURCE_COMMITTED) | IN(SOURCE_SERVING) | IN(SOURCE_LOST),
    [PEER_COMPLETE] = IN(SOURCE_SERVING) | IN(SOURCE_LOST) | IN(SOURCE_CONFIRMING),
    [PEER_ENDED] = IN(SOURCE_SERVING) | IN(SOURCE_LOST) | IN(SOURCE_CONFIRMING),
    [PEER_CONFIRMED] = IN(SOURCE_CONFIRMING),
    [PEER_ABORTED] = BEFORE_READY | BEFORE_STATE | IN(SOURCE_COMMITTED),
};
#define PEERS (sizeof(reached) / sizeof(reached[0]))

/* what the migration has agreed on */
#define VERIFIES 1u
#define RETURNS  2u

/* The states in which a message is valid; a message that is not listed is valid in none. */
static const struct belongs {
    enum ibx_migrate_message type;
    unsigned states, peers; /* bits */
    unsigned needs;         /* one of these must be agreed; 0: nothing */
} belong[] = {
    {IBX_MIGRATE_READY, IN(SOURCE_EXPOSING), IN(PEER_QUIET), 0},
    {IBX_MIGRATE_HAVE, IN(SOURCE_EXPOSING), IN(PEER_QUIET), RETURNS},
    {IBX_MIGRATE_HAVE_END, IN(SOURCE_EXPOSING), IN(PEER_QUIET), RETURNS},
    {IBX_MIGRATE_ROUND_DONE, IN(SOURCE_WARMING), ~0u, 0},
    {IBX_MIGRATE_PROGRESS, IN(SOURCE_WARMING) | AFTER_COMMIT, ~0u, 0},
    {IBX_MIGRATE_LOADED, IN(SOURCE_SENDING), IN(PEER_READY), 0},
    {IBX_MIGRATE_RUNNING, AFTER_COMMIT, ~0u, 0},
    {IBX_MIGRATE_DIGEST, AFTER_COMMIT, ~0u, VERIFIES},
    {IBX_MIGRATE_DIGEST, IN(SOURCE_CONFIRMING), ~0u, 0},
    {IBX_MIGRATE_BROKEN, IN(SOURCE_COMMITTED) | IN(SOURCE_SERVING), ~0u, 0},
    {IBX_MIGRATE_COMPLETE, IN(SOURCE_SERVING), IN(PEER_LOADED) | IN(PEER_COMPLETE), 0},
    {IBX_MIGRATE_COMPLETE, IN(SOURCE_CONFIRMING), ~0u, 0},
    {IBX_MIGRATE_ENDED, IN(SOURCE_COMMITTED) | IN(SOURCE_SERVING), IN(PEER_LOADED) | IN(PEER_ENDED),
     0},
    {IBX_MIGRATE_ENDED, IN(SOURCE_CONFIRMING), ~0u, 0},
    {IBX_MIGRATE_CONFIRMED, IN(SOURCE_CONFIRMING), ~0u, 0},
    {IBX_MIGRATE_ABORT, ~0u, ~0u, 0},
};

static bool belongs(unsigned state, unsigned peer, enum ibx_migrate_message type, unsigned agreed)
{
    if (peer == PEER_ABORTED)
        return type == IBX_MIGRATE_ABORT; /* the destination has given up */
    for (size_t i = 0; i < sizeof(belong) / sizeof(belong[0]); i++)
        if (belong[i].type == type && belong[i].states & IN(state) && belong[i].peers & IN(peer) &&
            (!belong[i].needs || belong[i].needs & agreed))
            return true;
    return false;
}

static void begin(unsigned state, unsigned peer, unsigned agreed)
{
    new_source(&source, &options);
    assert_int_equal(ibx_source_begin(&source, SOURCE_ASKING), 0);
    source.state.now = state;
    source.peer.now = peer;
    source.stream.state.now = STREAM_HELD;
    source.status.record.verify = agreed & VERIFIES;
    source.status.record.base[0] = agreed & RETURNS;
    assert_int_equal(source_returns(&source), !!(agreed & RETURNS));
}

/* Makes a well-formed message of a VM without memory. */
static struct ibx_migrate_any message_of(enum ibx_migrate_message type)
{
    struct ibx_migrate_any message = {.type = type};
    if (type == IBX_MIGRATE_COMPLETE)
        ibx_page_map_hash(&source.vm.map, message.is.totals.hash);
    else if (type == IBX_MIGRATE_ABORT || type == IBX_MIGRATE_BROKEN)
        snprintf(message.is.reason, sizeof(message.is.reason), "no");
    else if (type == IBX_MIGRATE_RUNNING || type == IBX_MIGRATE_ENDED)
        snprintf(message.is.status, sizeof(message.is.status), "running");
    return message;
}

static int on(enum ibx_migrate_message type, struct ibx_error *err)
{
    const struct ibx_migrate_any message = message_of(type);
    struct message_context context = {&source, err};
    return ibx_source_on_message(&context, &message);
}

static void each_message(unsigned state, unsigned peer, unsigned agreed)
{
    for (enum ibx_migrate_message type = IBX_MIGRATE_HELLO; type <= IBX_MIGRATE_COMPARED; type++) {
        struct ibx_error err = {0};
        if (type == IBX_MIGRATE_READY && belongs(state, peer, type, agreed))
            continue; /* it needs a connection */
        begin(state, peer, agreed);
        const struct ibx_record before = source.status.record;
        const int rc = on(type, &err);
        const bool refused = rc == -EPROTO && strstr(err.message, "while the source was");
        if (refused != !belongs(state, peer, type, agreed))
            fail_msg("%s in state %u, peer %u, agreed %u: %d (%s)", ibx_migrate_message_name(type),
                     state, peer, agreed, rc, err.message);
        if (!refused)
            continue;
        assert_int_equal(source.state.now, state);
        assert_int_equal(source.peer.now, peer);
        assert_memory_equal(&source.status.record, &before, sizeof(before));
    }
}

static void test_each_message_in_each_state(NO_STATE)
{
    for (unsigned peer = 0; peer < PEERS; peer++)
        for (unsigned in = SOURCE_ASKING; in <= SOURCE_CONFIRMING; in++)
            for (unsigned agreed = 0; agreed <= (VERIFIES | RETURNS); agreed++)
                if (reached[peer] & IN(in))
                    each_message(in, peer, agreed);
}

/* Any statement of the end is accepted, and a second one does not count. */
static void test_complete_after_the_end(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_COMMITTED, PEER_LOADED, 0);
    assert_int_equal(on(IBX_MIGRATE_ENDED, &err), 0);
    assert_int_equal(source.state.now, SOURCE_SERVING);
    assert_int_equal(on(IBX_MIGRATE_COMPLETE, &err), -EPROTO);
    assert_int_equal(source.peer.now, PEER_ENDED);
    assert_int_equal(on(IBX_MIGRATE_ENDED, &err), 0);
}

/* By the map the destination knows which pages it has to fetch. */
static void test_complete_with_another_map(NO_STATE)
{
    for (unsigned pages = 0; pages < 2; pages++) {
        struct ibx_error err = {0};
        struct message_context context = {&source, &err};
        begin(SOURCE_SERVING, PEER_LOADED, 0);
        struct ibx_migrate_any complete = message_of(IBX_MIGRATE_COMPLETE);
        complete.is.totals.pages += pages;
        complete.is.totals.hash[IBX_MIGRATE_HASH_BYTES - 1] ^= !pages;
        assert_int_equal(ibx_source_on_message(&context, &complete), -EPROTO);
        text_has(err.message, "this side keeps all pages");
        assert_int_equal(source.state.now, SOURCE_LEFT);
        assert_int_equal(source.peer.now, PEER_LOADED);
    }
}

/* Before the whole state was sent nothing can have loaded it. */
static void test_loaded_too_early(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_SENDING, PEER_READY, 0);
    source.stream.state.now = STREAM_SENT;
    assert_int_equal(on(IBX_MIGRATE_LOADED, &err), -EPROTO);
    assert_int_equal(source.peer.now, PEER_READY);
}

/* Once the VM has run there, the end of its QEMU there is no reason to continue it here. */
static void test_gives_up_after_running(NO_STATE)
{
    struct ibx_error err = {0};
    begin(SOURCE_COMMITTED, PEER_LOADED, 0);
    assert_int_equal(on(IBX_MIGRATE_RUNNING, &err), 0);
    assert_true(source.vm.ran_there);
    assert_int_equal(on(IBX_MIGRATE_ABORT, &err), 0);
    assert_int_equal(source.state.now, SOURCE_LOST);
    assert_int_equal(source.peer.now, PEER_LOADED);
    assert_string_equal(source.status.record.vm_status, IBX_JOURNAL_QEMU_ENDED);
}

static unsigned lines;
static char last_line[IBX_ERROR_MAX];

static void count_line(void *context, const char *line)
{
    (void)context;
    lines++;
    assert_true(lines > 1 || !strstr(line, "left out"));
    snprintf(last_line, sizeof(last_line), "%s", line);
}

/* A destination can neither fill this host's log nor displace other lines. */
static void test_a_destination_that_changes_its_mind(NO_STATE)
{
    static const struct ibx_send_options watched = {.folder = "/nonexistent",
                                                    .observer.notify = count_line};
    struct ibx_error err = {0};
    struct message_context context = {&source, &err};
    begin(SOURCE_SERVING, PEER_LOADED, 0);
    source.options = &watched;
    for (unsigned i = 0; i < 20000; i++) {
        struct ibx_migrate_any message = {.type = IBX_MIGRATE_PROGRESS};
        snprintf(message.is.progress.status, sizeof(message.is.progress.status), "%s",
                 i % 2 ? "running" : IBX_VM_IO_ERROR);
        assert_int_equal(ibx_source_on_message(&context, &message), 0);
    }
    assert_in_range(lines, 1, 1000);
    assert_int_equal(on(IBX_MIGRATE_ENDED, &err), 0);
    assert_non_null(strstr(last_line, "the guest has shut the VM down at the destination"));
}

/* Pages that home seems to have are not sent, so that its map must be the one it has summed up. */
static void test_a_map_of_home_that_does_not_add_up(NO_STATE)
{
    for (unsigned wrong = 0; wrong <= WRONG_SUMS; wrong++) {
        struct ibx_error err = {0};
        struct message_context context = {&source, &err};
        begin(SOURCE_EXPOSING, PEER_QUIET, RETURNS);
        const struct ibx_migrate_any end =
            summed_up(&source.home.have, IBX_MIGRATE_HAVE_END, wrong);
        assert_int_equal(ibx_source_on_message(&context, &end), wrong ? -EPROTO : 0);
        assert_int_equal(source.home.have_it, !wrong);
        ibx_page_map_fini(&source.home.have);
    }
}

/* Many lines of one kind do not suppress lines of another kind, whatever their wording. */
static void test_kinds_of_lines_are_limited_separately(NO_STATE)
{
    static const struct ibx_migrate_observer observer = {.notify = count_line};
    static char formats[300][8];
    for (unsigned i = 0; i < 300; i++)
        snprintf(formats[i], sizeof(formats[i]), "%s", "%u");
    for (unsigned i = 0; i < 1000; i++)
        ibx_migration_notify(&observer, formats[0], i);
    for (unsigned i = 1; i < 300; i++) {
        ibx_migration_notify(&observer, formats[i], 1000 + i);
        assert_int_equal(strtoul(last_line, NULL, 10), 1000 + i);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_message_in_each_state),
        cmocka_unit_test(test_complete_after_the_end),
        cmocka_unit_test(test_complete_with_another_map),
        cmocka_unit_test(test_loaded_too_early),
        cmocka_unit_test(test_gives_up_after_running),
        cmocka_unit_test(test_a_destination_that_changes_its_mind),
        cmocka_unit_test(test_a_map_of_home_that_does_not_add_up),
        cmocka_unit_test(test_kinds_of_lines_are_limited_separately)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
