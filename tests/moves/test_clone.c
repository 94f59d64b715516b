/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Children of a snapshot: their memory is the parent's at its freeze, and from then on their own.
 */
#include "tests/scenes/mover.h"

#include "common/clock.h"
#include "migrate/snapshot/snapshot.h"

#include <inttypes.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define CHILDREN 3
#define MIB      "mib=16"
#define CALM     MIB " doze=5000000" /* many of them run at once */
#define PRIVATE  "memory-backend-ram,id=mem0,size=64M"

static char snapshot[160], cache[160], small[160]; /* `small`: a tmpfs, while it is mounted */
static struct mover server, filler, further;
static struct vm children[CHILDREN];

static pid_t started; /* a QEMU that is nobody's child */

static int end(void **state)
{
    char command[200];
    if (started)
        kill(started, SIGKILL);
    started = 0;
    if (*small)
        umount2(small, MNT_DETACH);
    *small = '\0';
    const int rc = mover_end_all(state);
    if (*cache) {
        snprintf(command, sizeof(command), "rm -rf %s %s.2", cache, cache);
        if (system(command))
            return -1;
    }
    *cache = '\0';
    return rc;
}

/* A VM that has run for a while, and its snapshot. */
static void freeze_like(const struct vm_options *like)
{
    mover_begin();
    snprintf(cache, sizeof(cache), "/dev/shm/ibx-clone-%d", (int)getpid());
    vm_start(&vms[0], like);
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
}

static void freeze(void)
{
    freeze_like(&(struct vm_options){.append = CALM});
}

static void serve(struct mover *mover, const char *const *arguments)
{
    char line[1024];
    mover_start(mover, arguments);
    mover_await_words(mover, "\"serving\"");
    FILE *file = fopen(mover->out, "re");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    const char *uri = strstr(line, "\"uri\":\"");
    if (uri)
        assert_int_equal(sscanf(uri, "\"uri\":\"%299[^\"]", mover->uri), 1);
}
#define SERVE(mover, ...) serve((mover), (const char *[]){"serve", "--json", __VA_ARGS__, NULL})

static void child_start(struct vm *child, const char *const *more)
{
    struct vm_options options = {.append = CALM, .ram = PRIVATE, .incoming = true};
    for (size_t i = 0; more && more[i]; i++)
        options.extra[i] = more[i];
    vm_start(child, &options);
}

static void child_of(struct vm *child, const char *folder)
{
    child_start(child, NULL);
    MOVER_RUN(0, "clone", folder, "--qmp", child->tool, "--json");
}

/* It goes on, and every beat from the parent's first one on is right. */
static void child_is_right(struct vm *child)
{
    vm_wait_beats(child, vm_beats(child) + 2);
    assert_true(vm_runs(child));
    mover_heartbeats((const struct vm *[]){&vms[0], child, NULL}, MIB);
}

static json_int_t figure(const struct mover *mover, const char *name)
{
    FILE *file = fopen(mover->out, "re");
    static char line[4096];
    json_int_t value = -1;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        json_t *json = json_loads(line, 0, NULL);
        json_t *is = json_object_get(json_object_get(json, "serving"), name);
        value = is ? json_integer_value(is) : value;
        json_decref(json);
    }
    fclose(file);
    return value;
}

/* Until it prints this number, or more. */
static void await_figure(const struct mover *mover, const char *name, json_int_t least)
{
    const uint64_t until = vm_soon();
    while (figure(mover, name) < least) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

/* ---------------------------------------------------------------- of a snapshot */

/* What the children have written is not in it. Zero pages that they have looked at may be. */
static void is_as_frozen(const char *path)
{
    struct ibx_snapshot_folder folder;
    struct ibx_page_map map;
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    vm_soon();
    vm_ok(ibx_snapshot_folder_open(path, false, &folder, &vm_error));
    vm_ok(ibx_snapshot_folder_map(&folder, &map, &vm_error));
    vm_ok(ibx_snapshot_digest(&folder, &map, digest, &vm_error));
    assert_memory_equal(digest, folder.manifest.digest, sizeof(digest));
    ibx_page_map_fini(&map);
    ibx_snapshot_folder_close(&folder);
}

static void test_of_a_snapshot(void)
{
    freeze();
    for (unsigned i = 0; i < 2; i++)
        child_of(&children[i], snapshot);
    for (unsigned i = 0; i < 2; i++)
        child_is_right(&children[i]);
    assert_false(vm_runs(&vms[0]));
    is_as_frozen(snapshot);
}

/* The parent's lines of serial output up to where the child goes on. */
static void parent_until(const struct vm *child, struct vm *before)
{
    char line[256], first[256] = "";
    unsigned from = 0, count;
    *before = (struct vm){.pid = 0};
    snprintf(before->serial, sizeof(before->serial), "%s/before", mover_folder);
    FILE *theirs = fopen(child->serial, "re"), *in = fopen(vms[0].serial, "re"),
         *out = fopen(before->serial, "we");
    assert_true(theirs && in && out);
    /* The first line may be the end of one that the parent had begun. */
    while (!from && fgets(first, sizeof(first), theirs))
        sscanf(first, "beat %*u %x", &from);
    while (fgets(line, sizeof(line), in) &&
           (sscanf(line, "beat %*u %x", &count) != 1 || count < from))
        fputs(line, out);
    fclose(theirs);
    fclose(in);
    fclose(out);
}

/* The parent runs on, and has written much since. */
static void test_of_a_vm_that_runs_on(void)
{
    struct vm before;
    mover_begin();
    vm_start(&vms[0], &(struct vm_options){.append = CALM});
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool, "--resume");
    vm_wait_beats(&vms[0], vm_beats(&vms[0]) + 4);
    child_of(&children[0], snapshot);
    vm_wait_beats(&children[0], 4);
    mover_heartbeats((const struct vm *[]){&vms[0], NULL}, MIB);
    parent_until(&children[0], &before);
    mover_heartbeats((const struct vm *[]){&before, &children[0], NULL}, MIB);
}

