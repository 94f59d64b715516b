/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Clients that ask to continue a session, with messages that the test makes: what the server
 * accepts and refuses, how long it waits, and which keys a client may have then.
 *   test_session_claims PROVIDER [HOST]    shm, tcp, ...; the server's address (127.0.0.1) */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/raw_handshake.h"
#include "tests/fixtures/resume_scene.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define IBX_NS_PER_S (1000 * IBX_NS_PER_MS)

/* ---------------------------------------------------------------- messages by hand */

/* A client's end that the test plays without a session. */
struct hand {
    struct scene scene;
    struct ibx_conn *conn;
    uint8_t id[IBX_SECRET_BYTES], secret[IBX_SECRET_BYTES];
    struct ibx_options options;
};

static int claim(struct hand *hand, struct ibx_claim *how, struct ibx_conn **conn)
{
    struct ibx_options options = hand->options;
    options.claim = how;
    return __real_ibx_connect(ibx_session_uri(hand->scene.listening), &options, conn, NULL);
}

static struct ibx_claim claim_of(const struct hand *hand)
{
    struct ibx_claim how = {.secret = hand->secret};
    memcpy(how.id, hand->id, sizeof(how.id));
    return how;
}

static void expect_message(struct ibx_conn *conn, const void *bytes, size_t n)
{
    uint8_t got[64] = {0};
    assert_int_equal(receive_message(conn, got, sizeof(got)), n);
    assert_memory_equal(got, bytes, n);
}

/* Connects to a server of its own. */
static void hand_connect(struct hand *hand, unsigned seconds)
{
    struct ibx_error err = {0};
    *hand = (struct hand){.scene = {.serve = scene_echo}};
    scene_listen(&hand->scene, seconds);
    scene_options(&hand->options);
    if (__real_ibx_connect(ibx_session_uri(hand->scene.listening), &hand->options, &hand->conn,
                           &err))
        fail_msg("%s", err.message);
}

static void hand_open(struct hand *hand, unsigned seconds, uint8_t kept_seconds)
{
    uint8_t keep[13] = {7, 1, 0, 0, 0, 0xff, 0xff}, kept[64];
    cuts_plan_nothing();
    hand_connect(hand, seconds);
    send_message(hand->conn, keep, sizeof(keep));
    assert_int_equal(receive_message(hand->conn, kept, sizeof(kept)), 18);
    assert_memory_equal(kept, ((uint8_t[]){8, kept_seconds, 0, 0, 0}), 5);
    assert_int_equal(kept[5] | kept[6] << 8 | kept[7] << 16, getpid());
    assert_int_equal(kept[17], 1);
    ibx_conn_secret(hand->conn, "session id", hand->id);
    ibx_conn_secret(hand->conn, "session resumption", hand->secret);
}

static void hand_close(struct hand *hand)
{
    ibx_close(hand->conn);
    assert_int_equal(scene_join(&hand->scene), 0);
    scene_close(&hand->scene);
}

#define ASKS(letter) "\1\1\4\0\0\0abc" letter
#define SAYS(letter) "\1\0\0\0\0\1\4\0\0\0abc" letter

static void golden_bytes(void **state)
{
    static const uint8_t resume[29] = {9,
                                       1,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       0,
                                       /* names */ 0,
                                       0,
                                       0,
                                       0,
                                       /* taken */ 1};
    static const uint8_t resumed[21] = {11, 0, 0, 0, 0, /* taken */ 2};
    struct hand hand;
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    send_message(hand.conn, ASKS("A"), 10);
    expect_message(hand.conn, SAYS("B"), 14);
    send_message(hand.conn, ASKS("K"), 10); /* the answer is not taken */
    while (ibx_wait(hand.conn, 10000) != 1)
        ;
    ibx_close(hand.conn);
    struct ibx_claim how = claim_of(&hand);
    assert_int_equal(claim(&hand, &how, &hand.conn), 0);
    assert_true(how.reached);
    send_message(hand.conn, resume, sizeof(resume));
    expect_message(hand.conn, resumed, sizeof(resumed));
    expect_message(hand.conn, SAYS("L"), 14);
    send_message(hand.conn, "\14", 1); /* BYE */
    hand_close(&hand);
}

