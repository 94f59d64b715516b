/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUresult. Most numbers are those of cudaError_t; a table converts the others. A call of the
 * driver that fails does not change cudaGetLastError(), unless the error is one that stays.
 */
#include "frontend-glue/driver_api/driver.h"

#include <stdlib.h>

struct number {
    int code;
    union {
        int result;       /* in `numbers`: the CUresult */
        const char *name; /* in `names` */
    } is;
};

/* Errors of the runtime that the driver does not have. Sorted for bsearch(3), like `names`. */
static const struct number numbers[] = {
    {9, {.result = CUDA_INVALID_VALUE}},     /* InvalidConfiguration */
    {12, {.result = CUDA_INVALID_VALUE}},    /* InvalidPitchValue */
    {13, {.result = CUDA_SYMBOL_NOT_FOUND}}, /* InvalidSymbol */
    {16, {.result = CUDA_INVALID_VALUE}},    /* InvalidHostPointer */
    {17, {.result = CUDA_INVALID_VALUE}},    /* InvalidDevicePointer */
    {18, {.result = CUDA_INVALID_VALUE}},    /* InvalidTexture */
    {19, {.result = CUDA_INVALID_VALUE}},    /* InvalidTextureBinding */
    {20, {.result = CUDA_INVALID_VALUE}},    /* InvalidChannelDescriptor */
    {21, {.result = CUDA_INVALID_VALUE}},    /* InvalidMemcpyDirection */
    {26, {.result = CUDA_INVALID_VALUE}},    /* InvalidFilterSetting */
    {27, {.result = CUDA_INVALID_VALUE}},    /* InvalidNormSetting */
    {35, {.result = 803}},                   /* InsufficientDriver: SYSTEM_DRIVER_MISMATCH */
    {36, {.result = CUDA_NOT_SUPPORTED}},    /* CallRequiresNewerDriver */
    {37, {.result = CUDA_INVALID_VALUE}},    /* InvalidSurface */
    {49, {.result = CUDA_INVALID_CONTEXT}},  /* IncompatibleDriverContext */
    {52, {.result = CUDA_INVALID_VALUE}},    /* MissingConfiguration */
    {53, {.result = 719}},                   /* PriorLaunchFailure */
    {65, {.result = 719}},                   /* LaunchMaxDepthExceeded */
    {66, {.result = 703}},                   /* LaunchFileScopedTex */
    {67, {.result = 703}},                   /* LaunchFileScopedSurf */
    {68, {.result = 719}},                   /* SyncDepthExceeded */
    {69, {.result = 719}},                   /* LaunchPendingCountExceeded */
    {98, {.result = CUDA_INVALID_HANDLE}},   /* InvalidDeviceFunction */
    {127, {.result = CUDA_UNKNOWN}},         /* StartupFailure */
};

