/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE, cuSOLVER, cuDNN and NCCL.
 *
 *   math_calls.c     makes calls as extension requests
 *   math_handles.c   which handles are the back end's, and which GVirtuS's
 *   math_settings.c  settings of cuBLAS handles, which are deferred
 *   math_vectors.c   the value types of dense vectors (cuSPARSE)
 *   math_tables.c    tables of cuRAND
 *   math_composed.c  functions of cuBLAS, cuRAND and cuSPARSE that are no request of their own
 *   math_lt.c, math_descriptors.c  the same for cuBLASLt, and its descriptors
 *   math_host_solvers.c  solvers of cuSOLVER for sparse matrices in host memory
 *   math_xt.c        cuBLASXt, whose matrices are copied to the device for each call
 *   math_unnoticed.c  work of the device that captures and the last error do not notice
 *   math_answers.c   answers that are kept, because the same question has the same answer
 *   math_dnn_descriptors.c, math_contents.c  descriptors of cuDNN, and what is set in them
 *   math_dnn.c       graphs of cuDNN (cudnnBackend*)
 *   math_nccl.c      functions of NCCL; the operations of a group are one request
 *   math_absent.c, math_dnn_absent.c, math_nccl_absent.c  functions that a remote GPU cannot have
 *
 * There are circles of calls, because math_calls.c asks before it makes a call, and what it asks
 * makes calls itself: math_lt.c whose cuBLASLt the program uses, math_settings.c to send settings,
 * and math_dnn_descriptors.c, with math_contents.c, to make descriptors. math_descriptors.c asks
 * math_lt.c the same, which reads a descriptor by it.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_LIBRARIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_LIBRARIES_H

#include <stdint.h>

/* ------------------------------------------------------------------------------ math_settings.c */

/* To be called before a stream is destroyed, because another one may get its handle. */
void ibx_math_settings_stream_ends(uint64_t stream);

/* ------------------------------------------------------------------------------ math_contents.c */

/* The descriptors of cuDNN at the back end were lost: they are made again when they are used. */
void ibx_math_contents_lose(void);

#endif
