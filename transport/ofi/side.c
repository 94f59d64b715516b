/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Offer and answer of the two ends, and which of its own addresses an end should use. */
#include "transport/ofi/ofi.h"

#include "common/address.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define OFFER_VERSION 1
#define SLOTS_MAX     4096u
#define MESSAGE_MIN   512u /* the handshake agrees on 1 KiB at least; fabrics may have less */
#define MESSAGE_MAX   (16u << 20)
#define BOOT_ID       "/proc/sys/kernel/random/boot_id"

/* --------------------------------------------------------- what is exchanged */

void ibx_ofi_side_put(struct ibx_writer *w, const struct ofi_side *side)
{
    ibx_put_u8(w, OFFER_VERSION);
    ibx_put_string(w, side->provider);
    ibx_put_string(w, side->fabric);
    ibx_put_u32(w, side->version);
    ibx_put_u32(w, side->addr_format);
    ibx_put_u64(w, side->host);
    ibx_put_u32(w, side->slots);
    ibx_put_u32(w, side->message);
    ibx_put_u8(w, (uint8_t)side->lanes);
    for (unsigned i = 0; i < side->lanes; i++) {
        ibx_put_u16(w, (uint16_t)side->address[i].length);
        ibx_put_bytes(w, side->address[i].bytes, side->address[i].length);
    }
}

int ibx_ofi_side_get(struct ibx_reader *r, struct ofi_side *side, struct ibx_error *err)
{
    unsigned version = ibx_get_u8(r);
    if (version != OFFER_VERSION)
        return ibx_error_set(err, -EPROTO, "the peer's libfabric offer has version %u, not %d",
                             version, OFFER_VERSION);
    ibx_get_string(r, side->provider, sizeof(side->provider));
    ibx_get_string(r, side->fabric, sizeof(side->fabric));
    side->version = ibx_get_u32(r);
    side->addr_format = ibx_get_u32(r);
    side->host = ibx_get_u64(r);
    side->slots = ibx_get_u32(r);
    side->message = ibx_get_u32(r);
    side->lanes = ibx_get_u8(r);
    for (unsigned i = 0; !r->failed && i < side->lanes && i < OFI_LANES_MAX; i++) {
        size_t length = ibx_get_u16(r);
        const uint8_t *bytes = ibx_get_bytes(r, length);
        if (!bytes || !length || length > OFI_ADDRESS_MAX)
            return ibx_error_set(err, -EPROTO, "the peer's libfabric address has %zu bytes",
                                 length);
        memcpy(side->address[i].bytes, bytes, length);
        side->address[i].length = length;
    }
    ibx_text_sanitize(side->provider);
    ibx_text_sanitize(side->fabric);
    if (r->failed || !side->lanes || side->lanes > OFI_LANES_MAX || !side->slots ||
        side->slots > SLOTS_MAX || side->message < MESSAGE_MIN || side->message > MESSAGE_MAX)
        return ibx_error_set(err, -EPROTO, "the peer's libfabric offer is malformed");
    return 0;
}

/* fi_av_insert() reads as many bytes as the format has, without their number. */
bool ibx_ofi_side_fits(const struct ofi_side *own, const struct ofi_side *peer)
{
    if (peer->addr_format != own->addr_format)
        return false;
    for (unsigned i = 0; i < peer->lanes; i++) {
        size_t length = peer->address[i].length;
        bool text = own->addr_format == FI_ADDR_STR;
        if (text ? peer->address[i].bytes[length - 1] != '\0' : length != own->address[0].length)
            return false;
    }
    return true;
}

uint64_t ibx_ofi_side_host(void)
{
    uint64_t id = 0;
    FILE *f = fopen(BOOT_ID, "re");
    for (int c, digits = 0; f && digits < 16 && (c = fgetc(f)) != EOF;) {
        if (c == '-')
            continue;
        id = id << 4 | (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        digits++;
    }
    if (f)
        fclose(f);
    return id;
}

/* ----------------------------------------------------------------- addresses */

void ibx_ofi_side_local_towards(const struct ofi_side *peer, struct sockaddr_storage *local)
{
    struct sockaddr_storage to = {0};
    memset(local, 0, sizeof(*local));
    bool six = peer->addr_format == FI_SOCKADDR_IN6;
    size_t bytes = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if ((!six && peer->addr_format != FI_SOCKADDR_IN) || peer->address[0].length != bytes)
        return;
    memcpy(&to, peer->address[0].bytes, bytes);
    if (to.ss_family != (six ? AF_INET6 : AF_INET))
        return;
    int fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (!connect(fd, (struct sockaddr *)&to, (socklen_t)bytes))
        ibx_address_of_socket(fd, false, local);
    close(fd);
}
