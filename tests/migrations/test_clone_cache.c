/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children that use a host's cache of a snapshot, and how the cache gets its pages. */
#include "tests/fixtures/clones.h"

#include "common/clock.h"

#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- of a cache */

static void test_of_a_cache(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri);
    for (unsigned i = 0; i < 2; i++)
        child_of(&children[i], cache);
    mover_await_words(&filler, "\"whole\":true");
    for (unsigned i = 0; i < 2; i++)
        child_is_right(&children[i]);
    /* The children need nobody any more, and neither does the next one. */
    await_figure(&filler, "children_so_far", 0);
    mover_kill(&filler, SIGKILL);
    mover_kill(&server, SIGKILL);
    child_of(&children[2], cache);
    for (unsigned i = 0; i < 3; i++)
        child_is_right(&children[i]);
    is_as_frozen(cache);
}

/* The bytes that were fetched, once two lines of figures have the same number. */
static json_int_t settled_bytes(void)
{
    const uint64_t until = vm_soon();
    json_int_t before = -1, now = figure(&filler, "bytes");
    while (now != before) {
        struct stat st, later;
        assert_int_equal(stat(filler.out, &st), 0);
        for (later = st; later.st_size == st.st_size && ibx_now_ns() < until;
             assert_int_equal(stat(filler.out, &later), 0))
            poll(NULL, 0, 20);
        before = now;
        now = figure(&filler, "bytes");
    }
    return now;
}

/* A page crosses once, whatever the number of children, and only if somebody needs it. */
static void test_on_demand(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "shm://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand");
    child_of(&children[0], cache);
    /* The kernel would make huge pages where pages are missing. */
    assert_true(access("/sys/kernel/mm/transparent_hugepage", F_OK) ||
                vm_memory_has(&children[0], cache, " nh"));
    child_is_right(&children[0]);
    await_figure(&filler, "child_faults", 1);
    const json_int_t bytes = settled_bytes();
    assert_true(bytes > 0);
    for (unsigned i = 1; i < 3; i++)
        child_of(&children[i], cache);
    for (unsigned i = 1; i < 3; i++)
        child_is_right(&children[i]);
    await_figure(&filler, "children_so_far", 3);
    settled_bytes();
    print_message("%" PRId64 " bytes for one child, %" PRId64 " for three\n", (int64_t)bytes,
                  (int64_t)figure(&filler, "bytes"));
    assert_true(figure(&filler, "bytes") <= bytes + bytes / 5);
    assert_true(figure(&filler, "bytes") <= 17 << 20);
}

/* A memory file has no digest, and is cached all the same, encrypted, by tools that have the
 * key. */
static void test_without_a_digest(void)
{
    char path[160], ram[200], key[160];
    static uint8_t is[1 << 20], got[sizeof(is)];
    mover_begin();
    snprintf(cache, sizeof(cache), "/dev/shm/ibx-clone-%d", (int)getpid());
    snprintf(path, sizeof(path), "%s/memory", mover_folder);
    snprintf(ram, sizeof(ram), "%s/ram.0", cache);
    for (size_t i = 0; i < sizeof(is) / 2; i++)
        is[i] = (uint8_t)(i * 7 + i / 4096);
    FILE *file = fopen(path, "we");
    assert_true(file && fwrite(is, 1, sizeof(is), file) == sizeof(is) &&
                !fchmod(fileno(file), 0600));
    fclose(file);
    snprintf(key, sizeof(key), "%s/key", mover_folder);
    file = fopen(key, "we");
    assert_true(file && fprintf(file, "%032d\n", 7) > 0 && !fchmod(fileno(file), 0600));
    fclose(file);
    SERVE(&server, path, "--listen", "tcp://127.0.0.1:0", "--key-file", key, "--encryption",
          "required");
    mover_must_print(MOVER_RUN(1, "serve", cache, "--cache", server.uri), "key");
    assert_int_equal(access(cache, F_OK), -1);
    SERVE(&filler, cache, "--cache", server.uri, "--key-file", key, "--encryption", "required");
    mover_await_words(&filler, "\"whole\":true");
    file = fopen(ram, "re");
    assert_true(file && fread(got, 1, sizeof(got), file) == sizeof(got));
    fclose(file);
    assert_memory_equal(got, is, sizeof(is));
}

/* Over a fabric that READs without the cache's processor, the cache sends its pages in messages,
 * also those that it has to fetch first. */
static void test_a_cache_over_ofi(void)
{
    char second[170];
    mover_needs_ofi();
    freeze();
    snprintf(second, sizeof(second), "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--listen", OFI);
    SERVE(&further, second, "--cache", filler.uri, "--set", PATIENT);
    child_of(&children[0], second);
    child_is_right(&children[0]);
    mover_await_words(&further, "\"whole\":true");
    assert_true(figure(&filler, "bytes") >= figure(&further, "bytes") / 2);
    await_figure(&filler, "asks", 1);
    child_is_right(&children[0]);
    is_as_frozen(second);
}

