/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The hashes of a snapshot's pages. The tool that freezes a VM makes them. A reader compares
 * each page with its hash before the page is used, whatever the network and the sender. */
#include "migrate/snapshot/hasher.h"

#include "common/wire.h"
#include "common/write_whole.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE (1u << 20) /* bytes read at a time */

static bool is_zero(const uint8_t *bytes, size_t length)
{
    return !bytes[0] && !memcmp(bytes, bytes + 1, length - 1);
}

bool ibx_snapshot_page_is_zero(const void *page)
{
    return is_zero(page, IBX_SNAPSHOT_PAGE);
}

/* ------------------------------------------------------------ one page, or piece */

void ibx_snapshot_hasher_fini(struct ibx_snapshot_hasher *hasher)
{
    EVP_MD_CTX_free(hasher->context);
    EVP_MD_free(hasher->md);
}

bool ibx_snapshot_hasher_init(struct ibx_snapshot_hasher *hasher, const uint8_t id[IBX_SNAPSHOT_ID])
{
    *hasher = (struct ibx_snapshot_hasher){.md = EVP_MD_fetch(NULL, "SHA256", NULL),
                                           .context = EVP_MD_CTX_new()};
    memcpy(hasher->prefix, id, IBX_SNAPSHOT_ID);
    if (hasher->md && hasher->context)
        return true;
    ibx_snapshot_hasher_fini(hasher);
    return false;
}

static int cannot(struct ibx_error *err)
{
    return ibx_error_set(err, -EIO, "OpenSSL cannot compute SHA-256");
}

int ibx_snapshot_hasher_bytes(struct ibx_snapshot_hasher *hasher, uint64_t number,
                              const uint8_t *bytes, size_t length, uint8_t hash[IBX_SNAPSHOT_HASH],
                              struct ibx_error *err)
{
    uint8_t whole[EVP_MAX_MD_SIZE];
    memset(hash, 0, IBX_SNAPSHOT_HASH);
    if (is_zero(bytes, length))
        return 0;
    struct ibx_writer w = ibx_writer_of(hasher->prefix + IBX_SNAPSHOT_ID, 8);
    ibx_put_u64(&w, number);
    if (EVP_DigestInit_ex(hasher->context, hasher->md, NULL) != 1 ||
        EVP_DigestUpdate(hasher->context, hasher->prefix, sizeof(hasher->prefix)) != 1 ||
        EVP_DigestUpdate(hasher->context, bytes, length) != 1 ||
        EVP_DigestFinal_ex(hasher->context, whole, NULL) != 1)
        return cannot(err);
    memcpy(hash, whole, IBX_SNAPSHOT_HASH);
    return 0;
}

int ibx_snapshot_hasher_page(struct ibx_snapshot_hasher *hasher, uint64_t page,
                             const uint8_t *bytes, uint8_t hash[IBX_SNAPSHOT_HASH],
                             struct ibx_error *err)
{
    return ibx_snapshot_hasher_bytes(hasher, page, bytes, IBX_SNAPSHOT_PAGE, hash, err);
}

/* ------------------------------------------------------------ a table */

int ibx_snapshot_table_init(const struct ibx_snapshot_manifest *m, struct ibx_snapshot_table *table,
                            struct ibx_error *err)
{
    const uint64_t pages = ibx_snapshot_hashed_pages(m);
    const size_t bytes = (size_t)ibx_snapshot_table_bytes(m);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return ibx_error_set(err, -errno, "no memory for the hashes of %llu pages",
                             (unsigned long long)pages);
    *table = (struct ibx_snapshot_table){at, bytes, pages};
    return 0;
}

void ibx_snapshot_table_fini(struct ibx_snapshot_table *table)
{
    if (table->hashes)
        munmap(table->hashes, table->bytes);
    *table = (struct ibx_snapshot_table){.hashes = NULL};
}

static bool has_hash(const struct ibx_snapshot_table *table, uint64_t page)
{
    static const uint8_t none[IBX_SNAPSHOT_HASH];
    return memcmp(table->hashes + page * IBX_SNAPSHOT_HASH, none, sizeof(none)) != 0;
}

struct filling {
    const struct ibx_snapshot_folder *folder;
    const struct ibx_page_map *map;
    struct ibx_snapshot_table *table;
    struct ibx_snapshot_hasher hasher;
    uint8_t *piece;
    bool (*ends)(void);
    struct ibx_error *err;
};

static int fill_piece(const struct filling *f, unsigned block, uint64_t first, uint64_t pages)
{
    const uint64_t within = first - f->map->blocks[block].first;
    const size_t bytes = (size_t)pages * IBX_SNAPSHOT_PAGE;
    struct ibx_snapshot_hasher hasher = f->hasher;
    int rc = 0;
    const ssize_t n =
        pread(f->folder->fds[block], f->piece, bytes, (off_t)(within * IBX_SNAPSHOT_PAGE));
    if (n != (ssize_t)bytes)
        return ibx_error_set(f->err, n < 0 ? -errno : -EIO, "block %u of %s cannot be read: %s",
                             block, f->folder->path, n < 0 ? strerror(errno) : "it is too short");
    for (uint64_t i = 0; !rc && i < pages; i++)
        rc = ibx_snapshot_hasher_page(&hasher, first + i, f->piece + i * IBX_SNAPSHOT_PAGE,
                                      f->table->hashes + (first + i) * IBX_SNAPSHOT_HASH, f->err);
    return rc;
}

