/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The process that fills this host's cache writes its log into the folder that it was started
 * with, even if somebody replaces that folder: in a container /dev/shm may lack the sticky bit.
 * The test acts as the server and as the filling process, and has a /dev/shm of its own. */
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/unit.h"

#include "common/clock.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUND_LINES 100u
#define OTHER       12345 /* another user's id */
#define ID          "00000000000000000000000000000000"

static char top[64], moved[80];

/* --------------------------------------------------------------------------- replaced functions */

int __wrap_ibx_snapshot_reader_open(const char *uri, const struct ibx_options *options,
                                    unsigned links, struct ibx_snapshot_reader **out,
                                    struct ibx_error *err);
int __wrap_ibx_snapshot_reader_open(const char *uri, const struct ibx_options *options,
                                    unsigned links, struct ibx_snapshot_reader **out,
                                    struct ibx_error *err)
{
    (void)uri, (void)options, (void)links, (void)out, (void)err;
    return 0;
}

const struct ibx_snapshot_manifest *
__wrap_ibx_snapshot_reader_manifest(const struct ibx_snapshot_reader *reader);
const struct ibx_snapshot_manifest *
__wrap_ibx_snapshot_reader_manifest(const struct ibx_snapshot_reader *reader)
{
    static const struct ibx_snapshot_manifest none;
    (void)reader;
    return &none;
}

void __wrap_ibx_snapshot_reader_close(struct ibx_snapshot_reader *reader);
void __wrap_ibx_snapshot_reader_close(struct ibx_snapshot_reader *reader)
{
    (void)reader;
}

static unsigned rounds; /* how often the server logs; 0: never */

static int log_much(const struct ibx_serve_options *options)
{
    const struct ibx_serve_status status = {.whole = false};
    char line[200];
    int rc = mkdir(options->folder, 0700);
    for (unsigned i = 0; !rc && i < rounds; i++) {
        options->status(options->context, &status);
        for (unsigned k = 0; k < ROUND_LINES; k++) {
            snprintf(line, sizeof(line), "%0*u", (int)sizeof(line) - 2, i * ROUND_LINES + k);
            options->notify(options->context, line);
        }
    }
    return rc;
}

/* The cache is made; then somebody moves the user's folder of caches elsewhere. */
int __wrap_ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err);
int __wrap_ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err)
{
    const struct ibx_serve_status status = {.whole = false};
    if (rounds)
        return log_much(options);
    if (mkdir(options->folder, 0700) || rename(top, moved) || mkdir(top, 0755) ||
        mkdir(options->folder, 0755))
        return ibx_error_set(err, -errno, "%s: %s", options->folder, strerror(errno));
    options->status(options->context, &status);
    return 0;
}

static void race(const char *fresh);
static bool races; /* a filling process exchanges its folder for another clone's of this user */

int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    const bool first = races;
    races = false;
    if (first && (rmdir(top) || mkdir(top, 0700))) /* as that clone does just before */
        return -1;
    const int rc = __real_renameat2(from_dir, from, to_dir, to, flags);
    if (first)
        race(to);
    return rc;
}

/* ------------------------------------------------------------ the cases */

static bool is_there(const char *folder)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/" ID "/log", folder);
    return !access(path, F_OK);
}

/* Mounts an empty /dev/shm for this process. Returns false if that is not possible. */
static bool has_shm(const char *tmpfs)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/dev/shm", "tmpfs", 0, tmpfs))
        return false;
    snprintf(top, sizeof(top), "/dev/shm/ibx-snapshots-%u", (unsigned)geteuid());
    snprintf(moved, sizeof(moved), "%s.moved", top);
    return true;
}

static int try_to_fill(struct ibx_host_cache *cache, struct ibx_error *err)
{
    const struct ibx_serve_options options = {.caches = {"tcp://127.0.0.1:1"}, .cache_count = 1};
    return ibx_snapshot_host_cache(&options, cache, err);
}

static void fill_cache(struct ibx_host_cache *cache)
{
    struct ibx_error err = {0};
    if (try_to_fill(cache, &err))
        fail_msg("%s", err.message);
}

/* Makes the cache of this host in an empty /dev/shm. Returns false if that is not possible. */
static bool make_cache(struct ibx_host_cache *cache, const char *tmpfs)
{
    if (!has_shm(tmpfs))
        return false;
    fill_cache(cache);
    return true;
}

static void test_replaced_folder(NO_STATE)
{
    struct ibx_host_cache cache;
    if (!make_cache(&cache, "mode=0777"))
        skip();
    assert_string_equal(cache.folder + strlen(top), "/" ID);
    assert_false(is_there(top));
    assert_true(is_there(moved));
}

static unsigned long last_line(const struct ibx_host_cache *cache, const char *name, off_t *bytes)
{
    char path[160], line[256];
    struct stat st;
    unsigned long last = 0;
    snprintf(path, sizeof(path), "%.120s/%s", cache->folder, name);
    FILE *log = fopen(path, "re");
    assert_true(log && !fstat(fileno(log), &st));
    *bytes += st.st_size;
    while (fgets(line, sizeof(line), log))
        last = strtoul(line, NULL, 10);
    fclose(log);
    return last;
}