/* One command starts the QEMU and makes it a child. */
static void test_command(void)
{
    char monitor[160], serial[200];
    struct vm child = {.pid = 0};
    int pid;
    freeze();
    snprintf(monitor, sizeof(monitor), "%s/child.qmp", mover_folder);
    snprintf(child.serial, sizeof(child.serial), "%s/serial", mover_folder);
    snprintf(serial, sizeof(serial), "file:%s", child.serial);
#define COMMAND(smp)                                                                               \
    "clone", snapshot, "--qmp", monitor, "--json", "--name", "web-1", "--", getenv("QEMU"), "-M",  \
        "q35", "-accel", "tcg,thread=multi", "-m", "64", "-nodefaults", "-display", "none",        \
        "-no-reboot", "-smp", smp, "-serial", serial, "-object", PRIVATE, "-machine",              \
        "memory-backend=mem0", "-kernel", getenv("GUEST_ELF")
    /* It does not fit: nothing is left of it. */
    mover_must_print(MOVER_RUN(1, COMMAND("2")), "cannot become a child");
    assert_int_equal(access(monitor, F_OK), -1);
    struct mover *done = MOVER_RUN(0, COMMAND("1"));
    FILE *file = fopen(done->out, "re");
    char line[1024];
    assert_true(file && fgets(line, sizeof(line), file));
    fclose(file);
    assert_int_equal(sscanf(strstr(line, "\"pid\":"), "\"pid\":%d", &pid), 1);
    started = pid;
    vm_wait_beats(&child, 3);
    mover_heartbeats((const struct vm *[]){&vms[0], &child, NULL}, MIB);
    mover_must_print(MOVER_RUN(1, COMMAND("1")), "is there already");
    /* The monitor that appears there is another QEMU's, which is let alone. */
    char script[400], stolen[200];
    child_start(&children[0], NULL);
    snprintf(stolen, sizeof(stolen), "%s/stolen.qmp", mover_folder);
    snprintf(script, sizeof(script), "ln -s %s %s; sleep 1000; :", children[0].tool, stolen);
    mover_must_print(
        MOVER_RUN(1, "clone", snapshot, "--qmp", stolen, "--", "/bin/sh", "-c", script),
        "is that of another QEMU");
    assert_int_equal(access(stolen, F_OK), 0);
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
}

/* ---------------------------------------------------------------- identities */

static bool serial_has(const struct vm *vm, const char *words)
{
    static char text[1 << 20];
    FILE *file = fopen(vm->serial, "re");
    const size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    if (file)
        fclose(file);
    text[n] = '\0';
    return strstr(text, words) != NULL;
}

static void id_of(struct vm *vm, uint8_t id[16])
{
    json_t *result = vm_run(vm, "query-vm-generation-id", NULL);
    const char *text = json_string_value(json_object_get(result, "guid"));
    unsigned part[16], n = 0;
    for (; n < 16 && text && *text; text += *text == '-' ? 1 : 2)
        if (*text != '-')
            assert_int_equal(sscanf(text, "%2x", &part[n++]), 1);
    assert_int_equal(n, 16);
    /* As ACPI has it: the first three numbers little-endian. */
    static const unsigned order[16] = {3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15};
    for (unsigned i = 0; i < 16; i++)
        id[i] = (uint8_t)part[order[i]];
    json_decref(result);
}

