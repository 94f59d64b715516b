/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"
#include "common/thread.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SPIN_US      50
#define PAUSE_MS     250 /* before the second try; it doubles */
#define PAUSE_MAX_MS 5000
#define TRY_MS       3000 /* for a server to answer, when there are others */
#define STATE_PART   (1u << 20)

static const struct ibx_state cache_states[] = {
    [CACHE_EMPTY] = {"empty", IBX_TO(CACHE_FILLING), IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [CACHE_FILLING] = {"filling", IBX_TO(CACHE_LOST) | IBX_TO(CACHE_CHECKING), IBX_STATE_FINAL},
    [CACHE_LOST] = {"lost", IBX_TO(CACHE_FILLING), IBX_STATE_FINAL},
    [CACHE_CHECKING] = {"checking", IBX_TO(CACHE_WHOLE), IBX_STATE_FINAL},
    [CACHE_WHOLE] = {"whole", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table cache_table = IBX_STATE_TABLE("snapshot cache", cache_states);

void ibx_snapshot_cache_init(struct snapshot_cache *cache)
{
    *cache = (struct snapshot_cache){.uffd = -1, .checked_fd = -1};
    ibx_state_begin(&cache->state, &cache_table, CACHE_EMPTY);
}

/* ------------------------------------------------------------ where pages come from */

/* The first that answers. With several, none of them is waited for long. */
static int connect_one(struct snapshot_cache *cache, struct ibx_error *err)
{
    struct ibx_options options = *cache->options;
    int rc = -EINVAL;
    if (cache->uri_count > 1 && options.timeout_ms > TRY_MS)
        options.timeout_ms = TRY_MS;
    for (unsigned i = 0; rc && i < cache->uri_count; i++) {
        rc = ibx_snapshot_reader_open(cache->uris[i], &options, cache->links, &cache->reader, err);
        if (!rc)
            snprintf(cache->source, sizeof(cache->source), "%s", cache->uris[i]);
    }
    return rc;
}

static int same_snapshot(const struct snapshot_cache *cache, struct ibx_error *err)
{
    const struct ibx_snapshot_manifest *theirs = ibx_snapshot_reader_manifest(cache->reader);
    return ibx_snapshot_same(theirs, &cache->folder->manifest)
               ? 0
               : ibx_error_set(err, -ESTALE,
                               "%s serves another snapshot than the one in %s: give another folder",
                               cache->source, cache->folder->path);
}

/* ------------------------------------------------------------ the folder */

static int fetch_state(struct snapshot_cache *cache, struct ibx_error *err)
{
    struct ibx_snapshot_folder *folder = cache->folder;
    const unsigned block = folder->manifest.ram_count;
    const uint64_t size = folder->manifest.state_bytes;
    uint8_t *part = malloc(STATE_PART);
    int rc = part ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the device state");
    for (uint64_t at = 0, n; !rc && at < size; at += n) {
        n = size - at < STATE_PART ? size - at : STATE_PART;
        rc = ibx_snapshot_reader_fetch(cache->reader, block, at, part, (size_t)n, err);
        if (!rc && pwrite(folder->fds[block], part, (size_t)n, (off_t)at) != (ssize_t)n)
            rc = ibx_error_set(err, errno ? -errno : -EIO,
                               "the device state cannot be written to %s: %s", folder->path,
                               strerror(errno));
    }
    free(part);
    return rc;
}

static int make_folder(struct snapshot_cache *cache, const char *path, struct ibx_error *err)
{
    struct ibx_snapshot_folder *folder = cache->folder;
    struct statfs fs;
    int rc = ibx_snapshot_folder_make(path, folder, err);
    if (rc)
        return rc;
    folder->manifest = *ibx_snapshot_reader_manifest(cache->reader);
    folder->manifest.complete = false;
    json_incref(folder->manifest.description);
    if (fstatfs(folder->at, &fs) || fs.f_type != TMPFS_MAGIC)
        rc = ibx_error_set(err, -EINVAL,
                           "%s is not on tmpfs, and only memory can be filled on demand: give a "
                           "folder in /dev/shm",
                           path);
    if (!rc)
        rc = ibx_snapshot_folder_files(folder, true, true, err);
    if (!rc)
        rc = fetch_state(cache, err);
    if (!rc)
        rc = ibx_snapshot_folder_seal(folder, err);
    if (rc)
        ibx_snapshot_folder_remove(folder);
    return rc;
}

int ibx_snapshot_cache_begin(struct snapshot_cache *cache, const char *path, struct ibx_error *err)
{
    const bool known = cache->folder->count;
    int rc = connect_one(cache, err);
    if (!rc)
        rc = known ? same_snapshot(cache, err) : make_folder(cache, path, err);
    if (!rc && known)
        rc = ibx_snapshot_folder_lock(cache->folder, err);
    return rc;
}

/* ------------------------------------------------------------ the mapping */

static int map_block(struct snapshot_cache *cache, unsigned i, struct ibx_error *err)
{
    const size_t size = (size_t)cache->folder->sizes[i];
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, cache->folder->fds[i], 0);
    if (at == MAP_FAILED)
        return ibx_error_set(err, -errno, "block %u of %s cannot be mapped: %s", i,
                             cache->folder->path, strerror(errno));
    cache->memory[i] = at;
    madvise(at, size, MADV_DONTDUMP);
    madvise(at, size, MADV_DONTFORK);
    if (i == cache->folder->manifest.ram_count)
        return 0;
    cache->ranges[i] =
        (struct ibx_fault_range){.start = (uintptr_t)at,
                                 .length = size,
                                 .page_size = IBX_SNAPSHOT_PAGE,
                                 .first_page = cache->map.blocks[i].first,
                                 .reader_offset = cache->map.blocks[i].first * IBX_SNAPSHOT_PAGE};
    return ibx_fault_register(cache->uffd, &cache->ranges[i], err);
}

static int mark_zero(void *context, uint64_t first, uint64_t count, bool data)
{
    struct snapshot_cache *cache = context;
    const uint64_t end = cache->map.blocks[cache->folder->manifest.ram_count].first;
    return data || first >= end ? 0 : ibx_fault_mark_zero(cache->engine, first, count);
}

static int mark_there(void *context, uint64_t first, uint64_t count, bool there)
{
    struct snapshot_cache *cache = context;
    const uint64_t end = cache->map.blocks[cache->folder->manifest.ram_count].first;
    return !there || first >= end ? 0 : ibx_fault_mark_present(cache->engine, first, count);
}

/* What a process before this one has brought. */
static int mark(struct snapshot_cache *cache, struct ibx_error *err)
{
    struct ibx_page_map there;
    int rc = ibx_snapshot_folder_map(cache->folder, &there, err);
    if (rc)
        return rc;
    rc = ibx_page_map_runs(&there, mark_there, cache);
    if (!rc)
        rc = ibx_page_map_runs(&cache->map, mark_zero, cache);
    ibx_page_map_fini(&there);
    return rc ? ibx_error_set(err, rc, "pages that are there cannot be marked: %s", strerror(-rc))
              : 0;
}

static int copy_map(struct snapshot_cache *cache, struct ibx_error *err)
{
    int rc = ibx_snapshot_map_init(&cache->folder->manifest, &cache->map, err);
    if (!rc)
        ibx_page_map_add(&cache->map, ibx_snapshot_reader_map(cache->reader));
    return rc;
}

int ibx_snapshot_cache_fill(struct snapshot_cache *cache, bool background, uint64_t max_bandwidth,
                            struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    struct ibx_fault_config config = {.ranges = cache->ranges,
                                      .range_count = cache->folder->manifest.ram_count,
                                      .readers = as,
                                      .worker_count = cache->links,
                                      .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
                                      .no_background = !background,
                                      .fault_workers = cache->links > 1,
                                      .max_bandwidth = max_bandwidth};
    int rc = copy_map(cache, err);
    if (!rc)
        rc = ibx_fault_uffd_open(0, &cache->uffd, err);
    for (unsigned i = 0; !rc && i < cache->folder->count; i++)
        rc = map_block(cache, i, err);
    config.uffd = cache->uffd;
    cache->buffer_bytes = ibx_fault_buffer_bytes(&config);
    if (!rc)
        rc = ibx_snapshot_reader_serve(cache->reader, cache->buffer_bytes, as, err);
    if (!rc)
        rc = ibx_fault_create(&config, &cache->engine, err);
    if (!rc)
        rc = mark(cache, err);
    if (!rc && (rc = ibx_fault_serve(cache->engine)))
        ibx_error_set(err, rc, "the fault engine does not start: %s", strerror(-rc));
    return rc ? rc : ibx_state_move(&cache->state, CACHE_FILLING);
}

int ibx_snapshot_cache_fd(const struct snapshot_cache *cache)
{
    return cache->state.now == CACHE_FILLING    ? ibx_fault_event_fd(cache->engine)
           : cache->state.now == CACHE_CHECKING ? cache->checked_fd
                                                : -1;
}

/* ------------------------------------------------------------ what becomes of it */

static void *check_main(void *argument)
{
    struct snapshot_cache *cache = argument;
    ibx_snapshot_digest(cache->folder, &cache->map, cache->digest, &cache->check_error);
    eventfd_write(cache->checked_fd, 1);
    return NULL;
}

/* That takes a second for some GiB, and children come meanwhile. */
static int check(struct snapshot_cache *cache, struct ibx_error *err)
{
    cache->checked_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cache->checked_fd < 0)
        return ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno));
    const int rc = pthread_create(&cache->checker, NULL, check_main, cache);
    return rc ? ibx_error_set(err, -rc, "no thread for a digest: %s", strerror(rc))
              : ibx_state_move(&cache->state, CACHE_CHECKING);
}

