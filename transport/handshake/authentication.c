/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The first half of the handshake: both ends prove that they know the key, and agree on limits and
 * on encryption. Without a key a server serves, and a client trusts, only its own host, unless
 * options.insecure is set.
 *
 * The proofs and the session key come by HKDF from the key together with an X25519 secret of this
 * connection, salted with the transcript. So what was sniffed tests no guess of the key and opens
 * no session once the key is known, and nobody in between can change what was agreed.
 */
#include "transport/handshake/handshake.h"

#include "common/log.h"
#include "common/path_check.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define VERSION 2u

/* What the client concludes from both openings; its proof covers it. */
#define ENCRYPT   1u
#define SAME_HOST 2u

static const uint8_t magic[4] = {'I', 'B', 'X', 'D'};

/* To be wiped: the last one is the key of the session. */
struct proofs {
    uint8_t client[IBX_HASH_BYTES], server[IBX_HASH_BYTES], session[IBX_HASH_BYTES];
};

static void wipe(struct proofs *proofs)
{
    explicit_bzero(proofs, sizeof(*proofs));
}

static void derive_one(const struct ibx_piece *secret, const struct ibx_piece *salt,
                       const char *label, uint8_t flags, uint8_t out[IBX_HASH_BYTES])
{
    uint8_t info[24];
    struct ibx_writer w = ibx_writer_of(info, sizeof(info));
    ibx_put_bytes(&w, label, strlen(label));
    ibx_put_u8(&w, flags);
    ibx_hkdf(secret, salt, &(struct ibx_piece){info, w.length}, out);
}

/* Without a key the proofs only tie the channels of one connection together. */
static int derive(struct ibx_handshake *h, uint8_t flags, struct proofs *proofs,
                  struct ibx_error *err)
{
    uint8_t both[2 * IBX_HASH_BYTES] = {0};
    h->conn->path.remote = !(flags & SAME_HOST);
    if (h->key)
        memcpy(both, h->key->bytes, IBX_HASH_BYTES);
    int rc = ibx_exchange_secret(h->exchange, h->peer.public_key, both + IBX_HASH_BYTES, err);
    struct ibx_piece secret = {both, sizeof(both)}, salt = {h->agreed, IBX_HASH_BYTES};
    derive_one(&secret, &salt, "ibx client ", flags, proofs->client);
    derive_one(&secret, &salt, "ibx server ", flags, proofs->server);
    derive_one(&secret, &salt, "ibx session ", flags, proofs->session);
    explicit_bzero(both, sizeof(both));
    ibx_exchange_destroy(h->exchange);
    h->exchange = NULL;
    return rc;
}

/* ------------------------------------------------------------ HELLO, CHALLENGE */

/* Makes the nonce and, unless it was lent, the key pair of this end, and writes what both openings
 * begin with. */
static int put_opening(struct ibx_handshake *h, struct ibx_writer *w, bool has_key,
                       struct ibx_error *err)
{
    int rc = ibx_random(h->nonce, NONCE_BYTES, err);
    if (!rc && !h->exchange)
        rc = ibx_exchange_create(&h->exchange, h->public_key, err);
    if (rc)
        return rc;
    ibx_put_bytes(w, magic, sizeof(magic));
    ibx_put_u16(w, VERSION);
    ibx_put_u8(w, has_key);
    ibx_put_bytes(w, h->nonce, NONCE_BYTES);
    ibx_put_bytes(w, h->public_key, IBX_PUBLIC_BYTES);
    ibx_put_u8(w, (uint8_t)h->conn->options.encryption);
    ibx_put_u32(w, h->conn->options.slots);
    ibx_put_u64(w, h->conn->options.message);
    return 0;
}

/* Reads what put_opening() wrote, and takes the smaller one of both sides' limits. -EPROTO: this is
 * no ibx peer; -EPROTONOSUPPORT: one of another version. */