/* Whether these bytes are in the guest's memory, as the guest sees it. */
static bool guest_has(struct vm *vm, const uint8_t id[16])
{
    static uint8_t memory[VM_RAM_MIB << 20];
    char path[160];
    snprintf(path, sizeof(path), "%s/memory", mover_folder);
    vm_do(vm, "pmemsave",
          json_pack("{s:i, s:i, s:s}", "val", 0, "size", (int)sizeof(memory), "filename", path));
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fread(memory, 1, sizeof(memory), file), sizeof(memory));
    fclose(file);
    unlink(path);
    return memmem(memory, sizeof(memory), id, 16) != NULL;
}

/* The table of ib-migrate(1), "Identities". */
static void test_identities(void)
{
    uint8_t parent[16], child[16];
    static const char uuid[] = "6d1e0a35-2c5b-4ed2-8f14-0123456789ab";
    struct vm_options options = {.append = CALM " host=1",
                                 .extra = {"-device", "vmgenid,guid=auto", "-fw_cfg",
                                           "name=opt/ibx/host,string=parent", "-name", "web",
                                           "-uuid", "6d1e0a35-2c5b-4ed2-8f14-000000000000"}};
    freeze_like(&options);
    assert_true(serial_has(&vms[0], "host parent\n"));
    id_of(&vms[0], parent);
    options.incoming = true;
    options.ram = PRIVATE;
    options.extra[3] = "name=opt/ibx/host,string=child-1";
    options.extra[5] = "web-1";
    options.extra[7] = uuid;
    vm_start(&children[0], &options);
    MOVER_RUN(0, "clone", snapshot, "--qmp", children[0].tool);
    child_is_right(&children[0]);
    assert_true(serial_has(&children[0], "host child-1\n"));
    id_of(&children[0], child);
    assert_memory_not_equal(parent, child, sizeof(child));
    assert_true(guest_has(&children[0], child));
    assert_false(guest_has(&children[0], parent));
    json_t *is = vm_run(&children[0], "query-uuid", NULL);
    assert_string_equal(json_string_value(json_object_get(is, "UUID")), uuid);
    json_decref(is);
}

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
    /* They need nobody any more, and neither does the next. */
    await_figure(&filler, "children_so_far", 0);
    mover_kill(&filler, SIGKILL);
    mover_kill(&server, SIGKILL);
    child_of(&children[2], cache);
    for (unsigned i = 0; i < 3; i++)
        child_is_right(&children[i]);
    is_as_frozen(cache);
}

/* Fetched, when two lines of figures have the same number. */
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

/* The process that fills the cache is killed: the child waits, and goes on with the next one. */
static void test_filler_killed(void)
{
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--max-bandwidth", "64K");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool);
    mover_kill(&filler, SIGKILL);
    vm_do(&children[0], "cont", NULL);
    /* Another one is not touched meanwhile. */
    child_start(&children[1], NULL);
    mover_must_print(MOVER_RUN(1, "clone", cache, "--qmp", children[1].tool),
                     "nobody fills the cache");
    SERVE(&filler, cache, "--cache", server.uri);
    child_is_right(&children[0]);
    MOVER_RUN(0, "clone", cache, "--qmp", children[1].tool);
    child_is_right(&children[1]);
    mover_await_words(&filler, "\"whole\":true");
    assert_in_range(figure(&filler, "children_so_far"), 1, 2);
}

static unsigned lines_with(const char *path, const char *words)
{
    static char line[4096];
    unsigned count = 0;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        count += strstr(line, words) != NULL;
    fclose(file);
    return count;
}

/* Its tmpfs is full: it says so, tries with pauses, and goes on when there is room. */
static void test_no_room_for_a_cache(void)
{
    char folder[180];
    freeze();
    snprintf(small, sizeof(small), "%s/small", mover_folder);
    snprintf(folder, sizeof(folder), "%s/cache", small);
    assert_int_equal(mkdir(small, 0700), 0);
    if (mount("ibx-test", small, "tmpfs", 0, "size=4m")) {
        *small = '\0';
        skip();
    }
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, folder, "--cache", server.uri);
    const uint64_t began = ibx_now_ns(), until = vm_soon();
    while (lines_with(filler.err, "make room") < 3 && ibx_now_ns() < until)
        poll(NULL, 0, 5);
    const uint64_t took = ibx_now_ns() - began;
    const int larger = mount("ibx-test", small, "tmpfs", MS_REMOUNT, "size=64m");
    if (!larger)
        mover_await_words(&filler, "\"whole\":true");
    mover_kill(&filler, SIGTERM);
    mover_ends(&filler, 0);
    is_as_frozen(folder);
    assert_int_equal(larger, 0);
    assert_true(took > 500 * IBX_NS_PER_MS);
}

