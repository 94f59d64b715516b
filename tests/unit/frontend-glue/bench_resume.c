/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures how much longer a call of 4 bytes takes if its session can survive its connection.
 * This is not a test: it checks nothing.
 *
 *   bench_resume PROVIDER [PAIRS [CALLS [signs]]]
 *
 * Sessions that can (for 30 s) and sessions that cannot make CALLS calls each, alternately,
 * PAIRS times. With `signs` both can, and the servers of the former give signs of life.
 * Prints the median of the pairs' ratios and its 95 % interval. */
#include "tests/fixtures/session_pair.h"

#include "common/clock.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CALL_BYTES 4u

static void give_signs(struct ibx_options *options)
{
    options->signs = true;
    options->silence_ms = 60000;
}

static int echo(struct session_pair *pair, void *argument)
{
    uint8_t bytes[CALL_BYTES];
    (void)argument;
    while (ibx_session_read(pair->server, bytes, CALL_BYTES) == CALL_BYTES &&
           ibx_session_write(pair->server, bytes, CALL_BYTES) == CALL_BYTES &&
           !ibx_session_sync(pair->server))
        ;
    return 0;
}

static void open_pair(struct session_pair *pair, unsigned seconds)
{
    session_keeps = seconds;
    session_pair_open(pair);
    session_pair_start(pair, echo, NULL);
}

static void close_pair(struct session_pair *pair)
{
    ibx_session_close(pair->client);
    session_pair_join(pair);
    session_pair_close(pair);
}

/* Returns nanoseconds. */
static double calls(struct session_pair *pair, unsigned n)
{
    uint8_t bytes[CALL_BYTES] = "abc";
    const uint64_t began = ibx_now_ns();
    for (unsigned i = 0; i < n; i++) {
        if (ibx_session_write(pair->client, bytes, CALL_BYTES) != CALL_BYTES ||
            ibx_session_sync(pair->client) ||
            ibx_session_read(pair->client, bytes, CALL_BYTES) != CALL_BYTES)
            abort();
    }
    return (double)(ibx_now_ns() - began);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The order within a pair alternates, so that it favours neither. */
static void pairs(unsigned count, unsigned n, bool signs)
{
    struct session_pair with, without;
    double *ratios = calloc(count, sizeof(double)), *ns = calloc(count, sizeof(double));
    open_pair(&without, signs ? 30 : 0);
    session_options = signs ? give_signs : NULL;
    open_pair(&with, 30);
    calls(&without, n);
    calls(&with, n);
    for (unsigned i = 0; i < count; i++) {
        const double first = calls(i % 2 ? &with : &without, n);
        const double second = calls(i % 2 ? &without : &with, n);
        ns[i] = (i % 2 ? second : first) / n;
        ratios[i] = i % 2 ? first / second : second / first;
    }
    qsort(ratios, count, sizeof(double), compare);
    qsort(ns, count, sizeof(double), compare);
    /* Order statistics: the median is between these two in 95 of 100 samples. */
    const unsigned half = (unsigned)(0.98 * sqrt(count)) + 1, middle = count / 2;
    printf("%u pairs of %u calls: %.0f ns a call without, ratio %.4f, %.4f to %.4f\n", count, n,
           ns[middle], ratios[middle], ratios[middle < half ? 0 : middle - half],
           ratios[middle + half < count ? middle + half : count - 1]);
    free(ratios);
    free(ns);
    close_pair(&with);
    close_pair(&without);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return EXIT_FAILURE;
    session_pair_use(argv[1], NULL, NULL, NULL);
    pairs(argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 200,
          argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 1000,
          argc > 4 && !strcmp(argv[4], "signs"));
    return 0;
}
