/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Whether a session survives its connection. The client asks with its first message (KEEP), and the
 * server answers for how long it keeps the session (KEPT); from these messages on they are counted.
 * BYE says that the session itself has ended, and whether the client's process ends, too. link.c
 * does the rest.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"
#include "common/descriptor.h"
#include "common/log.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BYE_MS     50u
#define KEEP_BYTES 13u
#define KEPT_BYTES 18u

static atomic_bool process_ends; /* this process, a client's, is ending */

/* The pid namespace in which process numbers are valid, made unique by the boot id of the host: the
 * initial namespace has the same number on all hosts, and several hosts may have one address (NAT).
 * 0: unknown. */
static uint64_t process_namespace(void)
{
    struct stat st;
    char boot[64];
    if (stat("/proc/thread-self/ns/pid", &st))
        return 0;
    uint64_t all = (uint64_t)st.st_ino;
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? 0 : read(fd, boot, sizeof(boot));
    for (ssize_t i = 0; i < n; i++)
        all = (all ^ (uint8_t)boot[i]) * 0x100000001b3u; /* FNV-1a */
    if (fd >= 0)
        close(fd);
    return all ? all : 1;
}

/* If both ends are on one host, the end of the peer's process is noticed at once. */
static void watch_peer(struct ibx_session *s, uint32_t pid, uint64_t its_namespace)
{
    s->link.process = pid;
    s->link.process_namespace = its_namespace;
    if (s->path.remote || !its_namespace || its_namespace != process_namespace())
        return;
    s->link.peer_fd = ibx_descriptor_apart((int)syscall(SYS_pidfd_open, (pid_t)pid, 0));
}

/* Messages are counted once the link is CONNECTED, which is set after this one. */
static int begin(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    uint8_t id[IBX_SECRET_BYTES];
    link->secret = ibx_secret_allocate(IBX_SECRET_BYTES);
    if (!link->secret || ibx_kept_init(&link->kept, s->options.slots))
        return -ENOMEM;
    ibx_conn_secret(s->conn, "session id", id);
    memcpy(link->id, id, sizeof(link->id));
    ibx_conn_secret(s->conn, "session resumption", link->secret);
    return 0;
}

static int begin_server(struct ibx_session *s)
{
    struct session_link *link = &s->link;
    unsigned user = 0;
    link->offer_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = link->offer_fd < 0 ? -errno : begin(s);
    if (rc)
        return rc;
    memcpy(link->name, s->path.name, sizeof(link->name));
    link->has_user = !s->path.remote && !ibx_conn_user(s->conn, &user);
    link->user = user;
    return ibx_session_registry_add(s) ? ibx_state_move(&link->state, LINK_CONNECTED) : -ENOSPC;
}

/* Server: whether this is the first message. */
static bool is_first(const struct ibx_session *s)
{
    return s->link.state.now == LINK_SINGLE && !s->link.taken[ORDER_STREAM] && !s->stream.count &&
           !s->control.count;
}

