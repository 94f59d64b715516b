/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The control socket of a running migration, with both ends in this process, and the status that
 * it carries. */
#include "migrate/operator/control_socket.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define GENEROUS 60000 /* milliseconds, for events that must come */
#define SHORT    30    /* milliseconds, for events that must not come */
#define NOBODY   65534

static char folder[64], path[96];
static struct ibx_error error;

/* ------------------------------------------------------------ the migration */

/* The running tool's end, in a thread of its own, which serves it as a side of a migration does. */
struct scene {
    struct ibx_control_socket *socket;
    struct ibx_migrate_status status;
    int stop; /* eventfd */
    pthread_t thread;
    atomic_uint canceled;
    atomic_ullong bandwidth;
    unsigned most_fds;
};
static struct scene scene;

static void on_status(void *context, struct ibx_migrate_status *status)
{
    *status = ((struct scene *)context)->status;
}

static int cancel(void *context, struct ibx_error *err)
{
    if (atomic_fetch_add(&((struct scene *)context)->canceled, 1))
        return ibx_error_set(err, -EALREADY, "it is being canceled");
    return 0;
}

static int set_bandwidth(void *context, uint64_t bytes, struct ibx_error *err)
{
    if (bytes == 7)
        return ibx_error_set(err, -EINVAL, "7 is too few");
    atomic_store(&((struct scene *)context)->bandwidth, bytes);
    return 0;
}

static int lend(void *context, struct ibx_error *err)
{
    (void)context;
    return ibx_error_set(err, -ENOTCONN, "the other side is away");
}

static const struct ibx_control_socket_ops ops = {on_status, cancel, set_bandwidth, lend, lend};

static void *serve(void *arg)
{
    (void)arg;
    struct pollfd fds[2 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    for (;;) {
        fds[0] = (struct pollfd){.fd = scene.stop, .events = POLLIN};
        unsigned count = ibx_control_socket_poll_fds(scene.socket, fds + 1);
        scene.most_fds = count > scene.most_fds ? count : scene.most_fds;
        poll(fds, 1 + count, GENEROUS);
        if (fds[0].revents)
            return NULL;
        ibx_control_socket_serve(scene.socket);
    }
}

static void open_scene(void)
{
    scene = (struct scene){.status = {.phase = IBX_PHASE_FILLING,
                                      .record = {.source = true,
                                                 .state = IBX_JOURNAL_MOVED,
                                                 .epoch = 3,
                                                 .name = "web-1",
                                                 .qmp = "/run/web.qmp",
                                                 .pid = 42},
                                      .source = true,
                                      .path = "tcp 10.0.0.1",
                                      .message = "",
                                      .began_ns = 1000,
                                      .now_ns = 5000,
                                      .pages = 100,
                                      .present = 40,
                                      .zero_pages = 10,
                                      .bytes = 4096,
                                      .max_bandwidth = 0,
                                      .downtime_ns = 12345678,
                                      .reconnects = 2}};
    if (ibx_control_socket_open(path, &ops, &scene, "choose", &scene.socket, &error))
        fail_msg("%s", error.message);
    scene.stop = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(pthread_create(&scene.thread, NULL, serve, NULL), 0);
}

static void close_scene(void)
{
    uint64_t one = 1;
    assert_int_equal(write(scene.stop, &one, sizeof(one)), sizeof(one));
    pthread_join(scene.thread, NULL);
    close(scene.stop);
    ibx_control_socket_close(scene.socket);
    scene.socket = NULL;
    assert_int_equal(access(path, F_OK), -1);
}

/* ------------------------------------------------------------ the other end */

static int ask(json_t *request, json_t **answer)
{
    memset(&error, 0, sizeof(error));
    return ibx_control_socket_ask(path, request, answer, ibx_deadline_in_ms(GENEROUS), &error);
}

static int ask_command(const char *command)
{
    json_t *answer = NULL;
    int rc = ask(json_pack("{s:s}", "command", command), &answer);
    json_decref(answer);
    return rc;
}

/* Opens a socket and gives it the path by connect(2) or bind(2). */
static int raw_by(int (*call)(int fd, const struct sockaddr *to, socklen_t size))
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    while (call(fd, (struct sockaddr *)&address, sizeof(address)))
        assert_int_equal(errno, EINTR);
    return fd;
}

