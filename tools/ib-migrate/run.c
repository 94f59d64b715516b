/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* run: makes the destination's QEMU from that of the source, over ssh, and sends the VM. */
#include "tools/ib-migrate/run.h"

#include "migrate/preflight/description.h"

#include "common/clock.h"
#include "common/line_bound.h"
#include "common/path_check.h"
#include "common/shell_word.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ASK_MS      20000
#define END_S       60 /* in which the far end has to clean up */
#define KEY_BYTES   32u
#define SSH_FAILED  255 /* exit status of ssh(1) if it failed itself */
#define SSH_END_MS  5000
#define FAR_LINE_NS (100 * IBX_NS_PER_MS) /* ten lines a second, a hundred at once */

struct run {
    struct migrate_args args; /* of the send */
    struct run_tokens tokens;
    char uri[IBX_URI_MAX + 2], key_path[PATH_MAX]; /* a URI that is cut is too long for the send */
    char key[2 * KEY_BYTES + 2];                   /* a line */
    json_t *request;
    pid_t ssh;
    int to; /* the far end's standard input; -1 closed */
    struct json_lines from;
    pthread_t reader; /* while the VM is sent */
    bool reading;
    json_t *ready, *ended;
    char before[PATH_MAX]; /* the folder that an earlier run gave this QEMU, "" none */
};

/* ------------------------------------------------------------ the key */

static char key_of_this[PATH_MAX]; /* the key file, for the signal handler; "" none */

static void forget_key_of_this(void)
{
    if (*key_of_this)
        unlink(key_of_this);
}

/* ------------------------------------------------------------ the plan */

static int make_secrets(struct run *run, struct ibx_error *err)
{
    uint8_t random[KEY_BYTES + 16];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return ibx_error_set(err, -EIO, "there are no random numbers for a key");
    ibx_hex_text(random, KEY_BYTES, run->key);
    run->key[strlen(run->key)] = '\n';
    char digits[33];
    ibx_hex_text(random + KEY_BYTES, 16, digits);
    snprintf(run->tokens.run, sizeof(run->tokens.run), "/@run-%s", digits);
    snprintf(run->tokens.memory, sizeof(run->tokens.memory), "/@memory-%s", digits);
    snprintf(run->key_path, sizeof(run->key_path), "%.3900s/run-%s.key", run->args.folder, digits);
    snprintf(run->args.options.key_file, sizeof(run->args.options.key_file), "%s", run->key_path);
    if (strlen(run->key_path) >= sizeof(run->args.options.key_file))
        return ibx_error_set(err, -ENAMETOOLONG, "%s is too long a name for a key file",
                             run->key_path);
    memcpy(key_of_this, run->key_path, sizeof(key_of_this));
    /* Until the migration handles signals, a signal ends this process; the far end notices the end
     * of its input. */
    ibx_cli_result_on_leaving(forget_key_of_this);
    ibx_cli_prune_keys(run->args.folder);
    return ibx_run_key_make(run->key_path, run->key, err);
}

/* The mount point of a file. */
static void mount_of(const char *path, char *out, size_t size)
{
    struct stat file, above;
    snprintf(out, size, "%s", path);
    if (stat(path, &file))
        return;
    for (char *slash; (slash = strrchr(out, '/')) && slash != out;) {
        *slash = '\0';
        if (stat(out, &above) || above.st_dev != file.st_dev) {
            *slash = '/';
            return;
        }
    }
}

/* Where the far end makes its folder for guest memory: in /dev/shm, or for huge pages in the
 * hugetlbfs that has them here. */
static char *memory_place(const struct run *run, const struct ibx_guest_ram *ram)
{
    char place[PATH_MAX] = "/dev/shm";
    for (size_t i = 0; i < ram->count; i++)
        if (ram->blocks[i].page_size > (uint64_t)sysconf(_SC_PAGESIZE) && ram->blocks[i].path[0])
            mount_of(ram->blocks[i].path, place, sizeof(place));
    return run->args.memory_dir ? strdup(run->args.memory_dir)
                                : ibx_run_map_path(&run->args.maps, place);
}

