/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client against a scripted peer. */
#include "migrate/preflight/preflight.h"
#include "migrate/source/vm.h"
#include "tests/scenes/qmp_peer.h"

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

static bool next_is(const char *name, bool data)
{
    json_t *event = ibx_qmp_event_next(qmp);
    const char *is = json_string_value(json_object_get(event, "event"));
    const bool yes = is && !strcmp(is, name) && (json_object_get(event, "data") != NULL) == data;
    json_decref(event);
    return yes;
}

/* What a guest can have its QEMU report again and again pushes nothing out that a migration waits
 * for. */
static void test_keeps_what_migrations_need(NO_STATE)
{
    attached(SCRIPT(
        {"flood", "{\"event\": \"RTC_CHANGE\"}\n", 3}, {NULL, "{\"event\": \"STOP\"}\n", 0},
        {NULL, "{\"event\": \"ACPI_DEVICE_OST\"}\n", 3 * IBX_QMP_EVENTS_MAX}, {NULL, READY(2), 0},
        {"more", "{\"event\": \"RESUME\", \"data\": {}}\n", IBX_QMP_EVENTS_MAX + 9},
        {NULL, READY(3), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    assert_true(next_is("STOP", false));
    assert_int_equal(run("more", NULL, GENEROUS), 0);
    for (unsigned i = 0; i < IBX_QMP_EVENTS_MAX; i++)
        assert_true(next_is("RESUME", true));
    assert_false(ibx_qmp_has_events(qmp));
    done();
}

/* A thousand events of megabytes are not kept as they are. */
static void test_keeps_no_long_events(NO_STATE)
{
    static char text[1 << 20];
    const int n = snprintf(text, sizeof(text), "{\"event\": \"STOP\", \"data\": {\"is\": \"");
    memset(text + n, 'x', sizeof(text) - (size_t)n - 8);
    strcpy(text + sizeof(text) - 8, "\"}}\n");
    attached(SCRIPT({"flood", text, 0}, {NULL, READY(2), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    assert_true(next_is("STOP", false));
    done();
}

/* ------------------------------------------------------------ bad peers */

#define EVENT "{\"event\": \"RTC_CHANGE\"}\n"

#define FLOOD 1024u  /* bytes of one: a call ends behind so many bytes, or its deadline */
static bool flooded; /* there is always something to read, whoever sends faster than it is read */

ssize_t __real_recv(int fd, void *buffer, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags);

ssize_t __wrap_recv(int fd, void *buffer, size_t size, int flags)
{
    if (!flooded || size < FLOOD)
        return __real_recv(fd, buffer, size, flags);
    memset(buffer, ' ', FLOOD);
    memcpy((char *)buffer + FLOOD - strlen(EVENT), EVENT, strlen(EVENT));
    return FLOOD;
}

/* The call ends all the same. */
static void test_flood_without_an_answer(NO_STATE)
{
    attached(SCRIPT({"query-status", EVENT, 0}, {"query-status", NULL, 0}));
    flooded = true;
    says(run("query-status", NULL, SHORT), -ETIMEDOUT, "did not answer query-status in time");
    says(run("query-status", NULL, SHORT), -ETIMEDOUT, "did not answer query-status in time");
    flooded = false;
    done();
}

static void test_flood_without_a_greeting(NO_STATE)
{
    const struct step steps[] = {{NULL, EVENT, 0}, {0}};
    flooded = true;
    says(attach(steps, SHORT), -ETIMEDOUT, "no greeting came");
    flooded = false;
    done();
}

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
        cmocka_unit_test(test_keeps_what_migrations_need),
        cmocka_unit_test(test_keeps_no_long_events),
        cmocka_unit_test(test_flood_without_an_answer),
        cmocka_unit_test(test_flood_without_a_greeting),
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
