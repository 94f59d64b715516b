/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client with peers that are not QEMU, flood it, do not answer, or cannot be reached. */
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EVENT "{\"event\": \"RTC_CHANGE\"}\n"

#define FLOOD 1024u          /* a call ends after this many bytes, or at its deadline */
static bool flooded;         /* there is always something to read */
static const char *flood_of; /* events that fill the buffer; NULL: one EVENT */

ssize_t __real_recv(int fd, void *buffer, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags);

ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags)
{
    if (!flooded || size < FLOOD)
        return __real_recv(fd, buffer, size, flags);
    memset(buffer, ' ', FLOOD);
    const size_t room = FLOOD - strlen(EVENT), length = flood_of ? strlen(flood_of) : FLOOD;
    for (size_t at = 0; at + length <= room; at += length)
        memcpy((char *)buffer + at, flood_of, length);
    memcpy((char *)buffer + FLOOD - strlen(EVENT), EVENT, strlen(EVENT));
    return FLOOD;
}

/* The call ends anyway. */
static void test_flood_without_an_answer(NO_STATE)
{
    attached(SCRIPT({"query-status", EVENT, 0}, {"query-status", NULL, 0}));
    flooded = true;
    says(run("query-status", NULL, SHORT), -ETIMEDOUT,
         "did not answer query-status in time: see whether it is stopped");
    says(run("query-status", NULL, SHORT), -ETIMEDOUT, "did not answer query-status in time");
    flooded = false;
    done();
}

static void test_flood_without_a_greeting(NO_STATE)
{
    const struct step steps[] = {{NULL, EVENT, 0}, {0}};
    flooded = true;
    says(attach(steps, SHORT), -ETIMEDOUT, "no greeting came");
    flooded = false;
    done();
}

static uint64_t cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t pump_ns(const char *event)
{
    flooded = true;
    flood_of = event;
    const uint64_t begun = cpu_ns();
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(ibx_qmp_pump(qmp, &error), 0);
    const uint64_t took = cpu_ns() - begun;
    flooded = false;
    flood_of = NULL;
    return took;
}

/* Searching the events takes no longer if none of them may be dropped. */
static void test_flood_of_what_migrations_need(NO_STATE)
{
    attached(SCRIPT({"bye", NULL, 0}));
    const uint64_t others = pump_ns("{\"event\":\"COLD\"}\n");
    const uint64_t needed = pump_ns("{\"event\":\"STOP\"}\n");
    if (needed > 5 * others)
        fail_msg("%.0f ms of a processor, and %.0f where none is needed", (double)needed / 1e6,
                 (double)others / 1e6);
    run("bye", NULL, SHORT);
    done();
}

static void refuses(const struct step *steps, int code, const char *words)
{
    says(attach(steps, GENEROUS), code, words);
    assert_null(qmp);
    done();
}

static void test_bad_greetings(NO_STATE)
{
    refuses((const struct step[]){{NULL, "SSH-2.0-OpenSSH\r\n", 0}, {0}}, -EPROTO, "not a JSON");
    refuses((const struct step[]){{NULL, "{\"hello\": 1}\n", 0}, {0}}, -EPROTO, "no QEMU version");
    refuses((const struct step[]){{NULL, "[1]\n", 0}, {0}}, -EPROTO, "not a JSON object");
    refuses((const struct step[]){{0}}, -ECONNRESET, "closed its QMP socket");
    refuses((const struct step[]){{NULL, GREETING, 0}, {0}}, -ECONNRESET, "closed its QMP socket");
}

static void test_silent_monitor(NO_STATE)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_attach(pair[0], ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT,
         "one client at a time");
    close(pair[1]);
}

static void test_endless_line(NO_STATE)
{
    char *much = malloc(65537);
    memset(much, '[', 65536);
    much[65536] = '\0';
    refuses((const struct step[]){{NULL, GREETING, 0}, {NULL, much, 200}, {0}}, -EMSGSIZE,
            "longer than 8 MiB");
    free(much);
}

#define SHUT_DOWN                                                                                  \
    "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-shutdown\"}}\n"
