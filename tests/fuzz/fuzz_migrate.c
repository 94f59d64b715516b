/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the two tools of a migration receive from each other. A message that can be decoded
 * encodes to one that decodes to the same. A page map accepts any piece or says why not, and its
 * contents can be sent again.
 *
 *   first byte 0   the rest is a message; a MAP also goes to the map below
 *   else           pieces of a map, each after its length in two bytes. The byte chooses the map's
 *                  blocks: one or two of up to 3 segments, with a last word that is not full */
#include "migrate/pages/pages.h"

#include "common/wire.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void refused(int rc, const struct ibx_error *err)
{
    require(rc == -EPROTO || rc == -EPROTONOSUPPORT);
    require(err->code == rc && err->message[0] && !strchr(err->message, '\n'));
}

/* ------------------------------------------------------------ the map */

static struct ibx_page_map map_of(uint8_t choice)
{
    const struct ibx_migrate_block blocks[] = {
        {"a", ((uint64_t)(choice >> 2 & 15) * 13000 + 1) * 4096, 4096, 0},
        {"b", (uint64_t)(choice >> 6) << 21, 2u << 20, 0}};
    struct ibx_page_map map;
    require(!ibx_page_map_init(&map, blocks, 1 + (choice & 1), NULL));
    return map;
}

static int count_data(void *context, uint64_t first, uint64_t count, bool data)
{
    (void)first;
    *(uint64_t *)context += data ? count : 0;
    return 0;
}

static void check_map(const struct ibx_page_map *map, uint8_t choice)
{
    struct ibx_page_map again = map_of(choice);
    uint8_t piece[9000], hash[IBX_MIGRATE_HASH_BYTES], hash_again[IBX_MIGRATE_HASH_BYTES];
    uint64_t page = 0, data = 0;
    require(map->next <= map->pages && map->data_pages <= map->pages);
    require(!ibx_page_map_runs(map, count_data, &data) && data == map->data_pages);
    for (size_t n; (n = ibx_page_map_encode(map, &page, piece, sizeof(piece)));)
        require(!ibx_page_map_decode(&again, piece, n, NULL));
    require(again.next == again.pages && again.data_pages == map->data_pages);
    ibx_page_map_hash(map, hash);
    ibx_page_map_hash(&again, hash_again);
    require(!memcmp(hash, hash_again, sizeof(hash)));
    ibx_page_map_fini(&again);
}

static void take_pieces(uint8_t choice, struct ibx_reader *r)
{
    struct ibx_page_map map = map_of(choice);
    int rc = 0;
    while (!rc && ibx_reader_left(r)) {
        struct ibx_error err = {0};
        size_t length = ibx_get_u16(r);
        const uint8_t *piece = ibx_get_bytes(r, length);
        if (!piece)
            break;
        rc = ibx_page_map_decode(&map, piece, length, &err);
        if (rc)
            refused(rc, &err);
    }
    check_map(&map, choice);
    ibx_page_map_fini(&map);
}

/* ------------------------------------------------------------ messages */

static void check_hello(const struct ibx_migrate_hello *hello)
{
    struct ibx_guest_ram ram;
    static struct ibx_migrate_hello again;
    require(!ibx_migrate_hello_ram(hello, &ram));
    ibx_migrate_hello_describe(&again, &ram);
    require(again.block_count == hello->block_count && !strcmp(again.uuid, hello->uuid));
    ibx_guest_ram_fini(&ram);
}

static void take_message(const uint8_t *data, size_t size)
{
    static struct ibx_migrate_any message, again;
    static uint8_t out[IBX_MIGRATE_MESSAGE], twice[IBX_MIGRATE_MESSAGE];
    struct ibx_error err = {0};
    int rc = ibx_migrate_decode(data, size, &message, &err);
    if (rc) {
        refused(rc, &err);
        return;
    }
    /* Only text may have been changed, so that it can be shown. */
    require(ibx_migrate_encode(&message, out, sizeof(out)) == (ssize_t)size);
    for (size_t i = 0; i < size; i++)
        require(out[i] == data[i] || out[i] == '?');
    require(!ibx_migrate_decode(out, size, &again, NULL));
    require(ibx_migrate_encode(&again, twice, sizeof(twice)) == (ssize_t)size);
    require(!memcmp(out, twice, size));
    if (message.type == IBX_MIGRATE_HELLO)
        check_hello(message.is.hello);
    if (message.type == IBX_MIGRATE_MAP) {
        struct ibx_page_map map = map_of(29);
        ibx_page_map_decode(&map, message.is.map.bytes, message.is.map.length, NULL);
        check_map(&map, 29);
        ibx_page_map_fini(&map);
    }
    ibx_migrate_message_free(&message);
    ibx_migrate_message_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    struct ibx_reader r = ibx_reader_of(data + 1, size - 1);
    if (data[0])
        take_pieces(data[0], &r);
    else
        take_message(data + 1, size - 1);
    return 0;
}
