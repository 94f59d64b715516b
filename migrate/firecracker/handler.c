/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The process that serves the faults. It may be killed at any instruction: what it would need then
 * is in the session's memory file, and the supervisor has copies of the descriptors. So a handler
 * always starts as if another one had served before it.
 */
#include "migrate/firecracker/image.h"
#include "migrate/firecracker/internal.h"

#include "common/clock.h"
#include "common/log.h"
#include "common/thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS         2u            /* one for faults, one for the plan and the background */
#define CHUNK_MAX       (256u * 1024) /* bytes of a request that is not urgent */
#define DEPTH           16u           /* such requests in flight */
#define PAUSE_MIN_MS    100u          /* between two tries to reach the server again */
#define PAUSE_MAX_MS    5000u
#define SMALL_PAGE      4096u
#define RECORD_AGAIN_MS 1000u /* before the file of --record is tried again */
#define NO_AROUND       1u
/* Fault-around, in bytes. Small, since pages around a touched one take memory that the microVM may
 * never need, and delay the next fault. */
#define AROUND  (16u * 1024)
#define SPIN_US 50u

struct handler {
    const struct ibx_firecracker_config *config;
    int supervisor, signals;
    struct kept kept;
    struct session session;
    struct ibx_firecracker_layout layout;
    struct ibx_fault_range ranges[IBX_FIRECRACKER_REGIONS_MAX];
    struct ibx_image *image;
    struct ibx_working_set replay;
    struct ibx_fault_reader readers[WORKERS];
    bool readers_gone; /* they were closed, and no others could be made */
    struct ibx_fault *engine;
    size_t buffer_bytes;
    uint64_t retry_ns;  /* when to connect again; 0: the readers work */
    uint64_t record_ns; /* the file of --record could not be written: not again before this time */
    uint64_t again_ns;  /* when the readers were last made anew; 0: never */
    unsigned pause_ms;
};

static void tell(const struct handler *h, enum ibx_firecracker_event_kind kind, const char *reason,
                 uint64_t pages)
{
    struct ibx_firecracker_event event = {
        .kind = kind,
        .layout = &h->layout,
        .reason = reason,
        .pid = (pid_t)h->session.header->pid,
        .handler = getpid(),
        .restarts = atomic_load(&h->session.header->restarts),
        .pages = pages,
        .ns = ibx_now_ns() - h->session.header->began_ns,
    };
    if (h->engine)
        ibx_fault_stats(h->engine, &event.stats);
    if (h->config->event)
        h->config->event(h->config->context, &event);
}

/* ------------------------------------------------------------ the descriptors */

