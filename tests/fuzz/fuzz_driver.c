/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls of the driver API (driver_api/) of an application whose back end answers anything. A
 * call writes only what its caller has named, in memory without a spare byte, and each call
 * ends.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end. Input, in this order:
 *
 * - u8 n, and n steps of two bytes: a call and its arguments, see run_step();
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/runtime/runtime.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/driver_api/driver.h"

#include "tests/fuzz/fake_frontend.h"

#include <stdlib.h>

/* Replaces launches.c: no node's arguments are contiguous. */
bool ibx_driver_is_packed(void *const *extra)
{
    (void)extra;
    return false;
}

int ibx_driver_unpack(struct ibx_driver_arguments *a, const void *function, void **extra)
{
    (void)a, (void)function, (void)extra;
    return CUDA_NOT_SUPPORTED;
}

void ibx_driver_unpacked(struct ibx_driver_arguments *a)
{
    (void)a;
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HANDLES    4u
#define FAR_DEVICE 100
#define CALLS      4096u /* requests to the back end in one call */

static uint64_t handles[HANDLES];
static void *named[16];
static unsigned named_count, calls;

/* ------------------------------------------------------------ replaced functions of other files */

/* An answer of this length. */
static int answer(void *to, size_t n)
{
    int rc = CUDA_UNKNOWN;
    const struct ibx_frontend_request request = {.name = "call", .out = to, .out_n = n};
    require(++calls < CALLS);
    return ibx_frontend_plugin()->call(&request, &rc) ? CUDA_UNKNOWN : rc;
}

/* Always the same, so that nothing is left for later inputs. */
int ibx_frontend_current_device(void)
{
    return FAR_DEVICE;
}
int ibx_driver_begin(struct ibx_driver_call *call, bool in_context)
{
    (void)call, (void)in_context;
    return CUDA_SUCCESS;
}
int ibx_driver_end(const struct ibx_driver_call *call, int begun, int rc)
{
    (void)call, (void)begun;
    return rc;
}
struct ibx_driver_context *ibx_driver_current(void)
{
    return NULL;
}
bool ibx_driver_is_context(const void *context)
{
    (void)context;
    return true;
}
int ibx_driver_device_of(const void *context)
{
    (void)context;
    return 0;
}
void *ibx_driver_primary(int device)
{
    (void)device;
    return NULL;
}
void ibx_driver_launches_forget(const void *library)
{
    (void)library;
}
bool ibx_driver_config(struct launch_config *config, const struct ibx_driver_launch *launch)
{
    memset(config, 0, sizeof(*config));
    return launch != NULL;
}
int ibx_frontend_no_kernel(const void *function)
{
    return function ? CUDA_SUCCESS : CUDA_INVALID_HANDLE;
}
unsigned ibx_frontend_modules_gone(void)
{
    static unsigned gone; /* nothing is known from the previous input */
    return named_count ? gone : ++gone;
}
enum ibx_image_kind ibx_image_measure(const void **code, size_t most, size_t *n)
{
    (void)most;
    *n = strlen(*code);
    return IBX_IMAGE_PTX;
}
int ibx_frontend_library_try(void *library, bool *tried)
{
    (void)library;
    *tried = true;
    return answer(NULL, 0);
}

int ibx_frontend_library_use(void *library)
{
    (void)library;
    return answer(NULL, 0);
}

void *ibx_frontend_library_of(const void *kernel)
{
    (void)kernel;
    return NULL;
}
void ibx_frontend_reserved_memory(void *address, size_t n)
{
    (void)address, (void)n;
}
bool ibx_frontend_host_range(const void *address, struct range *range)
{
    (void)address, (void)range;
    return false;
}
bool ibx_frontend_variable_at(const void *address, struct range *range)
{
    (void)address, (void)range;
    return false;
}
int cudaFuncGetAttributes(void *attributes, const void *function)
{
    (void)function;
    return answer(attributes, 144); /* the size in CUDA 12 */
}
int cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return answer(NULL, 0);
}
int cudaFuncSetCacheConfig(const void *function, int config)
{
    (void)function, (void)config;
    return answer(NULL, 0);
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                           int threads, size_t shared,
                                                           unsigned flags)
{
    (void)function, (void)threads, (void)shared, (void)flags;
    return answer(blocks, sizeof(*blocks));
}
int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    (void)device, (void)peer;
    return answer(can, sizeof(*can));
}
int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)attribute, (void)device;
    return answer(value, sizeof(*value));
}
int cudaGetDeviceProperties(void *properties, int device)
{
    (void)device;
    return answer(properties, 1032);
}
int cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *address)
{
    (void)address;
    return answer(attributes, sizeof(*attributes));
}
int cudaGraphInstantiateWithParams(void **exec, void *graph, struct instantiate_parameters *p)
{
    (void)graph, (void)p;
    return answer(exec, sizeof(*exec));
}
int cudaLibraryLoadData(void **library, const void *code, const int *options, void *const *values,
                        unsigned count, const int *library_options, void *const *library_values,
                        unsigned library_count)
{
    (void)code, (void)options, (void)values, (void)count;
    (void)library_options, (void)library_values, (void)library_count;
    return answer(library, sizeof(*library));
}
int cudaLibraryLoadFromFile(void **library, const char *path, const int *options,
                            void *const *values, unsigned count, const int *library_options,
                            void *const *library_values, unsigned library_count)
{
    (void)path;
    return cudaLibraryLoadData(library, NULL, options, values, count, library_options,
                               library_values, library_count);
}
int cudaLibraryUnload(void *library)
{
    (void)library;
    return answer(NULL, 0);
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name)
{
    (void)library, (void)name;
    return answer(kernel, sizeof(*kernel));
}
int cudaLibraryGetKernelCount(unsigned *count, void *library)
{
    (void)library;
    return answer(count, sizeof(*count));
}
int cudaLibraryEnumerateKernels(void **kernels, unsigned count, void *library)
{
    (void)library;
    return answer(kernels, count * sizeof(*kernels));
}
int cudaLibraryGetGlobal(void **address, size_t *n, void *library, const char *name)
{
    (void)library, (void)name, (void)n;
    return answer(address, sizeof(*address));
}
int cudaLibraryGetManaged(void **address, size_t *n, void *library, const char *name)
{
    return cudaLibraryGetGlobal(address, n, library, name);
}

