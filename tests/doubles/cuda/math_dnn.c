/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of cuDNN's handles, tensors and graphs, as far as tests call them. A plan writes tensor
 * 1 times tensor 3, which is passed by value, to tensor 2: COUNT floats. */
#include "tests/doubles/cuda/math_handles.h"

#define BAD_PARAM     2000
#define NOT_FINALIZED 2004
#define NOT_SUPPORTED 3000
#define COUNT         4
#define DIMENSIONS    8
#define MOST          256 /* tensors */
enum { PACK = 16 };
enum { NUMBERS = 1000, ADDRESSES };
enum { TYPE_INT64 = 3, TYPE_POINTER = 6, TYPE_DESCRIPTOR = 15 };

struct descriptor {
    int type, final;
    int64_t children, numbers, addresses;
    int64_t number[MOST];
    void *address[MOST];
};

EXPORT int cudnnGetProperty(int type, int *value)
{
    *value = 9 - type;
    return 0;
}

EXPORT int cudnnCreate(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroy(struct handle *h)
{
    return math_end(h);
}

EXPORT int cudnnSetStream(struct handle *h, void *stream)
{
    h->stream = stream;
    return 0;
}

EXPORT int cudnnCreateTensorDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyTensorDescriptor(struct handle *h)
{
    return h ? math_end(h) : 0;
}

EXPORT int cudnnCreateFilterDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyFilterDescriptor(struct handle *h)
{
    return math_end(h);
}

EXPORT int cudnnCreateConvolutionDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyConvolutionDescriptor(struct handle *h)
{
    return math_end(h);
}

EXPORT int cudnnSetTensorNdDescriptor(struct handle *h, int type, int n, const int *sizes,
                                      const int *steps)
{
    if (n > DIMENSIONS)
        return NOT_SUPPORTED;
    h->seed = (unsigned)type;
    for (int i = 0; i < n; i++)
        h->seed = h->seed * 10 + (unsigned)sizes[i] + (unsigned)steps[i];
    return 0;
}

EXPORT int cudnnGetTensorSizeInBytes(const struct handle *h, size_t *n)
{
    *n = h->seed;
    return 0;
}

/* As cuDNN, it writes all results that there are if it is asked for -1. */
EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(const struct handle *h, const struct handle *from,
                                                  const struct handle *filter,
                                                  const struct handle *convolution,
                                                  const struct handle *to, int asked, int *n,
                                                  uint8_t (*results)[48])
{
    const int all = 8;
    (void)h, (void)from, (void)filter, (void)convolution, (void)to;
    *n = asked < 0 || asked > all ? all : asked;
    for (int i = 0; i < *n; i++)
        memset(results[i], i + 1, sizeof(results[i]));
    return 0;
}

/* Answers with as many dimensions as there are handles, of all kinds. */
EXPORT int cudnnGetTensorNdDescriptor(const struct handle *h, int most, int *type, int *n,
                                      int *sizes, int *steps)
{
    *type = (int)h->seed;
    *n = (int)atomic_load(&math_handles);
    for (int i = 0; i < most; i++)
        sizes[i] = steps[i] = most;
    return 0;
}

EXPORT int cudnnCreateRNNDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyRNNDescriptor(struct handle *h)
{
    return math_end(h);
}

EXPORT int cudnnCreateDropoutDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyDropoutDescriptor(struct handle *h)
{
    return math_end(h);
}

EXPORT int cudnnSetDropoutDescriptor(struct handle *d, struct handle *h, float part, void *states,
                                     size_t n, unsigned long long seed)
{
    (void)h, (void)states, (void)n, (void)seed;
    return math_alone(&d->users) && part <= 1 ? 0 : BAD_PARAM;
}

EXPORT int cudnnCreateRNNDataDescriptor(struct handle **made)
{
    return math_make(made);
}

EXPORT int cudnnDestroyRNNDataDescriptor(struct handle *h)
{
    return math_end(h);
}

/* Keeps all arguments. */
EXPORT int cudnnSetRNNDataDescriptor(struct handle *h, int type, int layout, int longest, int batch,
                                     int vector, const int *lengths, const float *fill)
{
    (void)type, (void)layout, (void)longest, (void)vector, (void)fill;
    h->seed = 0;
    for (int i = 0; i < batch; i++)
        h->seed += (unsigned)lengths[i];
    return 0;
}

EXPORT int cudnnGetRNNTempSpaceSizes(const struct handle *h, const struct handle *of, int mode,
                                     const struct handle *data, size_t *work, size_t *reserve)
{
    (void)h, (void)of, (void)mode;
    *work = *reserve = data->seed;
    return 0;
}

/* Keeps the address of its dropout descriptor. A negative size is refused. */
EXPORT int cudnnSetRNNDescriptor_v8(struct handle *h, int algorithm, int cell, int bias,
                                    int direction, int input, int type, int precision, int math,
                                    int size, int hidden, int projected, int layers,
                                    struct handle *dropout, unsigned more)
{
    (void)algorithm, (void)cell, (void)bias, (void)direction, (void)input, (void)type;
    (void)precision, (void)math, (void)hidden, (void)projected, (void)layers, (void)more;
    if (size < 0)
        return BAD_PARAM;
    h->workspace = dropout;
    h->processors = size;
    return 0;
}

EXPORT int cudnnGetRNNWeightSpaceSize(const struct handle *h, const struct handle *rnn, size_t *n)
{
    const struct handle *dropout = rnn->workspace;
    (void)h;
    *n = dropout ? dropout->seed + (size_t)rnn->processors : 0;
    return 0;
}

/* Of each of its two answers a half may be unwanted. */
EXPORT int cudnnGetRNNWeightParams(const struct handle *h, const struct handle *of, int layer,
                                   size_t n, char *weights, int number, const struct handle *matrix,
                                   void **matrix_at, const struct handle *bias, void **bias_at)
{
    (void)h, (void)of, (void)layer;
    if (!matrix != !matrix_at || !bias != !bias_at)
        return BAD_PARAM;
    if (matrix_at)
        *matrix_at = weights + number;
    if (bias_at)
        *bias_at = weights + n;
    return 0;
}

/* alpha + beta, where a double of 0 may be a float. */
EXPORT int cudnnAddTensor(const struct handle *h, const float *alpha, const struct handle *of,
                          const void *from, const double *beta, const struct handle *to, float *at)
{
    const float sum = *alpha + (float)*beta;
    (void)of, (void)from, (void)to;
    return math_wait(h) || !math_put(at, &sum, sizeof(sum)) ? 5000 : 0;
}

EXPORT int cudnnBackendCreateDescriptor(int type, struct descriptor **made)
{
    *made = calloc(1, sizeof(**made));
    (*made)->type = type;
    math_handles++;
    return 0;
}

EXPORT int cudnnBackendDestroyDescriptor(struct descriptor *d)
{
    free(d);
    math_handles--;
    return 0;
}

EXPORT int cudnnBackendSetAttribute(struct descriptor *d, int name, int type, int64_t n,
                                    const void *array)
{
    if (n > MOST || d->final)
        return BAD_PARAM;
    if (type == TYPE_DESCRIPTOR)
        d->children += n;
    if (name == NUMBERS && type == TYPE_INT64)
        memcpy(d->number, array, 8 * (size_t)(d->numbers = n));
    if (name == ADDRESSES && type == TYPE_POINTER)
        memcpy(d->address, array, 8 * (size_t)(d->addresses = n));
    return 0;
}

/* The descriptors in the array get as many children as this one has. */
EXPORT int cudnnBackendGetAttribute(const struct descriptor *d, int name, int type, int64_t n,
                                    int64_t *written, void *array)
{
    struct descriptor **all = array;
    (void)name;
    if (written)
        *written = d->children;
    if (type == TYPE_INT64 && array && n == 1)
        memcpy(array, &d->children, 8);
    for (int64_t i = 0; type == TYPE_DESCRIPTOR && array && i < n; i++)
        all[i]->children = d->children;
    return 0;
}

EXPORT int cudnnBackendFinalize(struct descriptor *d)
{
    d->final = 1;
    return 0;
}

static void *tensor(const struct descriptor *pack, int64_t number)
{
    for (int i = 0; i < pack->numbers && i < pack->addresses; i++)
        if (pack->number[i] == number)
            return pack->address[i];
    return NULL;
}

EXPORT int cudnnBackendExecute(const struct handle *h, const struct descriptor *plan,
                               const struct descriptor *pack)
{
    float values[COUNT], by;
    const void *scale = tensor(pack, 3);
    if (pack->type != PACK || !plan->final || !pack->final)
        return NOT_FINALIZED;
    if (math_wait(h) || !scale || !math_get(values, tensor(pack, 1), sizeof(values)))
        return BAD_PARAM;
    memcpy(&by, scale, sizeof(by));
    for (int i = 0; i < COUNT; i++)
        values[i] *= by;
    return math_put(tensor(pack, 2), values, sizeof(values)) ? 0 : BAD_PARAM;
}
