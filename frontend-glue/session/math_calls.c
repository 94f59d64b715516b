/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/math_calls.h"

#include "frontend-glue/session/math_arguments.h"
#include "frontend-glue/session/math_descriptors.h"

/* ------------------------------------------------------------------------------- the lists */

#define ZERO_PIVOT 9 /* CUSPARSE_STATUS_ZERO_PIVOT */

#define ABOUT(k, a)                                                                                \
    {                                                                                              \
        ABOUT_##a                                                                                  \
    }
#define ABOUT_I         IBX_MATH_INT, 0, 0, 0
#define ABOUT_L         IBX_MATH_LONG, 0, 0, 0
#define ABOUT_F         IBX_MATH_FLOAT, 0, 0, 0
#define ABOUT_D         IBX_MATH_DOUBLE, 0, 0, 0
#define ABOUT_P         IBX_MATH_DEVICE, 0, 0, 0
#define ABOUT_Z         IBX_MATH_STREAM, 0, 0, 0
#define ABOUT_H(t)      IBX_MATH_HANDLE, 0, IBX_MATH_##t, 0
#define ABOUT_N(t)      IBX_MATH_PLAN, 0, IBX_MATH_##t, 0
#define ABOUT_M(t)      IBX_MATH_MAKES, 0, IBX_MATH_##t, 0
#define ABOUT_MN(t)     IBX_MATH_MAKES_PLAN, 0, IBX_MATH_##t, 0
#define ABOUT_S(n)      IBX_MATH_SCALAR, IBX_MATH_BYTES, n, 0
#define ABOUT_ST(k)     IBX_MATH_SCALAR, IBX_MATH_OF_TYPE, k, 0
#define ABOUT_SP(k)     IBX_MATH_SCALAR, IBX_MATH_FIVE_OF_TYPE, k, 0
#define ABOUT_SC(k, c)  IBX_MATH_SCALAR, IBX_MATH_OF_COMPUTE, k, c
#define ABOUT_R(n)      IBX_MATH_RESULT, IBX_MATH_BYTES, n, 0
#define ABOUT_RT(k)     IBX_MATH_RESULT, IBX_MATH_OF_TYPE, k, 0
#define ABOUT_RP(k)     IBX_MATH_RESULT, IBX_MATH_FIVE_OF_TYPE, k, 0
#define ABOUT_X(n)      IBX_MATH_CHANGED, IBX_MATH_BYTES, n, 0
#define ABOUT_XT(k)     IBX_MATH_CHANGED, IBX_MATH_OF_TYPE, k, 0
#define ABOUT_O(n)      IBX_MATH_OUTPUT, IBX_MATH_BYTES, n, 0
#define ABOUT_A(k, n)   IBX_MATH_ARRAY, IBX_MATH_BYTES_OF_INT, n, k
#define ABOUT_AN(k, n)  IBX_MATH_ARRAY_OR_NULL, IBX_MATH_BYTES_OF_INT, n, k
#define ABOUT_AL(k, n)  IBX_MATH_ARRAY, IBX_MATH_BYTES_OF_LONG, n, k
#define ABOUT_K(t)      IBX_MATH_OTHER, 0, IBX_MATH_##t, 0
#define ABOUT_C(n)      IBX_MATH_HOST_CHANGED, IBX_MATH_BYTES, n, 0
#define ABOUT_W(k)      IBX_MATH_WORKSPACE, 0, 0, k
#define ABOUT_BN(n)     IBX_MATH_HOST_OR_NULL, IBX_MATH_BYTES, n, 0
#define ABOUT_BT(k)     IBX_MATH_HOST_OR_NULL, IBX_MATH_OF_TYPE, k, 0
#define ABOUT_OA(k, n)  IBX_MATH_OUTPUT, IBX_MATH_BYTES_OF_INT, n, k
#define ABOUT_OL(k)     IBX_MATH_OUTPUT, IBX_MATH_BYTES_OF_LONG, 1, k
#define ABOUT_T(t)      IBX_MATH_DESCRIPTOR, 0, IBX_DESCRIPTOR_##t, 0
#define ABOUT_SA(k)     IBX_MATH_ALPHA, 0, 0, k
#define ABOUT_SB(k)     IBX_MATH_BETA, 0, 0, k
#define ABOUT_V         IBX_MATH_LAST_STREAM, 0, 0, 0
#define ABOUT_AC(k, c)  IBX_MATH_ARRAY, IBX_MATH_OF_COMPUTE, c, k
#define ABOUT_KN(t)     IBX_MATH_OTHER, 0, IBX_MATH_##t, 1
#define ABOUT_SS        IBX_MATH_SCALING, IBX_MATH_BYTES, 8, 0
#define ABOUT_AV(t, k)  IBX_MATH_ARRAY_OR_NULL, IBX_MATH_OF_ATTRIBUTE, t, k
#define ABOUT_CV(t, k)  IBX_MATH_HOST_CHANGED, IBX_MATH_OF_ATTRIBUTE, t, k
#define ABOUT_ACL(k, c) IBX_MATH_ARRAY, IBX_MATH_OF_COMPUTE_LONG, c, k