static char *folder_of(const struct run *run, pid_t pid)
{
    char link[64], folder[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/%d/cwd", (int)pid);
    ssize_t length = readlink(link, folder, sizeof(folder) - 1);
    folder[length > 0 ? length : 0] = '\0';
    return ibx_run_map_path(&run->args.maps, folder);
}

static json_t *receive_options(const struct run *run)
{
    char size[32];
    json_t *list = json_array();
    if (run->args.bandwidth_given) {
        snprintf(size, sizeof(size), "%llu", (unsigned long long)run->args.max_bandwidth);
        json_array_append_new(list, json_string("--max-bandwidth"));
        json_array_append_new(list, json_string(size));
    }
    if (run->args.minor)
        json_array_append_new(list, json_string("--minor"));
    if (run->args.no_verify)
        json_array_append_new(list, json_string("--no-verify"));
    return list;
}

/* Notes the folder that an earlier run gave this QEMU, by QEMU's command line. Its user chose that,
 * so the folder may be another VM's: it counts only if this QEMU's monitor is in it, and if nobody
 * else can make the path lead to another one meanwhile. */
static void note_before(struct run *run, const json_t *given, pid_t qemu)
{
    size_t i;
    json_t *text;
    char folder[PATH_MAX], monitor[PATH_MAX + 8];
    struct ibx_error silent;
    json_array_foreach(given, i, text)
    {
        if (!ibx_run_folder_of(json_string_value(text), folder, sizeof(folder)) ||
            ibx_path_check("folder ", folder, &silent) || !ibx_journal_run_made(folder))
            continue;
        snprintf(monitor, sizeof(monitor), "%s/qmp", folder);
        if (ibx_run_listener(monitor) == qemu)
            memcpy(run->before, folder, sizeof(run->before));
    }
}

/* Removes that folder and what far_end.c has put there; its QEMU has ended. */
static void forget_before(const struct run *run)
{
    static const char *const names[] = {"qmp", "log", "key"};
    int at = *run->before ? open(run->before, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (at < 0)
        return;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unlinkat(at, names[i], 0);
    rmdir(run->before);
    close(at);
}

static json_t *extra_arguments(const struct run *run, json_t *plugged)
{
    for (unsigned i = 0; i < run->args.qemu_arg_count; i++)
        json_array_append_new(plugged, json_string(run->args.qemu_args[i]));
    return plugged;
}

/* The host to connect to, without user@, which is only for ssh. */
static const char *far_host(const struct run *run)
{
    const char *at = strrchr(run->args.to, '@'); /* as ssh(1) takes it */
    return run->args.address ? run->args.address : at ? at + 1 : run->args.to;
}

/* 0, or the error of getaddrinfo(3). */
static int resolve(const char *host, int family)
{
    const size_t n = strlen(host), bracket = *host == '[' && host[n - 1] == ']';
    const struct addrinfo hints = {.ai_family = family};
    struct addrinfo *found = NULL;
    char *name = strndup(host + bracket, n - 2 * bracket);
    const int rc = name ? getaddrinfo(name, NULL, &hints, &found) : EAI_MEMORY;
    free(name);
    if (!rc)
        freeaddrinfo(found);
    return rc;
}

/* The URI at which the far end listens: 0.0.0.0, or [::] if it is reached by IPv6. Not always [::],
 * which not every host has. */
static const char *listen_uri(const struct run *run)
{
    const char *host = far_host(run);
    return run->args.listen                                     ? run->args.listen
           : resolve(host, AF_INET) && !resolve(host, AF_INET6) ? "rdma://[::]:0"
                                                                : "rdma://0.0.0.0:0";
}

/* A QEMU without the device has no generation id to keep. */
static void keep_generation_id(struct ibx_qmp *qmp, json_t *given)
{
    struct ibx_error none = {0};
    json_t *answer = NULL;
    if (!ibx_qmp_execute(qmp, "query-vm-generation-id", NULL, &answer, ibx_deadline_in_ms(ASK_MS),
                         &none) &&
        *ibx_member(answer, "guid"))
        ibx_run_set_guid(given, ibx_member(answer, "guid"));
    json_decref(answer);
}

/* "q35" would be another machine type where QEMU has another version. */
static void name_machine(json_t *given, const char *machine)
{
    json_t *type = json_sprintf("type=%s", machine), *text;
    bool named = false;
    size_t i;
    json_array_foreach(given, i, text) named |= json_equal(text, type);
    if (given && !named) {
        json_array_append_new(given, json_string("-machine"));
        json_array_append(given, type);
    }
    json_decref(type);
}

/* Makes the request for the far end. All that the far QEMU needs is known before anything is
 * started.
 */
static int plan(struct run *run, struct ibx_qmp *qmp, const struct ibx_guest_ram *ram,
                struct ibx_error *err)
{
    json_t *given = ibx_run_arguments_of(ram->pid, err), *absent = NULL, *plugged = NULL;
    json_t *arguments = NULL, *limits = NULL;
    note_before(run, given, ram->pid);
    keep_generation_id(qmp, given);
    name_machine(given, ram->machine);
    int rc = given ? ibx_run_plugged(qmp, given, &absent, &plugged, err) : err->code;
    if (!rc)
        rc = ibx_run_limits(qmp, &limits, err);
    if (!rc) {
        arguments = ibx_run_arguments(given, &run->args.maps, &run->tokens, absent,
                                      extra_arguments(run, plugged), err);
        rc = arguments ? 0 : err->code;
    }
    if (!rc) {
        char *place = memory_place(run, ram), *folder = folder_of(run, ram->pid);
        run->request = json_pack(
            "{s:i, s:o, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:O}", "ibx-run", 1, "arguments",
            arguments, "run-token", run->tokens.run, "memory-token", run->tokens.memory,
            "memory-folder", place ? place : "/dev/shm", "folder", folder ? folder : "/",
            "run-folder", run->args.run_dir ? run->args.run_dir : "", "listen", listen_uri(run),
            "key", run->key, "receive", receive_options(run), "limits", limits);
        free(place);
        free(folder);
        if (!run->request)
            rc = ibx_error_set(err, -ENOMEM,
                               "no memory for the arguments of the destination's QEMU");
    }
    json_decref(given);
    json_decref(limits);
    json_decref(absent);
    json_decref(plugged);
    return rc;
}

/* Looks, before anything is started, for blockers and for devices that cannot be described. */
static int look(struct run *run, struct ibx_error *err)
{
    static struct ibx_blockers blockers;
    struct ibx_qmp *qmp;
    struct ibx_guest_ram ram;
    const uint64_t deadline = ibx_deadline_in_ms(ASK_MS);
    const struct ibx_check_options options = {.qmp = run->args.qmp,
                                              .source = true,
                                              .transport = &run->args.options,
                                              .disks_differ = run->args.disks_differ};
    int rc = ibx_migrate_check(&options, &blockers, err);
    if (!rc && blockers.count)
        rc = ibx_error_set(err, -EPERM, "this VM cannot be migrated: %s%s", blockers.reasons[0],
                           blockers.count > 1 ? "; ib-migrate check has all reasons" : "");
    if (!rc)
        rc = ibx_qmp_connect(run->args.qmp, deadline, &qmp, err);
    if (rc)
        return rc;
    rc = ibx_guest_ram_find(qmp, false, &ram, deadline, err);
    if (!rc) {
        rc = plan(run, qmp, &ram, err);
        ibx_guest_ram_fini(&ram);
    }
    ibx_qmp_close(qmp);
    return rc;
}

/* ------------------------------------------------------------ ssh */

/* For the shell that ssh starts at the other host. */
static char *far_command(const struct run *run)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, "%s far-end --json",
            ibx_shell_word(run->args.far_program ? run->args.far_program : "ib-migrate").text);
    if (run->args.far_state_dir)
        fprintf(out, " --state-dir %s", ibx_shell_word(run->args.far_state_dir).text);
    fclose(out);
    return text;
}

