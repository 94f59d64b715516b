/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Digests of pages: tags, ranges, the destination's table, and the comparison at the source. */
#include "migrate/pages/digest.h"
#include "tests/fixtures/openssl_memory.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL 4096u
#define HUGE  (2u << 20)
/* pages of the first block and huge pages of the second, together two ranges and a half */
#define FIRST   1300u
#define HUGES   12u
#define PAGES   (FIRST + HUGES)
#define BYTES   (FIRST * SMALL)
#define RANGES  3u
#define WAIT_MS 20000
#define MANY    20000u /* ranges, which take longer to compare than to queue */

static const uint8_t key[IBX_DIGEST_KEY] = "a key of both ends of a migrati";
static struct ibx_error error;

/* ------------------------------------------------------------ a VM's RAM */

static struct ibx_guest_block blocks[2];
static struct ibx_guest_ram ram;
static struct ibx_page_map map;
static uint8_t *memory[2];
static _Atomic uint64_t tag_words[PAGES];
static struct ibx_page_tags *tags;
static struct ibx_verifier *verifier;

static void block_make(unsigned i, const char *id, uint64_t page_size, uint64_t size)
{
    int fd = memfd_create(id, MFD_CLOEXEC);
    assert_true(fd >= 0 && !ftruncate(fd, (off_t)size));
    blocks[i] = (struct ibx_guest_block){.size = size, .page_size = page_size, .fd = fd};
    snprintf(blocks[i].id, sizeof(blocks[i].id), "%s", id);
    memory[i] = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(memory[i] != MAP_FAILED);
}

static uint8_t *page_at(uint64_t page)
{
    return page < FIRST ? memory[0] + page * SMALL : memory[1] + (page - FIRST) * HUGE;
}

static size_t size_at(uint64_t page)
{
    return page < FIRST ? SMALL : HUGE;
}

