/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qmp_internal.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define DESC_MAX      400 /* bytes of a QEMU message in an error */
#define CAPABILITIES  "qmp_capabilities"
#define CHANGES       "suppress-vmdesc" /* a property of the machine that is set */
#define REMEMBERED_MS 1000              /* for which an answer is cached, at most */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define FIRST_ID_MAX (1ull << 52) /* QEMU, or the JSON library, may make doubles of numbers */

/* ------------------------------------------------------------ questions asked again */

/* Whether a property never changes (NULL: the list of all properties). */
static bool is_fixed(const struct ibx_qmp *qmp, const char *path, const char *property)
{
    if (!strcmp(path, "/machine"))
        return !property || strcmp(property, CHANGES);
    return property && qmp->fixed_path && !strcmp(path, qmp->fixed_path) && qmp->constant(property);
}

/* The cache for the answer to a command: `fixed` for properties that do not change, `answers` for
 * others, which expire. NULL: the answer is not cached. */
static json_t **kept_in(struct ibx_qmp *qmp, const char *command, const json_t *arguments)
{
    static const char *const lasting[] = {"query-jobs", "query-block-exports", "query-memdev",
                                          "qom-list", "human-monitor-command"};
    const char *path = json_string_value(json_object_get(arguments, "path"));
    const bool qom = !strcmp(command, "qom-get") || !strcmp(command, "qom-list");
    const char *property = json_string_value(json_object_get(arguments, "property"));
    if (qom && path && is_fixed(qmp, path, property))
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
    qmp->remembered -= ibx_qmp_weight(qmp->answers);
    json_decref(qmp->answers);
    qmp->answers = on ? json_object() : NULL;
    qmp->remembered += ibx_qmp_weight(qmp->answers);
    qmp->since_ns = ibx_now_ns();
}

void ibx_qmp_fix(struct ibx_qmp *qmp, const char *path, bool (*constant)(const char *property))
{
    if (qmp->fixed_path && !strcmp(qmp->fixed_path, path))
        return;
    free(qmp->fixed_path);
    qmp->fixed_path = strdup(path); /* without memory nothing is cached */
    qmp->constant = constant;
}

/* ------------------------------------------------------------ commands */

/* The line of the command with this id; NULL: no memory. Consumes `arguments`. */
static char *line_of(const char *command, json_t *arguments, uint64_t id)
{
    json_t *request = json_pack("{s:s,s:o*,s:I}", "execute", command, "arguments", arguments, "id",
                                (json_int_t)id);
    char *line = NULL, *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
    if (text && asprintf(&line, "%s\n", text) < 0)
        line = NULL;
    free(text);
    json_decref(request);
    return line;
}

/* Sends so many lines at once, the last of which is `command`. Consumes `text`; NULL: no memory. */
static int send_lines(struct ibx_qmp *qmp, const char *command, char *text, unsigned lines, int fd,
                      uint64_t deadline_ns, struct ibx_error *err)
{
    if (!text)
        return ibx_error_set(err, -ENOMEM, "no memory for the QMP command %s", command);
    int rc = qmp->failed.code ? qmp->failed.code : ibx_qmp_await_ending(qmp, deadline_ns);
    if (!rc)
        rc = ibx_qmp_write(qmp, text, strlen(text), fd, deadline_ns);
    free(text);
    if (qmp->failed.code)
        return ibx_qmp_failure(qmp, err);
    if (rc && qmp->ends_ns)
        return ibx_error_set(err, rc,
                             "the VM was shut down (%s), and its QEMU is about to end: %s was not "
                             "sent",
                             qmp->ends, command);
    if (rc)
        return ibx_error_set(err, rc, "QEMU does not read its QMP socket: %s was not sent",
                             command);
    qmp->asked += lines;
    json_decref(qmp->answer);
    qmp->answer = NULL;
    return 0;
}

