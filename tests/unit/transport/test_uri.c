/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* URIs: which are accepted and refused, with which messages, and how a query sets options. */
#include "transport/transport.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Simulates the interfaces. */
unsigned __wrap_if_nametoindex(const char *name);
unsigned __wrap_if_nametoindex(const char *name)
{
    return !strcmp(name, "25has");
}

static const struct {
    const char *text, *scheme, *host;
    unsigned port;
    const char *path, *query, *printed;
} good[] = {
    {"rdma://node7:9999", "rdma", "node7", 9999, "", "", "rdma://node7:9999"},
    {"tcp://10.0.0.1:0", "tcp", "10.0.0.1", 0, "", "", "tcp://10.0.0.1:0"},
    {"verbs://a-b_c.example:65535", "verbs", "a-b_c.example", 65535, "", "",
     "verbs://a-b_c.example:65535"},
    {"ofi://[::1]:7", "ofi", "::1", 7, "", "", "ofi://[::1]:7"},
    {"rdma://[fe80::1%eth0]:5000", "rdma", "fe80::1%eth0", 5000, "", "",
     "rdma://[fe80::1%eth0]:5000"},
    {"rdma://[fe80::1%25eth0]:5000", "rdma", "fe80::1%eth0", 5000, "", "",
     "rdma://[fe80::1%eth0]:5000"},
    {"rdma://[fe80::1%25]:5000", "rdma", "fe80::1%25", 5000, "", "", "rdma://[fe80::1%25]:5000"},
    {"rdma://[fe80::1%25has]:5000", "rdma", "fe80::1%25has", 5000, "", "",
     "rdma://[fe80::1%25has]:5000"},
    {"tcp://[::ffff:10.0.0.1]:80", "tcp", "::ffff:10.0.0.1", 80, "", "",
     "tcp://[::ffff:10.0.0.1]:80"},
    {"shm:///run/ibx.sock", "shm", "", 0, "/run/ibx.sock", "", "shm:///run/ibx.sock"},
    {"rdma:///tmp/a:b", "rdma", "", 0, "/tmp/a:b", "", "rdma:///tmp/a:b"},
    {"tcp://h:00080", "tcp", "h", 80, "", "", "tcp://h:80"},
    {"rdma://h:1?chunk=1M&lanes=2", "rdma", "h", 1, "", "chunk=1M&lanes=2", "rdma://h:1"},
    {"rdma://h:1?", "rdma", "h", 1, "", "", "rdma://h:1"},
    {"shm:///s?spin_us=0", "shm", "", 0, "/s", "spin_us=0", "shm:///s"},
    {"rdma://h:1?key_file=/etc/k?x", "rdma", "h", 1, "", "key_file=/etc/k?x", "rdma://h:1"},
};

static void accepts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct ibx_uri uri;
        struct ibx_error err = {0};
        char printed[300];
        if (ibx_uri_parse(good[i].text, &uri, &err))
            fail_msg("%s: %s", good[i].text, err.message);
        assert_string_equal(uri.scheme, good[i].scheme);
        assert_string_equal(uri.host, good[i].host);
        assert_int_equal(uri.port, good[i].port);
        assert_string_equal(uri.path, good[i].path);
        assert_string_equal(uri.query, good[i].query);
        ibx_uri_print(&uri, printed, sizeof(printed));
        assert_string_equal(printed, good[i].printed);
    }
}

/* What the message must quote or advise. */
static const struct {
    const char *text, *expected;
} bad[] = {
    {"", "write rdma://host:port"},
    {"node7:9999", "\"node7:9999\" is not a URI"},
    {"rdma:/node7:9999", "is not a URI"},
    {"://h:1", "scheme \"\""},
    {"http://h:1", "scheme \"http\" is not known: use rdma, shm, verbs, ofi or tcp"},
    {"RDMA://h:1", "scheme \"RDMA\""},
    {"rdma2://h:1", "scheme \"rdma2\""},
    {"rdma://", "has no port"},
    {"rdma://node7", "\"node7\" has no port: write host:port"},
    {"rdma://node7:", "port \"\" is not a number"},
    {"rdma://node7:65536", "port \"65536\" is not a number from 0 to 65535"},
    {"rdma://node7:000080", "port \"000080\""},
    {"rdma://node7:99999999999", "port \"99999999999\""},
    {"rdma://node7:-1", "port \"-1\""},
    {"rdma://node7:+1", "port \"+1\""},
    {"rdma://node7: 1", "port \" 1\""},
    {"rdma://node7:0x10", "port \"0x10\""},
    {"rdma://:1", "\":1\" has no host: write host:port (0.0.0.0 listens at all addresses)"},
    {"rdma://no de:1", "\"no de\" is not a host name or address: write host:port, or [IPv6]:port"},
    {"rdma://user@node:1", "is not a host name"},
    {"rdma://::1:1", "\"::1:1\" has more than one colon: write an IPv6 address in brackets"},
    {"rdma://fe80::1", "has more than one colon"},
    {"rdma://node7:1:2", "has more than one colon"},
    {"rdma://[::1]", "is not [IPv6]:port"},
    {"rdma://[::1:5", "is not [IPv6]:port"},
    {"rdma://[::1]5", "is not [IPv6]:port"},
    {"rdma://[]:5", "\"[]:5\" has no host: write host:port (0.0.0.0 listens at all addresses)"},
    {"rdma://[::1/64]:5", "is not a host name"},
    {"rdma://[::1]:x", "port \"x\""},
    {"tcp:///run/sock", "tcp:// needs host:port"},
    {"verbs:///run/sock", "verbs:// needs host:port"},
    {"ofi:///run/sock", "ofi:// needs host:port"},
    {"rdma://?chunk=1M", "has no port"},
};

