/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-bw's command line. */
#include "tools/args.h"
#include "tools/ib-bw/ib-bw.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SIZES   "4,64,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M"
#define TUNE_SIZES      "1K,2K,4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,16M,64M,256M"
#define ROUNDS_MAX      1000u
#define SECONDS_MAX     3600.0
#define MAX_BYTES_LIMIT ((size_t)1 << 40)
#define CLIENTS_LIMIT   65536u

static const char usage[] = "usage: ib-bw serve [options] URI\n"
                            "       ib-bw run [options] URI\n"
                            "       ib-bw self [options]\n"
                            "       ib-bw tune [options]\n"
                            "       ib-bw --help | --version\n";

static const char help[] =
    "\n"
    "Measures cudaMemcpy as GVirtuS calls its communicator: ours over every path there is, "
    "against\n"
    "what GVirtuS's own TCP communicator (stock) does.\n"
    "\n"
    "  serve URI   answers the calls of `run` until it is stopped; rdma://0.0.0.0:18515 serves "
    "all\n"
    "              addresses\n"
    "  run URI     measures against such a server\n"
    "  self        starts both ends on this host and compares all paths\n"
    "  tune        measures on this host's GPU which way the back end's copies should take, and "
    "stores it\n"
    "\n"
    "All commands:\n"
    "  --set KEY=VALUE   an option of the transport (below); may be repeated\n"
    "all but tune:\n"
    "  --key-file FILE   the same as --set key_file=FILE\n"
    "  --raw             the transport's READs, WRITEs and messages instead of calls\n"
    "run, self and tune:\n"
    "  --sizes LIST      payload sizes [" DEFAULT_SIZES "; tune has others]\n"
    "  --time SECONDS    a cell of the table [0.3, tune 0.1]\n"
    "  --count N         calls a cell, instead of a time\n"
    "  --rounds N        turns in which the paths alternate [5]\n"
    "run and self:\n"
    "  --depth N         with --raw: READs or WRITEs in flight [16]\n"
    "  --long            one line a path, with the 99th percentile\n"
    "  --json FILE       results as JSON; \"-\": on standard output, instead of the table\n"
    "  --plot FILE       results as FILE.svg or FILE.png, drawn by gnuplot\n"
    "run:\n"
    "  --stock HOST:PORT a server's stock door, to compare with\n"
    "self:\n"
    "  --paths LIST      of shm, verbs, ofi, tcp, stock [all]\n"
    "  --iperf           one stream of iperf3 before and after, as a yardstick\n"
    "  --no-pin          let the ends run on any processor, not on their own\n"
    "tune:\n"
    "  --output FILE     where to store it [where a back end looks: rdma.tuning]\n"
    "  --over URI        measure the adapter's own way into the GPU, too, through this fabric and\n"
    "                    back: verbs://ADDRESS:0 with an address of this host's adapter\n"
    "serve:\n"
    "  --stock [ADDRESS:]PORT  serve stock too; it knows no keys [address 127.0.0.1]\n"
    "  --max-bytes SIZE  the longest payload taken [1G]\n"
    "  --max-clients N   connections at once [64]\n"
    "\n"
    "Options of the transport:\n";

static const struct args_tool tool = {.name = "ib-bw", .usage = usage, .help = help};

enum {
    OPT_SET = 256,
    OPT_KEY_FILE,
    OPT_RAW,
    OPT_SIZES,
    OPT_TIME,
    OPT_COUNT,
    OPT_ROUNDS,
    OPT_DEPTH,
    OPT_LONG,
    OPT_JSON,
    OPT_PLOT,
    OPT_STOCK,
    OPT_PATHS,
    OPT_IPERF,
    OPT_NO_PIN,
    OPT_MAX_BYTES,
    OPT_MAX_CLIENTS,
    OPT_OUTPUT,
    OPT_OVER,
};

static const struct option long_options[] = {
    {"set", required_argument, NULL, OPT_SET},
    {"key-file", required_argument, NULL, OPT_KEY_FILE},
    {"raw", no_argument, NULL, OPT_RAW},
    {"sizes", required_argument, NULL, OPT_SIZES},
    {"time", required_argument, NULL, OPT_TIME},
    {"count", required_argument, NULL, OPT_COUNT},
    {"rounds", required_argument, NULL, OPT_ROUNDS},
    {"depth", required_argument, NULL, OPT_DEPTH},
    {"long", no_argument, NULL, OPT_LONG},
    {"json", required_argument, NULL, OPT_JSON},
    {"plot", required_argument, NULL, OPT_PLOT},
    {"stock", required_argument, NULL, OPT_STOCK},
    {"paths", required_argument, NULL, OPT_PATHS},
    {"iperf", no_argument, NULL, OPT_IPERF},
    {"no-pin", no_argument, NULL, OPT_NO_PIN},
    {"max-bytes", required_argument, NULL, OPT_MAX_BYTES},
    {"max-clients", required_argument, NULL, OPT_MAX_CLIENTS},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"over", required_argument, NULL, OPT_OVER},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {0},
};

