/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory regions, one registration a rail. */
#include "transport/verbs/verbs.h"

#include "common/locked.h"
#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A registration with one device, which all regions that share it hold. */
struct registration {
    struct ibv_mr *mr;
    bool writable; /* a READ may write to it */
    _Atomic unsigned holders;
};

struct region {
    unsigned count;
    struct registration *rails[IBX_RAILS_MAX];
};

int ibx_verbs_mr_error(int code, const void *address, size_t length, const char *device,
                       struct ibx_error *err)
{
    uint64_t limit;
    if (code == ENOMEM && ibx_locked_limit(&limit))
        return ibx_locked_error(err, device, length, limit);
    if (code == EFAULT)
        return ibx_error_set(err, -EFAULT,
                             "%s cannot register %zu bytes at %p: they are not all mapped, or not "
                             "writable",
                             device, length, address);
    return ibx_error_set(err, -code, "%s cannot register %zu bytes at %p: %s", device, length,
                         address, strerror(code));
}

static struct ibv_mr *register_dmabuf(struct ibv_pd *pd, const struct ibx_span *span,
                                      unsigned access)
{
#ifdef IBX_WITH_DMABUF_MR
    return ibv_reg_dmabuf_mr(pd, span->dmabuf_offset, span->length, (uintptr_t)span->address,
                             span->dmabuf_fd, (int)access);
#else
    (void)pd;
    (void)span;
    (void)access;
    errno = EOPNOTSUPP;
    return NULL;
#endif
}

static struct ibv_mr *register_one(struct ibv_pd *pd, const struct ibx_span *span, unsigned access)
{
    if (span->dmabuf_fd >= 0)
        return register_dmabuf(pd, span, access);
    return ibv_reg_mr(pd, span->address, span->length, access);
}

static unsigned rights(unsigned access, bool writable)
{
    return (writable ? IBV_ACCESS_LOCAL_WRITE : 0u) |
           (access & IBX_ACCESS_REMOTE_READ ? IBV_ACCESS_REMOTE_READ : 0u) |
           (access & IBX_ACCESS_REMOTE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0u);
}

/* Host memory that is read-only can still be the source of a WRITE, or be READ by the peer. */
static struct ibv_mr *register_rail(struct ibv_pd *pd, const struct ibx_mr *mr, bool *writable)
{
    struct ibv_mr *made = register_one(pd, &mr->span, rights(mr->access, true));
    bool host = mr->span.kind == IBX_MEMORY_HOST;
    *writable = made;
    if (!made && host && (errno == EFAULT || errno == EACCES) &&
        !(mr->access & IBX_ACCESS_REMOTE_WRITE))
        made = register_one(pd, &mr->span, rights(mr->access, false));
    return made;
}

/* The registration that the region's twin has in this protection domain, held once more, or NULL.
 */
static struct registration *registration_share(const struct ibx_mr *twin, const struct ibv_pd *pd)
{
    const struct region *region = twin ? twin->provider_data : NULL;
    for (unsigned i = 0; region && i < region->count; i++) {
        if (region->rails[i]->mr->pd != pd)
            continue;
        region->rails[i]->holders++;
        return region->rails[i];
    }
    return NULL;
}

static int registration_make(const struct verbs_rail *rail, const struct ibx_mr *mr,
                             struct registration **out, struct ibx_error *err)
{
    struct registration *made = calloc(1, sizeof(*made));
    if (!made)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    made->mr = register_rail(rail->pd, mr, &made->writable);
    if (!made->mr) {
        int code = errno;
        free(made);
        return ibx_verbs_mr_error(code, mr->span.address, mr->span.length,
                                  ibv_get_device_name(rail->context->device), err);
    }
    made->holders = 1;
    *out = made;
    return 0;
}

/* 0, or the errno of the first registration that stays. */
static int region_free(struct region *region)
{
    int code = 0;
    for (unsigned i = 0; i < region->count; i++) {
        if (--region->rails[i]->holders)
            continue;
        const int rc = ibv_dereg_mr(region->rails[i]->mr);
        code = code ? code : rc;
        free(region->rails[i]);
    }
    free(region);
    return code;
}