#define VALUE(k, a)         VALUE_OF(k, IBX_MEMBER_##a)
#define VALUE_OF(k, member) VALUE_AT(k, member)
#define VALUE_AT(k, member) end[-(k)].member

/* The library's types are pointers, integers and enumerations of the same sizes. */
#define MATH(name, use, ...)                                                                       \
    static const struct ibx_math_argument name##_arguments[] = {IBX_EACH(ABOUT, __VA_ARGS__)};     \
    IBX_UNSANITIZED static int name##_call(void *function, const union ibx_math_value *values)     \
    {                                                                                              \
        const union ibx_math_value *const end = values + IBX_COUNT(__VA_ARGS__);                   \
        int (*call)(IBX_EACH(IBX_TYPE, __VA_ARGS__)) = NULL;                                       \
        memcpy(&call, &function, sizeof(call));                                                    \
        return call(IBX_EACH(VALUE, __VA_ARGS__));                                                 \
    }
#include "frontend-glue/session/math_blas.def"
#include "frontend-glue/session/math_dnn.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_lt.def"
#include "frontend-glue/session/math_nccl.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_sparse.def"
#undef MATH

#define MATH(name, use, ...)                                                                       \
    {#name,      IBX_MATH_##name, IBX_MATH_USE_##use, IBX_COUNT(__VA_ARGS__), name##_arguments,    \
     name##_call},
static const struct ibx_math_function functions[] = {
#include "frontend-glue/session/math_blas.def"
#include "frontend-glue/session/math_rng.def"
#include "frontend-glue/session/math_fft.def"
#include "frontend-glue/session/math_sparse.def"
#include "frontend-glue/session/math_solver.def"
#include "frontend-glue/session/math_lt.def"
#include "frontend-glue/session/math_dnn.def"
#include "frontend-glue/session/math_nccl.def"
};
#undef MATH

/* Where a library's begin, and what is behind the last one's. */
#define BEFORE_FFT    (IBX_MATH_OF(CUBLAS) + IBX_MATH_OF(CURAND))
#define BEFORE_SPARSE (BEFORE_FFT + IBX_MATH_OF(CUFFT))
#define BEFORE_NCCL   (IBX_MATH_FUNCTIONS - IBX_MATH_OF(NCCL))
#define BEFORE_DNN    (BEFORE_NCCL - IBX_MATH_OF(CUDNN))
static const unsigned begins[IBX_MATH_LIBRARIES + 1] = {
    [IBX_MATH_CURAND] = IBX_MATH_OF(CUBLAS),
    [IBX_MATH_CUFFT] = BEFORE_FFT,
    [IBX_MATH_CUSPARSE] = BEFORE_SPARSE,
    [IBX_MATH_CUSOLVER] = BEFORE_SPARSE + IBX_MATH_OF(CUSPARSE),
    [IBX_MATH_CUBLASLT] = BEFORE_DNN - IBX_MATH_OF(CUBLASLT),
    [IBX_MATH_CUDNN] = BEFORE_DNN,
    [IBX_MATH_NCCL] = BEFORE_NCCL,
    [IBX_MATH_LIBRARIES] = IBX_MATH_FUNCTIONS,
};

static const struct ibx_math_statuses libraries[IBX_MATH_LIBRARIES] = {
    [IBX_MATH_CUBLAS] = {"libcublas.so", 1, 3, 7, 15, IBX_MATH_cublasGetPointerMode_v2,
                         IBX_MATH_BLAS},
    [IBX_MATH_CURAND] = {"libcurand.so", 101, 102, 104, 203, 0, IBX_MATH_RNG},
    [IBX_MATH_CUFFT] = {"libcufft.so", 1, 2, 4, 16, 0, IBX_MATH_FFT},
    [IBX_MATH_CUSPARSE] = {"libcusparse.so", 1, 2, 3, 10, IBX_MATH_cusparseGetPointerMode,
                           IBX_MATH_SPARSE},
    [IBX_MATH_CUSOLVER] = {"libcusolver.so", 1, 2, 3, 9, 0, IBX_MATH_SOLVER},
    [IBX_MATH_CUBLASLT] = {"libcublasLt.so", 1, 3, 7, 15, 0, IBX_MATH_LT},
    [IBX_MATH_CUDNN] = {"libcudnn.so", 1001, 4003, 2000, 3000, 0, IBX_MATH_DNN},
    [IBX_MATH_NCCL] = {"libnccl.so", 4, 2, 4, 5, 0, IBX_MATH_COMM},
};

const struct ibx_math_function *ibx_math_each(size_t i)
{
    return i < sizeof(functions) / sizeof(functions[0]) ? &functions[i] : NULL;
}

const struct ibx_math_function *ibx_math_find(unsigned number)
{
    const unsigned library = number >> 12, place = number & 0xfff;
    if (library < IBX_MATH_CUBLAS || library >= IBX_MATH_LIBRARIES || !place ||
        place > begins[library + 1] - begins[library])
        return NULL;
    return &functions[begins[library] + place - 1];
}

const struct ibx_math_statuses *ibx_math_statuses_of(unsigned number)
{
    return ibx_math_find(number) ? &libraries[number >> 12] : NULL;
}

unsigned ibx_math_end_of(enum ibx_math_type type)
{
    static const uint16_t ends[IBX_MATH_TYPES] = {
        [IBX_MATH_COMM] = IBX_MATH_ncclCommAbort,
        [IBX_MATH_GRAPH] = IBX_MATH_cudnnBackendDestroyDescriptor,
        [IBX_MATH_TENSOR] = IBX_MATH_cudnnDestroyTensorDescriptor,
        [IBX_MATH_FILTER] = IBX_MATH_cudnnDestroyFilterDescriptor,
        [IBX_MATH_CONVOLUTION] = IBX_MATH_cudnnDestroyConvolutionDescriptor,
        [IBX_MATH_ACTIVATION] = IBX_MATH_cudnnDestroyActivationDescriptor,
        [IBX_MATH_POOLING] = IBX_MATH_cudnnDestroyPoolingDescriptor,
        [IBX_MATH_SPATIAL] = IBX_MATH_cudnnDestroySpatialTransformerDescriptor,
        [IBX_MATH_RNN] = IBX_MATH_cudnnDestroyRNNDescriptor,
        [IBX_MATH_RNNDATA] = IBX_MATH_cudnnDestroyRNNDataDescriptor,
        [IBX_MATH_DROPOUT] = IBX_MATH_cudnnDestroyDropoutDescriptor,
        [IBX_MATH_DNN] = IBX_MATH_cudnnDestroy,
        [IBX_MATH_SPGEMM] = IBX_MATH_cusparseSpGEMM_destroyDescr,
        [IBX_MATH_SPSM] = IBX_MATH_cusparseSpSM_destroyDescr,
        [IBX_MATH_SPSV] = IBX_MATH_cusparseSpSV_destroyDescr,
        [IBX_MATH_SPMAT] = IBX_MATH_cusparseDestroySpMat,
        [IBX_MATH_DNMAT] = IBX_MATH_cusparseDestroyDnMat,
        [IBX_MATH_SPVEC] = IBX_MATH_cusparseDestroySpVec,
        [IBX_MATH_DNVEC] = IBX_MATH_cusparseDestroyDnVec,
        [IBX_MATH_CSRIC02] = IBX_MATH_cusparseDestroyCsric02Info,
        [IBX_MATH_CSRILU02] = IBX_MATH_cusparseDestroyCsrilu02Info,
        [IBX_MATH_BSRIC02] = IBX_MATH_cusparseDestroyBsric02Info,
        [IBX_MATH_BSRILU02] = IBX_MATH_cusparseDestroyBsrilu02Info,
        [IBX_MATH_CSRU2CSR] = IBX_MATH_cusparseDestroyCsru2csrInfo,
        [IBX_MATH_MATRIX] = IBX_MATH_cusparseDestroyMatDescr,
        [IBX_MATH_SYEVJ] = IBX_MATH_cusolverDnDestroySyevjInfo,
        [IBX_MATH_GESVDJ] = IBX_MATH_cusolverDnDestroyGesvdjInfo,
        [IBX_MATH_PARAMS] = IBX_MATH_cusolverDnDestroyParams,
        [IBX_MATH_IRSINFOS] = IBX_MATH_cusolverDnIRSInfosDestroy,
        [IBX_MATH_IRSPARAMS] = IBX_MATH_cusolverDnIRSParamsDestroy,
        [IBX_MATH_CSRQR] = IBX_MATH_cusolverSpDestroyCsrqrInfo,
        [IBX_MATH_CSRCHOL] = IBX_MATH_cusolverSpDestroyCsrcholInfo,
        [IBX_MATH_REFACTOR] = IBX_MATH_cusolverRfDestroy,
        [IBX_MATH_SPSOLVER] = IBX_MATH_cusolverSpDestroy,
        [IBX_MATH_SPARSE] = IBX_MATH_cusparseDestroy,
        [IBX_MATH_SOLVER] = IBX_MATH_cusolverDnDestroy,
        [IBX_MATH_DISTRIBUTION] = IBX_MATH_curandDestroyDistribution,
        [IBX_MATH_FFT] = IBX_MATH_cufftDestroy,
        [IBX_MATH_RNG] = IBX_MATH_curandDestroyGenerator,
        [IBX_MATH_LT] = IBX_MATH_cublasLtDestroy,
        [IBX_MATH_BLAS] = IBX_MATH_cublasDestroy_v2,
    };
    return ends[type];
}

/* ------------------------------------------------------------------------------- arguments */

bool ibx_math_has_scalars(const struct ibx_math_function *f)
{
    for (unsigned i = 0; i < f->count; i++) {
        const unsigned kind = f->arguments[i].kind;
        if (kind == IBX_MATH_SCALAR || kind == IBX_MATH_RESULT || kind == IBX_MATH_CHANGED)
            return true;
    }
    return false;
}

bool ibx_math_has_results(unsigned number, int status)
{
    return !status || (number >> 12 == IBX_MATH_CUSPARSE && status == ZERO_PIVOT);
}

bool ibx_math_names_stream(const struct ibx_math_function *f)
{
    return f->arguments[f->count - 1].kind == IBX_MATH_LAST_STREAM;
}

size_t ibx_math_bytes_of_type(int type)
{
    static const uint8_t bytes[] = {4, 8, 2, 1, 8, 16, 4, 2, 1, 2, 4,  8, 4,  8, 2,
                                    4, 0, 0, 0, 0, 2,  4, 2, 4, 8, 16, 8, 16, 1, 1};
    return type >= 0 && (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

/* cudnnBackendAttributeType_t: of an element; 0: it is not known here. */
static size_t bytes_of_attribute(int type)
{
    static const uint8_t bytes[] = {8, 4, 1, 8, 4, 8, 8, 4, 4, 4, 4,  4, 4, 4, 4, 8,
                                    4, 4, 4, 4, 4, 4, 4, 4, 1, 4, 16, 4, 4, 4, 4};
    return type >= 0 && (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

static bool is_complex(int type)
{
    return (type >= 4 && type <= 7) || (type > 7 && type < 28 && type % 2);
}

/* Of alpha and beta, by cublasComputeType_t and the type of what they scale. */
static size_t bytes_of_compute(int compute, int type)
{
    const size_t parts = is_complex(type) ? 2 : 1;
    switch (compute) {
    case 64: /* 16F */
    case 65:
        return 2 * parts;
    case 68: /* 32F */
    case 69:
    case 74:
    case 75:
    case 77:
    case 78:
    case 72: /* 32I */
    case 73:
        return 4 * parts;
    case 70: /* 64F */
    case 71:
    case 79:
        return 8 * parts;
    default:
        return 0;
    }
}

/* Of one. */
static size_t bytes_of_one(const struct ibx_math_argument *a, const union ibx_math_value *values)
{
    const bool array = a->kind == IBX_MATH_ARRAY || a->kind == IBX_MATH_ARRAY_OR_NULL;
    switch ((enum ibx_math_size)a->size) {
    case IBX_MATH_BYTES:
    case IBX_MATH_BYTES_OF_INT:
    case IBX_MATH_BYTES_OF_LONG:
        return a->n;
    case IBX_MATH_OF_TYPE:
        return ibx_math_bytes_of_type(values[a->n].i);
    case IBX_MATH_FIVE_OF_TYPE:
        return 5 * ibx_math_bytes_of_type(values[a->n].i);
    case IBX_MATH_OF_ATTRIBUTE:
        return bytes_of_attribute(values[a->n].i);
    case IBX_MATH_OF_COMPUTE:
    case IBX_MATH_OF_COMPUTE_LONG:
        return bytes_of_compute(values[a->n].i, array ? 0 : values[a->of].i);
    }
    return 0;
}

/* 0 also of more than a body has, or a reply. */
static size_t count_of(const struct ibx_math_argument *a, const union ibx_math_value *values)
{
    const bool array = a->kind == IBX_MATH_ARRAY || a->kind == IBX_MATH_ARRAY_OR_NULL;
    const bool is_long = a->size == IBX_MATH_BYTES_OF_LONG || a->size == IBX_MATH_OF_COMPUTE_LONG ||
                         a->size == IBX_MATH_OF_ATTRIBUTE;
    const int64_t most = a->kind == IBX_MATH_OUTPUT ? IBX_MATH_OUT_MOST : IBX_MATH_BODY;
    if (!array && !is_long && a->size != IBX_MATH_BYTES_OF_INT)
        return 1;
    const int64_t count = is_long ? (int64_t)values[a->of].l : values[a->of].i;
    return count > 0 && count <= most ? (size_t)count : 0;
}

size_t ibx_math_bytes(const struct ibx_math_argument *a, const union ibx_math_value *values)
{
    return count_of(a, values) * bytes_of_one(a, values);
}
