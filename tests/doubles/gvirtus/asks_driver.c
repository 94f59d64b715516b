/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A library that asks the driver for a private table, and works without it. */
#include <stddef.h>

int cuGetExportTable(const void **table, const void *id);

__attribute__((visibility("default"))) int ask_driver(int *has_table);

int ask_driver(int *has_table)
{
    static const char id[16] = "";
    const void *table = id;
    const int rc = cuGetExportTable(&table, id);
    *has_table = 1; /* for its caller */
    return rc != 500 || table;
}
