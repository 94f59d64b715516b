/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Options: defaults, limits of every key, and errors that name the value and the accepted ones. */
#include "transport/transport.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Every key with its default, values that it accepts (and the text after '=' with which they are
 * printed, if it differs), and values that it refuses. */
static const struct {
    const char *key, *fallback;
    const char *good[8];
    const char *bad[10];
} table[] = {
    {"provider",
     "auto",
     {"auto", "shm", "verbs,tcp", "tcp,ofi,verbs,shm"},
     {"", "udp", "shm,", ",shm", "shm,,tcp", "shm,tcp,shm", "auto,shm", "SHM", "shm, tcp"}},
    {"device", "", {"", "mlx5_0", "mlx5_0,mlx5_1"}, {NULL}},
    {"ofi_provider", "", {"", "efa", "verbs;ofi_rxm"}, {NULL}},
    {"shm_dir", "", {"", "/run/ibx"}, {NULL}},
    {"shm_direct", "yes", {"yes", "no", "0=no"}, {"", "maybe"}},
    {"tcp_engine", "syscalls", {"syscalls", "uring", "uring-zc"}, {"", "warp", "uring-", "auto"}},
    {"key_file", "", {"", "/etc/ibx.key"}, {NULL}},
    {"name", "", {"", "alice", "web-1.example@site_2"}, {"a,b", "a b", "a:b", "\xc3\xa9"}},
    {"allow", "", {"", "alice", "alice,bob"}, {",", "a,", ",a", "a,,b", "a, b", "*"}},
    {"encryption", "auto", {"off", "auto", "required"}, {"", "on", "yes", "AUTO", "required,"}},
    {"ktls", "no", {"yes", "on=yes", "off=no"}, {"", "auto", "maybe"}},
    {"unauthenticated", "256", {"8", "4096"}, {"7", "4097", "0"}},
    {"insecure",
     "no",
     {"yes", "no", "true=yes", "on=yes", "1=yes", "false=no", "off=no", "0=no"},
     {"", "maybe", "YES", "2"}},
    {"port_num", "0", {"0", "1", "255"}, {"256", "-1", "", "x", "1x"}},
    {"gid_index", "-1", {"-1", "0", "3", "65535"}, {"-2", "65536", "", "1.5"}},
    {"mtu", "0", {"0", "256", "512", "1024", "2048", "4096"}, {"1500", "128", "8192", "4097"}},
    {"rails", "1", {"1", "4"}, {"0", "5", "-1"}},
    {"lanes", "0", {"0", "16"}, {"17", "-1"}},
    {"chunk", "0", {"0", "4K", "256k=256K", "64M", "65536=64K"}, {"4095", "1", "65M", "1G", "-1"}},
    {"depth", "0", {"0", "1024"}, {"1025", "-1"}},
    {"slots", "16", {"4", "1024"}, {"3", "1025", "0"}},
    {"message", "16K", {"1K", "1M", "1024=1K", "5000"}, {"1023", "0", "1048577", "2M"}},
    {"spin_us", "50", {"0", "10000000"}, {"10000001", "-1", "1ms"}},
    {"timeout_ms",
     "10000",
     {"100", "3600000"},
     {"99", "3600001", "0", "10s", "99999999999999999999"}},
};

#define KEYS (sizeof(table) / sizeof(table[0]))

static void table_covers_every_key(void **state)
{
    (void)state;
    for (unsigned i = 0; i < KEYS; i++)
        assert_string_equal(ibx_options_key(i), table[i].key);
    assert_null(ibx_options_key(KEYS));
    assert_null(ibx_options_key(UINT32_MAX));
}

static void defaults(void **state)
{
    (void)state;
    struct ibx_options options;
    memset(&options, 0xff, sizeof(options));
    ibx_options_init(&options);
    for (size_t i = 0; i < KEYS; i++) {
        char value[IBX_OPTION_SIZE];
        assert_int_equal(ibx_options_get(&options, table[i].key, value, sizeof(value)), 0);
        assert_string_equal(value, table[i].fallback);
    }
}

static void accepts_and_prints(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    for (size_t i = 0; i < KEYS; i++) {
        for (size_t j = 0; j < 8 && table[i].good[j]; j++) {
            char text[64], value[IBX_OPTION_SIZE];
            struct ibx_error err = {0};
            snprintf(text, sizeof(text), "%s", table[i].good[j]);
            char *expected = strchr(text, '=');
            if (expected)
                *expected++ = '\0';
            if (ibx_options_set(&options, table[i].key, text, &err))
                fail_msg("%s %s: %s", table[i].key, text, err.message);
            assert_int_equal(ibx_options_get(&options, table[i].key, value, sizeof(value)), 0);
            assert_string_equal(value, expected ? expected : text);
        }
    }
}

static void refuses_and_keeps_the_old_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < KEYS; i++) {
        for (size_t j = 0; j < 10 && table[i].bad[j]; j++) {
            struct ibx_options options, before;
            struct ibx_error err = {0};
            char quoted[64];
            ibx_options_init(&options);
            before = options;
            if (ibx_options_set(&options, table[i].key, table[i].bad[j], &err) != -EINVAL)
                fail_msg("%s takes \"%s\"", table[i].key, table[i].bad[j]);
            assert_memory_equal(&options, &before, sizeof(options));
            snprintf(quoted, sizeof(quoted), "%s: \"%s\" is not accepted: give ", table[i].key,
                     table[i].bad[j]);
            if (!strstr(err.message, quoted) || strlen(err.message) < strlen(quoted) + 4)
                fail_msg("%s \"%s\": the error is \"%s\"", table[i].key, table[i].bad[j],
                         err.message);
            assert_int_equal(ibx_options_set(&options, table[i].key, table[i].bad[j], NULL),
                             -EINVAL);
        }
    }
}

