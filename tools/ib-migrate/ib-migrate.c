/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-migrate: migrates a running QEMU VM by post-copy; see ib-migrate(1). The command line. */
#include "migrate/multicast/multicast.h"
#include "tools/ib-migrate/ib-migrate.h"
#include "tools/ib-migrate/run.h"
#include "tools/options.h"

#include "common/log.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIVE_UP_MAX       604800u /* a week, seconds */
#define WARNINGS_A_SECOND 10u     /* about readers and peers; as in a back end */
#define LINKS_MAX         40u     /* symbolic links in a row, as many as the kernel follows */

enum {
    RECEIVE,
    SEND,
    CHECK,
    STATUS,
    CANCEL,
    SET,
    RECOVER,
    ROLLBACK,
    PRUNE,
    RUN,
    FREEZE,
    SERVE,
    BORROW,
    RETURN,
    CLONE,
    FAR_END,
    FIRECRACKER
};

#define BIT(command) (1u << (command))
#define SENDING      (BIT(SEND) | BIT(BORROW) | BIT(RETURN))
#define MIGRATING    (BIT(RECEIVE) | SENDING | BIT(RECOVER))
#define CONNECTING   (MIGRATING | BIT(CHECK) | BIT(ROLLBACK))
#define READING      (BIT(SERVE) | BIT(CLONE) | BIT(FIRECRACKER))
#define NEEDS_QMP    (CONNECTING | BIT(RUN) | BIT(FREEZE) | BIT(CLONE))
/* Commands that look for records but begin none, so that the folder need not exist. */
#define LOOKING                                                                                    \
    (BIT(CHECK) | BIT(STATUS) | BIT(CANCEL) | BIT(SET) | BIT(RECOVER) | BIT(ROLLBACK) | BIT(PRUNE))
/* Commands that work without a folder of records, for users who cannot make one. */
#define WITHOUT_RECORDS (BIT(FREEZE) | READING)
#define TOLD_BY_RESULT  (BIT(CANCEL) | BIT(SET) | BIT(ROLLBACK) | BIT(PRUNE) | BIT(FIRECRACKER))
#define AT(member)      offsetof(struct migrate_args, member)

/* ------------------------------------------------------------ values */

/* The path of the socket as realpath(3) gives it, even if QEMU has ended and has removed the
 * socket, so that a symbolic link to it still finds the record. To be freed by free(). NULL: the
 * folder is gone, too. */
static char *resolve(const char *path, unsigned links)
{
    char folder[PATH_MAX], link[PATH_MAX], next[2 * PATH_MAX];
    char *whole = realpath(path, NULL);
    if (whole)
        return whole;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(name - path) : 1, slash ? path : ".");
    char *parent = *name && strlen(path) < sizeof(folder) ? realpath(folder, NULL) : NULL;
    if (!parent)
        return NULL;
    snprintf(next, sizeof(next), "%s/%s", strcmp(parent, "/") ? parent : "", name);
    const ssize_t length = readlink(next, link, sizeof(link) - 1);
    if (length > 0 && links) {
        link[length] = '\0';
        snprintf(next, sizeof(next), "%s%s%s", *link == '/' ? "" : parent, *link == '/' ? "" : "/",
                 link);
        whole = resolve(next, links - 1);
    } else if (length < 0) {
        whole = strdup(next);
    }
    free(parent);
    return whole;
}

/* Refuses a character device, as QEMU's -qmp takes it, where a path is needed. */
static int refuse_chardev(const char *text, struct ibx_error *err)
{
    if (!strncmp(text, "unix:", 5) && text[5] && access(text, F_OK))
        return ibx_error_set(err, -EINVAL,
                             "\"%.128s\" is QEMU's syntax: give the path alone, \"%.*s\"", text,
                             (int)strcspn(text + 5, ","), text + 5);
    if (strstr(text, "://") || !strncmp(text, "tcp:", 4))
        return ibx_error_set(
            err, -EINVAL,
            "\"%.128s\" is not a unix socket, by which QEMU's process is also found: start QEMU "
            "with -qmp unix:/run/NAME.qmp,server=on,wait=off, and give that path, on QEMU's host",
            text);
    return 0;
}

/* Makes the path absolute, so that the record names the same monitor in whatever folder `recover`
 * is called. */
