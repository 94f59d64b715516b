/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What handlers of G5 do with a request before CUDA checks anything: they follow pointers that the
 * request has not, take a payload for as long as its copy is, and so end the back end, or read what
 * other clients have left in its heap.
 */
#ifndef IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REQUEST_SHAPES_H
#define IBX_FRONTEND_GLUE_GVIRTUS_HANDLERS_REQUEST_SHAPES_H

#include "frontend-glue/session/frames.h"

/* Changes the body of a request that GVirtuS is about to run, if its handler would do so: then that
 * or CUDA refuses it. `name` may be cut to 23 characters. */
void ibx_shapes_mend(const char *name, uint8_t *body, size_t n);

/* Before `watch` notes them: of a request whose handler cannot succeed the name becomes one that is
 * none. */
void ibx_shapes_bar(const struct ibx_request_watch *watch, uint8_t *bytes, size_t n);

#endif
