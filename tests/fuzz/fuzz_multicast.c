/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A datagram of a multicast group. What is accepted fits into a page and is the same when it is
 * made again; what was made without the key is refused. The fuzzer cannot seal, so if the first
 * byte is odd, the rest is what a member sends, and is sealed here. */
#include "migrate/multicast/multicast.h"
#include "tests/fuzz/require.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct ibx_multicast_group group = {.id = {'f', 'u', 'z', 'z'}, .key = {7}};

static void take(struct ibx_multicast_cipher *opens, const uint8_t *data, size_t size, bool sealed)
{
    struct ibx_multicast_packet p;
    uint8_t part[IBX_MULTICAST_PAGE];
    size_t length;
    if (!ibx_multicast_peek(data, size, group.id, &p))
        return;
    require(p.parts && p.parts <= IBX_MULTICAST_PARTS_MAX && p.part < p.parts);
    require(size <= IBX_MULTICAST_PACKET);
    require(ibx_multicast_part_at(p.parts, p.part, &length) + length <= IBX_MULTICAST_PAGE);
    require(length == size - IBX_MULTICAST_HEAD - IBX_MULTICAST_TAG);
    require(ibx_multicast_open(opens, data, size, part) == sealed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ibx_multicast_cipher *seals, *opens;
    static uint8_t page[IBX_MULTICAST_PAGE];
    uint8_t out[IBX_MULTICAST_PACKET];
    seals = seals ? seals : ibx_multicast_cipher_create(&group, true);
    opens = opens ? opens : ibx_multicast_cipher_create(&group, false);
    if (size < 3)
        return 0;
    if (data[0] % 2 == 0) {
        take(opens, data + 1, size - 1, false);
        return 0;
    }
    struct ibx_multicast_packet p = {.part = data[1], .parts = data[2] % 17};
    if (!p.parts || p.part >= p.parts)
        return 0;
    for (size_t i = 3; i < size && i < 19; i++)
        *(i % 2 ? &p.number : &p.page) = *(i % 2 ? &p.number : &p.page) << 8 | data[i];
    const size_t n = ibx_multicast_seal(seals, &p, page, out);
    require(n > 0);
    take(opens, out, n, true);
    out[size % n] ^= 1;
    take(opens, out, n, false);
    return 0;
}
