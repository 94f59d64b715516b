/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "transport/core/tls_kernel.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef SOL_TLS
#define SOL_TLS 282
#endif
#ifndef TCP_ULP
#define TCP_ULP 31
#endif

#define PIECES       16
#define TRIAL_BYTES  100u
#define TRIAL_MS     1000
#define REASON_BYTES 160

/* ------------------------------------------------------------------------- keys */

int ibx_tls_kernel_seal(int fd, const struct ibx_tls_direction *d)
{
    struct tls12_crypto_info_aes_gcm_128 info = {
        .info = {.version = TLS_1_3_VERSION, .cipher_type = TLS_CIPHER_AES_GCM_128}};
    _Static_assert(sizeof(info.salt) + sizeof(info.iv) == IBX_TLS_IV_BYTES, "they are the IV");
    if (d->suite != IBX_TLS_AES_128_GCM)
        return -EOPNOTSUPP;
    if (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) && errno != EEXIST)
        return -errno;
    uint8_t key[IBX_TLS_KEY_BYTES_MAX];
    ibx_tls_direction_key(d, key);
    memcpy(info.key, key, sizeof(info.key));
    memcpy(info.salt, d->iv, sizeof(info.salt));
    memcpy(info.iv, d->iv + sizeof(info.salt), sizeof(info.iv));
    for (unsigned i = 0; i < sizeof(info.rec_seq); i++)
        info.rec_seq[i] = (uint8_t)(d->records >> (8 * (sizeof(info.rec_seq) - 1 - i)));
    int rc = setsockopt(fd, SOL_TLS, TLS_TX, &info, sizeof(info)) ? -errno : 0;
    OPENSSL_cleanse(key, sizeof(key));
    OPENSSL_cleanse(&info, sizeof(info));
    return rc;
}

/* ---------------------------------------------------------------------- sending */

static ssize_t send_once(int fd, struct msghdr *message)
{
    ssize_t n;
    do {
        n = sendmsg(fd, message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n >= 0 ? n : errno == EPIPE ? -ECONNRESET : -errno;
}

/* What one call gives to the kernel: all of a long piece, so that it begins a record, or several
 * short ones. */
static size_t gather(const struct ibx_tls_cursor *from, struct iovec *pieces, int *count)
{
    struct ibx_tls_cursor cursor = *from;
    size_t length = ibx_tls_record_length(&cursor), got = 0;
    *count = 0;
    while (got < length && *count < PIECES) {
        ibx_tls_cursor_move(&cursor, 0);
        size_t there = cursor.iov->iov_len - cursor.at;
        size_t n = there >= IBX_TLS_BODY_MAX || there < length - got ? there : length - got;
        pieces[(*count)++] = (struct iovec){(uint8_t *)cursor.iov->iov_base + cursor.at, n};
        ibx_tls_cursor_move(&cursor, n);
        got += n;
    }
    return got;
}

ssize_t ibx_tls_kernel_send(int fd, const struct iovec *iov, int n, uint64_t *records)
{
    struct ibx_tls_cursor text = {iov, n, 0};
    size_t taken = 0, length;
    struct iovec pieces[PIECES];
    int count;
    while ((length = gather(&text, pieces, &count))) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        ssize_t rc = send_once(fd, &message);
        if (rc < 0)
            return taken ? (ssize_t)taken : rc;
        taken += (size_t)rc;
        /* Where memory is short, the kernel ends a record early. */
        *records += (size_t)rc / IBX_TLS_BODY_MAX + (unsigned)count + 1;
        if ((size_t)rc < length)
            break;
        ibx_tls_cursor_move(&text, length);
    }
    return (ssize_t)taken;
}

int ibx_tls_kernel_say(int fd, enum ibx_tls_content content, const void *bytes, size_t n)
{
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(1)];
    } control = {
        .head = {.cmsg_len = CMSG_LEN(1), .cmsg_level = SOL_TLS, .cmsg_type = TLS_SET_RECORD_TYPE}};
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control.room)};
    *CMSG_DATA(&control.head) = (uint8_t)content;
    ssize_t rc = send_once(fd, &message);
    return rc < 0 ? (int)rc : (size_t)rc == n ? 0 : -EIO;
}

