/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A copy between host and device that a host function makes. graph_copies.c makes these, and
 * host_copies.c runs them. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STREAMS_HOST_COPIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_STREAMS_HOST_COPIES_H

#include "frontend-glue/preload/preload.h"

#define IBX_HOST_COPY_DEVICES 64 /* devices with higher numbers have no such copies */

struct ibx_host_copy {
    struct ibx_cuda_memcpy3d parameters; /* host memory at NULL: a launch has the bytes */
    struct ibx_cuda_memcpy3d bytes; /* the same with this side's columns and the width in bytes */
    int device;                     /* the device that was current */
    bool pageable; /* this side's memory was pageable when the copy was requested; or both sides are
                      this process's */
    _Atomic uint64_t number; /* of the function that copies between the slot and this memory, in the
                                process that has requested it; 0: none yet */
    atomic_uint called;      /* how often the function was called */
};

/* Of a copy in bytes. */
size_t ibx_host_copy_bytes(const struct ibx_cuda_memcpy3d *p);
/* The memory of this process, from the first byte to behind the last one, that a copy of some bytes
 * reads, or that it writes. */
struct ibx_host_span {
    uintptr_t begin, end;
};
struct ibx_host_span ibx_host_copy_reads(const struct ibx_cuda_memcpy3d *p);
struct ibx_host_span ibx_host_copy_writes(const struct ibx_cuda_memcpy3d *p);
/* The bytes of one copy that a launch has taken, without gaps. */
struct ibx_launch_bytes {
    size_t n;
    uint8_t bytes[];
};
/* Takes the bytes that a copy to the device has now. NULL: there is no room. */
struct ibx_launch_bytes *ibx_launch_bytes_take(const struct ibx_host_copy *copy);
/* The host functions, whose argument is a struct ibx_host_copy. One makes the whole copy. The other
 * copies between the slot and this process's memory. */
void ibx_host_copy_make(void *copy);
void ibx_host_copy_exchange(void *copy);
/* The back end has slots: it may send bytes with the message that a function is to be called. */
void ibx_host_copies_by_slots(void);
/* How often a device was reset. */
unsigned ibx_host_copies_resets(void);

#endif