/* ------------------------------------------------------------ the program */

struct memory_properties {
    int type, handles;
    struct memory_location at;
    void *meta;
    uint8_t flags[8];
};
int cuFuncGetAttribute(int *value, int attribute, const void *function);
int cuOccupancyMaxPotentialBlockSize(int *grid, int *block, const void *function,
                                     size_t (*shared_of)(int threads), size_t shared, int limit);
int cuDeviceGetCount(int *count);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetName(char *name, int n, int device);
int cuDeviceGetUuid_v2(uint8_t uuid[16], int device);
int cuDeviceTotalMem_v2(size_t *n, int device);
int cuDeviceGetProperties(int *properties, int device);
int cuMemcpy2D_v2(const struct ibx_driver_memcpy2d *rows);
int cuMemcpy3D_v2(const struct ibx_driver_memcpy3d *planes);
int cuGraphMemcpyNodeGetParams(void *node, struct ibx_driver_memcpy3d *planes);
int cuArray3DCreate_v2(void **array, const struct ibx_driver_array *description);
int cuArray3DGetDescriptor_v2(struct ibx_driver_array *description, void *array);
int cuArrayDestroy(void *array);
int cuMipmappedArrayGetLevel(void **array, void *mipmap, unsigned level);
int cuTexObjectGetResourceDesc(void *resource, unsigned long long texture);
int cuTexObjectGetTextureDesc(void *how, unsigned long long texture);
int cuTexObjectCreate(unsigned long long *texture, const void *resource, const void *how,
                      const struct ibx_cuda_view *view);
