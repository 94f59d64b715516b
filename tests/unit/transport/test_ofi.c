/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The libfabric provider without the core: two ends in one process over
 * libfabric's tcp, outsiders on the same fabric, and a peer that lies.
 */
#include "transport/ofi/ofi.h"

#include "common/clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define RECEIVED_MAX 64

/* ----------------------------------------------------------- in place of the core */

struct end {
    struct ibx_link link;
    void *endpoint;
    enum ibx_role role;
    struct ibx_options options;
    int socket;
    uint8_t secret;   /* both have the same, or else all they derive from it differs */
    bool wrong_hello; /* only the proof itself does */
    uint64_t deadline;
    struct ibx_reader *answer;
    int rc;
    struct ibx_error err;

    char received[RECEIVED_MAX][16]; /* messages, shortened */
    uint64_t slots[RECEIVED_MAX];
    unsigned received_count;
    int lost;
    char reason[256];
};

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
    return end_of(link)->socket;
}

void ibx_link_proof(const struct ibx_link *link, const char *label, uint8_t proof[IBX_PROOF_BYTES])
{
    bool hello = !strstr(label, "messages");
    memset(proof, end_of(link)->secret ^ (hello && end_of(link)->wrong_hello), IBX_PROOF_BYTES);
    for (size_t i = 0; label[i]; i++)
        proof[i % IBX_PROOF_BYTES] ^= (uint8_t)label[i];
}

int ibx_link_wait(struct ibx_link *link, int fd, short events, uint64_t deadline_ns)
{
    (void)link;
    struct pollfd wait = {.fd = fd, .events = events};
    return poll(&wait, 1, ibx_ms_until(deadline_ns)) == 1 ? 0 : -ETIMEDOUT;
}

int ibx_link_watch(struct ibx_link *link, int fd)
{
    (void)link;
    (void)fd;
    return 0;
}

void ibx_link_unwatch(struct ibx_link *link, int fd)
{
    (void)link;
    (void)fd;
}

static void up_chunk_done(struct ibx_link *link, struct ibx_chunk *chunk, int status)
{
    (void)link;
    chunk->cookie[0] = 1;
    chunk->cookie[1] = (uint64_t)(int64_t)status;
}

static void up_message(struct ibx_link *link, const void *data, size_t length, uint64_t slot)
{
    struct end *end = end_of(link);
    assert_true(end->received_count < RECEIVED_MAX && length < sizeof(end->received[0]));
    memcpy(end->received[end->received_count], data, length);
    end->received[end->received_count][length] = '\0';
    end->slots[end->received_count++] = slot;
}

static void up_send_done(struct ibx_link *link, uint64_t cookie, int status)
{
    (void)link;
    (void)cookie;
    (void)status;
}

static void up_lost(struct ibx_link *link, int status, const char *reason)
{
    struct end *end = end_of(link);
    if (end->lost)
        return;
    end->lost = status;
    snprintf(end->reason, sizeof(end->reason), "%s", reason);
}

static const struct ibx_upcalls upcalls = {up_chunk_done, up_message, up_send_done, up_lost};

/* ------------------------------------------------------------------------ a pair */

struct pair {
    struct end server, client;
    uint8_t offer[4096], answer[4096];
    struct ibx_writer offer_out, answer_out;
    struct ibx_reader answer_in;
};

static void end_open(struct end *end, enum ibx_role role, int socket)
{
    end->role = role;
    end->socket = socket;
    end->secret = 0x5a;
    end->link = (struct ibx_link){.up = &upcalls, .owner = end};
    ibx_provider_ofi.open(&end->link, &end->endpoint, &end->err);
}

static struct ofi_endpoint *inside(struct end *end)
{
    return end->endpoint;
}

static struct pair *pair_open(const char *provider)
{
    int sockets[2];
    struct pair *pair = calloc(1, sizeof(*pair));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    struct ibx_options options = {.slots = 16, .message = 4096, .timeout_ms = 5000};
    snprintf(options.provider, sizeof(options.provider), "ofi");
    snprintf(options.ofi_provider, sizeof(options.ofi_provider), "%s", provider);
    pair->server.options = pair->client.options = options;
    end_open(&pair->server, IBX_ROLE_SERVER, sockets[0]);
    end_open(&pair->client, IBX_ROLE_CLIENT, sockets[1]);
    pair->offer_out = ibx_writer_of(pair->offer, sizeof(pair->offer));
    pair->answer_out = ibx_writer_of(pair->answer, sizeof(pair->answer));
    return pair;
}

