/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/datagrams.h"

#include <errno.h>

#ifndef IBX_WITH_VERBS
static int no_verbs(struct ibx_error *err)
{
    return ibx_error_set(err, -EOPNOTSUPP,
                         "this ib-migrate was built without libibverbs and librdmacm: a group "
                         "without verbs:// is sent to by UDP");
}
#endif

int ibx_multicast_out_open(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                           struct ibx_multicast_out **out, struct ibx_error *err)
{
    if (!ibx_multicast_by_verbs(group))
        return ibx_multicast_udp_out(group, interface, hops, out, err);
#ifdef IBX_WITH_VERBS
    return ibx_multicast_verbs_out(group, interface, hops, out, err);
#else
    return no_verbs(err);
#endif
}

int ibx_multicast_out_check(const struct sockaddr_storage *group, unsigned interface, unsigned hops,
                            struct ibx_error *err)
{
    struct ibx_multicast_out *out = NULL;
    int rc = 0;
#ifdef IBX_WITH_VERBS
    if (!interface && ibx_multicast_by_verbs(group))
        return ibx_multicast_verbs_any(err);
#endif
    if (interface || ibx_multicast_by_verbs(group))
        rc = ibx_multicast_out_open(group, interface, hops, &out, err);
    ibx_multicast_out_close(out);
    return rc;
}

int ibx_multicast_in_open(const struct sockaddr_storage *group, unsigned interface,
                          struct ibx_multicast_in **in, struct ibx_error *err)
{
    if (!ibx_multicast_by_verbs(group))
        return ibx_multicast_udp_in(group, interface, in, err);
#ifdef IBX_WITH_VERBS
    return ibx_multicast_verbs_in(group, interface, in, err);
#else
    return no_verbs(err);
#endif
}

void ibx_multicast_out_close(struct ibx_multicast_out *out)
{
    if (out)
        out->ops->close(out);
}

void ibx_multicast_in_close(struct ibx_multicast_in *in)
{
    if (in)
        in->ops->close(in);
}
