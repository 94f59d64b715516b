/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/tenants/tenants.h"

#include "common/forked.h"
#include "common/own_user.h"
#include "gpudirect/turns.h"
#include "transport/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Limits of one tenant. */
#define ALLOCATIONS_MAX (1u << 20) /* each costs about 150 bytes of this host */
#define STREAMS_MAX     (1u << 15) /* ... 560 KiB of an H200, and 17 KiB here */
#define EVENTS_MAX      (1u << 20) /* ... 500 bytes here */
#define GRAPHS_MAX      (1u << 21) /* ... 1.9 KB here: a node of a graph */
#define EXECS_MAX       (1u << 19) /* ... of each GPU: up to 117 KB of an H100, and 20 KB here */
#define EXEC_BYTES      20000u
#define EXECS_PART      4u         /* 1/EXECS_PART of this host's memory, for those of all GPUs */
#define TEXTURES_MAX    (1u << 19) /* ... one of the 1,040,384 that a context has */
#define POOLS_MAX       512u       /* ... one of some 830 on an H100, and 140 KB here */
#define LIBRARIES_MAX   (1u << 12) /* ... GPU memory, too */
#define PLANS_MAX       (1u << 14) /* ... GPU memory, too; PyTorch keeps 4,096 for each GPU */
#define DESCRIPTORS_MAX (1u << 18) /* ... about 250 bytes here, and the library's */
#define GRAPH_PARTS_MAX (1u << 18) /* ... up to 6 KB here, and more of each 16 (math_limits.h) */
#define ADDRESSES_MAX   (UINT64_C(8) << 40)

#define NAMES 2048u /* of tenants in all processes: more than fit into a key file */
#define USERS 1024u /* ... and of users among these; all further users count as one */

