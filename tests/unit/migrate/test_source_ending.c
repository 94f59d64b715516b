/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a source ends once it may have handed the VM over: whose word it takes for what, when it
 * serves pages, and what it records and advises. By that the VM is continued once, or never. */
#include "tests/fixtures/forward_clock.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_source.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct source s;
static char notices[8192];
static struct ibx_send_options options;

static void note_notice(void *context, const char *text)
{
    (void)context;
    strncat(notices, text, sizeof(notices) - strlen(notices) - 1);
}

/* ------------------------------------------------------------ replaced functions */

static struct {
    const struct ibx_migrate_any *word; /* the destination's, which still has to be read */
    enum ibx_answer_state answer;       /* of a destination that is asked; 0: it does not answer */
    enum ibx_answer_state resumes;      /* ... over a new link; 0: none is made */
    int rejoins, confirms;              /* what these return */
    unsigned signals;
} is;
static struct {
    unsigned resumed, asked, let_go, unlinked;
    bool confirmed;      /* CONFIRM was sent over the link */
    bool told_by_a_link; /* ... that is that of the borrower */
} was;

int __wrap_ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handler,
                                  void *context, uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handler,
                                  void *context, uint64_t deadline_ns, struct ibx_error *err)
{
    const struct ibx_migrate_any *message = is.word;
    (void)channel, (void)deadline_ns, (void)err;
    is.word = NULL;
    return message ? handler(context, message) : 0;
}

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    (void)channel, (void)err;
    assert_int_equal(message->type, IBX_MIGRATE_BROKEN);
    return 0;
}

bool __wrap_ibx_conn_over(const struct ibx_conn *conn);
bool __wrap_ibx_conn_over(const struct ibx_conn *conn)
{
    (void)conn;
    return true;
}

int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason);
int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason)
{
    (void)channel, (void)reason;
    return 0;
}

int __wrap_ibx_migration_ask(const struct ibx_record *record, enum ibx_migrate_purpose purpose,
                             const struct ibx_options *transport, struct ibx_migrate_answer *answer,
                             struct ibx_error *err);
int __wrap_ibx_migration_ask(const struct ibx_record *record, enum ibx_migrate_purpose purpose,
                             const struct ibx_options *transport, struct ibx_migrate_answer *answer,
                             struct ibx_error *err)
{
    (void)record, (void)transport;
    assert_int_equal(purpose, IBX_PURPOSE_QUERY);
    was.asked++;
    answer->state = (uint8_t)is.answer;
    return is.answer ? 0 : ibx_error_set(err, -ECONNREFUSED, "nobody listens there");
}

int __wrap_ibx_source_link_resume(struct source_link *link, enum ibx_answer_state *state,
                                  struct ibx_error *err);
int __wrap_ibx_source_link_resume(struct source_link *link, enum ibx_answer_state *state,
                                  struct ibx_error *err)
{
    (void)link;
    was.resumed++;
    *state = is.resumes;
    return is.resumes ? 0 : ibx_error_set(err, -EAGAIN, "nobody listens there");
}

int __wrap_ibx_source_link_rejoin(struct source_link *link, enum ibx_answer_state *state,
                                  struct ibx_error *err);
int __wrap_ibx_source_link_rejoin(struct source_link *link, enum ibx_answer_state *state,
                                  struct ibx_error *err)
{
    static const atomic_bool over = true;
    (void)link;
    *state = (enum ibx_answer_state)0;
    forward_clock(3000, &over); /* it takes a while */
    return ibx_error_set(err, is.rejoins, "so it is");
}

int __wrap_ibx_migration_confirm(const struct ibx_record *record,
                                 const struct ibx_options *transport, struct ibx_error *err);
int __wrap_ibx_migration_confirm(const struct ibx_record *record,
                                 const struct ibx_options *transport, struct ibx_error *err)
{
    (void)record, (void)transport, (void)err;
    return is.confirms;
}

