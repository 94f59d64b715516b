/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/tcp_end.h"

#include "common/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define THREADS_MS 100u /* without any news of theirs */

const char *end_engine = "syscalls";
bool end_encrypts;
unsigned end_threads, end_threads_all = 16;
struct ibx_domain *end_domain;

void end_choose(const char *way)
{
    end_threads = !strcmp(way, "tls-threads") ? 2 : 0;
    end_encrypts = end_threads || !strcmp(way, "tls");
    if (!end_encrypts)
        end_engine = way;
}

static void tls_destroy(struct end *end)
{
    ibx_tls_destroy(end->tls);
}

void end_init(struct end *end, enum ibx_role role, int handshake_socket, unsigned lanes,
              unsigned slots)
{
    struct ibx_options options = {.lanes = lanes,
                                  .slots = slots,
                                  .message = 1024,
                                  .depth = 8,
                                  .timeout_ms = 100000,
                                  .domain = end_domain};
    snprintf(options.tcp_engine, sizeof(options.tcp_engine), "%s", end_engine);
    end_open(end, &ibx_provider_tcp, role, handshake_socket, &options);
    end->tcp->threads_max = end_threads;
    end->tcp->threads_all = end_threads_all;
    end->at_close = tls_destroy;
}

static bool threads_send(const struct tcp *tcp)
{
    bool sends = false;
    for (unsigned i = 1; i <= tcp->lane_count && !tcp->status; i++)
        sends |= ibx_tcp_thread_sends(&tcp->lanes[i]);
    return sends;
}

void end_settle(struct end *end)
{
    /* A thread sends as long as the socket takes bytes. */
    uint64_t end_ns = ibx_deadline_in_ms(THREADS_MS);
    /* More than the turns between two looks at a quiet lane, and time for loopback to deliver. */
    for (int quiet = 0; quiet < 200; quiet++) {
        if (end_turn(end)) {
            quiet = 0;
            end_ns = ibx_deadline_in_ms(THREADS_MS);
        } else if (threads_send(end->tcp) && ibx_now_ns() < end_ns) {
            quiet = 0;
        }
    }
}

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

void ends_encrypt(struct end *server, struct end *client)
{
    uint8_t psk[IBX_TLS_PSK_BYTES];
    int here = -EAGAIN, there = -EAGAIN;
    if (!end_encrypts)
        return;
    proof_of("handshake", psk);
    MUST(ibx_tls_create(server->handshake_socket, IBX_ROLE_SERVER, psk, &server->tls, NULL) == 0);
    MUST(ibx_tls_create(client->handshake_socket, IBX_ROLE_CLIENT, psk, &client->tls, NULL) == 0);
    for (uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
         (here || there) && ibx_now_ns() < deadline;) {
        short events;
        there = ibx_tls_handshake(client->tls, &events);
        here = ibx_tls_handshake(server->tls, &events);
    }
    MUST(!here && !there);
}

void ends_encrypt_and_connect(struct end *server, struct end *client)
{
    ends_encrypt(server, client);
    ends_connect(server, client);
}

void ends_encrypt_and_connect_alone(struct end *server, struct end *client)
{
    uint8_t offered[64], answered[64];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    ends_encrypt(server, client);
    MUST(ibx_provider_tcp.offer(server->tcp, &offer, NULL) == 0);
    close(server->tcp->listener);
    server->tcp->listener = -1;
    struct ibx_reader r = ibx_reader_of(offered, offer.length);
    MUST(ibx_provider_tcp.join(client->tcp, &r, &answer, NULL) == 0);
    r = ibx_reader_of(answered, answer.length);
    const uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    MUST(ibx_provider_tcp.finish(server->tcp, &r, deadline, NULL) == 0);
    MUST(ibx_provider_tcp.finish(client->tcp, NULL, deadline, NULL) == 0);
}

void ends_open(struct end *server, struct end *client, void (*sockets)(int[2]), unsigned lanes,
               unsigned slots)
{
    int door[2];
    sockets(door);
    end_init(server, IBX_ROLE_SERVER, door[0], lanes, slots);
    end_init(client, IBX_ROLE_CLIENT, door[1], lanes, slots);
    ends_encrypt_and_connect(server, client);
}

void ends_close(struct end *server, struct end *client)
{
    end_close(client);
    end_close(server);
}

struct ibx_caps end_caps(struct end *end)
{
    struct ibx_caps caps;
    char description[192];
    ibx_provider_tcp.query(end->tcp, &caps, description, sizeof(description));
    return caps;
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

void end_connect_raw(struct end *server, int *lanes, unsigned count)
{
    struct raw_client raw;
    raw_begin(&raw, server);
    MUST(raw.terms.lanes >= count);
    for (unsigned i = 1; i <= count; i++)
        lanes[i] = raw_lane(&raw.address, i);
    MUST(raw_finish(&raw, server, count, ibx_deadline_in_ms(END_PATIENCE_MS), NULL) == 0);
}
