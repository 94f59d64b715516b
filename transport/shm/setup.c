/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Setting a connection up: the unix socket, proofs, the shared segment. Any process of the host
 * could connect, so both ends prove that they belong here before the segment is sent. One packet
 * each:
 *
 *   client                                  server
 *   HELLO version, proof          ------>
 *                                 <------   WELCOME version, proof, geometry, nonce; the segment
 *   READY nonce                   ------>
 *
 * A nonce is 16 random bytes and their address in the sender's memory: who reads them there with
 * process_vm_readv has the right process. An address of 0 forbids all direct copies.
 */
#include "transport/shm/shm.h"

#include "common/log.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define NAME_PREFIX   "ibx-"
#define NAME_HEX      32u
#define NAME_BYTES    (sizeof(NAME_PREFIX) - 1 + NAME_HEX)
#define UNPROVEN      8u  /* connections that have not proven yet that they belong here */
#define BACKLOG       128 /* for many unauthenticated ones */
#define PACKET_BYTES  128u
#define MESSAGE_LIMIT (256u << 20)

/* ------------------------------------------------------------------ packets */

int ibx_shm_packet_send(int socket, const void *data, size_t length, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)(uintptr_t)data, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    ssize_t n;
    do
        n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

/* Keeps one descriptor and closes the rest. */
static int take_descriptor(struct msghdr *message)
{
    int kept = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (kept < 0)
                kept = fd;
            else
                close(fd);
        }
    }
    return kept;
}

ssize_t ibx_shm_packet_receive(int socket, void *data, size_t size, int *fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    struct iovec iov = {data, size};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t n;
    do
        n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    *fd = n < 0 ? -1 : take_descriptor(&message);
    return n < 0 ? -errno : n;
}

/* Waits for one packet; -EPROTO at the end of the stream. */
static ssize_t packet_await(struct shm *shm, void *data, size_t size, int *fd, uint64_t deadline)
{
    for (;;) {
        ssize_t n = ibx_shm_packet_receive(shm->control, data, size, fd);
        if (n == 0)
            return -EPROTO;
        if (n != -EAGAIN)
            return n;
        int rc = ibx_link_wait(shm->link, shm->control, POLLIN, deadline);
        if (rc)
            return rc;
    }
}

/* ------------------------------------------------------------------ the name */

static socklen_t address_of(const struct shm *shm, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strlen(shm->path);
    memcpy(address->sun_path + shm->abstract, shm->path, n);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + 1);
}

static int name_make(char name[NAME_BYTES + 1], struct ibx_error *err)
{
    uint8_t random[NAME_HEX / 2];
    int rc = ibx_random(random, sizeof(random), err);
    if (rc)
        return rc;
    strcpy(name, NAME_PREFIX);
    for (size_t i = 0; i < sizeof(random); i++)
        snprintf(name + sizeof(NAME_PREFIX) - 1 + 2 * i, 3, "%02x", random[i]);
    return 0;
}

/* Whether the peer's name is one of name_make()'s: then no path with it leads to another socket. */
static bool name_valid(const char *name)
{
    size_t prefix = sizeof(NAME_PREFIX) - 1;
    return strlen(name) == NAME_BYTES && !memcmp(name, NAME_PREFIX, prefix) &&
           strspn(name + prefix, "0123456789abcdef") == NAME_HEX;
}

/* Puts directory and name together, into shm->path. */
static int path_make(struct shm *shm, const char *directory, const char *name,
                     struct ibx_error *err)
{
    const size_t room = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    shm->abstract = !directory[0];
    int n =
        snprintf(shm->path, sizeof(shm->path), "%s%s%s", directory, shm->abstract ? "" : "/", name);
    if (n < 0 || (size_t)n >= room) {
        shm->path[0] = '\0';
        return ibx_error_set(err, -ENAMETOOLONG, "shm_dir %.200s is too long: at most %zu bytes",
                             directory, room - NAME_BYTES - 2);
    }
    return 0;
}

