/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-fault's command line, and what it sets on the process. */
#include "tools/bench/fault/fault.h"
#include "tools/options.h"

#include "common/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define SIZE_MAX_BYTES (1ull << 42)
#define SPIN_MAX       1000000ul
#define SPIN_US        50u /* as ib-migrate, if there are enough processors */
#define DEFAULT_URI    "tcp://127.0.0.1:0"

#define SELF  (1u << BENCH_SELF)
#define FETCH (1u << BENCH_FETCH)
#define SERVE (1u << BENCH_SERVE)

static int take_nice(void *at, const char *text, struct ibx_error *err)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < -20 || number > 19)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not a number from -20 to 19", text);
    *(int *)at = (int)number;
    return 0;
}

static int take_size(void *at, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return rc;
    if (!bytes || bytes % BENCH_HUGE_PAGE || bytes > SIZE_MAX_BYTES)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not a multiple of 2M up to 4096G", text);
    *(uint64_t *)at = bytes;
    return 0;
}

static int take_page(void *at, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return rc;
    if (bytes != BENCH_SMALL_PAGE && bytes != BENCH_HUGE_PAGE)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is neither 4K nor 2M", text);
    *(uint32_t *)at = (uint32_t)bytes;
    return 0;
}

/* Parses a list of processors such as "0,2-3". */
static int take_cpus(void *into, const char *text, struct ibx_error *err)
{
    struct bench_cpus *cpus = into;
    const char *at = text;
    char *end;
    CPU_ZERO(&cpus->set);
    cpus->given = true;
    do {
        unsigned long from = strtoul(at, &end, 10), to = from;
        bool digits = *at >= '0' && *at <= '9';
        if (digits && *end == '-' && end[1] >= '0' && end[1] <= '9')
            to = strtoul(end + 1, &end, 10);
        if (!digits || (*end && *end != ',') || to < from || to >= CPU_SETSIZE)
            return ibx_error_set(err, -EINVAL,
                                 "\"%.64s\" is not a list of processors such as 0,2-3", text);
        for (; from <= to; from++)
            CPU_SET((size_t)from, &cpus->set);
        at = end + 1;
    } while (*end);
    return 0;
}

static const struct ibx_tool_command commands[] = {
    [BENCH_SELF] = {"self", "[URI]", "Both ends on this host [" DEFAULT_URI "]"},
    [BENCH_FETCH] =
        {"fetch", "URI",
         "Listens at URI, fetches the memory that the other end serves, measures, and ends"},
    [BENCH_SERVE] = {"serve", "URI", "Connects to URI and serves memory, as a source does"},
    {0},
};

#define AT(member) .at = offsetof(struct bench_args, member)

