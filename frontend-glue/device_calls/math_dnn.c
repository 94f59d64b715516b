/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs of cuDNN (cudnnBackend*). A descriptor's attributes may be other descriptors and handles:
 * they have to be the client's. A tensor may be passed by its value, in memory of the host, which
 * the library reads where the request says: so it is known of each descriptor which tensors by
 * value are in it, and a plan gets for these what the request has, and for all others addresses of
 * the device that are the client's. What the program says of addresses (a variant pack) is made
 * here, for one call.
 */
#include "frontend-glue/device_calls/math_dnn.h"

#include "frontend-glue/device_calls/math_descriptors.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BAD_PARAM     2000
#define NOT_SUPPORTED 3000
#define NO_MEMORY     4003

/* cudnnBackendAttributeType_t */
#define TYPE_HANDLE     0
#define TYPE_BOOLEAN    2
#define TYPE_INT64      3
#define TYPE_POINTER    6
#define TYPE_DESCRIPTOR 15
#define TYPE_TEXT       24 /* a plan that was kept elsewhere: nobody knows what is in it */
/* cudnnBackendAttributeName_t */
#define TENSOR_NUMBER   906
#define TENSOR_BY_VALUE 908
#define PACK_NUMBERS    1000
#define PACK_ADDRESSES  1001
#define PACK_WORKSPACE  1003
/* cudnnBackendDescriptorType_t */
#define PACK 16

#define BY_VALUE 32u /* tensors of that kind in one descriptor, at most */
#define BUCKETS  4096u

