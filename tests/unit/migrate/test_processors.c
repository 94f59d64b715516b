/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU is asked about its processors, and what of it is in a description. */
#include "migrate/preflight/description.h"
#include "tests/fixtures/qmp_peer.h"

#include <signal.h>

#define PATH "/machine/unattached/device[0]"
#define MOST 128

static char answers[MOST][160];
static struct step steps[MOST];

/* Scripts answers to all questions about a vCPU, whose properties are their own names. */
static void script(const char *kvm, bool hyper_v)
{
    unsigned n = 0, id = 2;
    memcpy(steps, SCRIPT({0}), 2 * sizeof(*steps));
    n = 2;
    snprintf(answers[n], sizeof(*answers), "{\"return\": %s, \"id\": %u}\r\n", kvm, id++);
    steps[n] = (struct step){"query-kvm", answers[n], 0};
    n++;
    snprintf(answers[n], sizeof(*answers),
             "{\"return\": [{\"qom-path\": \"" PATH "\"}], \"id\": %u}\r\n", id++);
    steps[n] = (struct step){"query-cpus-fast", answers[n], 0};
    n++;
    for (const char *const *name = (const char *const[]){"\"type\"", "\"feature-words\"", NULL};
         *name; name++, n++) {
        snprintf(answers[n], sizeof(*answers), "{\"return\": [], \"id\": %u}\r\n", id++);
        steps[n] = (struct step){*name, answers[n], 0};
    }
    for (size_t i = 0; i < ibx_cpu_property_count; i++) {
        const char *name = ibx_cpu_properties[i].name;
        if (!hyper_v && !strncmp(name, "hv-", 3))
            continue;
        assert_true(n + 2 < MOST);
        snprintf(answers[n], sizeof(*answers), "{\"return\": \"%s\", \"id\": %u}\r\n", name, id++);
        steps[n] = (struct step){name, answers[n], 0};
        n++;
    }
    snprintf(answers[n], sizeof(*answers), "{\"return\": {}, \"id\": %u}\r\n", id);
    steps[n] = (struct step){"query-status", answers[n], 0}; /* nothing else was asked */
    steps[n + 1] = (struct step){0};
}

/* Returns the properties in the description. */
static json_t *describe(const char *kvm, bool hyper_v)
{
    script(kvm, hyper_v);
    attached(steps);
    struct describing d = {.qmp = qmp,
                           .deadline_ns = ibx_deadline_in_ms(GENEROUS),
                           .description = json_object(),
                           .err = &error};
    assert_int_equal(ibx_describe_accelerator(&d), 0);
    assert_int_equal(ibx_describe_processors(&d), 0);
    assert_int_equal(run("query-status", NULL, GENEROUS), 0);
    json_t *properties = json_incref(json_object_get(d.description, "cpu-properties"));
    json_decref(d.description);
    done();
    return properties;
}

static void describes(const char *kvm, bool hyper_v)
{
    json_t *properties = describe(kvm, hyper_v);
    for (size_t i = 0; i < ibx_cpu_property_count; i++) {
        const char *name = ibx_cpu_properties[i].name;
        const json_t *value = json_object_get(properties, name);
        if (!hyper_v && !strncmp(name, "hv-", 3))
            assert_null(value);
        else
            assert_string_equal(json_string_value(value), name);
    }
    json_decref(properties);
}

static void a_vm_under_kvm(NO_STATE)
{
    describes("{\"enabled\": true, \"present\": true}", true);
}

/* Its guest sees nothing of Hyper-V, whatever QEMU was started with. */
static void a_vm_in_emulation(NO_STATE)
{
    describes("{\"enabled\": false, \"present\": true}", false);
}

static void a_vm_of_which_that_is_not_known(NO_STATE)
{
    describes("{}", true);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vm_under_kvm),
        cmocka_unit_test(a_vm_in_emulation),
        cmocka_unit_test(a_vm_of_which_that_is_not_known),
    };
    signal(SIGPIPE, SIG_IGN); /* the peer may write after its client has closed */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
