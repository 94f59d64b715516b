/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Each connection begins alike: OPEN, to which the first gets the manifest and the map, and all the
 * list of regions. From there on it is a page connection (pages/page_reader.c), or pages come by
 * messages (message_reader.c).
 */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FETCH_BYTES (256u << 10) /* a READ of ibx_snapshot_reader_fetch() */
/* Such a READ may take this many times timeout_ms: the server may be a cache that has to fetch the
 * bytes itself, and that waits without an end while its own server is lost. */
#define FETCH_TIMES 10u

struct ibx_snapshot_reader {
    struct ibx_snapshot_manifest manifest;
    bool has_manifest;
    struct ibx_page_map map;
    struct ibx_snapshot_index index;
    size_t index_got;    /* bytes of the index that have come */
    uint64_t index_next; /* the piece whose hash comes next */
    struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX];
    unsigned block_count, links;
    struct link {
        struct ibx_page_reader *pages; /* either this, by READs, or `asker`, by messages */
        struct ibx_snapshot_asker *asker;
        struct ibx_snapshot_table_reader *hashes; /* NULL: without */
    } link[IBX_MIGRATE_LINKS_MAX];
    struct ibx_mr *buffer; /* of the first link, for fetch() */
    unsigned fetch_ms;     /* for one READ of fetch() */
    bool (*ends)(void);    /* whether this process has to end; NULL: it never has to */
};

static int check_end(const struct ibx_snapshot_reader *reader, struct ibx_error *err)
{
    return reader->ends && reader->ends()
               ? ibx_error_set(err, -EINTR, "this process was told to end before it had answered")
               : 0;
}

/* ------------------------------------------------------------ the beginning of a connection */

struct opening {
    struct ibx_snapshot_reader *reader;
    struct ibx_conn *conn;
    char *text; /* of the manifest, while it comes */
    size_t length, got;
    bool listed, asked;
    uint32_t regions;
    uint64_t until_ns, timeout_ns;
};

static int take_manifest(struct opening *o, const struct ibx_snapshot_any *m, struct ibx_error *err)
{
    struct ibx_snapshot_reader *reader = o->reader;
    if (reader->has_manifest || m->offset != o->got || (o->got && m->length != o->length))
        return ibx_error_set(err, -EPROTO, "byte %u of its manifest came out of turn", m->offset);
    if (!o->text && !(o->text = malloc(m->length)))
        return ibx_error_set(err, -ENOMEM, "no memory for a manifest of %u bytes", m->length);
    o->length = m->length;
    memcpy(o->text + o->got, m->bytes.bytes, m->bytes.length);
    o->got += m->bytes.length;
    if (o->got < o->length)
        return 0;
    int rc = ibx_snapshot_manifest_read(o->text, o->length, &reader->manifest, err);
    if (rc)
        return rc;
    reader->has_manifest = true;
    reader->block_count = ibx_snapshot_blocks(&reader->manifest, reader->blocks);
    return ibx_snapshot_map_init(&reader->manifest, &reader->map, err);
}

/* Makes an index of zeros, unless it exists. For a snapshot whose pages are all zero no INDEX
 * comes.
 */
static int begin_index(struct ibx_snapshot_reader *reader, struct ibx_error *err)
{
    if (reader->index.hashes)
        return 0;
    const int rc = ibx_snapshot_index_init(&reader->manifest, &reader->index, err);
    if (!rc)
        reader->index_next = ibx_snapshot_piece_next(&reader->manifest, &reader->map, 0);
    return rc;
}

