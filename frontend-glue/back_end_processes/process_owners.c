/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/back_end_processes/process_owners.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t none[IBX_PROGRAM_BYTES];

struct ibx_process_client ibx_process_client_of(const struct ibx_conn *conn, const char *name)
{
    struct ibx_process_client client = {0};
    const struct ibx_path *path = ibx_conn_path(conn);
    const uint8_t *number = ibx_conn_program(conn);
    if (number)
        memcpy(client.number, number, sizeof(client.number));
    snprintf(client.name, sizeof(client.name), "%s", name);
    memcpy(client.peer, path->peer, sizeof(client.peer));
    client.has_user = !path->remote && !ibx_conn_user(conn, &client.user);
    return client;
}

static bool has_number(const struct ibx_process_client *client)
{
    return memcmp(client->number, none, sizeof(none)) != 0;
}

bool ibx_process_one_owner(const struct ibx_process_client *a, const struct ibx_process_client *b)
{
    return !strcmp(a->name, b->name) && !(a->has_user && b->has_user && a->user != b->user);
}

bool ibx_process_same_tenant(const struct ibx_process_client *a, const struct ibx_process_client *b)
{
    return ibx_process_one_owner(a, b) && a->has_user == b->has_user;
}

/* A program that moves between hosts may have a user or none; its number shows that it is the same.
 * A client without a number could otherwise get into another's process by claiming to be on another
 * host. */
bool ibx_process_same_program(const struct ibx_process_client *a,
                              const struct ibx_process_client *b)
{
    return !memcmp(a->number, b->number, sizeof(a->number)) && ibx_process_one_owner(a, b) &&
           (a->has_user == b->has_user || has_number(a));
}

static bool knows(const struct ibx_process_clients *of, const uint8_t *number)
{
    for (unsigned i = 0; i < of->count; i++) {
        if (!memcmp(of->numbers[i], number, sizeof(of->numbers[i])))
            return true;
    }
    return false;
}

void ibx_process_clients_note(struct ibx_process_clients *of,
                              const struct ibx_process_client *client)
{
    if (!has_number(client) || knows(of, client->number))
        return;
    if (!of->numbers)
        of->numbers = calloc(IBX_PROCESS_NUMBERS, sizeof(*of->numbers));
    if (!of->numbers)
        return;
    memcpy(of->numbers[of->next], client->number, sizeof(client->number));
    of->next = (of->next + 1) % IBX_PROCESS_NUMBERS;
    of->count += of->count < IBX_PROCESS_NUMBERS;
}

bool ibx_process_clients_have(const struct ibx_process_clients *of,
                              const struct ibx_process_client *client)
{
    return ibx_process_one_owner(&of->first, client) && knows(of, client->number);
}

void ibx_process_clients_forget(struct ibx_process_clients *of)
{
    free(of->numbers);
    of->numbers = NULL;
    of->count = of->next = 0;
}
