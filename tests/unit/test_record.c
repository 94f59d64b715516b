/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Records of moves: which may follow which, that they are whole whatever happens, and what is said
 * about files that are not. */
#include "migrate/record.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static struct ibx_error error;

static int make_folder(void **state)
{
    (void)state;
    /* Where fsync(2) costs nothing, if there is such a place. */
    snprintf(folder, sizeof(folder), "%s/ibx-record-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

static struct ibx_record sample(bool source, uint8_t number)
{
    struct ibx_record r = {.source = source,
                           .epoch = 1,
                           .state = source ? IBX_RECORD_HERE : IBX_RECORD_NOT_YET,
                           .uuid = "01234567-89ab-cdef-0123-456789abcdef",
                           .name = "db1",
                           .qmp = "/run/db1.qmp",
                           .pid = 4242,
                           .pid_started = 123456789,
                           .uri = "tcp://node-b:7471",
                           .peer = "node-b",
                           .key_file = "/etc/ibx.key",
                           .uffd = source ? -1 : 31,
                           .device_way = !source};
    memset(r.id, number, sizeof(r.id));
    return r;
}

static int write_record(struct ibx_record *r)
{
    memset(&error, 0, sizeof(error));
    int rc = ibx_record_write(folder, r, &error);
    if (rc) {
        assert_int_equal(error.code, rc);
        assert_true(error.message[0] && !strchr(error.message, '\n'));
    }
    return rc;
}

static void says(const char *word)
{
    if (!strstr(error.message, word))
        fail_msg("\"%s\" does not say \"%s\"", error.message, word);
}

static void put_file(const char *path, const char *text, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), length);
    close(fd);
}

static size_t get_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, size - 1);
    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
    return (size_t)n;
}

/* The only record of the folder. */
static struct ibx_record only(void)
{
    struct ibx_record *all, r;
    size_t count;
    if (ibx_record_list(folder, &all, &count, &error))
        fail_msg("%s", error.message);
    assert_int_equal(count, 1);
    r = all[0];
    free(all);
    return r;
}

/* ------------------------------------------------------------ states */

static void records_come_back_as_they_were(void **state)
{
    (void)state;
    for (int source = 0; source < 2; source++) {
        struct ibx_record r = sample(source, 7);
        const time_t before = time(NULL);
        assert_int_equal(write_record(&r), 0);
        assert_in_range(r.written_s, (uint64_t)before, (uint64_t)time(NULL));
        struct ibx_record found = only();
        assert_memory_equal(found.id, r.id, sizeof(r.id));
        assert_int_equal(found.source, r.source);
        assert_int_equal(found.epoch, r.epoch);
        assert_int_equal(found.state, r.state);
        assert_string_equal(found.uuid, r.uuid);
        assert_string_equal(found.name, r.name);
        assert_string_equal(found.qmp, r.qmp);
        assert_int_equal(found.pid, r.pid);
        assert_int_equal(found.pid_started, r.pid_started);
        assert_string_equal(found.uri, r.uri);
        assert_string_equal(found.peer, r.peer);
        assert_string_equal(found.key_file, r.key_file);
        assert_int_equal(found.uffd, r.uffd);
        assert_int_equal(found.device_way, r.device_way);
        assert_int_equal(found.written_s, r.written_s);
        assert_int_equal(ibx_record_remove(folder, &r, &error), 0);
        assert_int_equal(ibx_record_remove(folder, &r, &error), -ENOENT);
    }
}

