/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds out what a client has connected to if that is not an ibx server, so that its user sees
 * which port is wrong. */
#include "transport/handshake/handshake.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define ASK_MS 500 /* that a web server may take to answer */

static const char *name_of(const uint8_t *bytes, size_t n)
{
    static const struct {
        const char *begins, *is;
    } kinds[] = {{"HTTP/", "a web server (HTTP)"},   {"<!DOC", "a web server (HTTP)"},
                 {"<html", "a web server (HTTP)"},   {"SSH-", "an SSH server"},
                 {"{\"QMP", "a QEMU monitor (QMP)"}, {"\x15\x03", "a TLS server"},
                 {"RFB ", "a VNC server"},           {"220 ", "a mail or FTP server"}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const size_t length = strlen(kinds[i].begins);
        if (n >= length && !memcmp(bytes, kinds[i].begins, length))
            return kinds[i].is;
    }
    return NULL;
}

/* A web server waits for the end of a request, which a HELLO rarely has: so this sends one. The
 * connection is given up by that, even if an ibx server is there that is only slow. */
static void end_the_request(const struct ibx_conn *conn, struct frame *frame)
{
    const int fd = conn->handshake_socket;
    const uint64_t deadline = ibx_deadline_in_ms(ASK_MS);
    if (send(fd, "\r\n\r\n", 4, MSG_NOSIGNAL | MSG_DONTWAIT) != 4 ||
        ibx_handshake_wait_socket(conn, POLLIN, deadline))
        return;
    const ssize_t n = recv(fd, frame->bytes, 5, MSG_DONTWAIT);
    frame->at = n > 0 ? (size_t)n : 0;
}

int ibx_handshake_unanswered(struct ibx_handshake *h, struct frame *frame, int rc,
                             struct ibx_error *err)
{
    if (rc == -ETIMEDOUT && !frame->at && !h->conn->tls && !h->conn->options.claim)
        end_the_request(h->conn, frame);
    const char *name = name_of(frame->bytes, frame->at);
    return name ? ibx_error_set(err, rc,
                                "the handshake with %s failed: %s listens there, not an ibx "
                                "server; correct the URI",
                                h->conn->path.peer, name)
                : ibx_handshake_broken(h, rc, err);
}
