/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The dialogue: authenticate, then try providers until both sides have set one up.
 * docs/protocol.md has the frames byte by byte.
 *
 *   client                                server
 *   HELLO nonce, public key      ------>
 *                                <------  CHALLENGE nonce, public key, host
 *   PROOF                        ------>                                     | no MAC
 *                                <------  PROOF                              v
 *        TLS begins, if both ends agreed on it; if not, TRY follows the client's PROOF at once
 *   TRY provider                 ------>                                     | MAC on
 *                                <------  OFFER blob   (or RESULT reason)    | every frame
 *   ANSWER blob                  ------>               (or RESULT reason)    v
 *        both set the provider up
 *   RESULT                       <----->  RESULT
 *   (unless both are 0: the next TRY, or the end)
 *
 * Every frame: u32 length of what follows, u8 type, payload, and after its sender's
 * PROOF 16 bytes of MAC over direction, number and frame.
 */
#include "transport/handshake/handshake.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 50 /* at most, between two tries with a busy server */
#define NEXT     1  /* this provider failed: the next one may be tried */

static const struct ibx_state handshake_states[] = {
    [HANDSHAKE_UNAUTHENTICATED] = {"unauthenticated", IBX_TO(HANDSHAKE_CHALLENGED),
                                   IBX_STATE_INITIAL | IBX_STATE_FINAL},
    [HANDSHAKE_CHALLENGED] = {"challenged",
                              IBX_TO(HANDSHAKE_PROVEN) | IBX_TO(HANDSHAKE_AUTHENTICATED),
                              IBX_STATE_FINAL},
    [HANDSHAKE_PROVEN] = {"proven", IBX_TO(HANDSHAKE_AUTHENTICATED), IBX_STATE_FINAL},
    [HANDSHAKE_AUTHENTICATED] = {"authenticated", IBX_TO(HANDSHAKE_TRYING), IBX_STATE_FINAL},
    [HANDSHAKE_TRYING] = {"trying a provider",
                          IBX_TO(HANDSHAKE_RESULT_KNOWN) | IBX_TO(HANDSHAKE_AUTHENTICATED),
                          IBX_STATE_FINAL},
    [HANDSHAKE_RESULT_KNOWN] = {"result known", IBX_TO(HANDSHAKE_AUTHENTICATED), IBX_STATE_FINAL},
};
static const struct ibx_state_table handshake_table =
    IBX_STATE_TABLE("handshake", handshake_states);

static uint64_t new_deadline(const struct ibx_handshake *h)
{
    return ibx_deadline_in_ms(h->conn->options.timeout_ms);
}

/* ---------------------------------------------------------------------- results */

/* As ibx_handshake_reason_get(). The reason says on which side a device or a path is missing. */
static int get_result(const struct ibx_handshake *h, struct ibx_reader *payload, char reason[256])
{
    char theirs[256] = "";
    int code = ibx_handshake_reason_get(payload, theirs, sizeof(theirs));
    snprintf(reason, 256, "on the %s: %.239s",
             h->conn->role == IBX_ROLE_SERVER ? "client" : "server", theirs);
    return code;
}

static int send_result(struct ibx_handshake *h, int code, const char *reason, uint64_t deadline,
                       struct ibx_error *err)
{
    struct frame frame;
    ibx_handshake_frame_begin(&frame, FRAME_RESULT);
    ibx_handshake_reason_put(&frame.out, code, reason);
    return ibx_handshake_frame_send(h, &frame, deadline, err);
}

/* Receives the peer's RESULT, unless wait_or_result() has met it. Negative: the dialogue broke. */
static int receive_result(struct ibx_handshake *h, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    if (h->state.now == HANDSHAKE_RESULT_KNOWN)
        return 0;
    int rc = ibx_handshake_frame_expect(h, &frame, FRAME_RESULT, deadline, err);
    if (rc)
        return rc;
    h->result = get_result(h, &frame.payload, h->result_reason);
    return ibx_state_move(&h->state, HANDSHAKE_RESULT_KNOWN);
}

/* Implements ibx_link_wait(): the peer may give up the attempt meanwhile. Behind its RESULT it says
 * nothing more, but the connection may break, or this side hang up. */
