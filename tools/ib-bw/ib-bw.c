/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-bw: what the communicator gains over GVirtuS's own, see ib-bw(1). This is its command line. */
#include "tools/ib-bw/ib-bw.h"
#include "tools/options.h"

#include "common/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SIZES   "4,64,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M"
#define TUNE_SIZES      "1K,2K,4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M,16M,64M,256M"
#define MAX_BYTES_LIMIT ((size_t)1 << 40)

#define SERVE   (1u << BW_SERVE)
#define RUN     (1u << BW_RUN)
#define SELF    (1u << BW_SELF)
#define TUNE    (1u << BW_TUNE)
#define MEASURE (RUN | SELF)

static int add_size(struct bw_args *args, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return rc;
    if (!bytes || bytes > MAX_BYTES_LIMIT)
        return ibx_error_set(err, -EINVAL, "\"%s\" is not between 1 and 1024G", text);
    if (args->size_count == BW_SIZES_MAX)
        return ibx_error_set(err, -E2BIG, "more than %d sizes", BW_SIZES_MAX);
    for (unsigned i = 0; i < args->size_count; i++) {
        if (args->sizes[i] == bytes)
            return ibx_error_set(err, -EINVAL, "\"%s\" is there twice", text);
    }
    args->sizes[args->size_count++] = bytes;
    return 0;
}

static int add_path(struct bw_args *args, const char *text, struct ibx_error *err)
{
    unsigned bit = !strcmp(text, BW_STOCK);
    const char *name;
    for (unsigned i = 0; (name = ibx_provider_name(i)); i++) {
        if (!strcmp(text, name))
            bit = BW_PATH_BIT(i);
    }
    args->paths |= bit;
    return bit ? 0
               : ibx_error_set(err, -EINVAL, "\"%.64s\" is not one of shm, verbs, ofi, tcp, stock",
                               text);
}

/* Calls `add` for each element of a list with commas. */
static int take_list(struct bw_args *args, const char *text,
                     int (*add)(struct bw_args *, const char *, struct ibx_error *),
                     struct ibx_error *err)
{
    char *copy = strdup(text), *rest = copy, *one;
    int rc = copy ? 0 : ibx_error_set(err, -ENOMEM, "no memory for a list");
    while (!rc && (one = strsep(&rest, ",")))
        rc = add(args, one, err);
    free(copy);
    return rc;
}

static int take_sizes(void *args, const char *text, struct ibx_error *err)
{
    ((struct bw_args *)args)->size_count = 0;
    return take_list(args, text, add_size, err);
}

static int take_paths(void *args, const char *text, struct ibx_error *err)
{
    return take_list(args, text, add_path, err);
}

/* Checks now that the file can be written, rather than fail after the measurement. */
static int take_json(void *at, const char *text, struct ibx_error *err)
{
    *(const char **)at = text;
    return strcmp(text, "-") ? ibx_bw_file_check(text, err) : 0;
}

static int take_plot(void *at, const char *text, struct ibx_error *err)
{
    *(const char **)at = text;
    int rc = ibx_bw_plot_check(text, err);
    return rc ? rc : ibx_bw_file_check(text, err);
}

static const struct ibx_tool_command commands[] = {
    [BW_SERVE] = {"serve", "URI",
                  "Answers the calls of `run' until it is stopped; rdma://0.0.0.0:18515 listens at "
                  "all addresses"},
    [BW_RUN] = {"run", "URI", "Measures against the `ib-bw serve' at URI"},
    [BW_SELF] = {"self", NULL, "Starts both ends on this host and compares all paths"},
    [BW_TUNE] = {"tune", NULL,
                 "Measures on this host's GPU which path the back end's copies should take, and "
                 "stores the result"},
    {0},
};

#define AT(member) .at = offsetof(struct bw_args, member)