/* It is killed when the folder is whole and its children do not know that yet. */
static void test_filler_killed_when_whole(void)
{
    char command[600], memory[160];
    freeze();
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    SERVE(&filler, cache, "--cache", server.uri, "--on-demand", "--max-bandwidth", "64K");
    child_start(&children[0], (const char *[]){"-S", NULL});
    MOVER_RUN(0, "clone", cache, "--qmp", children[0].tool);
    mover_kill(&filler, SIGKILL);
    vm_do(&children[0], "cont", NULL);
    snprintf(command, sizeof(command),
             "dd if=%s/ram.0 of=%s/ram.0 bs=4096 conv=notrunc,sparse status=none && "
             "cp %s/manifest.json %s/",
             snapshot, cache, snapshot, cache);
    assert_int_equal(system(command), 0);
    mover_must_print(MOVER_RUN(1, "serve", cache, "--cache", server.uri),
                     "its children need nobody");
    child_is_right(&children[0]);
    is_as_frozen(cache);
    /* Whole, and of another snapshot than the one that is served now. */
    snprintf(memory, sizeof(memory), "%s/memory", mover_folder);
    FILE *file = fopen(memory, "we");
    assert_true(file && !ftruncate(fileno(file), 1 << 20));
    fclose(file);
    SERVE(&further, memory, "--listen", "tcp://127.0.0.1:0");
    mover_must_print(
        MOVER_RUN(1, "serve", cache, "--cache", further.uri, "--listen", "tcp://127.0.0.1:0"),
        "serves another snapshot than the one in");
}

/* A memory file has no digest, and is cached all the same: by who has the key, encrypted. */
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
    assert_true(file && fwrite(is, 1, sizeof(is), file) == sizeof(is));
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

/* ---------------------------------------------------------------- a tree */

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

/* ---------------------------------------------------------------- refusals */

/* Somebody has changed the snapshot: its digest tells when all pages have come. */
static void test_changed_page(void)
{
    char path[200];
    freeze();
    snprintf(path, sizeof(path), "%s/ram.0", snapshot);
    FILE *file = fopen(path, "r+e");
    assert_non_null(file);
    fseek(file, 4 << 20, SEEK_SET); /* of the working set */
    assert_int_equal(fputc(getc(file) ^ 1, file) == EOF, 0);
    fclose(file);
    SERVE(&server, snapshot, "--listen", "tcp://127.0.0.1:0");
    mover_start(&filler, (const char *[]){"serve", cache, "--cache", server.uri, NULL});
    mover_ends(&filler, 1);
    mover_must_print(&filler, "are not those that were frozen: their SHA-256 differs");
    MOVER_RUN(1, "serve", cache, "--listen", "tcp://127.0.0.1:0");
}

static void test_refused(void)
{
    freeze();
    vm_start(&children[0], &(struct vm_options){.append = CALM, .incoming = true});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "memory backend mem0 is shared, and a child's memory is its own");
    vm_end(&children[0]);
    vm_start(&children[0], &(struct vm_options){.append = CALM, .ram = PRIVATE});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "start it with -incoming defer");
    assert_true(vm_runs(&children[0]));
    vm_end(&children[0]);
    vm_start(&children[0],
             &(struct vm_options){.append = CALM, .ram = PRIVATE, .incoming = true, .two = true});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "cannot become a child");
    vm_end(&children[0]);
    child_start(&children[0], (const char *[]){"-overcommit", "mem-lock=on", NULL});
    mover_must_print(MOVER_RUN(1, "clone", snapshot, "--qmp", children[0].tool),
                     "without -overcommit mem-lock");
    mover_must_print(MOVER_RUN(1, "serve", cache, "--cache", "tcp://127.0.0.1:1"), "refused");
    assert_int_equal(access(cache, F_OK), -1);
}

int main(void)
{
    static const struct vm_test tests[] = {
        VM_TEST(test_of_a_vm_that_runs_on),
        VM_TEST(test_changed_page),
        VM_TEST(test_command),
        VM_TEST(test_without_a_digest),
        VM_TEST(test_identities),
        VM_TEST(test_of_a_snapshot),
        VM_TEST(test_of_a_cache),
        VM_TEST(test_on_demand),
        VM_TEST(test_filler_killed),
        VM_TEST(test_inner_node_dies),
        VM_TEST(test_refused),
        VM_TEST(test_filler_killed_when_whole),
        VM_TEST(test_no_room_for_a_cache),
        {0},
    };
    return vm_tests(tests, end);
}
