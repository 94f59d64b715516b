/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A table of fields for each message encodes and decodes it. The table checks single values, and
 * check_...() checks them against each other, in both directions. So what encodes also decodes.
 */
#include "migrate/channel/protocol.h"

#include "common/wire.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX ((1ull << 60) - 1) /* of bytes, counts and durations, so that sums fit */
#define PAGES_MAX (1ull << 40)
#define PAGE_MIN  4096u

/* ------------------------------------------------------------ fields */

enum field_kind {
    FIELD_END,
    FIELD_HEAD,   /* magic and version; nothing in the struct */
    FIELD_UINT,   /* as long on the wire as in the struct */
    FIELD_BYTES,  /* a fixed number; min 1: not all of them are 0 */
    FIELD_TEXT,   /* a string; min 1: not empty */
    FIELD_REMOTE, /* struct ibx_remote */
    FIELD_LIST,   /* u16 count, then that many structs */
    FIELD_REST,   /* struct ibx_bytes: all that is left, at least one */
};

struct field {
    enum field_kind kind;
    const char *name;  /* in errors */
    size_t at, size;   /* in its struct; LIST: of the array and of one item */
    uint64_t min, max; /* of a UINT or a LIST's count */
    const struct field *items;
    size_t count_at; /* LIST */
};

#define SIZE_OF(type, member) sizeof(((struct type *)NULL)->member)
#define UINT(type, member, name, min, max)                                                         \
    {                                                                                              \
        FIELD_UINT, (name), offsetof(struct type, member), SIZE_OF(type, member), (min), (max),    \
            NULL, 0                                                                                \
    }
#define PLAIN(kind, type, member, name, min)                                                       \
    {                                                                                              \
        (kind), (name), offsetof(struct type, member), SIZE_OF(type, member), (min), 0, NULL, 0    \
    }
#define BYTES(type, member, name, min) PLAIN(FIELD_BYTES, type, member, name, min)
#define TEXT(type, member, name, min)  PLAIN(FIELD_TEXT, type, member, name, min)
#define LIST(type, array, count, name, max, items)                                                 \
    {                                                                                              \
        FIELD_LIST, (name), offsetof(struct type, array), sizeof(((struct type *)NULL)->array[0]), \
            0, (max), (items), offsetof(struct type, count)                                        \
    }

static const struct field block_fields[] = {
    TEXT(ibx_migrate_block, id, "the id of a guest RAM block", 1),
    UINT(ibx_migrate_block, size, "the size of a guest RAM block", 1, BYTES_MAX),
    UINT(ibx_migrate_block, page_size, "the page size", 0, UINT64_MAX),
    UINT(ibx_migrate_block, file, "the file", 0, UINT64_MAX),
    {0},
};

static const struct field hello_fields[] = {
    {.kind = FIELD_HEAD},
    UINT(ibx_migrate_hello, purpose, "the purpose", IBX_PURPOSE_MOVE, IBX_PURPOSE_CONFIRM),
    BYTES(ibx_migrate_hello, id, "the id", 0),
    UINT(ibx_migrate_hello, epoch, "the epoch", 0, UINT64_MAX),
    UINT(ibx_migrate_hello, links_least, "the least number of page connections", 0,
         IBX_MIGRATE_LINKS_MAX),
    UINT(ibx_migrate_hello, links, "the number of page connections", 0, IBX_MIGRATE_LINKS_MAX),
    UINT(ibx_migrate_hello, version.major, "QEMU's version", 0, UINT32_MAX),
    UINT(ibx_migrate_hello, version.minor, "QEMU's version", 0, UINT32_MAX),
    UINT(ibx_migrate_hello, version.micro, "QEMU's version", 0, UINT32_MAX),
    TEXT(ibx_migrate_hello, machine, "the machine type", 0),
    TEXT(ibx_migrate_hello, uuid, "the UUID", 0),
    TEXT(ibx_migrate_hello, name, "the VM's name", 0),
    LIST(ibx_migrate_hello, blocks, block_count, "the number of guest RAM blocks",
         IBX_GUEST_BLOCKS_MAX, block_fields),
    TEXT(ibx_migrate_hello, host, "the host's name", 0),
    UINT(ibx_migrate_hello, verify, "whether to verify", 0, 1),
    UINT(ibx_migrate_hello, disks_differ, "whether disks differ on purpose", 0, 1),
    UINT(ibx_migrate_hello, runs, "whether the VM runs", 0, 1),
    UINT(ibx_migrate_hello, description_length, "the length of the description", 0,
         IBX_MIGRATE_DESCRIPTION_MAX),
    UINT(ibx_migrate_hello, warm, "whether to fetch before the stop", 0, 1),
    UINT(ibx_migrate_hello, borrow, "whether to borrow", IBX_BORROW_NOT, IBX_BORROW_FILL),
    BYTES(ibx_migrate_hello, base, "the base", 0),
    {0},
};

