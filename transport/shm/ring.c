/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Commands, messages, sleeping and waking.
 *
 * Each side has one ring of commands that only it writes. The reader polls the sequence number of
 * the next entry. It copies a message into private memory before it parses it, because a peer can
 * rewrite shared memory at any time; so credit is a count of returned messages.
 *
 * Before it sleeps a side sets `sleeping` and polls once more; a peer that has something for it
 * resets `sleeping` and sends a packet. All four accesses are sequentially consistent, so one of
 * the two always sees the other.
 */
#include "transport/shm/shm.h"

#include "common/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_PACKETS 64 /* of the control socket at once: a peer may flood it */

enum control_packet { CONTROL_WAKE = 'w', CONTROL_ARENA = 'a' };

int ibx_shm_ring_init(struct shm *shm)
{
    uint32_t slots = shm->geometry.slots;
    shm->inbox = malloc((size_t)slots * shm->geometry.stride);
    shm->inbox_free = malloc(slots * sizeof(*shm->inbox_free));
    shm->inbox_held = calloc(slots, sizeof(*shm->inbox_held));
    shm->send_done = malloc(slots * sizeof(*shm->send_done));
    if (!shm->inbox || !shm->inbox_free || !shm->inbox_held || !shm->send_done)
        return -ENOMEM;
    for (uint32_t i = 0; i < slots; i++)
        shm->inbox_free[i] = slots - 1 - i;
    shm->inbox_free_count = slots;
    return 0;
}

void ibx_shm_ring_fini(struct shm *shm)
{
    free(shm->inbox);
    free(shm->inbox_free);
    free(shm->inbox_held);
    free(shm->send_done);
}

/* --------------------------------------------------------------------- output */

/* Whether the peer has closed its end, which the core sees at the handshake's socket. */
static bool is_end(int code)
{
    return code == 0 || code == -ECONNRESET || code == -EPIPE || code == -ENOTCONN ||
           code == -ECONNREFUSED;
}

/* Ends the connection: by this socket nobody can be woken, so that both sides would sleep for
 * ever. */
static void socket_broken(struct shm *shm, int code)
{
    char reason[sizeof(shm->broken_reason)];
    snprintf(reason, sizeof(reason), "the shm socket fails: %s", strerror(-code));
    ibx_shm_break(shm, code, reason);
}

/* A full socket wakes the peer as well. If the kernel has no memory for a packet, progress() tries
 * again, and this side does not sleep before that. */
static void wake_send(struct shm *shm)
{
    const char packet = CONTROL_WAKE;
    const int rc = ibx_shm_packet_send(shm->control, &packet, 1, -1);
    shm->wake_due = rc == -ENOBUFS || rc == -ENOMEM;
    if (rc != -EAGAIN && !shm->wake_due && !is_end(rc))
        socket_broken(shm, rc);
}

/* Only the side that resets the flag sends a wake. */
static void wake(struct shm *shm)
{
    if (atomic_exchange(&shm->theirs.control->sleeping, SHM_AWAKE) != SHM_AWAKE)
        wake_send(shm);
}

static struct shm_command *next_entry(struct shm *shm)
{
    return &shm->mine.commands[shm->put & (shm->geometry.commands - 1)];
}

static void publish(struct shm *shm, struct shm_command *entry)
{
    atomic_store(&entry->sequence, ++shm->put);
    if (atomic_load(&shm->theirs.control->sleeping) != SHM_AWAKE)
        wake(shm);
}

void ibx_shm_command_put(struct shm *shm, const struct shm_command *command)
{
    struct shm_command *entry = next_entry(shm);
    entry->kind = command->kind;
    entry->urgent = command->urgent;
    entry->piece = command->piece;
    entry->length = command->length;
    entry->status = command->status;
    entry->target = command->target;
    publish(shm, entry);
}

/* Whether there are `wanted` credits, 1 or 2, with those that the peer has returned. */
static bool has_credits(struct shm *shm, unsigned wanted)
{
    const uint64_t most = shm->geometry.slots - wanted;
    if (shm->sent - shm->released_seen <= most)
        return true;
    uint64_t released = atomic_load(&shm->theirs.control->released);
    if (released < shm->released_seen || released > shm->sent) {
        ibx_shm_break(shm, -EPROTO, "the peer returns messages that it never had");
        return false;
    }
    shm->released_seen = released;
    return shm->sent - released <= most;
}

