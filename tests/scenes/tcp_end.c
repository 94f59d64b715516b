/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/tcp_end.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE_MS 20000u

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #condition,          \
                    strerror(errno));                                                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ----------------------------------------------------- what the core would be */

static struct end *end_of(const struct ibx_link *link)
{
    return link->owner;
}

const struct ibx_options *ibx_link_options(const struct ibx_link *link)
{
    return &end_of(link)->options;
}

enum ibx_role ibx_link_role(const struct ibx_link *link)
{
    return end_of(link)->role;
}

int ibx_link_socket(const struct ibx_link *link)
{
    return end_of(link)->door;
}

struct ibx_tls *ibx_link_tls(const struct ibx_link *link)
{
    return end_of(link)->tls;
}

void proof_of(const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    memset(proof, 0x5a, IBX_PROOF_BYTES);
    memcpy(proof, label, strlen(label));
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    (void)link;
    proof_of(label, proof);
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    (void)link;
    struct pollfd wait = {.fd = fd, .events = events};
    return poll(&wait, 1, ibx_ms_until(deadline_ns)) > 0 ? 0 : -ETIMEDOUT;
}

int ibx_link_watch(struct ibx_link *link, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(end_of(link)->watched, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

void ibx_link_unwatch(struct ibx_link *link, int fd)
{
    epoll_ctl(end_of(link)->watched, EPOLL_CTL_DEL, fd, NULL);
}

static struct note *note_add(struct ibx_link *link, enum note_kind kind, int status)
{
    struct end *end = end_of(link);
    MUST(end->count < NOTES_MAX);
    struct note *note = &end->notes[end->count++];
    *note = (struct note){.kind = kind, .status = status};
    return note;
}

static void up_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    note_add(link, NOTE_CHUNK, status)->chunk = chunk;
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    struct note *note = note_add(link, NOTE_MESSAGE, 0);
    note->data = data;
    note->length = length;
    note->token = slot;
}

static void up_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    note_add(link, NOTE_SEND, status)->token = cookie;
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    struct note *note = note_add(link, NOTE_LOST, status);
    snprintf(note->reason, sizeof(note->reason), "%s", reason);
}

static const struct ibx_upcalls upcalls = {up_chunk_done, up_message, up_send_done, up_lost};

/* ----------------------------------------------------------------------- one end */

const char *end_engine = "syscalls";
bool end_encrypts;

void end_choose(const char *way)
{
    end_encrypts = !strcmp(way, "tls");
    if (!end_encrypts)
        end_engine = way;
}

void end_init(struct end *end, enum ibx_role role, int door, unsigned lanes, unsigned slots)
{
    struct ibx_error err = {0};
    *end = (struct end){.role = role, .door = door};
    end->link = (struct ibx_link){.up = &upcalls, .owner = end};
    end->options = (struct ibx_options){
        .lanes = lanes, .slots = slots, .message = 1024, .depth = 8, .timeout_ms = 100000};
    snprintf(end->options.tcp_engine, sizeof(end->options.tcp_engine), "%s", end_engine);
    end->watched = epoll_create1(EPOLL_CLOEXEC);
    MUST(end->watched >= 0);
    MUST(ibx_provider_tcp.open(&end->link, (void **)&end->tcp, &err) == 0);
}

void end_fini(struct end *end)
{
    ibx_provider_tcp.close(end->tcp);
    ibx_tls_destroy(end->tls);
    close(end->door);
    close(end->watched);
}

int end_turn(struct end *end)
{
    return ibx_provider_tcp.progress(end->tcp);
}

bool end_await(struct end *a, struct end *b, unsigned count)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (a->count < count && ibx_now_ns() < deadline) {
        end_turn(a);
        if (b)
            end_turn(b);
    }
    return a->count >= count;
}

void end_settle(struct end *end)
{
    /* More than the turns between two looks at a quiet lane, and time for loopback to deliver. */
    for (int quiet = 0; quiet < 200; quiet++) {
        if (end_turn(end))
            quiet = 0;
    }
}

bool end_wakes(const struct end *end, int timeout_ms)
{
    struct pollfd wait = {.fd = end->watched, .events = POLLIN};
    return poll(&wait, 1, timeout_ms) > 0;
}

struct ibx_mr *end_register(struct end *end, void *address, size_t length, unsigned access)
{
    struct ibx_error err = {0};
    struct ibx_mr *mr = calloc(1, sizeof(*mr));
    MUST(mr);
    mr->span = ibx_span_host(address, length);
    mr->access = access;
    mr->allocated = !address;
    MUST(ibx_provider_tcp.mr_register(end->tcp, mr, &err) == 0);
    return mr;
}

void end_deregister(struct end *end, struct ibx_mr *mr)
{
    ibx_provider_tcp.mr_deregister(end->tcp, mr);
    free(mr);
}

