/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Processes, pairs of ends, and failures of the contract tests. */
#include "tests/contract/harness.h"

#include "common/clock.h"
#include "tests/fixtures/thread_state.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAIRS_MAX    4
#define CHILDREN_MAX 32

struct contract contract;
enum side contract_sides[2] = {SIDE_SERVER, SIDE_CLIENT};

/* What a failing test leaves open. */
static struct pair *open_pairs[PAIRS_MAX];
static pid_t children[CHILDREN_MAX];
static bool in_child;
static uint64_t started_ns;

/* ------------------------------------------------------------- the run's data */

unsigned contract_patience_ms(void)
{
    return 90000;
}

size_t contract_size(size_t full, size_t small)
{
    return contract.small ? small : full;
}

void contract_options(struct ibx_options *options, char side)
{
    struct ibx_error err;

    ibx_options_init(options);
    for (unsigned i = 0; i < contract.setting_count; i++) {
        if (contract.settings[i].side != 'b' && contract.settings[i].side != side)
            continue;
        char key[64];
        const char *equals = strchr(contract.settings[i].key_value, '=');
        snprintf(key, sizeof(key), "%.*s", (int)(equals - contract.settings[i].key_value),
                 contract.settings[i].key_value);
        CHECK_OK(ibx_options_set(options, key, equals + 1, &err), err);
    }
}

const char *contract_uri(void)
{
    static char uri[300];
    bool v6 = strchr(contract.host, ':') && contract.host[0] != '[';
    snprintf(uri, sizeof(uri), v6 ? "%s://[%s]:0" : "%s://%s:0", contract.provider, contract.host);
    return uri;
}

void contract_fail(const char *file, int line, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (in_child) {
        fprintf(stderr, "%s:%d: in the peer process: %s\n", file, line, text);
        _exit(3);
    }
    print_error("%s\n", text);
    _fail(file, line);
    abort(); /* not reached: _fail() jumps */
}

int contract_setup(void **state)
{
    (void)state;
    started_ns = ibx_now_ns();
    /* a test that hangs is killed, and the output names it */
    alarm(4 * contract_patience_ms() / 1000);
    return 0;
}

int contract_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (children[i]) {
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, 0);
            children[i] = 0;
        }
    }
    for (int i = 0; i < PAIRS_MAX; i++) {
        if (open_pairs[i]) {
            open_pairs[i]->peer = 0;
            pair_close(open_pairs[i]);
        }
    }
    alarm(0);
    uint64_t ms = (ibx_now_ns() - started_ns) / IBX_NS_PER_MS;
    if (ms >= 1000)
        print_message("             %u.%u s\n", (unsigned)(ms / 1000), (unsigned)(ms / 100 % 10));
    return 0;
}

/* ------------------------------------------------------------------ processes */

static pid_t fork_noted(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        FAIL("fork: %s", strerror(errno));
    if (!pid) {
        in_child = true;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return 0;
    }
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (!children[i]) {
            children[i] = pid;
            return pid;
        }
    }
    kill(pid, SIGKILL);
    FAIL("a test may have %d children", CHILDREN_MAX);
}

pid_t process_start(int (*run)(void *arg), void *arg)
{
    pid_t pid = fork_noted();
    if (!pid)
        _exit(run(arg));
    return pid;
}

bool await_asleep(pid_t process, pid_t thread)
{
    for (int asleep = 0; asleep < 3;) {
        const char state = thread_state(process, thread);
        if (!state)
            return false;
        asleep = state == 'S' ? asleep + 1 : 0;
        sched_yield();
    }
    return true;
}

/* Sleeps until the child ends, which makes its pidfd readable. The alarm limits the wait. */
int process_end(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            FAIL("waitpid: %s", strerror(errno));
    }
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (children[i] == pid)
            children[i] = 0;
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---------------------------------------------------------------------- pairs */

static void wait_readable(int fd, const char *awaited)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    int rc;
    do
        rc = poll(&wait, 1, (int)contract_patience_ms());
    while (rc < 0 && errno == EINTR);
    if (rc != 1)
        FAIL("waited in vain for %s", awaited);
}

