/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The folder of the records: its permissions, damaged files in it, and locks. */
#include "tests/fixtures/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------ damaged files */

static void every_truncation_is_noticed(NO_STATE)
{
    char path[PATH_MAX], text[4096];
    struct ibx_record r = sample(true, 0xab);
    assert_int_equal(write_record(&r), 0);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    size_t length = get_file(path, text, sizeof(text));
    for (size_t n = 0; n < length; n += n < 40 ? 1 : 13) {
        put_file(path, text, n);
        list_refuses(&r, "line ");
    }
    struct ibx_record other = r;
    other.written_s = 0; /* whoever has not seen it whole does not overwrite it */
    assert_int_equal(write_record(&other), -EBADMSG);
    list_refuses(&r, "line ");
    assert_int_equal(write_record(&r), 0); /* its own tool does */
    char now[sizeof(text)];
    assert_int_equal(get_file(path, now, sizeof(now)), length);
}

static void hostile_files_are_named(NO_STATE)
{
    static const struct wrong cases[] = {
        {"\"ibx-record\": 10", "\"ibx-record\": \"2\"", "ibx-record"},
        {"\"ibx-record\": 10", "\"ibx-record\": 1", "unpacked"},
        {"\"ibx-record\": 10", "\"ibx-record\": 0", "version 0"},
        {"\"ibx-record\": 10", "\"ibx-record\": 2", "unpacked"},
        {"\"ibx-record\": 10,", "", "ibx-record"},
        {"\"ibx-record\": 10", "\"ibx-record\": 3", "unpacked"},
        {"\"verify\": \"\"", "\"verify\": \"00\"", "hexadecimal"},
        {"\"verify\": \"\",", "", "verify"},
        {"\"complete\": null", "\"complete\": {}", "does not fit"},
        {"\"complete\": null,", "", "complete"},
        {"\"was-running\": true,", "", "was-running"},
        {"\"was-running\": true", "\"was-running\": 1", "true or false"},
        {"\"guest-ram\": [", "\"guest-ram\": [{}, ", "guest-ram"},
        {"\"machine\": \"pc-", "\"more\": \"pc-", "machine"},
        {"\"epoch\": 1", "\"epoch\": 0", "epoch 0"},
        {"\"epoch\": 1", "\"epoch\": -1", "epoch -1"},
        {"\"epoch\": 1", "\"epoch\": 1.5", "integer"},
        {"\"epoch\": 1", "\"epoch\": 99999999999999999999", "line"},
        {"\"epoch\": 1", "\"epoch\": 1, \"epoch\": 2", "line"},
        {"\"epoch\": 1,", "", "epoch"},
        {"\"epoch\": 1", "\"epoch\": 1, \"more\": true", "unpacked"},
        {"\"pid\": 4242", "\"pid\": -4242", "pid -4242"},
        {"\"pid\": 4242", "\"pid\": 4294967297", "pid 4294967297"},
        {"\"uffd\": -1", "\"uffd\": -2", "uffd -2"},
        {"\"uffd\": -1", "\"uffd\": 4294967296", "uffd 4294967296"},
        {"\"written\": ", "\"written\": -", "written -"},
        {"\"hold\": 4711", "\"hold\": -4711", "hold -4711"},
        {"\"hold\": 4711,", "", "hold"},
        {"\"stream\": 4712", "\"stream\": -4712", "stream -4712"},
        {"\n  \"stream\": 4712,", "", "stream"},
        {",\n  \"number\": 1", "", "number"},
        {"\"number\": 1", "\"number\": -1", "number -1"},
        {",\n  \"qemu-migration\": \"10-1-2-5\"", "", "qemu-migration"},
        {"\"10-1-2-5\"", "null", "string"},
        {",\n  \"boot\": \"01234567-boot\"", "", "boot"},
        {"\"boot\": \"01234567-boot", "\"boot\": \"0123456789012345678901234567890123456789",
         "boot has 40"},
        {",\n  \"guarded\": true", "", "guarded"},
        {"\"guarded\": true", "\"guarded\": 0", "true or false"},
        {"\"state\": \"here\"", "\"state\": \"running\"", "state \"running\""},
        {"\"state\": \"here\"", "\"state\": \"x\\u001b[2J\"", "state \"x?[2J\""},
        {"\"state\": \"here\"", "\"state\": null", "null"},
        {"\"role\": \"source\"", "\"role\": \"both\"", "role \"both\""},
        {"\"role\": \"source\"", "\"role\": \"destination\"", "here"},
        {"\"id\": \"ab", "\"id\": \"AB", "hexadecimal"},
        {"\"id\": \"ab", "\"id\": \"", "hexadecimal"},
        {"\"id\": \"ab", "\"id\": \"ac", "name"},
        {"\"uuid\": \"0", "\"uuid\": \"0000000", "uuid has 42 bytes"},
        {"\"name\": \"db1", "\"name\": \"db1\\u0000", "line"},
        {"{", "[", "line"},
    };
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 0xab);
    assert_int_equal(write_record(&r), 0);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    each_is_refused(&r, cases, COUNT(cases));
    put_file(path, "[]", 2);
    list_refuses(&r, "ibx-record");
}

