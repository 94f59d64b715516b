/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"

#include "common/wire.h"

#include <pthread.h>
#include <string.h>

#define NAME_KNOWN 23u  /* characters of a request's name */
#define NAME_MOST  256u /* all characters: CUDA's longest names have less than 70 */

/* An offset in a body; 0: none. There may be more behind what a handler reads from the first byte
 * on, and before what it reads at the end: so each value is looked for where the handler does. */
#define F(x)   ((x) + 1) /* from its first byte on */
#define E(x)   (-(x))    /* before its end */
#define BEHIND 1000      /* behind the payload and another u64 */

#define TO_DEVICE  1u /* cudaMemcpyKind */
#define ON         3
#define KIND(x)    (1u << (x))
#define ALL_KINDS  31u
#define FROM_TO_ON (KIND(1) | KIND(2) | KIND(3))

#define TOO_LONG (UINT64_C(1) << 62)

#define THREAD_LOCAL 1u /* cudaStreamCaptureMode */

static const struct shape {
    const char *name;
    int present;    /* a u64: 0 is NULL, which the handler does not check; else bytes follow */
    int kind;       /* an i32 */
    unsigned kinds; /* bits of kinds for which the handler returns a result */
    int instead;    /* replaces other kinds: 0, which the handler refuses; ON with NULL, for CUDA */
    int payload;    /* of copies to the device: the payload's length, before its bytes */
    int strings;    /* so many; those of copies to the device precede the payload */
    int count;      /* bytes that are copied from the payload; 0: `rows` says it */
    int rows;       /* three u64: the source's pitch, width and height */
    int text;       /* where the strings begin */
} shapes[] = {
    {.name = "cudaCreateTextureObject", .present = F(0)},
    {.name = "cudaFuncGetAttributes", .present = F(0)},
    {.name = "cudaGetChannelDesc", .present = F(0)},
    {.name = "cudaGetDeviceProperties", .present = F(0)},
    {.name = "cudaGetSymbolSize", .present = F(0)},
    {.name = "cudaIpcGetMemHandle", .present = F(0)}, /* CUDA 13 does not check it either */
    {.name = "cudaMallocArray", .present = F(0)},
    {.name = "cudaMemcpy3D", .present = F(0)},
    {"cudaMemcpy", 0, E(4), FROM_TO_ON, ON, F(8), 0, E(12), 0, 0},
    {"cudaMemcpyAsync", 0, E(12), ALL_KINDS, ON, F(8), 0, E(20), 0, 0},
    {"cudaMemcpy2D", 0, E(4), FROM_TO_ON, ON, F(8), 0, 0, BEHIND, 0},
    {"cudaMemcpyToSymbol", F(8), E(4), ALL_KINDS, 0, F(0), 2, E(20), 0, F(0)},
    {"cudaMemcpyFromSymbol", F(16), E(4), ALL_KINDS, 0, 0, 2, 0, 0, F(8)},
    {"cudaMemcpyToArray", 0, E(4), ALL_KINDS, 0, F(24), 0, E(12), 0, 0},
    {"cudaMemcpyFromArray", 0, E(4), ALL_KINDS, 0, 0, 0, 0, 0, 0},
    {"cudaMemcpyArrayToArray", 0, E(4), ALL_KINDS, 0, 0, 0, 0, 0, 0},
    {"cudaMemcpy2DToArray", 0, E(4), ALL_KINDS, 0, F(24), 0, 0, E(28), 0},
    {"cudaMemcpy2DFromArray", 0, E(4), KIND(2) | KIND(3), ON, 0, 0, 0, 0, 0},
};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* The offset in a body of n bytes; SIZE_MAX: outside. */
static size_t position(int where, size_t n)
{
    if (where < 0)
        return (size_t)-where > n ? SIZE_MAX : n - (size_t)-where;
    return (size_t)where - 1;
}

/* The offset of the rows of a copy, which may be outside. */
static size_t rows_of(const struct shape *s, const uint8_t *body, size_t n)
{
    const size_t at = position(s->payload, n);
    const uint64_t payload = ibx_body_number(body, n, at, 8);
    if (s->rows != BEHIND)
        return position(s->rows, n);
    return payload > n ? n : at + 16 + (size_t)payload;
}

