/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether the pages at the destination are those of the source.
 *
 * Each side computes a tag of every page with data, a keyed hash of 61 bits. The destination tags
 * the bytes that have arrived, before the guest can see them. The source tags its RAM later, once
 * the destination has named the pages, or over a wire whenever it has nothing else to do. A page
 * that was changed on its way, or at the source between the READ and the tagging (in either order),
 * is found. A page that somebody changes at the source after the stop of the VM but before both is
 * not found; migrate/common/return_path.h and write_protection.h keep QEMU from doing that. A
 * change after both does no harm: the destination has the right bytes.
 *
 * Pages of a range (IBX_DIGEST_PAGES of them) are compared by one digest of their tags, which the
 * destination sends in DIGEST messages. The tag of a page does not depend on the order of arrival,
 * the request or the number of times that the page comes.
 *
 * The key is a secret of both ends. A tag is Poly1305 under a fixed key, reduced to 61 bits by a
 * second universal hash: for somebody who does not know the key, two different pages of up to 2 MiB
 * have the same tag with a probability of about 2^-61. That holds only while tags are secret, so
 * what crosses the wire is HMAC-SHA-256 over the tags of a range.
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
/* Bytes of one range in a DIGEST message: a bit for each page, lowest first (1: the page has a
 * tag), then the digest. */
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
/* False: OpenSSL has no memory. */
bool ibx_digest_keys_derive(struct ibx_digest_keys *keys, const uint8_t key[IBX_DIGEST_KEY]);

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

/* The digest of `count` tags, of the pages from `first` on; a page without a tag has 0. False:
 * OpenSSL has no memory, and there is no digest. That must not look like pages that differ. */
bool ibx_digest_range(const struct ibx_digest_keys *keys, uint64_t first, const uint64_t *tags,
                      unsigned count, uint8_t digest[IBX_DIGEST_BYTES]);

/* ------------------------------------------------------------ the destination's tags */

/* The table of the destination's tags, one for each page, 0: none yet. `tags` is memory that
 * outlives the tool, so that a tool that takes over continues with them. */
struct ibx_page_tags;

/* For `workers` threads. `map` and `tags` stay the caller's and must outlive the table. -ENOMEM, or
 * OpenSSL lacks POLY1305. */
int ibx_page_tags_create(const struct ibx_page_map *map, _Atomic uint64_t *tags,
                         const uint8_t key[IBX_DIGEST_KEY], unsigned workers,
                         struct ibx_page_tags **out, struct ibx_error *err);
void ibx_page_tags_destroy(struct ibx_page_tags *tags);
/* Tags pages that have arrived, before they are placed (ibx_fault_config.check). Each thread passes
 * its own number as `worker`. -ENOMEM. */
int ibx_page_tags_note(void *tags, unsigned worker, uint64_t page, uint32_t pages,
                       const void *bytes, struct ibx_error *err);
/* Removes the tags of pages that will come again with other bytes, or that the guest has given
 * back. If a worker may be noting these pages meanwhile, it has to be called once more after that.
 */
void ibx_page_tags_forget(struct ibx_page_tags *tags, uint64_t page, uint64_t pages);
/* -EBADMSG with a sentence: a page has come twice, with different bytes. */
int ibx_page_tags_conflict(struct ibx_page_tags *tags, struct ibx_error *err);
/* Whether every page with data of the range has its tag. */
bool ibx_page_tags_whole(const struct ibx_page_tags *tags, uint64_t range);
/* Encodes the entry of a range for a DIGEST message; not of a VM that is borrowed. False: OpenSSL
 * has no memory. */
bool ibx_page_tags_entry(const struct ibx_page_tags *tags, uint64_t range,
                         uint8_t entry[IBX_DIGEST_ENTRY]);

/*
 * A VM that is borrowed gets few of its pages, in any order, and the source compares each of them
 * once: while it has, the page at the source may change, because the VM returns to that memory. So
 * the table notes beside each tag how far the page is.
 */

#define IBX_PAGE_TAG_AGREED  (1ull << 63)
#define IBX_PAGE_TAGS_BROKEN (1ull << 63) /* in `uncompared`, from ibx_page_tags_break() on */
/* Whether a page of the table still has to be compared with the source's. */
static inline bool ibx_page_tag_is_open(uint64_t tag)
{
    return tag && !(tag & IBX_PAGE_TAG_AGREED);
}
/* To be called before the first tag is noted, or by a tool that takes over. `uncompared` stays the
 * caller's, outlives the tool as the tags do, and is from now on the number of pages with a tag
 * that the source has not compared. It counts a page before that is placed. */