#define STOPPED "{\"event\": \"STOP\"}\n"

static bool stays;        /* whether QEMU's command line says that it stays */
static unsigned readings; /* of that command line */

bool __real_ibx_proc_stays(pid_t pid);
bool __wrap_ibx_proc_stays(pid_t pid);
bool __wrap_ibx_proc_stays(pid_t pid)
{
    assert_int_equal(pid, getpid()); /* the process that made the peer's socket */
    readings++;
    return stays;
}

/* QEMU with -no-shutdown sends no STOP for a VM that is already stopped: only SHUTDOWN comes. */
static void test_shutdown_without_stop(NO_STATE)
{
    static const char by_signal[] =
        "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": false, \"reason\": \"host-signal\"}}\n";
    char text[256];
    stays = true;
    readings = 0;
    attached(SCRIPT({"query-status", SHUT_DOWN SHUT_DOWN READY(2), 0},
                    {"query-jobs", SHUT_DOWN READY(3), 0}));
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    assert_null(ibx_qmp_ends(qmp));
    assert_int_equal(run("query-jobs", NULL, GENEROUS), 0);
    assert_null(ibx_qmp_ends(qmp));
    done();
    assert_int_equal(readings, 1); /* a peer may send any number of these events */
    snprintf(text, sizeof(text), "%s" READY(2), by_signal);
    attached(SCRIPT({"query-status", text, 0}));
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    assert_string_equal(ibx_qmp_ends(qmp), "host-signal");
    done();
    stays = false;
}

/* Whether a process with these arguments stays after a shutdown, as QEMU would. */
static bool process_stays(const char *one, const char *two, const char *three)
{
    int up[2], status;
    char byte;
    assert_int_equal(pipe(up), 0);
    const pid_t pid = fork();
    if (!pid) {
        dup2(up[1], 1);
        close(up[0]);
        execl("/bin/sh", "sh", "-c", "echo; kill -STOP $$", one, two, three, NULL);
        _exit(1);
    }
    assert_int_equal(read(up[0], &byte, 1), 1); /* the child has its arguments now */
    const bool is = __real_ibx_proc_stays(pid);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(up[0]);
    close(up[1]);
    return is;
}

static void test_command_line_says_whether_qemu_stays(NO_STATE)
{
    assert_true(process_stays("-no-reboot", "-no-shutdown", "-S"));
    assert_true(process_stays("-S", "-action", "panic=shutdown,shutdown=pause"));
    assert_true(process_stays("-S", "--action", "shutdown=pause,reboot=shutdown"));
    assert_false(process_stays("-name", "shutdown=pause", "-S"));
    assert_false(process_stays("-no-shutdown", "-action", "shutdown=poweroff"));
    assert_false(process_stays("-S", "-action", "panic=pause,reboot=shutdown"));
    assert_false(__real_ibx_proc_stays(0));
}

/* A QEMU that is about to end may hang at a command until its client disconnects. */
static void test_ending_qemu_gets_no_commands(NO_STATE)
{
    char more;
    int status;
    deaf = true;
    attached(SCRIPT({"query-status", SHUT_DOWN READY(2), 0}));
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    says(run("query-jobs", NULL, SHORT), -ETIMEDOUT, "query-jobs was not sent");
    assert_non_null(strstr(error.message, "the VM was shut down (guest-shutdown)"));
    assert_int_equal(recv(peer.fd, &more, 1, MSG_DONTWAIT), -1);
    done();
    attached(SCRIPT({"query-status", SHUT_DOWN, 0}));
    says(run("query-status", NULL, GENEROUS), -ECONNRESET, "its QEMU ends with it");
    assert_string_equal(ibx_qmp_ends(qmp), "guest-shutdown");
    const pid_t hung = fork();
    if (!hung)
        for (;;)
            pause();
    ibx_qmp_end(qmp, hung);
    assert_int_equal(waitpid(hung, &status, 0), hung);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    done();
    deaf = false;
    attached(SCRIPT({"query-status", SHUT_DOWN, 0}));
    says(run("query-status", NULL, GENEROUS), -ECONNRESET, "the VM was shut down (guest-shutdown)");
    done();
}

