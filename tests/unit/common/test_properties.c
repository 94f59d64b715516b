/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Parser of GVirtuS's properties file: entries, comments, duplicates, lists, limits, and files
 * that others can change. */
#include "common/properties.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct ibx_error error;

/* Parses a copy of exactly `length` bytes, so that a sanitizer sees every byte read past them. */
static int parse_bytes(const char *text, size_t length, struct ibx_properties *p)
{
    char *copy = malloc(length ? length : 1);
    assert_non_null(copy);
    memcpy(copy, text, length);
    memset(&error, 0, sizeof(error));
    int rc = ibx_properties_parse("a.properties", copy, length, p, &error);
    free(copy);
    return rc;
}

static struct ibx_properties parsed(const char *text)
{
    struct ibx_properties p;
    assert_int_equal(parse_bytes(text, strlen(text), &p), 0);
    return p;
}

static void refused(const char *text, size_t length, const char *expected)
{
    struct ibx_properties p = {.count = 77};
    assert_int_equal(parse_bytes(text, length, &p), -EINVAL);
    assert_int_equal(p.count, 77); /* outputs are set only on success */
    assert_int_equal(error.code, -EINVAL);
    if (!strstr(error.message, expected))
        fail_msg("\"%s\" lacks \"%s\"", error.message, expected);
}

static void expect(const struct ibx_properties *p, const char *key, const char *value,
                   unsigned line)
{
    const struct ibx_property *entry = ibx_properties_find(p, key);
    if (!entry)
        fail_msg("no entry %s", key);
    assert_string_equal(entry->value, value);
    assert_int_equal(entry->line, line);
}

static void test_upstream_file(void **state)
{
    (void)state;
    struct ibx_properties p = parsed("#\n# gVirtuS config file\n#\n\n"
                                     "#   Tcp: tcp://hostname:port\n\n"
                                     "communicator : tcp://127.0.0.1:9998\n"
                                     "plugins : cudart,cudadr,cufft\n\n"
                                     "#\n# End Of File\n#\n\n");
    assert_int_equal(p.count, 2);
    expect(&p, "communicator", "tcp://127.0.0.1:9998", 7);
    expect(&p, "plugins", "cudart,cudadr,cufft", 8);
    assert_null(ibx_properties_find(&p, "Communicator"));
    ibx_properties_fini(&p);
    assert_int_equal(p.count, 0);
}

static void test_split_and_trim(void **state)
{
    (void)state;
    struct ibx_properties p = parsed(" \t a.b\v:\f x : y \r\n"
                                     "empty:\n"
                                     ": no key\n"
                                     "inner space : a  b\n"
                                     "Communicator : upper\n");
    expect(&p, "a.b", "x : y", 1);
    expect(&p, "empty", "", 2);
    expect(&p, "", "no key", 3);
    expect(&p, "inner space", "a  b", 4);
    expect(&p, "Communicator", "upper", 5);
    assert_null(ibx_properties_find(&p, "communicator"));
    ibx_properties_fini(&p);
}

static void test_hash_cuts_anywhere(void **state)
{
    (void)state;
    struct ibx_properties p = parsed("key : va#lue\n  # only : a comment\nother : # none\n");
    assert_int_equal(p.count, 2);
    expect(&p, "key", "va", 1);
    expect(&p, "other", "", 3);
    ibx_properties_fini(&p);
    /* The hash cuts the entry before its colon, and the rest is not an entry. */
    refused("fine : 1\nkey # : value\n", 23, "a.properties line 2: \"key\"");
}

static void test_first_duplicate_wins(void **state)
{
    (void)state;
    struct ibx_properties p = parsed("a : 1\nb : 2\na : 3\n");
    assert_int_equal(p.count, 2);
    expect(&p, "a", "1", 1);
    expect(&p, "b", "2", 2);
    assert_string_equal(p.ignored.key, "a");
    assert_int_equal(p.ignored.line, 3);
    ibx_properties_fini(&p);
    p = parsed("a : 1\nb : 2\n");
    assert_null(p.ignored.key);
    ibx_properties_fini(&p);
}

static void test_ends_without_newline(void **state)
{
    (void)state;
    struct ibx_properties p = parsed("a : 1\nb:2");
    expect(&p, "b", "2", 2);
    ibx_properties_fini(&p);
    p = parsed("");
    assert_int_equal(p.count, 0);
    ibx_properties_fini(&p);
}

static void test_hostile_text(void **state)
{
    (void)state;
    refused("a : 1\nb : \0 2\n", 14, "line 2 holds a NUL");
    refused("a : 1\n\0", 7, "line 2 holds a NUL");
    refused("a : 1\n\033[31mred\n", 15, "line 2: \"?[31mred\" is not an entry");
    refused("0123456789abcdef0123456789abcdef\n", 33,
            "line 1: \"0123456789abcdef...\" is not an entry");

    size_t size = IBX_PROPERTIES_BYTES_MAX + 1;
    char *big = malloc(size);
    assert_non_null(big);
    memset(big, ' ', size);
    refused(big, size, "longer than");
    struct ibx_properties p;
    assert_int_equal(parse_bytes(big, size - 1, &p), 0);
    ibx_properties_fini(&p);
    memset(big, 'x', size);
    big[1] = ':';
    assert_int_equal(parse_bytes(big, size - 1, &p), 0);
    assert_int_equal(strlen(ibx_properties_find(&p, "x")->value), size - 3);
    ibx_properties_fini(&p);
    free(big);
}

