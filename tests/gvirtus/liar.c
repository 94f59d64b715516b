/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * ibx_send() and ibx_write() of a back end that lies: some messages to its clients, and some bytes
 * that it puts into their memory, are not what the plugin meant. The linker has the plugin call
 * these functions. IBX_TEST_LIES in the environment is the seed of the lies.
 */
#include "tests/fixtures/pattern.h"
#include "transport/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int __real_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags);
int __wrap_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags);
int __real_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags);
int __wrap_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags);

#define LONGEST 65536u
#define FRONT   64u /* bytes at the front of a WRITE, where a reply has its numbers */
/* A DATA message with a reply: type, counter, kind, length; the reply's code, seconds, length. */
#define REPLY_AT  10u
#define LENGTH_AT (REPLY_AT + 12)
#define OUTPUT_AT (LENGTH_AT + 8)

enum lie {
    LIE_BYTE,
    LIE_NUMBER,
    LIE_CODE,
    LIE_LENGTH,
    LIE_OUTPUT,
    LIE_SHORTER,
    LIE_LONGER,
    LIES,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct random lies;
static size_t one_in; /* messages; 0: not yet set */

static void begin(void)
{
    const char *seed = getenv("IBX_TEST_LIES");
    lies.state = seed ? strtoull(seed, NULL, 0) : 0;
    one_in = seed ? (size_t)1 << (2 + random_below(&lies, 7)) : SIZE_MAX;
}

/* Numbers with which a length, a count, an address or an error code may be wrong. */
static uint64_t odd_number(void)
{
    static const uint64_t numbers[] = {
        0,          1,          2,          7,          8,         0x7f,       0x80,
        0xff,       0x100,      0x1000,     0xffff,     0x10000,   0x100000,   0x7fffffff,
        1ull << 31, UINT32_MAX, 1ull << 32, 1ull << 47, INT64_MAX, 1ull << 63, UINT64_MAX,
    };
    const uint64_t number = numbers[random_below(&lies, sizeof(numbers) / sizeof(numbers[0]))];
    return random_below(&lies, 4) ? number : number + random_below(&lies, 16) - 8;
}

/* Little-endian, as everything that is sent. */
static void put(uint8_t *bytes, size_t n, size_t at, size_t width)
{
    const uint64_t number = odd_number();
    for (size_t i = 0; i < width && at + i < n; i++)
        bytes[at + i] = (uint8_t)(number >> 8 * i);
}

static size_t falsify(uint8_t *bytes, size_t n)
{
    const size_t any = random_below(&lies, n), width = (size_t)1 << random_below(&lies, 4);
    switch ((enum lie)random_below(&lies, LIES)) {
    case LIE_BYTE:
        bytes[any] = (uint8_t)random_next(&lies);
        break;
    case LIE_NUMBER:
        put(bytes, n, any, width);
        break;
    case LIE_CODE:
        put(bytes, n, REPLY_AT, 4);
        break;
    case LIE_LENGTH:
        put(bytes, n, LENGTH_AT, 8);
        break;
    case LIE_OUTPUT:
        if (n > OUTPUT_AT)
            put(bytes, n, OUTPUT_AT + random_below(&lies, n - OUTPUT_AT) / 4 * 4, width);
        break;
    case LIE_SHORTER:
        return any + 1;
    default:
        for (size_t i = 0; i < width; i++)
            bytes[n + i] = (uint8_t)random_next(&lies);
        return n + width;
    }
    return n;
}

int __wrap_ibx_send(struct ibx_conn *conn, const struct iovec *iov, int iovcnt, uint64_t cookie,
                    unsigned flags)
{
    size_t n = 0;
    for (int i = 0; i < iovcnt; i++)
        n += iov[i].iov_len;
    pthread_mutex_lock(&lock);
    if (!one_in)
        begin();
    const bool lie = n && n < LONGEST && random_below(&lies, one_in) == 0;
    uint8_t *bytes = lie ? malloc(n + 8) : NULL;
    struct iovec instead = {bytes, 0};
    for (int i = 0; bytes && i < iovcnt; i++) {
        memcpy(bytes + instead.iov_len, iov[i].iov_base, iov[i].iov_len);
        instead.iov_len += iov[i].iov_len;
    }
    if (bytes)
        instead.iov_len = falsify(bytes, n);
    pthread_mutex_unlock(&lock);
    int rc = bytes ? __real_ibx_send(conn, &instead, 1, cookie, flags) : -EMSGSIZE;
    if (!bytes || rc == -EMSGSIZE) /* longer than messages may be */
        rc = __real_ibx_send(conn, iov, iovcnt, cookie, flags);
    free(bytes);
    return rc;
}

/* What is falsified is memory of the back end, its device's, too: here both are the host's. */
int __wrap_ibx_write(struct ibx_conn *conn, struct ibx_mr *mr, const void *local,
                     const struct ibx_remote *remote, uint64_t offset, size_t length,
                     uint64_t cookie, unsigned flags)
{
    pthread_mutex_lock(&lock);
    if (!one_in)
        begin();
    if (length && random_below(&lies, one_in) == 0) {
        const size_t front = length < FRONT ? length : FRONT;
        const size_t at = random_below(&lies, random_below(&lies, 2) ? front : length);
        put((uint8_t *)(uintptr_t)local, length, at, (size_t)1 << random_below(&lies, 4));
    }
    pthread_mutex_unlock(&lock);
    return __real_ibx_write(conn, mr, local, remote, offset, length, cookie, flags);
}
