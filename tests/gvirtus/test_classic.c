/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * libibx-gvirtus-classic.so in two programs that know nothing of it: a back end that calls its own
 * Communicator::Get, and applications whose front-end library calls it through the PLT.
 *
 * usage: test_classic PRELOAD BACKEND APP APP_LOCAL PROVIDER
 */
#include "tests/fixtures/process.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char *backend, *app, *app_local;
static char preload[4096], file[64], config_file[80];
static char uri[64];
static const char *provider;
static struct process server;

static void write_properties(const char *communicator, const char *more)
{
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fprintf(out, "communicator : %s\n%s\n", communicator, more);
    assert_int_equal(fclose(out), 0);
}

static void start(struct process *p, char *program, const char *argument)
{
    /* A sanitizer insists on being the first library of a program, and a preload comes before it;
     * and GVirtuS never deletes a communicator. */
    const char *const environment[] = {preload, config_file,
                                       "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0",
                                       "IBX_LOG=error", NULL};
    char *const argv[] = {program, (char *)argument, NULL};
    process_start(p, argv, environment);
}

static void start_server(const char *scheme)
{
    char more[64];
    snprintf(uri, sizeof(uri), "%s://127.0.0.1:%u", scheme, process_free_port());
    snprintf(more, sizeof(more), "rdma.provider : %s", provider);
    write_properties(uri, more);
    start(&server, backend, file);
    process_expect(&server, "ready\n", 1);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(file, "/tmp/ibx-classic-XXXXXX");
    int fd = mkstemp(file);
    snprintf(config_file, sizeof(config_file), "CONFIG_FILE=%s", file);
    return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    process_kill(&server);
    return unlink(file);
}

static void run(char *program, const char *argument, const char *expected)
{
    struct process p;
    start(&p, program, argument);
    int status = process_wait(&p);
    if (status || !strstr(p.text, expected))
        fail_msg("status %d without \"%s\":\n%s", status, expected, p.text);
}

static void test_echo(void **state)
{
    (void)state;
    start_server("rdma");
    run(app, "echo", "ok\n");
    process_expect(&server, "bye 13\n", 1); /* the child saw the end of the stream */
    run(app_local, "echo", "ok\n");
    process_expect(&server, "bye 13\n", 2);
}

static void test_clients_at_once(void **state)
{
    (void)state;
    struct process clients[4];
    start_server("rdma");
    for (int i = 0; i < 4; i++)
        start(&clients[i], i & 1 ? app_local : app, "echo");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(process_wait(&clients[i]), 0);
        assert_string_equal(clients[i].text, "ok\n");
    }
    process_expect(&server, "bye 13\n", 4);
}

/* The parent must not hold the connection of its dead child open, and no call may seem to have
 * succeeded. */
static void test_child_dies(void **state)
{
    (void)state;
    start_server("rdma");
    run(app, "die", "codes 999 999, 0 bytes\n");
    run(app, "echo", "ok\n");
    process_expect(&server, "bye 13\n", 1);
}

static void test_client_killed(void **state)
{
    (void)state;
    struct process client;
    start_server("rdma");
    start(&client, app, "hang");
    process_expect(&client, "hanging\n", 1);
    process_kill(&client);
    process_expect(&server, "bye 1\n", 1);
    run(app, "echo", "ok\n");
}

/* The back end does not run the client's incomplete request on what its buffer happens to hold. */
static void test_client_killed_inside_a_request(void **state)
{
    (void)state;
    struct process client;
    start_server("rdma");
    start(&client, app, "cut");
    assert_int_equal(process_wait(&client), 128 + SIGKILL);
    run(app, "echo", "ok\n");
    run(app, "echo", "ok\n");
    process_expect(&server, "bye 13\n", 2);
    assert_null(strstr(server.text, "bye 2\n"));
}

static void test_own_communicators_stay(void **state)
{
    (void)state;
    start_server("tcp");
    run(app, "echo", "ok\n");
    run(app_local, "echo", "ok\n");
    process_expect(&server, "bye 13\n", 2);
}

static void expect_exception(char *program, const char *argument, const char *expected)
{
    struct process p;
    start(&p, program, argument);
    int status = process_wait(&p);
    if (status != 1 || !strstr(p.text, expected))
        fail_msg("status %d without \"%s\":\n%s", status, expected, p.text);
}

static void test_exceptions(void **state)
{
    (void)state;
    write_properties("foo://127.0.0.1:1", "");
    expect_exception(backend, file, "exception toy: not a valid communicator type\n");
    expect_exception(app, "echo", "exception toy: not a valid communicator type\n");
    expect_exception(app_local, "echo", "exception toy: not a valid communicator type\n");

    /* Each end reads our keys from the file that has its own keys. */
    write_properties("rdma://127.0.0.1:1", "rdma.chnk : 1M");
    expect_exception(backend, file, "line 2 (rdma.chnk): there is no option \"chnk\"");
    expect_exception(app, "echo", "line 2 (rdma.chnk): there is no option \"chnk\"");

    write_properties("rdma://127.0.0.1", "");
    expect_exception(backend, file, "exception ibx: \"127.0.0.1\" has no port");
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", process_free_port());
    write_properties(uri, "");
    expect_exception(app, "echo", "exception ibx: no server answers at 127.0.0.1 port");
    write_properties("rdma://192.0.2.1:9999", "");
    expect_exception(backend, file, "exception ibx: cannot listen at 192.0.2.1 port 9999");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    signal(SIGPIPE, SIG_IGN);
    snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", argv[1]);
    backend = argv[2];
    app = argv[3];
    app_local = argv[4];
    provider = argv[5];
    const struct CMUnitTest tests[] = {
        TEST(test_echo),
        TEST(test_clients_at_once),
        TEST(test_child_dies),
        TEST(test_client_killed),
        TEST(test_client_killed_inside_a_request),
        TEST(test_own_communicators_stay),
        TEST(test_exceptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
