/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The contract tests check for every provider what transport.h promises, and use nothing but
 * transport.h.
 *
 * A test is one process. Its peer is another one, forked for the test, that serves its end of
 * the connection and takes orders over a socket pair (peer.c). Both record the posts of their
 * end (struct end): each accepted post completes exactly once, messages arrive whole and in
 * order, and nothing follows the end. Every wait is for a condition, with a deadline. */
#ifndef IBX_TESTS_CONTRACT_HARNESS_H
#define IBX_TESTS_CONTRACT_HARNESS_H

#include "transport/transport.h"
#include "transport/fault_injection/fault_injection.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/types.h>

#include <cmocka.h>

#define HELD_MAX 8 /* messages that MODE_HOLD keeps: fewer than the default number of slots */

/* The command line. */
struct contract {
    const char *provider;
    const char *host;
    bool fault_injection; /* active on both sides, without faults */
    bool key;             /* both sides have one */
    bool small;           /* IBX_CONTRACT_SMALL=1: less data for emulators and sanitizers */
    struct setting {
        char side; /* 's' for the server, 'c' for the client, 'b' for both */
        const char *key_value;
    } settings[32];
    unsigned setting_count;
};
extern struct contract contract;

/* How long either process may wait for one condition. */
unsigned contract_patience_ms(void);
/* `full`, or `small` with IBX_CONTRACT_SMALL=1. */
size_t contract_size(size_t full, size_t small);
/* The options of one side in this run: defaults, IBX_CONTRACT, and settings of the command line. */
void contract_options(struct ibx_options *options, char side);
/* SCHEME://HOST:0 */
const char *contract_uri(void);

/* Fails the test. In the peer process it prints and exits, which the test notices. */
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
/* Fills in bytes [position, position + length) of the endless pattern `seed`. */
void pattern_fill(void *bytes, size_t length, uint64_t seed, uint64_t position);
/* Returns the index of the first byte that differs, or -1. */
ssize_t pattern_check(const void *bytes, size_t length, uint64_t seed, uint64_t position);
/* The length of message number `n` of a sequence. Its contents are the pattern of seed + n. */
size_t sequence_length(uint64_t seed, uint64_t n, size_t message_max);

/* Maps private zeroed pages. */
void *pages_map(size_t length);
/* Maps the same `period` bytes (whole pages) again and again, shared. Freed by pages_unmap(). */
void *pages_map_repeating(size_t length, size_t period);
void pages_unmap(void *pages, size_t length);

/* --------------------------------------------------------------------- ends */

struct held_message {
    struct ibx_event event;
    uint64_t number;
};

/* One end of a connection, with the record of its posts. */
struct end {
    struct ibx_conn *conn;
    const struct ibx_caps *caps;

    /* A cookie is the number of its post. */
    struct post {
        enum ibx_event_type kind;
        unsigned times; /* how often it has completed; must be 1 in the end */
        unsigned order; /* its place among the completions */
        int status;
    } * posts;
    unsigned posted, completed, failed, capacity;
    unsigned signaled, signals;

    /* Messages are compared with the sequence `seed_in` and released at once, unless `message`
     * is changed. */
    void (*message)(struct end *end, const struct ibx_event *event);
    uint64_t seed_in, received, seed_out, sent;
    struct held_message held[HELD_MAX];
    unsigned held_count;
    uint64_t random;

    bool closed;
    int closed_status;
    void *owner; /* used by peer.c */
};

void end_init(struct end *end, struct ibx_conn *conn);
void end_fini(struct end *end);
/* Polls once and records the events. Returns their number. */
int end_poll(struct end *end);
/* Polls. If there was nothing, sleeps until something may have happened or the deadline has
 * passed. */
void end_turn(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
              int line);
/* Sleeps only, once arm() allows it. */
void end_sleep(struct end *end, uint64_t deadline_ns, const char *awaited, const char *file,
               int line);
#define AWAIT(end, condition)                                                                      \
    do {                                                                                           \
        uint64_t await_deadline = await_until();                                                   \
        while (!(condition))                                                                       \
            end_turn((end), await_deadline, #condition, __FILE__, __LINE__);                       \
    } while (0)
uint64_t await_until(void);

/* Post; the post must be accepted. Return the cookie. */
unsigned end_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                  uint64_t offset, size_t length, unsigned flags);
unsigned end_write(struct end *end, struct ibx_mr *mr, const void *local,
                   const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags);
/* The same, but return the result of the call. A post that is not accepted is not recorded. */
int end_try_read(struct end *end, struct ibx_mr *mr, void *local, const struct ibx_remote *remote,
                 uint64_t offset, size_t length, unsigned flags);
int end_try_write(struct end *end, struct ibx_mr *mr, const void *local,
                  const struct ibx_remote *remote, uint64_t offset, size_t length, unsigned flags);
/* Sends; polls and sleeps until there is credit. */
void end_push(struct end *end, const struct iovec *iov, int iovcnt, uint64_t cookie,
              unsigned flags);
