/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program's descriptors of cuDNN, and the calls that create, set, name and destroy them:
 * math_contents.h. */
#include "frontend-glue/preload/math_libraries/math_contents.h"

#include "common/fork_lock.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>
#include <string.h>

#define NOT_INITIALIZED 1001
#define BAD_PARAM       2000
#define NO_MEMORY       4003

#define BUCKETS 1024u

struct descriptor {
    struct descriptor *next;
    enum ibx_math_type type;
    uint64_t number; /* unique in the process, never reused */
    struct ibx_contents *is;
    /* Of a recurrent network: its dropout descriptor, which the library reads again in each call.
     */
    struct descriptor *dropout;
    uint64_t dropout_number; /* 0: it has none; UINT64_MAX: unknown */
};

/* Protected by ibx_contents_lock. */
static struct descriptor *descriptors[BUCKETS];
static uint64_t numbers;
/* Held while a descriptor gets contents of its own, so that only one thread makes them. Taken
 * before ibx_contents_lock. */
static struct ibx_fork_lock own_lock = IBX_FORK_LOCK;

static bool has_contents(unsigned type)
{
    switch (type) {
    case IBX_MATH_TENSOR:
    case IBX_MATH_FILTER:
    case IBX_MATH_CONVOLUTION:
    case IBX_MATH_ACTIVATION:
    case IBX_MATH_POOLING:
    case IBX_MATH_SPATIAL:
    case IBX_MATH_RNN:
    case IBX_MATH_RNNDATA:
    case IBX_MATH_DROPOUT:
        return true;
    default:
        return false;
    }
}

/* Called under the lock. The pointer in the list that points to the entry, or to NULL at the end.
 */
static struct descriptor **place_of_descriptor(enum ibx_math_type type, const void *at)
{
    const uintptr_t value = (uintptr_t)at;
    struct descriptor **place = &descriptors[(value >> 5 ^ value >> 14) % BUCKETS];
    while (*place && (*place != at || (*place)->type != type))
        place = &(*place)->next;
    return place;
}

/* Sets the contents of a descriptor. The caller has added the user. */
static void become(struct descriptor *d, struct ibx_contents *is)
{
    pthread_mutex_lock(&ibx_contents_lock);
    struct ibx_contents *was = d->is;
    d->is = is;
    pthread_mutex_unlock(&ibx_contents_lock);
    ibx_contents_drop(was);
}

/* ------------------------------------------------------------------------------- made and ended */

static int create(enum ibx_math_type type, void **made)
{
    static const uint8_t none[1];
    struct ibx_contents *is = NULL;
    struct descriptor *d = calloc(1, sizeof(*d));
    is = d ? ibx_contents_find(type, none, 0) : NULL;
    struct ibx_contents_made of = {0};
    int status = !d ? NO_MEMORY : is ? 0 : ibx_contents_make(type, none, 0, &of);
    if (!status && !is && ibx_math_handle_is(type, of.remote) == IBX_MATH_FOREIGN) {
        /* Then all of its type are GVirtuS's, and none has contents here. */
        *made = ibx_contents_pointer(of.remote);
        free(d);
        return 0;
    }
    if (!status && !is && !(is = ibx_contents_add(type, &of, none, 0, NULL, true)))
        status = NO_MEMORY;
    if (status) {
        free(d);
        return status;
    }
    d->type = type;
    d->is = is;
    pthread_mutex_lock(&ibx_contents_lock);
    d->number = ++numbers;
    struct descriptor **place = place_of_descriptor(type, d);
    d->next = *place;
    *place = d;
    pthread_mutex_unlock(&ibx_contents_lock);
    *made = d;
    return 0;
}

static void end(struct descriptor *d)
{
    pthread_mutex_lock(&ibx_contents_lock);
    struct descriptor **place = place_of_descriptor(d->type, d);
    if (*place)
        *place = d->next;
    pthread_mutex_unlock(&ibx_contents_lock);
    ibx_contents_drop(d->is);
    free(d);
}

/* ------------------------------------------------------------------------------- what is set */

/* Encodes the settings: the new request. In a convolution, several functions set one part each:
 * there, other parts that were set before come first. 0: it cannot be encoded. */
