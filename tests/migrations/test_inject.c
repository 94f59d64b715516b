/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* System calls in other processes: a child that notices every disturbance, and real QEMUs. */
#include "migrate/qemu/qemu.h"
#include "tests/fixtures/denied_call.h"
#include "tests/fixtures/vm.h"

#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define INJECTIONS 400

/* ------------------------------------------------------------ a child that notices */

/* Shared with the child. */
struct shared {
    atomic_int wrong; /* a line number: what went wrong there */
    atomic_uint loops, alarms;
    atomic_bool enough;
};

static struct shared *shared;

static void on_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&shared->alarms, 1);
}

static void require(bool good, int line)
{
    if (!good) {
        atomic_store(&shared->wrong, line);
        _exit(1);
    }
}

/* Waits in every way that the kernel restarts differently (-ERESTARTSYS, NOINTR, NOHAND,
 * RESTART_BLOCK) or spins with live registers; none may see EINTR, nor too short a wait. */
static void wait_in_every_way(int reader, int writer)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    uint64_t from = ibx_now_ns();
    require(!nanosleep(&ms, NULL) && ibx_now_ns() - from >= 1000000, __LINE__);
    from = ibx_now_ns();
    require(!poll(NULL, 0, 1) && ibx_now_ns() - from >= 1000000, __LINE__);
    from = ibx_now_ns();
    require(!ppoll(NULL, 0, &ms, NULL) && ibx_now_ns() - from >= 1000000, __LINE__);
    char c = 'x';
    require(write(writer, &c, 1) == 1 && read(reader, &c, 1) == 1 && c == 'x', __LINE__);
    volatile double x = 1.0;
    unsigned long sum = 0;
    for (unsigned long i = 0; i < 200000; i++) {
        sum += i;
        x = x * 1.0000001;
    }
    require(sum == 19999900000ul && x > 1.0 && x < 1.03, __LINE__);
}

/* Keeps a pattern in all of two vector registers while a loop runs: a system call of the thread's
 * own would clear what SVE adds to them. */
static void keep_vectors(void)
{
#ifdef __aarch64__
    uint64_t loops = 200000, different = 1, lanes = 0;
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE))
        return;
    __asm__ volatile(".arch_extension sve\n"
                     "ptrue p0.b\n"
                     "mov z7.b, #7\n"
                     "mov z31.b, #9\n"
                     "1: subs %0, %0, #1\n"
                     "b.ne 1b\n"
                     "cmpne p1.b, p0/z, z7.b, #7\n"
                     "cmpne p2.b, p0/z, z31.b, #9\n"
                     "orr p1.b, p0/z, p1.b, p2.b\n"
                     "cntp %1, p0, p1.b\n"
                     "cntp %2, p0, p0.b\n"
                     : "+r"(loops), "=r"(different), "=r"(lanes)
                     :
                     : "v7", "v31", "cc");
    require(!different && lanes >= 16, __LINE__);
#endif
}

static void child_run(bool alarms)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int pair[2];
    require(!pipe(pair), __LINE__);
    if (alarms) {
        /* Handlers with SA_RESTART, so that only what the kernel never restarts could return EINTR;
         * those calls are left out. */
        struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 700}, {0, 700}}, NULL);
    }
    while (!atomic_load(&shared->enough)) {
        if (alarms) {
            char c = 'y';
            require(write(pair[1], &c, 1) == 1 && read(pair[0], &c, 1) == 1 && c == 'y', __LINE__);
        } else {
            wait_in_every_way(pair[0], pair[1]);
            keep_vectors();
        }
        atomic_fetch_add(&shared->loops, 1);
    }
    _exit(0);
}

static pid_t child_start(bool alarms)
{
    memset(shared, 0, sizeof(*shared));
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        child_run(alarms);
    while (!atomic_load(&shared->loops))
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    return child;
}

static void child_ends_well(pid_t child)
{
    int status;
    atomic_store(&shared->enough, true);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        fail_msg("the child ended with %#x, line %d", (unsigned)status,
                 atomic_load(&shared->wrong));
}

static void disturb(pid_t child, unsigned times)
{
    static const uint64_t none[6];
    for (unsigned i = 0; i < times; i++) {
        int64_t result = 0;
        vm_ok(ibx_inject_syscall(child, SYS_getppid, none, &result, vm_soon(), &vm_error));
        assert_int_equal(result, getpid());
    }
}

