/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* `ib-migrate send` with a hostile destination: the test process is the destination and sends
 * something wrong in each state. Afterwards the guest, of a real QEMU, is alive and unharmed at
 * the source. */
#include "migrate/pages/pages.h"
#include "migrate/channel/channel.h"
#include "migrate/preflight/preflight.h"
#include "migrate/common/vm.h"
#include "tests/fixtures/line.h"
#include "tests/fixtures/mover.h"

#include "common/clock.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define LISTEN  "tcp://127.0.0.1:0?timeout_ms=10000"
#define LOOK_MS 5
#define LATE_MS 200  /* earlier data would be received in any case */
#define TELL_MS 5000 /* how long a source makes new links to report wrong memory */

static struct ibx_options options;

static void start_source(void)
{
    ibx_options_init(&options);
    options.message = IBX_MIGRATE_MESSAGE;
    options.slots = 4; /* far fewer than the device state has messages */
    pair_start_source();
}

static struct ibx_acceptor *acceptor;
static struct line source; /* the control connection to it */
static struct line source_page;

static void take_request(struct ibx_connection_request *request)
{
    const uint64_t deadline = vm_soon();
    struct pollfd wait = {.fd = ibx_acceptor_fd(acceptor), .events = POLLIN};
    while (!ibx_acceptor_take(acceptor, request)) {
        if (ibx_now_ns() >= deadline)
            fail_msg("nobody asked");
        poll(&wait, 1, LOOK_MS);
    }
}

static void answer_links(struct line *line, bool accepted, enum ibx_answer_state state,
                         uint16_t links)
{
    const struct ibx_migrate_answer reply = {.accepted = accepted,
                                             .state = (uint8_t)state,
                                             .links = links,
                                             .verify = accepted,
                                             .host = "liar",
                                             .count = accepted ? 0 : 1,
                                             .reasons = {"no room"}};
    line_send(line, &(struct ibx_migrate_any){.type = IBX_MIGRATE_ANSWER, .is.answer = &reply});
}

/* Answers with as many page connections as are offered. */
static void answer(struct line *line, bool accepted, enum ibx_answer_state state)
{
    answer_links(line, accepted, state, 1);
}

/* Takes the source's HELLO without answering. */
static void greeted(enum ibx_migrate_purpose purpose)
{
    struct ibx_connection_request request;
    take_request(&request);
    assert_int_equal(request.first.type, IBX_MIGRATE_HELLO);
    assert_int_equal(request.first.is.hello->purpose, purpose);
    source = (struct line){0};
    ibx_channel_init(&source.control, request.conn);
    ibx_migrate_message_free(&request.first);
}

static void joined(void)
{
    struct ibx_connection_request request;
    greeted(IBX_PURPOSE_MOVE);
    answer(&source, true, IBX_ANSWER_NONE);
    take_request(&request);
    assert_int_equal(request.first.type, IBX_MIGRATE_JOIN);
    source_page = (struct line){0};
    ibx_channel_init(&source_page.control, request.conn);
    assert_true(line_receives(&source_page, IBX_MIGRATE_REGION));
}

/* The VM is stopped at the source, and all of its state has arrived. */
static void got_state(void)
{
    joined();
    line_send_plain(&source, IBX_MIGRATE_READY);
    assert_true(line_receives(&source, IBX_MIGRATE_STATE_END));
}

static void got_commit(void)
{
    got_state();
    line_send_plain(&source, IBX_MIGRATE_LOADED);
    assert_true(line_receives(&source, IBX_MIGRATE_COMMIT));
}

static void send_abort(void)
{
    line_send(&source,
              &(struct ibx_migrate_any){.type = IBX_MIGRATE_ABORT, .is.reason = "no longer"});
    line_closes(&source);
}

static void close_both(void)
{
    line_close(&source);
    line_close(&source_page);
}

static void asked(void)
{
    greeted(IBX_PURPOSE_MOVE);
}

