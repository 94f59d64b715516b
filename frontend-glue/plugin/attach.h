/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which connection a thread has, and the table that the preload gets (attach_table.h).
 *
 * GVirtuS makes one connection in each thread that calls CUDA, and uses it from that thread alone.
 * So a thread's own copies can use it between two requests of GVirtuS. GVirtuS never closes it: it
 * is closed here, when its thread ends, or stays open if it is the last one (last_session.c).
 */
#ifndef IBX_FRONTEND_GLUE_PLUGIN_ATTACH_H
#define IBX_FRONTEND_GLUE_PLUGIN_ATTACH_H

#include "frontend-glue/call_pipeline/pipeline.h"
#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/session/session.h"

struct ibx_attachment;

/* GVirtuS's launch, as in the table (attach_table.h); it catches GVirtuS's exceptions, which C
 * cannot. */
typedef bool ibx_attach_launch(const struct ibx_frontend_launch *launch, int *rc);
/* Client: attaches the connected session, with its pipeline if it has one, to the calling thread,
 * and gives the preload, if there is one, the table. NULL: no memory. GVirtuS then runs the
 * thread's copies, and the connection outlives the thread. */
struct ibx_attachment *ibx_attach(struct ibx_session *session, struct ibx_pipeline *pipeline,
                                  ibx_attach_launch *launch);
/* Client: to be called before it connects. Closes a session that has stayed without a thread, so
 * that this process has no more connections than threads. */
void ibx_attach_begins(void);
/* Client: 0 in a thread of the program. In one of the preload's own, the number of its attempt to
 * connect (attach_table.h): if that fails, the program goes on. */
uint64_t ibx_attach_attempt(void);
/* Client: whether other threads wait until the calling thread has connected, which is not the first
 * one. If so, it connects when GVirtuS writes its first request, behind ibx_attach_lets(), which
 * has them wait no longer. The first one connects at once: with the table the preload begins. */
bool ibx_attach_holds(void);
void ibx_attach_lets(void);
/* To be called with what GVirtuS writes, before the session gets it: waits for background copies
 * that the request has to come after. Accepts NULL. */
void ibx_attachment_on_write(struct ibx_attachment *attachment, const void *bytes, size_t n);
/* To be called with what GVirtuS has read. Accepts NULL. */
void ibx_attachment_on_read(struct ibx_attachment *attachment, const void *bytes, size_t n);
/* Whether the preload library is there. Accepts NULL. */
bool ibx_attachment_preloaded(const struct ibx_attachment *attachment);
/* Whether the thread has ended, and the session with it. A later write comes from a new thread with
 * the same number, which needs a session of its own. Accepts NULL. */
bool ibx_attachment_ended(const struct ibx_attachment *attachment);
/* To be called before the session or its pipeline is destroyed, from any thread that may destroy
 * it. True (only with `may_stay`): both belong to the attachment from now on, and must not be
 * destroyed. Accepts NULL. */
bool ibx_detach(struct ibx_attachment *attachment, bool may_stay);

#endif