static int take_qmp(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    const int rc = refuse_chardev(text, err);
    if (rc)
        return rc;
    if (!ibx_qmp_reachable(text))
        return ibx_error_set(err, -EINVAL, "\"%.128s\" is not a path with a name of 1 to %u bytes",
                             text, IBX_QMP_NAME_MAX);
    char *whole = resolve(text, LINKS_MAX);
    snprintf(args->qmp, sizeof(args->qmp), "%s", whole && ibx_qmp_reachable(whole) ? whole : text);
    free(whole);
    return 0;
}

static int take_bandwidth(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    size_t bytes;
    int rc = ibx_size_parse(text, &bytes, err);
    if (rc)
        return rc;
    args->max_bandwidth = bytes;
    args->bandwidth_given = true;
    return 0;
}

static int take_peer(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    char *end;
    errno = 0;
    const unsigned long uid = strtoul(text, &end, 10);
    if (errno || *text < '0' || *text > '9' || *end || uid >= UINT32_MAX)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is no user number", text);
    args->peer_uid = (unsigned)uid;
    args->peer_given = true;
    return 0;
}

static int take_map(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    return ibx_run_map_add(&args->maps, text, err);
}

static int take_qemu_arg(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    if (args->qemu_arg_count == RUN_QEMU_ARGS_MAX)
        return ibx_error_set(err, -E2BIG, "\"%.64s\" is one more than %u arguments for QEMU", text,
                             RUN_QEMU_ARGS_MAX);
    args->qemu_args[args->qemu_arg_count++] = text;
    return 0;
}

static int take_cache(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    struct ibx_uri uri;
    int rc = ibx_uri_parse(text, &uri, err);
    if (!rc && args->cache_count == SERVE_CACHES_MAX)
        rc = ibx_error_set(err, -E2BIG, "\"%.64s\" is one more than %u", text, SERVE_CACHES_MAX);
    if (!rc)
        args->caches[args->cache_count++] = text;
    return rc;
}

/* Checks now that the interface exists: a cache that cannot join its group goes on without it. */
static int take_interface(void *context, const char *text, struct ibx_error *err)
{
    struct migrate_args *args = context;
    unsigned index;
    args->interface = text;
    return ibx_multicast_interface(text, NULL, &index, err);
}

/* Makes the path absolute, for the same reason. */
static void resolve_key_file(struct ibx_options *options)
{
    char *whole = options->key_file[0] ? realpath(options->key_file, NULL) : NULL;
    if (whole && strlen(whole) < sizeof(options->key_file))
        snprintf(options->key_file, sizeof(options->key_file), "%s", whole);
    free(whole);
}

/* ------------------------------------------------------------ the command line */

static const struct ibx_tool_command commands[] = {
    [RECEIVE] =
        {"receive", NULL,
         "Wait at --listen for a VM and load it into the QEMU at --qmp, which was started with "
         "-incoming defer"},
    [SEND] = {"send", "URI", "Migrate the VM at --qmp to the receiver at URI"},
    [CHECK] = {"check", "[URI]",
               "Report why the VM cannot be migrated, or with --destination why this QEMU cannot "
               "receive one; changes nothing"},
    [STATUS] = {"status", NULL, "List the migrations recorded here, and the progress of each"},
    [CANCEL] = {"cancel", NULL,
                "End a migration before its commit; the VM keeps running at the source"},
    [SET] = {"set", NULL, "Change the bandwidth limit of a running migration, at the destination"},
    [RECOVER] = {"recover", "[URI]", "Continue a migration whose ib-migrate has died"},
    [ROLLBACK] = {"rollback", NULL,
                  "Restart the VM at the source from where it stopped, if the destination is lost"},
    [PRUNE] = {"prune", NULL, "Delete the records of migrations that are over"},
    [RUN] = {"run", NULL,
             "Start the VM's QEMU at --to over ssh, with the same devices, and migrate the VM"},
    [FREEZE] = {"freeze", "FOLDER",
                "Stop the VM at --qmp and keep its memory and state in FOLDER, as a snapshot"},
    [SERVE] = {"serve", "FOLDER|FILE",
               "Offer the snapshot in FOLDER, or the memory FILE of Firecracker's, at --listen"},
    [BORROW] = {"borrow", "URI",
                "Migrate the VM at --qmp to the receiver at URI for a while: its memory here is "
                "kept, and pages follow only when it needs them"},
    [RETURN] = {"return", "URI",
                "Bring the borrowed VM at --qmp back to the receiver at URI, with what it has "
                "written since"},
    [CLONE] = {"clone", "FOLDER|URI [-- QEMU ARGUMENT...]",
               "Make the QEMU at --qmp a child of the snapshot in FOLDER, or served at URI; it was "
               "started with -incoming defer, or is started by the command line after --"},
    [FAR_END] = {"far-end", NULL, "The destination of run, which starts it over ssh"},
    [FIRECRACKER] = {"firecracker", NULL,
                     "Serve the page faults of a microVM that Firecracker restores, from --from"},
    {0},
};

