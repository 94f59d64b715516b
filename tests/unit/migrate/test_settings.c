/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* QEMU's migration settings, with simulated QEMUs: newer ones, and ones that refuse. */
#include "migrate/preflight/preflight.h"
#include "tests/fixtures/patience.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ON(name)   "{\"capability\": \"" name "\", \"state\": true}"
#define OFF(name)  "{\"capability\": \"" name "\", \"state\": false}"
#define NEEDED     OFF("x-ignore-shared") ", " ON("events")
#define GENEROUS   patience_ms(20000)
#define LINE_BYTES 4096

/* A QEMU with these settings. It notes what it is told to set, and may refuse it. */
static struct fake {
    const char *capabilities, *parameters;
    bool refuses;
    int fd;
    char told[2 * LINE_BYTES]; /* the commands and their arguments, in order */
    pthread_t thread;
} fake;
static struct ibx_qmp *qmp;
static struct ibx_error error;
static struct ibx_settings settings;

static void answer(const char *line)
{
    json_t *command = json_loads(line, 0, NULL);
    const char *name = json_string_value(json_object_get(command, "execute"));
    const json_int_t id = json_integer_value(json_object_get(command, "id"));
    const char *result = !strcmp(name, "query-migrate-capabilities") ? fake.capabilities
                         : !strcmp(name, "query-migrate-parameters") ? fake.parameters
                                                                     : "{}";
    const bool sets = !strncmp(name, "migrate-set-", 12);
    if (sets) {
        char *arguments = json_dumps(json_object_get(command, "arguments"), JSON_COMPACT);
        const size_t used = strlen(fake.told);
        snprintf(fake.told + used, sizeof(fake.told) - used, "%s%s%s", name + 12, arguments,
                 fake.refuses ? " refused " : " ");
        free(arguments);
    }
    if (sets && fake.refuses)
        dprintf(fake.fd,
                "{\"error\": {\"class\": \"GenericError\", \"desc\": \"not now\"}, \"id\": %lld}\n",
                (long long)id);
    else
        dprintf(fake.fd, "{\"return\": %s, \"id\": %lld}\n", result, (long long)id);
    json_decref(command);
}

static void *fake_run(void *argument)
{
    char line[LINE_BYTES];
    FILE *in = fdopen(dup(fake.fd), "r");
    dprintf(fake.fd, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 0, \"minor\": 0, \"major\": "
                     "12}}, \"capabilities\": []}}\n");
    while (fgets(line, sizeof(line), in))
        answer(line);
    fclose(in);
    return argument;
}

static void begin(const char *capabilities, const char *parameters)
{
    int pair[2];
    fake = (struct fake){.capabilities = capabilities, .parameters = parameters};
    settings = (struct ibx_settings){.change = NULL};
    memset(&error, 0, sizeof(error));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    fake.fd = pair[1];
    assert_int_equal(pthread_create(&fake.thread, NULL, fake_run, NULL), 0);
    assert_int_equal(ibx_qmp_attach(pair[0], ibx_deadline_in_ms(GENEROUS), &qmp, &error), 0);
}

static int plan(void)
{
    return ibx_settings_plan(qmp, &settings, ibx_deadline_in_ms(GENEROUS), &error);
}

static int set(void)
{
    return ibx_settings_set(qmp, &settings, ibx_deadline_in_ms(GENEROUS), &error);
}

static int restore(void)
{
    return ibx_settings_restore(qmp, settings.before, ibx_deadline_in_ms(GENEROUS), &error);
}

static void end(void)
{
    ibx_settings_fini(&settings);
    ibx_qmp_close(qmp);
    pthread_join(fake.thread, NULL);
    close(fake.fd);
}

/* Compares JSON, in any order of the members. */
static void is(const json_t *json, const char *text)
{
    json_t *wanted = json_loads(text, 0, NULL);
    if (!json_equal(json, wanted))
        fail_msg("%s is not %s", json_dumps(json, 0), text);
    json_decref(wanted);
}

static void test_qemu_with_default_settings(NO_STATE)
{
    begin("[" OFF("x-ignore-shared") ", " OFF("events") ", " OFF("multifd") ", " OFF("new") "]",
          "{\"tls-creds\": \"\", \"max-bandwidth\": 134217728, \"downtime-limit\": 300}");
    assert_int_equal(plan(), 0);
    is(settings.change,
       "{\"capabilities\": {\"x-ignore-shared\": true, \"events\": true}, \"parameters\": {}}");
    is(settings.before,
       "{\"capabilities\": {\"x-ignore-shared\": false, \"events\": false}, \"parameters\": {}}");
    assert_string_equal(settings.unknown, "");
    end();
}

