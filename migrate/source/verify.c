/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the destination has received is compared with guest RAM as it is here by now. Until all of
 * it is the same, nothing is given up. pages/digest.h says what that does not find. */
#include "migrate/source/source.h"

#include <errno.h>

int ibx_source_on_digest(struct source *s, const struct ibx_migrate_digest *digest,
                         struct ibx_error *err)
{
    int rc = 0;
    if (!s->verifier)
        rc = ibx_verifier_open(&s->vm.ram, &s->vm.map, s->status.record.verify_key, 0, &s->verifier,
                               err);
    return rc ? rc : ibx_verifier_take(s->verifier, digest->first, &digest->entries, err);
}

int ibx_source_check_pages(struct source *s, struct ibx_error *err)
{
    if (!s->verifier || !source_committed(s))
        return 0;
    const int rc = ibx_verifier_result(s->verifier, err);
    return rc && rc != -EAGAIN ? ibx_source_broken(s, true, err) : 0;
}

int ibx_source_verified(struct source *s, struct ibx_error *err)
{
    if (!s->status.record.verify)
        return 0;
    /* In this order: what is at work may be the last. */
    const bool idle = !s->verifier || ibx_verifier_idle(s->verifier);
    int rc = s->verifier ? ibx_verifier_result(s->verifier, err) : -EAGAIN;
    if (rc == -EAGAIN && idle)
        return ibx_error_set(err, -EPROTO,
                             "the destination calls the migration complete without the digests of "
                             "all pages: nothing is given up here");
    return rc;
}
