/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which process a connection belongs to (client_processes.h). A process is for the clients with one
 * key name and, where that is known, on the server's host, for those of one user. A client
 * identifies its program by a number, which is no proof, because others may have seen it.
 */
#ifndef IBX_FRONTEND_GLUE_BACK_END_PROCESSES_PROCESS_OWNERS_H
#define IBX_FRONTEND_GLUE_BACK_END_PROCESSES_PROCESS_OWNERS_H

#include "transport/transport.h"

#define IBX_PROCESS_NUMBERS 1024u /* the last programs of a process that are remembered */

struct ibx_process_client {
    uint8_t number[IBX_PROGRAM_BYTES]; /* the number of its program; zeros: none */
    char name[IBX_NAME_MAX + 1];       /* the name of its key */
    bool has_user;                     /* `user` is known */
    unsigned user;
    char peer[128];
};

struct ibx_process_clients {
    struct ibx_process_client first;
    uint8_t (*numbers)[IBX_PROGRAM_BYTES]; /* NULL: none yet */
    unsigned count, next;                  /* of `numbers`: used; the next to be replaced */
};

/* The client at the other end of the connection, whose key has this name. */
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
