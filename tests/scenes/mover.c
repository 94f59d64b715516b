/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/mover.h"

#include "common/clock.h"
#include "migrate/common/vm.h"
#include "transport/transport.h"

#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define MOVERS_MAX   16
#define PORTS_MAX    32
#define LOOK_MS      2
#define ASLEEP_LOOKS 5

char mover_folder[64], mover_state_dir[96];
const char *mover_namespace;
static struct mover *running[MOVERS_MAX];
static unsigned count;
static int ports[PORTS_MAX];
static unsigned port_count;
static const char *stop_next[2]; /* a source, a destination */
static const char *preloaded;

void mover_begin(void)
{
    preloaded = NULL;
    snprintf(mover_folder, sizeof(mover_folder), "/tmp/ibx-mv-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(mover_folder));
    snprintf(mover_state_dir, sizeof(mover_state_dir), "%s/s", mover_folder);
}

size_t mover_each_note(void (*look)(const char *record, const char *note))
{
    static const char *const kinds[] = {"arrived", "base", "map", "tags", "home"};
    char pattern[160], path[PATH_MAX];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/*.json", mover_state_dir);
    if (glob(pattern, 0, NULL, &found))
        return 0;
    const size_t records = found.gl_pathc;
    for (size_t i = 0; i < records; i++) {
        const char *name = strrchr(found.gl_pathv[i], '/') + 1;
        for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
            snprintf(path, sizeof(path), "/dev/shm/ibx-%.*s%s",
                     (int)(strlen(name) - strlen("json")), name, kinds[k]);
            look(found.gl_pathv[i], path);
        }
    }
    globfree(&found);
    return records;
}

static void remove_note(const char *record, const char *note)
{
    (void)record;
    unlink(note);
}

void mover_needs_ofi(void)
{
    struct ibx_options options;
    char text[256];
    ibx_options_init(&options);
    strcpy(options.ofi_provider, "tcp");
    if (ibx_provider_probe("ofi", &options, text, sizeof(text), NULL))
        skip();
}

int mover_end_all(void **state)
{
    char command[128];
    for (unsigned i = 0; i < MOVERS_MAX; i++)
        if (running[i])
            mover_kill(running[i], SIGKILL);
    if (mover_folder[0]) {
        mover_each_note(remove_note); /* nobody could find them without the records */
        snprintf(command, sizeof(command), "rm -rf %s", mover_folder);
        if (system(command))
            return -1;
    }
    mover_folder[0] = '\0';
    mover_namespace = stop_next[0] = stop_next[1] = NULL;
    while (port_count)
        close(ports[--port_count]);
    return vm_end_all(state);
}

static void enter(const char *namespace)
{
    char path[96];
    snprintf(path, sizeof(path), "/run/netns/%s", namespace);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET))
        _exit(125);
    close(fd);
}

void mover_stop_next(const char *state)
{
    stop_next[!strncmp(state, "destination", 11)] = state;
}

/* Where the state is at which this command is to stop; a recovery takes that of either side. */
static const char **stop_of(const char *command)
{
    if (!strcmp(command, "receive") || (!strcmp(command, "recover") && stop_next[1]))
        return &stop_next[1];
    if (!strcmp(command, "rollback") || !strcmp(command, "clone"))
        return stop_next[0] && !strncmp(stop_next[0], command, strlen(command)) ? &stop_next[0]
                                                                                : NULL;
    const bool sends = !strcmp(command, "send") || !strcmp(command, "borrow") ||
                       !strcmp(command, "return") || !strcmp(command, "recover") ||
                       !strcmp(command, "freeze");
    return sends ? &stop_next[0] : NULL;
}

/* A sanitizer's runtime wants to be the first library. */
static void preload(void)
{
    const char *before = getenv("ASAN_OPTIONS");
    char options[400];
    snprintf(options, sizeof(options), "%s:verify_asan_link_order=0", before ? before : "");
    setenv("ASAN_OPTIONS", options, 1);
    setenv("LD_PRELOAD", preloaded, 1);
}

