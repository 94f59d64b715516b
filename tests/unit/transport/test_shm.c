/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The shm provider between two correct ends: messages, sleep, and copies. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/shm_pair.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static struct end *const server = &both.server, *const client = &both.client;

static void release(struct end *end, unsigned note)
{
    ibx_provider_shm.release(end->shm, end->notes[note].token);
}

/* ------------------------------------------------------------------- messages */

static void test_messages_of_all_lengths(void **state)
{
    (void)state;
    enum { LENGTHS = 8 };
    const size_t lengths[LENGTHS] = {
        0,    1,   IBX_SHM_FIRST_LINE, IBX_SHM_FIRST_LINE + 1, IBX_SHM_INLINE, IBX_SHM_INLINE + 1,
        4000, 8192};
    uint8_t bytes[8192];
    fill(bytes, sizeof(bytes));
    /* Three rounds through all slots and commands, in both directions. */
    for (int lap = 0; lap < 30; lap++) {
        struct end *from = lap % 2 ? server : client, *to = lap % 2 ? client : server;
        to->count = 0;
        for (unsigned i = 0; i < LENGTHS; i++)
            assert_int_equal(end_send(from, bytes, lengths[i], 0), 0);
        await_notes(to, NULL, LENGTHS);
        for (unsigned i = 0; i < LENGTHS; i++) {
            assert_int_equal(to->notes[i].kind, NOTE_MESSAGE);
            assert_int_equal(to->notes[i].length, lengths[i]);
            check(to->notes[i].data, lengths[i], 0);
            release(to, i);
        }
    }
    struct ibx_caps caps;
    char description[128];
    ibx_provider_shm.query(server->shm, &caps, description, sizeof(description));
    assert_int_equal(caps.message_max, 8192);
    assert_true(caps.register_free);
}

/* look() reports no events, and returns when there is one to report. */
static void test_look_polls_without_events(void **state)
{
    (void)state;
    ibx_provider_shm.look(server->shm, 3);
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    ibx_provider_shm.look(server->shm, UINT_MAX); /* a minute or more */
    assert_int_equal(server->count, 0);
    await_notes(server, NULL, 1);
}

static void test_credit(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(end_send(client, &i, sizeof(i), 0), 0);
    assert_int_equal(end_send(client, "x", 1, 0), -EAGAIN);
    await_notes(server, NULL, 8);
    assert_int_equal(end_send(client, "x", 1, 0), -EAGAIN);
    assert_int_equal(end_turn(client), 0);
    /* Released out of order; a second release of the same message has no effect. */
    release(server, 5);
    release(server, 5);
    assert_true(end_turn(client) > 0); /* returned credit counts as progress */
    assert_int_equal(end_send(client, "y", 1, 0), 0);
    assert_int_equal(end_send(client, "z", 1, 0), -EAGAIN);
    await_notes(server, NULL, 9);
    assert_int_equal(server->notes[8].data[0], 'y');
    for (int i = 0; i < 8; i++) /* the messages that are still held have not changed */
        assert_memory_equal(server->notes[i].data, i == 5 ? (void *)"y" : (void *)&i, 1);
}

static void test_signalled_sends(void **state)
{
    (void)state;
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    assert_int_equal(end_send(client, "b", 1, IBX_SIGNALED), 0);
    assert_int_equal(client->count, 0); /* send itself reports nothing */
    assert_int_equal(ibx_provider_shm.arm(client->shm), 1);
    await_notes(client, NULL, 1);
    assert_int_equal(client->notes[0].kind, NOTE_SEND);
    assert_int_equal(client->notes[0].token, 77);
    assert_int_equal(client->notes[0].status, 0);
    assert_int_equal(end_send(client, "c", 1, IBX_SIGNALED), 0);
    ibx_provider_shm.abort(client->shm);
    await_notes(client, NULL, 2);
    assert_int_equal(client->notes[1].status, -ECONNRESET);
}

