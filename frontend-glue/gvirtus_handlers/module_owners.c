/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/gvirtus_handlers/module_owners.h"

#include <stdlib.h>

#define BUCKETS 16384u

struct ibx_module_use {
    struct ibx_module_use *next;
    struct ibx_module_owner *of;
};

/* By number of the client. Numbers are consecutive, so buckets have few entries. */
static struct ibx_module_owner *owners[BUCKETS];
static struct ibx_module_owner *over;

/* Where the owner is in its bucket, or the end of the list. */
static struct ibx_module_owner **owner_at(uint64_t client)
{
    struct ibx_module_owner **at = &owners[client % BUCKETS];
    while (*at && (*at)->client != client)
        at = &(*at)->next;
    return at;
}

struct ibx_module_owner *ibx_module_owner_find(uint64_t client)
{
    return *owner_at(client);
}

struct ibx_module_owner *ibx_module_owner_make(uint64_t client)
{
    struct ibx_module_owner **at = owner_at(client);
    if (!*at && (*at = calloc(1, sizeof(**at))))
        (*at)->client = client;
    return *at;
}

bool ibx_module_owner_uses(const struct ibx_module_owner *owner,
                           const struct ibx_module_owner *other)
{
    const struct ibx_module_use *use = owner->uses;
    while (use && use->of != other)
        use = use->next;
    return use;
}

bool ibx_module_owner_use(struct ibx_module_owner *owner, struct ibx_module_owner *other)
{
    if (owner == other || ibx_module_owner_uses(owner, other))
        return true;
    struct ibx_module_use *use = malloc(sizeof(*use));
    if (!use)
        return false;
    *use = (struct ibx_module_use){owner->uses, other};
    owner->uses = use;
    other->users++;
    return true;
}

/* Moves an owner to `over`, or frees it, if it is due. */
static void settle(struct ibx_module_owner *owner)
{
    const bool needed = owner->users || owner->uses || owner->over;
    const bool goes = !needed && owner->ends && owner->ended && owner->modules;
    if (!goes && (needed || owner->modules || (owner->ends && !owner->ended)))
        return;
    *owner_at(owner->client) = owner->next;
    if (!goes) {
        free(owner);
        return;
    }
    owner->over = true;
    owner->next = over;
    over = owner;
}

void ibx_module_owner_left(struct ibx_module_owner *owner)
{
    settle(owner);
}

void ibx_module_owner_ended(struct ibx_module_owner *owner)
{
    owner->ended = true;
    for (struct ibx_module_use *use; (use = owner->uses);) {
        owner->uses = use->next;
        use->of->users--;
        settle(use->of);
        free(use);
    }
    settle(owner);
}

struct ibx_module_owner *ibx_module_owner_over(void)
{
    for (struct ibx_module_owner *owner; (owner = over) && !owner->modules;) {
        over = owner->next;
        free(owner);
    }
    return over;
}
