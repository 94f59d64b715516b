/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The socket at which libvirt's connection waits until the destination is ready. */
#include "migrate/common/libvirt.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* if the name existed before the socket listens, some attempts would be refused */
#define TIMES 300
#define OTHER 12345 /* another user's id */

static char folder[] = "/tmp/ibx-gate-XXXXXX", path[64];

static int try_to_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
    close(fd);
    return rc;
}

/* Connects as soon as the socket exists. */
static void *libvirt(void *result)
{
    int rc;
    while ((rc = try_to_connect()) == -ENOENT)
        ;
    atomic_store((atomic_int *)result, rc);
    return NULL;
}

static void test_connections_wait_for_the_destination(NO_STATE)
{
    for (unsigned i = 0; i < TIMES; i++) {
        struct ibx_gate gate;
        struct ibx_error err = {0};
        atomic_int first;
        pthread_t thread;
        ibx_gate_init(&gate, path);
        assert_int_equal(pthread_create(&thread, NULL, libvirt, &first), 0);
        assert_int_equal(ibx_gate_shut(&gate, getpid(), &err), 0);
        pthread_join(thread, NULL);
        assert_int_equal(atomic_load(&first), -EAGAIN); /* a blocking connection would wait */
        assert_int_equal(ibx_gate_let(&gate, &err), 0);
        assert_int_equal(try_to_connect(), 0);
        ibx_gate_close(&gate);
        assert_int_equal(try_to_connect(), -ENOENT);
    }
}

static void refused(int code, const char *words)
{
    struct ibx_gate gate;
    struct ibx_error err = {0};
    ibx_gate_init(&gate, path);
    assert_int_equal(ibx_gate_shut(&gate, getpid(), &err), code);
    assert_non_null(strstr(err.message, words));
    ibx_gate_close(&gate);
}

static void test_existing_file_stays(NO_STATE)
{
    struct ibx_gate other;
    struct stat st;
    char early[64];
    close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    refused(-EEXIST, "is nothing that this ib-migrate may replace: remove it, or use another path");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(unlink(path), 0);
    ibx_gate_init(&other, path);
    assert_int_equal(ibx_gate_shut(&other, getpid(), NULL), 0);
    refused(-EADDRINUSE, "another process listens");
    assert_int_equal(try_to_connect(), -EAGAIN);
    ibx_gate_close(&other);
    snprintf(early, sizeof(early), "%s/.ibx-%d", folder, (int)getpid());
    close(open(early, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); /* the temporary name of the socket */
    refused(-EADDRINUSE, "no socket at");
    assert_int_equal(unlink(early), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else is left */
    assert_int_equal(mkdir(folder, 0700), 0);
}

/* ------------------------------------------------------------ another user's folder */

static const char *decoy; /* it takes the place of the socket that has just been made */

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog)
{
    char early[64];
    snprintf(early, sizeof(early), "%s/.ibx-%d", folder, (int)getpid());
    if (decoy)
        assert_true(!unlink(early) && !link(decoy, early));
    return __real_listen(fd, backlog);
}

/* Starts a process of another user, as which QEMU runs. It ends with this one, which it would not
 * if it changed its user later. */
static pid_t start_other(void)
{
    int status;
    const pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (!pid && !setresuid(OTHER, OTHER, OTHER) && !prctl(PR_SET_PDEATHSIG, SIGKILL) &&
        getppid() == parent)
        raise(SIGSTOP);
    if (!pid)
        _exit(1);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (!WIFSTOPPED(status)) /* this user has no other ids */
        skip();
    return pid;
}

static uid_t owner_of(const char *of)
{
    struct stat st;
    assert_int_equal(lstat(of, &st), 0);
    return st.st_uid;
}

/* QEMU's user, who may write to the folder, puts another service's socket there, by a hard link
 * (without fs.protected_hardlinks). */
static void test_no_other_socket_is_given_away(NO_STATE)
{
    struct ibx_gate service, gate;
    char other[64];
    if (geteuid())
        skip();
    const pid_t qemu = start_other();
    snprintf(other, sizeof(other), "%s/service.sock", folder);
    ibx_gate_init(&service, other);
    assert_int_equal(ibx_gate_shut(&service, getpid(), NULL), 0);
    assert_int_equal(ibx_gate_let(&service, NULL), 0);
    ibx_gate_init(&gate, path);
    assert_int_equal(ibx_gate_shut(&gate, qemu, NULL), 0);
    assert_int_equal(owner_of(path), OTHER);
    ibx_gate_close(&gate);
    decoy = other;
    ibx_gate_init(&gate, path);
    ibx_gate_shut(&gate, qemu, NULL);
    decoy = NULL;
    assert_int_equal(owner_of(other), 0);
    ibx_gate_close(&gate);
    unlink(path);
    ibx_gate_close(&service);
    kill(qemu, SIGKILL);
    assert_int_equal(waitpid(qemu, NULL, 0), qemu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_connections_wait_for_the_destination),
                                       cmocka_unit_test(test_existing_file_stays),
                                       cmocka_unit_test(test_no_other_socket_is_given_away)};
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof(path), "%s/web.sock", folder);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
