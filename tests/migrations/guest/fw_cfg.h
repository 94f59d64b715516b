/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU's command line tells this guest: -fw_cfg name=opt/ibx/host,string=TEXT. */
#ifndef IBX_TESTS_GUEST_FW_CFG_H
#define IBX_TESTS_GUEST_FW_CFG_H

#include <stdint.h>

/* Returns 0 if there is no such file. The text is cut to fit. */
int fw_cfg_text(const char *file, char *out, uint32_t size);

#endif
