/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The libfabric provider without the core: two ends in one process over libfabric's tcp,
 * outsiders on the same fabric, and a peer that breaks the protocol. */
#include "tests/fixtures/patience.h"
#include "tests/fixtures/provider_end.h"
#include "transport/ofi/ofi.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

struct pair {
    struct end server, client;
    uint8_t offer[4096], answer[4096];
    struct ibx_writer offer_out, answer_out;
};

static struct pair *pair_open(const char *provider)
{
    int sockets[2];
    struct pair *pair = calloc(1, sizeof(*pair));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    struct ibx_options options = {.slots = 16, .message = 4096, .timeout_ms = 5000};
    snprintf(options.provider, sizeof(options.provider), "ofi");
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "%s", provider);
    end_open(&pair->server, &ibx_provider_ofi, IBX_ROLE_SERVER, sockets[0], &options);
    end_open(&pair->client, &ibx_provider_ofi, IBX_ROLE_CLIENT, sockets[1], &options);
    pair->offer_out = ibx_writer_of(pair->offer, sizeof(pair->offer));
    pair->answer_out = ibx_writer_of(pair->answer, sizeof(pair->answer));
    return pair;
}

static void pair_close(struct pair *pair)
{
    struct end *ends[2] = {&pair->server, &pair->client};
    for (int i = 0; i < 2; i++) {
        ibx_provider_ofi.abort(ends[i]->endpoint);
        end_close(ends[i]);
    }
    free(pair);
}

static int join(struct pair *pair)
{
    struct ibx_reader in = ibx_reader_of(pair->offer, pair->offer_out.length);
    struct end *client = &pair->client;
    return ibx_provider_ofi.join(client->endpoint, &in, &pair->answer_out, &client->err);
}

static struct pair *pair_connect(void)
{
    struct pair *pair = pair_open("tcp");
    ends_connect(&pair->server, &pair->client);
    return pair;
}

static void turn(struct pair *pair)
{
    end_turn(&pair->server);
    end_turn(&pair->client);
}

