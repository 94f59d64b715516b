/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define QMP_LINE_MAX  (8u * 1024 * 1024) /* bytes of one answer or event */
#define EVENT_MAX     65536u             /* of one that is kept with its data */
#define READ_CHUNK    16384u
#define BYTES_A_PUMP  (4u * 1024 * 1024) /* a flood must not keep the caller busy without end */
#define DESC_MAX      400                /* bytes of a QEMU message in an error */
#define CAPABILITIES  "qmp_capabilities"
#define READS_AHEAD   "oob"
#define CHANGES       "suppress-vmdesc" /* a property of the machine that is set */
#define REMEMBERED_MS 1000              /* an answer, at most */
#define FIRST_ID_MAX  (1ull << 52)      /* QEMU, or the library, may take numbers for real ones */
#define ENDING_MS     1000              /* for a QEMU whose VM was shut down to end, or to stay */
#define ENDING_MOST   30                /* times that, until it is asked again: it stays */
#define ENDING_REASON 32                /* bytes */

/* A question that was sent before it is asked. */
struct ahead {
    uint64_t id;
    char *text;     /* of the question */
    json_t *answer; /* the message; NULL: it has not come */
};

struct ibx_qmp {
    int fd;
    pid_t pid;
    struct ibx_qmp_version version;
    unsigned greetings; /* that have come: see negotiate() */
    bool negotiated;
    bool reads_ahead;  /* QEMU can read a command while it is at another one */
    uint64_t asked;    /* id of the last command: they count from a random number */
    uint64_t answered; /* id of the last answer: QEMU answers in the order of the commands */
    json_t *answer;    /* to the last command; NULL: it has not come */
    uint64_t posted;   /* id of the command of ibx_qmp_post(); 0: none */
    json_t *reply;     /* its answer; NULL: it has not come */
    struct ahead ahead[IBX_QMP_AHEAD_MAX];
    unsigned aheads;
    json_t *events;    /* array, oldest first */
    json_t *answers;   /* that are remembered: what was returned, by the command; NULL: none is */
    json_t *fixed;     /* the same of what does not change; NULL: none yet */
    uint64_t since_ns; /* the oldest of `answers` */
    char *line;        /* bytes received and not yet parsed */
    size_t length, capacity, scanned;
    uint64_t busy_until_ns;
    uint64_t kills;           /* oom_kills() at first */
    uint64_t ends_ns;         /* since when QEMU ends, as SHUTDOWN says; 0: it does not */
    bool hangs;               /* ... and has not closed this connection */
    char ends[ENDING_REASON]; /* ... why */
    struct ibx_error failed;  /* code 0 while the connection is good */
};

/* ------------------------------------------------------------ failing */

/* Latches the first error of the connection; every later call returns it. */
static int broken(struct ibx_qmp *qmp, int code, const char *message)
{
    if (!qmp->failed.code)
        ibx_error_set(&qmp->failed, code, "%s", message);
    return qmp->failed.code;
}

/* Processes that this kernel has ended for want of memory so far, those of control groups too. It
 * counts one before it ends it. */
static uint64_t oom_kills(void)
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
        return broken(qmp, -ECONNRESET,
                      oom_kills() == qmp->kills
                          ? "QEMU closed its QMP socket: it has ended, or another tool took the "
                            "monitor away"
                          : "QEMU closed its QMP socket: it has ended (the kernel of this host "
                            "has ended a process for want of memory meanwhile: its log, as dmesg "
                            "shows it, says which one, and whose limit that was), or another tool "
                            "took the monitor away");
    snprintf(text, sizeof(text), "the VM was shut down (%s), and its QEMU ends with it", qmp->ends);
    return broken(qmp, -ECONNRESET, text);
}

static int failure_of(const struct ibx_qmp *qmp, struct ibx_error *err)
{
    if (err)
        *err = qmp->failed;
    return qmp->failed.code;
}

/* ------------------------------------------------------------ receiving */