/* Which commands take an option: bits of enum bw_command. */
#define SERVE   (1u << BW_SERVE)
#define RUN     (1u << BW_RUN)
#define SELF    (1u << BW_SELF)
#define TUNE    (1u << BW_TUNE)
#define MEASURE (RUN | SELF)

static unsigned commands_of(int option)
{
    switch (option) {
    case OPT_SET:
        return SERVE | MEASURE | TUNE;
    case OPT_KEY_FILE:
    case OPT_RAW:
        return SERVE | MEASURE;
    case OPT_SIZES:
    case OPT_TIME:
    case OPT_COUNT:
    case OPT_ROUNDS:
        return MEASURE | TUNE;
    case OPT_OUTPUT:
    case OPT_OVER:
        return TUNE;
    case OPT_STOCK:
        return SERVE | RUN;
    case OPT_MAX_BYTES:
    case OPT_MAX_CLIENTS:
        return SERVE;
    case OPT_PATHS:
    case OPT_IPERF:
    case OPT_NO_PIN:
        return SELF;
    default:
        return MEASURE;
    }
}

static int add_size(struct bw_args *args, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return ibx_error_prefix(err, rc, "--sizes");
    if (!bytes || bytes > MAX_BYTES_LIMIT)
        return ibx_error_set(err, -EINVAL, "--sizes: \"%s\" is not between 1 and 1024G", text);
    if (args->size_count == BW_SIZES_MAX)
        return ibx_error_set(err, -E2BIG, "--sizes: more than %d sizes", BW_SIZES_MAX);
    for (unsigned i = 0; i < args->size_count; i++) {
        if (args->sizes[i] == bytes)
            return ibx_error_set(err, -EINVAL, "--sizes: \"%s\" is there twice", text);
    }
    args->sizes[args->size_count++] = bytes;
    return 0;
}

static int parse_sizes(struct bw_args *args, const char *text, struct ibx_error *err)
{
    args->size_count = 0;
    for (;;) {
        char one[64];
        size_t n = strcspn(text, ",");
        snprintf(one, sizeof(one), "%.*s", (int)(n < sizeof(one) ? n : sizeof(one)), text);
        int rc = add_size(args, one, err);
        if (rc)
            return rc;
        text += n;
        if (!*text)
            return 0;
        text++;
    }
}

static bool path_known(const char *name, size_t n)
{
    const char *known = BW_STOCK;
    for (unsigned i = 0; known; known = ibx_provider_name(i++)) {
        if (strlen(known) == n && !memcmp(known, name, n))
            return true;
    }
    return false;
}

static int check_paths(const char *list, struct ibx_error *err)
{
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        if (!path_known(p, n))
            return ibx_error_set(err, -EINVAL,
                                 "--paths: \"%.*s\" is not one of shm, verbs, ofi, tcp, stock",
                                 (int)(n < 64 ? n : 64), p);
        p += n;
        if (!*p)
            return 0;
    }
}

static int take_number(struct bw_args *args, int option, const char *value, struct ibx_error *err)
{
    unsigned long number = 0;
    int rc = 0;
    switch (option) {
    case OPT_COUNT:
        rc = ibx_args_number("--count", value, 1, BW_CALLS_MAX, &number, err);
        args->count = number;
        return rc;
    case OPT_ROUNDS:
        return ibx_args_unsigned("--rounds", value, 1, ROUNDS_MAX, &args->rounds, err);
    case OPT_DEPTH:
        return ibx_args_unsigned("--depth", value, 1, BW_DEPTH_MAX, &args->depth, err);
    case OPT_MAX_CLIENTS:
        return ibx_args_unsigned("--max-clients", value, 1, CLIENTS_LIMIT, &args->max_clients, err);
    default: /* OPT_MAX_BYTES */
        rc = ibx_size_parse(value, &args->max_bytes, err);
        if (!rc && (!args->max_bytes || args->max_bytes > MAX_BYTES_LIMIT))
            rc = ibx_error_set(err, -EINVAL, "\"%s\" is not between 1 and 1024G", value);
        return rc ? ibx_error_prefix(err, rc, "--max-bytes") : 0;
    }
}

