/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The table of options: defaults, limits, parsing and help come from it. */
#include "transport/core/provider.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The types whose field is a text come first, up to NAMES. */
enum option_type { TEXT, PROVIDERS, ENGINE, NAMES, ENCRYPTION, BOOL, UNSIGNED, INTEGER, SIZE };

struct option_spec {
    const char *key;
    enum option_type type;
    size_t offset, size; /* of the field */
    long long min, max;
    const char *fallback; /* the default, as text */
    const char *accepted;
    const char *meaning;
};

#define FIELD(f) offsetof(struct ibx_options, f), sizeof(((struct ibx_options *)0)->f)

static const struct option_spec specs[] = {
    {"provider", PROVIDERS, FIELD(provider), 0, 0, "auto",
     "auto, or shm, verbs, ofi, tcp, separated by commas", "fabrics to try, in this order"},
    {"device", TEXT, FIELD(device), 0, 0, "", "device names, separated by commas",
     "verbs devices, one for each rail; empty: those on the route"},
    {"ofi_provider", TEXT, FIELD(ofi_provider), 0, 0, "", "a libfabric provider name",
     "libfabric provider; empty: the best native one"},
    {"shm_dir", TEXT, FIELD(shm_dir), 0, 0, "", "a directory",
     "directory for shm sockets that containers of one host share; not given: none"},
    {"shm_direct", BOOL, FIELD(shm_direct), 0, 0, "yes", "yes or no",
     "shm copies by process_vm_readv while the peer is busy"},
    {"tcp_engine", ENGINE, FIELD(tcp_engine), 0, 0, "syscalls", "syscalls, uring or uring-zc",
     "how tcp moves bulk data; uring is io_uring, uring-zc also uses SEND_ZC"},
    {"key_file", TEXT, FIELD(key_file), 0, 0, "", "a file of mode 0600",
     "the keys of both ends: one in hex, or lines name:key; not given: none"},
    {"name", NAMES, FIELD(name), 1, 0, "", "a name in key_file",
     "which key of key_file a client uses; not given: the first"},
    {"allow", NAMES, FIELD(allow), 0, 0, "", "names in key_file, separated by commas",
     "clients that a server serves; not given: all in key_file"},
    {"encryption", ENCRYPTION, FIELD(encryption), 0, 0, "auto", "required, auto or off",
     "TLS between hosts; auto: with a key, to another host"},
    {"ktls", BOOL, FIELD(ktls), 0, 0, "no", "yes or no",
     "the kernel encrypts what tcp sends in TLS, where it can"},
    {"unauthenticated", UNSIGNED, FIELD(unauthenticated), 8, 4096, "256", "8 to 4096",
     "clients that may be authenticating at the same time"},
    {"insecure", BOOL, FIELD(insecure), 0, 0, "no", "yes or no",
     "serve and use other hosts without a key"},
    {"port_num", UNSIGNED, FIELD(port_num), 0, 255, "0", "0 to 255",
     "verbs port of the device; 0: that of the route"},
    {"gid_index", INTEGER, FIELD(gid_index), -1, 65535, "-1", "-1 to 65535",
     "verbs GID index; -1: that of the route"},
    {"mtu", UNSIGNED, FIELD(mtu), 0, 4096, "0", "0, 256, 512, 1024, 2048 or 4096",
     "verbs path MTU in bytes; 0: the port's"},
    {"rails", UNSIGNED, FIELD(rails), 1, IBX_RAILS_MAX, "1", "1 to 4",
     "devices that one connection uses"},
    {"lanes", UNSIGNED, FIELD(lanes), 0, 16, "0", "0 to 16",
     "bulk queue pairs or sockets for each rail; 0: the fabric's default"},
    {"chunk", SIZE, FIELD(chunk), 0, 64 << 20, "0", "0, or 4K to 64M",
     "bytes of one bulk work request; 0: the fabric's default"},
    {"depth", UNSIGNED, FIELD(depth), 0, 1024, "0", "0 to 1024",
     "bulk chunks in flight; 0: the fabric's default"},
    {"slots", UNSIGNED, FIELD(slots), 4, 1024, "16", "4 to 1024",
     "messages in flight each way; with message bounds the memory of an idle connection"},
    {"message", SIZE, FIELD(message), 1024, 1 << 20, "16K", "1K to 1M",
     "bytes of the longest message"},
    {"spin_us", UNSIGNED, FIELD(spin_us), 0, 10000000, "50", "0 to 10000000",
     "microseconds of busy polling before sleeping"},
    {"timeout_ms", UNSIGNED, FIELD(timeout_ms), 100, 3600000, "10000", "100 to 3600000",
     "milliseconds for each step of connecting, and until a silent host counts as dead"},
};

