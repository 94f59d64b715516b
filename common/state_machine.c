/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/state_machine.h"

#include "common/log.h"

#include <assert.h>
#include <errno.h>

const char *ibx_state_name(const struct ibx_state_table *table, unsigned state)
{
    return state < table->count ? table->states[state].name : "unknown";
}

bool ibx_state_allows(const struct ibx_state_table *table, unsigned from, unsigned to)
{
    return from < table->count && to < table->count && table->states[from].to & IBX_TO(to);
}

static int refuse(const struct ibx_state_table *table, const char *from, unsigned to)
{
    ibx_log(IBX_LOG_ERROR, "%s: no move from %s to %s", table->machine, from,
            ibx_state_name(table, to));
    const bool allowed = false;
    assert(allowed);
    return allowed ? 0 : -EINVAL;
}

int ibx_state_begin(struct ibx_state_machine *m, const struct ibx_state_table *table,
                    unsigned first)
{
    if (first >= table->count || !(table->states[first].flags & IBX_STATE_INITIAL))
        return refuse(table, "nowhere", first);
    *m = (struct ibx_state_machine){table, first};
    return 0;
}

int ibx_state_move(struct ibx_state_machine *m, unsigned to)
{
    if (!ibx_state_allows(m->table, m->now, to))
        return refuse(m->table, ibx_state_name(m->table, m->now), to);
    m->now = to;
    return 0;
}
