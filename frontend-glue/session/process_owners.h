/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whose connection is which process's (client_processes.h). Each is for the clients of one key's
 * name; where that is known, which is on the server's host, for those of one user. Which program a
 * client is, it says by a number: that alone is no proof, since others may have seen it.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_PROCESS_OWNERS_H
#define IBX_FRONTEND_GLUE_SESSION_PROCESS_OWNERS_H

#include "transport/transport.h"

#define IBX_PROCESS_NUMBERS 1024u /* programs of a process that are remembered, the last ones */

struct ibx_process_client {
    uint8_t number[IBX_PROGRAM_BYTES]; /* of its program; zeros: it says none */
    char name[IBX_NAME_MAX + 1];       /* of its key */
    bool has_user;                     /* it is known */
    unsigned user;
    char peer[128];
};

struct ibx_process_clients {
    struct ibx_process_client first;
    uint8_t (*numbers)[IBX_PROGRAM_BYTES]; /* NULL: none yet */
    unsigned count, next;                  /* of these */
};

/* Of the other end, whose key has that name. */
struct ibx_process_client ibx_process_client_of(const struct ibx_conn *conn, const char *name);
/* The same name, and no other user. */
bool ibx_process_one_owner(const struct ibx_process_client *a, const struct ibx_process_client *b);
bool ibx_process_same_tenant(const struct ibx_process_client *a,
                             const struct ibx_process_client *b);
bool ibx_process_same_program(const struct ibx_process_client *a,
                              const struct ibx_process_client *b);
/* The client's program comes to this process. Without memory that is forgotten. */
void ibx_process_clients_note(struct ibx_process_clients *of,
                              const struct ibx_process_client *client);
/* Whether it has come, and the client is of the same owner. */
bool ibx_process_clients_have(const struct ibx_process_clients *of,
                              const struct ibx_process_client *client);
void ibx_process_clients_forget(struct ibx_process_clients *of);

#endif