/* ------------------------------------------------------------------- sleeping */

static void test_sleeping(void **state)
{
    (void)state;
    /* An end that is awake is not woken. */
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    assert_false(end_wakes(server, 0));
    /* An end that has something to do does not sleep. */
    assert_int_equal(ibx_provider_shm.arm(server->shm), 1);
    await_notes(server, NULL, 1);
    /* An end that sleeps is woken, once. */
    assert_int_equal(ibx_provider_shm.arm(server->shm), 0);
    assert_false(end_wakes(server, 0));
    assert_int_equal(end_send(client, "b", 1, 0), 0);
    assert_int_equal(end_send(client, "c", 1, 0), 0);
    char packet;
    assert_int_equal(recv(server->watched, &packet, 1, MSG_DONTWAIT), 1);
    assert_false(end_wakes(server, 0));
    await_notes(server, NULL, 3);
    assert_false(end_wakes(server, 0));
    assert_int_equal(ibx_provider_shm.arm(server->shm), 0);
}

static unsigned no_memory; /* how many packets the kernel refuses for lack of memory */
static int send_code;      /* the error of the next send */

ssize_t __real_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int socket, const struct msghdr *message, int flags)
{
    if (!no_memory && !send_code)
        return __real_sendmsg(socket, message, flags);
    errno = send_code ? send_code : --no_memory % 2 ? ENOBUFS : ENOMEM;
    send_code = 0;
    return -1;
}

/* An end that has sent something to a sleeping one does not sleep before that one has been
 * woken. */
static void test_waking_without_memory(void **state)
{
    (void)state;
    assert_int_equal(ibx_provider_shm.arm(server->shm), 0);
    no_memory = 3;
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_false(end_wakes(server, 0));
        assert_int_equal(ibx_provider_shm.arm(client->shm), 1);
        assert_int_equal(end_turn(client), 0);
    }
    assert_false(end_wakes(server, 0));
    assert_int_equal(end_turn(client), 0);
    assert_true(end_wakes(server, 0));
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    await_notes(server, NULL, 1);
}

/* The error of this thread's next receive at the shm socket; two threads connect at once. */
static _Thread_local int receive_code;

ssize_t __real_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *message, int flags)
{
    errno = receive_code;
    receive_code = 0;
    return errno ? -1 : __real_recvmsg(socket, message, flags);
}

/* If the socket cannot be read, it can wake nobody, and both ends would sleep for ever. So the
 * connection ends. */
static void test_a_socket_that_cannot_be_read(void **state)
{
    (void)state;
    assert_int_equal(ibx_provider_shm.arm(server->shm), 0);
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    assert_true(end_wakes(server, 0));
    receive_code = EACCES;
    end_turn(server);
    assert_int_equal(receive_code, 0);
    assert_int_equal(server->notes[server->count - 1].kind, NOTE_LOST);
    assert_int_equal(server->notes[server->count - 1].status, -EACCES);
}

/* The same if the socket accepts no packets, unless the peer is gone, which is noticed
 * elsewhere. */
static void test_a_socket_that_takes_nothing(void **state)
{
    (void)state;
    assert_int_equal(ibx_provider_shm.arm(server->shm), 0);
    send_code = EACCES;
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    end_turn(client);
    assert_lost(client, -EACCES);
}

static void test_sleeping_for_credit(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(end_send(client, "a", 1, 0), 0);
    await_notes(server, NULL, 8);
    /* No send was refused, so a release need not wake the sender. */
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    release(server, 0);
    assert_false(end_wakes(client, 0));
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    assert_int_equal(end_send(client, "a", 1, 0), -EAGAIN);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    release(server, 1);
    assert_true(end_wakes(client, 0));
    assert_true(end_turn(client) > 0);
    assert_int_equal(end_send(client, "a", 1, 0), 0);
    /* Credit that arrived before arm() is noticed. */
    assert_int_equal(end_send(client, "a", 1, 0), -EAGAIN);
    release(server, 2);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 1);
}

