/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* One end of a connection, the record of its posts, and the patterns that it sends and receives. */
#include "tests/contract/harness.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EVENTS_MAX      16
#define POLLS_PER_SLEEP 200
#define SEND_COOKIE     0x5e4d000000000000ull

/* ------------------------------------------------------------------- patterns */

/* longer messages are rare, because each byte is computed twice */
#define LONG_MESSAGE ((size_t)64 * 1024)

/* Lengths: zero, one byte, short, any, and the longest. */
size_t sequence_length(uint64_t seed, uint64_t n, size_t message_max)
{
    uint64_t random = pattern_mix(seed ^ pattern_mix(n));
    const size_t most = n % 512 < 16 || message_max < LONG_MESSAGE ? message_max : LONG_MESSAGE;
    switch (n % 16) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 7:
    case 11:
        return random % (most + 1);
    case 15:
        return most;
    default:
        return random % (message_max < 256 ? message_max : 256);
    }
}

void *pages_map(size_t length)
{
    void *pages = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        FAIL("no %zu bytes: %s", length, strerror(errno));
    return pages;
}

void *pages_map_repeating(size_t length, size_t period)
{
    size_t whole = (length + 4095) & ~(size_t)4095;
    int fd = memfd_create("repeating", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)period))
        FAIL("no memfd of %zu bytes: %s", period, strerror(errno));
    char *pages = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        FAIL("no %zu bytes: %s", whole, strerror(errno));
    for (size_t at = 0; at < whole; at += period) {
        size_t n = whole - at < period ? whole - at : period;
        if (mmap(pages + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            FAIL("no %zu bytes: %s", n, strerror(errno));
    }
    close(fd);
    return pages;
}

void pages_unmap(void *pages, size_t length)
{
    munmap(pages, length);
}

/* ----------------------------------------------------------------------------- records of posts */

void end_init(struct end *end, struct ibx_conn *conn)
{
    *end = (struct end){.conn = conn, .caps = ibx_conn_caps(conn), .message = message_in_sequence};
}

void end_fini(struct end *end)
{
    free(end->posts);
}

static void book_completion(struct end *end, const struct ibx_event *event)
{
    CHECK(event->cookie < end->posted);
    CHECK(event->status <= 0);
    struct post *post = &end->posts[event->cookie];
    if (post->times++)
        FAIL("post %u completed twice", (unsigned)event->cookie);
    CHECK(post->kind == event->type);
    post->status = event->status;
    post->order = end->completed++;
    end->failed += event->status != 0;
}

static void book_end(struct end *end, const struct ibx_event *event)
{
    CHECK(event->status < 0);
    CHECK(ibx_conn_reason(end->conn)[0]);
    if (end->completed != end->posted)
        FAIL("the connection ended with %u of %u posts completed", end->completed, end->posted);
    end->closed = true;
    end->closed_status = event->status;
}

static void book_event(struct end *end, const struct ibx_event *event)
{
    if (end->closed)
        FAIL("event %d after the end", (int)event->type);
    switch (event->type) {
    case IBX_EVENT_READ:
    case IBX_EVENT_WRITE:
        book_completion(end, event);
        break;
    case IBX_EVENT_SEND:
        CHECK(event->cookie >= SEND_COOKIE && event->cookie < SEND_COOKIE + end->sent);
        CHECK(++end->signals <= end->signaled);
        break;
    case IBX_EVENT_MESSAGE:
        CHECK(event->length <= end->caps->message_max);
        end->message(end, event);
        break;
    case IBX_EVENT_CLOSED:
        book_end(end, event);
        break;
    }
}

int end_poll(struct end *end)
{
    struct ibx_event events[EVENTS_MAX];
    end->random = pattern_mix(end->random);
    int max = 1 + (int)(end->random % EVENTS_MAX);
    int n = ibx_poll(end->conn, events, max);
    if (end->closed) {
        CHECK(n == -ENOTCONN);
        return 0;
    }
    if (n < 0 || n > max)
        FAIL("ibx_poll returned %d: %s", n, ibx_conn_reason(end->conn));
    for (int i = 0; i < n; i++)
        book_event(end, &events[i]);
    return n;
}

uint64_t await_until(void)
{
    return ibx_deadline_in_ms(contract_patience_ms());
}

void end_turn(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
              int line)
{
    if (end->closed)
        contract_fail(file, line, "closed (%s) while waiting for: %s", ibx_conn_reason(end->conn),
                      awaited);
    for (int i = 0; i < POLLS_PER_SLEEP; i++) {
        if (end_poll(end))
            return;
    }
    end_sleep(end, deadline_ns, awaited, file, line);
}

void end_sleep(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
               int line)
{
    int rc = ibx_arm(end->conn);
    CHECK(rc == 0 || rc == 1);
    if (!rc) {
        struct pollfd wait = {.fd = ibx_fd(end->conn), .events = POLLIN};
        poll(&wait, 1, ibx_ms_until(deadline_ns));
    }
    if (ibx_now_ns() >= deadline_ns)
        contract_fail(file, line,
                      "waited in vain for: %s (%u of %u posts completed, %llu received)", awaited,
                      end->completed, end->posted, (unsigned long long)end->received);
}

void end_check_books(struct end *end)
{
    CHECK(end->completed == end->posted);
    for (unsigned i = 0; i < end->posted; i++)
        CHECK(end->posts[i].times == 1);
}

bool end_before(const struct end *end, unsigned one, unsigned other)
{
    const struct post *a = &end->posts[one], *b = &end->posts[other];
    return a->times && (!b->times || a->order < b->order);
}

/* ----------------------------------------------------------------------- posts */

static void reserve_post(struct end *end)
{
    if (end->posted < end->capacity)
        return;
    end->capacity = end->capacity ? 2 * end->capacity : 256;
    end->posts = realloc(end->posts, end->capacity * sizeof(*end->posts));
    if (!end->posts)
        FAIL("no memory for the books");
}

static int book_post(struct end *end, enum ibx_event_type kind, int rc)
{
    if (!rc)
        end->posts[end->posted++] = (struct post){.kind = kind};
    return rc;
}

int end_try_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                 uint64_t offset, size_t length, unsigned flags)
{
    reserve_post(end);
    return book_post(end, IBX_EVENT_READ,
                     ibx_read(end->conn, mr, local, remote, offset, length, end->posted, flags));
}