static void hostile_layouts_are_named(NO_STATE)
{
    static const struct wrong cases[] = {
        {"\"id\": \"mem0\"", "\"id\": \"\"", "no id"},
        {"\"id\": \"mem0\"", "\"id\": \"mem1\"", "follow"},
        {"\"id\": \"mem0\"", "\"id\": 5", "guest-ram"},
        {"\"id\": \"mem0\",", "", "id"},
        {"\"id\": \"mem0\"", "\"id\": \"mem0\", \"more\": 1", "unpacked"},
        {"\"size\": 67108864", "\"size\": 0", "size 0"},
        {"\"size\": 67108864", "\"size\": 67108865", "size 67108865"},
        {"\"size\": 67108864", "\"size\": 9223372036854771712", "size 9223372036854771712"},
        {"\"page-size\": 4096", "\"page-size\": 0", "page-size 0"},
        {"\"page-size\": 4096", "\"page-size\": 12288", "page-size 12288"},
        {"\"offset\": 0", "\"offset\": -4096", "offset -4096"},
        {"\"address\": ", "\"address\": -", "address -"},
        {"\"address\": 4096", "\"address\": 4097", "address 4097"},
        {"\"ino\": -1", "\"ino\": \"-1\"", "guest-ram"},
        {"\"path\": \"/dev", "\"path\": \"dev", "no absolute one"},
        {"\"path\": \"/dev/shm/db1.0\"", "\"path\": 5", "guest-ram"},
        {"\"owner\": 107", "\"owner\": -1", "owner -1"},
        {"\"mode\": 33152", "\"mode\": 4294967296", "mode 4294967296"},
        {"\"file\": -1", "\"file\": \"x\"", "guest-ram"},
    };
    struct ibx_record r = sample(true, 0xab);
    r.blocks[0].address = 4096;
    assert_int_equal(write_record(&r), 0);
    each_is_refused(&r, cases, COUNT(cases));
}

static void deep_and_large_files_are_refused(NO_STATE)
{
    char path[PATH_MAX];
    const size_t most = 256 << 10;
    char *text = malloc(most + 1);
    assert_non_null(text);
    struct ibx_record r = sample(true, 0xab);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    memset(text, '[', most + 1);
    put_file(path, text, most);
    list_refuses(&r, "line");
    put_file(path, text, most + 1);
    list_refuses(&r, "256 KiB");
    free(text);
}

static void only_plain_files_of_this_user_count(NO_STATE)
{
    char path[PATH_MAX], other[PATH_MAX];
    struct ibx_record r = sample(true, 0xab), *all;
    size_t count;
    assert_int_equal(write_record(&r), 0);
    ibx_journal_path(folder, &r, ".json", path, sizeof(path));
    const mode_t others[] = {0602, 0620};
    for (unsigned i = 0; i < COUNT(others); i++) {
        assert_int_equal(chmod(path, others[i]), 0);
        list_refuses(&r, "only this user can write");
    }
    if (!geteuid()) {
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        list_refuses(&r, "only this user can write");
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    snprintf(other, sizeof(other), "%s/elsewhere", folder);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(chmod(other, 0600), 0);
    assert_int_equal(symlink(other, path), 0);
    list_refuses(&r, "regular");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    list_refuses(&r, "regular");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    list_refuses(&r, "regular");
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof(path), "%s/copy.json", folder);
    assert_int_equal(rename(other, path), 0);
    struct ibx_record *none;
    assert_int_equal(ibx_journal_list(folder, &none, &count, &error), -EBADMSG);
    error_has("copy.json is not a record of a migration (its id or role is not that of its name)");
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/notes.txt", folder); /* not a record */
    put_file(path, "x", 1);
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 0);
    free(all);
}

