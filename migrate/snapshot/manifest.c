/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/snapshot/snapshot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "ibx snapshot"

/* ------------------------------------------------------------ numbers as text */

static json_t *hex(const uint8_t *bytes, size_t count)
{
    char text[2 * IBX_SNAPSHOT_DIGEST + 1];
    for (size_t i = 0; i < count; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return json_string(text);
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool unhex(const json_t *json, uint8_t *bytes, size_t count)
{
    const char *text = json_string_value(json);
    if (!text || strlen(text) != 2 * count)
        return false;
    for (size_t i = 0; i < count; i++) {
        const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* ------------------------------------------------------------ writing */

static json_t *blocks_json(const struct ibx_snapshot_manifest *m)
{
    json_t *list = json_array();
    for (unsigned i = 0; list && i < m->ram_count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:I}", "id", m->ram[i].id, "size", (json_int_t)m->ram[i].size));
    return list;
}

int ibx_snapshot_manifest_write(const struct ibx_snapshot_manifest *m, char **text, size_t *length,
                                struct ibx_error *err)
{
    json_t *json = json_pack(
        "{s:s, s:i, s:o, s:b, s:b, s:[i,i,i], s:s, s:s, s:s, s:i, s:o, s:I, s:b, s:o, s:O}",
        "format", FORMAT, "version", (int)IBX_SNAPSHOT_VERSION, "id", hex(m->id, sizeof(m->id)),
        "complete", (int)m->complete, "ran", (int)m->ran, "qemu", (int)m->version.major,
        (int)m->version.minor, (int)m->version.micro, "machine", m->machine, "uuid", m->uuid,
        "name", m->name, "page_size", (int)IBX_SNAPSHOT_PAGE, "ram", blocks_json(m), "state_bytes",
        (json_int_t)m->state_bytes, "hashes", (int)m->hashed, "digest",
        hex(m->digest, sizeof(m->digest)), "description", m->description);
    char *whole = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!whole)
        return ibx_error_set(err, -ENOMEM, "no memory for the snapshot's manifest");
    if (strlen(whole) > IBX_SNAPSHOT_TEXT_MAX) {
        free(whole);
        return ibx_error_set(err, -EMSGSIZE,
                             "the description of this VM is longer than %u bytes: it has too many "
                             "devices for a snapshot",
                             IBX_SNAPSHOT_TEXT_MAX);
    }
    *text = whole;
    *length = strlen(whole);
    return 0;
}

/* ------------------------------------------------------------ reading */

static int wrong(struct ibx_error *err, const char *what)
{
    return ibx_error_set(err, -EPROTO, "the snapshot's manifest has no valid \"%s\"", what);
}

/* Copies a string that must be printable, without a NUL, and fit. */
static bool take_text(const json_t *json, const char *member, char *to, size_t size)
{
    const json_t *value = json_object_get(json, member);
    const char *text = json_string_value(value);
    const size_t length = json_string_length(value);
    if (!text || length >= size || strlen(text) != length)
        return false;
    memcpy(to, text, length + 1);
    ibx_text_sanitize(to);
    return true;
}

static bool take_bool(const json_t *json, const char *member, bool *to)
{
    const json_t *value = json_object_get(json, member);
    *to = json_is_true(value);
    return json_is_boolean(value);
}

static bool take_version(const json_t *json, struct ibx_qmp_version *version)
{
    unsigned *const parts[] = {&version->major, &version->minor, &version->micro};
    const json_t *list = json_object_get(json, "qemu");
    for (size_t i = 0; i < 3; i++) {
        const json_t *part = json_array_get(list, i);
        const json_int_t value = json_integer_value(part);
        if (!json_is_integer(part) || value < 0 || value > 9999)
            return false;
        *parts[i] = (unsigned)value;
    }
    return true;
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + IBX_SNAPSHOT_PAGE - 1) / IBX_SNAPSHOT_PAGE * IBX_SNAPSHOT_PAGE;
}

static int take_blocks(const json_t *json, struct ibx_snapshot_manifest *m, struct ibx_error *err)
{
    const json_t *list = json_object_get(json, "ram");
    const size_t count = json_array_size(list);
    uint64_t sum = 0;
    if (!count || count > IBX_SNAPSHOT_RAM_MAX)
        return wrong(err, "ram");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i), *size = json_object_get(item, "size");
        const json_int_t value = json_integer_value(size);
        if (!take_text(item, "id", m->ram[i].id, sizeof(m->ram[i].id)) || !m->ram[i].id[0] ||
            (i && strcmp(m->ram[i - 1].id, m->ram[i].id) >= 0))
            return wrong(err, "id");
        if (!json_is_integer(size) || value <= 0 || value % IBX_SNAPSHOT_PAGE ||
            (uint64_t)value > IBX_SNAPSHOT_BYTES_MAX - sum)
            return wrong(err, "size");
        m->ram[i].size = (uint64_t)value;
        sum += (uint64_t)value;
    }
    m->ram_count = (unsigned)count;
    const json_t *state = json_object_get(json, "state_bytes");
    const json_int_t bytes = json_integer_value(state);
    if (!json_is_integer(state) || bytes <= 0 || (uint64_t)bytes > IBX_SNAPSHOT_STATE_MAX)
        return wrong(err, "state_bytes");
    m->state_bytes = (uint64_t)bytes;
    return 0;
}

