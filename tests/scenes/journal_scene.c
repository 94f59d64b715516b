/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/journal_scene.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

char folder[64];
struct ibx_error error;

int make_folder(void **state)
{
    (void)state;
    /* Where fsync(2) costs nothing, if there is such a place. */
    snprintf(folder, sizeof(folder), "%s/ibx-record-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    return mkdtemp(folder) ? 0 : -1;
}

int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    return system(command);
}

struct ibx_record sample(bool source, uint8_t number)
{
    struct ibx_record r = {.source = source,
                           .epoch = 1,
                           .state = source ? IBX_JOURNAL_HERE : IBX_JOURNAL_NOT_YET,
                           .uuid = "01234567-89ab-cdef-0123-456789abcdef",
                           .name = "db1",
                           .qmp = "/run/db1.qmp",
                           .pid = 4242,
                           .pid_started = 123456789,
                           .uri = "tcp://node-b:7471",
                           .peer = "node-b",
                           .key_file = "/etc/ibx.key",
                           .key_name = "node-a",
                           .allow = "node-a,node-c",
                           .encryption = IBX_ENCRYPTION_REQUIRED,
                           .uffd = source ? -1 : 31,
                           .device_way = !source,
                           .was_running = source,
                           .vm_status = "running",
                           .settings = "{\"capabilities\":{\"events\":false},"
                                       "\"parameters\":{\"tls-creds\":\"theirs\"}}",
                           .hold = source ? 4711 : 0,
                           .stream = source ? 4712 : 0,
                           .guarded = source,
                           .machine = "pc-q35-7.2",
                           .source_key_known = true,
                           .source_key = "node-b",
                           .insecure = true,
                           .block_count = 2,
                           .blocks = {{.id = "mem0"}, {.id = "mem1"}}};
    for (unsigned i = 0; i < r.block_count; i++) {
        r.blocks[i].size = 64 << 20;
        r.blocks[i].page_size = i ? 2 << 20 : 4096;
        r.blocks[i].offset = (uint64_t)i << 30;
        r.blocks[i].address = 0x7f0000000000 + ((uint64_t)i << 30);
        r.blocks[i].dev = 26;
        r.blocks[i].ino = UINT64_MAX - i;
        if (!source)
            continue;
        snprintf(r.blocks[i].file.path, sizeof(r.blocks[i].file.path), "/dev/shm/db1.%u", i);
        r.blocks[i].file.file = UINT64_MAX - i;
        r.blocks[i].file.owner = 107;
        r.blocks[i].file.mode = 0100600;
    }
    memset(r.id, number, sizeof(r.id));
    if (source)
        strcpy(r.qemu_migration, "10-1-2-5");
    return r;
}

int write_record(struct ibx_record *r)
{
    memset(&error, 0, sizeof(error));
    int rc = ibx_journal_write(folder, r, &error);
    if (rc) {
        assert_int_equal(error.code, rc);
        assert_true(error.message[0] && !strchr(error.message, '\n'));
    }
    return rc;
}

void error_has(const char *word)
{
    if (!strstr(error.message, word))
        fail_msg("\"%s\" does not say \"%s\"", error.message, word);
}

void put_file(const char *path, const char *text, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, length), length);
    close(fd);
}

size_t get_file(const char *path, char *text, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, size - 1);
    assert_true(n >= 0);
    text[n] = '\0';
    close(fd);
    return (size_t)n;
}

struct ibx_record only(void)
{
    struct ibx_record *all, r;
    size_t count;
    if (ibx_journal_list(folder, &all, &count, &error))
        fail_msg("%s", error.message);
    assert_int_equal(count, 1);
    r = all[0];
    free(all);
    return r;
}

static void replace(const char *path, const char *text, const char *from, const char *to)
{
    char changed[8192];
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s", from);
    int n = snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to,
                     at + strlen(from));
    put_file(path, changed, (size_t)n);
}