static void fib_refuses(void)
{
    answer(&source, false, IBX_ANSWER_NONE);
    line_closes(&source);
}

static void fib_wants_more_links(void)
{
    answer_links(&source, true, IBX_ANSWER_NONE, 2);
    line_closes(&source);
}

static void fib_warms_unasked(void)
{
    const struct ibx_migrate_answer reply = {.accepted = true,
                                             .state = IBX_ANSWER_NONE,
                                             .links = 1,
                                             .verify = true,
                                             .warm = true,
                                             .host = "liar"};
    line_send(&source, &(struct ibx_migrate_any){.type = IBX_MIGRATE_ANSWER, .is.answer = &reply});
    line_closes(&source);
}

static void fib_complete_early(void)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPLETE};
    message.is.totals.pages = message.is.totals.fetched_pages = 1;
    message.is.totals.progress.pages = message.is.totals.progress.present = 1;
    line_send(&source, &message);
    line_closes(&source);
}

/* Sends nothing more while the VM is stopped. */
static void fib_silent_with_the_state(void)
{
    assert_true(line_receives(&source, IBX_MIGRATE_ABORT));
}

/* The destination is stopped itself and has returned no credit. The ABORT is there when it
 * continues. */
static void fib_stopped_with_the_state(void)
{
    line_send_plain(&source, IBX_MIGRATE_READY);
    mover_ends(&sender, 1);
    assert_true(line_receives(&source, IBX_MIGRATE_ABORT));
    assert_false(source.received & 1u << IBX_MIGRATE_STATE_END);
}

/* Its ABORT arrives after the end of its page connection was noticed. */
static void fib_aborts_behind_the_end(void)
{
    line_close(&source_page);
    poll(NULL, 0, LATE_MS);
    send_abort();
}

static void fib_gives_up_when_asked(void)
{
    close_both();
    greeted(IBX_PURPOSE_RESUME);
    answer(&source, false, IBX_ANSWER_GIVEN_UP);
    line_closes(&source);
}

/* Everything is correct until `after`. Then this message, for which the source ends the
 * connection, is sent; or `tell` is called; or the connection is closed. */
struct fib {
    const char *name;
    void (*after)(void);
    enum ibx_migrate_message message; /* 0: no message */
    void (*tell)(void);               /* NULL: nothing */
    const char *words;                /* what `send` prints at its end */
    const char *timed;
};

static const struct fib fibs[] = {
    {"refuses", asked, 0, fib_refuses, "no room", NULL},
    {"wants more links", asked, 0, fib_wants_more_links, "wants 2 page connections where 1 to 1",
     NULL},
    {"warms unasked", asked, 0, fib_warms_unasked, "before the stop, and was not asked to", NULL},
    {"closes at HELLO", asked, 0, NULL, "lost", NULL},
    {"READY for an answer", asked, IBX_MIGRATE_READY, NULL, "answered HELLO with READY", NULL},
    {"closes when joined", joined, 0, NULL, "", NULL},
    {"LOADED early", joined, IBX_MIGRATE_LOADED, NULL, "sent LOADED while", NULL},
    {"RUNNING early", joined, IBX_MIGRATE_RUNNING, NULL, "sent RUNNING while", NULL},
    {"READY twice", got_state, IBX_MIGRATE_READY, NULL, "sent READY while", NULL},
    {"ENDED early", got_state, IBX_MIGRATE_ENDED, NULL, "sent ENDED while", NULL},
    {"COMPLETE early", got_state, 0, fib_complete_early, "sent COMPLETE while", NULL},
    {"CONFIRMED early", got_state, IBX_MIGRATE_CONFIRMED, NULL, "sent CONFIRMED while", NULL},
    {"closes with the state", got_state, 0, NULL, "", NULL},
    {"ABORT with the state", got_state, 0, send_abort, "no longer", NULL},
    {"ABORT after the commit", got_commit, 0, send_abort, "no longer", NULL},
    {"ABORT behind the end", got_commit, 0, fib_aborts_behind_the_end, "no longer", NULL},
    {"GIVEN_UP when asked", got_commit, 0, fib_gives_up_when_asked, "has given up", NULL},
    {0}};

