/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"
#include "common/thread.h"
#include "common/write_whole.h"
#include "migrate/common/common.h"

#include <errno.h>
#include <fcntl.h>
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
#define TRY_MS       3000 /* in which a server has to answer if there are others */
#define STATE_PART   (1u << 20)
#define AROUND       (16u << 10) /* fault-around; small, so that pages nobody needs do not come */

#define BACKGROUND_MOST (4u << 20) /* bytes that are fetched ahead at a time, at most */
/* If somebody waits for a page, and others come, the server is given up after this many times
 * timeout_ms: on a slow link, other pages may have been requested before it. */
#define AWAITED_TIMES 3u

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
    pthread_mutex_init(&cache->engine_lock, NULL);
    ibx_state_begin(&cache->state, &cache_table, CACHE_EMPTY);
}

/* ------------------------------------------------------------ where pages come from */

static int same_snapshot(const struct snapshot_cache *cache, struct ibx_error *err)
{
    const struct ibx_snapshot_manifest *theirs = ibx_snapshot_reader_manifest(cache->reader);
    return ibx_snapshot_same(theirs, &cache->folder->manifest)
               ? 0
               : ibx_error_set(err, -ESTALE,
                               "%s serves another snapshot than the one in %s: give another folder",
                               cache->source, cache->folder->path);
}

/* Connects to the next server, which with `known` has to serve the folder's snapshot: it may serve
 * another one by now. None is waited for long if there are several, or children wait. */
static int connect_next(struct snapshot_cache *cache, bool known, struct ibx_error *err)
{
    struct ibx_options options = *cache->options;
    const char *uri = cache->uris[(cache->first + cache->tried) % cache->uri_count];
    if ((known || cache->uri_count > 1) && options.timeout_ms > TRY_MS)
        options.timeout_ms = TRY_MS;
    options.ends = ibx_migration_signals_pending;
    int rc = ibx_snapshot_reader_open(uri, &options, cache->links, &cache->reader, err);
    if (!rc) {
        snprintf(cache->source, sizeof(cache->source), "%s", uri);
        rc = known ? same_snapshot(cache, err) : 0;
        if (rc)
            ibx_snapshot_reader_close(cache->reader);
        cache->reader = rc ? NULL : cache->reader;
    }
    if (!rc || ++cache->tried == cache->uri_count)
        cache->first = cache->tried = 0;
    return rc;
}

/* Connects to the first server that answers. */
static int connect_one(struct snapshot_cache *cache, bool known, struct ibx_error *err)
{
    struct ibx_error other = {0};
    int rc;
    while ((rc = connect_next(cache, known, err)) && rc != -EINTR && cache->tried)
        other = rc == -ESTALE ? *err : other;
    return rc && other.code ? ibx_error_set(err, other.code, "%s", other.message) : rc;
}

/* ------------------------------------------------------------ the folder */

/* Makes the checker, which checks each page before anybody can see it, whether the fault engine or
 * multicast brings it. Its last worker is the feed's; the others are the engine's. */
static int make_checker(struct snapshot_cache *cache, struct ibx_error *err)
{
    struct ibx_snapshot_index index = ibx_snapshot_reader_take_index(cache->reader);
    if (!index.hashes)
        return 0;
    const int rc = ibx_snapshot_checker_create(&cache->folder->manifest, &index, cache->links + 1,
                                               &cache->hashes, err);
    ibx_snapshot_index_fini(&index);
    return rc;
}

static int fetch_part(struct snapshot_cache *cache, uint64_t at, uint8_t *part, size_t length,
                      struct ibx_error *err)
{
    struct ibx_snapshot_folder *folder = cache->folder;
    const unsigned block = folder->manifest.ram_count;
    const uint64_t first =
        ibx_snapshot_reader_map(cache->reader)->blocks[block].first + at / IBX_SNAPSHOT_PAGE;
    const uint32_t pages = (uint32_t)(length / IBX_SNAPSHOT_PAGE);
    int rc = ibx_snapshot_reader_fetch(cache->reader, block, at, part, length, err);
    if (!rc && cache->hashes)
        rc = ibx_snapshot_reader_fetch_hashes(cache->reader, cache->hashes, first, pages, err);
    if (!rc && cache->hashes)
        rc = ibx_snapshot_checker_check(cache->hashes, 0, first, pages, part, err);
    if (rc)
        return rc;
    rc = ibx_write_whole_at(folder->fds[block], part, length, at);
    return rc ? ibx_error_set(err, rc, "the device state cannot be written to %s: %s", folder->path,
                              strerror(-rc))
              : 0;
}