/* ---------------------------------------------------------------- of a URI */

static json_int_t last_number(const struct mover *mover, const char *name)
{
    char line[1024], words[64];
    long long value = -1;
    FILE *file = fopen(mover->out, "re");
    assert_true(file && fgets(line, sizeof(line), file));
    fclose(file);
    snprintf(words, sizeof(words), "\"%s\":", name);
    const char *at = strstr(line, words);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(words), "%lld", &value), 1);
    return value;
}

/* No command was given before on this host: the first child makes its cache, others use it. */
static void test_of_a_uri(void)
{
    char folder[300], manifest[320];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], NULL);
    child_start(&children[1], NULL);
    /* Both at once. */
    mover_start(&filler,
                (const char *[]){"clone", server.uri, "--json", "--qmp", children[0].tool, NULL});
    mover_start(&further,
                (const char *[]){"clone", server.uri, "--json", "--qmp", children[1].tool, NULL});
    mover_ends(&filler, 0);
    mover_ends(&further, 0);
    clone_folder(&filler, cache);
    snprintf(folder, sizeof(folder), "%s", cache);
    for (unsigned i = 0; i < 2; i++)
        child_is_right(&children[i]);
    /* The process that fills it ends by itself; the next child needs neither it nor the server. */
    snprintf(manifest, sizeof(manifest), "%s/manifest.json", folder);
    const uint64_t until = vm_soon();
    while (lines_with(manifest, "\"complete\":true") != 1) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
    snprintf(manifest, sizeof(manifest), "%s/children", folder); /* its socket */
    while (!access(manifest, F_OK)) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
    child_start(&children[2], NULL);
    struct mover *third = MOVER_RUN(0, "clone", server.uri, "--json", "--qmp", children[2].tool);
    assert_int_equal(last_number(third, "verified_bytes"), 0);
    mover_kill(&server, SIGKILL);
    child_is_right(&children[2]);
    is_as_frozen(folder);
    mover_must_print(MOVER_RUN(1, "clone", server.uri, "--qmp", children[2].tool), "no server");
}

/* The process that clone leaves behind keeps no descriptor of its caller, such as a lock. */
static void test_of_a_uri_in_a_script(void)
{
    char command[1200], line[1024];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], NULL);
    snprintf(command, sizeof(command),
             "(flock 9; exec \"$IB_MIGRATE\" clone %s --on-demand --json --qmp %s --state-dir %s) "
             "9>%s/lock",
             server.uri, children[0].tool, mover_state_dir, mover_folder);
    FILE *out = popen(command, "re");
    assert_true(out && fgets(line, sizeof(line), out));
    assert_int_equal(pclose(out), 0);
    const char *folder = strstr(line, "\"folder\":\"");
    assert_true(folder && sscanf(folder, "\"folder\":\"%159[^\"]", cache) == 1);
    snprintf(command, sizeof(command), "flock -n %s/lock true", mover_folder);
    const int free_now = system(command);
    /* It has the folder open. */
    snprintf(command, sizeof(command),
             "for p in /proc/[0-9]*; do readlink $p/fd/* | grep -qx %s && kill ${p#/proc/}; done; "
             "true",
             cache);
    child_is_right(&children[0]);
    assert_int_equal(system(command), 0);
    assert_int_equal(free_now, 0);
}

/* ---------------------------------------------------------------- by multicast */

/* Children are made while their caches are filled, which takes some 10 s: what they need does not
 * wait for that. */
static void test_by_multicast(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0", "--multicast", "--multicast-rate",
          "2M");
    SERVE(&filler, cache, "--cache", server.uri, "--multicast");
    await_figure(&filler, "multicast_pages", 1);
    child_of(&children[0], cache);
    child_is_right(&children[0]);
    assert_true(figure(&filler, "present") < figure(&filler, "pages"));
    await_figure(&filler, "child_faults", 1);
    /* The cache that clone makes asks, too. */
    child_start(&children[1], NULL);
    struct mover *second =
        MOVER_RUN(0, "clone", server.uri, "--multicast", "--json", "--qmp", children[1].tool);
    clone_folder(second, made);
    child_is_right(&children[1]);
    await_figure(&server, "multicast_joined", 2);
    await_figure(&filler, "present", (json_int_t)(VM_RAM_MIB << 8));
    assert_true(figure(&filler, "multicast_pages") > 100);
    assert_int_equal(figure(&filler, "multicast_wrong"), 0);
    child_is_right(&children[0]);
    is_as_frozen(cache);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_without_a_digest),
        VM_TEST(test_of_a_cache),
        VM_TEST(test_on_demand),
        VM_TEST(test_a_cache_over_ofi),
        VM_TEST(test_of_a_uri_in_a_script),
        VM_TEST(test_of_a_uri),
        VM_TEST(test_by_multicast),
        {0},
    };
    return vm_tests(tests, clones_end);
}
