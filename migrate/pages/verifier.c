/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The source compares what the destination has received with its own RAM, while pages follow. */
#include "migrate/pages/digest.h"
#include "migrate/pages/ram_view.h"

#include "common/thread.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_MEMORY             "there is no memory to compare the pages that have been moved"
#define THREADS_MAX           4u
#define PROCESSORS_PER_THREAD 4u
#define BUFFER                ((size_t)128 << 10) /* bytes; fits into a processor's own cache */

/* Ranges of one message. */
struct job {
    struct job *next;
    uint64_t range, count;
    uint64_t taken, left; /* by a thread; not compared yet. Under the lock */
    uint8_t entries[];
};

/* A digest that was computed in advance, for a range of which the destination has all pages with
 * data. */
struct foreseen {
    bool done;
    uint8_t digest[IBX_DIGEST_BYTES];
};

/* A range with huge pages, up to 1 GiB: all threads that have nothing else to do compute tags of
 * it. Under the lock. */
struct shared_range {
    const uint8_t *received; /* NULL: none */
    uint64_t first;          /* page */
    unsigned count, next;    /* pages, and the first that nobody has taken */
    unsigned at_work;        /* threads */
    uint64_t *tags;
    struct ibx_error failure; /* the first */
};

struct verifier_thread {
    struct ibx_verifier *verifier;
    struct ibx_page_tagger *tagger;
    uint8_t *bytes;            /* BUFFER of them: pages, or a piece of a huge one */
    struct ibx_ram_view *view; /* held while it works; NULL: pages are read from files */
    pthread_t thread;
    struct shared_range shared; /* that this thread compares */
};

struct ibx_verifier {
    const struct ibx_guest_ram *ram;
    const struct ibx_page_map *map;
    struct ibx_digest_keys keys;
    int event_fd;
    struct verifier_thread threads[THREADS_MAX];
    unsigned started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more, shared_done;
    struct ibx_ram_view *view; /* or NULL */
    struct job *head, **tail;
    bool closing;
    uint64_t queued; /* ranges not compared yet, including those at work */
    uint64_t ahead;  /* the next range to compute in advance; the number of ranges: none */
    uint64_t foreseen_count;
    struct foreseen *foreseen; /* one for each range */
    bool *agreed;              /* one for each range: its digests were equal */
    bool *waiting;             /* ... it is in a job, and no thread has taken it */
    bool into_holes;           /* set by ibx_verifier_look_into_holes() */
    bool parts;                /* ... by ibx_verifier_compare_parts() */
    bool *missed;              /* ... it has come, and has not been compared since */
    uint64_t missed_count;
    uint64_t left; /* ranges that are not agreed yet */
    uint64_t compared, left_out;
    struct ibx_error failure; /* the first range that differs */
};

/* ------------------------------------------------------------ a thread */

static int differs(const struct ibx_verifier *v, uint64_t range, const char *how,
                   struct ibx_error *err)
{
    const uint64_t first = range * IBX_DIGEST_PAGES,
                   last = first + ibx_digest_pages(v->map, range) - 1;
    const unsigned at = ibx_page_map_block(v->map, first);
    return ibx_error_set(err, -EBADMSG,
                         "pages %" PRIu64 " to %" PRIu64 " of guest RAM (%s from byte 0x%" PRIx64
                         " on) %s",
                         first, last, v->ram->blocks[at].id,
                         (first - v->map->blocks[at].first) * v->map->blocks[at].page_size, how);
}

struct counts {
    uint64_t compared, left_out;
};

static int no_tag(struct ibx_error *err)
{
    return ibx_error_set(err, -ENOMEM, NO_MEMORY);
}

/* Tags a page that is longer than the buffer in pieces that stay in the cache. */
static int tag_huge(struct verifier_thread *t, unsigned block, uint64_t at, uint64_t size,
                    uint64_t *tag, struct ibx_error *err)
{
    bool good = ibx_page_tag_begin(t->tagger);
    for (uint64_t done = 0; good && done < size; done += BUFFER) {
        const size_t bytes = size - done < BUFFER ? (size_t)(size - done) : BUFFER;
        const uint8_t *piece;
        const int rc = ibx_ram_view_find(t->view, &t->verifier->ram->blocks[block], block,
                                         at + done, bytes, t->bytes, &piece, err);
        if (rc)
            return rc;
        good = ibx_page_tag_add(t->tagger, piece, bytes);
    }
    *tag = good ? ibx_page_tag_end(t->tagger) : 0;
    return *tag ? 0 : no_tag(err);
}

