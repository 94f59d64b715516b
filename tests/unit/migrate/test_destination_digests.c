/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* When the destination reports the digests of a range of pages. In minor mode QEMU may give a
 * page back while it arrives; its hash is then removed before QEMU answers its monitor. */
#include "migrate/destination/destination.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGE   4096u
#define RANGES 3u
#define PAGES  (RANGES * IBX_DIGEST_PAGES)
#define GIVEN  7u /* the page that is given back */

static struct destination d;
static _Atomic uint64_t words[PAGES];
static struct ibx_error error;

/* --------------------------------------------------------------------------- replaced functions */

static struct {
    unsigned passes, notes; /* how often QEMU was asked, and how often events were awaited */
    int pass;               /* QEMU's answer; 0: it has also given back GIVEN */
    uint64_t comes;         /* a page that is not in place yet; PAGES: none */
    bool told_ranges[RANGES];
    uint8_t entries[RANGES][IBX_DIGEST_ENTRY];
} is;

int __wrap_ibx_destination_qemu_pass(struct destination_qemu *qemu);
int __wrap_ibx_destination_qemu_pass(struct destination_qemu *qemu)
{
    (void)qemu;
    is.passes++;
    if (!is.pass)
        ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1);
    return is.pass;
}

bool __wrap_ibx_fault_present(const struct ibx_fault *engine, uint64_t page);
bool __wrap_ibx_fault_present(const struct ibx_fault *engine, uint64_t page)
{
    (void)engine;
    return page != is.comes;
}

void __wrap_ibx_fault_note_events(struct ibx_fault *engine);
void __wrap_ibx_fault_note_events(struct ibx_fault *engine)
{
    (void)engine;
    is.notes++;
}

int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err);
int __wrap_ibx_channel_send(struct ibx_channel *channel, const struct ibx_migrate_any *message,
                            struct ibx_error *err)
{
    const struct ibx_migrate_digest *digest = &message->is.digest;
    const uint64_t first = digest->first / IBX_DIGEST_PAGES,
                   count = digest->entries.length / IBX_DIGEST_ENTRY;
    (void)channel, (void)err;
    assert_int_equal(message->type, IBX_MIGRATE_DIGEST);
    assert_true(first + count <= RANGES);
    memcpy(is.entries[first], digest->entries.bytes, digest->entries.length);
    memset(&is.told_ranges[first], true, count);
    return 0;
}

/* ---------------------------------------------------------------- steps */

static int start(void **state)
{
    static const struct ibx_migrate_block block = {"ram0", (uint64_t)PAGES * PAGE, PAGE, 0};
    static const uint8_t key[IBX_DIGEST_KEY] = {1}, bytes[PAGE] = {2};
    static struct ibx_fault *const engine = (struct ibx_fault *)&is;
    (void)state;
    memset(&is, 0, sizeof(is));
    memset((void *)words, 0, sizeof(words));
    d = (struct destination){.ram = {.minor = true, .engine = engine}};
    is.comes = PAGES;
    d.state.now = DESTINATION_FILLING;
    d.link.state.now = LINK_SERVING;
    ibx_channel_init(&d.link.control, NULL);
    if (ibx_page_map_init(&d.ram.map, &block, 1, &error))
        return -1;
    ibx_page_map_set(&d.ram.map, 0, PAGES);
    if (ibx_page_tags_create(&d.ram.map, words, key, 1, &d.ram.page_tags, &error))
        return -1;
    for (uint64_t page = 0; page < PAGES; page++)
        if (ibx_page_tags_note(d.ram.page_tags, 0, page, 1, bytes, &error))
            return -1;
    return 0;
}

static int end(void **state)
{
    (void)state;
    ibx_destination_digests_restart(&d);
    ibx_page_tags_destroy(d.ram.page_tags);
    ibx_page_map_fini(&d.ram.map);
    return 0;
}

/* Makes a turn of the loop. Returns how many ranges have been reported so far. */
static unsigned told_ranges(void)
{
    unsigned count = 0;
    d.digests.look_ns = 0;
    const int rc = ibx_destination_send_digests(&d, &error);
    for (unsigned i = 0; i < RANGES; i++)
        count += is.told_ranges[i];
    assert_int_equal(rc, count == RANGES ? 0 : -EAGAIN);
    return count;
}

static bool tells_of(uint64_t page)
{
    const uint64_t in = page % IBX_DIGEST_PAGES;
    return is.entries[page / IBX_DIGEST_PAGES][in / 8] >> in % 8 & 1;
}

/* ---------------------------------------------------------------- tests */

static void removed_hashes_are_not_reported(NO_STATE)
{
    assert_int_equal(told_ranges(), RANGES);
    assert_false(tells_of(GIVEN));
    assert_true(tells_of(GIVEN + 1));
    assert_int_equal(is.passes, 1);
    assert_int_equal(is.notes, 1);
}

static void nothing_is_told_before_qemu_answers(NO_STATE)
{
    is.pass = -ETIMEDOUT;
    assert_int_equal(told_ranges(), 0);
    is.pass = 0;
    assert_int_equal(told_ranges(), RANGES);
    assert_false(tells_of(GIVEN));
}