/* A client that reconnects is served, whether or not its loss was noticed. If it comes once
 * more, the new connection replaces the old one. */
static void client_comes_again(void **state)
{
    static const uint8_t resume[29] = {9, 7};
    struct hand hand;
    struct ibx_conn *conns[3];
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim how = claim_of(&hand);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(claim(&hand, &how, &conns[i]), 0);
    send_message(conns[2], resume, sizeof(resume));
    uint8_t got[64];
    assert_int_equal(receive_message(conns[2], got, sizeof(got)), 21);
    send_message(conns[2], ASKS("A"), 10);
    expect_message(conns[2], SAYS("B"), 14);
    expect_closed(conns[0]);
    expect_closed(conns[1]);
    expect_closed(hand.conn);
    send_message(conns[2], "\14", 1);
    ibx_close(conns[0]);
    ibx_close(conns[1]);
    ibx_close(conns[2]);
    hand_close(&hand);
}

/* A client that has sent HELLO with a claim, in whose proof `wrong` bits of one byte are others,
 * and its PROOF. */
static struct raw claim_by_hand(const struct hand *hand, unsigned byte, uint8_t wrong)
{
    const char *port = strrchr(ibx_session_uri(hand->scene.listening), ':') + 1;
    const char *to = scene_host ? scene_host : "127.0.0.1";
    struct raw raw = raw_connect((uint16_t)atoi(port), "0.0.0.0", to);
    struct raw_frame frame;
    uint8_t hello[300], ours[RAW_HASH], theirs[RAW_HASH];
    const size_t n = raw_opening(&raw, hello, false);
    const struct ibx_piece pieces[] = {{"claim ", 6},
                                       {hand->id, IBX_CLAIM_ID_BYTES},
                                       {raw.client_nonce, sizeof(raw.client_nonce)},
                                       {raw.own_public, sizeof(raw.own_public)}};
    memcpy(hello + n, hand->id, IBX_CLAIM_ID_BYTES);
    ibx_hmac(hand->secret, pieces, 4, hello + n + IBX_CLAIM_ID_BYTES);
    hello[n + IBX_CLAIM_ID_BYTES + byte] ^= wrong;
    raw_send_frame(&raw, HELLO, hello, n + IBX_CLAIM_ID_BYTES + RAW_HASH);
    raw_expect(&raw, CHALLENGE, &frame);
    raw_take_opening(&raw, &frame);
    raw_derive(&raw, ours, theirs);
    raw_send_proof(&raw, ours);
    return raw;
}

/* A client that has proven its key and claim, and then gets stuck: once the server has offered a
 * provider, or over tcp, with `joined`, once it has reported all of its lanes, which the server
 * does not see yet. */
