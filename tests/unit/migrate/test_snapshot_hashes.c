/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The hashes of a snapshot's pages byte by byte, and what readers do with a server whose pages,
 * hashes or map do not match its manifest. */
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGES 8u
#define PAGE  IBX_SNAPSHOT_PAGE

static struct ibx_error error;
static struct ibx_snapshot_folder folder;
static struct ibx_snapshot_table table;
static struct ibx_snapshot_index list;
static struct ibx_page_map map; /* the map that the table describes */
static uint8_t ram[PAGES * PAGE], device[PAGE];
static void *memory[3];
static struct ibx_snapshot_server *server;

static int fd_of(const void *bytes, size_t length)
{
    char name[] = "/tmp/ibx-hashes-XXXXXX";
    const int fd = mkstemp(name);
    assert_true(fd >= 0 && !unlink(name));
    assert_int_equal(pwrite(fd, bytes, length, 0), length);
    return fd;
}

/* Makes a folder of guest RAM, device state and the table. `files_of`: first pages and numbers
 * of pages with data, ended by a number of 0. */
static int make_folder(unsigned (*files_of)[2])
{
    struct ibx_snapshot_manifest *m = &folder.manifest;
    struct ibx_page_map files;
    for (unsigned i = 0; i < sizeof(m->id); i++)
        m->id[i] = (uint8_t)i;
    m->complete = m->hashed = true;
    m->ram_count = 1;
    m->ram[0].size = sizeof(ram);
    m->state_bytes = 100;
    snprintf(m->ram[0].id, sizeof(m->ram[0].id), "mem0");
    m->description = json_object();
    folder.count = 2;
    folder.fds[0] = fd_of(ram, sizeof(ram));
    folder.fds[1] = fd_of(device, sizeof(device));
    folder.sizes[0] = sizeof(ram);
    folder.sizes[1] = sizeof(device);
    assert_int_equal(ibx_snapshot_map_init(m, &files, &error), 0);
    for (; (*files_of)[1]; files_of++)
        ibx_page_map_set(&files, (*files_of)[0], (*files_of)[1]);
    assert_int_equal(ibx_snapshot_table_init(m, &table, &error), 0);
    assert_int_equal(ibx_snapshot_table_fill(&folder, &files, &table, NULL, &error), 0);
    assert_int_equal(ibx_snapshot_table_digest(m, &table, m->digest, &error), 0);
    assert_int_equal(ibx_snapshot_table_read(m, &table, &files, &map, &list, &error), 0);
    ibx_page_map_fini(&files);
    return 0;
}

/* Pages 1 and 5 of guest RAM hold data, page 2 only zeros, and there is device state. */
static int begin(void **unused)
{
    (void)unused;
    memset(ram, 0, sizeof(ram));
    memset(ram + 1 * PAGE, 0x11, PAGE);
    ram[6 * PAGE - 1] = 0x55;
    memset(device, 0x77, 100);
    /* the last two: device state and hashes */
    return make_folder((unsigned[][2]){{1, 2}, {5, 1}, {PAGES, 2}, {0, 0}});
}

static int begin_empty(void **unused)
{
    (void)unused;
    memset(ram, 0, sizeof(ram));
    memset(device, 0, sizeof(device));
    return make_folder((unsigned[][2]){{0, 0}});
}

static int end(void **unused)
{
    (void)unused;
    ibx_snapshot_server_close(server);
    server = NULL;
    ibx_snapshot_table_fini(&table);
    ibx_snapshot_index_fini(&list);
    ibx_page_map_fini(&map);
    ibx_snapshot_folder_close(&folder);
    return 0;
}

/* Computed by another program, from docs/protocol.md. */
static void test_golden(NO_STATE)
{
    static const uint8_t zeros[16],
        one[16] = {0x31, 0xca, 0xf2, 0x02, 0x42, 0x7e, 0x98, 0xb9,
                   0x01, 0x0b, 0x6f, 0xf1, 0xdf, 0x6d, 0x9b, 0x82},
        of_table[16] = {0xcb, 0xb7, 0x03, 0x78, 0x65, 0x6c, 0x82, 0x66,
                        0x7c, 0xbd, 0xba, 0x03, 0xf4, 0xcf, 0x15, 0x18},
        digest[32] = {0x25, 0xd5, 0x04, 0x13, 0xfe, 0x4c, 0xcd, 0xbb, 0x8e, 0xcc, 0x8c,
                      0xfe, 0x6c, 0x39, 0x65, 0xe9, 0x94, 0xfd, 0xc7, 0x70, 0x59, 0xae,
                      0xa7, 0xe8, 0x2b, 0x96, 0xe6, 0xe3, 0x93, 0x81, 0x0d, 0xa7};
    assert_int_equal(table.pages, PAGES + 1);
    assert_int_equal(table.bytes, PAGE);
    for (unsigned page = 0; page < PAGES; page++)
        assert_true((page == 1 || page == 5) ==
                    (memcmp(table.hashes + page * 16, zeros, sizeof(zeros)) != 0));
    assert_memory_equal(table.hashes + 16, one, sizeof(one));
    assert_memory_equal(list.hashes, of_table, sizeof(of_table));
    assert_int_equal(list.pieces, 16);
    assert_memory_equal(list.hashes + 16, zeros, sizeof(zeros));
    assert_memory_equal(folder.manifest.digest, digest, sizeof(digest));
}

