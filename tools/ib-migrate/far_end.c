/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The far end of run: it reads what it is to do from standard input, starts QEMU and a receiver,
 * and reports to the other end on standard output, each as a JSON object a line. The end of its
 * standard input means that the other end, or the connection to it, is gone. Then a receiver to
 * which no VM has come ends; one to which a source has come continues, since it has its own
 * connection to the source. If the VM never ran here, its QEMU, memory, sockets and key are
 * removed.
 *
 * state machine: far end
 *   [*] -> STARTING -> WAITING -> MOVING -> [*]     QEMU; the receiver; a source has come
 *   STARTING | WAITING -> [*]
 */
#include "tools/ib-migrate/run.h"

#include "migrate/preflight/description.h"

#include "common/clock.h"
#include "common/state_machine.h"
#include "common/write_whole.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 60000 /* in which QEMU's monitor has to answer */
#define LOOK_MS  20
#define END_MS   500 /* from when QEMU's sockets are closed until it is gone */
#define TAIL     512 /* bytes of QEMU's last words */

enum far_state { FAR_STARTING, FAR_WAITING, FAR_MOVING };

static const struct ibx_state far_states[] = {
    [FAR_STARTING] = {"starting", IBX_TO(FAR_WAITING), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [FAR_WAITING] = {"waiting", IBX_TO(FAR_MOVING), IBX_STATE_FINAL},
    [FAR_MOVING] = {"moving", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table far_table = IBX_STATE_TABLE("far end", far_states);

/*
 * The process that has started this one, at the other end of standard input.
 *
 * state machine: far asker
 *   [*] -> THERE -> GONE -> OBEYED    OBEYED: the receiver was therefore told to end
 *   THERE | GONE | OBEYED -> [*]
 */
enum asker_state { ASKER_THERE, ASKER_GONE, ASKER_OBEYED };

static const struct ibx_state asker_states[] = {
    [ASKER_THERE] = {"there", IBX_TO(ASKER_GONE), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [ASKER_GONE] = {"gone", IBX_TO(ASKER_OBEYED), IBX_STATE_FINAL},
    [ASKER_OBEYED] = {"obeyed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table asker_table = IBX_STATE_TABLE("far asker", asker_states);

struct far {
    struct ibx_state_machine state;
    const struct migrate_args *args;
    json_t *request;
    char run[PATH_MAX], memory[PATH_MAX]; /* folders that were made here */
    char qmp[PATH_MAX], log[PATH_MAX], key[PATH_MAX];
    pid_t qemu, receiver;
    struct json_lines in, from; /* the other end, the receiver */
    json_t *summary;            /* of the receiver */
    struct ibx_state_machine asker;
};

static void tell(json_t *object)
{
    ibx_json_lines_put(STDOUT_FILENO, object); /* when nobody hears it, nothing changes */
}

/* ------------------------------------------------------------ folders */

static int make_folder(const char *place, char *path, struct ibx_error *err)
{
    snprintf(path, PATH_MAX, "%s/ibx-run-XXXXXX", place);
    if (mkdtemp(path)) /* mode 0700 */
        return 0;
    int rc = ibx_error_set(err, -errno, "no folder can be made in %s: %s", place, strerror(errno));
    path[0] = '\0';
    return rc;
}

static const char *run_place(const char *wished)
{
    const char *own = secure_getenv("XDG_RUNTIME_DIR");
    if (*wished)
        return wished;
    if (!access("/run", W_OK))
        return "/run";
    return own && !access(own, W_OK) ? own : "/tmp";
}

/* Removes a folder that was made here. It has only files of QEMU and of this process. */
static void remove_folder(const char *path)
{
    char *const arguments[] = {"rm", "-rf", "--", (char *)(uintptr_t)path, NULL};
    pid_t pid = *path ? fork() : -1;
    if (!pid) {
        execvp(arguments[0], arguments);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

static int write_key(const struct far *far, const char *key, struct ibx_error *err)
{
    const int fd = open(far->key, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const int rc = fd < 0 ? -errno : ibx_write_whole(fd, key, strlen(key));
    if (fd >= 0)
        close(fd);
    return rc ? ibx_error_set(err, rc, "%s cannot be written: %s; %s", far->key, strerror(-rc),
                              ibx_write_remedy(rc, "free space there, or choose another place with "
                                                   "--run-dir"))
              : 0;
}

static const char *wish(const struct far *far, const char *name)
{
    return ibx_member(far->request, name);
}

static int make_places(struct far *far, struct ibx_error *err)
{
    int rc = make_folder(run_place(wish(far, "run-folder")), far->run, err);
    if (!rc)
        rc = make_folder(wish(far, "memory-folder"), far->memory, err);
    snprintf(far->qmp, sizeof(far->qmp), "%.4000s/qmp", far->run);
    snprintf(far->log, sizeof(far->log), "%.4000s/log", far->run);
    snprintf(far->key, sizeof(far->key), "%.4000s/key", far->run);
    return rc ? rc : write_key(far, wish(far, "key"), err);
}

/* ------------------------------------------------------------ QEMU */

/* QEMU's arguments for execvp(3), with folders in place of their tokens. NULL: no memory. */
static char **arguments_of(const struct far *far)
{
    const json_t *list = json_object_get(far->request, "arguments");
    const size_t count = json_array_size(list);
    char **arguments = calloc(count + 1, sizeof(*arguments));
    for (size_t i = 0; arguments && i < count; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        char *one = ibx_run_replace(text ? text : "", wish(far, "run-token"), far->run);
        arguments[i] = one ? ibx_run_replace(one, wish(far, "memory-token"), far->memory) : NULL;
        free(one);
        if (!arguments[i])
            return NULL; /* the process ends soon */
    }
    return arguments;
}

/* Runs a program in a session of its own, with only its log open. */
static void become(const struct far *far, char *const *arguments, int out)
{
    const char *folder = wish(far, "folder");
    sigset_t none;
    int null = open("/dev/null", O_RDONLY), log;
    log = open(far->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    setsid();
    signal(SIGHUP, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(null, STDIN_FILENO);
    dup2(out >= 0 ? out : log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close_range(3, ~0u, 0);
    ibx_cli_give_stack_back();
    if (out < 0) {
        umask(077);
        ibx_cli_give_cores_back();
        if (*folder && chdir(folder) && chdir("/"))
            _exit(126);
    }
    execvp(arguments[0], arguments);
    dprintf(STDERR_FILENO, "%s: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

static bool is_receivers(const char *line)
{
    static const char *const begin[] = {"ib-migrate: ", "ibx: "};
    for (size_t i = 0; i < sizeof(begin) / sizeof(begin[0]); i++) {
        if (!strncmp(line, begin[i], strlen(begin[i])))
            return true;
    }
    return false;
}

/* QEMU's last line in the log that it shares with a receiver. */
static void last_words(const struct far *far, char *text, size_t size)
{
    int fd = open(far->log, O_RDONLY | O_CLOEXEC);
    const off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t n = fd < 0 ? 0 : pread(fd, text, size - 1, end > TAIL ? end - TAIL : 0);
    char *line;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    for (;;) {
        while (*text && text[strlen(text) - 1] == '\n')
            text[strlen(text) - 1] = '\0';
        line = strrchr(text, '\n');
        line = line ? line + 1 : text;
        if (!is_receivers(line))
            break;
        *line = '\0';
    }
    memmove(text, line, strlen(line) + 1);
    ibx_text_sanitize(text);
}

int ibx_run_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address.sun_path))
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, strlen(path));
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || !connect(fd, (struct sockaddr *)&address, sizeof(address)))
        return fd < 0 ? -errno : fd;
    const int rc = -errno;
    close(fd);
    return rc;
}

pid_t ibx_run_listener(const char *path)
{
    struct ucred peer = {.pid = 0};
    socklen_t length = sizeof(peer);
    const int fd = ibx_run_connect(path);
    if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
        peer.pid = 0;
    if (fd >= 0)
        close(fd);
    return peer.pid;
}

static int input(const struct far *far)
{
    return far->asker.now == ASKER_THERE ? STDIN_FILENO : -1;
}

/* Whether the other end has gone. */
static bool left(struct far *far, int wait_ms)
{
    struct pollfd p = {.fd = input(far), .events = POLLIN};
    int rc = 0;
    if (poll(&p, 1, wait_ms) == 1 && p.revents) {
        json_decref(ibx_json_lines_next(&far->in, &rc));
        if (rc)
            ibx_state_move(&far->asker, ASKER_GONE);
    }
    return far->asker.now != ASKER_THERE;
}

/* Whether a program listens at this socket, even if its backlog is full. */
static bool is_taken(const char *path)
{
    const int fd = ibx_run_connect(path);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || fd == -EAGAIN;
}

/* Checks that nobody listens at QEMU's sockets. QEMU unlinks an existing socket, and would take it
 * away from its listener, for instance from the source's QEMU if both run on one host. The paths
 * are those of a QEMU that runs in `folder`, or in / without it (see become()): a relative one may
 * be as long as one that QEMU binds, so they are looked up from there. A user to whom sudo(8) has
 * changed may not be able to enter the folder of this command, which then goes on in /. */
static int check_sockets(const char *folder, char *const *arguments, struct ibx_error *err)
{
    int here = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0)
        here = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int rc = here < 0 || (chdir(*folder ? folder : ".") && chdir("/")) ? -errno : 0;
    if (rc)
        ibx_error_set(err, rc, "the folders of this command and of QEMU cannot be entered: %s",
                      strerror(-rc));
    for (size_t i = 0; arguments[i] && !rc; i++) {
        char *path = ibx_run_socket_of(arguments[i]);
        if (path && is_taken(path))
            rc = ibx_error_set(err, -EADDRINUSE,
                               "a program already listens at %s%s%s, and QEMU would take that "
                               "socket over: give run --map to use another folder, or end that "
                               "program",
                               path, *path == '/' ? "" : " in ", *path == '/' ? "" : folder);
        free(path);
    }
    if (here >= 0 && fchdir(here) && !rc)
        rc = ibx_error_set(err, -errno,
                           "the folder in which ib-migrate was started cannot be entered again: %s",
                           strerror(errno));
    if (here >= 0)
        close(here);
    return rc;
}

/* 0 as long as QEMU has not ended; then the error is what it has printed. */
static int check_qemu(struct far *far, struct ibx_error *err)
{
    char words[TAIL + 1];
    if (waitpid(far->qemu, NULL, WNOHANG) != far->qemu)
        return 0;
    far->qemu = 0;
    last_words(far, words, sizeof(words));
    return ibx_error_set(err, -ECHILD, "QEMU did not start: %s",
                         *words ? words : "it gave no reason");
}

/* As check_qemu(), but waits a moment. QEMU opens its monitor before disks and the kernel: if one
 * of these fails, the receiver may report a lost monitor just before the process has ended. */
static int check_qemu_soon(struct far *far, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(END_MS);
    int rc = 0;
    while (!(rc = check_qemu(far, err)) && ibx_now_ns() < deadline)
        poll(NULL, 0, LOOK_MS);
    return rc;
}

static int start_qemu(struct far *far, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(START_MS);
    char **arguments = arguments_of(far);
    if (!arguments || !arguments[0])
        return ibx_error_set(err, -EINVAL, "there are no arguments for QEMU");
    int rc = check_sockets(wish(far, "folder"), arguments, err);
    if (rc)
        return rc; /* the process ends soon */
    far->qemu = fork();
    if (!far->qemu)
        become(far, arguments, -1);
    if (far->qemu < 0)
        return ibx_error_set_task(err, -errno, "no process for QEMU");
    for (size_t i = 0; arguments[i]; i++)
        free(arguments[i]);
    free(arguments);
    while (!ibx_run_listener(far->qmp)) {
        if ((rc = check_qemu(far, err)))
            return rc;
        if (left(far, LOOK_MS))
            return ibx_error_set(err, -ECANCELED, "the source has gone");
        if (ibx_now_ns() > deadline)
            return ibx_error_set(err, -ETIMEDOUT, "QEMU has not opened its monitor within %d s",
                                 START_MS / 1000);
    }
    return 0;
}

/* What a monitor has changed in the source's QEMU. A QEMU that ends meanwhile says why itself. */
static int set_limits(struct far *far, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = ibx_run_limits_set(far->qmp, json_object_get(far->request, "limits"), err);
    if (rc && check_qemu_soon(far, &why))
        *err = why;
    return rc;
}

/* ------------------------------------------------------------ the receiver */

static int start_receiver(struct far *far, struct ibx_error *err)
{
    const json_t *more = json_object_get(far->request, "receive");
    const size_t count = json_array_size(more);
    const char *words[] = {"ib-migrate", "receive", "--json",      "--quiet",
                           "--qmp",      far->qmp,  "--listen",    wish(far, "listen"),
                           "--key-file", far->key,  "--state-dir", far->args->folder};
    const size_t fixed = sizeof(words) / sizeof(words[0]);
    const char **arguments = calloc(fixed + count + 1, sizeof(*arguments));
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    int pair[2];
    if (!arguments || length < 0 || pipe2(pair, O_CLOEXEC))
        return ibx_error_set(err, -ENOMEM, "no pipe to a receiver");
    program[length] = '\0';
    memcpy(arguments, words, sizeof(words));
    for (size_t i = 0; i < count; i++)
        arguments[fixed + i] = json_string_value(json_array_get(more, i));
    arguments[0] = program;
    far->receiver = fork();
    if (!far->receiver)
        become(far, (char *const *)(uintptr_t)arguments, pair[1]);
    const int code = errno;
    free(arguments);
    close(pair[1]);
    ibx_json_lines_init(&far->from, pair[0]);
    return far->receiver > 0 ? 0 : ibx_error_set_task(err, -code, "no process for a receiver");
}

static void tell_ready(const struct far *far, const json_t *status)
{
    char host[128];
    ibx_migrate_host(host, sizeof(host));
    tell(json_pack("{s:s, s:O, s:s, s:i, s:s, s:s}", "far", "ready", "uri",
                   json_object_get(json_object_get(status, "record"), "uri"), "host", host, "pid",
                   (int)far->qemu, "qmp", far->qmp, "memory", far->memory));
}

/* A line of the receiver. */
static void on_line(struct far *far, json_t *line)
{
    json_t *status = json_object_get(line, "status"), *said = json_object_get(line, "say");
    json_t *summary = json_object_get(line, "summary");
    const char *phase = json_string_value(json_object_get(status, "phase"));
    const bool waits = phase && !strcmp(phase, "waiting");
    if (waits && far->state.now == FAR_STARTING &&
        json_is_object(json_object_get(status, "record"))) {
        ibx_state_move(&far->state, FAR_WAITING);
        tell_ready(far, status);
    } else if (phase && !waits && far->state.now == FAR_WAITING && strcmp(phase, "failed")) {
        ibx_state_move(&far->state, FAR_MOVING);
    }
    if (json_is_string(said))
        tell(json_pack("{s:s, s:O}", "far", "say", "text", said));
    if (summary) {
        json_decref(far->summary);
        far->summary = json_incref(summary);
    }
    json_decref(line);
}

/* Follows the receiver until it has ended; returns its exit status. */
static int follow_receiver(struct far *far)
{
    int rc = 0, status;
    while (!rc) {
        struct pollfd fds[2] = {{.fd = far->from.fd, .events = POLLIN},
                                {.fd = input(far), .events = POLLIN}};
        if (poll(fds, 2, -1) < 0)
            continue;
        if (fds[1].revents)
            left(far, 0);
        if (fds[0].revents) {
            json_t *line = ibx_json_lines_next(&far->from, &rc);
            while (line) {
                on_line(far, line);
                line = far->from.length && memchr(far->from.text, '\n', far->from.length)
                           ? ibx_json_lines_next(&far->from, &rc)
                           : NULL;
            }
        }
        /* Only in FAR_WAITING: before that, the receiver does not handle signals yet. */
        if (far->asker.now == ASKER_GONE && far->state.now == FAR_WAITING) {
            ibx_state_move(&far->asker, ASKER_OBEYED);
            kill(far->receiver, SIGINT);
        }
    }
    while (waitpid(far->receiver, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : MIGRATE_UNFINISHED;
}

/* ------------------------------------------------------------ the end */

/* Whether the VM certainly never ran here, by the receiver's summary. Without a summary (the
 * receiver was killed) that is not known, and all is kept. */
static bool never_ran(const struct far *far)
{
    const json_t *record = json_object_get(far->summary, "record");
    const char *state = json_string_value(json_object_get(record, "state"));
    if (far->receiver <= 0)
        return true;
    return far->summary && (!state || !strcmp(state, "not-yet") || !strcmp(state, "given-up"));
}

static void clean_up(struct far *far)
{
    if (far->qemu > 0) {
        kill(far->qemu, SIGKILL); /* it has no VM, and may wait for pages that never come */
        waitpid(far->qemu, NULL, 0);
    }
    remove_folder(far->memory);
    remove_folder(far->run);
}

static void tell_end(const struct far *far, int status, bool kept, const char *error)
{
    const char *why = json_string_value(json_object_get(far->summary, "error"));
    const char *said = error ? error : why;
    tell(json_pack("{s:s, s:i, s:b, s:o}", "far", "ended", "exit_status", status, "kept", kept,
                   "error", said ? ibx_json_text(said) : json_null()));
}

static int read_request(struct far *far, struct ibx_error *err)
{
    int rc = 0;
    while (!far->request && !rc)
        far->request = ibx_json_lines_next(&far->in, &rc);
    if (json_integer_value(json_object_get(far->request, "ibx-run")) == 1)
        return 0;
    return ibx_error_set(
        err, -EPROTO,
        "standard input has no request of this version: \"far-end\" is for \"ib-migrate "
        "run\", which starts it over ssh; both hosts need the same ib-migrate");
}

int ibx_cli_far_end(const struct migrate_args *args)
{
    static struct far far;
    struct ibx_error err = {0};
    int status = MIGRATE_FAILED;
    far = (struct far){.args = args};
    ibx_state_begin(&far.state, &far_table, FAR_STARTING);
    ibx_state_begin(&far.asker, &asker_table, ASKER_THERE);
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* the other end handles a terminal's signals */
    ibx_json_lines_init(&far.in, STDIN_FILENO);
    int rc = read_request(&far, &err);
    if (!rc)
        rc = make_places(&far, &err);
    if (!rc)
        rc = start_qemu(&far, &err);
    if (!rc)
        rc = set_limits(&far, &err);
    if (!rc)
        rc = start_receiver(&far, &err);
    if (!rc)
        status = follow_receiver(&far);
    if (!rc && far.state.now == FAR_STARTING && far.asker.now == ASKER_THERE)
        rc = check_qemu_soon(&far, &err);
    const bool kept = !never_ran(&far);
    if (!kept)
        clean_up(&far);
    else if (status == MIGRATE_DONE || status == MIGRATE_ENDED)
        unlink(far.key); /* otherwise recover needs it */
    tell_end(&far, status, kept, rc ? err.message : NULL);
    json_decref(far.request);
    json_decref(far.summary);
    ibx_json_lines_fini(&far.in);
    ibx_json_lines_fini(&far.from);
    return status;
}
