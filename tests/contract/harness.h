/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The contract tests ask of every provider what transport.h promises, through
 * transport.h only.
 *
 * A test is one process; its peer is another one, forked for the test, that
 * serves its end of the connection and takes orders over a socket pair
 * (peer.c). Both keep books on their end of the connection (struct end): each
 * accepted post completes exactly once, messages arrive whole and in order,
 * nothing follows the end. Waiting is always for a condition, with a deadline.
 */
#ifndef IBX_TESTS_CONTRACT_HARNESS_H
#define IBX_TESTS_CONTRACT_HARNESS_H

#include "transport/transport.h"
#include "transport/fault_injection/fault_injection.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/types.h>

#include <cmocka.h>

#define HELD_MAX 8 /* messages that MODE_HOLD keeps: less than the default slots */

/* The command line. */
struct contract {
    const char *provider;
    const char *host;
    bool fault_injection; /* idle, on both sides */
    bool key;             /* both sides have one */
    bool small;           /* IBX_CONTRACT_SMALL=1: less data for emulators and sanitizers */
    struct setting {
        char side; /* 's', 'c' or 'b'oth */
        const char *key_value;
    } settings[32];
    unsigned setting_count;
};
extern struct contract contract;

/* What either process may spend on one wait. */
unsigned contract_patience_ms(void);
/* The full size normally, the small one when asked for. */
size_t contract_size(size_t full, size_t small);
/* Defaults of the run for one side: IBX_CONTRACT and command-line settings applied. */
void contract_options(struct ibx_options *options, char side);
/* SCHEME://HOST:0 */
const char *contract_uri(void);

/* Fails the test; in the peer process prints and exits, which the test then sees. */
void contract_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
#define FAIL(...) contract_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            FAIL("not true: %s", #condition);                                                      \
    } while (0)
#define CHECK_OK(call, err)                                                                        \
    do {                                                                                           \
        int check_rc = (call);                                                                     \
        if (check_rc)                                                                              \
            FAIL("%s: %d, %s", #call, check_rc, (err).message);                                    \
    } while (0)

/* ----------------------------------------------------------------- patterns */

uint64_t pattern_mix(uint64_t value);
/* Bytes [position, position + length) of the endless pattern `seed`. */
void pattern_fill(void *bytes, size_t length, uint64_t seed, uint64_t position);
/* Index of the first byte that differs, or -1. */
ssize_t pattern_check(const void *bytes, size_t length, uint64_t seed, uint64_t position);
/* Message number `n` of a sequence: its length, and the contents are the pattern of seed + n. */
size_t sequence_length(uint64_t seed, uint64_t n, size_t message_max);

/* Private zeroed pages. */
void *pages_map(size_t length);
/* The same `period` bytes (whole pages) again and again; shared, for pages_unmap(). */
void *pages_map_repeating(size_t length, size_t period);
void pages_unmap(void *pages, size_t length);

/* --------------------------------------------------------------------- ends */

struct held_message {
    struct ibx_event event;
    uint64_t number;
};

/* One end of a connection, with its books. */
struct end {
    struct ibx_conn *conn;
    const struct ibx_caps *caps;

    /* Posts: a cookie is the number of the post. */
    struct post {
        enum ibx_event_type kind;
        unsigned times; /* completed: 1 in the end */
        unsigned order; /* among the completions */
        int status;
    } * posts;
    unsigned posted, completed, failed, capacity;
    unsigned signaled, signals;

    /* Messages, by default checked against the sequence `seed_in` and released at once. */
    void (*message)(struct end *end, const struct ibx_event *event);
    uint64_t seed_in, received, seed_out, sent;
    struct held_message held[HELD_MAX];
    unsigned held_count;
    uint64_t random;

    bool closed;
    int closed_status;
    void *owner; /* peer.c's */
};

void end_init(struct end *end, struct ibx_conn *conn);
void end_fini(struct end *end);
/* Polls once and keeps the books. Returns the number of events. */
int end_poll(struct end *end);
/* Polls; when there was nothing, sleeps until there may be something or the deadline. */
void end_turn(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
              int line);
/* Sleeps only, as soon as arming allows it. */
void end_sleep(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
               int line);
#define AWAIT(end, condition)                                                                      \
    do {                                                                                           \
        uint64_t await_deadline = await_until();                                                   \
        while (!(condition))                                                                       \
            end_turn((end), await_deadline, #condition, __FILE__, __LINE__);                       \
    } while (0)
uint64_t await_until(void);

/* Post, expecting acceptance; return the cookie. */
unsigned end_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                  uint64_t offset, size_t length, unsigned flags);
unsigned end_write(struct end *end, struct ibx_mr *mr, const void *local,
                   const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags);
/* The same, returning what the call returned: nothing is booked unless it was accepted. */
int end_try_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                 uint64_t offset, size_t length, unsigned flags);
int end_try_write(struct end *end, struct ibx_mr *mr, const void *local,
                  const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags);
