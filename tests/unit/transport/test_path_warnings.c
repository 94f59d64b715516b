/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The warnings that a user sees if a connection has less protection than it should have. */
#include "common/log.h"
#include "tests/fixtures/client_scene.h"
#include "tests/fixtures/memory_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

/* standard error since begin_log() */
static int log_file = -1, real_stderr = -1;
static char text[8192];

/* Both ends write, in two threads. The offset of a memory file has no lock, unlike that of a file
 * which was opened by its name: without O_APPEND two lines may be written to the same place. */
static void begin_log(void)
{
    ibx_log_set_level(IBX_LOG_WARN);
    real_stderr = dup(2);
    log_file = memfd_create("log", MFD_CLOEXEC);
    assert_true(real_stderr >= 0 && log_file >= 0);
    assert_int_equal(fcntl(log_file, F_SETFL, O_APPEND), 0);
    dup2(log_file, 2);
}

static const char *end_log(void)
{
    ssize_t n = pread(log_file, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    dup2(real_stderr, 2);
    close(real_stderr);
    close(log_file);
    return text;
}

/* Returns what a client logs if these steps of shm fail while it connects. */
static const char *connect_without_shm(int fail_open, int fail_offer, int fail_finish)
{
    struct memory_pair pair;
    struct ibx_options options;
    ibx_options_init(&options);
    memory_control_reset();
    memory_control.fail_open = fail_open;
    memory_control.fail_offer = fail_offer;
    memory_control.fail_finish = fail_finish;
    begin_log();
    int rc = memory_pair_open(&pair, &options, NULL);
    const char *log = end_log();
    assert_int_equal(rc, 0);
    assert_string_equal(ibx_conn_path(pair.client)->provider, "tcp");
    memory_pair_close(&pair);
    memory_control_reset();
    return log;
}

static void test_shared_memory_of_another_user(void **state)
{
    (void)state;
    assert_non_null(strstr(connect_without_shm(0, 0, -EACCES), "ibx: warn: shm with 127.0.0.1:"));
    assert_non_null(strstr(text, "refused: finish told to fail"));
    assert_non_null(strstr(connect_without_shm(0, -EPERM, 0), "on the server: offer told to fail"));
    assert_non_null(strstr(connect_without_shm(-EPERM, 0, 0), "open told to fail"));
    assert_non_null(strstr(connect_without_shm(-ENOTSOCK, 0, 0), "open told to fail"));
    assert_non_null(strstr(connect_without_shm(0, 0, -ETIMEDOUT), "finish told to fail"));
    /* Only the client logs, and only one line. */
    assert_null(strchr(strchr(text, '\n') + 1, '\n'));
}

static void test_other_refusals_are_not_logged(void **state)
{
    (void)state;
    assert_string_equal(connect_without_shm(-ENOSYS, 0, 0), "");
    assert_string_equal(connect_without_shm(0, -ENOMEM, 0), "");
}

static void test_chosen_provider_is_not_logged(void **state)
{
    (void)state;
    struct ibx_options options;
    struct memory_pair pair;
    ibx_options_init(&options);
    snprintf(options.provider, sizeof(options.provider), "tcp");
    begin_log();
    assert_int_equal(memory_pair_open(&pair, &options, NULL), 0);
    assert_string_equal(end_log(), "");
    memory_pair_close(&pair);
}

/* The same server, which now lacks shm. */
static const char *connect_again(struct memory_pair *pair, const struct ibx_options *options,
                                 int fail_open)
{
    memory_control.fail_open = fail_open;
    begin_log();
    int rc = memory_pair_again(pair, options, NULL);
    const char *log = end_log();
    assert_int_equal(rc, 0);
    memory_control_reset();
    return log;
}

static void test_less_protection_than_last_time(void **state)
{
    (void)state;
    struct memory_pair pair;
    struct ibx_options options;
    ibx_options_init(&options);
    memory_control_reset();
    assert_int_equal(memory_pair_open(&pair, &options, NULL), 0);
    assert_string_equal(ibx_conn_path(pair.client)->provider, "shm");
    assert_string_equal(connect_again(&pair, &options, 0), "");
    assert_non_null(
        strstr(connect_again(&pair, &options, -ENOMEM),
               "by tcp and are not encrypted, and the last time they were in shared memory"));
    assert_string_equal(ibx_conn_path(pair.client)->provider, "tcp");
    /* Only once: that was the last time. */
    assert_string_equal(connect_again(&pair, &options, -ENOMEM), "");
    assert_string_equal(connect_again(&pair, &options, 0), "");
    /* a user who asks for tcp knows it */
    snprintf(options.provider, sizeof(options.provider), "tcp");
    assert_string_equal(connect_again(&pair, &options, 0), "");
    memory_pair_close(&pair);
    /* A server that used to require encryption and no longer does. */
    snprintf(options.key_file, sizeof(options.key_file), "%s", raw_key_file);
    options.encryption = IBX_ENCRYPTION_REQUIRED;
    assert_int_equal(memory_pair_open(&pair, &options, NULL), 0);
    char uri[64];
    snprintf(uri, sizeof(uri), "%s", ibx_listener_uri(pair.listener));
    ibx_listener_close(pair.listener);
    options.encryption = IBX_ENCRYPTION_AUTO;
    assert_int_equal(ibx_listen(uri, &options, &pair.listener, NULL), 0);
    assert_non_null(strstr(connect_again(&pair, &options, 0),
                           "are not encrypted, and the last time they were: "));
    memory_pair_close(&pair);
}

/* A client with a key, and a server on another host that does not want encryption. */
static const char *connect_to_another_host(enum ibx_encryption wish, bool key, bool mark)
{
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300], proof[RAW_HASH], own[RAW_HASH];
    open_scene(&s, key, 10000);
    s.options.encryption = wish;
    s.options.insecure = !key;
    if (!mark)
        snprintf(s.options.provider, sizeof(s.options.provider), "tcp");
    begin_log();
    struct raw raw = take_client(&s);
    if (key)
        raw_set_key(&raw);
    raw.encryption = IBX_ENCRYPTION_OFF;
    raw_expect(&raw, HELLO, &frame);
    raw_take_opening(&raw, &frame);
    size_t n = raw_opening(&raw, payload, key);
    raw_host_mark(&raw, payload + n);
    if (mark)
        payload[n] ^= 1;
    else /* a clone of this host */
        payload[n - 1] = 0;
    raw_send_frame(&raw, CHALLENGE, payload, n + RAW_HASH);
    raw.flags = 0;
    raw_derive(&raw, proof, own);
    raw_expect(&raw, PROOF, &frame);
    raw_send_frame(&raw, PROOF, own, RAW_HASH);
    raw.authenticated = true;
    raw_expect(&raw, TRY, &frame);
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    raw_expect(&raw, ANSWER, &frame);
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(client_result(&s), 0);
    const char *log = end_log();
    raw_close(&raw);
    close_scene(&s);
    return log;
}

