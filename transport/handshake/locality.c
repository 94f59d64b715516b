/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Who is at the other end of a socket: this host or another one, and which user of this host. */
#include "transport/handshake/handshake.h"

#include "common/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* The random number of the kernel's boot. */
struct boot_id {
    char text[64];
    size_t length;
};

/* The boot id is read for the first client, and again for each further one until that works: this
 * process may have been out of descriptors. There is no lock, which a forked child could inherit.
 *
 *   NONE -> WRITTEN -> KNOWN
 */
enum boot_state { BOOT_NONE, BOOT_WRITTEN, BOOT_KNOWN };
static atomic_uint boot_state;
static struct boot_id boot;
static _Thread_local int boot_unknown; /* negative errno of this thread's last boot_get(), or 0 */

static int boot_read(struct boot_id *id)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, id->text, sizeof(id->text));
    const int rc = n > 0 ? 0 : n ? -errno : -ENODATA;
    if (fd >= 0)
        close(fd);
    if (rc) /* random: it equals no other */
        n = ibx_random(id->text, sizeof(id->text), NULL) ? 0 : (ssize_t)sizeof(id->text);
    id->length = (size_t)n;
    return rc;
}

static struct boot_id boot_get(void)
{
    struct boot_id id = {.length = 0};
    unsigned none = BOOT_NONE;
    boot_unknown = 0;
    if (atomic_load(&boot_state) == BOOT_KNOWN)
        return boot;
    boot_unknown = boot_read(&id);
    if (!boot_unknown && atomic_compare_exchange_strong(&boot_state, &none, BOOT_WRITTEN)) {
        boot = id;
        atomic_store(&boot_state, BOOT_KNOWN);
    }
    return id;
}

void ibx_handshake_host_mark(const uint8_t client_nonce[NONCE_BYTES],
                             const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES])
{
    const struct boot_id id = boot_get();
    struct ibx_piece pieces[4] = {{"host ", 5},
                                  {id.text, id.length},
                                  {client_nonce, NONCE_BYTES},
                                  {server_nonce, NONCE_BYTES}};
    ibx_hash(pieces, 4, mark);
}

int ibx_handshake_host_unknown(void)
{
    return boot_unknown;
}

static bool is_unix(int fd)
{
    struct sockaddr_storage here = {0};
    socklen_t length = sizeof(here);
    return !getsockname(fd, (struct sockaddr *)&here, &length) && here.ss_family == AF_UNIX;
}

/* IPv4: a connection to any loopback address comes from 127.0.0.1. Debian gives a host's own name
 * the address 127.0.1.1. */