/* Consumes `arguments`. */
static int send_command(struct ibx_qmp *qmp, const char *command, json_t *arguments, int fd,
                        uint64_t deadline_ns, struct ibx_error *err)
{
    return send_lines(qmp, command, line_of(command, arguments, qmp->asked + 1), 1, fd, deadline_ns,
                      err);
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

/* Waits for bytes, a second at most; after that looks whether QEMU has crashed. */
static int await_part(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    const uint64_t look = ibx_deadline_in_ms(ENDING_MS);
    const int rc = ibx_qmp_await_bytes(qmp, deadline_ns < look ? deadline_ns : look);
    if (rc == -ETIMEDOUT && look <= deadline_ns)
        ibx_qmp_look_for_crash(qmp);
    return rc == -ETIMEDOUT && ibx_now_ns() < deadline_ns ? 0 : rc;
}

/* Waits until `*answer` is set, which is where the answer to `command` arrives. */
static int await(struct ibx_qmp *qmp, const char *command, json_t *const *answer, json_t **result,
                 uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = *answer ? 0 : ibx_qmp_read(qmp);
    while (!rc && !*answer && !qmp->failed.code && !ibx_qmp_leaves_unanswered(qmp))
        rc = await_part(qmp, deadline_ns);
    /* An answer that came before the connection broke still counts. */
    if (!*answer)
        return qmp->failed.code ? ibx_qmp_failure(qmp, err)
                                : ibx_error_set(err, rc,
                                                "QEMU did not answer %s in time: see whether it is "
                                                "stopped, or waits for a disk of the VM",
                                                command);
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

/* The index of the query that was sent ahead with this text (may be NULL); `aheads`: there is none.
 */
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
    if (!rc && kept)
        ibx_qmp_keep_answer(qmp, kept, text, value);
    if (!rc && result)
        *result = value;
    free(text);
    return rc;
}

int ibx_qmp_execute_both(struct ibx_qmp *qmp, const struct ibx_qmp_pair *both, int *first,
                         uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_error silent = {0};
    char *one = line_of(both->first, both->arguments[0], qmp->asked + 1);
    char *two = line_of(both->second, both->arguments[1], qmp->asked + 2), *lines = NULL;
    char *name = strdup(both->first);
    if (!one || !two || !name || asprintf(&lines, "%s%s", one, two) < 0)
        lines = NULL;
    free(one);
    free(two);
    ibx_qmp_ahead_end(qmp, 0); /* there has to be room for the first answer */
    if (lines && name)
        qmp->ahead[qmp->aheads++] = (struct ahead){.id = qmp->asked + 1, .text = name};
    else
        free(name);
    int rc = send_lines(qmp, both->second, lines, 2, -1, deadline_ns, err);
    if (!rc) {
        rc = await(qmp, both->second, &qmp->answer, NULL, deadline_ns, err);
        *first = await(qmp, both->first, &qmp->ahead[0].answer, NULL, deadline_ns, &silent);
    }
    ibx_qmp_ahead_end(qmp, 0);
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
    struct ibx_error why = {0};
    const int rc =
        execute(qmp, "getfd", json_pack("{s:s}", "fdname", name), fd, NULL, deadline_ns, &why);
    if (!rc)
        return 0;
    /* The kernel drops a descriptor that its receiver may not have, and QEMU sees none. */
    return ibx_error_set(err, rc, "%s%s", why.message,
                         rc == -EREMOTEIO
                             ? ": raise QEMU's limit of descriptors (LimitNOFILE) if it has as "
                               "many as it may, or, if a security module (SELinux, AppArmor) keeps "
                               "this one from it, as the host's audit log shows, allow that"
                             : "");
}

/* ------------------------------------------------------------ the process */

/* QEMU has ended. A process that ends closes its sockets first, so if this one is still open,
 * another process has it. */
static int ended(const struct ibx_qmp *qmp, struct ibx_error *err)
{
    struct pollfd end = {.fd = qmp->fd};
    if (poll(&end, 1, 0) > 0)
        return ibx_error_set(err, -ECONNRESET, "QEMU (process %d) has ended", (int)qmp->pid);
    return ibx_error_set(err, -ECONNRESET,
                         "the process (%d) that listened at this QMP socket has ended, and another "
                         "one answers there: give the socket of a QEMU that listens itself",
                         (int)qmp->pid);
}

/* Finds the process that listened at the socket. SO_PEERCRED gives only its pid: if it has ended,
 * and another process goes on with the socket, the pid may have become that of another QEMU. So its
 * pidfd is asked for, too. */
static int find_process(struct ibx_qmp *qmp, struct ibx_error *err)
{
    struct ucred who;
    socklen_t size = sizeof(who), fd_size = sizeof(qmp->pid_fd);
    if (!getsockopt(qmp->fd, SOL_SOCKET, SO_PEERCRED, &who, &size))
        qmp->pid = who.pid;
    if (!getsockopt(qmp->fd, SOL_SOCKET, SO_PEERPIDFD, &qmp->pid_fd, &fd_size))
        return ibx_qmp_lives(qmp, err);
    qmp->pid_fd = -1;
    return errno == EINVAL || errno == ESRCH ? ended(qmp, err) : 0;
}

int ibx_qmp_lives(const struct ibx_qmp *qmp, struct ibx_error *err)
{
    struct pollfd end = {.fd = qmp->pid_fd, .events = POLLIN};
    return qmp->pid_fd >= 0 && poll(&end, 1, 0) > 0 ? ended(qmp, err) : 0;
}

/* ------------------------------------------------------------ beginning and end */

/* With the capability "oob" QEMU parses up to eight commands while it runs one, and runs them in
 * order. Without it QEMU suspends and resumes its monitor for each command, which costs half as
 * much as reading all the bytes. Commands that overtake others ("exec-oob") are not used. */
static int ask_capabilities(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    struct ibx_error why = {0};
    json_t *enable = qmp->reads_ahead ? json_pack("{s:[s]}", "enable", READS_AHEAD) : NULL;
    int rc = ibx_qmp_execute(qmp, CAPABILITIES, enable, NULL, deadline_ns, &why);
    if (rc == -EOPNOTSUPP) { /* QEMU says so if capabilities have been negotiated before */
        qmp->alone = false;
        return 0;
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* To a client that connects while QEMU starts it may send its greeting twice, and after the second
 * one capabilities have to be negotiated again. */
static int negotiate(struct ibx_qmp *qmp, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_qmp_read(qmp);
    while (!rc && !qmp->greetings && !qmp->failed.code)
        rc = await_part(qmp, deadline_ns);
    if (qmp->failed.code)
        return ibx_qmp_failure(qmp, err);
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

/* The first id of commands. It is random, so that it differs from those of an earlier client, whose
 * last command QEMU may still be running. */
static uint64_t first_id(void)
{
    uint64_t random;
    if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != sizeof(random))
        random = ibx_now_ns();
    return random % FIRST_ID_MAX;
}

/* QEMU runs one command after the other, so no answer to an earlier client comes after the one to
 * CAPABILITIES. From then on ids are short: QEMU takes some microseconds to read a byte. Not on a
 * connection that another client has used, which may count from 1, too. */
static void shorten_ids(struct ibx_qmp *qmp, uint64_t first)
{
    if (qmp->alone)
        qmp->asked = qmp->answered -= first;
}

/* `of`: an earlier client, to which QEMU has sent its greeting; NULL: none. */
static int attach(const struct ibx_qmp *of, int fd, uint64_t deadline_ns, struct ibx_qmp **qmp,
                  struct ibx_error *err)
{
    struct ibx_qmp *new = calloc(1, sizeof(*new));
    if (!new) {
        close(fd);
        return ibx_error_set(err, -ENOMEM, "out of memory");
    }
    if (of)
        *new = (struct ibx_qmp){
            .version = of->version, .greetings = of->greetings, .reads_ahead = of->reads_ahead};
    new->fd = fd;
    new->kills = ibx_qmp_oom_kills();
    const uint64_t first = first_id();
    new->asked = new->answered = first;
    new->alone = !of;
    new->events = json_array();
    int rc = find_process(new, err);
    if (!rc)
        rc = new->events ? negotiate(new, deadline_ns, err)
                         : ibx_error_set(err, -ENOMEM, "out of memory");
    if (rc) {
        ibx_qmp_close(new);
        return rc;
    }
    shorten_ids(new, first);
    *qmp = new;
    return 0;
}

int ibx_qmp_attach(int fd, uint64_t deadline_ns, struct ibx_qmp **qmp, struct ibx_error *err)
{
    return attach(NULL, fd, deadline_ns, qmp, err);
}

int ibx_qmp_take_over(const struct ibx_qmp *of, int fd, uint64_t deadline_ns, struct ibx_qmp **qmp,
                      struct ibx_error *err)
{
    return attach(of, fd, deadline_ns, qmp, err);
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
    free(qmp->fixed_path);
    shutdown(qmp->fd, SHUT_RDWR); /* ends it, too, where the watchdog has a copy */
    close(qmp->fd);
    if (qmp->pid_fd >= 0)
        close(qmp->pid_fd);
    free(qmp->line);
    free(qmp);
}

uint64_t ibx_qmp_mark(struct ibx_qmp *qmp)
{
    qmp->stood_in = 0;
    return qmp->answered;
}

uint64_t ibx_qmp_mark_next(const struct ibx_qmp *qmp)
{
    return qmp->asked + 1;
}

bool ibx_qmp_stood_in(const struct ibx_qmp *qmp, uint64_t since)
{
    return qmp->stood_in >= since && qmp->stood_in;
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

bool ibx_qmp_same_version(struct ibx_qmp_version a, struct ibx_qmp_version b)
{
    return a.major == b.major && a.minor == b.minor;
}

bool ibx_qmp_sleeps_on(struct ibx_qmp_version is)
{
    return ibx_qmp_at_least(is, 9, 0);
}

int ibx_qmp_block_nodes(struct ibx_qmp *qmp, json_t **nodes, uint64_t deadline_ns,
                        struct ibx_error *err)
{
    static const char command[] = "query-named-block-nodes";
    int rc = ibx_qmp_execute(qmp, command, json_pack("{s:b}", "flat", 1), nodes, deadline_ns, err);
    return rc == -EREMOTEIO ? ibx_qmp_execute(qmp, command, NULL, nodes, deadline_ns, err) : rc;
}
