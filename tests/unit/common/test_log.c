/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where a library writes its log: to standard error, but never to a file that a program has
 * opened at that descriptor. Each case runs in a process of its own. Also: levels, the limit on
 * lines, readers that do not read, and threads that are cancelled while they log. */
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h needs the standard headers above. */
#include <cmocka.h>

enum place { SAME, CLOSED, FILE_OF_ITS_OWN, APPENDED, AS_OUTPUT, A_PIPE, ITS_PIPE, A_SOCKET };

/* Puts something in the place of standard error. Returns a descriptor from which its contents
 * can be read, or -1 if there are none. */
static int put(enum place place)
{
    int ends[2] = {-1, -1};
    const int made = memfd_create("log", MFD_CLOEXEC);
    /* standard error itself may be closed */
    const int file = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (place == A_PIPE || place == ITS_PIPE ? pipe2(ends, O_CLOEXEC | O_NONBLOCK)
        : place == A_SOCKET
            ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends)
            : file < 0)
        abort();
    if (place == APPENDED && fcntl(file, F_SETFL, O_APPEND))
        abort();
    const int read_end = ends[0] >= 0 ? ends[0] : file, write_end = ends[1] >= 0 ? ends[1] : file;
    if (place == CLOSED)
        close(STDERR_FILENO);
    else
        dup3(write_end, STDERR_FILENO, place == ITS_PIPE ? O_CLOEXEC : 0);
    if (place == AS_OUTPUT)
        dup2(write_end, STDOUT_FILENO);
    return read_end;
}

/* Whether a line is written. `begun`: what standard error is when the library is loaded; `now`:
 * when it logs. */
