/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A libfabric domain: of one connection, or of all that have a domain in common
 * (transport.h). Registrations are a domain's, so that is what such connections
 * share; endpoints, address vector and completion queue are each one's own. One
 * of its own is asked of libfabric for one thread, which may save its locks, a
 * shared one for any.
 */
#include "transport/ofi.h"

#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ofi_domain *domains; /* the shared ones; under the lock, as is what they hold */

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

/* Whether what was chosen is what this one was opened for. */
static bool fits(const struct fi_info *have, const struct fi_info *want)
{
    return same_text(have->fabric_attr->prov_name, want->fabric_attr->prov_name) &&
           same_text(have->fabric_attr->name, want->fabric_attr->name) &&
           same_text(have->domain_attr->name, want->domain_attr->name) &&
           have->domain_attr->mr_mode == want->domain_attr->mr_mode && have->caps == want->caps;
}

/* In a forked child an open domain is worthless. */
static struct ofi_domain *find(const struct ibx_domain *owner, const struct fi_info *info)
{
    for (struct ofi_domain *domain = domains; domain; domain = domain->next) {
        if (domain->owner == owner && domain->process == getpid() && fits(domain->info, info))
            return domain;
    }
    return NULL;
}

static void close_fid(struct fid *fid)
{
    int rc = fi_close(fid);
    if (rc)
        ibx_log(IBX_LOG_DEBUG, "ofi: closing failed: %s", fi_strerror(-rc));
}

static void domain_close(struct ofi_domain *domain)
{
    if (domain->domain)
        close_fid(&domain->domain->fid);
    if (domain->fabric)
        close_fid(&domain->fabric->fid);
    if (domain->info)
        fi_freeinfo(domain->info);
    free(domain);
}

static int domain_open(const struct fi_info *info, bool shared, struct ofi_domain **out,
                       struct ibx_error *err)
{
    struct ofi_domain *domain = calloc(1, sizeof(*domain));
    if (!domain || !(domain->info = fi_dupinfo(info))) {
        free(domain);
        return ibx_error_set(err, -ENOMEM, "no memory for a domain");
    }
    if (shared)
        domain->info->domain_attr->threading = FI_THREAD_SAFE;
    int rc = fi_fabric(domain->info->fabric_attr, &domain->fabric, NULL);
    if (rc)
        ibx_ofi_open_error(info, "its fabric", rc, err);
    else if ((rc = fi_domain(domain->fabric, domain->info, &domain->domain, NULL)))
        ibx_ofi_open_error(info, "its domain", rc, err);
    if (rc) {
        domain_close(domain);
        return ibx_ofi_errno(-rc);
    }
    domain->process = getpid();
    domain->holders = 1;
    *out = domain;
    return 0;
}

int ibx_ofi_domain_hold(struct ibx_domain *owner, const struct ofi_choice *choice,
                        struct ofi_domain **out, struct ibx_error *err)
{
    if (!owner || !choice->shareable)
        return domain_open(choice->info, false, out, err);
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct ofi_domain *domain = find(owner, choice->info);
    if (domain) {
        domain->holders++;
    } else if (!(rc = domain_open(choice->info, true, &domain, err))) {
        domain->owner = ibx_domain_hold(owner);
        domain->next = domains;
        domains = domain;
    }
    pthread_mutex_unlock(&lock);
    if (!rc)
        *out = domain;
    return rc;
}

/* Takes it off the list of those that are shared; whether nobody holds it any more. */
static bool let_go(struct ofi_domain *domain)
{
    if (!domain->owner)
        return true;
    pthread_mutex_lock(&lock);
    bool last = !--domain->holders;
    for (struct ofi_domain **at = &domains; last && *at; at = &(*at)->next) {
        if (*at == domain) {
            *at = domain->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return last;
}

void ibx_ofi_domain_release(struct ofi_domain *domain)
{
    if (!domain || !let_go(domain))
        return;
    struct ibx_domain *owner = domain->owner;
    domain_close(domain);
    ibx_domain_release(owner);
}