static const struct ibx_tool_option options[] = {
    {.help = "Options of all commands:"},
    {"qmp", "PATH", "The monitor of QEMU: a unix socket; not: serve, firecracker",
     ~(BIT(SERVE) | BIT(FIRECRACKER)), IBX_TOOL_OWN, .take = take_qmp},
    {"state-dir", "DIR",
     "The directory of the records [$IBX_STATE_DIR, /var/lib/ibx, ~/.local/state/ibx]; no effect: "
     "freeze, serve, clone, firecracker",
     .type = IBX_TOOL_TEXT, .at = AT(state_dir)},
    {"json", NULL, "Print JSON on standard output, one object on each line", .at = AT(json)},
    {.help = "Options of receive, send, borrow, return, check, recover, rollback, serve, "
             "clone URI, firecracker and, except --key-file, run:"},
    IBX_TOOL_OPTION_KEY_FILE(struct migrate_args, CONNECTING | READING),
    IBX_TOOL_OPTION_ENCRYPTION(struct migrate_args, CONNECTING | BIT(RUN) | READING),
    IBX_TOOL_OPTION_SET(struct migrate_args, CONNECTING | BIT(RUN) | READING),
    {.help = "Options of receive, send, borrow, return, recover and run:"},
    {"give-up", "SECONDS", "End when the other side has been away for that long [never]",
     MIGRATING | BIT(RUN), IBX_TOOL_UNSIGNED, AT(give_up_s), 1, GIVE_UP_MAX, NULL},
    {"quiet", NULL, "Print only errors and what --json prints; also: serve, firecracker",
     MIGRATING | BIT(RUN) | BIT(SERVE) | BIT(FIRECRACKER), .at = AT(quiet)},
    {"no-verify", NULL,
     "Do not compare the pages that have come with the memory of the source; takes effect only if "
     "both ends have it; not: borrow; serve FILE: at once, without hashes of its pages",
     (MIGRATING & ~BIT(BORROW)) | BIT(RUN) | BIT(SERVE), .at = AT(no_verify)},
    {.help = "Options of receive and send:"},
    {"libvirt", "PATH",
     "libvirt migrates the VM, by virsh migrate --migrateuri unix://PATH, through these tools; "
     "also: check --destination",
     BIT(RECEIVE) | BIT(SEND) | BIT(CHECK), IBX_TOOL_TEXT, .at = AT(libvirt)},
    {"stand-still", NULL,
     "Continue the VM at the destination only when all of its pages are there, as vhost-user "
     "devices require; at both ends; also: check",
     BIT(RECEIVE) | BIT(SEND) | BIT(CHECK), .at = AT(stand_still)},
    {.help = "Options of receive and recover:"},
    {"listen", "URI",
     "Where to listen for the source: rdma://0.0.0.0:18600; also: run, for the destination "
     "[rdma://0.0.0.0:0, to IPv6 alone rdma://[::]:0]; serve, for readers",
     BIT(RECEIVE) | BIT(RECOVER) | BIT(RUN) | BIT(SERVE), IBX_TOOL_TEXT, .at = AT(listen)},
    {"max-bandwidth", "SIZE",
     "Limit in bytes per second (500M, 2G) for pages that the VM does not wait for [no limit]; "
     "also: set, run, serve --cache, clone URI, firecracker",
     BIT(RECEIVE) | BIT(RECOVER) | BIT(SET) | BIT(RUN) | READING, IBX_TOOL_OWN,
     .take = take_bandwidth},
    {"allow", "NAMES",
     "Sources to accept: the names of their keys, separated by commas [all]; serve: readers",
     BIT(RECEIVE) | BIT(RECOVER) | BIT(SERVE), IBX_TOOL_TRANSPORT, .at = AT(options)},
    {"home", NULL, "receive: for a VM that was borrowed from here and returns", BIT(RECEIVE),
     .at = AT(home)},
    {"minor", NULL, "READ pages into place instead of copying them; also: run",
     BIT(RECEIVE) | BIT(RECOVER) | BIT(RUN), .at = AT(minor)},
    {"paused", NULL,
     "Leave the VM paused, even if it ran at the source; start its QEMU with -S, or it runs for "
     "some milliseconds first",
     BIT(RECEIVE) | BIT(RECOVER), .at = AT(paused)},
    {.help = "Options of send and recover:"},
    {"links", "N",
     "Page connections, 1 to 16 [3; with 8 processors on both hosts 5, with 16 7]; also: borrow, "
     "return, check, run, serve --cache, clone URI",
     SENDING | BIT(RECOVER) | BIT(CHECK) | BIT(RUN) | BIT(SERVE) | BIT(CLONE), IBX_TOOL_UNSIGNED,
     AT(links), 1, IBX_MIGRATE_LINKS_MAX, NULL},
    {"quit", NULL,
     "End the source's QEMU when the migration is complete and confirmed; freeze: when the "
     "snapshot is whole",
     BIT(SEND) | BIT(RECOVER) | BIT(FREEZE), .at = AT(quit)},
    {"remove", NULL,
     "Remove the source's file of guest memory when the migration is complete and confirmed; "
     "prune: that such a migration left behind",
     BIT(SEND) | BIT(RECOVER) | BIT(PRUNE), .at = AT(remove)},
    {.help = "Options of send and run:"},
    {"warm", NULL,
     "Fetch pages while the VM still runs, and again those that it writes; the rest after the stop",
     BIT(SEND) | BIT(RUN), .at = AT(warm)},
    {"warm-rounds", "N", "--warm with at most N passes over its memory [8]", BIT(SEND) | BIT(RUN),
     IBX_TOOL_UNSIGNED, AT(warm_rounds), 1, 1000, NULL},
    {"warm-seconds", "SECONDS", "--warm for at most about this long [60]", BIT(SEND) | BIT(RUN),
     IBX_TOOL_UNSIGNED, AT(warm_seconds), 1, GIVE_UP_MAX, NULL},
    {.help = "Options of run:"},
    {"to", "HOST", "The host where the VM is to run, as ssh knows it; also USER@HOST", BIT(RUN),
     IBX_TOOL_TEXT, .at = AT(to)},
    {"address", "HOST", "The address to which this migration connects [HOST of --to]", BIT(RUN),
     IBX_TOOL_TEXT, .at = AT(address)},
    {"map", "/OLD=/NEW", "A path that is different there; may be repeated", BIT(RUN), IBX_TOOL_OWN,
     .take = take_map},
    {"ssh", "COMMAND", "The command that runs another one on HOST, with its arguments [ssh]",
     BIT(RUN), IBX_TOOL_TEXT, .at = AT(ssh)},
    {"far-program", "PATH", "ib-migrate there [ib-migrate]", BIT(RUN), IBX_TOOL_TEXT,
     .at = AT(far_program)},
    {"far-state-dir", "DIR", "--state-dir there", BIT(RUN), IBX_TOOL_TEXT, .at = AT(far_state_dir)},
    {"memory-dir", "DIR",
     "The directory there in which guest memory gets a folder [/dev/shm, or hugetlbfs]", BIT(RUN),
     IBX_TOOL_TEXT, .at = AT(memory_dir)},
    {"run-dir", "DIR",
     "The directory there in which its monitor gets a folder [/run, $XDG_RUNTIME_DIR or /tmp]",
     BIT(RUN), IBX_TOOL_TEXT, .at = AT(run_dir)},
    {"qemu-arg", "TEXT", "One more argument for the QEMU there; may be repeated", BIT(RUN),
     IBX_TOOL_OWN, .take = take_qemu_arg},
    {"keep", NULL, "Keep the QEMU here, stopped, and its memory [both are removed]", BIT(RUN),
     .at = AT(keep)},
    {.help = "Options of freeze:"},
    {"resume", NULL, "Continue the VM when its memory has been copied [it stays stopped]",
     BIT(FREEZE), .at = AT(resume)},
    {.help = "Options of clone:"},
    {"name", "NAME", "-name of the QEMU whose command line follows --", BIT(CLONE), IBX_TOOL_TEXT,
     .at = AT(name)},
    {"mac-wait", "SECONDS",
     "How long the guest may take to set a MAC that -device names and the parent has not; until "
     "then that network card has no link [10]",
     BIT(CLONE), IBX_TOOL_UNSIGNED, AT(mac_wait_s), 1, 3600, NULL},
    {"parent-mac", NULL, "Let the guest use its network with its parent's MAC", BIT(CLONE),
     .at = AT(parent_mac)},
    {.help = "Options of serve and clone URI:"},
    {"cache", "URI",
     "serve: FOLDER is filled from the server there; clone: another server of the same snapshot, "
     "for when URI is lost; may be repeated, they are tried in this order",
     BIT(SERVE) | BIT(CLONE), IBX_TOOL_OWN, .take = take_cache},
    {"on-demand", NULL, "Fetch only pages that somebody needs [all, in the background]",
     BIT(SERVE) | BIT(CLONE), .at = AT(on_demand)},
    {"multicast", NULL,
     "With --listen: send all pages to a multicast group for caches that ask for it; with --cache "
     "and clone URI: ask for it",
     BIT(SERVE) | BIT(CLONE), .at = AT(multicast)},
    {"multicast-interface", "NAME",
     "The interface for multicast [the one that leads to the other side]", BIT(SERVE) | BIT(CLONE),
     IBX_TOOL_OWN, .take = take_interface},
    {"multicast-group", "[verbs://][GROUP[:PORT]]",
     "serve --multicast: the group [a random one of 239.192.0.0/14 or ff15::/16, port 18602]; by "
     "verbs it has no port",
     BIT(SERVE), IBX_TOOL_TEXT, .at = AT(group)},
    {"multicast-rate", "SIZE", "serve --multicast: bytes per second, headers included [32M]",
     BIT(SERVE), IBX_TOOL_SIZE, AT(multicast_rate), IBX_MULTICAST_RATE_MIN, 100ul << 30, NULL},
    {"multicast-hops", "N",
     "serve --multicast: time to live, one more than the routers that may forward it [1]",
     BIT(SERVE), IBX_TOOL_UNSIGNED, AT(hops), 1, 255, NULL},
    {.help = "Options of firecracker:"},
    {"socket", "PATH", "The backend_path of Firecracker's snapshot load: the unix socket to create",
     BIT(FIRECRACKER), IBX_TOOL_TEXT, .at = AT(socket)},
    {"from", "FILE|URI", "The memory of the snapshot: a file, or the URI of ib-migrate serve",
     BIT(FIRECRACKER), IBX_TOOL_TEXT, .at = AT(from)},
    {"peer-uid", "UID", "The user that Firecracker runs as [the user that runs this]",
     BIT(FIRECRACKER), IBX_TOOL_OWN, .take = take_peer},
    {"record", "FILE", "Record which pages are touched, in order", BIT(FIRECRACKER), IBX_TOOL_TEXT,
     .at = AT(record)},
    {"record-seconds", "SECONDS", "--record for this long [until Firecracker ends]",
     BIT(FIRECRACKER), IBX_TOOL_UNSIGNED, AT(record_s), 1, GIVE_UP_MAX, NULL},
    {"replay", "FILE",
     "Fetch the pages that --record has recorded in this file ahead of the faults",
     BIT(FIRECRACKER), IBX_TOOL_TEXT, .at = AT(replay)},
    {"background", NULL, "Fetch all other pages as well", BIT(FIRECRACKER), .at = AT(background)},
    {.help = "Options of some commands:"},
    {"disks-differ-on-purpose", NULL,
     "send, borrow, return, check, run: accept a destination with other disks, such as copies",
     SENDING | BIT(CHECK) | BIT(RUN), .at = AT(disks_differ)},
    {"fill", NULL, "borrow: fetch all pages, in the background, not only those that it needs",
     BIT(BORROW), .at = AT(fill)},
    {"keep-warm", NULL,
     "return: keep the VM's memory here, so that only what changes crosses when it is borrowed "
     "again",
     BIT(RETURN), .at = AT(keep_warm)},
    {"destination", NULL, "check: whether this QEMU can receive a VM", BIT(CHECK),
     .at = AT(destination)},
    {"unfinished", NULL,
     "prune: also delete records of this monitor whose QEMU has ended, or that are complete but "
     "not confirmed",
     BIT(PRUNE), .at = AT(unfinished)},
    {"yes", NULL, "rollback, borrow: do not ask", BIT(ROLLBACK) | BIT(BORROW), .at = AT(yes)},
    {"prometheus", NULL, "status: print metrics for Prometheus", BIT(STATUS), .at = AT(prometheus)},
    {"output", "FILE", "status --prometheus: replace this file atomically", BIT(STATUS),
     IBX_TOOL_TEXT, .at = AT(output)},
    {0},
};

