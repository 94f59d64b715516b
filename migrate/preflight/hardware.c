/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Describes a VM's hardware and compares two descriptions. QEMU has its tree of devices only as a
 * text for people: query-pci does not see behind a bridge that no firmware has set up yet. */
#include "migrate/preflight/preflight.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 12 /* buses behind buses */
#define WORD_MAX  64
#define NAMED_MAX 3   /* devices in one sentence */
#define PIECE_MAX 200 /* bytes of a piece that are looked at */

struct text {
    char *bytes;
    size_t size, used;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(t->bytes + t->used, t->size - t->used, format, arguments);
    va_end(arguments);
    t->full |= n < 0 || (size_t)n >= t->size - t->used;
    t->used += t->full ? 0 : (size_t)n;
    t->bytes[t->used] = '\0';
}

/* ------------------------------------------------------------ the tree of devices */

/* A device and the bus it is on. */
struct level {
    char bus[WORD_MAX]; /* its type */
    char type[WORD_MAX], place[WORD_MAX];
    const char *plain; /* its type, whatever the accelerator */
};

struct tree {
    struct level levels[DEPTH_MAX];
    int open; /* level of the device whose lines are being read; -1 none */
    struct text *text;
};

/* A device of the accelerator has the same state as the one of the board that it replaces. */
static const char *plain_type(const char *type)
{
    static const char *const same[][2] = {
        {"kvm-i8259", "isa-i8259"}, {"kvm-pit", "isa-pit"}, {"kvm-ioapic", "ioapic"}};
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++)
        if (!strcmp(type, same[i][0]))
            return same[i][1];
    return type;
}

static bool pluggable(const char *bus)
{
    static const char *const types[] = {
        "PCI", "PCIE", "usb-bus", "SCSI", "virtio-serial-bus", "virtio-mmio-bus"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(bus, types[i]))
            return true;
    return false;
}

/* The inner half of a virtio device on PCI adds nothing to the outer. */
static bool inner(const struct level *level)
{
    return !strcmp(level->bus, "virtio-pci-bus");
}

/* A device is known when its first child begins: all of its properties come before. */
static void end_device(struct tree *tree)
{
    const struct level *own = tree->open >= 0 ? &tree->levels[tree->open] : NULL;
    const int depth = tree->open;
    tree->open = -1;
    if (!own || inner(own) || !strcmp(own->plain, "kvmclock") || !strcmp(own->plain, "kvmvapic"))
        return;
    put(tree->text, "%c %s @ ", pluggable(own->bus) ? 'p' : 'b', own->plain);
    for (int i = 0; i <= depth; i++) {
        const struct level *level = &tree->levels[i];
        if (!inner(level))
            put(tree->text, "%s%s", i ? "/" : "",
                level->place[0] ? level->place
                : level->plain  ? level->plain
                                : "");
    }
    put(tree->text, ";");
}

/* Up to a blank, comma or the end of the line. */
static void copy_word(char out[WORD_MAX], const char *from)
{
    size_t n = strcspn(from, " ,;\"\r\n");
    n = n < WORD_MAX - 1 ? n : WORD_MAX - 1;
    memcpy(out, from, n);
    out[n] = '\0';
}

static const char *after(const char *line, const char *begin)
{
    const size_t n = strlen(begin);
    return strncmp(line, begin, n) ? NULL : line + n;
}

static void add_place(struct level *level, const char *value)
{
    char word[WORD_MAX];
    copy_word(word, value);
    size_t used = strlen(level->place);
    snprintf(level->place + used, sizeof(level->place) - used, "%s%s", used ? ":" : "", word);
}

/* Where on its bus it is. */
static void take_property(struct level *level, const char *line)
{
    static const struct {
        const char *bus, *property;
    } places[] = {{"PCI", "addr = "},       {"PCIE", "addr = "},
                  {"usb-bus", "port = \""}, {"virtio-serial-bus", "nr = "},
                  {"IDE", "unit = "},       {"SCSI", "channel = "},
                  {"SCSI", "scsi-id = "},   {"SCSI", "lun = "}};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *value =
            strcmp(level->bus, places[i].bus) ? NULL : after(line, places[i].property);
        if (value)
            add_place(level, value);
    }
    const char *mmio = strcmp(level->type, "virtio-mmio") ? NULL : after(line, "mmio ");
    if (mmio)
        add_place(level, mmio);
}

static void take_line(struct tree *tree, const char *line)
{
    const int indent = (int)strspn(line, " ");
    line += indent;
    const char *bus = after(line, "bus: "), *device = after(line, "dev: "),
               *type = after(line, "type ");
    const int depth = device || type ? (indent - 2) / 4 : indent / 4;
    if (depth < 0 || depth >= DEPTH_MAX)
        return;
    if (bus) {
        end_device(tree);
        tree->levels[depth].bus[0] = '\0';
    } else if (type && tree->open < 0) {
        copy_word(tree->levels[depth].bus, type);
    } else if (device) {
        end_device(tree);
        copy_word(tree->levels[depth].type, device);
        tree->levels[depth].plain = plain_type(tree->levels[depth].type);
        tree->levels[depth].place[0] = '\0';
        tree->open = depth;
    } else if (tree->open >= 0) {
        take_property(&tree->levels[tree->open], line);
    }
}

