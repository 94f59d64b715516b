/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The guardian of a VM that is about to be moved. The tool tells it by single letters over a pipe:
 *
 *   B{...}\n  capabilities to put back     T  the migration is started
 *   C         committed                    R  released
 *
 * The end of the pipe means that the tool is gone, however it went.
 */
#include "migrate/source/vm.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_BYTES 8192
#define STAY_MS        60000 /* to reach QEMU's monitor and bring the VM back */
#define AGAIN_MS       100   /* between two tries to reach the monitor */

struct guardian {
    struct ibx_journal record;
    struct ibx_source_vm vm;
    const char *folder;
    bool committed, released;
    char line[LINE_MAX_BYTES];
    size_t length; /* of a line that has begun */
};

/* ---------------------------------------------------------------- the guardian's side */

static void heed_line(struct guardian *g)
{
    g->line[g->length] = 0;
    json_decref(g->vm.before);
    g->vm.before = json_loads(g->line + 1, 0, NULL);
    g->length = 0;
}

static void heed(struct guardian *g, char letter)
{
    if (g->length) {
        if (letter == '\n')
            heed_line(g);
        else if (g->length < sizeof(g->line) - 1)
            g->line[g->length++] = letter;
        return;
    }
    if (letter == 'B')
        g->line[g->length++] = letter;
    g->vm.touched |= letter == 'T';
    g->committed |= letter == 'C';
    g->released |= letter == 'R';
}

/* QEMU serves one monitor at a time, and may take a moment to see that the tool's is gone. */
static int reach(struct guardian *g, struct ibx_qmp **qmp, uint64_t deadline, struct ibx_error *err)
{
    int rc;
    while ((rc = ibx_qmp_connect(g->record.qmp, deadline, qmp, err)) && ibx_now_ns() < deadline &&
           ibx_process_started(g->record.pid) == g->record.pid_started)
        usleep(AGAIN_MS * 1000);
    return rc;
}

static void bring_back(struct guardian *g)
{
    const uint64_t deadline = ibx_deadline_in_ms(STAY_MS);
    struct ibx_error err = {0};
    struct ibx_qmp *qmp = NULL;
    int rc = reach(g, &qmp, deadline, &err);
    if (!rc)
        rc = ibx_vm_stay(qmp, &g->vm, deadline, &err);
    if (!rc) {
        g->record.state = IBX_JOURNAL_KEPT;
        rc = ibx_journal_write(g->folder, &g->record, &err);
    }
    if (rc)
        ibx_log(IBX_LOG_ERROR, "ib-migrate was killed and VM %s could not be continued here: %s",
                g->record.name, err.message);
    else
        ibx_log(IBX_LOG_WARN, "ib-migrate was killed before the commit: VM %s goes on here",
                g->record.name);
    ibx_qmp_close(qmp);
}

/* Above all the monitor's: as long as somebody has it, QEMU answers no one else. */
static void close_others(int a, int b)
{
    const unsigned low = (unsigned)(a < b ? a : b), high = (unsigned)(a < b ? b : a);
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    if (low > 3)
        close_range(3, low - 1, 0);
    if (high > low + 1)
        close_range(low + 1, high - 1, 0);
    close_range(high + 1, ~0u, 0);
}

static void guardian_main(struct guardian *g, int fd)
{
    char letters[512];
    ssize_t n;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "ib-migrate-keep");
    while ((n = read(fd, letters, sizeof(letters))) > 0 || (n < 0 && errno == EINTR))
        for (ssize_t i = 0; i < n; i++)
            heed(g, letters[i]);
    if (!g->committed && !g->released)
        bring_back(g);
    _exit(0);
}

/* ---------------------------------------------------------------- the tool's side */

int ibx_watchdog_start(struct ibx_watchdog *guard, const char *folder,
                       const struct ibx_journal *record, const struct ibx_source_vm *vm,
                       int lock_fd, struct ibx_error *err)
{
    int pair[2];
    *guard = (struct ibx_watchdog){.fd = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
        return ibx_error_set(err, -errno, "no pipe to a guardian: %s", strerror(errno));
    struct guardian *g = calloc(1, sizeof(*g));
    if (g)
        *g = (struct guardian){.record = *record, .vm = *vm, .folder = folder};
    pid_t pid = g ? fork() : -1;
    if (pid == 0) {
        close_others(pair[0], lock_fd);
        guardian_main(g, pair[0]);
    }
    free(g);
    close(pair[0]);
    if (pid < 0) {
        close(pair[1]);
        return ibx_error_set(err, -errno, "no process for a guardian: %s", strerror(errno));
    }
    *guard = (struct ibx_watchdog){.pid = pid, .fd = pair[1]};
    return 0;
}

static int tell(struct ibx_watchdog *guard, const char *bytes, size_t length)
{
    ssize_t n = send(guard->fd, bytes, length, MSG_NOSIGNAL);
    return n == (ssize_t)length ? 0 : n < 0 ? -errno : -EPIPE;
}

int ibx_watchdog_capabilities(struct ibx_watchdog *guard, json_t *before)
{
    char line[LINE_MAX_BYTES];
    size_t length = json_dumpb(before, line + 1, sizeof(line) - 2, JSON_COMPACT);
    if (!length || length > sizeof(line) - 2)
        return -EMSGSIZE;
    line[0] = 'B';
    line[length + 1] = '\n';
    return tell(guard, line, length + 2);
}

int ibx_watchdog_touched(struct ibx_watchdog *guard)
{
    return tell(guard, "T", 1);
}

int ibx_watchdog_commit(struct ibx_watchdog *guard)
{
    return tell(guard, "C", 1);
}

void ibx_watchdog_release(struct ibx_watchdog *guard)
{
    if (guard->fd < 0)
        return;
    tell(guard, "R", 1);
    close(guard->fd);
    guard->fd = -1;
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void ibx_watchdog_leave(struct ibx_watchdog *guard)
{
    if (guard->fd >= 0)
        close(guard->fd);
    guard->fd = -1;
}
