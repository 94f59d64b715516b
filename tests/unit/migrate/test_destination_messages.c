/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Every message in every state of a destination. A message is accepted in the few states to
 * which it belongs; in any other one it causes a named error and changes nothing. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/unit.h"
#include "tests/fixtures/wrong_map.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define EPOCH 3u

static struct destination destination;
static const struct ibx_receive_options options = {.folder = "/nonexistent"};

#define IN(state) (1u << (state))
#define ANY       (~0u)
#define OURS                                                                                       \
    (IN(DESTINATION_RESUMING) | IN(DESTINATION_FILLING) | IN(DESTINATION_COMPLETE) |               \
     IN(DESTINATION_SHUT_DOWN))

/* the state of a destination */
struct at {
    unsigned state, link, stream, warm, peer;
    bool managed, kept;
};

/* Combinations that can occur: states of the link, of the device state, and of pages before the
 * stop. */
static const struct {
    unsigned states, links, streams, warms; /* bits */
} reached[] = {
    {IN(DESTINATION_JOINING), IN(LINK_OPEN), IN(STREAM_CLOSED), IN(WARM_OFF) | IN(WARM_WISHED)},
    {IN(DESTINATION_READY), IN(LINK_OPEN), IN(STREAM_TAKING),
     IN(WARM_OFF) | IN(WARM_IDLE) | IN(WARM_NAMED) | IN(WARM_FETCHING) | IN(WARM_PREPARED) |
         IN(WARM_SETTLED)},
    {IN(DESTINATION_READY), IN(LINK_MAPPED), IN(STREAM_TAKING) | IN(STREAM_WHOLE),
     IN(WARM_OFF) | IN(WARM_APPLIED)},
    {IN(DESTINATION_MAPPED), IN(LINK_SERVING), IN(STREAM_TAKING) | IN(STREAM_WHOLE),
     IN(WARM_OFF) | IN(WARM_APPLIED)},
    {IN(DESTINATION_WAITING), IN(LINK_OPEN) | IN(LINK_MAPPED) | IN(LINK_SERVING), IN(STREAM_WHOLE),
     IN(WARM_OFF) | IN(WARM_APPLIED)},
    {IN(DESTINATION_RESUMING) | IN(DESTINATION_FILLING),
     IN(LINK_OPEN) | IN(LINK_MAPPED) | IN(LINK_SERVING), IN(STREAM_ENDING) | IN(STREAM_FED),
     IN(WARM_OFF) | IN(WARM_APPLIED)},
    {IN(DESTINATION_COMPLETE) | IN(DESTINATION_SHUT_DOWN),
     IN(LINK_OPEN) | IN(LINK_MAPPED) | IN(LINK_SERVING), IN(STREAM_FED),
     IN(WARM_OFF) | IN(WARM_APPLIED)},
};

