/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Measures what sending costs with TLS in user space and in the kernel, compared with plain
 * sockets: the time inside the calls that send, over loopback. If QEMU counts instructions
 * (guest --accel count), a nanosecond is an instruction. */
#include "tests/fixtures/tls_pair.h"

#include "common/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HEADER  32u
#define LONGEST (1u << 20)
#define TURNS   3

enum way { PLAIN, USER_SPACE, KERNEL };

static uint8_t header[HEADER], body[LONGEST], scrap[LONGEST];

static ssize_t send_some(struct tls_pair *pair, enum way way, struct iovec *pieces, int count)
{
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    if (way != PLAIN)
        return ibx_tls_send(pair->tls[0], pieces, count);
    ssize_t n = sendmsg(pair->fd[0], &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -errno : n;
}

static void drain(const struct tls_pair *pair)
{
    while (recv(pair->middle[0], scrap, sizeof(scrap), MSG_DONTWAIT) > 0)
        ;
}

/* Sends one body after a header. Returns the nanoseconds inside send. */
static uint64_t send_one(struct tls_pair *pair, enum way way, size_t length)
{
    uint64_t spent = 0;
    for (size_t at = 0; at < HEADER + length;) {
        struct iovec pieces[2];
        int count = 0;
        size_t done = at < HEADER ? 0 : at - HEADER;
        if (at < HEADER)
            pieces[count++] = (struct iovec){header + at, HEADER - at};
        if (done < length)
            pieces[count++] = (struct iovec){body + done, length - done};
        uint64_t began = ibx_now_ns();
        ssize_t n = send_some(pair, way, pieces, count);
        spent += ibx_now_ns() - began;
        if (n < 0 && n != -EAGAIN) {
            fprintf(stderr, "tls_bench: sending failed: %s\n", strerror((int)-n));
            exit(1);
        }
        at += n > 0 ? (size_t)n : 0;
        drain(pair);
    }
    return spent;
}

static double measure(enum way way, size_t length, unsigned times)
{
    struct tls_pair pair;
    int one = 1, bytes = 4 << 20;
    uint64_t spent = 0;
    tls_pair_open_kernel(&pair, way == KERNEL, false);
    setsockopt(pair.fd[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    setsockopt(pair.fd[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (way != PLAIN) {
        do
            tls_pair_shake(&pair);
        while (!tls_pair_done(&pair, 0));
        if (strstr(ibx_tls_description(pair.tls[0]), "kernel") ? way != KERNEL : way == KERNEL)
            exit(1); /* a warning has said why */
    }
    for (unsigned i = 0; i < times; i++)
        spent += send_one(&pair, way, length);
    tls_pair_close(&pair);
    return (double)spent / times;
}

int main(void)
{
    static const struct {
        size_t length;
        unsigned times;
    } cases[] = {{4, 200}, {4096, 200}, {65536, 40}, {LONGEST, 8}};
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            double ns[3];
            for (enum way way = PLAIN; way <= KERNEL; way++)
                ns[way] = measure(way, cases[i].length, cases[i].times);
            printf("%7zu B, ns a body: plain %.0f, user space %.0f, kernel %.0f (%.2f)\n",
                   cases[i].length, ns[PLAIN], ns[USER_SPACE], ns[KERNEL],
                   ns[KERNEL] / ns[USER_SPACE]);
        }
    }
    return 0;
}