static const struct ibx_tool tool = {
    .name = "ib-migrate",
    .help = "Migrates a running QEMU VM to another host: the VM stops for milliseconds and then "
            "runs there, while RDMA READs fetch its memory, page by page, when it needs them. "
            "COMMAND --help describes one command alone.",
    .commands = commands,
    .internal = BIT(FAR_END),
    .options = options,
    .lists_transport = true,
    .failed = ibx_cli_result_failed,
};

/* Cuts off QEMU's command line, which follows "--". */
static int cut_command(int argc, char **argv, struct migrate_args *args)
{
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--")) {
            args->command = argv + i + 1;
            return i;
        }
    return argc;
}

/* The first option in the line that concerns a connection, even if it sets a default; or NULL. The
 * line has been parsed, so an abbreviated name is unambiguous. */
static const char *connecting_option(int argc, char **argv)
{
    static const char *const names[] = {"key-file", "encryption", "set"};
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        for (unsigned k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
            const char *name = argv[i] + 2;
            const size_t length = strncmp(argv[i], "--", 2) ? 0 : strcspn(name, "=");
            if (length && !strncmp(name, names[k], length))
                return names[k];
        }
    return NULL;
}

/* Refuses options of a connection together with a file of this host. */
static void check_connecting(const struct migrate_args *args, unsigned command, const char *option)
{
    const char *file = command == CLONE ? args->uri : command == FIRECRACKER ? args->from : NULL;
    if (!file || strstr(file, "://") || !option)
        return;
    ibx_tool_bad_usage(
        &tool, "--%s goes with %s URI: %s is a %s of this host, for which no connection is made",
        option, command == CLONE ? "clone" : "--from", file, command == CLONE ? "folder" : "file");
}

