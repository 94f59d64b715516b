/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/records.h"

#include "common/forked.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RECORDS 16384u /* 14 MiB, of which only what is used is there */

struct ibx_records {
    pthread_mutex_t lock;
    unsigned used; /* none was taken behind these */
    struct ibx_record all[RECORDS];
};

struct ibx_records *ibx_records_create(void)
{
    struct ibx_records *records = ibx_forked_map(sizeof(*records));
    if (records)
        ibx_forked_lock_init(&records->lock);
    return records;
}

void ibx_records_destroy(struct ibx_records *records)
{
    if (records)
        munmap(records, sizeof(*records));
}

/* Any of the processes may have gone wrong, and written there. */
static unsigned used_of(const struct ibx_records *records)
{
    return records->used < RECORDS ? records->used : RECORDS;
}

/* A process that has ended inside leaves whole records, or those that are forgotten with it. */
void ibx_records_lock(struct ibx_records *records)
{
    ibx_forked_lock(&records->lock);
}

void ibx_records_unlock(struct ibx_records *records)
{
    pthread_mutex_unlock(&records->lock);
}

struct ibx_record *ibx_records_take(struct ibx_records *records)
{
    const unsigned used = used_of(records);
    unsigned i = 0;
    while (i < used && records->all[i].process)
        i++;
    if (i == RECORDS)
        return NULL;
    if (i == used)
        records->used = used + 1;
    mlock(&records->all[i], sizeof(records->all[i])); /* for its secret, as far as one may */
    records->all[i].process = getpid();
    return &records->all[i];
}

void ibx_records_give(struct ibx_record *record)
{
    explicit_bzero(record, sizeof(*record));
}

struct ibx_record *ibx_records_next(struct ibx_records *records, const struct ibx_record *before)
{
    for (size_t i = before ? (size_t)(before - records->all) + 1 : 0; i < used_of(records); i++) {
        if (records->all[i].process)
            return &records->all[i];
    }
    return NULL;
}

struct ibx_record *ibx_records_find(struct ibx_records *records, const uint8_t *id)
{
    struct ibx_record *r = NULL;
    while ((r = ibx_records_next(records, r)) && memcmp(r->id, id, sizeof(r->id)) != 0)
        ;
    return r;
}

void ibx_records_forget(struct ibx_records *records, pid_t process)
{
    struct ibx_record *r = NULL;
    while ((r = ibx_records_next(records, r))) {
        if (r->process == process)
            ibx_records_give(r);
    }
}