/* From each state (rows, as the enum; 0 is a new record) to which others, besides itself. */
static const unsigned source_table[10] = {
    [0] = 1 << IBX_RECORD_HERE,
    [IBX_RECORD_HERE] =
        1 << IBX_RECORD_MAY_RUN | 1 << IBX_RECORD_KEPT | 1 << IBX_RECORD_ROLLED_BACK,
    [IBX_RECORD_MAY_RUN] = 1 << IBX_RECORD_MOVED | 1 << IBX_RECORD_DONE | 1 << IBX_RECORD_KEPT |
                           1 << IBX_RECORD_ROLLED_BACK,
    [IBX_RECORD_MOVED] = 1 << IBX_RECORD_DONE | 1 << IBX_RECORD_ROLLED_BACK,
};
static const unsigned destination_table[10] = {
    [0] = 1 << IBX_RECORD_NOT_YET,
    [IBX_RECORD_NOT_YET] = 1 << IBX_RECORD_MAY_RUN | 1 << IBX_RECORD_GIVEN_UP,
    [IBX_RECORD_MAY_RUN] =
        1 << IBX_RECORD_RUNNING | 1 << IBX_RECORD_DONE | 1 << IBX_RECORD_GIVEN_UP,
    [IBX_RECORD_RUNNING] = 1 << IBX_RECORD_DONE | 1 << IBX_RECORD_GIVEN_UP,
};

/* The states by which one is reached, from new on. */
static void bring_to(struct ibx_record *r, enum ibx_record_state wanted)
{
    static const enum ibx_record_state ways[2][10][4] = {
        {[IBX_RECORD_NOT_YET] = {IBX_RECORD_NOT_YET},
         [IBX_RECORD_MAY_RUN] = {IBX_RECORD_NOT_YET, IBX_RECORD_MAY_RUN},
         [IBX_RECORD_RUNNING] = {IBX_RECORD_NOT_YET, IBX_RECORD_MAY_RUN, IBX_RECORD_RUNNING},
         [IBX_RECORD_DONE] = {IBX_RECORD_NOT_YET, IBX_RECORD_MAY_RUN, IBX_RECORD_RUNNING,
                              IBX_RECORD_DONE},
         [IBX_RECORD_GIVEN_UP] = {IBX_RECORD_NOT_YET, IBX_RECORD_GIVEN_UP}},
        {[IBX_RECORD_HERE] = {IBX_RECORD_HERE},
         [IBX_RECORD_MAY_RUN] = {IBX_RECORD_HERE, IBX_RECORD_MAY_RUN},
         [IBX_RECORD_MOVED] = {IBX_RECORD_HERE, IBX_RECORD_MAY_RUN, IBX_RECORD_MOVED},
         [IBX_RECORD_DONE] = {IBX_RECORD_HERE, IBX_RECORD_MAY_RUN, IBX_RECORD_MOVED,
                              IBX_RECORD_DONE},
         [IBX_RECORD_KEPT] = {IBX_RECORD_HERE, IBX_RECORD_KEPT},
         [IBX_RECORD_ROLLED_BACK] = {IBX_RECORD_HERE, IBX_RECORD_MAY_RUN, IBX_RECORD_ROLLED_BACK}}};
    for (unsigned i = 0; i < 4 && ways[r->source][wanted][i]; i++) {
        r->state = ways[r->source][wanted][i];
        assert_int_equal(write_record(r), 0);
    }
    assert_true(!wanted || r->state == wanted);
}

static void check_step(bool source, unsigned from, unsigned to, bool allowed)
{
    struct ibx_record r = sample(source, 9);
    bring_to(&r, (enum ibx_record_state)from);
    r.state = (enum ibx_record_state)to;
    int rc = write_record(&r);
    if (rc != (allowed ? 0 : -EINVAL))
        fail_msg("%s from %u to %u: %d", source ? "source" : "destination", from, to, rc);
    if (rc && from) { /* it is as it was */
        assert_int_equal(only().state, from);
        says(ibx_record_state_name((enum ibx_record_state)from));
    }
    if (from || !rc) {
        r.state = (enum ibx_record_state)from;
        assert_int_equal(ibx_record_remove(folder, &r, &error), 0);
    }
}