int end_send(struct end *end, const void *data, size_t length, unsigned flags)
{
    struct iovec iov = {(void *)(uintptr_t)data, length};
    return ibx_provider_tcp.send(end->tcp, &iov, 1, length, 77, flags);
}

/* ---------------------------------------------------------------------- meeting */

void sockets_unix(int fds[2])
{
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

void sockets_tcp(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(connect(fds[1], (struct sockaddr *)&address, length) == 0);
    fds[0] = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    MUST(fds[0] >= 0);
    close(listener);
}

struct finishing {
    struct end *server;
    struct ibx_reader *answer;
};

static void *finish_server(void *argument)
{
    struct finishing *f = argument;
    struct ibx_error err = {0};
    MUST(ibx_provider_tcp.finish(f->server->tcp, f->answer, ibx_deadline_in_ms(PATIENCE_MS),
                                 &err) == 0);
    return NULL;
}

void ends_encrypt(struct end *server, struct end *client)
{
    uint8_t psk[IBX_TLS_PSK_BYTES];
    int here = -EAGAIN, there = -EAGAIN;
    if (!end_encrypts)
        return;
    proof_of("handshake", psk);
    MUST(ibx_tls_create(server->door, IBX_ROLE_SERVER, psk, &server->tls, NULL) == 0);
    MUST(ibx_tls_create(client->door, IBX_ROLE_CLIENT, psk, &client->tls, NULL) == 0);
    for (uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
         (here || there) && ibx_now_ns() < deadline;) {
        short events;
        there = ibx_tls_handshake(client->tls, &events);
        here = ibx_tls_handshake(server->tls, &events);
    }
    MUST(!here && !there);
}

void ends_meet(struct end *server, struct end *client)
{
    ends_encrypt(server, client);
    uint8_t offered[256], answered[256];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    struct ibx_error err = {0};
    MUST(ibx_provider_tcp.offer(server->tcp, &offer, &err) == 0);
    struct ibx_reader read_offer = ibx_reader_of(offered, offer.length);
    MUST(ibx_provider_tcp.join(client->tcp, &read_offer, &answer, &err) == 0);
    struct ibx_reader read_answer = ibx_reader_of(answered, answer.length);
    struct finishing finishing = {server, &read_answer};
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, finish_server, &finishing) == 0);
    MUST(ibx_provider_tcp.finish(client->tcp, NULL, ibx_deadline_in_ms(PATIENCE_MS), &err) == 0);
    pthread_join(thread, NULL);
}

int raw_lane(const struct ibx_reader *offered, unsigned lane)
{
    struct ibx_reader r = *offered;
    struct sockaddr_storage address = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&address;
    struct sockaddr_un *un = (struct sockaddr_un *)&address;
    socklen_t length = sizeof(*in);
    bool by_name = ibx_get_u8(&r) == 2;
    size_t n = ibx_get_u16(&r);
    if (by_name) {
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path + 1, ibx_get_bytes(&r, n), n);
        length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
    } else {
        *in = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)n),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    }
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(connect(fd, (struct sockaddr *)&address, length) == 0);
    if (lane) {
        char label[32];
        uint8_t proof[IBX_PROOF_BYTES], hello[IBX_TCP_HELLO_BYTES];
        snprintf(label, sizeof(label), "tcp lane %u", lane);
        proof_of(label, proof);
        ibx_tcp_hello_put(lane, proof, hello);
        MUST(send(fd, hello, sizeof(hello), MSG_NOSIGNAL) == (ssize_t)sizeof(hello));
    }
    return fd;
}

void raw_begin(struct raw_client *raw, struct end *server)
{
    raw->offer = ibx_writer_of(raw->offered, sizeof(raw->offered));
    MUST(ibx_provider_tcp.offer(server->tcp, &raw->offer, NULL) == 0);
    raw->address = ibx_reader_of(raw->offered, raw->offer.length);
    MUST(ibx_tcp_terms_get(&raw->address, &raw->terms) == 0);
}

int raw_finish(struct raw_client *raw, struct end *server, unsigned lanes, uint64_t deadline,
               struct ibx_error *err)
{
    uint8_t answered[64];
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    raw->terms = (struct ibx_tcp_terms){.lanes = lanes, .slots = 4, .depth = 8, .message = 1024};
    ibx_tcp_terms_put(&raw->terms, &answer);
    struct ibx_reader r = ibx_reader_of(answered, answer.length);
    return ibx_provider_tcp.finish(server->tcp, &r, deadline, err);
}

void end_meet_raw(struct end *server, int *lanes, unsigned count)
{
    struct raw_client raw;
    raw_begin(&raw, server);
    MUST(raw.terms.lanes >= count);
    for (unsigned i = 1; i <= count; i++)
        lanes[i] = raw_lane(&raw.address, i);
    MUST(raw_finish(&raw, server, count, ibx_deadline_in_ms(PATIENCE_MS), NULL) == 0);
}
