/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Sends and receives once the handshake is done. Up to 32 records are sealed or opened together:
 * each has its number and its place, so any thread may do any of them, and helpers do, where there
 * are processors for it.
 */
#include "transport/core/tls_kernel.h"
#include "transport/core/tls_state.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

/* Records with at most so many bytes are opened in `raw` and copied, so that TLS's own records
 * touch no memory of the caller. */
#define SMALL_BYTES 64u
/* With at least so many records, helpers are called: calling them costs about as much as one
 * record. */
#define HELPED_MIN 4u
/* With helpers, every time so many records are ready they go to the socket, while the next ones are
 * sealed. */
#define AHEAD 8u
/* A key seals half of the 2^24.5 records that RFC 8446, 5.5, allows AES-GCM: 190 GB. */
#ifndef IBX_TLS_KEY_RECORDS
#define IBX_TLS_KEY_RECORDS (1u << 23)
#endif

#define KEY_UPDATE        24
#define ALERT_CLOSE       0
#define ALERT_BAD_RECORD  20
#define ALERT_BAD_DECRYPT 51

struct batch {
    struct ibx_tls_direction *direction;
    unsigned count;
    atomic_uint next;
    atomic_bool done[IBX_TLS_GATHERED];
    struct ibx_tls_job jobs[IBX_TLS_GATHERED];
};

/* ------------------------------------------------------------------------ together */

static bool work_one(struct batch *batch, unsigned worker)
{
    unsigned i = atomic_fetch_add(&batch->next, 1);
    if (i >= batch->count)
        return false;
    if (batch->direction->seals)
        ibx_tls_seal(batch->direction, worker, &batch->jobs[i]);
    else
        ibx_tls_open(batch->direction, worker, &batch->jobs[i]);
    atomic_store_explicit(&batch->done[i], true, memory_order_release);
    return true;
}

static void work_all(void *batch, unsigned worker)
{
    while (work_one(batch, worker))
        ;
}

static bool help_call(const struct ibx_tls *tls, struct batch *batch)
{
    return !tls->alone && batch->count >= HELPED_MIN && ibx_tls_helpers_begin(work_all, batch);
}

static void batch_add(struct batch *batch, const struct ibx_tls_cursor *text, uint8_t *record,
                      size_t length)
{
    batch->jobs[batch->count] =
        (struct ibx_tls_job){.text = *text,
                             .record = record,
                             .length = length,
                             .content = IBX_TLS_DATA,
                             .number = batch->direction->records + batch->count};
    batch->count++;
}

/* ------------------------------------------------------------------------- sending */