static void only_moves_of_the_table(void **state)
{
    (void)state;
    const unsigned all[2] = {
        1 << IBX_RECORD_NOT_YET | 1 << IBX_RECORD_MAY_RUN | 1 << IBX_RECORD_RUNNING |
            1 << IBX_RECORD_DONE | 1 << IBX_RECORD_GIVEN_UP,
        1 << IBX_RECORD_HERE | 1 << IBX_RECORD_MAY_RUN | 1 << IBX_RECORD_MOVED |
            1 << IBX_RECORD_DONE | 1 << IBX_RECORD_KEPT | 1 << IBX_RECORD_ROLLED_BACK};
    for (unsigned source = 0; source < 2; source++) {
        const unsigned *table = source ? source_table : destination_table;
        for (unsigned from = 0; from < 10; from++) {
            if (from && !(all[source] >> from & 1))
                continue;
            for (unsigned to = 0; to < 12; to++) /* some are no states */
                check_step(source, from, to, table[from] >> to & 1 || (from && to == from));
        }
    }
}

static void epochs_only_rise(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 1);
    r.epoch = 0;
    assert_int_equal(write_record(&r), -EINVAL);
    r.epoch = 5;
    assert_int_equal(write_record(&r), 0);
    r.epoch = 4;
    assert_int_equal(write_record(&r), -EINVAL);
    says("epoch 4");
    r.epoch = UINT64_MAX;
    assert_int_equal(write_record(&r), -EINVAL);
    assert_int_equal(only().epoch, 5);
    r.epoch = INT64_MAX;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(only().epoch, INT64_MAX);
}

static void states_have_names_and_sentences(void **state)
{
    (void)state;
    char said[IBX_ERROR_MAX];
    const bool over[10] = {[IBX_RECORD_DONE] = true,
                           [IBX_RECORD_KEPT] = true,
                           [IBX_RECORD_ROLLED_BACK] = true,
                           [IBX_RECORD_GIVEN_UP] = true};
    for (unsigned i = 1; i < 10; i++) {
        struct ibx_record r = sample(i < IBX_RECORD_NOT_YET, 1);
        r.state = (enum ibx_record_state)i;
        assert_int_equal(ibx_record_over(&r), over[i]);
        assert_string_not_equal(ibx_record_state_name(r.state), "unknown");
        ibx_record_say(&r, said, sizeof(said));
        if (!strstr(said, "VM db1") || !strstr(said, "node-b") || strchr(said, '%'))
            fail_msg("%s", said);
    }
    struct ibx_record r = sample(true, 1);
    r.name[0] = r.peer[0] = '\0';
    strcpy(r.uri, "tcp://%s%n\033");
    ibx_record_say(&r, said, sizeof(said));
    assert_non_null(strstr(said, "VM 01234567-89ab"));
    assert_non_null(strstr(said, "tcp://%s%n?"));
    strcpy(r.uuid, "00000000-0000-0000-0000-000000000000");
    ibx_record_say(&r, said, sizeof(said));
    assert_non_null(strstr(said, "the VM of /run/db1.qmp"));
    ibx_record_say(&r, said, 10);
    assert_int_equal(strlen(said), 9);
    r.state = (enum ibx_record_state)99;
    ibx_record_say(&r, said, sizeof(said));
    assert_string_equal(ibx_record_state_name(r.state), "unknown");
    assert_false(ibx_record_over(&r));
}

/* ------------------------------------------------------------ whole or not at all */

/* Writes for ever, records of very different lengths. */
static void write_until_killed(void)
{
    struct ibx_record r = only();
    for (uint64_t turn = 0;; turn++) {
        r.epoch++;
        memset(r.qmp, 'q', sizeof(r.qmp) - 1);
        r.qmp[turn % 2 ? 10 : 4000] = '\0';
        if (ibx_record_write(folder, &r, NULL))
            _exit(1);
    }
}

static void a_killed_writer_leaves_a_whole_record(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 3);
    assert_int_equal(write_record(&r), 0);
    for (unsigned turn = 0; turn < 25; turn++) {
        const uint64_t from = only().epoch;
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            write_until_killed();
        /* Whatever it is doing, what is read is whole. Some turns end at once. */
        while (only().epoch < from + turn % 5)
            assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        struct ibx_record found = only();
        assert_in_range(found.epoch, from + turn % 5, UINT64_MAX);
        assert_true(found.epoch == 1 || strlen(found.qmp) == 10 || strlen(found.qmp) == 4000);
    }
    r = only();
    r.epoch++;
    assert_int_equal(write_record(&r), 0); /* over what a killed one left behind */
    assert_int_equal(only().epoch, r.epoch);
}