void ibx_page_tags_count(struct ibx_page_tags *tags, _Atomic uint64_t *uncompared);
/* The memory here is not the VM's, and the VM must not return with it. For good. */
void ibx_page_tags_break(struct ibx_page_tags *tags);
uint64_t ibx_page_tags_uncompared(const struct ibx_page_tags *tags);
/* Whether pages of the range have a tag that no entry has had. */
bool ibx_page_tags_fresh(const struct ibx_page_tags *tags, uint64_t range);
/* Encodes an entry with these pages alone, which counts as sent. False: OpenSSL has no memory. */
bool ibx_page_tags_fresh_entry(struct ibx_page_tags *tags, uint64_t range,
                               uint8_t entry[IBX_DIGEST_ENTRY]);
/* The source has compared the pages of this range that were sent. */
void ibx_page_tags_agreed(struct ibx_page_tags *tags, uint64_t range);
/* Nothing that was sent counts as sent: the link is lost. */
void ibx_page_tags_unsend(struct ibx_page_tags *tags);

/* ------------------------------------------------------------ the source's verifier */

/* Reads guest RAM and computes digests in threads of its own, in the order in which the
 * destination's DIGEST messages come. The calls are for one thread. */
struct ibx_verifier;

/* `ram` and `map` stay the caller's and must not change until close. `threads`: 0 for as many as
 * suit this machine. -ENOMEM, -EOPNOTSUPP (no POLY1305), errors of pthread_create. */
int ibx_verifier_open(const struct ibx_guest_ram *ram, const struct ibx_page_map *map,
                      const uint8_t key[IBX_DIGEST_KEY], unsigned threads,
                      struct ibx_verifier **verifier, struct ibx_error *err);
/* Pages with data are read from now on where this view has them (NULL: from the files of guest RAM,
 * as without this call). May be called while pages are compared. Not of a VM that is borrowed: its
 * pages may become holes, which a look would fill. */
void ibx_verifier_see(struct ibx_verifier *verifier, struct ibx_ram_view *view);
/* To be called before the first DIGEST message, if `map` was made later than the page map that the
 * destination was sent. Then pages that have become holes are compared, as zeros, instead of being
 * an error. */
void ibx_verifier_look_into_holes(struct ibx_verifier *verifier);
/* Has idle threads compute digests in advance, assuming that the destination has every page with
 * data. Over a wire, pages come scattered all over guest RAM, so that no range is complete, and
 * none can be compared, until the last pages have arrived. */
void ibx_verifier_foresee(struct ibx_verifier *verifier);
/* Of a VM that is borrowed: a range comes any number of times, each time with other pages, and
 * there is no last one: the result is never 0. To be called before the first DIGEST message. */
void ibx_verifier_compare_parts(struct ibx_verifier *verifier);
/* ... The link is lost: what waits to be compared comes again over the next one. */
void ibx_verifier_drop_parts(struct ibx_verifier *verifier);
/* For tests: the number of ranges whose digest was computed in advance. */
uint64_t ibx_verifier_foreseen(struct ibx_verifier *verifier);
/* Takes the `entries` of a DIGEST message, for the ranges from `first` on. A range may come again:
 * if it still waits, what came first is compared, except of a borrowed VM. -EPROTO: it does not fit
 * this map, or a range of a borrowed VM still waits. */
int ibx_verifier_take(struct ibx_verifier *verifier, uint64_t first,
                      const struct ibx_bytes *entries, struct ibx_error *err);
/* 0: all ranges agree; -EAGAIN: none differs so far; -EBADMSG names one that differs; others: not
 * all ranges could be compared, for lack of memory or because guest RAM cannot be read, and those
 * that were do not differ so far. */
int ibx_verifier_result(struct ibx_verifier *verifier, struct ibx_error *err);
/* Over the next link the digests come again: forgets why some ranges could not be compared, unless
 * one differs. Those that agreed are not compared again. */
void ibx_verifier_try_again(struct ibx_verifier *verifier);
/* The digests of these ranges have come, and cannot be compared before they come again. */
void ibx_verifier_miss(struct ibx_verifier *verifier, uint64_t range, uint64_t count);
/* Whether digests have come that could not be compared, and have not come again. */
bool ibx_verifier_missed(struct ibx_verifier *verifier);
/* Whether all ranges that were taken have been compared. */
bool ibx_verifier_idle(struct ibx_verifier *verifier);
/* For tests: how many pages with data were compared, and how many were left out because the
 * destination never received them: its guest had given them back. */
void ibx_verifier_pages(struct ibx_verifier *verifier, uint64_t *compared, uint64_t *left_out);
/* Readable when the result has changed; _result() clears it. */
int ibx_verifier_fd(const struct ibx_verifier *verifier);
/* Accepts NULL. */
void ibx_verifier_close(struct ibx_verifier *verifier);

#endif
