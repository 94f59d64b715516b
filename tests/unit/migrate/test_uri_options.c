/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Settings in the query of a URI are recorded like options of the command line. Otherwise a
 * listener that continues without them would accept other peers, or run unencrypted. */
#include "migrate/common/common.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ibx_record record;

/* Makes the record of a migration with this URI and these options of the command line. */
static void describe(const struct ibx_options *options, const char *uri)
{
    struct ibx_options ours = ibx_migration_options(options, uri);
    struct ibx_guest_ram *ram = calloc(1, sizeof(*ram));
    assert_non_null(ram);
    ram->pid = getpid();
    memset(&record, 0, sizeof(record));
    assert_int_equal(ibx_migration_describe(&record, ram, "/nowhere/qmp", uri, &ours, NULL), 0);
    free(ram);
}

static void test_record_has_the_settings_of_the_uri(NO_STATE)
{
    struct ibx_options options;
    ibx_options_init(&options);
    describe(&options, "tcp://0.0.0.0:0?key_file=/nowhere/keys&allow=a,b&encryption=required");
    assert_string_equal(record.key_file, "/nowhere/keys");
    assert_string_equal(record.allow, "a,b");
    assert_int_equal(record.encryption, IBX_ENCRYPTION_REQUIRED);
    assert_false(record.insecure);
    describe(&options, "rdma://there:1?key_file=/nowhere/keys&name=b&insecure=yes");
    assert_string_equal(record.key_name, "b");
    assert_true(record.insecure);
}

static void test_the_uri_wins(NO_STATE)
{
    struct ibx_options options;
    ibx_options_init(&options);
    assert_int_equal(ibx_options_set(&options, "allow", "c", NULL), 0);
    assert_int_equal(ibx_options_set(&options, "key_file", "/nowhere/more", NULL), 0);
    assert_int_equal(ibx_options_set(&options, "timeout_ms", "700", NULL), 0);
    describe(&options, "rdma://there:1?allow=a");
    assert_string_equal(record.allow, "a");
    assert_string_equal(record.key_file, "/nowhere/more");
    assert_int_equal(ibx_migration_options(&options, NULL).timeout_ms, 700);
    assert_int_equal(ibx_migration_options(&options, "rdma://there:1?timeout_ms=800").timeout_ms,
                     800);
    /* the fabric is chosen anew each time */
    assert_string_equal(ibx_migration_options(&options, "tcp://there:1").provider, "auto");
}

