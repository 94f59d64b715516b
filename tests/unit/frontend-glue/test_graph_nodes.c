/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What nodes of graphs a program can add, and what is refused before the back end is asked. The
 * back end is simulated. */
#include "frontend-glue/preload/graphs/graphs.h"
#include "frontend-glue/preload/kernels/kernels.h"
#include "frontend-glue/preload/memory/memory.h"
#include "frontend-glue/preload/streams/streams.h"
#include "tests/fixtures/unit.h"
#include "tests/unit/frontend-glue/begun_requests.h"

#define GRAPH ((void *)1000)
#define MADE  ((void *)2000)
#define OLD   ((void *)7) /* what an output had before */

static struct {
    int fails;    /* what requests return */
    bool no_slot; /* the back end has no slot for a copy */
    bool of_host, on_host, is_short;
    uint64_t function; /* the number of the function that copies; 0: it cannot */
    unsigned requests, used, freed;
    enum ibx_extension number; /* of the latest request */
    uint8_t body[EXTENSION_REQUEST_MAX];
    size_t n;
    bool failed; /* it did not fit */
    int kind;    /* of a copy through a slot */
    int error;
} is;

/* ------------------------------------------------------------ what is simulated */

int ibx_frontend_fail(int code)
{
    return is.error = code;
}
void ibx_frontend_request_free(struct extension_request *e)
{
    (void)e;
    is.freed++;
}
static int sent(const struct extension_request *e)
{
    struct ibx_reader r = ibx_reader_of(e->body.data, e->body.length);
    is.requests++;
    is.number = ibx_get_u16(&r);
    is.failed = e->body.failed;
    is.n = ibx_reader_left(&r);
    memcpy(is.body, e->bytes + r.position, is.n);
    return is.failed  ? ibx_frontend_fail(CUDA_NOT_SUPPORTED)
           : is.fails ? ibx_frontend_fail(is.fails)
                      : 0;
}
int ibx_frontend_request_ask(const struct extension_request *e, uint64_t *answer)
{
    const int rc = sent(e);
    if (!rc)
        *answer = (uintptr_t)MADE;
    return rc;
}
int ibx_frontend_request_make(const struct extension_request *e, void *out, size_t n)
{
    if (n)
        memset(out, 0, n);
    return sent(e);
}
uint64_t ibx_frontend_slot_copy(struct ibx_writer *body, const struct ibx_cuda_memcpy3d *copy)
{
    (void)body;
    is.kind = copy->kind;
    return !is.no_slot;
}
bool ibx_frontend_slot_made(struct extension_request *e, void *to, size_t n, int *rc)
{
    struct ibx_writer w = ibx_writer_of(to, n);
    ibx_put_u64(&w, (uintptr_t)MADE);
    *rc = sent(e);
    return true;
}
bool ibx_frontend_slot_parameters(uint64_t number, struct ibx_cuda_memcpy3d *copy)
{
    (void)number, (void)copy;
    return true;
}
void ibx_frontend_execs_keep(const void *node, uint64_t number)
{
    (void)node, (void)number;
}
int ibx_frontend_exec_exchange(const void *exec, const void *node, uint64_t before, uint64_t number)
{
    (void)exec, (void)node, (void)before, (void)number;
    return 0;
}
bool ibx_frontend_planes_are_short(const struct ibx_cuda_memcpy3d *bytes)
{
    assert_true(bytes->from.at && bytes->to.at); /* in an array the width is in elements */
    return is.is_short;
}
int ibx_frontend_planes_within(const struct ibx_cuda_memcpy3d *bytes)
{
    assert_true(bytes->from.at && bytes->to.at);
    return 0;
}
bool ibx_frontend_copy_of_host(struct ibx_cuda_memcpy3d *copy)
{
    (void)copy;
    return is.of_host;
}
bool ibx_frontend_copy_is_on_host(const struct ibx_cuda_memcpy3d *copy)
{
    (void)copy;
    return is.on_host;
}
uint64_t ibx_frontend_copy_function(const struct ibx_cuda_memcpy3d *copy, uint64_t *queue, int *rc)
{
    (void)copy;
    *queue = 5;
    *rc = CUDA_NOT_SUPPORTED;
    return is.function;
}
int ibx_frontend_put_launch(struct extension_request *e, const struct launch_config *config,
                            const void *function, void **arguments)
{
    (void)e, (void)config, (void)arguments;
    assert_non_null(function);
    return 0;
}
void ibx_frontend_device_used(void)
{
    is.used++;
}
int ibx_frontend_set_check(const struct ibx_cuda_memset *set)
{
    return set ? 0 : ibx_frontend_fail(CUDA_INVALID_VALUE);
}
uint64_t ibx_frontend_host_repeated(void (*function)(void *argument), void *argument,
                                    uint64_t *queue)
{
    (void)argument;
    assert_true(function != NULL);
    *queue = 5;
    return is.function;
}
void ibx_frontend_objects_share(const void *from, const void *to)
{
    (void)from, (void)to;
}
void ibx_frontend_graph_memory(void *address, size_t n)
{
    (void)address, (void)n;
}