/* ------------------------------------------------------------ folder, rights */

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void folders_are_chosen_and_made(NO_STATE)
{
    char chosen[PATH_MAX], expected[PATH_MAX], deep[PATH_MAX];
    struct ibx_record r = sample(true, 1);
    mode_t mask = umask(0);
    snprintf(deep, sizeof(deep), "%s/a/b//c/", folder);
    snprintf(expected, sizeof(expected), "%s/a/b//c", folder);
    assert_int_equal(ibx_journal_folder(deep, true, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, expected);
    assert_int_equal(mode_of(chosen), 0700);
    assert_int_equal(ibx_journal_folder(deep, true, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(ibx_journal_write(chosen, &r, &error), 0);
    ibx_journal_path(chosen, &r, ".json", deep, sizeof(deep));
    assert_int_equal(mode_of(deep), 0600);
    umask(0777); /* permits nothing, not even to the owner */
    assert_int_equal(ibx_journal_write(chosen, &r, &error), 0);
    umask(mask);
    assert_int_equal(mode_of(deep), 0600);
    snprintf(expected, sizeof(expected), "%s/env", folder);
    setenv("IBX_STATE_DIR", expected, 1);
    assert_int_equal(ibx_journal_folder(NULL, true, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, expected);
    assert_int_equal(ibx_journal_folder(folder, true, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, folder);
    assert_int_equal(ibx_journal_folder(NULL, true, chosen, strlen(expected), &error),
                     -ENAMETOOLONG);
    unsetenv("IBX_STATE_DIR");
}

/* A record that was removed is written again to the folder that was chosen, whoever chose it. */
static void messages_name_the_folder_that_was_given(NO_STATE)
{
    char chosen[PATH_MAX], wanted[PATH_MAX];
    assert_int_equal(ibx_journal_folder(folder, true, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(ibx_journal_options("/qmp").text, "--qmp /qmp");
    ibx_journal_note_given_folder(folder);
    snprintf(wanted, sizeof(wanted), "--qmp /qmp --state-dir %s", folder);
    assert_string_equal(ibx_journal_options("/qmp").text, wanted);
    ibx_journal_note_given_folder(NULL);
    assert_string_equal(ibx_journal_options("/qmp").text, "--qmp /qmp");
}

static int as_a_user(void)
{
    char chosen[PATH_MAX], expected[PATH_MAX];
    if (!become_nobody())
        return CHILD_SKIPS;
    unsetenv("IBX_STATE_DIR");
    snprintf(expected, sizeof(expected), "%s/xdg", folder);
    setenv("XDG_STATE_HOME", expected, 1);
    setenv("HOME", folder, 1);
    strcat(expected, "/ibx");
    CHECK(!ibx_journal_folder(NULL, true, chosen, sizeof(chosen), &error) &&
          !strcmp(chosen, expected));
    setenv("XDG_STATE_HOME", "relative", 1); /* the standard says to ignore a relative path */
    snprintf(expected, sizeof(expected), "%s/.local/state/ibx", folder);
    CHECK(!ibx_journal_folder(NULL, true, chosen, sizeof(chosen), &error) &&
          !strcmp(chosen, expected));
    CHECK(ibx_journal_folder("/proc/1/ibx", true, chosen, sizeof(chosen), &error) < 0);
    CHECK(strstr(error.message, "/proc/1/ibx") && strstr(error.message, "--state-dir"));
    /* As where HOME is that of another user: sudo -u without -H. */
    snprintf(expected, sizeof(expected), "%s/closed", folder);
    CHECK(!mkdir(expected, 0));
    strcat(expected, "/ibx");
    const int rc = ibx_journal_folder(expected, false, chosen, sizeof(chosen), &error);
    CHECK(rc == -EACCES && strstr(error.message, expected) && strstr(error.message, "--state-dir"));
    return 0;
}

static void users_have_theirs_at_home(NO_STATE)
{
    passes_with_its_folder(as_a_user);
}

static void unfit_folders_are_refused(NO_STATE)
{
    char path[PATH_MAX], chosen[PATH_MAX] = "untouched";
    assert_int_equal(ibx_journal_folder("", true, chosen, sizeof(chosen), &error), -EINVAL);
    assert_int_equal(ibx_journal_folder("/tmp", true, chosen, sizeof(chosen), &error), -EPERM);
    error_has("/tmp");
    snprintf(path, sizeof(path), "%s/file", folder);
    put_file(path, "x", 1);
    assert_int_equal(ibx_journal_folder(path, true, chosen, sizeof(chosen), &error), -ENOTDIR);
    strcat(path, "/below");
    assert_int_equal(ibx_journal_folder(path, true, chosen, sizeof(chosen), &error), -ENOTDIR);
    /* An accepted folder name leaves room for the longest file name in it. */
    struct ibx_record r = sample(false, 1);
    snprintf(path, sizeof(path), "%s/", folder);
    memset(path + strlen(path), 'x', 200);
    for (size_t n = strlen(folder) + 2; n < 100; n++) {
        char socket_path[PATH_MAX + 100];
        path[n] = '\0';
        int rc = ibx_journal_folder(path, true, chosen, sizeof(chosen), &error);
        ibx_journal_path(path, &r, ".sock", socket_path, sizeof(socket_path));
        assert_int_equal(rc, strlen(socket_path) < 108 ? 0 : -ENAMETOOLONG);
        path[n] = 'x';
    }
    error_has("--state-dir");
}

/* The owner of a folder above could replace it. */
static void folders_in_those_of_others_are_refused(NO_STATE)
{
    char theirs[PATH_MAX], path[PATH_MAX + 16], chosen[PATH_MAX];
    if (geteuid())
        skip();
    snprintf(theirs, sizeof(theirs), "%s/theirs", folder);
    assert_int_equal(mkdir(theirs, 0755), 0);
    snprintf(path, sizeof(path), "%s/state", theirs);
    assert_int_equal(ibx_journal_folder(path, true, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(chown(theirs, 12345, (gid_t)-1), 0);
    assert_int_equal(ibx_journal_folder(path, true, chosen, sizeof(chosen), &error), -EPERM);
    error_has("user 12345 owns");
    error_has("on the path to it, and could replace the file");
    strcat(path, "/new");
    assert_int_equal(ibx_journal_folder(path, true, chosen, sizeof(chosen), &error), -EPERM);
    assert_int_equal(access(path, F_OK), -1); /* root creates nothing there */
    snprintf(path, sizeof(path), "%s/state", theirs);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(theirs), 0);
}

/* The folder did not exist, and then somebody else creates it, with records in it. */
static void folders_that_others_make_late_are_refused(NO_STATE)
{
    char path[PATH_MAX + 16], chosen[PATH_MAX];
    struct ibx_record *list = NULL;
    size_t count = 0;
    if (geteuid())
        skip();
    snprintf(path, sizeof(path), "%s/late", folder);
    assert_int_equal(ibx_journal_folder(path, false, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
    assert_int_equal(ibx_journal_list(chosen, &list, &count, &error), -EPERM);
    error_has("belongs to user 12345");
    error_has("only that user can ask about");
    assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    assert_int_equal(chmod(path, 0757), 0);
    assert_int_equal(ibx_journal_list(chosen, &list, &count, &error), -EPERM);
    assert_int_equal(rmdir(path), 0);
}

/* ------------------------------------------------------------ lock, processes */

static pthread_barrier_t watched;

/* Starts a child that calls `does` and then lives until it is killed. */
static pid_t child_that(bool (*does)(const struct ibx_record *r), const struct ibx_record *r)
{
    int pipes[2];
    char byte = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork_bound();
    if (!child) {
        close(pipes[0]);
        if (!does(r) || write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    close(pipes[0]);
    return child;
}

static bool holds_the_lock(const struct ibx_record *r)
{
    int fd;
    return !ibx_journal_lock(folder, r, &fd, NULL);
}

static void locks_name_their_holder(NO_STATE)
{
    struct ibx_record r = sample(true, 1), other = sample(false, 1);
    char expected[64];
    int fd = -1, second = -1;
    pid_t child = child_that(holds_the_lock, &r);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), -EBUSY);
    assert_int_equal(fd, -1);
    snprintf(expected, sizeof(expected), "process %d (", (int)child);
    error_has(expected);
    assert_int_equal(ibx_journal_lock(folder, &other, &fd, &error), 0); /* of the other role */
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &second, &error), -EBUSY);
    close(fd);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), 0);
    close(fd);
}

static bool holds_it_without_a_number(const struct ibx_record *r)
{
    char path[PATH_MAX];
    ibx_journal_path(folder, r, ".lock", path, sizeof(path));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return !flock(fd, LOCK_EX) && write(fd, " ", 1) == 1;
}

/* Writes its number into the lock's file as soon as somebody has read the file empty. */
static void *number_it(void *path)
{
    char event[512];
    const int watch = inotify_init1(IN_CLOEXEC), fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(inotify_add_watch(watch, path, IN_ACCESS) >= 0);
    pthread_barrier_wait(&watched);
    assert_true(read(watch, event, sizeof(event)) > 0);
    assert_int_equal(dprintf(fd, "%d\n", (int)getpid()), snprintf(NULL, 0, "%d\n", (int)getpid()));
    close(fd);
    close(watch);
    return NULL;
}

/* A process that has just taken the lock writes its number a moment later. */
static void locks_name_the_process_that_has_just_come(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    char path[PATH_MAX], expected[64];
    pthread_t thread;
    int fd;
    pid_t child = child_that(holds_it_without_a_number, &r);
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    pthread_barrier_init(&watched, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, number_it, path), 0);
    pthread_barrier_wait(&watched);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), -EBUSY);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&watched);
    snprintf(expected, sizeof(expected), "process %d (", (int)getpid());
    error_has(expected);
    assert_int_equal(ibx_journal_worker(folder, &r), getpid());
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ibx_journal_worker(folder, &r), 0);
}

/* Using another folder would not help. */
static void no_descriptor_for_a_lock(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    struct rlimit before, none;
    int fd;
    getrlimit(RLIMIT_NOFILE, &before);
    none = (struct rlimit){0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    const int rc = ibx_journal_lock(folder, &r, &fd, &error);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(rc, -EMFILE);
    error_has("ulimit -n");
    assert_null(strstr(error.message, "--state-dir"));
}

/* Removing a record removes the lock's file; the next tool locks a new one. */
static void locks_outlive_their_file(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    int first, second, third;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &first, &error), 0);
    assert_int_equal(ibx_journal_remove(folder, &r, &error), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &second, &error), 0);
    assert_int_equal(ibx_journal_lock(folder, &r, &third, &error), -EBUSY);
    close(first);
    close(second);
}