int ibx_tls_flush(struct ibx_tls *tls)
{
    while (tls->sealed_at < tls->sealed_end) {
        ssize_t n = send(tls->fd, tls->sealed + tls->sealed_at, tls->sealed_end - tls->sealed_at,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EPIPE ? -ECONNRESET : -errno;
        tls->sealed_at += (size_t)n;
    }
    tls->sealed_at = tls->sealed_end = 0;
    return 0;
}

static bool seal_own(struct ibx_tls *tls, enum ibx_tls_content content, const void *bytes, size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct ibx_tls_job job = {.text = {&iov, 1, 0},
                              .record = tls->sealed + tls->sealed_end,
                              .length = n,
                              .content = content,
                              .number = tls->out.records++};
    ibx_tls_seal(&tls->out, 0, &job);
    tls->sealed_end += n + IBX_TLS_OVERHEAD;
    tls->send_failed = job.status;
    return !job.status;
}

/* A KeyUpdate of this end's key, which does not request one of the peer's. */
static const uint8_t update[IBX_TLS_UPDATE_BYTES] = {KEY_UPDATE, 0, 0, 1, 0};

static bool key_is_due(const struct ibx_tls *tls)
{
    return tls->out.records >= IBX_TLS_KEY_RECORDS || atomic_load(&tls->update_wanted);
}

static void key_renew(struct ibx_tls *tls)
{
    atomic_store(&tls->update_wanted, false);
    if (seal_own(tls, IBX_TLS_HANDSHAKE, update, sizeof(update)))
        ibx_tls_direction_update(&tls->out);
}

/* Describes the next records; returns how many bytes they take. */
static size_t seal_plan(struct ibx_tls *tls, struct batch *batch, const struct iovec *iov, int n)
{
    struct ibx_tls_cursor text = {iov, n, 0};
    uint8_t *record = tls->sealed + tls->sealed_end;
    size_t taken = 0, length;
    while (batch->count < IBX_TLS_GATHERED && (length = ibx_tls_record_length(&text))) {
        batch_add(batch, &text, record, length);
        ibx_tls_cursor_move(&text, length);
        record += length + IBX_TLS_OVERHEAD;
        taken += length;
    }
    return taken;
}

/* Seals the records of the batch. Those that are ready in a row may go to the socket meanwhile. */
static void seal_batch(struct ibx_tls *tls, struct batch *batch)
{
    bool helped = help_call(tls, batch);
    unsigned ready = 0, last = 0;
    while (ready < batch->count) {
        if (!work_one(batch, 0) && helped) {
            ibx_tls_helpers_end();
            helped = false;
        }
        for (; ready < batch->count &&
               atomic_load_explicit(&batch->done[ready], memory_order_acquire);
             ready++) {
            if (batch->jobs[ready].status)
                tls->send_failed = batch->jobs[ready].status;
        }
        if (tls->send_failed || (ready < batch->count && (!helped || ready - last < AHEAD)))
            continue;
        const struct ibx_tls_job *newest = &batch->jobs[ready - 1];
        tls->sealed_end =
            (size_t)(newest->record - tls->sealed) + newest->length + IBX_TLS_OVERHEAD;
        last = ready;
        /* ibx_tls_flush() lets an empty buffer begin at its start again, but the next records are
         * behind `end`. */
        size_t end = tls->sealed_end;
        int rc = ibx_tls_flush(tls);
        if (!rc && ready < batch->count)
            tls->sealed_at = tls->sealed_end = end;
        tls->send_failed = rc == -EAGAIN ? 0 : rc;
    }
    if (helped)
        ibx_tls_helpers_end();
    tls->out.records += batch->count;
}

/* Sends through the kernel's TLS. */
static ssize_t kernel_send(struct ibx_tls *tls, const struct iovec *iov, int n)
{
    ssize_t rc = 0;
    if (key_is_due(tls)) {
        rc = ibx_tls_kernel_say(tls->fd, IBX_TLS_HANDSHAKE, update, sizeof(update));
        if (!rc) {
            atomic_store(&tls->update_wanted, false);
            ibx_tls_direction_update(&tls->out);
            rc = ibx_tls_kernel_seal(tls->fd, &tls->out) ? -EIO : 0;
        }
    }
    if (!rc)
        rc = ibx_tls_kernel_send(tls->fd, iov, n, &tls->out.records);
    tls->send_failed = rc < 0 && rc != -EAGAIN ? (int)rc : 0;
    return rc;
}

ssize_t ibx_tls_send(struct ibx_tls *tls, const struct iovec *iov, int n)
{
    struct batch batch;
    int rc = tls->send_failed ? tls->send_failed : ibx_tls_flush(tls);
    if (rc) {
        tls->send_failed = rc == -EAGAIN ? 0 : rc;
        return rc;
    }
    if (tls->kernel)
        return n ? kernel_send(tls, iov, n) : 0;
    if (n && key_is_due(tls))
        key_renew(tls);
    batch.direction = &tls->out;
    batch.count = 0;
    atomic_init(&batch.next, 0);
    size_t taken = seal_plan(tls, &batch, iov, n);
    for (unsigned i = 0; i < batch.count; i++)
        atomic_init(&batch.done[i], false);
    if (!tls->send_failed)
        seal_batch(tls, &batch);
    return tls->send_failed ? tls->send_failed : (ssize_t)taken;
}

void ibx_tls_work_alone(struct ibx_tls *tls)
{
    tls->alone = true;
}

bool ibx_tls_unsent(const struct ibx_tls *tls)
{
    return tls->sealed_at < tls->sealed_end;
}

void ibx_tls_finish(struct ibx_tls *tls)
{
    static const uint8_t close[] = {1, ALERT_CLOSE};
    if (tls->ssl || tls->send_failed || ibx_tls_flush(tls))
        return;
    if (tls->kernel)
        ibx_tls_kernel_say(tls->fd, IBX_TLS_ALERT, close, sizeof(close));
    else if (seal_own(tls, IBX_TLS_ALERT, close, sizeof(close)))
        ibx_tls_flush(tls);
    tls->send_failed = -EPIPE;
}

/* ----------------------------------------------------------------------- receiving */

/* Takes a record of TLS's own: an alert or a KeyUpdate. */
static int take_own(struct ibx_tls *tls, enum ibx_tls_content content, const uint8_t *bytes,
                    size_t n)
{
    if (content == IBX_TLS_ALERT && n == 2) {
        tls->closed = bytes[1] == ALERT_CLOSE;
        bool changed = bytes[1] == ALERT_BAD_RECORD || bytes[1] == ALERT_BAD_DECRYPT;
        return tls->closed ? 0 : changed ? -EBADMSG : -ECONNRESET;
    }
    if (content == IBX_TLS_HANDSHAKE && n == IBX_TLS_UPDATE_BYTES && bytes[0] == KEY_UPDATE &&
        !bytes[1] && !bytes[2] && bytes[3] == 1 && bytes[4] <= 1) {
        if (bytes[4])
            atomic_store(&tls->update_wanted, true);
        ibx_tls_direction_update(&tls->in);
        return 0;
    }
    return -EBADMSG;
}

/* Opens one record in `raw`. */
static int open_inside(struct ibx_tls *tls, size_t size)
{
    uint8_t *record = tls->raw + tls->raw_at;
    struct iovec here = {record + IBX_TLS_HEADER_BYTES, size - IBX_TLS_OVERHEAD};
    struct ibx_tls_job job = {.text = {&here, 1, 0},
                              .record = record,
                              .length = here.iov_len,
                              .number = tls->in.records++};
    ibx_tls_open(&tls->in, 0, &job);
    if (job.status)
        return job.status;
    tls->raw_at += size;
    if (job.content != IBX_TLS_DATA)
        return take_own(tls, job.content, here.iov_base, here.iov_len);
    tls->plain = here.iov_base;
    tls->plain_left = here.iov_len;
    return 0;
}

/* Finds the whole records that can be opened right where the caller wants their bytes. */
static void open_plan(struct ibx_tls *tls, struct batch *batch, const struct ibx_tls_cursor *cursor)
{
    struct ibx_tls_cursor text = *cursor;
    size_t room = ibx_tls_cursor_room(cursor), at = tls->raw_at;
    while (batch->count < IBX_TLS_GATHERED) {
        ssize_t size = ibx_tls_record_size(tls->raw + at, tls->raw_end - at);
        if (size <= 0 || (size_t)size > tls->raw_end - at)
            break;
        size_t length = (size_t)size - IBX_TLS_OVERHEAD;
        if (length <= SMALL_BYTES || length > room)
            break;
        batch_add(batch, &text, tls->raw + at, length);
        ibx_tls_cursor_move(&text, length);
        room -= length;
        at += (size_t)size;
    }
}

/* Opens the records of the batch. Returns the number of bytes before the first bad record, which
 * ends the connection. */
static size_t open_batch(struct ibx_tls *tls, struct batch *batch, struct ibx_tls_cursor *cursor)
{
    size_t got = 0;
    bool helped = help_call(tls, batch);
    work_all(batch, 0);
    if (helped)
        ibx_tls_helpers_end();
    for (unsigned i = 0; i < batch->count; i++) {
        const struct ibx_tls_job *job = &batch->jobs[i];
        if (job->status || job->content != IBX_TLS_DATA)
            tls->read_failed = -EBADMSG;
        if (tls->read_failed) {
            ibx_tls_wipe(job);
            continue;
        }
        got += job->length;
        tls->raw_at += job->length + IBX_TLS_OVERHEAD;
        ibx_tls_cursor_move(cursor, job->length);
    }
    tls->in.records += batch->count;
    return got;
}

static void plain_take(struct ibx_tls *tls, struct ibx_tls_cursor *cursor, size_t *got)
{
    while (tls->plain_left && cursor->left) {
        size_t there = cursor->iov->iov_len - cursor->at;
        size_t n = there < tls->plain_left ? there : tls->plain_left;
        if (n)
            memcpy((uint8_t *)cursor->iov->iov_base + cursor->at, tls->plain, n);
        tls->plain += n;
        tls->plain_left -= n;
        *got += n;
        ibx_tls_cursor_move(cursor, n);
    }
}

/* Takes what is there already; the number of bytes, or why there will be no more. */
static ssize_t take(struct ibx_tls *tls, struct ibx_tls_cursor *cursor)
{
    size_t got = 0;
    while (!tls->closed && !tls->read_failed) {
        plain_take(tls, cursor, &got);
        if (!cursor->left || tls->plain_left)
            break;
        struct batch batch;
        batch.direction = &tls->in;
        batch.count = 0;
        atomic_init(&batch.next, 0);
        open_plan(tls, &batch, cursor);
        if (batch.count) {
            got += open_batch(tls, &batch, cursor);
            continue;
        }
        size_t have = tls->raw_end - tls->raw_at;
        ssize_t size = ibx_tls_record_size(tls->raw + tls->raw_at, have);
        if (size >= 0 && (!size || (size_t)size > have))
            break;
        tls->read_failed = size < 0 ? (int)size : open_inside(tls, (size_t)size);
    }
    return got ? (ssize_t)got : tls->read_failed;
}

ssize_t ibx_tls_receive(struct ibx_tls *tls, const struct iovec *iov, int n)
{
    struct ibx_tls_cursor cursor = {iov, n, 0};
    ibx_tls_cursor_move(&cursor, 0);
    ssize_t got = take(tls, &cursor);
    if (got || tls->closed || !cursor.left)
        return got || tls->closed ? got : -EAGAIN;
    tls->raw_end -= tls->raw_at;
    memmove(tls->raw, tls->raw + tls->raw_at, tls->raw_end);
    tls->raw_at = 0;
    /* After a short piece, such as a header, the rest is better received by the call that opens
     * it. */
    size_t most = ibx_tls_cursor_room(&cursor) <= SMALL_BYTES ? IBX_TLS_RECORD_MAX
                                                              : IBX_TLS_RAW_BYTES - tls->raw_end;
    if (most > IBX_TLS_RAW_BYTES - tls->raw_end)
        most = IBX_TLS_RAW_BYTES - tls->raw_end;
    do {
        got = recv(tls->fd, tls->raw + tls->raw_end, most, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) {
        tls->read_failed = got && errno == EAGAIN ? 0 : got ? -errno : -ECONNRESET;
        return tls->read_failed ? tls->read_failed : -EAGAIN;
    }
    tls->raw_end += (size_t)got;
    got = take(tls, &cursor);
    return got || tls->closed ? got : -EAGAIN;
}

bool ibx_tls_readable(const struct ibx_tls *tls)
{
    size_t have = tls->raw_end - tls->raw_at;
    ssize_t size = ibx_tls_record_size(tls->raw + tls->raw_at, have);
    return tls->plain_left || tls->closed || tls->read_failed || size < 0 ||
           (size && (size_t)size <= have);
}

bool ibx_tls_has_part(const struct ibx_tls *tls)
{
    return tls->raw_at < tls->raw_end;
}
