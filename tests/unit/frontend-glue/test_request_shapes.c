/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests whose handlers would end the back end. Each is made first as a front end makes it,
 * and then malformed. */
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fixtures/unit.h"

#include "common/wire.h"

#include <string.h>

#define LENGTH 64u /* length of payloads */
#define H2D    1u
#define D2H    2u
#define D2D    3u

struct body {
    uint8_t bytes[400];
    size_t n;
};

static struct body made(uint64_t first, unsigned before, unsigned strings, uint64_t payload)
{
    struct body b = {0};
    struct ibx_writer w = ibx_writer_of(b.bytes, sizeof(b.bytes));
    for (unsigned i = 0; i < before; i++)
        ibx_put_u64(&w, first);
    for (unsigned i = 0; i < strings; i++) {
        ibx_put_u64(&w, 5);
        ibx_put_u64(&w, 5);
        ibx_put_bytes(&w, "name", 5);
    }
    ibx_put_u64(&w, payload);
    w.length += LENGTH;
    b.n = w.length;
    return b;
}

static struct body with(struct body b, uint64_t value, unsigned bytes)
{
    struct ibx_writer w = ibx_writer_of(b.bytes + b.n, sizeof(b.bytes) - b.n);
    ibx_put_uint(&w, value, bytes);
    b.n += w.length;
    return b;
}

static struct body repaired(const char *name, struct body b)
{
    ibx_shapes_sanitize(name, b.bytes, b.n);
    return b;
}

static bool good(const char *name, struct body b)
{
    const struct body after = repaired(name, b);
    return !memcmp(b.bytes, after.bytes, b.n);
}

static uint64_t number(const struct body *b, size_t at, unsigned bytes)
{
    uint64_t value = 0;
    memcpy(&value, b->bytes + at, bytes);
    return value;
}

static struct body copy(uint64_t payload, uint64_t count, unsigned kind)
{
    return with(with(made(7, 1, 0, payload), count, 8), kind, 4);
}

static struct body copy_async(uint64_t payload, uint64_t count, unsigned kind)
{
    return with(copy(payload, count, kind), 100, 8);
}

static struct body symbol(uint64_t payload, uint64_t count, unsigned kind)
{
    return with(with(with(made(0, 0, 2, payload), count, 8), 0, 8), kind, 4);
}

static struct body array(uint64_t payload, uint64_t count, unsigned kind)
{
    return with(with(made(7, 3, 0, payload), count, 8), kind, 4);
}

static void payloads(void **state)
{
    static const struct {
        const char *name;
        struct body (*make)(uint64_t payload, uint64_t count, unsigned kind);
        unsigned behind; /* bytes behind the payload */
    } calls[] = {{"cudaMemcpy", copy, 12},
                 {"cudaMemcpyAsync", copy_async, 20},
                 {"cudaMemcpyToSymbol", symbol, 20},
                 {"cudaMemcpyToArray", array, 12}};
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const char *name = calls[i].name;
        assert_true(good(name, calls[i].make(LENGTH, LENGTH, H2D)));
        assert_true(good(name, calls[i].make(LENGTH, LENGTH - 1, H2D)));
        assert_true(good(name, calls[i].make(0, 16, H2D))); /* CUDA refuses NULL */
        assert_false(good(name, calls[i].make(LENGTH, LENGTH + 1, H2D)));
        assert_true(good(name, calls[i].make(LENGTH + calls[i].behind, 1, H2D)));
        assert_false(good(name, calls[i].make(LENGTH + calls[i].behind + 1, 1, H2D)));
        assert_false(good(name, calls[i].make(LENGTH + 200, 1, H2D)));
        assert_false(good(name, calls[i].make(UINT64_MAX - 8, 1, H2D)));
        assert_true(good(name, calls[i].make(LENGTH, LENGTH + 1, D2D)));
        for (unsigned kind = 5; kind < 40; kind++)
            assert_false(good(name, calls[i].make(LENGTH, LENGTH, kind)));
        assert_false(good(name, calls[i].make(LENGTH, LENGTH, UINT32_MAX)));
    }
    /* They are refused: by CUDA as NULL or as too long for any symbol, or by the handler. */
    struct body b = repaired("cudaMemcpy", copy(LENGTH, 1000, H2D));
    assert_true(!number(&b, 0, 8) && number(&b, b.n - 12, 8) == 1);
    b = repaired("cudaMemcpyToSymbol", symbol(LENGTH, 1000, H2D));
    assert_true(number(&b, b.n - 20, 8) > UINT32_MAX);
    b = repaired("cudaMemcpyAsync", copy_async(UINT64_MAX - 8, 1, H2D));
    assert_true(number(&b, 8, 8) == UINT64_C(1) << 62);
    b = repaired("cudaMemcpyAsync", copy_async(LENGTH, 1, 77));
    assert_true(!number(&b, 0, 8) && !number(&b, 8, 8) && number(&b, b.n - 12, 4) == D2D);
    b = repaired("cudaMemcpyToArray", array(LENGTH, 1, 77));
    assert_true(number(&b, b.n - 4, 4) == 0);
    assert_false(good("cudaMemcpy", copy(LENGTH, LENGTH, 0)));
    assert_false(good("cudaMemcpy", copy(LENGTH, LENGTH, 4)));
    assert_false(good("cudaMemcpy2DFromArray", copy(LENGTH, LENGTH, H2D)));
    assert_true(good("cudaMemcpy2DFromArray", copy(LENGTH, LENGTH, D2H)));
}

