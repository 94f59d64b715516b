/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The contents of cuDNN descriptors at the back end: math_contents.h. */
#include "frontend-glue/preload/math_libraries/math_contents.h"

#include "frontend-glue/preload/math_libraries/math_libraries.h"
#include "frontend-glue/preload/preload.h"

#include <stdlib.h>
#include <string.h>

#define BAD_PARAM 2000
#define NO_MEMORY 4003

#define BUCKETS     1024u
#define UNUSED_MOST 512u /* unused contents that are kept to be used again */

#define HANDLE_AT 0u /* the offset of the handle in the body of a request */

pthread_mutex_t ibx_contents_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_contents *contents[BUCKETS];
static TAILQ_HEAD(, ibx_contents) unused = TAILQ_HEAD_INITIALIZER(unused); /* oldest first */
static unsigned unused_count;
static atomic_uint losses; /* how often all descriptors were lost; changed under the lock */
static atomic_int losses_seen;
static atomic_bool inherited; /* this process is a forked child: the descriptors are the parent's */

static void before_fork(void)
{
    pthread_mutex_lock(&ibx_contents_lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&ibx_contents_lock);
}

static void in_child(void)
{
    pthread_mutex_unlock(&ibx_contents_lock);
    atomic_store(&inherited, true);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

static unsigned maker_of(enum ibx_math_type type)
{
    static const uint16_t makers[IBX_MATH_TYPES] = {
        [IBX_MATH_TENSOR] = IBX_MATH_cudnnCreateTensorDescriptor,
        [IBX_MATH_FILTER] = IBX_MATH_cudnnCreateFilterDescriptor,
        [IBX_MATH_CONVOLUTION] = IBX_MATH_cudnnCreateConvolutionDescriptor,
        [IBX_MATH_ACTIVATION] = IBX_MATH_cudnnCreateActivationDescriptor,
        [IBX_MATH_POOLING] = IBX_MATH_cudnnCreatePoolingDescriptor,
        [IBX_MATH_SPATIAL] = IBX_MATH_cudnnCreateSpatialTransformerDescriptor,
        [IBX_MATH_RNN] = IBX_MATH_cudnnCreateRNNDescriptor,
        [IBX_MATH_RNNDATA] = IBX_MATH_cudnnCreateRNNDataDescriptor,
        [IBX_MATH_DROPOUT] = IBX_MATH_cudnnCreateDropoutDescriptor,
    };
    return makers[type];
}

/* ----------------------------------------------------------------------------- lists; locked */

static struct ibx_contents **bucket_of(enum ibx_math_type type, const uint8_t *bytes, size_t n)
{
    uint64_t hash = (uint64_t)type << 32 ^ n;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return &contents[(hash ^ hash >> 29) % BUCKETS];
}

static void remove_unused(struct ibx_contents *c)
{
    TAILQ_REMOVE(&unused, c, unused);
    unused_count--;
}

void ibx_contents_use(struct ibx_contents *c)
{
    if (!c->users && c->state == IBX_CONTENTS_SHARED)
        remove_unused(c);
    c->users++;
}

static struct ibx_contents *find_contents(enum ibx_math_type type, const uint8_t *bytes, size_t n)
{
    struct ibx_contents *c = *bucket_of(type, bytes, n);
    while (c && (c->state != IBX_CONTENTS_SHARED || c->type != type || c->n != n ||
                 memcmp(c->bytes, bytes, n)))
        c = c->next;
    if (c)
        ibx_contents_use(c);
    return c;
}

static void unlink_contents(struct ibx_contents *c)
{
    struct ibx_contents **at = bucket_of(c->type, c->bytes, c->n);
    while (*at && *at != c)
        at = &(*at)->next;
    if (*at)
        *at = c->next;
}

/* Removes a user. Without users, shared contents are kept as unused, and others are added to *dead.
 */
static void let_go(struct ibx_contents *c, struct ibx_contents **dead)
{
    while (c && !--c->users) {
        struct ibx_contents *relies = c->relies;
        if (c->state == IBX_CONTENTS_SHARED) {
            TAILQ_INSERT_TAIL(&unused, c, unused);
            unused_count++;
            return;
        }
        if (c->state == IBX_CONTENTS_OWN)
            unlink_contents(c);
        c->next = *dead;
        *dead = c;
        c = relies;
    }
}

static void trim(struct ibx_contents **dead)
{
    while (unused_count > UNUSED_MOST) {
        struct ibx_contents *c = TAILQ_FIRST(&unused);
        unlink_contents(c);
        remove_unused(c);
        let_go(c->relies, dead);
        c->next = *dead;
        *dead = c;
    }
}

/* ------------------------------------------------------------------- at the back end; unlocked */

static void end_remote(enum ibx_math_type type, uint64_t remote)
{
    const union ibx_math_value value = {.p = ibx_contents_pointer(remote)};
    ibx_frontend_math_now(ibx_math_end_of(type), &value);
}

/* Not after a loss: another descriptor may have the same handle then. */
void ibx_contents_end(enum ibx_math_type type, const struct ibx_contents_made *of)
{
    if (of->losses == atomic_load(&losses))
        end_remote(type, of->remote);
}

static void end_all(struct ibx_contents *dead)
{
    if (dead)
        ibx_math_answers_forget();
    for (struct ibx_contents *next; dead; dead = next) {
        next = dead->next;
        if (dead->state != IBX_CONTENTS_LOST)
            end_remote(dead->type, dead->remote);
        free(dead);
    }
}

/* Sends the noted requests for this descriptor. */
static int set_remote(enum ibx_math_type type, uint64_t remote, const uint8_t *bytes, size_t n)
{
    struct ibx_reader r = ibx_reader_of(bytes, n);
    int status = 0;
    while (!status && r.position < n) {
        const size_t length = ibx_get_u16(&r);
        const uint8_t *body = ibx_get_bytes(&r, length);
        if (!body)
            return BAD_PARAM;
        status = ibx_frontend_math_again(
            body, length, type == IBX_MATH_DROPOUT ? IBX_CONTENTS_FIRST_AT : HANDLE_AT, remote);
    }
    return status;
}

int ibx_contents_make(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                      struct ibx_contents_made *of)
{
    void *made = NULL;
    of->losses = atomic_load(&losses);
    const union ibx_math_value value = {.p = &made};
    int status = ibx_frontend_math_now(maker_of(type), &value);
    if (status)
        return status;
    of->remote = (uintptr_t)made;
    status = set_remote(type, of->remote, bytes, n);
    if (status)
        ibx_contents_end(type, of);
    return status;
}

/* The contents of one descriptor alone cannot be set again: calls may have changed it. */
static void lose(struct ibx_contents *c)
{
    if (c->state == IBX_CONTENTS_OWN)
        c->n = 0;
    c->state = IBX_CONTENTS_LOST;
}

struct ibx_contents *ibx_contents_add(enum ibx_math_type type, const struct ibx_contents_made *of,
                                      const uint8_t *bytes, size_t n, struct ibx_contents *relies,
                                      bool shared)
{
    struct ibx_contents *made = malloc(sizeof(*made) + n), *found, *dead = NULL;
    if (!made) {
        ibx_math_answers_forget(); /* a call may have filled the descriptor */
        ibx_contents_end(type, of);
        return NULL;
    }
    *made = (struct ibx_contents){.type = type,
                                  .state = shared ? IBX_CONTENTS_SHARED : IBX_CONTENTS_OWN,
                                  .users = 1,
                                  .remote = of->remote,
                                  .relies = relies,
                                  .n = n};
    if (n)
        memcpy(made->bytes, bytes, n);
    pthread_mutex_lock(&ibx_contents_lock);
    const bool lost = of->losses != atomic_load(&losses);
    found = shared ? find_contents(type, bytes, n) : NULL;
    if (lost)
        lose(made);
    if (found) { /* another thread was faster */
        made->next = NULL;
        dead = made;
    } else if (!lost) {
        struct ibx_contents **bucket = bucket_of(type, bytes, n);
        made->next = *bucket;
        *bucket = made;
    }
    if (!found && relies)
        ibx_contents_use(relies);
    pthread_mutex_unlock(&ibx_contents_lock);
    end_all(dead);
    return found ? found : made;
}

struct ibx_contents *ibx_contents_find(enum ibx_math_type type, const uint8_t *bytes, size_t n)
{
    pthread_mutex_lock(&ibx_contents_lock);
    struct ibx_contents *found = find_contents(type, bytes, n);
    pthread_mutex_unlock(&ibx_contents_lock);
    return found;
}

int ibx_contents_get(enum ibx_math_type type, const uint8_t *bytes, size_t n,
                     struct ibx_contents *relies, bool shared, struct ibx_contents **got)
{
    struct ibx_contents_made of;
    *got = shared ? ibx_contents_find(type, bytes, n) : NULL;
    if (*got)
        return 0;
    const int status = ibx_contents_make(type, bytes, n, &of);
    if (!status && !(*got = ibx_contents_add(type, &of, bytes, n, relies, shared)))
        return NO_MEMORY;
    return status;
}

void ibx_contents_drop(struct ibx_contents *c)
{
    struct ibx_contents *dead = NULL;
    pthread_mutex_lock(&ibx_contents_lock);
    if (c)
        let_go(c, &dead);
    trim(&dead);
    pthread_mutex_unlock(&ibx_contents_lock);
    end_all(dead);
}

/* ------------------------------------------------------------------------------- what is lost */

void ibx_math_contents_lose(void)
{
    struct ibx_contents *dead = NULL, *all = NULL;
    pthread_mutex_lock(&ibx_contents_lock);
    atomic_fetch_add(&losses, 1);
    for (size_t i = 0; i < BUCKETS; i++) {
        for (struct ibx_contents *c = contents[i], *next; c; c = next) {
            next = c->next;
            lose(c);
            c->users++;
            c->next = all;
            all = c;
        }
        contents[i] = NULL;
    }
    TAILQ_INIT(&unused);
    unused_count = 0;
    for (struct ibx_contents *next; all; all = next) {
        next = all->next;
        let_go(all, &dead);
    }
    pthread_mutex_unlock(&ibx_contents_lock);
    end_all(dead);
    ibx_math_answers_forget();
}

void ibx_contents_look(void)
{
    int seen = 0;
    if (atomic_load(&inherited) && atomic_exchange(&inherited, false))
        ibx_math_contents_lose();
    if (ibx_frontend_knows(IBX_FRONTEND_LOSSES, 0, &seen) &&
        atomic_exchange(&losses_seen, seen) != seen)
        ibx_math_contents_lose();
}