int end_try_write(struct end *end, struct ibx_mr *mr, const void *local,
                  const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags)
{
    reserve_post(end);
    return book_post(end, IBX_EVENT_WRITE,
                     ibx_write(end->conn, mr, local, remote, offset, length, end->posted, flags));
}

unsigned end_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                  uint64_t offset, size_t length, unsigned flags)
{
    int rc = end_try_read(end, mr, local, remote, offset, length, flags);
    if (rc)
        FAIL("ibx_read returned %d: %s", rc, ibx_conn_reason(end->conn));
    return end->posted - 1;
}

unsigned end_write(struct end *end, struct ibx_mr *mr, const void *local,
                   const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags)
{
    int rc = end_try_write(end, mr, local, remote, offset, length, flags);
    if (rc)
        FAIL("ibx_write returned %d: %s", rc, ibx_conn_reason(end->conn));
    return end->posted - 1;
}

struct ibx_mr *end_register(struct end *end, void *pages, size_t length, unsigned access)
{
    struct ibx_span span = ibx_span_host(pages, length);
    struct ibx_error err = {0};
    struct ibx_mr *mr = NULL;
    CHECK_OK(ibx_mr_register(end->conn, &span, access, &mr, &err), err);
    return mr;
}

/* -------------------------------------------------------------------- messages */

/* Fills in the next message of the sequence, in three pieces, some of which are empty. */
static void compose(struct end *end, struct iovec iov[3])
{
    static uint8_t bytes[1 << 20];
    CHECK(end->caps->message_max <= sizeof(bytes));
    size_t length = sequence_length(end->seed_out, end->sent, end->caps->message_max);
    size_t first = length / 3, second = end->sent % 2 ? length - first : length / 2;
    pattern_fill(bytes, length, end->seed_out + end->sent, 0);
    iov[0] = (struct iovec){bytes, first};
    iov[1] = (struct iovec){bytes + first, second};
    iov[2] = (struct iovec){bytes + first + second, length - first - second};
}

static void book_send(struct end *end, const struct iovec iov[3], unsigned flags)
{
    for (int i = 0; i < 3; i++)
        memset(iov[i].iov_base, 0xee, iov[i].iov_len); /* the transport has copied it */
    end->sent++;
    end->signaled += flags & IBX_SIGNALED ? 1 : 0;
}

int end_send_next(struct end *end, unsigned flags)
{
    struct iovec iov[3];
    compose(end, iov);
    int rc = ibx_send(end->conn, iov, 3, SEND_COOKIE + end->sent, flags);
    if (!rc)
        book_send(end, iov, flags);
    return rc;
}

/* ibx_poll() takes in credit without an event, so the send is tried again after each poll,
 * before any sleep. */
void end_push(struct end *end, const struct iovec *iov, int iovcnt, uint64_t cookie, unsigned flags)
{
    uint64_t deadline = await_until();
    for (;;) {
        int rc = ibx_send(end->conn, iov, iovcnt, cookie, flags);
        if (rc == -EAGAIN) {
            end_poll(end);
            rc = ibx_send(end->conn, iov, iovcnt, cookie, flags);
        }
        if (!rc)
            return;
        if (rc != -EAGAIN)
            FAIL("ibx_send returned %d: %s", rc, ibx_conn_reason(end->conn));
        end_sleep(end, deadline, "credit", __FILE__, __LINE__);
    }
}

void end_send(struct end *end, unsigned flags)
{
    struct iovec iov[3];
    compose(end, iov);
    end_push(end, iov, 3, SEND_COOKIE + end->sent, flags);
    book_send(end, iov, flags);
}

void end_send_many(struct end *end, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        end_send(end, 0);
}

static void check_message(struct end *end, const struct ibx_event *event, uint64_t number)
{
    size_t length = sequence_length(end->seed_in, number, end->caps->message_max);
    if (event->length != length)
        FAIL("message %llu has %zu bytes instead of %zu", (unsigned long long)number, event->length,
             length);
    ssize_t at = pattern_check(event->data, length, end->seed_in + number, 0);
    if (at >= 0)
        FAIL("message %llu of %zu bytes is wrong from byte %zd on", (unsigned long long)number,
             length, at);
}

void message_in_sequence(struct end *end, const struct ibx_event *event)
{
    check_message(end, event, end->received++);
    ibx_message_release(end->conn, event);
}

static void release_one(struct end *end)
{
    end->random = pattern_mix(end->random);
    unsigned i = (unsigned)(end->random % end->held_count);
    /* The message must not have changed since it arrived. */
    check_message(end, &end->held[i].event, end->held[i].number);
    ibx_message_release(end->conn, &end->held[i].event);
    end->held[i] = end->held[--end->held_count];
}

void message_held(struct end *end, const struct ibx_event *event)
{
    check_message(end, event, end->received);
    if (end->held_count == HELD_MAX)
        release_one(end);
    end->held[end->held_count++] = (struct held_message){*event, end->received++};
}

void end_release_held(struct end *end)
{
    while (end->held_count)
        release_one(end);
}
