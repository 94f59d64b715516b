/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which way copies take, by their sizes: as it was measured for this GPU, or as it is without. */
#include "frontend-glue/device_copies/copies_internal.h"

#include "common/log.h"

#include <stdatomic.h>
#include <stdio.h>

/* Once a process: its sessions have the same file, and mostly the same GPU. */
static void say_misfit(const struct ibx_tuning *tuning, const struct ibx_error *why)
{
    static atomic_bool said;
    if (!atomic_exchange(&said, true))
        ibx_log(IBX_LOG_WARN, "%s is not used: %s; measure here by \"ib-bw tune\"", tuning->file,
                why->message);
}

static const struct ibx_choice *choice_on(const struct ibx_session *s, int device)
{
    const struct copies *x = &s->copies;
    const struct ibx_tuning *tuning = &x->options.tuning;
    struct ibx_tuning_machine here;
    struct ibx_error why = {0};
    if (!tuning->found)
        return &ibx_choice_default;
    ibx_tuning_machine_of(x->cuda, device, &here);
    if (ibx_tuning_fits(tuning, &here, &why)) {
        say_misfit(tuning, &why);
        return &ibx_choice_default;
    }
    ibx_log(IBX_LOG_DEBUG, "copies for %s take the ways that %s says", s->path.peer, tuning->file);
    return &tuning->choice;
}

void ibx_copies_choose(struct ibx_session *s, int device)
{
    struct copies *x = &s->copies;
    unsigned threads = x->choice.threads;
    x->chosen_for = device;
    x->choice = *choice_on(s, device);
    if (x->choice.threads != threads)
        ibx_copies_threads_drop(x);
}

const struct ibx_choice_way *ibx_copies_way(const struct copies *x, bool to_device)
{
    return &x->choice.ways[to_device ? IBX_CHOICE_TO_DEVICE : IBX_CHOICE_FROM_DEVICE];
}

void ibx_copies_note_refusal(struct copies *x, const char *why)
{
    snprintf(x->refused, sizeof(x->refused), "%s", why);
}
