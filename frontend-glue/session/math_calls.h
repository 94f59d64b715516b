/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests for functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE, cuSOLVER,
 * cuDNN and NCCL. GVirtuS has plugins for these libraries except NCCL, but many functions are
 * missing there or return something else: so all functions in math_*.def are called through these
 * requests. The preload makes them (preload/math_libraries/math_calls.c), and the back end's plugin
 * runs them (device_calls/math_calls.c) with the library that GVirtuS's plugin has loaded. NCCL it
 * loads itself.
 *
 * A line of the lists is MATH(name, use, arguments...). Both sides use it: for the exported
 * function, the encoding of its arguments, and the call. All functions return a status of the
 * library. docs/protocol.md has the table of bodies.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_MATH_CALLS_H
#define IBX_FRONTEND_GLUE_SESSION_MATH_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The names of the requests, by which call_pipeline/ knows how a request affects others. */
#define IBX_MATH_ADDS    "ibxMathAdds"    /* adds work to the handle's stream; has no output */
#define IBX_MATH_ADDS_IN "ibxMathAddsIn"  /* adds work to the stream in the body's last 8 bytes */
#define IBX_MATH_SELECTS "ibxMathSelects" /* selects the handle's stream, the last 8 bytes */
#define IBX_MATH_SETS_UP "ibxMathSetsUp"  /* changes, makes or destroys what other calls use */
#define IBX_MATH_WAITS   "ibxMathWaits"   /* waits for its output */
#define IBX_MATH_ASKS    "ibxMathAsks"    /* the same, and depends on no work of the device */
#define IBX_MATH_ABORTS  "ibxMathAborts"  /* as SetsUp, but comes before work that is under way */

/* Exit codes besides the library's own, which are not negative. */
#define IBX_MATH_ABSENT (-2) /* the back end lacks the library, or the library the function */

static inline bool ibx_math_is(const char *name)
{
    /* Each request is asked: most are calls of CUDA's, whose names begin with a "c". */
    return *name == 'i' && (!strcmp(name, IBX_MATH_ADDS) || !strcmp(name, IBX_MATH_ADDS_IN) ||
                            !strcmp(name, IBX_MATH_SELECTS) || !strcmp(name, IBX_MATH_SETS_UP) ||
                            !strcmp(name, IBX_MATH_WAITS) || !strcmp(name, IBX_MATH_ASKS) ||
                            !strcmp(name, IBX_MATH_ABORTS));
}

/* What a function does, which decides the name of its request. */
enum ibx_math_use {
    IBX_MATH_USE_ADDS, /* adds work; if it has output for the host, it waits for that */
    IBX_MATH_USE_SELECTS,
    IBX_MATH_USE_SETS_UP,
    IBX_MATH_USE_ENDS, /* destroys its first argument */
    IBX_MATH_USE_ASKS  /* adds no work */
};

