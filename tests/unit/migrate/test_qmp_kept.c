/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much memory a QEMU that its guest controls can make its QMP client hold. */
#include "migrate/preflight/description.h"
#include "tests/fixtures/qmp_peer.h"

#include <errno.h>
#include <malloc.h>
#include <signal.h>

#define MIB        ((size_t)1 << 20)
#define EVENTS     30u
#define EVENT_MIB  (64 * 1024)
#define QUESTIONS  18u /* with more answers than are kept ahead */
#define REPEATED   10u /* with more answers than are remembered */
#define ANSWER_MIB (6 * MIB)

static size_t held(void)
{
    const struct mallinfo2 all = mallinfo2();
    return all.uordblks + all.hblkhd;
}

/* Returns `head`, as many of `item` as fit, and `tail`. */
static char *text_of(size_t length, const char *head, const char *item, const char *tail)
{
    const size_t step = strlen(item);
    char *text = malloc(length), *at = text + sprintf(text, "%s", head);
    assert_non_null(text);
    for (; (size_t)(at - text) + step + strlen(tail) < length; at += step)
        memcpy(at, item, step);
    strcpy(at, tail);
    return text;
}

/* Wherever in an event its bulk is, QEMU does not decide how much is kept of a thousand events. */
static void test_events(NO_STATE)
{
    char *in_data =
        text_of(EVENT_MIB, "{\"event\": \"STOP\", \"data\": {\"a\": [", "{},", "1]}}\n");
    char *beside = text_of(EVENT_MIB, "{\"event\": \"STOP\", \"a\": [", "{},", "1]}\n");
    char *name = text_of(EVENT_MIB, "{\"event\": \"", "x", "\"}\n");
    attached(SCRIPT({"flood", in_data, EVENTS}, {NULL, beside, EVENTS}, {NULL, name, EVENTS},
                    {NULL, READY(2), 0}));
    const size_t before = held();
    assert_int_equal(run("flood", NULL, GENEROUS), 0);
    const size_t more = held() - before;
    if (more > 3 * EVENTS * 4096)
        fail_msg("%zu KiB are kept of %u events", more / 1024, 3 * EVENTS);
    json_t *event = ibx_qmp_event_next(qmp);
    assert_string_equal(json_string_value(json_object_get(event, "event")), "STOP");
    json_decref(event);
    free(in_data);
    free(beside);
    free(name);
    done();
}

/* A value takes a hundred times the memory of its text. */
static void test_too_many_values(NO_STATE)
{
    char *text = text_of(ANSWER_MIB, "{\"return\": [", "{},", "1], \"id\": 2}\n");
    attached(SCRIPT({"query-it", text, 0}));
    says(run("query-it", NULL, GENEROUS), -EMSGSIZE, "has more than");
    done();
    free(text);
}

/* as dense as block nodes, which take 22 bytes for a value */
#define NODE  "{\"detect-zeroes-or-whatever\": \"off-or-on\", \"write_threshold\": 1000},"
#define NODES (8 * MIB - 4096)

/* 256 disks of 18 images each have more than 250,000 values in 6 MB. */
static void test_a_vm_of_many_images(NO_STATE)
{
    char *nodes = text_of(NODES, "{\"return\": [", NODE, "1], \"id\": 2}\n");
    char *disks = text_of(NODES / 4, "{\"return\": [", NODE, "1], \"id\": 3}\n");
    json_t *result = NULL;
    attached(SCRIPT({"query-nodes", NULL, 0}, {"query-block", NULL, 0}, {NULL, nodes, 0},
                    {NULL, disks, 0}));
    ibx_qmp_ahead(qmp, "query-nodes", NULL, ibx_deadline_in_ms(GENEROUS));
    ibx_qmp_ahead(qmp, "query-block", NULL, ibx_deadline_in_ms(GENEROUS));
    assert_int_equal(run("query-block", &result, GENEROUS), 0);
    assert_true(json_array_size(result) > NODES / 4 / sizeof(NODE) - 2);
    json_decref(result);
    assert_int_equal(run("query-nodes", &result, GENEROUS), 0);
    assert_true(json_array_size(result) > NODES / sizeof(NODE) - 2);
    json_decref(result);
    free(disks);
    free(nodes);
    done();
}

/* A text that contains what looks like values has none. */
static void test_a_long_text(NO_STATE)
{
    char *text = text_of(ANSWER_MIB, "{\"return\": \"", "{,\\\"[", "\\\\\", \"id\": 2}\n");
    json_t *result = NULL;
    attached(SCRIPT({"info", text, 0}));
    assert_int_equal(run("info", &result, GENEROUS), 0);
    assert_true(json_string_length(result) > ANSWER_MIB / 2);
    json_decref(result);
    done();
    free(text);
}

static struct step steps[QUESTIONS + 4];
static char numbers[QUESTIONS][64];

