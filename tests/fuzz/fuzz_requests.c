/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Requests of GVirtuS from clients that send anything, as they are checked before their handlers
 * run. Nothing beyond a body is read or written, and no client gets what another tenant has
 * registered. Input, in this order, repeatedly:
 *
 * - u8 which client (its lower two bits; 2 and 3 are of another tenant) and, from bit 2 on, which
 *   request;
 * - u16 n, and n bytes: its body. */
#include "common/wire.h"
#include "frontend-glue/gvirtus_handlers/client_functions.h"
#include "frontend-glue/gvirtus_handlers/named_memory.h"
#include "frontend-glue/gvirtus_handlers/request_shapes.h"
#include "tests/fuzz/require.h"
#include "tests/fuzz/quiet.h"

#include "common/quota.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CLIENTS   4u
#define BODY_MAX  1024u
#define QUOTA     4096u /* bytes of registrations, for both clients of a tenant together */
#define ADDRESSES 4u    /* addresses for which clients are asked afterwards */

static const char *const names[] = {
    "cudaRegisterFatBinary",
    "cudaRegisterFunction",
    "cudaRegisterVar",
    "cudaRegisterSharedVar",
    "cudaUnregisterFatBinary",
    "cudaFuncGetAttributes",
    "cudaFuncSetAttribute",
    "cudaLaunchKernel",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaMemcpy",
    "cudaMemcpyAsync",
    "cudaMemcpy2D",
    "cudaMemcpy3D",
    "cuMemcpy2D",
    "cudaMemcpyToSymbol",
    "cudaMemcpyFromSymbol",
    "cudaMemcpyToArray",
    "cudaMemcpyFromArray",
    "cudaMemcpyArrayToArray",
    "cudaMemcpy2DToArray",
    "cudaMemcpy2DFromArray",
    "cudaMemcpyPeerAsync",
    "cudaMemset",
    "cudaMemset2D",
    "cudaMemsetAsync",
    "cudaMalloc",
    "cudaMallocPitch",
    "cudaMallocArray",
    "cudaMalloc3DArray",
    "cudaMallocAsync",
    "cudaMallocManaged",
    "cudaFree",
    "cudaFreeArray",
    "cudaSetValidDevices",
    "cudaGetDeviceProperties",
    "cudaGraphInstantiate",
    "cudaIpcGetMemHandle",
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpy",
    "cuArrayCreate",
    "cuModuleLoadDataEx",
    "cublasGetMatrix",
    "cublasGetVector",
    "cublasSetMatrix",
    "cublasSetVector",
    "cudnnGetLastErrorString",
    "curandGenerate",
    "cudaCreateTextureObject",
    "cudaGetChannelDesc",
    "cudaGetSymbolSize",
    "cudaGraphLaunch",
    "cudaGraphExecDestroy",
    "cudaThreadExchangeStreamCaptureMode",
    "cuMemsetD32Async",
    "cuStreamWriteValue32",
    "cudnnFindConvolutionForwardAlgorithmEx",
    "cudnnSetTensorNdDescriptor",
    "cufftPlanMany",
    "cufftMakePlanMany",
    "cuDeviceGetName",
    "cuParamSetv",
    "cudaGraphGetNodes",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

static struct ibx_functions_user users[CLIENTS];
static uint64_t kernels[CLIENTS]; /* the last kernel that it has registered, as GVirtuS knows it */
static struct ibx_quota quotas[CLIENTS];

/* What the request names, as isolation.c treats it. */
static void look_at_memory(const char *name, uint8_t *body, size_t n)
{
    struct ibx_named named[IBX_NAMED_MAX];
    enum ibx_naming_role role;
    const unsigned count = ibx_naming_find(name, body, n, &role, named);
    require(count <= IBX_NAMED_MAX);
    for (unsigned i = 0; i < count; i++)
        ibx_naming_invalidate(&named[i], body, n);
    if (ibx_naming_allocates(name)) {
        ibx_naming_allocation(name, body, n);
        ibx_naming_enlarge(name, body, n);
    }
    ibx_naming_allocated(body, n);
}

/* Where a registration has its function: after the name of its module. */
static uint8_t *function_in(uint8_t *body, size_t n)
{
    struct ibx_reader r = ibx_reader_of(body, n);
    const uint64_t length = ibx_get_u64(&r), again = ibx_get_u64(&r);
    return !r.failed && length == again && length <= n - 16 && n - 16 - length >= 8
               ? body + 16 + length
               : NULL;
}

static uint64_t kernel_in(const char *name, uint8_t *body, size_t n)
{
    const uint8_t *function = function_in(body, n);
    struct ibx_reader r = ibx_reader_of(function, function ? 8 : 0);
    return strcmp(name, "cudaRegisterFunction") ? 0 : ibx_get_u64(&r);
}

/* One that is registered has got a name. It has none if it is refused, or as long as nobody has
 * registered a module: then it is whatever the client says, perhaps another's. */
static void name_kernel(unsigned client, const char *name, uint8_t *body, size_t n)
{
    const uint64_t before = kernel_in(name, body, n);
    uint64_t kept;
    const bool fitted = ibx_fat_binary_fits(body, n, &kept);
    ibx_functions_name(&users[client], name, body, n, 0);
    /* What the handler finds is what was checked. */
    require(!fitted || strcmp(name, "cudaRegisterFatBinary") ||
            ibx_fat_binary_fits(body, n, &kept));
    const uint64_t now = kernel_in(name, body, n);
    if (now && now != before)
        kernels[client] = now;
}

/* Neither by the runtime's name for a kernel, nor by an address. */
static void require_own(unsigned client)
{
    for (unsigned other = 0; other < CLIENTS; other++) {
        if (kernels[other] && users[other].tenant != users[client].tenant)
            require(!ibx_functions_address(&users[client], kernels[other]));
    }
    for (uint64_t address = 0; address < ADDRESSES; address++) {
        const uint64_t name = ibx_functions_take(&users[client], address);
        for (unsigned other = 0; name && other < CLIENTS; other++)
            require(users[other].tenant == users[client].tenant || kernels[other] != name);
        ibx_functions_let_go(&users[client]);
    }
}

static void request(unsigned client, const char *name, const uint8_t *bytes, size_t n)
{
    uint8_t *body = malloc(n ? n : 1); /* not a byte to spare */
    require(body);
    memcpy(body, bytes, n);
    name_kernel(client, name, body, n);
    ibx_functions_let_go(&users[client]);
    require_own(client);
    const uint64_t unpacked = ibx_fat_binary_unpacked(body, n);
    uint64_t kept = 0;
    require(!ibx_fat_binary_fits(body, n, &kept) ||
            (unpacked / 2 <= INT_MAX && kept / 4 <= n * UINT64_C(256)));
    ibx_image_string_fits(body, n);
    struct ibx_load_options options = {.count = 0};
    ibx_load_options_sanitize(body, n, &options);
    ibx_load_options_fit(body, n);
    ibx_load_options_answer(&options, body, n);
    ibx_shapes_sanitize(name, body, n);
    ibx_library_shapes_sanitize(name, body, n, 0);
    ibx_library_arrays_sanitize(name, body, n);
    look_at_memory(name, body, n);
    ibx_library_clear_rest(ibx_library_rest_of(name), body, n);
    free(body);
}

/* Each input has its own clients; what they leave is freed like that of ended processes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t last_client;
    char name[IBX_FUNCTIONS_MODULE];
    struct ibx_reader r = ibx_reader_of(data, size);
    memset(kernels, 0, sizeof(kernels));
    for (unsigned i = 0; i < CLIENTS; i++) {
        users[i] = (struct ibx_functions_user){
            .client = last_client + 1,
            .parent = i & 1 ? last_client : 0,
            .tenant = (const struct ibx_tenant *)(uintptr_t)(0x1000 * (1 + i / 2)),
            .quota = &quotas[i / 2]};
        quotas[i / 2] = (struct ibx_quota){.most = QUOTA};
        last_client++;
        ibx_functions_share(&users[i], 0);
    }
    while (ibx_reader_left(&r)) {
        const uint8_t what = ibx_get_u8(&r);
        const size_t n = ibx_get_u16(&r) % BODY_MAX;
        const uint8_t *body = ibx_get_bytes(&r, n < ibx_reader_left(&r) ? n : ibx_reader_left(&r));
        if (r.failed)
            break;
        request(what % CLIENTS, names[what / CLIENTS % NAMES], body,
                (size_t)(data + r.position - body));
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        ibx_functions_ended(users[i].client);
    while (ibx_functions_next_over(name))
        ;
    return 0;
}
