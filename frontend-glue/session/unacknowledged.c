/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Messages that the other end may not have taken, kept to be sent again over another connection.
 * The receiver returns a message's credit only after it has taken the message. So of all messages
 * that were sent on a connection, at most the last `slots` were not taken, and no acknowledgement
 * is needed. Twice as many are kept, because an end whose connection breaks may free the slots of
 * messages that it drops. A client forgets its messages when it has the answer to the last one, so
 * a long payload stays in memory that is cached, and the next payload finds memory that is mapped.
 * Apart from that, memory of long messages is that of the messages that are kept, and of a few
 * spare ones, so that a session that had long ones and has had short ones for a while does not hold
 * it.
 */
#include "frontend-glue/session/session_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FIRST_SIZE 32u
#define MANY_SHORT 1000u /* messages; to map memory for a payload again takes longer than few */
#define ROUND      64u   /* bytes; the memory of a kept message is a multiple of this */
#define LONG       (64u << 10) /* memory of so many bytes or more is mapped by itself */

int ibx_kept_init(struct kept *kept, unsigned slots)
{
    *kept = (struct kept){.slots = slots};
    kept->ring = calloc(FIRST_SIZE, sizeof(*kept->ring));
    kept->size = FIRST_SIZE;
    return kept->ring ? 0 : -ENOMEM;
}

static void free_memory(const struct kept_message *message)
{
    if (message->size >= LONG)
        munmap(message->bytes, message->size);
    else
        free(message->bytes);
}

void ibx_kept_fini(struct kept *kept)
{
    for (unsigned i = 0; kept->ring && i < kept->size; i++)
        free_memory(&kept->ring[i]);
    while (kept->spares)
        free_memory(&kept->spare[--kept->spares]);
    free(kept->ring);
    *kept = (struct kept){0};
}

static struct kept_message *at(const struct kept *kept, unsigned i)
{
    return &kept->ring[(kept->first + i) & (kept->size - 1)];
}

enum message_order ibx_message_order(uint8_t type)
{
    return type == MESSAGE_CTS || type == MESSAGE_DONE || type == MESSAGE_FLUSHED ? ORDER_CONTROL
                                                                                  : ORDER_STREAM;
}

static __attribute__((cold, noinline)) int grow(struct kept *kept)
{
    struct kept_message *ring = calloc((size_t)kept->size * 2, sizeof(*ring));
    if (!ring)
        return -ENOMEM;
    for (unsigned i = 0; i < kept->size; i++) /* unused entries have memory, too */
        ring[i] = *at(kept, i);
    free(kept->ring);
    kept->ring = ring;
    kept->first = 0;
    kept->size *= 2;
    return 0;
}

static void swap(struct kept_message *a, struct kept_message *b)
{
    const struct kept_message before = *a;
    *a = *b;
    *b = before;
}

/* Memory of a long message: it is kept as a spare, unless all spares are as long. */
static void spare(struct kept *kept, struct kept_message *memory)
{
    unsigned shortest = 0;
    if (kept->spares < KEPT_SPARES) {
        kept->spare[kept->spares++] = *memory;
        return;
    }
    for (unsigned i = 1; i < KEPT_SPARES; i++)
        shortest = kept->spare[i].size < kept->spare[shortest].size ? i : shortest;
    if (kept->spare[shortest].size < memory->size)
        swap(&kept->spare[shortest], memory);
    free_memory(memory);
}

/* The message needs its memory no more. */
static __attribute__((noinline)) void give(struct kept *kept, struct kept_message *message)
{
    if (message->size >= LONG) {
        spare(kept, message);
        kept->shorts = --kept->longs ? kept->shorts : 0;
    } else {
        free_memory(message);
    }
    message->bytes = NULL;
    message->size = 0;
}

/* There is memory of long messages. After many short ones, places that hold no message give theirs:
 * one for each further short one. */
static __attribute__((cold, noinline)) void note_length(struct kept *kept, size_t length)
{
    unsigned i = kept->count;
    kept->shorts = length < LONG ? kept->shorts + 1 : 0;
    if (kept->shorts <= MANY_SHORT)
        return;
    while (i < kept->size && at(kept, i)->size < LONG)
        i++;
    if (i < kept->size)
        give(kept, at(kept, i));
}

