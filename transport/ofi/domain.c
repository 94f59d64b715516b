/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A libfabric domain: of one connection, or of all connections of a domain (transport.h).
 * Registrations belong to a domain, so connections share those; each has its own endpoints, address
 * vector and completion queue. A domain of one connection is opened for one thread, which may save
 * libfabric's locks, a shared one for any thread.
 */
#include "transport/ofi/ofi.h"

#include "common/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ibx_ofi_open_error(const struct fi_info *info, const char *what, int rc, struct ibx_error *err)
{
    const char *name = info->fabric_attr->prov_name;
    const char *hint = "";
    if (ibx_ofi_name_matches(name, "verbs") && (rc == -FI_EINVAL || rc == -FI_ENOMEM))
        hint = "; FI_UNIVERSE_SIZE=8 in the environment makes its queues smaller";
    return ibx_error_set(err, ibx_ofi_errno(-rc), "libfabric's %s cannot open %s: %s%s", name, what,
                         fi_strerror(-rc), hint);
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* Whether this domain was opened for what was chosen. */
static bool fits(const struct ibx_domain_part *part, const void *chosen)
{
    const struct fi_info *have = ((const struct ofi_domain *)part)->info, *want = chosen;
    return same_text(have->fabric_attr->prov_name, want->fabric_attr->prov_name) &&
           same_text(have->fabric_attr->name, want->fabric_attr->name) &&
           same_text(have->domain_attr->name, want->domain_attr->name) &&
           have->domain_attr->mr_mode == want->domain_attr->mr_mode && have->caps == want->caps;
}

void ibx_ofi_fid_close(struct fid *fid)
{
    int rc = fi_close(fid);
    if (rc)
        ibx_log(IBX_LOG_DEBUG, "ofi: closing failed: %s", fi_strerror(-rc));
}

static void domain_close(struct ibx_domain_part *part)
{
    struct ofi_domain *domain = (struct ofi_domain *)part;
    if (domain->domain)
        ibx_ofi_fid_close(&domain->domain->fid);
    if (domain->fabric)
        ibx_ofi_fid_close(&domain->fabric->fid);
    fi_freeinfo(domain->info);
    free(domain);
}

static int domain_open(void *chosen, const struct ibx_domain *owner, struct ibx_domain_part **out,
                       struct ibx_error *err)
{
    const struct fi_info *info = chosen;
    struct ofi_domain *domain = calloc(1, sizeof(*domain));
    if (!domain || !(domain->info = fi_dupinfo(info))) {
        free(domain);
        return ibx_error_set(err, -ENOMEM, "no memory for a domain");
    }
    if (owner)
        domain->info->domain_attr->threading = FI_THREAD_SAFE;
    int rc = fi_fabric(domain->info->fabric_attr, &domain->fabric, NULL);
    if (rc)
        ibx_ofi_open_error(info, "its fabric", rc, err);
    else if ((rc = fi_domain(domain->fabric, domain->info, &domain->domain, NULL)))
        ibx_ofi_open_error(info, "its domain", rc, err);
    if (rc) {
        domain_close(&domain->part);
        return ibx_ofi_errno(-rc);
    }
    *out = &domain->part;
    return 0;
}

int ibx_ofi_domain_hold(struct ibx_domain *owner, const struct ofi_choice *choice,
                        struct ofi_domain **out, struct ibx_error *err)
{
    static const struct ibx_domain_part_ops ops = {fits, domain_open, domain_close};
    struct ibx_domain_part *part;
    int rc = ibx_domain_part_hold(choice->shareable ? owner : NULL, &ops, choice->info, &part, err);
    if (!rc)
        *out = (struct ofi_domain *)part;
    return rc;
}

void ibx_ofi_domain_release(struct ofi_domain *domain)
{
    ibx_domain_part_release(domain ? &domain->part : NULL);
}
