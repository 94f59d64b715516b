// SPDX-License-Identifier: LGPL-2.1-or-later
//
// GVirtuS's cudaLaunchKernel, whose exceptions would end the program of a caller in C.
#ifndef IBX_FRONTEND_GLUE_PLUGIN_GVIRTUS_LAUNCH_H
#define IBX_FRONTEND_GLUE_PLUGIN_GVIRTUS_LAUNCH_H

extern "C" {
#include "frontend-glue/preload/attach_table.h"

// attach_table.h, launch().
bool ibx_launch_by_gvirtus(const struct ibx_frontend_launch *launch, int *rc);
}

#endif
