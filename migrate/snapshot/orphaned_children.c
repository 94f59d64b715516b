/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A process that fills a folder releases its children when the folder has all pages. If it is
 * killed just before that, they wait at the next page of zeros, and no process needs to serve
 * this folder any more. The process that makes the folder's next child releases them. */
#include "migrate/snapshot/cache.h"

#include "common/log.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static int map_ram(const struct ibx_snapshot_folder *folder, void **memory, struct ibx_error *err)
{
    int rc = 0;
    for (unsigned i = 0; !rc && i < folder->manifest.ram_count; i++) {
        void *at = mmap(NULL, (size_t)folder->sizes[i], PROT_READ, MAP_SHARED, folder->fds[i], 0);
        if (at == MAP_FAILED)
            rc = ibx_error_set(err, -errno, "block %u of %s cannot be mapped: %s", i, folder->path,
                               strerror(errno));
        else
            memory[i] = at;
    }
    return rc;
}

void ibx_snapshot_let_left_go(const struct ibx_snapshot_folder *folder)
{
    void *memory[IBX_GUEST_BLOCKS_MAX] = {NULL};
    struct ibx_page_map map = {0};
    const struct snapshot_children_config children = {folder, &map, memory};
    struct ibx_error err = {0};
    if (!ibx_snapshot_children_left(folder) || !ibx_snapshot_child_expected(folder, NULL))
        return;
    int rc = ibx_snapshot_folder_map(folder, &map, &err);
    const bool mapped = !rc;
    if (!rc)
        rc = map_ram(folder, memory, &err);
    if (!rc)
        rc = ibx_snapshot_children_release(&children, &err);
    for (unsigned i = 0; i < folder->manifest.ram_count; i++)
        if (memory[i])
            munmap(memory[i], (size_t)folder->sizes[i]);
    if (mapped)
        ibx_page_map_fini(&map);
    if (rc)
        ibx_log(IBX_LOG_ERROR, "children of %s still wait for pages: %s", folder->path,
                err.message);
}
