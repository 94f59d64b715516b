/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Key files: one key, or a line name:key for each name; '#' begins a comment. A key is hex digits,
 * of 128 bits or more: whoever has to type 32 of them makes them by a program, not from a word. No
 * message ever holds what stands in the file, except for names.
 */
#include "transport/handshake/handshake.h"

#include "common/file_check.h"
#include "common/fork_lock.h"
#include "common/shell_word.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define FEWEST_DIGITS 32u
#define MOST_DIGITS   1024u

struct ibx_keys {
    atomic_uint holders;
    unsigned count;
    struct ibx_key nobodys; /* random bytes */
    struct ibx_key items[];
};

/* -------------------------------------------------------------------------- parsing */

struct span {
    const char *at;
    size_t length;
};

static struct span trimmed(struct span s)
{
    while (s.length && isspace((unsigned char)*s.at)) {
        s.at++;
        s.length--;
    }
    while (s.length && isspace((unsigned char)s.at[s.length - 1]))
        s.length--;
    return s;
}

/* Takes the first line off the text. */
static struct span next_line(struct span *text)
{
    const char *end = memchr(text->at, '\n', text->length);
    struct span line = {text->at, end ? (size_t)(end - text->at) : text->length};
    size_t taken = line.length + (end != NULL);
    text->at += taken;
    text->length -= taken;
    return trimmed(line);
}

/* Whether a line holds a key, and not a comment or nothing. */
static bool counts(struct span line)
{
    return line.length && *line.at != '#';
}

bool ibx_key_name_valid(const char *name, size_t length)
{
    if (!length || length > IBX_NAME_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)name[i]) && !strchr("-_.@", name[i]))
            return false;
    }
    return true;
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The key is the SHA-256 of the bytes that the digits stand for. NULL, or what is wrong. */
static const char *take_digits(struct span digits, struct ibx_key *key)
{
    uint8_t bytes[MOST_DIGITS / 2];
    size_t good = 0;
    while (good < digits.length && digit_value(digits.at[good]) >= 0)
        good++;
    if (good < digits.length)
        return "contains something other than hex digits";
    if (digits.length < FEWEST_DIGITS)
        return "has fewer than 32 hex digits, so that the key can be guessed";
    if (digits.length > MOST_DIGITS || digits.length % 2)
        return "has an odd number of hex digits, or more than 1024";
    for (size_t i = 0; i < digits.length; i += 2)
        bytes[i / 2] = (uint8_t)(digit_value(digits.at[i]) << 4 | digit_value(digits.at[i + 1]));
    /* OpenSSL leaves traces of the key in vector registers and on the stack. Hashing zeros
     * afterwards overwrites them. Hashing zeros before makes the dynamic linker find the functions,
     * because doing that it saves these registers. */
    static const uint8_t zeros[MOST_DIGITS / 2];
    const struct ibx_piece piece = {bytes, digits.length / 2}, none = {zeros, piece.length};
    uint8_t hash[IBX_HASH_BYTES];
    ibx_hash(&none, 1, hash);
    ibx_hash(&piece, 1, key->bytes);
    ibx_hash(&none, 1, hash);
    explicit_bzero(bytes, sizeof(bytes));
    return NULL;
}

static const char *take_line(struct ibx_keys *keys, struct span line, bool alone)
{
    struct ibx_key *key = &keys->items[keys->count];
    const char *colon = memchr(line.at, ':', line.length);
    if (colon) {
        struct span name = trimmed((struct span){line.at, (size_t)(colon - line.at)});
        if (!ibx_key_name_valid(name.at, name.length))
            return "has a name that is not 1 to 63 letters, digits or -_.@";
        memcpy(key->name, name.at, name.length);
        line.length -= (size_t)(colon + 1 - line.at);
        line.at = colon + 1;
        if (ibx_keys_find(keys, key->name))
            return "has the name of an earlier line";
    } else if (!alone) {
        return "has no name, but the file has several keys: write name:key";
    }
    const char *wrong = take_digits(trimmed(line), key);
    if (wrong)
        return wrong;
    for (unsigned i = 0; i < keys->count; i++) {
        if (ibx_hash_equal(keys->items[i].bytes, key->bytes))
            return "has the key of an earlier line, so that one name can pose as the other";
    }
    keys->count++;
    return NULL;
}

