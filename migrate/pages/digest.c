/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/pages/digest.h"

#include "common/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PRIME   ((1ull << 61) - 1)
#define LIMB    43u /* bits: three of them are a Poly1305 tag */
#define TAG_LEN 16u

/* Flags beside a tag, which is at most PRIME: of a borrowed VM, whether the page is in an entry
 * that the source has not answered, and whether the source has compared it. SENT alone: the guest
 * has given the page back since. */
#define SENT   (1ull << 62)
#define AGREED IBX_PAGE_TAG_AGREED
#define FLAGS  (SENT | AGREED)

/* ------------------------------------------------------------ keys */

static bool derive(const uint8_t key[IBX_DIGEST_KEY], const char *label, uint8_t out[32])
{
    unsigned length = 0;
    return HMAC(EVP_sha256(), key, IBX_DIGEST_KEY, (const uint8_t *)label, strlen(label), out,
                &length) &&
           length == 32;
}

bool ibx_digest_keys_derive(struct ibx_digest_keys *keys, const uint8_t key[IBX_DIGEST_KEY])
{
    uint8_t fold[32] = {0};
    struct ibx_reader r = ibx_reader_of(fold, sizeof(fold));
    const bool good = derive(key, "ibx page tag", keys->page) &&
                      derive(key, "ibx page tag fold", fold) &&
                      derive(key, "ibx page range", keys->range);
    for (unsigned i = 0; i < 3; i++)
        keys->fold[i] = ibx_get_u64(&r) % PRIME;
    OPENSSL_cleanse(fold, sizeof(fold));
    return good;
}

/* ------------------------------------------------------------ tags */

struct ibx_page_tagger {
    const struct ibx_digest_keys *keys;
    EVP_MAC *mac;
    EVP_MAC_CTX *context;
};

struct ibx_page_tagger *ibx_page_tagger_create(const struct ibx_digest_keys *keys)
{
    struct ibx_page_tagger *tagger = calloc(1, sizeof(*tagger));
    if (!tagger)
        return NULL;
    tagger->keys = keys;
    tagger->mac = EVP_MAC_fetch(NULL, "POLY1305", NULL);
    tagger->context = tagger->mac ? EVP_MAC_CTX_new(tagger->mac) : NULL;
    if (tagger->context)
        return tagger;
    ibx_page_tagger_destroy(tagger);
    return NULL;
}

void ibx_page_tagger_destroy(struct ibx_page_tagger *tagger)
{
    if (!tagger)
        return;
    EVP_MAC_CTX_free(tagger->context);
    EVP_MAC_free(tagger->mac);
    free(tagger);
}

/* Hashes a Poly1305 tag to a number from 1 to PRIME. All limbs are less than PRIME, so different
 * tags are different inputs. */
static uint64_t fold(const struct ibx_digest_keys *keys, const uint8_t tag[TAG_LEN])
{
    struct ibx_reader r = ibx_reader_of(tag, TAG_LEN);
    const uint64_t low = ibx_get_u64(&r), high = ibx_get_u64(&r), mask = (1ull << LIMB) - 1;
    const uint64_t limbs[3] = {low & mask, (low >> LIMB | high << (64 - LIMB)) & mask,
                               high >> (2 * LIMB - 64)};
    unsigned __int128 sum = 0;
    for (unsigned i = 0; i < 3; i++)
        sum += (unsigned __int128)keys->fold[i] * limbs[i];
    return (uint64_t)(sum % PRIME) + 1;
}

bool ibx_page_tag_begin(struct ibx_page_tagger *tagger)
{
    return EVP_MAC_init(tagger->context, tagger->keys->page, sizeof(tagger->keys->page), NULL) == 1;
}

bool ibx_page_tag_add(struct ibx_page_tagger *tagger, const void *piece, size_t size)
{
    return EVP_MAC_update(tagger->context, piece, size) == 1;
}

uint64_t ibx_page_tag_end(struct ibx_page_tagger *tagger)
{
    uint8_t tag[TAG_LEN];
    size_t length = 0;
    if (EVP_MAC_final(tagger->context, tag, &length, sizeof(tag)) != 1 || length != sizeof(tag))
        return 0;
    return fold(tagger->keys, tag);
}

