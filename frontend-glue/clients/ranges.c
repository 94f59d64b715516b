/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/clients/ranges.h"

#include <search.h>
#include <stdlib.h>

/* Ranges that overlap compare as equal: so a search finds one. */
static int compare(const void *a, const void *b)
{
    const struct ibx_range *left = a, *right = b;
    return (left->begin > right->last) - (left->last < right->begin);
}

void *ibx_ranges_find(void *tree, uint64_t begin, uint64_t last)
{
    const struct ibx_range wanted = {begin, last};
    void **found = tfind(&wanted, &tree, compare);
    return found ? *found : NULL;
}

bool ibx_ranges_add(void **tree, struct ibx_range *range)
{
    return tsearch(range, tree, compare);
}

void ibx_ranges_remove(void **tree, struct ibx_range *range)
{
    tdelete(range, tree, compare);
}

/* ---------------------------------------------------------------------------- what is covered */

static bool add_new(void **cover, uint64_t begin, uint64_t last)
{
    struct ibx_range *r = malloc(sizeof(*r));
    if (r)
        *r = (struct ibx_range){begin, last};
    if (r && ibx_ranges_add(cover, r))
        return true;
    free(r);
    return false;
}

/* A piece next to it grows, and keeps its place in the tree. */
bool ibx_cover_add(void **cover, uint64_t begin, uint64_t last)
{
    struct ibx_range *left = begin ? ibx_ranges_find(*cover, begin - 1, begin - 1) : NULL;
    struct ibx_range *right =
        last < UINT64_MAX ? ibx_ranges_find(*cover, last + 1, last + 1) : NULL;
    if (!left && !right)
        return add_new(cover, begin, last);
    if (!left) {
        right->begin = begin;
        return true;
    }
    if (right)
        ibx_ranges_remove(cover, right);
    left->last = right ? right->last : last;
    free(right);
    return true;
}

void ibx_cover_remove(void **cover, uint64_t begin, uint64_t last)
{
    struct ibx_range *whole = ibx_ranges_find(*cover, begin, begin);
    if (!whole) /* removed already */
        return;
    const uint64_t end = whole->last;
    if (whole->begin < begin) {
        whole->last = begin - 1;
    } else {
        ibx_ranges_remove(cover, whole);
        free(whole);
    }
    if (last < end)
        add_new(cover, last + 1, end);
}

bool ibx_cover_has(void *cover, uint64_t begin, uint64_t last)
{
    const struct ibx_range *whole = ibx_ranges_find(cover, begin, begin);
    return whole && last <= whole->last;
}