static struct body rows(unsigned before, uint64_t pitch, uint64_t width, uint64_t height)
{
    struct body b = made(7, before, 0, LENGTH);
    if (before == 1) /* the destination's pitch */
        b = with(b, 512, 8);
    return with(with(with(with(b, pitch, 8), width, 8), height, 8), H2D, 4);
}

static void planes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        const char *name = i ? "cudaMemcpy2DToArray" : "cudaMemcpy2D";
        const unsigned before = i ? 3 : 1;
        assert_true(good(name, rows(before, 16, 16, 4)));
        assert_true(good(name, rows(before, 20, 4, 4)));
        assert_false(good(name, rows(before, 20, 5, 4)));
        assert_false(good(name, rows(before, 16, 16, 5)));
        assert_false(good(name, rows(before, UINT64_MAX, 16, 5)));
        assert_false(good(name, rows(before, UINT64_MAX, UINT64_MAX, 2)));
        assert_false(good(name, rows(before, 1ull << 63, 16, 3))); /* 2^64 bytes, and 16 */
        const struct body b = repaired(name, rows(before, 16, 16, 5));
        assert_true(number(&b, b.n - 20, 8) == UINT64_MAX); /* a width beyond its pitch */
        assert_true(number(&b, b.n - 28, 8) == 1);
        /* one row, for which CUDA needs no pitch */
        assert_true(good(name, rows(before, 0, LENGTH, 1)));
        assert_false(good(name, rows(before, 0, LENGTH + 1, 1)));
        assert_true(good(name, rows(before, 1000, 1000, 0)));
        assert_true(good(name, rows(before, 16, 17, 5))); /* CUDA refuses the pitch */
    }
}

/* The handler of cudaMemcpy2D reads the rows behind the payload, but those of arrays at the end. */
static void planes_and_more(void **state)
{
    struct body b = rows(1, 1000, 1000, 1);
    (void)state;
    b.n -= 4;
    b = with(with(with(with(b, 16, 8), 16, 8), 4, 8), H2D, 4);
    assert_false(good("cudaMemcpy2D", b));
    b = repaired("cudaMemcpy2D", b);
    assert_true(number(&b, 32 + LENGTH - 8, 8) == 1 && number(&b, 32 + LENGTH, 8) == UINT64_MAX);
    b = rows(1, 16, 16, 4);
    b.n -= 4;
    assert_true(good("cudaMemcpy2D", with(with(b, 1000, 8), H2D, 4)));
    b = rows(3, 16, 16, 4);
    b.n -= 4;
    b = with(with(with(with(b, 1000, 8), 1000, 8), 1, 8), H2D, 4);
    assert_false(good("cudaMemcpy2DToArray", b));
}

/* A string whose length wraps around with what is before it: the handler moves back, and finds the
 * payload elsewhere. One that is NULL has no bytes, whatever its length says. */
