/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/provider_end.h"

#include "common/clock.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

/* ---------------------------------------------------------- in place of the core */

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
    return end_of(link)->handshake_socket;
}

struct ibx_tls *ibx_link_tls(const struct ibx_link *link)
{
    return end_of(link)->tls;
}

void proof_of(const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    memset(proof, 0x5a, IBX_PROOF_BYTES);
    for (size_t i = 0; label[i]; i++)
        proof[i % IBX_PROOF_BYTES] = (uint8_t)(proof[i % IBX_PROOF_BYTES] * 31 + label[i]);
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    const struct end *end = end_of(link);
    proof_of(label, proof);
    if (end->wrong_proofs && !(end->right_proofs && strstr(label, end->right_proofs)))
        proof[0] ^= 1;
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
    end_of(link)->watched = fd;
    return epoll_ctl(end_of(link)->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

void ibx_link_unwatch(struct ibx_link *link, int fd)
{
    if (end_of(link)->watched == fd)
        end_of(link)->watched = -1;
    epoll_ctl(end_of(link)->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static void note_add(struct ibx_link *link, struct note note)
{
    struct end *end = end_of(link);
    MUST(end->count < NOTES_MAX);
    end->notes[end->count++] = note;
}

static void up_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    note_add(link, (struct note){NOTE_CHUNK, .chunk = chunk, .status = status});
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    note_add(link, (struct note){NOTE_MESSAGE, .data = data, .length = length, .token = slot});
}

static void up_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    note_add(link, (struct note){NOTE_SEND, .token = cookie, .status = status});
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    struct note note = {NOTE_LOST, .status = status};
    snprintf(note.reason, sizeof(note.reason), "%s", reason);
    note_add(link, note);
}

const struct ibx_upcalls end_upcalls = {up_chunk_done, up_message, up_send_done, up_lost};

/* ---------------------------------------------------------------------- life */

void end_open(struct end *end, const struct ibx_provider *provider, enum ibx_role role,
              int handshake_socket, const struct ibx_options *options)
{
    *end = (struct end){.provider = provider,
                        .options = *options,
                        .role = role,
                        .handshake_socket = handshake_socket,
                        .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
                        .watched = -1};
    end->link = (struct ibx_link){.up = &end_upcalls, .owner = end};
    MUST(end->epoll_fd >= 0);
    MUST(provider->open(&end->link, &end->endpoint, &end->err) == 0);
}

void end_close(struct end *end)
{
    end->provider->close(end->endpoint);
    if (end->at_close)
        end->at_close(end);
    if (end->handshake_socket >= 0)
        close(end->handshake_socket);
    close(end->epoll_fd);
}

static void *finish_run(void *argument)
{
    struct finishing *f = argument;
    int rc = f->end->provider->finish(f->end->endpoint, f->answer, f->deadline, &f->end->err);
    return (void *)(intptr_t)rc;
}

void finish_start(struct finishing *f, struct end *end, struct ibx_reader *answer,
                  uint64_t deadline)
{
    *f = (struct finishing){.end = end, .answer = answer, .deadline = deadline};
    MUST(pthread_create(&f->thread, NULL, finish_run, f) == 0);
}

int finish_join(struct finishing *f)
{
    void *rc;
    MUST(pthread_join(f->thread, &rc) == 0);
    return (int)(intptr_t)rc;
}

/* Ends the test with the provider's reason. */
static void must_connect(struct end *end, const char *what, int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "%s: %s\n", what, end->err.message);
    abort();
}

void ends_connect(struct end *server, struct end *client)
{
    uint8_t offered[4096], answered[4096];
    struct ibx_writer offer = ibx_writer_of(offered, sizeof(offered));
    struct ibx_writer answer = ibx_writer_of(answered, sizeof(answered));
    must_connect(server, "offer", server->provider->offer(server->endpoint, &offer, &server->err));
    struct ibx_reader offer_in = ibx_reader_of(offered, offer.length);
    must_connect(client, "join",
                 client->provider->join(client->endpoint, &offer_in, &answer, &client->err));
    MUST(!offer.failed && !answer.failed);
    struct ibx_reader answer_in = ibx_reader_of(answered, answer.length);
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    struct finishing one, other;
    finish_start(&one, server, &answer_in, deadline);
    finish_start(&other, client, NULL, deadline);
    int rc = finish_join(&one);
    must_connect(client, "finish of the client", finish_join(&other));
    must_connect(server, "finish of the server", rc);
}

/* ------------------------------------------------------------------- actions */

int end_turn(struct end *end)
{
    return end->provider->progress(end->endpoint);
}

bool end_await(struct end *a, struct end *b, unsigned count)
{
    uint64_t deadline = ibx_deadline_in_ms(END_PATIENCE_MS);
    while (a->count < count && ibx_now_ns() < deadline) {
        if (b)
            end_turn(b);
        end_turn(a);
    }
    return a->count >= count;
}

bool end_wakes(const struct end *end, int timeout_ms)
{
    struct pollfd wait = {.fd = end->epoll_fd, .events = POLLIN};
    return poll(&wait, 1, timeout_ms) > 0;
}

const struct note *end_lost(const struct end *end)
{
    for (unsigned i = 0; i < end->count; i++) {
        if (end->notes[i].kind == NOTE_LOST)
            return &end->notes[i];
    }
    return NULL;
}

struct ibx_mr *end_register(struct end *end, void *address, size_t length, unsigned access)
{
    struct ibx_mr *mr = calloc(1, sizeof(*mr));
    MUST(mr);
    mr->span = ibx_span_host(address, length);
    mr->access = access;
    mr->allocated = !address;
    MUST(end->provider->mr_register(end->endpoint, mr, &end->err) == 0);
    return mr;
}

void end_deregister(struct end *end, struct ibx_mr *mr)
{
    end->provider->mr_deregister(end->endpoint, mr);
    free(mr);
}

int end_send(struct end *end, const void *data, size_t length, unsigned flags)
{
    char *bytes = (char *)(uintptr_t)data;
    struct iovec iov[2] = {{bytes, length / 2}, {bytes + length / 2, length - length / 2}};
    return end->provider->send(end->endpoint, iov, 2, length, 77, flags);
}
