/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a client whose connection has broken finds its server again, soon after the server can be
 * reached; its calls wait meanwhile. A connection request that is not answered is given up early
 * and repeated, because TCP would repeat it only after one second, then two. After a change of this
 * host's addresses, routes or links there is an attempt at once. The address that answered last is
 * tried first, because a resolver may be unreachable for longer than the server; no attempt waits
 * for long until it answers.
 */
#include "frontend-glue/session/session_internal.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SOON_MS      2000u /* for so long attempts are frequent */
#define ANSWER_MS    100u  /* how long to wait for an answer, or 3 round trips if longer */
#define EACH_TIMES   8u    /* attempts with the same limit, later */
#define PAUSE_MS     10u   /* the first pause between attempts that failed at once */
#define PAUSE_SOON   50u   /* the longest pause while attempts are frequent */
#define PAUSE_MAX    500u
#define BETWEEN_MS   2u  /* the least time between attempts, however often the network changes */
#define BETWEEN_MAX  50u /* the same after many attempts for that reason */
#define HASTY_TIMES  16u /* attempts with the shorter time */
#define WAITED_FDS   2u
#define DOUBLED_MOST 10u

#define FUTILE_MIN 4u /* futile connections; the last ones use short packets */
#define RESET_MIN_MS                                                                               \
    4000u /* a server takes 2 seconds at least to notice that its packets are lost */

/* Whether the connection is so young that its end may have this reason. */
static bool is_young(const struct ibx_session *s)
{
    const unsigned ms = s->options.timeout_ms;
    const uint64_t lived = ibx_now_ns() - s->link.resumed_at;
    return s->link.resumed && lived < (ms > RESET_MIN_MS ? ms : RESET_MIN_MS) * IBX_NS_PER_MS;
}

/* Detects packets that are too long for the network, of this end or of the server. They end a
 * connection soon after it was made, without anything received on it. A dead server would not have
 * accepted the connection. A connection that ends later, or on which something was received, has
 * another reason: calls may take hours, and a network that closes connections now and then ends no
 * session. */
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

static void end_lookup(struct reconnect *reconnect)
{
    ibx_lookup_end(reconnect->lookup);
    reconnect->lookup = NULL;
}

void ibx_reconnect_end(struct reconnect *reconnect)
{
    if (reconnect->changes_fd >= 0)
        close(reconnect->changes_fd);
    reconnect->changes_fd = -1;
    end_lookup(reconnect);
}

/* How long to wait for an answer, ms: by this server's round trips so far, later longer. */
static unsigned answer_ms(const struct ibx_session *s, const struct reconnect *reconnect)
{
    const unsigned trips = 3 * reconnect->round_trip_ms, most = s->options.timeout_ms;
    const unsigned first = trips > ANSWER_MS ? trips : ANSWER_MS;
    return doubled(first, is_soon(reconnect) ? 0 : reconnect->attempts / EACH_TIMES, most);
}

static int connect_to(struct ibx_session *s, struct reconnect *reconnect, const struct ibx_uri *uri,
                      const struct ibx_lookup *lookup, unsigned connect_ms, struct ibx_conn **fresh,
                      struct ibx_error *err)
{
    struct ibx_claim claim = {.secret = s->link.secret, .connect_ms = connect_ms, .lookup = lookup};
    struct ibx_options options = s->options; /* with the options in the URI */
    char text[sizeof(uri->host) + 64];
    memcpy(claim.id, s->link.id, sizeof(claim.id));
    options.claim = &claim;
    options.keys = &s->link.keys;
    ibx_uri_print(uri, text, sizeof(text));
    int rc = ibx_connect(text, &options, fresh, err);
    reconnect->reached = claim.reached;
    reconnect->refused = claim.refused;
    return rc;
}

/* Has the addresses in reconnect->lookup. -EAGAIN: a resolver does not answer, so the next attempt
 * begins with the last address again. */
static int look_up(struct ibx_session *s, struct reconnect *reconnect, const struct ibx_uri *uri,
                   unsigned connect_ms, struct ibx_error *err)
{
    const unsigned wait_ms = connect_ms < ANSWER_MS ? connect_ms : ANSWER_MS;
    if (uri->path[0])
        return 0;
    int rc = reconnect->lookup ? 0 : ibx_lookup_begin(uri, &reconnect->lookup, err);
    if (!rc)
        rc = ibx_lookup_wait(reconnect->lookup, wait_ms, err);
    if (rc && rc != -EAGAIN)
        end_lookup(reconnect);
    if (!rc && ibx_lookup_hosts(reconnect->lookup) > 1)
        s->link.one_host = false;
    return rc;
}

/* Whether a refusal by the server to which the name leads now is the end, though the address that
 * answered last is silent. A name that leads to one host leads to that host's new address, or to
 * what has taken its place. The moment is for a name that differs from network to network, on a
 * host that is just changing its own. */
static bool has_moved(const struct ibx_session *s, const struct reconnect *reconnect)
{
    return s->link.one_host && !is_soon(reconnect);
}

/* The address at which the server answered last; NULL: it is no IP address, or it is the one in the
 * URI. */
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

/* The server is reachable, but does not accept tcp: nothing can carry what is under way, unless
 * memory can be registered on another path. */
static int without_tcp(struct ibx_session *s, int rc, struct ibx_error *err)
{
    if (rc != -ENOTSUP || !s->link.only_tcp)
        return rc;
    const struct ibx_error why = *err;
    if (s->link.only_tcp == BY_TCP_FOR_MEMORY) {
        s->link.only_tcp = BY_ANY_PATH;
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

int ibx_reconnect(struct ibx_session *s, struct reconnect *reconnect, struct ibx_conn **fresh,
                  struct ibx_error *err)
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
    reconnect->reached = reconnect->refused = false;
    const unsigned limit_ms = answer_ms(s, reconnect);
    bool silent = false; /* the last address did not answer */
    last = uri;
    if (last_address(s, &uri, address, sizeof(address))) {
        memcpy(last.host, address, sizeof(last.host));
        rc = connect_to(s, reconnect, &last, NULL, limit_ms / 2, fresh, err);
        if (!rc || reconnect->reached)
            return without_tcp(s, rc, err);
        silent = !reconnect->refused;
    }
    struct ibx_error why;
    const int unknown = look_up(s, reconnect, &uri, limit_ms, &why);
    if (unknown && reconnect->refused) /* and nobody else can be asked */
        return rc;
    if (unknown)
        return ibx_error_set(err, unknown, "%s", why.message);
    rc = connect_to(s, reconnect, &uri, reconnect->lookup, limit_ms, fresh, err);
    end_lookup(reconnect);
    if (silent && !has_moved(s, reconnect)) /* a name may resolve to several servers */
        reconnect->refused = false;
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
    s->link.only_tcp = BY_TCP_FOR_LENGTH;
    return ibx_error_set(err, -EAGAIN, "that path carries shorter messages");
}

int ibx_reconnect_unregistered(struct ibx_session *s, int rc, struct ibx_error *err)
{
    const bool by_tcp = rc != -ENOTCONN && tcp_is_allowed(s) && !s->link.only_tcp;
    if (by_tcp)
        s->link.only_tcp = BY_TCP_FOR_MEMORY;
    return ibx_error_set(err, by_tcp ? -EAGAIN : rc,
                         "memory cannot be registered anew, by the client or by the server: %s",
                         strerror(-rc));
}

/* A network that changes all the time must not cause an attempt each time. */
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
