/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/back_end_processes/supervisor.h"

#include "frontend-glue/back_end_processes/client_processes.h"
#include "frontend-glue/session/hooks.h"

#include "common/clock.h"
#include "common/log.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
#define OWN_THREADS 2 /* the sanitizer has one in each process */
#else
#define OWN_THREADS 1
#endif
#define BEGIN_AGAIN   75     /* exit status of a process that asks for the next one */
#define LONG_MS       60000u /* a process that has served for so long did not fail at once */
#define PAUSE_MOST_MS 32000u /* the longest pause between two that did */

static bool supervised;              /* this process serves; set before it has another thread */
static struct sigaction of_children; /* GVirtuS's */

bool ibx_supervised(void)
{
    return supervised;
}

void ibx_supervised_begin_again(void)
{
    _exit(BEGIN_AGAIN);
}

/* ------------------------------------------------------------------ whether that can be */

typedef bool look_at_entry(const char *path);

/* The number of entries of the folder for which `is_such` is true. */
static unsigned count(const char *folder, look_at_entry *is_such)
{
    unsigned n = 0;
    char path[300];
    DIR *all = opendir(folder);
    for (const struct dirent *e = all ? readdir(all) : NULL; e; e = readdir(all)) {
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        n += e->d_name[0] != '.' && is_such(path);
    }
    if (all)
        closedir(all);
    return n;
}

static bool is_any(const char *path)
{
    (void)path;
    return true;
}

static bool is_gpu(const char *path)
{
    char to[64] = "";
    return readlink(path, to, sizeof(to) - 1) > 0 && !strncmp(to, "/dev/nvidia", 11);
}

/* Why the process cannot be forked: neither threads nor a GPU's state survive that. NULL: it can.
 */
static const char *obstacle(void)
{
    if (count("/proc/self/task", is_any) > OWN_THREADS)
        return "it has other threads already";
    if (count("/proc/self/fd", is_gpu))
        return "it uses a GPU already";
    return NULL;
}

/* -------------------------------------------------------------------------- the supervisor */

static bool is_fault(int status)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL,  SIGFPE,
                                 SIGABRT, SIGSYS, SIGTRAP, SIGKILL};
    if (WIFEXITED(status))
        return WEXITSTATUS(status) == BEGIN_AGAIN;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        if (WTERMSIG(status) == faults[i])
            return true;
    }
    return false;
}

static _Noreturn void end_like(int status)
{
    if (WIFEXITED(status))
        _exit(WEXITSTATUS(status));
    signal(WTERMSIG(status), SIG_DFL);
    raise(WTERMSIG(status));
    _exit(128 + WTERMSIG(status));
}

static void tell(pid_t ended, int status, unsigned pause_ms)
{
    char how[100] = "has given up a broken GPU context";
    if (WIFSIGNALED(status))
        snprintf(how, sizeof(how), "has ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    ibx_log(IBX_LOG_ERROR,
            "process %d of the back end %s: another one replaces it %s; what its clients had there "
            "is lost",
            (int)ended, how,
            pause_ms ? "after a pause, since the last one soon did so, too" : "now");
}

/* Waits for the child; returns its exit status. */
static int wait_for(pid_t child)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR)
            _exit(EXIT_FAILURE);
    }
    return status;
}

pid_t ibx_supervised_fork(void)
{
    const pid_t parent = getpid(), child = fork();
    if (child)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* the supervisor ended before prctl(2) */
        _exit(EXIT_FAILURE);
    sigaction(SIGCHLD, &of_children, NULL);
    return 0;
}

/* GVirtuS ignores SIGCHLD, so that nobody could wait for children. */
static void expect_children(void)
{
    const struct sigaction deliver = {.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &deliver, &of_children);
}

static void supervise_processes(struct ibx_session *s)
{
    expect_children();
    if (ibx_client_processes_serve(s)) {
        ibx_log(IBX_LOG_ERROR, "no memory to count what the clients' programs hold");
        _exit(EXIT_FAILURE);
    }
}

static void without_processes(const struct ibx_processes *wanted, const char *why)
{
    if (!wanted->required) {
        ibx_log(
            IBX_LOG_WARN,
            "one process serves all clients, whose kernels reach each other's memory, since %s: "
            "correct that, or take rdma.processes : one",
            why);
        return;
    }
    ibx_log(IBX_LOG_ERROR,
            "rdma.processes : %s needs a back end that can fork, and %s: correct that, or take "
            "rdma.processes : one",
            wanted->each == IBX_PROCESSES_TENANT ? "tenant" : "program", why);
    _exit(EXIT_FAILURE);
}

void ibx_supervise(struct ibx_session *s)
{
    const char *why = obstacle();
    const pid_t supervisor = getpid();
    const struct ibx_processes *wanted = ibx_session_listening(s).processes;
    if (why && wanted->each != IBX_PROCESSES_ONE)
        without_processes(wanted, why);
    if (!why && wanted->each != IBX_PROCESSES_ONE) {
        supervise_processes(s);
        return;
    }
    if (why) {
        ibx_log(IBX_LOG_INFO, "process %d serves, and does not begin again after a fault: %s",
                (int)supervisor, why);
        return;
    }
    expect_children();
    for (unsigned pause_ms = 0;;) {
        const uint64_t began = ibx_now_ns();
        const pid_t child = ibx_supervised_fork();
        if (!child) {
            supervised = true;
            return;
        }
        if (child < 0) { /* serves without a supervisor */
            ibx_log(IBX_LOG_WARN, "process %d serves, and does not begin again after a fault: %s",
                    (int)supervisor, strerror(errno));
            sigaction(SIGCHLD, &of_children, NULL);
            return;
        }
        const int status = wait_for(child);
        if (!is_fault(status))
            end_like(status);
        if (ibx_now_ns() - began >= LONG_MS * (uint64_t)IBX_NS_PER_MS)
            pause_ms = 0;
        tell(child, status, pause_ms);
        poll(NULL, 0, (int)pause_ms);
        pause_ms = pause_ms ? 2 * pause_ms : 1000;
        pause_ms = pause_ms < PAUSE_MOST_MS ? pause_ms : PAUSE_MOST_MS;
    }
}