int cuTexObjectDestroy(unsigned long long texture);
int cuTexObjectGetResourceViewDesc(struct ibx_cuda_view *view, unsigned long long texture);
int cuSurfObjectCreate(unsigned long long *surface, const void *resource);
int cuSurfObjectGetResourceDesc(void *resource, unsigned long long surface);
int cuPointerGetAttributes(unsigned count, const int *attributes, void **data, uint64_t address);
int cuGraphKernelNodeGetParams_v2(void *node, void *parameters);
int cuMemGetAllocationPropertiesFromHandle(struct memory_properties *p, uint64_t handle);
int cuMemSetAccess(uint64_t address, size_t n, const void *descriptions, size_t count);
int cuModuleLoadData(void **module, const void *code);
int cuModuleLoadDataEx(void **module, const void *code, unsigned count, const int *options,
                       void **values);
int cuModuleEnumerateFunctions(void **functions, unsigned count, void *module);
int cuModuleGetGlobal_v2(uint64_t *address, size_t *n, void *module, const char *name);
int cuPointerGetAttribute(void *data, int attribute, uint64_t address);
int cuMemGetAddressRange_v2(uint64_t *begin, size_t *n, uint64_t address);
int cuMemAddressReserve(uint64_t *address, size_t n, size_t alignment, uint64_t wanted,
                        unsigned long long flags);
int cuMemAddressFree(uint64_t address, size_t n);
int cuMemCreate(uint64_t *handle, size_t n, const struct memory_properties *p,
                unsigned long long flags);
int cuMemRelease(uint64_t handle);
int cuMemMap(uint64_t address, size_t n, size_t offset, uint64_t handle, unsigned long long flags);
int cuMemUnmap(uint64_t address, size_t n);
int cuMemGetAccess(unsigned long long *flags, const struct memory_location *at, uint64_t address);
int cuMemRetainAllocationHandle(uint64_t *handle, void *address);
int cuMemGetAllocationGranularity(size_t *n, const struct memory_properties *p, int option);

/* Memory for n bytes, which is freed after the step. */
static void *out(size_t n)
{
    require(named_count < 16);
    void *memory = calloc(1, n);
    require(memory || !n);
    return named[named_count++] = memory;
}

static uint64_t handle(unsigned argument)
{
    return handles[argument % HANDLES];
}

static int keep(int rc, const uint64_t *made, unsigned argument)
{
    if (!rc)
        handles[argument % HANDLES] = *made;
    return rc;
}

static int ask_kernel(unsigned which, unsigned argument)
{
    static char kernels[4];
    const void *kernel = &kernels[argument & 3];
    if (which & 1)
        return cuFuncGetAttribute(out(sizeof(int)), (int)(argument >> 2) % 20, kernel);
    return cuOccupancyMaxPotentialBlockSize(out(sizeof(int)), out(sizeof(int)), kernel, NULL, 0,
                                            argument & 4 ? (int)argument : 0);
}

static int ask_device(unsigned which, unsigned argument)
{
    const int device = argument & 8 ? FAR_DEVICE : (int)(argument & 7);
    switch (which & 7) {
    case 0:
        return cuDeviceGetName(out(argument >> 4), (int)(argument >> 4), device);
    case 1:
        return cuDeviceGetUuid_v2(out(16), device);
    case 2:
        return cuDeviceTotalMem_v2(out(sizeof(size_t)), device);
    case 3:
        return cuDeviceGetProperties(out(14 * sizeof(int)), device);
    default:
        return cuDeviceGetAttribute(out(sizeof(int)), (int)argument, device);
    }
}

