/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/clones.h"

#include "common/clock.h"
#include "migrate/snapshot/snapshot.h"

#include <sys/mount.h>

char snapshot[160], cache[160], small[160], made[160];
pid_t started;
struct mover server, filler, further;
struct vm children[CHILDREN];

int clones_end(void **state)
{
    char command[800];
    if (started)
        kill(started, SIGKILL);
    started = 0;
    if (*small)
        umount2(small, MNT_DETACH);
    *small = '\0';
    const int rc = mover_end_all(state);
    if (*cache) {
        snprintf(command, sizeof(command), "rm -rf %s %s.2 %s.lock %s %s.lock", cache, cache, cache,
                 made, made);
        if (system(command))
            return -1;
    }
    *cache = *made = '\0';
    return rc;
}

void freeze_like(const struct vm_options *like)
{
    mover_begin();
    snprintf(cache, sizeof(cache), "/dev/shm/ibx-clone-%d", (int)getpid());
    vm_start(&vms[0], like);
    vm_wait_beats(&vms[0], 2);
    snprintf(snapshot, sizeof(snapshot), "%s/snapshot", mover_folder);
    MOVER_RUN(0, "freeze", snapshot, "--qmp", vms[0].tool);
}

void freeze(void)
{
    freeze_like(&(struct vm_options){.append = CALM});
}

void serve(struct mover *mover, const char *const *arguments)
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

void child_start(struct vm *child, const char *const *more)
{
    struct vm_options options = {.append = CALM, .ram = PRIVATE, .incoming = true};
    for (size_t i = 0; more && more[i]; i++)
        options.extra[i] = more[i];
    vm_start(child, &options);
}

void child_of(struct vm *child, const char *folder)
{
    child_start(child, NULL);
    MOVER_RUN(0, "clone", folder, "--qmp", child->tool, "--json");
}

void child_is_right(struct vm *child)
{
    vm_wait_beats(child, vm_beats(child) + 2);
    assert_true(vm_runs(child));
    mover_heartbeats((const struct vm *[]){&vms[0], child, NULL}, MIB);
}

json_int_t figure(const struct mover *mover, const char *name)
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

void await_figure(const struct mover *mover, const char *name, json_int_t least)
{
    const uint64_t until = vm_soon();
    while (figure(mover, name) < least) {
        assert_true(ibx_now_ns() < until);
        poll(NULL, 0, 20);
    }
}

void is_as_frozen(const char *path)
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

unsigned lines_with(const char *path, const char *words)
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
