/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/shm_pair.h"

#include "common/clock.h"
#include "transport/core/crypto.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_MS 20000

/* ------------------------------------------------------------------- the core */

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

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    uint8_t key[IBX_HASH_BYTES] = {end_of(link)->secret};
    struct ibx_piece piece = {label, strlen(label)};
    ibx_hmac(key, &piece, 1, proof);
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    (void)link;
    struct pollfd wait = {.fd = fd, .events = events};
    return poll(&wait, 1, ibx_ms_until(deadline_ns)) > 0 ? 0 : -ETIMEDOUT;
}

int ibx_link_watch(struct ibx_link *link, int fd)
{
    end_of(link)->watched = fd;
    return 0;
}

void ibx_link_unwatch(struct ibx_link *link, int fd)
{
    if (end_of(link)->watched == fd)
        end_of(link)->watched = -1;
}

static struct note *note(struct ibx_link *link, enum note_kind kind, int status)
{
    struct end *end = end_of(link);
    assert_true(end->count < NOTES_MAX);
    struct note *n = &end->notes[end->count++];
    *n = (struct note){.kind = kind, .status = status};
    return n;
}

static void up_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    note(link, NOTE_CHUNK, status)->chunk = chunk;
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    struct note *n = note(link, NOTE_MESSAGE, 0);
    n->data = data;
    n->length = length;
    n->token = slot;
}

static void up_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    note(link, NOTE_SEND, status)->token = cookie;
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    snprintf(end_of(link)->reason, sizeof(end_of(link)->reason), "%s", reason);
    note(link, NOTE_LOST, status);
}

static const struct ibx_upcalls upcalls = {up_chunk_done, up_message, up_send_done, up_lost};

/* -------------------------------------------------------------------- the pair */

static void end_init(struct end *end, enum ibx_role role)
{
    memset(end, 0, sizeof(*end));
    end->role = role;
    end->options = (struct ibx_options){
        .slots = 8, .message = 8192, .timeout_ms = PATIENCE_MS, .shm_direct = true};
    end->link = (struct ibx_link){.up = &upcalls, .owner = end};
    end->watched = -1;
    void *endpoint;
    assert_int_equal(ibx_provider_shm.open(&end->link, &endpoint, NULL), 0);
    end->shm = endpoint;
}

void pair_init(struct pair *pair)
{
    end_init(&pair->server, IBX_ROLE_SERVER);
    end_init(&pair->client, IBX_ROLE_CLIENT);
}

void pair_fini(struct pair *pair)
{
    ibx_provider_shm.close(pair->server.shm);
    ibx_provider_shm.close(pair->client.shm);
    assert_int_equal(pair->server.watched, -1);
    assert_int_equal(pair->client.watched, -1);
}

size_t pair_offer(struct pair *pair, uint8_t *bytes, size_t size)
{
    struct ibx_writer w = ibx_writer_of(bytes, size);
    int rc = ibx_provider_shm.offer(pair->server.shm, &w, &pair->server.err);
    if (rc)
        fail_msg("offer: %s", pair->server.err.message);
    assert_false(w.failed);
    return w.length;
}

static void *finish_run(void *arg)
{
    struct finishing *f = arg;
    struct ibx_reader none = ibx_reader_of("", 0);
    f->rc = ibx_provider_shm.finish(f->end->shm, f->end->role == IBX_ROLE_SERVER ? &none : NULL,
                                    ibx_deadline_in_ms(PATIENCE_MS), &f->end->err);
    return NULL;
}

void finish_start(struct finishing *f, struct end *end)
{
    f->end = end;
    assert_int_equal(pthread_create(&f->thread, NULL, finish_run, f), 0);
}

int finish_join(struct finishing *f)
{
    pthread_join(f->thread, NULL);
    return f->rc;
}

void pair_meet(struct pair *pair)
{
    uint8_t bytes[512];
    struct ibx_reader offer = ibx_reader_of(bytes, pair_offer(pair, bytes, sizeof(bytes)));
    struct ibx_writer answer = ibx_writer_of(bytes + 256, 0);
    if (ibx_provider_shm.join(pair->client.shm, &offer, &answer, &pair->client.err))
        fail_msg("join: %s", pair->client.err.message);
    struct finishing server, client;
    finish_start(&server, &pair->server);
    finish_start(&client, &pair->client);
    if (finish_join(&server))
        fail_msg("server: %s", pair->server.err.message);
    if (finish_join(&client))
        fail_msg("client: %s", pair->client.err.message);
}

/* ---------------------------------------------------------------------- actions */

int progress(struct end *end)
{
    return ibx_provider_shm.progress(end->shm);
}

void await_notes(struct end *end, struct end *other, int count)
{
    uint64_t deadline = ibx_deadline_in_ms(PATIENCE_MS);
    while (end->count < count) {
        if (ibx_now_ns() > deadline)
            fail_msg("%d notes of %d", end->count, count);
        if (other)
            progress(other);
        progress(end);
    }
    assert_int_equal(end->count, count);
}

int send_bytes(struct end *end, const void *data, size_t length, unsigned flags)
{
    /* In two parts, the second of which may be empty. */
    size_t first = length / 2;
    struct iovec iov[2] = {{(void *)(uintptr_t)data, first},
                           {(char *)(uintptr_t)data + first, length - first}};
    return ibx_provider_shm.send(end->shm, iov, 2, length, 77, flags);
}

void assert_lost(struct end *end, int status)
{
    for (int i = 0; i < end->count; i++)
        assert_int_not_equal(end->notes[i].kind, NOTE_MESSAGE);
    assert_true(end->count > 0);
    assert_int_equal(end->notes[end->count - 1].kind, NOTE_LOST);
    assert_int_equal(end->notes[end->count - 1].status, status);
    assert_true(end->reason[0]);
}

struct ibx_mr *region(struct end *end, void *address, size_t length, unsigned access)
{
    struct ibx_mr *mr = calloc(1, sizeof(*mr));
    assert_non_null(mr);
    mr->span = ibx_span_host(address, length);
    mr->access = access;
    mr->allocated = !address;
    if (ibx_provider_shm.mr_register(end->shm, mr, &end->err))
        fail_msg("mr_register: %s", end->err.message);
    return mr;
}

void region_drop(struct end *end, struct ibx_mr *mr)
{
    ibx_provider_shm.mr_deregister(end->shm, mr);
    free(mr);
}

void post(struct end *end, struct ibx_chunk *chunk, enum ibx_rdma_kind kind, unsigned lane,
          void *local, const struct ibx_mr *remote, size_t offset, size_t length)
{
    *chunk = (struct ibx_chunk){
        .kind = kind,
        .lane = lane,
        .local = local,
        .remote_address = (uintptr_t)remote->span.address + offset,
        .remote_keys = remote->keys,
        .length = length,
    };
    assert_int_equal(ibx_provider_shm.rdma(end->shm, chunk), 0);
}

static uint8_t byte_of(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

void fill(uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_of(i);
}

void check(const uint8_t *bytes, size_t length, size_t from)
{
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] != byte_of(from + i))
            fail_msg("byte %zu differs", i);
    }
}

/* ------------------------------------------------------------------- one pair */

struct pair both;

int both_apart(void **state)
{
    (void)state;
    pair_init(&both);
    return 0;
}

int both_meet(void **state)
{
    both_apart(state);
    pair_meet(&both);
    return 0;
}

int both_part(void **state)
{
    (void)state;
    pair_fini(&both);
    return 0;
}