struct ibx_conn *contract_accept(struct ibx_listener *listener)
{
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    CHECK_OK(ibx_accept_wait(listener, (int)contract_patience_ms(), &conn, &err), err);
    return conn;
}

void contract_turn_away(struct ibx_listener *listener, struct ibx_error *err)
{
    struct ibx_conn *conn = NULL;
    *err = (struct ibx_error){0};
    while (!err->code) {
        wait_readable(ibx_listener_fd(listener), "a client's failure");
        if (ibx_accept(listener, &conn, err) != -EAGAIN)
            FAIL("a client got in that should not");
    }
}

int contract_raw_connect(const struct ibx_listener *listener)
{
    struct ibx_uri uri;
    struct ibx_error err = {0};
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *address;
    CHECK_OK(ibx_uri_parse(ibx_listener_uri(listener), &uri, &err), err);
    snprintf(service, sizeof(service), "%u", uri.port);
    CHECK(!getaddrinfo(uri.host, service, &hints, &address));
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, address->ai_addr, address->ai_addrlen))
        FAIL("cannot connect: %s", strerror(errno));
    freeaddrinfo(address);
    return fd;
}

static struct ibx_conn *take_side(enum side side, struct ibx_listener *listener,
                                  const struct ibx_options *options,
                                  struct ibx_injected_faults *faults)
{
    static struct ibx_injected_faults none;
    struct ibx_conn *conn = NULL;
    struct ibx_error err = {0};
    if (side == SIDE_CLIENT) {
        CHECK_OK(ibx_connect(ibx_listener_uri(listener), options, &conn, &err), err);
    } else {
        conn = contract_accept(listener);
        CHECK_OK(ibx_establish(conn, &err), err);
    }
    if (!faults && contract.fault_injection)
        faults = &none;
    if (faults)
        CHECK_OK(ibx_fault_injection_attach(conn, faults, &err), err);
    return conn;
}

static void pair_note(struct pair *pair)
{
    for (int i = 0; i < PAIRS_MAX; i++) {
        if (!open_pairs[i]) {
            open_pairs[i] = pair;
            return;
        }
    }
    FAIL("a test may have %d pairs", PAIRS_MAX);
}

static void pair_options_for(struct ibx_options *options, enum side side,
                             const struct pair_options *with)
{
    struct ibx_error err = {0};
    contract_options(options, side == SIDE_SERVER ? 's' : 'c');
    if (with && with->set) {
        char key[64];
        size_t n = strcspn(with->set, "=");
        snprintf(key, sizeof(key), "%.*s", (int)n, with->set);
        CHECK_OK(ibx_options_set(options, key, with->set + n + 1, &err), err);
    }
}

struct pair *pair_open_with(enum side side, const struct pair_options *with)
{
    enum side other = side == SIDE_SERVER ? SIDE_CLIENT : SIDE_SERVER;
    struct ibx_options mine, theirs;
    struct ibx_error err = {0};
    int control[2];

    struct pair *pair = calloc(1, sizeof(*pair));
    if (!pair || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control))
        FAIL("no pair: %s", strerror(errno));
    pair->control = control[0];
    pair_note(pair);
    pair_options_for(&mine, side, with);
    pair_options_for(&theirs, other, with);
    mine.domain = with ? with->domain : NULL;
    const char *uri = with && with->uri ? with->uri : contract_uri();
    CHECK_OK(ibx_listen(uri, side == SIDE_SERVER ? &mine : &theirs, &pair->listener, &err), err);
    pair->peer = fork_noted();
    if (!pair->peer) {
        close(control[0]);
        peer_serve(take_side(other, pair->listener, &theirs, NULL), control[1]);
    }
    close(control[1]);
    end_init(&pair->end, take_side(side, pair->listener, &mine, with ? with->faults : NULL));
    return pair;
}

struct pair *pair_open(enum side side)
{
    return pair_open_with(side, NULL);
}