static void pair_close(struct pair *pair)
{
    struct end *ends[2] = {&pair->server, &pair->client};
    for (int i = 0; i < 2; i++) {
        ibx_provider_ofi.abort(ends[i]->endpoint);
        ibx_provider_ofi.close(ends[i]->endpoint);
        close(ends[i]->socket);
    }
    free(pair);
}

static void offer(struct pair *pair)
{
    struct end *server = &pair->server;
    int rc = ibx_provider_ofi.offer(server->endpoint, &pair->offer_out, &server->err);
    if (rc)
        fail_msg("offer: %s", server->err.message);
    assert_false(pair->offer_out.failed);
}

static int join(struct pair *pair)
{
    struct ibx_reader in = ibx_reader_of(pair->offer, pair->offer_out.length);
    struct end *client = &pair->client;
    return ibx_provider_ofi.join(client->endpoint, &in, &pair->answer_out, &client->err);
}

static void *finish_one(void *argument)
{
    struct end *end = argument;
    end->rc = ibx_provider_ofi.finish(end->endpoint, end->answer, end->deadline, &end->err);
    return NULL;
}

static void finish(struct pair *pair, unsigned ms)
{
    pthread_t thread;
    pair->answer_in = ibx_reader_of(pair->answer, pair->answer_out.length);
    pair->server.answer = &pair->answer_in;
    pair->server.deadline = pair->client.deadline = ibx_deadline_in_ms(ms);
    assert_int_equal(pthread_create(&thread, NULL, finish_one, &pair->client), 0);
    finish_one(&pair->server);
    pthread_join(thread, NULL);
}

static struct pair *pair_connect(void)
{
    struct pair *pair = pair_open("tcp");
    offer(pair);
    if (join(pair))
        fail_msg("join: %s", pair->client.err.message);
    finish(pair, 10000);
    if (pair->server.rc || pair->client.rc)
        fail_msg("finish: %s / %s", pair->server.err.message, pair->client.err.message);
    return pair;
}

static void turn(struct pair *pair)
{
    ibx_provider_ofi.progress(pair->server.endpoint);
    ibx_provider_ofi.progress(pair->client.endpoint);
}

#define AWAIT(pair, condition)                                                                     \
    for (uint64_t until_ = ibx_deadline_in_ms(10000); !(condition); turn(pair)) {                  \
        if (ibx_now_ns() > until_)                                                                 \
            fail_msg("in vain: %s", #condition);                                                   \
    }

static void send_text(struct pair *pair, struct end *from, const char *text)
{
    struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};
    int rc;
    AWAIT(pair,
          (rc = ibx_provider_ofi.send(from->endpoint, &iov, 1, iov.iov_len, 0, 0)) != -EAGAIN);
    assert_int_equal(rc, 0);
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
    bad[3].message = 64; /* shorter than what the communicator puts into one */
    bad[4].lanes = 0;
    bad[5].address[1].length = 0;
    for (int i = 0; i < 6; i++)
        assert_int_equal(read_back(&bad[i]), -EPROTO);

    /* libfabric is not told how long an address is. */
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

/* The bytes of an address are checked before its endpoint is. */
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

static void test_wrong_proofs(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct pair *pair = pair_open("tcp");
        offer(pair);
        assert_int_equal(join(pair), 0);
        pair->client.secret ^= (uint8_t)!i;
        pair->client.wrong_hello = i;
        finish(pair, 500);
        assert_int_equal(pair->server.rc, -ETIMEDOUT);
        assert_int_equal(pair->client.rc, -ETIMEDOUT);
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
    struct ofi_endpoint *e = inside(victim);
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

/* Sends and waits until it has left; the pair goes on meanwhile. */
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
    /* Each kind more often than there are receives. */
    for (unsigned i = 0; i < 40; i++) {
        static const uint8_t kinds[] = {OFI_DATA, OFI_HELLO, OFI_CREDIT, OFI_FENCE};
        memset(bytes, 0x77, sizeof(bytes));
        bytes[18] = kinds[i % 4];
        outsider_send(&outsider, pair, bytes, 5);
        outsider_send(&outsider, pair, bytes, OFI_HEADER_BYTES + 32);
        outsider_send(&outsider, pair, bytes, inside(&pair->server)->buffer_bytes + 64);
    }
    send_text(pair, &pair->client, "two");
    AWAIT(pair, pair->server.received_count >= 2);
    outsider_close(&outsider);
    send_text(pair, &pair->client, "three");
    AWAIT(pair, pair->server.received_count >= 3);
    assert_int_equal(pair->server.received_count, 3);
    assert_string_equal(pair->server.received[0], "one");
    assert_string_equal(pair->server.received[1], "two");
    assert_string_equal(pair->server.received[2], "three");
    assert_int_equal(pair->server.lost, 0);
    pair_close(pair);
}

/* ---------------------------------------------------------------- a peer that lies */

static void test_order_is_restored(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = inside(&pair->client);
    static const uint32_t sent[] = {2, 1, 3, 0};
    static const char *const texts[] = {"a", "b", "c", "d"};
    for (unsigned i = 0; i < 4; i++) {
        client->next_send = sent[i];
        send_text(pair, &pair->client, texts[sent[i]]);
    }
    AWAIT(pair, pair->server.received_count == 4);
    for (unsigned i = 0; i < 4; i++)
        assert_string_equal(pair->server.received[i], texts[i]);
    assert_int_equal(pair->server.lost, 0);
    pair_close(pair);
}

/* What breaks the protocol ends the connection, with a sentence. */
static void expect_lost(struct pair *pair, const char *sentence)
{
    AWAIT(pair, pair->server.lost);
    assert_int_equal(pair->server.lost, -EPROTO);
    if (!strstr(pair->server.reason, sentence))
        fail_msg("\"%s\" instead of \"%s\"", pair->server.reason, sentence);
    pair_close(pair);
}

static void test_a_sequence_out_of_the_window(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    inside(&pair->client)->next_send = 16;
    send_text(pair, &pair->client, "far");
    expect_lost(pair, "message 16");

    pair = pair_connect();
    send_text(pair, &pair->client, "first");
    AWAIT(pair, pair->server.received_count == 1);
    inside(&pair->client)->next_send = 0;
    send_text(pair, &pair->client, "again");
    expect_lost(pair, "message 0");
}

static void test_credits_out_of_nothing(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    inside(&pair->client)->returned = 1;
    inside(&pair->client)->missing = 1;
    send_text(pair, &pair->client, "here you are");
    expect_lost(pair, "returned 1 credits");
}

static void test_fences_without_end(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    struct ofi_endpoint *client = inside(&pair->client);
    /* An answer waits for old chunks; with one in flight for ever the second FENCE is too many. */
    inside(&pair->server)->chunks_in_flight++;
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 1), 0);
    assert_int_equal(ibx_ofi_msg_control(client, OFI_FENCE, 2), 0);
    expect_lost(pair, "FENCE");
}

