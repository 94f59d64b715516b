/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether an address that a client calls device memory is this process's own memory. */
#include "frontend-glue/clients/clients.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NO_SUCH_CHANGE (-1) /* of a signal mask; the kernel reads the new mask before */

/* Whether this process could read 8 bytes there. It cannot read device memory. */
static bool is_readable(uint64_t address)
{
    const uint64_t at = address & ~UINT64_C(7);
    return at && !(syscall(SYS_rt_sigprocmask, NO_SUCH_CHANGE, at, NULL, 8) && errno == EFAULT);
}

static bool is_of_device(struct gpu_session *x, uint64_t address)
{
    static const int names[] = {IBX_CUDA_POINTER_MEMORY_TYPE, IBX_CUDA_POINTER_IS_MANAGED};
    unsigned type = 0, managed = 0;
    void *values[] = {&type, &managed};
    return ibx_back_end_have_cuda(x) &&
           !x->cuda->pointer_get_attributes(2, names, values, address) &&
           (type == IBX_CUDA_MEMORY_DEVICE || managed);
}

/* CUDA is asked first, so that memory which a kernel may use is not touched. */
static bool is_own(struct gpu_session *x, uint64_t address)
{
    return !is_of_device(x, address) && !ibx_host_maps_hold(x, address, 1) && is_readable(address);
}

bool ibx_process_memory_is_own(struct gpu_session *x, uint64_t address, uint64_t n)
{
    const uint64_t last = n ? address + (n - 1) : address;
    if (last < address)
        return true;
    return is_own(x, address) || (last / 8 != address / 8 && is_own(x, last));
}
