/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/back_end_common/tuning.h"

#include "common/properties.h"
#include "gpudirect/gpudirect.h"
#include "transport/transport.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/* Measured on an H200. The driver puts short pageable memory into its commands to the device;
 * copies from the device are always faster into pinned memory. */
const struct ibx_choice ibx_choice_default = {
    .ways = {[IBX_CHOICE_TO_DEVICE] = {.inline_max = 16u << 10, .copy_threads_min = 4u << 20},
             [IBX_CHOICE_FROM_DEVICE] = {.inline_max = 0, .copy_threads_min = 1u << 20}},
    .chunk = IBX_PINNED_CHUNK,
};

/* -------------------------------------------------------------------------- the keys */

static const struct key {
    const char *name;
    const char *old_name; /* accepted in files of earlier versions */
    size_t offset;        /* of a uint64_t in struct ibx_choice */
    uint64_t most;
    bool never; /* accepted too */
    const char *accepted;
} size_keys[] = {
#define AT(direction, member)                                                                      \
    offsetof(struct ibx_choice, ways[IBX_CHOICE_##direction##_DEVICE].member)
#define FROM_SIZE IBX_CHOICE_SIZE_MAX, true, "bytes from 0 to 1024G, or never"
    {"h2d.inline", NULL, AT(TO, inline_max), IBX_CHOICE_TO_MAX, false, "0 to 1M"},
    {"h2d.in_place", NULL, AT(TO, in_place_min), FROM_SIZE},
    {"h2d.copy_threads", "h2d.crew", AT(TO, copy_threads_min), FROM_SIZE},
    {"h2d.direct", NULL, AT(TO, direct_min), FROM_SIZE},
    {"d2h.inline", NULL, AT(FROM, inline_max), IBX_CHOICE_FROM_MAX, false, "0 to 64K"},
    {"d2h.in_place", NULL, AT(FROM, in_place_min), FROM_SIZE},
    {"d2h.copy_threads", "d2h.crew", AT(FROM, copy_threads_min), FROM_SIZE},
    {"d2h.direct", NULL, AT(FROM, direct_min), FROM_SIZE},
#undef AT
#undef FROM_SIZE
};
#define SIZE_KEYS (sizeof(size_keys) / sizeof(size_keys[0]))

static uint64_t *size_at(const struct ibx_choice *choice, const struct key *key)
{
    return (uint64_t *)((uintptr_t)choice + key->offset);
}

static bool chunk_sound(uint64_t chunk)
{
    return chunk && chunk <= IBX_PINNED_CHUNK && chunk % IBX_CHOICE_CHUNK_UNIT == 0;
}

static int not_accepted(const struct ibx_property *entry, struct ibx_error *err, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));
static int not_accepted(const struct ibx_property *entry, struct ibx_error *err, const char *format,
                        ...)
{
    char value[65], accepted[64];
    va_list args;
    snprintf(value, sizeof(value), "%.64s", entry->value);
    ibx_text_sanitize(value);
    va_start(args, format);
    vsnprintf(accepted, sizeof(accepted), format, args);
    va_end(args);
    return ibx_error_set(err, -EINVAL, "\"%s\" is not accepted: give %s", value, accepted);
}

static int take_size(struct ibx_choice *choice, const struct key *key,
                     const struct ibx_property *entry, struct ibx_error *err)
{
    size_t bytes;
    if (key->never && !strcmp(entry->value, "never"))
        bytes = IBX_CHOICE_NEVER;
    else if (ibx_size_parse(entry->value, &bytes, NULL) || bytes > key->most)
        return not_accepted(entry, err, "%s", key->accepted);
    *size_at(choice, key) = bytes;
    return 0;
}

/* Only characters that the file and a terminal can hold; no blanks at either end. */
static void clean(char *text)
{
    size_t skip = strspn(text, " \t"), n = strlen(text + skip);
    memmove(text, text + skip, n + 1);
    while (n && (text[n - 1] == ' ' || text[n - 1] == '\t'))
        text[--n] = '\0';
    ibx_text_sanitize(text);
    for (char *hash = text; (hash = strchr(hash, '#'));)
        *hash = '?';
}

static int take_name(char *name, size_t size, const struct ibx_property *entry,
                     struct ibx_error *err)
{
    size_t n = strlen(entry->value);
    if (!n || n >= size)
        return not_accepted(entry, err, "1 to %zu characters", size - 1);
    memcpy(name, entry->value, n + 1);
    clean(name);
    return 0;
}

static int take(struct ibx_tuning *t, const struct ibx_property *entry, struct ibx_error *err)
{
    const char *name = entry->key;
    size_t number;
    bool is_number = !ibx_size_parse(entry->value, &number, NULL);
    for (const struct key *key = size_keys; key < size_keys + SIZE_KEYS; key++) {
        if (!strcmp(name, key->name) || (key->old_name && !strcmp(name, key->old_name)))
            return take_size(&t->choice, key, entry, err);
    }
    if (!strcmp(name, "chunk")) {
        if (!is_number || !chunk_sound(number))
            return not_accepted(entry, err, "a multiple of %zuK, to %uK",
                                IBX_CHOICE_CHUNK_UNIT >> 10, IBX_PINNED_CHUNK >> 10);
        t->choice.chunk = number;
        return 0;
    }
    if (!strcmp(name, "threads")) {
        if (!is_number || number > IBX_COPY_THREADS_MAX)
            return not_accepted(entry, err, "0 to %u", IBX_COPY_THREADS_MAX);
        t->choice.threads = (unsigned)number;
        return 0;
    }
    if (!strcmp(name, "gpu"))
        return take_name(t->machine.gpu, sizeof(t->machine.gpu), entry, err);
    if (!strcmp(name, "driver"))
        return take_name(t->machine.driver, sizeof(t->machine.driver), entry, err);
    if (!strcmp(name, "host"))
        return take_name(t->machine.host, sizeof(t->machine.host), entry, err);
    return ibx_error_set(err, -EINVAL,
                         "there is no such key: use gpu, driver, host, chunk, threads, or h2d. or "
                         "d2h. followed by inline, in_place, copy_threads or direct");
}

/* -------------------------------------------------------------------------- reading */

/* Frees `properties`. */
static int take_all(const char *name, struct ibx_properties *properties, struct ibx_tuning *tuning,
                    struct ibx_error *err)
{
    struct ibx_tuning t = {.found = true, .choice = ibx_choice_default};
    int rc = 0;
    snprintf(t.file, sizeof(t.file), "%s", name);
    ibx_text_sanitize(t.file);
    for (size_t i = 0; i < properties->count && !rc; i++) {
        const struct ibx_property *entry = &properties->items[i];
        rc = take(&t, entry, err);
        if (rc)
            ibx_properties_prefix(name, entry, rc, err);
    }
    if (!rc)
        *tuning = t;
    ibx_properties_fini(properties);
    return rc;
}

int ibx_tuning_parse(const char *name, const char *text, size_t length, struct ibx_tuning *tuning,
                     struct ibx_error *err)
{
    struct ibx_properties properties;
    int rc = ibx_properties_parse(name, text, length, &properties, err);
    return rc ? rc : take_all(name, &properties, tuning, err);
}

int ibx_tuning_load(const char *file, struct ibx_tuning *tuning, struct ibx_error *err)
{
    struct ibx_properties properties;
    int rc = ibx_properties_load(file, &properties, err);
    return rc ? rc : take_all(file, &properties, tuning, err);
}

/* -------------------------------------------------------------------------- writing */

static void print_size(const char *key, uint64_t bytes, FILE *out)
{
    if (bytes == IBX_CHOICE_NEVER)
        fprintf(out, "%s : never\n", key);
    else if (bytes && bytes % (1u << 20) == 0)
        fprintf(out, "%s : %lluM\n", key, (unsigned long long)bytes >> 20);
    else if (bytes && bytes % (1u << 10) == 0)
        fprintf(out, "%s : %lluK\n", key, (unsigned long long)bytes >> 10);
    else
        fprintf(out, "%s : %llu\n", key, (unsigned long long)bytes);
}

static void print_name(const char *key, const char *name, FILE *out)
{
    if (*name)
        fprintf(out, "%s : %s\n", key, name);
}

void ibx_tuning_print(const struct ibx_tuning *tuning, FILE *out)
{
    print_name("gpu", tuning->machine.gpu, out);
    print_name("driver", tuning->machine.driver, out);
    print_name("host", tuning->machine.host, out);
    for (size_t i = 0; i < SIZE_KEYS; i++)
        print_size(size_keys[i].name, *size_at(&tuning->choice, &size_keys[i]), out);
    print_size("chunk", tuning->choice.chunk, out);
    fprintf(out, "threads : %u\n", tuning->choice.threads);
}

/* ------------------------------------------------------------------------- for people */

static void add_text(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add_text(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

static void add_size(char *text, size_t size, const char *before, uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    for (; unit < 3 && bytes && bytes % 1024 == 0; bytes /= 1024)
        unit++;
    add_text(text, size, "%s%llu %s", before, (unsigned long long)bytes, units[unit]);
}

static void add_from(char *text, size_t size, const char *way, uint64_t from)
{
    if (from == IBX_CHOICE_NEVER)
        add_text(text, size, ", never %s", way);
    else
        add_text(text, size, ", %s", way);
    if (from && from != IBX_CHOICE_NEVER)
        add_size(text, size, " from ", from);
}

void ibx_tuning_describe(const struct ibx_choice *choice, enum ibx_choice_direction direction,
                         unsigned threads, bool direct, char *text, size_t size)
{
    const struct ibx_choice_way *way = &choice->ways[direction];
    char by_threads[32];
    text[0] = '\0';
    if (way->inline_max)
        add_size(text, size, "inline up to ", way->inline_max);
    else
        add_text(text, size, "never inline");
    add_from(text, size, "in place", way->in_place_min);
    snprintf(by_threads, sizeof(by_threads), "by %u threads", threads);
    if (threads > 1)
        add_from(text, size, by_threads, way->copy_threads_min);
    if (direct)
        add_from(text, size, "direct", way->direct_min);
    add_size(text, size, ", else by chunks of ", choice->chunk);
}

/* ---------------------------------------------------------------------------- machine */

void ibx_tuning_machine_of(const struct ibx_cuda *cuda, int device,
                           struct ibx_tuning_machine *machine)
{
    int version = 0;
    *machine = (struct ibx_tuning_machine){0};
    if (cuda->device_get_name(machine->gpu, sizeof(machine->gpu), device))
        machine->gpu[0] = '\0';
    if (!cuda->driver_get_version(&version) && version > 0)
        snprintf(machine->driver, sizeof(machine->driver), "%d.%d", version / 1000,
                 version % 1000 / 10);
    if (gethostname(machine->host, sizeof(machine->host) - 1))
        machine->host[0] = '\0';
    clean(machine->gpu);
    clean(machine->host);
}

static int differs(const char *what, const char *measured, const char *here, struct ibx_error *err)
{
    if (!*measured || !strcmp(measured, here))
        return 0;
    return ibx_error_set(err, -EXDEV, "it was measured with the %s \"%s\" and this is \"%s\"", what,
                         measured, here);
}

int ibx_tuning_fits(const struct ibx_tuning *tuning, const struct ibx_tuning_machine *machine,
                    struct ibx_error *err)
{
    int rc = differs("GPU", tuning->machine.gpu, machine->gpu, err);
    if (!rc)
        rc = differs("CUDA driver", tuning->machine.driver, machine->driver, err);
    return rc ? rc : differs("host", tuning->machine.host, machine->host, err);
}