/* Sends, polling and sleeping until there is credit. */
void end_push(struct end *end, const struct iovec *iov, int iovcnt, uint64_t cookie,
              unsigned flags);
/* The same with the next message of the sequence `seed_out`, and with the next `count`. */
void end_send(struct end *end, unsigned flags);
void end_send_many(struct end *end, uint64_t count);
/* Tries to send it once; returns what ibx_send returned. */
int end_send_next(struct end *end, unsigned flags);
/* Post `one` has completed, and `other` not before it. */
bool end_before(const struct end *end, unsigned one, unsigned other);
/* Every post has completed, each once. */
void end_check_books(struct end *end);

/* Message handlers. */
void message_in_sequence(struct end *end, const struct ibx_event *event);
void message_held(struct end *end, const struct ibx_event *event);
void end_release_held(struct end *end);

struct ibx_mr *end_register(struct end *end, void *pages, size_t length, unsigned access);

/* -------------------------------------------------------------------- pairs */

enum side { SIDE_SERVER, SIDE_CLIENT };

enum verb {
    ORDER_PING,
    ORDER_EXPOSE,  /* region, length, access, seed, period, allocate -> remote */
    ORDER_FILL,    /* region, seed: the whole region */
    ORDER_CHECK,   /* region, offset, length, seed, position -> value: first mismatch or -1 */
    ORDER_DROP,    /* region: deregister and unmap it; another mapping takes its place */
    ORDER_READ,    /* remote, seed -> value: of all its bytes the first mismatch, or -1, or -2 when
                      it cannot be READ */
    ORDER_POLLING, /* value: whether to poll the connection */
    ORDER_MODE,    /* value: enum mode, seed: of the expected sequence */
    ORDER_SEND,    /* value: so many messages of the sequence `seed`; goes on by itself */
    ORDER_COUNT,   /* -> value: messages received so far */
    ORDER_STATUS,  /* -> value: 1 once the connection has ended */
    ORDER_SLEEPER, /* value: enum sleeper, once the test's process `length` sleeps */
    ORDER_CLOSE,   /* ibx_close() */
    ORDER_EXIT,
};

enum mode { MODE_SEQUENCE, MODE_HOLD, MODE_ECHO, MODE_PLACES };
enum sleeper { SLEEPER_SEND, SLEEPER_DIE };

struct order {
    enum verb verb;
    unsigned region, access;
    uint64_t offset, length, seed, position, value;
    uint64_t period; /* of memory that repeats itself, 0: it does not */
    bool allocate;
    struct ibx_remote remote;
};

struct answer {
    int rc;
    int64_t value;
    struct ibx_remote remote;
};

/* A test and its peer. */
struct pair {
    struct end end;
    struct ibx_listener *listener;
    pid_t peer;
    int control;
};

/* What a pair may be opened with besides the run's defaults. */
struct pair_options {
    const char *uri;                    /* to listen at instead of contract_uri(), or NULL */
    const char *set;                    /* one more key=value for both sides, or NULL */
    struct ibx_injected_faults *faults; /* for the test's side */
    struct ibx_domain *domain;          /* likewise */
};

