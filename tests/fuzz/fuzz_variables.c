/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Variables, managed memory, kernels, and copies in graphs, of an application whose back end
 * answers anything. Managed memory is only where nothing else was, and all of it exists; a call
 * writes only what its caller has named.
 *
 * fake_frontend.c replaces the plugin and GVirtuS's front end; functions of the tested files
 * take precedence over its own. Input, in this order:
 *
 * - u8 n, and n steps of two bytes: an action and its argument, see run_step();
 * - the answers, see fake_frontend.h. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/memory/managed.h"
#include "tests/fuzz/fake_frontend.h"
#include "tests/fuzz/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ------------------------------------------------------------ replaced functions of other files */

bool ibx_managed_faults_wait(void)
{
    return true;
}

bool ibx_managed_faults_begin(void)
{
    return true;
}
void ibx_managed_catch_again(void) {}
void ibx_managed_have_rested(void) {}
int ibx_managed_have_given(bool works)
{
    return ibx_managed_give(works);
}
static bool hold_none(void)
{
    return false;
}

static void let_none(void) {}

const struct ibx_handlers_calls ibx_managed_handlers = {hold_none, let_none};

bool ibx_frontend_host_can_reach(const void *address)
{
    (void)address;
    return false;
}

uint8_t *ibx_registered_shared(const void *address, size_t n)
{
    (void)address, (void)n;
    return NULL;
}

void ibx_managed_hold_handlers(struct held_handlers *held)
{
    held->any = false;
}
void ibx_managed_let_handlers(const struct held_handlers *held)
{
    (void)held;
}
bool ibx_managed_joins(uintptr_t at, size_t n)
{
    (void)at, (void)n;
    return false;
}
bool ibx_frontend_host_any(void)
{
    return true;
}
bool ibx_frontend_host_functions(void)
{
    return true;
}
bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags)
{
    (void)address, (void)device, (void)flags;
    return false;
}
int ibx_frontend_host_reach(const void *address)
{
    (void)address;
    return CUDA_NOT_SUPPORTED;
}
bool ibx_frontend_host_waits(const void *stream)
{
    (void)stream;
    return false;
}
int ibx_frontend_order_legacy(void *stream)
{
    (void)stream;
    return 0;
}
int ibx_frontend_order_work(void *stream)
{
    (void)stream;
    return 0;
}
void ibx_frontend_own_work_note(void) {}
uint64_t ibx_frontend_host_made(void)
{
    return 0;
}
enum host_memory ibx_frontend_host_memory(const void *address, size_t n)
{
    (void)address, (void)n;
    return HOST_PAGEABLE;
}
int ibx_frontend_device_of(const void *address)
{
    (void)address;
    return 0;
}
int ibx_frontend_devices_wait(void)
{
    return cudaDeviceSynchronize();
}
bool ibx_frontend_stream_is_used(void)
{
    return false;
}
bool ibx_managed_copy_pages(uintptr_t at, uint8_t *host, size_t n, bool to_device)
{
    (void)at, (void)host, (void)n, (void)to_device;
    return false;
}
bool ibx_frontend_gives_beside(void)
{
    return false;
}
int ibx_frontend_streams_rest(bool all)
{
    (void)all;
    return CUDA_SUCCESS;
}
void ibx_frontend_peers_hold(int device)
{
    (void)device;
}
void ibx_frontend_own_modules(void) {}
void ibx_frontend_module_registered(void *wrapper, void **handle,
                                    struct ibx_image_wrapper *expanded)
{
    (void)wrapper, (void)handle, (void)expanded;
}
bool ibx_frontend_module_deferred(void *wrapper)
{
    (void)wrapper;
    return false;
}
bool ibx_frontend_module_there(void **handle, void ***there)
{
    *there = handle;
    return true;
}
bool ibx_frontend_module_now(void **handle, void ***there)
{
    return ibx_frontend_module_there(handle, there);
}
void ibx_frontend_module_needed(const void *function)
{
    (void)function;
}
void ibx_frontend_module_function(void **handle, const char *function, char *device_function,
                                  const char *name, int thread_limit)
{
    (void)handle, (void)function, (void)device_function, (void)name, (void)thread_limit;
}
void ibx_frontend_module_variable(void **handle, char *symbol, char *address, const char *name,
                                  int external, size_t n, int constant, int global)
{
    (void)handle, (void)symbol, (void)address, (void)name;
    (void)external, (void)n, (void)constant, (void)global;
}
void ibx_frontend_module_managed(void **handle)
{
    (void)handle;
}
void **ibx_frontend_module_gone(void **handle, struct ibx_image_wrapper **expanded)
{
    *expanded = NULL;
    return handle;
}
const uint8_t *ibx_image_next(const uint8_t *fat, size_t n, size_t *at, struct ibx_image_entry *e)
{
    (void)fat, (void)n, (void)at, (void)e;
    return NULL;
}
const uint8_t *ibx_image_wrapped(const struct ibx_image_wrapper *wrapper, size_t *n)
{
    (void)wrapper, (void)n;
    return NULL;
}
bool ibx_image_is_compressed(const uint8_t *fat, size_t n)
{
    (void)fat, (void)n;
    return false;
}
struct ibx_image_wrapper *ibx_image_expand_wrapped(const void *wrapper,
                                                   const struct ibx_image_targets *targets)
{
    (void)wrapper, (void)targets;
    return NULL;
}
void ibx_image_free_wrapped(struct ibx_image_wrapper *wrapper)
{
    (void)wrapper;
}
bool ibx_image_lacks_cubin(const struct ibx_image_wrapper *wrapper)
{
    (void)wrapper;
    return false;
}
int cudaFree(void *address)
{
    void *base;
    int rc = CUDA_SUCCESS;
    ibx_frontend_managed_free(address, &base, &rc);
    return rc;
}
int ibx_frontend_was_set(int rc, const void *address, void *stream)
{
    (void)address, (void)stream;
    return rc;
}
int cudaMallocPitch(void **address, size_t *pitch, size_t width, size_t height)
{
    *pitch = width;
    return cudaMalloc(address, width * height);
}
int cudaEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}
int cudaMemset2DAsync(void *address, size_t pitch, int value, size_t width, size_t height,
                      void *stream)
{
    (void)address, (void)pitch, (void)value, (void)width, (void)height, (void)stream;
    return cudaDeviceSynchronize();
}
int cudaMemsetAsync(void *address, int value, size_t n, void *stream)
{
    (void)address, (void)value, (void)n, (void)stream;
    return cudaDeviceSynchronize();
}

