/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client against a scripted peer: a thread at the other end of a socketpair. */
#include "migrate/common/hold.h"
#include "migrate/preflight/preflight.h"
#include "migrate/source/source.h"
#include "tests/scenes/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
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
#define GENEROUS    20000 /* ms: for what is to come */
#define SHORT       30    /* ms: for what is never to come */

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
static size_t read_line(struct peer *p, char *line, size_t size)
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
static void from_one(struct peer *p, char *line, size_t size)
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
static bool tell(const struct peer *p, const char *text)
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

static void *peer_run(void *arg)
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

static int attach(const struct step *steps, uint64_t ms)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    memset(&error, 0, sizeof(error));
    peer = (struct peer){.steps = steps, .fd = pair[1], .received_fd = -1, .deaf = deaf};
    assert_int_equal(pthread_create(&peer.thread, NULL, peer_run, &peer), 0);
    return ibx_qmp_attach(pair[0], ibx_deadline_in_ms(ms), &qmp, &error);
}

static void attached(const struct step *steps)
{
    if (attach(steps, GENEROUS))
        fail_msg("%s", error.message);
}

static void done(void)
{
    ibx_qmp_close(qmp);
    qmp = NULL;
    pthread_join(peer.thread, NULL);
    close(peer.fd);
    if (peer.wrong[0])
        fail_msg("%s", peer.wrong);
}

static int run(const char *command, json_t **result, uint64_t ms)
{
    memset(&error, 0, sizeof(error));
    return ibx_qmp_execute(qmp, command, NULL, result, ibx_deadline_in_ms(ms), &error);
}

static void says(int rc, int code, const char *words)
{
    if (rc != code || error.code != code || !strstr(error.message, words))
        fail_msg("%d (wanted %d) \"%s\" does not say \"%s\"", rc, code, error.message, words);
}

/* ------------------------------------------------------------ commands */

static void test_returns_what_qemu_returns(NO_STATE)
{
    const struct step steps[] = {
        {NULL, GREETING, 0},
        {"{\"execute\":\"qmp_capabilities\",\"arguments\":{\"enable\":[\"oob\"]},\"id\":1}",
         READY(1), 0},
        {"{\"execute\":\"qom-get\",\"arguments\":{\"path\":\"/machine\"},\"id\":2}",
         "{\"return\": \"q35\", \"id\": 2}\n", 0},
        {0},
    };
    attached(steps);
    assert_int_equal(ibx_qmp_version(qmp).micro, 22);
    assert_true(ibx_qmp_at_least(ibx_qmp_version(qmp), 7, 2));
    assert_false(ibx_qmp_at_least(ibx_qmp_version(qmp), 7, 3));
    assert_false(ibx_qmp_at_least(ibx_qmp_version(qmp), 8, 1));
    assert_int_equal(ibx_qmp_pid(qmp), getpid());
    json_t *result = NULL;
    assert_int_equal(ibx_qmp_execute(qmp, "qom-get", json_pack("{s:s}", "path", "/machine"),
                                     &result, ibx_deadline_in_ms(GENEROUS), &error),
                     0);
    assert_string_equal(json_string_value(result), "q35");
    json_decref(result);
    done();
}

/* A QEMU whose monitor cannot read ahead is not asked to, and is told nothing that it might not
 * know. */
static void test_enables_only_what_is_offered(NO_STATE)
{
    static const char *const offers[] = {"", ", \"capabilities\": []",
                                         ", \"capabilities\": [\"oops\", 1, {}]"};
    for (size_t i = 0; i < sizeof(offers) / sizeof(offers[0]); i++) {
        char greeting[200];
        snprintf(
            greeting, sizeof(greeting),
            "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 2, \"major\": 7}}%s}}\n",
            offers[i]);
        const struct step steps[] = {
            {NULL, greeting, 0},
            {"{\"execute\":\"qmp_capabilities\",\"id\":1}", READY(1), 0},
            {0},
        };
        attached(steps);
        done();
    }
}