static int get_opening(struct ibx_handshake *h, struct ibx_reader *r)
{
    struct ibx_options *options = &h->conn->options;
    const uint8_t *m = ibx_get_bytes(r, sizeof(magic));
    if (!m || memcmp(m, magic, sizeof(magic)))
        return -EPROTO;
    if (ibx_get_u16(r) != VERSION)
        return r->failed ? -EPROTO : -EPROTONOSUPPORT;
    h->peer.has_key = ibx_get_u8(r) != 0;
    const uint8_t *nonce = ibx_get_bytes(r, NONCE_BYTES);
    const uint8_t *public_key = ibx_get_bytes(r, IBX_PUBLIC_BYTES);
    uint8_t encryption = ibx_get_u8(r);
    uint32_t slots = ibx_get_u32(r);
    uint64_t message = ibx_get_u64(r);
    if (r->failed || encryption > IBX_ENCRYPTION_REQUIRED || slots < 4 || message < 1024)
        return -EPROTO;
    memcpy(h->peer.nonce, nonce, NONCE_BYTES);
    memcpy(h->peer.public_key, public_key, IBX_PUBLIC_BYTES);
    h->peer.encryption = (enum ibx_encryption)encryption;
    if (slots < options->slots)
        options->slots = slots;
    if (message < options->message)
        options->message = (size_t)message;
    return 0;
}

/* The rest of a HELLO. */
static int get_names(struct ibx_handshake *h, struct ibx_reader *r)
{
    ibx_get_string(r, h->peer.name, sizeof(h->peer.name));
    ibx_get_string(r, h->peer.purpose, sizeof(h->peer.purpose));
    ibx_text_sanitize(h->peer.purpose);
    if (!r->failed)
        ibx_handshake_claim_get(h, r);
    if (!r->failed)
        ibx_handshake_program_get(h, r);
    const char *name = h->peer.name;
    return r->failed || (*name && !ibx_key_name_valid(name, strlen(name))) ? -EPROTO : 0;
}

/* ------------------------------------------------------------------- encryption */

int ibx_handshake_check_encryption(const struct ibx_options *options, const struct ibx_keys *keys,
                                   struct ibx_error *err)
{
    if (options->encryption != IBX_ENCRYPTION_REQUIRED || keys)
        return 0;
    return ibx_error_set(
        err, -EINVAL,
        "rdma.encryption : required needs a key: set rdma.key_file (--key-file) on both ends");
}

/* Why the two ends' wishes about encryption contradict each other, or NULL. */
static const char *encryption_conflict(const struct ibx_handshake *h)
{
    enum ibx_encryption ours = h->conn->options.encryption, theirs = h->peer.encryption;
    bool off = ours == IBX_ENCRYPTION_OFF || theirs == IBX_ENCRYPTION_OFF;
    bool required = ours == IBX_ENCRYPTION_REQUIRED || theirs == IBX_ENCRYPTION_REQUIRED;
    return off && required
               ? "one end has rdma.encryption : required and the other one off: change one "
                 "(--encryption)"
           : required && !h->key ? "rdma.encryption : required needs a key: set rdma.key_file "
                                   "(--key-file) on both ends"
                                 : NULL;
}

static bool encrypt(const struct ibx_handshake *h, bool same_host)
{
    enum ibx_encryption ours = h->conn->options.encryption, theirs = h->peer.encryption;
    if (ours == IBX_ENCRYPTION_REQUIRED || theirs == IBX_ENCRYPTION_REQUIRED)
        return true;
    bool off = ours == IBX_ENCRYPTION_OFF || theirs == IBX_ENCRYPTION_OFF;
    return h->key && !off && !same_host;
}

/* Takes over what was agreed on. Only now the session key gets memory for secrets, which is scarce:
 * strangers get none. */
static int conclude(struct ibx_handshake *h, uint8_t flags, const struct proofs *proofs,
                    struct ibx_error *err)
{
    h->conn->session_key = ibx_secret_allocate(IBX_HASH_BYTES);
    if (!h->conn->session_key)
        return ibx_error_set(err, -ENOMEM, "no memory for the key of a connection");
    memcpy(h->conn->session_key, proofs->session, IBX_HASH_BYTES);
    h->conn->encrypt = flags & ENCRYPT;
    h->conn->keyed = h->key != NULL;
    h->payloads_in_plain = h->conn->options.encryption != IBX_ENCRYPTION_REQUIRED &&
                           h->peer.encryption != IBX_ENCRYPTION_REQUIRED;
    snprintf(h->conn->path.name, sizeof(h->conn->path.name), "%s", h->key ? h->key->name : "");
    return 0;
}

/* ---------------------------------------------------------------------- server */

