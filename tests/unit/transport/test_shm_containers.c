/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* shm between containers. The client has its own user, mount, PID and network namespaces, as
 * container engines make them, and sees a folder of the server under another name. Or it shares
 * the server's network namespace only, like containers of one pod. */
#include "tests/fixtures/patience.h"

#include "common/clock.h"
#include "transport/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_MS patience_ms(30000)
#define BYTES       (3u << 20)
#define INSIDE      "/mnt/ibx" /* where the client sees the folder */
#define SOCKET      "rdma://" INSIDE "/sock"
#define OWN_NETWORK CLONE_NEWNET

enum { ENDED_WELL, ENDED_BADLY, NO_NAMESPACES };

static char folder[64];

/* refusal: the error that the client must get, or NULL */
struct client {
    int namespaces; /* besides user, mount and PID */
    const char *uri, *shm_dir, *refusal;
};

/* ---------------------------------------------------------------- the client */

static void write_text(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t ignored = write(fd, text, strlen(text));
        (void)ignored;
        close(fd);
    }
}

/* The new root contains only the folder, as INSIDE, and /proc; the client is root of its own
 * user namespace. */
static bool enter_container(const struct client *client)
{
    char user[32], group[32];
    snprintf(user, sizeof(user), "0 %u 1", (unsigned)geteuid());
    snprintf(group, sizeof(group), "0 %u 1", (unsigned)getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | client->namespaces))
        return false;
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", user);
    write_text("/proc/self/gid_map", group);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/mnt", "tmpfs", 0, NULL))
        return false;
    return !mkdir(INSIDE, 0700) && !mount(folder, INSIDE, NULL, MS_BIND, NULL) &&
           !mount("none", "/tmp", "tmpfs", 0, NULL);
}

static struct ibx_event next_event(struct ibx_conn *conn)
{
    struct ibx_event event = {.type = IBX_EVENT_CLOSED};
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    int n;
    while ((n = ibx_poll(conn, &event, 1)) == 0 && ibx_now_ns() < deadline)
        ibx_wait(conn, 100);
    return event;
}

/* Exposes BYTES, sends their place to the server, and stays until the server has gone. */
static bool be_read(struct ibx_conn *conn)
{
    struct ibx_mr *mr;
    struct ibx_remote remote;
    uint8_t bytes[IBX_REMOTE_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    uint8_t *memory = malloc(BYTES);
    struct ibx_span span = ibx_span_host(memory, BYTES);
    if (!memory || ibx_mr_register(conn, &span, IBX_ACCESS_REMOTE_READ, &mr, NULL) ||
        ibx_mr_remote(mr, 0, BYTES, &remote))
        return false;
    for (size_t i = 0; i < BYTES; i++)
        memory[i] = (uint8_t)(i * 7 >> 9);
    ibx_remote_put(&w, &remote);
    struct iovec iov = {bytes, w.length};
    bool good = !ibx_send(conn, &iov, 1, 0, 0) && next_event(conn).type == IBX_EVENT_CLOSED;
    ibx_mr_deregister(mr);
    free(memory);
    return good;
}

static bool said(const struct ibx_error *err, const char *part)
{
    if (strstr(err->message, part))
        return true;
    print_error("\"%s\" does not say \"%s\"\n", err->message, part);
    return false;
}

/* Runs as process 1 of the new PID namespace. */
static int client_run(const struct client *client)
{
    struct ibx_options options;
    struct ibx_error err = {0};
    struct ibx_conn *conn = NULL;
    ibx_options_init(&options);
    snprintf(options.provider, sizeof(options.provider), "shm");
    snprintf(options.shm_dir, sizeof(options.shm_dir), "%s", client->shm_dir);
    if (ibx_connect(client->uri, &options, &conn, &err))
        return client->refusal && said(&err, client->refusal) ? ENDED_WELL : ENDED_BADLY;
    bool good = !client->refusal && !strcmp(ibx_conn_path(conn)->provider, "shm") && be_read(conn);
    ibx_close(conn);
    return good ? ENDED_WELL : ENDED_BADLY;
}

static int client_main(const struct client *client)
{
    int status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(3 * PATIENCE_MS / 1000);
    if (!enter_container(client))
        return NO_NAMESPACES;
    pid_t pid = fork();
    if (!pid)
        _exit(client_run(client));
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : ENDED_BADLY;
}

/* ---------------------------------------------------------------- the server */

static bool permitted(void)
{
    int status;
    struct client nothing = {.namespaces = OWN_NETWORK};
    pid_t pid = fork();
    if (!pid)
        _exit(enter_container(&nothing) ? ENDED_WELL : NO_NAMESPACES);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status);
}