#define AWAIT(pair, condition)                                                                     \
    for (uint64_t until_ = ibx_deadline_in_ms(patience_ms(10000)); !(condition); turn(pair)) {     \
        if (ibx_now_ns() > until_)                                                                 \
            fail_msg("in vain: %s", #condition);                                                   \
    }

static void send_text(struct pair *pair, struct end *from, const char *text)
{
    int rc;
    AWAIT(pair, (rc = end_send(from, text, strlen(text), 0)) != -EAGAIN);
    assert_int_equal(rc, 0);
}

/* Checks that the server has received exactly these messages. */
static void assert_received(const struct pair *pair, const char *const *texts, unsigned count)
{
    assert_int_equal(pair->server.count, count);
    for (unsigned i = 0; i < count; i++) {
        const struct note *note = &pair->server.notes[i];
        assert_int_equal(note->kind, NOTE_MESSAGE);
        assert_int_equal(note->length, strlen(texts[i]));
        assert_memory_equal(note->data, texts[i], note->length);
    }
}

/* ------------------------------------------------------------------- offers and answers */

static struct ofi_side some_side(void)
{
    struct ofi_side side = {
        .provider = "tcp",
        .fabric = "net0",
        .version = FI_VERSION(1, 17),
        .addr_format = FI_SOCKADDR_IN,
        .host = 0x1122334455667788,
        .slots = 16,
        .message = 16384,
        .lanes = 2,
    };
    for (unsigned i = 0; i < side.lanes; i++) {
        side.address[i].length = 3;
        memset(side.address[i].bytes, (int)(0xa0 + i), 3);
    }
    return side;
}

static void test_golden_offer(void **state)
{
    static const uint8_t golden[] = {
        1, 3,    0, 't', 'c',  'p',  4,    0,    'n',  'e',  't',  '0',  17,   0,    1,    0,
        2, 0,    0, 0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 16,   0,    0,    0,
        0, 0x40, 0, 0,   2,    3,    0,    0xa0, 0xa0, 0xa0, 3,    0,    0xa1, 0xa1, 0xa1,
    };
    (void)state;
    uint8_t bytes[256];
    struct ofi_side side = some_side(), back = {0};
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_ofi_side_put(&w, &side);
    assert_int_equal(w.length, sizeof(golden));
    assert_memory_equal(bytes, golden, sizeof(golden));
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    assert_int_equal(ibx_ofi_side_get(&r, &back, NULL), 0);
    assert_memory_equal(&back, &side, sizeof(side));
    for (size_t n = 0; n < w.length; n++) {
        struct ibx_reader cut = ibx_reader_of(bytes, n);
        assert_int_equal(ibx_ofi_side_get(&cut, &back, NULL), -EPROTO);
    }
}

static int read_back(const struct ofi_side *side)
{
    uint8_t bytes[8192];
    struct ofi_side back = {0};
    struct ibx_writer w = ibx_writer_of(bytes, sizeof(bytes));
    ibx_ofi_side_put(&w, side);
    assert_false(w.failed);
    struct ibx_reader r = ibx_reader_of(bytes, w.length);
    return ibx_ofi_side_get(&r, &back, NULL);
}

static void test_malformed_offers(void **state)
{
    (void)state;
    struct ofi_side bad[6];
    for (int i = 0; i < 6; i++)
        bad[i] = some_side();
    bad[0].slots = 0;
    bad[1].slots = UINT32_MAX;
    bad[2].message = UINT32_MAX;
    bad[3].message = 64; /* smaller than the communicator's messages */
    bad[4].lanes = 0;
    bad[5].address[1].length = 0;
    for (int i = 0; i < 6; i++)
        assert_int_equal(read_back(&bad[i]), -EPROTO);

    /* libfabric is not given an address's length, so ibx must check it. */
    struct ofi_side own = some_side(), peer = some_side();
    assert_true(ibx_ofi_side_fits(&own, &peer));
    peer.address[1].length = 2;
    assert_false(ibx_ofi_side_fits(&own, &peer));
    own.addr_format = peer.addr_format = FI_ADDR_STR;
    assert_false(ibx_ofi_side_fits(&own, &peer));
    peer.address[0].bytes[2] = peer.address[1].bytes[1] = '\0';
    assert_true(ibx_ofi_side_fits(&own, &peer));
    peer.addr_format = FI_SOCKADDR_IN;
    assert_false(ibx_ofi_side_fits(&own, &peer));
}

/* The bytes of an address are checked before they reach the endpoint. */
static void test_malformed_addresses(void **state)
{
    (void)state;
    struct sockaddr_storage local;
    struct ofi_side side = some_side();
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(9)};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    memcpy(side.address[0].bytes, &here, sizeof(here));
    side.address[0].length = sizeof(here);
    ibx_ofi_side_local_towards(&side, &local);
    assert_int_equal(local.ss_family, AF_INET);
    for (size_t length = 1; length <= OFI_ADDRESS_MAX; length++) {
        side.address[0].length = length;
        ibx_ofi_side_local_towards(&side, &local);
        assert_int_equal(local.ss_family, length == sizeof(here) ? AF_INET : 0);
    }
    side.address[0].length = sizeof(here);
    side.address[0].bytes[0] = AF_UNIX;
    ibx_ofi_side_local_towards(&side, &local);
    assert_int_equal(local.ss_family, 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_true(ibx_ofi_name_matches("tcp;ofi_rxm", "tcp"));
    assert_true(ibx_ofi_name_matches("tcp;ofi_rxm", "tcp;ofi_rxm"));
    assert_true(ibx_ofi_name_matches("efa", "efa"));
    assert_false(ibx_ofi_name_matches("tcp;ofi_rxm", "tc"));
    assert_false(ibx_ofi_name_matches("tcp;ofi_rxm", "tcpx"));
    assert_false(ibx_ofi_name_matches("psm3", "psm"));
    assert_false(ibx_ofi_name_matches("efa", "efa;ofi_rxm"));
}

static void test_probing(void **state)
{
    (void)state;
    char text[200];
    struct ibx_error err = {0};
    struct ibx_options options = {.provider = "auto"};
    if (access("/sys/class/infiniband", F_OK) && access("/sys/class/cxi", F_OK)) {
        assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), -ENODEV);
        assert_non_null(strstr(err.message, "no fabric device"));
    }
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "warp");
    assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), -ENODEV);
    assert_non_null(strstr(err.message, "\"warp\""));
    assert_non_null(strstr(err.message, "tcp"));
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "tcp");
    assert_int_equal(ibx_provider_ofi.probe(&options, text, sizeof(text), &err), 0);
    assert_non_null(strstr(text, "(an emulation)"));
}