unsigned ibx_run_ssh_words(const char *command)
{
    unsigned n = 0;
    for (const char *at = command; *(at += strspn(at, RUN_SSH_SPACE)); n++)
        at += strcspn(at, RUN_SSH_SPACE);
    return n;
}

/* Runs the words of --ssh, then host and command. ssh gets a session of its own, so that a
 * terminal's Ctrl-C reaches only the parent. */
static void become_ssh(const struct run *run, int in, int out)
{
    char *words[RUN_SSH_WORDS + 4], *rest;
    unsigned n = 0;
    char *text = strdup(run->args.ssh ? run->args.ssh : "ssh");
    for (char *word = text ? strtok_r(text, RUN_SSH_SPACE, &rest) : NULL; word && n < RUN_SSH_WORDS;
         word = strtok_r(NULL, RUN_SSH_SPACE, &rest))
        words[n++] = word;
    words[n++] = (char *)(uintptr_t)run->args.to;
    words[n++] = far_command(run);
    words[n] = NULL;
    ibx_cli_result_off_signals();
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    close_range(3, ~0u, 0);
    ibx_cli_give_cores_back();
    ibx_cli_give_stack_back();
    execvp(words[0], words);
    dprintf(STDERR_FILENO, "ib-migrate: %s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static int start_far_end(struct run *run, struct ibx_error *err)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    if (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) {
        int rc = ibx_error_set(err, -errno, "no pipe to ssh: %s", strerror(errno));
        if (to[0] >= 0) {
            close(to[0]);
            close(to[1]);
        }
        return rc;
    }
    run->ssh = fork();
    if (!run->ssh)
        become_ssh(run, to[0], from[1]);
    close(to[0]);
    close(from[1]);
    run->to = to[1];
    ibx_json_lines_init(&run->from, from[0]);
    if (run->ssh < 0)
        return ibx_error_set_task(err, -errno, "no process for ssh");
    int rc = ibx_json_lines_put(run->to, json_incref(run->request));
    if (!rc || rc == -EPIPE) /* EPIPE: it has ended; await_ready() reports how */
        return 0;
    return ibx_error_set(err, rc, "%s took no request: %s", run->args.to, strerror(-rc));
}