/* An unsigned number of 64 bits, as a property may be: the connection goes on. */
static void test_takes_great_numbers(NO_STATE)
{
    const struct step steps[] = {{NULL, GREETING, 0},
                                 {"qmp_capabilities", READY(1), 0},
                                 {"qom-get", "{\"return\": 18446744073709551615, \"id\": 2}\n", 0},
                                 {"query-status", "{\"return\": 5, \"id\": 3}\n", 0},
                                 {0}};
    json_t *result;
    attached(steps);
    assert_int_equal(run("qom-get", &result, GENEROUS), 0);
    assert_true(json_number_value(result) > 1e19);
    json_decref(result);
    assert_int_equal(run("query-status", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 5);
    json_decref(result);
    done();
}

static void test_passes_refusals_on(NO_STATE)
{
    attached(SCRIPT(
        {"cont",
         "{\"id\": 2, \"error\": {\"class\": \"GenericError\", \"desc\": \"no \\u001b[1mway\"}}\n",
         0},
        {"fly", "{\"id\": 3, \"error\": {\"class\": \"CommandNotFound\", \"desc\": \"gone\"}}\n",
         0}));
    json_t *result = (json_t *)&peer; /* untouched on failure */
    says(run("cont", &result, GENEROUS), -EREMOTEIO, "QEMU refused cont: no ?[1mway");
    assert_ptr_equal(result, &peer);
    says(run("fly", NULL, GENEROUS), -EOPNOTSUPP, "does not know fly");
    done();
}

static void ahead(const char *command, const char *path)
{
    ibx_qmp_ahead(qmp, command, path ? json_pack("{s:s}", "path", path) : NULL,
                  ibx_deadline_in_ms(GENEROUS));
}

static void listed(const char *path, json_int_t expected)
{
    json_t *result = NULL;
    assert_int_equal(ibx_qmp_execute(qmp, "qom-list", json_pack("{s:s}", "path", path), &result,
                                     ibx_deadline_in_ms(GENEROUS), &error),
                     0);
    assert_int_equal(json_integer_value(result), expected);
    json_decref(result);
}

/* QEMU gets all of them before it answers the first; each answer is that of its question, whatever
 * is asked first, and what was not sent before is sent then. */
static void test_questions_are_sent_ahead(NO_STATE)
{
    attached(SCRIPT({"\"path\":\"/a\"", NULL, 0}, {"\"path\":\"/b\"", NULL, 0}, {"fly", NULL, 0},
                    {"query-status",
                     "{\"return\": 10, \"id\": 2}\n{\"return\": 20, \"id\": 3}\n"
                     "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": \"no\"}, \"id\": 4}\n"
                     "{\"return\": 30, \"id\": 5}\n",
                     0},
                    {"\"path\":\"/c\"", "{\"return\": 40, \"id\": 6}\n", 0},
                    {"\"path\":\"/a\"", "{\"return\": 11, \"id\": 7}\n", 0}));
    ahead("qom-list", "/a");
    ahead("qom-list", "/b");
    ahead("fly", NULL);
    ahead("query-status", NULL);
    listed("/b", 20);
    listed("/c", 40);
    listed("/a", 10);
    says(run("fly", NULL, GENEROUS), -EOPNOTSUPP, "does not know fly");
    listed("/a", 11);
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 1);
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 0);
    done();
}

/* Those of a caller further out stay, and are not sent again when they are asked. */
static void test_questions_of_an_outer_caller_stay(NO_STATE)
{
    attached(SCRIPT({"\"path\":\"/a\"", NULL, 0}, {"\"path\":\"/b\"", NULL, 0},
                    {"\"path\":\"/c\"",
                     "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 3}\n"
                     "{\"return\": 3, \"id\": 4}\n",
                     0},
                    {"\"path\":\"/d\"", "{\"return\": 4, \"id\": 5}\n", 0}));
    ahead("qom-list", "/a");
    ahead("qom-list", "/b");
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    ahead("qom-list", "/a");
    ahead("qom-list", "/c");
    listed("/b", 2);
    assert_int_equal(ibx_qmp_ahead_end(qmp, before), 1);
    listed("/a", 1);
    listed("/d", 4);
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 0);
    done();
}

