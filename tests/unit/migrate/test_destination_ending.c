/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How a destination ends, or does not: what it leaves in its record and in /dev/shm, and what it
 * tells the source and QEMU. By the record and the messages others continue the VM. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/journal_scene.h"
#include "tests/fixtures/new_destination.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 4u

static struct destination d;
static char notices[4096], order[8]; /* b, a: BROKEN and ABORT were sent; s: QEMU was stopped */
static const struct ibx_migrate_any *last_word; /* the source's, which still has to be read */
static enum ibx_fault_state engine_state;
static bool engine_stopped;

static void note_notice(void *context, const char *text)
{
    (void)context;
    strncat(notices, text, sizeof(notices) - strlen(notices) - 1);
}

static const struct ibx_receive_options options = {.folder = folder,
                                                   .observer = {.notify = note_notice}};

/* ------------------------------------------------------------ replaced functions */

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    (void)channel, (void)err;
    if (message->type == IBX_MIGRATE_BROKEN)
        strcat(order, "b");
    return 0;
}

int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason);
int __wrap_ibx_channel_send_abort(struct ibx_channel *channel, const char *reason)
{
    (void)channel, (void)reason;
    strcat(order, "a");
    return 0;
}

void __wrap_ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns);
void __wrap_ibx_channel_linger(struct ibx_channel *channel, uint64_t deadline_ns)
{
    (void)channel, (void)deadline_ns;
}

int __wrap_ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handler,
                                  void *context, uint64_t deadline_ns, struct ibx_error *err);
int __wrap_ibx_channel_take_until(struct ibx_channel *channel, ibx_channel_handler handler,
                                  void *context, uint64_t deadline_ns, struct ibx_error *err)
{
    const struct ibx_migrate_any *message = last_word;
    (void)channel, (void)deadline_ns, (void)err;
    last_word = NULL;
    return message ? handler(context, message) : 0;
}

int __wrap_ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err);
int __wrap_ibx_destination_qemu_pause(struct destination_qemu *qemu, struct ibx_error *err)
{
    (void)qemu, (void)err;
    return 0;
}

int __wrap_ibx_destination_qemu_stop(struct destination_qemu *qemu, struct ibx_error *err);
int __wrap_ibx_destination_qemu_stop(struct destination_qemu *qemu, struct ibx_error *err)
{
    (void)qemu;
    strcat(order, "s");
    return ibx_error_set(err, -EPROTO, "it ran too early");
}

enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine);
enum ibx_fault_state __wrap_ibx_fault_state(const struct ibx_fault *engine)
{
    (void)engine;
    return engine_state;
}

void __wrap_ibx_fault_stop(struct ibx_fault *engine, int code, const char *why);
void __wrap_ibx_fault_stop(struct ibx_fault *engine, int code, const char *why)
{
    (void)engine, (void)code, (void)why;
    engine_stopped = true;
}

/* ------------------------------------------------------------ steps */

/* A migration with this record, 0: none is written. QEMU is a process that waits. */
static void begin(enum destination_state at, enum destination_stream_state stream,
                  enum ibx_journal_state state)
{
    struct ibx_record *record = &d.status.record;
    notices[0] = order[0] = '\0';
    last_word = NULL;
    new_destination(&d, &options);
    assert_int_equal(ibx_destination_begin(&d, DESTINATION_RESUMING), 0);
    *record = sample(false, 3);
    snprintf((char *)record->id, sizeof(record->id), "%d", (int)getpid());
    record->boot[0] = '\0';
    let_child_be_qemu(record);
    bring_to(record, state);
    d.state.now = at;
    d.stream.state.now = stream;
    d.stream.fd = -1;
    d.link.state.now = LINK_SERVING;
}

static void qemu_ends(void)
{
    kill(d.status.record.pid, SIGKILL);
    waitpid(d.status.record.pid, NULL, 0);
}

static void end(void)
{
    qemu_ends();
    d.link.state.now = LINK_NONE;
    d.ram.engine = NULL;
    ibx_destination_qemu_fini(&d.qemu);
    ibx_destination_ram_fini(&d.ram);
    assert_int_equal(ibx_journal_remove(folder, &d.status.record, &error), 0);
}