uint64_t ibx_page_tag(struct ibx_page_tagger *tagger, const void *page, size_t size)
{
    return ibx_page_tag_begin(tagger) && ibx_page_tag_add(tagger, page, size)
               ? ibx_page_tag_end(tagger)
               : 0;
}

/* ------------------------------------------------------------ ranges */

bool ibx_digest_range(const struct ibx_digest_keys *keys, uint64_t first, const uint64_t *tags,
                      unsigned count, uint8_t digest[IBX_DIGEST_BYTES])
{
    uint8_t bytes[8 + 4 + 8 * IBX_DIGEST_PAGES], whole[EVP_MAX_MD_SIZE];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_put_u64(&w, first);
    ibx_put_u32(&w, count);
    for (unsigned i = 0; i < count; i++)
        ibx_put_u64(&w, tags[i]);
    if (w.failed ||
        !HMAC(EVP_sha256(), keys->range, sizeof(keys->range), bytes, w.length, whole, NULL))
        return false;
    memcpy(digest, whole, IBX_DIGEST_BYTES);
    return true;
}

/* ------------------------------------------------------------ the destination's table */

struct ibx_page_tags {
    const struct ibx_page_map *map;
    _Atomic uint64_t *tags;
    _Atomic uint16_t *tagged;     /* pages of a range with a tag */
    _Atomic uint16_t *fresh;      /* borrowed: pages of a range whose tag has no flag */
    _Atomic uint64_t *uncompared; /* borrowed: pages with a tag that is not AGREED; else NULL */
    struct ibx_digest_keys keys;
    struct ibx_page_tagger **taggers;
    unsigned workers;
    pthread_mutex_t lock;
    struct ibx_error
        conflict; /* the first page that came twice with different bytes; under the lock */
};

int ibx_page_tags_create(const struct ibx_page_map *map, _Atomic uint64_t *tags,
                         const uint8_t key[IBX_DIGEST_KEY], unsigned workers,
                         struct ibx_page_tags **out, struct ibx_error *err)
{
    struct ibx_page_tags *own = calloc(1, sizeof(*own));
    if (!own)
        return ibx_error_set(err, -ENOMEM, "no memory for the digests of pages");
    *own = (struct ibx_page_tags){.map = map, .tags = tags, .workers = workers};
    pthread_mutex_init(&own->lock, NULL);
    mlock(&own->keys, sizeof(own->keys)); /* as RLIMIT_MEMLOCK allows */
    bool good = ibx_digest_keys_derive(&own->keys, key);
    own->taggers = calloc(workers, sizeof(*own->taggers));
    own->tagged = calloc(ibx_digest_ranges(map->pages), sizeof(*own->tagged));
    own->fresh = calloc(ibx_digest_ranges(map->pages), sizeof(*own->fresh));
    good = good && own->taggers && own->tagged && own->fresh;
    for (uint64_t page = 0; good && page < map->pages; page++)
        if (atomic_load_explicit(&tags[page], memory_order_relaxed))
            own->tagged[page / IBX_DIGEST_PAGES]++;
    for (unsigned i = 0; good && i < workers; i++)
        good = (own->taggers[i] = ibx_page_tagger_create(&own->keys)) != NULL;
    if (!good) {
        ibx_page_tags_destroy(own);
        return ibx_error_set(
            err, -EOPNOTSUPP,
            "pages cannot be verified: this OpenSSL has no POLY1305, or no memory; "
            "give --no-verify at both ends");
    }
    *out = own;
    return 0;
}

void ibx_page_tags_destroy(struct ibx_page_tags *tags)
{
    if (!tags)
        return;
    for (unsigned i = 0; tags->taggers && i < tags->workers; i++)
        ibx_page_tagger_destroy(tags->taggers[i]);
    free(tags->taggers);
    free((void *)tags->tagged);
    free((void *)tags->fresh);
    pthread_mutex_destroy(&tags->lock);
    OPENSSL_cleanse(&tags->keys, sizeof(tags->keys));
    free(tags);
}

/* Notes that a page came twice with different bytes. The engine is not stopped, so that QEMU can
 * still be told to pause the VM. */
static void note_conflict(struct ibx_page_tags *tags, uint64_t page)
{
    struct ibx_error why = {0};
    ibx_error_set(&why, -EBADMSG,
                  "page %" PRIu64
                  " of guest RAM came twice, with different bytes: it was changed on "
                  "its way here, or at the source between the two",
                  page);
    pthread_mutex_lock(&tags->lock);
    if (!tags->conflict.code)
        tags->conflict = why;
    pthread_mutex_unlock(&tags->lock);
}

