/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What a core dump of this process contains: see core(5), coredump_filter. */
#include "tools/ib-migrate/ib-migrate.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILTER       "/proc/self/coredump_filter"
#define HEADERS_ONLY "0x10" /* only ELF headers of programs and libraries, which tell what ran */

static char before[32]; /* the filter with which this process was started; "": unknown */

static void write_filter(const char *text)
{
    const int fd = open(FILTER, O_WRONLY | O_CLOEXEC);
    const ssize_t written = fd < 0 ? -1 : write(fd, text, strlen(text));
    (void)written; /* after a failure the filter stays as it was; nothing depends on it */
    if (fd >= 0)
        close(fd);
}

void ibx_cli_keep_memory_out_of_cores(void)
{
    char mask[16] = "";
    const int fd = open(FILTER, O_RDONLY | O_CLOEXEC);
    const ssize_t length = fd < 0 ? -1 : read(fd, mask, sizeof(mask) - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return;
    mask[strcspn(mask, "\n")] = '\0';
    snprintf(before, sizeof(before), "0x%s", mask);
    write_filter(HEADERS_ONLY);
}

void ibx_cli_give_cores_back(void)
{
    if (*before)
        write_filter(before);
}
