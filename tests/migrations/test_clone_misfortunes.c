/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children of a cache whose process or server fails, or whose pages are not what was frozen. */
#include "tests/fixtures/clones.h"

#include "common/clock.h"
#include "migrate/snapshot/cache.h"
#include "migrate/snapshot/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---------------------------------------------------------------- killed */

/* A child of a cache whose filler is killed before it has asked for a page. */
static void kill_filler(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--max-bandwidth", "64K");
    child_start(&children[0], (const char *[]){"-S", NULL});
    mover_must_print(MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool),
                     "paused, though its parent ran");
    mover_kill(&filler, SIGKILL);
    vm_cont_unserved(&children[0]);
}

/* The process that fills the cache is killed: the child waits, and goes on with the next one. */
static void test_filler_killed(void)
{
    kill_filler();
    /* Another one is not touched meanwhile. */
    child_start(&children[1], NULL);
    mover_must_print(MOVER_RUN(1, "clone", cache, "--qmp", children[1].tool),
                     "nothing fills the cache");
    SERVE(&filler, cache, "--cache", server.uri);
    child_is_right(&children[0]);
    MOVER_RUN(0, "clone", cache, "--qmp", children[1].tool);
    child_is_right(&children[1]);
    mover_await_words(&filler, "\"whole\":true");
    assert_in_range(figure(&filler, "children_so_far"), 1, 2);
}

/* What a killed process would have done next: the folder is whole. */
static void make_whole(void)
{
    char command[600];
    snprintf(command, sizeof(command),
             "dd if=%s/ram.0 of=%s/ram.0 bs=4096 conv=notrunc,sparse status=none && "
             "cp %s/manifest.json %s/",
             snapshot, cache, snapshot, cache);
    assert_int_equal(system(command), 0);
}

/* The filler is killed when the folder is whole and its children do not know that yet. */
static void test_filler_killed_when_whole(void)
{
    char memory[160];
    kill_filler();
    make_whole();
    mover_must_print(MOVER_RUN(1, "serve", cache, "--cache", server.uri),
                     "its children need no server");
    child_is_right(&children[0]);
    is_as_frozen(cache);
    /* Whole, and of another snapshot than the one that is served now. */
    snprintf(memory, sizeof(memory), "%s/memory", mover_folder);
    FILE *file = fopen(memory, "we");
    assert_true(file && !ftruncate(fileno(file), 1 << 20) && !fchmod(fileno(file), 0600));
    fclose(file);
    SERVE(&further, memory, "--listen", "tcp://127.0.0.1:0");
    mover_must_print(
        MOVER_RUN(1, "serve", cache, "--cache", further.uri, "--listen", "tcp://127.0.0.1:0"),
        "serves another snapshot than the one in");
}

/* Likewise, but nobody serves a whole folder any more: the next clone from it releases the
 * children. */
static void test_filler_killed_when_whole_and_not_missed(void)
{
    char path[200];
    kill_filler();
    make_whole();
    child_of(&children[1], cache);
    for (unsigned i = 0; i < 2; i++) {
        /* Also at what is zero. */
        vm_do(&children[i], "pmemsave",
              json_pack("{s:i, s:i, s:s}", "val", 0, "size", VM_RAM_MIB << 20, "filename",
                        "/dev/null"));
        child_is_right(&children[i]);
    }
    snprintf(path, sizeof(path), "%s/child.%d", cache, (int)children[0].pid);
    assert_int_equal(access(path, F_OK), -1);
    is_as_frozen(cache);
}