/* Counts before the tag is there: whoever sees a page in its place sees it counted. */
static void count_fresh(struct ibx_page_tags *tags, uint64_t page, bool more)
{
    if (!tags->uncompared)
        return;
    atomic_fetch_add(tags->uncompared, more ? 1 : UINT64_MAX);
    atomic_fetch_add(&tags->fresh[page / IBX_DIGEST_PAGES], more ? 1 : UINT16_MAX);
}

int ibx_page_tags_note(void *context, unsigned worker, uint64_t page, uint32_t pages,
                       const void *bytes, struct ibx_error *err)
{
    struct ibx_page_tags *tags = context;
    const uint64_t size = tags->map->blocks[ibx_page_map_block(tags->map, page)].page_size;
    for (uint32_t i = 0; i < pages; i++) {
        const uint64_t tag =
            ibx_page_tag(tags->taggers[worker], (const uint8_t *)bytes + i * size, size);
        uint64_t before = 0;
        if (!tag)
            return ibx_error_set(err, -ENOMEM, "no memory to hash a page that has come");
        count_fresh(tags, page + i, true);
        /* If a page comes twice, the first tag stays: which one the kernel placed is not known. */
        bool first = atomic_compare_exchange_strong(&tags->tags[page + i], &before, tag);
        while (!first && (before == SENT || !before)) { /* SENT ends while this looks */
            const bool sent = before == SENT; /* a page that was given back is counted, too */
            first = atomic_compare_exchange_strong(&tags->tags[page + i], &before, tag);
            atomic_fetch_sub(tags->uncompared, first && sent);
        }
        if (first) {
            atomic_fetch_add(&tags->tagged[(page + i) / IBX_DIGEST_PAGES], 1);
            continue;
        }
        count_fresh(tags, page + i, false);
        if ((before & ~FLAGS) != tag)
            note_conflict(tags, page + i);
    }
    return 0;
}

void ibx_page_tags_forget(struct ibx_page_tags *tags, uint64_t page, uint64_t pages)
{
    for (const uint64_t end = page + pages; page < end; page++) {
        /* The source is about to read a page that was SENT, which counts until it answers. */
        uint64_t tag = atomic_load(&tags->tags[page]);
        while (!atomic_compare_exchange_strong(&tags->tags[page], &tag, tag & SENT))
            ;
        if (!(tag & ~FLAGS))
            continue;
        atomic_fetch_sub(&tags->tagged[page / IBX_DIGEST_PAGES], 1);
        if (!(tag & FLAGS))
            count_fresh(tags, page, false);
    }
}

int ibx_page_tags_conflict(struct ibx_page_tags *tags, struct ibx_error *err)
{
    pthread_mutex_lock(&tags->lock);
    const int rc = tags->conflict.code;
    if (rc && err)
        *err = tags->conflict;
    pthread_mutex_unlock(&tags->lock);
    return rc;
}

/* The number of pages with data in [first, end); `first` is a multiple of 64. */
static unsigned data_pages(const struct ibx_page_map *map, uint64_t first, uint64_t end)
{
    unsigned count = 0;
    for (uint64_t page = first; page < end; page += 64)
        count += (unsigned)__builtin_popcountll(map->bits[page / 64]);
    return count;
}

bool ibx_page_tags_whole(const struct ibx_page_tags *tags, uint64_t range)
{
    const uint64_t first = range * IBX_DIGEST_PAGES,
                   end = first + ibx_digest_pages(tags->map, range);
    /* Called often. For a range that has not come, these counts touch two cache lines, not 64. */
    if (atomic_load_explicit(&tags->tagged[range], memory_order_acquire) <
        data_pages(tags->map, first, end))
        return false;
    for (uint64_t page = first; page < end; page++)
        if (ibx_page_map_data(tags->map, page) &&
            !atomic_load_explicit(&tags->tags[page], memory_order_acquire))
            return false;
    return true;
}

