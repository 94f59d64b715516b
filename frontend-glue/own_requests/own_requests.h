/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests of our own (session/own_requests.h), run by the runtime of GVirtuS's handlers in the
 * session's thread: for calls that GVirtuS lacks.
 *
 *   own_requests.c   which file runs which; streams, launches, functions to call
 *   arrays.c         arrays, textures and surfaces
 *   graphs.c, nodes.c, node_parameters.c  graphs
 *   copies.c         copies between host and device in them
 *   ipc.c            memory and events of other processes
 *   opened_handles.c ... of programs that have a process each
 *   passed_descriptors.c  ... of which CUDA has them share some by a descriptor
 *   host_maps.c      page-locked memory of clients, for kernels
 *   pools.c, variables.c, queries.c, virtual_memory.c  pools, variables, questions, memory that is
 *                    mapped
 *   tensors.c        descriptors of tensors, for kernels
 *   compile.c        what the driver's compiler says of PTX
 *
 * graphs.c, nodes.c, node_parameters.c and copies.c call each other: a copy in a graph is a node
 * with a graph in it, and whoever asks for nodes, or changes one, may meet such a one.
 */
#ifndef IBX_FRONTEND_GLUE_OWN_REQUESTS_OWN_REQUESTS_H
#define IBX_FRONTEND_GLUE_OWN_REQUESTS_OWN_REQUESTS_H

#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/tenants/shared_handles.h"
#include "frontend-glue/session/own_requests.h"

/* own_requests.c */

/* A request of our own: its exit code, and what it answers beside that. */
int ibx_own_request_run(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out);

/* ipc.c: what a client has shared with other processes. Two are of struct ibx_end_hooks. */

/* This memory was given back, or this event destroyed. */
void ibx_ipc_gone(uint64_t value);
/* The context is gone, and what was in it; NULL: it is not known which. */
void ibx_ipc_forget(const void *context);
/* The session has ended. What it has shared stays, as its memory does in GVirtuS. */
void ibx_ipc_end(const struct gpu_session *x);

/* A request in hand. */
struct own_request {
    struct gpu_session *x;
    struct ibx_reader in;
    struct ibx_writer out;
    void *function; /* of the runtime */
    bool no_handle; /* it names a stream or an event that is none */
    bool no_room;   /* its stream is captured, and there may be no more of that */
};

struct own_request_call {
    const char *function; /* of the runtime; NULL: it needs none */
    int (*run)(struct own_request *e);
};

/* Of these files, the others have no `run`. */
extern const struct own_request_call ibx_array_own_requests[IBX_OWN_REQUESTS],
    ibx_graph_own_requests[IBX_OWN_REQUESTS], ibx_node_own_requests[IBX_OWN_REQUESTS],
    ibx_ipc_own_requests[IBX_OWN_REQUESTS], ibx_variable_own_requests[IBX_OWN_REQUESTS],
    ibx_pool_own_requests[IBX_OWN_REQUESTS], ibx_query_own_requests[IBX_OWN_REQUESTS],
    ibx_copy_own_requests[IBX_OWN_REQUESTS], ibx_host_map_own_requests[IBX_OWN_REQUESTS],
    ibx_node_parameter_own_requests[IBX_OWN_REQUESTS], ibx_virtual_own_requests[IBX_OWN_REQUESTS],
    ibx_tensor_own_requests[IBX_OWN_REQUESTS], ibx_compile_own_requests[IBX_OWN_REQUESTS];

/* Sets a pointer to a function of the runtime's. */
#define FUNCTION(e, pointer) memcpy(&(pointer), &(e)->function, sizeof(pointer))

static inline void *pointer(struct ibx_reader *r)
{
    return pointer_to(ibx_get_u64(r));
}

static inline void *stream_in(struct own_request *e)
{
    const uint64_t stream = ibx_get_u64(&e->in);
    e->no_handle = e->no_handle || !ibx_named_stream(e->x, stream);
    e->no_room = e->no_room || (!e->no_handle && !ibx_graph_captures_in(e->x, stream));
    return pointer_to(stream);
}

