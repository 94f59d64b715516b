/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The tenants of this process, which are the names of its clients' keys; the device memory that
 * each has allocated; and what each makes the back end hold. Clients without a name are one tenant,
 * and are not isolated from each other; if there are several processes, each serves one user, who
 * counts as one tenant.
 *
 * Memory belongs to the tenant of the session that allocated it, until it is freed or its context
 * is gone; it outlives the session, as in GVirtuS. Memory whose allocation was not seen belongs to
 * nobody. From any thread.
 *
 * If each program has a process of its own, all processes count in one table what their tenants
 * make this host and its GPUs hold: ibx_tenants_share().
 *
 *   tenants.c        who the tenants are, and what each makes the back end hold
 *   client_list.c    which sessions are one client's, and which clients there are
 *   descriptors.c    whether a tenant may take more descriptors of this process
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
#include "frontend-glue/back_end_common/options.h"
#include "frontend-glue/back_end_common/types.h"

#include <pthread.h>
#include <stdatomic.h>

/* What a client makes the back end hold. */
enum ibx_hold {
    IBX_HOLD_SESSIONS,    /* connections */
    IBX_HOLD_SETUPS,      /* clients that were authenticated and have no session yet */
    IBX_HOLD_PINS,        /* bytes of clients' memory, pinned here */
    IBX_HOLD_REQUESTS,    /* bytes of GVirtuS's buffers for requests, and of PTX in compile.c */
    IBX_HOLD_REPLIES,     /* bytes of handlers' replies */
    IBX_HOLD_DEVICE,      /* bytes of GPU memory that they have allocated */
    IBX_HOLD_CHUNKS,      /* chunks of the pool of pinned memory; its size is the total */
    IBX_HOLD_ALLOCATIONS, /* entries of the table of owners */
    IBX_HOLD_STREAMS,     /* streams in handles.c */
    IBX_HOLD_EVENTS,
    IBX_HOLD_GRAPHS,      /* graphs and their nodes, with those of graphs in them */
    IBX_HOLD_EXECS,       /* executable graphs, counted as graphs are, of all GPUs */
    IBX_HOLD_TEXTURES,    /* and surfaces */
    IBX_HOLD_POOLS,       /* pools of memory that were made */
    IBX_HOLD_LIBRARIES,   /* handles of libraries: math_limits.c says which, */
    IBX_HOLD_PLANS,       /* ... plans of theirs, and what an analysis fills, */
    IBX_HOLD_DESCRIPTORS, /* ... and others, */
    IBX_HOLD_GRAPH_PARTS, /* ... but those of cuDNN's graphs, some of which count as more */
    IBX_HOLD_ADDRESSES,   /* bytes of addresses of this process, for memory to be mapped there */
    IBX_HOLD_MODULES,     /* bytes of what clients have registered: client_functions.c */
    IBX_HOLDS
};

/* share(): called by the process that listens, before it forks: up to `processes` others at a time
 * share the limits. False: no memory. serves(): called by the process that listens: that one is
 * about to serve clients of the tenant of that name, or, if it is "", of that user (NULL: not
 * known). are_of(): called in a forked process: which one it is. ended(): called by the process
 * that listens: that one has ended, and holds nothing any more. */
bool ibx_tenants_share(unsigned processes);
void ibx_tenants_serves(unsigned process, const char *name, const unsigned *user);
void ibx_tenants_are_of(unsigned process);
void ibx_tenants_ended(unsigned process);

struct ibx_tenant;
#define IBX_TENANT_GPUS 64u /* further GPUs count as the last one */

/* Work that was added to captures of a tenant's clients: graph_limits.c. */
struct ibx_capture_work {
    struct ibx_capture_work *next;
    uint64_t id; /* CUDA's number of the capture */
    uint64_t work;
};
struct ibx_captured_work {
    pthread_mutex_t lock;
    struct ibx_capture_work *list;
    uint64_t of_any; /* of captures whose number is not known */
    uint64_t all;
    /* captures.c: */
    pthread_rwlock_t graphs;                /* of captures; prefers writers */
    _Atomic unsigned count;                 /* captures that have not ended */
    _Atomic unsigned endings, endings_over; /* calls that end one: begun, and over */
};

/* Checks a text for `weights` of the limits. -EINVAL: the error names the wrong entry. */
int ibx_shares_check(const char *text, struct ibx_error *err);

