/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The numbers of functions that graphs call. The same function and argument have one number for all
 * graphs. It is never freed, because nothing tells this process when the last graph with such a
 * function is destroyed.
 */
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include <search.h>
#include <stdlib.h>

struct repeated {
    uint64_t number;
    struct host_node host;
};

static void *by_number, *by_call; /* trees (tsearch(3)), under the lock of host_functions.c */

static int compare_numbers(const void *a, const void *b)
{
    const struct repeated *left = a, *right = b;
    return (left->number > right->number) - (left->number < right->number);
}

static int compare_calls(const void *a, const void *b)
{
    const struct host_node *left = &((const struct repeated *)a)->host;
    const struct host_node *right = &((const struct repeated *)b)->host;
    const uintptr_t of_left = (uintptr_t)left->function, of_right = (uintptr_t)right->function;
    const uintptr_t on_left = (uintptr_t)left->argument, on_right = (uintptr_t)right->argument;
    return of_left != of_right ? (of_left > of_right) - (of_left < of_right)
                               : (on_left > on_right) - (on_left < on_right);
}

bool ibx_repeated_find(uint64_t number, struct host_node *host)
{
    const struct repeated wanted = {.number = number};
    struct repeated *const *found = tfind(&wanted, &by_number, compare_numbers);
    if (found)
        *host = (*found)->host;
    return found;
}

uint64_t ibx_repeated_number(const struct host_node *wanted, uint64_t *last)
{
    const struct repeated like = {.host = *wanted};
    struct repeated *const *found = tfind(&like, &by_call, compare_calls);
    struct repeated *made = found ? NULL : malloc(sizeof(*made));
    if (!made)
        return found ? (*found)->number : 0;
    *made = (struct repeated){++*last, *wanted};
    if (tsearch(made, &by_number, compare_numbers)) {
        if (tsearch(made, &by_call, compare_calls))
            return made->number;
        tdelete(made, &by_number, compare_numbers);
    }
    free(made);
    return 0;
}

/* Graphs of the parent are none of the child's. */
void ibx_repeated_in_child(void)
{
    by_number = by_call = NULL;
}
