/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A double of CUDA's driver: its kernel, launched and as a node of graphs. */
#include "tests/doubles/cuda/graph.h"
#include "tests/doubles/cuda/internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------- what it prints */

static pthread_mutex_t printed_lock = PTHREAD_MUTEX_INITIALIZER;
static char printed[1 << 16];

EXPORT void ibx_double_print(const char *text)
{
    pthread_mutex_lock(&printed_lock);
    const size_t n = strlen(printed);
    snprintf(printed + n, sizeof(printed) - n, "%s", text);
    pthread_mutex_unlock(&printed_lock);
}

int waited(int code)
{
    pthread_mutex_lock(&printed_lock);
    if (*printed) {
        fputs(printed, stdout);
        fflush(stdout);
    }
    *printed = 0;
    pthread_mutex_unlock(&printed_lock);
    return code;
}

/* -------------------------------------------------------------------------- launches */

static int stream_of_here(void *stream)
{
    pthread_mutex_lock(&mutex);
    const int code = current ? SUCCESS : INVALID_CONTEXT;
    return code ? leave(code) : leave(stream_is_here(stream) ? SUCCESS : INVALID_HANDLE);
}

static bool is_wide(const void *kernel)
{
    const uintptr_t number = (uintptr_t)kernel;
    return number > IBX_DOUBLE_WIDE && number <= IBX_DOUBLE_WIDE + IBX_DOUBLE_WIDEST;
}

EXPORT int cuFuncGetParamInfo(void *kernel, size_t index, size_t *at, size_t *n)
{
    const size_t wide = is_wide(kernel) ? (uintptr_t)kernel - IBX_DOUBLE_WIDE : 8;
    const size_t sizes[] = {8, wide, is_wide(kernel) ? 4 : 8};
    const size_t places[] = {0, 8, (8 + wide + 3) / 4 * 4};
    if ((!is_wide(kernel) && !is_copy_kernel(kernel)) || index > 2)
        return INVALID_VALUE;
    *at = places[index];
    *n = sizes[index];
    return SUCCESS;
}

/* Kernels that were launched, or are in graphs. The list keeps them reachable for leak checkers. */
static struct wide {
    struct wide *next;
    uint64_t to;
    size_t n;
    uint32_t sum;
    uint8_t bytes[IBX_DOUBLE_WIDEST]; /* with the number added; and as they were given */
    uint8_t given[IBX_DOUBLE_WIDEST];
    void *kernel, *pointers[3];
} * wides;
static pthread_mutex_t wides_lock = PTHREAD_MUTEX_INITIALIZER;

static void run_wide(void *argument)
{
    const struct wide *wide = argument;
    ibx_double_poke(wide->to, wide->bytes, wide->n);
}

/* As the driver, takes only up to 4 KiB of arguments in one buffer. */
static struct wide *wide_of(void *kernel, void **arguments, void **extra)
{
    uint8_t lying[4096];
    void *pointers[3];
    uint32_t sum;
    size_t at = 0, n = 0, i = 0;
    while (i < 3 && !cuFuncGetParamInfo(kernel, i, &at, &n))
        pointers[i++] = lying + at % sizeof(lying);
    if (!arguments && (!extra || extra[0] != (void *)1 || extra[2] != (void *)2 ||
                       *(size_t *)extra[3] != at + n || at + n > sizeof(lying)))
        return NULL;
    if (!arguments)
        memcpy(lying, extra[1], at + n);
    void **from = arguments ? arguments : pointers;
    struct wide *wide = calloc(1, sizeof(*wide));
    wide->n = (uintptr_t)kernel - IBX_DOUBLE_WIDE;
    memcpy(&wide->to, from[0], 8);
    memcpy(wide->bytes, from[1], wide->n);
    memcpy(&sum, from[2], 4);
    memcpy(wide->given, wide->bytes, wide->n);
    wide->sum = sum;
    wide->kernel = kernel;
    memcpy(wide->pointers, (void *[]){&wide->to, wide->given, &wide->sum}, sizeof(pointers));
    for (i = 0; i < wide->n; i++)
        wide->bytes[i] = (uint8_t)(wide->bytes[i] + sum);
    pthread_mutex_lock(&wides_lock);
    wide->next = wides;
    wides = wide;
    pthread_mutex_unlock(&wides_lock);
    return wide;
}

int cuLaunchHostFunc(void *stream, void (*function)(void *argument), void *argument);

static _Atomic(ibx_double_take *) take;

EXPORT void ibx_double_runtime_takes(ibx_double_take *kernels)
{
    take = kernels;
}

/* Whether the runtime's double captures it. */
static bool captures_kernel(void *stream, void *kernel, const unsigned size[6],
                            const uint64_t values[3], bool packed)
{
    ibx_double_take *into = take;
    return into && into(stream, kernel, size, values, packed);
}

