/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How long a test waits for what is to come, before it calls that a failure. A limit is written for
 * an idle machine; on one that is slow, or busy with something else, all takes longer. Not for
 * times that are the behaviour under test.
 */
#ifndef IBX_TESTS_SCENES_PATIENCE_H
#define IBX_TESTS_SCENES_PATIENCE_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PATIENCE_TIMES_MAX 20.0

/* How many times longer: as MESON_TEST_TIMEOUT_MULTIPLIER says, which tests/run sets for what the
 * sanitizers cost, or as there are more tasks to run than processors, now or in the last minute. */
static inline unsigned patience_times(void)
{
    const char *text = getenv("MESON_TEST_TIMEOUT_MULTIPLIER");
    double times = text ? strtod(text, NULL) : 1, minute = 0, now = 0;
    FILE *file = fopen("/proc/loadavg", "re");
    if (file) {
        if (fscanf(file, "%lf %*f %*f %lf", &minute, &now) == 2) {
            const double load = minute > now ? minute : now;
            const double each = load / (double)sysconf(_SC_NPROCESSORS_ONLN);
            times = each > times ? each : times;
        }
        fclose(file);
    }
    times = times > PATIENCE_TIMES_MAX ? PATIENCE_TIMES_MAX : times;
    return times > 1 ? (unsigned)(times + 0.5) : 1;
}

/* So many milliseconds of an idle machine. */
static inline unsigned patience_ms(unsigned ms)
{
    return ms * patience_times();
}

#endif