struct graph_part {
    struct graph_part *next;
    uint64_t descriptor;
    int64_t number; /* of a tensor */
    bool numbered, by_value;
    unsigned count;
    int64_t values[BY_VALUE]; /* numbers of those in it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_part *buckets[BUCKETS];

/* Locked. The place of its pointer. */
static struct graph_part **place_of(uint64_t descriptor)
{
    struct graph_part **at = &buckets[(descriptor >> 4 ^ descriptor >> 16) % BUCKETS];
    while (*at && (*at)->descriptor != descriptor)
        at = &(*at)->next;
    return at;
}

/* Locked. NULL: no memory. */
static struct graph_part *part_of(uint64_t descriptor)
{
    struct graph_part **at = place_of(descriptor);
    if (!*at && (*at = calloc(1, sizeof(**at))))
        (*at)->descriptor = descriptor;
    return *at;
}

/* Locked. False: there is no room. */
static bool add_value(struct graph_part *to, int64_t number)
{
    for (unsigned i = 0; i < to->count; i++)
        if (to->values[i] == number)
            return true;
    if (to->count == BY_VALUE)
        return false;
    to->values[to->count++] = number;
    return true;
}

/* Locked. What is in the one is in the other. */
static bool add_all(struct graph_part *to, const struct graph_part *from)
{
    bool good = !from || !from->by_value || !from->numbered || add_value(to, from->number);
    for (unsigned i = 0; from && good && i < from->count; i++)
        good = add_value(to, from->values[i]);
    return good;
}

static uint64_t element(const void *array, size_t i)
{
    uint64_t value;
    memcpy(&value, (const uint8_t *)array + 8 * i, sizeof(value));
    return value;
}

/* ------------------------------------------------------------------------------- attributes */

static bool names_own(struct copies *x, int type, const void *array, uint64_t count)
{
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(
        IBX_HANDLE_MATH + (type == TYPE_HANDLE ? IBX_MATH_DNN : IBX_MATH_GRAPH));
    for (uint64_t i = 0; array && i < count; i++)
        if (!ibx_handles_know(x, kind, element(array, i)))
            return false;
    return true;
}

/* Before the library has them: what they bring is in the descriptor even if it refuses them. */
static int take_descriptors(uint64_t descriptor, const void *array, uint64_t count)
{
    pthread_mutex_lock(&lock);
    struct graph_part *to = part_of(descriptor);
    bool good = to;
    for (uint64_t i = 0; array && good && i < count; i++)
        good = add_all(to, *place_of(element(array, i)));
    pthread_mutex_unlock(&lock);
    return good ? 0 : to ? NOT_SUPPORTED : NO_MEMORY;
}

/* A tensor's number, and whether it is by value. */
static int take_tensor(uint64_t descriptor, int name, int type, uint64_t count, const void *array)
{
    const bool number = name == TENSOR_NUMBER;
    if (!array || count != 1 || type != (number ? TYPE_INT64 : TYPE_BOOLEAN))
        return BAD_PARAM;
    pthread_mutex_lock(&lock);
    struct graph_part *part = part_of(descriptor);
    if (part && number) {
        part->number = (int64_t)element(array, 0);
        part->numbered = true;
    } else if (part) {
        part->by_value = *(const uint8_t *)array;
    }
    pthread_mutex_unlock(&lock);
    return part ? 0 : NO_MEMORY;
}

int ibx_dnn_check(struct copies *x, const struct ibx_math_function *f,
                  const union ibx_math_value *values)
{
    const bool sets = f->number == IBX_MATH_cudnnBackendSetAttribute;
    if (f->number == IBX_MATH_cudnnBackendCreateDescriptor)
        return values[0].i == PACK ? NOT_SUPPORTED : 0;
    if (!sets && f->number != IBX_MATH_cudnnBackendGetAttribute)
        return 0;
    const int name = values[1].i, type = values[2].i;
    const uint64_t descriptor = (uintptr_t)values[0].p, count = values[3].l;
    const void *array = values[sets ? 4 : 5].p;
    if (type == TYPE_POINTER || (sets && type == TYPE_TEXT))
        return NOT_SUPPORTED;
    if ((type == TYPE_HANDLE || type == TYPE_DESCRIPTOR) && (sets || type == TYPE_DESCRIPTOR) &&
        !names_own(x, type, array, count))
        return BAD_PARAM;
    if (sets && type == TYPE_DESCRIPTOR)
        return take_descriptors(descriptor, array, count);
    if (sets && (name == TENSOR_NUMBER || name == TENSOR_BY_VALUE))
        return take_tensor(descriptor, name, type, count, array);
    return 0;
}

/* What a descriptor gives is as it is: configurations of an engine, of a graph. */
void ibx_dnn_done(const struct ibx_math_function *f, const union ibx_math_value *values)
{
    if (f->number == IBX_MATH_cudnnBackendDestroyDescriptor)
        ibx_dnn_ended((uintptr_t)values[0].p);
    if (f->number != IBX_MATH_cudnnBackendGetAttribute || values[2].i != TYPE_DESCRIPTOR ||
        !values[5].p)
        return;
    pthread_mutex_lock(&lock);
    const struct graph_part *from = *place_of((uintptr_t)values[0].p);
    for (uint64_t i = 0; from && from->count && i < values[3].l; i++) {
        struct graph_part *to = part_of(element(values[5].p, i));
        if (to)
            add_all(to, from);
    }
    pthread_mutex_unlock(&lock);
}

void ibx_dnn_ended(uint64_t descriptor)
{
    pthread_mutex_lock(&lock);
    struct graph_part **at = place_of(descriptor), *part = *at;
    if (part)
        *at = part->next;
    pthread_mutex_unlock(&lock);
    free(part);
}

/* ------------------------------------------------------------------------------- plans */

static bool is_by_value(const struct graph_part *part, int64_t number)
{
    for (unsigned i = 0; part && i < part->count; i++)
        if (part->values[i] == number)
            return true;
    return false;
}

/* Where each tensor is: its value in the request, or the client's memory. False: it is neither. */
static bool find_tensors(struct copies *x, const union ibx_math_value *values, void **tensors)
{
    const uint8_t *has = values[7].p;
    uint8_t *bytes = values[6].p;
    bool good = true;
    pthread_mutex_lock(&lock);
    const struct graph_part *part = *place_of((uintptr_t)values[1].p);
    for (int i = 0; good && i < values[2].i; i++) {
        const uint64_t at = element(values[5].p, (size_t)i);
        if (is_by_value(part, (int64_t)element(values[4].p, (size_t)i))) {
            good = has[i];
            tensors[i] = bytes + 8 * i;
        } else {
            good = !at || (ibx_isolation_allows(x, at, 1) && !ibx_copies_is_own(x, at, 1));
            tensors[i] = (void *)(uintptr_t)at;
        }
    }
    pthread_mutex_unlock(&lock);
    return good;
}

/* Functions of the library's; NULL: it has none of that name. */
struct library {
    int (*create)(int type, void **made);
    int (*destroy)(void *descriptor);
    int (*set)(void *descriptor, int name, int type, int64_t count, const void *array);
    int (*finalize)(void *descriptor);
};

static bool find_library(struct library *l)
{
    *(void **)&l->create =
        ibx_math_function_of(ibx_math_find(IBX_MATH_cudnnBackendCreateDescriptor));
    *(void **)&l->destroy =
        ibx_math_function_of(ibx_math_find(IBX_MATH_cudnnBackendDestroyDescriptor));
    *(void **)&l->set = ibx_math_function_of(ibx_math_find(IBX_MATH_cudnnBackendSetAttribute));
    *(void **)&l->finalize = ibx_math_function_of(ibx_math_find(IBX_MATH_cudnnBackendFinalize));
    return l->create && l->destroy && l->set && l->finalize;
}

int ibx_dnn_execute(struct copies *x, void *function, const union ibx_math_value *values)
{
    int (*execute)(void *handle, void *plan, void *pack) = NULL;
    struct library l;
    void *tensors[IBX_MATH_BODY / 8], *pack = NULL;
    const int64_t count = values[2].i;
    *(void **)&execute = function;
    if (count <= 0 || count > (int64_t)(sizeof(tensors) / sizeof(tensors[0])) ||
        !find_tensors(x, values, tensors))
        return BAD_PARAM;
    if (!find_library(&l))
        return NOT_SUPPORTED;
    int status = l.create(PACK, &pack);
    if (status)
        return status;
    status = l.set(pack, PACK_ADDRESSES, TYPE_POINTER, count, tensors);
    if (!status)
        status = l.set(pack, PACK_NUMBERS, TYPE_INT64, count, values[4].p);
    if (!status)
        status = l.set(pack, PACK_WORKSPACE, TYPE_POINTER, 1, &values[3].p);
    if (!status)
        status = l.finalize(pack);
    if (!status)
        status = execute(values[0].p, values[1].p, pack);
    l.destroy(pack);
    return status;
}
