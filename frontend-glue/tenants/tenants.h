/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tenants of this process, which are the names of its clients' keys, the device memory that
 * each has allocated, and what each makes the back end hold. Clients without a name are one tenant,
 * and nothing is isolated among them; of several processes each is one user's, which counts as one.
 *
 * Memory belongs to the tenant of the session that allocated it, until it is freed or its context
 * goes; it outlives the session, as in GVirtuS. Memory that nobody was seen to allocate belongs to
 * nobody. From any thread.
 *
 * Where each program has a process of its own, all of these count in one table what their tenants
 * make this host and its GPUs hold: ibx_tenants_share().
 *
 *   tenants.c        who the tenants are, and what each makes the back end hold
 *   client_list.c    which sessions are one client's, and which clients there are
 *   descriptors.c    ... of which descriptors of this process
 *   math_limits.c    what handles of libraries count as, and which of them one request has alone
 *   owners.c         which tenant has allocated which device memory
 *   rooms.c          room that a session takes for what it makes, and whose that is
 *   printed.c        what kernels print
 *   shared_handles.c what programs that have a process each share
 */
#ifndef IBX_FRONTEND_GLUE_TENANTS_TENANTS_H
#define IBX_FRONTEND_GLUE_TENANTS_TENANTS_H

#include "common/error.h"
#include "common/quota.h"
#include "frontend-glue/back_end/options.h"
#include "frontend-glue/back_end/types.h"

#include <pthread.h>

/* What a client makes the back end hold. */
enum ibx_hold {
    IBX_HOLD_SESSIONS,    /* connections */
    IBX_HOLD_SETUPS,      /* clients that have proven themselves and are no sessions yet */
    IBX_HOLD_PINS,        /* bytes of clients' memory, pinned here */
    IBX_HOLD_REQUESTS,    /* bytes of GVirtuS's buffers for requests */
    IBX_HOLD_DEVICE,      /* bytes of the GPUs that they have allocated */
    IBX_HOLD_CHUNKS,      /* of the pool of pinned memory; its size is the total */
    IBX_HOLD_ALLOCATIONS, /* entries of the table of owners, which are a tenant's own */
    IBX_HOLD_STREAMS,     /* those that are in handles.c */
    IBX_HOLD_EVENTS,
    IBX_HOLD_GRAPHS,      /* and their nodes, those of graphs in them too */
    IBX_HOLD_EXECS,       /* what was made of graphs to be launched, likewise, of all GPUs */
    IBX_HOLD_TEXTURES,    /* and surfaces */
    IBX_HOLD_POOLS,       /* of memory, that were made */
    IBX_HOLD_LIBRARIES,   /* handles of libraries: math_limits.c says which, */
    IBX_HOLD_PLANS,       /* ... plans of theirs, and what an analysis fills, */
    IBX_HOLD_DESCRIPTORS, /* ... and others, */
    IBX_HOLD_GRAPH_PARTS, /* ... but those of cuDNN's graphs, some of which count as more */
    IBX_HOLD_ADDRESSES,   /* bytes of addresses of this process, for memory to be mapped there */
    IBX_HOLD_MODULES,     /* bytes of what clients have registered: client_functions.c */
    IBX_HOLDS
};

/* The process that listens, before it forks: at most so many others at a time share the limits.
 * False: no memory. There: that one is about to serve clients of a tenant of that name, or without
 * one of that user (NULL: not known). In such a process: which of them it is. In the one that
 * listens: that one has ended, and holds nothing any more. */
bool ibx_tenants_share(unsigned processes);
void ibx_tenants_serves(unsigned process, const char *name, const unsigned *user);
void ibx_tenants_are_of(unsigned process);
void ibx_tenants_ended(unsigned process);

struct ibx_tenant;
#define IBX_TENANT_GPUS 64u /* and all further ones are as one */

/* What has come into graphs of streams that a tenant's clients capture: graph_limits.c. */
struct ibx_capture_work {
    struct ibx_capture_work *next;
    uint64_t id; /* CUDA's, of the capture */
    uint64_t work;
};
struct ibx_captured_work {
    pthread_mutex_t lock;
    struct ibx_capture_work *list;
    uint64_t of_any; /* of captures whose number is not known */
    uint64_t all;
};

