/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A QEMU that answers anything: an object of answers, by question: a command, or a command, a blank
 * and its "command-line", "property" or "path". What has none is refused. The program is linked
 * with --wrap: these functions take the place of qmp.c's.
 */
#ifndef IBX_TESTS_FUZZ_FAKE_QMP_H
#define IBX_TESTS_FUZZ_FAKE_QMP_H

#include "migrate/qemu/qemu.h"

extern json_t *fake_qmp_answers;
/* Nobody looks into it. */
#define FAKE_QMP ((struct ibx_qmp *)(void *)&fake_qmp_answers)

#endif