static void test_refused_offers(void **state)
{
    (void)state;
    struct pair *pair = pair_open("shm");
    struct ofi_side side = some_side();
    snprintf(side.provider, sizeof(side.provider), "shm");
    ibx_ofi_side_put(&pair->offer_out, &side);
    assert_int_equal(join(pair), -EHOSTUNREACH);
    assert_non_null(strstr(pair->client.err.message, "another host"));
    pair_close(pair);

    pair = pair_open("sockets");
    side = some_side();
    ibx_ofi_side_put(&pair->offer_out, &side);
    assert_int_equal(join(pair), -EOPNOTSUPP);
    assert_non_null(strstr(pair->client.err.message, "offers libfabric's tcp"));
    pair_close(pair);
}

/* Everything derived from the session's key is wrong, or only the proof. */
static void test_wrong_proofs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pair *pair = pair_open("tcp");
        struct end *server = &pair->server;
        struct finishing one, other;
        assert_int_equal(ibx_provider_ofi.offer(server->endpoint, &pair->offer_out, &server->err),
                         0);
        assert_int_equal(join(pair), 0);
        pair->client.wrong_proofs = true;
        pair->client.right_proofs = i ? "messages" : NULL;
        struct ibx_reader answer = ibx_reader_of(pair->answer, pair->answer_out.length);
        uint64_t deadline = ibx_deadline_in_ms(500);
        finish_start(&one, server, &answer, deadline);
        finish_start(&other, &pair->client, NULL, deadline);
        assert_int_equal(finish_join(&one), -ETIMEDOUT);
        assert_int_equal(finish_join(&other), -ETIMEDOUT);
        assert_non_null(strstr(pair->server.err.message, "no proof"));
        pair_close(pair);
    }
}

/* ---------------------------------------------------------------------- outsiders */

struct outsider {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    fi_addr_t victim;
};

static struct outsider outsider_open(struct end *victim)
{
    struct ofi_endpoint *e = victim->ofi;
    struct outsider s = {.info = fi_dupinfo(e->choice.info)};
    struct fi_av_attr av = {.type = s.info->domain_attr->av_type, .count = 1};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
    assert_int_equal(fi_fabric(s.info->fabric_attr, &s.fabric, NULL), 0);
    assert_int_equal(fi_domain(s.fabric, s.info, &s.domain, NULL), 0);
    assert_int_equal(fi_av_open(s.domain, &av, &s.av, NULL), 0);
    assert_int_equal(fi_cq_open(s.domain, &cq, &s.cq, NULL), 0);
    assert_int_equal(fi_endpoint(s.domain, s.info, &s.ep, NULL), 0);
    assert_int_equal(fi_ep_bind(s.ep, &s.av->fid, 0), 0);
    assert_int_equal(fi_ep_bind(s.ep, &s.cq->fid, FI_TRANSMIT | FI_RECV), 0);
    assert_int_equal(fi_enable(s.ep), 0);
    assert_int_equal(fi_av_insert(s.av, e->own.address[0].bytes, 1, &s.victim, 0, NULL), 1);
    return s;
}

static void outsider_close(struct outsider *s)
{
    fi_close(&s->ep->fid);
    fi_close(&s->cq->fid);
    fi_close(&s->av->fid);
    fi_close(&s->domain->fid);
    fi_close(&s->fabric->fid);
    fi_freeinfo(s->info);
}

/* Sends, and drives the pair until the message has left. */
static void outsider_send(struct outsider *s, struct pair *pair, const void *bytes, size_t length)
{
    struct fi_context2 context;
    struct fi_cq_msg_entry entry;
    ssize_t rc;
    AWAIT(pair, (fi_cq_read(s->cq, &entry, 1),
                 rc = fi_send(s->ep, bytes, length, NULL, s->victim, &context)) != -FI_EAGAIN);
    assert_int_equal(rc, 0);
    AWAIT(pair, (rc = fi_cq_read(s->cq, &entry, 1)) != -FI_EAGAIN);
    assert_int_equal(rc, 1);
}

