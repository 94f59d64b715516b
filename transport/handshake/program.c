/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A server that gives each program of its clients a process of its own. The listening process does
 * all that strangers can ask for; once a client has proven itself, its socket goes to that
 * program's process, with what both ends have agreed on so far. TLS, where it is agreed, begins
 * behind that.
 *
 * The socket carries a struct as it is in memory, since the same program is at the other end.
 */
#include "transport/handshake/handshake.h"

#include "common/descriptor.h"
#include "common/fork_lock.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------- the client's number */

static struct ibx_fork_lock lock = IBX_FORK_LOCK; /* of the number */
static uint8_t number[IBX_PROGRAM_BYTES];
static bool has_number;

/* The number is made for the first connection, and again for each further one until that works:
 * this process may have been out of memory. */
int ibx_handshake_program_put(struct ibx_writer *w, struct ibx_error *err)
{
    int rc = 0;
    ibx_fork_lock_take(&lock);
    if (!has_number)
        rc = ibx_random(number, sizeof(number), err);
    has_number = !rc;
    ibx_fork_lock_release(&lock);
    if (!rc)
        ibx_put_bytes(w, number, sizeof(number));
    return rc;
}

void ibx_handshake_program_get(struct ibx_handshake *h, struct ibx_reader *r)
{
    if (ibx_reader_left(r) < IBX_PROGRAM_BYTES)
        return; /* bytes beyond the fields are ignored */
    memcpy(h->conn->program, ibx_get_bytes(r, IBX_PROGRAM_BYTES), IBX_PROGRAM_BYTES);
    h->conn->has_program = true;
}

const uint8_t *ibx_conn_program(const struct ibx_conn *conn)
{
    return conn->has_program ? conn->program : NULL;
}

/* ------------------------------------------------------------------------ handing over */

/* Kept short: there is room for some hundred, if a process does not take them for a while. */
struct handed {
    char peer[128], name[IBX_NAME_MAX + 1];
    size_t slots, message; /* as both ends agreed */
    uint64_t sent, received;
    bool remote, encrypt, same_host, keyed, payloads_in_plain, has_claimed, has_program;
    uint8_t claimed[IBX_CLAIM_ID_BYTES], program[IBX_PROGRAM_BYTES];
    uint8_t session_key[IBX_HASH_BYTES];
};

static void wipe(struct handed *handed)
{
    explicit_bzero(handed, sizeof(*handed));
}

static void fill(struct handed *handed, const struct ibx_conn *conn)
{
    const struct ibx_handshake *h = (const struct ibx_handshake *)conn->setup;
    *handed = (struct handed){
        .slots = conn->options.slots,
        .message = conn->options.message,
        .sent = h->sent,
        .received = h->received,
        .remote = conn->path.remote,
        .encrypt = conn->encrypt,
        .same_host = conn->same_host,
        .keyed = conn->keyed,
        .payloads_in_plain = h->payloads_in_plain,
        .has_claimed = conn->has_claimed,
        .has_program = conn->has_program,
    };
    memcpy(handed->peer, conn->path.peer, sizeof(handed->peer));
    memcpy(handed->name, conn->path.name, sizeof(handed->name));
    memcpy(handed->claimed, conn->claimed, sizeof(handed->claimed));
    memcpy(handed->program, conn->program, sizeof(handed->program));
    memcpy(handed->session_key, conn->session_key, sizeof(handed->session_key));
}

int ibx_conn_hand_over(struct ibx_conn *conn, int socket)
{
    struct handed handed __attribute__((cleanup(wipe)));
    union ibx_descriptor_room room;
    fill(&handed, conn);
    struct iovec iov = {&handed, sizeof(handed)};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ibx_descriptor_add(&message, &room, conn->handshake_socket);
    const ssize_t n = ibx_descriptor_send(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL, false);
    const int rc = n < 0 ? -errno : 0;
    ibx_close(conn);
    return rc;
}

/* Brings the connection into the state in which the other process has left it. */
static int restore(struct ibx_handshake *h, const struct handed *handed, struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    memcpy(conn->path.peer, handed->peer, sizeof(conn->path.peer));
    memcpy(conn->path.name, handed->name, sizeof(conn->path.name));
    conn->path.remote = handed->remote;
    conn->options.slots = (unsigned)handed->slots;
    conn->options.message = handed->message;
    h->sent = handed->sent;
    h->received = handed->received;
    conn->encrypt = handed->encrypt;
    conn->same_host = handed->same_host;
    conn->keyed = handed->keyed;
    h->payloads_in_plain = handed->payloads_in_plain;
    conn->has_claimed = handed->has_claimed;
    conn->has_program = handed->has_program;
    memcpy(conn->claimed, handed->claimed, sizeof(conn->claimed));
    memcpy(conn->program, handed->program, sizeof(conn->program));
    conn->session_key = ibx_secret_allocate(IBX_HASH_BYTES);
    if (!conn->session_key)
        return ibx_error_set(err, -ENOMEM, "no memory for the key of a connection");
    memcpy(conn->session_key, handed->session_key, IBX_HASH_BYTES);
    int rc = ibx_state_move(&h->state, HANDSHAKE_CHALLENGED);
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
}

int ibx_handshake_take(int socket, const struct ibx_options *options, uint64_t *taken,
                       struct ibx_conn **conn, struct ibx_error *err)
{
    struct handed handed __attribute__((cleanup(wipe)));
    union ibx_descriptor_room room;
    struct iovec iov = {&handed, sizeof(handed)};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
    const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && errno == ECONNRESET) /* it had something unread */
        return -ENOTCONN;
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    const int fd = ibx_descriptor_take(&message);
    *taken += n > 0;
    if (n == (ssize_t)sizeof(handed) && fd < 0) /* this process may have no more descriptors */
        return -EMFILE;
    if (n != (ssize_t)sizeof(handed)) { /* none, or from a faulty process */
        if (fd >= 0)
            close(fd);
        return n ? -EPROTO : -ENOTCONN;
    }
    struct ibx_handshake *h = ibx_handshake_create(fd, IBX_ROLE_SERVER, options, NULL, err);
    if (!h)
        return -ENOMEM;
    const int rc = restore(h, &handed, err);
    if (rc)
        ibx_close(h->conn);
    else
        *conn = h->conn;
    return rc;
}