/* Whether a migration depends on it: a guest may make its QEMU report others as fast as it likes.
 */
static bool matters(const json_t *event)
{
    static const char *const names[] = {"STOP",           "RESUME",           "RESET",
                                        "SHUTDOWN",       "MIGRATION",        "MIGRATION_PASS",
                                        "BALLOON_CHANGE", "JOB_STATUS_CHANGE"};
    const char *name = json_string_value(json_object_get(event, "event"));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

static void forget_event(struct ibx_qmp *qmp)
{
    size_t i = 0;
    while (i < json_array_size(qmp->events) && matters(json_array_get(qmp->events, i)))
        i++;
    json_array_remove(qmp->events, i < json_array_size(qmp->events) ? i : 0);
}

/* A QEMU that is at a command when it ends hangs in monitor_cleanup() (7.2, from 7.2.9 on): the
 * rest of the command is scheduled where nobody looks any more. SIGTERM wakes it up, and it ends as
 * it would have. One that stays (-no-shutdown) says STOP. */
static void note_ending(struct ibx_qmp *qmp, const json_t *event)
{
    static const char *const stays[] = {"STOP", "RESUME", "RESET"};
    const char *name = json_string_value(json_object_get(event, "event"));
    const char *reason =
        json_string_value(json_object_get(json_object_get(event, "data"), "reason"));
    for (size_t i = 0; i < sizeof(stays) / sizeof(stays[0]); i++)
        if (!strcmp(name, stays[i]))
            qmp->ends_ns = 0;
    if (strcmp(name, "SHUTDOWN") != 0)
        return;
    qmp->ends_ns = ibx_now_ns();
    snprintf(qmp->ends, sizeof(qmp->ends), "%s", reason ? reason : "no reason given");
}

static void keep_event(struct ibx_qmp *qmp, json_t *message, size_t length)
{
    note_ending(qmp, message);
    if (length > EVENT_MAX)
        json_object_del(message, "data");
    if (json_array_size(qmp->events) >= IBX_QMP_EVENTS_MAX)
        forget_event(qmp);
    if (json_array_append(qmp->events, message))
        broken(qmp, -ENOMEM, "out of memory while keeping an event of QEMU");
}

static void keep_greeting(struct ibx_qmp *qmp, json_t *hello)
{
    int major, minor, micro;
    json_t *capability;
    size_t i;
    if (json_unpack(hello, "{s:{s:{s:i,s:i,s:i}}}", "version", "qemu", "major", &major, "minor",
                    &minor, "micro", &micro) ||
        major < 0 || minor < 0 || micro < 0) {
        broken(qmp, -EPROTO, "the greeting on the QMP socket has no QEMU version: is it QEMU?");
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

/* The number of the command that MESSAGE answers: 0 if that is none that still waits for one. It
 * may come as any real number: only what is in range can become an integer. */
static uint64_t answered_command(const struct ibx_qmp *qmp, const json_t *message)
{
    const double id = json_number_value(json_object_get(message, "id"));
    return id > (double)qmp->answered && id <= (double)qmp->asked ? (uint64_t)id : 0;
}

/* An answer to an earlier command than the last one is late: its caller has given up. What QEMU was
 * at when an earlier client went is answered to the next one, before all that this one asks. */
static void keep_answer(struct ibx_qmp *qmp, json_t *message)
{
    const uint64_t id = answered_command(qmp, message);
    if (!id && !qmp->negotiated)
        return;
    if (!id) {
        /* QEMU could not parse what it got: its error has no id. */
        broken(qmp, -EPROTO,
               "QEMU answered a command that was not asked: is something else "
               "writing to this QMP socket?");
        return;
    }
    qmp->answered = id;
    if (qmp->answered == qmp->posted)
        qmp->reply = json_incref(message);
    for (unsigned i = 0; i < qmp->aheads; i++)
        if (qmp->ahead[i].id == qmp->answered)
            qmp->ahead[i].answer = json_incref(message);
    if (qmp->answered == qmp->asked)
        qmp->answer = json_incref(message);
}

static void take_line(struct ibx_qmp *qmp, const char *text, size_t length)
{
    if (length && text[length - 1] == '\r')
        length--;
    if (!length)
        return;
    json_error_t why;
    json_t *message = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    /* QEMU has unsigned integers of 64 bits, the library signed ones: then all are real numbers. */
    if (!message && json_error_code(&why) == json_error_numeric_overflow)
        message = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &why);
    if (!json_is_object(message)) {
        broken(qmp, -EPROTO,
               "a message on the QMP socket is not a JSON object: is it the monitor of a QEMU "
               "started with -qmp, and has ib-migrate memory for it?");
    } else if (json_is_string(json_object_get(message, "event"))) {
        keep_event(qmp, message, length);
    } else if (json_object_get(message, "return") || json_object_get(message, "error")) {
        keep_answer(qmp, message);
    } else if (!qmp->negotiated) {
        keep_greeting(qmp, json_object_get(message, "QMP"));
    } else {
        broken(qmp, -EPROTO, "a message on the QMP socket is neither answer nor event");
    }
    json_decref(message);
}

/* A monitor of -qmp-pretty writes a message in many lines: from one that is "{" to one that is "}",
 * and those between are indented. */
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
        broken(qmp, -EMSGSIZE, "a message on the QMP socket is longer than 8 MiB");
}

static int make_room(struct ibx_qmp *qmp)
{
    if (qmp->capacity - qmp->length >= READ_CHUNK)
        return 0;
    size_t capacity = qmp->capacity ? 2 * qmp->capacity : 4 * READ_CHUNK;
    char *line = realloc(qmp->line, capacity);
    if (!line)
        return broken(qmp, -ENOMEM, "out of memory while reading from QEMU");
    qmp->line = line;
    qmp->capacity = capacity;
    return 0;
}

/* Reads without blocking; 0 also when there is nothing. */
static int pump(struct ibx_qmp *qmp)
{
    for (size_t taken = 0; taken < BYTES_A_PUMP && !qmp->failed.code;) {
        if (make_room(qmp))
            break;
        /* recv without room for control data: descriptors that a hostile peer sends are closed. */
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

/* Waits until the socket is ready. -ETIMEDOUT: also of one that is always ready. */
static int wait_for(struct ibx_qmp *qmp, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd p = {.fd = qmp->fd, .events = events};
        const uint64_t wait_ns = (unsigned)ibx_ms_until(deadline_ns) * (uint64_t)IBX_NS_PER_MS;
        int n = ibx_thread_poll(&p, 1, wait_ns, qmp->busy_until_ns);
        if (n < 0 && errno != EINTR)
            return broken(qmp, -errno, "cannot wait for the QMP socket");
        if (ibx_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        if (n > 0)
            return 0;
    }
}

/* Reads also what came in the last moment, while this thread did not run. -ETIMEDOUT. */
static int wait_and_pump(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    int rc = wait_for(qmp, POLLIN, deadline_ns);
    pump(qmp);
    return rc;
}

void ibx_qmp_spin_until(struct ibx_qmp *qmp, uint64_t until_ns)
{
    qmp->busy_until_ns = until_ns;
}

int ibx_qmp_pump(struct ibx_qmp *qmp, struct ibx_error *err)
{
    pump(qmp);
    return failure_of(qmp, err);
}

/* ------------------------------------------------------------ sending */

/* Sends all of it, `fd` (or -1) with its first byte. */
static int send_all(struct ibx_qmp *qmp, const char *text, size_t length, int fd,
                    uint64_t deadline_ns)
{
    size_t sent = 0;
    while (sent < length) {
        struct iovec io = {(void *)(uintptr_t)(text + sent), length - sent};
        union {
            struct cmsghdr header;
            char space[CMSG_SPACE(sizeof(int))];
        } control = {.space = {0}};
        struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1};
        if (fd >= 0 && !sent) {
            m.msg_control = &control;
            m.msg_controllen = sizeof(control);
            control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
                                              .cmsg_level = SOL_SOCKET,
                                              .cmsg_type = SCM_RIGHTS};
            memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
        }
        ssize_t n = sendmsg(qmp->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            sent += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* A command that was sent in part cannot be taken back. */
            if (wait_for(qmp, POLLOUT, deadline_ns))
                return sent ? broken(qmp, -ETIMEDOUT, "QEMU stopped reading its QMP socket")
                            : -ETIMEDOUT;
        } else if (errno == EPIPE) {
            pump(qmp); /* its last events say why it has ended */
            return closed(qmp);
        } else if (errno != EINTR) {
            return broken(qmp, -errno, "QEMU closed its QMP socket: it has ended");
        }
    }
    return 0;
}

/* ------------------------------------------------------------ questions asked again */

/* Where an answer is kept: a VM that has come or gone is asked for anew, but a machine has the
 * properties with which it was made. NULL: nowhere. */
static json_t **kept_in(struct ibx_qmp *qmp, const char *command, const json_t *arguments)
{
    static const char *const lasting[] = {"query-jobs", "query-block-exports", "query-memdev",
                                          "qom-list", "human-monitor-command"};
    const char *path = json_string_value(json_object_get(arguments, "path"));
    const bool qom = !strcmp(command, "qom-get") || !strcmp(command, "qom-list");
    const char *property = json_string_value(json_object_get(arguments, "property"));
    if (qom && path && !strcmp(path, "/machine") && (!property || strcmp(property, CHANGES)))
        return &qmp->fixed;
    if (qmp->answers && ibx_now_ns() - qmp->since_ns > REMEMBERED_MS * IBX_NS_PER_MS)
        ibx_qmp_remember(qmp, true);
    for (size_t i = 0; qmp->answers && i < sizeof(lasting) / sizeof(lasting[0]); i++)
        if (!strcmp(command, lasting[i]))
            return &qmp->answers;
    return NULL;
}

void ibx_qmp_remember(struct ibx_qmp *qmp, bool on)
{
    json_decref(qmp->answers);
    qmp->answers = on ? json_object() : NULL;
    qmp->since_ns = ibx_now_ns();
}

/* ------------------------------------------------------------ commands */

/* Nothing is sent to a QEMU that ends. 0: it does not. */
static int await_ending(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    int rc = pump(qmp);
    const uint64_t until = qmp->ends_ns + ENDING_MS * IBX_NS_PER_MS;
    while (!rc && qmp->ends_ns && ibx_now_ns() < until)
        rc = wait_and_pump(qmp, deadline_ns < until ? deadline_ns : until);
    if (qmp->failed.code || !qmp->ends_ns)
        return qmp->failed.code;
    if (ibx_now_ns() < qmp->ends_ns + ENDING_MOST * ENDING_MS * IBX_NS_PER_MS)
        return -ETIMEDOUT;
    qmp->ends_ns = 0; /* of a VM that was paused nothing says STOP */
    return 0;
}

/* Consumes `arguments`. */
static int send_command(struct ibx_qmp *qmp, const char *command, json_t *arguments, int fd,
                        uint64_t deadline_ns, struct ibx_error *err)
{
    json_t *request = json_pack("{s:s,s:o*,s:I}", "execute", command, "arguments", arguments, "id",
                                (json_int_t)qmp->asked + 1);
    char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!text)
        return ibx_error_set(err, -ENOMEM, "no memory for the QMP command %s", command);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the NUL: the length is known */
    int rc = qmp->failed.code ? qmp->failed.code : await_ending(qmp, deadline_ns);
    if (!rc)
        rc = send_all(qmp, text, length + 1, fd, deadline_ns);
    free(text);
    if (qmp->failed.code)
        return failure_of(qmp, err);
    if (rc && qmp->ends_ns)
        return ibx_error_set(err, rc,
                             "the VM was shut down (%s), and its QEMU is about to end: %s was not "
                             "sent",
                             qmp->ends, command);
    if (rc)
        return ibx_error_set(err, rc, "QEMU does not read its QMP socket: %s was not sent",
                             command);
    qmp->asked++;
    json_decref(qmp->answer);
    qmp->answer = NULL;
    return 0;
}

