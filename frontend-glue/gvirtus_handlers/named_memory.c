/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which device memory GVirtuS's requests name, and where in their bodies. Bodies are read as the
 * handlers of the plugins cudart and cudadr read them, whatever else they hold. So all memory that
 * a body names to a handler is found here.
 */
#include "frontend-glue/gvirtus_handlers/named_memory.h"

#include "common/wire.h"
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "frontend-glue/session/extensions.h"

#include <string.h>

/* Where a value is in a body; 0: there is none. */
#define F(x) ((x) + 1)    /* from its first byte on */
#define E(x) (-(x))       /* before its end */
#define P(x) (1000 + (x)) /* behind the payload, whose length is at `payload` */
#define M(x) (2000 + (x)) /* behind the mark that D2H has in place of a host address */
#define S(x) (3000 + (x)) /* behind the two strings of a symbol, which begin at `payload` */

enum { ANY, H2D, D2H, D2D };

struct place {
    int at;                /* of the address */
    int n;                 /* bytes, or units; 0: 1 byte */
    int unit;              /* bytes of one; 0: 1 */
    int pitch, rows;       /* of 2D */
    int skip, skipped;     /* of 2D: bytes before each row, rows before the first */
    int reply, reply_rows; /* bytes that the handler makes for the reply; times that many */
    int type, type_wanted; /* the address counts if this i32 has that value */
    bool handle;           /* it is a handle, not memory */
    bool array;            /* it is the handle of an array */
    bool planes;           /* ibx_copy_planes_bytes() says how many bytes */
    int channel;           /* of a texture's element; n of these are in a row */
};

struct naming {
    const char *name;
    enum ibx_naming_role role;
    int kind, kind_at; /* the row counts for requests of this kind */
    int payload;
    uint64_t bad; /* an address that the call refuses */
    struct place places[IBX_NAMED_MAX];
};

#define AT(x)                                                                                      \
    {                                                                                              \
        .at = (x)                                                                                  \
    }
#define HANDLE(x)                                                                                  \
    {                                                                                              \
        .at = (x), .handle = true                                                                  \
    }
#define ARRAY(x)                                                                                   \
    {                                                                                              \
        .at = (x), .array = true                                                                   \
    }
#define RANGE(x, bytes)                                                                            \
    {                                                                                              \
        .at = (x), .n = (bytes)                                                                    \
    }
#define ROWS(x, bytes, p, r)                                                                       \
    {                                                                                              \
        .at = (x), .n = (bytes), .pitch = (p), .rows = (r)                                         \
    }
/* clang-format off */
#define COPY(calls, of_kind, where, ...) \
    {.name = (calls), .kind = (of_kind), .kind_at = (where), .places = {__VA_ARGS__}}
#define COPY_BEHIND(calls, of_kind, where, length_at, ...) \
    {.name = (calls), .kind = (of_kind), .kind_at = (where), .payload = (length_at), \
     .places = {__VA_ARGS__}}
/* CUDA frees NULL without an error, and crashes if an array does not exist, the driver's as well: a
 * graph, an event or memory in its place, or an array that is freed twice, ends the process. */
#define FREE(calls, instead) \
    {.name = (calls), .role = IBX_NAMING_FREES, .bad = (instead), .places = {AT(F(0))}}
#define FREE_ARRAY(calls) \
    {.name = (calls), .role = IBX_NAMING_FREES, .places = {ARRAY(F(0))}}
#define FREE_HANDLE(calls) \
    {.name = (calls), .role = IBX_NAMING_FREES, .places = {HANDLE(F(0))}}