static int raw(void)
{
    int fd = raw_by(connect);
    struct timeval limit = {GENEROUS / 1000, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Returns the next line without its newline; "" at the end. */
static const char *next_line(int fd)
{
    static char line[16384];
    size_t n = 0;
    while (n + 1 < sizeof(line) && recv(fd, line + n, 1, 0) == 1 && line[n] != '\n')
        n++;
    line[n] = '\0';
    return line;
}

static void expect_line(int fd, const char *words)
{
    text_has(next_line(fd), words);
}

/* ------------------------------------------------------------ requests */

static void test_status(NO_STATE)
{
    json_t *answer = NULL;
    assert_int_equal(ask(json_pack("{s:s}", "command", "status"), &answer), 0);
    struct ibx_migrate_status taken = {.record = {.epoch = 9}};
    assert_int_equal(ibx_migrate_status_take(json_object_get(answer, "status"), &taken, &error), 0);
    assert_true(taken.source && taken.phase == IBX_PHASE_FILLING);
    assert_string_equal(taken.path, "tcp 10.0.0.1");
    assert_int_equal(taken.now_ns - taken.began_ns, 4000);
    assert_int_equal(taken.present, 40);
    assert_int_equal(taken.downtime_ns, 12345678);
    assert_int_equal(taken.reconnects, 2);
    assert_int_equal(taken.record.epoch, 9); /* unchanged */
    json_decref(answer);
}

static void test_cancel_and_set(NO_STATE)
{
    assert_int_equal(ask_command("cancel"), 0);
    assert_int_equal(atomic_load(&scene.canceled), 1);
    assert_int_equal(ask_command("cancel"), -EREMOTEIO);
    assert_string_equal(error.message, "it is being canceled");
    assert_int_equal(ask_command("lend"), -ENOTCONN);
    json_t *answer = NULL;
    assert_int_equal(ask(json_pack("{s:s,s:i}", "command", "set", "max-bandwidth", 4096), &answer),
                     0);
    assert_true(json_is_true(json_object_get(answer, "ok")));
    json_decref(answer);
    assert_int_equal(atomic_load(&scene.bandwidth), 4096);
    assert_int_equal(ask(json_pack("{s:s,s:i}", "command", "set", "max-bandwidth", 7), &answer),
                     -EREMOTEIO);
    assert_string_equal(error.message, "7 is too few");
    assert_int_equal(atomic_load(&scene.bandwidth), 4096);
}

static void test_several_requests_one_connection(NO_STATE)
{
    int fd = raw();
    send_text(fd, "{\"command\": \"set\", \"max-bandwidth\": 0}\n{\"comm");
    expect_line(fd, "\"ok\":true");
    send_text(fd, "and\": \"cancel\"}\r\n");
    expect_line(fd, "\"ok\":true");
    send_text(fd, "{\"command\": \"status\"}\n");
    expect_line(fd, "\"phase\":\"filling\"");
    close(fd);
}

/* ------------------------------------------------------------ hostile clients */

static void test_hostile_lines(NO_STATE)
{
    static const struct {
        const char *line, *words;
    } bad[] = {
        {"\n", "not a JSON object"},
        {"[]\n", "not a JSON object"},
        {"{\n", "not a JSON object"},
        {"{\"command\": 1}\n", "there is no command"},
        {"{}\n", "there is no command"},
        {"{\"command\": \"reboot\"}\n", "\\\"reboot\\\""},
        {"{\"command\": \"\\u001b[31m\"}\n", "?[31m"},
        {"{\"command\": \"status\", \"command\": \"cancel\"}\n", "not a JSON object"},
        {"{\"command\": \"set\"}\n", "max-bandwidth"},
        {"{\"command\": \"set\", \"max-bandwidth\": -1}\n", "from 0 on"},
        {"{\"command\": \"set\", \"max-bandwidth\": \"1M\"}\n", "from 0 on"},
        {"{\"command\": \"set\", \"max-bandwidth\": 1.5}\n", "from 0 on"},
        {"{\"command\": \"set\", \"max-bandwidth\": 18446744073709551616}\n", "not a JSON object"},
        {"\xff\xfe\n", "not a JSON object"},
    };
    int fd = raw();
    for (size_t i = 0; i < COUNT(bad); i++) {
        send_text(fd, bad[i].line);
        expect_line(fd, bad[i].words);
    }
    assert_int_equal(send(fd, "\0{}\n", 4, MSG_NOSIGNAL), 4);
    expect_line(fd, "not a JSON object");
    close(fd);
    assert_int_equal(atomic_load(&scene.canceled), 0);
    assert_int_equal(ask_command("status"), 0);
}

static void test_too_long_line(NO_STATE)
{
    int fd = raw();
    char much[4096];
    memset(much, '[', sizeof(much));
    assert_int_equal(send(fd, much, sizeof(much), MSG_NOSIGNAL), sizeof(much));
    expect_line(fd, "longer than 4096 bytes");
    assert_string_equal(next_line(fd), ""); /* the connection is closed */
    close(fd);
    /* The longest request that is allowed gets an answer. */
    fd = raw();
    much[sizeof(much) - 1] = '\n';
    assert_int_equal(send(fd, much, sizeof(much), MSG_NOSIGNAL), sizeof(much));
    expect_line(fd, "not a JSON object");
    close(fd);
    assert_int_equal(ask_command("status"), 0);
}

/* A client sends requests for ever and reads nothing. It is closed when its buffer is full, and
 * other clients do not notice. */
static void test_client_that_never_reads(NO_STATE)
{
    static const char request[] = "{\"command\": \"status\"}\n";
    int fd = raw();
    uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    while (send(fd, request, strlen(request), MSG_NOSIGNAL) > 0 && ibx_now_ns() < deadline)
        ;
    assert_true(errno == EPIPE || errno == ECONNRESET);
    assert_int_equal(ask_command("status"), 0);
    close(fd);
}

static void test_many_clients(NO_STATE)
{
    int fds[3 * IBX_CONTROL_SOCKET_CLIENTS_MAX];
    for (unsigned i = 0; i < 3 * IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        fds[i] = raw();
        send_text(fds[i], "{\"command\": \"status\"}\n");
        expect_line(fds[i], "filling");
        assert_int_equal(ask_command("status"), 0); /* there is always room for another client */
    }
    /* the client that was idle for longest was closed */
    assert_string_equal(next_line(fds[0]), "");
    const unsigned last = 3 * IBX_CONTROL_SOCKET_CLIENTS_MAX - 1;
    send_text(fds[last], "{\"command\": \"status\"}\n");
    expect_line(fds[last], "filling");
    for (unsigned i = 0; i < 3 * IBX_CONTROL_SOCKET_CLIENTS_MAX; i++)
        close(fds[i]);
    close_scene();
    assert_in_range(scene.most_fds, 2, 1 + IBX_CONTROL_SOCKET_CLIENTS_MAX);
}

static void test_half_a_line_and_gone(NO_STATE)
{
    for (unsigned i = 0; i < 2 * IBX_CONTROL_SOCKET_CLIENTS_MAX; i++) {
        int fd = raw();
        send_text(fd, "{\"command\": \"can");
        close(fd);
    }
    assert_int_equal(ask_command("status"), 0);
    assert_int_equal(atomic_load(&scene.canceled), 0);
}

/* The socket's mode keeps other users out. If the mode is changed, the check of the user id
 * does. */
static void test_other_users_are_not_served(NO_STATE)
{
    if (geteuid())
        skip();
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    pid_t child = fork();
    if (!child) {
        if (setgid(NOBODY) || setuid(NOBODY))
            _exit(3);
        int fd = raw();
        /* fails if the connection is already closed */
        send(fd, "{\"command\": \"cancel\"}\n", 22, MSG_NOSIGNAL);
        char byte;
        _exit(recv(fd, &byte, 1, 0) > 0 ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(atomic_load(&scene.canceled), 0);
    assert_int_equal(ask_command("cancel"), 0);
}

/* ------------------------------------------------------------ the file */

static void test_stale_socket_is_replaced(NO_STATE)
{
    int dead = raw_by(bind);
    assert_int_equal(listen(dead, 1), 0);
    close(dead);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(ask_command("status"), -ECONNREFUSED);
    text_has(error.message, "no ib-migrate is at work");
    open_scene();
    assert_int_equal(ask_command("status"), 0);
    close_scene();
    assert_int_equal(ask_command("status"), -ENOENT);
}

static void test_live_socket_is_refused(NO_STATE)
{
    struct ibx_control_socket *second = NULL;
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &second, &error),
                     -EADDRINUSE);
    assert_null(second);
    text_has(error.message, "another ib-migrate");
    assert_int_equal(ask_command("status"), 0);
}

static void test_other_files_are_left_alone(NO_STATE)
{
    struct ibx_control_socket *first = NULL;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &first, &error), -EEXIST);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    /* A socket that has taken this one's place is not removed either. */
    struct ibx_control_socket *other = NULL;
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &first, &error), 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &other, &error), 0);
    ibx_control_socket_close(first);
    assert_int_equal(access(path, F_OK), 0);
    ibx_control_socket_close(other);
    assert_int_equal(access(path, F_OK), -1);
    ibx_control_socket_close(NULL);
}