/* ------------------------------------------------------------ answers */

static int command_error(const char *command, json_t *error, struct ibx_error *err)
{
    const char *class = json_string_value(json_object_get(error, "class"));
    const char *text = json_string_value(json_object_get(error, "desc"));
    char desc[DESC_MAX];
    strncpy(desc, text ? text : "no reason given", sizeof(desc) - 1);
    desc[sizeof(desc) - 1] = '\0';
    ibx_text_sanitize(desc);
    if (class && !strcmp(class, "CommandNotFound"))
        return ibx_error_set(err, -EOPNOTSUPP, "this QEMU does not know %s: %s", command, desc);
    return ibx_error_set(err, -EREMOTEIO, "QEMU refused %s: %s", command, desc);
}

/* Whether nothing will answer. */
static bool leaves_unanswered(struct ibx_qmp *qmp)
{
    if (!qmp->ends_ns || ibx_now_ns() < qmp->ends_ns + ENDING_MS * IBX_NS_PER_MS)
        return false;
    qmp->hangs = true;
    closed(qmp);
    return true;
}

/* Waits for `*answer`, in which the answer to `command` is kept. */
static int await(struct ibx_qmp *qmp, const char *command, json_t *const *answer, json_t **result,
                 uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = *answer ? 0 : pump(qmp);
    while (!rc && !*answer && !qmp->failed.code && !leaves_unanswered(qmp)) {
        const uint64_t look = ibx_deadline_in_ms(ENDING_MS);
        rc = wait_and_pump(qmp, deadline_ns < look ? deadline_ns : look);
        if (rc == -ETIMEDOUT && ibx_now_ns() < deadline_ns)
            rc = 0;
    }
    /* An answer that came before the connection broke still counts. */
    if (!*answer)
        return qmp->failed.code ? failure_of(qmp, err)
                                : ibx_error_set(err, rc, "QEMU did not answer %s in time", command);
    json_t *value = json_object_get(*answer, "return");
    if (!value)
        return command_error(command, json_object_get(*answer, "error"), err);
    if (result)
        *result = json_incref(value);
    return 0;
}

