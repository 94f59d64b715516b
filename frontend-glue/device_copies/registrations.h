/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Keeps handlers of GVirtuS's apart that register kernels and variables, or look them up. */
#ifndef IBX_FRONTEND_GLUE_DEVICE_COPIES_REGISTRATIONS_H
#define IBX_FRONTEND_GLUE_DEVICE_COPIES_REGISTRATIONS_H

#include "frontend-glue/device_copies/back_end.h"

/* What a handler of GVirtuS's does, by its request's name. */
enum registrations_use ibx_registrations_use(const char *name);
/* Around it; the former when all of the request has been read. One that changes them waits for
 * those that look up, for a bounded time. */
void ibx_registrations_begin(struct copies *x);
void ibx_registrations_end(struct copies *x);
/* Kernels were registered, or are no more; how often. */
void ibx_registrations_changed(void);
unsigned ibx_registrations_changes(void);

#endif
