/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * CUDA's libraries of which GVirtuS, or this project, has one for a remote GPU. libcudnn and
 * libnvrtc are not among them: of the former this project takes over calls, and the rest is
 * NVIDIA's library, which the program brings; and no compiler needs a GPU.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_REMOTE_LIBRARIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_REMOTE_LIBRARIES_H

/* How the names of their files begin. */
#define IBX_REMOTE_LIBRARIES                                                                       \
    "libcudart.so", "libcublas.so", "libcublasLt.so", "libcurand.so", "libcufft.so",               \
        "libcusparse.so", "libcusolver.so"

#endif