static int take(const json_t *json, struct ibx_snapshot_manifest *m, struct ibx_error *err)
{
    const char *format = json_string_value(json_object_get(json, "format"));
    const json_t *version = json_object_get(json, "version");
    if (!format || strcmp(format, FORMAT))
        return wrong(err, "format");
    if (json_integer_value(version) != IBX_SNAPSHOT_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT,
                             "the snapshot has version %lld, this ib-migrate knows version %u: use "
                             "one of the same release at both ends",
                             (long long)json_integer_value(version), IBX_SNAPSHOT_VERSION);
    if (json_integer_value(json_object_get(json, "page_size")) != IBX_SNAPSHOT_PAGE)
        return wrong(err, "page_size");
    if (!unhex(json_object_get(json, "id"), m->id, sizeof(m->id)))
        return wrong(err, "id");
    if (!unhex(json_object_get(json, "digest"), m->digest, sizeof(m->digest)))
        return wrong(err, "digest");
    if (!take_bool(json, "complete", &m->complete) || !take_bool(json, "ran", &m->ran))
        return wrong(err, "complete and ran");
    if (!take_bool(json, "hashes", &m->hashed))
        return wrong(err, "hashes");
    if (!take_version(json, &m->version))
        return wrong(err, "qemu");
    if (!take_text(json, "machine", m->machine, sizeof(m->machine)) ||
        !take_text(json, "uuid", m->uuid, sizeof(m->uuid)) ||
        !take_text(json, "name", m->name, sizeof(m->name)))
        return wrong(err, "machine, uuid and name");
    if (!json_is_object(json_object_get(json, "description")))
        return wrong(err, "description");
    return take_blocks(json, m, err);
}

int ibx_snapshot_manifest_read(const char *text, size_t length,
                               struct ibx_snapshot_manifest *manifest, struct ibx_error *err)
{
    json_error_t why;
    struct ibx_snapshot_manifest found = {.complete = false};
    json_t *json = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!json) {
        ibx_text_sanitize(why.text);
        return ibx_error_set(err, -EPROTO, "the snapshot's manifest is not JSON: %s at byte %d",
                             why.text, why.position);
    }
    int rc = take(json, &found, err);
    if (!rc) {
        found.description = json_incref(json_object_get(json, "description"));
        *manifest = found;
    }
    json_decref(json);
    return rc;
}

void ibx_snapshot_manifest_fini(struct ibx_snapshot_manifest *manifest)
{
    json_decref(manifest->description);
    manifest->description = NULL;
}

/* Whether both say the same of the VM. */
static bool is_same_vm(const struct ibx_snapshot_manifest *a, const struct ibx_snapshot_manifest *b)
{
    return a->ran == b->ran && a->version.major == b->version.major &&
           a->version.minor == b->version.minor && a->version.micro == b->version.micro &&
           !strcmp(a->machine, b->machine) && !strcmp(a->uuid, b->uuid) &&
           !strcmp(a->name, b->name) &&
           (a->description == b->description || json_equal(a->description, b->description));
}

bool ibx_snapshot_same(const struct ibx_snapshot_manifest *a, const struct ibx_snapshot_manifest *b)
{
    bool same = is_same_vm(a, b) && !memcmp(a->id, b->id, sizeof(a->id)) &&
                a->ram_count == b->ram_count && a->state_bytes == b->state_bytes &&
                a->hashed == b->hashed && !memcmp(a->digest, b->digest, sizeof(a->digest));
    for (unsigned i = 0; same && i < a->ram_count; i++)
        same = a->ram[i].size == b->ram[i].size && !strcmp(a->ram[i].id, b->ram[i].id);
    return same;
}

/* ------------------------------------------------------------ blocks */

unsigned ibx_snapshot_blocks(const struct ibx_snapshot_manifest *m,
                             struct ibx_migrate_block *blocks)
{
    for (unsigned i = 0; i < m->ram_count; i++) {
        blocks[i] =
            (struct ibx_migrate_block){.size = m->ram[i].size, .page_size = IBX_SNAPSHOT_PAGE};
        memcpy(blocks[i].id, m->ram[i].id, sizeof(blocks[i].id));
    }
    blocks[m->ram_count] = (struct ibx_migrate_block){
        .id = "state", .size = round_up(m->state_bytes), .page_size = IBX_SNAPSHOT_PAGE};
    if (!m->hashed)
        return m->ram_count + 1;
    blocks[m->ram_count + 1] =
        (struct ibx_migrate_block){.id = "hashes", .page_size = IBX_SNAPSHOT_PAGE};
    blocks[m->ram_count + 1].size = ibx_snapshot_table_bytes(m);
    return m->ram_count + 2;
}

uint64_t ibx_snapshot_hashed_pages(const struct ibx_snapshot_manifest *m)
{
    uint64_t bytes = round_up(m->state_bytes);
    for (unsigned i = 0; i < m->ram_count; i++)
        bytes += m->ram[i].size;
    return bytes / IBX_SNAPSHOT_PAGE;
}

uint64_t ibx_snapshot_table_bytes(const struct ibx_snapshot_manifest *m)
{
    return round_up(ibx_snapshot_hashed_pages(m) * IBX_SNAPSHOT_HASH);
}

int ibx_snapshot_map_init(const struct ibx_snapshot_manifest *m, struct ibx_page_map *map,
                          struct ibx_error *err)
{
    struct ibx_migrate_block *blocks = calloc(IBX_GUEST_BLOCKS_MAX, sizeof(*blocks));
    if (!blocks)
        return ibx_error_set(err, -ENOMEM, "no memory for %u blocks", IBX_GUEST_BLOCKS_MAX);
    int rc = ibx_page_map_init(map, blocks, ibx_snapshot_blocks(m, blocks), err);
    free(blocks);
    return rc;
}