static int execute(struct ibx_qmp *qmp, const char *command, json_t *arguments, int fd,
                   json_t **result, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = send_command(qmp, command, arguments, fd, deadline_ns, err);
    return rc ? rc : await(qmp, command, &qmp->answer, result, deadline_ns, err);
}

/* ------------------------------------------------------------ questions before they are asked */

/* Does not consume `arguments`. */
static char *text_of(const char *command, const json_t *arguments)
{
    char *text = NULL, *json = arguments ? json_dumps(arguments, JSON_COMPACT) : NULL;
    if ((!arguments || json) && asprintf(&text, "%s %s", command, json ? json : "") < 0)
        text = NULL;
    free(json);
    return text;
}

static void forget(struct ibx_qmp *qmp, unsigned i)
{
    free(qmp->ahead[i].text);
    json_decref(qmp->ahead[i].answer);
    qmp->aheads--;
    memmove(&qmp->ahead[i], &qmp->ahead[i + 1], (qmp->aheads - i) * sizeof(qmp->ahead[0]));
}

/* The one of that text (or NULL): its number, or how many there are. */
static unsigned find_ahead(const struct ibx_qmp *qmp, const char *text)
{
    unsigned i = 0;
    while (text && i < qmp->aheads && strcmp(qmp->ahead[i].text, text) != 0)
        i++;
    return text ? i : qmp->aheads;
}

