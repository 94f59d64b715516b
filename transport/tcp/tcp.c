/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The provider's calls, memory regions, progress(). */
#include "transport/tcp/tcp.h"

#include "common/thread.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/*
 * Chosen by measuring over loopback between two cores, 16 MiB in GB/s (docs/experiments.md):
 *
 *   chunk   64 KiB 6.9, 128 KiB 7.2, 256 KiB 7.3, 512 KiB 7.4, 1 MiB 7.7, 2 MiB 7.4, 4 MiB 7.3
 *   lanes   one 8.3, two 8.2, four 8.1: one thread drives them all
 *   buffer  SO_SNDBUF of 256 KiB to 3 MiB: no better than the kernel's own choice
 *
 * vmsplice() would save the sender's copy (a quarter more), but a peer on this host would then hold
 * our pages, and one that acknowledges before it reads would see what they contain later.
 */
#define DEFAULT_DEPTH 16u
#define SMALL_DEPTH   512u /* of READs of 4 KiB: 2 MiB */
#define DEFAULT_CHUNK (1u << 20)
#define SHARED_CHUNK  (256u << 10) /* when bulk has no lane of its own, or several with threads */
#define RENDEZVOUS    (513u << 10) /* below it messages win: 256 KiB in 41 us against 55 us */
#define URGENT_POSTS  64u          /* what the core may have in flight beyond depth */

/* A bulk lane on which nothing is awaited is read QUIET_LOOKS times. If nothing comes, only every
 * QUIET_TURNS-th progress() reads it. */
#define QUIET_LOOKS 32u
#define QUIET_TURNS 16u

#define ALIVE_TURNS 64u /* progress() calls from one check of the peer to the next */

/* With fewer processors there are no threads: the polling threads of both ends keep those busy. */
#define THREADS_FROM 4u

#define REGIONS_MAX (1u << 20)
#define REGION_NONE UINT32_MAX

static const struct ibx_state tcp_states[] = {
    [TCP_LIVE] = {"live",
                  IBX_TO(TCP_DRAINING) | IBX_TO(TCP_BROKEN) | IBX_TO(TCP_FAILED) |
                      IBX_TO(TCP_ABORTED),
                  IBX_STATE_INITIAL},
    [TCP_DRAINING] = {"draining", IBX_TO(TCP_BROKEN) | IBX_TO(TCP_FAILED) | IBX_TO(TCP_ABORTED), 0},
    [TCP_BROKEN] = {"broken", IBX_TO(TCP_LOST) | IBX_TO(TCP_ABORTED), 0},
    [TCP_FAILED] = {"failed", IBX_TO(TCP_LOST) | IBX_TO(TCP_ABORTED), 0},
    [TCP_LOST] = {"lost", IBX_TO(TCP_ABORTED), 0},
    [TCP_ABORTED] = {"aborted", 0, IBX_STATE_FINAL}};
static const struct ibx_state_table tcp_table = IBX_STATE_TABLE("tcp connection", tcp_states);

static int probe(const struct ibx_options *options, char *description, size_t size,
                 struct ibx_error *err)
{
    (void)options;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ibx_error_set(err, -errno, "no TCP socket can be made: %s", strerror(errno));
    close(fd);
    snprintf(description, size, "TCP sockets, reach every host");
    return 0;
}

static int open_endpoint(struct ibx_link *link, void **endpoint, struct ibx_error *err)
{
    const struct ibx_options *options = ibx_link_options(link);
    struct tcp *tcp = calloc(1, sizeof(*tcp));
    if (!tcp)
        return ibx_error_set(err, -ENOMEM, "no memory for a tcp connection");
    ibx_state_begin(&tcp->state, &tcp_table, TCP_LIVE);
    tcp->link = link;
    tcp->listener = -1;
    tcp->threads_fd = -1;
    unsigned processors = ibx_thread_processors();
    tcp->threads_max = tcp->threads_all = processors < THREADS_FROM ? 0 : processors / 2;
    tcp->region_free = REGION_NONE;
    for (unsigned i = 0; i <= IBX_TCP_LANES_MAX; i++)
        tcp->lanes[i].fd = -1;
    tcp->mine = (struct ibx_tcp_terms){
        .slots = options->slots,
        .depth = (options->depth         ? options->depth
                  : options->small_reads ? SMALL_DEPTH
                                         : DEFAULT_DEPTH) +
                 URGENT_POSTS,
        .message = (uint32_t)options->message,
    };
    tcp->writable = -1;
    tcp->timer = -1;
    tcp->engine = !strcmp(options->tcp_engine, "uring")      ? TCP_ENGINE_URING
                  : !strcmp(options->tcp_engine, "uring-zc") ? TCP_ENGINE_URING_ZC
                                                             : TCP_ENGINE_SYSCALLS;
    *endpoint = tcp;
    return 0;
}