/* ---------------------------------------------------------------------- copies */

#define LENGTH (1000003u)

enum way { MAPPED, DIRECT, REQUESTED };

/* Makes `end` copy in this way only. */
static void choose(struct end *end, enum way way)
{
    end->shm->direct = way != REQUESTED;
    ibx_shm_peer_is(end->shm, SHM_PEER_ABSENT);
}

static void assert_done(const struct end *end, unsigned i, const struct ibx_chunk *chunk,
                        int status)
{
    assert_int_equal(end->notes[i].kind, NOTE_CHUNK);
    assert_ptr_equal(end->notes[i].chunk, chunk);
    assert_int_equal(end->notes[i].status, status);
}

/* Unaligned on both sides, larger than all bounce buffers together, with guard bytes around. */
static void read_and_write(enum way way)
{
    uint8_t *theirs = way == MAPPED ? NULL : malloc(LENGTH + 64), *mine = calloc(1, LENGTH + 64);
    struct ibx_mr *mr = end_register(client, theirs, LENGTH + 64, READ_WRITE);
    struct ibx_chunk chunk;
    /* Direct and mapped copies need no help of the peer. */
    struct end *helper = way == REQUESTED ? client : NULL;
    choose(server, way);
    theirs = mr->span.address;
    fill(theirs, LENGTH + 64);
    post(server, &chunk, IBX_RDMA_READ, 1, mine + 3, mr, 5, LENGTH);
    await_notes(server, helper, 1);
    assert_done(server, 0, &chunk, 0);
    check(mine + 3, LENGTH, 5);
    assert_int_equal(mine[2] | mine[LENGTH + 3], 0);

    memset(theirs, 0, LENGTH + 64);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine + 3, mr, 1, LENGTH);
    await_notes(server, helper, 2);
    assert_done(server, 1, &chunk, 0);
    check(theirs + 1, LENGTH, 5);
    assert_int_equal(theirs[0] | theirs[LENGTH + 1], 0);
    end_deregister(client, mr);
    if (way != MAPPED)
        free(theirs);
    free(mine);
}

static void test_copies_of_each_way(void **state)
{
    (void)state;
    static const char *const names[] = {"mapped", "direct", "requested"};
    for (enum way way = MAPPED; way <= REQUESTED; way++) {
        print_message("             %s\n", names[way]);
        server->count = 0;
        read_and_write(way);
    }
}

static void refusals(enum way way)
{
    uint8_t theirs[4096] = "theirs", mine[4096] = "mine";
    struct ibx_mr *reads = end_register(client, theirs, 100, IBX_ACCESS_REMOTE_READ);
    struct ibx_mr *writes = end_register(client, theirs, 100, IBX_ACCESS_REMOTE_WRITE);
    struct ibx_mr forged = *reads, dropped = *writes;
    struct {
        enum ibx_rdma_kind kind;
        struct ibx_mr *mr;
        size_t offset, length;
        int status;
    } cases[] = {
        {IBX_RDMA_WRITE, reads, 0, 1, -EACCES},
        {IBX_RDMA_READ, writes, 0, 1, -EACCES},
        {IBX_RDMA_READ, reads, 0, 101, -ERANGE},
        {IBX_RDMA_READ, reads, 100, 1, -ERANGE},
        {IBX_RDMA_READ, reads, 200, 1, -ERANGE},
        {IBX_RDMA_READ, reads, (size_t)-1, 1, -ERANGE},
        {IBX_RDMA_READ, reads, (size_t)-1, 2, -ERANGE},
        {IBX_RDMA_READ, &forged, 0, 1, -EACCES},
        {IBX_RDMA_WRITE, &dropped, 0, 1, -EACCES},
    };
    forged.keys[0] ^= 1ull << 40;
    end_deregister(client, writes);
    /* in the same place of the table */
    writes = end_register(client, theirs, 100, IBX_ACCESS_REMOTE_WRITE);
    choose(server, way);
    cases[1].mr = writes;
    for (unsigned i = 0; i < 9; i++) {
        struct ibx_chunk chunk;
        post(server, &chunk, cases[i].kind, 1, mine, cases[i].mr, cases[i].offset, cases[i].length);
        await_notes(server, client, i + 1);
        assert_done(server, i, &chunk, cases[i].status);
    }
    assert_string_equal((char *)theirs, "theirs");
    assert_string_equal((char *)mine, "mine");
    end_deregister(client, reads);
    end_deregister(client, writes);
}