static int fetch_state(struct snapshot_cache *cache, struct ibx_error *err)
{
    const uint64_t size = cache->folder->sizes[cache->folder->manifest.ram_count];
    uint8_t *part = malloc(STATE_PART);
    int rc = part ? 0 : ibx_error_set(err, -ENOMEM, "no memory for the device state");
    for (uint64_t at = 0, n; !rc && at < size; at += n) {
        n = size - at < STATE_PART ? size - at : STATE_PART;
        rc = fetch_part(cache, at, part, (size_t)n, err);
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
        rc = ibx_snapshot_folder_files(folder, IBX_SNAPSHOT_FILES_MAKE, err);
    if (!rc)
        rc = make_checker(cache, err);
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
    int rc = connect_one(cache, known, err);
    if (!rc && !known)
        rc = make_folder(cache, path, err);
    if (!rc && known)
        rc = ibx_snapshot_folder_lock(cache->folder, err);
    return rc || !known ? rc : make_checker(cache, err);
}

/* ------------------------------------------------------------ the mapping */

/* The device state is there from the beginning; guest RAM and its hashes are filled on demand. */
static bool is_state(const struct snapshot_cache *cache, unsigned block)
{
    return block == cache->folder->manifest.ram_count;
}

/* The pages of the table of hashes, in a snapshot that has one. */
static struct ibx_fault_run table_of(const struct snapshot_cache *cache)
{
    const unsigned block = cache->folder->manifest.ram_count + 1;
    return (struct ibx_fault_run){cache->map.blocks[block].first, cache->map.blocks[block].pages};
}

static struct ibx_fault_range *range_of(struct snapshot_cache *cache, unsigned block)
{
    return &cache->ranges[block > cache->folder->manifest.ram_count ? block - 1 : block];
}

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
    madvise(at, size, MADV_NOHUGEPAGE); /* as ibx_guest_ram_huge_pages() */
    if (is_state(cache, i))
        return 0;
    *range_of(cache, i) =
        (struct ibx_fault_range){.start = (uintptr_t)at,
                                 .length = size,
                                 .page_size = IBX_SNAPSHOT_PAGE,
                                 .first_page = cache->map.blocks[i].first,
                                 .reader_offset = cache->map.blocks[i].first * IBX_SNAPSHOT_PAGE};
    return ibx_fault_register(cache->uffd, range_of(cache, i), err);
}

static int mark_zero(void *context, uint64_t first, uint64_t count, bool data)
{
    struct snapshot_cache *cache = context;
    return data || is_state(cache, ibx_page_map_block(&cache->map, first))
               ? 0
               : ibx_fault_mark_zero(cache->engine, first, count);
}

static int mark_there(void *context, uint64_t first, uint64_t count, bool there)
{
    struct snapshot_cache *cache = context;
    return !there || is_state(cache, ibx_page_map_block(&cache->map, first))
               ? 0
               : ibx_fault_mark_present(cache->engine, first, count);
}

/* Keeps the hashes that an earlier process has fetched, so that nobody fetches them again. A page
 * of them that differs from the index, because somebody has changed it, leaves the file, and comes
 * again. */
static int keep_hashes(void *context, uint64_t first, uint64_t count, bool there)
{
    const struct snapshot_cache *cache = context;
    const int fd = cache->folder->fds[cache->folder->manifest.ram_count + 1];
    const uint64_t table = table_of(cache).page;
    uint8_t bytes[IBX_SNAPSHOT_PAGE];
    for (uint64_t page = first; there && first >= table && page < first + count; page++) {
        const off_t at = (off_t)((page - table) * sizeof(bytes));
        if (pread(fd, bytes, sizeof(bytes), at) == (ssize_t)sizeof(bytes) &&
            ibx_snapshot_checker_check(cache->hashes, 0, page, 1, bytes, NULL) == -EBADMSG &&
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, sizeof(bytes)))
            return -errno;
    }
    return 0;
}

/* Marks the pages that an earlier process has fetched as present; hashes first, of which some may
 * not stay there. */
