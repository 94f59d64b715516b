/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server's pages by multicast. A reader that wants them has a connection only for that: it
 * says which chunks it wants and is a member of the group until the connection ends, or until it
 * was sent all of them. */
#include "migrate/snapshot/snapshot.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

#define NO_GROUP_TEXT 300 /* bytes */
#define MISSING_SHARE 8u  /* a chunk is sent if at most one in so many of its pages is missing */

/* ------------------------------------------------------------ what is sent */

static const uint8_t *memory_of(void *context, uint64_t page)
{
    const struct ibx_snapshot_multicast *m = context;
    const unsigned block = ibx_page_map_block(m->map, page);
    const uint64_t within = page - m->map->blocks[block].first;
    if (m->has && !m->has(m->context, page))
        return NULL;
    return (const uint8_t *)m->memory[block] + within * IBX_SNAPSHOT_PAGE;
}

/* Whether most pages of a chunk are there. A server that is a cache, perhaps filled by multicast
 * itself, sends a chunk on although some of its pages are missing. */
static bool is_ready(void *context, uint64_t first, uint64_t pages)
{
    const struct ibx_snapshot_multicast *m = context;
    uint64_t data = 0, missing = 0;
    for (uint64_t page = first; m->has && page < first + pages; page++)
        data += ibx_page_map_data(m->map, page);
    for (uint64_t page = first; data && page < first + pages; page++) {
        missing += ibx_page_map_data(m->map, page) && !m->has(m->context, page);
        if (missing * MISSING_SHARE > data)
            return false;
    }
    return true;
}

int ibx_snapshot_multicast_open(struct ibx_snapshot_multicast *m,
                                const struct ibx_snapshot_multicast_options *options, bool six,
                                struct ibx_error *err)
{
    struct ibx_multicast_sender_config config = {
        .rate = options->rate ? options->rate : IBX_MULTICAST_RATE,
        .hops = options->hops ? options->hops : IBX_MULTICAST_HOPS,
        .pages = m->map->blocks[m->manifest->ram_count].first,
        .data = m->map->bits,
        .memory = memory_of,
        .ready = is_ready,
        .context = m};
    unsigned index = 0;
    int rc = 0;
    if (!m->manifest->hashed)
        return ibx_error_set(err, -EINVAL,
                             "a snapshot without hashes of its pages is not sent by multicast, "
                             "where every member could forge them: leave out --no-verify or "
                             "--multicast");
    if (options->interface)
        rc = ibx_multicast_interface(options->interface, NULL, &index, err);
    if (!rc)
        rc = ibx_multicast_group_choose(options->group, six, &config.group, err);
    if (!rc)
        rc = ibx_multicast_out_check(&config.group, index, config.hops, err);
    return rc ? rc : ibx_multicast_sender_create(&config, &m->sender, err);
}

/* ------------------------------------------------------------ a reader's connection */

struct feeding {
    const struct ibx_snapshot_server_config *config;
    struct ibx_conn *conn;
    unsigned timeout_ms, interface;
    _Atomic bool *closing;
    uint8_t *wanted; /* a bit for each chunk, in whole u64 */
    uint32_t length, got;
    struct ibx_multicast_member *member;
};

static void refuse(const struct feeding *f, const struct ibx_error *why)
{
    struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_NO_GROUP, .code = why->code};
    const size_t length = strlen(why->message);
    message.bytes.bytes = (const uint8_t *)why->message;
    message.bytes.length = length < NO_GROUP_TEXT ? length : NO_GROUP_TEXT;
    ibx_snapshot_send(f->conn, &message, ibx_deadline_in_ms(f->timeout_ms), NULL);
}

static int find_group(struct feeding *f, const struct ibx_snapshot_any *join, struct ibx_error *err)
{
    struct ibx_peer peer;
    if (!f->config->multicast)
        return ibx_error_set(err, -EOPNOTSUPP,
                             "it sends nothing by multicast: serve there with --multicast");
    if (memcmp(join->id, f->config->manifest->id, sizeof(join->id)))
        return ibx_error_set(err, -ESTALE, "it serves another snapshot now");
    ibx_peer_of(f->conn, &peer);
    if (!f->config->interface && strchr(peer.address, ' '))
        return ibx_error_set(err, -EADDRNOTAVAIL,
                             "no interface leads to a reader that came by a %s: give "
                             "--multicast-interface there",
                             peer.address);
    return ibx_multicast_interface(f->config->interface, peer.address, &f->interface, err);
}

static int send_group(const struct feeding *f, struct ibx_error *err)
{
    struct ibx_snapshot_any message = {.type = IBX_SNAPSHOT_GROUP};
    uint8_t secret[IBX_SECRET_BYTES];
    message.group = *ibx_multicast_sender_group(f->config->multicast);
    ibx_conn_secret(f->conn, IBX_SNAPSHOT_SECRET, secret);
    const bool sealed = ibx_multicast_key_seal(secret, &message.group, message.sealed);
    OPENSSL_cleanse(secret, sizeof(secret));
    OPENSSL_cleanse(message.group.key, sizeof(message.group.key));
    return sealed ? ibx_snapshot_send(f->conn, &message, ibx_deadline_in_ms(f->timeout_ms), err)
                  : ibx_error_set(err, -EIO, "OpenSSL cannot seal the key of a group");
}

