/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds users who can change where a path leads. Only root can create files that others own, so
 * most cases need root. */
#include "common/path_check.h"
#include "common/file_check.h"
#include "common/rights.h"
#include "tests/fixtures/in_child.h"
#include "tests/fixtures/open_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/auto_fs.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define OTHER 12345

static char folder[] = "/tmp/ibx-path-XXXXXX";

static char *at(const char *name)
{
    static char paths[4][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return path;
}

static void make(const char *name, mode_t mode, uid_t owner)
{
    assert_int_equal(mkdir(at(name), mode), 0);
    assert_int_equal(chmod(at(name), mode), 0);
    assert_int_equal(chown(at(name), owner, (gid_t)-1), 0);
}

static void link_to(const char *target, const char *name, uid_t owner)
{
    assert_int_equal(symlink(target, at(name)), 0);
    assert_int_equal(lchown(at(name), owner, (gid_t)-1), 0);
}

static void write_file(const char *name)
{
    const int fd = open(at(name), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
}

/* Creates own/ and theirs/ with folders and files of root in them, and links of root and of
 * OTHER. */
static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    if (geteuid())
        return 0;
    assert_int_equal(chmod(folder, 0755), 0);
    make("own", 0755, 0);
    make("own/deep", 0755, 0);
    make("like-tmp", 01777, 0);
    make("like-tmp/own", 0755, 0);
    make("like-tmp/theirs", 0755, OTHER);
    make("like-tmp/theirs/own", 0755, 0);
    make("theirs", 0755, OTHER);
    make("theirs/own", 0755, 0);
    write_file("own/file");
    write_file("like-tmp/file");
    write_file("theirs/file");
    link_to("own/deep", "link", 0);
    link_to("theirs/own", "link-to-theirs", 0);
    link_to("../own/file", "like-tmp/own-link", 0);
    link_to("../own/file", "like-tmp/their-link", OTHER);
    link_to("loop", "loop", 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (!child) {
        execlp("rm", "rm", "-rf", folder, (char *)NULL);
        _exit(1);
    }
    return child > 0 && waitpid(child, NULL, 0) == child ? 0 : -1;
}

static void is_ours(const char *path)
{
    struct ibx_error err = {0};
    if (ibx_path_check("", path, &err))
        fail_msg("%s: %s", path, err.message);
}

static void is_theirs(const char *path, const char *why)
{
    struct ibx_error err = {0};
    const int rc = ibx_path_check("key file ", path, &err);
    if (rc != -EPERM || strncmp(err.message, "key file ", 9) != 0 || !strstr(err.message, path) ||
        !strstr(err.message, why))
        fail_msg("%s: %d, \"%s\", and not \"%s\"", path, rc, err.message, why);
}

static void test_own_paths_are_accepted(void **state)
{
    static const char *const names[] = {
        "",
        "own",
        "own/deep/",
        "own//deep/../file",
        "link",
        "link/new",
        "like-tmp/own",
        "like-tmp/own-link",
        "like-tmp/file",
        "theirs", /* the caller checks the last component itself */
        "no/such/way",
        "loop",
        "own/file/below",
    };
    char before[PATH_MAX];
    (void)state;
    if (geteuid())
        skip();
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        is_ours(at(names[i]));
    is_ours("/");
    is_ours("/etc/passwd");
    is_ours("/proc/self/fd/0");
    /* A user may own the folder in which the tests were started. */
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(folder), 0);
    is_ours("relative");
    assert_int_equal(chdir(before), 0);
}

static void test_paths_of_others_are_refused(void **state)
{
    char folder_of_theirs[PATH_MAX + 64], link_of_theirs[PATH_MAX + 64], before[PATH_MAX];
    (void)state;
    if (geteuid())
        skip();
    snprintf(folder_of_theirs, sizeof(folder_of_theirs),
             ": user %d owns %s/theirs on the path to it, and could replace the file: use a path "
             "that only user 0 or root can change",
             OTHER, folder);
    snprintf(link_of_theirs, sizeof(link_of_theirs), ": user %d owns a link in %s/like-tmp on the",
             OTHER, folder);
    is_theirs(at("theirs/file"), folder_of_theirs);
    is_theirs(at("theirs/own"), folder_of_theirs);
    is_theirs(at("theirs/own/file"), folder_of_theirs);
    is_theirs(at("theirs/new"), folder_of_theirs);
    is_theirs(at("own/../theirs/own/../../own"), folder_of_theirs);
    is_theirs(at("link-to-theirs"), folder_of_theirs);
    is_theirs(at("like-tmp/theirs/own"), "like-tmp/theirs on the path");
    is_theirs(at("like-tmp/their-link"), link_of_theirs);
    assert_non_null(getcwd(before, sizeof(before)));
    assert_int_equal(chdir(at("theirs")), 0);
    is_theirs("own", folder_of_theirs);
    is_theirs("file", folder_of_theirs);
    assert_int_equal(chdir(before), 0);
}

/* In a user namespace of root alone. */
static int check_among_few_users(void)
{
    struct ibx_error err = {0};
    const int map = unshare(CLONE_NEWUSER) ? -1 : open("/proc/self/uid_map", O_WRONLY | O_CLOEXEC);
    if (map < 0 || write(map, "0 0 1", 5) != 5)
        return CHILD_SKIPS;
    return ibx_path_check("", at("theirs/own/file"), &err) ? 1 : 0;
}

/* User 65534 stands for those whom a user namespace lacks, and is a user like others in the first
 * one. */
static void test_owners_whom_a_user_namespace_lacks(void **state)
{
    (void)state;
    if (geteuid() || !ibx_in_first_user_namespace())
        skip();
    make("nobodys", 0755, 65534);
    is_theirs(at("nobodys/file"), ": user 65534 owns ");
    passes_in_child(check_among_few_users);
}

/* What was opened on the way is closed again. */
static void test_descriptors_of_refused_paths(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    const int fds = open_fds();
    is_theirs(at("theirs/own/file"), ": user ");
    is_theirs(at("like-tmp/their-link"), ": user ");
    assert_int_equal(open_fds(), fds);
}

/* A user trusts that user's own folders. */
static void test_a_user_trusts_own_folders(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    if (geteuid())
        skip();
    assert_int_equal(seteuid(OTHER), 0);
    const int own = ibx_path_check("", at("theirs/file"), &err);
    const int links = ibx_path_check("", at("like-tmp/their-link"), &err);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(own, 0);
    assert_int_equal(links, 0);
}

/* A link of another user may lead to a file of root that contains text of that user. */
static void test_files_are_opened_by_trusted_paths(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    if (geteuid())
        skip();
    assert_int_equal(ibx_file_open(at("like-tmp/their-link"), IBX_FILE_KEY, &err), -EPERM);
    assert_int_equal(ibx_file_open(at("theirs/file"), IBX_FILE_CONFIGURATION, &err), -EPERM);
    const int fd = ibx_file_open(at("like-tmp/own-link"), IBX_FILE_KEY, &err);
    assert_true(fd >= 0);
    close(fd);
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

static bool late; /* somebody creates like-tmp/late just before it is opened */

/* If the path itself is opened, it has been checked before. */
int __wrap_open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    if (late && strstr(path, "like-tmp/late/")) {
        late = false;
        make("like-tmp/late", 0755, OTHER);
        link_to("../../own/file", "like-tmp/late/file", OTHER);
    }
    return __real_open64(path, flags, mode);
}

/* A path that led nowhere when it was checked is not opened later. */
static void test_path_created_after_the_check_is_not_opened(void **state)
{
    struct ibx_error err = {0};
    (void)state;
    if (geteuid())
        skip();
    late = true;
    assert_int_equal(ibx_file_open(at("like-tmp/late/file"), IBX_FILE_KEY, &err), -ENOENT);
    late = false;
}

/* A path like /dev/stdin, with which a shell passes an open file. */
static void test_files_that_are_already_open(void **state)
{
    struct ibx_error err = {0};
    char name[40], gone[40];
    (void)state;
    if (geteuid())
        skip();
    const int fd = open(at("own/file"), O_RDONLY | O_CLOEXEC);
    snprintf(name, sizeof(name), "/dev/fd/%d", fd);
    const int file = ibx_file_open(name, IBX_FILE_KEY, &err);
    write_file("own/gone");
    const int removed = open(at("own/gone"), O_RDONLY | O_CLOEXEC);
    assert_int_equal(unlink(at("own/gone")), 0);
    snprintf(gone, sizeof(gone), "/proc/self/fd/%d", removed);
    const int again = ibx_file_open(gone, IBX_FILE_KEY, &err);
    assert_true(fd >= 0 && file >= 0 && removed >= 0 && again >= 0);
    const int all[] = {fd, file, removed, again};
    for (unsigned i = 0; i < 4; i++)
        close(all[i]);
}

/* An access control list appears in the mode: the bits of the group are the most that it grants. */
static void test_access_control_lists(void **state)
{
    static const struct {
        uint16_t tag, right;
        uint32_t id;
    } entries[] = {
        /* the owner, one user, the group, the mask of all but the owner, everybody */
        {1, 6, UINT32_MAX},  {2, 4, OTHER},       {4, 0, UINT32_MAX},
        {16, 4, UINT32_MAX}, {32, 0, UINT32_MAX},
    };
    uint8_t list[4 + sizeof(entries)] = {2};
    struct ibx_error err = {0};
    (void)state;
    if (geteuid())
        skip();
    memcpy(list + 4, entries, sizeof(entries));
    write_file("listed");
    const int before = ibx_file_open(at("listed"), IBX_FILE_KEY, &err);
    assert_true(before >= 0);
    close(before);
    if (setxattr(at("listed"), "system.posix_acl_access", list, sizeof(list), 0))
        skip();
    assert_true(ibx_file_open(at("listed"), IBX_FILE_KEY, &err) < 0);
}

/* Writes the warning about a path to `text`. Returns its length. */
static ssize_t warning_about(const char *path, char *text, size_t size)
{
    struct ibx_error err = {0};
    const int before = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    const int log = memfd_create("log", MFD_CLOEXEC);
    assert_true(before >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
    const int rc = ibx_path_check("folder ", path, &err);
    dup2(before, STDERR_FILENO);
    close(before);
    const ssize_t n = pread(log, text, size - 1, 0);
    close(log);
    text[n > 0 ? n : 0] = '\0';
    assert_int_equal(rc, 0);
    return n;
}

/* Such folders are usual in containers: they are accepted, with one warning. */
static void test_folders_that_everybody_can_write(void **state)
{
    char text[1000], expected[1000];
    (void)state;
    assert_int_equal(mkdir(at("empty-dir"), 0700), 0);
    assert_int_equal(mkdir(at("empty-dir/own"), 0700), 0);
    assert_int_equal(warning_about(at("empty-dir/own"), text, sizeof(text)), 0);
    assert_int_equal(chmod(at("empty-dir"), 01777), 0);
    assert_int_equal(warning_about(at("empty-dir/own"), text, sizeof(text)), 0);
    assert_int_equal(chmod(at("empty-dir"), 0777), 0);
    assert_int_equal(warning_about(at("empty-dir"), text, sizeof(text)), 0);
    assert_true(warning_about(at("empty-dir/own"), text, sizeof(text)) > 0);
    snprintf(
        expected, sizeof(expected),
        "ibx: warn: %s/empty-dir has mode 0777, so others can replace folder %s/empty-dir/own: "
        "chmod go-w it, or chmod +t it if others need it\n",
        folder, folder);
    assert_string_equal(text, expected);
    assert_int_equal(warning_about(at("empty-dir/own"), text, sizeof(text)), 0);
}

/* -------------------------------------------------- folders that are mounted when they are used */

#define LOOK_S 20 /* time limit of the process that looks for the key */

/* The process that looks is not in the daemon's group, and only that group may enter the mounted
 * folder. */
static pid_t look_for_key(int kept)
{
    const pid_t child = fork();
    if (child)
        return child;
    setpgid(0, 0);
    alarm(LOOK_S);
    const int fd = ibx_file_open(at("auto/key"), IBX_FILE_KEY, NULL);
    close(kept);
    _exit(fd >= 0 ? 0 : 1);
}

/* Mounts what was asked for, as an automounter does. */
static bool answer(int requests, int mounted)
{
    union autofs_v5_packet_union packet;
    return read(requests, &packet, sizeof(packet)) > 0 &&
           !mount("none", at("auto"), "tmpfs", 0, "mode=0700") && (write_file("auto/key"), true) &&
           !ioctl(mounted, AUTOFS_IOC_READY, packet.v5_packet.wait_queue_token);
}

static int mount_when_used(void)
{
    int requests[2], ended[2], status = 0;
    char options[128];
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        setpgid(0, 0) || pipe(requests) || pipe(ended))
        return CHILD_SKIPS;
    snprintf(options, sizeof(options), "fd=%d,pgrp=%d,minproto=5,maxproto=5,direct", requests[1],
             (int)getpgrp());
    if (mount("none", at("auto"), "autofs", 0, options))
        return CHILD_SKIPS;
    close(requests[1]);
    const int mounted = open(at("auto"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const pid_t child = look_for_key(ended[1]);
    close(ended[1]);
    struct pollfd both[] = {{.fd = requests[0], .events = POLLIN}, {.fd = ended[0]}};
    while (!both[1].revents && poll(both, 2, -1) > 0)
        if ((both[0].revents & POLLIN) && !answer(requests[0], mounted))
            return 2;
    return waitpid(child, &status, 0) == child && !status ? 0 : 1;
}

static void test_folders_that_are_mounted_when_used(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    make("auto", 0700, 0);
    passes_in_child(mount_when_used);
}

int main(void)
{
    umask(022);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_paths_are_accepted),
        cmocka_unit_test(test_paths_of_others_are_refused),
        cmocka_unit_test(test_owners_whom_a_user_namespace_lacks),
        cmocka_unit_test(test_descriptors_of_refused_paths),
        cmocka_unit_test(test_a_user_trusts_own_folders),
        cmocka_unit_test(test_files_are_opened_by_trusted_paths),
        cmocka_unit_test(test_path_created_after_the_check_is_not_opened),
        cmocka_unit_test(test_files_that_are_already_open),
        cmocka_unit_test(test_access_control_lists),
        cmocka_unit_test(test_folders_that_everybody_can_write),
        cmocka_unit_test(test_folders_that_are_mounted_when_used),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
