/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory regions: registration, sharing, and the peer's memory as posts and copies name it. */
#include "transport/core/conn.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Registers what `like` describes. */
static int register_like(struct ibx_conn *conn, const struct ibx_mr *like, struct ibx_mr **out,
                         struct ibx_error *err)
{
    if (!ibx_conn_has_endpoint(conn))
        return ibx_error_set(err, -ENOTCONN, "the connection is closed");
    struct ibx_mr *mr = calloc(1, sizeof(*mr));
    if (!mr)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    *mr = *like;
    mr->conn = conn;
    int rc = conn->provider->mr_register(conn->endpoint, mr, err);
    if (rc) {
        free(mr);
        return rc;
    }
    mr->twin = NULL;
    mr->next = conn->regions;
    if (mr->next)
        mr->next->prev = mr;
    conn->regions = mr;
    *out = mr;
    return 0;
}

int ibx_mr_register(struct ibx_conn *conn, const struct ibx_span *span, unsigned access,
                    struct ibx_mr **mr, struct ibx_error *err)
{
    if (!span->address || !span->length)
        return ibx_error_set(err, -EINVAL, "a region of %zu bytes at %p cannot be registered",
                             span->length, span->address);
    bool gpu = span->kind != IBX_MEMORY_HOST;
    if (gpu && access != IBX_ACCESS_LOCAL)
        return ibx_error_set(err, -EACCES, "GPU memory is registered for this side only");
    if (gpu && !(span->dmabuf_fd >= 0 ? conn->caps.dmabuf : conn->caps.gpu_pointers))
        return ibx_error_set(err, -EOPNOTSUPP, "%s cannot register GPU memory %s a dma-buf here",
                             conn->path.provider, span->dmabuf_fd >= 0 ? "by" : "without");
    struct ibx_mr like = {.span = *span, .access = access};
    return register_like(conn, &like, mr, err);
}

int ibx_mr_share(struct ibx_conn *conn, const struct ibx_mr *mr, struct ibx_mr **shared,
                 struct ibx_error *err)
{
    if (mr->allocated || mr->span.kind != IBX_MEMORY_HOST)
        return ibx_error_set(err, -EINVAL,
                             "%zu bytes at %p belong to one connection: only host memory that was "
                             "registered can be shared",
                             mr->span.length, mr->span.address);
    /* The other connection belongs to another thread: only what never changes is read. */
    const struct ibx_conn *other = mr->conn;
    bool siblings = ibx_conn_has_endpoint(conn) && conn->options.domain &&
                    conn->options.domain == other->options.domain &&
                    !strcmp(conn->provider->name, other->provider->name);
    struct ibx_mr like = {.span = mr->span, .access = mr->access, .twin = siblings ? mr : NULL};
    return register_like(conn, &like, shared, err);
}

int ibx_mr_allocate(struct ibx_conn *conn, size_t length, unsigned access, struct ibx_mr **mr,
                    struct ibx_error *err)
{
    if (!length)
        return ibx_error_set(err, -EINVAL, "a region of 0 bytes cannot be allocated");
    struct ibx_mr like = {.span = ibx_span_host(NULL, length), .access = access, .allocated = true};
    return register_like(conn, &like, mr, err);
}

/* The contents of allocated memory, on the heap for as long as no connection has the region. NULL:
 * there is no memory for that, or there was none at an earlier move. */
static void *contents_of(const struct ibx_mr *mr)
{
    if (mr->dead)
        return mr->span.address;
    void *contents = malloc(mr->span.length);
    if (contents)
        memcpy(contents, mr->span.address, mr->span.length);
    return contents;
}

static int register_anew(struct ibx_conn *to, struct ibx_mr *mr, bool lost, struct ibx_error *err)
{
    if (mr->span.kind != IBX_MEMORY_HOST) /* its dma-buf's descriptor is closed */
        return ibx_error_set(err, -EOPNOTSUPP, "its owner registers GPU memory");
    if (!ibx_conn_has_endpoint(to))
        return ibx_error_set(err, -ENOTCONN, "the connection is closed");
    if (lost) /* zeros would be taken for what was there */
        return ibx_error_set(err, -ENOMEM, "there was no memory to keep what is in it");
    return to->provider->mr_register(to->endpoint, mr, err);
}

/* Providers know a region by its address, so the old registration ends before the new one begins.
 */
