/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients register with CUDA's runtime before main(): modules, and their kernels. GVirtuS
 * registers them under the addresses that they have in the client, in one runtime for all clients.
 * Two clients may have the same addresses: a forked child those of its parent, other programs by
 * chance, or because they are not position-independent. So each gets names of its own here, which
 * GVirtuS's handlers and the runtime get in place of the client's.
 *
 * The runtime takes a function that it does not know for the address of a kernel, and one of a
 * module that is no more ends the process. So functions that nobody has registered reach neither,
 * and a module goes only when no request uses it any more.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_CLIENT_FUNCTIONS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_CLIENT_FUNCTIONS_H

#include "frontend-glue/back_end/types.h"

#define IBX_FUNCTIONS_MODULE 24u /* bytes of the name of a module, at most */

/* The name that the runtime knows a client's function by; 0: it knows none. Its module stays until
 * ibx_functions_let_go(). What the client has not registered itself may be its parent's. */
uint64_t ibx_functions_take(struct ibx_functions_user *user, uint64_t address);
/* The same of a module that was held before; false: it is no more. NULL is no module. */
bool ibx_functions_hold(struct ibx_functions_user *user, struct ibx_client_module *module);
void ibx_functions_let_go(struct ibx_functions_user *user);
/* The other way round, for what the runtime says: where the client has the function of that name;
 * 0: it has none. */
uint64_t ibx_functions_address(const struct ibx_functions_user *user, uint64_t name);

/* Puts these names in the body of a request that GVirtuS is about to run; `name` may be cut to 23
 * characters. Those that are none become 0, which no handler finds. False: it registers more than
 * there is room for; what a module has registered counts until it ends, and a little for ever. */
bool ibx_functions_name(struct ibx_functions_user *user, const char *name, uint8_t *body, size_t n);

/* The client has no session: until it comes again, what it has registered is there for its children
 * only. */
void ibx_functions_orphan(uint64_t client);
/* Whether it has registered what is still there. */
bool ibx_functions_any(uint64_t client);

/* What the client has registered, and will, goes when its process has ended and nobody shares it
 * any more. Without that it stays: a child may use it that nobody knows of yet. The client is such
 * a child and shares what its parent, or whoever it is, has with the function at that address (0:
 * none), until its own process has ended. False: there is no such, and it has to register its own.
 */
bool ibx_functions_share(struct ibx_functions_user *user, uint64_t address);
/* A client that is known to be such a child, and has not asked yet, shares its parent's. */
void ibx_functions_inherit(uint64_t client, uint64_t parent);
/* Whether one of these was called for the client. */
bool ibx_functions_end(uint64_t client);
/* Its process has ended. */
void ibx_functions_ended(uint64_t client);
/* Whether there are modules that go for that, or may be. */
bool ibx_functions_any_over(void);
/* A module that goes for that: the name by which GVirtuS knows it, at most IBX_FUNCTIONS_MODULE
 * bytes with its NUL, and how many they are. No request uses it, and GVirtuS is to unload it. 0:
 * there is none. */
size_t ibx_functions_next_over(char *name);

#endif
