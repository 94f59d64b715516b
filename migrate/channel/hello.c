/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The part of a HELLO that describes the VM. */
#include "migrate/channel/protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ibx_migrate_host(char *host, size_t size)
{
    if (gethostname(host, size - 1) || !host[0])
        snprintf(host, size, "unnamed");
    host[size - 1] = '\0';
}

uint16_t ibx_migrate_describe_blocks(struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX],
                                     const struct ibx_guest_ram *ram)
{
    const size_t count = ram->count < IBX_GUEST_BLOCKS_MAX ? ram->count : IBX_GUEST_BLOCKS_MAX;
    memset(blocks, 0, IBX_GUEST_BLOCKS_MAX * sizeof(*blocks));
    for (size_t i = 0; i < count; i++) {
        memcpy(blocks[i].id, ram->blocks[i].id, sizeof(blocks[i].id));
        blocks[i].size = ram->blocks[i].size;
        blocks[i].page_size = ram->blocks[i].page_size;
        blocks[i].file = ram->blocks[i].file;
    }
    return (uint16_t)count;
}

void ibx_migrate_hello_describe(struct ibx_migrate_hello *hello, const struct ibx_guest_ram *ram)
{
    ibx_migrate_host(hello->host, sizeof(hello->host));
    hello->version = ram->version;
    memcpy(hello->machine, ram->machine, sizeof(hello->machine));
    memcpy(hello->uuid, ram->uuid, sizeof(hello->uuid));
    memcpy(hello->name, ram->name, sizeof(hello->name));
    hello->block_count = ibx_migrate_describe_blocks(hello->blocks, ram);
}

int ibx_migrate_hello_ram(const struct ibx_migrate_hello *hello, struct ibx_guest_ram *ram)
{
    struct ibx_guest_ram found = {.version = hello->version, .count = hello->block_count};
    memcpy(found.machine, hello->machine, sizeof(found.machine));
    memcpy(found.uuid, hello->uuid, sizeof(found.uuid));
    memcpy(found.name, hello->name, sizeof(found.name));
    found.blocks = calloc(found.count ? found.count : 1, sizeof(*found.blocks));
    if (!found.blocks)
        return -ENOMEM;
    for (unsigned i = 0; i < found.count; i++) {
        memcpy(found.blocks[i].id, hello->blocks[i].id, sizeof(found.blocks[i].id));
        found.blocks[i].size = hello->blocks[i].size;
        found.blocks[i].page_size = hello->blocks[i].page_size;
        found.blocks[i].file = hello->blocks[i].file;
        found.blocks[i].shared = hello->blocks[i].page_size != 0;
        found.blocks[i].fd = -1;
        found.bytes += hello->blocks[i].size;
    }
    *ram = found;
    return 0;
}