static void test_unauthenticated_senders(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct outsider outsider = outsider_open(&pair->server);
    static uint8_t bytes[8192];
    send_text(pair, &pair->client, "one");
    /* More messages of each kind than there are receive buffers. */
    for (unsigned i = 0; i < 40; i++) {
        static const uint8_t kinds[] = {OFI_DATA, OFI_HELLO, OFI_CREDIT, OFI_FENCE};
        memset(bytes, 0x77, sizeof(bytes));
        bytes[18] = kinds[i % 4];
        outsider_send(&outsider, pair, bytes, 5);
        outsider_send(&outsider, pair, bytes, OFI_HEADER_BYTES + 32);
        outsider_send(&outsider, pair, bytes, pair->server.ofi->buffer_bytes + 64);
    }
    send_text(pair, &pair->client, "two");
    AWAIT(pair, pair->server.count >= 2);
    outsider_close(&outsider);
    send_text(pair, &pair->client, "three");
    AWAIT(pair, pair->server.count >= 3);
    assert_received(pair, (const char *const[]){"one", "two", "three"}, 3);
    pair_close(pair);
}

static atomic_bool outsiders_without_end;

int __real_ibx_ofi_io_take(struct ofi_endpoint *e);
int __wrap_ibx_ofi_io_take(struct ofi_endpoint *e);

int __wrap_ibx_ofi_io_take(struct ofi_endpoint *e)
{
    return __real_ibx_ofi_io_take(e) + outsiders_without_end;
}

/* Messages arrive as fast as they are dropped, and none is from the client. */
static void test_outsiders_delay_no_deadline(void **state)
{
    (void)state;
    struct pair *pair = pair_open("tcp");
    struct end *server = &pair->server;
    struct finishing finishing;
    assert_int_equal(ibx_provider_ofi.offer(server->endpoint, &pair->offer_out, &server->err), 0);
    assert_int_equal(join(pair), 0);
    struct ibx_reader answer = ibx_reader_of(pair->answer, pair->answer_out.length);
    const uint64_t give_up = ibx_deadline_in_ms(patience_ms(20000));
    outsiders_without_end = true;
    finish_start(&finishing, server, &answer, ibx_deadline_in_ms(300));
    while (outsiders_without_end && pthread_tryjoin_np(finishing.thread, NULL) == EBUSY) {
        outsiders_without_end = ibx_now_ns() < give_up;
        poll(NULL, 0, 1);
    }
    assert_true(outsiders_without_end);
    outsiders_without_end = false;
    assert_non_null(strstr(server->err.message, "no proof"));
    pair_close(pair);
}

/* ---------------------------------------------------------------- a peer that lies */

static void test_order_is_restored(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = pair->client.ofi;
    static const uint32_t sent[] = {2, 1, 3, 0};
    static const char *const texts[] = {"a", "b", "c", "d"};
    for (unsigned i = 0; i < 4; i++) {
        client->next_send = sent[i];
        send_text(pair, &pair->client, texts[sent[i]]);
    }
    AWAIT(pair, pair->server.count == 4);
    assert_received(pair, texts, 4);
    pair_close(pair);
}

/* A breach of the protocol ends the connection with this sentence. */
static void expect_lost(struct pair *pair, const char *sentence)
{
    AWAIT(pair, end_lost(&pair->server));
    const struct note *lost = end_lost(&pair->server);
    assert_int_equal(lost->status, -EPROTO);
    if (!strstr(lost->reason, sentence))
        fail_msg("\"%s\" instead of \"%s\"", lost->reason, sentence);
    pair_close(pair);
}

static void test_sequence_number_outside_the_window(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    pair->client.ofi->next_send = 16;
    send_text(pair, &pair->client, "far");
    expect_lost(pair, "message 16");

    pair = pair_connect();
    send_text(pair, &pair->client, "first");
    AWAIT(pair, pair->server.count == 1);
    pair->client.ofi->next_send = 0;
    send_text(pair, &pair->client, "again");
    expect_lost(pair, "message 0");
}

static void test_credits_that_were_never_given(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    pair->client.ofi->returned = 1;
    pair->client.ofi->missing = 1;
    send_text(pair, &pair->client, "here you are");
    expect_lost(pair, "returned 1 credits");
}

