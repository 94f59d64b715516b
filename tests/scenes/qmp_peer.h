/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A scripted peer of the QMP client: a thread at the other end of a socketpair. */
#ifndef IBX_TESTS_SCENES_QMP_PEER_H
#define IBX_TESTS_SCENES_QMP_PEER_H

#include "migrate/qemu/qemu.h"
#include "tests/scenes/patience.h"
#include "tests/scenes/unit.h"

#include "common/clock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING                                                                                   \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7}, "             \
    "\"package\": \"\"}, \"capabilities\": [\"oob\"]}}\r\n"
#define READY(id) "{\"return\": {}, \"id\": " #id "}\r\n"
#define GREETED                                                                                    \
    {NULL, GREETING, 0},                                                                           \
    {                                                                                              \
        "qmp_capabilities", READY(1), 0                                                            \
    }
/* What the peer does after the greeting and the first command. */
#define SCRIPT(...) ((const struct step[]){GREETED, __VA_ARGS__, {0}})
#define GENEROUS    patience_ms(20000) /* ms: for what is to come */
#define SHORT       30                 /* ms: for what is never to come */

/* What the peer does in turn: waits for a line that holds `expect` (NULL: does not wait), then
 * sends `answer` `times` times (0 means once). A step without both ends the script: hang up. Ids
 * are written as if the first command's were 1, those of other clients with a blank: "id" : 3. */
struct step {
    const char *expect, *answer;
    unsigned times;
};

struct peer {
    const struct step *steps;
    int fd;
    int received_fd;
    bool deaf;
    json_int_t before; /* the first command's id */
    char wrong[256];
    pthread_t thread;
};

static struct ibx_error error;
static struct peer peer;
static struct ibx_qmp *qmp; /* attached to it */
static bool deaf;           /* the next peer neither reads nor hangs up when its script is over */

/* One line, a byte at a time: commands are short. Keeps a descriptor that comes along. */
static inline size_t read_line(struct peer *p, char *line, size_t size)
{
    size_t n = 0;
    while (n + 1 < size) {
        struct iovec io = {line + n, 1};
        char control[CMSG_SPACE(sizeof(int))];
        struct msghdr m = {.msg_iov = &io,
                           .msg_iovlen = 1,
                           .msg_control = control,
                           .msg_controllen = sizeof(control)};
        if (recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC) != 1)
            break;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c && c->cmsg_type == SCM_RIGHTS)
            memcpy(&p->received_fd, CMSG_DATA(c), sizeof(int));
        if (line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
    return n;
}

/* As if the ids counted from 1. */
static inline void from_one(struct peer *p, char *line, size_t size)
{
    json_t *command = json_loads(line, 0, NULL);
    const json_int_t id = json_integer_value(json_object_get(command, "id"));
    json_decref(command);
    char *at = strstr(line, "\"id\":");
    if (!at || !id)
        return;
    p->before = p->before ? p->before : id - 1;
    snprintf(at, size - (size_t)(at - line), "\"id\":%lld}", (long long)(id - p->before));
}

/* Sends a text with ids that count from 1. */
static inline bool tell(const struct peer *p, const char *text)
{
    for (const char *id; (id = strstr(text, "\"id\": ")); text = id) {
        char *end;
        const long long number = strtoll(id + 6, &end, 10) + p->before;
        if (send(p->fd, text, (size_t)(id - text), MSG_NOSIGNAL) < 0 ||
            dprintf(p->fd, "\"id\": %lld", number) < 0)
            return false;
        id = end;
    }
    return send(p->fd, text, strlen(text), MSG_NOSIGNAL) >= 0;
}

static inline void *peer_run(void *arg)
{
    struct peer *p = arg;
    for (const struct step *s = p->steps; s->expect || s->answer; s++) {
        char line[4096];
        const bool got = s->expect && read_line(p, line, sizeof(line));
        if (got)
            from_one(p, line, sizeof(line));
        if (s->expect && (!got || !strstr(line, s->expect))) {
            snprintf(p->wrong, sizeof(p->wrong), "expected %.60s, got %.120s", s->expect, line);
            break;
        }
        for (unsigned i = 0; s->answer && i < (s->times ? s->times : 1); i++)
            if (!tell(p, s->answer))
                break;
    }
    if (p->deaf)
        return NULL;
    shutdown(p->fd, SHUT_WR);
    char rest[4096];
    while (read(p->fd, rest, sizeof(rest)) > 0)
        ;
    return NULL;
}

static inline int attach(const struct step *steps, uint64_t ms)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    memset(&error, 0, sizeof(error));
    peer = (struct peer){.steps = steps, .fd = pair[1], .received_fd = -1, .deaf = deaf};
    assert_int_equal(pthread_create(&peer.thread, NULL, peer_run, &peer), 0);
    return ibx_qmp_attach(pair[0], ibx_deadline_in_ms(ms), &qmp, &error);
}

static inline void attached(const struct step *steps)
{
    if (attach(steps, GENEROUS))
        fail_msg("%s", error.message);
}

static inline void done(void)
{
    ibx_qmp_close(qmp);
    qmp = NULL;
    pthread_join(peer.thread, NULL);
    close(peer.fd);
    if (peer.wrong[0])
        fail_msg("%s", peer.wrong);
}

static inline int run(const char *command, json_t **result, uint64_t ms)
{
    memset(&error, 0, sizeof(error));
    return ibx_qmp_execute(qmp, command, NULL, result, ibx_deadline_in_ms(ms), &error);
}

static inline void says(int rc, int code, const char *words)
{
    if (rc != code || error.code != code || !strstr(error.message, words))
        fail_msg("%d (wanted %d) \"%s\" does not say \"%s\"", rc, code, error.message, words);
}

#endif