/* Refuses options for fetching a snapshot with commands that fetch none. */
static void check_fetching(const struct migrate_args *args, unsigned command)
{
    const bool cache = command == SERVE && args->cache_count;
    const char *option = args->on_demand         ? "on-demand"
                         : args->links           ? "links"
                         : args->bandwidth_given ? "max-bandwidth"
                                                 : NULL;
    if (command == SERVE && !cache && option)
        ibx_tool_bad_usage(&tool, "--%s needs --cache: nothing is fetched without it", option);
    if (command == CLONE && option && !strstr(args->uri, "://"))
        ibx_tool_bad_usage(&tool, "--%s goes with clone URI: %s is a folder", option, args->uri);
    if (cache && args->no_verify)
        ibx_tool_bad_usage(&tool, "--no-verify with --cache: a cache compares what it fetches; "
                                  "give it to serve FILE, at the server");
}

/* Refuses a command that lacks an option which it needs. */
static void check_needed(const struct migrate_args *args, unsigned command)
{
    if (!*args->qmp && NEEDS_QMP & BIT(command))
        ibx_tool_bad_usage(&tool, "--qmp is needed: the unix socket of QEMU's monitor");
    if (command == RECEIVE && !args->listen)
        ibx_tool_bad_usage(&tool, "--listen is needed, for instance --listen rdma://0.0.0.0:18600");
    if (command == SERVE && !args->listen && !args->cache_count)
        ibx_tool_bad_usage(&tool, "--listen is needed, for instance --listen rdma://0.0.0.0:18601");
    if (command == SET && !args->bandwidth_given)
        ibx_tool_bad_usage(&tool, "--max-bandwidth is needed, for instance --max-bandwidth 500M");
    if (command == FIRECRACKER && (!args->socket || !args->from))
        ibx_tool_bad_usage(&tool, "--socket and --from are needed: where Firecracker connects, and "
                                  "the memory of its snapshot");
}

