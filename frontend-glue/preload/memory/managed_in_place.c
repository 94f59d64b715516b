/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory that becomes managed in place (managed.h): kernels are about to use it, and
 * the back end cannot map its pages. Then the back end has pages of its own at the same address,
 * which replace device memory. Memory that no kernel names stays page-locked.
 *
 * Managed memory needs its pages mapped twice, so the bytes move to a memory file, which is mapped
 * over them (replaced_pages.c). Before other threads go on, the memory is added to the list.
 */
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/memory/managed.h"

#include "common/error.h"
#include "common/log.h"
#include "frontend-glue/session/extensions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 19) /* bytes of the back end's pages in one request */

/* Requests the back end's pages at this address, or their end. After an error it has none. */
static int ask(const struct managed *m, bool on)
{
    const struct ibx_frontend_calls *calls = ibx_frontend_plugin();
    if (on)
        ibx_frontend_connect(); /* the back end accepts this request only after a first reply */
    int code, rc = calls->stand_in((void *)m->begin, m->n, on, &code);
    if (rc == -ENOTCONN) { /* it is the thread's first call, or a copy is under way */
        ibx_frontend_connect();
        rc = calls->stand_in((void *)m->begin, m->n, on, &code);
    }
    return rc ? rc : code;
}

/* In pieces of what a message may have. The pages of the back end are host memory there: between
 * that and other host memory CUDA copies only behind functions that have been called. */
bool ibx_managed_copy_pages(uintptr_t at, uint8_t *host, size_t n, bool to_device)
{
    int code = CUDA_SUCCESS;
    for (size_t done = 0; done < n && !code; done += PIECE) {
        const struct ibx_frontend_copy piece = {.to_device = to_device,
                                                .async = true,
                                                .alone = true,
                                                .device = IBX_EXT_PAGES | (at + done),
                                                .host = host + done,
                                                .n = n - done < PIECE ? n - done : PIECE};
        if (ibx_frontend_plugin()->copy(&piece, &code))
            return false;
    }
    return !code;
}

/* A shared mapping that a child does not get. */
static void *map(size_t n, int fd)
{
    void *there = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (there == MAP_FAILED || !madvise(there, n, MADV_DONTFORK))
        return there;
    const int why = errno;
    munmap(there, n);
    errno = why;
    return MAP_FAILED;
}

/* Makes both mappings, or neither; then the file has a copy of the bytes. A child that is forked
 * meanwhile has the former pages, or none: pages of the file would be shared with this process. The
 * file gets all pages at once, because Linux may refuse them here, but would raise SIGBUS later. */
static int move(struct managed *m)
{
    void *here = (void *)m->begin, *other = MAP_FAILED, *there = MAP_FAILED;
    if (!ibx_frontend_file_is_in_limit(m->n))
        return -EFBIG;
    const int fd = memfd_create("ibx-managed", MFD_CLOEXEC);
    int rc = fd < 0 || fallocate(fd, 0, 0, (off_t)m->n) ? -errno : 0;
    if (rc == -ENOSPC) /* there is no memory */
        rc = -ENOMEM;
    if (!rc && ((other = map(m->n, fd)) == MAP_FAILED || (there = map(m->n, fd)) == MAP_FAILED))
        rc = -errno;
    if (!rc && madvise(here, m->n, MADV_DONTFORK))
        rc = -errno;
    if (!rc)
        rc = ibx_managed_replace(here, m->n, there, other, "page-locked");
    if (fd >= 0)
        close(fd);
    if (!rc) {
        m->other = other;
        return 0;
    }
    madvise(here, m->n, MADV_DOFORK);
    if (other != MAP_FAILED)
        munmap(other, m->n);
    if (there != MAP_FAILED)
        munmap(there, m->n);
    return rc;
}

static int join(struct managed *m)
{
    struct join held;
    ibx_managed_join_begin(m->begin, m->n, &held);
    const int rc = move(m);
    if (!rc)
        ibx_managed_add(m, PAGES_NEWER);
    ibx_managed_join_end(&held);
    return rc;
}

static struct managed *make(const struct range *range)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct managed *m = ibx_managed_make(range->n, (range->n + page - 1) / page * page);
    if (!m)
        return NULL;
    m->begin = range->begin;
    m->device = range->device;
    m->mapped = range->flags | IBX_FRONTEND_MAPPED;
    m->in_place = true;
    return m;
}

int ibx_frontend_in_place(const struct range *range)
{
    struct managed *m = ibx_managed_begin() ? make(range) : NULL;
    int rc = m ? ask(m, true) : -ENOMEM;
    const bool asked = m && !rc;
    if (asked && (rc = join(m)))
        ask(m, false);
    if (asked && rc)
        ibx_log(IBX_LOG_WARN,
                "%zu bytes of page-locked memory at %p cannot become managed memory: %s; %s",
                range->n, (void *)range->begin, strerror(-rc),
                rc == -EFBIG
                    ? IBX_ERROR_RAISE_SIZE
                    : "where this process has more mappings than vm.max_map_count, raise that "
                      "by sysctl(8), and where vm.overcommit_memory is 2, "
                      "vm.overcommit_ratio");
    if (m && rc) {
        m->begin = 0; /* the memory stays mapped */
        ibx_managed_discard(m);
    }
    return rc;
}

void ibx_frontend_in_place_again(const struct range *range)
{
    struct managed m;
    if (!ibx_managed_find(range->begin, &m) || !m.in_place) /* the parent's memory */
        return;
    const int rc = ask(&m, true);
    if (rc)
        ibx_log(IBX_LOG_ERROR,
                "a reset of a device has taken %zu bytes of page-locked memory at %p from kernels, "
                "and they do not get them back (error %d): free such memory before the reset",
                range->n, (void *)range->begin, rc);
}

/* Removed from the list first, so that other threads' work no longer affects it. */
void ibx_frontend_in_place_end(const struct range *range)
{
    struct managed *m = ibx_managed_take(range->begin);
    if (!m) /* the parent's memory */
        return;
    ask(m, false);
    ibx_managed_discard(m);
}
