/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Structures of CUDA's driver for memory that is mapped to reserved addresses (cuMemCreate,
 * cuMemMap). Programs pass them to the front end, and the back end to its driver. None of them is
 * sent.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_MAPPED_MEMORY_H
#define IBX_FRONTEND_GLUE_SESSION_MAPPED_MEMORY_H

#include <stdint.h>

#define IBX_MAPPED_PINNED    1 /* CU_MEM_ALLOCATION_TYPE_PINNED */
#define IBX_MAPPED_OF_DEVICE 1 /* CU_MEM_LOCATION_TYPE_DEVICE */

#define IBX_MAPPED_POSIX_FILE 1 /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */

/* CUmemLocation */
struct ibx_mapped_location {
    int type, id;
};

/* CUmemAllocationProp */
struct ibx_mapped_properties {
    int type, handles;
    struct ibx_mapped_location at;
    void *meta;
    uint8_t compression, rdma;
    uint16_t usage;
    uint8_t reserved[4];
};
_Static_assert(sizeof(struct ibx_mapped_properties) == 32, "the layout of CUmemAllocationProp");

/* CUmemAccessDesc */
struct ibx_mapped_access {
    struct ibx_mapped_location at;
    unsigned flags; /* CUmemAccess_flags */
};
_Static_assert(sizeof(struct ibx_mapped_access) == 12, "the layout of CUmemAccessDesc");

#endif
