/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What stands in a record: its states and their moves, its JSON, its meaning in words. */
#include "migrate/journal/journal_internal.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_VERSION       3
#define RECORD_VERSION_FIRST 1 /* without "was-running" and "guest-ram" */
#define RECORD_VERSION_2     2 /* without "complete" */

#define BIT(state) (1u << IBX_JOURNAL_##state)

static const char *const state_names[] = {
    [IBX_JOURNAL_HERE] = "here",         [IBX_JOURNAL_MAY_RUN] = "may-run",
    [IBX_JOURNAL_MOVED] = "moved",       [IBX_JOURNAL_DONE] = "done",
    [IBX_JOURNAL_KEPT] = "kept",         [IBX_JOURNAL_ROLLED_BACK] = "rolled-back",
    [IBX_JOURNAL_NOT_YET] = "not-yet",   [IBX_JOURNAL_RUNNING] = "running",
    [IBX_JOURNAL_GIVEN_UP] = "given-up", [IBX_JOURNAL_COMPLETE] = "complete",
};
#define STATES (sizeof(state_names) / sizeof(state_names[0]))

/*
 * Where each state may lead; 0 is where a side begins. Every state may be written again, with a
 * higher epoch for instance. The way may be shorter than the picture in record.h: a side that was
 * away learns how far the other has come. Nothing leads out of the states that are over.
 */
static const unsigned source_moves[STATES] = {
    [0] = BIT(HERE),
    [IBX_JOURNAL_HERE] = BIT(MAY_RUN) | BIT(KEPT) | BIT(ROLLED_BACK),
    [IBX_JOURNAL_MAY_RUN] = BIT(MOVED) | BIT(DONE) | BIT(KEPT) | BIT(ROLLED_BACK),
    [IBX_JOURNAL_MOVED] = BIT(DONE) | BIT(ROLLED_BACK),
};
/* A VM that was RUNNING is GIVEN_UP when its QEMU is gone: it can be rolled back at the source. */
static const unsigned destination_moves[STATES] = {
    [0] = BIT(NOT_YET),
    [IBX_JOURNAL_NOT_YET] = BIT(MAY_RUN) | BIT(GIVEN_UP),
    [IBX_JOURNAL_MAY_RUN] = BIT(RUNNING) | BIT(COMPLETE) | BIT(GIVEN_UP),
    [IBX_JOURNAL_RUNNING] = BIT(COMPLETE) | BIT(GIVEN_UP),
    [IBX_JOURNAL_COMPLETE] = BIT(DONE),
};

#define SOURCE_STATES                                                                              \
    (BIT(HERE) | BIT(MAY_RUN) | BIT(MOVED) | BIT(DONE) | BIT(KEPT) | BIT(ROLLED_BACK))
#define DESTINATION_STATES                                                                         \
    (BIT(NOT_YET) | BIT(MAY_RUN) | BIT(RUNNING) | BIT(COMPLETE) | BIT(DONE) | BIT(GIVEN_UP))
#define OVER_STATES (BIT(DONE) | BIT(KEPT) | BIT(ROLLED_BACK) | BIT(GIVEN_UP))

static bool among(enum ibx_journal_state state, unsigned set)
{
    unsigned at = (unsigned)state;
    return at < STATES && (set >> at & 1);
}

bool ibx_journal_move_allowed(bool source, enum ibx_journal_state previous,
                              enum ibx_journal_state state)
{
    if (!among(state, source ? SOURCE_STATES : DESTINATION_STATES) || (unsigned)previous >= STATES)
        return false;
    return previous == state ||
           among(state, source ? source_moves[previous] : destination_moves[previous]);
}

bool ibx_journal_over(const struct ibx_journal *record)
{
    return among(record->state, OVER_STATES);
}

const char *ibx_journal_state_name(enum ibx_journal_state state)
{
    unsigned at = (unsigned)state;
    return at && at < STATES ? state_names[at] : "unknown";
}

/* ------------------------------------------------------------ to JSON */

/* Names are for reading: what is not UTF-8 (cut in the middle of a letter, say) is replaced. */
static json_t *name_json(const char *name)
{
    json_t *json = json_string(name);
    char text[256];
    if (json)
        return json;
    snprintf(text, sizeof(text), "%s", name);
    ibx_text_sanitize(text);
    return json_string(text);
}