static int take_index(struct opening *o, const struct ibx_snapshot_any *m, struct ibx_error *err)
{
    struct ibx_snapshot_reader *reader = o->reader;
    if (reader->links || !reader->has_manifest || !reader->manifest.hashed ||
        reader->map.next != reader->map.pages || m->offset != reader->index_got ||
        m->bytes.length % IBX_SNAPSHOT_HASH)
        return ibx_error_set(err, -EPROTO, "byte %u of its index came out of turn", m->offset);
    const int rc = begin_index(reader, err);
    if (rc)
        return rc;
    for (size_t at = 0; at < m->bytes.length; at += IBX_SNAPSHOT_HASH) {
        if (reader->index_next >= reader->index.pieces)
            return ibx_error_set(err, -EPROTO, "its index is longer than its map says");
        memcpy(reader->index.hashes + reader->index_next * IBX_SNAPSHOT_HASH, m->bytes.bytes + at,
               IBX_SNAPSHOT_HASH);
        reader->index_next =
            ibx_snapshot_piece_next(&reader->manifest, &reader->map, reader->index_next + 1);
    }
    reader->index_got += m->bytes.length;
    return 0;
}

/* Computes which pages of the table are not zero, and adds them to the map. */
static int finish_map(struct ibx_snapshot_reader *reader, struct ibx_error *err)
{
    struct ibx_page_map hashed;
    int rc = ibx_snapshot_map_init(&reader->manifest, &hashed, err);
    if (rc)
        return rc;
    ibx_page_map_set(&hashed, 0, ibx_snapshot_hashed_pages(&reader->manifest));
    ibx_page_map_keep(&reader->map, &hashed);
    ibx_snapshot_map_finish(&reader->manifest, &reader->map);
    ibx_page_map_fini(&hashed);
    return 0;
}

/* Checks map and index, which have come, against the manifest's digest. */
static int check_index(struct ibx_snapshot_reader *reader, struct ibx_error *err)
{
    uint8_t digest[IBX_SNAPSHOT_DIGEST];
    if (!reader->manifest.hashed)
        return 0;
    int rc = begin_index(reader, err);
    if (!rc && reader->index_next != reader->index.pieces)
        rc = ibx_error_set(err, -EPROTO, "it did not send its whole index");
    if (rc)
        return rc;
    rc = ibx_snapshot_index_digest(&reader->manifest, &reader->map, &reader->index, digest, err);
    if (!rc && memcmp(digest, reader->manifest.digest, sizeof(digest)))
        rc = ibx_error_set(err, -EBADMSG,
                           "the hashes of its pages, or the map of them, are not those that were "
                           "frozen: they were changed on their way here, or where they are served");
    return rc ? rc : finish_map(reader, err);
}

static int take_list(struct opening *o, const struct ibx_snapshot_any *m, struct ibx_error *err)
{
    struct ibx_snapshot_reader *reader = o->reader;
    if (!reader->has_manifest || reader->map.next != reader->map.pages)
        return ibx_error_set(err, -EPROTO, "it did not send its whole manifest and page map");
    if (memcmp(m->id, reader->manifest.id, sizeof(m->id)))
        return ibx_error_set(err, -ESTALE, "it serves another snapshot now: begin anew");
    const int rc = reader->links ? 0 : check_index(reader, err);
    if (rc)
        return rc;
    o->listed = true;
    o->regions = m->regions;
    o->asked = m->asked;
    return 0;
}

static int take(struct opening *o, const struct ibx_event *event, struct ibx_error *err)
{
    struct ibx_snapshot_any message;
    int rc = ibx_snapshot_decode(event->data, event->length, &message, err);
    if (rc)
        return rc;
    switch (message.type) {
    case IBX_SNAPSHOT_MANIFEST:
        return take_manifest(o, &message, err);
    case IBX_SNAPSHOT_MAP:
        if (!o->reader->has_manifest || o->reader->links)
            return ibx_error_set(err, -EPROTO, "a part of its page map came out of turn");
        return ibx_page_map_decode(&o->reader->map, message.bytes.bytes, message.bytes.length, err);
    case IBX_SNAPSHOT_INDEX:
        return take_index(o, &message, err);
    case IBX_SNAPSHOT_LIST:
        return take_list(o, &message, err);
    case IBX_SNAPSHOT_OPEN:
    case IBX_SNAPSHOT_ASK:
    case IBX_SNAPSHOT_PAGES:
    case IBX_SNAPSHOT_JOIN:
    case IBX_SNAPSHOT_GROUP:
    case IBX_SNAPSHOT_NO_GROUP:
    case IBX_SNAPSHOT_WANT:
    case IBX_SNAPSHOT_FED:
    case IBX_SNAPSHOT_HEARD:
        break;
    }
    return ibx_error_set(err, -EPROTO, "it sent message %d, which nobody expects here",
                         (int)message.type);
}

