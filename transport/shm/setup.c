/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Setting a connection up: the unix socket, proofs, the shared segment. Any process of the host
 * could connect, so both ends prove that they belong here, and that nobody stands between them,
 * before the segment is sent. One packet each:
 *
 *   client                              server
 *                             <------   HELLO identity, proof
 *   ANSWER proof              ------>
 *                             <------   WELCOME geometry, nonce; the segment
 *   READY nonce               ------>
 *
 * identity.c explains identities and proofs. No descriptor is taken from a process before its
 * proof: closing one can take as long as that process likes, if it is of a file system of its own.
 *
 * A nonce is 16 random bytes and their address in the sender's memory: who reads them there with
 * process_vm_readv has the right process. An address of 0 forbids all direct copies.
 */
#include "transport/shm/shm.h"

#include "common/descriptor.h"
#include "common/log.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNPROVEN      8u /* connections that have not proven yet that they belong here */
#define PACKET_BYTES  128u
#define MESSAGE_LIMIT (256u << 20)

/* ------------------------------------------------------------------ packets */

int ibx_shm_packet_send(int socket, const void *data, size_t length, int fd)
{
    union ibx_descriptor_room room;
    struct iovec iov = {(void *)(uintptr_t)data, length};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ibx_descriptor_add(&message, &room, fd);
    ssize_t n;
    do
        n = ibx_descriptor_send(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT, true);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

static ssize_t receive(int socket, struct msghdr *message, int flags)
{
    ssize_t n;
    do
        n = recvmsg(socket, message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
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
    ssize_t n = receive(socket, &message, 0);
    *fd = n < 0 ? -1 : ibx_descriptor_take(&message);
    if (n >= 0 && *fd < 0 && message.msg_flags & MSG_CTRUNC)
        *fd = -EMFILE;
    if (!n && *fd >= 0) { /* callers take an empty packet for the end of the socket */
        close(*fd);
        *fd = -1;
    }
    return n;
}

/* The next packet without its descriptors. */
static ssize_t packet_look(int socket, void *data, size_t size, int flags)
{
    struct iovec iov = {data, size};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    return receive(socket, &message, flags);
}

/* Waits for a packet. -EPROTO at the end of the stream. */
static int packet_await(struct shm *shm, uint64_t deadline)
{
    char byte;
    for (;;) {
        ssize_t n = packet_look(shm->control, &byte, 1, MSG_PEEK);
        if (n != -EAGAIN)
            return n == 0 ? -EPROTO : n < 0 ? (int)n : 0;
        int rc = ibx_link_wait(shm->link, shm->control, POLLIN, deadline);
        if (rc)
            return rc;
    }
}

/* --------------------------------------------------------------- offer and join */

int ibx_shm_offer(void *endpoint, struct ibx_writer *offer, struct ibx_error *err)
{
    struct shm *shm = endpoint;
    const char *directory = ibx_link_options(shm->link)->shm_dir;
    int rc = ibx_shm_socket_listen(&shm->place, directory, &shm->listener, err);
    if (rc)
        return rc;
    ibx_state_move(&shm->state, SHM_LISTENING);
    ibx_put_u16(offer, IBX_SHM_VERSION);
    ibx_shm_place_put(&shm->place, directory, offer);
    return 0;
}

/* Connects, unless the socket's queue is full, perhaps of strangers: then find_server() waits
 * there. */
int ibx_shm_join(void *endpoint, struct ibx_reader *offer, struct ibx_writer *answer,
                 struct ibx_error *err)
{
    (void)answer; /* the client answers over the unix socket */
    struct shm *shm = endpoint;
    const char *own = ibx_link_options(shm->link)->shm_dir;
    unsigned version = ibx_get_u16(offer);
    if (!offer->failed && version != IBX_SHM_VERSION)
        return ibx_error_set(err, -EPROTONOSUPPORT, "the server has version %u of shm, this is %u",
                             version, IBX_SHM_VERSION);
    if (ibx_shm_place_get(&shm->place, shm->directory, offer))
        return ibx_error_set(err, -EPROTO, "the server's shm offer is malformed");
    if (shm->directory[0] && own[0])
        snprintf(shm->directory, sizeof(shm->directory), "%s", own);
    shm->control = ibx_shm_nonblocking_socket();
    if (shm->control < 0)
        return ibx_error_set(err, shm->control, "no socket: %s", strerror(-shm->control));
    int rc = ibx_shm_socket_connect(&shm->place, shm->directory, shm->control, NULL, 0, err);
    if (rc && rc != -EAGAIN)
        return rc;
    shm->connected = !rc;
    return ibx_state_move(&shm->state, SHM_JOINING);
}

/* -------------------------------------------------------- the server's choice */

/* Connections that have not proven yet that they belong here. */
struct unproven {
    int epoll;
    int fds[UNPROVEN];
    uid_t users[UNPROVEN];
    unsigned numbers[UNPROVEN]; /* in the order in which they came */
    unsigned came;
    bool told;      /* the log tells of one stranger: they cannot fill it */
    bool unwatched; /* the kernel had no memory to watch one of them: they are looked at in turn */
};

static void unproven_drop(struct unproven *list, unsigned i)
{
    if (list->fds[i] >= 0)
        close(list->fds[i]);
    list->fds[i] = -1;
}

static unsigned unproven_count(const struct unproven *list, uid_t user)
{
    unsigned n = 0;
    for (unsigned i = 0; i < UNPROVEN; i++)
        n += list->users[i] == user;
    return n;
}

/* A free place, or else that of the oldest connection of the user who has the most: so another user
 * who comes without end does not take the place of our client, which may need a moment. */
static unsigned unproven_place(const struct unproven *list)
{
    unsigned place = 0, most = 0;
    for (unsigned i = 0; i < UNPROVEN; i++) {
        const unsigned n = unproven_count(list, list->users[i]);
        if (list->fds[i] < 0)
            return i;
        if (n > most || (n == most && list->numbers[i] < list->numbers[place]))
            place = i;
        most = n > most ? n : most;
    }
    return place;
}

/* Accepts a connection and sends it HELLO. -EMFILE and others: there is no descriptor for it
 * now. */
static int unproven_accept(struct shm *shm, struct unproven *list)
{
    uint8_t packet[PACKET_BYTES];
    struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
    int fd = accept4(shm->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return ibx_accept_shortage(errno) ? -errno : 0;
    const unsigned i = unproven_place(list);
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t length = sizeof(peer);
    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    unproven_drop(list, i);
    list->fds[i] = fd;
    list->users[i] = peer.uid;
    list->numbers[i] = list->came++;
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
    if (ibx_shm_hello_put(shm, fd, &w) || ibx_shm_packet_send(fd, packet, w.length, -1))
        unproven_drop(list, i);
    else if (epoll_ctl(list->epoll, EPOLL_CTL_ADD, fd, &event))
        list->unwatched = true; /* without a word it would take the server for a stranger */
    return 0;
}

/* Whether the connection is our client; if not it is closed. */
static bool unproven_check(struct shm *shm, struct unproven *list, unsigned i)
{
    uint8_t packet[PACKET_BYTES];
    struct ibx_error why = {0};
    ssize_t n = packet_look(list->fds[i], packet, sizeof(packet), 0);
    if (n == -EAGAIN)
        return false;
    struct ibx_reader r = ibx_reader_of(packet, n > 0 ? (size_t)n : 0);
    if (!ibx_shm_answer_check(shm, list->fds[i], &r))
        return true;
    ibx_shm_hello_error(list->fds[i], -EACCES, &why);
    if (!list->told)
        ibx_log(IBX_LOG_WARN, "%s", why.message);
    list->told = true;
    unproven_drop(list, i);
    return false;
}

/* Whether connection `i` is our client. Then it is no longer in the list. */
static bool unproven_take(struct shm *shm, struct unproven *list, unsigned i)
{
    if (list->fds[i] < 0 || !unproven_check(shm, list, i))
        return false;
    shm->control = list->fds[i];
    list->fds[i] = -1;
    return true;
}

static bool unproven_take_any(struct shm *shm, struct unproven *list)
{
    for (unsigned i = 0; i < UNPROVEN; i++) {
        if (unproven_take(shm, list, i))
            return true;
    }
    return false;
}

static int await_client(struct shm *shm, struct unproven *list, uint64_t deadline,
                        struct ibx_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = UNPROVEN};
    if (epoll_ctl(list->epoll, EPOLL_CTL_ADD, shm->listener, &event))
        return ibx_error_set(err, -errno, "cannot watch the shm socket: %s", strerror(errno));
    int shortage = 0;
    for (;;) {
        int rc = shortage || list->unwatched
                     ? ibx_link_pause(shm->link, deadline)
                     : ibx_link_wait(shm->link, list->epoll, POLLIN, deadline);
        /* Strangers may come without end. */
        if (!rc && ibx_now_ns() >= deadline)
            rc = shortage ? shortage : -ETIMEDOUT;
        if (rc)
            return ibx_error_set(err, rc, "the client did not connect to the shm socket: %s",
                                 strerror(-rc));
        shortage = 0;
        if (list->unwatched && unproven_take_any(shm, list))
            return 0;
        if (epoll_wait(list->epoll, &event, 1, 0) != 1)
            continue;
        unsigned i = event.data.u32;
        if (i == UNPROVEN)
            shortage = unproven_accept(shm, list);
        else if (unproven_take(shm, list, i))
            return 0;
    }
}

static int accept_client(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    struct unproven list = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
    memset(list.fds, -1, sizeof(list.fds));
    if (list.epoll < 0)
        return ibx_error_set(err, -errno, "cannot watch the shm socket: %s", strerror(errno));
    int rc = await_client(shm, &list, deadline, err);
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

/* Both sides' message buffers in the segment, and a private inbox. */
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
    ibx_put_u64(w, ibx_shm_direct_wanted(shm) ? (uintptr_t)shm->nonce : 0);
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
    uint8_t packet[PACKET_BYTES];
    struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
    int fd = ibx_shm_memfd("ibx-segment", 2 * shm->geometry.half);
    int rc = fd < 0 ? fd : segment_map(shm, fd);
    if (!rc) {
        ibx_put_u32(&w, shm->geometry.slots);
        ibx_put_u32(&w, shm->geometry.message);
        put_nonce(shm, &w);
        rc = ibx_shm_packet_send(shm->control, packet, w.length, fd);
    }
    if (fd >= 0)
        close(fd);
    return rc ? ibx_error_set(err, rc, "cannot share %zu bytes of memory: %s",
                              2 * shm->geometry.half,
                              rc == -ETOOMANYREFS ? IBX_DESCRIPTOR_TOO_MANY : strerror(-rc))
              : 0;
}

static int serve_client(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    uint8_t packet[PACKET_BYTES];
    int rc = accept_client(shm, deadline, err);
    if (!rc)
        rc = welcome(shm, err);
    if (rc)
        return rc;
    ssize_t n = packet_await(shm, deadline);
    if (n >= 0)
        n = packet_look(shm->control, packet, sizeof(packet), 0);
    struct ibx_reader r = ibx_reader_of(packet, n > 0 ? (size_t)n : 0);
    get_nonce(shm, &r);
    if (n < 0 || r.failed)
        return ibx_error_set(err, n < 0 ? (int)n : -EPROTO,
                             "the client did not take the shared memory");
    ibx_shm_pass_descriptors(shm->control, true); /* for its arenas */
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
        return fd == -EMFILE ? fd : -EPROTO;
    shm->geometry = geometry_of(slots, message);
    if (!ibx_shm_memfd_safe(fd) || fstat(fd, &status) ||
        (uint64_t)status.st_size != 2 * shm->geometry.half)
        return -EPROTO;
    return segment_map(shm, fd);
}

/* The error when no packet comes from the other end of the unix socket, because of `rc`. The
 * network cannot cause that: whoever is there wants it, or others have taken this client's place
 * there. */
static int no_word(const struct shm *shm, int rc, struct ibx_error *err)
{
    if (rc == -EPROTO || rc == -ECONNRESET || rc == -EPIPE || rc == -ETIMEDOUT)
        return ibx_shm_hello_error(shm->control, rc == -ETIMEDOUT ? rc : -ECONNRESET, err);
    return ibx_error_set(err, rc, "no answer at the server's shm socket: %s", strerror(-rc));
}

/* Connects, if ibx_shm_join() did not, and finds out who answers. */
static int find_server(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    uint8_t packet[PACKET_BYTES], answer[IBX_PROOF_BYTES];
    bool (*const ends)(void) = ibx_link_options(shm->link)->ends;
    int rc = shm->connected ? 0
                            : ibx_shm_socket_connect(&shm->place, shm->directory, shm->control,
                                                     ends, deadline, err);
    if (rc)
        return rc;
    ssize_t n = packet_await(shm, deadline);
    if (n >= 0)
        n = packet_look(shm->control, packet, sizeof(packet), 0);
    if (n < 0)
        return no_word(shm, (int)n, err);
    struct ibx_reader r = ibx_reader_of(packet, (size_t)n);
    rc = ibx_shm_hello_check(shm, shm->control, &r, answer);
    if (rc)
        return ibx_shm_hello_error(shm->control, rc, err);
    rc = ibx_shm_packet_send(shm->control, answer, sizeof(answer), -1);
    return rc ? no_word(shm, rc, err) : 0;
}

static int welcome_take(struct shm *shm, uint64_t deadline)
{
    uint8_t packet[PACKET_BYTES];
    int fd;
    ssize_t n = packet_await(shm, deadline);
    if (n >= 0)
        n = ibx_shm_packet_receive(shm->control, packet, sizeof(packet), &fd);
    if (n < 0)
        return (int)n;
    struct ibx_reader r = ibx_reader_of(packet, (size_t)n);
    uint32_t slots = ibx_get_u32(&r), message = ibx_get_u32(&r);
    get_nonce(shm, &r);
    int rc = r.failed ? -EPROTO : segment_accept(shm, fd, slots, message);
    if (fd >= 0)
        close(fd);
    if (rc)
        return rc;
    struct ibx_writer w = ibx_writer_of(packet, sizeof(packet));
    put_nonce(shm, &w);
    return ibx_shm_packet_send(shm->control, packet, w.length, -1);
}

static int join_server(struct shm *shm, uint64_t deadline, struct ibx_error *err)
{
    int rc = find_server(shm, deadline, err);
    if (rc)
        return rc;
    rc = welcome_take(shm, deadline);
    if (rc == -ECONNRESET) /* the answer was not read: our server would tell over the handshake why
                              it closes */
        return no_word(shm, rc, err);
    return rc ? ibx_error_set(err, rc, "the server's shared memory is refused: %s", strerror(-rc))
              : 0;
}

/* ------------------------------------------------------------------------ both */

static void listener_close(struct shm *shm)
{
    if (shm->listener >= 0)
        close(shm->listener);
    shm->listener = -1;
    ibx_shm_place_leave(&shm->place);
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

/* A client may keep the segment mapped, and what this side wrote there counts as this side's
 * memory. So the server empties it once nobody can want to read it: the client has closed its end,
 * and this is not a forked child's end. */
static void segment_empty(struct shm *shm)
{
    struct pollfd end = {.fd = shm->control};
    if (shm->segment && shm->role == IBX_ROLE_SERVER && shm->state.now == SHM_ABORTED &&
        poll(&end, 1, 0) == 1 && end.revents & POLLHUP)
        madvise(shm->segment, 2 * shm->geometry.half, MADV_REMOVE);
}

void ibx_shm_setup_undo(struct shm *shm)
{
    listener_close(shm);
    segment_empty(shm);
    if (shm->control >= 0) {
        ibx_link_unwatch(shm->link, shm->control);
        close(shm->control);
    }
    ibx_shm_nonce_free(shm);
    if (shm->segment)
        munmap(shm->segment, 2 * shm->geometry.half);
}
