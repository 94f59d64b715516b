/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The client's side of the handshake. The server sends its frames byte by byte, and stops or
 * refuses. */
#include "tests/fixtures/client_scene.h"

#include "common/clock.h"
#include "tests/fixtures/forward_clock.h"
#include "tests/fixtures/patience.h"
#include "transport/handshake/handshake.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#define TIMEOUT_MS 60000u /* on the test's clock */

/* If a host cannot read its boot id during one handshake, it can in a later one. Must run first:
 * no other test may have read the boot id. */
static void boot_id_that_could_not_be_read(void **state)
{
    (void)state;
    static const uint8_t nonces[2][NONCE_BYTES] = {"client", "server"};
    uint8_t mark[IBX_HASH_BYTES], again[IBX_HASH_BYTES];
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (!child) {
        struct rlimit usual, none;
        getrlimit(RLIMIT_NOFILE, &usual);
        none = (struct rlimit){.rlim_cur = 0, .rlim_max = usual.rlim_max};
        setrlimit(RLIMIT_NOFILE, &none);
        ibx_handshake_host_mark(nonces[0], nonces[1], again);
        if (ibx_handshake_host_unknown() != -EMFILE)
            _exit(1);
        setrlimit(RLIMIT_NOFILE, &usual);
        ibx_handshake_host_mark(nonces[0], nonces[1], mark);
        _exit(ibx_handshake_host_unknown() || !memcmp(mark, again, sizeof(mark)) ||
              write(ends[1], mark, sizeof(mark)) != (ssize_t)sizeof(mark));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(read(ends[0], again, sizeof(again)), sizeof(again));
    ibx_handshake_host_mark(nonces[0], nonces[1], mark);
    assert_int_equal(ibx_handshake_host_unknown(), 0);
    assert_memory_equal(mark, again, sizeof(mark));
    close(ends[0]);
    close(ends[1]);
}

static void correct_server_is_accepted(void **state)
{
    (void)state;
    for (int with_key = 0; with_key < 2; with_key++) {
        struct scene s;
        struct raw_frame frame;
        open_scene(&s, with_key, 10000);
        struct raw raw = take_client(&s);
        if (with_key)
            raw_set_key(&raw);
        play_to(&raw, STEPS);
        raw_expect(&raw, RESULT, &frame);
        assert_int_equal(client_result(&s), 0);
        assert_string_equal(s.path.provider, "shm");
        assert_int_equal(s.path.refused_count, 0);
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
        close_scene(&s);
    }
}

/* ------------------------------------------------------------------- golden bytes */

static void hello_try_answer_and_result_golden_bytes(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    s.options.slots = 0x0102;
    s.options.message = 0x30405;
    struct raw raw = take_client(&s);
    static const uint8_t hello[] = {105, 0, 0, 0, 1, 'I', 'B', 'X', 'D', 2, 0, 0};
    static const uint8_t wishes[] = {1, 2, 1, 0, 0, 5, 4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    raw_expect(&raw, HELLO, &frame);
    assert_int_equal(frame.length, 93 + IBX_PROGRAM_BYTES);
    assert_memory_equal(frame.bytes, hello, sizeof(hello));
    assert_memory_equal(frame.bytes + 76, wishes, sizeof(wishes));

    uint8_t payload[300], client_proof[RAW_HASH], server_proof[RAW_HASH];
    raw_take_opening(&raw, &frame);
    size_t n = raw_opening(&raw, payload, false);
    raw_host_mark(&raw, payload + n);
    raw_end_mark(&raw, raw.fd, payload + n + RAW_HASH);
    raw_send_frame(&raw, CHALLENGE, payload, n + 2 * RAW_HASH);
    raw_derive(&raw, client_proof, server_proof);
    static const uint8_t proof[] = {34, 0, 0, 0, 3, RAW_SAME_HOST};
    raw_expect(&raw, PROOF, &frame);
    assert_int_equal(frame.length, 38);
    assert_memory_equal(frame.bytes, proof, sizeof(proof));
    assert_memory_equal(frame.bytes + 6, client_proof, RAW_HASH);
    raw_send_frame(&raw, PROOF, server_proof, RAW_HASH);
    raw.authenticated = true; /* from here on raw_receive() checks MACs */

    static const uint8_t try[] = {1 + 5 + 16, 0, 0, 0, 4, 3, 0, 's', 'h', 'm'};
    raw_expect(&raw, TRY, &frame);
    assert_int_equal(frame.length, sizeof(try) + 16);
    assert_memory_equal(frame.bytes, try, sizeof(try));
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    static const uint8_t answer[] = {1 + 16, 0, 0, 0, 6};
    raw_expect(&raw, ANSWER, &frame);
    assert_memory_equal(frame.bytes, answer, sizeof(answer));
    static const uint8_t result[] = {1 + 6 + 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0};
    raw_expect(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(client_result(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

/* When the client fails, it sends -errno in four bytes, then a sentence. */
static void failing_result_golden_bytes(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    memory_control.fail_join = -19;
    struct raw raw = take_client(&s);
    play_to(&raw, AT_RESULT);
    static const uint8_t result[] = {1 + 6 + 17 + 16, 0, 0, 0, 7, 0xed, 0xff, 0xff, 0xff, 17, 0};
    raw_expect(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    assert_memory_equal(frame.bytes + sizeof(result), "join told to fail", 17);
    raw_close(&raw);
    expect_failure(&s, -ECONNRESET, "it closed the connection");
    close_scene(&s);
}

/* The client saves a round trip: it sends its first TRY, with a MAC, right after its PROOF. If
 * TLS follows, it waits. */
static void first_try_does_not_wait_for_the_proof(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame proof, try;
    open_scene(&s, true, 10000);
    struct raw raw = take_client(&s);
    raw_set_key(&raw);
    play_to(&raw, AT_PROOF);
    make_step(&raw, AT_PROOF, &proof);
    raw.authenticated = true; /* concerns received frames */
    raw_expect(&raw, TRY, &try);
    raw_send(&raw, proof.bytes, proof.length);
    uint8_t payload[16];
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    raw_expect(&raw, ANSWER, &try);
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    raw_expect(&raw, RESULT, &try);
    assert_int_equal(client_result(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

/* ------------------------------------------------------------- cut short, and silent */

/* The client's half of a handshake that has sent nothing yet. Its server has already closed the
 * connection, after a refusal for this reason if `refusal` is not NULL. */
static struct ibx_handshake *greeted(int code, const char *refusal, struct ibx_claim *claim)
{
    static struct ibx_options options;
    uint8_t payload[64];
    int fds[2];
    ibx_options_init(&options);
    options.claim = claim;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct raw raw = {.fd = fds[1]};
    if (refusal)
        raw_send_frame(&raw, REFUSE, payload, raw_result(payload, code, refusal));
    close(fds[1]);
    struct ibx_handshake *h = ibx_handshake_create(fds[0], IBX_ROLE_CLIENT, &options, NULL, NULL);
    assert_non_null(h);
    return h;
}

/* Sending to a server that has gone fails with the same error as receiving from it. */
static void frame_to_a_server_that_has_gone(void **state)
{
    (void)state;
    struct frame frame;
    struct ibx_error err = {0};
    struct ibx_handshake *h = greeted(0, NULL, NULL);
    ibx_handshake_frame_begin(&frame, FRAME_HELLO);
    assert_int_equal(
        ibx_handshake_frame_send(h, &frame, ibx_deadline_in_ms(patience_ms(10000)), &err),
        -ECONNRESET);
    assert_non_null(strstr(err.message, "it closed the connection"));
    ibx_close(h->conn);
}

/* A full server refuses a client that has only connected. The client learns the reason as it
 * would after its HELLO, and tries again. */
static void refused_before_its_hello(void **state)
{
    (void)state;
    struct ibx_error err = {0};
    struct ibx_handshake *h = greeted(-EBUSY, "too many", NULL);
    assert_int_equal(ibx_handshake_prove_client(h, ibx_deadline_in_ms(patience_ms(10000)), &err),
                     -EBUSY);
    assert_non_null(strstr(err.message, "too many"));
    ibx_close(h->conn);
}

/* Whoever answers instead of the server, before anybody has proven anything, ends no session. */
static void claim_refused_before_its_hello(void **state)
{
    (void)state;
    static const uint8_t secret[IBX_SECRET_BYTES] = {1};
    static const int codes[] = {-ESTALE, -EACCES};
    for (unsigned i = 0; i < 2; i++) {
        struct ibx_error err = {0};
        struct ibx_claim claim = {.secret = secret};
        struct ibx_handshake *h = greeted(codes[i], "it is over", &claim);
        const uint64_t deadline = ibx_deadline_in_ms(patience_ms(10000));
        assert_int_equal(ibx_handshake_prove_client(h, deadline, &err), codes[i]);
        assert_false(claim.refused);
        ibx_close(h->conn);
    }
}

static void server_disconnects_after_every_byte(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t n = 0, length = 1; n < length; n++) {
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            raw_set_key(&raw);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            raw_send(&raw, frame.bytes, n);
            length = frame.length;
            /* The server reads everything before it closes, so that the client sees an end of
             * stream, not a reset. */
            shutdown(raw.fd, SHUT_WR);
            expect_failure(&s, -ECONNRESET, "it closed the connection");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

static void server_is_silent_in_every_state(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, TIMEOUT_MS);
    for (enum step step = 0; step < STEPS; step++) {
        for (int half = 0; half < 2; half++) {
            struct raw_frame frame;
            struct raw raw = take_client(&s);
            play_to(&raw, step);
            make_step(&raw, step, &frame);
            if (half)
                raw_send(&raw, frame.bytes, frame.length - 1);
            forward_clock_until(&s.over, TIMEOUT_MS / 4);
            expect_failure(&s, -ETIMEDOUT, "no answer in time");
            assert_true(s.took_ns >= (TIMEOUT_MS - 1) * IBX_NS_PER_MS);
            assert_true(s.took_ns < 2 * TIMEOUT_MS * IBX_NS_PER_MS);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* A web server waits for the end of an HTTP request; HELLO does not contain one. */
static void silent_web_server_is_named(void **state)
{
    (void)state;
    static const char page[] = "HTTP/1.0 400 Bad request\r\n";
    struct raw_frame frame;
    struct scene s;
    char end[4];
    open_scene(&s, false, TIMEOUT_MS);
    struct raw raw = take_client(&s);
    raw_expect(&raw, HELLO, &frame);
    forward_clock(TIMEOUT_MS, &s.over);
    assert_int_equal(recv(raw.fd, end, sizeof(end), MSG_WAITALL), sizeof(end));
    assert_memory_equal(end, "\r\n\r\n", sizeof(end));
    raw_send(&raw, page, strlen(page));
    expect_failure(&s, -ETIMEDOUT, "a web server (HTTP) listens there");
    raw_close(&raw);
    close_scene(&s);
}

/* A listening socket from which nobody accepts. */
static void nobody_accepts_the_connection(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 100);
    client(&s);
    assert_int_equal(s.rc, -ETIMEDOUT);
    assert_non_null(
        strstr(s.err.message, "no answer in time; see that an ibx server listens there"));
    close_scene(&s);
}

/* Every link has an address fe80::1, so the kernel must be told which link is meant. Nobody can
 * listen at the other address, which belongs to no host. */
static void addresses_that_need_a_link_or_belong_to_no_host(void **state)
{
    (void)state;
    static const char words[] = "give the address of one host, a link-local one with its interface";
    struct ibx_options options;
    struct ibx_listener *listener = NULL;
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    int rc = ibx_listen("tcp://[fe80::1]:0", &options, &listener, &err);
    if (rc == -EAFNOSUPPORT)
        skip();
    assert_int_equal(rc, -EINVAL);
    assert_non_null(strstr(err.message, words));
    assert_int_equal(ibx_connect("tcp://[fe80::1]:1", &options, &conn, &err), -EINVAL);
    assert_non_null(strstr(err.message, words));
    assert_int_equal(ibx_listen("tcp://[ff02::1]:0", &options, &listener, &err), -EINVAL);
    assert_non_null(strstr(err.message, words));
    /* DNS does not know the name of a link, which is each host's own. */
    assert_int_equal(ibx_connect("tcp://[fe80::1%nowhere]:1", &options, &conn, &err),
                     -EADDRNOTAVAIL);
    assert_non_null(strstr(err.message, "fe80::1%nowhere"));
    assert_non_null(strstr(err.message, "no interface \"nowhere\""));
    assert_null(strstr(err.message, "DNS"));
    assert_int_equal(ibx_listen("tcp://[fe80::1%nowhere]:0", &options, &listener, &err),
                     -EADDRNOTAVAIL);
    assert_non_null(strstr(err.message, "no interface \"nowhere\""));
}

static void nobody_listens(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 1000);
    int listening = s.listening;
    close(listening);
    client(&s);
    assert_int_equal(s.rc, -ECONNREFUSED);
    assert_non_null(strstr(s.err.message, "no server answers at 127.0.0.1 port"));
    s.listening = raw_listen(&s.port);
    close_scene(&s);
}

/* ----------------------------------------------------------------------- providers */

static void try_is(struct raw *raw, const char *name)
{
    struct raw_frame frame;
    uint8_t expected[64];
    raw_expect(raw, TRY, &frame);
    size_t n = raw_string(expected, name);
    assert_int_equal(frame.payload_length, n);
    assert_memory_equal(frame.payload, expected, n);
}

/* The server refuses one provider. The client tries the other one on the same socket and keeps
 * the reason. */
static void refused_provider_and_its_reason(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    play_to(&raw, AT_OFFER);
    raw.authenticated = true;
    try_is(&raw, "shm");
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, -EPERM, "not\aon a Sunday"));
    try_is(&raw, "tcp");
    raw_send_frame(&raw, OFFER, payload, put_wire(payload));
    raw_expect(&raw, ANSWER, &frame);
    raw_expect(&raw, RESULT, &frame);
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(client_result(&s), 0);
    assert_string_equal(s.path.provider, "tcp");
    assert_int_equal(s.path.refused_count, 3);
    assert_string_equal(s.path.refused[0].provider, "shm");
    assert_string_equal(s.path.refused[0].reason, "on the server: not?on a Sunday");
    assert_string_equal(s.path.refused[1].reason, "verbs is not in this build");
    raw_close(&raw);
    close_scene(&s);
}

/* The server's mark is of another host, so the client does not ask for shared memory. */
static void server_on_another_host(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300], proof[RAW_HASH], own[RAW_HASH];
    open_scene(&s, false, 10000);
    s.options.insecure = true;
    struct raw raw = take_client(&s);
    challenge_from_another_host(&raw);
    raw.flags = 0;
    raw_derive(&raw, proof, own);
    raw_expect(&raw, PROOF, &frame);
    raw_send_frame(&raw, PROOF, own, RAW_HASH);
    raw.authenticated = true;
    try_is(&raw, "tcp");
    raw_send_frame(&raw, RESULT, payload, raw_result(payload, -EPERM, "no"));
    expect_failure(&s, -ENOTSUP, "shm: the server is on another host; ");
    assert_non_null(strstr(s.err.message, "tcp: on the server: no"));
    raw_close(&raw);
    close_scene(&s);
}

/* ----------------------------------------------------------------------- encryption */

/* The client requires encryption; the server refuses it, or has no key for it. */
static void encryption_that_is_impossible(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, true, 10000);
    s.options.encryption = IBX_ENCRYPTION_REQUIRED;
    struct raw raw = take_client(&s);
    raw_set_key(&raw);
    raw.encryption = 0;
    make_step(&raw, AT_CHALLENGE, &frame);
    raw_send(&raw, frame.bytes, frame.length);
    expect_failure(
        &s, -EACCES,
        "one end has rdma.encryption : required and the other one off: change one (--encryption)");
    raw_close(&raw);
    s.options.key_file[0] = '\0';
    client(&s);
    assert_int_equal(s.rc, -EINVAL);
    assert_string_equal(
        s.err.message,
        "rdma.encryption : required needs a key: set rdma.key_file (--key-file) on both ends");
    close_scene(&s);
}

/* A public key of low order makes the shared secret known to everybody. */
static void public_key_of_low_order(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    for (uint8_t one = 0; one < 2; one++) {
        struct raw raw = take_client(&s);
        memset(raw.own_public, 0, 32);
        raw.own_public[0] = one;
        make_step(&raw, AT_CHALLENGE, &frame);
        raw_send(&raw, frame.bytes, frame.length);
        expect_failure(&s, -EPROTO, "its public key is of low order");
        raw_close(&raw);
    }
    close_scene(&s);
}

/* A server that has too many clients to authenticate is asked again. */
static void busy_server(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    for (int i = 0; i < 3; i++) {
        raw_expect(&raw, HELLO, &frame);
        raw_send_frame(&raw, REFUSE, payload, raw_result(payload, -EBUSY, "try again"));
        raw_close(&raw);
        raw = raw_accept(s.listening);
    }
    play_to(&raw, STEPS);
    raw_expect(&raw, RESULT, &frame);
    assert_int_equal(client_result(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

/* A server of version 1 is recognized by the frame of that version. */
static void server_of_version_1(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = take_client(&s);
    raw_expect(&raw, HELLO, &frame);
    raw_send_frame(
        &raw, REFUSE, payload,
        raw_result(payload, -EPROTONOSUPPORT, "another version of the protocol is needed"));
    expect_failure(&s, -EPROTONOSUPPORT, "refuses: another version of the protocol is needed");
    raw_close(&raw);
    close_scene(&s);
}

/* Offers that the provider rejects, up to the longest frame. */
static void offers_of_nonsense(void **state)
{
    (void)state;
    static const size_t lengths[] = {0, 1, 7, 8, 9, 100, 4096};
    struct scene s;
    struct raw_frame frame;
    uint8_t nonsense[4096];
    memset(nonsense, 0xab, sizeof(nonsense));
    open_scene(&s, false, 10000);
    s.options.provider[0] = '\0';
    assert_int_equal(ibx_options_set(&s.options, "provider", "shm", NULL), 0);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct raw raw = take_client(&s);
        play_to(&raw, AT_OFFER);
        raw.authenticated = true;
        try_is(&raw, "shm");
        raw_send_frame(&raw, OFFER, nonsense, lengths[i]);
        raw_expect(&raw, RESULT, &frame);
        expect_failure(&s, -ENOTSUP,
                       lengths[i] < 8 ? "a malformed offer" : "there is no such wire");
        assert_true(raw_receives_end(&raw));
        raw_close(&raw);
    }
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boot_id_that_could_not_be_read),
        cmocka_unit_test(correct_server_is_accepted),
        cmocka_unit_test(hello_try_answer_and_result_golden_bytes),
        cmocka_unit_test(failing_result_golden_bytes),
        cmocka_unit_test(first_try_does_not_wait_for_the_proof),
        cmocka_unit_test(frame_to_a_server_that_has_gone),
        cmocka_unit_test(refused_before_its_hello),
        cmocka_unit_test(claim_refused_before_its_hello),
        cmocka_unit_test(server_disconnects_after_every_byte),
        cmocka_unit_test(server_is_silent_in_every_state),
        cmocka_unit_test(silent_web_server_is_named),
        cmocka_unit_test(nobody_accepts_the_connection),
        cmocka_unit_test(addresses_that_need_a_link_or_belong_to_no_host),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(refused_provider_and_its_reason),
        cmocka_unit_test(server_on_another_host),
        cmocka_unit_test(encryption_that_is_impossible),
        cmocka_unit_test(public_key_of_low_order),
        cmocka_unit_test(busy_server),
        cmocka_unit_test(server_of_version_1),
        cmocka_unit_test(offers_of_nonsense),
    };
    return cmocka_run_group_tests(tests, raw_make_key, raw_remove_key);
}
