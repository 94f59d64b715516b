/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ib-doctor: what this host can do for ibx.
 *
 *   ib-doctor.c  the command line; the paths of rdma://; prints the report
 *   rdma.c       RDMA devices, their ports and limits
 *   host.c       memory limits, kernel services, libfabric
 *   vm.c         KVM, QEMU, userfaultfd
 *   pci.c        Access Control Services of PCI bridges
 *   gpu.c        GPUs, and the path of copies into them
 *   report.c     the report that the checks fill
 *
 * ib-doctor.c calls the checks, and the checks call only report.c.
 */
#ifndef IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H
#define IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_LIMITED, /* works, but less well than it could: see the remedy */
    DOCTOR_MISSING, /* see the remedy */
};

struct doctor_check {
    const char *area; /* "rdma", "memory", "system", "vm", "gpu" */
    char name[48];
    enum doctor_status status;
    char value[160];
    char remedy[224]; /* "" when status is ok */
};

/* Adds a line to the report; DOCTOR_OK has no remedy. */
void ibx_doctor_add(const char *area, const char *name, enum doctor_status status,
                    const char *remedy, const char *value_format, ...)
    __attribute__((format(printf, 5, 6)));
/* All lines so far. */
extern struct doctor_check ibx_doctor_checks[];
extern unsigned ibx_doctor_check_count;

/* The value of IBX_DOCTOR_ROOT, a folder that describes another host; "": this host. The functions
 * below take paths under that root. */
const char *ibx_doctor_root(void);
/* A path with that root; valid until the next call. */
const char *ibx_doctor_path(const char *path);
/* Reads the first line of a file, without its newline; false and "": it cannot be read. */
bool ibx_doctor_read(const char *path, char *out, size_t size);
/* The same as a number, or `fallback`. */
long long ibx_doctor_read_number(const char *path, long long fallback);
bool ibx_doctor_exists(const char *path);
/* The names in a folder, sorted, without those that begin with a dot; returns their count. */
int ibx_doctor_list(const char *path, struct dirent ***names);
void ibx_doctor_list_free(struct dirent **names, int count);

/* The checks, each of one area or more. */
void ibx_doctor_check_rdma(void);
void ibx_doctor_check_memory(void);
void ibx_doctor_check_system(void);
void ibx_doctor_check_vm(void);
void ibx_doctor_check_acs(void);
void ibx_doctor_check_gpu(void);

#endif
