/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What clients register with CUDA's runtime before main(): modules, and their kernels. GVirtuS
 * registers these by their addresses in the client, in one runtime for all clients. Two clients may
 * have the same addresses: a forked child has those of its parent, other programs by chance, or
 * because they are not position-independent. So each client's functions and modules get names of
 * their own here, which GVirtuS's handlers and the runtime get in place of the client's addresses.
 *
 * The runtime takes a function that it does not know for a pointer to a kernel, and a function of
 * an unloaded module crashes the process. So functions that nobody has registered reach neither
 * GVirtuS nor the runtime, and a module is unloaded only when no request uses it any more.
 *
 * The driver (580) ends the process, too, when a graph with a function of an unloaded module is
 * made executable or launched. So a module that is in graphs stays in CUDA while its client unloads
 * it: it is unloaded when the graphs are gone, and a client unloads another one, or ends.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_CLIENT_FUNCTIONS_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_CLIENT_FUNCTIONS_H

#include "frontend-glue/back_end_common/types.h"

#define IBX_FUNCTIONS_MODULE 24u /* most bytes of the name of a module */

/* The name by which the runtime knows a client's function; 0: there is none. The request holds its
 * module until ibx_functions_let_go(). If the client has not registered a function at that address,
 * its parent may have. */
uint64_t ibx_functions_take(struct ibx_functions_user *user, uint64_t address);
/* Holds a module that was held before; false: it is gone. NULL: no module is held. */
bool ibx_functions_hold(struct ibx_functions_user *user, struct ibx_client_module *module);
void ibx_functions_let_go(struct ibx_functions_user *user);
/* A graph is about to get a function of the module that the request holds. Returns what _end() is
 * to be called with when neither the graph nor what was made of it exists; NULL: no module is held.
 * unknown(): nobody will tell when; accepts NULL. */
struct ibx_client_module *ibx_functions_graph_begin(const struct ibx_functions_user *user);
void ibx_functions_graph_end(void *module);
void ibx_functions_graph_unknown(void *module);
/* The same for all modules of a client (`may_be`); or none of them is in graphs any more. */
void ibx_functions_left_in_graphs(uint64_t client, bool may_be);
/* The other way round, for results of the runtime: the client's address of the function of that
 * name; 0: it has none. */
uint64_t ibx_functions_address(const struct ibx_functions_user *user, uint64_t name);

/* Replaces addresses by these names in the body of a request that GVirtuS is about to run; `name`
 * may be cut to 23 characters. `kept`: bytes that the handler keeps, besides those of the request.
 * Unknown addresses become 0, which no handler finds. False: the request registers more than there
 * is room for. What a module has registered counts until it is unloaded, and a small part for
 * ever. */
bool ibx_functions_name(struct ibx_functions_user *user, const char *name, uint8_t *body, size_t n,
                        uint64_t kept);

/* The client has no session: until it comes again, only its children can use what it has
 * registered. */
void ibx_functions_orphan(uint64_t client);
/* Whether a module that the client has registered still exists. */
bool ibx_functions_any(uint64_t client);

/* From this call on, all modules of the client, also later ones, are unloaded when its process has
 * ended and no other client shares them. Without this call they stay, because a child that is not
 * known yet may use them. If `address` is not 0, the client is such a child: until its own process
 * has ended, it shares the modules of the client (its parent or another) that has registered the
 * function at that address. False: there is no such client, and this one has to register its own
 * modules. */
bool ibx_functions_share(struct ibx_functions_user *user, uint64_t address);
/* A client that is known to be a child, and has not called ibx_functions_share() yet, shares its
 * parent's modules. */
void ibx_functions_inherit(uint64_t client, uint64_t parent);
/* Whether ibx_functions_share() was called for the client, or it shares modules of another
 * client. */
bool ibx_functions_end(uint64_t client);
/* The client's process has ended. */
void ibx_functions_ended(uint64_t client);
/* Whether there may be modules to unload because processes have ended, or because the graphs and
 * launches are over for which a module stayed when its client unloaded it. */
bool ibx_functions_any_over(void);
/* Takes one of these modules that no request uses. *name becomes GVirtuS's name for it, of at most
 * IBX_FUNCTIONS_MODULE bytes with its NUL. Returns the number of these bytes; 0: there is no such
 * module. The caller has GVirtuS unload the module. */
size_t ibx_functions_next_over(char *name);

#endif
