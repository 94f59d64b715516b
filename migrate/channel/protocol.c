/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages to bytes and back. What a message may say is checked in one place (check_message), for
 * what came from the wire and for what is about to go there: whatever encodes, decodes.
 */
#include "migrate/channel/protocol.h"

#include "common/wire.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX (1ull << 60) /* below it: bytes, counts and durations, so that sums fit */
#define PAGES_MAX (1ull << 40)
#define PAGE_MIN  4096u

static const char *const message_names[] = {
    [IBX_MIGRATE_HELLO] = "HELLO",
    [IBX_MIGRATE_ANSWER] = "ANSWER",
    [IBX_MIGRATE_JOIN] = "JOIN",
    [IBX_MIGRATE_REGION] = "REGION",
    [IBX_MIGRATE_READY] = "READY",
    [IBX_MIGRATE_STATE] = "STATE",
    [IBX_MIGRATE_MAP] = "MAP",
    [IBX_MIGRATE_MAP_END] = "MAP_END",
    [IBX_MIGRATE_STATE_END] = "STATE_END",
    [IBX_MIGRATE_LOADED] = "LOADED",
    [IBX_MIGRATE_COMMIT] = "COMMIT",
    [IBX_MIGRATE_RUNNING] = "RUNNING",
    [IBX_MIGRATE_PROGRESS] = "PROGRESS",
    [IBX_MIGRATE_COMPLETE] = "COMPLETE",
    [IBX_MIGRATE_CONFIRM] = "CONFIRM",
    [IBX_MIGRATE_ABORT] = "ABORT",
    [IBX_MIGRATE_CONFIRMED] = "CONFIRMED",
};

const char *ibx_migrate_message_name(enum ibx_migrate_message type)
{
    unsigned at = (unsigned)type;
    return at >= IBX_MIGRATE_HELLO && at <= IBX_MIGRATE_CONFIRMED ? message_names[at]
                                                                  : "an unknown message";
}

const char *ibx_migrate_standing_name(enum ibx_migrate_standing standing)
{
    static const char *const names[] = {
        [IBX_STANDING_NONE] = "none",         [IBX_STANDING_WAITING] = "waiting",
        [IBX_STANDING_RUNNING] = "running",   [IBX_STANDING_COMPLETE] = "complete",
        [IBX_STANDING_GIVEN_UP] = "given up",
    };
    unsigned at = (unsigned)standing;
    return at >= IBX_STANDING_NONE && at <= IBX_STANDING_GIVEN_UP ? names[at] : "unknown";
}

/* ------------------------------------------------------------ what they may say */

static bool id_set(const uint8_t id[IBX_MIGRATE_ID_BYTES])
{
    static const uint8_t none[IBX_MIGRATE_ID_BYTES];
    return memcmp(id, none, IBX_MIGRATE_ID_BYTES) != 0;
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
    bool unknown = hello->purpose == IBX_PURPOSE_CHECK && !block->page_size;
    if (!block->id[0])
        return ibx_error_set(err, -EPROTO, "guest RAM block %u has no id", at);
    for (unsigned i = 0; i < at; i++) {
        if (!strcmp(block->id, hello->blocks[i].id))
            return ibx_error_set(err, -EPROTO, "guest RAM %s is there twice", block->id);
    }
    if (!unknown &&
        (block->page_size < PAGE_MIN || (block->page_size & (block->page_size - 1)) != 0))
        return ibx_error_set(err, -EPROTO, "guest RAM %s has pages of %" PRIu64 " bytes", block->id,
                             block->page_size);
    if (!block->size || (!unknown && block->size % block->page_size))
        return ibx_error_set(err, -EPROTO,
                             "guest RAM %s has %" PRIu64 " bytes, not whole pages of %" PRIu64,
                             block->id, block->size, block->page_size);
    if (block->size >= BYTES_MAX - *total)
        return ibx_error_set(err, -EPROTO, "guest RAM up to %s is 2^60 bytes or more", block->id);
    *total += block->size;
    return 0;
}

/* These come from a source whose QEMU may be gone: they describe no VM. */
static bool is_question(const struct ibx_migrate_hello *hello)
{
    return hello->purpose == IBX_PURPOSE_QUERY || hello->purpose == IBX_PURPOSE_CONFIRM;
}