/* Scripts `questions` long answers to this question, and then `last`. */
static void script(const char *question, const char *answer, unsigned questions)
{
    unsigned n = 0;
    steps[n++] = (struct step){NULL, GREETING, 0};
    steps[n++] = (struct step){"qmp_capabilities", READY(1), 0};
    for (unsigned i = 0; i < questions; i++) {
        snprintf(numbers[i], sizeof(numbers[i]), "{\"id\": %u, \"return\": \"", i + 2);
        steps[n++] = (struct step){question, answer ? numbers[i] : NULL, 0};
    }
    steps[n] = (struct step){0};
}

/* Answers to questions that were sent ahead. */
static void test_answers_to_questions_ahead(NO_STATE)
{
    char *answers = text_of(ANSWER_MIB, "", "x", "\"}\n");
    struct step all[4 * QUESTIONS];
    unsigned n = 0;
    script("qom-list", NULL, QUESTIONS);
    for (; steps[n].expect || steps[n].answer; n++)
        all[n] = steps[n];
    for (unsigned i = 0; i < QUESTIONS; i++) {
        snprintf(numbers[i], sizeof(numbers[i]), "{\"id\": %u, \"return\": \"", i + 2);
        all[n++] = (struct step){NULL, numbers[i], 0};
        all[n++] = (struct step){NULL, answers, 0};
    }
    all[n] = (struct step){0};
    attached(all);
    for (unsigned i = 0; i < QUESTIONS; i++)
        ibx_qmp_ahead(qmp, "qom-list", json_pack("{s:i}", "path", (int)i),
                      ibx_deadline_in_ms(GENEROUS));
    json_t *result = NULL;
    says(ibx_qmp_execute(qmp, "qom-list", json_pack("{s:i}", "path", (int)QUESTIONS - 1), &result,
                         ibx_deadline_in_ms(GENEROUS), &error),
         -EMSGSIZE, "more than");
    done();
    free(answers);
}

/* Remembered answers are dropped and asked for again if they take too much memory. */
static void test_answers_that_are_remembered(NO_STATE)
{
    char *rest = text_of(ANSWER_MIB, "", "x", "\"}\n");
    struct step all[4 * QUESTIONS];
    unsigned n = 0;
    script("qom-list", "", REPEATED);
    for (unsigned i = 0; steps[i].expect || steps[i].answer; i++) {
        all[n++] = steps[i];
        if (i >= 2)
            all[n++] = (struct step){NULL, rest, 0};
    }
    all[n] = (struct step){0};
    attached(all);
    ibx_qmp_remember(qmp, true);
    const size_t before = held();
    for (unsigned i = 0; i < REPEATED; i++) {
        json_t *result = NULL;
        assert_int_equal(ibx_qmp_execute(qmp, "qom-get",
                                         json_pack("{s:s,s:s,s:i}", "path", "/machine", "property",
                                                   "qom-list", "n", (int)i),
                                         &result, ibx_deadline_in_ms(GENEROUS), &error),
                         0);
        json_decref(result);
    }
    const size_t more = held() - before;
    if (more > 54 * MIB)
        fail_msg("%zu MiB are kept", more / MIB);
    done();
    free(rest);
}

/* Properties become part of a description, and must not be longer than one may be. */
static void test_properties(NO_STATE)
{
    static const char list[] =
        "{\"return\": [{\"name\": \"a\", \"type\": \"str\"}, {\"name\": \"b\", \"type\": \"str\"}, "
        "{\"name\": \"c\", \"type\": \"str\"}], \"id\": 2}\n";
    char *value = text_of(IBX_MIGRATE_DESCRIPTION_MAX / 5 * 2, "", "x", "\"}\n");
    attached(SCRIPT({"qom-list", list, 0}, {"qom-get", NULL, 0}, {"qom-get", NULL, 0},
                    {"qom-get", NULL, 0}, {NULL, "{\"id\": 3, \"return\": \"", 0}, {NULL, value, 0},
                    {NULL, "{\"id\": 4, \"return\": \"", 0}, {NULL, value, 0},
                    {NULL, "{\"id\": 5, \"return\": \"", 0}, {NULL, value, 0}));
    json_t *properties = json_object();
    struct describing d = {.qmp = qmp, .deadline_ns = ibx_deadline_in_ms(GENEROUS), .err = &error};
    says(ibx_describe_properties(&d, "/machine", properties), -EMSGSIZE,
         "the properties of /machine are longer");
    assert_int_equal(json_object_size(properties), 2);
    json_decref(properties);
    done();
    free(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_too_many_values),
        cmocka_unit_test(test_a_vm_of_many_images),
        cmocka_unit_test(test_a_long_text),
        cmocka_unit_test(test_answers_to_questions_ahead),
        cmocka_unit_test(test_answers_that_are_remembered),
        cmocka_unit_test(test_properties),
    };
    signal(SIGPIPE, SIG_IGN); /* the peer may write after its client has closed */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
