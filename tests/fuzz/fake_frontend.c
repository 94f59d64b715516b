/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/fuzz/fake_frontend.h"

#include "frontend-glue/preload/kernels/images.h"
#include "frontend-glue/preload/copies/copies.h"
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/math_libraries/math_libraries.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/preload.h"
#include "frontend-glue/preload/streams/streams.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERRORS_FROM 200u

static struct ibx_reader answers;

void fake_frontend_begin(struct ibx_reader all)
{
    answers = all;
}

const uint8_t *fake_frontend_steps(const uint8_t *data, size_t size, size_t bytes, unsigned *count)
{
    struct ibx_reader input = ibx_reader_of(data, size);
    *count = ibx_get_u8(&input) % 32;
    const uint8_t *steps = ibx_get_bytes(&input, *count * bytes);
    if (steps)
        fake_frontend_begin(ibx_reader_of(data + input.position, size - input.position));
    return steps;
}

/* ------------------------------------------------------------------------------- answers */

/* Takes the next answer. -1: the back end does not know the request; a few values: no
 * connection. */
static int answer(void *to, size_t room, int *rc)
{
    static const int errors[] = {1, 2, 400, 600, 700, 801, 900, 908, 999, -1};
    const uint8_t how = ibx_get_u8(&answers);
    const size_t length = ibx_get_u16(&answers);
    const size_t n = length < ibx_reader_left(&answers) ? length : ibx_reader_left(&answers);
    const uint8_t *bytes = ibx_get_bytes(&answers, n);
    if (answers.failed) {
        *rc = CUDA_UNKNOWN;
        return 0;
    }
    if (how >= ERRORS_FROM + sizeof(errors) / sizeof(errors[0]))
        return -ENOTCONN;
    *rc = how < ERRORS_FROM ? CUDA_SUCCESS : errors[how - ERRORS_FROM];
    if (*rc || !room)
        return 0;
    memset(to, 0, room); /* the caller owns all of it */
    if (n)
        memcpy(to, bytes, n < room ? n : room);
    return 0;
}

static int call(const struct ibx_frontend_request *request, int *exit_code)
{
    static volatile uint8_t sum;
    for (size_t i = 0; i < request->n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)request->body)[i]);
    return answer(request->out, request->out_n, exit_code);
}

/* Everything that is named is read or written. */
static int make_copy(const struct ibx_frontend_copy *wish, int *exit_code)
{
    static volatile uint8_t sum;
    const size_t rows = wish->rows ? wish->rows : 1;
    for (size_t y = 0; y < rows; y++) {
        uint8_t *row = (uint8_t *)wish->host + y * wish->host_pitch;
        if (!wish->to_device)
            memset(row, 1, wish->n);
        for (size_t i = 0; wish->to_device && i < wish->n; i++)
            sum = (uint8_t)(sum + row[i]);
    }
    return answer(NULL, 0, exit_code);
}

static void watch(const struct ibx_frontend_watch *with)
{
    (void)with;
}

static void unseen(bool is)
{
    (void)is;
}

static bool make_launch(const struct ibx_frontend_launch *made, int *rc)
{
    (void)made;
    return !answer(NULL, 0, rc);
}

static const struct ibx_frontend_calls calls = {.version = IBX_FRONTEND_VERSION,
                                                .call = call,
                                                .copy = make_copy,
                                                .watch = watch,
                                                .unseen = unseen,
                                                .launch = make_launch};

_Thread_local struct ibx_frontend_thread ibx_frontend_thread;

void ibx_frontend_exits(void) {}

const struct ibx_frontend_calls *ibx_frontend_plugin(void)
{
    return &calls;
}

bool ibx_frontend_called(const char *name, const struct ibx_writer *body, int *rc)
{
    const struct ibx_frontend_request request = {
        .name = name, .body = body->data, .n = body->length};
    return !call(&request, rc);
}