static inline void *event_in(struct own_request *e)
{
    const uint64_t event = ibx_get_u64(&e->in);
    e->no_handle = e->no_handle || !ibx_named_event(e->x, event);
    return pointer_to(event);
}

/* No bytes of the reader are missing, none is left, and CUDA may get what they name. */
static inline bool whole(const struct own_request *e)
{
    return !e->in.failed && !e->no_handle && !e->no_room && e->in.position == e->in.length;
}

/* cudaLaunchAttributeID: whether its value begins with an event. */
static inline bool is_event_attribute(uint32_t attribute)
{
    enum { PROGRAMMATIC_EVENT = 7, LAUNCH_COMPLETION_EVENT = 12 };
    return attribute == PROGRAMMATIC_EVENT || attribute == LAUNCH_COMPLETION_EVENT;
}

/* Notes whether CUDA may get what the value of such an attribute names, of IBX_OWN_ATTRIBUTE
 * bytes.
 */
static inline void attribute_in(struct own_request *e, uint32_t attribute, const uint8_t *value)
{
    struct ibx_reader r = ibx_reader_of(value, value ? IBX_OWN_ATTRIBUTE : 0);
    if (is_event_attribute(attribute))
        e->no_handle = !ibx_named_event(e->x, ibx_get_u64(&r)) || e->no_handle;
}

/* Bytes from the first to the last of rows; false: of none, or of more than there are addresses. */
static inline bool span_of(size_t pitch, size_t width, size_t rows, size_t *n)
{
    return rows && !__builtin_mul_overflow(pitch, rows - 1, n) &&
           !__builtin_add_overflow(*n, width, n);
}

/* Whether it may be memory of the device that is the tenant's. */
static inline bool mine(const struct own_request *e, const void *memory, size_t n)
{
    return ibx_isolation_is_memory(e->x, (uintptr_t)memory, n);
}

static inline bool is_node(const struct own_request *e, const void *node)
{
    return ibx_handles_know(e->x, IBX_HANDLE_NODE, (uintptr_t)node);
}

/* Whether the driver may be asked about memory: that may be the first that the thread does. */
static inline bool ready(const struct own_request *e)
{
    ibx_back_end_begin_context(e->x);
    return ibx_back_end_have_cuda(e->x);
}

/* Whether a copy within the device is between arrays and memory of the tenant's. */
bool ibx_own_request_is_copy(const struct own_request *e, const struct ibx_cuda_memcpy3d *copy);
/* Whether rows of so many bytes are in memory of the tenant's. */
bool ibx_own_request_holds(const struct own_request *e, const struct ibx_cuda_pitched *memory,
                           const struct ibx_cuda_extent *at, const struct ibx_cuda_extent *extent,
                           size_t row);
/* Whether it is a pool that the tenant may use. */
bool ibx_own_request_is_pool(const struct own_request *e, const void *pool);

#define IBX_POSIX_FILE 1 /* cudaMemHandleTypePosixFileDescriptor */

/* opened_handles.c */

/* Open what another program's process has shared, and answer as the request does. The code of
 * CUDA's call, or CUDA_INVALID_HANDLE if there is none. */
int ibx_opened_memory(struct own_request *e, const uint8_t *handle);
int ibx_opened_event(struct own_request *e, const uint8_t *handle);
int ibx_opened_pool(struct own_request *e, const uint8_t *handle);
int ibx_opened_pointer(struct own_request *e, const void *pool, const uint8_t *handle);
/* The session's client closes that, or what another client here has. */
void ibx_opened_close(struct own_request *e, enum ibx_handle_kind kind, uint64_t value);
/* Of struct ibx_end_hooks: a pool, or memory of one, that nobody has open any more, unless somebody
 * has opened it since. */
void ibx_opened_give_back(enum ibx_handle_kind kind, uint64_t value);

#endif