/* The source waits five times its timeout for these. */
static const struct fib waits[] = {{"silent with the state", got_state, 0,
                                    fib_silent_with_the_state, "has been stopped",
                                    "timeout_ms=2000"},
                                   {"stopped with the state", joined, 0, fib_stopped_with_the_state,
                                    "has been stopped", "timeout_ms=2000"},
                                   {0}};

static void send_to_us(const char *timed)
{
    vm_soon();
    vm_ok(ibx_acceptor_open("tcp://127.0.0.1:0", &options, &acceptor, &vm_error));
    mover_send(&sender, &vms[0], ibx_acceptor_uri(acceptor),
               (const char *[]){"--links", "1", "--set", timed ? timed : "timeout_ms=10000", NULL});
}

static void each_lies(const struct fib *fib)
{
    start_source();
    for (; fib->name; fib++) {
        print_message("%s\n", fib->name);
        send_to_us(fib->timed);
        fib->after();
        if (fib->message) {
            line_send_plain(&source, fib->message);
            line_closes(&source);
        }
        if (fib->tell)
            fib->tell();
        close_both();
        ibx_acceptor_close(acceptor);
        if (sender.pid)
            mover_ends(&sender, 1);
        mover_must_print(&sender, fib->words);
        vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 1);
    }
    pair_runs_at_the_source();
}

static void test_destinations_that_lie(void)
{
    each_lies(fibs);
}

static void test_long_destinations_that_wait(void)
{
    each_lies(waits);
    mover_end_all(NULL);
}

/* A piece of the page map may not fit into its messages: the map would never come to its end, while
 * the VM stands still. */
static void test_a_destination_of_short_messages(void)
{
    char uri[128];
    start_source();
    options.message = 1024;
    snprintf(uri, sizeof(uri), "shm://%s/short", mover_folder);
    vm_ok(ibx_acceptor_open(uri, &options, &acceptor, &vm_error));
    mover_send(&sender, &vms[0], ibx_acceptor_uri(acceptor),
               (const char *[]){"--links", "1", "--set", "timeout_ms=10000", NULL});
    mover_ends(&sender, 1);
    mover_must_print(&sender, "takes messages of 1024 bytes");
    ibx_acceptor_close(acceptor);
    pair_runs_at_the_source();
}

/* The destination confirms nothing any more. */
static void interrupted(void)
{
    mover_kill(&sender, SIGINT);
    mover_await_words(&sender, "interrupt once more");
    mover_kill(&sender, SIGINT);
}

/* The sender ends with this status, and the operator takes the VM back. */
static void taken_back(int status)
{
    mover_ends(&sender, status);
    assert_false(vm_runs(&vms[0]));
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* A destination of another version cannot be asked whether the VM runs there, and it may. The
 * operator must end it first, or use that version. */
static void test_no_rollback_beside_another_version(void)
{
    struct mover rollback;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_ABORT};
    snprintf(message.is.reason, sizeof(message.is.reason), "the peer speaks version 7, this is 8");
    start_source();
    send_to_us(NULL);
    got_commit();
    line_send_plain(&source, IBX_MIGRATE_RUNNING);
    mover_await(&sender, "filling", 0);
    mover_kill(&sender, SIGKILL);
    close_both();
    for (unsigned tells = 0; tells < 2; tells++) { /* earlier versions only close */
        mover_start(&rollback,
                    (const char *[]){"rollback", "--qmp", vms[0].tool, "--yes", TIMED, NULL});
        greeted(IBX_PURPOSE_QUERY);
        if (tells) {
            line_send(&source, &message);
            line_closes(&source);
        }
        line_close(&source);
        mover_ends(&rollback, 1);
        mover_must_print(&rollback,
                         tells ? "the peer speaks version 7, this is 8" : "of an earlier release");
        mover_must_print(&rollback, "by an ib-migrate of that version");
        /* so do tools that are about to end */
        assert_int_equal(mover_printed(&rollback, "call rollback again in a second"), !tells);
        assert_false(vm_runs(&vms[0]));
    }
    ibx_acceptor_close(acceptor);
    MOVER_RUN(0, "rollback", "--qmp", vms[0].tool, "--yes", TIMED);
    pair_runs_at_the_source();
}

