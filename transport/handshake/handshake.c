/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The dialogue at the door: prove, agree, set up. docs/protocol.md has the
 * frames byte by byte.
 *
 *   client                                server
 *   HELLO nonce, slots, message  ------>
 *                                <------  CHALLENGE nonce, host, slots, message
 *   PROOF                        ------>                                     | no MAC
 *                                <------  PROOF                              v
 *   TRY provider                 ------>                                     | MAC on
 *                                <------  OFFER blob   (or RESULT reason)    | every frame
 *   ANSWER blob                  ------>               (or RESULT reason)    v
 *        ...both set the provider up...
 *   RESULT                       <----->  RESULT
 *   (unless both are 0: the next TRY, or the end)
 *
 * Every frame: u32 length of what follows, u8 type, payload, and once both have
 * proven themselves 16 bytes of MAC over direction, number and frame.
 */
#include "transport/handshake/handshake.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

static void note_refusal(struct ibx_conn *conn, const char *name, const char *reason)
{
    struct ibx_path *path = &conn->path;
    if (path->refused_count == sizeof(path->refused) / sizeof(path->refused[0]))
        return;
    unsigned i = path->refused_count++;
    snprintf(path->refused[i].provider, sizeof(path->refused[i].provider), "%s", name);
    snprintf(path->refused[i].reason, sizeof(path->refused[i].reason), "%.255s", reason);
    ibx_log(IBX_LOG_INFO, "%s with %s refused: %s", name, path->peer, reason);
}

/* As ibx_handshake_reason_get(). Whose device is missing decides who has to act: what the peer says
 * is marked as its. */
static int take_reason(const struct ibx_conn *conn, struct ibx_reader *payload, char reason[256])
{
    char said[256] = "";
    int code = ibx_handshake_reason_get(payload, said, sizeof(said));
    snprintf(reason, 256, "on the %s: %.239s", conn->role == IBX_ROLE_SERVER ? "client" : "server",
             said);
    return code;
}

/* Is `name` in the comma-separated list of wanted providers? */
static bool wanted(const char *list, const char *name)
{
    size_t n = strlen(name);
    if (!strcmp(list, "auto"))
        return true;
    for (const char *p = list; *p;) {
        size_t m = strcspn(p, ",");
        if (m == n && !memcmp(p, name, n))
            return true;
        p += m + (p[m] == ',');
    }
    return false;
}

static int endpoint_open(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    conn->inner = ibx_provider_find(name);
    if (!conn->inner)
        return ibx_error_set(err, -ENOSYS, "%.15s is not in this build", name);
    conn->provider = conn->inner;
#ifdef IBX_WITH_FAULTY
    if (conn->options.faults)
        conn->provider = &ibx_provider_faulty;
#endif
    conn->door.result_known = false;
    void *endpoint = NULL;
    int rc = conn->provider->open(&conn->link, &endpoint, err);
    conn->endpoint = rc ? NULL : endpoint;
    return rc;
}

static void endpoint_close(struct ibx_conn *conn)
{
    if (!conn->endpoint)
        return;
    conn->provider->close(conn->endpoint);
    conn->endpoint = NULL;
}

static int send_result(struct ibx_conn *conn, int code, const char *reason, uint64_t deadline)
{
    struct door_frame frame;
    ibx_handshake_frame_begin(&frame, FRAME_RESULT);
    ibx_handshake_reason_put(&frame.out, code, reason);
    return ibx_handshake_frame_send(conn, &frame, deadline);
}

/* Receives the peer's RESULT unless ibx_handshake_wait() has met it. Negative: the door broke. */
static int learn_result(struct ibx_conn *conn, uint64_t deadline, struct ibx_error *err)
{
    struct door_frame frame;
    struct door *door = &conn->door;
    if (door->result_known)
        return 0;
    int rc = ibx_handshake_expect(conn, &frame, FRAME_RESULT, deadline, err);
    if (rc)
        return rc;
    door->result = take_reason(conn, &frame.payload, door->result_reason);
    door->result_known = true;
    return 0;
}

