/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether the pages at the destination are those of the source.
 *
 * Each side computes a tag of every page with data, a keyed hash of 61 bits: the destination over
 * the bytes as they have arrived, before the guest can see them, the source over its RAM, later:
 * once the destination has named them; or, over a wire, whenever it has nothing else to do. So a
 * page is found that was changed on its way, or at the source between its READ for the destination
 * and its tag, whichever comes first. One that somebody changes there between the stop of the VM
 * and both is the same for both, and not found: migrate/common/hold.h and guard.h are what keeps
 * QEMU from it. One that is changed after both has come as it was.
 *
 * Pages of a range (IBX_DIGEST_PAGES of them) are compared by one digest of their tags, which the
 * destination sends in DIGEST messages. A page has the same tag in whatever order, by whatever
 * request and however often it comes.
 *
 * The key is a secret of both ends. A tag is Poly1305 under a fixed key, reduced to 61 bits by a
 * second universal hash: two different pages of up to 2 MiB have the same tag with a probability of
 * about 2^-61, for whoever does not know the key. So tags stay secret: what crosses the wire is
 * HMAC-SHA-256 over those of a range.
 *
 *   digest.c    tags and digests, and the destination's table of tags
 *   verifier.c  the source's threads that compare
 */
#ifndef IBX_MIGRATE_PAGES_DIGEST_H
#define IBX_MIGRATE_PAGES_DIGEST_H

#include "migrate/pages/pages.h"

#include <stdatomic.h>

#define IBX_DIGEST_PAGES                                                                           \
    IBX_MIGRATE_DIGEST_PAGES /* of a range; a range begins at a multiple of it */
#define IBX_DIGEST_BYTES IBX_MIGRATE_DIGEST_BYTES
#define IBX_DIGEST_KEY   IBX_SECRET_BYTES
/* In a DIGEST message, of one range: a bit a page, lowest first, 1: it has a tag; the digest. */
#define IBX_DIGEST_ENTRY IBX_MIGRATE_DIGEST_ENTRY

static inline uint64_t ibx_digest_ranges(uint64_t pages)
{
    return (pages + IBX_DIGEST_PAGES - 1) / IBX_DIGEST_PAGES;
}

/* Pages of a range; the last one may be shorter. */
static inline unsigned ibx_digest_pages(const struct ibx_page_map *map, uint64_t range)
{
    const uint64_t left = map->pages - range * IBX_DIGEST_PAGES;
    return left < IBX_DIGEST_PAGES ? (unsigned)left : IBX_DIGEST_PAGES;
}

/* ------------------------------------------------------------ tags and digests */

struct ibx_digest_keys {
    uint8_t page[32];
    uint64_t fold[3];
    uint8_t range[32];
};
void ibx_digest_keys_derive(struct ibx_digest_keys *keys, const uint8_t key[IBX_DIGEST_KEY]);

/* Computes tags; one for each thread. NULL: OpenSSL lacks POLY1305. */
struct ibx_page_tagger;
struct ibx_page_tagger *ibx_page_tagger_create(const struct ibx_digest_keys *keys);
void ibx_page_tagger_destroy(struct ibx_page_tagger *tagger);
/* The tag of a page, never 0; 0: OpenSSL failed. */
uint64_t ibx_page_tag(struct ibx_page_tagger *tagger, const void *page, size_t size);
/* The same of a page that comes in pieces. False: OpenSSL failed. */
bool ibx_page_tag_begin(struct ibx_page_tagger *tagger);
bool ibx_page_tag_add(struct ibx_page_tagger *tagger, const void *piece, size_t size);
uint64_t ibx_page_tag_end(struct ibx_page_tagger *tagger);

/* Of `count` tags, of which those of pages without one are 0, from page `first` on. When OpenSSL
 * fails it is random: it matches nothing. */
