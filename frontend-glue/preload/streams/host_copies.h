/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A copy between host and device that is a function of the host's, as graph_copies.c makes them and
 * host_copies.c runs them. */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_STREAMS_HOST_COPIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_STREAMS_HOST_COPIES_H

#include "frontend-glue/preload/preload.h"

#define IBX_HOST_COPY_DEVICES 64 /* none is made on further ones */

struct ibx_host_copy {
    struct ibx_cuda_memcpy3d parameters;
    int device;              /* that was current */
    _Atomic uint64_t number; /* of the function that copies between the slot and this memory, in
                                the process that has asked for that; 0: none yet */
    atomic_uint called;      /* so often */
    uint8_t *taken;          /* its bytes, which the call has taken: behind functions only */
    bool gone;               /* they were given back, and nobody has asked for such a copy since */
};

size_t ibx_host_copy_bytes(const struct ibx_cuda_memcpy3d *p);
/* The functions, whose argument is a struct ibx_host_copy: one makes the copy; the other gives its
 * slot the bytes, or takes them. */
void ibx_host_copy_make(void *copy);
void ibx_host_copy_exchange(void *copy);
/* Somebody asks for the copy, whose bytes may have been given back before. */
void ibx_host_copy_wanted(struct ibx_host_copy *copy);
/* Gives back bytes that the copy has taken, if any. */
void ibx_host_copy_give_back(struct ibx_host_copy *copy);
/* The back end has slots: it may send bytes with the word that a function is to be called. */
void ibx_host_copies_by_slots(void);
/* How often a device was reset. */
unsigned ibx_host_copies_resets(void);

#endif