/* Extends the deadline after a message by the time that its bytes may take: a slow link does not
 * time out, but endless messages do. The extension is limited, so that a stalled server is noticed
 * soon. */
static void put_off(struct opening *o, size_t length)
{
    const uint64_t more = IBX_SNAPSHOT_SLOW_NS(length), most = ibx_now_ns() + o->timeout_ns + more;
    o->until_ns = o->until_ns + more < most ? o->until_ns + more : most;
}

static int take_messages(struct opening *o, struct ibx_error *err)
{
    bool came = false;
    int rc = 0;
    while (!rc && !o->listed) {
        struct ibx_event event;
        const int n = ibx_poll(o->conn, &event, 1);
        if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "it closed the connection%s: %s",
                                 came ? ""
                                      : " without an answer, as ib-migrate serve of an earlier "
                                        "release does (what it prints there says why)",
                                 ibx_conn_reason(o->conn));
        if (n && event.type == IBX_EVENT_MESSAGE) {
            came = true;
            rc = take(o, &event, err);
            put_off(o, event.length);
            ibx_message_release(o->conn, &event);
        } else if (!n) {
            ibx_wait(o->conn, 100);
        }
        rc = rc ? rc : check_end(o->reader, err);
        if (!rc && !o->listed && ibx_now_ns() >= o->until_ns)
            return ibx_error_set(err, -ETIMEDOUT, "it did not describe its snapshot in time");
    }
    return rc;
}

/* Waits for the REGION messages. Each extends the deadline, since the server may have to pin the
 * next region first. */
static int take_regions(struct ibx_page_reader *pages, struct opening *o, struct ibx_error *err)
{
    const uint32_t count = o->regions;
    int n, before = 0;
    while ((n = ibx_page_reader_regions(pages, err)) >= 0 && (uint32_t)n < count) {
        const uint64_t now = ibx_now_ns();
        if (n > before && o->until_ns < now + o->timeout_ns)
            o->until_ns = now + o->timeout_ns;
        before = n;
        const int rc = check_end(o->reader, err);
        if (rc)
            return rc;
        if (now >= o->until_ns)
            return ibx_error_set(err, -ETIMEDOUT, "it exposed %d of %u regions in time", n, count);
        ibx_wait(ibx_page_reader_conn(pages), 100);
    }
    if (n >= 0 && (uint32_t)n > count)
        return ibx_error_set(err, -EPROTO, "it exposes %d regions and announced %u", n, count);
    struct ibx_fault_reader unused;
    return n < 0 ? n : ibx_page_reader_arm(pages, 0, &unused, err);
}

/* Makes the page reader of a connection on which LIST has come. */
static int open_pages(struct ibx_snapshot_reader *reader, struct opening *o,
                      struct ibx_page_reader **pages, struct ibx_error *err)
{
    int rc = ibx_page_reader_create(o->conn, reader->blocks, reader->block_count, pages, err);
    if (!rc)
        rc = take_regions(*pages, o, err);
    if (!rc && !reader->links)
        rc = ibx_page_reader_covers(*pages, &reader->map, err);
    return rc;
}

