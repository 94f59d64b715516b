/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "tests/scenes/shm_pair.h"

static void open_one(struct end *end, enum ibx_role role)
{
    const struct ibx_options options = {
        .slots = 8, .message = 8192, .timeout_ms = END_PATIENCE_MS, .shm_direct = true};
    end_open(end, &ibx_provider_shm, role, -1, &options);
}

void pair_open(struct pair *pair)
{
    open_one(&pair->server, IBX_ROLE_SERVER);
    open_one(&pair->client, IBX_ROLE_CLIENT);
}

void pair_close(struct pair *pair)
{
    end_close(&pair->server);
    end_close(&pair->client);
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

void await_notes(struct end *end, struct end *other, unsigned count)
{
    end_await(end, other, count);
    assert_int_equal(end->count, count);
}

void assert_lost(const struct end *end, int status)
{
    for (unsigned i = 0; i < end->count; i++)
        assert_int_not_equal(end->notes[i].kind, NOTE_MESSAGE);
    assert_true(end->count > 0);
    const struct note *last = &end->notes[end->count - 1];
    assert_int_equal(last->kind, NOTE_LOST);
    assert_int_equal(last->status, status);
    assert_true(last->reason[0]);
}

int hold(struct end *end, const struct ibx_mr *mr, size_t at, size_t length, unsigned access,
         struct ibx_reach *reach)
{
    struct ibx_remote remote = {(uintptr_t)mr->span.address + at, length, {mr->keys[0]}, 0};
    *reach = (struct ibx_reach){0};
    return ibx_provider_shm.remote_hold(end->shm, &remote, access, reach);
}

const uint8_t *pointer(struct end *end, const struct ibx_mr *mr, size_t length)
{
    struct ibx_reach reach;
    if (!hold(end, mr, 0, length, IBX_ACCESS_REMOTE_READ, &reach))
        ibx_provider_shm.remote_release(end->shm);
    return reach.address;
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
    pair_open(&both);
    return 0;
}

int both_connected(void **state)
{
    both_apart(state);
    ends_connect(&both.server, &both.client);
    return 0;
}

int both_close(void **state)
{
    (void)state;
    pair_close(&both);
    return 0;
}
