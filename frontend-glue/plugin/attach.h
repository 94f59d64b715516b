/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The plugin's side of attach_table.h: which connection a thread has.
 *
 * GVirtuS makes one connection in each thread that calls CUDA, and uses it from
 * that thread alone. So a thread's own calls can go over it, between two of
 * GVirtuS's. GVirtuS never gives it back: it ends here, with its thread.
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_ATTACH_H
#define IBX_FRONTEND_GLUE_PLUGIN_ATTACH_H

#include "frontend-glue/session/session.h"

struct ibx_attachment;

/* Client, connected: from now on the session is the calling thread's, and libibx-frontend.so, where
 * it is there, learns of it. NULL without memory: then the thread's copies are GVirtuS's, and its
 * connection outlives it. */
struct ibx_attachment *ibx_attach(struct ibx_session *session);
/* What GVirtuS writes, before the session gets it: a request that has to come after copies which
 * are under way in the background waits for them. Accepts NULL. */
void ibx_attachment_note(struct ibx_attachment *attachment, const void *bytes, size_t n);
/* What GVirtuS has read. Accepts NULL. */
void ibx_attachment_note_read(struct ibx_attachment *attachment, const void *bytes, size_t n);
/* Whether the thread has ended, which has closed the session: should GVirtuS write again, then for
 * another thread of the same number, which needs another session. Accepts NULL. */
bool ibx_attachment_ended(const struct ibx_attachment *attachment);
/* Before the session is destroyed, from any thread that may do that. Accepts NULL. */
void ibx_detach(struct ibx_attachment *attachment);

#endif
