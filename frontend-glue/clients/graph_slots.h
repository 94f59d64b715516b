/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory of this process through which graphs copy between a device and their clients.
 * A node of CUDA's copies between the device and a slot; between the slot and the client bytes go
 * by the transport, while the graph waits in a function (host_work.c). So nothing that a graph
 * waits for needs CUDA: its streams may have all of the GPU's connections, and the driver may keep
 * others out.
 *
 * A slot is there as long as a graph may use it, which CUDA itself tells (cudaUserObjectCreate).
 * Its bytes count as memory that is pinned for the tenant. The memory stays pinned when slots have
 * gone: to unpin it waits for all graphs, and is left to clients that end, when graphs on another
 * device have found no room. So all of it together is limited as well, also
 * by rdma.pins where that is more than the least. From any thread.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_GRAPH_SLOTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_GRAPH_SLOTS_H

#include "frontend-glue/clients/clients.h"

#define IBX_SLOT_MAX    ((size_t)256 << 20) /* bytes of one: while it is pinned others wait */
#define IBX_SLOTS_MAX   ((size_t)4 << 30)   /* of all, and an eighth of the host's memory, */
#define IBX_SLOTS_LEAST ((size_t)256 << 20) /* but this in any case */
#define IBX_SLOT_BLOCK  ((size_t)4 << 20)   /* is pinned at a time, or a longer slot */
#define IBX_SLOT_BLOCKS (IBX_SLOTS_MAX / IBX_SLOT_BLOCK)

struct ibx_slot_memory {
    uint8_t *at;
    size_t n;
    unsigned block; /* below IBX_SLOT_BLOCKS */
    uint8_t *base;  /* of the block */
    size_t length;
};

/* A slot of n bytes, all 0, held once by CUDA; its number, which no other ever has. 0: there is no
 * room, or CUDA does not pin memory. A context is current. */
uint64_t ibx_slot_make(struct gpu_session *x, size_t n);
/* Held once more. False: there is no such slot any more. */
bool ibx_slot_hold(uint64_t slot);
/* What its graphs call; that is told when none of them is there any more. */
void ibx_slot_call(uint64_t slot, void *function);
/* What CUDA calls when a graph has it no more; it has the number for an address. */
void ibx_slot_release(void *slot);
/* Where it is, for a copy by the transport; it stays until the latter call, also if its context
 * goes. */
bool ibx_slot_use(uint64_t slot, struct ibx_slot_memory *memory);
void ibx_slot_stop_using(uint64_t slot);
/* A context is gone, and its graphs with it; NULL: it is not known which, and slots that graphs of
 * other contexts may have stay. */
void ibx_slots_forget(const void *context);
/* A client ends: memory without slots is for all contexts again, where one was in want of it. */
void ibx_slots_yield(struct gpu_session *x);
/* Bytes of all slots now, for tests. */
size_t ibx_slots_bytes(void);

#endif
