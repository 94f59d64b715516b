/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "common/forked.h"

#include <errno.h>
#include <sys/mman.h>

void *ibx_forked_map(size_t n)
{
    void *memory =
        mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, n, MADV_DONTDUMP);
    return memory;
}

void ibx_forked_lock_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &how);
    pthread_mutexattr_destroy(&how);
}

void ibx_forked_lock(pthread_mutex_t *lock)
{
    if (pthread_mutex_lock(lock) == EOWNERDEAD)
        pthread_mutex_consistent(lock);
}
