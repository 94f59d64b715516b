/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-fault's command line. */
#include "tools/args.h"
#include "tools/bench/ib-fault.h"

#include "common/thread.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_MAX_BYTES (1ull << 42)
#define SECONDS_MAX    60.0
#define SPIN_MAX       1000000ul
#define SPIN_US        50u /* as ib-migrate, where there are processors enough */
#define DEFAULT_URI    "tcp://127.0.0.1:0"

static const char usage[] = "usage: ib-fault self [options] [URI]\n"
                            "       ib-fault fetch [options] URI\n"
                            "       ib-fault lend [options] URI\n"
                            "       ib-fault --help | --version\n";

static const char help[] =
    "\n"
    "Measures page faults served over a wire as ib-migrate serves a VM's, beside READs over the\n"
    "same connections, and beside the same with a memcpy in the wire's place (the floor).\n"
    "\n"
    "  self       both ends on this host [" DEFAULT_URI "]\n"
    "  fetch URI  listens there, takes the memory that a lender lends, measures, and ends\n"
    "  lend URI   lends memory to it: the source's part\n"
    "\n"
    "All commands:\n"
    "  --key-file FILE     the key that both hosts share\n"
    "  --set KEY=VALUE     an option of the transport (below); may be repeated\n"
    "  --nice N            priority of the process, -20 to 19\n"
    "self and lend:\n"
    "  --size SIZE         memory, a multiple of 2M [512M]; each end holds as much\n"
    "  --page 4K|2M        pages; 2M needs so many of them in vm.nr_hugepages [4K]\n"
    "  --links N           connections, 1 to 16 [3, and 5 from 8 processors on]\n"
    "  --lend-cpus LIST    processors of the lender: 0,2-3 [any]\n"
    "self and fetch:\n"
    "  --fault-workers N   links for faults alone; one at least does the rest [1]\n"
    "  --minor             READ pages into place instead of copying them\n"
    "  --spin US           how long a worker looks before it sleeps [50; 0 on few processors]\n"
    "  --threads N         that fault while the memory is filled, 1 to 64 [1]\n"
    "  --pause US          of such a thread between two faults, 0 to 1000000 [500]\n"
    "  --touches N         single READs, and faults with nothing else going on, a round [2000]\n"
    "  --time SECONDS      of raw READs, a round and number of links [0.5]\n"
    "  --rounds N          turns in which all is measured [5]\n"
    "  --cpus LIST         processors of the workers and of READs [any]\n"
    "  --touch-cpus LIST   processors of the threads that fault [any]\n"
    "  --json FILE         all figures of all rounds; \"-\": on standard output, no table\n"
    "\n"
    "Options of the transport:\n";

static const struct args_tool tool = {.name = "ib-fault", .usage = usage, .help = help};

enum {
    OPT_KEY_FILE = 256,
    OPT_SET,
    OPT_NICE,
    OPT_SIZE,
    OPT_PAGE,
    OPT_LINKS,
    OPT_LEND_CPUS,
    OPT_FAULT_WORKERS,
    OPT_MINOR,
    OPT_SPIN,
    OPT_THREADS,
    OPT_PAUSE,
    OPT_TOUCHES,
    OPT_TIME,
    OPT_ROUNDS,
    OPT_CPUS,
    OPT_TOUCH_CPUS,
    OPT_JSON,
};

static const struct option long_options[] = {
    {"key-file", required_argument, NULL, OPT_KEY_FILE},
    {"set", required_argument, NULL, OPT_SET},
    {"nice", required_argument, NULL, OPT_NICE},
    {"size", required_argument, NULL, OPT_SIZE},
    {"page", required_argument, NULL, OPT_PAGE},
    {"links", required_argument, NULL, OPT_LINKS},
    {"lend-cpus", required_argument, NULL, OPT_LEND_CPUS},
    {"fault-workers", required_argument, NULL, OPT_FAULT_WORKERS},
    {"minor", no_argument, NULL, OPT_MINOR},
    {"spin", required_argument, NULL, OPT_SPIN},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"pause", required_argument, NULL, OPT_PAUSE},
    {"touches", required_argument, NULL, OPT_TOUCHES},
    {"time", required_argument, NULL, OPT_TIME},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"cpus", required_argument, NULL, OPT_CPUS},
    {"touch-cpus", required_argument, NULL, OPT_TOUCH_CPUS},
    {"json", required_argument, NULL, OPT_JSON},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {0},
};

static bool goes_with(int option, enum bench_command command)
{
    switch (option) {
    case OPT_KEY_FILE:
    case OPT_SET:
    case OPT_NICE:
        return true;
    case OPT_SIZE:
    case OPT_PAGE:
    case OPT_LINKS:
    case OPT_LEND_CPUS:
        return command != BENCH_FETCH;
    default:
        return command != BENCH_LEND;
    }
}

/* ------------------------------------------------------------ values */

static int take_nice(struct bench_args *args, const char *text, struct ibx_error *err)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < -20 || number > 19)
        return ibx_error_set(err, -EINVAL, "--nice: \"%.64s\" is not a number from -20 to 19",
                             text);
    args->nice = (int)number;
    args->nice_given = true;
    return 0;
}