static int check_blocks(const struct ibx_migrate_hello *hello, struct ibx_error *err)
{
    uint64_t total = 0;
    if (hello->block_count > IBX_GUEST_BLOCKS_MAX || (!hello->block_count && !is_question(hello)))
        return ibx_error_set(err, -EPROTO, "%u blocks of guest RAM: it must be 1 to %u",
                             hello->block_count, IBX_GUEST_BLOCKS_MAX);
    for (unsigned i = 0; i < hello->block_count; i++) {
        int rc = check_block(hello, i, &total, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_hello(const struct ibx_migrate_hello *hello, struct ibx_error *err)
{
    bool moves = hello->purpose == IBX_PURPOSE_MOVE || hello->purpose == IBX_PURPOSE_RESUME;
    if (hello->purpose < IBX_PURPOSE_MOVE || hello->purpose > IBX_PURPOSE_CONFIRM)
        return ibx_error_set(err, -EPROTO, "purpose %u is not known", hello->purpose);
    if (!id_set(hello->id) && hello->purpose != IBX_PURPOSE_CHECK)
        return ibx_error_set(err, -EPROTO, "the move has no id");
    if (!hello->epoch && moves)
        return ibx_error_set(err, -EPROTO, "epoch 0: it begins with 1");
    if (hello->links > IBX_MIGRATE_LINKS_MAX || hello->links_least > hello->links ||
        (!hello->links_least && moves))
        return ibx_error_set(err, -EPROTO, "%u to %u page connections: it must be 1 to %u",
                             hello->links_least, hello->links, IBX_MIGRATE_LINKS_MAX);
    if (!hello->machine[0] && !is_question(hello))
        return ibx_error_set(err, -EPROTO, "the VM has no machine type");
    if (!uuid_form(hello->uuid) && (hello->uuid[0] || !is_question(hello)))
        return ibx_error_set(err, -EPROTO, "\"%s\" is not a UUID", hello->uuid);
    return check_blocks(hello, err);
}

static int check_answer(const struct ibx_migrate_answer *answer, struct ibx_error *err)
{
    if (answer->standing < IBX_STANDING_NONE || answer->standing > IBX_STANDING_GIVEN_UP)
        return ibx_error_set(err, -EPROTO, "standing %u is not known", answer->standing);
    if (answer->links > IBX_MIGRATE_LINKS_MAX)
        return ibx_error_set(err, -EPROTO, "%u page connections: %u at most", answer->links,
                             IBX_MIGRATE_LINKS_MAX);
    if (answer->count > IBX_MIGRATE_SAY_MAX)
        return ibx_error_set(err, -EPROTO, "%u sentences: %u at most", answer->count,
                             IBX_MIGRATE_SAY_MAX);
    if (answer->accepted != !answer->count)
        return ibx_error_set(err, -EPROTO,
                             answer->accepted ? "it accepts and says why not"
                                              : "it refuses and does not say why");
    for (unsigned i = 0; i < answer->count; i++) {
        if (!answer->sentences[i][0])
            return ibx_error_set(err, -EPROTO, "sentence %u is empty", i);
    }
    return 0;
}

static int check_join(const struct ibx_migrate_join *join, struct ibx_error *err)
{
    if (!id_set(join->id))
        return ibx_error_set(err, -EPROTO, "the move has no id");
    if (!join->epoch)
        return ibx_error_set(err, -EPROTO, "epoch 0: it begins with 1");
    if (join->link >= IBX_MIGRATE_LINKS_MAX)
        return ibx_error_set(err, -EPROTO, "page connection %u: there are %u at most", join->link,
                             IBX_MIGRATE_LINKS_MAX);
    return 0;
}

/* Whether it lies in the block, on its pages, is for who knows the block to say. */
static int check_region(const struct ibx_migrate_region *region, struct ibx_error *err)
{
    if (region->block >= IBX_GUEST_BLOCKS_MAX)
        return ibx_error_set(err, -EPROTO, "guest RAM block %u: there are %u at most",
                             region->block, IBX_GUEST_BLOCKS_MAX);
    if (!region->length || region->length % PAGE_MIN || region->offset % PAGE_MIN ||
        region->offset >= BYTES_MAX || region->length > BYTES_MAX - region->offset)
        return ibx_error_set(err, -EPROTO, "bytes %" PRIu64 " to +%" PRIu64 " are not whole pages",
                             region->offset, region->length);
    if (region->remote.length != region->length ||
        region->remote.address > UINT64_MAX - region->length)
        return ibx_error_set(err, -EPROTO,
                             "%" PRIu64 " bytes at %#" PRIx64 " shall hold %" PRIu64 " bytes",
                             region->remote.length, region->remote.address, region->length);
    return 0;
}

static int check_pages(uint64_t pages, uint64_t part, struct ibx_error *err)
{
    if (!pages || pages > PAGES_MAX || part > pages)
        return ibx_error_set(err, -EPROTO, "%" PRIu64 " of %" PRIu64 " pages", part, pages);
    return 0;
}

static int check_progress(const struct ibx_migrate_progress *progress, struct ibx_error *err)
{
    const uint64_t counts[] = {progress->bytes, progress->faults, progress->fault_p50_ns,
                               progress->fault_p99_ns, progress->fault_max_ns};
    for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (counts[i] >= BYTES_MAX)
            return ibx_error_set(err, -EPROTO, "figure %u is %" PRIu64, i, counts[i]);
    }
    return check_pages(progress->pages, progress->present, err);
}

static int check_complete(const struct ibx_migrate_complete *complete, struct ibx_error *err)
{
    int rc = check_progress(&complete->progress, err);
    rc = rc ? rc : check_pages(complete->pages, complete->zero_pages, err);
    rc = rc ? rc : check_pages(complete->pages, complete->fetched_pages, err);
    rc = rc ? rc : check_pages(complete->pages, complete->discarded_pages, err);
    if (rc)
        return rc;
    if (complete->zero_pages + complete->fetched_pages + complete->discarded_pages !=
            complete->pages ||
        complete->progress.pages != complete->pages)
        return ibx_error_set(err, -EPROTO,
                             "%" PRIu64 " zero, %" PRIu64 " fetched and %" PRIu64
                             " discarded pages do not make %" PRIu64,
                             complete->zero_pages, complete->fetched_pages,
                             complete->discarded_pages, complete->pages);
    return 0;
}

static int check_message(const struct ibx_migrate_any *message, struct ibx_error *err)
{
    switch (message->type) {
    case IBX_MIGRATE_HELLO:
        return check_hello(&message->is.hello, err);
    case IBX_MIGRATE_ANSWER:
        return check_answer(&message->is.answer, err);
    case IBX_MIGRATE_JOIN:
        return check_join(&message->is.join, err);
    case IBX_MIGRATE_REGION:
        return check_region(&message->is.region, err);
    case IBX_MIGRATE_STATE:
    case IBX_MIGRATE_MAP:
        return message->is.state.length ? 0 : ibx_error_set(err, -EPROTO, "it is empty");
    case IBX_MIGRATE_MAP_END:
        return check_pages(message->is.map_end.pages, message->is.map_end.data_pages, err);
    case IBX_MIGRATE_STATE_END:
        return message->is.state_bytes && message->is.state_bytes < BYTES_MAX
                   ? 0
                   : ibx_error_set(err, -EPROTO, "a device state of %" PRIu64 " bytes",
                                   message->is.state_bytes);
    case IBX_MIGRATE_COMMIT:
    case IBX_MIGRATE_CONFIRM:
        return message->is.epoch ? 0 : ibx_error_set(err, -EPROTO, "epoch 0: it begins with 1");
    case IBX_MIGRATE_PROGRESS:
        return check_progress(&message->is.progress, err);
    case IBX_MIGRATE_COMPLETE:
        return check_complete(&message->is.complete, err);
    case IBX_MIGRATE_ABORT:
        return message->is.sentence[0] ? 0 : ibx_error_set(err, -EPROTO, "it does not say why");
    case IBX_MIGRATE_READY:
    case IBX_MIGRATE_LOADED:
    case IBX_MIGRATE_RUNNING:
    case IBX_MIGRATE_CONFIRMED:
        return 0;
    }
    return ibx_error_set(err, -EPROTO, "message type %u is not known", (unsigned)message->type);
}

/* ------------------------------------------------------------ to bytes */

static void put_head(struct ibx_writer *w)
{
    ibx_put_u32(w, IBX_MIGRATE_MAGIC);
    ibx_put_u16(w, IBX_MIGRATE_VERSION);
}

static void put_hello(struct ibx_writer *w, const struct ibx_migrate_hello *hello)
{
    put_head(w);
    ibx_put_u8(w, hello->purpose);
    ibx_put_bytes(w, hello->id, IBX_MIGRATE_ID_BYTES);
    ibx_put_u64(w, hello->epoch);
    ibx_put_u16(w, hello->links_least);
    ibx_put_u16(w, hello->links);
    ibx_put_u32(w, hello->version.major);
    ibx_put_u32(w, hello->version.minor);
    ibx_put_u32(w, hello->version.micro);
    ibx_put_string(w, hello->machine);
    ibx_put_string(w, hello->uuid);
    ibx_put_string(w, hello->name);
    ibx_put_u16(w, hello->block_count);
    for (unsigned i = 0; i < hello->block_count; i++) {
        ibx_put_string(w, hello->blocks[i].id);
        ibx_put_u64(w, hello->blocks[i].size);
        ibx_put_u64(w, hello->blocks[i].page_size);
        ibx_put_u64(w, hello->blocks[i].file);
    }
    ibx_put_string(w, hello->hardware);
    ibx_put_string(w, hello->host);
}

static void put_answer(struct ibx_writer *w, const struct ibx_migrate_answer *answer)
{
    ibx_put_u8(w, answer->accepted);
    ibx_put_u8(w, answer->standing);
    ibx_put_u16(w, answer->links);
    ibx_put_string(w, answer->host);
    ibx_put_u16(w, answer->count);
    for (unsigned i = 0; i < answer->count; i++)
        ibx_put_string(w, answer->sentences[i]);
}

static void put_join(struct ibx_writer *w, const struct ibx_migrate_join *join)
{
    put_head(w);
    ibx_put_bytes(w, join->id, IBX_MIGRATE_ID_BYTES);
    ibx_put_u64(w, join->epoch);
    ibx_put_u16(w, join->link);
}

static void put_region(struct ibx_writer *w, const struct ibx_migrate_region *region)
{
    ibx_put_u16(w, region->block);
    ibx_put_u64(w, region->offset);
    ibx_put_u64(w, region->length);
    ibx_remote_put(w, &region->remote);
}

static void put_map_end(struct ibx_writer *w, const struct ibx_migrate_map_end *end)
{
    ibx_put_u64(w, end->pages);
    ibx_put_u64(w, end->data_pages);
    ibx_put_u32(w, end->regions);
    ibx_put_bytes(w, end->hash, IBX_MIGRATE_HASH_BYTES);
}

static void put_progress(struct ibx_writer *w, const struct ibx_migrate_progress *progress)
{
    ibx_put_u64(w, progress->pages);
    ibx_put_u64(w, progress->present);
    ibx_put_u64(w, progress->bytes);
    ibx_put_u64(w, progress->faults);
    ibx_put_u64(w, progress->fault_p50_ns);
    ibx_put_u64(w, progress->fault_p99_ns);
    ibx_put_u64(w, progress->fault_max_ns);
}

static void put_complete(struct ibx_writer *w, const struct ibx_migrate_complete *complete)
{
    ibx_put_u64(w, complete->pages);
    ibx_put_u64(w, complete->zero_pages);
    ibx_put_u64(w, complete->fetched_pages);
    ibx_put_u64(w, complete->discarded_pages);
    ibx_put_bytes(w, complete->hash, IBX_MIGRATE_HASH_BYTES);
    put_progress(w, &complete->progress);
}

static void put_message(struct ibx_writer *w, const struct ibx_migrate_any *message)
{
    switch (message->type) {
    case IBX_MIGRATE_HELLO:
        return put_hello(w, &message->is.hello);
    case IBX_MIGRATE_ANSWER:
        return put_answer(w, &message->is.answer);
    case IBX_MIGRATE_JOIN:
        return put_join(w, &message->is.join);
    case IBX_MIGRATE_REGION:
        return put_region(w, &message->is.region);
    case IBX_MIGRATE_STATE:
    case IBX_MIGRATE_MAP:
        return ibx_put_bytes(w, message->is.state.bytes, message->is.state.length);
    case IBX_MIGRATE_MAP_END:
        return put_map_end(w, &message->is.map_end);
    case IBX_MIGRATE_STATE_END:
        return ibx_put_u64(w, message->is.state_bytes);
    case IBX_MIGRATE_COMMIT:
    case IBX_MIGRATE_CONFIRM:
        return ibx_put_u64(w, message->is.epoch);
    case IBX_MIGRATE_PROGRESS:
        return put_progress(w, &message->is.progress);
    case IBX_MIGRATE_COMPLETE:
        return put_complete(w, &message->is.complete);
    case IBX_MIGRATE_ABORT:
        return ibx_put_string(w, message->is.sentence);
    case IBX_MIGRATE_READY:
    case IBX_MIGRATE_LOADED:
    case IBX_MIGRATE_RUNNING:
    case IBX_MIGRATE_CONFIRMED:
        return;
    }
}

ssize_t ibx_migrate_encode(const struct ibx_migrate_any *message, void *out, size_t size)
{
    struct ibx_writer w =
        ibx_writer_of(out, size < IBX_MIGRATE_MESSAGE ? size : IBX_MIGRATE_MESSAGE);
    if (check_message(message, NULL))
        return -EINVAL;
    ibx_put_u8(&w, (uint8_t)message->type);
    put_message(&w, message);
    return w.failed ? -EMSGSIZE : (ssize_t)w.length;
}

/* ------------------------------------------------------------ and back */

static void get_text(struct ibx_reader *r, char *out, size_t size)
{
    ibx_get_string(r, out, size);
    ibx_text_sanitize(out);
}

static void get_fixed(struct ibx_reader *r, uint8_t *out, size_t length)
{
    const uint8_t *bytes = ibx_get_bytes(r, length);
    if (bytes)
        memcpy(out, bytes, length);
}

static int get_head(struct ibx_reader *r, struct ibx_error *err)
{
    uint32_t magic = ibx_get_u32(r);
    uint16_t version = ibx_get_u16(r);
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

static int get_hello(struct ibx_reader *r, struct ibx_migrate_hello *hello, struct ibx_error *err)
{
    int rc = get_head(r, err);
    if (rc)
        return rc;
    hello->purpose = ibx_get_u8(r);
    get_fixed(r, hello->id, IBX_MIGRATE_ID_BYTES);
    hello->epoch = ibx_get_u64(r);
    hello->links_least = ibx_get_u16(r);
    hello->links = ibx_get_u16(r);
    hello->version.major = ibx_get_u32(r);
    hello->version.minor = ibx_get_u32(r);
    hello->version.micro = ibx_get_u32(r);
    get_text(r, hello->machine, sizeof(hello->machine));
    get_text(r, hello->uuid, sizeof(hello->uuid));
    get_text(r, hello->name, sizeof(hello->name));
    hello->block_count = ibx_get_u16(r);
    unsigned count = hello->block_count > IBX_GUEST_BLOCKS_MAX ? 0 : hello->block_count;
    for (unsigned i = 0; i < count; i++) {
        get_text(r, hello->blocks[i].id, sizeof(hello->blocks[i].id));
        hello->blocks[i].size = ibx_get_u64(r);
        hello->blocks[i].page_size = ibx_get_u64(r);
        hello->blocks[i].file = ibx_get_u64(r);
    }
    get_text(r, hello->hardware, sizeof(hello->hardware));
    get_text(r, hello->host, sizeof(hello->host));
    return 0;
}

static void get_answer(struct ibx_reader *r, struct ibx_migrate_answer *answer)
{
    uint8_t accepted = ibx_get_u8(r);
    r->failed |= accepted > 1;
    answer->accepted = accepted == 1;
    answer->standing = ibx_get_u8(r);
    answer->links = ibx_get_u16(r);
    get_text(r, answer->host, sizeof(answer->host));
    answer->count = ibx_get_u16(r);
    unsigned count = answer->count > IBX_MIGRATE_SAY_MAX ? 0 : answer->count;
    for (unsigned i = 0; i < count; i++)
        get_text(r, answer->sentences[i], sizeof(answer->sentences[i]));
}

static int get_join(struct ibx_reader *r, struct ibx_migrate_join *join, struct ibx_error *err)
{
    int rc = get_head(r, err);
    get_fixed(r, join->id, IBX_MIGRATE_ID_BYTES);
    join->epoch = ibx_get_u64(r);
    join->link = ibx_get_u16(r);
    return rc;
}

static void get_region(struct ibx_reader *r, struct ibx_migrate_region *region)
{
    region->block = ibx_get_u16(r);
    region->offset = ibx_get_u64(r);
    region->length = ibx_get_u64(r);
    ibx_remote_get(r, &region->remote);
}

static void get_map_end(struct ibx_reader *r, struct ibx_migrate_map_end *end)
{
    end->pages = ibx_get_u64(r);
    end->data_pages = ibx_get_u64(r);
    end->regions = ibx_get_u32(r);
    get_fixed(r, end->hash, IBX_MIGRATE_HASH_BYTES);
}

static void get_progress(struct ibx_reader *r, struct ibx_migrate_progress *progress)
{
    progress->pages = ibx_get_u64(r);
    progress->present = ibx_get_u64(r);
    progress->bytes = ibx_get_u64(r);
    progress->faults = ibx_get_u64(r);
    progress->fault_p50_ns = ibx_get_u64(r);
    progress->fault_p99_ns = ibx_get_u64(r);
    progress->fault_max_ns = ibx_get_u64(r);
}

static void get_complete(struct ibx_reader *r, struct ibx_migrate_complete *complete)
{
    complete->pages = ibx_get_u64(r);
    complete->zero_pages = ibx_get_u64(r);
    complete->fetched_pages = ibx_get_u64(r);
    complete->discarded_pages = ibx_get_u64(r);
    get_fixed(r, complete->hash, IBX_MIGRATE_HASH_BYTES);
    get_progress(r, &complete->progress);
}

static int get_message(struct ibx_reader *r, struct ibx_migrate_any *message, struct ibx_error *err)
{
    switch (message->type) {
    case IBX_MIGRATE_HELLO:
        return get_hello(r, &message->is.hello, err);
    case IBX_MIGRATE_JOIN:
        return get_join(r, &message->is.join, err);
    case IBX_MIGRATE_ANSWER:
        get_answer(r, &message->is.answer);
        break;
    case IBX_MIGRATE_REGION:
        get_region(r, &message->is.region);
        break;
    case IBX_MIGRATE_STATE:
    case IBX_MIGRATE_MAP:
        message->is.state.length = ibx_reader_left(r);
        message->is.state.bytes = ibx_get_bytes(r, message->is.state.length);
        break;
    case IBX_MIGRATE_MAP_END:
        get_map_end(r, &message->is.map_end);
        break;
    case IBX_MIGRATE_STATE_END:
        message->is.state_bytes = ibx_get_u64(r);
        break;
    case IBX_MIGRATE_COMMIT:
    case IBX_MIGRATE_CONFIRM:
        message->is.epoch = ibx_get_u64(r);
        break;
    case IBX_MIGRATE_PROGRESS:
        get_progress(r, &message->is.progress);
        break;
    case IBX_MIGRATE_COMPLETE:
        get_complete(r, &message->is.complete);
        break;
    case IBX_MIGRATE_ABORT:
        get_text(r, message->is.sentence, sizeof(message->is.sentence));
        break;
    case IBX_MIGRATE_READY:
    case IBX_MIGRATE_LOADED:
    case IBX_MIGRATE_RUNNING:
    case IBX_MIGRATE_CONFIRMED:
        break;
    }
    return 0; /* a type that is not known is check_message()'s to say */
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
    /* Before what is left over: a count that is too high says more. */
    if (!rc && !r.failed)
        rc = check_message(&found, err);
    if (!rc && r.failed)
        rc =
            ibx_error_set(err, -EPROTO, "it is cut short, or a field of it is too long or no text");
    if (!rc && ibx_reader_left(&r))
        rc = ibx_error_set(err, -EPROTO, "%zu bytes follow its end", ibx_reader_left(&r));
    if (rc == -EPROTONOSUPPORT)
        return rc;
    if (rc)
        return ibx_error_prefix(err, rc, "%s from the peer is not valid",
                                ibx_migrate_message_name(found.type));
    *message = found;
    return 0;
}

/* ------------------------------------------------------------ the VM in a HELLO */

void ibx_migrate_host(char *host, size_t size)
{
    if (gethostname(host, size - 1) || !host[0])
        snprintf(host, size, "unnamed");
    host[size - 1] = '\0';
}

void ibx_migrate_hello_describe(struct ibx_migrate_hello *hello, const struct ibx_guest_ram *ram)
{
    ibx_migrate_host(hello->host, sizeof(hello->host));
    hello->version = ram->version;
    memcpy(hello->machine, ram->machine, sizeof(hello->machine));
    memcpy(hello->uuid, ram->uuid, sizeof(hello->uuid));
    memcpy(hello->name, ram->name, sizeof(hello->name));
    hello->block_count =
        (uint16_t)(ram->count < IBX_GUEST_BLOCKS_MAX ? ram->count : IBX_GUEST_BLOCKS_MAX);
    memset(hello->blocks, 0, sizeof(hello->blocks));
    for (unsigned i = 0; i < hello->block_count; i++) {
        memcpy(hello->blocks[i].id, ram->blocks[i].id, sizeof(hello->blocks[i].id));
        hello->blocks[i].size = ram->blocks[i].size;
        hello->blocks[i].page_size = ram->blocks[i].page_size;
        hello->blocks[i].file = ram->blocks[i].file;
    }
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
