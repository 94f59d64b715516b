/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a reader of a snapshot receives from its server, and the server from a reader. Accepted
 * values are within their limits, and the same when they are encoded and decoded again.
 *
 *   first byte even   the rest is a manifest
 *   first byte odd    a message */
#include "migrate/snapshot/snapshot.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_manifest(const char *text, size_t length)
{
    static struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX];
    struct ibx_snapshot_manifest m, again;
    struct ibx_error err = {0};
    uint64_t sum = 0;
    size_t written;
    char *other;
    if (ibx_snapshot_manifest_read(text, length, &m, &err)) {
        require(err.code && err.message[0] && !strchr(err.message, '\n'));
        return;
    }
    require(m.ram_count && m.ram_count <= IBX_SNAPSHOT_RAM_MAX);
    require(m.state_bytes && m.state_bytes <= IBX_SNAPSHOT_STATE_MAX);
    const unsigned count = ibx_snapshot_blocks(&m, blocks);
    for (unsigned i = 0; i < count; i++) {
        require(blocks[i].size && blocks[i].size % IBX_SNAPSHOT_PAGE == 0 && blocks[i].id[0]);
        sum += blocks[i].size;
    }
    const uint64_t most = IBX_SNAPSHOT_BYTES_MAX + IBX_SNAPSHOT_STATE_MAX;
    require(sum <= most + most / IBX_SNAPSHOT_PAGE * IBX_SNAPSHOT_HASH + IBX_SNAPSHOT_PAGE);
    if (!ibx_snapshot_manifest_write(&m, &other, &written, NULL)) {
        require(!ibx_snapshot_manifest_read(other, written, &again, NULL));
        require(again.ram_count == m.ram_count && !memcmp(again.id, m.id, sizeof(m.id)) &&
                again.state_bytes == m.state_bytes && json_equal(again.description, m.description));
        ibx_snapshot_manifest_fini(&again);
        free(other);
    }
    ibx_snapshot_manifest_fini(&m);
}

static void take_message(const uint8_t *data, size_t size)
{
    static uint8_t out[IBX_MIGRATE_MESSAGE];
    struct ibx_snapshot_any m;
    struct ibx_error err = {0};
    if (ibx_snapshot_decode(data, size, &m, &err)) {
        require(err.code && err.message[0]);
        return;
    }
    const ssize_t length = ibx_snapshot_encode(&m, out, sizeof(out));
    /* any other code is read as this one */
    const bool any_number = m.type == IBX_SNAPSHOT_NO_GROUP && m.code == -EPROTO;
    if (length >= 0 && !any_number)
        require((size_t)length == size && !memcmp(out, data, size));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (data[0] % 2)
        take_message(data + 1, size - 1);
    else
        take_manifest((const char *)data + 1, size - 1);
    return 0;
}