static void test_child_notices_nothing(void)
{
    pid_t child = child_start(false);
    disturb(child, INJECTIONS);
    unsigned loops = atomic_load(&shared->loops);
    while (atomic_load(&shared->loops) < loops + 2)
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    child_ends_well(child);
}

static void test_signals_are_kept(void)
{
    pid_t child = child_start(true);
    unsigned before = atomic_load(&shared->alarms);
    disturb(child, INJECTIONS);
    while (atomic_load(&shared->alarms) <= before)
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    /* A signal that comes now is held by nothing, either. */
    kill(child, SIGALRM);
    child_ends_well(child);
}

static void test_errors_come_back(void)
{
    pid_t child = child_start(false);
    const uint64_t arguments[6] = {12345};
    int64_t result = 0;
    vm_ok(ibx_inject_syscall(child, SYS_close, arguments, &result, vm_soon(), &vm_error));
    assert_int_equal(result, -EBADF);
    child_ends_well(child);
}

static void refused(pid_t pid, int code, const char *words, uint64_t deadline_ns)
{
    static const uint64_t none[6];
    int64_t result = 77;
    memset(&vm_error, 0, sizeof(vm_error));
    vm_refused(ibx_inject_syscall(pid, SYS_getppid, none, &result, deadline_ns, &vm_error), code,
               words);
    assert_int_equal(result, 77);
}

static void test_stopped_by_a_signal(void)
{
    pid_t child = child_start(false);
    int status;
    kill(child, SIGSTOP);
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    refused(child, -EBUSY, "kill -CONT", ibx_deadline_in_ms(VM_WAIT_MS));
    kill(child, SIGCONT);
    child_ends_well(child);
}

