/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/process.h"
#include "tests/scenes/patience.h"

#include "common/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_MS patience_ms(60000)

void process_start(struct process *p, char *const argv[], const char *const environment[])
{
    int ends[2];
    memset(p, 0, sizeof(*p));
    assert_int_equal(pipe(ends), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid) {
        for (; *environment; environment++)
            putenv((char *)*environment);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv(argv[0], argv);
        _exit(127);
    }
    close(ends[1]);
    p->out = ends[0];
}

/* Takes more text: 1, or 0 at its end, or -1 when the time is over. */
static int take(struct process *p, uint64_t deadline)
{
    struct pollfd wait = {.fd = p->out, .events = POLLIN};
    int rc = poll(&wait, 1, ibx_ms_until(deadline));
    if (rc < 0 && errno == EINTR)
        return 1;
    if (rc <= 0)
        return -1;
    assert_true(p->length < sizeof(p->text) - 1);
    ssize_t n = read(p->out, p->text + p->length, sizeof(p->text) - 1 - p->length);
    if (n <= 0)
        return 0;
    p->length += (size_t)n;
    p->text[p->length] = '\0';
    return 1;
}

static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    while ((text = strstr(text, part))) {
        n++;
        text++;
    }
    return n;
}

void process_expect(struct process *p, const char *text, unsigned times)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (count(p->text, text) < times) {
        int rc = take(p, deadline);
        if (rc <= 0)
            fail_msg("%s without \"%s\" %u times, but with:\n%s", rc ? "time is over" : "ended",
                     text, times, p->text);
    }
}

int process_wait(struct process *p)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    int rc, status;
    while ((rc = take(p, deadline)) > 0)
        ;
    if (rc < 0) {
        process_kill(p);
        fail_msg("still running, after:\n%s", p->text);
    }
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    close(p->out);
    p->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void process_kill(struct process *p)
{
    if (!p->pid)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close(p->out);
    p->pid = 0;
}

uint16_t process_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

int process_full_listener(const char *path, int *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    *place = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(connect(*place, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}