/* What `test` finds in a child; the failures of asserts do not come out of one. */
static int in_child(int (*test)(void))
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(test());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define CHECK(good)                                                                                \
    do {                                                                                           \
        if (!(good))                                                                               \
            return __LINE__ % 200 + 1;                                                             \
    } while (0)
#define SKIP 77

static bool unwritten(int rc, int expected)
{
    char path[PATH_MAX];
    struct ibx_record r = sample(true, 3);
    ibx_record_path(folder, &r, ".new", path, sizeof(path));
    return rc == expected && strstr(error.message, folder) &&
           strstr(error.message, strerror(-expected)) && access(path, F_OK);
}

/* Changes what is on record until there is no room for the next. */
static int on_a_full_disk(void)
{
    struct ibx_record r = sample(true, 3), *all;
    char path[PATH_MAX], block[4096] = {0};
    size_t count;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", folder, "tmpfs", 0, "size=64k,mode=0700"))
        return SKIP;
    CHECK(!ibx_record_write(folder, &r, &error));
    snprintf(path, sizeof(path), "%s/filler", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0);
    while (write(fd, block, sizeof(block)) > 0)
        ;
    CHECK(errno == ENOSPC);
    r.state = IBX_RECORD_MAY_RUN;
    CHECK(unwritten(ibx_record_write(folder, &r, &error), -ENOSPC));
    CHECK(!ibx_record_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_RECORD_HERE);
    free(all);
    CHECK(!ftruncate(fd, 0) && !close(fd) && !ibx_record_write(folder, &r, &error));
    CHECK(!mount(NULL, folder, NULL, MS_REMOUNT | MS_RDONLY, NULL));
    r.state = IBX_RECORD_MOVED;
    CHECK(unwritten(ibx_record_write(folder, &r, &error), -EROFS));
    CHECK(!ibx_record_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_RECORD_MAY_RUN);
    free(all);
    return 0;
}

static void full_and_read_only_disks(void **state)
{
    (void)state;
    int rc = in_child(on_a_full_disk);
    if (rc == SKIP)
        skip(); /* only root mounts */
    assert_int_equal(rc, 0);
}

static int without_rights(void)
{
    struct ibx_record r = sample(true, 3), *all;
    char lock[32];
    size_t count;
    int fd;
    if (!geteuid() && (setgid(65534) || setuid(65534)))
        return SKIP;
    CHECK(!chmod(folder, 0700) && !ibx_record_write(folder, &r, &error));
    CHECK(!chmod(folder, 0500));
    r.state = IBX_RECORD_MAY_RUN;
    CHECK(unwritten(ibx_record_write(folder, &r, &error), -EACCES));
    CHECK(ibx_record_lock(folder, &r, &fd, &error) == -EACCES);
    CHECK(ibx_record_remove(folder, &r, &error) == -EACCES);
    CHECK(!ibx_record_list(folder, &all, &count, &error) && count == 1);
    CHECK(all[0].state == IBX_RECORD_HERE);
    free(all);
    snprintf(lock, sizeof(lock), "%s", "/proc/ibx");
    CHECK(ibx_record_folder(lock, lock, sizeof(lock), &error) && strstr(error.message, "/proc"));
    CHECK(!chmod(folder, 0000));
    CHECK(ibx_record_list(folder, &all, &count, &error) == -EACCES);
    CHECK(!chmod(folder, 0700));
    return 0;
}

static void folders_without_rights(void **state)
{
    (void)state;
    assert_true(geteuid() || !chown(folder, 65534, 65534));
    int rc = in_child(without_rights);
    if (rc == SKIP)
        skip();
    assert_int_equal(rc, 0);
}

/* ------------------------------------------------------------ damaged files */

static void list_refuses(const char *name, const char *word)
{
    struct ibx_record *all = NULL, r;
    size_t count = 77;
    assert_int_equal(ibx_record_list(folder, &all, &count, &error), -EBADMSG);
    assert_null(all);
    assert_int_equal(count, 77);
    says(folder);
    says(name);
    says(word);
    assert_false(strchr(error.message, '\n') || strchr(error.message, '\033'));
    assert_int_equal(ibx_record_find(folder, true, NULL, &r, &error), -EBADMSG);
}