static void test_traced_already(void)
{
    pid_t child = child_start(false);
    assert_int_equal(ptrace(PTRACE_SEIZE, child, NULL, NULL), 0);
    refused(child, -EBUSY, "end that debugger first", ibx_deadline_in_ms(VM_WAIT_MS));
    int status;
    assert_int_equal(ptrace(PTRACE_INTERRUPT, child, NULL, NULL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(ptrace(PTRACE_DETACH, child, NULL, NULL), 0);
    child_ends_well(child);
}

/* As a container's profile does. No right helps there. */
static void test_denied_by_a_profile(void)
{
    static const uint64_t none[6];
    static const int codes[] = {EPERM, ENOSYS};
    pid_t child = child_start(false);
    for (unsigned i = 0; i < 2; i++) {
        const pid_t tool = fork();
        assert_true(tool >= 0);
        if (!tool) {
            struct ibx_error why = {0};
            int64_t result;
            if (!deny_call(SYS_ptrace, codes[i]))
                _exit(2);
            const int rc = ibx_inject_syscall(child, SYS_getppid, none, &result, vm_soon(), &why);
            fprintf(stderr, "%s\n", why.message);
            _exit(rc == -codes[i] && strstr(why.message, "a seccomp profile denies ptrace (") &&
                          !strstr(why.message, "as root")
                      ? 0
                      : 3);
        }
        int status;
        assert_int_equal(waitpid(tool, &status, 0), tool);
        assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    }
    child_ends_well(child);
}

/* A thread that runs code of 32 bits has other registers. */
static void test_code_of_32_bits(void)
{
#ifdef __x86_64__
    enum { THERE = 64, USER32_CS = 0x23 }; /* THERE: where it writes that it has come */
    unsigned rights, has;                  /* a guest of PVM has no such segment */
    __asm__("larl %2, %0" : "=r"(rights), "=@ccz"(has) : "r"(USER32_CS));
    if (!has)
        skip();
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_SHARED | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    const uint32_t at = (uint32_t)(uintptr_t)page, there = at + THERE;
    memcpy(page, "\xc6\x05....\x01\xeb\xfe", 9); /* movb $1, there; 1: jmp 1b */
    memcpy(page + 2, &there, sizeof(there));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        const struct {
            uint32_t offset;
            uint16_t segment;
        } code = {at, USER32_CS};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        __asm__ volatile("movl %1, %%ds\nljmpl *%0" : : "m"(code), "r"(0x2b)); /* __USER_DS */
    }
    while (!*(volatile uint8_t *)(page + THERE))
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    for (unsigned i = 0; i < 3; i++)
        refused(child, -ENOTSUP, "is not a 64-bit program", ibx_deadline_in_ms(VM_WAIT_MS));
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    munmap(page, 4096);
#endif
}

static void test_nobody_there(void)
{
    pid_t child = fork();
    if (!child)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    refused(child, -ESRCH, "there is no process", ibx_deadline_in_ms(VM_WAIT_MS));
}

/* Runs `look` in a process of its own, as another user, at its parent, and returns the exit status.
 * With `hidden`, in a /proc that does not show processes of other users. */
static int seen_by_another_user(int (*look)(pid_t pid), bool hidden)
{
    prctl(PR_SET_DUMPABLE, 0);
    pid_t looker = fork();
    assert_true(looker >= 0);
    if (!looker) {
        if (hidden && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
                       mount("proc", "/proc", "proc", 0, "hidepid=2")))
            _exit(77);
        _exit(!getuid() && setresuid(65534, 65534, 65534) ? 2 : look(getppid()));
    }
    int status;
    assert_int_equal(waitpid(looker, &status, 0), looker);
    prctl(PR_SET_DUMPABLE, 1);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Whether the call is refused because a right is missing, in a sentence with the remedy. */
static bool denied(int rc, const struct ibx_error *why)
{
    return rc == -EACCES && strstr(why->message, "/proc does not show whether") &&
           strstr(why->message, "Permission denied") &&
           strstr(why->message, "; run this tool as root or with CAP_SYS_PTRACE");
}

static int look_for_awaited_pages(pid_t pid)
{
    struct ibx_error why = {0};
    return denied(ibx_uffd_awaits_pages(pid, &why), &why) ? 0 : 3;
}

/* The one that a tool has noted, and any. */
static int look_for_userfaultfds(pid_t pid)
{
    struct ibx_error why = {0};
    struct ibx_uffd uffd;
    if (!denied(ibx_uffd_take(pid, 0, &uffd, &why), &why))
        return 3;
    return denied(ibx_uffd_take(pid, -1, &uffd, &why), &why) ? 0 : 4;
}

/* Another user's process, or one that lets nobody look, may have a userfaultfd, and memory that
 * awaits pages. */
static void test_what_nobody_sees(void)
{
    struct ibx_error why = {0};
    struct ibx_uffd uffd;
    assert_int_equal(ibx_uffd_awaits_pages(getpid(), &why), 0);
    vm_refused(ibx_uffd_take(getpid(), 0, &uffd, &vm_error), -ENOENT, "has no userfaultfd");
    assert_int_equal(seen_by_another_user(look_for_awaited_pages, false), 0);
    assert_int_equal(seen_by_another_user(look_for_userfaultfds, false), 0);
    const int hidden = seen_by_another_user(look_for_awaited_pages, true);
    if (hidden == 77) {
        print_message("not tested with hidepid: /proc cannot be mounted here\n");
    } else {
        assert_int_equal(hidden, 0);
        assert_int_equal(seen_by_another_user(look_for_userfaultfds, true), 0);
    }
    pid_t ended = fork();
    if (!ended)
        _exit(0);
    assert_int_equal(waitpid(ended, NULL, 0), ended);
    assert_int_equal(ibx_uffd_awaits_pages(ended, &why), -ESRCH);
    vm_refused(ibx_uffd_take(ended, 0, &uffd, &vm_error), -ENOENT, "has no userfaultfd");
}

static bool is_that_page(void *page, uint64_t start, uint64_t end, const char *flags)
{
    assert_true(start && !(start % 4096) && start < end && flags[0] == ' ');
    return start == (uintptr_t)page && end - start == 4096;
}

/* Each with its bounds, also when other lines of it begin with what could be a number. */
static void test_mappings_are_found(void)
{
    char *pages = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(mprotect(pages + 4096, 4096, PROT_READ | PROT_WRITE), 0);
    pages[4096] = 1;
    assert_int_equal(ibx_proc_find_flags(getpid(), is_that_page, pages + 4096), 1);
    assert_int_equal(ibx_proc_find_flags(getpid(), is_that_page, pages + 1), 0);
    munmap(pages, 3 * 4096);
}

/* ... which vfork makes for us: a parent that cannot stop, until its child has been told to go. */
struct unstoppable {
    pid_t pid;
    int ready[2], go[2];
};

static void unstoppable_start(struct unstoppable *u)
{
    char c = 'v';
    assert_int_equal(pipe2(u->ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(u->go, O_CLOEXEC), 0);
    u->pid = fork();
    assert_true(u->pid >= 0);
    if (!u->pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(u->ready[0]);
        close(u->go[1]);
        pid_t child = vfork();
        if (!child) {
            (void)!write(u->ready[1], &c, 1);
            (void)!read(u->go[0], &c, 1); /* or the end, when the test has failed */
            _exit(0);
        }
        _exit(child > 0 ? 23 : 1);
    }
    assert_int_equal(read(u->ready[0], &c, 1), 1);
}

static void unstoppable_goes_on_unharmed(struct unstoppable *u)
{
    int status;
    assert_int_equal(write(u->go[1], "g", 1), 1);
    assert_int_equal(waitpid(u->pid, &status, 0), u->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 23);
    for (unsigned i = 0; i < 2; i++) {
        close(u->ready[i]);
        close(u->go[i]);
    }
}

static void test_never_stops(void)
{
    struct unstoppable u;
    unstoppable_start(&u);
    refused(u.pid, -ETIMEDOUT, "did not come to a stop", ibx_deadline_in_ms(50));
    unstoppable_goes_on_unharmed(&u);
}

/* Kills the other child of this process, as the kernel does when memory is short. */
static void *kill_the_tracer(void *argument)
{
    const pid_t other = *(const pid_t *)argument;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    for (int found = 0; !found;) {
        FILE *children = fopen(path, "r");
        for (int pid; children && fscanf(children, "%d", &pid) == 1;)
            found = pid != other ? pid : found;
        if (children)
            fclose(children);
        if (found)
            kill(found, SIGKILL);
    }
    return NULL;
}

/* A call that was not made is not taken for one that returned 0. */
static void test_killed_tracer(void)
{
    struct unstoppable u;
    pthread_t killer;
    unstoppable_start(&u);
    assert_int_equal(pthread_create(&killer, NULL, kill_the_tracer, &u.pid), 0);
    refused(u.pid, -EIO, "was killed", ibx_deadline_in_ms(VM_WAIT_MS));
    pthread_join(killer, NULL);
    unstoppable_goes_on_unharmed(&u);
}

static char byte; /* that the child is to read */

/* Whether the main thread of `pid` is inside of read() of that descriptor. */
static bool reads(pid_t pid, int fd)
{
    char path[64], text[128] = "", call[64];
    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
    snprintf(call, sizeof(call), "%d 0x%x %p 0x1 ", SYS_read, (unsigned)fd, (void *)&byte);
    FILE *file = fopen(path, "re");
    const bool read = file && fgets(text, sizeof(text), file);
    if (file)
        fclose(file);
    return read && !strncmp(text, call, strlen(call));
}

/* A tool is killed while QEMU executes its call, which lasts until then: no register of QEMU is
 * lost. */
static void test_tool_is_killed(void)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const uint64_t arguments[6] = {(uint64_t)ends[0], (uintptr_t)&byte, 1};
    pid_t child = child_start(false);
    pid_t tool = fork();
    assert_true(tool >= 0);
    if (!tool) {
        int64_t result;
        setpgid(0, 0);
        ibx_inject_syscall(child, SYS_read, arguments, &result, vm_soon(), &vm_error);
        _exit(1);
    }
    const uint64_t deadline = vm_soon();
    while (!reads(child, ends[0])) {
        assert_true(ibx_now_ns() < deadline);
        poll(NULL, 0, 1);
    }
    kill(-tool, SIGKILL);
    assert_int_equal(waitpid(tool, NULL, 0), tool);
    assert_int_equal(write(ends[1], "x", 1), 1);
    close(ends[0]);
    close(ends[1]);
    const unsigned loops = atomic_load(&shared->loops);
    while (atomic_load(&shared->loops) < loops + 2)
        assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    child_ends_well(child);
}

/* ------------------------------------------------------------ QEMU */

static struct vm vm;

/* Lets QEMU's monitor read guest memory that is missing: the fault reaches us, and what we put
 * there is what it prints. */
static void serves_a_fault(const struct ibx_uffd *uffd)
{
    struct ibx_guest_ram ram;
    vm_ok(ibx_guest_ram_find(vm.qmp, true, &ram, vm_soon(), &vm_error));
    const struct ibx_guest_block *block = &ram.blocks[0];
    struct uffdio_api api = {.api = UFFD_API};
    assert_int_equal(ioctl(uffd->fd, UFFDIO_API, &api), 0);
    assert_int_equal(
        fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)block->size), 0);
    struct uffdio_register range = {.range = {block->address, block->size},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    assert_int_equal(ioctl(uffd->fd, UFFDIO_REGISTER, &range), 0);
    vm_hmp_blocks(&vm, "xp /1xw 0x1000010");
    struct pollfd p = {.fd = uffd->fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, (int)VM_WAIT_MS), 1);
    struct uffd_msg message;
    assert_int_equal(read(uffd->fd, &message, sizeof(message)), sizeof(message));
    assert_int_equal(message.event, UFFD_EVENT_PAGEFAULT);
    uint64_t page = message.arg.pagefault.address & ~4095ull;
    assert_int_equal(page, block->address + 0x1000000);
    uint32_t words[1024];
    for (uint32_t i = 0; i < 1024; i++)
        words[i] = 0xabcd0000 + i;
    struct uffdio_copy copy = {.dst = page, .src = (uintptr_t)words, .len = sizeof(words)};
    assert_int_equal(ioctl(uffd->fd, UFFDIO_COPY, &copy), 0);
    char text[256];
    vm_hmp(&vm, "xp /1xw 0x1000010", text, sizeof(text));
    assert_non_null(strstr(text, "0xabcd0004"));
    ibx_guest_ram_fini(&ram);
}

