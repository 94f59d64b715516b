/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/tls_pair.h"
#include "tests/scenes/must.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const uint8_t tls_key[IBX_TLS_PSK_BYTES] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

static void connect_loopback(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(connect(fds[0], (struct sockaddr *)&address, length) == 0);
    MUST(fcntl(fds[0], F_SETFL, O_NONBLOCK) == 0);
    fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    MUST(fds[1] >= 0);
    close(listener);
}

void tls_pair_open(struct tls_pair *pair, bool unix_socket, const uint8_t client[IBX_TLS_PSK_BYTES],
                   const uint8_t server[IBX_TLS_PSK_BYTES])
{
    *pair = (struct tls_pair){0};
    for (unsigned i = 0; i < 2; i++) {
        int fds[2];
        if (unix_socket)
            MUST(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
        else
            connect_loopback(fds);
        pair->fd[i] = fds[0];
        pair->middle[i] = fds[1];
        pair->relay[i].flip = pair->relay[i].limit = SIZE_MAX;
        MUST(!ibx_tls_create(fds[0], i ? IBX_ROLE_SERVER : IBX_ROLE_CLIENT, i ? server : client,
                             &pair->tls[i], NULL));
    }
}

void tls_pair_open_kernel(struct tls_pair *pair, bool client, bool server)
{
    tls_pair_open(pair, false, tls_key, tls_key);
    if (client)
        ibx_tls_use_kernel(pair->tls[0]);
    if (server)
        ibx_tls_use_kernel(pair->tls[1]);
}

void tls_pair_close(struct tls_pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        ibx_tls_destroy(pair->tls[i]);
        close(pair->fd[i]);
        if (pair->middle[i] >= 0)
            close(pair->middle[i]);
    }
}

static void relay_from(struct tls_pair *pair, unsigned from)
{
    static uint8_t bytes[1 << 20];
    size_t room = pair->relay[from].limit - pair->relay[from].passed;
    ssize_t n = recv(pair->middle[from], bytes, sizeof(bytes) < room ? sizeof(bytes) : room,
                     MSG_DONTWAIT | MSG_PEEK);
    if (n <= 0)
        return;
    size_t flip = pair->relay[from].flip - pair->relay[from].passed;
    if (flip < (size_t)n)
        bytes[flip] ^= 1;
    n = send(pair->middle[!from], bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n <= 0)
        return;
    pair->relay[from].passed += (size_t)n;
    MUST(recv(pair->middle[from], bytes, (size_t)n, MSG_DONTWAIT) == n);
}

void tls_pair_relay(struct tls_pair *pair)
{
    relay_from(pair, 0);
    relay_from(pair, 1);
}

void tls_pair_shake(struct tls_pair *pair)
{
    pair->status[0] = pair->status[1] = -EAGAIN;
    for (unsigned quiet = 0; quiet < 3; quiet++) {
        size_t before = pair->relay[0].passed + pair->relay[1].passed;
        for (unsigned i = 0; i < 2; i++) {
            short events;
            if (pair->status[i] == -EAGAIN)
                pair->status[i] = ibx_tls_handshake(pair->tls[i], &events);
            tls_pair_relay(pair);
        }
        if (pair->relay[0].passed + pair->relay[1].passed != before)
            quiet = 0;
    }
}

bool tls_pair_done(struct tls_pair *pair, unsigned end)
{
    short events;
    return ibx_tls_handshake(pair->tls[end], &events) == 0;
}

void tls_pair_cut(struct tls_pair *pair)
{
    tls_pair_relay(pair);
    for (unsigned i = 0; i < 2; i++) {
        close(pair->middle[i]);
        pair->middle[i] = -1;
    }
}

SSL_SESSION *tls_stranger_session(SSL *ssl)
{
    static const uint8_t suite[2] = {0x13, 0x01};
    SSL_SESSION *session = SSL_SESSION_new();
    MUST(SSL_SESSION_set1_master_key(session, tls_key, IBX_TLS_PSK_BYTES) == 1);
    MUST(SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) == 1);
    MUST(SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1);
    return session;
}

int tls_stranger_find(SSL *ssl, const unsigned char *id, size_t length, SSL_SESSION **session)
{
    MUST(length == 3 && !memcmp(id, "ibx", 3));
    *session = tls_stranger_session(ssl);
    return 1;
}

int tls_pieces(struct iovec *pieces, uint8_t *memory, size_t length)
{
    static const size_t longest[] = {40, 1000, 20000, 300000};
    int count = 0;
    while (length && count < 5) {
        size_t n = (size_t)rand() % longest[rand() % 4];
        n = n < length ? n : length;
        pieces[count++] = (struct iovec){memory, n};
        memory += n;
        length -= n;
    }
    return count;
}
