/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The loop of a source: which failures reach those who handle them, and what is noted when the VM
 * has stopped. */
#include "migrate/common/common.h"
#include "tests/fixtures/new_source.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

static struct source s;
static struct ibx_error error;
static struct ibx_send_options options = {.folder = "/nonexistent"};

/* ------------------------------------------------------------ replaced functions */

static struct {
    int pages, verified, compared, warm; /* what these return */
    size_t fails; /* which step before QEMU migrates fails, from 1; 0: none */
} is;
static struct {
    int trouble; /* what the link's end was told; 0: it was not reached */
    unsigned confirmed;
    bool kept;      /* the VM stays, before the commit */
    uint32_t early; /* pages that went ahead of the map */
    char order[16]; /* at the stop: r, m, e: pages of a return, the map were noted; exposed */
} was;

int __wrap_ibx_page_server_failed(struct ibx_page_server *server, struct ibx_error *err);
int __wrap_ibx_page_server_failed(struct ibx_page_server *server, struct ibx_error *err)
{
    (void)server;
    return is.pages ? ibx_error_set(err, is.pages, "a page connection has failed") : 0;
}

int __wrap_ibx_source_verified(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_verified(struct source *of, struct ibx_error *err)
{
    (void)of;
    return is.verified ? ibx_error_set(err, is.verified, "so it is") : 0;
}

/* Ends the loop. */
int __wrap_ibx_source_link_trouble(struct source *of, int code, struct ibx_error *err);
int __wrap_ibx_source_link_trouble(struct source *of, int code, struct ibx_error *err)
{
    (void)err;
    was.trouble = code;
    of->state.now = SOURCE_LEFT;
    return code;
}

int __wrap_ibx_source_confirm(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_confirm(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    was.confirmed++;
    return 0;
}

int __wrap_ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns,
                           uint64_t busy_until_ns);
int __wrap_ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns,
                           uint64_t busy_until_ns)
{
    (void)fds, (void)count, (void)wait_ns, (void)busy_until_ns;
    s.state.now = SOURCE_LEFT;
    return 0;
}

unsigned __wrap_ibx_control_socket_poll_fds(struct ibx_control_socket *server, struct pollfd *fds);
unsigned __wrap_ibx_control_socket_poll_fds(struct ibx_control_socket *server, struct pollfd *fds)
{
    (void)server, (void)fds;
    return 0;
}

int __wrap_ibx_channel_take(struct ibx_channel *channel, ibx_channel_handler handler, void *context,
                            struct ibx_error *err);
int __wrap_ibx_channel_take(struct ibx_channel *channel, ibx_channel_handler handler, void *context,
                            struct ibx_error *err)
{
    (void)channel, (void)handler, (void)context, (void)err;
    return 0;
}

unsigned __wrap_ibx_migration_signals_take(struct migration_signals *signals, bool hangups);
unsigned __wrap_ibx_migration_signals_take(struct migration_signals *signals, bool hangups)
{
    (void)signals, (void)hangups;
    return 0;
}