/* ------------------------------------------------------------------------------ the program */

#define ARGUMENTS_MAX 32764u /* the most bytes of a kernel's arguments, and the most arguments */
#define MANAGED       3u
#define COPIES        512u

static void *module[1], *other_module[1];
static char kernels[4], symbols[2];
static void *pointers[MANAGED];
static const size_t sizes[MANAGED] = {8, 5000, 300000};
static void *allocated[4];
static size_t allocated_bytes[4];
static void *device[3];
static void *host[2]; /* 64 and 300 bytes */
static const size_t host_bytes[2] = {64, 300};
static void *arguments[ARGUMENTS_MAX];
static struct {
    void (*function)(void *argument);
    void *argument;
} functions[COPIES]; /* that graphs call */
static unsigned function_count;

/* The program's code says which arguments the last kernel has; no others are read. */
static const struct ibx_image_parameter of_last[2] = {{0, 8, false}, {8, 4, false}};

struct ibx_image_parameter *ibx_frontend_module_parameters(const void *function, size_t *count)
{
    struct ibx_image_parameter *known = NULL;
    if (function == &kernels[3] && (known = malloc(sizeof(of_last)))) {
        memcpy(known, of_last, sizeof(of_last));
        *count = 2;
    }
    return known;
}

/* The caller frees them, with what they point to. */
static void **arguments_of_last(void)
{
    void **all = calloc(2, sizeof(*all));
    for (unsigned i = 0; i < 2; i++) {
        require(all != NULL);
        all[i] = calloc(1, of_last[i].n);
    }
    return all;
}

uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue)
{
    unsigned i = 0;
    *queue = 1;
    while (i < function_count &&
           (functions[i].function != function || functions[i].argument != argument))
        i++;
    if (i == COPIES) /* a copy of taken bytes stays for good */
        return 0;
    functions[i].function = function;
    functions[i].argument = argument;
    function_count = i == function_count ? i + 1 : function_count;
    return i + 1;
}