/* Every seventh page is zero. */
static int start(void **state)
{
    uint64_t bits[PAGES / 64 + 2] = {0};
    (void)state;
    block_make(0, "ram0", SMALL, BYTES);
    block_make(1, "huge", HUGE, (uint64_t)HUGES * HUGE);
    ram = (struct ibx_guest_ram){
        .blocks = blocks, .count = 2, .bytes = BYTES + (uint64_t)HUGES * HUGE};
    assert_int_equal(ibx_page_map_init_ram(&map, &ram, &error), 0);
    for (uint64_t page = 0; page < PAGES; page++) {
        if (page % 7 == 0)
            continue;
        bits[page / 64] |= 1ull << page % 64;
        memset(page_at(page), (int)(page % 251) + 1, size_at(page));
    }
    uint64_t second[1] = {bits[FIRST / 64] >> FIRST % 64 | bits[FIRST / 64 + 1]
                                                               << (64 - FIRST % 64)};
    ibx_page_map_put_block(&map, 0, bits);
    ibx_page_map_put_block(&map, 1, second);
    memset((void *)tag_words, 0, sizeof(tag_words));
    assert_int_equal(ibx_page_tags_create(&map, tag_words, key, 2, &tags, &error), 0);
    assert_int_equal(ibx_verifier_open(&ram, &map, key, 3, &verifier, &error), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ibx_verifier_close(verifier);
    ibx_page_tags_destroy(tags);
    ibx_page_map_fini(&map);
    for (unsigned i = 0; i < 2; i++) {
        munmap(memory[i], blocks[i].size);
        close(blocks[i].fd);
    }
    return 0;
}

static int note(uint64_t page, const void *bytes)
{
    memset(&error, 0, sizeof(error));
    return ibx_page_tags_note(tags, (unsigned)page % 2, page, 1, bytes, &error);
}

/* All pages with data arrive as they are at the source, the last one first. */
static void all_arrive(void)
{
    for (uint64_t page = PAGES; page-- > 0;)
        if (ibx_page_map_data(&map, page))
            assert_int_equal(note(page, page_at(page)), 0);
}

/* The digests of all ranges, too. */
static void all_arrive_with(uint8_t *entries)
{
    all_arrive();
    for (unsigned i = 0; i < RANGES; i++)
        assert_true(ibx_page_tags_entry(tags, i, entries + i * IBX_DIGEST_ENTRY));
}

static int give(uint64_t range, uint64_t count)
{
    uint8_t entries[RANGES * IBX_DIGEST_ENTRY];
    for (uint64_t i = 0; i < count; i++)
        ibx_page_tags_entry(tags, range + i, entries + i * IBX_DIGEST_ENTRY);
    const struct ibx_bytes bytes = {entries, count * IBX_DIGEST_ENTRY};
    return ibx_verifier_take(verifier, range * IBX_DIGEST_PAGES, &bytes, &error);
}

static int result(void)
{
    struct pollfd wait = {.fd = ibx_verifier_fd(verifier), .events = POLLIN};
    while (!ibx_verifier_idle(verifier))
        assert_true(poll(&wait, 1, WAIT_MS) >= 0 && (ibx_verifier_result(verifier, &error), 1));
    return ibx_verifier_result(verifier, &error);
}

/* ------------------------------------------------------------ tests */

/* A tag depends on the key and on every byte. Both ends must compute these tags in all versions. */
static void test_golden(NO_STATE)
{
    struct ibx_digest_keys keys, others;
    uint8_t page[SMALL], digest[IBX_DIGEST_BYTES], other[IBX_DIGEST_KEY];
    static const uint64_t list[3] = {1, 0, 3};
    static const uint8_t golden[IBX_DIGEST_BYTES] = {0xf6, 0x30, 0xbd, 0xac, 0x82, 0x00,
                                                     0x54, 0xe8, 0xc7, 0x48, 0x7e, 0x3e,
                                                     0x91, 0x85, 0x74, 0xa1};
    memset(page, 0x5a, sizeof(page));
    memcpy(other, key, sizeof(other));
    other[31] ^= 1;
    assert_true(ibx_digest_keys_derive(&keys, key) && ibx_digest_keys_derive(&others, other));
    struct ibx_page_tagger *tagger = ibx_page_tagger_create(&keys);
    struct ibx_page_tagger *another = ibx_page_tagger_create(&others);
    const uint64_t tag = ibx_page_tag(tagger, page, sizeof(page));
    assert_int_equal(tag, 0x1409d1ea86df386b);
    assert_int_not_equal(ibx_page_tag(another, page, sizeof(page)), tag);
    for (size_t at = 0; at < sizeof(page); at++) {
        page[at] ^= 1;
        assert_int_not_equal(ibx_page_tag(tagger, page, sizeof(page)), tag);
        page[at] ^= 1;
    }
    assert_int_equal(ibx_page_tag(tagger, page, sizeof(page)), tag);
    assert_true(ibx_page_tag_begin(tagger) && ibx_page_tag_add(tagger, page, 100) &&
                ibx_page_tag_add(tagger, page + 100, sizeof(page) - 100));
    assert_int_equal(ibx_page_tag_end(tagger), tag);
    assert_true(ibx_digest_range(&keys, 512, list, 3, digest));
    assert_memory_equal(digest, golden, sizeof(digest));
    assert_true(ibx_digest_range(&keys, 1024, list, 3, digest));
    assert_memory_not_equal(digest, golden, sizeof(digest));
    ibx_page_tagger_destroy(tagger);
    ibx_page_tagger_destroy(another);
}

static void test_agrees(NO_STATE)
{
    uint64_t compared, left_out;
    all_arrive();
    assert_true(ibx_page_tags_whole(tags, 2));
    assert_int_equal(give(2, 1), 0);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(give(0, 2), 0);
    assert_int_equal(result(), 0);
    assert_int_equal(give(0, 3), 0); /* again, as after a reconnection */
    assert_int_equal(result(), 0);
    ibx_verifier_pages(verifier, &compared, &left_out);
    assert_int_equal(compared, map.data_pages);
    assert_int_equal(left_out, 0);
}

/* A page that is zero at the stop may have come before it: it makes up for no other. */
static void test_range_lacks_a_page(NO_STATE)
{
    all_arrive();
    ibx_page_tags_forget(tags, 1, 1);
    assert_int_equal(note(7, page_at(8)), 0);
    assert_false(ibx_page_tags_whole(tags, 0));
    assert_int_equal(note(1, page_at(1)), 0);
    assert_true(ibx_page_tags_whole(tags, 0));
}

/* A page may arrive any number of times. */
static void test_pages_come_again(NO_STATE)
{
    uint8_t forged[SMALL];
    all_arrive();
    assert_int_equal(note(8, page_at(8)), 0);
    memcpy(forged, page_at(8), sizeof(forged));
    forged[4095] ^= 0x80;
    assert_int_equal(ibx_page_tags_conflict(tags, &error), 0);
    assert_int_equal(note(8, forged), 0);
    assert_int_equal(ibx_page_tags_conflict(tags, &error), -EBADMSG);
    assert_non_null(strstr(error.message, "page 8 of guest RAM came twice"));
    assert_int_equal(give(0, 1), 0); /* the first arrival counts */
    assert_int_equal(result(), -EAGAIN);
}

/* Pages that the guest gave back before they arrived: neither a digest nor the end waits for
 * them. */
static void test_left_out(NO_STATE)
{
    uint64_t compared, left_out;
    for (uint64_t page = 0; page < PAGES; page++)
        if (ibx_page_map_data(&map, page) && page != 600 && page != 1301)
            assert_int_equal(note(page, page_at(page)), 0);
    assert_true(ibx_page_tags_whole(tags, 0));
    assert_false(ibx_page_tags_whole(tags, 1));
    assert_false(ibx_page_tags_whole(tags, 2));
    assert_int_equal(give(0, 3), 0);
    assert_int_equal(result(), 0);
    ibx_verifier_pages(verifier, &compared, &left_out);
    assert_int_equal(left_out, 2);
    assert_int_equal(compared, map.data_pages - 2);
}

/* The source may compute digests before the destination has named the pages. They describe its
 * RAM at that time, which is what has arrived, even if the RAM changes afterwards. If a page was
 * given back they do not count. */
static void test_digests_computed_early(NO_STATE)
{
    uint64_t compared, left_out;
    for (uint64_t page = 0; page < PAGES; page++)
        if (ibx_page_map_data(&map, page) && page != 600)
            assert_int_equal(note(page, page_at(page)), 0);
    ibx_verifier_foresee(verifier);
    while (ibx_verifier_foreseen(verifier) < RANGES)
        sched_yield();
    page_at(8)[17] ^= 1;
    assert_int_equal(give(0, 3), 0);
    assert_int_equal(result(), 0);
    ibx_verifier_pages(verifier, &compared, &left_out);
    assert_int_equal(left_out, 1);
    assert_int_equal(compared, map.data_pages - 1);
}

/* The page that has arrived differs from the expected one. */
static void test_early_digest_differs(NO_STATE)
{
    uint8_t forged[SMALL];
    memcpy(forged, page_at(1), sizeof(forged));
    forged[0] ^= 1;
    for (uint64_t page = 0; page < IBX_DIGEST_PAGES; page++)
        if (ibx_page_map_data(&map, page))
            assert_int_equal(note(page, page == 1 ? forged : page_at(page)), 0);
    ibx_verifier_foresee(verifier);
    while (ibx_verifier_foreseen(verifier) < RANGES)
        sched_yield();
    assert_int_equal(give(0, 1), 0);
    assert_int_equal(result(), -EBADMSG);
}

static void differs(uint64_t range, const char *said)
{
    assert_int_equal(give(range, 1), 0);
    assert_int_equal(result(), -EBADMSG);
    if (!strstr(error.message, said))
        fail_msg("\"%s\" does not say \"%s\"", error.message, said);
}

static void test_forged_in_transit(NO_STATE)
{
    uint8_t forged[SMALL];
    memcpy(forged, page_at(701), sizeof(forged));
    forged[17] ^= 1;
    all_arrive();
    tag_words[701] = 0;
    assert_int_equal(note(701, forged), 0);
    assert_int_equal(give(0, 1), 0);
    assert_int_equal(give(2, 1), 0);
    assert_int_equal(result(), -EAGAIN);
    differs(1, "pages 512 to 1023 of guest RAM (ram0 from byte 0x200000 on) are not");
}

static void test_changed_at_the_source(NO_STATE)
{
    all_arrive();
    page_at(1300)[HUGE - 1] ^= 1;
    differs(2, "pages 1024 to 1311");
    ibx_verifier_try_again(verifier); /* that is for a lack of memory, and forgets no difference */
    page_at(1300)[HUGE - 1] ^= 1;
    assert_int_equal(give(2, 1), 0);
    assert_int_equal(result(), -EBADMSG);
}

/* Each byte of a digest counts. */
static void test_bytes_of_a_digest(void **state)
{
    for (unsigned i = 0; i < IBX_DIGEST_BYTES; i++) {
        uint8_t entry[IBX_DIGEST_ENTRY];
        const struct ibx_bytes bytes = {entry, sizeof(entry)};
        all_arrive();
        assert_true(ibx_page_tags_entry(tags, 1, entry));
        entry[IBX_DIGEST_PAGES / 8 + i] ^= 1;
        assert_int_equal(ibx_verifier_take(verifier, IBX_DIGEST_PAGES, &bytes, &error), 0);
        assert_int_equal(result(), -EBADMSG);
        end(state);
        start(state);
    }
}

/* Several threads share a range of huge pages; none of the pages is left out. */
static void test_changed_in_a_huge_page(void **state)
{
    for (uint64_t page = FIRST; page < PAGES; page++) {
        if (!ibx_page_map_data(&map, page))
            continue;
        all_arrive();
        page_at(page)[page % HUGES * (HUGE / HUGES)] ^= 1;
        differs(2, "pages 1024 to 1311");
        end(state);
        start(state);
    }
}

static void test_huge_pages_were_removed(NO_STATE)
{
    all_arrive();
    assert_int_equal(ftruncate(blocks[1].fd, 3 * HUGE), 0);
    assert_int_equal(give(2, 1), 0);
    assert_int_equal(result(), -EIO);
    assert_non_null(strstr(error.message, "guest RAM huge cannot be read"));
}

/* Two pages have each other's bytes. */
static void test_swapped(NO_STATE)
{
    assert_int_equal(note(1, page_at(2)), 0);
    assert_int_equal(note(2, page_at(1)), 0);
    differs(0, "pages 0 to 511");
}

static void test_zero_pages_have_none(NO_STATE)
{
    static const uint8_t zeros[SMALL];
    assert_int_equal(note(7, zeros), 0);
    differs(0, "where they are zero here");
}

/* A hole may have been a page when the destination was told of it. */
static void test_holes_that_were_pages(NO_STATE)
{
    static const uint8_t zeros[SMALL];
    ibx_verifier_look_into_holes(verifier);
    assert_int_equal(note(7, zeros), 0);
    assert_int_equal(give(0, RANGES), 0);
    assert_int_equal(result(), 0);
}

static void test_holes_that_had_bytes(NO_STATE)
{
    ibx_verifier_look_into_holes(verifier);
    assert_int_equal(note(7, page_at(2)), 0);
    differs(0, "are not at the destination what they are here");
}

/* The destination makes up its digests. */
static void test_made_up_digests(NO_STATE)
{
    uint8_t entries[RANGES * IBX_DIGEST_ENTRY] = {0};
    struct ibx_bytes bytes = {entries, sizeof(entries)};
    assert_int_equal(ibx_verifier_take(verifier, 512, &bytes, &error), -EPROTO);
    assert_int_equal(ibx_verifier_take(verifier, 1536, &bytes, &error), -EPROTO);
    assert_int_equal(ibx_verifier_take(verifier, UINT64_MAX - 511, &bytes, &error), -EPROTO);
    assert_int_equal(ibx_verifier_take(verifier, 0, &bytes, &error), 0);
    assert_int_equal(result(), -EBADMSG);
}

/* No ranges make neither a job nor an end. */
static void test_no_ranges(NO_STATE)
{
    const struct ibx_bytes none = {(const uint8_t *)"", 0};
    all_arrive();
    assert_int_equal(ibx_verifier_take(verifier, 0, &none, &error), 0);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(give(0, 3), 0);
    assert_int_equal(result(), 0);
}

/* Threads compare the same ranges at the same time; each range counts once. */
static void test_all_ranges_come_twice(NO_STATE)
{
    uint64_t compared, left_out;
    all_arrive();
    for (unsigned i = 0; i < 2; i++)
        for (uint64_t range = 0; range < RANGES; range++)
            assert_int_equal(give(range, 1), 0);
    assert_int_equal(result(), 0);
    ibx_verifier_pages(verifier, &compared, &left_out);
    assert_int_equal(compared, map.data_pages);
    assert_int_equal(left_out, 0);
    assert_int_equal(give(1, 2), 0);
    assert_int_equal(result(), 0);
}

/* Links that are lost before the ranges of the last one are compared bring all of them again. */
static void test_all_ranges_come_again_and_again(NO_STATE)
{
    static const uint64_t none[IBX_DIGEST_PAGES];
    const uint64_t size = (uint64_t)MANY * IBX_DIGEST_PAGES * SMALL;
    struct ibx_guest_block one = {.id = "ram0", .page_size = SMALL, .size = size};
    const struct ibx_guest_ram large = {.blocks = &one, .count = 1, .bytes = size};
    uint8_t *entries = calloc(MANY, IBX_DIGEST_ENTRY);
    const struct ibx_bytes bytes = {entries, (size_t)MANY * IBX_DIGEST_ENTRY};
    struct ibx_page_map zero;
    struct ibx_digest_keys keys;
    one.fd = memfd_create("ram0", MFD_CLOEXEC);
    assert_true(entries && one.fd >= 0 && !ftruncate(one.fd, (off_t)size));
    assert_int_equal(ibx_page_map_init_ram(&zero, &large, &error), 0);
    assert_true(ibx_digest_keys_derive(&keys, key));
    for (uint64_t i = 0; i < MANY; i++)
        assert_true(ibx_digest_range(&keys, i * IBX_DIGEST_PAGES, none, IBX_DIGEST_PAGES,
                                     entries + i * IBX_DIGEST_ENTRY + IBX_DIGEST_PAGES / 8));
    ibx_verifier_close(verifier);
    assert_int_equal(ibx_verifier_open(&large, &zero, key, 1, &verifier, &error), 0);
    for (unsigned links = 0; links < 4; links++)
        assert_int_equal(ibx_verifier_take(verifier, 0, &bytes, &error), 0);
    assert_int_equal(result(), 0);
    ibx_verifier_close(verifier);
    verifier = NULL;
    ibx_page_map_fini(&zero);
    close(one.fd);
    free(entries);
}

/* This is neither an error of this process nor a match. */
static void test_file_is_too_short(NO_STATE)
{
    all_arrive();
    assert_int_equal(ftruncate(blocks[0].fd, 600 * SMALL), 0);
    assert_int_equal(give(0, 1), 0);
    assert_int_equal(result(), -EAGAIN);
    assert_int_equal(give(1, 1), 0);
    assert_int_equal(result(), -EIO);
    assert_non_null(strstr(error.message, "guest RAM ram0 cannot be read"));
}

/* An earlier tool has tagged pages; the table is continued with them. */
static void test_table_is_continued(NO_STATE)
{
    all_arrive();
    tag_words[600] = 0;
    ibx_page_tags_destroy(tags);
    assert_int_equal(ibx_page_tags_create(&map, tag_words, key, 2, &tags, &error), 0);
    assert_true(ibx_page_tags_whole(tags, 0));
    assert_false(ibx_page_tags_whole(tags, 1));
    assert_int_equal(note(600, page_at(600)), 0);
    assert_int_equal(note(600, page_at(600)), 0);
    assert_true(ibx_page_tags_whole(tags, 1));
    assert_int_equal(give(0, 3), 0);
    assert_int_equal(result(), 0);
}

static _Atomic uint64_t uncompared;

static int give_fresh(uint64_t range)
{
    uint8_t entry[IBX_DIGEST_ENTRY];
    assert_true(ibx_page_tags_fresh_entry(tags, range, entry));
    const struct ibx_bytes bytes = {entry, sizeof(entry)};
    return ibx_verifier_take(verifier, range * IBX_DIGEST_PAGES, &bytes, &error);
}

/* A borrowed VM: what was compared may change at the source, and there is no end. */
static void test_parts_of_a_range(NO_STATE)
{
    ibx_verifier_compare_parts(verifier);
    ibx_page_tags_count(tags, &uncompared);
    assert_int_equal(note(1, page_at(1)), 0);
    assert_int_equal(give_fresh(0), 0);
    assert_int_equal(result(), -EAGAIN);
    ibx_page_tags_agreed(tags, 0);
    memset(page_at(1), 77, SMALL); /* it returns */
    assert_int_equal(note(2, page_at(2)), 0);
    assert_int_equal(give_fresh(0), 0);
    assert_int_equal(result(), -EAGAIN);
    ibx_page_tags_agreed(tags, 0);
    assert_int_equal(uncompared, 0);
    assert_int_equal(note(3, page_at(4)), 0);
    assert_int_equal(give_fresh(0), 0);
    assert_int_equal(result(), -EBADMSG);
}

/* What waits when the link is lost is not compared with what comes over the next one. */
static void test_parts_of_a_lost_link(NO_STATE)
{
    ibx_verifier_close(verifier);
    assert_int_equal(ibx_verifier_open(&ram, &map, key, 1, &verifier, &error), 0);
    ibx_verifier_compare_parts(verifier);
    ibx_page_tags_count(tags, &uncompared);
    all_arrive();
    for (unsigned links = 0; links < 20; links++) {
        for (uint64_t range = 0; range < RANGES; range++)
            assert_int_equal(give_fresh(range), 0);
        ibx_verifier_drop_parts(verifier);
        ibx_page_tags_unsend(tags);
    }
    assert_int_equal(result(), -EAGAIN);
    for (uint64_t range = 0; range < RANGES; range++)
        assert_int_equal(give_fresh(range), 0);
    assert_int_equal(result(), -EAGAIN);
    for (uint64_t range = 0; range < RANGES; range++)
        ibx_page_tags_agreed(tags, range);
    assert_int_equal(uncompared, 0);
}

static _Atomic uint64_t arrived, reads, fewer;
static _Atomic bool ends;

static void *read_on(void *unused)
{
    while (!ends) {
        fewer += uncompared < arrived;
        reads++;
    }
    return unused;
}

/* The tool by which the VM returns reads the number while a recovery counts: it never takes pages
 * for compared. */
static void test_counted_again(NO_STATE)
{
    pthread_t reader;
    ibx_page_tags_count(tags, &uncompared);
    all_arrive();
    arrived = uncompared;
    assert_true(arrived);
    reads = fewer = 0;
    ends = false;
    assert_int_equal(pthread_create(&reader, NULL, read_on, NULL), 0);
    for (unsigned i = 0; i < 200 || reads < 20000; i++) {
        ibx_page_tags_destroy(tags);
        assert_int_equal(ibx_page_tags_create(&map, tag_words, key, 2, &tags, &error), 0);
        ibx_page_tags_count(tags, &uncompared);
    }
    ends = true;
    assert_int_equal(pthread_join(reader, NULL), 0);
    assert_int_equal(fewer, 0);
    ibx_page_tags_break(tags);
    ibx_page_tags_destroy(tags);
    assert_int_equal(ibx_page_tags_create(&map, tag_words, key, 2, &tags, &error), 0);
    ibx_page_tags_count(tags, &uncompared);
    assert_int_equal(uncompared, arrived | IBX_PAGE_TAGS_BROKEN);
    uncompared = 0;
}

/* The guest gives a page back whose digest is on its way when the tool is killed: the next one has
 * nothing to send for it. */
static void test_given_back_before_a_recovery(NO_STATE)
{
    ibx_page_tags_count(tags, &uncompared);
    assert_int_equal(note(1, page_at(1)), 0);
    assert_int_equal(give_fresh(0), 0);
    ibx_page_tags_forget(tags, 1, 1);
    assert_int_equal(uncompared, 1);
    ibx_page_tags_destroy(tags);
    assert_int_equal(ibx_page_tags_create(&map, tag_words, key, 2, &tags, &error), 0);
    ibx_page_tags_count(tags, &uncompared);
    assert_int_equal(uncompared, 0);
    assert_false(ibx_page_tags_fresh(tags, 0));
}

/* The bits after the last page. */
static void test_spare_bits(NO_STATE)
{
    uint8_t entry[IBX_DIGEST_ENTRY];
    all_arrive();
    ibx_page_tags_entry(tags, 2, entry);
    entry[63] |= 0x80;
    const struct ibx_bytes bytes = {entry, sizeof(entry)};
    assert_int_equal(ibx_verifier_take(verifier, 1024, &bytes, &error), 0);
    assert_int_equal(result(), -EBADMSG);
}

/* ... is not taken for pages that differ, after which a VM is not to run on. */
static void test_no_memory(NO_STATE)
{
    struct ibx_digest_keys keys;
    struct ibx_verifier *another = NULL;
    struct ibx_page_tags *others = NULL;
    uint8_t entries[RANGES * IBX_DIGEST_ENTRY];
    const struct ibx_bytes bytes = {entries, sizeof(entries)};
    all_arrive_with(entries);
    openssl_lacks_memory = true;
    assert_false(ibx_digest_keys_derive(&keys, key));
    assert_false(ibx_page_tags_entry(tags, 0, entries));
    assert_true(ibx_verifier_open(&ram, &map, key, 3, &another, &error) < 0 && !another);
    assert_true(ibx_page_tags_create(&map, tag_words, key, 2, &others, &error) < 0 && !others);
    assert_int_equal(ibx_verifier_take(verifier, 0, &bytes, &error), 0);
    assert_int_equal(result(), -ENOMEM);
    assert_int_equal(note(0, page_at(0)), -ENOMEM);
    openssl_lacks_memory = false;
}

/* A range that could not be compared comes over the next link, and agrees: that is no failure. */
static void test_agrees_after_a_lack_of_memory(NO_STATE)
{
    uint8_t entries[RANGES * IBX_DIGEST_ENTRY];
    const struct ibx_bytes bytes = {entries, sizeof(entries)};
    all_arrive_with(entries);
    openssl_lacks_memory = true;
    assert_int_equal(ibx_verifier_take(verifier, 0, &bytes, &error), 0);
    assert_int_equal(result(), -ENOMEM);
    openssl_lacks_memory = false;
    assert_int_equal(give(0, RANGES), 0);
    assert_int_equal(result(), 0);
}

/* A lack of memory hides no difference that is found before or after it. */
static void test_no_memory_beside_a_difference(void **state)
{
    static const int expected[] = {-EBADMSG, -ENOMEM, -EBADMSG};
    for (unsigned lacking = 0; lacking < RANGES; lacking++) {
        all_arrive();
        page_at(600)[5] ^= 1; /* of the second range */
        for (unsigned range = 0; range < RANGES; range++) {
            uint8_t entry[IBX_DIGEST_ENTRY];
            const struct ibx_bytes bytes = {entry, sizeof(entry)};
            assert_true(ibx_page_tags_entry(tags, range, entry));
            openssl_lacks_memory = range == lacking;
            assert_int_equal(ibx_verifier_take(verifier, range * IBX_DIGEST_PAGES, &bytes, NULL),
                             0);
            result();
            openssl_lacks_memory = false;
        }
        assert_int_equal(result(), expected[lacking]);
        end(state);
        start(state);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test_setup_teardown(test_no_memory, start, end),
        cmocka_unit_test_setup_teardown(test_agrees_after_a_lack_of_memory, start, end),
        cmocka_unit_test_setup_teardown(test_no_memory_beside_a_difference, start, end),
        cmocka_unit_test_setup_teardown(test_agrees, start, end),
        cmocka_unit_test_setup_teardown(test_range_lacks_a_page, start, end),
        cmocka_unit_test_setup_teardown(test_pages_come_again, start, end),
        cmocka_unit_test_setup_teardown(test_left_out, start, end),
        cmocka_unit_test_setup_teardown(test_digests_computed_early, start, end),
        cmocka_unit_test_setup_teardown(test_early_digest_differs, start, end),
        cmocka_unit_test_setup_teardown(test_forged_in_transit, start, end),
        cmocka_unit_test_setup_teardown(test_changed_at_the_source, start, end),
        cmocka_unit_test_setup_teardown(test_bytes_of_a_digest, start, end),
        cmocka_unit_test_setup_teardown(test_changed_in_a_huge_page, start, end),
        cmocka_unit_test_setup_teardown(test_huge_pages_were_removed, start, end),
        cmocka_unit_test_setup_teardown(test_swapped, start, end),
        cmocka_unit_test_setup_teardown(test_zero_pages_have_none, start, end),
        cmocka_unit_test_setup_teardown(test_holes_that_were_pages, start, end),
        cmocka_unit_test_setup_teardown(test_holes_that_had_bytes, start, end),
        cmocka_unit_test_setup_teardown(test_made_up_digests, start, end),
        cmocka_unit_test_setup_teardown(test_no_ranges, start, end),
        cmocka_unit_test_setup_teardown(test_all_ranges_come_twice, start, end),
        cmocka_unit_test_setup_teardown(test_all_ranges_come_again_and_again, start, end),
        cmocka_unit_test_setup_teardown(test_file_is_too_short, start, end),
        cmocka_unit_test_setup_teardown(test_table_is_continued, start, end),
        cmocka_unit_test_setup_teardown(test_parts_of_a_range, start, end),
        cmocka_unit_test_setup_teardown(test_parts_of_a_lost_link, start, end),
        cmocka_unit_test_setup_teardown(test_counted_again, start, end),
        cmocka_unit_test_setup_teardown(test_given_back_before_a_recovery, start, end),
        cmocka_unit_test_setup_teardown(test_spare_bits, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
