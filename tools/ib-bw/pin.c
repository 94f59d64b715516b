/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Processors for each end. A busy scheduler puts both ends now on one processor, now on two, which
 * changes the time of a short call by a factor of four on any path. With few processors each end
 * gets one. With many, each end gets half of the cores of a package, since a real session may have
 * several threads.
 */
#include "tools/ib-bw/ib-bw.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MANY_CORES 8 /* of one package */

/* The first number in /sys/devices/system/cpu/cpuN/topology/WHAT; -1: there is none. */
static long topology(int cpu, const char *what)
{
    char path[128];
    long value = -1;
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, what);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    if (fscanf(file, "%ld", &value) != 1)
        value = -1;
    fclose(file);
    return value;
}

/* Where a processor is: the first thread of its core, and its package; -1: not known. */
struct location {
    long core, package;
};

static bool same_core(const struct location *a, const struct location *b)
{
    return a->core >= 0 && a->core == b->core;
}

/* Sets *cores to one hardware thread of each core in the package of `with`, the last processor
 * allowed. If that is only one core, adds a processor of another package, or else another thread of
 * the core.
 */
static void choose_cores(int with, const cpu_set_t *allowed, const struct location *at,
                         cpu_set_t *cores)
{
    int elsewhere = -1, sibling = -1;
    CPU_ZERO(cores);
    for (int cpu = with; cpu >= 0; cpu--) {
        bool known = false;
        if (!CPU_ISSET((size_t)cpu, allowed))
            continue;
        for (int other = cpu + 1; other <= with && !known; other++)
            known = CPU_ISSET((size_t)other, cores) && same_core(&at[cpu], &at[other]);
        if (known)
            sibling = sibling < 0 ? cpu : sibling;
        else if (at[cpu].package == at[with].package)
            CPU_SET((size_t)cpu, cores);
        else
            elsewhere = elsewhere < 0 ? cpu : elsewhere;
    }
    int second = elsewhere >= 0 ? elsewhere : sibling;
    if (CPU_COUNT(cores) == 1 && second >= 0)
        CPU_SET((size_t)second, cores);
}

/* Begins with the last processor, since the first ones handle interrupts. */
void ibx_bw_pins_choose(struct bw_pins *pins)
{
    struct location at[CPU_SETSIZE];
    cpu_set_t allowed, cores, *const sets[] = {&pins->client_set, &pins->server_set};
    int last = -1, *const firsts[] = {&pins->client, &pins->server};
    *pins = (struct bw_pins){.client = -1, .server = -1};
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET((size_t)cpu, &allowed))
            continue;
        at[cpu] = (struct location){topology(cpu, "thread_siblings_list"),
                                    topology(cpu, "physical_package_id")};
        last = cpu;
    }
    choose_cores(last, &allowed, at, &cores);
    const int count = CPU_COUNT(&cores), wanted = count >= MANY_CORES ? count : 2;
    for (int cpu = last, n = 0; count >= 2 && n < wanted; cpu--) {
        if (!CPU_ISSET((size_t)cpu, &cores))
            continue;
        if (n < 2)
            *firsts[n] = cpu;
        CPU_SET((size_t)cpu, sets[n++ % 2]);
    }
}

void ibx_bw_pin(const struct bw_pins *pins, enum bw_end end)
{
    const cpu_set_t *set = end == BW_CLIENT ? &pins->client_set : &pins->server_set;
    if (pins->client >= 0) /* a failure only makes the figures noisier */
        sched_setaffinity(0, sizeof(*set), set);
}