/* None of its messages was released, so the peer has no credit. */
static void test_message_without_credit(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    for (unsigned i = 0; i < 16; i++)
        send_text(pair, &pair->client, "mine");
    AWAIT(pair, pair->server.count == 16);
    pair->client.ofi->credits = 1;
    send_text(pair, &pair->client, "more");
    expect_lost(pair, "message 16");
}

static void test_too_many_fences(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = pair->client.ofi;
    /* The answer to a FENCE waits for older chunks. If one stays in flight for ever, the second
     * FENCE is refused. */
    pair->server.ofi->chunks_in_flight++;
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 1), 0);
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 2), 0);
    expect_lost(pair, "FENCE");
}

static void test_keys(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    static char memory[2][4096];
    struct ibx_mr *mr[2];
    for (int i = 0; i < 2; i++)
        mr[i] = end_register(&pair->server, memory[i], sizeof(memory[i]), IBX_ACCESS_REMOTE_READ);
    /* Keys are random: neither small nor consecutive. */
    uint64_t a = mr[0]->keys[0], b = mr[1]->keys[0];
    assert_true(a > UINT32_MAX && b > UINT32_MAX && a - b > 1000 && b - a > 1000);

    struct ibx_mr *local =
        end_register(&pair->client, memory[1], sizeof(memory[1]), IBX_ACCESS_LOCAL);
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_READ,
        .lane = 1,
        .local = memory[1] + 100,
        .mr = local,
        .remote_address = (uintptr_t)memory[0] + 1000,
        .remote_keys = mr[0]->keys,
        .length = 5,
    };
    memcpy(memory[0] + 1000, "there", 5);
    assert_int_equal(ibx_provider_ofi.rdma(pair->client.endpoint, &chunk), 0);
    AWAIT(pair, pair->client.count);
    assert_ptr_equal(pair->client.notes[0].chunk, &chunk);
    assert_int_equal(pair->client.notes[0].status, 0);
    assert_memory_equal(memory[1] + 100, "there", 5);

    end_deregister(&pair->client, local);
    ibx_provider_ofi.abort(pair->server.endpoint);
    for (int i = 0; i < 2; i++)
        end_deregister(&pair->server, mr[i]);
    pair_close(pair);
}

static struct fi_ops *usual;

static int close_later(struct fid *fid)
{
    fid->ops = usual;
    return -FI_EBUSY;
}

/* On fabrics such as Slingshot a region belongs to an endpoint and is closed before it. It must
 * be closed only once, even if the endpoint cannot be closed at the first attempt. */
static void test_endpoint_that_closes_later(void **state)
{
    (void)state;
    static char memory[4096];
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct fid *first = &server->lanes[0].ep->fid;
    struct ibx_mr *mr = end_register(&pair->server, memory, sizeof(memory), IBX_ACCESS_REMOTE_READ);
    server->choice.info->domain_attr->mr_mode |= FI_MR_ENDPOINT;
    usual = first->ops;
    struct fi_ops busy = *usual;
    busy.close = close_later;
    first->ops = &busy;
    ibx_provider_ofi.abort(server);
    assert_ptr_equal(first->ops, usual);
    AWAIT(pair, server->state.now == OFI_CLOSED);
    end_deregister(&pair->server, mr);
    pair_close(pair);
}

/* An endpoint that is closed already may report its receives as cancelled, while another one is not
 * yet closed. They are not posted again. */
static void test_receives_of_a_closed_endpoint(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *server = pair->server.ofi;
    struct fid *second = &server->lanes[1].ep->fid;
    struct ofi_request *receive = server->recvs;
    usual = second->ops;
    struct fi_ops busy = *usual;
    busy.close = close_later;
    second->ops = &busy;
    ibx_provider_ofi.abort(server);
    assert_int_equal(server->state.now, OFI_STOPPED);
    assert_null(server->lanes[0].ep);
    assert_int_equal(receive->lane, 0);
    assert_int_equal(receive->state.now, OFI_RECV_POSTED);
    ibx_ofi_msg_repost(server, receive);
    assert_int_equal(receive->state.now, OFI_RECV_IDLE);
    pair_close(pair);
}

static unsigned busy_times;
static bool is_closed;

static int close_in_the_end(struct fid *fid)
{
    if (busy_times) {
        busy_times--;
        return -FI_EBUSY;
    }
    is_closed = true;
    fid->ops = usual;
    return usual->close(fid);
}