static bool qemu_has(int remote)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)vm.pid, remote);
    return !access(path, F_OK);
}

static void closes(struct ibx_uffd *uffd)
{
    int remote = uffd->remote;
    assert_true(qemu_has(remote));
    struct ibx_uffd other = *uffd; /* by a number that QEMU has given to something else */
    other.remote = 0;
    vm_refused(ibx_uffd_close_in_qemu(&other, vm_soon(), &vm_error), -EBADF, "is not the");
    assert_true(qemu_has(0));
    vm_ok(ibx_uffd_close_in_qemu(uffd, vm_soon(), &vm_error));
    assert_int_equal(uffd->fd, -1);
    assert_false(qemu_has(remote));
    vm_do(&vm, "query-status", NULL);
    vm_refused(ibx_uffd_take(vm.pid, -1, uffd, &vm_error), -ENOENT, "has no userfaultfd");
    char text[256]; /* nobody is asked any more: zeros */
    vm_hmp(&vm, "xp /1xw 0x2000000", text, sizeof(text));
    assert_non_null(strstr(text, "0x00000000"));
}

static void test_qemu_by_system_call(void)
{
    vm_start(&vm, &(struct vm_options){.incoming = true});
    struct ibx_uffd uffd, again;
    enum ibx_uffd_way way;
    vm_ok(ibx_uffd_possible(vm.pid, &way, &vm_error));
    assert_int_equal(way, IBX_UFFD_SYSCALL);
    vm_refused(ibx_uffd_take(vm.pid, -1, &uffd, &vm_error), -ENOENT, "has no userfaultfd");
    vm_ok(ibx_uffd_make(vm.pid, vm.qmp, IBX_UFFD_ANY, &uffd, vm_soon(), &vm_error));
    assert_int_equal(uffd.way, IBX_UFFD_SYSCALL);
    serves_a_fault(&uffd);

    /* A second instance of the tool finds the same one. */
    vm_ok(ibx_uffd_take(vm.pid, -1, &again, &vm_error));
    assert_int_equal(again.remote, uffd.remote);
    assert_int_equal(syscall(SYS_kcmp, getpid(), getpid(), 0 /* KCMP_FILE */, uffd.fd, again.fd),
                     0);
    close(again.fd);
    vm_refused(ibx_uffd_take(vm.pid, 0, &again, &vm_error), -ENOENT, "has no userfaultfd");
    closes(&uffd);
}

