/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * gpudirect/: copies between host memory and GPUs, by the CUDA driver alone. It knows no network:
 * a caller passes the functions that register memory with a fabric or move bytes over it. This is
 * the header for other folders; GVirtuS's back end (frontend-glue/device_copies) is the main user.
 *
 *   cuda.h          the driver, loaded by dlopen(3) through one table; relaxed capture mode
 *   pinned.h        one pool of pinned chunks for the process
 *   staging.h       copies through those chunks, the GPU's copy engine and the wire overlapped
 *   copy_threads.h  several threads for one memcpy
 *   client_pins.h   a client's shared memory, pinned for use in place; stream fences behind copies
 *   turns.h         whose copies the GPU takes next
 *   gpu_registrations.h     GPU memory registered with a fabric, as dma-bufs or by address
 */
#ifndef IBX_GPUDIRECT_GPUDIRECT_H
#define IBX_GPUDIRECT_GPUDIRECT_H

#include "gpudirect/client_pins.h"
#include "gpudirect/copy_threads.h"
#include "gpudirect/cuda.h"
#include "gpudirect/gpu_registrations.h"
#include "gpudirect/pinned.h"
#include "gpudirect/staging.h"
#include "gpudirect/turns.h"

#endif