struct ibx_tenant {
    char name[IBX_NAME_MAX + 1];
    char in_all_name[IBX_NAME_MAX + 1];      /* in all processes; or its user: name_of_user() */
    bool is_all;                             /* the clients without a name, of whatever user */
    bool is_own;                             /* ... of the back end's own user, or root */
    const void *everywhere;                  /* it is the same for all processes */
    struct ibx_quota holds[IBX_HOLDS];       /* in this process */
    struct ibx_quota in_all[IBX_HOLDS];      /* processes, where there are several */
    struct ibx_quota execs[IBX_TENANT_GPUS]; /* each is `of` the one in holds */
    struct ibx_captured_work captured;
    atomic_bool told[IBX_HOLDS + 1];
    struct ibx_tenant *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_tenant *tenants; /* at most as many as names in the key file */
static atomic_uint count;
static struct ibx_quota totals[IBX_HOLDS];

/* What all processes hold: only counters, since a faulty process may write anything there. What one
 * process holds is in its row, in its tenant's counters, since it serves only one tenant, and in
 * the totals. Only the process that listens writes names. */
static struct shared {
    _Atomic uint64_t totals[IBX_HOLDS];
    struct named {
        atomic_uint taken; /* written last */
        char name[IBX_NAME_MAX + 1];
        _Atomic uint64_t holds[IBX_HOLDS];
    } names[NAMES];
    struct row {
        atomic_uint name; /* index of its tenant, from 1 on; written by the process that listens */
        atomic_bool own;  /* ... likewise: the tenant is the back end's own user, or root */
        _Atomic uint64_t holds[IBX_HOLDS];
    } rows[];
} * shared; /* NULL: there is one process */
static unsigned row;

/* In the process that listens: what it has written there. */
static struct {
    struct named **of; /* of each process; NULL: it has no clients yet */
    unsigned names, users;
    char (*written)[IBX_NAME_MAX + 1];
} known;

static uint64_t host_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

static void set_totals(const struct ibx_tenant_limits *limits, unsigned chunks)
{
    const uint64_t memory = host_memory();
    const uint64_t sessions = limits->sessions ? limits->sessions : IBX_TENANT_SESSIONS;
    const uint64_t most[IBX_HOLDS] = {
        [IBX_HOLD_SESSIONS] = sessions,
        [IBX_HOLD_SETUPS] = sessions,
        [IBX_HOLD_PINS] = limits->pins ? limits->pins : memory,
        [IBX_HOLD_REQUESTS] = limits->requests ? limits->requests : memory / 2,
        [IBX_HOLD_REPLIES] = limits->requests ? limits->requests : memory / 2,
        [IBX_HOLD_DEVICE] = limits->device ? limits->device : UINT64_MAX,
        [IBX_HOLD_CHUNKS] = chunks,
        [IBX_HOLD_ALLOCATIONS] = UINT64_MAX,
        [IBX_HOLD_STREAMS] = UINT64_MAX,
        [IBX_HOLD_EVENTS] = UINT64_MAX,
        [IBX_HOLD_GRAPHS] = UINT64_MAX,
        [IBX_HOLD_EXECS] = UINT64_MAX,
        [IBX_HOLD_TEXTURES] = UINT64_MAX,
        [IBX_HOLD_POOLS] = UINT64_MAX,
        [IBX_HOLD_LIBRARIES] = UINT64_MAX,
        [IBX_HOLD_PLANS] = UINT64_MAX,
        [IBX_HOLD_DESCRIPTORS] = UINT64_MAX,
        [IBX_HOLD_GRAPH_PARTS] = UINT64_MAX,
        [IBX_HOLD_ADDRESSES] = UINT64_MAX,
        [IBX_HOLD_MODULES] = limits->requests ? limits->requests : memory / 2,
    };
    for (unsigned i = 0; i < IBX_HOLDS; i++)
        atomic_store(&totals[i].most, most[i]);
}

/* The share of the tenant. All of it if all clients are one tenant, and for the user who runs the
 * back end, unless he has set his share. */
static uint64_t percent_of(const struct ibx_tenant *tenant, const struct ibx_tenant_limits *limits)
{
    if (tenant->is_all)
        return 100;
    return limits->share ? limits->share : tenant->is_own ? 100 : IBX_TENANT_SHARE;
}

static void set_holds(struct ibx_quota *holds, uint64_t percent)
{
    for (unsigned i = 0; i < IBX_HOLDS; i++) {
        const uint64_t all = atomic_load(&totals[i].most);
        const uint64_t part = ibx_quota_share(all, percent);
        atomic_store(&holds[i].most, part ? part : 1);
    }
    atomic_store(&holds[IBX_HOLD_ALLOCATIONS].most, ALLOCATIONS_MAX);
    atomic_store(&holds[IBX_HOLD_STREAMS].most, STREAMS_MAX);
    atomic_store(&holds[IBX_HOLD_EVENTS].most, EVENTS_MAX);
    atomic_store(&holds[IBX_HOLD_GRAPHS].most, GRAPHS_MAX);
    const uint64_t execs = host_memory() / EXECS_PART / EXEC_BYTES;
    atomic_store(&holds[IBX_HOLD_EXECS].most, execs > EXECS_MAX ? execs : EXECS_MAX);
    atomic_store(&holds[IBX_HOLD_TEXTURES].most, TEXTURES_MAX);
    atomic_store(&holds[IBX_HOLD_POOLS].most, POOLS_MAX);
    atomic_store(&holds[IBX_HOLD_LIBRARIES].most, LIBRARIES_MAX);
    atomic_store(&holds[IBX_HOLD_PLANS].most, PLANS_MAX);
    atomic_store(&holds[IBX_HOLD_DESCRIPTORS].most, DESCRIPTORS_MAX);
    atomic_store(&holds[IBX_HOLD_GRAPH_PARTS].most, GRAPH_PARTS_MAX);
    atomic_store(&holds[IBX_HOLD_ADDRESSES].most, ADDRESSES_MAX);
}

static void set_shares(struct ibx_tenant *tenant, const struct ibx_tenant_limits *limits)
{
    set_holds(tenant->holds, percent_of(tenant, limits));
    set_holds(tenant->in_all, percent_of(tenant, limits));
    if (shared) /* this process has its own pool, and no other tenant */
        atomic_store(&tenant->holds[IBX_HOLD_CHUNKS].most,
                     atomic_load(&totals[IBX_HOLD_CHUNKS].most));
    for (unsigned i = 0; i < IBX_TENANT_GPUS; i++)
        atomic_store(&tenant->execs[i].most, EXECS_MAX);
}

/* -------------------------------------------------------------------- of several processes */

bool ibx_tenants_share(unsigned processes)
{
    known.of = calloc(processes, sizeof(struct named *));
    known.written = calloc(NAMES, sizeof(*known.written));
    if (known.of && known.written)
        shared = ibx_forked_map(sizeof(*shared) + processes * sizeof(shared->rows[0]));
    if (shared)
        return true;
    free(known.of);
    free(known.written);
    return false;
}

static unsigned find_written(const char *name)
{
    unsigned i = 0;
    while (i < known.names && strcmp(known.written[i], name) != 0)
        i++;
    return i;
}

/* The entry of that name, which is made if there is none; compares only with this process's own
 * copy. NULL: there are too many. */
static struct named *name_of(const char *name)
{
    const unsigned i = find_written(name);
    if (i == NAMES)
        return NULL;
    if (i == known.names) {
        snprintf(known.written[i], sizeof(known.written[i]), "%s", name);
        memcpy(shared->names[i].name, known.written[i], sizeof(known.written[i]));
        atomic_store(&shared->names[i].taken, 1);
        known.names++;
    }
    return &shared->names[i];
}

/* The entry of a user, by a name that no key has. */
static struct named *name_of_user(unsigned user)
{
    char name[IBX_NAME_MAX + 1];
    snprintf(name, sizeof(name), "user %u", user);
    if (find_written(name) == known.names && known.users++ >= USERS)
        return name_of("");
    return name_of(name);
}

void ibx_tenants_serves(unsigned process, const char *name, const unsigned *user)
{
    if (!shared)
        return;
    struct named *its = !*name && user ? name_of_user(*user) : name_of(name);
    known.of[process] = its;
    atomic_store(&shared->rows[process].own, !*name && user && ibx_is_own_user(*user));
    atomic_store(&shared->rows[process].name, its ? (unsigned)(its - shared->names) + 1 : 0);
}

void ibx_tenants_are_of(unsigned process)
{
    row = process;
}

/* The process may have been faulty, and this one serves all others: so no address in memory of both
 * is used. The memory that it had pinned for copies is gone with it. */
void ibx_tenants_ended(unsigned process)
{
    if (!shared)
        return;
    for (unsigned i = 0; i < IBX_HOLDS; i++) {
        const uint64_t used = atomic_exchange(&shared->rows[process].holds[i], 0);
        if (!known.of[process])
            continue;
        ibx_quota_give_to(&shared->totals[i], used);
        ibx_quota_give_to(&known.of[process]->holds[i], used);
    }
    known.of[process] = NULL;
}

/* NULL: the process that listens has not written the name. A client without a name counts as the
 * user whose process this is, also when it comes from another host by now. */
static struct named *find_name(const char *name)
{
    const unsigned own = atomic_load(&shared->rows[row].name);
    unsigned i = 0;
    if (!*name && own && own <= NAMES)
        return &shared->names[own - 1];
    while (i < NAMES && atomic_load(&shared->names[i].taken) &&
           strncmp(shared->names[i].name, name, sizeof(shared->names[i].name)) != 0)
        i++;
    return i < NAMES && atomic_load(&shared->names[i].taken) ? &shared->names[i] : NULL;
}

/* Has the tenant count with other processes, except for memory pinned for copies, and addresses,
 * which each process has for itself. False: there are too many tenants. */
static bool count_with_others(struct ibx_tenant *tenant)
{
    struct named *all = find_name(tenant->name);
    if (!all)
        return false;
    tenant->everywhere = all;
    snprintf(tenant->in_all_name, sizeof(tenant->in_all_name), "%.*s", IBX_NAME_MAX, all->name);
    tenant->is_all = !tenant->in_all_name[0];
    tenant->is_own = !tenant->name[0] && atomic_load(&shared->rows[row].own);
    for (unsigned i = 0; i < IBX_HOLDS; i++) {
        if (i == IBX_HOLD_CHUNKS || i == IBX_HOLD_ADDRESSES)
            continue;
        totals[i].shared = &shared->totals[i];
        tenant->in_all[i].shared = &all->holds[i];
        tenant->in_all[i].of = &totals[i];
        tenant->holds[i].shared = &shared->rows[row].holds[i];
        tenant->holds[i].of = &tenant->in_all[i];
    }
    return true;
}

/* ------------------------------------------------------------------------------ weights */

/* Parses the entry at *text (blanks skipped): its length, its weight, and the length of its name,
 * 0: the weight of all others. False: it is no valid entry. */
static bool next_weight(const char **text, unsigned *weight, size_t *name, size_t *length)
{
    const char *at = *text + strspn(*text, " \t");
    *text = at;
    *length = strcspn(at, ",");
    const char *equals = memchr(at, '=', *length);
    const char *digits = equals ? equals + 1 : at, *end;
    *name = equals ? (size_t)(equals - at) : 0;
    *weight = 0;
    for (end = digits; *end >= '0' && *end <= '9' && *weight <= IBX_WEIGHT_MAX; end++)
        *weight = 10 * *weight + (unsigned)(*end - '0');
    return end != digits && *weight && *weight <= IBX_WEIGHT_MAX && *name <= IBX_NAME_MAX &&
           (!equals || (*name && !strchr(" \t", equals[-1]))) &&
           end + strspn(end, " \t") == at + *length;
}

unsigned ibx_share_of(const struct ibx_tenant_limits *limits, const char *name)
{
    unsigned of_all = IBX_TURN_WEIGHT, weight;
    size_t n, length;
    for (const char *at = limits->weights; *at; at += length + (at[length] == ',')) {
        if (!next_weight(&at, &weight, &n, &length))
            break;
        if (!n)
            of_all = weight;
        else if (n == strlen(name) && !memcmp(at, name, n))
            return weight;
    }
    return of_all;
}

int ibx_shares_check(const char *text, struct ibx_error *err)
{
    unsigned weight;
    size_t n, length;
    for (const char *at = text; *at || at == text; at += length + (at[length] == ',')) {
        if (!next_weight(&at, &weight, &n, &length))
            return ibx_error_set(err, -EINVAL,
                                 "share: \"%.*s\" is not accepted: give a weight of 1 to %u, or "
                                 "NAME=WEIGHT, separated by commas",
                                 (int)(length < 64 ? length : 64), at, IBX_WEIGHT_MAX);
        if (!*at)
            break;
    }
    return strlen(text) < IBX_WEIGHTS_MAX
               ? 0
               : ibx_error_set(err, -EINVAL, "share: \"%.32s...\" is longer than %d characters",
                               text, IBX_WEIGHTS_MAX - 1);
}

static struct ibx_tenant *begin(const char *name)
{
    struct ibx_tenant *tenant = calloc(1, sizeof(*tenant));
    if (!tenant)
        return NULL;
    strncpy(tenant->name, name, IBX_NAME_MAX);
    tenant->everywhere = tenant;
    tenant->is_all = !name[0];
    for (unsigned i = 0; i < IBX_HOLDS; i++)
        tenant->holds[i].of = &totals[i];
    if (shared && !count_with_others(tenant)) {
        free(tenant);
        return NULL;
    }
    for (unsigned i = 0; i < IBX_TENANT_GPUS; i++)
        tenant->execs[i].of = &tenant->holds[IBX_HOLD_EXECS];
    pthread_mutex_init(&tenant->captured.lock, NULL);
    tenant->captured.graphs = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
    return tenant;
}

struct ibx_tenant *ibx_tenant_get(const char *name, const struct ibx_tenant_limits *limits,
                                  unsigned chunks)
{
    pthread_mutex_lock(&mutex);
    struct ibx_tenant *tenant = tenants;
    while (tenant && strcmp(tenant->name, name) != 0)
        tenant = tenant->next;
    if (!tenant && (tenant = begin(name))) {
        tenant->next = tenants;
        tenants = tenant;
        atomic_fetch_add(&count, 1);
    }
    set_totals(limits, chunks);
    if (tenant)
        set_shares(tenant, limits);
    pthread_mutex_unlock(&mutex);
    return tenant;
}

const char *ibx_tenant_name(const struct ibx_tenant *tenant)
{
    return tenant->name;
}

const char *ibx_tenant_name_in_all(const struct ibx_tenant *tenant)
{
    return tenant->in_all_name;
}

const void *ibx_tenant_everywhere(const struct ibx_tenant *tenant)
{
    return tenant->everywhere;
}

struct ibx_quota *ibx_tenant_quota(struct ibx_tenant *tenant, enum ibx_hold what)
{
    return &tenant->holds[what];
}

struct ibx_quota *ibx_tenant_execs(struct ibx_tenant *tenant, int gpu)
{
    const unsigned last = IBX_TENANT_GPUS - 1;
    return &tenant->execs[gpu < 0 ? 0 : (unsigned)gpu < last ? (unsigned)gpu : last];
}

struct ibx_captured_work *ibx_tenant_captured(struct ibx_tenant *tenant)
{
    return &tenant->captured;
}

bool ibx_tenant_tell_once(struct ibx_tenant *tenant, enum ibx_hold what)
{
    return !atomic_exchange(&tenant->told[what], true);
}

static uint64_t connections_of(const struct ibx_tenant *tenant)
{
    return ibx_quota_used(&tenant->holds[IBX_HOLD_SESSIONS]) +
           ibx_quota_used(&tenant->holds[IBX_HOLD_SETUPS]);
}

unsigned ibx_tenant_connections(const struct ibx_tenant *tenant, uint64_t *own, uint64_t *all,
                                uint64_t *setups)
{
    unsigned others = 0;
    pthread_mutex_lock(&mutex);
    for (const struct ibx_tenant *t = tenants; t; t = t->next)
        others += t != tenant && connections_of(t);
    pthread_mutex_unlock(&mutex);
    *own = connections_of(tenant);
    *setups = ibx_quota_used(&tenant->holds[IBX_HOLD_SETUPS]);
    *all = *own;
    if (!shared) {
        *setups = ibx_quota_used(&totals[IBX_HOLD_SETUPS]);
        *all = ibx_quota_used(&totals[IBX_HOLD_SESSIONS]) + *setups;
    }
    return others;
}

bool ibx_tenants_several(void)
{
    return atomic_load(&count) > 1;
}