#define SPECS (sizeof(specs) / sizeof(specs[0]))

int ibx_size_parse(const char *text, size_t *bytes, struct ibx_error *err)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    unsigned shift = 0;
    const char *unit = *end ? strchr("KkMmGg", *end) : NULL;
    if (unit) {
        shift = 10 * ((unsigned)(unit - "KkMmGg") / 2 + 1);
        end++;
    }
    if (shift && (*end == 'i' || *end == 'I'))
        end++;
    if (*end == 'B' || *end == 'b')
        end++;
    if (*text < '0' || *text > '9' || *end || errno || value > (SIZE_MAX >> 1) >> shift)
        return ibx_error_set(err, -EINVAL, "\"%.64s\" is not a size: write 4096, 64K, 1M or 2G",
                             text);
    *bytes = (size_t)value << shift;
    return 0;
}

int ibx_yes_no_parse(const char *text, bool *yes)
{
    static const char *const words[][2] = {
        {"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        for (int is = 0; is < 2; is++) {
            if (!strcmp(text, words[i][is])) {
                *yes = is;
                return 0;
            }
        }
    }
    return -EINVAL;
}

static int bad_value(const struct option_spec *spec, const char *value, struct ibx_error *err)
{
    return ibx_error_set(err, -EINVAL, "%s: \"%.64s\" is not accepted: give %s", spec->key, value,
                         spec->accepted);
}

/* A comma-separated list of provider names, each once, or "auto". */
static bool providers_valid(const char *value)
{
    if (!strcmp(value, "auto"))
        return true;
    unsigned seen = 0;
    while (*value) {
        size_t n = strcspn(value, ",");
        unsigned i = 0;
        const char *name;
        while ((name = ibx_provider_name(i)) && (strlen(name) != n || memcmp(name, value, n)))
            i++;
        if (!name || (seen & 1u << i))
            return false;
        seen |= 1u << i;
        value += n;
        if (*value == ',' && !*++value)
            return false;
    }
    return seen != 0;
}

static bool engine_valid(const char *value)
{
    return !strcmp(value, "syscalls") || !strcmp(value, "uring") || !strcmp(value, "uring-zc");
}

/* Names of keys as key_file.c takes them, separated by commas. */
static bool names_valid(const char *value, bool single)
{
    while (*value) {
        size_t n =
            strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.@");
        if (!n || n > IBX_NAME_MAX || (value[n] && value[n] != ','))
            return false;
        value += n;
        if (*value == ',' && (single || !*++value))
            return false;
    }
    return true;
}

static int set_text(const struct option_spec *spec, char *field, const char *value,
                    struct ibx_error *err)
{
    size_t n = strlen(value);
    if (n >= spec->size)
        return ibx_error_set(err, -EINVAL, "%s: \"%.32s...\" is longer than %zu characters",
                             spec->key, value, spec->size - 1);
    if ((spec->type == PROVIDERS && !providers_valid(value)) ||
        (spec->type == ENGINE && !engine_valid(value)) ||
        (spec->type == NAMES && !names_valid(value, spec->min == 1)))
        return bad_value(spec, value, err);
    memcpy(field, value, n + 1);
    return 0;
}

static const char *const encryption_words[] = {
    [IBX_ENCRYPTION_OFF] = "off",
    [IBX_ENCRYPTION_AUTO] = "auto",
    [IBX_ENCRYPTION_REQUIRED] = "required",
};

static int set_encryption(const struct option_spec *spec, enum ibx_encryption *field,
                          const char *value, struct ibx_error *err)
{
    for (unsigned i = IBX_ENCRYPTION_OFF; i <= IBX_ENCRYPTION_REQUIRED; i++) {
        if (!strcmp(value, encryption_words[i])) {
            *field = (enum ibx_encryption)i;
            return 0;
        }
    }
    return bad_value(spec, value, err);
}

