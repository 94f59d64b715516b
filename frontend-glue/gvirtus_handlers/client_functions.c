/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/gvirtus_handlers/client_functions.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/quota.h"
#include "common/wire.h"
#include "frontend-glue/gvirtus_handlers/module_owners.h"
#include "frontend-glue/session/frames.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BUCKETS      16384u
#define HANDLE_BYTES IBX_FUNCTIONS_MODULE /* bytes of a module's name, "0x..." with its NUL */
#define HANDLE_LEAST 7u
#define UNLOAD_MS    1000u /* how long the end of a module waits for requests that use it */
#define NAME_KNOWN   23u   /* characters of a request's name that are known */
#define NOTED_BYTES  512u  /* bytes that one registration takes, here and in GVirtuS */

/* Names are not addresses: the runtime only looks them up by value. */
#define FUNCTION_FIRST UINT64_C(0x1b80000000000000)
#define FUNCTION_STEP  16u

/* A module that a client has registered. Sessions keep pointers to it, so it is never freed. */
struct ibx_client_module {
    struct ibx_client_module *next, **at; /* in its bucket; when it is gone, in `left` */
    struct ibx_client_module *next_staying;
    struct function *functions;
    char handle[HANDLE_BYTES]; /* the client's name for it */
    char name[HANDLE_BYTES];   /* GVirtuS's name for it, of the same length */
    uint64_t client;
    const struct ibx_tenant *tenant;
    struct ibx_module_owner *owner; /* until it is gone */
    struct ibx_client_module *next_of_owner, **of_owner;
    struct ibx_quota *quota; /* in which `bytes` count; NULL: none */
    uint64_t bytes;
    atomic_uint users;          /* requests that hold it */
    atomic_uint graphs;         /* user objects of CUDA's, in graphs with its functions */
    atomic_bool left_in_graphs; /* there may be graphs, until its client's process has ended */
    atomic_bool gone;
};

