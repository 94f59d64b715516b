/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/cache.h"

#include "common/clock.h"
#include "migrate/common/common.h"
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_MS    1000 /* between two reports */
#define COMPARE_MS 3000 /* in which a server has to answer which snapshot it serves */
#define LOST_MS    50   /* between two looks while no server answers */

struct serving {
    const struct ibx_serve_options *options;
    struct ibx_snapshot_folder folder;
    struct ibx_page_map map;            /* unless `cached` */
    struct ibx_snapshot_index index;    /* unless `cached`, and if the snapshot is hashed */
    void *memory[IBX_GUEST_BLOCKS_MAX]; /* unless `cached` */
    struct snapshot_cache cache;
    struct snapshot_intact intact;
    bool cached;
    struct snapshot_children *children;
    struct ibx_snapshot_server *server;
    struct ibx_snapshot_multicast multicast;
    struct migration_signals signals;
    struct ibx_fault_stats engine; /* the last figures of the cache's engine */
    uint64_t told_ns, looked_ns, present;
    uint64_t used_ns, asked; /* until_unused: when a child was seen last */
    bool gone; /* somebody has changed the files: threads may wait in their mapping for good */
};

/* ------------------------------------------------------------ beginning */

/* Maps the files, shared, so that readers get the pages of the page cache. */
static int map_blocks(struct serving *s, struct ibx_error *err)
{
    for (unsigned i = 0; i < s->folder.count; i++) {
        void *at = mmap(NULL, (size_t)s->folder.sizes[i],
                        PROT_READ | (s->folder.read_only ? 0 : PROT_WRITE), MAP_SHARED,
                        s->folder.fds[i], 0);
        if (at == MAP_FAILED)
            return ibx_error_set(err, -errno, "block %u of %s cannot be mapped: %s", i,
                                 s->folder.path, strerror(errno));
        s->memory[i] = at;
        madvise(at, (size_t)s->folder.sizes[i], MADV_DONTDUMP);
        if (!s->folder.manifest.complete) /* as ibx_guest_ram_huge_pages() */
            madvise(at, (size_t)s->folder.sizes[i], MADV_NOHUGEPAGE);
    }
    return 0;
}

static void notify(void *context, const char *line)
{
    const struct serving *s = context;
    if (s->options->notify)
        s->options->notify(s->options->context, line);
}

/* For a cache that is whole: checks that the given servers still serve its snapshot. */
static int compare(struct serving *s, struct ibx_error *err)
{
    struct ibx_options options = s->options->transport;
    struct ibx_snapshot_reader *reader = NULL;
    struct ibx_error why = {0};
    char line[IBX_ERROR_MAX + 300];
    int rc = s->options->cache_count ? -ENOTCONN : 0;
    if (options.timeout_ms > COMPARE_MS)
        options.timeout_ms = COMPARE_MS;
    options.ends = ibx_migration_signals_pending;
    for (unsigned i = 0; rc && rc != -EINTR && i < s->options->cache_count; i++) {
        rc = ibx_snapshot_reader_open(s->options->caches[i], &options, 1, &reader, &why);
        if (rc)
            continue;
        const bool same =
            ibx_snapshot_same(ibx_snapshot_reader_manifest(reader), &s->folder.manifest);
        ibx_snapshot_reader_close(reader);
        return same ? 0
                    : ibx_error_set(err, -ESTALE,
                                    "%s serves another snapshot than the one in %s: give another "
                                    "folder",
                                    s->options->caches[i], s->folder.path);
    }
    if (!rc || rc == -EINTR)
        return rc == -EINTR ? ibx_error_set(err, rc, "%s", why.message) : 0;
    snprintf(line, sizeof(line),
             "%.250s has all pages of its snapshot; whether that is still served is not known: %s",
             s->folder.path, why.message);
    notify(s, line);
    return 0;
}