static void query(void *endpoint, struct ibx_caps *caps, char *description, size_t size)
{
    static const char *const engines[] = {"system calls", "io_uring", "io_uring with SEND_ZC"};
    struct tcp *tcp = endpoint;
    const struct ibx_options *options = ibx_link_options(tcp->link);
    bool threads = tcp->lanes[0].tls || (tcp->threads_max && !tcp_uring(tcp));
    bool shared = !tcp->lane_count || (threads && tcp->lane_count > 1);
    tcp->chunk = options->chunk ? options->chunk : shared ? SHARED_CHUNK : DEFAULT_CHUNK;
    *caps = (struct ibx_caps){
        .message_max = tcp->message_max,
        .chunk = tcp->chunk,
        .depth = tcp->mine.depth - URGENT_POSTS,
        .lanes = tcp->lane_count,
        .rendezvous = RENDEZVOUS,
        .register_free = true,
        .shares = true,
        .peer_drives = true,
    };
    const char *where = tcp->same_host ? " on this host" : "";
    const char *tls = tcp->lanes[0].tls ? ibx_tls_description(tcp->lanes[0].tls) : "";
    char segments[32] = "";
    if (tcp->segment_limit)
        snprintf(segments, sizeof(segments), ", segments of %u bytes", tcp->segment_limit);
    if (tcp->lane_count)
        snprintf(description, size, "tcp%s, 1 + %u sockets, %s%s%s%s", where, tcp->lane_count, tls,
                 *tls ? ", " : "", engines[tcp->engine], segments);
    else
        snprintf(description, size, "tcp%s, one socket for all%s%s%s", where, *tls ? ", " : "", tls,
                 segments);
}

int ibx_tcp_fail(struct tcp *tcp, int status, const char *format, ...)
{
    if (!tcp->status) {
        tcp->status = status;
        if (ibx_tcp_runs(tcp))
            ibx_state_move(&tcp->state, TCP_FAILED);
        if (!tcp->reason[0]) {
            va_list args;
            va_start(args, format);
            vsnprintf(tcp->reason, sizeof(tcp->reason), format, args);
            va_end(args);
        }
    }
    return tcp->status;
}

bool ibx_tcp_move(struct tcp *tcp, struct ibx_state_machine *machine, unsigned to)
{
    if (!ibx_state_move(machine, to))
        return true;
    ibx_tcp_fail(tcp, -EINVAL, "internal error: a %s made a move that its state forbids",
                 machine->table->machine);
    return false;
}

/* ---------------------------------------------------------------------- memory */

static int regions_grow(struct tcp *tcp)
{
    uint32_t count = tcp->region_count ? tcp->region_count * 2 : 16;
    if (count > REGIONS_MAX)
        return -ENOSPC;
    struct tcp_region *regions = realloc(tcp->regions, count * sizeof(*regions));
    if (!regions)
        return -ENOMEM;
    tcp->regions = regions;
    for (uint32_t i = count; i-- > tcp->region_count; tcp->region_free = i)
        regions[i] = (struct tcp_region){.next_free = tcp->region_free};
    tcp->region_count = count;
    return 0;
}

static int random_take(struct tcp *tcp, uint32_t *out)
{
    if (!tcp->random_left) {
        ssize_t n = getrandom(tcp->random, sizeof(tcp->random), 0);
        if (n < (ssize_t)sizeof(tcp->random[0]))
            return n < 0 ? -errno : -EIO;
        tcp->random_left = (unsigned)((size_t)n / sizeof(tcp->random[0]));
    }
    *out = tcp->random[--tcp->random_left];
    return 0;
}