/* At another place, or in another snapshot, the same page has another hash. */
static void test_hash_depends_on_place_and_snapshot(NO_STATE)
{
    struct ibx_snapshot_table other;
    memcpy(ram + 5 * PAGE, ram + 1 * PAGE, PAGE);
    assert_int_equal(pwrite(folder.fds[0], ram, sizeof(ram), 0), sizeof(ram));
    assert_int_equal(ibx_snapshot_table_init(&folder.manifest, &other, &error), 0);
    assert_int_equal(ibx_snapshot_table_fill(&folder, &map, &other, NULL, &error), 0);
    assert_memory_equal(other.hashes + 16, table.hashes + 16, 16);
    assert_memory_not_equal(other.hashes + 16, other.hashes + 5 * 16, 16);
    folder.manifest.id[0] ^= 1;
    assert_int_equal(ibx_snapshot_table_fill(&folder, &map, &other, NULL, &error), 0);
    assert_memory_not_equal(other.hashes + 16, table.hashes + 16, 16);
    ibx_snapshot_table_fini(&other);
}

/* A snapshot without hashes has no table, and so no pages of one. */
static void test_no_table(NO_STATE)
{
    static const uint64_t size = 256ull << 20;
    struct ibx_page_map all;
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    folder.manifest.hashed = false;
    ibx_snapshot_index_fini(&list);
    ibx_page_map_fini(&map);
    assert_int_equal(ibx_snapshot_table_read(&folder.manifest, &table, NULL, &map, &list, &error),
                     0);
    assert_int_equal(map.pages, PAGES + 1);
    assert_int_equal(map.data_pages, 3);
    /* The pages of such a table would be far behind the map of this memory. */
    assert_int_equal(ftruncate(folder.fds[0], (off_t)size), 0);
    assert_int_equal(pwrite(folder.fds[0], "x", 1, (off_t)size - 1), 1);
    folder.manifest.ram[0].size = folder.sizes[0] = size;
    assert_int_equal(ibx_snapshot_map_init(&folder.manifest, &all, &error), 0);
    ibx_page_map_set(&all, size / PAGE - 1, 1);
    assert_int_equal(ibx_snapshot_digest(&folder, &all, digest, &error), 0);
    ibx_page_map_fini(&all);
}

static int checked(struct ibx_snapshot_checker *checker, uint64_t page, uint32_t pages,
                   const uint8_t *bytes)
{
    memset(&error, 0, sizeof(error));
    return ibx_snapshot_checker_check(checker, 0, page, pages, bytes, &error);
}

static void test_pages_that_arrive(NO_STATE)
{
    struct ibx_snapshot_checker *checker;
    assert_int_equal(ibx_snapshot_checker_create(&folder.manifest, &list, 1, &checker, &error), 0);
    assert_null(list.hashes);
    /* The hashes of these pages must come first. */
    assert_int_equal(ibx_snapshot_checker_lacks(checker, 0, 1), 0);
    assert_int_equal(checked(checker, 0, 1, ram), -EBADMSG);
    assert_non_null(strstr(error.message, "the hash of page 0 did not come"));
    table.hashes[5 * 16] ^= 1;
    assert_int_equal(checked(checker, PAGES + 1, 1, table.hashes), -EBADMSG);
    assert_non_null(strstr(error.message, "the hashes of page 0 and those behind it"));
    assert_int_equal(checked(checker, PAGES + 1, 1, ram + PAGE), -EBADMSG);
    table.hashes[5 * 16] ^= 1;
    assert_int_equal(ibx_snapshot_checker_lacks(checker, 0, 1), 0);
    assert_int_equal(checked(checker, PAGES + 1, 1, table.hashes), 0);
    assert_int_equal(ibx_snapshot_checker_lacks(checker, 0, 1), 1);
    assert_int_equal(checked(checker, 0, PAGES, ram), 0);
    ram[5 * PAGE] ^= 1;
    assert_int_equal(checked(checker, 0, PAGES, ram), -EBADMSG);
    assert_non_null(strstr(error.message, "page 5 came with other bytes"));
    ram[5 * PAGE] ^= 1;
    /* zeros in place of data, data in place of zeros, the page of another place */
    assert_int_equal(checked(checker, 1, 1, ram), -EBADMSG);
    assert_int_equal(checked(checker, 2, 1, ram + 1 * PAGE), -EBADMSG);
    assert_int_equal(checked(checker, 5, 1, ram + 1 * PAGE), -EBADMSG);
    assert_int_equal(checked(checker, PAGES + 1, 2, device), -ERANGE);
    /* The caller's pages are four pages of the snapshot. */
    ibx_snapshot_checker_scale(checker, 4 * PAGE);
    assert_int_equal(checked(checker, 1, 1, ram + 4 * PAGE), 0);
    assert_int_equal(checked(checker, 0, 2, ram), 0);
    assert_int_equal(checked(checker, 0, 1, ram + 4 * PAGE), -EBADMSG);
    assert_int_equal(checked(checker, 3, 1, ram), -ERANGE);
    ibx_snapshot_checker_destroy(checker);
}

