/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Somebody continues, resets or writes to the VM at its source, while its pages are served: the
 * migration goes on only if the destination cannot have got a page that is not the VM's. */
#include "migrate/common/vm.h"
#include "tests/fixtures/new_source.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static struct source s;
static struct ibx_error error;
static const struct ibx_send_options options = {.folder = "/nonexistent"};
#define QMP ((struct ibx_qmp *)&s)

/* ------------------------------------------------------------ replaced functions */

static struct {
    bool caught;        /* QEMU has tried to write */
    bool unwritten;     /* no record can be written now */
    bool has_events;    /* QEMU has reported something */
    bool recorded;      /* an earlier tool's protection is on record when this one is noted */
    const char *status; /* of the VM here */
} is;
static struct {
    unsigned stopped, asked, armed, broken, noted;
} was;

int __wrap_ibx_write_protection_check(struct ibx_write_protection *protection,
                                      struct ibx_error *err);
int __wrap_ibx_write_protection_check(struct ibx_write_protection *protection,
                                      struct ibx_error *err)
{
    (void)protection;
    return is.caught ? ibx_error_set(err, -EBUSY, "QEMU has tried to write") : 0;
}

int __wrap_ibx_write_protection_arm(struct ibx_write_protection *protection, struct ibx_error *err);
int __wrap_ibx_write_protection_arm(struct ibx_write_protection *protection, struct ibx_error *err)
{
    (void)protection, (void)err;
    was.armed++;
    return 0;
}

int __wrap_ibx_source_note(struct source *of, enum ibx_journal_state state, struct ibx_error *err);
int __wrap_ibx_source_note(struct source *of, enum ibx_journal_state state, struct ibx_error *err)
{
    (void)err;
    assert_int_equal(state, IBX_JOURNAL_MOVED);
    is.recorded = of->status.record.all_protected;
    of->note_ns = is.unwritten ? UINT64_MAX : 0;
    return 0;
}

int __wrap_ibx_migration_record(const char *folder, struct ibx_record *record,
                                enum ibx_journal_state state, struct ibx_error *err);
int __wrap_ibx_migration_record(const char *folder, struct ibx_record *record,
                                enum ibx_journal_state state, struct ibx_error *err)
{
    (void)folder;
    assert_true(record->all_protected && state == IBX_JOURNAL_MOVED);
    was.noted++;
    return is.unwritten ? ibx_error_set(err, -ENOSPC, "no room") : 0;
}

int __wrap_ibx_source_broken(struct source *of, bool untold, struct ibx_error *err);
int __wrap_ibx_source_broken(struct source *of, bool untold, struct ibx_error *err)
{
    (void)of, (void)untold, (void)err;
    was.broken++;
    return -EBADMSG;
}

int __wrap_ibx_qmp_post(struct ibx_qmp *qmp, const char *command, uint64_t deadline_ns,
                        struct ibx_error *err);
int __wrap_ibx_qmp_post(struct ibx_qmp *qmp, const char *command, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    was.stopped += !strcmp(command, "stop");
    was.asked += !strcmp(command, "query-status");
    return 0;
}

int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err);
int __wrap_ibx_vm_status(struct ibx_qmp *qmp, char *status, size_t size, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    (void)qmp, (void)deadline_ns, (void)err;
    snprintf(status, size, "%s", is.status);
    return 0;
}

bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp);
bool __wrap_ibx_qmp_has_events(const struct ibx_qmp *qmp)
{
    (void)qmp;
    return is.has_events;
}

bool __wrap_ibx_verifier_idle(struct ibx_verifier *v);
bool __wrap_ibx_verifier_idle(struct ibx_verifier *v)
{
    (void)v;
    return true;
}

int __wrap_ibx_verifier_result(struct ibx_verifier *v, struct ibx_error *err);
int __wrap_ibx_verifier_result(struct ibx_verifier *v, struct ibx_error *err)
{
    (void)v;
    return ibx_error_set(err, -EBADMSG, "page 7 differs");
}