static int wait_or_result(struct ibx_conn_setup *setup, int fd, short events, uint64_t deadline)
{
    struct ibx_handshake *h = (struct ibx_handshake *)setup;
    struct pollfd wait[2] = {{.fd = fd, .events = events},
                             {.fd = h->conn->handshake_socket, .events = POLLIN}};
    for (;;) {
        bool trying = h->state.now == HANDSHAKE_TRYING;
        bool known = h->state.now == HANDSHAKE_RESULT_KNOWN;
        bool inside = trying && h->conn->tls && ibx_tls_readable(h->conn->tls);
        wait[1].events = trying ? POLLIN : 0; /* otherwise POLLHUP and POLLERR alone */
        int rc = ibx_handshake_poll(wait, trying || known ? 2 : 1, h->conn->options.ends,
                                    inside ? 0 : deadline);
        if (rc == 0 && inside)
            rc = wait[1].revents = POLLIN;
        if (rc <= 0)
            return rc ? rc : -ETIMEDOUT;
        if (wait[0].revents)
            return 0;
        if (known)
            return -ECONNRESET;
        if (receive_result(h, deadline, NULL)) {
            h->result = -ECONNRESET;
            snprintf(h->result_reason, sizeof(h->result_reason), "the peer went away");
            ibx_state_move(&h->state, HANDSHAKE_RESULT_KNOWN);
        }
        if (h->result)
            return -ECANCELED;
    }
}

/* ------------------------------------------------------------------------- TLS */

/* Starts TLS on the handshake socket, if both ends agreed on it. The PSK is a secret of this
 * connection alone, so that nobody else gets through. */
static int start_tls(struct ibx_handshake *h, struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    uint64_t deadline = new_deadline(h);
    uint8_t psk[IBX_PROOF_BYTES];
    short events = 0;
    if (!conn->encrypt)
        return 0;
    ibx_link_proof(&conn->link, "handshake in TLS", psk);
    int rc = ibx_tls_create(conn->handshake_socket, conn->role, psk, &conn->tls, err);
    explicit_bzero(psk, sizeof(psk));
    if (rc)
        return rc;
    if (conn->options.ktls)
        ibx_tls_use_kernel(conn->tls);
    while ((rc = ibx_tls_handshake(conn->tls, &events)) == -EAGAIN) {
        rc = ibx_handshake_wait_socket(conn, events, deadline);
        if (rc)
            break;
    }
    if (rc == -EACCES)
        rc = ibx_handshake_lacked(h) ? -ENOMEM : -EBADMSG;
    return rc ? ibx_handshake_broken(h, rc, err) : 0;
}

/* ---------------------------------------------------------- one provider's attempt */

/* Whether the connection may use a fabric that leaves payloads as they are: 0, or -EPERM. Shared
 * memory stays in this host, and tcp goes through TLS. */
static int check_plain(const struct ibx_handshake *h, const char *name, struct ibx_error *why)
{
    if (h->payloads_in_plain || !strcmp(name, "shm") || !strcmp(name, "tcp"))
        return 0;
    return ibx_error_set(why, -EPERM, "rdma.encryption : required, and %.15s does not encrypt",
                         name);
}

/* Says on which end the limit on open files is to be raised, because both ends read the message. */
static void add_remedy(const struct ibx_handshake *h, struct ibx_error *why)
{
    const char *whose = h->conn->role == IBX_ROLE_CLIENT ? "client" : "server";
    const size_t length = strlen(why->message);
    const char *said = strstr(why->message, IBX_ERROR_MORE_FILES);
    if (why->code == -EMFILE && (!said || !said[strlen(IBX_ERROR_MORE_FILES)]))
        snprintf(why->message + length, sizeof(why->message) - length, "%s of the %s",
                 said ? "" : IBX_ERROR_MORE_FILES, whose);
}

/* Sends RESULT in place of the frame that was due. */
static int give_up(struct ibx_handshake *h, const char *name, int status, struct ibx_error *why,
                   struct ibx_error *err)
{
    add_remedy(h, why);
    ibx_path_refused(h->conn, name, status, why->message);
    int rc = send_result(h, status, why->message, new_deadline(h), err);
    return rc ? rc : NEXT;
}

/* Receives the frame of this type, or the RESULT with which the peer gives up. */
static int receive_or_result(struct ibx_handshake *h, const char *name, struct frame *frame,
                             enum frame_type type, uint64_t deadline, struct ibx_error *err)
{
    int rc = ibx_handshake_frame_receive(h, frame, deadline, err);
    if (rc || frame->type == type)
        return rc;
    if (frame->type != FRAME_RESULT)
        return ibx_handshake_broken(h, -EPROTO, err);
    char reason[256];
    int code = get_result(h, &frame->payload, reason);
    ibx_path_refused(h->conn, name, code, reason);
    return NEXT;
}