static struct ibx_line_bound far_lines;

static void say_left_out(const struct run *run, uint64_t count)
{
    char text[IBX_ERROR_MAX];
    if (!count || run->args.quiet)
        return;
    snprintf(text, sizeof(text), "%.64s said too much: %llu lines were left out", run->args.to,
             (unsigned long long)count);
    ibx_text_sanitize(text);
    ibx_cli_message(text);
}

/* Passes on what a receiver says. Its host must not fill the terminal or the log of this one. */
static void say_of_far(const struct run *run, const char *said)
{
    char text[IBX_ERROR_MAX];
    uint64_t before;
    if (run->args.quiet || !ibx_line_bound_take(&far_lines, FAR_LINE_NS, &before))
        return;
    say_left_out(run, before);
    snprintf(text, sizeof(text), "%.64s: %.600s", run->args.to, said);
    ibx_text_sanitize(text);
    ibx_cli_message(text);
}

/* Handles a line of the far end; true: it was the last one. */
static bool on_far_line(struct run *run, json_t *line)
{
    const char *what = ibx_member(line, "far");
    if (!strcmp(what, "ready") && !run->ready)
        run->ready = json_incref(line);
    if (!strcmp(what, "ended") && !run->ended) {
        run->ended = json_incref(line);
        say_left_out(run, atomic_exchange(&far_lines.left_out, 0));
    }
    if (!strcmp(what, "say"))
        say_of_far(run, ibx_member(line, "text"));
    json_decref(line);
    return run->ended != NULL;
}

/* The exit status of ssh(1), whose output has ended. With `may_last` it first gets some time: if it
 * is ended before it has received the exit status of its command, it ends with SSH_FAILED, as if it
 * could not connect. */
static int exit_status_of_ssh(struct run *run, bool may_last)
{
    int status, ssh = may_last ? (int)syscall(SYS_pidfd_open, run->ssh, 0) : -1;
    struct pollfd ends = {.fd = ssh, .events = POLLIN};
    if (ssh >= 0) {
        poll(&ends, 1, SSH_END_MS);
        close(ssh);
    }
    kill(run->ssh, SIGTERM);
    while (waitpid(run->ssh, &status, 0) < 0 && errno == EINTR)
        ;
    run->ssh = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1; /* it had not ended */
}