static void test_no_encryption_between_hosts(void **state)
{
    (void)state;
    const char *log = connect_to_another_host(IBX_ENCRYPTION_AUTO, true, true);
    assert_non_null(strstr(log, "ibx: warn: payloads to 127.0.0.1:"));
    assert_non_null(strstr(log, "are not encrypted: the server has encryption : off; set "
                                "encryption : off to accept this, or required to refuse it"));
    assert_string_equal(connect_to_another_host(IBX_ENCRYPTION_OFF, true, true), "");
    assert_string_equal(connect_to_another_host(IBX_ENCRYPTION_AUTO, false, true), "");
    assert_non_null(strstr(connect_to_another_host(IBX_ENCRYPTION_AUTO, true, false),
                           "are not encrypted: the server has encryption : off"));
}

/* Returns what a server logs about a connection, with the handshake in TLS or not. */
static const char *log_of_server(enum ibx_encryption wish, const char *provider)
{
    struct ibx_options options;
    struct memory_pair pair;
    ibx_options_init(&options);
    snprintf(options.key_file, sizeof(options.key_file), "%s", raw_key_file);
    snprintf(options.provider, sizeof(options.provider), "%s", provider);
    options.encryption = wish;
    begin_log();
    ibx_log_set_level(IBX_LOG_INFO);
    int rc = memory_pair_open(&pair, &options, NULL);
    const char *log = end_log();
    assert_int_equal(rc, 0);
    memory_pair_close(&pair);
    return log;
}

static void test_server_logs_what_is_encrypted(void **state)
{
    (void)state;
    const char *log = log_of_server(IBX_ENCRYPTION_REQUIRED, "tcp");
    assert_non_null(strstr(log, ", handshake in TLS\n"));
    assert_non_null(strstr(log, " is connected over tcp, payloads in TLS\n"));
    log = log_of_server(IBX_ENCRYPTION_AUTO, "tcp");
    assert_non_null(strstr(log, ", handshake without TLS\n"));
    assert_non_null(strstr(log, " is connected over tcp, payloads unencrypted\n"));
    log = log_of_server(IBX_ENCRYPTION_AUTO, "shm");
    assert_non_null(strstr(log, " is connected over shm, payloads within this host\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_memory_of_another_user),
        cmocka_unit_test(test_other_refusals_are_not_logged),
        cmocka_unit_test(test_chosen_provider_is_not_logged),
        cmocka_unit_test(test_less_protection_than_last_time),
        cmocka_unit_test(test_no_encryption_between_hosts),
        cmocka_unit_test(test_server_logs_what_is_encrypted),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