static int open_link(struct ibx_snapshot_reader *reader, const char *uri,
                     const struct ibx_options *options, struct ibx_error *err)
{
    struct opening o = {.reader = reader};
    const struct ibx_snapshot_any open = {.type = IBX_SNAPSHOT_OPEN, .whole = !reader->links};
    struct link link = {NULL, NULL, NULL};
    int rc = ibx_connect(uri, options, &o.conn, err);
    if (rc)
        return rc;
    ibx_receive_ahead(o.conn);
    o.timeout_ns = options->timeout_ms * IBX_NS_PER_MS;
    o.until_ns = ibx_deadline_in_ms(options->timeout_ms);
    rc = ibx_snapshot_send(o.conn, &open, o.until_ns, err);
    if (!rc)
        rc = take_messages(&o, err);
    free(o.text);
    if (!rc && !o.asked)
        rc = open_pages(reader, &o, &link.pages, err);
    else if (!rc && !(link.asker = ibx_snapshot_asker_create(o.conn)))
        rc = ibx_error_set(err, -ENOMEM, "no memory to read pages");
    if (!rc)
        reader->link[reader->links++] = link;
    else if (link.pages)
        ibx_page_reader_destroy(link.pages);
    else
        ibx_close(o.conn);
    return rc ? ibx_error_prefix(err, rc, "the snapshot at %s", uri) : 0;
}

static struct ibx_conn *conn_of(const struct link *link)
{
    return link->asker ? ibx_snapshot_asker_conn(link->asker) : ibx_page_reader_conn(link->pages);
}

/* ------------------------------------------------------------ answers */

const struct ibx_snapshot_manifest *
ibx_snapshot_reader_manifest(const struct ibx_snapshot_reader *reader)
{
    return &reader->manifest;
}

const struct ibx_page_map *ibx_snapshot_reader_map(const struct ibx_snapshot_reader *reader)
{
    return &reader->map;
}

struct ibx_snapshot_index ibx_snapshot_reader_take_index(struct ibx_snapshot_reader *reader)
{
    const struct ibx_snapshot_index index = reader->index;
    reader->index = (struct ibx_snapshot_index){.hashes = NULL};
    return index;
}

const char *ibx_snapshot_reader_reason(const struct ibx_snapshot_reader *reader)
{
    const char *reason = "";
    for (unsigned i = 0; i < reader->links && !*reason; i++)
        reason = reader->link[i].asker ? ibx_snapshot_asker_reason(reader->link[i].asker)
                                       : ibx_page_reader_reason(reader->link[i].pages);
    return reason;
}

/* ------------------------------------------------------------ READs without an engine */

static int await_read(const struct ibx_snapshot_reader *reader, struct ibx_conn *conn,
                      uint64_t deadline, struct ibx_error *err)
{
    for (;;) {
        struct ibx_event event;
        const int n = ibx_poll(conn, &event, 1);
        if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
            return ibx_error_set(err, -ECONNRESET, "the snapshot's server is lost: %s",
                                 ibx_conn_reason(conn));
        if (n && event.type == IBX_EVENT_READ)
            return event.status ? ibx_error_set(err, event.status, "a READ failed: %s",
                                                strerror(-event.status))
                                : 0;
        if (n && event.type == IBX_EVENT_MESSAGE) {
            ibx_message_release(conn, &event);
            return ibx_error_set(err, -EPROTO,
                                 "the snapshot's server sent a message where pages "
                                 "are expected");
        }
        if (!n && ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT,
                                 "the snapshot's server is lost: " SNAPSHOT_SILENT);
        const int rc = check_end(reader, err);
        if (rc)
            return rc;
        if (!n)
            ibx_wait(conn, 100);
    }
}

