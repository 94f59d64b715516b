/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* freeze, serve and clone: snapshots of VMs. */
#include "migrate/snapshot/snapshot.h"
#include "tools/ib-migrate/run.h"

#include "common/clock.h"
#include "common/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define QEMU_ARGUMENTS_MAX 1024u
#define START_MS           20000 /* in which a QEMU has to open its monitor */
#define LOOK_US            2000
#define NOBODY_MS          200 /* in which a QEMU that has bound its monitor listens at it */
#define MAC_WAIT_S         10u

static struct ibx_snapshot_multicast_options multicast_of(const struct migrate_args *args)
{
    return (struct ibx_snapshot_multicast_options){.on = args->multicast,
                                                   .group = args->group,
                                                   .interface = args->interface,
                                                   .rate = args->multicast_rate,
                                                   .hops = args->hops};
}

/* ------------------------------------------------------------ freeze */

static void print_frozen(const struct migrate_args *args, const struct ibx_freeze_result *result)
{
    char data[32], ram[32], stopped[32];
    if (args->json) {
        ibx_cli_print_json(json_pack(
            "{s:{s:o, s:I, s:I, s:I, s:I, s:b}}", "frozen", "folder", ibx_json_text(args->uri),
            "ram_bytes", (json_int_t)result->ram_bytes, "data_bytes",
            (json_int_t)result->data_bytes, "state_bytes", (json_int_t)result->state_bytes,
            "stopped_ns", (json_int_t)result->stopped_ns, "runs", (int)result->runs));
        return;
    }
    ibx_cli_bytes(result->data_bytes, data, sizeof(data));
    ibx_cli_bytes(result->ram_bytes, ram, sizeof(ram));
    ibx_cli_duration(result->stopped_ns, stopped, sizeof(stopped));
    ibx_cli_print("%s: frozen, %s of %s hold data; the VM %s %s", args->uri, data, ram,
                  result->runs ? "runs on after" : "stays stopped; the copy took", stopped);
}

int ibx_cli_freeze(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    struct ibx_freeze_result result;
    const struct ibx_freeze_options options = {.qmp = args->qmp,
                                               .path = args->uri,
                                               .after = args->resume ? IBX_FREEZE_RESUME
                                                        : args->quit ? IBX_FREEZE_QUIT
                                                                     : IBX_FREEZE_STOPPED,
                                               .over = ibx_cli_result_late_signals};
    if (ibx_cli_monitor_check(args, &err) || ibx_snapshot_freeze(&options, &result, &err))
        return ibx_cli_fail(err.message);
    if (result.tpm)
        ibx_cli_message("this VM has a TPM: each of its children starts with everything in it: its "
                        "keys, what is sealed to them, and its counters");
    print_frozen(args, &result);
    return ibx_cli_done();
}

/* ------------------------------------------------------------ clone */

static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
#define END_SIGNALS (sizeof(end_signals) / sizeof(end_signals[0]))

/* Signals that end this tool wait while QEMU starts, so that QEMU ends with it. */
static void ends_wait(void)
{
    sigset_t ends;
    ibx_signals_heeded(end_signals, END_SIGNALS, &ends);
    sigprocmask(SIG_BLOCK, &ends, NULL);
}

/* Whether one waits that will end this tool. `before`: the signals that were blocked. */
static bool is_to_end(const sigset_t *before)
{
    sigset_t waiting;
    bool ends = false;
    sigpending(&waiting);
    for (unsigned i = 0; i < END_SIGNALS; i++)
        ends =
            ends || (sigismember(&waiting, end_signals[i]) && !sigismember(before, end_signals[i]));
    return ends;
}

/* The QEMU that this tool has started, as long as it has no VM: a signal that ends the tool ends
 * it, too, also while pages are compared or awaited. Afterwards it stays. */
static struct {
    volatile pid_t pid; /* 0: none */
    pid_t tool;         /* it may fork meanwhile, to fill a cache again: that process is no tool */
    const char *qmp;    /* to remove; NULL: it may be another QEMU's */
} vacant;

/* Its whole process group: it may be a script that starts QEMU. */
static void kill_started(pid_t pid)
{
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
}

static void on_end_signal(int number)
{
    if (vacant.pid && vacant.tool == getpid()) {
        kill_started(vacant.pid);
        if (vacant.qmp)
            unlink(vacant.qmp);
    }
    raise(number); /* which takes effect on return */
}

static void ends_with_this(pid_t pid, const char *qmp)
{
    struct sigaction action = {.sa_handler = on_end_signal, .sa_flags = (int)SA_RESETHAND};
    sigset_t ends;
    sigfillset(&action.sa_mask);
    vacant.qmp = qmp;
    vacant.tool = getpid();
    vacant.pid = pid;
    ibx_signals_heeded(end_signals, END_SIGNALS, &ends);
    for (unsigned i = 0; i < END_SIGNALS; i++)
        if (sigismember(&ends, end_signals[i]))
            sigaction(end_signals[i], &action, NULL);
}