static const struct ibx_tool_option options[] = {
    {.help = "All commands:"},
    IBX_TOOL_OPTION_KEY_FILE(struct bench_args, 0),
    IBX_TOOL_OPTION_SET(struct bench_args, 0),
    {"nice", "N", "Priority of the process, -20 to 19", 0, IBX_TOOL_OWN, AT(nice),
     .take = take_nice},
    {.help = "self and serve:"},
    {"size", "SIZE", "Memory of each end, a multiple of 2M [512M]", SELF | SERVE, IBX_TOOL_OWN,
     AT(size), .take = take_size},
    {"page", "4K|2M", "Page size; 2M needs enough of them in vm.nr_hugepages [4K]", SELF | SERVE,
     IBX_TOOL_OWN, AT(page), .take = take_page},
    {"links", "N", "Connections, 1 to 16 [3, 5 from 8 and 7 from 16 processors on]", SELF | SERVE,
     IBX_TOOL_UNSIGNED, AT(links), 1, IBX_MIGRATE_LINKS_MAX},
    {"serve-cpus", "LIST", "Processors of the serving end: 0,2-3 [any]", SELF | SERVE, IBX_TOOL_OWN,
     AT(server), .take = take_cpus},
    {.help = "self and fetch:"},
    {"fault-workers", "N", "Links for faults alone; at least one link does the rest [1]",
     SELF | FETCH, IBX_TOOL_UNSIGNED, AT(fault_workers), 0, IBX_MIGRATE_LINKS_MAX},
    {"minor", NULL, "READ pages into place instead of copying them", SELF | FETCH, IBX_TOOL_FLAG,
     AT(minor)},
    {"spin", "US", "How long a worker polls before it sleeps [50; 0 on few processors]",
     SELF | FETCH, IBX_TOOL_UNSIGNED, AT(spin_us), 0, SPIN_MAX},
    {"threads", "N", "Threads that fault while the memory is filled, 1 to 64 [1]", SELF | FETCH,
     IBX_TOOL_UNSIGNED, AT(threads), 1, BENCH_THREADS_MAX},
    {"pause", "US", "Pause of a faulting thread between two faults, 0 to 1000000 [500]",
     SELF | FETCH, IBX_TOOL_UNSIGNED, AT(pause_us), 0, SPIN_MAX},
    {"touches", "N", "Single READs of a round, and faults on idle connections [2000]", SELF | FETCH,
     IBX_TOOL_UNSIGNED, AT(touches), 1, 1u << 20},
    {"time", "SECONDS", "READs of 1 MiB, for each round and number of links [0.5]", SELF | FETCH,
     IBX_TOOL_SECONDS, AT(seconds), .max = 60},
    {"rounds", "N", "Rounds, in each of which everything is measured [5]", SELF | FETCH,
     IBX_TOOL_UNSIGNED, AT(rounds), 1, BENCH_ROUNDS_MAX},
    {"cpus", "LIST", "Processors of the workers and of READs [any]", SELF | FETCH, IBX_TOOL_OWN,
     AT(workers), .take = take_cpus},
    {"touch-cpus", "LIST", "Processors of the threads that fault [any]", SELF | FETCH, IBX_TOOL_OWN,
     AT(touchers), .take = take_cpus},
    {"json", "FILE",
     "All figures of all rounds as JSON; \"-\": on standard output, without a table", SELF | FETCH,
     IBX_TOOL_TEXT, AT(json)},
    {0},
};

static const struct ibx_tool tool = {
    .name = "ib-fault",
    .help = "Measures page faults served over a network as ib-migrate serves a VM's, beside READs "
            "over the same connections, and beside faults with a memcpy in the place of READs (the "
            "floor).\vtools/bench/fault/fault.h says what each figure is. Both ends, the workers "
            "and the threads that fault want processors: on a host with fewer than five of them "
            "`self' measures the scheduler, too.",
    .commands = commands,
    .options = options,
    .lists_transport = true,
};

void ibx_bench_args_parse(int argc, char **argv, struct bench_args *args)
{
    *args = (struct bench_args){
        .size = 512ull << 20,
        .page = BENCH_SMALL_PAGE,
        .links = ibx_page_links_default(), /* and fault workers and spinning as ib-migrate */
        .fault_workers = 1,
        .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
        .threads = 1,
        .pause_us = 500,
        .touches = 2000,
        .rounds = 5,
        .seconds = 0.5,
        .nice = BENCH_NICE_NONE,
        .uri = DEFAULT_URI,
    };
    ibx_options_init(&args->options);
    args->options.message = IBX_MIGRATE_MESSAGE;
    if (!ibx_thread_may_spin())
        args->options.spin_us = 0;
    unsigned command;
    const char *uri;
    ibx_tool_parse(&tool, argc, argv, args, &command, &uri);
    args->command = (enum bench_command)command;
    if (uri)
        args->uri = uri;
}

/* ------------------------------------------------- what it sets on the process */

int ibx_bench_cpus_use(const struct bench_cpus *cpus, struct ibx_error *err)
{
    if (!cpus->given || !sched_setaffinity(0, sizeof(cpus->set), &cpus->set))
        return 0;
    int code = errno;
    unsigned first = 0;
    while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &cpus->set))
        first++;
    return ibx_error_set(
        err, -code,
        "processor %u, or one listed with it, cannot be used: %s; there are 0 to %ld "
        "here, and a cpuset may allow fewer",
        first, strerror(code), sysconf(_SC_NPROCESSORS_CONF) - 1);
}

int ibx_bench_nice_use(const struct bench_args *args, struct ibx_error *err)
{
    if (args->nice == BENCH_NICE_NONE || !setpriority(PRIO_PROCESS, 0, args->nice))
        return 0;
    return ibx_error_set(err, -errno, "--nice %d: %s; below 0 it is for root", args->nice,
                         strerror(errno));
}
