/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A reader of a snapshot: all that its server sends in one connection, from the manifest to the
 * pages, in any order. Each message follows its length in two bytes; with the length 0xffff there
 * is none for a moment; in the end the server closes. What was opened is whole, and what is fetched
 * is written into the caller's buffer alone.
 *
 * The program is linked with --wrap for the connection, on which a READ completes at once. No
 * fuzzer can find a digest, so that of any map and index is the manifest's, and of a manifest with
 * much memory nothing but the refusal is tried (fuzz_snapshot.c has the others). */
#include "migrate/snapshot/snapshot.h"

#include "common/wire.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PAGES_MAX 4096u /* of guest RAM and device state */
#define FETCH_MAX 65536u
#define MRS_MAX   4u
#define NOTHING   0xffffu
#define TIMEOUT   30000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ------------------------------------------------------------ the connection */

struct ibx_mr {
    uint8_t *memory;
    size_t length;
};

static struct ibx_conn *const conn = (struct ibx_conn *)(uintptr_t)0x1000; /* nobody looks there */
static struct ibx_reader input;
static struct ibx_mr mrs[MRS_MAX];
static unsigned mr_count, taken; /* messages that are not released */
static bool reads, ended;        /* a READ has completed; CLOSED was delivered */
static uint64_t read_cookie;

int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **out,
                       struct ibx_error *err);
int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **out,
                       struct ibx_error *err)
{
    (void)uri;
    (void)options;
    (void)err;
    *out = conn;
    return 0;
}

void __wrap_ibx_receive_ahead(struct ibx_conn *c);
void __wrap_ibx_receive_ahead(struct ibx_conn *c)
{
    require(c == conn);
}

int __wrap_ibx_send(struct ibx_conn *c, const struct iovec *iov, int count, uint64_t cookie,
                    unsigned flags);
int __wrap_ibx_send(struct ibx_conn *c, const struct iovec *iov, int count, uint64_t cookie,
                    unsigned flags)
{
    struct ibx_snapshot_any message;
    (void)cookie;
    (void)flags;
    require(c == conn && count == 1);
    require(!ibx_snapshot_decode(iov->iov_base, iov->iov_len, &message, NULL));
    require(message.type == IBX_SNAPSHOT_OPEN || message.type == IBX_SNAPSHOT_ASK);
    return 0;
}

int __wrap_ibx_poll(struct ibx_conn *c, struct ibx_event *events, int max);
int __wrap_ibx_poll(struct ibx_conn *c, struct ibx_event *events, int max)
{
    require(c == conn && max > 0);
    *events = (struct ibx_event){.type = IBX_EVENT_READ, .cookie = read_cookie};
    if (reads) {
        reads = false;
        return 1;
    }
    if (ended)
        return -ENOTCONN;
    const size_t length = ibx_get_u16(&input);
    if (length == NOTHING)
        return 0;
    const uint8_t *bytes = ibx_get_bytes(&input, length);
    ended = !bytes;
    *events = (struct ibx_event){.type = IBX_EVENT_CLOSED, .status = -ECONNRESET};
    if (ended)
        return 1;
    uint8_t *copy = malloc(length ? length : 1); /* so that nobody reads beyond it */
    require(copy != NULL);
    memcpy(copy, bytes, length);
    *events = (struct ibx_event){
        .type = IBX_EVENT_MESSAGE, .data = copy, .length = length, .slot = (uintptr_t)copy};
    taken++;
    return 1;
}

void __wrap_ibx_message_release(struct ibx_conn *c, const struct ibx_event *event);
void __wrap_ibx_message_release(struct ibx_conn *c, const struct ibx_event *event)
{
    require(c == conn && taken--);
    free((void *)(uintptr_t)event->slot);
}

int __wrap_ibx_wait(struct ibx_conn *c, int timeout_ms);
int __wrap_ibx_wait(struct ibx_conn *c, int timeout_ms)
{
    (void)timeout_ms;
    require(c == conn);
    return 1;
}

void __wrap_ibx_abort(struct ibx_conn *c);
void __wrap_ibx_abort(struct ibx_conn *c)
{
    require(c == conn);
}

void __wrap_ibx_close(struct ibx_conn *c);
void __wrap_ibx_close(struct ibx_conn *c)
{
    require(c == conn);
    while (mr_count)
        free(mrs[--mr_count].memory);
}

const char *__wrap_ibx_conn_reason(const struct ibx_conn *c);
const char *__wrap_ibx_conn_reason(const struct ibx_conn *c)
{
    require(c == conn);
    return ended ? "it is closed" : "";
}

int __wrap_ibx_mr_allocate(struct ibx_conn *c, size_t length, unsigned access, struct ibx_mr **mr,
                           struct ibx_error *err);
int __wrap_ibx_mr_allocate(struct ibx_conn *c, size_t length, unsigned access, struct ibx_mr **mr,
                           struct ibx_error *err)
{
    (void)access;
    require(c == conn && mr_count < MRS_MAX);
    mrs[mr_count] = (struct ibx_mr){malloc(length ? length : 1), length};
    if (!mrs[mr_count].memory)
        return ibx_error_set(err, -ENOMEM, "no memory");
    *mr = &mrs[mr_count++];
    return 0;
}

void *__wrap_ibx_mr_address(const struct ibx_mr *mr);
void *__wrap_ibx_mr_address(const struct ibx_mr *mr)
{
    return mr->memory;
}

