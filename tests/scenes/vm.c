/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/vm.h"

#include "common/clock.h"
#include "migrate/common/vm.h"
#include "tests/scenes/selection.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define VMS_MAX   16
#define ARGUMENTS 64
#define NOBODY    65534
#define LOOK_MS   5 /* between two looks at a file or a process */
#define EXIT_SKIP 77
#define TESTS_MAX 64
#define CALM      "doze=15000000" /* three quarters of the time, so that tests run side by side */

struct ibx_error vm_error;
static struct vm *running[VMS_MAX];
static const char *qemu, *guest, *expect;

/* RAM that programs before this one left behind, as they were killed: whose it was is in its name.
 */
static void sweep(void)
{
    char path[300];
    struct dirent *file;
    DIR *folder = opendir("/dev/shm");
    while (folder && (file = readdir(folder))) {
        int pid, end = 0;
        if (sscanf(file->d_name, "ibx-vm-%d-%n", &pid, &end) != 1 || !end || !kill(pid, 0) ||
            errno != ESRCH)
            continue;
        snprintf(path, sizeof(path), "/dev/shm/%s", file->d_name);
        unlink(path);
    }
    if (folder)
        closedir(folder);
}

int vm_available(void)
{
    sweep();
    qemu = getenv("QEMU");
    guest = getenv("GUEST_ELF");
    expect = getenv("GUEST_EXPECT");
    if (qemu && guest && expect && !access(qemu, X_OK) && !geteuid())
        return 0;
    fprintf(stderr,
            "skipped: needs QEMU, GUEST_ELF and GUEST_EXPECT in the environment, and root\n");
    return EXIT_SKIP;
}

static void run_one(void **state)
{
    const struct vm_test *test = *state;
    test->run();
}

int vm_tests(const struct vm_test *tests, int (*end)(void **state))
{
    static struct CMUnitTest units[TESTS_MAX];
    size_t count = 0;
    int skipped = vm_available();
    if (skipped)
        return skipped;
    for (; tests->name; tests++) {
        if (selection_has(tests->name))
            units[count++] =
                (struct CMUnitTest){tests->name, run_one, NULL, end, (void *)(uintptr_t)tests};
    }
    int failed = _cmocka_run_group_tests("tests", units, count, NULL, NULL);
    return failed + selection_unmatched();
}

uint64_t vm_soon(void)
{
    memset(&vm_error, 0, sizeof(vm_error));
    return ibx_deadline_in_ms(VM_WAIT_MS);
}

void vm_check(int rc, const char *what, const char *file, int line)
{
    if (!rc)
        return;
    print_error("%s: %d %s\n", what, rc, vm_error.message);
    _fail(file, line);
}

void vm_refused(int rc, int code, const char *words)
{
    if (rc != code || vm_error.code != code || !strstr(vm_error.message, words))
        fail_msg("%d (wanted %d) \"%s\" does not say \"%s\"", rc, code, vm_error.message, words);
}

/* ------------------------------------------------------------ starting and ending */

struct arguments {
    const char *items[ARGUMENTS];
    size_t count;
};

static void add(struct arguments *a, const char *item)
{
    assert_true(a->count + 1 < ARGUMENTS);
    a->items[a->count++] = item;
}

static void add_all(struct arguments *a, const char *const *items)
{
    for (; *items; items++)
        add(a, *items);
}

