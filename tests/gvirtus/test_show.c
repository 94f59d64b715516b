/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ibx-gvirtus show: finds what GVirtuS would find, and knocks at the back end.
 *
 * usage: test_show IBX_GVIRTUS PLUGIN
 */
#include "tests/scenes/process.h"
#include "transport/transport.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char tool[PATH_MAX], plugin[PATH_MAX];
static char home[64];
static struct process last;
static pid_t server;

static const char *in_home(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", home, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *out = fopen(in_home(name), "w");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(home, "/tmp/ibx-show-XXXXXX");
    if (!mkdtemp(home))
        return -1;
    mkdir(in_home("lib"), 0755);
    mkdir(in_home("etc"), 0755);
    write_file("lib/libgvirtus-communicators.so", "");
    write_file("etc/properties.json",
               "{\"communicator\":[{\"endpoint\":{\"suite\":\"tcp/ip\",\"protocol\":\"tcp\","
               "\"server_address\":\"127.0.0.1\",\"port\":\"9\"},\"plugins\":[]}]}");
    unsetenv("GVIRTUS_HOME");
    unsetenv("GVIRTUS_CONFIG");
    unsetenv("GVIRTUS_RDMA_PROPERTIES");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    if (server) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
        server = 0;
    }
    snprintf(command, sizeof(command), "rm -rf %s", home);
    return system(command);
}

/* A back end in a process of its own: establishes whoever knocks. Returns its URI. */
static const char *start_server(const struct ibx_options *options)
{
    static char uri[300];
    struct ibx_listener *listener;
    struct ibx_error error;
    if (ibx_listen("rdma://127.0.0.1:0", options, &listener, &error))
        fail_msg("%s", error.message);
    snprintf(uri, sizeof(uri), "%s", ibx_listener_uri(listener));
    server = fork();
    assert_true(server >= 0);
    while (!server) {
        struct pollfd wait = {.fd = ibx_listener_fd(listener), .events = POLLIN};
        struct ibx_conn *conn;
        if (poll(&wait, 1, -1) < 0 || ibx_accept(listener, &conn, NULL))
            continue;
        struct ibx_event event = {.type = IBX_EVENT_READ};
        if (!ibx_establish(conn, NULL)) {
            while (event.type != IBX_EVENT_CLOSED) {
                if (!ibx_poll(conn, &event, 1))
                    ibx_wait(conn, -1);
            }
        }
        ibx_close(conn);
    }
    ibx_listener_close(listener);
    return uri;
}

/* Runs "ibx-gvirtus COMMAND --home HOME [--NAME VALUE]": its exit status. */
static int run(const char *command, const char *name, const char *value)
{
    char *const argv[] = {
        tool, (char *)command, (char *)"--home", home, (char *)name, (char *)value, NULL};
    process_start(&last, argv, (const char *const[]){"IBX_LOG=error", NULL});
    return process_wait(&last);
}

static void install(const char *uri)
{
    char *const argv[] = {tool,        (char *)"install",   (char *)"--home", home, (char *)"--uri",
                          (char *)uri, (char *)"--library", plugin,           NULL};
    process_start(&last, argv, (const char *const[]){NULL});
    if (process_wait(&last))
        fail_msg("%s", last.text);
}