/* ---------------------------------------------------------------- servers */

static int read_from(struct ibx_snapshot_reader **reader)
{
    struct ibx_options options;
    ibx_options_init(&options);
    memory[0] = ram;
    memory[1] = device;
    memory[2] = table.hashes;
    const struct ibx_snapshot_server_config config = {.uri = "tcp://127.0.0.1:0",
                                                      .options = &options,
                                                      .manifest = &folder.manifest,
                                                      .map = &map,
                                                      .index = &list,
                                                      .memory = memory};
    ibx_snapshot_server_close(server);
    memset(&error, 0, sizeof(error));
    assert_int_equal(ibx_snapshot_server_open(&config, &server, &error), 0);
    return ibx_snapshot_reader_open(ibx_snapshot_server_uri(server), &options, 1, reader, &error);
}

static void test_map_must_match_the_hashes(NO_STATE)
{
    struct ibx_snapshot_reader *reader;
    assert_int_equal(read_from(&reader), 0);
    const struct ibx_page_map *is = ibx_snapshot_reader_map(reader);
    for (unsigned page = 0; page < PAGES + 2; page++)
        assert_int_equal(ibx_page_map_data(is, page), page == 1 || page == 5 || page >= PAGES);
    struct ibx_snapshot_index own = ibx_snapshot_reader_take_index(reader);
    assert_memory_equal(own.hashes, list.hashes, 16);
    assert_null(ibx_snapshot_reader_take_index(reader).hashes);
    ibx_snapshot_index_fini(&own);
    ibx_snapshot_reader_close(reader);
}

static void test_all_pages_are_zero(NO_STATE)
{
    struct ibx_snapshot_reader *reader;
    assert_int_equal(read_from(&reader), 0);
    for (unsigned page = 0; page < PAGES; page++)
        assert_false(ibx_page_map_data(ibx_snapshot_reader_map(reader), page));
    struct ibx_snapshot_index own = ibx_snapshot_reader_take_index(reader);
    assert_int_equal(own.pieces, list.pieces);
    assert_memory_equal(own.hashes, list.hashes, own.pieces * 16);
    ibx_snapshot_index_fini(&own);
    ibx_snapshot_reader_close(reader);
}

static void test_a_page_is_left_out(NO_STATE)
{
    struct ibx_snapshot_reader *reader = NULL;
    struct ibx_page_map less;
    assert_int_equal(ibx_snapshot_map_init(&folder.manifest, &less, &error), 0);
    ibx_page_map_set(&less, 5, 1);
    ibx_page_map_remove(&map, &less);
    ibx_page_map_fini(&less);
    assert_int_equal(read_from(&reader), -EBADMSG);
    assert_non_null(strstr(error.message, "or the map of them, are not those"));
    assert_null(reader);
}

