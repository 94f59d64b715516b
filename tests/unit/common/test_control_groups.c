/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process joins the control groups of another one, as a watchdog those of QEMU. Needs a cgroup v2
 * hierarchy in which this user may make groups. */
#include "common/control_groups.h"
#include "tests/fixtures/in_child.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "/sys/fs/cgroup"

static char group[128], threads[160]; /* the second one is in the first one */

static bool put(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    const bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

static int begin(void **state)
{
    (void)state;
    const char *mount =
        access(ROOT "/unified/cgroup.procs", F_OK) ? ROOT : ROOT "/unified"; /* of v2 */
    snprintf(group, sizeof(group), "%s/ibx-test-%d", mount, (int)getpid());
    snprintf(threads, sizeof(threads), "%s/threads", group);
    if (mkdir(group, 0700))
        group[0] = '\0';
    else if (mkdir(threads, 0700))
        threads[0] = '\0';
    return 0;
}

static int end(void **state)
{
    (void)state;
    if (group[0])
        rmdir(threads);
    return group[0] && rmdir(group);
}

/* A process in that group, until it is killed. 0: none can be there. */
static pid_t begin_in(bool threaded)
{
    char number[16];
    const pid_t pid = fork_bound();
    if (!pid)
        for (;;)
            pause();
    snprintf(number, sizeof(number), "%d", (int)pid);
    if (put(group, "cgroup.procs", number) &&
        (!threaded ||
         (put(threads, "cgroup.type", "threaded") && put(threads, "cgroup.threads", number))))
        return pid;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return 0;
}

static bool is_in(const char *end)
{
    char text[4096] = "";
    const int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    text[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
    const char *found = strstr(text, end);
    return found && found[strlen(end)] == '\n';
}

static pid_t other;
static const char *name; /* of its group */

static int joins(void)
{
    if (is_in(name))
        return 2;
    for (unsigned i = 0; i < 2; i++) /* the second time it is there already */
        if (ibx_control_groups_join(ROOT, other) || !is_in(name))
            return 3;
    return 0;
}

static void joined(bool threaded)
{
    other = group[0] && (threads[0] || !threaded) ? begin_in(threaded) : 0;
    if (!other)
        skip();
    name = strrchr(group, '/');
    if (threaded)
        name = "/threads";
    passes_in_child(joins);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

static void test_a_group_of_processes(NO_STATE)
{
    joined(false);
}

/* QEMU's main thread is in a group of threads, where libvirt limits them. */
static void test_a_group_of_threads(NO_STATE)
{
    joined(true);
}

static void test_a_process_that_has_ended(NO_STATE)
{
    const pid_t ended = fork_bound();
    if (!ended)
        _exit(0);
    waitpid(ended, NULL, 0);
    assert_int_equal(ibx_control_groups_join(ROOT, ended), -ENOENT);
}

/* No group is mounted there. */
static void test_groups_that_are_not_to_be_seen(NO_STATE)
{
    other = group[0] ? begin_in(false) : 0;
    if (!other)
        skip();
    assert_int_equal(ibx_control_groups_join("/nowhere", other), -ENOENT);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_group_of_processes),
        cmocka_unit_test(test_a_process_that_has_ended),
        cmocka_unit_test(test_groups_that_are_not_to_be_seen),
        cmocka_unit_test(test_a_group_of_threads), /* the last: the group is no more as it was */
    };
    return cmocka_run_group_tests(tests, begin, end);
}