bool ibx_frontend_host_function_of(uint64_t number, struct host_node *node)
{
    if (!number || number > function_count)
        return false;
    *node = (struct host_node){functions[number - 1].function, functions[number - 1].argument};
    return true;
}

static int stream_made(void **stream, unsigned flags)
{
    *stream = flags ? (void *)0x3000 : NULL;
    return CUDA_SUCCESS;
}

static void **binary_registered(void *wrapper)
{
    return wrapper ? module : NULL;
}

static int device_reset(void)
{
    return CUDA_SUCCESS;
}

/* GVirtuS's functions. */
void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    (void)known;
    if (!strcmp(symbol, "cudaStreamCreateWithFlags"))
        return (void *)(uintptr_t)stream_made;
    if (!strcmp(symbol, "__cudaRegisterFatBinary"))
        return (void *)(uintptr_t)binary_registered;
    return strcmp(symbol, "cudaDeviceReset") ? NULL : (void *)(uintptr_t)device_reset;
}

/* What GVirtuS's front end writes of a launch. For one kernel it throws, for another it has no
 * entry. */
const void *ibx_frontend_launch_body(const struct launch_config *config, const void *function,
                                     void **marked, size_t *n, int *rc)
{
    (void)config, (void)marked, (void)n;
    *rc = function == &kernels[0] ? CUDA_UNKNOWN : CUDA_NOT_SUPPORTED;
    return NULL;
}

bool ibx_frontend_launched(const struct ibx_writer *body, bool unseen, int *rc)
{
    (void)unseen;
    return ibx_frontend_called("cudaLaunchKernel", body, rc);
}