int ibx_shm_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct shm *shm = endpoint;
    const char *directory = ibx_link_options(shm->link)->shm_dir;
    char name[NAME_BYTES + 1];
    struct sockaddr_un address;
    int rc = name_make(name, err);
    if (!rc)
        rc = path_make(shm, directory, name, err);
    if (rc)
        return rc;
    shm->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t length = address_of(shm, &address);
    if (shm->listener < 0 || bind(shm->listener, (struct sockaddr *)&address, length)) {
        rc = ibx_error_set(err, -errno, "cannot make a socket in shm_dir %s: %s",
                           shm->abstract ? "\"\"" : directory, strerror(errno));
        shm->path[0] = '\0';
        return rc;
    }
    /* The client may be another user; the proof decides. */
    if (!shm->abstract && chmod(shm->path, 0666))
        return ibx_error_set(err, -errno, "cannot open %s to others: %s", shm->path,
                             strerror(errno));
    if (listen(shm->listener, BACKLOG))
        return ibx_error_set(err, -errno, "cannot listen on a unix socket: %s", strerror(errno));
    ibx_state_move(&shm->state, SHM_LISTENING);
    ibx_put_u16(offer, IBX_SHM_VERSION);
    ibx_put_string(offer, name);
    ibx_put_string(offer, directory);
    return 0;
}

/* Why the client cannot reach the server's socket, and what to do. */
static int unreachable(const struct shm *shm, int code, struct ibx_error *err)
{
    if (shm->abstract && code == -ECONNREFUSED)
        return ibx_error_set(err, code,
                             "the server is on this host but in another network namespace: give "
                             "both containers one directory and name it with shm_dir");
    if (!shm->abstract && code == -ENOENT)
        return ibx_error_set(err, code,
                             "%s is not there: the server's shm_dir has to be mounted here too, "
                             "and shm_dir on this side has to name it",
                             shm->path);
    return ibx_error_set(err, code, "cannot reach the server's socket %s%s: %s",
                         shm->abstract ? "@" : "", shm->path, strerror(-code));
}

static void put_hello(struct shm *shm, struct ibx_writer *w, const char *label)
{
    uint8_t proof[IBX_PROOF_BYTES];
    ibx_link_proof(shm->link, label, proof);
    ibx_put_u16(w, IBX_SHM_VERSION);
    ibx_put_bytes(w, proof, sizeof(proof));
}

/* What put_hello() wrote, for the same label. */
static bool hello_valid(struct shm *shm, struct ibx_reader *r, const char *label)
{
    uint8_t proof[IBX_PROOF_BYTES];
    ibx_link_proof(shm->link, label, proof);
    uint16_t version = ibx_get_u16(r);
    const uint8_t *theirs = ibx_get_bytes(r, sizeof(proof));
    return version == IBX_SHM_VERSION && theirs && ibx_hash_equal(theirs, proof);
}

int ibx_shm_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err)
{
    (void)answer; /* the client answers over the unix socket */
    struct shm *shm = endpoint;
    const char *own = ibx_link_options(shm->link)->shm_dir;
    char name[NAME_BYTES + 1], directory[256];
    unsigned version = ibx_get_u16(offer);
    ibx_get_string(offer, name, sizeof(name));
    ibx_get_string(offer, directory, sizeof(directory));
    if (offer->failed || !name_valid(name))
        return ibx_error_set(err, -EPROTO, "the server's shm offer is malformed");
    if (version != IBX_SHM_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT, "the server has version %u of shm, this is %u",
                             version, IBX_SHM_VERSION);
    ibx_text_sanitize(directory);
    int rc = path_make(shm, directory[0] && own[0] ? own : directory, name, err);
    if (rc)
        return rc;
    struct sockaddr_un address;
    socklen_t length = address_of(shm, &address);
    shm->control = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (shm->control < 0 || connect(shm->control, (struct sockaddr *)&address, length))
        return unreachable(shm, -errno, err);
    uint8_t packet[PACKET_BYTES];
    struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
    put_hello(shm, &w, "shm client");
    rc = ibx_shm_packet_send(shm->control, packet, w.length, -1);
    if (!rc)
        ibx_state_move(&shm->state, SHM_JOINING);
    return rc ? ibx_error_set(err, rc, "cannot send to the server's socket: %s", strerror(-rc)) : 0;
}

/* -------------------------------------------------------- the server's choice */

/* Connections that have not proven yet that they belong here; the oldest is dropped first. */
struct unproven {
    int epoll;
    int fds[UNPROVEN];
    unsigned next;
};

static void unproven_drop(struct unproven *list, unsigned i)
{
    if (list->fds[i] >= 0)
        close(list->fds[i]);
    list->fds[i] = -1;
}

static void unproven_accept(struct unproven *list, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return;
    unsigned i = list->next++ % UNPROVEN;
    unproven_drop(list, i);
    list->fds[i] = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (epoll_ctl(list->epoll, EPOLL_CTL_ADD, fd, &event))
        unproven_drop(list, i);
}

