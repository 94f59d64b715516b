/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Memory of cuMemCreate that several programs of a tenant have (cuMemExportToShareableHandle). Each
 * gets a number of its own for it. Within this process they share what CUDA has made once; from
 * another process of the back end it is imported by CUDA's descriptor. Each process counts what it
 * has made or imported until no number of it names that and it is mapped nowhere there: who has
 * made it may give it up long before who has imported it.
 */
#include "frontend-glue/clients/virtual_memory_internal.h"

#include <stdlib.h>

int ibx_virtual_export(uint64_t number, int *fd, struct ibx_virtual_memory *is)
{
    const int mode = ibx_virtual_enter();
    const struct memory *m = ibx_virtual_find(number);
    int rc = m && m->named ? 0 : CUDA_INVALID_VALUE;
    if (!rc && fd)
        rc = ibx_virtual_driver.export
                 ? ibx_virtual_driver.export(fd, m->is->handle, IBX_MAPPED_POSIX_FILE, 0)
                 : CUDA_NOT_SUPPORTED;
    if (!rc)
        *is = (struct ibx_virtual_memory){number, m->is->n, m->is->device};
    ibx_virtual_leave(mode);
    return rc;
}

/* Locked. */
static int enter_another(struct gpu_session *x, struct memory *m, struct ibx_virtual_memory *is)
{
    struct ibx_quota *entries = ibx_tenant_quota(x->isolation.tenant, IBX_HOLD_ALLOCATIONS);
    if (!ibx_quota_take(entries, 1))
        return CUDA_MEMORY_ALLOCATION;
    if (!ibx_virtual_enter_memory(m)) {
        ibx_quota_give(entries, 1);
        return CUDA_MEMORY_ALLOCATION;
    }
    *is = (struct ibx_virtual_memory){m->number.begin, m->is->n, m->is->device};
    return 0;
}

int ibx_virtual_name_again(struct gpu_session *x, uint64_t number, struct ibx_virtual_memory *is)
{
    int rc;
    struct memory *m = ibx_virtual_new_memory(x, &rc);
    if (!m)
        return rc;
    const int mode = ibx_virtual_enter();
    const struct memory *theirs = ibx_virtual_find(number);
    rc = CUDA_INVALID_VALUE;
    if (theirs && theirs->named && theirs->tenant == m->tenant) {
        m->is = theirs->is;
        rc = enter_another(x, m, is);
    }
    ibx_virtual_leave(mode);
    if (rc)
        free(m);
    return rc;
}

/* Locked. */
static int import(int fd, struct memory *m)
{
    int rc = CUDA_NOT_SUPPORTED;
    if (ibx_virtual_driver.import)
        rc = ibx_virtual_driver.import(&m->is->handle, pointer_to((uint64_t)fd),
                                       IBX_MAPPED_POSIX_FILE);
    if (rc || ibx_virtual_enter_memory(m))
        return rc;
    ibx_virtual_driver.release(m->is->handle);
    return CUDA_MEMORY_ALLOCATION;
}

static int import_counted(struct gpu_session *x, int fd, struct memory *m)
{
    if (!ibx_virtual_count(x, m->is))
        return CUDA_MEMORY_ALLOCATION;
    const int mode = ibx_virtual_enter();
    const int rc = import(fd, m);
    ibx_virtual_leave(mode);
    if (rc)
        ibx_virtual_count_no_more(x, m->is);
    return rc;
}

int ibx_virtual_import(struct gpu_session *x, int fd, struct ibx_virtual_memory *is)
{
    int rc;
    struct backing *made = malloc(sizeof(*made));
    struct memory *m = ibx_virtual_new_memory(x, &rc);
    if (m && made) {
        *made = (struct backing){.n = is->n, .device = is->device};
        m->is = made;
        rc = import_counted(x, fd, m);
    } else if (m) {
        rc = CUDA_MEMORY_ALLOCATION;
    }
    if (rc) {
        free(m);
        free(made);
        return rc;
    }
    is->number = m->number.begin;
    return 0;
}