static const struct naming namings[] = {
    COPY("cudaMemcpy", H2D, E(4), RANGE(F(0), E(12))),
    COPY("cudaMemcpy", D2H, E(4), {.at = M(0), .n = E(12), .reply = E(12)}),
    COPY("cudaMemcpy", D2D, E(4), RANGE(F(0), E(12)), RANGE(F(8), E(12))),
    COPY("cudaMemcpyAsync", H2D, E(12), RANGE(F(0), E(20))),
    COPY("cudaMemcpyAsync", D2H, E(12), {.at = M(0), .n = E(20), .reply = E(20)}),
    COPY("cudaMemcpyAsync", D2D, E(12), RANGE(F(0), E(20)), RANGE(F(8), E(20))),
    COPY_BEHIND("cudaMemcpy2D", H2D, E(4), 8, ROWS(F(0), P(16), P(0), P(24))),
    COPY("cudaMemcpy2D", D2H, E(4),
         {.at = M(0), .n = M(24), .pitch = M(16), .rows = M(32), .reply = M(8),
          .reply_rows = M(32)}),
    COPY("cudaMemcpy2D", D2D, E(4), ROWS(F(0), F(32), F(16), F(40)),
         ROWS(F(8), F(32), F(24), F(40))),
    COPY("cudaMemcpyToSymbol", D2D, E(4), RANGE(S(0), E(20))),
    COPY_BEHIND("cudaMemcpyFromSymbol", D2D, S(16), 8, RANGE(F(0), S(0))),
    /* It names no address of the device: what is at F(8) is the length of a string. */
    COPY_BEHIND("cudaMemcpyFromSymbol", D2H, S(16), 8,
                {.at = F(8), .handle = true, .reply = S(0)}),
    COPY("cudaMemcpyPeerAsync", ANY, 0, RANGE(F(0), F(24)), RANGE(F(12), F(24))),
    COPY("cudaMemcpyToArray", D2D, E(4), ARRAY(F(0)), RANGE(F(24), E(12))),
    COPY("cudaMemcpyToArray", ANY, 0, ARRAY(F(0))),
    COPY("cudaMemcpyFromArray", D2H, E(4), {.at = M(0), .array = true, .reply = E(12)}),
    COPY("cudaMemcpyFromArray", D2D, E(4), RANGE(F(0), E(12)), ARRAY(F(8))),
    COPY("cudaMemcpy2DToArray", D2D, E(4), ARRAY(F(0)), ROWS(F(24), F(40), F(32), F(48))),
    COPY("cudaMemcpy2DToArray", ANY, 0, ARRAY(F(0))),
    COPY("cudaMemcpy2DFromArray", D2H, E(4),
         {.at = M(0), .array = true, .reply = M(8), .reply_rows = M(40)}),
    COPY("cudaMemcpy2DFromArray", D2D, E(4), ROWS(F(0), F(40), F(16), F(48)), ARRAY(F(8))),
    COPY("cudaMemcpyArrayToArray", ANY, 0, ARRAY(F(0)), ARRAY(F(24))),
    /* A struct cudaMemcpy3DParms behind its length; its source is the payload, or an array. */
    COPY("cudaMemcpy3D", ANY, 0, ARRAY(F(8)), ARRAY(F(72)),
         {.at = F(104), .planes = true}),
    COPY("cudaGetChannelDesc", ANY, 0, ARRAY(F(28))),
    /* A struct cudaResourceDesc behind its length; kinds 0 and 1: an array, 2: memory, 3: rows of
     * memory. */
    COPY("cudaCreateTextureObject", ANY, 0,
         {.at = F(16), .type = F(8), .type_wanted = 0, .array = true},
         {.at = F(16), .type = F(8), .type_wanted = 1, .array = true},
         {.at = F(16), .n = F(48), .type = F(8), .type_wanted = 2},
         {.at = F(16), .n = F(48), .channel = F(24), .pitch = F(64), .rows = F(56), .type = F(8),
          .type_wanted = 3}),
    COPY("cudaMemset", ANY, 0, RANGE(F(0), F(12))),
    COPY("cudaMemsetAsync", ANY, 0, RANGE(F(0), F(12))),
    COPY("cudaMemset2D", ANY, 0, ROWS(F(0), F(20), F(8), F(28))),
    COPY("cuMemsetD32Async", ANY, 0, {.at = F(0), .n = F(12), .unit = 4}),
    COPY("cuStreamWriteValue32", ANY, 0, AT(F(8))),
    /* An IPC handle lets another process map the memory. That process does not know the memory's
     * owner. */
    COPY("cudaIpcGetMemHandle", ANY, 0, AT(F(72))),
    COPY("cublasGetMatrix", ANY, 0, AT(F(12))),
    COPY("cublasGetVector", ANY, 0, AT(F(16))),
    COPY("cublasSetMatrix", ANY, 0, AT(F(12))),
    COPY("cublasSetVector", ANY, 0, AT(F(16))),
    COPY("cuMemcpyDtoH", ANY, 0, {.at = F(0), .n = F(8), .reply = F(8)}),
    COPY("cuMemcpyHtoD", ANY, 0, RANGE(F(8), F(0))),
    /* A struct CUDA_MEMCPY2D behind its length; types 2: device memory, 3: an array. */
    COPY("cuMemcpy2D", ANY, 0,
         {.at = F(40), .n = F(120), .pitch = F(56), .rows = F(128), .skip = F(8),
          .skipped = F(16), .type = F(24), .type_wanted = 2},
         {.at = F(96), .n = F(120), .pitch = F(112), .rows = F(128), .skip = F(64),
          .skipped = F(72), .type = F(80), .type_wanted = 2},
         {.at = F(48), .type = F(24), .type_wanted = 3, .array = true},
         {.at = F(104), .type = F(80), .type_wanted = 3, .array = true}),
    COPY("cuTexRefSetArray", ANY, 0, ARRAY(F(0))),
    FREE("cudaFree", 1), FREE("cudaFreeAsync", 1), FREE("cuMemFree", 1),
    FREE_ARRAY("cudaFreeArray"), FREE_ARRAY("cuArrayDestroy"),
    /* Handles of graphs, too. */
    COPY("cudaGraphInstantiate", ANY, 0, HANDLE(F(0))),
    COPY("cudaGraphLaunch", ANY, 0, HANDLE(F(0))),
    COPY("cudaGraphGetNodes", ANY, 0, HANDLE(F(0))),
    FREE_HANDLE("cudaGraphDestroy"), FREE_HANDLE("cudaGraphExecDestroy"),
    /* Not memory, but other processes may have a handle of it. */
    FREE_HANDLE("cudaEventDestroy"),
};
/* clang-format on */
#define NAMINGS (sizeof(namings) / sizeof(namings[0]))

