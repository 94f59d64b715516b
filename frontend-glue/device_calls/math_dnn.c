/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Graphs of cuDNN (cudnnBackend*). A descriptor's attributes may be other descriptors and handles:
 * these have to be the client's. A tensor may be passed by value: the library reads it from host
 * memory at the address that it is given. So this file notes which tensors by value each descriptor
 * has. When a plan runs, these get the value in the request, and all other tensors get device
 * addresses that the client may name. The program's variant pack, which has the addresses, is made
 * here for one call.
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
#define TYPE_DATA       1
#define TYPE_BOOLEAN    2
#define TYPE_INT64      3
#define TYPE_POINTER    6
#define TYPE_DESCRIPTOR 15
#define TYPE_TEXT       24 /* a serialized plan: its contents are not known */
/* cudnnBackendAttributeName_t */
#define TENSOR_TYPE     901
#define TENSOR_SIZES    902
#define TENSOR_NUMBER   906
#define TENSOR_BY_VALUE 908
#define PACK_NUMBERS    1000
#define PACK_ADDRESSES  1001
#define PACK_WORKSPACE  1003
/* cudnnBackendDescriptorType_t */
#define PACK 16

#define BY_VALUE 32u /* most tensors by value in one descriptor */
#define LONGEST  8   /* most bytes of a value */
#define BUCKETS  4096u

