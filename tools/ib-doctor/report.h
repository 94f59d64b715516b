/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The list of checks that ib-doctor prints, and how a check reads the host's files. */
#ifndef IBX_TOOLS_IB_DOCTOR_REPORT_H
#define IBX_TOOLS_IB_DOCTOR_REPORT_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_LIMITED, /* works, but less well than it could: see the remedy */
    DOCTOR_MISSING, /* see the remedy */
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
/* All lines so far. */
const struct doctor_check *ibx_doctor_report(unsigned *count);

/* Paths below are below IBX_DOCTOR_ROOT, the root of a described host; "": this host. */
const char *ibx_doctor_root(void);
/* The first line of a file, without its newline; false and "" where it cannot be read. */
bool ibx_doctor_read(const char *path, char *out, size_t size);
/* The same as a number, or `fallback`. */
long long ibx_doctor_read_number(const char *path, long long fallback);
bool ibx_doctor_exists(const char *path);
/* The names in a folder, sorted, without those that begin with a dot; returns their count. */
int ibx_doctor_list(const char *path, struct dirent ***names);
void ibx_doctor_list_free(struct dirent **names, int count);

#endif