static void become_qemu(const struct vm *vm, const struct vm_options *o, const struct arguments *a,
                        pid_t parent)
{
    int log = open(vm->log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    umask(077); /* its RAM is for its user only */
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(log, 1);
    dup2(log, 2);
    if (o->nobody && (setgid(NOBODY) || setuid(NOBODY)))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(126);
    execv(qemu, (char *const *)(uintptr_t)a->items);
    _exit(127);
}

static void make_places(struct vm *vm, const struct vm_options *o)
{
    snprintf(vm->dir, sizeof(vm->dir), "/tmp/ibx-vm-%d-XXXXXX", (int)getpid());
    assert_non_null(mkdtemp(vm->dir));
    snprintf(vm->socket, sizeof(vm->socket), "%s/qmp", vm->dir);
    snprintf(vm->tool, sizeof(vm->tool), "%s/tool", vm->dir);
    snprintf(vm->serial, sizeof(vm->serial), "%s/serial", vm->dir);
    snprintf(vm->log, sizeof(vm->log), "%s/log", vm->dir);
    snprintf(vm->ram, sizeof(vm->ram), "/dev/shm/%s", vm->dir + strlen("/tmp/"));
    int fd = open(vm->ram, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    if (o->nobody) {
        assert_int_equal(chown(vm->dir, NOBODY, NOBODY), 0);
        assert_int_equal(chown(vm->ram, NOBODY, NOBODY), 0);
    }
}

static void say_log(const struct vm *vm)
{
    char text[2048] = "";
    int fd = open(vm->log, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    fail_msg("QEMU did not start: %s\n%s", vm_error.message, text);
}

static void connect_monitor(struct vm *vm)
{
    uint64_t deadline = vm_soon();
    while (access(vm->socket, F_OK) ||
           ibx_qmp_connect(vm->socket, deadline, &vm->qmp, &vm_error) == -ECONNREFUSED) {
        if (waitpid(vm->pid, NULL, WNOHANG) == vm->pid)
            vm->pid = 0;
        if (!vm->pid || ibx_now_ns() >= deadline)
            break;
        poll(NULL, 0, LOOK_MS);
    }
    if (!vm->qmp)
        say_log(vm);
}

/* Whether all may read the file, and enter the folders above it: a tree in a home of mode 0700, as
 * Debian makes them, is its owner's and root's alone. */
static bool is_for_all(const char *file)
{
    char path[PATH_MAX];
    struct stat st;
    if (!realpath(file, path) || stat(path, &st) || !(st.st_mode & S_IROTH))
        return false;
    for (char *end; (end = strrchr(path, '/'));) {
        *end = '\0';
        if (stat(*path ? path : "/", &st) || !(st.st_mode & S_IXOTH))
            return false;
    }
    return true;
}

void vm_start(struct vm *vm, const struct vm_options *o)
{
    memset(vm, 0, sizeof(*vm));
    if (o->nobody && !is_for_all(guest)) {
        print_message("other users cannot read %s\n", guest);
        skip();
    }
    make_places(vm, o);
    for (size_t i = 0; i < VMS_MAX; i++) {
        if (!running[i]) {
            running[i] = vm;
            break;
        }
    }
    char ram[256], serial[128], qmp[160], tool[160], mib[16];
    snprintf(ram, sizeof(ram), "memory-backend-file,id=mem0,size=%uM,mem-path=%s,share=on",
             VM_RAM_MIB, vm->ram);
    snprintf(serial, sizeof(serial), "file:%s", vm->serial);
    snprintf(qmp, sizeof(qmp), "unix:%s,server=on,wait=off", vm->socket);
    snprintf(tool, sizeof(tool), "unix:%s,server=on,wait=off", vm->tool);
    snprintf(mib, sizeof(mib), "%u", VM_RAM_MIB);
    struct arguments a = {.count = 0};
    add_all(&a, (const char *[]){qemu,
                                 "-M",
                                 o->machine ? o->machine : "q35",
                                 "-accel",
                                 o->accel ? o->accel : "tcg,thread=multi",
                                 "-m",
                                 mib,
                                 "-nodefaults",
                                 "-display",
                                 "none",
                                 "-no-reboot",
                                 "-smp",
                                 o->two ? "2" : "1",
                                 "-kernel",
                                 guest,
                                 "-append",
                                 o->append && *o->append ? o->append : CALM,
                                 "-serial",
                                 serial,
                                 "-qmp",
                                 qmp,
                                 "-qmp",
                                 tool,
                                 NULL});
    if (!o->ram || *o->ram)
        add_all(&a, (const char *[]){"-object", o->ram ? o->ram : ram, NULL});
    if (!o->ram || strstr(o->ram, "id=mem0"))
        add_all(&a, (const char *[]){"-machine", "memory-backend=mem0", NULL});
    if (o->incoming)
        add_all(&a, (const char *[]){"-incoming", "defer", NULL});
    add_all(&a, o->extra);
    pid_t self = getpid();
    vm->pid = fork();
    assert_true(vm->pid >= 0);
    if (!vm->pid)
        become_qemu(vm, o, &a, self);
    connect_monitor(vm);
}

int vm_end_of_tool(const struct vm *vm)
{
    int process = (int)syscall(SYS_pidfd_open, vm->pid, 0), found = -1;
    assert_true(process >= 0);
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un name = {0}, other;
        socklen_t size = sizeof(name), peer = sizeof(other);
        int mine = (int)syscall(SYS_pidfd_getfd, process, fd, 0);
        if (mine >= 0 && !getsockname(mine, (struct sockaddr *)&name, &size) &&
            name.sun_family == AF_UNIX && !strcmp(name.sun_path, vm->tool) &&
            !getpeername(mine, (struct sockaddr *)&other, &peer)) {
            assert_int_equal(found, -1);
            found = mine;
        } else if (mine >= 0) {
            close(mine);
        }
    }
    close(process);
    assert_true(found >= 0);
    return found;
}

void vm_kill(struct vm *vm)
{
    if (vm->pid > 0) {
        kill(vm->pid, SIGKILL);
        waitpid(vm->pid, NULL, 0);
    }
    vm->pid = 0;
}

void vm_await_end(struct vm *vm)
{
    const uint64_t deadline = vm_soon();
    while (waitpid(vm->pid, NULL, WNOHANG) != vm->pid) {
        if (ibx_now_ns() >= deadline)
            fail_msg("QEMU did not end");
        poll(NULL, 0, LOOK_MS);
    }
    vm->pid = 0;
}

void vm_end(struct vm *vm)
{
    for (size_t i = 0; i < VMS_MAX; i++) {
        if (running[i] == vm)
            running[i] = NULL;
    }
    ibx_qmp_close(vm->qmp);
    vm_kill(vm);
    char state[128]; /* the device state's way, left behind by a QEMU that was killed */
    snprintf(state, sizeof(state), "%s.state", vm->socket);
    unlink(state);
    unlink(vm->ram);
    unlink(vm->socket);
    unlink(vm->tool);
    unlink(vm->serial);
    unlink(vm->log);
    rmdir(vm->dir);
    memset(vm, 0, sizeof(*vm));
}

int vm_end_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < VMS_MAX; i++) {
        if (running[i])
            vm_end(running[i]);
    }
    return 0;
}

