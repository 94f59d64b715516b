/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Replaces a function of the running executable: the back end of classic GVirtuS calls its own
 * Communicator::Get directly, which no preloaded symbol can replace. x86-64 and aarch64.
 */
#ifndef IBX_FRONTEND_GLUE_CLASSIC_PATCH_H
#define IBX_FRONTEND_GLUE_CLASSIC_PATCH_H

#include "common/error.h"

#include <stddef.h>

#define IBX_CLASSIC_JUMP_MAX 16

/* A function with a jump written over its first bytes. */
struct ibx_classic_patch {
    void *function; /* NULL: none */
    unsigned char original[IBX_CLASSIC_JUMP_MAX];
    unsigned char jump[IBX_CLASSIC_JUMP_MAX];
};

/* The function `symbol` that the executable itself exports, with its length in bytes; NULL: none.
 */
void *ibx_classic_executable_symbol(const char *symbol, size_t *length);

/* Writes a jump to `target` over `function`, which is `length` bytes long. -ENOTSUP: it is too
 * short, or the processor is unknown; nothing has changed. Or an error of mprotect(2): the jump is
 * there only if the code could not be made read-only again. No other thread may execute the
 * function's first bytes meanwhile. */
int ibx_classic_patch_apply(struct ibx_classic_patch *patch, void *function, size_t length,
                            const void *target, struct ibx_error *err);

/* Removes the jump (0) or writes it again (1), under the same condition. */
int ibx_classic_patch_switch(const struct ibx_classic_patch *patch, int on, struct ibx_error *err);

#endif