/* Logging every false answer would take longer than everything else. */
void ibx_log(enum ibx_log_level level, const char *format, ...)
{
    char line[512];
    va_list arguments;
    (void)level;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------ GVirtuS's functions */

static int device_reset(void)
{
    return CUDA_SUCCESS;
}

static int capture_begin(void *stream, int mode)
{
    int rc;
    (void)stream, (void)mode;
    return answer(NULL, 0, &rc) ? CUDA_UNKNOWN : rc;
}

static int capture_end(void *stream, void **graph)
{
    int rc;
    (void)stream;
    return answer(graph, sizeof(*graph), &rc) ? CUDA_UNKNOWN : rc;
}

void *ibx_frontend_next(_Atomic(void *) *known, const char *symbol)
{
    (void)known;
    if (!strcmp(symbol, "cudaDeviceReset"))
        return (void *)(uintptr_t)device_reset;
    if (!strcmp(symbol, "cudaStreamBeginCapture"))
        return (void *)(uintptr_t)capture_begin;
    return strcmp(symbol, "cudaStreamEndCapture") ? NULL : (void *)(uintptr_t)capture_end;
}

bool ibx_frontend_first_begins(void)
{
    return true;
}

void ibx_frontend_first_is_over(void) {}

int ibx_frontend_cuda_version(void)
{
    return 0;
}

int ibx_frontend_fail(int rc)
{
    return rc;
}

int cudaGetLastError(void)
{
    return CUDA_SUCCESS;
}

int cudaPeekAtLastError(void)
{
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------ replaced functions of other files */

int cudaGetDevice(int *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

int cudaSetDevice(int device)
{
    return device ? CUDA_INVALID_DEVICE : CUDA_SUCCESS;
}

int cudaGetDeviceCount(int *count)
{
    int rc;
    return answer(count, sizeof(*count), &rc) ? CUDA_UNKNOWN : rc;
}

int cudaDeviceGetPCIBusId(char *id, int n, int device)
{
    (void)device;
    require(n >= 13);
    memcpy(id, "0000:02:00.0", 13);
    return CUDA_SUCCESS;
}

int cudaMalloc(void **address, size_t n)
{
    int rc;
    (void)n;
    return answer(address, sizeof(*address), &rc) ? CUDA_UNKNOWN : rc;
}

int cudaFree(void *address)
{
    (void)address;
    return CUDA_SUCCESS;
}

int cudaMemcpy(void *to, const void *from, size_t n, int kind)
{
    return cudaMemcpy2D(to, n, from, n, n, 1, kind);
}

/* A copy from the device writes everything that is named. */
int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                 size_t height, int kind)
{
    (void)from, (void)from_pitch;
    for (size_t y = 0; y < height && kind == CUDA_MEMCPY_FROM_DEVICE; y++)
        memset((char *)to + y * to_pitch, 1, width);
    return CUDA_SUCCESS;
}

int cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *stream)
{
    (void)stream;
    return cudaMemcpy(to, from, n, kind);
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                      size_t height, int kind, void *stream)
{
    (void)stream;
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

int cudaDeviceSynchronize(void)
{
    return CUDA_SUCCESS;
}

int ibx_frontend_device_wait_within(void)
{
    return CUDA_SUCCESS;
}

int ibx_frontend_stream_wait_within(void *stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

int cudaStreamSynchronize(void *stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

int cudaLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument)
{
    (void)stream;
    function(argument);
    return CUDA_SUCCESS;
}

int __cudaGetKernel(void **kernel, const void *function)
{
    *kernel = (void *)(uintptr_t)function;
    return CUDA_SUCCESS;
}

static pthread_mutex_t ranges = PTHREAD_MUTEX_INITIALIZER;

void ibx_frontend_ranges_lock(void)
{
    pthread_mutex_lock(&ranges);
}

void ibx_frontend_ranges_unlock(void)
{
    pthread_mutex_unlock(&ranges);
}

/* Calls that take a function; none of them copies. */
static void nothing(void *argument)
{
    (void)argument;
}

uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue)
{
    (void)argument;
    *queue = 1;
    return function ? 7 : 0;
}
bool ibx_frontend_host_function_of(uint64_t number, struct host_node *host)
{
    if (number == 7)
        *host = (struct host_node){nothing, NULL};
    return number == 7;
}

int ibx_frontend_host_launch(struct ibx_launch *made, void *stream,
                             int (*launch)(void *exec, void *stream), void *exec)
{
    static volatile uint64_t sum;
    for (size_t i = 0; i < made->count; i++)
        sum = sum + made->numbers[i];
    return made->copies ? CUDA_UNKNOWN : launch(exec, stream);
}

int ibx_frontend_copies_launch(const uint64_t *numbers, size_t count, void *stream,
                               int (*launch)(void *exec, void *stream), void *exec)
{
    struct ibx_launch made = {.numbers = numbers, .count = count};
    return ibx_frontend_host_launch(&made, stream, launch, exec);
}

bool ibx_frontend_graph_copies(void (*function)(void *argument))
{
    return function != nothing;
}
bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *copy)
{
    return copy->kind == CUDA_MEMCPY_TO_DEVICE || copy->kind == CUDA_MEMCPY_FROM_DEVICE;
}
bool ibx_frontend_copy_is_on_host(const struct ibx_cuda_memcpy3d *copy)
{
    return copy->kind == CUDA_MEMCPY_ON_HOST;
}
uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *copy, uint64_t *queue, int *rc)
{
    (void)copy, (void)rc;
    *queue = 1;
    return 8;
}

uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy)
{
    ibx_layout_put(body, IBX_LAYOUT_MEMCPY3D, copy);
    return 9;
}
bool ibx_frontend_slot_made(struct extension_request *e, void *to, size_t n, int *rc)
{
    return ibx_frontend_request_known(e, to, n, rc);
}
bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *copy)
{
    (void)copy;
    return number == 9;
}

/* Kernels have two arguments of four bytes each. */
bool ibx_frontend_kernel_arguments(const void *function, uint8_t *bytes, size_t n, void **arguments,
                                   size_t *count)
{
    if (!function || n < 8)
        return false;
    for (size_t i = 0; arguments && i < 2 && i < *count; i++)
        arguments[i] = bytes + 4 * i;
    *count = 2;
    return true;
}
bool ibx_frontend_kernel_name(const void *function, uint8_t name[8])
{
    memset(name, 1, 8);
    return function;
}

const void *ibx_frontend_kernel_of_name(uint64_t name)
{
    return (const void *)(uintptr_t)name;
}

/* All arguments are read. */
int ibx_frontend_arguments_reach(const void *arguments, size_t n)
{
    static volatile uint8_t sum;
    for (size_t i = 0; i < n; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)arguments)[i]);
    return CUDA_SUCCESS;
}

int ibx_frontend_set_check(const struct ibx_cuda_memset *set)
{
    (void)set;
    return 0;
}

const char *ibx_frontend_name_of_kernel(const void *function)
{
    return function ? "kernel" : NULL;
}

int ibx_frontend_put_launch(struct extension_request *e, const struct launch_config *config,
                            const void *function, void **arguments)
{
    (void)e, (void)config, (void)function, (void)arguments;
    return CUDA_NOT_SUPPORTED;
}

/* The other functions know nothing and do nothing. */

bool ibx_frontend_forbidden(int *rc)
{
    (void)rc;
    return false;
}
void ibx_frontend_host_function_is(enum ibx_host_function is)
{
    (void)is;
}
bool ibx_frontend_forked(void)
{
    return false;
}
bool ibx_frontend_given_out(const void *address)
{
    (void)address;
    return false;
}
bool ibx_frontend_is_device(const void *address)
{
    (void)address;
    return false;
}
bool ibx_frontend_is_managed(const void *address)
{
    (void)address;
    return false;
}
bool ibx_frontend_only_device(const void *address)
{
    (void)address;
    return false;
}
bool ibx_frontend_one_device(void)
{
    return true;
}
bool ibx_frontend_host_node(int id)
{
    return !id;
}
bool ibx_frontend_captured(const struct extension_request *request, void *stream, int *rc)
{
    (void)request, (void)stream, (void)rc;
    return false;
}
bool ibx_frontend_planes_in_stream(const struct ibx_cuda_memcpy3d *copy, bool waits, void *stream,
                                   int *rc)
{
    (void)copy, (void)waits, (void)stream, (void)rc;
    return false;
}
bool ibx_frontend_copy_of_unknown(const struct ibx_cuda_memcpy3d *copy)
{
    (void)copy;
    return true;
}
size_t ibx_frontend_planes_extent(size_t pitch, size_t rows, const struct ibx_cuda_extent *extent)
{
    (void)pitch, (void)rows;
    return extent->width && extent->height && extent->depth;
}
void ibx_math_settings_stream_ends(uint64_t stream)
{
    (void)stream;
}
void ibx_math_contents_lose(void) {}
bool ibx_frontend_knows(enum ibx_frontend_fact fact, uint64_t handle, int *answer)
{
    (void)fact, (void)handle, (void)answer;
    return false;
}
int cudaMemcpy3DPeer(const struct peer_planes *p)
{
    return cudaMemcpy3DPeerAsync(p, NULL);
}
/* Every device reaches all memory. */
int cudaMemcpy3DPeerAsync(const struct peer_planes *p, void *stream)
{
    const struct ibx_cuda_memcpy3d copy = {.from_array = p->from_array,
                                           .from_at = p->from_at,
                                           .from = p->from,
                                           .to_array = p->to_array,
                                           .to_at = p->to_at,
                                           .to = p->to,
                                           .extent = p->extent,
                                           .kind = CUDA_MEMCPY_ON_DEVICE};
    return cudaMemcpy3DAsync(&copy, stream);
}
int ibx_frontend_current_device(void)
{
    return 0;
}
int ibx_frontend_freed(int rc)
{
    return rc;
}
int ibx_frontend_graph_reach(void)
{
    return 0;
}
void ibx_frontend_before_free(void) {}
void ibx_frontend_device_memory(void *address, size_t n)
{
    (void)address, (void)n;
}
void ibx_frontend_graph_memory(void *address, size_t n)
{
    (void)address, (void)n;
}
bool ibx_frontend_is_reserved(const void *address)
{
    (void)address;
    return false;
}
void ibx_frontend_device_memory_reset(int device)
{
    (void)device;
}