static void await_words_in(const char *path, const char *words)
{
    const uint64_t until = vm_soon();
    while (!lines_with(path, words)) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

/* Runs a command with $p, the number of the process that fills this host's cache and has this path
 * open. Returns the number that the command prints, or 0. */
static int ask_filler_of(const char *path, const char *then)
{
    char command[500];
    int number = 0;
    snprintf(
        command, sizeof(command),
        "for p in $(pgrep -x ibx-cache); do readlink /proc/$p/fd/* | grep -qx %s && { %s; }; done",
        path, then);
    FILE *out = popen(command, "re");
    assert_non_null(out);
    const int n = fscanf(out, "%d", &number);
    pclose(out);
    return n == 1 ? number : 0;
}

static void signal_filler_of(const char *path, int number)
{
    char then[60];
    snprintf(then, sizeof(then), "kill -%d $p && echo $p", number);
    const uint64_t until = vm_soon();
    while (!ask_filler_of(path, then)) /* it may be about to be started again */
        assert_true(ibx_now_ns() < until);
}

/* The process that would start the filler again ends, though there is a child. */
static void is_not_started_again(int parent)
{
    char exe[60], link[8];
    snprintf(exe, sizeof(exe), "/proc/%d/exe", parent);
    assert_true(parent > 1);
    for (const uint64_t until = vm_soon(); readlink(exe, link, sizeof(link)) >= 0;) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

#define PARENT "sed -n 's/^PPid://p' /proc/$p/status"

/* Only a clone has started the filler: a child does not wait until somebody starts it again, also
 * if its server is away at first. */
static void test_filler_of_a_uri_killed(void)
{
    char uri[300], log[200];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    snprintf(uri, sizeof(uri), "%s", server.uri);
    child_start(&children[0], (const char *[]){"-S", NULL});
    const struct mover *clone =
        MOVER_RUN(0, "clone", uri, "--on-demand", "--json", "--qmp", children[0].tool);
    clone_folder(clone, cache);
    signal_filler_of(cache, SIGKILL);
    vm_cont_unserved(&children[0]);
    child_is_right(&children[0]);
    mover_kill(&server, SIGKILL);
    signal_filler_of(cache, SIGKILL);
    snprintf(log, sizeof(log), "%s/log", cache);
    await_words_in(log, "no server answers");
    SERVE(&server, snapshot, "--listen", uri);
    vm_do(
        &children[0], "pmemsave",
        json_pack("{s:i, s:i, s:s}", "val", 0, "size", VM_RAM_MIB << 20, "filename", "/dev/null"));
    child_is_right(&children[0]);
    assert_true(lines_with(log, "was killed by signal 9") >= 2);
    const int parent = ask_filler_of(cache, PARENT);
    signal_filler_of(cache, SIGTERM);
    await_words_in(log, "its children wait until it is served again");
    is_not_started_again(parent);
}

/* ... also if the filler was just started again, and does not serve yet. */
static void test_filler_of_a_uri_told_to_end_at_its_start(void)
{
    char lock[200];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], (const char *[]){"-S", NULL});
    const struct mover *clone =
        MOVER_RUN(0, "clone", server.uri, "--on-demand", "--json", "--qmp", children[0].tool);
    clone_folder(clone, cache);
    snprintf(lock, sizeof(lock), "%s.lock", cache);
    const int parent = ask_filler_of(cache, PARENT), held = open(lock, O_RDWR | O_CLOEXEC);
    assert_true(held >= 0 && !flock(held, LOCK_EX));
    signal_filler_of(cache, SIGKILL);
    signal_filler_of(lock, SIGTERM); /* which waits for the lock */
    is_not_started_again(parent);
    close(held);
}

/* ... and a clone at work that has not told the filler of its child yet does not fail. */
static void test_filler_of_a_uri_killed_before_its_child(void)
{
    struct mover clone;
    char manifest[200];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], NULL);
    mover_stop_next("clone:mapped");
    mover_start(&clone, (const char *[]){"clone", server.uri, "--on-demand", "--json", "--qmp",
                                         children[0].tool, NULL});
    mover_await_stop(&clone);
    snprintf(manifest, sizeof(manifest), "%s/manifest.json", snapshot);
    json_t *json = json_load_file(manifest, 0, NULL);
    snprintf(cache, sizeof(cache), "/dev/shm/ibx-snapshots-%u/%s", (unsigned)geteuid(),
             json_string_value(json_object_get(json, "id")));
    json_decref(json);
    const int before = ask_filler_of(cache, PARENT);
    signal_filler_of(cache, SIGKILL);
    is_not_started_again(before);
    mover_kill(&clone, SIGCONT);
    mover_ends(&clone, 0);
    child_is_right(&children[0]);
    const int parent = ask_filler_of(cache, PARENT);
    signal_filler_of(cache, SIGTERM);
    is_not_started_again(parent);
}

/* No server answers: the end of a child that waits for a page is seen all the same. */
static void test_child_ends_while_the_server_is_lost(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool);
    mover_kill(&server, SIGKILL);
    mover_await_words(&filler, "connecting again");
    const json_int_t before = figure(&filler, "child_faults");
    vm_cont_unserved(&children[0]);
    await_figure(&filler, "child_faults", before + 1);
    assert_int_equal(figure(&filler, "children"), 1);
    vm_end(&children[0]);
    const uint64_t until = vm_soon();
    while (figure(&filler, "children")) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

