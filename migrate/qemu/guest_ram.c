/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/qemu/qemu_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What every query to QEMU needs. */
struct search {
    struct ibx_qmp *qmp;
    uint64_t deadline_ns;
    struct ibx_error *err;
};

static int ask(const struct search *s, const char *command, json_t *arguments, json_t **result)
{
    return ibx_qmp_execute(s->qmp, command, arguments, result, s->deadline_ns, s->err);
}

/* ------------------------------------------------------------ properties */

static int qom_get(const struct search *s, const char *path, const char *property, json_t **value)
{
    return ask(s, "qom-get", json_pack("{s:s,s:s}", "path", path, "property", property), value);
}

/* Copies a string that must be there and must fit. */
static int take_text(const struct search *s, const char *what, const json_t *value, char *to,
                     size_t size)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) >= size)
        return ibx_error_set(s->err, -EPROTO,
                             "QEMU's answer about %s is not a text of up to %zu bytes", what,
                             size - 1);
    memcpy(to, text, strlen(text) + 1);
    return 0;
}

static int qom_text(const struct search *s, const char *path, const char *property, char *to,
                    size_t size)
{
    json_t *value;
    int rc = qom_get(s, path, property, &value);
    if (rc)
        return rc;
    rc = take_text(s, property, value, to, size);
    json_decref(value);
    return rc;
}

/* Copies a string field of the result of a command without arguments. */
static int field_text(const struct search *s, const char *command, const char *field, char *to,
                      size_t size)
{
    json_t *value;
    int rc = ask(s, command, NULL, &value);
    if (rc)
        return rc;
    rc = take_text(s, command, json_object_get(value, field), to, size);
    json_decref(value);
    return rc;
}

/* The VM's name, if it has one. It is only shown to people, so one that is too long is cut, between
 * two UTF-8 characters. */
static int find_name(const struct search *s, char *to, size_t size)
{
    json_t *value;
    int rc = ask(s, "query-name", NULL, &value);
    if (rc)
        return rc;
    const char *name = json_string_value(json_object_get(value, "name"));
    size_t length = name ? strlen(name) : 0;
    if (length >= size)
        for (length = size - 1; length && ((unsigned char)name[length] & 0xc0) == 0x80;)
            length--;
    snprintf(to, size, "%.*s", (int)length, name ? name : "");
    json_decref(value);
    return 0;
}

/* QEMU before 8.1 has no property "offset": a backend always begins at the start of its file. */
static bool offset_is_told(const struct search *s)
{
    return ibx_qmp_at_least(ibx_qmp_version(s->qmp), 8, 1);
}

/* Sends all queries that are needed in any case, so that QEMU answers them together. */
static void ask_first(const struct search *s)
{
    static const char *const commands[] = {"query-uuid", "query-name", "query-status",
                                           "query-memory-size-summary", "query-memdev"};
    ibx_qmp_ahead(s->qmp, "qom-get", json_pack("{s:s,s:s}", "path", "/machine", "property", "type"),
                  s->deadline_ns);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        ibx_qmp_ahead(s->qmp, commands[i], NULL, s->deadline_ns);
    ibx_qmp_ahead(s->qmp, "qom-list", json_pack("{s:s}", "path", "/objects"), s->deadline_ns);
}

static void ask_backend(const struct search *s, const char *id)
{
    static const char *const properties[] = {"mem-path", "discard-data", "offset"};
    char path[IBX_GUEST_ID_MAX + 16];
    snprintf(path, sizeof(path), "/objects/%s", id);
    for (size_t i = 0; i < (offset_is_told(s) ? 3u : 2u); i++)
        ibx_qmp_ahead(s->qmp, "qom-get",
                      json_pack("{s:s,s:s}", "path", path, "property", properties[i]),
                      s->deadline_ns);
}

void ibx_guest_ram_ask(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    const struct search s = {qmp, deadline_ns, NULL};
    ask_first(&s);
}

