/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What all processes of a back end know of its sessions that survive their connections, where each
 * program of its clients has a process of its own: the one that listens has to know whose a
 * connection is that goes on with one, and each is asked what sessions there are. They share that
 * memory, and none waits for another (common/shared_table.h).
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

/* Shared with the children that are forked from now on. NULL: no memory. */
struct ibx_records;
struct ibx_records *ibx_records_create(void);
/* Of this process. Accepts NULL. */
void ibx_records_destroy(struct ibx_records *records);

/* Of a session of this process: its place; -1: none is free. */
int ibx_records_add(struct ibx_records *records, const struct ibx_record *record);
/* It has changed. */
void ibx_records_change(struct ibx_records *records, int place, const struct ibx_record *record);
void ibx_records_remove(struct ibx_records *records, int place);
/* Those of a process that has ended. */
void ibx_records_forget(struct ibx_records *records, pid_t process);

/* Whose session that is; 0: nobody's. What is found are texts that end and numbers of what is
 * there, whoever has written them. */
pid_t ibx_records_find(const struct ibx_records *records, const uint8_t *id,
                       struct ibx_record *found);
/* The next one from `*place` on, 0 at first. False: there is none. */
bool ibx_records_next(const struct ibx_records *records, unsigned *place, struct ibx_record *found);

#endif