/* ... and a child that is made meanwhile is answered between two tries: each of them takes seconds
 * where a server is silent, and a child waits for ten. */
static void test_child_is_made_while_servers_are_silent(void)
{
    enum { SILENT = 4 };
    struct mover clone;
    char uris[SILENT][32], again[300];
    int silent[SILENT];
    const char *line[4 + 2 * (SILENT + 1) + 1] = {"serve", "--json", cache, "--on-demand"};
    unsigned n = 4;
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    snprintf(again, sizeof(again), "%s", server.uri);
    line[n++] = "--cache";
    line[n++] = again;
    for (unsigned i = 0; i < SILENT; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET};
        socklen_t length = sizeof(at);
        silent[i] = mover_listen_in_place_of("tcp://127.0.0.1:0");
        assert_int_equal(getsockname(silent[i], (struct sockaddr *)&at, &length), 0);
        snprintf(uris[i], sizeof(uris[i]), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
        line[n++] = "--cache";
        line[n++] = uris[i];
    }
    serve(&filler, line);
    child_start(&children[0], NULL);
    mover_kill(&server, SIGKILL);
    mover_await_words(&filler, "connecting again");
    mover_start(&clone, (const char *[]){"clone", cache, "--qmp", children[0].tool, NULL});
    await_figure(&filler, "children", 1);
    SERVE(&server, snapshot, "--listen", again);
    mover_ends(&clone, 0);
    child_is_right(&children[0]);
    for (unsigned i = 0; i < SILENT; i++)
        close(silent[i]);
}

/* ... also if there is one server alone, and the transport would wait for it for much longer. */
static void test_child_is_made_while_the_only_server_is_silent(void)
{
    struct mover clone;
    char again[300];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    snprintf(again, sizeof(again), "%s", server.uri);
    serve(&filler, (const char *[]){"serve", "--json", cache, "--on-demand", "--cache", again,
                                    "--set", "timeout_ms=120000", NULL});
    child_start(&children[0], NULL);
    mover_kill(&server, SIGKILL);
    const int silent = mover_listen_in_place_of(again);
    mover_await_words(&filler, "connecting again");
    mover_start(&clone, (const char *[]){"clone", cache, "--qmp", children[0].tool, NULL});
    await_figure(&filler, "children", 1);
    close(silent);
    SERVE(&server, snapshot, "--listen", again);
    mover_ends(&clone, 0);
    child_is_right(&children[0]);
}

/* Another snapshot is now served where this one was: the next server is asked. */
static void test_another_snapshot_in_its_place(void)
{
    char memory[160], first[300], second[300];
    freeze();
    snprintf(memory, sizeof(memory), "%s/memory", mover_folder);
    FILE *file = fopen(memory, "we");
    assert_true(file && !ftruncate(fileno(file), 1 << 20) && !fchmod(fileno(file), 0600));
    fclose(file);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&further, snapshot, "--listen", "tcp://127.0.0.1:0");
    snprintf(first, sizeof(first), "%s", server.uri);
    snprintf(second, sizeof(second), "%s", further.uri);
    SERVE(&filler, cache, "--cache", first, "--cache", second, "--on-demand");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool);
    mover_kill(&further, SIGKILL);
    mover_kill(&server, SIGKILL);
    SERVE(&server, memory, "--listen", first);
    mover_await_words(&filler, "serves another snapshot than the one in");
    SERVE(&further, snapshot, "--listen", second);
    vm_do(&children[0], "cont", NULL);
    child_is_right(&children[0]);
}

/* A cache is filled from another one that has lost its server, and so sends nothing: it does not
 * wait for that for ever. */
static void test_a_cache_that_waits_itself(void)
{
    char second[170];
    freeze();
    snprintf(second, sizeof(second), "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--listen", "shm://127.0.0.1:0");
    mover_kill(&server, SIGKILL);
    mover_await_words(&filler, "connecting again");
    mover_start(&further, (const char *[]){"serve", second, "--cache", filler.uri, "--set",
                                           "timeout_ms=300", NULL});
    mover_ends(&further, 1);
    mover_must_print(&further, "it sends no pages");
    assert_int_equal(access(second, F_OK), -1);
}