/* Writes the second cache line first. The peer polls the first one, and takes it away from this
 * core as soon as it has been written to; each time it goes back and forth a call waits for it. */
static void put_inline(struct shm_command *entry, const struct iovec *iov, int iovcnt,
                       size_t length)
{
    uint8_t bytes[IBX_SHM_INLINE] = {0};
    ibx_gather(bytes, iov, iovcnt);
    if (length > IBX_SHM_FIRST_LINE)
        memcpy(entry->data + IBX_SHM_FIRST_LINE, bytes + IBX_SHM_FIRST_LINE,
               IBX_SHM_INLINE - IBX_SHM_FIRST_LINE);
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(entry->data, bytes, IBX_SHM_FIRST_LINE);
}

int ibx_shm_send(void *endpoint, const struct iovec *iov, int iovcnt, size_t length,
                 uint64_t cookie, unsigned flags)
{
    struct shm *shm = endpoint;
    bool report = flags & IBX_SIGNALED;
    const unsigned wanted = flags & IBX_SPARING ? 2 : 1;
    shm->credits_wanted = has_credits(shm, wanted) ? 0 : wanted;
    if (shm->credits_wanted || (report && shm->send_done_count == shm->geometry.slots))
        return -EAGAIN;
    struct shm_command *entry = next_entry(shm);
    if (length > IBX_SHM_INLINE)
        ibx_gather(shm->mine.messages + (shm->sent % shm->geometry.slots) * shm->geometry.stride,
                   iov, iovcnt);
    else
        put_inline(entry, iov, iovcnt, length);
    entry->kind = SHM_COMMAND_MESSAGE;
    entry->length = (uint32_t)length;
    shm->sent++;
    publish(shm, entry);
    if (report)
        shm->send_done[shm->send_done_count++] = cookie;
    return 0;
}

void ibx_shm_release(void *endpoint, uint64_t slot)
{
    struct shm *shm = endpoint;
    if (slot >= shm->geometry.slots || !shm->inbox_held[slot])
        return;
    shm->inbox_held[slot] = false;
    shm->inbox_free[shm->inbox_free_count++] = (uint32_t)slot;
    atomic_store(&shm->mine.control->released, ++shm->released);
    if (atomic_load(&shm->theirs.control->sleeping) == SHM_SLEEPS_FOR_CREDIT)
        wake(shm);
}

/* ---------------------------------------------------------------------- input */

static bool command_ready(const struct shm *shm)
{
    const struct shm_command *entry =
        &shm->theirs.commands[shm->taken & (shm->geometry.commands - 1)];
    return atomic_load(&entry->sequence) == shm->taken + 1;
}

/* Copies a command, without the bytes of a message, to private memory. */
static void snapshot(const struct shm_command *entry, struct shm_command *command)
{
    command->kind = entry->kind;
    command->urgent = entry->urgent;
    command->piece = entry->piece;
    command->length = entry->length;
    command->status = entry->status;
    command->target = entry->target;
    /* No second read of shared memory after the checks. */
    atomic_signal_fence(memory_order_seq_cst);
}

static int receive_message(struct shm *shm, const struct shm_command *entry, uint32_t length)
{
    if (length > shm->geometry.message) {
        ibx_shm_break(shm, -EPROTO, "the peer announces a message longer than agreed");
        return 0;
    }
    if (!shm->inbox_free_count) {
        ibx_shm_break(shm, -EPROTO, "the peer sends messages without credit");
        return 0;
    }
    const uint8_t *from = entry->data;
    if (length > IBX_SHM_INLINE)
        from = shm->theirs.messages + (shm->received % shm->geometry.slots) * shm->geometry.stride;
    shm->received++;
    uint32_t slot = shm->inbox_free[--shm->inbox_free_count];
    uint8_t *to = shm->inbox + (size_t)slot * shm->geometry.stride;
    shm->inbox_held[slot] = true;
    if (length)
        memcpy(to, from, length);
    shm->link->up->message(shm->link, to, length, slot);
    return 1;
}