/* Now, and not when all has been measured. */
static int check_file(const char *option, const char *name, struct ibx_error *err)
{
    int rc = strcmp(option, "--plot") ? 0 : ibx_bw_plot_check(name, err);
    if (rc)
        return rc;
    rc = ibx_bw_file_check(name, err);
    return rc ? ibx_error_prefix(err, rc, "%s", option) : 0;
}

static int take_option(struct bw_args *args, int option, const char *value, struct ibx_error *err)
{
    switch (option) {
    case OPT_SET:
        return ibx_args_set(&args->options, value, err);
    case OPT_KEY_FILE:
        return ibx_options_set(&args->options, "key_file", value, err);
    case OPT_SIZES:
        return parse_sizes(args, value, err);
    case OPT_TIME:
        return ibx_args_seconds("--time", value, SECONDS_MAX, &args->seconds, err);
    case OPT_RAW:
        args->raw = true;
        return 0;
    case OPT_LONG:
        args->plain = true;
        return 0;
    case OPT_IPERF:
        args->iperf = true;
        return 0;
    case OPT_NO_PIN:
        args->loose = true;
        return 0;
    case OPT_JSON:
        args->json = value;
        return strcmp(value, "-") ? check_file("--json", value, err) : 0;
    case OPT_PLOT:
        args->plot = value;
        return check_file("--plot", value, err);
    case OPT_OUTPUT:
        args->output = value;
        return 0;
    case OPT_OVER:
        args->over = value;
        return 0;
    case OPT_STOCK:
        args->stock = value;
        return 0;
    case OPT_PATHS:
        args->paths = value;
        return check_paths(value, err);
    default:
        return take_number(args, option, value, err);
    }
}

static int parse_options(int argc, char **argv, struct bw_args *args, struct ibx_error *err)
{
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "hV", long_options, &index)) != -1) {
        int rc = ibx_args_common(&tool, option);
        if (rc)
            return rc;
        if (!(commands_of(option) & 1u << args->command))
            return ibx_args_bad_usage(&tool, "--%s does not go with this command",
                                      long_options[index].name);
        rc = take_option(args, option, optarg, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* What only makes sense together. */
static int check_together(const struct bw_args *args)
{
    if (args->raw && args->stock)
        return ibx_args_bad_usage(&tool, "%s", "--stock has nothing to compare with --raw");
    if (args->raw && args->plot)
        return ibx_args_bad_usage(&tool, "%s", "--plot does not draw --raw");
    return 0;
}

static const char *const commands[] = {
    [BW_SERVE] = "serve", [BW_RUN] = "run", [BW_SELF] = "self", [BW_TUNE] = "tune"};

int ibx_bw_args_parse(int argc, char **argv, struct bw_args *args, struct ibx_error *err)
{
    *args = (struct bw_args){
        .command = BW_SELF,
        .seconds = 0.3,
        .rounds = 5,
        .depth = 16,
        .max_bytes = (size_t)1 << 30,
        .max_clients = 64,
    };
    ibx_options_init(&args->options);
    parse_sizes(args, DEFAULT_SIZES, NULL);
    int command = 0;
    int skip = ibx_args_begin(&tool, commands, sizeof(commands) / sizeof(commands[0]), argc, argv,
                              &command);
    if (skip < 0)
        return skip;
    if (skip)
        args->command = (enum bw_command)command;
    if (args->command == BW_TUNE) {
        args->seconds = 0.1;
        parse_sizes(args, TUNE_SIZES, NULL);
    }
    int rc = parse_options(argc - skip, argv + skip, args, err);
    if (rc)
        return rc;
    if (!skip)
        return ibx_args_bad_usage(&tool, "%s", "a command comes first");
    int left = argc - skip - optind;
    bool wants_uri = args->command == BW_SERVE || args->command == BW_RUN;
    if (left < wants_uri)
        return ibx_args_bad_usage(&tool, "%s", "a URI is needed");
    if (left > wants_uri)
        return ibx_args_bad_usage(&tool, "\"%s\" is one argument too many",
                                  argv[skip + optind + wants_uri]);
    args->uri = wants_uri ? argv[skip + optind] : NULL;
    return check_together(args);
}