static void check_run(const struct migrate_args *args, unsigned command)
{
    const unsigned words = command == RUN && args->ssh ? ibx_run_ssh_words(args->ssh) : 1;
    if (command == RUN && (!args->to || !*args->to))
        ibx_tool_bad_usage(&tool, "--to is needed: the host where the VM is to run");
    if (command == RUN && *args->to == '-')
        ibx_tool_bad_usage(&tool, "--to %s: a host does not begin with -", args->to);
    if (!words)
        ibx_tool_bad_usage(&tool, "--ssh \"%s\" names no command", args->ssh);
    if (words > RUN_SSH_WORDS)
        ibx_tool_bad_usage(&tool, "--ssh has %u words: %u at most, so give it a script", words,
                           RUN_SSH_WORDS);
}

static void check_multicast(const struct migrate_args *args, unsigned command)
{
    if (args->multicast && args->on_demand)
        ibx_tool_bad_usage(&tool, "--multicast with --on-demand: all pages come, or only those "
                                  "that somebody needs");
    if (args->multicast && command == CLONE && !strstr(args->uri, "://"))
        ibx_tool_bad_usage(&tool, "--multicast goes with clone URI: %s is a folder", args->uri);
    if ((args->group || args->interface || args->hops || args->multicast_rate) && !args->multicast)
        ibx_tool_bad_usage(&tool, "--multicast-%s needs --multicast",
                           args->group       ? "group"
                           : args->interface ? "interface"
                           : args->hops      ? "hops"
                                             : "rate");
    if ((args->group || args->hops || args->multicast_rate) && !args->listen)
        ibx_tool_bad_usage(&tool, "--multicast-%s needs --listen: it is for who sends",
                           args->group  ? "group"
                           : args->hops ? "hops"
                                        : "rate");
}