/* Server: handles KEEP. */
static int keep(struct ibx_session *s, struct ibx_reader *r)
{
    struct session_link *link = &s->link;
    uint8_t bytes[KEPT_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    const uint32_t pid = ibx_get_u32(r);
    const uint64_t its_namespace = ibx_get_u64(r);
    if (r->failed || !s->server || !is_first(s))
        return -EPROTO;
    bool wanted = link->seconds && link->registry;
    int rc = wanted ? begin_server(s) : 0;
    if (rc)
        ibx_log(IBX_LOG_WARN, "the session with %s ends with its connection: %s", s->path.peer,
                strerror(-rc));
    bool kept = link->state.now == LINK_CONNECTED;
    if (kept)
        watch_peer(s, pid, its_namespace);
    ibx_put_u8(&w, MESSAGE_KEPT);
    ibx_put_u32(&w, kept ? link->seconds : 0);
    ibx_put_u32(&w, (uint32_t)getpid());
    ibx_put_u64(&w, process_namespace());
    ibx_put_u8(&w, 1); /* the server understands a BYE with a second byte */
    struct iovec iov = {bytes, w.length};
    rc = ibx_send(s->conn, &iov, 1, 0, 0);
    return rc == -ENOTCONN ? 0 : rc;
}

/* Client: handles KEPT. */
static int kept(struct ibx_session *s, struct ibx_reader *r)
{
    struct session_link *link = &s->link;
    const uint32_t seconds = ibx_get_u32(r), pid = ibx_get_u32(r);
    const uint64_t its_namespace = ibx_get_u64(r);
    if (r->failed || s->server || link->agreed || link->state.now != LINK_SINGLE || !link->seconds)
        return -EPROTO;
    link->agreed = seconds < link->seconds ? seconds : link->seconds;
    link->seconds = 0; /* the answer has arrived */
    link->tells_end = ibx_reader_left(r) && ibx_get_u8(r);
    if (!link->agreed)
        return 0;
    int rc = begin(s);
    if (!rc)
        rc = ibx_state_move(&link->state, LINK_CONNECTED);
    if (!rc)
        watch_peer(s, pid, its_namespace);
    return rc;
}

int ibx_link_message(struct ibx_session *s, const struct ibx_event *event)
{
    struct ibx_reader r = ibx_reader_of(event->data, event->length);
    int rc = -EPROTO;
    const uint8_t type = ibx_get_u8(&r);
    if (type == MESSAGE_KEEP)
        rc = keep(s, &r);
    if (type == MESSAGE_KEPT)
        rc = kept(s, &r);
    if (type == MESSAGE_SESSIONS && event->length == 1 && s->server && is_first(s))
        rc = ibx_report_send(s);
    if (type == MESSAGE_BYE && event->length <= 2 && s->link.state.now == LINK_CONNECTED) {
        s->link.peer = event->length == 2 && ibx_get_u8(&r) ? LEAVE_PROCESS : LEAVE_SESSION;
        rc = 0;
    }
    ibx_message_release(s->conn, event);
    return rc ? ibx_session_fail(s, rc,
                                 "%s sent message %u out of place, or there is no memory: %s",
                                 s->path.peer, type, strerror(-rc))
              : 0;
}

/* An error shows in the session's first read, as it would a moment later. */
void ibx_link_agree(struct ibx_session *s)
{
    uint8_t bytes[KEEP_BYTES];
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    const uint64_t deadline = ibx_deadline_in_ms(s->options.timeout_ms);
    if (!s->link.seconds)
        return;
    ibx_put_u8(&w, MESSAGE_KEEP);
    ibx_put_u32(&w, (uint32_t)getpid());
    ibx_put_u64(&w, process_namespace());
    struct iovec iov = {bytes, w.length};
    int rc = ibx_send(s->conn, &iov, 1, 0, 0);
    while (!rc && s->link.seconds) { /* until the answer arrives */
        rc = ibx_session_poll(s);
        if (rc > 0)
            rc = 0;
        else if (!rc && ibx_now_ns() > deadline)
            rc = -ETIMEDOUT;
        else if (!rc)
            ibx_wait(s->conn, ibx_ms_until(deadline));
    }
    if (rc && ibx_session_live(s))
        ibx_session_fail(s, rc, "%s does not answer: %s", s->path.peer, strerror(-rc));
}

void ibx_session_process_ends(void)
{
    atomic_store(&process_ends, true);
}

bool ibx_session_shows_process(const struct ibx_session *s)
{
    return ibx_session_live(s) && ibx_link_survives(s) && s->link.peer_fd < 0 &&
           !atomic_load(&process_ends);
}

/* Ends when the message has left: a device drops what it has when the connection ends. */
void ibx_link_say_bye(struct ibx_session *s)
{
    uint8_t bytes[] = {MESSAGE_BYE, atomic_load(&process_ends)};
    struct iovec iov = {bytes, s->link.tells_end ? 2 : 1};
    struct ibx_event event;
    const uint64_t deadline = ibx_deadline_in_ms(BYE_MS);
    if (s->link.state.now != LINK_CONNECTED || s->ended || s->link.peer)
        return;
    int rc = -EAGAIN;
    while (ibx_now_ns() < deadline) {
        if (rc == -EAGAIN)
            rc = ibx_send(s->conn, &iov, 1, 0, IBX_SIGNALED);
        const int n = rc && rc != -EAGAIN ? rc : ibx_poll(s->conn, &event, 1);
        if (n < 0 || (n && (event.type == IBX_EVENT_SEND || event.type == IBX_EVENT_CLOSED)))
            break;
        if (n && event.type == IBX_EVENT_MESSAGE)
            ibx_message_release(s->conn, &event);
        if (n && (event.type == IBX_EVENT_READ || event.type == IBX_EVENT_WRITE))
            s->ops.posted--;
        if (!n)
            ibx_wait(s->conn, 1);
    }
}