void ibx_qmp_ahead(struct ibx_qmp *qmp, const char *command, json_t *arguments,
                   uint64_t deadline_ns)
{
    char *text = qmp->aheads < IBX_QMP_AHEAD_MAX ? text_of(command, arguments) : NULL;
    json_t **kept = text ? kept_in(qmp, command, arguments) : NULL;
    if (!text || (kept && json_object_get(*kept, text)) || find_ahead(qmp, text) < qmp->aheads) {
        free(text);
        json_decref(arguments);
        return;
    }
    qmp->ahead[qmp->aheads++] = (struct ahead){.id = qmp->asked + 1, .text = text};
    if (send_command(qmp, command, arguments, -1, deadline_ns, NULL))
        forget(qmp, qmp->aheads - 1);
}

uint64_t ibx_qmp_ahead_begin(const struct ibx_qmp *qmp)
{
    return qmp->asked;
}

unsigned ibx_qmp_ahead_end(struct ibx_qmp *qmp, uint64_t since)
{
    unsigned left = 0;
    for (; qmp->aheads && qmp->ahead[qmp->aheads - 1].id > since; left++)
        forget(qmp, qmp->aheads - 1);
    return left;
}

int ibx_qmp_execute(struct ibx_qmp *qmp, const char *command, json_t *arguments, json_t **result,
                    uint64_t deadline_ns, struct ibx_error *err)
{
    char *text = text_of(command, arguments);
    json_t **kept = result && text ? kept_in(qmp, command, arguments) : NULL;
    json_t *value = kept ? json_incref(json_object_get(*kept, text)) : NULL;
    const unsigned i = find_ahead(qmp, text);
    int rc = 0;
    if (!value && i == qmp->aheads) {
        rc = execute(qmp, command, arguments, -1, result ? &value : NULL, deadline_ns, err);
    } else {
        json_decref(arguments);
        if (!value) {
            rc = await(qmp, command, &qmp->ahead[i].answer, result ? &value : NULL, deadline_ns,
                       err);
            forget(qmp, i);
        }
    }
    if (!rc && kept && !*kept)
        *kept = json_object();
    if (!rc && kept)
        json_object_set(*kept, text, value);
    if (!rc && result)
        *result = value;
    free(text);
    return rc;
}

