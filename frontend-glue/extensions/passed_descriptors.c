/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "frontend-glue/extensions/passed_descriptors.h"

#include "common/descriptor.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define KEY      16u
#define NAME     16u /* room for a name that the kernel gives a socket; it has six bytes */
#define ASK_S    1   /* how long a process that connects may be silent */
#define ANSWER_S 10
#define BACKLOG  64

/* The bytes of an ibx_cuda_handle. */
struct where {
    uint8_t key[KEY];
    pid_t process;
    socklen_t length; /* bytes of the name, which begins with a zero */
    char name[NAME];
};
_Static_assert(sizeof(struct where) <= IBX_SHARED_HANDLE, "it is all there is room for");

static struct offer {
    struct offer *next;
    uint8_t key[KEY];
    int fd;
} * offers; /* locked */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct where own = {.process = -1}; /* locked; without a key */

/* ------------------------------------------------------------------------ by a unix socket */

static void give_up_after(int socket, int seconds)
{
    const struct timeval most = {.tv_sec = seconds};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
}

static struct ucred peer_of(int socket)
{
    struct ucred peer = {.pid = -1, .uid = (uid_t)-1};
    socklen_t length = sizeof(peer);
    getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length);
    return peer;
}

static void send_descriptor(int socket, int fd)
{
    char byte = 0;
    struct iovec data = {&byte, sizeof(byte)};
    union ibx_descriptor_room room;
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
    ibx_descriptor_add(&message, &room, fd);
    ibx_descriptor_send(socket, &message, MSG_NOSIGNAL, false);
}

static int receive_descriptor(int socket)
{
    char byte;
    struct iovec data = {&byte, sizeof(byte)};
    union ibx_descriptor_room room;
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof(room)};
    const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno != ECONNRESET ? -errno : -ENOENT;
    const int fd = ibx_descriptor_take(&message); /* also with no bytes, which is no answer */
    if (fd >= 0 && n)
        return fd;
    if (fd >= 0)
        close(fd);
    /* The other end closes if there is no such offer. This process may have no more descriptors. */
    return n ? -EMFILE : -ENOENT;
}

/* ------------------------------------------------------------------------------- who offers */

/* Locked. */
static struct offer **find(const uint8_t *key)
{
    struct offer **at = &offers;
    while (*at && memcmp((*at)->key, key, KEY) != 0)
        at = &(*at)->next;
    return at;
}

static void answer(int peer)
{
    uint8_t key[KEY];
    give_up_after(peer, ASK_S);
    if (peer_of(peer).uid != geteuid() || recv(peer, key, KEY, 0) != (ssize_t)KEY)
        return;
    pthread_mutex_lock(&lock);
    const struct offer *offer = *find(key);
    if (offer)
        send_descriptor(peer, offer->fd);
    pthread_mutex_unlock(&lock);
}

static void *serve(void *socket)
{
    const int listener = (int)(intptr_t)socket;
    pthread_setname_np(pthread_self(), "ibx-passes");
    for (;;) {
        const int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (peer >= 0) {
            answer(peer);
            close(peer);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            poll(NULL, 0, 100); /* usually this process has no descriptor left */
        }
    }
    return NULL;
}

/* Locked. Starts the socket and its thread, which last as long as this process. */
static int begin(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(at);
    if (own.process == getpid())
        return 0;
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int rc = listener < 0 ? -errno : 0;
    if (!rc &&
        (bind(listener, (struct sockaddr *)&at, sizeof(at.sun_family)) ||
         getsockname(listener, (struct sockaddr *)&at, &length) || listen(listener, BACKLOG)))
        rc = -errno;
    own.length = length - (socklen_t)offsetof(struct sockaddr_un, sun_path);
    if (!rc)
        rc = own.length > NAME ? -ENAMETOOLONG
                               : ibx_thread_begin(NULL, serve, (void *)(intptr_t)listener);
    if (rc && listener >= 0)
        close(listener);
    if (rc)
        return rc;
    memcpy(own.name, at.sun_path, own.length);
    own.process = getpid();
    return 0;
}

/* Locked. */
static int enter(int fd, struct where *where)
{
    struct offer *made = malloc(sizeof(*made));
    int rc = made ? begin() : -ENOMEM;
    if (!rc && getrandom(made->key, KEY, 0) != (ssize_t)KEY)
        rc = -EIO;
    if (rc) {
        free(made);
        return rc;
    }
    made->fd = fd;
    made->next = offers;
    offers = made;
    *where = own;
    memcpy(where->key, made->key, KEY);
    return 0;
}

int ibx_passed_offer(int fd, struct ibx_cuda_handle *where)
{
    struct where its = {0};
    pthread_mutex_lock(&lock);
    const int rc = enter(fd, &its);
    pthread_mutex_unlock(&lock);
    if (rc)
        close(fd);
    *where = (struct ibx_cuda_handle){0};
    memcpy(where->bytes, &its, sizeof(its));
    return rc;
}

void ibx_passed_withdraw(const struct ibx_cuda_handle *where)
{
    struct where its;
    memcpy(&its, where->bytes, sizeof(its));
    pthread_mutex_lock(&lock);
    struct offer **at = find(its.key), *gone = *at;
    if (gone) {
        *at = gone->next;
        close(gone->fd);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------------ who fetches */

/* Another process, of any user, may have that socket name, and the process number, by now. */
static int connect_to(int socket, const struct where *where)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (where->length > NAME) /* a faulty process has written it */
        return -ENOENT;
    memcpy(at.sun_path, where->name, NAME);
    const socklen_t length = (socklen_t)offsetof(struct sockaddr_un, sun_path) + where->length;
    if (connect(socket, (struct sockaddr *)&at, length))
        return errno == ECONNREFUSED ? -ENOENT : -errno;
    const struct ucred peer = peer_of(socket);
    return peer.pid == where->process && peer.uid == geteuid() ? 0 : -ENOENT;
}

int ibx_passed_fetch(const struct ibx_cuda_handle *where)
{
    struct where its;
    memcpy(&its, where->bytes, sizeof(its));
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    give_up_after(fd, ANSWER_S);
    int rc = connect_to(fd, &its);
    if (!rc && send(fd, its.key, KEY, MSG_NOSIGNAL) < 0)
        rc = errno == EPIPE || errno == ECONNRESET ? -ENOENT : -errno;
    rc = rc ? rc : receive_descriptor(fd);
    close(fd);
    return rc;
}
