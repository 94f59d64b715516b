/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which clients may connect: those with the same key, or without a key on the same host. */
#include "tests/contract/harness.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_ONE "0b07e4d5000000000000000000000000a0b1c2d3e4f5061728394a5b6c7d8e9f"
#define KEY_TWO "50e0000000000000000000000000000050e000000000000000000000ffffffff"

/* Makes a key file. The returned name stays valid until two more have been made. */
static const char *key_file(const char *key, mode_t mode)
{
    static char names[3][64];
    static unsigned next;
    char *name = names[next++ % 3];
    strcpy(name, "/tmp/ibx-contract-key-XXXXXX");
    int fd = mkstemp(name);
    if (fd < 0 || write(fd, key, strlen(key)) != (ssize_t)strlen(key) || fchmod(fd, mode))
        FAIL("no key file: %s", strerror(errno));
    close(fd);
    return name;
}

struct attempt {
    struct ibx_listener *listener;
    struct ibx_options options;
    bool welcome;
};

/* Whether clients on this host have the server's own address, which depends on routes. */
static bool same_host(const struct ibx_listener *listener)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t a = sizeof(ours), b = sizeof(theirs);
    int fd = contract_raw_connect(listener);
    CHECK(!getsockname(fd, (struct sockaddr *)&ours, &a));
    CHECK(!getpeername(fd, (struct sockaddr *)&theirs, &b));
    close(fd);
    if (ours.ss_family == AF_INET6)
        return !memcmp(&((struct sockaddr_in6 *)&ours)->sin6_addr,
                       &((struct sockaddr_in6 *)&theirs)->sin6_addr, 16);
    return ((struct sockaddr_in *)&ours)->sin_addr.s_addr ==
           ((struct sockaddr_in *)&theirs)->sin_addr.s_addr;
}

static int client_attempt(void *arg)
{
    struct attempt *attempt = arg;
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    int rc = ibx_connect(ibx_listener_uri(attempt->listener), &attempt->options, &conn, &err);
    if (attempt->welcome) {
        struct end end;
        CHECK_OK(rc, err);
        end_init(&end, conn);
        AWAIT(&end, end.received == 1);
        end_fini(&end);
    } else {
        if (rc >= 0 || conn)
            FAIL("a client without the right key got in");
        CHECK(err.code == rc && err.message[0]);
        CHECK(!strstr(err.message, KEY_ONE) && !strstr(err.message, KEY_TWO));
    }
    ibx_close(conn);
    return 0;
}

enum welcome { WELCOME, UNWELCOME, WELCOME_HERE };

/* Both sides must agree whether the client is accepted. */
static void connect_with(const char *server_key, const char *client_key, bool insecure,
                         enum welcome expected)
{
    struct attempt attempt = {.welcome = expected == WELCOME};
    struct ibx_options options;
    struct ibx_error err = {0};
    contract_options(&options, 's');
    contract_options(&attempt.options, 'c');
    options.key_file[0] = attempt.options.key_file[0] = '\0';
    options.insecure = attempt.options.insecure = insecure;
    if (server_key)
        snprintf(options.key_file, sizeof(options.key_file), "%s", server_key);
    if (client_key)
        snprintf(attempt.options.key_file, sizeof(attempt.options.key_file), "%s", client_key);
    CHECK_OK(ibx_listen(contract_uri(), &options, &attempt.listener, &err), err);
    if (expected == WELCOME_HERE) {
        attempt.welcome = same_host(attempt.listener);
        contract_turn_away(attempt.listener, &err); /* the server refused the client */
    }
    pid_t client = process_start(client_attempt, &attempt);
    struct ibx_conn *conn = NULL;
    if (attempt.welcome) {
        struct end end;
        conn = contract_accept(attempt.listener);
        CHECK_OK(ibx_establish(conn, &err), err);
        end_init(&end, conn);
        CHECK(end_send_next(&end, 0) == 0);
        AWAIT(&end, end.closed);
        end_fini(&end);
    } else {
        contract_turn_away(attempt.listener, &err);
        CHECK(err.code < 0 && err.message[0]);
        CHECK(!strstr(err.message, KEY_ONE) && !strstr(err.message, KEY_TWO));
    }
    ibx_close(conn);
    CHECK(process_end(client) == 0);
    ibx_listener_close(attempt.listener);
}

static void test_the_right_key(void **state)
{
    (void)state;
    const char *one = key_file(KEY_ONE, 0600), *two = key_file(KEY_ONE, 0400);
    connect_with(one, two, false, WELCOME);
    unlink(one);
    unlink(two);
}

static void test_a_wrong_key(void **state)
{
    (void)state;
    const char *one = key_file(KEY_ONE, 0600), *two = key_file(KEY_TWO, 0600);
    connect_with(one, two, false, UNWELCOME);
    unlink(one);
    unlink(two);
}

static void test_a_key_on_one_side_only(void **state)
{
    (void)state;
    const char *one = key_file(KEY_ONE, 0600);
    connect_with(one, NULL, true, UNWELCOME);
    connect_with(NULL, one, false, UNWELCOME);
    unlink(one);
}

static void test_no_key_is_for_the_same_host(void **state)
{
    (void)state;
    connect_with(NULL, NULL, false, WELCOME_HERE);
    connect_with(NULL, NULL, true, WELCOME);
}

static void test_key_files_that_are_refused(void **state)
{
    (void)state;
    struct ibx_listener *listener = NULL;
    struct ibx_conn *conn = NULL;
    static const mode_t modes[] = {0644, 0640, 0604, 0620};
    for (size_t i = 0; i <= sizeof(modes) / sizeof(modes[0]); i++) {
        struct ibx_options options;
        struct ibx_error err = {0};
        bool missing = i == sizeof(modes) / sizeof(modes[0]);
        const char *name = key_file(KEY_ONE, missing ? 0600 : modes[i]);
        if (missing)
            unlink(name);
        contract_options(&options, 's');
        snprintf(options.key_file, sizeof(options.key_file), "%s", name);
        CHECK(ibx_listen(contract_uri(), &options, &listener, &err) < 0);
        CHECK(!listener && strstr(err.message, name));
        err.message[0] = '\0';
        char uri[300];
        snprintf(uri, sizeof(uri), "%.*s9", (int)strlen(contract_uri()) - 1, contract_uri());
        CHECK(ibx_connect(uri, &options, &conn, &err) < 0);
        CHECK(!conn && strstr(err.message, name));
        if (!missing)
            unlink(name);
    }
}

static const struct CMUnitTest tests[] = {
    TEST(test_the_right_key),
    TEST(test_a_wrong_key),
    TEST(test_a_key_on_one_side_only),
    TEST(test_no_key_is_for_the_same_host),
    TEST(test_key_files_that_are_refused),
};
GROUP(group_auth, "auth", tests);