static void every_truncation_is_noticed(void **state)
{
    (void)state;
    char path[PATH_MAX], text[4096];
    struct ibx_record r = sample(true, 0xab);
    assert_int_equal(write_record(&r), 0);
    ibx_record_path(folder, &r, ".json", path, sizeof(path));
    size_t length = get_file(path, text, sizeof(text));
    for (size_t n = 0; n < length; n += n < 40 ? 1 : 13) {
        put_file(path, text, n);
        list_refuses("abababababababababababababababab.source.json", "line ");
    }
    assert_int_equal(write_record(&r), -EBADMSG); /* and it is not written over */
    put_file(path, text, length);
    assert_int_equal(write_record(&r), 0);
}

/* Replaces the first `from` in the record's file. */
static void with(const char *path, const char *text, const char *from, const char *to)
{
    char changed[8192];
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s", from);
    int n = snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to,
                     at + strlen(from));
    put_file(path, changed, (size_t)n);
}

static void hostile_files_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *word;
    } cases[] = {
        {"\"ibx-record\": 1", "\"ibx-record\": 2", "version 2"},
        {"\"ibx-record\": 1", "\"ibx-record\": \"1\"", "ibx-record"},
        {"\"ibx-record\": 1,", "", "ibx-record"},
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
    char path[PATH_MAX], text[4096];
    struct ibx_record r = sample(true, 0xab);
    assert_int_equal(write_record(&r), 0);
    ibx_record_path(folder, &r, ".json", path, sizeof(path));
    get_file(path, text, sizeof(text));
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        with(path, text, cases[i].from, cases[i].to);
        list_refuses("abab.source.json", cases[i].word);
    }
    put_file(path, "[]", 2);
    list_refuses("abab.source.json", "ibx-record");
}

static void deep_and_large_files_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    char *text = malloc(70000);
    assert_non_null(text);
    struct ibx_record r = sample(true, 0xab);
    ibx_record_path(folder, &r, ".json", path, sizeof(path));
    memset(text, '[', 70000);
    put_file(path, text, 65536);
    list_refuses("abab.source.json", "line");
    put_file(path, text, 65537);
    list_refuses("abab.source.json", "64 KiB");
    free(text);
}

static void only_plain_files_of_this_user_count(void **state)
{
    (void)state;
    char path[PATH_MAX], other[PATH_MAX];
    struct ibx_record r = sample(true, 0xab), *all;
    size_t count;
    assert_int_equal(write_record(&r), 0);
    ibx_record_path(folder, &r, ".json", path, sizeof(path));
    assert_int_equal(chmod(path, 0622), 0);
    list_refuses("abab.source.json", "regular");
    snprintf(other, sizeof(other), "%s/elsewhere", folder);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(chmod(other, 0600), 0);
    assert_int_equal(symlink(other, path), 0);
    list_refuses("abab.source.json", "regular");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    list_refuses("abab.source.json", "regular");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    list_refuses("abab.source.json", "regular");
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof(path), "%s/copy.json", folder);
    assert_int_equal(rename(other, path), 0);
    list_refuses("copy.json", "name");
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof(path), "%s/notes.txt", folder); /* no concern of ours */
    put_file(path, "x", 1);
    assert_int_equal(ibx_record_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 0);
    free(all);
}

static void text_that_is_none(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 1);
    strcpy(r.name, "b\xc3"); /* cut in the middle of a letter */
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().name, "b?");
    strcpy(r.name, "b\xc3\xbc\"\n");
    assert_int_equal(write_record(&r), 0);
    assert_string_equal(only().name, r.name);
    strcpy(r.qmp, "/run/\xff");
    assert_int_equal(write_record(&r), -EINVAL);
    says("/run/?");
}

/* ------------------------------------------------------------ finding */