static int whole(struct snapshot_cache *cache, struct ibx_error *err)
{
    static const uint8_t none[IBX_SNAPSHOT_DIGEST];
    const uint8_t *frozen = cache->folder->manifest.digest;
    eventfd_t count;
    if (eventfd_read(cache->checked_fd, &count))
        return 0; /* not yet */
    pthread_join(cache->checker, NULL);
    int rc = cache->check_error.code;
    if (rc)
        ibx_error_set(err, rc, "%s", cache->check_error.message);
    if (!rc && memcmp(frozen, none, sizeof(none)) &&
        memcmp(cache->digest, frozen, sizeof(cache->digest)))
        rc =
            ibx_error_set(err, -EBADMSG,
                          "the pages in %s are not those that were frozen: their SHA-256 differs "
                          "from the manifest's; end its children, which are wrong, too, and remove "
                          "the folder",
                          cache->folder->path);
    cache->folder->manifest.complete = !rc;
    if (!rc)
        rc = ibx_snapshot_folder_seal(cache->folder, err);
    if (rc)
        return rc;
    ibx_fault_destroy(cache->engine);
    cache->engine = NULL;
    for (unsigned i = 0; i < cache->folder->manifest.ram_count; i++)
        ibx_fault_unregister(cache->uffd, &cache->ranges[i], NULL);
    close(cache->uffd);
    cache->uffd = -1;
    ibx_snapshot_reader_close(cache->reader);
    cache->reader = NULL;
    return ibx_state_move(&cache->state, CACHE_WHOLE);
}