static void test_keys(void **state)
{
    (void)state;
    struct pair *pair = pair_connect();
    static char memory[2][4096];
    struct ibx_mr mr[2];
    for (int i = 0; i < 2; i++) {
        mr[i] = (struct ibx_mr){.span = ibx_span_host(memory[i], sizeof(memory[i])),
                                .access = IBX_ACCESS_REMOTE_READ};
        assert_int_equal(ibx_provider_ofi.mr_register(pair->server.endpoint, &mr[i], NULL), 0);
    }
    /* Chosen by chance: neither small nor one after the other. */
    uint64_t a = mr[0].keys[0], b = mr[1].keys[0];
    assert_true(a > UINT32_MAX && b > UINT32_MAX && a - b > 1000 && b - a > 1000);

    struct ibx_mr local = {.span = ibx_span_host(memory[1], sizeof(memory[1]))};
    assert_int_equal(ibx_provider_ofi.mr_register(pair->client.endpoint, &local, NULL), 0);
    struct ibx_chunk chunk = {
        .kind = IBX_RDMA_READ,
        .lane = 1,
        .local = memory[1] + 100,
        .mr = &local,
        .remote_address = (uintptr_t)memory[0] + 1000,
        .remote_keys = mr[0].keys,
        .length = 5,
    };
    memcpy(memory[0] + 1000, "there", 5);
    assert_int_equal(ibx_provider_ofi.rdma(pair->client.endpoint, &chunk), 0);
    AWAIT(pair, chunk.cookie[0]);
    assert_int_equal((int)chunk.cookie[1], 0);
    assert_memory_equal(memory[1] + 100, "there", 5);

    ibx_provider_ofi.mr_deregister(pair->client.endpoint, &local);
    ibx_provider_ofi.abort(pair->server.endpoint);
    for (int i = 0; i < 2; i++)
        ibx_provider_ofi.mr_deregister(pair->server.endpoint, &mr[i]);
    pair_close(pair);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_offer),
        cmocka_unit_test(test_malformed_offers),
        cmocka_unit_test(test_malformed_addresses),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_probing),
        cmocka_unit_test(test_refused_offers),
        cmocka_unit_test(test_wrong_proofs),
        cmocka_unit_test(test_unauthenticated_senders),
        cmocka_unit_test(test_order_is_restored),
        cmocka_unit_test(test_a_sequence_out_of_the_window),
        cmocka_unit_test(test_credits_out_of_nothing),
        cmocka_unit_test(test_fences_without_end),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