static void newest_come_first(void **state)
{
    (void)state;
    struct ibx_record *all;
    size_t count;
    for (uint8_t i = 1; i <= 20; i++) {
        struct ibx_record r = sample(i % 2, (uint8_t)(i * 37));
        assert_int_equal(write_record(&r), 0);
    }
    assert_int_equal(ibx_record_list(folder, &all, &count, &error), 0);
    assert_int_equal(count, 20);
    for (size_t i = 1; i < count; i++)
        assert_true(all[i - 1].written_s >= all[i].written_s);
    free(all);
}

/* Gives the file of a record another time, as its writing did. */
static void set_written(const struct ibx_record *r, uint64_t seconds)
{
    char path[PATH_MAX], text[4096], from[64], to[64];
    ibx_record_path(folder, r, ".json", path, sizeof(path));
    get_file(path, text, sizeof(text));
    snprintf(from, sizeof(from), "\"written\": %llu", (unsigned long long)r->written_s);
    snprintf(to, sizeof(to), "\"written\": %llu", (unsigned long long)seconds);
    with(path, text, from, to);
}

static void unfinished_moves_are_found(void **state)
{
    (void)state;
    struct ibx_record a = sample(true, 1), b = sample(true, 2), c = sample(true, 3),
                      d = sample(false, 4), found;
    assert_int_equal(ibx_record_find(folder, true, NULL, &found, &error), -ENOENT);
    says(folder);
    assert_int_equal(write_record(&a), 0);
    assert_int_equal(ibx_record_find(folder, true, NULL, &found, &error), 0);
    assert_memory_equal(found.id, a.id, sizeof(a.id));
    assert_int_equal(ibx_record_find(folder, false, NULL, &found, &error), -ENOENT);
    strcpy(c.qmp, "/run/other");
    assert_int_equal(write_record(&b), 0);
    assert_int_equal(write_record(&c), 0);
    assert_int_equal(write_record(&d), 0);
    set_written(&a, 3000);
    set_written(&b, 2000);
    assert_int_equal(ibx_record_find(folder, true, NULL, &found, &error), -ENOTUNIQ);
    says("--qmp");
    assert_int_equal(ibx_record_find(folder, true, "/run/db1.qmp", &found, &error), 0);
    assert_memory_equal(found.id, a.id, sizeof(a.id));
    assert_int_equal(ibx_record_find(folder, true, "/run/other", &found, &error), 0);
    assert_memory_equal(found.id, c.id, sizeof(c.id));
    assert_int_equal(ibx_record_find(folder, false, NULL, &found, &error), 0);
    assert_memory_equal(found.id, d.id, sizeof(d.id));
    a.state = IBX_RECORD_KEPT; /* now the newest of all, and over */
    assert_int_equal(write_record(&a), 0);
    assert_int_equal(ibx_record_find(folder, true, "/run/db1.qmp", &found, &error), 0);
    assert_memory_equal(found.id, b.id, sizeof(b.id));
    assert_int_equal(ibx_record_find(folder, true, "/run/nobody", &found, &error), -ENOENT);
    says("/run/nobody");
}

/* ------------------------------------------------------------ folder, rights */

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    return st.st_mode & 07777;
}

