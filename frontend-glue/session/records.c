/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/session/records.h"

#include <errno.h>
#include <pthread.h>
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
    pthread_mutexattr_t how;
    struct ibx_records *records = mmap(NULL, sizeof(*records), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (records == MAP_FAILED)
        return NULL;
    madvise(records, sizeof(*records), MADV_DONTDUMP);
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&records->lock, &how);
    pthread_mutexattr_destroy(&how);
    return records;
}

void ibx_records_destroy(struct ibx_records *records)
{
    if (records)
        munmap(records, sizeof(*records));
}

/* A process that has ended inside leaves whole records, or those that are forgotten with it. */
void ibx_records_lock(struct ibx_records *records)
{
    if (pthread_mutex_lock(&records->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&records->lock);
}

void ibx_records_unlock(struct ibx_records *records)
{
    pthread_mutex_unlock(&records->lock);
}

struct ibx_record *ibx_records_take(struct ibx_records *records)
{
    unsigned i = 0;
    while (i < records->used && records->all[i].process)
        i++;
    if (i == RECORDS)
        return NULL;
    if (i == records->used)
        records->used++;
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
    for (size_t i = before ? (size_t)(before - records->all) + 1 : 0; i < records->used; i++) {
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