/* The same for the next message, or the next `count`, of the sequence `seed_out`. */
void end_send(struct end *end, unsigned flags);
void end_send_many(struct end *end, uint64_t count);
/* Tries to send the next message once. Returns what ibx_send() returned. */
int end_send_next(struct end *end, unsigned flags);
/* Whether post `one` has completed, and `other` not before it. */
bool end_before(const struct end *end, unsigned one, unsigned other);
/* Checks that every post has completed exactly once. */
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
    ORDER_SEND, /* value: how many messages of the sequence `seed`; the peer sends them by itself */
    ORDER_COUNT,   /* -> value: messages received so far */
    ORDER_STATUS,  /* -> value: 1 once the connection has ended */
    ORDER_SLEEPER, /* value: enum sleeper, done once process `length`, the test's, sleeps */
    ORDER_CLOSE,   /* ibx_close() */
    ORDER_EXIT,
};

enum mode { MODE_SEQUENCE, MODE_HOLD, MODE_ECHO, MODE_PLACES };
enum sleeper { SLEEPER_SEND, SLEEPER_DIE };

struct order {
    enum verb verb;
    unsigned region, access;
    uint64_t offset, length, seed, position, value;
    uint64_t period; /* of repeating memory; 0: it does not repeat */
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

/* How a pair differs from the run's defaults. */
struct pair_options {
    const char *uri;                    /* to listen at instead of contract_uri(), or NULL */
    const char *set;                    /* one more key=value for both sides, or NULL */
    struct ibx_injected_faults *faults; /* for the test's side */
    struct ibx_domain *domain;          /* likewise */
};

/* Opens a pair. The test has `side`, its peer the other one. */
struct pair *pair_open(enum side side);
struct pair *pair_open_with(enum side side, const struct pair_options *with);
/* Waits for one connection request. */
struct ibx_conn *contract_accept(struct ibx_listener *listener);
/* Accepts until a client is refused; `err` says why. */
void contract_turn_away(struct ibx_listener *listener, struct ibx_error *err);
/* Makes a TCP connection to the listener that sends no handshake. */
int contract_raw_connect(const struct ibx_listener *listener);
/* Ends both processes. The peer must have found no error. */
void pair_close(struct pair *pair);
void pair_kill(struct pair *pair);
void pair_tell(struct pair *pair, const struct order *order);
struct answer pair_answer(struct pair *pair);
/* Waits for the peer's answer, and polls the connection meanwhile. */
struct answer pair_answer_polling(struct pair *pair);
/* Sends an order and checks that the peer carried it out. */
struct answer pair_ask(struct pair *pair, struct order order);
struct ibx_remote pair_expose(struct pair *pair, unsigned region, size_t length, unsigned access,
                              uint64_t seed);

/* Repeats the order until the peer's answer is `value` or more, and returns it. Polls meanwhile. */
uint64_t pair_await(struct pair *pair, enum verb verb, uint64_t value);

#define R           IBX_ACCESS_REMOTE_READ
#define W           IBX_ACCESS_REMOTE_WRITE
#define SEED_REMOTE 101u
#define SEED_LOCAL  202u

/* A pair; the peer's region 0, which has the pattern SEED_REMOTE; and memory of the same length
 * here, which has SEED_LOCAL and is registered for local use. */
struct field {
    struct pair *pair;
    struct end *end; /* that of the pair */
    size_t length;
    struct ibx_remote remote;
    uint8_t *bytes;
    struct ibx_mr *mr;
};
struct field field_open(struct pair *pair, size_t length, unsigned access);
/* Checks that every post has completed, unless the test has closed the connection. */
void field_close(struct field *field);
/* Compares [offset, offset + length) of the peer's region with this part of the pattern. Returns
 * the first byte that differs, counted from `offset`, or -1. */
int64_t field_peers_mismatch(struct field *field, size_t offset, size_t length, uint64_t seed,
                             uint64_t position);

/* Starts a process that runs `run` and exits with its result. */
pid_t process_start(int (*run)(void *arg), void *arg);
/* Waits until the kernel says three times in a row that this thread of the process sleeps.
 * Returns false if the thread has ended. */
bool await_asleep(pid_t process, pid_t thread);
/* Waits until the process ends. Returns its exit status, or -signal. */
int process_end(pid_t pid);

/* Set-up and tear-down of every test. They free what a failed test has left. */
int contract_setup(void **state);
int contract_teardown(void **state);

/* Serves orders until told to exit (peer.c). */
void peer_serve(struct ibx_conn *conn, int control) __attribute__((noreturn));

/* ------------------------------------------------------------------- groups */

extern enum side contract_sides[2];
#define TEST_AS(f, name, state)                                                                    \
    {                                                                                              \
        name, f, contract_setup, contract_teardown, state                                          \
    }
#define TEST(f) TEST_AS(f, #f, NULL)
/* Runs the test once as the server and once as the client; SIDE_OF(state) says which. */
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

/* Prints the reason and skips the test. */
#define SKIP(...)                                                                                  \
    do {                                                                                           \
        print_message("SKIPPED: " __VA_ARGS__);                                                    \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#endif