/* The states in which a message is valid; a message that is not listed is valid in none. */
static const struct belongs {
    enum ibx_migrate_message type;
    unsigned states, links, streams, warms; /* bits */
    bool managed, kept;                     /* valid only in this case */
} belong[] = {
    {IBX_MIGRATE_ROUND, IN(DESTINATION_READY), IN(LINK_OPEN), ANY,
     IN(WARM_IDLE) | IN(WARM_PREPARED), false, false},
    {IBX_MIGRATE_ROUND_END, IN(DESTINATION_READY), IN(LINK_OPEN), ANY,
     IN(WARM_IDLE) | IN(WARM_PREPARED), false, false},
    {IBX_MIGRATE_MAP,
     IN(DESTINATION_READY) | IN(DESTINATION_WAITING) | IN(DESTINATION_RESUMING) |
         IN(DESTINATION_FILLING),
     IN(LINK_OPEN), ANY, ANY, false, false},
    {IBX_MIGRATE_MAP_END,
     IN(DESTINATION_READY) | IN(DESTINATION_WAITING) | IN(DESTINATION_RESUMING) |
         IN(DESTINATION_FILLING),
     IN(LINK_OPEN), ANY, IN(WARM_OFF) | IN(WARM_SETTLED) | IN(WARM_APPLIED), false, false},
    {IBX_MIGRATE_PAGES, IN(DESTINATION_READY) | IN(DESTINATION_MAPPED),
     IN(LINK_MAPPED) | IN(LINK_SERVING), IN(STREAM_TAKING), ANY, false, false},
    {IBX_MIGRATE_PAGES, IN(DESTINATION_READY), IN(LINK_OPEN), IN(STREAM_TAKING), ANY, false, true},
    {IBX_MIGRATE_STATE, IN(DESTINATION_READY) | IN(DESTINATION_MAPPED), ANY, IN(STREAM_TAKING), ANY,
     false, false},
    {IBX_MIGRATE_STATE_END, IN(DESTINATION_READY) | IN(DESTINATION_MAPPED),
     IN(LINK_MAPPED) | IN(LINK_SERVING), IN(STREAM_TAKING), ANY, false, false},
    {IBX_MIGRATE_COMMIT, IN(DESTINATION_WAITING), ANY, ANY, ANY, false, false},
    {IBX_MIGRATE_DECIDED, OURS, ANY, ANY, ANY, true, false},
    {IBX_MIGRATE_CONFIRM, IN(DESTINATION_COMPLETE) | IN(DESTINATION_SHUT_DOWN), ANY, ANY, ANY,
     false, false},
    {IBX_MIGRATE_BROKEN, IN(DESTINATION_WAITING) | OURS, ANY, ANY, ANY, false, false},
    {IBX_MIGRATE_ABORT, ANY, ANY, ANY, ANY, false, false},
};

static bool belongs(const struct at *at, enum ibx_migrate_message type)
{
    for (size_t i = 0; i < sizeof(belong) / sizeof(belong[0]); i++) {
        const struct belongs *b = &belong[i];
        if (b->type == type && b->states & IN(at->state) && b->links & IN(at->link) &&
            b->streams & IN(at->stream) && b->warms & IN(at->warm) &&
            (!b->managed || at->managed) && (!b->kept || at->kept))
            return true;
    }
    return false;
}

static void begin(const struct at *at)
{
    new_destination(&destination, &options);
    destination.complete_ns = 1;
    assert_int_equal(ibx_destination_begin(&destination, DESTINATION_LISTENING), 0);
    destination.status.record.epoch = EPOCH;
    destination.state.now = at->state;
    destination.link.state.now = at->link;
    destination.stream.state.now = at->stream;
    destination.warm.state.now = at->warm;
    destination.peer.now = at->peer;
    destination.qemu.managed = at->managed;
    destination.ram.kept = at->kept;
}

/* Makes a well-formed message of a VM without memory. */
static struct ibx_migrate_any message_of(enum ibx_migrate_message type, uint64_t epoch)
{
    static const uint8_t one[1];
    struct ibx_migrate_any message = {.type = type};
    if (type == IBX_MIGRATE_STATE)
        message.is.state = (struct ibx_bytes){one, sizeof(one)};
    else if (type == IBX_MIGRATE_PAGES)
        message.is.pages.bytes.bytes = one; /* bits: no pages */
    else if (type == IBX_MIGRATE_MAP_END)
        ibx_page_map_hash(&destination.ram.map, message.is.map_end.hash);
    else if (type == IBX_MIGRATE_ABORT || type == IBX_MIGRATE_BROKEN)
        snprintf(message.is.reason, sizeof(message.is.reason), "no");
    else if (type == IBX_MIGRATE_COMMIT)
        message.is.commit = (struct ibx_migrate_commit){.epoch = epoch, .runs = true};
    else if (type == IBX_MIGRATE_CONFIRM || type == IBX_MIGRATE_DECIDED)
        message.is.epoch = epoch;
    else if (type == IBX_MIGRATE_ROUND_END) /* not the next number */
        message.is.round = (struct ibx_migrate_round){.number = 7, .kind = IBX_ROUND_STALE};
    return message;
}

static int on(enum ibx_migrate_message type, uint64_t epoch, struct ibx_error *err)
{
    const struct ibx_migrate_any message = message_of(type, epoch);
    struct message_context context = {&destination, err};
    return ibx_destination_on_message(&context, &message);
}

static bool of_an_epoch(enum ibx_migrate_message type)
{
    return type == IBX_MIGRATE_COMMIT || type == IBX_MIGRATE_CONFIRM || type == IBX_MIGRATE_DECIDED;
}