void ibx_guest_ram_ask_backends(struct ibx_qmp *qmp, uint64_t deadline_ns)
{
    const struct search s = {qmp, deadline_ns, NULL};
    json_t *list, *item;
    size_t i;
    if (ask(&s, "query-memdev", NULL, &list))
        return;
    json_array_foreach(list, i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (id && strlen(id) < IBX_GUEST_ID_MAX)
            ask_backend(&s, id);
    }
    json_decref(list);
}

static int read_machine(const struct search *s, struct ibx_guest_ram *ram)
{
    static const char suffix[] = "-machine";
    int rc = qom_text(s, "/machine", "type", ram->machine, sizeof(ram->machine));
    if (rc)
        return rc;
    size_t n = strlen(ram->machine);
    if (n > sizeof(suffix) && !strcmp(ram->machine + n - (sizeof(suffix) - 1), suffix))
        ram->machine[n - (sizeof(suffix) - 1)] = '\0';
    if ((rc = field_text(s, "query-uuid", "UUID", ram->uuid, sizeof(ram->uuid))) ||
        (rc = find_name(s, ram->name, sizeof(ram->name))) ||
        (rc = field_text(s, "query-status", "status", ram->status, sizeof(ram->status))))
        return rc;
    json_t *memory;
    rc = ask(s, "query-memory-size-summary", NULL, &memory);
    if (rc)
        return rc;
    json_int_t base = json_integer_value(json_object_get(memory, "base-memory"));
    json_int_t plugged = json_integer_value(json_object_get(memory, "plugged-memory"));
    json_decref(memory);
    if (base < 0 || plugged < 0)
        return ibx_error_set(s->err, -EPROTO, "QEMU reports a negative memory size");
    ram->machine_bytes = (uint64_t)base + (uint64_t)plugged;
    return 0;
}

/* ------------------------------------------------------------ backends */

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct ibx_guest_block *)a)->id, ((const struct ibx_guest_block *)b)->id);
}

/* Finds the type of a backend by one query for all backends, which preflight makes, too. */
static int read_type(const struct search *s, const json_t *objects, struct ibx_guest_block *block)
{
    static const char child[] = "child<";
    const size_t n = sizeof(child) - 1;
    json_t *item;
    size_t index;
    json_array_foreach(objects, index, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *type = json_string_value(json_object_get(item, "type"));
        const size_t length = name && type && !strcmp(name, block->id) ? strlen(type) : 0;
        if (length > n && !strncmp(type, child, n) && length - n <= sizeof(block->type)) {
            memcpy(block->type, type + n, length - n - 1);
            block->type[length - n - 1] = '\0';
            return 0;
        }
    }
    return ibx_error_set(s->err, -EPROTO, "QEMU's answer about its objects lacks the type of %s",
                         block->id);
}

/* The properties of one backend; its id and size are known. */
static int read_backend(const struct search *s, const json_t *objects,
                        struct ibx_guest_block *block)
{
    char path[IBX_GUEST_ID_MAX + 16];
    snprintf(path, sizeof(path), "/objects/%s", block->id);
    int rc = read_type(s, objects, block);
    if (rc || strcmp(block->type, "memory-backend-file"))
        return rc;
    if ((rc = qom_text(s, path, "mem-path", block->path, sizeof(block->path))))
        return rc;
    json_t *discards;
    if ((rc = qom_get(s, path, "discard-data", &discards)))
        return rc;
    block->discards = json_is_true(discards);
    json_decref(discards);
    if (!offset_is_told(s))
        return 0;
    json_t *offset;
    if ((rc = qom_get(s, path, "offset", &offset)))
        return rc;
    json_int_t value = json_integer_value(offset);
    json_decref(offset);
    if (value < 0)
        return ibx_error_set(s->err, -EPROTO, "QEMU reports a negative offset of %s in its file",
                             block->id);
    block->offset = (uint64_t)value;
    return 0;
}