/* Tags contiguous pages of a block that fit into the buffer, or one page of any size. */
static int tag_pages(struct verifier_thread *t, uint64_t page, unsigned count, uint64_t *tags,
                     struct ibx_error *err)
{
    const unsigned block = ibx_page_map_block(t->verifier->map, page);
    const uint64_t size = t->verifier->map->blocks[block].page_size;
    const uint64_t at = (page - t->verifier->map->blocks[block].first) * size;
    if (size > BUFFER)
        return tag_huge(t, block, at, size, tags, err);
    const uint8_t *pages;
    int rc = ibx_ram_view_find(t->view, &t->verifier->ram->blocks[block], block, at,
                               count * (size_t)size, t->bytes, &pages, err);
    for (unsigned i = 0; !rc && i < count; i++) {
        tags[i] = ibx_page_tag(t->tagger, pages + i * size, size);
        if (!tags[i])
            rc = no_tag(err);
    }
    return rc;
}

static bool has(const uint8_t *received, unsigned i)
{
    return received[i / 8] >> i % 8 & 1;
}

/* How many of the pages from `i` on have been received and can be read at once; at least one. */
static unsigned run_of(const struct ibx_verifier *v, uint64_t first, const uint8_t *received,
                       unsigned i, unsigned count)
{
    const unsigned block = ibx_page_map_block(v->map, first + i);
    const uint64_t left = v->map->blocks[block].first + v->map->blocks[block].pages - (first + i);
    uint64_t most = BUFFER / v->map->blocks[block].page_size;
    unsigned n = 1;
    most = most < left ? most : left;
    while (n < most && i + n < count && has(received, i + n))
        n++;
    return n;
}

static bool is_huge(const struct ibx_verifier *v, uint64_t page)
{
    return v->map->blocks[ibx_page_map_block(v->map, page)].page_size > BUFFER;
}

/* Tags pages of the range that nobody has taken. With the lock held, which it releases meanwhile.
 */
static void shared_work(struct verifier_thread *t, struct shared_range *s)
{
    struct ibx_verifier *v = t->verifier;
    s->at_work++;
    while (s->next < s->count && !s->failure.code) {
        const unsigned i = s->next;
        const bool wanted = has(s->received, i);
        const unsigned n = wanted ? run_of(v, s->first, s->received, i, s->count) : 1;
        struct ibx_error why = {0};
        s->next += n;
        if (!wanted)
            continue;
        pthread_mutex_unlock(&v->lock);
        const int rc = tag_pages(t, s->first + i, n, s->tags + i, &why);
        pthread_mutex_lock(&v->lock);
        if (rc && !s->failure.code)
            s->failure = why;
    }
    if (--s->at_work == 0)
        pthread_cond_broadcast(&v->shared_done);
}

/* A range that this thread can help with, or NULL. Under the lock. */
static struct shared_range *shared_find(struct ibx_verifier *v)
{
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        struct shared_range *s = &v->threads[i].shared;
        if (s->received && s->next < s->count && !s->failure.code)
            return s;
    }
    return NULL;
}

static int tag_shared(struct verifier_thread *t, uint64_t first, unsigned count,
                      const uint8_t *received, uint64_t *tags, struct ibx_error *err)
{
    struct ibx_verifier *v = t->verifier;
    struct shared_range *s = &t->shared;
    pthread_mutex_lock(&v->lock);
    *s = (struct shared_range){.received = received, .first = first, .count = count, .tags = tags};
    pthread_cond_broadcast(&v->more);
    shared_work(t, s);
    while (s->at_work)
        ibx_thread_wait(&v->shared_done, &v->lock);
    s->received = NULL;
    pthread_mutex_unlock(&v->lock);
    if (s->failure.code && err)
        *err = s->failure;
    return s->failure.code;
}

