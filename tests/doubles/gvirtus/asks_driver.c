/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A library that asks the driver for a private table, and works without it. When it is opened it
 * calls the function at the address in IBX_TEST_OPENED. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

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

__attribute__((constructor)) static void begin(void)
{
    const char *opened = getenv("IBX_TEST_OPENED");
    if (opened)
        ((void (*)(void))(uintptr_t)strtoull(opened, NULL, 16))();
}