struct graph_part {
    struct graph_part *next;
    uint64_t descriptor;
    /* OF_ANOTHER: nothing more can be added. FILLED: the library has written another one's content
     * into it, which is not known here. */
    enum { PART_OPEN, PART_OF_ANOTHER, PART_FILLED } state;
    /* Of a tensor, as the library has taken it. */
    int64_t number, elements, bytes; /* bytes of each element; 0: not set */
    bool numbered, by_value;
    unsigned count;
    int64_t values[BY_VALUE]; /* the numbers of tensors by value in it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_part *buckets[BUCKETS];

/* Locked. Where the pointer to it is in its bucket. */
static struct graph_part **place_of(uint64_t descriptor)
{
    struct graph_part **at = &buckets[(descriptor >> 4 ^ descriptor >> 16) % BUCKETS];
    while (*at && (*at)->descriptor != descriptor)
        at = &(*at)->next;
    return at;
}

/* Locked. What is known of the descriptor, made if there is none; NULL: no memory. */
static struct graph_part *part_of(uint64_t descriptor)
{
    struct graph_part **at = place_of(descriptor);
    if (!*at && (*at = calloc(1, sizeof(**at))))
        (*at)->descriptor = descriptor;
    return *at;
}

/* Locked. Adds a tensor by value. False: there is no room, or nothing can be added any more. */
static bool add_value(struct graph_part *to, int64_t number)
{
    for (unsigned i = 0; i < to->count; i++)
        if (to->values[i] == number)
            return true;
    if (to->count == BY_VALUE || to->state == PART_OF_ANOTHER)
        return false;
    to->values[to->count++] = number;
    return true;
}

/* Locked. Adds all tensors by value of one to the other. For a longer tensor the library would read
 * beyond its value. */
static bool add_all(struct graph_part *to, const struct graph_part *from)
{
    bool good = true;
    if (from && from->by_value)
        good = from->numbered && from->elements <= 1 && from->bytes <= LONGEST &&
               add_value(to, from->number);
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

/* Whether the client may name all these descriptors or handles; those that the call fills are held
 * alone. */
static bool names_own(struct gpu_session *x, int type, uint64_t descriptor, const void *array,
                      uint64_t count, bool fills)
{
    const enum ibx_handle_kind kind = (enum ibx_handle_kind)(
        IBX_HANDLE_MATH + (type == TYPE_HANDLE ? IBX_MATH_DNN : IBX_MATH_GRAPH));
    for (uint64_t i = 0; array && i < count; i++) {
        const uint64_t other = element(array, i);
        if (other == descriptor ||
            !(fills ? ibx_handles_change(x, kind, other) : ibx_handles_know(x, kind, other)))
            return false;
    }
    return true;
}

/* To be called before the library gets descriptors, or fills them (such as an engine's
 * configurations, from a graph). Notes the tensors by value that the receiving descriptor gets by
 * that, even if the library then refuses it. If there is no room for the note, the call is not
 * made. */
static int take_descriptors(uint64_t descriptor, const void *array, uint64_t count, bool fills)
{
    pthread_mutex_lock(&lock);
    struct graph_part *one = part_of(descriptor);
    bool memory = one, good = one;
    for (uint64_t i = 0; array && good && i < count; i++) {
        struct graph_part *other = part_of(element(array, i));
        memory = other;
        good = other && (fills ? add_all(other, one) : add_all(one, other));
    }
    pthread_mutex_unlock(&lock);
    return good ? 0 : memory ? NOT_SUPPORTED : NO_MEMORY;
}

/* Bytes of an element, by cudnnDataType_t. */
static int64_t bytes_of(uint32_t type)
{
    static const uint8_t bytes[] = {4, 8, 2, 1, 4, 4, 1, 4, 32, 2, 8, 1, 1, 1, 1, 1, 1, 1, 1, 4};
    return type < sizeof(bytes) ? bytes[type] : LONGEST + 1;
}

/* The type of a tensor's attribute; -1: it is none that matters here. */
static int type_of_tensors(int name)
{
    return name == TENSOR_NUMBER || name == TENSOR_SIZES ? TYPE_INT64
           : name == TENSOR_BY_VALUE                     ? TYPE_BOOLEAN
           : name == TENSOR_TYPE                         ? TYPE_DATA
                                                         : -1;
}

/* To be called before the call: makes sure that take_tensor() can note the attribute. */
static int may_take_tensor(uint64_t descriptor, int name, int type, uint64_t count,
                           const void *array)
{
    if (!array || (count != 1 && name != TENSOR_SIZES) || type != type_of_tensors(name))
        return BAD_PARAM;
    pthread_mutex_lock(&lock);
    const struct graph_part *part = part_of(descriptor);
    const bool open = part && part->state == PART_OPEN;
    pthread_mutex_unlock(&lock);
    return open ? 0 : part ? BAD_PARAM : NO_MEMORY;
}

static int64_t product(const void *array, uint64_t count)
{
    int64_t n = 1;
    for (uint64_t i = 0; i < count; i++)
        if ((int64_t)element(array, i) != 1)
            n = 2; /* or more, which makes no difference */
    return n;
}

/* To be called after the call, which fails for a tensor that is finalized: notes its attribute. */
static void take_tensor(uint64_t descriptor, int name, uint64_t count, const void *array)
{
    uint32_t type = 0;
    pthread_mutex_lock(&lock);
    struct graph_part *part = *place_of(descriptor);
    if (part && name == TENSOR_NUMBER) {
        part->number = (int64_t)element(array, 0);
        part->numbered = true;
    } else if (part && name == TENSOR_BY_VALUE) {
        part->by_value = *(const uint8_t *)array;
    } else if (part && name == TENSOR_SIZES) {
        part->elements = product(array, count);
    } else if (part) {
        memcpy(&type, array, sizeof(type));
        part->bytes = bytes_of(type);
    }
    pthread_mutex_unlock(&lock);
}

/* Another descriptor has got them: nothing more can be added to them. */
static void are_of_another(const void *array, uint64_t count)
{
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; array && i < count; i++) {
        struct graph_part *part = *place_of(element(array, i));
        if (part)
            part->state = PART_OF_ANOTHER;
    }
    pthread_mutex_unlock(&lock);
}

/* The library has filled these. If they are tensors, what was set before is set no more, and
 * nothing can be set in them: it would not be known of how many bytes a tensor by value is. */
static void are_filled(const void *array, uint64_t count)
{
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; array && i < count; i++) {
        struct graph_part *part = *place_of(element(array, i));
        if (!part)
            continue;
        part->numbered = part->by_value = false;
        if (part->state == PART_OPEN)
            part->state = PART_FILLED;
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------- networks */

#define NETWORK    ((enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_RNN))
#define DROPOUT    ((enum ibx_handle_kind)(IBX_HANDLE_MATH + IBX_MATH_DROPOUT))
#define OF_NETWORK 13 /* the dropout, among what is said of a network */

/* The library keeps the address of a network's dropout descriptor, and uses it. While another one
 * is being set, it is not known which one is used. */
static int check_networks(struct gpu_session *x, const struct ibx_math_function *f,
                          const union ibx_math_value *values)
{
    if (f->number == IBX_MATH_cudnnSetRNNDescriptor_v8)
        ibx_handles_rely(x, NETWORK, (uintptr_t)values[0].p, DROPOUT, UINT64_MAX);
    else if (f->use != IBX_MATH_USE_ENDS)
        for (unsigned i = 0; i < f->count; i++)
            if (f->arguments[i].n == IBX_MATH_RNN && f->arguments[i].kind == IBX_MATH_OTHER &&
                !ibx_handles_may_rely(x, NETWORK, (uintptr_t)values[i].p, DROPOUT))
                return BAD_PARAM;
    return 0;
}

/* ------------------------------------------------------------------------------- all calls */

int ibx_dnn_check(struct gpu_session *x, const struct ibx_math_function *f,
                  const union ibx_math_value *values)
{
    const bool sets = f->number == IBX_MATH_cudnnBackendSetAttribute;
    if (f->number == IBX_MATH_cudnnBackendCreateDescriptor)
        return values[0].i == PACK ? NOT_SUPPORTED : 0;
    if (!sets && f->number != IBX_MATH_cudnnBackendGetAttribute)
        return check_networks(x, f, values);
    const int name = values[1].i, type = values[2].i;
    const uint64_t descriptor = (uintptr_t)values[0].p, count = values[3].l;
    const void *array = values[sets ? 4 : 5].p;
    if (type == TYPE_POINTER || (sets && type == TYPE_TEXT))
        return NOT_SUPPORTED;
    if (sets && !array && count)
        return BAD_PARAM;
    if ((type == TYPE_HANDLE || type == TYPE_DESCRIPTOR) && (sets || type == TYPE_DESCRIPTOR) &&
        !names_own(x, type, descriptor, array, count, !sets))
        return BAD_PARAM;
    if (type == TYPE_DESCRIPTOR)
        return take_descriptors(descriptor, array, count, !sets);
    if (sets && type_of_tensors(name) >= 0)
        return may_take_tensor(descriptor, name, type, count, array);
    return 0;
}

void ibx_dnn_done(struct gpu_session *x, const struct ibx_math_function *f,
                  const union ibx_math_value *values)
{
    if (f->number == IBX_MATH_cudnnSetRNNDescriptor_v8)
        ibx_handles_rely(x, NETWORK, (uintptr_t)values[0].p, DROPOUT,
                         (uintptr_t)values[OF_NETWORK].p);
    if (f->number == IBX_MATH_cudnnBackendGetAttribute && values[2].i == TYPE_DESCRIPTOR)
        are_filled(values[5].p, values[3].l);
    if (f->number != IBX_MATH_cudnnBackendSetAttribute)
        return;
    if (values[2].i == TYPE_DESCRIPTOR)
        are_of_another(values[4].p, values[3].l);
    else if (type_of_tensors(values[1].i) >= 0)
        take_tensor((uintptr_t)values[0].p, values[1].i, values[3].l, values[4].p);
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

/* How many tensors by value a plan has, and their numbers. While a request holds a plan, no other
 * request can add any. */
static unsigned values_of(uint64_t plan, int64_t numbers[BY_VALUE])
{
    pthread_mutex_lock(&lock);
    const struct graph_part *part = *place_of(plan);
    const unsigned count = part ? part->count : 0;
    if (part)
        memcpy(numbers, part->values, count * sizeof(numbers[0]));
    pthread_mutex_unlock(&lock);
    return count;
}

static bool is_among(const int64_t *numbers, unsigned count, int64_t number)
{
    unsigned i = 0;
    while (i < count && numbers[i] != number)
        i++;
    return i < count;
}

/* Finds the address of each tensor: its value in the request, or device memory that the client may
 * name. False: one has neither. Not locked, since finding whose memory it is may wait for others'
 * calls. */
static bool find_tensors(struct gpu_session *x, const union ibx_math_value *values, void **tensors)
{
    const uint8_t *has = values[7].p;
    uint8_t *bytes = values[6].p;
    int64_t by_value[BY_VALUE];
    const unsigned count = values_of((uintptr_t)values[1].p, by_value);
    bool good = true;
    for (int i = 0; good && i < values[2].i; i++) {
        const uint64_t at = element(values[5].p, (size_t)i);
        if (is_among(by_value, count, (int64_t)element(values[4].p, (size_t)i))) {
            good = has[i];
            tensors[i] = bytes + 8 * i;
        } else {
            good = !at || ibx_isolation_is_memory(x, at, 1);
            tensors[i] = (void *)(uintptr_t)at;
        }
    }
    return good;
}

/* Functions of the library; NULL: it has no such function. */
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

int ibx_dnn_execute(struct gpu_session *x, void *function, const union ibx_math_value *values)
{
    int (*execute)(void *handle, void *plan, void *pack) = NULL;
    struct library l;
    void *tensors[IBX_MATH_TENSORS], *pack = NULL;
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
