/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What all processes of a back end know of its sessions that survive their connections, where each
 * program of its clients has a process of its own: the one that listens has to know whose a
 * connection is that goes on with one, and each is asked what sessions there are.
 */
#ifndef IBX_FRONTEND_GLUE_SESSION_RECORDS_H
#define IBX_FRONTEND_GLUE_SESSION_RECORDS_H

#include "frontend-glue/session/report.h"

#include <sys/types.h>

struct ibx_record {
    pid_t process; /* whose session it is; 0: the place is free */
    uint8_t id[IBX_CLAIM_ID_BYTES], secret[IBX_SECRET_BYTES];
    char name[IBX_NAME_MAX + 1];
    bool has_user;
    unsigned user;
    struct ibx_session_report report;
};

/* Shared with the children that are forked from now on. NULL: no memory. */
struct ibx_records;
struct ibx_records *ibx_records_create(void);
/* Of this process. Accepts NULL. */
void ibx_records_destroy(struct ibx_records *records);

void ibx_records_lock(struct ibx_records *records);
void ibx_records_unlock(struct ibx_records *records);
/* All of these are called locked. A place for this process, of zeros but for that; NULL: none is
 * free. */
struct ibx_record *ibx_records_take(struct ibx_records *records);
void ibx_records_give(struct ibx_record *record);
/* NULL: nobody has that id. */
struct ibx_record *ibx_records_find(struct ibx_records *records, const uint8_t *id);
/* The one behind `before` that is taken, NULL: the first one. NULL: there is none. */
struct ibx_record *ibx_records_next(struct ibx_records *records, const struct ibx_record *before);
/* Those of a process that has ended. */
void ibx_records_forget(struct ibx_records *records, pid_t process);

#endif