static void refuses_and_says_why(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ibx_uri uri = {.scheme = "kept"};
        struct ibx_error err = {0};
        assert_int_equal(ibx_uri_parse(bad[i].text, &uri, &err), -EINVAL);
        assert_int_equal(err.code, -EINVAL);
        if (!strstr(err.message, bad[i].expected))
            fail_msg("%s: \"%s\", not \"%s\"", bad[i].text, err.message, bad[i].expected);
        assert_string_equal(uri.scheme, "kept"); /* outputs are set only on success */
        assert_int_equal(ibx_uri_parse(bad[i].text, &uri, NULL), -EINVAL);
    }
}

/* Returns `head`, n times 'x', and `tail`. */
static char *long_text(const char *head, size_t n, const char *tail)
{
    size_t size = strlen(head) + n + strlen(tail) + 1;
    char *text = malloc(size);
    snprintf(text, size, "%s", head);
    memset(text + strlen(head), 'x', n);
    snprintf(text + strlen(head) + n, strlen(tail) + 1, "%s", tail);
    return text;
}

static void lengths(void **state)
{
    (void)state;
    static const struct {
        const char *head, *tail;
        size_t most;
    } fields[] = {
        {"rdma://", ":1", sizeof(((struct ibx_uri *)0)->host) - 1},
        {"shm:///", "", sizeof(((struct ibx_uri *)0)->path) - 2},
        {"rdma://h:1?", "", sizeof(((struct ibx_uri *)0)->query) - 1},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        struct ibx_uri uri;
        struct ibx_error err = {0};
        char *fits = long_text(fields[i].head, fields[i].most, fields[i].tail);
        char *over = long_text(fields[i].head, fields[i].most + 1, fields[i].tail);
        assert_int_equal(ibx_uri_parse(fits, &uri, &err), 0);
        assert_int_equal(ibx_uri_parse(over, &uri, &err), -EINVAL);
        free(fits);
        free(over);
    }
    struct ibx_uri uri;
    char *huge = long_text("rdma://", 1 << 20, ":1");
    assert_int_equal(ibx_uri_parse(huge, &uri, NULL), -EINVAL);
    free(huge);
}

static void print_truncates(void **state)
{
    (void)state;
    struct ibx_uri uri;
    assert_int_equal(ibx_uri_parse("rdma://node7:9999", &uri, NULL), 0);
    char small[8];
    memset(small, 'x', sizeof(small));
    ibx_uri_print(&uri, small, sizeof(small));
    assert_string_equal(small, "rdma://");
}

static int apply(const char *text, struct ibx_options *options, struct ibx_error *err)
{
    struct ibx_uri uri;
    ibx_options_init(options);
    assert_int_equal(ibx_uri_parse(text, &uri, err), 0);
    return ibx_uri_options(&uri, options, err);
}

static void scheme_and_query_become_options(void **state)
{
    (void)state;
    struct ibx_options options;
    assert_int_equal(apply("rdma://h:1", &options, NULL), 0);
    assert_string_equal(options.provider, "auto");
    assert_int_equal(apply("tcp://h:1?chunk=1M&lanes=3&insecure=yes", &options, NULL), 0);
    assert_string_equal(options.provider, "tcp");
    assert_int_equal(options.chunk, 1 << 20);
    assert_int_equal(options.lanes, 3);
    assert_true(options.insecure);
    assert_int_equal(apply("rdma://h:1?provider=shm,tcp", &options, NULL), 0);
    assert_string_equal(options.provider, "shm,tcp");
    assert_int_equal(apply("rdma://h:1?&&slots=8&", &options, NULL), 0);
    assert_int_equal(options.slots, 8);
    /* The scheme overrides the properties file's choice unless it is rdma. */
    struct ibx_uri uri;
    assert_int_equal(ibx_uri_parse("rdma://h:1", &uri, NULL), 0);
    assert_int_equal(ibx_options_set(&options, "provider", "ofi", NULL), 0);
    assert_int_equal(ibx_uri_options(&uri, &options, NULL), 0);
    assert_string_equal(options.provider, "ofi");
}

static void bad_queries(void **state)
{
    (void)state;
    struct ibx_options options;
    struct ibx_error err = {0};
    assert_int_equal(apply("rdma://h:1?chunk", &options, &err), -EINVAL);
    assert_non_null(strstr(err.message, "\"chunk\" in the URI is not key=value"));
    assert_int_equal(apply("rdma://h:1?colour=red", &options, &err), -ENOENT);
    assert_non_null(strstr(err.message, "\"colour\""));
    assert_int_equal(apply("rdma://h:1?lanes=many", &options, &err), -EINVAL);
    assert_non_null(strstr(err.message, "\"many\""));
    assert_int_equal(apply("rdma://h:1?allow=", &options, &err), -EINVAL);
    assert_string_equal(err.message, "allow: \"\" is empty: give a value, or leave it out");
    assert_int_equal(apply("rdma://h:1?slots=8&key_file=", &options, &err), -EINVAL);
    assert_int_equal(apply("rdma://h:1?name=&slots=8", &options, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),     cmocka_unit_test(refuses_and_says_why),
        cmocka_unit_test(lengths),     cmocka_unit_test(print_truncates),
        cmocka_unit_test(bad_queries), cmocka_unit_test(scheme_and_query_become_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