static void test_refusals_direct(void **state)
{
    (void)state;
    refusals(DIRECT);
}

/* The published table alone does not decide: the owner checks too. */
static void test_refusals_requested(void **state)
{
    (void)state;
    uint8_t theirs[64] = "theirs", mine[64] = "mine";
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), IBX_ACCESS_REMOTE_READ);
    refusals(REQUESTED);
    server->count = 0;
    struct shm_published *shared = &server->shm->theirs.regions[mr->keys[0] & 0xffff];
    struct ibx_chunk chunk;
    shared->access = READ_WRITE;
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, 8);
    await_notes(server, client, 1);
    assert_done(server, 0, &chunk, -EACCES);
    shared->length = 1000;
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 60, 8);
    await_notes(server, client, 2);
    assert_done(server, 1, &chunk, -ERANGE);
    struct ibx_mr forged = *mr;
    forged.keys[0] ^= 1ull << 63;
    atomic_store(&shared->key, forged.keys[0]);
    post(server, &chunk, IBX_RDMA_READ, 1, mine, &forged, 0, 8);
    await_notes(server, client, 3);
    assert_done(server, 2, &chunk, -EACCES);
    for (int i = -1; i < 2; i += 2) { /* one byte beyond either end of the range */
        post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, 1);
        chunk.remote_address = (uintptr_t)theirs + (i < 0 ? (size_t)-1 : sizeof(theirs));
        atomic_store(&shared->key, mr->keys[0]);
        shared->address = 0;
        shared->length = UINT64_MAX;
        await_notes(server, client, server->count + 1);
        assert_int_equal(server->notes[server->count - 1].status, -ERANGE);
    }
    assert_string_equal((char *)theirs, "theirs");
    assert_string_equal((char *)mine, "mine");
    end_deregister(client, mr);
}

static void test_unmapped_memory(void **state)
{
    (void)state;
    const size_t page = ibx_shm_page(), length = 4 * page;
    uint8_t *theirs =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static uint8_t mine[4 * 65536];
    struct ibx_mr *mr = end_register(client, theirs, length, READ_WRITE);
    assert_int_equal(munmap(theirs + page, page), 0);
    struct ibx_chunk chunk;
    choose(server, DIRECT);
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, length);
    await_notes(server, NULL, 1);
    assert_done(server, 0, &chunk, -EFAULT);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, length);
    await_notes(server, NULL, 2);
    assert_done(server, 1, &chunk, -EFAULT);
    end_deregister(client, mr);
    munmap(theirs, length);
}

static void urgent_first(enum way way)
{
    static uint8_t theirs[8 * IBX_SHM_PIECE], mine[8 * IBX_SHM_PIECE], word[8];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk bulk, urgent;
    choose(server, way);
    post(server, &bulk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(theirs));
    while (way == REQUESTED && ibx_shm_request_room(server->shm, &bulk))
        end_turn(server); /* until every bounce buffer for bulk copies is in use */
    post(server, &urgent, IBX_RDMA_READ, 0, word, mr, 0, sizeof(word));
    await_notes(server, way == REQUESTED ? client : NULL, 2);
    assert_done(server, 0, &urgent, 0);
    assert_done(server, 1, &bulk, 0);
    end_deregister(client, mr);
}