static const struct ibx_tool_option options[] = {
    {.help = "All commands:"},
    IBX_TOOL_OPTION_SET(struct bw_args, 0),
    {.help = "serve, run and self:"},
    IBX_TOOL_OPTION_KEY_FILE(struct bw_args, SERVE | MEASURE),
    IBX_TOOL_OPTION_ENCRYPTION(struct bw_args, SERVE | MEASURE),
    {.help = "run, self and tune:"},
    {"sizes", "LIST", "Payload sizes [" DEFAULT_SIZES "; tune has others]", MEASURE | TUNE,
     IBX_TOOL_OWN, .take = take_sizes},
    {"time", "SECONDS", "Seconds for each cell of the table [0.3; tune: 0.1]", MEASURE | TUNE,
     IBX_TOOL_SECONDS, AT(seconds), .max = 3600},
    {"count", "N", "Calls for each cell, instead of a time", MEASURE | TUNE, IBX_TOOL_UNSIGNED,
     AT(count), 1, BW_CALLS_MAX},
    {"rounds", "N", "Rounds; in each, all paths take turns [5]", MEASURE | TUNE, IBX_TOOL_UNSIGNED,
     AT(rounds), 1, 1000},
    {.help = "run and self:"},
    {"long", NULL, "One line for each path, with the 99th percentile", MEASURE, IBX_TOOL_FLAG,
     AT(line_a_path)},
    {"json", "FILE", "Write the results as JSON; \"-\": to standard output, instead of the table",
     MEASURE, IBX_TOOL_OWN, AT(json), .take = take_json},
    {"plot", "FILE", "Draw the results by gnuplot, as FILE.svg or FILE.png", MEASURE, IBX_TOOL_OWN,
     AT(plot), .take = take_plot},
    {.help = "run and serve:"},
    {"stock", "[HOST:]PORT",
     "serve: also answer GVirtuS's own TCP there, which has no authentication [127.0.0.1]; run: "
     "compare with it",
     SERVE | RUN, IBX_TOOL_TEXT, AT(stock)},
    {.help = "self:"},
    {"paths", "LIST", "Paths to measure, of shm, verbs, ofi, tcp, stock [all]", SELF, IBX_TOOL_OWN,
     .take = take_paths},
    {"no-pin", NULL, "Let the ends run on any processor", SELF, IBX_TOOL_FLAG, AT(no_pin)},
    {.help = "tune:"},
    {"output", "FILE", "Where to store the result [where a back end looks: rdma.tuning]", TUNE,
     IBX_TOOL_TEXT, AT(output)},
    {"over", "URI",
     "Also measure copies over this fabric, with and without GPUDirect RDMA, from this host's "
     "adapter to itself: verbs://ADDRESS:0 with an address of this host's adapter",
     TUNE, IBX_TOOL_TEXT, AT(over)},
    {.help = "serve:"},
    {"max-bytes", "SIZE", "The longest payload taken [1G]", SERVE, IBX_TOOL_SIZE, AT(max_bytes), 1,
     MAX_BYTES_LIMIT},
    {"max-clients", "N", "Connections at once [64]", SERVE, IBX_TOOL_UNSIGNED, AT(max_clients), 1,
     65536},
    {0},
};

static const struct ibx_tool tool = {
    .name = "ib-bw",
    .help = "Measures cudaMemcpy as GVirtuS calls its communicator, and compares the rdma "
            "communicator over each path with GVirtuS's own TCP communicator (stock).",
    .commands = commands,
    .options = options,
    .lists_transport = true,
};

int main(int argc, char **argv)
{
    static int (*const run[])(const struct bw_args *args) = {[BW_SERVE] = ibx_bw_serve,
                                                             [BW_RUN] = ibx_bw_run,
                                                             [BW_SELF] = ibx_bw_self,
                                                             [BW_TUNE] = ibx_bw_tune};
    static struct bw_args args = {
        .rounds = 5,
        .max_bytes = (size_t)1 << 30,
        .max_clients = 64,
    };
    unsigned command;
    signal(SIGPIPE, SIG_IGN);
    ibx_options_init(&args.options);
    ibx_tool_parse(&tool, argc, argv, &args, &command, &args.uri);
    if (!args.size_count)
        take_sizes(&args, command == BW_TUNE ? TUNE_SIZES : DEFAULT_SIZES, NULL);
    if (!(args.seconds > 0))
        args.seconds = command == BW_TUNE ? 0.1 : 0.3;
    /* A server also accepts GVirtuS's clients by its purpose, as a back end does. */
    snprintf(args.options.purpose, sizeof(args.options.purpose), "%s",
             command == BW_SERVE ? "ib-bw,gvirtus" : "ib-bw");
    /* Errors only: what goes wrong with a path is in the report. */
    if (command != BW_SERVE && !secure_getenv("IBX_LOG"))
        ibx_log_set_level(IBX_LOG_ERROR);
    return run[command](&args);
}
