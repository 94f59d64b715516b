/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who is at the other end of the unix socket. A proof shows that its maker belongs to the
 * connection, but a stranger in between could pass it on, and keep a copy of the descriptor that
 * comes back. So the server says which socket and which process it is, its proof covers that, and
 * the client compares it with what the kernel says about the socket in its hands: the inode number
 * of the socket that this one is connected to (unix_diag), and, in one PID namespace, the process
 * that listened (SO_PEERCRED). All that is known has to agree. The client's answer is a proof for
 * the same socket, and only then the server sends a descriptor. The server itself could not ask
 * unix_diag: a socket that it accepted is in the network namespace of who connected.
 */
#include "transport/shm/shm.h"

#include "transport/core/crypto.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct identity {
    uint64_t socket;        /* inode number */
    uint64_t pid_namespace; /* likewise; 0: unknown */
    uint32_t pid;           /* in there */
};

static uint64_t own_pid_namespace(void)
{
    struct stat status;
    return stat("/proc/thread-self/ns/pid", &status) ? 0 : status.st_ino;
}

static int own_identity(int socket, struct identity *own)
{
    struct stat status;
    if (fstat(socket, &status))
        return -errno;
    *own = (struct identity){status.st_ino, own_pid_namespace(), (uint32_t)getpid()};
    return 0;
}

/* ------------------------------------------------------------- the kernel's facts */

/* What sock_diag(7) answers if it knows: everything is aligned to four bytes. */
struct answer {
    struct nlmsghdr header;
    struct unix_diag_msg about;
    struct nlattr attribute;
    uint32_t peer;
};

/* The inode number of the socket that ours, of inode number `own`, is connected to. -EOPNOTSUPP:
 * unknown. */
static int peer_socket(uint32_t own, uint32_t *peer)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req request;
    } ask = {
        {.nlmsg_len = sizeof(ask), .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
        {.sdiag_family = AF_UNIX,
         .udiag_states = UINT32_MAX,
         .udiag_ino = own,
         .udiag_show = UDIAG_SHOW_PEER,
         .udiag_cookie = {UINT32_MAX, UINT32_MAX}}};
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct answer answer = {0};
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return -EOPNOTSUPP;
    /* A connected netlink socket hears nobody but the kernel, which answers inside send(2). */
    ssize_t n = connect(fd, (struct sockaddr *)&kernel, sizeof(kernel))
                    ? -1
                    : send(fd, &ask, sizeof(ask), 0);
    if (n == (ssize_t)sizeof(ask))
        n = recv(fd, &answer, sizeof(answer), MSG_DONTWAIT);
    close(fd);
    if (n != (ssize_t)sizeof(answer) || answer.header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        answer.about.udiag_ino != own || answer.attribute.nla_type != UNIX_DIAG_PEER)
        return -EOPNOTSUPP;
    *peer = answer.peer;
    return 0;
}

/* Whether the kernel agrees with what the peer says of itself. */
static int identity_check(int socket, const struct identity *own, const struct identity *said)
{
    uint32_t peer = 0;
    struct ucred who = {0};
    socklen_t length = sizeof(who);
    bool known = false;
    if (!peer_socket((uint32_t)own->socket, &peer)) {
        if (!peer) /* it is closed, whosever it was, since it has sent something */
            return -ECONNRESET;
        if (peer != (uint32_t)said->socket)
            return -EPERM;
        known = true;
    }
    if (own->pid_namespace && own->pid_namespace == said->pid_namespace &&
        !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length)) {
        if (who.pid <= 0 || (uint32_t)who.pid != said->pid)
            return -EPERM;
        known = true;
    }
    return known ? 0 : -EOPNOTSUPP;
}

/* ------------------------------------------------------------------ the packets */

static void proof_of(const struct shm *shm, const char *label, const struct identity *of,
                     uint8_t proof[IBX_PROOF_BYTES])
{
    char text[96];
    snprintf(text, sizeof(text), "%s %llx %llx %x", label, (unsigned long long)of->socket,
             (unsigned long long)of->pid_namespace, of->pid);
    ibx_link_proof(shm->link, text, proof);
}

int ibx_shm_hello_put(const struct shm *shm, int socket, struct ibx_writer *w)
{
    uint8_t proof[IBX_PROOF_BYTES];
    struct identity own = {0}; /* gcc -O3 does not know that errno is not 0 */
    int rc = own_identity(socket, &own);
    if (rc)
        return rc;
    proof_of(shm, "shm server", &own, proof);
    ibx_put_u16(w, IBX_SHM_VERSION);
    ibx_put_u64(w, own.socket);
    ibx_put_u64(w, own.pid_namespace);
    ibx_put_u32(w, own.pid);
    ibx_put_bytes(w, proof, sizeof(proof));
    return 0;
}

int ibx_shm_hello_check(const struct shm *shm, int socket, struct ibx_reader *r,
                        uint8_t answer[IBX_PROOF_BYTES])
{
    uint8_t proof[IBX_PROOF_BYTES];
    struct identity own = {0}, said; /* gcc -O3 does not know that errno is not 0 */
    uint16_t version = ibx_get_u16(r);
    said.socket = ibx_get_u64(r);
    said.pid_namespace = ibx_get_u64(r);
    said.pid = ibx_get_u32(r);
    const uint8_t *theirs = ibx_get_bytes(r, sizeof(proof));
    if (!theirs || version != IBX_SHM_VERSION)
        return -EACCES;
    proof_of(shm, "shm server", &said, proof);
    if (!ibx_hash_equal(theirs, proof))
        return -EACCES;
    int rc = own_identity(socket, &own);
    if (!rc)
        rc = identity_check(socket, &own, &said);
    if (!rc)
        proof_of(shm, "shm client", &said, answer);
    return rc;
}

int ibx_shm_answer_check(const struct shm *shm, int socket, struct ibx_reader *r)
{
    uint8_t proof[IBX_PROOF_BYTES];
    struct identity own;
    const uint8_t *theirs = ibx_get_bytes(r, sizeof(proof));
    int rc = own_identity(socket, &own);
    if (rc || !theirs)
        return -EACCES;
    proof_of(shm, "shm client", &own, proof);
    return ibx_hash_equal(theirs, proof) ? 0 : -EACCES;
}

int ibx_shm_hello_error(int socket, int rc, struct ibx_error *err)
{
    struct ucred who = {0};
    socklen_t length = sizeof(who);
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &length);
    if (rc == -EPERM)
        return ibx_error_set(
            err, rc,
            "process %d of user %u is between server and client at the shm socket: name with "
            "shm_dir, on both ends, one directory that only the server can change",
            who.pid, who.uid);
    if (rc == -EOPNOTSUPP)
        return ibx_error_set(
            err, rc,
            "it is not known which process is at the other end of the shm socket: load the module "
            "unix_diag, allow netlink sockets, or use one PID namespace");
    if (rc == -ETIMEDOUT || rc == -ECONNRESET)
        return ibx_error_set(err, rc == -ETIMEDOUT ? rc : -EACCES,
                             "process %d of user %u is at the shm socket and does not answer",
                             who.pid, who.uid);
    return ibx_error_set(err, rc,
                         "process %d of user %u is at the shm socket without the right proof",
                         who.pid, who.uid);
}
