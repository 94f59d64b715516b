/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The path of a session whose client is a fuzzer, for --wrap=ibx_session_path. */
#include "frontend-glue/session/hooks.h"

/* There is no connection. */
const struct ibx_path *__wrap_ibx_session_path(const struct ibx_session *s);
const struct ibx_path *__wrap_ibx_session_path(const struct ibx_session *s)
{
    static const struct ibx_path path = {.peer = "alice"};
    (void)s;
    return &path;
}