/* The destination calls a migration complete whose pages it cannot have. The source keeps all
 * pages. */
static void test_a_lie_about_the_end(void)
{
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPLETE};
    message.is.totals.pages = message.is.totals.fetched_pages = VM_RAM_MIB << 8;
    message.is.totals.progress.pages = message.is.totals.progress.present = VM_RAM_MIB << 8;
    start_source();
    send_to_us(NULL);
    got_commit();
    line_send_plain(&source, IBX_MIGRATE_RUNNING);
    line_send(&source, &message);
    line_closes(&source);
    assert_false(source.received & 1u << IBX_MIGRATE_CONFIRM);
    close_both();
    ibx_acceptor_close(acceptor);
    taken_back(3);
    mover_must_print(&sender, "another page map");
    mover_must_print(&sender, "ib-migrate rollback here restarts the VM from where it stopped");
}

/* A stranger at the destination's address refuses connections as if the migration had been given
 * up. That proves nothing: the VM may run at the destination. */
static void test_refused_after_the_commit(void)
{
    static const uint8_t refuse[] = {7, 0, 0, 0, 8, 0x83, 0xff, 0xff, 0xff, 0, 0}; /* -125 */
    char uri[300];
    start_source();
    send_to_us(NULL);
    got_commit();
    snprintf(uri, sizeof(uri), "%s", ibx_acceptor_uri(acceptor));
    ibx_acceptor_close(acceptor);
    const int listening = mover_listen_in_place_of(uri);
    close_both();
    for (unsigned tries = 0; tries < 2; tries++) {
        uint8_t hello[4096];
        struct pollfd wait = {.fd = listening, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, ibx_ms_until(vm_soon())), 1);
        const int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        assert_true(recv(fd, hello, sizeof(hello), 0) > 0);
        assert_int_equal(send(fd, refuse, sizeof(refuse), MSG_NOSIGNAL), sizeof(refuse));
        close(fd);
    }
    close(listening);
    assert_false(vm_runs(&vms[0]));
    interrupted();
    taken_back(3);
}

/* After COMMIT, as if the VM ran here, the destination sends something false. The source ends
 * the connection, keeps all pages, and gives the VM back. */
static void lie_to_the_end(void (*lie)(void), const char *words, int status)
{
    start_source();
    send_to_us(NULL);
    got_commit();
    line_send_plain(&source, IBX_MIGRATE_RUNNING);
    lie();
    mover_await_words(&sender, words);
    assert_false(source.received & 1u << IBX_MIGRATE_CONFIRM);
    close_both();
    ibx_acceptor_close(acceptor);
    if (status == 3)
        interrupted();
    taken_back(status);
    mover_end_all(NULL);
}

/* Digests of ranges that it never READ. */
static void lie_digests(void)
{
    static const uint8_t entries[2 * IBX_MIGRATE_DIGEST_ENTRY] = {0xff};
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_DIGEST};
    message.is.digest.entries.bytes = entries;
    message.is.digest.entries.length = sizeof(entries);
    line_send(&source, &message);
    assert_true(line_receives(&source, IBX_MIGRATE_BROKEN));
}

static void lie_digests_outside(void)
{
    static const uint8_t entries[IBX_MIGRATE_DIGEST_ENTRY];
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_DIGEST};
    message.is.digest.first = VM_RAM_MIB << 8;
    message.is.digest.entries.bytes = entries;
    message.is.digest.entries.length = sizeof(entries);
    line_send(&source, &message);
    line_closes(&source);
}