static void one_message(const struct at *at, enum ibx_migrate_message type, uint64_t epoch)
{
    static const struct ibx_migrate_block block = {"ram", 64 * 4096, 4096, 0};
    struct ibx_error err = {0};
    begin(at);
    if (type == IBX_MIGRATE_ROUND || type == IBX_MIGRATE_ROUND_END)
        assert_int_equal(ibx_page_map_init(&destination.warm.part, &block, 1, NULL), 0);
    const struct ibx_record before = destination.status.record;
    const int rc = on(type, epoch, &err);
    const bool refused = rc == -EPROTO && strstr(err.message, "while the destination was");
    if (refused != !(belongs(at, type) && epoch == EPOCH))
        fail_msg("%s in state %u, link %u, stream %u, warm %u, peer %u: %d (%s)",
                 ibx_migrate_message_name(type), at->state, at->link, at->stream, at->warm,
                 at->peer, rc, err.message);
    if (!refused && type == IBX_MIGRATE_COMMIT) /* whatever HELLO said */
        assert_int_equal(destination.wish, WISH_RUNS);
    if (refused) {
        assert_int_equal(destination.state.now, at->state);
        assert_int_equal(destination.link.state.now, at->link);
        assert_int_equal(destination.stream.state.now, at->stream);
        assert_int_equal(destination.warm.state.now, at->warm);
        assert_int_equal(destination.peer.now, at->peer);
        assert_memory_equal(&destination.status.record, &before, sizeof(before));
    }
    ibx_destination_stream_fini(&destination.stream);
    ibx_destination_early_fini(&destination.early);
    ibx_destination_warm_fini(&destination.warm);
}

static void each_message(const struct at *at)
{
    for (enum ibx_migrate_message type = IBX_MIGRATE_HELLO; type <= IBX_MIGRATE_COMPARED; type++) {
        if (type == IBX_MIGRATE_MAP_END && at->warm == WARM_SETTLED)
            continue; /* it would drop pages of guest RAM */
        one_message(at, type, EPOCH);
        if (of_an_epoch(type)) {
            one_message(at, type, EPOCH - 1);
            one_message(at, type, EPOCH + 1);
        }
    }
}

static void each_reached(unsigned row, unsigned agreed)
{
    for (unsigned i = 0; i < 1u << 16; i++) {
        const struct at at = {.state = i & 15,
                              .link = i >> 4 & 7,
                              .stream = i >> 7 & 7,
                              .warm = i >> 10 & 15,
                              .peer = i >> 14,
                              .managed = agreed & 1,
                              .kept = agreed & 2};
        if (at.peer <= PEER_CONFIRMED && reached[row].states & IN(at.state) &&
            reached[row].links & IN(at.link) && reached[row].streams & IN(at.stream) &&
            reached[row].warms & IN(at.warm))
            each_message(&at);
    }
}

static void test_each_message_in_each_state(NO_STATE)
{
    for (unsigned row = 0; row < sizeof(reached) / sizeof(reached[0]); row++)
        for (unsigned agreed = 0; agreed < 4; agreed++)
            each_reached(row, agreed);
}

/* Pages that the map leaves out are taken for zero, so that it must be the one that the source has
 * summed up. */
static void test_a_map_that_does_not_add_up(NO_STATE)
{
    static const struct at at = {.state = DESTINATION_RESUMING, .link = LINK_OPEN};
    for (unsigned wrong = 0; wrong <= WRONG_SUMS; wrong++) {
        struct ibx_error err = {0};
        struct message_context context = {&destination, &err};
        begin(&at);
        const struct ibx_migrate_any end =
            summed_up(&destination.ram.map, IBX_MIGRATE_MAP_END, wrong);
        assert_int_equal(ibx_destination_on_message(&context, &end), wrong ? -EPROTO : 0);
        assert_int_equal(destination.link.state.now, wrong ? LINK_OPEN : LINK_MAPPED);
        ibx_page_map_fini(&destination.ram.map);
        ibx_destination_early_fini(&destination.early);
        ibx_destination_warm_fini(&destination.warm);
        ibx_destination_stream_fini(&destination.stream);
    }
}