static const struct field reason_fields[] = {
    {.kind = FIELD_TEXT, .name = "a reason", .size = IBX_ERROR_MAX, .min = 1},
    {0},
};

static const struct field answer_fields[] = {
    UINT(ibx_migrate_answer, accepted, "the acceptance", 0, 1),
    UINT(ibx_migrate_answer, state, "the state", IBX_ANSWER_NONE, IBX_ANSWER_ENDED),
    UINT(ibx_migrate_answer, links, "the number of page connections", 0, IBX_MIGRATE_LINKS_MAX),
    TEXT(ibx_migrate_answer, host, "the host's name", 0),
    LIST(ibx_migrate_answer, reasons, count, "the number of reasons", IBX_MIGRATE_REASONS_MAX,
         reason_fields),
    UINT(ibx_migrate_answer, verify, "whether to verify", 0, 1),
    UINT(ibx_migrate_answer, warm, "whether to fetch before the stop", 0, 1),
    LIST(ibx_migrate_answer, notes, note_count, "the number of notes", IBX_MIGRATE_REASONS_MAX,
         reason_fields),
    {0},
};

static const struct field join_fields[] = {
    {.kind = FIELD_HEAD},
    BYTES(ibx_migrate_join, id, "the id", 1),
    UINT(ibx_migrate_join, epoch, "the epoch", 1, UINT64_MAX),
    UINT(ibx_migrate_join, link, "the page connection", 0, IBX_MIGRATE_LINKS_MAX - 1),
    {0},
};

static const struct field region_fields[] = {
    UINT(ibx_migrate_region, block, "the guest RAM block", 0, IBX_GUEST_BLOCKS_MAX - 1),
    UINT(ibx_migrate_region, offset, "the offset", 0, BYTES_MAX),
    UINT(ibx_migrate_region, length, "the length", 1, BYTES_MAX),
    PLAIN(FIELD_REMOTE, ibx_migrate_region, remote, "the remote", 0),
    {0},
};

static const struct field bytes_fields[] = {{.kind = FIELD_REST}, {0}};

static const struct field digest_fields[] = {
    UINT(ibx_migrate_digest, first, "the first page", 0, PAGES_MAX),
    {.kind = FIELD_REST, .at = offsetof(struct ibx_migrate_digest, entries)},
    {0},
};

static const struct field map_end_fields[] = {
    UINT(ibx_migrate_map_end, pages, "the number of pages", 1, PAGES_MAX),
    UINT(ibx_migrate_map_end, data_pages, "the number of data pages", 0, PAGES_MAX),
    UINT(ibx_migrate_map_end, regions, "the number of regions", 0, UINT32_MAX),
    BYTES(ibx_migrate_map_end, hash, "the hash", 0),
    {0},
};

static const struct field round_fields[] = {
    UINT(ibx_migrate_round, number, "the number of the round", 1, UINT32_MAX),
    UINT(ibx_migrate_round, kind, "the kind of round", IBX_ROUND_FETCH, IBX_ROUND_LAST),
    UINT(ibx_migrate_round, pages, "the number of pages", 0, PAGES_MAX),
    UINT(ibx_migrate_round, regions, "the number of regions", 0, UINT32_MAX),
    {0},
};

