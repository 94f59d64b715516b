/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Processors for each end. A busy scheduler puts both ends now on one processor, now on two, which
 * changes a short call by a factor of four whatever the path. Of few processors each end gets one.
 * Of many each end gets half of a package's cores, since a real session may have several threads.
 */
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MANY_CORES 8u /* of one package */

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

/* Where a processor is: the first thread of its core, and its package; -1: not known. */
struct location {
    long core, package;
};

/* How well two processors serve two ends: 2 same package, 1 another package, 0 same core. */
static int suits(const struct location *one, const struct location *with)
{
    if (one->core >= 0 && one->core == with->core)
        return 0;
    return one->package == with->package ? 2 : 1;
}

/* The last processors: the first have the interrupts. */
static void choose_two(struct bw_pins *pins, const cpu_set_t *allowed, const struct location *at)
{
    int best = -1;
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (!CPU_ISSET((size_t)cpu, allowed))
            continue;
        if (pins->client < 0) {
            pins->client = cpu;
        } else if (suits(&at[cpu], &at[pins->client]) > best) {
            best = suits(&at[cpu], &at[pins->client]);
            pins->server = cpu;
        }
    }
    if (pins->server < 0)
        pins->client = -1; /* there is only one */
}

/* Puts one thread of each core in the package of `with` into *cores. Returns their number. */
static unsigned cores_near(int with, const cpu_set_t *allowed, const struct location *at,
                           cpu_set_t *cores)
{
    CPU_ZERO(cores);
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        bool known = false;
        if (!CPU_ISSET((size_t)cpu, allowed) || (cpu != with && suits(&at[cpu], &at[with]) < 2))
            continue;
        for (int other = cpu + 1; other < CPU_SETSIZE && !known; other++)
            known = CPU_ISSET((size_t)other, cores) && !suits(&at[cpu], &at[other]);
        if (!known)
            CPU_SET((size_t)cpu, cores);
    }
    return (unsigned)CPU_COUNT(cores);
}

static void share_out(struct bw_pins *pins, const cpu_set_t *cores)
{
    cpu_set_t *ends[2] = {&pins->client_set, &pins->server_set};
    unsigned n = 0;
    for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--) {
        if (CPU_ISSET((size_t)cpu, cores) && cpu != pins->client && cpu != pins->server)
            CPU_SET((size_t)cpu, ends[n++ % 2]);
    }
}

void ibx_bw_pins_choose(struct bw_pins *pins)
{
    struct location at[CPU_SETSIZE];
    cpu_set_t allowed, cores;
    *pins = (struct bw_pins){.client = -1, .server = -1};
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &allowed))
            at[cpu] = (struct location){topology(cpu, "thread_siblings_list"),
                                        topology(cpu, "physical_package_id")};
    }
    choose_two(pins, &allowed, at);
    if (pins->client < 0)
        return;
    CPU_SET((size_t)pins->client, &pins->client_set);
    CPU_SET((size_t)pins->server, &pins->server_set);
    if (cores_near(pins->client, &allowed, at, &cores) >= MANY_CORES)
        share_out(pins, &cores);
}

void ibx_bw_pin(const struct bw_pins *pins, enum bw_end end)
{
    const cpu_set_t *set = end == BW_CLIENT ? &pins->client_set : &pins->server_set;
    if (pins->client >= 0) /* a failure only makes the figures noisier */
        sched_setaffinity(0, sizeof(*set), set);
}
