/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Collective operations of NCCL, as both ends of a session encode them (math_nccl.def). */
#ifndef IBX_FRONTEND_GLUE_SESSION_MATH_NCCL_H
#define IBX_FRONTEND_GLUE_SESSION_MATH_NCCL_H

#include <stddef.h>
#include <stdint.h>

/* ncclResult_t, as far as it is named here. */
#define NCCL_SUCCESS          0
#define NCCL_SYSTEM_ERROR     2
#define NCCL_INTERNAL_ERROR   3
#define NCCL_INVALID_ARGUMENT 4
#define NCCL_INVALID_USAGE    5
#define NCCL_REMOTE_ERROR     6
#define NCCL_IN_PROGRESS      7

#define IBX_NCCL_ID_BYTES 128u

/* Bytes of an element of that ncclDataType_t, 8 at most; 0: unknown. */
static inline size_t ibx_nccl_bytes(int type)
{
    static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && (size_t)type < sizeof(bytes) ? bytes[type] : 0;
}

/* On the wire: new ones come last. */
enum ibx_nccl_call {
    IBX_NCCL_ALL_REDUCE,
    IBX_NCCL_BROADCAST,
    IBX_NCCL_REDUCE,
    IBX_NCCL_ALL_GATHER,
    IBX_NCCL_REDUCE_SCATTER,
    IBX_NCCL_SEND,
    IBX_NCCL_RECEIVE,
    IBX_NCCL_ALL_TO_ALL,
    IBX_NCCL_GATHER,
    IBX_NCCL_SCATTER,
    IBX_NCCL_CALLS
};

/* On the wire, field by field: 56 bytes. Addresses are those of the device; 0: not used. */
struct ibx_nccl_operation {
    uint32_t call; /* enum ibx_nccl_call */
    int32_t type;  /* ncclDataType_t */
    int32_t op;    /* ncclRedOp_t */
    int32_t peer;  /* a root's or another peer's rank */
    uint64_t from, to;
    uint64_t count; /* elements, as the function's own argument has it */
    uint64_t communicator, stream;
};
#define IBX_NCCL_OPERATION_BYTES 56u
#define IBX_NCCL_OPERATIONS      1024u /* of a group, at most */

/* Numbers of a ncclConfig_t, in this order; IBX_NCCL_UNSET: the library's default. New ones come
 * last. Its texts (the network's and the communicator's name) stay in the program. */
enum ibx_nccl_number {
    IBX_NCCL_BLOCKING,
    IBX_NCCL_CGA_CLUSTER,
    IBX_NCCL_LEAST_CTAS,
    IBX_NCCL_MOST_CTAS,
    IBX_NCCL_SPLIT_SHARE,
    IBX_NCCL_NUMBERS
};
#define IBX_NCCL_UNSET INT32_MIN

#endif