static int begin(void **state)
{
    (void)state;
    memset(&is, 0, sizeof(is));
    is.function = 9;
    return 0;
}

/* ------------------------------------------------------------ dependencies */

/* A node that depends on `count` others. */
static int add_empty(void *const *behind, size_t count)
{
    void *node = OLD;
    const int rc = cudaGraphAddEmptyNode(&node, GRAPH, behind, count);
    assert_ptr_equal(node, rc ? OLD : MADE);
    return rc;
}

static void dependencies_are_sent(NO_STATE)
{
    void *behind[] = {(void *)11, (void *)12};
    assert_int_equal(add_empty(behind, 2), 0);
    struct ibx_reader r = ibx_reader_of(is.body, is.n);
    assert_int_equal(is.number, IBX_EXT_NODE_EMPTY);
    assert_int_equal(ibx_get_u64(&r), (uintptr_t)GRAPH);
    assert_int_equal(ibx_get_u16(&r), 2);
    assert_int_equal(ibx_get_u64(&r), 11);
    assert_int_equal(ibx_get_u64(&r), 12);
    assert_int_equal(ibx_reader_left(&r), 0);
    assert_int_equal(add_empty(NULL, 0), 0);
}

static void dependencies_that_are_missing_are_refused(NO_STATE)
{
    assert_int_equal(add_empty(NULL, 1), CUDA_INVALID_VALUE);
    assert_int_equal(is.error, CUDA_INVALID_VALUE);
    assert_int_equal(is.requests, 0);
}

/* As many as a request has room for; with more it fails, and does not lose some of them. */
static void too_many_dependencies_make_the_call_fail(NO_STATE)
{
    static void *behind[IBX_EXT_BEHIND + 1];
    for (size_t i = 0; i <= IBX_EXT_BEHIND; i++)
        behind[i] = (void *)(11 + i);
    assert_int_equal(add_empty(behind, IBX_EXT_BEHIND), 0);
    struct ibx_reader r = ibx_reader_of(is.body, is.n);
    ibx_get_u64(&r);
    assert_int_equal(ibx_get_u16(&r), IBX_EXT_BEHIND);
    assert_int_equal(ibx_reader_left(&r), 8 * IBX_EXT_BEHIND);
    assert_int_equal(add_empty(behind, IBX_EXT_BEHIND + 1), CUDA_NOT_SUPPORTED);
    assert_true(is.failed);
    assert_int_equal(add_empty(behind, 65536 + 1), CUDA_NOT_SUPPORTED); /* 1 in 16 bits */
}

static void a_node_needs_a_place(NO_STATE)
{
    assert_int_equal(cudaGraphAddEmptyNode(NULL, GRAPH, NULL, 0), CUDA_INVALID_VALUE);
    is.of_host = true;
    char bytes[8];
    assert_int_equal(cudaGraphAddMemcpyNode1D(NULL, GRAPH, NULL, 0, bytes, MADE, 8, 2),
                     CUDA_INVALID_VALUE);
    assert_int_equal(is.requests, 0);
    assert_int_equal(is.error, CUDA_INVALID_VALUE);
}

/* ------------------------------------------------------------ kernels */

static int add_kernel(const struct kernel_node *kernel)
{
    void *node = OLD;
    const int rc = cudaGraphAddKernelNode(&node, GRAPH, NULL, 0, kernel);
    assert_ptr_equal(node, rc ? OLD : MADE);
    assert_int_equal(cudaGraphKernelNodeSetParams(MADE, kernel), rc);
    assert_int_equal(cudaGraphExecKernelNodeSetParams(GRAPH, MADE, kernel), rc);
    return rc;
}

static void kernels_are_sent_and_use_the_device(NO_STATE)
{
    const struct kernel_node kernel = {.function = GRAPH};
    assert_int_equal(add_kernel(&kernel), 0);
    assert_int_equal(is.requests, 3);
    assert_int_equal(is.used, 3);
    assert_int_equal(is.freed, 3); /* a request with many arguments has memory of its own */
}

static void kernels_without_a_function_or_with_packed_arguments_are_refused(NO_STATE)
{
    void *extra[] = {NULL};
    const struct kernel_node none = {.function = NULL},
                             packed = {.function = GRAPH, .extra = extra};
    assert_int_equal(add_kernel(NULL), CUDA_INVALID_VALUE);
    assert_int_equal(add_kernel(&none), CUDA_INVALID_FUNCTION);
    assert_int_equal(add_kernel(&packed), CUDA_NOT_SUPPORTED);
    assert_int_equal(is.requests, 0);
    assert_int_equal(is.freed, 9);
}

static void a_kernel_of_an_executable_graph_needs_one(NO_STATE)
{
    const struct kernel_node kernel = {.function = GRAPH};
    assert_int_equal(cudaGraphExecKernelNodeSetParams(NULL, MADE, &kernel), CUDA_INVALID_VALUE);
    assert_int_equal(is.requests, 0);
}

/* ------------------------------------------------------------ copies */

static struct ibx_cuda_memcpy3d a_copy(void)
{
    return (struct ibx_cuda_memcpy3d){
        .from = {OLD, 8, 8, 1}, .to = {MADE, 8, 8, 1}, .extent = {8, 1, 1}, .kind = 3};
}

