/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by client_list.c and departures.c. */
#ifndef IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_INTERNAL_H
#define IBX_FRONTEND_GLUE_TENANTS_CLIENT_LIST_INTERNAL_H

#include "frontend-glue/tenants/client_list.h"

#include <pthread.h>
#include <stdatomic.h>

struct ibx_client {
    struct ibx_client *next;
    uint64_t number;         /* which no other client ever has */
    uint64_t parent;         /* the client that it was forked from; 0: not known */
    unsigned sessions;       /* 0: its process may still exist, and come again */
    uint64_t came;           /* sessions so far */
    uint64_t went;           /* of a client without a session: in the order of departures */
    int process_fd;          /* readable once its process has ended; -1: this host does not know */
    bool calls;              /* ibx_clients_calls() was called */
    unsigned thread_streams; /* sessions that use CUDA's per-thread stream */
    atomic_bool hides_work;  /* ibx_clients_hide_work() was called; never reset */
    bool shares;             /* ibx_clients_share() was called; never reset */
    bool ends;               /* the process has said that it ends, maybe before all sessions */
    uint32_t process;        /* 0: not known */
    uint64_t process_namespace;
    const struct ibx_tenant *tenant;
    char host[sizeof(((struct ibx_path *)0)->peer)];
};

/* Under its lock. */
struct ibx_client_list {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ibx_client *all;
    unsigned sessions;
    unsigned thread_streams; /* of all clients */
    unsigned leaving;        /* threads that give back what clients have left */
};
extern struct ibx_client_list ibx_client_list;

/* Whether its process has ended, as far as this host sees. */
bool ibx_client_has_ended(const struct ibx_client *client);
/* Locked. NULL: there is none of that number. */
struct ibx_client *ibx_client_find_number(uint64_t number);
/* Locked. */
struct ibx_client_name ibx_client_name_of(const struct ibx_client *client);

#endif