/* 32 random bits, 12 that count the uses of the table entry, 20 for its index. */
static int key_make(struct tcp *tcp, uint32_t index, uint64_t *key)
{
    uint32_t bits = 0;
    int rc = random_take(tcp, &bits);
    if (rc)
        return rc;
    uint64_t generation = (tcp->regions[index].key >> 20) + 1;
    *key = (uint64_t)bits << 32 | (generation & 0xfff) << 20 | index;
    return 0;
}

static int region_publish(struct tcp *tcp, struct ibx_mr *mr, struct ibx_error *err)
{
    int rc = tcp->region_free == REGION_NONE ? regions_grow(tcp) : 0;
    uint32_t index = tcp->region_free;
    uint64_t key = 0;
    if (!rc)
        rc = key_make(tcp, index, &key);
    if (rc)
        return ibx_error_set(err, rc, "region %u cannot be published: %s", tcp->region_count,
                             strerror(-rc));
    struct tcp_region *region = &tcp->regions[index];
    tcp->region_free = region->next_free;
    region->mr = mr;
    region->key = key;
    mr->keys[0] = key;
    return 0;
}

static int mr_register(void *endpoint, struct ibx_mr *mr, struct ibx_error *err)
{
    struct tcp *tcp = endpoint;
    if (mr->span.kind != IBX_MEMORY_HOST)
        return ibx_error_set(err, -EOPNOTSUPP, "tcp cannot reach GPU memory; stage it in the host");
    if (mr->allocated) {
        void *address =
            mmap(NULL, mr->span.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (address == MAP_FAILED)
            return ibx_error_set(err, -errno, "%zu bytes cannot be allocated: %s", mr->span.length,
                                 strerror(errno));
        mr->span.address = address;
    }
    /* Memory without remote access needs no key. */
    int rc = mr->access ? region_publish(tcp, mr, err) : 0;
    if (rc && mr->allocated)
        munmap(mr->span.address, mr->span.length);
    return rc;
}

static void mr_deregister(void *endpoint, struct ibx_mr *mr)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    if (mr->access) {
        uint32_t index = (uint32_t)(mr->keys[0] & (REGIONS_MAX - 1));
        tcp->regions[index].mr = NULL;
        tcp->regions[index].next_free = tcp->region_free;
        tcp->region_free = index;
        ibx_tcp_jobs_forget(tcp, mr);
    }
    ibx_tcp_leave(tcp);
    if (mr->allocated)
        munmap(mr->span.address, mr->span.length);
}

uint32_t ibx_tcp_region_find(const struct tcp *tcp, const struct ibx_tcp_frame *frame,
                             unsigned access, struct ibx_mr **out)
{
    uint64_t index = frame->key & (REGIONS_MAX - 1);
    struct ibx_mr *mr = index < tcp->region_count ? tcp->regions[index].mr : NULL;
    if (!mr || tcp->regions[index].key != frame->key || !(mr->access & access))
        return IBX_TCP_STATUS_ACCESS;
    uint64_t start = (uintptr_t)mr->span.address;
    if (frame->address < start || frame->address - start > mr->span.length ||
        frame->length > mr->span.length - (frame->address - start))
        return IBX_TCP_STATUS_RANGE;
    *out = mr;
    return 0;
}

/* --------------------------------------------------------------------- progress */

static void turn(struct tcp *tcp)
{
    struct tcp_lane *first = &tcp->lanes[0];
    bool drains = tcp->state.now == TCP_DRAINING;
    if (!drains)
        ibx_tcp_lane_push(first);
    ibx_tcp_lane_pull(first);
    if (tcp_uring(tcp))
        ibx_tcp_uring_progress(tcp);
    for (unsigned i = 1; i <= tcp->lane_count && !tcp_uring(tcp) && !drains; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        ibx_tcp_lane_push(lane);
        if (lane->awaited || lane->body_left || lane->quiet < QUIET_LOOKS ||
            tcp->turns % QUIET_TURNS == 0 || ibx_tcp_lane_has_input(lane))
            ibx_tcp_lane_pull(lane);
    }
    if (drains)
        ibx_tcp_drain_check(tcp);
    if (tcp->state.now == TCP_DRAINING)
        return;
    ibx_tcp_credits_return(tcp);
    if (!first->blocked)
        ibx_tcp_lane_push(first);
}