/* Takes the lock and removes its file again and again, as the end of a migration does. */
static int lock_and_remove(const struct ibx_record *r)
{
    char path[PATH_MAX], marker[PATH_MAX];
    ibx_journal_path(folder, r, ".lock", path, sizeof(path));
    snprintf(marker, sizeof(marker), "%s/held", folder);
    for (unsigned held = 0; held < 500;) {
        int fd, rc = ibx_journal_lock(folder, r, &fd, &error);
        if (rc == -EBUSY)
            continue;
        CHECK(!rc);
        int mine = open(marker, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        CHECK(mine >= 0); /* otherwise two processes hold the lock */
        close(mine);
        CHECK(!unlink(marker) && !unlink(path));
        close(fd);
        held++;
    }
    return 0;
}

static void one_process_holds_a_lock_at_a_time(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    pid_t children[3];
    for (unsigned i = 0; i < 3; i++) {
        children[i] = fork_bound();
        if (!children[i])
            _exit(lock_and_remove(&r));
    }
    for (unsigned i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_int_equal(status, 0);
    }
}

/* A child of the process that took it, the source's watchdog, keeps the lock. */
static void ended_holder_of_a_lock_is_recognized(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    int kept;
    pid_t child = fork_bound();
    if (!child)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    char path[PATH_MAX], text[32], expected[64];
    assert_int_equal(ibx_journal_lock(folder, &r, &kept, &error), 0);
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    snprintf(text, sizeof(text), "%d\n", (int)child);
    put_file(path, text, strlen(text));
    int fd;
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), -EBUSY);
    snprintf(expected, sizeof(expected), "process %d worked", (int)child);
    error_has(expected);
    put_file(path, "nonsense", 8);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), -EBUSY);
    error_has("another ib-migrate");
    close(kept);
}

