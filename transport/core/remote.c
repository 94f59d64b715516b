/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A part of the peer's memory, as messages name it (struct ibx_remote). */
#include "transport/transport.h"

void ibx_remote_put(struct ibx_writer *writer, const struct ibx_remote *remote)
{
    ibx_put_u64(writer, remote->address);
    ibx_put_u64(writer, remote->length);
    for (int i = 0; i < IBX_RAILS_MAX; i++)
        ibx_put_u64(writer, remote->keys[i]);
}

void ibx_remote_get(struct ibx_reader *reader, struct ibx_remote *remote)
{
    remote->address = ibx_get_u64(reader);
    remote->length = ibx_get_u64(reader);
    for (int i = 0; i < IBX_RAILS_MAX; i++)
        remote->keys[i] = ibx_get_u64(reader);
    remote->epoch = 0;
}