static void test_sandboxed_qemu_by_device(void)
{
    if (access("/dev/userfaultfd", R_OK | W_OK))
        skip();
    vm_start(&vm, &(struct vm_options){
                      .incoming = true,
                      .nobody = true,
                      .extra = {"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,"
                                            "resourcecontrol=deny"}});
    struct ibx_uffd uffd;
    vm_refused(ibx_uffd_make(vm.pid, NULL, IBX_UFFD_ANY, &uffd, vm_soon(), &vm_error), -EINVAL,
               "over QMP only");
    vm_ok(ibx_uffd_make(vm.pid, vm.qmp, IBX_UFFD_ANY, &uffd, vm_soon(), &vm_error));
    assert_int_equal(uffd.way, IBX_UFFD_DEVICE);
    serves_a_fault(&uffd);
    closes(&uffd);
}

static void skip_unless_the_sysctl_is_0(void)
{
    int fd = open("/proc/sys/vm/unprivileged_userfaultfd", O_RDONLY | O_CLOEXEC);
    char value = '1';
    if (fd < 0 || read(fd, &value, 1) != 1 || value != '0')
        skip();
    close(fd);
}

/* All capabilities there, and none that counts for the host. */
static void test_root_of_a_user_namespace(void)
{
    skip_unless_the_sysctl_is_0();
    enum ibx_uffd_way way = IBX_UFFD_ANY;
    int status;
    const pid_t child = fork();
    if (!child)
        _exit(unshare(CLONE_NEWUSER) || raise(SIGSTOP));
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (!WIFSTOPPED(status))
        skip();
    const int rc = ibx_uffd_possible(child, &way, &vm_error);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (access("/dev/userfaultfd", R_OK | W_OK))
        vm_refused(rc, -errno, "is not allowed to create a userfaultfd");
    else
        assert_int_equal(way, IBX_UFFD_DEVICE);
}