/* After abort: reports everything as soon as nothing touches its memory any more, which without
 * io_uring is at once. */
static void flush_if_idle(struct tcp *tcp)
{
    if (tcp_uring(tcp) && !ibx_tcp_uring_stop(tcp))
        return;
    ibx_tcp_sends_flush(tcp, -ECONNRESET);
    ibx_tcp_posts_flush(tcp, -ECONNRESET);
}

/* Whether the connection is over and the core does not know yet. */
static bool loss_due(const struct tcp *tcp)
{
    return tcp->state.now == TCP_BROKEN || tcp->state.now == TCP_FAILED;
}

static void report_lost(struct tcp *tcp)
{
    if (tcp->state.now == TCP_BROKEN)
        ibx_tcp_lane_read_out(&tcp->lanes[0]);
    ibx_tcp_move(tcp, &tcp->state, TCP_LOST);
    tcp->reports++;
    tcp->link->up->lost(tcp->link, tcp->status, tcp->reason);
}

static int make_progress(struct tcp *tcp)
{
    tcp->reports = 0;
    tcp->turns++;
    tcp->sleeps = false;
    tcp->moved = false;
    ibx_tcp_threads_awake(tcp);
    ibx_tcp_sends_report(tcp);
    if (tcp->state.now == TCP_ABORTED) {
        flush_if_idle(tcp);
        return tcp->reports;
    }
    if (!tcp->status)
        turn(tcp);
    /* Behind the turn: a process that was stopped asks for nothing that has come meanwhile. */
    if (!tcp->status && tcp->turns % ALIVE_TURNS == 0)
        ibx_tcp_peer_check(tcp);
    if (loss_due(tcp))
        report_lost(tcp);
    return tcp->reports + tcp->moved;
}

static int progress(void *endpoint)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    const int made = make_progress(tcp);
    ibx_tcp_leave(tcp);
    return made;
}

/* A socket that took no more bytes wakes the sleeper when it takes some again. */
static void watch_output(struct tcp *tcp, struct tcp_lane *lane)
{
    if (lane->blocked == lane->watched_output)
        return;
    struct epoll_event event = {.events = EPOLLOUT};
    int call = lane->blocked ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    if (epoll_ctl(tcp->writable, call, lane->fd, &event))
        ibx_tcp_fail(tcp, -errno, "a socket cannot be watched: %s", strerror(errno));
    else
        lane->watched_output = lane->blocked;
}

/* What a lane's thread waits for must not wake the sleeper. */
static void watch_input(struct tcp *tcp, struct tcp_lane *lane)
{
    bool wanted = !ibx_tcp_thread_receives(lane);
    if (lane->watched == wanted || !lane->thread)
        return;
    int rc = 0;
    if (wanted)
        rc = ibx_link_watch(tcp->link, lane->fd);
    else
        ibx_link_unwatch(tcp->link, lane->fd);
    if (rc)
        ibx_tcp_fail(tcp, rc, "a socket cannot be watched: %s", strerror(-rc));
    lane->watched = wanted && !rc;
}

/* Whether the lane has something to do now; if not, its events will wake the sleeper. */
static bool lane_arm(struct tcp *tcp, struct tcp_lane *lane)
{
    lane->quiet = 0;
    if (lane->thread ? ibx_tcp_thread_has_news(lane)
                     : ibx_tcp_lane_has_output(lane) && !lane->blocked && !lane->uring_out)
        return true;
    if (ibx_tcp_lane_has_input(lane))
        return true;
    watch_output(tcp, lane);
    watch_input(tcp, lane);
    return false;
}