static void test_urgent_first(void **state)
{
    (void)state;
    urgent_first(DIRECT);
    server->count = 0;
    urgent_first(REQUESTED);
}

static void test_urgent_does_not_starve_bulk(void **state)
{
    (void)state;
    static uint8_t theirs[LENGTH], mine[LENGTH], word[8];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk bulk, urgent;
    choose(server, DIRECT);
    post(server, &bulk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(mine));
    int i = 0;
    do { /* an urgent READ is always pending */
        server->count = 0;
        post(server, &urgent, IBX_RDMA_READ, 0, word, mr, 0, sizeof(word));
        await_notes(server, NULL, 1);
        assert_true(++i < 100);
    } while (server->notes[0].chunk == &urgent);
    assert_ptr_equal(server->notes[0].chunk, &bulk);
    await_notes(server, NULL, 2);
    end_deregister(client, mr);
}

static void test_abort(void **state)
{
    (void)state;
    static uint8_t theirs[LENGTH], mine[LENGTH];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk chunks[4];
    choose(server, REQUESTED);
    for (int i = 0; i < 4; i++)
        post(server, &chunks[i], IBX_RDMA_READ, i ? 1 : 0, mine, mr, 0, i == 1 ? LENGTH : 64);
    for (int i = 0; i < 3; i++)
        end_turn(server); /* some pieces are requested, others still wait */
    assert_non_null(server->shm->bulk.head);
    ibx_provider_shm.abort(server->shm);
    assert_int_equal(server->count, 4);
    unsigned seen = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(server->notes[i].status, -ECONNRESET);
        seen |= 1u << (server->notes[i].chunk - chunks);
    }
    assert_int_equal(seen, 15);
    end_deregister(client, mr);
}

/* ------------------------------------------------------------------- overtaken */

#define ROUNDS 300 /* more commands than the ring has places, several times over */

static uint8_t remote_bytes[IBX_SHM_PIECE], local_bytes[IBX_SHM_PIECE];

/* Makes two urgent READs, as many as the client serves between two looks at its ring. */
static void overtake(struct ibx_mr *mr)
{
    struct ibx_chunk urgent[2];
    uint64_t words[2];
    for (unsigned i = 0; i < 2; i++)
        post(server, &urgent[i], IBX_RDMA_READ, 0, &words[i], mr, 1000u * i, sizeof(words[i]));
    for (int before = -1; before != end_turn(server);)
        before = 0; /* until both are requested */
    end_turn(client);
    await_notes(server, NULL, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_done(server, i, &urgent[i], 0);
        assert_memory_equal(&words[i], remote_bytes + 1000u * i, sizeof(words[i]));
    }
    server->count = 0;
}

/* A requested bulk copy is overtaken by so many urgent ones that the ring of commands wraps. Its
 * own bytes arrive, once. */
static void test_copy_overtaken_by_urgent_ones(void **state)
{
    (void)state;
    server->shm->direct = false;
    for (int write = 0; write < 2; write++) {
        struct ibx_chunk bulk;
        struct ibx_mr *mr = end_register(client, remote_bytes, sizeof(remote_bytes), READ_WRITE);
        server->count = 0;
        fill(remote_bytes, sizeof(remote_bytes));
        fill(local_bytes,
             write ? sizeof(local_bytes) : 0); /* the urgent READs compare the remote bytes */
        local_bytes[5000] ^= 1;
        post(server, &bulk, write ? IBX_RDMA_WRITE : IBX_RDMA_READ, 1, local_bytes, mr, 0,
             sizeof(local_bytes));
        while (ibx_shm_request_room(server->shm, &bulk) && end_turn(server))
            ; /* until it is requested */
        for (unsigned i = 0; i < ROUNDS; i++)
            overtake(mr);
        await_notes(server, client, 1);
        assert_done(server, 0, &bulk, 0);
        assert_memory_equal(local_bytes, remote_bytes, sizeof(local_bytes));
        remote_bytes[5000] ^= (uint8_t)write;
        check(remote_bytes, sizeof(remote_bytes), 0);
        end_deregister(client, mr);
    }
}