/* The test takes `side`, its peer the other. */
struct pair *pair_open(enum side side);
struct pair *pair_open_with(enum side side, const struct pair_options *with);
/* Waits for one connection request. */
struct ibx_conn *contract_accept(struct ibx_listener *listener);
/* Until a client is turned away, for the reason in `err`. */
void contract_turn_away(struct ibx_listener *listener, struct ibx_error *err);
/* A TCP connection to the listener that sends no handshake. */
int contract_raw_connect(const struct ibx_listener *listener);
/* Ends both: the peer must have noticed nothing wrong. */
void pair_close(struct pair *pair);
void pair_kill(struct pair *pair);
void pair_tell(struct pair *pair, const struct order *order);
struct answer pair_answer(struct pair *pair);
/* The same, polling the connection meanwhile. */
struct answer pair_answer_polling(struct pair *pair);
/* Sends an order and checks that the peer carried it out. */
struct answer pair_ask(struct pair *pair, struct order order);
struct ibx_remote pair_expose(struct pair *pair, unsigned region, size_t length, unsigned access,
                              uint64_t seed);

/* Asks until the peer's answer to `verb` is `value` or more, and returns it; polls meanwhile. */
uint64_t pair_await(struct pair *pair, enum verb verb, uint64_t value);

#define R           IBX_ACCESS_REMOTE_READ
#define W           IBX_ACCESS_REMOTE_WRITE
#define SEED_REMOTE 101u
#define SEED_LOCAL  202u

/* A pair; the peer's region 0, with the pattern SEED_REMOTE; and memory of the same length here,
 * with SEED_LOCAL, registered for local use. */
struct field {
    struct pair *pair;
    struct end *end; /* the pair's */
    size_t length;
    struct ibx_remote remote;
    uint8_t *bytes;
    struct ibx_mr *mr;
};
struct field field_open(struct pair *pair, size_t length, unsigned access);
/* Unless the test has closed the connection, every post has completed. */
void field_close(struct field *field);
/* What differs in the peer's [offset, offset + length) from this part of the pattern: the first
 * byte, counted from `offset`, or -1. */
int64_t field_peers_mismatch(struct field *field, size_t offset, size_t length, uint64_t seed,
                             uint64_t position);

/* A process that runs `run` and exits with what it returned. */
pid_t process_start(int (*run)(void *arg), void *arg);
/* Waits until the kernel says, three times in a row, that this thread of the process sleeps. False:
 * it is gone. */
bool await_asleep(pid_t process, pid_t thread);
/* Waits for its end: the exit status, or -signal. */
int process_end(pid_t pid);

/* Frees what a failed test has left; every test's teardown. */
int contract_setup(void **state);
int contract_teardown(void **state);

/* peer.c: serves orders until told to exit. */
void peer_serve(struct ibx_conn *conn, int control) __attribute__((noreturn));

/* ------------------------------------------------------------------- groups */

extern enum side contract_sides[2];
#define TEST_AS(f, name, state)                                                                    \
    {                                                                                              \
        name, f, contract_setup, contract_teardown, state                                          \
    }
#define TEST(f) TEST_AS(f, #f, NULL)
/* Once with the test as the server, once as the client; SIDE_OF(state) tells which. */
#define TEST_BOTH(f)                                                                               \
    TEST_AS(f, #f "_as_server", &contract_sides[SIDE_SERVER]),                                     \
        TEST_AS(f, #f "_as_client", &contract_sides[SIDE_CLIENT])
#define SIDE_OF(state) (**(enum side **)(state))

struct group {
    const char *name;
    const struct CMUnitTest *tests;
    size_t count;
};
#define GROUP(symbol, title, array)                                                                \
    const struct group symbol = {title, array, sizeof(array) / sizeof((array)[0])}

extern const struct group group_connect, group_messages, group_rdma, group_regions, group_deaths,
    group_sleep, group_auth, group_faults, group_domains;

/* Prints why and skips. */
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        print_message("SKIPPED: " __VA_ARGS__);                                                    \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#endif
