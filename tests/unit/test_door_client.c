/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The client's side of the door against servers that speak byte by byte, rightly and wrongly. */
#include "tests/unit/memory_provider.h"
#include "tests/unit/raw_door.h"

#include "common/clock.h"
#include "common/log.h"
#include "transport/auth.h"
#include "transport/door.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#define KEY "a key of these tests, 32 bytes.."

/* A raw server, and what became of the last client. */
struct scene {
    int listening;
    uint16_t port;
    int fds; /* open before the scene */
    struct ibx_options options;
    pthread_t thread;
    int rc;
    uint64_t took_ns;
    struct ibx_error err;
    struct ibx_path path;
};

static char key_file[64];
#define WIRE 1u /* what honest offers name */

static int open_fds(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void open_scene(struct scene *s, bool with_key, unsigned timeout_ms)
{
    memset(s, 0, sizeof(*s));
    memory_control_reset();
    s->fds = open_fds();
    ibx_options_init(&s->options);
    s->options.timeout_ms = timeout_ms;
    if (with_key)
        snprintf(s->options.key_file, sizeof(s->options.key_file), "%s", key_file);
    s->listening = raw_listen(&s->port);
    memory_wire_make(WIRE);
}

static void close_scene(struct scene *s)
{
    close(s->listening);
    memory_wire_drop(WIRE);
    assert_int_equal(memory_live_endpoints(), 0);
    assert_int_equal(open_fds(), s->fds);
}

static void *client(void *argument)
{
    struct scene *s = argument;
    struct ibx_conn *conn = NULL;
    char uri[64];
    s->err = (struct ibx_error){0};
    snprintf(uri, sizeof(uri), "rdma://127.0.0.1:%u", s->port);
    uint64_t began = ibx_now_ns();
    s->rc = ibx_connect(uri, &s->options, &conn, &s->err);
    s->took_ns = ibx_now_ns() - began;
    if (!s->rc)
        s->path = *ibx_conn_path(conn);
    ibx_close(conn);
    return NULL;
}

static struct raw answer_knock(struct scene *s)
{
    pthread_create(&s->thread, NULL, client, s);
    return raw_accept(s->listening);
}

static int went(struct scene *s)
{
    pthread_join(s->thread, NULL);
    return s->rc;
}

/* It failed so, and says one sentence that names the server. */
static void expect_failure(struct scene *s, int code, const char *said)
{
    int rc = went(s);
    if (rc != code || !strstr(s->err.message, said) || !strstr(s->err.message, "127.0.0.1:"))
        fail_msg("%d \"%s\", not %d \"%s\"", rc, s->err.message, code, said);
    assert_null(strchr(s->err.message, '\n'));
}

/* ----------------------------------------------------------------- an honest server */

enum step { AT_CHALLENGE, AT_PROOF, AT_OFFER, AT_RESULT, STEPS };

static void hear(struct raw *raw, uint8_t type, struct raw_frame *frame)
{
    assert_true(raw_hear(raw, frame));
    assert_int_equal(frame->type, type);
}

static bool keyed(const struct raw *raw)
{
    static const uint8_t no_key[RAW_HASH];
    return memcmp(raw->key, no_key, RAW_HASH) != 0;
}

static size_t put_wire(uint8_t *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(i ? 0 : WIRE);
    return 8;
}

/* Hears what comes before the server's frame of this step, and makes that frame. */
static void make_step(struct raw *raw, enum step step, struct raw_frame *frame)
{
    uint8_t payload[128], proof[RAW_HASH], own[RAW_HASH];
    struct raw_frame heard;
    size_t length = 0;
    static const uint8_t types[STEPS] = {CHALLENGE, PROOF, OFFER, RESULT};
    switch (step) {
    case AT_CHALLENGE:
        hear(raw, HELLO, &heard);
        memcpy(raw->client_nonce, heard.payload + 7, 32);
        length = raw_opening(raw, payload, keyed(raw));
        raw_host_mark(raw, payload + length);
        length += RAW_HASH;
        break;
    case AT_PROOF:
        raw_derive(raw, proof, own);
        hear(raw, PROOF, &heard);
        assert_int_equal(heard.payload_length, RAW_HASH);
        assert_memory_equal(heard.payload, proof, RAW_HASH);
        memcpy(payload, own, RAW_HASH);
        length = RAW_HASH;
        break;
    case AT_OFFER:
        raw->authenticated = true;
        hear(raw, TRY, &heard);
        length = put_wire(payload);
        break;
    case AT_RESULT:
        hear(raw, ANSWER, &heard);
        length = raw_result(payload, 0, "");
        break;
    case STEPS:
        break;
    }
    raw_frame_make(raw, frame, types[step], payload, length);
}

static void walk_to(struct raw *raw, enum step step)
{
    struct raw_frame frame;
    for (enum step i = 0; i < step; i++) {
        make_step(raw, i, &frame);
        raw_send(raw, frame.bytes, frame.length);
    }
}

static void set_key(struct raw *raw)
{
    struct ibx_piece piece = {KEY, strlen(KEY)};
    ibx_hash(&piece, 1, raw->key);
}

static void honest_server_is_believed(void **state)
{
    (void)state;
    for (int with_key = 0; with_key < 2; with_key++) {
        struct scene s;
        struct raw_frame frame;
        open_scene(&s, with_key, 10000);
        struct raw raw = answer_knock(&s);
        if (with_key)
            set_key(&raw);
        walk_to(&raw, STEPS);
        hear(&raw, RESULT, &frame);
        assert_int_equal(went(&s), 0);
        assert_string_equal(s.path.provider, "shm");
        assert_int_equal(s.path.refused_count, 0);
        assert_true(raw_hears_end(&raw));
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
    struct raw raw = answer_knock(&s);
    static const uint8_t hello[] = {52, 0, 0, 0, 1, 'I', 'B', 'X', 'D', 1, 0, 0};
    static const uint8_t wishes[] = {2, 1, 0, 0, 5, 4, 3, 0, 0, 0, 0, 0};
    hear(&raw, HELLO, &frame);
    assert_int_equal(frame.length, 56);
    assert_memory_equal(frame.bytes, hello, sizeof(hello));
    assert_memory_equal(frame.bytes + 44, wishes, sizeof(wishes));

    uint8_t payload[128], client_proof[RAW_HASH], server_proof[RAW_HASH];
    memcpy(raw.client_nonce, frame.payload + 7, 32);
    size_t n = raw_opening(&raw, payload, false);
    raw_host_mark(&raw, payload + n);
    raw_say(&raw, CHALLENGE, payload, n + RAW_HASH);
    raw_derive(&raw, client_proof, server_proof);
    static const uint8_t proof[] = {33, 0, 0, 0, 3};
    hear(&raw, PROOF, &frame);
    assert_int_equal(frame.length, 37);
    assert_memory_equal(frame.bytes, proof, sizeof(proof));
    assert_memory_equal(frame.bytes + 5, client_proof, RAW_HASH);
    raw_say(&raw, PROOF, server_proof, RAW_HASH);
    raw.authenticated = true; /* from here on raw_hear() checks MACs */

    static const uint8_t try[] = {1 + 5 + 16, 0, 0, 0, 4, 3, 0, 's', 'h', 'm'};
    hear(&raw, TRY, &frame);
    assert_int_equal(frame.length, sizeof(try) + 16);
    assert_memory_equal(frame.bytes, try, sizeof(try));
    raw_say(&raw, OFFER, payload, put_wire(payload));
    static const uint8_t answer[] = {1 + 16, 0, 0, 0, 6};
    hear(&raw, ANSWER, &frame);
    assert_memory_equal(frame.bytes, answer, sizeof(answer));
    static const uint8_t result[] = {1 + 6 + 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0};
    hear(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    raw_say(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(went(&s), 0);
    raw_close(&raw);
    close_scene(&s);
}

/* A failure of the client's: -errno in four bytes, then its sentence. */
static void failing_result_golden_bytes(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    open_scene(&s, false, 10000);
    memory_control.fail_join = -19;
    struct raw raw = answer_knock(&s);
    walk_to(&raw, AT_RESULT);
    static const uint8_t result[] = {1 + 6 + 17 + 16, 0, 0, 0, 7, 0xed, 0xff, 0xff, 0xff, 17, 0};
    hear(&raw, RESULT, &frame);
    assert_memory_equal(frame.bytes, result, sizeof(result));
    assert_memory_equal(frame.bytes + sizeof(result), "join told to fail", 17);
    raw_close(&raw);
    expect_failure(&s, -ECONNRESET, "it closed the connection");
    close_scene(&s);
}

/* ------------------------------------------------------------- cut short, and silent */

/* To speak to a server that is gone ends as to listen to it does. */
static void frame_for_nobody(void **state)
{
    (void)state;
    int fds[2];
    struct door_frame frame;
    struct ibx_options options;
    struct ibx_error err = {0};
    ibx_options_init(&options);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    struct ibx_conn *conn = ibx_conn_new(fds[0], IBX_ROLE_CLIENT, &options);
    assert_non_null(conn);
    close(fds[1]);
    ibx_door_frame_begin(&frame, FRAME_HELLO);
    int rc = ibx_door_frame_send(conn, &frame, ibx_now_ns() + 10000 * IBX_NS_PER_MS);
    assert_int_equal(ibx_door_broken(conn, rc, &err), -ECONNRESET);
    assert_non_null(strstr(err.message, "it closed the connection"));
    ibx_close(conn);
}

static void cut_off_at_every_byte(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t n = 0, length = 1; n < length; n++) {
            struct raw_frame frame;
            struct raw raw = answer_knock(&s);
            set_key(&raw);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            raw_send(&raw, frame.bytes, n);
            length = frame.length;
            /* All that the client has said is read, so that it meets an end and no reset. */
            shutdown(raw.fd, SHUT_WR);
            expect_failure(&s, -ECONNRESET, "it closed the connection");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

static void silent_in_every_state(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 100);
    for (enum step step = 0; step < STEPS; step++) {
        for (int half = 0; half < 2; half++) {
            struct raw_frame frame;
            struct raw raw = answer_knock(&s);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            if (half)
                raw_send(&raw, frame.bytes, frame.length - 1);
            expect_failure(&s, -ETIMEDOUT, "no answer in time");
            assert_true(s.took_ns >= 99 * IBX_NS_PER_MS);
            assert_true(s.took_ns < 5000 * IBX_NS_PER_MS);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* A listening socket that nobody accepts from. */
static void nobody_takes_the_knock(void **state)
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

static void nobody_listens(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false, 1000);
    int listening = s.listening;
    close(listening);
    client(&s);
    assert_int_equal(s.rc, -ECONNREFUSED);
    assert_non_null(strstr(s.err.message, "nobody answers at 127.0.0.1 port"));
    s.listening = raw_listen(&s.port);
    close_scene(&s);
}

/* -------------------------------------------------------------------------- nonsense */

static void wrong_lengths(void **state)
{
    (void)state;
    static const uint8_t lengths[][4] = {
        {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0, 0, 0, 0x80}, {0x12, 0x10, 0, 0}};
    struct scene s;
    open_scene(&s, false, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < sizeof(lengths) / 4; i++) {
            uint8_t bytes[5] = {[4] = CHALLENGE};
            struct raw_frame frame;
            struct raw raw = answer_knock(&s);
            memcpy(bytes, lengths[i], 4);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            raw_send(&raw, bytes, 5);
            expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

static void frames_out_of_order(void **state)
{
    (void)state;
    static const uint8_t right[STEPS] = {CHALLENGE, PROOF, OFFER, RESULT};
    struct scene s;
    open_scene(&s, false, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (unsigned type = 0; type < 12; type++) {
            /* RESULT instead of OFFER gives one provider up, REFUSE everything. */
            if (type == right[step] || type == REFUSE || (step == AT_OFFER && type == RESULT))
                continue;
            struct raw_frame frame, other;
            uint8_t payload[64];
            struct raw raw = answer_knock(&s);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            raw.sent--;
            size_t n = raw_opening(&raw, payload, false);
            raw_frame_make(&raw, &other, (uint8_t)type, payload, n);
            raw_send(&raw, other.bytes, other.length);
            expect_failure(&s, -EPROTO, "it does not speak this protocol");
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* What is no server of ours at all. */
static void banners(void **state)
{
    (void)state;
    static const char *const texts[] = {"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "220 mail ESMTP\r\n",
                                        "HTTP/1.1 400 Bad Request\r\n\r\n"};
    struct scene s;
    open_scene(&s, false, 10000);
    for (int i = 0; i < 3; i++) {
        struct raw_frame frame;
        struct raw raw = answer_knock(&s);
        hear(&raw, HELLO, &frame);
        raw_send(&raw, texts[i], strlen(texts[i]));
        expect_failure(&s, -EPROTO, "it does not speak this protocol");
        raw_close(&raw);
    }
    close_scene(&s);
}

/* A REFUSE, which takes the place of any frame before TRY: its sentence arrives, made fit for a
 * terminal. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        int32_t code;
        const char *reason, *said;
        int expected;
    } cases[] = {
        {-EACCES, "not you", "refuses: not you", -EACCES},
        {0, "no code", "refuses: no code", -ECONNREFUSED},
        {-EIO, "red \x1b[31m\nline\x80", "refuses: red ?[31m?line?", -EIO},
        {5, "positive", "refuses: positive", -EPROTO},
        {INT32_MIN, "huge", "refuses: huge", -EPROTO},
    };
    struct scene s;
    open_scene(&s, false, 10000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (enum step step = 0; step <= AT_PROOF; step++) {
            struct raw_frame frame, refuse;
            uint8_t payload[300];
            struct raw raw = answer_knock(&s);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            raw.sent--;
            raw_frame_make(&raw, &refuse, REFUSE, payload,
                           raw_result(payload, cases[i].code, cases[i].reason));
            raw_send(&raw, refuse.bytes, refuse.length);
            expect_failure(&s, cases[i].expected, cases[i].said);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* The peer's sentence is longer than any sentence, or its length lies. */
static void refusal_without_measure(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[3000];
    open_scene(&s, false, 10000);
    for (unsigned length = 0; length < 3000; length += 299) {
        for (unsigned claimed = 0; claimed < 3; claimed++) {
            struct raw raw = answer_knock(&s);
            hear(&raw, HELLO, &frame);
            memset(payload, 'x', sizeof(payload));
            memset(payload, 0xff, 4); /* -1 */
            unsigned claim = claimed == 0 ? length : claimed == 1 ? length + 1 : 0xffff;
            payload[4] = (uint8_t)claim;
            payload[5] = (uint8_t)(claim >> 8);
            raw_say(&raw, REFUSE, payload, 6 + length > 3000 ? 3000 : 6 + length);
            int rc = went(&s);
            assert_true(rc == -EPERM || rc == -EPROTO);
            assert_non_null(strstr(s.err.message, "refuses"));
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* -------------------------------------------------------------------------- proofs */

static void server_without_the_key(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[128];
    open_scene(&s, true, 10000);

    /* It says that it has none. */
    struct raw raw = answer_knock(&s);
    hear(&raw, HELLO, &frame);
    assert_int_equal(frame.payload[6], 1);
    memcpy(raw.client_nonce, frame.payload + 7, 32);
    size_t n = raw_opening(&raw, payload, false);
    raw_say(&raw, CHALLENGE, payload, n + RAW_HASH);
    expect_failure(&s, -EACCES, "has no key, this side has one");
    raw_close(&raw);

    /* It has another one, does not look at the client's proof, and gives any of its own. */
    for (int wrong = 0; wrong < 3; wrong++) {
        uint8_t client_proof[RAW_HASH], server_proof[RAW_HASH];
        raw = answer_knock(&s);
        memset(raw.key, 0x33, RAW_HASH);
        hear(&raw, HELLO, &frame);
        memcpy(raw.client_nonce, frame.payload + 7, 32);
        n = raw_opening(&raw, payload, true);
        raw_host_mark(&raw, payload + n);
        raw_say(&raw, CHALLENGE, payload, n + RAW_HASH);
        raw_derive(&raw, client_proof, server_proof);
        hear(&raw, PROOF, &frame);
        memcpy(client_proof, frame.payload, RAW_HASH);
        /* wrong key; the client's own proof back; nothing */
        raw_say(&raw, PROOF, wrong == 0 ? server_proof : client_proof, wrong == 2 ? 0 : RAW_HASH);
        expect_failure(&s, -EACCES, "does not know the key");
        assert_true(raw_hears_end(&raw));
        raw_close(&raw);
    }
    close_scene(&s);

    /* The server asks for a key and the client has none. */
    open_scene(&s, false, 10000);
    raw = answer_knock(&s);
    hear(&raw, HELLO, &frame);
    n = raw_opening(&raw, payload, true);
    raw_say(&raw, CHALLENGE, payload, n + RAW_HASH);
    expect_failure(&s, -EACCES, "has a key, this side has none");
    raw_close(&raw);
    close_scene(&s);
}

static void tampered_frames(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true, 10000);
    for (enum step step = 0; step < STEPS; step++) {
        for (size_t at = 0, length = 1; at < length; at++) {
            struct raw_frame frame;
            struct raw raw = answer_knock(&s);
            set_key(&raw);
            walk_to(&raw, step);
            make_step(&raw, step, &frame);
            length = frame.length;
            frame.bytes[at] ^= (uint8_t)(1u << at % 8);
            raw_send(&raw, frame.bytes, frame.length);
            if (step == AT_CHALLENGE && at >= 5) {
                /* Wishes and nonce are believed; then neither side's proof is what it should be. */
                uint8_t proof[RAW_HASH] = {0};
                raw_send(&raw, "\x21\0\0\0\x03", 5);
                raw_send(&raw, proof, RAW_HASH);
            }
            shutdown(raw.fd, SHUT_WR);
            int rc = went(&s);
            assert_true(rc == -EBADMSG || rc == -EPROTO || rc == -ECONNRESET || rc == -EACCES);
            if (step >= AT_OFFER && at >= 4)
                assert_int_equal(rc, -EBADMSG);
            raw_close(&raw);
        }
    }
    close_scene(&s);
}

/* ----------------------------------------------------------------------- providers */

static void try_is(struct raw *raw, const char *name)
{
    struct raw_frame frame;
    uint8_t expected[64];
    hear(raw, TRY, &frame);
    size_t n = raw_string(expected, name);
    assert_int_equal(frame.payload_length, n);
    assert_memory_equal(frame.payload, expected, n);
}

/* The server refuses one; the other is tried on the same door, and the reason is kept. */
static void refused_provider_and_its_reason(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[300];
    open_scene(&s, false, 10000);
    struct raw raw = answer_knock(&s);
    walk_to(&raw, AT_OFFER);
    raw.authenticated = true;
    try_is(&raw, "shm");
    raw_say(&raw, RESULT, payload, raw_result(payload, -EPERM, "not\aon a Sunday"));
    try_is(&raw, "tcp");
    raw_say(&raw, OFFER, payload, put_wire(payload));
    hear(&raw, ANSWER, &frame);
    hear(&raw, RESULT, &frame);
    raw_say(&raw, RESULT, payload, raw_result(payload, 0, ""));
    assert_int_equal(went(&s), 0);
    assert_string_equal(s.path.provider, "tcp");
    assert_int_equal(s.path.refused_count, 3);
    assert_string_equal(s.path.refused[0].provider, "shm");
    assert_string_equal(s.path.refused[0].reason, "not?on a Sunday");
    assert_string_equal(s.path.refused[1].reason, "verbs is not in this build");
    raw_close(&raw);
    close_scene(&s);
}

/* A mark that is not this host's: shared memory is not even asked for. */
static void server_on_another_host(void **state)
{
    (void)state;
    struct scene s;
    struct raw_frame frame;
    uint8_t payload[128], proof[RAW_HASH], own[RAW_HASH];
    open_scene(&s, false, 10000);
    struct raw raw = answer_knock(&s);
    hear(&raw, HELLO, &frame);
    memcpy(raw.client_nonce, frame.payload + 7, 32);
    size_t n = raw_opening(&raw, payload, false);
    raw_host_mark(&raw, payload + n);
    payload[n] ^= 1;
    raw_say(&raw, CHALLENGE, payload, n + RAW_HASH);
    raw_derive(&raw, proof, own);
    hear(&raw, PROOF, &frame);
    raw_say(&raw, PROOF, own, RAW_HASH);
    raw.authenticated = true;
    try_is(&raw, "tcp");
    raw_say(&raw, RESULT, payload, raw_result(payload, -EPERM, "no"));
    expect_failure(&s, -ENOTSUP, "shm: the server is on another host; ");
    assert_non_null(strstr(s.err.message, "tcp: no"));
    raw_close(&raw);
    close_scene(&s);
}

/* Offers that the provider does not like, up to the longest frame. */
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
        struct raw raw = answer_knock(&s);
        walk_to(&raw, AT_OFFER);
        raw.authenticated = true;
        try_is(&raw, "shm");
        raw_say(&raw, OFFER, nonsense, lengths[i]);
        hear(&raw, RESULT, &frame);
        expect_failure(&s, -ENOTSUP,
                       lengths[i] < 8 ? "a malformed offer" : "there is no such wire");
        assert_true(raw_hears_end(&raw));
        raw_close(&raw);
    }
    close_scene(&s);
}

static int make_key(void **state)
{
    (void)state;
    ibx_log_set_level(IBX_LOG_ERROR);
    snprintf(key_file, sizeof(key_file), "/tmp/test_door_client.XXXXXX");
    int fd = mkstemp(key_file);
    return fd < 0 || write(fd, KEY, strlen(KEY)) < 0 || close(fd);
}

static int remove_key(void **state)
{
    (void)state;
    return unlink(key_file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(honest_server_is_believed),
        cmocka_unit_test(hello_try_answer_and_result_golden_bytes),
        cmocka_unit_test(failing_result_golden_bytes),
        cmocka_unit_test(frame_for_nobody),
        cmocka_unit_test(cut_off_at_every_byte),
        cmocka_unit_test(silent_in_every_state),
        cmocka_unit_test(nobody_takes_the_knock),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(wrong_lengths),
        cmocka_unit_test(frames_out_of_order),
        cmocka_unit_test(banners),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refusal_without_measure),
        cmocka_unit_test(server_without_the_key),
        cmocka_unit_test(tampered_frames),
        cmocka_unit_test(refused_provider_and_its_reason),
        cmocka_unit_test(server_on_another_host),
        cmocka_unit_test(offers_of_nonsense),
    };
    return cmocka_run_group_tests(tests, make_key, remove_key);
}