static const struct field round_done_fields[] = {
    UINT(ibx_migrate_round_done, number, "the number of the round", 1, UINT32_MAX),
    UINT(ibx_migrate_round_done, bytes, "the number of bytes", 0, BYTES_MAX),
    UINT(ibx_migrate_round_done, ns, "the duration", 0, BYTES_MAX),
    {0},
};

static const struct field state_end_fields[] = {
    {FIELD_UINT, "the size of the device state", 0, 8, 1, BYTES_MAX, NULL, 0}, {0}};
static const struct field epoch_fields[] = {{FIELD_UINT, "the epoch", 0, 8, 1, UINT64_MAX, NULL, 0},
                                            {0}};
static const struct field commit_fields[] = {
    UINT(ibx_migrate_commit, epoch, "the epoch", 1, UINT64_MAX),
    UINT(ibx_migrate_commit, runs, "whether the VM is to run", 0, 1),
    {0},
};
static const struct field status_fields[] = {
    {.kind = FIELD_TEXT, .name = "the status", .size = IBX_MIGRATE_STATUS, .min = 1}, {0}};
static const struct field abort_fields[] = {
    {.kind = FIELD_TEXT, .name = "the reason", .size = IBX_ERROR_MAX, .min = 1}, {0}};

#define PROGRESS(type, before)                                                                     \
    TEXT(type, before status, "the status", 0),                                                    \
        UINT(type, before pages, "the number of pages", 1, PAGES_MAX),                             \
        UINT(type, before present, "the number of pages present", 0, PAGES_MAX),                   \
        UINT(type, before bytes, "the number of bytes", 0, BYTES_MAX),                             \
        UINT(type, before faults, "the number of faults", 0, BYTES_MAX),                           \
        UINT(type, before fault_p50_ns, "the median latency", 0, BYTES_MAX),                       \
        UINT(type, before fault_p99_ns, "the 99th percentile", 0, BYTES_MAX),                      \
        UINT(type, before fault_max_ns, "the longest latency", 0, BYTES_MAX)

static const struct field progress_fields[] = {PROGRESS(ibx_migrate_progress, ), {0}};

static const struct field totals_fields[] = {
    UINT(ibx_migrate_totals, pages, "the number of pages", 1, PAGES_MAX),
    UINT(ibx_migrate_totals, zero_pages, "the number of zero pages", 0, PAGES_MAX),
    UINT(ibx_migrate_totals, fetched_pages, "the number of fetched pages", 0, PAGES_MAX),
    UINT(ibx_migrate_totals, discarded_pages, "the number of discarded pages", 0, PAGES_MAX),
    BYTES(ibx_migrate_totals, hash, "the hash", 0),
    PROGRESS(ibx_migrate_totals, progress.),
    {0},
};

/* ------------------------------------------------------------ fields against each other */

static bool any_set(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i])
            return true;
    return false;
}

static bool uuid_form(const char *uuid)
{
    for (unsigned i = 0; i < 36; i++) {
        bool dash = i == 8 || i == 13 || i == 18 || i == 23;
        if (dash ? uuid[i] != '-' : !isxdigit((unsigned char)uuid[i]))
            return false;
    }
    return !uuid[36];
}

/* A CHECK also describes RAM that cannot be moved, whose page size only QEMU knows: 0. */
static int check_block(const struct ibx_migrate_hello *hello, unsigned at, uint64_t *total,
                       struct ibx_error *err)
{
    const struct ibx_migrate_block *block = &hello->blocks[at];
    const bool unknown = hello->purpose == IBX_PURPOSE_CHECK && !block->page_size;
    for (unsigned i = 0; i < at; i++) {
        if (!strcmp(block->id, hello->blocks[i].id))
            return ibx_error_set(err, -EPROTO, "guest RAM %s is there twice", block->id);
    }
    if (!unknown &&
        (block->page_size < PAGE_MIN || (block->page_size & (block->page_size - 1)) != 0))
        return ibx_error_set(err, -EPROTO, "guest RAM %s has pages of %" PRIu64 " bytes", block->id,
                             block->page_size);
    if (!unknown && block->size % block->page_size)
        return ibx_error_set(err, -EPROTO,
                             "guest RAM %s has %" PRIu64 " bytes, not whole pages of %" PRIu64,
                             block->id, block->size, block->page_size);
    if (block->size > BYTES_MAX - *total)
        return ibx_error_set(err, -EPROTO, "guest RAM up to %s is 2^60 bytes or more", block->id);
    *total += block->size;
    return 0;
}