/* The last step of an attempt on either side. */
static int finish(struct ibx_handshake *h, const char *name, struct ibx_reader *answer,
                  struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    struct ibx_error why = {0};
    int status = conn->provider->finish(conn->endpoint, answer, new_deadline(h), &why);
    uint64_t deadline = new_deadline(h);
    add_remedy(h, &why);
    int rc = send_result(h, status, why.message, deadline, err);
    if (!rc)
        rc = receive_result(h, deadline, err);
    if (rc)
        return rc;
    if (!status && !h->result)
        return 0;
    bool ours = status && status != -ECANCELED;
    ibx_path_refused(conn, name, ours ? status : h->result, ours ? why.message : h->result_reason);
    return NEXT;
}

/* client_try() and server_try() return 0 when both sides have set the provider up, NEXT when this
 * provider failed, or a negative errno when the dialogue broke. */

/* Opens the provider and sends TRY. That does not wait for the server's PROOF, since TRY gives
 * nothing away. 0: it was sent; NEXT; or a negative errno. */
static int client_ask(struct ibx_handshake *h, const char *name, struct ibx_error *err)
{
    struct frame frame;
    struct ibx_error why = {0};
    const bool unanswered = h->state.now == HANDSHAKE_PROVEN;
    int rc = check_plain(h, name, &why);
    if (!rc)
        rc = ibx_path_open(h->conn, name, &why);
    if (rc) {
        add_remedy(h, &why);
        ibx_path_refused(h->conn, name, rc, why.message);
        return NEXT;
    }
    ibx_handshake_frame_begin(&frame, FRAME_TRY);
    ibx_put_string(&frame.out, name);
    rc = ibx_handshake_frame_send(h, &frame, new_deadline(h), err);
    return unanswered ? ibx_handshake_unless_closed(rc) : rc;
}

static int client_try(struct ibx_handshake *h, const char *name, struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    struct frame frame, answer;
    struct ibx_error why = {0};
    uint64_t deadline = new_deadline(h);
    int rc = receive_or_result(h, name, &frame, FRAME_OFFER, deadline, err);
    if (rc)
        return rc;
    ibx_handshake_frame_begin(&answer, FRAME_ANSWER);
    rc = conn->provider->join(conn->endpoint, &frame.payload, &answer.out, &why);
    if (rc)
        return give_up(h, name, rc, &why, err);
    rc = ibx_handshake_frame_send(h, &answer, deadline, err);
    return rc ? rc : finish(h, name, NULL, err);
}

static int server_try(struct ibx_handshake *h, const char *name, struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    struct frame frame;
    struct ibx_error why = {0};
    uint64_t deadline = new_deadline(h);
    int rc = 0;
    if (!ibx_path_allowed(&conn->options, name))
        rc = ibx_error_set(&why, -ENOTSUP, "only provider : %s is allowed", conn->options.provider);
    if (!rc)
        rc = check_plain(h, name, &why);
    if (!rc)
        rc = ibx_path_open(conn, name, &why);
    ibx_handshake_frame_begin(&frame, FRAME_OFFER);
    if (!rc)
        rc = conn->provider->offer(conn->endpoint, &frame.out, &why);
    if (rc)
        return give_up(h, name, rc, &why, err);
    rc = ibx_handshake_frame_send(h, &frame, deadline, err);
    if (!rc)
        rc = receive_or_result(h, name, &frame, FRAME_ANSWER, deadline, err);
    return rc ? rc : finish(h, name, &frame.payload, err);
}

static int attempt(struct ibx_handshake *h, const char *name, struct ibx_error *err)
{
    const bool client = h->conn->role == IBX_ROLE_CLIENT;
    int rc = client ? client_ask(h, name, err) : 0;
    if (!rc && client)
        rc = ibx_handshake_check_server(h, new_deadline(h), err);
    if (!rc)
        rc = ibx_state_move(&h->state, HANDSHAKE_TRYING);
    if (!rc)
        rc = client ? client_try(h, name, err) : server_try(h, name, err);
    if (!rc)
        return 0;
    ibx_path_close(h->conn);
    if (h->state.now > HANDSHAKE_AUTHENTICATED)
        ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
    return rc;
}