/* Computes, from this side's RAM, the tags of the pages that the destination has received. */
static int tag_range(struct verifier_thread *t, uint64_t range, const uint8_t *received,
                     uint64_t *tags, struct counts *counts, struct ibx_error *err)
{
    const struct ibx_verifier *v = t->verifier;
    const uint64_t first = range * IBX_DIGEST_PAGES;
    const unsigned count = ibx_digest_pages(v->map, range);
    int rc = 0;
    for (unsigned i = 0; i < IBX_DIGEST_PAGES; i++) {
        const bool data = i < count && ibx_page_map_data(v->map, first + i);
        if (has(received, i) && !data && (i >= count || !v->into_holes))
            return differs(v, range, "have bytes at the destination where they are zero here", err);
        counts->left_out += data && !has(received, i);
        counts->compared += has(received, i);
    }
    memset(tags, 0, count * sizeof(*tags));
    if (is_huge(v, first) || (count && is_huge(v, first + count - 1)))
        return tag_shared(t, first, count, received, tags, err);
    for (unsigned i = 0, n; !rc && i < count; i += n) {
        n = 1;
        if (!has(received, i))
            continue;
        n = run_of(v, first, received, i, count);
        rc = tag_pages(t, first + i, n, tags + i, err);
    }
    return rc;
}

static int digest_of(struct verifier_thread *t, uint64_t range, const uint8_t *received,
                     struct counts *counts, uint8_t digest[IBX_DIGEST_BYTES], struct ibx_error *err)
{
    const struct ibx_verifier *v = t->verifier;
    uint64_t tags[IBX_DIGEST_PAGES];
    int rc = tag_range(t, range, received, tags, counts, err);
    if (!rc && !ibx_digest_range(&v->keys, range * IBX_DIGEST_PAGES, tags,
                                 ibx_digest_pages(v->map, range), digest))
        rc = ibx_error_set(err, -ENOMEM, NO_MEMORY);
    return rc;
}

/* Sets a bit for each page of the range that holds data, as in an entry of a DIGEST message;
 * returns how many. */
static unsigned data_of(const struct ibx_verifier *v, uint64_t range,
                        uint8_t pages[IBX_DIGEST_PAGES / 8])
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    const unsigned count = ibx_digest_pages(v->map, range);
    unsigned found = 0;
    memset(pages, 0, IBX_DIGEST_PAGES / 8);
    for (unsigned i = 0; i < count; i++) {
        if (!ibx_page_map_data(v->map, first + i))
            continue;
        pages[i / 8] = (uint8_t)(pages[i / 8] | 1u << i % 8);
        found++;
    }
    return found;
}

static int compare(struct verifier_thread *t, uint64_t range, const uint8_t *entry,
                   const struct foreseen *foreseen, struct counts *counts, struct ibx_error *err)
{
    const struct ibx_verifier *v = t->verifier;
    uint8_t digest[IBX_DIGEST_BYTES], data[IBX_DIGEST_PAGES / 8];
    const unsigned pages = foreseen->done ? data_of(v, range, data) : 0;
    if (foreseen->done && !memcmp(data, entry, sizeof(data))) {
        memcpy(digest, foreseen->digest, sizeof(digest));
        counts->compared = pages;
    } else {
        int rc = digest_of(t, range, entry, counts, digest, err);
        if (rc)
            return rc;
    }
    if (CRYPTO_memcmp(digest, entry + IBX_DIGEST_PAGES / 8, sizeof(digest)))
        return differs(v, range,
                       "are not at the destination what they are here: they were changed on their "
                       "way, or here after they had been read",
                       err);
    return 0;
}

/* The next range that waits; under the lock. */
static struct job *take_range(struct ibx_verifier *v, uint64_t *at)
{
    struct job *job = v->head;
    *at = job->taken++;
    v->waiting[job->range + *at] = false;
    if (job->taken < job->count)
        return job;
    v->head = job->next;
    if (!v->head)
        v->tail = &v->head;
    return job;
}

/* A difference is the final result. Other failures, such as a lack of memory, say nothing of the
 * remaining pages, which are still compared. */
static bool is_final(const struct ibx_verifier *v)
{
    return v->failure.code == -EBADMSG;
}

/* Under the lock. */
static void set_missed(struct ibx_verifier *v, uint64_t range, bool missed)
{
    v->missed_count += (uint64_t)missed;
    v->missed_count -= (uint64_t)v->missed[range];
    v->missed[range] = missed;
}

