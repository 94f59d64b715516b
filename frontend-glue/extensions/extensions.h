/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests (session/extensions.h), for calls that GVirtuS lacks. They are run in the
 * session's thread, by the CUDA runtime that GVirtuS's handlers use.
 *
 *   extensions.c     the dispatch; streams, launches, functions of the client
 *   arrays.c         arrays, textures and surfaces
 *   driver_textures.c  textures that only the driver makes
 *   graphs.c, nodes.c, node_parameters.c, edges.c  graphs
 *   copies.c         copies between host and device in graphs
 *   captures.c       the graph of a capture, while the program asks for it
 *   ipc.c            memory and events of other processes
 *   opened_handles.c the same, if each program has a process of its own
 *   passed_descriptors.c  descriptors by which CUDA shares pools among processes
 *   host_maps.c      page-locked memory of clients, for kernels
 *   pools.c, variables.c, queries.c, virtual_memory.c  pools, variables, queries, memory that is
 *                    mapped
 *   tensors.c        tensor maps, which kernels use
 *   linker.c         the driver's linker, for the next two
 *   compile.c        what the driver's compiler says of PTX
 *   link_images.c    links several images
 *   stream_values.c  words in memory that streams write, and wait for
 *   random_tables.c  tables of cuRAND
 *
 * graphs.c, nodes.c, node_parameters.c and copies.c call each other: a copy in a graph is a node
 * with a graph in it, and requests that list or change nodes may meet such a node.
 */
#ifndef IBX_FRONTEND_GLUE_EXTENSIONS_EXTENSIONS_H
#define IBX_FRONTEND_GLUE_EXTENSIONS_EXTENSIONS_H

#include "frontend-glue/device_calls/device_calls.h"
#include "frontend-glue/clients/virtual_memory.h"
#include "frontend-glue/tenants/shared_handles.h"
#include "frontend-glue/session/extensions.h"

/* extensions.c */

/* Runs an extension request. Returns its exit code, a cudaError_t, and writes the rest of its
 * answer to `out`. */
int ibx_extension_run(struct gpu_session *x, const struct ibx_request *q, struct ibx_writer *out);

/* ipc.c: memory, events and pools that clients have shared. The first three are for struct
 * ibx_end_hooks. */

/* This memory was given back, or this event or pool was destroyed; or something else that has no
 * address, such as a texture. */
void ibx_ipc_gone(uint64_t value);
/* Nobody names memory of cuMemCreate by that number any more. */
void ibx_ipc_mappable_gone(uint64_t number);
/* The context is gone, with what was in it; NULL: it is not known which. */
void ibx_ipc_forget(const void *context);
/* The session has ended. What it has shared stays shared, as its memory stays in GVirtuS. */
void ibx_ipc_end(const struct gpu_session *x);

/* A request in hand. */
struct extension_request {
    struct gpu_session *x;
    struct ibx_reader in;
    struct ibx_writer out;
    void *function; /* of the runtime */
    bool no_handle; /* it names a stream or an event that does not exist */
    bool no_room;   /* its stream is being captured, and may get no more work */
};

struct extension_call {
    const char *function; /* of the runtime; NULL: it needs none */
    int (*run)(struct extension_request *e);
};

/* One table for each file, by number; `run` is NULL for requests of other files. */
extern const struct extension_call ibx_array_extensions[IBX_EXT_REQUESTS],
    ibx_graph_extensions[IBX_EXT_REQUESTS], ibx_node_extensions[IBX_EXT_REQUESTS],
    ibx_ipc_extensions[IBX_EXT_REQUESTS], ibx_variable_extensions[IBX_EXT_REQUESTS],
    ibx_pool_extensions[IBX_EXT_REQUESTS], ibx_query_extensions[IBX_EXT_REQUESTS],
    ibx_copy_extensions[IBX_EXT_REQUESTS], ibx_capture_extensions[IBX_EXT_REQUESTS],
    ibx_host_map_extensions[IBX_EXT_REQUESTS], ibx_node_parameter_extensions[IBX_EXT_REQUESTS],
    ibx_virtual_extensions[IBX_EXT_REQUESTS], ibx_tensor_extensions[IBX_EXT_REQUESTS],
    ibx_compile_extensions[IBX_EXT_REQUESTS], ibx_link_extensions[IBX_EXT_REQUESTS],
    ibx_value_extensions[IBX_EXT_REQUESTS], ibx_table_extensions[IBX_EXT_REQUESTS],
    ibx_edge_extensions[IBX_EXT_REQUESTS];

/* Sets a pointer to a function of the runtime's. */
#define FUNCTION(e, pointer) memcpy(&(pointer), &(e)->function, sizeof(pointer))

static inline void *pointer(struct ibx_reader *r)
{
    return pointer_to(ibx_get_u64(r));
}

static inline void *stream_in(struct extension_request *e)
{
    const uint64_t stream = ibx_get_u64(&e->in);
    e->no_handle = e->no_handle || !ibx_named_stream(e->x, stream);
    e->no_room = e->no_room || (!e->no_handle && !ibx_graph_captures_in(e->x, stream));
    return pointer_to(stream);
}

