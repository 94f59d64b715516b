/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Libraries of CUDA that GVirtuS or this project replaces as a whole for remote GPUs. libcudnn is
 * not among them: the program brings NVIDIA's libcudnn, and the preload takes over only some of its
 * calls. Nor is libnvrtc: a compiler needs no GPU.
 */
#ifndef IBX_FRONTEND_GLUE_PRELOAD_REMOTE_LIBRARIES_H
#define IBX_FRONTEND_GLUE_PRELOAD_REMOTE_LIBRARIES_H

/* The beginnings of their file names. */
#define IBX_REMOTE_LIBRARIES                                                                       \
    "libcudart.so", "libcublas.so", "libcublasLt.so", "libcurand.so", "libcufft.so",               \
        "libcusparse.so", "libcusolver.so"

#endif