static void put(uint8_t *body, size_t n, size_t at, uint64_t value)
{
    ibx_body_set_number(body, n, at, 8, value);
}

/* Has CUDA refuse a copy that would read beyond its payload: a copy of rows for a width that is
 * larger than the pitch, a copy to a symbol for too many bytes, and any other because NULL is not
 * memory. The pitch becomes 1, since a single row may have a pitch of 0. */
static void refuse_copy(const struct shape *s, uint8_t *body, size_t n)
{
    if (s->rows) {
        put(body, n, rows_of(s, body, n), 1);
        put(body, n, rows_of(s, body, n) + 8, UINT64_MAX);
        return;
    }
    put(body, n, position(s->count, n), s->strings ? TOO_LONG : 1);
    if (!s->strings)
        put(body, n, 0, 0);
}

/* Bytes that the copy reads; 0 if CUDA refuses the pitch. */
static uint64_t bytes_of(const struct shape *s, const uint8_t *body, size_t n)
{
    uint64_t bytes = 0;
    if (s->count)
        return ibx_body_number(body, n, position(s->count, n), 8);
    const size_t at = rows_of(s, body, n);
    const uint64_t pitch = ibx_body_number(body, n, at, 8),
                   width = ibx_body_number(body, n, at + 8, 8),
                   height = ibx_body_number(body, n, at + 16, 8);
    if (!height || (pitch && width > pitch))
        return 0;
    return __builtin_mul_overflow(height - 1, pitch, &bytes) ||
                   __builtin_add_overflow(bytes, width, &bytes)
               ? UINT64_MAX
               : bytes;
}

/* The offset behind the strings, each of which is preceded by its length twice, and is NULL if the
 * second one is 0; n: it is outside. If the sum of a length and of what is before it wraps around,
 * the handler would move back: it finds too few bytes instead. */
static size_t behind_strings(const struct shape *s, uint8_t *body, size_t n)
{
    size_t at = position(s->text, n);
    for (int i = 0; i < s->strings && at < n; i++) {
        const uint64_t string =
            ibx_body_number(body, n, at + 8, 8) ? ibx_body_number(body, n, at, 8) : 0;
        if (string > UINT64_MAX - 16 - at)
            put(body, n, at, TOO_LONG);
        at = string > n || n - string < 16 || at > n - string - 16 ? n : at + 16 + (size_t)string;
    }
    return at;
}

static void sanitize_payload(const struct shape *s, uint8_t *body, size_t n)
{
    const size_t at = s->strings ? behind_strings(s, body, n) : position(s->payload, n);
    const uint64_t length = ibx_body_number(body, n, at, 8);
    if (at > n || n - at < 8 || length > n - at - 8)
        put(body, n, at, TOO_LONG);              /* the handler finds too few bytes */
    if (length && bytes_of(s, body, n) > length) /* without a payload CUDA refuses NULL */
        refuse_copy(s, body, n);
}

static void sanitize_kind(const struct shape *s, uint8_t *body, size_t n)
{
    const size_t at = position(s->kind, n);
    if (at >= n)
        return;
    struct ibx_writer w = ibx_writer_of(body + at, n - at);
    ibx_put_u32(&w, (uint32_t)s->instead);
    if (s->instead == ON && at >= 16)
        memset(body, 0, 16);
}

/* The last i32 of the body counts the devices. The handler takes a negative one as a very large
 * number. */
static void sanitize_devices(uint8_t *body, size_t n)
{
    struct ibx_writer w = ibx_writer_of(body + n - 4, 4);
    if (ibx_body_number(body, n, n - 4, 4) > INT32_MAX)
        ibx_put_u32(&w, INT32_MAX);
}

/* The pitch, behind its length, which handlers only write. Those without a length take it for the
 * width, and allocate nothing. */
static void sanitize_pitch(uint8_t *body, size_t n)
{
    struct ibx_writer w = ibx_writer_of(body, n);
    ibx_put_u64(&w, sizeof(uint64_t));
    ibx_put_u64(&w, 0);
}

/* In mode 0 (global) a thread's calls end captures of other clients, which are threads here: each
 * thread minds its own captures only, as it does from its first request on. */
static void sanitize_capture_mode(uint8_t *body)
{
    struct ibx_writer w = ibx_writer_of(body, 4);
    if (!ibx_body_number(body, 4, 0, 4))
        ibx_put_u32(&w, THREAD_LOCAL);
}

