/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For one file of a fuzzer whose inputs would cause too many warnings. */
#ifndef IBX_TESTS_FUZZ_QUIET_H
#define IBX_TESTS_FUZZ_QUIET_H

#include "common/log.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    ibx_log_set_level(IBX_LOG_ERROR);
    return 0;
}

#endif
