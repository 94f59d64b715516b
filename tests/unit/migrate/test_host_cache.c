/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The process that fills this host's cache writes its log into the folder that it was started
 * with, even if somebody replaces that folder: in a container /dev/shm may lack the sticky bit.
 * The test acts as the server and as the filling process, and has a /dev/shm of its own. */
#include "migrate/snapshot/snapshot.h"
#include "tests/fixtures/unit.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
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

/* ------------------------------------------------------------ the case */

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

static void fill_cache(struct ibx_host_cache *cache)
{
    const struct ibx_serve_options options = {.caches = {"tcp://127.0.0.1:1"}, .cache_count = 1};
    struct ibx_error err = {0};
    if (ibx_snapshot_host_cache(&options, cache, &err))
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_replaced_folder),
                                       cmocka_unit_test(test_long_log),
                                       cmocka_unit_test(test_log_that_cannot_be_reopened),
                                       cmocka_unit_test(test_others_cannot_occupy_the_name)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
