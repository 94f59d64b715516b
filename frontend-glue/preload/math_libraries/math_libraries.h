/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Functions of cuBLAS, cuBLASLt, cuRAND, cuFFT, cuSPARSE, cuSOLVER and cuDNN.
 *
 *   math_calls.c     those in requests of our own
 *   math_handles.c   which handles are the back end's, and which GVirtuS's
 *   math_settings.c  what is set in handles of cuBLAS
 *   math_vectors.c   of which type the values of dense vectors are
 *   math_composed.c  functions that are no request of their own
 *   math_lt.c, math_descriptors.c  likewise: cuBLASLt, and its descriptors
 *   math_answers.c   what that has answered and would again
 *   math_dnn_descriptors.c, math_contents.c  descriptors of cuDNN, and what is in them
 *   math_dnn.c       graphs of cuDNN
 *   math_absent.c, math_dnn_absent.c  what there is not
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_LIBRARIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_MATH_LIBRARIES_MATH_LIBRARIES_H

#include <stdint.h>

/* ------------------------------------------------------------------------------ math_settings.c */

/* Before that is destroyed: another one may have its number. */
void ibx_math_settings_stream_ends(uint64_t stream);

/* ------------------------------------------------------------------------------ math_contents.c */

/* Descriptors of cuDNN at the back end are no more: what is made from now on is new. */
void ibx_math_contents_lose(void);

#endif