static const struct number names[] = {
    {0, {.name = "CUDA_SUCCESS"}},
    {1, {.name = "CUDA_ERROR_INVALID_VALUE"}},
    {2, {.name = "CUDA_ERROR_OUT_OF_MEMORY"}},
    {3, {.name = "CUDA_ERROR_NOT_INITIALIZED"}},
    {4, {.name = "CUDA_ERROR_DEINITIALIZED"}},
    {5, {.name = "CUDA_ERROR_PROFILER_DISABLED"}},
    {6, {.name = "CUDA_ERROR_PROFILER_NOT_INITIALIZED"}},
    {7, {.name = "CUDA_ERROR_PROFILER_ALREADY_STARTED"}},
    {8, {.name = "CUDA_ERROR_PROFILER_ALREADY_STOPPED"}},
    {34, {.name = "CUDA_ERROR_STUB_LIBRARY"}},
    {36, {.name = "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER"}},
    {46, {.name = "CUDA_ERROR_DEVICE_UNAVAILABLE"}},
    {100, {.name = "CUDA_ERROR_NO_DEVICE"}},
    {101, {.name = "CUDA_ERROR_INVALID_DEVICE"}},
    {102, {.name = "CUDA_ERROR_DEVICE_NOT_LICENSED"}},
    {200, {.name = "CUDA_ERROR_INVALID_IMAGE"}},
    {201, {.name = "CUDA_ERROR_INVALID_CONTEXT"}},
    {202, {.name = "CUDA_ERROR_CONTEXT_ALREADY_CURRENT"}},
    {205, {.name = "CUDA_ERROR_MAP_FAILED"}},
    {206, {.name = "CUDA_ERROR_UNMAP_FAILED"}},
    {207, {.name = "CUDA_ERROR_ARRAY_IS_MAPPED"}},
    {208, {.name = "CUDA_ERROR_ALREADY_MAPPED"}},
    {209, {.name = "CUDA_ERROR_NO_BINARY_FOR_GPU"}},
    {210, {.name = "CUDA_ERROR_ALREADY_ACQUIRED"}},
    {211, {.name = "CUDA_ERROR_NOT_MAPPED"}},
    {212, {.name = "CUDA_ERROR_NOT_MAPPED_AS_ARRAY"}},
    {213, {.name = "CUDA_ERROR_NOT_MAPPED_AS_POINTER"}},
    {214, {.name = "CUDA_ERROR_ECC_UNCORRECTABLE"}},
    {215, {.name = "CUDA_ERROR_UNSUPPORTED_LIMIT"}},
    {216, {.name = "CUDA_ERROR_CONTEXT_ALREADY_IN_USE"}},
    {217, {.name = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}},
    {218, {.name = "CUDA_ERROR_INVALID_PTX"}},
    {219, {.name = "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT"}},
    {220, {.name = "CUDA_ERROR_NVLINK_UNCORRECTABLE"}},
    {221, {.name = "CUDA_ERROR_JIT_COMPILER_NOT_FOUND"}},
    {222, {.name = "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}},
    {223, {.name = "CUDA_ERROR_JIT_COMPILATION_DISABLED"}},
    {224, {.name = "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY"}},
    {225, {.name = "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC"}},
    {226, {.name = "CUDA_ERROR_CONTAINED"}},
    {300, {.name = "CUDA_ERROR_INVALID_SOURCE"}},
    {301, {.name = "CUDA_ERROR_FILE_NOT_FOUND"}},
    {302, {.name = "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND"}},
    {303, {.name = "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED"}},
    {304, {.name = "CUDA_ERROR_OPERATING_SYSTEM"}},
    {400, {.name = "CUDA_ERROR_INVALID_HANDLE"}},
    {401, {.name = "CUDA_ERROR_ILLEGAL_STATE"}},
    {402, {.name = "CUDA_ERROR_LOSSY_QUERY"}},
    {500, {.name = "CUDA_ERROR_NOT_FOUND"}},
    {600, {.name = "CUDA_ERROR_NOT_READY"}},
    {700, {.name = "CUDA_ERROR_ILLEGAL_ADDRESS"}},
    {701, {.name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}},
    {702, {.name = "CUDA_ERROR_LAUNCH_TIMEOUT"}},
    {703, {.name = "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING"}},
    {704, {.name = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"}},
    {705, {.name = "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"}},
    {708, {.name = "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"}},
    {709, {.name = "CUDA_ERROR_CONTEXT_IS_DESTROYED"}},
    {710, {.name = "CUDA_ERROR_ASSERT"}},
    {711, {.name = "CUDA_ERROR_TOO_MANY_PEERS"}},
    {712, {.name = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"}},
    {713, {.name = "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"}},
    {714, {.name = "CUDA_ERROR_HARDWARE_STACK_ERROR"}},
    {715, {.name = "CUDA_ERROR_ILLEGAL_INSTRUCTION"}},
    {716, {.name = "CUDA_ERROR_MISALIGNED_ADDRESS"}},
    {717, {.name = "CUDA_ERROR_INVALID_ADDRESS_SPACE"}},
    {718, {.name = "CUDA_ERROR_INVALID_PC"}},
    {719, {.name = "CUDA_ERROR_LAUNCH_FAILED"}},
    {720, {.name = "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"}},
    {721, {.name = "CUDA_ERROR_TENSOR_MEMORY_LEAK"}},
    {800, {.name = "CUDA_ERROR_NOT_PERMITTED"}},
    {801, {.name = "CUDA_ERROR_NOT_SUPPORTED"}},
    {802, {.name = "CUDA_ERROR_SYSTEM_NOT_READY"}},
    {803, {.name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}},
    {804, {.name = "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"}},
    {805, {.name = "CUDA_ERROR_MPS_CONNECTION_FAILED"}},
    {806, {.name = "CUDA_ERROR_MPS_RPC_FAILURE"}},
    {807, {.name = "CUDA_ERROR_MPS_SERVER_NOT_READY"}},
    {808, {.name = "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"}},
    {809, {.name = "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED"}},
    {810, {.name = "CUDA_ERROR_MPS_CLIENT_TERMINATED"}},
    {811, {.name = "CUDA_ERROR_CDP_NOT_SUPPORTED"}},
    {812, {.name = "CUDA_ERROR_CDP_VERSION_MISMATCH"}},
    {900, {.name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}},
    {901, {.name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"}},
    {902, {.name = "CUDA_ERROR_STREAM_CAPTURE_MERGE"}},
    {903, {.name = "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"}},
    {904, {.name = "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"}},
    {905, {.name = "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}},
    {906, {.name = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}},
    {907, {.name = "CUDA_ERROR_CAPTURED_EVENT"}},
    {908, {.name = "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"}},
    {909, {.name = "CUDA_ERROR_TIMEOUT"}},
    {910, {.name = "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE"}},
    {911, {.name = "CUDA_ERROR_EXTERNAL_DEVICE"}},
    {912, {.name = "CUDA_ERROR_INVALID_CLUSTER_SIZE"}},
    {913, {.name = "CUDA_ERROR_FUNCTION_NOT_LOADED"}},
    {914, {.name = "CUDA_ERROR_INVALID_RESOURCE_TYPE"}},
    {915, {.name = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"}},
    {916, {.name = "CUDA_ERROR_KEY_ROTATION"}},
    {999, {.name = "CUDA_ERROR_UNKNOWN"}},
};

static int by_code(const void *code, const void *number)
{
    return *(const int *)code - ((const struct number *)number)->code;
}

#define FIND(code, numbers)                                                                        \
    bsearch(&(code), numbers, sizeof(numbers) / sizeof((numbers)[0]), sizeof((numbers)[0]), by_code)

int ibx_driver_result(int rc)
{
    const struct number *found = rc ? FIND(rc, numbers) : NULL;
    return found ? found->is.result : rc < 0 || rc > CUDA_UNKNOWN ? CUDA_UNKNOWN : rc;
}

int ibx_driver_begin(struct ibx_driver_call *call, bool in_context)
{
    ibx_frontend_drives(&call->errors);
    const enum ibx_frontend_use use = ibx_frontend_take_use();
    if (use != IBX_RUNTIME_UNUSED || ibx_frontend_begun_ever()) /* by another thread */
        ibx_driver_set_initialized();
    if (use == IBX_RUNTIME_USED)
        ibx_driver_runtime_used();
    if (!ibx_driver_initialized())
        return CUDA_NOT_INITIALIZED;
    if (ibx_frontend_unloads())
        return CUDA_UNLOADING;
    const int rc = ibx_driver_adopt();
    return in_context ? rc : CUDA_SUCCESS;
}

int ibx_driver_end(const struct ibx_driver_call *call, int begun, int rc)
{
    ibx_frontend_drove(&call->errors, rc && !begun && rc != CUDA_NOT_READY);
    return ibx_driver_result(rc);
}

/* ------------------------------------------------------------------------------- names */

EXPORTED int cuGetErrorName(int error, const char **name)
{
    const struct number *found = FIND(error, names);
    if (!name)
        return CUDA_INVALID_VALUE;
    *name = found ? found->is.name : NULL;
    return found ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

/* The runtime has the same meanings for the same numbers. */
EXPORTED int cuGetErrorString(int error, const char **meaning)
{
    const struct number *found = FIND(error, names);
    if (!meaning)
        return CUDA_INVALID_VALUE;
    *meaning = found ? cudaGetErrorString(error) : NULL;
    return found ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}
