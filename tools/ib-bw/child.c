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

/* Runs the child. It ignores a terminal's signals, which go to both processes: the parent handles
 * them. */
static _Noreturn void run_child(void (*child_main)(FILE *to_parent), pid_t parent, int fd)
{
    FILE *to_parent = fdopen(fd, "w");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    if (to_parent && getppid() == parent)
        child_main(to_parent);
    _exit(EXIT_FAILURE);
}

void ibx_bw_child_report(FILE *to_parent, const struct ibx_error *failure, const void *report,
                         size_t size)
{
    fwrite(failure, sizeof(*failure), 1, to_parent);
    fwrite(report, size, 1, to_parent);
    fclose(to_parent);
}

int ibx_bw_child_start(const char *what, void (*child_main)(FILE *to_parent), void *report,
                       size_t size, pid_t *pid, struct ibx_error *err)
{
    int fds[2];
    const pid_t parent = getpid();
    struct ibx_error failure = {0};
    if (pipe2(fds, O_CLOEXEC))
        return ibx_error_set(err, -errno, "no pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        run_child(child_main, parent, fds[1]);
    FILE *in = child > 0 ? fdopen(fds[0], "r") : NULL;
    int code = errno;
    *pid = child > 0 ? child : 0;
    close(fds[1]);
    if (!in) {
        close(fds[0]);
        return ibx_error_set(err, -code, "no process for %s: %s", what, strerror(code));
    }
    bool whole = fread(&failure, sizeof(failure), 1, in) == 1 && fread(report, size, 1, in) == 1;
    fclose(in);
    if (!whole)
        return ibx_error_set(err, -EIO, "%s died at its start", what);
    return failure.message[0] ? ibx_error_set(err, -EIO, "%s: %s", what, failure.message) : 0;
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