/* Memory for a long message: the last spare one that is long enough, or new one. */
static uint8_t *take(struct kept *kept, size_t size, size_t *got)
{
    for (unsigned i = kept->spares; i-- > 0;) {
        const struct kept_message spare = kept->spare[i];
        if (spare.size < size)
            continue;
        kept->spare[i] = kept->spare[--kept->spares];
        *got = spare.size;
        return spare.bytes;
    }
    uint8_t *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *got = size;
    return bytes == MAP_FAILED ? NULL : bytes;
}

/* On the path of each message, so the rare part is a function of its own. */
static __attribute__((noinline)) int more_room(struct kept *kept, struct kept_message *message,
                                               size_t length)
{
    size_t size = (length + ROUND - 1) / ROUND * ROUND;
    give(kept, message);
    if (size >= LONG)
        size = (size + LONG - 1) / LONG * LONG;
    message->bytes = size >= LONG ? take(kept, size, &size) : malloc(size);
    message->size = message->bytes ? size : 0;
    kept->longs += message->size >= LONG;
    return message->bytes ? 0 : -ENOMEM;
}

/* One more was sent on this connection. */
static inline void note_sent(struct kept *kept)
{
    if (++kept->sent <= 2 * kept->slots)
        return;
    if (at(kept, 0)->size >= LONG)
        give(kept, at(kept, 0));
    kept->first = (kept->first + 1) & (kept->size - 1);
    kept->count--;
    kept->sent--;
}

static __attribute__((noinline)) void put_together(uint8_t *to, const struct iovec *iov, int iovcnt)
{
    for (int i = 0; i < iovcnt; i++) {
        if (iov[i].iov_len)
            memcpy(to, iov[i].iov_base, iov[i].iov_len);
        to += iov[i].iov_len;
    }
}

int ibx_kept_add(struct kept *kept, const struct iovec *iov, int iovcnt)
{
    size_t length = iov[0].iov_len;
    for (int i = 1; i < iovcnt; i++)
        length += iov[i].iov_len;
    if (kept->count == kept->size && grow(kept))
        return -ENOMEM;
    if (kept->longs)
        note_length(kept, length);
    struct kept_message *message = at(kept, kept->count);
    if (message->size < length && more_room(kept, message, length))
        return -ENOMEM;
    if (iovcnt == 1)
        memcpy(message->bytes, iov[0].iov_base, length);
    else
        put_together(message->bytes, iov, iovcnt);
    message->length = length;
    message->order = ibx_message_order(message->bytes[0]);
    message->number = kept->numbers[message->order]++;
    kept->count++;
    note_sent(kept);
    return 0;
}

bool ibx_kept_push(struct kept *kept, struct ibx_conn *conn)
{
    while (kept->sent < kept->count) {
        struct kept_message *message = at(kept, kept->sent);
        struct iovec iov = {message->bytes, message->length};
        if (ibx_send(conn, &iov, 1, 0, 0))
            return false;
        note_sent(kept);
    }
    return true;
}

void ibx_kept_forget(struct kept *kept)
{
    if (kept->sent == kept->count)
        kept->count = kept->sent = 0;
}

int ibx_kept_rewind(struct kept *kept, const uint64_t taken[ORDERS])
{
    uint64_t oldest[ORDERS] = {kept->numbers[0], kept->numbers[1]};
    for (unsigned i = kept->count; i-- > 0;)
        oldest[at(kept, i)->order] = at(kept, i)->number;
    for (unsigned order = 0; order < ORDERS; order++) {
        if (taken[order] < oldest[order] || taken[order] > kept->numbers[order])
            return -EPROTO;
    }
    unsigned left = 0;
    for (unsigned i = 0; i < kept->count; i++) {
        if (at(kept, i)->number < taken[at(kept, i)->order])
            continue;
        struct kept_message message = *at(kept, left);
        *at(kept, left++) = *at(kept, i);
        *at(kept, i) = message; /* keeps its memory */
    }
    kept->count = left;
    kept->sent = 0;
    return 0;
}

size_t ibx_kept_longest(const struct kept *kept)
{
    size_t longest = 0;
    for (unsigned i = 0; i < kept->count; i++)
        longest = at(kept, i)->length > longest ? at(kept, i)->length : longest;
    return longest;
}