/* Types of handles, in the order in which they are destroyed. */
enum ibx_math_type {
    IBX_MATH_COMM,  /* ncclComm_t */
    IBX_MATH_GRAPH, /* cudnnBackendDescriptor_t, and so on */
    IBX_MATH_TENSOR,
    IBX_MATH_FILTER,
    IBX_MATH_CONVOLUTION,
    IBX_MATH_ACTIVATION,
    IBX_MATH_POOLING,
    IBX_MATH_SPATIAL,
    IBX_MATH_RNN,
    IBX_MATH_RNNDATA,
    IBX_MATH_DROPOUT,
    IBX_MATH_DNN,    /* cudnnHandle_t */
    IBX_MATH_SPGEMM, /* cusparseSpGEMMDescr_t, and so on */
    IBX_MATH_SPSM,
    IBX_MATH_SPSV,
    IBX_MATH_SPMAT,
    IBX_MATH_DNMAT,
    IBX_MATH_SPVEC,
    IBX_MATH_DNVEC,
    IBX_MATH_CSRIC02, /* csric02Info_t, and so on */
    IBX_MATH_CSRILU02,
    IBX_MATH_BSRIC02,
    IBX_MATH_BSRILU02,
    IBX_MATH_CSRU2CSR,
    IBX_MATH_MATRIX,       /* cusparseMatDescr_t */
    IBX_MATH_SYEVJ,        /* syevjInfo_t */
    IBX_MATH_GESVDJ,       /* gesvdjInfo_t */
    IBX_MATH_PARAMS,       /* cusolverDnParams_t */
    IBX_MATH_IRSINFOS,     /* cusolverDnIRSInfos_t */
    IBX_MATH_IRSPARAMS,    /* cusolverDnIRSParams_t */
    IBX_MATH_CSRQR,        /* csrqrInfo_t */
    IBX_MATH_CSRCHOL,      /* csrcholInfo_t */
    IBX_MATH_REFACTOR,     /* cusolverRfHandle_t */
    IBX_MATH_SPSOLVER,     /* cusolverSpHandle_t */
    IBX_MATH_DISTRIBUTION, /* curandDiscreteDistribution_t */
    IBX_MATH_FFT,          /* cufftHandle, a plan */
    IBX_MATH_RNG,          /* curandGenerator_t */
    IBX_MATH_SPARSE,       /* cusparseHandle_t */
    IBX_MATH_SOLVER,       /* cusolverDnHandle_t */
    IBX_MATH_LT,           /* cublasLtHandle_t; one of cuBLAS's does as well */
    IBX_MATH_BLAS,         /* cublasHandle_t */
    IBX_MATH_TYPES
};

enum ibx_math_library {
    IBX_MATH_CUBLAS = 1,
    IBX_MATH_CURAND,
    IBX_MATH_CUFFT,
    IBX_MATH_CUSPARSE,
    IBX_MATH_CUSOLVER,
    IBX_MATH_CUBLASLT,
    IBX_MATH_CUDNN,
    IBX_MATH_NCCL,
    IBX_MATH_LIBRARIES /* one more than the last */
};

/* Arguments, as the lists name them. Numbers in brackets are bytes, or places of arguments.
 *   I, L, F, D      4 bytes; 8 bytes; float; double
 *   P, Z            an address on the device, which may be NULL; a stream
 *   H(t), N(t)      a handle of that type, as a pointer or an int: the request is of that
 *   K(t)            another handle; KN(t): or NULL
 *   M(t), MN(t)     where one that is made is written, likewise
 *   S(n)            a scalar of n bytes, in memory of the host or, by the handle's pointer mode, of
 *                   the device; R(n): a result there, X(n): both
 *   ST(k), ...      of the cudaDataType that argument k names; SP(k), RP(k): five of these
 *   SC(k, c)        of the type in which cublasComputeType_t k scales what is of cudaDataType c
 *   C(n)            n bytes of the host that it changes; or NULL
 *   W(k)            memory of the host in which it works, as much as argument k says
 *   O(n)            where n bytes for the host are written; NULL: nowhere
 *   A(k, n)         so many of n bytes as argument k says, in memory of the host; AN(k, n): or NULL
 *   AL(k, n)        likewise, where argument k has 8 bytes
 *   AC(k, c)        likewise, each of the real type in which cublasComputeType_t c scales
 *   ACL(k, c)       likewise, where argument k has 8 bytes
 *   BN(n)           n bytes of the host, or NULL; BT(k): of the cudaDataType that argument k names
 *   OA(k, n)        as O, for so many of n bytes as argument k says; OL(k): for so many bytes as
 *                   argument k, of 8 bytes, says
 *   T(t)            a descriptor of that type (math_descriptors.h), or NULL
 *   SA(k), SB(k)    alpha and beta, of the type and in the memory that the descriptor k says
 *   SS              a scalar of cuDNN's in memory of the host, or NULL: 8 bytes, of which a float
 *                   has 4
 *   AV(t, k)        so many elements as argument k says, of 8 bytes, of the type of cuDNN's
 *                   attributes that argument t names, in memory of the host, or NULL; CV(t, k):
 *                   that it changes
 *   V               a stream, in the body's last 8 bytes */