/* The files in which it is noted which pages have come, and their tags. */
static void make_notes(void)
{
    char path[128];
    for (enum ibx_journal_page_state note = IBX_PAGE_STATE_ARRIVED; note <= IBX_PAGE_STATE_TAGS;
         note++) {
        ibx_journal_page_state_path(&d.status.record, note, path, sizeof(path));
        put_file(path, "", 0);
    }
}

static bool has_note(enum ibx_journal_page_state note)
{
    char path[128];
    ibx_journal_page_state_path(&d.status.record, note, path, sizeof(path));
    return !access(path, F_OK) && !unlink(path);
}

static void make_tags(void)
{
    static struct ibx_guest_block block = {.id = "ram", .size = PAGES * 4096, .page_size = 4096};
    static _Atomic uint64_t tags[PAGES];
    static const uint8_t key[IBX_DIGEST_KEY];
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1, .bytes = PAGES * 4096};
    for (unsigned i = 0; i < PAGES; i++)
        tags[i] = 0;
    assert_int_equal(ibx_page_map_init_ram(&d.ram.map, &ram, &error), 0);
    assert_int_equal(ibx_page_tags_create(&d.ram.map, tags, key, 1, &d.ram.page_tags, &error), 0);
}

static void page_comes(uint8_t byte)
{
    uint8_t page[4096];
    memset(page, byte, sizeof(page));
    assert_int_equal(ibx_page_tags_note(d.ram.page_tags, 0, 1, 1, page, &error), 0);
}

/* The record of the borrowed VM's return from here. */
static struct ibx_record its_return(enum ibx_journal_state state)
{
    struct ibx_record r = sample(true, 9);
    memcpy(r.base, d.status.record.id, sizeof(r.base));
    bring_to(&r, state);
    return r;
}

/* ------------------------------------------------------------ the VM never ran here */

/* The next tool must not wait for a VM that has stayed at its source. */
static void giving_up_is_recorded(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_NOT_YET, IBX_JOURNAL_MAY_RUN};
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(i ? DESTINATION_RESUMING : DESTINATION_WAITING, STREAM_WHOLE, states[i]);
        make_notes();
        assert_int_equal(ibx_destination_refuse_commit(&d, -EIO, &error), -EIO);
        assert_int_equal(d.state.now, DESTINATION_GIVEN_UP);
        assert_string_equal(order, "a");
        assert_int_equal(only().state, IBX_JOURNAL_GIVEN_UP);
        assert_false(has_note(IBX_PAGE_STATE_ARRIVED) || has_note(IBX_PAGE_STATE_TAGS));
        assert_string_equal(notices, "");
        end();
    }
}

/* A borrowed VM was about to return here. While it is noted that it may have come, nobody serves
 * its pages to the borrower. Before MAY_RUN that note is another receiver's. */
static void a_return_that_failed(NO_STATE)
{
    static const enum ibx_journal_state states[] = {IBX_JOURNAL_NOT_YET, IBX_JOURNAL_MAY_RUN};
    struct ibx_record away = sample(true, 8);
    snprintf((char *)away.id, sizeof(away.id), "away %d", (int)getpid());
    away.borrow = IBX_BORROW_FILL;
    for (unsigned i = 0; i < COUNT(states); i++) {
        begin(DESTINATION_WAITING, STREAM_WHOLE, states[i]);
        memcpy(d.status.record.base, away.id, sizeof(away.id));
        d.ram.kept = true;
        assert_int_equal(ibx_journal_mark_home(folder, away.id, &error), 0);
        assert_int_equal(ibx_destination_refuse_commit(&d, -EIO, &error), -EIO);
        assert_int_equal(ibx_journal_home_marked(folder, &away), !i);
        text_has(notices, "has the memory of the VM, which has not returned");
        ibx_journal_unmark_home(folder, away.id);
        end();
    }
}

/* ------------------------------------------------------------ QEMU has ended */

/* Whether the VM ran before this tool is not known where libvirt drives: the source must not be
 * told that it never did. */
static void qemu_ended_after_a_recovery(NO_STATE)
{
    for (unsigned recovered = 0; recovered < 2; recovered++) {
        begin(DESTINATION_RESUMING, STREAM_ENDING, IBX_JOURNAL_MAY_RUN);
        d.qemu.managed = true;
        d.ram.recovered = recovered;
        qemu_ends();
        assert_int_equal(ibx_destination_check_qemu(&d, &error), -ESRCH);
        assert_int_equal(d.state.now, recovered ? DESTINATION_FAILED : DESTINATION_GIVEN_UP);
        assert_int_equal(only().state, recovered ? IBX_JOURNAL_MAY_RUN : IBX_JOURNAL_GIVEN_UP);
        end();
    }
}