void ibx_frontend_device_memory_gone(const void *address)
{
    (void)address;
}
void ibx_frontend_device_used(void) {}
void ibx_frontend_graph_reset(void) {}
void ibx_frontend_host_memory_reset(int device)
{
    (void)device;
}
void ibx_frontend_host_reset(int device)
{
    (void)device;
}
void ibx_frontend_look_for_libraries(void) {}
void ibx_frontend_managed_reset(void) {}
void ibx_frontend_managed_resets(void) {}
void ibx_frontend_managed_variables_reset(void) {}
void ibx_frontend_managed_rests(void) {}
void ibx_frontend_managed_captures(void) {}
bool ibx_frontend_allocation(const void *address, struct range *range)
{
    (void)address, (void)range;
    return false;
}
bool ibx_frontend_is_short(const void *address, size_t n)
{
    (void)address, (void)n;
    return false;
}

bool ibx_frontend_host_is_short(const void *address, size_t n)
{
    (void)address, (void)n;
    return false;
}
bool ibx_frontend_planes_are_short(const struct ibx_cuda_memcpy3d *bytes)
{
    (void)bytes;
    return false;
}
int ibx_frontend_planes_within(const struct ibx_cuda_memcpy3d *bytes)
{
    const int rc = ibx_frontend_side_within(&bytes->from, &bytes->from_at, bytes, true);
    return rc ? rc : ibx_frontend_side_within(&bytes->to, &bytes->to_at, bytes, true);
}
bool ibx_frontend_host_known(const void *address, int *device, unsigned *flags)
{
    (void)address, (void)device, (void)flags;
    return false;
}
/* A tensor's address here is in memory of this program, so it may be that of a value. */
bool ibx_frontend_is_readable(const void *address)
{
    return address;
}
void ibx_frontend_drives(struct ibx_frontend_errors *before)
{
    (void)before;
}
void ibx_frontend_asks(void) {}
void ibx_frontend_asked(void) {}
enum ibx_frontend_use ibx_frontend_take_use(void)
{
    return IBX_RUNTIME_UNUSED;
}
void ibx_frontend_drove(const struct ibx_frontend_errors *before, bool failed)
{
    (void)before, (void)failed;
}
void ibx_frontend_runtime_used(void) {}
unsigned ibx_frontend_reserved_resets(void)
{
    return 0;
}
void ibx_frontend_memory_of(void *address, size_t n, int device)
{
    (void)address, (void)n, (void)device;
}
void ibx_frontend_memory_lapsed(uintptr_t at, size_t n)
{
    (void)at, (void)n;
}
void ibx_frontend_print_all(void) {}
bool ibx_frontend_in_host_function(void)
{
    return false;
}
void ibx_frontend_reach_reset(void) {}
void ibx_frontend_variables_reset(void) {}