static int read_backends(const struct search *s, struct ibx_guest_ram *ram)
{
    json_t *list, *objects = NULL;
    int rc = ask(s, "query-memdev", NULL, &list);
    if (rc)
        return rc;
    size_t count = json_array_size(list);
    if (!count || count > IBX_GUEST_BLOCKS_MAX) {
        json_decref(list);
        return ibx_error_set(s->err, -ENOTSUP,
                             "this QEMU has %zu memory backends, 1 to %u can migrate: give it its "
                             "RAM by -object memory-backend-file and -machine memory-backend=",
                             count, IBX_GUEST_BLOCKS_MAX);
    }
    ram->blocks = calloc(count, sizeof(*ram->blocks));
    if (!ram->blocks)
        rc = ibx_error_set(s->err, -ENOMEM, "out of memory");
    if (!rc)
        rc = ask(s, "qom-list", json_pack("{s:s}", "path", "/objects"), &objects);
    for (size_t i = 0; !rc && i < count; i++) {
        json_t *item = json_array_get(list, i);
        struct ibx_guest_block *block = &ram->blocks[ram->count++];
        block->fd = -1;
        block->shared = json_is_true(json_object_get(item, "share"));
        json_int_t size = json_integer_value(json_object_get(item, "size"));
        if (size <= 0)
            rc = ibx_error_set(s->err, -EPROTO, "QEMU reports a memory backend without a size");
        block->size = (uint64_t)size;
        ram->bytes += block->size;
        if (!rc)
            rc = take_text(s, "a memory backend", json_object_get(item, "id"), block->id,
                           sizeof(block->id));
        if (!rc)
            rc = read_backend(s, objects, block);
    }
    json_decref(list);
    json_decref(objects);
    if (!rc)
        qsort(ram->blocks, ram->count, sizeof(*ram->blocks), by_id);
    return rc;
}

/* ------------------------------------------------------------ addresses by the human monitor */

static int monitor(const struct search *s, const char *line, json_t **text)
{
    int rc = ask(s, "human-monitor-command", json_pack("{s:s}", "command-line", line), text);
    if (!rc && !json_is_string(*text)) {
        json_decref(*text);
        rc = ibx_error_set(s->err, -EPROTO, "QEMU's monitor answered %s without text", line);
    }
    return rc;
}

/* Whether lines of this type may be of a backend: nv-, of an NVDIMM, rom if the guest may not write
 * to it. */
static bool is_memory(const char *type)
{
    return !strcmp(type, "ram") || !strcmp(type, "nv-ram") || !strcmp(type, "nv-rom");
}

/* A line of a backend:
 *   0000000000100000-0000000003ffffff (prio 0, ram): mem0 @0000000000100000 */
bool ibx_guest_physical_find(const char *tree, const char *id, uint64_t *physical, uint64_t *into)
{
    for (const char *line = tree; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        uint64_t start, end, at = 0;
        char type[16], name[IBX_GUEST_ID_MAX + 16];
        int fields = sscanf(line, " %" SCNx64 "-%" SCNx64 " (prio %*d, %15[a-z-]): %143s @%" SCNx64,
                            &start, &end, type, name, &at);
        if (fields < 4 || !is_memory(type) ||
            strcmp(strncmp(name, "/objects/", 9) ? name : name + 9, id))
            continue;
        *physical = start;
        *into = fields == 5 ? at : 0;
        return true;
    }
    return false;
}

/* The host address of a block by QEMU's human monitor, since memfds cannot be told apart in /proc.
 * 0: the machine does not show it. */
static int ask_address(const struct search *s, const struct ibx_guest_block *block,
                       uint64_t *address)
{
    json_t *text;
    int rc = monitor(s, "info mtree -f", &text);
    if (rc)
        return rc;
    uint64_t physical, into, host;
    bool found = ibx_guest_physical_find(json_string_value(text), block->id, &physical, &into);
    json_decref(text);
    *address = 0;
    if (!found)
        return 0;
    char line[64];
    snprintf(line, sizeof(line), "gpa2hva 0x%" PRIx64, physical);
    if ((rc = monitor(s, line, &text)))
        return rc;
    const char *is = strstr(json_string_value(text), " is 0x");
    if (is && sscanf(is, " is 0x%" SCNx64, &host) == 1 && host > into)
        *address = host - into;
    json_decref(text);
    return 0;
}