static int mark(struct snapshot_cache *cache, struct ibx_error *err)
{
    struct ibx_page_map there;
    int rc = ibx_snapshot_folder_map(cache->folder, &there, err);
    if (!rc && cache->hashes) {
        rc = ibx_page_map_runs(&there, keep_hashes, cache);
        ibx_page_map_fini(&there);
        if (rc)
            return ibx_error_set(err, rc, "wrong hashes cannot be removed from %s: %s",
                                 cache->folder->path, strerror(-rc));
        rc = ibx_snapshot_folder_map(cache->folder, &there, err);
    }
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

/* ------------------------------------------------------------ by multicast */

/* Joins the server's group, if it has one; while the group sends pages, the background waits. */
static void join(struct snapshot_cache *cache)
{
    const struct snapshot_feed_config config = {.uri = cache->source,
                                                .interface = cache->multicast->interface,
                                                .options = cache->options,
                                                .manifest = &cache->folder->manifest,
                                                .map = &cache->map,
                                                .engine = cache->engine,
                                                .checker = cache->hashes,
                                                .worker = cache->links};
    const bool can = cache->multicast->on && cache->background && cache->hashes &&
                     !ibx_snapshot_feed_open(&config, &cache->feed, NULL);
    cache->feeds = can;
    ibx_fault_set_background(cache->engine, cache->background && !can);
}

static void leave_group(struct snapshot_cache *cache)
{
    if (!cache->feed)
        return;
    ibx_snapshot_feed_close(cache->feed, &cache->fed);
    cache->feed = NULL;
    cache->feeds = false;
    ibx_fault_set_background(cache->engine, cache->background);
}

/* Lets the background continue beside the group, which may be sending pages that nobody here wants,
 * without end. Pages that still come by multicast are accepted. */
static void do_not_wait_for_group(struct snapshot_cache *cache,
                                  void (*notify)(void *context, const char *line), void *context)
{
    cache->feeds = false;
    cache->progress_ns = 0;
    ibx_fault_set_background(cache->engine, true);
    notify(context, "no page has come by multicast for a while: they are READ as well");
}

static void look_after_feed(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context)
{
    char line[IBX_ERROR_MAX];
    if (!cache->feed)
        return;
    const bool over = ibx_snapshot_feed_over(cache->feed);
    while (ibx_snapshot_feed_says(cache->feed, line))
        notify(context, line);
    if (over)
        leave_group(cache);
}

int ibx_snapshot_cache_feed_fd(const struct snapshot_cache *cache)
{
    return cache->feed ? ibx_snapshot_feed_fd(cache->feed) : -1;
}

void ibx_snapshot_cache_fed(const struct snapshot_cache *cache, struct ibx_snapshot_fed *fed)
{
    *fed = (struct ibx_snapshot_fed){.now = cache->feed != NULL, .stats = cache->fed};
    if (cache->feed)
        ibx_snapshot_feed_stats(cache->feed, &fed->stats);
}

bool ibx_snapshot_cache_has(void *context, uint64_t page)
{
    struct snapshot_cache *cache = context;
    pthread_mutex_lock(&cache->engine_lock);
    const bool has = !cache->engine || ibx_fault_present(cache->engine, page);
    pthread_mutex_unlock(&cache->engine_lock);
    return has;
}

/* ------------------------------------------------------------ filling it */

int ibx_snapshot_cache_fill(struct snapshot_cache *cache, bool background, uint64_t max_bandwidth,
                            struct ibx_error *err)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    struct ibx_fault_run table;
    struct ibx_fault_config config = {.ranges = cache->ranges,
                                      .range_count = cache->folder->count - 1,
                                      .readers = as,
                                      .worker_count = cache->links,
                                      .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
                                      .no_background = !background || cache->multicast->on,
                                      .fault_workers = cache->links > 1,
                                      .prompt = !background,
                                      .fault_around = background ? 0 : AROUND,
                                      .check = cache->hashes ? ibx_snapshot_checker_check : NULL,
                                      .check_context = cache->hashes,
                                      .max_bandwidth = max_bandwidth};
    int rc = copy_map(cache, err);
    if (!rc)
        rc = ibx_fault_uffd_open(0, &cache->uffd, err);
    for (unsigned i = 0; !rc && i < cache->folder->count; i++)
        rc = map_block(cache, i, err);
    config.uffd = cache->uffd;
    if (!rc && cache->multicast->on && background && cache->hashes) {
        table = table_of(cache); /* multicast pages are compared with it from the beginning */
        config.plan = &table;
        config.plan_count = 1;
    }
    cache->buffer_bytes = ibx_fault_buffer_bytes(&config);
    if (!rc)
        rc = ibx_snapshot_reader_serve(cache->reader, cache->hashes, cache->buffer_bytes, as, err);
    if (!rc)
        rc = ibx_fault_create(&config, &cache->engine, err);
    if (!rc)
        rc = mark(cache, err);
    if (!rc && (rc = ibx_fault_serve(cache->engine)))
        ibx_error_set(err, rc, "page faults cannot be served: %s", strerror(-rc));
    if (rc)
        return rc;
    cache->background = background;
    cache->max_bandwidth = max_bandwidth;
    join(cache);
    return ibx_state_move(&cache->state, CACHE_FILLING);
}