int ibx_firecracker_hand_over(int handler, const struct kept *kept)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KEPT_COUNT * sizeof(int))];
    } control = {0};
    const unsigned count = kept->fds[KEPT_PEER] >= 0 ? KEPT_COUNT : KEPT_COUNT - 1;
    char kind = 'k';
    struct iovec part = {&kind, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(count * sizeof(int))};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                             .cmsg_type = SCM_RIGHTS,
                             .cmsg_len = CMSG_LEN(count * sizeof(int))};
    memcpy(CMSG_DATA(head), kept->fds, count * sizeof(int));
    return sendmsg(handler, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Receives the descriptors. -ECANCELED: the supervisor has ended, or needs no handler any more. */
static int taken_over(struct handler *h)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(KEPT_COUNT * sizeof(int))];
    } control;
    char kind;
    struct iovec part = {&kind, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct pollfd looks[] = {{.fd = h->supervisor, .events = POLLIN},
                             {.fd = h->signals, .events = POLLIN}};
    while (poll(looks, 2, -1) < 0 && errno == EINTR)
        ;
    if (looks[1].revents || recvmsg(h->supervisor, &message, MSG_CMSG_CLOEXEC) <= 0)
        return -ECANCELED;
    const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    const size_t count = head ? (head->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
    if (count < KEPT_COUNT - 1 || count > KEPT_COUNT)
        return -ECANCELED;
    memcpy(h->kept.fds, CMSG_DATA(head), count * sizeof(int));
    return 0;
}

/* ------------------------------------------------------------ what is served */

static bool is_remote(const struct ibx_firecracker_config *config)
{
    return strstr(config->from, "://") != NULL;
}

static int image_open(struct handler *h, struct ibx_error *err)
{
    const struct ibx_firecracker_config *c = h->config;
    int rc = is_remote(c) ? ibx_image_open_remote(c->from, c->options, WORKERS, &h->image, err)
                          : ibx_image_open_file(c->from, c->peer, &h->image, err);
    rc = rc || !c->replay ? rc : ibx_working_set_load(c->replay, &h->replay, err);
    const uint64_t pages = rc ? 0 : (h->image->bytes + SMALL_PAGE - 1) / SMALL_PAGE;
    if (!rc && c->replay && h->replay.image_pages != pages)
        rc = ibx_error_set(err, -EINVAL,
                           "--replay %s was recorded with a memory of %llu pages, and %s has %llu: "
                           "record one with this snapshot",
                           c->replay, (unsigned long long)h->replay.image_pages, c->from,
                           (unsigned long long)pages);
    return rc;
}

/* Checks that the memory file is the one that earlier handlers used: they may have placed pages of
 * it already. */
static int image_check(const struct handler *h, struct ibx_error *err)
{
    struct session_header *header = h->session.header;
    if (!atomic_load(&header->known)) {
        memcpy(header->image, h->image->identity, sizeof(header->image));
        atomic_store(&header->known, 1);
    }
    return memcmp(header->image, h->image->identity, sizeof(header->image))
               ? ibx_error_set(
                     err, -ESTALE,
                     "%s is another snapshot than the one that Firecracker was given, or its file "
                     "was changed: its pages do not match those already in the microVM",
                     h->config->from)
               : 0;
}

static int ranges_make(struct handler *h, struct ibx_error *err)
{
    const struct ibx_firecracker_layout *l = &h->layout;
    if (l->end > h->image->bytes)
        return ibx_error_set(err, -EINVAL,
                             "Firecracker's memory ends at byte %llu of its memory file, and %s "
                             "has %llu bytes: it is of another snapshot",
                             (unsigned long long)l->end, h->config->from,
                             (unsigned long long)h->image->bytes);
    for (unsigned i = 0; i < l->count; i++)
        h->ranges[i] = (struct ibx_fault_range){.start = l->regions[i].start,
                                                .length = l->regions[i].length,
                                                .page_size = l->page_size,
                                                .first_page = l->regions[i].offset / l->page_size,
                                                .reader_offset = l->regions[i].offset};
    return 0;
}

/* Converts the recorded pages to pages of this memory, which may be larger; each keeps its first
 * position. */
static int plan_make(const struct handler *h, struct ibx_fault_run **plan, size_t *count)
{
    const uint64_t each = h->layout.page_size / SMALL_PAGE;
    uint64_t last = UINT64_MAX;
    *plan = calloc(h->replay.count + 1, sizeof(**plan));
    *count = 0;
    for (size_t i = 0; *plan && i < h->replay.count; i++) {
        const uint64_t from = h->replay.runs[i].page / each;
        const uint64_t to = (h->replay.runs[i].page + h->replay.runs[i].pages - 1) / each + 1;
        if (to == from + 1 && from == last)
            continue;
        (*plan)[(*count)++] = (struct ibx_fault_run){from, to - from};
        last = to - 1;
    }
    return *plan ? 0 : -ENOMEM;
}

struct holes {
    struct handler *handler;
    uint64_t next; /* the first byte after the last data */
};

/* Marks the pages between the last part with data and this one as zero, in all regions. */
static int data_found(void *context, uint64_t offset, uint64_t length)
{
    struct holes *holes = context;
    const struct handler *h = holes->handler;
    const uint64_t size = h->layout.page_size;
    const uint64_t from = (holes->next + size - 1) / size, to = offset / size;
    holes->next = offset + length;
    for (unsigned i = 0; i < h->layout.count; i++) {
        const struct ibx_fault_range *r = &h->ranges[i];
        const uint64_t end = r->first_page + r->length / size;
        const uint64_t a = from > r->first_page ? from : r->first_page, b = to < end ? to : end;
        if (a < b)
            ibx_fault_mark_zero(h->engine, a, b - a);
    }
    return 0;
}

/* Marks all holes of the image as zero. Done again for another server, which may know more holes.
 */
static int holes_mark(struct handler *h, struct ibx_error *err)
{
    struct holes holes = {.handler = h};
    int rc = h->image->ops->data(h->image, data_found, &holes, err);
    if (!rc)
        data_found(&holes, h->image->bytes / h->layout.page_size * h->layout.page_size, 0);
    return rc;
}

static int engine_make(struct handler *h, struct ibx_error *err)
{
    const struct ibx_firecracker_config *c = h->config;
    struct ibx_fault_run *plan = NULL;
    size_t plan_count = 0;
    const bool record = c->record && !atomic_load(&h->session.header->recorded);
    if (plan_make(h, &plan, &plan_count))
        return ibx_error_set(err, -ENOMEM, "no memory for %zu runs of pages", h->replay.count);
    const struct ibx_fault_config config = {
        .uffd = h->kept.fds[KEPT_UFFD],
        .events = true,
        .ranges = h->ranges,
        .range_count = h->layout.count,
        .readers = h->readers,
        .worker_count = WORKERS,
        .fault_workers = 1,
        .no_background = !c->background,
        .max_bandwidth = c->max_bandwidth,
        .plan = plan,
        .plan_count = plan_count,
        .map_memory = h->session.map_memory,
        .chunk_max = CHUNK_MAX,
        .depth = h->layout.page_size > SMALL_PAGE ? 0 : DEPTH,
        .fault_around = record ? NO_AROUND : AROUND,
        .spin_us = ibx_thread_may_spin() ? SPIN_US : 0,
        .touched = record ? ibx_firecracker_touched : NULL,
        .touched_context = &h->session,
        .check = h->image->checker ? ibx_snapshot_checker_check : NULL,
        .check_context = h->image->checker,
    };
    if (h->image->checker)
        ibx_snapshot_checker_scale(h->image->checker, h->layout.page_size);
    h->buffer_bytes = ibx_fault_buffer_bytes(&config);
    int rc = h->image->ops->readers(h->image, WORKERS, h->buffer_bytes, h->readers, err);
    rc = rc ? rc : ibx_fault_create(&config, &h->engine, err);
    rc = rc ? rc : holes_mark(h, err);
    free(plan);
    return rc;
}

static int begin(struct handler *h, struct ibx_error *err)
{
    int rc = ibx_firecracker_session_map(h->kept.fds[KEPT_SESSION], true, &h->session, err);
    if (rc)
        return rc;
    rc = ibx_firecracker_layout_parse(h->session.header->message, h->session.header->length,
                                      &h->layout, err);
    rc = rc ? rc : image_check(h, err);
    rc = rc ? rc : ranges_make(h, err);
    rc = rc ? rc
            : ibx_firecracker_session_extend(h->kept.fds[KEPT_SESSION], &h->session, h->ranges,
                                             h->layout.count, err);
    rc = rc ? rc : engine_make(h, err);
    if (rc)
        return rc;
    ibx_fault_serve(h->engine);
    tell(h, IBX_FIRECRACKER_SERVING, NULL, h->layout.pages);
    return 0;
}

/* ------------------------------------------------------------ serving */

static int record_write(struct handler *h, struct ibx_error *err)
{
    struct ibx_working_set set;
    if (!h->config->record || !h->session.seen || atomic_load(&h->session.header->recorded))
        return 0;
    int rc =
        ibx_firecracker_working_set(&h->session, h->layout.page_size, h->image->bytes, &set, err);
    if (rc)
        return rc;
    rc = ibx_working_set_save(h->config->record, &set, err);
    if (!rc) {
        atomic_store(&h->session.header->recorded, 1);
        tell(h, IBX_FIRECRACKER_RECORDED, NULL, set.pages);
    }
    ibx_working_set_fini(&set);
    return rc;
}

/* Whether Firecracker has ended: by its pidfd if there is one, otherwise by the socket. */
static bool has_ended(const struct handler *h, short process, short socket)
{
    return h->kept.fds[KEPT_PEER] >= 0 ? process != 0 : (socket & (POLLHUP | POLLRDHUP)) != 0;
}

/* Discards what Firecracker sends, which should be nothing, so that poll(2) can wait. False: the
 * other end is closed. */
static bool socket_drain(const struct handler *h)
{
    char bytes[4096];
    ssize_t n;
    while ((n = recv(h->kept.fds[KEPT_SOCKET], bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

static void pause_grow(struct handler *h)
{
    h->pause_ms = h->pause_ms * 2 < PAUSE_MAX_MS ? h->pause_ms * 2 : PAUSE_MAX_MS;
}

/* To be called after the engine has stopped. -ESRCH: Firecracker has ended; 0: it will be tried
 * again; other errors are final. */
static int stopped(struct handler *h, struct ibx_error *err)
{
    int rc = ibx_fault_reason(h->engine, err);
    const bool full = rc == -ENOMEM || rc == -ENOSPC;
    const char *reason = rc == -EBADMSG || full ? "" : h->image->ops->reason(h->image);
    if (rc == -ESRCH || (!h->image->remote && rc && !full))
        return rc != -ESRCH && *reason ? ibx_error_set(err, rc, "%s", reason) : rc;
    tell(h, full ? IBX_FIRECRACKER_FULL : IBX_FIRECRACKER_LOST, *reason ? reason : err->message, 0);
    /* If readers fail at once every time, as where memory is full, there is a pause before each
     * try. */
    const bool lived = !h->again_ns || ibx_now_ns() - h->again_ns > PAUSE_MAX_MS * IBX_NS_PER_MS;
    if (lived)
        h->pause_ms = PAUSE_MIN_MS;
    h->retry_ns = lived ? ibx_now_ns() : ibx_deadline_in_ms(h->pause_ms);
    if (!lived)
        pause_grow(h);
    return 0;
}

/* An engine that has all pages asks its readers for none: their server may be gone. */
static bool has_all(const struct handler *h)
{
    struct ibx_fault_stats stats;
    ibx_fault_stats(h->engine, &stats);
    return stats.present == stats.pages;
}

static void retry(struct handler *h)
{
    struct ibx_error err = {0};
    int rc = 0;
    if (h->readers_gone || !has_all(h)) {
        rc = h->image->ops->readers(h->image, WORKERS, h->buffer_bytes, h->readers, &err);
        h->readers_gone = rc != 0;
    }
    rc = rc ? rc : holes_mark(h, &err);
    rc = rc ? rc : ibx_fault_resume(h->engine, h->readers, &err);
    if (!rc) {
        h->retry_ns = 0;
        h->again_ns = ibx_now_ns();
        tell(h, IBX_FIRECRACKER_SERVING, NULL, h->layout.pages);
        return;
    }
    tell(h, IBX_FIRECRACKER_LOST, err.message, 0);
    h->retry_ns = ibx_deadline_in_ms(h->pause_ms);
    pause_grow(h);
}

/* When the file of --record has to be written; 0: only at the end, or it is written already. */
static uint64_t record_due_ns(const struct handler *h)
{
    const struct session_header *header = h->session.header;
    if (!h->config->record || !h->config->record_s || atomic_load(&header->recorded))
        return 0;
    const uint64_t due = header->began_ns + h->config->record_s * 1000ull * IBX_NS_PER_MS;
    return due > h->record_ns ? due : h->record_ns;
}

static int wait_ms(const struct handler *h)
{
    int ms = h->retry_ns ? ibx_ms_until(h->retry_ns) : -1;
    const uint64_t due = record_due_ns(h);
    if (due) {
        const int left = ibx_ms_until(due);
        ms = ms < 0 || left < ms ? left : ms;
    }
    return ms;
}

/* Writes the file of --record if it is time. After a failure it is tried again, and at the end. */
static void record_if_due(struct handler *h)
{
    const uint64_t due = record_due_ns(h);
    struct ibx_error err = {0};
    if (!due || ibx_now_ns() < due || !record_write(h, &err))
        return;
    if (!h->record_ns)
        ibx_log(IBX_LOG_ERROR, "%s; trying again", err.message);
    h->record_ns = ibx_deadline_in_ms(RECORD_AGAIN_MS);
}

/* Whether a signal has to be obeyed: only if the supervisor has announced it, or has ended. If
 * somebody else ended the handler, the microVM could wait for ever. */
static bool is_to_end(const struct handler *h)
{
    struct signalfd_siginfo info;
    char word;
    if (read(h->signals, &info, sizeof(info)) != sizeof(info))
        return false;
    if (recv(h->supervisor, &word, 1, MSG_DONTWAIT) >= 0)
        return true;
    ibx_log(IBX_LOG_WARN,
            "a signal of process %u does not end the handler of a microVM: end process %d",
            info.ssi_pid, (int)getppid());
    return false;
}

/* Serves until the end. HANDLER_DONE, HANDLER_TERMINATED, or a final error. */
static int serve(struct handler *h, struct ibx_error *err)
{
    short socket_events = POLLIN | POLLRDHUP;
    while (true) {
        struct pollfd looks[] = {{.fd = ibx_fault_event_fd(h->engine), .events = POLLIN},
                                 {.fd = h->kept.fds[KEPT_PEER], .events = POLLIN},
                                 {.fd = h->kept.fds[KEPT_SOCKET], .events = socket_events},
                                 {.fd = h->signals, .events = POLLIN}};
        uint64_t n;
        if (poll(looks, 4, wait_ms(h)) < 0 && errno != EINTR)
            return ibx_error_set(err, -errno, "poll: %s", strerror(errno));
        if (has_ended(h, looks[1].revents, looks[2].revents))
            return HANDLER_DONE;
        if (looks[3].revents && is_to_end(h))
            return HANDLER_TERMINATED;
        if (looks[2].revents && !socket_drain(h)) {
            /* The socket is closed, but Firecracker's process lives. */
            looks[2].fd = -1;
            socket_events = 0;
            close(h->kept.fds[KEPT_SOCKET]);
            h->kept.fds[KEPT_SOCKET] = -1;
        }
        if (looks[0].revents && read(looks[0].fd, &n, sizeof(n)) > 0 &&
            ibx_fault_state(h->engine) == IBX_FAULT_STOPPED) {
            int rc = stopped(h, err);
            if (rc)
                return rc == -ESRCH ? HANDLER_DONE : rc;
        }
        if (h->retry_ns && ibx_now_ns() >= h->retry_ns)
            retry(h);
        record_if_due(h);
    }
}

/* Ends the handler after it has served; returns its exit status, HANDLER_DONE and so on. */
static int end(struct handler *h, int how)
{
    struct ibx_error err = {0};
    char unrecorded[1 + IBX_ERROR_MAX] = {TOLD_UNRECORDED};
    const int rc = record_write(h, &err);
    tell(h, IBX_FIRECRACKER_ENDED, NULL, 0);
    ibx_fault_destroy(h->engine);
    if (!rc)
        return how;
    memcpy(unrecorded + 1, err.message, sizeof(err.message));
    send(h->supervisor, unrecorded, 1 + strlen(err.message), MSG_NOSIGNAL);
    return how == HANDLER_DONE ? HANDLER_REFUSED : how;
}

int ibx_firecracker_handler(const struct ibx_firecracker_config *config, int supervisor)
{
    static struct handler h; /* too large for the stack */
    struct ibx_error err = {0};
    char failed[1 + IBX_ERROR_MAX] = {TOLD_FAILED};
    const char ready = TOLD_READY;
    sigset_t signals;
    h = (struct handler){.config = config, .supervisor = supervisor, .kept = {{-1, -1, -1, -1}}};
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    h.signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    int rc = image_open(&h, &err);
    if (!rc && send(supervisor, &ready, 1, MSG_NOSIGNAL) < 0)
        return HANDLER_TERMINATED;
    if (!rc && taken_over(&h))
        return HANDLER_TERMINATED;
    rc = rc ? rc : begin(&h, &err);
    rc = rc ? rc : serve(&h, &err);
    if (rc >= 0)
        return end(&h, rc);
    memcpy(failed + 1, err.message, sizeof(err.message));
    send(supervisor, failed, 1 + strlen(err.message), MSG_NOSIGNAL);
    /* The server may serve the snapshot again later: another handler will try. */
    return is_remote(config) && (!h.image || rc == -ESTALE) ? HANDLER_AGAIN : HANDLER_REFUSED;
}