/* ------------------------------------------------------------ steps */

static void begin(enum source_protecting_state protecting,
                  enum ibx_write_protection_state protection)
{
    memset(&is, 0, sizeof(is));
    memset(&was, 0, sizeof(was));
    memset(&error, 0, sizeof(error));
    is.status = "running";
    new_source(&s, &options);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.vm.qmp = QMP;
    s.protecting.now = protecting;
    s.protection.state.now = protection;
    s.status.record.source = true;
    s.status.record.state = IBX_JOURNAL_MOVED;
}

static int happens(const char *name)
{
    json_t *event = json_pack("{s:s}", "event", name);
    const int rc = ibx_source_on_intruder(&s, event, &error);
    json_decref(event);
    return rc;
}

/* Whether the pages are protected, or are not needed: only then the migration goes on. */
static const struct {
    enum source_protecting_state protecting;
    enum ibx_write_protection_state protection;
    bool goes_on;
} cases[] = {
    {PROTECTING_WISHED, PROTECTION_NONE, false},   {PROTECTING_NOTED, PROTECTION_MADE, false},
    {PROTECTING_ASKED, PROTECTION_ARMED, false},   {PROTECTING_IMPOSSIBLE, PROTECTION_NONE, false},
    {PROTECTING_WHOLE, PROTECTION_ARMED, true},    {PROTECTING_WHOLE, PROTECTION_CAUGHT, true},
    {PROTECTING_WHOLE, PROTECTION_NONE, false},    {PROTECTING_LAST, PROTECTION_ARMED, false},
    {PROTECTING_NEEDLESS, PROTECTION_ARMED, true}, {PROTECTING_NEEDLESS, PROTECTION_NONE, true},
};

/* ------------------------------------------------------------ tests */

static void test_somebody_continues_or_resets_the_vm(NO_STATE)
{
    static const char *const events[] = {"RESUME", "RESET"};
    for (unsigned i = 0; i < 2 * COUNT(cases); i++) {
        begin(cases[i / 2].protecting, cases[i / 2].protection);
        const bool goes_on = cases[i / 2].goes_on;
        assert_int_equal(happens(events[i % 2]), goes_on ? 0 : -EBADMSG);
        assert_int_equal(was.broken, !goes_on);
        assert_int_equal(was.stopped, 1); /* the VM runs at the destination */
        text_has(s.disturbed.message, i % 2 ? "reset the VM" : "continued the VM");
    }
    begin(PROTECTING_WISHED, PROTECTION_NONE);
    assert_int_equal(happens("STOP"), 0);
    assert_int_equal(was.stopped, 0);
}

static void test_qemu_writes(NO_STATE)
{
    for (unsigned i = 0; i < COUNT(cases); i++) {
        begin(cases[i].protecting, cases[i].protection);
        assert_int_equal(ibx_source_check_protection(&s, &error), 0);
        assert_int_equal(was.stopped, 0);
        is.caught = true;
        assert_int_equal(ibx_source_check_protection(&s, &error), cases[i].goes_on ? 0 : -EBADMSG);
        assert_int_equal(was.broken, !cases[i].goes_on);
        assert_int_equal(was.stopped, 1);
    }
}

/* Pages were served without protection, and QEMU's report is lost: nobody knows whether the VM ran
 * here before they were fetched. */
static void test_it_is_not_known_since_when_the_vm_runs_here(NO_STATE)
{
    static const struct {
        enum source_protecting_state protecting;
        bool verifies, unseen;
    } known[] = {{PROTECTING_IMPOSSIBLE, false, true},
                 {PROTECTING_IMPOSSIBLE, true, false},
                 {PROTECTING_NEEDLESS, false, false}};
    for (unsigned i = 0; i < COUNT(known); i++) {
        begin(known[i].protecting, PROTECTION_NONE);
        s.state.now = SOURCE_CONFIRMING;
        snprintf(s.vm.ram.status, sizeof(s.vm.ram.status), "running");
        s.verifier = known[i].verifies ? (struct ibx_verifier *)&s : NULL;
        assert_int_equal(ibx_source_protection_recheck(&s, &error), 0);
        assert_int_equal(s.unseen_since, known[i].unseen);
        assert_int_equal(ibx_source_verdict(&s, &error), -EBUSY);
        assert_int_equal(strstr(error.message, "may have changed here before they came") != NULL,
                         known[i].unseen);
    }
}

