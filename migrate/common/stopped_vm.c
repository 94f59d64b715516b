/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Why a VM is stopped although nobody has paused it, as a sentence for a person. */
#include "migrate/common/vm.h"

#include <stdio.h>
#include <string.h>

#define GO_ON "then cont in the monitor of its QEMU lets it go on"

static bool is(const char *text, const char *wanted)
{
    return text && !strcmp(text, wanted);
}

/* The first disk in `blocks` (of query-block) with a failed request, or NULL. A part of `blocks`.
 * QEMU no longer knows it when the VM has migrated. */
static json_t *failed_disk(json_t *blocks)
{
    size_t i;
    json_t *block;
    json_array_foreach(blocks, i, block)
    {
        const char *status = json_string_value(json_object_get(block, "io-status"));
        if (is(status, "nospace") || is(status, "failed"))
            return block;
    }
    return NULL;
}

/* A disk of -blockdev has no name of its own, but that of its device (qdev). */
static void name_disk(json_t *block, char *text, size_t size)
{
    const json_t *inserted = json_object_get(block, "inserted");
    const char *name = json_string_value(json_object_get(block, "device"));
    const char *file = json_string_value(json_object_get(inserted, "file"));
    if (!name || !name[0])
        name = json_string_value(json_object_get(block, "qdev"));
    snprintf(text, size, "%.100s%s%.200s%s", name ? name : "without a name", file ? " (" : "",
             file ? file : "", file ? ")" : "");
}

static void say_disk(struct ibx_qmp *qmp, char *text, size_t size, uint64_t deadline_ns)
{
    json_t *blocks = NULL;
    char disk[320];
    if (qmp)
        ibx_qmp_execute(qmp, "query-block", NULL, &blocks, deadline_ns, NULL);
    json_t *block = failed_disk(blocks);
    if (block)
        name_disk(block, disk, sizeof(disk));
    if (block && is(json_string_value(json_object_get(block, "io-status")), "nospace"))
        snprintf(text, size, "there is no room for what its disk %s is to hold: make room, " GO_ON,
                 disk);
    else if (block)
        snprintf(text, size, "a request of its disk %s has failed: mend that storage, " GO_ON,
                 disk);
    else
        snprintf(text, size,
                 "a request of one of its disks has failed: see that their storage is there and "
                 "has room, " GO_ON);
    json_decref(blocks);
    ibx_text_sanitize(text);
}

bool ibx_vm_say_stopped(struct ibx_qmp *qmp, const char *status, char *text, size_t size,
                        uint64_t deadline_ns)
{
    if (is(status, IBX_VM_IO_ERROR))
        say_disk(qmp, text, size, deadline_ns);
    else if (is(status, "watchdog"))
        snprintf(text, size,
                 "its watchdog has stopped it, because its guest did not answer that in "
                 "time: see what the guest was doing, " GO_ON);
    else if (is(status, "guest-panicked"))
        snprintf(text, size,
                 "its guest has panicked: see its console; system_reset and cont in the monitor of "
                 "its QEMU restart it");
    else
        return false;
    return true;
}