int ibx_snapshot_cache_fd(const struct snapshot_cache *cache)
{
    return cache->state.now == CACHE_FILLING    ? ibx_fault_event_fd(cache->engine)
           : cache->state.now == CACHE_CHECKING ? cache->checked_fd
                                                : -1;
}

/* ------------------------------------------------------------ what becomes of it */

/* By the map of the files, which may have pages that are zero in the snapshot: nobody has compared
 * those that an earlier process left. */
static void *check_main(void *argument)
{
    struct snapshot_cache *cache = argument;
    struct ibx_page_map there;
    if (!ibx_snapshot_folder_map(cache->folder, &there, &cache->check_error)) {
        ibx_snapshot_digest(cache->folder, &there, cache->digest, &cache->check_error);
        ibx_page_map_fini(&there);
    }
    eventfd_write(cache->checked_fd, 1);
    return NULL;
}

/* Starts the thread that computes the digest: some GiB take a second, in which children may come.
 */
static int check(struct snapshot_cache *cache, struct ibx_error *err)
{
    ibx_snapshot_folder_note_times(cache->folder);
    cache->checked_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cache->checked_fd < 0)
        return ibx_error_set(err, -errno, "no event descriptor: %s", strerror(errno));
    const int rc = pthread_create(&cache->checker, NULL, check_main, cache);
    return rc ? ibx_error_set_task(err, -rc, "no thread for a digest")
              : ibx_state_move(&cache->state, CACHE_CHECKING);
}

/* Joins that thread; without effect if it was joined before. */
static void join_checker(struct snapshot_cache *cache)
{
    if (cache->checked_fd < 0)
        return;
    pthread_join(cache->checker, NULL);
    close(cache->checked_fd);
    cache->checked_fd = -1;
}

/* Compares the digest that the thread has computed. */
static int compare_digest(const struct snapshot_cache *cache, struct ibx_error *err)
{
    const uint8_t *frozen = cache->folder->manifest.digest;
    if (cache->check_error.code)
        return ibx_error_set(err, cache->check_error.code, "%s", cache->check_error.message);
    if (!cache->folder->manifest.hashed || !memcmp(cache->digest, frozen, sizeof(cache->digest)))
        return 0;
    return ibx_error_set(err, -EBADMSG,
                         "the pages in %s are not those that were frozen: their digest differs "
                         "from the manifest's; end its children, which are wrong, too, and remove "
                         "the folder",
                         cache->folder->path);
}

/* Writes that the folder has all pages. 1: there is no room for that now, as there was for the last
 * page; nobody waits for it meanwhile. */
static int seal(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                void *context, struct ibx_error *err)
{
    struct ibx_error why = {0};
    char line[IBX_ERROR_MAX + 64];
    cache->folder->manifest.complete = true;
    const int rc = ibx_snapshot_folder_seal(cache->folder, &why);
    cache->folder->manifest.complete = !rc;
    if (rc != -ENOSPC && rc != -EDQUOT && rc != -ENOMEM)
        return rc ? ibx_error_set(err, rc, "%s", why.message) : 0;
    if (!cache->told_room) {
        snprintf(line, sizeof(line), "%s; it is tried again: make room there", why.message);
        notify(context, line);
    }
    cache->told_room = true;
    return 1;
}