static void check_clone(const struct migrate_args *args, unsigned command)
{
    if (command == CLONE && args->cache_count && !strstr(args->uri, "://"))
        ibx_tool_bad_usage(&tool, "--cache goes with clone URI: %s is a folder", args->uri);
    if (command == CLONE && args->cache_count == SERVE_CACHES_MAX)
        ibx_tool_bad_usage(&tool, "--cache is given %u times: %u at most beside a URI",
                           args->cache_count, SERVE_CACHES_MAX - 1);
    if (args->command && command != CLONE)
        ibx_tool_bad_usage(&tool, "-- goes with clone: QEMU's command line follows it");
    if (args->command && !*args->command)
        ibx_tool_bad_usage(&tool, "a command line is needed after --: QEMU and its arguments");
    if (args->name && !args->command)
        ibx_tool_bad_usage(&tool, "--name needs -- and QEMU's command line");
    if (args->parent_mac && args->mac_wait_s)
        ibx_tool_bad_usage(&tool, "--mac-wait has no effect with --parent-mac: give one of them");
}

static void check_record(const struct migrate_args *args)
{
    if (args->record && (args->replay || args->background))
        ibx_tool_bad_usage(
            &tool,
            "--record with --%s: pages that are fetched before they are touched cannot be recorded",
            args->replay ? "replay" : "background");
    if (args->record_s && !args->record)
        ibx_tool_bad_usage(&tool, "--record-seconds needs --record: the file");
}

static void check_libvirt(const struct migrate_args *args, unsigned command)
{
    if (args->libvirt && command == CHECK && !args->destination)
        ibx_tool_bad_usage(&tool, "--libvirt without --destination: a source is checked alike");
    if (args->libvirt && *args->libvirt != '/')
        ibx_tool_bad_usage(&tool, "--libvirt \"%s\" is not an absolute path", args->libvirt);
    if (args->libvirt && args->quit)
        ibx_tool_bad_usage(&tool, "--quit with --libvirt: libvirt ends the source's QEMU itself");
}

/* Refuses options that contradict each other or have no effect. */
static void check_options(const struct migrate_args *args, unsigned command)
{
    if (args->resume && args->quit)
        ibx_tool_bad_usage(&tool, "--resume with --quit: the VM runs on, or its QEMU ends");
    if (args->output && !args->prometheus)
        ibx_tool_bad_usage(&tool, "--output needs --prometheus: what to write to that file");
    if (args->prometheus && args->json)
        ibx_tool_bad_usage(&tool, "--prometheus and --json are two formats: give one");
    if (args->unfinished && !*args->qmp)
        ibx_tool_bad_usage(&tool, "--unfinished needs --qmp: the monitor that the QEMU had");
    if (args->keep_warm && args->no_verify)
        ibx_tool_bad_usage(&tool,
                           "--no-verify with --keep-warm: pages of a VM that may be borrowed "
                           "again are compared in any case");
    if (args->home && (args->minor || args->libvirt))
        ibx_tool_bad_usage(&tool, "--home with --%s: a VM returns into the memory that it left",
                           args->minor ? "minor" : "libvirt");
    if (args->stand_still && (args->warm || args->warm_rounds || args->warm_seconds))
        ibx_tool_bad_usage(&tool, "--warm with --stand-still: what the back ends of vhost-user "
                                  "devices write is not seen before the stop");
    if (args->destination && args->uri)
        ibx_tool_bad_usage(&tool, "\"%s\" with --destination: only the source takes a URI",
                           args->uri);
    if (args->listen && args->uri && command != SERVE)
        ibx_tool_bad_usage(&tool,
                           "\"%s\" with --listen: the source takes a URI, the destination "
                           "takes --listen",
                           args->uri);
}

