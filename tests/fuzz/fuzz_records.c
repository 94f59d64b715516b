/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Texts that one process leaves for the next: the record of a migration, the record of a
 * snapshot's child, the parts of its memory that are zero, the kernel's list of a process's
 * control groups, and a tool's status of its migration, as the first byte says. */
#include "migrate/journal/journal_internal.h"
#include "migrate/migrate.h"
#include "migrate/preflight/preflight.h"
#include "migrate/snapshot/cache.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHILD_BLOCKS 2u
#define BLOCK_BYTES  (64ull << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_sentence(const struct ibx_error *err)
{
    require(err->code && err->message[0] && !strpbrk(err->message, "\x1b\n\r"));
}

/* What was read can be written, and is then the same. */
static void record(const char *text, size_t length)
{
    static struct ibx_record first, again;
    struct ibx_error err = {0};
    char *made = NULL, sentence[IBX_ERROR_MAX];
    size_t n;
    if (ibx_journal_text_parse(text, length, &first, &err)) {
        check_sentence(&err);
        return;
    }
    ibx_journal_describe(&first, sentence, sizeof(sentence));
    require(sentence[0] && !strpbrk(sentence, "\x1b\n\r"));
    if (ibx_journal_text_make(&first, &made, &n, &err)) {
        check_sentence(&err);
        return;
    }
    require(!ibx_journal_text_parse(made, n, &again, &err));
    require(again.state == first.state && again.pid == first.pid &&
            again.block_count == first.block_count &&
            !memcmp(again.id, first.id, sizeof(first.id)));
    free(made);
}

static void child(const char *text, size_t length)
{
    struct snapshot_child found;
    struct ibx_error err = {0};
    if (ibx_snapshot_child_read(text, length, CHILD_BLOCKS, &found, &err)) {
        check_sentence(&err);
        return;
    }
    require(found.pid > 0 && found.count == CHILD_BLOCKS);
    json_t *json = ibx_snapshot_child_json(&found);
    char *made = json_dumps(json, JSON_COMPACT);
    require(made && !ibx_snapshot_child_read(made, strlen(made), CHILD_BLOCKS, &found, &err));
    free(made);
    json_decref(json);
}

static void holes(const char *text, size_t length)
{
    static struct ibx_snapshot_folder folder;
    struct snapshot_holes found;
    json_t *json = json_loadb(text, length, JSON_DECODE_ANY, NULL);
    folder.manifest.ram_count = CHILD_BLOCKS;
    folder.sizes[0] = folder.sizes[1] = BLOCK_BYTES;
    ibx_snapshot_holes_read(json, &folder, &found);
    require(found.count <= SNAPSHOT_HOLES);
    for (unsigned i = 0; i < found.count; i++)
        require(found.at[i].block < CHILD_BLOCKS && found.at[i].length &&
                found.at[i].offset <= BLOCK_BYTES &&
                found.at[i].length <= BLOCK_BYTES - found.at[i].offset);
    json_decref(json);
}

static void groups(const char *text, size_t length)
{
    char name[PATH_MAX] = "", *copy = calloc(1, length + 1);
    require(copy);
    memcpy(copy, text, length); /* strndup() is an error of strict_string_checks without a NUL */
    require(ibx_preflight_memory_room("/nowhere", copy, 0, name) == UINT64_MAX);
    free(copy);
}

/* The answer of the running tool to `ib-migrate status`. */
static void status(const char *text, size_t length)
{
    static struct ibx_migrate_status found;
    struct ibx_error err = {0};
    json_t *json = json_loadb(text, length, 0, NULL);
    if (ibx_migrate_status_take(json, &found, &err)) {
        check_sentence(&err);
    } else {
        json_t *again = ibx_migrate_status_json(&found);
        require(again);
        json_decref(again);
    }
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const takes[])(const char *text, size_t length) = {record, child, holes, groups,
                                                                     status};
    if (size)
        takes[data[0] % (sizeof(takes) / sizeof(takes[0]))]((const char *)data + 1, size - 1);
    return 0;
}