/* ---------------------------------------------------------------- the whole dialogue */

static int client_dialogue(struct ibx_handshake *h, struct ibx_error *err)
{
    char name[16];
    unsigned index = 0;
    int rc = ibx_handshake_prove_client(h, new_deadline(h), err);
    if (!rc && h->conn->encrypt)
        rc = ibx_handshake_check_server(h, new_deadline(h), err);
    if (!rc)
        rc = start_tls(h, err);
    if (rc)
        return rc;
    while (!ibx_path_next(h->conn, &index, name)) {
        rc = attempt(h, name, err);
        if (rc != NEXT)
            return rc;
    }
    return ibx_path_none(h->conn, err);
}

static int server_dialogue(struct ibx_handshake *h, struct ibx_error *err)
{
    struct frame frame;
    char name[16];
    int rc = start_tls(h, err);
    if (rc)
        return rc;
    for (unsigned tries = 0; tries < IBX_PROVIDERS_MAX; tries++) {
        rc = ibx_handshake_frame_receive(h, &frame, new_deadline(h), err);
        if (rc == -ECONNRESET && tries)
            break; /* the client has no other candidate */
        if (!rc && frame.type == FRAME_TRY)
            ibx_get_string(&frame.payload, name, sizeof(name));
        if (!rc && (frame.type != FRAME_TRY || frame.payload.failed))
            rc = ibx_handshake_broken(h, -EPROTO, err);
        if (rc)
            return rc;
        ibx_text_sanitize(name);
        rc = attempt(h, name, err);
        if (rc != NEXT)
            return rc;
    }
    return ibx_path_none(h->conn, err);
}

/* Logs what protects payloads, which the proofs did not agree on: not every provider encrypts. */
static void log_path(const struct ibx_conn *conn)
{
    const struct ibx_path *path = &conn->path;
    if (conn->role == IBX_ROLE_SERVER)
        ibx_log(IBX_LOG_INFO, "%s is connected over %s, payloads %s", path->peer, path->provider,
                path->encrypted                  ? "in TLS"
                : !strcmp(path->provider, "shm") ? "within this host"
                                                 : "unencrypted");
}

/* Establishes the connection or leaves it closed; ends the handshake in both cases. */
static int run(struct ibx_handshake *h, struct ibx_error *err)
{
    struct ibx_conn *conn = h->conn;
    ibx_crypto_lacked(); /* not of this handshake */
    int rc = ibx_conn_prepare(conn, err);
    if (!rc)
        rc = conn->role == IBX_ROLE_CLIENT ? client_dialogue(h, err) : server_dialogue(h, err);
    if (!rc)
        rc = ibx_conn_establish(conn, err);
    if (rc && ibx_handshake_lacked(h)) /* what has failed says nothing of the peer */
        rc = ibx_handshake_broken(h, -ENOMEM, err);
    conn->path.encrypted = conn->tls && !strcmp(conn->path.provider, "tcp");
    if (rc && err)
        add_remedy(h, err);
    if (rc)
        ibx_conn_fail(conn);
    else
        ibx_path_warn(conn);
    if (!rc)
        log_path(conn);
    conn->setup = NULL;
    conn->options.claim = NULL;
    conn->options.keys = NULL;
    conn->options.ends = NULL;
    conn->options.claim_check = NULL;
    conn->options.admission = NULL;
    h->setup.destroy(&h->setup);
    return rc;
}

static void destroy(struct ibx_conn_setup *setup)
{
    struct ibx_handshake *h = (struct ibx_handshake *)setup;
    ibx_keys_release(h->keys);
    ibx_exchange_destroy(h->exchange);
    explicit_bzero(setup, sizeof(struct ibx_handshake));
    free(setup);
}

struct ibx_handshake *ibx_handshake_create(int fd, enum ibx_role role,
                                           const struct ibx_options *options, struct ibx_keys *keys,
                                           struct ibx_error *err)
{
    struct ibx_handshake *h = calloc(1, sizeof(*h));
    if (!h) {
        close(fd);
        ibx_error_set(err, -ENOMEM, "no memory for a handshake");
        return NULL;
    }
    h->setup = (struct ibx_conn_setup){.wait = wait_or_result, .destroy = destroy};
    h->keys = ibx_keys_hold(keys);
    if (role == IBX_ROLE_CLIENT)
        ibx_keys_own(keys, options, &h->key, NULL);
    ibx_state_begin(&h->state, &handshake_table, HANDSHAKE_UNAUTHENTICATED);
    struct ibx_conn *conn = ibx_conn_create(fd, role, options, &h->setup, err);
    if (!conn) /* and `h` is freed */
        return NULL;
    h->conn = conn;
    ibx_handshake_peer_name(fd, h->conn->path.peer, sizeof(h->conn->path.peer));
    return h;
}