/* The guest needs no page any more, and neither side restarts the VM. */
static void the_guest_has_shut_down(NO_STATE)
{
    begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
    make_notes();
    strcpy(d.qemu.end, "guest-shutdown");
    qemu_ends();
    assert_int_equal(ibx_destination_check_qemu(&d, &error), 0);
    assert_int_equal(d.state.now, DESTINATION_SHUT_DOWN);
    assert_string_equal(order, "");
    assert_int_equal(only().state, IBX_JOURNAL_SHUT_DOWN);
    assert_string_equal(only().settings, ""); /* of a QEMU that is gone */
    assert_false(has_note(IBX_PAGE_STATE_ARRIVED) || has_note(IBX_PAGE_STATE_TAGS));
    assert_int_equal(ibx_destination_record_end(&d, &error), 0);
    assert_int_equal(only().state, IBX_JOURNAL_ENDED);
    end();
}

/* The same when QEMU's memory goes before its monitor does, so that the engine fails first. */
static void the_engine_fails_first(NO_STATE)
{
    begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
    qemu_ends();
    assert_int_equal(ibx_destination_link_trouble(&d, -ESRCH, &error), -ESRCH);
    assert_int_equal(d.state.now, DESTINATION_FAILED);
    assert_string_equal(order, "a");
    end();
}

/* Of a borrowed VM that is at home again it is no loss. */
static void a_borrowed_vm_has_returned(NO_STATE)
{
    for (unsigned away = 0; away < 2; away++) {
        begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
        d.status.record.borrow = d.ram.borrow = IBX_BORROW_FILL;
        const struct ibx_record r = its_return(away ? IBX_JOURNAL_MOVED : IBX_JOURNAL_MAY_RUN);
        d.returned_ns = UINT64_MAX; /* it was looked for just now */
        qemu_ends();
        assert_int_equal(ibx_destination_check_qemu(&d, &error), away ? 0 : -ESRCH);
        assert_int_equal(d.state.now, away ? DESTINATION_SHUT_DOWN : DESTINATION_FAILED);
        assert_string_equal(order, away ? "" : "a");
        assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
        end();
    }
}

/* ------------------------------------------------------------ it runs too early */

/* Beside the VM at the source. A VM that another monitor has brought is left alone. */
static void a_vm_runs_before_the_commit(NO_STATE)
{
    static const struct {
        enum destination_state at;
        enum destination_stream_state stream;
        const char *order, *word;
    } cases[] = {
        {DESTINATION_READY, STREAM_CLOSED, "a", "by another monitor"},
        {DESTINATION_MAPPED, STREAM_TAKING, "sa", "it ran too early"},
        {DESTINATION_WAITING, STREAM_WHOLE, "sa", "it ran too early"},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(cases[i].at, cases[i].stream, IBX_JOURNAL_NOT_YET);
        d.qemu.state.now = QEMU_RUNNING;
        assert_true(ibx_destination_check_qemu(&d, &error) < 0);
        assert_int_equal(d.state.now, DESTINATION_GIVEN_UP);
        assert_string_equal(order, cases[i].order);
        error_has(cases[i].word);
        end();
    }
    begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
    d.qemu.state.now = QEMU_RUNNING;
    d.qemu.retry_ns = UINT64_MAX;
    assert_int_equal(ibx_destination_check_qemu(&d, &error), 0);
    assert_string_equal(order, "");
    end();
}

/* ------------------------------------------------------------ wrong pages */

/* The VM is not to go on, nor to return, with a page that has come in two ways. */
static void a_page_has_come_in_two_ways(NO_STATE)
{
    static _Atomic uint64_t uncompared;
    begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
    make_tags();
    make_notes();
    ibx_page_tags_count(d.ram.page_tags, &uncompared);
    page_comes(1);
    page_comes(1);
    assert_int_equal(ibx_destination_check_pages(&d, &error), 0);
    page_comes(2);
    assert_int_equal(ibx_destination_check_pages(&d, &error), -EBADMSG);
    assert_int_equal(d.state.now, DESTINATION_BROKEN);
    assert_string_equal(order, "b");
    assert_true(atomic_load(&uncompared) & IBX_PAGE_TAGS_BROKEN);
    assert_int_equal(only().state, IBX_JOURNAL_BROKEN);
    assert_false(has_note(IBX_PAGE_STATE_TAGS));
    assert_true(has_note(IBX_PAGE_STATE_ARRIVED)); /* the VM has that memory */
    end();
}

