/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A record as JSON, and back. */
#include "migrate/journal/journal_internal.h"

#include <errno.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

/* Earlier versions: 1 lacks "was-running" and "guest-ram"; 2 lacks "complete"; 3 lacks "key-name",
 * "allow", "encryption" and "verify"; 4 lacks "settings", "hold", "machine", "vm-status",
 * "source-key", "insecure" and the files of guest RAM; 5 lacks "libvirt", "borrow", "base" and
 * "whole"; 6 lacks "stream"; 7 lacks "guarded"; 8 lacks "number" and "qemu-migration"; 9 lacks
 * "boot". */
#define JOURNAL_VERSION 10

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

static int check_text(const struct ibx_record *record, struct ibx_error *err)
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

static json_t *blocks_json(const struct ibx_record *record)
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

/* Leaves the key out once the migration is over. */
static json_t *verify_json(const struct ibx_record *record)
{
    char key[2 * IBX_SECRET_BYTES + 1] = "";
    if (record->verify && !ibx_journal_over(record))
        ibx_hex_text(record->verify_key, IBX_SECRET_BYTES, key);
    json_t *json = json_string(key);
    OPENSSL_cleanse(key, sizeof(key));
    return json;
}

static json_t *totals_json(const struct ibx_record *record)
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

static json_t *settings_json(const struct ibx_record *record)
{
    return record->settings[0] ? json_loads(record->settings, 0, NULL) : json_null();
}

int ibx_journal_text_make(const struct ibx_record *record, char **text, size_t *length,
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
        "s:o, s:s, s:s, s:s, s:o, s:o, s:I, s:o, s:I, s:o, s:o, s:b, s:b, s:i, s:s, s:b, s:I, "
        "s:b, s:I, s:s, s:s}",
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
        "whole", record->whole, "stream", (json_int_t)record->stream, "guarded",
        record->all_protected, "number", (json_int_t)record->number, "qemu-migration",
        record->qemu_migration, "boot", record->boot);
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

static int take_state(const char *role, const char *state, struct ibx_record *record,
                      struct ibx_error *err)
{
    record->source = !strcmp(role, "source");
    if (!record->source && strcmp(role, "destination") != 0)
        return ibx_error_set(err, -EINVAL, "role \"%.64s\" is neither source nor destination",
                             role);
    for (unsigned i = IBX_JOURNAL_HERE; i <= IBX_JOURNAL_ENDED; i++) {
        const struct ibx_state *is = ibx_journal_state_of(record->source, i);
        if (is && !strcmp(state, is->name)) {
            record->state = (enum ibx_journal_state)i;
            return 0;
        }
    }
    return ibx_error_set(err, -EINVAL, "state \"%.64s\" is none of a %s", state, role);
}

struct fields {
    int device_way, was_running, insecure, libvirt, whole, all_protected;
    json_t *blocks;   /* borrowed; NULL: of the first version */
    json_t *complete; /* borrowed; NULL: of an earlier version */
    json_int_t version, uffd, epoch, pid, pid_started, written, hold, borrow, stream, number;
    const char *base; /* NULL: of an earlier version */
    const char *id, *role, *state, *uuid, *name, *qmp, *uri, *peer, *key_file;
    const char *key_name, *allow, *encryption; /* an earlier version: the options' defaults */
    const char *verify, *machine, *vm_status, *qemu_migration, *boot; /* "" of an earlier version */
    json_t *settings, *source_key; /* borrowed; NULL: of an earlier version */
};