static void load(void)
{
    memset(pointers, 0, sizeof(pointers));
    for (unsigned i = 0; i < 4; i++)
        __cudaRegisterFunction(i < 2 ? module : other_module, &kernels[i], &kernels[i], "kernel",
                               -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(module, &symbols[0], &symbols[0], "one", 0, 16, 0, 0);
    __cudaRegisterVar(module, &symbols[1], &symbols[1], "two", 0, 64, 0, 0);
    for (unsigned i = 0; i < MANAGED; i++)
        __cudaRegisterManagedVar(i < 2 ? module : other_module, &pointers[i], NULL, "managed", 0,
                                 sizes[i], 0, 0);
}

static void unload(void)
{
    __cudaUnregisterFatBinary(module);
    __cudaUnregisterFatBinary(other_module);
    memset(pointers, 0, sizeof(pointers));
}

/* All of it exists, and the program may use it. */
static void require_managed(const void *memory, size_t n)
{
    uintptr_t at = (uintptr_t)memory, last = at;
    const uintptr_t end = at + n;
    require(at >= 65536 && end > at);
    while (at < end) {
        uintptr_t there = at;
        require(ibx_managed_within(&there, end, &last) && there == at && last > at);
        at = last;
    }
}

static void touch(void *memory, size_t n, unsigned argument)
{
    const size_t at = argument * n / 256;
    volatile uint8_t *byte = (uint8_t *)memory + at;
    const enum pages_access access = argument & 1 ? ACCESS_WRITE : ACCESS_READ;
    enum pages_answer answer = ibx_managed_look((uintptr_t)byte, access);
    require(answer != PAGES_NONE);
    if (answer == PAGES_REMOTE)
        answer = ibx_managed_fetch((uintptr_t)byte, access);
    if (answer != PAGES_READY)
        return;
    if (access == ACCESS_WRITE)
        *byte = 1;
    else
        (void)*byte;
}

static void use_managed(unsigned which, unsigned argument)
{
    const unsigned i = which % MANAGED;
    if (pointers[i])
        touch(pointers[i], sizes[i], argument);
}

static void initialize(unsigned argument)
{
    __cudaInitModule(argument & 1 ? module : other_module);
    for (unsigned i = 0; i < MANAGED; i++) {
        if (pointers[i])
            require_managed(pointers[i], sizes[i]);
    }
}

static void allocate(unsigned argument)
{
    void **slot = &allocated[argument & 3];
    const size_t n = (size_t)1 << (argument >> 4);
    if (*slot) {
        cudaFree(*slot);
    } else if (!cudaMallocManaged(slot, n, 1)) {
        require_managed(*slot, n);
        allocated_bytes[argument & 3] = n;
        return;
    }
    *slot = NULL;
}

static void use_symbol(unsigned which, unsigned argument)
{
    const void *symbol = which & 1 ? &symbols[argument & 1] : pointers[argument % MANAGED];
    void *address;
    size_t n = argument >> 2;
    uint8_t *bytes = malloc(n ? n : 1);
    require(bytes);
    memset(bytes, 0, n ? n : 1);
    switch (which >> 1 & 3) {
    case 0:
        cudaGetSymbolAddress(&address, symbol);
        break;
    case 1:
        cudaGetSymbolSize(&n, symbol);
        break;
    case 2:
        cudaMemcpyFromSymbol(bytes, symbol, n, argument & 3, CUDA_MEMCPY_FROM_DEVICE);
        break;
    default:
        cudaMemcpyToSymbol(symbol, bytes, n, argument & 3, CUDA_MEMCPY_TO_DEVICE);
    }
    free(bytes);
}

/* A launch, or a node of a graph, of a kernel that GVirtuS's front end does not know. */
static void use_kernel(unsigned which, unsigned argument)
{
    const void *function = &kernels[argument & 3];
    struct kernel_node p = {.function = (void *)(uintptr_t)function,
                            .grid = {1, 1, 1},
                            .block = {1, 1, 1},
                            .arguments = argument & 4 ? NULL : arguments};
    void *node = (void *)0x1000;
    void **of_last_one = p.arguments && function == &kernels[3] ? arguments_of_last() : NULL;
    p.arguments = of_last_one ? of_last_one : p.arguments;
    if (which & 1)
        cudaLaunchKernel(function, p.grid, p.block, p.arguments, 0, NULL);
    else if (which & 2)
        cudaGraphAddKernelNode(&node, (void *)0x2000, NULL, 0, &p);
    else
        cudaGraphKernelNodeGetParams(node, &p);
    for (unsigned i = 0; of_last_one && i < 2; i++)
        free(of_last_one[i]);
    free(of_last_one);
}

static struct ibx_cuda_memcpy3d copy_of(unsigned argument)
{
    const unsigned i = argument & 1, of_device = argument >> 3 & 3;
    const bool to_device = argument & 2, rows = argument & 4;
    const struct ibx_cuda_pitched here = {host[i], rows ? 16 : host_bytes[i],
                                          rows ? 16 : host_bytes[i], rows ? 4 : 1},
                                  there = {of_device ? device[of_device - 1] : (void *)0x100000, 64,
                                           64, 4};
    return (struct ibx_cuda_memcpy3d){.from = to_device ? here : there,
                                      .to = to_device ? there : here,
                                      .extent = {rows ? 8 : host_bytes[i], rows ? 3 : 1, 1},
                                      .kind = to_device ? CUDA_MEMCPY_TO_DEVICE
                                                        : CUDA_MEMCPY_FROM_DEVICE};
}

static void copy_in_graph(unsigned which, unsigned argument)
{
    struct ibx_cuda_memcpy3d p = copy_of(argument);
    void *node = (void *)0x1000;
    int rc;
    if (which & 1)
        cudaGraphAddMemcpyNode(&node, (void *)0x2000, NULL, 0, &p);
    else if (which & 2)
        ibx_frontend_graph_copy_behind(&p, (argument & 6) == 2, (void *)0x3000, &rc);
    else if (which & 4)
        ibx_frontend_graph_behind_trim();
    else
        cudaGraphMemcpyNodeGetParams(node, &p);
}

/* Memory of the device is where the back end says, and calls begin in the middle of it. */
static void use_device(unsigned argument)
{
    const unsigned i = argument >> 2 & 3;
    const size_t offset = argument >> 4;
    const struct ibx_cuda_pitched memory = {device[i % 3], 64, 16, 4};
    void *node = NULL;
    switch (argument & 3) {
    case 0:
        cudaMalloc(&device[i % 3], 64 * 16);
        break;
    case 1:
        cudaMemset3D(memory, 0, (struct ibx_cuda_extent){16, 2, offset});
        break;
    case 2:
        cudaGraphAddMemcpyNodeToSymbol(&node, (void *)0x2000, NULL, 0, &symbols[i & 1], host[0], 1,
                                       offset, CUDA_MEMCPY_TO_DEVICE);
        break;
    default:
        cudaGraphAddMemcpyNodeFromSymbol(&node, (void *)0x2000, NULL, 0, host[0], &symbols[i & 1],
                                         1, offset, CUDA_MEMCPY_FROM_DEVICE);
    }
}

/* The back end names a function, with bytes or without. */
static void call_function(unsigned which, unsigned argument)
{
    uint8_t bytes[128];
    if (!function_count)
        return;
    memset(bytes, (int)which, sizeof(bytes));
    const unsigned i = argument % function_count;
    if (!(which & 1) || !ibx_frontend_graph_copied(functions[i].function, functions[i].argument,
                                                   bytes, argument & 127))
        functions[i].function(functions[i].argument);
    ibx_frontend_graph_failure();
}

static void print(unsigned which, unsigned argument)
{
    static struct {
        uint32_t magic;
        uint16_t version, head;
        uint64_t rest;
        char bytes[16];
    } image = {0xba55ed50u, 1, 16, 16, "vprintf"};
    static struct ibx_image_wrapper wrapper = {0x466243b1u, 1, &image, NULL};
    (void)argument;
    if (which & 1)
        __cudaRegisterFatBinary(&wrapper);
    else
        ibx_frontend_printed();
}

static void ask(unsigned which, unsigned argument)
{
    struct pointer_attributes attributes;
    const unsigned i = argument & 3;
    bool begun = false;
    if (which & 1)
        cudaPointerGetAttributes(&attributes, (void *)(uintptr_t)(argument << 12));
    else if (which & 2)
        ibx_managed_watch.request(argument & 1 ? "cudaLaunchKernel" : "cudaGetDevice", NULL, 0,
                                  &begun);
    else if (which & 4 && allocated[i])
        touch(allocated[i], allocated_bytes[i], argument);
    else if (which & 16)
        use_device(argument);
    else if (which & 8) {
        cudaDeviceReset();
        memset(allocated, 0, sizeof(allocated));
        for (unsigned k = 0; k < MANAGED; k++) { /* they may have been freed */
            if (pointers[k] && !ibx_frontend_is_managed(pointers[k]))
                pointers[k] = NULL;
        }
    }
    if (begun)
        ibx_managed_watch.over();
}

static void run_step(uint8_t what, uint8_t argument)
{
    const unsigned which = what >> 3;
    switch (what & 7) {
    case 0:
        if (which & 1)
            allocate(argument);
        else
            initialize(argument);
        break;
    case 1:
        use_managed(which, argument);
        break;
    case 2:
        use_symbol(which, argument);
        break;
    case 3:
        use_kernel(which, argument);
        break;
    case 4:
        copy_in_graph(which, argument);
        break;
    case 5:
        call_function(which, argument);
        break;
    case 6:
        print(which, argument);
        break;
    default:
        ask(which, argument);
    }
}

static void prepare(void)
{
    void *bytes = calloc(1, ARGUMENTS_MAX);
    for (unsigned i = 0; i < 2; i++)
        require((host[i] = calloc(1, host_bytes[i])));
    for (unsigned i = 0; i < ARGUMENTS_MAX; i++)
        arguments[i] = bytes;
    require(bytes && freopen("/dev/null", "w", stdout));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned count;
    const uint8_t *steps = fake_frontend_steps(data, size, 2, &count);
    if (!steps)
        return 0;
    if (!host[0])
        prepare();
    load();
    for (unsigned i = 0; i < count; i++)
        run_step(steps[2 * i], steps[2 * i + 1]);
    /* Like a program that continues: nothing of this input is kept. */
    fake_frontend_begin(ibx_reader_of(NULL, 0));
    unload();
    for (unsigned i = 0; i < 4; i++) {
        if (allocated[i])
            cudaFree(allocated[i]);
        allocated[i] = NULL;
    }
    memset(device, 0, sizeof(device));
    require(!cudaDeviceReset());
    return 0;
}