static int whole(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                 void *context, struct ibx_error *err)
{
    eventfd_t count;
    if (cache->checked_fd >= 0 && eventfd_read(cache->checked_fd, &count))
        return 0; /* not yet */
    join_checker(cache);
    int rc = compare_digest(cache, err);
    cache->right = !rc;
    if (!rc)
        rc = seal(cache, notify, context, err);
    if (rc)
        return rc < 0 ? rc : 0;
    ibx_snapshot_mark_verified(cache->folder);
    pthread_mutex_lock(&cache->engine_lock);
    ibx_fault_destroy(cache->engine);
    cache->engine = NULL;
    pthread_mutex_unlock(&cache->engine_lock);
    for (unsigned i = 0; i + 1 < cache->folder->count; i++)
        ibx_fault_unregister(cache->uffd, &cache->ranges[i], NULL);
    close(cache->uffd);
    cache->uffd = -1;
    ibx_snapshot_reader_close(cache->reader);
    cache->reader = NULL;
    return ibx_state_move(&cache->state, CACHE_WHOLE);
}

/* The next server in the list is tried first, after the present one. */
static void pass_over(struct snapshot_cache *cache)
{
    for (unsigned i = 0; i < cache->uri_count; i++)
        if (!strcmp(cache->uris[i], cache->source))
            cache->first = (i + 1) % cache->uri_count;
}

/* A wrong page has come: tries the next server. -EBADMSG once all servers have sent wrong pages in
 * a row, which is no accident of a wire. */
static int note_wrong(struct snapshot_cache *cache, const struct ibx_error *why,
                      struct ibx_error *err)
{
    pass_over(cache);
    if (++cache->wrong <= cache->uri_count)
        return 0;
    return ibx_error_set(err, -EBADMSG,
                         "%s: %.600s; it is not placed, and children wait for it: find out who "
                         "changes it, and serve %s from a server that has it",
                         cache->source, why->message, cache->folder->path);
}

static int lost(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                void *context, struct ibx_error *err)
{
    struct ibx_error why = {0};
    char line[IBX_ERROR_MAX + 64];
    int rc = ibx_fault_reason(cache->engine, &why);
    rc = rc == -EBADMSG ? note_wrong(cache, &why, err) : 0;
    if (rc)
        return rc;
    leave_group(cache);
    snprintf(line, sizeof(line), "%s is lost (%s): connecting again", cache->source, why.message);
    notify(context, line);
    ibx_snapshot_reader_close(cache->reader);
    cache->reader = NULL;
    /* After a server that was lost at once, or with a full tmpfs, there is a pause before each try.
     */
    const bool lived = ibx_now_ns() - cache->filling_ns > PAUSE_MAX_MS * IBX_NS_PER_MS;
    cache->wrong = lived && why.code != -EBADMSG ? 0 : cache->wrong;
    cache->pause_ms = lived || cache->pause_ms < PAUSE_MS ? PAUSE_MS : cache->pause_ms;
    cache->again_ns = lived ? ibx_now_ns() : ibx_deadline_in_ms(cache->pause_ms);
    cache->pause_ms = cache->pause_ms * 2 < PAUSE_MAX_MS ? cache->pause_ms * 2 : PAUSE_MAX_MS;
    return ibx_state_move(&cache->state, CACHE_LOST);
}

/* Tries one server, because children are answered between two calls. */
static int try_again(struct snapshot_cache *cache, void (*notify)(void *context, const char *line),
                     void *context)
{
    struct ibx_fault_reader as[IBX_MIGRATE_LINKS_MAX];
    struct ibx_error why = {0};
    char line[400];
    if (ibx_now_ns() < cache->again_ns)
        return 0;
    int rc = connect_next(cache, true, &why);
    if (!rc)
        rc = ibx_snapshot_reader_serve(cache->reader, cache->hashes, cache->buffer_bytes, as, &why);
    if (!rc) /* a server without hashes may have fewer pages; those that it lacks are zero */
        rc = ibx_page_map_runs(ibx_snapshot_reader_map(cache->reader), mark_zero, cache);
    if (!rc)
        rc = ibx_fault_resume(cache->engine, as, &why);
    if (rc) {
        if (rc == -ESTALE && !cache->told_other)
            notify(context, why.message);
        cache->told_other |= rc == -ESTALE;
        ibx_snapshot_reader_close(cache->reader);
        cache->reader = NULL;
        if (cache->tried)
            return 0;
        cache->again_ns = ibx_deadline_in_ms(cache->pause_ms);
        cache->pause_ms = cache->pause_ms * 2 < PAUSE_MAX_MS ? cache->pause_ms * 2 : PAUSE_MAX_MS;
        return 0;
    }
    cache->told_other = false;
    cache->progress_ns = 0;
    join(cache);
    cache->reconnects++;
    cache->filling_ns = ibx_now_ns();
    snprintf(line, sizeof(line), "pages come from %s now", cache->source);
    notify(context, line);
    return ibx_state_move(&cache->state, CACHE_FILLING);
}