/* The record names the protection before anything is protected, and not that of an earlier tool:
 * otherwise no other tool could remove it. */
static void test_the_protection_is_on_record_before_it_is_armed(NO_STATE)
{
    for (unsigned unwritten = 0; unwritten < 2; unwritten++) {
        begin(PROTECTING_WISHED, PROTECTION_MADE);
        is.unwritten = unwritten;
        s.status.record.all_protected = true;
        ibx_source_protect(&s);
        assert_false(is.recorded || s.status.record.all_protected);
        assert_int_equal(was.armed, !unwritten);
        assert_int_equal(s.protecting.now, unwritten ? PROTECTING_WISHED : PROTECTING_ASKED);
    }
}

/* What QEMU reports before its answer has happened before all pages had come. */
static void test_qemu_is_asked_when_all_pages_have_come(NO_STATE)
{
    struct ibx_migrate_any complete = {.type = IBX_MIGRATE_COMPLETE};
    struct message_context context = {&s, &error};
    begin(PROTECTING_IMPOSSIBLE, PROTECTION_NONE);
    ibx_page_map_hash(&s.vm.map, complete.is.totals.hash);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ibx_source_on_message(&context, &complete), 0);
        assert_int_equal(was.asked, 1);
        assert_int_equal(s.protecting.now, PROTECTING_LAST);
        assert_int_equal(s.peer.now, PEER_COMPLETE);
    }
}

/* A page differs that somebody may have changed here after it had come, which QEMU has reported:
 * that is read first. */
static void test_a_page_differs_that_may_have_changed_here(NO_STATE)
{
    for (unsigned reported = 0; reported < 2; reported++) {
        begin(PROTECTING_NEEDLESS, PROTECTION_NONE);
        s.link.state.now = LINK_MAPPED;
        s.verifier = (struct ibx_verifier *)&s;
        s.status.record.verify = true;
        is.has_events = reported;
        assert_int_equal(ibx_source_check_pages(&s, &error), reported ? 0 : -EBADMSG);
        assert_int_equal(was.broken, !reported);
    }
}

/* A disk that is full is not asked in each turn of the loop. */
static void test_whole_protection_is_recorded_when_there_is_room(NO_STATE)
{
    begin(PROTECTING_WHOLE, PROTECTION_ARMED);
    is.unwritten = true;
    for (unsigned i = 0; i < 3; i++)
        ibx_source_protection_answered(&s);
    assert_int_equal(was.noted, 1);
    assert_false(s.status.record.all_protected);
    assert_in_range(s.whole_ns, ibx_now_ns(), ibx_deadline_in_ms(1000));
    is.unwritten = false;
    s.whole_ns = 0; /* a second later */
    for (unsigned i = 0; i < 3; i++)
        ibx_source_protection_answered(&s);
    assert_int_equal(was.noted, 2);
    assert_true(s.status.record.all_protected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_somebody_continues_or_resets_the_vm),
        cmocka_unit_test(test_qemu_writes),
        cmocka_unit_test(test_it_is_not_known_since_when_the_vm_runs_here),
        cmocka_unit_test(test_the_protection_is_on_record_before_it_is_armed),
        cmocka_unit_test(test_whole_protection_is_recorded_when_there_is_room),
        cmocka_unit_test(test_qemu_is_asked_when_all_pages_have_come),
        cmocka_unit_test(test_a_page_differs_that_may_have_changed_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