static void folders_are_chosen_and_made(void **state)
{
    (void)state;
    char chosen[PATH_MAX], expected[PATH_MAX], deep[PATH_MAX];
    struct ibx_record r = sample(true, 1);
    mode_t mask = umask(0);
    snprintf(deep, sizeof(deep), "%s/a/b//c/", folder);
    snprintf(expected, sizeof(expected), "%s/a/b//c", folder);
    assert_int_equal(ibx_record_folder(deep, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, expected);
    assert_int_equal(mode_of(chosen), 0700);
    assert_int_equal(ibx_record_folder(deep, chosen, sizeof(chosen), &error), 0);
    assert_int_equal(ibx_record_write(chosen, &r, &error), 0);
    ibx_record_path(chosen, &r, ".json", deep, sizeof(deep));
    assert_int_equal(mode_of(deep), 0600);
    umask(0777); /* takes nothing away from the owner either */
    assert_int_equal(ibx_record_write(chosen, &r, &error), 0);
    umask(mask);
    assert_int_equal(mode_of(deep), 0600);
    snprintf(expected, sizeof(expected), "%s/env", folder);
    setenv("IBX_STATE_DIR", expected, 1);
    assert_int_equal(ibx_record_folder(NULL, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, expected);
    assert_int_equal(ibx_record_folder(folder, chosen, sizeof(chosen), &error), 0);
    assert_string_equal(chosen, folder);
    assert_int_equal(ibx_record_folder(NULL, chosen, strlen(expected), &error), -ENAMETOOLONG);
    unsetenv("IBX_STATE_DIR");
}

static int as_a_user(void)
{
    char chosen[PATH_MAX], expected[PATH_MAX];
    if (!geteuid() && (setgid(65534) || setuid(65534)))
        return SKIP;
    unsetenv("IBX_STATE_DIR");
    snprintf(expected, sizeof(expected), "%s/xdg", folder);
    setenv("XDG_STATE_HOME", expected, 1);
    setenv("HOME", folder, 1);
    strcat(expected, "/ibx");
    CHECK(!ibx_record_folder(NULL, chosen, sizeof(chosen), &error) && !strcmp(chosen, expected));
    setenv("XDG_STATE_HOME", "relative", 1); /* which that standard says to ignore */
    snprintf(expected, sizeof(expected), "%s/.local/state/ibx", folder);
    CHECK(!ibx_record_folder(NULL, chosen, sizeof(chosen), &error) && !strcmp(chosen, expected));
    CHECK(ibx_record_folder("/proc/1/ibx", chosen, sizeof(chosen), &error) < 0);
    CHECK(strstr(error.message, "/proc/1/ibx") && strstr(error.message, "IBX_STATE_DIR"));
    return 0;
}

static void users_have_theirs_at_home(void **state)
{
    (void)state;
    assert_true(geteuid() || !chown(folder, 65534, 65534));
    int rc = in_child(as_a_user);
    if (rc == SKIP)
        skip();
    assert_int_equal(rc, 0);
}

static void unfit_folders_are_refused(void **state)
{
    (void)state;
    char path[PATH_MAX], chosen[PATH_MAX] = "untouched";
    assert_int_equal(ibx_record_folder("", chosen, sizeof(chosen), &error), -EINVAL);
    assert_int_equal(ibx_record_folder("/tmp", chosen, sizeof(chosen), &error), -EPERM);
    says("/tmp");
    snprintf(path, sizeof(path), "%s/file", folder);
    put_file(path, "x", 1);
    assert_int_equal(ibx_record_folder(path, chosen, sizeof(chosen), &error), -ENOTDIR);
    strcat(path, "/below");
    assert_int_equal(ibx_record_folder(path, chosen, sizeof(chosen), &error), -ENOTDIR);
    /* What fits leaves room for the longest name in it. */
    struct ibx_record r = sample(false, 1);
    snprintf(path, sizeof(path), "%s/", folder);
    memset(path + strlen(path), 'x', 200);
    for (size_t n = strlen(folder) + 2; n < 100; n++) {
        char socket_path[PATH_MAX + 100];
        path[n] = '\0';
        int rc = ibx_record_folder(path, chosen, sizeof(chosen), &error);
        ibx_record_path(path, &r, ".sock", socket_path, sizeof(socket_path));
        assert_int_equal(rc, strlen(socket_path) < 108 ? 0 : -ENAMETOOLONG);
        path[n] = 'x';
    }
    says("IBX_STATE_DIR");
}

/* ------------------------------------------------------------ lock, processes */

/* A child that holds the lock, says so, and keeps it until it is killed. */
static pid_t lock_in_child(const struct ibx_record *r)
{
    int pipes[2];
    char byte = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        int fd;
        close(pipes[0]);
        if (ibx_record_lock(folder, r, &fd, NULL) || write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    close(pipes[0]);
    return child;
}

static void locks_name_their_holder(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 1), other = sample(false, 1);
    char expected[64];
    int fd = -1, second = -1;
    pid_t child = lock_in_child(&r);
    assert_int_equal(ibx_record_lock(folder, &r, &fd, &error), -EBUSY);
    assert_int_equal(fd, -1);
    snprintf(expected, sizeof(expected), "process %d (", (int)child);
    says(expected);
    assert_int_equal(ibx_record_lock(folder, &other, &fd, &error), 0); /* the other role's */
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ibx_record_lock(folder, &r, &fd, &error), 0);
    assert_int_equal(ibx_record_lock(folder, &r, &second, &error), -EBUSY);
    close(fd);
    assert_int_equal(ibx_record_lock(folder, &r, &fd, &error), 0);
    close(fd);
}

/* Removing the record takes the lock's file away: who comes next locks the new one. */
static void locks_outlive_their_file(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 1);
    int first, second, third;
    assert_int_equal(write_record(&r), 0);
    assert_int_equal(ibx_record_lock(folder, &r, &first, &error), 0);
    assert_int_equal(ibx_record_remove(folder, &r, &error), 0);
    assert_int_equal(ibx_record_lock(folder, &r, &second, &error), 0);
    assert_int_equal(ibx_record_lock(folder, &r, &third, &error), -EBUSY);
    close(first);
    close(second);
}

