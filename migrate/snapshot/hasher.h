/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The hash of one page of a snapshot, or of a piece of its table, as snapshot.h says what it is:
 * for one thread. */
#ifndef IBX_MIGRATE_SNAPSHOT_HASHER_H
#define IBX_MIGRATE_SNAPSHOT_HASHER_H

#include "migrate/snapshot/snapshot.h"

#include <openssl/evp.h>

struct ibx_snapshot_hasher {
    EVP_MD *md;
    EVP_MD_CTX *context;
    uint8_t prefix[IBX_SNAPSHOT_ID + 8]; /* the snapshot's id, and a page's number */
};

/* False: no memory. */
bool ibx_snapshot_hasher_init(struct ibx_snapshot_hasher *hasher,
                              const uint8_t id[IBX_SNAPSHOT_ID]);
void ibx_snapshot_hasher_fini(struct ibx_snapshot_hasher *hasher);
/* The hash of `bytes`; of zeros it is zeros. -EIO: OpenSSL failed. */
int ibx_snapshot_hasher_bytes(struct ibx_snapshot_hasher *hasher, uint64_t number,
                              const uint8_t *bytes, size_t length, uint8_t hash[IBX_SNAPSHOT_HASH],
                              struct ibx_error *err);
int ibx_snapshot_hasher_page(struct ibx_snapshot_hasher *hasher, uint64_t page,
                             const uint8_t *bytes, uint8_t hash[IBX_SNAPSHOT_HASH],
                             struct ibx_error *err);

#endif
