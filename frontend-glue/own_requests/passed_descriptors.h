/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors that processes of one back end pass to each other (rdma.processes): CUDA shares a
 * pool of memory by one. A process offers its own, and others fetch theirs from a socket of that
 * process, by SCM_RIGHTS. Whoever does not know the offer's key gets nothing, and no client is told
 * keys. An offer ends when it is withdrawn, or with its process.
 */
#ifndef IBX_FRONTEND_GLUE_OWN_REQUESTS_PASSED_DESCRIPTORS_H
#define IBX_FRONTEND_GLUE_OWN_REQUESTS_PASSED_DESCRIPTORS_H

#include "frontend-glue/tenants/shared_handles.h"

/* From any thread. Negative errno, where they have no result. */

/* Takes the descriptor, and closes it in any case in the end. *where is for those who fetch it. */
int ibx_passed_offer(int fd, struct ibx_cuda_handle *where);
void ibx_passed_withdraw(const struct ibx_cuda_handle *where);
/* A descriptor for the caller. -ENOENT: there is no such offer any more. */
int ibx_passed_fetch(const struct ibx_cuda_handle *where);

#endif