/* One that stays (-no-shutdown) is asked as before. */
static void test_remaining_qemu_is_asked(NO_STATE)
{
    attached(SCRIPT({"query-status", SHUT_DOWN READY(2), 0}, {NULL, STOPPED, 0},
                    {"query-jobs", READY(3), 0}));
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    if (run("query-jobs", NULL, GENEROUS))
        fail_msg("%s", error.message);
    done();
}

/* QEMU sends the next client the answers to an earlier one's commands, in any state before the
 * first answer to its own. */
static void test_answers_to_an_earlier_client(NO_STATE)
{
#define FOREIGN "{\"return\": {}, \"id\" : 7}\r\n"
    const struct step steps[] = {
        {NULL, FOREIGN, 0},
        {NULL, GREETING, 0},
        {"qmp_capabilities",
         FOREIGN "{\"return\": {}, \"id\" : 1}\r\n{\"return\": {}, \"id\" : \"other\"}\r\n"
                 "{\"error\": {\"desc\": \"no\"}}\r\n" READY(1),
         0},
        {"query-status", "{\"return\": 5, \"id\": 2}\n", 0},
        {"query-jobs", FOREIGN, 0},
        {0}};
    json_t *result;
    attached(steps);
    assert_int_equal(run("query-status", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 5);
    json_decref(result);
    says(run("query-jobs", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
}

/* Two clients of one QEMU do not use the same ids while it may answer the earlier one. From the
 * answer to the first command on ids are short. */
static void test_ids_of_two_clients(NO_STATE)
{
    const struct step steps[] = {GREETED, {"query-status", "{\"return\": 5, \"id\": 2}\n", 0}, {0}};
    attached(steps);
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    const json_int_t first = peer.first;
    assert_int_equal(peer.before, 0);
    attached(steps);
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    assert_true(first > 1 && peer.first > 1 && first != peer.first);
    assert_true(first < (1ll << 53) && peer.first < (1ll << 53));
}

/* On a connection over which another client has sent commands no answer to one of those passes for
 * an answer to this client's. */
static void test_ids_on_a_connection_of_another_client(NO_STATE)
{
    static const char again[] = "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": "
                                "\"Capabilities negotiation is already complete\"}, \"id\": 1}\n";
    attached((const struct step[]){{NULL, GREETING, 0},
                                   {"qmp_capabilities", again, 0},
                                   {"query-status", "{\"return\": 5, \"id\": 2}\n", 0},
                                   {0}});
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    assert_true(peer.before > 0);
}

/* QEMU greets a client that connects during its start twice, and then expects the negotiation. */
static void test_qemu_greets_twice(NO_STATE)
{
    static const char again[] = "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": "
                                "\"Capabilities negotiation is already complete\"}, \"id\": 2}\n";
    attached((const struct step[]){{NULL, GREETING GREETING, 0},
                                   {"qmp_capabilities", READY(1), 0},
                                   {"query-status", "{\"return\": 5, \"id\": 2}\n", 0},
                                   {0}});
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    for (unsigned i = 0; i < 2; i++) {
        attached((const struct step[]){{NULL, GREETING, 0},
                                       {"qmp_capabilities", GREETING READY(1), 0},
                                       {"qmp_capabilities", i ? again : READY(2), 0},
                                       {"query-status", "{\"return\": 5, \"id\": 3}\n", 0},
                                       {0}});
        assert_int_equal(run("query-status", NULL, GENEROUS), 0);
        done();
    }
}

/* A peer that answers a command twice, or after a later one, is not trusted any more. */
static void test_peer_answers_twice(NO_STATE)
{
    attached(SCRIPT({"status", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 2}\n", 0}));
    json_t *result = NULL;
    assert_int_equal(run("status", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 1);
    json_decref(result);
    says(run("status", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
    attached(SCRIPT({"one", NULL, 0},
                    {"two", "{\"return\": 2, \"id\": 3}\n{\"return\": 1, \"id\": 2}\n", 0}));
    says(run("one", NULL, 0), -ETIMEDOUT, "did not answer one in time");
    assert_int_equal(run("two", NULL, GENEROUS), 0);
    says(run("three", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
}

static void test_death_is_remembered(NO_STATE)
{
    attached(SCRIPT({"quit", READY(2) "{\"event\": \"SHUTDOWN\"}\n", 0}));
    assert_int_equal(run("quit", NULL, GENEROUS), 0);
    for (unsigned i = 0; i < 2; i++) {
        says(run("query-status", NULL, GENEROUS), -ECONNRESET, "its QEMU ends with it");
        says(ibx_qmp_pump(qmp, &error), -ECONNRESET, "its QEMU ends with it");
    }
    assert_true(ibx_qmp_has_events(qmp)); /* earlier events are not lost */
    done();
}

/* Commands fill the socket. The one that does not fit fails at its deadline. */
static void test_peer_that_does_not_read(NO_STATE)
{
    const struct step steps[] = {{NULL, GREETING, 0}, {"qmp_capabilities", READY(1), 0}, {0}};
    deaf = true;
    attached(steps);
    deaf = false;
    char *much = calloc(1, 100001);
    memset(much, 'x', 100000);
    int rc;
    do
        rc = ibx_qmp_execute(qmp, "cont", json_pack("{s:s}", "why", much), NULL, 0, &error);
    while (rc == -ETIMEDOUT && strstr(error.message, "did not answer"));
    free(much);
    says(rc, -ETIMEDOUT, "QEMU stopped reading its QMP socket");
    says(run("cont", NULL, GENEROUS), -ETIMEDOUT, "QEMU stopped reading its QMP socket");
    done();
}

static void test_bad_paths(NO_STATE)
{
    char path[200];
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ENAMETOOLONG, "107");
    says(ibx_qmp_connect("/no where/at/all", ibx_deadline_in_ms(SHORT), &qmp, &error), -ENOENT,
         "start QEMU with -qmp unix:'/no where/at/all',server=on,wait=off");
    says(ibx_qmp_connect("/nowhere/at/all", ibx_deadline_in_ms(SHORT), &qmp, &error), -ENOENT,
         "unix:/nowhere/at/all,server=on,wait=off");
}

/* QEMU removes a file at which it is told to listen, so the message must not advise that. */
static void test_no_socket(NO_STATE)
{
    char file[] = "/tmp/ibx-qmp-XXXXXX";
    const int fd = mkstemp(file);
    assert_true(fd >= 0);
    const char *paths[] = {file, "/tmp"};
    for (unsigned i = 0; i < 2; i++) {
        memset(&error, 0, sizeof(error));
        says(ibx_qmp_connect(paths[i], ibx_deadline_in_ms(SHORT), &qmp, &error), -ECONNREFUSED,
             "is no socket");
        assert_null(strstr(error.message, "start QEMU"));
    }
    close(fd);
    unlink(file);
}

/* The path is too long for a socket's address; the socket was created from within the folder. */
static void test_deep_folder(NO_STATE)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char top[] = "/tmp/ibx-qmp-XXXXXX", deep[160], path[200];
    assert_non_null(mkdtemp(top));
    snprintf(deep, sizeof(deep), "%s/%0120d", top, 0);
    snprintf(path, sizeof(path), "%s/qmp", deep);
    assert_int_equal(mkdir(deep, 0700), 0);
    int folder = open(deep, O_PATH | O_CLOEXEC), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/qmp", folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 1), 0);
    memset(&error, 0, sizeof(error));
    /* No process accepts, but the socket exists. */
    assert_int_equal(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT);
    close(fd);
    close(folder);
    unlink(path);
    rmdir(deep);
    rmdir(top);
    assert_int_equal(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ENOENT);
}

/* A listener with a full backlog must not block the caller. */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static bool knows_who_listened(void)
{
    int pair[2], fd = -1;
    socklen_t size = sizeof(fd);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const bool knows = !getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &size);
    close(pair[0]);
    close(pair[1]);
    if (knows)
        close(fd);
    return knows;
}

/* Starts a process that listens at `path` and ends while its child has the socket. Returns the
 * child. */
static pid_t leave_a_listener(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int told[2], status = -1;
    pid_t child = -1;
    memcpy(at.sun_path, path, strlen(path));
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    const pid_t first = fork();
    if (!first) {
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) || listen(fd, 4))
            _exit(1);
        child = fork();
        while (!child)
            pause();
        _exit(write(told[1], &child, sizeof(child)) != sizeof(child));
    }
    assert_int_equal(read(told[0], &child, sizeof(child)), sizeof(child));
    assert_int_equal(waitpid(first, &status, 0), first);
    assert_int_equal(status, 0);
    close(told[0]);
    close(told[1]);
    return child;
}

/* The process's number may belong to another QEMU by now, so that one's memory is not used. */
static void test_listening_process_has_ended(NO_STATE)
{
    char folder[] = "/tmp/ibx-qmp-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/qmp", folder);
    const pid_t child = leave_a_listener(path);
    memset(&error, 0, sizeof(error));
    const int rc = ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error);
    kill(child, SIGKILL);
    unlink(path);
    rmdir(folder);
    if (knows_who_listened())
        says(rc, -ECONNRESET, "that listened at this QMP socket has ended");
    else
        print_message("not looked at: this kernel does not tell who has ended\n");
}

/* The message names no process as the listener. */
static void test_listening_process_has_just_ended(NO_STATE)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int told[2];
    snprintf(at.sun_path, sizeof(at.sun_path), "/tmp/ibx-test-qmp.%d", getpid());
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    const pid_t child = fork();
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!child) {
        if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) || listen(fd, 4))
            _exit(1);
        const ssize_t n = write(told[1], "", 1);
        while (n == 1)
            pause();
        _exit(1);
    }
    char byte;
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    unlink(at.sun_path);
    close(told[0]);
    close(told[1]);
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_attach(fd, ibx_deadline_in_ms(SHORT), &qmp, &error), -ECONNRESET, "has ended");
    assert_null(strstr(error.message, "answers"));
}