static int add_copy(const struct ibx_cuda_memcpy3d *copy)
{
    void *node = OLD;
    const int rc = cudaGraphAddMemcpyNode(&node, GRAPH, NULL, 0, copy);
    assert_ptr_equal(node, rc ? OLD : MADE);
    return rc;
}

static void a_copy_has_one_source_and_one_destination(NO_STATE)
{
    struct ibx_cuda_memcpy3d copy = a_copy();
    assert_int_equal(add_copy(&copy), 0);
    assert_int_equal(is.number, IBX_EXT_NODE_MEMCPY);
    copy.to_array = GRAPH; /* two */
    assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    copy.to.at = NULL;
    assert_int_equal(add_copy(&copy), 0);
    copy.to_array = NULL; /* none */
    assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    copy = a_copy();
    copy.from_array = GRAPH;
    assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    copy.from.at = NULL;
    assert_int_equal(add_copy(&copy), 0);
    copy.from_array = NULL;
    assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    assert_int_equal(add_copy(NULL), CUDA_INVALID_VALUE);
    assert_int_equal(is.requests, 3);
}

static void a_copy_beyond_memory_is_refused_but_arrays_are_the_devices_to_check(NO_STATE)
{
    struct ibx_cuda_memcpy3d copy = a_copy();
    is.is_short = true;
    assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    assert_int_equal(is.error, CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphMemcpyNodeSetParams(MADE, &copy), CUDA_INVALID_VALUE);
    copy.to.at = NULL;
    copy.to_array = GRAPH;
    assert_int_equal(add_copy(&copy), 0);
    copy = a_copy();
    copy.from.at = NULL;
    copy.from_array = GRAPH;
    assert_int_equal(add_copy(&copy), 0);
}

static void copies_of_nothing_and_of_no_kind_are_refused(NO_STATE)
{
    struct ibx_cuda_memcpy3d copy = a_copy();
    copy.kind = 5;
    assert_int_equal(add_copy(&copy), CUDA_INVALID_DIRECTION);
    for (int i = 0; i < 3; i++) {
        copy = a_copy();
        *(i == 0 ? &copy.extent.width : i == 1 ? &copy.extent.height : &copy.extent.depth) = 0;
        assert_int_equal(add_copy(&copy), CUDA_INVALID_VALUE);
    }
}

/* Through a slot of the back end, else by a function that the graph calls. */
static void copies_with_the_host_are_slots_or_functions(NO_STATE)
{
    const struct ibx_cuda_memcpy3d copy = a_copy();
    is.of_host = true;
    assert_int_equal(add_copy(&copy), 0);
    assert_int_equal(is.number, IBX_EXT_NODE_COPY);
    assert_int_equal(is.kind, copy.kind);
    is.of_host = false;
    is.on_host = true;
    assert_int_equal(add_copy(&copy), 0);
    assert_int_equal(is.kind, CUDA_MEMCPY_ON_HOST);
    is.fails = 2;
    assert_int_equal(add_copy(&copy), 2);
    is.fails = 0;
    is.no_slot = true;
    assert_int_equal(add_copy(&copy), 0);
    assert_int_equal(is.number, IBX_EXT_NODE_HOST);
    is.function = 0;
    assert_int_equal(add_copy(&copy), CUDA_NOT_SUPPORTED);
}

/* ------------------------------------------------------------ host functions */

static void function(void *argument)
{
    (void)argument;
}

static void a_host_node_needs_a_function(NO_STATE)
{
    void *node = OLD;
    const struct host_node host = {.function = function}, none = {.function = NULL};
    assert_int_equal(cudaGraphAddHostNode(&node, GRAPH, NULL, 0, NULL), CUDA_INVALID_VALUE);
    assert_int_equal(cudaGraphAddHostNode(&node, GRAPH, NULL, 0, &none), CUDA_INVALID_VALUE);
    assert_ptr_equal(node, OLD);
    assert_int_equal(cudaGraphAddHostNode(&node, GRAPH, NULL, 0, &host), 0);
    assert_ptr_equal(node, MADE);
    is.function = 0; /* the back end does not know host functions */
    assert_int_equal(cudaGraphAddHostNode(&node, GRAPH, NULL, 0, &host), CUDA_NOT_SUPPORTED);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(dependencies_are_sent),
        TEST(dependencies_that_are_missing_are_refused),
        TEST(too_many_dependencies_make_the_call_fail),
        TEST(a_node_needs_a_place),
        TEST(kernels_are_sent_and_use_the_device),
        TEST(kernels_without_a_function_or_with_packed_arguments_are_refused),
        TEST(a_kernel_of_an_executable_graph_needs_one),
        TEST(a_copy_has_one_source_and_one_destination),
        TEST(a_copy_beyond_memory_is_refused_but_arrays_are_the_devices_to_check),
        TEST(copies_of_nothing_and_of_no_kind_are_refused),
        TEST(copies_with_the_host_are_slots_or_functions),
        TEST(a_host_node_needs_a_function)};
    return cmocka_run_group_tests_name("graph nodes", tests, NULL, NULL);
}