static void check_line(const struct migrate_args *args, unsigned command)
{
    check_fetching(args, command);
    check_needed(args, command);
    check_run(args, command);
    check_multicast(args, command);
    check_clone(args, command);
    check_record(args);
    check_libvirt(args, command);
    check_options(args, command);
}

/* Sets what signals do until the migration handles them itself. */
static void begin_signals(unsigned command)
{
    if (command == RECEIVE)
        ibx_cli_result_on_signal(MIGRATE_STOPPED, "cancelled: no VM had come");
    else if (command == RECOVER)
        ibx_cli_result_on_signal(MIGRATE_UNFINISHED, "interrupted before anything was done: "
                                                     "ib-migrate recover continues");
    else if (command == FREEZE)
        ibx_cli_result_on_signal(MIGRATE_FAILED,
                                 "cancelled before anything was begun: there is no snapshot, and "
                                 "the VM is as it was");
    else if ((SENDING | BIT(RUN)) & BIT(command))
        ibx_cli_result_on_signal(MIGRATE_FAILED,
                                 "cancelled before anything was begun: the VM stays here");
}

int main(int argc, char **argv)
{
    static int (*const run[])(const struct migrate_args *) = {
        [RECEIVE] = ibx_cli_receive,
        [SEND] = ibx_cli_send,
        [CHECK] = ibx_cli_check,
        [STATUS] = ibx_cli_status,
        [CANCEL] = ibx_cli_cancel,
        [SET] = ibx_cli_set,
        [RECOVER] = ibx_cli_recover,
        [ROLLBACK] = ibx_cli_rollback,
        [PRUNE] = ibx_cli_prune,
        [RUN] = ibx_cli_run,
        [FAR_END] = ibx_cli_far_end,
        [FREEZE] = ibx_cli_freeze,
        [SERVE] = ibx_cli_serve,
        [BORROW] = ibx_cli_borrow,
        [RETURN] = ibx_cli_return,
        [CLONE] = ibx_cli_clone,
        [FIRECRACKER] = ibx_cli_firecracker,
    };
    static struct migrate_args args; /* too large for the stack */
    struct ibx_error err = {0};
    unsigned command;
    umask(umask(0) & ~(mode_t)S_IRWXU); /* this user can use what it makes */
    signal(SIGPIPE, SIG_IGN);
    ibx_cli_result_on_bus_error();
    ibx_cli_keep_memory_out_of_cores();
    ibx_log_bound(WARNINGS_A_SECOND);
    ibx_options_init(&args.options);
    ibx_cli_result_begin(argc, argv);
    ibx_tool_parse(&tool, cut_command(argc, argv, &args), argv, &args, &command, &args.uri);
    ibx_cli_result_command(commands[command].name, BIT(command) & TOLD_BY_RESULT);
    check_line(&args, command);
    if (ibx_cli_make_room_for_stacks(&err))
        return ibx_cli_fail(err.message);
    if (!OSSL_LIB_CTX_get0_global_default()) /* made once: without it OpenSSL would crash later */
        return ibx_cli_fail("no memory for OpenSSL; " IBX_ERROR_RAISE_SPACE);
    begin_signals(command);
    check_connecting(&args, command, connecting_option(argc, argv));
    resolve_key_file(&args.options);
    if (!(BIT(command) & WITHOUT_RECORDS) &&
        ibx_journal_folder(args.state_dir, !(BIT(command) & LOOKING), args.folder,
                           sizeof(args.folder), &err))
        return ibx_cli_fail(err.message);
    ibx_journal_note_given_folder(args.state_dir);
    return run[command](&args);
}