/* Up to the last byte of the last row, and no further. */
static int copy_rows(unsigned which, unsigned argument)
{
    const size_t pitch = argument & 128 ? 512 : 16, rows = 1 + (argument >> 4 & 3);
    const bool from = which & 1;
    uint8_t *memory = out((rows - 1) * pitch + 16);
    struct ibx_driver_memcpy2d p = {.from_type = from ? IN_ARRAY : IN_HOST,
                                    .from_host = memory,
                                    .from_array = (void *)(uintptr_t)handle(argument),
                                    .to_type = from ? IN_HOST : IN_ARRAY,
                                    .to_host = memory,
                                    .to_array = (void *)(uintptr_t)handle(argument),
                                    .from_pitch = pitch,
                                    .to_pitch = pitch,
                                    .width = 16,
                                    .rows = rows};
    const struct ibx_driver_memcpy3d planes = {.from_type = p.from_type,
                                               .from_host = memory,
                                               .from_array = p.from_array,
                                               .from_pitch = pitch,
                                               .from_height = 1,
                                               .to_type = p.to_type,
                                               .to_host = memory,
                                               .to_array = p.to_array,
                                               .to_pitch = pitch,
                                               .to_height = 1,
                                               .width = 16,
                                               .rows = 1,
                                               .planes = rows};
    return which & 2 ? cuMemcpy3D_v2(&planes) : cuMemcpy2D_v2(&p);
}

static int call_array(unsigned which, unsigned argument)
{
    static const unsigned formats[] = {0x01, 0x0a, 0x20, 0x10};
    const struct ibx_driver_array d = {
        16, 4, argument >> 6, formats[argument >> 2 & 3], 1u << (argument >> 4 & 3), 0};
    void *array = (void *)(uintptr_t)handle(argument);
    uint64_t *made = out(sizeof(*made));
    switch (which & 7) {
    case 0:
        return keep(cuArray3DCreate_v2((void **)made, &d), made, argument);
    case 1:
        return cuArray3DGetDescriptor_v2(out(sizeof(d)), array);
    case 2:
        return keep(cuMipmappedArrayGetLevel((void **)made, array, argument >> 2), made, argument);
    case 3:
        return cuTexObjectGetResourceDesc(out(144), handle(argument));
    case 4:
        return cuTexObjectGetTextureDesc(out(104), handle(argument));
    case 5:
        return cuGraphMemcpyNodeGetParams(array, out(sizeof(struct ibx_driver_memcpy3d)));
    case 6:
        return cuArrayDestroy(array);
    default:
        return copy_rows(which >> 3, argument);
    }
}

/* The length of a log that is cut is its room. */
static void require_end(const char *log, const void *length, size_t room)
{
    const size_t n = (size_t)length;
    require(n <= room && (!room || !log[n < room ? n : room - 1]));
}

/* Logs of a few bytes or none, which must end within their buffers. */
static int load_with_logs(unsigned argument)
{
    const size_t info = argument >> 3 & 3, error = argument >> 5 & 7;
    static const int options[] = {3, 4, 5, 6, 2, 12};
    char *logs[] = {out(info), out(error)};
    void *values[] = {logs[0], (void *)info, logs[1], (void *)error, NULL, (void *)1};
    const int rc = cuModuleLoadDataEx(out(sizeof(void *)), "code", 6, options, values);
    require_end(logs[0], values[1], info);
    require_end(logs[1], values[3], error);
    return rc;
}

static int call_module(unsigned which, unsigned argument)
{
    uint64_t *made = out(sizeof(*made));
    void *module = (void *)(uintptr_t)handle(argument);
    switch (which & 3) {
    case 0:
        return argument & 4 ? load_with_logs(argument)
                            : keep(cuModuleLoadData((void **)made, "code"), made, argument);
    case 1:
        return cuModuleEnumerateFunctions(out((argument >> 2) * sizeof(void *)), argument >> 2,
                                          module);
    case 2:
        return cuModuleGetGlobal_v2(made, out(sizeof(size_t)), module, "variable");
    default:
        return cuPointerGetAttribute(made, (int)(argument >> 2) % 22, handle(argument));
    }
}

/* A texture or surface of an array; whether its elements are integers is what the back end says. */
static int make_object(bool texture, unsigned argument)
{
    const int kind = argument >> 2 & 1; /* an array, or a mipmapped one */
    const uint64_t array = handle(argument);
    uint8_t *resource = out(144);
    unsigned long long *made = out(sizeof(*made));
    memcpy(resource, &kind, sizeof(kind));
    memcpy(resource + 8, &array, sizeof(array));
    const int rc =
        texture ? cuTexObjectCreate(made, resource, out(104), out(sizeof(struct ibx_cuda_view)))
                : cuSurfObjectCreate(made, resource);
    return keep(rc, (const uint64_t *)made, argument >> 3);
}

