/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A domain is an identity: providers keep one open part, such as a device, for its connections. */
#include "transport/core/provider.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

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

/* ----------------------------------------------------------- parts, of the providers */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibx_domain_part *parts; /* of domains; the lock guards them and their holders */

/* A thread of the parent may have had the lock, for as long as a device takes to open. */
static void forked(void)
{
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    parts = NULL; /* all are the parent's */
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* A forked child cannot use what its parent has opened. */
static struct ibx_domain_part *find(const struct ibx_domain *domain,
                                    const struct ibx_domain_part_ops *ops, const void *want)
{
    for (struct ibx_domain_part *part = parts; part; part = part->next) {
        if (part->domain == domain && part->ops == ops && part->process == getpid() &&
            ops->fits(part, want))
            return part;
    }
    return NULL;
}

static int part_open(struct ibx_domain *domain, const struct ibx_domain_part_ops *ops, void *want,
                     struct ibx_domain_part **out, struct ibx_error *err)
{
    int rc = ops->open(want, domain, out, err);
    if (rc)
        return rc;
    (*out)->ops = ops;
    (*out)->process = getpid();
    (*out)->holders = 1;
    (*out)->domain = ibx_domain_hold(domain);
    return 0;
}

int ibx_domain_part_hold(struct ibx_domain *domain, const struct ibx_domain_part_ops *ops,
                         void *want, struct ibx_domain_part **out, struct ibx_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!domain)
        return part_open(NULL, ops, want, out, err);
    pthread_once(&once, watch_forks);
    int rc = 0;
    pthread_mutex_lock(&lock);
    struct ibx_domain_part *part = find(domain, ops, want);
    if (part) {
        part->holders++;
    } else if (!(rc = part_open(domain, ops, want, &part, err))) {
        part->next = parts;
        parts = part;
    }
    pthread_mutex_unlock(&lock);
    if (!rc)
        *out = part;
    return rc;
}

/* Whether that was the last holder: then the part is off the list. */
static bool drop_holder(struct ibx_domain_part *part)
{
    if (!part->domain)
        return true;
    pthread_mutex_lock(&lock);
    bool last = !--part->holders;
    for (struct ibx_domain_part **at = &parts; last && *at; at = &(*at)->next) {
        if (*at == part) {
            *at = part->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return last;
}

void ibx_domain_part_release(struct ibx_domain_part *part)
{
    if (!part || !drop_holder(part))
        return;
    struct ibx_domain *domain = part->domain;
    part->ops->close(part);
    ibx_domain_release(domain);
}