static void become_tool(const struct mover *m, const char *const *arguments, pid_t parent)
{
    const char *items[40] = {getenv("IB_MIGRATE")};
    unsigned n = 1;
    for (; *arguments && strcmp(*arguments, "--"); arguments++)
        items[n++] = *arguments;
    items[n++] = "--state-dir";
    items[n++] = mover_state_dir;
    for (; *arguments; arguments++) /* another program's */
        items[n++] = *arguments;
    int out = open(m->out, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int err = open(m->err, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(out, 1);
    dup2(err, 2);
    close_range(3, ~0u, 0);
    if (mover_namespace)
        enter(mover_namespace);
    const char **stop = stop_of(items[1]);
    if (stop && *stop)
        setenv("IBX_MOVE_STOP_AT", *stop, 1);
    if (preloaded)
        preload();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    execv(items[0], (char *const *)(uintptr_t)items);
    _exit(127);
}

void mover_preload(const char *path)
{
    preloaded = path;
}

void mover_start(struct mover *m, const char *const *arguments)
{
    memset(m, 0, sizeof(*m));
    snprintf(m->out, sizeof(m->out), "%s/%u.out", mover_folder, count);
    snprintf(m->err, sizeof(m->err), "%s/%u.err", mover_folder, count++);
    for (unsigned i = 0; i < MOVERS_MAX; i++) {
        if (!running[i]) {
            running[i] = m;
            break;
        }
    }
    pid_t self = getpid();
    m->pid = fork();
    assert_true(m->pid >= 0);
    if (!m->pid)
        become_tool(m, arguments, self);
    const char **stop = stop_of(arguments[0]);
    if (stop)
        *stop = NULL;
}

static size_t read_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 0;
    size_t length = 0;
    while (fd >= 0 && length < size - 1 && (n = read(fd, text + length, size - 1 - length)) > 0)
        length += (size_t)n;
    text[length] = '\0';
    if (fd >= 0)
        close(fd);
    return length;
}

static void fail_with_output(const struct mover *m, const char *what)
{
    static char out[65536], err[65536];
    for (unsigned i = 0; i < MOVERS_MAX; i++) {
        if (!running[i] || running[i] == m)
            continue;
        read_file(running[i]->err, err, sizeof(err));
        print_error("another tool's standard error: %s\n", err);
    }
    size_t length = read_file(m->out, out, sizeof(out));
    read_file(m->err, err, sizeof(err));
    fail_msg("%s\nstandard error: %s\nthe end of standard output: %s", what, err,
             length > 1500 ? out + length - 1500 : out);
}

static void note_end(struct mover *m)
{
    for (unsigned i = 0; i < MOVERS_MAX; i++)
        if (running[i] == m)
            running[i] = NULL;
    m->pid = 0;
}

int mover_wait(struct mover *m)
{
    const uint64_t deadline = vm_soon();
    int status = 0;
    pid_t rc;
    while (!(rc = waitpid(m->pid, &status, WNOHANG))) {
        if (ibx_now_ns() >= deadline)
            fail_with_output(m, "ib-migrate does not end");
        poll(NULL, 0, LOOK_MS);
    }
    assert_int_equal(rc, m->pid);
    note_end(m);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void mover_ends(struct mover *m, int status)
{
    char what[64];
    int is = mover_wait(m);
    snprintf(what, sizeof(what), "ib-migrate ended with %d, not %d", is, status);
    /* Which of these it is test_ib_migrate.py looks at: 5 is 1 of a receiver that still waited. */
    if (is != status && !(is == 5 && status == 1))
        fail_with_output(m, what);
}

struct mover *mover_run(int status, const char *const *arguments)
{
    static struct mover m;
    mover_start(&m, arguments);
    mover_ends(&m, status);
    return &m;
}

bool mover_ends_or_prints(struct mover *m, int status, const char *words)
{
    const uint64_t deadline = vm_soon();
    siginfo_t ended = {0};
    while (!waitid(P_PID, (id_t)m->pid, &ended, WEXITED | WNOHANG | WNOWAIT) && !ended.si_pid) {
        if (mover_printed(m, words))
            return false;
        if (ibx_now_ns() >= deadline)
            fail_with_output(m, "ib-migrate neither ends nor prints that");
        poll(NULL, 0, LOOK_MS);
    }
    mover_ends(m, status);
    return true;
}

void mover_kill(struct mover *m, int signal)
{
    if (!m->pid)
        return;
    kill(m->pid, signal);
    if (signal == SIGKILL) {
        waitpid(m->pid, NULL, 0);
        note_end(m);
    }
}

bool mover_printed(const struct mover *m, const char *words)
{
    static char text[1 << 20];
    read_file(m->err, text, sizeof(text));
    if (strstr(text, words))
        return true;
    read_file(m->out, text, sizeof(text));
    return strstr(text, words) != NULL;
}

void mover_must_print(const struct mover *m, const char *words)
{
    char what[256];
    snprintf(what, sizeof(what), "ib-migrate did not print \"%s\"", words);
    if (!mover_printed(m, words))
        fail_with_output(m, what);
}

static void look_again(struct mover *m, uint64_t deadline, const char *what)
{
    int status;
    if (m->pid && waitpid(m->pid, &status, WNOHANG) == m->pid) {
        note_end(m);
        return;
    }
    if (!m->pid || ibx_now_ns() >= deadline)
        fail_with_output(m, what);
    poll(NULL, 0, LOOK_MS);
}

void mover_await_words(struct mover *m, const char *words)
{
    const uint64_t deadline = vm_soon();
    char what[256];
    snprintf(what, sizeof(what), "waited for \"%s\"", words);
    while (!mover_printed(m, words))
        look_again(m, deadline, what);
}

void mover_await_watchdog(const struct mover *m, const char *words)
{
    const uint64_t deadline = vm_soon();
    while (!mover_printed(m, words)) {
        if (ibx_now_ns() >= deadline)
            fail_msg("its watchdog did not print \"%s\"", words);
        poll(NULL, 0, LOOK_MS);
    }
}

/* The last whole line that is an object. */
json_t *mover_summary(const struct mover *m)
{
    static char text[1 << 20];
    size_t length = read_file(m->out, text, sizeof(text));
    while (length) {
        while (length && text[length - 1] != '\n')
            length--;
        if (!length)
            return NULL;
        text[--length] = '\0';
        size_t begin = length;
        while (begin && text[begin - 1] != '\n')
            begin--;
        json_t *object = json_loads(text + begin, 0, NULL);
        json_t *inner = json_object_get(object, "summary");
        inner = inner ? inner : json_object_get(object, "status");
        json_incref(inner);
        json_decref(object);
        if (inner)
            return inner;
        length = begin;
    }
    return NULL;
}

json_int_t mover_figure(const struct mover *m, const char *name)
{
    json_t *summary = mover_summary(m);
    const json_int_t value = json_integer_value(json_object_get(summary, name));
    json_decref(summary);
    return value;
}

static bool reached(const struct mover *m, const char *phase, unsigned present)
{
    json_t *last = mover_summary(m);
    const char *is = json_string_value(json_object_get(last, "phase"));
    json_int_t pages = json_integer_value(json_object_get(last, "pages"));
    json_int_t there = json_integer_value(json_object_get(last, "present_pages"));
    bool yes = is && !strcmp(is, phase) && (!present || (pages && there * 100 >= pages * present));
    json_decref(last);
    return yes;
}

void mover_await(struct mover *m, const char *phase, unsigned present)
{
    const uint64_t deadline = vm_soon();
    char what[128];
    snprintf(what, sizeof(what), "waited for phase %s, %u %% present", phase, present);
    while (!reached(m, phase, present))
        look_again(m, deadline, what);
}

void mover_await_figure(struct mover *m, const char *name, json_int_t least)
{
    const uint64_t deadline = vm_soon();
    char what[128];
    snprintf(what, sizeof(what), "waited for %s of %lld", name, (long long)least);
    while (mover_figure(m, name) < least)
        look_again(m, deadline, what);
}

static bool is_silent(const struct mover *m)
{
    json_t *last = mover_summary(m);
    bool yes = json_integer_value(json_object_get(last, "silent_ns")) > 0;
    json_decref(last);
    return yes;
}

void mover_await_silent(struct mover *m)
{
    const uint64_t deadline = vm_soon();
    while (!is_silent(m))
        look_again(m, deadline, "waited for silent_ns");
}

/* A port that stays free until the end for receivers of a URI without one, also when they are
 * killed and another is started there: a socket of this process stays at it, so that the kernel
 * gives it to nobody else. */
static void choose_port(const char *uri, char *chosen, size_t size)
{
    static const char none[] = "//127.0.0.1:0";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    const char *at = strstr(uri, none);
    if (!at || strncmp(uri, "tcp", 3) || mover_namespace) {
        snprintf(chosen, size, "%s", uri);
        return;
    }
    assert_true(port_count < PORTS_MAX);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    ports[port_count++] = fd;
    snprintf(chosen, size, "tcp://127.0.0.1:%u%s", ntohs(address.sin_port), at + strlen(none));
}

void mover_receive(struct mover *m, const struct vm *vm, const char *uri, const char *const *more)
{
    char chosen[256];
    choose_port(uri, chosen, sizeof(chosen));
    const char *arguments[32] = {"receive", "--qmp", vm->tool, "--listen", chosen, "--json"};
    unsigned n = 6;
    for (; more && *more; more++)
        arguments[n++] = *more;
    mover_start(m, arguments);
    mover_await_words(m, "waiting at ");
    static char text[65536];
    read_file(m->err, text, sizeof(text));
    const char *at = strstr(text, "waiting at ");
    if (!at) {
        read_file(m->out, text, sizeof(text));
        at = strstr(text, "waiting at ");
    }
    at += strlen("waiting at ");
    snprintf(m->uri, sizeof(m->uri), "%.*s", (int)strcspn(at, " \"\n"), at);
}

void mover_send(struct mover *m, const struct vm *vm, const char *uri, const char *const *more)
{
    const char *arguments[32] = {"send", "--qmp", vm->tool, uri, "--json"};
    unsigned n = 5;
    for (; more && *more; more++)
        arguments[n++] = *more;
    mover_start(m, arguments);
}

void mover_recover(struct mover *m, const struct vm *vm)
{
    mover_start(m, (const char *[]){"recover", "--qmp", vm->tool, "--json", TIMED, NULL});
}

void mover_await_stop(struct mover *m)
{
    const uint64_t deadline = vm_soon();
    siginfo_t info = {0};
    for (;;) {
        const int what = WSTOPPED | WEXITED | WNOHANG | WNOWAIT;
        assert_int_equal(waitid(P_PID, (id_t)m->pid, &info, what), 0);
        if (info.si_pid == m->pid && info.si_code == CLD_STOPPED)
            return;
        if (info.si_pid == m->pid || ibx_now_ns() >= deadline)
            fail_with_output(m, "the tool did not come to its state");
        poll(NULL, 0, LOOK_MS);
    }
}

/* The kernel lets go of the sockets of a process that was killed when waitpid() has long returned:
 * until then the port is in use. */
int mover_listen_in_place_of(const char *uri)
{
    const uint64_t deadline = vm_soon();
    const char *port = strrchr(uri, ':');
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_non_null(port);
    at.sin_port = htons((uint16_t)atoi(port + 1));
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    while (bind(fd, (const struct sockaddr *)&at, sizeof(at)) || listen(fd, 8)) {
        if (errno != EADDRINUSE || ibx_now_ns() >= deadline)
            fail_msg("port %u: %s", ntohs(at.sin_port), strerror(errno));
        poll(NULL, 0, LOOK_MS);
    }
    return fd;
}

/* Every thread of it. */
static bool sleeps(const struct mover *m)
{
    char pattern[64], line[256];
    glob_t threads;
    bool all = true;
    snprintf(pattern, sizeof(pattern), "/proc/%d/task/*/stat", (int)m->pid);
    assert_int_equal(glob(pattern, 0, NULL, &threads), 0);
    for (size_t i = 0; i < threads.gl_pathc; i++) {
        FILE *stat = fopen(threads.gl_pathv[i], "re");
        const char *name = stat && fgets(line, sizeof(line), stat) ? strrchr(line, ')') : NULL;
        all &= name && !strncmp(name, ") S", 3);
        if (stat)
            fclose(stat);
    }
    globfree(&threads);
    return all;
}

void mover_await_asleep(const struct mover *m)
{
    const uint64_t deadline = vm_soon();
    for (unsigned looks = 0; looks < ASLEEP_LOOKS; looks = sleeps(m) ? looks + 1 : 0) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, (int)patience_ms(2)); /* QEMU may be kept from answering meanwhile */
    }
}

