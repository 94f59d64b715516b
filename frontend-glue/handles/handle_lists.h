/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Shared by the files about handles: handles.c, handle_arrays.c, handle_ends.c, handle_events.c,
 * handle_graphs.c, handle_execs.c, handle_modules.c, handle_sizes.c, handle_openers.c,
 * handle_memory.c, handle_removals.c, handle_uses.c. */
#ifndef IBX_FRONTEND_GLUE_HANDLES_HANDLE_LISTS_H
#define IBX_FRONTEND_GLUE_HANDLES_HANDLE_LISTS_H

#include "frontend-glue/handles/handles.h"
#include "frontend-glue/session/math_calls.h"

#include <pthread.h>
#include <time.h>

#define KINDS (IBX_HANDLE_MATH + (unsigned)IBX_MATH_TYPES)

struct opener {
    uint64_t client;
    unsigned times;
};

/* The lists that a handle is in. One client's handles must not slow down another client, so nothing
 * but a reset walks through all handles. */
enum handle_list {
    OF_KIND,
    OF_CLIENT, /* of a client and a kind, by hash */
    OF_GRAPH,  /* with the same `of`: nodes, levels, and so on */
    LISTS
};

struct handle {
    struct {
        struct handle *next, **at;
    } in[LISTS];
    enum ibx_handle_kind kind;
    uint64_t value;
    uint64_t last;      /* of memory: its last byte; else as `value` */
    uint64_t of;        /* what it ends with: of a node, a condition or a graph within another one:
                           that graph; of a level: its mipmapped array; of a function: its module;
                           of an executable graph, which stays: its graph; 0: not known, or gone */
    uint64_t number;    /* in the order of making; 0: a node that came by a capture or a clone */
    uint64_t moved;     /* of a graph: the number that it got when it was moved; 0: it was not */
    uint64_t client;    /* whose it is (client_list.c); 0: not known */
    uint64_t heir_of;   /* the client that has made it and has ended; 0: `client` has made it */
    unsigned functions; /* of clients, in an executable graph */
    unsigned depth;     /* of a graph: graphs within each other in it */
    uint64_t weight;    /* as how many it counts */
    uint64_t plain_at;  /* of a graph: see ibx_handles_graph_plain(); 0: not known */
    bool into;          /* of a graph: a stream is captured into it, and CUDA may end it */
    uint64_t nodes;     /* of a graph: 1, and the weights of its nodes, with those in them */
    uint64_t stream;    /* selected for a library's handle */
    uint64_t object;    /* of a node: see ibx_handles_set_object(); 0: none */
    uint64_t relies, relied;   /* another handle that a library's uses, and that one's number */
    const void *context;       /* in which it is; NULL: not known */
    int gpu;                   /* of an executable graph: where it was made */
    struct ibx_tenant *tenant; /* NULL: every tenant's */
    struct ibx_quota *counted; /* where it counts as the tenant's; NULL: nowhere */
    unsigned holders;          /* requests that hold it */
    const struct gpu_session *user; /* that holds a graph, or changes another handle */
    struct opener *openers;         /* other clients that have opened it */
    unsigned opener_count;
    struct ibx_graph_events *waits; /* of an executable graph; NULL: it waits for no event */
    void *extras;                   /* of a graph, executable or not: handle_execs.c */
    void (*destroy)(const struct ibx_taken *taken); /* a stream or an event: its client has
                                       destroyed it, and requests use it still; NULL: no */
    struct handle *next_destroyed;
    bool theirs;               /* another process's; each client that uses it has opened it */
    bool was_open;             /* by another client, whose work may use it also after a close */
    bool gone;                 /* it is in no list; its last holder frees it */
    bool of_process;           /* it is known which process has made it */
    bool ending;               /* memory: somebody is giving it back */
    bool of_graph;             /* memory: each launch of a graph allocates it again */
    struct ibx_array_use *use; /* of an array, by graphs: handle_arrays.c; NULL: none so far */
    bool freed;                /* an array: the client has freed it */
    bool freed_later;          /* ... and was told so: what needs it is waited for */
    bool in_graphs;            /* an array: nobody tells when graphs are gone that name it */
    bool captured;             /* a module: a function of it may be in a graph */
    enum ibx_handle_maker maker;
};

/* Whether it is only memory of the host: then it ends with no context. Natively it works after
 * cudaDeviceReset() as before. */
static inline bool ibx_handle_is_of_host(enum ibx_handle_kind kind)
{
    return (kind >= IBX_HANDLE_LT_OPERATION && kind <= IBX_HANDLE_NVML_DEVICE) ||
           (kind >= IBX_HANDLE_MATH + IBX_MATH_GRAPH && kind <= IBX_HANDLE_MATH + IBX_MATH_RNNDATA);
}

/* handles.c. The functions of this header are called with the lock held, unless they say
 * otherwise. */