/* ------------------------------------------------------------ all of it */

static int find_block(const struct search *s, pid_t pid, const struct guest_mappings *mappings,
                      bool writable, struct ibx_guest_block *block)
{
    const struct guest_mapping *where;
    if (strcmp(block->type, "memory-backend-file") && strcmp(block->type, "memory-backend-memfd"))
        return ibx_error_set(s->err, -ENOTSUP,
                             "guest RAM %s (%s, share=on) has no file that another process can "
                             "open: use -object memory-backend-file,id=%s,size=%" PRIu64
                             "M,mem-path=/dev/shm/vm/NAME,share=on in its place, after "
                             "install -d -m 700 /dev/shm/vm",
                             block->id, block->type, block->id, block->size >> 20);
    int rc = ibx_guest_block_locate(pid, mappings, 0, block, &where, s->err);
    if (rc == -ENOTUNIQ) {
        uint64_t address;
        if ((rc = ask_address(s, block, &address)))
            return rc;
        rc = ibx_guest_block_locate(pid, mappings, address, block, &where, s->err);
    }
    return rc ? rc : ibx_guest_block_open(pid, where, writable, block, s->err);
}

int ibx_guest_block_ask_address(struct ibx_qmp *qmp, const struct ibx_guest_block *block,
                                uint64_t *address, uint64_t deadline_ns, struct ibx_error *err)
{
    const struct search s = {qmp, deadline_ns, err};
    int rc = ask_address(&s, block, address);
    if (!rc && !*address)
        rc = ibx_error_set(err, -ENOTSUP,
                           "QEMU does not tell where memory backend %s lies in its address space: "
                           "the machine has to use it as its RAM (-machine memory-backend=%s)",
                           block->id, block->id);
    return rc;
}

int ibx_guest_block_ask_flag(struct ibx_qmp *qmp, const char *id, const char *property, bool *flag,
                             uint64_t deadline_ns, struct ibx_error *err)
{
    const struct search s = {qmp, deadline_ns, err};
    char path[IBX_GUEST_ID_MAX + 16];
    json_t *value;
    snprintf(path, sizeof(path), "/objects/%s", id);
    const int rc = qom_get(&s, path, property, &value);
    if (rc)
        return rc;
    *flag = json_is_true(value);
    json_decref(value);
    return 0;
}

static int find_blocks(const struct search *s, bool writable, struct ibx_guest_ram *ram)
{
    struct guest_mappings mappings = {0};
    int rc = 0;
    for (size_t i = 0; !rc && i < ram->count; i++) {
        struct ibx_guest_block *block = &ram->blocks[i];
        if (!block->shared)
            continue;
        if (!mappings.items)
            rc = ibx_guest_mappings_read(ram->pid, &mappings, s->err);
        if (!rc)
            rc = find_block(s, ram->pid, &mappings, writable, block);
        if (!rc)
            block->file = ibx_guest_file_hash(block->dev, block->ino);
    }
    ibx_guest_mappings_fini(&mappings);
    return rc;
}

