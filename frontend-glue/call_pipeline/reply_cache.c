/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/call_pipeline/reply_cache.h"

#include "common/wire.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------- successes */

uint64_t ibx_request_hash(uint64_t seed, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint64_t hash = (seed ^ n) * 0x9e3779b97f4a7c15u;
    for (size_t some; n; at += some, n -= some) {
        uint64_t word = 0;
        some = n < 8 ? n : 8;
        memcpy(&word, at, some);
        hash = (hash ^ word) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    hash = (hash ^ hash >> 29) * 0xc4ceb9fe1a85ec53u;
    hash ^= hash >> 32;
    return hash ? hash : 1;
}

/* The place of the hash, or a free one. */
static uint64_t *place(const struct ibx_successes *set, uint64_t hash)
{
    unsigned at = (unsigned)hash & (set->room - 1);
    while (set->hashes[at] && set->hashes[at] != hash)
        at = (at + 1) & (set->room - 1);
    return &set->hashes[at];
}

bool ibx_successes_hold(const struct ibx_successes *set, uint64_t hash)
{
    return set->count && *place(set, hash);
}

static bool grow(struct ibx_successes *set)
{
    struct ibx_successes more = {.room = set->room ? 2 * set->room : 64};
    more.hashes = calloc(more.room, sizeof(*more.hashes));
    if (!more.hashes)
        return false;
    for (unsigned i = 0; i < set->room; i++) {
        if (set->hashes[i])
            *place(&more, set->hashes[i]) = set->hashes[i];
    }
    more.count = set->count;
    free(set->hashes);
    *set = more;
    return true;
}

void ibx_successes_add(struct ibx_successes *set, uint64_t hash)
{
    if (set->count >= IBX_SUCCESSES_MAX)
        ibx_successes_clear(set);
    if (2 * (set->count + 1) > set->room && !grow(set))
        return;
    uint64_t *free_place = place(set, hash);
    set->count += !*free_place;
    *free_place = hash;
}

void ibx_successes_clear(struct ibx_successes *set)
{
    if (set->count)
        memset(set->hashes, 0, set->room * sizeof(*set->hashes));
    set->count = 0;
}

void ibx_successes_fini(struct ibx_successes *set)
{
    free(set->hashes);
    *set = (struct ibx_successes){0};
}

/* --------------------------------------------------------------------- known replies */

const struct ibx_known_reply *ibx_replies_find(const struct ibx_known_replies *replies,
                                               const void *request, size_t n)
{
    const uint64_t hash = ibx_request_hash(0, request, n);
    for (unsigned i = 0; i < IBX_REPLIES; i++) {
        const struct ibx_known_reply *item = &replies->items[i];
        if (item->hash == hash && item->request == n && !memcmp(item->bytes, request, n))
            return item;
    }
    return NULL;
}

static void forget(struct ibx_known_reply *item)
{
    free(item->bytes);
    *item = (struct ibx_known_reply){0};
}

void ibx_replies_add(struct ibx_known_replies *replies, const void *request, size_t n,
                     const void *reply, size_t length)
{
    if (n > IBX_REPLY_MAX || length > IBX_REPLY_MAX || ibx_replies_find(replies, request, n))
        return;
    struct ibx_known_reply *item = &replies->items[replies->next];
    forget(item);
    item->bytes = malloc(n + length);
    if (!item->bytes)
        return;
    memcpy(item->bytes, request, n);
    memcpy(item->bytes + n, reply, length);
    item->hash = ibx_request_hash(0, request, n);
    item->request = n;
    item->reply = length;
    replies->next = (replies->next + 1) % IBX_REPLIES;
}

void ibx_replies_clear(struct ibx_known_replies *replies)
{
    for (unsigned i = 0; i < IBX_REPLIES; i++)
        forget(&replies->items[i]);
    replies->next = 0;
}

/* ------------------------------------------------------- configurations of launches */

#define FIELDS 4

static const size_t field_bytes[FIELDS] = {12, 12, 8, 8};

void ibx_configurations_init(struct ibx_configurations *all)
{
    *all = (struct ibx_configurations){.form = -1};
}

void ibx_configurations_push(struct ibx_configurations *all, const uint8_t *body, bool remote)
{
    if (all->count == IBX_CONFIGURATIONS) {
        all->beyond++;
        return;
    }
    memcpy(all->pushed[all->count].bytes, body, IBX_CONFIGURATION_BYTES);
    all->pushed[all->count++].remote = remote;
}

/* Writes a configuration as in a reply of that form; returns its length. */
static size_t put(const uint8_t *bytes, int form, uint8_t out[72])
{
    struct ibx_writer w = ibx_writer_of(out, 72);
    for (int i = 0; i < FIELDS; i++) {
        if (form & 1 << i)
            ibx_put_u64(&w, field_bytes[i]);
        ibx_put_bytes(&w, bytes, field_bytes[i]);
        bytes += field_bytes[i];
    }
    return w.length;
}

void ibx_configurations_popped(struct ibx_configurations *all, const uint8_t *out, size_t n)
{
    uint8_t expected[72];
    if (all->beyond) {
        all->beyond--;
        return;
    }
    if (!all->count)
        return;
    const uint8_t *bytes = all->pushed[--all->count].bytes;
    int form = -1;
    for (int i = 0; i < 1 << FIELDS && form < 0; i++) {
        if (put(bytes, i, expected) == n && !memcmp(expected, out, n))
            form = i;
    }
    if (form < 0) /* other values than those that were pushed, or an unknown form */
        all->lost = true;
    all->form = form;
}

size_t ibx_configurations_pop(struct ibx_configurations *all, uint8_t out[72])
{
    if (all->beyond || !all->count || all->pushed[all->count - 1].remote || all->form < 0)
        return 0;
    return put(all->pushed[--all->count].bytes, all->form, out);
}
