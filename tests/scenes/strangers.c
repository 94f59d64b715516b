/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/strangers.h"

#include "common/clock.h"
#include "tests/scenes/unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define CROWD   2000u
#define FLOOD   1500u
#define TICK_MS 5u /* one new one each */

enum manner { SILENT, HALF_A_HELLO, DRIP, NO_PROOF, MANNERS };

struct stranger {
    int fd;
    enum manner manner;
    size_t sent;
};

static struct stranger crowd[CROWD];

/* Every fourth comes from the first address, which is also that of those who have the key. */
static void come(struct stranger *s, const struct strangers *of, int epoll_fd)
{
    static unsigned number;
    number++;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(of->port)};
    struct sockaddr_in from = {.sin_family = AF_INET};
    inet_pton(AF_INET, of->to, &to.sin_addr);
    inet_pton(AF_INET, of->from, &from.sin_addr);
    const uint32_t next = number % 4 ? number % of->addresses : 0;
    from.sin_addr.s_addr = htonl(ntohl(from.sin_addr.s_addr) + next);
    *s = (struct stranger){.manner = (enum manner)(number / 4 % MANNERS)};
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0 || bind(s->fd, (struct sockaddr *)&from, sizeof(from)) ||
        (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) && errno != EINPROGRESS)) {
        close(s->fd);
        s->fd = -1;
        return;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = s};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, s->fd, &event);
}

static void say(struct stranger *s, const struct strangers *of)
{
    const size_t until = s->manner == SILENT          ? 0
                         : s->manner == HALF_A_HELLO  ? of->hello_length / 2
                         : s->manner == NO_PROOF      ? of->hello_length
                         : s->sent < of->hello_length ? s->sent + 1
                                                      : s->sent;
    if (s->fd < 0 || until <= s->sent)
        return;
    ssize_t n = send(s->fd, of->hello + s->sent, until - s->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0)
        s->sent += (size_t)n;
}

/* A network namespace of ip-netns(8), or NULL. */
static bool enter(const char *namespace)
{
    char path[96];
    if (!namespace)
        return true;
    snprintf(path, sizeof(path), "/run/netns/%s", namespace);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && !setns(fd, CLONE_NEWNET) && !close(fd);
}

/* In a process of its own, until it is killed; a byte in `ready` once all have come. */
static void crowd_main(const struct strangers *of, int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct rlimit limit = {.rlim_cur = CROWD + 100, .rlim_max = CROWD + 100};
    struct epoll_event events[64];
    struct itimerspec tick = {.it_interval.tv_nsec = TICK_MS * IBX_NS_PER_MS,
                              .it_value.tv_nsec = TICK_MS * IBX_NS_PER_MS};
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct epoll_event ticks = {.events = EPOLLIN, .data.ptr = NULL};
    if (setrlimit(RLIMIT_NOFILE, &limit) || timerfd_settime(timer, 0, &tick, NULL) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer, &ticks) || !enter(of->namespace))
        _exit(1);
    for (unsigned i = 0; i < CROWD; i++)
        come(&crowd[i], of, epoll_fd);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (unsigned next = 0;;) {
        int n = epoll_wait(epoll_fd, events, 64, -1);
        for (int i = 0; i < n; i++) {
            struct stranger *s = events[i].data.ptr;
            uint64_t times = 0;
            if (s) {
                say(s, of);
                continue;
            }
            if (read(timer, &times, sizeof(times)) < 0)
                _exit(1);
            for (; times; times--, next++) {
                /* The oldest one goes, and another one comes; one more byte of each that drips. */
                struct stranger *old = &crowd[next % CROWD];
                if (old->fd >= 0)
                    close(old->fd);
                come(old, of, epoll_fd);
                if (next % (1000 / TICK_MS) == 0)
                    for (unsigned j = 0; j < CROWD; j++)
                        if (crowd[j].manner == DRIP)
                            say(&crowd[j], of);
            }
        }
    }
}

static void flood_one(struct stranger *s, const struct strangers *of, int epoll_fd, uint32_t events)
{
    uint8_t scrap[4096];
    if (events & EPOLLOUT && !s->sent)
        s->sent = send(s->fd, of->hello, of->hello_length, MSG_NOSIGNAL) > 0;
    ssize_t n = events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)
                    ? recv(s->fd, scrap, sizeof(scrap), 0)
                    : -2;
    if (n > 0 && s->sent++ == 1)
        n = send(s->fd, of->proof, of->proof_length, MSG_NOSIGNAL);
    if (n == -2 || n > 0 || (n < 0 && errno == EAGAIN))
        return;
    close(s->fd);
    come(s, of, epoll_fd);
    s->sent = 0;
}

/* In a process of its own, until it is killed. */
static void flood_main(const struct strangers *of, int ready)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct epoll_event events[64];
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0 || !enter(of->namespace))
        _exit(1);
    for (unsigned i = 0; i < FLOOD; i++)
        come(&crowd[i], of, epoll_fd);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 64, 10);
        for (int i = 0; i < n; i++)
            flood_one(events[i].data.ptr, of, epoll_fd, events[i].events);
        for (unsigned i = 0; n <= 0 && i < FLOOD; i++)
            if (crowd[i].fd < 0)
                come(&crowd[i], of, epoll_fd);
    }
}

static pid_t begin(const struct strangers *of, void (*main)(const struct strangers *, int))
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child)
        main(of, ready[1]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

pid_t strangers_begin(const struct strangers *of)
{
    return begin(of, crowd_main);
}

pid_t strangers_flood(const struct strangers *of)
{
    return begin(of, flood_main);
}

void strangers_end(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