/* Takes a WANT message: a part of the bits for the chunks that the reader wants. */
static int take_want(struct feeding *f, const struct ibx_event *event, struct ibx_error *err)
{
    struct ibx_snapshot_any m;
    int rc = ibx_snapshot_decode(event->data, event->length, &m, err);
    if (rc)
        return rc;
    if (m.type != IBX_SNAPSHOT_WANT || m.length != f->length || m.offset != f->got ||
        f->got == f->length)
        return ibx_error_set(err, -EPROTO,
                             "message %d with byte %u of %u is not what it wants of %u bytes",
                             (int)m.type, m.offset, m.length, f->length);
    memcpy(f->wanted + f->got, m.bytes.bytes, m.bytes.length);
    f->got += (uint32_t)m.bytes.length;
    return 0;
}

/* Takes a HEARD message: how many datagrams the reader has received. */
static int take_heard(const struct feeding *f, const struct ibx_event *event, struct ibx_error *err)
{
    struct ibx_snapshot_any m;
    const int rc = ibx_snapshot_decode(event->data, event->length, &m, err);
    if (rc)
        return rc;
    if (m.type == IBX_SNAPSHOT_HEARD && ibx_multicast_member_heard(f->member, m.through, m.packets))
        return 0;
    return ibx_error_set(err, -EPROTO, "message %d is not what a member has heard", (int)m.type);
}

/* Handles a message, or waits for one. 1: the connection has ended. */
static int step(struct feeding *f, uint64_t deadline, struct ibx_error *err)
{
    struct ibx_event event;
    const int n = ibx_poll(f->conn, &event, 1);
    int rc = 0;
    if (n < 0 || (n && event.type == IBX_EVENT_CLOSED))
        return 1;
    if (n && event.type == IBX_EVENT_MESSAGE) {
        rc = f->member ? take_heard(f, &event, err) : take_want(f, &event, err);
        ibx_message_release(f->conn, &event);
    } else if (!n) {
        ibx_wait(f->conn, deadline ? ibx_ms_until(deadline) : -1);
    }
    return rc;
}

/* Waits until the reader has said what it wants. 1: the connection has ended. */
static int await_want(struct feeding *f, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(f->timeout_ms);
    int rc = 0;
    while (!rc && f->got < f->length && !*f->closing) {
        if (ibx_now_ns() >= deadline)
            return ibx_error_set(err, -ETIMEDOUT, "it did not say within %u ms what it wants",
                                 f->timeout_ms);
        rc = step(f, deadline, err);
    }
    return rc;
}

static void wake(void *conn)
{
    ibx_wake(conn);
}

/* Converts the bits from the wire to words of this host, in place. */
static const uint64_t *as_words(const struct feeding *f)
{
    uint64_t *words = (uint64_t *)(void *)f->wanted;
    for (uint32_t i = 0; i < (f->length + 7) / 8; i++)
        words[i] = ibx_le64(words[i]);
    return words;
}

/* Lets the reader be a member until it was sent everything, or nothing can be sent to it any more,
 * and tells it so. */
static int feed(struct feeding *f, struct ibx_error *err)
{
    struct ibx_snapshot_any fed = {.type = IBX_SNAPSHOT_FED};
    struct ibx_error why = {0};
    int rc = 0, state = 0;
    while (!rc && !*f->closing &&
           !(state = ibx_multicast_member_state(f->member, &fed.packets, &why)))
        rc = step(f, 0, err);
    if (state < 0) {
        ibx_log(IBX_LOG_WARN, "%s", why.message);
        refuse(f, &why);
    } else if (state) { /* errors are ignored: the reader may have all pages, and be gone */
        ibx_snapshot_send(f->conn, &fed, ibx_deadline_in_ms(f->timeout_ms), NULL);
    }
    return rc;
}

/* Waits until the reader closes the connection. */
static void linger(struct feeding *f)
{
    const uint64_t deadline = ibx_deadline_in_ms(f->timeout_ms);
    while (!*f->closing && ibx_now_ns() < deadline && !step(f, deadline, NULL))
        ;
}

static int begin(struct feeding *f, const struct ibx_snapshot_any *join, struct ibx_error *err)
{
    struct ibx_error why = {0};
    if (find_group(f, join, &why)) {
        refuse(f, &why);
        linger(f);
        return 1;
    }
    const uint64_t pages = f->config->map->blocks[f->config->manifest->ram_count].first;
    f->length = (uint32_t)((ibx_multicast_chunks(pages) + 7) / 8);
    f->wanted = calloc((f->length + 7) / 8, 8);
    int rc = f->wanted ? send_group(f, err)
                       : ibx_error_set(err, -ENOMEM, "no memory for a member of the group");
    return rc ? rc : await_want(f, err);
}

int ibx_snapshot_multicast_serve(const struct ibx_snapshot_server_config *config,
                                 struct ibx_conn *conn, const struct ibx_snapshot_any *join,
                                 unsigned timeout_ms, _Atomic bool *closing, struct ibx_error *err)
{
    struct feeding f = {
        .config = config, .conn = conn, .timeout_ms = timeout_ms, .closing = closing};
    struct ibx_error why = {0};
    int rc = begin(&f, join, err);
    if (!rc && !*closing) {
        if (ibx_multicast_join(config->multicast, f.interface, as_words(&f), wake, conn, &f.member,
                               &why))
            refuse(&f, &why);
        else
            rc = feed(&f, err);
        if (!rc)
            linger(&f);
    }
    ibx_multicast_leave(f.member);
    free(f.wanted);
    return rc < 0 ? rc : 0;
}