unsigned __wrap_ibx_migration_signals_take(struct migration_signals *signals, bool hangups);
unsigned __wrap_ibx_migration_signals_take(struct migration_signals *signals, bool hangups)
{
    const unsigned n = is.signals;
    (void)signals, (void)hangups;
    is.signals = 0;
    return n;
}

int __wrap_ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                                struct ibx_error *err);
int __wrap_ibx_source_link_send(struct source_link *link, enum ibx_migrate_message type,
                                struct ibx_error *err)
{
    assert_int_equal(type, IBX_MIGRATE_CONFIRM);
    was.confirmed = true;
    was.told_by_a_link = source_linked(link);
    return was.told_by_a_link ? 0 : ibx_error_set(err, -ENOTCONN, "there is no link");
}

void __wrap_ibx_source_link_retire(struct source_link *link);
void __wrap_ibx_source_link_retire(struct source_link *link)
{
    (void)link;
}

void __wrap_ibx_source_let_go_early(struct source *of);
void __wrap_ibx_source_let_go_early(struct source *of)
{
    (void)of;
    was.let_go++;
}

void __wrap_ibx_journal_unlink_files(const struct ibx_record *record);
void __wrap_ibx_journal_unlink_files(const struct ibx_record *record)
{
    (void)record;
    was.unlinked++;
}

/* ------------------------------------------------------------ steps */

/* The VM has been handed over, and is linked to the destination, which has told `peer`. The QEMU
 * here lives, or has ended. */
static void begin(enum source_state at, enum ibx_journal_state state, enum source_peer_state peer,
                  bool lives)
{
    struct ibx_record *record = &s.status.record;
    notices[0] = '\0';
    memset(&error, 0, sizeof(error));
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    options = (struct ibx_send_options){
        .folder = folder, .qmp = "/nonexistent", .observer = {.notify = note_notice}};
    new_source(&s, &options);
    s.lost_ns = ibx_now_ns();
    assert_int_equal(ibx_source_begin(&s, SOURCE_ASKING), 0);
    *record = sample(true, 3);
    snprintf((char *)record->id, sizeof(record->id), "%d", (int)getpid());
    record->pid = getpid();
    record->pid_started = ibx_process_started(record->pid) + !lives;
    record->boot[0] = '\0';
    bring_to(record, state);
    s.state.now = at;
    s.peer.now = peer;
    s.link.state.now = LINK_MAPPED;
}

static void end(void)
{
    s.link.state.now = LINK_NONE;
    assert_int_equal(ibx_journal_remove(folder, &s.status.record, &error), 0);
}

static const struct ibx_migrate_any gives_up = {.type = IBX_MIGRATE_ABORT, .is.reason = "no room"},
                                    broken = {.type = IBX_MIGRATE_BROKEN, .is.reason = "page 7"};

/* ------------------------------------------------------------ the destination's last word */

/* The end of a connection may be noticed before the reason for it. */
static void why_the_destination_gave_up(NO_STATE)
{
    for (unsigned i = 0; i < 2; i++) {
        begin(SOURCE_SENDING, IBX_JOURNAL_MAY_RUN, PEER_READY, false);
        is.word = i ? &gives_up : NULL;
        assert_int_equal(ibx_source_keep(&s, -ECONNRESET, &error), i ? -ECONNABORTED : -ECONNRESET);
        assert_int_equal(s.state.now, SOURCE_KEPT);
        end();
    }
}

/* Only ABORT lets the VM continue here, and not that of a peer that has broken the protocol. */
static void whether_it_gave_up_after_the_commit(NO_STATE)
{
    static const struct {
        const struct ibx_migrate_any *word;
        int code;
        bool kept;
    } cases[] = {
        {&gives_up, -ECONNRESET, true}, {&gives_up, -EPROTO, false}, {NULL, -ECONNRESET, false}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_COMMITTED, IBX_JOURNAL_MAY_RUN, PEER_LOADED, false);
        is.word = cases[i].word;
        ibx_error_set(&error, cases[i].code, "something went wrong");
        assert_int_equal(ibx_source_link_trouble(&s, cases[i].code, &error),
                         cases[i].kept ? -ECONNABORTED : 0);
        assert_int_equal(s.state.now, cases[i].kept ? SOURCE_KEPT : SOURCE_COMMITTED);
        assert_int_equal(only().state, cases[i].kept ? IBX_JOURNAL_KEPT : IBX_JOURNAL_MAY_RUN);
        end();
    }
}

