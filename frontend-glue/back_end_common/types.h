/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Types of tenants and clients in the state of a session; clients.h explains them. */
#ifndef IBX_FRONTEND_GLUE_BACK_END_COMMON_TYPES_H
#define IBX_FRONTEND_GLUE_BACK_END_COMMON_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ibx_client_module;
struct ibx_quota;
struct ibx_tenant;

/* What a handle is of: handles.c. */
enum ibx_handle_kind {
    IBX_HANDLE_ARRAY,     /* also a level of a mipmapped array, which ends with that */
    IBX_HANDLE_MIPMAP,    /* a mipmapped array */
    IBX_HANDLE_POOL,      /* a device's own */
    IBX_HANDLE_MADE_POOL, /* one that was made */
    IBX_HANDLE_TEXTURE,
    IBX_HANDLE_SURFACE,
    IBX_HANDLE_GRAPH,
    IBX_HANDLE_NODE,
    IBX_HANDLE_EXEC,
    IBX_HANDLE_CONDITION, /* of conditional nodes of a graph */
    IBX_HANDLE_MEMORY,
    /* Opened from another process of the back end: memory, mapped into this one; a pool; memory of
     * a pool. */
    IBX_HANDLE_OPENED,
    IBX_HANDLE_OPENED_POOL,
    IBX_HANDLE_OPENED_POINTER,
    IBX_HANDLE_MAPPABLE, /* memory that is mapped apart from its addresses: a number */
    /* What only GVirtuS's handlers of the driver and of libraries make and use: named_handlers.c.
     * None of it is given back for its client. */
    IBX_HANDLE_CONTEXT, /* a device's own */
    IBX_HANDLE_MADE_CONTEXT,
    IBX_HANDLE_MODULE,
    IBX_HANDLE_FUNCTION, /* of a module, with which it ends */
    IBX_HANDLE_TEXTURE_REFERENCE,
    IBX_HANDLE_LT_OPERATION, /* cublasLtMatmulDesc_t, and so on */
    IBX_HANDLE_LT_LAYOUT,
    IBX_HANDLE_LT_PREFERENCE,
    IBX_HANDLE_NVML_DEVICE,
    IBX_HANDLE_STREAM,
    IBX_HANDLE_EVENT,
    IBX_HANDLE_MATH /* of a library: + enum ibx_math_type */
};

/* Who has made a handle of a library. */
enum ibx_handle_maker {
    IBX_MAKER_NONE,            /* there is no such handle */
    IBX_MAKER_REQUEST,         /* an extension request */
    IBX_MAKER_HANDLER,         /* one of GVirtuS's handlers */
    IBX_MAKER_HANDLER_FOR_HOST /* ... and it is a generator of cuRAND that fills host memory */
};

/* Whether only handlers make and use it. */
static inline bool ibx_handle_is_of_handlers(enum ibx_handle_kind kind)
{
    return kind >= IBX_HANDLE_CONTEXT && kind <= IBX_HANDLE_NVML_DEVICE;
}

/* Whether it is of all clients, since it is a device's own. */
static inline bool ibx_handle_is_of_all(enum ibx_handle_kind kind)
{
    return kind == IBX_HANDLE_POOL || kind == IBX_HANDLE_CONTEXT || kind == IBX_HANDLE_NVML_DEVICE;
}

#define IBX_LOAD_OPTIONS 64u /* of cuModuleLoadDataEx; CUDA has fewer */

struct ibx_load_options {
    uint32_t count;
    uint8_t kinds[IBX_LOAD_OPTIONS]; /* CUjit_option */
};

#define IBX_HANDLES_HELD 200u /* most that one request names, with what they belong to */

/* Of a graph or an executable graph: ibx_handles_size(). */
struct ibx_graph_size {
    uint64_t nodes;
    unsigned level, depth;
};

/* An event that a node of a graph names. */
struct ibx_graph_event {
    uint64_t node, event;
    uint64_t number; /* of the event: handle_lists.h; 0: not known */
    bool waits;      /* the node waits for it, and does not record it */
};
struct handle;
struct ibx_graph_events {
    struct ibx_graph_event *named;
    size_t count, room;
    struct handle **held; /* by the request in hand */
    size_t held_count;
};

/* The last allocation that a session was seen to use, for the next question. */
struct ibx_owners_cache {
    uint64_t begin, end, changes;
};

/* The client that makes a request, as a user of registered functions. */
struct ibx_functions_user {
    uint64_t client; /* client_list.c */
    uint64_t parent; /* the client that it was forked from; 0: not known */
    const struct ibx_tenant *tenant;
    struct ibx_quota *quota;        /* in which the bytes count that it registers; NULL: none */
    struct ibx_client_module *held; /* held by the request in hand; NULL: none */
};

#endif