/* Of a REFUSE with these fields: whoever makes it knows the key. */
static void prove_refusal(const uint8_t *session, const uint8_t *fields, size_t n,
                          uint8_t proof[IBX_HASH_BYTES])
{
    const struct ibx_piece pieces[] = {{"refuse ", 7}, {fields, n}};
    ibx_hmac(session, pieces, 2, proof);
}

/* Makes `reply` the REFUSE that tells the peer why this is the end; returns `code`. `session`:
 * NULL, or the session key shared with a client that has proven itself. */
static int refuse_with(struct ibx_handshake *h, struct frame *reply, const uint8_t *session,
                       int code, const char *reason, struct ibx_error *err)
{
    uint8_t proof[IBX_HASH_BYTES];
    ibx_handshake_frame_begin(reply, FRAME_REFUSE);
    ibx_handshake_reason_put(&reply->out, code, reason);
    if (session && h->key) {
        prove_refusal(session, reply->out.data, reply->out.length, proof);
        ibx_put_bytes(&reply->out, proof, sizeof(proof));
    }
    ibx_handshake_frame_finish(h, reply, NULL);
    return ibx_error_set(err, code, "refused %s: %s", h->conn->path.peer, reason);
}

static int refuse(struct ibx_handshake *h, struct frame *reply, int code, const char *reason,
                  struct ibx_error *err)
{
    return refuse_with(h, reply, NULL, code, reason, err);
}

/* Whether the server takes a client that sent this HELLO: 0, or the code of a refusal and its
 * reason. */
static int check_hello(struct ibx_handshake *h, struct ibx_reader *hello, const char **reason)
{
    int rc = get_opening(h, hello);
    if (!rc)
        rc = get_names(h, hello);
    if (!rc && h->peer.has_key)
        h->key = ibx_keys_find(h->keys, h->peer.name);
    /* A stranger does not learn which names there are. */
    if (!h->key && h->keys && h->peer.has_key && h->peer.name[0])
        h->key = ibx_keys_nobodys(h->keys);
    *reason =
        rc == -EPROTONOSUPPORT ? "another version of the protocol is needed"
        : rc                   ? "it does not speak this protocol"
        : h->keys && !h->peer.has_key
            ? "a key is required: set rdma.key_file (--key-file) on the client"
        : !h->keys && h->peer.has_key ? "the server has no key but the client has: set "
                                        "rdma.key_file (--key-file) on the server"
        : h->keys && !h->key ? "the server's keys have names: copy one of its lines name:key to "
                               "the client's key file"
        : !h->keys && !h->conn->options.insecure && !h->peer.sees_local
            ? "without a key only this host is served: set rdma.key_file (--key-file) on both "
              "ends, or rdma.insecure : yes (--set insecure=yes) on the server"
            : encryption_conflict(h);
    return rc ? rc : *reason ? -EACCES : 0;
}

/* Refuses a client while this server cannot read its boot id. Otherwise a client on this host would
 * take it for another host: without a key it would get no connection, with a key no shared
 * memory. */
static int refuse_for_now(struct ibx_handshake *h, struct frame *reply, int code,
                          struct ibx_error *err)
{
    char reason[160];
    snprintf(reason, sizeof(reason), "the server cannot read its boot id: %s: try again%s",
             strerror(code), code == EMFILE ? IBX_ERROR_MORE_FILES " there" : "");
    return refuse(h, reply, -EBUSY, reason, err);
}

static int step_hello(struct ibx_handshake *h, struct frame *hello, struct frame *reply,
                      struct ibx_error *err)
{
    const char *reason;
    h->peer.sees_local = ibx_handshake_peer_is_local(h->conn->handshake_socket, IBX_ROLE_SERVER);
    int rc = check_hello(h, &hello->payload, &reason);
    if (rc)
        return refuse(h, reply, rc, reason, err);
    ibx_handshake_frame_begin(reply, FRAME_CHALLENGE);
    rc = put_opening(h, &reply->out, h->keys != NULL, err);
    if (rc)
        return rc;
    ibx_handshake_host_mark(h->peer.nonce, h->nonce, h->mark);
    if (h->peer.sees_local && ibx_accept_shortage(-ibx_handshake_host_unknown()))
        return refuse_for_now(h, reply, -ibx_handshake_host_unknown(), err);
    ibx_put_u8(&reply->out, h->peer.sees_local);
    ibx_put_bytes(&reply->out, h->mark, IBX_HASH_BYTES);
    uint8_t end[IBX_HASH_BYTES];
    ibx_handshake_end_mark(h->conn->handshake_socket, IBX_ROLE_SERVER, h->peer.nonce, h->nonce,
                           end);
    ibx_put_bytes(&reply->out, end, IBX_HASH_BYTES);
    rc = ibx_handshake_frame_finish(h, reply, err);
    memcpy(h->agreed, h->transcript, IBX_HASH_BYTES);
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_CHALLENGED);
}