/* Whether the text can be `weights` of the limits: -EINVAL names the entry that cannot. */
int ibx_shares_check(const char *text, struct ibx_error *err);

/* The weight of the tenant of that name, 1 or more. */
unsigned ibx_share_of(const struct ibx_tenant_limits *limits, const char *name);

/* The tenant of that name, for ever. The limits of the last call count; `chunks` are those of the
 * pool. NULL: no memory. */
struct ibx_tenant *ibx_tenant_get(const char *name, const struct ibx_tenant_limits *limits,
                                  unsigned chunks);
const char *ibx_tenant_name(const struct ibx_tenant *tenant);
/* Where several processes share the limits: by which all of these know it. Users without a name
 * have one there, that no key has. */
const char *ibx_tenant_name_in_all(const struct ibx_tenant *tenant);
/* The same for it in all processes of the back end; not to be looked at. */
const void *ibx_tenant_everywhere(const struct ibx_tenant *tenant);
struct ibx_quota *ibx_tenant_quota(struct ibx_tenant *tenant, enum ibx_hold what);
/* IBX_HOLD_EXECS of one GPU; what is taken of it counts there, too. */
struct ibx_quota *ibx_tenant_execs(struct ibx_tenant *tenant, int gpu);
struct ibx_captured_work *ibx_tenant_captured(struct ibx_tenant *tenant);
/* Whether nobody has asked so before of that; IBX_HOLDS: of something else. */
bool ibx_tenant_tell_once(struct ibx_tenant *tenant, enum ibx_hold what);
/* Whether there is another one, which may have memory of its own. */
bool ibx_tenants_several(void);

/* How many connections it has, and all have, with those that are being set up, which are `setups`
 * of all; how many other tenants have any. */
unsigned ibx_tenant_connections(const struct ibx_tenant *tenant, uint64_t *own, uint64_t *all,
                                uint64_t *setups);

/* descriptors.c: whether the tenant may have another connection, which is not counted yet. */
bool ibx_descriptors_left(struct ibx_tenant *tenant, const struct ibx_tenant_limits *limits);

#define IBX_RANGE_CROSSED_MAX 64u /* allocations in a row that one range may touch */

/* The last byte of n from an address on: of none the first, and none is behind all addresses. */
static inline uint64_t ibx_range_last(uint64_t begin, uint64_t n)
{
    return n && n - 1 <= UINT64_MAX - begin ? begin + n - 1 : n ? UINT64_MAX : begin;
}

/* The tenant has allocated [base, base + size) in the context, and has taken `charge` of
 * IBX_HOLD_DEVICE for it, which is given back when it goes. Whatever was there is gone. False: it
 * has too many allocations already, and nobody owns this one, whose charge stays. */
bool ibx_owners_add(struct ibx_tenant *tenant, uint64_t base, uint64_t size, const void *context,
                    uint64_t charge);
/* A number of the allocation that begins there, which no other ever has; 0: there is none. */
uint64_t ibx_owners_number(uint64_t base);
/* It was freed, unless its place has been taken since; 0: none was. */
void ibx_owners_remove(uint64_t base, uint64_t number);
/* The allocation that begins there is a graph's, and comes back with each launch: it is removed no
 * more, but as what its place has been taken from, or with its context. */
void ibx_owners_keep(uint64_t base);
/* A context was reset or destroyed; NULL: any may have been. */
void ibx_owners_forget(const void *context);
/* Whether any of [at, at + n) belongs to another tenant: which, NULL: none. A range that crosses
 * very many allocations is nobody's copy and counts as the last one's. */
const struct ibx_tenant *ibx_owners_other(const struct ibx_tenant *tenant, uint64_t at, uint64_t n);

/* As ibx_owners_other(), without a lock where nothing has changed. */
const struct ibx_tenant *ibx_owners_other_cached(const struct ibx_tenant *tenant,
                                                 struct ibx_owners_cache *cache, uint64_t at,
                                                 uint64_t n);

#endif
