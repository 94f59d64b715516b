/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the processes of a back end know about each other's sessions and handles if one of them
 * is stopped, or has written nonsense to their shared memory. */
#include "frontend-glue/tenants/shared_handles.h"
#include "frontend-glue/session/records.h"
#include "tests/unit/forked_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define PLACES 1024u /* for handles */

static struct ibx_record record_of(uint8_t id)
{
    struct ibx_record r = {.has_user = 1, .user = id, .name = "carol"};
    memset(r.id, id, sizeof(r.id));
    memset(r.secret, id + 1, sizeof(r.secret));
    strcpy(r.report.peer, "10.0.0.1");
    return r;
}

static void test_records(void **state)
{
    (void)state;
    struct ibx_records *records = ibx_records_create();
    struct ibx_record first = record_of(1), second = record_of(2), found;
    unsigned at = 0;
    assert_non_null(records);
    const int place = ibx_records_add(records, &first);
    assert_true(place >= 0 && ibx_records_add(records, &second) >= 0);
    assert_int_equal(ibx_records_find(records, second.id, &found), getpid());
    assert_memory_equal(found.secret, second.secret, sizeof(found.secret));
    assert_string_equal(found.name, "carol");
    first.report.resumed = 3;
    ibx_records_change(records, place, &first);
    assert_true(ibx_records_next(records, &at, &found));
    assert_int_equal(found.report.resumed, 3);
    ibx_records_remove(records, place);
    assert_int_equal(ibx_records_find(records, first.id, &found), 0);
    ibx_records_forget(records, getpid());
    at = 0;
    assert_false(ibx_records_next(records, &at, &found));
    ibx_records_destroy(records);
}

/* Texts without an end, and counts beyond the limit. */
static void test_nonsense_in_records(void **state)
{
    (void)state;
    struct ibx_records *records = ibx_records_create();
    struct ibx_record wrong, found;
    assert_non_null(records);
    memset(&wrong, 0xff, sizeof(wrong));
    assert_true(ibx_records_add(records, &wrong) >= 0);
    assert_int_equal(ibx_records_find(records, wrong.id, &found), getpid());
    assert_int_equal(strlen(found.name), sizeof(found.name) - 1);
    assert_int_equal(strlen(found.report.peer), sizeof(found.report.peer) - 1);
    assert_int_equal(strlen(found.report.provider), sizeof(found.report.provider) - 1);
    assert_int_equal(found.has_user, 1);
    assert_int_equal(found.report.count, IBX_REPORT_CHANGES);
    for (unsigned i = 0; i < IBX_REPORT_CHANGES; i++) {
        assert_int_equal(strlen(found.report.changes[i].from), 15);
        assert_int_equal(strlen(found.report.changes[i].to), 15);
    }
    ibx_records_destroy(records);
}

/* Returns how many more handles the tenant can publish. */
static unsigned published(const char *tenant)
{
    struct ibx_shared_handle made = {.number = {1}, .kind = IBX_SHARED_EVENT};
    unsigned n = 0;
    while (ibx_shared_handles_publish(tenant, &made) >= 0)
        n++;
    return n;
}

/* Tenants that take all they can get leave room for others, in whatever order they come. */
static void test_greedy_tenants(void **state)
{
    (void)state;
    assert_true(ibx_shared_handles_create(PLACES));
    ibx_shared_handles_are_of(1);
    assert_int_equal(published("a"), PLACES / 4);
    assert_int_equal(published("b"), PLACES / 4);
    published("c");
    published("d");
    assert_true(published("e") >= PLACES / 32);
    assert_true(published("f") >= PLACES / 64);
    ibx_shared_handles_ended(1);
    assert_int_equal(published("f"), PLACES / 4);
    ibx_shared_handles_ended(1);
}

/* Existing records do not slow down a new one: they are not even looked at. */
static void test_many_records(void **state)
{
    (void)state;
    int places[PLACES / 8];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct ibx_shared_handle made = {.number = {1}, .kind = IBX_SHARED_EVENT};
    assert_true(ibx_shared_handles_create(PLACES));
    ibx_shared_handles_are_of(1);
    for (unsigned i = 0; i < PLACES / 8; i++)
        places[i] = ibx_shared_handles_publish("a", &made);
    const size_t there = shared_size / PLACES * (PLACES / 8) / page * page;
    assert_true(there >= 4 * page);
    assert_int_equal(mprotect(shared_bytes + page, there - 2 * page, PROT_NONE), 0);
    for (unsigned i = 0; i < PLACES / 16; i++)
        assert_true(ibx_shared_handles_publish("a", &made) > places[i]);
    ibx_shared_handles_withdraw(places[0]);
    assert_int_equal(ibx_shared_handles_publish("a", &made), places[0]);
    assert_int_equal(mprotect(shared_bytes, there, PROT_READ | PROT_WRITE), 0);
    ibx_shared_handles_ended(1);
}

static void test_handles(void **state)
{
    (void)state;
    struct ibx_shared_handle made = {.number = {1}, .kind = IBX_SHARED_EVENT}, found;
    ibx_shared_handles_are_of(1);
    const int place = ibx_shared_handles_publish("carol", &made);
    assert_true(place >= 0);
    assert_false(ibx_shared_handles_find("carol", IBX_SHARED_EVENT, made.number, &found));
    ibx_shared_handles_are_of(2);
    assert_false(ibx_shared_handles_find("dave", IBX_SHARED_EVENT, made.number, &found));
    assert_false(ibx_shared_handles_find("carol", IBX_SHARED_MEMORY, made.number, &found));
    assert_true(ibx_shared_handles_find("carol", IBX_SHARED_EVENT, made.number, &found));
    ibx_shared_handles_ended(1);
    assert_false(ibx_shared_handles_find("carol", IBX_SHARED_EVENT, made.number, &found));
    memset(&made, 0xff, sizeof(made));
    made.kind = IBX_SHARED_MEMORY;
    ibx_shared_handles_are_of(1);
    assert_int_equal(ibx_shared_handles_publish("carol", &made), place);
    ibx_shared_handles_are_of(2);
    assert_true(ibx_shared_handles_find("carol", IBX_SHARED_MEMORY, made.number, &found));
    assert_int_equal(found.n, UINT64_MAX);
    memset(shared_bytes, 0xff, shared_size); /* each place is taken, and its name has no end */
    assert_false(ibx_shared_handles_find("carol", IBX_SHARED_MEMORY, made.number, &found));
    assert_true(ibx_shared_handles_publish("carol", &made) < (int)PLACES);
    ibx_shared_handles_withdraw(-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records), cmocka_unit_test(test_nonsense_in_records),
        cmocka_unit_test(test_greedy_tenants), cmocka_unit_test(test_many_records),
        cmocka_unit_test(test_handles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
