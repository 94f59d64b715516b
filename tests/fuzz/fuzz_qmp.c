/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What arrives over a QMP socket. The first four bytes say in which pieces; the rest is what the
 * peer sends, whatever it is asked. The program is linked with --wrap: these functions replace
 * those of the socket, of the wait for it, and of the random number with which ids start. */
#include "migrate/qemu/qemu.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define HEAD  4u
#define NEVER UINT64_MAX

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *head, *text, *at, *end;
static unsigned pieces;
static bool pause; /* between two pieces nothing is there */

ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
int __wrap_ibx_thread_poll(struct pollfd *fds, nfds_t count, uint64_t wait_ns, uint64_t busy);
ssize_t __wrap_getrandom(void *buffer, size_t size, unsigned flags);
ssize_t __real_getrandom(void *buffer, size_t size, unsigned flags);

ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags)
{
    (void)fd;
    (void)flags;
    pause = !pause && pieces;
    if (pause) {
        errno = EAGAIN;
        return -1;
    }
    const size_t piece = head[pieces++ % HEAD] ? head[(pieces - 1) % HEAD] : SIZE_MAX;
    size_t n = (size_t)(end - at) < piece ? (size_t)(end - at) : piece;
    n = n < size ? n : size;
    memcpy(buffer, at, n);
    at += n;
    return (ssize_t)n; /* 0: it has closed the socket */
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    (void)fd;
    (void)flags;
    return (ssize_t)message->msg_iov[0].iov_len;
}

int __wrap_ibx_thread_poll(struct pollfd *fds, nfds_t count, uint64_t wait_ns, uint64_t busy)
{
    (void)fds;
    (void)count;
    (void)wait_ns;
    (void)busy;
    return 1;
}

ssize_t __wrap_getrandom(void *buffer, size_t size, unsigned flags)
{
    if (flags != GRND_NONBLOCK)
        return __real_getrandom(buffer, size, flags);
    memset(buffer, 0, size);
    return (ssize_t)size;
}

/* Whether a whole line of the input is an object that has this value as `name`, or is the value
 * itself. */
static bool is_said(const json_t *value, const char *name)
{
    bool said = false;
    const uint8_t *stop;
    for (const uint8_t *line = text; !said && line < end; line = stop + 1) {
        stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop)
            break;
        json_t *whole = json_loadb((const char *)line, (size_t)(stop - line),
                                   JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, NULL);
        json_t *as_is =
            json_loadb((const char *)line, (size_t)(stop - line), JSON_REJECT_DUPLICATES, NULL);
        const json_t *both[] = {whole, as_is};
        for (unsigned i = 0; i < 2; i++)
            said |= json_is_object(both[i]) &&
                    json_equal(name ? json_object_get(both[i], name) : both[i], value);
        json_decref(whole);
        json_decref(as_is);
    }
    return said;
}

static void check_error(int rc, const struct ibx_error *err)
{
    require(rc < 0 && rc == err->code && err->message[0] && !strpbrk(err->message, "\x1b\n\r"));
}

static void ask(struct ibx_qmp *qmp, const char *command)
{
    struct ibx_error err = {0};
    json_t *result = NULL;
    const int rc = ibx_qmp_execute(qmp, command, NULL, &result, NEVER, &err);
    if (rc) {
        require(!result);
        check_error(rc, &err);
        return;
    }
    require(result && is_said(result, "return"));
    json_decref(result);
}

static void take_events(struct ibx_qmp *qmp)
{
    unsigned count = 0;
    for (json_t *event; (event = ibx_qmp_event_next(qmp)); count++) {
        require(json_is_string(json_object_get(event, "event")));
        require(!json_object_get(event, "data") || is_said(event, NULL));
        json_decref(event);
    }
    require(count <= IBX_QMP_EVENTS_MAX && !ibx_qmp_has_events(qmp));
}

/* The first failure stays. */
static void pump_to_the_end(struct ibx_qmp *qmp)
{
    struct ibx_error err = {0}, again = {0};
    while (!ibx_qmp_pump(qmp, &err))
        ;
    check_error(err.code, &err);
    require(ibx_qmp_pump(qmp, &again) == err.code && !strcmp(again.message, err.message));
    require(ibx_qmp_post(qmp, "quit", NEVER, &again) == err.code);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_error err = {0};
    struct ibx_qmp *qmp = NULL;
    if (size < HEAD || size > 65536)
        return 0;
    head = data;
    text = at = data + HEAD;
    end = data + size;
    pieces = 0;
    pause = false;
    const int rc = ibx_qmp_attach(open("/dev/null", O_RDWR | O_CLOEXEC), NEVER, &qmp, &err);
    if (rc) {
        require(!qmp);
        check_error(rc, &err);
        return 0;
    }
    ibx_qmp_ahead(qmp, "query-jobs", NULL, NEVER);
    ibx_qmp_ahead(qmp, "query-memdev", NULL, NEVER);
    ibx_qmp_remember(qmp, true);
    ask(qmp, "query-status");
    ask(qmp, "query-memdev");
    take_events(qmp);
    ask(qmp, "query-memdev"); /* remembered */
    ibx_qmp_ahead_end(qmp, 0);
    if (!ibx_qmp_post(qmp, "query-cpus", NEVER, NULL)) {
        ibx_qmp_pump(qmp, NULL);
        json_t *reply = ibx_qmp_reply(qmp);
        require(!reply || is_said(reply, NULL));
        json_decref(reply);
    }
    ask(qmp, "stop");
    pump_to_the_end(qmp);
    take_events(qmp);
    ibx_qmp_close(qmp);
    return 0;
}