int __wrap_ibx_read(struct ibx_conn *c, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags);
int __wrap_ibx_read(struct ibx_conn *c, struct ibx_mr *mr, void *local,
                    const struct ibx_remote *remote, uint64_t offset, size_t length,
                    uint64_t cookie, unsigned flags)
{
    const size_t at = (size_t)((uint8_t *)local - mr->memory);
    (void)flags;
    require(c == conn && length && at <= mr->length && length <= mr->length - at);
    require(offset <= remote->length && length <= remote->length - offset);
    memset(local, 0xa5, length);
    reads = true;
    read_cookie = cookie;
    return 0;
}

/* ------------------------------------------------------------ what is not tried */

int __real_ibx_snapshot_manifest_read(const char *text, size_t length,
                                      struct ibx_snapshot_manifest *m, struct ibx_error *err);
int __wrap_ibx_snapshot_manifest_read(const char *text, size_t length,
                                      struct ibx_snapshot_manifest *m, struct ibx_error *err);
int __wrap_ibx_snapshot_manifest_read(const char *text, size_t length,
                                      struct ibx_snapshot_manifest *m, struct ibx_error *err)
{
    struct ibx_snapshot_manifest found;
    const int rc = __real_ibx_snapshot_manifest_read(text, length, &found, err);
    if (rc)
        return rc;
    if (ibx_snapshot_hashed_pages(&found) > PAGES_MAX) {
        ibx_snapshot_manifest_fini(&found);
        return ibx_error_set(err, -EPROTO, "it has too much memory for this test");
    }
    *m = found;
    return 0;
}

int __real_ibx_snapshot_index_digest(const struct ibx_snapshot_manifest *m,
                                     const struct ibx_page_map *map,
                                     const struct ibx_snapshot_index *index,
                                     uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
int __wrap_ibx_snapshot_index_digest(const struct ibx_snapshot_manifest *m,
                                     const struct ibx_page_map *map,
                                     const struct ibx_snapshot_index *index,
                                     uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err);
int __wrap_ibx_snapshot_index_digest(const struct ibx_snapshot_manifest *m,
                                     const struct ibx_page_map *map,
                                     const struct ibx_snapshot_index *index,
                                     uint8_t digest[IBX_SNAPSHOT_DIGEST], struct ibx_error *err)
{
    const int rc = __real_ibx_snapshot_index_digest(m, map, index, digest, err);
    memcpy(digest, m->digest, IBX_SNAPSHOT_DIGEST);
    return rc;
}

/* ------------------------------------------------------------ the reader */

/* Pages that the map does not have are zero, whatever the server sends. */
static void fetch(struct ibx_snapshot_reader *reader, unsigned block)
{
    const struct ibx_page_map *map = ibx_snapshot_reader_map(reader);
    const uint64_t all = map->blocks[block].pages * IBX_SNAPSHOT_PAGE;
    const size_t size = all < FETCH_MAX ? (size_t)all : FETCH_MAX;
    uint8_t *bytes = malloc(size);
    require(bytes != NULL);
    memset(bytes, 0x5a, size);
    if (!ibx_snapshot_reader_fetch(reader, block, 0, bytes, size, NULL))
        for (size_t at = 0; at < size; at += IBX_SNAPSHOT_PAGE)
            require(ibx_page_map_data(map, map->blocks[block].first + at / IBX_SNAPSHOT_PAGE) ||
                    ibx_snapshot_page_is_zero(bytes + at));
    free(bytes);
}

/* All hashes are fetched: a piece is only kept if it is what the index says. */
static void check_hashes(struct ibx_snapshot_reader *reader, struct ibx_snapshot_index *index)
{
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(reader);
    const uint64_t pages = ibx_snapshot_hashed_pages(m);
    struct ibx_snapshot_checker *checker;
    struct ibx_error err = {0};
    require(index->pieces == ibx_snapshot_pieces(m));
    require(!ibx_snapshot_checker_create(m, index, 1, &checker, NULL));
    const uint64_t end = (pages - 1) / ibx_snapshot_checker_piece_pages(checker) + 1;
    const int rc = ibx_snapshot_reader_fetch_hashes(reader, checker, 0, pages, &err);
    require(!rc == (ibx_snapshot_checker_lacks(checker, 0, end) == end));
    require(!rc || (err.code && err.message[0]));
    ibx_snapshot_checker_destroy(checker);
}

static void use(struct ibx_snapshot_reader *reader)
{
    const struct ibx_snapshot_manifest *m = ibx_snapshot_reader_manifest(reader);
    const struct ibx_page_map *map = ibx_snapshot_reader_map(reader);
    struct ibx_snapshot_index index = ibx_snapshot_reader_take_index(reader);
    require(map->next == map->pages && map->block_count == m->ram_count + 1 + m->hashed);
    require((index.hashes != NULL) == m->hashed);
    for (unsigned block = 0; block < map->block_count; block++)
        fetch(reader, block);
    if (m->hashed)
        check_hashes(reader, &index);
    ibx_snapshot_index_fini(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ibx_snapshot_reader *reader;
    struct ibx_options options;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    options.timeout_ms = TIMEOUT;
    input = ibx_reader_of(data, size);
    reads = ended = false;
    if (ibx_snapshot_reader_open("tcp://there:1", &options, 1, &reader, &err)) {
        require(err.code && err.message[0] && !strchr(err.message, '\n'));
    } else {
        use(reader);
        ibx_snapshot_reader_close(reader);
    }
    require(!taken && !mr_count);
    return 0;
}
