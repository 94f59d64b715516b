/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate's command line. */
#include "tools/args.h"
#include "tools/ib-migrate/ib-migrate.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIVE_UP_MAX 604800u /* a week, seconds */
#define LINKS_MAX   40u     /* symbolic links one after the other, as many as the kernel follows */

static const char usage[] = "usage: ib-migrate receive --qmp PATH --listen URI [options]\n"
                            "       ib-migrate send --qmp PATH [options] URI\n"
                            "       ib-migrate check --qmp PATH [--destination | URI] [options]\n"
                            "       ib-migrate status [--qmp PATH] [--json]\n"
                            "       ib-migrate cancel [--qmp PATH]\n"
                            "       ib-migrate set --max-bandwidth SIZE [--qmp PATH]\n"
                            "       ib-migrate recover --qmp PATH [options] [URI]\n"
                            "       ib-migrate rollback --qmp PATH [--yes] [options]\n"
                            "       ib-migrate prune [--qmp PATH [--unfinished]]\n"
                            "       ib-migrate --help | --version\n";

static const char help[] =
    "\n"
    "Moves a running QEMU VM to another host: it stops for milliseconds and runs on there, while "
    "its\n"
    "memory follows, page by page as they are needed, by RDMA READ.\n"
    "\n"
    "  receive    waits at URI for a VM and takes it into a QEMU started with -incoming defer\n"
    "  send       moves the VM to such a receiver\n"
    "  check      says why the VM cannot be moved, if so; touches nothing\n"
    "  status     shows all moves on record here, and how far those are that run\n"
    "  cancel     ends a move whose VM has not gone over yet: it goes on at the source\n"
    "  set        changes the bandwidth of a running move, at the destination\n"
    "  recover    goes on with a move whose tool has died, on either side\n"
    "  rollback   restarts the source's VM from its stop, when the destination is lost\n"
    "  prune      forgets moves that are over\n"
    "\n"
    "All commands:\n"
    "  --qmp PATH            the monitor of QEMU: a unix socket\n"
    "  --state-dir DIR       where moves are recorded [$IBX_STATE_DIR, /var/lib/ibx,\n"
    "                        ~/.local/state/ibx]\n"
    "receive, send, check, recover, rollback:\n"
    "  --key-file FILE       the key that both hosts share; also: --key\n"
    "  --set KEY=VALUE       an option of the transport (below); may be repeated\n"
    "receive, send, recover:\n"
    "  --give-up SECONDS     end a move whose other side is away for so long [never]\n"
    "  --json                one JSON object a line on standard output; also: status, check\n"
    "  --quiet               nothing but errors and what --json prints\n"
    "receive, recover:\n"
    "  --listen URI          where the source knocks: rdma://0.0.0.0:18600\n"
    "  --max-bandwidth SIZE  bytes a second (500M, 2G) of pages that nobody waits for\n"
    "                        [no limit]; also: set\n"
    "  --minor               READ pages into place instead of copying them\n"
    "send, recover:\n"
    "  --links N             page connections, 1 to 16 [3, and 5 when both hosts have 8 "
    "processors\n"
    "                        or more]; also: check\n"
    "  --quit                end the source's QEMU when all is confirmed\n"
    "check:\n"
    "  --destination         this QEMU is to receive\n"
    "prune:\n"
    "  --unfinished          also those of this monitor whose QEMU has ended, or all of whose "
    "pages\n"
    "                        have come, before they were over\n"
    "rollback:\n"
    "  --yes                 do not ask\n"
    "\n"
    "Options of the transport:\n";

static const struct args_tool tool = {.name = "ib-migrate", .usage = usage, .help = help};

enum {
    OPT_QMP = 256,
    OPT_STATE_DIR,
    OPT_KEY_FILE,
    OPT_SET,
    OPT_GIVE_UP,
    OPT_JSON,
    OPT_QUIET,
    OPT_LISTEN,
    OPT_MAX_BANDWIDTH,
    OPT_MINOR,
    OPT_LINKS,
    OPT_QUIT,
    OPT_DESTINATION,
    OPT_YES,
    OPT_UNFINISHED,
};

static const struct option long_options[] = {
    {"qmp", required_argument, NULL, OPT_QMP},
    {"state-dir", required_argument, NULL, OPT_STATE_DIR},
    {"key-file", required_argument, NULL, OPT_KEY_FILE},
    {"key", required_argument, NULL, OPT_KEY_FILE},
    {"set", required_argument, NULL, OPT_SET},
    {"give-up", required_argument, NULL, OPT_GIVE_UP},
    {"json", no_argument, NULL, OPT_JSON},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"max-bandwidth", required_argument, NULL, OPT_MAX_BANDWIDTH},
    {"minor", no_argument, NULL, OPT_MINOR},
    {"links", required_argument, NULL, OPT_LINKS},
    {"quit", no_argument, NULL, OPT_QUIT},
    {"destination", no_argument, NULL, OPT_DESTINATION},
    {"yes", no_argument, NULL, OPT_YES},
    {"unfinished", no_argument, NULL, OPT_UNFINISHED},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {0},
};

