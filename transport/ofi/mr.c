/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory registration by libfabric's many rules.
 *
 * keys[0] is the key; keys[1] is what an initiator subtracts from an address: 0 where the fabric
 * takes virtual addresses, the start of the region where it takes offsets. So the two ends need not
 * have the same mode.
 */
#include "transport/ofi/ofi.h"
#include "transport/core/crypto.h"

#include "common/locked.h"
#include "common/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KEY_TRIES 8

static bool has_mode(const struct ofi_endpoint *e, int mode)
{
    return e->choice.info->domain_attr->mr_mode & mode;
}

/* Whether libfabric's own code accesses a region for the peer: see fence.c. */
static bool software_moves(const struct ofi_endpoint *e)
{
    return !e->choice.native || e->choice.info->domain_attr->data_progress != FI_PROGRESS_AUTO;
}

static uint64_t fabric_access(const struct ofi_endpoint *e, unsigned access)
{
    uint64_t flags = has_mode(e, FI_MR_LOCAL) ? FI_READ | FI_WRITE : 0;
    if (access & IBX_ACCESS_REMOTE_READ)
        flags |= FI_REMOTE_READ;
    if (access & IBX_ACCESS_REMOTE_WRITE)
        flags |= FI_REMOTE_WRITE;
    return flags;
}

/* Keys that we choose are random, so that no peer on the fabric can guess them. */
static int random_key(const struct ofi_endpoint *e, uint64_t *key, struct ibx_error *err)
{
    size_t bytes = e->choice.info->domain_attr->mr_key_size;
    int rc = ibx_random(key, sizeof(*key), err);
    if (!rc && bytes && bytes < sizeof(*key))
        *key &= (UINT64_C(1) << (8 * bytes)) - 1;
    return rc;
}

static int explain(int rc, const struct ofi_endpoint *e, size_t length, struct ibx_error *err)
{
    uint64_t limit;
    char who[64];
    const char *name = e->choice.info->fabric_attr->prov_name;
    snprintf(who, sizeof(who), "libfabric's %s", name);
    if (rc == -FI_ENOMEM && ibx_locked_limit(&limit))
        return ibx_locked_error(err, who, length, limit);
    int code = rc < 0 && -rc < FI_ERRNO_OFFSET ? rc : -EIO;
    return ibx_error_set(err, code, "libfabric's %s cannot register %zu bytes: %s", name, length,
                         fi_strerror(-rc));
}

static int register_once(struct ofi_endpoint *e, const struct ibx_span *span, uint64_t access,
                         uint64_t key, struct fid_mr **mr)
{
    struct iovec iov = {span->address, span->length};
    struct fi_mr_attr attr = {
        .mr_iov = &iov, .iov_count = 1, .access = access, .requested_key = key};
    uint64_t flags = 0;
    if (span->kind == IBX_MEMORY_CUDA) {
        attr.iface = FI_HMEM_CUDA;
        attr.device.cuda = span->device;
    }
#if IBX_OFI_DMABUF
    struct fi_mr_dmabuf dmabuf = {
        .fd = span->dmabuf_fd,
        .offset = span->dmabuf_offset,
        .len = span->length,
        .base_addr = (char *)span->address - span->dmabuf_offset,
    };
    if (span->kind == IBX_MEMORY_CUDA && span->dmabuf_fd >= 0) {
        attr.dmabuf = &dmabuf;
        flags |= FI_MR_DMABUF;
    }
#endif
    return fi_mr_regattr(e->home->domain, &attr, flags, mr);
}

static int open_region(struct ofi_endpoint *e, const struct ibx_span *span, uint64_t access,
                       struct fid_mr **out, struct ibx_error *err)
{
    struct fid_mr *mr = NULL;
    int rc = -FI_ENOKEY;
    for (int i = 0; rc == -FI_ENOKEY && i < KEY_TRIES; i++) {
        uint64_t key = 0;
        if (!has_mode(e, FI_MR_PROV_KEY)) {
            rc = random_key(e, &key, err);
            if (rc)
                return rc;
        }
        rc = register_once(e, span, access, key, &mr);
    }
    if (rc)
        return explain(rc, e, span->length, err);
    if (has_mode(e, FI_MR_ENDPOINT)) { /* with that mode lane 0 is the only one */
        rc = fi_mr_bind(mr, &e->lanes[0].ep->fid, 0);
        if (!rc)
            rc = fi_mr_enable(mr);
    }
    if (!rc && fi_mr_key(mr) == FI_KEY_NOTAVAIL)
        rc = -FI_EKEYREJECTED;
    if (rc) {
        fi_close(&mr->fid);
        return explain(rc, e, span->length, err);
    }
    *out = mr;
    return 0;
}

int ibx_ofi_mr_buffers(struct ofi_endpoint *e, struct ibx_error *err)
{
    if (!has_mode(e, FI_MR_LOCAL))
        return 0;
    struct ibx_span span = ibx_span_host(e->memory, e->memory_bytes);
    int rc = open_region(e, &span, FI_SEND | FI_RECV, &e->memory_mr, err);
    if (!rc)
        e->memory_desc = fi_mr_desc(e->memory_mr);
    return rc;
}

