/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source compares what the destination has received with its own RAM, while pages follow. */
#include "migrate/pages/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* Ranges of one message. */
struct job {
    struct job *next;
    uint64_t range, count;
    uint8_t entries[];
};

struct ibx_verifier {
    const struct ibx_guest_ram *ram;
    const struct ibx_page_map *map;
    struct ibx_digest_keys keys;
    struct ibx_page_tagger *tagger;
    void **memory; /* a block */
    int event_fd;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more;
    struct job *head, **tail;
    bool closing;
    uint64_t queued; /* ranges, the one at work included */
    bool *agreed;    /* a range */
    uint64_t left;   /* ranges that are not agreed */
    uint64_t compared, left_out;
    struct ibx_error failure; /* the first range that differs */
};

/* ------------------------------------------------------------ the thread */

static unsigned pages_of(const struct ibx_page_map *map, uint64_t range)
{
    const uint64_t left = map->pages - range * IBX_DIGEST_PAGES;
    return left < IBX_DIGEST_PAGES ? (unsigned)left : IBX_DIGEST_PAGES;
}

static unsigned block_of(const struct ibx_page_map *map, uint64_t page)
{
    unsigned i = 0;
    while (i + 1 < map->block_count && page - map->blocks[i].first >= map->blocks[i].pages)
        i++;
    return i;
}

static int differs(const struct ibx_verifier *v, uint64_t range, const char *how,
                   struct ibx_error *err)
{
    const uint64_t first = range * IBX_DIGEST_PAGES, last = first + pages_of(v->map, range) - 1;
    const unsigned at = block_of(v->map, first);
    return ibx_error_set(err, -EBADMSG,
                         "pages %" PRIu64 " to %" PRIu64 " of guest RAM (%s from byte 0x%" PRIx64
                         " on) %s",
                         first, last, v->ram->blocks[at].id,
                         (first - v->map->blocks[at].first) * v->map->blocks[at].page_size, how);
}

struct counts {
    uint64_t compared, left_out;
};

/* The tags of the pages that the destination has received, from this side's RAM. */
static int tag_range(struct ibx_verifier *v, uint64_t range, const uint8_t *received,
                     uint64_t *tags, struct counts *counts, struct ibx_error *err)
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    const unsigned count = pages_of(v->map, range);
    for (unsigned i = 0; i < IBX_DIGEST_PAGES; i++) {
        const bool has = received[i / 8] >> i % 8 & 1;
        const bool data = i < count && ibx_page_map_data(v->map, first + i);
        if (i < count)
            tags[i] = 0;
        if (has && !data)
            return differs(v, range, "have bytes at the destination where they are zero here", err);
        counts->left_out += data && !has;
        if (!has)
            continue;
        const unsigned block = block_of(v->map, first + i);
        const uint64_t size = v->map->blocks[block].page_size;
        const uint8_t *page =
            (const uint8_t *)v->memory[block] + (first + i - v->map->blocks[block].first) * size;
        tags[i] = ibx_page_tag(v->tagger, page, size);
        counts->compared++;
    }
    return 0;
}

static int compare(struct ibx_verifier *v, uint64_t range, const uint8_t *entry,
                   struct counts *counts, struct ibx_error *err)
{
    uint64_t tags[IBX_DIGEST_PAGES];
    uint8_t digest[IBX_DIGEST_BYTES];
    int rc = tag_range(v, range, entry, tags, counts, err);
    if (rc)
        return rc;
    ibx_digest_range(&v->keys, range * IBX_DIGEST_PAGES, tags, pages_of(v->map, range), digest);
    if (CRYPTO_memcmp(digest, entry + IBX_DIGEST_PAGES / 8, sizeof(digest)))
        return differs(v, range,
                       "are not at the destination what they are here: they were changed on their "
                       "way, or here after the VM had stopped",
                       err);
    return 0;
}

static void changed(const struct ibx_verifier *v)
{
    eventfd_write(v->event_fd, 1);
}

static void compare_job(struct ibx_verifier *v, const struct job *job)
{
    for (uint64_t i = 0; i < job->count; i++) {
        const uint64_t range = job->range + i;
        struct counts counts = {0};
        struct ibx_error why = {0};
        pthread_mutex_lock(&v->lock);
        const bool needed = !v->closing && !v->failure.code && !v->agreed[range];
        pthread_mutex_unlock(&v->lock);
        const int rc =
            needed ? compare(v, range, job->entries + i * IBX_DIGEST_ENTRY, &counts, &why) : 0;
        pthread_mutex_lock(&v->lock);
        if (rc && !v->failure.code)
            v->failure = why;
        if (needed && !rc) {
            v->agreed[range] = true;
            v->left--;
            v->compared += counts.compared;
            v->left_out += counts.left_out;
        }
        v->queued--;
        const bool tell = needed && (rc || !v->left);
        pthread_mutex_unlock(&v->lock);
        if (tell)
            changed(v);
    }
}