static size_t note(const struct ibx_contents *was, unsigned number,
                   const union ibx_math_value *values, uint8_t bytes[IBX_CONTENTS_BYTES])
{
    struct ibx_writer w = ibx_writer_of(bytes, IBX_CONTENTS_BYTES);
    struct ibx_reader r = ibx_reader_of(was->bytes, was->n);
    uint8_t body[IBX_CONTENTS_BYTES];
    const size_t n = ibx_frontend_math_body(number, values, body, sizeof(body));
    while (was->type == IBX_MATH_CONVOLUTION && r.position < was->n) {
        const size_t length = ibx_get_u16(&r);
        const uint8_t *before = ibx_get_bytes(&r, length);
        if (before && memcmp(before, body, IBX_CONTENTS_FIRST_AT) != 0) {
            ibx_put_u16(&w, (uint16_t)length);
            ibx_put_bytes(&w, before, length);
        }
    }
    ibx_put_u16(&w, (uint16_t)n);
    ibx_put_bytes(&w, body, n);
    return !n || w.failed ? 0 : w.length;
}

/* Gives the descriptor contents of its own; with earlier parts, if it is set in parts. */
static int make_own(struct descriptor *d, unsigned number, union ibx_math_value *values)
{
    const bool part = d->type == IBX_MATH_CONVOLUTION;
    struct ibx_contents *is = NULL;
    int status = ibx_contents_get(d->type, d->is->bytes, part ? d->is->n : 0, NULL, false, &is);
    if (status)
        return status;
    values[0].p = ibx_contents_pointer(is->remote);
    status = ibx_frontend_math_now(number, values);
    if (status)
        ibx_contents_drop(is);
    else
        become(d, is);
    return status;
}

static int set_own(struct descriptor *d, unsigned number, union ibx_math_value *values)
{
    ibx_fork_lock_take(&own_lock);
    const bool own = d->is->state == IBX_CONTENTS_OWN;
    values[0].p = ibx_contents_pointer(d->is->remote);
    const int status = own ? 0 : make_own(d, number, values);
    ibx_fork_lock_release(&own_lock);
    return own ? ibx_frontend_math_now(number, values) : status;
}

/* Makes a setting call. `was`: the present contents; `relies`: of the descriptor that the request
 * refers to; `own`: it cannot be shared. */
static int set(struct descriptor *d, const struct ibx_contents *was, unsigned number,
               union ibx_math_value *values, struct ibx_contents *relies, bool own)
{
    uint8_t bytes[IBX_CONTENTS_BYTES];
    struct ibx_contents *is = NULL;
    values[0].p = NULL;
    own = own || (d->type == IBX_MATH_CONVOLUTION && was->state == IBX_CONTENTS_OWN);
    /* The settings of a network are noted also if it is not shared: follow_dropout() sends them
     * again. */
    const size_t n = own && d->type != IBX_MATH_RNN ? 0 : note(was, number, values, bytes);
    if (!n)
        return set_own(d, number, values);
    if (was->state == IBX_CONTENTS_SHARED && was->n == n && !memcmp(was->bytes, bytes, n))
        return 0;
    const int status = ibx_contents_get(d->type, bytes, n, relies, !own, &is);
    if (!status)
        become(d, is);
    return status;
}

/* ------------------------------------------------------------------------------- networks */

#define DROPOUT_AT                                                                                 \
    (IBX_CONTENTS_FIRST_AT + 12 * 4) /* where the request that sets a network has its dropout */

/* The contents of a network and of its dropout. Each has one more user for the time being. */
struct network {
    struct ibx_contents *is, *dropout; /* dropout NULL: it has none */
};

/* False: its dropout descriptor was destroyed. */
static bool look_at(const struct descriptor *d, struct network *network)
{
    pthread_mutex_lock(&ibx_contents_lock);
    const struct descriptor *dropout =
        d->dropout_number ? *place_of_descriptor(IBX_MATH_DROPOUT, d->dropout) : NULL;
    const bool there = !d->dropout_number || (dropout && dropout->number == d->dropout_number);
    ibx_contents_use(network->is = d->is);
    if ((network->dropout = there && dropout ? dropout->is : NULL))
        ibx_contents_use(network->dropout);
    pthread_mutex_unlock(&ibx_contents_lock);
    return there;
}

