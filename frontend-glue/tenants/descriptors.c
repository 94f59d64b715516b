/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Descriptors of this process. Every connection has some; how many depends on its path, and the
 * limit (RLIMIT_NOFILE) may be far below what rdma.sessions allows. One tenant's connections must
 * not use up those of all others, which could not connect then. So the clients of one name may have
 * any number of connections until rdma.tenant_share of all descriptors are in use; from then on
 * only tenants that have less than an even share of the connections get another one. A process that
 * serves one program or tenant has no other connections, and is not limited here.
 */
#include "frontend-glue/tenants/tenants.h"
#include "frontend-glue/session/client_process.h"

#include <dirent.h>
#include <sys/resource.h>

#define EACH_MOST 16u  /* most of one connection, with one lane or a few */
#define OTHERS    100u /* of the process itself, with CUDA's */

static uint64_t count(void)
{
    uint64_t n = 0;
    DIR *all = opendir("/proc/self/fd");
    while (all && readdir(all))
        n++;
    if (all)
        closedir(all);
    return all ? n : UINT32_MAX; /* not even this descriptor can be opened */
}

bool ibx_descriptors_left(struct ibx_tenant *tenant, const struct ibx_tenant_limits *limits)
{
    struct rlimit limit;
    uint64_t own, all, setups;
    const uint64_t percent = limits->share ? limits->share : IBX_TENANT_SHARE;
    if (!*ibx_tenant_name(tenant) || ibx_client_process() || getrlimit(RLIMIT_NOFILE, &limit) ||
        limit.rlim_cur == RLIM_INFINITY)
        return true;
    const uint64_t most = ibx_quota_share(limit.rlim_cur, percent);
    const unsigned others = ibx_tenant_connections(tenant, &own, &all, &setups);
    if (all * EACH_MOST + OTHERS <= most || own < all / (others + 2))
        return true;
    return count() + setups * EACH_MOST <= most;
}
