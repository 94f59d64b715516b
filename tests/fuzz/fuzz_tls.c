/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An end of TLS, after its handshake, receives anything: records that the peer's key has sealed,
 * with any content, and bytes of others. It delivers exactly the data that was sealed, in order,
 * up to the first fault, and never a byte after it.
 *
 *   operation  u8 kind: 0 bytes as they are, 1 sealed data, 2 sealed handshake, 3 sealed alert, 4
 *              the peer changes to its next key; u8 length, times 1 or 97 (bit 3 of the kind);
 *              then, for 0, 2 and 3, up to that many bytes */
#include "transport/core/tls_state.h"
#include "tests/fuzz/require.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT_MAX (1u << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t sent[4 * TEXT_MAX], got[5 * TEXT_MAX];
static size_t sent_bytes, got_bytes;
static int status; /* 1: not ended yet */

static void hear(struct ibx_tls *tls)
{
    static const size_t pieces[] = {1, 31, 32, 5000, TEXT_MAX};
    while (status == 1) {
        size_t n = pieces[(got_bytes + sent_bytes) % 5];
        n = n < sizeof(got) - got_bytes ? n : sizeof(got) - got_bytes;
        struct iovec room[] = {{got + got_bytes, n / 3}, {got + got_bytes + n / 3, n - n / 3}};
        bool inside = ibx_tls_readable(tls);
        ssize_t took = ibx_tls_receive(tls, room, 2);
        if (took == -EAGAIN)
            break;
        require(took <= (ssize_t)n);
        require(!inside || took != -ECONNRESET || tls->read_failed);
        if (took > 0)
            got_bytes += (size_t)took;
        else
            status = (int)took;
    }
    require(got_bytes <= sent_bytes && !memcmp(got, sent, got_bytes));
}

static void seal(struct ibx_tls_direction *peer, int fd, enum ibx_tls_content content,
                 const uint8_t *bytes, size_t n)
{
    uint8_t record[IBX_TLS_RECORD_MAX];
    struct iovec text = {(void *)(uintptr_t)bytes, n};
    struct ibx_tls_job job = {.text = {&text, 1, 0},
                              .record = record,
                              .length = n,
                              .content = content,
                              .number = peer->records++};
    ibx_tls_seal(peer, 0, &job);
    require(!job.status);
    require(send(fd, record, n + IBX_TLS_OVERHEAD, MSG_DONTWAIT) ==
            (ssize_t)(n + IBX_TLS_OVERHEAD));
}

static void operate(struct ibx_tls_direction *peer, int fd, const uint8_t **data, size_t *size)
{
    unsigned kind = (*data)[0] % 8, length = (*data)[1] * ((*data)[0] & 8 ? 97u : 1u);
    *data += 2;
    *size -= 2;
    if (kind == 4) {
        ibx_tls_direction_update(peer);
        return;
    }
    if (kind == 1) {
        length = length < IBX_TLS_BODY_MAX ? length : IBX_TLS_BODY_MAX;
        if (length > sizeof(sent) - sent_bytes)
            return;
        for (unsigned i = 0; i < length; i++)
            sent[sent_bytes + i] = (uint8_t)(sent_bytes * 7 + i);
        seal(peer, fd, IBX_TLS_DATA, sent + sent_bytes, length);
        sent_bytes += length;
        return;
    }
    size_t n = length < *size ? length : *size;
    if (kind == 0 && n)
        require(send(fd, *data, n, MSG_DONTWAIT) == (ssize_t)n);
    else if (kind == 2 || kind == 3)
        seal(peer, fd, kind == 2 ? IBX_TLS_HANDSHAKE : IBX_TLS_ALERT, *data,
             n < IBX_TLS_BODY_MAX ? n : IBX_TLS_BODY_MAX);
    *data += n;
    *size -= n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t secret[IBX_HASH_BYTES] = {1, 2, 3};
    struct ibx_tls *tls = ibx_secret_allocate(sizeof(*tls));
    struct ibx_tls_direction peer;
    int fds[2];
    require(tls && !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
    tls->fd = fds[0];
    tls->sealed = malloc(IBX_TLS_RAW_BYTES);
    tls->raw = malloc(IBX_TLS_RAW_BYTES);
    ibx_tls_helpers_hold();
    require(!ibx_tls_direction_init(&tls->in, false, IBX_TLS_AES_128_GCM, secret) &&
            !ibx_tls_direction_init(&tls->out, true, IBX_TLS_AES_128_GCM, secret) &&
            !ibx_tls_direction_init(&peer, true, IBX_TLS_AES_128_GCM, secret));
    sent_bytes = got_bytes = 0;
    status = 1;
    while (size >= 2 && status == 1) {
        operate(&peer, fds[1], &data, &size);
        hear(tls);
    }
    shutdown(fds[1], SHUT_WR);
    hear(tls);
    require(status == 0 || status == -EBADMSG || status == -ECONNRESET);
    ibx_tls_direction_fini(&peer);
    ibx_tls_destroy(tls);
    close(fds[0]);
    close(fds[1]);
    return 0;
}