/* Waits until the far end waits for the VM. */
static int await_ready(struct run *run, struct ibx_error *err)
{
    int rc = 0;
    while (!rc && !run->ready && !run->ended) {
        json_t *line = ibx_json_lines_next(&run->from, &rc);
        if (line)
            on_far_line(run, line);
    }
    if (run->ready)
        return 0;
    if (run->ended)
        return ibx_error_set(err, -ECHILD, "%s: %s", run->args.to, ibx_member(run->ended, "error"));
    close(run->to);
    run->to = -1;
    const char *ssh = run->args.ssh ? run->args.ssh : "ssh";
    const int ended = exit_status_of_ssh(run, rc != -EPROTO);
    if (rc == -EPROTO) /* checked first, since ssh was ended then, perhaps with SSH_FAILED */
        return ibx_error_set(err, rc,
                             "the first output of %s is \"%s\", which is not from ib-migrate: "
                             "\"%.100s %s true\" must print nothing, and both hosts need the same "
                             "ib-migrate",
                             run->args.to, run->from.strange, ssh, run->args.to);
    if (ended == SSH_FAILED)
        return ibx_error_set(err, -ECONNABORTED,
                             "%s cannot be reached (\"%.100s\" ended with status %d): make "
                             "\"%.100s %s true\" work without a password",
                             run->args.to, ssh, ended, ssh, run->args.to);
    char how[48] = "closed its output";
    if (ended >= 0)
        snprintf(how, sizeof(how), "ended with status %d", ended);
    return ibx_error_set(
        err, -ECONNABORTED,
        "ib-migrate did not start at the destination %s (\"%.100s\" %s): is the same "
        "version installed there? --far-program names its path",
        run->args.to, ssh, how);
}

/* Checks that the host's name can be resolved: ssh may know it by a name of its own configuration.
 */
static int check_address(const struct run *run, const char *host, struct ibx_error *err)
{
    const int rc = resolve(host, AF_UNSPEC);
    return !rc ? 0
               : ibx_error_set(err, -EHOSTUNREACH,
                               "host \"%.255s\" cannot be resolved here: %s; give the address that "
                               "%s has on the network of the migration by --address",
                               host, gai_strerror(rc), run->args.to);
}

/* Makes the URI to send to: the far end's, with the host as it is reached from here. Its query is
 * that of --listen, not that of the far end, which could override options such as --encryption. */
static int make_uri(struct run *run, struct ibx_error *err)
{
    const char *uri = ibx_member(run->ready, "uri"), *host = far_host(run);
    const char *begin = strstr(uri, "://"), *query = strchr(uri, '?');
    const char *end = query ? query : uri + strlen(uri), *colon = end;
    const char *own = run->args.listen ? strchr(run->args.listen, '?') : NULL;
    while (begin && colon > begin && *colon != ':')
        colon--;
    if (!begin || colon <= begin)
        return ibx_error_set(err, -EPROTO, "%s waits at \"%.100s\", which is no URI", run->args.to,
                             uri);
    const bool bare = strchr(host, ':') && *host != '[';
    snprintf(run->uri, sizeof(run->uri), "%.*s://%s%s%s%.*s%s", (int)(begin - uri), uri,
             bare ? "[" : "", host, bare ? "]" : "", (int)(end - colon), colon, own ? own : "");
    run->args.uri = run->uri;
    return check_address(run, host, err);
}

/* ------------------------------------------------------------ sending */

static void *read_far_end(void *argument)
{
    struct run *run = argument;
    int rc = 0;
    while (!rc) {
        json_t *line = ibx_json_lines_next(&run->from, &rc);
        if (line && on_far_line(run, line))
            break;
    }
    return NULL;
}

/* Ends the far end by ending its input, and waits for it. */
static void await_end(struct run *run)
{
    const struct timespec until = ibx_timespec_of(ibx_deadline_in_ms(END_S * 1000));
    if (run->to >= 0)
        close(run->to);
    run->to = -1;
    if (!run->reading && run->ssh > 0)
        run->reading = !pthread_create(&run->reader, NULL, read_far_end, run);
    if (run->reading && pthread_clockjoin_np(run->reader, NULL, CLOCK_MONOTONIC, &until)) {
        kill(run->ssh, SIGTERM); /* which ends its output, and so the reader */
        pthread_join(run->reader, NULL);
    }
    while (run->ssh > 0 && waitpid(run->ssh, NULL, 0) < 0 && errno == EINTR)
        ;
}

