/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/records.h"

#include "common/shared_table.h"

#include <unistd.h>

#define RECORDS 16384u /* 28 MiB of address space; only used pages take memory */

static struct ibx_shared_table *table_of(const struct ibx_records *records)
{
    return (struct ibx_shared_table *)records;
}

struct ibx_records *ibx_records_create(void)
{
    return (struct ibx_records *)ibx_shared_table_create(RECORDS, sizeof(struct ibx_record), true);
}

void ibx_records_destroy(struct ibx_records *records)
{
    ibx_shared_table_destroy(table_of(records));
}

int ibx_records_add(struct ibx_records *records, const struct ibx_record *record)
{
    const int place = ibx_shared_table_take(table_of(records), (uint32_t)getpid());
    if (place >= 0)
        ibx_shared_table_write(table_of(records), place, record);
    return place;
}

void ibx_records_change(struct ibx_records *records, int place, const struct ibx_record *record)
{
    ibx_shared_table_write(table_of(records), place, record);
}

void ibx_records_remove(struct ibx_records *records, int place)
{
    ibx_shared_table_give(table_of(records), place);
}

void ibx_records_forget(struct ibx_records *records, pid_t process)
{
    ibx_shared_table_forget(table_of(records), (uint32_t)process);
}

#define END(text) ((text)[sizeof(text) - 1] = '\0')

/* Makes strings and numbers valid: a faulty process may have written there. */
static void make_sound(struct ibx_record *r)
{
    struct ibx_session_report *report = &r->report;
    END(r->name);
    r->has_user = r->has_user != 0;
    END(report->peer);
    END(report->provider);
    report->count = report->count < IBX_REPORT_CHANGES ? report->count : IBX_REPORT_CHANGES;
    for (unsigned i = 0; i < IBX_REPORT_CHANGES; i++) {
        END(report->changes[i].from);
        END(report->changes[i].to);
    }
}

pid_t ibx_records_find(const struct ibx_records *records, const uint8_t *id,
                       struct ibx_record *found)
{
    unsigned place = 0;
    const uint32_t process =
        ibx_shared_table_next(table_of(records), &place, id, sizeof(found->id), found);
    if (process)
        make_sound(found);
    return (pid_t)process;
}

bool ibx_records_next(const struct ibx_records *records, unsigned *place, struct ibx_record *found)
{
    const bool is = ibx_shared_table_next(table_of(records), place, NULL, 0, found);
    if (is)
        make_sound(found);
    return is;
}