static int take_size(struct bench_args *args, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return ibx_error_prefix(err, rc, "--size");
    if (!bytes || bytes % BENCH_HUGE_PAGE || bytes > SIZE_MAX_BYTES)
        return ibx_error_set(err, -EINVAL, "--size: \"%.64s\" is not a multiple of 2M up to 4096G",
                             text);
    args->size = bytes;
    return 0;
}

static int take_page(struct bench_args *args, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return ibx_error_prefix(err, rc, "--page");
    if (bytes != BENCH_SMALL_PAGE && bytes != BENCH_HUGE_PAGE)
        return ibx_error_set(err, -EINVAL, "--page: \"%.64s\" is neither 4K nor 2M", text);
    args->page = (uint32_t)bytes;
    return 0;
}

/* "0,2-3" */
static int take_cpus(struct bench_cpus *cpus, const char *name, const char *text,
                     struct ibx_error *err)
{
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
                                 "%s: \"%.64s\" is not a list of processors such as 0,2-3", name,
                                 text);
        for (; from <= to; from++)
            CPU_SET((size_t)from, &cpus->set);
        at = end + 1;
    } while (*end);
    return 0;
}

static int take_count(struct bench_args *args, int option, const char *value, struct ibx_error *err)
{
    switch (option) {
    case OPT_LINKS:
        return ibx_args_unsigned("--links", value, 1, IBX_MIGRATE_LINKS_MAX, &args->links, err);
    case OPT_FAULT_WORKERS:
        return ibx_args_unsigned("--fault-workers", value, 0, IBX_MIGRATE_LINKS_MAX,
                                 &args->fault_workers, err);
    case OPT_SPIN:
        return ibx_args_unsigned("--spin", value, 0, SPIN_MAX, &args->spin_us, err);
    case OPT_THREADS:
        return ibx_args_unsigned("--threads", value, 1, BENCH_THREADS_MAX, &args->threads, err);
    case OPT_PAUSE:
        return ibx_args_unsigned("--pause", value, 0, SPIN_MAX, &args->pause_us, err);
    case OPT_TOUCHES:
        return ibx_args_unsigned("--touches", value, 1, 1u << 20, &args->touches, err);
    default: /* OPT_ROUNDS */
        return ibx_args_unsigned("--rounds", value, 1, BENCH_ROUNDS_MAX, &args->rounds, err);
    }
}

static int take_option(struct bench_args *args, int option, const char *value,
                       struct ibx_error *err)
{
    switch (option) {
    case OPT_KEY_FILE:
        return ibx_options_set(&args->options, "key_file", value, err);
    case OPT_SET:
        return ibx_args_set(&args->options, value, err);
    case OPT_NICE:
        return take_nice(args, value, err);
    case OPT_SIZE:
        return take_size(args, value, err);
    case OPT_PAGE:
        return take_page(args, value, err);
    case OPT_TIME:
        return ibx_args_seconds("--time", value, SECONDS_MAX, &args->seconds, err);
    case OPT_LEND_CPUS:
        return take_cpus(&args->lender, "--lend-cpus", value, err);
    case OPT_CPUS:
        return take_cpus(&args->workers, "--cpus", value, err);
    case OPT_TOUCH_CPUS:
        return take_cpus(&args->touchers, "--touch-cpus", value, err);
    case OPT_MINOR:
        args->minor = true;
        return 0;
    case OPT_JSON:
        args->json = value;
        return 0;
    default:
        return take_count(args, option, value, err);
    }
}

/* ------------------------------------------------------------ the whole line */

static int parse_options(int argc, char **argv, struct bench_args *args, struct ibx_error *err)
{
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "hV", long_options, &index)) != -1) {
        int rc = ibx_args_common(&tool, option);
        if (rc)
            return rc;
        if (!goes_with(option, args->command))
            return ibx_args_bad_usage(&tool, "--%s does not go with this command",
                                      long_options[index].name);
        rc = take_option(args, option, optarg, err);
        if (rc)
            return rc;
    }
    return 0;
}

static const char *const commands[] = {
    [BENCH_SELF] = "self", [BENCH_FETCH] = "fetch", [BENCH_LEND] = "lend"};

int ibx_bench_args_parse(int argc, char **argv, struct bench_args *args, struct ibx_error *err)
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
    };
    ibx_options_init(&args->options);
    args->options.message = IBX_MIGRATE_MESSAGE;
    if (!ibx_thread_may_spin())
        args->options.spin_us = 0;
    int command = 0;
    int skip = ibx_args_begin(&tool, commands, sizeof(commands) / sizeof(commands[0]), argc, argv,
                              &command);
    if (skip < 0)
        return skip;
    if (skip)
        args->command = (enum bench_command)command;
    int rc = parse_options(argc - skip, argv + skip, args, err);
    if (rc)
        return rc;
    if (!skip)
        return ibx_args_bad_usage(&tool, "%s", "a command comes first");
    int left = argc - skip - optind;
    if (left > 1)
        return ibx_args_bad_usage(&tool, "\"%s\" is one argument too many",
                                  argv[skip + optind + 1]);
    if (!left && args->command != BENCH_SELF)
        return ibx_args_bad_usage(&tool, "%s", "a URI is needed");
    args->uri = left ? argv[skip + optind] : DEFAULT_URI;
    return 0;
}