static int lost(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                void *context)
{
    struct ibx_error why = {0};
    char line[IBX_ERROR_MAX + 64];
    ibx_fault_reason(cache->engine, &why);
    snprintf(line, sizeof(line), "%s is lost (%s): connecting again", cache->source, why.message);
    notify(context, line);
    ibx_snapshot_reader_close(cache->reader);
    cache->reader = NULL;
    /* A server that is lost at once, or a tmpfs that is full, is not asked without a pause. */
    const bool lived = ibx_now_ns() - cache->filling_ns > PAUSE_MAX_MS * IBX_NS_PER_MS;
    cache->pause_ms = lived || cache->pause_ms < PAUSE_MS ? PAUSE_MS : cache->pause_ms;
    cache->again_ns = lived ? ibx_now_ns() : ibx_deadline_in_ms(cache->pause_ms);
    cache->pause_ms = cache->pause_ms * 2 < PAUSE_MAX_MS ? cache->pause_ms * 2 : PAUSE_MAX_MS;
    return ibx_state_move(&cache->state, CACHE_LOST);
}

static int try_again(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                     void *context, struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    char line[400];
    if (ibx_now_ns() < cache->again_ns)
        return 0;
    int rc = connect_one(cache, err);
    if (!rc)
        rc = same_snapshot(cache, err);
    if (!rc)
        rc = ibx_snapshot_reader_serve(cache->reader, cache->buffer_bytes, as, err);
    if (!rc)
        rc = ibx_fault_resume(cache->engine, as, err);
    if (rc) {
        ibx_snapshot_reader_close(cache->reader);
        cache->reader = NULL;
        cache->again_ns = ibx_deadline_in_ms(cache->pause_ms);
        cache->pause_ms = cache->pause_ms * 2 < PAUSE_MAX_MS ? cache->pause_ms * 2 : PAUSE_MAX_MS;
        return 0;
    }
    cache->reconnects++;
    cache->filling_ns = ibx_now_ns();
    snprintf(line, sizeof(line), "pages come from %s now", cache->source);
    notify(context, line);
    return ibx_state_move(&cache->state, CACHE_FILLING);
}

int ibx_snapshot_cache_step(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context,
                            struct ibx_error *err)
{
    if (cache->state.now == CACHE_LOST)
        return try_again(cache, notify, context, err);
    if (cache->state.now == CACHE_CHECKING)
        return whole(cache, err);
    if (cache->state.now != CACHE_FILLING)
        return 0;
    uint64_t count;
    ssize_t ignored = read(ibx_fault_event_fd(cache->engine), &count, sizeof(count));
    (void)ignored;
    const enum ibx_fault_state state = ibx_fault_state(cache->engine);
    if (state == IBX_FAULT_COMPLETE)
        return check(cache, err);
    return state == IBX_FAULT_STOPPED ? lost(cache, notify, context) : 0;
}

void ibx_snapshot_cache_end(struct snapshot_cache *cache)
{
    ibx_fault_destroy(cache->engine);
    ibx_snapshot_reader_close(cache->reader);
    for (unsigned i = 0; i < cache->folder->count; i++)
        if (cache->memory[i])
            munmap(cache->memory[i], (size_t)cache->folder->sizes[i]);
    if (cache->uffd >= 0)
        close(cache->uffd);
    if (cache->checked_fd >= 0)
        close(cache->checked_fd);
    ibx_page_map_fini(&cache->map);
}