/* Whether `name` is one of the list's. "", a key without a name, is none. */
static bool allowed(const char *list, const char *name)
{
    size_t n = strlen(name);
    while (*list) {
        size_t item = strcspn(list, ",");
        if (n && item == n && !memcmp(list, name, n))
            return true;
        list += item + (list[item] == ',');
    }
    return false;
}

static const char *check_room(const struct ibx_handshake *h)
{
    const struct ibx_admission *admission = h->conn->options.admission;
    return admission ? admission->refuses(admission->context, h->conn, h->key ? h->key->name : "")
                     : NULL;
}

/* What only a client that has proven itself is checked for: a stranger learns nothing from it. */
static const char *check_proven(struct ibx_handshake *h, uint8_t flags, char text[160])
{
    const struct ibx_options *options = &h->conn->options;
    if (options->allow[0] && !allowed(options->allow, h->peer.name))
        return "this name is not allowed: add it to the server's option allow";
    if (options->purpose[0] && !allowed(options->purpose, h->peer.purpose)) {
        snprintf(text, 160, "the server is for \"%s\", the client for \"%s\": correct the URI",
                 options->purpose, h->peer.purpose);
        return text;
    }
    const bool same_host = flags & SAME_HOST;
    if (same_host && !h->peer.sees_local)
        return "the client says that it is on the server's host, and the server does not see it "
               "there";
    if (!(flags & ENCRYPT) && encrypt(h, same_host))
        return "the client does not encrypt, although encryption was agreed";
    if (flags & ENCRYPT && !encrypt(h, false))
        return "the client encrypts, although that was not agreed";
    return NULL;
}

static int refuse_without_memory(struct ibx_handshake *h, struct frame *reply,
                                 struct ibx_error *err)
{
    return refuse(h, reply, -ENOMEM, "the server has no memory for its proofs", err);
}

static int step_proof(struct ibx_handshake *h, struct frame *frame, struct frame *reply,
                      struct ibx_error *err)
{
    struct proofs proofs __attribute__((cleanup(wipe))) = {0};
    struct ibx_error why = {0};
    char text[160];
    uint8_t flags = ibx_get_u8(&frame->payload);
    const uint8_t *got = ibx_get_bytes(&frame->payload, IBX_HASH_BYTES);
    int rc = derive(h, flags, &proofs, &why);
    if (rc)
        return refuse(h, reply, rc, why.message, err);
    if (ibx_handshake_lacked(h))
        return refuse_without_memory(h, reply, err);
    if (!got || !ibx_hash_equal(got, proofs.client))
        return refuse(h, reply, -EACCES,
                      h->peer.name[0]
                          ? "the server has another key of this name, or none: copy its line "
                            "name:key to the client's key file"
                          : "the key differs from the server's: copy the server's key file",
                      err);
    const char *reason = check_proven(h, flags, text);
    if (reason)
        return refuse_with(h, reply, proofs.session, -EACCES, reason, err);
    reason = ibx_handshake_claim_check(h);
    if (ibx_handshake_lacked(h)) /* the claim may be right */
        return refuse_without_memory(h, reply, err);
    if (reason)
        return refuse_with(h, reply, proofs.session, -ESTALE, reason, err);
    reason = check_room(h);
    h->no_room = reason != NULL;
    if (reason)
        return refuse_with(h, reply, proofs.session, -EACCES, reason, err);
    rc = conclude(h, flags, &proofs, err);
    if (rc)
        return rc;
    ibx_handshake_frame_begin(reply, FRAME_PROOF);
    ibx_put_bytes(&reply->out, proofs.server, IBX_HASH_BYTES);
    rc = ibx_handshake_frame_finish(h, reply, err);
    ibx_log(IBX_LOG_INFO, "authenticated %s%s%s%s%s, %s", h->peer.name,
            h->peer.name[0] ? " at " : "", h->conn->path.peer, h->peer.purpose[0] ? " for " : "",
            h->peer.purpose,
            h->conn->encrypt ? "handshake in TLS"
            : h->key         ? "handshake without TLS"
                             : "without a key");
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
}

