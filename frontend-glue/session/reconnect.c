/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a client whose connection has broken finds its server again, soon after that can be reached:
 * its calls wait meanwhile. So a request for a connection that is not answered is given up early
 * and made again, since TCP would repeat it after a second, then two; and a change of this host's
 * addresses, routes or links is followed by an attempt at once. The address that answered before
 * comes first: a resolver may be out of reach for longer than the server.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SOON_MS      2000u /* so long attempts are frequent */
#define ANSWER_MS    100u  /* for an answer to a request for a connection, or 3 round trips */
#define EACH_TIMES   8u    /* attempts with one length, later */
#define PAUSE_MS     10u   /* between two attempts that failed at once, at first */
#define PAUSE_SOON   50u   /* at most, while they are frequent */
#define PAUSE_MAX    500u
#define BETWEEN_MS   2u  /* attempts, however often the network changes */
#define BETWEEN_MAX  50u /* the same, after many of them for that alone */
#define HASTY_TIMES  16u /* these with one length */
#define WAITED_FDS   2u
#define DOUBLED_MOST 10u

#define FUTILE_MIN 4u /* connections that bring nothing: the last ones' packets are short */
#define RESET_MIN_MS                                                                               \
    4000u /* a server takes 2 seconds at least to notice that its packets are lost */

/* So long after it was made a connection may be reset for that. */
static bool is_young(const struct ibx_session *s)
{
    const unsigned ms = s->options.timeout_ms;
    const uint64_t lived = ibx_now_ns() - s->link.resumed_at;
    return s->link.resumed && lived < (ms > RESET_MIN_MS ? ms : RESET_MIN_MS) * IBX_NS_PER_MS;
}

/* Packets of this end, or of the server, that were too long for the network. The latter ends a
 * connection soon after it was made, with nothing between, and only so; by a server that has died
 * it would not be made. What ends one later, or one that has brought something, is another matter:
 * calls may take hours, and a network that closes connections now and then ends no session. */
int ibx_reconnect_judge(struct ibx_session *s, struct ibx_error *err)
{
    struct futile *futile = &s->link.futile;
    const uint64_t taken = s->link.taken[ORDER_STREAM] + s->link.taken[ORDER_CONTROL];
    const uint64_t now = ibx_now_ns();
    const int status = ibx_conn_status(s->conn);
    const bool brought = taken != futile->taken;
    if (brought || (status != -EMSGSIZE && !is_young(s)))
        *futile = (struct futile){.taken = taken};
    if (status != -EMSGSIZE && (status != -ECONNRESET || brought || !is_young(s)))
        return 0;
    if (!futile->times++)
        futile->since = now;
    if (status == -ECONNRESET)
        ibx_conn_packets_lost(s->conn);
    const uint64_t ms = (now - futile->since) / IBX_NS_PER_MS;
    if (futile->times < FUTILE_MIN || ms < s->link.agreed * 1000)
        return 0;
    return ibx_error_set(err, -EMSGSIZE,
                         "%u connections in %u seconds brought nothing, though each was answered",
                         futile->times, (unsigned)(ms / 1000));
}

static unsigned doubled(unsigned ms, unsigned times, unsigned most)
{
    const unsigned long long more = (unsigned long long)ms
                                    << (times < DOUBLED_MOST ? times : DOUBLED_MOST);
    return more < most ? (unsigned)more : most;
}

static bool is_soon(const struct reconnect *reconnect)
{
    return ibx_now_ns() - reconnect->began < SOON_MS * IBX_NS_PER_MS;
}

void ibx_reconnect_begin(const struct ibx_session *s, struct reconnect *reconnect)
{
    const uint64_t ns = ibx_conn_path(s->conn)->round_trip_ns;
    *reconnect = (struct reconnect){
        .began = ibx_now_ns(),
        .round_trip_ms = (unsigned)(ns / IBX_NS_PER_MS) + 1,
        .changes_fd = ibx_network_changes(),
    };
}

void ibx_reconnect_end(struct reconnect *reconnect)
{
    if (reconnect->changes_fd >= 0)
        close(reconnect->changes_fd);
    reconnect->changes_fd = -1;
}

/* Milliseconds within which an answer would have come: by what this server took so far, then more.
 */
static unsigned answer_ms(const struct ibx_session *s, const struct reconnect *reconnect)
{
    const unsigned trips = 3 * reconnect->round_trip_ms, most = s->options.timeout_ms;
    const unsigned first = trips > ANSWER_MS ? trips : ANSWER_MS;
    return doubled(first, is_soon(reconnect) ? 0 : reconnect->attempts / EACH_TIMES, most);
}

static int connect_to(struct ibx_session *s, const struct ibx_uri *uri, unsigned connect_ms,
                      bool *reached, struct ibx_conn **fresh, struct ibx_error *err)
{
    struct ibx_claim claim = {.secret = s->link.secret, .connect_ms = connect_ms};
    struct ibx_options options = s->options; /* with what the URI asks for */
    char text[sizeof(uri->host) + 64];
    memcpy(claim.id, s->link.id, sizeof(claim.id));
    options.claim = &claim;
    options.keys = &s->link.keys;
    ibx_uri_print(uri, text, sizeof(text));
    int rc = ibx_connect(text, &options, fresh, err);
    *reached = claim.reached;
    return rc;
}

