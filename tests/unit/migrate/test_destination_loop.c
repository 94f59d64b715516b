/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The loop of a destination once the VM may run: what has to be true before the migration counts as
 * complete, and what is recorded and told then. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/new_destination.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static struct destination d;
static struct ibx_error error;
static struct ibx_receive_options options;
#define ENGINE ((struct ibx_fault *)&d)

/* ------------------------------------------------------------ replaced functions */

static struct {
    unsigned looks; /* at the pages, until one is found to have come in two ways; 0: none is */
    bool stands;    /* QEMU refuses to continue the VM */
    bool unnamed;   /* the files of the VM's memory have no names yet */
    bool misses;    /* not all pages are here */
    bool holds_on;  /* QEMU cannot be let go of yet */
    int end;        /* what recording the end returns */
    int engine;     /* why it has stopped; 0: it has not */
} is;
static struct {
    char order[32]; /* u: guest RAM was unlocked, t: the tags were removed, e: the end is on record,
                     * C: CONFIRMED was sent, P: PROGRESS, b: the VM is paused, l: the link is lost
                     */
    enum ibx_journal_state recorded;
    bool completed;
    int runs; /* 1: QEMU was told to run the VM; -1: to pause it */
} was;

int __wrap_ibx_destination_check_pages(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_check_pages(struct destination *of, struct ibx_error *err)
{
    (void)of;
    return is.looks && !--is.looks ? ibx_error_set(err, -EBADMSG, "a page has come in two ways")
                                   : 0;
}

int __wrap_ibx_destination_complete(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_complete(struct destination *of, struct ibx_error *err)
{
    (void)of, (void)err;
    was.completed = true;
    return 0;
}

bool __wrap_ibx_destination_has_let_go(struct destination *of);
bool __wrap_ibx_destination_has_let_go(struct destination *of)
{
    (void)of;
    return !is.holds_on;
}

void __wrap_ibx_destination_unlock(struct destination *of);
void __wrap_ibx_destination_unlock(struct destination *of)
{
    (void)of;
    strcat(was.order, "u");
}

int __wrap_ibx_destination_record_end(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_record_end(struct destination *of, struct ibx_error *err)
{
    (void)of;
    strcat(was.order, is.end ? "" : "e");
    return is.end ? ibx_error_set(err, is.end, "it cannot be written") : 0;
}

void __wrap_ibx_destination_tags_remove(const struct ibx_record *record);
void __wrap_ibx_destination_tags_remove(const struct ibx_record *record)
{
    (void)record;
    strcat(was.order, "t");
}

int __wrap_ibx_channel_send_plain(struct ibx_channel *channel, enum ibx_migrate_message type,
                                  struct ibx_error *err);
int __wrap_ibx_channel_send_plain(struct ibx_channel *channel, enum ibx_migrate_message type,
                                  struct ibx_error *err)
{
    (void)channel, (void)err;
    assert_int_equal(type, IBX_MIGRATE_CONFIRMED);
    strcat(was.order, "C");
    return 0;
}

void __wrap_ibx_destination_send_progress(struct destination *of);
void __wrap_ibx_destination_send_progress(struct destination *of)
{
    (void)of;
    strcat(was.order, "P");
}

void __wrap_ibx_destination_send_running(struct destination *of);
void __wrap_ibx_destination_send_running(struct destination *of)
{
    (void)of;
}

int __wrap_ibx_destination_send_complete(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_send_complete(struct destination *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_destination_record(struct destination *of, enum ibx_journal_state state,
                                  struct ibx_error *err);
int __wrap_ibx_destination_record(struct destination *of, enum ibx_journal_state state,
                                  struct ibx_error *err)
{
    (void)of, (void)err;
    was.recorded = state;
    return 0;
}

void __wrap_ibx_destination_qemu_run(struct destination_qemu *qemu, bool to_run);
void __wrap_ibx_destination_qemu_run(struct destination_qemu *qemu, bool to_run)
{
    was.runs = to_run ? 1 : -1;
    qemu->cont_ns = is.stands;
}

bool __wrap_ibx_destination_qemu_stands(struct destination_qemu *qemu);
bool __wrap_ibx_destination_qemu_stands(struct destination_qemu *qemu)
{
    (void)qemu;
    return is.stands;
}

bool __wrap_ibx_destination_home_rename_late(struct destination *of);
bool __wrap_ibx_destination_home_rename_late(struct destination *of)
{
    (void)of;
    return is.unnamed;
}

bool __wrap_ibx_destination_ram_whole(const struct destination_ram *ram);
bool __wrap_ibx_destination_ram_whole(const struct destination_ram *ram)
{
    (void)ram;
    return !is.misses;
}

bool __wrap_ibx_destination_ram_stopped(const struct destination_ram *ram);
bool __wrap_ibx_destination_ram_stopped(const struct destination_ram *ram)
{
    return !ram->engine || is.engine;
}

int __wrap_ibx_fault_reason(struct ibx_fault *engine, struct ibx_error *err);
int __wrap_ibx_fault_reason(struct ibx_fault *engine, struct ibx_error *err)
{
    (void)engine;
    return ibx_error_set(err, is.engine, "that is why");
}

int __wrap_ibx_fault_event_fd(const struct ibx_fault *engine);
int __wrap_ibx_fault_event_fd(const struct ibx_fault *engine)
{
    (void)engine;
    return -1;
}

/* These end the loop. */
int __wrap_ibx_destination_broken(struct destination *of, bool tell, struct ibx_error *err);
int __wrap_ibx_destination_broken(struct destination *of, bool tell, struct ibx_error *err)
{
    (void)err;
    assert_true(tell);
    strcat(was.order, "b");
    of->state.now = DESTINATION_BROKEN;
    return -EBADMSG;
}

int __wrap_ibx_destination_link_trouble(struct destination *of, int code, struct ibx_error *err);
int __wrap_ibx_destination_link_trouble(struct destination *of, int code, struct ibx_error *err)
{
    (void)err;
    strcat(was.order, "l");
    of->state.now = DESTINATION_LEFT;
    return code;
}

int __wrap_ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns,
                           uint64_t busy_until_ns);
int __wrap_ibx_thread_poll(struct pollfd *fds, unsigned count, uint64_t wait_ns,
                           uint64_t busy_until_ns)
{
    (void)fds, (void)count, (void)wait_ns, (void)busy_until_ns;
    d.state.now = DESTINATION_LEFT;
    return 0;
}

/* The rest of a turn is not looked at here. */
int __wrap_ibx_destination_check_interrupts(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_check_interrupts(struct destination *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_destination_check_qemu(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_check_qemu(struct destination *of, struct ibx_error *err)
{
    (void)of, (void)err;
    return 0;
}

int __wrap_ibx_destination_check_requests(struct destination *of, struct ibx_error *err);
int __wrap_ibx_destination_check_requests(struct destination *of, struct ibx_error *err)
{
    (void)of, (void)err;
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

void __wrap_ibx_destination_ram_stats(struct destination_ram *ram,
                                      struct ibx_migrate_status *status);
void __wrap_ibx_destination_ram_stats(struct destination_ram *ram,
                                      struct ibx_migrate_status *status)
{
    (void)ram, (void)status;
}

unsigned __wrap_ibx_destination_link_poll_fds(struct destination_link *link, bool readers,
                                              struct pollfd *fds, bool *at_once);
unsigned __wrap_ibx_destination_link_poll_fds(struct destination_link *link, bool readers,
                                              struct pollfd *fds, bool *at_once)
{
    (void)link, (void)readers, (void)fds, (void)at_once;
    return 0;
}

/* ------------------------------------------------------------ steps */

static void begin(enum destination_state at)
{
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    memset(&error, 0, sizeof(error));
    options = (struct ibx_receive_options){.folder = "/nonexistent"};
    new_destination(&d, &options);
    d.complete_ns = ibx_now_ns();
    d.reporter.observer = &options.observer;
    assert_int_equal(ibx_destination_begin(&d, DESTINATION_FILLING), 0);
    d.state.now = at;
    d.stream.state.now = STREAM_FED;
    d.link.state.now = LINK_SERVING;
    d.qemu.state.now = QEMU_RUNNING;
}

/* One turn, unless that ends it. */
static int turns(void)
{
    const int rc = ibx_destination_run(&d, &error);
    d.ram.engine = NULL;
    return rc;
}

/* ------------------------------------------------------------ tests */

/* It runs as the source says, and not if the operator wants it paused. Before it stands as it
 * should, RUNNING is not recorded: the next tool would not continue it. */
static void test_the_vm_runs_as_it_should(NO_STATE)
{
    static const struct {
        enum destination_wish wish;
        bool paused, stands;
        int runs;
        enum ibx_journal_state recorded;
    } cases[] = {
        {WISH_RUNS, false, false, 1, IBX_JOURNAL_RUNNING},
        {WISH_RUNS, true, false, -1, IBX_JOURNAL_RUNNING},
        {WISH_PAUSED, false, false, -1, IBX_JOURNAL_RUNNING},
        {WISH_RUNS, false, true, 1, (enum ibx_journal_state)0},
        {WISH_UNKNOWN, false, false, 0, (enum ibx_journal_state)0},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(DESTINATION_RESUMING);
        d.wish = cases[i].wish;
        options.paused = cases[i].paused;
        is.stands = cases[i].stands;
        assert_int_equal(turns(), 0);
        assert_int_equal(was.runs, cases[i].runs);
        assert_int_equal(was.recorded, cases[i].recorded);
    }
}

/* As long as the VM does not stand as it should, the next tool has to know that. */
static void test_when_the_migration_is_complete(NO_STATE)
{
    static const struct {
        bool misses, stands, undecided, unnamed;
    } cases[] = {{false, false, false, false},
                 {true, false, false, false},
                 {false, true, false, false},
                 {false, false, true, false},
                 {false, false, false, true}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(DESTINATION_FILLING);
        is.misses = cases[i].misses;
        is.stands = cases[i].stands;
        is.unnamed = cases[i].unnamed;
        d.undecided = cases[i].undecided;
        assert_int_equal(turns(), 0);
        assert_int_equal(was.completed, !i);
    }
}

/* The last page may be the one, and it has come since the turn began. */
static void test_the_last_page_has_come_in_two_ways(NO_STATE)
{
    begin(DESTINATION_FILLING);
    is.looks = 2;
    assert_int_equal(turns(), -EBADMSG);
    assert_false(was.completed);
}

/* The source has to know first, and QEMU is let go of before the VM may go on from here. */
static void test_when_it_ends(NO_STATE)
{
    static const struct {
        bool confirmed, holds_on;
        int end;
        const char *order;
        enum destination_state now;
    } cases[] = {
        {true, false, 0, "ueCt", DESTINATION_DONE},
        {false, false, 0, "u", DESTINATION_LEFT},
        {true, true, 0, "P", DESTINATION_LEFT},
        {true, false, -EAGAIN, "uP", DESTINATION_LEFT},
        {true, false, -EINVAL, "u", DESTINATION_DONE},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(DESTINATION_COMPLETE);
        d.peer.now = cases[i].confirmed ? PEER_CONFIRMED : PEER_QUIET;
        is.holds_on = cases[i].holds_on;
        is.end = cases[i].end;
        assert_int_equal(turns(), 0);
        assert_string_equal(was.order, cases[i].order);
        assert_int_equal(d.state.now, cases[i].now);
    }
}

/* The VM may have used a page that was there before the right one: that is no loss of the link. */
static void test_why_the_engine_has_stopped(NO_STATE)
{
    static const struct {
        int reason, rc;
        const char *order;
    } cases[] = {{-EEXIST, -EBADMSG, "b"}, {-ECONNRESET, -ECONNRESET, "l"}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(DESTINATION_FILLING);
        d.ram.engine = ENGINE;
        is.engine = cases[i].reason;
        assert_int_equal(turns(), cases[i].rc);
        assert_string_equal(was.order, cases[i].order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_vm_runs_as_it_should),
        cmocka_unit_test(test_when_the_migration_is_complete),
        cmocka_unit_test(test_the_last_page_has_come_in_two_ways),
        cmocka_unit_test(test_when_it_ends),
        cmocka_unit_test(test_why_the_engine_has_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
