/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The NUMA policy of a memory backend (host-nodes, policy) of a QEMU that becomes a child. */
#include "migrate/snapshot/cache.h"

#include "common/log.h"

#include <stdio.h>
#include <string.h>

void ibx_snapshot_say_policy(struct ibx_qmp *qmp, const char *id, uint64_t deadline_ns)
{
    char path[IBX_GUEST_ID_MAX + 16];
    json_t *value;
    snprintf(path, sizeof(path), "/objects/%s", id);
    if (ibx_qmp_execute(qmp, "qom-get", json_pack("{s:s, s:s}", "path", path, "property", "policy"),
                        &value, deadline_ns, NULL))
        return;
    const char *policy = json_string_value(value);
    if (policy && strcmp(policy, "default") != 0)
        ibx_log(IBX_LOG_WARN,
                "the NUMA policy of memory backend %.120s (policy=%.32s) has no effect on the "
                "memory of a child: pages that it writes lie where the policy of QEMU's threads "
                "says (numactl), and those of the snapshot where they are already",
                id, policy);
    json_decref(value);
}