/* Two sources for a second cache: a cache that listens at `listen` and has no pages yet, and
 * another server; and the place of the second cache. */
static void serve_two_ways(struct mover *other, const char *listen, char second[170])
{
    freeze();
    snprintf(second, 170, "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(other, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--listen", listen);
}

/* Likewise after it has begun: it turns to another server, and its child goes on. */
static void test_a_cache_that_waits_later(void)
{
    struct mover other;
    char second[170];
    serve_two_ways(&other, "shm://127.0.0.1:0", second);
    SERVE(&further, second, "--cache", filler.uri, "--cache", other.uri, "--on-demand", "--set",
          "timeout_ms=1000");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", second, "--qmp", children[0].tool);
    mover_kill(&server, SIGKILL);
    mover_await_words(&filler, "connecting again");
    vm_cont_unserved(&children[0]);
    mover_await_words(&further, "it sends no pages");
    child_is_right(&children[0]);
    mover_kill(&other, SIGTERM);
    mover_ends(&other, 0);
}

/* ... also if no child waits for a page: the pages that come ahead come from another server. */
static void test_a_cache_that_nobody_waits_for(void)
{
    struct mover other;
    char second[170], turned[240];
    serve_two_ways(&other, "tcp://127.0.0.1:0", second);
    SERVE(&further, second, "--cache", filler.uri, "--cache", other.uri, "--max-bandwidth", "2M",
          "--set", "timeout_ms=1000");
    mover_kill(&filler, SIGSTOP);
    /* Either notices first, after the same time: the connection, or whoever waits for pages. */
    snprintf(turned, sizeof(turned), "pages come from %.200s now", other.uri);
    mover_await_words(&further, turned);
    assert_true(mover_printed(&further, "it sends no pages") ||
                mover_printed(&further, "(no more pages come: Connection timed out)"));
    mover_await_words(&further, "\"whole\":true");
    is_as_frozen(second);
    mover_kill(&filler, SIGCONT);
    mover_kill(&other, SIGTERM);
    mover_ends(&other, 0);
}

/* With a limited rate the cache waits for its pages, though it asks for more at a time than come
 * within the timeout. */
static void test_a_cache_that_is_in_no_hurry(void)
{
    struct mover other;
    char second[170];
    serve_two_ways(&other, "tcp://127.0.0.1:0", second);
    SERVE(&further, second, "--cache", server.uri, "--cache", other.uri, "--max-bandwidth", "64K",
          "--set", "timeout_ms=1000");
    await_figure(&further, "bytes", 256 << 10);
    assert_false(mover_printed(&further, "it sends no pages"));
    assert_int_equal(figure(&further, "reconnects"), 0);
    mover_kill(&other, SIGTERM);
    mover_ends(&other, 0);
}