/* Notes what a comparison has shown, under the lock. Returns whether the result may have changed.
 * Another thread may have compared the same range, which came twice. */
static bool note_range(struct ibx_verifier *v, uint64_t range, const struct counts *counts, int rc,
                       const struct ibx_error *why)
{
    if (rc && (!v->failure.code || (rc == -EBADMSG && !is_final(v))))
        v->failure = *why;
    if (!v->agreed[range])
        set_missed(v, range, rc != 0);
    if (rc || v->agreed[range])
        return rc;
    if (v->parts) {
        v->compared += counts->compared;
        return false;
    }
    v->agreed[range] = true;
    v->left--;
    v->compared += counts->compared;
    v->left_out += counts->left_out;
    return !v->left;
}

/* Compares the next range that waits. The caller holds the lock, which is released meanwhile. */
static void compare_next(struct verifier_thread *t)
{
    struct ibx_verifier *v = t->verifier;
    uint64_t at;
    struct job *job = take_range(v, &at);
    const uint64_t range = job->range + at;
    bool tell = false;
    if (!is_final(v) && !v->agreed[range]) {
        struct counts counts = {0};
        struct ibx_error why = {0};
        const struct foreseen foreseen = v->foreseen[range];
        pthread_mutex_unlock(&v->lock);
        const int rc =
            compare(t, range, job->entries + at * IBX_DIGEST_ENTRY, &foreseen, &counts, &why);
        pthread_mutex_lock(&v->lock);
        tell = note_range(v, range, &counts, rc, &why);
    }
    v->queued--;
    if (--job->left == 0)
        free(job);
    if (tell || !v->queued)
        eventfd_write(v->event_fd, 1);
}

/* Computes the next digest in advance. The caller holds the lock, which is released meanwhile.
 * Errors are ignored: the comparison meets and reports them. */
static void foresee_next(struct verifier_thread *t)
{
    struct ibx_verifier *v = t->verifier;
    const uint64_t range = v->ahead++;
    uint8_t data[IBX_DIGEST_PAGES / 8], digest[IBX_DIGEST_BYTES];
    struct counts counts = {0};
    if (v->agreed[range])
        return;
    pthread_mutex_unlock(&v->lock);
    const bool done = data_of(v, range, data) && !digest_of(t, range, data, &counts, digest, NULL);
    pthread_mutex_lock(&v->lock);
    if (done)
        memcpy(v->foreseen[range].digest, digest, sizeof(digest));
    v->foreseen[range].done = done;
    v->foreseen_count += done;
}

/* Does the next thing that is to be done, if any. With the lock held, released meanwhile. */
static bool work(struct verifier_thread *t)
{
    struct ibx_verifier *v = t->verifier;
    struct shared_range *shared = shared_find(v);
    if (shared)
        shared_work(t, shared);
    else if (v->head)
        compare_next(t);
    else if (v->ahead < ibx_digest_ranges(v->map->pages))
        foresee_next(t);
    else
        return false;
    return true;
}

