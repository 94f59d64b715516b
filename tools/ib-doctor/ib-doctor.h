/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-doctor: what this host can do for ibx.
 *
 *   ib-doctor.c  the command line; the paths of rdma://; prints the report
 *   rdma.c       RDMA devices, their ports and limits
 *   host.c       memory limits, kernel services, libfabric
 *   pci.c        Access Control Services of PCI bridges
 *   gpu.c        GPUs, and the path of copies into them
 *   report.c     the report that the checks fill
 *
 * ib-doctor.c calls the checks, and the checks call only report.c.
 */
#ifndef IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H
#define IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H

void ibx_doctor_check_rdma(void);
void ibx_doctor_check_memory(void);
void ibx_doctor_check_system(void);
void ibx_doctor_check_acs(void);
void ibx_doctor_check_gpu(void);

#endif