/* A page that is not in place may have been hashed and given back. */
static void page_that_is_not_in_place_is_awaited(NO_STATE)
{
    is.comes = GIVEN;
    assert_int_equal(told_ranges(), RANGES - 1);
    assert_false(is.told_ranges[0]);
    d.state.now = DESTINATION_COMPLETE;
    assert_int_equal(told_ranges(), RANGES);
    assert_false(tells_of(GIVEN));
}

/* From COMPLETE on no event comes any more, so the last pages are checked before. The record
 * cannot be written in this test. */
static void qemu_is_asked_before_the_end(NO_STATE)
{
    static const struct ibx_receive_options options = {.folder = "/proc/none"};
    d.options = &options;
    d.ram.engine = NULL;
    assert_int_equal(ibx_destination_complete(&d, &error), 0);
    assert_int_equal(d.state.now, DESTINATION_FILLING);
    assert_int_equal(is.passes, 1);
    d.state.now = DESTINATION_COMPLETE;
    assert_int_equal(told_ranges(), RANGES);
    assert_false(tells_of(GIVEN));
}

/* In the other modes the tool hashed a buffer of its own. */
static void qemu_is_not_asked_in_other_modes(NO_STATE)
{
    d.ram.minor = false;
    assert_int_equal(told_ranges(), RANGES);
    assert_int_equal(is.passes, 0);
}

static void each_range_is_sent_once(NO_STATE)
{
    d.ram.minor = false;
    ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1);
    assert_int_equal(told_ranges(), RANGES - 1);
    memset(is.told_ranges, 0, sizeof(is.told_ranges));
    assert_int_equal(told_ranges(), 0);
    assert_int_equal(d.digests.left, 1);
}

/* A range without data in a map that is still coming looks as if all of it had come. The source
 * would take its pages for compared. */
static void nothing_is_sent_before_the_page_map_has_come_again(NO_STATE)
{
    d.ram.minor = false;
    ibx_page_tags_forget(d.ram.page_tags, 0, PAGES);
    ibx_page_map_restart(&d.ram.map);
    d.link.state.now = LINK_OPEN;
    assert_int_equal(ibx_destination_send_digests(&d, &error), 0);
    for (unsigned i = 0; i < RANGES; i++)
        assert_false(is.told_ranges[i]);
    d.link.state.now = LINK_SERVING;
    assert_int_equal(told_ranges(), RANGES);
}

/* After a reconnection the source sends the map again. Until that is complete the previous one
 * counts. */
static void incomplete_page_map_is_not_recorded(NO_STATE)
{
    struct ibx_journal_totals totals;
    uint8_t hash[IBX_MIGRATE_HASH_BYTES];
    ibx_page_map_hash(&d.ram.map, hash);
    memcpy(d.link.map_end.hash, hash, sizeof(hash)); /* as MAP_END would set it */
    ibx_page_map_restart(&d.ram.map);
    ibx_page_map_set(&d.ram.map, 0, 1);
    ibx_destination_total(&d, &totals);
    assert_int_equal(totals.pages, PAGES);
    assert_memory_equal(totals.hash, hash, sizeof(hash));
}

/* ---------------------------------------------------------------- a VM that is borrowed */

static _Atomic uint64_t uncompared;

/* Its pages come one by one; those that start() has noted count as the first ones. */
static void borrow(void)
{
    d.ram.minor = false;
    d.ram.borrow = IBX_BORROW_LAZY;
    ibx_page_tags_count(d.ram.page_tags, &uncompared);
}

static int send_fresh(void)
{
    memset(is.told_ranges, 0, sizeof(is.told_ranges));
    d.digests.look_ns = 0;
    return ibx_destination_send_digests(&d, &error);
}

static void comes(uint64_t page, uint8_t byte)
{
    uint8_t bytes[PAGE];
    memset(bytes, byte, sizeof(bytes));
    assert_int_equal(ibx_page_tags_note(d.ram.page_tags, 0, page, 1, bytes, &error), 0);
}

static void each_page_is_sent_until_it_is_compared(NO_STATE)
{
    borrow();
    assert_int_equal(uncompared, PAGES);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_true(is.told_ranges[0] && is.told_ranges[RANGES - 1] && tells_of(GIVEN));
    assert_int_equal(send_fresh(), -EAGAIN); /* no answer has come */
    assert_false(is.told_ranges[0]);
    assert_int_equal(ibx_destination_on_compared(&d, d.digests.told + 1, &error), -EPROTO);
    assert_int_equal(uncompared, PAGES);
    assert_int_equal(ibx_destination_on_compared(&d, d.digests.told, &error), 0);
    assert_int_equal(uncompared, 0);
    assert_int_equal(ibx_destination_on_compared(&d, d.digests.told, &error), -EPROTO);
    assert_int_equal(send_fresh(), 0);
    assert_false(is.told_ranges[0]);
    ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1);
    comes(GIVEN, 3); /* only that one */
    assert_int_equal(uncompared, 1);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_true(is.told_ranges[0] && !is.told_ranges[1] && tells_of(GIVEN) && !tells_of(GIVEN + 1));
}