static int take_numbers(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
{
    if (f->epoch < 1 || f->pid < 0 || f->pid > INT_MAX || f->pid_started < 0 || f->uffd < -1 ||
        f->uffd > INT_MAX || f->written < 0 || f->hold < 0 || f->stream < 0 || f->number < 0 ||
        f->borrow < IBX_BORROW_NOT || f->borrow > IBX_BORROW_FILL)
        return ibx_error_set(
            err, -EINVAL,
            "epoch %lld, pid %lld, pid-started %lld, uffd %lld, written %lld, hold %lld, "
            "stream %lld, number %lld or borrow %lld is out of range",
            (long long)f->epoch, (long long)f->pid, (long long)f->pid_started, (long long)f->uffd,
            (long long)f->written, (long long)f->hold, (long long)f->stream, (long long)f->number,
            (long long)f->borrow);
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
    record->all_protected = f->all_protected;
    record->hold = (uint64_t)f->hold;
    record->stream = (uint64_t)f->stream;
    record->number = (uint64_t)f->number;
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

/* dev, ino and file may have all 64 bits set, so negative numbers are accepted for them. */
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

static int take_blocks(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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
static int take_totals(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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

/* The contents are not checked here: QEMU checks them when they are restored. */
static int take_settings(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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

/* Sets the transport's options, which check the values. */
static int take_options(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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

static int take_source_key(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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

static int take_fields(const struct fields *f, struct ibx_record *record, struct ibx_error *err)
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
                 {"qemu-migration", f->qemu_migration, record->qemu_migration,
                  sizeof(record->qemu_migration)},
                 {"boot", f->boot, record->boot, sizeof(record->boot)},
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

static int take_json(json_t *json, struct ibx_record *record, struct ibx_error *err)
{
    /* The values for fields that earlier versions did not write. */
    struct fields f = {.was_running = true,
                       .key_name = "",
                       .allow = "",
                       .encryption = "auto",
                       .verify = "",
                       .machine = "",
                       .vm_status = "",
                       .qemu_migration = "",
                       .boot = ""};
    json_error_t why;
    json_t *version = json_object_get(json, "ibx-record");
    if (!json_is_integer(version))
        return ibx_error_set(err, -EINVAL, "it has no \"ibx-record\"");
    const json_int_t number = json_integer_value(version);
    if (number > JOURNAL_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "is of version %lld, of a later ib-migrate, and this one knows 1 to "
                             "%d: use the release that wrote it, or a later one",
                             (long long)number, JOURNAL_VERSION);
    if (number < 1)
        return ibx_error_set(err, -EINVAL, "it is of version %lld, this ib-migrate knows 1 to %d",
                             (long long)number, JOURNAL_VERSION);
    if (json_unpack_ex(
            json, &why, JSON_STRICT,
            number == 1   ? FIRST_FIELDS "}"
            : number == 2 ? FIRST_FIELDS ", s:b, s:o}"
            : number == 3 ? FIRST_FIELDS ", s:b, s:o, s:o}"
            : number == 4 ? FIRST_FIELDS ", s:b, s:o, s:o, s:s, s:s, s:s, s:s}"
            : number == 5 ? FIFTH_FIELDS "}"
            : number == 6 ? FIFTH_FIELDS ", s:b, s:I, s:s, s:b}"
            : number == 7 ? FIFTH_FIELDS ", s:b, s:I, s:s, s:b, s:I}"
            : number == 8 ? FIFTH_FIELDS ", s:b, s:I, s:s, s:b, s:I, s:b}"
            : number == 9 ? FIFTH_FIELDS ", s:b, s:I, s:s, s:b, s:I, s:b, s:I, s:s}"
                          : FIFTH_FIELDS ", s:b, s:I, s:s, s:b, s:I, s:b, s:I, s:s, s:s}",
            "ibx-record", &f.version, "id", &f.id, "role", &f.role, "epoch", &f.epoch, "state",
            &f.state, "uuid", &f.uuid, "name", &f.name, "qmp", &f.qmp, "pid", &f.pid, "pid-started",
            &f.pid_started, "uri", &f.uri, "peer", &f.peer, "key-file", &f.key_file, "uffd",
            &f.uffd, "device-way", &f.device_way, "written", &f.written, "was-running",
            &f.was_running, "guest-ram", &f.blocks, "complete", &f.complete, "key-name",
            &f.key_name, "allow", &f.allow, "encryption", &f.encryption, "verify", &f.verify,
            "settings", &f.settings, "hold", &f.hold, "machine", &f.machine, "vm-status",
            &f.vm_status, "source-key", &f.source_key, "insecure", &f.insecure, "libvirt",
            &f.libvirt, "borrow", &f.borrow, "base", &f.base, "whole", &f.whole, "stream",
            &f.stream, "guarded", &f.all_protected, "number", &f.number, "qemu-migration",
            &f.qemu_migration, "boot", &f.boot))
        return ibx_error_set(err, -EINVAL, "%.200s", why.text);
    return take_fields(&f, record, err);
}

int ibx_journal_text_parse(const char *text, size_t length, struct ibx_record *record,
                           struct ibx_error *err)
{
    json_error_t why;
    struct ibx_record found = {0};
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
