/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The QMP client with a scripted peer. */
#include "migrate/preflight/preflight.h"
#include "migrate/source/vm.h"
#include "tests/fixtures/qmp_peer.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
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

/* -qmp-pretty writes messages of many lines, of which only the first and the last are not
 * indented. */
static void test_takes_messages_of_many_lines(NO_STATE)
{
    static const char greeting[] =
        "{\r\n    \"QMP\": {\r\n        \"version\": {\r\n            \"qemu\": {\r\n"
        "                \"micro\": 22,\r\n                \"minor\": 2,\r\n"
        "                \"major\": 7\r\n            }\r\n        },\r\n"
        "        \"capabilities\": [\r\n            \"oob\"\r\n        ]\r\n    }\r\n}\r\n";
    static const char answers[] =
        "{\n    \"timestamp\": {\n    },\n    \"event\": \"STOP\"\n}\n"
        "{\"event\": \"RESUME\"}\n"
        "{\r\n    \"return\": [\r\n        {\r\n        },\r\n        \"a}\"\r\n    ],\r\n"
        "    \"id\": 2\r\n}\r\n";
    const struct step steps[] = {{NULL, greeting, 0},
                                 {"qmp_capabilities", "{\r\n    \"return\": {\r\n    },\r\n", 0},
                                 {NULL, "    \"id\": 1\r\n}", 0},
                                 {NULL, "\r\n", 0},
                                 {"query-blocks", answers, 0},
                                 {0}};
    json_t *result = NULL;
    attached(steps);
    assert_int_equal(ibx_qmp_version(qmp).micro, 22);
    assert_int_equal(run("query-blocks", &result, GENEROUS), 0);
    assert_string_equal(json_string_value(json_array_get(result, 1)), "a}");
    json_decref(result);
    for (unsigned i = 0; i < 2; i++) {
        json_t *event = ibx_qmp_event_next(qmp);
        assert_string_equal(json_string_value(json_object_get(event, "event")),
                            i ? "RESUME" : "STOP");
        json_decref(event);
    }
    done();
}

/* A QEMU whose monitor cannot execute out of band is not asked to, and gets no member that it
 * might not know. */
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

/* An unsigned number of 64 bits, such as a property may have, does not end the connection. */
static void test_takes_large_numbers(NO_STATE)
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

/* The id of an answer may be any number. One outside the range of integers, or one that is not a
 * number, is not an id of ours. Without a space after "id" the scripted peer sends it unchanged. */
static void test_takes_ids_out_of_range(NO_STATE)
{
    static const char *const ids[] = {"18446744073709551616", "1e68", "-1e68", "-1", "0", "\"2\""};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        char answer[80];
        snprintf(answer, sizeof(answer), "{\"return\": {}, \"id\":%s}\n", ids[i]);
        attached(SCRIPT({"cont", answer, 0}));
        says(run("cont", NULL, GENEROUS), -EPROTO, "answered a command that was not asked");
        done();
    }
}

