/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/copies_internal.h"

#include "common/log.h"

void *copies_hold(struct ibx_session *s, const struct ibx_remote *remote, uint64_t at, uint64_t n,
                  unsigned access)
{
    struct copies *x = &s->copies;
    struct ibx_remote part = *remote;
    struct ibx_reach reach;
    struct ibx_error err = {0};
    if (s->ops_pending || at > remote->length || n > remote->length - at)
        return NULL;
    part.address += at;
    part.length = n;
    if (ibx_remote_hold(s->conn, &part, access, &reach))
        return NULL;
    if (reach.id &&
        ibx_client_pin(&x->pins, x->cuda, reach.base, reach.length, reach.id, reach.writable, &err))
        return reach.address;
    if (err.code && !x->unpinned) {
        x->unpinned = true;
        ibx_log(IBX_LOG_WARN, "copies for %s go through chunks: %s", s->path.peer, err.message);
    }
    ibx_remote_release(s->conn);
    return NULL;
}