/* A program that has the peer's id, but not its nonce where the peer had it. */
static void another_program(enum ibx_rdma_kind kind)
{
    static uint8_t theirs[64], mine[64];
    uint8_t nonce[IBX_SHM_NONCE];
    struct ibx_chunk chunk;
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    if (!server->shm->direct)
        skip();
    memset(theirs, 't', sizeof(theirs));
    memset(mine, 'm', sizeof(mine));
    choose(server, DIRECT);
    client->shm->nonce[IBX_SHM_NONCE - 1] ^= 1;
    memcpy(nonce, client->shm->nonce, sizeof(nonce));
    post(server, &chunk, kind, 1, mine, mr, 0, sizeof(mine));
    for (int i = 0; i < 10 && !server->count; i++)
        end_turn(server);
    assert_lost(server, -ECONNRESET);
    assert_memory_equal(client->shm->nonce, nonce, sizeof(nonce));
    assert_int_equal(theirs[0], 't');
    end_deregister(client, mr);
}

static void test_another_program_is_not_read(void **state)
{
    (void)state;
    another_program(IBX_RDMA_READ);
}

static void test_another_program_is_not_written(void **state)
{
    (void)state;
    another_program(IBX_RDMA_WRITE);
}

/* Direct copies would wait in the kernel for memory whose faults another user answers. */
static void test_another_user_is_not_copied_directly(void **state)
{
    (void)state;
    if (geteuid())
        skip(); /* needs the right to change the user */
    assert_int_equal(seteuid(65534), 0);
    ibx_shm_direct_probe(server->shm);
    assert_int_equal(seteuid(0), 0);
    prctl(PR_SET_DUMPABLE, 1); /* the change of user has taken it away */
    assert_false(server->shm->direct);
    assert_string_equal(server->shm->direct_reason, "the peer is another user");
}

/* ------------------------------------------------------------- the absent peer */

static void test_a_peer_that_polls_gets_requests(void **state)
{
    (void)state;
    static uint8_t theirs[4096], mine[4096];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk chunk;
    if (!server->shm->direct)
        skip();
    ibx_shm_peer_is(server->shm, SHM_PEER_PRESENT);
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(mine));
    end_turn(server);
    assert_int_equal(server->count, 0);
    assert_int_equal(ibx_provider_shm.arm(server->shm), 1); /* an answer may still come */
    await_notes(server, client, 1);
    /* A process that sleeps is not asked. */
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(mine));
    end_turn(server);
    assert_int_equal(server->count, 2);
    assert_false(end_wakes(client, 0));
    end_deregister(client, mr);
}

static void test_a_request_without_answer_is_withdrawn(void **state)
{
    (void)state;
    static uint8_t theirs[3 * IBX_SHM_PIECE], mine[3 * IBX_SHM_PIECE];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk chunk;
    if (!server->shm->direct)
        skip();
    fill(mine, sizeof(mine));
    ibx_shm_peer_is(server->shm, SHM_PEER_PRESENT);
    post(server, &chunk, IBX_RDMA_WRITE, 1, mine, mr, 0, sizeof(mine));
    await_notes(server, NULL, 1);
    assert_done(server, 0, &chunk, 0);
    check(theirs, sizeof(theirs), 0);
    assert_int_equal(server->shm->peer.now, SHM_PEER_ABSENT);
    /* If the peer serves the request later, it must not overwrite new bytes with old ones. */
    memset(theirs, 1, sizeof(theirs));
    assert_int_equal(end_turn(client) > 0, 1);
    while (end_turn(client))
        ;
    for (size_t i = 0; i < sizeof(theirs); i++)
        assert_int_equal(theirs[i], 1);
    /* Its answers make it count as present again, and complete nothing a second time. */
    end_turn(server);
    assert_int_equal(server->count, 1);
    assert_int_equal(server->shm->peer.now, SHM_PEER_PRESENT);
    for (unsigned i = 0; i < IBX_SHM_PIECES; i++)
        assert_int_equal(server->shm->pieces[i].state.now, SHM_PIECE_FREE);
    end_deregister(client, mr);
}