/* The arguments of the other kernel. */
static bool values_of(void **arguments, void **extra, uint64_t values[3])
{
    const size_t n = 3 * sizeof(*values);
    const bool packed = !arguments && extra && extra[0] == (void *)1 && extra[2] == (void *)2 &&
                        !extra[4] && *(size_t *)extra[3] == n;
    if (packed)
        memcpy(values, extra[1], n);
    for (unsigned i = 0; arguments && i < 3; i++)
        memcpy(&values[i], arguments[i], sizeof(*values));
    return packed || (arguments && !extra);
}

static int launch_wide(void *kernel, void *stream, void **arguments, void **extra)
{
    const int code = stream_of_here(stream);
    struct wide *wide = code ? NULL : wide_of(kernel, arguments, extra);
    return code ? code : wide ? cuLaunchHostFunc(stream, run_wide, wide) : INVALID_VALUE;
}

/* That of the plugin: its arguments are two addresses and a number of elements, of which those of
 * 16 bytes are aligned. */
static int launch_second(void *kernel, void *stream, void **arguments)
{
    const size_t element = second_kernel_element(kernel);
    uint64_t values[3];
    int code = stream_of_here(stream);
    if (code || !values_of(arguments, NULL, values))
        return code ? code : INVALID_VALUE;
    if ((values[0] | values[1]) % element || !kernel_reaches(values[0]) ||
        !kernel_reaches(values[1]))
        ibx_double_inject("cuLaunchKernel", 1, ILLEGAL_ADDRESS, true);
    return copy_plain("cuLaunchKernel", kernel_type_of(values[0]), values[0],
                      kernel_type_of(values[1]), values[1], values[2] * element, stream, false);
}

/* What cudaStreamCaptureStatus says of a stream. */
static int status_of(const void *stream)
{
    pthread_mutex_lock(&mutex);
    const int status = capture_status(stream);
    pthread_mutex_unlock(&mutex);
    return status;
}

/* The other kernel copies within the device: its arguments are two addresses and a length.
 */
EXPORT int cuLaunchKernel(void *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **arguments, void **extra)
{
    uint64_t values[3];
    if (status_of(stream) == 2) /* the capture is invalid */
        return 901;
    if (is_wide(kernel) && grid_x && block_x && block_x <= 1024)
        return launch_wide(kernel, stream, arguments, extra);
    if (second_kernel_element(kernel))
        return launch_second(kernel, stream, arguments);
    const bool sound = is_copy_kernel(kernel) && grid_x && grid_y && grid_z && block_x &&
                       block_x <= 1024 && block_y && block_z && !shared;
    if (!sound || !values_of(arguments, extra, values))
        return INVALID_VALUE;
    if (captures_kernel(stream, kernel,
                        (unsigned[]){grid_x, grid_y, grid_z, block_x, block_y, block_z}, values,
                        !arguments))
        return SUCCESS;
    int code = stream_of_here(stream);
    if (!code && (!kernel_reaches(values[0]) || !kernel_reaches(values[1])))
        ibx_double_inject("cuLaunchKernel", 1, ILLEGAL_ADDRESS, true);
    if (code)
        return code;
    return copy_plain("cuLaunchKernel", kernel_type_of(values[0]), values[0],
                      kernel_type_of(values[1]), values[1], values[2], stream, false);
}

/* Runs a node that has such arguments. */
EXPORT int ibx_double_run_wide(void *wide, void *stream)
{
    return cuLaunchHostFunc(stream, run_wide, wide);
}

/* Of the same kernels, in graphs of the runtime's double. */
static int set_kernel(struct graph_node *node, const struct kernel_parameters *p)
{
    if (node && node->type == NODE_KERNEL && is_wide(p->kernel)) {
        memcpy(node->of.size, p->size, sizeof(p->size));
        node->of.wide = wide_of(p->kernel, p->arguments, p->extra);
        node->of.packed = !p->arguments;
        return node->of.wide ? SUCCESS : INVALID_VALUE;
    }
    if (!node || node->type != NODE_KERNEL || !is_copy_kernel(p->kernel) ||
        !values_of(p->arguments, p->extra, node->of.values))
        return INVALID_VALUE;
    node->of.kernel = p->kernel;
    node->of.packed = !p->arguments;
    memcpy(node->of.size, p->size, sizeof(p->size));
    node->of.wide = NULL;
    return SUCCESS;
}

EXPORT int cuGraphKernelNodeGetParams_v2(void *handle, struct kernel_parameters *p)
{
    struct graph_node *node = node_of(handle);
    const struct wide *wide = node->of.wide;
    if (node->type != NODE_KERNEL)
        return INVALID_VALUE;
    for (unsigned i = 0; i < 3; i++)
        node->of.pointers[i] = wide ? wide->pointers[i] : &node->of.values[i];
    *p = (struct kernel_parameters){.kernel = wide ? wide->kernel : node->of.kernel,
                                    .arguments = node->of.pointers};
    memcpy(p->size, node->of.size, sizeof(p->size));
    return SUCCESS;
}

