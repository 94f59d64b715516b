/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of NVIDIA's libraries on top of CUDA that a remote GPU cannot have. Python modules are
 * loaded with all their functions resolved (RTLD_NOW), and CuPy's refer to some of these in each
 * library: without them cuFFT, cuSOLVER and cuSPARSE could not be imported. They return the
 * library's own "not supported", and log their name once. If a front end of GVirtuS has the
 * function, it gets the call; all registers and stack words that may hold arguments are passed on.
 */
#include "frontend-glue/preload/preload.h"

#include <stdio.h>

/* The prototypes are in the libraries' headers. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define BLAS   15 /* CUBLAS_STATUS_NOT_SUPPORTED */
#define FFT    16 /* CUFFT_NOT_SUPPORTED */
#define SOLVER 9  /* CUSOLVER_STATUS_NOT_SUPPORTED */
#define SPARSE 10 /* CUSPARSE_STATUS_NOT_SUPPORTED */

static int absent(const char *call, int status, atomic_flag *told)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", status);
    return ibx_frontend_absent(call, status, number, told);
}

/* Arguments of unknown types: integers and addresses, and up to four floating-point values. The
 * latter have their own registers, so their position among the others does not matter. */
#define WORDS                                                                                      \
    uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, uintptr_t g,     \
        uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l, uintptr_t m, uintptr_t n, \
        uintptr_t o, uintptr_t p, uintptr_t q, uintptr_t r, uintptr_t s, uintptr_t t
#define PARAMETERS (double v, double w, double x, double y, WORDS)

