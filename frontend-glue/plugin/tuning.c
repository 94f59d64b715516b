/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/tuning.h"

#include "common/properties.h"
#include "gpudirect/copy_threads.h"
#include "gpudirect/cuda.h"
#include "gpudirect/pinned.h"
#include "transport/transport.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- the keys */

/* Those that hold bytes. */
static const struct size_key {
    const char *name;
    size_t offset; /* of a uint64_t in struct ibx_choice */
    uint64_t most;
    bool never; /* accepted, too */
    const char *accepted;
} size_keys[] = {
#define AT(direction, member)                                                                      \
    offsetof(struct ibx_choice, ways[IBX_CHOICE_##direction##_DEVICE].member)
#define FROM_SIZE IBX_CHOICE_SIZE_MAX, true, "bytes from 0 to 1024G, or never"
    {"h2d.inline", AT(TO, inline_max), IBX_CHOICE_TO_MAX, false, "0 to 1M"},
    {"h2d.in_place", AT(TO, in_place_min), FROM_SIZE},
    {"h2d.crew", AT(TO, crew_min), FROM_SIZE},
    {"h2d.direct", AT(TO, direct_min), FROM_SIZE},
    {"d2h.inline", AT(FROM, inline_max), IBX_CHOICE_FROM_MAX, false, "0 to 64K"},
    {"d2h.in_place", AT(FROM, in_place_min), FROM_SIZE},
    {"d2h.crew", AT(FROM, crew_min), FROM_SIZE},
    {"d2h.direct", AT(FROM, direct_min), FROM_SIZE},
#undef AT
#undef FROM_SIZE
};
#define SIZE_KEYS (sizeof(size_keys) / sizeof(size_keys[0]))

static uint64_t *size_of_key(struct ibx_choice *choice, const struct size_key *key)
{
    return (uint64_t *)(void *)((char *)choice + key->offset);
}

static int refuse(const struct ibx_property *entry, const char *accepted, struct ibx_error *err)
{
    char value[65];
    snprintf(value, sizeof(value), "%.64s", entry->value);
    ibx_text_sanitize(value);
    return ibx_error_set(err, -EINVAL, "\"%s\" is not accepted: give %s", value, accepted);
}

static int take_size(struct ibx_choice *choice, const struct size_key *key,
                     const struct ibx_property *entry, struct ibx_error *err)
{
    size_t bytes;
    if (key->never && !strcmp(entry->value, "never")) {
        *size_of_key(choice, key) = IBX_CHOICE_NEVER;
        return 0;
    }
    if (ibx_size_parse(entry->value, &bytes, NULL) || bytes > key->most)
        return refuse(entry, key->accepted, err);
    *size_of_key(choice, key) = bytes;
    return 0;
}

static int take_chunk(struct ibx_choice *choice, const struct ibx_property *entry,
                      struct ibx_error *err)
{
    size_t bytes;
    char accepted[64];
    snprintf(accepted, sizeof(accepted), "a multiple of %zuK, to %uK", IBX_CHOICE_CHUNK_UNIT >> 10,
             IBX_PINNED_CHUNK >> 10);
    if (ibx_size_parse(entry->value, &bytes, NULL) || !bytes || bytes > IBX_PINNED_CHUNK ||
        bytes % IBX_CHOICE_CHUNK_UNIT)
        return refuse(entry, accepted, err);
    choice->chunk = bytes;
    return 0;
}

static int take_threads(struct ibx_choice *choice, const struct ibx_property *entry,
                        struct ibx_error *err)
{
    size_t threads;
    char accepted[32];
    snprintf(accepted, sizeof(accepted), "0 to %u", IBX_COPY_THREADS_THREADS_MAX);
    if (ibx_size_parse(entry->value, &threads, NULL) || threads > IBX_COPY_THREADS_THREADS_MAX)
        return refuse(entry, accepted, err);
    choice->threads = (unsigned)threads;
    return 0;
}

/* The characters that the file can hold, and a terminal; no blanks at either end. */
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
    char accepted[48];
    snprintf(accepted, sizeof(accepted), "1 to %zu characters", size - 1);
    size_t n = strlen(entry->value);
    if (!n || n >= size)
        return refuse(entry, accepted, err);
    memcpy(name, entry->value, n + 1);
    clean(name);
    return 0;
}

static int take(struct ibx_tuning *t, const struct ibx_property *entry, struct ibx_error *err)
{
    for (size_t i = 0; i < SIZE_KEYS; i++) {
        if (!strcmp(entry->key, size_keys[i].name))
            return take_size(&t->choice, &size_keys[i], entry, err);
    }
    if (!strcmp(entry->key, "chunk"))
        return take_chunk(&t->choice, entry, err);
    if (!strcmp(entry->key, "threads"))
        return take_threads(&t->choice, entry, err);
    if (!strcmp(entry->key, "gpu"))
        return take_name(t->place.gpu, sizeof(t->place.gpu), entry, err);
    if (!strcmp(entry->key, "driver"))
        return take_name(t->place.driver, sizeof(t->place.driver), entry, err);
    if (!strcmp(entry->key, "host"))
        return take_name(t->place.host, sizeof(t->place.host), entry, err);
    return ibx_error_set(err, -EINVAL,
                         "there is no such key: give gpu, driver, host, chunk, threads, or h2d. or "
                         "d2h. and inline, in_place, crew or direct");
}

/* -------------------------------------------------------------------------- reading */

static int take_all(const char *name, const struct ibx_properties *properties,
                    struct ibx_tuning *tuning, struct ibx_error *err)
{
    struct ibx_tuning t = {.found = true, .choice = ibx_choice_default};
    snprintf(t.file, sizeof(t.file), "%s", name);
    ibx_text_sanitize(t.file);
    for (size_t i = 0; i < properties->count; i++) {
        const struct ibx_property *entry = &properties->items[i];
        char key[80];
        int rc = take(&t, entry, err);
        if (!rc)
            continue;
        snprintf(key, sizeof(key), "%.79s", entry->key);
        ibx_text_sanitize(key);
        return ibx_error_prefix(err, rc, "%s line %u (%s)", name, entry->line, key);
    }
    *tuning = t;
    return 0;
}

int ibx_tuning_parse(const char *name, const char *text, size_t length, struct ibx_tuning *tuning,
                     struct ibx_error *err)
{
    struct ibx_properties properties;
    int rc = ibx_properties_parse(name, text, length, &properties, err);
    if (rc)
        return rc;
    rc = take_all(name, &properties, tuning, err);
    ibx_properties_fini(&properties);
    return rc;
}

int ibx_tuning_load(const char *file, struct ibx_tuning *tuning, struct ibx_error *err)
{
    struct ibx_properties properties;
    int rc = ibx_properties_load(file, &properties, err);
    if (rc)
        return rc;
    rc = take_all(file, &properties, tuning, err);
    ibx_properties_fini(&properties);
    return rc;
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
    struct ibx_choice choice = tuning->choice;
    print_name("gpu", tuning->place.gpu, out);
    print_name("driver", tuning->place.driver, out);
    print_name("host", tuning->place.host, out);
    for (size_t i = 0; i < SIZE_KEYS; i++)
        print_size(size_keys[i].name, *size_of_key(&choice, &size_keys[i]), out);
    print_size("chunk", choice.chunk, out);
    fprintf(out, "threads : %u\n", choice.threads);
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
    char crew[32];
    text[0] = '\0';
    if (way->inline_max)
        add_size(text, size, "inline up to ", way->inline_max);
    else
        add_text(text, size, "never inline");
    add_from(text, size, "in place", way->in_place_min);
    snprintf(crew, sizeof(crew), "by %u threads", threads);
    if (threads > 1)
        add_from(text, size, crew, way->crew_min);
    if (direct)
        add_from(text, size, "direct", way->direct_min);
    add_size(text, size, ", else by chunks of ", choice->chunk);
}

/* ---------------------------------------------------------------------------- places */

void ibx_tuning_place_of(const struct ibx_cuda *cuda, int device, struct ibx_tuning_place *place)
{
    int version = 0;
    *place = (struct ibx_tuning_place){0};
    if (cuda->device_get_name(place->gpu, sizeof(place->gpu), device))
        place->gpu[0] = '\0';
    if (!cuda->driver_get_version(&version) && version > 0)
        snprintf(place->driver, sizeof(place->driver), "%d.%d", version / 1000,
                 version % 1000 / 10);
    if (gethostname(place->host, sizeof(place->host) - 1))
        place->host[0] = '\0';
    clean(place->gpu);
    clean(place->host);
}

static int differs(const char *what, const char *measured, const char *here, struct ibx_error *err)
{
    if (!*measured || !strcmp(measured, here))
        return 0;
    return ibx_error_set(err, -EXDEV, "it was measured with the %s \"%s\" and this is \"%s\"", what,
                         measured, here);
}

int ibx_tuning_fits(const struct ibx_tuning *tuning, const struct ibx_tuning_place *place,
                    struct ibx_error *err)
{
    int rc = differs("GPU", tuning->place.gpu, place->gpu, err);
    if (!rc)
        rc = differs("CUDA driver", tuning->place.driver, place->driver, err);
    return rc ? rc : differs("host", tuning->place.host, place->host, err);
}
