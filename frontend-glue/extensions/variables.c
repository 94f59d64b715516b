/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Extension requests about device variables. GVirtuS's handler may have registered one under its
 * address in the client, by which CUDA's runtime finds it. G5's handler registers all of them under
 * addresses of its own. So a client may also name a kernel of the variable's module, which all
 * handlers register by its address, and the variable's name in the module.
 */
#include "frontend-glue/extensions/extensions.h"

static int symbol_address(struct extension_request *e)
{
    int (*find)(void **address, const void *symbol) = NULL;
    void *address = NULL;
    const void *symbol = pointer(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, find);
    const int rc = find(&address, symbol);
    ibx_put_u64(&e->out, (uintptr_t)address);
    return rc;
}

static int symbol_size(struct extension_request *e)
{
    int (*measure)(size_t * n, const void *symbol) = NULL;
    size_t n = 0;
    const void *symbol = pointer(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    FUNCTION(e, measure);
    const int rc = measure(&n, symbol);
    ibx_put_u64(&e->out, n);
    return rc;
}

/* Finds a variable by its name in the kernel's module. */
static int find_global(void *kernel, const char *name, uint64_t *address, size_t *n)
{
    int (*module_of)(void **module, void *function) = NULL;
    int (*global)(uint64_t * at, size_t * size, void *module, const char *called) = NULL;
    void *module = NULL;
    *(void **)&module_of = ibx_cuda_symbol("cuFuncGetModule"); /* CUDA 11 */
    *(void **)&global = ibx_cuda_symbol("cuModuleGetGlobal_v2");
    if (!module_of || !global || module_of(&module, kernel))
        return CUDA_INVALID_SYMBOL;
    return global(address, n, module, name) ? CUDA_INVALID_SYMBOL : 0;
}

/* Finds a variable that is declared __managed__, if it is not found among the module's others. */
static int find_managed(const void *function, const char *name, uint64_t *address, size_t *n)
{
    int (*handle)(void **kernel, const void *of) = NULL;
    int (*library_of)(void **library, void *kernel) = NULL;
    int (*managed)(uint64_t * at, size_t * size, void *library, const char *called) = NULL;
    void *kernel = NULL, *library = NULL;
    *(void **)&handle = ibx_back_end_runtime("cudaGetKernel"); /* CUDA 12 */
    *(void **)&library_of = ibx_cuda_symbol("cuKernelGetLibrary");
    *(void **)&managed = ibx_cuda_symbol("cuLibraryGetManaged");
    if (!handle || !library_of || !managed || handle(&kernel, function) ||
        library_of(&library, kernel))
        return CUDA_INVALID_SYMBOL;
    return managed(address, n, library, name) ? CUDA_INVALID_SYMBOL : 0;
}

static int variable(struct extension_request *e)
{
    int (*kernel_of)(void **kernel, const void *function) = NULL;
    char name[IBX_EXT_VARIABLE_NAME + 1] = {0};
    void *kernel = NULL;
    uint64_t address = 0;
    size_t size = 0;
    const uint64_t named = ibx_get_u64(&e->in);
    const size_t n = ibx_get_u16(&e->in);
    const uint8_t *called = ibx_get_bytes(&e->in, n);
    if (!whole(e) || !n || n > IBX_EXT_VARIABLE_NAME)
        return CUDA_INVALID_VALUE;
    memcpy(name, called, n);
    FUNCTION(e, kernel_of);
    struct ibx_functions_user *user = ibx_functions_user_of(e->x);
    const void *function = pointer_to(ibx_functions_take(user, named));
    const bool loads = ibx_frees_begin_load(e->x, (uintptr_t)function);
    int rc = function ? kernel_of(&kernel, function) : CUDA_INVALID_SYMBOL;
    if (loads)
        ibx_frees_end_load(e->x, (uintptr_t)function);
    if (!rc && find_global(kernel, name, &address, &size))
        rc = find_managed(function, name, &address, &size);
    ibx_functions_let_go(user);
    ibx_put_u64(&e->out, address);
    ibx_put_u64(&e->out, size);
    return rc;
}

/* From now on the client's modules end with its process. If the request names a kernel, the client
 * shares the modules of the client, such as its parent, that has registered this kernel. */
static int share_modules(struct extension_request *e)
{
    struct ibx_functions_user *user = ibx_functions_user_of(e->x);
    const uint64_t kernel = ibx_get_u64(&e->in);
    if (!whole(e))
        return CUDA_INVALID_VALUE;
    if (!ibx_clients_is_process(e->x))
        return CUDA_NOT_SUPPORTED;
    ibx_put_u64(&e->out, ibx_functions_share(user, kernel));
    return 0;
}

const struct extension_call ibx_variable_extensions[IBX_EXT_REQUESTS] = {
    [IBX_EXT_SYMBOL_ADDRESS] = {"cudaGetSymbolAddress", symbol_address},
    [IBX_EXT_SYMBOL_SIZE] = {"cudaGetSymbolSize", symbol_size},
    [IBX_EXT_VARIABLE] = {"cudaGetFuncBySymbol", variable},
    [IBX_EXT_SHARE_MODULES] = {NULL, share_modules},
};