static void tell_where(const struct run *run, int status)
{
    const char *qmp = ibx_member(run->ready, "qmp"), *far = run->args.far_state_dir;
    char text[2 * IBX_ERROR_MAX];
    if (run->args.quiet || run->args.json || !run->ready)
        return;
    if (status == MIGRATE_DONE)
        snprintf(text, sizeof(text),
                 "its QEMU at %s is process %lld; its monitors are those of its command line, and "
                 "%s",
                 run->args.to, (long long)json_integer_value(json_object_get(run->ready, "pid")),
                 qmp);
    else if (status == MIGRATE_UNFINISHED)
        snprintf(
            text, sizeof(text),
            "the destination %s waits for the source: \"ib-migrate recover %s\" here continues the "
            "migration; if ib-migrate ends there, \"ib-migrate recover --qmp %s%s%s\" there",
            run->args.to, ibx_journal_options(run->args.qmp).text, ibx_shell_word(qmp).text,
            far ? " --state-dir " : "", far ? ibx_shell_word(far).text : "");
    else
        return;
    ibx_text_sanitize(text);
    ibx_cli_message(text);
}

/* Whether the far end has removed what it had made. */
static void check_cleaned(const struct run *run)
{
    char text[IBX_ERROR_MAX];
    if (run->ended && !json_is_true(json_object_get(run->ended, "kept")))
        return;
    snprintf(text, sizeof(text),
             "%s has not reported that it removed what it had started for this: look for a QEMU "
             "with the monitor %s there",
             run->args.to, run->ready ? ibx_member(run->ready, "qmp") : "/run/ibx-run-*/qmp");
    ibx_cli_message(text);
}

static void block_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(how, &set, NULL);
}

static bool uses_key_of_this(const struct ibx_record *record)
{
    return !strcmp(record->key_file, key_of_this) && !ibx_journal_over(record) &&
           record->state != IBX_JOURNAL_HERE;
}

/* Whether the key is still needed: the migration is not over, so that recover or rollback
 * authenticate by it, or the far end may ask for the last confirmation again. */
static bool key_is_needed(const struct run *run, int status)
{
    struct ibx_record record;
    struct ibx_error none = {0};
    if (status == MIGRATE_UNFINISHED)
        return true;
    if (status == MIGRATE_DONE)
        return !run->ended || json_integer_value(json_object_get(run->ended, "exit_status"));
    return ibx_journal_find(run->args.folder, run->args.qmp, uses_key_of_this, &record, &none) !=
           -ENOENT;
}

static void forget_key(const struct run *run, int status)
{
    if (!key_is_needed(run, status))
        unlink(run->key_path);
}

static int send_vm(struct run *run)
{
    /* The migration handles signals, so they are blocked before and after it. They have to be
     * blocked before the thread is created, which would get them otherwise. */
    block_signals(SIG_BLOCK);
    run->reading = !pthread_create(&run->reader, NULL, read_far_end, run);
    const int status = ibx_cli_send(&run->args);
    if (status != MIGRATE_DONE) /* after MIGRATE_DONE the far end's last message decides */
        forget_key(run, status);
    block_signals(SIG_UNBLOCK);
    if (status == MIGRATE_UNFINISHED) { /* the far end continues without ssh */
        kill(run->ssh, SIGTERM);
        tell_where(run, status);
        return status;
    }
    await_end(run);
    if (status == MIGRATE_DONE)
        tell_where(run, status);
    else
        check_cleaned(run);
    if (status == MIGRATE_DONE && !run->args.keep)
        forget_before(run);
    return status;
}

int ibx_cli_run(const struct migrate_args *args)
{
    static struct run run;
    struct ibx_error err = {0};
    int status = MIGRATE_FAILED;
    run = (struct run){.args = *args, .to = -1};
    run.args.quit = run.args.remove = !args->keep;
    run.args.on_leaving = forget_key_of_this; /* if a signal ends the source before it begins */
    int rc = ibx_cli_monitor_check(args, &err);
    if (!rc)
        rc = make_secrets(&run, &err);
    if (!rc)
        rc = look(&run, &err);
    if (!rc)
        rc = start_far_end(&run, &err);
    if (!rc)
        rc = await_ready(&run, &err);
    if (!rc)
        rc = make_uri(&run, &err);
    if (!rc) {
        status = send_vm(&run);
    } else {
        const bool started = run.ssh > 0;
        if (started)
            await_end(&run);
        ibx_text_sanitize(err.message); /* it may have words of the other host */
        ibx_cli_fail(err.message);
        if (started && run.ready)
            check_cleaned(&run);
    }
    forget_key(&run, status);
    json_decref(run.request);
    if (status != MIGRATE_UNFINISHED) { /* otherwise the reader thread still runs */
        json_decref(run.ready);
        json_decref(run.ended);
        ibx_json_lines_fini(&run.from);
    }
    return status;
}