/* Whether the tables can have a request of that name; others are not delayed by a search. */
static bool may_be_named(const char *name)
{
    if (name[0] != 'c' || name[1] != 'u')
        return false;
    name += !strncmp(name, "cuda", 4) ? 4 : 2;
    return *name == 'M' || *name == 'F' || *name == 'A' || *name == 'I' || *name == 'G' ||
           !strncmp(name, "blasGet", 7) || !strncmp(name, "blasSet", 7) ||
           !strncmp(name, "StreamW", 7) || !strncmp(name, "EventD", 6) ||
           !strncmp(name, "CreateT", 7) || !strncmp(name, "TexRefSetArray", 14);
}

uint64_t ibx_naming_allocated(const uint8_t *payload, size_t n)
{
    struct ibx_reader r = ibx_reader_of(payload, n);
    const uint64_t first = ibx_get_u64(&r);
    if (n < 8 || n > 16)
        return 0;
    return n == 16 && first == 8 ? ibx_get_u64(&r) : first;
}

bool ibx_naming_known(const char *name)
{
    for (size_t i = 0; may_be_named(name) && i < NAMINGS; i++) {
        if (!strcmp(namings[i].name, name))
            return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------ bodies */

struct body {
    const uint8_t *bytes;
    uint64_t n;
    int payload;
};

static uint64_t number(const struct body *body, uint64_t at, unsigned bytes)
{
    return ibx_body_number(body->bytes, body->n, at, bytes);
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t c;
    return __builtin_mul_overflow(a, b, &c) ? UINT64_MAX : c;
}

/* The offset after the string at `at`, which is preceded by its length twice; a length of 0 comes
 * once. */
static uint64_t behind_string(const struct body *body, uint64_t at)
{
    const uint64_t length = number(body, at, 8);
    const bool some = number(body, sum(at, 8), 8);
    return sum(sum(at, 16), some ? length : 0);
}

static uint64_t position(const struct body *body, int where)
{
    const uint64_t begin = (uint64_t)body->payload;
    if (where < 0)
        return (uint64_t)-where > body->n ? UINT64_MAX : body->n - (uint64_t)-where;
    if (where >= S(0))
        return sum(behind_string(body, behind_string(body, begin)), (uint64_t)(where - S(0)));
    if (where >= M(0))
        return (number(body, 0, 8) ? 9u : 8u) + (uint64_t)(where - M(0));
    if (where >= P(0))
        return sum(sum(begin + 8, number(body, begin, 8)), (uint64_t)(where - P(0)));
    return (uint64_t)(where - F(0));
}

static uint64_t value(const struct body *body, int where, uint64_t none)
{
    return where ? number(body, position(body, where), 8) : none;
}

static uint64_t texture_row(const struct body *body, const struct place *place)
{
    const uint64_t at = position(body, place->channel);
    const struct ibx_cuda_channel channel = {
        (int)number(body, at, 4), (int)number(body, at + 4, 4), (int)number(body, at + 8, 4),
        (int)number(body, at + 12, 4), (int)number(body, at + 16, 4)};
    return ibx_texture_row(&channel, value(body, place->n, 0), value(body, place->pitch, 0));
}

static void take(const struct body *body, const struct place *place, struct ibx_named *named)
{
    uint64_t bytes = value(body, place->n, 1), rows = value(body, place->rows, 1);
    rows = sum(rows, value(body, place->skipped, 0));
    bytes =
        sum(product(bytes, place->unit ? (uint64_t)place->unit : 1), value(body, place->skip, 0));
    if (place->channel)
        bytes = texture_row(body, place);
    *named = (struct ibx_named){
        .at = position(body, place->at),
        .address = value(body, place->at, 0),
        .n = bytes ? bytes : 1,
        .reply = product(value(body, place->reply, 0), value(body, place->reply_rows, 1)),
        .handle = place->handle,
        .array = place->array};
    if (place->rows && rows > 1)
        named->n = sum(product(rows - 1, value(body, place->pitch, 0)), bytes);
    if (place->planes)
        named->n = ibx_copy_planes_bytes(body->bytes, body->n);
}

static bool counts(const struct body *body, const struct place *place)
{
    if (!place->at)
        return false;
    return !place->type || (int)number(body, position(body, place->type), 4) == place->type_wanted;
}

unsigned ibx_naming_find(const char *name, const void *bytes, size_t n, enum ibx_naming_role *role,
                         struct ibx_named named[IBX_NAMED_MAX])
{
    for (size_t i = 0; may_be_named(name) && i < NAMINGS; i++) {
        const struct naming *row = &namings[i];
        struct body body = {bytes, n, row->payload};
        unsigned count = 0;
        if (strcmp(row->name, name) != 0 ||
            (row->kind && (int)number(&body, position(&body, row->kind_at), 4) != row->kind))
            continue;
        *role = row->role;
        for (unsigned j = 0; j < IBX_NAMED_MAX; j++) {
            if (!counts(&body, &row->places[j]))
                continue;
            take(&body, &row->places[j], &named[count]);
            named[count].bad = row->bad;
            count++;
        }
        return count;
    }
    return 0;
}

void ibx_naming_invalidate(const struct ibx_named *named, void *bytes, size_t n)
{
    if (named->at <= n && n - named->at >= sizeof(named->bad))
        memcpy((uint8_t *)bytes + named->at, &named->bad, sizeof(named->bad));
}

/* ------------------------------------------------------------------------- allocations */

#define STEP   512u         /* bytes of a pitch's unit, and of the smallest allocation */
#define ABSURD (1ull << 50) /* bytes */

enum kind { BYTES, PITCHED, RUNTIME_TEXELS, DRIVER_TEXELS };

static const struct allocating {
    const char *name;
    enum kind kind;
    int width, height, depth, texel; /* where they are */
} allocations[] = {
    {"cudaMalloc", BYTES, F(0), 0, 0, 0},
    {"cudaMallocAsync", BYTES, F(0), 0, 0, 0},
    {"cudaMallocManaged", BYTES, F(8), 0, 0, 0},
    {"cuMemAlloc", BYTES, F(0), 0, 0, 0},
    {"cudaMallocPitch", PITCHED, F(8), F(16), 0, 0},
    {"cuMemAllocPitch", PITCHED, F(0), F(8), 0, 0},
    /* A struct cudaChannelFormatDesc behind its length. */
    {"cudaMallocArray", RUNTIME_TEXELS, F(28), F(36), 0, F(8)},
    {"cudaMalloc3DArray", RUNTIME_TEXELS, F(28), F(36), F(44), F(8)},
    /* A struct CUDA_ARRAY_DESCRIPTOR, or CUDA_ARRAY3D_DESCRIPTOR, behind its length. */
    {"cuArrayCreate", DRIVER_TEXELS, F(8), F(16), 0, F(24)},
    {"cuArray3DCreate", DRIVER_TEXELS, F(8), F(16), F(24), F(32)},
};

/* As in G2: the pitch comes behind its length. ibx_shapes_sanitize() has the handlers of other
 * generations find no width there. */
static const struct allocating behind_length = {"cudaMallocPitch", PITCHED, F(16), F(24), 0, 0};

static const struct allocating *allocating_find(const char *name, size_t n)
{
    if (n >= IBX_PITCH_BEHIND_LENGTH && !strcmp(name, behind_length.name))
        return &behind_length;
    for (size_t i = 0; may_be_named(name) && i < sizeof(allocations) / sizeof(allocations[0]);
         i++) {
        if (!strcmp(allocations[i].name, name))
            return &allocations[i];
    }
    return NULL;
}

bool ibx_naming_allocates(const char *name)
{
    return allocating_find(name, 0) != NULL;
}

/* Bytes of a texel: from the bits of four channels, or from a CUarray_format and the number of
 * channels. */
static uint64_t texel_bytes(const struct body *body, const struct allocating *a)
{
    const uint64_t at = a->kind < RUNTIME_TEXELS ? 0 : position(body, a->texel);
    uint64_t bits = 0;
    if (a->kind < RUNTIME_TEXELS)
        return 1;
    for (unsigned i = 0; a->kind == RUNTIME_TEXELS && i < 4; i++)
        bits = sum(bits, number(body, sum(at, 4 * i), 4));
    if (a->kind == RUNTIME_TEXELS)
        return sum(bits, 7) / 8;
    const uint64_t format = number(body, at, 4), channels = number(body, sum(at, 4), 4);
    return channels * (format == 1 || format == 8                   ? 1
                       : format == 2 || format == 9 || format == 16 ? 2
                                                                    : 4);
}

static uint64_t steps_of(uint64_t bytes)
{
    return bytes > UINT64_MAX - STEP ? UINT64_MAX : (bytes + STEP - 1) / STEP * STEP;
}

uint64_t ibx_naming_allocation(const char *name, const void *bytes, size_t n)
{
    const struct allocating *a = allocating_find(name, n);
    const struct body body = {bytes, n, 0};
    if (!a)
        return 0;
    uint64_t size = product(value(&body, a->width, 0), texel_bytes(&body, a));
    uint64_t height = value(&body, a->height, 1), depth = value(&body, a->depth, 1);
    size = a->kind == PITCHED ? steps_of(size) : size;
    size = product(size, height ? height : 1);
    return steps_of(product(size, depth ? depth : 1));
}

void ibx_naming_enlarge(const char *name, void *bytes, size_t n)
{
    const struct allocating *a = allocating_find(name, n);
    const struct body body = {bytes, n, 0};
    uint64_t absurd = ABSURD;
    if (!a)
        return;
    const uint64_t pitch = a->kind == PITCHED ? steps_of(value(&body, a->width, 0)) : 0;
    if (pitch) /* rows, whose product with the pitch must not overflow */
        absurd = absurd / pitch + 1;
    const uint64_t at = position(&body, a->kind == PITCHED ? a->height : a->width);
    if (at <= n && n - at >= sizeof(absurd))
        memcpy((uint8_t *)bytes + at, &absurd, sizeof(absurd));
}
