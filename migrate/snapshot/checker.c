/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Compares pages that arrive with their hashes. Pieces of the table of hashes are compared with
 * the index, and then kept. So the table is filled as its pieces arrive, and its contents are
 * always right. */
#include "migrate/snapshot/hasher.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A piece of the table. */
enum { TABLE_UNKNOWN, TABLE_ASKED, TABLE_KEPT };

struct ibx_snapshot_checker {
    struct ibx_snapshot_table table;
    struct ibx_snapshot_index index;
    _Atomic uint8_t *states; /* of each piece of the table */
    pthread_mutex_t keeping;
    _Atomic uint64_t fetched; /* bytes of the table */
    uint32_t piece;           /* bytes of a piece of the table */
    uint32_t each;            /* the caller's page size in pages of the snapshot */
    unsigned count;
    struct ibx_snapshot_hasher hashers[];
};

/* ------------------------------------------------------------ one of them */

static int take_index(struct ibx_snapshot_checker *checker, struct ibx_snapshot_index *index,
                      struct ibx_error *err)
{
    static const uint8_t none[IBX_SNAPSHOT_HASH];
    checker->states = calloc((size_t)index->pieces, sizeof(*checker->states));
    if (!checker->states)
        return ibx_error_set(err, -ENOMEM, "no memory for the hashes of pages");
    for (uint64_t i = 0; i < index->pieces; i++) /* the table begins with zeros */
        if (!memcmp(index->hashes + i * sizeof(none), none, sizeof(none)))
            atomic_init(&checker->states[i], TABLE_KEPT);
    checker->index = *index;
    *index = (struct ibx_snapshot_index){.hashes = NULL};
    return 0;
}

int ibx_snapshot_checker_create(const struct ibx_snapshot_manifest *m,
                                struct ibx_snapshot_index *index, unsigned workers,
                                struct ibx_snapshot_checker **out, struct ibx_error *err)
{
    struct ibx_snapshot_checker *checker =
        calloc(1, sizeof(*checker) + workers * sizeof(checker->hashers[0]));
    int rc = checker ? 0 : ibx_error_set(err, -ENOMEM, "no memory for SHA-256");
    if (rc)
        return rc;
    pthread_mutex_init(&checker->keeping, NULL);
    checker->each = 1;
    checker->piece = ibx_snapshot_piece_bytes(m);
    while (checker->count < workers &&
           ibx_snapshot_hasher_init(&checker->hashers[checker->count], m->id))
        checker->count++;
    if (checker->count < workers)
        rc = ibx_error_set(err, -ENOMEM, "no memory for %u threads that compute SHA-256", workers);
    if (!rc)
        rc = ibx_snapshot_table_init(m, &checker->table, err);
    if (!rc)
        rc = take_index(checker, index, err);
    if (rc)
        ibx_snapshot_checker_destroy(checker);
    else
        *out = checker;
    return rc;
}

void ibx_snapshot_checker_scale(struct ibx_snapshot_checker *checker, uint32_t page_size)
{
    checker->each = page_size / IBX_SNAPSHOT_PAGE;
}

const struct ibx_snapshot_index *
ibx_snapshot_checker_index(const struct ibx_snapshot_checker *checker)
{
    return &checker->index;
}

void ibx_snapshot_checker_destroy(struct ibx_snapshot_checker *checker)
{
    if (!checker)
        return;
    for (unsigned i = 0; i < checker->count; i++)
        ibx_snapshot_hasher_fini(&checker->hashers[i]);
    ibx_snapshot_table_fini(&checker->table);
    ibx_snapshot_index_fini(&checker->index);
    free(checker->states);
    pthread_mutex_destroy(&checker->keeping);
    free(checker);
}

/* ------------------------------------------------------------ pieces of the table */

uint32_t ibx_snapshot_checker_piece_pages(const struct ibx_snapshot_checker *checker)
{
    return checker->piece / IBX_SNAPSHOT_HASH;
}

uint64_t ibx_snapshot_checker_fetched(const struct ibx_snapshot_checker *checker)
{
    return atomic_load_explicit(&checker->fetched, memory_order_relaxed);
}

void ibx_snapshot_checker_note(struct ibx_snapshot_checker *checker, uint64_t bytes)
{
    atomic_fetch_add_explicit(&checker->fetched, bytes, memory_order_relaxed);
}

static bool is_kept(const struct ibx_snapshot_checker *checker, uint64_t number)
{
    return atomic_load_explicit(&checker->states[number], memory_order_acquire) == TABLE_KEPT;
}

