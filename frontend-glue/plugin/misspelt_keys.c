/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/plugin/misspelt_keys.h"

#include "transport/transport.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#define COMMUNICATOR    "communicator"
#define BYTE_ORDER_MARK "\xef\xbb\xbf" /* of UTF-8 */
#define LETTERS         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define PREFIX_CHARS    (sizeof(IBX_GLUE_PREFIX) - 1)
/* Shorter words are not compared: they are similar to too many others. */
#define LONG_WORD 5
/* Without the prefix, a shorter word may be a key of somebody else. */
#define OWN_WORD 8

/* ctype(3) of the C locale: the process may run in another one. */
static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Where the next word begins. */
static const char *skip(const char *text)
{
    return text + strcspn(text, LETTERS);
}

/* A key's name, which has underscores. */
static size_t name_length(const char *text)
{
    return strspn(text, LETTERS "_");
}

static bool is_same(const char *word, size_t length, const char *meant)
{
    return length == strlen(meant) && !strncasecmp(word, meant, length);
}

/* Whether at most one letter is wrong, missing or too much, or two are swapped. */
static bool is_nearly(const char *word, size_t length, const char *meant)
{
    const size_t n = strlen(meant);
    size_t head = 0, tail = 0;
    while (head < n && head < length && lower(word[head]) == meant[head])
        head++;
    while (tail < n - head && tail < length - head &&
           lower(word[length - 1 - tail]) == meant[n - 1 - tail])
        tail++;
    const size_t wrong = length - head - tail, right = n - head - tail;
    return (wrong <= 1 && right <= 1) ||
           (wrong == 2 && right == 2 && lower(word[head]) == meant[head + 1] &&
            lower(word[head + 1]) == meant[head]);
}

/* ------------------------------------------------------------- the keys of ibx */

/* Our key of that number; false: there are no more. */
static bool one_key(unsigned number, char key[32])
{
    unsigned options = 0;
    while (options < number && ibx_options_key(options))
        options++;
    const char *option = ibx_options_key(options);
    if (option) {
        snprintf(key, 32, "%s", option);
        return true;
    }
    const char *at = IBX_GLUE_KEYS;
    for (number -= options; number && *at; number--)
        at += strcspn(at, ",") + strspn(at + strcspn(at, ","), ", ");
    snprintf(key, 32, "%.*s", (int)strcspn(at, ","), at);
    return *at;
}

/* Finds the key that this word is, or else almost is. */
static bool find_key(const char *word, size_t length, char key[32])
{
    for (unsigned i = 0; one_key(i, key); i++)
        if (is_same(word, length, key))
            return true;
    for (unsigned i = 0; one_key(i, key); i++)
        if (strlen(key) >= LONG_WORD && is_nearly(word, length, key))
            return true;
    return false;
}

bool ibx_glue_key_nearly(const char *word, char key[32])
{
    return find_key(word, strlen(word), key);
}

static int write_instead(const char *key, struct ibx_error *err)
{
    char ours[32];
    if (find_key(key, name_length(key), ours))
        key = ours;
    return ibx_error_set(err, -EINVAL,
                         "this is no key of GVirtuS, and those of ibx begin with rdma and a dot: "
                         "write rdma.%.*s%s",
                         (int)name_length(key), key, *key ? "" : "encryption, for example");
}

/* ------------------------------------------------------------------- the checks */

/* The colon in the URI makes "communicator = rdma://gpu01:9999" an entry, which nobody would
 * read. */
static int check_communicator(const char *key, struct ibx_error *err)
{
    const size_t chars = sizeof(COMMUNICATOR) - 1;
    const char *word = skip(key); /* after a quote, or a byte order mark */
    if (!strcmp(key, COMMUNICATOR) ||
        (strncasecmp(word, COMMUNICATOR, chars) && !is_nearly(word, strlen(word), COMMUNICATOR)))
        return 0;
    return ibx_error_set(err, -EINVAL,
                         "this is no key: write communicator : scheme://host:port, in lower case, "
                         "with a colon, and with nothing before it%s",
                         strncmp(key, BYTE_ORDER_MARK, sizeof(BYTE_ORDER_MARK) - 1)
                             ? ""
                             : " (the file begins with a byte order mark)");
}

/* "rdmaencryption": since nothing separates the words, the rest has to be almost a key. */
static int check_joined(const char *word, struct ibx_error *err)
{
    char key[32];
    const size_t length = name_length(word);
    for (size_t n = PREFIX_CHARS - 1; n <= PREFIX_CHARS + 1 && n < length; n++)
        if (is_nearly(word, n, IBX_GLUE_PREFIX) && find_key(word + n, length - n, key))
            return write_instead(word + n, err);
    return 0;
}

/* "rdma : encryption : required" */
static int check_alone(const char *word, const char *value, struct ibx_error *err)
{
    char key[32];
    const bool known = find_key(value, name_length(value), key);
    if (!is_same(word, strlen(word), IBX_GLUE_PREFIX) &&
        !(known && is_nearly(word, strlen(word), IBX_GLUE_PREFIX)))
        return 0;
    return write_instead(known ? key : "", err);
}

/* "encryption : required": nobody would read it, and nothing would be encrypted. */
static int check_without_prefix(const char *word, size_t length, struct ibx_error *err)
{
    char key[32];
    for (unsigned i = 0; one_key(i, key); i++)
        if (is_same(word, length, key) && length >= OWN_WORD)
            return write_instead(key, err);
    return 0;
}

/* No key of GVirtuS itself is refused here. */
int ibx_glue_key_check(const char *key, const char *value, struct ibx_error *err)
{
    int rc = check_communicator(key, err);
    if (rc || !strncasecmp(key, IBX_GLUE_PREFIX ".", PREFIX_CHARS + 1))
        return rc;
    const char *word = skip(key); /* after a quote, or a byte order mark */
    const size_t length = strspn(word, LETTERS);
    rc = check_without_prefix(word, name_length(word), err);
    if (rc)
        return rc;
    if (!word[length])
        rc = check_alone(word, value, err);
    else if (is_nearly(word, length, IBX_GLUE_PREFIX))
        return write_instead(skip(word + length), err);
    return rc ? rc : check_joined(word, err);
}