static void strings(void **state)
{
    static const struct {
        const char *name;
        unsigned at, kind;
    } calls[] = {{"cudaMemcpyToSymbol", 0, H2D},
                 {"cudaMemcpyToSymbol", 0, D2D},
                 {"cudaMemcpyFromSymbol", 8, D2H},
                 {"cudaMemcpyFromSymbol", 8, D2D}};
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        for (unsigned k = 0; k < 2; k++) {
            struct body b = {.n = calls[i].at};
            const size_t string = b.n + 21 * (size_t)k;
            for (unsigned j = 0; j < 2; j++) {
                b = with(with(b, j == k ? UINT64_MAX - 15 : 5, 8), 5, 8);
                memcpy(b.bytes + b.n, "name", 5);
                b.n += 5;
            }
            b = with(with(with(with(b, 8, 8), 0, 8), 1000, 8), 0, 8);
            b = with(b, calls[i].kind, 4);
            assert_false(good(calls[i].name, b));
            b = repaired(calls[i].name, b);
            assert_true(number(&b, string, 8) == UINT64_C(1) << 62);
        }
    }
    struct body b = with(with(with((struct body){0}, 5, 8), 5, 8), 0, 5);
    b = with(with(with(with(b, 64, 8), 0, 8), 8, 8), 0, 8); /* no symbol; a payload of 8 bytes */
    b = with(with(with(b, 1000, 8), 0, 8), H2D, 4);
    b = repaired("cudaMemcpyToSymbol", b);
    assert_true(number(&b, b.n - 20, 8) > UINT32_MAX);
}