/* Reads map and index, which readers are sent, from the table. */
static int read_table(struct serving *s, struct ibx_error *err)
{
    const struct ibx_snapshot_manifest *m = &s->folder.manifest;
    struct ibx_page_map there = s->map;
    if (!m->hashed)
        return 0;
    const struct ibx_snapshot_table table = {.hashes = s->memory[m->ram_count + 1],
                                             .bytes = (size_t)ibx_snapshot_table_bytes(m),
                                             .pages = ibx_snapshot_hashed_pages(m)};
    const int rc = ibx_snapshot_table_read(m, &table, &there, &s->map, &s->index, err);
    if (!rc)
        ibx_page_map_fini(&there);
    return rc;
}

static int begin_whole(struct serving *s, struct ibx_error *err)
{
    const struct snapshot_children_config children = {&s->folder, &s->map, s->memory};
    int rc = 0;
    if (!s->folder.manifest.complete)
        return ibx_error_set(err, -EINVAL,
                             "%s is a cache that has not all pages: serve it with --cache and the "
                             "URI that it is filled from",
                             s->options->folder);
    rc = compare(s, err);
    if (!rc)
        rc = ibx_snapshot_folder_map(&s->folder, &s->map, err);
    if (!rc)
        rc = map_blocks(s, err);
    if (!rc && s->folder.opened) /* with the map of the files: pages that they lack are zero */
        rc = ibx_snapshot_children_release(&children, err);
    if (!rc)
        rc = read_table(s, err);
    if (!rc && !s->options->listen)
        rc = ibx_error_set(err, -EINVAL,
                           "%s has all pages: its children need no server, and readers on other "
                           "hosts need --listen",
                           s->options->folder);
    return rc;
}