static void test_an_absent_peer_gets_a_request_now_and_then(void **state)
{
    (void)state;
    static uint8_t theirs[4 << 20], mine[4 << 20];
    struct ibx_mr *mr = end_register(client, theirs, sizeof(theirs), READ_WRITE);
    struct ibx_chunk chunk;
    if (!server->shm->direct)
        skip();
    ibx_shm_peer_is(server->shm, SHM_PEER_ABSENT);
    assert_int_equal(ibx_provider_shm.arm(client->shm), 0);
    post(server, &chunk, IBX_RDMA_READ, 1, mine, mr, 0, sizeof(mine));
    while (!end_wakes(client, 0)) {
        assert_int_equal(server->count, 0);
        end_turn(server);
    }
    assert_in_range(chunk.cookie[0], 1 << 20, 2 << 20);
    end_turn(client);
    end_turn(server);
    assert_int_equal(server->shm->peer.now, SHM_PEER_PRESENT);
    await_notes(server, client, 1);
    assert_done(server, 0, &chunk, 0);
    end_deregister(client, mr);
}

/* A client that keeps the segment mapped after closing its end finds none of the server's bytes
 * there. A client that has not closed may still read what was sent. */
static void test_a_kept_segment_is_empty(void **state)
{
    static const char word[] =
        "a message of more than a few bytes, which is in a page of its own....";
    for (unsigned early = 0; early < 2; early++) {
        both_connected(state);
        size_t length = 2 * client->shm->geometry.half;
        assert_int_equal(end_send(server, word, sizeof(word), 0), 0);
        uint8_t *kept = client->shm->segment;
        assert_non_null(memmem(kept, length, word, sizeof(word)));
        client->shm->segment = NULL; /* so that it stays mapped */
        ibx_provider_shm.abort(client->shm);
        ibx_provider_shm.abort(server->shm);
        end_close(early ? server : client);
        end_close(early ? client : server);
        assert_int_equal(memmem(kept, length, word, sizeof(word)) != NULL, early);
        munmap(kept, length);
    }
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, both_connected, both_close)
    const struct CMUnitTest tests[] = {
        TEST(test_messages_of_all_lengths),
        TEST(test_look_polls_without_events),
        TEST(test_credit),
        TEST(test_signalled_sends),
        TEST(test_sleeping),
        TEST(test_waking_without_memory),
        TEST(test_a_socket_that_cannot_be_read),
        TEST(test_a_socket_that_takes_nothing),
        TEST(test_sleeping_for_credit),
        TEST(test_copies_of_each_way),
        TEST(test_refusals_direct),
        TEST(test_refusals_requested),
        TEST(test_another_program_is_not_read),
        TEST(test_another_program_is_not_written),
        TEST(test_another_user_is_not_copied_directly),
        TEST(test_unmapped_memory),
        TEST(test_urgent_first),
        TEST(test_urgent_does_not_starve_bulk),
        TEST(test_abort),
        TEST(test_copy_overtaken_by_urgent_ones),
        TEST(test_a_peer_that_polls_gets_requests),
        TEST(test_a_request_without_answer_is_withdrawn),
        TEST(test_an_absent_peer_gets_a_request_now_and_then),
        cmocka_unit_test(test_a_kept_segment_is_empty),
    };
    alarm(120 * patience_times());
    return cmocka_run_group_tests_name("shm", tests, NULL, NULL);
}