static struct raw claim_and_stop(const struct hand *hand, bool joined)
{
    struct raw raw = claim_by_hand(hand, 0, 0);
    struct raw_frame frame;
    uint8_t payload[300];
    raw_expect(&raw, PROOF, &frame);
    raw.authenticated = true;
    raw_send_frame(&raw, TRY, payload, raw_string(payload, scene_provider));
    raw_expect(&raw, OFFER, &frame);
    if (joined) { /* the answer's terms are those with which the offer starts */
        const int on = 1;
        assert_int_equal(setsockopt(raw.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
        raw_send_frame(&raw, ANSWER, frame.payload, 11);
        raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    }
    return raw;
}

/* A client that comes once more need not wait until the server gives up the stuck handshake,
 * which would take an hour here. */
static void replace_in_handshake(bool joined)
{
    static const uint8_t resume[29] = {9, 7};
    struct hand hand;
    struct ibx_conn *conn;
    scene_timeout_ms = 3600000;
    hand_open(&hand, SECONDS, SECONDS);
    scene_timeout_ms = 0;
    hand.options.timeout_ms = patience_ms(20000);
    ibx_close(hand.conn);
    struct raw stopped = claim_and_stop(&hand, joined);
    struct ibx_claim how = claim_of(&hand);
    assert_int_equal(claim(&hand, &how, &conn), 0);
    assert_true(raw_receives_end(&stopped));
    raw_close(&stopped);
    send_message(conn, resume, sizeof(resume));
    uint8_t got[64];
    assert_int_equal(receive_message(conn, got, sizeof(got)), 21);
    send_message(conn, "\14", 1);
    hand.conn = conn;
    hand_close(&hand);
}

static void replaced_in_its_handshake(void **state)
{
    (void)state;
    replace_in_handshake(false);
}

static void replaced_after_its_result(void **state)
{
    (void)state;
    if (strcmp(scene_provider, "tcp") != 0)
        skip();
    replace_in_handshake(true);
}

static void impostors(void **state)
{
    struct hand hand;
    struct ibx_conn *none;
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim wrong = claim_of(&hand);
    wrong.id[5] ^= 1;
    assert_int_equal(claim(&hand, &wrong, &none), -ESTALE);
    wrong = claim_of(&hand);
    uint8_t secret[IBX_SECRET_BYTES];
    memcpy(secret, hand.secret, sizeof(secret));
    secret[31] ^= 0x80;
    wrong.secret = secret;
    assert_int_equal(claim(&hand, &wrong, &none), -ESTALE);
    assert_true(!wrong.reached && wrong.refused);
    send_message(hand.conn, ASKS("A"), 10); /* the session is unchanged */
    expect_message(hand.conn, SAYS("B"), 14);
    send_message(hand.conn, "\14", 1);
    hand_close(&hand);
}

/* They have the whole proof but for one bit, in any of its bytes. */
static void impostors_with_nearly_the_proof(void **state)
{
    struct hand hand;
    struct raw_frame frame;
    (void)state;
    hand_open(&hand, SECONDS, SECONDS);
    for (unsigned byte = 0; byte < RAW_HASH; byte++) {
        struct raw raw = claim_by_hand(&hand, byte, (uint8_t)(1u << byte % 8));
        raw_expect(&raw, REFUSE, &frame);
        raw_close(&raw);
    }
    send_message(hand.conn, ASKS("A"), 10); /* the session is unchanged */
    expect_message(hand.conn, SAYS("B"), 14);
    send_message(hand.conn, "\14", 1);
    hand_close(&hand);
}

/* Impossible numbers: of messages that were never sent. */
static void impossible_numbers(void **state)
{
    static const uint8_t wrong[][29] = {
        {9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, /* messages taken */
        /* control messages taken */
        {9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
        {9, 0},       /* an old epoch */
        {9, 1, 0, 1}, /* an epoch that is too high */
        {10, 1},      /* not a RESUME */
    };
    static const uint8_t right[29] = {9, 5};
    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct hand hand;
        hand_open(&hand, SECONDS, SECONDS);
        ibx_close(hand.conn);
        struct ibx_claim how = claim_of(&hand);
        assert_int_equal(claim(&hand, &how, &hand.conn), 0);
        send_message(hand.conn, wrong[i], sizeof(wrong[i]));
        expect_closed(hand.conn);
        ibx_close(hand.conn); /* the session is still there for a correct claim */
        assert_int_equal(claim(&hand, &how, &hand.conn), 0);
        send_message(hand.conn, right, sizeof(right));
        uint8_t got[64];
        assert_int_equal(receive_message(hand.conn, got, sizeof(got)), 21);
        send_message(hand.conn, "\14", 1);
        hand_close(&hand);
    }
}

/* ------------------------------------------------------------------------------- keys */

#define ALICE     "alice:00112233445566778899aabbccddeeff\n"
#define ALICE_NEW "alice:ffeeddccbbaa99887766554433221100\n"

static void key_file_write(const char *text)
{
    FILE *file = fopen(scene_key_file, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void key_file_make(const char *text)
{
    strcpy(scene_key_file, "/tmp/ibx-claims-XXXXXX");
    const int fd = mkstemp(scene_key_file);
    assert_true(fd >= 0);
    close(fd);
    key_file_write(text);
}

static void key_file_remove(void)
{
    unlink(scene_key_file);
    scene_key_file[0] = 0;
}

/* They have seen everything of the client. They have its key but are another user of this host,
 * or they have another valid key. If it is unknown whether both are on this host, the key
 * decides. */
static void impostors_with_keys(void **state)
{
    struct hand hand;
    struct ibx_conn *conn;
    int status = 0;
    (void)state;
    key_file_make(ALICE "bob:112233445566778899aabbccddeeff00\n");
    hand_open(&hand, SECONDS, SECONDS);
    struct ibx_claim how = claim_of(&hand);
    const bool users_are_known = !ibx_conn_path(hand.conn)->remote;
    const pid_t child = geteuid() || !users_are_known ? -1 : fork();
    if (!child)
        _exit(setresuid(12345, 12345, 12345) || claim(&hand, &how, &conn) != -ESTALE);
    assert_true(child < 0 || (waitpid(child, &status, 0) == child && !status));
    assert_int_equal(ibx_options_set(&hand.options, "name", "bob", NULL), 0);
    assert_int_equal(claim(&hand, &how, &conn), -ESTALE);
    assert_true(!how.reached && how.refused);
    assert_int_equal(ibx_options_set(&hand.options, "name", "alice", NULL), 0);
    send_message(hand.conn, ASKS("A"), 10); /* the session is unchanged */
    expect_message(hand.conn, SAYS("B"), 14);
    ibx_close(hand.conn);
    assert_int_equal(claim(&hand, &how, &hand.conn), 0);
    send_message(hand.conn, (uint8_t[29]){9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 29);
    uint8_t got[64];
    assert_int_equal(receive_message(hand.conn, got, sizeof(got)), 21);
    send_message(hand.conn, "\14", 1);
    hand_close(&hand);
    key_file_remove();
}

/* The client's key file has another key by now, or is half written. The server continues with
 * the key that it read at its start, and so does the session. */
static void keys_are_replaced(void **state)
{
    static const char *const texts[] = {"", ALICE_NEW};
    struct talk t = {11, 6};
    struct scene scene;
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        cuts_plan_nothing();
        client_end.plan[0] = 5;
        key_file_make(ALICE);
        scene_open(&scene, SECONDS, talk_serve, &t);
        key_file_write(texts[i]);
        assert_int_equal(scene_talk(&scene, &t, NULL), 1);
        key_file_remove();
    }
}

/* The same if another thread has since connected with the new key, here to another server. */
static void keys_are_replaced_and_used(void **state)
{
    struct talk t = {11, 6};
    struct scene scene;
    struct hand other;
    (void)state;
    cuts_plan_nothing();
    client_end.plan[0] = 5;
    key_file_make(ALICE);
    scene_open(&scene, SECONDS, talk_serve, &t);
    key_file_write(ALICE_NEW);
    hand_connect(&other, SECONDS);
    send_message(other.conn, ASKS("A"), 10);
    expect_message(other.conn, SAYS("B"), 14);
    send_message(other.conn, "\14", 1);
    hand_close(&other);
    assert_int_equal(scene_talk(&scene, &t, NULL), 1);
    key_file_remove();
}

/* ---------------------------------------------- others that answer in the server's place */

enum answer { STALE_AT_ONCE, DENIED_AT_ONCE, STALE, STALE_PROVEN_WRONGLY, WRONG_PROOF, NO_KEY };
#define ANSWERS (NO_KEY + 1u)

/* without the key */
static struct {
    int listening;
    uint16_t port;
    pthread_t thread;
    char uri[32];
    unsigned most, came; /* how many of the client's attempts reach it */
    bool begun;          /* the first connection is the server's */
    atomic_bool ends;
} other;

/* False: on a busy host the client has given up this attempt before it was answered. */
static bool receives(struct raw *raw, uint8_t type, struct raw_frame *frame)
{
    if (!raw_receive(raw, frame))
        return false;
    assert_int_equal(frame->type, type);
    return true;
}

static void answer(struct raw *raw, enum answer how)
{
    static const uint8_t nothing[RAW_HASH] = {1};
    struct raw_frame frame;
    uint8_t payload[300];
    if (!receives(raw, HELLO, &frame))
        return;
    raw_take_opening(raw, &frame);
    if (how > DENIED_AT_ONCE) {
        const size_t n = raw_opening(raw, payload, how != NO_KEY);
        raw_host_mark(raw, payload + n);
        raw_send_frame(raw, CHALLENGE, payload, n + RAW_HASH);
        if (how != NO_KEY && !receives(raw, PROOF, &frame))
            return;
    }
    const bool denies = how == DENIED_AT_ONCE;
    size_t n = raw_result(payload, denies ? -EACCES : -ESTALE, denies ? "denied" : "stale");
    memcpy(payload + n, nothing, sizeof(nothing));
    n += how == STALE_PROVEN_WRONGLY ? sizeof(nothing) : 0;
    if (how == WRONG_PROOF)
        raw_send_frame(raw, PROOF, nothing, sizeof(nothing));
    else if (how != NO_KEY)
        raw_send_frame(raw, REFUSE, payload, n);
    while (raw_receive(raw, &frame)) /* such as a TRY */
        ;
}

static void *answer_all(void *argument)
{
    (void)argument;
    for (unsigned i = 0; i < other.most && !other.ends; i++) {
        struct raw raw = raw_accept(other.listening);
        if (!other.ends)
            answer(&raw, i % ANSWERS);
        raw_close(&raw);
    }
    return NULL;
}

static const char *to_other(void)
{
    const bool first = !other.begun;
    other.begun = true;
    return !first && other.came < other.most ? (other.came++, other.uri) : NULL;
}

static void other_begins(unsigned most)
{
    memset(&other, 0, sizeof(other));
    other.listening = raw_listen(&other.port);
    other.most = most;
    snprintf(other.uri, sizeof(other.uri), "rdma://127.0.0.1:%u", other.port);
    assert_int_equal(pthread_create(&other.thread, NULL, answer_all, NULL), 0);
    cuts_plan_nothing();
    client_end.plan[0] = 5;
    cuts_connect_to = to_other;
}

static void other_ends(void)
{
    other.ends = true;
    struct raw raw = raw_connect(other.port, "127.0.0.1", "127.0.0.1"); /* wakes its thread */
    raw_close(&raw);
    pthread_join(other.thread, NULL);
    close(other.listening);
    cuts_connect_to = NULL;
}

/* Somebody has the server's address for a while, and refuses the claims. */
static void others_refuse_for_a_while(void **state)
{
    struct talk t = {11, 6};
    struct scene scene;
    (void)state;
    key_file_make(ALICE);
    other_begins(2 * ANSWERS);
    scene_open(&scene, SECONDS, talk_serve, &t);
    assert_int_equal(scene_talk(&scene, &t, NULL), 1);
    assert_int_equal(other.came, other.most);
    other_ends();
    key_file_remove();
}

/* The same for longer than the session is kept. */
static void others_refuse_for_good(void **state)
{
    struct scene scene;
    uint64_t before;
    (void)state;
    key_file_make(ALICE);
    other_begins(UINT_MAX);
    scene_open(&scene, 1, scene_echo, NULL);
    do
        before = ibx_now_ns();
    while (scene_echoes(&scene));
    assert_true(ibx_now_ns() - before > IBX_NS_PER_S * 9 / 10);
    assert_non_null(strstr(ibx_session_reason(scene.client), "no connection for 1 seconds: "));
    assert_false(ibx_session_server_gone(scene.client));
    scene_join(&scene);
    scene_close(&scene);
    other_ends();
    key_file_remove();
}

/* A restarted back end, to which the client's next attempts lead. */
static struct ibx_listener *again;
static atomic_bool again_ends;

static void *accept_again(void *argument)
{
    struct ibx_conn *conn;
    (void)argument;
    while (!again_ends && ibx_accept_wait(again, 10, &conn, NULL)) /* all claims are refused */
        ;
    return NULL;
}

static const char *to_again(void)
{
    return ibx_listener_uri(again);
}

static void started_again_with(const char *key, const char *new_key, const char *expected,
                               bool is_gone)
{
    struct scene scene;
    struct ibx_options options;
    pthread_t accepting;
    cuts_plan_nothing();
    if (key)
        key_file_make(key);
    scene_open(&scene, 1, scene_echo, NULL);
    assert_true(scene_echoes(&scene));
    if (new_key)
        key ? key_file_write(new_key) : key_file_make(new_key);
    scene_options(&options);
    if (!new_key)
        options.key_file[0] = 0;
    assert_int_equal(ibx_listen("rdma://127.0.0.1:0", &options, &again, NULL), 0);
    again_ends = false;
    cuts_connect_to = to_again;
    assert_int_equal(pthread_create(&accepting, NULL, accept_again, NULL), 0);
    ibx_abort(scene.client->conn);
    assert_false(scene_echoes(&scene));
    if (!strstr(ibx_session_reason(scene.client), expected))
        fail_msg("%s", ibx_session_reason(scene.client));
    assert_int_equal(ibx_session_server_gone(scene.client), is_gone);
    scene_join(&scene);
    scene_close(&scene);
    again_ends = true;
    pthread_join(accepting, NULL);
    ibx_listener_close(again);
    cuts_connect_to = NULL;
    key_file_remove();
}

/* The restarted back end says so. The client believes it at once if it can know that it is the
 * same back end. */
static void started_again(void **state)
{
    static const char gone[] = "cannot go on: 127.0.0.1", perhaps[] = "no connection for 1 seconds";
    (void)state;
    started_again_with(NULL, NULL, gone, true);
    started_again_with(ALICE, ALICE, gone, true);
    started_again_with(ALICE, ALICE_NEW, perhaps, false);
    started_again_with(ALICE, NULL, perhaps, false);
    started_again_with(NULL, ALICE, perhaps, false);
}

/* ------------------------------------------------------------------------------- ends */

static void session_that_is_not_kept(void **state)
{
    struct hand hand;
    (void)state;
    hand_open(&hand, 0, 0);
    struct ibx_claim how = claim_of(&hand);
    struct ibx_conn *none;
    assert_int_equal(claim(&hand, &how, &none), -ESTALE);
    uint64_t before = ibx_now_ns();
    hand_close(&hand);
    assert_in_range(ibx_now_ns() - before, 0, patience_ms(20000) * IBX_NS_PER_MS);
}

static void session_ends_when_its_time_is_over(void **state)
{
    struct hand hand;
    (void)state;
    hand_open(&hand, 1, 1);
    uint64_t before = ibx_now_ns();
    ibx_close(hand.conn);
    hand.conn = NULL;
    scene_join(&hand.scene);
    assert_in_range(ibx_now_ns() - before, IBX_NS_PER_S * 9 / 10,
                    patience_ms(20000) * IBX_NS_PER_MS);
    assert_non_null(strstr(ibx_session_reason(hand.scene.server), "come back for 1 seconds"));
    scene_close(&hand.scene);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(client_comes_again),
        cmocka_unit_test(replaced_in_its_handshake),
        cmocka_unit_test(replaced_after_its_result),
        cmocka_unit_test(impostors),
        cmocka_unit_test(impostors_with_nearly_the_proof),
        cmocka_unit_test(impossible_numbers),
        cmocka_unit_test(impostors_with_keys),
        cmocka_unit_test(keys_are_replaced),
        cmocka_unit_test(keys_are_replaced_and_used),
        cmocka_unit_test(others_refuse_for_a_while),
        cmocka_unit_test(others_refuse_for_good),
        cmocka_unit_test(started_again),
        cmocka_unit_test(session_that_is_not_kept),
        cmocka_unit_test(session_ends_when_its_time_is_over),
    };
    if (argc < 2)
        return EXIT_FAILURE;
    scene_provider = argv[1];
    if (argc > 2)
        scene_host = argv[2];
    /* libfabric's emulation takes two seconds for a connection on a busy host. */
    alarm((strcmp(scene_provider, "ofi") ? 250 : 550) * patience_times());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