static void look_away(const struct network *network)
{
    ibx_contents_drop(network->is);
    ibx_contents_drop(network->dropout);
}

static bool has_followed(const struct network *network)
{
    return !network->dropout || network->is->relies == network->dropout ||
           network->is->n < 2 + DROPOUT_AT + 8;
}

/* Sets the network again, with the present contents of its dropout. */
static int set_again(struct descriptor *d, const struct network *network)
{
    uint8_t bytes[IBX_CONTENTS_BYTES];
    struct ibx_contents *is = NULL;
    memcpy(bytes, network->is->bytes, network->is->n);
    struct ibx_writer w = ibx_writer_of(bytes + 2 + DROPOUT_AT, 8);
    ibx_put_u64(&w, network->dropout->remote);
    const int status = ibx_contents_get(IBX_MATH_RNN, bytes, network->is->n, network->dropout,
                                        network->dropout->state == IBX_CONTENTS_SHARED, &is);
    if (!status)
        become(d, is);
    return status;
}

/* The library reads the dropout in each call, and something else may have been set in it since.
 * Several threads may use one network: the first one sets it again, under the lock, and the others
 * use the result. */
static int follow_dropout(struct descriptor *d)
{
    struct network network;
    int status = look_at(d, &network) ? 0 : BAD_PARAM;
    const bool followed = status || has_followed(&network);
    look_away(&network);
    if (followed)
        return status;
    ibx_fork_lock_take(&own_lock);
    status = look_at(d, &network) ? 0 : BAD_PARAM;
    if (!status && !has_followed(&network))
        status = set_again(d, &network);
    look_away(&network);
    ibx_fork_lock_release(&own_lock);
    return status;
}

/* ------------------------------------------------------------------------------- parameters */

/* The arguments of cudnnGetRNNWeightParams, which sets two tensor descriptors: of a matrix and of a
 * bias. */
#define NETWORK 1
#define MATRIX  6
#define BIAS    8

struct filled {
    struct descriptor *d;          /* NULL: the caller did not pass one */
    struct ibx_contents *is;       /* the contents that it gets */
    struct ibx_contents_made made; /* a new descriptor, if there were no such contents */
    size_t n;
    uint8_t bytes[2 + IBX_CONTENTS_BYTES + 1];
};

/* The bytes that identify the contents: the request that fills the tensor, and which of the two it
 * is. Finds such contents, or makes a descriptor to be filled. */
static int prepare(struct filled *to, unsigned argument, const union ibx_math_value *values,
                   bool shared)
{
    union ibx_math_value plain[IBX_MATH_ARGUMENTS];
    struct ibx_writer w = ibx_writer_of(to->bytes, sizeof(to->bytes));
    uint8_t body[IBX_CONTENTS_BYTES];
    memcpy(plain, values, (BIAS + 2) * sizeof(plain[0]));
    plain[MATRIX].p = ibx_contents_pointer(values[MATRIX].p != NULL);
    plain[BIAS].p = ibx_contents_pointer(values[BIAS].p != NULL);
    const size_t n =
        ibx_frontend_math_body(IBX_MATH_cudnnGetRNNWeightParams, plain, body, sizeof(body));
    ibx_put_u16(&w, (uint16_t)n);
    ibx_put_bytes(&w, body, n);
    ibx_put_u8(&w, (uint8_t)argument);
    to->n = w.length;
    if (!n || w.failed)
        return BAD_PARAM;
    to->is = shared ? ibx_contents_find(IBX_MATH_TENSOR, to->bytes, to->n) : NULL;
    return to->is ? 0 : ibx_contents_make(IBX_MATH_TENSOR, NULL, 0, &to->made);
}

