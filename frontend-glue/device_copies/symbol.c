/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The addresses of cudaMemcpyToSymbol's symbols. GVirtuS's handler registers a client's variable
 * with CUDA's runtime under its address in the client, and looks it up by that. This does the same,
 * in the same runtime: the handler's, if there is only one in this process.
 */
#include "frontend-glue/device_copies/copies.h"

struct calls {
    int (*address_of)(void **device, const void *symbol);
    int (*size_of)(size_t *size, const void *symbol);
    int (*peek_error)(void);
    int (*get_error)(void); /* clears the error */
};

static bool calls_of(struct calls *calls)
{
    *(void **)&calls->address_of = ibx_back_end_runtime("cudaGetSymbolAddress");
    *(void **)&calls->size_of = ibx_back_end_runtime("cudaGetSymbolSize");
    *(void **)&calls->peek_error = ibx_back_end_runtime("cudaPeekAtLastError");
    *(void **)&calls->get_error = ibx_back_end_runtime("cudaGetLastError");
    return calls->address_of && calls->size_of && calls->peek_error && calls->get_error;
}

/* A failed look-up sets the thread's last error, which belongs to the client: this resets it, and
 * looks nothing up while an error is pending. */
static bool look_up(const struct calls *calls, const void *symbol, void **device, size_t *size)
{
    if (calls->peek_error())
        return false;
    if (!calls->address_of(device, symbol) && !calls->size_of(size, symbol))
        return true;
    calls->get_error();
    return false;
}

bool ibx_copies_symbol(struct ibx_frame *f)
{
    struct calls calls;
    void *device = NULL;
    size_t size = 0;
    if (!calls_of(&calls) || !look_up(&calls, (const void *)(uintptr_t)f->symbol, &device, &size))
        return false;
    if (f->symbol_offset > size || f->width > size - f->symbol_offset)
        return false;
    f->dst = (uintptr_t)device + f->symbol_offset;
    return true;
}