static void test_folder_that_takes_no_socket(NO_STATE)
{
    struct ibx_control_socket *first = NULL;
    assert_int_equal(
        ibx_control_socket_open("/proc/x.sock", &ops, NULL, "take mine", &first, &error), -ENOENT);
    text_has(error.message, "must be writable: take mine");
}

static void test_path_too_long(NO_STATE)
{
    char longest[200];
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    struct ibx_control_socket *first = NULL;
    assert_int_equal(ibx_control_socket_open(longest, &ops, NULL, "choose", &first, &error),
                     -ENAMETOOLONG);
    json_t *answer = NULL;
    assert_int_equal(ibx_control_socket_ask(longest, json_object(), &answer, 0, &error),
                     -ENAMETOOLONG);
}

/* ------------------------------------------------------------ a bad tool at the other end */

struct answer_of {
    int listener;
    const char *text; /* NULL: disconnects */
    size_t times;
    pthread_t thread;
};

static void *answer_run(void *arg)
{
    struct answer_of *a = arg;
    int fd = accept(a->listener, NULL, NULL);
    char request[256];
    if (recv(fd, request, sizeof(request), 0) > 0 && a->text) {
        for (size_t i = 0; i < a->times; i++) {
            if (send(fd, a->text, strlen(a->text), MSG_NOSIGNAL) < 0)
                break;
        }
    }
    shutdown(fd, SHUT_WR);
    while (recv(fd, request, sizeof(request), 0) > 0)
        ;
    close(fd);
    return NULL;
}