static int step(struct ibx_handshake *h, struct frame *frame, struct frame *reply,
                struct ibx_error *err)
{
    bool hello = h->state.now == HANDSHAKE_UNAUTHENTICATED;
    reply->length = reply->at = 0;
    int rc = ibx_handshake_frame_check(h, frame, hello ? FRAME_HELLO : FRAME_PROOF, err);
    if (rc)
        return rc;
    return hello ? step_hello(h, frame, reply, err) : step_proof(h, frame, reply, err);
}

static int take_turn(struct ibx_handshake *h, struct ibx_turn *turn, struct ibx_error *err)
{
    struct frame reply;
    int rc = 0;
    for (;;) {
        if (turn->phase == IBX_TURN_SENDS)
            rc = ibx_handshake_frame_write(h, &turn->frame);
        if (!rc && h->state.now == HANDSHAKE_AUTHENTICATED)
            return 0;
        if (!rc && turn->phase != IBX_TURN_WAITS) {
            turn->frame.at = turn->phase == IBX_TURN_SENDS ? 0 : turn->frame.at;
            turn->phase = IBX_TURN_READS;
            rc = ibx_handshake_frame_read(h, &turn->frame);
            if (!rc && h->state.now == HANDSHAKE_CHALLENGED) {
                turn->phase = IBX_TURN_WAITS;
                return -EAGAIN;
            }
        }
        if (rc)
            return rc == -EAGAIN ? rc : ibx_handshake_broken(h, rc, err);
        rc = step(h, &turn->frame, &reply, err);
        if (rc) {
            if (reply.length)
                ibx_handshake_frame_write(h, &reply); /* the socket's buffer is empty */
            return rc;
        }
        turn->frame = reply;
        turn->phase = IBX_TURN_SENDS;
    }
}

int ibx_handshake_turn(struct ibx_handshake *h, struct ibx_turn *turn, struct ibx_error *err)
{
    ibx_crypto_lacked(); /* not of this handshake */
    const int rc = take_turn(h, turn, err);
    ibx_handshake_lacked(h); /* a later turn, perhaps by another thread, asks */
    return rc;
}

void ibx_handshake_turn_refuse(struct ibx_handshake *h, struct ibx_turn *turn, const char *reason,
                               struct ibx_error *err)
{
    struct frame reply;
    refuse(h, &reply, -EBUSY, reason, err);
    if (turn->phase != IBX_TURN_SENDS)
        ibx_handshake_frame_write(h, &reply);
}

/* ---------------------------------------------------------------------- client */

/* Once the server has closed this connection, the kernel no longer knows whose it was. */
static bool server_has_closed(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};
    return poll(&look, 1, 0) > 0 && look.revents & (POLLRDHUP | POLLHUP | POLLERR);
}

static int closed_too_early(const char *peer, struct ibx_error *err)
{
    return ibx_error_set(err, -EBUSY,
                         "the server at %s closed the connection before it was known which user it "
                         "belongs to: it may be busy, try again",
                         peer);
}

static const char *more_files(int code)
{
    return code == -EMFILE ? IBX_ERROR_RAISE_FILES ", or " : "";
}

enum server_place {
    SERVER_ELSEWHERE,
    SERVER_HERE,     /* a process of this host */
    SERVER_FORWARDED /* a process of this host passes the bytes on to it */
};