/* Whether the connection is our client; if not it is closed. */
static bool unproven_check(struct shm *shm, struct unproven *list, unsigned i)
{
    uint8_t packet[PACKET_BYTES];
    int fd;
    ssize_t n = ibx_shm_packet_receive(list->fds[i], packet, sizeof(packet), &fd);
    if (fd >= 0)
        close(fd);
    if (n == -EAGAIN)
        return false;
    struct ibx_reader r = ibx_reader_of(packet, n > 0 ? (size_t)n : 0);
    if (hello_valid(shm, &r, "shm client"))
        return true;
    struct ucred who = {0};
    socklen_t length = sizeof(who);
    getsockopt(list->fds[i], SOL_SOCKET, SO_PEERCRED, &who, &length);
    ibx_log(IBX_LOG_WARN,
            "process %d of user %u connected to the shm socket without the right proof", who.pid,
            who.uid);
    unproven_drop(list, i);
    return false;
}

static int await_client(struct shm *shm, struct unproven *list, uint64_t deadline)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UNPROVEN};
    if (epoll_ctl(list->epoll, EPOLL_CTL_ADD, shm->listener, &event))
        return -errno;
    for (;;) {
        int rc = ibx_link_wait(shm->link, list->epoll, POLLIN, deadline);
        if (rc)
            return rc;
        if (epoll_wait(list->epoll, &event, 1, 0) != 1)
            continue;
        unsigned i = event.data.u32;
        if (i == UNPROVEN) {
            unproven_accept(list, shm->listener);
        } else if (list->fds[i] >= 0 && unproven_check(shm, list, i)) {
            shm->control = list->fds[i];
            list->fds[i] = -1;
            return 0;
        }
    }
}

static int accept_client(struct shm *shm, uint64_t deadline)
{
    struct unproven list = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
    memset(list.fds, -1, sizeof(list.fds));
    if (list.epoll < 0)
        return -errno;
    int rc = await_client(shm, &list, deadline);
    for (unsigned i = 0; i < UNPROVEN; i++)
        unproven_drop(&list, i);
    close(list.epoll);
    return rc;
}

/* ---------------------------------------------------------------- the segment */

static size_t page_round(size_t n)
{
    return (n + 4095) & ~(size_t)4095;
}

static struct shm_geometry geometry_of(uint32_t slots, uint32_t message)
{
    struct shm_geometry g = {.slots = slots, .message = message};
    g.stride = (message + 127) & ~127u;
    g.commands = 64;
    while (g.commands < slots + 2 * IBX_SHM_PIECES)
        g.commands *= 2;
    g.regions_at =
        page_round(sizeof(struct shm_control) + (size_t)g.commands * sizeof(struct shm_command));
    g.messages_at =
        page_round(g.regions_at + (size_t)IBX_SHM_REGIONS * sizeof(struct shm_published));
    g.bounce_at = page_round(g.messages_at + (size_t)slots * g.stride);
    g.half = page_round(g.bounce_at + (size_t)IBX_SHM_PIECES * IBX_SHM_PIECE_ROOM);
    return g;
}

/* Both sides' buffers in the segment, and a private inbox. */
size_t ibx_shm_message_memory(const struct ibx_options *options)
{
    struct shm_geometry g = geometry_of(options->slots, (uint32_t)options->message);
    return 3 * (size_t)g.slots * g.stride;
}