/* The handler reads what follows a pointer that is not NULL, finds too little, and refuses it. */
static void nulls(void **state)
{
    static const struct {
        const char *name;
        size_t n, at;
    } calls[] = {{"cudaFuncGetAttributes", 16, 0}, {"cudaGetDeviceProperties", 12, 0},
                 {"cudaGetSymbolSize", 60, 0},     {"cudaIpcGetMemHandle", 16, 0},
                 {"cudaMallocArray", 24, 0},       {"cudaCreateTextureObject", 20, 0},
                 {"cudaGetChannelDesc", 16, 0},    {"cudaMemcpy3D", 16, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct body b = {.n = calls[i].n};
        uint64_t present = 0;
        ibx_shapes_sanitize(calls[i].name, b.bytes, b.n);
        memcpy(&present, b.bytes + calls[i].at, 8);
        assert_true(present > sizeof(b.bytes));
    }
    struct body devices = with((struct body){.n = 8}, UINT32_MAX, 4);
    ibx_shapes_sanitize("cudaSetValidDevices", devices.bytes, devices.n);
    assert_memory_equal(devices.bytes + 8, "\xff\xff\xff\x7f", 4);
    struct body rows = with(with(with((struct body){0}, 0, 8), 512, 8), 2049, 8);
    assert_true(good("cudaMallocPitch", rows)); /* pitch, width, height */
    rows = repaired("cudaMallocPitch", with(rows, 1, 8));
    assert_true(number(&rows, 0, 8) == 8 && number(&rows, 8, 8) == 0);
}

/* Truncated anywhere. */
static void truncated(void **state)
{
    static const char *const names[] = {
        "cudaMemcpy",           "cudaMemcpyAsync",     "cudaMemcpy2D",
        "cudaMemcpyToSymbol",   "cudaMemcpyToArray",   "cudaMemcpy2DToArray",
        "cudaMemcpyFromSymbol", "cudaMemcpyFromArray", "cudaFuncGetAttributes",
        "cudaSetValidDevices",  "cudaMemcpy3D",        "cudaMalloc",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        for (size_t n = 0; n < 120; n++) {
            uint8_t *bytes = test_malloc(n ? n : 1); /* of exactly this length, for the sanitizer */
            memset(bytes, 1, n);
            ibx_shapes_sanitize(names[i], bytes, n);
            test_free(bytes);
        }
    }
}

/* struct CUDA_MEMCPY2D: x, y, type, host, device, array and pitch of both ends; then width and
 * height. */
static struct body plane(uint64_t source, uint64_t target, uint64_t pitch, uint64_t width,
                         uint64_t follows)
{
    const uint64_t fields[] = {128, 4,      1,  source, 99, 99,    99,    pitch, 0,
                               0,   target, 99, 99,     99, pitch, width, 3};
    struct body b = {0};
    for (unsigned i = 0; i < 17; i++)
        b = with(b, fields[i], 8);
    return with(b, follows, 4);
}

static uint64_t type_of_source(struct body b)
{
    const struct body after = repaired("cuMemcpy2D", b);
    return number(&after, 24, 4);
}

/* Memory of the host would be the back end's own, unless it is part of the request. */
static void driver_rows(void **state)
{
    enum { HOST = 1, DEVICE, ARRAY, UNIFIED };
    (void)state;
    assert_true(good("cuMemcpy2D", plane(DEVICE, ARRAY, 20, 10, 0)));
    assert_true(good("cuMemcpy2D", plane(ARRAY, DEVICE, 20, 10, 1)));
    assert_int_equal(type_of_source(plane(UNIFIED, DEVICE, 20, 10, 0)), DEVICE);
    const struct body unified = repaired("cuMemcpy2D", plane(DEVICE, UNIFIED, 20, 10, 0));
    assert_int_equal(number(&unified, 80, 4), DEVICE);
    assert_int_equal(type_of_source(plane(HOST, DEVICE, 20, 10, 0)), 0);
    assert_int_equal(type_of_source(plane(HOST, DEVICE, 20, 10, 1)), 0);
    assert_int_equal(type_of_source(plane(DEVICE, HOST, 20, 10, 0)), 0);
    /* the length of the rows that follow, around the right one */
    for (uint64_t come = 70; come < 78; come++) {
        struct body b = with(plane(HOST, DEVICE, 20, 10, 1), come, 8);
        b.n += come;
        assert_int_equal(type_of_source(b), come >= 74 ? HOST : 0);
        b.n--;
        assert_int_equal(type_of_source(b), 0);
    }
    struct body much = with(plane(HOST, DEVICE, UINT64_MAX / 2, 10, 1), 64, 8);
    much.n += 64;
    assert_int_equal(type_of_source(much), 0);
    for (size_t n = 8; n < 140; n++) { /* the handler would read beyond the end */
        struct body b = plane(DEVICE, DEVICE, 20, 10, 0);
        b.n = n;
        b = repaired("cuMemcpy2D", b);
        assert_int_equal(number(&b, 0, 8), UINT64_C(1) << 62);
    }
    struct body small = plane(DEVICE, DEVICE, 20, 10, 0);
    small.bytes[0] = 1;
    small = repaired("cuMemcpy2D", small);
    assert_int_equal(number(&small, 0, 8), UINT64_C(1) << 62);
}

/* struct cudaMemcpy3DParms: array, x, y, z, address, pitch, width and rows of both ends; then
 * the extent and the kind. */
static struct body volume(uint64_t kind, bool from_array, bool to_array, uint64_t payload)
{
    const uint64_t fields[] = {160, from_array,        1,  1,  1, 99, 16, 16, 4,   to_array, 2, 1,
                               3,   to_array ? 0 : 99, 32, 30, 5, 10, 3,  2,  kind};
    struct body b = {0};
    for (unsigned i = 0; i < 21; i++)
        b = with(b, fields[i], 8);
    b = with(b, payload, 8);
    b.n += payload;
    return b;
}

static uint64_t kind_of(struct body b)
{
    const struct body after = repaired("cudaMemcpy3D", b);
    return number(&after, 160, 4);
}

static void volumes(void **state)
{
    enum { ANY = 4, NONE = 5 };
    (void)state;
    const uint64_t last = (2 * 4 + 3) * 16 + 11; /* in bytes; otherwise a whole row */
    for (uint64_t come = last - 3; come < last + 9; come++) {
        assert_int_equal(kind_of(volume(H2D, false, false, come)), come >= last ? H2D : NONE);
        assert_int_equal(kind_of(volume(ANY, false, false, come)), come >= last ? H2D : NONE);
        assert_int_equal(kind_of(volume(H2D, false, true, come)), come >= last + 5 ? H2D : NONE);
    }
    for (uint64_t kind = 0; kind < 7; kind++) {
        const bool any = kind == D2D || kind == ANY;
        assert_int_equal(kind_of(volume(kind, true, false, 0)), any ? D2D : NONE);
        /* too short at the position itself */
        assert_int_equal(kind_of(volume(kind, false, false, 0)), NONE);
        assert_int_equal(kind_of(volume(kind, false, false, last)),
                         kind == H2D || kind == ANY ? H2D : NONE);
    }
    const struct body b = volume(H2D, false, false, last);
    assert_int_equal(ibx_copy_planes_bytes(b.bytes, b.n), (4 * 5 + 3) * 32 + 12);
    const struct body of_array = volume(D2D, true, false, 0);
    assert_int_equal(ibx_copy_planes_bytes(of_array.bytes, of_array.n), (4 * 5 + 4) * 32);
    struct body far = b;
    memset(far.bytes + 96, 0xff, 8); /* the last plane */
    assert_true(ibx_copy_planes_bytes(far.bytes, far.n) == UINT64_MAX);
    for (size_t n = 0; n < 168; n++)
        assert_int_equal(ibx_copy_planes_bytes(b.bytes, n), 1);
}

static void capture_modes(void **state)
{
    (void)state;
    for (uint32_t mode = 0; mode < 3; mode++) {
        uint8_t body[4];
        struct ibx_writer w = ibx_writer_of(body, sizeof(body));
        struct ibx_reader r = ibx_reader_of(body, sizeof(body));
        ibx_put_u32(&w, mode);
        ibx_shapes_sanitize("cudaThreadExchangeStrea", body, sizeof(body));
        assert_int_equal(ibx_get_u32(&r), mode ? mode : 1);
    }
}

static void barred(void **state)
{
    static const char *const names[] = {
        "cudaMemPoolSetAttribute", "cudaMemPoolCreate", "cuMemExportToShareableHandle",
        "cuMemCreate", "cudnnSetCallback", "cudnnGetCallback", "cufftXtMemcpy",
        "cudaIpcOpenMemHandle", "cudaIpcOpenEventHandle", "cuCtxCreate", "cudaStreamAddCallback",
        "cudaGraphicsUnregisterResource", "cufftXtFree", "nvmlEventSetFree",
        "cuTensorMapEncodeTiled",
        /* others */
        "cudaMemPoolGetAttribute", "cudaMemPoolDestroy", "cuCtxGetCurrent"};
    static const unsigned whys[] = {IBX_BARRED,         IBX_BARRED,
                                    IBX_BARRED_BESIDE,  IBX_BARRED_BESIDE | IBX_BARRED_LIMITED,
                                    IBX_BARRED,         IBX_BARRED,
                                    IBX_BARRED,         IBX_BARRED_TENANTS,
                                    IBX_BARRED_TENANTS, IBX_BARRED_LIMITED,
                                    IBX_BARRED,         IBX_BARRED,
                                    IBX_BARRED,         IBX_BARRED,
                                    IBX_BARRED};
    const unsigned barred_names = sizeof(whys) / sizeof(whys[0]);
    (void)state;
    for (size_t step = 1; step < 30; step++) {
        for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            struct ibx_request_watch watch;
            uint8_t bytes[32], *last;
            unsigned found = 0;
            const size_t size = strlen(names[i]) + 1;
            memcpy(bytes, names[i], size);
            ibx_request_watch_init(&watch);
            for (size_t at = 0; at < size; at += step) {
                const size_t n = size - at < step ? size - at : step;
                const unsigned why = ibx_shapes_barred(&watch, bytes + at, n, &last);
                assert_true(!why || (!found && last >= bytes + at && last < bytes + at + n));
                found |= why;
                ibx_request_note_read(&watch, bytes + at, n);
            }
            assert_int_equal(found, i < barred_names ? whys[i] : 0);
        }
    }
}