static int prepare_to_sleep(struct tcp *tcp)
{
    ibx_tcp_threads_arm(tcp);
    if (tcp->state.now != TCP_DRAINING)
        ibx_tcp_credits_return(tcp);
    ibx_tcp_peer_check(tcp);
    if (tcp->sends_gone || loss_due(tcp) || (tcp_uring(tcp) && ibx_tcp_uring_has_refused(tcp)))
        return 1;
    if (tcp->state.now == TCP_DRAINING) /* lane 0 and the timer wake it */
        return ibx_tcp_lane_has_input(&tcp->lanes[0]);
    for (unsigned i = 0; i <= tcp->lane_count && !tcp->status; i++) {
        if (lane_arm(tcp, &tcp->lanes[i]))
            return 1;
    }
    return loss_due(tcp);
}

static int arm(void *endpoint)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    const int busy = prepare_to_sleep(tcp);
    tcp->sleeps = !busy;
    ibx_tcp_leave(tcp);
    return busy;
}

/* --------------------------------------------------------------------- what is sent */

static int rdma(void *endpoint, struct ibx_chunk *chunk)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    const int rc = ibx_tcp_rdma(tcp, chunk);
    ibx_tcp_leave(tcp);
    return rc;
}

static int send_message(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                        uint64_t cookie, unsigned flags)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    const int rc = ibx_tcp_send(tcp, iov, iovcnt, length, cookie, flags);
    ibx_tcp_leave(tcp);
    return rc;
}

static void release(void *endpoint, uint64_t slot)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    ibx_tcp_release(tcp, slot);
    ibx_tcp_leave(tcp);
}

static void pad(void *endpoint, size_t bytes)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_enter(tcp);
    ibx_tcp_pad(tcp, bytes);
    ibx_tcp_leave(tcp);
}

/* -------------------------------------------------------------------------- end */

static void abort_endpoint(void *endpoint)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_signs_end(tcp);
    tcp->reports = 0;
    ibx_tcp_move(tcp, &tcp->state, TCP_ABORTED);
    ibx_tcp_fail(tcp, -ECONNABORTED, "closed by this side");
    ibx_tcp_threads_stop(tcp);
    for (unsigned i = 0; i <= tcp->lane_count; i++) {
        if (tcp->lanes[i].tls)
            ibx_tls_finish(tcp->lanes[i].tls);
        if (tcp->stuck)
            ibx_tcp_reset(&tcp->lanes[i]);
        shutdown(tcp->lanes[i].fd, SHUT_RDWR);
    }
    flush_if_idle(tcp);
}

static void close_endpoint(void *endpoint)
{
    struct tcp *tcp = endpoint;
    ibx_tcp_signs_end(tcp);
    if (tcp_uring(tcp))
        ibx_tcp_uring_close(tcp);
    ibx_tcp_threads_end(tcp);
    if (tcp->listener >= 0)
        close(tcp->listener);
    for (unsigned i = 0; i <= IBX_TCP_LANES_MAX; i++) {
        struct tcp_lane *lane = &tcp->lanes[i];
        free(lane->stage);
        if (lane->watched)
            ibx_link_unwatch(tcp->link, lane->fd);
        if (i && lane->fd >= 0) { /* the core owns the first one */
            ibx_tls_destroy(lane->tls);
            close(lane->fd);
        }
    }
    ibx_tcp_peer_unwatch(tcp);
    if (tcp->writable >= 0) {
        ibx_link_unwatch(tcp->link, tcp->writable);
        close(tcp->writable);
    }
    ibx_tcp_messages_fini(tcp);
    ibx_tcp_work_fini(tcp);
    free(tcp->regions);
    free(tcp);
}

const struct ibx_provider ibx_provider_tcp = {
    .name = "tcp",
    .takes_socket = true,
    .probe = probe,
    .message_memory = ibx_tcp_message_memory,
    .open = open_endpoint,
    .offer = ibx_tcp_offer,
    .join = ibx_tcp_join,
    .finish = ibx_tcp_finish,
    .query = query,
    .receive_ahead = ibx_tcp_receive_ahead,
    .pad = pad,
    .mr_register = mr_register,
    .mr_deregister = mr_deregister,
    .rdma = rdma,
    .send = send_message,
    .release = release,
    .progress = progress,
    .arm = arm,
    .abort = abort_endpoint,
    .close = close_endpoint,
};