/* After the call: `status` is its result. */
static int finish(struct filled *to, struct ibx_contents *network, bool shared, int status)
{
    if (!status && to->made.remote &&
        !(to->is = ibx_contents_add(IBX_MATH_TENSOR, &to->made, to->bytes, to->n,
                                    shared ? network : NULL, shared)))
        return NO_MEMORY;
    if (!status) {
        become(to->d, to->is);
        return 0;
    }
    if (to->made.remote)
        ibx_contents_end(IBX_MATH_TENSOR, &to->made);
    ibx_contents_drop(to->is);
    return status;
}

/* Answers are kept: PyTorch makes this call a hundred times in a row. */
static int get_parameters(struct ibx_contents *network, struct filled both[2],
                          union ibx_math_value *values)
{
    static const unsigned at[] = {MATRIX, BIAS};
    const bool shared = network && network->state == IBX_CONTENTS_SHARED;
    union ibx_math_value named[IBX_MATH_ARGUMENTS];
    int status = 0, last = 0;
    memcpy(named, values, (BIAS + 2) * sizeof(named[0]));
    for (unsigned i = 0; i < 2 && !status; i++) {
        if (both[i].d)
            status = prepare(&both[i], at[i], values, shared);
        if (both[i].d && !status)
            named[at[i]].p =
                ibx_contents_pointer(both[i].is ? both[i].is->remote : both[i].made.remote);
    }
    if (!status)
        status = ibx_frontend_math_named(IBX_MATH_cudnnGetRNNWeightParams, named, shared);
    for (unsigned i = 0; i < 2; i++)
        if (both[i].d)
            last = finish(&both[i], network, shared, status);
    return status ? status : last;
}

/* ------------------------------------------------------------------------------- all calls */

/* The descriptors that a call names. Their contents have one more user during the call. */
struct named {
    const struct ibx_math_function *f;
    struct descriptor *of[IBX_MATH_ARGUMENTS]; /* NULL: the argument is no such descriptor */
    struct ibx_contents *is[IBX_MATH_ARGUMENTS];
    bool shared; /* all contents are shared */
    int status;
};

static bool sets(const struct ibx_math_function *f)
{
    return f->use == IBX_MATH_USE_SETS_UP || f->number == IBX_MATH_cudnnSetDropoutDescriptor ||
           f->number == IBX_MATH_cudnnRestoreDropoutDescriptor;
}

static bool is_named(const struct ibx_math_argument *a)
{
    return (a->kind == IBX_MATH_HANDLE || a->kind == IBX_MATH_OTHER) && has_contents(a->n);
}

/* Adds a user to the contents of the i-th argument; returns whether they are shared. *lost: they
 * were lost, but have to be made again, because natively a descriptor is in host memory and
 * survives a reset, possibly of another device. */
static bool hold(struct named *n, unsigned i, const void *at, bool *lost)
{
    const enum ibx_math_type type = (enum ibx_math_type)n->f->arguments[i].n;
    pthread_mutex_lock(&ibx_contents_lock);
    n->of[i] = *place_of_descriptor(type, at);
    n->is[i] = n->of[i] ? n->of[i]->is : NULL;
    const struct ibx_contents *is = n->is[i];
    if (is)
        ibx_contents_use(n->is[i]);
    const bool shared = is && is->state == IBX_CONTENTS_SHARED;
    *lost = is && is->state == IBX_CONTENTS_LOST && !is->relies && type != IBX_MATH_DROPOUT;
    pthread_mutex_unlock(&ibx_contents_lock);
    return shared;
}

static void make_again(struct descriptor *d, const struct ibx_contents *was)
{
    struct ibx_contents *is = NULL;
    if (!ibx_contents_get(d->type, was->bytes, was->n, NULL, true, &is))
        become(d, is);
}

/* What a call returns for an address that is no descriptor of this library: the status that the
 * back end would return. 0: the back end is asked. It is not asked once this process has had
 * descriptors: the address may be the back end's handle of another one. */
static int status_of_none(const struct ibx_math_argument *a, const void *at)
{
    pthread_mutex_lock(&ibx_contents_lock);
    const bool any = numbers != 0;
    pthread_mutex_unlock(&ibx_contents_lock);
    if (!any || ibx_math_handle_is((enum ibx_math_type)a->n, (uintptr_t)at) == IBX_MATH_FOREIGN)
        return 0;
    return a->kind == IBX_MATH_HANDLE ? NOT_INITIALIZED : BAD_PARAM;
}