static void test_full_backlog(NO_STATE)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "/tmp/ibx-test-qmp.%d", getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 0), 0);
    int filler[8];
    size_t n = 0;
    for (bool full = false; !full && n < 8; n++) {
        filler[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        full = connect(filler[n], (struct sockaddr *)&at, sizeof(at)) && errno == EAGAIN;
    }
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_connect(at.sun_path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT,
         "a -qmp socket of its own; or QEMU itself is stopped");
    while (n)
        close(filler[--n]);
    close(listener);
    unlink(at.sun_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flood_without_an_answer),
        cmocka_unit_test(test_flood_without_a_greeting),
        cmocka_unit_test(test_flood_of_what_migrations_need),
        cmocka_unit_test(test_bad_greetings),
        cmocka_unit_test(test_silent_monitor),
        cmocka_unit_test(test_endless_line),
        cmocka_unit_test(test_ending_qemu_gets_no_commands),
        cmocka_unit_test(test_shutdown_without_stop),
        cmocka_unit_test(test_command_line_says_whether_qemu_stays),
        cmocka_unit_test(test_remaining_qemu_is_asked),
        cmocka_unit_test(test_answers_to_an_earlier_client),
        cmocka_unit_test(test_ids_of_two_clients),
        cmocka_unit_test(test_ids_on_a_connection_of_another_client),
        cmocka_unit_test(test_qemu_greets_twice),
        cmocka_unit_test(test_peer_answers_twice),
        cmocka_unit_test(test_death_is_remembered),
        cmocka_unit_test(test_peer_that_does_not_read),
        cmocka_unit_test(test_bad_paths),
        cmocka_unit_test(test_no_socket),
        cmocka_unit_test(test_deep_folder),
        cmocka_unit_test(test_listening_process_has_ended),
        cmocka_unit_test(test_listening_process_has_just_ended),
        cmocka_unit_test(test_full_backlog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