/* The tool that recovers may run in another folder. */
static void test_key_file_is_recorded_with_its_full_path(NO_STATE)
{
    char folder[] = "/tmp/ibx-uri-options-XXXXXX", before[4096], whole[64], uri[128];
    struct ibx_options options;
    ibx_options_init(&options);
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    close(open("keys", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    describe(&options, "tcp://0.0.0.0:0?key_file=keys");
    snprintf(whole, sizeof(whole), "%s/keys", folder);
    assert_string_equal(record.key_file, whole);
    /* The URI's setting wins when it is used to connect again. */
    snprintf(uri, sizeof(uri), "tcp://0.0.0.0:0?name=a&key_file=%s&insecure=no", whole);
    describe(&options, "tcp://0.0.0.0:0?name=a&key_file=keys&insecure=no");
    assert_string_equal(record.uri, uri);
    assert_string_equal(record.key_file, whole);
    ibx_migration_note_uri(&record, "shm:///tmp/key_file=a?key_file=/b");
    assert_string_equal(record.uri, "shm:///tmp/key_file=a?key_file=/b");
    ibx_migration_note_uri(&record, "tcp://0.0.0.0:0");
    assert_string_equal(record.uri, "tcp://0.0.0.0:0");
    assert_int_equal(unlink(whole), 0);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* The record has the key's file even if no query can name it, so that a tool finds it that
 * recovers in another folder or with another URI. */
static void test_folder_that_no_uri_can_contain(NO_STATE)
{
    char folder[] = "/tmp/ibx-uri&name=b-XXXXXX", before[4096], deep[512], uri[1000], whole[64];
    struct ibx_options options;
    ibx_options_init(&options);
    assert_non_null(mkdtemp(folder));
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    describe(&options, "tcp://0.0.0.0:0?key_file=keys&name=a");
    assert_string_equal(record.uri, "tcp://0.0.0.0:0?name=a");
    snprintf(whole, sizeof(whole), "%s/keys", folder);
    assert_string_equal(record.key_file, whole);
    ibx_migration_note_uri(&record, "tcp://0.0.0.0:0?name=a&key_file=more&insecure=no");
    assert_string_equal(record.uri, "tcp://0.0.0.0:0?name=a&insecure=no");
    snprintf(whole, sizeof(whole), "%s/more", folder);
    assert_string_equal(record.key_file, whole);
    ibx_migration_note_uri(&record, "tcp://0.0.0.0:0?key_file=keys");
    assert_string_equal(record.uri, "tcp://0.0.0.0:0");
    ibx_migration_note_uri(&record, "tcp://0.0.0.0:0?key_file=/nowhere/keys");
    assert_string_equal(record.uri, "tcp://0.0.0.0:0?key_file=/nowhere/keys");
    snprintf(deep, sizeof(deep), "/tmp/ibx-uri-%0150d", (int)getpid());
    assert_int_equal(mkdir(deep, 0700), 0);
    assert_int_equal(chdir(deep), 0);
    snprintf(uri, sizeof(uri), "tcp://0.0.0.0:0?allow=%0400d&key_file=keys", 1);
    describe(&options, uri);
    assert_string_equal(record.uri, uri);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rmdir(deep), 0);
}

/* Keys are replaced by links. The recorded path leads to the new keys, and stays when the old
 * ones are removed. */
static void test_links_to_the_key_file_stay(NO_STATE)
{
    char folder[] = "/tmp/ibx-uri-options-XXXXXX", link[64], file[64];
    struct ibx_options options;
    ibx_options_init(&options);
    assert_non_null(mkdtemp(folder));
    snprintf(link, sizeof(link), "%s/key", folder);
    snprintf(file, sizeof(file), "%s/1", folder);
    close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_int_equal(symlink("1", link), 0);
    assert_int_equal(ibx_options_set(&options, "key_file", link, NULL), 0);
    describe(&options, "tcp://0.0.0.0:0");
    assert_string_equal(record.key_file, link);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A truncated URI would still be valid, but without its last options, or with half of a name. */
static void test_a_long_uri_is_not_cut(NO_STATE)
{
    struct ibx_options options;
    char uri[1000];
    ibx_options_init(&options);
    int length = snprintf(uri, sizeof(uri), "tcp://%0200d:1?key_file=/", 0);
    memset(uri + length, 'k', 240);
    length += 240;
    length +=
        snprintf(uri + length, sizeof(uri) - (size_t)length, "&name=%063d&encryption=required", 1);
    assert_true(length > 512);
    describe(&options, uri);
    assert_string_equal(record.uri, uri);
    memset(uri, 'x', 950);
    uri[950] = '\0';
    describe(&options, uri); /* too long, so it must stay too long in the record */
    struct ibx_uri parsed;
    assert_true(ibx_uri_parse(record.uri, &parsed, NULL) < 0 && strlen(record.uri) > IBX_URI_MAX);
}

/* Otherwise a destination that loses its monitor would take a QEMU that runs for ended. */
static void test_a_qemu_whose_start_cannot_be_read(NO_STATE)
{
    struct ibx_options options;
    struct ibx_guest_ram *ram = calloc(1, sizeof(*ram));
    struct ibx_error err = {0};
    struct rlimit before, none;
    ibx_options_init(&options);
    assert_non_null(ram);
    ram->pid = getpid();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){.rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const int rc =
        ibx_migration_describe(&record, ram, "/nowhere/qmp", "tcp://there:1", &options, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    free(ram);
    assert_int_equal(rc, -EMFILE);
    assert_non_null(strstr(err.message, "started cannot be read"));
    assert_non_null(strstr(err.message, IBX_ERROR_RAISE_FILES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_record_has_the_settings_of_the_uri),
        cmocka_unit_test(test_the_uri_wins),
        cmocka_unit_test(test_key_file_is_recorded_with_its_full_path),
        cmocka_unit_test(test_folder_that_no_uri_can_contain),
        cmocka_unit_test(test_links_to_the_key_file_stay),
        cmocka_unit_test(test_a_long_uri_is_not_cut),
        cmocka_unit_test(test_a_qemu_whose_start_cannot_be_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
