/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The bytes of a QMP connection. Received messages are sorted into answers, events and
 * greetings; messages are sent whole; and the end of the connection counts as the end of QEMU. */
#include "migrate/qemu/qmp_internal.h"

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QMP_LINE_MAX (8u * 1024 * 1024) /* bytes of one answer or event */
#define READ_CHUNK   16384u
#define BYTES_A_PUMP (4u * 1024 * 1024) /* of one call: a flood must not hold the caller */
#define ENDING_MOST  30 /* ENDING_MS periods until QEMU counts as staying after all */

/* ------------------------------------------------------------ failing */

uint64_t ibx_qmp_oom_kills(void)
{
    char line[128];
    uint64_t kills = 0;
    FILE *file = fopen("/proc/vmstat", "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "oom_kill %" SCNu64, &kills) == 1)
            break;
    if (file)
        fclose(file);
    return kills;
}

static int closed(struct ibx_qmp *qmp)
{
    char text[160];
    if (!qmp->ends_ns)
        return ibx_qmp_break(
            qmp, -ECONNRESET,
            ibx_qmp_oom_kills() == qmp->kills
                ? "QEMU closed its QMP socket: it has ended, or another tool took the "
                  "monitor away"
                : "QEMU closed its QMP socket: it has ended (the kernel of this host "
                  "has ended a process for want of memory meanwhile: its log, as dmesg "
                  "shows it, says which one, and whose limit that was), or another tool "
                  "took the monitor away");
    snprintf(text, sizeof(text), "the VM was shut down (%s), and its QEMU ends with it", qmp->ends);
    return ibx_qmp_break(qmp, -ECONNRESET, text);
}

int ibx_qmp_failure(const struct ibx_qmp *qmp, struct ibx_error *err)
{
    if (err)
        *err = qmp->failed;
    return qmp->failed.code;
}

/* ------------------------------------------------------------ receiving */

/* Whether QEMU stays after a shutdown for this reason (-no-shutdown). It then sends STOP, but not
 * if the VM was paused already. A shutdown that the host wants ends QEMU in any case. Its command
 * line is read once: a long one takes time, and a faulty QEMU may send any number of events. */
static bool stays_for(struct ibx_qmp *qmp, const char *reason)
{
    const bool guests =
        !strncmp(reason, "guest-", strlen("guest-")) || !strcmp(reason, "host-qmp-system-reset");
    if (guests && !qmp->looked) {
        qmp->stays = ibx_proc_stays(qmp->pid);
        qmp->looked = true;
    }
    return guests && qmp->stays;
}

/* Notes whether QEMU is about to end. QEMU 7.2 (from 7.2.9 on) hangs in monitor_cleanup() if it is
 * running a command then, whose rest it has scheduled in an event loop that no longer runs. SIGTERM
 * wakes it, and it ends as usual (ibx_qmp_end()). If set-action has made QEMU stay, which its
 * command line does not show, a later STOP tells. */
static void note_ending(struct ibx_qmp *qmp, const json_t *event)
{
    static const char *const stays[] = {"STOP", "RESUME", "RESET"};
    const char *name = json_string_value(json_object_get(event, "event"));
    const char *reason =
        json_string_value(json_object_get(json_object_get(event, "data"), "reason"));
    for (size_t i = 0; i < sizeof(stays) / sizeof(stays[0]); i++)
        if (!strcmp(name, stays[i]))
            qmp->ends_ns = 0;
    if (strcmp(name, "SHUTDOWN") != 0 || (reason && stays_for(qmp, reason)))
        return;
    qmp->ends_ns = ibx_now_ns();
    snprintf(qmp->ends, sizeof(qmp->ends), "%s", reason ? reason : "no reason given");
}

static void keep_greeting(struct ibx_qmp *qmp, json_t *hello)
{
    int major, minor, micro;
    json_t *capability;
    size_t i;
    if (json_unpack(hello, "{s:{s:{s:i,s:i,s:i}}}", "version", "qemu", "major", &major, "minor",
                    &minor, "micro", &micro) ||
        major < 0 || minor < 0 || micro < 0) {
        ibx_qmp_break(qmp, -EPROTO,
                      "the greeting on the QMP socket has no QEMU version: is it QEMU?");
        return;
    }
    json_array_foreach(json_object_get(hello, "capabilities"), i, capability)
    {
        const char *name = json_string_value(capability);
        qmp->reads_ahead |= name && !strcmp(name, READS_AHEAD);
    }
    qmp->version = (struct ibx_qmp_version){(unsigned)major, (unsigned)minor, (unsigned)micro};
    qmp->greetings++;
}

/* The id of the command that `message` answers; 0: no command that waits for an answer has it. The
 * id may be any real number, so its range is checked before it is converted. */
static uint64_t answered_command(const struct ibx_qmp *qmp, const json_t *message)
{
    const double id = json_number_value(json_object_get(message, "id"));
    return id > (double)qmp->answered && id <= (double)qmp->asked ? (uint64_t)id : 0;
}

/* Keeps an answer for whoever waits for it. An answer to an earlier command is dropped, because its
 * caller has given up, unless the command was posted or sent ahead. Before this client has
 * negotiated, an answer may come to a command of an earlier client, and is ignored. */
static void keep_answer(struct ibx_qmp *qmp, json_t *message)
{
    const uint64_t id = answered_command(qmp, message);
    const char *whose = json_string_value(json_object_get(message, "id"));
    if (whose && !strcmp(whose, IBX_QMP_STAND_IN)) {
        if (json_object_get(message, "return") && !qmp->stood_in)
            qmp->stood_in = qmp->answered;
        return;
    }
    if (!id && !qmp->negotiated)
        return;
    if (!id) {
        /* QEMU could not parse what it got: its error has no id. */
        ibx_qmp_break(qmp, -EPROTO,
                      "QEMU answered a command that was not asked: is something else "
                      "writing to this QMP socket?");
        return;
    }
    qmp->answered = id;
    if (qmp->answered == qmp->posted)
        qmp->reply = json_incref(message);
    for (unsigned i = 0; i < qmp->aheads; i++)
        if (qmp->ahead[i].id == qmp->answered)
            ibx_qmp_keep_ahead(qmp, &qmp->ahead[i], message);
    if (qmp->answered == qmp->asked)
        qmp->answer = json_incref(message);
}

static void take_line(struct ibx_qmp *qmp, const char *text, size_t length)
{
    if (length && text[length - 1] == '\r')
        length--;
    if (!length)
        return;
    if (!ibx_qmp_may_parse(qmp, text, length))
        return;
    json_error_t why;
    json_t *message = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    /* QEMU has unsigned 64-bit integers, the library only signed ones. If one overflows, all
     * integers of the message are parsed as real numbers. */
    if (!message && json_error_code(&why) == json_error_numeric_overflow)
        message = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (!json_is_object(message)) {
        ibx_qmp_break(
            qmp, -EPROTO,
            "a message on the QMP socket is not a JSON object: is it the monitor of a QEMU "
            "started with -qmp, and has ib-migrate memory for it?");
    } else if (json_is_string(json_object_get(message, "event"))) {
        note_ending(qmp, message);
        ibx_qmp_keep_event(qmp, message);
    } else if (json_object_get(message, "return") || json_object_get(message, "error")) {
        keep_answer(qmp, message);
    } else if (!qmp->negotiated) {
        keep_greeting(qmp, json_object_get(message, "QMP"));
    } else {
        ibx_qmp_break(qmp, -EPROTO, "a message on the QMP socket is neither answer nor event");
    }
    json_decref(message);
}

/* Whether these lines are a whole message. A -qmp-pretty monitor writes a message in many lines:
 * the first is "{", the last is "}", and those between are indented. */
static bool is_whole(const char *text, size_t length)
{
    if (length && text[length - 1] == '\r')
        length--;
    const bool opened = length && text[0] == '{' && (length == 1 || strchr("\r\n", text[1]));
    return !opened || (length > 2 && text[length - 1] == '}' && text[length - 2] == '\n');
}

static void take_lines(struct ibx_qmp *qmp)
{
    size_t start = 0;
    char *end;
    while (!qmp->failed.code &&
           (end = memchr(qmp->line + qmp->scanned, '\n', qmp->length - qmp->scanned))) {
        size_t next = (size_t)(end - qmp->line) + 1;
        qmp->scanned = next;
        if (!is_whole(qmp->line + start, next - 1 - start))
            continue;
        take_line(qmp, qmp->line + start, next - 1 - start);
        start = next;
    }
    memmove(qmp->line, qmp->line + start, qmp->length - start);
    qmp->length -= start;
    qmp->scanned = qmp->length;
    if (qmp->length >= QMP_LINE_MAX)
        ibx_qmp_break(qmp, -EMSGSIZE, "a message on the QMP socket is longer than 8 MiB");
}

static int make_room(struct ibx_qmp *qmp)
{
    if (qmp->capacity - qmp->length >= READ_CHUNK)
        return 0;
    size_t capacity = qmp->capacity ? 2 * qmp->capacity : 4 * READ_CHUNK;
    char *line = realloc(qmp->line, capacity);
    if (!line)
        return ibx_qmp_break(qmp, -ENOMEM, "out of memory while reading from QEMU");
    qmp->line = line;
    qmp->capacity = capacity;
    return 0;
}

int ibx_qmp_read(struct ibx_qmp *qmp)
{
    for (size_t taken = 0; taken < BYTES_A_PUMP && !qmp->failed.code;) {
        if (make_room(qmp))
            break;
        /* recv(2), without room for control data: the kernel drops descriptors that a peer sends.
         */
        ssize_t n = recv(qmp->fd, qmp->line + qmp->length, READ_CHUNK, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            closed(qmp);
            break;
        }
        qmp->length += (size_t)n;
        taken += (size_t)n;
        take_lines(qmp);
    }
    return qmp->failed.code;
}

/* Waits until the socket is ready. -ETIMEDOUT, after the deadline even if the socket is ready. */
static int wait_for(struct ibx_qmp *qmp, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = qmp->fd, .events = events};
        const uint64_t wait_ns = (unsigned)ibx_ms_until(deadline_ns) * (uint64_t)IBX_NS_PER_MS;
        int n = ibx_thread_poll(&p, 1, wait_ns, qmp->busy_until_ns);
        if (n < 0 && errno != EINTR)
            return ibx_qmp_break(qmp, -errno, "cannot wait for the QMP socket");
        if (ibx_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        if (n > 0)
            return 0;
    }
}

