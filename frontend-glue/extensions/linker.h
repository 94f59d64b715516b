/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The driver's linker, for clients' images, which are in memory of the device.
 */
#ifndef IBX_FRONTEND_GLUE_EXTENSIONS_LINKER_H
#define IBX_FRONTEND_GLUE_EXTENSIONS_LINKER_H

#include "frontend-glue/extensions/extensions.h"

/* The driver's functions, as cuda.h has them. */
struct ibx_linker {
    int (*create)(unsigned count, int *options, void **values, void **state);
    int (*add)(void *state, int kind, void *data, size_t n, const char *name, unsigned count,
               int *options, void **values);
    int (*complete)(void *state, void **image, size_t *n);
    int (*destroy)(void *state);
};

/* Calls work(e, of, host), where `host` has `bytes` bytes, all 0, which count in the client's quota
 * and are freed behind it. Meanwhile nobody frees the `length` bytes at `at` of the client's memory
 * on the device. Returns what `work` returns, or CUDA's error if it cannot be called. */
int ibx_linker_run(struct extension_request *e, uint64_t at, uint64_t length, size_t bytes,
                   int (*work)(struct extension_request *e, void *of, uint8_t *host), void *of);
/* False: the driver is older. */
bool ibx_linker_find(struct ibx_linker *linker);

#endif
