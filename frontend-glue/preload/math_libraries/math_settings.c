/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Settings of cuBLAS handles. Programs such as PyTorch set the stream, workspace and math mode
 * around each product, mostly to the values that they had. As requests each of these would wait,
 * and would invalidate answers that are kept of other calls. So if the library has accepted a value
 * for this handle before, the setting is only noted here. It is sent before the next use of the
 * handle, unless it is in force already.
 *
 * To select a stream, even the same one, resets the workspace.
 */
#include "frontend-glue/preload/math_libraries/math_libraries.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/math_libraries/math_calls.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define HANDLES 32u /* handles whose settings are kept */
#define GOOD    4u  /* accepted values that are kept of each setting */

enum which { STREAM, WORKSPACE, POINTER_MODE, MATH_MODE, ATOMICS, PROCESSORS, SETTINGS };

struct value {
    uint64_t words[2];
};

static const struct value no_value = {{UINT64_MAX, UINT64_MAX}};
static const struct value no_workspace = {{0, UINT64_MAX}}; /* the library's own workspace */

struct setting {
    enum {
        UNKNOWN,  /* the value in force is unknown */
        IN_FORCE, /* the wanted value is in force */
        DEFERRED  /* the wanted value is to be sent before the next use */
    } state;
    struct value is, wanted;
    struct value good[GOOD];
    unsigned good_count; /* how many were accepted; good[] has the last ones */
};

static struct settings {
    pthread_mutex_t lock;
    _Atomic uint64_t handle; /* 0: unused; written under both locks */
    struct setting of[SETTINGS];
} all[HANDLES];
static pthread_mutex_t places = PTHREAD_MUTEX_INITIALIZER; /* taken before `lock` of the entries */

static void clear(void)
{
    pthread_mutex_init(&places, NULL);
    for (unsigned i = 0; i < HANDLES; i++) {
        pthread_mutex_init(&all[i].lock, NULL);
        atomic_store(&all[i].handle, 0);
    }
}

__attribute__((constructor)) static void begin(void)
{
    clear();
    pthread_atfork(NULL, NULL, clear); /* a child makes its own handles */
}

/* Finds the entry of a handle and locks it; NULL: there is none. */
static struct settings *find(uint64_t handle)
{
    for (unsigned i = 0; handle && i < HANDLES; i++) {
        if (atomic_load_explicit(&all[i].handle, memory_order_acquire) != handle)
            continue;
        pthread_mutex_lock(&all[i].lock);
        if (atomic_load(&all[i].handle) == handle)
            return &all[i];
        pthread_mutex_unlock(&all[i].lock);
    }
    return NULL;
}

/* The same; makes an entry if there is none. */
static struct settings *find_or_add(uint64_t handle)
{
    pthread_mutex_lock(&places);
    struct settings *s = find(handle);
    for (unsigned i = 0; !s && i < HANDLES; i++) {
        if (atomic_load(&all[i].handle))
            continue;
        s = &all[i];
        pthread_mutex_lock(&s->lock);
        memset(s->of, 0, sizeof(s->of));
        atomic_store_explicit(&s->handle, handle, memory_order_release);
    }
    pthread_mutex_unlock(&places);
    return s;
}