static int ask_several(unsigned argument)
{
    static const int attributes[] = {1, 2, 3, 9, 11, 12};
    void *data[6];
    for (unsigned i = 0; i < 6; i++)
        data[i] = argument >> i & 1 ? out(sizeof(uint64_t)) : NULL;
    return cuPointerGetAttributes(6, attributes, data, handle(argument >> 6));
}

/* Textures and surfaces, and some more that is known of handles. */
static int call_object(unsigned which, unsigned argument)
{
    const struct {
        struct memory_location at;
        int flags;
    } access = {{1, 0}, 3};
    const uint64_t object = handle(argument);
    switch (which) {
    case 0:
    case 1:
        return make_object(!which, argument);
    case 2:
        return cuTexObjectGetResourceViewDesc(out(sizeof(struct ibx_cuda_view)), object);
    case 3:
        return cuSurfObjectGetResourceDesc(out(144), object);
    case 4:
        return cuTexObjectDestroy(object);
    case 5:
        return ask_several(argument);
    case 6:
        return cuGraphKernelNodeGetParams_v2((void *)(uintptr_t)object,
                                             out(sizeof(struct kernel_node) + 2 * sizeof(void *)));
    case 7:
        return cuMemGetAllocationPropertiesFromHandle(out(sizeof(struct memory_properties)),
                                                      object);
    default:
        return cuMemSetAccess(object, (size_t)1 << (argument >> 4), &access, 1);
    }
}

static int call_mapped(unsigned which, unsigned argument)
{
    if (which % 19 >= 10)
        return call_object(which % 19 - 10, argument);
    const struct memory_properties p = {.type = 1, .at = {1, 0}};
    const struct memory_location at = {1, 0};
    const size_t n = (size_t)1 << (argument >> 4);
    uint64_t *made = out(sizeof(*made));
    switch (which % 19) {
    case 0:
        return keep(cuMemAddressReserve(made, n, 0, 0, 0), made, argument);
    case 1:
        return keep(cuMemCreate(made, n, &p, 0), made, argument);
    case 2:
        return cuMemMap(handle(argument), n, 0, handle(argument >> 2), 0);
    case 3:
        return cuMemUnmap(handle(argument), n);
    case 4:
        return cuMemRelease(handle(argument));
    case 5:
        return cuMemAddressFree(handle(argument), n);
    case 6:
        return cuMemGetAccess((unsigned long long *)made, &at, handle(argument));
    case 7:
        return cuMemRetainAllocationHandle(made, (void *)(uintptr_t)handle(argument));
    case 8:
        return cuMemGetAddressRange_v2(made, out(sizeof(size_t)), handle(argument));
    default:
        return cuMemGetAllocationGranularity(out(sizeof(size_t)), &p, (int)argument & 1);
    }
}

static void run_step(uint8_t what, uint8_t argument)
{
    static int (*const kinds[])(unsigned which, unsigned argument) = {
        ask_kernel, ask_device, copy_rows, call_array, call_module, call_mapped};
    calls = 0;
    kinds[what % 6](what / 6, argument); /* an error may be any number */
    while (named_count)
        free(named[--named_count]);
}

/* The number of devices is asked for only once. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const uint8_t devices[] = {0, 4, 0, FAR_DEVICE + 1, 0, 0, 0};
    int count = 0;
    (void)argc, (void)argv;
    fake_frontend_begin(ibx_reader_of(devices, sizeof(devices)));
    require(!cuDeviceGetCount(&count) && count > FAR_DEVICE);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, 2, &count);
    if (!steps)
        return 0;
    for (unsigned i = 0; i < HANDLES; i++)
        handles[i] = 0x10000 * (i + 1);
    for (unsigned i = 0; i < count; i++)
        run_step(steps[2 * i], steps[2 * i + 1]);
    /* Like a program that continues: nothing of this input is kept. */
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    require(!cudaDeviceReset());
    ibx_frontend_modules_gone();
    return 0;
}