static int allocate(struct ibx_mr *mr, struct ibx_error *err)
{
    void *address =
        mmap(NULL, mr->span.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        return ibx_error_set(err, -ENOMEM, "no memory for a region of %zu bytes", mr->span.length);
    /* Fewer translation entries for the device; a refusal costs only that. */
    madvise(address, mr->span.length, MADV_HUGEPAGE);
    mr->span.address = address;
    return 0;
}

static int register_all(struct verbs *v, struct ibx_mr *mr, struct region *region,
                        struct ibx_error *err)
{
    while (region->count < v->rail_count) {
        const struct verbs_rail *rail = &v->rails[region->count];
        struct registration *one = registration_share(mr->twin, rail->pd);
        int rc = one ? 0 : registration_make(rail, mr, &one, err);
        if (rc)
            return rc;
        region->rails[region->count++] = one;
    }
    return 0;
}

/* Lets the peer's requests through to regions with this access. A queue pair that has left RTS
 * takes no requests any more. */
static int open_queue_pair(struct ibv_qp *qp, unsigned access)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .qp_access_flags = rights(access, true)};
    struct ibv_qp_init_attr init;
    int rc = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS);
    if (rc && !ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state != IBV_QPS_RTS)
        return 0;
    return rc;
}

/* A connection that exposes nothing takes no READ and no WRITE at all, whatever the key. */
static int expose(struct verbs *v, unsigned access, struct ibx_error *err)
{
    access |= v->exposed;
    for (unsigned i = 0; i < v->lane_count && access != v->exposed; i++) {
        int rc = v->lanes[i].qp ? open_queue_pair(v->lanes[i].qp, access) : 0;
        if (rc)
            return ibx_error_set(err, -rc, "%s does not open queue pair %u to the peer: %s",
                                 ibv_get_device_name(v->lanes[i].rail->context->device), i,
                                 strerror(rc));
    }
    v->exposed = access;
    return 0;
}

int ibx_verbs_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct verbs *v = endpoint;
    struct region *region = calloc(1, sizeof(*region));
    if (!region)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    int rc = mr->allocated ? allocate(mr, err) : 0;
    if (rc) {
        free(region);
        return rc;
    }
    rc = register_all(v, mr, region, err);
    if (!rc)
        rc = expose(v, mr->access, err);
    if (rc) {
        region_free(region);
        if (mr->allocated)
            munmap(mr->span.address, mr->span.length);
        return rc;
    }
    bool remote = mr->access & (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE);
    for (unsigned i = 0; i < region->count && remote; i++)
        mr->keys[i] = region->rails[i]->mr->rkey;
    mr->provider_data = region;
    return 0;
}

/* The device still has a region, whose memory will be used for something else: so it must take no
 * more requests from the peer, neither by other connections, on whose protection domain the region
 * is, too. A device that was taken away fails here, too, and takes none. */
static void shut(struct verbs *v, int code)
{
    int open = 0;
    ibx_verbs_lost(v, -code, "a device does not let go of memory that was registered: %s",
                   strerror(code));
    for (unsigned i = 0; i < IBX_RAILS_MAX; i++) {
        const int rc = v->rails[i].device ? ibx_verbs_device_shut(v->rails[i].device) : 0;
        open = rc ? rc : open;
    }
    if (open && !v->device_removed)
        ibx_log(IBX_LOG_WARN,
                "the peer may still reach memory that is used for something else now: a queue pair "
                "does not end: %s",
                strerror(open));
}

void ibx_verbs_mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    const int code = region_free(mr->provider_data);
    if (code && mr->access & (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE))
        shut(endpoint, code);
    if (code) /* also if the connection has ended before, and gives another reason */
        ibx_log(IBX_LOG_WARN, "a device does not let go of memory that was registered: %s",
                strerror(code));
    mr->provider_data = NULL;
    if (mr->allocated)
        munmap(mr->span.address, mr->span.length);
}

int ibx_verbs_mr_lkey(const struct ibx_mr *mr, unsigned rail, bool writes, uint32_t *lkey)
{
    const struct region *region = mr->provider_data;
    if (writes && !region->rails[rail]->writable)
        return -EACCES;
    *lkey = region->rails[rail]->mr->lkey;
    return 0;
}

/* Tries to register a descriptor that is no dma-buf. Only a driver that supports dma-bufs checks
 * the descriptor, and says EBADF. */
bool ibx_verbs_mr_dmabuf(const struct verbs *v)
{
    struct ibx_span nothing = {.address = NULL, .length = 4096, .dmabuf_fd = -1};
    for (unsigned i = 0; i < v->rail_count; i++) {
        struct ibv_mr *mr = register_dmabuf(v->rails[i].pd, &nothing, IBV_ACCESS_LOCAL_WRITE);
        if (mr)
            ibv_dereg_mr(mr);
        else if (errno != EBADF)
            return false;
    }
    return true;
}