int ibx_keys_parse(const char *path, const char *text, size_t length, struct ibx_keys **out,
                   struct ibx_error *err)
{
    unsigned lines = 0, number = 0;
    struct span rest = {text, length};
    while (rest.length)
        lines += counts(next_line(&rest));
    struct ibx_keys *keys = ibx_secret_allocate(sizeof(*keys) + lines * sizeof(struct ibx_key));
    if (!keys)
        return ibx_error_set(err, -ENOMEM, "no memory for %u keys", lines);
    atomic_init(&keys->holders, 1);
    const int rc = ibx_random(keys->nobodys.bytes, sizeof(keys->nobodys.bytes), err);
    if (rc) {
        ibx_keys_release(keys);
        return rc;
    }
    const char *wrong = NULL;
    ibx_crypto_lacked(); /* for something else */
    for (rest = (struct span){text, length}; rest.length && !wrong;) {
        struct span line = next_line(&rest);
        number++;
        if (counts(line))
            wrong = take_line(keys, line, lines == 1);
    }
    const bool lacked = ibx_crypto_lacked(); /* then a key is not that of the file */
    if (!lacked && !wrong && lines) {
        *out = keys;
        return 0;
    }
    ibx_keys_release(keys);
    if (lacked)
        return ibx_error_set(err, -ENOMEM, "no memory to hash what key file %s holds", path);
    if (!lines)
        return ibx_error_set(
            err, -EINVAL,
            "key file %s holds no key: copy the other end's into it, or make one by "
            "\"openssl rand -hex 32 > %s\"",
            path, ibx_shell_word(path).text);
    /* The advice is not > FILE, which would overwrite the other lines. */
    return ibx_error_set(err, -EINVAL,
                         "line %u of key file %s %s; correct it: a line is KEY, or name:KEY, with "
                         "what \"openssl rand -hex 32\" prints",
                         number, path, wrong);
}

/* ------------------------------------------------------------------------------ files */

static int read_keys(int fd, const char *path, struct ibx_keys **keys, struct ibx_error *err)
{
    /* One byte more tells a longer file from a whole one. */
    char *content = ibx_secret_allocate(IBX_KEY_MAX + 1);
    if (!content)
        return ibx_error_set(err, -ENOMEM, "no memory for key file %s", path);
    size_t n = 0;
    ssize_t got = 0;
    while (n <= IBX_KEY_MAX && ((got = read(fd, content + n, IBX_KEY_MAX + 1 - n)) > 0 ||
                                (got < 0 && errno == EINTR))) /* on a network's file system */
        n += got > 0 ? (size_t)got : 0;
    int rc =
        n <= IBX_KEY_MAX && got < 0
            ? ibx_error_set(err, -errno, "key file %s cannot be read: %s", path, strerror(errno))
        : n > IBX_KEY_MAX
            ? ibx_error_set(err, -EINVAL, "key file %s is longer than %d bytes", path, IBX_KEY_MAX)
            : ibx_keys_parse(path, content, n, keys, err);
    ibx_secret_free(content);
    return rc;
}

int ibx_keys_load(const char *path, struct ibx_keys **keys, struct ibx_error *err)
{
    *keys = NULL;
    if (!*path)
        return 0;
    int fd = ibx_file_open(path, IBX_FILE_KEY, err);
    if (fd == -ENOENT) /* install -m 600: what a shell's > makes may be readable to others */
        return ibx_error_set(err, fd,
                             "key file %s cannot be read: %s; copy the other end's there, or make "
                             "one by \"openssl rand -hex 32 | install -m 600 /dev/stdin %s\"",
                             path, strerror(-fd), ibx_shell_word(path).text);
    if (fd == -EACCES)
        return ibx_error_set(err, fd, "key file %s cannot be read: %s; " IBX_FILE_KEY_COPY, path,
                             strerror(-fd));
    if (fd < 0)
        return fd;
    int rc = read_keys(fd, path, keys, err);
    close(fd);
    return rc;
}

/* --------------------------------------------------------------------- of another user */

/* The keys that this process has read last as a client. */
static struct {
    struct ibx_fork_lock lock;
    char path[sizeof(((struct ibx_options *)0)->key_file)];
    uid_t uid; /* who has read them */
    _Atomic(struct ibx_keys *) keys;
} kept = {.lock = IBX_FORK_LOCK};