EXPORT int cuGraphAddKernelNode_v2(void **made, void *graph, void *const *behind, size_t count,
                                   const struct kernel_parameters *p)
{
    struct graph_node *node = graph_add(graph, NODE_KERNEL, behind, count);
    *made = node;
    return set_kernel(node, p);
}

EXPORT int cuGraphKernelNodeSetParams_v2(void *node, const struct kernel_parameters *p)
{
    const int code = enter("cuGraphKernelNodeSetParams");
    return code ? code : leave(set_kernel(node_of(node), p));
}

EXPORT int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node,
                                             const struct kernel_parameters *p)
{
    return set_kernel(node_in(exec, node), p);
}

/* CUlaunchAttribute and CUlaunchConfig */
struct launch_attribute {
    int id, pad;
    union {
        int on;
        unsigned cluster[3];
        char bytes[64];
        struct {
            void *event;
            int flags;
        } records;
    } value;
};
struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned count;
};

static bool has_clusters(const struct launch_config *c, const unsigned *cluster)
{
    for (unsigned i = 0; i < 3; i++)
        if (!cluster[i] || c->grid[i] % cluster[i])
            return false;
    return true;
}

/* The events that the launch of a captured kernel records (attributes 7 and 12). */
static void record_captured(const struct launch_config *c)
{
    pthread_mutex_lock(&mutex);
    for (unsigned i = 0; i < c->count; i++) {
        const struct launch_attribute *a = &c->attributes[i];
        if ((a->id != 7 && a->id != 12) || !capture_has(c->stream))
            continue;
        capture_streams_work(c->stream);
        capture_records(c->stream, a->value.records.event);
    }
    pthread_mutex_unlock(&mutex);
}

/* For the same kernels. A cooperative launch (attribute 2) may have at most 1,000 blocks, and is
 * not captured with its arguments in one buffer, as on an H200; and one in clusters (4) has whole
 * ones. Attribute 6 lets a kernel begin early, 7 and 12 record an event, which the double does only
 * in a capture, and 0 says nothing. */
EXPORT int cuLaunchKernelEx(const struct launch_config *c, void *kernel, void **arguments,
                            void **extra)
{
    for (unsigned i = 0; i < c->count; i++) {
        const struct launch_attribute *a = &c->attributes[i];
        const int id = a->id;
        const bool sound =
            id == 4 ? has_clusters(c, a->value.cluster)
                    : !id || id == 7 || id == 12 || ((id == 2 || id == 6) && a->value.on == 1);
        if (!sound || (id == 2 && !arguments && status_of(c->stream)))
            return INVALID_VALUE;
        if ((id == 7 || id == 12) && a->value.records.flags && status_of(c->stream))
            return 801; /* cudaEventRecordExternal */
        if (id == 2 && c->grid[0] > 1000)
            return 720; /* CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE */
    }
    const int code =
        cuLaunchKernel(kernel, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                       c->block[2], c->shared, c->stream, arguments, extra);
    if (!code)
        record_captured(c);
    return code;
}

/* --------------------------------------------------------------------- words of memory */

struct word {
    struct word *next;
    _Atomic uint32_t *at;
    uint32_t value;
};

static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;
static struct word *words; /* words that a stream has not written yet, or never will */

static void drop_word(struct word *word)
{
    pthread_mutex_lock(&words_lock);
    struct word **at = &words;
    while (*at != word)
        at = &(*at)->next;
    *at = word->next;
    pthread_mutex_unlock(&words_lock);
    free(word);
}

static struct word *keep_word(uint64_t address, uint32_t value)
{
    struct word *word = malloc(sizeof(*word));
    if (!word)
        return NULL;
    pthread_mutex_lock(&words_lock);
    *word = (struct word){words, (_Atomic uint32_t *)(uintptr_t)address, value};
    words = word;
    pthread_mutex_unlock(&words_lock);
    return word;
}

static void set_word(void *argument)
{
    struct word *word = argument;
    *word->at = word->value;
    drop_word(word);
}

/* A stream that is broken does not write its word. */
EXPORT int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    int code = enter("cuStreamWriteValue32");
    if (code)
        return code;
    const struct allocation *memory = find((void *)(uintptr_t)address, sizeof(value));
    const bool pinned = memory && memory->device < 0 && !flags;
    const bool on_device = memory && memory->device >= 0 && !flags;
    leave(0);
    if (on_device && address % sizeof(value) == 0)
        return ibx_double_fill(address, &value, sizeof(value), stream);
    struct word *word = pinned ? keep_word(address, value) : NULL;
    if (!word)
        return INVALID_VALUE;
    code = cuLaunchHostFunc(stream, set_word, word);
    if (code)
        drop_word(word);
    return code;
}