static void *verifier_main(void *argument)
{
    struct verifier_thread *t = argument;
    struct ibx_verifier *v = t->verifier;
    pthread_setname_np(pthread_self(), "ibx-verify");
    ibx_thread_give_way();
    pthread_mutex_lock(&v->lock);
    while (!v->closing) {
        t->view = ibx_ram_view_hold(v->into_holes ? NULL : v->view); /* a touch fills a hole */
        if (!work(t)) {
            ibx_ram_view_drop(t->view);
            ibx_thread_wait(&v->more, &v->lock);
            continue;
        }
        pthread_mutex_unlock(&v->lock);
        ibx_ram_view_drop(t->view); /* the last holder unmaps it, which takes long */
        pthread_mutex_lock(&v->lock);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* ------------------------------------------------------------ its caller */

/* Few threads, since serving pages comes first. */
static unsigned thread_count(void)
{
    const unsigned count = ibx_thread_processors() / PROCESSORS_PER_THREAD;
    return count ? count : 1;
}

static int threads_start(struct ibx_verifier *v, unsigned count, struct ibx_error *err)
{
    for (unsigned i = 0; i < count && i < THREADS_MAX; i++) {
        struct verifier_thread *t = &v->threads[i];
        t->verifier = v;
        t->tagger = ibx_page_tagger_create(&v->keys);
        t->bytes = malloc(BUFFER);
        if (!t->tagger || !t->bytes)
            return ibx_error_set(err, -EOPNOTSUPP,
                                 "pages cannot be verified: this OpenSSL has no POLY1305, or no "
                                 "memory; give --no-verify at both ends");
        int rc = pthread_create(&t->thread, NULL, verifier_main, t);
        if (rc)
            return ibx_error_set_task(err, -rc, "no thread to verify pages");
        v->started++;
    }
    return 0;
}

int ibx_verifier_open(const struct ibx_guest_ram *ram, const struct ibx_page_map *map,
                      const uint8_t key[IBX_DIGEST_KEY], unsigned threads,
                      struct ibx_verifier **out, struct ibx_error *err)
{
    struct ibx_verifier *v = calloc(1, sizeof(*v));
    if (!v)
        return ibx_error_set(err, -ENOMEM, "no memory for the digests of pages");
    const uint64_t ranges = ibx_digest_ranges(map->pages);
    *v = (struct ibx_verifier){.ram = ram, .map = map, .left = ranges, .ahead = ranges};
    v->tail = &v->head;
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->more, NULL);
    pthread_cond_init(&v->shared_done, NULL);
    mlock(&v->keys, sizeof(v->keys));
    const bool keyed = ibx_digest_keys_derive(&v->keys, key);
    v->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->agreed = calloc(ranges ? ranges : 1, sizeof(*v->agreed));
    v->missed = calloc(ranges ? ranges : 1, sizeof(*v->missed));
    v->waiting = calloc(ranges ? ranges : 1, sizeof(*v->waiting));
    v->foreseen = calloc(ranges ? ranges : 1, sizeof(*v->foreseen));
    int rc = keyed && v->event_fd >= 0 && v->agreed && v->missed && v->waiting && v->foreseen
                 ? threads_start(v, threads ? threads : thread_count(), err)
                 : ibx_error_set(err, -ENOMEM,
                                 "pages cannot be verified: no memory, or no descriptor is left");
    if (rc)
        ibx_verifier_close(v);
    else
        *out = v;
    return rc;
}

void ibx_verifier_see(struct ibx_verifier *v, struct ibx_ram_view *view)
{
    pthread_mutex_lock(&v->lock);
    struct ibx_ram_view *before = v->view;
    v->view = ibx_ram_view_hold(view);
    pthread_mutex_unlock(&v->lock);
    ibx_ram_view_drop(before);
}

void ibx_verifier_look_into_holes(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    v->into_holes = true;
    pthread_mutex_unlock(&v->lock);
}

void ibx_verifier_compare_parts(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    v->parts = true;
    pthread_mutex_unlock(&v->lock);
}

/* A thread may compare ranges of such a job meanwhile, and frees it then. */
void ibx_verifier_drop_parts(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    while (v->head) {
        struct job *job = v->head;
        const uint64_t untaken = job->count - job->taken;
        v->head = job->next;
        memset(v->waiting + job->range + job->taken, false, untaken * sizeof(*v->waiting));
        v->queued -= untaken;
        job->left -= untaken;
        if (!job->left)
            free(job);
    }
    v->tail = &v->head;
    for (uint64_t range = 0; range < ibx_digest_ranges(v->map->pages); range++)
        set_missed(v, range, false);
    pthread_mutex_unlock(&v->lock);
}

void ibx_verifier_foresee(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    v->ahead = 0;
    pthread_cond_broadcast(&v->more);
    pthread_mutex_unlock(&v->lock);
}

uint64_t ibx_verifier_foreseen(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    const uint64_t count = v->foreseen_count;
    pthread_mutex_unlock(&v->lock);
    return count;
}

void ibx_verifier_miss(struct ibx_verifier *v, uint64_t range, uint64_t count)
{
    const uint64_t ranges = ibx_digest_ranges(v->map->pages);
    pthread_mutex_lock(&v->lock);
    for (; count && range < ranges; count--, range++)
        if (!v->agreed[range])
            set_missed(v, range, true);
    pthread_mutex_unlock(&v->lock);
}

bool ibx_verifier_missed(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    const bool missed = v->missed_count;
    pthread_mutex_unlock(&v->lock);
    return missed;
}

void ibx_verifier_try_again(struct ibx_verifier *v)
{
    pthread_mutex_lock(&v->lock);
    if (!is_final(v))
        v->failure = (struct ibx_error){0};
    pthread_mutex_unlock(&v->lock);
}

/* Queues ranges, none of which is waiting. Under the lock. */
static int queue(struct ibx_verifier *v, uint64_t range, uint64_t count, const uint8_t *entries,
                 struct ibx_error *err)
{
    struct job *job = malloc(sizeof(*job) + count * IBX_DIGEST_ENTRY);
    if (!job)
        return ibx_error_set(err, -ENOMEM, "no memory for digests");
    *job = (struct job){.range = range, .count = count, .left = count};
    memcpy(job->entries, entries, count * IBX_DIGEST_ENTRY);
    memset(v->waiting + range, true, count * sizeof(*v->waiting));
    *v->tail = job;
    v->tail = &job->next;
    v->queued += count;
    return 0;
}

/* Each new link brings all ranges again. What an earlier one has brought of a range is as good: it
 * is what the destination had then. Of a borrowed VM a link brings the pages that were not answered
 * over those before it, for which ibx_verifier_drop_parts() makes room. So no peer, and no number
 * of links, queues more than all ranges once. */
int ibx_verifier_take(struct ibx_verifier *v, uint64_t first, const struct ibx_bytes *entries,
                      struct ibx_error *err)
{
    const uint64_t ranges = ibx_digest_ranges(v->map->pages), range = first / IBX_DIGEST_PAGES;
    const uint64_t count = entries->length / IBX_DIGEST_ENTRY;
    int rc = 0;
    if (range >= ranges || count > ranges - range)
        return ibx_error_set(err, -EPROTO,
                             "digests of %" PRIu64 " ranges from page %" PRIu64
                             " on, but guest RAM has %" PRIu64 " pages",
                             count, first, v->map->pages);
    pthread_mutex_lock(&v->lock);
    for (uint64_t at = 0, end; !rc && at < count; at = end) {
        const bool waits = v->waiting[range + at];
        if (waits && v->parts) { /* this time it has other pages, which nobody would compare */
            rc = ibx_error_set(err, -EPROTO,
                               "digests of pages from %" PRIu64
                               " on have come again before the first ones were answered",
                               (range + at) * IBX_DIGEST_PAGES);
            break;
        }
        for (end = at + 1; end < count && v->waiting[range + end] == waits;)
            end++;
        if (!waits)
            rc = queue(v, range + at, end - at, entries->bytes + at * IBX_DIGEST_ENTRY, err);
    }
    pthread_cond_broadcast(&v->more);
    pthread_mutex_unlock(&v->lock);
    if (rc)
        ibx_verifier_miss(v, range, count);
    return rc;
}

int ibx_verifier_result(struct ibx_verifier *v, struct ibx_error *err)
{
    eventfd_t value;
    eventfd_read(v->event_fd, &value);
    pthread_mutex_lock(&v->lock);
    /* A range that could not be compared may have come once more, and agreed. */
    const bool fails = v->failure.code && (is_final(v) || v->missed_count);
    int rc = fails ? v->failure.code : v->left ? -EAGAIN : 0;
    if (fails && err)
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
    pthread_cond_broadcast(&v->more);
    pthread_mutex_unlock(&v->lock);
    for (unsigned i = 0; i < v->started; i++)
        pthread_join(v->threads[i].thread, NULL);
    while (v->head) {
        struct job *job = v->head;
        v->head = job->next;
        free(job);
    }
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        ibx_page_tagger_destroy(v->threads[i].tagger);
        free(v->threads[i].bytes);
    }
    ibx_ram_view_drop(v->view);
    free(v->agreed);
    free(v->missed);
    free(v->waiting);
    free(v->foreseen);
    if (v->event_fd >= 0)
        close(v->event_fd);
    pthread_cond_destroy(&v->more);
    pthread_cond_destroy(&v->shared_done);
    pthread_mutex_destroy(&v->lock);
    OPENSSL_cleanse(&v->keys, sizeof(v->keys));
    free(v);
}