bool ibx_handshake_peer_is_local(int fd, enum ibx_role role)
{
    struct sockaddr_storage here, there;
    if (is_unix(fd))
        return true;
    if (!ibx_address_of_socket(fd, false, &here) || !ibx_address_of_socket(fd, true, &there))
        return false;
    const struct sockaddr_in *server = (const void *)(role == IBX_ROLE_SERVER ? &here : &there);
    const struct sockaddr_in *client = (const void *)(role == IBX_ROLE_SERVER ? &there : &here);
    bool loopback = here.ss_family == AF_INET && there.ss_family == AF_INET &&
                    ntohl(server->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET &&
                    client->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    return loopback ||
           ibx_address_same((const struct sockaddr *)&here, (const struct sockaddr *)&there);
}

/* -------------------------------------------------------------------------- its user */

/* An address as the kernel writes it in /proc/net/tcp: words of four bytes as numbers of this
 * machine. False: the text is no address. */
static bool address_of_text(const char *text, struct sockaddr_storage *address)
{
    uint8_t host[16];
    const char *colon = strchr(text, ':');
    size_t digits = colon ? (size_t)(colon - text) : 0;
    unsigned port;
    if ((digits != 8 && digits != 32) || sscanf(colon, ":%4x", &port) != 1)
        return false;
    for (size_t i = 0; i < digits / 8; i++) {
        uint32_t word;
        if (sscanf(text + 8 * i, "%8" SCNx32, &word) != 1)
            return false;
        memcpy(host + 4 * i, &word, 4);
    }
    ibx_address_make(address, host, digits / 2, htons((uint16_t)port));
    return true;
}

static bool same_end(struct sockaddr_storage *a, struct sockaddr_storage *b)
{
    return ibx_address_same((struct sockaddr *)a, (struct sockaddr *)b) &&
           *ibx_address_port(a) == *ibx_address_port(b);
}

/* Looks for the socket that has our peer's address as its own, and ours as its peer's. An entry
 * without an inode is a connection that no process has accepted, and shows user 0. */
static int owner_in(const char *table, struct sockaddr_storage *ours,
                    struct sockaddr_storage *theirs, uid_t *uid)
{
    char line[512];
    FILE *file = fopen(table, "re");
    int rc = file ? -ENOENT : -errno;
    while (rc && file && fgets(line, sizeof(line), file)) {
        char local[48], remote[48];
        struct sockaddr_storage from, to;
        unsigned user;
        unsigned long inode;
        if (sscanf(line, " %*u: %47s %47s %*x %*s %*s %*s %u %*u %lu", local, remote, &user,
                   &inode) == 4 &&
            inode && address_of_text(local, &from) && address_of_text(remote, &to) &&
            same_end(&from, theirs) && same_end(&to, ours)) {
            *uid = user;
            rc = 0;
        }
    }
    if (file)
        fclose(file);
    return rc;
}

static void diag_end(struct sockaddr_storage *address, __be32 host[4], __be16 *port)
{
    *port = *ibx_address_port(address);
    if (address->ss_family == AF_INET)
        host[0] = ((const struct sockaddr_in *)address)->sin_addr.s_addr;
    else
        memcpy(host, &((const struct sockaddr_in6 *)address)->sin6_addr, 16);
}

struct socket_facts {
    uid_t uid;
    uint64_t inode;
};

/* Asks the kernel by sock_diag(7) for the socket with these addresses. For a table of /proc the
 * kernel goes through all of its hash buckets, 8 ms with 24 GiB of memory. -ENOENT: there is none,
 * or this kernel has no such answers. */
static int peer_by_diag(struct sockaddr_storage *ours, struct sockaddr_storage *theirs,
                        struct socket_facts *facts)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 is;
    } request = {.head = {.nlmsg_len = sizeof(request),
                          .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                          .nlmsg_flags = NLM_F_REQUEST},
                 .is = {.sdiag_family = (uint8_t)ours->ss_family,
                        .sdiag_protocol = IPPROTO_TCP,
                        .idiag_states = UINT32_MAX,
                        .id.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}};
    struct {
        struct nlmsghdr head;
        struct inet_diag_msg is;
        uint8_t more[1024];
    } answer = {.head.nlmsg_len = 0};
    diag_end(theirs, request.is.id.idiag_src, &request.is.id.idiag_sport);
    diag_end(ours, request.is.id.idiag_dst, &request.is.id.idiag_dport);
    struct sockaddr_nl from = {.nl_pid = UINT32_MAX};
    socklen_t length = sizeof(from);
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (fd < 0)
        return -ENOENT;
    ssize_t n = send(fd, &request, sizeof(request), 0);
    if (n > 0)
        n = recvfrom(fd, &answer, sizeof(answer), 0, (struct sockaddr *)&from, &length);
    close(fd);
    /* If there is no such connection, the kernel answers with the socket that listens at that
     * port. */
    if (n < (ssize_t)(sizeof(answer.head) + sizeof(answer.is)) || from.nl_pid ||
        answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY || !answer.is.idiag_inode ||
        answer.is.id.idiag_dport != request.is.id.idiag_dport ||
        answer.is.id.idiag_sport != request.is.id.idiag_sport)
        return -ENOENT;
    *facts = (struct socket_facts){answer.is.idiag_uid, answer.is.idiag_inode};
    return 0;
}

int ibx_handshake_peer_user(int fd, uid_t *uid)
{
    struct ucred credentials;
    socklen_t length = sizeof(credentials);
    struct sockaddr_storage ours, theirs;
    if (is_unix(fd)) {
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length))
            return -errno;
        *uid = credentials.uid;
        return 0;
    }
    if (!ibx_address_of_socket(fd, false, &ours) || !ibx_address_of_socket(fd, true, &theirs))
        return -ENOENT;
    struct socket_facts facts;
    int rc = ours.ss_family == theirs.ss_family ? peer_by_diag(&ours, &theirs, &facts) : -ENOENT;
    if (!rc)
        *uid = facts.uid;
    rc = rc ? owner_in("/proc/net/tcp", &ours, &theirs, uid) : 0;
    return rc ? owner_in("/proc/net/tcp6", &ours, &theirs, uid) : 0;
}

/* -------------------------------------------------------------- nobody in between */

/* The inode number of the server's socket of this connection, as the server sees it itself or as
 * the client's kernel tells it. 0: unknown. */
static uint64_t server_end(int fd, enum ibx_role role)
{
    struct sockaddr_storage ours, theirs;
    struct socket_facts facts;
    struct stat status;
    if (role == IBX_ROLE_SERVER)
        return fstat(fd, &status) ? 0 : status.st_ino;
    bool found = !is_unix(fd) && ibx_address_of_socket(fd, false, &ours) &&
                 ibx_address_of_socket(fd, true, &theirs) && ours.ss_family == theirs.ss_family &&
                 !peer_by_diag(&ours, &theirs, &facts);
    return found ? facts.inode : 0;
}

bool ibx_handshake_end_mark(int fd, enum ibx_role role, const uint8_t client_nonce[NONCE_BYTES],
                            const uint8_t server_nonce[NONCE_BYTES], uint8_t mark[IBX_HASH_BYTES])
{
    uint8_t number[8];
    const uint64_t inode = server_end(fd, role);
    struct ibx_writer w = ibx_writer_of(number, sizeof(number));
    ibx_put_u64(&w, inode);
    struct ibx_piece pieces[4] = {{"end ", 4},
                                  {number, sizeof(number)},
                                  {client_nonce, NONCE_BYTES},
                                  {server_nonce, NONCE_BYTES}};
    ibx_hash(pieces, 4, mark);
    return inode;
}
