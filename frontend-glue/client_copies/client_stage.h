/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Long copies of an application's pageable memory, where both ends map memory
 * that the back end has pinned: the application's bytes are copied there, by
 * several threads where one is slower than the GPU, while the GPU already takes
 * (or still brings) others. The back end's process could reach them too, but the
 * kernel lets few of its threads do so at once.
 *
 * Such a copy goes out as several, each a frame of GVirtuS of its own; it has
 * ended when the last one has.
 */
#ifndef IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_STAGE_H
#define IBX_FRONTEND_GLUE_CLIENT_COPIES_CLIENT_STAGE_H

#include "frontend-glue/preload/attach_table.h"
#include "frontend-glue/session/session.h"

/* Of a session; NULL: there is none yet. */
struct client_stage;

/* Whether the copy goes this way. */
bool ibx_client_stage_wants(struct ibx_session *s, const struct ibx_frontend_copy *copy);
/* Runs it. 0, and the copy's result as CUDA has it; as ibx_session_fail(). */
int ibx_client_stage_copy(struct ibx_session *s, const struct ibx_frontend_copy *copy,
                          int *exit_code);
/* At the session's end, before its connection is closed. Accepts NULL. */
void ibx_client_stage_destroy(struct client_stage *stage);

#endif