static void add_properties(const char *text)
{
    FILE *out = fopen(in_home("etc/gvirtus.properties"), "a");
    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void expect_said(const char *text)
{
    if (!strstr(last.text, text))
        fail_msg("did not say \"%s\", but:\n%s", text, last.text);
}

static void test_not_selected(void **state)
{
    (void)state;
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("ibx-gvirtus: GVirtuS's own communicator \"tcp\" is selected in ");
    expect_said("run ibx-gvirtus install\n");

    install("rdma://127.0.0.1:9");
    unlink(in_home("lib/libgvirtus-communicators-oldtcp.so"));
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("libgvirtus-communicators-oldtcp.so (missing)");
    expect_said("ibx-gvirtus: oldtcp is selected, but there is no ");
    write_file("lib/libgvirtus-communicators-oldtcp.so", "another");
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("(not installed by ibx-gvirtus)");
}

static void test_unreachable(void **state)
{
    (void)state;
    char uri[64], expected[256];
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", process_free_port());
    install(uri);
    add_properties("rdma.slots : 9\n");
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("oldtcp.so (as installed by ibx-gvirtus)\n");
    expect_said("rdma.slots : 9\n");
    expect_said("rdma.message : 16K (default)\n");
    expect_said("rdma.device : (default)\n");
    expect_said("rdma.memory : (default)\n");
    expect_said("rdma.log : warn (default)\n");
    expect_said("IBX_LOG=error in the environment wins over rdma.log\n");
    snprintf(expected, sizeof(expected),
             "ibx-gvirtus: the back end at %s is not reachable: nobody "
             "answers at 127.0.0.1 port %s: Connection refused; start the server there, or "
             "correct the URI\n",
             uri, strrchr(uri, ':') + 1);
    expect_said(expected);

    expect_said("rdma.gpu : auto (default)\n");
    expect_said("rdma.gpu_memory : 64M (default)\n");
    expect_said("rdma.gpu_threads : 0 (default)\n");

    add_properties("rdma.memory : 1M\nrdma.log : info\nrdma.gpu_memory : 2M\n");
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("rdma.memory : 1M\n");
    expect_said("rdma.log : info\n");
    expect_said("rdma.gpu_memory : 2M\n");

    snprintf(expected, sizeof(expected), "communicator : tcp%s?slots=11&chunk=1M\nrdma.slots : 9\n",
             uri + strlen("rdma"));
    write_file("etc/query.properties", expected);
    assert_int_equal(run("show", "--properties", in_home("etc/query.properties")), 1);
    expect_said("rdma.provider : tcp (by the communicator, which wins)\n");
    expect_said("rdma.slots : 11 (by the communicator, which wins)\n");
    expect_said("rdma.chunk : 1M (by the communicator, which wins)\n");
    expect_said("rdma.message : 16K (default)\n");

    add_properties("rdma.slots2 : 9\n");
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("(rdma.slots2): there is no option \"slots2\"");
}

static void test_reachable(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    const char *uri = start_server(&options);
    install(uri);
    add_properties("rdma.provider : verbs,tcp\n");
    assert_int_equal(run("show", NULL, NULL), 0);
    char expected[160];
    snprintf(expected, sizeof(expected), "communicator  %s (line ", uri);
    expect_said(expected);
    expect_said("connection    tcp");
    expect_said(", to 127.0.0.1");
    expect_said("refused       verbs: ");

    /* A properties file by its name says all that a classic GVirtuS has. */
    char *const argv[] = {tool, (char *)"show", (char *)"--properties",
                          (char *)in_home("etc/gvirtus.properties"), NULL};
    process_start(&last, argv, (const char *const[]){"IBX_LOG=error", NULL});
    assert_int_equal(process_wait(&last), 0);
    expect_said("connection    tcp");

    /* Then there is nothing else that could say where. */
    write_file("etc/silent.properties", "rdma.slots : 9\n");
    char *const silent[] = {tool, (char *)"show", (char *)"--properties",
                            (char *)in_home("etc/silent.properties"), NULL};
    process_start(&last, silent, (const char *const[]){"IBX_LOG=error", NULL});
    assert_int_equal(process_wait(&last), 1);
    expect_said("etc/silent.properties does not say where the back end is: write \"communicator");

    /* Without the line the endpoint says where. */
    write_file("etc/gvirtus.properties", "rdma.provider : tcp\n");
    assert_int_equal(run("show", NULL, NULL), 0);
    expect_said(" (from the endpoint)\n");
    snprintf(expected, sizeof(expected), "endpoint      127.0.0.1 port %s\n",
             strrchr(uri, ':') + 1);
    expect_said(expected);
}

/* Who edits the communicator moves the back end; the endpoint does not follow and does not count.
 */
static void test_edited(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    install("rdma://127.0.0.1:9");
    char text[320];
    snprintf(text, sizeof(text), "communicator : %s\n", start_server(&options));
    write_file("etc/gvirtus.properties", text);
    assert_int_equal(run("show", NULL, NULL), 0);
    expect_said("endpoint      127.0.0.1 port 9, not used: the communicator below wins over it\n");
    assert_null(strstr(last.text, "ignored"));
    add_properties("communicator : rdma://127.0.0.1:9\n");
    assert_int_equal(run("show", NULL, NULL), 0);
    expect_said("ignored       line 2: communicator is in line 1 already, which counts\n");
}

static void test_wrong_key(void **state)
{
    (void)state;
    struct ibx_options options;
    ibx_options_init(&options);
    write_file("key", "0123456789abcdef0123456789abcdef");
    write_file("other", "another key, another key, another");
    chmod(in_home("key"), 0600);
    chmod(in_home("other"), 0600);
    ibx_options_set(&options, "key_file", in_home("key"), NULL);
    const char *uri = start_server(&options);
    install(uri);
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("is not reachable: ");
    char with_key[300];
    snprintf(with_key, sizeof(with_key), "rdma.key_file : %s\n", in_home("other"));
    add_properties(with_key);
    assert_int_equal(run("show", NULL, NULL), 1);
    expect_said("is not reachable: ");

    snprintf(with_key, sizeof(with_key), "communicator : %s\nrdma.key_file : ../key\n", uri);
    write_file("etc/other.properties", with_key);
    assert_int_equal(run("show", "--properties", in_home("etc/other.properties")), 0);
    assert_int_equal(chmod(in_home("key"), 0644), 0);
    assert_int_equal(run("show", "--properties", in_home("etc/other.properties")), 1);
    expect_said("chmod 600");
}

/* What is to be preloaded lies where the plugin was installed from. */
static void test_preload(void **state)
{
    (void)state;
    char expected[PATH_MAX + 64], real[PATH_MAX], from[256];
    struct ibx_options options;
    ibx_options_init(&options);
    snprintf(from, sizeof(from), "mkdir %s/ibx && cp %s %s/ibx/plugin.so", home, plugin, home);
    assert_int_equal(system(from), 0);
    snprintf(from, sizeof(from), "%s/ibx/plugin.so", home);
    install(start_server(&options));
    assert_int_equal(run("show", "--library", from), 0);
    snprintf(expected, sizeof(expected),
             "preload       there is no libibx-frontend.so with %s: ", from);
    expect_said(expected);

    write_file("libibx-frontend.so", "");
    assert_non_null(realpath(in_home("libibx-frontend.so"), real));
    assert_int_equal(run("show", "--library", from), 0);
    snprintf(expected, sizeof(expected), "preload       LD_PRELOAD=%s program\n", real);
    expect_said(expected);
    expect_said("the back end takes its copies\n");

    write_file("ibx/plugin.so", "of another build");
    assert_int_equal(run("show", "--library", from), 0);
    expect_said(expected);
    expect_said("it may not fit the plugin in the home");

    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    server = 0;
    snprintf(from, sizeof(from), "cp %s %s/ibx/plugin.so", plugin, home);
    assert_int_equal(system(from), 0);
    snprintf(from, sizeof(from), "%s/ibx/plugin.so", home);
    assert_int_equal(run("show", "--library", from), 1);
    expect_said(expected);
    expect_said("whether the back end takes its copies shows when it answers\n");
    expect_said("is not reachable: ");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    if (argc != 3 || !realpath(argv[1], tool) || !realpath(argv[2], plugin))
        return 2;
    const struct CMUnitTest tests[] = {
        TEST(test_not_selected), TEST(test_unreachable), TEST(test_reachable),
        TEST(test_edited),       TEST(test_wrong_key),   TEST(test_preload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