#define ABSENT(call)                                                                               \
    __attribute__((visibility("default"))) int call PARAMETERS                                     \
    {                                                                                              \
        static atomic_flag told = ATOMIC_FLAG_INIT;                                                \
        static _Atomic(void *) found;                                                              \
        int(*const next) PARAMETERS = (int(*) PARAMETERS)ibx_frontend_next(&found, #call);         \
        return next ? next(v, w, x, y, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t) \
                    : absent(#call, STATUS, &told);                                                \
    }

/* cuBLAS and cuBLASLt. */
#undef STATUS
#define STATUS BLAS
ABSENT(cublasGetLoggerCallback)
ABSENT(cublasLoggerConfigure)
ABSENT(cublasLtEmulationDescCreate)
ABSENT(cublasLtEmulationDescDestroy)
ABSENT(cublasLtEmulationDescGetAttribute)
ABSENT(cublasLtEmulationDescInit_internal)
ABSENT(cublasLtEmulationDescSetAttribute)
ABSENT(cublasSetLoggerCallback)
ABSENT(cublasUint8gemmBias)
ABSENT(cublasXerbla)
ABSENT(cublasXtCspmm)
ABSENT(cublasXtDspmm)
ABSENT(cublasXtSspmm)
ABSENT(cublasXtZspmm)

/* cuFFT: several GPUs, callbacks. */
#undef STATUS
#define STATUS FFT
ABSENT(cufftXtClearCallback)
ABSENT(cufftXtExecDescriptor)
ABSENT(cufftXtExecDescriptorC2R)
ABSENT(cufftXtExecDescriptorD2Z)
ABSENT(cufftXtExecDescriptorR2C)
ABSENT(cufftXtExecDescriptorZ2D)
ABSENT(cufftXtExecDescriptorZ2Z)
ABSENT(cufftXtQueryPlan)
ABSENT(cufftXtSetCallbackSharedSize)
ABSENT(cufftXtSetJITCallback)
ABSENT(cufftXtSetWorkArea)

/* cuSOLVER: host algorithms, complex numbers by value, distributed functions. */
#undef STATUS
#define STATUS SOLVER
ABSENT(cusolverDnIRSInfosGetResidualHistory)
ABSENT(cusolverRfBatchSetupHost)
ABSENT(cusolverRfBatchZeroPivot)
ABSENT(cusolverRfExtractBundledFactorsHost)
ABSENT(cusolverRfExtractSplitFactorsHost)
ABSENT(cusolverRfSetupHost)
ABSENT(cusolverSpCcsreigsHost)
ABSENT(cusolverSpCcsreigvsi)
ABSENT(cusolverSpCcsreigvsiHost)
ABSENT(cusolverSpCcsrlsqvqrHost)
ABSENT(cusolverSpCcsrzfdHost)
ABSENT(cusolverSpDcsreigsHost)
ABSENT(cusolverSpDcsreigvsiHost)
ABSENT(cusolverSpDcsrlsqvqrHost)
ABSENT(cusolverSpDcsrzfdHost)
ABSENT(cusolverSpScsreigsHost)
ABSENT(cusolverSpScsreigvsiHost)
ABSENT(cusolverSpScsrlsqvqrHost)
ABSENT(cusolverSpScsrzfdHost)
ABSENT(cusolverSpXcsrissymHost)
ABSENT(cusolverSpXcsrmetisndHost)
ABSENT(cusolverSpXcsrpermHost)
ABSENT(cusolverSpXcsrperm_bufferSizeHost)
ABSENT(cusolverSpXcsrsymamdHost)
ABSENT(cusolverSpXcsrsymmdqHost)
ABSENT(cusolverSpXcsrsymrcmHost)
ABSENT(cusolverSpZcsreigsHost)
ABSENT(cusolverSpZcsreigvsi)
ABSENT(cusolverSpZcsreigvsiHost)
ABSENT(cusolverSpZcsrlsqvqrHost)
ABSENT(cusolverSpZcsrzfdHost)

/* cuSPARSE: functions that its header calls deprecated (blocks, compression, colouring). */
#undef STATUS
#define STATUS SPARSE
ABSENT(cusparseCbsrilu02_numericBoost)
ABSENT(cusparseCbsrxmv)
ABSENT(cusparseCcsr2csr_compress)
ABSENT(cusparseCcsr2gebsr)
ABSENT(cusparseCcsr2gebsr_bufferSize)
ABSENT(cusparseCcsrcolor)
ABSENT(cusparseCcsrilu02_numericBoost)
ABSENT(cusparseCgebsr2csr)
ABSENT(cusparseCgebsr2gebsc)
ABSENT(cusparseCgebsr2gebsc_bufferSize)
ABSENT(cusparseCgebsr2gebsr)
ABSENT(cusparseCgebsr2gebsr_bufferSize)
ABSENT(cusparseCnnz_compress)
ABSENT(cusparseCreateColorInfo)
ABSENT(cusparseCreatePruneInfo)
ABSENT(cusparseDbsrilu02_numericBoost)
ABSENT(cusparseDbsrxmv)
ABSENT(cusparseDcsr2gebsr)
ABSENT(cusparseDcsr2gebsr_bufferSize)
ABSENT(cusparseDcsrcolor)
ABSENT(cusparseDcsrilu02_numericBoost)
ABSENT(cusparseDestroyColorInfo)
ABSENT(cusparseDestroyPruneInfo)
ABSENT(cusparseDgebsr2csr)
ABSENT(cusparseDgebsr2gebsc)
ABSENT(cusparseDgebsr2gebsc_bufferSize)
ABSENT(cusparseDgebsr2gebsr)
ABSENT(cusparseDgebsr2gebsr_bufferSize)
ABSENT(cusparseDnnz_compress)
ABSENT(cusparseDpruneCsr2csr)
ABSENT(cusparseDpruneCsr2csrByPercentage)
ABSENT(cusparseDpruneCsr2csrByPercentage_bufferSizeExt)
ABSENT(cusparseDpruneCsr2csrNnz)
ABSENT(cusparseDpruneCsr2csrNnzByPercentage)
ABSENT(cusparseDpruneCsr2csr_bufferSizeExt)
ABSENT(cusparseDpruneDense2csr)
ABSENT(cusparseDpruneDense2csrByPercentage)
ABSENT(cusparseDpruneDense2csrByPercentage_bufferSizeExt)
ABSENT(cusparseDpruneDense2csrNnz)
ABSENT(cusparseDpruneDense2csrNnzByPercentage)
ABSENT(cusparseDpruneDense2csr_bufferSizeExt)
ABSENT(cusparseLoggerForceDisable)
ABSENT(cusparseLoggerOpenFile)
ABSENT(cusparseLoggerSetCallback)
ABSENT(cusparseLoggerSetFile)
ABSENT(cusparseLoggerSetLevel)
ABSENT(cusparseLoggerSetMask)
ABSENT(cusparseSbsrilu02_numericBoost)
ABSENT(cusparseSbsrxmv)
ABSENT(cusparseScsr2gebsr)
ABSENT(cusparseScsr2gebsr_bufferSize)
ABSENT(cusparseScsrcolor)
ABSENT(cusparseScsrilu02_numericBoost)
ABSENT(cusparseSgebsr2csr)
ABSENT(cusparseSgebsr2gebsc)
ABSENT(cusparseSgebsr2gebsc_bufferSize)
ABSENT(cusparseSgebsr2gebsr)
ABSENT(cusparseSgebsr2gebsr_bufferSize)
ABSENT(cusparseSnnz_compress)
ABSENT(cusparseSpMMOp)
ABSENT(cusparseSpMMOp_createPlan)
ABSENT(cusparseSpMMOp_destroyPlan)
ABSENT(cusparseSpruneCsr2csr)
ABSENT(cusparseSpruneCsr2csrByPercentage)
ABSENT(cusparseSpruneCsr2csrByPercentage_bufferSizeExt)
ABSENT(cusparseSpruneCsr2csrNnz)
ABSENT(cusparseSpruneCsr2csrNnzByPercentage)
ABSENT(cusparseSpruneCsr2csr_bufferSizeExt)
ABSENT(cusparseSpruneDense2csr)
ABSENT(cusparseSpruneDense2csrByPercentage)
ABSENT(cusparseSpruneDense2csrByPercentage_bufferSizeExt)
ABSENT(cusparseSpruneDense2csrNnz)
ABSENT(cusparseSpruneDense2csrNnzByPercentage)
ABSENT(cusparseSpruneDense2csr_bufferSizeExt)
ABSENT(cusparseXcsr2gebsrNnz)
ABSENT(cusparseXgebsr2gebsrNnz)
ABSENT(cusparseZbsrilu02_numericBoost)
ABSENT(cusparseZbsrxmv)
ABSENT(cusparseZcsr2csr_compress)
ABSENT(cusparseZcsr2gebsr)
ABSENT(cusparseZcsr2gebsr_bufferSize)
ABSENT(cusparseZcsrcolor)
ABSENT(cusparseZcsrilu02_numericBoost)
ABSENT(cusparseZgebsr2csr)
ABSENT(cusparseZgebsr2gebsc)
ABSENT(cusparseZgebsr2gebsc_bufferSize)
ABSENT(cusparseZgebsr2gebsr)
ABSENT(cusparseZgebsr2gebsr_bufferSize)
ABSENT(cusparseZnnz_compress)