uint64_t ibx_snapshot_checker_lacks(const struct ibx_snapshot_checker *checker, uint64_t first,
                                    uint64_t end)
{
    while (first < end && is_kept(checker, first))
        first++;
    return first;
}

bool ibx_snapshot_checker_claim(struct ibx_snapshot_checker *checker, uint64_t number)
{
    uint8_t unknown = TABLE_UNKNOWN;
    return atomic_compare_exchange_strong(&checker->states[number], &unknown, TABLE_ASKED);
}

void ibx_snapshot_checker_unclaim(struct ibx_snapshot_checker *checker, uint64_t number)
{
    uint8_t asked = TABLE_ASKED;
    atomic_compare_exchange_strong(&checker->states[number], &asked, TABLE_UNKNOWN);
}

void ibx_snapshot_checker_copy(const struct ibx_snapshot_checker *checker, uint64_t number,
                               uint64_t count, void *to)
{
    memcpy(to, checker->table.hashes + number * checker->piece, (size_t)count * checker->piece);
}

int ibx_snapshot_checker_keep(struct ibx_snapshot_checker *checker, unsigned worker,
                              uint64_t number, const void *bytes, struct ibx_error *err)
{
    uint8_t hash[IBX_SNAPSHOT_HASH];
    const uint64_t first = number * ibx_snapshot_checker_piece_pages(checker);
    const int rc = ibx_snapshot_hasher_bytes(
        &checker->hashers[worker], checker->table.pages + number, bytes, checker->piece, hash, err);
    if (rc)
        return rc;
    if (memcmp(hash, checker->index.hashes + number * IBX_SNAPSHOT_HASH, sizeof(hash)))
        return ibx_error_set(err, -EBADMSG,
                             "the hashes of page %" PRIu64 " and those behind it are not those "
                             "that were frozen: they were changed on their way here, or where they "
                             "are served",
                             first);
    pthread_mutex_lock(&checker->keeping);
    if (!is_kept(checker, number))
        memcpy(checker->table.hashes + number * checker->piece, bytes, checker->piece);
    atomic_store_explicit(&checker->states[number], TABLE_KEPT, memory_order_release);
    pthread_mutex_unlock(&checker->keeping);
    return 0;
}

static int keep_page(struct ibx_snapshot_checker *checker, unsigned worker, uint64_t page,
                     const uint8_t *bytes, struct ibx_error *err)
{
    const uint64_t pieces = IBX_SNAPSHOT_PAGE / checker->piece;
    int rc = 0;
    for (uint64_t i = 0; !rc && i < pieces; i++)
        rc = ibx_snapshot_checker_keep(checker, worker, page * pieces + i,
                                       bytes + i * checker->piece, err);
    return rc;
}

/* ------------------------------------------------------------ any pages */

static int compare(struct ibx_snapshot_checker *checker, unsigned worker, uint64_t page,
                   const uint8_t *bytes, struct ibx_error *err)
{
    uint8_t hash[IBX_SNAPSHOT_HASH];
    if (!is_kept(checker, page / ibx_snapshot_checker_piece_pages(checker)))
        return ibx_error_set(err, -EBADMSG,
                             "the hash of page %" PRIu64 " did not come, or is not the one that "
                             "was frozen: it was changed on its way here, or where it is served",
                             page);
    const int rc = ibx_snapshot_hasher_page(&checker->hashers[worker], page, bytes, hash, err);
    if (rc)
        return rc;
    return memcmp(hash, checker->table.hashes + page * IBX_SNAPSHOT_HASH, sizeof(hash))
               ? ibx_error_set(err, -EBADMSG,
                               "page %" PRIu64 " came with other bytes than were frozen: it was "
                               "changed on its way here, or where it is served",
                               page)
               : 0;
}

int ibx_snapshot_checker_check(void *context, unsigned worker, uint64_t page, uint32_t pages,
                               const void *bytes, struct ibx_error *err)
{
    struct ibx_snapshot_checker *checker = context;
    const uint8_t *at = bytes;
    const uint64_t first = page * checker->each, count = (uint64_t)pages * checker->each;
    const uint64_t table = checker->table.pages;
    const uint64_t all = table + checker->table.bytes / IBX_SNAPSHOT_PAGE;
    int rc = 0;
    if (worker >= checker->count || first > all || count > all - first)
        return ibx_error_set(err, -ERANGE, "page %" PRIu64 " is not of this snapshot", first);
    for (uint64_t i = 0; !rc && i < count; i++, at += IBX_SNAPSHOT_PAGE)
        rc = first + i < table ? compare(checker, worker, first + i, at, err)
                               : keep_page(checker, worker, first + i - table, at, err);
    return rc;
}