/* Encodes an entry with these tags, one for each page of the range; 0: none. */
static bool encode(const struct ibx_page_tags *tags, uint64_t range, const uint64_t *list,
                   uint8_t entry[IBX_DIGEST_ENTRY])
{
    const unsigned count = ibx_digest_pages(tags->map, range);
    memset(entry, 0, IBX_DIGEST_PAGES / 8);
    for (unsigned i = 0; i < count; i++)
        entry[i / 8] = (uint8_t)(entry[i / 8] | (list[i] ? 1u << i % 8 : 0));
    return ibx_digest_range(&tags->keys, range * IBX_DIGEST_PAGES, list, count,
                            entry + IBX_DIGEST_PAGES / 8);
}

bool ibx_page_tags_entry(const struct ibx_page_tags *tags, uint64_t range,
                         uint8_t entry[IBX_DIGEST_ENTRY])
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    uint64_t list[IBX_DIGEST_PAGES];
    for (unsigned i = 0; i < ibx_digest_pages(tags->map, range); i++)
        list[i] = atomic_load_explicit(&tags->tags[first + i], memory_order_acquire);
    return encode(tags, range, list, entry);
}

/* ------------------------------------------------------------ of a VM that is borrowed */

void ibx_page_tags_count(struct ibx_page_tags *tags, _Atomic uint64_t *uncompared)
{
    uint64_t count = 0;
    for (uint64_t page = 0; page < tags->map->pages; page++) {
        const uint64_t tag = atomic_fetch_and(&tags->tags[page], ~SENT);
        if (!ibx_page_tag_is_open(tag & ~SENT))
            continue;
        tags->fresh[page / IBX_DIGEST_PAGES]++;
        count++;
    }
    tags->uncompared = uncompared;
    /* At once: the tool by which the VM returns may be reading it. */
    atomic_store(uncompared, (atomic_load(uncompared) & IBX_PAGE_TAGS_BROKEN) | count);
}

void ibx_page_tags_break(struct ibx_page_tags *tags)
{
    if (tags->uncompared)
        atomic_fetch_or(tags->uncompared, IBX_PAGE_TAGS_BROKEN);
}

uint64_t ibx_page_tags_uncompared(const struct ibx_page_tags *tags)
{
    return atomic_load(tags->uncompared);
}

bool ibx_page_tags_fresh(const struct ibx_page_tags *tags, uint64_t range)
{
    return atomic_load(&tags->fresh[range]) > 0;
}

bool ibx_page_tags_fresh_entry(struct ibx_page_tags *tags, uint64_t range,
                               uint8_t entry[IBX_DIGEST_ENTRY])
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    uint64_t list[IBX_DIGEST_PAGES];
    for (unsigned i = 0; i < ibx_digest_pages(tags->map, range); i++) {
        uint64_t tag = atomic_load(&tags->tags[first + i]);
        /* The guest may give the page back meanwhile, which takes its tag away. */
        const bool fresh = tag && !(tag & FLAGS) &&
                           atomic_compare_exchange_strong(&tags->tags[first + i], &tag, tag | SENT);
        list[i] = fresh ? tag : 0;
        if (fresh)
            atomic_fetch_sub(&tags->fresh[range], 1);
    }
    return encode(tags, range, list, entry);
}

void ibx_page_tags_agreed(struct ibx_page_tags *tags, uint64_t range)
{
    const uint64_t first = range * IBX_DIGEST_PAGES;
    for (unsigned i = 0; i < ibx_digest_pages(tags->map, range); i++) {
        uint64_t tag = atomic_load(&tags->tags[first + i]);
        while (tag & SENT &&
               !atomic_compare_exchange_strong(&tags->tags[first + i], &tag,
                                               tag == SENT ? 0 : (tag & ~SENT) | AGREED))
            ;
        if (tag & SENT)
            atomic_fetch_sub(tags->uncompared, 1);
    }
}

void ibx_page_tags_unsend(struct ibx_page_tags *tags)
{
    for (uint64_t page = 0; page < tags->map->pages; page++) {
        uint64_t tag = atomic_load(&tags->tags[page]);
        while (tag & SENT && !atomic_compare_exchange_strong(&tags->tags[page], &tag, tag & ~SENT))
            ;
        if (tag == SENT)
            atomic_fetch_sub(tags->uncompared, 1);
        else if (tag & SENT)
            atomic_fetch_add(&tags->fresh[page / IBX_DIGEST_PAGES], 1);
    }
}