/* The log takes memory that the host's VMs need, and the process may run for weeks. */
static void log_much_in(struct ibx_host_cache *cache, const char *tmpfs)
{
    rounds = 500;
    if (!make_cache(cache, tmpfs))
        skip();
    while (wait(NULL) > 0) /* also the process of the other case */
        ;
}

static void test_long_log(NO_STATE)
{
    struct ibx_host_cache cache;
    off_t bytes = 0;
    log_much_in(&cache, "mode=0777");
    const unsigned long last = last_line(&cache, "log", &bytes),
                        before = last_line(&cache, "log.old", &bytes);
    assert_int_equal(last, rounds * ROUND_LINES - 1);
    assert_true(before < last && last - before < rounds * ROUND_LINES / 2);
    assert_in_range(bytes, 1 << 20, 3 << 20);
}

/* There is only room for the folder of caches, this cache, its lock and its log. */
static void test_log_that_cannot_be_reopened(NO_STATE)
{
    struct ibx_host_cache cache;
    off_t bytes = 0;
    log_much_in(&cache, "mode=0777,nr_inodes=5");
    assert_int_equal(last_line(&cache, "log.old", &bytes), rounds * ROUND_LINES - 1);
    assert_in_range(bytes, 1, 3 << 20);
}

/* What another user has made there, before root's first clone. */
static void takes_the_place_of(int made)
{
    struct ibx_host_cache cache;
    struct stat st;
    assert_int_equal(made, 0);
    fill_cache(&cache);
    assert_int_equal(lstat(top, &st), 0);
    assert_true(S_ISDIR(st.st_mode) && st.st_uid == geteuid() && (st.st_mode & 07777) == 0700);
    assert_true(is_there(top));
}

/* Every user can make files in /dev/shm. Nobody may keep root from cloning. */
static void test_others_cannot_occupy_the_name(NO_STATE)
{
    char inner[96];
    if (geteuid() || !has_shm("mode=1777"))
        skip();
    rounds = 1;
    snprintf(inner, sizeof(inner), "%s/inner", top);
    takes_the_place_of(mkdir(top, 0777) || chown(top, OTHER, OTHER));
    for (unsigned i = 0; i < 4; i++) {
        if (!has_shm("mode=1777"))
            skip();
        takes_the_place_of(i == 0   ? mknod(top, S_IFREG | 0600, 0) || chown(top, OTHER, OTHER)
                           : i == 1 ? symlink("/tmp", top) || lchown(top, OTHER, OTHER)
                           : i == 2 ? mkdir(top, 0700) || chown(top, OTHER, OTHER)
                                    : mkdir(top, 0700) || mkdir(inner, 0700) ||
                                          chown(top, OTHER, OTHER));
    }
}

/* Whether somebody waits until this folder is unlocked. */
static bool is_waited_for(const char *folder)
{
    char line[160], number[64] = "";
    bool found = false;
    struct stat st;
    FILE *locks = stat(folder, &st) ? NULL : fopen("/proc/locks", "re");
    if (locks)
        snprintf(number, sizeof(number), " %02x:%02x:%lu ", major(st.st_dev), minor(st.st_dev),
                 (unsigned long)st.st_ino);
    while (locks && !found && fgets(line, sizeof(line), locks))
        found = strstr(line, "->") && strstr(line, number);
    if (locks)
        fclose(locks);
    return found;
}

/* Another clone begins while there is a folder at its place that is about to lose it. Returns once
 * that clone waits, or has taken the folder for its own. */
static void race(const char *folder)
{
    struct ibx_host_cache cache;
    const uint64_t deadline = ibx_deadline_in_ms(60000);
    char lock[160];
    snprintf(lock, sizeof(lock), "%s/" ID ".lock", folder);
    if (!fork()) {
        close_range(3, ~0u, 0); /* the lock belongs to the other clone */
        _exit(try_to_fill(&cache, NULL) != 0);
    }
    while (access(lock, F_OK) && !is_waited_for(folder) && ibx_now_ns() < deadline)
        sched_yield();
}

static unsigned entries_of(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    unsigned count = 0;
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

/* Three clones of root's begin at once where another user's folder is. */
static void test_clones_of_one_user_at_once(NO_STATE)
{
    struct ibx_host_cache cache;
    int status;
    if (geteuid() || !has_shm("mode=1777"))
        skip();
    rounds = 1;
    races = true;
    assert_int_equal(mkdir(top, 0777) || chown(top, OTHER, OTHER), 0);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* of all that clones start */
    while (wait(NULL) > 0)                                 /* for those of the other cases */
        ;
    fill_cache(&cache);
    races = false;
    while (wait(&status) > 0)
        assert_int_equal(status, 0);
    assert_true(is_there(top));
    assert_int_equal(entries_of("/dev/shm"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replaced_folder),
                                       cmocka_unit_test(test_long_log),
                                       cmocka_unit_test(test_log_that_cannot_be_reopened),
                                       cmocka_unit_test(test_others_cannot_occupy_the_name),
                                       cmocka_unit_test(test_clones_of_one_user_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