static void answered(const char *text, size_t times, int code, const char *words)
{
    struct answer_of a = {.listener = raw_by(bind), .text = text, .times = times};
    assert_int_equal(listen(a.listener, 1), 0);
    assert_int_equal(pthread_create(&a.thread, NULL, answer_run, &a), 0);
    assert_int_equal(ask_command("status"), code);
    text_has(error.message, words);
    pthread_join(a.thread, NULL);
    close(a.listener);
    unlink(path);
}

static void test_bad_answers(NO_STATE)
{
    answered(NULL, 0, -ECONNRESET, "ended");
    answered("{\"ok\"", 1, -ECONNRESET, "ended");
    answered("[1]\n", 1, -EPROTO, "JSON object");
    answered("{\"ok\": tru\n", 1, -EPROTO, "JSON object");
    answered("0123456789abcdef", 8192, -EPROTO, "without end");
    answered("{\"error\": \"\\u001b[2Jno\"}\n", 1, -EREMOTEIO, "?[2Jno");
    answered("{\"error\": \"\"}\n", 1, -EPROTO, "says something");
}

/* A socket takes its owner from the process that listens. What another user answers is not
 * believed: "ok" to "cancel" would say that the migration has ended. */
static void test_tool_of_another_user(NO_STATE)
{
    if (geteuid())
        skip();
    struct answer_of a = {.listener = raw_by(bind), .text = "{\"ok\": true}\n", .times = 1};
    assert_int_equal(seteuid(NOBODY), 0);
    const int rc = listen(a.listener, 1);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(rc, 0);
    assert_int_equal(pthread_create(&a.thread, NULL, answer_run, &a), 0);
    assert_int_equal(ask_command("cancel"), -EPERM);
    text_has(error.message, "another user");
    pthread_join(a.thread, NULL);
    close(a.listener);
    unlink(path);
}