/* How long nothing may come before the server is given up: longer if only background pages are
 * expected, which may be limited by max_bandwidth. */
static uint64_t patience_ns(const struct snapshot_cache *cache, const struct ibx_fault_stats *stats)
{
    const uint64_t ns = cache->options->timeout_ms * IBX_NS_PER_MS;
    return stats->waiting || !cache->max_bandwidth
               ? ns
               : ns + (uint64_t)BACKGROUND_MOST * 1000 / cache->max_bandwidth * IBX_NS_PER_MS;
}

/* Whether somebody has waited too long for a page since this server was connected, even if the
 * server sends other pages. */
static bool is_overdue(const struct snapshot_cache *cache, uint64_t now)
{
    const uint64_t fault = ibx_fault_waits_since(cache->engine);
    const uint64_t since = fault > cache->filling_ns ? fault : cache->filling_ns;
    return fault && now > since &&
           now - since >= AWAITED_TIMES * cache->options->timeout_ms * IBX_NS_PER_MS;
}

/* A server that is itself a cache sends nothing while its own server is lost. A server may also
 * have been stopped, or leave out a page. Another server may have what is needed. */
static void look_for_progress(struct snapshot_cache *cache,
                              void (*notify)(void *context, const char *line), void *context)
{
    const uint64_t now = ibx_now_ns();
    struct ibx_fault_stats stats;
    ibx_fault_stats(cache->engine, &stats);
    const bool expects = stats.waiting || cache->background;
    if (!expects || stats.present != cache->present || !cache->progress_ns)
        cache->progress_ns = now;
    cache->present = stats.present;
    const bool silent = now - cache->progress_ns >= patience_ns(cache, &stats);
    if (silent && cache->feeds && !stats.waiting) {
        do_not_wait_for_group(cache, notify, context);
        return;
    }
    if (cache->uri_count < 2 || (!silent && !(stats.waiting && is_overdue(cache, now))))
        return;
    pass_over(cache);
    ibx_fault_stop(cache->engine, -ETIMEDOUT,
                   silent ? SNAPSHOT_SILENT : "it does not send a page that is waited for");
}

int ibx_snapshot_cache_step(struct snapshot_cache *cache,
                            void (*notify)(void *context, const char *line), void *context,
                            struct ibx_error *err)
{
    if (cache->state.now == CACHE_LOST)
        return try_again(cache, notify, context);
    if (cache->state.now == CACHE_CHECKING)
        return whole(cache, notify, context, err);
    if (cache->state.now != CACHE_FILLING)
        return 0;
    uint64_t count;
    ssize_t ignored = read(ibx_fault_event_fd(cache->engine), &count, sizeof(count));
    (void)ignored;
    look_after_feed(cache, notify, context);
    const enum ibx_fault_state state = ibx_fault_state(cache->engine);
    if (state == IBX_FAULT_COMPLETE) {
        leave_group(cache);
        return check(cache, err);
    }
    if (state == IBX_FAULT_SERVING)
        look_for_progress(cache, notify, context);
    return state == IBX_FAULT_STOPPED ? lost(cache, notify, context, err) : 0;
}

uint64_t ibx_snapshot_cache_present(const struct snapshot_cache *cache,
                                    const struct ibx_fault_stats *engine)
{
    const struct ibx_page_map *map = &cache->map;
    const uint64_t ram = map->blocks[cache->folder->manifest.ram_count].first;
    uint64_t hashes = 0;
    if (map->block_count > cache->folder->manifest.ram_count + 1)
        for (uint64_t page = map->blocks[map->block_count - 1].first; page < map->pages; page++)
            hashes += ibx_fault_present(cache->engine, page);
    const uint64_t present = engine->present > hashes ? engine->present - hashes : 0;
    return present < ram ? present : ram;
}

void ibx_snapshot_cache_end(struct snapshot_cache *cache)
{
    if (cache->feed)
        leave_group(cache);
    if (cache->state.now == CACHE_CHECKING)
        join_checker(cache); /* its thread reads what is unmapped below */
    ibx_fault_destroy(cache->engine);
    ibx_snapshot_checker_destroy(cache->hashes);
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