struct function {
    struct function *next, **at; /* in its bucket */
    struct function *next_of_module, **of_module;
    struct function *next_named, **of_named; /* in the bucket of its name */
    struct function *earlier; /* of another module, hidden by this one at the same address */
    struct ibx_client_module *module;
    uint64_t address, name;
    uint64_t called; /* a hash of its name in its module */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_client_module *modules[BUCKETS]; /* modules that are not gone */
static struct ibx_client_module *left;    /* gone modules, to which launches' caches may point */
static struct ibx_client_module *staying; /* of these, those that CUDA still has */
static struct function *buckets[BUCKETS], *named[BUCKETS];
static uint64_t salt; /* so that no client can choose buckets; 0: not set yet */
/* How many names were given. As long as no module was registered, registrations may have a form
 * that is not known here, and addresses are not replaced. */
static uint64_t functions, handles;

/* ------------------------------------------------------------------------------ the table */

/* Locked. */
static size_t bucket_of(uint64_t value)
{
    while (!salt && getrandom(&salt, sizeof(salt), GRND_NONBLOCK) != sizeof(salt))
        salt = ibx_now_ns();
    value = (value ^ salt) * UINT64_C(0xff51afd7ed558ccd);
    value = (value ^ value >> 32 ^ salt) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(value >> 32) % BUCKETS;
}

static uint64_t sum_of(const char *text)
{
    uint64_t sum = UINT64_C(14695981039346656037); /* FNV-1a */
    for (; *text; text++)
        sum = (sum ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return sum;
}

/* Locked. False: no memory. */
static bool enter(struct ibx_client_module *m)
{
    struct ibx_module_owner *owner = ibx_module_owner_make(m->client);
    if (!owner)
        return false;
    owner->orphan = false;
    m->owner = owner;
    m->next_of_owner = owner->modules;
    m->of_owner = &owner->modules;
    if (m->next_of_owner)
        m->next_of_owner->of_owner = &m->next_of_owner;
    owner->modules = m;
    return true;
}

/* Locked. */
static void leave(struct ibx_client_module *m)
{
    struct ibx_module_owner *owner = m->owner;
    *m->of_owner = m->next_of_owner;
    if (m->next_of_owner)
        m->next_of_owner->of_owner = m->of_owner;
    m->owner = NULL;
    ibx_module_owner_left(owner);
}

/* Locked. The bucket of a client's modules of that name. */
static struct ibx_client_module **modules_at(const struct ibx_functions_user *user,
                                             const char *handle)
{
    return &modules[bucket_of(sum_of(handle) + user->client)];
}

/* Locked. */
static struct ibx_client_module *module_of(const struct ibx_functions_user *user,
                                           const char *handle)
{
    struct ibx_client_module *m = *modules_at(user, handle);
    while (m && (m->client != user->client || m->tenant != user->tenant ||
                 strcmp(m->handle, handle) != 0))
        m = m->next;
    return m;
}

/* Locked. */
static void link_in(struct function *f, struct function **at)
{
    f->next = *at;
    f->at = at;
    if (f->next)
        f->next->at = &f->next;
    *at = f;
}

/* Locked. */
static void link_out(struct function *f)
{
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
}

/* Locked. */
static void forget(struct function *f)
{
    link_out(f);
    if (f->earlier)
        link_in(f->earlier, f->at);
    *f->of_module = f->next_of_module;
    if (f->next_of_module)
        f->next_of_module->of_module = f->of_module;
    *f->of_named = f->next_named;
    if (f->next_named)
        f->next_named->of_named = f->of_named;
    free(f);
}

/* Whether two functions belong to different programs, or to two clients that both have a session:
 * each of these has its own variables in its module. */
static bool differ(const struct function *a, const struct function *b)
{
    const struct ibx_client_module *m = a->module, *other = b->module;
    return a->called != b->called || strcmp(m->handle, other->handle) != 0 ||
           (!m->owner->orphan && !other->owner->orphan && m->client != other->client);
}

/* Locked. Whether the owner is the user's parent, or the user or its parent shares the owner's
 * modules. */
static bool is_parents(const struct ibx_functions_user *user, const struct ibx_module_owner *owner)
{
    const struct ibx_module_owner *own = ibx_module_owner_find(user->client);
    const struct ibx_module_owner *parent =
        user->parent ? ibx_module_owner_find(user->parent) : NULL;
    return owner == parent || (own && ibx_module_owner_uses(own, owner)) ||
           (parent && ibx_module_owner_uses(parent, owner));
}

/* Locked. The client's own function at that address, or else its parent's. If the parent is not
 * known, it may be any client of the tenant: one that has a session is preferred to one of the same
 * program that has none. NULL if several different functions remain. */
static const struct function *find(const struct ibx_functions_user *user, uint64_t address)
{
    const struct function *found = NULL, *parents = NULL;
    bool doubtful = false;
    for (const struct function *f = buckets[bucket_of(address)]; f; f = f->next) {
        if (f->address != address || f->module->tenant != user->tenant || f->module->owner->over)
            continue;
        if (f->module->client == user->client)
            return f;
        if (!parents && is_parents(user, f->module->owner))
            parents = f;
        doubtful |= found && differ(found, f);
        if (!found || (found->module->owner->orphan && !f->module->owner->orphan))
            found = f;
    }
    return parents ? parents : doubtful ? NULL : found;
}

bool ibx_functions_hold(struct ibx_functions_user *user, struct ibx_client_module *module)
{
    if (module == user->held)
        return !module || !atomic_load(&module->gone);
    ibx_functions_let_go(user);
    if (!module)
        return true;
    atomic_fetch_add(&module->users, 1);
    user->held = module;
    if (!atomic_load(&module->gone))
        return true;
    ibx_functions_let_go(user);
    return false;
}

void ibx_functions_let_go(struct ibx_functions_user *user)
{
    if (user->held)
        atomic_fetch_sub(&user->held->users, 1);
    user->held = NULL;
}

struct ibx_client_module *ibx_functions_graph_begin(const struct ibx_functions_user *user)
{
    if (user->held)
        atomic_fetch_add(&user->held->graphs, 1);
    return user->held;
}

void ibx_functions_graph_end(void *module)
{
    struct ibx_client_module *m = module;
    atomic_fetch_sub(&m->graphs, 1);
}

void ibx_functions_graph_unknown(void *module)
{
    struct ibx_client_module *m = module;
    if (m)
        atomic_store(&m->left_in_graphs, true);
}

uint64_t ibx_functions_take(struct ibx_functions_user *user, uint64_t address)
{
    pthread_mutex_lock(&lock);
    const struct function *f = find(user, address);
    const uint64_t name = f ? f->name : handles ? 0 : address;
    if (f && f->module->client == user->client)
        f->module->owner->orphan = false; /* the client has come again */
    const bool held = ibx_functions_hold(user, f ? f->module : NULL);
    pthread_mutex_unlock(&lock);
    return held ? name : 0;
}

/* Locked. Clients do not choose names, so no salt is needed. */
static struct function **named_at(uint64_t name)
{
    return &named[name / FUNCTION_STEP % BUCKETS];
}

/* Locked. Whether the client may use the function. Its own may be hidden by one that it has
 * registered later at the same address. */
static bool has(const struct ibx_functions_user *user, const struct function *f)
{
    return f && ((f->module->client == user->client && f->module->tenant == user->tenant) ||
                 find(user, f->address) == f);
}

uint64_t ibx_functions_address(const struct ibx_functions_user *user, uint64_t name)
{
    pthread_mutex_lock(&lock);
    const struct function *f = *named_at(name);
    while (f && f->name != name)
        f = f->next_named;
    const uint64_t address = has(user, f) ? f->address : handles ? 0 : name;
    pthread_mutex_unlock(&lock);
    return address;
}

void ibx_functions_orphan(uint64_t client)
{
    pthread_mutex_lock(&lock);
    struct ibx_module_owner *owner = ibx_module_owner_find(client);
    if (owner)
        owner->orphan = true;
    pthread_mutex_unlock(&lock);
}

bool ibx_functions_any(uint64_t client)
{
    pthread_mutex_lock(&lock);
    const struct ibx_module_owner *owner = ibx_module_owner_find(client);
    const bool any = owner && owner->modules;
    pthread_mutex_unlock(&lock);
    return any;
}

bool ibx_functions_share(struct ibx_functions_user *user, uint64_t address)
{
    pthread_mutex_lock(&lock);
    struct ibx_module_owner *owner = ibx_module_owner_make(user->client);
    const struct function *f = owner && address ? find(user, address) : NULL;
    const bool shared = f && ibx_module_owner_use(owner, f->module->owner);
    if (owner)
        owner->ends = true;
    pthread_mutex_unlock(&lock);
    return shared;
}

void ibx_functions_inherit(uint64_t client, uint64_t parent)
{
    pthread_mutex_lock(&lock);
    struct ibx_module_owner *other = parent ? ibx_module_owner_find(parent) : NULL;
    struct ibx_module_owner *owner = other ? ibx_module_owner_make(client) : NULL;
    if (owner)
        ibx_module_owner_use(owner, other);
    pthread_mutex_unlock(&lock);
}

void ibx_functions_left_in_graphs(uint64_t client, bool may_be)
{
    pthread_mutex_lock(&lock);
    const struct ibx_module_owner *owner = ibx_module_owner_find(client);
    for (struct ibx_client_module *m = owner ? owner->modules : NULL; m; m = m->next_of_owner)
        atomic_store(&m->left_in_graphs, may_be);
    for (struct ibx_client_module *m = staying; m; m = m->next_staying) {
        if (m->client == client)
            atomic_store(&m->left_in_graphs, may_be);
    }
    pthread_mutex_unlock(&lock);
}

void ibx_functions_ended(uint64_t client)
{
    ibx_functions_left_in_graphs(client, false);
    pthread_mutex_lock(&lock);
    struct ibx_module_owner *owner = ibx_module_owner_find(client);
    if (owner)
        ibx_module_owner_ended(owner);
    pthread_mutex_unlock(&lock);
}

bool ibx_functions_end(uint64_t client)
{
    pthread_mutex_lock(&lock);
    const struct ibx_module_owner *owner = ibx_module_owner_find(client);
    const bool end = owner && (owner->ends || owner->uses);
    pthread_mutex_unlock(&lock);
    return end;
}

/* ---------------------------------------------------------------------------- registrations */

/* Reads a string: twice its length, then its bytes with their NUL. NULL: there is no valid one. */
static char *get_string(struct ibx_reader *r, uint8_t *body, size_t *n)
{
    const uint64_t length = ibx_get_u64(r), again = ibx_get_u64(r);
    const size_t at = r->position;
    if (r->failed || !length || length != again || length > r->length - at ||
        !ibx_get_bytes(r, (size_t)length) || body[at + length - 1])
        return NULL;
    *n = (size_t)length;
    return (char *)body + at;
}

/* Makes a module's name: of the same length as the client's, with its NUL, and different from any
 * address. */
static void make_name(char *name, size_t n)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint64_t number = ++handles;
    name[n - 1] = 0;
    for (size_t i = n - 2; i; i--) {
        name[i] = digits[number % 36];
        number /= 36;
    }
    name[0] = 'm';
}

/* Locked. Gives back what the module has counted. Its entry stays, and still counts. */
static void give_bytes(struct ibx_client_module *m)
{
    if (m->quota && m->bytes > sizeof(*m))
        ibx_quota_give(m->quota, m->bytes - sizeof(*m));
    m->bytes = 0;
}

/* Locked. Counts a registration of n bytes for the module. False: there is no room. */
static bool take_bytes(const struct ibx_functions_user *user, struct ibx_client_module *m, size_t n)
{
    if (!user->quota)
        return true;
    if ((m->quota && m->quota != user->quota) || !ibx_quota_take(user->quota, n + NOTED_BYTES))
        return false;
    m->quota = user->quota;
    m->bytes += n + NOTED_BYTES;
    return true;
}

/* Gives the module a name, and writes this name into the request. False: GVirtuS must not get the
 * request, because the client's own name would enter its table of all clients' modules. */
static bool add_module(const struct ibx_functions_user *user, char *handle, size_t n, size_t bytes,
                       bool *room)
{
    const bool sound = n >= HANDLE_LEAST && n <= HANDLE_BYTES && strlen(handle) + 1 == n;
    struct ibx_client_module *m = sound ? malloc(sizeof(*m)) : NULL;
    if (!m)
        return false;
    struct ibx_client_module **at = modules_at(user, handle);
    *m = (struct ibx_client_module){
        .next = *at, .at = at, .client = user->client, .tenant = user->tenant};
    *room = take_bytes(user, m, bytes);
    if (!*room || !enter(m)) {
        if (*room && m->quota)
            ibx_quota_give(m->quota, m->bytes);
        free(m);
        return false;
    }
    memcpy(m->handle, handle, n);
    make_name(m->name, n);
    memcpy(handle, m->name, n);
    if (m->next)
        m->next->at = &m->next;
    *at = m;
    return true;
}

/* Locked. */
static struct function *function_at(const struct ibx_client_module *m, uint64_t address)
{
    struct function *f = buckets[bucket_of(address)];
    while (f && !(f->address == address && f->module->client == m->client &&
                  f->module->tenant == m->tenant))
        f = f->next;
    return f;
}

/* Locked. At each address a client has the function that it has registered there last. Two
 * libraries that have the same template may share an address: when the later library is closed, the
 * function of the earlier one is used again. */
static void hide_earlier(struct function *f)
{
    struct function *earlier;
    while ((earlier = function_at(f->module, f->address)) && earlier->module == f->module)
        forget(earlier);
    if (!earlier)
        return;
    link_out(earlier);
    link_in(earlier, &f->earlier);
}

/* Reads what follows the module in the request: the function, and its two names. */
static bool add_function(struct ibx_client_module *m, struct ibx_reader *r, uint8_t *body)
{
    const size_t at = r->position;
    size_t n;
    const uint64_t address = ibx_get_u64(r);
    const char *called = get_string(r, body, &n);
    struct function *f = called && get_string(r, body, &n) ? malloc(sizeof(*f)) : NULL;
    if (!f)
        return false;
    *f = (struct function){.module = m,
                           .address = address,
                           .name = FUNCTION_FIRST + ++functions * FUNCTION_STEP,
                           .called = sum_of(called)};
    hide_earlier(f);
    link_in(f, &buckets[bucket_of(address)]);
    f->next_of_module = m->functions;
    f->of_module = &m->functions;
    if (f->next_of_module)
        f->next_of_module->of_module = &f->next_of_module;
    m->functions = f;
    f->of_named = named_at(f->name);
    f->next_named = *f->of_named;
    if (f->next_named)
        f->next_named->of_named = &f->next_named;
    *f->of_named = f;
    struct ibx_writer w = ibx_writer_of(body + at, 8);
    ibx_put_u64(&w, f->name);
    return true;
}

/* Locked. Takes it out of the tables. */
static void unlink_module(struct ibx_client_module *m)
{
    leave(m);
    *m->at = m->next;
    if (m->next)
        m->next->at = m->at;
    m->next = left;
    left = m;
}

/* Locked. Whether no request, and no graph, needs it. */
static bool is_free(const struct ibx_client_module *m)
{
    return !atomic_load(&m->users) && !atomic_load(&m->graphs) && !atomic_load(&m->left_in_graphs);
}

/* Locked, except while it waits for requests that use the module. No further request can use it.
 * False: it is needed, and kept for take_staying(). */
static bool end_module(struct ibx_client_module *m)
{
    const uint64_t deadline = ibx_deadline_in_ms(UNLOAD_MS);
    atomic_store(&m->gone, true);
    unlink_module(m);
    while (m->functions)
        forget(m->functions);
    while (atomic_load(&m->users) && ibx_now_ns() < deadline) {
        const struct timespec pause = ibx_timespec_of(UINT64_C(1000000));
        pthread_mutex_unlock(&lock);
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
    }
    if (is_free(m)) {
        give_bytes(m);
        return true;
    }
    m->next_staying = staying;
    staying = m;
    if (atomic_load(&m->users))
        ibx_log(IBX_LOG_WARN,
                "kernels of a client stay registered, since one of its launches has not returned "
                "for %u ms: see what it runs",
                UNLOAD_MS);
    return false;
}

/* Locked. The place in the list of a kept module that is no longer needed, with a name of `length`
 * bytes; 0: of any length. It has NULL if there is none. */
static struct ibx_client_module **find_staying(size_t length)
{
    struct ibx_client_module **at = &staying;
    while (*at && !(is_free(*at) && (!length || strlen((*at)->name) + 1 == length)))
        at = &(*at)->next_staying;
    return at;
}

/* Locked. NULL: there is none. The caller has GVirtuS unload it. */
static struct ibx_client_module *take_staying(size_t length)
{
    struct ibx_client_module **at = find_staying(length), *m = *at;
    if (!m)
        return NULL;
    *at = m->next_staying;
    give_bytes(m);
    return m;
}

/* Locked. The client unloads the module. If that has to wait, GVirtuS unloads one that has waited
 * long enough. False: there is none, either. */
static bool unloads(struct ibx_client_module *m, char *handle, size_t length)
{
    const struct ibx_client_module *other = end_module(m) ? m : take_staying(length);
    if (other)
        memcpy(handle, other->name, length);
    return other;
}

bool ibx_functions_any_over(void)
{
    pthread_mutex_lock(&lock);
    const bool any = *find_staying(0) || ibx_module_owner_over();
    pthread_mutex_unlock(&lock);
    return any;
}

size_t ibx_functions_next_over(char *name)
{
    const struct ibx_module_owner *owner;
    pthread_mutex_lock(&lock);
    struct ibx_client_module *m = take_staying(0);
    while (!m && (owner = ibx_module_owner_over())) {
        m = owner->modules;
        m = end_module(m) ? m : NULL;
    }
    const size_t n = m ? strlen(m->name) + 1 : 0;
    if (m)
        memcpy(name, m->name, n);
    pthread_mutex_unlock(&lock);
    return n;
}

/* Removes the module's name: handlers then copy no invalid strings. That of a fat binary would take
 * what follows for the wrapper, which nobody has checked: so it finds too few bytes there. */
static void refuse(uint8_t *body, size_t n)
{
    ibx_body_set_number(body, n, 8, 8, 0);
    ibx_body_set_number(body, n, 24, 8, INT64_MAX);
    ibx_body_set_number(body, n, 32, 8, 1);
}

/* Whether handlers take it as a string: they do not read the second length. */
static bool is_string(const uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t length = ibx_get_u64(&r), again = ibx_get_u64(&r);
    return !r.failed && again && length <= ibx_reader_left(&r);
}

static bool begins(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

/* Reads what follows the module of a variable: its address, its name there, and the module's. */
static bool names_variable(struct ibx_reader *r, uint8_t *body)
{
    size_t n;
    return get_string(r, body, &n) && get_string(r, body, &n) && get_string(r, body, &n);
}

/* Locked. Whether the handler may get the registration. *room: false if there is no room. */
static bool registers(struct ibx_functions_user *user, const char *name, uint8_t *body, size_t n,
                      uint64_t kept, bool *room)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    size_t length = 0;
    char *handle = get_string(&r, body, &length);
    struct ibx_client_module *m = handle ? module_of(user, handle) : NULL;
    if (!strcmp(name, "cudaRegisterFatBinary"))
        return handle ? add_module(user, handle, length, n + kept, room)
                      : !handles && !is_string(body, n);
    if (!m || strlen(handle) + 1 != length)
        return !handles; /* the module is another client's, or nobody's */
    *room = begins(name, "cudaUnregister") || take_bytes(user, m, n);
    if (!*room)
        return false;
    memcpy(handle, m->name, length);
    if (!strcmp(name, "cudaRegisterFunction"))
        return add_function(m, &r, body);
    if (!strcmp(name, "cudaRegisterVar"))
        return names_variable(&r, body);
    if (begins(name, "cudaRegisterShared"))
        return get_string(&r, body, &length);
    return !begins(name, "cudaUnregister") || unloads(m, handle, length);
}

/* --------------------------------------------------------------------------------- requests */

/* Where handlers of G5 find a function. */
enum function_at {
    FIRST,
    BEHIND_INT,    /* ... whose length is before it; if that is 0, behind the length */
    BEHIND_STRUCT, /* likewise, but it is not known how long the handler's is */
};

static const struct {
    const char *name;
    enum function_at at;
} uses[] = {
    {"cudaFuncGetAttributes", BEHIND_STRUCT},
    {"cudaFuncSetAttribute", FIRST},
    {"cudaFuncSetCacheConfig", FIRST},
    {"cudaLaunchKernel", FIRST},
    {"cudaOccupancyMaxActiveBlocksPerMultiprocessor", BEHIND_INT}, /* and ...WithFlags */
};

/* The struct becomes zeros, which CUDA fills: so a request with more behind the function than its 8
 * bytes has no other function where the handler reads one. */
static void name_function(struct ibx_functions_user *user, enum function_at at, uint8_t *body,
                          size_t n)
{
    const size_t length = 8, address = 8;
    size_t from = 0;
    if (at == BEHIND_INT)
        from = length + (ibx_body_number(body, n, 0, 8) ? sizeof(uint32_t) : 0);
    else if (at == BEHIND_STRUCT)
        from = n < length + address ? n : n - address;
    if (from > n || n - from < address)
        return;
    if (at == BEHIND_STRUCT)
        memset(body + length, 0, from - length);
    struct ibx_reader r = ibx_reader_of(body + from, 8);
    struct ibx_writer w = ibx_writer_of(body + from, 8);
    ibx_put_u64(&w, ibx_functions_take(user, ibx_get_u64(&r)));
}

bool ibx_functions_name(struct ibx_functions_user *user, const char *name, uint8_t *body, size_t n,
                        uint64_t kept)
{
    bool room = true;
    if (begins(name, "cudaRegister") || begins(name, "cudaUnregister")) {
        pthread_mutex_lock(&lock);
        if (!registers(user, name, body, n, kept, &room))
            refuse(body, n);
        pthread_mutex_unlock(&lock);
        return room;
    }
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++) {
        if (!strncmp(uses[i].name, name, NAME_KNOWN))
            name_function(user, uses[i].at, body, n);
    }
    return room;
}