/* A child that is forked in the middle of it has none. */
static void keep(const char *path, struct ibx_keys *keys)
{
    ibx_fork_lock_take(&kept.lock);
    struct ibx_keys *before = atomic_exchange(&kept.keys, NULL);
    kept.uid = geteuid();
    strncpy(kept.path, path, sizeof(kept.path) - 1);
    atomic_store(&kept.keys, ibx_keys_hold(keys));
    ibx_fork_lock_release(&kept.lock);
    ibx_keys_release(before);
}

/* The keys for a user that may not read the file now, or NULL. */
static struct ibx_keys *find_kept(const char *path)
{
    ibx_fork_lock_take(&kept.lock);
    struct ibx_keys *keys = atomic_load(&kept.keys);
    const bool found = keys && kept.uid != geteuid() && !strcmp(path, kept.path);
    keys = found ? ibx_keys_hold(keys) : NULL;
    ibx_fork_lock_release(&kept.lock);
    return keys;
}

/* A signal handler may end the process, and have interrupted the thread that has the lock. */
__attribute__((destructor)) static void wipe_kept(void)
{
    if (!atomic_load(&kept.keys) || !ibx_fork_lock_try(&kept.lock))
        return;
    ibx_keys_release(atomic_exchange(&kept.keys, NULL));
    ibx_fork_lock_release(&kept.lock);
}

int ibx_keys_load_as_client(const char *path, struct ibx_keys **keys, struct ibx_error *err)
{
    const int rc = ibx_keys_load(path, keys, err);
    if (rc) {
        *keys = find_kept(path);
        return *keys ? 0 : rc;
    }
    if (*keys)
        keep(path, *keys);
    return 0;
}

/* ------------------------------------------------------------------------- what it has */

const struct ibx_key *ibx_keys_find(const struct ibx_keys *keys, const char *name)
{
    for (unsigned i = 0; keys && i < keys->count; i++) {
        if (!strcmp(keys->items[i].name, name))
            return &keys->items[i];
    }
    return NULL;
}

const struct ibx_key *ibx_keys_nobodys(const struct ibx_keys *keys)
{
    return &keys->nobodys;
}

int ibx_keys_own(const struct ibx_keys *keys, const struct ibx_options *options,
                 const struct ibx_key **key, struct ibx_error *err)
{
    *key = !keys ? NULL : options->name[0] ? ibx_keys_find(keys, options->name) : keys->items;
    if (*key || (!keys && !options->name[0]))
        return 0;
    if (!keys)
        return ibx_error_set(
            err, -EINVAL,
            "name: \"%s\" must be a key in rdma.key_file (--key-file), which is not set",
            options->name);
    return ibx_error_set(err, -EINVAL,
                         "name: key file %s has no key \"%s\": give it a line %s:KEY, at both ends",
                         options->key_file, options->name, options->name);
}

int ibx_keys_check_allowed(const struct ibx_keys *keys, const struct ibx_options *options,
                           struct ibx_error *err)
{
    char list[sizeof(options->allow)], *rest = list, *name;
    memcpy(list, options->allow, sizeof(list));
    while (options->allow[0] && (name = strsep(&rest, ","))) {
        /* An empty name would admit the key without a name. */
        if (!*name)
            return ibx_error_set(err, -EINVAL,
                                 "allow: \"%s\" has an empty name: separate names by commas, "
                                 "without one before the first or after the last",
                                 options->allow);
        if (!keys)
            return ibx_error_set(
                err, -EINVAL,
                "allow: \"%s\" must be a key in rdma.key_file (--key-file), which is not set",
                name);
        if (!ibx_keys_find(keys, name))
            return ibx_error_set(err, -EINVAL,
                                 "allow: key file %s has no key \"%s\"; give it a line %s:key",
                                 options->key_file, name, name);
    }
    return 0;
}

struct ibx_keys *ibx_keys_hold(struct ibx_keys *keys)
{
    if (keys)
        atomic_fetch_add(&keys->holders, 1);
    return keys;
}

void ibx_keys_release(struct ibx_keys *keys)
{
    if (keys && atomic_fetch_sub(&keys->holders, 1) == 1)
        ibx_secret_free(keys);
}