/* Asks as user 65534 (nobody) of a namespace that maps only this user, so that the tool's user
 * appears as nobody, too. */
static int ask_as_nobody(void)
{
    static const char map[] = "65534 12346 1";
    const int file =
        setresuid(12346, 12346, 12346) || prctl(PR_SET_DUMPABLE, 1) || unshare(CLONE_NEWUSER)
            ? -1
            : open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, map, strlen(map)) != (ssize_t)strlen(map))
        return CHILD_SKIPS;
    return ask_command("cancel") == -EPERM && strstr(error.message, "another user") ? 0 : 1;
}

static void test_tool_of_a_user_who_is_not_mapped(NO_STATE)
{
    if (geteuid())
        skip();
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    passes_in_child(ask_as_nobody);
}

static void test_silent_tool(NO_STATE)
{
    struct ibx_control_socket *first = NULL; /* never served, like that of a stopped tool */
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &first, &error), 0);
    json_t *answer = NULL;
    for (unsigned i = 0; i < 40; i++) /* also more requests than its queue holds */
        assert_int_equal(ibx_control_socket_ask(path, json_object(), &answer,
                                                ibx_deadline_in_ms(i ? 0 : SHORT), &error),
                         -ETIMEDOUT);
    text_has(error.message, "is it stopped?");
    struct ibx_control_socket *other = NULL; /* its queue is full: it lives */
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "", &other, &error), -EADDRINUSE);
    ibx_control_socket_close(first);
}

/* The tool finds it gone although nothing comes that it would serve. */
static void test_a_removed_socket_is_made_anew(NO_STATE)
{
    struct pollfd fds[1 + IBX_CONTROL_SOCKET_CLIENTS_MAX];
    struct ibx_control_socket *socket = NULL;
    const uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    assert_int_equal(ibx_control_socket_open(path, &ops, NULL, "choose", &socket, &error), 0);
    assert_int_equal(unlink(path), 0);
    while (access(path, F_OK)) {
        assert_true(ibx_now_ns() < deadline);
        poll(fds, ibx_control_socket_poll_fds(socket, fds), SHORT);
    }
    const int client = raw();
    assert_int_equal(poll(fds, ibx_control_socket_poll_fds(socket, fds), GENEROUS), 1);
    close(client);
    ibx_control_socket_close(socket);
}

/* The tool that should answer is stopped: requests time out. */
static void test_stopped_tool(NO_STATE)
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        listen(raw_by(bind), 1);
        raise(SIGSTOP);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    assert_true(WIFSTOPPED(status));
    const uint64_t deadline = ibx_deadline_in_ms(GENEROUS);
    json_t *answer = NULL;
    const int rc = ibx_control_socket_ask(path, json_object(), &answer, deadline, &error);
    const bool in_time = ibx_now_ns() < deadline;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    unlink(path);
    assert_int_equal(rc, -ETIMEDOUT);
    text_has(error.message, "is it stopped?");
    assert_true(in_time);
}

/* ------------------------------------------------------------ status as JSON */

static void has(const json_t *json, const char *member, const char *text)
{
    char *is = json_dumps(json_object_get(json, member), JSON_ENCODE_ANY);
    assert_string_equal(is, text);
    free(is);
}