void change(const struct ibx_record *r, const char *from, const char *to)
{
    char path[PATH_MAX], text[8192];
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    get_file(path, text, sizeof(text));
    replace(path, text, from, to);
}

void list_refuses(const struct ibx_record *r, const char *word)
{
    char path[PATH_MAX];
    struct ibx_record *all = NULL, found;
    size_t count = 77;
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    assert_int_equal(ibx_journal_list(folder, &all, &count, &error), -EBADMSG);
    assert_null(all);
    assert_int_equal(count, 77);
    error_has(path);
    error_has(word);
    assert_false(strchr(error.message, '\n') || strchr(error.message, '\033'));
    assert_int_equal(ibx_journal_find(folder, r->qmp, ibx_journal_over, &found, &error), -EBADMSG);
}

void each_is_refused(const struct ibx_record *r, const struct wrong *wrong, size_t count)
{
    char path[PATH_MAX], text[8192];
    ibx_journal_path(folder, r, ".json", path, sizeof(path));
    get_file(path, text, sizeof(text));
    for (size_t i = 0; i < count; i++) {
        replace(path, text, wrong[i].from, wrong[i].to);
        list_refuses(r, wrong[i].word);
    }
}

pid_t fork_bound(void)
{
    const pid_t parent = getpid();
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent))
        _exit(1);
    return child;
}

bool become_nobody(void)
{
    return geteuid() || (!setgid(65534) && !setuid(65534));
}

void passes_in_child(int (*test)(void))
{
    int status;
    assert_true(geteuid() || !chown(folder, 65534, 65534));
    pid_t child = fork_bound();
    if (!child)
        _exit(test());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIP)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

void complete_as_its_state(struct ibx_record *r)
{
    const bool has =
        !r->source && (r->state == IBX_JOURNAL_COMPLETE || r->state == IBX_JOURNAL_DONE);
    memset(&r->totals, 0, sizeof(r->totals));
    if (!has)
        return;
    r->totals = (struct ibx_journal_totals){1000, 600, 7, {0}};
    memset(r->totals.hash, 0xa7, sizeof(r->totals.hash));
}

void bring_to(struct ibx_record *r, enum ibx_journal_state wanted)
{
    static const enum ibx_journal_state before[2][14] = {
        {[IBX_JOURNAL_MAY_RUN] = IBX_JOURNAL_NOT_YET,
         [IBX_JOURNAL_RUNNING] = IBX_JOURNAL_MAY_RUN,
         [IBX_JOURNAL_COMPLETE] = IBX_JOURNAL_RUNNING,
         [IBX_JOURNAL_DONE] = IBX_JOURNAL_COMPLETE,
         [IBX_JOURNAL_GIVEN_UP] = IBX_JOURNAL_NOT_YET,
         [IBX_JOURNAL_BROKEN] = IBX_JOURNAL_RUNNING,
         [IBX_JOURNAL_SHUT_DOWN] = IBX_JOURNAL_RUNNING,
         [IBX_JOURNAL_ENDED] = IBX_JOURNAL_SHUT_DOWN},
        {[IBX_JOURNAL_MAY_RUN] = IBX_JOURNAL_HERE,
         [IBX_JOURNAL_MOVED] = IBX_JOURNAL_MAY_RUN,
         [IBX_JOURNAL_DONE] = IBX_JOURNAL_MOVED,
         [IBX_JOURNAL_KEPT] = IBX_JOURNAL_HERE,
         [IBX_JOURNAL_ROLLED_BACK] = IBX_JOURNAL_MAY_RUN,
         [IBX_JOURNAL_BROKEN] = IBX_JOURNAL_MOVED,
         [IBX_JOURNAL_ENDED] = IBX_JOURNAL_MOVED}};
    if (!wanted)
        return;
    bring_to(r, before[r->source][wanted]);
    r->state = wanted;
    complete_as_its_state(r);
    assert_int_equal(write_record(r), 0);
}