/* If no file can be created the message has advice. */
static void a_lock_that_cannot_be_made(NO_STATE)
{
    struct ibx_record r = sample(true, 1);
    int fd;
    assert_int_equal(ibx_journal_lock("/proc/self", &r, &fd, &error), -ENOENT);
    error_has("choose another with --state-dir");
    assert_int_equal(ibx_journal_lock_base("/proc/self", &r, &fd, &error), -ENOENT);
    error_has("choose another with --state-dir");
}

/* There is space; the limit of file sizes is the reason. */
static void files_may_not_grow(NO_STATE)
{
    struct ibx_record r = sample(true, 9);
    struct rlimit before;
    int fd;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, before.rlim_max}), 0);
    struct ibx_error of_lock = {0};
    const int locked = ibx_journal_lock(folder, &r, &fd, &of_lock), written = write_record(&r);
    struct ibx_error of_check = {0};
    const int checked = ibx_journal_folder_check_writable(folder, &of_check);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(locked, -EFBIG);
    assert_non_null(strstr(of_lock.message, "too large; raise the limit on the size of files"));
    assert_int_equal(written, -EFBIG);
    error_has("too large; raise the limit on the size of files");
    assert_int_equal(checked, -EFBIG);
    assert_non_null(strstr(of_check.message, "files of 0 KiB; raise the limit"));
    assert_int_equal(ibx_journal_folder_check_writable(folder, &of_check), 0);
}

