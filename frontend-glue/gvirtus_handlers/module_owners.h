/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients that have registered modules, and who uses these beside them: children that were forked
 * from them. All of it under the lock of client_functions.c.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_MODULE_OWNERS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_MODULE_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

struct ibx_client_module;
struct ibx_module_use;

struct ibx_module_owner {
    struct ibx_module_owner *next; /* its bucket's; when it is over, those of these */
    uint64_t client;
    struct ibx_client_module *modules; /* the last one first */
    struct ibx_module_use *uses;       /* whose modules it uses */
    unsigned users;                    /* clients that use its own */
    bool orphan;                       /* it has no session */
    bool ends;                         /* its modules go when nobody needs them any more */
    bool ended;                        /* its process has */
    bool over;                         /* ... and nobody does */
};

/* NULL: there is none, or no memory. */
struct ibx_module_owner *ibx_module_owner_find(uint64_t client);
struct ibx_module_owner *ibx_module_owner_make(uint64_t client);
/* Until its own end it uses what the other one has. False: no memory. */
bool ibx_module_owner_use(struct ibx_module_owner *owner, struct ibx_module_owner *other);
bool ibx_module_owner_uses(const struct ibx_module_owner *owner,
                           const struct ibx_module_owner *other);
void ibx_module_owner_ended(struct ibx_module_owner *owner);
/* A module of it has gone. */
void ibx_module_owner_left(struct ibx_module_owner *owner);
/* One that is over, and has modules; NULL: there is none. */
struct ibx_module_owner *ibx_module_owner_over(void);

#endif