static void stays_from_now_on(void)
{
    vacant.pid = 0;
}

/* Runs QEMU with the arguments of the command line, and those that a child needs. It gets a session
 * of its own, so that it does not end with this process or its terminal. */
static void become_qemu(const struct migrate_args *args, const sigset_t *blocked)
{
    char monitor[PATH_MAX + 64];
    const char *items[QEMU_ARGUMENTS_MAX];
    unsigned n = 0;
    for (; args->command[n] && n < QEMU_ARGUMENTS_MAX - 8; n++)
        items[n] = args->command[n];
    snprintf(monitor, sizeof(monitor), "unix:%s,server=on,wait=off", args->qmp);
    items[n++] = "-qmp";
    items[n++] = monitor;
    items[n++] = "-incoming";
    items[n++] = "defer";
    if (args->name) {
        items[n++] = "-name";
        items[n++] = args->name;
    }
    items[n] = NULL;
    setsid();
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, blocked, NULL);
    umask(077);
    ibx_cli_give_cores_back();
    ibx_cli_give_stack_back();
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(2, 1); /* standard output is this tool's */
    close_range(3, ~0u, 0);
    execvp(items[0], (char *const *)(uintptr_t)items);
    struct ibx_error err;
    ibx_error_set(&err, -errno, "%s: %s", items[0], strerror(errno));
    ibx_cli_message(err.message);
    _exit(127);
}

/* Whether the process has ended. It is not reaped here, so that its number stays its own. */
static bool has_ended(pid_t pid)
{
    siginfo_t end = {.si_pid = 0};
    return !waitid(P_PID, (id_t)pid, &end, WEXITED | WNOHANG | WNOWAIT) && end.si_pid == pid;
}

/* Whose monitor there is at the path that the new QEMU was given. */
enum monitor { MONITOR_UNKNOWN, MONITOR_OWN, MONITOR_OF_ANOTHER };

/* Waits until the monitor accepts a client. OWN: it is that of this process or its children, in its
 * session. -EINTR: this tool is to end. */
static int await_monitor(const char *path, pid_t pid, const sigset_t *before, enum monitor *whose,
                         struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(START_MS);
    struct ibx_qmp *qmp;
    int rc;
    while ((rc = ibx_qmp_connect(path, deadline, &qmp, err)) == -ENOENT || rc == -ECONNREFUSED) {
        if (is_to_end(before))
            return ibx_error_set(err, -EINTR, "ended while QEMU started");
        if (has_ended(pid))
            return ibx_error_set(
                err, -ECHILD, "QEMU has ended before it had a monitor at %s: its output says why",
                path);
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "QEMU made no monitor at %s within %u s", path,
                                 START_MS / 1000);
        usleep(LOOK_US);
    }
    if (!rc) {
        *whose = getsid(ibx_qmp_pid(qmp)) == pid ? MONITOR_OWN : MONITOR_OF_ANOTHER;
        ibx_qmp_close(qmp);
    }
    return !rc && is_to_end(before) ? ibx_error_set(err, -EINTR, "ended while QEMU started") : rc;
}

static int start_qemu(const struct migrate_args *args, const sigset_t *before, pid_t *pid,
                      enum monitor *whose, struct ibx_error *err)
{
    unsigned count = 0;
    while (args->command[count])
        count++;
    if (count > QEMU_ARGUMENTS_MAX - 8)
        return ibx_error_set(err, -E2BIG, "%u arguments for QEMU: %u at most", count,
                             QEMU_ARGUMENTS_MAX - 8);
    if (!access(args->qmp, F_OK))
        return ibx_error_set(err, -EEXIST,
                             "%s is there already: give the new QEMU another --qmp, or remove it",
                             args->qmp);
    *pid = fork();
    if (*pid < 0)
        return ibx_error_set_task(err, -errno, "no process for QEMU");
    if (!*pid)
        become_qemu(args, before);
    return await_monitor(args->qmp, *pid, before, whose, err);
}

static bool nobody_listens(const char *path)
{
    const int fd = ibx_run_connect(path);
    if (fd >= 0)
        close(fd);
    return fd == -ECONNREFUSED;
}

/* Removes the socket of the QEMU that was started and killed. As long as this tool was not
 * connected to it, it may be that of another QEMU, which has made it meanwhile: one that is about
 * to listen at it is given a moment for that. */
static void remove_monitor(const char *path, enum monitor whose)
{
    const uint64_t deadline = ibx_deadline_in_ms(NOBODY_MS);
    bool own = whose == MONITOR_OWN;
    while (whose == MONITOR_UNKNOWN && (own = nobody_listens(path)) && ibx_now_ns() < deadline)
        usleep(LOOK_US);
    if (own)
        unlink(path);
}