static int check_hello(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_hello *hello = content;
    const bool moves = hello->purpose == IBX_PURPOSE_MOVE || hello->purpose == IBX_PURPOSE_RESUME;
    /* A query comes from a source whose QEMU may be gone: it describes no VM. */
    const bool query = !moves && hello->purpose != IBX_PURPOSE_CHECK;
    uint64_t total = 0;
    int rc = 0;
    if (hello->purpose != IBX_PURPOSE_CHECK && !any_set(hello->id, sizeof(hello->id)))
        return ibx_error_set(err, -EPROTO, "the id is all zeros");
    if (!hello->epoch && moves)
        return ibx_error_set(err, -EPROTO, "the epoch is 0: at least 1");
    if (hello->links_least > hello->links || (!hello->links_least && moves))
        return ibx_error_set(err, -EPROTO, "%u to %u page connections: it must be 1 to %u",
                             hello->links_least, hello->links, IBX_MIGRATE_LINKS_MAX);
    if (hello->description_length && query)
        return ibx_error_set(err, -EPROTO, "a query describes no VM");
    if (!hello->machine[0] && !query)
        return ibx_error_set(err, -EPROTO, "the VM has no machine type");
    if (!uuid_form(hello->uuid) && (hello->uuid[0] || !query))
        return ibx_error_set(err, -EPROTO, "\"%s\" is not a UUID", hello->uuid);
    if (!hello->block_count && !query)
        return ibx_error_set(err, -EPROTO, "the number of guest RAM blocks is 0: at least 1");
    for (unsigned i = 0; !rc && i < hello->block_count; i++)
        rc = check_block(hello, i, &total, err);
    return rc;
}

static int check_answer(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_answer *answer = content;
    if (answer->accepted == !answer->count)
        return 0;
    return ibx_error_set(err, -EPROTO,
                         answer->accepted ? "it accepts, but has reasons"
                                          : "it refuses without a reason");
}

/* The page reader checks that it lies in the block. */
static int check_region(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_region *region = content;
    if (region->length % PAGE_MIN || region->offset % PAGE_MIN ||
        region->length > BYTES_MAX + 1 - region->offset)
        return ibx_error_set(err, -EPROTO, "bytes %" PRIu64 " to +%" PRIu64 " are not whole pages",
                             region->offset, region->length);
    if (region->remote.length != region->length ||
        region->remote.address > UINT64_MAX - region->length)
        return ibx_error_set(err, -EPROTO,
                             "%" PRIu64 " bytes at %#" PRIx64 " shall hold %" PRIu64 " bytes",
                             region->remote.length, region->remote.address, region->length);
    return 0;
}

static int check_part(uint64_t pages, uint64_t part, struct ibx_error *err)
{
    return part <= pages
               ? 0
               : ibx_error_set(err, -EPROTO, "%" PRIu64 " of %" PRIu64 " pages", part, pages);
}

static int check_map_end(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_map_end *end = content;
    return check_part(end->pages, end->data_pages, err);
}

static int check_progress(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_progress *progress = content;
    return check_part(progress->pages, progress->present, err);
}

static int check_totals(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_totals *totals = content;
    const uint64_t sum = totals->zero_pages + totals->fetched_pages + totals->discarded_pages;
    if (sum != totals->pages || totals->progress.pages != totals->pages)
        return ibx_error_set(err, -EPROTO,
                             "%" PRIu64 " zero, %" PRIu64 " fetched and %" PRIu64
                             " discarded pages do not make %" PRIu64,
                             totals->zero_pages, totals->fetched_pages, totals->discarded_pages,
                             totals->pages);
    return check_progress(&totals->progress, err);
}