/* ------------------------------------------------------------ heartbeats */

unsigned long vm_beats(const struct vm *vm)
{
    FILE *file = fopen(vm->serial, "re");
    char line[256];
    unsigned long count = 0;
    while (file && fgets(line, sizeof(line), file))
        count += !strncmp(line, "beat ", 5) && strchr(line, '\n');
    if (file)
        fclose(file);
    return count;
}

void vm_wait_beats(const struct vm *vm, unsigned long count)
{
    uint64_t deadline = vm_soon();
    while (vm_beats(vm) < count) {
        if (ibx_now_ns() >= deadline)
            fail_msg("%lu heartbeats of %lu came", vm_beats(vm), count);
        poll(NULL, 0, LOOK_MS);
    }
}

/* What they have printed up to now: a guest that goes on may well be faster than who checks it. */
int vm_expect(const struct vm *const *vms, const char *options, char *said, size_t size)
{
    char command[4096] = "(:";
    for (size_t n; *vms; vms++) {
        struct stat st;
        assert_int_equal(stat((*vms)->serial, &st), 0);
        n = strlen(command);
        snprintf(command + n, sizeof(command) - n, "; head -c %lld %s", (long long)st.st_size,
                 (*vms)->serial);
    }
    size_t used = strlen(command);
    snprintf(command + used, sizeof(command) - used, ") | %s %s", expect, options);
    FILE *pipe = popen(command, "re");
    assert_non_null(pipe);
    said[0] = '\0';
    if (!fgets(said, (int)size, pipe))
        said[0] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool vm_printed(const struct vm *vm, const char *words)
{
    static char text[1 << 20];
    FILE *file = fopen(vm->serial, "re");
    const size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file)
        fclose(file);
    text[n] = '\0';
    return strstr(text, words) != NULL;
}

