/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"
#include "migrate/common/common.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LOOK_MS 1000 /* between two reports */

struct serving {
    struct ibx_snapshot_folder folder;
    struct ibx_page_map map;
    void *memory[IBX_GUEST_BLOCKS_MAX];
    struct ibx_snapshot_server *server;
    struct migration_signals signals;
};

/* Shared: what readers get are the pages of the page cache. */
static int map_blocks(struct serving *s, struct ibx_error *err)
{
    for (unsigned i = 0; i < s->folder.count; i++) {
        void *at = mmap(NULL, (size_t)s->folder.sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED,
                        s->folder.fds[i], 0);
        if (at == MAP_FAILED)
            return ibx_error_set(err, -errno, "block %u of %s cannot be mapped: %s", i,
                                 s->folder.path, strerror(errno));
        s->memory[i] = at;
        madvise(at, (size_t)s->folder.sizes[i], MADV_DONTDUMP);
    }
    return 0;
}

static void end(struct serving *s)
{
    ibx_snapshot_server_close(s->server);
    for (unsigned i = 0; i < s->folder.count; i++)
        if (s->memory[i])
            munmap(s->memory[i], (size_t)s->folder.sizes[i]);
    ibx_page_map_fini(&s->map);
    ibx_snapshot_folder_close(&s->folder);
}

static int begin(struct serving *s, const struct ibx_serve_options *options, struct ibx_error *err)
{
    int rc = ibx_snapshot_folder_open(options->folder, true, &s->folder, err);
    if (!rc && !s->folder.manifest.complete)
        rc = ibx_error_set(err, -EINVAL,
                           "%s is a cache that has not all pages: serve it with --cache and the "
                           "URI that it is filled from",
                           options->folder);
    if (!rc)
        rc = ibx_snapshot_folder_map(&s->folder, &s->map, err);
    if (!rc)
        rc = map_blocks(s, err);
    const struct ibx_snapshot_server_config config = {.uri = options->listen,
                                                      .options = &options->transport,
                                                      .manifest = &s->folder.manifest,
                                                      .map = &s->map,
                                                      .memory = s->memory};
    return rc ? rc : ibx_snapshot_server_open(&config, &s->server, err);
}

int ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err)
{
    struct serving *s = calloc(1, sizeof(*s));
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a server");
    int rc = ibx_migration_signals_open(&s->signals, err);
    if (rc) {
        free(s);
        return rc;
    }
    rc = begin(s, options, err);
    struct pollfd wait = {.fd = s->signals.fd, .events = POLLIN};
    while (!rc) {
        struct ibx_snapshot_server_stats stats;
        ibx_snapshot_server_stats(s->server, &stats);
        if (options->status)
            options->status(options->context, ibx_snapshot_server_uri(s->server), &stats);
        if (poll(&wait, 1, LOOK_MS) > 0 && ibx_migration_signals_take(&s->signals))
            break;
    }
    end(s);
    ibx_migration_signals_close(&s->signals);
    free(s);
    return rc;
}
