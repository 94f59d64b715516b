/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Commands of the shell, of network namespaces for instance, which have to succeed. */
#ifndef IBX_TESTS_SCENES_SHELL_H
#define IBX_TESTS_SCENES_SHELL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((format(printf, 1, 2))) static inline void shell(const char *format, ...)
{
    char command[512];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    if (system(command))
        fail_msg("failed: %s", command);
}

#endif