int ibx_guest_ram_find(struct ibx_qmp *qmp, bool writable, struct ibx_guest_ram *ram,
                       uint64_t deadline_ns, struct ibx_error *err)
{
    const struct search s = {qmp, deadline_ns, err};
    struct ibx_guest_ram found = {.pid = ibx_qmp_pid(qmp), .version = ibx_qmp_version(qmp)};
    if (found.pid <= 0)
        return ibx_error_set(err, -ESRCH,
                             "the QEMU of this QMP socket is in another PID namespace: run this "
                             "tool in that namespace");
    const uint64_t before = ibx_qmp_ahead_begin(qmp);
    int rc;
    ask_first(&s);
    if ((rc = read_machine(&s, &found)) || (rc = read_backends(&s, &found)) ||
        (rc = find_blocks(&s, writable, &found)) || (rc = ibx_qmp_lives(qmp, err))) {
        ibx_qmp_ahead_end(qmp, before);
        ibx_guest_ram_fini(&found);
        return rc;
    }
    ibx_qmp_ahead_end(qmp, before);
    *ram = found;
    return 0;
}

/* Whether the process has anything of this block's file mapped. */
static bool is_mapped(const struct guest_mappings *mappings, const struct ibx_guest_block *block)
{
    bool mapped = false;
    for (size_t i = 0; !mapped && i < mappings->count; i++)
        mapped = mappings->items[i].dev == block->dev && mappings->items[i].ino == block->ino;
    return mapped;
}

static int reopen_block(pid_t pid, const struct guest_mappings *mappings, bool writable,
                        struct ibx_guest_block *block, struct ibx_error *err)
{
    const struct guest_mapping *where;
    const uint64_t page_size = block->page_size;
    int rc = ibx_guest_block_relocate(pid, mappings, block, &where, err);
    if (!rc)
        rc = ibx_guest_block_open(pid, where, writable, block, err);
    block->shared = !rc;
    if (!rc && block->page_size != page_size)
        rc = ibx_error_set(err, -ESTALE,
                           "guest RAM %s of process %d has pages of %" PRIu64
                           " bytes, not of %" PRIu64 " as when the migration began",
                           block->id, (int)pid, block->page_size, page_size);
    return rc;
}

static int reopen_unmapped_block(const struct ibx_guest_ram *ram, const struct ibx_guest_file *file,
                                 const char *suffix, bool writable, struct ibx_guest_block *block,
                                 struct ibx_error *err)
{
    if (ibx_guest_file_is_gone(block, file, suffix))
        return 0;
    const int rc = ibx_guest_file_open(block, file, suffix, writable, err);
    return rc ? ibx_error_prefix(err, rc, "QEMU (process %d) has no guest RAM %s any more",
                                 (int)ram->pid, block->id)
              : 0;
}

int ibx_guest_ram_reopen_unmapped(struct ibx_guest_ram *ram, const struct ibx_guest_file *files,
                                  const char *suffix, bool writable, struct ibx_error *err)
{
    struct guest_mappings mappings;
    int rc = ibx_guest_mappings_read(ram->pid, &mappings, err);
    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < ram->count; i++) {
        struct ibx_guest_block *block = &ram->blocks[i];
        if (block->fd >= 0) /* of an earlier attempt that failed at another block */
            close(block->fd);
        block->fd = -1;
        block->unmapped = files && !is_mapped(&mappings, block);
        rc = block->unmapped ? reopen_unmapped_block(ram, &files[i], suffix, writable, block, err)
                             : reopen_block(ram->pid, &mappings, writable, block, err);
    }
    ibx_guest_mappings_fini(&mappings);
    return rc;
}

int ibx_guest_ram_reopen(struct ibx_guest_ram *ram, struct ibx_error *err)
{
    return ibx_guest_ram_reopen_unmapped(ram, NULL, NULL, true, err);
}

void ibx_guest_ram_fini(struct ibx_guest_ram *ram)
{
    for (size_t i = 0; i < ram->count; i++) {
        if (ram->blocks[i].fd >= 0)
            close(ram->blocks[i].fd);
    }
    free(ram->blocks);
    memset(ram, 0, sizeof(*ram));
}

const struct ibx_guest_block *ibx_guest_ram_block(const struct ibx_guest_ram *ram, const char *id)
{
    for (size_t i = 0; i < ram->count; i++) {
        if (!strcmp(ram->blocks[i].id, id))
            return &ram->blocks[i];
    }
    return NULL;
}