int ibx_establish(struct ibx_conn *conn, struct ibx_error *err)
{
    if (!conn->setup || conn->role != IBX_ROLE_SERVER)
        return ibx_error_set(err, -EINVAL, "only a freshly accepted connection is established");
    return run((struct ibx_handshake *)conn->setup, err);
}

static int connect_once(const struct ibx_uri *uri, const struct ibx_options *options,
                        struct ibx_keys *keys, struct ibx_conn **out, struct ibx_error *err)
{
    int fd = -1;
    unsigned hosts;
    const struct ibx_claim *claim = options->claim;
    const unsigned limit_ms = claim ? claim->connect_ms : 0;
    int rc = ibx_handshake_connect(uri, claim ? claim->lookup : NULL,
                                   limit_ms ? limit_ms : options->timeout_ms, options->ends, &fd,
                                   &hosts, err);
    if (rc)
        return rc;
    struct ibx_handshake *h = ibx_handshake_create(fd, IBX_ROLE_CLIENT, options, keys, err);
    if (!h)
        return -ENOMEM;
    struct ibx_conn *conn = h->conn;
    conn->path.hosts = hosts;
    rc = run(h, err);
    if (rc)
        ibx_close(conn);
    else
        *out = conn;
    return rc;
}

/* A server with too many unauthenticated clients answers -EBUSY. Then the client tries again after
 * a while, which differs from client to client. */
static int connect_in_turn(const struct ibx_uri *uri, const struct ibx_options *options,
                           struct ibx_keys *keys, struct ibx_conn **out, struct ibx_error *err)
{
    const uint64_t deadline = ibx_deadline_in_ms(options->timeout_ms);
    int rc;
    while ((rc = connect_once(uri, options, keys, out, err)) == -EBUSY && ibx_now_ns() < deadline) {
        uint8_t ms = 0;
        ibx_random(&ms, sizeof(ms), NULL);
        poll(NULL, 0, 1 + ms % RETRY_MS);
    }
    return rc;
}

int ibx_options_check_key(const struct ibx_options *options, const char *text, bool server,
                          struct ibx_error *err)
{
    struct ibx_uri uri;
    struct ibx_keys *keys = NULL;
    const struct ibx_key *key = NULL;
    struct ibx_options all = *options;
    int rc = text ? ibx_uri_parse(text, &uri, err) : 0;
    if (!rc && text)
        rc = ibx_uri_options(&uri, &all, err);
    if (!rc)
        rc = ibx_keys_load(all.key_file, &keys, err);
    if (!rc)
        rc = server ? ibx_keys_check_allowed(keys, &all, err) : ibx_keys_own(keys, &all, &key, err);
    if (!rc)
        rc = ibx_handshake_check_encryption(&all, keys, err);
    ibx_keys_release(keys);
    return rc;
}

static int load_keys(const struct ibx_options *options, struct ibx_keys **keys,
                     struct ibx_error *err)
{
    if (!options->claim || !options->keys || !*options->keys)
        return ibx_keys_load_as_client(options->key_file, keys, err);
    *keys = ibx_keys_hold(*options->keys);
    return 0;
}

int ibx_connect(const char *text, const struct ibx_options *options, struct ibx_conn **out,
                struct ibx_error *err)
{
    struct ibx_uri uri;
    struct ibx_keys *keys = NULL;
    const struct ibx_key *key = NULL;
    struct ibx_options all = *options;
    int rc = ibx_uri_parse(text, &uri, err);
    if (!rc)
        rc = ibx_uri_options(&uri, &all, err);
    if (!rc)
        rc = load_keys(&all, &keys, err);
    if (!rc)
        rc = ibx_keys_own(keys, &all, &key, err);
    if (!rc)
        rc = ibx_handshake_check_encryption(&all, keys, err);
    if (!rc)
        rc = connect_in_turn(&uri, &all, keys, out, err);
    if (!rc && all.keys) {
        ibx_keys_release(*all.keys);
        *all.keys = ibx_keys_hold(keys);
    }
    ibx_keys_release(keys);
    return rc;
}