static int take_region(struct ibx_conn *to, struct ibx_conn *from, struct ibx_mr *mr)
{
    struct ibx_error err = {0};
    void *contents = mr->allocated ? contents_of(mr) : NULL;
    if (!mr->dead)
        from->provider->mr_deregister(from->endpoint, mr);
    if (mr->allocated)
        mr->span.address = NULL;
    mr->conn = to;
    mr->provider_data = NULL;
    memset(mr->keys, 0, sizeof(mr->keys));
    int rc = register_anew(to, mr, mr->allocated && !contents, &err);
    mr->dead = rc;
    if (rc)
        ibx_log(IBX_LOG_INFO, "%zu bytes of memory cannot be registered anew: %s", mr->span.length,
                err.message);
    if (rc && mr->allocated) {
        mr->span.address = contents; /* for the next connection */
    } else if (contents) {
        memcpy(mr->span.address, contents, mr->span.length);
        free(contents);
    }
    return rc;
}

int ibx_conn_take_regions(struct ibx_conn *to, struct ibx_conn *from)
{
    int rc = 0;
    while (from->regions) {
        struct ibx_mr *mr = from->regions;
        from->regions = mr->next;
        if (mr->next)
            mr->next->prev = NULL;
        int one = take_region(to, from, mr);
        if (one && mr->span.kind == IBX_MEMORY_HOST)
            rc = one;
        mr->prev = NULL;
        mr->next = to->regions;
        if (mr->next)
            mr->next->prev = mr;
        to->regions = mr;
    }
    return rc;
}

static bool is_exposed(const struct ibx_mr *mr)
{
    return mr->access & (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE);
}

struct ibx_mr *ibx_conn_find_region(const struct ibx_conn *conn, const struct ibx_remote *remote)
{
    for (struct ibx_mr *mr = conn->regions; mr; mr = mr->next) {
        const uint64_t base = (uintptr_t)mr->span.address;
        if (is_exposed(mr) && remote->address >= base &&
            remote->address - base <= mr->span.length &&
            remote->length <= mr->span.length - (remote->address - base) &&
            !memcmp(remote->keys, mr->keys, sizeof(mr->keys)))
            return mr;
    }
    return NULL;
}

bool ibx_mr_usable(const struct ibx_mr *mr)
{
    return !mr->dead;
}

void *ibx_mr_address(const struct ibx_mr *mr)
{
    return mr->span.address;
}

size_t ibx_mr_length(const struct ibx_mr *mr)
{
    return mr->span.length;
}

void ibx_mr_deregister(struct ibx_mr *mr)
{
    if (!mr)
        return;
    struct ibx_conn *conn = mr->conn;
    if (!mr->dead && !ibx_conn_is_copy(conn))
        conn->provider->mr_deregister(conn->endpoint, mr);
    else if (mr->dead && mr->allocated)
        free(mr->span.address);
    if (mr->prev)
        mr->prev->next = mr->next;
    else
        conn->regions = mr->next;
    if (mr->next)
        mr->next->prev = mr->prev;
    free(mr);
}

int ibx_mr_remote(const struct ibx_mr *mr, size_t offset, size_t length, struct ibx_remote *remote)
{
    if (offset > mr->span.length || length > mr->span.length - offset)
        return -ERANGE;
    if (mr->dead || !is_exposed(mr))
        return -EACCES;
    *remote =
        (struct ibx_remote){.address = (uintptr_t)mr->span.address + offset, .length = length};
    memcpy(remote->keys, mr->keys, sizeof(remote->keys));
    return 0;
}

int ibx_remote_hold(struct ibx_conn *conn, const struct ibx_remote *remote, unsigned access,
                    struct ibx_reach *reach)
{
    if (!ibx_conn_is_up(conn))
        return -ENOTCONN;
    if (!conn->provider->remote_hold)
        return -EOPNOTSUPP;
    *reach = (struct ibx_reach){0};
    return conn->provider->remote_hold(conn->endpoint, remote, access, reach);
}

void ibx_remote_release(struct ibx_conn *conn)
{
    conn->provider->remote_release(conn->endpoint);
}

int ibx_remote_copy(struct ibx_conn *conn, bool read, void *local, const struct ibx_remote *remote,
                    uint64_t offset, size_t n)
{
    if (ibx_conn_is_copy(conn))
        return -ENOTCONN;
    if (offset > remote->length || n > remote->length - offset)
        return -ERANGE;
    return conn->provider->remote_copy(conn->endpoint, read, local, remote->address + offset, n);
}

int ibx_shared_give(struct ibx_conn *conn)
{
    if (!ibx_conn_is_up(conn))
        return -ENOTCONN;
    return conn->provider->shared_give ? conn->provider->shared_give(conn->endpoint) : -EOPNOTSUPP;
}

int ibx_shared_of_peer(struct ibx_conn *conn, uint64_t *bytes)
{
    if (!ibx_conn_is_up(conn))
        return -ENOTCONN;
    return conn->provider->shared_of_peer ? conn->provider->shared_of_peer(conn->endpoint, bytes)
                                          : -EOPNOTSUPP;
}
