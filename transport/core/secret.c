/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Memory for secrets. It is separate from crypto.c, which a fuzzer replaces. */
#include "transport/core/crypto.h"

#include <openssl/crypto.h>
#include <sys/mman.h>

/* The length stands before what the caller gets. */
#define SECRET_HEAD 16u

void *ibx_secret_allocate(size_t length)
{
    length += SECRET_HEAD;
    void *whole = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED)
        return NULL;
    madvise(whole, length, MADV_DONTDUMP);
    mlock(whole, length);
    *(size_t *)whole = length;
    return (char *)whole + SECRET_HEAD;
}

void ibx_secret_free(void *secret)
{
    if (!secret)
        return;
    void *whole = (char *)secret - SECRET_HEAD;
    size_t length = *(size_t *)whole;
    OPENSSL_cleanse(whole, length);
    munmap(whole, length);
}