/* All pages have come while a child is made, and the filler has ended: nobody is needed. */
static void test_whole_while_a_child_is_made(void)
{
    struct mover tool;
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand");
    child_start(&children[0], NULL);
    mover_stop_next("clone:mapped");
    mover_start(&tool, (const char *[]){"clone", cache, "--qmp", children[0].tool, NULL});
    mover_await_stop(&tool);
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    SERVE(&filler, cache, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    kill(tool.pid, SIGCONT);
    mover_ends(&tool, 0);
    child_is_right(&children[0]);
}

/* A QEMU that has ended and that nobody has waited for cannot be traced, whatever rights the tool
 * has. */
static void test_qemu_ends_before_its_memory_is_there(void)
{
    struct mover tool;
    siginfo_t ended;
    freeze();
    child_start(&children[0], NULL);
    mover_stop_next("clone:mapped");
    mover_start(&tool, (const char *[]){"clone", snapshot, "--qmp", children[0].tool, NULL});
    mover_await_stop(&tool);
    assert_int_equal(kill(children[0].pid, SIGTERM), 0);
    assert_int_equal(waitid(P_PID, (id_t)children[0].pid, &ended, WEXITED | WNOWAIT), 0);
    mover_kill(&tool, SIGCONT);
    mover_ends(&tool, 1);
    mover_must_print(&tool, "has ended");
    assert_false(mover_printed(&tool, "run this tool as root"));
    assert_false(mover_printed(&tool, "end this QEMU"));
}

/* A cache that is filled from a cache that dies: it goes on with the parent. */
static void test_inner_node_dies(void)
{
    char second[170];
    freeze();
    snprintf(second, sizeof(second), "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--listen", "tcp://127.0.0.1:0");
    SERVE(&further, second, "--cache", filler.uri, "--cache", server.uri, "--on-demand");
    child_of(&children[0], second);
    child_is_right(&children[0]);
    await_figure(&filler, "bytes", 1);
    mover_kill(&filler, SIGKILL);
    mover_await_words(&further, "pages come from");
    child_is_right(&children[0]);
    child_of(&children[1], second);
    child_is_right(&children[1]);
    await_figure(&further, "reconnects", 1);
}

/* Whether a thread of this name waits for a missing page. */
static bool waits_for_page(pid_t pid, const char *name)
{
    char command[200];
    snprintf(command, sizeof(command),
             "cd /proc/%d/task && for t in *; do grep -q '^%s' $t/comm && "
             "grep -q userfault $t/wchan && exit 0; done; exit 1",
             (int)pid, name);
    return system(command) == 0;
}

/* Pages that are in a cache's file are those of the snapshot. */
static void has_only_what_was_frozen(void)
{
    char path[200];
    static uint8_t page[2][IBX_SNAPSHOT_PAGE];
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    const int frozen = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "%s/ram.0", cache);
    const int cached = open(path, O_RDONLY | O_CLOEXEC);
    off_t at = lseek(cached, 0, SEEK_DATA), end;
    /* Under KVM nothing may have been read before the child's first instruction. */
    assert_true(frozen >= 0 && cached >= 0 && (at >= 0 || errno == ENXIO));
    for (; at >= 0; at = lseek(cached, end, SEEK_DATA))
        for (end = lseek(cached, at, SEEK_HOLE); at < end; at += IBX_SNAPSHOT_PAGE) {
            assert_int_equal(pread(frozen, page[0], sizeof(page[0]), at), sizeof(page[0]));
            assert_int_equal(pread(cached, page[1], sizeof(page[1]), at), sizeof(page[1]));
            assert_memory_equal(page[0], page[1], sizeof(page[0]));
        }
    close(frozen);
    close(cached);
}

/* A reader of this host waits for a page that a cache lacks, and the cache is killed: the cache's
 * file has no page of zeros there afterwards, whatever the cache's URI wants. */
static void test_filler_killed_while_its_reader_waits(void)
{
    char second[170], listen[300];
    freeze();
    snprintf(second, sizeof(second), "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--listen",
          "shm://127.0.0.1:0?shm_direct=yes");
    snprintf(listen, sizeof(listen), "%s", filler.uri);
    SERVE(&further, second, "--cache", filler.uri, "--on-demand");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", second, "--qmp", children[0].tool);
    mover_kill(&server, SIGKILL);
    mover_await_words(&filler, "connecting again");
    vm_cont_unserved(&children[0]);
    const uint64_t until = vm_soon();
    while (!waits_for_page(filler.pid, "ibx-snapshot") && !waits_for_page(further.pid, "ibx-fault"))
        assert_true(ibx_now_ns() < until);
    mover_kill(&filler, SIGKILL);
    mover_await_words(&further, "connecting again");
    has_only_what_was_frozen();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--listen", listen);
    child_is_right(&children[0]);
}

/* ---------------------------------------------------------------- changed */