/* The index is checked as a whole, each page of the table when it arrives. */
static void test_a_hash_is_changed(NO_STATE)
{
    struct ibx_snapshot_reader *reader = NULL;
    struct ibx_snapshot_checker *checker;
    list.hashes[0] ^= 1;
    assert_int_equal(read_from(&reader), -EBADMSG);
    assert_non_null(strstr(error.message, "the hashes of its pages, or"));
    assert_null(reader);
    list.hashes[0] ^= 1;
    table.hashes[2 * 16] = 1; /* of a zero page */
    assert_int_equal(read_from(&reader), 0);
    struct ibx_snapshot_index own = ibx_snapshot_reader_take_index(reader);
    assert_int_equal(ibx_snapshot_checker_create(&folder.manifest, &own, 1, &checker, &error), 0);
    assert_int_equal(ibx_snapshot_reader_fetch_hashes(reader, checker, 5, 1, &error), -EBADMSG);
    assert_non_null(strstr(error.message, "the hashes of page 0 and those behind it"));
    table.hashes[2 * 16] = 0;
    assert_int_equal(ibx_snapshot_reader_fetch_hashes(reader, checker, 5, 1, &error), 0);
    assert_int_equal(checked(checker, 1, 1, ram + PAGE), 0);
    ibx_snapshot_checker_destroy(checker);
    ibx_snapshot_reader_close(reader);
}

/* The folder notes that its contents were verified. They are read once, and again if somebody
 * has written to a file, even if the modification time was set back. */
static void test_verified_until_it_changes(NO_STATE)
{
    char place[] = "/tmp/ibx-verified-XXXXXX", mark[64];
    struct stat was, is;
    uint64_t bytes;
    assert_non_null(mkdtemp(place));
    folder.at = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder.opened = folder.at >= 0;
    assert_true(folder.opened);
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), 0);
    assert_true(bytes > 0);
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(fstat(folder.fds[0], &was), 0);
    do { /* until the time changes: the clock of files is coarse */
        assert_int_equal(pwrite(folder.fds[0], "x", 1, PAGE), 1);
        assert_int_equal(futimens(folder.fds[0], (struct timespec[2]){was.st_atim, was.st_mtim}),
                         0);
        assert_int_equal(fstat(folder.fds[0], &is), 0);
    } while (!memcmp(&is.st_ctim, &was.st_ctim, sizeof(is.st_ctim)));
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), -EBADMSG);
    snprintf(mark, sizeof(mark), "%s/verified", place);
    assert_true(!unlink(mark) && !rmdir(place));
}

int __real_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
int __wrap_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);

/* how often the first file is changed after it was read; the byte that is written */
static unsigned changes_left;
static char written;

int __wrap_ibx_snapshot_digest(const struct ibx_snapshot_folder *of,
                               const struct ibx_page_map *pages,
                               uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    struct stat was, is;
    char byte = written;
    const int rc = __real_ibx_snapshot_digest(of, pages, digest, err);
    if (!changes_left)
        return rc;
    changes_left--;
    assert_int_equal(fstat(of->fds[0], &was), 0);
    if (!byte)
        assert_int_equal(pread(of->fds[0], &byte, 1, PAGE), 1);
    do { /* until the time changes: the clock of files is coarse */
        assert_int_equal(pwrite(of->fds[0], &byte, 1, PAGE), 1);
        assert_int_equal(fstat(of->fds[0], &is), 0);
    } while (!memcmp(&is.st_ctim, &was.st_ctim, sizeof(is.st_ctim)));
    return rc;
}

/* What was read before does not verify the changed file. */
static void test_changed_while_it_is_verified(NO_STATE)
{
    char place[] = "/tmp/ibx-verified-XXXXXX", mark[64];
    uint64_t bytes;
    assert_non_null(mkdtemp(place));
    snprintf(mark, sizeof(mark), "%s/verified", place);
    folder.at = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    folder.opened = folder.at >= 0;
    changes_left = 100;
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), -EBUSY);
    assert_int_equal(access(mark, F_OK), -1);
    changes_left = 1;
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), 0);
    assert_int_equal(changes_left, 0);
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(unlink(mark), 0);
    changes_left = 1;
    written = 'x';
    assert_int_equal(ibx_snapshot_verify(&folder, &bytes, &error), -EBADMSG);
    written = 0;
    assert_int_equal(access(mark, F_OK), -1);
    assert_int_equal(rmdir(place), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden, begin, end),
        cmocka_unit_test_setup_teardown(test_hash_depends_on_place_and_snapshot, begin, end),
        cmocka_unit_test_setup_teardown(test_no_table, begin, end),
        cmocka_unit_test_setup_teardown(test_pages_that_arrive, begin, end),
        cmocka_unit_test_setup_teardown(test_map_must_match_the_hashes, begin, end),
        cmocka_unit_test_setup_teardown(test_all_pages_are_zero, begin_empty, end),
        cmocka_unit_test_setup_teardown(test_a_page_is_left_out, begin, end),
        cmocka_unit_test_setup_teardown(test_a_hash_is_changed, begin, end),
        cmocka_unit_test_setup_teardown(test_verified_until_it_changes, begin, end),
        cmocka_unit_test_setup_teardown(test_changed_while_it_is_verified, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