static inline void *event_in(struct extension_request *e)
{
    const uint64_t event = ibx_get_u64(&e->in);
    e->no_handle = e->no_handle || !ibx_named_event(e->x, event);
    return pointer_to(event);
}

/* Whether the request has exactly the bytes that were read, and CUDA may get what they name. */
static inline bool whole(const struct extension_request *e)
{
    return !e->in.failed && !e->no_handle && !e->no_room && e->in.position == e->in.length;
}

/* cudaLaunchAttributeID: whether its value begins with an event. */
static inline bool is_event_attribute(uint32_t attribute)
{
    enum { PROGRAMMATIC_EVENT = 7, LAUNCH_COMPLETION_EVENT = 12 };
    return attribute == PROGRAMMATIC_EVENT || attribute == LAUNCH_COMPLETION_EVENT;
}

/* Notes whether CUDA may get what an attribute's value of IBX_EXT_ATTRIBUTE bytes names. */
static inline void attribute_in(struct extension_request *e, uint32_t attribute,
                                const uint8_t *value)
{
    struct ibx_reader r = ibx_reader_of(value, value ? IBX_EXT_ATTRIBUTE : 0);
    if (is_event_attribute(attribute))
        e->no_handle = !ibx_named_event(e->x, ibx_get_u64(&r)) || e->no_handle;
}

/* The bytes from the first row to the end of the last one. False: there are no rows, or too many
 * bytes. */
static inline bool span_of(size_t pitch, size_t width, size_t rows, size_t *n)
{
    return rows && !__builtin_mul_overflow(pitch, rows - 1, n) &&
           !__builtin_add_overflow(*n, width, n);
}

/* Whether n bytes may be device memory that the client may name. */
static inline bool mine(const struct extension_request *e, const void *memory, size_t n)
{
    return ibx_isolation_is_memory(e->x, (uintptr_t)memory, n);
}

static inline bool is_node(const struct extension_request *e, const void *node)
{
    return ibx_handles_know(e->x, IBX_HANDLE_NODE, (uintptr_t)node) &&
           (!ibx_captures_any_of_tenant(e->x) ||
            ibx_captures_has_graph(e->x, ibx_handles_graph_of(e->x, (uintptr_t)node, true)));
}

/* Whether the driver can be asked about memory. Makes the thread's context if this is its first
 * call. */
static inline bool ready(const struct extension_request *e)
{
    ibx_back_end_begin_context(e->x);
    return ibx_back_end_have_cuda(e->x);
}

/* Whether a copy within the device is between arrays and memory that the client may name. */
bool ibx_extension_is_copy(const struct extension_request *e, const struct ibx_cuda_memcpy3d *copy);
/* What copies of an array that the client may name count in; false: it is no such array. */
bool ibx_extension_array_unit(const struct extension_request *e, const void *array,
                              struct ibx_array_unit *unit);
/* Whether `extent`, in rows of `row` bytes, at `at` in `memory` is within memory that the client
 * may name. */
bool ibx_extension_holds(const struct extension_request *e, const struct ibx_cuda_pitched *memory,
                         const struct ibx_cuda_extent *at, const struct ibx_cuda_extent *extent,
                         size_t row);
/* Calls work(e, of), and meanwhile nobody frees these n bytes of the client's memory: another
 * session of its could. Returns what `work` returns, or CUDA_INVALID_VALUE if the memory is no
 * longer the client's. Captures of others do not forbid the calls that `work` makes. */
int ibx_extension_held(struct extension_request *e, uint64_t memory, uint64_t n,
                       int (*work)(struct extension_request *e, void *of), void *of);
/* Whether it is a pool that the client may use. */
bool ibx_extension_is_pool(const struct extension_request *e, const void *pool);

/* driver_textures.c: cudaCreateTextureObject of a resource that was checked, by the driver. */
int ibx_extension_driver_texture(const struct extension_request *e, unsigned long long *texture,
                                 const struct ibx_cuda_resource *resource,
                                 const struct ibx_cuda_texture *how,
                                 const struct ibx_cuda_view *view);

#define IBX_POSIX_FILE 1 /* cudaMemHandleTypePosixFileDescriptor */

/* opened_handles.c */

/* Open what another program's process has shared, and write the answer to e->out. Return the code
 * of CUDA's call, or CUDA_INVALID_HANDLE: there is no such handle. */
int ibx_opened_memory(struct extension_request *e, const uint8_t *handle);
int ibx_opened_event(struct extension_request *e, const uint8_t *handle);
int ibx_opened_pool(struct extension_request *e, const uint8_t *handle);
/* *is: for the answer, instead. */
int ibx_opened_mappable(const struct extension_request *e, const uint8_t *handle,
                        struct ibx_virtual_memory *is);
int ibx_opened_pointer(struct extension_request *e, const void *pool, const uint8_t *handle);
/* The session's client closes what it has opened: a thing of another process, or of another client
 * of this one. */
void ibx_opened_close(struct extension_request *e, enum ibx_handle_kind kind, uint64_t value);
/* For struct ibx_end_hooks: gives back a pool, or memory of one, which nobody has open any more,
 * unless a client has opened it since. */
void ibx_opened_give_back(enum ibx_handle_kind kind, uint64_t value);

#endif