/* Handlers of cuDNN that pass on an address which they have not set, in whatever pieces GVirtuS
 * reads their names; and others whose names begin likewise. */
static void barred_without_an_address(void **state)
{
    static const char *const names[] = {"cudnnDeriveBNTensorDescriptor",
                                        "cudnnDestroyPersistentRNNPlan",
                                        "cudnnGetAttnDescriptor",
                                        "cudnnGetFoldedConvBackwardDataDescriptors",
                                        "cudnnGetFusedOpsVariantParamPackAttribute",
                                        "cudnnGetMultiHeadAttnWeights",
                                        "cudnnGetRNNLinLayerBiasParams",
                                        "cudnnGetRNNLinLayerMatrixParams",
                                        "cudnnGetReductionIndicesSize",
                                        "cudnnGetReductionWorkspaceSize",
                                        "cudnnIm2Col",
                                        "cudnnInitTransformDest",
                                        "cudnnSetAttnDescriptor",
                                        "cudnnSetCTCLossDescriptor",
                                        "cudnnSetCTCLossDescriptorEx",
                                        "cudnnSetOpTensorDescriptor",
                                        "cudnnSetSeqDataDescriptor",
                                        "cudnnSetTensorNdDescriptorEx",
                                        "cudnnSetTensorTransformDescriptor"};
    static const char *const others[] = {
        "cudnnSetTensorNdDescriptor",     "cudnnGetMultiHeadAttnBuffers",
        "cudnnGetOpTensorDescriptor",     "cudnnGetFusedOpsConstParamPackAttribute",
        "cudnnGetReduceTensorDescriptor", "cudnnGetRNNParamsSize",
        "cudnnSetPersistentRNNPlan"};
    const unsigned count = sizeof(names) / sizeof(names[0]);
    (void)state;
    for (unsigned i = 0; i < count + sizeof(others) / sizeof(others[0]); i++) {
        const char *name = i < count ? names[i] : others[i - count];
        const size_t size = strlen(name) + 1;
        for (size_t step = 1; step <= size; step++) {
            struct ibx_request_watch watch;
            uint8_t bytes[64], *last;
            unsigned found = 0;
            memcpy(bytes, name, size);
            ibx_request_watch_init(&watch);
            for (size_t at = 0; at < size; at += step) {
                const size_t n = size - at < step ? size - at : step;
                found |= ibx_shapes_barred(&watch, bytes + at, n, &last);
                ibx_request_note_read(&watch, bytes + at, n);
            }
            assert_int_equal(found, i < count ? IBX_BARRED : 0);
        }
    }
}