static int check_digest(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_digest *digest = content;
    if (digest->first % IBX_MIGRATE_DIGEST_PAGES ||
        digest->entries.length % IBX_MIGRATE_DIGEST_ENTRY)
        return ibx_error_set(
            err, -EPROTO, "%zu bytes of digests from page %" PRIu64 " on are not of whole ranges",
            digest->entries.length, digest->first);
    return 0;
}

/* ------------------------------------------------------------ messages */

static const struct message {
    const char *name;
    const struct field *fields;
    int (*check)(const void *content, struct ibx_error *err);
    size_t heap; /* bytes of the struct that the message points to */
} messages[] = {
    [IBX_MIGRATE_HELLO] = {"HELLO", hello_fields, check_hello, sizeof(struct ibx_migrate_hello)},
    [IBX_MIGRATE_ANSWER] = {"ANSWER", answer_fields, check_answer,
                            sizeof(struct ibx_migrate_answer)},
    [IBX_MIGRATE_JOIN] = {"JOIN", join_fields, NULL, 0},
    [IBX_MIGRATE_REGION] = {"REGION", region_fields, check_region, 0},
    [IBX_MIGRATE_READY] = {"READY", NULL, NULL, 0},
    [IBX_MIGRATE_STATE] = {"STATE", bytes_fields, NULL, 0},
    [IBX_MIGRATE_MAP] = {"MAP", bytes_fields, NULL, 0},
    [IBX_MIGRATE_MAP_END] = {"MAP_END", map_end_fields, check_map_end, 0},
    [IBX_MIGRATE_STATE_END] = {"STATE_END", state_end_fields, NULL, 0},
    [IBX_MIGRATE_LOADED] = {"LOADED", NULL, NULL, 0},
    [IBX_MIGRATE_COMMIT] = {"COMMIT", commit_fields, NULL, 0},
    [IBX_MIGRATE_RUNNING] = {"RUNNING", status_fields, NULL, 0},
    [IBX_MIGRATE_PROGRESS] = {"PROGRESS", progress_fields, check_progress, 0},
    [IBX_MIGRATE_COMPLETE] = {"COMPLETE", totals_fields, check_totals, 0},
    [IBX_MIGRATE_CONFIRM] = {"CONFIRM", epoch_fields, NULL, 0},
    [IBX_MIGRATE_ABORT] = {"ABORT", abort_fields, NULL, 0},
    [IBX_MIGRATE_CONFIRMED] = {"CONFIRMED", NULL, NULL, 0},
    [IBX_MIGRATE_DIGEST] = {"DIGEST", digest_fields, check_digest, 0},
    [IBX_MIGRATE_BROKEN] = {"BROKEN", abort_fields, NULL, 0},
    [IBX_MIGRATE_DESCRIPTION] = {"DESCRIPTION", bytes_fields, NULL, 0},
    [IBX_MIGRATE_ENDED] = {"ENDED", status_fields, NULL, 0},
    [IBX_MIGRATE_ROUND] = {"ROUND", bytes_fields, NULL, 0},
    [IBX_MIGRATE_ROUND_END] = {"ROUND_END", round_fields, NULL, 0},
    [IBX_MIGRATE_ROUND_DONE] = {"ROUND_DONE", round_done_fields, NULL, 0},
    [IBX_MIGRATE_HAVE] = {"HAVE", bytes_fields, NULL, 0},
    [IBX_MIGRATE_HAVE_END] = {"HAVE_END", map_end_fields, check_map_end, 0},
};

static const struct message *message_of(unsigned type)
{
    return type >= IBX_MIGRATE_HELLO && type <= IBX_MIGRATE_HAVE_END ? &messages[type] : NULL;
}

const char *ibx_migrate_message_name(enum ibx_migrate_message type)
{
    const struct message *kind = message_of((unsigned)type);
    return kind ? kind->name : "an unknown message";
}