/* How many bytes have still to come: pages with data that are missing, and their hashes. */
static int left_to_come(const struct serving *s, uint64_t *bytes, struct ibx_error *err)
{
    struct ibx_page_map there, left;
    int rc = ibx_snapshot_folder_map(&s->folder, &there, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_map_init(&s->folder.manifest, &left, err);
    if (!rc) {
        ibx_page_map_add(&left, ibx_snapshot_reader_map(s->cache.reader));
        ibx_page_map_remove(&left, &there);
        *bytes = left.data_pages * IBX_SNAPSHOT_PAGE;
        ibx_page_map_fini(&left);
    }
    ibx_page_map_fini(&there);
    return rc;
}

/* Checks that the tmpfs and the memory suffice: otherwise the kernel would end this process, and
 * its children would wait, again and again. */
static int check_room(struct serving *s, struct ibx_error *err)
{
    struct ibx_blockers blockers = {0};
    uint64_t bytes;
    int rc = left_to_come(s, &bytes, err);
    if (rc)
        return rc;
    ibx_preflight_fill(s->folder.at, s->options->folder, bytes, !s->options->on_demand, &blockers);
    for (size_t i = 0; i < blockers.note_count; i++)
        notify(s, blockers.notes[i]);
    return blockers.count
               ? ibx_error_set(err, -ENOSPC, "%s (--on-demand fetches only what is needed)",
                               blockers.reasons[0])
               : 0;
}

static int begin_cache(struct serving *s, struct ibx_error *err)
{
    const struct ibx_serve_options *options = s->options;
    s->cache.folder = &s->folder;
    s->cache.options = &options->transport;
    s->cache.uris = options->caches;
    s->cache.uri_count = options->cache_count;
    /* One connection carries faulted pages; on demand there is nothing else. */
    s->cache.links = options->links       ? options->links
                     : options->on_demand ? 1
                                          : ibx_page_links_default();
    s->cache.multicast = &options->multicast;
    const bool known = s->folder.count;
    int rc = ibx_snapshot_cache_begin(&s->cache, options->folder, err);
    if (!rc && (rc = check_room(s, err)) && !known)
        ibx_snapshot_folder_remove(&s->folder);
    if (!rc)
        rc = ibx_snapshot_cache_fill(&s->cache, !options->on_demand, options->max_bandwidth, err);
    const struct snapshot_children_config config = {&s->folder, &s->cache.map, s->cache.memory};
    return rc ? rc : ibx_snapshot_children_open(&config, &s->children, err);
}

/* Opens the folder for writing, because some kernels register only writable mappings; on a
 * read-only filesystem for reading, which suffices for a snapshot that has all pages. */
static int open_snapshot(struct serving *s, struct ibx_error *err)
{
    struct ibx_error why = {0};
    int rc = ibx_snapshot_folder_open(s->options->folder, true, &s->folder, &why);
    if (rc == -EROFS) {
        rc = ibx_snapshot_folder_open(s->options->folder, false, &s->folder, &why);
        s->folder.read_only = !rc;
        if (!rc && !s->folder.manifest.complete && s->options->cache_count)
            rc = ibx_error_set(&why, -EROFS,
                               "%s has not all pages yet and lies in a file system for reading "
                               "only: give another folder, which is filled",
                               s->options->folder);
    }
    return rc ? ibx_error_set(err, rc, "%s", why.message) : 0;
}

/* Opens a folder that exists, whole or not; otherwise the cache makes it. */
static int open_folder(struct serving *s, struct ibx_error *err)
{
    struct stat st;
    const bool there = !stat(s->options->folder, &st), file = there && !S_ISDIR(st.st_mode);
    if (there && !file && s->options->no_verify)
        return ibx_error_set(err, -EINVAL,
                             "--no-verify is for a memory file: %s is a folder, and has the hashes "
                             "of its pages already: leave it out",
                             s->options->folder);
    int rc =
        file ? ibx_snapshot_memory_file(s->options->folder, !s->options->no_verify, &s->folder, err)
             : open_snapshot(s, err);
    if (rc == -ENOENT && s->options->cache_count)
        rc = 0;
    s->cached = !rc && s->options->cache_count && !s->folder.manifest.complete;
    return rc;
}

/* Begins to serve by multicast. A random group is one of IPv6 if the server listens by IPv6. */
static int begin_multicast(struct serving *s, struct ibx_error *err)
{
    s->multicast =
        (struct ibx_snapshot_multicast){.manifest = &s->folder.manifest,
                                        .map = s->cached ? &s->cache.map : &s->map,
                                        .memory = s->cached ? s->cache.memory : s->memory,
                                        .has = s->cached ? ibx_snapshot_cache_has : NULL,
                                        .context = &s->cache};
    return ibx_snapshot_multicast_open(&s->multicast, &s->options->multicast,
                                       strchr(s->options->listen, '[') != NULL, err);
}

static int begin(struct serving *s, struct ibx_error *err)
{
    int rc = open_folder(s, err);
    if (!rc)
        rc = s->cached ? begin_cache(s, err) : begin_whole(s, err);
    if (!rc)
        rc = ibx_snapshot_intact_begin(&s->intact, &s->folder,
                                       s->cached ? s->cache.memory : s->memory, err);
    if (!rc && s->options->listen && s->options->multicast.on)
        rc = begin_multicast(s, err);
    if (rc || !s->options->listen)
        return rc;
    const struct ibx_snapshot_index *index =
        s->cached && s->cache.hashes ? ibx_snapshot_checker_index(s->cache.hashes) : &s->index;
    const struct ibx_snapshot_server_config config = {
        .uri = s->options->listen,
        .index = s->folder.manifest.hashed ? index : NULL,
        .multicast = s->multicast.sender,
        .interface = s->options->multicast.interface,
        .options = &s->options->transport,
        .manifest = &s->folder.manifest,
        .map = s->cached ? &s->cache.map : &s->map,
        .memory = s->cached ? s->cache.memory : s->memory,
        .touched = s->cached,
        .read_only = s->folder.read_only};
    return ibx_snapshot_server_open(&config, &s->server, err);
}

/* ------------------------------------------------------------ what is told */

static void note_figures(struct serving *s)
{
    if (!s->cache.engine)
        return;
    ibx_fault_stats(s->cache.engine, &s->engine);
    s->present = ibx_snapshot_cache_present(&s->cache, &s->engine);
}

static void fill_status(struct serving *s, struct ibx_serve_status *status)
{
    struct snapshot_children_stats children = {0};
    *status = (struct ibx_serve_status){.whole = true};
    if (s->server) {
        status->uri = ibx_snapshot_server_uri(s->server);
        ibx_snapshot_server_stats(s->server, &status->readers);
    }
    status->multicasts = s->multicast.sender != NULL;
    if (status->multicasts)
        ibx_multicast_sender_stats(s->multicast.sender, &status->sender);
    if (!s->cached)
        return;
    ibx_snapshot_cache_fed(&s->cache, &status->fed);
    note_figures(s);
    ibx_snapshot_children_stats(s->children, &children);
    status->source = s->cache.source;
    status->whole = s->cache.state.now == CACHE_WHOLE;
    status->children = children.children;
    status->children_so_far = children.so_far;
    status->child_faults = children.faults;
    status->zero_faults = children.zero_faults;
    status->pages = s->cache.map.blocks[s->folder.manifest.ram_count].first;
    status->present = status->whole ? status->pages : s->present;
    status->bytes = s->engine.bytes;
    status->faulted = s->engine.by_cause[IBX_FAULT_BY_FAULT];
    status->ahead = s->engine.by_cause[IBX_FAULT_BY_PREFETCH];
    status->twice = s->engine.twice;
    if (s->cache.hashes)
        status->hash_bytes = ibx_snapshot_checker_fetched(s->cache.hashes);
    status->reconnects = s->cache.reconnects;
}

static void tell(struct serving *s, bool now)
{
    struct ibx_serve_status status;
    if (!s->options->status || (!now && ibx_now_ns() < s->told_ns + LOOK_MS * IBX_NS_PER_MS))
        return;
    fill_status(s, &status);
    s->told_ns = ibx_now_ns();
    s->options->status(s->options->context, &status);
}

/* ------------------------------------------------------------ the loop */

static int step_cache(struct serving *s, struct ibx_error *err)
{
    const unsigned before = s->cache.state.now;
    tell(s, false);
    note_figures(s); /* before the step, which may end the engine */
    int rc = ibx_snapshot_cache_step(&s->cache, notify, s, err);
    ibx_snapshot_children_step(s->children);
    if (rc || before == s->cache.state.now || s->cache.state.now != CACHE_WHOLE)
        return rc;
    ibx_snapshot_children_whole(s->children);
    if (s->server)
        ibx_snapshot_server_whole(s->server);
    tell(s, true);
    return 0;
}

/* Checks that the files are intact. The files of a cache change until it is whole; that a file was
 * truncated (`signalled`) is checked always. */
static int check_intact(struct serving *s, bool signalled, struct ibx_error *err)
{
    const bool whole = !s->cached || s->cache.state.now == CACHE_WHOLE;
    if (!signalled && (!whole || ibx_now_ns() < s->looked_ns + LOOK_MS * IBX_NS_PER_MS))
        return 0;
    s->looked_ns = ibx_now_ns();
    const int rc = ibx_snapshot_intact_check(&s->intact, &s->folder, err);
    s->gone = rc != 0;
    return rc;
}

/* Whether this process, if it is to end when it is unused, has been unused for long enough. */
static bool is_unused(struct serving *s)
{
    struct snapshot_children_stats children;
    if (!s->options->until_unused || !s->cached)
        return false;
    if (s->cache.state.now == CACHE_WHOLE)
        return true;
    ibx_snapshot_children_stats(s->children, &children);
    if (children.children || children.asked != s->asked || !s->used_ns)
        s->used_ns = ibx_now_ns();
    s->asked = children.asked;
    if (ibx_now_ns() - s->used_ns < IBX_SERVE_UNUSED_S * 1000ull * IBX_NS_PER_MS)
        return false;
    notify(s, "this cache had no child for a minute: it is removed");
    ibx_snapshot_folder_remove(&s->folder);
    return true;
}

/* One round of the loop. 1: this process was told to end. */
static int turn(struct serving *s, struct ibx_error *err)
{
    struct pollfd fds[5] = {{.fd = s->signals.fd, .events = POLLIN},
                            {.fd = -1, .events = POLLIN},
                            {.fd = -1, .events = POLLIN},
                            {.fd = s->intact.fd, .events = POLLIN},
                            {.fd = -1, .events = POLLIN}};
    const bool lost = s->cached && s->cache.state.now == CACHE_LOST;
    if (s->cached) {
        fds[1].fd = ibx_snapshot_cache_fd(&s->cache);
        fds[2].fd = ibx_snapshot_children_fd(s->children);
        fds[4].fd = ibx_snapshot_cache_feed_fd(&s->cache);
    }
    poll(fds, 5, lost ? LOST_MS : LOOK_MS);
    if (fds[0].revents && ibx_migration_signals_take(&s->signals, true))
        return 1;
    const int rc = check_intact(s, fds[3].revents, err);
    if (rc)
        return rc;
    if (s->cached) {
        const int stepped = step_cache(s, err);
        return stepped || !is_unused(s) ? stepped : 1;
    }
    tell(s, false);
    return 0;
}

static void end(struct serving *s)
{
    ibx_snapshot_server_close(s->server);
    ibx_multicast_sender_destroy(s->multicast.sender);
    ibx_snapshot_children_close(s->children);
    ibx_snapshot_intact_end(&s->intact);
    if (s->cached)
        ibx_snapshot_cache_end(&s->cache);
    for (unsigned i = 0; i < s->folder.count; i++)
        if (s->memory[i])
            munmap(s->memory[i], (size_t)s->folder.sizes[i]);
    ibx_page_map_fini(&s->map);
    ibx_snapshot_index_fini(&s->index);
    ibx_snapshot_folder_close(&s->folder);
}

static const char *what_is_there(const struct snapshot_cache *cache)
{
    if (cache->state.now != CACHE_CHECKING)
        return "the cache has not all pages: its children wait until it is served again";
    if (!cache->right)
        return "the cache has all pages, which are not known to be those that were frozen: its "
               "children wait until it is served again";
    return "the cache has all pages, but its manifest does not say so: its children wait until it "
           "is served again";
}

/* Ends the process without unmapping: threads, and children, may wait for pages in the mapping, and
 * must not continue with zeros. */
static void leave(struct serving *s, int rc, const struct ibx_error *err)
{
    if (rc < 0)
        notify(s, err->message);
    notify(s, what_is_there(&s->cache));
    fflush(NULL);
    _exit(rc < 0);
}

int ibx_snapshot_serve(const struct ibx_serve_options *options, struct ibx_error *err)
{
    struct serving *s = calloc(1, sizeof(*s));
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a server");
    s->options = options;
    ibx_snapshot_cache_init(&s->cache);
    int rc = ibx_migration_signals_open(&s->signals, err);
    if (rc) {
        free(s);
        return rc;
    }
    rc = begin(s, err);
    if (rc == -EINTR && ibx_migration_signals_take(&s->signals, true))
        rc = 1;
    if (!rc)
        tell(s, true);
    while (!rc)
        rc = turn(s, err);
    if (s->cache.state.now != CACHE_EMPTY && s->cache.state.now != CACHE_WHOLE)
        leave(s, rc, err);
    if (s->gone) {
        static const struct serving *left; /* not freed: threads use it until the process ends */
        left = s;
        return left ? rc : 0;
    }
    end(s);
    ibx_migration_signals_close(&s->signals);
    free(s);
    return rc < 0 ? rc : 0;
}