/* A page that came ahead of the map, and that the map calls zero, would stay what it was. */
static void test_a_page_that_the_map_does_not_have(NO_STATE)
{
    static const struct at at = {
        .state = DESTINATION_READY, .link = LINK_OPEN, .stream = STREAM_TAKING, .kept = true};
    struct ibx_error err = {0};
    struct message_context context = {&destination, &err};
    begin(&at);
    const struct ibx_migrate_any end = summed_up(&destination.ram.map, IBX_MIGRATE_MAP_END, 0);
    destination.early.pages[destination.early.count++] = 7; /* the first one of the map */
    destination.early.pages[destination.early.count++] = 6;
    assert_int_equal(ibx_destination_on_message(&context, &end), -EPROTO);
    text_has(err.message, "page 6 ahead of the page map");
    assert_int_equal(destination.link.state.now, LINK_OPEN);
    ibx_page_map_fini(&destination.ram.map);
    ibx_destination_early_fini(&destination.early);
    ibx_destination_warm_fini(&destination.warm);
    ibx_destination_stream_fini(&destination.stream);
}

/* The map of the stop is all that a return has to tell what home holds, and a tool that takes over
 * must not fetch pages that were here before. A later link brings the map again, when holes at home
 * may have become pages of zeros. */
static void test_the_map_and_pages_of_before_are_noted(NO_STATE)
{
    static const unsigned states[] = {DESTINATION_READY, DESTINATION_FILLING};
    for (unsigned i = 0; i < COUNT(states); i++) {
        const struct at at = {.state = states[i], .link = LINK_OPEN, .stream = STREAM_TAKING};
        struct ibx_error err = {0};
        struct message_context context = {&destination, &err};
        uint64_t base = 0, arrived[2] = {0}, had = 1;
        begin(&at);
        struct destination_ram *ram = &destination.ram;
        const struct ibx_migrate_any end = summed_up(&ram->map, IBX_MIGRATE_MAP_END, 0);
        ram->base = (struct ibx_page_state){.memory = &base, .bytes = sizeof(base)};
        ram->arrived = (struct ibx_page_state){.memory = arrived, .bytes = sizeof(arrived)};
        ram->had = (struct ibx_page_map){.pages = 64, .bits = &had};
        assert_int_equal(ibx_destination_on_message(&context, &end), 0);
        assert_int_equal(base, i ? 0 : ram->map.bits[0]);
        assert_int_equal(arrived[0], 1);
        assert_int_equal(arrived[1], 1);
        ibx_page_map_fini(&ram->map);
        ibx_destination_early_fini(&destination.early);
        ibx_destination_warm_fini(&destination.warm);
        ibx_destination_stream_fini(&destination.stream);
    }
}

/* A source cannot confirm what it has not been told. */
static void test_confirmed_too_early(NO_STATE)
{
    const unsigned states[] = {DESTINATION_COMPLETE, DESTINATION_SHUT_DOWN};
    for (unsigned i = 0; i < COUNT(states); i++) {
        const struct at at = {.state = states[i], .link = LINK_SERVING, .stream = STREAM_FED};
        struct ibx_error err = {0};
        begin(&at);
        destination.complete_ns = 0;
        assert_int_equal(on(IBX_MIGRATE_CONFIRM, EPOCH, &err), -EPROTO);
        assert_int_equal(destination.peer.now, PEER_QUIET);
        destination.complete_ns = 1;
        assert_int_equal(on(IBX_MIGRATE_CONFIRM, EPOCH, &err), 0);
        assert_int_equal(destination.peer.now, PEER_CONFIRMED);
    }
}

/* A VM that was paused at its source does not run here. */
static void test_committed_as_it_was(NO_STATE)
{
    static const struct at at = {
        .state = DESTINATION_WAITING, .link = LINK_SERVING, .stream = STREAM_WHOLE};
    for (unsigned runs = 0; runs < 2; runs++) {
        const struct ibx_migrate_any commit = {.type = IBX_MIGRATE_COMMIT,
                                               .is.commit = {.epoch = EPOCH, .runs = runs}};
        struct ibx_error err = {0};
        struct message_context context = {&destination, &err};
        begin(&at);
        ibx_destination_on_message(&context, &commit);
        assert_int_equal(destination.wish, runs ? WISH_RUNS : WISH_PAUSED);
        ibx_destination_stream_fini(&destination.stream);
    }
}