const char *ibx_answer_state_name(enum ibx_answer_state state)
{
    static const char *const names[] = {"none",     "waiting",  "running",
                                        "complete", "given up", "ended"};
    const unsigned at = (unsigned)state - IBX_ANSWER_NONE;
    return at < sizeof(names) / sizeof(names[0]) ? names[at] : "unknown";
}

/* ------------------------------------------------------------ to bytes */

static int check_range(const struct field *field, uint64_t value, struct ibx_error *err)
{
    if (value >= field->min && value <= field->max)
        return 0;
    const bool low = value < field->min;
    return ibx_error_set(err, -EPROTO, "%s is %" PRIu64 ": at %s %" PRIu64, field->name, value,
                         low ? "least" : "most", low ? field->min : field->max);
}

/* What `min` asks of bytes and texts, which are in the struct. */
static int check_content(const struct field *field, const uint8_t *at, struct ibx_error *err)
{
    if (!field->min || any_set(at, field->kind == FIELD_TEXT ? 1 : field->size))
        return 0;
    return ibx_error_set(err, -EPROTO, "%s is %s", field->name,
                         field->kind == FIELD_TEXT ? "empty" : "all zeros");
}

static uint64_t load(const void *at, size_t size)
{
    return size == 1   ? *(const uint8_t *)at
           : size == 2 ? *(const uint16_t *)at
           : size == 4 ? *(const uint32_t *)at
                       : *(const uint64_t *)at;
}

static void store(void *at, size_t size, uint64_t value)
{
    if (size == 1)
        *(uint8_t *)at = (uint8_t)value;
    else if (size == 2)
        *(uint16_t *)at = (uint16_t)value;
    else if (size == 4)
        *(uint32_t *)at = (uint32_t)value;
    else
        *(uint64_t *)at = value;
}

static int put_fields(struct ibx_writer *w, const struct field *field, const uint8_t *content)
{
    int rc = 0;
    for (; field && field->kind && !rc; field++) {
        const uint8_t *at = content + field->at;
        switch (field->kind) {
        case FIELD_HEAD:
            ibx_put_u32(w, IBX_MIGRATE_MAGIC);
            ibx_put_u16(w, IBX_MIGRATE_VERSION);
            break;
        case FIELD_UINT:
            rc = check_range(field, load(at, field->size), NULL);
            ibx_put_uint(w, load(at, field->size), (unsigned)field->size);
            break;
        case FIELD_BYTES:
            rc = check_content(field, at, NULL);
            ibx_put_bytes(w, at, field->size);
            break;
        case FIELD_TEXT:
            rc = check_content(field, at, NULL);
            ibx_put_string(w, (const char *)at);
            break;
        case FIELD_REMOTE:
            ibx_remote_put(w, (const struct ibx_remote *)(const void *)at);
            break;
        case FIELD_LIST: {
            const uint64_t count = load(content + field->count_at, 2);
            rc = check_range(field, count, NULL);
            ibx_put_u16(w, (uint16_t)count);
            for (uint64_t i = 0; !rc && i < count; i++)
                rc = put_fields(w, field->items, at + i * field->size);
            break;
        }
        default: {
            const struct ibx_bytes *rest = (const void *)at;
            rc = rest->length ? 0 : -EPROTO;
            ibx_put_bytes(w, rest->bytes, rest->length);
        }
        }
    }
    return rc;
}

static const void *content_of(const struct ibx_migrate_any *message)
{
    return message->type == IBX_MIGRATE_HELLO    ? (const void *)message->is.hello
           : message->type == IBX_MIGRATE_ANSWER ? (const void *)message->is.answer
                                                 : (const void *)&message->is;
}

ssize_t ibx_migrate_encode(const struct ibx_migrate_any *message, void *out, size_t size)
{
    const struct message *kind = message_of((unsigned)message->type);
    struct ibx_writer w =
        ibx_writer_of(out, size < IBX_MIGRATE_MESSAGE ? size : IBX_MIGRATE_MESSAGE);
    if (!kind)
        return -EINVAL;
    ibx_put_u8(&w, (uint8_t)message->type);
    if (put_fields(&w, kind->fields, content_of(message)) ||
        (kind->check && kind->check(content_of(message), NULL)))
        return -EINVAL;
    return w.failed ? -EMSGSIZE : (ssize_t)w.length;
}

