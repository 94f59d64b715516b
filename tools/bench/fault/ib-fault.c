/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-fault: measures page faults that are served over a network, see fault.h. */
#include "tools/bench/fault/fault.h"
#include "tools/options.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define SERVER_MS      2000 /* in which the server prints its reason and ends */
#define SERVER_POLL_MS 10

/* Ends the server after a failure of this end. If the cause is at the serving end, it is given the
 * time to print it. */
static void end_server(pid_t child)
{
    const uint64_t deadline = ibx_deadline_in_ms(SERVER_MS);
    siginfo_t info = {0};
    while (!waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) && !info.si_pid &&
           ibx_now_ns() < deadline)
        poll(NULL, 0, SERVER_POLL_MS);
    kill(child, SIGKILL);
}

/* Runs both ends. The listener is open before the child is forked, which connects to it. */
static int run_self(struct bench_args *args, struct ibx_listener *listener)
{
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child < 0) {
        fprintf(stderr, "ib-fault: no process to serve memory: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        args->options.domain = NULL; /* the parent's */
        _exit(getppid() == parent ? ibx_bench_serve(args, ibx_listener_uri(listener))
                                  : EXIT_FAILURE);
    }
    int status = 0, rc = ibx_bench_fetch(args, listener, child);
    ibx_listener_close(listener);
    if (rc)
        end_server(child);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return rc ? rc : status ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int run_fetch(struct bench_args *args)
{
    struct ibx_error err = {0};
    struct ibx_listener *listener;
    bool self = args->command == BENCH_SELF;
    if (ibx_bench_nice_use(args, &err) ||
        (self && ibx_bench_memory_check(2 * args->size, args->page, &err)) ||
        (args->minor && ibx_domain_create(&args->options.domain, &err)) ||
        ibx_listen(args->uri, &args->options, &listener, &err))
        return ibx_tool_fail(&err);
    if (self)
        return run_self(args, listener);
    fprintf(stderr, "ib-fault: waiting at %s\n", ibx_listener_uri(listener));
    int rc = ibx_bench_fetch(args, listener, 0);
    ibx_listener_close(listener);
    return rc;
}

int main(int argc, char **argv)
{
    struct bench_args args;
    struct ibx_error err = {0};
    signal(SIGPIPE, SIG_IGN);
    ibx_bench_args_parse(argc, argv, &args);
    if (args.command != BENCH_SERVE) {
        int rc = run_fetch(&args);
        ibx_domain_release(args.options.domain);
        return rc;
    }
    if (ibx_bench_nice_use(&args, &err) || ibx_bench_memory_check(args.size, args.page, &err))
        return ibx_tool_fail(&err);
    return ibx_bench_serve(&args, args.uri);
}
