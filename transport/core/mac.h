/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * MACs of messages. Each direction of a connection has a key of its own, and each message of it a
 * one-time key for Poly1305 by its number, which is not sent. So a message that was changed,
 * truncated, repeated, left out, put in another place or turned round has a wrong MAC.
 *
 * Poly1305 is what costs least here (docs/experiments.md). All of it is OpenSSL's.
 */
#ifndef IBX_TRANSPORT_CORE_MAC_H
#define IBX_TRANSPORT_CORE_MAC_H

#include "transport/core/crypto.h"
#include "transport/core/provider.h"

#define IBX_MAC_BYTES 16u /* at the end of each message */

struct ibx_mac;

/* Keys from the session's, for this role's messages and for the peer's. -ENOMEM; -EIO: this OpenSSL
 * lacks an algorithm. */
int ibx_mac_create(const uint8_t session_key[IBX_HASH_BYTES], enum ibx_role role,
                   struct ibx_mac **mac, struct ibx_error *err);
/* Accepts NULL. */
void ibx_mac_destroy(struct ibx_mac *mac);

/* The MAC of the next message to the peer. The message counts with ibx_mac_sent(): until then the
 * next one has the same number, so a MAC of one that was not sent must not leave this process.
 * -EIO. */
int ibx_mac_make(struct ibx_mac *mac, const void *message, size_t length,
                 uint8_t out[IBX_MAC_BYTES]);
void ibx_mac_sent(struct ibx_mac *mac);

/* Checks the peer's next message, which ends with its MAC; nobody else may write to these bytes any
 * more. -EBADMSG: it is not the one that the peer sent next; -EIO. After an error all further
 * messages are refused. */
int ibx_mac_check(struct ibx_mac *mac, const void *message, size_t length);

#endif