/* A lock kept by a child of the one who took it (the source's guardian). */
static void an_ended_holder_is_told_apart(void **state)
{
    (void)state;
    struct ibx_record r = sample(true, 1);
    int kept;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    char path[PATH_MAX], text[32], expected[64];
    assert_int_equal(ibx_record_lock(folder, &r, &kept, &error), 0);
    ibx_record_path(folder, &r, ".lock", path, sizeof(path));
    snprintf(text, sizeof(text), "%d\n", (int)child);
    put_file(path, text, strlen(text));
    int fd;
    assert_int_equal(ibx_record_lock(folder, &r, &fd, &error), -EBUSY);
    snprintf(expected, sizeof(expected), "process %d worked", (int)child);
    says(expected);
    put_file(path, "nonsense", 8);
    assert_int_equal(ibx_record_lock(folder, &r, &fd, &error), -EBUSY);
    says("another ib-migrate");
    close(kept);
}

static void processes_are_told_apart(void **state)
{
    (void)state;
    const uint64_t mine = ibx_process_started(getpid());
    assert_true(mine > 0);
    assert_int_equal(ibx_process_started(getpid()), mine);
    assert_true(ibx_process_started(1) <= mine);
    assert_int_equal(ibx_process_started(0), 0);
    assert_int_equal(ibx_process_started(-1), 0);
    int pipes[2];
    char byte;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        /* A name that looks like what follows it. */
        int fd = open("/proc/self/comm", O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "a) Z 1 (", 8) != 8 || write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(pipes[0], &byte, 1), 1);
    const uint64_t started = ibx_process_started(child);
    assert_true(started >= mine);
    /* Its number alone names nobody: one that is there with another start is not it. */
    struct ibx_record r = sample(true, 1);
    r.pid = child;
    r.pid_started = started + 1;
    assert_true(ibx_process_started(r.pid) != r.pid_started);
    kill(child, SIGKILL);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(ibx_process_started(child), 0); /* a zombie runs nothing */
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(ibx_process_started(child), 0);
    close(pipes[0]);
    close(pipes[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_come_back_as_they_were),
        TEST(only_moves_of_the_table),
        TEST(epochs_only_rise),
        TEST(states_have_names_and_sentences),
        TEST(a_killed_writer_leaves_a_whole_record),
        TEST(full_and_read_only_disks),
        TEST(folders_without_rights),
        TEST(every_truncation_is_noticed),
        TEST(hostile_files_are_named),
        TEST(deep_and_large_files_are_refused),
        TEST(only_plain_files_of_this_user_count),
        TEST(text_that_is_none),
        TEST(newest_come_first),
        TEST(unfinished_moves_are_found),
        TEST(folders_are_chosen_and_made),
        TEST(users_have_theirs_at_home),
        TEST(unfit_folders_are_refused),
        TEST(locks_name_their_holder),
        TEST(locks_outlive_their_file),
        TEST(an_ended_holder_is_told_apart),
        TEST(processes_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