/* What it says about the VM comes over no other link. */
static void what_it_said_while_it_ran_the_vm(NO_STATE)
{
    static const struct {
        const struct ibx_migrate_any *word;
        int rc;
        enum source_state now;
    } cases[] = {
        {&gives_up, 0, SOURCE_LOST}, {&broken, -EBADMSG, SOURCE_BROKEN}, {NULL, 0, SOURCE_SERVING}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
        is.word = cases[i].word;
        ibx_error_set(&error, -ECONNRESET, "the link is lost");
        assert_int_equal(ibx_source_link_trouble(&s, -ECONNRESET, &error), cases[i].rc);
        assert_int_equal(s.state.now, cases[i].now);
        end();
    }
}

/* ------------------------------------------------------------ a new link */

/* A borrowed VM may run here again, in the memory that is served: only a borrower that knows that
 * the VM has ended gets a link. */
static void who_gets_a_link_to_a_vm_that_may_be_here(NO_STATE)
{
    static const struct {
        enum ibx_answer_state answer;
        bool noted, linked;
    } cases[] = {
        {IBX_ANSWER_RUNNING, false, true},       {IBX_ANSWER_RUNNING, true, false},
        {IBX_ANSWER_COMPLETE, true, false},      {IBX_ANSWER_ENDED, true, true},
        {(enum ibx_answer_state)0, true, false},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
        struct ibx_record *record = &s.status.record;
        record->borrow = IBX_BORROW_FILL;
        s.link.state.now = LINK_NONE;
        s.parts.heard = s.parts.told = 7; /* over the last link */
        s.missed.count = 1;
        is.answer = is.resumes = cases[i].answer;
        if (cases[i].noted)
            assert_int_equal(ibx_journal_mark_home(folder, record->id, &error), 0);
        assert_int_equal(ibx_source_reconnect(&s, &error), 0);
        ibx_journal_unmark_home(folder, record->id);
        assert_int_equal(was.asked, cases[i].noted);
        assert_int_equal(was.resumed, cases[i].linked);
        assert_int_equal(record->epoch, 1 + cases[i].linked);
        assert_int_equal(s.parts.heard, cases[i].linked ? 0 : 7);
        assert_int_equal(s.missed.count, !cases[i].linked);
        end();
    }
}

/* The destination waits for COMMIT. A QEMU that has ended here cannot say whether the VM went on
 * here after its state had been sent, so nothing is handed over. */
static void a_destination_that_waits_for_a_vm_that_has_ended(NO_STATE)
{
    for (unsigned of_files = 0; of_files < 2; of_files++) {
        begin(SOURCE_COMMITTED, IBX_JOURNAL_MAY_RUN, PEER_LOADED, !of_files);
        s.vm.of_files = of_files;
        is.resumes = IBX_ANSWER_WAITING;
        assert_int_equal(ibx_source_reconnect(&s, &error), of_files ? -ESRCH : 0);
        assert_int_equal(s.state.now, of_files ? SOURCE_LEFT : SOURCE_COMMITTED);
        assert_int_equal(source_linked(&s.link), !of_files);
        assert_int_equal(only().state, IBX_JOURNAL_MAY_RUN);
        end();
    }
}

/* The VM runs there: only its pages are needed here from now on. */
static void a_destination_that_runs_the_vm(NO_STATE)
{
    static const enum ibx_answer_state answers[] = {IBX_ANSWER_RUNNING, IBX_ANSWER_COMPLETE,
                                                    IBX_ANSWER_ENDED};
    for (unsigned i = 0; i < COUNT(answers); i++) {
        begin(SOURCE_COMMITTED, IBX_JOURNAL_MAY_RUN, PEER_LOADED, true);
        is.resumes = answers[i];
        assert_int_equal(ibx_source_reconnect(&s, &error), 0);
        assert_int_equal(s.state.now, SOURCE_SERVING);
        end();
    }
}