/* ------------------------------------------------------------ and back */

static int get_head(struct ibx_reader *r, struct ibx_error *err)
{
    const uint32_t magic = ibx_get_u32(r);
    const uint16_t version = ibx_get_u16(r);
    if (r->failed)
        return 0; /* too short, like any other */
    if (magic != IBX_MIGRATE_MAGIC)
        return ibx_error_set(err, -EPROTO, "the peer does not speak ib-migrate");
    if (version != IBX_MIGRATE_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "the peer speaks version %u of the protocol of ib-migrate, this is "
                             "version %u: install the same ibx on both hosts",
                             version, IBX_MIGRATE_VERSION);
    return 0;
}

/* A message that is too short latches in the reader; an error is a bad value. */
static int get_fields(struct ibx_reader *r, const struct field *field, uint8_t *content,
                      struct ibx_error *err)
{
    int rc = 0;
    for (; field && field->kind && !rc && !r->failed; field++) {
        uint8_t *at = content + field->at;
        switch (field->kind) {
        case FIELD_HEAD:
            rc = get_head(r, err);
            break;
        case FIELD_UINT: {
            const uint64_t value = ibx_get_uint(r, (unsigned)field->size);
            rc = r->failed ? 0 : check_range(field, value, err);
            if (!rc)
                store(at, field->size, value);
            break;
        }
        case FIELD_BYTES: {
            const uint8_t *bytes = ibx_get_bytes(r, field->size);
            if (bytes)
                memcpy(at, bytes, field->size);
            rc = r->failed ? 0 : check_content(field, at, err);
            break;
        }
        case FIELD_TEXT:
            ibx_get_string(r, (char *)at, field->size);
            ibx_text_sanitize((char *)at);
            rc = r->failed ? 0 : check_content(field, at, err);
            break;
        case FIELD_REMOTE:
            ibx_remote_get(r, (struct ibx_remote *)(void *)at);
            break;
        case FIELD_LIST: {
            const uint16_t count = ibx_get_u16(r);
            rc = r->failed ? 0 : check_range(field, count, err);
            store(content + field->count_at, 2, count);
            for (unsigned i = 0; !rc && i < count; i++)
                rc = get_fields(r, field->items, at + i * field->size, err);
            break;
        }
        default: {
            struct ibx_bytes *rest = (void *)at;
            rest->length = ibx_reader_left(r);
            rest->bytes = ibx_get_bytes(r, rest->length);
            rc = rest->length ? 0 : ibx_error_set(err, -EPROTO, "it is empty");
        }
        }
    }
    return rc;
}

static int get_message(struct ibx_reader *r, struct ibx_migrate_any *message, struct ibx_error *err)
{
    const struct message *kind = message_of((unsigned)message->type);
    if (!kind)
        return ibx_error_set(err, -EPROTO, "message type %u is not known", (unsigned)message->type);
    void *content = kind->heap ? calloc(1, kind->heap) : &message->is;
    if (!content)
        return ibx_error_set(err, -ENOMEM, "no memory for %s", kind->name);
    if (message->type == IBX_MIGRATE_HELLO)
        message->is.hello = content;
    if (message->type == IBX_MIGRATE_ANSWER)
        message->is.answer = content;
    int rc = get_fields(r, kind->fields, content, err);
    if (!rc && r->failed)
        rc =
            ibx_error_set(err, -EPROTO, "it is cut short, or a field of it is too long or no text");
    if (!rc && kind->check)
        rc = kind->check(content, err);
    if (!rc && ibx_reader_left(r))
        rc = ibx_error_set(err, -EPROTO, "%zu bytes follow its end", ibx_reader_left(r));
    return rc;
}

