/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The names (remotes) of the client's memory. A name is valid on one connection only, and a server
 * may still hold some when the connection breaks. The client then registers the memory again, and
 * tells the server the new name for each old one.
 */
#include "frontend-glue/session/session_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EPOCH_SHIFT 48u
#define NAME_BYTES  (2u * IBX_REMOTE_BYTES)
#define NAMES_MAX   65536u /* names that a server accepts of one client */

void ibx_name_put(struct ibx_writer *w, const struct ibx_remote *remote, uint64_t epoch)
{
    struct ibx_remote tagged = *remote;
    tagged.length |= epoch << EPOCH_SHIFT;
    ibx_remote_put(w, &tagged);
}

void ibx_name_get(struct ibx_reader *r, struct ibx_remote *remote)
{
    ibx_remote_get(r, remote);
    remote->epoch = remote->length >> EPOCH_SHIFT;
    remote->length &= (UINT64_C(1) << EPOCH_SHIFT) - 1;
}

/* ------------------------------------------------------------------ the client */

struct memory_name ibx_name_of(const struct ibx_session *s, const struct ibx_remote *remote)
{
    struct memory_name name = {.then = *remote, .now = *remote};
    name.then.epoch = name.now.epoch = s->link.epoch;
    return name;
}

void ibx_name_sent(struct ibx_session *s, const struct ibx_remote *remote)
{
    s->link.sent_names[s->link.next_sent++ % SENT_NAMES] = ibx_name_of(s, remote);
}

static void before(const struct ibx_session *s, struct memory_name *name)
{
    name->mr = name->now.length ? ibx_conn_find_region(s->conn, &name->now) : NULL;
    if (name->mr)
        name->at = name->now.address - (uintptr_t)ibx_mr_address(name->mr);
}

static void after(const struct ibx_session *s, struct memory_name *name)
{
    const uint64_t length = name->now.length;
    (void)s;
    name->unnamed = name->mr && !ibx_mr_usable(name->mr);
    if (name->unnamed)
        name->now = (struct ibx_remote){.address = (uintptr_t)ibx_mr_address(name->mr) + name->at,
                                        .length = length};
    else if (!name->mr || ibx_mr_remote(name->mr, (size_t)name->at, (size_t)length, &name->now))
        name->now.length = 0;
    name->mr = NULL;
}

static void for_each(struct ibx_session *s,
                     void (*act)(const struct ibx_session *, struct memory_name *))
{
    for (struct payload *payload = s->payloads; payload; payload = payload->next)
        act(s, &payload->name);
    for (unsigned i = 0; i < SENT_NAMES; i++)
        act(s, &s->link.sent_names[i]);
}

void ibx_names_before(struct ibx_session *s)
{
    if (!s->server)
        for_each(s, before);
}

void ibx_names_after(struct ibx_session *s)
{
    if (!s->server)
        for_each(s, after);
}

static bool is_name(const struct memory_name *name)
{
    return name->now.length && !name->unnamed;
}

/* The i-th valid name; NULL: there are fewer. */
static const struct memory_name *name_at(const struct ibx_session *s, unsigned i)
{
    for (const struct payload *payload = s->payloads; payload; payload = payload->next) {
        if (is_name(&payload->name) && !i--)
            return &payload->name;
    }
    for (unsigned j = 0; j < SENT_NAMES; j++) {
        if (is_name(&s->link.sent_names[j]) && !i--)
            return &s->link.sent_names[j];
    }
    return NULL;
}

unsigned ibx_names_count(const struct ibx_session *s)
{
    unsigned count = 0;
    while (name_at(s, count))
        count++;
    return count;
}

size_t ibx_names_message(const struct ibx_session *s, uint8_t *bytes, size_t size, unsigned *at)
{
    struct ibx_writer w = ibx_writer_of(bytes, size);
    const struct memory_name *name = name_at(s, *at);
    ibx_put_u8(&w, MESSAGE_NAMES);
    if (!name)
        return 0;
    for (; name && size - w.length >= NAME_BYTES; name = name_at(s, ++*at)) {
        ibx_name_put(&w, &name->then, name->then.epoch);
        ibx_name_put(&w, &name->now, s->link.epoch);
    }
    return w.length;
}

/* ------------------------------------------------------------------ the server */

int ibx_names_take(struct ibx_session *s, const uint8_t *bytes, size_t n)
{
    struct session_link *link = &s->link;
    size_t count = n / NAME_BYTES;
    if (n % NAME_BYTES || !count || count > NAMES_MAX - link->name_count)
        return -EPROTO;
    struct memory_name *more =
        realloc(link->names, (link->name_count + count) * sizeof(*link->names));
    if (!more)
        return -ENOMEM;
    link->names = more;
    struct ibx_reader r = ibx_reader_of(bytes, n);
    for (size_t i = 0; i < count; i++) {
        struct memory_name name = {.mr = NULL};
        ibx_name_get(&r, &name.then);
        ibx_name_get(&r, &name.now);
        if (name.then.length != name.now.length || !name.now.length)
            return -EPROTO;
        link->names[link->name_count++] = name;
    }
    return 0;
}

void ibx_names_clear(struct ibx_session *s)
{
    free(s->link.names);
    s->link.names = NULL;
    s->link.name_count = 0;
}

bool ibx_session_resolve(const struct ibx_session *s, struct ibx_remote *remote)
{
    if (remote->epoch == s->link.epoch)
        return true;
    for (unsigned i = 0; i < s->link.name_count; i++) {
        const struct memory_name *name = &s->link.names[i];
        const uint64_t at = remote->address - name->then.address;
        if (name->then.epoch != remote->epoch || name->now.epoch != s->link.epoch ||
            memcmp(name->then.keys, remote->keys, sizeof(remote->keys)) != 0 ||
            remote->address < name->then.address || at > name->then.length ||
            remote->length > name->then.length - at)
            continue;
        const uint64_t length = remote->length;
        *remote = name->now;
        remote->address += at;
        remote->length = length;
        return true;
    }
    return false;
}