/* ------------------------------------------------------------ interrupts */

/* The VM is there and needs its pages: the first interrupt says so, the second one leaves it. */
static void two_interrupts_leave_the_vm(NO_STATE)
{
    begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
    assert_int_equal(ibx_source_check_interrupts(&s, &error), 0);
    is.signals = 1;
    assert_int_equal(ibx_source_check_interrupts(&s, &error), 0);
    text_has(notices, "interrupt once more");
    assert_int_equal(s.state.now, SOURCE_SERVING);
    is.signals = 1;
    assert_int_equal(ibx_source_check_interrupts(&s, &error), -EINTR);
    assert_int_equal(s.state.now, SOURCE_LEFT);
    end();
}

/* ------------------------------------------------------------ confirmation */

static bool has_map_note(void)
{
    char path[128];
    ibx_journal_page_state_path(&s.status.record, IBX_PAGE_STATE_MAP, path, sizeof(path));
    return !unlink(path);
}

static void confirms(enum source_peer_state peer, enum ibx_journal_state recorded)
{
    char path[128];
    begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, peer, true);
    ibx_journal_page_state_path(&s.status.record, IBX_PAGE_STATE_MAP, path, sizeof(path));
    put_file(path, "", 0);
    assert_int_equal(ibx_source_confirm(&s, &error), 0);
    assert_int_equal(s.state.now, SOURCE_CONFIRMING);
    assert_int_equal(only().state, recorded);
    assert_true(was.confirmed && was.let_go);
    assert_false(has_map_note()); /* nobody recovers it any more */
}

static void the_end_is_recorded_and_confirmed(NO_STATE)
{
    confirms(PEER_COMPLETE, IBX_JOURNAL_DONE);
    end();
    confirms(PEER_ENDED, IBX_JOURNAL_ENDED);
    end();
}

/* Nothing is confirmed that is not recorded: the destination would let go of the source, which
 * would go on. */
static void the_end_cannot_be_recorded_yet(NO_STATE)
{
    begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_COMPLETE, true);
    s.end_ns = UINT64_MAX;
    assert_int_equal(ibx_source_confirm(&s, &error), 0);
    assert_int_equal(s.state.now, SOURCE_SERVING);
    assert_int_equal(only().state, IBX_JOURNAL_MOVED);
    assert_false(was.confirmed);
    end();
}

/* Somebody has taken the VM back meanwhile, which only the record says. */
static void the_vm_was_taken_back_meanwhile(NO_STATE)
{
    begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_COMPLETE, true);
    struct ibx_record theirs = s.status.record;
    theirs.state = IBX_JOURNAL_ROLLED_BACK;
    assert_int_equal(write_record(&theirs), 0);
    assert_int_equal(ibx_source_confirm(&s, &error), -EINVAL);
    assert_int_equal(only().state, IBX_JOURNAL_ROLLED_BACK);
    assert_false(was.confirmed);
    s.status.record = theirs;
    end();
}

/* A destination that does not answer has not confirmed. */
static void confirmed_by_a_query(NO_STATE)
{
    static const int answers[] = {-ECONNREFUSED, 0};
    for (unsigned i = 0; i < COUNT(answers); i++) {
        confirms(PEER_COMPLETE, IBX_JOURNAL_DONE);
        s.link.state.now = LINK_NONE;
        is.confirms = answers[i];
        assert_int_equal(ibx_source_await_confirmed(&s, &error), 0);
        assert_int_equal(s.peer.now, i ? PEER_CONFIRMED : PEER_COMPLETE);
        assert_int_equal(s.state.now, i ? SOURCE_DONE : SOURCE_CONFIRMING);
        end();
    }
}