static int check_text(const struct ibx_journal *record, struct ibx_error *err)
{
    const char *const texts[] = {record->qmp, record->uri, record->key_file, record->uuid};
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *json = json_string(texts[i]);
        if (!json) {
            ibx_error_set(err, -EINVAL,
                          "\"%s\" is not UTF-8 text, so it cannot be put on record: give it "
                          "another name",
                          texts[i]);
            if (err)
                ibx_text_sanitize(err->message);
            return -EINVAL;
        }
        json_decref(json);
    }
    return 0;
}

static json_t *blocks_json(const struct ibx_journal *record)
{
    json_t *list = json_array();
    for (unsigned i = 0; list && i < record->block_count; i++) {
        const struct ibx_journal_block *b = &record->blocks[i];
        json_t *item = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "id", b->id, "size",
                                 (json_int_t)b->size, "page-size", (json_int_t)b->page_size,
                                 "offset", (json_int_t)b->offset, "address", (json_int_t)b->address,
                                 "dev", (json_int_t)b->dev, "ino", (json_int_t)b->ino);
        if (json_array_append_new(list, item)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static void hex_of(const uint8_t *bytes, unsigned count, char *text)
{
    for (unsigned i = 0; i < count; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", bytes[i]);
}

static json_t *complete_json(const struct ibx_journal *record)
{
    const struct ibx_journal_totals *c = &record->complete;
    char hash[2 * IBX_MIGRATE_HASH_BYTES + 1];
    if (!c->pages)
        return json_null();
    hex_of(c->hash, IBX_MIGRATE_HASH_BYTES, hash);
    return json_pack("{s:I, s:I, s:I, s:s}", "pages", (json_int_t)c->pages, "zero",
                     (json_int_t)c->zero_pages, "discarded", (json_int_t)c->discarded_pages, "hash",
                     hash);
}

int ibx_journal_text_make(const struct ibx_journal *record, char **text, size_t *length,
                          struct ibx_error *err)
{
    char id[2 * IBX_MIGRATE_ID_BYTES + 1];
    hex_of(record->id, IBX_MIGRATE_ID_BYTES, id);
    if (check_text(record, err))
        return -EINVAL;
    json_t *json = json_pack(
        "{s:i, s:s, s:s, s:I, s:s, s:s, s:o, s:s, s:I, s:I, s:s, s:o, s:s, s:i, s:b, s:b, s:o, "
        "s:o, s:I}",
        "ibx-record", RECORD_VERSION, "id", id, "role", record->source ? "source" : "destination",
        "epoch", (json_int_t)record->epoch, "state", ibx_journal_state_name(record->state), "uuid",
        record->uuid, "name", name_json(record->name), "qmp", record->qmp, "pid",
        (json_int_t)record->pid, "pid-started", (json_int_t)record->pid_started, "uri", record->uri,
        "peer", name_json(record->peer), "key-file", record->key_file, "uffd", record->uffd,
        "device-way", record->device_way, "was-running", record->was_running, "guest-ram",
        blocks_json(record), "complete", complete_json(record), "written",
        (json_int_t)record->written_s);
    char *dumped = json ? json_dumps(json, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(json);
    if (!dumped)
        return ibx_error_set(err, -ENOMEM, "no memory for a record");
    *text = dumped;
    *length = strlen(dumped);
    return 0;
}

/* ------------------------------------------------------------ and back */

static int take_hex(const char *key, const char *text, uint8_t *bytes, unsigned count,
                    struct ibx_error *err)
{
    const char digits[] = "0123456789abcdef";
    if (strlen(text) != (size_t)2 * count || strspn(text, digits) != strlen(text))
        return ibx_error_set(err, -EINVAL, "%s \"%.64s\" is not %u hexadecimal digits", key, text,
                             2 * count);
    for (unsigned i = 0; i < count; i++)
        bytes[i] = (uint8_t)((strchr(digits, text[2 * i]) - digits) << 4 |
                             (strchr(digits, text[2 * i + 1]) - digits));
    return 0;
}

static int take_state(const char *role, const char *state, struct ibx_journal *record,
                      struct ibx_error *err)
{
    record->source = !strcmp(role, "source");
    if (!record->source && strcmp(role, "destination") != 0)
        return ibx_error_set(err, -EINVAL, "role \"%.64s\" is neither source nor destination",
                             role);
    unsigned all = record->source ? SOURCE_STATES : DESTINATION_STATES;
    for (unsigned i = 1; i < STATES; i++) {
        if ((all >> i & 1) && !strcmp(state, state_names[i])) {
            record->state = (enum ibx_journal_state)i;
            return 0;
        }
    }
    return ibx_error_set(err, -EINVAL, "state \"%.64s\" is none of a %s", state, role);
}

static int take_text(const char *key, const char *text, char *out, size_t size,
                     struct ibx_error *err)
{
    if (strlen(text) >= size)
        return ibx_error_set(err, -EINVAL, "%s has %zu bytes: %zu at most", key, strlen(text),
                             size - 1);
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

struct fields {
    int device_way, was_running;
    json_t *blocks;   /* borrowed; NULL: of the first version */
    json_t *complete; /* borrowed; NULL: of an earlier version */
    json_int_t version, uffd, epoch, pid, pid_started, written;
    const char *id, *role, *state, *uuid, *name, *qmp, *uri, *peer, *key_file;
};

static int take_numbers(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    if (f->epoch < 1 || f->pid < 0 || f->pid > INT_MAX || f->pid_started < 0 || f->uffd < -1 ||
        f->uffd > INT_MAX || f->written < 0)
        return ibx_error_set(err, -EINVAL,
                             "epoch %lld, pid %lld, pid-started %lld, uffd %lld or written %lld is "
                             "out of range",
                             (long long)f->epoch, (long long)f->pid, (long long)f->pid_started,
                             (long long)f->uffd, (long long)f->written);
    record->epoch = (uint64_t)f->epoch;
    record->pid = (pid_t)f->pid;
    record->pid_started = (uint64_t)f->pid_started;
    record->uffd = (int)f->uffd;
    record->device_way = f->device_way;
    record->was_running = f->was_running;
    record->written_s = (uint64_t)f->written;
    return 0;
}

/* dev and ino are any 64 bits. */
static int take_block(json_t *json, const struct ibx_journal_block *previous,
                      struct ibx_journal_block *block, struct ibx_error *err)
{
    const char *id;
    json_int_t size, page, offset, address, dev, ino;
    json_error_t why;
    if (json_unpack_ex(json, &why, JSON_STRICT, "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "id", &id,
                       "size", &size, "page-size", &page, "offset", &offset, "address", &address,
                       "dev", &dev, "ino", &ino))
        return ibx_error_set(err, -EINVAL, "guest-ram: %.200s", why.text);
    if (!*id || strlen(id) >= sizeof(block->id) || (previous && strcmp(previous->id, id) >= 0))
        return ibx_error_set(err, -EINVAL,
                             "guest RAM \"%.64s\" has no id of up to %zu bytes, or does not follow "
                             "by it",
                             id, sizeof(block->id) - 1);
    if (page < 4096 || (page & (page - 1)) || size <= 0 || size % page || address <= 0 ||
        address % page || offset < 0 || size > INT64_MAX - address || size > INT64_MAX - offset)
        return ibx_error_set(
            err, -EINVAL,
            "guest RAM %.64s has size %lld, page-size %lld, offset %lld or address "
            "%lld out of range",
            id, (long long)size, (long long)page, (long long)offset, (long long)address);
    *block = (struct ibx_journal_block){.size = (uint64_t)size,
                                        .page_size = (uint64_t)page,
                                        .offset = (uint64_t)offset,
                                        .address = (uint64_t)address,
                                        .dev = (uint64_t)dev,
                                        .ino = (uint64_t)ino};
    memcpy(block->id, id, strlen(id) + 1);
    return 0;
}

static int take_blocks(json_t *list, struct ibx_journal *record, struct ibx_error *err)
{
    const size_t count = json_array_size(list);
    if (list && (!json_is_array(list) || count > (record->source ? 0 : IBX_GUEST_BLOCKS_MAX)))
        return ibx_error_set(err, -EINVAL,
                             "guest-ram is no list of up to %u blocks, empty for a source",
                             IBX_GUEST_BLOCKS_MAX);
    for (size_t i = 0; i < count; i++) {
        int rc = take_block(json_array_get(list, i), i ? &record->blocks[i - 1] : NULL,
                            &record->blocks[i], err);
        if (rc)
            return rc;
    }
    record->block_count = (unsigned)count;
    return 0;
}

/* An earlier version called a move done when all pages were there. */
static int take_complete(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_journal_totals *c = &record->complete;
    json_int_t pages, zero, discarded;
    const char *hash;
    json_error_t why;
    const bool wanted = record->state == IBX_JOURNAL_COMPLETE ||
                        (record->state == IBX_JOURNAL_DONE && !record->source && f->complete);
    if (!wanted && (!f->complete || json_is_null(f->complete)))
        return 0;
    if (!wanted || !json_is_object(f->complete))
        return ibx_error_set(err, -EINVAL, "\"complete\" does not fit to a %s in state %s",
                             record->source ? "source" : "destination",
                             ibx_journal_state_name(record->state));
    if (json_unpack_ex(f->complete, &why, JSON_STRICT, "{s:I, s:I, s:I, s:s}", "pages", &pages,
                       "zero", &zero, "discarded", &discarded, "hash", &hash))
        return ibx_error_set(err, -EINVAL, "complete: %.200s", why.text);
    if (pages < 1 || zero < 0 || discarded < 0 || zero > pages || discarded > pages - zero)
        return ibx_error_set(err, -EINVAL,
                             "complete: %lld pages, %lld of them zero and %lld discarded, do not "
                             "add up",
                             (long long)pages, (long long)zero, (long long)discarded);
    c->pages = (uint64_t)pages;
    c->zero_pages = (uint64_t)zero;
    c->discarded_pages = (uint64_t)discarded;
    return take_hex("hash", hash, c->hash, IBX_MIGRATE_HASH_BYTES, err);
}

static int take_fields(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    int rc = take_hex("id", f->id, record->id, IBX_MIGRATE_ID_BYTES, err);
    rc = rc ? rc : take_state(f->role, f->state, record, err);
    rc = rc ? rc : take_complete(f, record, err);
    rc = rc ? rc : take_numbers(f, record, err);
    rc = rc ? rc : take_blocks(f->blocks, record, err);
    rc = rc ? rc : take_text("uuid", f->uuid, record->uuid, sizeof(record->uuid), err);
    rc = rc ? rc : take_text("name", f->name, record->name, sizeof(record->name), err);
    rc = rc ? rc : take_text("qmp", f->qmp, record->qmp, sizeof(record->qmp), err);
    rc = rc ? rc : take_text("uri", f->uri, record->uri, sizeof(record->uri), err);
    rc = rc ? rc : take_text("peer", f->peer, record->peer, sizeof(record->peer), err);
    return rc ? rc
              : take_text("key-file", f->key_file, record->key_file, sizeof(record->key_file), err);
}

#define FIRST_FIELDS                                                                               \
    "{s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:I, s:b, s:I"

static int take_json(json_t *json, struct ibx_journal *record, struct ibx_error *err)
{
    /* Before it was on record a VM was taken to have run. */
    struct fields f = {.was_running = true};
    json_error_t why;
    json_t *version = json_object_get(json, "ibx-record");
    if (!json_is_integer(version))
        return ibx_error_set(err, -EINVAL, "it has no \"ibx-record\"");
    const json_int_t number = json_integer_value(version);
    if (number < RECORD_VERSION_FIRST || number > RECORD_VERSION)
        return ibx_error_set(err, -EINVAL, "it is of version %lld, this ib-migrate knows %d to %d",
                             (long long)number, RECORD_VERSION_FIRST, RECORD_VERSION);
    if (json_unpack_ex(json, &why, JSON_STRICT,
                       number == RECORD_VERSION_FIRST ? FIRST_FIELDS "}"
                       : number == RECORD_VERSION_2   ? FIRST_FIELDS ", s:b, s:o}"
                                                      : FIRST_FIELDS ", s:b, s:o, s:o}",
                       "ibx-record", &f.version, "id", &f.id, "role", &f.role, "epoch", &f.epoch,
                       "state", &f.state, "uuid", &f.uuid, "name", &f.name, "qmp", &f.qmp, "pid",
                       &f.pid, "pid-started", &f.pid_started, "uri", &f.uri, "peer", &f.peer,
                       "key-file", &f.key_file, "uffd", &f.uffd, "device-way", &f.device_way,
                       "written", &f.written, "was-running", &f.was_running, "guest-ram", &f.blocks,
                       "complete", &f.complete))
        return ibx_error_set(err, -EINVAL, "%.200s", why.text);
    return take_fields(&f, record, err);
}

int ibx_journal_text_parse(const char *text, size_t length, struct ibx_journal *record,
                           struct ibx_error *err)
{
    json_error_t why;
    struct ibx_journal found = {0};
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    int rc = json ? take_json(json, &found, err)
                  : ibx_error_set(err, -EINVAL, "line %d: %.160s", why.line, why.text);
    json_decref(json);
    if (!rc)
        *record = found;
    else if (err)
        ibx_text_sanitize(err->message);
    return rc;
}

/* ------------------------------------------------------------ in words */

static const char *say_source(enum ibx_journal_state state)
{
    switch (state) {
    case IBX_JOURNAL_HERE:
        return "%s is here: its move to %s has not come to the point where it could run there";
    case IBX_JOURNAL_MAY_RUN:
        return "%s may run at %s or still be here: only the destination knows, and \"ib-migrate "
               "recover\" asks it before anything is started";
    case IBX_JOURNAL_MOVED:
        return "%s runs at %s and not here, but this side has pages that it needs: leave this QEMU "
               "as it is; \"ib-migrate recover\" goes on sending";
    case IBX_JOURNAL_DONE:
        return "%s runs at %s with all of its pages: this QEMU is not needed any more and must not "
               "be continued";
    case IBX_JOURNAL_KEPT:
        return "%s stayed here: its move to %s ended before it could run there";
    case IBX_JOURNAL_ROLLED_BACK:
        return "%s was taken back from %s and runs here from where it had stopped: it must not run "
               "there";
    default:
        return "nothing is known of %s and its move to %s";
    }
}

static const char *say_destination(enum ibx_journal_state state)
{
    switch (state) {
    case IBX_JOURNAL_NOT_YET:
        return "%s does not run here yet: it is at %s";
    case IBX_JOURNAL_MAY_RUN:
        return "%s may run here or still be at %s: this QEMU knows, and \"ib-migrate recover\" "
               "asks it";
    case IBX_JOURNAL_RUNNING:
        return "%s runs here and needs pages that are still at %s: leave both QEMUs as they are; "
               "\"ib-migrate recover\" goes on fetching";
    case IBX_JOURNAL_COMPLETE:
        return "%s runs here with all of its pages, but %s has not confirmed it and keeps them, "
               "too: \"ib-migrate recover\" here lets it end, and there when that says done";
    case IBX_JOURNAL_DONE:
        return "%s runs here with all of its pages: that at %s is not needed any more";
    case IBX_JOURNAL_GIVEN_UP:
        return "%s does not run here: its move from %s was given up";
    default:
        return "nothing is known of %s and its move from %s";
    }
}

/* Replaces both %s of a sentence of this file. */
static void fill_in(const char *form, const char *vm, const char *peer, char *out, size_t size)
{
    const char *first = strstr(form, "%s"), *second = strstr(first + 2, "%s");
    snprintf(out, size, "%.*s%s%.*s%s%s", (int)(first - form), form, vm, (int)(second - first - 2),
             first + 2, peer, second + 2);
}

void ibx_journal_say(const struct ibx_journal *record, char *sentence, size_t size)
{
    char vm[256];
    bool uuid = record->uuid[0] && strspn(record->uuid, "0-") != strlen(record->uuid);
    if (record->name[0])
        snprintf(vm, sizeof(vm), "VM %s", record->name);
    else if (uuid)
        snprintf(vm, sizeof(vm), "VM %s", record->uuid);
    else
        snprintf(vm, sizeof(vm), "the VM of %.200s", record->qmp);
    const char *peer = record->peer[0]                    ? record->peer
                       : record->source && record->uri[0] ? record->uri
                                                          : "the other side";
    fill_in(record->source ? say_source(record->state) : say_destination(record->state), vm, peer,
            sentence, size);
    ibx_text_sanitize(sentence);
}