int ibx_handshake_wait(struct ibx_conn *conn, int fd, short events, uint64_t deadline)
{
    struct door *door = &conn->door;
    for (;;) {
        struct pollfd wait[2] = {{.fd = fd, .events = events}, {.fd = door->fd, .events = POLLIN}};
        int rc = poll(wait, door->result_known ? 1 : 2, ibx_ms_until(deadline));
        if (rc < 0 && errno != EINTR)
            return -errno;
        if (rc == 0)
            return -ETIMEDOUT;
        if (rc > 0 && wait[0].revents)
            return 0;
        if (rc > 0 && wait[1].revents) {
            if (learn_result(conn, deadline, NULL)) {
                door->result_known = true;
                door->result = -ECONNRESET;
                snprintf(door->result_reason, sizeof(door->result_reason), "the peer went away");
            }
            if (door->result)
                return -ECANCELED;
        }
    }
}

/* After `rc` from this side's finish: tells it, learns the peer's. 0 when both stand; 1 when this
 * provider failed (reason noted, the next may be tried); negative when the door broke. */
static int exchange_results(struct ibx_conn *conn, const char *name, int rc,
                            const struct ibx_error *why, struct ibx_error *err)
{
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int sent = send_result(conn, rc, why->message, deadline);
    if (sent)
        return ibx_handshake_broken(conn, sent, err);
    int learned = learn_result(conn, deadline, err);
    if (learned)
        return learned;
    if (!rc && !conn->door.result)
        return 0;
    note_refusal(conn, name, rc && rc != -ECANCELED ? why->message : conn->door.result_reason);
    return 1;
}

/* Instead of the frame that this side was to send; as exchange_results(). */
static int refuse(struct ibx_conn *conn, const char *name, int status, const struct ibx_error *why,
                  uint64_t deadline, struct ibx_error *err)
{
    note_refusal(conn, name, why->message);
    int rc = send_result(conn, status, why->message, deadline);
    return rc ? ibx_handshake_broken(conn, rc, err) : 1;
}

/* The peer's. */
static void note_peers_refusal(struct ibx_conn *conn, const char *name, struct ibx_reader *payload)
{
    char reason[256];
    take_reason(conn, payload, reason);
    note_refusal(conn, name, reason);
}