void ibx_digest_range(const struct ibx_digest_keys *keys, uint64_t first, const uint64_t *tags,
                      unsigned count, uint8_t digest[IBX_DIGEST_BYTES]);

/* ------------------------------------------------------------ the destination's tags */

/* `tags`, one a page, 0: none yet. They are in memory that outlives the tool: the next one
 * continues with them. */
struct ibx_page_tags;

/* For `workers` threads; the map and `tags` stay the caller's. */
int ibx_page_tags_create(const struct ibx_page_map *map, _Atomic uint64_t *tags,
                         const uint8_t key[IBX_DIGEST_KEY], unsigned workers,
                         struct ibx_page_tags **out, struct ibx_error *err);
void ibx_page_tags_destroy(struct ibx_page_tags *tags);
/* Notes pages that have arrived, before they are placed (ibx_fault_config.check). Any worker, its
 * own number. */
int ibx_page_tags_note(void *tags, unsigned worker, uint64_t page, uint32_t pages,
                       const void *bytes, struct ibx_error *err);
/* These pages are dropped and come again, with other bytes. Or the guest has given
 * them back. Not while a worker notes them, unless it is called once more after that. */
void ibx_page_tags_forget(struct ibx_page_tags *tags, uint64_t page, uint64_t pages);
/* -EBADMSG with a sentence: a page has come twice, with different bytes. */
int ibx_page_tags_conflict(struct ibx_page_tags *tags, struct ibx_error *err);
/* Every page of the range that the map has data for has its tag. */
bool ibx_page_tags_whole(const struct ibx_page_tags *tags, uint64_t range);
void ibx_page_tags_entry(const struct ibx_page_tags *tags, uint64_t range,
                         uint8_t entry[IBX_DIGEST_ENTRY]);

/* ------------------------------------------------------------ the source's verifier */

/* Reads guest RAM, and computes the digests in threads of its own, as many as suit
 * this machine: ranges in the order in which the destination asks. */
struct ibx_verifier;

/* `ram` and `map`, which change no more, stay the caller's until close. `threads`: 0 for as many as
 * suit this machine. */
int ibx_verifier_open(const struct ibx_guest_ram *ram, const struct ibx_page_map *map,
                      const uint8_t key[IBX_DIGEST_KEY], unsigned threads,
                      struct ibx_verifier **verifier, struct ibx_error *err);
/* Before anything is taken: the map is that of another look than the one which the destination has
 * been told. Pages that are holes here by now are compared with what has come, too, as zeros. */
void ibx_verifier_look_into_holes(struct ibx_verifier *verifier);
/* Computes digests meanwhile, as they are where no page was given back: while ranges come in parts
 * all over guest RAM, as over a wire, none can be named before the last pages are there. */
void ibx_verifier_foresee(struct ibx_verifier *verifier);
/* Of how many ranges it has them by now. */
uint64_t ibx_verifier_foreseen(struct ibx_verifier *verifier);
/* Takes a DIGEST message; ranges may come again. -EPROTO: it does not fit this map. */
int ibx_verifier_take(struct ibx_verifier *verifier, uint64_t first,
                      const struct ibx_bytes *entries, struct ibx_error *err);
/* 0: all ranges agree; -EAGAIN: none differs so far; -EBADMSG names the first that differs; others:
 * guest RAM cannot be read. */
int ibx_verifier_result(struct ibx_verifier *verifier, struct ibx_error *err);
/* Whether nothing waits for its threads: then more has to come. */
bool ibx_verifier_idle(struct ibx_verifier *verifier);
/* Pages with data that were compared, and those that the destination never took, because its guest
 * had given them back. */
void ibx_verifier_pages(struct ibx_verifier *verifier, uint64_t *compared, uint64_t *left_out);
/* Readable when the result has changed; _result() clears it. */
int ibx_verifier_fd(const struct ibx_verifier *verifier);
/* Accepts NULL. */
void ibx_verifier_close(struct ibx_verifier *verifier);

#endif