/* ------------------------------------------------------------------------ trial */

static pthread_once_t tried = PTHREAD_ONCE_INIT;
static bool works;
static char reason[REASON_BYTES];

/* A socket that is connected to itself: nobody else can be at the other end. */
static int socket_to_itself(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) ||
        getsockname(fd, (struct sockaddr *)&address, &length) ||
        connect(fd, (struct sockaddr *)&address, length)) {
        int rc = -errno;
        if (fd >= 0)
            close(fd);
        return rc;
    }
    return fd;
}

/* Whether what the kernel seals now is a record that `in` opens. */
static bool trial_opens(int fd, struct ibx_tls_direction *in)
{
    uint8_t text[TRIAL_BYTES], back[TRIAL_BYTES], record[TRIAL_BYTES + IBX_TLS_OVERHEAD];
    struct iovec iov = {text, sizeof(text)}, room = {back, sizeof(back)};
    uint64_t records = 0;
    memset(text, 0x5a, sizeof(text));
    if (ibx_tls_kernel_send(fd, &iov, 1, &records) != (ssize_t)sizeof(text))
        return false;
    for (size_t have = 0; have < sizeof(record);) {
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        ssize_t n = recv(fd, record + have, sizeof(record) - have, MSG_DONTWAIT);
        if (n > 0)
            have += (size_t)n;
        else if (!n || (errno != EAGAIN && errno != EINTR) || !poll(&wait, 1, TRIAL_MS))
            return false;
    }
    struct ibx_tls_job job = {
        .text = {&room, 1, 0}, .record = record, .length = sizeof(back), .number = in->records++};
    ibx_tls_open(in, 0, &job);
    return !job.status && job.content == IBX_TLS_DATA && !memcmp(text, back, sizeof(text));
}

static void trial_run(int fd, struct ibx_tls_direction *out, struct ibx_tls_direction *in)
{
    int rc = ibx_tls_kernel_seal(fd, out);
    if (rc) {
        snprintf(reason, sizeof(reason),
                 "the kernel has no TLS with AES-GCM (%s): load its module (modprobe tls), or "
                 "take a kernel that has it",
                 strerror(-rc));
        return;
    }
    bool good = trial_opens(fd, in);
    ibx_tls_direction_update(out);
    ibx_tls_direction_update(in);
    rc = good ? ibx_tls_kernel_seal(fd, out) : 0;
    /* Without that a key would seal more than it may (RFC 8446, 5.5), and a socket cannot leave the
     * kernel's TLS again. */
    if (rc)
        snprintf(reason, sizeof(reason),
                 "the kernel cannot give a connection a new key (%s): Linux 6.14 and later can",
                 strerror(-rc));
    else if (!good || !trial_opens(fd, in))
        snprintf(reason, sizeof(reason), "the records that the kernel makes cannot be opened");
    else
        works = true;
}

static void trial(void)
{
    static const uint8_t secret[IBX_HASH_BYTES] = "of nothing but this trial";
    struct ibx_tls_direction out = {0}, in = {0};
    int fd = socket_to_itself();
    if (fd < 0) {
        snprintf(reason, sizeof(reason), "it cannot be tried out over 127.0.0.1 (%s)",
                 strerror(-fd));
        return;
    }
    if (!ibx_tls_direction_init(&out, true, IBX_TLS_AES_128_GCM, secret) &&
        !ibx_tls_direction_init(&in, false, IBX_TLS_AES_128_GCM, secret))
        trial_run(fd, &out, &in);
    else
        snprintf(reason, sizeof(reason), "there is no memory to try it out");
    ibx_tls_direction_fini(&out);
    ibx_tls_direction_fini(&in);
    close(fd);
}

bool ibx_tls_kernel_works(const char **why)
{
    pthread_once(&tried, trial);
    *why = works ? NULL : reason;
    return works;
}