/* Fetches bytes of pages that have data, within one region. */
static int fetch_part(struct ibx_snapshot_reader *reader, uint64_t at, uint8_t *to, size_t length,
                      struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(reader->fetch_ms);
    if (reader->link[0].asker)
        return ibx_snapshot_asker_fetch(reader->link[0].asker, at, to, (uint32_t)length, deadline,
                                        reader->ends, err);
    struct ibx_conn *conn = conn_of(&reader->link[0]);
    struct ibx_remote remote;
    int rc = reader->buffer
                 ? 0
                 : ibx_mr_allocate(conn, FETCH_BYTES, IBX_ACCESS_LOCAL, &reader->buffer, err);
    if (rc)
        return rc;
    if (ibx_page_reader_remote(reader->link[0].pages, at, length, &remote))
        return ibx_error_set(err, -EPROTO, "byte 0x%llx of the snapshot is not exposed",
                             (unsigned long long)at);
    void *buffer = ibx_mr_address(reader->buffer);
    rc = ibx_read(conn, reader->buffer, buffer, &remote, 0, length, 0, IBX_URGENT);
    if (rc)
        return ibx_error_set(err, rc, "a READ of %zu bytes cannot be posted: %s", length,
                             strerror(-rc));
    rc = await_read(reader, conn, deadline, err);
    if (!rc)
        memcpy(to, buffer, length);
    return rc;
}

/* How many of `length` bytes can be handled at once: all in zero pages, or all in one region. */
static size_t part_of(const struct ibx_snapshot_reader *reader, uint64_t at, size_t length)
{
    const uint64_t page = at / IBX_SNAPSHOT_PAGE, within = at % IBX_SNAPSHOT_PAGE;
    const uint64_t last = (at + length - 1) / IBX_SNAPSHOT_PAGE;
    const bool data = ibx_page_map_data(&reader->map, page);
    const uint64_t end = ibx_guest_bits_next(reader->map.bits, page, last + 1, !data);
    uint64_t part = (end - page) * IBX_SNAPSHOT_PAGE - within;
    struct ibx_remote remote;
    part = part < length ? part : length;
    part = part < FETCH_BYTES ? part : FETCH_BYTES;
    if (data && reader->link[0].pages &&
        ibx_page_reader_remote(reader->link[0].pages, at, (size_t)part, &remote) &&
        part > IBX_SNAPSHOT_PAGE - within)
        part = IBX_SNAPSHOT_PAGE - within;
    return (size_t)part;
}

int ibx_snapshot_reader_fetch(struct ibx_snapshot_reader *reader, unsigned block, uint64_t offset,
                              void *to, size_t length, struct ibx_error *err)
{
    uint8_t *out = to;
    if (block >= reader->block_count || offset > reader->blocks[block].size ||
        length > reader->blocks[block].size - offset)
        return ibx_error_set(err, -ERANGE, "%zu bytes at 0x%llx are not in block %u", length,
                             (unsigned long long)offset, block);
    const uint64_t first = reader->map.blocks[block].first;
    int rc = 0;
    while (!rc && length) {
        const uint64_t at = first * IBX_SNAPSHOT_PAGE + offset;
        const size_t part = part_of(reader, at, length);
        if (ibx_page_map_data(&reader->map, at / IBX_SNAPSHOT_PAGE))
            rc = fetch_part(reader, at, out, part, err);
        else
            memset(out, 0, part);
        out += part;
        offset += part;
        length -= part;
    }
    return rc;
}

/* ------------------------------------------------------------ hashes */

int ibx_snapshot_reader_fetch_hashes(struct ibx_snapshot_reader *reader,
                                     struct ibx_snapshot_checker *checker, uint64_t page,
                                     uint64_t pages, struct ibx_error *err)
{
    const unsigned block = reader->manifest.ram_count + 1;
    const uint32_t each = ibx_snapshot_checker_piece_pages(checker),
                   piece = each * IBX_SNAPSHOT_HASH;
    const uint64_t end = (page + pages - 1) / each + 1;
    uint8_t bytes[IBX_SNAPSHOT_PAGE];
    uint64_t at = page / each;
    int rc = 0;
    while (!rc && (at = ibx_snapshot_checker_lacks(checker, at, end)) < end) {
        const uint64_t most = sizeof(bytes) / piece, count = end - at < most ? end - at : most;
        rc =
            ibx_snapshot_reader_fetch(reader, block, at * piece, bytes, (size_t)count * piece, err);
        ibx_snapshot_checker_note(checker, rc ? 0 : count * piece);
        for (uint64_t i = 0; !rc && i < count; i++)
            rc = ibx_snapshot_checker_keep(checker, 0, at + i, bytes + i * piece, err);
        at += count;
    }
    return rc;
}