/* With the source's map, and without digests. */
static void lie_complete(void)
{
    struct ibx_guest_ram ram;
    struct ibx_page_map map;
    struct ibx_migrate_any message = {.type = IBX_MIGRATE_COMPLETE};
    uint64_t written, *bits = calloc(VM_RAM_MIB << 2, 8);
    assert_non_null(bits);
    vm_ok(ibx_guest_ram_find(vms[0].qmp, false, &ram, vm_soon(), &vm_error));
    vm_ok(ibx_page_map_init_ram(&map, &ram, &vm_error));
    vm_ok(ibx_guest_block_written(&ram, &ram.blocks[0], bits, &written, &vm_error));
    ibx_page_map_put_block(&map, 0, bits);
    message.is.totals.pages = message.is.totals.fetched_pages = map.pages;
    message.is.totals.progress.pages = message.is.totals.progress.present = map.pages;
    ibx_page_map_hash(&map, message.is.totals.hash);
    line_send(&source, &message);
    line_closes(&source);
    free(bits);
    ibx_page_map_fini(&map);
    ibx_guest_ram_fini(&ram);
}

static void test_lies_about_pages(void)
{
    lie_to_the_end(lie_digests, "is broken: pages 0 to 511", 1);
    lie_to_the_end(lie_digests_outside, "guest RAM has 16384 pages", 3);
    lie_to_the_end(lie_complete, "without the digests of all pages", 3);
}

/* A cut cable ends no connection. BROKEN gets no answer, and is sent again over the next
 * connection, after `slow_ms` in which the destination's host does nothing. */
static void broken_comes_again(const char *reason, uint64_t slow_ms)
{
    start_source();
    send_to_us(NULL);
    got_commit();
    line_send_plain(&source, IBX_MIGRATE_RUNNING);
    lie_digests();
    const uint64_t slow = ibx_deadline_in_ms(slow_ms);
    struct line cut = source;
    greeted(IBX_PURPOSE_RESUME);
    while (ibx_now_ns() < slow)
        poll(NULL, 0, LOOK_MS);
    answer(&source, true, IBX_ANSWER_RUNNING);
    assert_true(line_receives(&source, IBX_MIGRATE_BROKEN));
    struct ibx_migrate_any message = source.last;
    if (reason)
        snprintf(message.is.reason, sizeof(message.is.reason), "%s", reason);
    line_send(&source, &message);
    line_closes(&source);
    line_close(&cut);
    close_both();
    ibx_acceptor_close(acceptor);
    taken_back(1);
    assert_false(mover_printed(&sender, "could not be told"));
}

static void test_broken_comes_again(void)
{
    broken_comes_again(NULL, TELL_MS); /* the destination has paused the VM */
    assert_false(mover_printed(&sender, "could not pause"));
    mover_end_all(NULL);
    broken_comes_again("not paused: its monitor sleeps", 0);
    mover_must_print(&sender, "could not pause the VM (its monitor sleeps)");
}

/* The source's BROKEN meets one of the destination, about which it reports nothing more. */
static void test_broken_from_both(void)
{
    broken_comes_again("page 7 came twice with different bytes", 0);
    assert_false(mover_printed(&sender, "could not pause"));
}

int main(void)
{
    pair_timeout = "timeout_ms=10000";
    static const struct vm_test tests[] = {VM_TEST(test_destinations_that_lie),
                                           VM_TEST(test_long_destinations_that_wait),
                                           VM_TEST(test_a_destination_of_short_messages),
                                           VM_TEST(test_a_lie_about_the_end),
                                           VM_TEST(test_no_rollback_beside_another_version),
                                           VM_TEST(test_refused_after_the_commit),
                                           VM_TEST(test_lies_about_pages),
                                           VM_TEST(test_broken_comes_again),
                                           VM_TEST(test_broken_from_both),
                                           {0}};
    return vm_tests(tests, mover_end_all);
}