static void flip_in(const char *folder, const char *name, off_t at)
{
    char path[200];
    uint8_t byte = 0;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void flip(const char *folder, off_t at)
{
    flip_in(folder, "ram.0", at);
}

/* The first page of the VM's memory behind 2 MiB that is not zero. */
static off_t page_with_data(void)
{
    char path[200];
    uint8_t page[IBX_SNAPSHOT_PAGE];
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t at = lseek(fd, 2 << 20, SEEK_DATA);
    while (pread(fd, page, sizeof(page), at) == sizeof(page) && ibx_snapshot_page_is_zero(page))
        at += IBX_SNAPSHOT_PAGE;
    close(fd);
    return at;
}

/* Somebody has changed the snapshot: no child gets that page, and no child can be made of the
 * folder. */
static void test_changed_page(void)
{
    char path[200];
    char words[100];
    freeze();
    const off_t at = page_with_data();
    flip(snapshot, at);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    mover_start(&filler, (const char *[]){"serve", cache, "--cache", server.uri, NULL});
    mover_ends(&filler, 1);
    snprintf(words, sizeof(words), "page %lld came with other bytes than were frozen",
             (long long)at / IBX_SNAPSHOT_PAGE);
    mover_must_print(&filler, words);
    snprintf(path, sizeof(path), "%s/ram.0", cache);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0 && lseek(fd, at, SEEK_DATA) != at);
    close(fd);
    MOVER_RUN(1, "serve", cache, "--listen", "tcp://127.0.0.1:0");
    child_start(&children[0], NULL);
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "are not those that were frozen");
    flip(snapshot, at);
    assert_false(mover_printed(MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool, "--json"),
                               "\"verified_bytes\":0,"));
    child_start(&children[1], NULL);
    mover_must_print(MOVER_RUN(0, "clone", snapshot, "--qmp", children[1].tool, "--json"),
                     "\"verified_bytes\":0,");
    for (unsigned i = 0; i < 2; i++)
        child_is_right(&children[i]);
}

/* The pages are right, but one of their hashes is wrong: at the parent, then at a cache in between,
 * and the parent is asked instead of it. */
static void test_changed_hash(void)
{
    char second[170];
    freeze();
    const off_t at = page_with_data() / IBX_SNAPSHOT_PAGE * IBX_SNAPSHOT_HASH;
    snprintf(second, sizeof(second), "%s.2", cache);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    flip_in(snapshot, "hashes", at);
    mover_start(&filler, (const char *[]){"serve", cache, "--cache", server.uri, NULL});
    mover_ends(&filler, 1);
    mover_must_print(&filler, "did not come, or is not the one that was frozen");
    MOVER_RUN(1, "serve", cache, "--listen", "tcp://127.0.0.1:0");
    flip_in(snapshot, "hashes", at);
    SERVE(&filler, cache, "--cache", server.uri, "--listen", "tcp://127.0.0.1:0");
    mover_await_words(&filler, "\"whole\":true");
    flip_in(cache, "hashes", at);
    SERVE(&further, second, "--cache", filler.uri, "--cache", server.uri);
    mover_await_words(&further, "\"whole\":true");
    mover_must_print(&further, "did not come, or is not the one that was frozen");
    assert_true(figure(&further, "reconnects") > 0);
    is_as_frozen(second);
}

/* One of the hashes that a cache has fetched is changed while nobody serves it: it comes again. */
static void test_changed_hash_of_a_cache_that_is_served_again(void)
{
    char command[400];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    forget_whole(cache);
    flip_in(cache, "hashes", page_with_data() / IBX_SNAPSHOT_PAGE * IBX_SNAPSHOT_HASH);
    SERVE(&filler, cache, "--cache", server.uri);
    mover_await_words(&filler, "\"whole\":true");
    snprintf(command, sizeof(command), "cmp %s/hashes %s/hashes", snapshot, cache);
    assert_int_equal(system(command), 0);
    is_as_frozen(cache);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_changed_page),
        VM_TEST(test_changed_hash),
        VM_TEST(test_changed_hash_of_a_cache_that_is_served_again),
        VM_TEST(test_filler_killed),
        VM_TEST(test_filler_killed_while_its_reader_waits),
        VM_TEST(test_filler_of_a_uri_killed),
        VM_TEST(test_filler_of_a_uri_told_to_end_at_its_start),
        VM_TEST(test_filler_of_a_uri_killed_before_its_child),
        VM_TEST(test_child_ends_while_the_server_is_lost),
        VM_TEST(test_qemu_ends_before_its_memory_is_there),
        VM_TEST(test_inner_node_dies),
        VM_TEST(test_filler_killed_when_whole),
        VM_TEST(test_filler_killed_when_whole_and_not_missed),
        VM_TEST(test_child_is_made_while_servers_are_silent),
        VM_TEST(test_child_is_made_while_the_only_server_is_silent),
        VM_TEST(test_another_snapshot_in_its_place),
        VM_TEST(test_a_cache_that_waits_itself),
        VM_TEST(test_a_cache_that_waits_later),
        VM_TEST(test_a_cache_that_nobody_waits_for),
        VM_TEST(test_a_cache_that_is_in_no_hurry),
        VM_TEST(test_whole_while_a_child_is_made),
        {0},
    };
    return vm_tests(tests, clones_end);
}
