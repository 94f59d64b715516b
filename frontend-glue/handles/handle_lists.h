/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files about handles: handles.c, handle_ends.c, handle_sizes.c, handle_openers.c,
 * handle_memory.c. */
#ifndef IBX_FRONTEND_GLUE_HANDLES_HANDLE_LISTS_H
#define IBX_FRONTEND_GLUE_HANDLES_HANDLE_LISTS_H

#include "frontend-glue/handles/handles.h"
#include "frontend-glue/session/math_calls.h"

#include <pthread.h>

#define KINDS (IBX_HANDLE_MATH + (unsigned)IBX_MATH_TYPES)

struct opener {
    uint64_t client;
    unsigned times;
};

/* The lists that a handle is in. What one client has made must not lie in the way of another one,
 * so nothing but a reset walks through all. */
enum handle_list {
    OF_KIND,
    OF_CLIENT, /* and of its kind */
    OF_GRAPH,  /* what has `of`: nodes, levels, and so on */
    LISTS
};

struct handle {
    struct {
        struct handle *next, **at;
    } in[LISTS];
    enum ibx_handle_kind kind;
    uint64_t value;
    uint64_t last;    /* of memory: its last byte; else as `value` */
    uint64_t of;      /* of a node, or what was made of one: its graph; of a level: its mipmapped
                         array; 0: not known, or no more */
    uint64_t number;  /* in which order it was made; 0: a node that came by a capture or a clone */
    uint64_t client;  /* whose it is (client_list.c); 0: not known */
    uint64_t heir_of; /* the client that has made it, and is no more; 0: `client` has made it */
    unsigned functions;        /* of clients, in what can be launched */
    unsigned level, depth;     /* of a graph: graphs around it, graphs within each other in it */
    uint64_t weight;           /* so many it counts as */
    uint64_t nodes;            /* of a graph: with those in it, each as so many; and 1 */
    uint64_t stream;           /* of a library's: that was selected for it */
    uint64_t relies, relied;   /* of a library's: another one that it uses, and its number */
    const void *context;       /* in which it is; NULL: not known */
    int gpu;                   /* of what can be launched: where it was made */
    struct ibx_tenant *tenant; /* NULL: every tenant's */
    struct ibx_quota *counted; /* where it counts as the tenant's; NULL: nowhere */
    unsigned holders;          /* requests */
    const struct gpu_session *user; /* of a graph, the one that holds it; else that changes it */
    struct opener *openers;         /* other clients that have opened it */
    unsigned opener_count;
    bool theirs;     /* another process's, which each who uses it has opened */
    bool was_open;   /* to one of them, whose work may use it though that has closed it */
    bool gone;       /* it is nowhere; its last holder frees it */
    bool of_process; /* it is known which process has made it */
    bool ending;     /* memory: somebody is giving it back */
    bool of_graph;   /* memory: it comes back with each launch */
    bool of_handler; /* a library's: a handler of GVirtuS's has made it */
};

/* handles.c. The functions of this header are for those who have the lock. */

extern pthread_mutex_t ibx_handles_lock;
/* Whosever it is. */
struct handle *ibx_handle_of_any(enum ibx_handle_kind kind, uint64_t value);
/* One that the session's client may name; NULL: there is none of that value. And one of the
 * tenant's, whichever client has made it. */
struct handle *ibx_handle_find(const struct gpu_session *x, enum ibx_handle_kind kind,
                               uint64_t value);
struct handle *ibx_handle_of_tenant(const struct gpu_session *x, enum ibx_handle_kind kind,
                                    uint64_t value);
/* Whether it is another program's, as far as that is known, which may be open to the client. */
bool ibx_handle_is_apart(const struct gpu_session *x, const struct handle *h);
/* Any of those that [value, last] touches, whoever's it is. */
struct handle *ibx_handle_touched(enum ibx_handle_kind kind, uint64_t value, uint64_t last);
/* A new one of the session's, which is nowhere yet; NULL: no memory. Not locked. */
struct handle *ibx_handle_new(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Takes it; no other touches it. False: no memory. */
bool ibx_handle_enter(struct handle *made);
void ibx_handle_drop(struct handle *h);
void ibx_handle_set_client(struct handle *h, uint64_t client);
/* The list of a client's of that kind, in which others' may be, too. */
struct handle **ibx_handle_list_of_client(uint64_t client, unsigned kind);
/* What goes with a graph or a mipmapped array that is no more. */
void ibx_handle_forget_parts(enum ibx_handle_kind kind, uint64_t value);
void ibx_handle_set_graph(struct handle *h, uint64_t graph);
/* A new one. `listed`: it may be there already. `weight`: what a node counts as, in its graph. Not
 * locked. */
bool ibx_handle_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value, uint64_t of,
                    uint64_t weight, bool listed);

/* handle_sizes.c */

/* It counts as the tenant's; NULL: as nobody's. */
void ibx_handle_count_as(struct handle *h, struct ibx_tenant *tenant);
/* A graph, and those that it is in, count as n more, or as so many less. A node in it has `depth`
 * graphs within each other. */
void ibx_handle_grow_graph(const struct gpu_session *x, uint64_t graph, uint64_t n, unsigned depth,
                           bool less);

/* handle_openers.c */

/* Whether it is another client's from now on. */
bool ibx_handle_passes_on(struct handle *h);
/* Whether that client has opened it, and not closed it as often. */
bool ibx_handle_is_open(const struct handle *h, uint64_t client);

#endif