static void test_status_json(NO_STATE)
{
    struct ibx_migrate_status status = {.phase = IBX_PHASE_RECONNECTING,
                                        .record = {.id = {0xab, 1}, .state = IBX_JOURNAL_RUNNING},
                                        .message = "caf\xe9 \"is\" closed",
                                        .bytes = UINT64_MAX,
                                        .began_ns = 10,
                                        .now_ns = 5};
    strcpy(status.record.name, "b\u00fccher");
    json_t *json = ibx_migrate_status_json(&status);
    has(json, "role", "\"destination\"");
    has(json, "phase", "\"reconnecting\"");
    has(json, "sentence", "\"caf? \\\"is\\\" closed\"");
    has(json, "wire_bytes", "9223372036854775807");
    has(json, "elapsed_ns", "0");
    has(json, "downtime_ns", "null");
    has(json, "max_bandwidth", "null");
    json_t *record = json_object_get(json, "record");
    has(record, "id", "\"ab010000000000000000000000000000\"");
    has(record, "name", "\"b\u00fccher\"");
    has(record, "over", "false");
    json_decref(json);
    assert_string_equal(ibx_migrate_phase_name(IBX_PHASE_WAITING), "waiting");
    assert_string_equal(ibx_migrate_phase_name(IBX_PHASE_FAILED), "failed");
    status.record.state = 0; /* not in the record yet */
    json = ibx_migrate_status_json(&status);
    has(json, "record", "null");
    json_decref(json);
}

static void test_status_json_is_checked(NO_STATE)
{
    static const char *const bad[][2] = {
        {"role", "1"},         {"phase", "\"asleep\""},      {"phase", "null"},   {"path", "null"},
        {"sentence", "[]"},    {"elapsed_ns", "-1"},         {"faults", "\"1\""}, {"faults", "1.0"},
        {"downtime_ns", "-1"}, {"reconnects", "5000000000"},
    };
    struct ibx_migrate_status status = {.phase = IBX_PHASE_DONE}, taken;
    for (size_t i = 0; i < COUNT(bad); i++) {
        json_t *json = ibx_migrate_status_json(&status);
        assert_int_equal(ibx_migrate_status_take(json, &taken, &error), 0);
        assert_int_equal(
            json_object_set_new(json, bad[i][0], json_loads(bad[i][1], JSON_DECODE_ANY, NULL)), 0);
        memset(&taken, 0, sizeof(taken));
        assert_int_equal(ibx_migrate_status_take(json, &taken, &error), -EPROTO);
        text_has(error.message, bad[i][0]);
        assert_int_equal(json_object_del(json, bad[i][0]), 0);
        assert_int_equal(ibx_migrate_status_take(json, &taken, &error), -EPROTO);
        json_decref(json);
    }
    assert_int_equal(ibx_migrate_status_take(NULL, &taken, &error), -EPROTO);
}

static int make_folder(NO_STATE)
{
    snprintf(folder, sizeof(folder), "/tmp/ibx-socket-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof(path), "%s/test.sock", folder);
    memset(&error, 0, sizeof(error));
    return 0;
}

static int make_scene(void **state)
{
    int rc = make_folder(state);
    if (!rc)
        open_scene();
    return rc;
}

static int remove_folder(NO_STATE)
{
    if (scene.socket)
        close_scene();
    unlink(path);
    return rmdir(folder);
}

#define with_scene(name)  cmocka_unit_test_setup_teardown(name, make_scene, remove_folder)
#define with_folder(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_scene(test_status),
        with_scene(test_cancel_and_set),
        with_scene(test_several_requests_one_connection),
        with_scene(test_hostile_lines),
        with_scene(test_too_long_line),
        with_scene(test_client_that_never_reads),
        with_scene(test_many_clients),
        with_scene(test_half_a_line_and_gone),
        with_scene(test_other_users_are_not_served),
        with_folder(test_stale_socket_is_replaced),
        with_scene(test_live_socket_is_refused),
        with_folder(test_other_files_are_left_alone),
        with_folder(test_folder_that_takes_no_socket),
        with_folder(test_path_too_long),
        with_folder(test_bad_answers),
        with_folder(test_tool_of_another_user),
        with_scene(test_tool_of_a_user_who_is_not_mapped),
        with_folder(test_silent_tool),
        with_folder(test_stopped_tool),
        with_folder(test_a_removed_socket_is_made_anew),
        cmocka_unit_test(test_status_json),
        cmocka_unit_test(test_status_json_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