static void texts_have_limits(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        size_t most;
    } texts[] = {{"device", 127}, {"ofi_provider", 63}, {"shm_dir", 255}, {"key_file", 255}};
    for (size_t i = 0; i < 4; i++) {
        struct ibx_options options;
        struct ibx_error err = {0};
        char text[300] = "";
        ibx_options_init(&options);
        memset(text, 'd', texts[i].most);
        assert_int_equal(ibx_options_set(&options, texts[i].key, text, &err), 0);
        text[texts[i].most] = 'd';
        assert_int_equal(ibx_options_set(&options, texts[i].key, text, &err), -EINVAL);
        assert_non_null(strstr(err.message, "is longer than"));
        assert_non_null(strstr(err.message, texts[i].key));
    }
}

/* A longer name can belong to no key. */
static void names_of_keys_have_limits(void **state)
{
    (void)state;
    struct ibx_options options;
    char names[IBX_NAME_MAX + 4] = "a,";
    ibx_options_init(&options);
    memset(names + 2, 'd', IBX_NAME_MAX);
    assert_int_equal(ibx_options_set(&options, "allow", names, NULL), 0);
    names[2 + IBX_NAME_MAX] = 'd';
    assert_int_equal(ibx_options_set(&options, "allow", names, NULL), -EINVAL);
}

/* "dd,dd,...d" with the longest accepted length is printed whole; one more character is refused. */
static void longest_value_is_printed_whole(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_error err = {0};
    char text[IBX_OPTION_SIZE + 1] = "", value[IBX_OPTION_SIZE];
    ibx_options_init(&options);
    for (size_t i = 0; i < sizeof(options.allow) - 1; i++)
        text[i] = i % 3 == 2 ? ',' : 'd';
    assert_int_equal(ibx_options_set(&options, "allow", text, &err), 0);
    assert_int_equal(ibx_options_get(&options, "allow", value, sizeof(value)), 0);
    assert_string_equal(value, text);
    text[sizeof(options.allow) - 1] = 'd';
    assert_int_equal(ibx_options_set(&options, "allow", text, &err), -EINVAL);
}

static void unknown_key_names_the_known_ones(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_error err = {0};
    char value[8];
    ibx_options_init(&options);
    assert_int_equal(ibx_options_set(&options, "colour", "red", &err), -ENOENT);
    assert_non_null(strstr(err.message, "\"colour\""));
    for (size_t i = 0; i < KEYS; i++)
        assert_non_null(strstr(err.message, table[i].key));
    assert_int_equal(ibx_options_get(&options, "colour", value, sizeof(value)), -ENOENT);
}

static void get_truncates(void **state)
{
    (void)state;
    struct ibx_options options;
    char value[4];
    ibx_options_init(&options);
    assert_int_equal(ibx_options_get(&options, "timeout_ms", value, sizeof(value)), 0);
    assert_string_equal(value, "100");
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } good[] = {
        {"0", 0},          {"300", 300},
        {"64K", 65536},    {"64k", 65536},
        {"64KiB", 65536},  {"64KB", 65536},
        {"1M", 1 << 20},   {"1MiB", 1 << 20},
        {"2G", 2ul << 30}, {"2gib", 2ul << 30},
        {"100B", 100},     {"0K", 0},
        {"9K", 9 << 10},   {"99", 99},
        {"1Ki", 1024},     {"8589934591G", 8589934591ul << 30},
    };
    static const char *const bad[] = {"",
                                      "K",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1.5M",
                                      "1T",
                                      "1KK",
                                      "1i",
                                      "0x1",
                                      "1KiBs",
                                      "9223372036854775808",
                                      "8589934592G",
                                      "99999999999999999999",
                                      "banana"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        size_t bytes = 1;
        assert_int_equal(ibx_size_parse(good[i].text, &bytes, NULL), 0);
        assert_true(bytes == good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t bytes = 77;
        struct ibx_error err = {0};
        if (ibx_size_parse(bad[i], &bytes, &err) != -EINVAL)
            fail_msg("\"%s\" is taken for a size", bad[i]);
        assert_int_equal(bytes, 77);
        assert_non_null(strstr(err.message, bad[i]));
        assert_non_null(strstr(err.message, "64K"));
    }
}

static void help_lists_every_key(void **state)
{
    (void)state;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    ibx_options_describe(out);
    fclose(out);
    const char *line = text;
    for (size_t i = 0; i < KEYS; i++) {
        char start[40];
        snprintf(start, sizeof(start), "%s: ", table[i].key);
        assert_memory_equal(line, start, strlen(start));
        line = strchr(line, '\n') + 1;
    }
    assert_string_equal(line, "");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_covers_every_key),
        cmocka_unit_test(defaults),
        cmocka_unit_test(accepts_and_prints),
        cmocka_unit_test(refuses_and_keeps_the_old_value),
        cmocka_unit_test(texts_have_limits),
        cmocka_unit_test(longest_value_is_printed_whole),
        cmocka_unit_test(names_of_keys_have_limits),
        cmocka_unit_test(unknown_key_names_the_known_ones),
        cmocka_unit_test(get_truncates),
        cmocka_unit_test(sizes),
        cmocka_unit_test(help_lists_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
