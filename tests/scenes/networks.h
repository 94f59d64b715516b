/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Network namespaces of a test's own: that of the server, in which it runs, and that of the client,
 * to which ibx_connect() goes. Link with -Wl,--wrap=ibx_connect. */
#ifndef IBX_TESTS_SCENES_NETWORKS_H
#define IBX_TESTS_SCENES_NETWORKS_H

#include <stdbool.h>

/* False: not every sandbox may make them. `there` is a path of the client's, for ip(8). */
bool networks_make(char *there, unsigned size);
/* This thread is in the client's from here on, or in the server's again. */
void networks_enter_client(void);
void networks_leave_client(void);

#endif
