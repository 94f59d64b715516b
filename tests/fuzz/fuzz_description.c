/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A source's description of its VM as a destination accepts it, and texts for people that both
 * read from QEMU. Whatever they contain, the comparison ends, and its sentences are whole lines.
 *
 *   first byte 0   the rest is a peer's description
 *              1   "info qtree"        2   "info ramblock"        3   a line of mountinfo */
#include "migrate/preflight/description.h"
#include "tests/fuzz/require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char own_text[] =
    "{\"host\":\"a\",\"kvm\":true,\"cpus\":[\"core-id 0\"],\"cpu\":\"qemu64\","
    "\"cpuid\":{\"7.0 EBX\":\"1f\"},"
    "\"machine\":{\"smm\":\"on\"},\"numa\":[\"node 0 cpus: 0\"],\"memory\":[\"dimm\"],"
    "\"ram\":{\"pc.bios\":[1,2]},\"backends\":[\"user\"],"
    "\"virtio\":{\"/p\":{\"name\":\"n\",\"addr\":8,\"used\":[\"A\"],\"offered\":[\"A\"]}},"
    "\"devices\":[{\"type\":\"nic\",\"at\":"
    "\"03.0\","
    "\"plugged\":true,\"properties\":{\"mac\":\"1\"}},{\"type\":\"i\",\"at\":\"i\",\"plugged\":"
    "false,"
    "\"properties\":{}}],\"disks\":[{\"at\":\"03.0\",\"type\":\"nic\",\"bytes\":100,\"read-only\":"
    "false,"
    "\"layers\":[{\"role\":\"\",\"driver\":\"qcow2\"},{\"role\":\"file\",\"driver\":\"file\","
    "\"file\":\"/x\",\"reach\":\"cluster\",\"inode\":\"5\",\"source\":\"s:/"
    "e\",\"digest\":\"d\"}]}]}";

static void check_sentences(const char (*texts)[IBX_ERROR_MAX], size_t count, size_t most)
{
    for (size_t i = 0; i < count && i < most; i++)
        require(texts[i][0] && !strchr(texts[i], '\n'));
}

static void compare(const json_t *here, const json_t *there)
{
    static struct ibx_blockers found;
    for (unsigned i = 0; i < 4; i++) {
        found.count = found.note_count = 0;
        ibx_compare(&(struct ibx_comparison){.source = here,
                                             .destination = there,
                                             .same_version = i & 1,
                                             .disks_differ = i & 2,
                                             .blockers = &found});
        require(found.note_count <= IBX_NOTES_MAX);
        check_sentences(found.reasons, found.count, IBX_BLOCKERS_MAX);
        check_sentences(found.notes, found.note_count, IBX_NOTES_MAX);
    }
}

static void take_description(const char *text, size_t length)
{
    struct ibx_error err = {0};
    json_t *theirs, *ours;
    if (ibx_description_read(text, length, &theirs, &err)) {
        require(err.code && err.message[0]);
        return;
    }
    require(!ibx_description_read(own_text, strlen(own_text), &ours, NULL));
    compare(theirs, ours);
    compare(ours, theirs);
    static struct ibx_blockers same;
    same.count = 0;
    ibx_compare(&(struct ibx_comparison){
        .source = ours, .destination = ours, .same_version = true, .blockers = &same});
    require(!same.count);
    json_decref(theirs);
    json_decref(ours);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = size ? calloc(1, size) : NULL;
    json_t *json = NULL;
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1); /* as fuzz_records.c has it */
    if (data[0] % 4 == 0)
        take_description((const char *)data + 1, size - 1);
    else if (data[0] % 4 == 1)
        json = ibx_devices_of_qtree(text);
    else if (data[0] % 4 == 2)
        json = ibx_ram_of_ramblock(text);
    else if ((json = json_object()))
        ibx_disk_mount(text, "/mnt/disk", json);
    json_decref(json);
    free(text);
    return 0;
}
