/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/preflight/preflight.h"

#include <errno.h>
#include <string.h>

int ibx_preflight_replay(struct ibx_qmp *qmp, struct ibx_blockers *blockers, uint64_t deadline_ns,
                         struct ibx_error *err)
{
    json_t *info;
    int rc = ibx_qmp_execute(qmp, "query-replay", NULL, &info, deadline_ns, err);
    if (rc) /* -EOPNOTSUPP: QEMU was built without replay */
        return rc == -EOPNOTSUPP ? 0 : rc;
    const char *mode = json_string_value(json_object_get(info, "mode"));
    if (mode && strcmp(mode, "none") != 0)
        ibx_blockers_add(
            blockers,
            "this QEMU records its VM, or replays it (-icount rr=%.16s), and would end "
            "by an assertion when it migrates: start it without rr=",
            mode);
    json_decref(info);
    return 0;
}
