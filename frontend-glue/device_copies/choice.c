/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What all paths share: from which size each is used, as measured for this GPU or by default, and
 * the outcome of a copy. */
#include "frontend-glue/device_copies/copies.h"

#include "common/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>

/* Logged once for each process: its sessions have the same file, and mostly the same GPU. */
static void tell_misfit(const struct ibx_tuning *tuning, const struct ibx_error *why)
{
    static atomic_bool told;
    if (!atomic_exchange(&told, true))
        ibx_log(IBX_LOG_WARN, "%s is not used: %s; measure here by \"ib-bw tune\"", tuning->file,
                why->message);
}

static const struct ibx_choice *choice_on(const struct gpu_session *x, int device)
{
    const struct ibx_tuning *tuning = &x->options.tuning;
    struct ibx_tuning_machine here;
    struct ibx_error why = {0};
    if (!tuning->found)
        return &ibx_choice_default;
    ibx_tuning_machine_of(x->cuda, device, &here);
    if (ibx_tuning_fits(tuning, &here, &why)) {
        tell_misfit(tuning, &why);
        return &ibx_choice_default;
    }
    ibx_log(IBX_LOG_DEBUG, "copies for %s take the paths of %s", ibx_session_path(x->s)->peer,
            tuning->file);
    return &tuning->choice;
}

void ibx_copies_choose(struct gpu_session *x, int device)
{
    x->chosen_for = device;
    x->choice = *choice_on(x, device);
    ibx_session_set_threads(x->s, x->options.threads ? x->options.threads : x->choice.threads);
}

const struct ibx_choice_way *ibx_copies_way(const struct gpu_session *x)
{
    bool to_device = x->copy.stage <= COPY_FROM_CLIENT;
    return &x->choice.ways[to_device ? IBX_CHOICE_TO_DEVICE : IBX_CHOICE_FROM_DEVICE];
}

void ibx_copies_note_refusal(struct gpu_session *x, const char *why)
{
    snprintf(x->refused, sizeof(x->refused), "%s", why);
}

int ibx_copies_outcome(const struct gpu_session *x, int rc)
{
    if (rc <= 0)
        return rc ? rc : IBX_REQUEST_DONE;
    if (rc != IBX_STAGING_REFUSED)
        ibx_log(IBX_LOG_DEBUG, "GVirtuS's handler runs a copy: %s",
                ibx_cuda_error_name(x->cuda, rc));
    return IBX_REQUEST_PASS;
}

int ibx_copies_broke_off(struct gpu_session *x, int code)
{
    return ibx_session_fail(x->s, -EIO, "a copy for %s broke off in the middle of its reply: %s",
                            ibx_session_path(x->s)->peer, ibx_cuda_error_name(x->cuda, code));
}