void vm_await_words(const struct vm *vm, const char *words)
{
    const uint64_t deadline = vm_soon();
    while (!vm_printed(vm, words)) {
        if (ibx_now_ns() >= deadline)
            fail_msg("the guest did not print %s", words);
        poll(NULL, 0, LOOK_MS);
    }
}

/* ------------------------------------------------------------ commands */

json_t *vm_run(struct vm *vm, const char *command, json_t *arguments)
{
    json_t *result;
    uint64_t deadline = vm_soon();
    vm_ok(ibx_qmp_execute(vm->qmp, command, arguments, &result, deadline, &vm_error));
    return result;
}

void vm_do(struct vm *vm, const char *command, json_t *arguments)
{
    json_decref(vm_run(vm, command, arguments));
}

void vm_hmp(struct vm *vm, const char *line, char *text, size_t size)
{
    json_t *result = vm_run(vm, "human-monitor-command", json_pack("{s:s}", "command-line", line));
    snprintf(text, size, "%s", json_string_value(result));
    json_decref(result);
}

void vm_hmp_blocks(struct vm *vm, const char *line)
{
    vm_refused(ibx_qmp_execute(vm->qmp, "human-monitor-command",
                               json_pack("{s:s}", "command-line", line), NULL, 0, &vm_error),
               -ETIMEDOUT, "did not answer");
}

json_t *vm_event(struct vm *vm, const char *name, const char *status)
{
    const uint64_t deadline = vm_soon();
    for (;;) {
        struct pollfd p = {.fd = ibx_qmp_fd(vm->qmp), .events = POLLIN};
        json_t *event;
        vm_ok(ibx_qmp_pump(vm->qmp, &vm_error));
        while ((event = ibx_qmp_event_next(vm->qmp)) && !ibx_vm_event_is(event, name, status))
            json_decref(event);
        if (event)
            return event;
        if (poll(&p, 1, ibx_ms_until(deadline)) == 0)
            fail_msg("QEMU did not report %s %s", name, status ? status : "");
    }
}

void vm_balloon(struct vm *vm, json_int_t bytes)
{
    json_int_t actual = 0;
    vm_do(vm, "balloon", json_pack("{s:I}", "value", bytes));
    while (actual != bytes) {
        json_t *event = vm_event(vm, "BALLOON_CHANGE", NULL);
        actual = json_integer_value(json_object_get(json_object_get(event, "data"), "actual"));
        json_decref(event);
    }
}

bool vm_runs(struct vm *vm)
{
    json_t *status = vm_run(vm, "query-status", NULL);
    const bool runs = json_is_true(json_object_get(status, "running"));
    json_decref(status);
    return runs;
}

bool vm_memory_has(const struct vm *vm, const char *file, const char *flag)
{
    char path[64], line[PATH_MAX + 128];
    bool in_file = false, has = false;
    unsigned long start, end;
    snprintf(path, sizeof(path), "/proc/%d/smaps", (int)vm->pid);
    FILE *smaps = fopen(path, "re");
    assert_non_null(smaps);
    while (fgets(line, sizeof(line), smaps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            in_file = strstr(line, file);
        else if (in_file && !strncmp(line, "VmFlags:", 8))
            has |= strstr(line, flag) != NULL;
    }
    fclose(smaps);
    return has;
}