/* Only the folder of a file counts, and it must be as mkdtemp(3) made it. */
static void folders_of_run_are_recognized(NO_STATE)
{
    static const struct {
        const char *name;
        mode_t mode;
        bool is;
    } cases[] = {{"ibx-run-aZ09bc", 0700, true},     {"ibx-run-aZ09b", 0700, false},
                 {"ibx-run-aZ09bcd", 0700, false},   {"ibx-run-a.Z09b", 0700, false},
                 {"my-ibx-run-aZ09bc", 0700, false}, {"ibx-run-open00", 0750, false},
                 {"ibx-run-", 0700, false}};
    char base[] = "/tmp/ibx-run-XXXXXX", path[96], file[128], link[96];
    assert_non_null(mkdtemp(base));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", base, cases[i].name);
        snprintf(file, sizeof(file), "%s/mem0", path);
        assert_int_equal(mkdir(path, cases[i].mode), 0);
        assert_int_equal(ibx_journal_run_made(path), cases[i].is);
        assert_int_equal(ibx_journal_in_run_folder(file), cases[i].is);
        snprintf(link, sizeof(link), "%s/ibx-run-linked", base);
        assert_int_equal(symlink(path, link), 0);
        assert_false(ibx_journal_run_made(link));
        assert_int_equal(unlink(link), 0);
        assert_int_equal(rmdir(path), 0);
    }
    snprintf(file, sizeof(file), "%s/deeper/mem0", base);
    assert_false(ibx_journal_in_run_folder(file));
    assert_false(ibx_journal_run_made("ibx-run-aZ09bc"));
    assert_int_equal(rmdir(base), 0);
}

/* In a folder that everybody can write to. Another user may have created the file first, so it
 * counts for nobody. If it cannot be removed, the marker is next to the record. */