enum ibx_math_kind {
    IBX_MATH_INT,
    IBX_MATH_LONG,
    IBX_MATH_FLOAT,
    IBX_MATH_DOUBLE,
    IBX_MATH_DEVICE,
    IBX_MATH_STREAM,
    IBX_MATH_HANDLE,
    IBX_MATH_PLAN,
    IBX_MATH_OTHER,
    IBX_MATH_WORKSPACE,
    IBX_MATH_MAKES,
    IBX_MATH_MAKES_PLAN,
    IBX_MATH_SCALAR,
    IBX_MATH_RESULT,
    IBX_MATH_CHANGED,
    IBX_MATH_HOST_CHANGED,
    IBX_MATH_OUTPUT,
    IBX_MATH_ARRAY,
    IBX_MATH_ARRAY_OR_NULL,
    IBX_MATH_HOST_OR_NULL,
    IBX_MATH_DESCRIPTOR,
    IBX_MATH_ALPHA,
    IBX_MATH_BETA,
    IBX_MATH_LAST_STREAM,
    IBX_MATH_SCALING
};

/* The size of an argument: `n` bytes, or as argument `n` tells. */
enum ibx_math_size {
    IBX_MATH_BYTES,
    IBX_MATH_BYTES_OF_INT,  /* bytes of each element; argument `of` is their number */
    IBX_MATH_BYTES_OF_LONG, /* the same, with a number of 8 bytes */
    IBX_MATH_OF_TYPE,
    IBX_MATH_FIVE_OF_TYPE,
    IBX_MATH_OF_COMPUTE,
    IBX_MATH_OF_COMPUTE_LONG, /* ... of an array whose number of elements has 8 bytes */
    IBX_MATH_OF_ATTRIBUTE     /* cudnnBackendAttributeType_t, likewise */
};

/* MATH_BY_HAND(...): the preload has a hand-written function, which passes these arguments. */
#define MATH_BY_HAND MATH
/* The same, but that function has other parameters. */
#define MATH_APART MATH

struct ibx_math_argument {
    uint8_t kind; /* enum ibx_math_kind */
    uint8_t size; /* enum ibx_math_size */
    uint8_t n;    /* or what argument; of handles enum ibx_math_type, of descriptors theirs */
    uint8_t of;   /* arrays: the argument with the number of elements; SC: the second argument;
                     scalars: the descriptor; other handles: whether they may be NULL */
};

union ibx_math_value {
    int i;
    uint64_t l;
    float f;
    double d;
    void *p;
};

/* Whether the function makes what the argument points to, a handle or a plan; and that, when it has
 * been called. */
static inline bool ibx_math_is_made(const struct ibx_math_argument *a)
{
    return a->kind == IBX_MATH_MAKES || a->kind == IBX_MATH_MAKES_PLAN;
}
static inline uint64_t ibx_math_made(const struct ibx_math_argument *a, const void *at)
{
    uint64_t made = 0;
    memcpy(&made, at, a->kind == IBX_MATH_MAKES ? 8 : 4);
    return made;
}

#define IBX_MATH_ARGUMENTS 32u    /* arguments of a function, at most */
#define IBX_MATH_BODY      64000u /* bytes of a body, at most; a message has room for more */
#define IBX_MATH_ROOM      4096u  /* bytes of host memory in a call, without long arrays */
#define IBX_MATH_SHORT     1024u  /* bytes of an array that is not long, at most */
#define IBX_MATH_TENSORS   1024u  /* tensors of an execution of cuDNN, at most */
#define IBX_MATH_OUT       256u   /* bytes of a usual reply after the exit code */
#define IBX_MATH_OUT_MOST  12800u /* bytes of any reply, at most */

struct ibx_math_function {
    const char *name;
    uint16_t number; /* on the wire */
    uint8_t use;     /* enum ibx_math_use */
    uint8_t count;
    const struct ibx_math_argument *arguments;
    int (*call)(void *function, const union ibx_math_value *values);
};