/* Resolves argument i. If the call only uses a network, the network gets its dropout as it is now.
 */
static void name_one(struct named *n, unsigned i, const void *at)
{
    const bool uses = n->f->use != IBX_MATH_USE_ENDS && !(sets(n->f) && !i);
    const bool network = n->f->arguments[i].n == IBX_MATH_RNN;
    bool lost, shared = hold(n, i, at, &lost);
    struct descriptor *d = n->of[i];
    if (!d && !n->status)
        n->status = status_of_none(&n->f->arguments[i], at);
    if (d && uses && (lost || network)) {
        struct ibx_contents *was = n->is[i];
        if (lost)
            make_again(d, was);
        if (network && !n->status)
            n->status = follow_dropout(d);
        shared = hold(n, i, at, &lost);
        ibx_contents_drop(was);
    }
    n->shared = n->shared && shared;
}

/* Resolves all arguments: `own` gets the back end's descriptors. */
static void name_all(struct named *n, const union ibx_math_value *values, union ibx_math_value *own)
{
    memcpy(own, values, n->f->count * sizeof(own[0]));
    for (unsigned i = 0; i < n->f->count; i++) {
        if (is_named(&n->f->arguments[i]) && values[i].p)
            name_one(n, i, values[i].p);
        if (n->is[i])
            own[i].p = ibx_contents_pointer(n->is[i]->remote);
    }
}

static void unname(struct named *n)
{
    for (unsigned i = 0; i < n->f->count; i++)
        if (n->is[i])
            ibx_contents_drop(n->is[i]);
}

static int set_named(const struct named *n, union ibx_math_value *own)
{
    const unsigned number = n->f->number;
    struct descriptor *d = n->of[0], *dropout = NULL;
    struct ibx_contents *relies = NULL;
    /* States are never shared. */
    bool alone = number == IBX_MATH_cudnnSetDropoutDescriptor && own[3].p;
    for (unsigned i = 1; i < n->f->count; i++) {
        if (!is_named(&n->f->arguments[i]) || !own[i].p)
            continue;
        relies = n->is[i];
        dropout = n->of[i];
        alone = alone || !relies || relies->state != IBX_CONTENTS_SHARED;
    }
    const int status = set(d, n->is[0], number, own, relies, alone);
    if (d->type == IBX_MATH_RNN) {
        d->dropout = dropout;
        d->dropout_number = status ? UINT64_MAX : dropout ? dropout->number : 0;
    }
    return status;
}

static enum ibx_math_named call_named(const struct named *n, union ibx_math_value *own, int *status)
{
    const bool parameters = n->f->number == IBX_MATH_cudnnGetRNNWeightParams;
    *status = n->status;
    if (n->status)
        return IBX_MATH_CALLED;
    if (n->of[0] && n->f->use == IBX_MATH_USE_ENDS) {
        end(n->of[0]);
    } else if (n->of[0] && sets(n->f)) {
        *status = set_named(n, own);
    } else if (parameters && (n->of[MATRIX] || n->of[BIAS])) {
        struct filled both[2] = {{.d = n->of[MATRIX]}, {.d = n->of[BIAS]}};
        *status = get_parameters(n->is[NETWORK], both, own);
    } else {
        return n->shared ? IBX_MATH_NAMED_SHARED : IBX_MATH_NAMED;
    }
    return IBX_MATH_CALLED;
}

enum ibx_math_named ibx_math_contents_name(unsigned number, const union ibx_math_value *values,
                                           union ibx_math_value *own, int *status)
{
    struct named n = {.f = ibx_math_find(number), .shared = true};
    const struct ibx_math_argument *first = &n.f->arguments[0];
    if (sets(n.f))
        ibx_contents_look();
    if (first->kind == IBX_MATH_MAKES && has_contents(first->n) && values[0].p) {
        *status = create((enum ibx_math_type)first->n, values[0].p);
        return IBX_MATH_CALLED;
    }
    name_all(&n, values, own);
    const enum ibx_math_named named = call_named(&n, own, status);
    unname(&n);
    return named;
}
