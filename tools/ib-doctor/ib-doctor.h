/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* ib-doctor: what this host can do for ibx. Shared by ib-doctor*.c only. */
#ifndef IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H
#define IBX_TOOLS_IB_DOCTOR_IB_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_LIMITED, /* works, but less well than it could: see the remedy */
    DOCTOR_MISSING, /* not there: see the remedy */
};

struct doctor_check {
    const char *area; /* "rdma", "memory", "system", "gpu" */
    char name[48];
    enum doctor_status status;
    char value[160];
    char remedy[224]; /* "" when status is ok */
};

/* Adds a line to the report; the remedy may be NULL. */
void ibx_doctor_add(const char *area, const char *name, enum doctor_status status,
                    const char *remedy, const char *value_format, ...)
    __attribute__((format(printf, 5, 6)));

/* Where /proc, /sys and /dev are found: IBX_DOCTOR_ROOT, "" otherwise. */
const char *ibx_doctor_root(void);
/* First line of a file under the root, without its newline. */
bool ibx_doctor_read(const char *path, char *out, size_t size);
/* The same as a number; `fallback` when there is none. */
long long ibx_doctor_read_number(const char *path, long long fallback);
bool ibx_doctor_exists(const char *path);

void ibx_doctor_check_rdma(void);
void ibx_doctor_check_memory(void);
void ibx_doctor_check_system(void);
void ibx_doctor_check_acs(void);
void ibx_doctor_check_gpu(void);
/* Which ways the back end's copies take, by their sizes; `direct`: the fabric may reach the GPU's
 * memory. */
void ibx_doctor_check_ways(int index, bool direct);

#endif