/* On the wire, u16: the library's number, 4 bits, and the place in its list. */
enum ibx_math_number {
#define MATH(name, ...) IBX_MATH_##name,
    IBX_MATH_BEFORE_CUBLAS = IBX_MATH_CUBLAS << 12,
#include "frontend-glue/session/math_blas.def"
    IBX_MATH_BEHIND_CUBLAS,
    IBX_MATH_BEFORE_CURAND = IBX_MATH_CURAND << 12,
#include "frontend-glue/session/math_rng.def"
    IBX_MATH_BEHIND_CURAND,
    IBX_MATH_BEFORE_CUFFT = IBX_MATH_CUFFT << 12,
#include "frontend-glue/session/math_fft.def"
    IBX_MATH_BEHIND_CUFFT,
    IBX_MATH_BEFORE_CUSPARSE = IBX_MATH_CUSPARSE << 12,
#include "frontend-glue/session/math_sparse.def"
    IBX_MATH_BEHIND_CUSPARSE,
    IBX_MATH_BEFORE_CUSOLVER = IBX_MATH_CUSOLVER << 12,
#include "frontend-glue/session/math_solver.def"
    IBX_MATH_BEHIND_CUSOLVER,
    IBX_MATH_BEFORE_CUBLASLT = IBX_MATH_CUBLASLT << 12,
#include "frontend-glue/session/math_lt.def"
    IBX_MATH_BEHIND_CUBLASLT,
    IBX_MATH_BEFORE_CUDNN = IBX_MATH_CUDNN << 12,
#include "frontend-glue/session/math_dnn.def"
    IBX_MATH_BEHIND_CUDNN,
    IBX_MATH_BEFORE_NCCL = IBX_MATH_NCCL << 12,
#include "frontend-glue/session/math_nccl.def"
    IBX_MATH_BEHIND_NCCL
#undef MATH
};

#define IBX_MATH_OF(LIBRARY) (IBX_MATH_BEHIND_##LIBRARY - IBX_MATH_BEFORE_##LIBRARY - 1)
#define IBX_MATH_FUNCTIONS                                                                         \
    (IBX_MATH_OF(CUBLAS) + IBX_MATH_OF(CURAND) + IBX_MATH_OF(CUFFT) + IBX_MATH_OF(CUSPARSE) +      \
     IBX_MATH_OF(CUSOLVER) + IBX_MATH_OF(CUBLASLT) + IBX_MATH_OF(CUDNN) + IBX_MATH_OF(NCCL))

struct ibx_math_statuses {
    const char *file; /* the beginning of the library's file name */
    int not_initialized, no_memory, invalid_value, not_supported;
    unsigned pointer_mode; /* the function that returns it; 0: handles have none */
    enum ibx_math_type handle;
};

/* The function of this number; NULL: there is none. */
const struct ibx_math_function *ibx_math_find(unsigned number);
const struct ibx_math_statuses *ibx_math_statuses_of(unsigned number);
/* The i-th function of all; NULL: there are not so many. */
const struct ibx_math_function *ibx_math_each(size_t i);
/* Whether the function is cuBLASLt's. */
static inline bool ibx_math_is_lt(unsigned number)
{
    return number >> 12 == IBX_MATH_CUBLASLT;
}
/* Whether the function is cuFFT's. */
static inline bool ibx_math_is_fft(unsigned number)
{
    return number >> 12 == IBX_MATH_CUFFT;
}
/* Whether the function is cuDNN's. */
static inline bool ibx_math_is_dnn(unsigned number)
{
    return number >> 12 == IBX_MATH_CUDNN;
}
/* Whether the function is NCCL's. */
static inline bool ibx_math_is_nccl(unsigned number)
{
    return number >> 12 == IBX_MATH_NCCL;
}
/* Whether a call that returns this status has results: cuSPARSE's status that there is a zero pivot
 * comes with its position. */
bool ibx_math_has_results(unsigned number, int status);
/* Whether it names the stream to which it adds work. */
bool ibx_math_names_stream(const struct ibx_math_function *f);
/* The number of the function that destroys handles of this type. */
unsigned ibx_math_end_of(enum ibx_math_type type);

/* Whether the handle's pointer mode tells where scalars and results are. */
bool ibx_math_has_scalars(const struct ibx_math_function *f);
/* The bytes of a scalar, a result or an array, given the values of all arguments; 0: none, or
 * unknown. */
size_t ibx_math_bytes(const struct ibx_math_argument *a, const union ibx_math_value *values);
/* The bytes of a value of this cudaDataType; 0: not whole bytes, or unknown. */
size_t ibx_math_bytes_of_type(int type);

#endif
