/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Page-locked memory of this process through which graphs copy between a device and their clients.
 * A node of CUDA's copies between the device and a slot; between the slot and the client bytes go
 * by the transport, while the graph waits in a function (host_work.c). So nothing that a graph
 * waits for needs CUDA: its streams may have all of the GPU's connections, and the driver may keep
 * others out.
 *
 * A slot exists as long as a graph may use it, which CUDA itself tells (cudaUserObjectCreate). Its
 * bytes count as memory that is pinned for the tenant. When slots have gone, their memory stays
 * pinned, because unpinning waits for all graphs: it is unpinned when a client ends, if graphs on
 * another device have found no room. So all of it together is limited as well, also by rdma.pins
 * where that is more than IBX_SLOTS_LEAST. From any thread.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENTS_GRAPH_SLOTS_H
#define IBX_FRONTEND_GLUE_CLIENTS_GRAPH_SLOTS_H

#include "frontend-glue/clients/clients.h"

#define IBX_SLOT_MAX    ((size_t)256 << 20) /* bytes of one: while it is pinned others wait */
#define IBX_SLOTS_MAX   ((size_t)4 << 30)   /* of all, and an eighth of the host's memory, */
#define IBX_SLOTS_LEAST ((size_t)256 << 20) /* but this in any case */
#define IBX_SLOT_BLOCK  ((size_t)4 << 20)   /* pinned at a time, or more for a longer slot */
#define IBX_SLOT_BLOCKS (IBX_SLOTS_MAX / IBX_SLOT_BLOCK)

struct ibx_slot_memory {
    uint8_t *at;
    size_t n;
    unsigned block; /* below IBX_SLOT_BLOCKS */
    uint8_t *base;  /* of the block */
    size_t length;
};

/* Makes a slot of n bytes, all 0, held once for a graph. Returns its number, which no other slot
 * ever has; 0: there is no room, or CUDA does not pin memory. A context is current. */
uint64_t ibx_slot_make(struct gpu_session *x, size_t n);
/* Holds it once more, for another graph. False: there is no such slot any more. */
bool ibx_slot_hold(uint64_t slot);
/* Notes the function that its graphs call, for ibx_host_work_unused() when the slot has gone. */
void ibx_slot_call(uint64_t slot, void *function);
/* CUDA calls this when a graph no longer has the slot; the argument is the slot's number. */
void ibx_slot_release(void *slot);
/* Where its memory is, for a copy by the transport. The memory stays until ibx_slot_stop_using(),
 * also if its context goes. False: there is no such slot any more. */
bool ibx_slot_use(uint64_t slot, struct ibx_slot_memory *memory);
void ibx_slot_stop_using(uint64_t slot);
/* A context is gone, and its graphs with it. NULL: it is not known which; then all slots stay,
 * since graphs of other contexts may have them. */
void ibx_slots_forget(const void *context);
/* A client ends: if a context has found no room for a slot, unpins the memory of other contexts
 * that has no slots, for use by all. */
void ibx_slots_yield(struct gpu_session *x);
/* Bytes of all slots now, for tests. */
size_t ibx_slots_bytes(void);

#endif
