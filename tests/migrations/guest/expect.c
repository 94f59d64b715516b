/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * expect [mib=N] [cpus=N] [beat=PAGES] [scattered=1] < SERIAL-OUTPUT
 *
 * Computes natively what the guest has to print, and compares every complete heartbeat on standard
 * input. The heartbeats of each vCPU have to be right and without a gap. Prints one line; exit
 * status 0: all right, 1: a wrong, missing or doubled heartbeat, 2: bad usage or none at all.
 */
#include "churn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int check(const char *line, struct churn *churn, unsigned cpus)
{
    unsigned cpu, count, sum;
    if (!strncmp(line, "balloon wrong", 13)) {
        printf("the guest says: %s", line);
        return -1;
    }
    if (sscanf(line, "beat %u %x %x", &cpu, &count, &sum) != 3)
        return 0;
    if (cpu >= cpus) {
        printf("vCPU %u should not exist: %s", cpu, line);
        return -1;
    }
    struct churn *c = &churn[cpu];
    churn_beat(c);
    if (count != c->count) {
        printf("vCPU %u: heartbeat %x where %x should be\n", cpu, count, c->count);
        return -1;
    }
    if (sum != c->sum) {
        printf("vCPU %u: heartbeat %x has checksum %08x, not %08x: its memory is wrong\n", cpu,
               count, sum, c->sum);
        return -1;
    }
    return 1;
}

int main(int argc, char **argv)
{
    unsigned mib = CHURN_MIB, cpus = CHURN_CPUS, beat = CHURN_BEAT, scattered = 0;
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "mib=%u", &mib) != 1 && sscanf(argv[i], "cpus=%u", &cpus) != 1 &&
            sscanf(argv[i], "beat=%u", &beat) != 1 &&
            sscanf(argv[i], "scattered=%u", &scattered) != 1) {
            fprintf(stderr, "expect: what is %s?\n", argv[i]);
            return 2;
        }
    }
    if (cpus < 1 || cpus > 2 || !mib || mib > 65536 || !beat)
        return 2;
    struct churn churn[2];
    uint32_t pages = churn_pages(mib, cpus);
    for (unsigned i = 0; i < cpus; i++) {
        uint32_t *words = mmap(NULL, (size_t)pages * 4096, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (words == MAP_FAILED)
            return 2;
        madvise(words, (size_t)pages * 4096, MADV_HUGEPAGE); /* a fifth of its time, else */
        churn_init(&churn[i], words, pages, beat, i, scattered);
    }
    char line[256];
    unsigned long good = 0;
    int rc = 0;
    while (rc >= 0 && fgets(line, sizeof(line), stdin)) {
        if (strchr(line, '\n')) /* the last one may be cut short */
            rc = check(line, churn, cpus);
        good += rc > 0;
    }
    for (unsigned i = 0; i < cpus; i++)
        munmap(churn[i].words, (size_t)pages * 4096);
    if (rc >= 0)
        printf("%lu heartbeats, all right\n", good);
    return rc < 0 ? 1 : good ? 0 : 2;
}
