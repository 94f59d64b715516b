/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "migrate/multicast/datagrams.h"

#include "common/clock.h"
#include "common/state_machine.h"
#include "common/thread.h"

#include <errno.h>
#include <net/if.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Datagrams are sent in batches of what the rate allows in STEP_NS, BATCH_MIN to
 * IBX_MULTICAST_AT_ONCE of them. A thread that was late may make up for BEHIND_NS at most. */
#define BATCH_MIN 4u
#define STEP_NS   (100 * IBX_NS_PER_US)
#define BEHIND_NS (2 * IBX_NS_PER_MS)
#define AGAIN_MS  5  /* between two searches, if no wanted chunk was ready */
#define LOOKS     64 /* chunks that are not ready which one search looks at, at most */

/*
 * state machine: multicast member
 *   [*] -> NEW -> FEEDING -> DONE -> [*]
 *   NEW -> DONE                          it wants no chunk
 *   NEW | FEEDING -> FAILED -> [*]    nothing can be sent to the group
 *   NEW | FEEDING -> [*]              it leaves
 *
 * A member in NEW has missed the beginning of the chunk that is being sent.
 */
enum member_state { MEMBER_NEW, MEMBER_FEEDING, MEMBER_DONE, MEMBER_FAILED };

static const struct ibx_state member_states[] = {
    [MEMBER_NEW] = {"new", IBX_TO(MEMBER_FEEDING) | IBX_TO(MEMBER_DONE) | IBX_TO(MEMBER_FAILED),
                    IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [MEMBER_FEEDING] = {"feeding", IBX_TO(MEMBER_DONE) | IBX_TO(MEMBER_FAILED), IBX_STATE_FINAL},
    [MEMBER_DONE] = {"done", 0, IBX_STATE_FINAL},
    [MEMBER_FAILED] = {"failed", 0, IBX_STATE_FINAL},
};
static const struct ibx_state_table member_table =
    IBX_STATE_TABLE("multicast member", member_states);

struct ibx_multicast_member {
    struct ibx_multicast_sender *sender;
    struct ibx_multicast_member *next;
    struct ibx_state_machine state; /* this and the rest under the sender's lock */
    uint64_t *wanted;               /* a bit for each chunk */
    uint64_t left;                  /* bits that are set in it */
    uint64_t packets;               /* in NEW and FEEDING: the sender's count when it joined */
    struct ibx_multicast_hearing hearing;
    struct ibx_error why; /* FAILED */
    void (*wake)(void *context);
    void *context;
};

struct ibx_multicast_sender {
    struct ibx_multicast_sender_config config;
    struct ibx_multicast_group group;
    struct ibx_multicast_cipher *cipher; /* this and the next ones are used by the thread only */
    struct ibx_multicast_batch batch;
    uint64_t number, next_ns;
    uint64_t cursor;               /* the next chunk */
    struct ibx_multicast_out *out; /* NULL: there are no members */
    unsigned out_interface;
    pthread_t thread;
    bool started;
    _Atomic bool ending;
    _Atomic uint64_t sent;      /* the number of the next datagram to be sent */
    _Atomic uint64_t rate;      /* bytes a second, now */
    _Atomic unsigned listeners; /* members that are not done */
    pthread_mutex_t lock;       /* of the rest */
    pthread_cond_t changed;
    uint64_t chunks, *wanted; /* a bit for each chunk that any member wants */
    struct ibx_multicast_member *members;
    struct ibx_multicast_rate control;
    unsigned interface; /* by which the members are reached */
    struct ibx_multicast_sender_stats stats;
};

static uint64_t words_of(uint64_t bits)
{
    return (bits + 63) / 64;
}

static bool bit(const uint64_t *bits, uint64_t at)
{
    return bits[at / 64] >> (at % 64) & 1;
}

uint64_t ibx_multicast_chunks(uint64_t pages)
{
    return (pages + IBX_MULTICAST_CHUNK_PAGES - 1) / IBX_MULTICAST_CHUNK_PAGES;
}

/* ------------------------------------------------------------ members; under the lock */

static bool is_open(const struct ibx_multicast_member *m)
{
    return m->state.now == MEMBER_NEW || m->state.now == MEMBER_FEEDING;
}

static void end_member(struct ibx_multicast_member *m, enum member_state how)
{
    m->packets = m->sender->stats.packets - m->packets;
    ibx_state_move(&m->state, how);
    m->sender->listeners--;
    m->wake(m->context);
}

static void count_wanted(struct ibx_multicast_sender *s)
{
    memset(s->wanted, 0, words_of(s->chunks) * sizeof(*s->wanted));
    for (const struct ibx_multicast_member *m = s->members; m; m = m->next)
        for (uint64_t i = 0; is_open(m) && i < words_of(s->chunks); i++)
            s->wanted[i] |= m->wanted[i];
}

static void fail_all(struct ibx_multicast_sender *s, const struct ibx_error *why)
{
    for (struct ibx_multicast_member *m = s->members; m; m = m->next) {
        if (!is_open(m))
            continue;
        m->why = *why;
        end_member(m, MEMBER_FAILED);
    }
    count_wanted(s);
}

/* Notes that a chunk was sent: members that were there at its beginning will not get it again, even
 * if they have lost parts. */
static void chunk_sent(struct ibx_multicast_sender *s, uint64_t chunk)
{
    bool still = false;
    s->stats.chunks++;
    for (struct ibx_multicast_member *m = s->members; m; m = m->next) {
        if (m->state.now == MEMBER_FEEDING && bit(m->wanted, chunk)) {
            m->wanted[chunk / 64] &= ~(1ull << chunk % 64);
            if (!--m->left)
                end_member(m, MEMBER_DONE);
        }
        still |= is_open(m) && bit(m->wanted, chunk);
    }
    if (!still)
        s->wanted[chunk / 64] &= ~(1ull << chunk % 64);
}

/* ------------------------------------------------------------ sending */

static void pace(struct ibx_multicast_sender *s, size_t bytes)
{
    const uint64_t now = ibx_now_ns();
    if (s->next_ns > now) {
        const struct timespec until = ibx_timespec_of(s->next_ns);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
    } else if (now - s->next_ns > BEHIND_NS) {
        s->next_ns = now - BEHIND_NS;
    }
    s->next_ns += (uint64_t)((double)bytes * 1e9 / (double)s->rate);
}

static int flush(struct ibx_multicast_sender *s, struct ibx_error *err)
{
    const size_t bytes = s->batch.bytes;
    unsigned datagrams;
    if (!bytes)
        return 0;
    pace(s, bytes);
    s->sent = s->number;
    const int rc = ibx_multicast_batch_send(&s->batch, &datagrams, err);
    pthread_mutex_lock(&s->lock);
    s->stats.packets += datagrams;
    s->stats.bytes += bytes;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int send_chunk(struct ibx_multicast_sender *s, uint64_t chunk, struct ibx_error *err)
{
    const uint64_t first = chunk * IBX_MULTICAST_CHUNK_PAGES;
    const uint64_t end = first + IBX_MULTICAST_CHUNK_PAGES;
    int rc = 0;
    for (uint64_t page = first; !rc && page < end && page < s->config.pages; page++) {
        if (s->ending || !s->listeners)
            break;
        if (!bit(s->config.data, page))
            continue;
        const uint8_t *bytes = s->config.memory(s->config.context, page);
        if (bytes && ibx_multicast_batch_add(&s->batch, s->cipher, &s->number, page, bytes))
            rc = ibx_error_set(err, -EIO, "OpenSSL cannot seal a page");
        if (!rc && ibx_multicast_batch_full(&s->batch))
            rc = flush(s, err);
    }
    return rc ? rc : flush(s, err);
}

/* ------------------------------------------------------------ the thread */

static bool is_ready(const struct ibx_multicast_sender *s, uint64_t chunk)
{
    const uint64_t first = chunk * IBX_MULTICAST_CHUNK_PAGES;
    const uint64_t most = s->config.pages - first;
    return s->config.ready(s->config.context, first,
                           most < IBX_MULTICAST_CHUNK_PAGES ? most : IBX_MULTICAST_CHUNK_PAGES);
}

/* Finds the next wanted chunk that is ready, going round from the cursor. False: there is none;
 * `*waiting`: some are wanted but not ready. */
static bool next_chunk(struct ibx_multicast_sender *s, uint64_t *chunk, bool *waiting)
{
    unsigned looks = 0;
    *waiting = false;
    for (uint64_t i = 0; i < s->chunks; i++) {
        const uint64_t at = (s->cursor + i) % s->chunks;
        if (!s->wanted[at / 64] && at % 64 == 0 && s->chunks - at > 64) {
            i += 63;
            continue;
        }
        if (!bit(s->wanted, at))
            continue;
        if (is_ready(s, at)) {
            *chunk = at;
            return true;
        }
        *waiting = true;
        if (++looks == LOOKS) {
            s->cursor = (at + 1) % s->chunks;
            break;
        }
    }
    return false;
}

static void wait_for_members(struct ibx_multicast_sender *s, bool waiting)
{
    struct timespec until;
    if (!waiting) {
        ibx_thread_wait(&s->changed, &s->lock);
        return;
    }
    const uint64_t at = ibx_deadline_in_ms(AGAIN_MS);
    until = ibx_timespec_of(at);
    pthread_cond_timedwait(&s->changed, &s->lock, &until);
}

/* Chooses the number of parts of a page, and of datagrams in a batch. */
static int choose_batch(struct ibx_multicast_sender *s, struct ibx_error *err)
{
    const unsigned parts = ibx_multicast_parts(s->out->room);
    size_t length;
    if (!parts)
        return ibx_error_set(err, -EMSGSIZE,
                             "datagrams of %zu bytes are too small for parts of a page, %zu are "
                             "needed: give the interface a larger MTU",
                             s->out->room, ibx_multicast_datagram(IBX_MULTICAST_PARTS_MAX, 0));
    ibx_multicast_part_at(parts, 0, &length);
    const double most = (double)s->config.rate * (double)STEP_NS / 1e9 / (double)length;
    ibx_multicast_batch_begin(&s->batch, s->out, parts,
                              most < BATCH_MIN               ? BATCH_MIN
                              : most > IBX_MULTICAST_AT_ONCE ? IBX_MULTICAST_AT_ONCE
                                                             : (unsigned)most);
    return 0;
}

static int open_out(struct ibx_multicast_sender *s, unsigned interface, struct ibx_error *err)
{
    int rc = ibx_multicast_out_open(&s->group.address, interface, s->config.hops, &s->out, err);
    if (rc)
        return rc;
    s->out_interface = interface;
    rc = choose_batch(s, err);
    if (rc) {
        ibx_multicast_out_close(s->out);
        s->out = NULL;
    }
    return rc;
}

/* Opens, changes or closes `out`, as the present members need it. The caller holds the lock, which
 * is released while that is done, because a subnet manager may take its time; the members may have
 * changed then, so it looks again. */
static int use_out(struct ibx_multicast_sender *s, struct ibx_error *err)
{
    while (
        s->out ? !s->listeners || s->out_interface != s->interface : s->listeners && !s->ending) {
        const unsigned interface = s->interface;
        const bool wanted = s->listeners;
        pthread_mutex_unlock(&s->lock);
        ibx_multicast_out_close(s->out);
        s->out = NULL;
        const int rc = wanted ? open_out(s, interface, err) : 0;
        pthread_mutex_lock(&s->lock);
        if (rc && interface == s->interface)
            return rc;
    }
    return 0;
}

/* Sends a chunk. The caller holds the lock, which is released meanwhile. */
static void feed_chunk(struct ibx_multicast_sender *s, uint64_t chunk)
{
    struct ibx_error why = {0}, reason = {0};
    char group[64];
    for (struct ibx_multicast_member *m = s->members; m; m = m->next)
        if (m->state.now == MEMBER_NEW)
            ibx_state_move(&m->state, MEMBER_FEEDING);
    pthread_mutex_unlock(&s->lock);
    const int rc = send_chunk(s, chunk, &reason);
    pthread_mutex_lock(&s->lock);
    s->cursor = (chunk + 1) % s->chunks;
    if (!rc) {
        chunk_sent(s, chunk);
        return;
    }
    ibx_multicast_group_print(&s->group.address, group, sizeof(group));
    ibx_error_set(&why, rc,
                  "nothing can be sent to the multicast group %s: %s; give the server another "
                  "--multicast-group or --multicast-interface",
                  group, reason.message);
    fail_all(s, &why);
}

static void *sender_main(void *argument)
{
    struct ibx_multicast_sender *s = argument;
    pthread_setname_np(pthread_self(), "ibx-multicast");
    ibx_thread_give_way();
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        struct ibx_error why = {0};
        uint64_t chunk;
        bool waiting;
        if (use_out(s, &why))
            fail_all(s, &why);
        else if (next_chunk(s, &chunk, &waiting))
            feed_chunk(s, chunk);
        else
            wait_for_members(s, waiting);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ------------------------------------------------------------ joining */

/* The first member decides by which interface is sent. The caller holds the lock. */
static int choose_interface(struct ibx_multicast_sender *s, unsigned interface,
                            struct ibx_error *err)
{
    char name[IF_NAMESIZE] = "?", other[IF_NAMESIZE] = "?";
    if (s->listeners && s->interface != interface) {
        if_indextoname(s->interface, name);
        if_indextoname(interface, other);
        return ibx_error_set(err, -EXDEV,
                             "the group is sent over %s at present, and the way to this reader is "
                             "over %s",
                             name, other);
    }
    s->interface = interface;
    return 0;
}

/* Starts the thread. The caller holds the lock. */
static int start(struct ibx_multicast_sender *s, struct ibx_error *err)
{
    if (s->started)
        return 0;
    const int rc = pthread_create(&s->thread, NULL, sender_main, s);
    s->started = !rc;
    return rc ? ibx_error_set_task(err, -rc, "no thread that sends to the group") : 0;
}

static struct ibx_multicast_member *make_member(const struct ibx_multicast_sender *s,
                                                const uint64_t *wanted)
{
    struct ibx_multicast_member *m = calloc(1, sizeof(*m));
    const uint64_t words = words_of(s->chunks);
    if (!m || !(m->wanted = calloc(words, sizeof(*wanted)))) {
        free(m);
        return NULL;
    }
    memcpy(m->wanted, wanted, words * sizeof(*wanted));
    if (s->chunks % 64) /* clears bits beyond the last chunk */
        m->wanted[words - 1] &= ~(~0ull << s->chunks % 64);
    for (uint64_t i = 0; i < words; i++)
        m->left += (uint64_t)__builtin_popcountll(m->wanted[i]);
    ibx_state_begin(&m->state, &member_table, MEMBER_NEW);
    return m;
}

int ibx_multicast_join(struct ibx_multicast_sender *s, unsigned interface, const uint64_t *wanted,
                       void (*wake)(void *context), void *context,
                       struct ibx_multicast_member **out, struct ibx_error *err)
{
    struct ibx_multicast_member *m = make_member(s, wanted);
    if (!m)
        return ibx_error_set(err, -ENOMEM, "no memory for a member of the group");
    pthread_mutex_lock(&s->lock);
    int rc = choose_interface(s, interface, err);
    if (!rc)
        rc = start(s, err);
    if (!rc && !s->listeners) { /* what earlier members have heard no longer matters */
        ibx_multicast_rate_init(&s->control, s->config.rate);
        s->control.settled = s->sent;
        s->rate = s->control.now;
    }
    if (!rc) {
        m->sender = s;
        m->packets = s->stats.packets;
        m->wake = wake;
        m->context = context;
        m->next = s->members;
        s->members = m;
        s->listeners++;
        s->stats.joined++;
        *out = m;
        if (!m->left)
            end_member(m, MEMBER_DONE);
        count_wanted(s);
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc) {
        free(m->wanted);
        free(m);
    }
    return rc;
}

int ibx_multicast_member_state(struct ibx_multicast_member *m, uint64_t *packets,
                               struct ibx_error *err)
{
    pthread_mutex_lock(&m->sender->lock);
    const unsigned now = m->state.now;
    *packets = m->packets;
    int rc = now == MEMBER_DONE;
    if (now == MEMBER_FAILED)
        rc = ibx_error_set(err, m->why.code, "%s", m->why.message);
    pthread_mutex_unlock(&m->sender->lock);
    return rc;
}

bool ibx_multicast_member_heard(struct ibx_multicast_member *m, uint64_t through, uint64_t came)
{
    struct ibx_multicast_sender *s = m->sender;
    const uint64_t now = ibx_now_ns();
    bool well = true;
    pthread_mutex_lock(&s->lock);
    const bool can = !is_open(m) || ibx_multicast_rate_heard(&s->control, &m->hearing, through,
                                                             came, s->sent, now);
    for (const struct ibx_multicast_member *each = s->members; each; each = each->next)
        well &= !is_open(each) || ibx_multicast_hears_well(&each->hearing);
    if (well)
        ibx_multicast_rate_raise(&s->control, now);
    s->rate = s->control.now;
    pthread_mutex_unlock(&s->lock);
    return can;
}

void ibx_multicast_leave(struct ibx_multicast_member *m)
{
    if (!m)
        return;
    struct ibx_multicast_sender *s = m->sender;
    pthread_mutex_lock(&s->lock);
    struct ibx_multicast_member **at = &s->members;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    if (is_open(m))
        s->listeners--;
    count_wanted(s);
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    free(m->wanted);
    free(m);
}

/* ------------------------------------------------------------ all of it */

static int make(struct ibx_multicast_sender *s, struct ibx_error *err)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, &clock);
    pthread_condattr_destroy(&clock);
    s->chunks = ibx_multicast_chunks(s->config.pages);
    s->wanted = calloc(words_of(s->chunks) + 1, sizeof(*s->wanted));
    s->group.address = s->config.group;
    s->group.rate = s->config.rate;
    ibx_multicast_rate_init(&s->control, s->config.rate);
    s->rate = s->control.now;
    if (RAND_bytes(s->group.id, sizeof(s->group.id)) != 1 ||
        RAND_bytes(s->group.key, sizeof(s->group.key)) != 1)
        return ibx_error_set(err, -EIO, "OpenSSL has no random bytes for a group's key");
    s->cipher = ibx_multicast_cipher_create(&s->group, true);
    return s->cipher && s->wanted ? 0
                                  : ibx_error_set(err, -ENOMEM, "no memory for a multicast group");
}

int ibx_multicast_sender_create(const struct ibx_multicast_sender_config *config,
                                struct ibx_multicast_sender **out, struct ibx_error *err)
{
    if (!config->pages || config->rate < IBX_MULTICAST_RATE_MIN)
        return ibx_error_set(err, -EINVAL,
                             "%llu bytes a second for %llu pages by multicast: at least %llu, for "
                             "one page or more",
                             (unsigned long long)config->rate, (unsigned long long)config->pages,
                             (unsigned long long)IBX_MULTICAST_RATE_MIN);
    struct ibx_multicast_sender *s = calloc(1, sizeof(*s));
    if (!s)
        return ibx_error_set(err, -ENOMEM, "no memory for a multicast group");
    s->config = *config;
    const int rc = make(s, err);
    if (rc)
        ibx_multicast_sender_destroy(s);
    else
        *out = s;
    return rc;
}

const struct ibx_multicast_group *
ibx_multicast_sender_group(const struct ibx_multicast_sender *sender)
{
    return &sender->group;
}

void ibx_multicast_sender_stats(struct ibx_multicast_sender *sender,
                                struct ibx_multicast_sender_stats *stats)
{
    pthread_mutex_lock(&sender->lock);
    *stats = sender->stats;
    stats->members = sender->listeners;
    stats->rate = sender->rate;
    pthread_mutex_unlock(&sender->lock);
}

void ibx_multicast_sender_destroy(struct ibx_multicast_sender *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (s->started)
        pthread_join(s->thread, NULL);
    ibx_multicast_out_close(s->out);
    ibx_multicast_cipher_destroy(s->cipher);
    OPENSSL_cleanse(s->group.key, sizeof(s->group.key));
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->wanted);
    free(s);
}