static int fill_run(void *context, uint64_t first, uint64_t count, bool data)
{
    const struct filling *f = context;
    int rc = 0;
    if (!data || first >= f->table->pages)
        return 0;
    const unsigned block = ibx_page_map_block(f->map, first);
    for (uint64_t most; !rc && count; first += most, count -= most) {
        most = PIECE / IBX_SNAPSHOT_PAGE;
        most = most < count ? most : count;
        if (f->ends && f->ends())
            return ibx_error_set(f->err, -EINTR, "%s was read in part", f->folder->path);
        rc = fill_piece(f, block, first, most);
    }
    return rc;
}

int ibx_snapshot_table_fill(const struct ibx_snapshot_folder *folder,
                            const struct ibx_page_map *map, struct ibx_snapshot_table *table,
                            bool (*ends)(void), struct ibx_error *err)
{
    struct filling f = {folder, map, table, {NULL, NULL, {0}}, malloc(PIECE), ends, err};
    if (!f.piece || !ibx_snapshot_hasher_init(&f.hasher, folder->manifest.id)) {
        free(f.piece);
        return ibx_error_set(err, -ENOMEM, "no memory for the hashes of pages");
    }
    const int rc = ibx_page_map_runs(map, fill_run, &f);
    ibx_snapshot_hasher_fini(&f.hasher);
    free(f.piece);
    return rc;
}

/* ------------------------------------------------------------ its index */

uint32_t ibx_snapshot_piece_bytes(const struct ibx_snapshot_manifest *m)
{
    const uint64_t all = ibx_snapshot_table_bytes(m);
    uint32_t bytes = IBX_SNAPSHOT_PIECE_MIN;
    while (bytes < IBX_SNAPSHOT_PAGE && all / bytes > IBX_SNAPSHOT_PIECES)
        bytes *= 2;
    return bytes;
}

uint64_t ibx_snapshot_pieces(const struct ibx_snapshot_manifest *m)
{
    return ibx_snapshot_table_bytes(m) / ibx_snapshot_piece_bytes(m);
}

uint64_t ibx_snapshot_piece_next(const struct ibx_snapshot_manifest *m,
                                 const struct ibx_page_map *map, uint64_t piece)
{
    const uint64_t each = ibx_snapshot_piece_bytes(m) / IBX_SNAPSHOT_HASH;
    const uint64_t end = ibx_snapshot_hashed_pages(m), from = piece * each;
    const uint64_t page = from < end ? ibx_guest_bits_next(map->bits, from, end, true) : end;
    return page < end ? page / each : ibx_snapshot_pieces(m);
}

int ibx_snapshot_index_init(const struct ibx_snapshot_manifest *m, struct ibx_snapshot_index *index,
                            struct ibx_error *err)
{
    const uint64_t pieces = ibx_snapshot_pieces(m);
    *index = (struct ibx_snapshot_index){.hashes = calloc((size_t)pieces, IBX_SNAPSHOT_HASH),
                                         .pieces = pieces};
    return index->hashes ? 0
                         : ibx_error_set(err, -ENOMEM, "no memory for %llu hashes of hashes",
                                         (unsigned long long)pieces);
}

void ibx_snapshot_index_fini(struct ibx_snapshot_index *index)
{
    free(index->hashes);
    *index = (struct ibx_snapshot_index){.hashes = NULL};
}

/* Adds what one page of the table says to the map and the index. */
static int read_page(struct ibx_snapshot_hasher *hasher, const struct ibx_snapshot_table *table,
                     uint64_t number, struct ibx_page_map *map, struct ibx_snapshot_index *index,
                     struct ibx_error *err)
{
    const uint64_t from = number * IBX_SNAPSHOT_PAGE_HASHES;
    const uint64_t pieces = index->pieces / (table->bytes / IBX_SNAPSHOT_PAGE);
    const size_t length = IBX_SNAPSHOT_PAGE / pieces;
    int rc = 0;
    for (uint64_t i = 0; i < IBX_SNAPSHOT_PAGE_HASHES && from + i < table->pages; i++)
        if (has_hash(table, from + i))
            ibx_page_map_set(map, from + i, 1);
    for (uint64_t piece = number * pieces; !rc && piece < (number + 1) * pieces; piece++)
        rc = ibx_snapshot_hasher_bytes(hasher, table->pages + piece, table->hashes + piece * length,
                                       length, index->hashes + piece * IBX_SNAPSHOT_HASH, err);
    return rc;
}