static void home_is_noted_by_its_own_file(NO_STATE)
{
    struct ibx_record r = sample(true, 0xcd);
    struct ibx_error err = {0};
    char path[PATH_MAX], beside[PATH_MAX], other[PATH_MAX + 8];
    const pid_t pid = getpid(); /* the name in /dev/shm is this test's own */
    memcpy(r.id, &pid, sizeof(pid));
    r.borrow = IBX_BORROW_LAZY;
    ibx_journal_home_path(r.id, path, sizeof(path));
    ibx_journal_path(folder, &r, ".home", beside, sizeof(beside));
    remove(path); /* of a killed test */
    assert_false(ibx_journal_home_marked(folder, &r));
    assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
    assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
    assert_true(ibx_journal_home_marked(folder, &r));
    if (!geteuid()) {
        assert_int_equal(chown(path, 1234, 1234), 0);
        assert_false(ibx_journal_home_marked(folder, &r));
        assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
        assert_true(ibx_journal_home_marked(folder, &r));
    }
    assert_int_equal(access(beside, F_OK), -1);
    ibx_journal_unmark_home(folder, r.id);
    assert_false(ibx_journal_home_marked(folder, &r));
    /* Others can give this name to a file of this user's that they may write to. */
    snprintf(other, sizeof(other), "%s.other", path);
    for (unsigned i = 0; i < 2; i++) { /* or to any one, without fs.protected_hardlinks */
        put_file(other, "it is written", i);
        assert_int_equal(chmod(other, i ? 0600 : 0622), 0);
        assert_int_equal(link(other, path), 0);
        assert_false(ibx_journal_home_marked(folder, &r));
        assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
        assert_int_equal(unlink(other), 0);
        assert_true(ibx_journal_home_marked(folder, &r));
        ibx_journal_unmark_home(folder, r.id);
    }
    /* Then they can give the marker a second name, too, but must not hide that the VM runs here. */
    assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
    assert_int_equal(link(path, other), 0);
    assert_true(ibx_journal_home_marked(folder, &r));
    assert_int_equal(unlink(other), 0);
    ibx_journal_unmark_home(folder, r.id);
    if (!geteuid()) {
        assert_int_equal(mkdir(path, 0700), 0);
        assert_int_equal(chown(path, 1234, 1234), 0);
        assert_int_equal(ibx_journal_mark_home("/nowhere", r.id, &err), -ENOENT);
        assert_non_null(strstr(err.message, "make room in /dev/shm"));
        assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
        assert_int_equal(ibx_journal_mark_home(folder, r.id, &err), 0);
        assert_true(ibx_journal_home_marked(folder, &r));
        assert_int_equal(access(beside, F_OK), 0);
        ibx_journal_unmark_home(folder, r.id);
        assert_false(ibx_journal_home_marked(folder, &r));
        assert_int_equal(rmdir(path), 0);
    }
}

/* If the first record of a migration cannot be written, its lock is removed when the tool ends. */
static void a_lock_without_a_record(NO_STATE)
{
    struct ibx_record r = sample(true, 8);
    char path[PATH_MAX];
    int fd;
    ibx_journal_path(folder, &r, ".lock", path, sizeof(path));
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), 0);
    ibx_journal_unlock(folder, &r, fd);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(ibx_journal_lock(folder, &r, &fd, &error), 0);
    assert_int_equal(write_record(&r), 0);
    ibx_journal_unlock(folder, &r, fd);
    assert_int_equal(access(path, F_OK), 0);
    ibx_journal_unlock(folder, &r, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_truncation_is_noticed),
        TEST(hostile_files_are_named),
        TEST(hostile_layouts_are_named),
        TEST(deep_and_large_files_are_refused),
        TEST(only_plain_files_of_this_user_count),
        TEST(folders_are_chosen_and_made),
        TEST(messages_name_the_folder_that_was_given),
        TEST(users_have_theirs_at_home),
        TEST(unfit_folders_are_refused),
        TEST(folders_in_those_of_others_are_refused),
        TEST(folders_that_others_make_late_are_refused),
        TEST(locks_name_their_holder),
        TEST(locks_name_the_process_that_has_just_come),
        TEST(no_descriptor_for_a_lock),
        TEST(locks_outlive_their_file),
        TEST(one_process_holds_a_lock_at_a_time),
        TEST(ended_holder_of_a_lock_is_recognized),
        TEST(a_lock_that_cannot_be_made),
        TEST(files_may_not_grow),
        TEST(folders_of_run_are_recognized),
        TEST(home_is_noted_by_its_own_file),
        TEST(a_lock_without_a_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