static void test_unprivileged_qemu_may_not(void)
{
    skip_unless_the_sysctl_is_0();
    vm_start(&vm, &(struct vm_options){.incoming = true, .nobody = true});
    struct ibx_uffd uffd = {.fd = 77};
    vm_refused(ibx_uffd_make(vm.pid, vm.qmp, IBX_UFFD_SYSCALL, &uffd, vm_soon(), &vm_error), -EPERM,
               "is not allowed to create a userfaultfd");
    assert_int_equal(uffd.fd, 77);
    vm_do(&vm, "query-status", NULL);
}

/* A running VM of two vCPUs, disturbed all the time, computes what it should. */
static void test_running_vm_goes_on(void)
{
    vm_start(&vm, &(struct vm_options){.two = true, .append = "cpus=2 beat=64"});
    vm_wait_beats(&vm, 4);
    static const uint64_t none[6];
    for (unsigned i = 0; i < 100; i++) {
        int64_t result;
        vm_ok(ibx_inject_syscall(vm.pid, SYS_getppid, none, &result, vm_soon(), &vm_error));
        assert_int_equal(result, getpid());
        vm_do(&vm, "query-status", NULL);
    }
    vm_wait_beats(&vm, vm_beats(&vm) + 20);
    char said[256];
    if (vm_expect((const struct vm *[]){&vm, NULL}, "cpus=2 beat=64", said, sizeof(said)))
        fail_msg("%s", said);
}

int main(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    static const struct vm_test tests[] = {VM_TEST(test_child_notices_nothing),
                                           VM_TEST(test_signals_are_kept),
                                           VM_TEST(test_errors_come_back),
                                           VM_TEST(test_stopped_by_a_signal),
                                           VM_TEST(test_traced_already),
                                           VM_TEST(test_denied_by_a_profile),
                                           VM_TEST(test_code_of_32_bits),
                                           VM_TEST(test_nobody_there),
                                           VM_TEST(test_what_nobody_sees),
                                           VM_TEST(test_mappings_are_found),
                                           VM_TEST(test_never_stops),
                                           VM_TEST(test_killed_tracer),
                                           VM_TEST(test_tool_is_killed),
                                           VM_TEST(test_qemu_by_system_call),
                                           VM_TEST(test_sandboxed_qemu_by_device),
                                           VM_TEST(test_root_of_a_user_namespace),
                                           VM_TEST(test_unprivileged_qemu_may_not),
                                           VM_TEST(test_running_vm_goes_on),
                                           {0}};
    return vm_tests(tests, vm_end_all);
}