static void test_passes_refusals_on(NO_STATE)
{
    attached(SCRIPT(
        {"cont",
         "{\"id\": 2, \"error\": {\"class\": \"GenericError\", \"desc\": \"no \\u001b[1mway\"}}\n",
         0},
        {"fly", "{\"id\": 3, \"error\": {\"class\": \"CommandNotFound\", \"desc\": \"gone\"}}\n",
         0}));
    json_t *result = (json_t *)&peer; /* unchanged on failure */
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

/* QEMU gets all questions before it answers the first. Each caller gets the answer to its
 * question, in whatever order they ask, and questions that had not been sent are sent then. */
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

/* Questions of an outer caller stay, and are not sent again when that caller asks them. */
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

/* Two callers that do not know of each other ask the same. */
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

/* The description of a VM must not be made of old answers. */
static void test_old_answers_are_not_used(NO_STATE)
{
    attached(SCRIPT({"query-kvm", NULL, 0}));
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

/* An answer without a question does not answer a later question. */
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

/* A QEMU that does not answer in time is asked again, and its late answer is dropped. */
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

/* An answer that arrives while no call waits is not taken for the next command's. */
static void test_answer_between_two_commands(NO_STATE)
{
    static const char late[] = "{\"return\": 2, \"id\" : 2}\n"; /* the peer may not have read it */
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

/* The answer to a posted command is kept until it is taken, whatever commands run meanwhile. */
static void test_posted_command(NO_STATE)
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

/* It is also kept if another command could not be sent. */
static void test_posted_answer_stays_if_another_is_not_sent(NO_STATE)
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

static json_int_t of(const char *path, const char *property)
{
    json_t *value, *arguments = json_pack("{s:s, s:s}", "path", path, "property", property);
    int rc =
        ibx_qmp_execute(qmp, "qom-get", arguments, &value, ibx_deadline_in_ms(GENEROUS), &error);
    json_int_t number = rc ? rc : json_integer_value(value);
    if (!rc)
        json_decref(value);
    return number;
}

static json_int_t machine(const char *property)
{
    return of("/machine", property);
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

/* A constant property of the machine is asked for only once; one that may change is asked for
 * each time, unless the caller wants short-lived answers to be remembered. */
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

static bool is_pmu(const char *property)
{
    return !strcmp(property, "pmu");
}

/* So are constant properties of one other object; an answer without them is not kept. */
static void test_remembers_an_object(NO_STATE)
{
    attached(SCRIPT({"pmu", "{\"return\": 1, \"id\": 2}\r\n", 0},
                    {"pmu", "{\"error\": {\"desc\": \"no\"}, \"id\": 3}\r\n", 0},
                    {"pmu", "{\"return\": 2, \"id\": 4}\r\n", 0},
                    {"family", "{\"return\": 3, \"id\": 5}\r\n", 0},
                    {"family", "{\"return\": 4, \"id\": 6}\r\n", 0},
                    {"/b", "{\"return\": 5, \"id\": 7}\r\n", 0},
                    {"/b", "{\"return\": 6, \"id\": 8}\r\n", 0},
                    {"/b", "{\"return\": 7, \"id\": 9}\r\n", 0}));
    assert_int_equal(of("/a", "pmu"), 1);
    ibx_qmp_fix(qmp, "/a", is_pmu);
    assert_int_equal(of("/a", "pmu"), -EREMOTEIO);
    assert_int_equal(of("/a", "pmu"), 2);
    assert_int_equal(of("/a", "pmu"), 2);
    assert_int_equal(of("/a", "family"), 3);
    assert_int_equal(of("/a", "family"), 4);
    assert_int_equal(of("/b", "pmu"), 5);
    assert_int_equal(of("/b", "pmu"), 6);
    ibx_qmp_fix(qmp, "/b", is_pmu);
    assert_int_equal(of("/b", "pmu"), 7);
    assert_int_equal(of("/b", "pmu"), 7);
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

/* The kernel drops a descriptor that its receiver may not have, and QEMU sees none. */
static void test_a_descriptor_that_does_not_arrive(NO_STATE)
{
    attached(SCRIPT({"getfd",
                     "{\"id\": 2, \"error\": {\"class\": \"GenericError\", \"desc\": \"No file "
                     "descriptor supplied via SCM_RIGHTS\"}}\r\n",
                     0}));
    const int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(ibx_qmp_getfd(qmp, "a", fd, ibx_deadline_in_ms(GENEROUS), &error), -EREMOTEIO);
    assert_non_null(strstr(error.message, "No file descriptor supplied"));
    assert_non_null(strstr(error.message, "raise QEMU's limit of descriptors"));
    assert_non_null(strstr(error.message, "SELinux, AppArmor"));
    close(fd);
    close(peer.received_fd);
    done();
}

/* ------------------------------------------------------------ events */

/* Events are kept in order, also those that arrive before an answer. */
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

/* Events that a guest can cause repeatedly do not displace those that a migration waits for. */
static void test_keeps_what_migrations_need(NO_STATE)
{
    attached(SCRIPT({"flood", "{\"event\": \"RTC_CHANGE\"}\n", 3},
                    {NULL, "{\"event\": \"SUSPEND\"}\n", 0}, {NULL, "{\"event\": \"STOP\"}\n", 0},
                    {NULL, "{\"event\": \"ACPI_DEVICE_OST\"}\n", 3 * IBX_QMP_EVENTS_MAX},
                    {NULL, READY(2), 0},
                    {"more", "{\"event\": \"RESUME\", \"data\": {}}\n", IBX_QMP_EVENTS_MAX + 9},
                    {NULL, READY(3), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    assert_true(next_is("SUSPEND", false));
    assert_true(next_is("STOP", false));
    assert_int_equal(run("more", NULL, GENEROUS), 0);
    for (unsigned i = 0; i < IBX_QMP_EVENTS_MAX; i++)
        assert_true(next_is("RESUME", true));
    assert_false(ibx_qmp_has_events(qmp));
    done();
}

/* They say why the VM is stopped, or its QEMU has ended. Of panics, which a guest can report
 * without end, only the last one stays. */
static void test_keeps_what_stops_a_vm(NO_STATE)
{
    attached(SCRIPT(
        {"flood", "{\"event\": \"WATCHDOG\"}\n", 0}, {NULL, "{\"event\": \"GUEST_PANICKED\"}\n", 0},
        {NULL, "{\"event\": \"STOP\"}\n", 0},
        {NULL, "{\"event\": \"ACPI_DEVICE_OST\"}\n", 3 * IBX_QMP_EVENTS_MAX}, {NULL, READY(2), 0},
        {"more", "{\"event\": \"GUEST_PANICKED\", \"data\": {}}\n", 3 * IBX_QMP_EVENTS_MAX},
        {NULL, READY(3), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    assert_true(next_is("WATCHDOG", false));
    assert_int_equal(run("more", NULL, GENEROUS), 0);
    assert_true(next_is("STOP", false));
    for (unsigned i = 0; i < IBX_QMP_EVENTS_MAX - 3; i++)
        assert_true(next_is("ACPI_DEVICE_OST", false));
    assert_true(next_is("GUEST_PANICKED", true));
    assert_false(ibx_qmp_has_events(qmp));
    done();
}

/* The oldest event that is not needed goes first, also behind a panic that has come again. */
static void test_drops_the_oldest_beside_panics(NO_STATE)
{
    attached(SCRIPT({"flood", "{\"event\": \"WATCHDOG\"}\n{\"event\": \"GUEST_PANICKED\"}\n", 0},
                    {NULL, "{\"event\": \"RTC_CHANGE\"}\n", 2},
                    {NULL, "{\"event\": \"ACPI_DEVICE_OST\"}\n", IBX_QMP_EVENTS_MAX - 3},
                    {NULL, "{\"event\": \"GUEST_PANICKED\"}\n", 0},
                    {NULL, "{\"event\": \"ACPI_DEVICE_OST\"}\n" READY(2), 0}));
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    assert_true(next_is("WATCHDOG", false));
    for (unsigned i = 0; i < IBX_QMP_EVENTS_MAX - 3; i++)
        assert_true(next_is("ACPI_DEVICE_OST", false));
    assert_true(next_is("GUEST_PANICKED", false));
    assert_true(next_is("ACPI_DEVICE_OST", false));
    assert_false(ibx_qmp_has_events(qmp));
    done();
}

/* A thousand events of megabytes each are not kept in full. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_returns_what_qemu_returns),
        cmocka_unit_test(test_takes_messages_of_many_lines),
        cmocka_unit_test(test_enables_only_what_is_offered),
        cmocka_unit_test(test_takes_large_numbers),
        cmocka_unit_test(test_takes_ids_out_of_range),
        cmocka_unit_test(test_passes_refusals_on),
        cmocka_unit_test(test_questions_are_sent_ahead),
        cmocka_unit_test(test_unasked_answers_are_dropped),
        cmocka_unit_test(test_late_answers_to_questions_ahead),
        cmocka_unit_test(test_late_answers_are_dropped),
        cmocka_unit_test(test_answer_between_two_commands),
        cmocka_unit_test(test_posted_command),
        cmocka_unit_test(test_posted_answer_stays_if_another_is_not_sent),
        cmocka_unit_test(test_remembers),
        cmocka_unit_test(test_remembers_an_object),
        cmocka_unit_test(test_questions_of_an_outer_caller_stay),
        cmocka_unit_test(test_nothing_is_sent_ahead_twice),
        cmocka_unit_test(test_old_answers_are_not_used),
        cmocka_unit_test(test_passes_a_descriptor),
        cmocka_unit_test(test_a_descriptor_that_does_not_arrive),
        cmocka_unit_test(test_queues_events),
        cmocka_unit_test(test_keeps_the_newest_events),
        cmocka_unit_test(test_keeps_what_migrations_need),
        cmocka_unit_test(test_keeps_what_stops_a_vm),
        cmocka_unit_test(test_drops_the_oldest_beside_panics),
        cmocka_unit_test(test_keeps_no_long_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