int ibx_snapshot_table_read(const struct ibx_snapshot_manifest *m,
                            const struct ibx_snapshot_table *table,
                            const struct ibx_page_map *there, struct ibx_page_map *map,
                            struct ibx_snapshot_index *index, struct ibx_error *err)
{
    struct ibx_snapshot_hasher hasher;
    int rc = ibx_snapshot_map_init(m, map, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_index_init(m, index, err);
    if (!rc && !ibx_snapshot_hasher_init(&hasher, m->id))
        rc = ibx_error_set(err, -ENOMEM, "no memory for SHA-256");
    if (rc) {
        ibx_snapshot_index_fini(index);
        ibx_page_map_fini(map);
        return rc;
    }
    for (uint64_t i = 0; !rc && i < table->bytes / IBX_SNAPSHOT_PAGE; i++)
        if (!there || ibx_page_map_data(there, table->pages + i))
            rc = read_page(&hasher, table, i, map, index, err);
    ibx_snapshot_hasher_fini(&hasher);
    ibx_snapshot_map_finish(m, map);
    if (rc) {
        ibx_snapshot_index_fini(index);
        ibx_page_map_fini(map);
    }
    return rc;
}

void ibx_snapshot_map_finish(const struct ibx_snapshot_manifest *m, struct ibx_page_map *map)
{
    const uint64_t end = m->hashed ? ibx_snapshot_hashed_pages(m) : 0;
    for (uint64_t page = 0; page < end;) {
        page = ibx_guest_bits_next(map->bits, page, end, true);
        if (page < end)
            ibx_page_map_set(map, end + page / IBX_SNAPSHOT_PAGE_HASHES, 1);
        page = (page / IBX_SNAPSHOT_PAGE_HASHES + 1) * IBX_SNAPSHOT_PAGE_HASHES;
    }
}

/* ------------------------------------------------------------ the digest */

static bool digest_number(EVP_MD_CTX *md, uint64_t value)
{
    uint8_t number[8];
    struct ibx_writer w = ibx_writer_of(number, sizeof(number));
    ibx_put_u64(&w, value);
    return EVP_DigestUpdate(md, number, sizeof(number)) == 1;
}

/* Adds to the digest which pages have a hash. */
static bool digest_map(EVP_MD_CTX *md, const struct ibx_page_map *map, uint64_t pages)
{
    bool good = true;
    for (uint64_t page = 0; good && page < pages; page += 64) {
        const uint64_t left = pages - page;
        good =
            digest_number(md, map->bits[page / 64] & (left < 64 ? (1ull << left) - 1 : UINT64_MAX));
    }
    return good;
}

int ibx_snapshot_index_digest(const struct ibx_snapshot_manifest *m, const struct ibx_page_map *map,
                              const struct ibx_snapshot_index *index,
                              uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    struct ibx_migrate_block *blocks = calloc(IBX_GUEST_BLOCKS_MAX, sizeof(*blocks));
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool good = blocks && md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;
    if (good)
        ibx_snapshot_blocks(m, blocks);
    for (unsigned i = 0; good && i <= m->ram_count; i++)
        good = digest_number(md, blocks[i].size);
    good = good && digest_map(md, map, ibx_snapshot_hashed_pages(m)) &&
           EVP_DigestUpdate(md, index->hashes, (size_t)index->pieces * IBX_SNAPSHOT_HASH) == 1 &&
           EVP_DigestFinal_ex(md, digest, NULL) == 1;
    EVP_MD_CTX_free(md);
    free(blocks);
    return good ? 0 : cannot(err);
}

int ibx_snapshot_table_digest(const struct ibx_snapshot_manifest *m,
                              const struct ibx_snapshot_table *table,
                              uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    struct ibx_snapshot_index index;
    struct ibx_page_map map;
    int rc = ibx_snapshot_table_read(m, table, NULL, &map, &index, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_index_digest(m, &map, &index, digest, err);
    ibx_snapshot_index_fini(&index);
    ibx_page_map_fini(&map);
    return rc;
}

int ibx_snapshot_digest(const struct ibx_snapshot_folder *folder, const struct ibx_page_map *map,
                        uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    struct ibx_snapshot_table table;
    int rc = ibx_snapshot_table_init(&folder->manifest, &table, err);
    if (rc)
        return rc;
    rc = ibx_snapshot_table_fill(folder, map, &table, NULL, err);
    if (!rc)
        rc = ibx_snapshot_table_digest(&folder->manifest, &table, digest, err);
    ibx_snapshot_table_fini(&table);
    return rc;
}

int ibx_snapshot_table_write(const struct ibx_snapshot_folder *folder,
                             const struct ibx_snapshot_table *table, struct ibx_error *err)
{
    const unsigned block = folder->manifest.ram_count + 1;
    int rc = 0;
    for (size_t at = 0; !rc && at < table->bytes; at += IBX_SNAPSHOT_PAGE)
        if (!ibx_snapshot_page_is_zero(table->hashes + at))
            rc = ibx_write_whole_at(folder->fds[block], table->hashes + at, IBX_SNAPSHOT_PAGE, at);
    return rc ? ibx_error_set(err, rc, "the hashes of pages cannot be written to %s: %s",
                              folder->path, strerror(-rc))
              : 0;
}