/* The snapshot is served elsewhere. */
static bool is_served(const struct migrate_args *args)
{
    return strstr(args->uri, "://");
}

/* Finds or makes this host's cache of a snapshot that is served elsewhere. Called before anything
 * else, because it forks a process. */
static int find_folder(const struct migrate_args *args, struct ibx_serve_options *options,
                       struct ibx_host_cache *cache, struct ibx_error *err)
{
    *options = (struct ibx_serve_options){.cache_count = 1 + args->cache_count,
                                          .links = args->links,
                                          .on_demand = args->on_demand,
                                          .max_bandwidth = args->max_bandwidth,
                                          .multicast = multicast_of(args),
                                          .transport = args->options};
    if (!is_served(args)) {
        snprintf(cache->folder, sizeof(cache->folder), "%s", args->uri);
        return 0;
    }
    options->caches[0] = args->uri;
    memcpy(options->caches + 1, args->caches, args->cache_count * sizeof(args->caches[0]));
    return ibx_snapshot_host_cache(options, cache, err);
}

static int make_child(const struct migrate_args *args, const struct ibx_serve_options *options,
                      const char *folder, struct ibx_clone_result *result, struct ibx_error *err)
{
    pid_t pid = 0;
    enum monitor whose = MONITOR_UNKNOWN;
    sigset_t before;
    sigprocmask(SIG_BLOCK, NULL, &before);
    if (args->command)
        ends_wait();
    int rc = args->command ? start_qemu(args, &before, &pid, &whose, err)
                           : ibx_cli_monitor_check(args, err);
    if (!rc && pid > 0)
        ends_with_this(pid, whose == MONITOR_OWN ? args->qmp : NULL);
    if (!rc)
        sigprocmask(SIG_SETMASK, &before, NULL);
    const struct ibx_clone_config config = {.path = folder,
                                            .qmp = args->qmp,
                                            .started = pid,
                                            .parent_mac = args->parent_mac,
                                            .loads = stays_from_now_on,
                                            .filled_by = is_served(args) ? options : NULL,
                                            .mac_wait_s =
                                                args->mac_wait_s ? args->mac_wait_s : MAC_WAIT_S};
    if (!rc)
        rc = ibx_snapshot_clone(&config, result, err);
    if (rc && pid > 0 && !result->child) {
        kill_started(pid);
        stays_from_now_on();
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        if (rc != -EBUSY) /* EBUSY: the socket is another QEMU's */
            remove_monitor(args->qmp, whose);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int ibx_cli_clone(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    struct ibx_clone_result r = {0};
    struct ibx_serve_options options;
    struct ibx_host_cache cache;
    char took[32];
    if (find_folder(args, &options, &cache, &err) ||
        make_child(args, &options, cache.folder, &r, &err))
        return ibx_cli_fail(err.message);
    if (r.ran && !strcmp(r.status, "paused"))
        ibx_cli_message("the child is paused, though its parent ran: its QEMU was started with -S, "
                        "or cannot use a disk (has another process its image?), which QEMU prints "
                        "and says to cont");
    if (r.tpm)
        ibx_cli_message("the child has its parent's TPM: its keys, what is sealed to them, and its "
                        "counters; a service that identifies VMs by these takes it for the parent");
    if (args->json) {
        ibx_cli_print_json(
            json_pack("{s:{s:o, s:i, s:s, s:b, s:I, s:I, s:I, s:I, s:i, s:i, s:I}}", "clone",
                      "folder", ibx_json_text(cache.folder), "pid", (int)r.pid, "status", r.status,
                      "whole", (int)r.whole, "verified_bytes", (json_int_t)r.verified, "check_ns",
                      (json_int_t)r.check_ns, "memory_ns", (json_int_t)r.memory_ns, "load_ns",
                      (json_int_t)r.load_ns, "own_macs", (int)r.cards, "links_down",
                      (int)r.cards_down, "network_ns", (json_int_t)r.network_ns));
        return ibx_cli_done();
    }
    ibx_cli_duration(r.check_ns + r.memory_ns + r.load_ns, took, sizeof(took));
    ibx_cli_print("QEMU (process %d) is a child of %s, %s after %s", (int)r.pid, args->uri,
                  r.status, took);
    if (r.cards_down)
        printf("%u of its network cards have no link: when the guest has taken their MACs, QEMU's "
               "set_link gives it\n",
               r.cards_down);
    return ibx_cli_done();
}

/* ------------------------------------------------------------ serve */

#define HERE_ALONE " (for readers on this host only: others need a key, --key-file)"

struct told {
    const struct migrate_args *args;
    bool begun, whole;
};

static void add_multicast(json_t *json, const struct ibx_snapshot_fed *fed)
{
    json_t *more =
        json_pack("{s:b, s:I, s:I, s:I, s:I}", "multicast", (int)fed->now, "multicast_pages",
                  (json_int_t)fed->stats.pages, "multicast_packets", (json_int_t)fed->stats.packets,
                  "multicast_wrong", (json_int_t)fed->stats.wrong, "multicast_strange",
                  (json_int_t)fed->stats.strange);
    json_object_update(json, more);
    json_decref(more);
}

static json_t *status_json(const struct migrate_args *args, const struct ibx_serve_status *s)
{
    json_t *json = json_pack("{s:o, s:o, s:b, s:i, s:I, s:I}", "folder", ibx_json_text(args->uri),
                             "uri", s->uri ? ibx_json_text(s->uri) : json_null(), "whole",
                             (int)s->whole, "connections", (int)s->readers.connections, "served",
                             (json_int_t)s->readers.served, "asks", (json_int_t)s->readers.asks);
    if (json && s->multicasts) {
        json_t *more =
            json_pack("{s:i, s:I, s:I, s:I}", "multicast_members", (int)s->sender.members,
                      "multicast_joined", (json_int_t)s->sender.joined, "multicast_sent",
                      (json_int_t)s->sender.bytes, "multicast_rate", (json_int_t)s->sender.rate);
        json_object_update(json, more);
        json_decref(more);
    }
    if (json && s->source) {
        json_t *more =
            json_pack("{s:o, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", "source",
                      ibx_json_text(s->source), "children", (int)s->children, "children_so_far",
                      (json_int_t)s->children_so_far, "child_faults", (json_int_t)s->child_faults,
                      "zero_faults", (json_int_t)s->zero_faults, "pages", (json_int_t)s->pages,
                      "present", (json_int_t)s->present, "bytes", (json_int_t)s->bytes,
                      "faulted_pages", (json_int_t)s->faulted, "ahead_pages", (json_int_t)s->ahead,
                      "twice_pages", (json_int_t)s->twice, "hash_bytes", (json_int_t)s->hash_bytes,
                      "reconnects", (int)s->reconnects);
        if (args->multicast)
            add_multicast(more, &s->fed);
        json_object_update(json, more);
        json_decref(more);
    }
    return json_pack("{s:o}", "serving", json);
}

static void tell(void *context, const struct ibx_serve_status *s)
{
    struct told *told = context;
    char bytes[32], multicast[64] = "";
    const bool others = told->args->options.key_file[0] || told->args->options.insecure;
    if (told->args->json)
        ibx_cli_print_json(status_json(told->args, s));
    else if (!told->args->quiet && !told->begun)
        ibx_cli_print("%s is served %s%s%s%s%s", told->args->uri,
                      s->uri ? "at " : "to children on this host", s->uri ? s->uri : "",
                      s->uri && !others ? HERE_ALONE : "", s->source ? ", with pages from " : "",
                      s->source ? s->source : "");
    if (!told->args->json && !told->args->quiet && s->source && s->whole && !told->whole) {
        if (told->args->multicast) {
            ibx_cli_bytes(s->fed.stats.pages * IBX_SNAPSHOT_PAGE, bytes, sizeof(bytes));
            snprintf(multicast, sizeof(multicast), ", and %s by multicast", bytes);
        }
        ibx_cli_bytes(s->bytes, bytes, sizeof(bytes));
        ibx_cli_print("%s has all pages: %s came over the network%s", told->args->uri, bytes,
                      multicast);
    }
    told->begun = true;
    told->whole = s->whole;
    fflush(stdout);
}

static void notify(void *context, const char *line)
{
    (void)context;
    ibx_cli_message(line);
}

int ibx_cli_serve(const struct migrate_args *args)
{
    struct ibx_error err = {0};
    struct told told = {.args = args};
    struct ibx_serve_options options = {.folder = args->uri,
                                        .listen = args->listen,
                                        .cache_count = args->cache_count,
                                        .links = args->links,
                                        .on_demand = args->on_demand,
                                        .no_verify = args->no_verify,
                                        .max_bandwidth = args->max_bandwidth,
                                        .multicast = multicast_of(args),
                                        .transport = args->options,
                                        .status = tell,
                                        .notify = notify,
                                        .context = &told};
    memcpy(options.caches, args->caches, sizeof(options.caches));
    const int rc = ibx_snapshot_serve(&options, &err);
    if (rc == -ESTALE) /* the files were changed, and threads may be blocked in their mapping */
        ibx_cli_result_leave(ibx_cli_fail(err.message));
    if (rc)
        return ibx_cli_fail(err.message);
    return MIGRATE_DONE; /* nobody has to read how it got on */
}