static int receive_command(struct shm *shm)
{
    struct shm_command *entry = &shm->theirs.commands[shm->taken & (shm->geometry.commands - 1)];
    struct shm_command command;
    snapshot(entry, &command);
    shm->taken++;
    ibx_shm_peer_is(shm, SHM_PEER_PRESENT);
    shm->quiet_since = 0;
    if (command.kind == SHM_COMMAND_MESSAGE)
        return receive_message(shm, entry, command.length);
    if (command.kind == SHM_COMMAND_DONE)
        return ibx_shm_on_request_done(shm, command.piece, command.status);
    if (command.kind != SHM_COMMAND_READ && command.kind != SHM_COMMAND_WRITE) {
        ibx_shm_break(shm, -EPROTO, "the peer's ring holds a command that does not exist");
        return 0;
    }
    struct shm_request request = {
        .kind = command.kind == SHM_COMMAND_READ ? IBX_RDMA_READ : IBX_RDMA_WRITE,
        .key = command.target.key,
        .address = command.target.address,
        .length = command.length,
        .pending = true,
    };
    ibx_shm_on_request(shm, command.piece, command.urgent, &request);
    return 0;
}

static int report_sends(struct shm *shm)
{
    uint32_t count = shm->send_done_count;
    for (uint32_t i = 0; i < count; i++)
        shm->link->up->send_done(shm->link, shm->send_done[i],
                                 shm->state.now == SHM_ABORTED ? -ECONNRESET : 0);
    shm->send_done_count = 0;
    return (int)count;
}

int ibx_shm_ring_progress(struct shm *shm)
{
    if (shm->armed) {
        shm->armed = false;
        atomic_store_explicit(&shm->mine.control->sleeping, SHM_AWAKE, memory_order_relaxed);
        ibx_shm_control_drain(shm);
    }
    if (shm->wake_due)
        wake_send(shm);
    int made = shm->send_done_count ? report_sends(shm) : 0;
    if (shm->credits_wanted && has_credits(shm, shm->credits_wanted)) {
        shm->credits_wanted = 0; /* no upcall, but the sender waits for them */
        made++;
    }
    /* At most one lap: a peer may send without end. */
    for (uint32_t i = 0; i < shm->geometry.commands && shm->state.now == SHM_LIVE; i++) {
        if (!command_ready(shm))
            break;
        made += receive_command(shm);
    }
    return made;
}

/* A message is often in both lines of its entry. The second one is fetched while the first is
 * polled: otherwise the two come one after the other. */
void ibx_shm_look(void *endpoint, unsigned times)
{
    const struct shm *shm = endpoint;
    const struct shm_command *entry =
        &shm->theirs.commands[shm->taken & (shm->geometry.commands - 1)];
    for (unsigned i = 0; i < times && !command_ready(shm); i++) {
        __builtin_prefetch(entry->data + IBX_SHM_FIRST_LINE);
        ibx_cpu_relax();
    }
}

/* ------------------------------------------------------------------- sleeping */

int ibx_shm_arm(void *endpoint)
{
    struct shm *shm = endpoint;
    if (shm->state.now == SHM_ABORTED)
        return shm->send_done_count != 0;
    if (shm->send_done_count || shm->wake_due || shm->state.now == SHM_BROKEN ||
        ibx_shm_copy_due(shm))
        return 1;
    shm->armed = true;
    atomic_store(&shm->mine.control->sleeping,
                 shm->credits_wanted ? SHM_SLEEPS_FOR_CREDIT : SHM_SLEEPS);
    return command_ready(shm) ||
           (shm->credits_wanted &&
            atomic_load(&shm->theirs.control->released) != shm->released_seen);
}

static void control_packet(struct shm *shm, const char *packet, size_t length, int fd)
{
    if (length == 1 && packet[0] == CONTROL_WAKE && fd < 0)
        return;
    if (length == 2 && packet[0] == CONTROL_ARENA) {
        ibx_shm_arena_accept(shm, (unsigned char)packet[1], fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    ibx_shm_break(shm, -EPROTO, "the peer sent a malformed packet over the shm socket");
}

void ibx_shm_control_drain(struct shm *shm)
{
    for (int i = 0; i < DRAIN_PACKETS && !shm->gone; i++) {
        char packet[4];
        int fd;
        ssize_t n = ibx_shm_packet_receive(shm->control, packet, sizeof(packet), &fd);
        if (n == -EAGAIN)
            return;
        if (n > 0) {
            control_packet(shm, packet, (size_t)n, fd);
            continue;
        }
        /* A closed socket would keep poll(2) awake. */
        shm->gone = true;
        ibx_link_unwatch(shm->link, shm->control);
        if (!is_end((int)n))
            socket_broken(shm, (int)n);
    }
}