int ibx_qmp_await_bytes(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    int rc = wait_for(qmp, POLLIN, deadline_ns);
    ibx_qmp_read(qmp);
    return rc;
}

void ibx_qmp_spin_until(struct ibx_qmp *qmp, uint64_t until_ns)
{
    qmp->busy_until_ns = until_ns;
}

int ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err)
{
    ibx_qmp_read(qmp);
    return ibx_qmp_failure(qmp, err);
}

/* ------------------------------------------------------------ sending */

int ibx_qmp_write(struct ibx_qmp *qmp, const char *text, size_t length, int fd,
                  uint64_t deadline_ns)
{
    size_t sent = 0;
    while (sent < length) {
        struct iovec io = {(void *)(uintptr_t)(text + sent), length - sent};
        union ibx_descriptor_room room;
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
        ibx_descriptor_add(&m, &room, sent ? -1 : fd);
        ssize_t n = ibx_descriptor_send(qmp->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL, false);
        if (n >= 0) {
            sent += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* A command that was sent in part cannot be taken back. */
            if (wait_for(qmp, POLLOUT, deadline_ns))
                return sent ? ibx_qmp_break(qmp, -ETIMEDOUT, "QEMU stopped reading its QMP socket")
                            : -ETIMEDOUT;
        } else if (errno == EPIPE) {
            ibx_qmp_read(qmp); /* its last events say why it has ended */
            return closed(qmp);
        } else if (errno != EINTR) {
            return ibx_qmp_break(qmp, -errno,
                                 errno == ETOOMANYREFS
                                     ? IBX_DESCRIPTOR_TOO_MANY
                                     : "QEMU closed its QMP socket: it has ended");
        }
    }
    return 0;
}