static int segment_map(struct shm *shm, int fd)
{
    void *address = mmap(NULL, 2 * shm->geometry.half, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return -errno;
    madvise(address, 2 * shm->geometry.half, MADV_DONTDUMP);
    shm->segment = address;
    return 0;
}

static void put_nonce(struct shm *shm, struct ibx_writer *w)
{
    bool direct = ibx_link_options(shm->link)->shm_direct;
    ibx_put_u64(w, direct ? (uintptr_t)shm->nonce : 0);
    ibx_put_bytes(w, shm->nonce, IBX_SHM_NONCE);
}

static void get_nonce(struct shm *shm, struct ibx_reader *r)
{
    shm->peer_nonce_address = ibx_get_u64(r);
    const uint8_t *nonce = ibx_get_bytes(r, sizeof(shm->peer_nonce));
    if (nonce)
        memcpy(shm->peer_nonce, nonce, sizeof(shm->peer_nonce));
}

static int welcome(struct shm *shm, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(shm->link);
    if (options->message > MESSAGE_LIMIT || options->slots > UINT16_MAX)
        return ibx_error_set(err, -EINVAL, "shm takes at most %u messages of %u bytes", UINT16_MAX,
                             MESSAGE_LIMIT);
    shm->geometry = geometry_of(options->slots, (uint32_t)options->message);
    int fd = ibx_shm_memfd("ibx-segment", 2 * shm->geometry.half);
    int rc = fd < 0 ? fd : segment_map(shm, fd);
    if (!rc) {
        uint8_t packet[PACKET_BYTES];
        struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
        put_hello(shm, &w, "shm server");
        ibx_put_u32(&w, shm->geometry.slots);
        ibx_put_u32(&w, shm->geometry.message);
        put_nonce(shm, &w);
        rc = ibx_shm_packet_send(shm->control, packet, w.length, fd);
    }
    if (fd >= 0)
        close(fd);
    return rc ? ibx_error_set(err, rc, "cannot share %zu bytes of memory: %s",
                              2 * shm->geometry.half, strerror(-rc))
              : 0;
}

static int serve_client(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    int rc = accept_client(shm, deadline);
    if (rc)
        return ibx_error_set(err, rc, "the client did not connect to the shm socket: %s",
                             strerror(-rc));
    rc = welcome(shm, err);
    if (rc)
        return rc;
    uint8_t packet[PACKET_BYTES];
    int fd;
    ssize_t n = packet_await(shm, packet, sizeof(packet), &fd, deadline);
    if (fd >= 0)
        close(fd);
    struct ibx_reader r = ibx_reader_of(packet, n > 0 ? (size_t)n : 0);
    get_nonce(shm, &r);
    if (n < 0 || r.failed)
        return ibx_error_set(err, n < 0 ? (int)n : -EPROTO,
                             "the client did not take the shared memory");
    return 0;
}

/* ----------------------------------------------------------------- the client */

/* Maps the server's segment if it is sealed and has the size that both agreed on, which is computed
 * here. */
static int segment_accept(struct shm *shm, int fd, uint32_t slots, uint32_t message)
{
    const struct ibx_options *agreed = ibx_link_options(shm->link);
    struct stat status;
    if (slots != agreed->slots || message != agreed->message || message > MESSAGE_LIMIT || fd < 0)
        return -EPROTO;
    shm->geometry = geometry_of(slots, message);
    if (!ibx_shm_memfd_safe(fd) || fstat(fd, &status) ||
        (uint64_t)status.st_size != 2 * shm->geometry.half)
        return -EPROTO;
    return segment_map(shm, fd);
}

static int join_server(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    uint8_t packet[PACKET_BYTES];
    int fd;
    ssize_t n = packet_await(shm, packet, sizeof(packet), &fd, deadline);
    if (n < 0)
        return ibx_error_set(err, (int)n, "no welcome at the server's shm socket: %s",
                             strerror((int)-n));
    struct ibx_reader r = ibx_reader_of(packet, (size_t)n);
    int rc = hello_valid(shm, &r, "shm server") ? 0 : -EACCES;
    uint32_t slots = ibx_get_u32(&r), message = ibx_get_u32(&r);
    get_nonce(shm, &r);
    if (!rc)
        rc = r.failed ? -EPROTO : segment_accept(shm, fd, slots, message);
    if (fd >= 0)
        close(fd);
    if (!rc) {
        struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
        put_nonce(shm, &w);
        rc = ibx_shm_packet_send(shm->control, packet, w.length, -1);
    }
    if (rc == -EACCES)
        return ibx_error_set(err, rc, "another process than the server answers at the shm socket");
    return rc ? ibx_error_set(err, rc, "the server's shared memory is refused: %s", strerror(-rc))
              : 0;
}

/* ------------------------------------------------------------------------ both */

static void listener_close(struct shm *shm)
{
    if (shm->listener < 0)
        return;
    close(shm->listener);
    shm->listener = -1;
    if (!shm->abstract && shm->path[0])
        unlink(shm->path);
}

int ibx_shm_setup(struct shm *shm, uint64_t deadline_ns, struct ibx_error *err)
{
    int rc = ibx_shm_nonce_make(shm, err);
    if (rc)
        return rc;
    if (shm->role == IBX_ROLE_SERVER)
        rc = serve_client(shm, deadline_ns, err);
    else
        rc = join_server(shm, deadline_ns, err);
    if (!rc)
        listener_close(shm);
    return rc;
}

void ibx_shm_setup_undo(struct shm *shm)
{
    listener_close(shm);
    if (shm->control >= 0) {
        ibx_link_unwatch(shm->link, shm->control);
        close(shm->control);
    }
    ibx_shm_nonce_free(shm);
    if (shm->segment)
        munmap(shm->segment, 2 * shm->geometry.half);
}