int ibx_qmp_post(struct ibx_qmp *qmp, const char *command, uint64_t deadline_ns,
                 struct ibx_error *err)
{
    int rc = send_command(qmp, command, NULL, -1, deadline_ns, err);
    if (rc)
        return rc;
    json_decref(qmp->reply);
    qmp->reply = NULL;
    qmp->posted = qmp->asked;
    return 0;
}

json_t *ibx_qmp_reply(struct ibx_qmp *qmp)
{
    json_t *reply = qmp->reply;
    qmp->reply = NULL;
    return reply;
}

int ibx_qmp_getfd(struct ibx_qmp *qmp, const char *name, int fd, uint64_t deadline_ns,
                  struct ibx_error *err)
{
    return execute(qmp, "getfd", json_pack("{s:s}", "fdname", name), fd, NULL, deadline_ns, err);
}

/* ------------------------------------------------------------ events */

bool ibx_qmp_has_events(const struct ibx_qmp *qmp)
{
    return json_array_size(qmp->events) > 0;
}

json_t *ibx_qmp_event_next(struct ibx_qmp *qmp)
{
    json_t *event = json_incref(json_array_get(qmp->events, 0));
    json_array_remove(qmp->events, 0);
    return event;
}

/* ------------------------------------------------------------ beginning and end */

/* With "oob" QEMU parses up to eight commands while it runs one, in the order in which they came;
 * else it lets go of its monitor at each and takes it up again, which costs half as much as all of
 * the bytes. Commands that overtake others ("exec-oob") are not used. */