bool ibx_hardware_devices(const char *qtree, char *text, size_t size)
{
    struct text out = {.bytes = text, .size = size};
    struct tree tree = {.open = -1, .text = &out};
    *text = '\0';
    while (*qtree) {
        take_line(&tree, qtree);
        qtree += strcspn(qtree, "\n");
        qtree += *qtree == '\n';
    }
    end_device(&tree);
    return !out.full;
}

/* ------------------------------------------------------------ processors, disks */

static int ask_property(struct ibx_qmp *qmp, const char *path, const char *property, json_t **value,
                        uint64_t deadline_ns)
{
    return ibx_qmp_execute(qmp, "qom-get",
                           json_pack("{s:s, s:s}", "path", path, "property", property), value,
                           deadline_ns, NULL);
}

static void put_features(struct text *t, json_t *words)
{
    size_t index;
    json_t *word;
    json_array_foreach(words, index, word)
    {
        const char *name = json_string_value(json_object_get(word, "cpuid-register"));
        json_int_t bits = json_integer_value(json_object_get(word, "features"));
        if (name && bits > 0)
            put(t, "cpuid %" JSON_INTEGER_FORMAT ".%" JSON_INTEGER_FORMAT " %.8s=%llx;",
                json_integer_value(json_object_get(word, "cpuid-input-eax")),
                json_integer_value(json_object_get(word, "cpuid-input-ecx")), name,
                (unsigned long long)bits);
    }
}