/* Whether the server, a process of this host, belongs to this user or root. */
static int check_owner(const struct ibx_handshake *h, struct ibx_error *err)
{
    uid_t uid = 0, own = geteuid();
    const char *peer = h->conn->path.peer;
    const int unowned = ibx_handshake_peer_user(h->conn->handshake_socket, &uid);
    if (unowned) {
        if (server_has_closed(h->conn->handshake_socket))
            return closed_too_early(peer, err);
        return ibx_error_set(
            err, -EACCES,
            "it is not known which user the server at %s belongs to: %sset rdma.key_file "
            "(--key-file) on both ends, or rdma.insecure : yes (--set insecure=yes)",
            peer, more_files(unowned));
    }
    if (ibx_path_is_from_outside(uid)) /* this process may have that number, too */
        return ibx_error_set(
            err, -EACCES,
            "it is not known which user the server at %s belongs to: every user that this user "
            "namespace does not map is %u in it; set rdma.key_file (--key-file) on both ends, or "
            "rdma.insecure : yes (--set insecure=yes)",
            peer, (unsigned)uid);
    if (uid != own && uid != 0)
        return ibx_error_set(
            err, -EACCES,
            "the server at %s belongs to user %u, not to user %u or root: set "
            "rdma.key_file (--key-file) on both ends, or rdma.insecure : yes (--set insecure=yes)",
            peer, (unsigned)uid, (unsigned)own);
    return 0;
}

/* Without a key nobody proves anything: then the server must be a process of this host, and belong
 * to this user or root. */
static int check_keyless_server(struct ibx_handshake *h, enum server_place place,
                                struct ibx_error *err)
{
    const char *peer = h->conn->path.peer;
    if (h->key || h->conn->options.insecure)
        return 0;
    if (place == SERVER_FORWARDED)
        return ibx_error_set(err, -EACCES,
                             "the process that listens at %s forwards to another one, which cannot "
                             "be authenticated without a key: set rdma.key_file (--key-file) on "
                             "both ends, or rdma.insecure : yes (--set insecure=yes)",
                             peer);
    if (place == SERVER_ELSEWHERE && h->conn->same_host &&
        server_has_closed(h->conn->handshake_socket))
        return closed_too_early(peer, err); /* then its address is not known, either */
    const int unknown = ibx_handshake_host_unknown();
    if (place == SERVER_ELSEWHERE && unknown)
        return ibx_error_set(
            err, -EACCES,
            "it is not known whether %s is on this host, because /proc/sys/kernel/random/boot_id "
            "cannot be read here: %s; %sset rdma.key_file (--key-file) on both ends",
            peer, strerror(-unknown), more_files(unknown));
    if (place == SERVER_ELSEWHERE)
        return ibx_error_set(
            err, -EACCES,
            "%s is on another host and cannot be authenticated without a key: set rdma.key_file "
            "(--key-file) on both ends, or rdma.insecure : yes (--set insecure=yes)",
            peer);
    return check_owner(h, err);
}

/* Whether somebody passes on the bytes between a client and a server that seem to be on one host.
 * Then "one host" is only what he says; cloned virtual machines, for instance, have one boot id.
 * `end` is the server's mark; NULL: that of an earlier server, which sends none. */
static bool is_passed_on(const struct ibx_handshake *h, const uint8_t *end)
{
    uint8_t seen[IBX_HASH_BYTES];
    return end &&
           ibx_handshake_end_mark(h->conn->handshake_socket, IBX_ROLE_CLIENT, h->nonce,
                                  h->peer.nonce, seen) &&
           !ibx_hash_equal(end, seen);
}

static int send_hello(struct ibx_handshake *h, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    ibx_handshake_frame_begin(&frame, FRAME_HELLO);
    int rc = put_opening(h, &frame.out, h->key != NULL, err);
    if (rc)
        return rc;
    ibx_put_string(&frame.out, h->key ? h->key->name : "");
    ibx_put_string(&frame.out, h->conn->options.purpose);
    ibx_handshake_claim_put(h, &frame.out);
    rc = ibx_handshake_program_put(&frame.out, err);
    return rc ? rc : ibx_handshake_frame_send(h, &frame, deadline, err);
}