extern pthread_mutex_t ibx_handles_lock;
/* The handle with that kind and value, whoever's it is; NULL: there is none. */
struct handle *ibx_handle_of_any(enum ibx_handle_kind kind, uint64_t value);
/* find(): the handle of that value, if the session's client may name it; of_tenant(): if it is the
 * tenant's, whichever client has made it. NULL: there is none. */
struct handle *ibx_handle_find(const struct gpu_session *x, enum ibx_handle_kind kind,
                               uint64_t value);
struct handle *ibx_handle_of_tenant(const struct gpu_session *x, enum ibx_handle_kind kind,
                                    uint64_t value);
/* Whether it is another program's, as far as that is known. It may be open to the client,
 * though. */
bool ibx_handle_is_apart(const struct gpu_session *x, const struct handle *h);
/* Any handle that overlaps [value, last], whoever's it is. */
struct handle *ibx_handle_touched(enum ibx_handle_kind kind, uint64_t value, uint64_t last);
/* A new handle of the session's, which is in no list yet; NULL: no memory. Not locked. */
struct handle *ibx_handle_new(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value);
/* Enters it in the lists, and owns it; no other handle may overlap it. False: no memory, and it is
 * freed. */
bool ibx_handle_enter(struct handle *made);
/* A number for `number` or `moved`. */
uint64_t ibx_handle_next_number(void);
void ibx_handle_drop(struct handle *h);
void ibx_handle_set_client(struct handle *h, uint64_t client);
/* The list with the client's handles of that kind, which may have others' as well. */
struct handle **ibx_handle_list_of_client(uint64_t client, unsigned kind);
/* Forgets what ends with a graph or a mipmapped array, which is gone. */
void ibx_handle_forget_parts(enum ibx_handle_kind kind, uint64_t value);
void ibx_handle_set_graph(struct handle *h, uint64_t graph);
/* Adds a new handle. `listed`: it may be known already. `weight`: as how many it counts; a node
 * does so in its graph. False: no memory. Not locked. */
bool ibx_handle_add(struct gpu_session *x, enum ibx_handle_kind kind, uint64_t value, uint64_t of,
                    uint64_t weight, bool listed);

/* The request holds it. False: it names too much. */
bool ibx_handle_hold(struct gpu_session *x, struct handle *h);

/* handles.c: the session, or NULL: a thread of the back end, does not hold it any more. True: the
 * caller is to call ibx_handles_destroy_unused(), unlocked. */
bool ibx_handle_release(const struct gpu_session *x, struct handle *h);
/* handles.c, not locked: whether there are handles of that kind. */
bool ibx_handle_any_of(enum ibx_handle_kind kind);

/* handle_removals.c: the handle is not to be destroyed any more. any_destroyed(), not locked:
 * whether one of n streams or events is to be destroyed. destroy_unused(), not locked: destroys
 * those that nobody uses any more. */
void ibx_handle_forget_destroy(struct handle *h);
bool ibx_handle_any_destroyed(const uint64_t *values, unsigned n);
void ibx_handles_destroy_unused(void);

/* handles.c: waits until a request lets something go, or until then. */
void ibx_handle_wait(const struct timespec *until);

/* handle_uses.c: streams and events, which requests note without the lock. is_used(): whether
 * another request than that of `x` (NULL: any request) has noted it. is_going(): who remembers that
 * one is there has to look again; is_used() calls it first. use_ends(): the session's request does
 * not use it any more. */
bool ibx_handle_is_used(const struct gpu_session *x, const struct handle *h);
void ibx_handle_is_going(void);
void ibx_handle_use_ends(struct gpu_session *x, uint64_t value);

/* handle_arrays.c: whether the client has freed the array, or the mipmapped array of which it is a
 * level; the array is gone. */
bool ibx_handle_is_freed(const struct gpu_session *x, const struct handle *h);
void ibx_handle_forget_use(struct handle *h);

/* handle_events.c: forgets for which events the nodes of an executable graph wait, and its extras.
 */
void ibx_handle_forget_nodes(struct handle *h);

/* handle_execs.c: an executable graph has nothing but what its graph has, and it is not known for
 * what a graph has an object. */
void ibx_handle_forget_extras(struct handle *h);

/* handle_graphs.c */

/* Whether a graph is `outer` itself, or was within it when something got that number. */
bool ibx_handle_is_in(const struct gpu_session *x, uint64_t outer, uint64_t graph, uint64_t number);

/* handle_sizes.c */

/* Counts it as the tenant's; NULL: no longer as anybody's. */
void ibx_handle_count_as(struct handle *h, struct ibx_tenant *tenant);
/* A graph, and the graphs around it, count as n more, or as n less. A node in the graph has `depth`
 * graphs within each other in it. */
void ibx_handle_grow_graph(const struct gpu_session *x, uint64_t graph, uint64_t n, unsigned depth,
                           bool less);

/* handle_openers.c */

/* Passes the handle of a client that has ended on to one that has it open. False: there is none. */
bool ibx_handle_passes_on(struct handle *h);
/* Whether that client has opened it more often than closed it. */
bool ibx_handle_is_open(const struct handle *h, uint64_t client);

#endif