/* With an error, only compilers and linkers have something to send. */
static void answers_with_errors(void **state)
{
    static const char *const logs[] = {"cuModuleLoadDataEx", "cuLinkAddData",
                                       "nvrtcCompileProgram"};
    static const char *const unset[] = {"cudaMallocManaged",
                                        "cudaMemPoolGetAttribute",
                                        "cudaStreamCreate",
                                        "cudaMemcpyFromSymbol",
                                        "cuMemcpyDtoH_v2",
                                        "cuMemGetInfo",
                                        "cuModuleGetGlobal",
                                        "cublasCreate_v2",
                                        "cublasGetMatrix",
                                        "cublasGetVector",
                                        "cudnnFindConvolutionBackwardFilterAlgorithmEx",
                                        "cudnnGetConvolutionForwardAlgorithm_v7",
                                        "curandGenerateLongLong",
                                        "nvmlDeviceGetName",
                                        "nvmlSystemGetDriverVersion"};
    (void)state;
    for (unsigned i = 0; i < sizeof(logs) / sizeof(logs[0]); i++)
        assert_true(ibx_shapes_answers_errors(logs[i]));
    for (unsigned i = 0; i < sizeof(unset) / sizeof(unset[0]); i++)
        assert_false(ibx_shapes_answers_errors(unset[i]));
}

/* Whether all pieces of the bytes may belong to a name, in whatever pieces GVirtuS reads it. */
static bool may_be_name(const uint8_t *bytes, size_t size, size_t piece)
{
    struct ibx_request_watch watch;
    ibx_request_watch_init(&watch);
    for (size_t at = 0; at < size; at += piece) {
        const size_t n = size - at < piece ? size - at : piece;
        if (!ibx_shapes_is_name(&watch, bytes + at, n))
            return false;
        ibx_request_note_read(&watch, bytes + at, n);
    }
    return true;
}

static void names(void **state)
{
    (void)state;
    static const char odd[] = {'\n', ' ', '\x1b', '\x7f', '\x80', '\xff'};
    static const size_t pieces[] = {1, 7, 1000};
    uint8_t bytes[400];
    for (size_t i = 0; i < 3; i++) {
        memset(bytes, 'a', sizeof(bytes));
        assert_false(may_be_name(bytes, sizeof(bytes), pieces[i])); /* without an end */
        assert_true(may_be_name(bytes, 256, pieces[i]));
        assert_false(may_be_name(bytes, 257, pieces[i]));
        for (size_t k = 0; k < sizeof(odd); k++) {
            bytes[20] = (uint8_t)odd[k];
            assert_false(may_be_name(bytes, 30, pieces[i]));
        }
        bytes[20] = 0; /* the length follows */
        memset(bytes + 21, 0, 8);
        assert_true(may_be_name(bytes, 29, pieces[i]));
        bytes[21] = '\n';
        assert_true(may_be_name(bytes, 39, pieces[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(payloads),
        cmocka_unit_test(planes),
        cmocka_unit_test(planes_and_more),
        cmocka_unit_test(strings),
        cmocka_unit_test(nulls),
        cmocka_unit_test(truncated),
        cmocka_unit_test(barred),
        cmocka_unit_test(barred_without_an_address),
        cmocka_unit_test(answers_with_errors),
        cmocka_unit_test(names),
        cmocka_unit_test(capture_modes),
        cmocka_unit_test(driver_rows),
        cmocka_unit_test(volumes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