void pair_kill(struct pair *pair)
{
    kill(pair->peer, SIGKILL);
    CHECK(process_end(pair->peer) == -SIGKILL);
    pair->peer = 0;
}

void pair_close(struct pair *pair)
{
    for (int i = 0; i < PAIRS_MAX; i++) {
        if (open_pairs[i] == pair)
            open_pairs[i] = NULL;
    }
    int status = 0;
    if (pair->peer) {
        pair_ask(pair, (struct order){.verb = ORDER_EXIT});
        status = process_end(pair->peer);
    }
    ibx_close(pair->end.conn);
    end_fini(&pair->end);
    ibx_listener_close(pair->listener);
    close(pair->control);
    free(pair);
    if (status)
        FAIL("the peer process ended with %d", status);
}

void pair_tell(struct pair *pair, const struct order *order)
{
    if (send(pair->control, order, sizeof(*order), MSG_NOSIGNAL) != sizeof(*order))
        FAIL("the peer process takes no order %d: %s", (int)order->verb, strerror(errno));
}

struct answer pair_answer(struct pair *pair)
{
    struct answer answer = {0};
    wait_readable(pair->control, "the peer's answer");
    if (recv(pair->control, &answer, sizeof(answer), 0) != sizeof(answer))
        FAIL("the peer process has died");
    return answer;
}

struct answer pair_answer_polling(struct pair *pair)
{
    uint64_t deadline = await_until();
    struct pollfd wait = {.fd = pair->control, .events = POLLIN};
    while (poll(&wait, 1, 0) <= 0) {
        end_poll(&pair->end);
        if (ibx_now_ns() >= deadline)
            FAIL("waited in vain for the peer's answer");
    }
    return pair_answer(pair);
}

struct answer pair_ask(struct pair *pair, struct order order)
{
    pair_tell(pair, &order);
    struct answer answer = pair_answer(pair);
    if (answer.rc)
        FAIL("the peer could not carry out order %d: %d", (int)order.verb, answer.rc);
    return answer;
}

struct ibx_remote pair_expose(struct pair *pair, unsigned region, size_t length, unsigned access,
                              uint64_t seed)
{
    return pair_ask(pair, (struct order){.verb = ORDER_EXPOSE,
                                         .region = region,
                                         .length = length,
                                         .access = access,
                                         .seed = seed})
        .remote;
}

uint64_t pair_await(struct pair *pair, enum verb verb, uint64_t value)
{
    uint64_t deadline = await_until();
    for (;;) {
        uint64_t now = (uint64_t)pair_ask(pair, (struct order){.verb = verb}).value;
        if (now >= value)
            return now;
        if (ibx_now_ns() > deadline)
            FAIL("the peer's answer to order %d is %llu instead of %llu", (int)verb,
                 (unsigned long long)now, (unsigned long long)value);
        if (pair->end.conn)
            end_poll(&pair->end);
    }
}

/* ---------------------------------------------------------------------- fields */

struct field field_open(struct pair *pair, size_t length, unsigned access)
{
    struct field field = {.pair = pair, .end = &pair->end, .length = length};
    field.remote = pair_expose(pair, 0, length, access, SEED_REMOTE);
    CHECK(field.remote.length == length);
    field.bytes = pages_map(length);
    pattern_fill(field.bytes, length, SEED_LOCAL, 0);
    field.mr = end_register(field.end, field.bytes, length, IBX_ACCESS_LOCAL);
    return field;
}

void field_close(struct field *field)
{
    if (field->end->conn) {
        end_check_books(field->end);
        ibx_mr_deregister(field->mr);
    }
    pages_unmap(field->bytes, field->length);
    pair_close(field->pair);
}

int64_t field_peers_mismatch(struct field *field, size_t offset, size_t length, uint64_t seed,
                             uint64_t position)
{
    struct order order = {.verb = ORDER_CHECK,
                          .offset = offset,
                          .length = length,
                          .seed = seed,
                          .position = position};
    return pair_ask(field->pair, order).value;
}
