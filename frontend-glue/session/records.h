/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The sessions that survive their connections, in memory that all processes of a back end share, if
 * programs or tenants have processes of their own: the listening process has to find the process of
 * a session that continues over a new connection, and each process may be asked which sessions
 * there are. No process waits for another (common/shared_table.h).
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_RECORDS_H
#define IBX_FRONTEND_GLUE_SESSION_RECORDS_H

#include "frontend-glue/session/report.h"

#include <sys/types.h>

struct ibx_record {
    uint8_t id[IBX_CLAIM_ID_BYTES], secret[IBX_SECRET_BYTES];
    char name[IBX_NAME_MAX + 1];
    uint8_t has_user; /* 0 or 1 */
    unsigned user;
    struct ibx_session_report report;
};

/* Shared with children that are forked from now on. NULL: no memory. */
struct ibx_records;
struct ibx_records *ibx_records_create(void);
/* In this process only. Accepts NULL. */
void ibx_records_destroy(struct ibx_records *records);

/* Adds a session of this process. Returns its place; -1: there is no room. */
int ibx_records_add(struct ibx_records *records, const struct ibx_record *record);
/* Replaces a record that has changed. */
void ibx_records_change(struct ibx_records *records, int place, const struct ibx_record *record);
void ibx_records_remove(struct ibx_records *records, int place);
/* Removes the records of a process that has ended. */
void ibx_records_forget(struct ibx_records *records, pid_t process);

/* The process of the session with this id; 0: none. All strings in *found are terminated, and
 * numbers are within bounds, whatever another process may have written. */
pid_t ibx_records_find(const struct ibx_records *records, const uint8_t *id,
                       struct ibx_record *found);
/* Iterates: the next record from *place on, which is 0 at first. False: no more. */
bool ibx_records_next(const struct ibx_records *records, unsigned *place, struct ibx_record *found);

#endif
