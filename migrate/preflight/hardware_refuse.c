/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether two VMs have the same hardware. */
#include "migrate/preflight/preflight.h"

#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 3   /* devices in one sentence */
#define PIECE_MAX 200 /* bytes of a piece that are looked at */

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

/* How often it is in `text`, up to `till` (NULL: the end). */
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

/* ------------------------------------------------------------ processors, disks */

static void refuse_processors(const char *source, const char *destination,
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

/* More than the guest has found does not hurt it. */
static void refuse_features(const char *source, const char *destination,
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

static void refuse_disks(const char *source, const char *destination, struct ibx_blockers *blockers)
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

/* ------------------------------------------------------------ devices */

/* Those of `text` that `other` has not, as often as it lacks them; how many. */
static unsigned list_missing(const char *text, const char *other, bool board, char *names,
                             size_t size)
{
    struct piece piece;
    unsigned missing = 0;
    size_t used = 0;
    *names = '\0';
    for (const char *at = text; next_piece(&at, &piece);) {
        if (!begins(&piece, "p ") && (!board || !begins(&piece, "b ")))
            continue;
        if (count_of(&piece, text, piece.at) < count_of(&piece, other, NULL) ||
            missing++ >= NAMED_MAX)
            continue;
        const int length = (int)(piece.length < PIECE_MAX ? piece.length - 2 : PIECE_MAX);
        used += (size_t)snprintf(names + used, size - used, "%s%.*s", used ? ", " : "",
                                 length < 100 ? length : 100, piece.at + 2);
    }
    return missing;
}

static void refuse_devices(const char *source, const char *destination, bool board,
                           struct ibx_blockers *blockers)
{
    char names[IBX_ERROR_MAX], more[32];
    unsigned n = list_missing(source, destination, board, names, sizeof(names));
    snprintf(more, sizeof(more), " and %u more", n > NAMED_MAX ? n - NAMED_MAX : 0);
    if (n)
        ibx_blockers_add(
            blockers,
            "the destination lacks %s%s: start its QEMU with the same devices in the same "
            "places as here, also those that were plugged in since",
            names, n > NAMED_MAX ? more : "");
    n = list_missing(destination, source, board, names, sizeof(names));
    snprintf(more, sizeof(more), " and %u more", n > NAMED_MAX ? n - NAMED_MAX : 0);
    if (n)
        ibx_blockers_add(
            blockers,
            "the destination has %s%s, which the VM here has not: start its QEMU with the "
            "same devices in the same places as here",
            names, n > NAMED_MAX ? more : "");
}

void ibx_preflight_hardware(const char *source, const char *destination, bool same_version,
                            struct ibx_blockers *blockers)
{
    if (!*source || !*destination)
        return;
    refuse_processors(source, destination, blockers);
    refuse_features(source, destination, blockers);
    refuse_disks(source, destination, blockers);
    refuse_devices(source, destination, same_version, blockers);
}