static void sanitize(const struct shape *s, uint8_t *body, size_t n)
{
    if (s->present && !ibx_body_number(body, n, position(s->present, n), 8))
        put(body, n, position(s->present, n), TOO_LONG); /* the handler finds too few bytes */
    if (!s->kind)
        return;
    behind_strings(s, body, n);
    const uint64_t kind = ibx_body_number(body, n, position(s->kind, n), 4);
    if (kind > 31 || !(s->kinds & KIND(kind)))
        sanitize_kind(s, body, n);
    else if (kind == TO_DEVICE && s->payload)
        sanitize_payload(s, body, n);
}

void ibx_shapes_sanitize(const char *name, uint8_t *body, size_t n)
{
    size_t i = 0;
    while (i < SHAPES && strncmp(shapes[i].name, name, NAME_KNOWN) != 0)
        i++;
    if (i < SHAPES)
        sanitize(&shapes[i], body, n);
    if (!strcmp(name, "cuMemcpy2D"))
        ibx_copy_rows_sanitize(body, n);
    if (!strcmp(name, "cudaMemcpy3D"))
        ibx_copy_planes_sanitize(body, n);
    if (!strcmp(name, "cudaMallocPitch") && n >= IBX_PITCH_BEHIND_LENGTH)
        sanitize_pitch(body, n);
    if (!strcmp(name, "cudaSetValidDevices") && n >= 4)
        sanitize_devices(body, n);
    if (!strncmp(name, "cudaThreadExchangeStreamCaptureMode", NAME_KNOWN) && n >= 4)
        sanitize_capture_mode(body);
}

bool ibx_shapes_is_name(const struct ibx_request_watch *watch, const uint8_t *bytes, size_t n)
{
    size_t i = 0;
    if (watch->stage != IBX_REQUEST_NAME)
        return true;
    while (i < n && bytes[i] > ' ' && bytes[i] <= '~')
        i++;
    return (i == n || !bytes[i]) && watch->got + i <= NAME_MOST;
}

#define BARRED_KNOWN 39u

/* Compilers and linkers say in logs what is wrong. */
bool ibx_shapes_answers_errors(const char *name)
{
    return !strncmp(name, "cuLink", 6) || !strncmp(name, "cuModuleLoad", 12) ||
           !strncmp(name, "nvrtc", 5) || !strncmp(name, "ibx", 3);
}