void mover_await_record(const char *side, const char *state)
{
    const uint64_t deadline = vm_soon();
    char pattern[160];
    bool found = false;
    snprintf(pattern, sizeof(pattern), "%s/*.%s.json", mover_state_dir, side);
    while (!found) {
        glob_t records;
        assert_true(ibx_now_ns() < deadline);
        assert_int_equal(glob(pattern, 0, NULL, &records), 0);
        assert_int_equal(records.gl_pathc, 1);
        json_t *record = json_load_file(records.gl_pathv[0], 0, NULL);
        const char *is = json_string_value(json_object_get(record, "state"));
        found = is && !strcmp(is, state);
        json_decref(record);
        globfree(&records);
        poll(NULL, 0, found ? 0 : LOOK_MS);
    }
}

void mover_heartbeats(const struct vm *const *of, const char *options)
{
    char said[256];
    int rc = vm_expect(of, options, said, sizeof(said));
    if (rc)
        fail_msg("expect: %d %s", rc, said);
}

bool mover_resumed(struct vm *vm)
{
    json_t *event;
    struct ibx_error silent;
    bool yes = false;
    ibx_qmp_pump(vm->qmp, &silent);
    while ((event = ibx_qmp_event_next(vm->qmp))) {
        yes |= ibx_vm_event_is(event, "RESUME", NULL);
        json_decref(event);
    }
    return yes;
}

void mover_record_path(char path[PATH_MAX])
{
    glob_t found;
    char pattern[160];
    snprintf(pattern, sizeof(pattern), "%s/*.destination.json", mover_state_dir);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, PATH_MAX, "%s", found.gl_pathv[0]);
    globfree(&found);
}

void mover_make_file(char *path, size_t size, const char *name, off_t bytes)
{
    snprintf(path, size, "%s/%s", mover_folder, name);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    close(fd);
}

void mover_arrived_path(char path[PATH_MAX])
{
    char record[PATH_MAX];
    mover_record_path(record);
    const char *name = strrchr(record, '/') + 1;
    snprintf(path, PATH_MAX, "/dev/shm/ibx-%.*s.arrived", (int)(strlen(name) - strlen(".json")),
             name);
}