/* Receives CHALLENGE: `flags` are what the client concludes from it. */
static int receive_challenge(struct ibx_handshake *h, uint8_t *flags, uint64_t deadline,
                             struct ibx_error *err)
{
    struct frame frame;
    const char *peer = h->conn->path.peer;
    int rc = ibx_handshake_frame_expect(h, &frame, FRAME_CHALLENGE, deadline, err);
    if (rc)
        return rc;
    rc = get_opening(h, &frame.payload);
    h->peer.sees_local = ibx_get_u8(&frame.payload) != 0;
    const uint8_t *mark = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (rc || !mark)
        return ibx_handshake_broken(h, rc ? rc : -EPROTO, err);
    if (h->peer.has_key != (h->key != NULL))
        return ibx_error_set(err, -EACCES, "%s has %s key, this side has %s", peer,
                             h->peer.has_key ? "a" : "no", h->key ? "one" : "none");
    const char *conflict = encryption_conflict(h);
    if (conflict)
        return ibx_error_set(err, -EACCES, "%s: %s", peer, conflict);
    ibx_handshake_host_mark(h->nonce, h->peer.nonce, h->mark);
    h->conn->same_host = ibx_hash_equal(mark, h->mark);
    bool local = h->conn->same_host &&
                 ibx_handshake_peer_is_local(h->conn->handshake_socket, IBX_ROLE_CLIENT);
    const enum server_place place = !local ? SERVER_ELSEWHERE
                                    : is_passed_on(h, ibx_get_bytes(&frame.payload, IBX_HASH_BYTES))
                                        ? SERVER_FORWARDED
                                        : SERVER_HERE;
    rc = check_keyless_server(h, place, err);
    if (rc)
        return rc;
    bool same_host = place == SERVER_HERE && h->peer.sees_local;
    *flags = (uint8_t)((encrypt(h, same_host) ? ENCRYPT : 0) | (same_host ? SAME_HOST : 0));
    memcpy(h->agreed, h->transcript, IBX_HASH_BYTES);
    return ibx_state_move(&h->state, HANDSHAKE_CHALLENGED);
}

int ibx_handshake_prove_client(struct ibx_handshake *h, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    struct proofs proofs __attribute__((cleanup(wipe))) = {0};
    uint8_t flags = 0;
    int rc = ibx_handshake_unless_closed(send_hello(h, deadline, err));
    if (!rc)
        rc = receive_challenge(h, &flags, deadline, err);
    if (rc)
        return rc;
    rc = derive(h, flags, &proofs, err);
    if (rc)
        return ibx_error_prefix(err, rc, "the handshake with %s failed", h->conn->path.peer);
    if (ibx_handshake_lacked(h)) /* the server would count the proof as a wrong key */
        return ibx_handshake_broken(h, -ENOMEM, err);
    ibx_handshake_frame_begin(&frame, FRAME_PROOF);
    ibx_put_u8(&frame.out, flags);
    ibx_put_bytes(&frame.out, proofs.client, IBX_HASH_BYTES);
    rc = ibx_handshake_unless_closed(ibx_handshake_frame_send(h, &frame, deadline, err));
    if (!rc)
        rc = conclude(h, flags, &proofs, err);
    memcpy(h->awaited, proofs.server, IBX_HASH_BYTES);
    return rc ? rc : ibx_state_move(&h->state, HANDSHAKE_PROVEN);
}

bool ibx_handshake_refusal_proven(const struct ibx_handshake *h, struct ibx_reader *refusal)
{
    uint8_t proof[IBX_HASH_BYTES];
    if (h->state.now != HANDSHAKE_PROVEN)
        return false;
    if (!h->key) /* check_keyless_server() has accepted it */
        return true;
    prove_refusal(h->conn->session_key, refusal->data, refusal->position, proof);
    const uint8_t *got = ibx_get_bytes(refusal, sizeof(proof));
    return got && ibx_hash_equal(got, proof);
}

int ibx_handshake_check_server(struct ibx_handshake *h, uint64_t deadline, struct ibx_error *err)
{
    struct frame frame;
    if (h->state.now != HANDSHAKE_PROVEN)
        return 0;
    int rc = ibx_handshake_frame_expect(h, &frame, FRAME_PROOF, deadline, err);
    if (rc)
        return rc;
    const uint8_t *got = ibx_get_bytes(&frame.payload, IBX_HASH_BYTES);
    if (ibx_handshake_lacked(h))
        return ibx_handshake_broken(h, -ENOMEM, err);
    if (!got || !ibx_hash_equal(got, h->awaited))
        return ibx_error_set(err, -EACCES,
                             "%s does not know the key, so it is not the intended server",
                             h->conn->path.peer);
    if (h->conn->options.claim)
        h->conn->options.claim->reached = true;
    return ibx_state_move(&h->state, HANDSHAKE_AUTHENTICATED);
}
