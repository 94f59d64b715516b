/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors that processes of one back end pass to each other (rdma.processes): CUDA shares a
 * pool of memory by a descriptor. A process offers its own, and others fetch it from a socket of
 * that process, by SCM_RIGHTS. A process that does not know the offer's key gets nothing, and no
 * client is told keys. An offer ends when it is withdrawn, or with its process.
 */
#ifndef IBX_FRONTEND_GLUE_EXTENSIONS_PASSED_DESCRIPTORS_H
#define IBX_FRONTEND_GLUE_EXTENSIONS_PASSED_DESCRIPTORS_H

#include "frontend-glue/tenants/shared_handles.h"

/* From any thread. Results are negative errno. */

/* Offers a descriptor, and owns it: closes it on an error as well. *where is what others need to
 * fetch it. */
int ibx_passed_offer(int fd, struct ibx_cuda_handle *where);
void ibx_passed_withdraw(const struct ibx_cuda_handle *where);
/* Returns a descriptor, which is the caller's. -ENOENT: there is no such offer any more; -EMFILE:
 * this process may have no more descriptors. */
int ibx_passed_fetch(const struct ibx_cuda_handle *where);

#endif
