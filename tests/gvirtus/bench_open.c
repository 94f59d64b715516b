/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* bench-open LIBRARY: how long it takes to open and close it, 200 times in a round. Run it with and
 * without a preload. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define OPENS  200
#define ROUNDS 25

/* In us of processor time, which other load does not change. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
    double rounds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        const double begin = now();
        for (int j = 0; j < OPENS; j++) {
            void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
            if (!library || dlclose(library)) {
                fputs("a library that can be opened and closed is wanted\n", stderr);
                return 1;
            }
        }
        rounds[i] = (now() - begin) / OPENS;
    }
    qsort(rounds, ROUNDS, sizeof(rounds[0]), compare);
    printf("%.1f us (%.1f to %.1f)\n", rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
    return 0;
}