/* Where the server answered last, as text; NULL: that is no address, or the one in the URI. */
static const char *last_address(const struct ibx_session *s, const struct ibx_uri *uri, char *text,
                                size_t size)
{
    struct ibx_uri last;
    snprintf(text, size, "rdma://%s", s->path.peer);
    if (uri->path[0] || ibx_uri_parse(text, &last, NULL) || !strcmp(last.host, uri->host))
        return NULL;
    snprintf(text, size, "%s", last.host);
    return text;
}

/* Who answered is no server of this session's. */
static bool is_refusal(int rc)
{
    return rc == -ESTALE || rc == -EACCES;
}

/* The server is there; if it takes no tcp, nothing carries what is under way, unless another path
 * comes to register memory. */
static int without_tcp(struct ibx_session *s, int rc, struct ibx_error *err)
{
    if (rc != -ENOTSUP || !s->link.only_tcp)
        return rc;
    const struct ibx_error why = *err;
    if (s->link.unregistered) {
        s->link.only_tcp = s->link.unregistered = false;
        return ibx_error_set(
            err, -EAGAIN,
            "memory cannot be registered again, and tcp, which does not need that, failed: %.300s",
            why.message);
    }
    return ibx_error_set(err, -EMSGSIZE,
                         "the transfer under way can continue only over tcp: %.300s; allow tcp in "
                         "rdma.provider, at both ends",
                         why.message);
}

int ibx_reconnect(struct ibx_session *s, struct reconnect *reconnect, bool *reached,
                  struct ibx_conn **fresh, struct ibx_error *err)
{
    struct ibx_uri uri, last;
    char address[sizeof(uri.host) + 64];
    int rc = ibx_uri_parse(s->uri, &uri, err);
    if (rc)
        return rc;
    if (reconnect->changes_fd >= 0)
        ibx_network_changes_seen(reconnect->changes_fd);
    /* The session's options have the providers that the URI names, in its scheme or its query. */
    snprintf(uri.scheme, sizeof(uri.scheme), s->link.only_tcp && !uri.path[0] ? "tcp" : "rdma");
    reconnect->attempts++;
    const unsigned limit_ms = answer_ms(s, reconnect);
    bool silent = false; /* where it answered last */
    last = uri;
    if (last_address(s, &uri, address, sizeof(address))) {
        memcpy(last.host, address, sizeof(last.host));
        rc = connect_to(s, &last, limit_ms / 2, reached, fresh, err);
        if (!rc || *reached)
            return without_tcp(s, rc, err);
        silent = !is_refusal(rc);
    }
    rc = connect_to(s, &uri, limit_ms, reached, fresh, err);
    if (silent && !*reached && is_refusal(rc)) /* a name may have addresses of several servers */
        return -EAGAIN;
    return without_tcp(s, rc, err);
}

static bool tcp_is_allowed(const struct ibx_session *s)
{
    const char *provider = s->options.provider;
    return !strcmp(provider, "auto") || strstr(provider, "tcp");
}

int ibx_reconnect_by_tcp(struct ibx_session *s, struct ibx_error *err)
{
    const bool forbidden = !tcp_is_allowed(s);
    if (forbidden || s->link.only_tcp)
        return ibx_error_set(err, -EMSGSIZE,
                             "a message under way is longer than this path can carry, and %s: "
                             "allow tcp in rdma.provider, at both ends",
                             forbidden ? "tcp, which would, is not allowed here"
                                       : "tcp carries no longer ones now");
    s->link.only_tcp = true;
    return ibx_error_set(err, -EAGAIN, "that path carries shorter messages");
}

int ibx_reconnect_unregistered(struct ibx_session *s, int rc, struct ibx_error *err)
{
    const bool by_tcp = rc != -ENOTCONN && tcp_is_allowed(s) && !s->link.only_tcp;
    if (by_tcp)
        s->link.only_tcp = s->link.unregistered = true;
    return ibx_error_set(err, by_tcp ? -EAGAIN : rc,
                         "memory cannot be registered anew, by the client or by the server: %s",
                         strerror(-rc));
}

/* A network that changes all the time would make an attempt each time. */
void ibx_reconnect_pause(const struct ibx_session *s, struct reconnect *reconnect, int rc)
{
    const unsigned most = is_soon(reconnect) ? PAUSE_SOON : PAUSE_MAX;
    struct pollfd wait[WAITED_FDS] = {{.fd = reconnect->changes_fd, .events = POLLIN},
                                      {.fd = s->link.peer_fd, .events = POLLIN}};
    poll(NULL, 0, (int)doubled(BETWEEN_MS, reconnect->hasty / HASTY_TIMES, BETWEEN_MAX));
    if (rc != -ETIMEDOUT)
        reconnect->hasty +=
            poll(wait, WAITED_FDS, (int)doubled(PAUSE_MS, reconnect->attempts - 1, most)) > 0;
}