/* ------------------------------------------------------------ opening */

int ibx_snapshot_reader_open(const char *uri, const struct ibx_options *options, unsigned links,
                             struct ibx_snapshot_reader **out, struct ibx_error *err)
{
    struct ibx_options own = *options;
    if (!links || links > IBX_MIGRATE_LINKS_MAX)
        return ibx_error_set(err, -EINVAL, "there cannot be %u page connections: use 1 to %u",
                             links, IBX_MIGRATE_LINKS_MAX);
    struct ibx_snapshot_reader *reader = calloc(1, sizeof(*reader));
    if (!reader)
        return ibx_error_set(err, -ENOMEM, "no memory for a reader");
    reader->fetch_ms = FETCH_TIMES * options->timeout_ms;
    reader->ends = options->ends;
    own.message = IBX_MIGRATE_MESSAGE;
    snprintf(own.purpose, sizeof(own.purpose), IBX_SNAPSHOT_PURPOSE);
    int rc = 0;
    while (!rc && reader->links < links)
        rc = open_link(reader, uri, &own, err);
    if (rc)
        ibx_snapshot_reader_close(reader);
    else
        *out = reader;
    return rc;
}

/* ------------------------------------------------------------ into an engine */

static int add_hashes(struct ibx_snapshot_reader *reader, unsigned i,
                      struct ibx_snapshot_checker *checker, size_t buffer_bytes,
                      struct ibx_fault_reader *as, struct ibx_error *err)
{
    uint8_t *buffer = as->buffer ? (uint8_t *)as->buffer + buffer_bytes : NULL;
    struct link *link = &reader->link[i];
    ibx_snapshot_table_reader_destroy(link->hashes);
    link->hashes = ibx_snapshot_table_reader_create(as, buffer, checker, i, &reader->manifest);
    if (!link->hashes)
        return ibx_error_set(err, -ENOMEM, "no memory to read pages");
    ibx_snapshot_table_reader_serve(link->hashes, as);
    return 0;
}

int ibx_snapshot_reader_serve(struct ibx_snapshot_reader *reader,
                              struct ibx_snapshot_checker *checker, size_t buffer_bytes,
                              struct ibx_fault_reader *as, struct ibx_error *err)
{
    const size_t more = checker ? IBX_SNAPSHOT_TABLE_BUFFER : 0;
    int rc = 0;
    for (unsigned i = 0; !rc && i < reader->links; i++) {
        if (reader->link[i].asker)
            ibx_snapshot_asker_serve(reader->link[i].asker, &as[i]);
        else
            rc = ibx_page_reader_serve(reader->link[i].pages, buffer_bytes + more, &as[i], err);
        if (!rc && checker)
            rc = add_hashes(reader, i, checker, buffer_bytes, &as[i], err);
    }
    return rc;
}

void ibx_snapshot_reader_close(struct ibx_snapshot_reader *reader)
{
    if (!reader)
        return;
    for (unsigned i = 0; i < reader->links; i++) {
        ibx_page_reader_destroy(reader->link[i].pages);
        ibx_snapshot_asker_destroy(reader->link[i].asker);
        ibx_snapshot_table_reader_destroy(reader->link[i].hashes);
    }
    ibx_page_map_fini(&reader->map);
    ibx_snapshot_index_fini(&reader->index);
    ibx_snapshot_manifest_fini(&reader->manifest);
    free(reader);
}