/* The VM is there as a whole: who runs this is not kept for a word that may not come. */
static void how_long_a_confirmation_is_awaited(NO_STATE)
{
    for (unsigned interrupted = 0; interrupted < 2; interrupted++) {
        confirms(PEER_COMPLETE, IBX_JOURNAL_DONE);
        s.link.state.now = LINK_NONE;
        is.confirms = -ECONNREFUSED;
        assert_true(s.confirm_by_ns > ibx_now_ns());
        s.interrupts = interrupted;
        s.confirm_by_ns = interrupted ? s.confirm_by_ns : 1;
        assert_int_equal(ibx_source_await_confirmed(&s, &error), 0);
        assert_int_equal(s.state.now, SOURCE_DONE);
        text_has(notices, "the confirmation may not have arrived there");
        end();
    }
}

/* ------------------------------------------------------------ a borrowed VM is here again */

/* A borrower that does not say so is left some time, and then gets no page any more. */
static void a_borrower_that_is_silent(NO_STATE)
{
    begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
    s.status.record.borrow = IBX_BORROW_FILL;
    struct ibx_record its_return = sample(false, 9);
    memcpy(its_return.base, s.status.record.id, sizeof(its_return.base));
    bring_to(&its_return, IBX_JOURNAL_MAY_RUN);
    assert_int_equal(ibx_source_check_home(&s, &error), 0);
    assert_int_equal(s.home_by_ns, 0); /* it is not here yet */
    its_return.state = IBX_JOURNAL_RUNNING;
    assert_int_equal(write_record(&its_return), 0);
    s.home_look_ns = 0;
    assert_int_equal(ibx_source_check_home(&s, &error), 0);
    assert_true(s.home_by_ns > ibx_now_ns());
    assert_true(s.state.now == SOURCE_SERVING && source_linked(&s.link));
    s.home_look_ns = 0;
    s.home_by_ns = 1;
    assert_int_equal(ibx_source_check_home(&s, &error), 0);
    assert_int_equal(s.state.now, SOURCE_CONFIRMING);
    assert_true(was.confirmed && !was.told_by_a_link && !was.let_go);
    assert_int_equal(s.status.record.state, IBX_JOURNAL_ENDED);
    assert_true(ibx_journal_has_returned(&s.status.record));
    assert_int_equal(ibx_journal_remove(folder, &its_return, &error), 0);
    end();
}

/* However far its return has come since, and whatever became of it here then. */
static void a_borrower_that_asks_late(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_RUNNING, IBX_JOURNAL_COMPLETE,
                                                    IBX_JOURNAL_DONE,    IBX_JOURNAL_BROKEN,
                                                    IBX_JOURNAL_ENDED,   IBX_JOURNAL_SHUT_DOWN};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
        s.status.record.borrow = IBX_BORROW_FILL;
        struct ibx_record its_return = sample(false, 9);
        memcpy(its_return.base, s.status.record.id, sizeof(its_return.base));
        bring_to(&its_return, states[i]);
        assert_int_equal(ibx_source_check_home(&s, &error), 0);
        assert_true(s.home_by_ns > ibx_now_ns());
        assert_int_equal(ibx_journal_remove(folder, &its_return, &error), 0);
        end();
    }
}

/* ------------------------------------------------------------ the VM is lost there */

/* Whether it can be restarted here, from where it stopped: if not, a rollback would run it with
 * memory that is not its own. */
static void what_is_left_of_a_lost_vm(NO_STATE)
{
    static const struct {
        bool returns, touched, gone;
        const char *word;
    } cases[] = {
        {false, false, false, "the QEMU here still has the VM as it was when it stopped"},
        {true, false, false, "nothing can restart it here, start it from its disk"},
        {false, true, false, "a return of it had begun"},
        {false, false, true, "and so has its QEMU here"},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_LOST, IBX_JOURNAL_MOVED, PEER_LOADED, !cases[i].gone);
        struct ibx_record *record = &s.status.record;
        record->base[0] = cases[i].returns;
        record->borrow = cases[i].touched ? IBX_BORROW_FILL : IBX_BORROW_NOT;
        if (cases[i].touched)
            assert_int_equal(ibx_journal_touch_base(folder, record, &error), 0);
        assert_int_equal(ibx_source_vm_lost(&s, &error), -ECONNABORTED);
        error_has(cases[i].word);
        assert_int_equal(s.state.now, SOURCE_LEFT);
        end();
    }
}