/* ------------------------------------------------------- held by regions */

/* The registration that the region's twin has in this domain, held once more, or NULL. */
static struct ofi_registration *registration_share(const struct ibx_mr *twin,
                                                   const struct fid_domain *domain)
{
    const struct ofi_region *region = twin ? twin->provider_data : NULL;
    if (!region || !region->made || region->made->domain != domain)
        return NULL;
    region->made->holders++;
    return region->made;
}

static int registration_make(struct ofi_endpoint *e, const struct ibx_mr *mr, uint64_t access,
                             struct ofi_registration **out, struct ibx_error *err)
{
    struct ofi_registration *made = calloc(1, sizeof(*made));
    if (!made)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    int rc = open_region(e, &mr->span, access, &made->mr, err);
    if (rc) {
        free(made);
        return rc;
    }
    made->domain = e->home->domain;
    made->holders = 1;
    *out = made;
    return 0;
}

/* Whether libfabric no longer has the region. */
static bool registration_close(struct ofi_registration *made)
{
    const int rc = made->mr ? fi_close(&made->mr->fid) : 0;
    if (rc)
        ibx_log(IBX_LOG_WARN, "ofi: a region does not close: %s", fi_strerror(-rc));
    else
        made->mr = NULL;
    return !rc;
}

static void registration_release(struct ofi_endpoint *e, struct ofi_registration *made,
                                 bool exposed)
{
    if (!made || --made->holders)
        return;
    /* The peer could still reach memory that will be used for something else. */
    if (!registration_close(made) && exposed) {
        ibx_ofi_fail(e, -EBUSY, "libfabric's %s does not let go of memory that was registered",
                     e->own.provider);
        ibx_ofi_io_end(e);
        registration_close(made);
    }
    free(made);
}

/* ------------------------------------------------------- the provider's calls */

static int allocate(struct ibx_mr *mr, struct ibx_error *err)
{
    void *memory =
        mmap(NULL, mr->span.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ibx_error_set(err, -errno, "cannot allocate %zu bytes: %s", mr->span.length,
                             strerror(errno));
    mr->span.address = memory;
    return 0;
}

int ibx_ofi_mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct ofi_endpoint *e = endpoint;
    /* Its endpoints, to which a region may belong, are being closed. */
    if (ibx_ofi_stopped(e))
        return ibx_error_set(err, -ENOTCONN, "the connection over libfabric is over");
    struct ofi_region *region = calloc(1, sizeof(*region));
    if (!region)
        return ibx_error_set(err, -ENOMEM, "no memory for a region");
    int rc = mr->allocated ? allocate(mr, err) : 0;
    if (rc)
        goto free_region;
    uint64_t access = fabric_access(e, mr->access);
    if (access) {
        region->made = registration_share(mr->twin, e->home->domain);
        rc = region->made ? 0 : registration_make(e, mr, access, &region->made, err);
        if (rc)
            goto free_memory;
        region->desc = fi_mr_desc(region->made->mr);
        mr->keys[0] = fi_mr_key(region->made->mr);
        mr->keys[1] = has_mode(e, FI_MR_VIRT_ADDR) ? 0 : (uintptr_t)mr->span.address;
        LIST_INSERT_HEAD(&e->regions, region, entry);
    }
    mr->provider_data = region;
    return 0;

free_memory:
    if (mr->allocated)
        munmap(mr->span.address, mr->span.length);
free_region:
    free(region);
    return rc;
}

void ibx_ofi_mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    struct ofi_endpoint *e = endpoint;
    struct ofi_region *region = mr->provider_data;
    if (region->made)
        LIST_REMOVE(region, entry);
    bool exposed = mr->access & (IBX_ACCESS_REMOTE_READ | IBX_ACCESS_REMOTE_WRITE);
    registration_release(e, region->made, exposed);
    if (exposed && e->state.now == OFI_LIVE && software_moves(e))
        ibx_ofi_fence(e);
    else if (exposed && e->state.now == OFI_STOPPED && software_moves(e))
        ibx_ofi_io_end(e);
    if (mr->allocated)
        munmap(mr->span.address, mr->span.length);
    free(region);
}

void ibx_ofi_mr_detach_all(struct ofi_endpoint *e)
{
    if (!e->choice.info || !has_mode(e, FI_MR_ENDPOINT))
        return; /* without info: closed before a fabric was chosen */
    struct ofi_region *region;
    LIST_FOREACH(region, &e->regions, entry)
    {
        if (region->made->mr) /* once: an endpoint may not close at the first try */
            fi_close(&region->made->mr->fid);
        region->made->mr = NULL;
    }
    if (e->memory_mr)
        fi_close(&e->memory_mr->fid);
    e->memory_mr = NULL;
}