/* By two callers of which neither knows of the other. */
static void test_nothing_is_sent_ahead_twice(NO_STATE)
{
    attached(
        SCRIPT({"\"path\":\"/a\"", NULL, 0},
               {"\"path\":\"/b\"", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 3}\n", 0}));
    ahead("qom-list", "/a");
    ahead("qom-list", "/a");
    ahead("qom-list", "/b");
    listed("/a", 1);
    listed("/b", 2);
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 0);
    done();
}

/* The description of a VM is not made of what it was long ago. */
static void test_told_too_long_ago(NO_STATE)
{
    attached(SCRIPT({"query-cpus-fast", NULL, 0}));
    struct source_vm vm = {.qmp = qmp};
    ibx_describe_ask(qmp, ibx_deadline_in_ms(GENEROUS));
    vm.ahead_until_ns = UINT64_MAX;
    ibx_source_vm_check_ahead(&vm);
    assert_int_not_equal(ibx_qmp_ahead_end(qmp, 0), 0);
    ibx_describe_ask(qmp, ibx_deadline_in_ms(GENEROUS));
    vm.ahead_until_ns = ibx_now_ns() - 1;
    ibx_source_vm_check_ahead(&vm);
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 0);
    done();
}

/* One that nobody asked for is no answer to a later question. */
static void test_unasked_answers_are_dropped(NO_STATE)
{
    attached(
        SCRIPT({"\"path\":\"/a\"", NULL, 0},
               {"\"path\":\"/a\"", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 3}\n", 0}));
    ahead("qom-list", "/a");
    assert_int_equal(ibx_qmp_ahead_end(qmp, 0), 1);
    listed("/a", 2);
    done();
}

/* A QEMU that answers no question in time is asked again, and its late answer is dropped. */
static void test_late_answers_to_questions_ahead(NO_STATE)
{
    attached(SCRIPT({"slow", NULL, 0},
                    {"slow", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 3}\n", 0}));
    json_t *result = NULL;
    ahead("slow", NULL);
    says(run("slow", NULL, SHORT), -ETIMEDOUT, "did not answer slow in time");
    assert_int_equal(run("slow", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 2);
    json_decref(result);
    done();
}

static void test_late_answers_are_dropped(NO_STATE)
{
    json_t *result = NULL;
    attached(SCRIPT({"slow", NULL, 0}, {"slower", "{\"return\": 2, \"id\": 2}\n", 0},
                    {"quick", "{\"return\": 3, \"id\": 3}\n{\"return\": 4, \"id\": 4}\n", 0}));
    says(run("slow", NULL, 0), -ETIMEDOUT, "did not answer slow in time");
    says(run("slower", NULL, SHORT), -ETIMEDOUT, "did not answer slower in time");
    assert_int_equal(run("quick", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 4);
    json_decref(result);
    done();
}

/* One that comes while no call waits is not taken for that of the next command. */
static void test_answer_between_two_commands(NO_STATE)
{
    static const char late[] = "{\"return\": 2, \"id\": 2}\n";
    json_t *result = NULL;
    attached(SCRIPT({"first", NULL, 0}, {"second", "{\"return\": 3, \"id\": 3}\n", 0}));
    says(run("first", NULL, 0), -ETIMEDOUT, "did not answer first in time");
    assert_true(tell(&peer, late));
    assert_int_equal(ibx_qmp_pump(qmp, &error), 0);
    assert_int_equal(run("second", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 3);
    json_decref(result);
    done();
}

/* The answer to a posted command waits to be taken, whatever else is run meanwhile. */
static void test_posted(NO_STATE)
{
    json_t *result = NULL, *reply;
    attached(SCRIPT({"asked", NULL, 0},
                    {"quick", "{\"return\": 2, \"id\": 2}\n{\"return\": 3, \"id\": 3}\n", 0}));
    assert_int_equal(ibx_qmp_post(qmp, "asked", ibx_deadline_in_ms(GENEROUS), &error), 0);
    assert_null(ibx_qmp_reply(qmp));
    assert_int_equal(run("quick", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 3);
    reply = ibx_qmp_reply(qmp);
    assert_int_equal(json_integer_value(json_object_get(reply, "return")), 2);
    assert_null(ibx_qmp_reply(qmp));
    json_decref(reply);
    json_decref(result);
    done();
}

/* ... which is kept when another command could not be sent. */
static void test_posted_and_then_another_that_is_not_sent(NO_STATE)
{
    static const char much[4096];
    const struct step steps[] = {
        {NULL, GREETING, 0}, {"qmp_capabilities", READY(1), 0}, {"asked", NULL, 0}, {0}};
    deaf = true;
    attached(steps);
    deaf = false;
    assert_int_equal(ibx_qmp_post(qmp, "asked", ibx_deadline_in_ms(GENEROUS), &error), 0);
    pthread_join(peer.thread, NULL);
    while (send(ibx_qmp_fd(qmp), much, sizeof(much), MSG_DONTWAIT) > 0 ||
           send(ibx_qmp_fd(qmp), much, 1, MSG_DONTWAIT) > 0)
        ;
    says(ibx_qmp_post(qmp, "stop", 0, &error), -ETIMEDOUT, "stop was not sent");
    assert_true(tell(&peer, "{\"return\": 2, \"id\": 2}\n"));
    assert_int_equal(ibx_qmp_pump(qmp, &error), 0);
    says(ibx_qmp_post(qmp, "stop", 0, &error), -ETIMEDOUT, "stop was not sent");
    json_t *reply = ibx_qmp_reply(qmp);
    assert_int_equal(json_integer_value(json_object_get(reply, "return")), 2);
    json_decref(reply);
    ibx_qmp_close(qmp);
    qmp = NULL;
    close(peer.fd);
    if (peer.wrong[0])
        fail_msg("%s", peer.wrong);
}

static json_int_t machine(const char *property)
{
    json_t *value, *arguments = json_pack("{s:s, s:s}", "path", "/machine", "property", property);
    int rc =
        ibx_qmp_execute(qmp, "qom-get", arguments, &value, ibx_deadline_in_ms(GENEROUS), &error);
    json_int_t number = rc ? rc : json_integer_value(value);
    if (!rc)
        json_decref(value);
    return number;
}

static json_int_t first_of(const char *command)
{
    json_t *list;
    int rc = run(command, &list, GENEROUS);
    json_int_t number = rc ? rc : json_integer_value(json_array_get(list, 0));
    if (!rc)
        json_decref(list);
    return number;
}

/* A property of the machine is asked for once, but one that changes; and while it is wished so is
 * what lasts for a moment. */
static void test_remembers(NO_STATE)
{
    attached(SCRIPT({"usb", "{\"return\": 10, \"id\": 2}\r\n", 0},
                    {"suppress-vmdesc", "{\"return\": 20, \"id\": 3}\r\n", 0},
                    {"suppress-vmdesc", "{\"return\": 21, \"id\": 4}\r\n", 0},
                    {"query-jobs", "{\"return\": [30], \"id\": 5}\r\n", 0},
                    {"query-jobs", "{\"return\": [31], \"id\": 6}\r\n", 0},
                    {"query-migrate", "{\"return\": [40], \"id\": 7}\r\n", 0},
                    {"query-migrate", "{\"return\": [41], \"id\": 8}\r\n", 0},
                    {"query-jobs", "{\"return\": [32], \"id\": 9}\r\n", 0}));
    assert_int_equal(machine("usb"), 10);
    assert_int_equal(machine("suppress-vmdesc"), 20);
    assert_int_equal(machine("suppress-vmdesc"), 21);
    assert_int_equal(machine("usb"), 10);
    assert_int_equal(first_of("query-jobs"), 30);
    ibx_qmp_remember(qmp, true);
    assert_int_equal(first_of("query-jobs"), 31);
    assert_int_equal(first_of("query-migrate"), 40);
    assert_int_equal(first_of("query-migrate"), 41);
    assert_int_equal(first_of("query-jobs"), 31);
    ibx_qmp_remember(qmp, false);
    assert_int_equal(first_of("query-jobs"), 32);
    assert_int_equal(machine("usb"), 10);
    done();
}

static void test_passes_a_descriptor(NO_STATE)
{
    attached(SCRIPT(
        {"{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"listener\"},\"id\":2}", READY(2), 0}));
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(ibx_qmp_getfd(qmp, "listener", fd, ibx_deadline_in_ms(GENEROUS), &error), 0);
    struct stat ours, theirs;
    assert_int_equal(fstat(fd, &ours), 0);
    assert_int_equal(fstat(peer.received_fd, &theirs), 0);
    assert_true(ours.st_rdev == theirs.st_rdev);
    close(fd);
    close(peer.received_fd);
    done();
}

/* ------------------------------------------------------------ events */

/* They come in their order, those before an answer too. */
static void test_queues_events(NO_STATE)
{
    static const char *const names[] = {"SETUP", "STOP", "ACTIVE"};
    attached(SCRIPT(
        {"go",
         "{\"event\": \"SETUP\"}\n{\"event\": \"STOP\"}\n" READY(2) "{\"event\": \"ACTIVE\"}\n",
         0}));
    assert_false(ibx_qmp_has_events(qmp));
    assert_int_equal(run("go", NULL, GENEROUS), 0);
    const uint64_t soon = ibx_deadline_in_ms(GENEROUS);
    for (unsigned i = 0; i < 3; i++) {
        json_t *event;
        assert_true(i == 2 || ibx_qmp_has_events(qmp));
        while (!(event = ibx_qmp_event_next(qmp)) && ibx_now_ns() < soon)
            ibx_qmp_pump(qmp, &error);
        assert_string_equal(json_string_value(json_object_get(event, "event")), names[i]);
        json_decref(event);
    }
    assert_false(ibx_qmp_has_events(qmp));
    assert_null(ibx_qmp_event_next(qmp));
    done();
}

static void test_keeps_the_newest_events(NO_STATE)
{
    attached(SCRIPT({"flood", "{\"event\": \"RTC_CHANGE\"}\n", 3 * IBX_QMP_EVENTS_MAX},
                    {NULL, "{\"event\": \"STOP\"}\n" READY(2), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    unsigned count = 0;
    json_t *event, *last = NULL;
    for (; (event = ibx_qmp_event_next(qmp)); count++) {
        json_decref(last);
        last = event;
    }
    assert_int_equal(count, IBX_QMP_EVENTS_MAX);
    assert_string_equal(json_string_value(json_object_get(last, "event")), "STOP");
    json_decref(last);
    done();
}

/* ------------------------------------------------------------ bad peers */

static void refuses(const struct step *steps, int code, const char *words)
{
    says(attach(steps, GENEROUS), code, words);
    assert_null(qmp);
    done();
}

static void test_bad_greetings(NO_STATE)
{
    refuses((const struct step[]){{NULL, "SSH-2.0-OpenSSH\r\n", 0}, {0}}, -EPROTO, "not a JSON");
    refuses((const struct step[]){{NULL, "{\"hello\": 1}\n", 0}, {0}}, -EPROTO, "no QEMU version");
    refuses((const struct step[]){{NULL, "[1]\n", 0}, {0}}, -EPROTO, "not a JSON object");
    refuses((const struct step[]){{0}}, -ECONNRESET, "closed its QMP socket");
    refuses((const struct step[]){{NULL, GREETING, 0}, {0}}, -ECONNRESET, "closed its QMP socket");
}

static void test_silent_monitor(NO_STATE)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_attach(pair[0], ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT,
         "one client at a time");
    close(pair[1]);
}

static void test_endless_line(NO_STATE)
{
    char *much = malloc(65537);
    memset(much, '[', 65536);
    much[65536] = '\0';
    refuses((const struct step[]){{NULL, GREETING, 0}, {NULL, much, 200}, {0}}, -EMSGSIZE,
            "longer than 8 MiB");
    free(much);
}

/* QEMU answers the next client what an earlier one has asked: in whatever state this one is until
 * its first answer, which is behind it. */
static void test_answers_to_an_earlier_client(NO_STATE)
{
#define FOREIGN "{\"return\": {}, \"id\" : 3}\r\n"
    const struct step steps[] = {
        {NULL, FOREIGN, 0},
        {NULL, GREETING, 0},
        {"qmp_capabilities",
         FOREIGN "{\"return\": {}, \"id\" : 1}\r\n{\"return\": {}, \"id\" : \"other\"}\r\n"
                 "{\"error\": {\"desc\": \"no\"}}\r\n" READY(1),
         0},
        {"query-status", "{\"return\": 5, \"id\": 2}\n", 0},
        {"query-jobs", FOREIGN, 0},
        {0}};
    json_t *result;
    attached(steps);
    assert_int_equal(run("query-status", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 5);
    json_decref(result);
    says(run("query-jobs", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
}

/* Two clients of one QEMU do not use the same ids. */
static void test_ids_of_two_clients(NO_STATE)
{
    const struct step steps[] = {GREETED, {0}};
    attached(steps);
    done();
    const json_int_t first = peer.before;
    attached(steps);
    done();
    assert_true(first > 0 && peer.before > 0 && first != peer.before);
    assert_true(first < (1ll << 53) && peer.before < (1ll << 53));
}

/* QEMU greets twice who comes while it begins, and wants to negotiate after that. */
static void test_greeted_twice(NO_STATE)
{
    static const char again[] = "{\"error\": {\"class\": \"CommandNotFound\", \"desc\": "
                                "\"Capabilities negotiation is already complete\"}, \"id\": 2}\n";
    attached((const struct step[]){{NULL, GREETING GREETING, 0},
                                   {"qmp_capabilities", READY(1), 0},
                                   {"query-status", "{\"return\": 5, \"id\": 2}\n", 0},
                                   {0}});
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    for (unsigned i = 0; i < 2; i++) {
        attached((const struct step[]){{NULL, GREETING, 0},
                                       {"qmp_capabilities", GREETING READY(1), 0},
                                       {"qmp_capabilities", i ? again : READY(2), 0},
                                       {"query-status", "{\"return\": 5, \"id\": 3}\n", 0},
                                       {0}});
        assert_int_equal(run("query-status", NULL, GENEROUS), 0);
        done();
    }
}

/* A peer that answers a command twice, or after a later one, is trusted in nothing any more. */
static void test_answered_twice(NO_STATE)
{
    attached(SCRIPT({"status", "{\"return\": 1, \"id\": 2}\n{\"return\": 2, \"id\": 2}\n", 0}));
    json_t *result = NULL;
    assert_int_equal(run("status", &result, GENEROUS), 0);
    assert_int_equal(json_integer_value(result), 1);
    json_decref(result);
    says(run("status", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
    attached(SCRIPT({"one", NULL, 0},
                    {"two", "{\"return\": 2, \"id\": 3}\n{\"return\": 1, \"id\": 2}\n", 0}));
    says(run("one", NULL, 0), -ETIMEDOUT, "did not answer one in time");
    assert_int_equal(run("two", NULL, GENEROUS), 0);
    says(run("three", NULL, GENEROUS), -EPROTO, "was not asked");
    done();
}

static void test_death_is_remembered(NO_STATE)
{
    attached(SCRIPT({"quit", READY(2) "{\"event\": \"SHUTDOWN\"}\n", 0}));
    assert_int_equal(run("quit", NULL, GENEROUS), 0);
    for (unsigned i = 0; i < 2; i++) {
        says(run("query-status", NULL, GENEROUS), -ECONNRESET, "closed");
        says(ibx_qmp_pump(qmp, &error), -ECONNRESET, "closed");
    }
    assert_true(ibx_qmp_has_events(qmp)); /* what came before it is not lost */
    done();
}

/* Commands fill the socket, and the one that no longer fits fails at its deadline. */
static void test_peer_that_does_not_read(NO_STATE)
{
    const struct step steps[] = {{NULL, GREETING, 0}, {"qmp_capabilities", READY(1), 0}, {0}};
    deaf = true;
    attached(steps);
    deaf = false;
    char *much = calloc(1, 100001);
    memset(much, 'x', 100000);
    int rc;
    do
        rc = ibx_qmp_execute(qmp, "cont", json_pack("{s:s}", "why", much), NULL, 0, &error);
    while (rc == -ETIMEDOUT && strstr(error.message, "did not answer"));
    free(much);
    says(rc, -ETIMEDOUT, "QEMU stopped reading its QMP socket");
    says(run("cont", NULL, GENEROUS), -ETIMEDOUT, "QEMU stopped reading its QMP socket");
    done();
}

static void test_bad_paths(NO_STATE)
{
    char path[200];
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ENAMETOOLONG, "107");
    says(ibx_qmp_connect("/nowhere/at/all", ibx_deadline_in_ms(SHORT), &qmp, &error), -ENOENT,
         "unix:/nowhere/at/all,server=on,wait=off");
}

/* In a folder so deep that no socket's address has room for it: it was made from there. */
static void test_deep_folder(NO_STATE)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char top[] = "/tmp/ibx-qmp-XXXXXX", deep[160], path[200];
    assert_non_null(mkdtemp(top));
    snprintf(deep, sizeof(deep), "%s/%0120d", top, 0);
    snprintf(path, sizeof(path), "%s/qmp", deep);
    assert_int_equal(mkdir(deep, 0700), 0);
    int folder = open(deep, O_PATH | O_CLOEXEC), fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/qmp", folder);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 1), 0);
    memset(&error, 0, sizeof(error));
    /* No process accepts, but the socket is there. */
    assert_int_equal(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT);
    close(fd);
    close(folder);
    unlink(path);
    rmdir(deep);
    rmdir(top);
    assert_int_equal(ibx_qmp_connect(path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ENOENT);
}

/* A listener whose backlog is full must not hold the caller. */
static void test_full_backlog(NO_STATE)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "/tmp/ibx-test-qmp.%d", getpid());
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(listener, 0), 0);
    int filler[8];
    size_t n = 0;
    for (bool full = false; !full && n < 8; n++) {
        filler[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        full = connect(filler[n], (struct sockaddr *)&at, sizeof(at)) && errno == EAGAIN;
    }
    memset(&error, 0, sizeof(error));
    says(ibx_qmp_connect(at.sun_path, ibx_deadline_in_ms(SHORT), &qmp, &error), -ETIMEDOUT,
         "a -qmp socket of its own");
    while (n)
        close(filler[--n]);
    close(listener);
    unlink(at.sun_path);
}

/* Without its answer nobody knows that all was protected: a question that could not be sent is
 * asked again. */
static void test_the_guard_asks_until_it_has_asked(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_guard_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.guard.state.now = GUARD_ARMED; /* and the question behind it was not sent */
    s.guarding.now = GUARDING_NOTED;
    ibx_source_guard(&s);
    assert_int_equal(s.guarding.now, GUARDING_ASKED);
    ibx_source_guard(&s); /* once */
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS); ibx_now_ns() < by;) {
        ibx_qmp_pump(qmp, NULL);
        ibx_source_guard_answered(&s);
        if (s.guarding.now == GUARDING_WHOLE)
            break;
    }
    assert_int_equal(s.guarding.now, GUARDING_WHOLE);
    done();
}

/* An answer to what was asked when every page had come, whatever the guard had come to; with what
 * QEMU told before it nothing is known. */
static void test_asks_when_every_page_has_come(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", "{\"event\": \"RESET\"}\r\n" READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_guard_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    assert_int_equal(ibx_state_move(&s.guarding, GUARDING_IMPOSSIBLE), 0);
    ibx_source_all_came(&s);
    assert_int_equal(s.guarding.now, GUARDING_LAST);
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS);
         ibx_now_ns() < by && s.guarding.now != GUARDING_NEEDLESS;) {
        ibx_qmp_pump(qmp, NULL);
        assert_true(ibx_qmp_has_events(qmp) || s.guarding.now == GUARDING_LAST);
        ibx_source_guard_answered(&s);
    }
    assert_int_equal(s.guarding.now, GUARDING_NEEDLESS);
    assert_true(ibx_qmp_has_events(qmp));
    done();
}

/* A guard that was whole is not given up because every page has come before QEMU said so. */
static void test_a_whole_guard_when_every_page_has_come(NO_STATE)
{
    static struct source s;
    static const struct ibx_send_options options = {.folder = "/nonexistent"};
    attached(SCRIPT({"query-status", NULL, 0}, {"query-status", READY(2) READY(3), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_guard_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.guard.state.now = GUARD_ARMED;
    s.guarding.now = GUARDING_NOTED;
    ibx_source_guard(&s);
    assert_int_equal(s.guarding.now, GUARDING_ASKED);
    ibx_source_all_came(&s);
    assert_int_equal(s.guarding.now, GUARDING_LAST);
    for (const uint64_t by = ibx_deadline_in_ms(GENEROUS);
         ibx_now_ns() < by && s.guarding.now == GUARDING_LAST;) {
        ibx_qmp_pump(qmp, NULL);
        ibx_source_guard_answered(&s);
    }
    assert_int_equal(s.guarding.now, GUARDING_WHOLE);
    done();
}

/* What no record can name, since it was removed, is not tried again in each turn. */
static void test_no_guard_without_a_record(NO_STATE)
{
    static struct source s;
    char folder[] = "/tmp/ibx-test-qmp-XXXXXX";
    struct ibx_send_options options = {.folder = folder};
    assert_non_null(mkdtemp(folder));
    attached(SCRIPT({"query-status", READY(2), 0}));
    s = (struct source){.options = &options, .vm.qmp = qmp};
    s.status.record = (struct ibx_record){
        .source = true, .epoch = 3, .state = IBX_JOURNAL_MAY_RUN, .uffd = -1, .pid = getpid()};
    ibx_source_vm_drive(&s.vm, false);
    ibx_source_warm_init(&s.warm);
    ibx_source_guard_init(&s);
    assert_int_equal(ibx_source_begin(&s, SOURCE_SERVING), 0);
    s.guard.state.now = GUARD_MADE;
    ibx_source_guard(&s);
    assert_int_equal(s.guarding.now, GUARDING_IMPOSSIBLE);
    assert_int_equal(s.guard.state.now, GUARD_NONE);
    assert_int_equal(s.note_ns, 0); /* the link is closed, as by any other note */
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    done();
    assert_int_equal(rmdir(folder), 0);
}

#define MIGRATED(pages, id)                                                                        \
    "{\"return\": {\"total-time\": 10, \"downtime\": 1, \"setup-time\": 2, \"ram\": "              \
    "{\"normal\": " #pages "}}, \"id\": " #id "}\r\n"

/* Migrations that took as long as each other are told apart by what they have sent. */
static void test_a_marked_migration(NO_STATE)
{
    const int any = open("/dev/null", O_RDONLY | O_CLOEXEC);
    attached(
        SCRIPT({"query-migrate", MIGRATED(5, 2), 0}, {"-ended-10-1-2-5\"", READY(3), 0},
               {"query-migrate", MIGRATED(6, 4), 0},
               {"-ended-10-1-2-6\"", "{\"error\": {\"desc\": \"not found\"}, \"id\": 5}\r\n", 0},
               {"query-migrate", MIGRATED(5, 6), 0}, {"-ended-10-1-2-5\"", READY(7), 0},
               {"-ended-10-1-2-5\"", READY(8), 0}));
    ibx_hold_mark(qmp, any, ibx_deadline_in_ms(GENEROUS));
    assert_false(ibx_hold_marked(qmp, any, ibx_deadline_in_ms(GENEROUS)));
    assert_true(ibx_hold_marked(qmp, any, ibx_deadline_in_ms(GENEROUS)));
    close(any);
    done();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_returns_what_qemu_returns),
        cmocka_unit_test(test_enables_only_what_is_offered),
        cmocka_unit_test(test_takes_great_numbers),
        cmocka_unit_test(test_passes_refusals_on),
        cmocka_unit_test(test_questions_are_sent_ahead),
        cmocka_unit_test(test_unasked_answers_are_dropped),
        cmocka_unit_test(test_late_answers_to_questions_ahead),
        cmocka_unit_test(test_late_answers_are_dropped),
        cmocka_unit_test(test_answer_between_two_commands),
        cmocka_unit_test(test_posted),
        cmocka_unit_test(test_posted_and_then_another_that_is_not_sent),
        cmocka_unit_test(test_remembers),
        cmocka_unit_test(test_questions_of_an_outer_caller_stay),
        cmocka_unit_test(test_nothing_is_sent_ahead_twice),
        cmocka_unit_test(test_told_too_long_ago),
        cmocka_unit_test(test_passes_a_descriptor),
        cmocka_unit_test(test_queues_events),
        cmocka_unit_test(test_keeps_the_newest_events),
        cmocka_unit_test(test_bad_greetings),
        cmocka_unit_test(test_silent_monitor),
        cmocka_unit_test(test_endless_line),
        cmocka_unit_test(test_answers_to_an_earlier_client),
        cmocka_unit_test(test_ids_of_two_clients),
        cmocka_unit_test(test_greeted_twice),
        cmocka_unit_test(test_answered_twice),
        cmocka_unit_test(test_death_is_remembered),
        cmocka_unit_test(test_peer_that_does_not_read),
        cmocka_unit_test(test_bad_paths),
        cmocka_unit_test(test_deep_folder),
        cmocka_unit_test(test_full_backlog),
        cmocka_unit_test(test_the_guard_asks_until_it_has_asked),
        cmocka_unit_test(test_asks_when_every_page_has_come),
        cmocka_unit_test(test_a_whole_guard_when_every_page_has_come),
        cmocka_unit_test(test_no_guard_without_a_record),
        cmocka_unit_test(test_a_marked_migration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
