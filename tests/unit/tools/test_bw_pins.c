/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* To which processors ib-bw pins the two ends of a session, on machines of all kinds. */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A simulated machine. The threads of a core have adjacent numbers, or all first threads come
 * before all second ones. */
static struct machine {
    int packages, cores, threads;  /* cores in a package, threads in a core */
    bool apart;                    /* the numbers of a core's threads are not adjacent */
    bool no_packages, no_siblings; /* the system does not report them */
    int first, step;               /* the allowed processors; 0: all */
} machine;

static unsigned opened; /* files */

static int processors(void)
{
    return machine.packages * machine.cores * machine.threads;
}

static int core_of(int cpu)
{
    return machine.apart ? cpu % (machine.packages * machine.cores) : cpu / machine.threads;
}

static int package_of(int cpu)
{
    return core_of(cpu) / machine.cores;
}

FILE *__wrap_fopen64(const char *path, const char *mode);

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    static char text[32];
    char what[64];
    int cpu;
    (void)mode;
    opened++;
    assert_int_equal(sscanf(path, "/sys/devices/system/cpu/cpu%d/topology/%63s", &cpu, what), 2);
    assert_in_range(cpu, 0, processors() - 1);
    bool siblings = !strcmp(what, "thread_siblings_list");
    if (siblings ? machine.no_siblings : machine.no_packages)
        return NULL;
    const int first_thread = machine.apart ? core_of(cpu) : core_of(cpu) * machine.threads;
    int number = siblings ? first_thread : package_of(cpu);
    snprintf(text, sizeof(text), siblings && machine.threads > 1 ? "%d,1000\n" : "%d\n", number);
    return fmemopen(text, strlen(text), "r");
}

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set);

int __wrap_sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    (void)pid;
    CPU_ZERO_S(size, set);
    for (int i = machine.first; i < processors(); i += machine.step ? machine.step : 1)
        CPU_SET_S((size_t)i, size, set);
    errno = EINVAL;
    return processors() ? 0 : -1; /* 0: more than a set holds */
}

static struct bw_pins pins;

/* Checks that each end has this many processors, on cores of its own, all in one package. */
static void expect(struct machine on, int client, int server)
{
    cpu_set_t both;
    bool seen[CPU_SETSIZE] = {false};
    machine = on;
    opened = 0;
    ibx_bw_pins_choose(&pins);
    assert_int_equal(CPU_COUNT(&pins.client_set), client);
    assert_int_equal(CPU_COUNT(&pins.server_set), server);
    CPU_AND(&both, &pins.client_set, &pins.server_set);
    assert_int_equal(CPU_COUNT(&both), 0);
    assert_true(CPU_ISSET((size_t)pins.client, &pins.client_set));
    assert_true(CPU_ISSET((size_t)pins.server, &pins.server_set));
    CPU_OR(&both, &pins.client_set, &pins.server_set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &both))
            continue;
        assert_true(cpu >= machine.first && !((cpu - machine.first) % (on.step ? on.step : 1)));
        if (machine.no_siblings)
            continue;
        assert_false(seen[core_of(cpu)]);
        seen[core_of(cpu)] = true;
        assert_true(machine.no_packages || package_of(cpu) == package_of(pins.client));
    }
    assert_true(opened <= 2u * (unsigned)processors());
}

static void test_few_have_one_each(void **state)
{
    (void)state;
    for (int cores = 2; cores < 8; cores++) {
        for (int apart = 0; apart < 2; apart++) {
            expect((struct machine){1, cores, 1, .apart = apart}, 1, 1);
            expect((struct machine){1, cores, 2, .apart = apart}, 1, 1);
            expect((struct machine){4, cores, 2, .apart = apart}, 1, 1);
        }
    }
    assert_int_equal(pins.client, 55); /* the last ones: the first ones handle interrupts */
}

static void test_many_have_half_of_a_package_each(void **state)
{
    (void)state;
    static const struct {
        struct machine on;
        int client, server;
    } cases[] = {
        {{1, 8, 1, .apart = false}, 4, 4},
        {{1, 9, 1, .apart = false}, 5, 4},
        {{1, 8, 2, .apart = false}, 4, 4},
        {{1, 8, 2, .apart = true}, 4, 4},
        {{2, 64, 2, .apart = false}, 32, 32},
        {{2, 64, 2, .apart = true}, 32, 32},
        {{1, 128, 2, .apart = false}, 64, 64},
        {{1, 128, 2, .apart = true}, 64, 64},
        {{4, 32, 8, .apart = false}, 16, 16},
        {{4, 32, 8, .apart = true}, 16, 16},
        /* A control group or taskset(1) allows only some processors. */
        {{1, 16, 2, .step = 2}, 8, 8},
        {{1, 16, 2, .apart = true, .step = 2}, 4, 4},
        {{2, 16, 1, .first = 25}, 1, 1},
        {{2, 16, 1, .first = 12}, 8, 8},
        /* The system does not report cores or packages. */
        {{1, 4, 2, .no_packages = true, .no_siblings = true}, 4, 4},
        {{1, 16, 1, .no_packages = true}, 8, 8},
        {{2, 4, 2, .no_packages = true}, 4, 4},
        {{2, 8, 2, .no_siblings = true}, 8, 8},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        expect(cases[i].on, cases[i].client, cases[i].server);
}

/* With one core in each package each end gets one core; with two threads of one core each end
 * gets one thread. */
static void test_two_of_one_kind(void **state)
{
    (void)state;
    machine = (struct machine){16, 1, 2, .apart = true};
    ibx_bw_pins_choose(&pins);
    assert_int_equal(pins.client, 31);
    assert_int_equal(pins.server, 30);
    assert_int_equal(CPU_COUNT(&pins.client_set) + CPU_COUNT(&pins.server_set), 2);
    machine = (struct machine){1, 1, 2, .apart = false};
    ibx_bw_pins_choose(&pins);
    assert_int_equal(pins.client + pins.server, 1);
    assert_true(CPU_ISSET(0, &pins.server_set) && CPU_ISSET(1, &pins.client_set));
}

static void test_nothing_to_share(void **state)
{
    (void)state;
    const struct machine machines[] = {{1, 1, 1, .apart = false}, {0}, {1, 4, 1, .first = 3}};
    for (unsigned i = 0; i < 3; i++) {
        machine = machines[i];
        ibx_bw_pins_choose(&pins);
        assert_true(pins.client < 0 && !CPU_COUNT(&pins.client_set));
        assert_true(pins.server < 0 && !CPU_COUNT(&pins.server_set));
        ibx_bw_pin(&pins, BW_CLIENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_have_one_each),
        cmocka_unit_test(test_many_have_half_of_a_package_each),
        cmocka_unit_test(test_two_of_one_kind),
        cmocka_unit_test(test_nothing_to_share),
    };
    return cmocka_run_group_tests_name("bw_pins", tests, NULL, NULL);
}