/* ------------------------------------------------------------ a QEMU that ends */

int ibx_qmp_await_ending(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    int rc = ibx_qmp_read(qmp);
    const uint64_t until = qmp->ends_ns + ENDING_MS * IBX_NS_PER_MS;
    while (!rc && qmp->ends_ns && ibx_now_ns() < until)
        rc = ibx_qmp_await_bytes(qmp, deadline_ns < until ? deadline_ns : until);
    if (qmp->failed.code || !qmp->ends_ns)
        return qmp->failed.code;
    if (ibx_now_ns() < qmp->ends_ns + ENDING_MOST * ENDING_MS * IBX_NS_PER_MS)
        return -ETIMEDOUT;
    qmp->ends_ns = 0; /* it stays, and has sent no STOP, because its VM was paused already */
    return 0;
}

void ibx_qmp_look_for_crash(struct ibx_qmp *qmp)
{
    char text[160];
    if (!ibx_proc_dumps_core(qmp->pid))
        return;
    snprintf(text, sizeof(text),
             "QEMU (process %d) has crashed, and its core dump is being written: see its log",
             (int)qmp->pid);
    ibx_qmp_break(qmp, -ECONNRESET, text);
}

bool ibx_qmp_leaves_unanswered(struct ibx_qmp *qmp)
{
    if (!qmp->ends_ns || ibx_now_ns() < qmp->ends_ns + ENDING_MS * IBX_NS_PER_MS)
        return false;
    qmp->hangs = true;
    closed(qmp);
    return true;
}

const char *ibx_qmp_ends(const struct ibx_qmp *qmp)
{
    return qmp && qmp->ends_ns ? qmp->ends : NULL;
}

void ibx_qmp_end(struct ibx_qmp *qmp, pid_t pid)
{
    const bool asked = qmp && qmp->ends_ns && qmp->asked != qmp->answered;
    const uint64_t deadline = asked ? qmp->ends_ns + ENDING_MS * IBX_NS_PER_MS : 0;
    while (asked && !qmp->failed.code && ibx_now_ns() < deadline && qmp->ends_ns)
        ibx_qmp_await_bytes(qmp, deadline);
    if (asked && qmp->ends_ns && (qmp->hangs || !qmp->failed.code) && pid > 0)
        kill(pid, SIGTERM);
}
