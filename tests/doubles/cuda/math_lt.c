/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A double of cuBLASLt, as far as tests call it. Descriptors are in the caller's memory, and
 * addresses in them are used without a check. Matrices are of floats, stored by columns.
 */
#include "tests/doubles/cuda/math_handles.h"

#define INVALID_VALUE    7
#define EXECUTION_FAILED 13
#define NOT_SUPPORTED    15
#define ALLOC_FAILED     3
#define ALGORITHM        0xa190u /* and its number, of those that are some */
#define ALGORITHMS       140     /* that a search finds */

struct layout {
    unsigned mark;
    int type, order, batch;
    uint64_t rows, columns;
    int64_t pitch, stride;
};

struct matmul {
    unsigned mark;
    int compute, scale, mode, transposes_a, epilogue;
    float *bias;
    char *emulation; /* memory of the host */
    unsigned char fast;
};

struct transform {
    unsigned mark;
    int scale, mode, transposes_a;
};

struct preference {
    unsigned mark;
    int search;
    uint64_t workspace;
};

struct algorithm {
    uint64_t id, tile, others[6];
};

struct found {
    struct algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

EXPORT int cublasLtCreate(struct handle **made)
{
    return math_make(made);
}

EXPORT int cublasLtDestroy(struct handle *h)
{
    return math_end(h);
}

EXPORT int cublasLtGetProperty(int which, int *value)
{
    *value = which == 0 ? 13 : which == 1 ? 2 : 5;
    return which < 0 || which > 2 ? INVALID_VALUE : 0;
}

/* ------------------------------------------------------------------------------- descriptors */

EXPORT int cublasLtMatrixLayoutInit_internal(struct layout *l, size_t n, int type, uint64_t rows,
                                             uint64_t columns, int64_t pitch)
{
    if (n < sizeof(*l))
        return ALLOC_FAILED;
    *l = (struct layout){
        .mark = 'l', .type = type, .rows = rows, .columns = columns, .pitch = pitch, .batch = 1};
    return 0;
}

static int take(void *to, const void *value, size_t n, size_t wanted)
{
    if (n != wanted)
        return INVALID_VALUE;
    memcpy(to, value, n);
    return 0;
}

EXPORT int cublasLtMatrixLayoutSetAttribute(struct layout *l, int attribute, const void *value,
                                            size_t n)
{
    switch (attribute) {
    case 1:
        return take(&l->order, value, n, 4);
    case 5:
        return take(&l->batch, value, n, 4);
    case 6:
        return take(&l->stride, value, n, 8);
    default:
        return INVALID_VALUE;
    }
}

EXPORT int cublasLtMatmulDescInit_internal(struct matmul *m, size_t n, int compute, int scale)
{
    if (n < sizeof(*m))
        return ALLOC_FAILED;
    *m = (struct matmul){.mark = 'm', .compute = compute, .scale = scale, .epilogue = 1};
    return 0;
}

EXPORT int cublasLtMatmulDescSetAttribute(struct matmul *m, int attribute, const void *value,
                                          size_t n)
{
    void *unused;
    switch (attribute) {
    case 2:
        return take(&m->mode, value, n, 4);
    case 3:
        return take(&m->transposes_a, value, n, 4);
    case 7:
        return take(&m->epilogue, value, n, 4);
    case 8:
        return take(&m->bias, value, n, 8);
    case 17:
        return take(&unused, value, n, 8);
    case 25:
        return take(&m->fast, value, n, 1);
    case 38:
        return take(&m->emulation, value, n, 8);
    default:
        return INVALID_VALUE;
    }
}

EXPORT int cublasLtMatrixTransformDescInit_internal(struct transform *t, size_t n, int scale)
{
    if (n < sizeof(*t))
        return ALLOC_FAILED;
    *t = (struct transform){.mark = 't', .scale = scale};
    return 0;
}

EXPORT int cublasLtMatrixTransformDescSetAttribute(struct transform *t, int attribute,
                                                   const void *value, size_t n)
{
    return attribute == 1   ? take(&t->mode, value, n, 4)
           : attribute == 2 ? take(&t->transposes_a, value, n, 4)
                            : INVALID_VALUE;
}

EXPORT int cublasLtMatmulPreferenceInit_internal(struct preference *p, size_t n)
{
    if (n < sizeof(*p))
        return ALLOC_FAILED;
    *p = (struct preference){.mark = 'p'};
    return 0;
}

EXPORT int cublasLtMatmulPreferenceSetAttribute(struct preference *p, int attribute,
                                                const void *value, size_t n)
{
    return attribute == 0   ? take(&p->search, value, n, 4)
           : attribute == 1 ? take(&p->workspace, value, n, 8)
                            : INVALID_VALUE;
}

/* ------------------------------------------------------------------------------- work */

static float *at(const void *first, const struct layout *l, uint64_t row, uint64_t column)
{
    return math_nth(first, row + column * (uint64_t)l->pitch, 1, sizeof(float));
}

static int is_layout(const struct layout *l)
{
    return l && l->mark == 'l' && !l->type && !l->order && l->rows <= 16 && l->columns <= 16;
}

/* Reads alpha and beta, float or double; false: they cannot be read. */
static int scalars(int mode, int type, const void *alpha, const void *beta, double values[2])
{
    const void *const from[] = {alpha, beta};
    for (int i = 0; i < 2; i++) {
        const int device = mode == 1 || mode == 2 || (mode >= 3 && !i);
        double value = 0;
        float single = 0;
        void *to = type ? (void *)&value : &single;
        const size_t n = type ? sizeof(value) : sizeof(single);
        if (device && !math_get(to, from[i], n))
            return 0;
        if (!device && !(mode == 3 && i))
            memcpy(to, from[i], n);
        values[i] = type ? value : (double)single;
    }
    return 1;
}

static int product(const struct matmul *m, const double by[2], const float *a,
                   const struct layout *al, const float *b, const struct layout *bl, const float *c,
                   const struct layout *cl, float *d, const struct layout *dl)
{
    for (uint64_t row = 0; row < dl->rows; row++) {
        for (uint64_t column = 0; column < dl->columns; column++) {
            float x, y, bias = 0, old = 0;
            double sum = 0;
            for (uint64_t k = 0; k < bl->rows; k++) {
                const float *from = m->transposes_a ? at(a, al, k, row) : at(a, al, row, k);
                if (!math_get(&x, from, sizeof(x)) ||
                    !math_get(&y, at(b, bl, k, column), sizeof(y)))
                    return EXECUTION_FAILED;
                sum += (double)x * (double)y;
            }
            if ((by[1] != 0 && !math_get(&old, at(c, cl, row, column), sizeof(old))) ||
                (m->epilogue & 4 && !math_get(&bias, m->bias + row, sizeof(bias))))
                return EXECUTION_FAILED;
            const float value = (float)(by[0] * sum + by[1] * (double)old + (double)bias);
            if (!math_put(at(d, dl, row, column), &value, sizeof(value)))
                return EXECUTION_FAILED;
        }
    }
    return 0;
}

EXPORT int cublasLtMatmul(const struct handle *h, const struct matmul *m, const void *alpha,
                          const float *a, const struct layout *al, const float *b,
                          const struct layout *bl, const void *beta, const float *c,
                          const struct layout *cl, float *d, const struct layout *dl,
                          const struct algorithm *algorithm, void *workspace, size_t size,
                          void *stream)
{
    const struct handle of = {.stream = stream};
    double by[2];
    char byte = 0;
    (void)h->seed;
    if (!m || m->mark != 'm' || !is_layout(al) || !is_layout(bl) || !is_layout(cl) ||
        !is_layout(dl) || m->mode < 0 || m->mode > 4 || (m->scale != 0 && m->scale != 1))
        return INVALID_VALUE;
    if (m->emulation && *m->emulation)
        return NOT_SUPPORTED;
    if (algorithm && algorithm->id >> 8 != ALGORITHM >> 8)
        return INVALID_VALUE;
    if ((size && !math_get(&byte, workspace, 1)) || math_wait(&of) ||
        !scalars(m->mode, m->scale, alpha, beta, by))
        return EXECUTION_FAILED;
    return product(m, by, a, al, b, bl, c, cl, d, dl);
}

EXPORT int cublasLtMatrixTransform(const struct handle *h, const struct transform *t,
                                   const void *alpha, const float *a, const struct layout *al,
                                   const void *beta, const float *b, const struct layout *bl,
                                   float *c, const struct layout *cl, void *stream)
{
    const struct handle of = {.stream = stream};
    double by[2];
    (void)h->seed;
    if (!t || t->mark != 't' || !is_layout(al) || !is_layout(cl) || (b && !is_layout(bl)) ||
        t->mode < 0 || t->mode > 1 || (t->scale != 0 && t->scale != 1))
        return INVALID_VALUE;
    if (math_wait(&of) || !scalars(t->mode, t->scale, alpha, beta, by))
        return EXECUTION_FAILED;
    for (uint64_t i = 0; i < cl->rows * cl->columns; i++) {
        const uint64_t row = i % cl->rows, column = i / cl->rows;
        const float *from = t->transposes_a ? at(a, al, column, row) : at(a, al, row, column);
        float x, y = 0;
        if (!math_get(&x, from, sizeof(x)) || (b && !math_get(&y, at(b, bl, row, column), 4)))
            return EXECUTION_FAILED;
        const float value = (float)(by[0] * (double)x + by[1] * (double)y);
        if (!math_put(at(c, cl, row, column), &value, sizeof(value)))
            return EXECUTION_FAILED;
    }
    return 0;
}

/* ------------------------------------------------------------------------------- algorithms */

static atomic_int searches; /* so far; each result of a search says this number */

EXPORT int cublasLtMatmulAlgoGetHeuristic(const struct handle *h, const struct matmul *m,
                                          const struct layout *al, const struct layout *bl,
                                          const struct layout *cl, const struct layout *dl,
                                          const struct preference *p, int wanted,
                                          struct found *found, int *count)
{
    (void)h->seed;
    if (wanted <= 0 || !m || m->mark != 'm' || !is_layout(al) || !is_layout(bl) || !is_layout(cl) ||
        !is_layout(dl) || !p || p->mark != 'p')
        return INVALID_VALUE;
    searches++;
    for (*count = 0; *count < wanted && *count < ALGORITHMS; ++*count)
        found[*count] = (struct found){.algorithm = {.id = ALGORITHM + (unsigned)*count},
                                       .workspace = p->workspace,
                                       .waves = 1.5F,
                                       .reserved = {searches}};
    return 0;
}

EXPORT int cublasLtMatmulAlgoGetIds(const struct handle *h, int compute, int scale, int a, int b,
                                    int c, int d, int wanted, int *ids, int *count)
{
    (void)h->seed, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    for (*count = 0; *count < wanted && *count < 3; ++*count)
        ids[*count] = *count + 7;
    return wanted <= 0 ? INVALID_VALUE : 0;
}

EXPORT int cublasLtMatmulAlgoInit(const struct handle *h, int compute, int scale, int a, int b,
                                  int c, int d, int id, struct algorithm *algorithm)
{
    (void)h->seed, (void)compute, (void)scale, (void)a, (void)b, (void)c, (void)d;
    *algorithm = (struct algorithm){.id = ALGORITHM + (unsigned)id};
    return id < 0 || id > 15 ? INVALID_VALUE : 0;
}

EXPORT int cublasLtMatmulAlgoCheck(const struct handle *h, const struct matmul *m,
                                   const struct layout *al, const struct layout *bl,
                                   const struct layout *cl, const struct layout *dl,
                                   const struct algorithm *algorithm, struct found *result)
{
    (void)h->seed;
    if (!m || m->mark != 'm' || !is_layout(al) || !is_layout(bl) || !is_layout(cl) ||
        !is_layout(dl) || !algorithm || !result)
        return INVALID_VALUE;
    result->workspace = 11;
    result->waves = 2.5F;
    result->state = 0;
    return algorithm->id >> 8 == ALGORITHM >> 8 ? 0 : NOT_SUPPORTED;
}

/* Attribute 6 has 600 numbers, the others one. */
EXPORT int cublasLtMatmulAlgoCapGetAttribute(const struct algorithm *algorithm, int attribute,
                                             unsigned *value, size_t n, size_t *written)
{
    const size_t wanted = attribute == 6 ? 2400 : 4;
    if (!algorithm || attribute < 0 || attribute > 22 || (n ? !value : !written))
        return INVALID_VALUE;
    for (size_t i = 0; i < n / 4 && i < wanted / 4; i++)
        value[i] = (unsigned)(attribute * 1000 + (int)i);
    if (written)
        *written = n && n < wanted ? n : wanted;
    return 0;
}

EXPORT int cublasLtMatmulAlgoConfigSetAttribute(struct algorithm *algorithm, int attribute,
                                                const void *value, size_t n)
{
    return attribute == 1 && algorithm && value ? take(&algorithm->tile, value, n, 4)
                                                : INVALID_VALUE;
}

EXPORT int cublasLtMatmulAlgoConfigGetAttribute(const struct algorithm *algorithm, int attribute,
                                                void *value, size_t n, size_t *written)
{
    if (attribute != 1 || !algorithm || (n && (!value || n != 4)) || (!n && !written))
        return INVALID_VALUE;
    if (n)
        memcpy(value, &algorithm->tile, n);
    if (written)
        *written = 4;
    return 0;
}