/* Everything that was set for another migration is reset, and restored later, in an order in
 * which QEMU never sees two settings that it refuses together. */
static void test_everything_set(NO_STATE)
{
    begin("[" NEEDED ", " ON("switchover-ack") ", " ON("mapped-ram") ", " ON("dirty-limit") ", " ON(
              "dirty-bitmaps") ", " ON("validate-uuid") "]",
          "{\"tls-creds\": \"c\", \"tls-hostname\": \"h\", \"tls-authz\": \"a\", \"mode\": "
          "\"cpr-reboot\", \"max-bandwidth\": 1, \"downtime-limit\": 0, \"direct-io\": true, "
          "\"avail-switchover-bandwidth\": 7, \"announce-rounds\": 9}");
    assert_int_equal(plan(), 0);
    is(settings.change,
       "{\"capabilities\": {\"x-ignore-shared\": true, \"switchover-ack\": false, \"mapped-ram\": "
       "false, \"dirty-limit\": false}, \"parameters\": {\"tls-creds\": \"\", \"tls-hostname\": "
       "\"\", \"tls-authz\": \"\", \"mode\": \"normal\", \"max-bandwidth\": 134217728, "
       "\"downtime-limit\": 300, \"direct-io\": false, \"avail-switchover-bandwidth\": 0}}");
    assert_int_equal(set(), 0);
    /* As it was, except for what an operator has set since. */
    fake.parameters =
        "{\"tls-creds\": \"\", \"tls-hostname\": \"\", \"tls-authz\": \"\", \"mode\": "
        "\"normal\", \"max-bandwidth\": 5555, \"downtime-limit\": 300, \"direct-io\": false, "
        "\"avail-switchover-bandwidth\": 0}";
    assert_int_equal(restore(), 0);
    assert_null(strstr(fake.told, "\"max-bandwidth\":1,"));
    assert_non_null(strstr(fake.told, "\"downtime-limit\":0,"));
    const char *first = strstr(fake.told, "capabilities{"), *last = strrchr(fake.told, '{');
    assert_ptr_equal(first, fake.told);
    assert_non_null(last);
    assert_non_null(strstr(fake.told, "} parameters{\"tls-creds\":\"\""));
    assert_non_null(strstr(fake.told, "} parameters{\"tls-creds\":\"c\""));
    assert_non_null(strstr(strstr(fake.told, "\"tls-creds\":\"c\""), "} capabilities{"));
    end();
}

static void test_no_limit_is_left_alone(NO_STATE)
{
    begin("[" OFF("x-ignore-shared") ", " ON("events") "]",
          "{\"max-bandwidth\": 0, \"tls-creds\": null, \"downtime-limit\": 2000}");
    assert_int_equal(plan(), 0);
    is(settings.change, "{\"capabilities\": {\"x-ignore-shared\": true}, \"parameters\": {}}");
    end();
}

/* A later QEMU's capabilities may change the stream. */
static void test_unknown_capabilities(NO_STATE)
{
    begin("[" NEEDED ", " ON("x-warp") ", " OFF("x-woof") ", " ON("gallop") "]", "{}");
    assert_int_equal(plan(), 0);
    assert_string_equal(settings.unknown, "x-warp, gallop");
    assert_int_equal(set(), 0);
    assert_non_null(strstr(fake.told, "{\"capability\":\"x-warp\",\"state\":false}"));
    assert_null(strstr(fake.told, "x-woof"));
    fake.refuses = true;
    assert_int_equal(set(), -EREMOTEIO);
    if (!strstr(error.message, "(x-warp, gallop)") || !strstr(error.message, "not now"))
        fail_msg("%s", error.message);
    end();
}

static void test_qemu_without_these_settings(NO_STATE)
{
    begin("[" ON("events") "]", "{}");
    assert_int_equal(plan(), -EOPNOTSUPP);
    assert_non_null(strstr(error.message, "x-ignore-shared"));
    end();
}

/* While QEMU's own migration is not over QEMU refuses. The settings can be tried again. */
static void test_refused_at_first(NO_STATE)
{
    begin("[" NEEDED "]", "{}");
    assert_int_equal(plan(), 0);
    fake.refuses = true;
    assert_int_equal(restore(), -EREMOTEIO);
    fake.refuses = false;
    assert_int_equal(restore(), 0);
    assert_int_equal(ibx_settings_restore(qmp, NULL, 0, &error), 0);
    end();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN); /* a client that has seen enough disconnects before the last answer */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qemu_with_default_settings),
        cmocka_unit_test(test_everything_set),
        cmocka_unit_test(test_no_limit_is_left_alone),
        cmocka_unit_test(test_unknown_capabilities),
        cmocka_unit_test(test_qemu_without_these_settings),
        cmocka_unit_test(test_refused_at_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