static bool is_written(bool library, enum place begun, enum place now)
{
    const pid_t child = fork();
    if (!child) {
        char text[100] = "";
        int from = put(begun);
        if (library)
            ibx_log_of_library();
        if (now != SAME)
            from = put(now);
        ibx_log(IBX_LOG_ERROR, "a line");
        if (now != A_PIPE && now != ITS_PIPE && now != A_SOCKET)
            lseek(from, 0, SEEK_SET);
        _exit(read(from, text, sizeof(text)) > 0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
    return WEXITSTATUS(status);
}

static void test_destinations_of_lines(void **state)
{
    static const struct {
        bool library;
        enum place begun, now;
        bool written;
    } cases[] = {
        /* standard error itself, or a replacement meant to be standard error */
        {true, FILE_OF_ITS_OWN, SAME, true},
        {true, FILE_OF_ITS_OWN, APPENDED, true},
        {true, FILE_OF_ITS_OWN, AS_OUTPUT, true},
        {true, FILE_OF_ITS_OWN, A_PIPE, true},
        {true, CLOSED, APPENDED, true},
        /* files that the program has opened for itself */
        {true, CLOSED, SAME, false},
        {true, CLOSED, FILE_OF_ITS_OWN, false},
        {true, CLOSED, ITS_PIPE, false},
        {true, CLOSED, A_SOCKET, false},
        {true, FILE_OF_ITS_OWN, FILE_OF_ITS_OWN, false},
        {true, FILE_OF_ITS_OWN, ITS_PIPE, false},
        {true, FILE_OF_ITS_OWN, A_SOCKET, false},
        /* programs of ibx, not libraries */
        {false, CLOSED, FILE_OF_ITS_OWN, true},
        {false, FILE_OF_ITS_OWN, A_SOCKET, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (is_written(cases[i].library, cases[i].begun, cases[i].now) != cases[i].written)
            fail_msg("case %zu: a line is %swritten", i, cases[i].written ? "not " : "");
    }
}

static void test_line_is_one_write(void **state)
{
    char text[100] = "";
    (void)state;
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(FILE_OF_ITS_OWN);
    ibx_log(IBX_LOG_ERROR, "%s asks", "a\nibx: warning: b\x1b[2J");
    lseek(from, 0, SEEK_SET);
    const ssize_t n = read(from, text, sizeof(text) - 1);
    dup2(before, STDERR_FILENO);
    close(before);
    close(from);
    assert_true(n > 0);
    assert_string_equal(text, "ibx: error: a?ibx: warning: b?[2J asks\n");
}

/* Writes to `text` what a new process with this value of IBX_LOG logs at the level of details. */
static void detail(const char *name, char *text, size_t room)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        setenv("IBX_LOG", name, 1);
        ibx_log(IBX_LOG_INFO, "a detail");
        ibx_log(IBX_LOG_INFO, "a detail");
        _exit(0);
    }
    close(ends[1]);
    waitpid(child, NULL, 0);
    const ssize_t n = read(ends[0], text, room - 1);
    text[n > 0 ? n : 0] = 0;
    close(ends[0]);
}

/* Must run first: the level is read only once in a process. */
static void test_levels(void **state)
{
    char text[200];
    (void)state;
    detail("info", text, sizeof(text));
    assert_string_equal(text, "ibx: info: a detail\nibx: info: a detail\n");
    detail("warn", text, sizeof(text));
    assert_string_equal(text, "");
    detail("", text, sizeof(text));
    assert_string_equal(text, "");
    detail("INFO", text, sizeof(text));
    assert_string_equal(text, "ibx: warn: IBX_LOG=INFO is not one of error, warn, info and debug: "
                              "using warn\n");
}

static size_t lines_of(int file, char *text, size_t room)
{
    size_t lines = 0;
    const ssize_t n = pread(file, text, room - 1, 0);
    text[n > 0 ? n : 0] = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    return lines;
}

/* Clients can neither fill a server's log nor hide the server's own messages. Must run last: the
 * limit stays reached. */
static void test_limit_of_lines(void **state)
{
    static char text[1u << 20];
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(FILE_OF_ITS_OWN);
    size_t first = 0, next;
    (void)state;
    for (unsigned i = 0; i < 1000; i++)
        ibx_log(IBX_LOG_WARN, "a client");
    first = lines_of(from, text, sizeof(text));
    ibx_log_bound(10);
    for (unsigned i = 0; i < 10000; i++)
        ibx_log(IBX_LOG_WARN, "a client");
    next = lines_of(from, text, sizeof(text));
    ibx_log(IBX_LOG_ERROR, "of itself");
    const bool said = lines_of(from, text, sizeof(text)) == next + 1;
    for (unsigned tries = 0; tries < 100000000 && !strstr(text, "were left out"); tries++) {
        ibx_log(IBX_LOG_WARN, "one more");
        lines_of(from, text, sizeof(text));
    }
    dup2(before, STDERR_FILENO);
    close(before);
    close(from);
    assert_int_equal(first, 1000);
    assert_true(next >= 1050 && next < 1500);
    assert_true(said);
    assert_non_null(strstr(text, "were left out"));
}

/* Clients cannot fill the log by causing errors, such as the end of a process. */
static void test_limit_of_errors(void **state)
{
    static char text[1u << 20];
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(FILE_OF_ITS_OWN);
    (void)state;
    for (unsigned i = 0; i < 5000; i++)
        ibx_log(IBX_LOG_ERROR, "of a client");
    const size_t lines = lines_of(from, text, sizeof(text));
    dup2(before, STDERR_FILENO);
    close(before);
    close(from);
    assert_true(lines >= 50 && lines < 1000);
}

/* The limit also holds across the processes of one server. */
static void test_limit_across_processes(void **state)
{
    static char text[1u << 20];
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(FILE_OF_ITS_OWN);
    (void)state;
    ibx_log_bound_together();
    for (unsigned i = 0; i < 40; i++) {
        const pid_t child = fork();
        for (unsigned n = 0; !child && n < 200; n++)
            ibx_log(IBX_LOG_WARN, "a client");
        if (!child)
            _exit(0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    const size_t lines = lines_of(from, text, sizeof(text));
    dup2(before, STDERR_FILENO);
    close(before);
    close(from);
    assert_true(lines >= 50 && lines < 2000);
}

/* A reader that does not read blocks nobody. When it reads again, it learns that lines were
 * lost. */
static void test_reader_that_does_not_read(void **state)
{
    static char text[1u << 20], full[1u << 20];
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(A_PIPE);
    (void)state;
    while (write(STDERR_FILENO, full, 1) == 1)
        ;
    fcntl(STDERR_FILENO, F_SETFL, 0); /* a plain write(2) would block from now on */
    alarm(60);
    for (unsigned i = 0; i < 2; i++)
        ibx_log(IBX_LOG_ERROR, "nobody sees this");
    while (read(from, text, sizeof(text)) > 0)
        ;
    ibx_log(IBX_LOG_ERROR, "somebody does");
    const ssize_t n = read(from, text, sizeof(text) - 1);
    alarm(0);
    dup2(before, STDERR_FILENO);
    close(before);
    close(from);
    text[n < 0 ? 0 : n] = '\0';
    assert_string_equal(text, "ibx: warn: 2 lines were left out: nobody took them\n"
                              "ibx: error: somebody does\n");
}

/* Which signal ends the process: one that it had pending before it wrote, or none. */
static int ends_by(int signal_before, bool full)
{
    const pid_t child = fork();
    if (!child) {
        const struct rlimit little = {.rlim_cur = 3, .rlim_max = 3};
        sigset_t all, pending;
        close(put(full ? FILE_OF_ITS_OWN : A_PIPE));
        if (full && setrlimit(RLIMIT_FSIZE, &little))
            abort();
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        sigfillset(&all);
        if (signal_before) {
            sigprocmask(SIG_BLOCK, &all, NULL);
            raise(signal_before);
        }
        errno = ENOANO;
        for (int i = 0; i < 3; i++)
            ibx_log(IBX_LOG_ERROR, "a line");
        if (errno != ENOANO || sigpending(&pending))
            abort();
        if (sigismember(&pending, SIGPIPE) != (signal_before == SIGPIPE) ||
            sigismember(&pending, SIGXFSZ) != (signal_before == SIGXFSZ))
            abort();
        sigprocmask(SIG_UNBLOCK, &all, NULL);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void test_closed_pipe_and_full_file(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        assert_int_equal(ends_by(0, full), 0);
        /* the signal that was already pending is delivered */
        assert_int_equal(ends_by(SIGPIPE, full), SIGPIPE);
        assert_int_equal(ends_by(SIGXFSZ, full), SIGXFSZ);
    }
}

/* pthread_cancel(3) ends a thread after the line, not within it, where the thread may hold
 * locks. */
static void *log_cancelled(void *good)
{
    pthread_cancel(pthread_self());
    ibx_log(IBX_LOG_ERROR, "a line");
    *(bool *)good = true;
    pthread_testcancel();
    return NULL;
}

static void test_cancelled_thread_finishes_its_line(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (!child) {
        char text[100] = "";
        bool good = false;
        pthread_t thread;
        void *result = NULL;
        const int from = put(A_PIPE);
        if (pthread_create(&thread, NULL, log_cancelled, &good) || pthread_join(thread, &result))
            _exit(2);
        _exit(good && result == PTHREAD_CANCELED && read(from, text, sizeof(text)) > 0 ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_destinations_of_lines),
        cmocka_unit_test(test_line_is_one_write),
        cmocka_unit_test(test_limit_of_lines),
        cmocka_unit_test(test_limit_of_errors),
        cmocka_unit_test(test_limit_across_processes),
        cmocka_unit_test(test_reader_that_does_not_read),
        cmocka_unit_test(test_closed_pipe_and_full_file),
        cmocka_unit_test(test_cancelled_thread_finishes_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