/* ------------------------------------------------------------ what goes with what */

/* Bits of enum migrate_command. */
#define RECEIVE  (1u << MIGRATE_RECEIVE)
#define SEND     (1u << MIGRATE_SEND)
#define STATUS   (1u << MIGRATE_STATUS)
#define SET      (1u << MIGRATE_SET)
#define RECOVER  (1u << MIGRATE_RECOVER)
#define ROLLBACK (1u << MIGRATE_ROLLBACK)
#define CHECK    (1u << MIGRATE_CHECK)
#define PRUNE    (1u << MIGRATE_PRUNE)
#define MOVES    (RECEIVE | SEND | RECOVER)

static unsigned commands_of(int option)
{
    switch (option) {
    case OPT_KEY_FILE:
    case OPT_SET:
        return MOVES | CHECK | ROLLBACK;
    case OPT_GIVE_UP:
    case OPT_QUIET:
        return MOVES;
    case OPT_JSON:
        return MOVES | STATUS | CHECK;
    case OPT_LISTEN:
    case OPT_MINOR:
        return RECEIVE | RECOVER;
    case OPT_MAX_BANDWIDTH:
        return RECEIVE | RECOVER | SET;
    case OPT_LINKS:
        return SEND | RECOVER | CHECK;
    case OPT_QUIT:
        return SEND | RECOVER;
    case OPT_DESTINATION:
        return CHECK;
    case OPT_YES:
        return ROLLBACK;
    case OPT_UNFINISHED:
        return PRUNE;
    default:
        return ~0u;
    }
}

/* ------------------------------------------------------------ values */

/* Absolute and without links, as realpath(3) does it, also when the socket itself is gone: a QEMU
 * that has ended takes it along, and its record is still found by whatever led there. For free();
 * NULL: its folder is gone, too. */
static char *place_of(const char *path, unsigned links)
{
    char folder[PATH_MAX], link[PATH_MAX], next[2 * PATH_MAX];
    char *whole = realpath(path, NULL);
    if (whole)
        return whole;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    char *place = *name && strlen(path) < sizeof(folder) ? realpath(folder, NULL) : NULL;
    if (!place)
        return NULL;
    snprintf(next, sizeof(next), "%s/%s", strcmp(place, "/") ? place : "", name);
    const ssize_t length = readlink(next, link, sizeof(link) - 1);
    if (length > 0 && links) {
        link[length] = '\0';
        snprintf(next, sizeof(next), "%s%s%s", *link == '/' ? "" : place, *link == '/' ? "" : "/",
                 link);
        whole = place_of(next, links - 1);
    } else if (length < 0) {
        whole = strdup(next);
    }
    free(place);
    return whole;
}

/* So that a record means the same monitor whatever folder `recover` is called from. */
static int take_qmp(struct migrate_args *args, const char *text, struct ibx_error *err)
{
    if (!ibx_qmp_reachable(text))
        return ibx_error_set(err, -EINVAL,
                             "--qmp: \"%.128s\" is not a path with a name of 1 to %u bytes", text,
                             IBX_QMP_NAME_MAX);
    char *whole = place_of(text, LINKS_MAX);
    snprintf(args->qmp, sizeof(args->qmp), "%s", whole && ibx_qmp_reachable(whole) ? whole : text);
    free(whole);
    return 0;
}

static int take_bandwidth(struct migrate_args *args, const char *text, struct ibx_error *err)
{
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return ibx_error_prefix(err, rc, "--max-bandwidth");
    args->max_bandwidth = bytes;
    args->bandwidth_given = true;
    return 0;
}

static void take_flag(struct migrate_args *args, int option)
{
    switch (option) {
    case OPT_JSON:
        args->json = true;
        break;
    case OPT_QUIET:
        args->quiet = true;
        break;
    case OPT_MINOR:
        args->minor = true;
        break;
    case OPT_QUIT:
        args->quit = true;
        break;
    case OPT_DESTINATION:
        args->destination = true;
        break;
    case OPT_UNFINISHED:
        args->unfinished = true;
        break;
    default: /* OPT_YES */
        args->yes = true;
        break;
    }
}

static int take_option(struct migrate_args *args, int option, const char *value,
                       const char **state_dir, struct ibx_error *err)
{
    switch (option) {
    case OPT_QMP:
        return take_qmp(args, value, err);
    case OPT_STATE_DIR:
        *state_dir = value;
        return 0;
    case OPT_KEY_FILE:
        return ibx_options_set(&args->options, "key_file", value, err);
    case OPT_SET:
        return ibx_args_set(&args->options, value, err);
    case OPT_GIVE_UP:
        return ibx_args_unsigned("--give-up", value, 1, GIVE_UP_MAX, &args->give_up_s, err);
    case OPT_LISTEN:
        args->listen = value;
        return 0;
    case OPT_MAX_BANDWIDTH:
        return take_bandwidth(args, value, err);
    case OPT_LINKS:
        return ibx_args_unsigned("--links", value, 1, IBX_MIGRATE_LINKS_MAX, &args->links, err);
    default:
        take_flag(args, option);
        return 0;
    }
}

