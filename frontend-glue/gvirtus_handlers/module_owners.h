/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Clients that have registered modules, and the children that were forked from them and use these
 * as well. All of it is under the lock of client_functions.c.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_MODULE_OWNERS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_MODULE_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

struct ibx_client_module;
struct ibx_module_use;

struct ibx_module_owner {
    struct ibx_module_owner *next; /* in its bucket; if it is over, in the list of such owners */
    uint64_t client;
    struct ibx_client_module *modules; /* the last one first */
    struct ibx_module_use *uses;       /* the clients whose modules it uses */
    unsigned users;                    /* clients that use its modules */
    bool orphan;                       /* it has no session */
    bool ends;                         /* its modules are unloaded when nobody needs them */
    bool ended;                        /* its process has ended */
    bool over;                         /* its process has ended, and no client needs its modules */
};

/* find(): NULL: there is none; make(): NULL: no memory. */
struct ibx_module_owner *ibx_module_owner_find(uint64_t client);
struct ibx_module_owner *ibx_module_owner_make(uint64_t client);
/* `owner` uses the modules of `other` until its own process ends. False: no memory. */
bool ibx_module_owner_use(struct ibx_module_owner *owner, struct ibx_module_owner *other);
bool ibx_module_owner_uses(const struct ibx_module_owner *owner,
                           const struct ibx_module_owner *other);
void ibx_module_owner_ended(struct ibx_module_owner *owner);
/* One of its modules has been unloaded. */
void ibx_module_owner_left(struct ibx_module_owner *owner);
/* An owner that is over, and has modules; NULL: there is none. */
struct ibx_module_owner *ibx_module_owner_over(void);

#endif
