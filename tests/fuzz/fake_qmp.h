/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A QEMU that answers anything. It has an object of answers by question: a command; or a
 * command, a blank and its "command-line", "property" or "path". A question without an answer is
 * refused. The program is linked with --wrap: these functions replace those of qmp.c. */
#ifndef IBX_TESTS_FUZZ_FAKE_QMP_H
#define IBX_TESTS_FUZZ_FAKE_QMP_H

#include "migrate/qemu/qemu.h"

extern json_t *fake_qmp_answers;
/* nobody looks into it */
#define FAKE_QMP ((struct ibx_qmp *)(void *)&fake_qmp_answers)

#endif