static int ask_capabilities(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_error why = {0};
    json_t *enable = qmp->reads_ahead ? json_pack("{s:[s]}", "enable", READS_AHEAD) : NULL;
    int rc = ibx_qmp_execute(qmp, CAPABILITIES, enable, NULL, deadline_ns, &why);
    if (rc == -EOPNOTSUPP) /* that is how QEMU says that they have been negotiated */
        return 0;
    if (rc && err)
        *err = why;
    return rc;
}

/* To a client that comes while QEMU begins it may send its greeting twice, and then wants to
 * negotiate anew. */
static int negotiate(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = pump(qmp);
    while (!rc && !qmp->greetings && !qmp->failed.code)
        rc = wait_and_pump(qmp, deadline_ns);
    if (qmp->failed.code)
        return failure_of(qmp, err);
    if (!qmp->greetings)
        return ibx_error_set(err, rc,
                             "no greeting came over the QMP socket: QEMU serves one "
                             "client at a time, so give this tool a -qmp socket of its "
                             "own, and see that QEMU is not stopped");
    rc = 0;
    for (unsigned seen = 0; !rc && seen != qmp->greetings;) {
        seen = qmp->greetings;
        rc = ask_capabilities(qmp, deadline_ns, err);
    }
    qmp->negotiated = !rc;
    if (rc == -ETIMEDOUT)
        return ibx_error_set(
            err, rc,
            "QEMU greets, and did not answer " CAPABILITIES " in time: see that it "
            "is not stopped; if its guest is just shutting the VM down, it hangs in "
            "that until it gets SIGTERM (kill %d)",
            (int)qmp->pid);
    return rc;
}

/* Where the ids of commands begin: those of an earlier client, whose last command QEMU may still
 * be at, are others. */
static uint64_t first_id(void)
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = ibx_now_ns();
    return random % FIRST_ID_MAX;
}

int ibx_qmp_attach(int fd, uint64_t deadline_ns, struct ibx_qmp **qmp, struct ibx_error *err)
{
    struct ibx_qmp *new = calloc(1, sizeof(*new));
    if (!new) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "out of memory");
    }
    new->fd = fd;
    new->kills = oom_kills();
    new->asked = new->answered = first_id();
    new->events = json_array();
    struct ucred who;
    socklen_t size = sizeof(who);
    if (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size))
        new->pid = who.pid;
    int rc = new->events ? negotiate(new, deadline_ns, err)
                         : ibx_error_set(err, -ENOMEM, "out of memory");
    if (rc) {
        ibx_qmp_close(new);
        return rc;
    }
    *qmp = new;
    return 0;
}

void ibx_qmp_close(struct ibx_qmp *qmp)
{
    if (!qmp)
        return;
    ibx_qmp_ahead_end(qmp, 0);
    json_decref(qmp->answer);
    json_decref(qmp->reply);
    json_decref(qmp->events);
    json_decref(qmp->answers);
    json_decref(qmp->fixed);
    close(qmp->fd);
    free(qmp->line);
    free(qmp);
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
        wait_and_pump(qmp, deadline);
    if (asked && qmp->ends_ns && (qmp->hangs || !qmp->failed.code) && pid > 0)
        kill(pid, SIGTERM);
}

int ibx_qmp_fd(const struct ibx_qmp *qmp)
{
    return qmp->fd;
}

pid_t ibx_qmp_pid(const struct ibx_qmp *qmp)
{
    return qmp->pid;
}

struct ibx_qmp_version ibx_qmp_version(const struct ibx_qmp *qmp)
{
    return qmp->version;
}

bool ibx_qmp_at_least(struct ibx_qmp_version is, unsigned major, unsigned minor)
{
    return is.major > major || (is.major == major && is.minor >= minor);
}

int ibx_qmp_block_nodes(struct ibx_qmp *qmp, json_t **nodes, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    static const char command[] = "query-named-block-nodes";
    int rc = ibx_qmp_execute(qmp, command, json_pack("{s:b}", "flat", 1), nodes, deadline_ns, err);
    return rc == -EREMOTEIO ? ibx_qmp_execute(qmp, command, NULL, nodes, deadline_ns, err) : rc;
}