int ibx_migrate_decode(const void *data, size_t length, struct ibx_migrate_any *message,
                       struct ibx_error *err)
{
    struct ibx_reader r = ibx_reader_of(data, length);
    struct ibx_migrate_any found;
    if (!length || length > IBX_MIGRATE_MESSAGE)
        return ibx_error_set(err, -EPROTO, "a message of %zu bytes: it must be 1 to %u", length,
                             IBX_MIGRATE_MESSAGE);
    memset(&found, 0, sizeof(found));
    found.type = (enum ibx_migrate_message)ibx_get_u8(&r);
    int rc = get_message(&r, &found, err);
    if (!rc) {
        *message = found;
        return 0;
    }
    if (rc == -EPROTO)
        ibx_error_prefix(err, rc, "%s from the peer is not valid",
                         ibx_migrate_message_name(found.type));
    ibx_migrate_message_free(&found);
    return rc;
}

void ibx_migrate_message_free(struct ibx_migrate_any *message)
{
    if (message->type == IBX_MIGRATE_HELLO && message->is.hello)
        free(message->is.hello->description);
    if (message->type == IBX_MIGRATE_HELLO || message->type == IBX_MIGRATE_ANSWER)
        free((void *)(uintptr_t)content_of(message));
    memset(message, 0, sizeof(*message));
}

/* ------------------------------------------------------------ the VM in a HELLO */

void ibx_migrate_host(char *host, size_t size)
{
    if (gethostname(host, size - 1) || !host[0])
        snprintf(host, size, "unnamed");
    host[size - 1] = '\0';
}

uint16_t ibx_migrate_describe_blocks(struct ibx_migrate_block blocks[IBX_GUEST_BLOCKS_MAX],
                                     const struct ibx_guest_ram *ram)
{
    const size_t count = ram->count < IBX_GUEST_BLOCKS_MAX ? ram->count : IBX_GUEST_BLOCKS_MAX;
    memset(blocks, 0, IBX_GUEST_BLOCKS_MAX * sizeof(*blocks));
    for (size_t i = 0; i < count; i++) {
        memcpy(blocks[i].id, ram->blocks[i].id, sizeof(blocks[i].id));
        blocks[i].size = ram->blocks[i].size;
        blocks[i].page_size = ram->blocks[i].page_size;
        blocks[i].file = ram->blocks[i].file;
    }
    return (uint16_t)count;
}

void ibx_migrate_hello_describe(struct ibx_migrate_hello *hello, const struct ibx_guest_ram *ram)
{
    ibx_migrate_host(hello->host, sizeof(hello->host));
    hello->version = ram->version;
    memcpy(hello->machine, ram->machine, sizeof(hello->machine));
    memcpy(hello->uuid, ram->uuid, sizeof(hello->uuid));
    memcpy(hello->name, ram->name, sizeof(hello->name));
    hello->block_count = ibx_migrate_describe_blocks(hello->blocks, ram);
}

int ibx_migrate_hello_ram(const struct ibx_migrate_hello *hello, struct ibx_guest_ram *ram)
{
    struct ibx_guest_ram found = {.version = hello->version, .count = hello->block_count};
    memcpy(found.machine, hello->machine, sizeof(found.machine));
    memcpy(found.uuid, hello->uuid, sizeof(found.uuid));
    memcpy(found.name, hello->name, sizeof(found.name));
    found.blocks = calloc(found.count ? found.count : 1, sizeof(*found.blocks));
    if (!found.blocks)
        return -ENOMEM;
    for (unsigned i = 0; i < found.count; i++) {
        memcpy(found.blocks[i].id, hello->blocks[i].id, sizeof(found.blocks[i].id));
        found.blocks[i].size = hello->blocks[i].size;
        found.blocks[i].page_size = hello->blocks[i].page_size;
        found.blocks[i].file = hello->blocks[i].file;
        found.blocks[i].shared = hello->blocks[i].page_size != 0;
        found.blocks[i].fd = -1;
        found.bytes += hello->blocks[i].size;
    }
    *ram = found;
    return 0;
}