/* Until the endpoint is closed libfabric may use its memory. */
static void test_endpoint_that_closes_at_the_end(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct fid *first = &pair->server.ofi->lanes[0].ep->fid;
    usual = first->ops;
    struct fi_ops busy = *usual;
    busy.close = close_in_the_end;
    first->ops = &busy;
    busy_times = 5;
    is_closed = false;
    pair_close(pair);
    assert_true(is_closed);
}

/* A connection that has been aborted goes on until its own transfers are over, and with it what the
 * peer has begun. Nevertheless nothing arrives in memory after it was deregistered. */
static void test_deregistration_after_the_end(void **state)
{
    (void)state;
    enum { LENGTH = 16 << 20 };
    struct pair *pair = pair_connect();
    uint8_t *target = calloc(1, LENGTH), *source = malloc(LENGTH), *kept = malloc(LENGTH);
    memset(source, 1, LENGTH);
    struct ibx_mr *to = end_register(&pair->server, target, LENGTH, IBX_ACCESS_REMOTE_WRITE),
                  *from = end_register(&pair->client, source, LENGTH, IBX_ACCESS_REMOTE_READ),
                  *local = end_register(&pair->server, kept, LENGTH, IBX_ACCESS_LOCAL);
    struct ibx_chunk written = {.kind = IBX_RDMA_WRITE,
                                .lane = 1,
                                .local = source,
                                .mr = from,
                                .remote_address = (uintptr_t)target,
                                .remote_keys = to->keys,
                                .length = LENGTH};
    struct ibx_chunk read = {.kind = IBX_RDMA_READ,
                             .lane = 1,
                             .local = kept,
                             .mr = local,
                             .remote_address = (uintptr_t)source,
                             .remote_keys = from->keys,
                             .length = 1};
    /* The WRITE is longer than the kernel's buffers, and the answer to the READ is behind it. */
    assert_int_equal(ibx_provider_ofi.rdma(pair->client.endpoint, &written), 0);
    AWAIT(pair, target[0]);
    assert_int_equal(target[LENGTH - 1], 0);
    assert_int_equal(ibx_provider_ofi.rdma(pair->server.endpoint, &read), 0);
    ibx_provider_ofi.abort(pair->server.endpoint);
    assert_int_equal(pair->server.ofi->state.now, OFI_STOPPED);
    end_deregister(&pair->server, to);
    memset(target, 2, LENGTH);
    AWAIT(pair, pair->server.count);
    for (int i = 0; i < 1000; i++)
        turn(pair);
    for (size_t i = 0; i < LENGTH; i++)
        assert_int_equal(target[i], 2);
    end_deregister(&pair->server, local);
    ibx_provider_ofi.abort(pair->client.endpoint);
    end_deregister(&pair->client, from);
    pair_close(pair);
    free(target);
    free(source);
    free(kept);
}

/* Before libfabric is loaded: a temporary lack of descriptors must not disable it for ever. */
static void test_without_descriptors_for_a_while(void **state)
{
    (void)state;
    struct rlimit before, few;
    struct ibx_error err = {0};
    const int next = dup(0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(ibx_ofi_library(&err), -ENOSYS);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_non_null(strstr(err.message, strerror(EMFILE)));
    assert_int_equal(ibx_ofi_library(&err), 0);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_descriptors_for_a_while),
        cmocka_unit_test(test_golden_offer),
        cmocka_unit_test(test_malformed_offers),
        cmocka_unit_test(test_malformed_addresses),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_probing),
        cmocka_unit_test(test_refused_offers),
        cmocka_unit_test(test_wrong_proofs),
        cmocka_unit_test(test_unauthenticated_senders),
        cmocka_unit_test(test_outsiders_delay_no_deadline),
        cmocka_unit_test(test_order_is_restored),
        cmocka_unit_test(test_sequence_number_outside_the_window),
        cmocka_unit_test(test_credits_that_were_never_given),
        cmocka_unit_test(test_message_without_credit),
        cmocka_unit_test(test_too_many_fences),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_endpoint_that_closes_later),
        cmocka_unit_test(test_receives_of_a_closed_endpoint),
        cmocka_unit_test(test_endpoint_that_closes_at_the_end),
        cmocka_unit_test(test_deregistration_after_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