static void test_entry_limit(void **state)
{
    (void)state;
    char text[(IBX_PROPERTIES_ENTRIES_MAX + 1) * 10];
    size_t length = 0, at_limit = 0;
    for (int i = 0; i <= IBX_PROPERTIES_ENTRIES_MAX; i++) {
        at_limit = length;
        length += (size_t)snprintf(text + length, sizeof(text) - length, "k%d:%d\n", i, i);
    }
    struct ibx_properties p;
    assert_int_equal(parse_bytes(text, at_limit, &p), 0);
    assert_int_equal(p.count, IBX_PROPERTIES_ENTRIES_MAX);
    expect(&p, "k1023", "1023", 1024);
    ibx_properties_fini(&p);
    refused(text, length, "line 1025: more than 1024 entries");
}

static void expect_items(const char *list, const char *const *expected)
{
    const char *rest = list, *item;
    size_t length;
    while (ibx_properties_item(&rest, &item, &length)) {
        assert_non_null(*expected);
        assert_int_equal(length, strlen(*expected));
        assert_memory_equal(item, *expected, length);
        expected++;
    }
    assert_null(*expected);
    assert_false(ibx_properties_item(&rest, &item, &length));
}

static void test_lists(void **state)
{
    (void)state;
    expect_items("cudart, cublas,x", (const char *const[]){"cudart", " cublas", "x", NULL});
    expect_items(",a,,b,", (const char *const[]){"a", "b", NULL});
    expect_items("", (const char *const[]){NULL});
}

static void test_load(void **state)
{
    (void)state;
    char dir[] = "/tmp/ibx-properties-XXXXXX", file[64];
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof(file), "%s/p", dir);
    struct ibx_properties p;
    assert_int_equal(ibx_properties_load(file, &p, &error), -ENOENT);
    assert_non_null(strstr(error.message, file));

    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fputs("communicator : rdma://gpu:1", out);
    fclose(out);
    assert_int_equal(ibx_properties_load(file, &p, &error), 0);
    expect(&p, "communicator", "rdma://gpu:1", 1);
    ibx_properties_fini(&p);
    assert_int_equal(unlink(file), 0);

    /* Neither a FIFO without a writer nor a directory may block the loading. A refused file is
     * not even opened, because opening a device may have effects. */
    struct inotify_event event;
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_true(watch >= 0 && inotify_add_watch(watch, file, IN_OPEN) >= 0);
    assert_int_equal(ibx_properties_load(file, &p, &error), -EINVAL);
    assert_int_equal(read(watch, &event, sizeof(event)), -1);
    assert_int_equal(errno, EAGAIN);
    close(watch);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(ibx_properties_load(dir, &p, &error), -EINVAL);
    assert_non_null(strstr(error.message, "not a regular file"));
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(ibx_properties_load("/dev/null", &p, &error), 0);
    assert_int_equal(p.count, 0);
    ibx_properties_fini(&p);
    assert_int_equal(ibx_properties_load("/dev/zero", &p, &error), -EINVAL);
}

static void load_refused(const char *file, const char *expected)
{
    struct ibx_properties p = {.count = 77};
    assert_int_equal(ibx_properties_load(file, &p, &error), -EPERM);
    assert_int_equal(p.count, 77);
    assert_non_null(strstr(error.message, file));
    if (!strstr(error.message, expected))
        fail_msg("\"%s\" lacks \"%s\"", error.message, expected);
}

/* A user who can change the file decides where the process connects, and with which key. */
static void test_files_of_others_are_refused(void **state)
{
    (void)state;
    static const mode_t open_modes[] = {0664, 0646, 0602, 0620, 0777};
    char file[] = "/tmp/ibx-properties-XXXXXX", message[80];
    struct ibx_properties p;
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(open_modes[0]); i++) {
        assert_int_equal(fchmod(fd, open_modes[i]), 0);
        snprintf(message, sizeof(message), "has mode %04o, so others can change it: chmod go-w it",
                 (unsigned)open_modes[i]);
        load_refused(file, message);
    }
    assert_int_equal(fchmod(fd, 0644), 0);
    assert_int_equal(ibx_properties_load(file, &p, &error), 0);
    ibx_properties_fini(&p);
    if (!geteuid()) { /* only root can give files away, and files of root are trusted by all */
        assert_int_equal(fchown(fd, 12345, 0), 0);
        load_refused(file, "belongs to user 12345, not to user 0 or root: chown it");
        assert_int_equal(seteuid(12345), 0);
        assert_int_equal(ibx_properties_load(file, &p, &error), 0);
        ibx_properties_fini(&p);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(fchown(fd, 0, 0), 0);
        assert_int_equal(seteuid(12345), 0);
        assert_int_equal(ibx_properties_load(file, &p, &error), 0);
        ibx_properties_fini(&p);
        assert_int_equal(seteuid(0), 0);
    }
    close(fd);
    assert_int_equal(unlink(file), 0);
}

int main(void)
{
    umask(022);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_upstream_file),
        cmocka_unit_test(test_split_and_trim),
        cmocka_unit_test(test_hash_cuts_anywhere),
        cmocka_unit_test(test_first_duplicate_wins),
        cmocka_unit_test(test_ends_without_newline),
        cmocka_unit_test(test_hostile_text),
        cmocka_unit_test(test_entry_limit),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_files_of_others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