static void *verifier_main(void *argument)
{
    struct ibx_verifier *v = argument;
    pthread_setname_np(pthread_self(), "ibx-verify");
    pthread_mutex_lock(&v->lock);
    while (!v->closing) {
        struct job *job = v->head;
        if (!job) {
            pthread_cond_wait(&v->more, &v->lock);
            continue;
        }
        v->head = job->next;
        if (!v->head)
            v->tail = &v->head;
        pthread_mutex_unlock(&v->lock);
        compare_job(v, job);
        free(job);
        pthread_mutex_lock(&v->lock);
        if (!v->queued)
            changed(v);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ------------------------------------------------------------ its caller */

static int map_blocks(struct ibx_verifier *v, struct ibx_error *err)
{
    v->memory = calloc(v->ram->count ? v->ram->count : 1, sizeof(*v->memory));
    if (!v->memory)
        return ibx_error_set(err, -ENOMEM, "no memory for the mappings of guest RAM");
    for (size_t i = 0; i < v->ram->count; i++) {
        const struct ibx_guest_block *block = &v->ram->blocks[i];
        void *at =
            mmap(NULL, (size_t)block->size, PROT_READ, MAP_SHARED, block->fd, (off_t)block->offset);
        if (at == MAP_FAILED)
            return ibx_error_set(err, -errno, "guest RAM %s cannot be mapped: %s", block->id,
                                 strerror(errno));
        madvise(at, (size_t)block->size, MADV_DONTDUMP);
        v->memory[i] = at;
    }
    return 0;
}

int ibx_verifier_open(const struct ibx_guest_ram *ram, const struct ibx_page_map *map,
                      const uint8_t key[IBX_DIGEST_KEY], struct ibx_verifier **out,
                      struct ibx_error *err)
{
    struct ibx_verifier *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for the digests of pages");
    *v = (struct ibx_verifier){.ram = ram, .map = map, .left = ibx_digest_ranges(map->pages)};
    v->tail = &v->head;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->more, NULL);
    ibx_digest_keys_derive(&v->keys, key);
    v->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->agreed = calloc(v->left ? v->left : 1, sizeof(*v->agreed));
    v->tagger = ibx_page_tagger_create(&v->keys);
    int rc =
        v->event_fd >= 0 && v->agreed && v->tagger
            ? map_blocks(v, err)
            : ibx_error_set(err, -ENOMEM,
                            "pages cannot be verified: no memory, no descriptor, or an OpenSSL "
                            "without POLY1305");
    if (!rc && (rc = -pthread_create(&v->thread, NULL, verifier_main, v)))
        ibx_error_set(err, rc, "no thread to verify pages: %s", strerror(-rc));
    v->started = !rc;
    if (rc)
        ibx_verifier_close(v);
    else
        *out = v;
    return rc;
}

int ibx_verifier_take(struct ibx_verifier *v, uint64_t first, const struct ibx_bytes *entries,
                      struct ibx_error *err)
{
    const uint64_t ranges = ibx_digest_ranges(v->map->pages), range = first / IBX_DIGEST_PAGES;
    const uint64_t count = entries->length / IBX_DIGEST_ENTRY;
    if (range >= ranges || count > ranges - range)
        return ibx_error_set(err, -EPROTO,
                             "digests of %" PRIu64 " ranges from page %" PRIu64
                             " on, but guest RAM has %" PRIu64 " pages",
                             count, first, v->map->pages);
    struct job *job = malloc(sizeof(*job) + entries->length);
    if (!job)
        return ibx_error_set(err, -ENOMEM, "no memory for digests");
    job->next = NULL;
    job->range = range;
    job->count = count;
    memcpy(job->entries, entries->bytes, count * IBX_DIGEST_ENTRY);
    pthread_mutex_lock(&v->lock);
    /* After a reconnection they may all come once more. */
    const bool flood = v->queued + count > 2 * ranges;
    if (!flood) {
        *v->tail = job;
        v->tail = &job->next;
        v->queued += count;
        pthread_cond_signal(&v->more);
    }
    pthread_mutex_unlock(&v->lock);
    if (!flood)
        return 0;
    free(job);
    return ibx_error_set(err, -EPROTO, "the destination repeats digests of pages");
}

int ibx_verifier_result(struct ibx_verifier *v, struct ibx_error *err)
{
    eventfd_t value;
    eventfd_read(v->event_fd, &value);
    pthread_mutex_lock(&v->lock);
    int rc = v->failure.code ? v->failure.code : v->left ? -EAGAIN : 0;
    if (v->failure.code && err)
        *err = v->failure;
    pthread_mutex_unlock(&v->lock);
    return rc;
}

bool ibx_verifier_idle(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    const bool idle = !v->queued;
    pthread_mutex_unlock(&v->lock);
    return idle;
}

void ibx_verifier_pages(struct ibx_verifier *v, uint64_t *compared, uint64_t *left_out)
{
    pthread_mutex_lock(&v->lock);
    *compared = v->compared;
    *left_out = v->left_out;
    pthread_mutex_unlock(&v->lock);
}

int ibx_verifier_fd(const struct ibx_verifier *v)
{
    return v->event_fd;
}

void ibx_verifier_close(struct ibx_verifier *v)
{
    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    pthread_cond_signal(&v->more);
    pthread_mutex_unlock(&v->lock);
    if (v->started)
        pthread_join(v->thread, NULL);
    while (v->head) {
        struct job *job = v->head;
        v->head = job->next;
        free(job);
    }
    for (size_t i = 0; v->memory && i < v->ram->count; i++)
        if (v->memory[i])
            munmap(v->memory[i], (size_t)v->ram->blocks[i].size);
    free(v->memory);
    ibx_page_tagger_destroy(v->tagger);
    free(v->agreed);
    if (v->event_fd >= 0)
        close(v->event_fd);
    pthread_cond_destroy(&v->more);
    pthread_mutex_destroy(&v->lock);
    OPENSSL_cleanse(&v->keys, sizeof(v->keys));
    free(v);
}
