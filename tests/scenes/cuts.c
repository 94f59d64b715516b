/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/cuts.h"

#include "transport/core/conn.h"

#include <string.h>

struct cut_end client_end, server_end;
void (*cuts_connect_with)(struct ibx_options *options, unsigned n);
void (*cuts_establish_with)(struct ibx_options *options, unsigned n);

static void attach(struct cut_end *end, struct ibx_conn *conn)
{
    struct ibx_injected_faults *faults = &end->faults[end->count % CUTS_FAULTS];
    unsigned cut = end->count < CUTS_PLANNED ? end->plan[end->count] : 0;
    if (!cut && end->often)
        cut = (unsigned)random_below(&end->random, end->often) + 1;
    *faults = (struct ibx_injected_faults){.disconnect_in = cut};
    end->count++;
    ibx_fault_injection_attach(conn, faults, NULL);
}

int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err);
int __real_ibx_establish(struct ibx_conn *conn, struct ibx_error *err);
int __wrap_ibx_establish(struct ibx_conn *conn, struct ibx_error *err);

int __wrap_ibx_connect(const char *uri, const struct ibx_options *options, struct ibx_conn **conn,
                       struct ibx_error *err)
{
    struct ibx_options other = *options;
    if (cuts_connect_with)
        cuts_connect_with(&other, client_end.count);
    int rc = __real_ibx_connect(uri, &other, conn, err);
    if (!rc)
        attach(&client_end, *conn);
    return rc;
}

int __wrap_ibx_establish(struct ibx_conn *conn, struct ibx_error *err)
{
    if (cuts_establish_with)
        cuts_establish_with(&conn->options, server_end.count);
    int rc = __real_ibx_establish(conn, err);
    if (!rc)
        attach(&server_end, conn);
    return rc;
}

void cuts_plan_nothing(void)
{
    client_end = server_end = (struct cut_end){0};
}

void cuts_disarm(struct cut_end *end)
{
    memset(end->plan, 0, sizeof(end->plan));
    end->often = 0;
    end->faults[(end->count - 1) % CUTS_FAULTS].disconnect_in = 0;
}