/* From the commit on QEMU may run the VM, and nobody but this tool may take its memory off the
 * userfaultfd. */
static void test_the_watchdog_learns_of_the_commit(NO_STATE)
{
    static const struct at at = {
        .state = DESTINATION_WAITING, .link = LINK_SERVING, .stream = STREAM_WHOLE};
    struct ibx_error err = {0};
    char letter = 0;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    begin(&at);
    destination.watchdog = (struct destination_watchdog){.pid = getpid(), .fd = pair[0]};
    on(IBX_MIGRATE_COMMIT, EPOCH, &err);
    assert_int_equal(recv(pair[1], &letter, 1, MSG_DONTWAIT), 1);
    assert_int_equal(letter, 'C');
    ibx_destination_stream_fini(&destination.stream);
    close(pair[0]);
    close(pair[1]);
}

static bool at_home(const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    struct ibx_record home = {.source = true, .borrow = IBX_BORROW_FILL};
    memcpy(home.id, id, IBX_MIGRATE_ID_BYTES);
    return ibx_journal_home_marked(options.folder, &home);
}

/* COMPARED belongs to a borrowed VM that is here, and answers what was sent. */
static void comparisons_answer_digests_of_a_borrowed_vm(NO_STATE)
{
    struct ibx_error err = {0};
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPARED, .is.compared = 1};
    struct message_context context = {&destination, &err};
    static const struct at here = {.state = DESTINATION_FILLING, .link = LINK_SERVING},
                           waits = {.state = DESTINATION_WAITING, .link = LINK_SERVING};
    begin(&waits);
    destination.ram.borrow = IBX_BORROW_LAZY;
    assert_int_equal(ibx_destination_on_message(&context, &message), -EPROTO);
    assert_non_null(strstr(err.message, "while the destination was"));
    begin(&here);
    destination.ram.borrow = IBX_BORROW_LAZY;
    assert_int_equal(ibx_destination_on_message(&context, &message), -EPROTO);
    assert_non_null(strstr(err.message, "has compared 1 digests, after 0 of the 0"));
    assert_int_equal(destination.state.now, DESTINATION_FILLING);
}

/* Before a VM that returns can run here, it is noted that it may: its borrower gets no page any
 * more, from whatever tool. */
static void test_a_returning_vm_is_noted_before_it_runs(NO_STATE)
{
    static const struct at at = {
        .state = DESTINATION_WAITING, .link = LINK_SERVING, .stream = STREAM_WHOLE};
    struct ibx_record *home = &destination.home.record, *own = &destination.status.record;
    struct ibx_error err = {0};
    begin(&at);
    home->epoch = 1;
    snprintf((char *)home->id, sizeof(home->id), "%d", (int)getpid());
    memcpy(own->base, home->id, sizeof(own->base));
    on(IBX_MIGRATE_COMMIT, EPOCH, &err);
    const bool noted = at_home(home->id);
    /* A receiver that has not come so far leaves the marker, which is another one's. */
    own->state = IBX_JOURNAL_NOT_YET;
    ibx_destination_home_never_came(&destination);
    const bool stays = at_home(home->id);
    own->state = IBX_JOURNAL_MAY_RUN;
    ibx_destination_home_never_came(&destination);
    const bool gone = !at_home(home->id);
    ibx_journal_unmark_home(options.folder, home->id);
    assert_true(noted);
    assert_true(stays);
    assert_true(gone);
    ibx_destination_stream_fini(&destination.stream);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_message_in_each_state),
        cmocka_unit_test(test_a_page_that_the_map_does_not_have),
        cmocka_unit_test(test_the_map_and_pages_of_before_are_noted),
        cmocka_unit_test(test_confirmed_too_early),
        cmocka_unit_test(test_committed_as_it_was),
        cmocka_unit_test(test_the_watchdog_learns_of_the_commit),
        cmocka_unit_test(test_a_returning_vm_is_noted_before_it_runs),
        cmocka_unit_test(comparisons_answer_digests_of_a_borrowed_vm),
        cmocka_unit_test(test_a_map_that_does_not_add_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
