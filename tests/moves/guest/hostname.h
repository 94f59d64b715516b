/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What QEMU's command line calls this guest: -fw_cfg name=opt/ibx/host,string=NAME. */
#ifndef IBX_TESTS_GUEST_HOSTNAME_H
#define IBX_TESTS_GUEST_HOSTNAME_H

#include <stdint.h>

/* 0: there is none. The text is cut to fit. */
int hostname_read(char *out, uint32_t size);

#endif