int __wrap_ibx_source_check_qemu(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_check_qemu(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_source_stream_widen(struct source_stream *stream);
int __wrap_ibx_source_stream_widen(struct source_stream *stream)
{
    (void)stream;
    return 0;
}

int __wrap_ibx_source_find_map(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_find_map(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_source_return_compared(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_return_compared(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return is.compared;
}

int __wrap_ibx_source_warm_stopped(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_warm_stopped(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return is.warm;
}

void __wrap_ibx_source_return_note(struct source *of);
void __wrap_ibx_source_return_note(struct source *of)
{
    (void)of;
    strcat(was.order, "r");
}

void __wrap_ibx_source_stop_map_note(struct source *of);
void __wrap_ibx_source_stop_map_note(struct source *of)
{
    (void)of;
    strcat(was.order, "m");
}

int __wrap_ibx_source_link_expose(struct source_link *link, struct ibx_error *err);
int __wrap_ibx_source_link_expose(struct source_link *link, struct ibx_error *err)
{
    (void)link, (void)err;
    strcat(was.order, "e");
    return 0;
}

/* The steps before QEMU migrates, each with its letter. */
static int step_is(char letter, struct ibx_error *err)
{
    const size_t n = strlen(was.order);
    was.order[n] = letter;
    return is.fails && n + 1 == is.fails ? ibx_error_set(err, -EPERM, "it is refused") : 0;
}

int __wrap_ibx_source_check_memory(struct ibx_error *err);
int __wrap_ibx_source_check_memory(struct ibx_error *err)
{

    return step_is('m', err);
}

int __wrap_ibx_source_check_block_users(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_check_block_users(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('u', err);
}

int __wrap_ibx_source_set_settings(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_set_settings(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('s', err);
}

int __wrap_ibx_source_find_images(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_find_images(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('i', err);
}

int __wrap_ibx_migration_record(const char *in, struct ibx_record *record,
                                enum ibx_journal_state state, struct ibx_error *err);
int __wrap_ibx_migration_record(const char *in, struct ibx_record *record,
                                enum ibx_journal_state state, struct ibx_error *err)
{
    (void)in, (void)record;
    assert_int_equal(state, IBX_JOURNAL_MAY_RUN);
    return step_is('w', err);
}

int __wrap_ibx_source_check_compared(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_check_compared(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('c', err);
}

int __wrap_ibx_source_check_settings(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_check_settings(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('S', err);
}

int __wrap_ibx_source_check_status(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_check_status(struct source *of, struct ibx_error *err)
{
    (void)of;
    return step_is('t', err);
}

int __wrap_ibx_watchdog_touched(struct ibx_watchdog *watchdog, struct ibx_error *err);
int __wrap_ibx_watchdog_touched(struct ibx_watchdog *watchdog, struct ibx_error *err)
{
    (void)watchdog;
    return step_is('T', err);
}

int __wrap_ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp,
                                  const json_t *before, struct ibx_error *err);
int __wrap_ibx_source_stream_open(struct source_stream *stream, struct ibx_qmp *qmp,
                                  const json_t *before, struct ibx_error *err)
{
    (void)stream, (void)qmp, (void)before;
    return step_is('o', err);
}

int __wrap_ibx_source_warm_begin(struct source *of, struct ibx_error *err);
int __wrap_ibx_source_warm_begin(struct source *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_source_link_exposed(struct source_link *link, struct ibx_error *err);
int __wrap_ibx_source_link_exposed(struct source_link *link, struct ibx_error *err)
{
    (void)link, (void)err;
    return 0;
}

void __wrap_ibx_source_compared_ask(struct source *of, bool stopped);
void __wrap_ibx_source_compared_ask(struct source *of, bool stopped)
{
    (void)of, (void)stopped;
}

/* Ends the loop, too. */
int __wrap_ibx_source_keep(struct source *of, int code, struct ibx_error *err);
int __wrap_ibx_source_keep(struct source *of, int code, struct ibx_error *err)
{
    (void)err;
    was.kept = true;
    of->state.now = SOURCE_LEFT;
    return code;
}

bool __wrap_ibx_source_link_has_early(const struct source_link *link);
bool __wrap_ibx_source_link_has_early(const struct source_link *link)
{
    (void)link;
    return true;
}

const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn);
const struct ibx_path *__wrap_ibx_conn_path(const struct ibx_conn *conn)
{
    static const struct ibx_path path;
    (void)conn;
    return &path;
}

int __wrap_ibx_tracker_mapped_part(const struct ibx_tracker *tracker, size_t block, uint64_t first,
                                   uint64_t pages, uint64_t *bits, struct ibx_error *err);
int __wrap_ibx_tracker_mapped_part(const struct ibx_tracker *tracker, size_t block, uint64_t first,
                                   uint64_t pages, uint64_t *bits, struct ibx_error *err)
{
    (void)tracker, (void)block, (void)first, (void)pages, (void)err;
    *bits = 0xfe;
    return 0;
}

int __wrap_ibx_source_link_send_early(struct source_link *link, uint32_t which,
                                      struct ibx_error *err);
int __wrap_ibx_source_link_send_early(struct source_link *link, uint32_t which,
                                      struct ibx_error *err)
{
    (void)link, (void)err;
    was.early = which;
    return 0;
}

/* ------------------------------------------------------------ steps */

static void begin(enum source_state at, enum source_peer_state peer)
{
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    memset(&error, 0, sizeof(error));
    options.give_up_s = 0;
    new_source(&s, &options);
    s.heard_ns = ibx_now_ns();
    s.reporter.observer = &options.observer;
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.state.now = at;
    s.peer.now = peer;
    s.link.state.now = LINK_MAPPED;
    s.status.record.state = IBX_JOURNAL_MOVED;
}

/* ------------------------------------------------------------ tests */

/* Its pages would wait for ever, though the control connection lives. */
static void test_a_page_connection_fails(NO_STATE)
{
    begin(SOURCE_SERVING, PEER_LOADED);
    s.link.pages = (struct ibx_page_server *)&s;
    is.pages = -ECONNRESET;
    assert_int_equal(ibx_source_run(&s, &error), -ECONNRESET);
    assert_int_equal(was.trouble, -ECONNRESET);
    s.link.pages = NULL;
}

/* Nothing is confirmed before all pages are compared, and what the comparison says is heard. */
static void test_what_the_comparison_says(NO_STATE)
{
    static const struct {
        int verified, trouble;
        bool confirmed;
    } cases[] = {{0, 0, true}, {-EAGAIN, 0, false}, {-EPROTO, -EPROTO, false}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_SERVING, PEER_COMPLETE);
        is.verified = cases[i].verified;
        assert_int_equal(ibx_source_run(&s, &error), cases[i].trouble);
        assert_int_equal(was.trouble, cases[i].trouble);
        assert_int_equal(was.confirmed, cases[i].confirmed);
    }
}

/* Whatever is refused before QEMU migrates, the VM is not stopped for it. MAY_RUN is on record, and
 * the watchdog knows, before QEMU can have stopped the VM. */
static void test_what_is_done_before_qemu_migrates(NO_STATE)
{
    static const char all[] = "musiwcStuTo";
    for (size_t fails = 0; fails < sizeof(all); fails++) {
        begin(SOURCE_EXPOSING, PEER_READY);
        is.fails = fails;
        assert_int_equal(ibx_source_run(&s, &error), fails ? -EPERM : 0);
        assert_int_equal(was.kept, fails != 0);
        assert_int_equal(strlen(was.order), fails ? fails : sizeof(all) - 1);
        assert_memory_equal(was.order, all, strlen(was.order));
        assert_int_equal(s.vm.undo.touched, !fails || fails == sizeof(all) - 1);
    }
}

/* A tool that takes over needs both notes of the stop. They are made before the destination gets
 * the map, and once the pages of a return are compared. */
static void test_what_is_noted_at_the_stop(NO_STATE)
{
    static const struct {
        int compared, warm, rc;
        const char *order;
    } cases[] = {{0, 0, 0, "rme"}, {-EAGAIN, 0, 0, ""}, {0, -ENOMEM, -ENOMEM, ""}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_STARTING, PEER_READY);
        is.compared = cases[i].compared;
        is.warm = cases[i].warm;
        assert_int_equal(ibx_source_on_quiet(&s, &error), cases[i].rc);
        assert_int_equal(s.state.now, SOURCE_STOPPED);
        assert_string_equal(was.order, cases[i].order);
    }
}

/* A page of a VM that returns may go ahead of the map only if the map will have it: it held data
 * when the VM came, is in its place, and QEMU has it mapped. Home refuses any other. */
static void test_which_pages_go_ahead_of_the_map(NO_STATE)
{
    enum { WORDS = IBX_EARLY_AT / IBX_EARLY_PAGE / 64 + 1 };
    static uint64_t base[WORDS], arrived[2 * WORDS];
    begin(SOURCE_STOPPED, PEER_READY);
    s.warm.state.now = WARM_OVER;
    s.vm.map.pages = WORDS * 64;
    s.home.base.memory = base;
    s.home.arrived.memory = arrived;
    base[WORDS - 1] = 0xfb;
    arrived[2 * WORDS - 1] = 0xf7;
    assert_int_equal(ibx_source_return_send_early(&s, &error), 0);
    assert_int_equal(was.early, 0xf2);
    assert_true(s.home.early);
}

/* The destination's main thread may wait for QEMU's monitor: that is no broken link, however short
 * the transport's timeout is. */
static void test_how_long_a_destination_may_be_silent(NO_STATE)
{
    static const unsigned timeouts_ms[] = {1000, 4000, 10000};
    const uint64_t least_ms = MIGRATION_QMP_MS + 10000;
    for (unsigned i = 0; i < COUNT(timeouts_ms); i++) {
        const uint64_t times_ms = 5ull * timeouts_ms[i];
        const uint64_t limit_ms = times_ms > least_ms ? times_ms : least_ms;
        for (unsigned late = 0; late < 2; late++) {
            begin(SOURCE_SERVING, PEER_LOADED);
            s.transport.timeout_ms = timeouts_ms[i];
            s.status.silent_ns = (limit_ms - !late) * IBX_NS_PER_MS;
            ibx_source_run(&s, &error);
            assert_int_equal(was.trouble, late ? -ETIMEDOUT : 0);
        }
    }
}

/* Something between the hosts may swallow COMMIT or RUNNING: then the VM runs nowhere, or nobody
 * serves it, until another link is made. libvirt may take its time to continue the VM. */
static void test_how_long_running_may_not_come(NO_STATE)
{
    const uint64_t least_ms = MIGRATION_QMP_MS + 10000;
    for (unsigned way = 0; way < 3; way++) {
        const bool late = way == 1;
        begin(SOURCE_COMMITTED, PEER_LOADED);
        if (way == 2)
            ibx_source_vm_drive(&s.vm, true);
        s.transport.timeout_ms = 1000;
        s.heard_ns = ibx_now_ns() - (way ? least_ms : least_ms - 5000) * IBX_NS_PER_MS;
        ibx_source_run(&s, &error);
        assert_int_equal(was.trouble, late ? -ETIMEDOUT : 0);
        assert_int_equal(s.unsure_ns, late ? s.heard_ns : 0);
    }
}

/* A destination that answers each new link, and never says that the VM runs, is not asked for ever.
 */
static void test_how_long_new_links_are_made(NO_STATE)
{
    for (unsigned late = 0; late < 2; late++) {
        begin(SOURCE_COMMITTED, PEER_LOADED);
        s.transport.timeout_ms = 1000;
        s.heard_ns = ibx_now_ns();
        s.unsure_ns = s.heard_ns - (late ? 60000 : 50000) * IBX_NS_PER_MS;
        assert_int_equal(ibx_source_run(&s, &error), late ? -ETIMEDOUT : 0);
        assert_int_equal(s.state.now, SOURCE_LEFT); /* if early, by the end of the loop */
        assert_int_equal(was.trouble, 0);
        assert_int_equal(!!strstr(error.message, "has not said whether the VM runs"), late);
    }
}

/* --give-up limits that, too. The first new link is made however short it is. */
static void test_how_long_new_links_are_made_before_giving_up(NO_STATE)
{
    const uint64_t silent_ms = MIGRATION_QMP_MS + 10000;
    for (unsigned late = 0; late < 2; late++) {
        begin(SOURCE_COMMITTED, PEER_LOADED);
        s.transport.timeout_ms = 1000;
        options.give_up_s = 10;
        s.heard_ns = ibx_now_ns();
        s.unsure_ns = s.heard_ns - (silent_ms + (late ? 10000 : 5000)) * IBX_NS_PER_MS;
        assert_int_equal(ibx_source_run(&s, &error), late ? -ETIMEDOUT : 0);
        assert_int_equal(!!strstr(error.message, "has not said whether the VM runs"), late);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_page_connection_fails),
        cmocka_unit_test(test_what_the_comparison_says),
        cmocka_unit_test(test_what_is_done_before_qemu_migrates),
        cmocka_unit_test(test_what_is_noted_at_the_stop),
        cmocka_unit_test(test_which_pages_go_ahead_of_the_map),
        cmocka_unit_test(test_how_long_a_destination_may_be_silent),
        cmocka_unit_test(test_how_long_running_may_not_come),
        cmocka_unit_test(test_how_long_new_links_are_made),
        cmocka_unit_test(test_how_long_new_links_are_made_before_giving_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