static int put_processors(struct ibx_qmp *qmp, struct text *t, uint64_t deadline_ns,
                          struct ibx_error *err)
{
    json_t *list, *value;
    int rc = ibx_qmp_execute(qmp, "query-cpus-fast", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    const char *path = json_string_value(json_object_get(json_array_get(list, 0), "qom-path"));
    put(t, "cpus=%zu;", json_array_size(list));
    if (path && !ask_property(qmp, path, "type", &value, deadline_ns)) {
        if (json_is_string(value))
            put(t, "cpu=%.60s;", json_string_value(value));
        json_decref(value);
    }
    if (path && !ask_property(qmp, path, "feature-words", &value, deadline_ns)) {
        put_features(t, value);
        json_decref(value);
    }
    json_decref(list);
    return 0;
}

/* Disks that are not removable: only those must have a medium. */
static int put_disks(struct ibx_qmp *qmp, struct text *t, uint64_t deadline_ns,
                     struct ibx_error *err)
{
    json_t *list, *item;
    size_t index;
    int rc = ibx_qmp_execute(qmp, "query-block", NULL, &list, deadline_ns, err);
    if (rc)
        return rc;
    json_array_foreach(list, index, item)
    {
        const json_t *image = json_object_get(json_object_get(item, "inserted"), "image");
        const json_t *size = json_object_get(image, "virtual-size");
        if (json_is_integer(size) && json_object_get(item, "qdev") &&
            !json_is_true(json_object_get(item, "removable")))
            put(t, "disk=%" JSON_INTEGER_FORMAT ";", json_integer_value(size));
    }
    json_decref(list);
    return 0;
}

int ibx_hardware_describe(struct ibx_qmp *qmp, char text[IBX_HARDWARE_MAX], uint64_t deadline_ns,
                          struct ibx_error *err)
{
    struct text t = {.bytes = text, .size = IBX_HARDWARE_MAX};
    json_t *qtree;
    *text = '\0';
    int rc = put_processors(qmp, &t, deadline_ns, err);
    if (!rc)
        rc = put_disks(qmp, &t, deadline_ns, err);
    if (!rc)
        rc = ibx_qmp_execute(qmp, "human-monitor-command",
                             json_pack("{s:s}", "command-line", "info qtree"), &qtree, deadline_ns,
                             err);
    if (rc)
        return rc;
    const char *lines = json_string_value(qtree);
    if (t.full ||
        !ibx_hardware_devices(lines ? lines : "", text + t.used, IBX_HARDWARE_MAX - t.used))
        *text = '\0';
    json_decref(qtree);
    return 0;
}

/* ------------------------------------------------------------ the comparison */

/* The pieces of a text: what lies between two ';'. */
struct piece {
    const char *at;
    size_t length;
};

static bool next_piece(const char **text, struct piece *piece)
{
    if (!**text)
        return false;
    *piece = (struct piece){*text, strcspn(*text, ";")};
    *text += piece->length;
    *text += **text == ';';
    return true;
}

static bool same(const struct piece *a, const struct piece *b)
{
    return a->length == b->length && !memcmp(a->at, b->at, a->length);
}

/* How often it is in `text`, before `till` (NULL: the end). */
static unsigned count_of(const struct piece *piece, const char *text, const char *till)
{
    struct piece other;
    unsigned n = 0;
    while ((!till || text < till) && next_piece(&text, &other))
        n += same(piece, &other);
    return n;
}

static bool begins(const struct piece *piece, const char *with)
{
    const size_t n = strlen(with);
    return piece->length >= n && !memcmp(piece->at, with, n);
}

/* What follows the first `key` of a text; "" when it is not in it. */
static void value_of(const char *text, const char *key, char *out, size_t size)
{
    struct piece piece;
    const size_t n = strlen(key);
    *out = '\0';
    while (next_piece(&text, &piece)) {
        if (!begins(&piece, key))
            continue;
        snprintf(out, size, "%.*s",
                 (int)(piece.length - n < PIECE_MAX ? piece.length - n : PIECE_MAX), piece.at + n);
        return;
    }
}

static void check_processors(const char *source, const char *destination,
                             struct ibx_blockers *blockers)
{
    char here[PIECE_MAX + 1], there[PIECE_MAX + 1];
    value_of(source, "cpus=", here, sizeof(here));
    value_of(destination, "cpus=", there, sizeof(there));
    if (*here && *there && strcmp(here, there))
        ibx_blockers_add(
            blockers,
            "the VM has %s vCPUs here and %s at the destination: start the destination's "
            "QEMU with the same -smp",
            here, there);
    value_of(source, "cpu=", here, sizeof(here));
    value_of(destination, "cpu=", there, sizeof(there));
    if (*here && *there && strcmp(here, there))
        ibx_blockers_add(blockers,
                         "the vCPUs are of type %s here and %s at the destination: start the "
                         "destination's QEMU with the same -cpu",
                         here, there);
}

/* Features that only the destination has do no harm. */
static void check_features(const char *source, const char *destination,
                           struct ibx_blockers *blockers)
{
    struct piece piece;
    char key[PIECE_MAX + 1], has[PIECE_MAX + 1];
    while (next_piece(&source, &piece)) {
        const char *equals = begins(&piece, "cpuid ") ? memchr(piece.at, '=', piece.length) : NULL;
        if (!equals || equals - piece.at >= PIECE_MAX)
            continue;
        snprintf(key, sizeof(key), "%.*s=", (int)(equals - piece.at), piece.at);
        value_of(destination, key, has, sizeof(has));
        const unsigned long long missing =
            strtoull(equals + 1, NULL, 16) & ~strtoull(has, NULL, 16);
        if (!missing)
            continue;
        ibx_blockers_add(
            blockers,
            "the vCPUs have features here that they lack at the destination (%.*s, bits "
            "%#llx): start both QEMUs with a -cpu that both hosts have",
            (int)(equals - piece.at), piece.at, missing);
        return;
    }
}

static void check_disks(const char *source, const char *destination, struct ibx_blockers *blockers)
{
    struct piece piece;
    for (const char *at = source; next_piece(&at, &piece);) {
        if (!begins(&piece, "disk=") ||
            count_of(&piece, source, NULL) <= count_of(&piece, destination, NULL))
            continue;
        ibx_blockers_add(
            blockers,
            "a disk of %.*s bytes here has none of its size at the destination: both QEMUs "
            "need the same images, on storage that both hosts reach",
            (int)(piece.length < PIECE_MAX ? piece.length - 5 : PIECE_MAX), piece.at + 5);
        return;
    }
}

/* Names the devices of `text` that `other` lacks: the destination's (surplus), or the source's. */
static void check_devices(const char *text, const char *other, bool surplus, bool board,
                          struct ibx_blockers *blockers)
{
    struct piece piece;
    char names[IBX_ERROR_MAX], more[32] = "";
    unsigned missing = 0;
    size_t used = 0;
    for (const char *at = text; next_piece(&at, &piece);) {
        if (!begins(&piece, "p ") && (!board || !begins(&piece, "b ")))
            continue;
        if (count_of(&piece, text, piece.at) < count_of(&piece, other, NULL) ||
            missing++ >= NAMED_MAX)
            continue;
        const int length = (int)(piece.length < PIECE_MAX ? piece.length - 2 : PIECE_MAX);
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%.*s", used ? ", " : "",
                                 length < 100 ? length : 100, piece.at + 2);
    }
    if (missing > NAMED_MAX)
        snprintf(more, sizeof(more), " and %u more", missing - NAMED_MAX);
    if (missing)
        ibx_blockers_add(blockers,
                         "the destination %s %s%s%s: start its QEMU with the same devices in the "
                         "same places as here%s",
                         surplus ? "has" : "lacks", names, more,
                         surplus ? ", which the VM here has not" : "",
                         surplus ? "" : ", also those that were plugged in since");
}

void ibx_preflight_hardware(const char *source, const char *destination, bool same_version,
                            struct ibx_blockers *blockers)
{
    if (!*source || !*destination)
        return;
    check_processors(source, destination, blockers);
    check_features(source, destination, blockers);
    check_disks(source, destination, blockers);
    check_devices(source, destination, false, same_version, blockers);
    check_devices(destination, source, true, same_version, blockers);
}