static void let_go(struct settings *s)
{
    pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------------------- values */

static const uint16_t functions[SETTINGS] = {
    [STREAM] = IBX_MATH_cublasSetStream_v2,
    [WORKSPACE] = IBX_MATH_cublasSetWorkspace_v2,
    [POINTER_MODE] = IBX_MATH_cublasSetPointerMode_v2,
    [MATH_MODE] = IBX_MATH_cublasSetMathMode,
    [ATOMICS] = IBX_MATH_cublasSetAtomicsMode,
    [PROCESSORS] = IBX_MATH_cublasSetSmCountTarget,
};

/* Which setting the function sets; SETTINGS: none. */
static enum which which_of(unsigned number)
{
    unsigned i = 0;
    while (i < SETTINGS && functions[i] != number)
        i++;
    return (enum which)i;
}

/* The value, from the arguments after the handle. */
static struct value value_of(enum which which, const union ibx_math_value *values)
{
    struct value v = {{0, 0}};
    if (which == STREAM || which == WORKSPACE)
        v.words[0] = (uintptr_t)values[1].p;
    else
        v.words[0] = (uint32_t)values[1].i;
    if (which == WORKSPACE)
        v.words[1] = values[2].l;
    return v;
}

static void arguments_of(enum which which, uint64_t handle, const struct value *v,
                         union ibx_math_value values[3])
{
    values[0].p = (void *)(uintptr_t)handle;
    if (which == STREAM || which == WORKSPACE)
        values[1].p = (void *)(uintptr_t)v->words[0];
    else
        values[1].i = (int)v->words[0];
    if (which == WORKSPACE)
        values[2].l = v->words[1];
}

static bool same(const struct value *a, const struct value *b)
{
    return a->words[0] == b->words[0] && a->words[1] == b->words[1];
}

static bool is_good(const struct setting *s, const struct value *v)
{
    for (unsigned i = 0; i < GOOD && i < s->good_count; i++) {
        if (same(&s->good[i], v))
            return true;
    }
    return false;
}

static void in_force(struct setting *s, const struct value *v)
{
    s->is = s->wanted = *v;
    s->state = IN_FORCE;
}

static void want(struct setting *s, const struct value *v)
{
    const bool is = s->state != UNKNOWN && same(&s->is, v);
    if (s->state == UNKNOWN)
        s->is = no_value;
    s->wanted = *v;
    s->state = is ? IN_FORCE : DEFERRED;
}

/* ------------------------------------------------------------------------------- requests */

/* Notes the library's answer to a setting. */
static void sent(struct settings *s, enum which which, const struct value *v, int status)
{
    struct setting *of = &s->of[which], *workspace = &s->of[WORKSPACE];
    if (status) {
        of->state = UNKNOWN;
        if (which == STREAM)
            workspace->state = UNKNOWN;
        return;
    }
    in_force(of, v);
    if (!is_good(of, v))
        of->good[of->good_count++ % GOOD] = *v;
    if (which != STREAM)
        return;
    const struct value wanted = workspace->state == UNKNOWN ? no_workspace : workspace->wanted;
    in_force(workspace, &no_workspace);
    want(workspace, &wanted);
}

static int send(struct settings *s, enum which which)
{
    union ibx_math_value values[3];
    const struct value v = s->of[which].wanted;
    arguments_of(which, atomic_load(&s->handle), &v, values);
    const int status = ibx_frontend_math_now(functions[which], values);
    sent(s, which, &v, status);
    return status;
}

/* Sends the stream if it was deferred, or if the workspace has to be reset, which this does. */
static int send_stream(struct settings *s)
{
    const struct setting *workspace = &s->of[WORKSPACE];
    const bool goes = workspace->state == DEFERRED && same(&workspace->wanted, &no_workspace);
    return s->of[STREAM].state == DEFERRED || goes ? send(s, STREAM) : 0;
}

int ibx_math_settings_use(uint64_t handle)
{
    struct settings *s = find(handle);
    int status = s ? send_stream(s) : 0;
    for (unsigned i = WORKSPACE; s && !status && i < SETTINGS; i++) {
        if (s->of[i].state == DEFERRED)
            status = send(s, (enum which)i);
    }
    if (s)
        let_go(s);
    return status;
}

/* Defers a setting whose value was accepted before. False: it has to be sent now. */
static bool defers(struct settings *s, enum which which, const struct value *v)
{
    struct setting *of = &s->of[which];
    if (of->state == UNKNOWN || !is_good(of, v))
        return false;
    want(of, v);
    if (which == STREAM)
        want(&s->of[WORKSPACE], &no_workspace);
    return true;
}

bool ibx_math_settings_set(uint64_t handle, unsigned number, const union ibx_math_value *values,
                           int *status)
{
    const enum which which = which_of(number);
    struct settings *s = which < SETTINGS ? find_or_add(handle) : NULL;
    if (!s)
        return false;
    const struct value v = value_of(which, values);
    *status = 0;
    if (!defers(s, which, &v)) {
        if (which == STREAM)
            want(&s->of[WORKSPACE], &no_workspace);
        if (which == WORKSPACE)
            *status = send_stream(s);
        if (!*status) {
            *status = ibx_frontend_math_now(number, values);
            sent(s, which, &v, *status);
        }
    }
    let_go(s);
    return true;
}

void ibx_math_settings_end(uint64_t handle)
{
    struct settings *s = find(handle);
    if (!s)
        return;
    atomic_store(&s->handle, 0);
    let_go(s);
}

void ibx_math_settings_stream_ends(uint64_t stream)
{
    const struct value gone = {{stream, 0}};
    for (unsigned i = 0; i < HANDLES; i++) {
        if (!atomic_load(&all[i].handle))
            continue;
        pthread_mutex_lock(&all[i].lock);
        struct setting *of = &all[i].of[STREAM];
        for (unsigned k = 0; k < GOOD && k < of->good_count; k++) {
            if (same(&of->good[k], &gone))
                of->good[k] = no_value;
        }
        if (of->state == IN_FORCE && same(&of->is, &gone))
            of->state = UNKNOWN;
        else if (of->state == DEFERRED && same(&of->is, &gone))
            of->is = no_value;
        pthread_mutex_unlock(&all[i].lock);
    }
}
