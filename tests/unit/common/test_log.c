/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where log lines of a library go: not into a file that a program has opened in place of its
 * standard error. Each case is a process of its own. */
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
/* Behind the five above. */
#include <cmocka.h>

enum place { SAME, CLOSED, FILE_OF_ITS_OWN, APPENDED, AS_OUTPUT, A_PIPE, ITS_PIPE, A_SOCKET };

/* What comes to be standard error; where that can be read. -1: nowhere. */
static int put(enum place place)
{
    int ends[2] = {-1, -1};
    const int made = memfd_create("log", MFD_CLOEXEC);
    const int file = fcntl(made, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* it may be that itself */
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

/* Whether a line is written. `begun`: what standard error is when the library is loaded. */
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

static void test_where_lines_go(void **state)
{
    static const struct {
        bool library;
        enum place begun, now;
        bool written;
    } cases[] = {
        /* its standard error, or what is meant to take its place */
        {true, FILE_OF_ITS_OWN, SAME, true},
        {true, FILE_OF_ITS_OWN, APPENDED, true},
        {true, FILE_OF_ITS_OWN, AS_OUTPUT, true},
        {true, FILE_OF_ITS_OWN, A_PIPE, true},
        {true, CLOSED, APPENDED, true},
        /* files of the program */
        {true, CLOSED, SAME, false},
        {true, CLOSED, FILE_OF_ITS_OWN, false},
        {true, CLOSED, ITS_PIPE, false},
        {true, CLOSED, A_SOCKET, false},
        {true, FILE_OF_ITS_OWN, FILE_OF_ITS_OWN, false},
        {true, FILE_OF_ITS_OWN, ITS_PIPE, false},
        {true, FILE_OF_ITS_OWN, A_SOCKET, false},
        /* programs of ours */
        {false, CLOSED, FILE_OF_ITS_OWN, true},
        {false, FILE_OF_ITS_OWN, A_SOCKET, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (is_written(cases[i].library, cases[i].begun, cases[i].now) != cases[i].written)
            fail_msg("case %zu: a line is %swritten", i, cases[i].written ? "not " : "");
    }
}

static void test_a_line_is_one(void **state)
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

/* What a process with this IBX_LOG writes for a line of details; it has not read the variable
 * before. */
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

/* First: the level is read once. */
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

/* Clients do not fill a server's log, nor hide what it says of itself. Last: that stays so. */
static void test_not_too_many(void **state)
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

/* Clients do not fill the log by errors, either, such as the end of a process that each of them
 * causes. */
static void test_not_too_many_errors(void **state)
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

/* ... nor by coming to one process after the other. */
static void test_not_too_many_of_all(void **state)
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

/* Nobody waits for a reader that takes nothing, and it is told when it does again. */
static void test_a_reader_that_takes_nothing(void **state)
{
    static char text[1u << 20], full[1u << 20];
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), from = put(A_PIPE);
    (void)state;
    while (write(STDERR_FILENO, full, 1) == 1)
        ;
    fcntl(STDERR_FILENO, F_SETFL, 0); /* whoever writes to it now waits */
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

/* The process's end by a signal that it had before it wrote, or none. */
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

static void test_nobody_reads(void **state)
{
    (void)state;
    for (int full = 0; full < 2; full++) {
        assert_int_equal(ends_by(0, full), 0);
        assert_int_equal(ends_by(SIGPIPE, full), SIGPIPE); /* the process's own stays */
        assert_int_equal(ends_by(SIGXFSZ, full), SIGXFSZ);
    }
}

/* pthread_cancel(3) ends a thread behind the line, not in it: it may have locks there. */
static void *log_cancelled(void *good)
{
    pthread_cancel(pthread_self());
    ibx_log(IBX_LOG_ERROR, "a line");
    *(bool *)good = true;
    pthread_testcancel();
    return NULL;
}

static void test_of_a_cancelled_thread(void **state)
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
        cmocka_unit_test(test_where_lines_go),
        cmocka_unit_test(test_a_line_is_one),
        cmocka_unit_test(test_not_too_many),
        cmocka_unit_test(test_not_too_many_errors),
        cmocka_unit_test(test_not_too_many_of_all),
        cmocka_unit_test(test_a_reader_that_takes_nothing),
        cmocka_unit_test(test_nobody_reads),
        cmocka_unit_test(test_of_a_cancelled_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