/* As exchange_results(). */
static int try_provider(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    struct door_frame frame;
    struct ibx_error why = {0};
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int rc = endpoint_open(conn, name, &why);
    if (rc) {
        note_refusal(conn, name, why.message);
        return 1;
    }
    ibx_handshake_frame_begin(&frame, FRAME_TRY);
    ibx_put_string(&frame.out, name);
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (!rc)
        rc = ibx_handshake_frame_receive(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    if (frame.type == FRAME_RESULT) {
        note_peers_refusal(conn, name, &frame.payload);
        return 1;
    }
    if (frame.type != FRAME_OFFER)
        return ibx_handshake_broken(conn, -EPROTO, err);

    struct door_frame answer;
    ibx_handshake_frame_begin(&answer, FRAME_ANSWER);
    rc = conn->provider->join(conn->endpoint, &frame.payload, &answer.out, &why);
    if (rc)
        return refuse(conn, name, rc, &why, deadline, err);
    rc = ibx_handshake_frame_send(conn, &answer, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    rc = conn->provider->finish(conn->endpoint, NULL, ibx_deadline_in_ms(conn->options.timeout_ms),
                                &why);
    return exchange_results(conn, name, rc, &why, err);
}

/* What the server thinks of a provider the client wants; as exchange_results(). */
static int serve_provider(struct ibx_conn *conn, const char *name, struct ibx_error *err)
{
    struct door_frame frame;
    struct ibx_error why = {0};
    uint64_t deadline = ibx_deadline_in_ms(conn->options.timeout_ms);
    int rc = 0;
    if (!wanted(conn->options.provider, name))
        rc = ibx_error_set(&why, -EPERM, "only provider : %s is allowed", conn->options.provider);
    if (!rc)
        rc = endpoint_open(conn, name, &why);
    ibx_handshake_frame_begin(&frame, FRAME_OFFER);
    if (!rc)
        rc = conn->provider->offer(conn->endpoint, &frame.out, &why);
    if (rc)
        return refuse(conn, name, rc, &why, deadline, err);
    rc = ibx_handshake_frame_send(conn, &frame, deadline);
    if (!rc)
        rc = ibx_handshake_frame_receive(conn, &frame, deadline);
    if (rc)
        return ibx_handshake_broken(conn, rc, err);
    if (frame.type == FRAME_RESULT) {
        note_peers_refusal(conn, name, &frame.payload);
        return 1;
    }
    if (frame.type != FRAME_ANSWER)
        return ibx_handshake_broken(conn, -EPROTO, err);
    rc = conn->provider->finish(conn->endpoint, &frame.payload,
                                ibx_deadline_in_ms(conn->options.timeout_ms), &why);
    return exchange_results(conn, name, rc, &why, err);
}

static int none_left(struct ibx_conn *conn, struct ibx_error *err)
{
    char list[IBX_ERROR_MAX] = "";
    for (unsigned i = 0; i < conn->path.refused_count; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof(list) - n, "%s%s: %s", i ? "; " : "",
                 conn->path.refused[i].provider, conn->path.refused[i].reason);
    }
    return ibx_error_set(err, -ENOTSUP, "no path to %s: %.600s", conn->path.peer,
                         list[0] ? list : "the client named no provider");
}

int ibx_handshake_server(struct ibx_conn *conn, struct ibx_error *err)
{
    int rc = ibx_handshake_prove_server(conn, ibx_deadline_in_ms(conn->options.timeout_ms), err);
    for (unsigned tries = 0; !rc && tries < IBX_PROVIDERS_MAX; tries++) {
        struct door_frame frame;
        char name[16];
        rc =
            ibx_handshake_frame_receive(conn, &frame, ibx_deadline_in_ms(conn->options.timeout_ms));
        if (rc == -ECONNRESET && tries)
            return none_left(conn, err);
        if (!rc && frame.type != FRAME_TRY)
            rc = -EPROTO;
        if (rc)
            return ibx_handshake_broken(conn, rc, err);
        ibx_get_string(&frame.payload, name, sizeof(name));
        ibx_text_sanitize(name);
        if (frame.payload.failed)
            return ibx_handshake_broken(conn, -EPROTO, err);
        int result = serve_provider(conn, name, err);
        if (!result)
            return ibx_conn_live(conn, err);
        endpoint_close(conn);
        if (result < 0)
            return result;
    }
    return rc ? rc : none_left(conn, err);
}

/* The client's own reason not to try one, or NULL. */
static const char *unsuitable(const char *name, bool same_host)
{
    if (!strcmp(name, "shm") && !same_host)
        return "the server is on another host";
    return NULL;
}

static int client_try_all(struct ibx_conn *conn, bool same_host, struct ibx_error *err)
{
    char list[sizeof(conn->options.provider)];
    if (!strcmp(conn->options.provider, "auto"))
        snprintf(list, sizeof(list), "shm,verbs,ofi,tcp");
    else
        memcpy(list, conn->options.provider, sizeof(list));
    char *save = NULL;
    for (char *name = strtok_r(list, ",", &save); name; name = strtok_r(NULL, ",", &save)) {
        const char *reason = unsuitable(name, same_host);
        if (reason) {
            note_refusal(conn, name, reason);
            continue;
        }
        int rc = try_provider(conn, name, err);
        if (!rc)
            return ibx_conn_live(conn, err);
        endpoint_close(conn);
        if (rc < 0)
            return rc;
    }
    return none_left(conn, err);
}

int ibx_handshake_client(struct ibx_conn *conn, struct ibx_error *err)
{
    bool same_host = false;
    int rc = ibx_handshake_prove_client(conn, ibx_deadline_in_ms(conn->options.timeout_ms),
                                        &same_host, err);
    return rc ? rc : client_try_all(conn, same_host, err);
}
