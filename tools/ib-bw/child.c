/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process of its own for the other end, so that two processes talk as they do in GVirtuS. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Signals of a terminal go to both processes; only the parent acts on them. */
static _Noreturn void run_child(void (*child_main)(void *argument, FILE *out), void *argument,
                                pid_t parent, int fd)
{
    FILE *out = fdopen(fd, "w");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    if (out && getppid() == parent)
        child_main(argument, out);
    _exit(EXIT_FAILURE);
}

/* Reads the child's lines until it is ready. */
static int read_lines(const char *what, FILE *in,
                      void (*learn)(void *argument, const char *key, const char *value),
                      void *argument, struct ibx_error *err)
{
    char line[IBX_ERROR_MAX + 16];
    while (fgets(line, sizeof(line), in)) {
        line[strcspn(line, "\n")] = '\0';
        char *value = line + strcspn(line, " ");
        if (*value)
            *value++ = '\0';
        if (!strcmp(line, "ready"))
            return 0;
        if (!strcmp(line, "error"))
            return ibx_error_set(err, -EIO, "%s: %.900s", what, value);
        learn(argument, line, value);
    }
    return ibx_error_set(err, -EIO, "%s died at its start", what);
}

int ibx_bw_child_start(const char *what, void (*child_main)(void *argument, FILE *out),
                       void (*learn)(void *argument, const char *key, const char *value),
                       void *argument, pid_t *pid, struct ibx_error *err)
{
    int fds[2];
    const pid_t parent = getpid();
    *pid = 0;
    if (pipe2(fds, O_CLOEXEC))
        return ibx_error_set(err, -errno, "no pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        run_child(child_main, argument, parent, fds[1]);
    FILE *in = child > 0 ? fdopen(fds[0], "r") : NULL;
    int code = errno;
    close(fds[1]);
    if (!in) {
        close(fds[0]);
        *pid = child > 0 ? child : 0;
        return ibx_error_set(err, -code, "no process for %s: %s", what, strerror(code));
    }
    *pid = child;
    int rc = read_lines(what, in, learn, argument, err);
    fclose(in);
    return rc;
}

void ibx_bw_child_stop(pid_t *pid)
{
    if (!*pid)
        return;
    kill(*pid, SIGKILL);
    while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
        ;
    *pid = 0;
}