/* The weight of the tenant of that name, 1 or more. */
unsigned ibx_share_of(const struct ibx_tenant_limits *limits, const char *name);

/* The tenant of that name, which is never freed. The limits of the last call apply to all; `chunks`
 * is the size of the pool of pinned memory. NULL: no memory, or, with several processes, too many
 * tenants. */
struct ibx_tenant *ibx_tenant_get(const char *name, const struct ibx_tenant_limits *limits,
                                  unsigned chunks);
const char *ibx_tenant_name(const struct ibx_tenant *tenant);
/* If several processes share the limits: the name by which all of these know the tenant. There a
 * user without a name has one that no key has. */
const char *ibx_tenant_name_in_all(const struct ibx_tenant *tenant);
/* An identity of the tenant that is the same in all processes of the back end; not to be
 * dereferenced. */
const void *ibx_tenant_everywhere(const struct ibx_tenant *tenant);
struct ibx_quota *ibx_tenant_quota(struct ibx_tenant *tenant, enum ibx_hold what);
/* IBX_HOLD_EXECS of one GPU; what is taken of it also counts in that of all GPUs. */
struct ibx_quota *ibx_tenant_execs(struct ibx_tenant *tenant, int gpu);
struct ibx_captured_work *ibx_tenant_captured(struct ibx_tenant *tenant);
/* Whether this is the first call for that tenant and `what`; IBX_HOLDS stands for something
 * else. */
bool ibx_tenant_tell_once(struct ibx_tenant *tenant, enum ibx_hold what);
/* Whether there is more than one tenant, so that others may have memory. */
bool ibx_tenants_several(void);

/* *own, *all: how many connections the tenant has, and all tenants have, with those that are being
 * set up; *setups: how many of *all are being set up. Returns how many other tenants have any. */
unsigned ibx_tenant_connections(const struct ibx_tenant *tenant, uint64_t *own, uint64_t *all,
                                uint64_t *setups);

/* descriptors.c: whether the tenant may have another connection, which is not yet counted. */
bool ibx_descriptors_left(struct ibx_tenant *tenant, const struct ibx_tenant_limits *limits);

#define IBX_RANGE_CROSSED_MAX 64u /* allocations in a row that one range may touch */

/* The last of n bytes from `begin` on; `begin` if n is 0, and at most UINT64_MAX. */
static inline uint64_t ibx_range_last(uint64_t begin, uint64_t n)
{
    return n && n - 1 <= UINT64_MAX - begin ? begin + n - 1 : n ? UINT64_MAX : begin;
}

/* The tenant has allocated [base, base + size) in the context, and has taken `charge` of
 * IBX_HOLD_DEVICE for it, which is given back when the entry is removed. Older entries there are
 * dropped. False: the tenant has too many allocations, or there is no memory: nobody owns this one,
 * and the charge is not given back. */
bool ibx_owners_add(struct ibx_tenant *tenant, uint64_t base, uint64_t size, const void *context,
                    uint64_t charge);
/* The number of the allocation that begins there, which no other ever has; 0: there is none. */
uint64_t ibx_owners_number(uint64_t base);
/* The allocation of that number was freed: removes it, unless another one has its place by now; 0:
 * does nothing. */
void ibx_owners_remove(uint64_t base, uint64_t number);
/* The allocation that begins there is a graph's, and each launch allocates it again: it is not
 * removed by ibx_owners_remove(), but when another allocation takes its place, or with its
 * context. */
void ibx_owners_keep(uint64_t base);
/* A context was reset or destroyed: drops its allocations; NULL: it is not known which, and all are
 * dropped. */
void ibx_owners_forget(const void *context);
/* The other tenant to which any of [at, at + n) belongs; NULL: none. A range across more than
 * IBX_RANGE_CROSSED_MAX allocations is not a copy, and counts as the last one's. */
const struct ibx_tenant *ibx_owners_other(const struct ibx_tenant *tenant, uint64_t at, uint64_t n);

/* As ibx_owners_other(), without a lock where nothing has changed. */
const struct ibx_tenant *ibx_owners_other_cached(const struct ibx_tenant *tenant,
                                                 struct ibx_owners_cache *cache, uint64_t at,
                                                 uint64_t n);

#endif