/* Where libvirt drives, the second names that its files got for a rollback go with it. */
static void files_of_a_lost_vm_that_libvirt_drives(NO_STATE)
{
    for (unsigned managed = 0; managed < 2; managed++) {
        begin(SOURCE_LOST, IBX_JOURNAL_MOVED, PEER_LOADED, true);
        s.vm.libvirt.now = managed ? LIBVIRT_DRIVES : LIBVIRT_OFF;
        assert_int_equal(ibx_source_vm_lost(&s, &error), -ECONNABORTED);
        error_has(managed ? "virsh resume here" : "ib-migrate rollback restarts it");
        assert_int_equal(was.unlinked, managed);
        end();
    }
}

/* ------------------------------------------------------------ wrong pages, and files cut short */

/* A destination that has never run the VM need not be told. */
static void who_is_told_of_wrong_pages(NO_STATE)
{
    static const int answers[] = {-ECANCELED, -EINVAL};
    for (unsigned i = 0; i < COUNT(answers); i++) {
        begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, PEER_LOADED, true);
        s.link.state.now = LINK_NONE;
        is.rejoins = answers[i];
        ibx_error_set(&error, -EBADMSG, "page 7 differs");
        assert_int_equal(ibx_source_broken(&s, true, &error), -EBADMSG);
        error_has("the migration is broken: page 7 differs");
        assert_int_equal(strstr(notices, "could not be told") != NULL, i);
        assert_int_equal(only().state, IBX_JOURNAL_BROKEN);
        end();
    }
}

/* Pages that the destination lacks are lost. One that has all of them needs none. */
static void memory_that_was_cut_short(NO_STATE)
{
    static struct ibx_guest_block block = {.id = "mem0", .size = 8192, .page_size = 4096};
    static const struct {
        enum source_peer_state peer;
        off_t bytes;
        bool broken;
    } cases[] = {{PEER_LOADED, 4096, true},
                 {PEER_LOADED, 8192, false},
                 {PEER_COMPLETE, 4096, false},
                 {PEER_ENDED, 4096, false}};
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(SOURCE_SERVING, IBX_JOURNAL_MOVED, cases[i].peer, true);
        block.fd = memfd_create("mem0", MFD_CLOEXEC);
        assert_true(block.fd >= 0 && !ftruncate(block.fd, cases[i].bytes));
        s.vm.ram = (struct ibx_guest_ram){.blocks = &block, .count = 1, .pid = getpid()};
        s.link.pages = (struct ibx_page_server *)&s;
        is.word = &broken; /* it answers */
        assert_int_equal(ibx_source_check_files(&s, 0, &error), cases[i].broken ? -EBADMSG : 0);
        assert_int_equal(s.state.now, cases[i].broken ? SOURCE_BROKEN : SOURCE_SERVING);
        s.link.pages = NULL;
        close(block.fd);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(why_the_destination_gave_up),
        TEST(whether_it_gave_up_after_the_commit),
        TEST(what_it_said_while_it_ran_the_vm),
        TEST(who_gets_a_link_to_a_vm_that_may_be_here),
        TEST(a_destination_that_waits_for_a_vm_that_has_ended),
        TEST(a_destination_that_runs_the_vm),
        TEST(two_interrupts_leave_the_vm),
        TEST(the_end_is_recorded_and_confirmed),
        TEST(the_end_cannot_be_recorded_yet),
        TEST(the_vm_was_taken_back_meanwhile),
        TEST(confirmed_by_a_query),
        TEST(how_long_a_confirmation_is_awaited),
        TEST(a_borrower_that_is_silent),
        TEST(a_borrower_that_asks_late),
        TEST(what_is_left_of_a_lost_vm),
        TEST(files_of_a_lost_vm_that_libvirt_drives),
        TEST(who_is_told_of_wrong_pages),
        TEST(memory_that_was_cut_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