static int set_number(const struct option_spec *spec, void *field, const char *value,
                      struct ibx_error *err)
{
    long long number;
    if (spec->type == SIZE) {
        size_t bytes;
        if (ibx_size_parse(value, &bytes, NULL) || bytes > (size_t)spec->max)
            return bad_value(spec, value, err);
        number = (long long)bytes;
    } else {
        char *end;
        errno = 0;
        number = strtoll(value, &end, 10);
        if (errno || end == value || *end)
            return bad_value(spec, value, err);
    }
    if (number < spec->min || number > spec->max)
        return bad_value(spec, value, err);
    if (!strcmp(spec->key, "chunk") && number && number < 4096)
        return bad_value(spec, value, err);
    if (!strcmp(spec->key, "mtu") && number && (number < 256 || (number & (number - 1))))
        return bad_value(spec, value, err);
    if (spec->type == SIZE)
        *(size_t *)field = (size_t)number;
    else if (spec->type == UNSIGNED)
        *(unsigned *)field = (unsigned)number;
    else
        *(int *)field = (int)number;
    return 0;
}

static const struct option_spec *find_spec(const char *key)
{
    for (size_t i = 0; i < SPECS; i++) {
        if (!strcmp(specs[i].key, key))
            return &specs[i];
    }
    return NULL;
}

int ibx_options_set(struct ibx_options *options, const char *key, const char *value,
                    struct ibx_error *err)
{
    const struct option_spec *spec = find_spec(key);
    if (spec) {
        void *field = (char *)options + spec->offset;
        return spec->type <= NAMES              ? set_text(spec, field, value, err)
               : spec->type == ENCRYPTION       ? set_encryption(spec, field, value, err)
               : spec->type != BOOL             ? set_number(spec, field, value, err)
               : ibx_yes_no_parse(value, field) ? bad_value(spec, value, err)
                                                : 0;
    }
    char known[512] = "";
    for (size_t i = 0; i < SPECS; i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", specs[i].key);
    }
    return ibx_error_set(err, -ENOENT, "there is no option \"%.64s\"; there are %s", key, known);
}

int ibx_options_set_given(struct ibx_options *options, const char *key, const char *value,
                          struct ibx_error *err)
{
    static const char *const closing[] = {"key_file", "name", "allow"};
    for (size_t i = 0; !*value && i < sizeof(closing) / sizeof(closing[0]); i++)
        if (!strcmp(key, closing[i]))
            return ibx_error_set(err, -EINVAL, "%s: \"\" is empty: give a value, or leave it out",
                                 key);
    return ibx_options_set(options, key, value, err);
}

void ibx_options_init(struct ibx_options *options)
{
    memset(options, 0, sizeof(*options));
    for (size_t i = 0; i < SPECS; i++)
        ibx_options_set(options, specs[i].key, specs[i].fallback, NULL);
}

const char *ibx_options_key(unsigned index)
{
    return index < SPECS ? specs[index].key : NULL;
}

const char *ibx_options_meaning(const char *key)
{
    const struct option_spec *spec = find_spec(key);
    return spec ? spec->meaning : NULL;
}

/* 16384 as "16K": what ibx_size_parse() reads back. */
static void print_size(size_t bytes, char *out, size_t size)
{
    static const char *const units[] = {"", "K", "M", "G"};
    unsigned unit = 0;
    while (bytes && bytes % 1024 == 0 && unit < 3) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, size, "%zu%s", bytes, units[unit]);
}

int ibx_options_get(const struct ibx_options *options, const char *key, char *value, size_t size)
{
    const struct option_spec *spec = find_spec(key);
    if (!spec)
        return -ENOENT;
    const void *field = (const char *)options + spec->offset;
    if (spec->type <= NAMES)
        snprintf(value, size, "%s", (const char *)field);
    else if (spec->type == ENCRYPTION)
        snprintf(value, size, "%s", encryption_words[*(const enum ibx_encryption *)field]);
    else if (spec->type == BOOL)
        snprintf(value, size, "%s", *(const bool *)field ? "yes" : "no");
    else if (spec->type == SIZE)
        print_size(*(const size_t *)field, value, size);
    else if (spec->type == UNSIGNED)
        snprintf(value, size, "%u", *(const unsigned *)field);
    else
        snprintf(value, size, "%d", *(const int *)field);
    return 0;
}

void ibx_options_describe(FILE *out)
{
    for (size_t i = 0; i < SPECS; i++)
        fprintf(out, "%s: %s (%s) [%s]\n", specs[i].key, specs[i].meaning, specs[i].accepted,
                specs[i].fallback);
}