/* It is the source's last word, which is read before the link counts as lost. */
static void the_source_has_found_wrong_pages(NO_STATE)
{
    static const struct ibx_migrate_any words[] = {{.type = IBX_MIGRATE_BROKEN, .is.reason = "no"},
                                                   {.type = IBX_MIGRATE_ABORT, .is.reason = "no"}};
    for (unsigned i = 0; i < COUNT(words); i++) {
        begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
        d.link.state.now = LINK_MAPPED;
        last_word = &words[i];
        assert_int_equal(ibx_destination_link_trouble(&d, -ECONNRESET, &error), i ? 0 : -EBADMSG);
        assert_int_equal(d.state.now, i ? DESTINATION_FILLING : DESTINATION_BROKEN);
        end();
    }
}

/* ------------------------------------------------------------ all pages are here */

static void complete(NO_STATE)
{
    begin(DESTINATION_FILLING, STREAM_FED, IBX_JOURNAL_RUNNING);
    make_notes();
    make_tags();
    assert_int_equal(ibx_destination_complete(&d, &error), 0);
    assert_int_equal(d.state.now, DESTINATION_COMPLETE);
    assert_int_equal(only().state, IBX_JOURNAL_COMPLETE);
    assert_false(has_note(IBX_PAGE_STATE_ARRIVED));
    assert_true(has_note(IBX_PAGE_STATE_TAGS)); /* the source has not compared them all */
    end();
}

/* QEMU's settings are not put back yet: the tool does not end. */
static void qemu_cannot_be_let_go_of(NO_STATE)
{
    begin(DESTINATION_COMPLETE, STREAM_FED, IBX_JOURNAL_COMPLETE);
    assert_true(ibx_destination_has_let_go(&d));
    d.qemu.settings = json_object();
    assert_false(ibx_destination_has_let_go(&d));
    text_has(notices, "QEMU cannot be let go of");
    assert_false(ibx_destination_has_let_go(&d)); /* is not due */
    d.retry_ns = d.let_go_by_ns = 1;
    assert_true(ibx_destination_has_let_go(&d));
    text_has(notices, "settings could not be put back");
    end();
}

/* An engine that has all pages goes on alone to the end, if that is near. */
static void the_link_is_lost(NO_STATE)
{
    static const struct {
        enum destination_state at;
        enum ibx_fault_state engine;
        uint8_t borrow;
        bool stopped;
    } cases[] = {
        {DESTINATION_FILLING, IBX_FAULT_COMPLETE, IBX_BORROW_NOT, false},
        {DESTINATION_FILLING, IBX_FAULT_SERVING, IBX_BORROW_NOT, true},
        {DESTINATION_FILLING, IBX_FAULT_COMPLETE, IBX_BORROW_FILL, true},
        {DESTINATION_WAITING, IBX_FAULT_COMPLETE, IBX_BORROW_NOT, true},
    };
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(cases[i].at, STREAM_FED, IBX_JOURNAL_MAY_RUN);
        d.ram.engine = (struct ibx_fault *)&d;
        d.ram.borrow = cases[i].borrow;
        engine_state = cases[i].engine;
        engine_stopped = false;
        ibx_destination_unlink(&d, -ECONNRESET, "its network is gone");
        assert_int_equal(engine_stopped, cases[i].stopped);
        assert_int_equal(d.link.state.now, LINK_STOPPING);
        assert_string_equal(d.lost, "its network is gone");
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(giving_up_is_recorded),
        TEST(a_return_that_failed),
        TEST(qemu_ended_after_a_recovery),
        TEST(the_guest_has_shut_down),
        TEST(the_engine_fails_first),
        TEST(a_borrowed_vm_has_returned),
        TEST(a_vm_runs_before_the_commit),
        TEST(a_page_has_come_in_two_ways),
        TEST(the_source_has_found_wrong_pages),
        TEST(complete),
        TEST(qemu_cannot_be_let_go_of),
        TEST(the_link_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
