/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A QEMU that answers anything (fake_qmp.h): what is asked before a migration, and before a
 * child is made. The input is the object of its answers. */
#include "migrate/common/return_path.h"
#include "migrate/common/libvirt.h"
#include "migrate/common/vm.h"
#include "migrate/preflight/description.h"
#include "migrate/snapshot/cache.h"
#include "tests/fuzz/fake_qmp.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ------------------------------------------------------------ the questions */

static struct ibx_qmp *const qmp = FAKE_QMP;
static struct ibx_error err;
static struct ibx_blockers found;

/* Each has a sentence that a terminal can show. */
static void check_found(void)
{
    for (size_t i = 0; i < found.count + found.note_count; i++) {
        const bool reason = i < found.count;
        const size_t at = reason ? i : i - found.count;
        if (at >= (reason ? (size_t)IBX_BLOCKERS_MAX : (size_t)IBX_NOTES_MAX))
            continue;
        const char *text = reason ? found.reasons[at] : found.notes[at];
        require(text[0] && !strpbrk(text, "\x1b\n\r"));
    }
    require(!strpbrk(err.message, "\x1b\n\r"));
    found.count = found.note_count = 0;
}

static void preflight(const struct ibx_guest_ram *ram)
{
    struct ibx_settings settings = {.change = NULL};
    json_t *compared = NULL;
    bool nests = false;
    ibx_preflight_devices(qmp, &found, 0, &err);
    ibx_preflight_block_users(qmp, &found, 0, &err);
    ibx_preflight_replay(qmp, &found, 0, &err);
    ibx_preflight_warm(qmp, ram, &nests, 0, &err);
    ibx_preflight_gives_back(qmp, "tcp", 0, &err);
    ibx_preflight_wants_zeros(qmp, 0, &err);
    check_found();
    if (!ibx_preflight_compared(qmp, true, &compared, 0, &err)) {
        ibx_preflight_since(qmp, true, compared, &found, 0, &err);
        require(!found.count);
        json_t *none = json_pack("{s:{}, s:{}}", "disks", "devices");
        ibx_preflight_since(qmp, true, none, &found, 0, &err);
        json_decref(none);
    }
    json_decref(compared);
    check_found();
    ibx_preflight_listening(ram, json_object_get(fake_qmp_answers, "query-migrate"), &found);
    check_found();
    if (!ibx_settings_plan(qmp, &settings, 0, &err)) {
        ibx_settings_set(qmp, &settings, 0, &err);
        ibx_settings_restore(qmp, settings.before, 0, &err);
        ibx_settings_fini(&settings);
    }
    ibx_libvirt_check_settings(qmp, 0, &err);
    ibx_tracker_settle(qmp, 0, &err);
    check_found();
}

static void state_of(void)
{
    struct ibx_vm_progress now;
    char figures[IBX_JOURNAL_FIGURES];
    ibx_vm_status(qmp, now.status, sizeof(now.status), 0, &err);
    ibx_vm_migration(qmp, &now, 0, &err);
    ibx_return_path_last(qmp, figures, 0, &err);
    check_found();
}

static void describe(const struct ibx_guest_ram *ram)
{
    struct snapshot_network network = {.count = 0};
    json_t *description, *again = NULL;
    char *text = NULL;
    size_t length;
    if (ibx_describe(qmp, ram, &description, 0, &err)) {
        check_found();
        return;
    }
    if (!ibx_description_write(description, &text, &length, &err) &&
        !ibx_description_read(text, length, &again, &err)) {
        ibx_compare(&(struct ibx_comparison){
            .source = description, .destination = again, .same_version = true, .blockers = &found});
        check_found();
    }
    free(text);
    json_decref(again);
    if (!ibx_snapshot_network_find(qmp, json_object_get(fake_qmp_answers, "parent"), description,
                                   &network, &found, &err)) {
        require(network.count <= SNAPSHOT_CARDS);
        check_found();
        ibx_snapshot_network_up(qmp, &network, 0, &err);
    }
    check_found();
    json_decref(description);
}

static void find_ram(void)
{
    struct ibx_guest_ram ram;
    if (ibx_guest_ram_find(qmp, false, &ram, 0, &err)) {
        check_found();
        return;
    }
    ibx_preflight_ram(&ram, &found);
    check_found();
    ibx_guest_ram_fini(&ram);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ibx_guest_block block = {.id = "mem0", .fd = -1};
    const struct ibx_guest_ram ram = {.blocks = &block, .count = 1};
    fake_qmp_answers = json_loadb((const char *)data, size, 0, NULL);
    if (json_is_object(fake_qmp_answers)) {
        err = (struct ibx_error){0};
        preflight(&ram);
        state_of();
        describe(&ram);
        find_ram();
    }
    json_decref(fake_qmp_answers);
    return 0;
}