static struct ibx_listener *listen_at(const char *uri, const char *shm_dir)
{
    struct ibx_options options;
    struct ibx_listener *listener;
    struct ibx_error err;
    ibx_options_init(&options);
    snprintf(options.shm_dir, sizeof(options.shm_dir), "%s", shm_dir);
    if (ibx_listen(uri, &options, &listener, &err))
        fail_msg("%s", err.message);
    return listener;
}

static struct ibx_conn *take(struct ibx_listener *listener)
{
    struct ibx_conn *conn = NULL;
    assert_int_equal(ibx_accept_wait(listener, (int)PATIENCE_MS, &conn, NULL), 0);
    return conn;
}

static void read_and_check(struct ibx_conn *conn)
{
    struct ibx_mr *mr;
    struct ibx_remote remote;
    struct ibx_event event = next_event(conn);
    assert_int_equal(event.type, IBX_EVENT_MESSAGE);
    struct ibx_reader r = ibx_reader_of(event.data, event.length);
    ibx_remote_get(&r, &remote);
    ibx_message_release(conn, &event);
    assert_int_equal(ibx_mr_allocate(conn, BYTES, IBX_ACCESS_LOCAL, &mr, NULL), 0);
    const uint8_t *got = ibx_mr_address(mr);
    assert_int_equal(ibx_read(conn, mr, ibx_mr_address(mr), &remote, 0, BYTES, 1, 0), 0);
    event = next_event(conn);
    assert_int_equal(event.type, IBX_EVENT_READ);
    assert_int_equal(event.status, 0);
    for (size_t i = 0; i < BYTES; i++) {
        if (got[i] != (uint8_t)(i * 7 >> 9))
            fail_msg("byte %zu is wrong", i);
    }
    ibx_mr_deregister(mr);
}

/* Serves one client. It reads the client's bytes unless the client must be refused. */
static void serve(struct ibx_listener *listener, const struct client *client)
{
    struct ibx_error err = {0};
    int status;
    pid_t pid = fork();
    if (!pid)
        _exit(client_main(client));
    struct ibx_conn *conn = take(listener);
    int rc = ibx_establish(conn, &err);
    if (!client->refusal && rc)
        fail_msg("%s", err.message);
    if (client->refusal)
        assert_int_not_equal(rc, 0);
    else
        read_and_check(conn);
    ibx_close(conn);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, ENDED_WELL);
    ibx_listener_close(listener);
}

/* --------------------------------------------------------------------- tests */

#define ELSEWHERE                                                                                  \
    "another network namespace: give both containers one directory and name it with rdma.shm_dir"
#define NOT_HERE                                                                                   \
    "the server's rdma.shm_dir has to be mounted here too, and rdma.shm_dir on this side has to "  \
    "name it"

/* Servers listen at a socket in the folder or at 127.0.0.1, and may use the folder as shm_dir. */
static const struct scene {
    const char *name;
    bool by_socket, with_folder;
    struct client client; /* without a URI: the listener's */
} scenes[] = {
    {"a shared folder", true, true, {OWN_NETWORK, SOCKET, INSIDE, NULL}},
    /* The client needs neither a folder nor an option. */
    {"a shared network namespace", false, false, {0, NULL, "", NULL}},
    {"a shared socket alone", true, false, {OWN_NETWORK, SOCKET, "", ELSEWHERE}},
    /* The server names its folder as it sees it; the client sees it elsewhere. */
    {"a folder of another name", true, true, {OWN_NETWORK, SOCKET, "", NOT_HERE}},
};

static void test_containers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        struct client client = scenes[i].client;
        char uri[128] = "rdma://127.0.0.1:0";
        print_message("%s\n", scenes[i].name);
        if (scenes[i].by_socket)
            snprintf(uri, sizeof(uri), "rdma://%s/sock", folder);
        struct ibx_listener *listener = listen_at(uri, scenes[i].with_folder ? folder : "");
        client.uri = client.uri ? client.uri : ibx_listener_uri(listener);
        serve(listener, &client);
    }
}

static int set_up(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/ibx-containers-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_containers, set_up, tear_down),
    };
    bool can = !set_up(NULL) && permitted();
    if (tear_down(NULL) || !can) {
        print_message("SKIPPED: namespaces of one's own are not permitted here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
