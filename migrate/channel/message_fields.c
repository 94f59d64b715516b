/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The messages: a table of fields for each. The tables bound single values, and check_...() compare
 * values with each other; both when encoding and when decoding.
 */
#include "migrate/channel/fields.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define BYTES_MAX ((1ull << 60) - 1) /* of bytes, counts, epochs, durations, so that sums fit */
#define PAGES_MAX (1ull << 40)
#define PAGE_MIN  4096u

/* ------------------------------------------------------------ fields */

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
    UINT(ibx_migrate_hello, epoch, "the epoch", 0, BYTES_MAX),
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
    UINT(ibx_migrate_join, epoch, "the epoch", 1, BYTES_MAX),
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

static const struct field pages_fields[] = {
    UINT(ibx_migrate_pages, first, "the first page", 0, PAGES_MAX),
    {.kind = FIELD_REST, .at = offsetof(struct ibx_migrate_pages, bytes)},
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
    UINT(ibx_migrate_round, kind, "the kind of round", IBX_ROUND_FETCH, IBX_ROUND_STALE),
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
static const struct field epoch_fields[] = {{FIELD_UINT, "the epoch", 0, 8, 1, BYTES_MAX, NULL, 0},
                                            {0}};
static const struct field compared_fields[] = {
    {FIELD_UINT, "the number of digests", 0, 8, 1, BYTES_MAX, NULL, 0}, {0}};
static const struct field commit_fields[] = {
    UINT(ibx_migrate_commit, epoch, "the epoch", 1, BYTES_MAX),
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

/* The page reader checks that the region lies in its block. */
static int check_region(const void *content, struct ibx_error *err)
{
    const struct ibx_migrate_region *region = content;
    if (region->length % PAGE_MIN || region->offset % PAGE_MIN)
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

static const struct message messages[] = {
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
    [IBX_MIGRATE_DECIDED] = {"DECIDED", epoch_fields, NULL, 0},
    [IBX_MIGRATE_PAGES] = {"PAGES", pages_fields, NULL, 0},
    [IBX_MIGRATE_COMPARED] = {"COMPARED", compared_fields, NULL, 0},
};

const struct message *ibx_message_of(unsigned type)
{
    return type >= IBX_MIGRATE_HELLO && type <= IBX_MIGRATE_COMPARED ? &messages[type] : NULL;
}

const char *ibx_migrate_message_name(enum ibx_migrate_message type)
{
    const struct message *kind = ibx_message_of((unsigned)type);
    return kind ? kind->name : "an unknown message";
}

const char *ibx_answer_state_name(enum ibx_answer_state state)
{
    static const char *const names[] = {"none",     "waiting",  "running",
                                        "complete", "given up", "ended"};
    const unsigned at = (unsigned)state - IBX_ANSWER_NONE;
    return at < sizeof(names) / sizeof(names[0]) ? names[at] : "unknown";
}