/* The record keeps the name of the key file, for `recover` from another folder. */
static void absolute_key_file(struct ibx_options *options)
{
    char *whole = options->key_file[0] ? realpath(options->key_file, NULL) : NULL;
    if (whole && strlen(whole) < sizeof(options->key_file))
        snprintf(options->key_file, sizeof(options->key_file), "%s", whole);
    free(whole);
}

/* ------------------------------------------------------------ the whole line */

static int parse_options(int argc, char **argv, struct migrate_args *args, const char **state_dir,
                         struct ibx_error *err)
{
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "hV", long_options, &index)) != -1) {
        int rc = ibx_args_common(&tool, option);
        if (rc)
            return rc;
        if (option == OPT_MAX_BANDWIDTH && args->command == MIGRATE_SEND)
            return ibx_args_bad_usage(&tool, "%s",
                                      "--max-bandwidth is given to the destination, which fetches");
        if (!(commands_of(option) & 1u << args->command))
            return ibx_args_bad_usage(&tool, "--%s does not go with this command",
                                      long_options[index].name);
        rc = take_option(args, option, optarg, state_dir, err);
        if (rc)
            return rc;
    }
    return 0;
}

/* What a command needs, and what only makes sense together. */
static int check_together(const struct migrate_args *args)
{
    const unsigned command = 1u << args->command;
    if (!*args->qmp && command & (MOVES | CHECK | ROLLBACK))
        return ibx_args_bad_usage(&tool, "%s",
                                  "--qmp is needed: the unix socket of QEMU's monitor");
    if (args->command == MIGRATE_RECEIVE && !args->listen)
        return ibx_args_bad_usage(&tool, "%s",
                                  "--listen is needed: rdma://0.0.0.0:18600, for instance");
    if (args->command == MIGRATE_SEND && !args->uri)
        return ibx_args_bad_usage(&tool, "%s", "a URI is needed: where the destination listens");
    if (args->command == MIGRATE_SET && !args->bandwidth_given)
        return ibx_args_bad_usage(&tool, "%s", "--max-bandwidth is needed");
    if (args->unfinished && !*args->qmp)
        return ibx_args_bad_usage(&tool, "%s",
                                  "--unfinished goes with --qmp: the monitor that the QEMU had");
    if (args->destination && args->uri)
        return ibx_args_bad_usage(&tool, "%s",
                                  "the source asks its destination, not the other way round");
    if (args->listen && args->uri)
        return ibx_args_bad_usage(&tool, "%s", "the destination has --listen, the source a URI");
    return 0;
}

static const char *const commands[MIGRATE_COMMANDS] = {
    [MIGRATE_RECEIVE] = "receive",   [MIGRATE_SEND] = "send",   [MIGRATE_STATUS] = "status",
    [MIGRATE_CANCEL] = "cancel",     [MIGRATE_SET] = "set",     [MIGRATE_RECOVER] = "recover",
    [MIGRATE_ROLLBACK] = "rollback", [MIGRATE_CHECK] = "check", [MIGRATE_PRUNE] = "prune",
};

int ibx_cli_args_parse(int argc, char **argv, struct migrate_args *args, struct ibx_error *err)
{
    const char *state_dir = NULL;
    memset(args, 0, sizeof(*args));
    args->command = MIGRATE_COMMANDS;
    ibx_options_init(&args->options);
    int command = 0;
    int skip = ibx_args_begin(&tool, commands, MIGRATE_COMMANDS, argc, argv, &command);
    if (skip < 0)
        return skip;
    if (skip)
        args->command = (enum migrate_command)command;
    if (!skip && argv[1][1] != 'h' && argv[1][1] != 'V' && strcmp(argv[1], "--help") != 0 &&
        strcmp(argv[1], "--version") != 0)
        return ibx_args_bad_usage(&tool, "%s", "a command comes first");
    int rc = parse_options(argc - skip, argv + skip, args, &state_dir, err);
    if (rc)
        return rc;
    int left = argc - skip - optind;
    if (left && args->command == MIGRATE_RECEIVE && !args->listen)
        return ibx_args_bad_usage(&tool, "receive takes its URI with --listen: --listen %s",
                                  argv[skip + optind]);
    int takes_uri = (1u << args->command & (SEND | CHECK | RECOVER)) != 0;
    if (left > takes_uri)
        return ibx_args_bad_usage(&tool, "\"%s\" is one argument too many",
                                  argv[skip + optind + takes_uri]);
    args->uri = left ? argv[skip + optind] : NULL;
    if (check_together(args))
        return -ENOEXEC;
    absolute_key_file(&args->options);
    return ibx_journal_folder(state_dir, args->folder, sizeof(args->folder), err);
}
