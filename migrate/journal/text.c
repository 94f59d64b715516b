/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What is in a record: its states and their moves, its JSON, its meaning for an operator. */
#include "migrate/journal/journal_internal.h"

#include "common/state_machine.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

/* 1 was without "was-running" and "guest-ram", 2 without "complete", 3 without "key-name", "allow",
 * "encryption" and "verify", 4 without "settings", "hold", "machine", "vm-status", "source-key",
 * "insecure" and the files of guest RAM, 5 without "libvirt", "borrow",
 * "base" and "whole". */
#define JOURNAL_VERSION 6

/* Every state may also be written again, with a higher epoch for instance. A move may skip states:
 * a side that was away learns how far the other has come. */
static const struct ibx_state source_states[] = {
    [IBX_JOURNAL_HERE] = {"here",
                          IBX_TO(IBX_JOURNAL_MAY_RUN) | IBX_TO(IBX_JOURNAL_KEPT) |
                              IBX_TO(IBX_JOURNAL_ROLLED_BACK),
                          IBX_STATE_INITIAL},
    [IBX_JOURNAL_MAY_RUN] = {"may-run",
                             IBX_TO(IBX_JOURNAL_MOVED) | IBX_TO(IBX_JOURNAL_DONE) |
                                 IBX_TO(IBX_JOURNAL_KEPT) | IBX_TO(IBX_JOURNAL_ROLLED_BACK) |
                                 IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_MOVED] = {"moved",
                           IBX_TO(IBX_JOURNAL_DONE) | IBX_TO(IBX_JOURNAL_ROLLED_BACK) |
                               IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_ENDED),
                           0},
    [IBX_JOURNAL_ENDED] = {"ended", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_BROKEN] = {"broken", IBX_TO(IBX_JOURNAL_ROLLED_BACK), 0},
    [IBX_JOURNAL_DONE] = {"done", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_KEPT] = {"kept", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_ROLLED_BACK] = {"rolled-back", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table source_table = IBX_STATE_TABLE("source record", source_states);

static const struct ibx_state destination_states[] = {
    [IBX_JOURNAL_NOT_YET] = {"not-yet", IBX_TO(IBX_JOURNAL_MAY_RUN) | IBX_TO(IBX_JOURNAL_GIVEN_UP),
                             IBX_STATE_INITIAL},
    [IBX_JOURNAL_MAY_RUN] = {"may-run",
                             IBX_TO(IBX_JOURNAL_RUNNING) | IBX_TO(IBX_JOURNAL_COMPLETE) |
                                 IBX_TO(IBX_JOURNAL_GIVEN_UP) | IBX_TO(IBX_JOURNAL_BROKEN) |
                                 IBX_TO(IBX_JOURNAL_SHUT_DOWN) | IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_RUNNING] = {"running",
                             IBX_TO(IBX_JOURNAL_COMPLETE) | IBX_TO(IBX_JOURNAL_GIVEN_UP) |
                                 IBX_TO(IBX_JOURNAL_BROKEN) | IBX_TO(IBX_JOURNAL_SHUT_DOWN) |
                                 IBX_TO(IBX_JOURNAL_ENDED),
                             0},
    [IBX_JOURNAL_SHUT_DOWN] = {"shut-down", IBX_TO(IBX_JOURNAL_ENDED), 0},
    [IBX_JOURNAL_ENDED] = {"ended", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_COMPLETE] = {"complete", IBX_TO(IBX_JOURNAL_DONE) | IBX_TO(IBX_JOURNAL_BROKEN), 0},
    [IBX_JOURNAL_BROKEN] = {"broken", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_DONE] = {"done", 0, IBX_STATE_FINAL},
    [IBX_JOURNAL_GIVEN_UP] = {"given-up", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table destination_table =
    IBX_STATE_TABLE("destination record", destination_states);

/* NULL: it is no state of this side. */
static const struct ibx_state *state_of(bool source, unsigned state)
{
    const struct ibx_state_table *table = source ? &source_table : &destination_table;
    return state < table->count && table->states[state].name ? &table->states[state] : NULL;
}

bool ibx_journal_move_allowed(bool source, enum ibx_journal_state previous,
                              enum ibx_journal_state state)
{
    const struct ibx_state *to = state_of(source, (unsigned)state);
    if (!previous)
        return to && to->flags & IBX_STATE_INITIAL;
    return to && (previous == state || ibx_state_allows(source ? &source_table : &destination_table,
                                                        (unsigned)previous, (unsigned)state));
}

bool ibx_journal_over(const struct ibx_journal *record)
{
    const struct ibx_state *state = state_of(record->source, (unsigned)record->state);
    return state && state->flags & IBX_STATE_FINAL;
}

const char *ibx_journal_state_name(enum ibx_journal_state state)
{
    const struct ibx_state *of_source = state_of(true, (unsigned)state),
                           *found = of_source ? of_source : state_of(false, (unsigned)state);
    return found ? found->name : "unknown";
}

/* ------------------------------------------------------------ to JSON */

json_t *ibx_json_text(const char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    char plain[PATH_MAX];
    snprintf(plain, sizeof(plain), "%s", text);
    ibx_text_sanitize(plain);
    return json_string(plain);
}

void ibx_hex_text(const uint8_t *bytes, size_t count, char *text)
{
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

static int check_text(const struct ibx_journal *record, struct ibx_error *err)
{
    const char *const texts[] = {record->qmp, record->uri, record->key_file, record->uuid};
    for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        json_t *json = json_string(texts[i]);
        json_decref(json);
        if (json)
            continue;
        ibx_error_set(err, -EINVAL,
                      "\"%s\" is not UTF-8 text, so no record can hold it: give it another name",
                      texts[i]);
        if (err)
            ibx_text_sanitize(err->message);
        return -EINVAL;
    }
    return 0;
}

static json_t *blocks_json(const struct ibx_journal *record)
{
    json_t *list = json_array();
    for (unsigned i = 0; list && i < record->block_count; i++) {
        const struct ibx_journal_block *b = &record->blocks[i];
        json_t *item = json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I}", "id", b->id, "size",
            (json_int_t)b->size, "page-size", (json_int_t)b->page_size, "offset",
            (json_int_t)b->offset, "address", (json_int_t)b->address, "dev", (json_int_t)b->dev,
            "ino", (json_int_t)b->ino, "path", b->file.path, "file", (json_int_t)b->file.file,
            "owner", (json_int_t)b->file.owner, "mode", (json_int_t)b->file.mode);
        if (json_array_append_new(list, item)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* The key is of no use any more when the migration is over. */
static json_t *verify_json(const struct ibx_journal *record)
{
    char key[2 * IBX_SECRET_BYTES + 1] = "";
    if (record->verify && !ibx_journal_over(record))
        ibx_hex_text(record->verify_key, IBX_SECRET_BYTES, key);
    json_t *json = json_string(key);
    OPENSSL_cleanse(key, sizeof(key));
    return json;
}

static json_t *totals_json(const struct ibx_journal *record)
{
    const struct ibx_journal_totals *c = &record->totals;
    char hash[2 * IBX_MIGRATE_HASH_BYTES + 1];
    if (!c->pages)
        return json_null();
    ibx_hex_text(c->hash, IBX_MIGRATE_HASH_BYTES, hash);
    return json_pack("{s:I, s:I, s:I, s:s}", "pages", (json_int_t)c->pages, "zero",
                     (json_int_t)c->zero_pages, "discarded", (json_int_t)c->discarded_pages, "hash",
                     hash);
}

static json_t *settings_json(const struct ibx_journal *record)
{
    return record->settings[0] ? json_loads(record->settings, 0, NULL) : json_null();
}

int ibx_journal_text_make(const struct ibx_journal *record, char **text, size_t *length,
                          struct ibx_error *err)
{
    const struct ibx_options options = {.encryption = record->encryption};
    char id[2 * IBX_MIGRATE_ID_BYTES + 1], base[2 * IBX_MIGRATE_ID_BYTES + 1], encryption[16];
    ibx_hex_text(record->id, IBX_MIGRATE_ID_BYTES, id);
    ibx_hex_text(record->base, IBX_MIGRATE_ID_BYTES, base);
    ibx_options_get(&options, "encryption", encryption, sizeof(encryption));
    if (check_text(record, err))
        return -EINVAL;
    json_t *json = json_pack(
        "{s:i, s:s, s:s, s:I, s:s, s:s, s:o, s:s, s:I, s:I, s:s, s:o, s:s, s:i, s:b, s:b, s:o, "
        "s:o, s:s, s:s, s:s, s:o, s:o, s:I, s:o, s:I, s:o, s:o, s:b, s:b, s:i, s:s, s:b}",
        "ibx-record", JOURNAL_VERSION, "id", id, "role", record->source ? "source" : "destination",
        "epoch", (json_int_t)record->epoch, "state", ibx_journal_state_name(record->state), "uuid",
        record->uuid, "name", ibx_json_text(record->name), "qmp", record->qmp, "pid",
        (json_int_t)record->pid, "pid-started", (json_int_t)record->pid_started, "uri", record->uri,
        "peer", ibx_json_text(record->peer), "key-file", record->key_file, "uffd", record->uffd,
        "device-way", record->device_way, "was-running", record->was_running, "guest-ram",
        blocks_json(record), "complete", totals_json(record), "key-name", record->key_name, "allow",
        record->allow, "encryption", encryption, "verify", verify_json(record), "settings",
        settings_json(record), "hold", (json_int_t)record->hold, "vm-status",
        ibx_json_text(record->vm_status), "written", (json_int_t)record->written_s, "machine",
        ibx_json_text(record->machine), "source-key",
        record->source_key_known ? json_string(record->source_key) : json_null(), "insecure",
        record->insecure, "libvirt", record->libvirt, "borrow", (int)record->borrow, "base", base,
        "whole", record->whole);
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
    for (unsigned i = IBX_JOURNAL_HERE; i <= IBX_JOURNAL_ENDED; i++) {
        const struct ibx_state *is = state_of(record->source, i);
        if (is && !strcmp(state, is->name)) {
            record->state = (enum ibx_journal_state)i;
            return 0;
        }
    }
    return ibx_error_set(err, -EINVAL, "state \"%.64s\" is none of a %s", state, role);
}

struct fields {
    int device_way, was_running, insecure, libvirt, whole;
    json_t *blocks;   /* borrowed; NULL: of the first version */
    json_t *complete; /* borrowed; NULL: of an earlier version */
    json_int_t version, uffd, epoch, pid, pid_started, written, hold, borrow;
    const char *base; /* NULL: of an earlier version */
    const char *id, *role, *state, *uuid, *name, *qmp, *uri, *peer, *key_file;
    const char *key_name, *allow, *encryption; /* of earlier versions: as without the option */
    const char *verify, *machine, *vm_status;  /* "" of an earlier version */
    json_t *settings, *source_key;             /* borrowed; NULL: of an earlier version */
};

static int take_numbers(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    if (f->epoch < 1 || f->pid < 0 || f->pid > INT_MAX || f->pid_started < 0 || f->uffd < -1 ||
        f->uffd > INT_MAX || f->written < 0 || f->hold < 0 || f->borrow < IBX_BORROW_NOT ||
        f->borrow > IBX_BORROW_FILL)
        return ibx_error_set(
            err, -EINVAL,
            "epoch %lld, pid %lld, pid-started %lld, uffd %lld, written %lld, hold %lld or "
            "borrow %lld is out of range",
            (long long)f->epoch, (long long)f->pid, (long long)f->pid_started, (long long)f->uffd,
            (long long)f->written, (long long)f->hold, (long long)f->borrow);
    record->borrow = (uint8_t)f->borrow;
    record->epoch = (uint64_t)f->epoch;
    record->pid = (pid_t)f->pid;
    record->pid_started = (uint64_t)f->pid_started;
    record->uffd = (int)f->uffd;
    record->device_way = f->device_way;
    record->was_running = f->was_running;
    record->insecure = f->insecure;
    record->libvirt = f->libvirt;
    record->whole = f->whole;
    record->hold = (uint64_t)f->hold;
    record->written_s = (uint64_t)f->written;
    return 0;
}

static int take_file(const char *path, json_int_t file, json_int_t owner, json_int_t mode,
                     struct ibx_guest_file *out, struct ibx_error *err)
{
    if ((*path && *path != '/') || strlen(path) >= sizeof(out->path) || owner < 0 ||
        owner > UINT32_MAX || mode < 0 || mode > UINT32_MAX)
        return ibx_error_set(err, -EINVAL,
                             "guest RAM's path \"%.64s\" is no absolute one of up to %zu bytes, or "
                             "owner %lld or mode %lld is out of range",
                             path, sizeof(out->path) - 1, (long long)owner, (long long)mode);
    *out = (struct ibx_guest_file){
        .file = (uint64_t)file, .owner = (uint32_t)owner, .mode = (uint32_t)mode};
    memcpy(out->path, path, strlen(path) + 1);
    return 0;
}

#define FIRST_BLOCK "{s:s, s:I, s:I, s:I, s:I, s:I, s:I"

/* dev, ino and file are any 64 bits. */
static int take_block(json_t *json, json_int_t version, const struct ibx_journal_block *previous,
                      struct ibx_journal_block *block, struct ibx_error *err)
{
    const char *id, *path = "";
    json_int_t size, page, offset, address, dev, ino, file = 0, owner = 0, mode = 0;
    json_error_t why;
    if (json_unpack_ex(json, &why, JSON_STRICT,
                       version < 5 ? FIRST_BLOCK "}" : FIRST_BLOCK ", s:s, s:I, s:I, s:I}", "id",
                       &id, "size", &size, "page-size", &page, "offset", &offset, "address",
                       &address, "dev", &dev, "ino", &ino, "path", &path, "file", &file, "owner",
                       &owner, "mode", &mode))
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
    return take_file(path, file, owner, mode, &block->file, err);
}

static int take_blocks(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    json_t *list = f->blocks;
    const size_t count = json_array_size(list);
    if (list && (!json_is_array(list) || count > IBX_GUEST_BLOCKS_MAX))
        return ibx_error_set(err, -EINVAL, "guest-ram is no list of up to %u blocks",
                             IBX_GUEST_BLOCKS_MAX);
    for (size_t i = 0; i < count; i++) {
        int rc = take_block(json_array_get(list, i), f->version, i ? &record->blocks[i - 1] : NULL,
                            &record->blocks[i], err);
        if (rc)
            return rc;
    }
    record->block_count = (unsigned)count;
    return 0;
}

/* Earlier versions wrote DONE without totals. */
static int take_totals(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_journal_totals *c = &record->totals;
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

/* What is in it is QEMU's, which checks it. */
static int take_settings(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    if (!f->settings || json_is_null(f->settings))
        return 0;
    const size_t length =
        json_is_object(f->settings)
            ? json_dumpb(f->settings, record->settings, sizeof(record->settings) - 1, JSON_COMPACT)
            : 0;
    if (!length || length >= sizeof(record->settings))
        return ibx_error_set(err, -EINVAL, "settings is no object of up to %zu bytes",
                             sizeof(record->settings) - 1);
    record->settings[length] = '\0';
    return 0;
}

/* The options check their values. */
static int take_options(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    struct ibx_options options;
    ibx_options_init(&options);
    int rc = ibx_options_set(&options, "name", f->key_name, err);
    rc = rc ? rc : ibx_options_set(&options, "allow", f->allow, err);
    rc = rc ? rc : ibx_options_set(&options, "encryption", f->encryption, err);
    memcpy(record->key_name, options.name, sizeof(record->key_name));
    memcpy(record->allow, options.allow, sizeof(record->allow));
    record->encryption = options.encryption;
    return rc;
}

static int take_source_key(const struct fields *f, struct ibx_journal *record,
                           struct ibx_error *err)
{
    if (!f->source_key || json_is_null(f->source_key))
        return 0;
    const char *name = json_string_value(f->source_key);
    if (!name || strlen(name) >= sizeof(record->source_key))
        return ibx_error_set(err, -EINVAL, "source-key is no text of up to %zu bytes",
                             sizeof(record->source_key) - 1);
    memcpy(record->source_key, name, strlen(name) + 1);
    record->source_key_known = true;
    return 0;
}

static int take_fields(const struct fields *f, struct ibx_journal *record, struct ibx_error *err)
{
    const struct {
        const char *key, *text;
        char *out;
        size_t size;
    } texts[] = {{"uuid", f->uuid, record->uuid, sizeof(record->uuid)},
                 {"name", f->name, record->name, sizeof(record->name)},
                 {"qmp", f->qmp, record->qmp, sizeof(record->qmp)},
                 {"uri", f->uri, record->uri, sizeof(record->uri)},
                 {"peer", f->peer, record->peer, sizeof(record->peer)},
                 {"machine", f->machine, record->machine, sizeof(record->machine)},
                 {"vm-status", f->vm_status, record->vm_status, sizeof(record->vm_status)},
                 {"key-file", f->key_file, record->key_file, sizeof(record->key_file)}};
    int rc = take_hex("id", f->id, record->id, IBX_MIGRATE_ID_BYTES, err);
    rc = rc ? rc : take_state(f->role, f->state, record, err);
    rc = rc ? rc : take_totals(f, record, err);
    rc = rc ? rc : take_numbers(f, record, err);
    rc = rc ? rc : take_blocks(f, record, err);
    rc = rc ? rc : take_options(f, record, err);
    rc = rc ? rc : take_settings(f, record, err);
    rc = rc ? rc : take_source_key(f, record, err);
    if (!rc && f->base)
        rc = take_hex("base", f->base, record->base, IBX_MIGRATE_ID_BYTES, err);
    record->verify = f->verify[0];
    if (!rc && record->verify)
        rc = take_hex("verify", f->verify, record->verify_key, IBX_SECRET_BYTES, err);
    for (unsigned i = 0; !rc && i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strlen(texts[i].text) >= texts[i].size)
            return ibx_error_set(err, -EINVAL, "%s has %zu bytes: %zu at most", texts[i].key,
                                 strlen(texts[i].text), texts[i].size - 1);
        memcpy(texts[i].out, texts[i].text, strlen(texts[i].text) + 1);
    }
    return rc;
}

#define FIRST_FIELDS                                                                               \
    "{s:I, s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:I, s:b, s:I"

#define FIFTH_FIELDS                                                                               \
    FIRST_FIELDS ", s:b, s:o, s:o, s:s, s:s, s:s, s:s, s:o, s:I, s:s, s:s, s:o, s:b"

static int take_json(json_t *json, struct ibx_journal *record, struct ibx_error *err)
{
    /* Earlier versions did not note it. */
    struct fields f = {.was_running = true,
                       .key_name = "",
                       .allow = "",
                       .encryption = "auto",
                       .verify = "",
                       .machine = "",
                       .vm_status = ""};
    json_error_t why;
    json_t *version = json_object_get(json, "ibx-record");
    if (!json_is_integer(version))
        return ibx_error_set(err, -EINVAL, "it has no \"ibx-record\"");
    const json_int_t number = json_integer_value(version);
    if (number < 1 || number > JOURNAL_VERSION)
        return ibx_error_set(err, -EINVAL, "it is of version %lld, this ib-migrate knows 1 to %d",
                             (long long)number, JOURNAL_VERSION);
    if (json_unpack_ex(json, &why, JSON_STRICT,
                       number == 1   ? FIRST_FIELDS "}"
                       : number == 2 ? FIRST_FIELDS ", s:b, s:o}"
                       : number == 3 ? FIRST_FIELDS ", s:b, s:o, s:o}"
                       : number == 4 ? FIRST_FIELDS ", s:b, s:o, s:o, s:s, s:s, s:s, s:s}"
                       : number == 5 ? FIFTH_FIELDS "}"
                                     : FIFTH_FIELDS ", s:b, s:I, s:s, s:b}",
                       "ibx-record", &f.version, "id", &f.id, "role", &f.role, "epoch", &f.epoch,
                       "state", &f.state, "uuid", &f.uuid, "name", &f.name, "qmp", &f.qmp, "pid",
                       &f.pid, "pid-started", &f.pid_started, "uri", &f.uri, "peer", &f.peer,
                       "key-file", &f.key_file, "uffd", &f.uffd, "device-way", &f.device_way,
                       "written", &f.written, "was-running", &f.was_running, "guest-ram", &f.blocks,
                       "complete", &f.complete, "key-name", &f.key_name, "allow", &f.allow,
                       "encryption", &f.encryption, "verify", &f.verify, "settings", &f.settings,
                       "hold", &f.hold, "machine", &f.machine, "vm-status", &f.vm_status,
                       "source-key", &f.source_key, "insecure", &f.insecure, "libvirt", &f.libvirt,
                       "borrow", &f.borrow, "base", &f.base, "whole", &f.whole))
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

/* The first %s is the VM, the second the other side; @ is "runs", or what else it does. */
static const char *const source_texts[] = {
    [IBX_JOURNAL_HERE] = "%s is here: its migration to %s has not come to the point where it could "
                         "run there",
    [IBX_JOURNAL_MAY_RUN] = "%s may run at %s or still be here: only the destination knows, and "
                            "\"ib-migrate recover\" asks it before anything is started",
    [IBX_JOURNAL_MOVED] = "%s @ at %s and not here, but this side has pages that it needs: "
                          "leave this QEMU as it is; \"ib-migrate recover\" continues to send them",
    [IBX_JOURNAL_DONE] = "%s @ at %s with all of its pages: this QEMU is not needed any more "
                         "and must not be continued",
    [IBX_JOURNAL_KEPT] = "%s stayed here: its migration to %s ended before it could run there",
    [IBX_JOURNAL_BROKEN] = "%s ran at %s with memory that is not what it was here, and was paused "
                           "there: end its QEMU there, then \"ib-migrate rollback\" here restarts "
                           "it from its stop",
    [IBX_JOURNAL_ROLLED_BACK] = "%s was taken back from %s and runs here from where it had "
                                "stopped: it must not run there",
    [IBX_JOURNAL_ENDED] = "%s was shut down by its guest at %s, before all of its pages were "
                          "there: nothing is lost and nothing to be done, and this QEMU must not "
                          "be continued",
};
static const char *const destination_texts[] = {
    [IBX_JOURNAL_NOT_YET] = "%s does not run here yet: it is at %s",
    [IBX_JOURNAL_MAY_RUN] = "%s may run here or still be at %s: this QEMU knows, and \"ib-migrate "
                            "recover\" asks it",
    [IBX_JOURNAL_RUNNING] = "%s @ here and needs pages that are still at %s: leave both QEMUs "
                            "as they are; \"ib-migrate recover\" continues to fetch them",
    [IBX_JOURNAL_COMPLETE] = "%s @ here with all of its pages, but %s has not confirmed it and "
                             "keeps them, too: run \"ib-migrate recover\" here, or there if its "
                             "state is done",
    [IBX_JOURNAL_DONE] = "%s @ here with all of its pages: the QEMU at %s is not needed any more",
    [IBX_JOURNAL_BROKEN] = "%s ran here with memory that is not what it was at %s, and was paused: "
                           "end this QEMU; \"ib-migrate rollback\" at the source restarts it from "
                           "its stop",
    [IBX_JOURNAL_GIVEN_UP] = "%s does not run here: its migration from %s was given up",
    [IBX_JOURNAL_SHUT_DOWN] = "%s was shut down by its guest here, and %s, which still keeps its "
                              "pages, does not know it: run \"ib-migrate recover\" here",
    [IBX_JOURNAL_ENDED] = "%s was shut down by its guest here, before all of its pages had come "
                          "from %s: nothing is lost and nothing to be done",
};

/* What the forms leave open, in their order; a compiler could not check them as formats. */
static void fill_in(const char *form, const char *vm, const char *does, const char *peer, char *out,
                    size_t size)
{
    const char *names[] = {vm, peer};
    unsigned next = 0;
    for (size_t used = 0; *form && used + 1 < size; used = strlen(out)) {
        const size_t plain = strcspn(form, "%@");
        snprintf(out + used, size - used, "%.*s%s", (int)plain, form,
                 form[plain] == '@'   ? does
                 : form[plain] == '%' ? names[next++]
                                      : "");
        form += plain + (form[plain] == '@' ? 1 : form[plain] ? 2 : 0);
    }
}

void ibx_journal_describe(const struct ibx_journal *record, char *text, size_t size)
{
    char vm[256], does[96];
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
    const char *form = "nothing is known of %s and its migration with %s";
    if (state_of(record->source, (unsigned)record->state))
        form = record->source ? source_texts[record->state] : destination_texts[record->state];
    if (ibx_journal_lost_there(record))
        form =
            "%s ran at %s, and its QEMU there has ended: \"ib-migrate rollback\" restarts it from "
            "its stop";
    if (ibx_journal_lost_there(record) && record->borrow)
        form = "%s was borrowed by %s, and its QEMU there has ended: \"ib-migrate rollback\" "
               "restarts it from its stop, unless a return of it had begun";
    if (record->borrow && record->state == IBX_JOURNAL_MOVED && !ibx_journal_lost_there(record))
        form = "%s @ at %s, borrowed from here: this side has the memory that it returns to and "
               "the pages that it needs: leave this QEMU as it is; \"ib-migrate recover\" "
               "continues to send them";
    if (record->borrow && record->state == IBX_JOURNAL_RUNNING)
        form = "%s @ here, borrowed from %s, which has the other pages: \"ib-migrate return\" "
               "brings it home; \"ib-migrate recover\" continues to fetch them";
    if (ibx_journal_has_returned(record))
        form = record->source
                   ? "%s was borrowed by %s and has returned: nothing is to be done here"
                   : "%s was borrowed here and has returned to %s: nothing is to be done";
    if (ibx_journal_stands(record))
        snprintf(does, sizeof(does), "was \"%s\" when QEMU was last asked, and is",
                 record->vm_status);
    else
        snprintf(does, sizeof(does), "runs");
    fill_in(form, vm, does, peer, text, size);
    if (record->libvirt && !ibx_journal_over(record) && strlen(text) < size)
        snprintf(text + strlen(text), size - strlen(text),
                 " (libvirt decides where it runs: see virsh list on both hosts)");
    ibx_text_sanitize(text);
}
