/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A domain is nothing but an identity: providers keep what belongs to it. */
#include "transport/provider.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct ibx_domain {
    _Atomic unsigned holders;
};

int ibx_domain_create(struct ibx_domain **out, struct ibx_error *err)
{
    struct ibx_domain *domain = calloc(1, sizeof(*domain));
    if (!domain)
        return ibx_error_set(err, -ENOMEM, "no memory for a domain");
    domain->holders = 1;
    *out = domain;
    return 0;
}

struct ibx_domain *ibx_domain_hold(struct ibx_domain *domain)
{
    if (domain)
        domain->holders++;
    return domain;
}

void ibx_domain_release(struct ibx_domain *domain)
{
    if (domain && !--domain->holders)
        free(domain);
}