/* Names have at most BARRED_KNOWN characters here, and may go on. */
static const struct {
    char name[BARRED_KNOWN + 1]; /* with NUL up to the end */
    unsigned why;
} barred[] = {
    {"cudaMemPoolSetAttribute", IBX_BARRED}, /* its handler takes the value for an address */
    {"cudaMemPoolCreate", IBX_BARRED},       /* its handler does not return the pool */
    {"cudaStreamAddCallback", IBX_BARRED},   /* its handler has CUDA call an address */
    /* Their handlers pass on addresses of resources, which are registered in a context of OpenGL.
     * A back end has none. */
    {"cudaGraphicsMapResource", IBX_BARRED},
    {"cudaGraphicsResourceGet", IBX_BARRED},
    {"cudaGraphicsResourceSet", IBX_BARRED},
    {"cudaGraphicsUnmapResour", IBX_BARRED},
    {"cudaGraphicsUnregisterR", IBX_BARRED},
    /* Their handlers pass on an address that they have not set: cuDNN writes what the request says,
     * or the handler sends what is there, wherever an earlier request has left the stack pointing.
     * None of them works. */
    {"cudnnDeriveBNTensorDescriptor", IBX_BARRED},
    {"cudnnDestroyPersistentRNNPlan", IBX_BARRED}, /* this and GetRNNLin...: cuDNN 8 */
    {"cudnnGetAttnDescriptor", IBX_BARRED},
    {"cudnnGetFoldedConvBackwardDataDescrip", IBX_BARRED},
    {"cudnnGetFusedOpsVariantParamPackAttrib", IBX_BARRED},
    {"cudnnGetMultiHeadAttnWeights", IBX_BARRED},
    {"cudnnGetRNNLinLayerBiasParams", IBX_BARRED},
    {"cudnnGetRNNLinLayerMatrixParams", IBX_BARRED},
    {"cudnnGetReductionIndicesSize", IBX_BARRED},
    {"cudnnGetReductionWorkspaceSize", IBX_BARRED},
    {"cudnnIm2Col", IBX_BARRED},
    {"cudnnInitTransformDest", IBX_BARRED},
    {"cudnnSetAttnDescriptor", IBX_BARRED},
    {"cudnnSetCTCLossDescriptor", IBX_BARRED}, /* and ...Ex */
    {"cudnnSetOpTensorDescriptor", IBX_BARRED},
    {"cudnnSetSeqDataDescriptor", IBX_BARRED},
    {"cudnnSetTensorNdDescriptorEx", IBX_BARRED},
    {"cudnnSetTensorTransformDescriptor", IBX_BARRED},
    {"cudnnGetCallback", IBX_BARRED}, /* its handler sets a callback, which it has not got */
    {"cudnnSetCallback", IBX_BARRED}, /* its handler has cuDNN call an address of the client's */
    /* Their handlers pass on addresses of structs. Without cufftXtMemcpy they are of no use. */
    {"cufftXtExecDescriptorC2", IBX_BARRED},
    {"cufftXtFree", IBX_BARRED},
    {"cufftXtMalloc", IBX_BARRED},
    {"nvmlEventSetCreate", IBX_BARRED}, /* handlers can make sets of events, and free addresses */
    {"nvmlEventSetFree", IBX_BARRED},
    {"cufftXtMemcpy", IBX_BARRED}, /* its handler copies what follows a request of one byte */
    {"cuTensorMapEncodeTiled", IBX_BARRED}, /* its handler sends 128 maps, of which it has one */
    /* IPC handles of CUDA are not secrets: they hold a process's number and small ones. */
    {"cudaIpcOpenEventHandle", IBX_BARRED_TENANTS},
    {"cudaIpcOpenMemHandle", IBX_BARRED_TENANTS},
    {"cuCtxCreate", IBX_BARRED_LIMITED}, /* hundreds of MB, which stay after its session */
    /* Their handlers note the client's addresses in one table for all clients, which they change
     * without a lock, and pin memory of their own. */
    {"cudaHostRegister", IBX_BARRED_BESIDE | IBX_BARRED_PINNED},
    {"cudaHostUnregister", IBX_BARRED_BESIDE},
    /* Their handlers pass on any address, and any number as a handle, which CUDA takes for an
     * address. Extension requests do the same with checks. */
    {"cuMemAddressFree", IBX_BARRED_BESIDE},
    {"cuMemAddressReserve", IBX_BARRED_BESIDE},
    {"cuMemCreate", IBX_BARRED_BESIDE | IBX_BARRED_LIMITED},
    {"cuMemExportToShareableH", IBX_BARRED_BESIDE},
    {"cuMemImportFromShareabl", IBX_BARRED_BESIDE | IBX_BARRED_LIMITED},
    {"cuMemMap", IBX_BARRED_BESIDE},
    {"cuMemRelease", IBX_BARRED_BESIDE},
    {"cuMemSetAccess", IBX_BARRED_BESIDE},
    {"cuMemUnmap", IBX_BARRED_BESIDE},
};

static uint32_t endings[BARRED_KNOWN + 1]; /* the last letters of names of that length */

static uint32_t ending(char letter)
{
    return UINT32_C(1) << (letter & 31);
}

static void note_endings(void)
{
    for (size_t i = 0; i < sizeof(barred) / sizeof(barred[0]); i++) {
        const size_t length = strlen(barred[i].name);
        endings[length] |= ending(barred[i].name[length - 1]);
    }
}

unsigned ibx_shapes_barred(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n,
                           uint8_t **last)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const size_t from = watch->got;
    if (!n || from >= BARRED_KNOWN)
        return 0;
    pthread_once(&once, note_endings);
    if (n == 1 && !(endings[from + 1] & ending((char)bytes[0])))
        return 0; /* as for nearly all bytes: GVirtuS reads names one by one */
    for (size_t i = 0; i < sizeof(barred) / sizeof(barred[0]); i++) {
        if (barred[i].name[from] != (char)bytes[0])
            continue;
        *last = ibx_request_ends_name(watch, bytes, n, barred[i].name);
        if (*last)
            return barred[i].why;
    }
    return 0;
}
