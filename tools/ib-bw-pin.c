/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A processor for each end. Left to itself, a busy scheduler now puts both ends on one processor
 * and now on two, which changes a short call by a factor of four and says nothing about the paths.
 * Two processors are what the ends of a real session have.
 */
#include "tools/ib-bw.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The first number in /sys/devices/system/cpu/cpuN/topology/WHAT; -1 where there is none. */
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

/* How well a processor goes with `with`: 2 in the same package, 1 in another, 0 a thread of the
 * same core. */
static int suits(int cpu, int with)
{
    const char *core = "thread_siblings_list", *package = "physical_package_id";
    if (topology(cpu, core) >= 0 && topology(cpu, core) == topology(with, core))
        return 0;
    return topology(cpu, package) == topology(with, package) ? 2 : 1;
}

/* The last processors: the first have the interrupts. */
void bw_pins_choose(struct bw_pins *pins)
{
    cpu_set_t allowed;
    int best = -1;
    pins->client = pins->server = -1;
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return;
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (!CPU_ISSET((size_t)cpu, &allowed))
            continue;
        if (pins->client < 0) {
            pins->client = cpu;
        } else if (suits(cpu, pins->client) > best) {
            best = suits(cpu, pins->client);
            pins->server = cpu;
        }
    }
    if (pins->server < 0)
        pins->client = -1; /* there is but one */
}

void bw_pin(int cpu)
{
    cpu_set_t one;
    if (cpu < 0)
        return;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    sched_setaffinity(0, sizeof(one), &one); /* a wish: without it the figures are only noisier */
}
