/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An attacker who can write to a connection composes messages from earlier ones and from bytes
 * of his own. The checker accepts the peer's next message, byte for byte, and nothing else.
 *
 * The input is a series of attempts: u8 which of the sent messages (or none: all bytes are the
 * input's), u8 how many of its bytes are kept, u8 where a byte is changed, u8 by what; for none:
 * u8 length and that many bytes. */
#include "transport/core/mac.h"

#include "common/wire.h"
#include "tests/fuzz/require.h"

#include <string.h>

#define SENT  40u /* more than one refill of keys */
#define BYTES 24u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t sent[SENT][BYTES + IBX_MAC_BYTES];

static void make_all(struct ibx_mac *client)
{
    for (unsigned i = 0; i < SENT; i++) {
        memset(sent[i], (int)(i / 4), BYTES);
        require(!ibx_mac_make(client, sent[i], BYTES, sent[i] + BYTES));
        ibx_mac_sent(client);
    }
}

/* Makes the next attempt. Returns its length. */
static size_t compose(struct ibx_reader *r, uint8_t out[256])
{
    unsigned which = ibx_get_u8(r);
    if (which >= SENT) {
        size_t length = ibx_get_u8(r);
        const uint8_t *bytes = ibx_get_bytes(r, length);
        if (bytes)
            memcpy(out, bytes, length);
        return bytes ? length : 0;
    }
    size_t left = ibx_get_u8(r), at = ibx_get_u8(r);
    uint8_t change = ibx_get_u8(r);
    memset(out, 0, 256);
    memcpy(out, sent[which], sizeof(sent[which]));
    out[at] ^= change;
    return left ? left : sizeof(sent[which]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t session[IBX_HASH_BYTES] = {7};
    struct ibx_mac *client, *server;
    uint8_t message[256];
    bool broken = false;
    unsigned next = 0;
    require(!ibx_mac_create(session, IBX_ROLE_CLIENT, &client, NULL));
    require(!ibx_mac_create(session, IBX_ROLE_SERVER, &server, NULL));
    make_all(client);
    struct ibx_reader r = ibx_reader_of(data, size);
    while (ibx_reader_left(&r) && !r.failed && next < SENT) {
        size_t n = compose(&r, message);
        bool right = !broken && n == sizeof(sent[next]) && !memcmp(message, sent[next], n);
        require(!ibx_mac_check(server, message, n) == right);
        broken = !right;
        next++;
    }
    ibx_mac_destroy(client);
    ibx_mac_destroy(server);
    return 0;
}