/* The source answers when it has compared all that had come by then, which may be less than all
 * that was sent. From an answer on it may change the pages. */
static void an_answer_to_the_first_digest_agrees_to_nothing(NO_STATE)
{
    ibx_page_tags_forget(d.ram.page_tags, IBX_DIGEST_PAGES, IBX_DIGEST_PAGES);
    borrow();
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_int_equal(d.digests.told, 2);
    assert_int_equal(ibx_destination_on_compared(&d, 1, &error), 0);
    assert_int_equal(uncompared, PAGES - IBX_DIGEST_PAGES);
    assert_int_equal(ibx_destination_on_compared(&d, 2, &error), 0);
    assert_int_equal(uncompared, 0);
}

/* The source refuses pages of a range that it still has to compare. */
static void nothing_is_sent_before_the_answer(NO_STATE)
{
    ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1);
    borrow();
    assert_int_equal(send_fresh(), -EAGAIN);
    comes(GIVEN, 6);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_int_equal(d.digests.told, 1);
    assert_int_equal(ibx_destination_on_compared(&d, 1, &error), 0);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_true(is.told_ranges[0] && tells_of(GIVEN) && !tells_of(GIVEN + 1));
}

/* At home the VM writes to the memory with which its pages would be compared. */
static void nothing_is_sent_once_the_vm_has_returned(NO_STATE)
{
    borrow();
    d.status.record.borrow = IBX_BORROW_LAZY;
    snprintf(d.status.record.vm_status, sizeof(d.status.record.vm_status), IBX_JOURNAL_RETURNED);
    assert_int_equal(send_fresh(), 0);
    assert_int_equal(d.digests.told, 0);
}

/* The source may still read a page that was given back since it was sent. */
static void a_page_that_was_given_back_counts_until_the_answer(NO_STATE)
{
    borrow();
    assert_int_equal(send_fresh(), -EAGAIN);
    ibx_page_tags_forget(d.ram.page_tags, 0, PAGES);
    assert_int_equal(uncompared, PAGES);
    comes(GIVEN, 4); /* not that which was sent */
    assert_int_equal(ibx_page_tags_conflict(d.ram.page_tags, &error), 0);
    assert_int_equal(ibx_destination_on_compared(&d, d.digests.told, &error), 0);
    assert_int_equal(uncompared, 1);
    ibx_page_tags_forget(d.ram.page_tags, 0, PAGES);
    comes(GIVEN, 4);
    ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1); /* not sent: nobody reads it */
    assert_int_equal(uncompared, 0);
}

/* Over the next link comes what was not answered, also to a tool that takes over. */
static void what_was_not_answered_is_sent_again(NO_STATE)
{
    static const uint8_t key[IBX_DIGEST_KEY] = {1};
    borrow();
    assert_int_equal(send_fresh(), -EAGAIN);
    ibx_page_tags_forget(d.ram.page_tags, GIVEN, 1);
    ibx_destination_digests_restart(&d);
    ibx_page_tags_unsend(d.ram.page_tags);
    assert_int_equal(uncompared, PAGES - 1);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_true(is.told_ranges[0] && !tells_of(GIVEN) && tells_of(GIVEN + 1));
    ibx_destination_digests_restart(&d);
    ibx_page_tags_destroy(d.ram.page_tags);
    assert_int_equal(ibx_page_tags_create(&d.ram.map, words, key, 1, &d.ram.page_tags, &error), 0);
    borrow();
    assert_int_equal(uncompared, PAGES - 1);
    assert_int_equal(send_fresh(), -EAGAIN);
    assert_int_equal(ibx_destination_on_compared(&d, d.digests.told, &error), 0);
    ibx_page_tags_break(d.ram.page_tags);
    comes(GIVEN, 5);
    assert_true(uncompared == (IBX_PAGE_TAGS_BROKEN | 1));
}

int main(void)
{
#define A_TEST(test) cmocka_unit_test_setup_teardown(test, start, end)
    const struct CMUnitTest tests[] = {
        A_TEST(removed_hashes_are_not_reported),
        A_TEST(nothing_is_told_before_qemu_answers),
        A_TEST(page_that_is_not_in_place_is_awaited),
        A_TEST(qemu_is_asked_before_the_end),
        A_TEST(qemu_is_not_asked_in_other_modes),
        A_TEST(each_range_is_sent_once),
        A_TEST(nothing_is_sent_before_the_page_map_has_come_again),
        A_TEST(incomplete_page_map_is_not_recorded),
        A_TEST(each_page_is_sent_until_it_is_compared),
        A_TEST(an_answer_to_the_first_digest_agrees_to_nothing),
        A_TEST(nothing_is_sent_before_the_answer),
        A_TEST(nothing_is_sent_once_the_vm_has_returned),
        A_TEST(a_page_that_was_given_back_counts_until_the_answer),
        A_TEST(what_was_not_answered_is_sent_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
